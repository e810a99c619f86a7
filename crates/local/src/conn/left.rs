//! What a call that was left by `siglongjmp` out of a signal handler has not put right.

use super::{Conn, Ordering, World, lock};

impl Conn {
    /// Frees the locks of the connection that this thread holds because it has left a call by a jump. To be
    /// called where none can be held otherwise: before a wait.
    pub fn free_left_locks(&self, w: &World) {
        lock::free_if_left(&self.counting);
        if let Some((_, mine)) = self.my_half(w) {
            for word in [&mine.rx_lock, &mine.tx_lock, &mine.wait_lock, &mine.bell_lock] {
                lock::free_if_left(word);
            }
        }
    }

    /// A receive that [`Self::receiving`] has begun was left by a jump, and will not end by itself.
    pub fn receive_left(&self) {
        self.in_kernel.fetch_sub(1, Ordering::SeqCst);
    }
}

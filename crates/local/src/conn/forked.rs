//! What a forked child makes of calls in which other threads were: it has none of these threads.

use super::{Conn, Ordering};

/// Calls of one thread that are in the middle of something on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// That hold it open, because they may sleep.
    pub holding: u32,
    /// Receives of the kernel's that began before the attachment: [`Conn::receiving`].
    pub receiving: u32,
    /// Waits of the kernel's that take nothing: [`Conn::begins_to_wait`].
    pub polling: u32,
}

impl Conn {
    /// To be called in a forked child, whose only thread is in these calls; descriptors are to be counted into
    /// [`Self::refs`] after this. What else waits or holds a lock does so in the parent: here nobody would ever end it,
    /// and the connection would stay open after its last descriptor, and full of doorbells that all leave to a sleeper.
    ///
    /// Not touched is who sends by TCP, because the parent does so on the same socket: our direction must not switch
    /// before that has ended, which is in the memory that both share.
    pub fn forked(&self, calls: Calls) {
        self.refs.store(calls.holding, Ordering::Relaxed);
        self.inside.store(calls.holding, Ordering::Relaxed);
        self.in_kernel.store(calls.receiving, Ordering::Relaxed);
        self.in_poll.store(calls.polling, Ordering::Relaxed);
        self.counting.store(0, Ordering::Relaxed);
        self.ends.word().store(0, Ordering::Relaxed);
    }
}

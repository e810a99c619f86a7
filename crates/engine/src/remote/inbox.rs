//! What one thread leaves for another, and the bell that tells it.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sys::call::Failure;
use sys::event::Bell;

/// A queue with a bell. The lock is held for as long as it takes to move a few words.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    queue: Mutex<Queue<T>>,
    bell: Bell,
}

#[derive(Debug)]
struct Queue<T> {
    things: VecDeque<T>,
    /// Of those that were left with [`Inbox::put_within`].
    bytes: usize,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Result<Self, Failure> {
        let queue = Queue { things: VecDeque::new(), bytes: 0 };
        Ok(Self { queue: Mutex::new(queue), bell: Bell::new()? })
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves something.
    pub(super) fn put(&self, thing: T) {
        self.queue().things.push_back(thing);
        self.bell.ring();
    }

    /// Leaves something of `bytes`, unless more than `most` bytes would then wait of what was left so; whether it
    /// did. For what strangers send: no more than that waits here however slow the other thread is.
    pub(super) fn put_within(&self, thing: T, bytes: usize, most: usize) -> bool {
        let mut queue = self.queue();
        if bytes > most.saturating_sub(queue.bytes) {
            return false;
        }
        queue.bytes += bytes;
        queue.things.push_back(thing);
        drop(queue);
        self.bell.ring();
        true
    }

    /// All that was left since the last time.
    pub(super) fn take(&self) -> VecDeque<T> {
        // First the bell: what is left after this rings again.
        let _ = self.bell.hear();
        let mut queue = self.queue();
        queue.bytes = 0;
        std::mem::take(&mut queue.things)
    }
}

impl<T> AsRawFd for Inbox<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_found_in_order() {
        let inbox = Inbox::new().unwrap();
        assert!(inbox.take().is_empty());
        inbox.put(1);
        inbox.put(2);
        assert_eq!(inbox.take(), [1, 2]);
        assert!(inbox.take().is_empty());
    }

    #[test]
    fn no_more_waits_than_there_is_room_for() {
        let inbox = Inbox::new().unwrap();
        assert!(inbox.put_within(1, 60, 100));
        assert!(inbox.put_within(2, 40, 100));
        assert!(!inbox.put_within(3, 1, 100), "full");
        // What is ours to say has room always.
        inbox.put(4);
        assert_eq!(inbox.take(), [1, 2, 4]);
        assert!(!inbox.put_within(5, 101, 100), "more than there is at all");
        assert!(inbox.put_within(6, 100, 100), "there is room again");
        assert_eq!(inbox.take(), [6]);
    }
}

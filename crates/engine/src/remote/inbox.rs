//! What one thread leaves for another, and the bell that tells it.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;

use sys::call::Failure;
use sys::event::Bell;

/// A queue with a bell. The lock is held for as long as it takes to move a few words.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    queue: Mutex<VecDeque<T>>,
    bell: Bell,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self { queue: Mutex::default(), bell: Bell::new()? })
    }

    /// Leaves something.
    pub(super) fn put(&self, thing: T) {
        match self.queue.lock() {
            Ok(mut queue) => queue.push_back(thing),
            Err(poisoned) => poisoned.into_inner().push_back(thing),
        }
        self.bell.ring();
    }

    /// All that was left since the last time.
    pub(super) fn take(&self) -> VecDeque<T> {
        // First the bell: what is left after this rings again.
        let _ = self.bell.hear();
        match self.queue.lock() {
            Ok(mut queue) => std::mem::take(&mut queue),
            Err(poisoned) => std::mem::take(&mut poisoned.into_inner()),
        }
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
}

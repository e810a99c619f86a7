//! What vectors share that speak from one address: how many links begin there.
//!
//! The kernel finds the socket of a vector by its place among those of the address, and gives a place that becomes free to the
//! last of them. So they are closed together, when no vector has a link there, or not at all.

use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module. It lasts as long as a vector has a socket.
#[derive(Debug, Default)]
pub(super) struct Lease {
    /// Links of all vectors, or [`OVER`]. Nothing else is told by it.
    links: AtomicUsize,
}

/// No link begins there any more, and sockets are closed.
const OVER: usize = usize::MAX;

impl Lease {
    /// One more link; `false`: there can be none.
    pub(super) fn add_link(&self) -> bool {
        let more = |links: usize| links.checked_add(1);
        self.links.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// One less, of those that were added.
    pub(super) fn remove_link(&self) {
        self.links.fetch_sub(1, Ordering::Relaxed);
    }

    /// The end, if there is no link: from now on there is none. Whether it came now.
    pub(super) fn end(&self) -> bool {
        self.links.compare_exchange(0, OVER, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(super) fn is_over(&self) -> bool {
        self.links.load(Ordering::Relaxed) == OVER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_when_there_is_no_link_and_there_is_none_from_then_on() {
        let lease = Lease::default();
        assert!(lease.add_link() && lease.add_link());
        lease.remove_link();
        assert!(!lease.end() && !lease.is_over());
        lease.remove_link();
        assert!(lease.end() && lease.is_over());
        assert!(!lease.end(), "it has ended");
        assert!(!lease.add_link() && lease.is_over());
    }
}

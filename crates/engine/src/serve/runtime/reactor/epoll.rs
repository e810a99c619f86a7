//! The driver that works everywhere: each descriptor is in an epoll set once, told of edges.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use sys::event::{Event, Events, Interest, Poller};

use super::super::vector::Shared;
use super::io_error;

/// Events that one wait may tell of; more come with the next.
const EVENTS: usize = 256;
/// The token of the bell; no source has it, since two of its bits are above those of a generation.
const BELL: u64 = u64::MAX;
/// Both directions from the first, so that one call lasts for the life of the descriptor. Edges suffice:
/// who waits has met `EAGAIN`.
const EDGES: Interest = Interest { read: true, write: true, peer_shut: true, once: true };

pub(super) struct Epoll {
    poller: Poller,
    events: RefCell<Events>,
}

impl Epoll {
    pub(super) fn new(shared: &Shared) -> io::Result<Self> {
        let poller = Poller::new().map_err(io_error)?;
        // An edge each time that it is rung: it need not be heard, which saves a call.
        let interest = Interest { once: true, ..Interest::READ };
        poller.add(shared.bell(), interest, BELL).map_err(io_error)?;
        Ok(Self { poller, events: RefCell::new(Events::new(EVENTS)) })
    }

    pub(super) fn add(&self, fd: &OwnedFd, token: u64) -> io::Result<()> {
        self.poller.add(fd, EDGES, token).map_err(io_error)
    }

    pub(super) fn remove(&self, fd: &OwnedFd) {
        self.poller.remove(fd);
    }

    pub(super) fn wait(&self, most: Option<Duration>, mut told: impl FnMut(Event)) {
        let ns = most.map(|most| u64::try_from(most.as_nanos()).unwrap_or(u64::MAX));
        let mut events = self.events.borrow_mut();
        self.poller.wait(&mut events, ns);
        events.iter().filter(|event| event.token != BELL).for_each(&mut told);
    }
}

//! Parsed fragments on their way to the core that owns their datagram: many at a time, bounded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use frag::wire::Fragment;

/// Fragments that travel together.
pub(crate) const BATCH: usize = 32;
/// Batches that may be on their way between two threads.
const BATCHES: usize = 64;

/// What a fragment is to the core that gets it: its header as parsed, and where its bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) fragment: Fragment,
    pub(crate) slot: u32,
}

/// Alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

/// From one thread to one other. A slot's lock is free whenever somebody comes for it, since `sent` and
/// `received` say whose it is: it only tells the compiler so.
#[derive(Debug)]
pub(crate) struct Lane {
    slots: Box<[Line<Mutex<Vec<Descriptor>>>]>,
    sent: Line<AtomicUsize>,
    received: Line<AtomicUsize>,
}

impl Lane {
    pub(crate) fn new() -> Self {
        let slots = (0..BATCHES).map(|_| Line(Mutex::new(Vec::with_capacity(BATCH)))).collect();
        Self { slots, sent: Line::default(), received: Line::default() }
    }

    /// Exchanges a batch for an empty one. `false`: the lane is full.
    pub(crate) fn send(&self, batch: &mut Vec<Descriptor>) -> bool {
        let sent = self.sent.0.load(Ordering::Relaxed);
        // Pairs with the Release in `receive`.
        if sent - self.received.0.load(Ordering::Acquire) == BATCHES {
            return false;
        }
        self.exchange(sent, batch);
        self.sent.0.store(sent + 1, Ordering::Release);
        true
    }

    /// Exchanges an empty batch for one that was sent. `false`: there is none.
    pub(crate) fn receive(&self, batch: &mut Vec<Descriptor>) -> bool {
        let received = self.received.0.load(Ordering::Relaxed);
        // Pairs with the Release in `send`.
        if received == self.sent.0.load(Ordering::Acquire) {
            return false;
        }
        self.exchange(received, batch);
        self.received.0.store(received + 1, Ordering::Release);
        true
    }

    fn exchange(&self, at: usize, batch: &mut Vec<Descriptor>) {
        let mut slot = self.slots[at % BATCHES].0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *slot, batch);
    }
}

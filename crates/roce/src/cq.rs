//! Completion queues: what has been done, in order, and when somebody is told.

use std::collections::VecDeque;

use crate::time::Time;
use crate::work::{Completion, Status};

/// Which completion queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub(crate) u16);

impl CqId {
    /// Its place among the device's completion queues.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which completions make an event once a queue is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Those that the peer solicited, and failures.
    Solicited,
    /// Each.
    Any,
}

/// How many completions wait for one event, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moderation {
    /// An event comes with so many completions. 1: at once.
    pub count: u16,
    /// Or so many nanoseconds after the first.
    pub period_nanos: u64,
}

impl Default for Moderation {
    fn default() -> Self {
        Self { count: 1, period_nanos: 0 }
    }
}

/// More completions came than the queue holds: those that are lost are failures that nobody was told of,
/// so all queue pairs that use it have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a completion queue overflowed; its queue pairs have failed")]
pub struct Overflow;

/// What a completion queue has seen. All counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqCounters {
    /// Completions put in.
    pub completions: u64,
    /// Of those, failures.
    pub failures: u64,
    /// Events.
    pub events: u64,
    /// Completions for which there was no room.
    pub overflows: u64,
    /// The most that were in it at a time.
    pub deepest: u64,
}

/// Completions for which there is room from the beginning, and at most when it is empty again.
const SHORT: usize = 1024;

/// A queue of completions.
#[derive(Debug)]
pub(crate) struct Cq {
    queue: VecDeque<Completion>,
    capacity: usize,
    moderation: Moderation,
    armed: Option<Arm>,
    /// Completions that count since it was armed.
    waiting: u16,
    /// When the event is due at the latest.
    event_at: Option<Time>,
    event: bool,
    overflowed: bool,
    /// Nobody has dealt with it yet.
    overflow_is_new: bool,
    /// Queue pairs that use it, twice if for both directions.
    pub(crate) users: u32,
    pub(crate) counters: CqCounters,
}

impl Cq {
    pub(crate) fn new(capacity: usize, moderation: Moderation) -> Self {
        Self {
            // Mostly a few are in it, and a short ring of them stays in the cache.
            queue: VecDeque::with_capacity(capacity.min(SHORT)),
            capacity,
            moderation,
            armed: None,
            waiting: 0,
            event_at: None,
            event: false,
            overflowed: false,
            overflow_is_new: false,
            users: 0,
            counters: CqCounters::default(),
        }
    }

    /// Takes a completion. Errs when there is no room, and ever after.
    pub(crate) fn push(&mut self, now: Time, completion: Completion) -> Result<(), Overflow> {
        if self.overflowed || self.queue.len() >= self.capacity {
            self.overflow_is_new |= !self.overflowed;
            self.overflowed = true;
            self.counters.overflows += 1;
            // Whoever waits must learn of it.
            self.event |= self.armed.take().is_some();
            return Err(Overflow);
        }
        let failed = completion.status != Status::Success;
        self.counters.completions += 1;
        self.counters.failures += u64::from(failed);
        let counts = match self.armed {
            Some(Arm::Any) => true,
            Some(Arm::Solicited) => completion.solicited || failed,
            None => false,
        };
        self.queue.push_back(completion);
        self.counters.deepest = self.counters.deepest.max(self.queue.len() as u64);
        if counts {
            self.waiting = self.waiting.saturating_add(1);
            if failed || self.waiting >= self.moderation.count {
                self.fire();
            } else if self.event_at.is_none() {
                self.event_at = Some(now.plus_nanos(self.moderation.period_nanos));
            }
        }
        Ok(())
    }

    fn fire(&mut self) {
        self.armed = None;
        self.waiting = 0;
        self.event_at = None;
        self.event = true;
        self.counters.events += 1;
    }

    pub(crate) const fn deadline(&self) -> Option<Time> {
        self.event_at
    }

    pub(crate) fn on_deadline(&mut self, now: Time) {
        if self.event_at.is_some_and(|at| at <= now) {
            self.fire();
        }
    }

    /// Whether there was an event since the last call.
    pub(crate) const fn take_event(&mut self) -> bool {
        core::mem::replace(&mut self.event, false)
    }

    /// Arms it. Whether completions are there already: then look, for no event may come.
    pub(crate) fn arm(&mut self, what: Arm) -> bool {
        // Armed for more is not armed for less by who asks later.
        self.armed = Some(if self.armed == Some(Arm::Any) { Arm::Any } else { what });
        !self.queue.is_empty() || self.overflowed
    }

    pub(crate) fn poll(&mut self) -> Result<Option<Completion>, Overflow> {
        match self.queue.pop_front() {
            Some(completion) => Ok(Some(completion)),
            None if self.overflowed => Err(Overflow),
            None => {
                // Many have failed at one time.
                if self.queue.capacity() > 4 * SHORT {
                    self.queue.shrink_to(SHORT);
                }
                Ok(None)
            }
        }
    }

    /// Whether it ran over since the last call.
    pub(crate) const fn take_overflow(&mut self) -> bool {
        core::mem::replace(&mut self.overflow_is_new, false)
    }

    /// Forgets completions of a queue pair that is no more, whose number may come again.
    pub(crate) fn forget(&mut self, qpn: crate::number::Qpn) {
        self.queue.retain(|completion| completion.qpn != qpn);
    }
}

#[cfg(test)]
mod tests;

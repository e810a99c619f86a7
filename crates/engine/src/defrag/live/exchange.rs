//! Fragments that came in by the receive queue of one worker and belong to another.
//!
//! A card that hashes ports spreads the fragments of a datagram: the first has ports, the others have none.
//! With `AF_PACKET` a program in the kernel chooses before a frame is copied; with `AF_XDP` the card has
//! chosen. So a worker asks of each fragment whose it is, by a keyed hash of what all fragments of a datagram
//! have in common, and tells the other of it by a lane of its own. The frame stays where it is.
//!
//! A lane has limited room. What finds none is dropped and counted: a worker that waited for another would
//! lose what comes in by its own queue.

use std::os::fd::AsFd;
use std::sync::Arc;

use frag::wire::Fragment;
use frag::{HashKey, Key, Receiver, Sender, Steering, lane};
use sys::call::Failure;
use sys::event::Bell;
use sys::sync::{AtomicU32, Ordering, full_fence};
use sys::xdp::{Frame, Socket};

/// What a worker has to do with others.
pub(super) struct Exchange {
    mine: u32,
    steering: Steering,
    /// To each worker but this one.
    to: Vec<Option<Way>>,
    from: Vec<Receiver>,
    doors: Arc<[Door]>,
}

/// The way to another worker.
struct Way {
    lane: Sender,
    /// Number of its socket.
    socket: u32,
    /// Whether something was sent that was not shown yet.
    sent: bool,
}

/// How a worker that sleeps is woken. On lines of its own.
#[repr(align(128))]
struct Door {
    asleep: AtomicU32,
    bell: Bell,
}

/// Room of the lanes out of a worker, together, for rings of that many entries; with so many workers.
pub(super) fn room(ring: u32, workers: u32) -> u32 {
    /// What a lane has even where there are many.
    const LEAST: u32 = 64;
    match workers.checked_sub(1) {
        None | Some(0) => 0,
        // Lanes are of powers of two.
        Some(others) => (ring / others).max(LEAST).next_power_of_two() * others,
    }
}

impl Exchange {
    /// Of a worker for each of these sockets, which are a family. `room`: see [`room`]; `secret`: drawn at random.
    pub(super) fn among(
        sockets: &[Socket],
        room: u32,
        secret: HashKey,
    ) -> Result<Vec<Self>, Failure> {
        let count = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
        let each = room / count.saturating_sub(1).max(1);
        let door = || Ok(Door { asleep: AtomicU32::new(0), bell: Bell::new()? });
        let doors: Arc<[Door]> = (0..count).map(|_| door()).collect::<Result<Vec<_>, _>>()?.into();
        let steering = Steering::new(secret, count);
        let alone = |mine| Self {
            mine,
            steering: steering.clone(),
            to: Vec::new(),
            from: Vec::new(),
            doors: Arc::clone(&doors),
        };
        let mut all: Vec<Self> = (0..count).map(alone).collect();
        for from in 0..sockets.len() {
            for (to, socket) in sockets.iter().enumerate() {
                let way = (from != to).then(|| {
                    let (lane, receiver) = lane(each);
                    all[to].from.push(receiver);
                    Way { lane, socket: socket.number(), sent: false }
                });
                all[from].to.push(way);
            }
        }
        Ok(all)
    }

    /// Whether there is anybody else.
    pub(super) fn is_alone(&self) -> bool {
        self.from.is_empty()
    }

    /// Which other worker this datagram belongs to; `None`: to this one.
    pub(super) fn other(&self, key: &Key) -> Option<u32> {
        Some(self.steering.shard(key)).filter(|shard| *shard != self.mine)
    }

    /// Hands a fragment over. `false`: there was no room, and the frame is free again.
    pub(super) fn hand_over(
        &mut self,
        to: u32,
        fragment: &Fragment,
        frame: Frame,
        socket: &Socket,
    ) -> bool {
        let Some(Some(way)) = self.to.get_mut(to as usize) else {
            socket.release(frame);
            return false;
        };
        let there = way.lane.send(fragment, frame.ticket());
        if there {
            // Not too late: it is shown by `flush`.
            socket.lend(frame, way.socket);
            way.sent = true;
        } else {
            socket.release(frame);
        }
        there
    }

    /// Shows others what was handed over, and wakes those that sleep.
    pub(super) fn flush(&mut self) {
        let mut shown = false;
        for way in self.to.iter_mut().flatten().filter(|way| way.sent) {
            way.lane.flush();
            shown = true;
        }
        if !shown {
            return;
        }
        // What was shown, before whether they sleep: who goes to sleep does it the other way round.
        full_fence();
        for (way, door) in self.to.iter_mut().zip(self.doors.iter()) {
            let Some(way) = way.as_mut().filter(|way| way.sent) else { continue };
            way.sent = false;
            if door.asleep.load(Ordering::Relaxed) != 0 {
                door.asleep.store(0, Ordering::Relaxed);
                door.bell.ring();
            }
        }
    }

    /// By what others send.
    pub(super) fn from(&mut self) -> &mut [Receiver] {
        &mut self.from
    }

    /// Says that this worker is going to sleep. To be followed by a look at what others have sent.
    pub(super) fn close_eyes(&self) {
        if self.is_alone() {
            return;
        }
        self.doors[self.mine as usize].asleep.store(1, Ordering::Relaxed);
        full_fence();
    }

    /// Sleeps until a frame comes in, or something from another worker; at most `ms`.
    pub(super) fn sleep(&self, socket: &Socket, ms: i32) {
        let door = &self.doors[self.mine as usize];
        socket.wait((!self.is_alone()).then(|| door.bell.as_fd()), ms);
    }

    /// Says that this worker is awake.
    pub(super) fn open_eyes(&self) {
        if self.is_alone() {
            return;
        }
        let door = &self.doors[self.mine as usize];
        door.asleep.store(0, Ordering::Relaxed);
        // Also if it was not the bell that woke us: who saw us asleep may have rung since.
        let _ = door.bell.hear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_have_together_what_a_ring_has() {
        assert_eq!([room(1024, 0), room(1024, 1)], [0, 0]);
        assert_eq!([room(1024, 2), room(1024, 5)], [1024, 1024]);
        assert_eq!(room(1024, 257), 64 * 256, "so little is no use");
    }
}

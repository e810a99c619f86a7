//! Fragments that came in by the receive queue of one worker and belong to another.
//!
//! A card that hashes ports spreads the fragments of a datagram: the first has ports, the others have none.
//! With `AF_PACKET` a program in the kernel chooses before a frame is copied; with `AF_XDP` the card has
//! chosen. So a worker asks of each fragment whose it is, by a keyed hash of what all fragments of a datagram
//! have in common, and tells the other of it by a lane of its own. The frame stays where it is.
//!
//! A lane has limited room. What finds none is dropped and counted: a worker that waited for another would
//! lose what comes in by its own queue.
//!
//! Workers come to an end together ([`End`]): once nothing is let in any more and its ring is empty, each says that it hands
//! over nothing any more, and when all have said so, what is in the lanes is all that there is.

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
    end: Arc<End>,
    /// It has said that it hands over nothing any more.
    has_ended: bool,
}

/// How workers come to an end.
pub(super) struct End {
    /// Not 0: nothing is let in any more.
    closed: AtomicU32,
    /// How many workers hand over nothing any more.
    ended: AtomicU32,
}

impl End {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { closed: AtomicU32::new(0), ended: AtomicU32::new(0) })
    }

    /// Says that nothing is let in any more.
    pub(super) fn close(&self) {
        self.closed.store(1, Ordering::Release);
    }
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
    /// Of a worker for each of the sockets with these numbers, which are a family. `room`: see [`room`]; `secret`: drawn at random; `end`: of
    /// nobody else.
    pub(super) fn among(
        sockets: &[u32],
        room: u32,
        secret: HashKey,
        end: &Arc<End>,
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
            end: Arc::clone(end),
            has_ended: false,
        };
        let mut all: Vec<Self> = (0..count).map(alone).collect();
        for from in 0..sockets.len() {
            for (to, socket) in sockets.iter().copied().enumerate() {
                let way = (from != to).then(|| {
                    let (lane, receiver) = lane(each);
                    all[to].from.push(receiver);
                    Way { lane, socket, sent: false }
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

    /// Whether nothing is let in any more.
    pub(super) fn is_closed(&self) -> bool {
        self.end.closed.load(Ordering::Acquire) != 0
    }

    /// Says that this worker hands over nothing any more. What it did is shown.
    pub(super) fn end(&mut self) {
        if !self.has_ended {
            self.has_ended = true;
            // Release: what was shown in the lanes, before it is known that it was the last.
            self.end.ended.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether this worker has said so.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether all workers have: what is in the lanes then is the rest.
    pub(super) fn all_have_ended(&self) -> bool {
        // Acquire: pairs with the Release in `end`, of each of them.
        self.end.ended.load(Ordering::Acquire) as usize >= self.doors.len()
    }
}

impl Drop for Exchange {
    /// Also of a worker that has panicked: the others do not wait for it.
    fn drop(&mut self) {
        self.end();
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

    #[test]
    fn the_end_is_there_when_each_has_said_so_once_or_is_no_more() {
        let end = End::new();
        let all = Exchange::among(&[7, 8, 9], 64, HashKey::new([1, 2]), &end).unwrap();
        let Ok([mut one, two, mut three]) = <[Exchange; 3]>::try_from(all) else { unreachable!() };
        for _ in 0..3 {
            one.end();
        }
        assert!(one.has_ended() && !one.all_have_ended() && !three.has_ended());
        drop(two);
        assert!(!one.all_have_ended());
        three.end();
        assert!(one.all_have_ended() && three.all_have_ended());
        assert!(!one.is_closed());
        end.close();
        assert!(one.is_closed());
    }
}

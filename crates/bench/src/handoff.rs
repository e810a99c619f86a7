//! Fragments that come to one thread and belong to another's shard.

use frag::wire::Fragment;
use frag::{Arrival, Receiver, Sender, Shard, Steering};

use crate::ours::{BURST, Before, arrival};
use crate::threads::Taker;
use crate::trace::{Slot, Trace};

/// Fragments that may be on their way from one thread to another.
const LANE: u32 = 1024;

/// A thread's ends of the lanes to and from the others; none to itself.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    to: Vec<Option<Sender>>,
    from: Vec<Receiver>,
}

impl Ends {
    /// Of all threads.
    pub(crate) fn all(threads: usize) -> Vec<Self> {
        let mut all: Vec<Self> = (0..threads).map(|_| Self::default()).collect();
        for from in 0..threads {
            for to in 0..threads {
                let lane = (from != to).then(|| frag::lane(LANE));
                let (sender, receiver) = lane.unzip();
                all[from].to.push(sender);
                all[to].from.extend(receiver);
            }
        }
        all
    }

    /// `false`: there is no room.
    fn send(&mut self, to: u32, fragment: &Fragment, slot: Slot) -> bool {
        self.to[to as usize].as_mut().is_some_and(|to| to.send(fragment, slot.at() as u64))
    }

    fn flush(&mut self) {
        self.to.iter_mut().flatten().for_each(Sender::flush);
    }
}

/// A thread with its shard and what comes to it.
pub(crate) struct Post<'y, 't> {
    steering: &'y Steering,
    me: u32,
    trace: &'y Trace,
    shard: &'y mut Shard<Slot>,
    taker: &'y mut Taker<'t>,
    pub(crate) ends: Ends,
    burst: Vec<Arrival<'y, Slot>>,
    /// What a lane had no room for: (shard, fragment, slot).
    late: Vec<(u32, Fragment, Slot)>,
}

impl<'y, 't> Post<'y, 't> {
    pub(crate) fn new(
        steering: &'y Steering,
        me: usize,
        trace: &'y Trace,
        shard: &'y mut Shard<Slot>,
        taker: &'y mut Taker<'t>,
        ends: Ends,
    ) -> Self {
        let (me, burst) = (u32::try_from(me).unwrap_or(0), Vec::with_capacity(BURST));
        Self { steering, me, trace, shard, taker, ends, burst, late: Vec::new() }
    }

    /// Takes in packets, or hands them to those whose they are. `next`: where those begin that come after them.
    pub(crate) fn sort(&mut self, next: usize, packets: impl Iterator<Item = Arrival<'y, Slot>>) {
        let Self { steering, me, trace, shard, taker, ends, burst, late } = self;
        burst.extend(packets);
        let mut before = Before { sink: *taker, trace, next };
        shard.push_steered(burst, (steering, *me), 0, &mut before, |to, fragment, arrival| {
            if !ends.send(to, fragment, arrival.buffer) {
                late.push((to, *fragment, arrival.buffer));
            }
        });
        burst.clear();
        self.ends.flush();
        while !self.late.is_empty() {
            self.collect();
            let Self { ends, late, .. } = self;
            late.retain(|(to, fragment, slot)| !ends.send(*to, fragment, *slot));
            ends.flush();
        }
    }

    /// Takes in what others have sent. `false`: there is nothing.
    pub(crate) fn collect(&mut self) -> bool {
        let Self { trace, shard, taker, ends, .. } = self;
        let mut came = 0;
        for from in &mut ends.from {
            came += shard.push_received(from, 0, *taker, |slot| {
                arrival(trace, usize::try_from(slot).unwrap_or(0))
            });
        }
        came > 0
    }
}

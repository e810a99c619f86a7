//! Where memory comes from when it has ended: what is free goes first, and then datagrams go for others.
//!
//! Buffers and compact blocks of a datagram that goes are free at once, its record only with the whole chunk
//! that it is in. Records of datagrams that go for being young lie anywhere; if one waited until a chunk is
//! empty by chance, half of all might have to go for one fragment. So as soon as as many records are free as
//! a chunk has, those in use of some chunk are moved to free ones of others. Then what goes for a fragment is
//! about what the fragment needs, whoever lies beside whom, and never more than [`Rounds`] says.

use super::outlet::Outlet;
use super::{Short, Table};
use crate::block::BLOCK_COST;
use crate::datagram::Node;
use crate::ledger::Lease;
use crate::output::Sink;
use crate::reason::Reason;
use crate::slab::NONE;

/// The oldest datagrams that are looked at when something idle is to go.
const IDLE_LOOKS: usize = 16;
/// A datagram is idle when it has waited this many times longer than datagrams wait for a fragment.
const IDLE_GAPS: u64 = 8;
const IDLE_MIN_NS: u64 = 1_000_000;
/// So long at least it must have waited to go for who uses more than its source does. Senders whose fragments are so far
/// apart are slower than any link; and what an overload leaves has gone in time for all to come through a tenth of a
/// second after it.
const ABANDONED_MIN_NS: u64 = 64_000_000;
/// A source that uses so many times less than the heaviest does not give way for being slow: that one does.
const FAR_LESS: u64 = 4;
/// A source goes for another's datagram that wants its place only if it has so many times more datagrams than that one
/// will have: or honest senders, of which by turns each has a few more than others, would push each other's out.
const FAR_MORE: u64 = 2;
/// Datagrams of a list among which one of the heaviest source is looked for.
const SOURCE_LOOKS: usize = 16;
/// Times that something free is given back where another table wants memory.
const RELIEF_TRIMS: usize = 4;
/// Times that something is given back or let go, whatever is needed.
const ROUNDS: u64 = 64;

/// What is to be trimmed first, since the other is wanted.
#[derive(Clone, Copy)]
pub(super) enum Spare {
    Blocks,
    Records,
}

/// Who needs room.
pub(crate) struct Room {
    source: u16,
    need: u32,
    /// The datagram it is for; none: one that is not begun yet.
    keep: u32,
    /// When that began.
    began: u64,
    /// Whoever has begun after it goes for it, whatever source; else only what is free or idle, and what others have too
    /// much of.
    any_younger: bool,
    /// The source that uses most: found by the table in which it is needed.
    heaviest: u16,
    /// There may be idle ones. That there are none is found out once, by a look at many.
    idle: bool,
    /// What for. Only of memory there may be some that is free already; else only what a datagram gives up that goes helps.
    pub(super) short: Short,
}

impl Room {
    pub(super) const fn new(source: u16, need: u32, keep: u32) -> Self {
        Self {
            source,
            need,
            keep,
            began: u64::MAX,
            any_younger: false,
            heaviest: source,
            idle: true,
            short: Short::Memory,
        }
    }

    /// For a datagram that is there.
    fn of<B>(node: &Node<B>, need: u32, keep: u32) -> Self {
        Self { began: node.first_at, ..Self::new(node.source, need, keep) }
    }

    /// Whether it is for a datagram that is there.
    pub(crate) const fn is_begun(&self) -> bool {
        self.keep != NONE
    }

    /// Whether nobody uses more than the source that it is for.
    pub(crate) const fn is_of_the_heaviest(&self) -> bool {
        self.source == self.heaviest
    }
}

/// What a table has given that was asked by another.
pub(crate) enum Given {
    Something,
    /// What it has is not to go for that.
    Nothing,
    /// It has no datagrams.
    Bare,
}

/// How often there may be another try: who waits for memory does not wait for ever, and no call takes long.
pub(super) struct Rounds(u64);

impl Rounds {
    /// For a datagram that is not begun yet. Whose record becomes free makes room for its own; that more is
    /// promised than so many others give back is the newcomer's bad luck.
    pub(super) const fn for_admission() -> Self {
        Self(ROUNDS)
    }

    /// For so many bytes. Each datagram that goes gives back its record at least, sixteen of them by one further
    /// round; and if it had blocks, those.
    fn for_bytes<B>(n: u64) -> Self {
        Self(ROUNDS + 3 * n / u64::from(Node::<B>::COST.min(BLOCK_COST)))
    }

    pub(super) const fn is_there_another(&mut self) -> bool {
        let there = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        there
    }
}

/// What free records had that went with their chunk, bytes; and of that, their room for pieces.
#[derive(Default)]
pub(super) struct Gone {
    pub(super) bytes: u64,
    pub(super) kept: u64,
}

impl Gone {
    pub(super) fn see<B>(&mut self, node: &Node<B>) {
        self.bytes += u64::from(node.cost());
        self.kept += u64::from(node.room());
    }
}

impl<B> Table<B> {
    /// Charges so many bytes for a buffer and so many for places of a datagram, with a compact block if it takes one,
    /// and lets others go for it. Answers how much more is set aside for it now.
    ///
    /// # Errors
    ///
    /// There are none, and the datagram itself is gone: why.
    #[inline]
    pub(super) fn charge(
        &mut self,
        lease: &mut Lease,
        n: u32,
        (bytes, places, block): (u32, u32, bool),
        now: u64,
        sink: &mut impl Outlet<B>,
    ) -> Result<u32, Reason> {
        let Some((need, all)) = self.could_hold(n, (bytes, places, block)) else {
            // Nobody else is to go for what cannot be.
            self.give_up(lease, n, Reason::TooCostly, now, sink);
            return Err(Reason::TooCostly);
        };
        if !self.try_charge(lease, need, block)
            && !self.charge_hard(lease, n, (need, block), now, sink)
        {
            self.give_up(lease, n, Reason::EvictedYoung, now, sink);
            return Err(Reason::EvictedYoung);
        }
        let node = &mut self.nodes[n];
        node.used += all;
        let more = node.used.saturating_sub(node.reserved);
        if more > 0 {
            node.reserved = node.used;
            lease.promise_more(more.into());
            self.committed += u64::from(more);
            self.sources.charge(node.source, more.into());
        }
        Ok(more)
    }

    /// How many bytes those are, without the block and with it, if a datagram can have so many more at all. A caller may
    /// say any cost of a buffer: there may be no such memory, and a datagram's account ends at 4 GiB.
    #[inline]
    fn could_hold(&self, n: u32, (bytes, places, block): (u32, u32, bool)) -> Option<(u32, u32)> {
        let need = bytes.checked_add(places)?;
        let all = need.checked_add(if block { BLOCK_COST } else { 0 })?;
        let then = self.nodes[n].used.checked_add(all)?;
        (u64::from(then) <= self.limits.memory_bytes).then_some((need, all))
    }

    /// [`Self::try_charge`], as often as something can be given back or let go for it.
    #[cold]
    fn charge_hard(
        &mut self,
        lease: &mut Lease,
        n: u32,
        (need, block): (u32, bool),
        now: u64,
        sink: &mut impl Outlet<B>,
    ) -> bool {
        let growth = if block { u64::from(BLOCK_COST) + self.blocks.growth() } else { 0 };
        let all = u64::from(need) + growth;
        let mut room = Room::of(&self.nodes[n], u32::try_from(all).unwrap_or(u32::MAX), n);
        let first = if block { Spare::Records } else { Spare::Blocks };
        let mut rounds = Rounds::for_bytes::<B>(all);
        while rounds.is_there_another()
            && (self.trim(lease, first, n) || self.make_room(lease, &mut room, now, sink))
        {
            if self.try_charge(lease, need, block) {
                return true;
            }
        }
        false
    }

    /// Takes all or nothing.
    #[inline]
    fn try_charge(&mut self, lease: &mut Lease, need: u32, block: bool) -> bool {
        if !block {
            return self.holding.hold(lease, u64::from(need));
        }
        let (growth, cost) = (self.blocks.growth(), u64::from(BLOCK_COST));
        // All at once, as in `try_take`.
        if !self.holding.take(lease, u64::from(need), cost, growth) {
            return false;
        }
        if growth > 0 {
            let over = self.blocks.grow();
            self.holding.drop_spare(lease, over);
            super::drain(self.blocks.pages(), &mut self.holding, lease);
        }
        true
    }

    /// A datagram holds less than it was charged, for which `raised` bytes were set aside beyond those before.
    pub(super) fn refund(&mut self, lease: &mut Lease, n: u32, less: u32, raised: u32) {
        if less == 0 {
            return;
        }
        self.holding.let_go(lease, u64::from(less), 0);
        let back = less.min(raised);
        let node = &mut self.nodes[n];
        node.used -= less;
        node.reserved -= back;
        let (source, back) = (node.source, u64::from(back));
        lease.redeem(back);
        self.committed -= back;
        self.sources.refund(source, back);
    }

    /// Gives back some blocks or a chunk of records that are spare, of those `first` if there are. `false`: there is
    /// nothing that is charged. The record of the datagram `keep` stays where it is.
    #[cold]
    pub(super) fn trim(&mut self, lease: &mut Lease, first: Spare, keep: u32) -> bool {
        if self.holding.spare() == 0 {
            return false;
        }
        let bytes = match first {
            Spare::Blocks => self.blocks.trim().or_else(|| self.trim_records(keep)),
            Spare::Records => self.trim_records(keep).or_else(|| self.blocks.trim()),
        };
        self.holding.drop_spare(lease, bytes.unwrap_or(0));
        bytes.is_some()
    }

    /// Bytes that a chunk of free records had, which has gone.
    fn trim_records(&mut self, keep: u32) -> Option<u64> {
        let mut gone = Gone::default();
        let went = self.nodes.trim(|node| gone.see(node)) || {
            let chunk = self.nodes.sparse(keep)?;
            self.nodes.in_use(chunk).for_each(|from| self.relocate(from));
            self.nodes.trim(|node| gone.see(node))
        };
        self.kept -= gone.kept;
        went.then_some(gone.bytes)
    }

    /// Moves a datagram to a record of another chunk, of which there must be a free one.
    fn relocate(&mut self, from: u32) {
        let to = self.nodes.move_away(from);
        let node = &self.nodes[to];
        let (family, source) = (usize::from(node.key.is_v6()), node.source);
        let (older, younger) = (node.older, node.younger);
        let (source_older, source_younger) = (node.source_older, node.source_younger);
        let hash = if node.epoch == self.epoch { node.hash } else { self.key.hash(&node.key) };
        let old_hash = self.old_key.as_ref().map_or(hash, |old| old.hash(&node.key));
        self.index.rename(hash, old_hash, from, to);
        match older {
            NONE => self.ages[family].oldest = to,
            older => self.nodes[older].younger = to,
        }
        match younger {
            NONE => self.ages[family].youngest = to,
            younger => self.nodes[younger].older = to,
        }
        if source_older != NONE {
            self.nodes[source_older].source_younger = to;
        }
        match source_younger {
            NONE => self.sources[source].youngest = to,
            younger => self.nodes[younger].source_older = to,
        }
        self.nodes.leave(from);
        #[cfg(test)]
        {
            self.moved += 1;
        }
    }

    /// Lets one datagram go for another. `false`: none may.
    #[cold]
    pub(super) fn make_room(
        &mut self,
        lease: &mut Lease,
        room: &mut Room,
        now: u64,
        sink: &mut impl Outlet<B>,
    ) -> bool {
        room.heaviest = self.sources.heaviest();
        let idle = if room.idle { self.idle(lease, room, now) } else { None };
        room.idle = idle.is_some();
        if idle.is_none() && self.limits.tables > 1 {
            // Before somebody goes for whom something still comes. What others let go is there for the next.
            lease.want(now);
        }
        let gone = idle.map(|n| (n, Reason::EvictedIdle));
        let gone = gone.or_else(|| Some((self.of_the_heaviest(room)?, Reason::EvictedShare)));
        let (n, reason) = match gone {
            Some(gone) => gone,
            None if sink.elsewhere(lease, room, now) => return true,
            // A datagram that is not begun yet is the youngest of all.
            None if !room.is_begun() => return false,
            None => match self.youngest() {
                n if n == room.keep || n == NONE => {
                    room.any_younger = true;
                    let gave = sink.elsewhere(lease, room, now);
                    room.any_younger = false;
                    return gave;
                }
                n => (n, Reason::EvictedYoung),
            },
        };
        self.give_up(lease, n, reason, now, sink);
        true
    }

    /// Lets one datagram of this table go for another that is to begin in its place. `false`: none may. What is counted
    /// then is datagrams: who has many small ones would else seem to use less than others do by few. And what other tables
    /// could let go is no place here.
    #[cold]
    pub(super) fn make_place(
        &mut self,
        lease: &mut Lease,
        room: &mut Room,
        now: u64,
        sink: &mut impl Sink<B>,
    ) -> bool {
        room.short = Short::Places;
        room.heaviest = self.sources.busiest();
        let gone = self.idle(lease, room, now).map(|n| (n, Reason::EvictedIdle));
        let gone = gone.or_else(|| Some((self.of_the_heaviest(room)?, Reason::EvictedShare)));
        let Some((n, reason)) = gone else { return false };
        self.give_up(lease, n, reason, now, sink);
        true
    }

    /// How much a source has of what there is too little of.
    fn weight(&self, room: &Room, at: u16) -> u64 {
        match room.short {
            Short::Places => self.sources.datagrams(at),
            Short::Promises | Short::Memory => self.sources.bytes(at),
        }
    }

    /// A datagram for which nothing has come for long, and of a source that uses as much as who needs room, and not far
    /// less than the heaviest; or for so long that it may go for anybody. Else a flood of datagrams that never end
    /// would take the memory of each sender whose fragments are further apart than those of most.
    fn idle(&self, lease: &Lease, room: &Room, now: u64) -> Option<u32> {
        let heaviest = self.weight(room, room.heaviest);
        let least = self.weight(room, room.source).max(heaviest / FAR_LESS);
        let patience = (self.gap(lease) * IDLE_GAPS).max(IDLE_MIN_NS);
        let abandoned = self.abandoned(lease);
        self.among_the_oldest(|n, node| {
            let waited = now.saturating_sub(node.last_at);
            let may_go = waited > abandoned || self.weight(room, node.source) >= least;
            n != room.keep && waited > patience && may_go
        })
    }

    /// What has waited so long may go for anybody, nanoseconds.
    fn abandoned(&self, lease: &Lease) -> u64 {
        (self.gap(lease) * IDLE_GAPS).max(ABANDONED_MIN_NS)
    }

    /// Some of the oldest datagrams of each family are looked at.
    fn among_the_oldest(&self, is: impl Fn(u32, &Node<B>) -> bool) -> Option<u32> {
        self.ages.iter().find_map(|ages| {
            let next = |n: &u32| (*n != NONE).then(|| self.nodes[*n].younger);
            let oldest = std::iter::successors(Some(ages.oldest), next);
            let mut oldest = oldest.take(IDLE_LOOKS).take_while(|n| *n != NONE);
            oldest.find(|n| is(*n, &self.nodes[*n]))
        })
    }

    /// Lets go what nothing has come for in long, at most `most` datagrams, and what is free: some other table has too
    /// little. Answers how many datagrams went.
    #[cold]
    pub(crate) fn relieve(
        &mut self,
        lease: &mut Lease,
        now: u64,
        most: usize,
        sink: &mut impl Sink<B>,
    ) -> usize {
        // Until all has gone, this is asked again.
        let wanted = lease.wanted();
        let abandoned = self.abandoned(lease);
        for gone in 0..most {
            let waits = |_, node: &Node<B>| now.saturating_sub(node.last_at) > abandoned;
            let Some(n) = self.among_the_oldest(waits) else {
                self.relieved = wanted;
                for _ in 0..RELIEF_TRIMS {
                    if !self.trim(lease, Spare::Blocks, NONE) {
                        break;
                    }
                }
                return gone;
            };
            self.give_up(lease, n, Reason::EvictedIdle, now, sink);
        }
        most
    }

    /// Gives back something that is free, or lets a datagram go, for one of another table: as that table would for it.
    #[cold]
    pub(crate) fn give_way(
        &mut self,
        lease: &mut Lease,
        room: &Room,
        now: u64,
        sink: &mut impl Sink<B>,
    ) -> Given {
        if matches!(room.short, Short::Memory) && self.trim(lease, Spare::Blocks, NONE) {
            return Given::Something;
        }
        if self.datagrams() == 0 {
            // What is free may help somebody else.
            if matches!(room.short, Short::Memory) {
                self.sources.is_bare();
            }
            return Given::Bare;
        }
        let room = Room { keep: NONE, ..*room };
        let (n, reason) = if let Some(n) = self.idle(lease, &room, now) {
            (n, Reason::EvictedIdle)
        } else if let Some(n) = self.of_the_heaviest(&room) {
            (n, Reason::EvictedShare)
        } else {
            match self.youngest() {
                n if room.any_younger && self.nodes[n].first_at > room.began => {
                    (n, Reason::EvictedYoung)
                }
                _ => return Given::Nothing,
            }
        };
        self.give_up(lease, n, reason, now, sink);
        Given::Something
    }

    /// The youngest datagram of the source that uses most, if that has another one and uses more than the
    /// source that needs room would.
    fn of_the_heaviest(&self, room: &Room) -> Option<u32> {
        let at = room.heaviest;
        let weight = self.weight(room, at);
        let after = match room.short {
            Short::Places => (self.weight(room, room.source) + 1) * FAR_MORE,
            Short::Promises | Short::Memory => {
                self.weight(room, room.source) + u64::from(room.need)
            }
        };
        if at == room.source || weight <= after {
            return None;
        }
        let next = |n: &u32| (*n != NONE).then(|| self.nodes[*n].source_older);
        let list = std::iter::successors(Some(self.sources[at].youngest), next);
        // In a bucket of many others may be in the list.
        let mut list = list.take(SOURCE_LOOKS).take_while(|n| *n != NONE);
        let youngest = list.find(|n| self.nodes[*n].source == at)?;
        let has_others = match room.short {
            Short::Places => weight > 1,
            Short::Promises | Short::Memory => weight > u64::from(self.nodes[youngest].reserved),
        };
        (has_others && youngest != room.keep).then_some(youngest)
    }

    fn youngest(&self) -> u32 {
        match self.ages.map(|ages| ages.youngest) {
            [NONE, n] | [n, NONE] => n,
            [a, b] if self.nodes[a].first_at > self.nodes[b].first_at => a,
            [_, b] => b,
        }
    }
}

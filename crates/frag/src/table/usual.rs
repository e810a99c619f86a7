//! What is in no way special, as most of what comes: in one go each, without a look at what only others need.
//!
//! A fragment in the middle of a datagram, one that begins a datagram where nothing is short, a datagram that was handed
//! out, and one of which all fragments came in one burst. Each is what the long way in [`super`] would come to, and gives
//! back, or does that way, whatever needs a closer look.

use super::outlet::Outlet;
use super::{Ahead, Ending, Table};
use crate::datagram::{Heading, NEAR, Node, Piece};
use crate::holding::Holding;
use crate::index::Health;
use crate::ledger::Lease;
use crate::output::{Datagram, Payload, Released, Sink};
use crate::sets::{Rules, Set};
use crate::shard::Arrival;
use crate::slab::NONE;
use crate::source::Sources;
use crate::wire::{self, Finish, Fragment};

impl<B> Table<B> {
    /// Takes in a fragment that is in no way special, as most are, of the datagram that is guessed. Gives
    /// back the others.
    #[inline(always)]
    pub(super) fn push_usual<'p>(
        &mut self,
        lease: &mut Lease,
        f: &Fragment,
        guess: u32,
        arrival: Arrival<'p, B>,
        now: u64,
        sink: &mut impl Outlet<B>,
    ) -> Result<(), Arrival<'p, B>> {
        if now >= self.next_end {
            return Err(arrival);
        }
        let Self { nodes, limits, holding, .. } = self;
        // It may have gone meanwhile, with another fragment of the burst.
        let Some(node) = nodes.get_mut(guess) else { return Err(arrival) };
        // A header that is not plain is looked at, and kept. Whether a fragment is the first or the last is as good as
        // chance.
        let usual = (arrival.cost <= node.reserved - node.used)
            & (f.len >= self.small_below)
            & (self.begun.wrapping_sub(node.begun) < limits.reuse_near)
            & f.has_plain_header_if_first();
        if !usual || node.key != f.key || !lease.has(arrival.cost) {
            return Err(arrival);
        }
        put_usual::<false, _>(node, holding, lease, f, arrival, now)?;
        let is_complete = node.is_complete();
        self.counters.fragments += 1;
        if is_complete {
            self.finish(lease, guess, now, sink);
        }
        Ok(())
    }

    /// Begins a datagram of which nothing was found with a fragment that is in no way special, where nothing is short and
    /// nothing else is to be done: as [`Self::push_slowly`] would, in one go. Gives back the others.
    #[inline(never)]
    pub(super) fn begin_usual<'p>(
        &mut self,
        lease: &mut Lease,
        ahead: &Ahead,
        arrival: Arrival<'p, B>,
        now: u64,
    ) -> Result<(), Arrival<'p, B>> {
        let f = &ahead.fragment;
        let is_v6 = f.key.is_v6();
        let usual = (now < self.next_end)
            & (f.len >= self.small_below)
            & f.has_plain_header_if_first()
            & !f.is_atomic()
            & (lease.wanted() == self.relieved)
            & (self.nodes.used() < self.limits.datagrams_max)
            & self.is_simple
            & self.index.is_ready()
            & !self.is_clustered
            & !self.refused.is_any()
            & self.old_key.is_none();
        if !usual {
            return Err(arrival);
        }
        let need = self.expected(lease, f, arrival.cost);
        let Some((n, node)) = self.nodes.free_mut() else { return Err(arrival) };
        let room = node.room();
        let record = Node::<B>::COST + room;
        // What a caller says of costs may be anything.
        let used = record.saturating_add(arrival.cost);
        if used > need || used == u32::MAX || !lease.has(used) || !lease.promise(u64::from(need)) {
            return Err(arrival);
        }
        node.restart();
        let Arrival { packet, cost, scope, buffer } = arrival;
        // Of a free record nothing has changed that a beginning does not set.
        if let Err(buffer) = node.put_usual(f, buffer) {
            lease.redeem(u64::from(need));
            return Err(Arrival { packet, cost, scope, buffer });
        }
        node.key = f.key;
        (node.first_at, node.last_at) = (now, now);
        node.ecn_seen = 1 << (f.ecn & 3);
        node.put_plain_head(f);
        (node.used, node.reserved) = (used, need);
        (node.hash, node.epoch) = (ahead.hash, self.epoch);
        let source = Sources::of_alone(&f.key, &self.key);
        let before_of_source = self.sources.enter(source, n, u64::from(need));
        let ages = &mut self.ages[usize::from(is_v6)];
        let before = std::mem::replace(&mut ages.youngest, n);
        (node.source, node.born, node.begun) =
            (source, self.sources.born_alone(&f.key), self.begun);
        let free = std::mem::replace(&mut node.younger, NONE);
        node.older = before;
        (node.source_older, node.source_younger) = (before_of_source, NONE);
        self.nodes.take_free(free);
        if before == NONE {
            ages.oldest = n;
        } else {
            self.nodes[before].younger = n;
        }
        if before_of_source != NONE {
            self.nodes[before_of_source].source_younger = n;
        }
        self.next_end =
            self.next_end.min(now.saturating_add(self.limits.timeout_ns[usize::from(is_v6)]));
        self.begun = self.begun.wrapping_add(1);
        self.committed += u64::from(need);
        self.kept -= u64::from(room);
        self.holding.occupy(lease, record, cost);
        self.counters.fragments += 1;
        self.latest = (ahead.hash, n);
        // Seen to with the next datagram.
        self.is_clustered = self.index.enter(ahead.hash, n) == Health::Clustered;
        Ok(())
    }

    /// Whether datagrams of which all fragments come in one burst need no closer look: that nothing is in progress of them
    /// is sure, nobody's time is up, and no other table is short of memory, or [`Self::push`] would see to that first.
    #[inline]
    pub(crate) fn is_at_ease(&self, lease: &Lease, now: u64) -> bool {
        now < self.next_end && lease.wanted() == self.relieved && self.index.is_one()
    }

    /// Hands out a datagram of which all fragments came in one burst. `first`: its first fragment and its packet, whose
    /// header was not plain.
    pub(crate) fn hand_out(
        &mut self,
        lease: &mut Lease,
        set: Set,
        (first, packet): (&Fragment, &[u8]),
        pieces: &[Piece<B>],
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        let heading = Heading::of(first);
        let plain;
        let mut made = Vec::new();
        let header = match heading.plain() {
            Some(rest) => {
                plain = wire::plain_header(&first.key, rest, set.ecn, false, set.len);
                &plain[..]
            }
            None => {
                made = std::mem::take(&mut self.header);
                let head = &packet[..usize::from(heading.len())];
                finish_header(heading, head, (set.ecn, set.len), &mut made)
            }
        };
        lease.pace.completed(set.cost, pieces.len() as u64);
        pieces[1..].iter().for_each(|_| lease.pace.waited(0));
        // For those that wait: see `give_up_late`.
        self.begun = self.begun.wrapping_add(1);
        self.sources.born(&first.key);
        sink.datagram(&Datagram {
            key: &first.key,
            header,
            len: usize::from(set.len),
            first_at: now,
            payload: Payload::Together(pieces),
        });
        // Had that panicked, its fragments would be left, to be counted when they are given back.
        self.counters.fragments += pieces.len() as u64;
        self.counters.datagrams += 1;
        self.counters.bytes += u64::from(set.len);
        self.counters.fragments_delivered += pieces.len() as u64;
        self.keep_header(made);
    }

    /// [`Self::remove`] of a datagram that was handed out: in one go where nothing is special about it or to be done beside.
    #[inline(always)]
    pub(super) fn remove_delivered(&mut self, lease: &mut Lease, n: u32, sink: &mut impl Sink<B>) {
        let node = &self.nodes[n];
        let usual = node.is_plain()
            & (node.epoch == self.epoch)
            & self.old_key.is_none()
            & self.index.is_one()
            & self.is_simple;
        if !usual {
            return self.remove(lease, n, Released::Delivered, sink);
        }
        let (hash, reserved) = (node.hash, u64::from(node.reserved));
        let (family, source) = (usize::from(node.key.is_v6()), node.source);
        let (older, younger) = (node.older, node.younger);
        let (source_older, source_younger) = (node.source_older, node.source_younger);
        match self.nodes.get_mut(older) {
            Some(older) => older.younger = younger,
            None => self.ages[family].oldest = younger,
        }
        match self.nodes.get_mut(younger) {
            Some(younger) => younger.older = older,
            None => self.ages[family].youngest = older,
        }
        if let Some(node) = self.nodes.get_mut(source_older) {
            node.source_younger = source_younger;
        }
        let of_source = self.sources.leave(source, reserved);
        match self.nodes.get_mut(source_younger) {
            Some(node) => node.source_older = source_older,
            None => of_source.youngest = source_older,
        }
        self.index.leave(hash, n);
        if self.index.is_outgrown() {
            self.shrink_index(lease);
        }
        lease.redeem(reserved);
        self.committed -= reserved;
        let mut ending = Ending { table: self, lease, n, may_keep: false };
        let node = &mut ending.table.nodes[n];
        let (used, room) = (u64::from(node.used), node.room());
        node.release_plain(|buffer| sink.release(buffer, Released::Delivered));
        ending.may_keep = true;
        if ending.table.may_keep(room) && ending.table.nodes.give_near(n, Node::end_plain) {
            // So it has ended.
            std::mem::forget(ending);
            self.kept += u64::from(room);
            self.holding.let_go(lease, used, u64::from(Node::<B>::COST + room));
        }
    }
}

impl<B> Rules for Table<B> {
    #[inline]
    fn is_short(&self) -> bool {
        self.refused.is_any()
    }

    #[inline]
    fn takes(&self, f: &Fragment, packet: &[u8]) -> bool {
        let first_of_v6 = f.key.is_v6() & (f.offset == 0);
        let special = first_of_v6 | (f.len < self.limits.fragment_min);
        !special || self.unacceptable(f, packet).is_none()
    }

    #[inline]
    fn cost(&self, fragments: u32, buffers: u64) -> Option<u64> {
        // The last piece and the first ones have places in the record.
        let places =
            u64::from(Node::<B>::places_cost((fragments as usize).saturating_sub(NEAR + 1)));
        let cost = buffers + u64::from(Node::<B>::COST) + places;
        let allowed = fragments <= u32::from(self.limits.fragments_max);
        (allowed & (cost <= self.expected_most)).then_some(cost)
    }
}

/// Puts a fragment into its datagram, if it fits as most do, for which memory is set aside and leased. `BEGINS`: that
/// has none yet. Then it has waited for none either: were that counted as no wait, who sends nothing but first fragments
/// would make all others seem slow.
#[inline(always)]
pub(super) fn put_usual<'p, const BEGINS: bool, B>(
    node: &mut Node<B>,
    holding: &mut Holding,
    lease: &mut Lease,
    f: &Fragment,
    arrival: Arrival<'p, B>,
    now: u64,
) -> Result<(), Arrival<'p, B>> {
    let Arrival { packet, cost, scope, buffer } = arrival;
    if let Err(buffer) = node.put_usual(f, buffer) {
        return Err(Arrival { packet, cost, scope, buffer });
    }
    holding.spend(lease, cost);
    node.used += cost;
    node.put_plain_head(f);
    node.ecn_seen |= 1 << (f.ecn & 3);
    if !BEGINS {
        lease.pace.waited(now.saturating_sub(node.last_at));
    }
    node.last_at = now;
    Ok(())
}

/// Makes the header of a whole datagram of its first fragment's, which is not plain.
pub(super) fn finish_header<'m>(
    heading: Heading,
    first: &[u8],
    (ecn, len): (u8, u16),
    made: &'m mut Vec<u8>,
) -> &'m [u8] {
    let (next_at, protocol) = (heading.next_at(), heading.protocol());
    wire::finish(first, &Finish { next_at, protocol, ecn, len }, made);
    made
}

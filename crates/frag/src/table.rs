//! The datagrams in progress of one shard, or of one bucket of a shared table.
//!
//! Under pressure some datagrams must go, and the wrong choice loses all: whoever drops what comes last
//! keeps what never completes (Linux since 4.17), whoever drops the least recently used kills each
//! datagram just before its end (LRU), whoever admits by the memory that is free now admits more than can
//! be finished. The rules here guarantee progress, with whatever memory there is:
//!
//! 1. when memory gets short, a datagram is admitted only if it can be expected to be finished in the memory that is not
//!    set aside for others, by what datagrams of late have needed, or if another has gone in its place. While a quarter of
//!    all is free that is not asked: what is expected may be wrong, and worst before anything was complete;
//! 2. what was refused stays refused, so that its later fragments hold nothing ([`Refused`]), unless all of it comes in
//!    one burst, for which nothing is held ([`Sets`](crate::sets::Sets));
//! 3. when memory ends all the same, what has not moved for long goes first, for those who do not use more than
//!    its source does; then the youngest of the source that uses most, then the youngest of all. Never an older
//!    one: so the oldest always ends. How memory comes back then, and how many may go for one fragment, is in
//!    [`room`].
//!
//! Where not memory has ended but places (as many are in progress as may be), a new datagram takes the place of what has not
//! moved for long, or of the youngest of the source that has most, if that has far more than its own will have; else it is
//! refused. So lone fragments of one source, however many, leave others their places, and nobody's oldest goes for what is
//! new.

pub(crate) mod outlet;
mod room;
mod usual;

use std::hint::select_unpredictable;

use crate::block::{BLOCK_COST, Blocks};
use crate::datagram::{Look, NEAR, Node, Store};
use crate::directory::Directory;
use crate::holding::Holding;
use crate::index::{ABSENT, Health, Index, UNKNOWN};
use crate::key::{HashKey, Key};
use crate::ledger::Lease;
use crate::limits::Limits;
use crate::output::{Datagram, Notice, NoticeKind, Payload, Released, Sink, Slice, slice};
use crate::overlap::Policy;
use crate::reason::{Counters, Reason};
use crate::refused::Refused;
use crate::shard::{Arrival, Gauges};
use crate::shares::Shares;
use crate::slab::{NONE, Slab};
use crate::source::Sources;
use crate::sync::Arc;
use crate::wire::{self, Finish, Fragment};
use outlet::Outlet;
use room::{Gone, Room, Rounds, Spare};
use usual::{finish_header, put_usual};

/// How long a refused datagram is remembered after its last fragment, likewise.
const REFUSED_GAPS: u64 = 32;
const REFUSED_MIN_NS: u64 = 4_000_000;
const REFUSED_MAX_NS: u64 = 1_000_000_000;
/// Datagrams that may go by timeout in one call of [`Table::push`].
const EXPIRED_AT_ONCE: usize = 8;
/// Datagrams that may go for other tables when one begins.
const RELIEVED_AT_ONCE: usize = 8;
/// Datagrams at most that one may let go for a change of key.
const CLUSTERED_EVICTED: usize = 32;
/// Slots of the index that are moved in one call of [`Table::expire`], in steps of [`Index::step`].
const TIDY_STEPS: usize = 8;
/// Places for pieces that a free record keeps: those of a datagram of the usual largest size.
const PLACES_KEPT: usize = 64;
/// All free records keep places of this part of a table's memory at most, and free chunks as much.
const KEPT_PART: u64 = 16;
/// Bytes of a header that is not plain for which room is kept, and of the longest that there can be.
const HEADER_KEPT: usize = 256;
const HEADER_MOST: usize = 33 << 10;

/// A list of datagrams by age; one for each family, since each has one timeout: the oldest ends first.
#[derive(Clone, Copy, Debug)]
struct Ages {
    oldest: u32,
    youngest: u32,
}

/// A fragment that was parsed, and where its datagram seemed to be.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    pub(crate) fragment: Fragment,
    /// [`Table::hash`] of its key, at some time since the table changed its key last but one.
    pub(crate) hash: u64,
    /// Where a datagram of that hash seemed to be, at some time: see [`Index::guess`].
    pub(crate) guess: u32,
}

impl Ahead {
    pub(crate) const NONE: Self = Self { fragment: Fragment::NONE, hash: 0, guess: ABSENT };
}

/// A fragment with its packet.
pub(crate) struct Incoming<'p, B> {
    pub(crate) fragment: &'p Fragment,
    pub(crate) packet: &'p [u8],
    pub(crate) cost: u32,
    pub(crate) buffer: B,
}

impl<'p, B> Incoming<'p, B> {
    fn new(fragment: &'p Fragment, arrival: Arrival<'p, B>) -> Self {
        let Arrival { packet, cost, buffer, .. } = arrival;
        Self { fragment, packet, cost, buffer }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Table<B> {
    limits: Limits,
    /// Fragments with less payload are not like most: they are copied, or dropped.
    small_below: u16,
    /// Nothing may overlap, and it shares its sources with no other.
    is_simple: bool,
    /// No datagram is expected to need more: a shard's part of all memory, bytes.
    expected_most: u64,
    key: HashKey,
    /// The key before, for some time: the index may still have slots by it, and a burst fragments that
    /// were parsed when it was in use. See [`Self::settle`].
    old_key: Option<HashKey>,
    /// Changes of key.
    epoch: u32,
    /// A search in the index was longer than chance explains.
    is_clustered: bool,
    index: Index,
    nodes: Slab<Node<B>>,
    blocks: Blocks,
    ages: [Ages; 2],
    /// No datagram's time ends before this.
    next_end: u64,
    sources: Sources,
    refused: Refused,
    /// Datagrams ever begun; wraps.
    begun: u32,
    /// The hash of one that has begun of late, and its record, if it is still there.
    latest: (u64, u32),
    /// Memory that the datagrams in progress hold, and what beside it waits to be used again.
    holding: Holding,
    /// Bytes of places that free records keep, and may.
    kept: u64,
    kept_most: u64,
    /// Memory that the datagrams in progress hold or are expected to hold when complete, bytes.
    committed: u64,
    /// What [`Lease::wanted`] was when others were last relieved.
    relieved: u64,
    pub(crate) counters: Counters,
    /// Where headers are made.
    header: Vec<u8>,
    /// See [`Untaken`].
    untaken: Vec<B>,
    /// Records that were moved.
    #[cfg(test)]
    moved: u32,
}

impl<B> Table<B> {
    pub(crate) fn new(limits: &Limits, key: HashKey) -> Self {
        let sources = Sources::new(key.successor());
        Self::with(limits, key, sources)
    }

    /// One of several among which datagrams are spread, and which know together who uses how much.
    pub(crate) fn sharing(
        limits: &Limits,
        key: HashKey,
        (shares, bucket): (&Arc<Shares>, u32),
    ) -> Self {
        let sources = Sources::sharing(shares, bucket, limits.buckets);
        Self::with(limits, key, sources)
    }

    fn with(limits: &Limits, key: HashKey, sources: Sources) -> Self {
        let none = Ages { oldest: NONE, youngest: NONE };
        let kept_most = limits.memory_bytes / u64::from(limits.tables) / KEPT_PART;
        // That of a bucket is a part of all, that of a shard of its part.
        let refused = Refused::new(Self::refused_bytes(limits), limits.buckets);
        Self {
            limits: limits.clone(),
            small_below: if usize::from(limits.fragments_max) > NEAR {
                limits.copy_below.max(limits.fragment_min)
            } else {
                // Each is counted.
                u16::MAX
            },
            is_simple: limits.overlap == Policy::Strict && sources.shares().is_none(),
            expected_most: limits.memory_bytes / u64::from(limits.shards),
            key,
            old_key: None,
            epoch: 0,
            is_clustered: false,
            index: Index::new(),
            nodes: Slab::keeping(kept_most / 2),
            blocks: Blocks::keeping(kept_most / 2),
            ages: [none; 2],
            next_end: u64::MAX,
            sources,
            refused,
            begun: 0,
            latest: (0, UNKNOWN),
            holding: Self::holding(limits),
            kept: 0,
            kept_most,
            committed: 0,
            relieved: 0,
            counters: Counters::default(),
            header: Vec::new(),
            untaken: Vec::new(),
            #[cfg(test)]
            moved: 0,
        }
    }

    /// What a table may always have: chunks and an index for the first datagrams. Two of those while one follows the
    /// other.
    const ALLOWANCE: u64 = if cfg!(loom) {
        // Where every interleaving is tried, all else is charged: or nothing that is moved there ever were.
        Index::BYTES_MIN
    } else {
        Slab::<Node<B>>::FIRST_BYTES + Blocks::FIRST_BYTES + 2 * Index::BYTES_MIN
    };

    /// The same of a bucket of many: what each had beside the limit, hundreds would have. Others get what it keeps beyond
    /// this when they need it: see [`Self::give_way`].
    const BUCKET_ALLOWANCE: u64 =
        Index::BYTES_MIN + Slab::<Node<B>>::LIST_BYTES + Blocks::LIST_BYTES;

    fn allowance(limits: &Limits) -> u64 {
        if limits.buckets > 1 { Self::BUCKET_ALLOWANCE } else { Self::ALLOWANCE }
    }

    /// As of a table that is empty.
    fn holding(limits: &Limits) -> Holding {
        let mut holding = Holding::new(Self::allowance(limits));
        holding.begin(Index::BYTES_MIN);
        holding
    }

    fn refused_bytes(limits: &Limits) -> u64 {
        limits.memory_bytes / u64::from(limits.tables / limits.buckets)
    }

    /// The most that a table takes beside what is charged, bytes, while no core is at work in it.
    pub(crate) fn beside_bytes(limits: &Limits) -> u64 {
        let refused = Refused::bytes(Self::refused_bytes(limits), limits.buckets);
        let sources = match limits.buckets {
            1 => Sources::BYTES,
            buckets => Sources::bytes_sharing(buckets),
        };
        Self::allowance(limits) + sources + refused + HEADER_KEPT as u64
    }

    /// And what a core takes that is at work: a header that has grown is there twice for a moment.
    pub(crate) const AT_WORK_BYTES: u64 = 2 * HEADER_MOST as u64;

    /// Datagrams in progress.
    pub(crate) fn datagrams(&self) -> u32 {
        self.nodes.used()
    }

    /// Datagrams that the index leads to: all of them.
    #[cfg(test)]
    pub(crate) fn indexed(&self) -> usize {
        self.index.len()
    }

    /// Memory that datagrams in progress hold, bytes.
    pub(crate) fn held(&self) -> u64 {
        self.holding.held()
    }

    /// Memory that waits to be used by others, as far as it is charged, bytes.
    pub(crate) fn spare(&self) -> u64 {
        self.holding.spare()
    }

    /// Adds what it holds.
    pub(crate) fn gauge(&self, all: &mut Gauges) {
        all.datagrams += self.datagrams();
        all.memory_bytes += self.held();
        all.committed_bytes += self.committed;
        all.spare_bytes += self.spare();
        all.leased_bytes += self.held() + self.spare();
        all.blocks += self.blocks.used();
    }

    /// The hash by which [`Self::push`] will search.
    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.key.hash(key)
    }

    /// A fragment, and where its datagram seems to be.
    pub(crate) fn ahead(&self, fragment: Fragment) -> Ahead {
        let mut ahead = Ahead { fragment, ..Ahead::NONE };
        self.look_up(&mut ahead);
        ahead
    }

    /// Forgets the key before, once nothing in the index is by it any more. To be called when no
    /// [`Ahead`] is in use: those are by whatever key was the present one.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.old_key.is_some() && !self.index.is_moving() {
            self.old_key = None;
        }
    }

    /// Finds out where the datagram of a fragment seems to be.
    #[inline(always)]
    pub(crate) fn look_up(&self, ahead: &mut Ahead) {
        ahead.hash = self.hash(&ahead.fragment.key);
        self.look_up_hashed(ahead);
    }

    /// [`Self::look_up`] of what was hashed by the present key.
    #[inline(always)]
    pub(crate) fn look_up_hashed(&self, ahead: &mut Ahead) {
        ahead.guess = self.index.guess(ahead.hash);
    }

    /// Whether this is the present key.
    #[inline]
    pub(crate) fn is_by(&self, key: &HashKey) -> bool {
        self.key.is(key)
    }

    /// Reads what a push will need of the datagram that is guessed, and answers something of it. Many such
    /// reads, none of which waits for another, take hardly longer than one.
    #[inline(always)]
    pub(crate) fn touch(&self, ahead: &Ahead) -> u16 {
        // Where there is none, any other: whether there is one is as good as chance.
        let n = select_unpredictable(ahead.guess < UNKNOWN, ahead.guess, 0);
        self.nodes.get(n).map_or(0, |node| node.touch(ahead.fragment.offset))
    }

    /// Tells the sink of the datagram that a fragment will complete that is to come soon, if it is in progress.
    #[inline(always)]
    pub(crate) fn foresee(&self, ahead: &Ahead, buffer: &B, sink: &mut impl Sink<B>) {
        let Some(node) = self.nodes.get(ahead.guess) else { return };
        if node.is_completed_by(&ahead.fragment) {
            node.first_buffers().for_each(|buffer| sink.soon(buffer));
            sink.soon(buffer);
        }
    }

    /// Takes in a fragment.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        lease: &mut Lease,
        ahead: &Ahead,
        arrival: Arrival<'_, B>,
        now: u64,
        sink: &mut impl Outlet<B>,
    ) {
        let Ahead { fragment, guess, hash } = ahead;
        // Its datagram may have begun since, with another fragment of the burst: most likely with the one before.
        let guess = match *guess {
            ABSENT | UNKNOWN if *hash == self.latest.0 => self.latest.1,
            ABSENT | UNKNOWN => self.index.guess(*hash),
            n => n,
        };
        let arrival = match guess {
            ABSENT => match self.begin_usual(lease, ahead, arrival, now) {
                Ok(()) => return,
                Err(arrival) => arrival,
            },
            UNKNOWN => arrival,
            n => match self.push_usual(lease, fragment, n, arrival, now, sink) {
                Ok(()) => return,
                Err(arrival) => arrival,
            },
        };
        self.push_slowly(lease, ahead, guess, arrival, now, sink);
    }

    /// [`Self::push`] of whatever needs a closer look.
    #[inline(never)]
    fn push_slowly(
        &mut self,
        lease: &mut Lease,
        ahead: &Ahead,
        guess: u32,
        arrival: Arrival<'_, B>,
        now: u64,
        sink: &mut impl Outlet<B>,
    ) {
        self.counters.fragments += 1;
        let mut guess = guess;
        if now >= self.next_end {
            self.expire(lease, now, EXPIRED_AT_ONCE, sink);
            // It looked into one of two tables, which may be one by now.
            guess = UNKNOWN;
        }
        let f = &ahead.fragment;
        // The key may have changed between parsing and now.
        let hash = if self.old_key.is_some() { self.key.hash(&f.key) } else { ahead.hash };
        // Nothing is missing that could come later: what it holds is the transport's business, as in a packet without a
        // fragment header (RFC 6946 section 4).
        if f.is_atomic() {
            return self.deliver_atomic(Incoming::new(f, arrival), now, sink);
        }
        let first_of_v6 = f.key.is_v6() & (f.offset == 0);
        if first_of_v6 | (f.len < self.limits.fragment_min)
            && let Some(reason) = self.unacceptable(f, arrival.packet)
        {
            if reason == Reason::IncompleteHeader {
                sink.notice(&Notice {
                    kind: NoticeKind::IncompleteHeader,
                    key: &f.key,
                    header: &arrival.packet[..usize::from(f.header_len)],
                    first: Ok(&arrival.buffer),
                });
            }
            return self.drop_fragment(arrival.buffer, reason, sink);
        }
        let found = match guess {
            // Said of the hash by the present key: nothing has begun since.
            ABSENT if self.old_key.is_none() && !self.index.is_moving() => None,
            n if self.nodes.get(n).is_some_and(|node| node.key == f.key) => Some(n),
            _ => self.find(hash, &f.key),
        };
        if let Some(n) = found.filter(|n| !self.give_up_late(lease, *n, now, sink)) {
            return self.add(lease, n, Incoming::new(f, arrival), now, sink);
        }
        let n = match self.admit(lease, (f, hash, arrival.cost), now, sink) {
            Ok(n) => n,
            Err(reason) => return self.drop_fragment(arrival.buffer, reason, sink),
        };
        // Most datagrams begin with a fragment that is in no way special either.
        let Self { nodes, holding, .. } = self;
        let node = &mut nodes[n];
        let usual = (arrival.cost <= node.reserved - node.used)
            & (f.len >= self.small_below)
            & f.has_plain_header_if_first()
            && lease.has(arrival.cost);
        let arrival = match usual {
            true => {
                match put_usual::<true, _>(node, holding, lease, f, arrival, now) {
                    // One that begins a datagram does not end it.
                    Ok(()) => return,
                    Err(arrival) => arrival,
                }
            }
            false => arrival,
        };
        self.add(lease, n, Incoming::new(f, arrival), now, sink);
    }

    fn find(&self, hash: u64, key: &Key) -> Option<u32> {
        let old_hash = || self.old_key.as_ref().map_or(hash, |old| old.hash(key));
        self.index.find(hash, old_hash, |n| self.nodes[n].key == *key)
    }

    /// Why a fragment is dropped whatever else is there.
    #[inline(never)]
    fn unacceptable(&self, f: &Fragment, packet: &[u8]) -> Option<Reason> {
        if f.key.is_v6() && self.limits.whole_header && f.offset == 0 {
            let payload = packet.get(usize::from(f.payload_at)..)?;
            let payload = payload.get(..usize::from(f.len)).unwrap_or(payload);
            if !wire::holds_headers(f.protocol, payload) {
                return Some(Reason::IncompleteHeader);
            }
        }
        (f.len < self.limits.fragment_min && f.more).then_some(Reason::Tiny)
    }

    pub(crate) fn drop_fragment(&mut self, buffer: B, reason: Reason, sink: &mut impl Sink<B>) {
        self.counters.fragments_dropped[reason as usize] += 1;
        sink.release(buffer, Released::Dropped(reason));
    }

    /// A whole datagram with a fragment header: apart from whatever has the same key (RFC 6946).
    #[cold]
    fn deliver_atomic(&mut self, incoming: Incoming<'_, B>, now: u64, sink: &mut impl Sink<B>) {
        self.release_untaken(sink);
        let f = incoming.fragment;
        if usize::from(f.header_len) - 40 + usize::from(f.len) > 65_535 {
            return self.drop_fragment(incoming.buffer, Reason::Oversize, sink);
        }
        let finish = Finish { next_at: f.next_at, protocol: f.protocol, ecn: f.ecn, len: f.len };
        let mut header = std::mem::take(&mut self.header);
        wire::finish(&incoming.packet[..usize::from(f.header_len)], &finish, &mut header);
        let mut untaken = Untaken { buffer: Some(incoming.buffer), all: &mut self.untaken };
        if let Some(buffer) = &untaken.buffer {
            sink.datagram(&Datagram {
                key: &f.key,
                header: &header,
                len: usize::from(f.len),
                first_at: now,
                payload: Payload::One { buffer, at: f.payload_at },
            });
        }
        let buffer = untaken.buffer.take();
        drop(untaken);
        self.counters.datagrams += 1;
        self.counters.bytes += u64::from(f.len);
        self.counters.fragments_delivered += 1;
        self.keep_header(header);
        if let Some(buffer) = buffer {
            sink.release(buffer, Released::Delivered);
        }
    }

    /// Gives back buffers of atomic fragments that a sink has not taken.
    #[inline]
    pub(crate) fn release_untaken(&mut self, sink: &mut impl Sink<B>) {
        while let Some(buffer) = self.untaken.pop() {
            self.drop_fragment(buffer, Reason::Cleared, sink);
        }
    }

    /// Room for the next header, unless it is much.
    fn keep_header(&mut self, header: Vec<u8>) {
        if (1..=HEADER_KEPT).contains(&header.capacity()) {
            self.header = header;
        }
    }

    /// Gives a datagram up whose time is up, or whose identification may have come round meanwhile. `true`:
    /// it did.
    #[inline]
    fn give_up_late(
        &mut self,
        lease: &mut Lease,
        n: u32,
        now: u64,
        sink: &mut impl Sink<B>,
    ) -> bool {
        let node = &self.nodes[n];
        if now >= self.next_end && self.ends_at(node) <= now {
            self.time_out(lease, n, now, sink);
            return true;
        }
        // What is true of no source is seen without a look at them.
        if self.begun.wrapping_sub(node.begun) < self.limits.reuse_near || node.key.is_v6() {
            return false;
        }
        if self.sources.begun(&node.key).wrapping_sub(node.born) < self.limits.reuse {
            return false;
        }
        self.give_up(lease, n, Reason::Stale, now, sink);
        true
    }

    // ----- admission -------------------------------------------------------------------------

    /// Begins a datagram, if there is room for one.
    fn admit(
        &mut self,
        lease: &mut Lease,
        (f, hash, cost): (&Fragment, u64, u32),
        now: u64,
        sink: &mut impl Outlet<B>,
    ) -> Result<u32, Reason> {
        if lease.wanted() != self.relieved {
            self.relieve(lease, now, RELIEVED_AT_ONCE, sink);
        }
        if self.refused.is_any() && self.was_refused(lease, hash, now) {
            return Err(Reason::Refused);
        }
        let need = self.expected(lease, f, cost);
        let source = self.sources.of(&f.key, &self.key);
        let mut room = Room::new(source, need, NONE);
        let least = need.min(Node::<B>::COST.saturating_add(cost));
        // Nothing is taken before all is there: what makes room calls the sink, which may panic.
        let mut has_place = false;
        if self.nodes.used() >= self.limits.datagrams_max {
            has_place = self.make_place(lease, &mut room, now, sink);
            if !has_place {
                self.refused.add(hash, now);
                return Err(Reason::TooManyDatagrams);
            }
        }
        let mut rounds = Rounds::for_admission();
        let (n, need) = loop {
            match self.try_admit(lease, (need, least), has_place) {
                Ok(admitted) => break admitted,
                Err(_) if !rounds.is_there_another() => return Err(self.refuse(hash, source, now)),
                Err(Short::Memory) if self.trim(lease, Spare::Blocks, NONE) => {}
                Err(short) => {
                    room.short = short;
                    if !self.make_room(lease, &mut room, now, sink) {
                        return Err(self.refuse(hash, source, now));
                    }
                    // Who went for it may have been promised less than it needs. Were that not enough, who has many such
                    // would keep others out.
                    has_place |= matches!(room.short, Short::Promises);
                }
            }
        };
        let record = self.nodes[n].cost();
        // A record that has room for many pieces may cost more than its datagram was thought to.
        if record > need {
            lease.promise_more(u64::from(record - need));
        }
        self.begin(n, (&f.key, hash), Share { source, used: record, need: need.max(record) }, now);
        self.settle_index(lease, n, now, sink);
        Ok(n)
    }

    /// A record for a datagram that is expected to need so much, and room for it in the index. Takes all or nothing. Answers
    /// also what is set aside for it: where no more can be promised, and it may begin all the same, no more than the least.
    fn try_admit(
        &mut self,
        lease: &mut Lease,
        (need, least): (u32, u32),
        has_place: bool,
    ) -> Result<(u32, u32), Short> {
        let set_aside = if lease.promise(need.into()) {
            need
        } else if has_place || lease.is_roomy() {
            lease.promise_more(least.into());
            least
        } else {
            return Err(Short::Promises);
        };
        let Some(n) = self.try_take(lease) else {
            lease.redeem(set_aside.into());
            return Err(Short::Memory);
        };
        Ok((n, set_aside))
    }

    /// All is paid for before anything is made: what a try that fails had made, [`Self::trim`] would give back, and
    /// there would always be another try.
    fn try_take(&mut self, lease: &mut Lease) -> Option<u32> {
        let (growth, cost, room) = match self.nodes.free() {
            Some(n) => (0, self.nodes[n].cost(), self.nodes[n].room()),
            None => (self.nodes.growth(), Node::<B>::COST, 0),
        };
        let more = growth + self.index.growth();
        if !self.holding.take(lease, 0, u64::from(cost), more) {
            return None;
        }
        if growth > 0 {
            let over = self.nodes.grow();
            self.holding.drop_spare(lease, over);
            drain(self.nodes.places(), &mut self.holding, lease);
        }
        self.kept -= u64::from(room);
        Some(self.nodes.take())
    }

    /// After an insertion: takes back what has gone, and changes the key if a search was long. If there is no memory
    /// for that, the next long search tries again.
    #[inline]
    fn settle_index(&mut self, lease: &mut Lease, n: u32, now: u64, sink: &mut impl Outlet<B>) {
        self.holding.drop_spare(lease, self.index.freed());
        if std::mem::take(&mut self.is_clustered) {
            self.change_key_for(lease, n, now, sink);
        }
    }

    #[cold]
    fn change_key_for(&mut self, lease: &mut Lease, n: u32, now: u64, sink: &mut impl Outlet<B>) {
        let mut room = Room::new(self.nodes[n].source, 0, n);
        for _ in 0..CLUSTERED_EVICTED {
            // Whoever leaves may shrink the index: then that is what is done.
            if self.index.is_moving() || self.change_key(lease) {
                return;
            }
            if !self.trim(lease, Spare::Blocks, n) && !self.make_room(lease, &mut room, now, sink) {
                return;
            }
        }
    }

    /// Whether a fragment is of a datagram that was refused.
    #[cold]
    fn was_refused(&mut self, lease: &mut Lease, hash: u64, now: u64) -> bool {
        let life = (self.gap(lease) * REFUSED_GAPS).clamp(REFUSED_MIN_NS, REFUSED_MAX_NS);
        let Some(waited) = self.refused.came(hash, now, life) else { return false };
        // Had its datagram been thought idle too early, this is how one learns better.
        lease.pace.waited(waited);
        waited <= life
    }

    /// Remembers that a datagram was not admitted. Answers why.
    fn refuse(&mut self, hash: u64, source: u16, now: u64) -> Reason {
        self.refused.add(hash, now);
        let all = self.sources.shares().map_or(self.committed, Shares::total);
        let most = self.sources.bytes(source).saturating_mul(2) > all;
        if most && all > 0 { Reason::NoShare } else { Reason::NoMemory }
    }

    /// Time between two fragments of a datagram of late, as this core has found it, or another.
    fn gap(&self, lease: &Lease) -> u64 {
        match (lease.pace.gap(), self.sources.shares()) {
            (0, Some(shares)) => shares.gap(),
            (gap, _) => gap,
        }
    }

    /// Likewise, memory of complete datagrams, bytes; 0: none was complete yet.
    fn usual_cost(&self, lease: &Lease) -> u64 {
        match (lease.pace.cost, self.sources.shares()) {
            (0, Some(shares)) => shares.cost(),
            (cost, _) => cost,
        }
    }

    /// Memory that a datagram will hold when it is complete, as far as one can tell.
    fn expected(&self, lease: &Lease, f: &Fragment, cost: u32) -> u32 {
        let worst = || {
            // As many pieces of this size as the largest datagram has.
            let pieces =
                65_535u64.div_ceil(u64::from(f.len)).min(u64::from(self.limits.fragments_max));
            pieces * u64::from(cost)
        };
        let usual = match self.usual_cost(lease) {
            0 => worst(),
            usual => usual,
        };
        let least = u64::from(Node::<B>::COST.saturating_add(cost));
        let need = usual.max(least).min(self.expected_most);
        u32::try_from(need).unwrap_or(u32::MAX)
    }

    /// Enters a datagram into everything, as the youngest of all.
    fn begin(&mut self, n: u32, (key, hash): (&Key, u64), share: Share, now: u64) {
        let Share { source, used, need } = share;
        self.committed += u64::from(need);
        let of_source = self.sources.enter_any(source, n, u64::from(need));
        let born = self.sources.born(key);
        let family = usize::from(key.is_v6());
        let ages = &mut self.ages[family];
        let before = std::mem::replace(&mut ages.youngest, n);
        self.next_end = self.next_end.min(now.saturating_add(self.limits.timeout_ns[family]));
        let begun = self.begun;
        self.begun = begun.wrapping_add(1);
        let node = &mut self.nodes[n];
        node.begin(*key, now, self.limits.overlap != Policy::Strict);
        (node.used, node.reserved, node.source) = (used, need, source);
        (node.hash, node.epoch) = (hash, self.epoch);
        (node.born, node.begun) = (born, begun);
        (node.older, node.younger) = (before, NONE);
        (node.source_older, node.source_younger) = (of_source, NONE);
        if before == NONE {
            ages.oldest = n;
        } else {
            self.nodes[before].younger = n;
        }
        if of_source != NONE {
            self.nodes[of_source].source_younger = n;
        }
        let Self { index, nodes, key: secret, .. } = self;
        let health = index.insert(hash, n, |n| secret.hash(&nodes[n].key));
        self.is_clustered |= health == Health::Clustered;
        self.counters.resized = self.index.begun();
    }

    /// Somebody may have found out the key. `false`: there is no memory for another table.
    #[cold]
    pub(crate) fn change_key(&mut self, lease: &mut Lease) -> bool {
        let there = self.holding.add(lease, self.index.again());
        if there {
            let next = self.key.successor();
            self.old_key = Some(std::mem::replace(&mut self.key, next));
            self.epoch = self.epoch.wrapping_add(1);
            self.index.begin_again();
            self.counters.resized = self.index.begun();
        }
        there
    }

    // ----- fragments -------------------------------------------------------------------------

    /// Adds a fragment to a datagram.
    fn add(
        &mut self,
        lease: &mut Lease,
        n: u32,
        incoming: Incoming<'_, B>,
        now: u64,
        sink: &mut impl Outlet<B>,
    ) {
        let Incoming { fragment: f, packet, cost, buffer, .. } = incoming;
        // See `put_usual`.
        let begins = self.nodes[n].count == 0;
        let small = f.len < self.limits.copy_below && cost > BLOCK_COST;
        let most = self.limits.fragments_max;
        let mut look = self.nodes[n].look(f, most, small);
        if look == Look::Irregular {
            let list = self.nodes[n].list_growth();
            if let Err(reason) = self.charge(lease, n, (0, list, false), now, sink) {
                self.counters.fragments_lost += 1;
                return sink.release(buffer, Released::Dropped(reason));
            }
            self.nodes[n].list();
            look = self.nodes[n].look(f, most, small);
        }
        match look {
            Look::Piece(_) | Look::Tail | Look::Layer | Look::Irregular => {}
            Look::Duplicate => return self.drop_fragment(buffer, Reason::Duplicate, sink),
            Look::Conflict(reason) => {
                self.counters.fragments_lost += 1;
                self.give_up(lease, n, reason, now, sink);
                return sink.release(buffer, Released::Dropped(reason));
            }
        }
        let node = &self.nodes[n];
        let growth = node.growth(look, most);
        let bytes = if small { 0 } else { cost };
        let block = small && self.blocks.needs_another(node.chain, usize::from(f.len));
        // What grows is there twice for a moment, so it is paid for twice as long.
        let (places, twice) = node.growth_cost(growth);
        let list = places + twice + node.map_growth(look);
        let spot = (look == Look::Layer).then(|| node.shelf.spot(f));
        let layers = spot.map_or(0, |spot| node.shelf.growth_most(spot));
        let shelf = node.shelf.bytes();
        let more = list + node.head_growth(f) + layers;
        let raised = match self.charge(lease, n, (bytes, more, block), now, sink) {
            Ok(raised) => raised,
            Err(reason) => {
                self.counters.fragments_lost += 1;
                return sink.release(buffer, Released::Dropped(reason));
            }
        };
        let node = &mut self.nodes[n];
        if growth > 0 {
            node.grow(growth);
        }
        let store = if small {
            let payload = usize::from(f.payload_at)..usize::from(f.payload_at) + usize::from(f.len);
            let (block, at) = self.blocks.put(&mut node.chain, &packet[payload]);
            self.counters.copied += 1;
            sink.release(buffer, Released::Copied);
            Store::Copied { block, at }
        } else {
            Store::Held(buffer)
        };
        let mut less = twice;
        if let Some(spot) = spot {
            node.layer(spot, f, store, self.limits.overlap);
            // Leaves may have gone, too.
            less += layers + shelf - node.shelf.bytes();
        } else {
            node.put(look, f, store);
        }
        if !node.heading.is_there() {
            node.put_head(packet, f);
        }
        node.ecn_seen |= 1 << f.ecn;
        if !begins {
            lease.pace.waited(now.saturating_sub(node.last_at));
        }
        node.last_at = now;
        let is_complete = node.is_complete();
        self.refund(lease, n, less, raised);
        if is_complete {
            self.finish(lease, n, now, sink);
        }
    }

    /// Hands out a complete datagram.
    #[inline(never)]
    fn finish(&mut self, lease: &mut Lease, n: u32, now: u64, sink: &mut impl Sink<B>) {
        let node = &self.nodes[n];
        let fixed = if node.key.is_v6() { 40 } else { 0 };
        let whole = node.heading.len().saturating_sub(fixed);
        let whole = u64::from(whole) + u64::from(node.len());
        let (Ok(_), Ok(len)) = (u16::try_from(whole), u16::try_from(node.len())) else {
            self.notify(n, NoticeKind::TooLong, sink);
            return self.give_up(lease, n, Reason::Oversize, now, sink);
        };
        let Some(ecn) = wire::merge_ecn(node.ecn_seen, node.heading.ecn()) else {
            return self.give_up(lease, n, Reason::Ecn, now, sink);
        };
        let plain;
        let mut made = Vec::new();
        let header = match node.heading.plain() {
            Some(rest) => {
                plain = wire::plain_header(&node.key, rest, ecn, false, len);
                &plain[..]
            }
            None => {
                // Whoever panics in the sink leaves no long one behind.
                made = std::mem::take(&mut self.header);
                finish_header(node.heading, node.head(), (ecn, len), &mut made)
            }
        };
        let fragments = u64::from(node.count);
        lease.pace.completed(u64::from(node.used), fragments);
        if let Some(shares) = self.sources.shares() {
            shares.learn(&lease.pace);
        }
        sink.datagram(&Datagram {
            key: &node.key,
            header,
            len: usize::from(len),
            first_at: node.first_at,
            payload: Payload::Many { node, blocks: &self.blocks },
        });
        // Had that panicked, it would stay, to be counted at its end.
        self.counters.datagrams += 1;
        self.counters.bytes += u64::from(len);
        self.counters.fragments_delivered += fragments;
        self.keep_header(made);
        self.remove_delivered(lease, n, sink);
    }

    fn notify(&self, n: u32, kind: NoticeKind, sink: &mut impl Sink<B>) {
        let node = &self.nodes[n];
        let Some(first) = node.first().filter(|_| node.heading.is_there()) else { return };
        let first_len = first.len;
        let first = match slice(&self.blocks, first, usize::from(first_len)) {
            Slice::Held { buffer, .. } => Ok(buffer),
            Slice::Copied(bytes) => Err(bytes),
        };
        let plain = node.heading.plain();
        let plain =
            plain.map(|r| wire::plain_header(&node.key, r, node.heading.ecn(), true, first_len));
        let header = plain.as_ref().map_or_else(|| node.head(), <[u8; 20]>::as_slice);
        sink.notice(&Notice { kind, key: &node.key, header, first });
    }

    // ----- ends ------------------------------------------------------------------------------

    /// Gives up a datagram in progress.
    #[cold]
    fn give_up(
        &mut self,
        lease: &mut Lease,
        n: u32,
        reason: Reason,
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        if reason.is_eviction() || matches!(reason, Reason::TooMany | Reason::TooCostly) {
            let hash = self.key.hash(&self.nodes[n].key);
            self.refused.add(hash, now);
        }
        self.counters.datagrams_dropped[reason as usize] += 1;
        self.counters.fragments_lost += u64::from(self.nodes[n].count);
        self.remove(lease, n, Released::Dropped(reason), sink);
    }

    /// Takes a datagram out of everything, and gives back what it held.
    fn remove(&mut self, lease: &mut Lease, n: u32, why: Released, sink: &mut impl Sink<B>) {
        let node = &self.nodes[n];
        let hash = if node.epoch == self.epoch { node.hash } else { self.key.hash(&node.key) };
        let reserved = u64::from(node.reserved);
        self.unlink(n, reserved);
        let Self { index, nodes, key, old_key, .. } = self;
        let old_hash = || old_key.as_ref().map_or(hash, |old| old.hash(&nodes[n].key));
        index.remove(hash, old_hash, n, |n| key.hash(&nodes[n].key));
        self.shrink_index(lease);
        lease.redeem(reserved);
        self.committed -= reserved;
        let mut ending = Ending { table: self, lease, n, may_keep: false };
        ending.table.nodes[n].release(|buffer| sink.release(buffer, why));
        // What goes for others leaves them all that it can.
        ending.may_keep = !matches!(why, Released::Dropped(reason) if reason.is_eviction());
    }

    /// Whether a free record may keep so much room for pieces, bytes.
    #[inline(always)]
    fn may_keep(&self, room: u32) -> bool {
        room <= Node::<B>::places_cost(PLACES_KEPT) && self.kept + u64::from(room) <= self.kept_most
    }

    /// Gives back a record, which may keep its room for pieces if all was released; else what was not is dropped. What
    /// it held is free only now.
    #[inline]
    fn put_away(&mut self, lease: &mut Lease, n: u32, may_keep: bool) {
        let node = &mut self.nodes[n];
        let (used, room) = (u64::from(node.used), node.room());
        let keep = may_keep && self.may_keep(room);
        let node = &mut self.nodes[n];
        let (blocks, mut gone_bytes) = self.blocks.free(&mut node.chain);
        node.end(keep);
        let mut spare = u64::from(blocks) * u64::from(BLOCK_COST) + u64::from(node.cost());
        self.kept += u64::from(node.room());
        let mut gone = Gone::default();
        if self.nodes.give(n, |node| gone.see(node)) {
            self.kept -= gone.kept;
            gone_bytes += gone.bytes;
        }
        if gone_bytes > 0 {
            sort_what_was_freed();
        }
        // Of the chunks that went, most was spare before.
        let more = gone_bytes.saturating_sub(spare);
        spare = spare.saturating_sub(gone_bytes);
        self.holding.let_go(lease, used, spare);
        self.holding.drop_spare(lease, more);
    }

    /// Begins a smaller index, if it is too large and there is room for one, and takes back what has gone.
    #[inline]
    fn shrink_index(&mut self, lease: &mut Lease) {
        let bytes = self.index.shrinkage();
        if bytes > 0 && self.holding.add(lease, bytes) {
            self.index.shrink();
        }
        self.holding.drop_spare(lease, self.index.freed());
        self.counters.resized = self.index.begun();
    }

    /// Goes on with what is done a little at each call, when there are few of those.
    fn tidy(&mut self, lease: &mut Lease) {
        for _ in 0..TIDY_STEPS {
            if !self.index.is_moving() {
                break;
            }
            let Self { index, nodes, key, .. } = self;
            index.step(&|n| key.hash(&nodes[n].key));
        }
        self.shrink_index(lease);
    }

    /// Frees what a table has that is empty, and then takes back all that is charged: others may use it at once.
    pub(crate) fn end(&mut self, lease: &mut Lease) {
        self.nodes = Slab::keeping(0);
        self.blocks = Blocks::keeping(0);
        self.index = Index::new();
        self.kept = 0;
        self.holding.end(lease);
    }

    /// Lets go what has taken too long, at most `most` datagrams. Answers when the next one's time ends.
    pub(crate) fn expire(
        &mut self,
        lease: &mut Lease,
        now: u64,
        most: usize,
        sink: &mut impl Sink<B>,
    ) -> Option<u64> {
        self.release_untaken(sink);
        let mut left = most;
        if lease.wanted() != self.relieved {
            left -= self.relieve(lease, now, most, sink);
        }
        let mut next = u64::MAX;
        for family in 0..2 {
            loop {
                let n = self.ages[family].oldest;
                if n == NONE {
                    break;
                }
                let end = self.ends_at(&self.nodes[n]);
                if end > now || left == 0 {
                    next = next.min(end);
                    break;
                }
                left -= 1;
                self.time_out(lease, n, now, sink);
            }
        }
        self.next_end = next;
        self.tidy(lease);
        (next != u64::MAX).then_some(next)
    }

    fn ends_at(&self, node: &Node<B>) -> u64 {
        node.first_at.saturating_add(self.limits.timeout_ns[usize::from(node.key.is_v6())])
    }

    fn time_out(&mut self, lease: &mut Lease, n: u32, now: u64, sink: &mut impl Sink<B>) {
        let seen = self.nodes[n].heading.is_there();
        if seen {
            self.notify(n, NoticeKind::TimeExceeded, sink);
        }
        let reason = if seen { Reason::Timeout } else { Reason::TimeoutNoFirst };
        self.give_up(lease, n, reason, now, sink);
    }

    /// Gives up everything.
    pub(crate) fn clear(&mut self, lease: &mut Lease, now: u64, sink: &mut impl Sink<B>) {
        self.release_untaken(sink);
        for family in 0..2 {
            while self.ages[family].oldest != NONE {
                self.give_up(lease, self.ages[family].oldest, Reason::Cleared, now, sink);
            }
        }
    }

    #[inline(always)]
    fn unlink(&mut self, n: u32, reserved: u64) {
        let node = &self.nodes[n];
        let (family, source) = (usize::from(node.key.is_v6()), node.source);
        let (older, younger) = (node.older, node.younger);
        let (source_older, source_younger) = (node.source_older, node.source_younger);
        if older == NONE {
            self.ages[family].oldest = younger;
        } else {
            self.nodes[older].younger = younger;
        }
        if younger == NONE {
            self.ages[family].youngest = older;
        } else {
            self.nodes[younger].older = older;
        }
        if source_older != NONE {
            self.nodes[source_older].source_younger = source_younger;
        }
        let of_source = self.sources.leave_any(source, reserved);
        if source_younger == NONE {
            of_source.youngest = source_older;
        } else {
            self.nodes[source_younger].source_older = source_older;
        }
    }
}

/// Goes on with giving back a list that another has followed, if there is memory for that: what is left may be copied,
/// and then is there twice.
fn drain<C>(places: &mut Directory<C>, holding: &mut Holding, lease: &mut Lease) {
    if let Some(moment) = places.drainage()
        && holding.add(lease, moment)
    {
        let drained = places.drain();
        holding.drop_spare(lease, moment + drained);
    }
}

/// A datagram whose buffers are being released. The caller's code may panic there: whether or not it does, the record
/// is given back when this goes.
struct Ending<'t, B> {
    table: &'t mut Table<B>,
    lease: &'t mut Lease,
    n: u32,
    /// All was released, and its room may stay.
    may_keep: bool,
}

impl<B> Drop for Ending<'_, B> {
    #[inline]
    fn drop(&mut self) {
        self.table.put_away(self.lease, self.n, self.may_keep);
    }
}

/// The buffer of an atomic fragment while a sink takes its datagram. Should that panic, it is kept, to be given back by a
/// call that has a sink.
struct Untaken<'t, B> {
    buffer: Option<B>,
    all: &'t mut Vec<B>,
}

impl<B> Drop for Untaken<'_, B> {
    fn drop(&mut self) {
        self.all.extend(self.buffer.take());
    }
}

/// What there is too little of.
#[derive(Clone, Copy)]
enum Short {
    /// [`Config::datagrams_max`](crate::Config::datagrams_max).
    Places,
    Promises,
    Memory,
}

/// Whose a new datagram is, what it holds and what it is expected to need, bytes.
#[derive(Clone, Copy)]
struct Share {
    source: u16,
    used: u32,
    need: u32,
}

/// Has the allocator put what was just freed where it belongs. glibc keeps it in one list until somebody asks for memory
/// that is not at hand, and puts up to 10,000 pieces away then, in one call: after a million datagrams that took 1.5 to
/// 6 ms. What is asked for here is larger than any piece that goes, so that none in the list is taken for it as it is. It is
/// never written to.
#[cold]
fn sort_what_was_freed() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(16 << 10)));
}

#[cfg(all(test, not(loom)))]
mod tests;

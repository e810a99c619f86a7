//! What one core owns.

use crate::index::ABSENT;
use crate::key::{HashKey, Key};
use crate::lane::Receiver;
use crate::ledger::{Lease, Ledger};
use crate::limits::Limits;
use crate::output::{Notice, NoticeKind, Released, Sink};
use crate::reason::{Counters, Reason};
use crate::sets::{SETS, Sets, release};
use crate::sync::Arc;
use crate::table::outlet::Alone;
use crate::table::{Ahead, Table};
use crate::wire::{self, Fragment};

/// Fewer datagrams than this in progress are near anyway.
pub(crate) const FAR: u32 = 256;
/// How many packets ahead a sink is told of what will be complete. With one the first of it comes too late, with three the
/// last of it.
const SOON: usize = 2;
/// Packets whose datagrams are fetched together.
pub(crate) const BURST: usize = 32;

/// A packet that has come in.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'p, B> {
    /// Its bytes from the IP header on. Padding of the link may follow.
    pub packet: &'p [u8],
    /// The caller's handle for where they are. The shard keeps it as long as it needs the bytes: for each fragment of a
    /// datagram in progress an `Option` of one, which is what many datagrams fill a core's caches with. So a small one is
    /// best, and one with a value to spare: a [`NonZero<u32>`](std::num::NonZero) takes 4 bytes there, a `u32` 8.
    pub buffer: B,
    /// Memory that keeping the buffer costs, bytes: the size of the frame, not of the packet. A datagram whose buffers
    /// cost more than there is memory in all is given up ([`Reason::TooCostly`]).
    pub cost: u32,
    /// The caller's: see [`Key::scope`].
    pub scope: u64,
}

impl<'p, B> Arrival<'p, B> {
    /// A packet in a buffer of its own size, in scope 0.
    pub fn new(packet: &'p [u8], buffer: B) -> Self {
        let cost = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        Self { packet, buffer, cost, scope: 0 }
    }
}

/// What a shard holds at the moment, or a table of all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Datagrams in progress.
    pub datagrams: u32,
    /// Bytes of memory in use by them.
    pub memory_bytes: u64,
    /// Bytes of memory in use or set aside for them.
    pub committed_bytes: u64,
    /// Bytes of memory that wait to be used again: records and blocks that are free, the index.
    /// As far as they count for the limit: see [`Shard::beside_bytes`].
    pub spare_bytes: u64,
    /// Bytes of memory that this shard has leased, those in use or spare among them.
    pub leased_bytes: u64,
    /// Compact blocks in use.
    pub blocks: u32,
}

/// Fragments of all datagrams that one core puts together.
#[derive(Debug)]
pub struct Shard<B> {
    table: Table<B>,
    lease: Lease,
    /// Packets of a burst, between parsing and work.
    parsed: Box<[Parsed]>,
    /// Datagrams of which all is in that burst.
    sets: Box<Sets<B>>,
}

impl<B> Table<B> {
    /// Tells the sink of what will come out with a packet that is to come soon.
    #[inline(always)]
    fn foresee_of(&self, soon: &Parsed, buffer: &B, sink: &mut impl Sink<B>) {
        match soon.kind {
            Kind::Fragment => self.foresee(&soon.ahead, buffer, sink),
            Kind::Member => sink.soon(buffer),
            Kind::Other => {}
        }
    }

    /// Whether it is worth while to have what the fragments of a burst need brought near before they are taken in. Of short
    /// datagrams each second or third fragment begins one, for which nothing is there yet, and what the others need is found
    /// as fast on the way.
    #[inline(always)]
    fn is_far(&self, lease: &Lease) -> bool {
        self.datagrams() >= FAR && lease.pace.is_long()
    }

    /// Has that brought near, all at once: each alone would be waited for.
    #[inline(always)]
    fn touch_all(&self, lease: &Lease, parsed: &[Parsed]) {
        if !self.is_far(lease) {
            return;
        }
        let seen = parsed.iter().map(|parsed| self.touch(&parsed.ahead));
        std::hint::black_box(seen.fold(0, |all, seen| all ^ seen));
    }
}

/// What a packet is to a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Fragment,
    /// A fragment of a datagram of which all is in the burst.
    Member,
    Other,
}

impl Kind {
    fn of(parsed: Result<Option<usize>, Reason>) -> Self {
        if matches!(parsed, Ok(None)) { Self::Fragment } else { Self::Other }
    }
}

/// A packet that was parsed ahead.
#[derive(Clone, Debug)]
pub(crate) struct Parsed {
    pub(crate) ahead: Ahead,
    /// What it is. A word of its own, so that it can be read right after it was written.
    pub(crate) kind: Kind,
    /// What it is instead, if not.
    pub(crate) other: Result<Option<usize>, Reason>,
    /// Whose fragment it is, if that was asked.
    shard: u32,
}

impl Parsed {
    pub(crate) fn burst() -> Box<[Self]> {
        let none = Self { ahead: Ahead::NONE, kind: Kind::Other, other: Ok(None), shard: 0 };
        vec![none; BURST].into()
    }
}

impl Ledger {
    /// The memory that `limits` allow, for as many shards as they say.
    #[must_use]
    pub fn of(limits: &Limits) -> Arc<Self> {
        Self::new(limits.memory_bytes, limits.shards)
    }
}

impl<B> Shard<B> {
    /// An empty shard. `secret` must be another one for each shard, drawn at random. Where cores hand fragments to each other,
    /// [`Self::steered`] is better.
    #[must_use]
    pub fn new(limits: &Limits, ledger: &Arc<Ledger>, secret: HashKey) -> Self {
        let (table, lease) = (Table::new(limits, secret), Lease::new(ledger));
        Self { table, lease, parsed: Parsed::burst(), sets: Sets::new() }
    }

    /// An empty shard, one of those that fragments are steered to: [`Self::push_steered`] hashes each fragment once, and
    /// not a second time to find its datagram. All shards begin with one secret then, and each changes it once somebody
    /// has found it out.
    #[must_use]
    pub fn steered(limits: &Limits, ledger: &Arc<Ledger>, steering: &Steering) -> Self {
        Self::new(limits, ledger, steering.secret.clone())
    }

    /// The most memory that a shard ever takes beside [`Config::memory_bytes`](crate::Config::memory_bytes), bytes: to
    /// remember sources and what was refused, for a burst, and for the first datagrams. The same however much it has
    /// to do.
    #[must_use]
    pub fn beside_bytes(limits: &Limits) -> u64 {
        let burst = (BURST * size_of::<Parsed>() + size_of::<Sets<B>>()) as u64;
        Table::<B>::beside_bytes(limits) + Table::<B>::AT_WORK_BYTES + burst
    }

    /// Takes in a packet. `now`: nanoseconds of a clock that does not go back.
    pub fn push(&mut self, arrival: Arrival<'_, B>, now: u64, sink: &mut impl Sink<B>) {
        let mut ahead = Ahead::NONE;
        match wire::parse_to(arrival.packet, arrival.scope, &mut ahead.fragment) {
            Ok(None) => {
                self.table.settle();
                self.table.look_up(&mut ahead);
                self.table.push(&mut self.lease, &ahead, arrival, now, &mut Alone(sink));
            }
            other => pass(&mut self.table.counters, other, &ahead.fragment, arrival, sink),
        }
    }

    /// Takes in a fragment that was parsed before, perhaps on another core. `arrival.packet` must be what
    /// was parsed.
    pub fn push_fragment(
        &mut self,
        fragment: &Fragment,
        arrival: Arrival<'_, B>,
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        self.table.settle();
        let ahead = self.table.ahead(*fragment);
        self.table.push(&mut self.lease, &ahead, arrival, now, &mut Alone(sink));
    }

    /// Takes in many packets, and empties the list. What all of them need of the datagrams in progress is fetched at once,
    /// where these are many and long: with 10,000 in progress that takes 0.60 to 1.01 of the time of one by one, with fewer
    /// 0.85 to 1.08 (`bench/record/2026-12-01-frag.txt`), and a sink is told of what will be complete ([`Sink::soon`]). Their own headers
    /// the caller should have prefetched, as every program does that takes packets from a ring: best during the call before
    /// ([`Sink::meanwhile`]).
    ///
    /// Of each 32 packets, datagrams of which all fragments are there, as those of a sender who has not mixed them are, take
    /// no memory (unless something else is to be seen to first: a time that is up, another shard that is short of memory, a
    /// table that is changing) and are handed out also where there is none; none of their payload is copied
    /// ([`Released::Copied`]). The list is empty afterwards, also if the sink has panicked: what had not been looked at by
    /// then is dropped, and what had been looked at the next call releases ([`Sink::datagram`]).
    pub fn push_burst(
        &mut self,
        arrivals: &mut Vec<Arrival<'_, B>>,
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        // Empty whatever panics.
        let mut rest = arrivals.drain(..);
        let mut parsed = self.take_parsed(sink);
        let Self { table, lease, sets, .. } = self;
        let mut heads: [&[u8]; SETS] = [&[]; SETS];
        let mut begun = 0;
        while !rest.as_slice().is_empty() {
            let next = rest.as_slice();
            let came = next.len().min(BURST);
            let mut new = 0;
            for (at, (to, next)) in parsed.iter_mut().zip(next).enumerate() {
                let other = wire::parse_to(next.packet, next.scope, &mut to.ahead.fragment);
                to.kind = Kind::of(other);
                if to.kind == Kind::Fragment {
                    table.look_up(&mut to.ahead);
                    new |= u32::from(to.ahead.guess == ABSENT) << at;
                } else {
                    to.ahead.guess = ABSENT;
                    to.other = other;
                }
            }
            table.touch_all(lease, &parsed[..came]);
            Self::find_sets((table, lease), sets, new, &mut parsed, now, |at| {
                (next[at].packet, next[at].cost)
            });
            for at in 0..came {
                let Some(arrival) = rest.next() else { break };
                sink.meanwhile(begun);
                begun += 1;
                let parsed_at = &parsed[at];
                let soon = parsed[..came].get(at + SOON).zip(rest.as_slice().get(SOON - 1));
                if let Some((soon, arrival)) = soon {
                    table.foresee_of(soon, &arrival.buffer, sink);
                }
                if parsed_at.kind == Kind::Fragment {
                    let ahead = &parsed_at.ahead;
                    table.push(lease, ahead, arrival, now, &mut Alone(sink));
                } else if parsed_at.kind == Kind::Member {
                    Self::put_together(
                        (table, lease, sets),
                        &parsed,
                        (at, arrival),
                        &mut heads,
                        now,
                        sink,
                    );
                } else {
                    let fragment = &parsed_at.ahead.fragment;
                    pass(&mut table.counters, parsed_at.other, fragment, arrival, sink);
                }
            }
        }
        drop(rest);
        self.parsed = parsed;
    }

    /// [`Self::push_burst`] where the fragments of a datagram come in on several cores. `steering` says
    /// whose each is, and this is shard `mine`; what belongs to another is handed to `hand_over`, with the
    /// number of that shard: best into a [`lane`](crate::lane()).
    ///
    /// Fragments of each shard stay in order.
    pub fn push_steered(
        &mut self,
        arrivals: &[Arrival<'_, B>],
        (steering, mine): (&Steering, u32),
        now: u64,
        sink: &mut impl Sink<B>,
        mut hand_over: impl FnMut(u32, &Fragment, &Arrival<'_, B>),
    ) where
        B: Copy,
    {
        let mut parsed = self.take_parsed(sink);
        // Whose a fragment is is as good as chance. So it is not branched on, but sorted by.
        let (mut own, mut others) = ([0u8; BURST], [0u8; BURST]);
        let mut begun = 0;
        for arrivals in arrivals.chunks(BURST) {
            let is_hashed = self.table.is_by(&steering.secret);
            let (mut own_len, mut others_len) = (0, 0);
            for (at, (to, next)) in (0u8..).zip(parsed.iter_mut().zip(arrivals)) {
                let other = wire::parse_to(next.packet, next.scope, &mut to.ahead.fragment);
                to.kind = Kind::of(other);
                let mut is_own = false;
                if to.kind == Kind::Fragment {
                    to.ahead.hash = steering.secret.hash(&to.ahead.fragment.key);
                    to.shard = steering.shard_of(to.ahead.hash);
                    is_own = to.shard == mine;
                } else {
                    to.other = other;
                }
                own[own_len % BURST] = at;
                others[others_len % BURST] = at;
                own_len += usize::from(is_own);
                others_len += usize::from(!is_own);
            }
            for at in &others[..others_len] {
                sink.meanwhile(begun);
                begun += 1;
                let (parsed, arrival) = (&parsed[usize::from(*at)], &arrivals[usize::from(*at)]);
                if parsed.kind == Kind::Fragment {
                    hand_over(parsed.shard, &parsed.ahead.fragment, arrival);
                } else {
                    pass(
                        &mut self.table.counters,
                        parsed.other,
                        &parsed.ahead.fragment,
                        *arrival,
                        sink,
                    );
                }
            }
            for at in &own[..own_len] {
                let ahead = &mut parsed[usize::from(*at)].ahead;
                if is_hashed {
                    self.table.look_up_hashed(ahead);
                } else {
                    self.table.look_up(ahead);
                }
            }
            if self.table.is_far(&self.lease) {
                let seen = own[..own_len].iter();
                let seen = seen.map(|at| self.table.touch(&parsed[usize::from(*at)].ahead));
                std::hint::black_box(seen.fold(0, |all, seen| all ^ seen));
            }
            for at in &own[..own_len] {
                sink.meanwhile(begun);
                begun += 1;
                let (ahead, arrival) =
                    (&parsed[usize::from(*at)].ahead, arrivals[usize::from(*at)]);
                self.table.push(&mut self.lease, ahead, arrival, now, &mut Alone(sink));
            }
        }
        self.parsed = parsed;
    }

    /// [`Self::push_fragment`] of many, as [`Self::push_burst`] does it.
    pub fn push_fragments<'p>(
        &mut self,
        fragments: impl IntoIterator<Item = (Fragment, Arrival<'p, B>)>,
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        let mut parsed = self.take_parsed(sink);
        let Self { table, lease, sets, .. } = self;
        let mut heads: [&[u8]; SETS] = [&[]; SETS];
        let mut fragments = fragments.into_iter();
        let mut arrivals = [const { None::<Arrival<'p, B>> }; BURST];
        let mut begun = 0;
        loop {
            let (mut came, mut new) = (0, 0);
            for (to, (fragment, arrival)) in parsed.iter_mut().zip(&mut fragments) {
                if fragment.offset == 0 && !fragment.has_plain_header() {
                    // Of these the header is needed too, and another core may have it.
                    std::hint::black_box(arrival.packet.first());
                }
                (to.ahead.fragment, to.kind) = (fragment, Kind::Fragment);
                table.look_up(&mut to.ahead);
                new |= u32::from(to.ahead.guess == ABSENT) << came;
                arrivals[came] = Some(arrival);
                came += 1;
            }
            table.touch_all(lease, &parsed[..came]);
            let packet = |at: usize| {
                arrivals[at].as_ref().map_or((&[][..], 0), |next| (next.packet, next.cost))
            };
            Self::find_sets((table, lease), sets, new, &mut parsed, now, packet);
            for (at, parsed_at) in parsed[..came].iter().enumerate() {
                let Some(arrival) = arrivals[at].take() else { continue };
                sink.meanwhile(begun);
                begun += 1;
                let soon = parsed[..came].get(at + SOON).zip(arrivals[..came].get(at + SOON));
                if let Some((soon, Some(arrival))) = soon {
                    table.foresee_of(soon, &arrival.buffer, sink);
                }
                if parsed_at.kind == Kind::Member {
                    Self::put_together(
                        (table, lease, sets),
                        &parsed,
                        (at, arrival),
                        &mut heads,
                        now,
                        sink,
                    );
                } else {
                    let ahead = &parsed_at.ahead;
                    table.push(lease, ahead, arrival, now, &mut Alone(sink));
                }
            }
            if came < BURST {
                break;
            }
        }
        self.parsed = parsed;
    }

    /// Takes in all fragments that have come by a lane by now, as [`Self::push_burst`] does with packets.
    /// Answers how many there were. `arrival` finds the packet by the number that went with the fragment;
    /// its scope is not looked at. Should the sink panic, fragments for which it was not asked yet come
    /// by the next call; should it panic itself, the one for which it did comes again as well.
    pub fn push_received<'p>(
        &mut self,
        from: &mut Receiver,
        now: u64,
        sink: &mut impl Sink<B>,
        mut arrival: impl FnMut(u64) -> Arrival<'p, B>,
    ) -> usize {
        let mut parsed = self.take_parsed(sink);
        let mut tickets = [(0, 0); BURST];
        let mut received = from.receive();
        let mut all = 0;
        loop {
            let mut came = 0;
            for (to, place) in parsed.iter_mut().zip(&mut tickets) {
                let Some(ticket) = received.peek_to(&mut to.ahead.fragment) else { break };
                self.table.look_up(&mut to.ahead);
                *place = ticket;
                came += 1;
            }
            self.table.touch_all(&self.lease, &parsed[..came]);
            received.touch();
            for (parsed, (ticket, up_to)) in parsed[..came].iter().zip(&tickets) {
                let arrival = arrival(*ticket);
                received.taken(*up_to);
                self.table.push(&mut self.lease, &parsed.ahead, arrival, now, &mut Alone(sink));
            }
            all += came;
            if came < BURST {
                break;
            }
        }
        drop(received);
        self.parsed = parsed;
        all
    }

    /// Finds the datagrams of which all is in a burst. `new`: see [`Sets::find`].
    #[inline(always)]
    fn find_sets<'p>(
        (table, lease): (&Table<B>, &Lease),
        sets: &mut Sets<B>,
        new: u32,
        parsed: &mut [Parsed],
        now: u64,
        packet: impl Fn(usize) -> (&'p [u8], u32),
    ) {
        // It takes two.
        if new & new.wrapping_sub(1) != 0 && table.is_at_ease(lease, now) {
            sets.find(new, parsed, table, packet);
        }
    }

    /// Takes in a fragment of such a datagram, and hands that out if it was the last. `heads`: packets of first fragments,
    /// by set, whose header is not plain.
    #[inline(always)]
    fn put_together<'p>(
        (table, lease, sets): (&mut Table<B>, &mut Lease, &mut Sets<B>),
        parsed: &[Parsed],
        (at, arrival): (usize, Arrival<'p, B>),
        heads: &mut [&'p [u8]; SETS],
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        let f = &parsed[at].ahead.fragment;
        let owner = sets.owner(at);
        if !f.has_plain_header() && f.offset == 0 {
            heads[owner] = arrival.packet;
        }
        if let Some(set) = sets.put(at, f, arrival.buffer) {
            let first = &parsed[usize::from(set.first)].ahead.fragment;
            let pieces = sets.pieces(set);
            table.hand_out(lease, set, (first, heads[owner]), pieces, now, sink);
            release(pieces, sink);
        }
    }

    /// For a new burst: of the one before nothing is left.
    #[inline]
    fn take_parsed(&mut self, sink: &mut impl Sink<B>) -> Box<[Parsed]> {
        self.table.settle();
        self.release_left(sink);
        self.table.release_untaken(sink);
        let parsed = std::mem::replace(&mut self.parsed, Box::new([]));
        if parsed.is_empty() { Parsed::burst() } else { parsed }
    }

    /// Gives back what the last burst has left, if a sink has panicked in the middle of it: fragments of datagrams of which
    /// all was there, and that it has not taken.
    #[inline]
    fn release_left(&mut self, sink: &mut impl Sink<B>) {
        // Else all that was parsed is back.
        if self.parsed.is_empty() {
            self.sets.left(|buffer| {
                self.table.counters.fragments += 1;
                self.table.drop_fragment(buffer, Reason::Cleared, sink);
            });
        }
    }

    /// Gives up datagrams that have taken too long, at most `most`. Answers when the next one's time
    /// ends, if there is one; a time that is past means that there are more.
    ///
    /// [`Self::push`] does some of this by itself. Call this when nothing comes in, some hundred times a second: where
    /// another shard has too little memory, this is also when what is held here for datagrams that nothing comes for
    /// any more goes to it.
    pub fn expire(&mut self, now: u64, most: usize, sink: &mut impl Sink<B>) -> Option<u64> {
        self.release_left(sink);
        self.table.expire(&mut self.lease, now, most, sink)
    }

    /// Gives up all datagrams in progress.
    pub fn clear(&mut self, now: u64, sink: &mut impl Sink<B>) {
        self.release_left(sink);
        self.table.clear(&mut self.lease, now, sink);
    }

    /// Counts a fragment that the caller has left out, for this reason.
    pub fn refuse(&mut self, reason: Reason) {
        self.table.counters.fragments += 1;
        self.table.counters.fragments_dropped[reason as usize] += 1;
    }

    /// What it has seen and done.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.table.counters
    }

    /// What it holds.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let mut gauges = Gauges::default();
        self.table.gauge(&mut gauges);
        gauges.leased_bytes += self.lease.unused();
        gauges
    }
}

/// Hears of nothing: what is dropped is nobody's any more.
pub(crate) struct Nobody;

impl<B> Sink<B> for Nobody {
    fn whole(&mut self, _: B, _: usize) {}
    fn datagram(&mut self, _: &crate::Datagram<'_, B>) {}
    fn release(&mut self, _: B, _: Released) {}
}

impl<B> Drop for Shard<B> {
    fn drop(&mut self) {
        self.table.clear(&mut self.lease, 0, &mut Nobody);
        self.table.end(&mut self.lease);
    }
}

/// A packet that is no fragment, or none that makes sense.
#[cold]
pub(crate) fn pass<B>(
    counters: &mut Counters,
    packet: Result<Option<usize>, Reason>,
    fragment: &Fragment,
    arrival: Arrival<'_, B>,
    sink: &mut impl Sink<B>,
) {
    match packet {
        Ok(len) => {
            counters.whole += 1;
            sink.whole(arrival.buffer, len.unwrap_or(0));
        }
        Err(reason) => {
            counters.fragments += 1;
            counters.fragments_dropped[reason as usize] += 1;
            protest(reason, fragment, &arrival, sink);
            sink.release(arrival.buffer, Released::Dropped(reason));
        }
    }
}

/// What a sender of IPv6 fragments is to be told of one that no datagram can have (RFC 8200 section 4.5).
fn protest<B>(
    reason: Reason,
    fragment: &Fragment,
    arrival: &Arrival<'_, B>,
    sink: &mut impl Sink<B>,
) {
    let kind = match reason {
        Reason::Unaligned => NoticeKind::BadLength,
        Reason::Oversize => NoticeKind::TooLong,
        _ => return,
    };
    let header = arrival.packet.get(..usize::from(fragment.header_len));
    if let Some(header) = header.filter(|_| fragment.key.is_v6()) {
        sink.notice(&Notice { kind, key: &fragment.key, header, first: Ok(&arrival.buffer) });
    }
}

/// Which shard a datagram's fragments go to. The same for all cores.
#[derive(Clone, Debug)]
pub struct Steering {
    secret: HashKey,
    shards: u32,
}

impl Steering {
    /// To `shards` shards, best made by [`Shard::steered`]. The secret is drawn at random, and no other shard's.
    #[must_use]
    pub fn new(secret: HashKey, shards: u32) -> Self {
        Self { secret, shards: shards.max(1) }
    }

    /// The number of the shard, below the number of shards.
    #[inline]
    #[must_use]
    pub fn shard(&self, key: &Key) -> u32 {
        self.shard_of(self.secret.hash(key))
    }

    /// By the hash of its key. What is the same of all that go to one shard are the highest bits, and a table goes by the
    /// lowest of those that it keeps.
    #[inline]
    const fn shard_of(&self, hash: u64) -> u32 {
        (((hash >> 32) * self.shards as u64) >> 32) as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

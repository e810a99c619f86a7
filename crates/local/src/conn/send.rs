//! Sending: the ring, the larger ring that follows it, and what happens when there is no room.

use super::{
    Arena, BLOCK_BYTES, Buffers, Conn, ECONNRESET, EPIPE, Half, Loc, Ordering, Phase, Put, Reason,
    Registration, World, add32, add64, cache, call, flag, is_own, kernel, lock, note_cpu,
    reg_flags, ring, room,
};

/// Most bytes that are pushed towards their reader: who reads more than this fetches ahead.
const PUSH_MAX: usize = 1024;
/// Room that a sender which looks need not wait beyond.
const SOME_ROOM: usize = 256 << 10;
/// Order of the largest ring towards a reader on another core: 2 MiB. It is written round and round, so what is larger
/// than a core's own cache goes out of it to a farther one before it is read, and comes from there.
const FAR_ORDER: u32 = (2usize << 20).div_ceil(BLOCK_BYTES).trailing_zeros();
/// Least bytes of a piece that may go past the caches.
const LONG: usize = 16 << 10;

impl Conn {
    /// Sends what there is room for, without waiting.
    pub fn send(&'static self, w: &World, fd: i32, from: &mut Buffers<'_>) -> Put {
        let Some((mine, peer)) = self.halves(w) else { return Put::Kernel };
        self.note_fork(w, mine);
        let held = lock::lock_own(&mine.tx_lock, &mine.lent, is_own(mine));
        let Some(_held) = held.or_else(|| self.lock_if_left(w, &mine.tx_lock, &mine.lent)) else {
            return Put::Full;
        };
        let fd = self.descriptor(fd);
        if fd < 0 {
            return Put::Kernel;
        }
        self.misses_reader(fd, mine, peer);
        let all = from.left();
        if let Some(put) = self.send_refused(w, fd, mine, peer) {
            return if put == Put::Kernel { self.takes_a_last_one(fd, mine, all) } else { put };
        }
        let mut stalled = false;
        while from.left() > 0 {
            let tail = mine.sent.load(Ordering::Relaxed);
            let Some((loc, base)) = self.my_ring(w, mine, peer, tail, from.left(), stalled) else {
                return self.no_ring(w, fd, mine);
            };
            let capacity = loc.bytes();
            let Ok(room) = room_now(mine, peer, tail, base, capacity, from.left()) else {
                let _ = self.broken(w, fd, mine);
                return Put::Failed(104);
            };
            if room == 0 {
                if !stalled {
                    stalled = true;
                    add32(&mine.n_stalls, 1);
                    #[expect(clippy::cast_possible_truncation, reason = "at most 4 MiB")]
                    mine.peak.fetch_max(capacity as u32, Ordering::Relaxed);
                    continue;
                }
                if self.go_down_full(w, fd, mine, peer) {
                    return Put::Kernel;
                }
                // What was taken is the answer, and the next call hears of the rest.
                let news = from.left() == all && self.hears_when_full(fd);
                let refused = if news { self.send_refused(w, fd, mine, peer) } else { None };
                return refused.unwrap_or(Put::Full);
            }
            // In pieces, so that the peer can begin while we go on.
            let piece = (capacity / 4).clamp(BLOCK_BYTES, 128 << 10);
            let n = room.min(from.left()).min(piece);
            let memory = w.board.map.ring(loc);
            let cpus = (mine.cpu.load(Ordering::Relaxed), peer.cpu.load(Ordering::Relaxed));
            let far = !cache::share_core(cpus.0, cpus.1);
            let long = far && n >= LONG;
            from.to_ring(memory, tail, n, long && self.copying.past_caches());
            publish(mine, tail.wrapping_add(n as u64));
            if far && n <= PUSH_MAX {
                memory.push(tail, n);
                cache::push((&raw const mine.tail).cast(), 8);
            }
            // The ring that has room now may be full as well, and not be the largest yet.
            stalled = false;
            note_cpu(mine);
            add64(&mine.bytes_tx, n as u64);
            self.notify(w, fd, mine, peer);
            if long {
                self.copying.sent(n, || (peer.head.load(Ordering::Relaxed), call::now_ns()));
            }
        }
        add32(&mine.n_tx, 1);
        w.has_sent(self.half.load(Ordering::Relaxed));
        self.forget_room_wait(mine);
        Put::All
    }

    /// Reads a file straight into the ring: at most `max` bytes at once. `read` is handed a
    /// piece of the ring, and answers how many bytes it put there.
    pub fn send_with(
        &'static self,
        w: &World,
        fd: i32,
        max: usize,
        mut read: impl FnMut(*mut [u8]) -> Result<usize, i32>,
    ) -> Result<usize, Put> {
        let (mine, peer) = self.halves(w).ok_or(Put::Kernel)?;
        self.note_fork(w, mine);
        let held = lock::lock_of(&mine.tx_lock, &mine.lent);
        let _held =
            held.or_else(|| self.lock_if_left(w, &mine.tx_lock, &mine.lent)).ok_or(Put::Full)?;
        let fd = self.descriptor(fd);
        if fd < 0 {
            return Err(Put::Kernel);
        }
        self.misses_reader(fd, mine, peer);
        if let Some(put) = self.send_refused(w, fd, mine, peer) {
            return Err(put);
        }
        let tail = mine.sent.load(Ordering::Relaxed);
        let mut ring = self.my_ring(w, mine, peer, tail, max, false);
        let mut room = 0;
        for stalled in [false, true] {
            if stalled {
                ring = self.my_ring(w, mine, peer, tail, max, true);
            }
            let (loc, base) = ring.ok_or_else(|| self.no_ring(w, fd, mine))?;
            room = room_in(peer, tail, base, loc.bytes()).map_err(|_| Put::Failed(104))?;
            if room > 0 {
                break;
            }
        }
        let (loc, _) = ring.ok_or(Put::Kernel)?;
        let capacity = loc.bytes();
        if room == 0 {
            add32(&mine.n_stalls, 1);
            if self.go_down_full(w, fd, mine, peer) {
                return Err(Put::Kernel);
            }
            let news = self.hears_when_full(fd);
            let refused = if news { self.send_refused(w, fd, mine, peer) } else { None };
            return Err(refused.unwrap_or(Put::Full));
        }
        let [(at, first), _] = ring::pieces(tail, room.min(max).min(256 << 10), capacity);
        // What is not in the piece was not put there, whatever it says.
        let n = read(w.board.map.ring(loc).piece(at, first)).map_err(Put::Failed)?.min(first);
        if n > 0 {
            publish(mine, tail.wrapping_add(n as u64));
            note_cpu(mine);
            add64(&mine.bytes_tx, n as u64);
            self.notify(w, fd, mine, peer);
        }
        Ok(n)
    }

    /// Why bytes cannot go into the ring now, if so.
    #[inline]
    fn send_refused(&'static self, w: &World, fd: i32, mine: &Half, peer: &Half) -> Option<Put> {
        let flags = mine.flags.load(Ordering::Relaxed);
        let peer_flags = peer.flags.load(Ordering::Relaxed);
        let bad = flag::CLOSED | flag::WANT_DOWN;
        let deaf = flag::SHUT | flag::SHUT_RD;
        if flags & (flag::SHUT | flag::DOWN) == 0
            && peer_flags & bad == 0
            && peer_flags & deaf != deaf
            // The kernel's FIN comes when the peer closes or dies, not when it shuts down.
            && !self.seems_gone(mine, peer)
            && self.phase() == Phase::Attached
        {
            return None;
        }
        if self.phase() != Phase::Attached {
            return Some(Put::Kernel);
        }
        if flags & flag::SHUT != 0 {
            return Some(Put::Shut);
        }
        self.judge_end(mine, peer);
        let hints = self.kernel.load(Ordering::Relaxed);
        let mut errno = self.error.swap(0, Ordering::Relaxed);
        // Once more: of a close that came in order before that error.
        let peer_flags = peer.flags.load(Ordering::Acquire);
        if Self::closed_cleanly(peer_flags) && !self.sent_after(mine) {
            // It comes of a doorbell that was left unread. The first send gets none, as over TCP, if the kernel takes it.
            errno = 0;
        }
        let reset = peer_flags & flag::RESET != 0 || hints & kernel::RESET != 0;
        if !self.is_told(mine) && (errno != 0 || reset) && hints & kernel::CLEAN == 0 {
            self.await_reset(fd);
            let errno = if errno == 0 { ECONNRESET } else { errno.cast_signed() };
            // Another thread may have told it at this moment: then it is not this call's to tell, or to leave to the next.
            let told = mine.flags.fetch_or(flag::TOLD, Ordering::Relaxed) & flag::TOLD != 0;
            let _ = self.tell_reset(fd, mine, errno);
            let errno = if told { EPIPE } else { Self::named(mine, peer, errno) };
            return Some(Put::Failed(errno));
        }
        if hints & kernel::CLEAN != 0 && self.sent_after(mine) {
            let _ = self.tell_reset(fd, mine, EPIPE);
            return Some(Put::Failed(EPIPE));
        }
        if self.is_told(mine) && hints & kernel::CLEAN == 0 {
            // Behind a reset nothing is sent, of which the kernel may not know: it takes a last message after a mere end.
            return Some(Put::Failed(EPIPE));
        }
        if peer_flags & flag::WANT_DOWN != 0
            && flags & flag::DOWN == 0
            && !self.go_down_for(w, fd, mine, peer)
        {
            // The peer reads on after all.
            return self.send_refused(w, fd, mine, peer);
        }
        Some(Put::Kernel)
    }

    /// The ring that the next byte goes to, and the first stream offset that is in it (if it follows
    /// another that is not read yet). Taken when there is none; followed by a larger one when the
    /// program writes more than it holds, or when it is full.
    #[inline]
    fn my_ring(
        &'static self,
        w: &World,
        mine: &Half,
        peer: &Half,
        tail: u64,
        want: usize,
        stalled: bool,
    ) -> Option<(Loc, u64)> {
        if mine.next_loc.load(Ordering::Relaxed) != 0 {
            let next = self.promote(w, mine, peer);
            if let Some(found) = next {
                let is_ahead = stalled && found.1 != 0;
                let wider =
                    if is_ahead { self.widen(w, mine, peer, (tail, want), found) } else { None };
                return self.in_reach(w, mine, wider.unwrap_or(found));
            }
        }
        if let Some(loc) = Loc::parse(mine.loc.load(Ordering::Relaxed)) {
            let small = stalled || want > loc.bytes();
            if !small || loc.order >= order_most(w, mine, peer) || self.is_inherited(w, mine) {
                return self.in_reach(w, mine, (loc, 0));
            }
            return self.chain(w, mine, peer, tail, want, loc).or(Some((loc, 0)));
        }
        if self.is_inherited(w, mine) {
            // A ring must lie in the memory of the process that made the connection.
            return None;
        }
        let loc = self.new_ring(w, fit(want).max(w.limits.order_min), w.limits.order_min)?;
        // The peer reads the place after it has seen a tail that was published after this store.
        mine.loc.store(loc.emit(), Ordering::Relaxed);
        if let Some(mut arena) = w.arena.lock() {
            w.holds(self, &mut arena);
        }
        Some((loc, 0))
    }

    /// Whether there is a ring for what we send; takes the first one.
    pub(super) fn has_ring(&'static self, w: &World, mine: &Half) -> bool {
        if mine.loc.load(Ordering::Relaxed) != 0 {
            return true;
        }
        if self.is_inherited(w, mine) {
            return false;
        }
        let least = w.limits.order_min;
        let Some(loc) = self.new_ring(w, least, least) else { return false };
        // Two threads may come here: the second gives its own back.
        let first = mine.loc.compare_exchange(0, loc.emit(), Ordering::Relaxed, Ordering::Relaxed);
        if let Some(mut arena) = w.arena.lock() {
            if first.is_ok() {
                w.holds(self, &mut arena);
            } else {
                arena.free_block(&w.board, loc);
            }
        }
        true
    }

    /// Whether the connection was made by the process that we were forked from.
    pub(super) fn is_inherited(&self, w: &World, mine: &Half) -> bool {
        w.board.slot() != Some(mine.slot.load(Ordering::Relaxed))
    }

    /// A ring that our half names, once we may write there: the process that we were forked from has opened what it has
    /// taken since then for itself. `None`: we may not. The caller holds the send lock.
    #[inline]
    fn in_reach(&self, w: &World, mine: &Half, found: (Loc, u64)) -> Option<(Loc, u64)> {
        let is_open = !w.inherited() || self.opened.load(Ordering::Relaxed) == found.0.emit();
        (is_open || self.opens(w, mine, found.0)).then_some(found)
    }

    #[cold]
    fn opens(&self, w: &World, mine: &Half, loc: Loc) -> bool {
        if !self.is_inherited(w, mine) {
            self.opened.store(loc.emit(), Ordering::Relaxed);
            return true;
        }
        let is_its = w.board.map.owner_of(loc.offset()) == Some(mine.slot.load(Ordering::Relaxed));
        let opened = is_its && w.board.map.open_ring(loc);
        if opened {
            self.opened.store(loc.emit(), Ordering::Relaxed);
        }
        opened
    }

    #[cold]
    pub(super) fn new_ring(&self, w: &World, order: u32, least: u32) -> Option<Loc> {
        let mut arena = w.arena.lock()?;
        let order = order.min(w.limits.order_max);
        arena
            .block(&w.board, order, w.memory_max())
            .or_else(|_| arena.block(&w.board, least.min(order), w.memory_max()))
            .ok()
    }

    /// Lets a larger ring follow the present one, from the next byte on.
    #[cold]
    fn chain(
        &'static self,
        w: &World,
        mine: &Half,
        peer: &Half,
        tail: u64,
        want: usize,
        now: Loc,
    ) -> Option<(Loc, u64)> {
        let order = fit(want).max(now.order + 2).min(order_most(w, mine, peer));
        if order <= now.order {
            // The reader has come to another core meanwhile.
            return None;
        }
        let next = self.new_ring(w, order, now.order + 1)?;
        // The offset before the place, and what `promote` has written before the offset: a reader may have met the last ring
        // while it was the next one. Pairs with `peer_ring`.
        mine.next_at.store(tail, Ordering::Release);
        mine.next_loc.store(next.emit(), Ordering::Release);
        self.promote(w, mine, peer).or(Some((next, tail)))
    }

    /// The following ring is full as well, and the reader has not come to it: makes it larger, by as much as is written and at
    /// least four times, as far as may be. A program that writes much before it reads relies on what the kernel's sockets hold.
    /// Done while nobody at the other end receives, so that none is in the middle of the ring that goes.
    #[cold]
    fn widen(
        &'static self,
        w: &World,
        mine: &Half,
        peer: &Half,
        (tail, want): (u64, usize),
        (now, at): (Loc, u64),
    ) -> Option<(Loc, u64)> {
        let most = order_most(w, mine, peer);
        let is_ahead = || at.wrapping_sub(peer.head.load(Ordering::Acquire)).cast_signed() > 0;
        if now.order >= most
            || !self.may_widen(w, mine)
            // It is looked at again when the locks are borrowed: this is for not to take memory in vain.
            || peer.rx_lock.load(Ordering::Relaxed) != 0
            || !is_ahead()
        {
            return None;
        }
        let index = mine.peer.load(Ordering::Relaxed).checked_sub(1)?;
        let order = fit(want).max(now.order + 2).min(most);
        let next = self.new_ring(w, order, now.order + 1)?;
        let done = Self::borrowing(w, (index, peer), &[&peer.rx_lock], || {
            let is_ahead = is_ahead();
            if is_ahead {
                Self::copy_ring(w, (now, next), at, tail);
                // Release: the bytes before the place. Pairs with `peer_ring`.
                mine.next_loc.store(next.emit(), Ordering::Release);
            }
            is_ahead
        });
        let done = done == Some(true);
        // There is the lock, as there was for `next`: who cannot have it holds it already.
        if let Some(mut arena) = w.arena.lock() {
            arena.free_block(&w.board, if done { now } else { next });
        }
        done.then_some((next, at))
    }

    /// Whether the ring that follows may be exchanged for a larger one: it is ours, and its reader locks.
    fn may_widen(&self, w: &World, mine: &Half) -> bool {
        !self.is_inherited(w, mine) && !self.is_shared(w) && !self.stands_in()
    }

    /// Copies what lies between two stream offsets from one ring to another, which is larger.
    fn copy_ring(w: &World, (from, to): (Loc, Loc), at: u64, tail: u64) {
        let mut chunk = vec![0u8; BLOCK_BYTES];
        let mut at = at;
        while at != tail {
            let left = usize::try_from(tail.wrapping_sub(at)).unwrap_or(usize::MAX);
            let part = &mut chunk[..left.min(BLOCK_BYTES)];
            w.board.map.copy_out(from, at, part);
            w.board.map.copy_in(to, at, part);
            at = at.wrapping_add(part.len() as u64);
        }
    }

    /// The following ring, which becomes the present one once the old one is read.
    fn promote(&'static self, w: &World, mine: &Half, peer: &Half) -> Option<(Loc, u64)> {
        let next = Loc::parse(mine.next_loc.load(Ordering::Relaxed))?;
        let at = mine.next_at.load(Ordering::Relaxed);
        // Acquire: the peer has finished with the old ring.
        if at.wrapping_sub(peer.head.load(Ordering::Acquire)).cast_signed() > 0 {
            return Some((next, at));
        }
        let old = Loc::parse(mine.loc.load(Ordering::Relaxed));
        mine.loc.store(next.emit(), Ordering::Relaxed);
        // Release: the new place before the word that sends readers to it. Pairs with `peer_ring`.
        mine.next_loc.store(0, Ordering::Release);
        if let (Some(old), Some(mut arena)) = (old, w.arena.lock())
            // A block of another process's (before a fork) is not ours to give back.
            && w.board.map.owner_of(old.offset()) == w.board.slot()
        {
            arena.free_block(&w.board, old);
        }
        Some((next, 0))
    }

    /// Ring offset up to which we have sent.
    pub(crate) fn sent(&self, w: &World) -> u64 {
        self.my_half(w).map_or(0, |(_, mine)| mine.sent.load(Ordering::Relaxed))
    }

    /// Takes an empty ring away from a connection that does not use it now.
    pub(crate) fn drop_idle_ring(&'static self, w: &World, arena: &mut Arena) -> bool {
        let Some((mine, peer)) = self.halves(w) else { return true };
        let Some(_held) = lock::try_lock_of(&mine.tx_lock, &mine.lent) else { return false };
        if self.phase() != Phase::Attached || self.is_shared(w) {
            return self.phase() != Phase::Attached;
        }
        if peer.head.load(Ordering::Acquire) != mine.sent.load(Ordering::Relaxed) {
            return false;
        }
        for word in [&mine.next_loc, &mine.loc] {
            if let Some(loc) = Loc::parse(word.swap(0, Ordering::Release)) {
                arena.free_block(&w.board, loc);
            }
        }
        true
    }

    /// No ring and no memory for one: this direction goes back to TCP.
    #[cold]
    fn no_ring(&'static self, w: &World, fd: i32, mine: &Half) -> Put {
        w.count(Reason::NoMemory);
        mine.reason.store(Reason::NoMemory.code(), Ordering::Relaxed);
        if let Some((_, peer)) = self.halves(w)
            && self.goes_down_as_wanted(w, fd, mine, peer)
        {
            return Put::Kernel;
        }
        self.go_down(w, fd, mine, mine.sent.load(Ordering::Relaxed));
        Put::Kernel
    }

    /// Whether a sender would find room: a third of the ring, as for a kernel socket.
    #[must_use]
    pub fn has_room(&self, mine: &Half, peer: &Half) -> bool {
        Self::room_of(mine, peer).is_none_or(|(room, bytes)| room * 3 >= bytes)
    }

    /// Room, and the bytes of the ring that has it; `None`: there is no ring yet. Of a peer whose cursor cannot
    /// be there is never room.
    fn room_of(mine: &Half, peer: &Half) -> Option<(usize, usize)> {
        let tail = mine.sent.load(Ordering::Relaxed);
        let next = Loc::parse(mine.next_loc.load(Ordering::Relaxed));
        let loc = next.or_else(|| Loc::parse(mine.loc.load(Ordering::Relaxed)))?;
        let base = if next.is_some() { mine.next_at.load(Ordering::Relaxed) } else { 0 };
        Some((room_in(peer, tail, base, loc.bytes()).unwrap_or(0), loc.bytes()))
    }

    /// Whether there is room that is worth going on with, for a sender that looks: less than what ends a
    /// sleep, where rings are large. A stream that never stops needs nobody to be woken.
    #[must_use]
    pub fn has_some_room(mine: &Half, peer: &Half) -> bool {
        Self::room_of(mine, peer)
            .is_none_or(|(room, bytes)| room >= bytes.div_ceil(3).min(SOME_ROOM))
    }

    /// Whether a send would be taken: there is room, or a larger ring can follow. Once a send has found
    /// neither, only room counts.
    #[must_use]
    pub fn writable(&self, w: &World, mine: &Half, peer: &Half) -> bool {
        Self::has_some_room(mine, peer)
            || mine.room_wait.load(Ordering::Relaxed) == 0
                && self.may_grow(w, mine, peer)
                && !self.is_inherited(w, mine)
    }

    /// Whether a larger ring can follow the present one, or stand in for the one that follows.
    fn may_grow(&self, w: &World, mine: &Half, peer: &Half) -> bool {
        let [loc, next] =
            [&mine.loc, &mine.next_loc].map(|word| Loc::parse(word.load(Ordering::Relaxed)));
        next.or(loc).is_some_and(|last| last.order < order_most(w, mine, peer))
            && (next.is_none() || self.may_widen(w, mine))
    }

    /// Says that we wait for room; `false`: there is some already.
    #[must_use]
    pub fn wait_for_room(&self, mine: &Half, peer: &Half) -> bool {
        room::want(&mine.room_wait);
        !self.has_room(mine, peer)
    }

    /// After a send that found room: nobody waits for some any more, unless others do.
    #[inline]
    fn forget_room_wait(&self, mine: &Half) {
        let in_a_set = |set: &Registration| {
            let flags = set.flags.load(Ordering::Relaxed);
            set.set.load(Ordering::Relaxed) != 0 && flags & reg_flags::ROOM != 0
        };
        room::forget(&mine.room_wait, || {
            mine.sleepers.load(Ordering::Relaxed) != 0
                // Of the event sets of other processes nothing is known here.
                || mine.flags.load(Ordering::Relaxed) & flag::SHARED != 0
                || self.sets.iter().any(in_a_set)
        });
    }

    /// Bytes that have not come to the peer's end. On one host what has come need not have been read: what a kernel's socket
    /// would have taken, by the size of our own, is not counted.
    #[must_use]
    pub fn unsent(&self, w: &World, fd: i32) -> Option<usize> {
        const SO_RCVBUF: i32 = 8;
        let (mine, peer) = self.halves(w)?;
        let tail = mine.sent.load(Ordering::Relaxed);
        let unread = usize::try_from(tail.wrapping_sub(peer.head.load(Ordering::Acquire)))
            .ok()
            // Two rings at most hold it.
            .filter(|n| *n <= 8 << 20)?;
        if unread == 0 || self.stands_in() {
            return Some(unread);
        }
        // Half of that is for bytes; the rest is what the kernel needs for itself.
        let come = call::getsockopt::<i32>(fd, 1, SO_RCVBUF).unwrap_or(0) / 2;
        Some(unread.saturating_sub(usize::try_from(come).unwrap_or(0)))
    }
}

/// Shows the peer what was written, and notes it where we look ourselves.
#[inline]
fn publish(mine: &Half, tail: u64) {
    mine.sent.store(tail, Ordering::Relaxed);
    ring::publish(&mine.tail, tail);
}

/// Order to which a ring may grow. One whose reader shares the core is read only when its sender gives the core away:
/// the larger it is, the less often.
fn order_most(w: &World, mine: &Half, peer: &Half) -> u32 {
    let cpus = (mine.cpu.load(Ordering::Relaxed), peer.cpu.load(Ordering::Relaxed));
    let most = w.limits.order_max;
    if cache::share_core(cpus.0, cpus.1) { most } else { most.min(FAR_ORDER) }
}

/// Order of a ring that holds a write of `want` bytes with as much again.
pub(super) fn fit(want: usize) -> u32 {
    (want.min(1 << 20) * 2).div_ceil(BLOCK_BYTES).next_power_of_two().trailing_zeros()
}

/// [`room_in`], by the peer's head as it was seen last when that leaves room for `want`: the line of
/// the head then stays with the peer. What was seen is never more than what is, so that the room is
/// never overestimated.
#[inline]
fn room_now(
    mine: &Half,
    peer: &Half,
    tail: u64,
    base: u64,
    capacity: usize,
    want: usize,
) -> Result<usize, ring::Corrupt> {
    if base == 0
        && let Ok(used) = ring::used(mine.seen_head.load(Ordering::Relaxed), tail, capacity)
        && capacity - used >= want
    {
        return Ok(capacity - used);
    }
    let room = room_in(peer, tail, base, capacity)?;
    if base == 0 {
        mine.seen_head.store(tail.wrapping_sub((capacity - room) as u64), Ordering::Relaxed);
    }
    Ok(room)
}

/// Room in a ring of our own that begins at stream offset `base` (0: before any byte unread).
#[inline]
fn room_in(peer: &Half, tail: u64, base: u64, capacity: usize) -> Result<usize, ring::Corrupt> {
    // Acquire: the consumer has finished reading what it gave back. Pairs with `give_back`.
    let head = peer.head.load(Ordering::Acquire);
    if base != 0 && base.wrapping_sub(head).cast_signed() > 0 {
        // What is before `base` lies in another ring; but more than both hold cannot be unread.
        ring::used(head, tail, capacity * 2)?;
        return Ok(capacity - ring::used(base, tail, capacity)?);
    }
    Ok(capacity - ring::used(head, tail, capacity)?)
}

#[cfg(test)]
mod tests;

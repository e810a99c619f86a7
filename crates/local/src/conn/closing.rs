//! How a connection ends here: who is waited for, what the peer is told, and what is given back.

use super::attach::{DEAF, SIOCATMARK, SIOCINQ, SO_LINGER, SOL_SOCKET, is_closed};
use super::links::unlink;
use super::{
    Conn, Half, Ordering, Phase, World, add64, call, flag, full_fence, half_state, kernel, lock,
    offer, options, ring,
};
use crate::board::Ends;
use crate::brief;
use crate::destination::Place;

/// How long a close waits for other threads that are attaching the connection, nanoseconds: they take microseconds,
/// unless they do not run. Tests tell what is waited for from what is given up.
pub(super) const OTHERS_NS: u64 = if cfg!(test) { 60_000_000_000 } else { 50_000_000 };

/// The same for those that are about to end a call by the number that is closed: their peer may have had all of it, and
/// answered, before they have rung for it. They hold a lock meanwhile, for which others wait without a limit.
const CALLS_NS: u64 = if cfg!(test) { 60_000_000_000 } else { 1_000_000_000 };

/// How long who does something by a number waits for another one who does: they need not be kept from each other.
const NUMBERED_NS: u64 = 50_000_000;
/// How often it is tried to be the next.
const NUMBERED_TRIES: u32 = 16;
const EBADF: i32 = 9;

/// What lasts longer is no short connection, nanoseconds.
const SHORT_NS: u64 = 100_000_000;

impl Conn {
    /// A call that may sleep begins; [`Self::let_go`] must follow. `false`: another thread has closed the last descriptor
    /// since the call looked at its number, and the record serves nobody, or another connection by and by.
    #[must_use]
    pub fn hold(&self) -> bool {
        if self.refs.load(Ordering::Acquire) == 0 {
            return false;
        }
        // Before the reference: a close that finds that it is not the last one asks who is inside.
        self.inside.fetch_add(1, Ordering::AcqRel);
        if self.leads_here_too() {
            return true;
        }
        // Not below what a record begins with that is made ready for somebody else.
        let less = |n: u32| n.checked_sub(1);
        let _ = self.inside.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        false
    }

    /// Another descriptor leads here. `false`: the last one was closed meanwhile.
    #[must_use]
    pub fn leads_here_too(&self) -> bool {
        let unless_closed = |n: u32| if n == 0 { None } else { n.checked_add(1) };
        self.refs.fetch_update(Ordering::AcqRel, Ordering::Acquire, unless_closed).is_ok()
    }

    /// Such a call ends. `true`: it was the last to lead here, and must end the connection.
    #[must_use]
    pub fn let_go(&self) -> bool {
        self.inside.fetch_sub(1, Ordering::AcqRel);
        self.refs.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// A send that [`Self::tcp_send_begins`] allowed is not made, the connection being closed.
    pub fn tcp_send_was_none(&self) {
        self.tx.was_none();
    }

    /// A descriptor is about to be closed. `true`: it is the last to lead here, and no call is under way nor can begin.
    #[must_use]
    pub fn closes_alone(&self) -> bool {
        self.refs.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The last descriptor of this process is about to be closed. After this the record is free.
    pub fn closing(&'static self, w: &World, fd: i32) {
        let mut deadline = 0;
        self.await_others(&mut deadline);
        self.await_calls(w);
        self.learn(w);
        self.holds_no_more(w);
        self.meets_no_more(w, fd, &mut deadline);
        let Some((index, half)) = self.my_half(w) else { return };
        if half.slot.load(Ordering::Relaxed) != w.board.slot().unwrap_or(u32::MAX) {
            // Inherited: the memory is our parent's to give back.
            self.close_inherited(w, fd, half);
            return;
        }
        match self.phase() {
            Phase::Attached => self.close_attached(w, fd, index, half),
            Phase::Tcp if half.state.load(Ordering::Relaxed) == half_state::CLOSED => {
                self.finish(w, index, half);
            }
            _ => {
                let word = w.board.map.offer_word(self.offer.load(Ordering::Relaxed));
                if half.client.load(Ordering::Relaxed) == 1 {
                    offer::clear(word, index);
                }
                if half.users.fetch_sub(1, Ordering::AcqRel) > 1 {
                    return;
                }
                if half.peer.load(Ordering::Relaxed) != 0 {
                    half.flags.fetch_or(flag::GONE, Ordering::Release);
                    self.finish(w, index, half);
                } else if w.board.map.is_foreign() {
                    w.retire(index);
                } else if let Some(mut arena) = w.arena.lock() {
                    arena.free_half(&w.board, index);
                }
            }
        }
    }

    /// About to be closed: attaches it if the peer has done its part, and sees to it that it never is otherwise. Others
    /// may still come by the record, and must not attach what is given back.
    fn meets_no_more(&'static self, w: &World, fd: i32, deadline: &mut u64) {
        if self.phase() == Phase::Offered
            && !self.settle_client(w, fd, false, 0)
            && self.phase() == Phase::Offered
        {
            let word = w.board.map.offer_word(self.offer.load(Ordering::Relaxed));
            if let Some((index, _)) = self.my_half(w)
                && !offer::withdraw(word, index)
            {
                // Taken in this very moment, or overwritten.
                let _ = self.settle_client(w, fd, false, 0);
            }
        }
        loop {
            match self.phase() {
                unmet @ (Phase::Server | Phase::Offered | Phase::Asked) => {
                    let _ = self.swap_phase(unmet, Phase::Tcp);
                }
                // Another thread had begun just before: it will see that it is withdrawn, or has attached it. Not this very
                // thread, which we have interrupted.
                Phase::Busy
                    if self.counting.load(Ordering::Acquire) != lock::tid()
                        && self.await_others(deadline) => {}
                _ => return,
            }
        }
    }

    /// Waits for other threads that are attaching it, or switching our direction: an event loop may be at it on behalf
    /// of its set. What they write last must not go into the record of the connection that has it next.
    /// `deadline`: when they have been waited for long enough; 0: nobody has begun to. `false`: they are at it still.
    pub(super) fn await_others(&self, deadline: &mut u64) -> bool {
        while self.others_are_at_it() {
            let now = call::now_ns();
            if *deadline == 0 {
                *deadline = now + OTHERS_NS;
            }
            // A thread that has left it by a jump will not say so.
            if now > *deadline {
                return false;
            }
            call::sched_yield();
        }
        true
    }

    /// The descriptor of a call that began with `fd`: another one when that was closed meanwhile, or none (-1) when nothing
    /// leads here any more. Who asks under a lock for which a close [waits](Self::await_calls) has it until he frees that.
    #[inline]
    #[must_use]
    pub fn descriptor(&self, fd: i32) -> i32 {
        match self.kept_or(-1) {
            -1 if self.refs.load(Ordering::Acquire) == 0 => -1,
            -1 => fd,
            kept => kept,
        }
    }

    /// [`Self::descriptor`], where `fd` leads here until the caller frees its lock.
    #[inline]
    pub(super) fn kept_or(&self, fd: i32) -> i32 {
        // Acquire: the duplicate is made before it is told. Pairs with the store of who closes.
        self.kept.load(Ordering::Acquire).checked_sub(1).map_or(fd, u32::cast_signed)
    }

    /// `shutdown()` of an attached connection. What the kernel does of it comes behind what the peer is told: who closes waits
    /// for that too, or it would be done to whatever has the number by then.
    ///
    /// # Errors
    ///
    /// The errno of the call.
    pub fn shuts_down(
        &'static self,
        w: &World,
        fd: i32,
        read: bool,
        write: bool,
    ) -> Result<(), i32> {
        let _ending = lock::lock(&self.ending);
        // Pairs with `await_calls`.
        full_fence();
        let fd = self.descriptor(fd);
        if fd < 0 {
            // The half is another connection's soon, if not by now.
            return Err(EBADF);
        }
        let how = if read && write { 2 } else { i32::from(write) };
        let by_kernel = || call::shutdown(self.descriptor(fd), how);
        self.shutdown(w, fd, read, write).unwrap_or_else(by_kernel)
    }

    /// For who does something in the kernel by a number that the table of descriptors leads here by, as it says after this: what
    /// closes it takes it out of the table first, and waits then until this is dropped. Nothing that others wait for with
    /// a lock is to be waited for meanwhile. `None`: this very thread has it, and a handler of its own has interrupted it;
    /// or another one does not give it back, which a handler has made wait for what we hold, or leave for good.
    #[must_use]
    pub fn by_number(&self) -> Option<lock::Held<'_>> {
        let mut held = lock::try_lock(&self.numbered);
        for _ in 0..NUMBERED_TRIES {
            if held.is_some() || !lock::outlast(&self.numbered, NUMBERED_NS) {
                break;
            }
            held = lock::try_lock(&self.numbered);
        }
        // Pairs with `await_calls`.
        full_fence();
        held
    }

    /// Waits for other threads that have sent, received or ended a direction, as the peer may have seen already, and have still
    /// to ring for it: the number by which they would may be another file's soon, which would get a doorbell among its
    /// bytes, and the half another connection's. Who comes after that finds [another number](Self::descriptor), or none. In the kernel a call has the file, whatever becomes of its number.
    pub fn await_calls(&self, w: &World) {
        // Either we see who has a lock, or he sees that the number goes. Pairs with `descriptor` and `by_number`.
        full_fence();
        let mut patience = CALLS_NS;
        let mut outlast = |word| {
            if !lock::outlast(word, patience) {
                // Once is enough.
                patience = 0;
            }
        };
        [&self.ending, &self.numbered].into_iter().for_each(&mut outlast);
        let Some((_, mine)) = self.my_half(w) else { return };
        // Who is not trusted could have each close take that long; and of those no two threads are at one.
        if w.board.map.is_foreign() {
            return;
        }
        [&mine.tx_lock, &mine.rx_lock, &mine.bell_lock].into_iter().for_each(outlast);
    }

    /// Whether another thread is attaching it, or switching our direction.
    pub(crate) fn others_are_at_it(&self) -> bool {
        // Acquire: what they have written. Pairs with the drop of the lock in `settle_client`.
        match self.counting.load(Ordering::Acquire) {
            0 => self.is_switching(),
            // Ours: we have interrupted it, in a handler.
            owner => owner != lock::tid(),
        }
    }

    /// Notes how much a connection has carried, and by which way.
    fn learn(&self, w: &World) {
        self.learn_of_destination(w);
        if self.phase() == Phase::Attached
            && let Some((_, peer)) = self.halves(w)
        {
            w.brief.ended(self.is_brief(w) && w.is_beside(peer));
        }
    }

    /// Of a connection that we have offered: whether that was of use. Not where the peer has had to ring for the only answer:
    /// then the kernel has carried as much as it would have.
    fn learn_of_destination(&self, w: &World) {
        let Some((_, mine)) = self.my_half(w) else { return };
        let is_ours = mine.client.load(Ordering::Relaxed) != 0
            && mine.slot.load(Ordering::Relaxed) == w.board.slot().unwrap_or(u32::MAX);
        // What has asked for nothing, or has taken its time, is no short connection, whatever it has gained.
        let lived = call::wall_ns().saturating_sub(mine.since.load(Ordering::Relaxed));
        let has_asked = self.tx.sent() != 0 || mine.n_tx.load(Ordering::Relaxed) != 0;
        if !is_ours || !w.limits.spare_short || !has_asked || lived > SHORT_NS {
            return;
        }
        let gained = match self.phase() {
            Phase::Attached => self.halves(w).is_some_and(|(_, peer)| {
                !self.is_brief(w) || peer.bells.load(Ordering::Relaxed) == 0
            }),
            Phase::Offered => false,
            _ => return,
        };
        let to = Place::of(Ends::read(mine).remote);
        w.spared.ended(to, gained, call::now_ns());
    }

    /// Whether it has carried one request at most so far, and a short answer.
    #[must_use]
    pub fn is_brief(&self, w: &World) -> bool {
        let Some((mine, _)) = self.halves(w) else { return true };
        let more = if mine.client.load(Ordering::Relaxed) != 0 {
            // The first request went before the attachment, unless the two have met early.
            mine.n_tx.load(Ordering::Relaxed) > u32::from(self.tx.sent() == 0)
        } else {
            let pieces = self.pieces.load(Ordering::Relaxed);
            pieces.saturating_add(mine.n_rx.load(Ordering::Relaxed)) > 1
        };
        // A peer that can write where we do can write anything.
        let bytes = [&mine.bytes_tx, &mine.bytes_rx].map(|n| n.load(Ordering::Relaxed));
        !more && bytes[0].saturating_add(bytes[1]) <= brief::BYTES_MAX
    }

    fn close_inherited(&self, w: &World, fd: i32, half: &Half) {
        let last = half.users.fetch_sub(1, Ordering::AcqRel) <= 1;
        if last && self.phase() == Phase::Attached {
            self.say_closed(w, fd, half);
            half.state.store(half_state::CLOSED, Ordering::Release);
        }
    }

    fn close_attached(&'static self, w: &World, fd: i32, index: u32, half: &Half) {
        if half.users.fetch_sub(1, Ordering::AcqRel) > 1 {
            // A child of ours goes on with it; its memory stays until we end.
            self.finish(w, index, half);
            return;
        }
        self.say_closed(w, fd, half);
        half.state.store(half_state::CLOSED, Ordering::Release);
        self.finish(w, index, half);
    }

    /// Tells the peer, and makes the kernel send what it would have sent.
    fn say_closed(&self, w: &World, fd: i32, half: &Half) {
        let Some((_, peer)) = self.halves(w) else { return };
        let peer_flags = peer.flags.load(Ordering::Acquire);
        let until = match peer_flags & (flag::UP | flag::DOWN) {
            flag::UP => ring::tail(&peer.tail),
            0 => half.head.load(Ordering::Relaxed),
            _ => peer.down_at.load(Ordering::Relaxed),
        };
        let unread = until != half.head.load(Ordering::Relaxed)
            || self.is_mixed(half, peer) && self.unread_in_tcp(half, peer, fd);
        let abort = self.options.load(Ordering::Relaxed) & options::ABORT != 0;
        // When both directions have ended there is no connection left to reset.
        let flags = half.flags.load(Ordering::Relaxed);
        let hints = self.kernel.load(Ordering::Relaxed);
        let doubtful = unread || abort || flags & DEAF == DEAF || hints & kernel::HUP != 0;
        let over = doubtful && peer_flags & flag::CLOSED == 0 && is_closed(fd);
        let both = peer_flags & flags & flag::SHUT != 0;
        self.take_bells(half, peer, fd);
        let reset = (unread || abort) && !both && !over;
        // Nobody holds the other end any more, and what it sent last is ours or lost: the two kernel
        // sockets need not part in four packets and a minute of TIME_WAIT.
        let alone = peer_flags & flag::CLOSED != 0;
        if reset || alone || abort {
            let now = i32::from(reset || alone);
            let _ = call::setsockopt(fd, SOL_SOCKET, SO_LINGER, [now, 0]);
        }
        let bits =
            flag::CLOSED | if reset { flag::RESET } else { 0 } | if over { flag::OVER } else { 0 };
        half.flags.fetch_or(bits, Ordering::Release);
        if Self::is_read_by_tcp(half, peer) && !reset && !alone {
            self.bells_come_in(half, peer, fd);
        }
        // Spinning peers see the flag, sleeping ones are woken by the FIN that follows.
        Self::rouse(w, half, peer);
    }

    /// Whether the socket holds bytes of the stream that nobody has read, besides doorbells.
    fn unread_in_tcp(&self, half: &Half, peer: &Half, fd: i32) -> bool {
        let announced = peer.bells.load(Ordering::Acquire);
        let bells = announced.wrapping_sub(half.drained.load(Ordering::Relaxed));
        call::ioctl_int(fd, SIOCINQ).is_ok_and(|n| n.cast_unsigned() > bells)
            // Urgent data, and what follows it, does not count before it is passed.
            || call::ioctl_int(fd, SIOCATMARK) == Ok(1)
    }

    pub(super) fn finish(&'static self, w: &World, index: u32, half: &Half) {
        if let Some((_, peer)) = self.halves(w) {
            unlink(w, half, peer);
        }
        if half.client.load(Ordering::Relaxed) == 1 {
            let word = w.board.map.offer_word(self.offer.load(Ordering::Relaxed));
            offer::clear(word, index);
        }
        if let Some(slot) = w.slot() {
            let t = &slot.totals;
            add64(&slot.closed, 1);
            for (total, n) in [(&t.bytes_tx, &half.bytes_tx), (&t.bytes_rx, &half.bytes_rx)] {
                add64(total, n.load(Ordering::Relaxed));
            }
            for (total, n) in [
                (&t.bells, &half.n_bells),
                (&t.sleeps, &half.n_sleeps),
                (&t.spins, &half.n_spins),
                (&t.stalls, &half.n_stalls),
                (&t.sends, &half.n_tx),
                (&t.receives, &half.n_rx),
            ] {
                add64(total, u64::from(n.load(Ordering::Relaxed)));
            }
        }
        w.holds_no_more(self);
        // A thread that has looked at the record just before goes on in the kernel, by the number that is closed next, and
        // not in a half that is another connection's by then.
        self.set_phase(Phase::Tcp);
        w.retire(index);
    }
}

#[cfg(test)]
mod tests;

//! Doorbells: a byte of TCP that wakes who sleeps at the other end.

use sys::wait::Sleep;

use super::*;

/// How long who closes waits for a doorbell that is on its way: its sender may have been interrupted between two
/// instructions. Nanoseconds.
const ON_ITS_WAY_NS: u64 = 20_000_000;
const EINTR: i32 = 4;
const EBADF: i32 = 9;
const ENOTSOCK: i32 = 88;

impl Conn {
    /// Wakes whoever waits at the other end, if it asked for it. `fd` leads here for as long as the caller has a lock for which
    /// a close [waits](Self::await_calls); -1: it has none.
    #[inline]
    pub fn notify(&self, w: &World, fd: i32, mine: &Half, peer: &Half) {
        match wait::look(&peer.wait) {
            WaitWord::Off => {}
            WaitWord::Warm(waiter) => {
                if let Some(sleep) = w.must_ring(waiter)
                    // A bell on a socket that the sleeper has closed wakes nobody, and would count as
                    // rung for this sleep: whoever else has something for it would keep silent.
                    && peer.flags.load(Ordering::Acquire) & flag::CLOSED == 0
                {
                    self.wake_loop(w, (waiter, sleep), fd, mine, peer);
                }
            }
            WaitWord::Cold(seq) => {
                if mine.rung.load(Ordering::Relaxed) != seq && self.ring_bell(fd, mine, peer) {
                    let _ = wait::end_naps(&mine.rung, seq);
                }
            }
            WaitWord::Nap(seq) => Self::end_naps_of_peer(mine, seq),
        }
    }

    /// Wakes the event loop of the other end.
    fn wake_loop(
        &self,
        w: &World,
        (waiter, sleep): (u32, Sleep),
        fd: i32,
        mine: &Half,
        peer: &Half,
    ) {
        match sleep {
            Sleep::Kernel(sleep) => {
                if self.ring_bell(fd, mine, peer) {
                    w.has_rung(waiter, sleep);
                }
            }
            // It is heard when the nap is over.
            Sleep::Nap(_) if naps::rings_bells_only() => {
                let _ = self.ring_bell(fd, mine, peer);
            }
            Sleep::Nap(_) => Self::end_nap_of_loop(w, mine, waiter),
        }
    }

    /// Sends one byte of TCP, announced before it is sent.
    #[cold]
    fn ring_bell(&self, fd: i32, mine: &Half, peer: &Half) -> bool {
        if mine.flags.load(Ordering::Acquire) & flag::UP == 0 {
            // Another thread may be sending by TCP: a doorbell would lie among its bytes. It rings when
            // our direction has switched. Either that sees that one waits, or we see that it has. Pairs with `go_up`.
            mine.flags.fetch_or(flag::UNRUNG, Ordering::SeqCst);
            full_fence();
            if mine.flags.load(Ordering::Acquire) & flag::UP == 0 {
                return false;
            }
            mine.flags.fetch_and(!flag::UNRUNG, Ordering::Relaxed);
        }
        #[cfg(feature = "watchdog")]
        if crate::watchdog::swallows() {
            return true;
        }
        // What is announced and what is sent must agree to the byte.
        let Some(_held) = lock::lock_of(&mine.bell_lock, &mine.lent) else { return false };
        // A close waits for who has a lock, and others may go on with the connection, whose peer nothing else wakes. Where it
        // has not waited, it was a handler's that has interrupted us.
        let is_led_here = fd >= 0 && self.phase() == Phase::Attached;
        let fd = if fd < 0 { self.own_fd(mine) } else { fd };
        let fd = if is_led_here { self.kept_or(fd) } else { self.descriptor(fd) };
        if fd < 0 || !switch::announce(&mine.flags, &mine.bells, &mine.bell_owed) {
            return false;
        }
        // Either we see that the peer has closed, or it sees what we have announced. Pairs with `bells_come_in`.
        full_fence();
        if peer.flags.load(Ordering::Acquire) & flag::CLOSED != 0 {
            switch::take_back(&mine.bells, &mine.bell_owed);
            return false;
        }
        // What is corked waits for more, or a fifth of a second, which with a ring full of bytes nothing ends.
        let corked = self.options.load(Ordering::Relaxed) & options::CORK != 0;
        if corked
            || mine.bells.load(Ordering::Relaxed) > 1
            || mine.up_at.load(Ordering::Relaxed) > 0
        {
            self.free_doorbells(fd);
        }
        match call::send(fd, &[BELL], MSG_DONTWAIT | MSG_NOSIGNAL) {
            Ok(_) => {
                mine.bell_owed.store(0, Ordering::Relaxed);
                add32(&mine.n_bells, 1);
                true
            }
            // No room in the socket; this one stays owed. There are unread bells, and the kernel wakes the peer for
            // those; or bytes from before the switch, which the peer reads, or it looks by itself: see `Conn::is_heard`.
            Err(11) => true,
            // Of these nothing is known of the connection, but that there is no more of it.
            Err(EPIPE | EINTR | EBADF | ENOTSOCK) => {
                self.kernel.fetch_or(kernel::HUP, Ordering::Relaxed);
                false
            }
            // The kernel tells it once, and has told us now: the program is to hear of it by its next call.
            Err(errno) => {
                self.take_error(errno);
                false
            }
        }
    }

    /// Before a socket is closed that the peer reads itself, and which has been said to be closed: a doorbell that came into
    /// it unread would make a reset, which takes what the peer has not read yet with it.
    pub(super) fn bells_come_in(&self, mine: &Half, peer: &Half, fd: i32) {
        full_fence();
        let deadline = call::now_ns() + ON_ITS_WAY_NS;
        // Who is not trusted could have each close take that long.
        let mut late = sys::foreign::holds(peer);
        loop {
            // Before the look at the socket: one that has been sent by then is in it. Doorbells are announced and sent under
            // this lock, and who takes it from now on sees that we have closed.
            let sent = peer.bell_lock.load(Ordering::Acquire) == 0;
            let last = sent || late || self.seems_gone(mine, peer) || Self::before(mine, peer) > 0;
            self.take_bells(mine, peer, fd);
            if last || mine.drained.load(Ordering::Relaxed) == switch::announced(&peer.bells) {
                return;
            }
            // Once more: we may have been stopped for longer than that.
            late = call::now_ns() > deadline;
            call::sched_yield();
        }
    }

    /// Whether the peer reads bytes of ours by its kernel, now or still.
    pub(super) fn is_read_by_tcp(mine: &Half, peer: &Half) -> bool {
        mine.flags.load(Ordering::Relaxed) & (flag::UP | flag::DOWN) != flag::UP
            || peer.tcp_rx.load(Ordering::Relaxed) < mine.up_at.load(Ordering::Relaxed)
    }
}

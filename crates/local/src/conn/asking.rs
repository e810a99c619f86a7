//! Asking the kernel whether the peer is still there, for who neither waits nor polls: one that was killed, or has ended
//! without closing, has said nothing of it in memory.

use super::{
    AtomicU32, AtomicU64, Conn, Half, MSG_DONTWAIT, MSG_PEEK, Ordering, call, kernel, naps,
};

/// How often the kernel is asked at most, nanoseconds.
const ASK_NS: u64 = 1_000_000;
/// Calls that come faster than that do without the clock for so many more, at most.
const UNTIMED_MAX: u32 = 15;

/// What calls of one kind have left to be known of the peer. Threads that lose an update to each other ask once more, or a
/// little later.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// Messages that had come by the last call: as long as more come the peer is there.
    heard: AtomicU32,
    /// Calls that do without the clock, of those to come, and of those that were to come last time.
    untimed: AtomicU32,
    untimed_last: AtomicU32,
    /// When the peer was known to be there; 0: not looked at yet.
    at: AtomicU64,
    /// How far the peer had read then.
    read: AtomicU64,
}

impl Asking {
    pub(super) fn reset(&self) {
        for word in [&self.heard, &self.untimed, &self.untimed_last] {
            word.store(0, Ordering::Relaxed);
        }
        self.at.store(0, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
    }

    /// Whether nothing has come since the last call that asked this.
    #[inline]
    fn is_quiet(&self, mine: &Half) -> bool {
        let heard = mine.n_rx.load(Ordering::Relaxed);
        let quiet = self.heard.load(Ordering::Relaxed) == heard;
        if !quiet {
            self.heard.store(heard, Ordering::Relaxed);
        }
        quiet
    }

    /// Whether the kernel was not asked for so long. The clock is not read each time where calls come fast.
    fn is_time_now_and_then(&self, now: impl FnOnce() -> u64) -> bool {
        if let Some(less) = self.untimed.load(Ordering::Relaxed).checked_sub(1) {
            self.untimed.store(less, Ordering::Relaxed);
            return false;
        }
        let late = self.is_time(now);
        let last = self.untimed_last.load(Ordering::Relaxed);
        let next = if late { 0 } else { (last * 2 + 1).min(UNTIMED_MAX) };
        self.untimed_last.store(next, Ordering::Relaxed);
        self.untimed.store(next, Ordering::Relaxed);
        late
    }

    /// Whether the kernel was not asked for so long; then it is to be.
    fn is_time(&self, now: impl FnOnce() -> u64) -> bool {
        let (now, at) = (now(), self.at.load(Ordering::Relaxed));
        let late = now.wrapping_sub(at) >= ASK_NS;
        if late {
            self.at.store(now, Ordering::Relaxed);
        }
        late && at != 0
    }
}

impl Conn {
    /// Before a send that may follow others which nobody has read. While the peer reads, or says something, it costs nothing
    /// worth mentioning; the kernel is asked when it has not read anything for a while, and it could have.
    #[inline]
    pub(super) fn misses_reader(&self, fd: i32, mine: &Half, peer: &Half) {
        if self.asking[0].is_quiet(mine) {
            self.looks_for_reader(fd, mine, peer);
        }
    }

    #[cold]
    fn looks_for_reader(&self, fd: i32, mine: &Half, peer: &Half) {
        let asking = &self.asking[0];
        if asking.is_time_now_and_then(call::now_ns) {
            let read = peer.head.load(Ordering::Relaxed);
            let stands = asking.read.swap(read, Ordering::Relaxed) == read;
            if stands && read != mine.sent.load(Ordering::Relaxed) {
                self.ask(fd);
            }
        }
    }

    /// Before a send says that there is no room: asks the kernel, unless that was done just before. `true`: it has news.
    pub(super) fn hears_when_full(&self, fd: i32) -> bool {
        self.asking[0].is_time(call::now_ns) && self.ask(fd)
    }

    /// Whether a receive that has found nothing is to ask the kernel: who only looks means to know now, and who only tries
    /// by and by, as long as nothing comes.
    pub(super) fn misses_sender(&self, mine: &Half, flags: i32) -> bool {
        let asking = &self.asking[1];
        let quiet = asking.is_quiet(mine);
        let may = !naps::rings_bells_only();
        if flags & (MSG_DONTWAIT | MSG_PEEK) != 0 {
            let is_first = asking.at.load(Ordering::Relaxed) == 0;
            let asks = quiet || is_first || flags & MSG_PEEK != 0;
            return may && asks && (asking.is_time(call::now_ns) || is_first);
        }
        may && quiet && asking.is_time_now_and_then(call::now_ns)
    }

    /// Asks the kernel how the socket is, and takes nothing from it. `true`: it has something to say. Not for who has
    /// restricted its calls: this one its code may not make.
    pub(super) fn ask(&self, fd: i32) -> bool {
        if naps::rings_bells_only() {
            return false;
        }
        let [ended, hung_up, failed] = call::ends_of(fd);
        let bit = |is: bool, bit: u32| if is { bit } else { 0 };
        let bits = bit(ended, kernel::RDHUP) | bit(hung_up, kernel::HUP) | bit(failed, kernel::ERR);
        if bits != 0 {
            self.kernel.fetch_or(bits, Ordering::Relaxed);
        }
        bits != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::taken::tests::ends;

    /// Who tries again behind each message that it has got.
    #[test]
    fn the_kernel_is_not_asked_by_tries_between_messages_that_come() {
        let [_client, server] = ends();
        assert!(server.settle(true));
        let (_, mine) = server.conn.my_half(server.w).unwrap();
        let asks = |flags: i32, comes: u32| {
            mine.n_rx.fetch_add(comes, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_nanos(2 * ASK_NS));
            server.conn.misses_sender(mine, flags)
        };
        assert!(asks(MSG_DONTWAIT, 1), "it is the first");
        assert!((0..5).all(|_| !asks(MSG_DONTWAIT, 1)));
        assert!((0..5).all(|_| asks(MSG_DONTWAIT, 0)));
        assert!((0..5).all(|_| asks(MSG_DONTWAIT | MSG_PEEK, 1)), "who looks wants to know");
    }

    #[test]
    fn what_comes_fast_reads_the_clock_seldom_and_what_comes_slowly_asks_each_time() {
        let asking = Asking::default();
        let mut reads = 0;
        let mut ask = |now: u64| {
            asking.is_time_now_and_then(|| {
                reads += 1;
                now
            })
        };
        assert!(!ask(5 * ASK_NS), "nothing is known yet");
        let asked = (0..200_000).filter(|i| ask(5 * ASK_NS + i * 100)).count();
        assert!((10..=20).contains(&asked), "{asked} times in 20 ms");
        let mut now = 100 * ASK_NS;
        // The clock is found again soon.
        assert!((0..=UNTIMED_MAX).any(|_| ask(now)));
        for _ in 0..5 {
            now += ASK_NS;
            assert!(ask(now));
        }
        assert!(reads < 200_000 / 10, "{reads} looks at the clock");
    }
}

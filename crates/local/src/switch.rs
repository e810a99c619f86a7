//! The words by which a direction changes its way at an exact byte, and the order in which they are
//! written and read.
//!
//! Apart from the rest of a connection, so that loom runs this very code: see `switch/models.rs`.
//!
//! ```text
//! up      sender: busy += 1, fence, rising? then not by TCP     busy -= 1 after the bytes counted
//!         riser:  rising := 1, fence, busy or users? not now    up_at := sent, then UP
//!         fork:   users += 1, fence, rising? then wait for it   the child is made
//! down    reader: WANT_DOWN, head stands still                  sees DOWN: TCP, behind the bells
//!         sender: ANSWERING, fence, still wanted?               down_at := head, then DOWN
//! thaw    reader: WANT_DOWN taken back, fence, ANSWERING or DOWN? then wanted again
//! ```

use sys::abi::half_flags as flag;
use sys::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Values of [`Sending::rising`].
const ON_TCP: u32 = 0;
const RISING: u32 = 1;
const IN_RING: u32 = 2;

/// How our own direction leaves TCP: this process's view, shared by its threads.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    /// Calls that are sending by TCP at the moment.
    busy: AtomicU32,
    rising: AtomicU32,
    /// Bytes sent by TCP so far.
    sent: AtomicU64,
    /// 1: a send has ended without having said what it moved, so only the kernel knows `sent`.
    unsure: AtomicU32,
}

impl Sending {
    /// As for a new socket.
    #[cfg(not(loom))]
    pub(crate) fn reset(&self) {
        self.busy.store(0, Ordering::Relaxed);
        self.rising.store(ON_TCP, Ordering::Relaxed);
        self.sent.store(0, Ordering::Relaxed);
        self.unsure.store(0, Ordering::Relaxed);
    }

    /// Bytes sent by TCP so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// What the kernel has counted, where our own count may be wrong.
    pub(crate) fn correct(&self, sent: u64) {
        self.sent.store(sent, Ordering::Relaxed);
    }

    /// Nobody but the kernel knows `sent` from here on.
    pub(crate) fn doubt(&self) {
        self.unsure.store(1, Ordering::Relaxed);
    }

    /// Whether the kernel will be asked for `sent` when the direction switches.
    #[cfg(not(loom))]
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.unsure.load(Ordering::Relaxed) != 0
    }

    /// A send by TCP begins; `false`: it must not, for the direction is about to switch or has
    /// switched, or `held` says so.
    pub(crate) fn begins(&self, held: impl FnOnce() -> bool) -> bool {
        self.busy.fetch_add(1, Ordering::Relaxed);
        // Either we see that somebody switches, or he sees that we send. Pairs with `is_idle`.
        fence(Ordering::SeqCst);
        if held() || self.rising.load(Ordering::Relaxed) != ON_TCP {
            // `sent` is not touched: who switches may be writing it.
            self.busy.fetch_sub(1, Ordering::Release);
            return false;
        }
        true
    }

    /// A send by TCP has ended, and moved `n` bytes.
    pub(crate) fn ends(&self, n: usize) {
        self.sent.fetch_add(n as u64, Ordering::Relaxed);
        // Release: the count, before nobody is sending any more. Pairs with `is_idle`.
        self.busy.fetch_sub(1, Ordering::Release);
    }

    /// A send by TCP that has begun is not made. The record may have been made ready for another connection since, of
    /// which nobody has begun to send.
    pub(crate) fn was_none(&self) {
        let less = |n: u32| n.checked_sub(1);
        let _ = self.busy.fetch_update(Ordering::Release, Ordering::Relaxed, less);
    }

    /// A send by TCP was left in the middle, by a jump out of a signal handler or because its thread was cancelled:
    /// what it has moved is not known.
    pub(crate) fn left(&self) {
        self.doubt();
        // Release: that it is not known, before nobody is sending any more. Pairs with `is_idle`.
        self.busy.fetch_sub(1, Ordering::Release);
    }

    /// Whether nobody is sending by TCP, to be asked after others were told not to begin.
    pub(crate) fn is_idle(&self) -> bool {
        // Pairs with `begins`.
        fence(Ordering::SeqCst);
        // Acquire: what those who sent have counted. Pairs with `ends`.
        self.busy.load(Ordering::Acquire) == 0
    }

    /// Whether a thread is switching at this moment: to be asked after `users` says that there is a process more, and
    /// before there is one.
    pub(crate) fn is_rising(&self) -> bool {
        // Pairs with the fence of `is_idle` in `rise`.
        fence(Ordering::SeqCst);
        // Acquire: that it has switched. Pairs with `rise`.
        self.rising.load(Ordering::Acquire) == RISING
    }

    /// To be called in a forked child: whoever tried to switch at that moment does so in the parent, in vain since there
    /// is another user, and nobody here would say that it is over.
    pub(crate) fn forked(&self) {
        let (tried, relaxed) = (RISING, Ordering::Relaxed);
        let _ = self.rising.compare_exchange(tried, ON_TCP, relaxed, relaxed);
    }

    /// Switches to the ring, at the byte that comes next, unless somebody is still sending by TCP.
    /// `flags`, `up_at` and `users` are our half's: another process that holds it too may be sending by TCP, of which
    /// we know nothing. `counted` is how much the kernel was given, asked for only where we do not know, and while
    /// nobody is sending. `true`: the direction has switched by this call.
    pub(crate) fn rise(
        &self,
        flags: &AtomicU32,
        up_at: &AtomicU64,
        users: &AtomicU32,
        counted: impl FnOnce() -> Option<u64>,
    ) -> bool {
        let mine =
            self.rising.compare_exchange(ON_TCP, RISING, Ordering::Relaxed, Ordering::Relaxed);
        if mine.is_err() {
            return false;
        }
        // Acquire: what others have sent before they left.
        let alone = || users.load(Ordering::Acquire) <= 1;
        let idle = self.is_idle() && alone() && self.is_sure(counted);
        if idle {
            up_at.store(self.sent(), Ordering::Relaxed);
            // Release: the offset before the flag. Pairs with `risen`.
            flags.fetch_or(flag::UP, Ordering::Release);
        }
        // Release: that it has switched. Pairs with `is_rising`.
        self.rising.store(if idle { IN_RING } else { ON_TCP }, Ordering::Release);
        idle
    }

    /// Whether `sent` is right, now that nobody is sending and nobody can begin to.
    fn is_sure(&self, counted: impl FnOnce() -> Option<u64>) -> bool {
        if self.unsure.load(Ordering::Relaxed) != 0 {
            let Some(sent) = counted() else { return false };
            self.correct(sent);
            self.unsure.store(0, Ordering::Relaxed);
        }
        true
    }

    /// Takes the switch back that no peer has been told of.
    #[cfg(not(loom))]
    pub(crate) fn fall(&self) {
        self.rising.store(ON_TCP, Ordering::Relaxed);
    }
}

/// The TCP offset at which the peer's bytes go on in its ring, once the peer has said it.
#[inline]
pub(crate) fn risen(flags: &AtomicU32, up_at: &AtomicU64) -> Option<u64> {
    // Acquire: the offset that goes with the flag. Pairs with `rise`.
    (flags.load(Ordering::Acquire) & flag::UP != 0).then(|| up_at.load(Ordering::Relaxed))
}

/// Our bytes go on in TCP from the ring offset `at` on.
pub(crate) fn go_down(flags: &AtomicU32, down_at: &AtomicU64, at: u64) {
    down_at.store(at, Ordering::Relaxed);
    // Release: the offset before the flag. Pairs with `fallen`.
    flags.fetch_or(flag::DOWN, Ordering::Release);
}

/// The ring offset at which the peer's bytes go on in TCP, once the peer has said it.
#[inline]
pub(crate) fn fallen(flags: &AtomicU32, down_at: &AtomicU64) -> Option<u64> {
    // Acquire: the offset that goes with the flag. Pairs with `go_down`.
    (flags.load(Ordering::Acquire) & flag::DOWN != 0).then(|| down_at.load(Ordering::Relaxed))
}

/// We want the peer to go back to TCP, and leave our `head` where it is. The caller holds the
/// receive lock, so that nobody is taking bytes at this moment.
pub(crate) fn freeze(flags: &AtomicU32) {
    // Release: where the head stands. Pairs with `answer`.
    flags.fetch_or(flag::WANT_DOWN, Ordering::Release);
}

/// The offset at which a peer that wants us down has frozen its `head`, and will leave it: the
/// caller, who holds the send lock, must [`go_down`]. `None`: it has thought better of it.
pub(crate) fn answer(
    flags: &AtomicU32,
    peer_flags: &AtomicU32,
    peer_head: &AtomicU64,
) -> Option<u64> {
    loop {
        flags.fetch_or(flag::ANSWERING, Ordering::Relaxed);
        // Either the peer sees that we answer, or we see that it has taken its wish back. Pairs
        // with `thaw`.
        fence(Ordering::SeqCst);
        // Acquire: where the head stands. Pairs with `freeze`.
        if peer_flags.load(Ordering::Acquire) & flag::WANT_DOWN != 0 {
            return Some(peer_head.load(Ordering::Acquire));
        }
        flags.fetch_and(!flag::ANSWERING, Ordering::Relaxed);
        // A peer that saw us answer wants it again: pairs with `thaw` as well.
        fence(Ordering::SeqCst);
        if peer_flags.load(Ordering::Relaxed) & flag::WANT_DOWN == 0 {
            return None;
        }
    }
}

/// Takes [`freeze`] back; the caller holds the receive lock. `false`: the peer is answering at this
/// moment, or has answered; the head stays where it is, and its bytes will come by TCP.
pub(crate) fn thaw(
    flags: &AtomicU32,
    peer_flags: &AtomicU32,
    mut patience: impl FnMut() -> bool,
) -> bool {
    loop {
        flags.fetch_and(!flag::WANT_DOWN, Ordering::Relaxed);
        // Pairs with the first fence of `answer`.
        fence(Ordering::SeqCst);
        if peer_flags.load(Ordering::Relaxed) & (flag::ANSWERING | flag::DOWN) == 0 {
            return true;
        }
        freeze(flags);
        // Pairs with the second fence of `answer`.
        fence(Ordering::SeqCst);
        loop {
            let now = peer_flags.load(Ordering::Relaxed);
            if now & flag::DOWN != 0 {
                return false;
            }
            if now & flag::ANSWERING == 0 {
                break;
            }
            if !patience() {
                return false;
            }
        }
    }
}

/// Announces a doorbell, which must then be sent: a reader takes at most as many as were announced
/// out of the TCP stream. The caller holds the bell lock. `false`: our direction is back on TCP,
/// where a doorbell would stand among the bytes of the program.
pub(crate) fn announce(flags: &AtomicU32, bells: &AtomicU32, owed: &AtomicU32) -> bool {
    // `DOWN` is set under the same lock.
    if flags.load(Ordering::Relaxed) & flag::DOWN != 0 {
        return false;
    }
    if owed.load(Ordering::Relaxed) == 0 {
        let n = bells.load(Ordering::Relaxed);
        // Release: announced before it is there to be read. Pairs with `announced`.
        bells.store(n.wrapping_add(1), Ordering::Release);
        owed.store(1, Ordering::Relaxed);
    }
    true
}

/// Takes the announcement of a doorbell back that was not sent. The caller holds the bell lock, and nobody reads any more.
pub(crate) fn take_back(bells: &AtomicU32, owed: &AtomicU32) {
    if owed.swap(0, Ordering::Relaxed) != 0 {
        let n = bells.load(Ordering::Relaxed);
        bells.store(n.wrapping_sub(1), Ordering::Release);
    }
}

/// Doorbells that the peer has announced.
#[inline]
pub(crate) fn announced(bells: &AtomicU32) -> u32 {
    bells.load(Ordering::Acquire)
}

#[cfg(all(test, loom))]
mod models;

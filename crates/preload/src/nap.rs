//! A short sleep of who waits for one connection alone: see [`Conn::may_nap`]; and what those who wait for more have learnt.

use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;

use local::conn::{Conn, Naps};
use local::world::World;
use sys::abi::Half;
use sys::sync::{AtomicU32, AtomicU64, Ordering};
use sys::{call, handler, lock};

use crate::finally::Finally;
use crate::left::{self, Wait};
use crate::symbols::{self, Begin};
use crate::{io, ready, sandbox};

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nap {
    /// None was taken, or nothing has ended it: to sleep by the kernel comes next.
    Over,
    /// Something may have come.
    Woken,
    /// A signal handler has run: the call ends with `EINTR`.
    Interrupted,
}

/// How a wait ends behind a signal handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// Always, as `poll`.
    Ends,
    /// If the handler does not say `SA_RESTART`, as `recv` without a time limit.
    MayGoOn,
}

/// The longest nap, nanoseconds.
pub(crate) fn longest_ns(w: &World) -> u64 {
    u64::try_from(w.limits.nap.as_nanos()).unwrap_or(0)
}

/// Sleeps for so many nanoseconds at most. `moved`: whether what is waited for is there. `room`: that is room in our ring,
/// or may be. The caller holds the connection.
pub(crate) fn nap(
    w: &'static World,
    conn: &'static Conn,
    (mine, peer): (&Half, &Half),
    room: bool,
    (ns, behind): (u64, Behind),
    moved: impl Fn() -> bool,
) -> Nap {
    // A program that has restricted its calls may be killed for one that it does not make.
    if ns == 0
        || !sandbox::may_make_sockets()
        || behind == Behind::MayGoOn && !goes_on()
        || !conn.may_nap(mine, peer)
    {
        return Nap::Over;
    }
    cancelled();
    let ns = of_about(ns);
    let mark = left::begin_inside(handler::here());
    let seen = {
        let _held = lock::lock(&mine.wait_lock);
        if ready::is_in_a_set(w, conn, mine) {
            return Nap::Over;
        }
        let Some(seen) = conn.arm_nap(mine, peer) else { return Nap::Over };
        mine.sleepers.fetch_add(1, Ordering::AcqRel);
        mark.now(Wait::Sleep(conn));
        seen
    };
    let asleep = Finally(|| {
        mark.now(Wait::Nothing);
        io::wake_up(w, conn, mine);
    });
    let ready = moved() || !Conn::ends_naps(peer) || room && !conn.wait_for_room(mine, peer);
    let ended = if ready {
        Ok(())
    } else {
        io::count(&mine.n_sleeps);
        conn.nap(peer, seen, ns, behind == Behind::MayGoOn)
    };
    drop(asleep);
    drop(mark);
    cancelled();
    match ended {
        Ok(()) => Nap::Woken,
        Err(libc::EINTR) => Nap::Interrupted,
        Err(errno) => {
            if behind == Behind::MayGoOn && matches!(errno, libc::ENOSYS | libc::EPERM) {
                GOES_ON.store(NO, Ordering::Relaxed);
            }
            Nap::Over
        }
    }
}

/// Sleeps while a word of this process's own has this value, for so many nanoseconds at most.
pub(crate) fn pause(
    word: &AtomicU32,
    value: u32,
    ns: u32,
    behind: Behind,
) -> Result<(), std::ffi::c_int> {
    if behind == Behind::MayGoOn && sandbox::may_make_sockets() && goes_on() {
        match call::futex_wait_on(word, value, call::now_ns() + u64::from(ns)) {
            Err(libc::ENOSYS | libc::EPERM) => GOES_ON.store(NO, Ordering::Relaxed),
            ended => return ended,
        }
    }
    let limit = libc::timespec { tv_sec: 0, tv_nsec: ns.into() };
    call::futex_wait(word, value, Some(limit))
}

/// How long who waits for several things may nap now, nanoseconds, where so many are `left`; 0: not at all.
pub(crate) fn longest_of_many(w: &World, left: Option<u64>) -> u64 {
    let longest = longest_ns(w) / PART;
    let ns = left.map_or(longest, |left| if left < LIMIT_NS { 0 } else { longest.min(left / 2) });
    if ns < SHORTEST_NS { 0 } else { of_about(ns) }
}

/// How long one is to be that may be so long. Not the same each time: a timer of the program's for just as long would often
/// meet the moment between the nap and the sleep, in which its handler ends neither.
pub(crate) fn of_about(ns: u64) -> u64 {
    ns - call::now_ns() % (ns / 8 + 1)
}

/// What sleeps for several things at once have taught: of a set, or of a thread that polls.
#[derive(Default)]
pub(crate) struct Learnt {
    /// Whether peers end them.
    naps: Naps,
    /// Waits that have to come yet without a word of the kernel's, before the next nap.
    without: AtomicU32,
    /// How many there have to be after each, less [`CALM`].
    more: AtomicU32,
    /// When the last nap was over, nanoseconds. 0: nothing is to be learnt of it any more.
    over: AtomicU64,
}

/// Waits in a row without a word of the kernel's, before the next nap.
const CALM: u32 = 64;
/// The same where such a word has had to wait for the end of a nap: eight times as many for each, up to so many.
const CALM_MAX: u32 = 1 << 16;
/// Which part of the longest nap of who waits for one connection alone: an event of which only the kernel knows is late by
/// that at most, once in so many waits.
const PART: u64 = 5;
/// Who has to come back sooner than that does not nap, nanoseconds: time limits are rounded up behind a nap as well.
const LIMIT_NS: u64 = 20_000_000;
/// A nap that could last no longer than this is not taken, nanoseconds.
pub(crate) const SHORTEST_NS: u64 = 500_000;
/// What the kernel says so soon after a nap has been there before, nanoseconds.
const SOON_NS: u64 = 100_000;

impl Learnt {
    /// The kernel had something to say that no peer can, or will.
    pub(crate) fn kernel_told(&self) {
        self.told_at(call::now_ns());
    }

    fn told_at(&self, now: u64) {
        let mut more = self.more.load(Ordering::Relaxed);
        let over = self.over.swap(0, Ordering::Relaxed);
        if over != 0 && now.saturating_sub(over) < SOON_NS {
            more = ((more + CALM) * 8).min(CALM_MAX);
            self.more.store(more, Ordering::Relaxed);
        }
        // SeqCst: either who is about to nap sees it, or we see that it naps. Pairs with `Set::nap`.
        self.without.store(CALM + more, Ordering::SeqCst);
    }

    /// A connection was attached: what the kernel has said before may have been of that one. Unless that was believed before,
    /// and something else had to wait for the end of a nap.
    pub(crate) fn attached(&self) {
        if self.more.load(Ordering::Relaxed) == 0 {
            self.without.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_disturbed(&self) -> bool {
        self.without.load(Ordering::SeqCst) > 0
    }

    /// Whether this wait is to begin with a nap.
    pub(crate) fn pay(&self) -> bool {
        let without = self.without.load(Ordering::Relaxed);
        if without > 0 {
            // Another thread may say more at the same time.
            let less = without - 1;
            let (set, fail) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.without.compare_exchange(without, less, set, fail);
            return false;
        }
        self.naps.pay()
    }

    pub(crate) fn ended(&self, late: bool) {
        self.ended_at(late, call::now_ns());
    }

    fn ended_at(&self, late: bool, now: u64) {
        self.naps.ended(late);
        self.over.store(now, Ordering::Relaxed);
    }
}

/// Whether there is a nap that goes on behind signal handlers: the kernel has it, and it is no call that a filter may kill
/// the program for.
fn goes_on() -> bool {
    GOES_ON.load(Ordering::Relaxed) == YES
}

/// Whether whoever has started the program has restricted its calls is asked before it can do so itself. And what is looked up
/// here need not be later, when a handler may jump away from whoever is at it.
pub(crate) fn ask_once() {
    GOES_ON.store(if call::begins_filtered() { NO } else { YES }, Ordering::Relaxed);
    let at = symbols::find(c"pthread_testcancel", Begin::BehindUs);
    TEST_CANCEL.store(at, Ordering::Relaxed);
}

/// What is done in the program's place is a cancellation point, as `recv` and `poll` are: where they begin, whatever they find,
/// and where they sleep.
pub(crate) fn cancelled() {
    let at = TEST_CANCEL.load(Ordering::Relaxed);
    // SAFETY: libc's function of that name, or null, which is `None`: nobody is cancelled then.
    let function: Option<unsafe extern "C-unwind" fn()> = unsafe { std::mem::transmute(at) };
    if let Some(function) = function {
        // SAFETY: it unwinds from here, if it does, as from the calls of libc that wait.
        unsafe { function() }
    }
}

/// libc's `pthread_testcancel`; null: it is not known.
static TEST_CANCEL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static GOES_ON: AtomicU32 = AtomicU32::new(0);
const YES: u32 = 1;
const NO: u32 = 2;

#[cfg(test)]
mod tests {
    use super::{CALM, CALM_MAX, Learnt, Ordering, SOON_NS};

    /// Waits without a nap that come next.
    fn without(learnt: &Learnt) -> u32 {
        (0..).take_while(|_| !learnt.pay()).count().try_into().expect("not many")
    }

    #[test]
    fn what_the_kernel_says_is_followed_by_waits_without_naps() {
        let learnt = Learnt::default();
        assert_eq!(without(&learnt), 0);
        learnt.kernel_told();
        assert!(learnt.is_disturbed());
        assert_eq!(without(&learnt), CALM);
        assert!(!learnt.is_disturbed());
    }

    #[test]
    fn by_many_more_where_it_had_to_wait_for_the_end_of_a_nap() {
        let learnt = Learnt::default();
        for waits in [CALM * 9, CALM * 73] {
            // Whoever has ended it.
            learnt.ended_at(false, 5);
            learnt.told_at(SOON_NS);
            assert_eq!(without(&learnt), waits);
            // What comes later need not have waited.
            learnt.ended_at(false, 5);
            learnt.told_at(5 + SOON_NS);
            assert_eq!(without(&learnt), waits);
        }
        for _ in 0..9 {
            learnt.ended_at(false, 5);
            learnt.told_at(SOON_NS);
        }
        assert!(learnt.without.load(Ordering::Relaxed) <= CALM + CALM_MAX);
    }

    #[test]
    fn a_connection_that_was_attached_explains_it_once() {
        let learnt = Learnt::default();
        learnt.kernel_told();
        learnt.attached();
        assert_eq!(without(&learnt), 0);
        learnt.ended_at(false, 5);
        learnt.told_at(SOON_NS);
        learnt.attached();
        assert!(without(&learnt) > 0);
    }
}

//! How a half wants to be woken, and the order of stores and loads that loses no wake-up.
//!
//! The sleeper arms, fences, looks once more, and only then sleeps. The waker publishes, fences,
//! and only then looks whether anybody sleeps. One of them always sees the other:
//!
//! ```text
//! sleeper                         waker
//! wait := armed                   tail := new
//! fence                           fence
//! tail moved? then do not sleep   armed? then ring
//! ```

use crate::sync::{AtomicU32, AtomicU64, Ordering, full_fence};

/// How a half wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitWord {
    /// Not at all: the owner is awake and looks by itself before it sleeps.
    Off,
    /// Through the event loop of that number (slot times `WAITERS` plus index), when that sleeps.
    Warm(u32),
    /// By one doorbell for each new sequence number.
    Cold(u32),
    /// By the futex of the waker's own word for the number that it was woken for last, once for each new number: a nap,
    /// which ends by itself soon.
    Nap(u32),
}

impl WaitWord {
    /// As the word in shared memory.
    #[must_use]
    pub const fn emit(self) -> u64 {
        match self {
            Self::Off => 0,
            Self::Warm(waiter) => 1 | (waiter as u64) << 32,
            Self::Cold(seq) => 2 | (seq as u64) << 32,
            Self::Nap(seq) => 3 | (seq as u64) << 32,
        }
    }

    /// From the word in shared memory. What makes no sense is `Off`: a peer that writes nonsense
    /// only goes without doorbells.
    #[must_use]
    pub const fn parse(word: u64) -> Self {
        let number = (word >> 32) as u32;
        match word & 3 {
            1 => Self::Warm(number),
            2 => Self::Cold(number),
            3 => Self::Nap(number),
            _ => Self::Off,
        }
    }
}

/// Says how we want to be woken. After this the caller looks once more before it sleeps.
pub fn arm(wait: &AtomicU64, word: WaitWord) {
    // Relaxed is enough: the fence orders it before the caller's next look.
    wait.store(word.emit(), Ordering::Relaxed);
    // Either the peer sees how to wake us, or we see what it published. Pairs with `look`.
    full_fence();
}

/// [`arm`] for a nap; answers what the peer's word `rung` must still be when the nap begins. After this the caller looks
/// once more.
#[must_use]
pub fn arm_nap(wait: &AtomicU64, seq: u32, rung: &AtomicU32) -> u32 {
    // Acquire: before the caller's look. A peer that rings after it, for us or for another thread of ours that has armed
    // since, changes the word, and we do not sleep.
    let seen = rung.load(Ordering::Acquire);
    arm(wait, WaitWord::Nap(seq));
    seen
}

/// Notes that the naps up to this number are over; `true`: whoever sleeps by the futex of `rung` is to be woken.
#[must_use]
pub fn end_naps(rung: &AtomicU32, seq: u32) -> bool {
    let mut now = rung.load(Ordering::Relaxed);
    loop {
        // A waker that comes late must not put the word back to what a later nap has seen in it. That nap has looked after
        // what the late one has published. Others end naps too: those of a process that was forked, and who reads.
        if now.wrapping_sub(seq) < LATE {
            return false;
        }
        // Release: before the wake-up, as the futex orders it.
        match rung.compare_exchange(now, seq, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
}

/// By how many naps a waker may be late. What lies further back comes from another use of the words.
const LATE: u32 = 1 << 20;

/// Asks how the peer wants to be woken, after something was published for it.
#[must_use]
pub fn look(wait: &AtomicU64) -> WaitWord {
    // Pairs with `arm` and with `fall_asleep`.
    full_fence();
    WaitWord::parse(wait.load(Ordering::Relaxed))
}

/// How the waiter of an event loop sleeps, and which of its sleeps that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// In the kernel: a doorbell wakes it.
    Kernel(u32),
    /// By the futex of its own word: [`end_nap`], and a wake-up of that futex.
    Nap(u32),
}

/// The two low bits of a waiter's word say what it does, the others count its sleeps.
const DOES: u32 = 3;
const SLEEPS: u32 = 1;
const NAPS: u32 = 3;
const NEXT: u32 = 4;

/// Marks a waiter as about to sleep; answers which sleep that is. After this the caller looks at all it waits for once more.
pub fn fall_asleep(sleeping: &AtomicU32) -> u32 {
    falls(sleeping, SLEEPS)
}

/// Marks a waiter as about to nap; answers what its word must still be when it does. After this the caller looks at all it
/// waits for once more.
#[must_use]
pub fn nap(sleeping: &AtomicU32) -> u32 {
    falls(sleeping, NAPS)
}

fn falls(sleeping: &AtomicU32, how: u32) -> u32 {
    let now = sleeping.load(Ordering::Relaxed);
    let sleep = (now & !DOES).wrapping_add(NEXT) | how;
    // Only the thread that waits begins a sleep; others end naps, of which the last one is over. Release: which connections
    // it has closed, before the sleep that they cannot end. Pairs with `asleep`.
    sleeping.store(sleep, Ordering::Release);
    // Pairs with the fence in `look`.
    full_fence();
    sleep
}

/// Marks a waiter as awake again, if it still is in that sleep: another one may have been given its word meanwhile.
pub fn awake_from(sleeping: &AtomicU32, sleep: u32) {
    let _ = end_nap(sleeping, sleep);
}

/// Marks a waiter as awake again, whatever it does.
pub fn awake(sleeping: &AtomicU32) {
    let now = sleeping.load(Ordering::Relaxed);
    sleeping.store((now & !DOES).wrapping_add(NEXT), Ordering::Relaxed);
}

/// The sleep that the waiter is in, if it sleeps. To be asked after [`look`].
#[must_use]
pub fn asleep(sleeping: &AtomicU32) -> Option<Sleep> {
    // Acquire: pairs with `fall_asleep` and `nap`.
    let now = sleeping.load(Ordering::Acquire);
    match now & DOES {
        SLEEPS => Some(Sleep::Kernel(now)),
        NAPS => Some(Sleep::Nap(now)),
        _ => None,
    }
}

/// Ends that nap; `true`: whoever sleeps by the futex of `sleeping` is to be woken, and nobody else does it.
#[must_use]
pub fn end_nap(sleeping: &AtomicU32, nap: u32) -> bool {
    // Fails if it is over: the waiter has looked again after what is to wake it. Release: before the wake-up, as the futex
    // orders it.
    sleeping.compare_exchange(nap, nap & !DOES, Ordering::Release, Ordering::Relaxed).is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_trip() {
        for word in [
            WaitWord::Off,
            WaitWord::Warm(0),
            WaitWord::Warm(32767),
            WaitWord::Cold(u32::MAX),
            WaitWord::Nap(7),
        ] {
            assert_eq!(WaitWord::parse(word.emit()), word);
        }
        assert_eq!(WaitWord::parse(u64::MAX << 32), WaitWord::Off);
    }

    #[test]
    fn each_sleep_of_a_waiter_is_another() {
        let word = AtomicU32::new(0);
        let mut seen = Vec::new();
        for round in 0..4 {
            assert_eq!(asleep(&word), None);
            let now = if round % 2 == 0 {
                let nap = nap(&word);
                assert_eq!(asleep(&word), Some(Sleep::Nap(nap)));
                nap
            } else {
                let sleep = fall_asleep(&word);
                assert_eq!(asleep(&word), Some(Sleep::Kernel(sleep)));
                sleep
            };
            assert!(!seen.contains(&now));
            // Who had the word before is late.
            seen.iter().for_each(|before| awake_from(&word, *before));
            assert!(asleep(&word).is_some());
            seen.push(now);
            awake_from(&word, now);
        }
    }

    #[test]
    fn a_nap_is_ended_once_and_a_sleep_never() {
        let word = AtomicU32::new(!3);
        let first = nap(&word);
        assert!(end_nap(&word, first));
        assert_eq!(asleep(&word), None);
        assert!(!end_nap(&word, first));
        awake(&word);
        let second = nap(&word);
        assert!(!end_nap(&word, first));
        assert_eq!(asleep(&word), Some(Sleep::Nap(second)));
        awake(&word);
        fall_asleep(&word);
        assert!(!end_nap(&word, second));
        assert!(matches!(asleep(&word), Some(Sleep::Kernel(_))));
    }
}

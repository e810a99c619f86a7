//! The build with delays: threads stop where others may come between, as they do once in a million times by themselves,
//! on a machine that has more to do than it can. For tests that look for what goes wrong then; never to be shipped.
//!
//! A thread is stopped before and after it takes a lock, gives one back, shows bytes in a ring or gives back their room,
//! makes a system call of ours, or makes a fence. Without the feature nothing of this is there.

#[cfg(feature = "delays")]
mod stopping {
    use crate::call::raw;
    use crate::sync::{AtomicU32, Ordering};
    use std::cell::Cell;

    /// One in so many places stops its thread; 0: none.
    static EVERY: AtomicU32 = AtomicU32::new(0);
    /// The longest stop, microseconds.
    static LONGEST_US: AtomicU32 = AtomicU32::new(2000);
    static SEED: AtomicU32 = AtomicU32::new(1);

    thread_local! {
        static CHANCE: Cell<u64> = const { Cell::new(0) };
    }

    /// `EVERY[:LONGEST_US[:SEED]]`, of decimal numbers. What cannot be read changes nothing.
    pub fn configure(text: &str) {
        let words = [&EVERY, &LONGEST_US, &SEED];
        for (word, text) in words.iter().zip(text.split(':')) {
            if let Ok(number) = text.parse() {
                word.store(number, Ordering::Relaxed);
            }
        }
    }

    /// A place where others may come between.
    #[inline]
    pub fn here() {
        let every = EVERY.load(Ordering::Relaxed);
        if every != 0 {
            perhaps(every);
        }
    }

    #[cold]
    fn perhaps(every: u32) {
        let chance = CHANCE.with(|chance| {
            let mut x = chance.get();
            if x == 0 {
                // SAFETY: a call without arguments.
                let tid = unsafe { raw(libc::SYS_gettid, [0; 6]) }.cast_unsigned() as u64;
                x = (tid + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                x ^= u64::from(SEED.load(Ordering::Relaxed));
            }
            // Marsaglia's xorshift.
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            chance.set(x);
            x >> 16
        });
        if !chance.is_multiple_of(u64::from(every)) {
            return;
        }
        let chance = chance / u64::from(every);
        let longest = u64::from(LONGEST_US.load(Ordering::Relaxed).max(1));
        let us = match chance % 8 {
            0..3 => {
                // SAFETY: a call without arguments.
                unsafe { raw(libc::SYS_sched_yield, [0; 6]) };
                return;
            }
            3..7 => (chance >> 3) % longest.min(100),
            _ => (chance >> 3) % longest,
        };
        #[expect(clippy::cast_possible_wrap, reason = "less than a second")]
        let time = libc::timespec { tv_sec: 0, tv_nsec: (us.min(999_999) * 1000) as i64 };
        // SAFETY: no descriptors, and a valid time.
        unsafe { raw(libc::SYS_ppoll, [0, 0, &raw const time as usize, 0, 8, 0]) };
    }
}

#[cfg(feature = "delays")]
pub use stopping::{configure, here};

/// Only a build with delays has such places.
#[cfg(not(feature = "delays"))]
#[inline(always)]
pub fn here() {}

//! Waits for another thread that is about to be done: each turn gives the CPU to others.

use sys::call;

use crate::conn::Conn;

/// The turns of one wait. The watchdog build ends a program whose wait does not end.
#[derive(Debug, Default)]
pub struct Turns {
    #[cfg(feature = "watchdog")]
    so_far: u32,
    #[cfg(feature = "watchdog")]
    since: u64,
}

/// Turns, and nanoseconds, after which nobody believes any more that it ends. Turns as well, because all threads of a
/// program may have been stopped meanwhile.
#[cfg(feature = "watchdog")]
const ENDLESS: (u32, u64) = (20_000, 10_000_000_000);

impl Turns {
    /// Another turn. `why`: what somebody else does with the connection, for people.
    pub fn next(&mut self, why: &str, conn: &Conn) {
        #[cfg(feature = "watchdog")]
        {
            let now = call::now_ns();
            if self.so_far == 0 {
                self.since = now;
            }
            self.so_far += 1;
            if self.so_far > ENDLESS.0 && now - self.since > ENDLESS.1 {
                conn.turns_for_ever(why);
            }
        }
        #[cfg(not(feature = "watchdog"))]
        let _ = (why, conn);
        call::sched_yield();
    }
}

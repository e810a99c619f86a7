//! How long something took, of the time in which this process could run.

use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use sys::sync::{AtomicU64, Ordering};

/// Between two ticks.
const TICK: Duration = Duration::from_millis(10);

/// A moment. A debugger, SIGSTOP and a machine with other work take this process's time by the clock, and say nothing
/// of the call that they interrupt: so time is counted here by a thread that they hold up as well.
#[derive(Clone, Copy, Debug)]
pub struct Moment(u64);

impl Moment {
    /// Now.
    ///
    /// # Panics
    ///
    /// When the thread that counts cannot be started.
    #[must_use]
    pub fn now() -> Self {
        Self(ticks().load(Ordering::Relaxed))
    }

    /// Since then: at most what the clock says, in steps of 10 ms.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        let ticks = ticks().load(Ordering::Relaxed) - self.0;
        TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
    }
}

fn ticks() -> &'static AtomicU64 {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    static THREAD: OnceLock<()> = OnceLock::new();
    THREAD.get_or_init(|| {
        let count = || {
            loop {
                thread::sleep(TICK);
                TICKS.fetch_add(1, Ordering::Relaxed);
            }
        };
        thread::Builder::new().name("ticks".into()).spawn(count).expect("a thread");
    });
    &TICKS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn what_takes_long_is_seen_and_never_as_longer_than_it_was() {
        let (clock, moment) = (Instant::now(), Moment::now());
        while moment.elapsed() < 5 * TICK {
            thread::sleep(TICK);
        }
        // A tick may have been due when this began.
        assert!(moment.elapsed() <= clock.elapsed() + TICK);
    }

    #[test]
    fn a_stopped_process_does_not_age() {
        let moment = Moment::now();
        // A child stops this process for a second; `fork` would copy one thread of many.
        let script = format!("kill -STOP {0}; sleep 1; kill -CONT {0}", std::process::id());
        let clock = Instant::now();
        let status = std::process::Command::new("sh").args(["-c", &script]).status().unwrap();
        assert!(status.success());
        // A second less, but for the ticks of its ends.
        let (aged, by_the_clock) = (moment.elapsed(), clock.elapsed());
        assert!(aged + Duration::from_millis(500) < by_the_clock, "{aged:?} of {by_the_clock:?}");
    }
}

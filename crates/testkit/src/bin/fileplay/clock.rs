//! The difference between this machine's clock and that of who keeps a folder. A client believes the server's
//! times of some files and its own of others; where the clocks differ by a second, programs that compare files
//! by their times, as make does, are led astray by that and not by anything that the server did.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use rustix::time::{ClockId, Timespec, clock_settime};

/// How often is asked: the answer that came fastest says it best.
const QUESTIONS: u32 = 16;

#[derive(Args, Debug)]
pub(crate) struct Clock {
    /// Set this machine's clock by it
    #[arg(long)]
    set: bool,
    /// A folder in which a file can be made
    folder: PathBuf,
}

/// A time of theirs, and the times here between which it was.
#[derive(Clone, Copy, Debug)]
struct Answer {
    before: SystemTime,
    theirs: SystemTime,
    after: SystemTime,
}

impl Clock {
    pub(crate) fn run(&self) -> anyhow::Result<String> {
        let answers: Result<Vec<_>, _> = (0..QUESTIONS).map(|_| ask(&self.folder)).collect();
        let best = answers?.into_iter().min_by_key(Answer::took).context("nobody was asked")?;
        if self.set {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos();
            let now = i128::try_from(now)? + best.ahead_ns();
            let (tv_sec, tv_nsec) = (now.div_euclid(SECOND_NS), now.rem_euclid(SECOND_NS));
            let now = Timespec { tv_sec: tv_sec.try_into()?, tv_nsec: tv_nsec.try_into()? };
            clock_settime(ClockId::Realtime, now).context("cannot set the clock")?;
        }
        Ok(format!("ahead_us={} within_us={}", best.ahead_ns() / 1000, best.took().as_micros()))
    }
}

const SECOND_NS: i128 = 1_000_000_000;

impl Answer {
    fn took(&self) -> Duration {
        self.after.duration_since(self.before).unwrap_or(Duration::MAX)
    }

    /// How far theirs is ahead of ours, as if it had been asked in the middle.
    fn ahead_ns(&self) -> i128 {
        difference_ns(self.theirs, self.before).midpoint(difference_ns(self.theirs, self.after))
    }
}

fn difference_ns(a: SystemTime, b: SystemTime) -> i128 {
    let ns = |d: Duration| i128::try_from(d.as_nanos()).unwrap_or(i128::MAX);
    a.duration_since(b).map_or_else(|e| -ns(e.duration()), ns)
}

/// The time of a file that is made is its server's: nothing of it was here before.
fn ask(folder: &Path) -> anyhow::Result<Answer> {
    let path = folder.join("clock");
    let before = SystemTime::now();
    let file = File::create_new(&path).with_context(|| path.display().to_string())?;
    let theirs = file.metadata()?.modified()?;
    let after = SystemTime::now();
    drop(file);
    std::fs::remove_file(&path)?;
    Ok(Answer { before, theirs, after })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_taken_from_the_middle() {
        let at = |us| SystemTime::UNIX_EPOCH + Duration::from_micros(us);
        let answer = Answer { before: at(1000), theirs: at(901_100), after: at(1200) };
        assert_eq!((answer.ahead_ns(), answer.took().as_micros()), (900_000_000, 200));
        let answer = Answer { before: at(901_000), theirs: at(1100), after: at(901_200) };
        assert_eq!(answer.ahead_ns(), -900_000_000);
    }

    #[test]
    fn a_folder_of_this_machine_has_this_machines_clock() {
        let folder = std::env::temp_dir().join(format!("fileplay-clock-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let answer = ask(&folder).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        // File systems take the time of the last tick, which is 10 ms ago at most.
        let tick = Duration::from_millis(10);
        assert!(answer.theirs + tick >= answer.before && answer.theirs <= answer.after);
    }
}

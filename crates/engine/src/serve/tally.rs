//! What a vector counts: requests by command, how long they took, bytes of files.
//!
//! A tally is written by its vector alone, with plain loads and stores; whoever looks on reads numbers that are
//! each right, and a moment apart.

use std::time::Duration;

use smb::NtStatus;
use smb::wire::header::Command;
use sys::sync::{AtomicU64, Ordering};

/// Commands, as they are counted and shown.
pub(super) const COMMANDS: [(Command, &str); 19] = [
    (Command::Negotiate, "negotiate"),
    (Command::SessionSetup, "session_setup"),
    (Command::Logoff, "logoff"),
    (Command::TreeConnect, "tree_connect"),
    (Command::TreeDisconnect, "tree_disconnect"),
    (Command::Create, "create"),
    (Command::Close, "close"),
    (Command::Flush, "flush"),
    (Command::Read, "read"),
    (Command::Write, "write"),
    (Command::Lock, "lock"),
    (Command::Ioctl, "ioctl"),
    (Command::Cancel, "cancel"),
    (Command::Echo, "echo"),
    (Command::QueryDirectory, "query_directory"),
    (Command::ChangeNotify, "change_notify"),
    (Command::QueryInfo, "query_info"),
    (Command::SetInfo, "set_info"),
    (Command::OplockBreak, "oplock_break"),
];

/// Times below 2^8 ns share a bucket.
const SHIFT_MIN: u32 = 8;
/// Times from 2^36 ns (69 s) on share one.
const SHIFT_MAX: u32 = 36;
/// Buckets of each power of two: a time is known to an eighth.
const STEPS: usize = 4;
const BUCKETS: usize = ((SHIFT_MAX - SHIFT_MIN) as usize) * STEPS + 2;

/// The bucket of a time.
fn bucket(ns: u64) -> usize {
    if ns < 1 << SHIFT_MIN {
        return 0;
    }
    let shift = ns.ilog2();
    if shift >= SHIFT_MAX {
        return BUCKETS - 1;
    }
    // The two bits below the highest one.
    let step = usize::try_from((ns >> (shift - 2)) & 3).unwrap_or(0);
    1 + (shift - SHIFT_MIN) as usize * STEPS + step
}

/// The longest time of a bucket, in nanoseconds.
fn upper(bucket: usize) -> u64 {
    if bucket == 0 {
        return (1 << SHIFT_MIN) - 1;
    }
    let (shift, step) = ((bucket - 1) / STEPS, (bucket - 1) % STEPS);
    let base = 1u64 << (shift + SHIFT_MIN as usize);
    base + (base / STEPS as u64) * (step as u64 + 1) - 1
}

/// Requests of one command.
#[derive(Debug)]
struct Count {
    served: AtomicU64,
    failed: AtomicU64,
    /// Refused because there was no more of something.
    limited: AtomicU64,
    /// Told to wait; not in `times`.
    waited: AtomicU64,
    times: [AtomicU64; BUCKETS],
    /// All of those times, nanoseconds.
    took: AtomicU64,
}

impl Default for Count {
    fn default() -> Self {
        Self {
            served: AtomicU64::default(),
            failed: AtomicU64::default(),
            limited: AtomicU64::default(),
            waited: AtomicU64::default(),
            times: [const { AtomicU64::new(0) }; BUCKETS],
            took: AtomicU64::default(),
        }
    }
}

/// See the module. Aligned so that no two vectors write to one cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Tally {
    commands: [Count; COMMANDS.len()],
    read: AtomicU64,
    written: AtomicU64,
}

/// Adds to a counter that only one thread writes.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Tally {
    /// A request was answered. `took`: how long it took, if it waited for nobody else.
    pub(super) fn served(&self, command: Command, status: NtStatus, took: Option<Duration>) {
        let Some(count) = self.commands.get(usize::from(command.to_wire())) else { return };
        add(&count.served, 1);
        if status.is_error() && status != NtStatus::MORE_PROCESSING_REQUIRED {
            add(&count.failed, 1);
            let of_limits = [NtStatus::INSUFFICIENT_RESOURCES, NtStatus::REQUEST_NOT_ACCEPTED];
            if of_limits.contains(&status) {
                add(&count.limited, 1);
            }
        }
        match took {
            Some(took) => {
                let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                add(&count.times[bucket(ns)], 1);
                add(&count.took, ns);
            }
            None => add(&count.waited, 1),
        }
    }

    /// So many bytes of files were read.
    pub(super) fn read(&self, bytes: u64) {
        add(&self.read, bytes);
    }

    /// So many bytes of files were written.
    pub(super) fn written(&self, bytes: u64) {
        add(&self.written, bytes);
    }
}

/// Sums over vectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// In the order of [`COMMANDS`].
    pub(super) commands: Vec<CommandSums>,
    /// Bytes of files that were read.
    pub(super) read: u64,
    /// Bytes of files that were written.
    pub(super) written: u64,
}

/// Sums of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandSums {
    pub(super) served: u64,
    pub(super) failed: u64,
    pub(super) limited: u64,
    pub(super) waited: u64,
    times: Vec<u64>,
    took: u64,
}

/// How long requests took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// How many took less than so many nanoseconds, the shorter ones among them.
    pub(super) below: Vec<(u64, u64)>,
    /// How many there were.
    pub(super) count: u64,
    /// How long all of them took together, nanoseconds.
    pub(super) took: u64,
}

impl CommandSums {
    /// By powers of four, from 1 µs to 17 s.
    pub(super) fn times(&self) -> Times {
        let limits = (10..SHIFT_MAX).step_by(2).map(|shift| 1u64 << shift);
        let up_to = |limit: u64| {
            let within = self.times.iter().enumerate().filter(|(at, _)| upper(*at) < limit);
            within.map(|(_, n)| n).sum()
        };
        Times {
            below: limits.map(|limit| (limit, up_to(limit))).collect(),
            count: self.times.iter().sum(),
            took: self.took,
        }
    }

    /// The time that so many of a thousand requests did not exceed, in nanoseconds; `None`: there were none.
    pub(super) fn quantile(&self, per_mille: u64) -> Option<u64> {
        let all: u64 = self.times.iter().sum();
        let wanted = (u128::from(all) * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0u128;
        for (at, n) in self.times.iter().enumerate() {
            seen += u128::from(*n);
            if *n > 0 && seen >= wanted {
                return Some(upper(at));
            }
        }
        None
    }
}

/// Adds up what the vectors have counted.
pub(super) fn sums(tallies: &[Tally]) -> Sums {
    let total = |of: &dyn Fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let command = |at: usize| CommandSums {
        served: total(&|tally| read(&tally.commands[at].served)),
        failed: total(&|tally| read(&tally.commands[at].failed)),
        limited: total(&|tally| read(&tally.commands[at].limited)),
        waited: total(&|tally| read(&tally.commands[at].waited)),
        times: (0..BUCKETS).map(|b| total(&|tally| read(&tally.commands[at].times[b]))).collect(),
        took: total(&|tally| read(&tally.commands[at].took)),
    };
    Sums {
        commands: (0..COMMANDS.len()).map(command).collect(),
        read: total(&|tally| read(&tally.read)),
        written: total(&|tally| read(&tally.written)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_lie_side_by_side() {
        for at in 0..BUCKETS - 1 {
            assert_eq!(bucket(upper(at)), at);
            assert_eq!(bucket(upper(at) + 1), at + 1);
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        for ns in [300, 1_000, 123_456, 5_000_000_000] {
            let upper = upper(bucket(ns));
            assert!(upper >= ns && upper - ns <= ns / 4, "{ns}: {upper}");
        }
    }

    #[test]
    fn commands_are_counted_where_they_are_shown() {
        for (at, (command, _)) in COMMANDS.iter().enumerate() {
            assert_eq!(usize::from(command.to_wire()), at);
        }
    }

    #[test]
    fn vectors_add_up() {
        let tallies = [Tally::default(), Tally::default()];
        let quick = Some(Duration::from_micros(10));
        for _ in 0..99 {
            tallies[0].served(Command::Read, NtStatus::SUCCESS, quick);
        }
        tallies[1].served(Command::Read, NtStatus::END_OF_FILE, Some(Duration::from_millis(10)));
        tallies[1].served(Command::Create, NtStatus::INSUFFICIENT_RESOURCES, quick);
        tallies[1].served(Command::SessionSetup, NtStatus::MORE_PROCESSING_REQUIRED, quick);
        tallies[0].served(Command::Lock, NtStatus::SUCCESS, None);
        tallies[0].served(Command::Unknown(77), NtStatus::INVALID_PARAMETER, quick);
        tallies[0].read(7);
        tallies[1].read(8);
        tallies[1].written(9);
        let sums = sums(&tallies);
        assert_eq!((sums.read, sums.written), (15, 9));
        let of = |command: Command| &sums.commands[usize::from(command.to_wire())];
        let read = of(Command::Read);
        assert_eq!((read.served, read.failed, read.waited), (100, 1, 0));
        assert!(read.quantile(500).is_some_and(|ns| (10_000..13_000).contains(&ns)));
        assert_eq!(read.quantile(990), read.quantile(500));
        let times = read.times();
        assert_eq!((times.count, times.took), (100, 99 * 10_000 + 10_000_000));
        assert_eq!(times.below.first(), Some(&(1024, 0)));
        let of = |limit| times.below.iter().find(|(at, _)| *at == limit).map(|(_, n)| *n);
        assert_eq!(
            (of(4096), of(16384), of(1 << 22), of(1 << 24)),
            (Some(0), Some(99), Some(99), Some(100))
        );
        let of = |command: Command| &sums.commands[usize::from(command.to_wire())];
        assert!(read.quantile(999).is_some_and(|ns| (10_000_000..13_000_000).contains(&ns)));
        assert_eq!((of(Command::Create).failed, of(Command::Create).limited), (1, 1));
        assert_eq!(of(Command::SessionSetup).failed, 0, "another step is no failure");
        assert_eq!((of(Command::Lock).served, of(Command::Lock).waited), (1, 1));
        assert_eq!(of(Command::Lock).quantile(500), None);
    }
}

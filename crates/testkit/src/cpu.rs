//! Which CPU a thread runs on, and how much CPU time a process has used.

use std::time::Duration;
use std::{io, mem};

/// Keeps the calling thread (and what it starts from now on) on one CPU.
///
/// # Errors
///
/// When there is no such CPU, or the process may not use it.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    if cpu >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("no CPU has number {cpu}"),
        ));
    }
    // SAFETY: the number was checked to lie within the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid for its size; 0 is the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// CPU time of all threads a process has and had: it never goes back.
///
/// # Errors
///
/// When there is no such process (any more).
pub fn used(pid: u32) -> io::Result<Duration> {
    // A clock's number has room for 29 bits of a pid and takes the low ones of a larger one, so
    // that it would be another's; Linux gives none above PID_MAX_LIMIT.
    const PID_MAX_LIMIT: libc::pid_t = 1 << 22;
    let pid = libc::pid_t::try_from(pid)
        .ok()
        .filter(|pid| (1..=PID_MAX_LIMIT).contains(pid))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("no process {pid}")))?;
    let mut clock = 0;
    // Adding up the threads that are there would lose the time of those that ended.
    // SAFETY: a clock's number is written to where `clock` is, or nothing.
    match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
        0 => time_of(clock),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// CPU time of the calling thread: what it would take if nobody else used the CPU.
#[must_use]
pub fn of_this_thread() -> Duration {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

fn time_of(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes a time to where `now` is, or nothing.
    if unsafe { libc::clock_gettime(clock, &raw mut now) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Ok(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};
    use std::{process, thread};

    #[test]
    fn time_spent_computing_is_seen() {
        let before = super::used(process::id()).unwrap();
        let begin = Instant::now();
        // Who has the CPU is for the machine to say.
        loop {
            let after = super::used(process::id()).unwrap();
            if after.saturating_sub(before) > Duration::from_millis(5) {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "{before:?} {after:?}");
        }
    }

    #[test]
    fn time_of_a_thread_that_ended_stays() {
        let before = super::used(process::id()).unwrap();
        let spent = thread::spawn(|| {
            while super::of_this_thread() < Duration::from_millis(5) {}
            super::of_this_thread()
        });
        let spent = spent.join().unwrap();
        let after = super::used(process::id()).unwrap();
        assert!(after >= before + spent, "{before:?} + {spent:?} is more than {after:?}");
    }

    #[test]
    fn a_process_that_cannot_exist_is_an_error() {
        assert!(super::used(u32::MAX).is_err());
        assert!(super::used(0x7fff_ffff).is_err());
        assert!(super::used(0x1fff_ffff).is_err());
        assert!(super::used(0).is_err());
    }

    #[test]
    fn a_cpu_that_cannot_exist_is_an_error() {
        assert!(super::pin(usize::MAX).is_err());
        assert!(super::pin(1023).is_err());
    }
}

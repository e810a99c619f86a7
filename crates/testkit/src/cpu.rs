//! Which CPU a thread runs on, and how much CPU time a process has used.

use std::time::Duration;
use std::{fs, io, mem};

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

/// CPU time of all threads of a process that are alive.
///
/// # Errors
///
/// When there is no such process (any more).
pub fn used(pid: u32) -> io::Result<Duration> {
    let mut ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while we look: its time is then not asked for.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        ns += text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(ns))
}

/// CPU time of the calling thread: what it would take if nobody else used the CPU.
#[must_use]
pub fn of_this_thread() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes a time to where `now` is, or nothing.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    #[test]
    fn time_spent_computing_is_seen() {
        let before = super::used(std::process::id()).unwrap();
        let begin = Instant::now();
        // Who has the CPU is for the machine to say.
        loop {
            let after = super::used(std::process::id()).unwrap();
            if after - before > Duration::from_millis(5) {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_cpu_that_cannot_exist_is_an_error() {
        assert!(super::pin(usize::MAX).is_err());
        assert!(super::pin(1023).is_err());
    }
}

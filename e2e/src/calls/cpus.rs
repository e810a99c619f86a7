//! On which CPUs a process runs.

use super::*;

/// The CPUs that this process could use when it asked first.
#[must_use]
pub fn allowed() -> &'static [usize] {
    static ALLOWED: std::sync::OnceLock<Vec<usize>> = std::sync::OnceLock::new();
    ALLOWED.get_or_init(allowed_now)
}

fn allowed_now() -> Vec<usize> {
    let mut set = zero!(libc::cpu_set_t);
    let _ = call!(libc::sched_getaffinity, 0, size_of::<libc::cpu_set_t>(), &raw mut set);
    // SAFETY: numbers below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// Keeps the calling thread, and what it starts, on one CPU.
pub fn pin(cpu: usize) -> Ret {
    let mut set = zero!(libc::cpu_set_t);
    // SAFETY: a number from the system.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    call!(libc::sched_setaffinity, 0, size_of::<libc::cpu_set_t>(), &raw const set)
}

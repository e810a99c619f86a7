//! What lies between two CPUs: whether they share a core, and lines that are pushed towards their reader.

use std::ffi::CStr;
use std::io::Write;

use crate::call;
use crate::sync::{AtomicU32, Ordering};

/// Bytes of a cache line.
const LINE: usize = 64;
/// CPUs beyond these are taken for cores of their own.
const CPUS: usize = 1024;

/// Core of each CPU plus one, once it was looked up.
static CORES: [AtomicU32; CPUS] = [const { AtomicU32::new(0) }; CPUS];

/// Whether two CPUs are one core, so that what one writes is in the other's nearest cache already. In
/// a virtual machine that does not show it, CPUs are taken for cores.
#[inline]
#[must_use]
pub fn share_core(a: u32, b: u32) -> bool {
    a == b || core(a) == core(b)
}

/// Looks all CPUs up, for a program that is about to lose the right to open files.
pub fn know_all() {
    for (cpu, known) in (0u32..).zip(&CORES) {
        let Some(core) = look_up(cpu) else { return };
        known.store(core.wrapping_add(1), Ordering::Relaxed);
    }
}

#[inline]
fn core(cpu: u32) -> u32 {
    let Some(known) = CORES.get(cpu as usize) else { return cpu };
    match known.load(Ordering::Relaxed) {
        0 => {
            let core = look_up(cpu).unwrap_or(cpu);
            known.store(core.wrapping_add(1), Ordering::Relaxed);
            core
        }
        core => core - 1,
    }
}

/// The first CPU of the core that `cpu` belongs to.
#[cold]
fn look_up(cpu: u32) -> Option<u32> {
    let mut path = [0u8; 80];
    write!(&mut path[..], "/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").ok()?;
    let fd = call::open(CStr::from_bytes_until_nul(&path).ok()?, libc::O_CLOEXEC, 0).ok()?;
    let mut text = [0u8; 16];
    let read = call::read(fd, &mut text);
    let _ = call::close(fd);
    let text = text.get(..read.ok()?)?;
    let digits = text.iter().take_while(|c| c.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// Pushes the lines of `n` bytes at `at` out of this CPU's own caches to where all CPUs find them:
/// who reads them next need not fetch them from here. A hint; the bytes need not be valid.
///
/// CPUs that do not know the instruction pass over it.
#[inline]
pub fn push(at: *const u8, n: usize) {
    each_line(at, n, |line| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: CLDEMOTE neither faults nor changes memory.
        unsafe {
            std::arch::asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    });
}

/// Asks for the lines of `n` bytes at `at`, to be read soon. A hint; the bytes need not be valid, nor there.
#[inline]
pub fn pull(at: *const u8, n: usize) {
    each_line(at, n, |line| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch neither faults nor changes memory.
        unsafe {
            std::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the same.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    });
}

/// Asks for the lines of `bytes`, to be copied soon: not into the first cache, which is small, and whose loads in flight are
/// few. A hint.
#[inline]
pub fn pull_second(bytes: &[u8]) {
    each_line(bytes.as_ptr(), bytes.len(), |line| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch neither faults nor changes memory.
        unsafe {
            std::arch::asm!("prefetcht1 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the same.
        unsafe {
            std::arch::asm!("prfm pldl2keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    });
}

#[inline]
fn each_line(at: *const u8, n: usize, f: impl Fn(*const u8)) {
    let mut line = at.map_addr(|a| a & !(LINE - 1));
    let end = at.wrapping_add(n);
    while line < end {
        f(line);
        line = line.wrapping_add(LINE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_shares_its_core_with_itself() {
        assert!(share_core(0, 0));
        assert_eq!(core(0), look_up(0).unwrap_or(0));
        // Nobody's: whoever says that it runs there is not believed to be near.
        assert!(!share_core(0, u32::MAX));
        assert!(!share_core(0, 999));
    }

    #[test]
    fn pushing_changes_nothing() {
        let bytes: Vec<u8> = (0..=255).collect();
        push(bytes.as_ptr().wrapping_add(3), 200);
        push(std::ptr::null(), 100);
        assert!(bytes.iter().enumerate().all(|(i, b)| i == usize::from(*b)));
    }
}

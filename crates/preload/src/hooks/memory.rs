//! Memory that a program locks: all of it, but for the board.
//!
//! The board is a mapping of 16 GiB of which next to nothing exists. `mlockall` would have the kernel make every page of
//! it, until the file system of the board is full, and would count all of it against `RLIMIT_MEMLOCK`.

use super::*;

/// `MLOCK_ONFAULT`: pages are locked as they come, and not made.
const ONFAULT: c_uint = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mlockall(flags: c_int) -> c_int {
    let ours = fds::world().map(|w| w.board.map.range());
    let plain = flags & libc::MCL_CURRENT == 0 || flags & !ALL_FLAGS != 0 || fds::borrowed();
    let (Some(ours), false) = (ours, plain) else {
        // What is mapped already is left alone, or the flags are wrong, which the kernel says.
        // SAFETY: libc's contract, handed on.
        return unsafe { real::mlockall(flags) };
    };
    if let Err(errno) = lock_present(&ours, flags & libc::MCL_ONFAULT != 0) {
        real::set_errno(errno);
        return -1;
    }
    // Without `MCL_FUTURE` this takes back what an earlier call has asked for, and so would the program's own.
    let future = flags & !libc::MCL_CURRENT;
    if future & libc::MCL_FUTURE == 0 {
        return 0;
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::mlockall(future) }
}

const ALL_FLAGS: c_int = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;

/// Locks each mapping of the process but `ours`, and, unless `on_fault`, has its pages made, as far as that can be done
/// (the kernel's `mlockall` does not tell either). An errno where the limit of locked memory is too low.
fn lock_present(ours: &std::ops::Range<usize>, on_fault: bool) -> Result<(), c_int> {
    let Ok(maps) = std::fs::read("/proc/self/maps") else { return Err(libc::ENOMEM) };
    for line in maps.split(|b| *b == b'\n') {
        let Some((from, to)) = range(line) else { continue };
        if ours.contains(&from) || line.ends_with(b"[vsyscall]") {
            continue;
        }
        match call::mlock2(from, to - from, ONFAULT) {
            Ok(()) => {}
            // It is gone meanwhile, unless it is the limit.
            Err(libc::ENOMEM) if !is_limited() => continue,
            Err(errno) => return Err(errno),
        }
        if !on_fault {
            let _ = call::mlock2(from, to - from, 0);
        }
    }
    Ok(())
}

/// The addresses of a line of `/proc/self/maps`.
fn range(line: &[u8]) -> Option<(usize, usize)> {
    let line = std::str::from_utf8(line.split(|b| *b == b' ').next()?).ok()?;
    let (from, to) = line.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

fn is_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    limit.rlim_cur != libc::RLIM_INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_ranges() {
        let line = b"7f1c2a000000-7f1c2a021000 rw-p 00000000 00:00 0";
        assert_eq!(range(line), Some((0x7f1c_2a00_0000, 0x7f1c_2a02_1000)));
        assert_eq!(range(b""), None);
        assert_eq!(range(b"no-line of maps"), None);
    }
}

//! Memory that a program locks: all of it, but for the board.
//!
//! The board is a mapping of 16 GiB of which next to nothing exists. `mlockall` would have the kernel make every page of
//! it, until the file system of the board is full, and would count all of it against `RLIMIT_MEMLOCK`; and so it would the
//! table of descriptors, which is as sparse.

use super::*;

/// `MLOCK_ONFAULT`: pages are locked as they come, and not made.
const ONFAULT: c_uint = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mlockall(flags: c_int) -> c_int {
    let plain = flags & libc::MCL_CURRENT == 0 || flags & !ALL_FLAGS != 0;
    let (Some(w), false) = (fds::world(), plain) else {
        // What is mapped already is left alone, or the flags are wrong, which the kernel says.
        // SAFETY: libc's contract, handed on.
        return unsafe { real::mlockall(flags) };
    };
    let ours = [w.board.map.range(), fds::range()];
    let future = flags & !libc::MCL_CURRENT;
    if future & libc::MCL_FUTURE != 0 {
        // First, so that nothing falls between the two.
        // SAFETY: libc's contract, handed on.
        let done = unsafe { real::mlockall(future) };
        if done != 0 {
            return done;
        }
    }
    match lock_present(&ours, flags & libc::MCL_ONFAULT != 0) {
        Ok(()) => 0,
        Err(errno) => {
            real::set_errno(errno);
            -1
        }
    }
}

const ALL_FLAGS: c_int = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;

/// Locks each mapping of the process but `ours`, and, unless `on_fault`, has its pages made, as far as that can be done
/// (the kernel's `mlockall` does not tell either). An errno where the limit of locked memory is too low.
fn lock_present(ours: &[std::ops::Range<usize>], on_fault: bool) -> Result<(), c_int> {
    let Ok(maps) = std::fs::read("/proc/self/maps") else { return Err(libc::ENOMEM) };
    for line in maps.split(|b| *b == b'\n') {
        let Some((from, to)) = range(line) else { continue };
        if ours.iter().any(|range| range.contains(&from)) || line.ends_with(b"[vsyscall]") {
            continue;
        }
        match call::mlock2(from, to - from, ONFAULT) {
            // The limit; or the mapping has gone meanwhile.
            Err(errno) if errno != libc::ENOMEM || is_mapped(from, to) => return Err(errno),
            Err(_) => continue,
            Ok(()) => {}
        }
        if !on_fault {
            let _ = call::mlock2(from, to - from, 0);
        }
    }
    Ok(())
}

/// Whether all of these addresses are mapped.
fn is_mapped(from: usize, to: usize) -> bool {
    let at = std::ptr::with_exposed_provenance_mut::<c_void>(from);
    // SAFETY: asks the kernel to write out what is not there: nothing is, of memory that has no file; of files it is what
    // it would do by itself.
    unsafe { libc::msync(at, to - from, libc::MS_ASYNC) == 0 }
}

/// The addresses of a line of `/proc/self/maps`.
fn range(line: &[u8]) -> Option<(usize, usize)> {
    let line = std::str::from_utf8(line.split(|b| *b == b' ').next()?).ok()?;
    let (from, to) = line.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
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

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
    match lock_all(&[w.board.map.range(), fds::range()], flags) {
        Ok(()) => 0,
        Err(errno) => {
            real::set_errno(errno);
            -1
        }
    }
}

const ALL_FLAGS: c_int = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;

/// What `mlockall` does with these flags, which hold `MCL_CURRENT`.
fn lock_all(ours: &[std::ops::Range<usize>], flags: c_int) -> Result<(), c_int> {
    let on_fault = flags & libc::MCL_ONFAULT != 0;
    // First: where the limit is too low nothing becomes of what is to come.
    lock_present(ours, on_fault)?;
    if flags & libc::MCL_FUTURE != 0 {
        // SAFETY: touches no memory of the program's.
        if unsafe { real::mlockall(flags & !libc::MCL_CURRENT) } != 0 {
            return Err(real::errno());
        }
        // What has come since. The kernel does not tell either what it could not make.
        let _ = lock_present(ours, on_fault);
    } else if is_future_locked() {
        // For what is to come the kernel's call ends what an earlier one has asked for, and so does but the end of all
        // locks.
        // SAFETY: touches no memory of the program's.
        unsafe { libc::munlockall() };
        lock_present(ours, on_fault)?;
    }
    Ok(())
}

/// Whether memory is locked as it is mapped.
fn is_future_locked() -> bool {
    const PAGE: usize = 4096;
    let page = match call::mmap_private(PAGE) {
        Ok(page) => page,
        // Beyond the limit of what may be locked.
        Err(errno) => return errno == libc::EAGAIN,
    };
    // SAFETY: a page of ours, in which nothing is.
    let refused = unsafe { libc::msync(page.cast(), PAGE, libc::MS_INVALIDATE) } != 0;
    let locked = refused && real::errno() == libc::EBUSY;
    call::munmap(page, PAGE);
    locked
}

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

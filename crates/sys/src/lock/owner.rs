//! Whether who holds a lock can still give it back. Of system calls only, and without memory: it is asked in signal
//! handlers too.

use std::ffi::CStr;
use std::io::Write;

use super::{TID_BITS, tid};
use crate::call;

/// Bytes of a line of `/proc` up to the state of a thread, and more.
const HEAD: usize = 256;

/// Whether who holds a lock has not ended, as far as can be known: of one in another namespace of processes nothing can.
pub(super) fn lives(owner: u32) -> bool {
    (owner ^ tid()) >> TID_BITS != 0 || exists(owner & ((1 << TID_BITS) - 1))
}

/// Whether who holds a lock is a thread of this process that has not ended.
pub(super) fn is_ours(owner: u32) -> bool {
    (owner ^ tid()) >> TID_BITS == 0 && call::is_own_thread(owner & ((1 << TID_BITS) - 1))
}

/// Whether a thread has not ended. Who was killed still [exists](call::thread_exists) until its parent has asked how it has
/// ended, and the parent may be the very one that waits.
fn exists(tid: u32) -> bool {
    if !call::thread_exists(tid) {
        return false;
    }
    // A filter may end who makes a call that it does not know.
    let is_filtered = call::is_filtered();
    if is_filtered && !call::may_read_filtered() {
        return true;
    }
    if !is_filtered && let Ok(pidfd) = call::pidfd_open(tid) {
        // What there is to read of a process is its end. Its first thread may have ended before, but holding no lock.
        let (ended, _) = call::readable(pidfd);
        let _ = call::close(pidfd);
        return !ended;
    }
    // It is another thread than the first of its process, or the call is not to be had.
    !matches!(state_of(tid), Some(b'Z' | b'X'))
}

/// The letter that `/proc` has for the state of a thread. `None`: it does not say, or not of our pid namespace.
fn state_of(tid: u32) -> Option<u8> {
    let mut text = [0u8; HEAD];
    let own = head_of(c"/proc/self/stat", &mut text)?;
    let number = own.split(|byte| *byte == b' ').next()?;
    if std::str::from_utf8(number).ok()?.parse() != Ok(call::getpid()) {
        return None;
    }
    let mut path = [0u8; 32];
    write!(&mut path[..31], "/proc/{tid}/stat").ok()?;
    let head = head_of(CStr::from_bytes_until_nul(&path).ok()?, &mut text)?;
    // Before it comes the name in brackets, in which any other may be.
    let name_ends = head.iter().rposition(|byte| *byte == b')')?;
    head.get(name_ends + 2).copied()
}

fn head_of<'a>(path: &CStr, text: &'a mut [u8; HEAD]) -> Option<&'a [u8]> {
    let fd = call::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0).ok()?;
    let got = call::read(fd, text);
    let _ = call::close(fd);
    text.get(..got.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that has ended, and that nobody has asked how.
    fn ended() -> i32 {
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: all zeros is a valid answer.
        let mut how: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: our child, and a valid place; it stays as it is.
        let waited =
            unsafe { libc::waitid(libc::P_PID, child.cast_unsigned(), &raw mut how, flags) };
        assert_eq!(waited, 0);
        child
    }

    #[test]
    fn who_was_not_waited_for_does_not_live() {
        let child = ended();
        let tid = child.cast_unsigned();
        assert!(call::thread_exists(tid));
        assert!(!exists(tid));
        assert_eq!(state_of(tid), Some(b'Z'));
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        assert!(!exists(tid) && state_of(tid).is_none());
    }

    /// As in a container, whose filter may kill for what it does not know.
    #[test]
    fn who_was_begun_under_a_filter_asks_too() {
        let child = ended();
        let lives = std::thread::spawn(move || {
            let allow = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 }];
            let program = libc::sock_fprog { len: 1, filter: allow.as_ptr().cast_mut() };
            // SAFETY: plain numbers, and a filter of that length, which the kernel copies; for this thread only.
            let done = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
                    | libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program)
            };
            assert_eq!(done, 0);
            let unknown = exists(child.cast_unsigned());
            assert!(call::begins_filtered());
            (unknown, exists(child.cast_unsigned()), exists(call::gettid()))
        });
        assert_eq!(lives.join().expect("no panic"), (true, false, true));
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }

    #[test]
    fn threads_of_ours_live() {
        let alive = || {
            let tid = call::gettid();
            exists(tid) && lives(super::super::tid()) && state_of(tid) == Some(b'R')
        };
        assert!(alive());
        assert!(std::thread::spawn(alive).join().expect("no panic"));
    }
}

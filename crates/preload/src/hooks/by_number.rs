//! Calls by their numbers, through `syscall(2)`: those that wait, and those that ask or change a descriptor.
//!
//! They lead to the functions of their names, which know what is ours. What those do not take as the kernel does (a
//! mask of another size than the kernel's) stays the kernel's.

use std::mem::zeroed;

use libc::rlimit;

use super::limits::{getrlimit, prlimit, setrlimit};
use super::receiving::{preadv2, recvmmsg};
use super::sending::{pwritev2, sendfile, sendmmsg, splice};
use super::sockets::{
    accept, fcntl, getpeername, getsockname, getsockopt, ioctl, listen, setsockopt,
};
use super::waiting::{epoll_pwait, epoll_pwait2, ppoll};
use super::*;

/// Bytes of the kernel's set of signals; libc's is longer.
const MASK_BYTES: usize = 8;

/// libc's set of the kernel's; `None`: it has another size, which is for the kernel to refuse.
unsafe fn mask_of(at: *const u64, bytes: usize) -> Option<Option<sigset_t>> {
    if at.is_null() {
        return Some(None);
    }
    if bytes != MASK_BYTES {
        return None;
    }
    // SAFETY: all zeros is a valid set.
    let mut set: sigset_t = unsafe { zeroed() };
    // SAFETY: the caller's promise; libc's set begins as the kernel's does.
    unsafe { (&raw mut set).cast::<u64>().write(at.read_unaligned()) };
    Some(Some(set))
}

/// The time limit of a call, where the kernel says when it ends how much is left, unlike libc's function of its name.
struct Limit {
    at: usize,
    ns: Option<u64>,
    since: u64,
}

impl Limit {
    /// `None`: it is no time, which is for the kernel to refuse.
    unsafe fn new(at: *const timespec) -> Option<Self> {
        // SAFETY: the caller's promise.
        let limit = unsafe { at.as_ref() };
        let ns = limit.map(nanos);
        limit.is_none_or(valid).then(|| Self { at: at.addr(), ns, since: call::now_ns() })
    }

    fn tell_left(&self) {
        // Of nothing nothing is left, and the kernel writes nothing.
        let Some(ns @ 1..) = self.ns else { return };
        let left = time_limit(ns.saturating_sub(call::now_ns().saturating_sub(self.since)));
        // A limit that cannot be written to is the caller's as it was.
        // SAFETY: the caller's own, of which we have kept the address only.
        let _ = unsafe {
            call::poke_words(self.at, &[left.tv_sec, left.tv_nsec].map(i64::cast_unsigned))
        };
    }
}

fn place(mask: &Option<sigset_t>) -> *const sigset_t {
    mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
}

/// Waits by number; `None`: the call is none of these, or the kernel's.
///
/// # Safety
///
/// As of the call.
#[expect(clippy::cast_possible_truncation, reason = "a register holds an int in its lower half")]
unsafe fn waits(n: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the same calls by another name.
    let got = unsafe {
        match n {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => waiting::poll(a as *mut pollfd, b as nfds_t, c as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => waiting::select(
                a as c_int,
                b as *mut fd_set,
                c as *mut fd_set,
                d as *mut fd_set,
                e as *mut timeval,
            ),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => {
                waiting::epoll_wait(a as c_int, b as *mut epoll_event, c as c_int, d as c_int)
            }
            libc::SYS_ppoll => {
                waiting::polled(a as *mut pollfd, b as nfds_t)?;
                let mask = mask_of(d as *const u64, e)?;
                let limit = Limit::new(c as *const timespec)?;
                let got = ppoll(a as *mut pollfd, b as nfds_t, c as *const timespec, place(&mask));
                limit.tell_left();
                got
            }
            libc::SYS_pselect6 => {
                // The sixth argument is a place and a size.
                let pair = (f as *const [usize; 2]).as_ref().copied().unwrap_or_default();
                let mask = mask_of(pair[0] as *const u64, pair[1])?;
                let limit = Limit::new(e as *const timespec)?;
                let sets = [b, c, d].map(|set| set as *mut fd_set);
                let got = waiting::selected(a as c_int, sets, limit.ns, place(&mask))?;
                limit.tell_left();
                got
            }
            libc::SYS_epoll_pwait => {
                let mask = mask_of(e as *const u64, f)?;
                let (list, room) = (b as *mut epoll_event, c as c_int);
                epoll_pwait(a as c_int, list, room, d as c_int, place(&mask))
            }
            libc::SYS_epoll_pwait2 => {
                let mask = mask_of(e as *const u64, f)?;
                let (list, room) = (b as *mut epoll_event, c as c_int);
                epoll_pwait2(a as c_int, list, room, d as *const timespec, place(&mask))
            }
            _ => return None,
        }
    };
    Some(c_long::from(got))
}

/// Any call that [`super::process::syscall`] has not led to its function yet.
///
/// # Safety
///
/// As of the call.
pub(super) unsafe fn other(n: c_long, args: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = args;
    if fds::world().is_none() {
        // SAFETY: libc's contract, handed on.
        return unsafe { real::syscall(n, a, b, c, d, e, f) };
    }
    // SAFETY: the caller's promise.
    let got = unsafe { waits(n, args) };
    // SAFETY: the same.
    let got = got.unwrap_or_else(|| unsafe { acts(n, args) });
    if got == -1 && NEWER.contains(&n) && real::errno() == libc::ENOSYS {
        // This libc has no such function, which is why programs call by number. The kernel may have it.
        // SAFETY: libc's contract, handed on.
        return unsafe { real::syscall(n, a, b, c, d, e, f) };
    }
    got
}

/// Calls that are younger than the oldest libc in use, and of which nothing was done when libc is asked.
const NEWER: [c_long; 2] = [libc::SYS_preadv2, libc::SYS_pwritev2];

/// What does not wait for readiness.
///
/// # Safety
///
/// As of the call.
#[expect(clippy::cast_possible_truncation, reason = "a register holds an int in its lower half")]
unsafe fn acts(n: c_long, args: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the same calls by another name.
    unsafe {
        match n {
            // An offset in two halves, of which one has room for all.
            libc::SYS_preadv2 => {
                preadv2(a as c_int, b as *const iovec, c as c_int, d as off_t, f as c_int) as c_long
            }
            libc::SYS_pwritev2 => {
                pwritev2(a as c_int, b as *const iovec, c as c_int, d as off_t, f as c_int)
                    as c_long
            }
            libc::SYS_recvmmsg => c_long::from(recvmmsg(
                a as c_int,
                b as *mut mmsghdr,
                c as c_uint,
                d as c_int,
                e as *mut timespec,
            )),
            libc::SYS_sendmmsg => {
                c_long::from(sendmmsg(a as c_int, b as *mut mmsghdr, c as c_uint, d as c_int))
            }
            libc::SYS_sendfile => sendfile(a as c_int, b as c_int, c as *mut off_t, d) as c_long,
            libc::SYS_splice => {
                splice(a as c_int, b as *mut loff_t, c as c_int, d as *mut loff_t, e, f as c_uint)
                    as c_long
            }
            libc::SYS_fcntl => c_long::from(fcntl(a as c_int, b as c_int, c)),
            libc::SYS_ioctl => c_long::from(ioctl(a as c_int, b as c_ulong, c)),
            libc::SYS_getsockopt => c_long::from(getsockopt(
                a as c_int,
                b as c_int,
                c as c_int,
                d as *mut c_void,
                e as *mut socklen_t,
            )),
            libc::SYS_setsockopt => c_long::from(setsockopt(
                a as c_int,
                b as c_int,
                c as c_int,
                d as *const c_void,
                e as socklen_t,
            )),
            libc::SYS_getpeername => {
                c_long::from(getpeername(a as c_int, b as *mut sockaddr, c as *mut socklen_t))
            }
            libc::SYS_getsockname => {
                c_long::from(getsockname(a as c_int, b as *mut sockaddr, c as *mut socklen_t))
            }
            libc::SYS_listen => c_long::from(listen(a as c_int, b as c_int)),
            libc::SYS_accept => {
                c_long::from(accept(a as c_int, b as *mut sockaddr, c as *mut socklen_t))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => c_long::from(process::dup2(a as c_int, b as c_int)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => c_long::from(waiting::epoll_create(a as c_int)),
            libc::SYS_epoll_create1 => c_long::from(waiting::epoll_create1(a as c_int)),
            libc::SYS_execve => c_long::from(process::run(c as *const *const c_char, |envp| {
                real::syscall(n, a, b, envp.addr(), d, e, f) as c_int
            })),
            libc::SYS_execveat => c_long::from(process::run(d as *const *const c_char, |envp| {
                real::syscall(n, a, b, c, envp.addr(), e, f) as c_int
            })),
            libc::SYS_exit_group => {
                life::leaving();
                real::syscall(n, a, b, c, d, e, f)
            }
            libc::SYS_seccomp => {
                let how = Restriction::of_seccomp(a, b, c);
                sandbox::restrict(how, || real::syscall(n, a, b, c, d, e, f))
            }
            libc::SYS_prctl => c_long::from(process::prctl(a as c_int, b, c, d, e)),
            libc::SYS_mlockall => c_long::from(memory::mlockall(a as c_int)),
            libc::SYS_setrlimit => c_long::from(setrlimit(a as c_uint, b as *const rlimit)),
            libc::SYS_getrlimit => c_long::from(getrlimit(a as c_uint, b as *mut rlimit)),
            libc::SYS_prlimit64 => {
                c_long::from(prlimit(a as pid_t, b as c_uint, c as *const rlimit, d as *mut rlimit))
            }
            libc::SYS_pidfd_getfd => {
                c_long::from(numbers::pidfd_getfd(a as c_int, b as c_int, c as c_uint))
            }
            _ => real::syscall(n, a, b, c, d, e, f),
        }
    }
}

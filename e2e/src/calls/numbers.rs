//! Calls by their numbers, through `syscall(2)`: how programs call what their libc does not know, and how some
//! runtimes call everything.

use super::*;

// Arm's CPUs have no numbers for calls of which there is a later form.

/// `poll`: `revents`.
#[cfg(not(target_arch = "x86_64"))]
pub fn poll(fd: c_int, events: i16, ms: c_int) -> Result<i16, i32> {
    ppoll(fd, events, ms as u64)
}

/// `poll`: `revents`.
#[cfg(target_arch = "x86_64")]
pub fn poll(fd: c_int, events: i16, ms: c_int) -> Result<i16, i32> {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    call!(libc::syscall, libc::SYS_poll, &raw mut one, 1usize, ms)?;
    Ok(one.revents)
}

/// `ppoll`, with the kernel's mask of no signal: `revents`.
pub fn ppoll(fd: c_int, events: i16, ms: u64) -> Result<i16, i32> {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    let (time, mask) = (timespec(Duration::from_millis(ms)), 0u64);
    let (time, mask) = (&raw const time, &raw const mask);
    call!(libc::syscall, libc::SYS_ppoll, &raw mut one, 1usize, time, mask, 8usize)?;
    Ok(one.revents)
}

/// `select` for bytes: how many are ready.
#[cfg(not(target_arch = "x86_64"))]
pub fn select(fd: c_int, ms: i64) -> Ret {
    pselect(fd, ms as u64)
}

/// `select` for bytes: how many are ready.
#[cfg(target_arch = "x86_64")]
pub fn select(fd: c_int, ms: i64) -> Ret {
    let mut set = fd_set(&[fd]);
    let mut time = libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 };
    let (set, none) = (&raw mut set, null_mut::<c_void>());
    call!(libc::syscall, libc::SYS_select, fd + 1, set, none, none, &raw mut time)
}

/// `pselect6` for bytes: how many are ready.
pub fn pselect(fd: c_int, ms: u64) -> Ret {
    let mut set = fd_set(&[fd]);
    let (mut time, mask) = (timespec(Duration::from_millis(ms)), 0u64);
    // The sixth argument is a pointer and a size.
    let pair = [(&raw const mask).addr(), 8];
    let (set, none) = (&raw mut set, null_mut::<c_void>());
    let (time, pair) = (&raw mut time, pair.as_ptr());
    let mask = std::hint::black_box(&mask);
    let got = call!(libc::syscall, libc::SYS_pselect6, fd + 1, set, none, none, time, pair);
    std::hint::black_box(mask);
    got
}

/// `ppoll` or `pselect6` for bytes with a limit of so many milliseconds: how many are ready, and what the kernel says is
/// left of the time.
pub fn time_left(fd: c_int, ms: u64, by_select: bool) -> (Ret, &'static str) {
    let mut time = timespec(Duration::from_millis(ms));
    let got = waits_until(fd, &raw mut time, by_select);
    let ns = std::hint::black_box(&time).tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    let left = match ns {
        0 => "none",
        ns if ns < ms * 1_000_000 => "some",
        _ => "all",
    };
    (got, left)
}

/// The same with a limit of some seconds that cannot be written to.
pub fn waits_until_noted(fd: c_int, by_select: bool) -> Ret {
    static TIME: libc::timespec = libc::timespec { tv_sec: 5, tv_nsec: 0 };
    waits_until(fd, (&raw const TIME).cast_mut(), by_select)
}

fn waits_until(fd: c_int, time: *mut libc::timespec, by_select: bool) -> Ret {
    let none = null_mut::<c_void>();
    if by_select {
        let mut set = fd_set(&[fd]);
        let set = &raw mut set;
        return call!(libc::syscall, libc::SYS_pselect6, fd + 1, set, none, none, time, none);
    }
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    call!(libc::syscall, libc::SYS_ppoll, &raw mut one, 1usize, time, none, 8usize)
}

/// The call that waits on an event set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// `epoll_wait`.
    Wait,
    /// `epoll_pwait`.
    Pwait,
    /// `epoll_pwait2`.
    Pwait2,
}

impl Waits {
    /// Waits: events and data of each.
    pub fn wait(self, epfd: c_int, ms: c_int) -> Result<Vec<(u32, u64)>, i32> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let (at, mask) = (events.as_mut_ptr(), 0u64);
        let mask = &raw const mask;
        let n = match self {
            #[cfg(target_arch = "x86_64")]
            Self::Wait => call!(libc::syscall, libc::SYS_epoll_wait, epfd, at, 4, ms),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Wait => {
                call!(libc::syscall, libc::SYS_epoll_pwait, epfd, at, 4, ms, mask, 8usize)
            }
            Self::Pwait => {
                call!(libc::syscall, libc::SYS_epoll_pwait, epfd, at, 4, ms, mask, 8usize)
            }
            Self::Pwait2 => {
                let time = timespec(Duration::from_millis(ms as u64));
                let time = &raw const time;
                call!(libc::syscall, libc::SYS_epoll_pwait2, epfd, at, 4, time, mask, 8usize)
            }
        }?;
        Ok(events[..n].iter().map(|e| (e.events, e.u64)).collect())
    }
}

/// `epoll_ctl`.
pub fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, events: c_int, data: u64) -> Ret {
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    call!(libc::syscall, libc::SYS_epoll_ctl, epfd, op, fd, &raw mut event)
}

/// `sendto` without an address.
pub fn sendto(fd: c_int, bytes: &[u8]) -> Ret {
    let none = null::<c_void>();
    call!(libc::syscall, libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), 0, none, 0)
}

/// `recvfrom` without an address.
pub fn recvfrom(fd: c_int, len: usize, flags: c_int) -> Bytes {
    let mut buffer = vec![0u8; len];
    let (at, none) = (buffer.as_mut_ptr(), null_mut::<c_void>());
    let got = call!(libc::syscall, libc::SYS_recvfrom, fd, at, len, flags, none, none);
    filled(buffer, got)
}

/// `writev`, or `pwritev2` at no offset.
pub fn writev(fd: c_int, parts: &[&[u8]], by_offset: bool) -> Ret {
    let iov = slices(parts);
    let (at, n) = (iov.as_ptr(), iov.len());
    if by_offset {
        call!(libc::syscall, libc::SYS_pwritev2, fd, at, n, -1isize, -1isize, 0)
    } else {
        call!(libc::syscall, libc::SYS_writev, fd, at, n)
    }
}

/// `readv`, or `preadv2` at no offset, into buffers of these sizes.
pub fn readv(fd: c_int, sizes: &[usize], by_offset: bool) -> Bytes {
    let mut parts = buffers(sizes);
    let iov = slices_mut(&mut parts);
    let (at, n) = (iov.as_ptr(), iov.len());
    let got = if by_offset {
        call!(libc::syscall, libc::SYS_preadv2, fd, at, n, -1isize, -1isize, 0)
    } else {
        call!(libc::syscall, libc::SYS_readv, fd, at, n)
    };
    joined(parts, got)
}

/// `sendmsg`, or `sendmmsg` of one message: how many bytes.
pub fn sendmsg(fd: c_int, bytes: &[u8], many: bool) -> Ret {
    let mut iov = slices(&[bytes]);
    let mut all = one_each(&mut iov);
    let at = all.as_mut_ptr();
    if !many {
        return call!(libc::syscall, libc::SYS_sendmsg, fd, at, 0);
    }
    call!(libc::syscall, libc::SYS_sendmmsg, fd, at, 1, 0)?;
    Ok(all[0].msg_len as usize)
}

/// `recvmsg`, or `recvmmsg` of one message.
pub fn recvmsg(fd: c_int, len: usize, many: bool) -> Bytes {
    let mut parts = buffers(&[len]);
    let mut iov = slices_mut(&mut parts);
    let mut all = one_each(&mut iov);
    let at = all.as_mut_ptr();
    let got = if many {
        let none = null_mut::<c_void>();
        call!(libc::syscall, libc::SYS_recvmmsg, fd, at, 1, 0, none)
            .map(|_| all[0].msg_len as usize)
    } else {
        call!(libc::syscall, libc::SYS_recvmsg, fd, at, 0)
    };
    joined(parts, got)
}

/// `sendfile` from the file's position.
pub fn sendfile(to: c_int, from: c_int, len: usize) -> Ret {
    call!(libc::syscall, libc::SYS_sendfile, to, from, null_mut::<c_void>(), len)
}

/// `splice` without offsets.
pub fn splice(from: c_int, to: c_int, len: usize) -> Ret {
    let none = null_mut::<c_void>();
    call!(libc::syscall, libc::SYS_splice, from, none, to, none, len, 0)
}

/// `fcntl` with a number.
pub fn fcntl(fd: c_int, command: c_int, value: usize) -> Ret {
    call!(libc::syscall, libc::SYS_fcntl, fd, command, value)
}

/// `ioctl` that answers an `int`.
pub fn ioctl(fd: c_int, request: u64) -> Result<c_int, i32> {
    let mut value: c_int = -7;
    call!(libc::syscall, libc::SYS_ioctl, fd, request, &raw mut value)?;
    Ok(value)
}

/// `getsockopt` of an `int`.
pub fn getsockopt(fd: c_int, level: c_int, name: c_int) -> Result<c_int, i32> {
    let (mut value, mut len): (c_int, u32) = (0, 4);
    call!(libc::syscall, libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len)?;
    Ok(value)
}

/// `setsockopt` of an `int`.
pub fn setsockopt(fd: c_int, level: c_int, name: c_int, value: c_int) -> Ret {
    call!(libc::syscall, libc::SYS_setsockopt, fd, level, name, &raw const value, 4usize)
}

/// A stream socket.
pub fn socket() -> Result<c_int, i32> {
    make_of(call!(libc::syscall, libc::SYS_socket, address::family(), libc::SOCK_STREAM, 0))
}

/// `connect`.
pub fn connect(fd: c_int, port: u16) -> Ret {
    let (addr, len) = address::storage(address::there(), port);
    call!(libc::syscall, libc::SYS_connect, fd, &raw const addr, len)
}

/// `accept`, or `accept4`.
pub fn accept(fd: c_int, four: bool) -> Result<c_int, i32> {
    let none = null_mut::<c_void>();
    make_of(if four {
        call!(libc::syscall, libc::SYS_accept4, fd, none, none, 0)
    } else {
        call!(libc::syscall, libc::SYS_accept, fd, none, none)
    })
}

/// `listen`.
pub fn listen(fd: c_int, backlog: c_int) -> Ret {
    call!(libc::syscall, libc::SYS_listen, fd, backlog)
}

/// `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Ret {
    call!(libc::syscall, libc::SYS_shutdown, fd, how)
}

/// `dup`.
pub fn dup(fd: c_int) -> Result<c_int, i32> {
    make_of(call!(libc::syscall, libc::SYS_dup, fd))
}

/// `dup2`, or `dup3` without flags.
pub fn dup_to(fd: c_int, to: c_int, three: bool) -> Result<c_int, i32> {
    #[cfg(target_arch = "x86_64")]
    if !three {
        return make_of(call!(libc::syscall, libc::SYS_dup2, fd, to));
    }
    let _ = three;
    make_of(call!(libc::syscall, libc::SYS_dup3, fd, to, 0))
}

/// `close`.
pub fn close(fd: c_int) -> Ret {
    call!(libc::syscall, libc::SYS_close, fd)
}

/// `close_range` of one.
pub fn close_range(fd: c_int) -> Ret {
    call!(libc::syscall, libc::SYS_close_range, fd, fd, 0)
}

fn make_of(got: Ret) -> Result<c_int, i32> {
    got.map(|fd| fd as c_int)
}

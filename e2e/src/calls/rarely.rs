//! Calls that few programs make, and what is done past libc.

use std::net::SocketAddr;

use super::*;

/// `TCP_FASTOPEN_CONNECT`.
pub const FASTOPEN_CONNECT: c_int = 30;

/// Connects to `port` by what is sent first, in each of three ways; all of `bytes` is sent in the end.
pub fn open_with(fd: c_int, port: u16, bytes: &[u8], by_message: bool) -> Ret {
    let (mut addr, len) = address::storage(address::there(), port);
    let at = (&raw mut addr).cast::<libc::sockaddr>();
    let sent = if by_message {
        let mut iov =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut msg = zero!(libc::msghdr);
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        msg.msg_name = at.cast();
        msg.msg_namelen = len;
        call!(libc::sendmsg, fd, &raw const msg, libc::MSG_FASTOPEN)
    } else {
        call!(libc::sendto, fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_FASTOPEN, at, len)
    };
    match sent {
        // Without a cookie of the peer's there was nothing but the beginning of a handshake.
        Err(libc::EINPROGRESS) => {
            poll(fd, libc::POLLOUT, 10_000)?;
            send(fd, bytes, 0)
        }
        sent => sent,
    }
}

/// What names an end of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Name {
    /// `accept` of a listener.
    Accept,
    /// `getsockname`.
    Local,
    /// `getpeername`.
    Remote,
}

/// Asks for an address with room for so many bytes only: the call's value is left out, what it wrote there and as
/// what length is not.
pub fn name_in(what: Name, fd: c_int, room: i32) -> Result<(i32, Vec<u8>), i32> {
    let mut bytes = [0xeeu8; 64];
    let mut len = room.cast_unsigned();
    let (at, len_at) = (bytes.as_mut_ptr().cast(), &raw mut len);
    match what {
        Name::Accept => close(make!(libc::accept, fd, at, len_at)?),
        Name::Local => call!(libc::getsockname, fd, at, len_at),
        Name::Remote => call!(libc::getpeername, fd, at, len_at),
    }?;
    // Not the port, which differs from run to run.
    bytes[2..4].fill(0);
    Ok((len.cast_signed(), bytes[..24].to_vec()))
}

/// `connect` with an address that is said to be so long.
pub fn connect_of(fd: c_int, port: u16, len: u32) -> Ret {
    let (addr, _) = address::storage(address::there(), port);
    call!(libc::connect, fd, (&raw const addr).cast(), len)
}

/// `sendmsg` of these bytes with one control message, which says to be `len` long.
pub fn send_with(fd: c_int, bytes: &[u8], level: c_int, kind: c_int, len: usize) -> Ret {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; 8];
    let mut msg = zero!(libc::msghdr);
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = 24;
    let head = control.as_mut_ptr().cast::<libc::cmsghdr>();
    // SAFETY: the control data has room for more than one header, and is aligned for it.
    unsafe {
        (*head).cmsg_level = level;
        (*head).cmsg_type = kind;
        (*head).cmsg_len = len;
    }
    call!(libc::sendmsg, fd, &raw const msg, libc::MSG_NOSIGNAL)
}

/// `getsockopt` of so many bytes, all zero before.
pub fn getsockopt_of(fd: c_int, level: c_int, name: c_int, room: u32) -> Result<u32, i32> {
    let mut bytes = [0u64; 16];
    let mut len = room;
    call!(libc::getsockopt, fd, level, name, bytes.as_mut_ptr().cast(), &raw mut len)?;
    Ok(len)
}

/// `mlockall` of what is there and what will be.
pub fn lock_all_memory() -> Ret {
    call!(libc::mlockall, libc::MCL_CURRENT | libc::MCL_FUTURE)
}

/// `mlockall` with these flags; whether memory that is mapped from then on is locked, and whether such that was there is.
pub fn lock_memory(flags: c_int) -> (Ret, (bool, bool)) {
    let Ok(before) = page() else { return (Err(libc::ENOMEM), (false, false)) };
    let done = call!(libc::mlockall, flags);
    let after = page();
    let future = after.is_ok_and(is_locked) || after == Err(libc::EAGAIN);
    let said = (done, (future, is_locked(before)));
    for page in [Ok(before), after].into_iter().flatten() {
        // SAFETY: a page that nothing leads to.
        unsafe { libc::munmap(page, PAGE) };
    }
    said
}

/// The same for a user who may lock little memory, but for what was there; nothing is locked in the end.
pub fn lock_more_memory_than_allowed(flags: c_int) -> Result<(Ret, bool), i32> {
    let mut limit = zero!(libc::rlimit);
    call!(libc::getrlimit, libc::RLIMIT_MEMLOCK, &raw mut limit)?;
    let little = libc::rlimit { rlim_cur: 64 << 10, ..limit };
    call!(libc::setrlimit, libc::RLIMIT_MEMLOCK, &raw const little)?;
    let (done, (future, _)) = entries::as_nobody(|| lock_memory(flags))?;
    call!(libc::setrlimit, libc::RLIMIT_MEMLOCK, &raw const limit)?;
    unlock_memory()?;
    Ok((done, future))
}

/// Two of a kind.
type Pair<T> = (T, T);

/// Sets the soft limit of address space by one of two pairs of calls, or one of two that do both: what it was and is, as
/// the others say, and whether little and much can be mapped.
pub fn limit_addresses(by: &str, limit: u64) -> Result<(Pair<u64>, Pair<bool>), i32> {
    const AS: libc::__rlimit_resource_t = libc::RLIMIT_AS;
    let (mut before, mut after) = (zero!(libc::rlimit64), zero!(libc::rlimit64));
    let narrow =
        |limit: libc::rlimit64| libc::rlimit { rlim_cur: limit.rlim_cur, rlim_max: limit.rlim_max };
    let (mut old, none) = (zero!(libc::rlimit), null());
    match by {
        "setrlimit" => {
            call!(libc::getrlimit64, AS, &raw mut before)?;
            let new = narrow(libc::rlimit64 { rlim_cur: limit, ..before });
            call!(libc::setrlimit, AS, &raw const new)?;
            call!(libc::prlimit64, 0, AS, none, &raw mut after)?;
        }
        "setrlimit64" => {
            call!(libc::getrlimit, AS, &raw mut old)?;
            before = libc::rlimit64 { rlim_cur: old.rlim_cur, rlim_max: old.rlim_max };
            let new = libc::rlimit64 { rlim_cur: limit, ..before };
            call!(libc::setrlimit64, AS, &raw const new)?;
            call!(libc::getrlimit64, AS, &raw mut after)?;
        }
        "prlimit" => {
            call!(libc::getrlimit, AS, &raw mut old)?;
            let new = libc::rlimit { rlim_cur: limit, ..old };
            call!(libc::prlimit, 0, AS, &raw const new, &raw mut old)?;
            before = libc::rlimit64 { rlim_cur: old.rlim_cur, rlim_max: old.rlim_max };
            call!(libc::getrlimit64, AS, &raw mut after)?;
        }
        _ => {
            call!(libc::getrlimit64, AS, &raw mut before)?;
            let new = libc::rlimit64 { rlim_cur: limit, ..before };
            call!(libc::prlimit64, 0, AS, &raw const new, &raw mut before)?;
            call!(libc::getrlimit64, AS, &raw mut after)?;
        }
    }
    Ok(((before.rlim_cur, after.rlim_cur), (can_map(1 << 20), can_map(8 << 30))))
}

/// The limit of address space of another program, made by `fork` and `exec`, KiB.
pub fn limit_of_another() -> Result<String, i32> {
    use std::os::unix::process::CommandExt;
    let mut shell = std::process::Command::new("sh");
    // SAFETY: does nothing; with it, it is not `posix_spawn` that makes it.
    unsafe { shell.args(["-c", "ulimit -v"]).pre_exec(|| Ok(())) };
    let said = shell.output().map_err(|e| e.raw_os_error().unwrap_or(0))?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Whether so many bytes of addresses can be had.
fn can_map(bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new addresses.
    let at = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: nothing leads there.
    unsafe { libc::munmap(at, bytes) };
    true
}

/// `munlockall`.
pub fn unlock_memory() -> Ret {
    call!(libc::munlockall)
}

const PAGE: usize = 4096;

/// A page, mapped now.
fn page() -> Result<*mut c_void, i32> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
    // SAFETY: a new mapping.
    let page = unsafe { libc::mmap(null_mut(), PAGE, access, kind, -1, 0) };
    if page == libc::MAP_FAILED { Err(errno()) } else { Ok(page) }
}

/// Whether a page is locked: it cannot be made invalid then.
fn is_locked(page: *mut c_void) -> bool {
    call!(libc::msync, page, PAGE, libc::MS_INVALIDATE) == Err(libc::EBUSY)
}

/// A fork by its number, or by that of `clone`; `None` where it has none.
pub fn fork_by_number(clone: bool) -> Option<Forked> {
    let child = match clone {
        // SAFETY: as `fork`: memory and stack of its own.
        true => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as `fork`.
        false => unsafe { libc::syscall(libc::SYS_fork) },
        #[cfg(not(target_arch = "x86_64"))]
        false => return None,
    };
    Some(match child {
        0 => Forked::Child,
        pid => Forked::Parent(i32::try_from(pid).expect("a process")),
    })
}

/// The end of the process by its number.
pub fn exit_by_number(code: c_int) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, code) };
    unreachable!("the process has ended")
}

/// How many bytes `getsockopt` has written into `room`, and behind it, and the length that it says.
pub fn written_of(fd: c_int, level: c_int, name: c_int, room: u32) -> Result<(usize, u32), i32> {
    let mut bytes = [0x55u8; 16];
    let mut len = room;
    call!(libc::getsockopt, fd, level, name, bytes.as_mut_ptr().cast(), &raw mut len)?;
    Ok((bytes.iter().filter(|b| **b != 0x55).count(), len))
}

/// Waits for bytes by the call of this name, with the largest time limit that there is: how many descriptors are ready.
pub fn wait_for_ever(name: &str, fd: c_int) -> Ret {
    let limit = libc::timespec { tv_sec: i64::MAX, tv_nsec: 999_999_999 };
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut set = fd_set(&[fd]);
    let mut coarse = libc::timeval { tv_sec: i64::MAX, tv_usec: 999_999 };
    match name {
        "ppoll" => call!(libc::ppoll, &raw mut one, 1, &raw const limit, null()),
        "pselect" => call!(
            libc::pselect,
            fd + 1,
            &raw mut set,
            null_mut(),
            null_mut(),
            &raw const limit,
            null()
        ),
        "select" => {
            call!(libc::select, fd + 1, &raw mut set, null_mut(), null_mut(), &raw mut coarse)
        }
        _ => {
            let ep = epoll_create()?;
            epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 1)?;
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            let n = call!(libc::epoll_pwait2, ep, &raw mut event, 1, &raw const limit, null());
            close(ep)?;
            n
        }
    }
}

/// The end of a process by `quick_exit`, which leaves out what was to be done at exit.
pub fn exit_quickly(code: c_int) -> ! {
    unsafe extern "C" {
        fn quick_exit(code: c_int) -> !;
    }
    // SAFETY: ends the process.
    unsafe { quick_exit(code) }
}

/// `close` by a system call of the program's own making, past libc.
pub fn close_unseen(fd: c_int) -> Result<(), i32> {
    sys::call::close(fd)
}

/// `recv` by a system call of the program's own making.
pub fn recv_unseen(fd: c_int, len: usize, flags: c_int) -> Bytes {
    let mut buffer = vec![0u8; len];
    let got = sys::call::recv(fd, &mut buffer, flags);
    filled(buffer, got)
}

/// An address with a port, as [`address::there`] has it.
#[must_use]
pub fn at(port: u16) -> SocketAddr {
    SocketAddr::new(address::there(), port)
}

/// Something that hands out numbers: its name, and what makes one, and perhaps a second that belongs to it.
pub type Maker = (&'static str, fn() -> Result<(c_int, Option<c_int>), i32>);

macro_rules! one {
    ($f:path $(, $a:expr)* $(,)?) => { || Ok((make!($f $(, $a)*)?, None)) };
}

macro_rules! two {
    ($f:path, $pair:ident $(, $a:expr)* $(,)?) => {
        || {
            let mut $pair = [0; 2];
            call!($f $(, $a)*)?;
            Ok(($pair[0], Some($pair[1])))
        }
    };
}

mod makers {
    //! What the libc crate does not declare.
    use super::*;
    unsafe extern "C" {
        pub(super) fn __open_2(path: *const libc::c_char, flags: c_int) -> c_int;
        pub(super) fn __open64_2(path: *const libc::c_char, flags: c_int) -> c_int;
        pub(super) fn __openat_2(dir: c_int, path: *const libc::c_char, flags: c_int) -> c_int;
        pub(super) fn __openat64_2(dir: c_int, path: *const libc::c_char, flags: c_int) -> c_int;
        pub(super) fn __open(path: *const libc::c_char, flags: c_int, mode: u32) -> c_int;
        pub(super) fn __open64(path: *const libc::c_char, flags: c_int, mode: u32) -> c_int;
        pub(super) fn __pipe(pair: *mut c_int) -> c_int;
        pub(super) fn inotify_init() -> c_int;
    }
}

const NULL: *const libc::c_char = c"/dev/null".as_ptr();
const RW: c_int = libc::O_RDWR;

fn empty() -> libc::sigset_t {
    sigset(&[])
}

/// Each function that makes numbers, and whose numbers may be those of connections that were closed past libc.
pub const MAKERS: &[Maker] = &[
    ("open", one!(libc::open, NULL, RW)),
    ("open64", one!(libc::open64, NULL, RW)),
    ("openat", one!(libc::openat, libc::AT_FDCWD, NULL, RW)),
    ("openat64", one!(libc::openat64, libc::AT_FDCWD, NULL, RW)),
    ("__open", one!(makers::__open, NULL, RW, 0)),
    ("__open64", one!(makers::__open64, NULL, RW, 0)),
    ("__open_2", one!(makers::__open_2, NULL, RW)),
    ("__open64_2", one!(makers::__open64_2, NULL, RW)),
    ("__openat_2", one!(makers::__openat_2, libc::AT_FDCWD, NULL, RW)),
    ("__openat64_2", one!(makers::__openat64_2, libc::AT_FDCWD, NULL, RW)),
    ("creat", one!(libc::creat, NULL, 0o600)),
    ("creat64", one!(libc::creat64, NULL, 0o600)),
    ("memfd_create", one!(libc::memfd_create, c"guest".as_ptr(), 0)),
    ("eventfd", one!(libc::eventfd, 0, libc::EFD_NONBLOCK)),
    ("timerfd_create", one!(libc::timerfd_create, libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK)),
    ("signalfd", || {
        let mask = empty();
        Ok((make!(libc::signalfd, -1, &raw const mask, libc::SFD_NONBLOCK)?, None))
    }),
    ("inotify_init", one!(makers::inotify_init)),
    ("inotify_init1", one!(libc::inotify_init1, libc::IN_NONBLOCK)),
    ("epoll_create", one!(libc::epoll_create, 1)),
    ("epoll_create1", one!(libc::epoll_create1, 0)),
    ("socket", one!(libc::socket, libc::AF_UNIX, libc::SOCK_DGRAM, 0)),
    ("socket of ours", one!(libc::socket, libc::AF_INET, libc::SOCK_STREAM, 0)),
    ("dup", one!(libc::dup, 0)),
    ("F_DUPFD", one!(libc::fcntl, 0, libc::F_DUPFD, 0)),
    (
        "socketpair",
        two!(libc::socketpair, pair, libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()),
    ),
    ("pipe", two!(libc::pipe, pair, pair.as_mut_ptr())),
    ("__pipe", two!(makers::__pipe, pair, pair.as_mut_ptr())),
    ("pipe2", two!(libc::pipe2, pair, pair.as_mut_ptr(), libc::O_CLOEXEC)),
];

/// Sets the soft `RLIMIT_NOFILE`; what it was.
pub fn soft_limit(n: u64) -> Result<u64, i32> {
    let mut limit = zero!(libc::rlimit);
    call!(libc::getrlimit, libc::RLIMIT_NOFILE, &raw mut limit)?;
    let before = std::mem::replace(&mut limit.rlim_cur, n.min(limit.rlim_max));
    call!(libc::setrlimit, libc::RLIMIT_NOFILE, &raw const limit)?;
    Ok(before)
}

impl Stream {
    /// The stream on standard input that is there from the beginning, whatever end it has met before.
    #[must_use]
    pub fn standard_input() -> Self {
        unsafe extern "C" {
            static mut stdin: *mut libc::FILE;
        }
        // SAFETY: libc has made it before `main`, and nobody assigns to it.
        unsafe {
            libc::clearerr(stdin);
            Self(stdin)
        }
    }
}

/// A descriptor that nobody else has, for the standard library.
#[must_use]
pub fn owned(fd: c_int) -> std::os::fd::OwnedFd {
    // SAFETY: the caller has just made it.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

//! Entry points of libc that programs seldom use on a connection, and what they are given there.

use super::*;

/// `isfdtype(fd, S_IFSOCK)`.
pub fn is_socket_by_name(fd: c_int) -> Ret {
    named!("isfdtype", (fd, libc::S_IFSOCK as c_int) as (c_int, c_int) -> c_int)
}

extern "C" fn closes(fd: *mut c_void) -> c_int {
    // SAFETY: a number; the child that runs this has a table of its own.
    unsafe { libc::close(fd.addr() as c_int) }
}

/// `clone` of a child that has our memory, for which we wait as after `vfork`, and whose own descriptors it alone closes:
/// this one. Its process id. `name`: `clone`, or libc's own name for it.
pub fn clone_that_closes(name: &str, fd: c_int) -> Result<i32, i32> {
    let mut stack = vec![0u128; 8192];
    // SAFETY: one past the end, where a stack begins.
    let top = unsafe { stack.as_mut_ptr().add(stack.len()) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let fd = std::ptr::without_provenance_mut::<c_void>(fd as usize);
    if name == "clone" {
        // SAFETY: the child has ended when this returns, so its stack outlives it.
        return fd_ret(unsafe { libc::clone(closes, top.cast(), flags, fd) });
    }
    let closes: extern "C" fn(*mut c_void) -> c_int = closes;
    named!("__clone", (closes, top.cast(), flags, fd)
        as (extern "C" fn(*mut c_void) -> c_int, *mut c_void, c_int, *mut c_void) -> c_int)
    .map(|pid| pid as i32)
}

/// `vmsplice` of these bytes.
pub fn vmsplice(fd: c_int, bytes: &[u8]) -> Ret {
    let iov = slices(&[bytes]);
    call!(libc::vmsplice, fd, iov.as_ptr(), 1, libc::SPLICE_F_NONBLOCK)
}

/// Whether the socket can be mapped for reading, as `TCP_ZEROCOPY_RECEIVE` needs it.
pub fn map(fd: c_int) -> Ret {
    let len = 4096;
    // SAFETY: a mapping of its own, which nobody else knows.
    let at = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(errno());
    }
    call!(libc::munmap, at, len)
}

/// `epoll_ctl` without an event.
pub fn epoll_ctl_of_nothing(epfd: c_int, op: c_int, fd: c_int) -> Ret {
    call!(libc::epoll_ctl, epfd, op, fd, null_mut())
}

/// `signalfd` of these signals.
pub fn signalfd(signals: &[c_int]) -> Result<c_int, i32> {
    let mask = sigset(signals);
    make!(libc::signalfd, -1, &raw const mask, libc::SFD_NONBLOCK)
}

/// `inotify_init1`, for what becomes of a file.
pub fn inotify(path: &str) -> Result<c_int, i32> {
    let path = text(path);
    let fd = make!(libc::inotify_init1, libc::IN_NONBLOCK)?;
    call!(libc::inotify_add_watch, fd, path.as_ptr(), libc::IN_MODIFY)?;
    Ok(fd)
}

/// `socket` of this family, and this protocol.
pub fn socket_by_protocol(protocol: c_int) -> Result<c_int, i32> {
    make!(libc::socket, address::family(), libc::SOCK_STREAM, protocol)
}

/// `pidfd_open` of ourselves.
pub fn pidfd() -> Result<c_int, i32> {
    named!("pidfd_open", (getpid(), 0) as (c_int, u32) -> c_int).map(|fd| fd as c_int)
}

/// `pidfd_getfd`.
pub fn fetched(pidfd: c_int, fd: c_int) -> Result<c_int, i32> {
    named!("pidfd_getfd", (pidfd, fd, 0) as (c_int, c_int, u32) -> c_int).map(|fd| fd as c_int)
}

/// `_Fork`: `fork` without handlers.
pub fn plain_fork() -> Result<Forked, i32> {
    Ok(match named!("_Fork", () as () -> c_int)? {
        0 => Forked::Child,
        pid => Forked::Parent(pid as i32),
    })
}

/// Does something as a user to whom limits apply, which they do not to root.
pub fn as_nobody<T>(work: impl FnOnce() -> T) -> Result<T, i32> {
    const NOBODY: u32 = 65_534;
    let is_root = geteuid() == 0;
    if is_root {
        call!(libc::setresuid, NOBODY, NOBODY, 0)?;
    }
    let done = work();
    if is_root {
        call!(libc::setresuid, 0, 0, 0)?;
    }
    Ok(done)
}

/// What each way to fork says to a user who may have no more processes: 0 if it makes one.
pub fn forks_refused() -> Result<Vec<i32>, i32> {
    let ways: [fn() -> Ret; 3] = [
        || call!(libc::fork),
        || named!("_Fork", () as () -> c_int),
        #[cfg(target_arch = "x86_64")]
        || call!(libc::syscall, libc::SYS_fork),
        #[cfg(not(target_arch = "x86_64"))]
        || call!(libc::fork),
    ];
    let said = |fork: fn() -> Ret| match fork() {
        Ok(0) => exit_now(1),
        Ok(pid) => wait(pid as i32).map_or_else(|e| e, |_| 0),
        Err(e) => e,
    };
    let mut limit = zero!(libc::rlimit);
    call!(libc::getrlimit, libc::RLIMIT_NPROC, &raw mut limit)?;
    let none = libc::rlimit { rlim_cur: 0, ..limit };
    call!(libc::setrlimit, libc::RLIMIT_NPROC, &raw const none)?;
    let all = as_nobody(|| ways.into_iter().map(said).collect());
    call!(libc::setrlimit, libc::RLIMIT_NPROC, &raw const limit)?;
    all
}

/// How a process may end, besides `exit` and `_exit`.
pub const ENDS: &[&str] = &["_Exit", "quick_exit", "abort"];

/// Ends the process so.
pub fn end_by(name: &str, code: c_int) -> ! {
    if name == "abort" {
        // A core of it would help nobody.
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let _ = call!(libc::setrlimit, libc::RLIMIT_CORE, &raw const limit);
        let _ = named!("abort", () as () -> c_int);
    } else {
        let _ = named!(name, (code) as (c_int) -> c_int);
    }
    unreachable!("{name} has returned")
}

/// A terminal: its master and its slave.
pub fn terminal() -> Result<[c_int; 2], i32> {
    let mut fds = [0; 2];
    let [master, slave] = &mut fds;
    let none = null_mut::<libc::c_char>();
    call!(libc::openpty, master, slave, none, null(), null())?;
    Ok(fds)
}

/// `login_tty`: a new session whose first three descriptors are this terminal.
pub fn login_tty(fd: c_int) -> Ret {
    named!("login_tty", (fd) as (c_int) -> c_int)
}

/// The calls by which a process becomes somebody else, with what it is given each.
pub fn become_user(name: &str, user: u32) -> Ret {
    match name {
        "seteuid" => call!(libc::seteuid, user),
        "setreuid" => call!(libc::setreuid, u32::MAX, user),
        "setresuid" => call!(libc::setresuid, u32::MAX, user, u32::MAX),
        _ => call!(libc::setuid, user),
    }
}

/// `chroot`.
pub fn chroot(path: &str) -> Ret {
    let path = text(path);
    call!(libc::chroot, path.as_ptr())
}

impl Stream {
    /// `freopen` for reading: the same stream of another file, whose descriptor has the same number.
    pub fn reopened(self, path: &str) -> Result<Self, i32> {
        let path = text(path);
        // SAFETY: C strings, and an open stream.
        let file = unsafe { libc::freopen(path.as_ptr(), c"r".as_ptr(), self.0) };
        if file.is_null() { Err(errno()) } else { Ok(Self(file)) }
    }
}

/// `fcloseall`.
pub fn close_all_streams() -> Ret {
    named!("fcloseall", () as () -> c_int)
}

/// `writev` of a good part and one that is longer than any memory.
pub fn write_too_much(fd: c_int, bytes: &[u8]) -> Ret {
    let mut iov = slices(&[bytes, bytes]);
    iov[1].iov_len = usize::MAX;
    call!(libc::writev, fd, iov.as_ptr(), 2)
}

/// `readv` into a good part and one that is longer than any memory.
pub fn read_too_much(fd: c_int) -> Ret {
    let mut parts = buffers(&[4, 4]);
    let mut iov = slices_mut(&mut parts);
    iov[1].iov_len = usize::MAX;
    call!(libc::readv, fd, iov.as_mut_ptr(), 2)
}

/// `SO_ATTACH_FILTER` of a program that lets everything pass.
pub fn attach_filter(fd: c_int) -> Ret {
    const RETURN: u16 = 6;
    let mut all = [libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: u32::MAX }];
    let program = libc::sock_fprog { len: 1, filter: all.as_mut_ptr() };
    setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// `F_SETOWN_EX` of this process; and what `F_GETOWN_EX` says: the kind.
pub fn own_exactly(fd: c_int) -> Result<c_int, i32> {
    const SET: c_int = 15;
    const GET: c_int = 16;
    const PROCESS: c_int = 1;
    let owner = [PROCESS, getpid()];
    call!(libc::fcntl, fd, SET, owner.as_ptr())?;
    let mut said = [-1; 2];
    call!(libc::fcntl, fd, GET, said.as_mut_ptr())?;
    Ok(said[0])
}

/// `SO_PEERCRED`, which a TCP socket has too: process, user, group.
pub fn peer_credentials(fd: c_int) -> Result<Vec<i32>, i32> {
    let mut said = [-7i32; 3];
    let mut len = 12u32;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    call!(libc::getsockopt, fd, level, name, said.as_mut_ptr().cast(), &raw mut len)?;
    Ok(said.to_vec())
}

static LAST_WORDS: AtomicI32 = AtomicI32::new(-1);
static LAST_SENT: AtomicI32 = AtomicI32::new(i32::MIN);

extern "C" fn last_words(_: *mut c_void) {
    let sent = send(LAST_WORDS.load(Ordering::SeqCst), b"last words", libc::MSG_NOSIGNAL);
    let sent = sent.map_or_else(|e| -e, |n| n as i32);
    LAST_SENT.store(sent, Ordering::SeqCst);
}

extern "C" fn leaves(key: *mut c_void) -> *mut c_void {
    let key = key.addr() as libc::pthread_key_t;
    // SAFETY: a key of ours; any value but null has its destructor run when the thread has left.
    unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(1)) };
    let _ = send(LAST_WORDS.load(Ordering::SeqCst), b"words ", libc::MSG_NOSIGNAL);
    null_mut()
}

/// A thread that sends, and sends again in a destructor of its thread-specific data, when most of the thread is
/// gone: what the last send has answered.
pub fn sent_by_a_destructor(fd: c_int) -> Ret {
    LAST_WORDS.store(fd, Ordering::SeqCst);
    let (mut key, mut thread) = (0, 0);
    let fallible = |e: c_int| if e == 0 { Ok(()) } else { Err(e) };
    // SAFETY: a key with a destructor that takes anything.
    fallible(unsafe { libc::pthread_key_create(&raw mut key, Some(last_words)) })?;
    let argument = std::ptr::without_provenance_mut(key as usize);
    // SAFETY: a function that takes the key as its pointer.
    fallible(unsafe { libc::pthread_create(&raw mut thread, null(), leaves, argument) })?;
    // SAFETY: joined once.
    fallible(unsafe { libc::pthread_join(thread, null_mut()) })?;
    // SAFETY: nobody uses it any more.
    fallible(unsafe { libc::pthread_key_delete(key) })?;
    let sent = LAST_SENT.load(Ordering::SeqCst);
    if sent < 0 { Err(-sent) } else { Ok(sent as usize) }
}

//! The functions behind ours: the next definition of each name, as the loader would find it ([`crate::symbols`]).
//!
//! Each is resolved at its first call, in memory: what is to be read for that is known before the program's `main`.

#![expect(non_snake_case, reason = "libc's own names")]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::symbols::{self, Begin};
use libc::{
    FILE, aiocb, epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd,
    rlimit, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

fn find(name: &CStr) -> *mut c_void {
    symbols::find(name, Begin::BehindUs)
}

/// libc's function of that name, found once: for those that are gone on to, and not called. Never null.
pub(crate) fn at(at: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let mut found = at.load(Ordering::Relaxed);
    if found.is_null() {
        found = find(name);
        if found.is_null() {
            found = missing as *mut c_void;
        }
        at.store(found, Ordering::Relaxed);
    }
    found
}

/// What a function does that libc has not.
extern "C" fn missing() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

/// Sets this thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: always callable.
    let slot = unsafe { libc::__errno_location() };
    // SAFETY: this thread's errno.
    unsafe { *slot = errno };
}

/// This thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: always callable.
    let slot = unsafe { libc::__errno_location() };
    // SAFETY: this thread's errno.
    unsafe { *slot }
}

macro_rules! real {
    ($($name:ident($($arg:ident: $t:ty),*) -> $r:ty;)*) => {
        /// All of them.
        #[cfg(test)]
        pub(crate) const NAMES: &[&CStr] = &[$({
            // SAFETY: ends in a NUL.
            unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
        }),*];

        $(
            #[doc = concat!("libc's `", stringify!($name), "`.")]
            ///
            /// # Safety
            ///
            /// As libc's.
            #[inline]
            pub(crate) unsafe fn $name($($arg: $t),*) -> $r {
                static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let mut at = AT.load(Ordering::Relaxed);
                if at.is_null() {
                    // SAFETY: ends in a NUL.
                    at = find(unsafe {
                        CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
                    });
                    if at.is_null() {
                        set_errno(libc::ENOSYS);
                        // SAFETY: each of these types has a value of all ones: -1 or a pointer that
                        // nobody follows, which is how these functions say that they failed.
                        return unsafe { failed::<$r>() };
                    }
                    AT.store(at, Ordering::Relaxed);
                }
                // SAFETY: libc's function of that name has this signature.
                let f: unsafe extern "C-unwind" fn($($t),*) -> $r = unsafe { std::mem::transmute(at) };
                // SAFETY: the caller's promise.
                unsafe { f($($arg),*) }
            }
        )*
    };
}

/// A value of all ones.
unsafe fn failed<T>() -> T {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    // SAFETY: as large as it is.
    unsafe { std::ptr::write_bytes(value.as_mut_ptr(), 0xff, 1) };
    // SAFETY: used for integers and pointers only.
    unsafe { value.assume_init() }
}

real! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int;
    ioctl(fd: c_int, request: libc::c_ulong, arg: usize) -> c_int;
    read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t;
    readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t;
    preadv2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t;
    write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t;
    writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t;
    pwritev2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t;
    recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: *const sockaddr, len: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t;
    splice(from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t, n: size_t, flags: c_uint) -> ssize_t;
    poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(n: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epfd: c_int, events: *mut epoll_event, n: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epfd: c_int, events: *mut epoll_event, n: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epfd: c_int, events: *mut epoll_event, n: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int) -> ();
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    execvpe(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    execveat(dir: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int;
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attrs: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    posix_spawnp(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attrs: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fclose(file: *mut FILE) -> c_int;
    setuid(id: c_uint) -> c_int;
    seteuid(id: c_uint) -> c_int;
    setreuid(r: c_uint, e: c_uint) -> c_int;
    setresuid(r: c_uint, e: c_uint, s: c_uint) -> c_int;
    chroot(path: *const c_char) -> c_int;
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    syscall(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int;
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int;
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void, buf: *mut c_void, size: usize) -> c_int;
    io_uring_setup(entries: c_uint, params: *mut c_void) -> c_int;
    io_uring_submit(ring: *mut c_void) -> c_int;
    io_uring_submit_and_wait(ring: *mut c_void, n: c_uint) -> c_int;
    io_uring_submit_and_get_events(ring: *mut c_void) -> c_int;
    io_uring_submit_and_wait_timeout(ring: *mut c_void, done: *mut c_void, n: c_uint, limit: *mut c_void, mask: *mut sigset_t) -> c_int;
    io_uring_submit_and_wait_min_timeout(ring: *mut c_void, done: *mut c_void, n: c_uint, limit: *mut c_void, least: c_uint, mask: *mut sigset_t) -> c_int;
    io_uring_submit_and_wait_reg(ring: *mut c_void, done: *mut c_void, n: c_uint, place: c_int) -> c_int;
    io_uring_wait_cqes(ring: *mut c_void, done: *mut c_void, n: c_uint, limit: *mut c_void, mask: *mut sigset_t) -> c_int;
    io_uring_wait_cqes_min_timeout(ring: *mut c_void, done: *mut c_void, n: c_uint, limit: *mut c_void, least: c_uint, mask: *mut sigset_t) -> c_int;
    io_uring_wait_cqe_timeout(ring: *mut c_void, done: *mut c_void, limit: *mut c_void) -> c_int;
    io_uring_enter(fd: c_uint, n: c_uint, least: c_uint, flags: c_uint, mask: *mut sigset_t) -> c_int;
    io_uring_enter2(fd: c_uint, n: c_uint, least: c_uint, flags: c_uint, arg: *mut c_void, size: size_t) -> c_int;
    io_uring_register_files(ring: *mut c_void, files: *const c_int, n: c_uint) -> c_int;
    io_uring_register_files_tags(ring: *mut c_void, files: *const c_int, tags: *const u64, n: c_uint) -> c_int;
    io_uring_register_files_update(ring: *mut c_void, at: c_uint, files: *const c_int, n: c_uint) -> c_int;
    io_uring_register_files_update_tag(ring: *mut c_void, at: c_uint, files: *const c_int, tags: *const u64, n: c_uint) -> c_int;
    io_uring_register(fd: c_uint, what: c_uint, arg: *const c_void, n: c_uint) -> c_int;
    mlockall(flags: c_int) -> c_int;
    setrlimit(resource: c_uint, new: *const rlimit) -> c_int;
    getrlimit(resource: c_uint, old: *mut rlimit) -> c_int;
    prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, to: c_int) -> c_int;
    _exit(status: c_int) -> ();
    quick_exit(status: c_int) -> ();
    fork() -> pid_t;
    _Fork() -> pid_t;
    daemon(stay: c_int, keep: c_int) -> c_int;
    login_tty(fd: c_int) -> c_int;
    aio_read(block: *mut aiocb) -> c_int;
    aio_read64(block: *mut aiocb) -> c_int;
    aio_write(block: *mut aiocb) -> c_int;
    aio_write64(block: *mut aiocb) -> c_int;
    lio_listio(mode: c_int, list: *const *mut aiocb, n: c_int, event: *mut c_void) -> c_int;
    lio_listio64(mode: c_int, list: *const *mut aiocb, n: c_int, event: *mut c_void) -> c_int;
    io_submit(context: *mut c_void, n: c_long, blocks: *const *const c_void) -> c_int;
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    __open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    __open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    creat(path: *const c_char, mode: c_uint) -> c_int;
    creat64(path: *const c_char, mode: c_uint) -> c_int;
    memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    eventfd(value: c_uint, flags: c_int) -> c_int;
    timerfd_create(clock: c_int, flags: c_int) -> c_int;
    signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    inotify_init() -> c_int;
    inotify_init1(flags: c_int) -> c_int;
    pidfd_open(pid: pid_t, flags: c_uint) -> c_int;
    pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int;
    pipe(pair: *mut c_int) -> c_int;
    pipe2(pair: *mut c_int, flags: c_int) -> c_int;
}

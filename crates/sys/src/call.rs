//! Raw system calls.
//!
//! Made without libc on purpose: inside a guest, libc's own names lead to our interposed functions,
//! and libc's wrappers are cancellation points. Errors are errno values; the caller's `errno` is
//! never touched.

use std::arch::asm;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// One system call.
///
/// # Safety
///
/// What the kernel asks of the arguments of call `n`.
#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "64-bit machines only")]
pub unsafe fn raw(n: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the kernel keeps every register but rax, rcx and r11; the arguments are the caller's
    // promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") n as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

/// One system call.
///
/// # Safety
///
/// What the kernel asks of the arguments of call `n`.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn raw(n: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the kernel keeps every register but x0; the arguments are the caller's promise.
    unsafe {
        asm!(
            "svc 0",
            in("x8") n,
            inlateout("x0") a[0] => ret,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    ret
}

/// Filters that the program has given itself and that may end it: see `call::will_be_filtered`.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// Those that only refuse calls.
static REFUSING: AtomicUsize = AtomicUsize::new(0);

/// See `call::begins_filtered`.
static BEGUN_FILTERED: AtomicBool = AtomicBool::new(false);

/// A call's value, or its errno.
pub type Result<T> = std::result::Result<T, i32>;

/// A call that failed, and in which step of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was tried, as in "map the ring".
    pub step: &'static str,
    /// Why not.
    pub errno: i32,
}

impl Failure {
    /// For `map_err`.
    pub fn at(step: &'static str) -> impl FnOnce(i32) -> Self {
        move |errno| Self { step, errno }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.step, std::io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for Failure {}

#[inline]
fn check(ret: isize) -> Result<usize> {
    if (-4095..0).contains(&ret) {
        #[expect(clippy::cast_possible_truncation, reason = "-4095 to -1")]
        return Err(-ret as i32);
    }
    Ok(ret.cast_unsigned())
}

macro_rules! call {
    ($n:ident $(, $a:expr)*) => {{
        let args = [$($a as usize),*];
        let mut all = [0usize; 6];
        all[..args.len()].copy_from_slice(&args);
        crate::delays::here();
        // SAFETY: each use below passes valid pointers or plain numbers.
        let done = check(unsafe { raw(libc::$n, all) });
        crate::delays::here();
        done
    }};
}

#[expect(clippy::cast_sign_loss, reason = "descriptors and flags are passed as they are")]
#[expect(clippy::cast_possible_truncation, reason = "the kernel answers in these ranges")]
#[expect(clippy::cast_possible_wrap, reason = "the same")]
#[expect(missing_docs, reason = "each is the system call of its name; units as in its manual page")]
#[expect(clippy::missing_errors_doc, reason = "the errno of the manual page")]
mod calls {
    use super::{
        BEGUN_FILTERED, CStr, ENDING, MaybeUninit, Ordering, REFUSING, Result, check, raw,
    };

    /// A flag of [`open`]: no link at the end of the path. Architectures have other numbers for it.
    pub const NOFOLLOW: i32 = libc::O_NOFOLLOW;

    pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<i32> {
        call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode).map(|fd| fd as i32)
    }
    pub fn close(fd: i32) -> Result<()> {
        call!(SYS_close, fd).map(drop)
    }
    pub fn mkdir(path: &CStr, mode: u32) -> Result<()> {
        call!(SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), mode).map(drop)
    }
    pub fn fstat(fd: i32) -> Result<libc::stat> {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        call!(SYS_fstat, fd, stat.as_mut_ptr())?;
        // SAFETY: zeroed is a valid `stat`, and the kernel has filled it.
        Ok(unsafe { stat.assume_init() })
    }
    /// Does not follow a symbolic link at the end.
    pub fn lstat(path: &CStr) -> Result<libc::stat> {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        call!(
            SYS_newfstatat,
            libc::AT_FDCWD,
            path.as_ptr(),
            stat.as_mut_ptr(),
            libc::AT_SYMLINK_NOFOLLOW
        )?;
        // SAFETY: zeroed is a valid `stat`, and the kernel has filled it.
        Ok(unsafe { stat.assume_init() })
    }
    /// Follows links.
    pub fn stat(path: &CStr) -> Result<libc::stat> {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        call!(SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), stat.as_mut_ptr(), 0)?;
        // SAFETY: zeroed is a valid `stat`, and the kernel has filled it.
        Ok(unsafe { stat.assume_init() })
    }
    pub fn ftruncate(fd: i32, len: i64) -> Result<()> {
        call!(SYS_ftruncate, fd, len).map(drop)
    }
    pub fn fallocate(fd: i32, offset: usize, len: usize) -> Result<()> {
        super::despite_signals(|| call!(SYS_fallocate, fd, 0, offset, len).map(drop))
    }
    pub fn punch(fd: i32, offset: usize, len: usize) -> Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        call!(SYS_fallocate, fd, mode, offset, len).map(drop)
    }
    pub fn mmap_shared(fd: i32, len: usize, prot: i32) -> Result<*mut u8> {
        call!(SYS_mmap, 0, len, prot, libc::MAP_SHARED | libc::MAP_NORESERVE, fd, 0)
            .map(|p| p as *mut u8)
    }
    /// Anonymous, private, zero.
    pub fn mmap_private(len: usize) -> Result<*mut u8> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        call!(SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1i32, 0)
            .map(|p| p as *mut u8)
    }
    /// Anonymous, zero, and in common with what is forked later.
    pub fn mmap_common(len: usize) -> Result<*mut u8> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        call!(SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1i32, 0)
            .map(|p| p as *mut u8)
    }
    /// What a device maps at an offset of its own, to read and write.
    pub fn mmap_device(fd: i32, len: usize, offset: i64) -> Result<*mut u8> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        call!(SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset)
            .map(|p| p as *mut u8)
    }
    pub fn munmap(at: *mut u8, len: usize) {
        let _ = call!(SYS_munmap, at, len);
    }
    pub fn mprotect(at: *mut u8, len: usize, prot: i32) -> Result<()> {
        call!(SYS_mprotect, at, len, prot).map(drop)
    }
    /// Takes pages now; an old kernel that cannot is no error.
    pub fn populate(at: *mut u8, len: usize) {
        let _ = call!(SYS_madvise, at, len, 23);
    }
    /// Locks pages into memory; `flags`: see mlock2(2).
    pub fn mlock2(at: usize, len: usize, flags: u32) -> Result<()> {
        call!(SYS_mlock2, at, len, flags).map(drop)
    }
    /// Asks for large pages; a system without them is no error.
    pub fn prefer_large_pages(at: *mut u8, len: usize) {
        let _ = call!(SYS_madvise, at, len, libc::MADV_HUGEPAGE);
    }
    /// Keeps the range out of core files.
    pub fn dontdump(at: *mut u8, len: usize) {
        let _ = call!(SYS_madvise, at, len, libc::MADV_DONTDUMP);
    }
    /// Makes the page read as zero in a forked child.
    pub fn wipe_on_fork(at: *mut u8, len: usize) -> bool {
        call!(SYS_madvise, at, len, 18).is_ok()
    }
    /// Asks for the fences that [`fence_all`] makes, in all threads of this process.
    pub fn ask_for_fences() -> Result<()> {
        // MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED
        call!(SYS_membarrier, 4, 0).map(drop)
    }
    /// A full fence in each running thread of each process that has asked for it.
    pub fn fence_all() -> Result<()> {
        // MEMBARRIER_CMD_GLOBAL_EXPEDITED
        call!(SYS_membarrier, 2, 0).map(drop)
    }
    #[must_use]
    pub fn getpid() -> u32 {
        call!(SYS_getpid).unwrap_or(0) as u32
    }
    #[must_use]
    pub fn gettid() -> u32 {
        call!(SYS_gettid).unwrap_or(0) as u32
    }
    /// Sets the signals that this thread blocks, the first in the lowest bit; answers those that it blocked.
    #[must_use]
    pub fn set_blocked(signals: u64) -> u64 {
        let mut before = 0u64;
        let _ = call!(
            SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const signals,
            &raw mut before,
            size_of::<u64>()
        );
        before
    }
    /// Sends this thread a signal, past a `raise` of the program's own.
    pub fn raise(signal: i32) {
        let _ = call!(SYS_tgkill, getpid(), gettid(), signal);
    }
    #[must_use]
    pub fn geteuid() -> u32 {
        call!(SYS_geteuid).unwrap_or(0) as u32
    }
    pub fn sched_yield() {
        let _ = call!(SYS_sched_yield);
    }
    /// Whether a thread of that id exists in our pid namespace, and be it only to be waited for.
    #[must_use]
    pub fn thread_exists(tid: u32) -> bool {
        call!(SYS_kill, tid, 0) != Err(libc::ESRCH) || call!(SYS_tkill, tid, 0) != Err(libc::ESRCH)
    }
    /// Whether a thread of that id is one of this process.
    #[must_use]
    pub fn is_own_thread(tid: u32) -> bool {
        call!(SYS_tgkill, getpid(), tid, 0) != Err(libc::ESRCH)
    }
    pub fn pidfd_open(pid: u32) -> Result<i32> {
        call!(SYS_pidfd_open, pid, 0).map(|fd| fd as i32)
    }
    /// A descriptor of another process, if we may attach to it.
    pub fn pidfd_getfd(pidfd: i32, fd: i32) -> Result<i32> {
        call!(SYS_pidfd_getfd, pidfd, fd, 0).map(|fd| fd as i32)
    }
    pub fn socket(domain: i32, kind: i32, protocol: i32) -> Result<i32> {
        call!(SYS_socket, domain, kind, protocol).map(|fd| fd as i32)
    }
    /// The descriptor, moved to the lowest free number that is at least `min`, closed on exec.
    /// The file `from` is called `to` from now on, unless something else is (`EEXIST`).
    pub fn rename_new(from: &CStr, to: &CStr) -> Result<()> {
        let (here, flags) = (libc::AT_FDCWD, libc::RENAME_NOREPLACE);
        call!(SYS_renameat2, here, from.as_ptr(), here, to.as_ptr(), flags).map(drop)
    }
    pub fn fchmod(fd: i32, mode: u32) -> Result<()> {
        call!(SYS_fchmod, fd, mode).map(drop)
    }
    /// `u32::MAX`: stays as it is.
    pub fn fchown(fd: i32, uid: u32, gid: u32) -> Result<()> {
        call!(SYS_fchown, fd, uid, gid).map(drop)
    }
    pub fn unlink(path: &CStr) -> Result<()> {
        call!(SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0).map(drop)
    }
    /// `fd` becomes another descriptor of what `from` is.
    pub fn dup_over(from: i32, fd: i32, flags: i32) -> Result<()> {
        call!(SYS_dup3, from, fd, flags).map(drop)
    }
    pub fn setfl(fd: i32, flags: i32) -> Result<()> {
        call!(SYS_fcntl, fd, libc::F_SETFL, flags).map(drop)
    }
    pub fn bind_v4(fd: i32, at: std::net::SocketAddrV4) -> Result<()> {
        let at = super::v4(at);
        call!(SYS_bind, fd, &raw const at, size_of::<libc::sockaddr_in>()).map(drop)
    }
    pub fn connect_v4(fd: i32, at: std::net::SocketAddrV4) -> Result<()> {
        let at = super::v4(at);
        call!(SYS_connect, fd, &raw const at, size_of::<libc::sockaddr_in>()).map(drop)
    }
    /// Dissolves the association of a socket: a TCP connection ends as its linger option says.
    pub fn disconnect(fd: i32) -> Result<()> {
        let at = [libc::AF_UNSPEC as u64, 0];
        call!(SYS_connect, fd, &raw const at, 16).map(drop)
    }
    pub fn listen(fd: i32, backlog: i32) -> Result<()> {
        call!(SYS_listen, fd, backlog).map(drop)
    }
    pub fn accept(fd: i32, flags: i32) -> Result<i32> {
        call!(SYS_accept4, fd, 0, 0, flags).map(|fd| fd as i32)
    }
    /// [`accept`], and who it is: `None` if it is not IPv4 or IPv6.
    pub fn accept_from(fd: i32, flags: i32) -> Result<(i32, Option<std::net::SocketAddrV6>)> {
        // SAFETY: all zeros is a valid storage.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let new = call!(SYS_accept4, fd, &raw mut storage, &raw mut len, flags)?;
        Ok((new as i32, super::address(&storage)))
    }
    pub fn dup_above(fd: i32, min: i32) -> Result<i32> {
        call!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, min).map(|fd| fd as i32)
    }
    /// [`dup_above`] `least`, or, where that has no room, at any number that is no standard stream.
    pub fn dup_aside(fd: i32, least: i32) -> Result<i32> {
        dup_above(fd, least).or_else(|_| dup_above(fd, 3))
    }
    /// How many descriptors the kernel's table of this process has room for now.
    pub fn descriptor_table() -> Result<i32> {
        let fd = open(c"/proc/thread-self/status", libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
        let mut text = [0u8; 1024];
        let got = read(fd, &mut text);
        close(fd)?;
        let text = std::str::from_utf8(&text[..got?]).unwrap_or("");
        let line = text.lines().find_map(|line| line.strip_prefix("FDSize:"));
        line.and_then(|size| size.trim().parse().ok()).ok_or(libc::ENOENT)
    }
    /// Words of this process's own memory, wherever they are: what is not mapped is an error.
    pub fn peek_words(at: usize, to: &mut [u64]) -> Result<()> {
        let len = size_of_val(to);
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: len };
        let (local, remote) = (&raw const local, &raw const remote);
        let got = call!(SYS_process_vm_readv, getpid(), local, 1, remote, 1, 0)?;
        if got == len { Ok(()) } else { Err(libc::EFAULT) }
    }
    /// Writes words to memory that the program has handed to a call, as the kernel would: where nothing can be written is
    /// an error.
    ///
    /// # Safety
    ///
    /// No Rust reference leads there.
    pub unsafe fn poke_words(at: usize, words: &[u64]) -> Result<()> {
        let len = size_of_val(words);
        let local = libc::iovec { iov_base: words.as_ptr().cast_mut().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: len };
        let (local, remote) = (&raw const local, &raw const remote);
        let got = call!(SYS_process_vm_writev, getpid(), local, 1, remote, 1, 0)?;
        if got == len { Ok(()) } else { Err(libc::EFAULT) }
    }
    /// `sa_restorer` of a signal's action, 0 if it has none.
    #[cfg(target_arch = "x86_64")]
    pub fn restorer(signal: i32) -> Result<u64> {
        // The kernel's own structure: handler, flags, restorer, mask.
        let mut action = [0u64; 4];
        call!(SYS_rt_sigaction, signal, 0, action.as_mut_ptr(), 8)?;
        const SA_RESTORER: u64 = 0x0400_0000;
        Ok(if action[1] & SA_RESTORER != 0 { action[2] } else { 0 })
    }
    /// `ss_flags` of this thread's stack for signal handlers.
    pub fn signal_stack() -> Result<i32> {
        let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
        call!(SYS_sigaltstack, 0, stack.as_mut_ptr())?;
        // SAFETY: the kernel has written it.
        Ok(unsafe { stack.assume_init() }.ss_flags)
    }
    pub fn getfl(fd: i32) -> Result<i32> {
        call!(SYS_fcntl, fd, libc::F_GETFL).map(|v| v as i32)
    }
    /// Where reads of a file go on. `ESPIPE`: it has no places, as pipes, sockets and terminals have none.
    pub fn place(fd: i32) -> Result<usize> {
        call!(SYS_lseek, fd, 0, libc::SEEK_CUR)
    }
    pub fn getfd(fd: i32) -> Result<i32> {
        call!(SYS_fcntl, fd, libc::F_GETFD).map(|v| v as i32)
    }
    pub fn send(fd: i32, bytes: &[u8], flags: i32) -> Result<usize> {
        call!(SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, 0, 0)
    }
    pub fn recv(fd: i32, bytes: &mut [u8], flags: i32) -> Result<usize> {
        call!(SYS_recvfrom, fd, bytes.as_mut_ptr(), bytes.len(), flags, 0, 0)
    }
    /// [`recv`] with a null buffer: with `MSG_TRUNC` the kernel drops so many bytes, else it says
    /// `EFAULT`.
    pub fn recv_nowhere(fd: i32, n: usize, flags: i32) -> Result<usize> {
        call!(SYS_recvfrom, fd, 0, n, flags, 0, 0)
    }
    /// [`recv`] that does not wait, whatever the descriptor says; `None`: nothing is there yet.
    pub fn recv_now(fd: i32, bytes: &mut [u8]) -> Result<Option<usize>> {
        later(recv(fd, bytes, libc::MSG_DONTWAIT))
    }
    /// Takes from the error queue of a socket, some messages at most: words about what was sent that somebody has asked
    /// for who had the socket before. While one lies there the socket has an error to wait for that no reading finds.
    pub fn forget_errors(fd: i32) {
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        let _ = (0..64).take_while(|_| recv(fd, &mut [0], flags).is_ok()).count();
    }
    /// [`send`] that neither waits nor raises SIGPIPE; `None`: there is no room yet.
    pub fn send_now(fd: i32, bytes: &[u8]) -> Result<Option<usize>> {
        later(send(fd, bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL))
    }
    /// Whether an errno means that the same may work later.
    #[must_use]
    pub fn is_later(errno: i32) -> bool {
        matches!(errno, libc::EAGAIN | libc::EINTR | libc::ENOBUFS)
    }
    fn later(done: Result<usize>) -> Result<Option<usize>> {
        match done {
            Ok(n) => Ok(Some(n)),
            Err(errno) if is_later(errno) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
    pub fn read(fd: i32, bytes: &mut [u8]) -> Result<usize> {
        call!(SYS_read, fd, bytes.as_mut_ptr(), bytes.len())
    }
    pub fn pread(fd: i32, bytes: &mut [u8], at: i64) -> Result<usize> {
        call!(SYS_pread64, fd, bytes.as_mut_ptr(), bytes.len(), at)
    }
    pub fn pwrite(fd: i32, bytes: &[u8], at: i64) -> Result<usize> {
        call!(SYS_pwrite64, fd, bytes.as_ptr(), bytes.len(), at)
    }
    pub fn write(fd: i32, bytes: &[u8]) -> Result<usize> {
        call!(SYS_write, fd, bytes.as_ptr(), bytes.len())
    }
    /// What a pipe has room for, without waiting whether it may wait or not; Linux before 6.4 cannot (`EOPNOTSUPP`).
    pub fn write_now(fd: i32, bytes: *const [u8]) -> Result<usize> {
        let iov =
            libc::iovec { iov_base: bytes.cast::<libc::c_void>().cast_mut(), iov_len: bytes.len() };
        // At no place, which is what -1 says.
        call!(SYS_pwritev2, fd, &raw const iov, 1, usize::MAX, 0, libc::RWF_NOWAIT)
    }
    pub fn eventfd(value: u32) -> Result<i32> {
        call!(SYS_eventfd2, value, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).map(|fd| fd as i32)
    }
    pub fn epoll_create() -> Result<i32> {
        call!(SYS_epoll_create1, libc::EPOLL_CLOEXEC).map(|fd| fd as i32)
    }
    pub fn epoll_ctl(epfd: i32, op: i32, fd: i32, events: u32, data: u64) -> Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        call!(SYS_epoll_ctl, epfd, op, fd, &raw mut event).map(drop)
    }
    pub fn epoll_wait(
        epfd: i32,
        events: &mut [libc::epoll_event],
        timeout_ms: i32,
    ) -> Result<usize> {
        call!(SYS_epoll_pwait, epfd, events.as_mut_ptr(), events.len(), timeout_ms, 0, 8)
    }
    /// `poll` with a time limit in milliseconds (-1: none).
    pub fn poll(fds: &mut [libc::pollfd], timeout_ms: i32) -> Result<usize> {
        let ts = libc::timespec {
            tv_sec: i64::from(timeout_ms / 1000),
            tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000,
        };
        let limit = if timeout_ms < 0 { std::ptr::null() } else { &raw const ts };
        call!(SYS_ppoll, fds.as_mut_ptr(), fds.len(), limit, 0, 8)
    }
    /// Waits until the socket takes bytes, at most `ms`.
    pub fn wait_writable(fd: i32, ms: i32) {
        let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
        let _ = poll(&mut fds, ms);
    }
    /// Whether something can be written: now, and at all. Of a pipe that nobody will read neither is true, and to write
    /// there would be a signal.
    #[must_use]
    pub fn is_writable(fd: i32) -> (bool, bool) {
        let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
        let asked = poll(&mut fds, 0).is_ok();
        let at_all =
            asked && fds[0].revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) == 0;
        (at_all && fds[0].revents & libc::POLLOUT != 0, at_all)
    }
    /// Waits until the descriptor is readable or has ended, for so many milliseconds at most.
    pub fn wait_readable(fd: i32, ms: i32) {
        let _ = poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], ms);
    }
    /// Sleeps so long, or until a signal comes.
    pub fn pause_ms(ms: i32) {
        let _ = poll(&mut [], ms);
    }
    /// Whether the kernel says that the socket is hung up or in error.
    #[must_use]
    pub fn hung_up(fd: i32) -> bool {
        let mut fds = [libc::pollfd { fd, events: 0, revents: 0 }];
        poll(&mut fds, 0).is_ok_and(|n| n > 0)
    }
    /// Whether the kernel says that there is something to read, and whether an error waits: told without
    /// taking either.
    #[must_use]
    pub fn readable(fd: i32) -> (bool, bool) {
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        let _ = poll(&mut fds, 0);
        (fds[0].revents & libc::POLLIN != 0, fds[0].revents & libc::POLLERR != 0)
    }
    /// Whether the kernel says that the peer will send no more.
    #[must_use]
    pub fn ended(fd: i32) -> bool {
        let mut fds = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        poll(&mut fds, 0).is_ok_and(|n| n > 0)
    }
    /// Whether the kernel says that the peer will send no more, that both directions have ended, and that an error waits:
    /// told without taking it.
    #[must_use]
    pub fn ends_of(fd: i32) -> [bool; 3] {
        let mut fds = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        let _ = poll(&mut fds, 0);
        [libc::POLLRDHUP, libc::POLLHUP, libc::POLLERR].map(|bit| fds[0].revents & bit != 0)
    }
    /// Binds a socket to an address of its family.
    pub(crate) fn bind<T: Copy>(fd: i32, address: &T) -> Result<()> {
        call!(SYS_bind, fd, std::ptr::from_ref(address), size_of::<T>()).map(drop)
    }
    /// Connects a socket to an address of its family.
    pub(crate) fn connect<T: Copy>(fd: i32, address: &T) -> Result<()> {
        call!(SYS_connect, fd, std::ptr::from_ref(address), size_of::<T>()).map(drop)
    }
    /// # Safety
    ///
    /// Every pointer in the messages is valid for its length: to be read.
    pub(crate) unsafe fn sendmmsg(
        fd: i32,
        messages: &mut [libc::mmsghdr],
        flags: i32,
    ) -> Result<usize> {
        call!(SYS_sendmmsg, fd, messages.as_mut_ptr(), messages.len(), flags)
    }
    /// # Safety
    ///
    /// Every pointer in the messages is valid for its length: to be written, and by nobody else.
    pub(crate) unsafe fn recvmmsg(
        fd: i32,
        messages: &mut [libc::mmsghdr],
        flags: i32,
    ) -> Result<usize> {
        call!(SYS_recvmmsg, fd, messages.as_mut_ptr(), messages.len(), flags, 0)
    }
    /// An `ioctl` that reads and writes a structure.
    pub(crate) fn ioctl<T: Copy>(fd: i32, request: u64, value: &mut T) -> Result<usize> {
        call!(SYS_ioctl, fd, request, std::ptr::from_mut(value))
    }
    /// `bpf(2)`; what it answers may be a descriptor.
    pub(crate) fn bpf<T: Copy>(command: u32, attributes: &mut T) -> Result<i32> {
        call!(SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()).map(|fd| fd as i32)
    }
    /// Mounts a file system of that kind at no path; the descriptor is its root.
    pub(crate) fn mount_detached(kind: &CStr) -> Result<i32> {
        const CLOSE_ON_EXEC: u32 = 1;
        const CREATE: u32 = 6;
        let context = call!(SYS_fsopen, kind.as_ptr(), CLOSE_ON_EXEC)? as i32;
        let mount = call!(SYS_fsconfig, context, CREATE, 0, 0, 0)
            .and_then(|_| call!(SYS_fsmount, context, CLOSE_ON_EXEC, 0));
        let _ = close(context);
        mount.map(|fd| fd as i32)
    }
    /// Keeps the calling thread on one CPU.
    pub fn pin(cpu: u32) -> Result<()> {
        let mut set = [0u64; 16];
        let Some(word) = set.get_mut(cpu as usize / 64) else { return Err(libc::EINVAL) };
        *word |= 1 << (cpu % 64);
        call!(SYS_sched_setaffinity, 0, size_of_val(&set), set.as_ptr()).map(drop)
    }
    /// The CPUs that the calling thread may run on.
    #[must_use]
    pub fn cpus() -> Vec<u32> {
        let mut set = [0u64; 16];
        let _ = call!(SYS_sched_getaffinity, 0, size_of_val(&set), set.as_mut_ptr());
        (0u32..1024).filter(|cpu| set[*cpu as usize / 64] >> (cpu % 64) & 1 != 0).collect()
    }
    /// The CPU that the calling thread may run on, if there is only one.
    #[must_use]
    pub fn only_cpu() -> Option<u32> {
        let mut set = [0u64; 16];
        call!(SYS_sched_getaffinity, 0, size_of_val(&set), set.as_mut_ptr()).ok()?;
        let word = set.iter().position(|word| *word != 0)?;
        let all: u32 = set.iter().map(|word| word.count_ones()).sum();
        (all == 1).then(|| word as u32 * 64 + set[word].trailing_zeros())
    }
    pub fn shutdown(fd: i32, how: i32) -> Result<()> {
        call!(SYS_shutdown, fd, how).map(drop)
    }
    /// Value of an option of a plain integer type.
    pub fn getsockopt<T: Copy + Default>(fd: i32, level: i32, name: i32) -> Result<T> {
        let mut value = T::default();
        let mut len = size_of::<T>() as libc::socklen_t;
        call!(SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len)?;
        Ok(value)
    }
    /// The same of a value that is some bytes: how many.
    pub fn getsockopt_bytes(fd: i32, level: i32, name: i32, to: &mut [u8]) -> Result<usize> {
        let mut len = to.len() as libc::socklen_t;
        call!(SYS_getsockopt, fd, level, name, to.as_mut_ptr(), &raw mut len)?;
        Ok((len as usize).min(to.len()))
    }
    pub fn setsockopt<T: Copy>(fd: i32, level: i32, name: i32, value: T) -> Result<()> {
        call!(SYS_setsockopt, fd, level, name, &raw const value, size_of::<T>()).map(drop)
    }
    /// The value of an `ioctl` that answers one `int`.
    pub fn ioctl_int(fd: i32, request: u64) -> Result<i32> {
        let mut value = 0i32;
        call!(SYS_ioctl, fd, request, &raw mut value)?;
        Ok(value)
    }
    /// Local (`peer` false) or remote address; `None` if it is not IPv4 or IPv6.
    pub fn name(fd: i32, peer: bool) -> Result<Option<std::net::SocketAddrV6>> {
        Ok(name_and_family(fd, peer)?.0)
    }
    /// [`name`], and the family of the socket: `AF_INET6` also where the address is an IPv4 one.
    pub fn name_and_family(fd: i32, peer: bool) -> Result<(Option<std::net::SocketAddrV6>, i32)> {
        // SAFETY: all zeros is a valid storage.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        if peer {
            call!(SYS_getpeername, fd, &raw mut storage, &raw mut len)?;
        } else {
            call!(SYS_getsockname, fd, &raw mut storage, &raw mut len)?;
        }
        Ok((super::address(&storage), i32::from(storage.ss_family)))
    }
    /// Sets (or with `len` 0 asks for) a write lock on one byte, held by the open file.
    pub fn lock_byte(fd: i32, at: i64) -> Result<()> {
        // SAFETY: all zeros is a valid `flock`.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        lock.l_start = at;
        lock.l_len = 1;
        call!(SYS_fcntl, fd, libc::F_OFD_SETLK, &raw mut lock).map(drop)
    }
    /// A read lock on it: as many open files hold one as like, while none has it to write.
    pub fn share_byte(fd: i32, at: i64) -> Result<()> {
        // SAFETY: all zeros is a valid `flock`.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_RDLCK as i16;
        lock.l_start = at;
        lock.l_len = 1;
        call!(SYS_fcntl, fd, libc::F_OFD_SETLK, &raw mut lock).map(drop)
    }
    /// Gives it back.
    pub fn unlock_byte(fd: i32, at: i64) {
        // SAFETY: all zeros is a valid `flock`.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_UNLCK as i16;
        lock.l_start = at;
        lock.l_len = 1;
        let _ = call!(SYS_fcntl, fd, libc::F_OFD_SETLK, &raw mut lock);
    }
    /// Whether another open file holds a lock on the byte.
    pub fn byte_locked(fd: i32, at: i64) -> Result<bool> {
        is_locked(fd, at, 1)
    }
    /// Whether another open file holds a lock on any byte of the file.
    pub fn any_locked(fd: i32) -> Result<bool> {
        // As far as it goes.
        is_locked(fd, 0, 0)
    }
    fn is_locked(fd: i32, at: i64, bytes: i64) -> Result<bool> {
        // SAFETY: all zeros is a valid `flock`.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        lock.l_start = at;
        lock.l_len = bytes;
        call!(SYS_fcntl, fd, libc::F_OFD_GETLK, &raw mut lock)?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }
    /// Wakes up to `n` threads of this process that sleep on the word.
    pub fn futex_wake(word: &crate::sync::AtomicU32, n: i32) {
        let _ = call!(
            SYS_futex,
            std::ptr::from_ref(word),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            n
        );
    }
    /// Sleeps while the word has this value, at most `timeout`.
    pub fn futex_wait(
        word: &crate::sync::AtomicU32,
        value: u32,
        timeout: Option<libc::timespec>,
    ) -> Result<()> {
        let limit = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        call!(SYS_futex, std::ptr::from_ref(word), op, value, limit).map(drop)
    }
    /// Sleeps while the word, which is this process's own, has this value, at most until that time of the monotonic clock,
    /// nanoseconds, as a wait that goes on behind a signal handler with `SA_RESTART`. Since Linux 5.16.
    pub fn futex_wait_on(word: &crate::sync::AtomicU32, value: u32, until_ns: u64) -> Result<()> {
        futex_waitv(word, value, until_ns, libc::FUTEX_PRIVATE_FLAG)
    }
    /// Wakes all threads, of whatever process, that sleep on the word, which lies in shared memory.
    pub fn futex_wake_all(word: &crate::sync::AtomicU32) {
        let _ = call!(SYS_futex, std::ptr::from_ref(word), libc::FUTEX_WAKE, i32::MAX);
    }
    /// Sleeps while the word, which lies in shared memory, has this value, at most so many nanoseconds. A signal handler
    /// ends it.
    pub fn futex_nap(word: &crate::sync::AtomicU32, value: u32, ns: u64) -> Result<()> {
        let limit = libc::timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000).cast_signed(),
        };
        call!(SYS_futex, std::ptr::from_ref(word), libc::FUTEX_WAIT, value, &raw const limit)
            .map(drop)
    }
    /// The same until that time of the monotonic clock, nanoseconds, as a wait that goes on behind a signal handler with
    /// `SA_RESTART`. Since Linux 5.16.
    pub fn futex_nap_on(word: &crate::sync::AtomicU32, value: u32, until_ns: u64) -> Result<()> {
        futex_waitv(word, value, until_ns, 0)
    }
    /// `flags`: `FUTEX_PRIVATE_FLAG`, if no other process has the word.
    fn futex_waitv(
        word: &crate::sync::AtomicU32,
        value: u32,
        until_ns: u64,
        flags: i32,
    ) -> Result<()> {
        // `struct futex_waitv`: value, address, flags (a word of 32 bits).
        const FUTEX2_SIZE_U32: u64 = 2;
        let flags = FUTEX2_SIZE_U32 | u64::from(flags.unsigned_abs());
        let one = [u64::from(value), std::ptr::from_ref(word) as u64, flags];
        let until = libc::timespec {
            tv_sec: (until_ns / 1_000_000_000).cast_signed(),
            tv_nsec: (until_ns % 1_000_000_000).cast_signed(),
        };
        let (one, until) = (one.as_ptr(), &raw const until);
        call!(SYS_futex_waitv, one, 1, 0, until, libc::CLOCK_MONOTONIC).map(drop)
    }
    /// Whether system calls of this thread are filtered, so that it may be ended for one: not by filters of the program's
    /// own that only refuse.
    #[must_use]
    pub fn is_filtered() -> bool {
        if ENDING.load(Ordering::Relaxed) != 0 {
            return true;
        }
        if REFUSING.load(Ordering::Relaxed) != 0 {
            return false;
        }
        // `EINVAL`: a kernel without filters.
        !matches!(call!(SYS_prctl, libc::PR_GET_SECCOMP), Ok(0) | Err(libc::EINVAL))
    }
    /// [`is_filtered`] before the program's own code runs: what is so then was done by whoever has started it, and lets it do
    /// what we do from the beginning.
    #[must_use]
    pub fn begins_filtered() -> bool {
        let is_filtered = is_filtered();
        BEGUN_FILTERED.store(is_filtered, Ordering::Relaxed);
        is_filtered
    }
    /// Whether files may be read in `/proc` where calls [are filtered](is_filtered): by whoever has started the program, for
    /// we have opened files under that filter, and not by itself.
    #[must_use]
    pub fn may_read_filtered() -> bool {
        BEGUN_FILTERED.load(Ordering::Relaxed) && ENDING.load(Ordering::Relaxed) == 0
    }
    /// The program is about to have its own calls filtered: from now on it is not asked whether they are, for the question is
    /// a call too.
    pub fn will_be_filtered(may_end: bool) {
        let filters = if may_end { &ENDING } else { &REFUSING };
        filters.fetch_add(1, Ordering::Relaxed);
    }
    /// The kernel has not taken the filter of which that was said.
    pub fn was_not_filtered(may_end: bool) {
        let filters = if may_end { &ENDING } else { &REFUSING };
        filters.fetch_sub(1, Ordering::Relaxed);
    }
    /// Whether the kernel knows these flags of `seccomp(SECCOMP_SET_MODE_FILTER)`. It looks at them before the filter, and
    /// there is none at null.
    #[must_use]
    pub fn knows_filter_flags(flags: usize) -> bool {
        call!(SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, 0) == Err(libc::EFAULT)
    }
    /// Reads the name of this process (comm).
    #[must_use]
    pub fn comm() -> [u8; 16] {
        let mut name = [0u8; 16];
        let _ = call!(SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr());
        name
    }
}
/// Does what a signal may have ended without anything done, and then once more without signals: where they come faster than
/// it is done it would never be. Before Linux 6.10 tmpfs takes no pages while a signal waits.
fn despite_signals(mut act: impl FnMut() -> Result<()>) -> Result<()> {
    /// What cannot be blocked, and what the kernel has a thread do, ends it too, but does not come without end.
    const TRIES: usize = 16;
    match act() {
        Err(libc::EINTR) => {
            let _blocked = crate::handler::Blocked::new();
            let again = (0..TRIES).map(|_| act()).find(|done| *done != Err(libc::EINTR));
            again.unwrap_or(Err(libc::EINTR))
        }
        done => done,
    }
}

pub use calls::*;

const AF_INET: libc::sa_family_t = 2;
const AF_INET6: libc::sa_family_t = 10;

/// An address as the kernel writes it, and how many bytes of it count: as IPv6 or, mapped back, as IPv4.
#[must_use]
pub fn storage(at: std::net::SocketAddrV6, v6: bool) -> (libc::sockaddr_storage, usize) {
    // SAFETY: all zeros is a valid storage.
    let mut to: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    if let Some(ip) = at.ip().to_ipv4_mapped().filter(|_| !v6) {
        let from = v4(std::net::SocketAddrV4::new(ip, at.port()));
        // SAFETY: a storage is larger than, and aligned for, each family's structure.
        unsafe { (&raw mut to).cast::<libc::sockaddr_in>().write(from) };
        return (to, size_of::<libc::sockaddr_in>());
    }
    // SAFETY: all zeros is a valid address.
    let mut from: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    from.sin6_family = AF_INET6;
    from.sin6_port = at.port().to_be();
    from.sin6_addr.s6_addr = at.ip().octets();
    from.sin6_scope_id = at.scope_id();
    // SAFETY: as above.
    unsafe { (&raw mut to).cast::<libc::sockaddr_in6>().write(from) };
    (to, size_of::<libc::sockaddr_in6>())
}

/// Whether an address is one of this host's: whether a socket would be given the very same for its own
/// end.
#[must_use]
pub fn is_local(ip: &std::net::Ipv6Addr) -> bool {
    let Some(v4) = ip.to_ipv4_mapped() else { return false };
    let Ok(fd) = socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) else {
        return false;
    };
    let local = connect_v4(fd, std::net::SocketAddrV4::new(v4, 9))
        .and_then(|()| name(fd, false))
        .is_ok_and(|name| name.is_some_and(|n| n.ip() == ip));
    let _ = close(fd);
    local
}

/// An IPv4 address as the kernel reads it.
fn v4(at: std::net::SocketAddrV4) -> libc::sockaddr_in {
    // SAFETY: all zeros is a valid address.
    let mut to: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    to.sin_family = AF_INET;
    to.sin_port = at.port().to_be();
    to.sin_addr.s_addr = u32::from_ne_bytes(at.ip().octets());
    to
}

/// An IPv4 or IPv6 address in a kernel structure, IPv4 as IPv6-mapped; `None` for other families.
#[must_use]
pub fn address(storage: &libc::sockaddr_storage) -> Option<std::net::SocketAddrV6> {
    let at = std::ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: a storage is larger than, and aligned for, each family's structure.
            let v4 = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ip = std::net::Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).to_ipv6_mapped();
            Some(std::net::SocketAddrV6::new(ip, u16::from_be(v4.sin_port), 0, 0))
        }
        libc::AF_INET6 => {
            // SAFETY: the same.
            let v6 = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            let ip = std::net::Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(std::net::SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id))
        }
        _ => None,
    }
}

/// Time since boot, nanoseconds.
#[must_use]
#[inline]
pub fn now_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Time of day, nanoseconds since 1970.
#[must_use]
pub fn wall_ns() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

#[inline]
#[expect(clippy::cast_sign_loss, reason = "after 1970")]
fn clock(id: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer; libc's clock_gettime stays in the vDSO.
    unsafe { libc::clock_gettime(id, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Time that the calling thread has spent on a CPU, nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The CPU we run on (a hint: we may be moved at once).
#[must_use]
#[inline]
pub fn cpu() -> u32 {
    // SAFETY: always callable; answered from the thread's rseq area or the vDSO.
    let cpu = unsafe { libc::sched_getcpu() };
    cpu.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signals that this thread blocks.
    fn blocked() -> u64 {
        let now = set_blocked(u64::MAX);
        let _ = set_blocked(now);
        now
    }

    #[test]
    fn what_signals_end_is_done_without_them() {
        let before = blocked();
        let mut seen = Vec::new();
        let done = despite_signals(|| {
            seen.push(blocked());
            if seen.len() < 4 { Err(libc::EINTR) } else { Ok(()) }
        });
        assert_eq!((done, seen.len(), blocked()), (Ok(()), 4, before));
        let alarm = 1 << (libc::SIGALRM - 1);
        assert_eq!(seen[0], before);
        assert!(seen[1..].iter().all(|mask| mask & alarm != 0));
        // Nor for ever, and what else there is to say is said at once.
        assert_eq!(despite_signals(|| Err(libc::EINTR)), Err(libc::EINTR));
        assert_eq!(despite_signals(|| Err(libc::ENOSPC)), Err(libc::ENOSPC));
    }
}

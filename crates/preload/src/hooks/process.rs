//! Descriptors and processes: `close`, `dup`, `exec`, and what goes around libc.

use super::asynchronous::submits_plain;
use super::limits;
use super::*;
use crate::{carried, remains};

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    life::close(fd, || unsafe { real::close(fd) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __close(fd: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { close(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const UNSHARE: c_int = 2;
    const CLOEXEC: c_int = 4;
    // With flags that it does not know the kernel closes nothing.
    if fds::world().is_none() || first > last || flags & !UNSHARE != 0 || flags & CLOEXEC != 0 {
        // SAFETY: libc's contract, handed on.
        return unsafe { real::close_range(first, last, flags) };
    }
    // A thread that takes a table of its own closes nothing of the others'.
    if flags & UNSHARE == 0 || is_only_thread() {
        life::closing_range(first, last);
    }
    let mut done = 0;
    for (a, b) in life::around_ours(first, last) {
        // SAFETY: libc's contract, handed on.
        done |= unsafe { real::close_range(a, b, flags) };
    }
    done
}

/// Whether the process has no other thread, as far as that can be told.
fn is_only_thread() -> bool {
    // A link for each thread, and the folder's own two. Nothing is allocated: a child may come from a fork in which
    // another thread held the allocator.
    call::lstat(c"/proc/self/task").map_or(true, |stat| stat.st_nlink <= 3)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let from = u32::try_from(first).unwrap_or(0);
    if fds::world().is_none() {
        // SAFETY: libc's contract, handed on.
        return unsafe { real::closefrom(first) };
    }
    // SAFETY: libc's contract, handed on.
    unsafe { close_range(from, u32::MAX, 0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    let new = unsafe { real::dup(fd) };
    if !fds_borrowed_for(fd) {
        leads_to_stdio(fd, new);
        life::duplicated(fd, new);
    }
    new
}

/// A connection comes to be at `to`: where that is one of stdio's descriptors, which writes there without a call that we see,
/// it goes back to TCP. If it cannot, the program may have other plans.
pub(super) fn leads_to_stdio(fd: c_int, to: c_int) {
    if life::is_for_stdio(to)
        && let Some((w, conn)) = active(fd)
    {
        let _ = io::to_tcp(w, conn, fd, Reason::Stdio);
    }
}

/// Whether a `vfork` child makes this call on something that we follow.
pub(super) fn fds_borrowed_for(fd: c_int) -> bool {
    fds::look(fd).is_some() && fds::borrowed()
}

/// `is_valid`: whether the call is one that the kernel does.
unsafe fn dup_to(fd: c_int, to: c_int, is_valid: bool, call_it: impl Fn() -> c_int) -> c_int {
    if !is_valid {
        return call_it();
    }
    if !life::make_room(fd, to) {
        real::set_errno(libc::EMFILE);
        return -1;
    }
    let follows = fds::look(fd).is_some() || fds::look(to).is_some();
    if !follows || fd == to {
        return call_it();
    }
    if fds::borrowed() {
        // What a `vfork` child hands to the program that it becomes must be TCP. What was left the parent has put in its
        // place before: see `lending`.
        let stays = active(fd)
            .is_some_and(|(w, conn)| conn.is_socket(fd) && !io::to_tcp(w, conn, fd, Reason::Exec));
        let new = call_it();
        if stays && new == 0 {
            // It would read doorbells, or miss what is in the ring.
            remains::cut_here(new);
        }
        return new;
    }
    if fds::look(to).is_some() && call::getfd(fd).is_ok() && is_below_limit(to) {
        // The target is closed by this, as by `close`.
        life::close(to, || 0);
    }
    leads_to_stdio(fd, to);
    let new = call_it();
    life::duplicated(fd, new);
    new
}

/// Whether a descriptor may have this number, by `RLIMIT_NOFILE`. (One may be open that has it from before.)
fn is_below_limit(fd: c_int) -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a valid place.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    u64::try_from(fd).is_ok_and(|fd| fd < limit.rlim_cur)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { dup_to(fd, to, true, || real::dup2(fd, to)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { dup2(fd, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { dup_to(fd, to, flags & !libc::O_CLOEXEC == 0, || real::dup3(fd, to, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Some(conn) = fds::conn(fd)
        && let Some(w) = fds::world()
        && conn.phase() != Phase::Listener
        && !io::to_tcp(w, conn, fd, Reason::Stdio)
    {
        // stdio would read doorbells: better no stream at all.
        real::set_errno(libc::EIO);
        return std::ptr::null_mut();
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::fdopen(fd, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(file: *mut FILE) -> c_int {
    if !file.is_null() && fds::world().is_some() {
        // SAFETY: the caller's promise.
        let fd = unsafe { libc::fileno(file) };
        if fd >= 0 && fds::look(fd).is_some() && !fds::borrowed() {
            // libc closes the descriptor by itself.
            // SAFETY: libc's contract, handed on.
            return life::close(fd, || unsafe { real::fclose(file) });
        }
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::fclose(file) }
}

/// Runs another program, with `envp`, and with what is ours where it must not be without.
pub(super) unsafe fn run(
    envp: *const *const c_char,
    call_it: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    // SAFETY: libc's contract.
    let with = unsafe { carried::environment(envp) };
    let envp = with.as_ref().map_or(envp, |with| with.as_ptr());
    life::replacing(|| {
        let _lowered = limits::for_another_program();
        call_it(envp)
    })
}

/// The environment as it is now.
pub(super) fn environment() -> *const *const c_char {
    // SAFETY: libc's variable; who changes it meanwhile breaks `execv` as well.
    unsafe { environ }
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { run(envp, |envp| real::execve(path, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { run(environment(), |envp| real::execve(path, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvp(path: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { run(environment(), |envp| real::execvpe(path, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvpe(
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { run(envp, |envp| real::execvpe(path, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fexecve(
    fd: c_int,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { run(envp, |envp| real::fexecve(fd, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { run(envp, |envp| real::execveat(dir, path, argv, envp, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attrs: *const c_void,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    life::handing_over();
    // SAFETY: libc's contract.
    let with = unsafe { carried::environment(envp.cast()) };
    let envp = with.as_ref().map_or(envp, |with| with.as_ptr().cast());
    // SAFETY: libc's contract, handed on.
    unsafe { real::posix_spawn(pid, path, actions, attrs, argv, envp) }
}

/// A child will have the connection as another descriptor, which `exec` does not close, whatever this one says of that:
/// the calls that libc makes for the child are not seen.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    fd: c_int,
    to: c_int,
) -> c_int {
    if let Some((w, conn)) = active(fd) {
        io::to_tcp(w, conn, fd, Reason::Exec);
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attrs: *const c_void,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    life::handing_over();
    // SAFETY: libc's contract.
    let with = unsafe { carried::environment(envp.cast()) };
    let envp = with.as_ref().map_or(envp, |with| with.as_ptr().cast());
    // SAFETY: libc's contract, handed on.
    unsafe { real::posix_spawnp(pid, path, actions, attrs, argv, envp) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    life::handing_over();
    // SAFETY: libc's contract, handed on.
    unsafe { real::system(command) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    life::handing_over();
    // SAFETY: libc's contract, handed on.
    unsafe { real::popen(command, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setuid(id: c_uint) -> c_int {
    life::prepare_early();
    // SAFETY: libc's contract, handed on.
    unsafe { real::setuid(id) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn seteuid(id: c_uint) -> c_int {
    life::prepare_early();
    // SAFETY: libc's contract, handed on.
    unsafe { real::seteuid(id) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setreuid(r: c_uint, e: c_uint) -> c_int {
    life::prepare_early();
    // SAFETY: libc's contract, handed on.
    unsafe { real::setreuid(r, e) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setresuid(r: c_uint, e: c_uint, s: c_uint) -> c_int {
    life::prepare_early();
    // SAFETY: libc's contract, handed on.
    unsafe { real::setresuid(r, e, s) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    life::prepare_early();
    // SAFETY: libc's contract, handed on.
    unsafe { real::chroot(path) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(
    option: c_int,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
) -> c_int {
    if option == libc::PR_SET_SECCOMP || option == libc::PR_SET_NO_NEW_PRIVS {
        life::prepare_early();
    }
    let how = if option == libc::PR_SET_SECCOMP { Restriction::of_prctl(a, b) } else { None };
    // SAFETY: libc's contract, handed on.
    sandbox::restrict(how, || unsafe { real::prctl(option, a, b, c, d) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    life::leaving();
    // SAFETY: libc's contract, handed on.
    unsafe { real::_exit(status) };
    // SAFETY: always callable; only if libc had no `_exit`.
    unsafe { libc::abort() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn quick_exit(status: c_int) -> ! {
    life::leaving();
    // SAFETY: libc's contract, handed on.
    unsafe { real::quick_exit(status) };
    // SAFETY: always callable; only if libc had no `quick_exit`.
    unsafe { libc::abort() }
}

/// libc's tells the parent's handlers nothing when there is no child.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fork() -> pid_t {
    // SAFETY: libc's contract, handed on.
    let pid = unsafe { real::fork() };
    if pid < 0 {
        life::fork_failed();
    }
    pid
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __fork() -> pid_t {
    // SAFETY: libc's contract, handed on.
    unsafe { fork() }
}

/// `fork` without the handlers of `pthread_atfork`, of which we are one.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Fork() -> pid_t {
    // SAFETY: libc's contract, handed on.
    forking(|| unsafe { real::_Fork() })
}

fn forking(fork: impl FnOnce() -> pid_t) -> pid_t {
    life::fork_prepare();
    let pid = fork();
    if pid == 0 {
        life::fork_child();
    } else {
        life::fork_parent();
        if pid < 0 {
            life::fork_failed();
        }
    }
    pid
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: libc's contract, handed on.
    unsafe { _exit(status) }
}

/// Whether a child that is made by these arguments of the kernel's `clone` has memory and descriptors of its own, and goes on
/// where its parent does.
fn is_fork(flags: usize, stack: usize) -> bool {
    const SHARED: c_int = libc::CLONE_VM | libc::CLONE_FILES;
    stack == 0 && flags & SHARED.cast_unsigned() as usize == 0
}

#[unsafe(no_mangle)]
#[expect(clippy::cast_possible_truncation, reason = "a register holds an int in its lower half")]
pub unsafe extern "C-unwind" fn syscall(
    n: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if n == libc::SYS_io_uring_setup && fds::world().is_some() {
        // Programs fall back to epoll, which we can serve; what io_uring does to a socket we could
        // not see.
        real::set_errno(libc::ENOSYS);
        return -1;
    }
    if n == libc::SYS_clone && is_fork(a, b) {
        // SAFETY: as of `fork`, but for namespaces and the signal at the end, which are the caller's affair.
        return c_long::from(forking(|| unsafe { real::syscall(n, a, b, c, d, e, f) as pid_t }));
    }
    if n == libc::SYS_clone || n == libc::SYS_clone3 {
        fds::lend();
    }
    #[cfg(target_arch = "x86_64")]
    if n == libc::SYS_fork {
        // SAFETY: the call of this number, which has no arguments.
        return c_long::from(forking(|| unsafe { real::syscall(n, a, b, c, d, e, f) as pid_t }));
    }
    // SAFETY: the same calls by another name.
    unsafe {
        match n {
            libc::SYS_read => read(a as c_int, b as *mut c_void, c) as c_long,
            libc::SYS_write => write(a as c_int, b as *const c_void, c) as c_long,
            libc::SYS_readv => readv(a as c_int, b as *const iovec, c as c_int) as c_long,
            libc::SYS_writev => writev(a as c_int, b as *const iovec, c as c_int) as c_long,
            libc::SYS_recvfrom => recvfrom(
                a as c_int,
                b as *mut c_void,
                c,
                d as c_int,
                e as *mut sockaddr,
                f as *mut socklen_t,
            ) as c_long,
            libc::SYS_sendto => sendto(
                a as c_int,
                b as *const c_void,
                c,
                d as c_int,
                e as *const sockaddr,
                f as socklen_t,
            ) as c_long,
            libc::SYS_recvmsg => recvmsg(a as c_int, b as *mut msghdr, c as c_int) as c_long,
            libc::SYS_sendmsg => sendmsg(a as c_int, b as *const msghdr, c as c_int) as c_long,
            libc::SYS_io_submit if !submits_plain(b as c_long, c as *const *const c_void) => {
                real::set_errno(libc::EAGAIN);
                -1
            }
            libc::SYS_close => c_long::from(close(a as c_int)),
            libc::SYS_close_range => {
                c_long::from(close_range(a as c_uint, b as c_uint, c as c_int))
            }
            libc::SYS_dup => c_long::from(dup(a as c_int)),
            libc::SYS_dup3 => c_long::from(dup3(a as c_int, b as c_int, c as c_int)),
            libc::SYS_socket => c_long::from(socket(a as c_int, b as c_int, c as c_int)),
            libc::SYS_connect => {
                c_long::from(connect(a as c_int, b as *const sockaddr, c as socklen_t))
            }
            libc::SYS_accept4 => c_long::from(accept4(
                a as c_int,
                b as *mut sockaddr,
                c as *mut socklen_t,
                d as c_int,
            )),
            libc::SYS_shutdown => c_long::from(shutdown(a as c_int, b as c_int)),
            libc::SYS_epoll_ctl => {
                c_long::from(epoll_ctl(a as c_int, b as c_int, c as c_int, d as *mut epoll_event))
            }
            _ => by_number::other(n, [a, b, c, d, e, f]),
        }
    }
}

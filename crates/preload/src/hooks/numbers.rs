//! Calls that hand out descriptor numbers, of things that are not ours. A number that was closed past
//! us (by a system call of the program's own making) comes back here: what we knew of it is stale.

use super::*;

/// Forgets what a number was that has just been handed out.
fn made(fd: c_int) {
    if fd >= 0 && fds::look(fd).is_some() && !fds::borrowed() {
        life::fresh(fd);
    }
}

/// The same for a pair of numbers.
unsafe fn made_two(done: c_int, pair: *const c_int) {
    if done == 0 && fds::world().is_some() {
        for at in 0..2 {
            // SAFETY: the call has just written two numbers there.
            made(unsafe { pair.add(at).read_unaligned() });
        }
    }
}

macro_rules! makes {
    ($($name:ident($($arg:ident: $t:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $t),*) -> c_int {
            // SAFETY: libc's contract, handed on.
            let fd = unsafe { real::$name($($arg),*) };
            made(fd);
            fd
        }
    )*};
}

// The mode of `open` is a variadic argument, and where a fixed one would be: see `list_exec`.
makes! {
    open(path: *const c_char, flags: c_int, mode: c_uint);
    open64(path: *const c_char, flags: c_int, mode: c_uint);
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint);
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint);
    __open(path: *const c_char, flags: c_int, mode: c_uint);
    __open64(path: *const c_char, flags: c_int, mode: c_uint);
    __open_2(path: *const c_char, flags: c_int);
    __open64_2(path: *const c_char, flags: c_int);
    __openat_2(dir: c_int, path: *const c_char, flags: c_int);
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int);
    creat(path: *const c_char, mode: c_uint);
    creat64(path: *const c_char, mode: c_uint);
    memfd_create(name: *const c_char, flags: c_uint);
    eventfd(value: c_uint, flags: c_int);
    timerfd_create(clock: c_int, flags: c_int);
    signalfd(fd: c_int, mask: *const sigset_t, flags: c_int);
    inotify_init();
    inotify_init1(flags: c_int);
    pidfd_open(pid: pid_t, flags: c_uint);
}

/// What is fetched may be a connection of our own, by one more number.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int {
    // SAFETY: libc's contract, handed on.
    let mut new = unsafe { real::pidfd_getfd(pidfd, fd, flags) };
    if new == -1 && real::errno() == libc::ENOSYS {
        // Where libc is older than the call the kernel may have it.
        let [pidfd, fd] = [pidfd, fd].map(|number| number.cast_unsigned() as usize);
        // SAFETY: the same by its number.
        let got =
            unsafe { real::syscall(libc::SYS_pidfd_getfd, pidfd, fd, flags as usize, 0, 0, 0) };
        new = c_int::try_from(got).unwrap_or(-1);
    }
    if new >= 0 && fds::world().is_some() && !fds::borrowed() {
        life::arrived(new);
    }
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    pair: *mut c_int,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::socketpair(domain, kind, protocol, pair) };
    // SAFETY: written by libc.
    unsafe { made_two(done, pair) };
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pipe(pair: *mut c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::pipe(pair) };
    // SAFETY: written by libc.
    unsafe { made_two(done, pair) };
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __pipe(pair: *mut c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { pipe(pair) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pipe2(pair: *mut c_int, flags: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::pipe2(pair, flags) };
    // SAFETY: written by libc.
    unsafe { made_two(done, pair) };
    done
}

/// libc puts `/dev/null` over the first three numbers by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn daemon(stay: c_int, keep: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::daemon(stay, keep) };
    if done == 0 && keep == 0 {
        (0..3).for_each(made);
    }
    done
}

/// libc puts a terminal over the first three numbers by itself, and closes its own number.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn login_tty(fd: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::login_tty(fd) };
    if done == 0 {
        (0..3).for_each(made);
    }
    done
}

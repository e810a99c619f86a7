//! What a container may refuse its programs, and a program itself.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;

const fn op(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Has a program, and all that it starts, run under a filter as containers have them: netlink sockets are refused, by
/// which the kernel would say who is at the other end of a connection.
pub fn without_netlink(command: &mut Command) -> &mut Command {
    // SAFETY: two system calls, on values made before.
    unsafe { command.pre_exec(refuse_netlink) }
}

fn refuse_netlink() -> io::Result<()> {
    let call = u32::try_from(libc::SYS_socket).unwrap_or(u32::MAX);
    let refused = 0x0005_0000 | libc::EACCES.cast_unsigned();
    let mut filter = [
        op(LOAD, 0, 0, 0),
        op(EQUAL, call, 0, 3),
        op(LOAD, 16, 0, 0),
        op(EQUAL, libc::AF_NETLINK.cast_unsigned(), 0, 1),
        op(RETURN, refused, 0, 0),
        op(RETURN, ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: 6, filter: filter.as_mut_ptr() };
    // SAFETY: a filter of that length, which the kernel copies.
    unsafe { load(&program) }
}

/// Has a program, and all that it starts, be killed at any of these calls.
pub fn killed_for<'a>(command: &'a mut Command, calls: &'static [libc::c_long]) -> &'a mut Command {
    let forbid = || forbid(calls).map_err(io::Error::from_raw_os_error);
    // SAFETY: two system calls, and memory, which a child may take that the standard library has forked.
    unsafe { command.pre_exec(forbid) }
}

/// Kills this thread's process at any of these calls from now on.
pub fn forbid(calls: &[libc::c_long]) -> Result<(), i32> {
    answer(calls, KILL, ALLOW)
}

/// Refuses this thread these calls from now on.
pub fn refuse(calls: &[libc::c_long]) -> Result<(), i32> {
    answer(calls, 0x0005_0000 | libc::EPERM.cast_unsigned(), ALLOW)
}

/// Asks what filters the kernel has, as libseccomp does before it loads one.
pub fn ask() {
    let syscall = |operation: libc::c_uint, flags: usize, at: *mut libc::c_void| {
        // SAFETY: the kernel writes no more there than the question says, and changes nothing.
        let done = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, at) };
        if done < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
    };
    let none = std::ptr::null_mut();
    assert_eq!(syscall(libc::SECCOMP_SET_MODE_STRICT, 1, none), libc::EINVAL);
    // All threads, and none.
    for flags in [0, 1] {
        assert_eq!(syscall(libc::SECCOMP_SET_MODE_FILTER, flags, none), libc::EFAULT);
    }
    // Others may not be known.
    for flag in 1..6 {
        syscall(libc::SECCOMP_SET_MODE_FILTER, 1 << flag, none);
    }
    assert_eq!(syscall(libc::SECCOMP_SET_MODE_FILTER, 1 << 30, none), libc::EINVAL);
    let (mut errno, mut sizes) = (0x0005_0000u32, [0u16; 3]);
    syscall(libc::SECCOMP_GET_ACTION_AVAIL, 0, (&raw mut errno).cast());
    syscall(libc::SECCOMP_GET_NOTIF_SIZES, 0, (&raw mut sizes).cast());
    // SAFETY: there is no filter at null.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, 2, 0, 0, 0) }, -1);
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
}

/// Kills this thread's process at all calls but these from now on.
pub fn allow_only(calls: &[libc::c_long]) -> Result<(), i32> {
    answer(calls, ALLOW, KILL)
}

/// What comes of these calls from now on, and of all others.
fn answer(calls: &[libc::c_long], to_these: u32, to_others: u32) -> Result<(), i32> {
    let mut filter = vec![op(LOAD, 0, 0, 0)];
    for call in calls {
        filter.push(op(EQUAL, u32::try_from(*call).unwrap_or(u32::MAX), 0, 1));
        filter.push(op(RETURN, to_these, 0, 0));
    }
    filter.push(op(RETURN, to_others, 0, 0));
    let len = u16::try_from(filter.len()).unwrap_or(0);
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: a filter of that length, which the kernel copies.
    unsafe { load(&program) }.map_err(|e| e.raw_os_error().unwrap_or(0))
}

/// # Safety
///
/// The program is one.
unsafe fn load(program: &libc::sock_fprog) -> io::Result<()> {
    // SAFETY: the caller's promise.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, 2, std::ptr::from_ref(program))
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

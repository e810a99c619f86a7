//! `ptrace`, as far as a tracer of one thread needs it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::ptr::null_mut;

use super::{Ret, ret};

fn ask(request: libc::c_uint, pid: i32, data: usize) -> Ret {
    call!(libc::ptrace, request, pid, null_mut::<libc::c_void>(), data)
}

/// Starts a program that this thread traces: it stops before its first instruction.
///
/// # Errors
///
/// When it does not start.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let traced = || ask(libc::PTRACE_TRACEME, 0, 0).map(drop).map_err(io::Error::from_raw_os_error);
    // SAFETY: one system call, which a forked child may make.
    unsafe { command.pre_exec(traced) };
    command.spawn()
}

/// It is killed when this thread ends.
pub fn dies_with_us(pid: i32) -> Ret {
    ask(libc::PTRACE_SETOPTIONS, pid, libc::PTRACE_O_EXITKILL as usize)
}

/// Lets it go on until something stops it.
pub fn go_on(pid: i32) -> Ret {
    ask(libc::PTRACE_CONT, pid, 0)
}

/// Lets it make one step.
pub fn step(pid: i32) -> Ret {
    ask(libc::PTRACE_SINGLESTEP, pid, 0)
}

/// What has become of it, as `wait` says; `None`: nothing new, where one does not `wait`.
pub fn wait_for(pid: i32, wait: bool) -> Result<Option<i32>, i32> {
    let mut status = 0;
    let how = if wait { 0 } else { libc::WNOHANG };
    let found = call!(libc::waitpid, pid, &raw mut status, how)?;
    Ok((found > 0).then_some(status))
}

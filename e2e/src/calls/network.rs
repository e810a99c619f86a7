//! Networks of one's own.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has a program begin in a network namespace of its own.
pub fn of_its_own(command: &mut Command) {
    let unshare = || {
        // SAFETY: no memory is touched.
        match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: one system call.
    unsafe { command.pre_exec(unshare) };
}

//! What people are told on standard error.
//!
//! `eprintln!` ends the process where that cannot be written: on a disk that is full, say, or into a pipe that nobody reads.
//! A server is not to end for that, and a program is to be started all the same.

use std::fmt::Display;
use std::io::Write;

use rustix::event::{PollFd, PollFlags, poll};

/// A line, if it can be told.
pub(crate) fn line(words: impl Display) {
    plain(format_args!("{words}\n"));
}

/// The same with nothing behind it.
pub(crate) fn plain(words: impl Display) {
    let mut stderr = std::io::stderr();
    if is_read(&stderr) {
        // In one piece: others may write there as well.
        let _ = stderr.write_all(words.to_string().as_bytes());
    }
}

/// Whether nobody has closed the other end: a write would be answered by SIGPIPE, which most of our commands leave as it is,
/// for who runs them in front of `head`.
fn is_read(stderr: &std::io::Stderr) -> bool {
    let mut asked = [PollFd::new(stderr, PollFlags::OUT)];
    let known = poll(&mut asked, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok();
    !known || !asked[0].revents().contains(PollFlags::ERR)
}

//! What people are told on standard error.
//!
//! `eprintln!` ends the process where that cannot be written: on a disk that is full, say, or into a pipe that nobody reads.
//! A server is not to end for that, and a program is to be started all the same.

use std::fmt::Display;
use std::io::Write;

/// A line, if it can be told.
pub(crate) fn line(words: impl Display) {
    plain(format_args!("{words}\n"));
}

/// The same with nothing behind it.
pub(crate) fn plain(words: impl Display) {
    // In one piece: others may write there as well.
    let _ = std::io::stderr().write_all(words.to_string().as_bytes());
}

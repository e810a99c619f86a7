//! Lines for whoever runs the server.

use std::fmt::Arguments;
use std::io::Write as _;

/// Writes a line to standard error, by one system call: lines of several loops do not mix, and whoever logs on does
/// not wait for one call for each word. If nobody takes it any more the server goes on.
pub(super) fn say(line: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("shunt serve: {line}\n").as_bytes());
}

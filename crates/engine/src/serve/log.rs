//! Lines for whoever runs the server.

use std::fmt::Arguments;
use std::io::Write as _;

/// What was said, for tests.
#[cfg(test)]
pub(super) static SAID: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

/// Writes a line to standard error, by one system call: lines of several loops do not mix, and whoever logs on does
/// not wait for one call for each word. If nobody takes it any more the server goes on.
pub(super) fn say(line: Arguments<'_>) {
    #[cfg(test)]
    SAID.lock().expect("nobody panics with it").push(line.to_string());
    let _ = std::io::stderr().write_all(format!("shunt serve: {line}\n").as_bytes());
}

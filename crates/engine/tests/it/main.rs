//! A whole server over TCP, against a client made of the codecs of `smb`; and engines against each other.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod accounts;
mod between;
mod breaks;
mod client;
mod control;
mod creates;
mod files;
mod folders;
mod hostile;
mod information;
mod late;
mod levels;
mod mounted;
mod negotiate;
mod opens;
mod place;
mod posix;
mod reparse;
mod rights;
mod sequences;
mod sessions;
mod settings;
mod unix;

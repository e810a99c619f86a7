//! `shunt serve`: files to SMB clients.

mod access;
mod channel;
mod command;
pub mod config;
pub mod fs;
mod open;
mod pipe;
pub mod runtime;
mod server;
mod session;
mod start;
pub mod transfer;
mod users;
mod watch;

pub use server::Server;
pub use start::{NotStarted, Serving};

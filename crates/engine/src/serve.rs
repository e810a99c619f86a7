//! `shunt serve`: files to SMB clients.

mod access;
mod accounts;
mod acting;
mod aside;
mod channel;
mod closing;
mod command;
pub mod config;
pub mod control;
mod deleters;
pub mod fs;
mod kerberos;
mod log;
mod logons;
mod moved;
mod open;
mod pipe;
mod reload;
pub mod runtime;
mod server;
mod session;
mod start;
pub mod stat;
mod tally;
pub mod transfer;
mod users;
mod watch;

pub use accounts::CannotAct;
pub use kerberos::{NoKerberos, try_keytab};
pub use reload::Reloaded;
pub use server::Server;
pub use start::{NotStarted, Serving};

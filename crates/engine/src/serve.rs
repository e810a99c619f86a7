//! `shunt serve`: files to SMB clients.

pub mod fs;
mod runtime;

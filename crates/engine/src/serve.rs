//! `shunt serve`: files to SMB clients.

pub mod fs;
pub mod runtime;
pub mod transfer;

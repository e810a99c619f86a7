//! Two processes on one host: how they meet, switch to shared memory at an exact byte, and go back.

pub mod config;
pub mod reason;

pub use config::{Level, Limits};
pub use reason::Reason;

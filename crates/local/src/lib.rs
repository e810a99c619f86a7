//! Two processes on one host: how they meet, switch to shared memory at an exact byte, and go back.

pub mod arena;
pub mod board;
pub mod config;
pub mod conn;
pub mod log;
pub mod reason;
pub mod spin;
pub mod world;

pub use config::{Level, Limits};
pub use reason::Reason;

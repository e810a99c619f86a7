//! Two processes on one host: how they meet, switch to shared memory at an exact byte, and go back.

#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod beside;
#[cfg(not(loom))]
pub mod board;
#[cfg(not(loom))]
mod brief;
#[cfg(not(loom))]
pub mod config;
#[cfg(not(loom))]
pub mod conn;
#[cfg(not(loom))]
pub mod destination;
mod holders;
#[cfg(not(loom))]
pub mod log;
pub mod offer;
#[cfg(not(loom))]
pub mod reason;
#[cfg(not(loom))]
pub mod relay;
mod room;
#[cfg(not(loom))]
mod spared;
#[cfg(not(loom))]
pub mod spin;
mod switch;
#[cfg(not(loom))]
pub mod turns;
#[cfg(all(feature = "watchdog", not(loom)))]
pub mod watchdog;
#[cfg(not(loom))]
pub mod world;

#[cfg(not(loom))]
pub use config::{Level, Limits};
#[cfg(not(loom))]
pub use reason::Reason;

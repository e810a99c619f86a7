//! Devices from outside: packets of others, bad networks, hostile peers.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod congestion;
mod device;
mod hostile;
mod hosts;
mod network;
mod ops;
mod properties;
mod protocol;
mod runs;
mod vectors;

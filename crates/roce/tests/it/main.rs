//! Devices from outside: packets of others, bad networks, hostile peers.

mod hosts;
// mod hostile;
mod network;
// mod ops;
// mod properties;
mod protocol;
mod vectors;

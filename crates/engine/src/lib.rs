//! Every thread, socket, file and clock of Shunt: drives the crates that only compute.
//!
//! Protocol decisions are made below: what a fragment means is known to [`frag`] alone. Here is where
//! packets come from and where they go.

#![forbid(unsafe_code)]

mod control;
pub mod defrag;
mod ebpf;
pub mod metrics;
pub mod remote;
pub mod serve;

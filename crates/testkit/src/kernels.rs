//! Real Linux kernels as peers: guests under QEMU (emulated, so that any machine can) on a bridge in a
//! network namespace of their own.
//!
//! [`package`] finds a kernel and [`system`] programs of another architecture ([`apt`] fetches both), [`image`] makes an initramfs of it that boots straight into the program
//! `smcpeer`, [`network`] is the bridge, [`guest`] a machine on it that runs commands, [`state`] what a
//! kernel says of its SMC connections, [`capture`] what went over the bridge, and [`ending`] makes sure
//! that none of it stays behind.

pub mod apt;
pub mod architecture;
pub mod capture;
pub mod ending;
pub mod frame;
pub mod guest;
pub mod image;
pub mod network;
pub mod package;
pub mod state;
pub mod system;

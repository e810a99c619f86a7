//! The one crate with `unsafe`: shared memory, rings, wait words, raw system calls.
//!
//! It knows no protocol. What a word in shared memory *means* is said in [`abi`], when it may be
//! believed is said by the types that read it ([`ring`]), and how to sleep on it without losing a
//! wake-up is said in [`wait`].

pub mod abi;
#[cfg(not(loom))]
pub mod cache;
#[cfg(not(loom))]
pub mod call;
#[cfg(not(loom))]
pub mod diag;
#[cfg(not(loom))]
pub mod iov;
#[cfg(not(loom))]
pub mod lock;
#[cfg(not(loom))]
pub mod map;
pub mod ring;
pub mod sync;
pub mod wait;

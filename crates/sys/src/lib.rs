//! The one crate with `unsafe`: shared memory, rings, wait words, raw system calls.
//!
//! It knows no protocol. What a word in shared memory *means* is said in [`abi`], when it may be
//! believed is said by the types that read it ([`ring`]), and how to sleep on it without losing a
//! wake-up is said in [`wait`]. How packets come in past the kernel's own stack is said in [`packet`]
//! and [`xdp`]; which of them, by programs ([`bpf`]) that the caller writes. Programs for sockets are put
//! to work on a [`cgroup`]. [`udp`] moves datagrams by the batch, [`event`] waits for many descriptors at
//! once, [`uring`] has the kernel do things meanwhile. What of a file is in memory, and how its bytes reach a
//! socket in one copy, is said in [`residency`] and [`filemap`]; [`guarded`] copies what may be taken away, [`foreign`] outlives that. RDMA devices are reached by [`verbs`], Kerberos by
//! [`gssapi`].
//! What whoever started us has left for us to listen on is [`inherited`]. Sockets of a program that `shunt run`
//! may have started are called by [`stream`]. Which users the host has says [`accounts`], and as which of them a
//! thread touches files [`acting`]. Long checksums are made by [`crc`]. Whether a signal handler runs, or has left what it interrupted for good, finds
//! [`handler`]. What a process has in common with those it forks is [`common`], and how much memory it may have with those of its
//! control group [`memory_group`].

pub mod abi;
#[cfg(not(loom))]
pub mod accounts;
#[cfg(not(loom))]
pub mod acting;
#[cfg(not(loom))]
pub mod bpf;
#[cfg(not(loom))]
pub mod cache;
#[cfg(not(loom))]
pub mod call;
#[cfg(not(loom))]
pub mod cgroup;
#[cfg(not(loom))]
pub mod common;
#[cfg(not(loom))]
pub mod crc;
#[cfg(not(loom))]
pub mod delays;
#[cfg(not(loom))]
pub mod diag;
#[cfg(not(loom))]
pub mod event;
#[cfg(not(loom))]
pub mod filemap;
#[cfg(not(loom))]
pub mod foreign;
#[cfg(not(loom))]
pub mod gssapi;
#[cfg(not(loom))]
pub mod guarded;
#[cfg(not(loom))]
pub mod handler;
#[cfg(not(loom))]
pub mod inherited;
#[cfg(not(loom))]
pub mod interface;
#[cfg(not(loom))]
pub mod iov;
#[cfg(any(not(loom), test))]
mod lent;
#[cfg(not(loom))]
mod library;
#[cfg(any(not(loom), test))]
mod loans;
#[cfg(not(loom))]
pub mod lock;
#[cfg(not(loom))]
pub mod loopback;
#[cfg(not(loom))]
pub mod map;
#[cfg(not(loom))]
pub mod memory_group;
#[cfg(not(loom))]
pub mod packet;
#[cfg(not(loom))]
pub mod pages;
#[cfg(not(loom))]
pub mod passing;
#[cfg(not(loom))]
pub mod pids;
#[cfg(not(loom))]
pub mod residency;
pub mod ring;
#[cfg(not(loom))]
pub mod stamp;
#[cfg(not(loom))]
pub mod stream;
pub mod sync;
#[cfg(not(loom))]
pub mod tap;
#[cfg(not(loom))]
pub mod udp;
#[cfg(not(loom))]
pub mod uring;
#[cfg(not(loom))]
pub mod verbs;
pub mod wait;
#[cfg(not(loom))]
pub mod xdp;

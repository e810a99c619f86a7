//! RDMA devices, through libibverbs of rdma-core.
//!
//! The library is loaded when it is asked for ([`Library::load`]): a program that was built with this runs
//! without it. It was not the header that was copied but the binary interface of the library that is
//! written down here; a test compares the two.
//!
//! What belongs to what is ownership: a queue pair holds its completion queues and its protection domain,
//! these hold the device, and that holds the library. Whatever is dropped first, the library sees the right
//! order. All of it may be used by many threads, as libibverbs may.
//!
//! # Memory
//!
//! A device writes into memory at any time, on behalf of a peer that may lie. So there are no Rust
//! references to what is registered: [`Pinned`] is the promise, and [`Buffer`] keeps it. A [`Piece`] can
//! only be made of a region that it lies in. A peer reaches what it has the key of, and only if the region
//! was registered with [`Access::REMOTE_WRITE`]; the device sees to that.
//!
//! # What has to be there
//!
//! - **The library**: packages `libibverbs1` and `ibverbs-providers` (Debian, Ubuntu), `libibverbs` (Fedora,
//!   RHEL); version 32 of rdma-core or later. Without it [`LoadError`] says so.
//! - **The driver**: the kernel's module for the card, and `ib_uverbs`. Without a card, `rdma_rxe` makes a
//!   device of any Ethernet interface: `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0`.
//! - **Permission**: `/dev/infiniband/uverbs*` is open to everybody on most systems (rdma-core's udev rule);
//!   in a container it must be let in. Devices belong to a network namespace when `rdma system` says
//!   `exclusive`.
//! - **Memory that may be locked**: what is registered, and the queues, count against `RLIMIT_MEMLOCK`
//!   (`ulimit -l`; `LimitMEMLOCK=` of systemd). `ENOMEM` from [`MemoryRegion::register`],
//!   [`CompletionQueue::new`] or [`QueuePair::new`] mostly means that. `CAP_IPC_LOCK` is without limit.
//!
//! What there is, `rdma link` and `ibv_devinfo -v` show; [`Library::devices`] sees the same.

mod completion;
mod device;
mod library;
mod pair;
mod raw;
mod region;

use std::ffi::c_int;
use std::ptr::NonNull;

pub use crate::library::LoadError;
pub use completion::{
    BATCH, Broken, Completion, CompletionChannel, CompletionQueue, Done, Kind, Status, Wake,
};
pub use device::{AsyncEvent, Context, Device, Gid, GidKind, Limits, Port};
pub use library::Library;
pub use pair::{
    Attributes, Operation, PIECES_MAX, Path, Patience, PostError, QueuePair, SendRequest, Shape,
    Source, State,
};
pub use region::{Access, Buffer, MemoryRegion, Piece, Pinned, ProtectionDomain};

use crate::call::Failure;

/// Largest payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes: what fits in Ethernet's 1500.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// Its number in InfiniBand's messages, SMC's and `enum ibv_mtu`: 1 to 5.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::B256 => 1,
            Self::B512 => 2,
            Self::B1024 => 3,
            Self::B2048 => 4,
            Self::B4096 => 5,
        }
    }

    /// The one of that number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        let all = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];
        all.into_iter().find(|mtu| mtu.number() == number)
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        128 << self.number()
    }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Verbs answer 0, an errno, or -1 and leave the errno behind.
fn errno(ret: c_int) -> Result<(), i32> {
    match ret {
        0 => Ok(()),
        n if n > 0 => Err(n),
        _ => Err(last_errno()),
    }
}

fn outcome(step: &'static str, ret: c_int) -> Result<(), Failure> {
    errno(ret).map_err(Failure::at(step))
}

/// Verbs that make something answer null and leave the errno behind.
fn pointer<T>(step: &'static str, at: *mut T) -> Result<NonNull<T>, Failure> {
    NonNull::new(at).ok_or_else(|| Failure { step, errno: last_errno() })
}

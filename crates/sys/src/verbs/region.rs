//! Memory that a device may read and write.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::{Context, Open};
use super::{pointer, raw};
use crate::call::{self, Failure};

/// Memory whose place does not change and that nobody takes for Rust's own: a device writes there.
///
/// # Safety
///
/// For as long as the value lives, wherever it is moved: the bytes from [`Self::start`] on, as many as
/// [`Self::bytes`] says (both never change), are mapped, and there is no Rust reference to any of them.
pub unsafe trait Pinned: Send {
    /// The first byte.
    fn start(&self) -> *mut u8;
    /// How many.
    fn bytes(&self) -> usize;
}

/// Zeroed pages of our own for a device to read and write; a forked child does not have them.
#[derive(Debug)]
pub struct Buffer {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and its bytes are only copied.
unsafe impl Send for Buffer {}

// SAFETY: mapped until it is dropped; bytes are copied by pointers only.
unsafe impl Pinned for Buffer {
    fn start(&self) -> *mut u8 {
        self.start
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Buffer {
    /// So many bytes; not 0.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no room in our address space.
    pub fn new(bytes: usize) -> Result<Self, Failure> {
        let start = call::mmap_private(bytes).map_err(Failure::at("take memory for a device"))?;
        // Else a page that is written after a fork would be another one than the device's.
        // SAFETY: the mapping just made.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTFORK) };
        Ok(Self { start, bytes })
    }

    /// Copies bytes in, from offset `at` on. Who else uses the memory, the device at most, does not lose
    /// by it: what it reads meanwhile is some of the old and some of the new.
    ///
    /// # Panics
    ///
    /// If they do not lie within it.
    pub fn copy_in(&self, at: usize, from: &[u8]) {
        assert!(at <= self.bytes && from.len() <= self.bytes - at, "bytes of the buffer");
        let to = self.start.wrapping_add(at);
        // SAFETY: inside the mapping, as asserted, and not part of `from`: there are no references to it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// Copies bytes out, from offset `at` on: those that a completion has told of, or any others, which
    /// may change meanwhile.
    ///
    /// # Panics
    ///
    /// If they do not lie within it.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        assert!(at <= self.bytes && to.len() <= self.bytes - at, "bytes of the buffer");
        let from = self.start.wrapping_add(at);
        // SAFETY: inside the mapping, as asserted, and not part of `to`: there are no references to it.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        call::munmap(self.start, self.bytes);
    }
}

/// Freed when no region and no queue pair of it is left.
pub(super) struct DomainHandle {
    pub(super) open: Arc<Open>,
    pub(super) at: NonNull<raw::Domain>,
}

// SAFETY: libibverbs may be called by many threads, also with one protection domain.
unsafe impl Send for DomainHandle {}
// SAFETY: the same.
unsafe impl Sync for DomainHandle {}

impl Drop for DomainHandle {
    fn drop(&mut self) {
        // SAFETY: from `alloc_pd`, and freed here only; whatever was made of it holds us.
        unsafe { (self.open.symbols.dealloc_pd)(self.at.as_ptr()) };
    }
}

/// A protection domain: queue pairs use the memory regions of their own only.
#[derive(Clone)]
pub struct ProtectionDomain {
    pub(super) handle: Arc<DomainHandle>,
}

impl std::fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProtectionDomain").finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// The errno: `ENOMEM` if the device has no more.
    pub fn new(context: &Context) -> Result<Self, Failure> {
        let open = context.open.clone();
        // SAFETY: an open context.
        let at = unsafe { (open.symbols.alloc_pd)(open.at.as_ptr()) };
        let at = pointer("make a protection domain", at)?;
        Ok(Self { handle: Arc::new(DomainHandle { open, at }) })
    }
}

/// What may be done with memory beside reading it here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Receive requests may name it.
    pub local_write: bool,
    /// RDMA WRITE of the peer may. Needs `local_write`.
    pub remote_write: bool,
}

impl Access {
    /// For what is sent.
    pub const READ: Self = Self { local_write: false, remote_write: false };
    /// For what is received.
    pub const LOCAL_WRITE: Self = Self { local_write: true, remote_write: false };
    /// For what a peer writes to.
    pub const REMOTE_WRITE: Self = Self { local_write: true, remote_write: true };

    pub(super) fn bits(self) -> u32 {
        let bit = |set: bool, bit| if set { bit } else { 0 };
        bit(self.local_write, raw::access::LOCAL_WRITE)
            | bit(self.remote_write, raw::access::REMOTE_WRITE)
    }
}

/// A range of a memory region, for a work request. It may outlive its region: the device then refuses
/// the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) lkey: u32,
}

/// Memory that a device knows. When it is dropped the device forgets it, and only then does it go.
pub struct MemoryRegion<P> {
    /// Before the memory: fields go in this order.
    registration: Registration,
    address: u64,
    memory: P,
}

struct Registration {
    domain: Arc<DomainHandle>,
    at: NonNull<raw::Region>,
}

// SAFETY: libibverbs may be called by many threads.
unsafe impl Send for Registration {}
// SAFETY: the same; through a reference only what never changes is read.
unsafe impl Sync for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: from `reg_mr_iova`, and given back here only. When this returns the device has stopped using
        // the memory, which `MemoryRegion` frees after us; should it fail, the kernel still holds the pages.
        unsafe { (self.domain.open.symbols.dereg_mr)(self.at.as_ptr()) };
    }
}

impl<P: Pinned> std::fmt::Debug for MemoryRegion<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryRegion").field("bytes", &self.memory.bytes()).finish_non_exhaustive()
    }
}

impl<P: Pinned> MemoryRegion<P> {
    /// Makes memory known to the device. Its pages are taken and stay in place: they count against
    /// `RLIMIT_MEMLOCK`.
    ///
    /// # Errors
    ///
    /// The errno: `ENOMEM` if no more memory may be locked (`ulimit -l`) or the device has no more regions,
    /// `EFAULT` if it shall be written to and is mapped for reading only.
    pub fn register(domain: &ProtectionDomain, memory: P, access: Access) -> Result<Self, Failure> {
        let address = memory.start().addr() as u64;
        Self::register_at(domain, memory, address, access)
    }

    /// The same, with an address of one's own by which requests and peers name the first byte. Its place
    /// in a page of 4096 bytes is to be that of the memory.
    ///
    /// # Errors
    ///
    /// As [`Self::register`], and `EINVAL` if it cannot have that address.
    pub fn register_at(
        domain: &ProtectionDomain,
        memory: P,
        address: u64,
        access: Access,
    ) -> Result<Self, Failure> {
        let domain = domain.handle.clone();
        let (start, bytes) = (memory.start(), memory.bytes());
        let bits = c_int::try_from(access.bits()).unwrap_or(0);
        // SAFETY: a protection domain that we hold, and memory that stays as `Pinned` promises; we keep it
        // until after the region is given back.
        let at = unsafe {
            (domain.open.symbols.reg_mr_iova)(
                domain.at.as_ptr(),
                start.cast(),
                bytes,
                address,
                bits,
            )
        };
        let at = pointer("register memory with the device", at)?;
        Ok(Self { registration: Registration { domain, at }, address, memory })
    }

    /// The memory.
    pub fn memory(&self) -> &P {
        &self.memory
    }

    /// By which address requests and peers name its first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// What peers show to be let in.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: a region that is registered; the key does not change.
        unsafe { (*self.registration.at.as_ptr()).rkey }
    }

    /// `len` bytes from offset `at` on; `None`: they do not lie within it.
    #[must_use]
    pub fn piece(&self, at: usize, len: u32) -> Option<Piece> {
        let end = at.checked_add(usize::try_from(len).ok()?)?;
        // SAFETY: a region that is registered; the key does not change.
        let lkey = unsafe { (*self.registration.at.as_ptr()).lkey };
        let address = self.address.checked_add(at as u64)?;
        (end <= self.memory.bytes()).then_some(Piece { address, len, lkey })
    }
}

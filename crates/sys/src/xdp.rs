//! Frames of a receive queue, as the kernel writes them into our memory before its own stack has seen
//! them (`AF_XDP`).
//!
//! The memory (UMEM) is cut into chunks. A chunk is in one of three places: in the **fill ring**, where
//! the kernel takes it to put a frame in; with the reader, as a [`Frame`]; or in the list of those that
//! are **free**. [`Socket::next`] makes a frame of a chunk, [`Socket::release`] puts it in the list,
//! [`Socket::refill`] hands the free ones to the kernel. The last needs the socket for itself: so a slice
//! of a frame that was released is still good until then.
//!
//! Sockets of several queues can be made a **family** ([`Socket::family`]): each can read the others'
//! memory, and frames go from one to another without a copy. A frame that is **lent** ([`Socket::lend`])
//! is known by a number, its ticket, which may go any way between threads: only the socket that it is lent
//! to gets a frame for it, once ([`Socket::borrow`]). When that one has released it, its chunk goes back to
//! the owner with the next [`Socket::refill`] of each.

use std::cell::{Cell, RefCell};
use std::num::NonZero;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::call::{self, Failure};
use crate::interface::own;
use crate::loans::{Loans, Part};
use crate::sync::{AtomicU32, Ordering};

const SOL_XDP: i32 = 283;
const XDP_MMAP_OFFSETS: i32 = 1;
const XDP_RX_RING: i32 = 2;
const XDP_UMEM_REG: i32 = 4;
const XDP_UMEM_FILL_RING: i32 = 5;
const XDP_UMEM_COMPLETION_RING: i32 = 6;
const XDP_STATISTICS: i32 = 7;
const AT_RX: i64 = 0;
const AT_FILL: i64 = 0x1_0000_0000;
const USE_NEED_WAKEUP: u16 = 1 << 3;
/// What the kernel takes: half a page, or a page.
const CHUNK_BYTES: [u32; 2] = [2048, 4096];
/// We send nothing, but the kernel wants the ring.
const COMPLETIONS: u32 = 64;
/// How long a queue that is taken is waited for. The kernel takes it from a socket that was closed in a work
/// queue, behind a lock for all changes of interfaces: who starts again at once would find it taken by itself.
const GIVEN_BACK: Duration = Duration::from_secs(3);
/// How often it is looked at.
const BUSY: Duration = Duration::from_millis(20);

/// What a socket's memory is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many chunks.
    pub chunks: u32,
    /// Bytes of each: 2048 or 4096. The longest frame is 256 bytes less.
    pub chunk_bytes: u32,
    /// Entries of the rings; a power of two. So many chunks the kernel has at most.
    pub ring: u32,
}

/// A socket that reads one receive queue.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    fill: Ring,
    receive: Ring,
    /// Tells the frames that it has from those that another has. Never that of nobody: so many sockets are
    /// not opened.
    number: u32,
    shape: Shape,
    free: RefCell<Vec<u32>>,
    /// The chunks of all sockets of the family, and which of them are its own.
    family: Box<[Arc<Chunks>]>,
    own: usize,
    /// Others' chunks that were released, by family member.
    returns: RefCell<Box<[Vec<u32>]>>,
}

// SAFETY: the mappings of the rings belong to the socket alone, and whoever has the socket is the only one
// to use them: it is not `Sync`. What it shares with its family is `Sync`.
unsafe impl Send for Socket {}

/// A socket's memory, and to whom its chunks are lent.
#[derive(Debug)]
struct Chunks {
    memory: Memory,
    chunk_bytes: usize,
    loans: Loans,
}

// SAFETY: the bytes of a chunk are read by who has its frame, of which there is one, and written by the
// kernel while there is none.
unsafe impl Send for Chunks {}
// SAFETY: as above.
unsafe impl Sync for Chunks {}

impl Chunks {
    fn slice(&self, chunk: u32, at: u16, len: u16) -> *const [u8] {
        let at = chunk as usize * self.chunk_bytes + usize::from(at);
        let start = self.memory.start.wrapping_add(at).cast_const();
        std::ptr::slice_from_raw_parts(start, usize::from(len))
    }
}

/// A frame that came in. To be given back by [`Socket::release`]; one that is dropped is lost to the
/// socket.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// The socket that has it.
    holder: Holder,
    chunk: u32,
    /// Family member whose chunk it is.
    owner: u16,
    at: u16,
    len: u16,
}

/// Number of a socket, and one more: so an `Option` of a frame is no larger than a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder(NonZero<u32>);

impl Holder {
    const fn new(number: u32) -> Self {
        const { assert!(size_of::<Option<Frame>>() == size_of::<Frame>()) };
        Self(NonZero::<u32>::MIN.saturating_add(number))
    }
}

impl Frame {
    /// Leaves out `n` bytes at the beginning: the link's header.
    pub fn skip(&mut self, n: u32) {
        let n = u16::try_from(n).unwrap_or(u16::MAX).min(self.len);
        self.at += n;
        self.len -= n;
    }

    /// By what another socket of the family asks for it, once it is lent: see [`Socket::lend`].
    #[must_use]
    pub fn ticket(&self) -> u64 {
        u64::from(self.owner) << 32 | u64::from(self.chunk)
    }
}

/// What the kernel could not deliver. All counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Statistics {
    /// Frames for which there was no chunk, or that do not fit in one.
    pub dropped: u64,
    /// Chunks that were none.
    pub invalid: u64,
    invalid_sent: u64,
    /// Frames for which the receive ring had no room.
    pub ring_full: u64,
    /// Times that the fill ring was empty.
    pub fill_empty: u64,
    sent_empty: u64,
}

/// Anonymous memory of our own.
#[derive(Debug)]
struct Memory {
    start: *mut u8,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Result<Self, Failure> {
        let start = call::mmap_private(len).map_err(Failure::at("take memory for frames"))?;
        call::prefer_large_pages(start, len);
        Ok(Self { start, len })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        call::munmap(self.start, self.len);
    }
}

/// The kernel's `struct xdp_ring_offset`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Offsets {
    producer: u64,
    consumer: u64,
    entries: u64,
    flags: u64,
}

/// The kernel's `struct xdp_mmap_offsets`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct AllOffsets {
    receive: Offsets,
    send: Offsets,
    fill: Offsets,
    completion: Offsets,
}

/// The kernel's `struct xdp_umem_reg`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Registration {
    start: u64,
    len: u64,
    chunk_bytes: u32,
    headroom: u32,
    flags: u32,
    reserved: u32,
}

/// The kernel's `struct sockaddr_xdp`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Address {
    family: u16,
    flags: u16,
    interface: u32,
    queue: u32,
    shared: u32,
}

/// The kernel's `struct xdp_desc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Descriptor {
    at: u64,
    len: u32,
    options: u32,
}

/// A ring that the kernel shares, of which we have one end.
#[derive(Debug)]
struct Ring {
    map: Memory,
    offsets: Offsets,
    entries: u32,
    /// Our own cursor; the shared word is only for the kernel.
    cursor: Cell<u32>,
    /// The kernel's cursor when it was last looked at.
    seen: Cell<u32>,
}

impl Ring {
    fn map(
        fd: RawFd,
        page: i64,
        offsets: Offsets,
        entries: u32,
        bytes: usize,
    ) -> Result<Self, Failure> {
        let head = usize::try_from(offsets.entries).unwrap_or(usize::MAX);
        let len = head.saturating_add(entries as usize * bytes);
        let start =
            call::mmap_device(fd, len, page).map_err(Failure::at("map a ring of the socket"))?;
        let map = Memory { start, len };
        Ok(Self { map, offsets, entries, cursor: Cell::new(0), seen: Cell::new(0) })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        assert!(at <= self.map.len - 4 && at.is_multiple_of(4));
        // SAFETY: inside the mapping and aligned, as asserted; a cursor is only ever accessed as an
        // atomic, by us as by the kernel.
        unsafe { AtomicU32::from_ptr(self.map.start.wrapping_add(at).cast()) }
    }

    /// Where entry `cursor` of `T` is. In bounds, since `map` made room for `entries` of them.
    fn entry<T>(&self, cursor: u32) -> *mut T {
        let slot = (cursor & (self.entries - 1)) as usize;
        let at = usize::try_from(self.offsets.entries).unwrap_or(0) + slot * size_of::<T>();
        assert!(at + size_of::<T>() <= self.map.len);
        self.map.start.wrapping_add(at).cast()
    }

    /// The next entry that the kernel has put in.
    fn take(&self) -> Option<Descriptor> {
        let cursor = self.cursor.get();
        if cursor == self.seen.get() {
            self.give_back();
            // Acquire: pairs with the kernel's release of the entries.
            self.seen.set(self.word(self.offsets.producer).load(Ordering::Acquire));
            if cursor == self.seen.get() {
                return None;
            }
        }
        let entry: *mut Descriptor = self.entry(cursor);
        // SAFETY: `entry` checked that it lies in the ring; the kernel has written it and does not touch
        // it before our cursor, which is still behind, passes it.
        let descriptor = unsafe { entry.read() };
        self.cursor.set(cursor.wrapping_add(1));
        Some(descriptor)
    }

    /// Lets the kernel write again where we have read.
    fn give_back(&self) {
        // Release: what we read of earlier entries, before the kernel may write there again.
        self.word(self.offsets.consumer).store(self.cursor.get(), Ordering::Release);
    }

    /// Puts chunks in while there are some and there is room.
    fn put(&self, free: &mut Vec<u32>, chunk_bytes: u32) {
        // Acquire: pairs with the kernel's release of the entries that it has read.
        let consumed = self.word(self.offsets.consumer).load(Ordering::Acquire);
        let room = self.entries - self.cursor.get().wrapping_sub(consumed).min(self.entries);
        let keep = free.len().saturating_sub(room as usize);
        for chunk in free.drain(keep..) {
            let entry: *mut u64 = self.entry(self.cursor.get());
            // SAFETY: `entry` checked that it lies in the ring; the kernel has read what was there, as
            // `room` says, and reads it again only behind the store below.
            unsafe { entry.write(u64::from(chunk) * u64::from(chunk_bytes)) };
            self.cursor.set(self.cursor.get().wrapping_add(1));
        }
        // Release: the entries, before the cursor that says they are there.
        self.word(self.offsets.producer).store(self.cursor.get(), Ordering::Release);
    }
}

impl Socket {
    /// Opens a socket on a receive queue of an interface. A program must send frames to it: see
    /// [`crate::bpf`].
    ///
    /// # Errors
    ///
    /// The step and its errno: `EPERM` without `CAP_NET_RAW`, `EAFNOSUPPORT` if the kernel was built
    /// without `CONFIG_XDP_SOCKETS`, `EBUSY` if another socket has had the queue for three seconds (one
    /// that was closed has it for a moment yet), `EINVAL` if there is no such queue, `ENOBUFS` if the
    /// memory may not be locked (`ulimit -l`).
    ///
    /// # Panics
    ///
    /// If no socket can have that shape.
    pub fn open(interface: u32, queue: u32, shape: Shape) -> Result<Self, Failure> {
        let socket = Self::unbound(shape)?;
        socket.bind(interface, queue)?;
        Ok(socket)
    }

    fn unbound(shape: Shape) -> Result<Self, Failure> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        assert!(shape.ring.is_power_of_two() && CHUNK_BYTES.contains(&shape.chunk_bytes));
        let raw = call::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0)
            .map_err(Failure::at("open an AF_XDP socket"))?;
        let fd = own(raw);
        let memory = Memory::new(shape.chunks as usize * shape.chunk_bytes as usize)?;
        let registration = Registration {
            start: memory.start as u64,
            len: memory.len as u64,
            chunk_bytes: shape.chunk_bytes,
            headroom: 0,
            flags: 0,
            reserved: 0,
        };
        set(raw, XDP_UMEM_REG, registration).map_err(Failure::at("register memory for frames"))?;
        set(raw, XDP_UMEM_FILL_RING, shape.ring).map_err(Failure::at("make the fill ring"))?;
        set(raw, XDP_UMEM_COMPLETION_RING, COMPLETIONS)
            .map_err(Failure::at("make the completion ring"))?;
        set(raw, XDP_RX_RING, shape.ring).map_err(Failure::at("make the receive ring"))?;
        let at: AllOffsets = call::getsockopt(raw, SOL_XDP, XDP_MMAP_OFFSETS)
            .map_err(Failure::at("find the rings"))?;
        let fill = Ring::map(raw, AT_FILL, at.fill, shape.ring, size_of::<u64>())?;
        let receive = Ring::map(raw, AT_RX, at.receive, shape.ring, size_of::<Descriptor>())?;
        let free = RefCell::new((0..shape.chunks).rev().collect());
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (chunk_bytes, loans) = (shape.chunk_bytes as usize, Loans::new(shape.chunks));
        let family = [Arc::new(Chunks { memory, chunk_bytes, loans })].into();
        let returns = RefCell::new([Vec::new()].into());
        let mut socket = Self { fd, fill, receive, number, shape, free, family, own: 0, returns };
        socket.refill();
        Ok(socket)
    }

    fn bind(&self, interface: u32, queue: u32) -> Result<(), Failure> {
        let family = u16::try_from(libc::AF_XDP).unwrap_or(0);
        // Neither copy nor zero copy is asked for: the kernel takes what the driver can.
        let address = Address { family, flags: USE_NEED_WAKEUP, interface, queue, shared: 0 };
        let end = Instant::now() + GIVEN_BACK;
        loop {
            match call::bind(self.fd.as_raw_fd(), &address) {
                Err(libc::EBUSY) if Instant::now() < end => std::thread::sleep(BUSY),
                done => return done.map_err(Failure::at("bind to the queue")),
            }
        }
    }

    /// Makes a family of sockets, each of which can lend frames to each other: in the order in which they
    /// are here.
    ///
    /// # Panics
    ///
    /// If one has a family already, or has had a frame; or if they are more than 65,536.
    pub fn family(sockets: &mut [Self]) {
        let alone = |s: &Self| s.family.len() == 1 && s.receive.cursor.get() == 0;
        assert!(sockets.iter().all(alone), "a family is made once, before there are frames");
        assert!(sockets.len() <= 1 << 16, "a frame has 16 bits for its owner");
        let all: Vec<_> = sockets.iter().map(|s| Arc::clone(&s.family[0])).collect();
        for (own, socket) in sockets.iter_mut().enumerate() {
            socket.own = own;
            socket.family = all.clone().into();
            socket.returns = RefCell::new(vec![Vec::new(); all.len()].into());
        }
    }

    /// The number by which others of the family know it: for [`Self::lend`].
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Lends a frame to the socket of the family that has this number, which gets it by its
    /// [`ticket`](Frame::ticket). What has no such number gets nothing, and the chunk is lost.
    ///
    /// # Panics
    ///
    /// If the frame is not of one of this socket's own chunks.
    #[expect(clippy::needless_pass_by_value, reason = "who has a frame has its chunk")]
    pub fn lend(&self, frame: Frame, to: u32) {
        assert_eq!(frame.holder, Holder::new(self.number), "a frame of this socket");
        assert_eq!(usize::from(frame.owner), self.own, "what is borrowed is not lent");
        let part = Part { at: frame.at, len: frame.len };
        self.family[self.own].loans.lend(frame.chunk, part, to);
    }

    /// The frame that was lent to this socket, and its bytes. `None`: that ticket is of no such frame.
    #[must_use]
    pub fn borrow(&self, ticket: u64) -> Option<(Frame, &[u8])> {
        let owner = u16::try_from(ticket >> 32).ok()?;
        let chunk = u32::try_from(ticket & u64::from(u32::MAX)).ok()?;
        let chunks = self.family.get(usize::from(owner))?;
        let Part { at, len } = chunks.loans.borrow(chunk, self.number)?;
        let frame = Frame { holder: Holder::new(self.number), chunk, owner, at, len };
        let bytes = self.slice(&frame);
        Some((frame, bytes))
    }

    /// The next frame, and its bytes.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<(Frame, &[u8])> {
        loop {
            let descriptor = self.receive.take()?;
            let at = usize::try_from(descriptor.at).unwrap_or(usize::MAX);
            let chunk_bytes = self.shape.chunk_bytes as usize;
            // The kernel is trusted, but a wild slice is not worth the compare.
            let inside = at % chunk_bytes + descriptor.len as usize <= chunk_bytes;
            if at >= self.family[self.own].memory.len || !inside {
                continue;
            }
            // None is more than 2^16: a chunk has 4096 bytes at most.
            let narrow = |n: usize| u16::try_from(n).unwrap_or(0);
            let chunk = u32::try_from(at / chunk_bytes).unwrap_or(0);
            let at = narrow(at % chunk_bytes);
            let len = narrow(descriptor.len as usize);
            let holder = Holder::new(self.number);
            let frame = Frame { holder, chunk, owner: narrow(self.own), at, len };
            let bytes = self.slice(&frame);
            return Some((frame, bytes));
        }
    }

    /// The bytes of a frame.
    ///
    /// # Panics
    ///
    /// If another socket has it.
    #[must_use]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        self.slice(frame)
    }

    /// For as long as the socket is borrowed: a chunk returns to the kernel, or to its owner, only in
    /// [`Self::refill`].
    fn slice(&self, frame: &Frame) -> &[u8] {
        assert_eq!(frame.holder, Holder::new(self.number), "a frame of this socket");
        let bytes = self.family[usize::from(frame.owner)].slice(frame.chunk, frame.at, frame.len);
        // SAFETY: frames are made by `next`, which checked that they lie in the memory; `skip` only shortens
        // them, and `lend` and `borrow` hand them on as they are. Who has a frame has its chunk. One of our own
        // the kernel does not get before `refill` takes this socket for itself, which ends this borrow: not
        // even if it is lent meanwhile, and comes back. One of another socket that one does not have back
        // before our own `refill`, which likewise ends this borrow.
        unsafe { &*bytes }
    }

    /// Takes a frame back, its own or one that it has borrowed.
    ///
    /// # Panics
    ///
    /// If another socket has it.
    #[expect(clippy::needless_pass_by_value, reason = "who has a frame has its chunk")]
    pub fn release(&self, frame: Frame) {
        assert_eq!(frame.holder, Holder::new(self.number), "a frame of this socket");
        if usize::from(frame.owner) == self.own {
            self.free.borrow_mut().push(frame.chunk);
        } else {
            self.returns.borrow_mut()[usize::from(frame.owner)].push(frame.chunk);
        }
    }

    /// Gives free chunks to the kernel, as many as it takes, and those of others back to them; and the room in the
    /// receive ring of all frames that [`Self::next`] has made until now.
    pub fn refill(&mut self) {
        // With each burst, not only when all was read: after one that has filled the ring it would stay full for as long as
        // that takes.
        self.receive.give_back();
        for (chunks, returns) in self.family.iter().zip(self.returns.get_mut()) {
            chunks.loans.push_back(returns);
        }
        let free = self.free.get_mut();
        self.family[self.own].loans.take_back(free);
        self.fill.put(free, self.shape.chunk_bytes);
    }

    /// Chunks that are free and not in the fill ring.
    #[must_use]
    pub fn spare(&self) -> usize {
        self.free.borrow().len()
    }

    /// Sleeps until there is a frame, at most `ms`; a signal ends it, too, and so does the other descriptor when
    /// it can be read.
    pub fn wait(&self, other: Option<BorrowedFd<'_>>, ms: i32) {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // The kernel passes over a negative one.
        let other = other.map_or(-1, |fd| fd.as_raw_fd());
        let _ = call::poll(&mut [poll(self.fd.as_raw_fd()), poll(other)], ms);
    }

    /// What could not be delivered.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        call::getsockopt(self.fd.as_raw_fd(), SOL_XDP, XDP_STATISTICS).unwrap_or_default()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn set<T: Copy>(fd: RawFd, name: i32, value: T) -> Result<(), i32> {
    call::setsockopt(fd, SOL_XDP, name, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::Interface;

    const SHAPE: Shape = Shape { chunks: 64, chunk_bytes: 2048, ring: 32 };

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!(size_of::<AllOffsets>(), size_of::<libc::xdp_mmap_offsets>());
        assert_eq!(size_of::<Registration>(), size_of::<libc::xdp_umem_reg>());
        assert_eq!(size_of::<Address>(), size_of::<libc::sockaddr_xdp>());
        assert_eq!(size_of::<Statistics>(), size_of::<libc::xdp_statistics>());
        assert_eq!(size_of::<Descriptor>(), size_of::<libc::xdp_desc>());
    }

    #[test]
    fn a_socket_fills_its_ring_and_keeps_the_rest() {
        let lo = Interface::find("lo").unwrap().unwrap();
        let mut socket = match Socket::open(lo.index, 0, SHAPE) {
            Ok(socket) => socket,
            Err(e) => return println!("skipped: {e}"),
        };
        assert_eq!(socket.spare(), 32);
        socket.refill();
        assert_eq!(socket.spare(), 32, "the ring is full");
        assert!(socket.next().is_none());
        assert_eq!(socket.statistics(), Statistics::default());
    }

    #[test]
    fn what_was_read_of_a_full_ring_has_room_again_with_each_refill() {
        let mut socket = match Socket::unbound(SHAPE) {
            Ok(socket) => socket,
            Err(e) => return println!("skipped: {e}"),
        };
        // As the kernel does with frames of no bytes, each at the beginning.
        let word = |socket: &Socket, offset| socket.receive.word(offset).load(Ordering::Acquire);
        let Offsets { producer, consumer, .. } = socket.receive.offsets;
        socket.receive.word(producer).store(SHAPE.ring, Ordering::Release);
        for _ in 0..24 {
            let (frame, _) = socket.next().unwrap();
            socket.release(frame);
        }
        assert_eq!(word(&socket, consumer), 0, "not before it was released");
        socket.refill();
        assert_eq!(word(&socket, consumer), 24);
    }

    /// A frame such as the kernel brings, in a chunk that it does not have.
    fn frame(socket: &Socket, bytes: &[u8]) -> Frame {
        let chunk = socket.free.borrow_mut().pop().expect("chunks are free");
        let (owner, len) =
            (u16::try_from(socket.own).unwrap(), u16::try_from(bytes.len()).unwrap());
        let frame = Frame { holder: Holder::new(socket.number), chunk, owner, at: 256, len };
        let to = socket.family[socket.own].slice(chunk, 256, len).cast_mut().cast::<u8>();
        // SAFETY: in the memory, and nobody has that chunk.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        frame
    }

    /// Two that read no queue: what they share does not ask where frames come from.
    fn family() -> Option<[Socket; 2]> {
        match (Socket::unbound(SHAPE), Socket::unbound(SHAPE)) {
            (Ok(one), Ok(two)) => {
                let mut both = [one, two];
                Socket::family(&mut both);
                Some(both)
            }
            (Err(e), _) | (_, Err(e)) => {
                println!("skipped: {e}");
                None
            }
        }
    }

    #[test]
    fn a_frame_that_is_lent_is_the_others_until_it_is_released() {
        let Some([mut one, mut two]) = family() else { return };
        let mut lent = frame(&one, b"..from one");
        lent.skip(2);
        let ticket = lent.ticket();
        assert!(two.borrow(ticket).is_none(), "not before it is lent");
        one.lend(lent, two.number());
        assert!(one.borrow(ticket).is_none(), "only to whom it is lent");
        let (borrowed, bytes) = two.borrow(ticket).unwrap();
        assert_eq!((bytes, two.bytes(&borrowed)), (&b"from one"[..], &b"from one"[..]));
        assert!(two.borrow(ticket).is_none(), "once");
        two.release(borrowed);
        one.refill();
        assert_eq!((one.spare(), two.spare()), (31, 32), "not before the other says so");
        two.refill();
        one.refill();
        assert_eq!((one.spare(), two.spare()), (32, 32));
        for nonsense in [u64::MAX, 64, 2 << 32, 1 << 48] {
            assert!(one.borrow(nonsense).is_none());
        }
    }

    #[test]
    #[should_panic(expected = "a frame of this socket")]
    fn a_frame_is_not_released_by_who_does_not_have_it() {
        let Some([one, two]) = family() else {
            panic!("a frame of this socket, if there were one")
        };
        two.release(frame(&one, b"x"));
    }
}

//! Frames of an interface, as the kernel writes them into memory that it shares with us (`AF_PACKET`,
//! `TPACKET_V3`).
//!
//! The memory is a ring of blocks. The kernel fills one with frames and hands it over when it is full or
//! its time is up; [`Ring::next_block`] is that block. While a [`Block`] lives the kernel does not write
//! there, so its frames are plain slices that live as long as it; when it is dropped the kernel has it
//! back. Blocks may be kept for a while, but the kernel fills them in a circle: it stops at the first that
//! it does not have.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::bpf::{self, Classic};
use crate::call::{self, Failure};
use crate::interface::own;
use crate::sync::{AtomicU32, Ordering};

const VERSION_3: i32 = 2;
const STATUS_USER: u32 = 1;
const STATUS_KERNEL: u32 = 0;
const FRAME_VLAN: u32 = 1 << 4;
const FRAME_VLAN_TPID: u32 = 1 << 6;
const ETH_P_ALL: u16 = 3;
const OPTION_ADD_MEMBERSHIP: i32 = 1;
const OPTION_RING: i32 = 5;
const OPTION_STATISTICS: i32 = 6;
const OPTION_VERSION: i32 = 10;
const OPTION_FANOUT: i32 = 18;
const OPTION_FANOUT_PROGRAM: i32 = 22;
const FANOUT_CLASSIC: u32 = 6;
const FANOUT_UNIQUE: u32 = 0x2000;
const PROMISCUOUS: u16 = 1;
/// `ret 0`: lets nothing in.
const NOTHING: &[Classic] = &[Classic { code: 6, yes: 0, no: 0, k: 0 }];

/// What a ring is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many blocks.
    pub blocks: u32,
    /// Bytes of each; a multiple of the page size, and longer than the longest frame.
    pub block_bytes: u32,
    /// How long a block may take to fill before it is handed over all the same, milliseconds.
    pub patience_ms: u32,
}

/// A socket with its ring. It lets nothing in before [`Self::admit`].
#[derive(Debug)]
pub struct Ring {
    socket: OwnedFd,
    map: Arc<Map>,
    next: usize,
}

/// A socket that gets copies of packets, from the IP header on, one with each call: for what comes seldom and is
/// wanted at once. A ring's blocks come when they are full or their time is up.
#[derive(Debug)]
pub struct Copies(OwnedFd);

impl Copies {
    /// Of packets of an interface that pass the filter. Up to `bytes` of them wait for us.
    ///
    /// # Errors
    ///
    /// The step and its errno: `EPERM` without `CAP_NET_RAW`.
    pub fn open(interface: u32, filter: &[Classic], bytes: u32) -> Result<Self, Failure> {
        // Protocol 0: nothing comes in before the address is bound.
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let fd =
            call::socket(libc::AF_PACKET, kind, 0).map_err(Failure::at("open a packet socket"))?;
        let socket = own(fd);
        bpf::set_classic(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter)
            .map_err(Failure::at("set the filter"))?;
        // The kernel doubles what it is told. Less room loses more, and nothing else.
        let bytes = i32::try_from(bytes / 2).unwrap_or(i32::MAX);
        if call::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
            let _ = call::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
        }
        bind(&socket, interface).map_err(Failure::at("bind to the interface"))?;
        Ok(Self(socket))
    }

    /// The next packet, cut where `into` ends; bytes of it. Never waits.
    ///
    /// # Errors
    ///
    /// The errno: `EAGAIN` when there is none.
    pub fn receive(&self, into: &mut [u8]) -> Result<usize, i32> {
        call::recv_now(self.0.as_raw_fd(), into)?.ok_or(libc::EAGAIN)
    }
}

impl AsRawFd for Copies {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

/// Packets of this interface come in from now on.
fn bind(socket: &OwnedFd, interface: u32) -> Result<(), i32> {
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).unwrap_or(0),
        sll_protocol: ETH_P_ALL.to_be(),
        sll_ifindex: interface.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    call::bind(socket.as_raw_fd(), &address)
}

/// The memory of a ring. It stays while there is the ring or one of its blocks.
#[derive(Debug)]
struct Map {
    start: *mut u8,
    shape: Shape,
    /// Which blocks there is a [`Block`] for.
    taken: Box<[AtomicBool]>,
}

// SAFETY: bytes of a block are only read through its one `Block`, and its status is an atomic.
unsafe impl Send for Map {}
// SAFETY: the same.
unsafe impl Sync for Map {}

/// How many frames came in, and how many found no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Statistics {
    /// Frames that passed the filter, those that found no room among them.
    pub frames: u32,
    /// Frames that found no room in the ring.
    pub dropped: u32,
    /// Times that the ring was full.
    pub frozen: u32,
}

/// The kernel's `struct tpacket_req3`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Request {
    block_bytes: u32,
    blocks: u32,
    frame_bytes: u32,
    frames: u32,
    patience_ms: u32,
    private_bytes: u32,
    features: u32,
}

/// The kernel's `struct packet_mreq`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Membership {
    interface: u32,
    kind: u16,
    address_len: u16,
    address: [u8; 8],
}

impl Ring {
    /// Opens a ring on an interface.
    ///
    /// # Errors
    ///
    /// The step and its errno: `EPERM` without `CAP_NET_RAW`, `ENOMEM` if there is no memory for it,
    /// `ENETDOWN` if the interface is down.
    ///
    /// # Panics
    ///
    /// If no ring can have that shape.
    pub fn open(interface: u32, shape: Shape) -> Result<Self, Failure> {
        assert!(shape.blocks > 0 && shape.block_bytes >= 4096);
        // Protocol 0: nothing comes in before the address is bound.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let fd =
            call::socket(libc::AF_PACKET, kind, 0).map_err(Failure::at("open a packet socket"))?;
        let socket = own(fd);
        set(&socket, OPTION_VERSION, VERSION_3).map_err(Failure::at("choose TPACKET_V3"))?;
        bpf::set_classic(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, NOTHING)
            .map_err(Failure::at("close the filter"))?;
        set(&socket, OPTION_RING, shape.request()).map_err(Failure::at("make the ring"))?;
        let start = call::mmap_device(fd, shape.bytes(), 0).map_err(Failure::at("map the ring"))?;
        let taken = (0..shape.blocks).map(|_| AtomicBool::new(false)).collect();
        let ring = Self { socket, map: Arc::new(Map { start, shape, taken }), next: 0 };
        bind(&ring.socket, interface).map_err(Failure::at("bind to the interface"))?;
        Ok(ring)
    }

    /// Takes in what is addressed to others, too.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn promiscuous(&self, interface: u32) -> Result<(), Failure> {
        let member = Membership { interface, kind: PROMISCUOUS, address_len: 0, address: [0; 8] };
        set(&self.socket, OPTION_ADD_MEMBERSHIP, member)
            .map_err(Failure::at("make the interface promiscuous"))
    }

    /// Makes a group of rings, of which each frame reaches one: that which the program answers, modulo
    /// their number. The rings of the group are numbered in the order in which they join.
    ///
    /// # Errors
    ///
    /// The step and its errno.
    pub fn found_group(&self, program: &[Classic]) -> Result<u16, Failure> {
        set(&self.socket, OPTION_FANOUT, (FANOUT_CLASSIC | FANOUT_UNIQUE) << 16)
            .map_err(Failure::at("make a fanout group"))?;
        bpf::set_classic(&self.socket, libc::SOL_PACKET, OPTION_FANOUT_PROGRAM, program)
            .map_err(Failure::at("set the fanout program"))?;
        let group: u32 = call::getsockopt(self.socket.as_raw_fd(), libc::SOL_PACKET, OPTION_FANOUT)
            .map_err(Failure::at("read the fanout group"))?;
        Ok(u16::try_from(group & 0xffff).unwrap_or(0))
    }

    /// Joins a group that another ring has made.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn join_group(&self, group: u16) -> Result<(), Failure> {
        set(&self.socket, OPTION_FANOUT, FANOUT_CLASSIC << 16 | u32::from(group))
            .map_err(Failure::at("join the fanout group"))
    }

    /// Lets in what the filter says, from now on; what the host sends, too, unless it says otherwise. Not before all rings of a group have joined, or a
    /// frame might reach two.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if the program is none.
    pub fn admit(&self, filter: &[Classic]) -> Result<(), Failure> {
        bpf::set_classic(&self.socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter)
            .map_err(Failure::at("set the filter"))
    }

    /// Lets nothing in any more. What has come is handed over as before.
    ///
    /// # Errors
    ///
    /// The errno: `ENOMEM` if there is no memory for it.
    pub fn refuse(&self) -> Result<(), Failure> {
        self.admit(NOTHING)
    }

    /// The next block that the kernel has handed over, if there is one and we do not have it already.
    #[must_use]
    pub fn next_block(&mut self) -> Option<Block> {
        let index = self.next;
        // Acquire: pairs with the release in the block's drop.
        if self.map.taken[index].load(Ordering::Acquire) {
            return None;
        }
        // Acquire: pairs with the kernel's barrier between the frames and the status.
        if self.map.status(index).load(Ordering::Acquire) & STATUS_USER == 0 {
            return None;
        }
        self.map.taken[index].store(true, Ordering::Relaxed);
        self.next = (index + 1) % self.map.taken.len();
        Some(Block { map: Arc::clone(&self.map), index })
    }

    /// Sleeps until there is a block, at most `ms`; a signal ends it, too. An interface that is set down
    /// brings nothing until it is up again. Does not sleep while the block that was handed over last is
    /// kept.
    pub fn wait(&self, ms: i32) {
        let fd = self.socket.as_raw_fd();
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        let _ = call::poll(&mut fds, ms);
        if fds[0].revents & libc::POLLERR != 0 {
            // Told once; or the next wait would end at once.
            let _ = call::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
        }
    }

    /// What has come in since this was asked last.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        call::getsockopt(self.socket.as_raw_fd(), libc::SOL_PACKET, OPTION_STATISTICS)
            .unwrap_or_default()
    }
}

impl Map {
    /// Where a block begins.
    fn block(&self, index: usize) -> *mut u8 {
        assert!(index < self.taken.len());
        self.start.wrapping_add(index * self.shape.block_bytes as usize)
    }

    /// The word of a block that says whose it is.
    fn status(&self, index: usize) -> &AtomicU32 {
        let word = self.block(index).wrapping_add(at::STATUS);
        // SAFETY: inside of a block that is mapped while we live, aligned, since blocks begin at pages,
        // and only ever accessed as an atomic, by us as by the kernel.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        call::munmap(self.start, self.shape.bytes());
    }
}

impl Shape {
    fn bytes(self) -> usize {
        self.blocks as usize * self.block_bytes as usize
    }

    fn request(self) -> Request {
        // Frames are packed one behind the other; the kernel wants these numbers all the same.
        let frame_bytes = 4096;
        Request {
            block_bytes: self.block_bytes,
            blocks: self.blocks,
            frame_bytes,
            frames: self.block_bytes / frame_bytes * self.blocks,
            patience_ms: self.patience_ms,
            private_bytes: 0,
            features: 0,
        }
    }
}

fn set<T: Copy>(socket: &OwnedFd, name: i32, value: T) -> Result<(), i32> {
    call::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, name, value)
}

/// Where things are in `struct tpacket_block_desc` and `struct tpacket3_hdr`.
mod at {
    pub(super) const STATUS: usize = 8;
    pub(super) const COUNT: usize = 12;
    pub(super) const FIRST: usize = 16;
    pub(super) const NEXT: usize = 0;
    pub(super) const SECONDS: usize = 4;
    pub(super) const NANOSECONDS: usize = 8;
    pub(super) const CAPTURED: usize = 12;
    pub(super) const LENGTH: usize = 16;
    pub(super) const FLAGS: usize = 20;
    pub(super) const LINK: usize = 24;
    pub(super) const TAG: usize = 32;
    pub(super) const TAG_KIND: usize = 36;
    pub(super) const HEADER_BYTES: usize = 48;
}

/// A block that is ours until it is dropped.
#[derive(Debug)]
pub struct Block {
    map: Arc<Map>,
    index: usize,
}

/// A frame in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'b> {
    /// Its bytes, from the link's header on.
    pub bytes: &'b [u8],
    /// Where they begin in [`Block::bytes`].
    pub at: usize,
    /// How many there were; more than `bytes` has if it was cut.
    pub length: u32,
    /// When it came, nanoseconds since 1970.
    pub time_ns: u64,
    /// The VLAN tag that the card has taken out of the frame: its kind and its control word.
    pub tag: Option<(u16, u16)>,
}

impl Block {
    /// All of its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let start = self.map.block(self.index);
        // SAFETY: a block lies whole in the mapping, which lives while we do. The kernel does not write
        // there before we are dropped, for which this borrow must have ended; nobody else has this block,
        // as `taken` says.
        unsafe { std::slice::from_raw_parts(start, self.map.shape.block_bytes as usize) }
    }

    /// Its frames, in the order in which they came.
    #[must_use]
    pub fn frames(&self) -> Frames<'_> {
        let bytes = self.bytes();
        let (left, at) = (word(bytes, at::COUNT), word(bytes, at::FIRST));
        Frames { bytes, at: at as usize, left }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Release: all that we read, before the kernel may write.
        self.map.status(self.index).store(STATUS_KERNEL, Ordering::Release);
        // Release: the status, before it is looked at again.
        self.map.taken[self.index].store(false, Ordering::Release);
    }
}

/// Frames that are left in a block.
#[derive(Clone, Debug)]
pub struct Frames<'b> {
    bytes: &'b [u8],
    at: usize,
    left: u32,
}

impl<'b> Iterator for Frames<'b> {
    type Item = Frame<'b>;

    fn next(&mut self) -> Option<Frame<'b>> {
        self.left = self.left.checked_sub(1)?;
        let head = self.bytes.get(self.at..self.at + at::HEADER_BYTES)?;
        let begin = self.at + usize::from(half(head, at::LINK));
        let bytes = self.bytes.get(begin..begin + word(head, at::CAPTURED) as usize)?;
        let (seconds, rest) = (word(head, at::SECONDS), word(head, at::NANOSECONDS));
        let frame = Frame {
            bytes,
            at: begin,
            length: word(head, at::LENGTH),
            time_ns: u64::from(seconds) * 1_000_000_000 + u64::from(rest),
            tag: tag(head),
        };
        self.at += word(head, at::NEXT) as usize;
        Some(frame)
    }
}

fn tag(head: &[u8]) -> Option<(u16, u16)> {
    const ETH_P_8021Q: u16 = 0x8100;
    let flags = word(head, at::FLAGS);
    let kind = if flags & FRAME_VLAN_TPID == 0 { ETH_P_8021Q } else { half(head, at::TAG_KIND) };
    let control = u16::try_from(word(head, at::TAG) & 0xffff).unwrap_or(0);
    (flags & FRAME_VLAN != 0).then_some((kind, control))
}

fn word(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn half(b: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([b[at], b[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::Interface;

    const SHAPE: Shape = Shape { blocks: 4, block_bytes: 1 << 16, patience_ms: 5 };
    /// All that comes in; a group of rings sees what goes out, too.
    const ALL: &[Classic] = &[
        Classic { code: 0x20, yes: 0, no: 0, k: 0xffff_f004 },
        Classic { code: 0x15, yes: 1, no: 0, k: 4 },
        Classic { code: 6, yes: 0, no: 0, k: u32::MAX },
        Classic { code: 6, yes: 0, no: 0, k: 0 },
    ];

    fn open() -> Option<Ring> {
        let lo = Interface::find("lo").unwrap().unwrap();
        if !lo.up {
            println!("skipped: the loopback interface is down");
            return None;
        }
        match Ring::open(lo.index, SHAPE) {
            Ok(ring) => Some(ring),
            Err(e) => {
                println!("skipped: {e}");
                None
            }
        }
    }

    /// How long what comes for certain may take, and for how long nothing has to come, nanoseconds.
    const SOME: u64 = 20_000_000_000;
    const NONE: u64 = 500_000_000;

    /// Counts frames that end with `mark`, for so long or until there are `enough`.
    fn count(ring: &mut Ring, mark: &[u8], enough: usize, patience_ns: u64) -> usize {
        let mut seen = 0;
        let until = call::now_ns() + patience_ns;
        while seen < enough && call::now_ns() < until {
            ring.wait(20);
            let Some(block) = ring.next_block() else { continue };
            for frame in block.frames().filter(|frame| frame.bytes.ends_with(mark)) {
                assert_eq!(frame.length as usize, frame.bytes.len());
                assert!(call::wall_ns().abs_diff(frame.time_ns) < 60_000_000_000);
                assert_eq!(&block.bytes()[frame.at..][..frame.bytes.len()], frame.bytes);
                seen += 1;
            }
        }
        seen
    }

    fn send(mark: &[u8], times: usize) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..times {
            socket.send_to(mark, socket.local_addr().unwrap()).unwrap();
        }
    }

    #[test]
    fn frames_come_in_as_they_were_sent_round_and_round() {
        let Some(mut ring) = open() else { return };
        send(b"before the gate opens", 10);
        ring.admit(ALL).unwrap();
        let (mut frames, mut spoilt) = (0, 0);
        for round in 0..20 {
            loop {
                let mark = format!("packet ring, {round}, {spoilt}, {}", std::process::id());
                send(mark.as_bytes(), 10);
                let seen = count(&mut ring, mark.as_bytes(), 10, SOME);
                let statistics = ring.statistics();
                frames += statistics.frames;
                if seen == 10 {
                    break;
                }
                // Whatever passes this interface, which is everybody's, comes here, and may be too much for a moment.
                spoilt += 1;
                assert!(statistics.dropped > 0 && spoilt < 5, "{seen} in round {round}");
            }
        }
        assert!(frames >= 200);
        assert_eq!(count(&mut ring, b"before the gate opens", 1, NONE), 0);
    }

    #[test]
    fn a_block_that_is_kept_is_not_handed_out_again() {
        let Some(mut ring) = open() else { return };
        ring.admit(ALL).unwrap();
        let mut kept = Vec::new();
        let until = call::now_ns() + SOME;
        while kept.len() < 4 && call::now_ns() < until {
            send(b"fills a block, sooner or later", 20);
            kept.extend(ring.next_block());
        }
        assert_eq!(kept.len(), 4);
        send(b"there is no room for this", 20);
        ring.wait(20);
        assert!(ring.next_block().is_none());
        let first = kept[0].bytes().to_vec();
        drop(ring);
        assert!(kept[0].bytes() == first, "a block outlives its ring");
    }

    #[test]
    fn each_frame_reaches_one_ring_of_a_group() {
        let (Some(mut a), Some(mut b)) = (open(), open()) else { return };
        // Answers 1, whatever comes.
        let group = a.found_group(&[Classic { code: 6, yes: 0, no: 0, k: 1 }]).unwrap();
        b.join_group(group).unwrap();
        a.admit(ALL).unwrap();
        b.admit(ALL).unwrap();
        let mark = format!("fanout {}", std::process::id());
        send(mark.as_bytes(), 5);
        assert_eq!(count(&mut b, mark.as_bytes(), 5, SOME), 5);
        assert_eq!(count(&mut a, mark.as_bytes(), 1, NONE), 0);
    }
}

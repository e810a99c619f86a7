//! What is in the shared file: the board, the process slots, the halves and the ring blocks.
//!
//! One file per user, network namespace and layout, `<dir>/board-…`, is mapped once by each process:
//!
//! ```text
//! 0        Header
//! PORTS    [u32; 65536]     who listens on a port: slot + 1 (0: nobody under Shunt), and PORT_OFFERED
//! OFFERS   [u64; BUCKETS]   client half + 1, and once taken the server half + 1 above it
//! OWNERS   [u32; EXTENTS]   who owns an extent of the data region: slot + 1 (0: free)
//!          and OWNER_HALVES if it holds halves, which it then does for ever
//! DESTINATIONS [u64]        where connections to other hosts stay on TCP for now; written by the engine
//! SLOTS    [Slot; SLOTS]    one per process
//! DATA     extents of 4 MiB: halves (512 bytes each) and ring blocks
//! ```
//!
//! The board and the slots are writable by each process of the user; an extent is writable by its
//! owner (and what it forks), read-only for everybody else (but who shares an event set with the
//! owner). Words have one writer unless their documentation says "compare and swap". A reader checks a word before it uses it.
//!
//! Old guests outlive a new tool: a change of layout changes [`VERSION`], which is part of the file's
//! name, so that programs of two versions run side by side, each accelerated among its own. A word that is added where there
//! were zeros, and says nothing as zero, is no change.

use crate::sync::{AtomicU32, AtomicU64};

/// First word of the file, set last when it is made.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SHUNTbrd");
/// Layout of everything in this module.
pub const VERSION: u32 = 13;

/// Processes that may hold connections at one time.
pub const SLOTS: usize = 1024;
/// Offer buckets; a power of two.
pub const BUCKETS: usize = 1 << 17;
/// Offers that share a hash: one cache line of buckets.
pub const BUCKET_WAYS: usize = 8;
/// Bytes in an extent, the unit in which processes take address space; pages are taken as needed.
pub const EXTENT_BYTES: usize = 4 << 20;
/// Extents in the file, the board's own included.
pub const EXTENTS: usize = 4096;
/// Bytes of address space that the file takes. Pages are taken as they are used.
pub const FILE_BYTES: usize = EXTENTS * EXTENT_BYTES;
/// The smallest ring block and the unit of [`Loc`], in bytes.
pub const BLOCK_BYTES: usize = 16 << 10;
/// Bytes in a half.
pub const HALF_BYTES: usize = 512;
/// Event loops of one process that poll in memory; more use doorbells.
pub const LOOPS: usize = 32;
/// Waiters of one process: its event loops, and calls of `poll` that nap, of which more do not.
pub const WAITERS: usize = LOOPS + 16;
/// Lines of the table of destinations; a power of two.
pub const DESTINATION_LINES: usize = 512;
/// Destinations that share a line: one cache line of words.
pub const DESTINATION_WAYS: usize = 8;
/// Bit of an owner word: the extent holds halves; without it, ring blocks. Alone: its owner is gone, and who takes it next
/// finds halves there that are free.
pub const OWNER_HALVES: u32 = 1 << 31;
/// Halves in a block.
pub const HALVES_PER_BLOCK: usize = BLOCK_BYTES / HALF_BYTES;
/// Reason codes counted in a slot.
pub const REASONS: usize = 64;

/// Offset of the port table.
pub const PORTS_AT: usize = 4096;
/// In the word of a port: somebody has offered a connection to it. Set before that client's first byte,
/// and never before there was one, so a server without such clients need not look for their offers.
pub const PORT_OFFERED: u32 = 1 << 31;
/// Offset of the offer buckets.
pub const OFFERS_AT: usize = PORTS_AT + 65536 * 4;
/// Offset of the extent owners.
pub const OWNERS_AT: usize = OFFERS_AT + BUCKETS * 8;
/// Offset of the destinations.
pub const DESTINATIONS_AT: usize = OWNERS_AT + EXTENTS * 4;
/// Offset of the process slots.
pub const SLOTS_AT: usize = 4 << 20;
/// Offset of the first extent that a process may own.
pub const DATA_AT: usize = 16 << 20;

const _: () = assert!(DESTINATIONS_AT + DESTINATION_LINES * DESTINATION_WAYS * 8 <= SLOTS_AT);
const _: () = assert!(DESTINATIONS_AT.is_multiple_of(64));
#[cfg(not(loom))]
const _: () = assert!(SLOTS_AT + SLOTS * size_of::<Slot>() <= DATA_AT);
// Loom's atomics are larger; its models share no file.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Half>() == HALF_BYTES && size_of::<Slot>() == 8192);

/// The head of the file.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`] when the rest is valid.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Effective user id of the maker.
    pub uid: AtomicU32,
    /// `SO_NETNS_COOKIE` of the network namespace; 0: the file is for all of them.
    pub netns: AtomicU64,
    /// Slots ever used: how far a scan must look.
    pub slots_used: AtomicU32,
    /// Extents ever used, the board's own included: how far a scan must look.
    pub extents_used: AtomicU32,
    /// Slot plus one of the process that takes connections to other hosts; 0: there is none.
    pub engine: AtomicU32,
    /// Name of the socket option by which the sockets of its guests ask for the TCP option; 0: there is
    /// none. The highest bit is not part of it: [`ENGINE_MEETS`].
    pub engine_option: AtomicU32,
    /// Number of the abstract address at which the engine also takes guests that cannot come to its path, plus one; 0:
    /// there is none, as in a file of before there was this word.
    pub engine_side: AtomicU32,
    /// What is to be said there first: nobody knows it who may not read this file.
    pub engine_key: [AtomicU32; 3],
    /// Not 0: somebody has offered a connection whose server may see other addresses and ports than its client does.
    pub routed: AtomicU32,
    /// Not 0: new connections stay on TCP. What counts is the file that says so in the directory of the board, and this is
    /// what it said when somebody looked last: 1 or 0, so that the lowest byte alone tells.
    pub off: AtomicU32,
    /// Not 0: the engine takes no new connections, because it is to end.
    pub engine_drains: AtomicU32,
}

/// Of [`Header::engine_option`]: the engine asks those of other hosts which connections they share, so that
/// guests hand over connections whose peers have not announced SMC in the TCP handshake.
pub const ENGINE_MEETS: u32 = 1 << 31;

/// A cache line with one word on it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line {
    /// The word.
    pub word: AtomicU32,
}

/// A process. Written by its owner; [`Slot::state`] and [`Slot::generation`] by compare and swap.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    /// [`slot_state`].
    pub state: AtomicU32,
    /// Counts the owners that this slot has had.
    pub generation: AtomicU32,
    /// Process id in the owner's own pid namespace.
    pub pid: AtomicU32,
    /// Effective user id when the slot was taken.
    pub uid: AtomicU32,
    /// `CLOCK_REALTIME` seconds when the slot was taken.
    pub since: AtomicU64,
    /// Bytes of data region owned.
    pub bytes_owned: AtomicU64,
    /// Bytes of ring blocks handed out.
    pub bytes_used: AtomicU64,
    /// Name of the program (comm), NUL-padded, little endian.
    pub comm: [AtomicU64; 2],
    /// Connections of this process that stayed on or went back to TCP, by reason.
    pub reasons: [AtomicU32; REASONS],
    /// Connections ever attached.
    pub attached: AtomicU64,
    /// Of these, those that this process had made with `connect()`.
    pub attached_clients: AtomicU64,
    /// Connections ever closed after they were attached.
    pub closed: AtomicU64,
    /// Event counters of this process: see [`Totals`].
    pub totals: Totals,
    /// Sleep words: whether and how that waiter sleeps. See [`crate::wait`].
    pub waiters: [Line; WAITERS],
    /// How many attached connections lead to each other slot: memory of a dead process is reused
    /// when nobody alive leads to it.
    pub links: [AtomicU32; SLOTS],
    /// CPU on which an event loop of this process was seen last; `u32::MAX`: none was yet.
    pub cpu: AtomicU32,
    /// The one CPU on which this process may run, plus one; 0: there are several, or it is not known.
    pub bound: AtomicU32,
    /// Offers of this process that its event loops have looked at: one at each look.
    pub offer_looks: AtomicU64,
    /// Counts the offers of this process that were taken, written by the takers: while it stays nothing was, and no
    /// offer need be looked at.
    pub taken: Line,
    /// The namespace of [`Slot::pid`], by its inode number; 0: it is not known.
    pub pids: AtomicU64,
    /// The control group whose limit binds the owner's memory: see [`crate::memory_group`]; 0: there is none, or it is not
    /// known.
    pub memory_group: AtomicU64,
    _pad2: [AtomicU64; 54],
}

/// Counters of connections that have gone.
#[derive(Debug)]
#[repr(C)]
pub struct Totals {
    /// Bytes sent through rings.
    pub bytes_tx: AtomicU64,
    /// Bytes received through rings.
    pub bytes_rx: AtomicU64,
    /// Doorbells sent.
    pub bells: AtomicU64,
    /// Sleeps in the kernel.
    pub sleeps: AtomicU64,
    /// Waits that spinning answered.
    pub spins: AtomicU64,
    /// Times a sender found the ring full.
    pub stalls: AtomicU64,
    /// Calls that sent.
    pub sends: AtomicU64,
    /// Calls that received bytes.
    pub receives: AtomicU64,
}

/// Values of [`Slot::state`].
pub mod slot_state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// Being taken or reclaimed.
    pub const BUSY: u32 = 1;
    /// Owned by a process that holds the lock byte of this slot.
    pub const LIVE: u32 = 2;
}

/// One end of a connection: what it tells the other end, and what it remembers itself.
///
/// Written by the process that owns it (and what it forks, under the locks; and who shares an event set with it, which says
/// what was told), read by the peer.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Half {
    // Line 0: how far we have sent. The one line that travels with each message: nothing that the sender
    // reads for it may be here, or it would have to fetch the line back from the peer that polls it.
    /// Stream offset after the last byte written to the ring.
    pub tail: AtomicU64,
    /// `SO_COOKIE` of our socket.
    pub cookie: AtomicU64,
    /// `CLOCK_REALTIME` nanoseconds of the offer or the attachment.
    pub since: AtomicU64,
    /// Descriptor number in the owning process, for people.
    pub fd: AtomicU32,
    _unused: AtomicU32,
    _pad0: [AtomicU64; 4],

    // Line 1: what we send, and how to wake us. Rarely written, so that both ends have it at hand. CPUs
    // fetch lines in pairs: what is beside the line that the peer polls must be quiet.
    /// Where the ring is: [`Loc`].
    pub loc: AtomicU64,
    /// [`half_flags`].
    pub flags: AtomicU32,
    /// CPU that last wrote here.
    pub cpu: AtomicU32,
    /// Doorbell bytes that were announced: at most so many follow `up_at` in the TCP stream.
    pub bells: AtomicU32,
    /// Not 0 while we wait for room in the ring; changes with each wait.
    pub room_wait: AtomicU32,
    /// TCP stream offset at which our bytes go on in the ring; valid with [`half_flags::UP`].
    pub up_at: AtomicU64,
    /// Ring offset at which our bytes go on in TCP; valid with [`half_flags::DOWN`].
    pub down_at: AtomicU64,
    /// Ring that our bytes go to from `next_at` on, if it is not 0; see [`Half::loc`].
    pub next_loc: AtomicU64,
    /// Stream offset of the first byte in the next ring.
    pub next_at: AtomicU64,
    /// How we want to be woken: [`crate::wait::WaitWord`].
    pub wait: AtomicU64,

    // Line 2: who we are.
    /// [`half_state`].
    pub state: AtomicU32,
    /// Counts the connections that this half has served.
    pub generation: AtomicU32,
    /// The other half, plus one; 0: none.
    pub peer: AtomicU32,
    /// Generation of the other half.
    pub peer_generation: AtomicU32,
    /// Slot of the process that owns this half.
    pub slot: AtomicU32,
    /// Why the connection is on TCP: see `local::Reason`; 0: it is not. In the engine's half of a connection to
    /// another host also a number of SMC's (RFC 7609 A.2.4), with the top bit set if the peer has said it.
    pub reason: AtomicU32,
    /// 1: we called `connect()`; 0: we called `accept()`.
    pub client: AtomicU32,
    /// Ports, ours in the low half.
    pub ports: AtomicU32,
    /// Our address: IPv6, or IPv4 mapped into it, as two big-endian words.
    pub local_addr: [AtomicU64; 2],
    /// The peer's address.
    pub remote_addr: [AtomicU64; 2],

    // Line 3: what we receive.
    /// Stream offset after the last byte taken out of the peer's ring. On a line of our own: the peer
    /// reads it only when the head that it remembers leaves it no room, so that a reader's store
    /// rarely has to wait for the line.
    pub head: AtomicU64,
    /// `tail` for our own eyes.
    pub sent: AtomicU64,
    _pad1: [AtomicU64; 6],

    // Line 4: locks; only our own processes.
    /// Serialises senders: owner's thread id, or 0.
    pub tx_lock: AtomicU32,
    /// Serialises receivers. Who needs both takes this one first.
    pub rx_lock: AtomicU32,
    /// Processes that hold this connection (over fork).
    pub users: AtomicU32,
    /// The wait sequence of the peer that we last rang for.
    pub rung: AtomicU32,
    /// Doorbell bytes that we took out of the TCP stream.
    pub drained: AtomicU32,
    /// 1: a doorbell was announced but the socket had no room for it.
    pub bell_owed: AtomicU32,
    /// Bytes of TCP stream taken out before the peer's `up_at`, while attached.
    pub tcp_rx: AtomicU64,
    /// Sequence number of the last cold arming.
    pub arm_seq: AtomicU32,
    /// Threads that sleep in the kernel on this connection, outside of event sets.
    pub sleepers: AtomicU32,
    /// User data of the first two event sets: `epoll_data`.
    pub set_data: [AtomicU64; 2],
    /// User events of the first two event sets, and what the processes that share one must agree on: bit 25: it is in a set;
    /// bit 26: it is one-shot and has fired.
    pub set_events: [AtomicU32; 2],

    // Line 5: counters.
    /// Bytes sent through the ring.
    pub bytes_tx: AtomicU64,
    /// Bytes received through the ring.
    pub bytes_rx: AtomicU64,
    /// Times the other end was woken: doorbells sent, and naps ended.
    pub n_bells: AtomicU32,
    /// Times this end slept in the kernel for this connection.
    pub n_sleeps: AtomicU32,
    /// Waits that spinning answered.
    pub n_spins: AtomicU32,
    /// Times the ring was full.
    pub n_stalls: AtomicU32,
    /// Send calls.
    pub n_tx: AtomicU32,
    /// Receive calls that returned bytes.
    pub n_rx: AtomicU32,
    /// Largest number of unread bytes in the ring, as seen when it was full or drained.
    pub peak: AtomicU32,
    /// Serialises changes of `wait` and `sleepers`.
    pub wait_lock: AtomicU32,
    /// Thread that has borrowed `tx_lock`, `rx_lock` or `bell_lock` from the process, or 0: see `sys::lent`.
    pub lent: AtomicU32,
    /// Serialises doorbells: a sender and a receiver may both ring.
    pub bell_lock: AtomicU32,
    /// The peer's `head` as the sender saw it last.
    pub seen_head: AtomicU64,

    // Lines 6 and 7: what is rarely used, and room to grow.
    /// Number of the word that offers this half: another word that leads here is stale.
    pub offer_word: AtomicU32,
    /// Bytes at `again`.
    pub again_bytes: AtomicU32,
    /// What has been taken out of the socket and not been read, and is to be sent again by TCP before what is in the ring
    /// of whoever sends it: where it is, as in [`Half::loc`], in our own memory. 0: nothing is.
    pub again: AtomicU64,
    /// 1: we have sent again what the other half's `again` says.
    pub again_sent: AtomicU32,
    _unused2: AtomicU32,
    /// Which sets the first two registrations are in, by a number that the processes that share a set have for it.
    pub set_in: [AtomicU64; 2],
    /// What the processes that share a set have told of the first two registrations, where those are edge triggered. Bit 0:
    /// something was told, up to the stream offset in bits 5 to 63; bits 3 and 4: and that the peer has ended, and has reset
    /// it; bit 1: there is something more to tell, whatever was told; bit 2: a sender has found no room.
    pub set_told: [AtomicU64; 2],
    /// Of a client's half on a board for all network namespaces: the `SO_NETNS_COOKIE` of its socket.
    pub netns: AtomicU64,
    /// The same: between which time stamps its connection began, for a server in another namespace; 0: that is not known.
    /// The last one is in the high half, and how many milliseconds the first one lies before it in the low one.
    pub began: AtomicU64,
    /// The same: the hardware address from which its packets leave its namespace, in the order in which it is sent, from
    /// the high bits on, and 1; 0: it has none.
    pub hardware: AtomicU64,
    _reserved: [AtomicU64; 6],
}

/// Values of [`Half::state`].
pub mod half_state {
    /// Not in use.
    pub const FREE: u32 = 0;
    /// A client's offer, not yet taken.
    pub const OFFERED: u32 = 1;
    /// Both ends know each other.
    pub const ATTACHED: u32 = 2;
    /// On TCP for good; `reason` says why.
    pub const TCP: u32 = 3;
    /// The owner has closed; memory waits for the peer.
    pub const CLOSED: u32 = 4;
    /// A client's offer whose word was overwritten: for the moment in which it looks whether somebody has taken it.
    pub const DOUBT: u32 = 5;
}

/// Bits of [`Half::flags`].
pub mod half_flags {
    /// We have shut down sending: the stream ends at `tail`.
    pub const SHUT: u32 = 1;
    /// We have closed: we neither send nor receive any more.
    pub const CLOSED: u32 = 2;
    /// With [`CLOSED`]: bytes of the peer were left unread, or linger was zero; the peer sees a reset.
    pub const RESET: u32 = 4;
    /// Our bytes go through the ring from TCP offset `up_at` on.
    pub const UP: u32 = 8;
    /// Our bytes go through TCP again from ring offset `down_at` on.
    pub const DOWN: u32 = 16;
    /// We want the connection back on TCP, and take nothing more out of the ring than `head` says.
    pub const WANT_DOWN: u32 = 32;
    /// More than one process uses this half.
    pub const SHARED: u32 = 64;
    /// The client has moved data through hooked calls: it may be attached.
    pub const IO_SEEN: u32 = 128;
    /// We have shut down receiving.
    pub const SHUT_RD: u32 = 256;
    /// We do not look at the peer's half any more: its memory may serve others.
    pub const GONE: u32 = 512;
    /// We are about to set [`DOWN`] because the peer has set [`WANT_DOWN`].
    pub const ANSWERING: u32 = 1024;
    /// The error of a reset has been told to one of our processes.
    pub const TOLD: u32 = 2048;
    /// With [`CLOSED`]: the kernel's connection had ended before, so what the kernel says of it counts.
    pub const OVER: u32 = 4096;
    /// One of our processes has sent by TCP after the peer had closed: what the kernel says counts.
    pub const AFTER: u32 = 8192;
    /// The client waits for the connection in an event set of ours, so its calls will be hooked ones: it
    /// may be attached before it has moved anything.
    pub const WATCHED: u32 = 16384;
    /// The server has taken the client's offer, whatever became of the offer's word after that.
    pub const TAKEN: u32 = 32768;
    /// A doorbell of ours waits for [`UP`]: before that it would lie among bytes of the stream.
    pub const UNRUNG: u32 = 65536;
    /// Our process may wake the other end by doorbells alone, or is about to end: nobody is to nap for it.
    pub const BELLS: u32 = 131_072;
    /// Of an offer: the server may see other addresses than the client does, and another port of its own, so it is found by the
    /// client's port alone.
    pub const ROUTED: u32 = 262_144;
}

/// Where a ring block is: offset in blocks of [`BLOCK_BYTES`] and the power of two of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loc {
    /// Offset in the file, in units of [`BLOCK_BYTES`].
    pub block: u32,
    /// The ring has `BLOCK_BYTES << order` bytes.
    pub order: u32,
}

impl Loc {
    /// The largest order: 4 MiB, a whole extent.
    pub const ORDER_MAX: u32 = 8;

    /// As the word in shared memory; never 0.
    #[must_use]
    pub const fn emit(self) -> u64 {
        (self.block as u64) | ((self.order as u64) << 32) | 1 << 40
    }

    /// From the word in shared memory, checked against the file: `None` if it leads outside of the
    /// data region, is not aligned to its size, or is 0.
    #[must_use]
    pub const fn parse(word: u64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "the fields are cut out on purpose")]
        let (block, order) = (word as u32, ((word >> 32) & 0xff) as u32);
        if word >> 40 != 1 || order > Self::ORDER_MAX {
            return None;
        }
        let start = block as usize * BLOCK_BYTES;
        let bytes = BLOCK_BYTES << order;
        if start < DATA_AT || start + bytes > FILE_BYTES || !start.is_multiple_of(bytes) {
            return None;
        }
        Some(Self { block, order })
    }

    /// Size of the ring in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        BLOCK_BYTES << self.order
    }

    /// Offset of the ring in the file, in bytes.
    #[must_use]
    pub const fn offset(self) -> usize {
        self.block as usize * BLOCK_BYTES
    }
}

//! The board at one moment, as plain values.
//!
//! Other processes write while we read, and one of them may be broken: every index is checked,
//! every loop has an end, and a connection that changes under our eyes is read again or left out.
//! Field names of the structs here are the field names of `shunt stat --json`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use local::Reason;
use serde::Serialize;
use sys::abi::{
    HALF_BYTES, Half, Loc, PORT_OFFERED, REASONS, SLOTS, Slot, half_flags, half_state, slot_state,
};
use sys::map::{Access, Map, MapError};
use sys::sync::{AtomicU32, AtomicU64, Ordering};

use crate::numbers::{self, Inner, Numbers};
use crate::sockets::Sockets;

/// More connections than this are not listed: a board that claims so many is broken, or its list
/// is of no use to anybody.
const CONNECTIONS_MAX: usize = 1 << 18;

/// What events there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counters {
    /// Bytes sent through shared memory.
    pub(crate) bytes_tx: u64,
    /// Bytes received through shared memory.
    pub(crate) bytes_rx: u64,
    /// One-byte wake-ups sent over TCP.
    pub(crate) doorbells: u64,
    /// Sleeps in the kernel.
    pub(crate) sleeps: u64,
    /// Waits that spinning answered.
    pub(crate) spins: u64,
    /// Times a sender found the buffer full.
    pub(crate) stalls: u64,
    /// Calls that sent.
    pub(crate) sends: u64,
    /// Calls that received bytes.
    pub(crate) receives: u64,
}

impl Counters {
    /// Adds, without overflow: the numbers come from a file that anybody of the user may write.
    pub(crate) fn add(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
    }

    /// What was counted since `earlier`.
    pub(crate) fn since(mut self, earlier: &Self) -> Self {
        self.combine(earlier, u64::saturating_sub);
        self
    }

    fn combine(&mut self, other: &Self, f: fn(u64, u64) -> u64) {
        self.bytes_tx = f(self.bytes_tx, other.bytes_tx);
        self.bytes_rx = f(self.bytes_rx, other.bytes_rx);
        self.doorbells = f(self.doorbells, other.doorbells);
        self.sleeps = f(self.sleeps, other.sleeps);
        self.spins = f(self.spins, other.spins);
        self.stalls = f(self.stalls, other.stalls);
        self.sends = f(self.sends, other.sends);
        self.receives = f(self.receives, other.receives);
    }
}

/// How often connections of a process stayed on TCP for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Fallback {
    /// Its number.
    pub(crate) reason: u32,
    /// In words.
    pub(crate) words: &'static str,
    /// How many connections.
    pub(crate) count: u32,
}

/// How many buffers there are of each size: up to 8 KiB, up to each twice as much, up to 512 KiB, and larger, as
/// `smcd stats` has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct BufferSizes(pub(crate) [u32; 8]);

impl BufferSizes {
    /// The columns, by their largest size.
    pub(crate) const NAMES: [&str; 8] =
        ["8K", "16K", "32K", "64K", "128K", "256K", "512K", ">512K"];

    /// One more of so many bytes; of 0 there is none.
    fn count(&mut self, bytes: u64) {
        if bytes != 0 {
            let doublings = bytes.div_ceil(8 << 10).next_power_of_two().trailing_zeros() as usize;
            let at = doublings.min(self.0.len() - 1);
            self.0[at] = self.0[at].saturating_add(1);
        }
    }
}

/// A process that runs under Shunt.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Process {
    /// Its slot on the board.
    pub(crate) slot: u32,
    /// Process id, in its own pid namespace.
    pub(crate) pid: u32,
    /// Process id as it is seen from here; `None`: it is gone, or we may not look at it.
    pub(crate) host_pid: Option<u32>,
    /// Whether it is in another pid namespace than who asks.
    pub(crate) elsewhere: bool,
    /// Container that it is in: the beginning of its identity.
    pub(crate) container: Option<String>,
    /// Effective user id.
    pub(crate) uid: u32,
    /// Name (comm).
    pub(crate) program: String,
    /// Whether it lives; `false`: it was killed and its slot was not taken back yet.
    pub(crate) alive: bool,
    /// When it joined, seconds since 1970.
    pub(crate) since: u64,
    /// Shared memory that it has taken.
    pub(crate) memory_owned_bytes: u64,
    /// Shared memory in use for buffers.
    pub(crate) memory_used_bytes: u64,
    /// Connections in shared memory now, those to other hosts not counted.
    pub(crate) connections_shm: u32,
    /// Connections that go to other hosts by SMC-R now.
    pub(crate) connections_smcr: u32,
    /// Connections known to the board that are on TCP now.
    pub(crate) connections_tcp: u32,
    /// Connections that were ever in shared memory.
    pub(crate) attached_total: u64,
    /// Of those, how many this process had made with `connect()`; the others it had accepted.
    pub(crate) attached_clients: u64,
    /// Of those, how many were closed.
    pub(crate) closed_total: u64,
    /// Everything since the process joined, closed connections included.
    #[serde(flatten)]
    pub(crate) counters: Counters,
    /// Buffers that open connections of this process write to, by size.
    pub(crate) tx_buffers: BufferSizes,
    /// Buffers that they read from.
    pub(crate) rx_buffers: BufferSizes,
    /// Why connections stayed on TCP or went back to it.
    pub(crate) fallbacks: Vec<Fallback>,
}

/// The number by which people know a process: as it is seen from here, or else as it knows itself.
pub(crate) fn shown(pid: u32, host_pid: Option<u32>) -> u32 {
    host_pid.unwrap_or(pid)
}

/// What a connection's end is doing; the names are those of `smcss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum State {
    /// Both ends know each other, or the connection is on TCP.
    Active,
    /// Offered by a client, not (yet) taken by the server.
    Init,
    /// This end has shut down sending.
    PeerClw,
    /// The peer has shut down sending or has closed; this end has not.
    AppClw,
    /// This end has closed; memory waits for the peer.
    Closed,
}

impl State {
    /// As in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Init => "INIT",
            Self::PeerClw => "PEERCLW",
            Self::AppClw => "APPCLW",
            Self::Closed => "CLOSED",
        }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Mode {
    /// Through shared memory.
    Shm,
    /// Through shared memory to the engine, and by SMC-R to another host.
    Smcr,
    /// Through the kernel; where SMC was wanted, through shared memory to the engine before.
    Tcp,
}

/// One end of a connection; the other end, if it runs under Shunt, is another one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Connection {
    /// Number of this end on the board.
    pub(crate) half: u32,
    /// Counts the connections that had this number.
    pub(crate) generation: u32,
    /// What it is doing.
    pub(crate) state: State,
    /// Which way bytes go.
    pub(crate) mode: Mode,
    /// Why on TCP: the number; 0 in shared memory. From 65536 on one of SMC's (RFC 7609 A.2.4), and 2147483648
    /// more if the peer has said it.
    pub(crate) reason: u32,
    /// The same in words.
    pub(crate) reason_words: Option<&'static str>,
    /// Way of the bytes that this end sends: a new connection changes over one way after the other.
    pub(crate) tx_mode: Mode,
    /// Way of the bytes that this end receives; `None` where the peer is not known.
    pub(crate) rx_mode: Option<Mode>,
    /// Whether this end called `connect()`.
    pub(crate) client: bool,
    /// User id of the process.
    pub(crate) uid: u32,
    /// Inode number of the socket; 0 where the kernel has none for it, or does not say.
    pub(crate) inode: u32,
    /// Descriptor in the process.
    pub(crate) fd: u32,
    /// Address of this end; unspecified where the program listens on all and the kernel does not say which it is.
    pub(crate) local_address: IpAddr,
    /// Port of this end.
    pub(crate) local_port: u16,
    /// Address of the other end.
    pub(crate) peer_address: IpAddr,
    /// Port of the other end.
    pub(crate) peer_port: u16,
    /// Slot of the process.
    pub(crate) slot: u32,
    /// Its process id.
    pub(crate) pid: u32,
    /// The same as it is seen from here.
    pub(crate) host_pid: Option<u32>,
    /// Its name.
    pub(crate) program: String,
    /// Whether it lives.
    pub(crate) alive: bool,
    /// Slot of the process at the other end, if that is known.
    pub(crate) peer_slot: Option<u32>,
    /// Process id at the other end.
    pub(crate) peer_pid: Option<u32>,
    /// The same as it is seen from here.
    pub(crate) peer_host_pid: Option<u32>,
    /// Name of the program at the other end.
    pub(crate) peer_program: Option<String>,
    /// The other end's number on the board.
    pub(crate) peer_half: Option<u32>,
    /// When it was offered or attached, nanoseconds since 1970.
    pub(crate) since_ns: u64,
    /// Events.
    #[serde(flatten)]
    pub(crate) counters: Counters,
    /// Size of the buffer that this end writes to.
    pub(crate) tx_buffer_bytes: u64,
    /// Bytes in it which the peer has not read.
    pub(crate) tx_buffer_used_bytes: u64,
    /// The most that was in it.
    pub(crate) tx_buffer_peak_bytes: u64,
    /// Size of the buffer that the peer writes to.
    pub(crate) rx_buffer_bytes: u64,
    /// Bytes in it which this end has not read.
    pub(crate) rx_buffer_used_bytes: u64,
}

impl Connection {
    /// Whether it is of interest without `--all`.
    pub(crate) fn is_current(&self) -> bool {
        self.alive && self.state != State::Closed
    }

    /// Whether the process is at either end.
    pub(crate) fn involves(&self, pid: u32) -> bool {
        let peer = self.peer_pid.map(|peer| shown(peer, self.peer_host_pid));
        shown(self.pid, self.host_pid) == pid || peer == Some(pid)
    }
}

/// A pair of processes with connections in shared memory between them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LinkGroup {
    /// Slot of the first process.
    pub(crate) slot: u32,
    /// Its process id.
    pub(crate) pid: u32,
    /// The same as it is seen from here.
    pub(crate) host_pid: Option<u32>,
    /// Its name.
    pub(crate) program: String,
    /// Slot of the second process; the first one's for connections within a process.
    pub(crate) peer_slot: u32,
    /// Its process id.
    pub(crate) peer_pid: u32,
    /// The same as it is seen from here.
    pub(crate) peer_host_pid: Option<u32>,
    /// Its name.
    pub(crate) peer_program: String,
    /// Connections between them.
    pub(crate) connections: u32,
    /// Bytes that the first sent, on connections that are open now.
    pub(crate) bytes_tx: u64,
    /// Bytes that the second sent.
    pub(crate) bytes_rx: u64,
    /// Doorbells of both.
    pub(crate) doorbells: u64,
    /// Sleeps of both.
    pub(crate) sleeps: u64,
    /// Stalls of both.
    pub(crate) stalls: u64,
}

/// A port on which a process under Shunt listens.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Listener {
    /// The port.
    pub(crate) port: u16,
    /// Slot of the process.
    pub(crate) slot: u32,
    /// Its process id.
    pub(crate) pid: u32,
    /// The same as it is seen from here.
    pub(crate) host_pid: Option<u32>,
    /// User id.
    pub(crate) uid: u32,
    /// Its name.
    pub(crate) program: String,
}

/// Everything on the board.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Snapshot {
    /// Whether something was left out because there was too much.
    pub(crate) truncated: bool,
    /// Processes.
    pub(crate) processes: Vec<Process>,
    /// Pairs of processes.
    pub(crate) link_groups: Vec<LinkGroup>,
    /// Ends of connections.
    pub(crate) connections: Vec<Connection>,
    /// Ports listened on.
    pub(crate) listeners: Vec<Listener>,
}

impl Snapshot {
    /// Adds what only the kernel knows of each end.
    fn complete(&mut self, sockets: &Sockets) {
        for c in &mut self.connections {
            let (local, peer) = ((c.local_address, c.local_port), (c.peer_address, c.peer_port));
            if let Some(socket) = sockets.find(local, peer) {
                (c.local_address, c.inode) = (socket.local, socket.inode);
            }
        }
    }
}

/// A board, mapped to look at.
#[derive(Debug)]
pub(crate) struct Board {
    map: Map,
    fd: i32,
    identity: (u64, u64),
}

impl Drop for Board {
    fn drop(&mut self) {
        // What was found is copies.
        self.map.unmap();
        let _ = sys::call::close(self.fd);
    }
}

/// Path of the board in this directory (or the usual one), and the network namespace.
pub(crate) fn locate(dir: Option<&str>) -> anyhow::Result<(CString, u64)> {
    local::board::locate(dir).map_err(|e| anyhow!("{e}"))
}

impl Board {
    /// Opens a board file; `None` if there is none.
    pub(crate) fn open_at(path: &CString, netns: u64) -> anyhow::Result<Option<Self>> {
        let (map, fd) = match open_made(path, netns) {
            Ok(opened) => opened,
            Err(MapError::System(_, nix::libc::ENOENT | nix::libc::ENOTDIR)) => return Ok(None),
            Err(e) => return Err(anyhow!("{e}")),
        };
        let identity = sys::call::fstat(fd).map_or((0, 0), |s| (s.st_dev, s.st_ino));
        Ok(Some(Self { map, fd, identity }))
    }

    /// Whether this is still the file of that name.
    pub(crate) fn is_current(&self, path: &CString) -> bool {
        sys::call::lstat(path).is_ok_and(|s| (s.st_dev, s.st_ino) == self.identity)
    }

    /// The process that takes connections to other hosts, if it lives.
    fn engine(&self) -> Option<Process> {
        let slot = engine(&self.map)?;
        let numbers = Numbers::find([inner(self.map.slot(slot))]);
        self.process(slot, &numbers).filter(|process| process.alive)
    }

    /// Reads everything.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let map = &self.map;
        let numbers = Numbers::find(slots(map).map(|index| inner(map.slot(index))));
        let mut processes: BTreeMap<u32, Process> =
            slots(map).filter_map(|index| Some((index, self.process(index, &numbers)?))).collect();
        let mut connections = Vec::new();
        let mut truncated = false;
        for (index, half) in local::board::halves(map, self.fd) {
            if connections.len() >= CONNECTIONS_MAX {
                truncated = true;
                break;
            }
            connections.extend(read_connection(map, index, half, &processes));
        }
        count_connections(&mut processes, &connections);
        connections.sort_by(|a, b| {
            let key = |c: &Connection| (c.pid, c.local_port, c.peer_port, c.half);
            key(a).cmp(&key(b))
        });
        Snapshot {
            truncated,
            link_groups: link_groups(&connections, &processes),
            listeners: listeners(map, &processes),
            processes: processes.into_values().collect(),
            connections,
        }
    }
}

impl Board {
    /// [`Self::snapshot`] of a file that was whole to the end.
    fn whole_snapshot(&self) -> anyhow::Result<Snapshot> {
        let snapshot = self.snapshot();
        ensure!(
            !self.map.is_spoiled(),
            "the board was cut while it was read, by its owner or one of the group that shares it: end its programs and \
             remove it"
        );
        Ok(snapshot)
    }

    fn process(&self, index: u32, numbers: &Numbers) -> Option<Process> {
        let slot = self.map.slot(index);
        if slot.state.load(Ordering::Acquire) != slot_state::LIVE {
            return None;
        }
        let totals = &slot.totals;
        let counters = Counters {
            bytes_tx: load64(&totals.bytes_tx),
            bytes_rx: load64(&totals.bytes_rx),
            doorbells: load64(&totals.bells),
            sleeps: load64(&totals.sleeps),
            spins: load64(&totals.spins),
            stalls: load64(&totals.stalls),
            sends: load64(&totals.sends),
            receives: load64(&totals.receives),
        };
        let who = inner(slot);
        let (elsewhere, host_pid) = (numbers.is_elsewhere(who), numbers.here(who));
        // The kernel gives its lock back when it has ended, wherever it is. What it has forked may hold it longer.
        let holds = sys::call::byte_locked(self.fd, local::board::lock_of(index)).unwrap_or(true);
        let alive = holds && (elsewhere || host_pid.is_some());
        let host_pid = host_pid.filter(|_| alive);
        Some(Process {
            slot: index,
            pid: who.1,
            host_pid,
            elsewhere,
            container: host_pid.and_then(numbers::container),
            uid: load(&slot.uid),
            program: program_name([load64(&slot.comm[0]), load64(&slot.comm[1])]),
            alive,
            since: load64(&slot.since),
            memory_owned_bytes: load64(&slot.bytes_owned),
            memory_used_bytes: load64(&slot.bytes_used),
            connections_shm: 0,
            connections_smcr: 0,
            connections_tcp: 0,
            attached_total: load64(&slot.attached),
            attached_clients: load64(&slot.attached_clients),
            tx_buffers: BufferSizes::default(),
            rx_buffers: BufferSizes::default(),
            closed_total: load64(&slot.closed),
            counters,
            fallbacks: fallbacks(&slot.reasons),
        })
    }
}

/// The process that takes connections of this board to other hosts, if one lives.
pub(crate) fn engine_at(path: &CString, netns: u64) -> Option<Process> {
    Board::open_at(path, netns).ok()??.engine()
}

/// Opens a board; one that is being made by its first guest at this moment, when it is made.
fn open_made(path: &CString, netns: u64) -> Result<(Map, i32), MapError> {
    for _ in 0..3 {
        match Map::open(path, netns, Access::Look) {
            Err(MapError::Incomplete) => std::thread::sleep(Duration::from_millis(5)),
            other => return other,
        }
    }
    Map::open(path, netns, Access::Look)
}

/// A board that is looked at again and again, and may come and go.
#[derive(Debug)]
pub(crate) struct Watch {
    path: CString,
    netns: u64,
    board: Option<Board>,
}

impl Watch {
    /// Of the board in this directory (or the usual one).
    pub(crate) fn new(dir: Option<&str>) -> anyhow::Result<Self> {
        let (path, netns) = locate(dir)?;
        Ok(Self { path, netns, board: None })
    }

    /// Where the board is.
    pub(crate) fn path(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// What is on it now; `None` if there is none.
    pub(crate) fn look(&mut self) -> anyhow::Result<Option<Snapshot>> {
        if self.board.as_ref().is_none_or(|board| !board.is_current(&self.path)) {
            self.board = Board::open_at(&self.path, self.netns).with_context(|| self.path())?;
        }
        let snapshot = self.board.as_ref().map(Board::whole_snapshot).transpose();
        if snapshot.is_err() {
            self.board = None;
        }
        let mut snapshot = snapshot.with_context(|| self.path())?;
        if let Some(snapshot) = &mut snapshot
            && !snapshot.connections.is_empty()
        {
            snapshot.complete(&Sockets::read());
        }
        Ok(snapshot)
    }
}

/// Reads the board in this file once; `None` if there is none.
pub(crate) fn at(path: &Path) -> anyhow::Result<Option<Snapshot>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // Whichever namespace it is for: that matters to who takes part.
    Board::open_at(&path, 0)?.as_ref().map(Board::whole_snapshot).transpose()
}

fn load(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}
fn load64(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Slots that were ever used: the others have no pages, and reading them would take some.
fn slots(map: &Map) -> impl Iterator<Item = u32> {
    let used = map.header().slots_used.load(Ordering::Acquire);
    #[expect(clippy::cast_possible_truncation, reason = "1024")]
    let most = SLOTS as u32;
    0..used.min(most)
}

/// Who a slot says that its process is.
fn inner(slot: &Slot) -> Inner {
    (load64(&slot.pids), load(&slot.pid))
}

fn fallbacks(counts: &[AtomicU32; REASONS]) -> Vec<Fallback> {
    (0u32..)
        .zip(counts)
        .map(|(reason, count)| Fallback { reason, words: reason_words(reason), count: load(count) })
        .filter(|f| f.count != 0 && f.reason != 0)
        .collect()
}

/// A reason in words; a newer library may know more of them.
pub(crate) fn reason_words(code: u32) -> &'static str {
    engine::remote::why::words(code).unwrap_or("unknown reason")
}

/// The bytes of a name, for a terminal: no escape sequence can get through.
fn program_name(words: [u64; 2]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|w| w.to_le_bytes()).take_while(|b| *b != 0).collect();
    let safe = |c: char| if c.is_control() { '?' } else { c };
    String::from_utf8_lossy(&bytes).chars().map(safe).collect()
}

fn address(words: &[AtomicU64; 2]) -> IpAddr {
    let bits = u128::from(load64(&words[0])) << 64 | u128::from(load64(&words[1]));
    Ipv6Addr::from(bits).to_canonical()
}

/// Who owns the extent of a half.
fn owner(map: &Map, index: u32) -> Option<u32> {
    map.owner_of((index as usize).checked_mul(HALF_BYTES)?).filter(|slot| (*slot as usize) < SLOTS)
}

/// The slot of the process that takes connections to other hosts.
fn engine(map: &Map) -> Option<u32> {
    load(&map.header().engine).checked_sub(1).filter(|slot| (*slot as usize) < SLOTS)
}

/// Reads one end, again if it became another connection meanwhile.
fn read_connection(
    map: &Map,
    index: u32,
    half: &Half,
    processes: &BTreeMap<u32, Process>,
) -> Option<Connection> {
    for _ in 0..3 {
        // Acquire: what was written before the state.
        let state = half.state.load(Ordering::Acquire);
        if state == half_state::FREE || state > half_state::CLOSED {
            return None;
        }
        let generation = half.generation.load(Ordering::Acquire);
        let connection = read_once(map, index, half, state, generation, processes)?;
        sys::sync::fence(Ordering::Acquire);
        if load(&half.generation) == generation && load(&half.state) == state {
            return Some(connection);
        }
    }
    None
}

fn read_once(
    map: &Map,
    index: u32,
    half: &Half,
    state: u32,
    generation: u32,
    processes: &BTreeMap<u32, Process>,
) -> Option<Connection> {
    let slot = owner(map, index)?;
    let engine = engine(map);
    if engine == Some(slot) {
        // The engine stands for the other host: its ends are not ends of connections.
        return None;
    }
    let process = processes.get(&slot);
    let peer = peer_of(map, index, half);
    let peer_slot = peer.and_then(|(number, _)| owner(map, number));
    let peer_process = peer_slot.and_then(|slot| processes.get(&slot));
    let flags = load(&half.flags);
    let peer_flags = peer.map(|(_, p)| load(&p.flags));
    let (mode, reason) = match mode_of(state, flags, peer_flags, load(&half.reason)) {
        (Mode::Shm, _) if engine.is_some() && peer_slot == engine => {
            // What came of it the engine has written down at its end.
            match peer.map_or(0, |(_, p)| load(&p.reason)) {
                0 => (Mode::Smcr, 0),
                why => (Mode::Tcp, why),
            }
        }
        other => other,
    };
    let ports = load(&half.ports);
    let (tx_bytes, tx_used) = buffer(half, peer.map(|(_, p)| p));
    let (rx_bytes, rx_used) = peer.map_or((0, 0), |(_, p)| buffer(p, Some(half)));
    Some(Connection {
        half: index,
        generation,
        state: state_of(state, flags, peer_flags),
        mode,
        reason,
        reason_words: (reason != 0).then(|| reason_words(reason)),
        tx_mode: path(flags),
        rx_mode: peer_flags.map(path),
        client: load(&half.client) != 0,
        uid: process.map_or(0, |p| p.uid),
        inode: 0,
        fd: load(&half.fd),
        local_address: address(&half.local_addr),
        local_port: (ports & 0xffff) as u16,
        peer_address: address(&half.remote_addr),
        peer_port: (ports >> 16) as u16,
        slot,
        pid: process.map_or(0, |p| p.pid),
        host_pid: process.and_then(|p| p.host_pid),
        program: process.map_or_else(String::new, |p| p.program.clone()),
        alive: process.is_some_and(|p| p.alive),
        peer_slot,
        peer_pid: peer_process.map(|p| p.pid),
        peer_host_pid: peer_process.and_then(|p| p.host_pid),
        peer_program: peer_process.map(|p| p.program.clone()),
        peer_half: peer.map(|(number, _)| number),
        since_ns: load64(&half.since),
        counters: Counters {
            bytes_tx: load64(&half.bytes_tx),
            bytes_rx: load64(&half.bytes_rx),
            doorbells: load(&half.n_bells).into(),
            sleeps: load(&half.n_sleeps).into(),
            spins: load(&half.n_spins).into(),
            stalls: load(&half.n_stalls).into(),
            sends: load(&half.n_tx).into(),
            receives: load(&half.n_rx).into(),
        },
        tx_buffer_bytes: tx_bytes,
        tx_buffer_used_bytes: tx_used,
        tx_buffer_peak_bytes: u64::from(load(&half.peak)),
        rx_buffer_bytes: rx_bytes,
        rx_buffer_used_bytes: rx_used,
    })
}

/// The other end, if each of the two says that the other is the other.
fn peer_of<'a>(map: &'a Map, index: u32, half: &Half) -> Option<(u32, &'a Half)> {
    let number = load(&half.peer).checked_sub(1)?;
    let peer = map.half(number)?;
    let agreed = load(&peer.peer) == index.checked_add(1)?
        && load(&peer.generation) == load(&half.peer_generation)
        && load(&peer.peer_generation) == load(&half.generation);
    agreed.then_some((number, peer))
}

/// Size of a sender's buffer and how much of it is unread.
fn buffer(sender: &Half, receiver: Option<&Half>) -> (u64, u64) {
    let Some(loc) = Loc::parse(load64(&sender.loc)) else { return (0, 0) };
    let size = loc.bytes() as u64;
    // The head first: the tail that is read afterwards is not behind it.
    let used = receiver.map_or(0, |r| {
        let head = r.head.load(Ordering::Acquire);
        sender.tail.load(Ordering::Acquire).wrapping_sub(head)
    });
    // A sender may be many buffers further by the time we read its tail.
    (size, if used > u64::MAX / 2 { 0 } else { used.min(size) })
}

/// Way of the bytes that the owner of these flags sends.
const fn path(flags: u32) -> Mode {
    if flags & half_flags::UP != 0 && flags & half_flags::DOWN == 0 { Mode::Shm } else { Mode::Tcp }
}

fn mode_of(state: u32, flags: u32, peer_flags: Option<u32>, reason: u32) -> (Mode, u32) {
    let down = (flags | peer_flags.unwrap_or(0)) & (half_flags::DOWN | half_flags::WANT_DOWN) != 0;
    match state {
        half_state::OFFERED => {
            (Mode::Tcp, if reason == 0 { Reason::Waiting.code() } else { reason })
        }
        half_state::ATTACHED | half_state::CLOSED if reason == 0 && !down => (Mode::Shm, 0),
        // The end that did not ask for it has no reason of its own.
        _ => (Mode::Tcp, if reason == 0 { Reason::PeerAsked.code() } else { reason }),
    }
}

fn state_of(state: u32, flags: u32, peer_flags: Option<u32>) -> State {
    let ended = |flags: u32| flags & (half_flags::SHUT | half_flags::CLOSED) != 0;
    match state {
        half_state::OFFERED => State::Init,
        half_state::CLOSED => State::Closed,
        _ if peer_flags.is_some_and(ended) => State::AppClw,
        _ if ended(flags) => State::PeerClw,
        _ => State::Active,
    }
}

fn count_connections(processes: &mut BTreeMap<u32, Process>, connections: &[Connection]) {
    for c in connections.iter().filter(|c| c.state != State::Closed) {
        if let Some(process) = processes.get_mut(&c.slot) {
            process.counters.add(&c.counters);
            process.tx_buffers.count(c.tx_buffer_bytes);
            process.rx_buffers.count(c.rx_buffer_bytes);
            match c.mode {
                Mode::Shm => process.connections_shm += 1,
                Mode::Smcr => process.connections_smcr += 1,
                Mode::Tcp => process.connections_tcp += 1,
            }
        }
    }
}

fn link_groups(connections: &[Connection], processes: &BTreeMap<u32, Process>) -> Vec<LinkGroup> {
    let mut groups: BTreeMap<(u32, u32), LinkGroup> = BTreeMap::new();
    let mut counted: BTreeSet<(u32, u32)> = BTreeSet::new();
    for c in connections.iter().filter(|c| c.mode == Mode::Shm && c.is_current()) {
        let (Some(peer_slot), Some(peer_half)) = (c.peer_slot, c.peer_half) else { continue };
        let ends = (c.slot.min(peer_slot), c.slot.max(peer_slot));
        let (Some(first), Some(second)) = (processes.get(&ends.0), processes.get(&ends.1)) else {
            continue;
        };
        let group = groups.entry(ends).or_insert_with(|| LinkGroup {
            slot: ends.0,
            pid: first.pid,
            host_pid: first.host_pid,
            program: first.program.clone(),
            peer_slot: ends.1,
            peer_pid: second.pid,
            peer_host_pid: second.host_pid,
            peer_program: second.program.clone(),
            connections: 0,
            bytes_tx: 0,
            bytes_rx: 0,
            doorbells: 0,
            sleeps: 0,
            stalls: 0,
        });
        if counted.insert((c.half.min(peer_half), c.half.max(peer_half))) {
            group.connections += 1;
        }
        let sent = if c.slot == ends.0 { &mut group.bytes_tx } else { &mut group.bytes_rx };
        *sent = sent.saturating_add(c.counters.bytes_tx);
        group.doorbells = group.doorbells.saturating_add(c.counters.doorbells);
        group.sleeps = group.sleeps.saturating_add(c.counters.sleeps);
        group.stalls = group.stalls.saturating_add(c.counters.stalls);
    }
    groups.into_values().collect()
}

fn listeners(map: &Map, processes: &BTreeMap<u32, Process>) -> Vec<Listener> {
    let listener = |port: u16| {
        let word = load(map.port(port)) & !PORT_OFFERED;
        let process = processes.get(&word.checked_sub(1)?)?;
        Some(Listener {
            port,
            slot: process.slot,
            pid: process.pid,
            host_pid: process.host_pid,
            uid: process.uid,
            program: process.program.clone(),
        })
    };
    (1..=u16::MAX).filter_map(listener).collect()
}

#[cfg(test)]
pub(crate) mod tests;

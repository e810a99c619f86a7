use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use proptest::prelude::*;
use sys::abi::{
    BLOCK_BYTES, DATA_AT, EXTENT_BYTES, EXTENTS, HALVES_PER_BLOCK, OWNER_HALVES, OWNERS_AT,
    PORT_OFFERED, SLOTS_AT,
};

use super::*;

const NETNS: u64 = 7;
const FIRST: usize = DATA_AT / EXTENT_BYTES;
const MIB: u64 = 1 << 20;

/// A board in a directory of its own, with no guest behind it.
pub(crate) struct Fixture {
    _dir: tempfile::TempDir,
    path: CString,
    map: Map,
    fd: i32,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = sys::call::close(self.fd);
    }
}

fn store(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Relaxed);
}
fn store64(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

impl Fixture {
    /// With nothing on it.
    pub(crate) fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("board-8");
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let (map, fd) = Map::open(&path, NETNS, Access::Guest).unwrap();
        Self { _dir: dir, path, map, fd }
    }

    /// With a server, a client, a connection in shared memory between them, one on TCP, and an
    /// offer; and a process that has died.
    pub(crate) fn busy() -> Self {
        let board = Self::empty();
        board.process(0, std::process::id(), "server");
        board.process(1, std::process::id(), "client\x1b[31m");
        board.process(2, dead_pid(), "gone");
        // What the dead one has forked holds its lock still.
        (0..3).for_each(|slot| board.lives(slot));
        store(&board.map.slot(0).reasons[1], 3);
        store(board.map.port(80), 1 | PORT_OFFERED);
        let server = board.map.slot(0);
        store64(&server.totals.bytes_tx, 1000);
        store64(&server.totals.sends, 30);
        store64(&server.totals.receives, 40);
        store64(&server.totals.bytes_rx, 500);
        store64(&server.totals.stalls, 9);
        store64(&server.attached, 7);
        store64(&server.attached_clients, 2);
        for (slot, other) in [(0, 1), (1, 0)] {
            let half = board.half(slot, 0, half_state::ATTACHED);
            store(&half.peer, Self::index(other, 0) + 1);
            store(&half.peer_generation, 5);
            store(&half.client, slot);
            store(&half.flags, half_flags::UP);
            store64(&half.loc, Loc { block: 2048 + 64 * slot, order: 2 }.emit());
            store64(&half.bytes_tx, 100 + u64::from(slot));
            store64(&half.bytes_rx, 101 - u64::from(slot));
            store(&half.n_tx, 5 + slot);
            store(&half.n_rx, 6 - slot);
        }
        let (server, client) = (board.half_at(0, 0), board.half_at(1, 0));
        store(&server.ports, 80 | 40_000 << 16);
        store(&client.ports, 40_000 | 80 << 16);
        store64(&client.tail, 5000);
        store64(&server.head, 4000);
        let on_tcp = board.half(0, 1, half_state::TCP);
        store(&on_tcp.reason, Reason::PeerNotShunt.code());
        board.half(1, 1, half_state::OFFERED);
        board.half(1, 2, half_state::CLOSED);
        board.half(2, 0, half_state::ATTACHED);
        board
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Board::open_at(&self.path, NETNS).unwrap().unwrap().snapshot()
    }

    fn process(&self, index: u32, pid: u32, name: &str) {
        self.map.commit(self.fd, Map::slot_offset(index), size_of::<Slot>()).unwrap();
        let slot = self.map.slot(index);
        store(&slot.pid, pid);
        store(&slot.uid, 1000);
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        for (word, bytes) in slot.comm.iter().zip(comm.chunks(8)) {
            store64(word, u64::from_le_bytes(bytes.try_into().unwrap()));
        }
        store(&slot.state, slot_state::LIVE);
        self.map.header().slots_used.fetch_max(index + 1, Ordering::Relaxed);
        let extent = FIRST + index as usize;
        store(self.map.owner(extent), (index + 1) | OWNER_HALVES);
        let used = u32::try_from(extent + 1).unwrap();
        self.map.header().extents_used.fetch_max(used, Ordering::Relaxed);
        self.map.commit(self.fd, extent * EXTENT_BYTES, BLOCK_BYTES).unwrap();
        for nth in 0..u32::try_from(HALVES_PER_BLOCK).unwrap() {
            store(&self.half_at(index, nth).generation, 1);
        }
    }

    fn lives(&self, index: u32) {
        sys::call::lock_byte(self.fd, local::board::lock_of(index)).unwrap();
    }

    fn index(slot: u32, nth: u32) -> u32 {
        u32::try_from((FIRST + slot as usize) * (EXTENT_BYTES / HALF_BYTES)).unwrap() + nth
    }

    fn half_at(&self, slot: u32, nth: u32) -> &Half {
        self.map.half(Self::index(slot, nth)).unwrap()
    }

    /// Between 127.0.0.1 and 127.0.0.1.
    fn half(&self, slot: u32, nth: u32, state: u32) -> &Half {
        let half = self.half_at(slot, nth);
        store(&half.generation, 5);
        store(&half.slot, slot);
        for address in [&half.local_addr, &half.remote_addr] {
            store64(&address[1], 0xffff_7f00_0001);
        }
        store(&half.state, state);
        half
    }
}

/// A process id that nobody has: of a child that has been waited for.
fn dead_pid() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

#[test]
fn no_board_is_no_error() {
    let path = PathBuf::from("/no/such/directory/board-8");
    let path = CString::new(path.to_str().unwrap()).unwrap();
    assert!(Board::open_at(&path, NETNS).unwrap().is_none());
}

#[test]
fn a_board_that_is_cut_is_an_error_and_ends_nobody() {
    let fixture = Fixture::empty();
    let board = Board::open_at(&fixture.path, NETNS).unwrap().unwrap();
    assert!(board.whole_snapshot().unwrap().connections.is_empty());
    sys::call::ftruncate(fixture.fd, 0).unwrap();
    let error = board.whole_snapshot().unwrap_err().to_string();
    assert!(error.contains("cut while it was read"), "{error}");
}

#[test]
fn an_empty_board_has_nothing_on_it() {
    let snapshot = Fixture::empty().snapshot();
    assert!(snapshot.processes.is_empty() && snapshot.connections.is_empty());
    assert!(snapshot.link_groups.is_empty() && snapshot.listeners.is_empty());
}

#[test]
fn a_connection_is_seen_from_both_ends() {
    let snapshot = Fixture::busy().snapshot();
    let shm: Vec<&Connection> =
        snapshot.connections.iter().filter(|c| c.peer_half.is_some()).collect();
    let [server, client] = shm[..] else { panic!("{shm:#?}") };
    assert_eq!((server.mode, server.reason, server.state), (Mode::Shm, 0, State::Active));
    assert_eq!((server.program.as_str(), server.client), ("server", false));
    assert_eq!((server.local_port, server.peer_port), (80, 40_000));
    assert_eq!(server.local_address.to_string(), "127.0.0.1");
    assert_eq!(server.peer_half, Some(client.half));
    assert_eq!(server.peer_pid, Some(client.pid));
    assert_eq!((client.local_port, client.peer_port, client.client), (40_000, 80, true));
    assert_eq!((server.counters.bytes_tx, client.counters.bytes_rx), (100, 100));
    assert_eq!((client.tx_buffer_bytes, client.tx_buffer_used_bytes), (64 << 10, 1000));
    assert_eq!((server.rx_buffer_bytes, server.rx_buffer_used_bytes), (64 << 10, 1000));
    assert_eq!((server.tx_mode, server.rx_mode), (Mode::Shm, Some(Mode::Shm)));
}

#[test]
fn buffers_are_counted_by_size() {
    let mut sizes = BufferSizes::default();
    for bytes in
        [0, 1, 8 << 10, (8 << 10) + 1, 16 << 10, 512 << 10, (512 << 10) + 1, 4 << 20, u64::MAX >> 1]
    {
        sizes.count(bytes);
    }
    assert_eq!(sizes, BufferSizes([2, 2, 0, 0, 0, 0, 1, 3]));
}

#[test]
fn a_connection_on_tcp_says_why() {
    let snapshot = Fixture::busy().snapshot();
    let reasons: Vec<_> = snapshot
        .connections
        .iter()
        .filter(|c| c.mode == Mode::Tcp)
        .map(|c| (c.state, c.reason, c.reason_words, c.is_current()))
        .collect();
    let expected =
        |state, reason: Reason, current| (state, reason.code(), Some(reason.words()), current);
    assert!(reasons.contains(&expected(State::Active, Reason::PeerNotShunt, true)), "{reasons:?}");
    assert!(reasons.contains(&expected(State::Init, Reason::Waiting, true)), "{reasons:?}");
    assert_eq!(reasons.len(), 2);
}

#[test]
fn sums_are_over_what_was_and_what_is() {
    let snapshot = Fixture::busy().snapshot();
    let server = &snapshot.processes[0];
    assert_eq!(server.counters.bytes_tx, 1000 + 100);
    assert_eq!((server.counters.sends, server.counters.receives), (30 + 5, 40 + 6));
    assert_eq!((server.attached_total, server.attached_clients), (7, 2));
    assert_eq!((server.connections_shm, server.connections_tcp), (1, 1));
    // A buffer each way between the two, of 64 KiB.
    let one = BufferSizes([0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!((server.tx_buffers, server.rx_buffers), (one, one));
    assert_eq!((server.fallbacks[0].reason, server.fallbacks[0].count), (1, 3));
    let [group] = &snapshot.link_groups[..] else { panic!("{:#?}", snapshot.link_groups) };
    assert_eq!((group.slot, group.peer_slot, group.connections), (0, 1, 1));
    assert_eq!((group.bytes_tx, group.bytes_rx), (100, 101));
    let [listener] = &snapshot.listeners[..] else { panic!() };
    assert_eq!((listener.port, listener.program.as_str()), (80, "server"));
}

#[test]
fn the_dead_and_the_closed_are_marked() {
    let snapshot = Fixture::busy().snapshot();
    let gone = snapshot.processes.iter().find(|p| p.program == "gone").unwrap();
    assert!(!gone.alive);
    let not_current: Vec<_> = snapshot.connections.iter().filter(|c| !c.is_current()).collect();
    assert_eq!(not_current.len(), 2, "one closed, one of the dead");
}

#[test]
fn names_cannot_speak_to_the_terminal() {
    let snapshot = Fixture::busy().snapshot();
    assert_eq!(snapshot.processes[1].program, "client?[31m");
}

#[test]
fn a_peer_that_does_not_agree_is_not_believed() {
    let board = Fixture::busy();
    store(&board.half_at(0, 0).peer_generation, 6);
    let snapshot = board.snapshot();
    assert!(snapshot.connections.iter().all(|c| c.peer_half.is_none()));
    assert!(snapshot.link_groups.is_empty());
}

#[test]
fn demotion_is_seen_at_both_ends() {
    let board = Fixture::busy();
    store(&board.half_at(0, 0).flags, half_flags::UP | half_flags::DOWN);
    let snapshot = board.snapshot();
    let both: Vec<_> = snapshot.connections.iter().filter(|c| c.peer_half.is_some()).collect();
    assert!(both.iter().all(|c| c.mode == Mode::Tcp && c.reason == Reason::PeerAsked.code()));
    assert_eq!((both[0].tx_mode, both[0].rx_mode), (Mode::Tcp, Some(Mode::Shm)));
}

#[test]
fn ends_that_were_shut_down_say_so() {
    let board = Fixture::busy();
    store(&board.half_at(0, 0).flags, half_flags::UP | half_flags::SHUT);
    let snapshot = board.snapshot();
    let both: Vec<_> = snapshot.connections.iter().filter(|c| c.peer_half.is_some()).collect();
    assert_eq!([both[0].state, both[1].state], [State::PeerClw, State::AppClw]);
}

#[test]
fn the_engine_stands_for_another_host() {
    let board = Fixture::busy();
    store(&board.map.header().engine, 2);
    let snapshot = board.snapshot();
    let modes: Vec<_> = snapshot.connections.iter().map(|c| (c.slot, c.mode)).collect();
    assert!(modes.contains(&(0, Mode::Smcr)), "{modes:?}");
    assert!(modes.iter().all(|(slot, _)| *slot != 1), "its own ends are not shown: {modes:?}");
    let server = &snapshot.processes[0];
    assert_eq!((server.connections_shm, server.connections_smcr), (0, 1));
    // What it carries as TCP, because no SMC came of it, it says at its end.
    let code = 0x8303_0000;
    store(&board.half_at(1, 0).reason, code);
    let snapshot = board.snapshot();
    let ours = snapshot.connections.iter().find(|c| c.slot == 0 && c.reason == code).unwrap();
    assert_eq!(ours.mode, Mode::Tcp);
    assert_eq!(ours.reason_words, Some("The peer: No device for SMC was found."));
    assert_eq!(snapshot.processes[0].connections_smcr, 0);
    store(&board.half_at(1, 0).reason, 0);
    for nonsense in [1024 + 1, u32::MAX] {
        store(&board.map.header().engine, nonsense);
        assert!(board.snapshot().connections.iter().all(|c| c.mode != Mode::Smcr));
    }
}

#[test]
fn another_file_of_that_name_is_another_board() {
    let board = Fixture::busy();
    let mut watch = Watch { path: board.path.clone(), netns: NETNS, board: None };
    assert_eq!(watch.look().unwrap().unwrap().processes.len(), 3);
    std::fs::remove_file(board.path.to_str().unwrap()).unwrap();
    assert!(watch.look().unwrap().is_none());
    let (map, fd) = Map::open(&board.path, NETNS, Access::Guest).unwrap();
    let _ = (map, sys::call::close(fd));
    assert_eq!(watch.look().unwrap().unwrap().processes.len(), 0);
}

#[test]
fn a_file_that_is_no_board_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("board-8");
    std::fs::write(&path, "nonsense").unwrap();
    let modes: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, modes).unwrap();
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let error = Board::open_at(&path, NETNS).unwrap_err().to_string();
    assert!(error.contains("not a board"), "{error}");
    // As it is left where there is no room for its tables.
    let file = std::fs::File::create(path.to_str().unwrap()).unwrap();
    for len in [0, sys::abi::FILE_BYTES as u64] {
        file.set_len(len).unwrap();
        let error = Board::open_at(&path, NETNS).unwrap_err().to_string();
        assert!(error.contains("not complete: was the file system full"), "{len}: {error}");
    }
}

/// Nonsense in each table that is read. Some of it is plausible, or nothing would be followed.
fn scribble(board: &Fixture, bytes: &[u8], words: &[u32], used: (u32, u32)) {
    let file = std::fs::File::options().write(true).open(board.path.to_str().unwrap()).unwrap();
    let write = |at: usize, bytes: &[u8]| file.write_all_at(bytes, at as u64).unwrap();
    store(&board.map.header().slots_used, used.0);
    store(&board.map.header().extents_used, used.1);
    for (i, chunk) in bytes.chunks(size_of::<Slot>()).take(8).enumerate() {
        write(SLOTS_AT + i * size_of::<Slot>(), chunk);
    }
    for (i, word) in words.iter().enumerate().take(EXTENTS - FIRST) {
        write(OWNERS_AT + (FIRST + i) * 4, &word.to_le_bytes());
        // Where ports are: PORTS_AT is the page after the header.
        write(4096 + i * 4, &word.to_le_bytes());
        write((FIRST + i) * EXTENT_BYTES, bytes);
        for nth in 0..bytes.len() / HALF_BYTES {
            let at = (FIRST + i) * EXTENT_BYTES + nth * HALF_BYTES;
            // `state` begins the third line of a half.
            write(at + 128, &(word.rotate_left(u32::try_from(nth).unwrap()) & 7).to_le_bytes());
        }
    }
}

proptest! {
    // Each case maps a board for the life of the process.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nonsense_on_the_board_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 512..20_000),
        words in proptest::collection::vec(
            prop_oneof![any::<u32>(), (0u32..8).prop_map(|w| w | OWNER_HALVES)], 1..12),
        used in (any::<u32>(), prop_oneof![any::<u32>(), 17u32..30]),
    ) {
        let board = Fixture::busy();
        scribble(&board, &bytes, &words, used);
        let snapshot = board.snapshot();
        prop_assert!(snapshot.connections.len() <= CONNECTIONS_MAX);
        prop_assert!(snapshot.processes.len() <= SLOTS);
        crate::stat::tests::show(snapshot);
    }
}

#[test]
fn a_board_that_claims_too_much_is_cut() {
    let board = Fixture::empty();
    // Each block of enough extents has halves that all claim to be in use.
    let per_extent = EXTENT_BYTES / HALF_BYTES;
    let extents = CONNECTIONS_MAX / per_extent + 1;
    let half = {
        let mut bytes = vec![0u8; HALF_BYTES];
        bytes[128] = 3; // state: TCP
        bytes[132] = 1; // generation
        bytes
    };
    let extent = half.repeat(per_extent);
    let file = std::fs::File::options().write(true).open(board.path.to_str().unwrap()).unwrap();
    let free = nix::sys::statvfs::fstatvfs(&file).unwrap();
    if free.blocks_available() * free.fragment_size() < 2 * extents as u64 * MIB {
        eprintln!("skipped: less than {} MiB free for temporary files", 2 * extents);
        return;
    }
    for e in FIRST..FIRST + extents {
        store(board.map.owner(e), 1 | OWNER_HALVES);
        file.write_all_at(&extent, (e * EXTENT_BYTES) as u64).unwrap();
    }
    store(&board.map.header().extents_used, u32::try_from(EXTENTS).unwrap());
    let snapshot = board.snapshot();
    assert!(snapshot.truncated);
    assert_eq!(snapshot.connections.len(), CONNECTIONS_MAX);
}

/// The number of a process in a container says nothing here: another one may have it, and it may be gone all the same.
#[test]
fn a_process_of_another_namespace_lives_as_long_as_its_lock() {
    let board = Fixture::empty();
    for slot in 0..2 {
        board.process(slot, std::process::id(), "inside");
        store64(&board.map.slot(slot).pids, u64::MAX);
    }
    board.lives(0);
    let processes = board.snapshot().processes;
    let said = processes.iter().map(|p| (p.alive, p.elsewhere, p.host_pid, p.pid));
    let own = std::process::id();
    assert_eq!(said.collect::<Vec<_>>(), [(true, true, None, own), (false, true, None, own)]);
}

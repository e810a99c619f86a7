//! A board whose tables hold anything: listeners, offers, owners of memory, process slots, and halves
//! that are offered. Whoever looks there finds something or nothing, and soon; what is ours stays ours.

use std::net::{Ipv4Addr, SocketAddrV6};
use std::time::Duration;

use libc::iovec;
use local::Limits;
use local::board::{self, Ends};
use local::offer;
use local::world::World;
use sys::abi::{
    BUCKET_WAYS, BUCKETS, DATA_AT, EXTENT_BYTES, EXTENTS, HALF_BYTES, Loc, SLOTS, half_state,
    slot_state,
};
use sys::iov::Buffers;
use sys::sync::Ordering;

use super::Input;
use super::clock::Moment;
use crate::calls;
use crate::run::BoardDir;

/// No call may take longer: milliseconds, and a busy machine.
const CALL_MAX: Duration = Duration::from_secs(20);
const MEMORY_MAX: usize = 64 << 20;
/// What the neighbour has in its ring.
const TREASURE: u8 = 0xab;
/// Ports, slots and extents that the fuzzer writes to: few, so that it meets itself.
const FEW: usize = 8;
const FIRST_EXTENT: usize = DATA_AT / EXTENT_BYTES;

/// A process on a board of its own, what it holds, and where its offers are.
#[derive(Debug)]
struct Process {
    w: World,
    halves: Vec<u32>,
    blocks: Vec<Loc>,
    words: Vec<u64>,
    /// Another process, which only lives: what it has in a ring must stay there.
    neighbour: World,
    treasure: Loc,
    _dir: BoardDir,
}

fn ends(input: &mut Input<'_>) -> Ends {
    let addr = |port: u16| SocketAddrV6::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port, 0, 0);
    Ends { local: addr(u16::from(input.byte() % 3)), remote: addr(u16::from(input.byte() % 3)) }
}

/// A number of a half: one that may be, or anything.
fn half(input: &mut Input<'_>) -> u32 {
    let first = u32::try_from(DATA_AT / HALF_BYTES).unwrap_or(0);
    match input.byte() % 3 {
        0 => first + u32::from(input.byte()),
        1 => {
            first + u32::from(input.byte()) * u32::try_from(EXTENT_BYTES / HALF_BYTES).unwrap_or(1)
        }
        _ => small(input),
    }
}

fn small(input: &mut Input<'_>) -> u32 {
    match input.byte() % 3 {
        0 => u32::from(input.byte() % 10),
        1 => u32::from(input.byte() % 10) | 1 << 31,
        #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
        _ => input.word() as u32,
    }
}

/// Writes a byte into a ring.
fn put(w: &World, loc: Loc, byte: u8, at: u64) {
    let mut byte = [byte];
    let list = [iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 }];
    // SAFETY: one byte of ours.
    let mut from = unsafe { Buffers::new(&list) }.expect("one byte");
    from.to_ring(w.board.map.ring(loc), at, 1, false);
}

impl Process {
    fn new() -> Self {
        let dir = BoardDir::new();
        let mut limits = Limits::default();
        limits.set("dir", &dir.path().to_string_lossy()).expect("a directory");
        let join = || {
            let w = World::join(limits.clone(), "offers".into(), 400).expect("a board");
            w.board.ensure_slot().expect("a slot");
            w
        };
        let (neighbour, w) = (join(), join());
        let treasure = {
            let mut arena = neighbour.arena.lock().expect("nobody else");
            arena.block(&neighbour.board, 0, MEMORY_MAX).expect("memory")
        };
        put(&neighbour, treasure, TREASURE, 7);
        Self {
            w,
            halves: Vec::new(),
            blocks: Vec::new(),
            words: vec![0],
            neighbour,
            treasure,
            _dir: dir,
        }
    }

    /// Somebody writes nonsense.
    fn write(&self, input: &mut Input<'_>) {
        let map = &self.w.board.map;
        match input.byte() % 8 {
            0 => map.port(u16::from(input.byte() % 8)).store(small(input), Ordering::Relaxed),
            1 | 2 => {
                let word = u64::from(half(input)) | u64::from(half(input)) << 32;
                let line = self.words[input.below(self.words.len())] & !(BUCKET_WAYS as u64 - 1);
                let at = line + u64::from(input.byte() % 8);
                map.offer_word(at).store(word, Ordering::Relaxed);
            }
            3 => {
                let extent = FIRST_EXTENT + input.below(FEW);
                map.owner(extent).store(small(input), Ordering::Relaxed);
            }
            4 => {
                let slot = map.slot(u32::from(input.byte() % 8));
                let word = input.choice(&[&slot.state, &slot.generation, &slot.pid]);
                word.store(small(input), Ordering::Relaxed);
            }
            5 => {
                let slot = map.slot(u32::from(input.byte() % 8));
                slot.links[input.below(FEW)].store(small(input), Ordering::Relaxed);
            }
            6 => map.header().slots_used.store(small(input), Ordering::Relaxed),
            _ => map.header().extents_used.store(small(input), Ordering::Relaxed),
        }
    }

    /// We are killed, and come back as another process: memory of the dead is looked for.
    fn die(&mut self) {
        let old = self.w.board.fd();
        self.w.forked();
        self.halves.clear();
        self.blocks.clear();
        let _ = self.w.board.ensure_slot();
        if self.w.board.fd() != old {
            let _ = calls::close(old);
        }
    }

    /// Offers a half of ours, looks an offer up, takes it, withdraws it.
    fn offers(&mut self, input: &mut Input<'_>) {
        let ends = ends(input);
        let board = &self.w.board;
        match input.byte() % 4 {
            0 => {
                let taken = self.w.arena.lock().map(|mut a| a.half(board, MEMORY_MAX));
                let Some(Ok(index)) = taken else { return };
                let half = board.map.half_known(index);
                ends.write(half);
                half.state.store(half_state::OFFERED, Ordering::Release);
                self.halves.push(index);
                if let Ok(word) = board.offer(index, ends, false) {
                    self.words.push(word);
                    assert!(word < BUCKETS as u64);
                }
            }
            1 => {
                if let Some(found) = board.offers_to(ends.mirrored(), -1).next() {
                    assert!(ends.are_of(board.map.half(found.half).expect("a half")));
                    if input.byte().is_multiple_of(2) {
                        let server = half(input);
                        let took = offer::take(found.word, found.half, server);
                        assert!(!took || found.taker.is_none());
                    }
                }
            }
            2 => {
                let word = board.map.offer_word(self.words[input.below(self.words.len())]);
                let index = half(input);
                let _ = (offer::taken(word, index), offer::withdraw(word, index));
            }
            _ => {
                let Some(index) = self.halves.pop() else { return };
                let word = board.map.offer_word(self.words[input.below(self.words.len())]);
                offer::clear(word, index);
                if let Some(mut arena) = self.w.arena.lock() {
                    arena.free_half(board, index);
                }
            }
        }
    }

    /// Takes memory and writes to it: it must be ours to write, whatever the tables say.
    fn memory(&mut self, input: &mut Input<'_>) {
        let Some(mut arena) = self.w.arena.lock() else { return };
        if input.byte().is_multiple_of(3)
            && let Some(loc) = self.blocks.pop()
        {
            arena.free_block(&self.w.board, loc);
            return;
        }
        let order = u32::from(input.byte()) % (Loc::ORDER_MAX + 1);
        let Ok(loc) = arena.block(&self.w.board, order, MEMORY_MAX) else { return };
        self.blocks.push(loc);
        for loc in &self.blocks {
            put(&self.w, *loc, input.byte(), input.word());
        }
    }

    fn call(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0..=2 => self.offers(input),
            3 | 4 => self.memory(input),
            5 => {
                let port = u16::from(input.byte() % 8);
                let _ = self.w.board.listen(port);
                let _ = self.w.board.listening(port);
            }
            6 => {
                let n = board::halves(&self.w.board.map, self.w.board.fd()).count();
                assert!(n <= EXTENTS * (EXTENT_BYTES / HALF_BYTES));
            }
            _ => self.die(),
        }
    }

    /// What the next input finds does not depend on this one.
    fn clean(&mut self) {
        let map = self.w.board.map;
        for (port, slot) in (0..8u16).zip(0..8u32) {
            map.port(port).store(0, Ordering::Relaxed);
            let lives = self.neighbour.board.slot() == Some(slot);
            let slot = map.slot(slot);
            let state = if lives { slot_state::LIVE } else { slot_state::FREE };
            slot.state.store(state, Ordering::Relaxed);
            slot.links.iter().for_each(|n| n.store(0, Ordering::Relaxed));
        }
        for word in self.words.drain(1..) {
            for way in 0..BUCKET_WAYS as u64 {
                map.offer_word((word & !7) + way).store(0, Ordering::Relaxed);
            }
        }
        for extent in FIRST_EXTENT..EXTENTS {
            map.owner(extent).store(0, Ordering::Relaxed);
        }
        map.header().slots_used.store(8, Ordering::Relaxed);
        map.header().extents_used.store(64, Ordering::Relaxed);
        self.die();
    }
}

/// Runs one input.
///
/// # Panics
///
/// When a call took too long or answered what cannot be; a crash is a crash.
pub fn run(bytes: &[u8]) {
    static PROCESS: std::sync::Mutex<Option<Process>> = std::sync::Mutex::new(None);
    let mut held = PROCESS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let process = held.get_or_insert_with(Process::new);
    let mut input = Input::new(bytes);
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        if input.byte().is_multiple_of(3) {
            process.write(&mut input);
            continue;
        }
        let begun = Moment::now();
        process.call(&mut input);
        assert!(begun.elapsed() < CALL_MAX, "a call took {:?}", begun.elapsed());
    }
    let mut byte = [0];
    process.neighbour.board.map.copy_out(process.treasure, 7, &mut byte);
    assert_eq!(byte, [TREASURE], "the memory of a living process was given away");
    process.clean();
    assert!(process.w.board.slot().is_some_and(|slot| (slot as usize) < SLOTS));
}

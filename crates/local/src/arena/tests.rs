use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use sys::memory_group::MemoryLimit;

use super::*;

const LIMIT: MemoryLimit = MemoryLimit { group: 7, bytes: 64 << 20 };
const SHARE: usize = 16 << 20;

/// A directory for a board.
struct Place(PathBuf);

impl Place {
    fn new(of: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("shunt-{of}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
        Self(dir)
    }

    /// As a process of a control group with this limit.
    fn join(&self, limit: Option<MemoryLimit>) -> Board {
        let mut board = Board::join(self.0.to_str(), 600).unwrap();
        board.memory_limit = limit;
        board.ensure_slot().unwrap();
        board
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Takes rings until there is no memory for another one: bytes that are taken then.
fn fill(arena: &mut Arena, board: &Board, order: u32) -> usize {
    while arena.block(board, order, usize::MAX).is_ok() {
        assert!(arena.bytes_owned() <= 4 * SHARE, "there is no end");
    }
    arena.bytes_owned()
}

#[test]
fn processes_of_a_control_group_keep_to_their_share_of_its_limit() {
    let place = Place::new("group-share");
    let [first, second] = [(); 2].map(|()| place.join(Some(LIMIT)));
    let (mut mine, mut its) = (Arena::default(), Arena::default());
    let large = fill(&mut mine, &first, Loc::ORDER_MAX);
    assert_eq!(large, SHARE / 2, "what is large leaves room");
    assert_eq!(fill(&mut its, &second, Loc::ORDER_MAX), 0, "the other one counts");
    let part = PART as usize * BLOCK_BYTES;
    assert_eq!(fill(&mut its, &second, 0), SHARE / 2, "for what is small there is some");
    assert_eq!(its.half(&second, usize::MAX), Err(Reason::NoMemory));
    // What one of them gives back the other may take.
    let ring = mine.block(&first, 0, usize::MAX);
    assert_eq!(ring, Err(Reason::NoMemory));
    mine.free_block(&first, Loc { block: first_block(&mine), order: Loc::ORDER_MAX });
    mine.trim(&first, 0);
    assert!(its.block(&second, 0, usize::MAX).is_ok());
    assert_eq!(its.bytes_owned(), SHARE / 2 + part);
}

/// The first block that an arena has.
fn first_block(arena: &Arena) -> u32 {
    arena.parts[0].0
}

#[test]
fn large_rings_leave_half_of_the_memory_for_small_ones() {
    const MOST: usize = 16 << 20;
    let place = Place::new("large-half");
    let board = place.join(None);
    let mut arena = Arena::default();
    let taken = |arena: &mut Arena, order| {
        let mut n = 0;
        while arena.block(&board, order, MOST).is_ok() {
            n += BLOCK_BYTES << order;
            assert!(n <= 2 * MOST, "there is no end");
        }
        n
    };
    assert_eq!(taken(&mut arena, Loc::ORDER_MAX), MOST / 2);
    assert_eq!(taken(&mut arena, SMALL + 1), 0);
    assert!(arena.half(&board, MOST).is_ok());
    // But for what the half took.
    assert!(taken(&mut arena, 0) >= MOST / 2 - (PART as usize * BLOCK_BYTES));
}

#[test]
fn processes_of_other_groups_do_not_count() {
    let place = Place::new("group-others");
    let other = MemoryLimit { group: 8, ..LIMIT };
    let boards = [Some(LIMIT), Some(other), None].map(|limit| place.join(limit));
    for board in &boards[..2] {
        assert_eq!(fill(&mut Arena::default(), board, 0), SHARE);
    }
    let mut unbound = Arena::default();
    for _ in 0..8 {
        unbound.block(&boards[2], Loc::ORDER_MAX, usize::MAX).unwrap();
    }
    assert_eq!(unbound.bytes_owned(), 2 * SHARE);
}

#[test]
fn what_a_slot_says_cannot_overflow() {
    let place = Place::new("group-nonsense");
    let [first, second] = [(); 2].map(|()| place.join(Some(LIMIT)));
    first.my_slot().unwrap().bytes_owned.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(Arena::default().block(&second, 0, usize::MAX), Err(Reason::NoMemory));
}

//! An owner and two borrowers, in every order.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Chunks with what is in them, each of which loom watches: whoever reads while another may write is found.
struct World {
    loans: Loans,
    bytes: [UnsafeCell<u8>; CHUNKS],
}

const CHUNKS: usize = 3;

// SAFETY: as with the real one, of which this is a model: loom says where it is not so.
unsafe impl Sync for World {}

impl World {
    fn new() -> Arc<Self> {
        let bytes = std::array::from_fn(|_| UnsafeCell::new(0));
        Arc::new(Self { loans: Loans::new(3), bytes })
    }

    fn write(&self, chunk: u32, byte: u8) {
        // SAFETY: what the model is to show.
        self.bytes[chunk as usize].with_mut(|at| unsafe { *at = byte });
    }

    fn read(&self, chunk: u32) -> u8 {
        // SAFETY: what the model is to show.
        self.bytes[chunk as usize].with(|at| unsafe { *at })
    }

    /// Borrows what is lent of these by now, reads it and gives it back, all together.
    fn use_up(&self, me: u32, chunks: impl IntoIterator<Item = u32>) -> usize {
        let mut all = Vec::new();
        for chunk in chunks {
            if let Some(part) = self.loans.borrow(chunk, me) {
                assert_eq!(u16::from(self.read(chunk)), part.len);
                all.push(chunk);
            }
        }
        let came = all.len();
        self.loans.push_back(&mut all);
        came
    }
}

/// What comes back is written anew, while others still come back.
#[test]
fn a_chunk_that_is_back_is_nobodys_else() {
    loom::model(|| {
        let world = World::new();
        for chunk in 0..3u8 {
            world.write(chunk.into(), chunk + 1);
            let part = Part { at: 0, len: u16::from(chunk) + 1 };
            world.loans.lend(chunk.into(), part, u32::from(chunk) / 2);
        }
        let others = [(0, vec![0, 1]), (1, vec![2])].map(|(me, chunks)| {
            let world = Arc::clone(&world);
            thread::spawn(move || assert_eq!(world.use_up(me, chunks.clone()), chunks.len()))
        });
        let mut back = Vec::new();
        world.loans.take_back(&mut back);
        back.iter().for_each(|chunk| world.write(*chunk, 9));
        others.into_iter().for_each(|other| other.join().unwrap());
        world.loans.take_back(&mut back);
        back.iter().for_each(|chunk| world.write(*chunk, 9));
        back.sort_unstable();
        assert_eq!(back, [0, 1, 2]);
    });
}

/// A borrower who asks too early gets nothing, and all of it later.
#[test]
fn what_is_lent_is_seen_with_what_is_in_it() {
    loom::model(|| {
        let world = World::new();
        let owner = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                for chunk in 0..2u8 {
                    world.write(chunk.into(), chunk + 5);
                    let part = Part { at: 0, len: u16::from(chunk) + 5 };
                    world.loans.lend(chunk.into(), part, 0);
                }
            })
        };
        let early = world.use_up(0, [0, 1, 0]);
        owner.join().unwrap();
        assert_eq!(early + world.use_up(0, [0, 1]), 2);
        let mut back = Vec::new();
        world.loans.take_back(&mut back);
        back.sort_unstable();
        assert_eq!(back, [0, 1]);
    });
}

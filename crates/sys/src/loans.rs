//! Chunks of memory that one thread owns and lends to others, each to one at a time.
//!
//! For each chunk there is a word. The owner writes into it to whom it **lends** the chunk, and which part of it
//! counts; only that one can **borrow** it, once. What was borrowed goes **back** by a list, linked in the same
//! words, to which many push and from which the owner takes all at once: it always has room, and since nobody
//! takes a single one, a head that is the same again has the same behind it (no ABA).

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// No borrower has this number.
const NOBODY: u32 = u32::MAX;
/// No chunk: the end of a list.
const NONE: u32 = u32::MAX;

/// The part of a chunk that is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where it begins, bytes.
    pub(crate) at: u16,
    /// Bytes.
    pub(crate) len: u16,
}

/// To whom the chunks of one owner are lent, by number from 0 on.
#[derive(Debug)]
pub(crate) struct Loans {
    /// For each chunk: see [`lent`]; or the next of those that come back, see [`link`].
    words: Box<[AtomicU64]>,
    /// The first chunk of those that come back.
    back: Head,
}

/// A word that other cores write, on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Head(AtomicU32);

/// The word of a chunk that is lent to `to`.
fn lent(part: Part, to: u32) -> u64 {
    u64::from(to) << 32 | u64::from(part.at) << 16 | u64::from(part.len)
}

/// The word of a chunk that is not lent.
fn link(next: u32) -> u64 {
    u64::from(NOBODY) << 32 | u64::from(next)
}

/// Half of a word, the lower is 0.
#[expect(clippy::cast_possible_truncation, reason = "that is the point")]
fn half(word: u64, at: u32) -> u32 {
    (word >> (32 * at)) as u32
}

/// A quarter of a word, the lowest is 0.
#[expect(clippy::cast_possible_truncation, reason = "that is the point")]
fn quarter(word: u64, at: u32) -> u16 {
    (word >> (16 * at)) as u16
}

impl Loans {
    /// None of so many chunks is lent.
    pub(crate) fn new(chunks: u32) -> Self {
        let words = (0..chunks).map(|_| AtomicU64::new(link(NONE))).collect();
        Self { words, back: Head(AtomicU32::new(NONE)) }
    }

    /// Lends a chunk. For the owner, while it has the chunk; from now on it has it no more.
    pub(crate) fn lend(&self, chunk: u32, part: Part, to: u32) {
        // Release: what is in the chunk, before the other may read it.
        self.words[chunk as usize].store(lent(part, to), Ordering::Release);
    }

    /// Takes a chunk that is lent to `borrower`, which is one thread. `None`: it is not.
    pub(crate) fn borrow(&self, chunk: u32, borrower: u32) -> Option<Part> {
        let word = self.words.get(chunk as usize)?;
        // Acquire: pairs with the Release in `lend`.
        let says = word.load(Ordering::Acquire);
        if borrower == NOBODY || half(says, 1) != borrower {
            return None;
        }
        // While it is lent to us nobody else writes this word.
        word.store(link(NONE), Ordering::Relaxed);
        Some(Part { at: quarter(says, 1), len: quarter(says, 0) })
    }

    /// Gives chunks back that were borrowed, and empties the list of them.
    pub(crate) fn push_back(&self, chunks: &mut Vec<u32>) {
        let (Some(first), Some(last)) = (chunks.first().copied(), chunks.last().copied()) else {
            return;
        };
        for pair in chunks.windows(2) {
            self.words[pair[0] as usize].store(link(pair[1]), Ordering::Relaxed);
        }
        self.push_chain(first, last);
        chunks.clear();
    }

    fn push_chain(&self, first: u32, last: u32) {
        let mut head = self.back.0.load(Ordering::Relaxed);
        loop {
            self.words[last as usize].store(link(head), Ordering::Relaxed);
            // Release: the links, and what was read of the chunks, before the owner finds them.
            let pushed = self.back.0.compare_exchange_weak(
                head,
                first,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match pushed {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Adds all that have come back to a list. For the owner.
    pub(crate) fn take_back(&self, to: &mut Vec<u32>) {
        // A look first: so the line stays shared while nothing comes.
        if self.back.0.load(Ordering::Relaxed) == NONE {
            return;
        }
        // Acquire: pairs with the Release of each that has pushed.
        let mut chunk = self.back.0.swap(NONE, Ordering::Acquire);
        while chunk != NONE {
            to.push(chunk);
            chunk = half(self.words[chunk as usize].load(Ordering::Relaxed), 0);
        }
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_lent_to_one_and_comes_back_once() {
        let (loans, part) = (Loans::new(4), Part { at: 256, len: 1514 });
        assert_eq!(loans.borrow(2, 7), None);
        assert_eq!(loans.borrow(2, NOBODY), None, "nobody has what is not lent");
        loans.lend(2, part, 7);
        assert_eq!(
            (loans.borrow(2, 8), loans.borrow(3, 7), loans.borrow(4, 7)),
            (None, None, None)
        );
        assert_eq!((loans.borrow(2, 7), loans.borrow(2, 7)), (Some(part), None));
        let mut back = Vec::new();
        loans.take_back(&mut back);
        assert!(back.is_empty());
        loans.push_back(&mut vec![2]);
        loans.push_back(&mut Vec::new());
        loans.push_back(&mut vec![0, 3, 1]);
        loans.take_back(&mut back);
        assert_eq!(back, [0, 3, 1, 2]);
        back.clear();
        loans.take_back(&mut back);
        assert!(back.is_empty());
    }
}

//! Where fragments wait for the rest of their datagram when they came in by a packet ring.
//!
//! A fragment that comes in takes a frame of the pool at once, and that is what it is charged for; its
//! bytes stay in the ring's block. Blocks in which something waits are kept, half of the ring at most: the
//! other half is the kernel's, so a fragment that waits for long never holds up the ring. When there are
//! more, what still waits in the oldest block is copied to the frames that it has taken, and the kernel has
//! the block back. Most datagrams are whole by then, and nothing of them was copied.
//!
//! So what is charged is never less than what a fragment holds beyond the ring, whose size is fixed.

use std::collections::VecDeque;
use std::num::NonZero;

use sys::call::Failure;
use sys::iov;
use sys::pages::Pages;

/// A frame, taken: its number and one more, so that an `Option` of it is no larger.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slot(NonZero<u32>);

impl Slot {
    const fn new(frame: u32) -> Self {
        Self(NonZero::<u32>::MIN.saturating_add(frame))
    }

    const fn frame(&self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    /// In the block of that number.
    Block {
        number: u32,
        at: u32,
        len: u32,
    },
    /// In its frame.
    Frame {
        len: u32,
    },
}

/// A block in which something waits.
#[derive(Debug)]
struct Kept<T> {
    block: T,
    /// Frames that were taken for fragments in it; some are free again, or are others' by now.
    frames: Vec<u32>,
    /// How many are not.
    waiting: u32,
}

/// Frames of one size, of one worker.
#[derive(Debug)]
pub(super) struct Pool<T> {
    memory: Pages,
    frame_bytes: usize,
    places: Vec<Place>,
    free: Vec<u32>,
    most: u32,
    kept: VecDeque<Kept<T>>,
    kept_most: usize,
    /// Number of the first block that is kept; the numbers of the others follow. It wraps.
    first: u32,
    /// Of the block that is worked on: frames taken, how many of these wait.
    frames: Vec<u32>,
    waiting: u32,
}

impl<T: AsRef<[u8]>> Pool<T> {
    /// At most `most` frames of `frame_bytes`, for `ready` bytes of which there is memory from the
    /// beginning; and as many blocks kept as `kept_most`.
    pub(super) fn new(
        frame_bytes: usize,
        most: u32,
        ready: usize,
        kept_most: usize,
    ) -> Result<Self, Failure> {
        Ok(Self {
            memory: Pages::new(frame_bytes * most as usize, ready)?,
            frame_bytes,
            places: Vec::new(),
            free: Vec::new(),
            most,
            kept: VecDeque::new(),
            kept_most,
            first: 0,
            frames: Vec::new(),
            waiting: 0,
        })
    }

    /// What a frame costs.
    pub(super) fn frame_bytes(&self) -> u32 {
        u32::try_from(self.frame_bytes).unwrap_or(u32::MAX)
    }

    /// Whether blocks are kept.
    pub(super) fn keeps(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Number of the block that is worked on.
    fn open(&self) -> u32 {
        self.first.wrapping_add(u32::try_from(self.kept.len()).unwrap_or(0))
    }

    /// A frame for the fragment at `at` in the block that is worked on. `None`: there is none, or it does
    /// not fit.
    pub(super) fn take(&mut self, at: usize, len: usize) -> Option<Slot> {
        if len > self.frame_bytes {
            return None;
        }
        let frame = self.free.pop().or_else(|| self.grow())?;
        let narrow = |n| u32::try_from(n).unwrap_or(u32::MAX);
        let number = self.open();
        self.places[frame as usize] = Place::Block { number, at: narrow(at), len: narrow(len) };
        self.frames.push(frame);
        self.waiting += 1;
        Some(Slot::new(frame))
    }

    fn grow(&mut self) -> Option<u32> {
        let frame = u32::try_from(self.places.len()).ok().filter(|frame| *frame < self.most)?;
        self.places.push(Place::Free);
        Some(frame)
    }

    /// The fragment's bytes. `open` is the block that is worked on.
    pub(super) fn bytes<'a>(&'a self, slot: &Slot, open: &'a [u8]) -> &'a [u8] {
        match self.places[slot.frame()] {
            Place::Free => &[],
            Place::Block { number, at, len } => {
                let kept = self.kept.get(number.wrapping_sub(self.first) as usize);
                let block = kept.map_or(open, |kept| kept.block.as_ref());
                &block[at as usize..][..len as usize]
            }
            Place::Frame { len } => &self.memory[slot.frame() * self.frame_bytes..][..len as usize],
        }
    }

    /// Takes a frame back.
    pub(super) fn release(&mut self, slot: Slot) {
        let Slot(number) = slot;
        let frame = slot.frame();
        if let Place::Block { number, .. } = self.places[frame] {
            match self.kept.get_mut(number.wrapping_sub(self.first) as usize) {
                Some(kept) => kept.waiting -= 1,
                None => self.waiting -= 1,
            }
        }
        self.places[frame] = Place::Free;
        self.free.push(number.get() - 1);
    }

    /// Work on a block is over. Answers how many fragments had to be copied.
    pub(super) fn close(&mut self, block: T) -> u64 {
        let frames = std::mem::take(&mut self.frames);
        let waiting = std::mem::take(&mut self.waiting);
        self.kept.push_back(Kept { block, frames, waiting });
        let mut copied = 0;
        while self.kept.len() > self.kept_most
            || self.kept.front().is_some_and(|oldest| oldest.waiting == 0)
        {
            copied += self.give_back();
        }
        copied
    }

    /// Gives all blocks back. Answers how many fragments had to be copied.
    pub(super) fn settle(&mut self) -> u64 {
        std::iter::from_fn(|| self.keeps().then(|| self.give_back())).sum()
    }

    /// Gives the oldest block back.
    fn give_back(&mut self) -> u64 {
        let Some(Kept { block, frames, .. }) = self.kept.pop_front() else { return 0 };
        let oldest = self.first;
        self.first = self.first.wrapping_add(1);
        let mut copied = 0;
        for frame in frames {
            // A frame that was released and taken again may stand in several lists.
            if let Place::Block { number, at, len } = self.places[frame as usize]
                && number == oldest
            {
                // What has waited for so long is not near any more, and will not be read soon.
                iov::copy_far(
                    &mut self.memory[frame as usize * self.frame_bytes..][..len as usize],
                    &block.as_ref()[at as usize..][..len as usize],
                );
                self.places[frame as usize] = Place::Frame { len };
                copied += 1;
            }
        }
        copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_waits_is_copied() {
        let mut pool = Pool::new(16, 4, 0, 0).unwrap();
        let block = b"onetwothreefour!".to_vec();
        let one = pool.take(0, 3).unwrap();
        let two = pool.take(3, 3).unwrap();
        assert_eq!(
            (pool.bytes(&one, &block), pool.bytes(&two, &block)),
            (&b"one"[..], &b"two"[..])
        );
        pool.release(one);
        // Takes the frame of `one` again.
        let three = pool.take(6, 5).unwrap();
        assert_eq!(pool.close(block), 2);
        assert_eq!(pool.bytes(&three, b""), b"three");
        assert_eq!(pool.bytes(&two, b""), b"two");
        assert_eq!(pool.settle(), 0);
    }

    #[test]
    fn blocks_are_kept_while_something_waits_in_them() {
        let mut pool = Pool::new(16, 8, 0, 2).unwrap();
        let slots: Vec<_> = (0..4u8)
            .map(|n| {
                let slot = pool.take(0, 2).unwrap();
                assert_eq!(
                    pool.close(vec![n, n]),
                    u64::from(n >= 2),
                    "the third makes the first go"
                );
                slot
            })
            .collect();
        for (n, slot) in (0..).zip(&slots) {
            assert_eq!(pool.bytes(slot, b""), [n, n]);
        }
        slots.into_iter().skip(2).for_each(|slot| pool.release(slot));
        assert_eq!(pool.close(Vec::new()), 0);
        assert!(!pool.keeps(), "nothing waits in any");
    }

    #[test]
    fn frames_end_and_come_back() {
        let mut pool = Pool::new(4096, 3, 4096, 1).unwrap();
        let slots: Vec<_> = (0..3).map(|_| pool.take(0, 1).unwrap()).collect();
        assert_eq!(pool.take(0, 1), None);
        assert_eq!(pool.close(b"x".to_vec()), 0);
        assert_eq!(pool.settle(), 3);
        assert_eq!(pool.bytes(&slots[2], b""), b"x");
        slots.into_iter().for_each(|slot| pool.release(slot));
        assert_eq!(pool.take(0, 5000), None, "does not fit");
        assert!(pool.take(0, 1).is_some());
    }
}

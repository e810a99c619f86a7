//! Where fragments wait when the ring that they came in goes back to the kernel.
//!
//! A fragment that comes in takes a frame of the pool at once, and that is what it is charged for; its
//! bytes stay in the ring's block for as long as we have that. Most datagrams are whole by then, and
//! nothing was copied. Only what still waits when the block ends is copied to its frame
//! ([`Pool::settle`]). So no block is ever kept back from the kernel by a fragment that waits, and what is
//! charged is what is held.

/// Memory is taken from the system in pieces of about this size, when it is first needed.
const PIECE_BYTES: usize = 1 << 20;

/// A frame, taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    /// In the open block.
    Open {
        at: u32,
        len: u32,
    },
    /// In its frame.
    Here {
        len: u32,
    },
}

/// Frames of one size, of one worker.
#[derive(Debug)]
pub(super) struct Pool {
    frame_bytes: usize,
    pieces: Vec<Box<[u8]>>,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Those that were taken since the block was opened.
    open: Vec<u32>,
    most: u32,
}

impl Pool {
    /// At most `most` frames of `frame_bytes`.
    pub(super) fn new(frame_bytes: usize, most: u32) -> Self {
        let (places, free, open) = (Vec::new(), Vec::new(), Vec::new());
        Self { frame_bytes, pieces: Vec::new(), places, free, open, most }
    }

    /// What a frame costs.
    pub(super) fn frame_bytes(&self) -> u32 {
        u32::try_from(self.frame_bytes).unwrap_or(u32::MAX)
    }

    /// A frame for the fragment at `at` in the open block. `None`: there is none, or it does not fit.
    pub(super) fn take(&mut self, at: usize, len: usize) -> Option<Slot> {
        if len > self.frame_bytes {
            return None;
        }
        let frame = self.free.pop().or_else(|| self.grow())?;
        let narrow = |n| u32::try_from(n).unwrap_or(u32::MAX);
        self.places[frame as usize] = Place::Open { at: narrow(at), len: narrow(len) };
        self.open.push(frame);
        Some(Slot(frame))
    }

    fn grow(&mut self) -> Option<u32> {
        let frame = u32::try_from(self.places.len()).ok().filter(|frame| *frame < self.most)?;
        self.places.push(Place::Free);
        Some(frame)
    }

    /// The fragment's bytes. `block` is the open one.
    pub(super) fn bytes<'a>(&'a self, slot: &Slot, block: &'a [u8]) -> &'a [u8] {
        match self.places[slot.0 as usize] {
            Place::Free => &[],
            Place::Open { at, len } => &block[at as usize..][..len as usize],
            Place::Here { len } => &self.frame(slot.0)[..len as usize],
        }
    }

    /// Takes a frame back.
    pub(super) fn release(&mut self, slot: Slot) {
        let Slot(frame) = slot;
        self.places[frame as usize] = Place::Free;
        self.free.push(frame);
    }

    /// Copies what still waits out of the block, which may be given back after that. Answers how many
    /// fragments that were.
    pub(super) fn settle(&mut self, block: &[u8]) -> u64 {
        let mut copied = 0;
        let mut open = std::mem::take(&mut self.open);
        for frame in open.drain(..) {
            // A frame that was released and taken again stands here twice.
            if let Place::Open { at, len } = self.places[frame as usize] {
                self.frame_mut(frame)[..len as usize]
                    .copy_from_slice(&block[at as usize..][..len as usize]);
                self.places[frame as usize] = Place::Here { len };
                copied += 1;
            }
        }
        self.open = open;
        copied
    }

    /// Which piece a frame is in, and where.
    fn locate(&self, frame: u32) -> (usize, usize) {
        let each = (PIECE_BYTES / self.frame_bytes).max(1);
        (frame as usize / each, frame as usize % each * self.frame_bytes)
    }

    fn frame(&self, frame: u32) -> &[u8] {
        let (piece, at) = self.locate(frame);
        &self.pieces[piece][at..at + self.frame_bytes]
    }

    fn frame_mut(&mut self, frame: u32) -> &mut [u8] {
        let (piece, at) = self.locate(frame);
        let bytes = PIECE_BYTES.max(self.frame_bytes);
        while self.pieces.len() <= piece {
            self.pieces.push(vec![0; bytes].into_boxed_slice());
        }
        &mut self.pieces[piece][at..at + self.frame_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_waits_is_copied() {
        let mut pool = Pool::new(16, 4);
        let block = *b"onetwothreefour!";
        let one = pool.take(0, 3).unwrap();
        let two = pool.take(3, 3).unwrap();
        assert_eq!(
            (pool.bytes(&one, &block), pool.bytes(&two, &block)),
            (&b"one"[..], &b"two"[..])
        );
        pool.release(one);
        // Takes the frame of `one` again.
        let three = pool.take(6, 5).unwrap();
        assert_eq!(pool.settle(&block), 2);
        assert_eq!(pool.bytes(&three, b""), b"three");
        assert_eq!(pool.bytes(&two, b""), b"two");
        assert_eq!(pool.settle(b""), 0);
    }

    #[test]
    fn frames_end_and_come_back() {
        let mut pool = Pool::new(PIECE_BYTES / 2, 3);
        let slots: Vec<_> = (0..3).map(|_| pool.take(0, 1).unwrap()).collect();
        assert_eq!(pool.take(0, 1), None);
        assert_eq!(pool.settle(b"x"), 3);
        assert_eq!(pool.bytes(&slots[2], b""), b"x");
        slots.into_iter().for_each(|slot| pool.release(slot));
        assert_eq!(pool.take(0, PIECE_BYTES), None, "does not fit");
        assert!(pool.take(0, 1).is_some());
    }
}

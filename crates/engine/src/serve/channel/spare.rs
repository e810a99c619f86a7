//! Memory of large frames that are gone, for those to come.
//!
//! An allocator gives what is this large back to the system, which hands it out again page by page, each with
//! a fault and zeroed: for a frame of 1 MiB as much work as encrypting it.

use std::cell::RefCell;

/// Smaller ones are left to the allocator.
const LARGE: usize = 32 << 10;
/// Bytes that one vector keeps.
const KEPT: usize = 32 << 20;
/// How much more room one may have than is asked for: a multiple.
const WASTE: usize = 4;

#[derive(Default)]
struct Spare {
    free: Vec<Vec<u8>>,
    bytes: usize,
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

impl Spare {
    fn take(&mut self, room: usize) -> Option<Vec<u8>> {
        let fits =
            |bytes: &Vec<u8>| (room..=room.saturating_mul(WASTE)).contains(&bytes.capacity());
        // What was given back last is the most likely to be in the processor's cache.
        let at = self.free.iter().rposition(fits)?;
        let bytes = self.free.remove(at);
        self.bytes -= bytes.capacity();
        Some(bytes)
    }

    fn give(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() < LARGE || bytes.capacity() > KEPT {
            return;
        }
        bytes.clear();
        self.bytes += bytes.capacity();
        self.free.push(bytes);
        // Sizes that are not asked for any more go first.
        let mut gone = 0;
        while self.bytes > KEPT {
            self.bytes -= self.free[gone].capacity();
            gone += 1;
        }
        self.free.drain(..gone);
    }
}

/// Makes room for `more` bytes behind those that there are.
pub(super) fn make_room(bytes: &mut Vec<u8>, more: usize) {
    if bytes.capacity() - bytes.len() >= more {
        return;
    }
    let room = bytes.len() + more;
    if room < LARGE {
        bytes.reserve(more);
        return;
    }
    let mut larger =
        SPARE.with_borrow_mut(|spare| spare.take(room)).unwrap_or_else(|| Vec::with_capacity(room));
    larger.extend_from_slice(bytes);
    give(std::mem::replace(bytes, larger));
}

/// Keeps the memory of a frame that is gone.
pub(super) fn give(bytes: Vec<u8>) {
    if bytes.capacity() >= LARGE {
        SPARE.with_borrow_mut(|spare| spare.give(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_used_again() {
        let mut spare = Spare::default();
        spare.give(Vec::with_capacity(100_000));
        assert_eq!(spare.take(100_001), None);
        assert_eq!(spare.take(20_000), None, "too much of it would lie idle");
        let again = spare.take(90_000).unwrap();
        assert!(again.is_empty() && again.capacity() == 100_000);
        assert_eq!((spare.bytes, spare.take(90_000)), (0, None));
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let mut spare = Spare::default();
        for _ in 0..5 {
            spare.give(Vec::with_capacity(KEPT / 4));
        }
        spare.give(Vec::with_capacity(KEPT + 1));
        spare.give(Vec::with_capacity(LARGE - 1));
        assert_eq!((spare.free.len(), spare.bytes), (4, KEPT));
        spare.give(Vec::with_capacity(LARGE));
        assert_eq!((spare.free.len(), spare.bytes), (4, KEPT / 4 * 3 + LARGE));
    }

    #[test]
    fn room_is_made_behind_what_is_there() {
        let mut bytes = b"head".to_vec();
        make_room(&mut bytes, 1 << 20);
        assert!(bytes == b"head" && bytes.capacity() >= 4 + (1 << 20));
        let place = bytes.as_ptr();
        give(bytes);
        let mut next = b"next".to_vec();
        make_room(&mut next, 1 << 20);
        assert!(next == b"next" && next.as_ptr() == place);
    }
}

//! Paths at which there was a file or a folder of the share's own file system when somebody looked last.
//!
//! To open a pipe or a device is to do something to it: who waits to write to a pipe goes on, and is told that nobody
//! reads. So what is at a path is looked at before it is opened (`O_PATH`), which takes two system calls more, but for
//! paths that are known from here; most are opened again and again, at first for attributes only. Who puts a pipe in
//! the place of such a file has it touched once. Who mounts something there has not: it is opened only where nothing is
//! mounted (RESOLVE_NO_XDEV).

use std::hash::{BuildHasher, RandomState};

use sys::sync::{AtomicU32, Ordering};

/// Paths that are remembered. Each has one place, and the last to come has it.
const PLACES: usize = 1 << 14;

#[derive(Debug)]
pub(super) struct Plain {
    hasher: RandomState,
    /// What of a path's hash does not say its place; zero for none.
    places: Box<[AtomicU32]>,
}

impl Default for Plain {
    fn default() -> Self {
        let places = (0..PLACES).map(|_| AtomicU32::new(0)).collect();
        Self { hasher: RandomState::new(), places }
    }
}

impl Plain {
    pub(super) fn has(&self, path: &[u8]) -> bool {
        let (place, mark) = self.place(path);
        place.load(Ordering::Relaxed) == mark
    }

    /// What is there now.
    pub(super) fn note(&self, path: &[u8], plain: bool) {
        let (place, mark) = self.place(path);
        // Looked at first: this is said with every open.
        let known = place.load(Ordering::Relaxed) == mark;
        if known != plain {
            place.store(if plain { mark } else { 0 }, Ordering::Relaxed);
        }
    }

    fn place(&self, path: &[u8]) -> (&AtomicU32, u32) {
        let hash = self.hasher.hash_one(path);
        let at = usize::try_from(hash % PLACES as u64).unwrap_or(0);
        let mark = u32::try_from(hash >> 32).unwrap_or(1);
        (&self.places[at], mark.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::Plain;

    #[test]
    fn what_was_noted_is_known_until_it_is_another_thing() {
        let plain = Plain::default();
        for path in [&b""[..], b"a", b"a/b"] {
            assert!(!plain.has(path));
            plain.note(path, false);
            assert!(!plain.has(path));
            plain.note(path, true);
            assert!(plain.has(path));
        }
        plain.note(b"a/b", false);
        assert!(!plain.has(b"a/b") && !plain.has(b"other"));
    }
}

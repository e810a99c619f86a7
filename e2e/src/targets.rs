//! What is fuzzed: each a function of bytes that must come back, and soon.
//!
//! `fuzz/` hands them to libFuzzer (`just fuzz`), `tests/it/fuzzed.rs` to a fixed number of random
//! inputs in each run of the tests.

pub mod clock;
pub mod hostile_peer;
pub mod offers;
pub mod pair;

/// Bytes of the fuzzer, as what a target asks for; zeros when they are used up.
#[derive(Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of it.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, at| word | u64::from(self.byte()) << (8 * at))
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (usize::from(self.byte()) | usize::from(self.byte()) << 8) % n.max(1)
    }

    /// One of these.
    pub fn choice<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }
}

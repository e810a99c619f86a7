//! Words that a process has in common with those it forks.

use std::sync::atomic::AtomicPtr;

use crate::call;
use crate::sync::{AtomicU32, Ordering};

/// How many words there are.
pub const WORDS: usize = 1 << 14;

/// An array of words, all of them 0 at first. It is made when it is first asked for; who is forked after that has the
/// same one, and who was forked before makes its own.
#[derive(Debug)]
pub struct Common {
    at: AtomicPtr<[AtomicU32; WORDS]>,
}

impl Default for Common {
    fn default() -> Self {
        Self { at: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

impl Common {
    /// The words; `None`: there is no memory for them.
    pub fn words(&self) -> Option<&[AtomicU32; WORDS]> {
        if self.at.load(Ordering::Acquire).is_null() {
            let made = call::mmap_common(size_of::<[AtomicU32; WORDS]>()).ok()?;
            let (none, acquire) = (std::ptr::null_mut(), Ordering::Acquire);
            if self.at.compare_exchange(none, made.cast(), Ordering::AcqRel, acquire).is_err() {
                // Another thread was first.
                call::munmap(made, size_of::<[AtomicU32; WORDS]>());
            }
        }
        // SAFETY: a mapping of that size, page-aligned and zero at first, which is never unmapped.
        unsafe { self.at.load(Ordering::Acquire).as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_writes_its_parent_reads() {
        let common = Common::default();
        let word = &common.words().expect("memory")[7];
        assert_eq!(word.load(Ordering::Relaxed), 0);
        // SAFETY: the child only writes a word, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            common.words().expect("memory")[7].store(3, Ordering::Relaxed);
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: our child, and a valid place.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(word.load(Ordering::Relaxed), 3);
    }
}

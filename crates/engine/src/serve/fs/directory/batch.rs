//! Some entries of a folder, and what has been looked up of them ahead of time.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::FileType;
use smb::NtStatus;
use smb::fscc::Facts;

use super::Folder;

/// Entries that are looked up ahead at a time.
const CHUNK: usize = 32;

/// Fewer entries than these are not worth waking a core.
const WORTHWHILE: usize = 256;

/// What one `getdents64(2)` gave, without "." and "..".
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Names one behind the other, each with its NUL.
    names: Vec<u8>,
    listed: Vec<Listed>,
}

#[derive(Clone, Copy, Debug)]
struct Listed {
    /// Where its name ends, the NUL included.
    end: usize,
    kind: FileType,
}

impl Batch {
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.listed.clear();
    }

    pub(super) fn push(&mut self, name: &CStr, kind: FileType) {
        self.names.extend_from_slice(name.to_bytes_with_nul());
        self.listed.push(Listed { end: self.names.len(), kind });
    }

    pub(super) fn len(&self) -> usize {
        self.listed.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// The name of an entry, and of what kind it is as far as the folder says.
    pub(super) fn get(&self, at: usize) -> Option<(&CStr, FileType)> {
        let listed = self.listed.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.listed[before].end);
        let name = CStr::from_bytes_with_nul(&self.names[start..listed.end]).ok()?;
        Some((name, listed.kind))
    }
}

/// What is to be shown of an entry, if it is.
pub(super) type Looked = Result<Option<Facts>, NtStatus>;

/// Entries of a batch that somebody else looks up, from the last one on towards the one that is wanted next.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Of the batch, from its first entry on; of those that there was room for.
    chunks: Box<[OnceLock<Box<[Looked]>>]>,
    /// Entries before this one are not wanted any more.
    reached: AtomicUsize,
}

impl Ahead {
    /// What was found out about an entry, if somebody has come to it. What is before it is not looked up any more.
    pub(super) fn take(&self, at: usize) -> Option<Looked> {
        if at.is_multiple_of(CHUNK) {
            self.reached.store(at + CHUNK, Ordering::Relaxed);
        }
        self.chunks.get(at / CHUNK)?.get()?.get(at % CHUNK).cloned()
    }

    /// Whether this entry and those behind it are still wanted.
    fn is_wanted(&self, start: usize) -> bool {
        start >= self.reached.load(Ordering::Relaxed)
    }

    /// Nothing of it is wanted any more.
    pub(super) fn forget(&self) {
        self.reached.store(usize::MAX, Ordering::Relaxed);
    }
}

/// Looking up entries ahead of time, for another thread.
#[derive(Debug)]
pub struct Errand {
    folder: Arc<Folder>,
    batch: Arc<Batch>,
    ahead: Arc<Ahead>,
    end: usize,
}

impl Errand {
    /// For the entries of `batch` from `at` on, at most `most` of them, if that is worth the while.
    pub(super) fn new(
        folder: &Arc<Folder>,
        batch: &Arc<Batch>,
        at: usize,
        most: usize,
    ) -> Option<(Self, Arc<Ahead>)> {
        let end = batch.len().min(at.saturating_add(most));
        if end.saturating_sub(at) < WORTHWHILE {
            return None;
        }
        let ahead = Arc::new(Ahead {
            chunks: (0..end.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            // Who wants them is at work on the next ones.
            reached: AtomicUsize::new(at + CHUNK),
        });
        let errand =
            Self { folder: folder.clone(), batch: batch.clone(), ahead: ahead.clone(), end };
        Some((errand, ahead))
    }

    /// Looks up what is still wanted. If nothing is, because it has come too late, that costs no system call.
    pub fn run(self) {
        let last = self.ahead.chunks.len().saturating_sub(1) * CHUNK;
        if !self.ahead.is_wanted(last) {
            return;
        }
        // With a descriptor of its own it does not contend with who is at the same folder for a counter.
        let Ok(fd) = self.folder.another() else { return };
        for (number, chunk) in self.ahead.chunks.iter().enumerate().rev() {
            let start = number * CHUNK;
            if !self.ahead.is_wanted(start) {
                return;
            }
            let entries = start..self.end.min(start + CHUNK);
            // Nobody else sets it.
            let _ = chunk.set(entries.map(|at| self.look(&fd, at)).collect());
        }
    }

    fn look(&self, fd: &OwnedFd, at: usize) -> Looked {
        let Some((name, kind)) = self.batch.get(at) else { return Ok(None) };
        self.folder.entry_facts(fd.as_fd(), name, kind)
    }
}

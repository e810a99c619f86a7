//! Pipes to splice through: few, large, and never reused unless empty.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// What a pipe should hold. With 256 KiB, or `sendfile`'s 64, each pipe full wakes the receiver: on
/// loopback that costs more than the copy that is saved.
const WANTED: usize = 1 << 20;
/// What a pipe must hold to be of use.
const LEAST: usize = 512 << 10;

/// Where the pipes of one loop are kept. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct PipePool {
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Debug)]
struct Shelf {
    free: Vec<Ends>,
    /// Lent out now.
    lent: usize,
    /// Bound on both together.
    most: usize,
    /// The system refused one (`pipe-user-pages-soft`, or descriptors): no more than there were.
    refused: bool,
}

#[derive(Debug)]
struct Ends {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Bytes that it holds when full.
    size: usize,
}

/// A pipe on loan, with account of what is in it. Goes back when dropped empty; else it is closed, so
/// that what an abandoned transfer left never turns up in another.
#[derive(Debug)]
pub(super) struct Pipe {
    ends: Option<Ends>,
    /// Bytes in it.
    pub(super) held: usize,
    home: Arc<Mutex<Shelf>>,
}

impl PipePool {
    /// At most `most` pipes at once, made when they are first wanted. The system lets a user without
    /// `CAP_SYS_RESOURCE` have 64 of 1 MiB (`/proc/sys/fs/pipe-user-pages-soft`).
    #[must_use]
    pub fn new(most: usize) -> Self {
        let shelf = Shelf { free: Vec::new(), lent: 0, most, refused: false };
        Self { shelf: Arc::new(Mutex::new(shelf)) }
    }

    /// A pipe; none when all are lent, or the system gives no more of use: use another method then.
    pub(super) fn lend(&self) -> Option<Pipe> {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = match shelf.free.pop() {
            Some(ends) => ends,
            None if shelf.lent >= shelf.most || shelf.refused => return None,
            None => {
                let made = Ends::new();
                // Asked again once one is given back: somebody else of the same user may have ended.
                shelf.refused = made.is_none();
                made?
            }
        };
        shelf.lent += 1;
        Some(Pipe { ends: Some(ends), held: 0, home: Arc::clone(&self.shelf) })
    }

    /// Closes the pipes that nobody uses, for a loop that has had nothing to do for a while.
    pub fn trim(&self) {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.free.clear();
        shelf.refused = false;
    }

    /// How many pipes there are: free, and lent.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        (shelf.free.len(), shelf.lent)
    }
}

impl Ends {
    fn new() -> Option<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // `pipe-max-size` may be set lower than usual: half is still worth it.
        let size = [WANTED, LEAST]
            .into_iter()
            .find_map(|size| fcntl_setpipe_size(&writer, size).ok())
            .filter(|size| *size >= LEAST)?;
        Some(Self { reader, writer, size })
    }
}

impl Pipe {
    fn ends(&self) -> &Ends {
        self.ends.as_ref().expect("taken in drop only")
    }

    /// Where bytes come out.
    pub(super) fn reader(&self) -> &OwnedFd {
        &self.ends().reader
    }

    /// Where bytes go in.
    pub(super) fn writer(&self) -> &OwnedFd {
        &self.ends().writer
    }

    /// Bytes that it holds when full, if all come in whole pages.
    pub(super) fn size(&self) -> usize {
        self.ends().size
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut shelf = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.lent -= 1;
        shelf.refused = false;
        if let Some(ends) = self.ends.take().filter(|_| self.held == 0) {
            shelf.free.push(ends);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_allowed_and_those_again() {
        let pool = PipePool::new(2);
        let Some(first) = pool.lend() else { return println!("skipped: no pipe of 512 KiB here") };
        let second = pool.lend();
        assert!(second.is_some() && pool.lend().is_none());
        drop(first);
        assert_eq!(pool.counts(), (1, 1));
        assert!(pool.lend().is_some());
        drop(second);
        pool.trim();
        assert_eq!(pool.counts(), (0, 0));
    }

    #[test]
    fn a_pipe_with_something_in_it_is_not_lent_again() {
        let pool = PipePool::new(2);
        let Some(mut pipe) = pool.lend() else { return println!("skipped: no pipe of 512 KiB") };
        pipe.held = rustix::io::write(pipe.writer(), b"left over").unwrap();
        drop(pipe);
        assert_eq!(pool.counts(), (0, 0));
    }
}

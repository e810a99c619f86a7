//! File data between a file and a TCP socket, past our own memory where that pays.
//!
//! Values without an executor: [`SendFile`] answers a READ, [`ReceiveFile`] takes in a WRITE. Each
//! `step` does what can be done without waiting and says what for it stopped ([`Progress`]). The
//! caller waits until the socket is ready, or gives a [`Job`] to a thread that may wait for the disk
//! and its result back to the transfer, and steps again.
//!
//! A header that promises `n` bytes of data has left before the data, so whatever happens then, `n`
//! bytes follow or the connection ends: a file that became shorter meanwhile is continued with
//! zeros; a payload that cannot be written is still taken from the socket.
//!
//! Nothing here waits, whatever the socket's flags. But `splice(2)` cannot be told so for one call: on
//! a socket without `O_NONBLOCK` another method is used. Nor can it be kept from raising `SIGPIPE`,
//! which the process must ignore.

mod buffers;
mod choose;
mod extents;
mod file;
mod learn;
mod pipes;
mod receive;
mod send;

pub use buffers::{Buffer, BufferPool};
pub use choose::{Chooser, Load, Policy};
pub use extents::{allocated, clone_range, copy_range, punch, reserve, zero};
pub use file::{DataFile, is_in_memory};
pub use learn::{Clocks, Lesson};
pub use pipes::PipePool;
pub use receive::ReceiveFile;
pub use send::SendFile;

use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use super::runtime::Budget;

/// How bytes get from a file to a socket or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Through a buffer of ours: two copies, never a surprise.
    Copy,
    /// From or into a shared mapping of the file: one copy, made by the kernel.
    Map,
    /// By way of a pipe: pages are passed on to the socket as they are, none copied; from a socket
    /// into a file, one copy.
    Splice,
    /// As [`Method::Splice`], with the pages of a mapping, which are found sooner than those of a file. Into a file it is
    /// [`Method::Splice`].
    Vmsplice,
    /// For a socket whose bytes go through shared memory: one copy, from or into a mapping of the file, or by a call
    /// for the file (`sendfile(2)`, `pwrite(2)`). Into a file that is on a disk, as [`Method::Copy`].
    Carried,
}

/// Why a `step` came back.
#[derive(Debug)]
pub enum Progress {
    /// All is moved.
    Done,
    /// The socket takes, or has, nothing now: wait until it is writable or readable.
    SocketBlocked,
    /// The disk would have to be waited for: run this where waiting hurts nobody, give its result to
    /// `finished`, then step again.
    WouldWait(Job),
}

/// Why a transfer cannot go on. What was promised to the peer has not been sent, or what it sends
/// not been taken: unless nothing was ([`SendFile::started`]), the connection must end.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The connection is broken, or ended inside of a payload (`UnexpectedEof`).
    #[error("socket: {0}")]
    Socket(#[source] io::Error),
    /// The file cannot be read.
    #[error("file: {0}")]
    File(#[source] io::Error),
}

/// What may wait for a disk, for a thread that may wait.
#[derive(Debug)]
pub enum Job {
    /// Bring a range of a file into memory.
    Prefetch {
        /// The file.
        file: Arc<DataFile>,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Read a range of a file: of what is not to be had in memory, or not without asking.
    Read {
        /// The file.
        file: Arc<DataFile>,
        /// First byte.
        offset: u64,
        /// Where they go: as many as it is long, or as there are.
        buffer: Buffer,
    },
    /// Write bytes into a file.
    Write {
        /// The file.
        file: Arc<DataFile>,
        /// Where in the file its first byte goes.
        offset: u64,
        /// What holds them.
        buffer: Buffer,
        /// Which bytes of the buffer.
        range: std::ops::Range<usize>,
    },
}

/// A [`Job`] that was run.
#[derive(Debug)]
pub struct Finished {
    pub(crate) buffer: Option<Buffer>,
    /// Bytes that were read into the buffer.
    pub(crate) read: usize,
    pub(crate) result: io::Result<()>,
}

impl Job {
    /// How many threads may wait for that disk at a time, if that was said.
    #[must_use]
    pub fn callers(&self) -> Option<&Budget> {
        let (Self::Prefetch { file, .. } | Self::Read { file, .. } | Self::Write { file, .. }) =
            self;
        file.callers()
    }

    /// Does it, and waits for the disk as long as that takes.
    #[must_use]
    pub fn run(self) -> Finished {
        match self {
            Self::Prefetch { file, offset, len } => {
                Finished { buffer: None, read: 0, result: file.prefetch(offset, len) }
            }
            Self::Read { file, offset, mut buffer } => {
                let (read, result) = match file.fill(&mut buffer, offset) {
                    Ok(read) => (read, Ok(())),
                    Err(error) => (0, Err(error)),
                };
                Finished { buffer: Some(buffer), read, result }
            }
            Self::Write { file, offset, buffer, range } => {
                let result = file.write_all(&buffer[range], offset);
                Finished { buffer: Some(buffer), read: 0, result }
            }
        }
    }
}

/// Whether an error of moving bytes between shared memory and a mapping of a file, or a file in memory, is one of the
/// connection: no such file says these.
fn is_of_connection(error: Errno) -> bool {
    matches!(
        error,
        Errno::CONNRESET
            | Errno::CONNABORTED
            | Errno::CONNREFUSED
            | Errno::PIPE
            | Errno::NOTCONN
            | Errno::SHUTDOWN
            | Errno::TIMEDOUT
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::NETDOWN
            | Errno::NETRESET
    )
}

/// Whether `splice(2)` on this socket comes back at once.
fn never_waits(socket: BorrowedFd<'_>) -> bool {
    fcntl_getfl(socket).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

/// What the transfers of one loop share.
#[derive(Clone, Debug)]
pub struct Pools {
    /// Pipes to splice through.
    pub pipes: PipePool,
    /// Buffers to copy through; also those in which data is signed or encrypted.
    pub buffers: BufferPool,
    receivers: Rc<Receivers>,
}

/// Which of a loop's connections wait for payload.
#[derive(Debug)]
struct Receivers {
    /// Who has waited last.
    last: Cell<RawFd>,
    /// How many times the same one has to wait until it counts as alone.
    left: Cell<u8>,
}

impl Receivers {
    /// Waits in a row by which a connection is alone.
    const ALONE: u8 = 8;

    /// A connection is about to wait. Whether no other has of late.
    fn is_alone(&self, socket: RawFd) -> bool {
        let same = self.last.replace(socket) == socket;
        self.left.set(if same { self.left.get().saturating_sub(1) } else { Self::ALONE });
        self.left.get() == 0
    }
}

impl Pools {
    /// Pools that keep at most `pipes` pipes of 1 MiB and `buffer_bytes` bytes of buffers.
    #[must_use]
    pub fn new(pipes: usize, buffer_bytes: usize) -> Self {
        let receivers = Receivers { last: Cell::new(-1), left: Cell::new(0) };
        Self {
            pipes: PipePool::new(pipes),
            buffers: BufferPool::new(buffer_bytes),
            receivers: Rc::new(receivers),
        }
    }
}

#[cfg(test)]
mod tests;

//! What a ring can be asked for.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};

use crate::event::{Event, Interest};

/// Something for the kernel to do, with all that it takes. Ranges are places of the buffer; they have to be
/// within it. At most 2^32 - 1 bytes are moved at once, of a longer range its beginning.
#[derive(Debug)]
pub enum Op {
    /// Tells when `fd` is ready; with `again`, each time that something happens there.
    Poll {
        /// Waited for.
        fd: Arc<OwnedFd>,
        /// What for; `once` means nothing here.
        interest: Interest,
        /// More than once, until cancelled or [`super::Done::op`] is there.
        again: bool,
    },
    /// `recv`: what is there, when something is.
    Recv {
        /// A socket.
        fd: Arc<OwnedFd>,
        /// Where to.
        buf: Vec<u8>,
        /// Where in it.
        range: Range<usize>,
    },
    /// `pread`.
    Read {
        /// A file.
        fd: Arc<OwnedFd>,
        /// Where to.
        buf: Vec<u8>,
        /// Where in it.
        range: Range<usize>,
        /// Where in the file.
        offset: u64,
    },
    /// `pwrite`.
    Write {
        /// A file.
        fd: Arc<OwnedFd>,
        /// Where from.
        buf: Vec<u8>,
        /// Where in it.
        range: Range<usize>,
        /// Where in the file.
        offset: u64,
    },
    /// `fsync`, or `fdatasync`.
    Sync {
        /// A file.
        fd: Arc<OwnedFd>,
        /// Not what only `stat` would tell.
        data_only: bool,
    },
}

fn length(range: &Range<usize>) -> u32 {
    u32::try_from(range.len()).unwrap_or(u32::MAX)
}

fn fd(fd: &impl AsRawFd) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

/// The bits of poll(2), which are those of epoll.
fn poll_bits(interest: Interest) -> u32 {
    let bit = |on: bool, bit: i16| if on { u32::from(bit.cast_unsigned()) } else { 0 };
    bit(interest.read, libc::POLLIN)
        | bit(interest.write, libc::POLLOUT)
        | bit(interest.peer_shut, libc::POLLRDHUP)
}

pub(super) fn poll_event(token: u64, result: Result<u32, i32>) -> Event {
    let has = |bits: i16| result.is_ok_and(|found| found & u32::from(bits.cast_unsigned()) != 0);
    Event {
        token,
        read: has(libc::POLLIN),
        write: has(libc::POLLOUT),
        peer_shut: has(libc::POLLRDHUP),
        broken: result.is_err() || has(libc::POLLERR | libc::POLLHUP),
    }
}

impl Op {
    /// The number of its kind.
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Poll { .. } => opcode::PollAdd::CODE,
            Self::Recv { .. } => opcode::Recv::CODE,
            Self::Read { .. } => opcode::Read::CODE,
            Self::Write { .. } => opcode::Write::CODE,
            Self::Sync { .. } => opcode::Fsync::CODE,
        }
    }

    /// The entry for it, which points into its buffer, wherever it is moved: valid for as long as it is.
    pub(super) fn prepare(&mut self) -> squeue::Entry {
        match self {
            Self::Poll { fd: f, interest, again } => {
                opcode::PollAdd::new(fd(f), poll_bits(*interest)).multi(*again).build()
            }
            Self::Recv { fd: f, buf, range } => {
                let into = &mut buf[range.clone()];
                opcode::Recv::new(fd(f), into.as_mut_ptr(), length(range)).build()
            }
            Self::Read { fd: f, buf, range, offset } => {
                let into = &mut buf[range.clone()];
                let read = opcode::Read::new(fd(f), into.as_mut_ptr(), length(range));
                read.offset(*offset).build()
            }
            Self::Write { fd: f, buf, range, offset } => {
                let from = &buf[range.clone()];
                let write = opcode::Write::new(fd(f), from.as_ptr(), length(range));
                write.offset(*offset).build()
            }
            Self::Sync { fd: f, data_only } => {
                let flags = if *data_only {
                    types::FsyncFlags::DATASYNC
                } else {
                    types::FsyncFlags::empty()
                };
                opcode::Fsync::new(fd(f)).flags(flags).build()
            }
        }
    }
}

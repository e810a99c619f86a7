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
    /// `accept4`, not blocking and closed on exec; with `again` (5.19) each that comes.
    Accept {
        /// Listens.
        fd: Arc<OwnedFd>,
        /// More than one.
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
    /// `send` without a signal; what there is room for, when there is.
    Send {
        /// A socket.
        fd: Arc<OwnedFd>,
        /// Where from.
        buf: Vec<u8>,
        /// Where in it.
        range: Range<usize>,
        /// More follows at once (`MSG_MORE`).
        more: bool,
    },
    /// `sendmsg` of several buffers (at most 1024, of more the first), all of each.
    SendParts {
        /// A socket.
        fd: Arc<OwnedFd>,
        /// Where from.
        parts: Vec<Vec<u8>>,
        /// More follows at once (`MSG_MORE`).
        more: bool,
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
    /// `sync_file_range` that begins writing and waits for it.
    SyncRange {
        /// A file.
        fd: Arc<OwnedFd>,
        /// From here.
        offset: u64,
        /// So many bytes; 0 for all that follow.
        len: u32,
    },
    /// `fallocate`.
    Allocate {
        /// A file.
        fd: Arc<OwnedFd>,
        /// From here.
        offset: u64,
        /// So many bytes.
        len: u64,
        /// `FALLOC_FL_` bits.
        mode: i32,
    },
    /// `close`. `None` once that is done.
    Close {
        /// What is closed.
        fd: Option<OwnedFd>,
    },
    /// Ends after so many nanoseconds, with `ETIME`.
    Timeout {
        /// So many.
        ns: u64,
    },
}

/// An operation, and what else its entry points to. In vectors, which stay where they are when this moves.
pub(super) struct Held {
    pub(super) op: Op,
    parts: Vec<libc::iovec>,
    message: Vec<libc::msghdr>,
    time: Vec<types::Timespec>,
}

/// The most parts of one call (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

fn length(range: &Range<usize>) -> u32 {
    u32::try_from(range.len()).unwrap_or(u32::MAX)
}

fn fd(fd: &impl AsRawFd) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

fn send_flags(more: bool) -> i32 {
    libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 }
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
            Self::Accept { .. } => opcode::Accept::CODE,
            Self::Recv { .. } => opcode::Recv::CODE,
            Self::Send { .. } => opcode::Send::CODE,
            Self::SendParts { .. } => opcode::SendMsg::CODE,
            Self::Read { .. } => opcode::Read::CODE,
            Self::Write { .. } => opcode::Write::CODE,
            Self::Sync { .. } => opcode::Fsync::CODE,
            Self::SyncRange { .. } => opcode::SyncFileRange::CODE,
            Self::Allocate { .. } => opcode::Fallocate::CODE,
            Self::Close { .. } => opcode::Close::CODE,
            Self::Timeout { .. } => opcode::Timeout::CODE,
        }
    }

    pub(super) fn accepts(&self) -> bool {
        matches!(self, Self::Accept { .. })
    }

    /// The entry for it, which points into what is held: valid for as long as that is.
    pub(super) fn prepare(self) -> (Held, squeue::Entry) {
        let mut held = Held { op: self, parts: vec![], message: vec![], time: vec![] };
        let entry = match &mut held.op {
            Self::Poll { fd: f, interest, again } => {
                opcode::PollAdd::new(fd(f), poll_bits(*interest)).multi(*again).build()
            }
            Self::Accept { fd: f, again } => accept(fd(f), *again),
            Self::Recv { fd: f, buf, range } => {
                let into = &mut buf[range.clone()];
                opcode::Recv::new(fd(f), into.as_mut_ptr(), length(range)).build()
            }
            Self::Send { fd: f, buf, range, more } => {
                let from = &buf[range.clone()];
                let send = opcode::Send::new(fd(f), from.as_ptr(), length(range));
                send.flags(send_flags(*more)).build()
            }
            Self::SendParts { fd: f, parts, more } => {
                let list = parts.iter_mut().take(PARTS_MAX).map(|part| libc::iovec {
                    iov_base: part.as_mut_ptr().cast(),
                    iov_len: part.len(),
                });
                held.parts = list.collect();
                held.message = vec![message(&mut held.parts)];
                let send = opcode::SendMsg::new(fd(f), held.message.as_ptr());
                send.flags(send_flags(*more).cast_unsigned()).build()
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
            Self::SyncRange { fd: f, offset, len } => {
                let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                    | libc::SYNC_FILE_RANGE_WRITE
                    | libc::SYNC_FILE_RANGE_WAIT_AFTER;
                let sync = opcode::SyncFileRange::new(fd(f), *len).offset(*offset);
                sync.flags(flags).build()
            }
            Self::Allocate { fd: f, offset, len, mode } => {
                opcode::Fallocate::new(fd(f), *len).offset(*offset).mode(*mode).build()
            }
            // -1 is no descriptor: `EBADF`.
            Self::Close { fd: f } => {
                opcode::Close::new(types::Fd(f.as_ref().map_or(-1, AsRawFd::as_raw_fd))).build()
            }
            Self::Timeout { ns } => {
                let time = std::time::Duration::from_nanos(*ns);
                held.time = vec![types::Timespec::from(time)];
                opcode::Timeout::new(held.time.as_ptr()).build()
            }
        };
        (held, entry)
    }
}

fn accept(fd: types::Fd, again: bool) -> squeue::Entry {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    if again {
        return opcode::AcceptMulti::new(fd).flags(flags).build();
    }
    opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).flags(flags).build()
}

fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a `msghdr` of zeros says: no address, no parts, no control bytes.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}

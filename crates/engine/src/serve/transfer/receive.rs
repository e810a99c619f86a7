//! The payload of a WRITE: from a socket into a file.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::pipe::{SpliceFlags, splice};
use sys::filemap::Access;
use sys::stream::{self, Place};

use super::buffers::Buffer;
use super::file::{BY_CALL, DataFile, Window};
use super::pipes::Pipe;
use super::{Finished, Job, Method, Pools, Progress, TransferError, is_of_connection, never_waits};

/// What is collected in a buffer before it is written.
const PIECE: usize = 1 << 20;
/// The same of what comes through shared memory: it is written while it is still in the cache, and its sender has
/// room for more.
const CARRIED_PIECE: usize = 128 << 10;
/// Of a payload that is to come still, so much is waited for at once: on loopback each wake-up costs
/// as much as copying 32 KiB. The kernel makes room for it, and wakes us before if it has none.
const LOW_WATER: usize = 256 << 10;
/// The same where the client is on this host and no other is receiving by this loop, which sleeps until it comes. Who wakes
/// a core that sleeps is the client, by an interrupt: in a virtual machine that may cost it what it sends 300 KiB in, and
/// then one client writes less than half as fast with the smaller number.
const LOW_WATER_LOCAL: usize = 1 << 20;
/// What is less than this is not waited for as a whole: mostly it is there before the loop sleeps.
const SHORT: usize = LOW_WATER / 4;
const SHORT_LOCAL: usize = 384 << 10;
/// `SOL_SOCKET` and `SO_RCVLOWAT` of `asm-generic/socket.h`.
const SOL_SOCKET: i32 = 1;
const SO_RCVLOWAT: i32 = 18;

/// `len` bytes of a socket, written into a file: taken in by [`ReceiveFile::step`] until that says
/// `Done`. Whether they could be written is said by [`ReceiveFile::outcome`]; they are taken from the
/// socket in any case, so that the next request is found.
///
/// Dropped before it is done, the connection must end.
#[derive(Debug)]
pub struct ReceiveFile {
    file: Arc<DataFile>,
    /// What came along with the header and is in no buffer yet.
    early: Vec<u8>,
    early_used: usize,
    /// Where in the file the first byte goes.
    offset: u64,
    len: usize,
    /// Bytes that are out of the socket, those that came early included.
    taken: usize,
    /// Bytes that are in the file.
    stored: usize,
    /// A job has them.
    away: usize,
    failure: Option<io::Error>,
    method: Method,
    held: Held,
    /// The file had bytes already where the last of these goes.
    overwrites: bool,
    /// What comes through shared memory goes into a mapping of the file.
    maps: bool,
    /// How many bytes the socket now waits for before it is readable.
    low_water: usize,
    /// Who sends it is on this host.
    local: bool,
}

#[derive(Debug)]
enum Held {
    Nothing,
    /// The bytes from `from` to `to` are received and not written.
    Buffer {
        buffer: Buffer,
        from: usize,
        to: usize,
    },
    /// With account of its content in itself.
    Pipe(Pipe),
    Window(Arc<Window>),
}

impl ReceiveFile {
    /// To take `len` bytes and write them at `offset`, by `method` if it can be had. The first of
    /// them, `early`, have been received along with the header (no more than `len` of these are
    /// used). They are copied: receive headers with small reads.
    #[must_use]
    pub fn new(early: &[u8], file: Arc<DataFile>, offset: u64, len: u32, method: Method) -> Self {
        let len = len as usize;
        // Only where waiting is out of the question: a page of a file that is on disk may have to be
        // read before it can be written into.
        let method = match method {
            Method::Carried => Method::Carried,
            Method::Vmsplice if file.in_memory() => Method::Splice,
            method if file.in_memory() => method,
            _ => Method::Copy,
        };
        let end = offset.saturating_add(len as u64);
        let past_us = method != Method::Copy && file.in_memory();
        let overwrites = past_us && file.size().is_ok_and(|there| there >= end);
        // What has no page yet a call makes one for that need not be cleared.
        let overwrites = overwrites
            && (method != Method::Map || file.rewritten() || !file.has_holes(offset, len));
        let maps =
            method == Method::Carried && overwrites && file.copies_maps() && file.rewritten();
        Self {
            file,
            early: early[..early.len().min(len)].to_vec(),
            early_used: 0,
            offset,
            len,
            taken: 0,
            stored: 0,
            away: 0,
            failure: None,
            method,
            held: Held::Nothing,
            overwrites,
            maps,
            low_water: 1,
            local: false,
        }
    }

    /// Says whether who sends it is on this host.
    #[must_use]
    pub fn from_local(self, local: bool) -> Self {
        Self { local, ..self }
    }

    /// Bytes that are in the file, or why they are not: to be asked when all is `Done`.
    ///
    /// # Errors
    ///
    /// What writing said (`StorageFull`, `QuotaExceeded`, …). A part may have been written.
    pub fn outcome(self) -> io::Result<u32> {
        match self.failure {
            Some(e) => Err(e),
            None => Ok(u32::try_from(self.stored).unwrap_or(u32::MAX)),
        }
    }

    /// Whether what goes through shared memory goes by way of a mapping.
    #[cfg(test)]
    pub(super) fn maps(&self) -> bool {
        self.maps
    }

    /// How it is being received: other than asked for if that could not be had.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// Takes the result of a job back.
    pub fn finished(&mut self, finished: Finished) {
        let away = std::mem::take(&mut self.away);
        match finished.result {
            Ok(()) => self.stored += away,
            Err(e) => self.fail(e),
        }
        if let Some(buffer) = finished.buffer {
            self.held = Held::Buffer { buffer, from: 0, to: 0 };
        }
    }

    /// Takes and writes what can be taken and written without waiting.
    ///
    /// # Errors
    ///
    /// [`TransferError::Socket`]; do not step again after one.
    pub fn step(
        &mut self,
        socket: BorrowedFd<'_>,
        pools: &Pools,
    ) -> Result<Progress, TransferError> {
        if self.away > 0 {
            self.away = 0;
            self.fail(io::Error::other("a write was given up"));
        }
        let progress = self.go(socket, pools)?;
        match progress {
            Progress::SocketBlocked => {
                let rest = self.len - self.taken;
                let alone = pools.receivers.is_alone(socket.as_raw_fd());
                let (short, most) = match alone && self.local {
                    true => (SHORT_LOCAL, LOW_WATER_LOCAL),
                    false => (SHORT, LOW_WATER),
                };
                self.wake_at(socket, if rest < short { 1 } else { rest.min(most) });
            }
            // What comes next is a header, of whatever length.
            Progress::Done => self.wake_at(socket, 1),
            Progress::WouldWait(_) => {}
        }
        Ok(progress)
    }

    /// Has the socket become readable when there are so many bytes. It is a matter of speed only, and none of
    /// sockets whose bytes go through memory: they would go by TCP for good.
    fn wake_at(&mut self, socket: BorrowedFd<'_>, bytes: usize) {
        if bytes != self.low_water && self.method != Method::Carried {
            self.low_water = bytes;
            let value = i32::try_from(bytes).unwrap_or(i32::MAX);
            let _ = sys::call::setsockopt(socket.as_raw_fd(), SOL_SOCKET, SO_RCVLOWAT, value);
        }
    }

    fn go(&mut self, socket: BorrowedFd<'_>, pools: &Pools) -> Result<Progress, TransferError> {
        loop {
            let stopped = if self.failure.is_some() {
                if self.taken == self.len {
                    return Ok(Progress::Done);
                }
                self.drain(socket)?
            } else if self.stored == self.len {
                self.held = Held::Nothing;
                if self.overwrites {
                    self.file.count_overwritten(self.len);
                }
                return Ok(Progress::Done);
            } else {
                self.advance(socket, pools)?
            };
            if let Some(progress) = stopped {
                return Ok(progress);
            }
        }
    }

    fn advance(
        &mut self,
        socket: BorrowedFd<'_>,
        pools: &Pools,
    ) -> Result<Option<Progress>, TransferError> {
        let early = self.early_used < self.early.len();
        match (&self.held, self.method) {
            (Held::Buffer { from, to, .. }, _) if from < to => self.copy(socket, pools),
            _ if early => self.copy(socket, pools),
            (_, Method::Carried) if self.file.in_memory() => self.carried(socket, pools),
            (_, Method::Copy | Method::Carried) => self.copy(socket, pools),
            (_, Method::Map) => self.map(socket),
            (_, Method::Splice | Method::Vmsplice) => self.splice(socket, pools),
        }
    }

    /// Has the payload taken from the socket and written nowhere: it may not be written.
    pub fn refuse(&mut self) {
        self.fail(io::ErrorKind::PermissionDenied.into());
    }

    fn fail(&mut self, e: io::Error) {
        // What is in a pipe is lost with it.
        self.held = Held::Nothing;
        self.taken += self.early.len() - self.early_used;
        self.early_used = self.early.len();
        self.failure = Some(e);
    }

    /// Takes what nobody wants.
    fn drain(&mut self, socket: BorrowedFd<'_>) -> Result<Option<Progress>, TransferError> {
        let want = (self.len - self.taken).min(PIECE);
        if self.method == Method::Carried {
            let mut nowhere = [0; 16 << 10];
            let want = want.min(nowhere.len());
            return self.took(receive(socket, &mut nowhere[..want]));
        }
        let flags = (RecvFlags::TRUNC | RecvFlags::DONTWAIT).bits().cast_signed();
        let got = sys::call::recv_nowhere(socket.as_raw_fd(), want, flags);
        self.took(got.map_err(Errno::from_raw_os_error))
    }

    /// What is collected before it is written.
    fn piece(&self) -> usize {
        // What is to be written by a thread costs a wake-up each time.
        if self.method == Method::Carried && self.file.in_memory() { CARRIED_PIECE } else { PIECE }
    }

    /// Counts bytes that came out of the socket; answers what to stop for if none did.
    fn took(&mut self, got: Result<usize, Errno>) -> Result<Option<Progress>, TransferError> {
        match got {
            Ok(0) => Err(TransferError::Socket(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => {
                self.taken += n;
                Ok(None)
            }
            Err(Errno::AGAIN) => Ok(Some(Progress::SocketBlocked)),
            Err(Errno::INTR) => Ok(None),
            Err(e) => Err(TransferError::Socket(e.into())),
        }
    }

    fn copy(
        &mut self,
        socket: BorrowedFd<'_>,
        pools: &Pools,
    ) -> Result<Option<Progress>, TransferError> {
        let left = self.len - self.stored;
        if !matches!(self.held, Held::Buffer { .. }) {
            let want = left.min(self.piece());
            let mut buffer = pools.buffers.lend_some(want).map_err(TransferError::File)?;
            buffer.resize(want.min(buffer.capacity()));
            self.held = Held::Buffer { buffer, from: 0, to: 0 };
        }
        let (piece, past_us) = (self.piece(), self.goes_past_us());
        let Held::Buffer { buffer, from, to } = &mut self.held else { return Ok(None) };
        if *from == *to {
            (*from, *to) = (0, 0);
        }
        // How much this buffer is to hold before it is written.
        let full = if *from > 0 { *to } else { left.min(buffer.capacity()).min(piece) };
        if buffer.len() < full {
            buffer.resize(full);
        }
        let early = (self.early.len() - self.early_used).min(full - *to);
        if early > 0 {
            let source = &self.early[self.early_used..][..early];
            buffer[*to..][..early].copy_from_slice(source);
            self.early_used += early;
            self.taken += early;
            *to += early;
        }
        // The rest of what another method will do is not received here.
        let enough = full == *to || past_us && *to > 0 && !self.by_call();
        let Held::Buffer { buffer, from, to } = &mut self.held else { return Ok(None) };
        if !enough {
            let got = receive(socket, &mut buffer[*to..full]);
            *to += got.unwrap_or(0);
            return self.took(got);
        }
        let at = self.offset + self.stored as u64;
        match self.file.write_now(&buffer[*from..*to], at) {
            Ok(0) => {
                self.away = *to - *from;
                let range = *from..*to;
                let Held::Buffer { buffer, .. } = std::mem::replace(&mut self.held, Held::Nothing)
                else {
                    return Ok(None);
                };
                let file = Arc::clone(&self.file);
                return Ok(Some(Progress::WouldWait(Job::Write {
                    file,
                    offset: at,
                    buffer,
                    range,
                })));
            }
            Ok(n) => {
                *from += n;
                self.stored += n;
            }
            Err(e) => self.fail(e),
        }
        Ok(None)
    }

    /// Whether only what comes early, and perhaps the end, goes by way of a buffer.
    fn goes_past_us(&self) -> bool {
        match self.method {
            Method::Map | Method::Splice | Method::Vmsplice => true,
            Method::Carried => self.file.in_memory(),
            Method::Copy => false,
        }
    }

    /// From shared memory straight into the file.
    fn carried(
        &mut self,
        socket: BorrowedFd<'_>,
        pools: &Pools,
    ) -> Result<Option<Progress>, TransferError> {
        let (at, left) = (self.offset + self.stored as u64, self.len - self.stored);
        let mapped = left.saturating_sub(BY_CALL).min(CARRIED_PIECE);
        if self.maps && mapped > 0 && !matches!(self.held, Held::Window(_)) {
            match self.file.window(at, left, Access::Write) {
                Some(window) => {
                    window.prepare(at, left);
                    self.held = Held::Window(window);
                }
                None => self.maps = false,
            }
        }
        let taken = match &self.held {
            Held::Window(window) if self.maps && mapped > 0 => {
                stream::take(&socket, mapped, Place::Window(window), at)
            }
            _ => {
                let file = Place::File(self.file.as_fd());
                stream::take(&socket, left.min(CARRIED_PIECE), file, at)
            }
        };
        match taken.map_err(Errno::from_raw_os_error) {
            // A receive tells what there is in place of bytes in memory.
            Err(Errno::OPNOTSUPP) => self.copy(socket, pools),
            taken => self.took_from_memory(taken).map(|()| None),
        }
    }

    /// Counts bytes that went from shared memory into the file, or finds out why none did.
    pub(super) fn took_from_memory(
        &mut self,
        taken: Result<usize, Errno>,
    ) -> Result<(), TransferError> {
        match taken {
            Ok(0) => self.fail(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                self.taken += n;
                self.stored += n;
            }
            Err(Errno::INTR) => {}
            Err(e) if is_of_connection(e) => return Err(TransferError::Socket(e.into())),
            // Cut off, or no room for a page, or not allowed: a call will say which.
            Err(e) if self.maps => {
                self.maps = false;
                self.file.copy_failed(e);
            }
            Err(e) => self.fail(e.into()),
        }
        Ok(())
    }

    /// Whether only what is to be written by a call is left.
    fn by_call(&self) -> bool {
        self.method == Method::Map && self.len - self.stored <= BY_CALL
    }

    fn map(&mut self, socket: BorrowedFd<'_>) -> Result<Option<Progress>, TransferError> {
        if self.by_call() {
            self.method = Method::Copy;
            return Ok(None);
        }
        let (at, left) = (self.offset + self.stored as u64, self.len - self.stored - BY_CALL);
        let Held::Window(window) = &self.held else {
            let window = match self.overwrites {
                true => self.file.window(at, left, Access::Write),
                false => None,
            };
            match window {
                Some(window) => {
                    window.prepare(at, left);
                    self.held = Held::Window(window);
                }
                None => self.method = Method::Splice,
            }
            return Ok(None);
        };
        let got = window.receive(socket, at, left);
        match got {
            Err(e) if e.raw_os_error() == Some(Errno::FAULT.raw_os_error()) => {
                // Cut off, or no room for a page: a call will say which.
                self.held = Held::Nothing;
                self.method = Method::Copy;
                Ok(None)
            }
            got => {
                self.stored += *got.as_ref().unwrap_or(&0);
                self.took(got.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)))
            }
        }
    }

    fn splice(
        &mut self,
        socket: BorrowedFd<'_>,
        pools: &Pools,
    ) -> Result<Option<Progress>, TransferError> {
        if !matches!(self.held, Held::Pipe(_)) {
            match pools.pipes.lend().filter(|_| never_waits(socket)) {
                Some(pipe) => self.held = Held::Pipe(pipe),
                None => {
                    self.method = Method::Copy;
                    return Ok(None);
                }
            }
        }
        let Held::Pipe(pipe) = &mut self.held else { return Ok(None) };
        if pipe.held == 0 {
            let want = (self.len - self.taken).min(pipe.size());
            let got = splice(socket, None, pipe.writer(), None, want, SpliceFlags::NONBLOCK);
            pipe.held = got.unwrap_or(0);
            return self.took(got);
        }
        let mut at = self.offset + self.stored as u64;
        let out = SpliceFlags::empty();
        match splice(pipe.reader(), None, &self.file, Some(&mut at), pipe.held, out) {
            Ok(0) => self.fail(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                pipe.held -= n;
                self.stored += n;
            }
            Err(Errno::INTR) => {}
            Err(e) => self.fail(e.into()),
        }
        Ok(None)
    }
}

fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Errno> {
    let flags = RecvFlags::DONTWAIT.bits().cast_signed();
    stream::recv(&socket, into, flags).map_err(Errno::from_raw_os_error)
}

//! The answer to a READ: a header, and data of a file.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::{Errno, write};
use rustix::net::SendFlags;
use rustix::pipe::{SpliceFlags, splice};
use sys::filemap::{Access, Part};
use sys::pages;
use sys::stream::{self, Place};

use super::buffers::Buffer;
use super::file::{DataFile, MAPPED_LEAST, Window};
use super::pipes::Pipe;
use super::{Finished, Job, Method, Pools, Progress, TransferError, is_of_connection, never_waits};

/// What a buffer is filled with before it is sent. Smaller pieces wake the receiver more often.
const PIECE: usize = 1 << 20;

/// What is read into shared memory before the peer sees any of it, and is still in the cache when it copies that.
const CARRIED_PIECE: usize = 128 << 10;

/// What stands for bytes that a file no longer has.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// `head`, then `len` bytes of a file: sent by [`SendFile::step`] until that says `Done`.
///
/// Dropped before, what it holds goes back to where it came from; the connection must then end,
/// unless nothing was sent.
#[derive(Debug)]
pub struct SendFile {
    file: Arc<DataFile>,
    head: Vec<u8>,
    head_sent: usize,
    /// Where in the file the first byte is.
    offset: u64,
    len: usize,
    /// Bytes of the file that the socket has taken.
    sent: usize,
    /// Bytes of the file up to which memory has been looked at, or the disk waited for: not again,
    /// so that what is never kept in memory cannot keep us asking.
    settled: usize,
    /// It is read by threads that may wait, into buffers: it is not to be had in memory.
    by_threads: bool,
    /// There is no more in the file: from what is held on, zeros.
    ended: bool,
    /// Some of it cannot be read, as was found out before anything was sent.
    failure: Option<io::Error>,
    /// What goes through shared memory comes from a mapping of the file.
    maps: bool,
    method: Method,
    held: Held,
}

/// What a transfer holds between steps.
#[derive(Debug)]
enum Held {
    Nothing,
    /// With account of its content in itself.
    Pipe(Pipe),
    /// The bytes from `from` to `to` are read and not sent; there is room up to the buffer's length.
    Buffer {
        buffer: Buffer,
        from: usize,
        to: usize,
    },
    Window(Arc<Window>),
}

impl SendFile {
    /// To send `head` (the NBSS length and the response up to its data), then `len` bytes from
    /// `offset` on, by `method` if it can be had. [`DataFile::clamp`] says what `len` may be.
    #[must_use]
    pub fn new(head: Vec<u8>, file: Arc<DataFile>, offset: u64, len: u32, method: Method) -> Self {
        let (copies_maps, by_threads) = (file.copies_maps(), !file.is_kept());
        Self {
            file,
            by_threads,
            head,
            head_sent: 0,
            offset,
            len: len as usize,
            sent: 0,
            settled: 0,
            ended: false,
            failure: None,
            maps: len as usize >= MAPPED_LEAST && copies_maps,
            method,
            held: Held::Nothing,
        }
    }

    /// Whether the peer was promised anything yet. If not, an error of the file can still be
    /// answered instead.
    #[must_use]
    pub fn started(&self) -> bool {
        self.head_sent > 0
    }

    /// The head, of one of which nothing has been sent: an answer can be made of it that says why.
    #[must_use]
    pub fn into_head(self) -> Vec<u8> {
        self.head
    }

    /// Bytes that the socket has taken, header and data.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.head_sent + self.sent
    }

    /// Whether what goes through shared memory goes by way of a mapping.
    #[cfg(test)]
    pub(super) fn maps(&self) -> bool {
        self.maps
    }

    /// How it is being sent: other than asked for if that could not be had.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// Takes the result of a job back. What could not be read is said at once where the peer was promised nothing;
    /// else when it is read, by a thread again.
    pub fn finished(&mut self, finished: Finished) {
        let Finished { buffer, read, result } = finished;
        let (at, left) = (self.offset + self.sent as u64, (self.len - self.sent) as u64);
        if let Some(buffer) = buffer {
            self.ended = read < buffer.len();
            self.failure = result.err();
            self.held = Held::Buffer { buffer, from: 0, to: read };
            if read > 0 {
                self.file.look_again(at, read as u64);
            }
            return;
        }
        self.settled = self.len;
        if let Err(error) = result {
            if !self.started() {
                self.failure = Some(error);
            }
            // A page whose read failed may be there all the same, without what the file says.
            self.by_threads = true;
            return;
        }
        self.by_threads = !self.file.look_again(at, left);
    }

    /// Sends what can be sent without waiting.
    ///
    /// # Errors
    ///
    /// See [`TransferError`]; do not step again after one.
    pub fn step(
        &mut self,
        socket: BorrowedFd<'_>,
        pools: &Pools,
    ) -> Result<Progress, TransferError> {
        if let Some(error) = self.failure.take() {
            return Err(TransferError::File(error));
        }
        // A later piece that fails would find the head sent.
        if !self.by_threads
            && !self.started()
            && self.len > PIECE
            && let Some(progress) = self.settle(self.sent, self.len - self.sent)
        {
            return Ok(progress);
        }
        loop {
            if self.sent == self.len && self.head_sent == self.head.len() {
                self.held = Held::Nothing;
                return Ok(Progress::Done);
            }
            let stopped = match (&self.held, self.method) {
                _ if self.ended && self.holds() == 0 => self.zeros(socket)?,
                _ if self.sent == self.len => self.plain(socket, &[])?,
                _ if self.by_threads && self.holds() == 0 => Some(self.read(pools)?),
                (Held::Buffer { .. }, _) | (_, Method::Copy) => self.copy(socket, pools)?,
                (_, Method::Map) => self.map(socket)?,
                (_, Method::Splice | Method::Vmsplice) => self.splice(socket, pools)?,
                (_, Method::Carried) => self.carried(socket)?,
            };
            if let Some(progress) = stopped {
                return Ok(progress);
            }
        }
    }

    /// All that is left of it, for who sends it together with others and says so to [`SendFile::took`]. `None` if it
    /// is not sent from a mapping, or would have to wait: it has to be stepped then.
    pub(in crate::serve) fn parts(&mut self) -> Option<[Part<'_>; 2]> {
        let left = self.len - self.sent;
        let at = self.offset + self.sent as u64;
        let holds_other = !matches!(self.held, Held::Nothing | Held::Window(_));
        let other = self.method != Method::Map || self.by_threads;
        if other || self.ended || holds_other || left == 0 {
            return None;
        }
        if self.len > self.settled && !self.file.resident(at, left as u64) {
            return None;
        }
        self.settled = self.len;
        if matches!(self.held, Held::Nothing) {
            let window = self.file.window(at, left, Access::Read)?;
            window.prepare(at, left);
            self.held = Held::Window(window);
        }
        let Held::Window(window) = &self.held else { return None };
        let head = Part::Bytes(&self.head[self.head_sent..]);
        Some([head, Part::File { map: window, offset: at, len: left }])
    }

    /// Bytes that are out of the file and not in the socket.
    fn holds(&self) -> usize {
        match &self.held {
            Held::Pipe(pipe) => pipe.held,
            Held::Buffer { from, to, .. } => to - from,
            Held::Nothing | Held::Window(_) => 0,
        }
    }

    fn head_left(&self) -> &[u8] {
        &self.head[self.head_sent..]
    }

    /// Counts bytes that the socket took, those of the head first; answers how many were data.
    pub(in crate::serve) fn took(&mut self, n: usize) -> usize {
        let head = n.min(self.head.len() - self.head_sent);
        self.head_sent += head;
        self.sent += n - head;
        n - head
    }

    /// Sends what is left of the head, and `body`.
    fn plain(
        &mut self,
        socket: BorrowedFd<'_>,
        body: &[u8],
    ) -> Result<Option<Progress>, TransferError> {
        let more = self.sent + body.len() < self.len;
        match send(socket, self.head_left(), body, more)? {
            Some(n) => {
                self.took(n);
                Ok(None)
            }
            None => Ok(Some(Progress::SocketBlocked)),
        }
    }

    fn zeros(&mut self, socket: BorrowedFd<'_>) -> Result<Option<Progress>, TransferError> {
        self.held = Held::Nothing;
        let n = (self.len - self.sent).min(ZEROS.len());
        self.plain(socket, &ZEROS[..n])
    }

    /// A job if bytes `at..at + n` would have to be waited for.
    fn settle(&mut self, at: usize, n: usize) -> Option<Progress> {
        if at + n <= self.settled {
            return None;
        }
        if self.file.resident(self.offset + at as u64, n as u64) {
            self.settled = at + n;
            return None;
        }
        Some(self.prefetch(at))
    }

    /// All that is left at once: if one part is not in memory, the next is not either.
    fn prefetch(&mut self, at: usize) -> Progress {
        self.settled = self.len;
        Progress::WouldWait(Job::Prefetch {
            file: Arc::clone(&self.file),
            offset: self.offset + at as u64,
            len: (self.len - at) as u64,
        })
    }

    /// All that is left at once, if that leaves buffers for others: what cannot be read is to be known before anything is
    /// promised. Else, and behind the head, the next piece, as [`Self::fill`]: who takes it may take its time.
    fn read(&mut self, pools: &Pools) -> Result<Progress, TransferError> {
        let left = self.len - self.sent;
        let want = if self.started() { left.min(PIECE) } else { left };
        let mut buffer = match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Buffer { buffer, .. } if buffer.capacity() >= want => buffer,
            _ => pools.buffers.lend_much(want, want.min(PIECE)).map_err(TransferError::File)?,
        };
        buffer.resize(want.min(buffer.capacity()));
        Ok(Progress::WouldWait(Job::Read {
            file: Arc::clone(&self.file),
            offset: self.offset + self.sent as u64,
            buffer,
        }))
    }

    fn copy(
        &mut self,
        socket: BorrowedFd<'_>,
        pools: &Pools,
    ) -> Result<Option<Progress>, TransferError> {
        if self.holds() == 0
            && let Some(progress) = self.fill(pools)?
        {
            return Ok(Some(progress));
        }
        let Held::Buffer { buffer, from, to } = &mut self.held else { return Ok(None) };
        let more = self.sent + (*to - *from) < self.len;
        let head = &self.head[self.head_sent..];
        let Some(n) = send(socket, head, &buffer[*from..*to], more)? else {
            return Ok(Some(Progress::SocketBlocked));
        };
        *from += n.saturating_sub(head.len());
        self.took(n);
        Ok(None)
    }

    /// Reads the next piece into a buffer.
    fn fill(&mut self, pools: &Pools) -> Result<Option<Progress>, TransferError> {
        let want = (self.len - self.sent).min(PIECE);
        let (mut buffer, mut to) = match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Buffer { buffer, from, to } if from < to => (buffer, to),
            Held::Buffer { buffer, .. } if buffer.capacity() >= want => (buffer, 0),
            _ => (pools.buffers.lend_some(want).map_err(TransferError::File)?, 0),
        };
        buffer.resize(want.min(buffer.capacity()));
        let mut waits = None;
        while to < buffer.len() {
            let at = self.sent + to;
            let offset = self.offset + at as u64;
            let into = &mut buffer[to..];
            match self.file.read_now(into, offset) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(n) => to += n,
                Err(Errno::INTR) => {}
                Err(_) if at + into.len() > self.settled => {
                    // Would wait, or cannot be asked whether it would; the thread that waits will
                    // see, and if it is a real error, so shall we.
                    waits = Some(self.prefetch(at));
                    break;
                }
                // It is gone again, or was never where it can be had without waiting.
                Err(_) if !self.file.in_memory() => {
                    self.by_threads = true;
                    break;
                }
                Err(e) => return Err(TransferError::File(e.into())),
            }
        }
        // What was read before the wait is sent meanwhile only if the caller steps again.
        if to > 0 || waits.is_some() {
            self.held = Held::Buffer { buffer, from: 0, to };
        }
        Ok(waits)
    }

    fn map(&mut self, socket: BorrowedFd<'_>) -> Result<Option<Progress>, TransferError> {
        let left = self.len - self.sent;
        if let Some(progress) = self.settle(self.sent, left) {
            return Ok(Some(progress));
        }
        let at = self.offset + self.sent as u64;
        let Held::Window(window) = &self.held else {
            match self.file.window(at, left, Access::Read) {
                Some(window) => {
                    window.prepare(at, left);
                    self.held = Held::Window(window);
                }
                None => self.method = Method::Copy,
            }
            return Ok(None);
        };
        match window.send(socket, self.head_left(), at, left, false) {
            Ok(n) => {
                self.took(n);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Some(Progress::SocketBlocked));
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.raw_os_error() == Some(Errno::FAULT.raw_os_error()) => {
                // The file ends before, or the disk is broken: reading it will tell which.
                self.held = Held::Nothing;
                self.method = Method::Copy;
            }
            Err(e) => return Err(TransferError::Socket(e)),
        }
        Ok(None)
    }

    fn carried(&mut self, socket: BorrowedFd<'_>) -> Result<Option<Progress>, TransferError> {
        let left = self.len - self.sent;
        if let Some(progress) = self.settle(self.sent, left) {
            return Ok(Some(progress));
        }
        if self.head_sent < self.head.len() {
            let Some(n) = send(socket, self.head_left(), &[], true)? else {
                return Ok(Some(Progress::SocketBlocked));
            };
            self.took(n);
            return Ok(None);
        }
        let at = self.offset + self.sent as u64;
        if self.maps && matches!(self.held, Held::Nothing) {
            match self.file.window(at, left, Access::Read) {
                Some(window) => {
                    window.prepare(at, left);
                    self.held = Held::Window(window);
                }
                None => self.maps = false,
            }
        }
        let piece = left.min(CARRIED_PIECE);
        let sent = match &self.held {
            Held::Window(window) if self.maps => {
                stream::put(&socket, piece, Place::Window(window), at)
            }
            _ => stream::send_file(&socket, &self.file, at, piece),
        };
        self.put_into_memory(sent.map_err(Errno::from_raw_os_error))
    }

    /// Counts bytes that went from the file into shared memory, or finds out why none did.
    pub(super) fn put_into_memory(
        &mut self,
        put: Result<usize, Errno>,
    ) -> Result<Option<Progress>, TransferError> {
        match put {
            Ok(0) => self.ended = true,
            Ok(n) => self.sent += n,
            Err(Errno::AGAIN) => return Ok(Some(Progress::SocketBlocked)),
            Err(Errno::INTR) => {}
            Err(e) if self.maps && is_of_connection(e) => {
                return Err(TransferError::Socket(e.into()));
            }
            // Not by memory now: a call will do it.
            Err(Errno::OPNOTSUPP) if self.maps => self.maps = false,
            // Cut off, or not allowed: a call will say which.
            Err(e) if self.maps => {
                self.maps = false;
                self.file.copy_failed(e);
            }
            // Whether it is the file or the connection, a call for one of them will tell.
            Err(_) => self.method = Method::Copy,
        }
        Ok(None)
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
                    self.method = Method::Map;
                    return Ok(None);
                }
            }
        }
        if self.holds() == 0
            && let Some(progress) = self.fill_pipe()?
        {
            return Ok(Some(progress));
        }
        let apart = self.head_goes_apart();
        let left = self.head.len() - self.head_sent + self.len - self.sent;
        let Held::Pipe(pipe) = &mut self.held else { return Ok(None) };
        if pipe.held == 0 {
            // The file ended, or is none to splice from.
            return Ok(None);
        }
        if apart {
            return match send(socket, &self.head[self.head_sent..], &[], true)? {
                Some(n) => {
                    self.head_sent += n;
                    Ok(None)
                }
                None => Ok(Some(Progress::SocketBlocked)),
            };
        }
        let mut flags = SpliceFlags::NONBLOCK;
        flags.set(SpliceFlags::MORE, pipe.held < left);
        match splice(pipe.reader(), None, socket, None, pipe.held, flags) {
            Ok(0) => Err(TransferError::Socket(io::ErrorKind::WriteZero.into())),
            Ok(n) => {
                pipe.held -= n;
                self.took(n);
                Ok(None)
            }
            Err(Errno::AGAIN) => Ok(Some(Progress::SocketBlocked)),
            Err(Errno::INTR) => Ok(None),
            Err(e) => Err(TransferError::Socket(e.into())),
        }
    }

    /// Whether the head is still to be sent, by a call for it alone: with it in the pipe there would be no room for all
    /// of the data, which is a round more of all calls.
    fn head_goes_apart(&self) -> bool {
        let Held::Pipe(pipe) = &self.held else { return false };
        let page = pages::size();
        let fits = self.head.len() <= page && self.len + page <= pipe.size();
        self.sent == 0 && self.head_sent < self.head.len() && !fits
    }

    /// Puts the head, if it is still to be sent that way, and the next pages into the pipe, which is empty.
    fn fill_pipe(&mut self) -> Result<Option<Progress>, TransferError> {
        let Held::Pipe(pipe) = &self.held else { return Ok(None) };
        let want = (self.len - self.sent).min(pipe.size());
        if let Some(progress) = self.settle(self.sent, want) {
            return Ok(Some(progress));
        }
        let mut at = self.offset + self.sent as u64;
        let window = match self.method {
            Method::Vmsplice => self.file.window(at, want, Access::Read),
            _ => None,
        };
        if window.is_none() {
            self.method = Method::Splice;
        }
        let head = match self.head_goes_apart() {
            true => &[],
            false => &self.head[self.head_sent..],
        };
        let Held::Pipe(pipe) = &mut self.held else { return Ok(None) };
        let headed = if head.is_empty() { Ok(0) } else { write(pipe.writer(), head) };
        pipe.held = headed.unwrap_or(0);
        let filled = match (headed, &window) {
            (Ok(n), _) if n < head.len() => Err(Errno::AGAIN),
            (Err(e), _) => Err(e),
            (_, Some(window)) => {
                window.prepare(at, want);
                let taken = window.pass_on(pipe.writer(), at, want);
                taken.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
            }
            (_, None) => {
                let flags = SpliceFlags::NONBLOCK;
                splice(&self.file, Some(&mut at), pipe.writer(), None, want, flags)
            }
        };
        match filled {
            Ok(0) => self.ended = true,
            Ok(n) => pipe.held += n,
            Err(e) => {
                // With what is in it, which is the head at most: that is made anew.
                self.held = Held::Nothing;
                self.method = match e {
                    Errno::INTR => self.method,
                    // A sandbox may allow less than all of these calls.
                    _ if window.is_some() && e != Errno::FAULT => Method::Splice,
                    // A file system that does not splice, pages that are gone again, a file that was cut, no memory:
                    // reading it will tell.
                    _ => Method::Copy,
                };
            }
        }
        Ok(None)
    }
}

/// Sends two pieces without waiting and without `SIGPIPE`; `None`: the socket takes nothing now.
fn send(
    socket: BorrowedFd<'_>,
    head: &[u8],
    body: &[u8],
    more: bool,
) -> Result<Option<usize>, TransferError> {
    let mut flags = SendFlags::DONTWAIT;
    flags.set(SendFlags::MORE, more);
    let (both, flags) = ([IoSlice::new(head), IoSlice::new(body)], flags.bits().cast_signed());
    let parts = match (head.is_empty(), body.is_empty()) {
        (true, _) => &both[1..],
        (_, true) => &both[..1],
        _ => &both,
    };
    loop {
        match stream::send(&socket, parts, flags).map_err(Errno::from_raw_os_error) {
            Ok(n) => return Ok(Some(n)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(e) => return Err(TransferError::Socket(e.into())),
        }
    }
}

//! What goes out on a connection: whole frames, in order, without waiting.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::rc::Rc;

use super::super::runtime::{self, Event, Socket};
use super::super::transfer::{Pools, Progress, SendFile, TransferError};
use super::spare;

/// One frame, or what is left of it.
pub(in crate::serve) enum Outgoing {
    /// Bytes in memory, of which so many are sent.
    Bytes(Vec<u8>, usize),
    /// An answer to READ whose data comes from a file, and how long it is, header and data.
    File(Box<SendFile>, usize),
}

impl Outgoing {
    /// Bytes that it has still to send.
    fn left(&self) -> usize {
        match self {
            Self::Bytes(bytes, sent) => bytes.len() - sent,
            Self::File(file, len) => len.saturating_sub(file.sent()),
        }
    }
}

/// Frames for one socket. What the socket takes goes at once; a task sends the rest.
pub(super) struct Output {
    socket: Rc<Socket>,
    pools: Pools,
    queue: RefCell<VecDeque<Outgoing>>,
    /// Bytes in `queue`, headers and file data.
    waiting: Cell<usize>,
    /// Whether a task is at it.
    busy: Cell<bool>,
    /// Whether frames gather until [`Output::uncork`].
    corked: Cell<bool>,
    broken: Cell<bool>,
    /// Fires when `waiting` has become less, and at the end.
    drained: Event,
    sent: Cell<u64>,
}

/// Frames that are handed to the kernel at once.
const GATHER: usize = 64;

/// Bytes that gather while corked: enough for many small answers, too little to hold up a large one.
const CORK: usize = 64 << 10;

impl Output {
    pub(super) fn new(socket: Rc<Socket>, pools: Pools) -> Self {
        Self {
            socket,
            pools,
            queue: RefCell::default(),
            waiting: Cell::new(0),
            busy: Cell::new(false),
            corked: Cell::new(false),
            broken: Cell::new(false),
            drained: Event::new(),
            sent: Cell::new(0),
        }
    }

    /// Bytes that the socket has not taken.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Bytes that the socket has taken.
    pub(super) fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Bytes that it was given to send, of which the socket has taken [`Output::sent`].
    pub(super) fn pushed(&self) -> u64 {
        self.sent.get() + self.waiting.get() as u64
    }

    /// Whether the connection takes nothing any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Gather small frames: more are about to come.
    pub(super) fn cork(&self) {
        self.corked.set(true);
    }

    /// Whether more frames are about to come.
    pub(super) fn is_corked(&self) -> bool {
        self.corked.get()
    }

    /// Send what has gathered.
    pub(super) fn uncork(self: &Rc<Self>) {
        self.corked.set(false);
        self.flush();
    }

    /// Sends a frame after those before it.
    pub(super) fn push(self: &Rc<Self>, frame: Outgoing) {
        if self.broken.get() {
            return;
        }
        self.waiting.set(self.waiting.get().saturating_add(frame.left()));
        self.queue.borrow_mut().push_back(frame);
        if !self.corked.get() || self.waiting.get() > CORK {
            self.flush();
        }
    }

    /// Waits until no more than `bytes` wait, or the connection is broken.
    pub(super) async fn below(&self, bytes: usize) {
        while self.waiting.get() > bytes && !self.broken.get() {
            let drained = self.drained.wait();
            if self.waiting.get() > bytes && !self.broken.get() {
                drained.await;
            }
        }
    }

    /// Nothing more goes out.
    pub(super) fn fail(&self) {
        self.broken.set(true);
        self.queue.borrow_mut().clear();
        self.waiting.set(0);
        self.drained.notify_all();
    }

    fn flush(self: &Rc<Self>) {
        if self.busy.get() || self.queue.borrow().is_empty() {
            return;
        }
        match self.step() {
            Ok(Progress::Done) => {}
            Ok(blocked) => {
                self.busy.set(true);
                drop(runtime::spawn(self.clone().drain(blocked)));
            }
            Err(_) => self.fail(),
        }
    }

    async fn drain(self: Rc<Self>, mut blocked: Progress) {
        loop {
            match blocked {
                Progress::Done => break,
                Progress::SocketBlocked => self.socket.writable().await,
                Progress::WouldWait(job) => {
                    let finished = runtime::offload(move || job.run()).await;
                    if let Some(Outgoing::File(file, _)) = self.queue.borrow_mut().front_mut() {
                        file.finished(finished);
                    }
                }
            }
            if self.broken.get() {
                break;
            }
            match self.step() {
                Ok(progress) => {
                    self.drained.notify_all();
                    blocked = progress;
                }
                Err(_) => {
                    self.fail();
                    break;
                }
            }
        }
        self.busy.set(false);
    }

    /// Sends until nothing is left or something is in the way.
    fn step(&self) -> Result<Progress, TransferError> {
        let mut queue = self.queue.borrow_mut();
        while let Some(first) = queue.front_mut() {
            if let Outgoing::File(file, _) = first {
                let before = file.sent();
                let progress = file.step(self.socket.shared_fd().as_fd(), &self.pools);
                self.count(file.sent() - before);
                match progress? {
                    Progress::Done => drop(queue.pop_front()),
                    blocked => {
                        if matches!(blocked, Progress::SocketBlocked) {
                            self.socket.source().not_writable();
                        }
                        return Ok(blocked);
                    }
                }
                continue;
            }
            let mut slices = [IoSlice::new(&[]); GATHER];
            let mut count = 0;
            for frame in queue.iter() {
                let Outgoing::Bytes(bytes, sent) = frame else { break };
                if count == GATHER {
                    break;
                }
                slices[count] = IoSlice::new(&bytes[*sent..]);
                count += 1;
            }
            let mut taken = match self.socket.try_sendv(&slices[..count], false) {
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Progress::SocketBlocked);
                }
                Err(error) => return Err(TransferError::Socket(error)),
            };
            self.count(taken);
            while let Some(Outgoing::Bytes(bytes, sent)) = queue.front_mut() {
                let left = bytes.len() - *sent;
                if taken < left {
                    *sent += taken;
                    break;
                }
                taken -= left;
                spare::give(std::mem::take(bytes));
                queue.pop_front();
            }
        }
        Ok(Progress::Done)
    }

    fn count(&self, bytes: usize) {
        self.waiting.set(self.waiting.get().saturating_sub(bytes));
        self.sent.set(self.sent.get() + bytes as u64);
    }
}

//! What goes out on a connection: whole frames, in order, without waiting.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use rustix::io::Errno;
use sys::filemap::{PARTS_MAX, Part, send_parts};

use super::super::aside;
use super::super::fs;
use super::super::runtime::{self, Event, Socket};
use super::super::transfer::{Pools, Progress, SendFile, TransferError};
use super::backlog::{Account, Large, Making, Taken, TooMuch};
use super::{ChannelRef, reply, spare};

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
    /// By a client that acknowledges nothing, or has no room for it.
    timed_out: Cell<bool>,
    /// Fires when `waiting` has become less or fewer answers are being made, and at the end.
    drained: Event,
    sent: Cell<u64>,
    /// Bytes of the frames in `queue` that are in memory, until the last byte of each is sent.
    held: Cell<usize>,
    /// Whether somebody waits in [`Output::below`].
    awaited: Cell<bool>,
    account: Account,
    /// The channel, whose bytes are counted.
    channel: ChannelRef,
}

/// No more frames are handed to the kernel at once when they have so many bytes.
const TOGETHER: usize = 512 << 10;

/// Bytes that gather while corked: four answers of 64 KiB, which then go out with one call, and wake their reader
/// less often. Too little to hold up a large one.
const CORK: usize = 256 << 10;

impl Output {
    pub(super) fn new(
        socket: Rc<Socket>,
        pools: Pools,
        account: Account,
        channel: ChannelRef,
    ) -> Self {
        Self {
            socket,
            pools,
            queue: RefCell::default(),
            waiting: Cell::new(0),
            busy: Cell::new(false),
            corked: Cell::new(false),
            broken: Cell::new(false),
            timed_out: Cell::new(false),
            drained: account.fewer(),
            sent: Cell::new(0),
            held: Cell::new(0),
            awaited: Cell::new(false),
            account,
            channel,
        }
    }

    /// Whether more waits than may, and for what to wait before more is asked for. `one` bounds what waits here, and
    /// `all` what waits in memory on all connections.
    pub(super) fn too_much(&self, one: usize, all: usize) -> Option<TooMuch> {
        if self.waiting.get() > one {
            return Some(TooMuch::Here(one / 2));
        }
        self.account.too_much(self.held.get(), all)
    }

    /// Counts an answer of so many bytes that is being made.
    pub(super) fn make(&self, bytes: usize) -> Making {
        self.account.make(bytes)
    }

    /// Memory for a request of `len` bytes, if there is some: `all` bounds it on all connections.
    pub(super) fn large(&self, len: usize, all: usize) -> Option<Large> {
        self.account.large(len, all)
    }

    /// So much of the memory of requests, if there is some: `all` bounds it on all connections.
    pub(super) fn part(&self, len: usize, all: usize) -> Option<Taken> {
        self.account.part(len, all)
    }

    /// Tells the server what waits in memory.
    fn tell(&self) {
        self.account.tell(self.held.get());
    }

    /// Bytes that the socket has not taken.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Bytes of frames in memory among those that wait.
    pub(super) fn held(&self) -> usize {
        self.held.get()
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

    /// Whether that is because the client has acknowledged nothing for too long.
    pub(super) fn timed_out(&self) -> bool {
        self.timed_out.get()
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
        if let Outgoing::Bytes(bytes, _) = &frame {
            self.held.set(self.held.get() + bytes.len());
        }
        self.queue.borrow_mut().push_back(frame);
        if !self.corked.get() || self.waiting.get() > CORK {
            self.flush();
        }
        if self.busy.get() {
            self.tell();
        }
        if self.awaited.get() {
            // It may have become shorter than it was to be.
            self.drained.notify_all();
        }
    }

    /// Waits until no more than `bytes` wait or are being made, or the connection is broken.
    pub(super) async fn below(&self, bytes: usize) {
        // A frame takes its memory until its last byte is sent.
        let taken = || self.waiting.get().max(self.held.get()) + self.account.making();
        let much = || taken() > bytes && !self.broken.get();
        while much() {
            self.awaited.set(true);
            self.account.await_fewer(true);
            let drained = self.drained.wait();
            if much() {
                drained.await;
            }
        }
        self.awaited.set(false);
        self.account.await_fewer(false);
    }

    /// Nothing more goes out.
    pub(super) fn fail(&self) {
        self.broken.set(true);
        self.queue.borrow_mut().clear();
        self.waiting.set(0);
        self.held.set(0);
        self.tell();
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
                self.tell();
                drop(runtime::spawn(self.clone().drain(blocked)));
            }
            Err(error) => self.cut(&error),
        }
    }

    /// A frame cannot be completed, of which the client may have a part: a disk has failed, or the connection. Whoever
    /// reads from the client waits for it meanwhile, and is to see the end as well as the client is.
    fn cut(&self, error: &TransferError) {
        // The kernel tells it once, and whoever reads finds an end then.
        let timed_out = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
        self.timed_out.set(matches!(error, TransferError::Socket(error) if timed_out(error)));
        self.fail();
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    async fn drain(self: Rc<Self>, mut blocked: Progress) {
        loop {
            match blocked {
                Progress::Done => break,
                Progress::SocketBlocked => self.socket.writable().await,
                Progress::WouldWait(job) => {
                    let finished = aside::transfer(job, ()).await;
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
                    self.tell();
                    self.drained.notify_all();
                    blocked = progress;
                }
                Err(error) => {
                    self.cut(&error);
                    break;
                }
            }
        }
        self.busy.set(false);
    }

    /// Sends until nothing is left or something is in the way.
    fn step(&self) -> Result<Progress, TransferError> {
        let mut queue = self.queue.borrow_mut();
        while !queue.is_empty() {
            let taken = match self.send_together(&mut queue) {
                Some(Ok(taken)) => taken,
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.source().not_writable();
                    return Ok(Progress::SocketBlocked);
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A file that became shorter, or cannot be sent from memory: by itself it knows what to do. It need not be
                // the first one, and what is before it goes by itself, too.
                Some(Err(error)) if error.raw_os_error() != Some(Errno::FAULT.raw_os_error()) => {
                    return Err(TransferError::Socket(error));
                }
                _ => match self.step_first(&mut queue)? {
                    Progress::Done => continue,
                    blocked => return Ok(blocked),
                },
            };
            self.count(taken);
            self.forget(&mut queue, taken);
        }
        Ok(Progress::Done)
    }

    /// Sends the first frames with one call, as far as they are in memory. `None`: not even the first one is.
    fn send_together(&self, queue: &mut VecDeque<Outgoing>) -> Option<io::Result<usize>> {
        let mut parts = [Part::Bytes(&[]); PARTS_MAX];
        let (mut count, mut bytes) = (0, 0);
        for frame in queue.iter_mut() {
            if count + 2 > parts.len() || bytes >= TOGETHER {
                break;
            }
            bytes += frame.left();
            match frame {
                Outgoing::Bytes(frame, sent) => {
                    parts[count] = Part::Bytes(&frame[*sent..]);
                    count += 1;
                }
                Outgoing::File(file, _) => {
                    let Some(both) = file.parts() else { break };
                    parts[count..count + 2].copy_from_slice(&both);
                    count += 2;
                }
            }
        }
        if count == 0 {
            return None;
        }
        Some(send_parts(&**self.socket.shared_fd(), &parts[..count], false))
    }

    /// Sends of the first frame alone what can be sent without waiting.
    fn step_first(&self, queue: &mut VecDeque<Outgoing>) -> Result<Progress, TransferError> {
        let file = match queue.front_mut() {
            None => return Ok(Progress::Done),
            Some(Outgoing::Bytes(frame, sent)) => {
                let part = [Part::Bytes(&frame[*sent..])];
                return match send_parts(&**self.socket.shared_fd(), &part, false) {
                    Ok(taken) => {
                        self.count(taken);
                        self.forget(queue, taken);
                        Ok(Progress::Done)
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.socket.source().not_writable();
                        Ok(Progress::SocketBlocked)
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Progress::Done),
                    Err(error) => Err(TransferError::Socket(error)),
                };
            }
            Some(Outgoing::File(file, _)) => file,
        };
        let before = file.sent();
        let progress = file.step(self.socket.shared_fd().as_fd(), &self.pools);
        self.count(file.sent() - before);
        let progress = match progress {
            // The client has been promised nothing yet.
            Err(TransferError::File(error)) if !file.started() => {
                self.answer_instead(queue, &error);
                return Ok(Progress::Done);
            }
            progress => progress?,
        };
        match progress {
            Progress::Done => drop(queue.pop_front()),
            Progress::SocketBlocked => self.socket.source().not_writable(),
            Progress::WouldWait(_) => {}
        }
        Ok(progress)
    }

    /// The first answer says why its file cannot be read.
    fn answer_instead(&self, queue: &mut VecDeque<Outgoing>, error: &io::Error) {
        let Some(Outgoing::File(file, len)) = queue.pop_front() else { return };
        let bytes = reply::refusal(file.into_head(), fs::status_of(error));
        self.waiting.set(self.waiting.get().saturating_sub(len) + bytes.len());
        self.held.set(self.held.get() + bytes.len());
        queue.push_front(Outgoing::Bytes(bytes, 0));
    }

    fn forget(&self, queue: &mut VecDeque<Outgoing>, taken: usize) {
        self.held.set(self.held.get() - forget(queue, taken));
    }

    fn count(&self, bytes: usize) {
        self.waiting.set(self.waiting.get().saturating_sub(bytes));
        self.sent.set(self.sent.get() + bytes as u64);
        self.channel.note_sent(self.sent.get());
    }
}

/// Takes `bytes` that were sent away from the first frames. Bytes in memory that this gave back.
fn forget(queue: &mut VecDeque<Outgoing>, mut bytes: usize) -> usize {
    let mut freed = 0;
    while let Some(first) = queue.front_mut() {
        let left = first.left();
        let taken = left.min(bytes);
        match first {
            Outgoing::Bytes(_, sent) => *sent += taken,
            Outgoing::File(file, _) => {
                file.took(taken);
            }
        }
        if taken < left {
            break;
        }
        bytes -= taken;
        if let Some(Outgoing::Bytes(frame, _)) = queue.pop_front() {
            freed += frame.len();
            spare::give(frame);
        }
    }
    freed
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::super::super::runtime::{Config, Runtime};
    use super::super::super::transfer::{DataFile, Method};
    use super::super::backlog::Backlog;
    use super::*;

    const LEN: usize = 100_000;

    /// A file in memory, if there is such a place.
    fn file() -> Arc<DataFile> {
        let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
        let mut file = file.unwrap();
        let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251).to_le_bytes()[0]).collect();
        file.write_all(&bytes).unwrap();
        Arc::new(DataFile::new(file).unwrap())
    }

    fn answer(number: u8, file: &Arc<DataFile>, offset: u64, len: u32) -> Outgoing {
        let file = SendFile::new(vec![number; 84], file.clone(), offset, len, Method::Map);
        Outgoing::File(Box::new(file), 84 + len as usize)
    }

    /// What a client gets of what `push` pushes: so many bytes; and what is waiting then.
    fn sent(bytes: usize, push: impl FnOnce(&Rc<Output>) + Send + 'static) -> Vec<u8> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // What never comes is to be seen as such.
        client.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (done, ended) = mpsc::channel();
        let push = std::sync::Mutex::new(Some((server, push)));
        let config = Config { vectors: 1, ..Config::default() };
        let runtime = Runtime::start(&config, move |_| {
            let taken = push.lock().unwrap().take();
            let done = done.clone();
            async move {
                let (server, push) = taken.unwrap();
                let socket = Rc::new(Socket::new(server.into()).unwrap());
                let account = Backlog::default().account([127, 0, 0, 1].into());
                let (pools, channel) = (Pools::new(1, 4 << 20), ChannelRef::of_nobody(1));
                let output = Rc::new(Output::new(socket, pools, account, channel.clone()));
                push(&output);
                output.uncork();
                output.below(0).await;
                assert_eq!(channel.bytes().1, output.sent(), "it is told");
                done.send((output.waiting(), output.sent(), output.is_broken())).unwrap();
                // The client sees no end before it has all.
                runtime::sleep(std::time::Duration::from_secs(60)).await;
            }
        });
        let mut got = vec![0; bytes];
        client.read_exact(&mut got).unwrap();
        let (waiting, sent, broken) =
            ended.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        assert_eq!((waiting, sent, broken), (0, bytes as u64, false));
        runtime.unwrap().stop(std::time::Duration::ZERO);
        got
    }

    #[test]
    fn an_answer_that_comes_to_nothing_is_waited_for_no_longer_than_it_takes() {
        sent(1, |output| {
            let making = output.make(LEN);
            output.push(Outgoing::Bytes(vec![0], 0));
            // It is done on another thread, and there is nothing to push: `sent` waits for it all the same.
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(50));
                drop(making);
            });
        });
    }

    #[test]
    fn what_gathered_goes_out_in_order_whatever_it_is() {
        let file = file();
        let expected = |number: u8, offset: usize, len: usize| {
            let data = (offset..offset + len).map(|at| (at % 251).to_le_bytes()[0]);
            std::iter::repeat_n(number, 84).chain(data)
        };
        let mut all = Vec::new();
        for round in 0..40_u8 {
            all.extend(expected(round, usize::from(round), 65_536));
            all.extend(vec![round; 200]);
        }
        let got = sent(all.len(), move |output| {
            output.cork();
            for round in 0..40 {
                output.push(answer(round, &file, round.into(), 65_536));
                output.push(Outgoing::Bytes(vec![round; 200], 0));
            }
        });
        assert!(got == all);
    }

    #[test]
    fn a_file_cut_short_among_others_is_continued_with_zeros() {
        let (whole, short) = (file(), file());
        let got = sent(3 * (84 + 65_536), move |output| {
            output.cork();
            output.push(answer(1, &whole, 0, 65_536));
            output.push(answer(2, &short, 0, 65_536));
            output.push(answer(3, &whole, 1, 65_536));
            assert_eq!(output.sent(), 0, "they gather");
            short.cut(10_000);
        });
        let frames: Vec<_> = got.chunks(84 + 65_536).collect();
        for (frame, number, first) in [(frames[0], 1, 0), (frames[1], 2, 0), (frames[2], 3, 1)] {
            assert!(frame[..84] == [number; 84] && frame[84] == first);
        }
        assert!(frames[0][84 + 40_000] != 0 || frames[0][84 + 40_001] != 0);
        assert!(
            frames[1][84 + 12_288..].iter().all(|byte| *byte == 0),
            "of the page behind the cut"
        );
        assert_eq!(frames[1][84 + 9_999], (9_999 % 251_usize).to_le_bytes()[0]);
    }

    #[test]
    fn bytes_before_a_file_cut_short_go_out_and_it_follows_as_zeros() {
        let short = file();
        let got = sent(2 * 200 + 84 + 65_536 + 50, move |output| {
            output.cork();
            output.push(Outgoing::Bytes(vec![1; 200], 0));
            output.push(Outgoing::Bytes(vec![2; 200], 0));
            let mut file = answer(3, &short, 0, 65_536);
            // As it is when it could not go at once: it need not look again whether the file is in memory.
            let Outgoing::File(waits, _) = &mut file else { panic!("a file's") };
            assert!(waits.parts().is_some());
            output.push(file);
            output.push(Outgoing::Bytes(vec![4; 50], 0));
            assert_eq!(output.sent(), 0, "they gather");
            short.cut(0);
        });
        let (before, rest) = got.split_at(400);
        assert!(before[..200] == [1; 200] && before[200..] == [2; 200]);
        let (head, rest) = rest.split_at(84);
        assert!(head == [3; 84]);
        let (data, last) = rest.split_at(65_536);
        assert!(data.iter().all(|byte| *byte == 0), "of a file that has nothing any more");
        assert!(last == [4; 50]);
    }

    #[test]
    fn what_was_sent_is_forgotten_to_the_byte() {
        let file = file();
        let mut queue: VecDeque<_> =
            [Outgoing::Bytes(vec![0; 10], 0), answer(1, &file, 0, 50), answer(2, &file, 0, 5)]
                .into();
        for (taken, left) in [
            (3, vec![7, 134, 89]),
            (7, vec![134, 89]),
            (84, vec![50, 89]),
            (51, vec![88]),
            (88, vec![]),
        ] {
            forget(&mut queue, taken);
            assert_eq!(queue.iter().map(Outgoing::left).collect::<Vec<_>>(), left);
        }
    }
}

//! The closed loop of one connection: some operations in flight, the next when one is done.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::connection::{Answer, Connection, Request, WRITE_ROOM};
use super::pattern;
use super::settings::{Op, Settings};
use super::wire::{self, FileId, HEADER, PREVIOUS, command, status};
use crate::latency::Latency;

/// WRITEs that are signed at the same time.
const SIGNED_TOGETHER: usize = 4;

/// Bytes of a small file.
pub(crate) const SMALL: u32 = 4096;

/// What is done so far, read while it is done.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) operations: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) entries: AtomicU64,
}

/// What all threads look at.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Latencies count.
    pub(crate) measuring: AtomicBool,
    /// Nothing new is begun.
    pub(crate) stopping: AtomicBool,
}

/// A client's file, used on all its connections.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) id: FileId,
    pub(crate) size: u64,
    /// The number of the next piece, for who goes in order.
    pub(crate) next: AtomicU64,
}

/// Where an operation of several round trips is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    First,
    /// More entries of the directory.
    More,
    Close,
}

/// An operation in flight.
#[derive(Debug)]
struct Slot {
    /// Its messages, while some are unanswered.
    ids: Option<(u64, u64)>,
    unanswered: u32,
    begun: Instant,
    stage: Stage,
    file: FileId,
    offset: u64,
    bytes: u64,
    entries: u64,
}

/// One connection at work.
pub(crate) struct Worker<'a> {
    pub(crate) connection: Connection,
    settings: &'a Settings,
    file: &'a File,
    random: u64,
    /// What is written, behind [`WRITE_ROOM`] bytes for what is sent in front of it. If that encrypts it and nobody
    /// checks it, what is written next is what became of it.
    framed: Vec<u8>,
    source: Option<OwnedFd>,
    slots: Vec<Slot>,
    /// What names of files that pass begin with.
    tag: String,
    made: u64,
}

impl<'a> Worker<'a> {
    /// A worker that has begun nothing.
    ///
    /// # Errors
    ///
    /// When the server grants too few credits for a single operation.
    pub(crate) fn new(
        mut connection: Connection,
        settings: &'a Settings,
        file: &'a File,
        number: u32,
    ) -> anyhow::Result<Self> {
        let reads = matches!(settings.op, Op::Read | Op::Randread);
        let len = if settings.op.has_file() { settings.io } else { SMALL };
        let mut framed = vec![0; WRITE_ROOM + len as usize];
        pattern::fill(&mut framed[WRITE_ROOM..], 0);
        let each = cost(settings);
        connection.gather_credits(each.saturating_mul(settings.qd))?;
        let depth = settings.qd.min(connection.credits / each);
        ensure!(
            depth > 0,
            "an operation takes {each} credits; the server grants {}",
            connection.credits
        );
        if depth < settings.qd {
            eprintln!(
                "the server grants {} credits: {depth} operations in flight",
                connection.credits
            );
        }
        if reads && settings.io as usize >= super::connection::BIG {
            connection.big = super::connection::BIG;
        }
        let sends_file =
            settings.src == super::settings::Src::Sendfile && settings.op.writes_file();
        let source = if sends_file { Some(in_memory(&framed[WRITE_ROOM..])?) } else { None };
        let now = Instant::now();
        let slot = |_| Slot {
            ids: None,
            unanswered: 0,
            begun: now,
            stage: Stage::First,
            file: PREVIOUS,
            offset: 0,
            bytes: 0,
            entries: 0,
        };
        Ok(Self {
            connection,
            settings,
            file,
            random: 0x1234_5678_9abc ^ (u64::from(number) + 1) << 20,
            framed,
            source,
            slots: (0..depth).map(slot).collect(),
            tag: format!("t{}_{number}", std::process::id()),
            made: 0,
        })
    }

    /// Works until it is told to stop and all is answered.
    ///
    /// # Errors
    ///
    /// When the server fails, or data is not what it must be.
    pub(crate) fn run(
        &mut self,
        counters: &Counters,
        signals: &Signals,
        pace: Option<f64>,
    ) -> anyhow::Result<Latency> {
        let mut latency = Latency::default();
        let (start, each) = (Instant::now(), cost(self.settings));
        let (mut moved, mut answers) = (0, Vec::with_capacity(64));
        let mut ready: VecDeque<usize> = (0..self.slots.len()).collect();
        let mut in_flight = 0_usize;
        loop {
            in_flight += self.begin_many(&mut ready, signals, pace.is_some())?;
            while let Some(at) = ready.front().copied().filter(|_| self.connection.credits >= each)
            {
                ready.pop_front();
                if self.slots[at].stage == Stage::First && signals.stopping.load(Relaxed) {
                    continue;
                }
                if self.slots[at].stage == Stage::First {
                    self.keep_pace(start, moved, pace)?;
                }
                self.begin(at)?;
                in_flight += 1;
            }
            if in_flight == 0 {
                if ready.is_empty() || signals.stopping.load(Relaxed) {
                    return Ok(latency);
                }
                bail!(
                    "the server has taken back its credits: {} are left",
                    self.connection.credits
                );
            }
            if !self.connection.has_message() {
                self.connection.flush()?;
            }
            answers.clear();
            self.connection.receive(&mut answers)?;
            // What is here already is answered together, too.
            while self.signs_many() && self.connection.has_message() {
                self.connection.receive(&mut answers)?;
            }
            for answer in &answers {
                let within = |slot: &Slot| {
                    slot.ids
                        .is_some_and(|(first, last)| (first..=last).contains(&answer.message_id))
                };
                let at = self.slots.iter().position(within);
                let at =
                    at.with_context(|| format!("answer {} was not asked for", answer.message_id))?;
                self.take(at, answer, counters)?;
                if self.slots[at].unanswered > 0 {
                    continue;
                }
                in_flight -= 1;
                self.slots[at].ids = None;
                if self.is_done(at) {
                    let slot = &mut self.slots[at];
                    slot.stage = Stage::First;
                    moved += slot.bytes;
                    counters.operations.fetch_add(1, Relaxed);
                    counters.bytes.fetch_add(slot.bytes, Relaxed);
                    if signals.measuring.load(Relaxed) {
                        latency.record(slot.begun.elapsed());
                    }
                }
                ready.push_back(at);
            }
        }
    }

    /// Whether WRITEs that are ready at the same time are signed at the same time.
    fn signs_many(&self) -> bool {
        self.settings.op == Op::Write
            && !self.settings.verify
            && self.source.is_none()
            && self.connection.signs_serially()
    }

    /// Begins as many WRITEs as can be signed at the same time, and says how many.
    fn begin_many(
        &mut self,
        ready: &mut VecDeque<usize>,
        signals: &Signals,
        paced: bool,
    ) -> anyhow::Result<usize> {
        let each = cost(self.settings);
        let mut begun = 0;
        loop {
            let affordable = (self.connection.credits / each) as usize;
            let count = ready.len().min(affordable).min(SIGNED_TOGETHER);
            if count < 2 || paced || !self.signs_many() || signals.stopping.load(Relaxed) {
                return Ok(begun);
            }
            let (io, charge) = (self.settings.io, wire::charge(self.settings.io));
            let bodies: Vec<_> =
                (0..count).map(|_| wire::write(&self.file.id, io, self.offset())).collect();
            let (began, first) = (Instant::now(), self.connection.next_message_id());
            let data = &self.framed[WRITE_ROOM..];
            ensure!(self.connection.send_writes(&bodies, data, charge)?, "nothing to be signed");
            for (number, at) in (0..).zip(ready.drain(..count)) {
                let first = first + number * u64::from(charge.max(1));
                let slot = &mut self.slots[at];
                (slot.begun, slot.bytes, slot.entries, slot.unanswered) = (began, 0, 0, 1);
                slot.ids = Some((first, first + u64::from(charge.max(1)) - 1));
            }
            begun += count;
        }
    }

    /// Waits until as much may have been moved as was.
    fn keep_pace(&mut self, start: Instant, moved: u64, pace: Option<f64>) -> anyhow::Result<()> {
        let Some(pace) = pace else { return Ok(()) };
        #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than can be moved")]
        let due = moved as f64 / pace;
        let early = due - start.elapsed().as_secs_f64();
        if early > 0.0 {
            self.connection.flush()?;
            std::thread::sleep(Duration::from_secs_f64(early.min(60.0)));
        }
        Ok(())
    }

    fn dice(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn offset(&mut self) -> u64 {
        let io = u64::from(self.settings.io);
        let pieces = (self.file.size / io).max(1);
        let number = match self.settings.op {
            Op::Randread | Op::Randwrite => self.dice(),
            _ => self.file.next.fetch_add(1, Relaxed),
        };
        number % pieces * io
    }

    fn small_file(&mut self) -> String {
        let number = self.dice() % u64::from(self.settings.nfiles.max(1));
        self.settings.small_file(number)
    }

    /// Sends the requests of an operation's stage.
    fn begin(&mut self, at: usize) -> anyhow::Result<()> {
        if self.slots[at].stage == Stage::First {
            let slot = &mut self.slots[at];
            (slot.begun, slot.bytes, slot.entries) = (Instant::now(), 0, 0);
        }
        let first = self.connection.next_message_id();
        let unanswered = match self.slots[at].stage {
            Stage::First => self.begin_first(at)?,
            Stage::More => {
                let body = wire::query_directory(&self.slots[at].file, self.settings.io);
                let charge = wire::charge(self.settings.io);
                self.connection
                    .queue(&[Request::new(command::QUERY_DIRECTORY, &body).charge(charge)])?;
                1
            }
            Stage::Close => {
                let body = wire::close(&self.slots[at].file);
                self.connection.queue(&[Request::new(command::CLOSE, &body)])?;
                1
            }
        };
        let slot = &mut self.slots[at];
        slot.unanswered = unanswered;
        slot.ids = Some((first, self.connection.next_message_id() - 1));
        Ok(())
    }

    /// Sends an operation's first message and returns how many answers it will have.
    fn begin_first(&mut self, at: usize) -> anyhow::Result<u32> {
        let settings = self.settings;
        let (io, charge) = (settings.io, wire::charge(settings.io));
        match settings.op {
            Op::Read | Op::Randread => {
                let offset = self.offset();
                self.slots[at].offset = offset;
                let body = wire::read(&self.file.id, io, offset);
                self.connection.queue(&[Request::new(command::READ, &body).charge(charge)])?;
                Ok(1)
            }
            Op::Write | Op::Randwrite => {
                let offset = self.offset();
                if settings.verify {
                    pattern::fill(&mut self.framed[WRITE_ROOM..], offset);
                }
                let body = wire::write(&self.file.id, io, offset);
                let source = self.source.as_ref().map(AsFd::as_fd);
                self.connection.send_write(&body, &mut self.framed, charge, source)?;
                Ok(1)
            }
            Op::Openclose => {
                let body = wire::create(&self.small_file(), wire::READING)?;
                self.connection.queue(&[Request::new(command::CREATE, &body)])?;
                Ok(1)
            }
            Op::Stat => {
                let body = wire::create(&self.small_file(), wire::LOOKING)?;
                let info = wire::query_info(&PREVIOUS);
                self.compound(&body, Request::then(command::QUERY_INFO, &info), true)
            }
            Op::Readsmall => {
                let body = wire::create(&self.small_file(), wire::READING)?;
                let read = wire::read(&PREVIOUS, SMALL, 0);
                self.compound(&body, Request::then(command::READ, &read), true)
            }
            Op::Createdel => {
                self.made += 1;
                let name = format!("{}\\{}_{}", settings.dir, self.tag, self.made);
                let body = wire::create(&name, wire::PASSING)?;
                let write = wire::write(&PREVIOUS, SMALL, 0);
                let framed = std::mem::take(&mut self.framed);
                let then = Request::then(command::WRITE, &write).data(&framed[WRITE_ROOM..]);
                let sent = self.compound(&body, then, true);
                self.framed = framed;
                sent
            }
            Op::Qdir => {
                let body = wire::create(&settings.dir, wire::LISTING)?;
                let query = wire::query_directory(&PREVIOUS, io);
                let query = Request::then(command::QUERY_DIRECTORY, &query).charge(charge);
                self.compound(&body, query, false)
            }
            Op::Echo => {
                self.connection.queue(&[Request::new(command::ECHO, &wire::ECHO_BODY)])?;
                Ok(1)
            }
            Op::Bare | Op::Prepare | Op::Ifaces | Op::Session => {
                bail!("no connection does this over and over")
            }
        }
    }

    /// CREATE, something, and perhaps CLOSE, as one message.
    fn compound(&mut self, create: &[u8], then: Request<'_>, closes: bool) -> anyhow::Result<u32> {
        let create = Request::new(command::CREATE, create);
        let close = wire::close(&PREVIOUS);
        if closes {
            self.connection.queue(&[create, then, Request::then(command::CLOSE, &close)])?;
            return Ok(3);
        }
        self.connection.queue(&[create, then])?;
        Ok(2)
    }

    /// Looks at an answer to operation `at`.
    fn take(&mut self, at: usize, answer: &Answer, counters: &Counters) -> anyhow::Result<()> {
        let slot = &mut self.slots[at];
        slot.unanswered =
            slot.unanswered.checked_sub(1).context("a request was answered more than once")?;
        let op = self.settings.op;
        if answer.command == command::QUERY_DIRECTORY && answer.status == status::NO_MORE_FILES {
            ensure!(slot.entries > 0, "a directory has no entries, not even itself");
            slot.stage = Stage::Close;
            return Ok(());
        }
        ensure!(
            answer.status == status::OK,
            "command {} failed: status {:#010x}",
            answer.command,
            answer.status
        );
        match answer.command {
            command::READ => {
                slot.bytes += u64::from(answer.count);
                let wanted = if op == Op::Readsmall { SMALL } else { self.settings.io };
                ensure!(
                    answer.count == wanted,
                    "a READ brought {} bytes of {wanted}",
                    answer.count
                );
                if self.settings.verify {
                    let offset = if op == Op::Readsmall { 0 } else { slot.offset };
                    pattern::check(self.connection.data(answer)?, offset)?;
                }
            }
            command::WRITE => {
                let wanted = if op == Op::Createdel { SMALL } else { self.settings.io };
                ensure!(answer.count == wanted, "a WRITE took {} bytes of {wanted}", answer.count);
                slot.bytes += u64::from(answer.count);
            }
            command::CREATE if matches!(op, Op::Openclose | Op::Qdir) => {
                slot.file = wire::file_id_at(self.connection.bytes(answer), HEADER + 64)?;
                slot.stage = if op == Op::Qdir { Stage::More } else { Stage::Close };
            }
            command::QUERY_DIRECTORY => {
                let bytes = self.connection.bytes(answer);
                let entries = wire::entries(bytes)?;
                slot.entries += entries;
                // An enumeration may take longer than the measurement.
                counters.entries.fetch_add(entries, Relaxed);
                slot.bytes += u64::from(wire::u32_at(bytes, HEADER + 4)?);
            }
            command::CLOSE => slot.stage = Stage::First,
            _ => {}
        }
        Ok(())
    }

    /// Whether an operation has nothing more to send.
    fn is_done(&self, at: usize) -> bool {
        self.slots[at].stage == Stage::First
    }
}

/// Credits that the largest message of an operation takes.
fn cost(settings: &Settings) -> u32 {
    let io = u32::from(wire::charge(settings.io));
    match settings.op {
        Op::Read | Op::Randread | Op::Write | Op::Randwrite => io,
        Op::Qdir => io + 1,
        Op::Stat | Op::Readsmall | Op::Createdel => 3,
        _ => 1,
    }
}

/// A file that is nowhere but in memory.
fn in_memory(bytes: &[u8]) -> anyhow::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("smbload", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    std::io::Write::write_all(&mut file, bytes)?;
    Ok(file.into())
}

//! Where whole datagrams go: to a capture through a thread of its own, to a TUN or TAP device, or nowhere.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, IoSlice, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use frag::{Datagram, Slice};
use rustix::fs::{Mode, OFlags};
use sys::sync::{AtomicU64, Ordering};
use sys::tap::{Shape, Tap};

use super::{Alarm, Error, LOOK};
use crate::defrag::file::{Format, Order, Packet, Time, Writer};
use crate::defrag::{Outlet as _, format_of};

/// Datagrams that wait for the file, at most; 32 MiB if all are of the largest size.
const QUEUE: usize = 512;
/// Raw IP: a datagram has no link of its own.
const LINK_RAW: u32 = 101;
/// Slices that one write may have.
const SLICES_MAX: usize = 1000;
const BUFFER: usize = 1 << 20;
/// When nothing has come for so long, the file has what came before.
const QUIET: Duration = Duration::from_millis(100);
/// And while more comes and comes, after so long.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Where frames on a TAP device seem to come from: an address that nobody was given.
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A datagram on its way to the file.
pub(super) struct Record {
    time_ns: u64,
    bytes: Vec<u8>,
}

/// What all workers share.
pub(super) struct Target {
    device: Option<Tap>,
    /// The hardware address of the device, which may change.
    address: AtomicU64,
    /// Datagrams that may still come out.
    left: AtomicU64,
}

/// One worker's way out.
pub(super) struct Output {
    target: Arc<Target>,
    queue: Option<SyncSender<Record>>,
    pub(super) counts: Counts,
}

/// What became of datagrams that were put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Taken by the device; where there is none, by the thread that writes the file, and in the end by the file.
    pub sent: u64,
    /// Dropped because the device, or the file where there is none, did not take them fast enough.
    pub dropped: u64,
    /// The device, or the file where there is none, did not take them at all.
    pub failed: u64,
    /// Missing in the file, whatever the device did with them: it did not take them fast enough, or not at all.
    pub unwritten: u64,
    /// More than were asked for, so nobody gets them.
    pub surplus: u64,
}

impl Counts {
    /// Counts a datagram once, by what the device said if there is one, and else by whether the file takes it.
    fn count(&mut self, device: Option<io::Result<()>>, recorded: bool) {
        if device.is_some() && !recorded {
            self.unwritten += 1;
        }
        match device {
            Some(Err(e)) if e.kind() != io::ErrorKind::WouldBlock => self.failed += 1,
            Some(Err(_)) => self.dropped += 1,
            None if !recorded => self.dropped += 1,
            Some(Ok(())) | None => self.sent += 1,
        }
    }
}

impl Counts {
    /// So many of those that the thread which writes the file has taken are not in the file after all.
    pub(super) fn miss(&mut self, missing: u64, has_device: bool) {
        if has_device {
            self.unwritten += missing;
        } else {
            self.sent = self.sent.saturating_sub(missing);
            self.failed += missing;
        }
    }
}

impl Target {
    /// To this device, if any; at most `left` datagrams.
    pub(super) fn new(device: Option<Tap>, left: u64) -> Arc<Self> {
        let address = device.as_ref().map_or(0, |device| number(device.interface.address));
        let (address, left) = (AtomicU64::new(address), AtomicU64::new(left));
        Arc::new(Self { device, address, left })
    }

    /// Looks whether the device still takes what it is given, and to which address frames have to be.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`], [`Error::Down`].
    pub(super) fn look(&self) -> Result<(), Error> {
        let Some(device) = &self.device else { return Ok(()) };
        match device.look() {
            Ok(Some(now)) if !now.up => Err(Error::Down(now.name)),
            Ok(None) => Err(Error::Gone(device.interface.name.clone())),
            Ok(Some(now)) => {
                // Relaxed: it orders nothing else.
                self.address.store(number(now.address), Ordering::Relaxed);
                Ok(())
            }
            // It may be fine.
            Err(_) => Ok(()),
        }
    }

    /// Whether as many came out as were asked for.
    pub(super) fn is_done(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    /// Takes one of those that are left.
    fn admit(&self) -> bool {
        // Relaxed: a count orders nothing else.
        let take = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

impl Output {
    pub(super) fn new(target: &Arc<Target>, queue: Option<SyncSender<Record>>) -> Self {
        Self { target: Arc::clone(target), queue, counts: Counts::default() }
    }

    /// Sends a datagram on. Never waits.
    pub(super) fn send<'a, B>(
        &mut self,
        datagram: &Datagram<'a, B>,
        time_ns: u64,
        bytes: impl Fn(&'a B) -> &'a [u8],
    ) {
        if !self.target.admit() {
            self.counts.surplus += 1;
            return;
        }
        if self.queue.is_none() && self.target.device.is_none() {
            return;
        }
        let slice = |slice| match slice {
            Slice::Held { buffer, at, len } => bytes(buffer).get(at..at + len).unwrap_or(&[]),
            Slice::Copied(bytes) => bytes,
        };
        let mut slices = vec![datagram.header()];
        slices.extend(datagram.slices().map(slice));
        let address = self.target.address.load(Ordering::Relaxed);
        let device = self.target.device.as_ref().map(|device| write(device, address, &slices));
        let recorded = self.queue.as_ref().is_none_or(|queue| {
            let record = Record { time_ns, bytes: slices.concat() };
            queue.try_send(record).is_ok()
        });
        self.counts.count(device, recorded);
    }
}

/// A hardware address as a number; it is the last six bytes of eight.
fn number([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// One datagram, in one write, to that address.
fn write(device: &Tap, address: u64, slices: &[&[u8]]) -> io::Result<()> {
    let mut link = [0; 14];
    link[..6].copy_from_slice(&address.to_be_bytes()[2..]);
    link[6..12].copy_from_slice(&SOURCE);
    let is_v6 = slices.first().is_some_and(|header| header.first().is_some_and(|b| b >> 4 == 6));
    let kind: u16 = if is_v6 { 0x86dd } else { 0x0800 };
    link[12..].copy_from_slice(&kind.to_be_bytes());
    let link = if device.shape == Shape::Frame { &link[..] } else { &[] };
    if slices.len() > SLICES_MAX {
        let mut whole = link.to_vec();
        slices.iter().for_each(|slice| whole.extend_from_slice(slice));
        return (&device.file).write(&whole).map(drop);
    }
    let all = [link].into_iter().chain(slices.iter().copied());
    let all: Vec<_> = all.filter(|slice| !slice.is_empty()).map(IoSlice::new).collect();
    (&device.file).write_vectored(&all).map(drop)
}

/// The thread that writes the file.
pub(super) struct Recorder(JoinHandle<Recorded>);

/// What has become of the file.
pub(super) struct Recorded {
    pub(super) result: Result<(), Error>,
    /// Datagrams that were given to the thread and are not in the file.
    pub(super) missing: u64,
}

/// Counts the bytes that a file takes.
struct Taken<W> {
    to: W,
    bytes: Arc<AtomicU64>,
}

impl<W: Write> Write for Taken<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.to.write(bytes)?;
        // Relaxed: one thread writes, and reads the count.
        self.bytes.fetch_add(taken as u64, Ordering::Relaxed);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// A capture on its way into a file.
struct Capture<W: Write> {
    writer: Writer<Taken<BufWriter<Taken<W>>>>,
    /// Bytes that were written, and bytes that the file has taken.
    written: Arc<AtomicU64>,
    taken: Arc<AtomicU64>,
    /// Where datagrams end which the file may not have taken yet.
    ends: VecDeque<u64>,
}

impl Recorder {
    /// Makes the file and starts the thread, which ends when all senders are gone, or when it cannot
    /// write any more: that ends everything. `None`: it was to stop before somebody read the pipe that this is.
    pub(super) fn start(
        path: &Path,
        end: Alarm,
        stop: &AtomicBool,
    ) -> Result<Option<(Self, SyncSender<Record>)>, Error> {
        let file = create(path, stop).map_err(|e| Error::Create(path.to_owned(), e))?;
        let Some(file) = file else { return Ok(None) };
        let capture = Capture::begin(file, format_of(path).unwrap_or(Format::Pcapng))?;
        let (send, receive) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("defrag-write".into())
            .spawn(move || capture.record(&receive, end))
            .map_err(Error::Thread)?;
        Ok(Some((Self(thread), send)))
    }

    /// Waits until all is written, or nothing is any more.
    pub(super) fn finish(self) -> Recorded {
        self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Makes the file. A pipe that nobody reads yet is waited for, but not beyond `stop`: who were in open(2) would not see it,
/// since a signal that only sets a word has that begun again.
fn create(path: &Path, stop: &AtomicBool) -> io::Result<Option<File>> {
    if !std::fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo()) {
        return File::create(path).map(Some);
    }
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    while !stop.load(Ordering::Relaxed) {
        match rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::empty()) {
            Ok(file) => {
                // Who reads slowly is waited for, by the thread that writes.
                rustix::fs::fcntl_setfl(&file, flags & !OFlags::CLOEXEC)?;
                return Ok(Some(file.into()));
            }
            Err(rustix::io::Errno::NXIO) => std::thread::sleep(LOOK),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(None)
}

impl<W: Write> Capture<W> {
    /// With what goes before all datagrams.
    fn begin(file: W, format: Format) -> Result<Self, Error> {
        let [written, taken] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let to = BufWriter::with_capacity(BUFFER, Taken { to: file, bytes: Arc::clone(&taken) });
        let to = Taken { to, bytes: Arc::clone(&written) };
        let mut writer = Writer::fresh(to, format, &[LINK_RAW])?;
        writer.flush()?;
        Ok(Self { writer, written, taken, ends: VecDeque::new() })
    }

    /// Writes what comes until nobody sends any more. If the file takes no more, `end` is told, and what still comes is
    /// counted.
    fn record(mut self, receive: &Receiver<Record>, end: Alarm) -> Recorded {
        let result = self.write(receive);
        drop(end);
        let Self { writer, taken, ends, .. } = self;
        // What was left over is tried once more.
        drop(writer);
        let taken = taken.load(Ordering::Relaxed);
        let missing = ends.iter().filter(|end| **end > taken).count() + receive.iter().count();
        Recorded { result, missing: missing as u64 }
    }

    /// Who reads the file meanwhile sees what came a moment ago, and if we are killed it is there.
    fn write(&mut self, receive: &Receiver<Record>) -> Result<(), Error> {
        let mut flushed = Instant::now();
        loop {
            let record = match receive.recv_timeout(QUIET) {
                Ok(record) => record,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.writer.flush()?;
                    flushed = Instant::now();
                    continue;
                }
            };
            self.put(&record)?;
            if flushed.elapsed() >= FLUSH_EVERY {
                self.writer.flush()?;
                flushed = Instant::now();
            }
        }
        Ok(self.writer.finish()?)
    }

    fn put(&mut self, record: &Record) -> Result<(), Error> {
        let packet = Packet {
            interface: 0,
            time: Time { ns: record.time_ns, stamp: 0 },
            original_len: u32::try_from(record.bytes.len()).unwrap_or(u32::MAX),
            bytes: &record.bytes,
            options: &[],
            order: Order::Little,
            block: None,
        };
        let taken = self.taken.load(Ordering::Relaxed);
        while self.ends.front().is_some_and(|end| *end <= taken) {
            self.ends.pop_front();
        }
        // Nowhere, until it is written.
        self.ends.push_back(u64::MAX);
        self.writer.packet(&packet)?;
        if let Some(end) = self.ends.back_mut() {
            *end = self.written.load(Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use frag::{Arrival, Config, HashKey, Ledger, Released, Shard, Sink};
    use sys::interface::Interface;

    use super::*;

    /// Two fragments of a datagram.
    const FRAGMENTS: [&[u8]; 2] = [
        b"\x45\0\0\x1c\0\x07\x20\0\x40\x11\0\0\x0a\0\0\x01\x0a\0\0\x02\0\x35\0\x35\0\x0f\0\0",
        b"\x45\0\0\x1b\0\x07\0\x01\x40\x11\0\0\x0a\0\0\x01\x0a\0\0\x02perhaps",
    ];

    impl Sink<usize> for Output {
        fn whole(&mut self, _: usize, _: usize) {}

        fn datagram(&mut self, datagram: &Datagram<'_, usize>) {
            self.send(datagram, 0, |buffer| FRAGMENTS[*buffer]);
        }

        fn release(&mut self, _: usize, _: Released) {}
    }

    /// A file in place of a device.
    fn device(takes: bool) -> Tap {
        let file = OpenOptions::new().write(takes).read(!takes).open("/dev/null").unwrap();
        let (name, address) = (String::new(), [2; 6]);
        let interface = Interface { name, index: 0, up: true, mtu: 1500, kind: 1, address };
        Tap { file, shape: Shape::Frame, interface, made: false }
    }

    /// What becomes of so many datagrams; there is room for one that waits for the file.
    fn send(device: Option<Tap>, to_file: bool, datagrams: usize) -> Counts {
        let (send, _receive) = sync_channel(1);
        let target = Target::new(device, u64::MAX);
        let mut output = Output::new(&target, to_file.then_some(send));
        let limits = Config::default().limits().unwrap();
        let mut shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new([1, 2]));
        for buffer in [0, 1].repeat(datagrams) {
            shard.push(Arrival::new(FRAGMENTS[buffer], buffer), 0, &mut output);
        }
        output.counts
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_waited_for_until_it_is_to_stop() {
        let path = std::env::temp_dir().join(format!("shunt-pipe-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RWXU).unwrap();
        let end = || Alarm(Arc::new(AtomicBool::new(false)));
        let stopped = Recorder::start(&path, end(), &AtomicBool::new(true)).unwrap();
        assert!(stopped.is_none());
        let read = std::thread::spawn({
            let path = path.clone();
            move || std::fs::read(path).unwrap()
        });
        let (recorder, queue) =
            Recorder::start(&path, end(), &AtomicBool::new(false)).unwrap().unwrap();
        drop(queue);
        let Recorded { result, missing } = recorder.finish();
        result.unwrap();
        assert_eq!(missing, 0);
        assert!(read.join().unwrap().starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]), "pcapng");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_datagram_that_the_device_took_is_not_dropped_because_the_file_is_slow() {
        let none = Counts::default();
        let both = Counts { sent: 3, unwritten: 2, ..none };
        assert_eq!(send(Some(device(true)), true, 3), both);
        assert_eq!(send(Some(device(true)), false, 3), Counts { sent: 3, ..none });
        assert_eq!(send(None, true, 3), Counts { sent: 1, dropped: 2, ..none });
        let refused = Counts { failed: 3, unwritten: 2, ..none };
        assert_eq!(send(Some(device(false)), true, 3), refused);
    }

    /// A file on a disk that has so much room.
    struct Full<'f>(&'f mut Vec<u8>, usize);

    impl Write for Full<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = (self.1 - self.0.len()).min(bytes.len());
            if room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.extend_from_slice(&bytes[..room]);
            Ok(room)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_full_disk_did_not_take_is_missing() {
        const LEN: usize = 5000;
        // With the header of each.
        const RECORD: usize = 16 + LEN;
        // Full within the first buffer, within a later one, at the end of a record, and not at all.
        for (sent, fits) in [(3, 1), (1000, 600), (1000, 999), (1000, 1000)] {
            for more in [0, 40] {
                let room = 24 + fits * RECORD + more;
                let mut file = Vec::new();
                let capture = Capture::begin(Full(&mut file, room), Format::Pcap).unwrap();
                let (send, receive) = sync_channel(QUEUE);
                let ended = Arc::new(AtomicBool::new(false));
                let sender = std::thread::spawn(move || {
                    let record = || Record { time_ns: 0, bytes: vec![7; LEN] };
                    (0..sent).for_each(|_| send.send(record()).unwrap());
                });
                let Recorded { result, missing } =
                    capture.record(&receive, Alarm(Arc::clone(&ended)));
                sender.join().unwrap();
                assert_eq!(result.is_ok(), sent == fits, "{sent} {fits} {more}");
                assert!(ended.load(Ordering::Relaxed));
                let there = (file.len() - 24) / RECORD;
                assert_eq!((there, missing), (fits, (sent - fits) as u64), "{sent} {more}");
            }
        }
    }

    #[test]
    fn what_is_missing_in_the_file_was_not_sent() {
        let given = Counts { sent: 5, dropped: 1, ..Counts::default() };
        let mut counts = given;
        counts.miss(2, false);
        assert_eq!(counts, Counts { sent: 3, failed: 2, ..given });
        let mut counts = given;
        counts.miss(2, true);
        assert_eq!(counts, Counts { unwritten: 2, ..given });
    }
}

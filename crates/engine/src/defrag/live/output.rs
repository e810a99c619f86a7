//! Where whole datagrams go: to a capture through a thread of its own, to a TUN or TAP device, or nowhere.

use std::fs::File;
use std::io::{BufWriter, IoSlice, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use frag::{Datagram, Slice};
use sys::sync::{AtomicU64, Ordering};
use sys::tap::{Shape, Tap};

use super::{Alarm, Error};
use crate::defrag::Outlet as _;
use crate::defrag::file::{Format, Packet, Time, Writer};

/// Datagrams that wait for the file, at most; 32 MiB if all are of the largest size.
const QUEUE: usize = 512;
/// Raw IP: a datagram has no link of its own.
const LINK_RAW: u32 = 101;
/// Slices that one write may have.
const SLICES_MAX: usize = 1000;
const BUFFER: usize = 1 << 20;
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
    /// Written, or handed to the thread that writes.
    pub sent: u64,
    /// Dropped because the file or the device did not take them fast enough.
    pub dropped: u64,
    /// The device did not take them at all.
    pub failed: u64,
}

impl Target {
    /// To this device, if any; at most `left` datagrams.
    pub(super) fn new(device: Option<Tap>, left: u64) -> Arc<Self> {
        Arc::new(Self { device, left: AtomicU64::new(left) })
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
        let failed = match &self.target.device {
            Some(device) => write(device, &slices).err(),
            None => None,
        };
        if let Some(queue) = &self.queue {
            let record = Record { time_ns, bytes: slices.concat() };
            if queue.try_send(record).is_err() {
                self.counts.dropped += 1;
                return;
            }
        }
        match failed {
            None => self.counts.sent += 1,
            Some(e) if e.kind() == std::io::ErrorKind::WouldBlock => self.counts.dropped += 1,
            Some(_) => self.counts.failed += 1,
        }
    }
}

/// One datagram, in one write.
fn write(device: &Tap, slices: &[&[u8]]) -> std::io::Result<()> {
    let mut link = [0; 14];
    link[..6].copy_from_slice(&device.interface.address);
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
pub(super) struct Recorder(JoinHandle<Result<(), Error>>);

impl Recorder {
    /// Makes the file and starts the thread, which ends when all senders are gone, or when it cannot
    /// write any more: that ends everything.
    pub(super) fn start(path: &Path, end: Alarm) -> Result<(Self, SyncSender<Record>), Error> {
        let file = File::create(path).map_err(|e| Error::Create(path.to_owned(), e))?;
        let to = BufWriter::with_capacity(BUFFER, file);
        let pcap = path.extension().is_some_and(|e| e == "pcap");
        let format = if pcap { Format::Pcap } else { Format::Pcapng };
        let writer = Writer::fresh(to, format, &[LINK_RAW])?;
        let (send, receive) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("defrag-write".into())
            .spawn(move || {
                let _end = end;
                record(writer, &receive)
            })
            .map_err(Error::Thread)?;
        Ok((Self(thread), send))
    }

    /// Waits until all is written.
    pub(super) fn finish(self) -> Result<(), Error> {
        self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn record(mut writer: Writer<BufWriter<File>>, receive: &Receiver<Record>) -> Result<(), Error> {
    for record in receive {
        let packet = Packet {
            interface: 0,
            time: Time { ns: record.time_ns, stamp: 0 },
            original_len: u32::try_from(record.bytes.len()).unwrap_or(u32::MAX),
            bytes: &record.bytes,
            options: &[],
            block: None,
        };
        writer.packet(&packet)?;
    }
    Ok(writer.finish()?)
}

//! A bad network between two interfaces: carries frames from one to the other and back, late, twice, out
//! of order, or not at all (see `testkit::network`).
//!
//! Reads words such as `loss=0.01` from standard input, a line at a time, and is as bad as that from then
//! on; the end of standard input is its end. Then it prints what became of the frames, one line for each
//! direction.

use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Parser;
use testkit::fragments::packet::checksum;
use testkit::network::{Conditions, Network};

/// A frame of any size that offloads make, and what the kernel says before it of checksums.
const FRAME_MAX: usize = (64 << 10) + 256;
/// How many frames are taken in a row before the other direction has its turn.
const BURST: usize = 64;
/// What waits for us in the kernel: a loss there would be none of ours.
const QUEUE_BYTES: i32 = 32 << 20;
const SOL_PACKET: i32 = 263;
const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;

#[derive(Parser)]
#[command(about = "A bad network between two interfaces")]
struct Args {
    /// One interface
    left: String,
    /// The other
    right: String,
    /// How bad it is: loss, duplicate, reorder, corrupt, mark as parts of 1; delay and late in microseconds; cut:
    /// bytes beyond which packets of UDP over IPv4 are cut up, though they forbid it; 0: none is. rate: megabits a
    /// second of the slowest link; queue: bytes that may wait for it; above: bytes that wait when packets are marked
    #[arg(value_name = "NAME=VALUE")]
    conditions: Vec<String>,
    /// The same seed gives the same fates to the same frames
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Changes conditions as words say; `cut`: bytes of the longest packet that is not cut up.
fn change<'a>(
    conditions: &mut Conditions,
    cut: &mut usize,
    words: impl Iterator<Item = &'a str>,
) -> anyhow::Result<()> {
    for word in words {
        let (name, value) =
            word.split_once('=').with_context(|| format!("{word:?}: NAME=VALUE"))?;
        let value: f64 = value.parse().with_context(|| format!("{word:?}: no number"))?;
        #[expect(clippy::cast_possible_truncation, reason = "clamped")]
        #[expect(clippy::cast_sign_loss, reason = "clamped")]
        let (ppm, nanos) =
            ((value.clamp(0.0, 1.0) * 1e6) as u32, (value.clamp(0.0, 1e7) * 1e3) as u64);
        match name {
            "loss" => conditions.loss_ppm = ppm,
            "duplicate" => conditions.duplicate_ppm = ppm,
            "reorder" => conditions.reorder_ppm = ppm,
            "corrupt" => conditions.corrupt_ppm = ppm,
            "mark" => conditions.mark_ppm = ppm,
            "delay" => conditions.delay_nanos = nanos,
            "late" => conditions.reorder_nanos = nanos,
            "cut" => *cut = usize::try_from(nanos / 1000)?,
            // Thousandths of a number are what there is.
            "rate" => conditions.bits_per_second = nanos * 1000,
            "queue" => conditions.queue_bytes = nanos / 1000,
            "above" => conditions.mark_above_bytes = nanos / 1000,
            _ => bail!(
                "{name:?}: loss, duplicate, reorder, corrupt, mark, delay, late, cut, rate, queue or above"
            ),
        }
    }
    Ok(())
}

/// What the kernel says before a frame.
const OFFLOADS: usize = 10;
/// Where the IP header begins in what comes, and where its payload does.
const IP_AT: usize = OFFLOADS + 14;
const PAYLOAD_AT: usize = IP_AT + 20;

/// Cuts a packet of UDP over IPv4 up so that none is longer than `most` bytes, as a router does that ignores "don't
/// fragment". UDP's checksum, which a card would have filled in, is left out. Empty: it is not to be cut.
fn cut_up(frame: &[u8], most: usize) -> Vec<Vec<u8>> {
    let is_one = frame.get(1) == Some(&0) && frame.get(IP_AT) == Some(&0x45);
    let ip_len =
        frame.get(IP_AT + 2..IP_AT + 4).map_or(0, |b| usize::from(b[0]) << 8 | usize::from(b[1]));
    let each = most.saturating_sub(20) / 8 * 8;
    let Some(payload) = frame.get(PAYLOAD_AT..IP_AT + ip_len) else { return Vec::new() };
    if !is_udp(frame) || !is_one || ip_len <= most || each == 0 || payload.len() < 8 {
        return Vec::new();
    }
    let mut payload = payload.to_vec();
    payload[6..8].fill(0);
    let pieces = payload.chunks(each).enumerate().map(|(nth, piece)| {
        let mut cut = vec![0; OFFLOADS];
        cut.extend_from_slice(&frame[OFFLOADS..PAYLOAD_AT]);
        let more = (nth + 1) * each < payload.len();
        let place = u16::try_from(nth * each / 8).unwrap_or(0) | u16::from(more) << 13;
        let len = u16::try_from(20 + piece.len()).unwrap_or(u16::MAX);
        cut[IP_AT + 2..IP_AT + 4].copy_from_slice(&len.to_be_bytes());
        cut[IP_AT + 6..IP_AT + 8].copy_from_slice(&place.to_be_bytes());
        cut[IP_AT + 10..IP_AT + 12].fill(0);
        let sum = checksum(&cut[IP_AT..PAYLOAD_AT]);
        cut[IP_AT + 10..IP_AT + 12].copy_from_slice(&sum.to_be_bytes());
        cut.extend_from_slice(piece);
        cut
    });
    pieces.collect()
}

/// Whether a frame, with what the kernel says before it, is UDP over IPv4.
fn is_udp(frame: &[u8]) -> bool {
    let ethernet = frame.get(OFFLOADS..).unwrap_or_default();
    ethernet.get(12..14) == Some(&[8, 0]) && ethernet.get(23) == Some(&17)
}

/// Whether a frame belongs to a transport that understands congestion marks: ECT(0), ECT(1) or CE (RFC 3168).
fn is_capable(frame: &[u8]) -> bool {
    let kind = frame.get(OFFLOADS + 12..OFFLOADS + 14);
    let second = frame.get(IP_AT + 1).copied().unwrap_or(0);
    match kind {
        Some([8, 0]) => second & 3 != 0,
        Some([0x86, 0xdd]) => second >> 4 & 3 != 0,
        _ => false,
    }
}

/// Marks a frame whose transport understands that.
fn mark(frame: &mut [u8]) {
    if frame[OFFLOADS + 12] == 0x86 {
        frame[IP_AT + 1] |= 3 << 4;
        return;
    }
    frame[IP_AT + 1] |= 3;
    let end = (IP_AT + usize::from(frame[IP_AT] & 15) * 4).min(frame.len());
    frame[IP_AT + 10..IP_AT + 12].fill(0);
    let sum = checksum(&frame[IP_AT..end]);
    frame[IP_AT + 10..IP_AT + 12].copy_from_slice(&sum.to_be_bytes());
}

fn check(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// All that comes in at an interface.
fn open(name: &str) -> anyhow::Result<OwnedFd> {
    #[expect(clippy::cast_possible_truncation, reason = "0x0003")]
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: always callable.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) };
    check(fd as isize).context("cannot open a packet socket (root?)")?;
    // SAFETY: it has just been opened, for us alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    for (level, option, value) in [
        (SOL_PACKET, PACKET_VNET_HDR, 1),
        (SOL_PACKET, PACKET_IGNORE_OUTGOING, 1),
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, QUEUE_BYTES),
    ] {
        // SAFETY: a value of the length that is said.
        let r = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), 4) };
        check(r as isize).context("this kernel's packet sockets are too old")?;
    }
    let c_name = CString::new(name)?;
    // SAFETY: a name that ends.
    let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
    if index == 0 {
        bail!("there is no interface {name}");
    }
    // SAFETY: all zeros is a valid address.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    at.sll_family = u16::try_from(libc::AF_PACKET)?;
    at.sll_protocol = protocol;
    at.sll_ifindex = i32::try_from(index)?;
    let len = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>())?;
    // SAFETY: an address of the length that is said.
    let r = unsafe { libc::bind(fd, (&raw const at).cast(), len) };
    check(r as isize).with_context(|| format!("cannot bind to {name}"))?;
    Ok(socket)
}

/// One direction.
struct Way {
    from: i32,
    to: i32,
    network: Network<()>,
    /// The longest packet that is not cut up, bytes; 0: none is.
    cut: usize,
    /// The system had no room for so many.
    refused: u64,
    /// Frames that came whose transport understands congestion marks, and those that left with one.
    capable: u64,
    marked: u64,
}

impl Way {
    /// Takes in what has come, and sends what is due. `true`: there may be more.
    fn step(&mut self, now: u64, frame: &mut [u8]) -> bool {
        let mut taken = 0;
        while taken < BURST {
            // SAFETY: room of the length that is said.
            let n = unsafe { libc::recv(self.from, frame.as_mut_ptr().cast(), frame.len(), 0) };
            let Ok(n) = check(n) else { break };
            self.capable += u64::from(is_capable(&frame[..n]));
            let pieces = if self.cut > 0 { cut_up(&frame[..n], self.cut) } else { Vec::new() };
            pieces.iter().for_each(|piece| self.network.send(now, (), piece));
            if pieces.is_empty() {
                self.network.send(now, (), &frame[..n]);
            }
            taken += 1;
        }
        while let Some(mut packet) = self.network.receive(now) {
            if packet.corrupted && !is_udp(&packet.bytes) {
                // Between these interfaces nobody looks at TCP's checksum; anywhere else it would have failed.
                continue;
            }
            if packet.marked && is_capable(&packet.bytes) && packet.bytes.len() >= PAYLOAD_AT {
                mark(&mut packet.bytes);
                self.marked += 1;
            }
            let (at, len) = (packet.bytes.as_ptr().cast(), packet.bytes.len());
            // SAFETY: bytes of the length that is said.
            if check(unsafe { libc::send(self.to, at, len, 0) }).is_err() {
                self.refused += 1;
            }
        }
        taken == BURST
    }

    fn tell(&self, name: &str) {
        let f = self.network.fates();
        println!(
            "way={name} sent={} lost={} duplicated={} reordered={} corrupted={} refused={} capable={} marked={}",
            f.sent,
            f.lost,
            f.duplicated,
            f.reordered,
            f.corrupted,
            self.refused,
            self.capable,
            self.marked
        );
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut conditions = Conditions { reorder_nanos: 200_000, ..Conditions::default() };
    let mut cut = 0;
    change(&mut conditions, &mut cut, args.conditions.iter().map(String::as_str))?;
    let (left, right) = (open(&args.left)?, open(&args.right)?);
    let way = |from: &OwnedFd, to: &OwnedFd, seed| Way {
        from: from.as_raw_fd(),
        to: to.as_raw_fd(),
        network: Network::new(conditions, seed),
        cut,
        refused: 0,
        capable: 0,
        marked: 0,
    };
    let mut ways = [way(&left, &right, args.seed), way(&right, &left, !args.seed)];
    println!("ready");
    let begin = Instant::now();
    let mut frame = vec![0; FRAME_MAX];
    let mut said = Vec::new();
    loop {
        let now = u64::try_from(begin.elapsed().as_nanos())?;
        if ways[0].step(now, &mut frame) | ways[1].step(now, &mut frame) {
            continue;
        }
        let due = ways.iter().filter_map(|way| way.network.next_at()).min();
        let left_ns = due
            .map(|at| at.saturating_sub(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(at)));
        let input = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [input(0), input(left.as_raw_fd()), input(right.as_raw_fd())];
        let limit = libc::timespec {
            tv_sec: i64::try_from(left_ns.unwrap_or(0) / 1_000_000_000)?,
            tv_nsec: i64::try_from(left_ns.unwrap_or(0) % 1_000_000_000)?,
        };
        let limit = if left_ns.is_some() { &raw const limit } else { std::ptr::null() };
        // SAFETY: three descriptors, and a time that outlives the call or none.
        unsafe { libc::ppoll(fds.as_mut_ptr(), 3, limit, std::ptr::null()) };
        if fds[0].revents != 0 {
            let mut chunk = [0; 256];
            let n = io::stdin().lock().read(&mut chunk).unwrap_or(0);
            if n == 0 {
                break;
            }
            said.extend_from_slice(&chunk[..n]);
            while let Some(end) = said.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = said.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                change(&mut conditions, &mut cut, line.split_whitespace())?;
                for way in &mut ways {
                    way.network.become_as(conditions);
                    way.cut = cut;
                }
            }
        }
    }
    ways[0].tell(&format!("{}-to-{}", args.left, args.right));
    ways[1].tell(&format!("{}-to-{}", args.right, args.left));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_as_people_write_them() {
        let (mut now, mut cut) = (Conditions::default(), 0);
        change(&mut now, &mut cut, "loss=0.05 late=1500 delay=20 cut=600".split(' ')).unwrap();
        assert_eq!((now.loss_ppm, now.reorder_nanos, now.delay_nanos), (50_000, 1_500_000, 20_000));
        assert_eq!(cut, 600);
        for wrong in ["loss", "loss=much", "losses=1"] {
            assert!(change(&mut now, &mut cut, [wrong].into_iter()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_of_megabits_and_queues_of_bytes() {
        let (mut now, mut cut) = (Conditions::default(), 0);
        change(&mut now, &mut cut, "rate=40 queue=2000000 above=30000".split(' ')).unwrap();
        assert_eq!((now.bits_per_second, now.queue_bytes), (40_000_000, 2_000_000));
        assert_eq!(now.mark_above_bytes, 30_000);
    }

    #[test]
    fn only_those_are_marked_that_understand_it() {
        let mut v4 = vec![0; PAYLOAD_AT + 8];
        v4[OFFLOADS + 12] = 8;
        v4[IP_AT] = 0x45;
        assert!(!is_capable(&v4));
        v4[IP_AT + 1] = 0x6a;
        assert!(is_capable(&v4));
        mark(&mut v4);
        assert_eq!((v4[IP_AT + 1], checksum(&v4[IP_AT..PAYLOAD_AT])), (0x6b, 0));
        let mut v6 = vec![0; OFFLOADS + 14 + 40];
        v6[OFFLOADS + 12..OFFLOADS + 14].copy_from_slice(&[0x86, 0xdd]);
        v6[IP_AT..IP_AT + 2].copy_from_slice(&[0x66, 0x81]);
        assert!(!is_capable(&v6));
        v6[IP_AT + 1] = 0xa1;
        assert!(is_capable(&v6));
        mark(&mut v6);
        assert_eq!(v6[IP_AT..IP_AT + 2], [0x66, 0xb1]);
        assert!(!is_capable(&[0; 4]));
    }

    #[test]
    fn only_long_packets_of_udp_are_cut_up_and_nothing_is_missing() {
        let mut frame = vec![0; PAYLOAD_AT];
        frame[OFFLOADS + 12] = 8;
        frame[IP_AT] = 0x45;
        frame[IP_AT + 2..IP_AT + 4].copy_from_slice(&120u16.to_be_bytes());
        frame[IP_AT + 6] = 0x40;
        frame[IP_AT + 9] = 17;
        frame.extend((0..100).map(|n| if (6..8).contains(&n) { 0 } else { n }));
        assert!(cut_up(&frame, 120).is_empty());
        let pieces = cut_up(&frame, 70);
        let flags: Vec<_> = pieces.iter().map(|p| (p[IP_AT + 6], p[IP_AT + 7])).collect();
        assert_eq!(flags, [(0x20, 0), (0x20, 6), (0, 12)]);
        let all: Vec<u8> = pieces.iter().flat_map(|p| p[PAYLOAD_AT..].to_vec()).collect();
        assert_eq!(all, frame[PAYLOAD_AT..]);
        assert!(pieces.iter().all(|p| checksum(&p[IP_AT..PAYLOAD_AT]) == 0));
        frame[IP_AT + 9] = 6;
        assert!(cut_up(&frame, 70).is_empty(), "TCP");
    }
}

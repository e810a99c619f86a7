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
    /// How bad it is: loss, duplicate, reorder, corrupt, mark as parts of 1; delay and late in microseconds
    #[arg(value_name = "NAME=VALUE")]
    conditions: Vec<String>,
    /// The same seed gives the same fates to the same frames
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Changes conditions as words say.
fn change<'a>(
    conditions: &mut Conditions,
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
            _ => bail!("{name:?}: loss, duplicate, reorder, corrupt, mark, delay or late"),
        }
    }
    Ok(())
}

/// Whether a frame, with what the kernel says before it, is UDP over IPv4.
fn is_udp(frame: &[u8]) -> bool {
    const OFFLOADS: usize = 10;
    let ethernet = frame.get(OFFLOADS..).unwrap_or_default();
    ethernet.get(12..14) == Some(&[8, 0]) && ethernet.get(23) == Some(&17)
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
    /// The system had no room for so many.
    refused: u64,
}

impl Way {
    /// Takes in what has come, and sends what is due. `true`: there may be more.
    fn step(&mut self, now: u64, frame: &mut [u8]) -> bool {
        let mut taken = 0;
        while taken < BURST {
            // SAFETY: room of the length that is said.
            let n = unsafe { libc::recv(self.from, frame.as_mut_ptr().cast(), frame.len(), 0) };
            let Ok(n) = check(n) else { break };
            self.network.send(now, (), &frame[..n]);
            taken += 1;
        }
        while let Some(packet) = self.network.receive(now) {
            if packet.corrupted && !is_udp(&packet.bytes) {
                // Between these interfaces nobody looks at TCP's checksum; anywhere else it would have failed.
                continue;
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
            "way={name} sent={} lost={} duplicated={} reordered={} corrupted={} refused={}",
            f.sent, f.lost, f.duplicated, f.reordered, f.corrupted, self.refused
        );
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut conditions = Conditions { reorder_nanos: 200_000, ..Conditions::default() };
    change(&mut conditions, args.conditions.iter().map(String::as_str))?;
    let (left, right) = (open(&args.left)?, open(&args.right)?);
    let way = |from: &OwnedFd, to: &OwnedFd, seed| Way {
        from: from.as_raw_fd(),
        to: to.as_raw_fd(),
        network: Network::new(conditions, seed),
        refused: 0,
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
                change(&mut conditions, String::from_utf8_lossy(&line).split_whitespace())?;
                ways.iter_mut().for_each(|way| way.network.become_as(conditions));
            }
        }
    }
    ways[0].tell(&format!("{}-to-{}", args.left, args.right));
    ways[1].tell(&format!("{}-to-{}", args.right, args.left));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Conditions, change};

    #[test]
    fn conditions_are_read_as_people_write_them() {
        let mut now = Conditions::default();
        change(&mut now, "loss=0.05 late=1500 delay=20".split(' ')).unwrap();
        assert_eq!((now.loss_ppm, now.reorder_nanos, now.delay_nanos), (50_000, 1_500_000, 20_000));
        for wrong in ["loss", "loss=much", "losses=1"] {
            assert!(change(&mut now, [wrong].into_iter()).is_err(), "{wrong}");
        }
    }
}

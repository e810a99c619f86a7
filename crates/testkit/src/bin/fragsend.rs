//! IPv4 fragments out of an interface, as fast as they go: what `shunt defrag --interface` is measured with.
//!
//! UDP datagrams of the largest size from one source after the other, a fragment of each in turn.

use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

use clap::Parser;
use testkit::cpu;

const BATCH: usize = 64;
const LINK: usize = 14;
const HEADER: usize = 20;
const EACH: usize = 1480;
const LEN: usize = 65_515;
const FRAGMENTS: usize = LEN.div_ceil(EACH);

#[derive(Parser)]
#[command(about = "IPv4 fragments out of an interface, as fast as they go")]
struct Args {
    /// The interface to send from
    interface: String,
    /// Ethernet address to send to
    #[arg(value_parser = parse_address)]
    to: [u8; 6],
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Datagrams that are in progress at a time
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..65536))]
    flows: u32,
    /// Which of several senders this is: each has sources of its own
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    sender: u8,
    /// Stay on this CPU
    #[arg(long)]
    pin: Option<usize>,
}

fn parse_address(text: &str) -> Result<[u8; 6], String> {
    let bytes: Result<Vec<u8>, _> = text.split(':').map(|b| u8::from_str_radix(b, 16)).collect();
    bytes
        .ok()
        .and_then(|b| b.try_into().ok())
        .ok_or_else(|| "six bytes, as 02:00:00:00:00:01".into())
}

/// Which fragment comes next.
struct Turn {
    sender: u8,
    first: u32,
    flow: u32,
    piece: usize,
}

impl Turn {
    /// Writes the next fragment behind the link's header; answers the frame's length.
    fn write(&mut self, flows: u32, frame: &mut [u8; LINK + HEADER + EACH]) -> usize {
        let at = self.piece * EACH;
        let len = EACH.min(LEN - at);
        let more = if at + len < LEN { 0x2000 } else { 0 };
        let narrow = |n: usize| u16::try_from(n).unwrap_or(0);
        let number = (self.first.wrapping_add(self.flow)).to_be_bytes();
        let header = &mut frame[LINK..LINK + HEADER];
        header[2..4].copy_from_slice(&narrow(HEADER + len).to_be_bytes());
        header[4..6].copy_from_slice(&number[2..]);
        header[6..8].copy_from_slice(&(narrow(at / 8) | more).to_be_bytes());
        header[10..12].fill(0);
        header[12..16].copy_from_slice(&[10, 77 + self.sender, number[1], 1]);
        let sum = checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        self.advance(flows);
        LINK + HEADER + len
    }

    fn advance(&mut self, flows: u32) {
        self.flow += 1;
        if self.flow == flows {
            self.flow = 0;
            self.piece += 1;
        }
        if self.piece == FRAGMENTS {
            self.piece = 0;
            self.first = self.first.wrapping_add(flows);
        }
    }
}

fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0)
}

/// A socket whose frames go to the driver at once.
fn open(interface: &str) -> anyhow::Result<i32> {
    let name = CString::new(interface)?;
    // SAFETY: the name is a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    anyhow::ensure!(index != 0, "there is no interface {interface}");
    // SAFETY: plain numbers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
    anyhow::ensure!(fd >= 0, "a packet socket: {}", io::Error::last_os_error());
    let one = 1i32;
    // SAFETY: the option's value is an int that lives while the call lasts.
    unsafe {
        let len = libc::socklen_t::try_from(size_of::<i32>())?;
        libc::setsockopt(fd, libc::SOL_PACKET, 20, (&raw const one).cast(), len);
    }
    // SAFETY: all zeros is a link-level address.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = u16::try_from(libc::AF_PACKET)?;
    to.sll_protocol = 0x0800u16.to_be();
    to.sll_ifindex = index.cast_signed();
    let len = libc::socklen_t::try_from(size_of_val(&to))?;
    // SAFETY: an address of the length that is said.
    let bound = unsafe { libc::bind(fd, (&raw const to).cast(), len) };
    anyhow::ensure!(bound == 0, "binding to {interface}: {}", io::Error::last_os_error());
    Ok(fd)
}

/// Sends all; what the driver refuses is passed over.
fn send(fd: i32, messages: &mut [libc::mmsghdr]) {
    let mut at = 0;
    while at < messages.len() {
        let left = &mut messages[at..];
        let count = u32::try_from(left.len()).unwrap_or(0);
        // SAFETY: each message points to one vector, and that to a frame; all outlive the call.
        let n = unsafe { libc::sendmmsg(fd, left.as_mut_ptr(), count, 0) };
        at += usize::try_from(n).unwrap_or(1);
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(cpu) = args.pin {
        cpu::pin(cpu)?;
    }
    let fd = open(&args.interface)?;
    let mut frames = vec![[0u8; LINK + HEADER + EACH]; BATCH];
    for frame in &mut frames {
        frame[..6].copy_from_slice(&args.to);
        frame[6..LINK].copy_from_slice(&[2, 0, 0, 0, 0, 1, 8, 0]);
        frame[LINK] = 0x45;
        frame[LINK + 8..LINK + 10].copy_from_slice(&[64, 17]);
        frame[LINK + 16..LINK + 20].copy_from_slice(&[10, 77, 0, 2]);
    }
    let began = Instant::now();
    let lasts = Duration::from_secs_f64(args.seconds);
    let (mut turn, mut sent) = (Turn { sender: args.sender, first: 0, flow: 0, piece: 0 }, 0u64);
    while began.elapsed() < lasts {
        let mut vectors = Vec::with_capacity(BATCH);
        for frame in &mut frames {
            let iov_len = turn.write(args.flows, frame);
            vectors.push(libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len });
        }
        let message = |vector: &mut libc::iovec| {
            // SAFETY: all zeros is a message without anything.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = std::ptr::from_mut(vector);
            message.msg_hdr.msg_iovlen = 1;
            message
        };
        let mut messages: Vec<_> = vectors.iter_mut().map(message).collect();
        send(fd, &mut messages);
        sent += BATCH as u64;
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let rate = sent as f64 / began.elapsed().as_secs_f64() / 1e6;
    let cpu = cpu::of_this_thread().as_secs_f64();
    let datagrams = sent / FRAGMENTS as u64;
    println!(
        "{sent} fragments, {cpu:.3} s of CPU, {rate:.3} million a second, {datagrams} datagrams"
    );
    Ok(())
}

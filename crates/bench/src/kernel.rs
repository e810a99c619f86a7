//! Linux's own reassembly, in a network namespace of this process alone: packets are injected into one end
//! of a veth pair, and come in at the other.
//!
//! What it costs cannot be seen alone: injector, veth and IP input work on the same CPU in the same call. So
//! the whole way is timed, and the same way with every fragment refused at its entry
//! (`ipfrag_high_thresh = 0`); the difference is reassembly, delivery to a socket, and freeing.

use std::ffi::CString;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::Instant;
use std::{fs, io, mem};

use anyhow::{Context, bail, ensure};

use crate::Words;
use crate::overload::Load;
use crate::trace::{DESTINATION, FRAME, Piece, Trace, checksum, header};

const PORT: u16 = 0x3000;
/// To, from, IPv4.
const ETHERNET: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
/// Packets of one system call.
const CALL: usize = 64;
const ROOM: &str = "1073741824";

#[expect(clippy::cast_possible_truncation, reason = "20")]
const NAME_LEN: u32 = size_of::<libc::sockaddr_ll>() as u32;
#[expect(clippy::cast_possible_truncation, reason = "4")]
const INT_LEN: u32 = size_of::<i32>() as u32;

/// Makes the namespace and what is in it. It ends with this process.
fn enter() -> anyhow::Result<Injector> {
    // SAFETY: takes no pointer; this process has one thread.
    ensure!(unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0, "{}", io::Error::last_os_error());
    ip("link set lo up")?;
    ip("link add va address 02:00:00:00:00:01 type veth peer name vb address 02:00:00:00:00:02")?;
    ip(&format!("address add {}/24 dev vb", Ipv4Addr::from(DESTINATION)))?;
    ip("link set va up")?;
    ip("link set vb up")?;
    for conf in ["all", "vb"] {
        set(&format!("conf/{conf}/rp_filter"), "0")?;
    }
    Injector::new("va")
}

fn ip(words: &str) -> anyhow::Result<()> {
    let status = Command::new("ip").args(words.split(' ')).status().context("cannot start ip")?;
    ensure!(status.success(), "`ip {words}` failed");
    Ok(())
}

fn set(name: &str, value: &str) -> anyhow::Result<()> {
    let path = format!("/proc/sys/net/ipv4/{name}");
    fs::write(&path, value).with_context(|| format!("cannot write {path}"))
}

/// Datagrams that the kernel has put together.
fn put_together() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/snmp")?;
    let mut lines = text.lines().filter(|line| line.starts_with("Ip:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut all = names.split(' ').zip(values.split(' '));
    let (_, value) = all.find(|(name, _)| *name == "ReasmOKs").context("no ReasmOKs")?;
    Ok(value.parse()?)
}

/// Sends packets, many in a call.
struct Injector {
    socket: i32,
    address: libc::sockaddr_ll,
}

impl Injector {
    fn new(interface: &str) -> anyhow::Result<Self> {
        let name = CString::new(interface)?;
        // SAFETY: the name ends with 0.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        // SAFETY: takes no pointer.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
        ensure!(index > 0 && socket >= 0, "{}", io::Error::last_os_error());
        // SAFETY: all zeroes is a valid address.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET)?;
        address.sll_ifindex = i32::try_from(index)?;
        address.sll_halen = 6;
        Ok(Self { socket, address })
    }

    /// Sends packets.
    fn send(&mut self, packets: &[&[u8]]) -> anyhow::Result<()> {
        let part = |bytes: &[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut parts: Vec<[libc::iovec; 2]> =
            packets.iter().map(|packet| [part(&ETHERNET), part(packet)]).collect();
        let name = &raw mut self.address;
        let mut messages: Vec<libc::mmsghdr> = parts
            .iter_mut()
            .map(|parts| {
                // SAFETY: all zeroes is a valid header of an empty message.
                let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
                message.msg_hdr.msg_name = name.cast();
                message.msg_hdr.msg_namelen = NAME_LEN;
                message.msg_hdr.msg_iov = parts.as_mut_ptr();
                message.msg_hdr.msg_iovlen = parts.len();
                message
            })
            .collect();
        let mut rest = &mut messages[..];
        while !rest.is_empty() {
            let len = u32::try_from(rest.len())?;
            // SAFETY: so many headers, whose addresses, parts and bytes outlive the call.
            let sent = unsafe { libc::sendmmsg(self.socket, rest.as_mut_ptr(), len, 0) };
            let Ok(sent) = usize::try_from(sent) else { bail!(io::Error::last_os_error()) };
            rest = &mut rest[sent..];
        }
        Ok(())
    }
}

/// Prints what a fragment costs all the way, refused, and the difference.
pub(crate) fn cost(words: Words) -> anyhow::Result<()> {
    testkit::cpu::pin(0)?;
    let mut trace = Trace::new(words.case(0))?;
    let mut injector = enter()?;
    let socket = UdpSocket::bind((Ipv4Addr::from(DESTINATION), PORT))?;
    shrink(&socket)?;
    set("ipfrag_max_dist", "0")?;
    set("ipfrag_low_thresh", "0")?;
    let (mut all, mut refused, mut cost) = (Vec::new(), Vec::new(), Vec::new());
    pass(&mut injector, &mut trace, true)?;
    for _ in 0..words.rounds {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..words.passes.max(1) {
            times[0].push(pass(&mut injector, &mut trace, true)?);
            times[1].push(pass(&mut injector, &mut trace, false)?);
        }
        times.iter_mut().for_each(|times| times.sort_unstable_by(f64::total_cmp));
        let [with, without] = times.map(|times| times[times.len() / 2]);
        all.push(with);
        refused.push(without);
        cost.push(with - without);
    }
    crate::tell("all", &all);
    crate::tell("refused", &refused);
    crate::tell("kernel", &cost);
    Ok(())
}

/// The socket takes next to nothing: nobody reads it.
fn shrink(socket: &UdpSocket) -> anyhow::Result<()> {
    use std::os::fd::AsRawFd;
    let bytes = 1i32;
    // SAFETY: the value is an int, as that option has it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const bytes).cast(),
            INT_LEN,
        )
    };
    ensure!(set == 0, "{}", io::Error::last_os_error());
    Ok(())
}

/// Nanoseconds per fragment.
fn pass(injector: &mut Injector, trace: &mut Trace, accepted: bool) -> anyhow::Result<f64> {
    set("ipfrag_high_thresh", if accepted { ROOM } else { "0" })?;
    let ids = u16::try_from(trace.datagrams / trace.case.flows)?;
    (0..trace.len()).for_each(|slot| renumber(trace.packet_mut(slot), ids));
    let before = put_together()?;
    let begin = testkit::cpu::of_this_thread();
    for slots in (0..trace.len()).step_by(CALL) {
        let packets: Vec<&[u8]> =
            (slots..(slots + CALL).min(trace.len())).map(|slot| trace.packet(slot)).collect();
        injector.send(&packets)?;
    }
    let time = testkit::cpu::of_this_thread() - begin;
    let came = put_together()? - before;
    let want = if accepted { trace.datagrams as u64 } else { 0 };
    // The last packets may still be on their way.
    ensure!(came.abs_diff(want) * 100 <= trace.datagrams as u64, "{came} datagrams, not {want}");
    Ok(time.as_secs_f64() * 1e9 / trace.len() as f64)
}

/// An identification that was not there lately.
fn renumber(packet: &mut [u8], step: u16) {
    let id = u16::from_be_bytes([packet[4], packet[5]]).wrapping_add(step);
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[10..12].fill(0);
    let sum = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Prints the part of the offered datagrams that Linux puts together, with all settings as they are.
pub(crate) fn overload(load: Load) -> anyhow::Result<()> {
    testkit::cpu::pin(0)?;
    let mut injector = enter()?;
    let case = load.case();
    let begin = Instant::now();
    let mut frames = vec![[0; FRAME]; CALL];
    let mut lens = Vec::with_capacity(CALL);
    let mut pieces = load.pieces();
    let mut left = load.fragments;
    while left > 0 {
        lens.clear();
        while lens.len() < CALL && left > 0 {
            left -= 1;
            if let Some(piece) = pieces.next().flatten() {
                lens.push(write(&case, piece, &mut frames[lens.len()])?);
            }
        }
        let packets: Vec<&[u8]> =
            frames.iter().zip(&lens).map(|(frame, len)| &frame[..*len]).collect();
        injector.send(&packets)?;
    }
    let offered = load.fragments as f64 / case.pieces() as f64;
    println!("linux={:.4}", put_together()? as f64 / offered);
    println!("rate={:.3}", load.fragments as f64 / begin.elapsed().as_secs_f64() / 1e6);
    Ok(())
}

fn write(case: &crate::trace::Case, piece: Piece, frame: &mut [u8]) -> anyhow::Result<usize> {
    let header = header(case, piece)?;
    frame[..header.len()].copy_from_slice(&header);
    Ok(usize::from(u16::from_be_bytes([header[2], header[3]])))
}

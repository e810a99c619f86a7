//! Whether an offer of another network namespace is of the very connection that we have accepted.
//!
//! The kernel lists the sockets of our own namespace only, and addresses mean something else in each: two namespaces may
//! have a connection with the same ends at the same time, and so may another host have one with us. What tells them apart
//! is the first segment, which the server has its listener keep (`TCP_SAVE_SYN`):
//!
//! - its time stamp (RFC 7323 3), to which the kernel adds a secret number of the connection's ends. On another host it is
//!   another one; within this one the same ends must have begun within the same milliseconds. The client says between which
//!   stamps it did.
//! - the hardware address that it came from, which is that of the client's interface if nothing but a bridge is in between: no
//!   router, no proxy, and no other network. (Where users say that a network is reached through a router, it is not
//!   asked for.)

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sys::interface;

use super::*;

const IPPROTO_TCP: u8 = 6;
const O_CLOEXEC: i32 = 0o2_000_000;
const TCP: i32 = 6;
const TCP_TIMESTAMP: i32 = 24;
const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;
/// Of `TCP_SAVE_SYN`: from the header of the link on. Programs want it without, so this one tells that it was us.
const FROM_THE_LINK: i32 = 2;
/// How long the way out of a namespace, and its settings, are taken to be as they were, nanoseconds.
const WAY_NS: u64 = 1_000_000_000;
/// Milliseconds by which the kernel's clock may be coarser than ours.
const COARSE_MS: u32 = 2;
/// Bytes of Ethernet's header.
const LINK: usize = 14;
/// Bytes of a first segment, with the longest headers that there are without extensions.
const SEGMENT: usize = LINK + 60 + 60;

/// When the connection of `fd` began, which was not before `since` (nanoseconds), as [`Half::began`] has it; 0: that cannot
/// be told.
pub(super) fn began(fd: i32, since: u64) -> u64 {
    let Ok(now) = call::getsockopt::<u32>(fd, TCP, TCP_TIMESTAMP) else { return 0 };
    let ms = call::now_ns().saturating_sub(since) / 1_000_000;
    let ms = u32::try_from(ms).unwrap_or(u32::MAX).saturating_add(COARSE_MS);
    u64::from(now) << 32 | u64::from(ms)
}

/// The same for a server that may see it at other addresses, who has nothing but the stamp to know it by: 0 as well where there
/// is no secret in it (`tcp_timestamps` is 2), because what began at the same moment has the same stamp then.
pub(super) fn began_in_secret(w: &World, fd: i32, since: u64) -> u64 {
    let began = began(fd, since);
    if is_the_clock((began >> 32) as u32, call::now_ns()) || !are_secret(w) { 0 } else { began }
}

/// Whether a stamp is the kernel's clock, as programs read it, and nothing else.
fn is_the_clock(stamp: u32, now_ns: u64) -> bool {
    /// Milliseconds in which a stamp that was just asked for can be old.
    const LATE_MS: u32 = 1000;
    #[expect(clippy::cast_possible_truncation, reason = "as the kernel has it: it wraps")]
    let now = (now_ns / 1_000_000) as u32;
    now.wrapping_add(COARSE_MS).wrapping_sub(stamp) <= LATE_MS
}

/// Whether the kernel says that it adds secrets to stamps in our namespace; where it cannot be asked, the clock tells, but
/// not one that a time namespace has changed.
fn are_secret(w: &World) -> bool {
    let now = call::now_ns();
    let known = w.secret_stamps.lock().and_then(|known| *known);
    if let Some((at, are)) = known
        && now.wrapping_sub(at) < WAY_NS
    {
        return are;
    }
    let mut text = [0; 8];
    let read = call::open(c"/proc/sys/net/ipv4/tcp_timestamps", O_CLOEXEC, 0).and_then(|fd| {
        let read = call::read(fd, &mut text);
        let _ = call::close(fd);
        read
    });
    let are = read.map_or(true, |_| text[0] == b'1');
    if let Some(mut known) = w.secret_stamps.lock() {
        *known = Some((now, are));
    }
    are
}

/// From which hardware address packets of `fd` leave, as [`Half::hardware`] has it; 0: it cannot be told.
pub(super) fn leaves_by(w: &World, fd: i32, ends: Ends) -> u64 {
    let now = call::now_ns();
    if let Some(way) = w.way_out.lock().and_then(|way| *way)
        && way.from == *ends.local.ip()
        && now.wrapping_sub(way.at) < WAY_NS
    {
        return way.hardware;
    }
    let hardware = interface::hardware_towards(fd, *ends.local.ip(), *ends.remote.ip());
    let hardware = hardware.map_or(0, emit);
    if let Some(mut way) = w.way_out.lock() {
        *way = Some(WayOut { from: *ends.local.ip(), hardware, at: now });
    }
    hardware
}

/// From where packets of connections of ours leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WayOut {
    from: Ipv6Addr,
    hardware: u64,
    at: u64,
}

fn emit(address: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = address;
    u64::from_be_bytes([a, b, c, d, e, f, 0, 1])
}

/// What the first segment of an accepted connection says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    stamp: u32,
    /// The hardware address that it came from, as [`Half::hardware`] has it; 0: from none.
    from: u64,
}

impl Begun {
    /// `segment`: from the header of the link on. `None`: it is not of this connection, or has no time stamp.
    fn parse(segment: &[u8], ends: Ends) -> Option<Self> {
        let (from, packet) = unwrapped(segment);
        Some(Self { stamp: stamp(packet, ends)?, from: from.map_or(0, emit) })
    }

    /// Whether it is of the connection of this client's half.
    pub(super) fn is_of(self, client: &Half) -> bool {
        let is_routed = client.flags.load(Ordering::Relaxed) & flag::ROUTED != 0;
        self.fits(
            client.began.load(Ordering::Relaxed),
            client.hardware.load(Ordering::Relaxed),
            is_routed,
        )
    }

    /// Whether it is of the connection of which a client says [when it began](Half::began) and [from
    /// where](Half::hardware). `is_routed`: it may have come by a router.
    fn fits(self, began: u64, hardware: u64, is_routed: bool) -> bool {
        let is_direct = hardware != 0 && self.from == hardware;
        (is_routed || is_direct) && began != 0 && fits(self.stamp, began)
    }
}

/// Who has sent a frame, and the packet in it. On links without a header of their own there is only the packet.
fn unwrapped(frame: &[u8]) -> (Option<[u8; 6]>, &[u8]) {
    const IPV4: [u8; 2] = [8, 0];
    const IPV6: [u8; 2] = [0x86, 0xdd];
    match (frame.get(6..12), frame.get(12..LINK), frame.get(LINK)) {
        (Some(from), Some(kind), Some(first))
            if kind == IPV4 && first >> 4 == 4 || kind == IPV6 && first >> 4 == 6 =>
        {
            (from.try_into().ok(), &frame[LINK..])
        }
        _ => (None, frame),
    }
}

fn fits(stamp: u32, began: u64) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    let (last, before) = ((began >> 32) as u32, began as u32);
    last.wrapping_add(COARSE_MS).wrapping_sub(stamp) <= before.saturating_add(COARSE_MS)
}

/// The time stamp of a first segment from the peer of `ends` to us; `None`: it is none, or has none.
fn stamp(segment: &[u8], ends: Ends) -> Option<u32> {
    let (from, to, tcp): (IpAddr, IpAddr, _) = match segment.first()? >> 4 {
        4 => {
            let header = usize::from(segment[0] & 15) * 4;
            if *segment.get(9)? != IPPROTO_TCP || header < 20 {
                return None;
            }
            let at = |i| segment.get(i..i + 4)?.first_chunk::<4>();
            (
                Ipv4Addr::from(*at(12)?).into(),
                Ipv4Addr::from(*at(16)?).into(),
                segment.get(header..)?,
            )
        }
        6 if *segment.get(6)? == IPPROTO_TCP => {
            let at = |i| segment.get(i..i + 16)?.first_chunk::<16>();
            (Ipv6Addr::from(*at(8)?).into(), Ipv6Addr::from(*at(24)?).into(), segment.get(40..)?)
        }
        _ => return None,
    };
    let port = |i| Some(u16::from_be_bytes(*tcp.get(i..i + 2)?.first_chunk()?));
    let is = |end: SocketAddrV6, ip: IpAddr, port| {
        end.ip().to_canonical() == ip.to_canonical() && end.port() == port
    };
    if !is(ends.remote, from, port(0)?) || !is(ends.local, to, port(2)?) {
        return None;
    }
    let header = usize::from(tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(20..header)?;
    // RFC 9293 3.2: 0 ends them, 1 is none, all others have a length.
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [8, 10, rest @ ..] => return Some(u32::from_be_bytes(*rest.first_chunk()?)),
            [_, len @ 2..=u8::MAX, ..] if options[0] != 0 => {
                options = options.get(usize::from(*len)..)?
            }
            _ => return None,
        }
    }
}

impl Conn {
    /// What our connection began with; `None`: it is not kept, or without a time stamp. The kernel tells it once.
    pub(super) fn begun(&self, fd: i32, ends: Ends) -> Option<Begun> {
        if self.options.load(Ordering::Relaxed) & options::SYN_KEPT == 0 {
            return None;
        }
        let mut begun = self.begun.lock()?;
        *begun.get_or_insert_with(|| {
            let mut segment = [0; SEGMENT];
            let len = call::getsockopt_bytes(fd, TCP, TCP_SAVED_SYN, &mut segment).ok()?;
            Begun::parse(&segment[..len], ends)
        })
    }

    /// Has a listener keep what its connections begin with, unless the program looks at that itself. Who has it from a
    /// program under Shunt finds it so.
    pub fn keep_syns(&self, fd: i32) {
        let options = self.options.load(Ordering::Relaxed);
        if options & (options::SYN_KEPT | options::SYN_ASKED) != 0 {
            return;
        }
        let is_kept = match call::getsockopt::<i32>(fd, TCP, TCP_SAVE_SYN) {
            Ok(0) => call::setsockopt(fd, TCP, TCP_SAVE_SYN, FROM_THE_LINK).is_ok(),
            kept => kept == Ok(FROM_THE_LINK),
        };
        if is_kept {
            self.options.fetch_or(options::SYN_KEPT, Ordering::Relaxed);
        }
    }

    /// The program says itself whether that is kept.
    pub fn asks_for_syns(&self) {
        self.options.fetch_or(options::SYN_ASKED, Ordering::Relaxed);
        self.options.fetch_and(!options::SYN_KEPT, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;

//! Whether an offer of another network namespace is of the very connection that we have accepted.
//!
//! The kernel lists the sockets of our own namespace only, and addresses mean something else in each: two namespaces may
//! have a connection with the same ends at the same time, and so may another host have one with us. What tells them apart
//! is the time stamp of the first segment (RFC 7323 3). The kernel adds to its clock a secret number of the connection's
//! ends, so that on another host it is another one, and within this host the same ends in the same milliseconds are needed
//! to be taken for each other. The client says between which stamps it began; the server has its listener keep the
//! first segment of each connection (`TCP_SAVE_SYN`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::*;

const IPPROTO_TCP: u8 = 6;
const TCP: i32 = 6;
const TCP_TIMESTAMP: i32 = 24;
const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;
/// Milliseconds by which the kernel's clock may be coarser than ours.
const COARSE_MS: u32 = 2;
/// Bytes of a first segment, with the longest headers that there are without extensions.
const SEGMENT: usize = 60 + 60;

/// When the connection of `fd` began, which was not before `since` (nanoseconds), as [`Half::began`] has it; 0: that cannot
/// be told.
pub(super) fn began(fd: i32, since: u64) -> u64 {
    let Ok(now) = call::getsockopt::<u32>(fd, TCP, TCP_TIMESTAMP) else { return 0 };
    let ms = call::now_ns().saturating_sub(since) / 1_000_000;
    let ms = u32::try_from(ms).unwrap_or(u32::MAX).saturating_add(COARSE_MS);
    u64::from(now) << 32 | u64::from(ms)
}

/// Whether the connection that was accepted as `fd` began as a client says. The kernel tells it once.
pub(super) fn is_of(fd: i32, ends: Ends, began: u64) -> bool {
    let mut segment = [0; SEGMENT];
    match call::getsockopt_bytes(fd, TCP, TCP_SAVED_SYN, &mut segment) {
        Ok(len) => began != 0 && stamp(&segment[..len], ends).is_some_and(|at| fits(at, began)),
        Err(_) => false,
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
    /// Has a listener keep what its connections begin with, unless the program looks at that itself, or somebody whose
    /// listener it was.
    pub fn keep_syns(&self, fd: i32) {
        let options = self.options.load(Ordering::Relaxed);
        if options & (options::SYN_KEPT | options::SYN_ASKED) == 0
            && call::getsockopt::<i32>(fd, TCP, TCP_SAVE_SYN) == Ok(0)
            && call::setsockopt(fd, TCP, TCP_SAVE_SYN, 1i32).is_ok()
        {
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

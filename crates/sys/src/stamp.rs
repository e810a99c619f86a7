//! When the kernel took something in that has come by a socket: stamps (`SO_TIMESTAMPNS`), of what a datagram brought
//! or the bytes of a stream that were read last, and other control messages that come with them.
//!
//! Stamps are times of day. Where only differences count, [`since_boot`] makes them comparable with others.

use std::os::fd::RawFd;

use crate::call;

const SO_TIMESTAMPNS: i32 = 35;
pub(crate) const UDP_GRO: i32 = 104;
/// A control message before its data: its length, level and type.
const HEAD: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(HEAD == 16);

/// Has the kernel stamp what comes by this socket from now on, or no more. What lies there already has a stamp if
/// some socket had asked for stamps when it came.
///
/// # Errors
///
/// The errno.
pub fn ask(fd: RawFd, on: bool) -> call::Result<()> {
    call::setsockopt(fd, libc::SOL_SOCKET, SO_TIMESTAMPNS, i32::from(on))
}

/// The time since boot ([`call::now_ns`]) of a stamp, nanoseconds; as exact as two clocks are read at once.
#[must_use]
pub fn since_boot(stamp: u64) -> u64 {
    // In this order: whoever is interrupted between the two believes that it came earlier, not later.
    let boot = call::now_ns();
    let day = call::wall_ns();
    boot.saturating_sub(day.saturating_sub(stamp))
}

/// Room for the control messages that come with a message: how long its segments are, a stamp, and the traffic class
/// of its packets.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control([u8; CONTROL_BYTES]);

/// `CMSG_SPACE` of a number of 4 bytes, of a `timespec`, and of another number.
pub(crate) const CONTROL_BYTES: usize = (HEAD + 8) + (HEAD + 16) + (HEAD + 8);

impl Control {
    pub(crate) const EMPTY: Self = Self([0; CONTROL_BYTES]);

    /// Each of the first `len` bytes' messages: level, type, data.
    fn each(&self, len: usize) -> impl Iterator<Item = (i32, i32, &[u8])> {
        let mut rest = self.0.get(..len).unwrap_or(&self.0);
        std::iter::from_fn(move || {
            let head = rest.first_chunk::<HEAD>()?;
            let [a, b, c, d, e, f, g, h, level @ .., i, j, k, l] = *head;
            let bytes = usize::from_ne_bytes([a, b, c, d, e, f, g, h]);
            let data = rest.get(HEAD..bytes)?;
            rest = rest.get(bytes.next_multiple_of(8)..).unwrap_or_default();
            Some((i32::from_ne_bytes(level), i32::from_ne_bytes([i, j, k, l]), data))
        })
    }

    fn find(&self, len: usize, level: i32, kind: i32) -> Option<&[u8]> {
        self.each(len).find(|(l, k, _)| (*l, *k) == (level, kind)).map(|(_, _, data)| data)
    }

    /// Bytes of each segment but the last. `None`: the message is one datagram.
    pub(crate) fn segment_bytes(&self, len: usize) -> Option<usize> {
        let bytes = self.find(len, libc::SOL_UDP, UDP_GRO)?.first_chunk()?;
        usize::try_from(i32::from_ne_bytes(*bytes)).ok().filter(|n| *n > 0)
    }

    /// DSCP and ECN, if the socket was asked to tell.
    pub(crate) fn traffic_class(&self, len: usize) -> Option<u8> {
        if let Some(class) = self.find(len, libc::IPPROTO_IP, libc::IP_TOS) {
            return class.first().copied();
        }
        let class = self.find(len, libc::IPPROTO_IPV6, libc::IPV6_TCLASS)?.first_chunk()?;
        u8::try_from(i32::from_ne_bytes(*class)).ok()
    }

    /// When it came, nanoseconds since 1970.
    pub(crate) fn stamp(&self, len: usize) -> Option<u64> {
        let (seconds, rest) =
            self.find(len, libc::SOL_SOCKET, SO_TIMESTAMPNS)?.split_first_chunk()?;
        let nanos = u64::from_ne_bytes(*rest.first_chunk()?);
        u64::from_ne_bytes(*seconds).checked_mul(1_000_000_000)?.checked_add(nanos)
    }
}

/// [`call::recv_now`], and the stamp of the bytes that came last among these, if they have one.
///
/// # Errors
///
/// The errno.
pub fn recv_now(fd: RawFd, bytes: &mut [u8]) -> call::Result<Option<(usize, Option<u64>)>> {
    let mut control = Control::EMPTY;
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid message with nothing in it.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    let head = &mut message.msg_hdr;
    (head.msg_iov, head.msg_iovlen) = (&raw mut iov, 1);
    (head.msg_control, head.msg_controllen) = ((&raw mut control).cast(), CONTROL_BYTES);
    let mut messages = [message];
    // SAFETY: the message leads to `bytes` and `control`, which are borrowed and ours, with their lengths.
    let done = unsafe { call::recvmmsg(fd, &mut messages, libc::MSG_DONTWAIT) };
    let [message] = messages;
    match done {
        Ok(_) => {
            let stamp = control.stamp(message.msg_hdr.msg_controllen);
            Ok(Some((message.msg_len as usize, stamp)))
        }
        Err(errno) if call::is_later(errno) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn bytes_of_a_stream_say_when_they_came() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let (fd, mut bytes) = (other.as_raw_fd(), [0; 64]);
        ask(fd, true).unwrap();
        assert_eq!(recv_now(fd, &mut bytes), Ok(None));
        // The kernel begins with it when it comes to that.
        let (before, stamp, after) = loop {
            let before = call::now_ns();
            one.write_all(b"word").unwrap();
            let (n, stamp) = loop {
                if let Some(came) = recv_now(fd, &mut bytes).unwrap() {
                    break came;
                }
            };
            assert_eq!(&bytes[..n], b"word");
            if let Some(stamp) = stamp {
                break (before, stamp, call::now_ns());
            }
        };
        // The two clocks are not read at one moment, and the one of the day may be put right meanwhile.
        let (came, slack) = (since_boot(stamp), 50_000_000);
        assert!((before - slack..=after + slack).contains(&came), "{before} {came} {after}");
        ask(fd, false).unwrap();
        one.write_all(b"more").unwrap();
        let stamp = loop {
            if let Some((_, stamp)) = recv_now(fd, &mut bytes).unwrap() {
                break stamp;
            }
        };
        assert_eq!(stamp, None);
        drop(one);
        while recv_now(fd, &mut bytes).unwrap().is_none() {}
        assert_eq!(recv_now(fd, &mut bytes), Ok(Some((0, None))), "the end");
        assert!(recv_now(-1, &mut bytes).is_err());
    }

    #[test]
    fn control_messages_are_found_in_any_order_and_cut_ones_are_none() {
        let mut control = Control::EMPTY;
        let put = |control: &mut Control, at: usize, bytes: usize, level: i32, kind: i32| {
            control.0[at..at + 8].copy_from_slice(&bytes.to_ne_bytes());
            control.0[at + 8..at + 12].copy_from_slice(&level.to_ne_bytes());
            control.0[at + 12..at + 16].copy_from_slice(&kind.to_ne_bytes());
        };
        put(&mut control, 0, HEAD + 4, libc::SOL_UDP, UDP_GRO);
        control.0[16..20].copy_from_slice(&1040i32.to_ne_bytes());
        put(&mut control, 24, HEAD + 16, libc::SOL_SOCKET, SO_TIMESTAMPNS);
        control.0[40..48].copy_from_slice(&3u64.to_ne_bytes());
        control.0[48..56].copy_from_slice(&7u64.to_ne_bytes());
        assert_eq!(control.segment_bytes(CONTROL_BYTES), Some(1040));
        assert_eq!(control.stamp(CONTROL_BYTES), Some(3_000_000_007));
        assert_eq!((control.segment_bytes(24), control.stamp(24)), (Some(1040), None));
        assert_eq!((control.segment_bytes(19), control.stamp(55)), (None, None), "cut");
        put(&mut control, 0, usize::MAX, libc::SOL_UDP, UDP_GRO);
        assert_eq!(control.stamp(CONTROL_BYTES), None);
        put(&mut control, 0, 3, libc::SOL_UDP, UDP_GRO);
        assert_eq!(control.segment_bytes(CONTROL_BYTES), None);
    }
}

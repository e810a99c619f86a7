//! CLC messages on a guest's TCP connection, without waiting and without a byte too many.
//!
//! The descriptor may share its open file with the guest's, so nothing about the file changes: each call
//! says for itself that it must not wait.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use smc::clc::{self, Frame, MESSAGE_MAX};
use sys::{call, stamp};

/// The TCP connection ended: the errno, or 0 for an orderly end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended(pub(super) i32);

/// The first bytes of all messages about SMC-R: the letters SMCR in EBCDIC (RFC 7609 A.1).
pub(super) const EYE_CATCHER: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];

/// A TCP connection that carries CLC messages.
#[derive(Debug)]
pub(super) struct Wire {
    tcp: OwnedFd,
    came: Vec<u8>,
    /// Bytes that found no room yet.
    going: Vec<u8>,
    /// Whether the kernel notes when bytes come, and when those came that were read last, nanoseconds since boot.
    is_stamped: bool,
    came_at: Option<u64>,
}

impl Wire {
    pub(super) fn new(tcp: OwnedFd) -> Self {
        let came = Vec::with_capacity(256);
        Self { tcp, came, going: Vec::new(), is_stamped: false, came_at: None }
    }

    /// Has the kernel note when bytes come.
    pub(super) fn stamp(&mut self) {
        self.is_stamped = stamp::ask(self.tcp.as_raw_fd(), true).is_ok();
    }

    /// When the last bytes came, since boot; `None`: that was not noted.
    pub(super) fn came_at(&self) -> Option<u64> {
        self.came_at
    }

    /// No more messages: the socket is as it was.
    fn settle(&mut self) {
        if std::mem::take(&mut self.is_stamped) {
            let _ = stamp::ask(self.tcp.as_raw_fd(), false);
        }
    }

    /// The connection, which no more message will be on.
    pub(super) fn into_tcp(mut self) -> OwnedFd {
        self.settle();
        self.tcp
    }

    pub(super) fn tcp(&self) -> &OwnedFd {
        &self.tcp
    }

    /// Whether bytes wait for room.
    pub(super) fn is_full(&self) -> bool {
        !self.going.is_empty()
    }

    /// The bytes of the next message, if all of it has come; or what has come that is none.
    pub(super) fn receive(&mut self) -> Result<Option<Vec<u8>>, Ended> {
        let mut room = [0; MESSAGE_MAX];
        loop {
            let Some(Frame::Needs(n)) = self.frame() else {
                return Ok(Some(std::mem::take(&mut self.came)));
            };
            let room = &mut room[..n.min(MESSAGE_MAX)];
            match self.recv(room)? {
                Some(0) => return Err(Ended(0)),
                Some(n) => self.came.extend_from_slice(&room[..n]),
                None => return Ok(None),
            }
        }
    }

    fn recv(&mut self, room: &mut [u8]) -> Result<Option<usize>, Ended> {
        let fd = self.tcp.as_raw_fd();
        if !self.is_stamped {
            return call::recv_now(fd, room).map_err(Ended);
        }
        let came = stamp::recv_now(fd, room).map_err(Ended)?;
        Ok(came.map(|(n, stamp)| {
            self.came_at = stamp.map(stamp::since_boot);
            n
        }))
    }

    /// What has come of a message; `None`: its first bytes are those of none.
    fn frame(&self) -> Option<Frame> {
        let begin = &self.came[..self.came.len().min(EYE_CATCHER.len())];
        clc::frame(&self.came).ok().filter(|_| EYE_CATCHER.starts_with(begin))
    }

    /// Bytes that [`Self::receive`] has given out and that are no message: they are the program's.
    pub(super) fn give_back(&mut self, bytes: Vec<u8>) {
        self.came = bytes;
    }

    /// Bytes that have come and that are the program's.
    pub(super) fn take_came(&mut self) -> Vec<u8> {
        self.settle();
        std::mem::take(&mut self.came)
    }

    /// Sends a message, as much of it as there is room for; [`Self::flush`] sends the rest.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), Ended> {
        self.going.extend_from_slice(message);
        self.flush()
    }

    /// Sends what found no room.
    pub(super) fn flush(&mut self) -> Result<(), Ended> {
        while !self.going.is_empty() {
            match call::send_now(self.tcp.as_raw_fd(), &self.going).map_err(Ended)? {
                Some(n) => drop(self.going.drain(..n)),
                None => break,
            }
        }
        Ok(())
    }
}

impl AsRawFd for Wire {
    fn as_raw_fd(&self) -> RawFd {
        self.tcp.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use smc::SystemId;
    use smc::clc::{Decline, Diagnosis, Message};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        one.set_nodelay(true).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn decline() -> Vec<u8> {
        Message::Decline(Decline::new(2, SystemId([1; 8]), Diagnosis::NoDevice)).emit()
    }

    /// Asks until something is there.
    fn next(wire: &mut Wire) -> Result<Vec<u8>, Ended> {
        loop {
            if let Some(bytes) = wire.receive()? {
                return Ok(bytes);
            }
        }
    }

    #[test]
    fn a_message_in_pieces_is_whole_and_what_follows_stays() {
        let (mut peer, tcp) = pair();
        let mut wire = Wire::new(tcp.into());
        assert_eq!(wire.receive(), Ok(None));
        let message = decline();
        for byte in &message {
            peer.write_all(&[*byte]).unwrap();
            let _ = wire.receive().map(|got| assert!(got.is_none_or(|m| m == message)));
        }
        peer.write_all(b"of the application").unwrap();
        let mut rest = TcpStream::from(wire.into_tcp());
        rest.set_nonblocking(false).unwrap();
        drop(peer);
        let mut text = Vec::new();
        rest.read_to_end(&mut text).unwrap();
        assert!(text.ends_with(b"of the application"));
    }

    #[test]
    fn when_a_message_came_is_noted_if_somebody_wants_to_know() {
        let (mut peer, tcp) = pair();
        let mut wire = Wire::new(tcp.into());
        peer.write_all(&decline()).unwrap();
        next(&mut wire).unwrap();
        assert_eq!(wire.came_at(), None);
        wire.stamp();
        // The kernel begins with it when it comes to that.
        let (before, came) = loop {
            let before = call::now_ns();
            peer.write_all(&decline()).unwrap();
            next(&mut wire).unwrap();
            if let Some(came) = wire.came_at() {
                break (before, came);
            }
        };
        // As exact as two clocks that are not read at one moment.
        assert!(came + 50_000_000 > before && came < call::now_ns() + 50_000_000);
        // The socket is the program's again, which has asked for no stamps.
        let tcp = wire.into_tcp();
        let asked: i32 = call::getsockopt(tcp.as_raw_fd(), 1, 35).unwrap();
        assert_eq!(asked, 0);
    }

    #[test]
    fn two_messages_are_two_and_then_the_end() {
        let (mut peer, tcp) = pair();
        let mut wire = Wire::new(tcp.into());
        peer.write_all(&[decline(), decline()].concat()).unwrap();
        assert_eq!(next(&mut wire), Ok(decline()));
        assert_eq!(next(&mut wire), Ok(decline()));
        drop(peer);
        assert_eq!(next(&mut wire), Err(Ended(0)));
    }

    #[test]
    fn what_is_no_message_is_handed_over_as_it_is() {
        let (mut peer, tcp) = pair();
        let mut wire = Wire::new(tcp.into());
        peer.write_all(b"GET / HTTP/1.1").unwrap();
        assert_eq!(next(&mut wire), Ok(b"GET / HT".to_vec()));
    }

    #[test]
    fn what_finds_no_room_waits() {
        let (mut peer, tcp) = pair();
        let mut wire = Wire::new(tcp.into());
        let many: Vec<u8> = (0..16 << 20).map(|i: u32| i.to_le_bytes()[1]).collect();
        wire.send(&many).unwrap();
        assert!(wire.is_full());
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; 16 << 20];
            peer.read_exact(&mut got).map(|()| got)
        });
        while wire.is_full() {
            wire.flush().unwrap();
            std::thread::yield_now();
        }
        assert!(reader.join().unwrap().unwrap() == many);
    }
}

//! A connection whose peer does not want SMC: the engine carries its bytes between the guest's rings and
//! the TCP connection that the guest has given away.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};

use sys::call;
use sys::event::Interest;

use super::exchange::reset_on_close;
use super::guest::{Broken, Program, Relay};
use super::wire::Wire;

/// Bytes that are moved at once.
const CHUNK: usize = 64 << 10;
/// Pieces that one connection moves each way before others have their turn.
const PIECES: usize = 8;
const SHUT_WR: i32 = 1;
const SOL_SOCKET: i32 = 1;
const SO_OOBINLINE: i32 = 10;
const MSG_OOB: i32 = 1;
const MSG_NOSIGNAL: i32 = 0x4000;
/// Whether the next byte to read is the urgent one.
const SIOCATMARK: u64 = 0x8905;
const MSG_PEEK: i32 = 2;
const MSG_DONTWAIT: i32 = 0x40;
const EAGAIN: i32 = 11;

thread_local! {
    /// What is moved lies here: all connections of a vector are looked at in turn, and most have nothing.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Both sides have said their end.
    Closed,
    /// One of them has broken off.
    Reset,
}

impl From<Broken> for Over {
    fn from(_: Broken) -> Self {
        Self::Reset
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Plain {
    wire: Wire,
    /// Bytes of the peer's that were read for a message and are none: the guest gets them first.
    first: Vec<u8>,
    /// Bytes of the guest's that TCP has taken.
    sent: u64,
    /// Bytes that the guest may read.
    published: u64,
    /// The peer sends no more.
    peer_ended: bool,
    /// The guest sends no more, and TCP knows.
    guest_ended: bool,
    /// Why nothing moved: TCP had no room, or nothing to read.
    wants_write: bool,
    wants_read: bool,
    interest: Interest,
}

/// What a step has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Did {
    /// Bytes went to TCP or came from there.
    pub(super) moved: bool,
    /// The guest has read less than came.
    pub(super) waits_for_guest: bool,
    /// What to wait for has changed to this.
    pub(super) interest: Option<Interest>,
}

impl Plain {
    pub(super) fn new(mut wire: Wire) -> Self {
        let interest = Interest::default();
        // The guest decides where it wants its urgent byte; on its way there it must not leave the stream. Who has read
        // to it already has got it, or nobody does.
        let _ = call::setsockopt(wire.as_raw_fd(), SOL_SOCKET, SO_OOBINLINE, 1i32);
        Self {
            first: wire.take_came(),
            wire,
            sent: 0,
            published: 0,
            peer_ended: false,
            guest_ended: false,
            wants_write: false,
            wants_read: true,
            interest,
        }
    }

    pub(super) fn tcp(&self) -> &OwnedFd {
        self.wire.tcp()
    }

    /// The kernel says that TCP may be read or written again.
    pub(super) fn ready(&mut self, read: bool, write: bool) {
        // Asked once more: what is not there says so.
        self.wants_read &= !read;
        self.wants_write &= !write;
    }

    /// Does all that can be done now.
    pub(super) fn step(&mut self, relay: &mut dyn Relay) -> Result<Did, Over> {
        let mut buffer = BUFFER.take();
        buffer.resize(CHUNK, 0);
        let out = self.send(relay, &mut buffer);
        let moved = out.and_then(|out| Ok((out, self.receive(relay, &mut buffer)?)));
        BUFFER.set(buffer);
        let (out, (came, waits_for_guest)) = moved?;
        self.hear_program(relay)?;
        let (read, write) = (self.wants_read && !self.peer_ended, self.wants_write);
        let interest = Interest { read, write, ..Interest::NOTHING };
        let changed = (interest != self.interest).then_some(interest);
        self.interest = interest;
        Ok(Did { moved: out || came, waits_for_guest, interest: changed })
    }

    fn send(&mut self, relay: &mut dyn Relay, buffer: &mut [u8]) -> Result<bool, Over> {
        let mut moved = false;
        // What was said last of the handshake goes first.
        self.wire.flush().map_err(|_| Over::Reset)?;
        if self.wire.is_full() {
            self.wants_write = true;
        }
        for _ in 0..PIECES {
            if self.wants_write {
                break;
            }
            let there = relay.written()?.checked_sub(self.sent).ok_or(Over::Reset)?;
            let n = usize::try_from(there).unwrap_or(CHUNK).min(buffer.len());
            if n == 0 {
                break;
            }
            let (n, urgent) = up_to_urgent(n, self.sent, relay.urgent());
            relay.copy_out(self.sent, &mut buffer[..n])?;
            let sent = if urgent {
                send_urgent(self.wire.as_raw_fd(), &buffer[..n])
            } else {
                call::send_now(self.wire.as_raw_fd(), &buffer[..n])
            };
            match sent {
                Ok(Some(n)) => {
                    self.sent += n as u64;
                    relay.release(self.sent);
                    moved = true;
                }
                Ok(None) => self.wants_write = true,
                Err(_) => return Err(Over::Reset),
            }
        }
        Ok(moved)
    }

    fn receive(&mut self, relay: &mut dyn Relay, buffer: &mut [u8]) -> Result<(bool, bool), Over> {
        let mut moved = false;
        for _ in 0..PIECES {
            if self.first.is_empty() && (self.wants_read || self.peer_ended) {
                break;
            }
            let size = relay.rmb_bytes() as u64;
            let unread = self.published.checked_sub(relay.consumed()?).ok_or(Over::Reset)?;
            let at = self.published % size;
            let room = size.saturating_sub(unread).min(size - at);
            let n = usize::try_from(room).unwrap_or(CHUNK).min(buffer.len());
            if n == 0 {
                return Ok((moved, true));
            }
            if !self.first.is_empty() {
                let n = n.min(self.first.len());
                self.deliver(relay, at, &self.first[..n])?;
                self.published += n as u64;
                relay.publish(self.published);
                self.first.drain(..n);
                moved = true;
                continue;
            }
            // A read ends before the urgent byte, so the next one begins with it. It is asked about once something is there:
            // one that came behind the question would be taken for an ordinary one.
            let wire = self.wire.as_raw_fd();
            if call::recv(wire, &mut buffer[..1], MSG_DONTWAIT | MSG_PEEK) == Err(EAGAIN) {
                self.wants_read = true;
                return Ok((moved, false));
            }
            let at_urgent = call::ioctl_int(wire, SIOCATMARK) == Ok(1);
            let n = if at_urgent { 1 } else { n };
            match call::recv_now(self.wire.as_raw_fd(), &mut buffer[..n]) {
                Ok(Some(0)) => {
                    self.peer_ended = true;
                    relay.shut();
                }
                Ok(Some(n)) => {
                    self.deliver(relay, at, &buffer[..n])?;
                    self.published += n as u64;
                    if at_urgent {
                        relay.publish_urgent(self.published);
                    } else {
                        relay.publish(self.published);
                    }
                    moved = true;
                }
                Ok(None) => self.wants_read = true,
                Err(_) => return Err(Over::Reset),
            }
        }
        Ok((moved, false))
    }

    fn deliver(&self, relay: &mut dyn Relay, at: u64, bytes: &[u8]) -> Result<(), Over> {
        let at = usize::try_from(at).map_err(|_| Over::Reset)?;
        if relay.write_at(at, bytes) { Ok(()) } else { Err(Over::Reset) }
    }

    fn hear_program(&mut self, relay: &mut dyn Relay) -> Result<(), Over> {
        let program = relay.program();
        if program == Program::Open {
            return Ok(());
        }
        if program == Program::Reset {
            // The peer is to see one, too: what close() does with a linger time of nothing.
            reset_on_close(&self.wire);
            return Err(Over::Reset);
        }
        if relay.written()? > self.sent {
            return Ok(());
        }
        if !self.guest_ended {
            self.guest_ended = true;
            let _ = call::shutdown(self.wire.as_raw_fd(), SHUT_WR);
        }
        // What a program that has closed would not read, nobody does: as the kernel's own, TCP answers it
        // with a reset once we are gone.
        if program == Program::Closed { Err(Over::Closed) } else { Ok(()) }
    }
}

/// How many of `n` bytes from stream offset `at` on go by one call, and whether that is the urgent one: it is the last
/// before `urgent`, and goes alone, since TCP would mark another where it takes a part.
fn up_to_urgent(n: usize, at: u64, urgent: Option<u64>) -> (usize, bool) {
    match urgent.and_then(|end| end.checked_sub(at)) {
        None | Some(0) => (n, false),
        Some(1) => (1, true),
        Some(left) => (n.min(usize::try_from(left - 1).unwrap_or(n)), false),
    }
}

/// As [`call::send_now`], of a byte that is urgent.
fn send_urgent(fd: i32, bytes: &[u8]) -> Result<Option<usize>, i32> {
    match call::send(fd, bytes, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL) {
        Ok(n) => Ok(Some(n)),
        Err(errno) if call::is_later(errno) => Ok(None),
        Err(errno) => Err(errno),
    }
}

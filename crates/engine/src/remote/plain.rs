//! A connection whose peer does not want SMC: the engine carries its bytes between the guest's rings and
//! the TCP connection that the guest has given away.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};

use sys::call;
use sys::event::{self, Interest};

use super::exchange::reset_on_close;
use super::guest::{Broken, Program, Relay};
use super::wire::Wire;

/// Bytes that are moved at once.
const CHUNK: usize = 64 << 10;
/// Pieces that one connection moves each way before others have their turn.
const PIECES: usize = 8;
const SHUT_WR: i32 = 1;
const SOL_SOCKET: i32 = 1;
const SO_ERROR: i32 = 4;
const SO_OOBINLINE: i32 = 10;
const MSG_OOB: i32 = 1;
const MSG_NOSIGNAL: i32 = 0x4000;
/// Whether the next byte to read is the urgent one.
const SIOCATMARK: u64 = 0x8905;
const MSG_PEEK: i32 = 2;
const MSG_DONTWAIT: i32 = 0x40;

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
    /// TCP is over in both directions or was reset, and which of them is still to be asked.
    is_broken: bool,
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
        // Set against our own death, with which the stream does not end: what the program has said last may be ours alone. Who
        // comes to an end with it takes this back.
        reset_on_close(&wire);
        Self {
            first: wire.take_came(),
            wire,
            sent: 0,
            published: 0,
            peer_ended: false,
            guest_ended: false,
            wants_write: false,
            wants_read: true,
            is_broken: false,
            interest,
        }
    }

    pub(super) fn tcp(&self) -> &OwnedFd {
        self.wire.tcp()
    }

    /// The kernel says that TCP may be read or written again, or is over.
    pub(super) fn ready(&mut self, event: &event::Event) {
        // Asked once more: what is not there says so.
        self.wants_read &= !(event.read || event.broken);
        self.wants_write &= !(event.write || event.broken);
        self.is_broken |= event.broken;
        if event.broken {
            // What is not about the connection would be told for ever; what is stays to be asked.
            call::forget_errors(self.wire.as_raw_fd());
        }
    }

    /// Does all that can be done now.
    pub(super) fn step(&mut self, relay: &mut dyn Relay) -> Result<Did, Over> {
        let mut buffer = BUFFER.take();
        buffer.resize(CHUNK, 0);
        let out = self.send(relay, &mut buffer);
        let moved = out.and_then(|out| Ok((out, self.receive(relay, &mut buffer)?)));
        BUFFER.set(buffer);
        let (out, (came, waits_for_guest)) = moved?;
        self.hear_reset()?;
        self.hear_program(relay)?;
        let (read, write) = (self.wants_read && !self.peer_ended, self.wants_write);
        // That TCP is over is told whatever is asked for. Where there is nothing to do about it before the guest has done
        // something, it must not be told for as long as it lasts.
        let once = !read && !write;
        let interest = Interest { read, write, once, ..Interest::NOTHING };
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
            match call::recv(wire, &mut buffer[..1], MSG_DONTWAIT | MSG_PEEK) {
                Ok(_) => {}
                Err(errno) if call::is_later(errno) => {
                    self.wants_read = true;
                    return Ok((moved, false));
                }
                // Told once: who asks again is told that the peer has ended.
                Err(_) => return Err(Over::Reset),
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

    /// A reset that comes behind the peer's end no reading finds: a program that only waits would never hear of it.
    fn hear_reset(&mut self) -> Result<(), Over> {
        if !self.peer_ended || !std::mem::take(&mut self.is_broken) {
            return Ok(());
        }
        match call::getsockopt::<i32>(self.wire.as_raw_fd(), SOL_SOCKET, SO_ERROR) {
            // Both sides have ended; the program may still have its descriptor.
            Ok(0) => Ok(()),
            _ => Err(Over::Reset),
        }
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use sys::event::{Events, Poller};

    use super::super::fake::{FakeRelay, Guest, guest};
    use super::super::running::Running;
    use super::super::tests::ask_for_word_of_sent;
    use super::*;

    const RMB: usize = 16 << 10;

    /// A connection, and what its vector waits by.
    struct Carried {
        running: Running,
        relay: FakeRelay,
        poller: Poller,
        events: Events,
    }

    impl Carried {
        /// Its guest and its peer, too.
        fn new() -> (Self, Guest, TcpStream) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (relay, guest) = guest(RMB);
            let running = Running::plain(Wire::new(listener.accept().unwrap().0.into()));
            let (poller, events) = (Poller::new().unwrap(), Events::new(4));
            poller.add(running.tcp(), running.interest(), 0).unwrap();
            (Self { running, relay, poller, events }, guest, peer)
        }

        /// A turn of its vector: does what can be done, and looks what the kernel tells. Whether there was anything.
        fn turn(&mut self) -> Result<bool, Over> {
            let Running::Plain(plain) = &mut self.running else { panic!() };
            let did = plain.step(&mut self.relay)?;
            if let Some(interest) = did.interest {
                self.poller.change(self.running.tcp(), interest, 0).unwrap();
            }
            self.poller.wait(&mut self.events, Some(0));
            self.events.iter().for_each(|event| self.running.on_tcp(&event, 0));
            Ok(did.moved || !self.events.is_empty())
        }

        #[track_caller]
        fn turn_until(&mut self, done: impl Fn() -> bool) {
            let began = Instant::now();
            while !done() {
                self.turn().unwrap();
                assert!(began.elapsed() < Duration::from_secs(60));
            }
        }

        /// Waits until the kernel knows that TCP is over in both directions, or was reset.
        fn wait_until_broken(&self) {
            let (poller, mut events) = (Poller::new().unwrap(), Events::new(1));
            poller.add(self.running.tcp(), Interest::NOTHING, 0).unwrap();
            poller.wait(&mut events, Some(60_000_000_000));
            assert_eq!(events.iter().map(|e| e.broken).collect::<Vec<_>>(), [true]);
        }

        /// The vector comes to rest: what has happened is told some times at most.
        #[track_caller]
        fn comes_to_rest(&mut self) {
            let turns = (0..100).take_while(|_| self.turn().unwrap()).count();
            assert!(turns < 10, "{turns} turns, and each had something to do");
        }
    }

    #[test]
    fn a_reset_is_not_taken_for_the_peers_end() {
        let (mut carried, guest, mut peer) = Carried::new();
        peer.write_all(b"part of it").unwrap();
        carried.turn_until(|| guest.unread() == 10);
        reset_on_close(&peer);
        drop(peer);
        carried.wait_until_broken();
        let ended = (0..10).find_map(|_| carried.turn().err());
        assert_eq!((ended, guest.peer_shut()), (Some(Over::Reset), false));
    }

    #[test]
    fn when_both_sides_have_ended_nothing_is_waited_for_but_the_program() {
        for program_first in [true, false] {
            let (mut carried, guest, peer) = Carried::new();
            if program_first {
                guest.ends(Program::Shut);
                carried.comes_to_rest();
            }
            peer.shutdown(Shutdown::Write).unwrap();
            carried.turn_until(|| guest.peer_shut());
            guest.ends(Program::Shut);
            carried.turn().unwrap();
            carried.wait_until_broken();
            carried.comes_to_rest();
            guest.ends(Program::Closed);
            assert_eq!(carried.turn(), Err(Over::Closed));
        }
    }

    #[test]
    fn a_reset_behind_what_the_program_does_not_read_is_waited_for_once() {
        let (mut carried, guest, mut peer) = Carried::new();
        peer.write_all(&[7; 2 * RMB]).unwrap();
        carried.turn_until(|| guest.unread() == RMB as u64);
        reset_on_close(&peer);
        drop(peer);
        carried.wait_until_broken();
        carried.comes_to_rest();
        // It has not been missed.
        let ended = (0..100).find_map(|_| {
            guest.receive(RMB);
            carried.turn().err()
        });
        assert_eq!(ended, Some(Over::Reset));
    }

    #[test]
    fn a_program_that_only_waits_hears_of_a_reset_behind_the_end() {
        let (mut carried, guest, peer) = Carried::new();
        drop(peer);
        carried.turn_until(|| guest.peer_shut());
        carried.comes_to_rest();
        // Nobody is there to read it.
        guest.send(b"hello?");
        carried.turn().unwrap();
        carried.wait_until_broken();
        let ended = (0..10).find_map(|_| carried.turn().err());
        assert_eq!(ended, Some(Over::Reset));
    }

    /// Whoever has handed a connection over may have asked for it, and still may.
    #[test]
    fn word_of_what_was_sent_that_nobody_reads_is_not_waited_for() {
        for peer_ended in [false, true] {
            let (mut carried, guest, peer) = Carried::new();
            ask_for_word_of_sent(carried.running.tcp());
            call::send(carried.running.tcp().as_raw_fd(), b"hello", 0).unwrap();
            carried.wait_until_broken();
            carried.comes_to_rest();
            if peer_ended {
                peer.shutdown(Shutdown::Write).unwrap();
                carried.turn_until(|| guest.peer_shut());
            }
            // The peer reads nothing, and TCP has no room.
            guest.send(&[7; 16 << 20]);
            let turns = (0..1000).take_while(|_| carried.turn().unwrap()).count();
            assert!(turns < 1000);
            assert!(guest.unreleased() > 0);
        }
    }
}

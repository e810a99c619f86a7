//! Connections to other hosts: how a guest hands one to the engine, and what the engine then holds.
//!
//! The kernel's TCP connection to the other host goes to the engine, which speaks SMC on it. In its
//! place the guest gets a **stand-in**: one end of a TCP connection on the loopback interface, whose
//! other end is the engine's, and which is attached from its first byte, so that its payload goes
//! through the rings of the two. To the guest's library the engine is a peer like any other, and all
//! that a program may do to a connection (fork, pass it on, go back to TCP, die) is what it is between
//! two programs.
//!
//! ```text
//! guest                                     engine
//! half (OFFERED) --- Hello, TCP socket ---> half, ring (the RMB), both ends linked
//! stand-in in place <--- Welcome, stand-in
//! ```
//!
//! The guest's ring is the send buffer, the engine's ring is the RMB that the other host writes into.

use std::collections::VecDeque;

use sys::abi::{BLOCK_BYTES, Half, Loc, half_flags as flag};
use sys::passing;
use sys::sync::{AtomicU32, Ordering, full_fence};
use sys::wait;
use sys::{call, ring};

use crate::conn::{Conn, Phase, kernel, note_cpu};
use crate::world::World;
use crate::{Reason, room};

mod door;
mod spill;
mod stand_in;

pub use door::{Door, Said, SideDoor, Visitor};
pub use stand_in::StandIn;

use spill::Spill;

/// First word of each message.
const MAGIC: u32 = u32::from_le_bytes(*b"SHNT");
/// Changes with the messages.
const VERSION: u32 = 2;
/// Bytes of a message.
const BYTES: usize = 24;

const EAGAIN: i32 = 11;
const EINTR: i32 = 4;
const EMFILE: i32 = 24;
const EPROTO: i32 = 71;
const SOL_SOCKET: i32 = 1;
const SO_LINGER: i32 = 13;
const SO_RCVTIMEO: i32 = 20;
const SHUT_RDWR: i32 = 2;
const MSG_OOB: i32 = 1;
const SHUT_WR: i32 = 1;
const MSG_PEEK: i32 = 2;
const MSG_DONTWAIT: i32 = 0x40;
const MSG_NOSIGNAL: i32 = 0x4000;

/// A guest hands over a connection; its TCP socket comes with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The guest's half, which says the two ends of the connection.
    pub half: u32,
    /// Which connection of that half is meant.
    pub generation: u32,
    /// Whether the guest called `connect()`; else it called `accept()`.
    pub client: bool,
    /// Whether both ends have announced SMC in the TCP handshake, so that CLC must follow; else the engine
    /// has to find out whether the peer speaks it, and may leave the connection to TCP.
    pub promised: bool,
}

/// The engine's answer; a stand-in comes with it, unless it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The engine's half.
    pub half: u32,
    /// Which connection of that half is meant.
    pub generation: u32,
}

/// What has come of a connection that a guest has handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// The engine has it: the descriptor of the stand-in, and the engine's half.
    StandIn(i32, Welcome),
    /// The engine has it, and the stand-in was lost on its way, because this process could have no other descriptor. The
    /// connection can only end.
    Lost,
    /// The engine has no room for it, and has told the peer, to whom SMC was promised: it is TCP from its first byte.
    Declined(Reason),
}

/// What [`Hello::half`] is where there is none.
pub(crate) const NO_HALF: u32 = u32::MAX;

fn words(kind: u32, rest: [u32; 3]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let all = [MAGIC, VERSION, kind, rest[0], rest[1], rest[2]];
    for (to, word) in bytes.chunks_exact_mut(4).zip(all) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Kind and the three words of a message.
fn parse(bytes: &[u8]) -> Option<(u32, [u32; 3])> {
    if bytes.len() != BYTES {
        return None;
    }
    let word = |i: usize| {
        let at = bytes.get(i * 4..i * 4 + 4)?;
        Some(u32::from_le_bytes(at.try_into().ok()?))
    };
    (word(0)? == MAGIC && word(1)? == VERSION)
        .then_some(())
        .and_then(|()| Some((word(2)?, [word(3)?, word(4)?, word(5)?])))
}

const HELLO: u32 = 1;
const WELCOME: u32 = 2;
const REFUSED: u32 = 3;
/// Who comes by the other way has this to say first.
const KEY: u32 = 4;

impl Hello {
    fn emit(self) -> [u8; BYTES] {
        let ways = u32::from(self.client) | u32::from(self.promised) << 1;
        words(HELLO, [self.half, self.generation, ways])
    }

    /// Whether the guest has memory for its own end. If not, the engine is only to tell the peer.
    #[must_use]
    pub fn has_half(&self) -> bool {
        self.half != NO_HALF
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        match parse(bytes)? {
            (HELLO, [half, generation, ways @ 0..=3]) => {
                let (client, promised) = (ways & 1 != 0, ways & 2 != 0);
                Some(Self { half, generation, client, promised })
            }
            _ => None,
        }
    }
}

// ----- the guest's side --------------------------------------------------------------------------

/// How long a guest waits for the engine's answer, seconds. The engine answers from its loop, and waits for nobody but, half
/// a second at most, a client that is to be told that there is no room; that of a test, on a machine that has other tests to run.
const PATIENCE_S: u64 = if cfg!(test) { 10 } else { 2 };

/// The same where nothing was promised to the peer, milliseconds: TCP is as right, and an engine that takes longer has
/// been stopped, or the machine has more to do than it can.
const PLAIN_PATIENCE_MS: i32 = if cfg!(test) { 1000 } else { 200 };

const SHORT_MS: i32 = 10;

/// Goes to the engine of `world`'s board: a descriptor, for [`ask`].
///
/// # Errors
///
/// [`Reason::NoEngine`].
pub(crate) fn meet(world: &World) -> Result<i32, Reason> {
    let link = by_path(world).or_else(|_| {
        let side = world.board.engine_side().ok_or(Reason::NoEngine)?;
        door::by_side(side, world.board.owner, PATIENCE_S)
    })?;
    match call::setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, [PATIENCE_S, 0]) {
        Ok(()) => Ok(link),
        Err(_) => {
            let _ = call::close(link);
            Err(Reason::NoEngine)
        }
    }
}

/// By the path of its door, which leads to another engine, or nowhere, once this process is another user's or has another
/// root directory.
fn by_path(world: &World) -> Result<i32, Reason> {
    if call::geteuid() != world.board.owner {
        return Err(Reason::NoEngine);
    }
    let path = crate::board::door(world.limits.dir.as_deref()).map_err(|_| Reason::NoEngine)?;
    let link = passing::connect(&path).map_err(|_| Reason::NoEngine)?;
    // With another root directory the path may be anybody's.
    if passing::credentials(link).is_ok_and(|who| who.uid == world.board.owner) {
        return Ok(link);
    }
    let _ = call::close(link);
    Err(Reason::NoEngine)
}

/// Hands a TCP socket to the engine through `link`, and waits for the stand-in.
///
/// # Errors
///
/// Why the engine does not take it, or [`Reason::NoEngine`] when there is none: then `link` is of no use any
/// more, and the engine does not have the socket. [`Reason::EngineSilent`] when it does not answer: then
/// `link` is of no use either, and the engine may have the socket, unless nothing was promised.
/// [`Reason::NoDescriptor`] if nothing was promised, and there would be no place for the stand-in.
pub(crate) fn ask(link: i32, hello: Hello, socket: i32) -> Result<Given, Reason> {
    // Once the engine has it, it is too late to find that there is no room for what comes back.
    let place = Place(call::dup_above(link, 0).ok());
    if place.0.is_none() && !hello.promised {
        return Err(Reason::NoDescriptor);
    }
    loop {
        match passing::send(link, &hello.emit(), Some(socket), 0) {
            Ok(()) => break,
            Err(EINTR) => {}
            Err(_) => return Err(Reason::NoEngine),
        }
    }
    let begun = call::now_ns();
    let (patience_ns, flags) = if hello.promised {
        (PATIENCE_S * 1_000_000_000, 0)
    } else {
        call::wait_readable(link, PLAIN_PATIENCE_MS);
        (u64::from(PLAIN_PATIENCE_MS.unsigned_abs()) * 1_000_000, MSG_DONTWAIT)
    };
    let deadline = begun + patience_ns;
    // Waits as long as there is no answer at all; it stays where it is.
    let mut first = [0; 1];
    let is_here = loop {
        match call::recv(link, &mut first, flags | MSG_PEEK) {
            Ok(n) => break n > 0,
            // A signal; the patience of the socket itself is that of `meet`.
            Err(EINTR) if call::now_ns() < deadline => {}
            Err(EAGAIN) if !hello.promised && call::now_ns() < deadline => {
                // The wait was ended by a signal.
                call::wait_readable(link, SHORT_MS);
            }
            Err(EAGAIN | EINTR) if hello.promised => return Err(Reason::EngineSilent),
            Err(EAGAIN | EINTR) => {
                // Either the answer is here, or the engine finds that nobody hears it, and lets the
                // connection be. Who comes next needs another link in any case.
                let _ = call::shutdown(link, SHUT_RDWR);
                match call::recv(link, &mut first, MSG_DONTWAIT | MSG_PEEK) {
                    Ok(1..) => break true,
                    _ => return Err(Reason::EngineSilent),
                }
            }
            Err(_) => break false,
        }
    };
    if !is_here {
        return Err(Reason::NoEngine);
    }
    let (answer, passed) = take_answer(link, place);
    match (answer, passed) {
        (Some((WELCOME, [half, generation, _])), Some(fd)) => {
            Ok(Given::StandIn(fd, Welcome { half, generation }))
        }
        (Some((WELCOME, _)), None) => Ok(Given::Lost),
        (Some((REFUSED, [code, told, _])), None) => {
            let reason = Reason::from_code(code).unwrap_or(Reason::NoEngine);
            if told == 1 { Ok(Given::Declined(reason)) } else { Err(reason) }
        }
        (_, passed) => {
            if let Some(fd) = passed {
                let _ = call::close(fd);
            }
            Err(Reason::NoEngine)
        }
    }
}

/// A descriptor that is there to be given up for another one.
struct Place(Option<i32>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            let _ = call::close(fd);
        }
    }
}

/// How often a place for the stand-in is looked for, a millisecond apart, when another thread took that which was kept.
const PLACE_TRIES: u32 = 100;

/// Takes the answer that is there, and its descriptor, if `place` or any other can be had for it.
fn take_answer(link: i32, place: Place) -> (Option<(u32, [u32; 3])>, Option<i32>) {
    drop(place);
    let mut passed = None;
    for _ in 0..PLACE_TRIES {
        // A look, so that the descriptor is not lost with the message if there is no place.
        match passing::receive(link, &mut [0; BYTES], MSG_DONTWAIT | MSG_PEEK) {
            Ok((_, fd)) => {
                passed = fd;
                break;
            }
            // Nobody: only the time passes.
            Err(EMFILE) => call::wait_readable(-1, 1),
            Err(EINTR) => {}
            Err(_) => break,
        }
    }
    let mut bytes = [0; BYTES];
    let taken = loop {
        match call::recv(link, &mut bytes, MSG_DONTWAIT) {
            Err(EINTR) => {}
            other => break other,
        }
    };
    (taken.ok().and_then(|n| parse(bytes.get(..n)?)), passed)
}

/// Whether packets of a socket take a way that somebody has chosen for them, by an interface (`SO_BINDTODEVICE`, a VRF) or by
/// a mark that rules of routing ask for. Those of the engine would take another one.
#[must_use]
pub fn has_chosen_way(socket: i32) -> bool {
    const SO_MARK: i32 = 36;
    const SO_BINDTOIFINDEX: i32 = 62;
    [SO_BINDTOIFINDEX, SO_MARK].iter().any(|name| {
        call::getsockopt::<i32>(socket, SOL_SOCKET, *name).is_ok_and(|chosen| chosen != 0)
    })
}

// ----- the engine's side -------------------------------------------------------------------------

/// The guest's rings make no sense: its connection must be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// What the guest's program has done with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// It sends and receives.
    Open,
    /// It has shut down sending; what it has written before is still to be sent.
    Shut,
    /// It has closed, or was killed, having read all.
    Closed,
    /// It has closed without reading all, or asked for a reset.
    Reset,
}

/// One loop of the engine, as guests see it: they ring when it sleeps.
#[derive(Debug)]
pub struct Waiter {
    w: &'static World,
    number: u32,
}

impl Waiter {
    /// Takes a waiter for a loop; `None` if this process has too many.
    #[must_use]
    pub fn new(w: &'static World) -> Option<Self> {
        Some(Self { w, number: w.take_waiter()? })
    }

    fn word(&self) -> Option<&AtomicU32> {
        self.w.waiter(self.number)
    }

    /// From now on guests ring. The caller looks at all of its relays once more before it sleeps.
    pub fn fall_asleep(&self) {
        if let Some(word) = self.word() {
            let _ = wait::fall_asleep(word);
        }
    }

    /// From now on they do not.
    pub fn awake(&self) {
        if let Some(word) = self.word() {
            wait::awake(word);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.w.drop_waiter(self.number);
    }
}

/// Where bytes for the guest are that goes on by TCP.
#[derive(Clone, Copy, Debug)]
struct Down {
    /// Those before are the guest's to read in the ring.
    from: u64,
    /// Those before have gone into the socket.
    poured: u64,
}

/// The engine's end of a guest's connection.
///
/// Offsets are those of the stream: what the guest has sent, and what it is to receive, each from 0.
#[derive(Debug)]
pub struct Relay {
    w: &'static World,
    conn: &'static Conn,
    fd: i32,
    /// Our ring: the RMB.
    rmb: Loc,
    /// Up to where the guest may read.
    published: u64,
    /// Bytes of the guest's that came by TCP, before its ring or after it.
    spill: Spill,
    /// Stream offset of the first byte of the guest's ring, once that is known.
    base: Option<u64>,
    /// Stream offset up to which the guest's bytes are done with.
    released: u64,
    /// Stream offset up to which the guest was seen to have written. Who goes back to TCP while it writes goes back to
    /// what had been released, and sends what lies behind that once more; until it comes, it is in the ring.
    seen: u64,
    /// With us back on TCP: from where on, and up to where the guest has got its bytes.
    down: Option<Down>,
    /// Up to where the guest's bytes go out with the last of them urgent.
    urgent: Option<u64>,
    /// The other host sends no more, which the guest's socket is to say once [`Self::pour`] is done.
    ends: bool,
    /// The guest's socket may hold more of its bytes than there is room for.
    has_more: bool,
    /// The kernel asks whether the guest is still there.
    is_watched: bool,
    tcp_ready: bool,
    /// The guest was asked to ring when it reads on.
    wants_consumed: bool,
}

impl Relay {
    /// Attaches the connection that a guest hands over. `order`: the RMB has 16 KiB times two to the
    /// power of it, 0 to [`Loc::ORDER_MAX`].
    ///
    /// # Errors
    ///
    /// [`Reason::PeerBroken`] if the guest's half is not what it says, [`Reason::NoMemory`].
    pub fn attach(
        w: &'static World,
        hello: &Hello,
        stand_in: &mut StandIn,
        order: u32,
        waiter: &Waiter,
    ) -> Result<(Self, Welcome), Reason> {
        let fd = stand_in.ours();
        let conn = w.conn().ok_or(Reason::NoMemory)?;
        let joined = conn.take_over(w, fd, hello, order.min(Loc::ORDER_MAX), waiter.number);
        let (half, generation, rmb) = match joined {
            Ok(joined) => joined,
            Err(reason) => {
                w.give_back(conn);
                return Err(reason);
            }
        };
        let _ = stand_in.keep_ours();
        let relay = Self {
            w,
            conn,
            fd,
            rmb,
            published: 0,
            spill: Spill::default(),
            base: None,
            released: 0,
            seen: 0,
            down: None,
            urgent: None,
            ends: false,
            has_more: false,
            is_watched: false,
            tcp_ready: false,
            wants_consumed: false,
        };
        Ok((relay, Welcome { half, generation }))
    }

    fn halves(&self) -> Result<(&'static Half, &'static Half), Broken> {
        if self.w.board.is_spoiled() {
            return Err(Broken);
        }
        self.conn.halves(self.w).ok_or(Broken)
    }

    /// Goes back to TCP if the guest waits for that, or for `why`; see [`Self::pour`].
    fn go_down(&mut self, why: Option<Reason>) {
        let ring = (self.published, self.rmb.bytes());
        if let Some((from, ends)) = self.conn.goes_down_for_guest(self.w, self.fd, ring, why) {
            self.down = Some(Down { from, poured: from });
            self.ends |= ends;
            let _ = self.pour();
        }
    }

    /// See [`Down`]; a guest that may do our part of it has done so where we have not.
    fn is_down(&self, mine: &Half) -> Option<Down> {
        if mine.flags.load(Ordering::Relaxed) & flag::DOWN == 0 {
            return None;
        }
        self.down.or_else(|| {
            // Not further back than the ring goes, whatever is written there.
            let least = self.published.saturating_sub(self.rmb.bytes() as u64);
            let poured = mine.sent.load(Ordering::Relaxed).clamp(least, self.published);
            Some(Down { from: mine.down_at.load(Ordering::Relaxed).min(poured), poured })
        })
    }

    /// The connection goes on as TCP, which the engine carries; `why` is for people: see [`Half::reason`].
    pub fn explain(&self, why: u32) {
        if let Ok((mine, _)) = self.halves() {
            mine.reason.store(why, Ordering::Relaxed);
        }
    }

    /// Readable when the guest rings, or is gone: call [`Self::heard`] then.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd
    }

    // ----- what the guest sends ------------------------------------------------------------------

    /// The kernel says that the descriptor is readable (`ended`: no more will come; `gone`: hung up): takes
    /// doorbells out, and notes what else it means. An end of which the guest has not said anything before
    /// is the end of its process.
    pub fn heard(&mut self, gone: bool, ended: bool) {
        let Ok((mine, peer)) = self.halves() else { return };
        // Acquire: what it said before. Its words stand before the end of its socket.
        let said = peer.flags.load(Ordering::Acquire) & (flag::SHUT | flag::CLOSED | flag::DOWN)
            != 0
            || mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN != 0;
        let gone = gone || ended && !said;
        if gone {
            self.conn.kernel.fetch_or(kernel::RDHUP | kernel::HUP, Ordering::Relaxed);
        }
        if self.conn.is_mixed(mine, peer) {
            self.tcp_ready = true;
        } else {
            self.conn.drain(self.w, self.fd);
        }
        self.go_down(None);
    }

    /// The words by which the guest tells what it does: while they stay the same, so does all that this
    /// relay answers. `None`: some of its bytes come or go by TCP.
    #[inline]
    #[must_use]
    pub fn stamp(&self) -> Option<[u64; 3]> {
        let (mine, peer) = self.halves().ok()?;
        // Acquire: what these words tell of is read after them.
        let flags = peer.flags.load(Ordering::Acquire);
        let down = (flags | mine.flags.load(Ordering::Relaxed)) & (flag::DOWN | flag::WANT_DOWN);
        if flags & flag::UP == 0 || down != 0 || self.base.is_none() {
            return None;
        }
        let hints = self.conn.kernel.load(Ordering::Relaxed);
        let flags = u64::from(hints) << 32 | u64::from(flags);
        Some([ring::tail(&peer.tail), peer.head.load(Ordering::Acquire), flags])
    }

    /// Stream offset up to which the guest has written: never less than before.
    ///
    /// # Errors
    ///
    /// [`Broken`].
    #[inline]
    pub fn written(&mut self) -> Result<u64, Broken> {
        self.seen = self.written_now()?.max(self.seen);
        Ok(self.seen)
    }

    #[inline]
    fn written_now(&mut self) -> Result<u64, Broken> {
        let (mine, peer) = self.halves()?;
        let flags = peer.flags.load(Ordering::Acquire);
        if flags & flag::WANT_DOWN != 0 {
            // While our loop is awake no doorbell says so.
            self.go_down(None);
        }
        if flags & flag::UP == 0 || flags & flag::DOWN != 0 || self.base.is_none() {
            self.written_by_tcp(mine, peer)?;
        }
        let Some(base) = self.base else { return Ok(self.spill.end()) };
        let head = mine.head.load(Ordering::Relaxed);
        if let Some(end) = self.ring_end(peer) {
            self.conn.stretch(self.w, peer, head, end).ok_or(Broken)?;
            return Ok(self.spill.end().max(base.wrapping_add(end)));
        }
        let tail = ring::tail(&peer.tail);
        self.conn.stretch(self.w, peer, head, tail).ok_or(Broken)?;
        Ok(base.wrapping_add(tail))
    }

    /// Ring offset at which the guest has gone back to TCP.
    fn ring_end(&self, peer: &Half) -> Option<u64> {
        (peer.flags.load(Ordering::Acquire) & flag::DOWN != 0)
            .then(|| peer.down_at.load(Ordering::Relaxed))
    }

    /// Takes in what the guest has sent by TCP: before its ring, or after it.
    #[cold]
    fn written_by_tcp(&mut self, mine: &Half, peer: &Half) -> Result<(), Broken> {
        let flags = peer.flags.load(Ordering::Acquire);
        let up = (flags & flag::UP != 0).then(|| peer.up_at.load(Ordering::Relaxed));
        if self.base.is_none() {
            let until = up.unwrap_or(u64::MAX);
            if self.spill.end() < until && (self.tcp_ready || up.is_some()) {
                let max = usize::try_from(until - self.spill.end()).unwrap_or(usize::MAX);
                self.tcp_ready = !self.fill(peer, max)?;
                mine.tcp_rx.store(self.spill.end(), Ordering::Relaxed);
            }
            if up == Some(self.spill.end()) {
                self.base = up;
            }
        }
        if let (Some(base), Some(end)) = (self.base, self.ring_end(peer)) {
            let after = base.wrapping_add(end);
            if self.released < after {
                return Ok(());
            }
            // What the ring held is done with; doorbells come before the first byte of TCP.
            self.conn.drain(self.w, self.fd);
            if mine.drained.load(Ordering::Relaxed) == peer.bells.load(Ordering::Acquire) {
                self.spill.begin(after);
                let _ = self.fill(peer, usize::MAX)?;
                // What it has sent once more may be done with already.
                self.spill.release(self.released);
            }
        }
        Ok(())
    }

    /// As [`Spill::fill`]. A guest that has closed may have left a doorbell unread, of which the kernel makes a reset: behind
    /// its bytes that is its end.
    fn fill(&mut self, peer: &Half, max: usize) -> Result<bool, Broken> {
        let filled = self.spill.fill(self.fd, max);
        self.has_more = filled == Ok(false) && max == usize::MAX;
        if self.spill.ended() && !std::mem::replace(&mut self.is_watched, true) {
            self.watch_the_guest();
        }
        if filled.is_err() && peer.flags.load(Ordering::Acquire) & flag::CLOSED != 0 {
            self.spill.ends();
            return Ok(true);
        }
        filled
    }

    /// A guest whose bytes have ended by TCP may have shut down, or be gone, which look the same. A question now and then is
    /// answered by a reset once the kernel has forgotten one that is gone (a minute), and does nothing to another.
    #[cold]
    fn watch_the_guest(&self) {
        const IPPROTO_TCP: i32 = 6;
        const SO_KEEPALIVE: i32 = 9;
        const TCP_KEEPIDLE: i32 = 4;
        const TCP_KEEPINTVL: i32 = 5;
        const SECONDS: i32 = 20;
        for (level, name, value) in [
            (IPPROTO_TCP, TCP_KEEPIDLE, SECONDS),
            (IPPROTO_TCP, TCP_KEEPINTVL, SECONDS),
            (SOL_SOCKET, SO_KEEPALIVE, 1),
        ] {
            let _ = call::setsockopt(self.fd, level, name, value);
        }
    }

    /// Copies what the guest has sent from stream offset `at` on. All of it must have been written
    /// ([`Self::written`]), and not be released.
    ///
    /// # Errors
    ///
    /// [`Broken`].
    pub fn copy_out(&self, at: u64, to: &mut [u8]) -> Result<(), Broken> {
        self.copy(at, to, None).map(drop)
    }

    /// As [`Self::copy_out`], and goes on with a CRC-32 over the copy, from register to register, if that can be done
    /// meanwhile. `None`: it was copied alone.
    ///
    /// # Errors
    ///
    /// [`Broken`].
    pub fn copy_out_summed(
        &self,
        at: u64,
        to: &mut [u8],
        register: u32,
    ) -> Result<Option<u32>, Broken> {
        self.copy(at, to, Some(register))
    }

    /// Copies; with a register, the register behind what was copied if all of it was summed.
    fn copy(&self, at: u64, to: &mut [u8], register: Option<u32>) -> Result<Option<u32>, Broken> {
        let (_, peer) = self.halves()?;
        let mut done = 0;
        while done < to.len() {
            let now = at + done as u64;
            let rest = &mut to[done..];
            let taken = self.spill.copy_out(now, rest);
            if taken > 0 {
                done += taken;
                continue;
            }
            let base = self.base.ok_or(Broken)?;
            let from = now.wrapping_sub(base);
            let tail = match self.ring_end(peer) {
                Some(end) => end.max(self.seen.saturating_sub(base)),
                None => ring::tail(&peer.tail),
            };
            let (loc, there) = self.conn.stretch(self.w, peer, from, tail).ok_or(Broken)?;
            let n = there.min(rest.len());
            if n == 0 {
                return Err(Broken);
            }
            let map = &self.w.board.map;
            if let Some(register) = register.filter(|_| n == to.len()) {
                return Ok(map.copy_out_summed(loc, from, to, register));
            }
            map.copy_out(loc, from, &mut to[done..done + n]);
            done += n;
        }
        Ok(None)
    }

    /// Stream offset behind the last urgent byte that the program has sent (`MSG_OOB`), of those that
    /// [`Self::written`] has seen.
    #[must_use]
    pub fn urgent(&self) -> Option<u64> {
        self.spill.urgent()
    }

    /// The guest may use the memory of its bytes up to `upto` again: they have arrived at the other host.
    pub fn release(&mut self, upto: u64) {
        self.released = self.released.max(upto);
        self.spill.release(self.released);
        let (Ok((mine, peer)), Some(base)) = (self.halves(), self.base) else { return };
        let end = self.ring_end(peer).unwrap_or(u64::MAX);
        let head = self.released.saturating_sub(base).min(end);
        let before = mine.head.load(Ordering::Relaxed);
        if head > before && mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN == 0 {
            ring::give_back(&mine.head, head);
            note_cpu(mine);
            mine.bytes_rx.store(head, Ordering::Relaxed);
            if room::is_wanted(&peer.room_wait) {
                self.conn.notify(self.w, self.fd, mine, peer);
            }
        }
    }

    /// What the program has done with its end.
    pub fn program(&self) -> Program {
        let Ok((mine, peer)) = self.halves() else { return Program::Reset };
        self.conn.judge_end(mine, peer);
        let flags = peer.flags.load(Ordering::Acquire);
        let hints = self.conn.kernel.load(Ordering::Relaxed);
        if flags & flag::RESET != 0 || hints & kernel::RESET != 0 {
            return Program::Reset;
        }
        // What it has sent by TCP is looked at once what its ring held is done with.
        let is_behind = || {
            let after =
                self.base.zip(self.ring_end(peer)).map(|(base, end)| base.wrapping_add(end));
            after.is_some_and(|after| self.released < after)
        };
        if hints & kernel::HUP != 0 && !self.has_more && !is_behind() {
            return Program::Closed;
        }
        if flags & flag::UP == 0 || flags & flag::DOWN != 0 {
            // By TCP it ends when the kernel says so: bytes may be on their way, and who has closed may have given the
            // socket to another program before.
            return match self.spill.ended() {
                true if flags & flag::CLOSED != 0 => Program::Closed,
                true => Program::Shut,
                false => Program::Open,
            };
        }
        if flags & flag::CLOSED != 0 {
            return Program::Closed;
        }
        if flags & flag::SHUT != 0 { Program::Shut } else { Program::Open }
    }

    // ----- what the guest receives -----------------------------------------------------------------

    /// Bytes of the RMB.
    #[must_use]
    pub fn rmb_bytes(&self) -> usize {
        self.rmb.bytes()
    }

    /// The other host writes `bytes` at `offset` of the RMB. `false`: that is not inside of it.
    #[must_use]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> bool {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.rmb.bytes());
        if fits {
            self.w.board.map.copy_in(self.rmb, offset as u64, bytes);
        }
        fits
    }

    /// As [`Self::write_at`], and goes on with a CRC-32 over the bytes, from register to register, if that can be done
    /// meanwhile. `None`: nothing was written.
    #[must_use]
    pub fn write_at_summed(&self, offset: usize, bytes: &[u8], register: u32) -> Option<u32> {
        let end = offset.checked_add(bytes.len())?;
        let map = &self.w.board.map;
        let fits = end <= self.rmb.bytes();
        fits.then(|| map.copy_in_summed(self.rmb, offset as u64, bytes, register)).flatten()
    }

    /// The guest may read up to stream offset `upto`, which the other host has written.
    pub fn publish(&mut self, upto: u64) {
        let Ok((mine, peer)) = self.halves() else { return };
        if self.is_down(mine).is_some() {
            self.published = upto;
            let _ = self.pour();
            return;
        }
        self.published = upto;
        mine.bytes_tx.store(upto, Ordering::Relaxed);
        mine.sent.store(upto, Ordering::Relaxed);
        ring::publish(&mine.tail, upto);
        // Who waits for us looks at memory only if we run elsewhere.
        note_cpu(mine);
        self.conn.notify(self.w, self.fd, mine, peer);
    }

    /// As [`Self::publish`], and the last of these bytes is urgent: it goes by TCP, and so does all that
    /// follows.
    pub fn publish_urgent(&mut self, upto: u64) {
        self.go_down(Some(Reason::Urgent));
        self.urgent = Some(upto);
        self.publish(upto);
    }

    /// With the guest back on TCP: sends it what it may read. `false`: the socket has no more room; call
    /// again when it is writable.
    pub fn pour(&mut self) -> bool {
        let Ok((mine, _)) = self.halves() else { return true };
        let Some(Down { from, poured: mut at }) = self.is_down(mine) else { return true };
        let mut chunk = [0; 16 << 10];
        while at < self.published {
            let urgent = self.urgent.filter(|end| *end > at).map(|end| end - 1);
            let until = urgent.filter(|byte| *byte > at).unwrap_or(self.published);
            let (left, flag) = if urgent == Some(at) { (1, MSG_OOB) } else { (until - at, 0) };
            let left = usize::try_from(left).unwrap_or(chunk.len());
            let n = left.min(chunk.len()).min(self.rmb.bytes());
            self.w.board.map.copy_out(self.rmb, at, &mut chunk[..n]);
            match call::send(self.fd, &chunk[..n], MSG_DONTWAIT | MSG_NOSIGNAL | flag) {
                Ok(sent) => at += sent as u64,
                Err(EINTR) => {}
                Err(EAGAIN) => break,
                Err(_) => {
                    // Nobody reads it any more; the kernel tells of that by itself.
                    at = self.published;
                }
            }
        }
        self.down = Some(Down { from, poured: at });
        let is_all = at == self.published;
        if is_all && std::mem::take(&mut self.ends) {
            mine.flags.fetch_or(flag::SHUT, Ordering::Release);
            let _ = call::shutdown(self.fd, SHUT_WR);
        }
        is_all
    }

    /// Stream offset up to which the guest has read.
    ///
    /// # Errors
    ///
    /// [`Broken`].
    #[inline]
    pub fn consumed(&self) -> Result<u64, Broken> {
        let (mine, peer) = self.halves()?;
        let head = peer.head.load(Ordering::Acquire);
        if let Some(Down { from, poured }) = self.is_down(mine) {
            // What went by TCP lies behind what the guest still has to read in the ring.
            return match ring::used(head, from, self.rmb.bytes()) {
                Ok(0) => Ok(poured),
                Ok(_) => Ok(head),
                Err(_) => Err(Broken),
            };
        }
        match ring::used(head, self.published, self.rmb.bytes()) {
            Ok(_) => Ok(head),
            Err(_) => Err(Broken),
        }
    }

    /// Asks the guest to ring when it has read so much that a third of the RMB is free. The caller looks
    /// at [`Self::consumed`] once more.
    pub fn want_consumed(&mut self, want: bool) {
        if std::mem::replace(&mut self.wants_consumed, want) != want
            && let Ok((mine, _)) = self.halves()
        {
            mine.room_wait.store(u32::from(want), Ordering::Relaxed);
            full_fence();
        }
    }

    /// The other host sends no more: the guest reads what is there, and then the end.
    pub fn shut(&mut self) {
        if self.conn.shutdown(self.w, self.fd, false, true).is_none() {
            // Our direction is back on TCP, whose end goes behind the bytes that have found no room yet.
            self.ends = true;
            let _ = self.pour();
        }
    }

    /// Parts from the guest. `reset`: it sees a reset, else what TCP shows when the peer has closed.
    pub fn close(self, reset: bool) {
        self.conn.lingers(reset);
        // A guest that has closed leaves nobody at the other end, who could take this for a reset.
        let alone = self.conn.phase() == Phase::Attached
            && self
                .halves()
                .is_ok_and(|(_, p)| p.flags.load(Ordering::Acquire) & flag::CLOSED != 0);
        if !reset && !alone {
            // Set against our own death; now the end is meant.
            let _ = call::setsockopt(self.fd, SOL_SOCKET, SO_LINGER, [0i32, 0]);
        }
        self.conn.closing(self.w, self.fd);
        let _ = call::close(self.fd);
        self.w.give_back(self.conn);
    }
}

/// Stand-ins that are ready for guests that come.
#[derive(Debug)]
pub struct StandIns {
    ready: VecDeque<StandIn>,
    maker: stand_in::Maker,
    keep: usize,
}

impl StandIns {
    /// At most `keep` are kept ready.
    ///
    /// # Errors
    ///
    /// The errno of the calls that make a listener on the loopback interface.
    pub fn new(keep: usize) -> Result<Self, i32> {
        Ok(Self { ready: VecDeque::new(), maker: stand_in::Maker::new()?, keep })
    }

    /// One of them; made now if none is ready.
    ///
    /// # Errors
    ///
    /// The errno of the calls that make one.
    pub fn take(&mut self) -> Result<StandIn, i32> {
        self.ready.pop_front().map_or_else(|| self.maker.make(), Ok)
    }

    /// Whether it is time to make more: fewer than half of those that shall be kept are left.
    #[must_use]
    pub fn are_few(&self) -> bool {
        self.ready.len() < self.keep / 2
    }

    /// Makes one if there are fewer than shall be kept: for a loop that has nothing else to do. `true`:
    /// there are more to make.
    pub fn refill(&mut self) -> bool {
        if self.ready.len() >= self.keep {
            return false;
        }
        // Where none can be made, trying again and again would make none either.
        let made = self.maker.make().map(|one| self.ready.push_back(one));
        made.is_ok() && self.ready.len() < self.keep
    }

    /// One that nobody has got after all.
    pub fn put_back(&mut self, one: StandIn) {
        if self.ready.len() < self.keep {
            self.ready.push_front(one);
        }
    }
}

/// Bytes of an RMB of this order.
#[must_use]
pub const fn rmb_bytes(order: u32) -> usize {
    BLOCK_BYTES << order
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

//! One connection of this process: from the offer to the exact switch, the ring, and back.
//!
//! ```text
//! Fresh -connect()-> Offered ----taken----+
//!   |                   |                 v
//!   |             not taken, withdrawn  Attached -demoted both ways-> Tcp
//!   |                   v                 ^
//! accept()-> Server -----+-> Tcp          |
//!                +-----found the offer----+
//! ```
//!
//! Each direction of an attached connection goes TCP, then ring (from the TCP offset `up_at`), then
//! perhaps TCP again (from the ring offset `down_at`). Bytes in the TCP stream after `up_at` are
//! doorbells; their number is announced before they are sent, so a reader knows how many to drop.

use std::net::SocketAddrV6;

use sys::abi::{BLOCK_BYTES, EXTENT_BYTES, Half, Loc, half_flags as flag, half_state};
use sys::iov::Buffers;
use sys::lock::{self, Guarded};
use sys::sync::{AtomicU32, AtomicU64, Ordering, full_fence};
use sys::wait::{self, WaitWord};
use sys::{cache, call, diag, ring};

use crate::arena::Arena;
use crate::board::Ends;
use crate::spin::{Spin, is_here};
use crate::switch::{self, Sending};
use crate::world::World;
use crate::{Level, Reason, offer, room};

mod asking;
mod attach;
mod bells;
mod called;
mod closing;
mod copying;
mod cut;
mod demote;
mod forked;
mod left;
mod links;
mod naps;
mod offered;
pub mod options;
mod peek;
mod remains;
mod send;
mod stand;
pub(crate) mod syn;
mod taken;
mod unheard;
mod waiting;

use asking::Asking;
use copying::Copying;
pub use forked::{Calls, Left};
pub use naps::{Naps, ring_bells_only};
pub use remains::Moving;

/// What a doorbell is, in the TCP stream.
pub const BELL: u8 = 0x5a;

const MSG_PEEK: i32 = 2;
const MSG_DONTWAIT: i32 = 0x40;
const MSG_NOSIGNAL: i32 = 0x4000;
const MSG_TRUNC: i32 = 0x20;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// A socket that is not connected.
    Fresh = 0,
    /// A socket that listens.
    Listener = 1,
    /// Accepted; the peer's offer has not been looked for, or not been found yet.
    Server = 2,
    /// We offered it; the peer has not taken it yet.
    Offered = 3,
    /// Both ends know each other.
    Attached = 4,
    /// TCP for good.
    Tcp = 5,
    /// Being attached by another thread.
    Busy = 6,
    /// Begun with the SMC option, and not known yet whether the peer on another host has answered it.
    Asked = 7,
}

/// What came of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// So many bytes.
    Bytes(usize),
    /// So many bytes, and perhaps more at once from another place: the stream goes on in the ring, or
    /// in the next ring.
    Part(usize),
    /// Nothing there now.
    Empty,
    /// The stream has ended.
    End,
    /// The kernel has the answer: make the call on the socket itself.
    Kernel,
    /// This errno, once.
    Failed(i32),
}

/// Which bytes of TCP that a call has taken are the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// So many first.
    pub first: usize,
    /// Doorbells behind these, if there are bytes behind them.
    pub bells: usize,
    /// So many behind those.
    pub behind: usize,
}

/// What came of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// All of it.
    All,
    /// The ring is full; what was not taken is left in the buffers.
    Full,
    /// We have shut down sending.
    Shut,
    /// The kernel has the answer: make the call on the socket itself.
    Kernel,
    /// All of it, and it goes nowhere: what TCP takes once more for a peer that has gone.
    Lost,
    /// This errno.
    Failed(i32),
}

/// Bits of [`Conn::kernel`]: what the kernel has said of the socket.
pub mod kernel {
    /// Something to read besides doorbells, or not known.
    pub const IN: u32 = 1;
    /// The peer's socket is closed for sending.
    pub const RDHUP: u32 = 2;
    /// Hung up.
    pub const HUP: u32 = 4;
    /// An error waits.
    pub const ERR: u32 = 8;
    /// Urgent data.
    pub const PRI: u32 = 16;
    /// Bytes of TCP that are no doorbells: somebody wrote past the library, and they are data.
    pub const STRAY: u32 = 32;
    /// Bytes were sent after the peer closed, so what the kernel says of it counts.
    pub const AFTER_CLOSE: u32 = 1 << 16;
    /// The end was found to be clean, whatever the kernel says: only a doorbell was left unread.
    pub const CLEAN: u32 = 1 << 17;
    /// The end is a reset; its error is still to be told.
    pub const RESET: u32 = 1 << 18;
    /// The error of the reset has been told.
    pub const TOLD: u32 = 1 << 19;
    /// Strays were taken, which nobody counts: what the kernel has counted tells no more what else was taken.
    pub const STRAYED: u32 = 1 << 20;
    /// What was to come again by TCP was waited for in vain.
    pub const VAIN: u32 = 1 << 21;
    /// The peer's process was found to have ended, by other ways than the kernel's: no reset is on its way.
    pub const DIED: u32 = 1 << 22;
}

/// A registration in an event set, kept by the wait engine.
#[derive(Debug, Default)]
pub struct Registration {
    /// Identity of the set; 0: free.
    pub set: AtomicU64,
    /// Descriptor under which it was registered.
    pub fd: AtomicU32,
    /// The user's events.
    pub events: AtomicU32,
    /// The user's data.
    pub data: AtomicU64,
    /// Ring offset up to which readiness was reported (edge triggered).
    pub seen: AtomicU64,
    /// [`reg_flags`].
    pub flags: AtomicU32,
    /// State of the peer's flags at the last report.
    pub seen_flags: AtomicU32,
    /// Events that the kernel was asked for last.
    pub asked: AtomicU32,
    /// Identity of a set in which the kernel keeps a registration that the program has taken out.
    pub parked: AtomicU64,
    /// Identity of the list of attached connections that it is in, and where; 0: in none. The list's to write.
    pub warm_in: AtomicU64,
    /// See [`Self::warm_in`].
    pub warm_at: AtomicU32,
    /// The same of the list of offers by which the connection is looked at on behalf of this registration.
    pub offered_in: AtomicU64,
    /// See [`Self::offered_in`].
    pub offered_at: AtomicU32,
}

/// Bits of [`Registration::flags`].
pub mod reg_flags {
    /// One-shot, and it has fired.
    pub const DISABLED: u32 = 1;
    /// Report whatever is ready at the next look, as after `EPOLL_CTL_ADD` and `EPOLL_CTL_MOD`.
    pub const FRESH: u32 = 2;
    /// A sender found the ring full: room is an edge.
    pub const ROOM: u32 = 4;
    /// The kernel's registration carries our tag.
    pub const TAGGED: u32 = 8;
    /// The kernel's registration was made edge triggered, because what it reports is of no interest.
    pub const QUIET: u32 = 16;
    /// One-shot, and the kernel has it as the program made it, until the program arms it again: it may have fired,
    /// of which only the kernel knows.
    pub const LATER: u32 = 32;
}

/// Event sets that are followed per connection.
pub const SETS: usize = 2;

/// A connection of this process.
#[derive(Debug, Default)]
pub struct Conn {
    phase: AtomicU32,
    /// Descriptors and calls in flight that lead here.
    pub refs: AtomicU32,
    /// A descriptor that leads here.
    pub fd: AtomicU32,
    /// Calls in flight that may sleep, and so may see the descriptor closed by another thread.
    pub inside: AtomicU32,
    /// A duplicate of the descriptor plus one, made when it was closed under such a call: the kernel
    /// must not end the connection before the call does.
    pub kept: AtomicU32,
    /// `O_NONBLOCK`: 0 unknown, 1 off, 2 on.
    pub nonblock: AtomicU32,
    /// Port of the listener, for the rules.
    pub port: AtomicU32,
    /// [`World::forks`] when the counts below began to be right.
    forks: AtomicU32,
    /// [`World::forks`] when we got hold of our half: it differs after a fork.
    half_forks: AtomicU32,
    /// Our half plus one.
    half: AtomicU32,
    /// The peer's half plus one.
    peer: AtomicU32,
    /// How our direction leaves TCP.
    tx: Sending,
    /// How long pieces are copied.
    copying: Copying,
    /// Bytes received from TCP so far, before the attachment.
    tcp_rx: AtomicU64,
    /// Times that a server has looked for an offer in vain.
    tries: AtomicU32,
    /// Receives from TCP that took bytes, before the attachment.
    pieces: AtomicU32,
    /// [`kernel`].
    pub kernel: AtomicU32,
    /// When the kernel was asked last for these, by a `poll` that had something to report, nanoseconds.
    pub polled: AtomicU64,
    /// Errno that a look at the socket has taken from it; the next call gets it.
    pub error: AtomicU32,
    /// Counts events for those who wait beside a sleeper.
    pub nudge: AtomicU32,
    /// Reason for which connections of this listener stay on TCP; 0: none.
    pub stay: AtomicU32,
    /// Place of the peer's ring that was found to be the peer's.
    loc_checked: AtomicU64,
    /// Place of our ring that was opened for writing last, of an inherited connection.
    opened: AtomicU64,
    /// [`options`].
    pub options: AtomicU32,
    /// When to ask the kernel for the peer, of sends and of receives.
    asking: [Asking; 2],
    /// Threads in a receive of the kernel's that began before the attachment: a doorbell must wake
    /// them.
    in_kernel: AtomicU32,
    /// Threads in a `poll` of the kernel's that began before the attachment, and take nothing.
    in_poll: AtomicU32,
    /// Serialises the count of bytes received by TCP with the attachment that relies on it.
    counting: AtomicU32,
    /// Held by a thread that ends a direction, over all that it does for that.
    ending: AtomicU32,
    /// Held by a thread that does something by a number: see [`Self::by_number`].
    numbered: AtomicU32,
    /// 1: the SMC option was asked for, on a socket that connects or listens; 2: it was not, although it
    /// could have been.
    pub opted: AtomicU32,
    /// Not 0: the descriptor is a stand-in, whose other end is the engine's; see `stand`.
    stands_in: AtomicU32,
    /// `SO_COOKIE` of the socket that has taken the place of the one that the program made, whose names it does not have.
    placed: AtomicU64,
    /// Event sets.
    pub sets: [Registration; SETS],
    /// See `calls_since`.
    calls_seen: AtomicU32,
    /// Number plus one of the word that counts the processes which hold it: see `crate::holders`; 0: there is none.
    /// `forked::UNCOUNTED`: others may hold it, for ever.
    holders: AtomicU32,
    /// What the last fork has counted, to be taken back if it fails: a half plus one, and what it has made of `holders`.
    forking: [AtomicU32; 2],
    /// Times that it was not attached because others hold it; of a client: that it has received before its offer was taken.
    held: AtomicU32,
    /// Until when it may go on so, nanoseconds: see `forked::has_waited`.
    held_until: AtomicU64,
    /// The phase before [`Phase::Busy`].
    busy_from: AtomicU32,
    /// What spinning for this connection has taught.
    pub spin: Spin,
    /// What naps have taught.
    naps: Naps,
    /// Bytes that the last receive has taken out of the ring.
    took: AtomicU32,
    ends: Guarded<Option<Ends>>,
    /// What it began with, once that was asked for.
    begun: Guarded<Option<Option<syn::Begun>>>,
    offer: AtomicU64,
}

impl Conn {
    pub(crate) fn reset(&self, forks: u32) {
        for word in [
            &self.phase,
            &self.half,
            &self.peer,
            &self.tries,
            &self.pieces,
            &self.kernel,
            &self.error,
            &self.stay,
            &self.nonblock,
            &self.port,
            &self.in_kernel,
            &self.in_poll,
            &self.counting,
            &self.ending,
            &self.numbered,
            &self.options,
            &self.kept,
            &self.opted,
            &self.stands_in,
            &self.calls_seen,
            &self.holders,
            &self.forking[0],
            &self.forking[1],
            &self.held,
            &self.busy_from,
            &self.took,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.tcp_rx,
            &self.loc_checked,
            &self.opened,
            &self.offer,
            &self.held_until,
            &self.polled,
            &self.placed,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.tx.reset();
        self.copying.reset();
        self.asking.iter().for_each(Asking::reset);
        self.naps.reset();
        if let Some(mut ends) = self.ends.lock() {
            *ends = None;
        }
        if let Some(mut begun) = self.begun.lock() {
            *begun = None;
        }
        for set in &self.sets {
            set.set.store(0, Ordering::Relaxed);
            set.parked.store(0, Ordering::Relaxed);
            set.flags.store(0, Ordering::Relaxed);
            set.offered_in.store(0, Ordering::Relaxed);
        }
        self.forks.store(forks, Ordering::Relaxed);
        self.half_forks.store(forks, Ordering::Relaxed);
    }

    /// Where it is in its life.
    #[inline]
    #[must_use]
    pub fn phase(&self) -> Phase {
        // Acquire: the halves, written before the phase. Pairs with `set_phase`.
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Fresh,
            1 => Phase::Listener,
            2 => Phase::Server,
            3 => Phase::Offered,
            4 => Phase::Attached,
            5 => Phase::Tcp,
            7 => Phase::Asked,
            _ => Phase::Busy,
        }
    }

    /// Moves it on.
    pub fn set_phase(&self, phase: Phase) {
        sys::delays::here();
        self.phase.store(phase as u32, Ordering::Release);
        sys::delays::here();
    }

    fn swap_phase(&self, from: Phase, to: Phase) -> bool {
        if to == Phase::Busy && self.phase() == from {
            self.busy_from.store(from as u32, Ordering::Relaxed);
        }
        self.phase
            .compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Our half and the peer's, of an attached connection.
    #[inline]
    #[must_use]
    pub fn halves<'w>(&self, w: &'w World) -> Option<(&'w Half, &'w Half)> {
        let mine = self.half.load(Ordering::Relaxed).checked_sub(1)?;
        let peer = self.peer.load(Ordering::Relaxed).checked_sub(1)?;
        Some((w.board.map.half_known(mine), w.board.map.half_known(peer)))
    }

    /// Our half, if we have one.
    #[must_use]
    pub fn my_half<'w>(&self, w: &'w World) -> Option<(u32, &'w Half)> {
        let mine = self.half.load(Ordering::Relaxed).checked_sub(1)?;
        Some((mine, w.board.map.half_known(mine)))
    }

    /// `SO_LINGER` was set; `abort`: to reset at close.
    pub fn lingers(&self, abort: bool) {
        if abort {
            self.options.fetch_or(options::ABORT, Ordering::Relaxed);
        } else {
            self.options.fetch_and(!options::ABORT, Ordering::Relaxed);
        }
    }

    /// Whether another process may use this connection too.
    #[must_use]
    pub fn is_shared(&self, w: &World) -> bool {
        self.my_half(w).is_some_and(|(_, half)| {
            half.flags.load(Ordering::Relaxed) & flag::SHARED != 0
                && half.users.load(Ordering::Relaxed) > 1
        })
    }

    /// A send on TCP begins; `false`: the connection has been attached meanwhile, use the ring.
    #[must_use]
    pub fn tcp_send_begins(&self) -> bool {
        // Until our direction has switched, an attached connection sends by TCP too.
        self.tx.begins(|| self.phase() == Phase::Busy)
    }

    /// A send on TCP has ended, and moved `n` bytes.
    pub fn tcp_send_ends(&self, n: usize) {
        self.tx.ends(n);
    }

    // ----- receiving -------------------------------------------------------------------------

    /// Receives what is there, without waiting. `flags`: `MSG_PEEK` and `MSG_TRUNC` count.
    pub fn recv(&'static self, w: &World, fd: i32, to: &mut Buffers<'_>, flags: i32) -> Got {
        let Some((mine, peer)) = self.halves(w) else { return Got::Kernel };
        self.note_fork(w, mine);
        let held = lock::lock_own(&mine.rx_lock, &mine.lent, is_own(mine));
        let Some(_held) = held.or_else(|| self.lock_if_left(w, &mine.rx_lock, &mine.lent)) else {
            return Got::Empty;
        };
        let fd = self.descriptor(fd);
        if self.phase() != Phase::Attached || fd < 0 {
            return self.elsewhere();
        }
        let head = mine.head.load(Ordering::Relaxed);
        let tail = ring::tail(&peer.tail);
        if mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN == 0
            && tail != head
            && self.in_ring(mine, peer)
        {
            return self.take(w, fd, mine, peer, head, tail, to, flags);
        }
        self.recv_slow(w, fd, mine, peer, to, flags)
    }

    /// Whether the next byte is the ring's.
    #[inline]
    fn in_ring(&self, mine: &Half, peer: &Half) -> bool {
        switch::risen(&peer.flags, &peer.up_at)
            .is_some_and(|at| mine.tcp_rx.load(Ordering::Relaxed) >= at)
    }

    /// Where the bytes from `at` on are, of what the peer has written up to `tail`: the ring, and how many
    /// of them are in it. `None`: what the peer says makes no sense.
    pub(crate) fn stretch(
        &self,
        w: &World,
        peer: &Half,
        at: u64,
        tail: u64,
    ) -> Option<(Loc, usize)> {
        if at == tail {
            // There may be no ring then.
            return Some((Loc { block: 0, order: 0 }, 0));
        }
        self.peer_ring(w, peer, at, tail)
    }

    /// Where the bytes from `head` on are: the ring, and up to which offset. `None`: what the peer
    /// says makes no sense.
    #[inline]
    fn peer_ring(&self, w: &World, peer: &Half, head: u64, tail: u64) -> Option<(Loc, usize)> {
        // Acquire: `next_at`, and `loc` when this is 0 again. Pairs with `chain` and `promote`.
        let next = peer.next_loc.load(Ordering::Acquire);
        if next == 0 {
            let loc = self.checked(w, peer, peer.loc.load(Ordering::Relaxed))?;
            return Some((loc, ring::used(head, tail, loc.bytes()).ok()?));
        }
        // Acquire: if it is that of a ring after `next`, that one is `loc` by now. Pairs with `chain`.
        let at = peer.next_at.load(Ordering::Acquire);
        let before = at.wrapping_sub(head).cast_signed();
        if before > 0 {
            // Up to the exchange in the old ring.
            let until = if at.wrapping_sub(tail).cast_signed() > 0 { tail } else { at };
            let loc = self.checked(w, peer, peer.loc.load(Ordering::Relaxed))?;
            return Some((loc, ring::used(head, until, loc.bytes()).ok()?));
        }
        let loc = self.checked(w, peer, next)?;
        Some((loc, ring::used(head, tail, loc.bytes()).ok()?))
    }

    /// A place that the peer has named: it must lie in the peer's own memory, which has pages.
    fn checked(&self, w: &World, peer: &Half, word: u64) -> Option<Loc> {
        let loc = Loc::parse(word)?;
        if self.loc_checked.load(Ordering::Relaxed) != word {
            let owner = w.board.map.owner_of(loc.offset());
            if owner != Some(peer.slot.load(Ordering::Relaxed)) {
                return None;
            }
            self.loc_checked.store(word, Ordering::Relaxed);
        }
        debug_assert!(
            loc.offset() / EXTENT_BYTES == (loc.offset() + loc.bytes() - 1) / EXTENT_BYTES
        );
        Some(loc)
    }

    #[expect(clippy::too_many_arguments, reason = "one call site, on the hot path")]
    #[inline]
    fn take(
        &'static self,
        w: &World,
        fd: i32,
        mine: &Half,
        peer: &Half,
        head: u64,
        tail: u64,
        to: &mut Buffers<'_>,
        flags: i32,
    ) -> Got {
        let Some((loc, mut there)) = self.peer_ring(w, peer, head, tail) else {
            return self.broken(w, fd, mine);
        };
        let capacity = loc.bytes();
        if let Some(at) = switch::fallen(&peer.flags, &peer.down_at) {
            // Bytes behind it were sent again by TCP.
            let until = at.wrapping_sub(head);
            if until < there as u64 {
                #[expect(clippy::cast_possible_truncation, reason = "less than there")]
                {
                    there = until as usize;
                }
            }
            if there == 0 {
                return self.recv_slow(w, fd, mine, peer, to, flags);
            }
        }
        let n = there.min(to.left());
        if flags & MSG_TRUNC == 0 {
            to.from_ring(w.board.map.ring(loc), head, n);
        } else {
            to.discard(n);
        }
        if flags & MSG_PEEK != 0 {
            return Got::Bytes(n);
        }
        let new_head = head.wrapping_add(n as u64);
        ring::give_back(&mine.head, new_head);
        self.took.store(u32::try_from(n).unwrap_or(u32::MAX), Ordering::Relaxed);
        note_cpu(mine);
        add64(&mine.bytes_rx, n as u64);
        add32(&mine.n_rx, 1);
        if room::is_wanted(&peer.room_wait) {
            // As a kernel socket becomes writable when a third is free.
            let left = there - n;
            if (capacity - left) * 3 >= capacity {
                self.notify(w, fd, mine, peer);
            }
        }
        if n == there {
            if new_head != tail || peer.flags.load(Ordering::Relaxed) & flag::DOWN != 0 {
                return Got::Part(n);
            }
            self.drained(mine, peer, fd, new_head);
        }
        Got::Bytes(n)
    }

    /// The ring was emptied: in cold mode the doorbell is taken out and armed anew, so that what
    /// the kernel says of the socket is what is true.
    fn drained(&self, mine: &Half, peer: &Half, fd: i32, head: u64) {
        let WaitWord::Cold(seq) = WaitWord::parse(mine.wait.load(Ordering::Relaxed)) else {
            return;
        };
        if peer.bells.load(Ordering::Acquire) == mine.drained.load(Ordering::Relaxed) {
            return;
        }
        if self.sleepers(mine) > 0 {
            // Another thread relies on it.
            return;
        }
        // Only if really empty: a bell must stay while there is something to read.
        let _ = seq;
        if ring::tail(&peer.tail) == head {
            self.drain_bells(mine, peer, fd);
            Self::arm_anew(mine);
        }
    }

    /// Threads that wait in the kernel for a doorbell of this connection, outside of event sets.
    #[must_use]
    pub fn sleepers(&self, mine: &Half) -> u32 {
        let in_kernel = self.in_kernel.load(Ordering::SeqCst) + self.in_poll.load(Ordering::SeqCst);
        mine.sleepers.load(Ordering::Relaxed) + in_kernel
    }

    /// A receive of the kernel's begins on a connection that another thread may attach meanwhile.
    /// `None`: it is attached already.
    #[must_use]
    pub fn receiving(&self) -> Option<Receiving<'_>> {
        let guard = Receiving(self);
        // Either we see the attachment, or whoever attaches sees us. Pairs with `set_phase` and
        // `sleepers`.
        self.in_kernel.fetch_add(1, Ordering::SeqCst);
        (self.phase() != Phase::Attached).then_some(guard)
    }

    /// [`Self::receiving`] for who takes nothing, until [`Self::waits_no_more`]. The caller looks after this whether
    /// it is attached.
    pub fn begins_to_wait(&self) {
        // As in `receiving`.
        self.in_poll.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of [`Self::begins_to_wait`].
    pub fn waits_no_more(&self) {
        let less = |n: u32| n.checked_sub(1);
        let _ = self.in_poll.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Arms for one doorbell with a new sequence number. The caller looks once more after this.
    pub fn arm_cold(&self, w: &World, mine: &Half) {
        let was = Self::wait_word(mine);
        Self::arm_anew(mine);
        if let WaitWord::Warm(waiter) = was {
            // What comes next ends no nap of that loop. Either we see that it naps, or it sees what it is to be woken by.
            let _ = w.rouse(waiter);
        }
    }

    /// [`Self::arm_cold`] again, after a doorbell.
    fn arm_anew(mine: &Half) {
        let seq = mine.arm_seq.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        wait::arm(&mine.wait, WaitWord::Cold(seq));
    }

    /// Takes doorbells out of the TCP stream, at most as many as were announced. The caller holds the receive lock.
    pub fn drain_bells(&self, mine: &Half, peer: &Half, fd: i32) {
        let fd = self.descriptor(fd);
        if fd >= 0 {
            self.take_bells(mine, peer, fd);
        }
    }

    /// [`Self::drain_bells`], by the number that is about to be closed.
    fn take_bells(&self, mine: &Half, peer: &Half, fd: i32) {
        if Self::before(mine, peer) > 0 {
            // They lie behind bytes of the stream.
            return;
        }
        let announced = switch::announced(&peer.bells);
        let mut drained = mine.drained.load(Ordering::Relaxed);
        let mut sink = [0u8; 256];
        // More than any socket holds: who announces more, and sends it meanwhile, is not drained for ever.
        for _ in 0..DRAINS_MAX {
            if announced.wrapping_sub(drained).cast_signed() <= 0 {
                break;
            }
            let n = (announced.wrapping_sub(drained) as usize).min(sink.len());
            match call::recv(fd, &mut sink[..n], MSG_DONTWAIT) {
                Ok(0) => {
                    self.kernel.fetch_or(kernel::RDHUP, Ordering::Relaxed);
                    break;
                }
                Ok(got) => {
                    #[expect(clippy::cast_possible_truncation, reason = "at most 256")]
                    {
                        drained = drained.wrapping_add(got as u32);
                    }
                    mine.drained.store(drained, Ordering::Relaxed);
                    if got < n {
                        break;
                    }
                }
                Err(11 | 4) => break,
                Err(errno) => {
                    self.take_error(errno);
                    break;
                }
            }
        }
    }

    /// Bytes of TCP that come before the ring and have not been read.
    fn before(mine: &Half, peer: &Half) -> u64 {
        if peer.flags.load(Ordering::Acquire) & flag::UP == 0 {
            return 0;
        }
        let taken = mine.tcp_rx.load(Ordering::Relaxed);
        peer.up_at.load(Ordering::Relaxed).saturating_sub(taken)
    }

    /// Keeps an errno that a look has taken from the socket.
    pub fn take_error(&self, errno: i32) {
        let _ = self.error.compare_exchange(
            0,
            errno.cast_unsigned(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        self.kernel.fetch_or(kernel::ERR | kernel::HUP | kernel::RDHUP, Ordering::Relaxed);
    }

    /// Everything but a plain read from the ring.
    #[cold]
    fn recv_slow(
        &'static self,
        w: &World,
        fd: i32,
        mine: &Half,
        peer: &Half,
        to: &mut Buffers<'_>,
        flags: i32,
    ) -> Got {
        self.answer_demotion(w, fd, mine, peer);
        let announced = peer.bells.load(Ordering::Acquire);
        if announced.wrapping_sub(mine.drained.load(Ordering::Relaxed)).cast_signed() < 0 {
            // More doorbells came than there were: the peer takes its word back.
            return self.broken(w, fd, mine);
        }
        let peer_flags = peer.flags.load(Ordering::Acquire);
        let taken = mine.tcp_rx.load(Ordering::Relaxed);
        if mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN != 0 && peer_flags & flag::DOWN == 0
        {
            // Frozen: what is in the ring comes again by TCP.
            if self.is_frozen_in_vain(fd, mine, peer) || self.await_replay(w, fd, mine, peer) {
                return Got::Failed(EAGAIN_RETRY);
            }
            return self.at_end(w, fd, mine, peer, peer_flags).unwrap_or(Got::Empty);
        }
        if peer_flags & flag::UP == 0 || taken < peer.up_at.load(Ordering::Relaxed) {
            return self.recv_before_up(w, fd, mine, peer, to, flags);
        }
        let head = mine.head.load(Ordering::Relaxed);
        if peer_flags & flag::DOWN != 0 && head == peer.down_at.load(Ordering::Relaxed) {
            self.drain_bells(mine, peer, fd);
            if mine.drained.load(Ordering::Relaxed) == peer.bells.load(Ordering::Relaxed) {
                self.await_replay(w, fd, mine, peer);
                self.maybe_tcp(w, mine);
                return Got::Kernel;
            }
            return self.at_end(w, fd, mine, peer, peer_flags).unwrap_or(Got::Empty);
        }
        if self.kernel.load(Ordering::Relaxed) & kernel::STRAY != 0
            && flags & MSG_PEEK == 0
            && let Some(n) = self.take_strays(mine, peer, fd, to, flags)
        {
            return Got::Bytes(n);
        }
        if ring::tail(&peer.tail) != head {
            // It came while we looked.
            return Got::Failed(EAGAIN_RETRY);
        }
        if peer_flags & (flag::SHUT | flag::CLOSED) != 0 {
            return self.after_end(w, fd, mine, peer, peer_flags);
        }
        let own = mine.flags.load(Ordering::Relaxed);
        if own & flag::SHUT_RD != 0 {
            self.drain_bells(mine, peer, fd);
            let left = mine.drained.load(Ordering::Relaxed) != peer.bells.load(Ordering::Acquire);
            return if own & flag::SHUT != 0 && !left { Got::Kernel } else { Got::End };
        }
        self.drained(mine, peer, fd, head);
        if ring::tail(&peer.tail) != head {
            return Got::Failed(EAGAIN_RETRY);
        }
        // A peer that was killed wrote no flag: ask the kernel now and then. Who waits hears of it
        // anyway; this is for programs that only ever try.
        let hints =
            self.kernel.load(Ordering::Relaxed) & (kernel::RDHUP | kernel::HUP | kernel::ERR);
        if hints != 0 || self.misses_sender(mine, flags) {
            return self.at_end(w, fd, mine, peer, peer_flags).unwrap_or(Got::Empty);
        }
        Got::Empty
    }

    /// Reads bytes that somebody wrote past the library.
    fn take_strays(
        &self,
        mine: &Half,
        peer: &Half,
        fd: i32,
        to: &mut Buffers<'_>,
        flags: i32,
    ) -> Option<usize> {
        const FIONREAD: u64 = 0x541b;
        self.kernel.fetch_and(!kernel::STRAY, Ordering::Relaxed);
        self.drain_bells(mine, peer, fd);
        let there = usize::try_from(call::ioctl_int(fd, FIONREAD).ok()?).ok()?;
        // A doorbell is announced before it is sent: if none is outstanding now, none was among the
        // bytes that were there before.
        if there == 0 || mine.drained.load(Ordering::Relaxed) != peer.bells.load(Ordering::Acquire)
        {
            return None;
        }
        self.kernel.fetch_or(kernel::STRAYED, Ordering::Relaxed);
        to.receive(fd, there.min(to.left()), flags & MSG_TRUNC).ok().filter(|n| *n > 0)
    }

    /// Reads TCP up to the switch.
    pub(crate) fn recv_before_up(
        &'static self,
        w: &World,
        fd: i32,
        mine: &Half,
        peer: &Half,
        to: &mut Buffers<'_>,
        flags: i32,
    ) -> Got {
        let taken = mine.tcp_rx.load(Ordering::Relaxed);
        let up = peer.flags.load(Ordering::Acquire) & flag::UP != 0;
        let max = if up {
            usize::try_from(peer.up_at.load(Ordering::Relaxed).wrapping_sub(taken))
                .unwrap_or(usize::MAX)
        } else {
            usize::MAX
        };
        let max = max.min(to.left());
        let start = to.clone();
        match to.receive(fd, max, flags & (MSG_PEEK | MSG_TRUNC)) {
            Ok(0) if to.left() == 0 => Got::Bytes(0),
            // It has switched since the caller looked, right here: nothing was asked for, and nothing is no end.
            Ok(0) if max == 0 => Got::Failed(EAGAIN_RETRY),
            Ok(0) => self.ends_before_up(fd, mine, peer),
            Ok(mut n) => {
                if !up {
                    let keep = self.trim(mine, peer, taken, n, flags);
                    if keep < n {
                        // What follows overwrites the doorbells.
                        *to = start;
                        to.discard(keep);
                        n = keep;
                    }
                }
                if flags & MSG_PEEK == 0 {
                    mine.tcp_rx.store(taken + n as u64, Ordering::Relaxed);
                }
                if n == 0 { Got::Failed(EAGAIN_RETRY) } else { Got::Part(n) }
            }
            Err(11) => {
                let now = peer.flags.load(Ordering::Acquire);
                if now & flag::UP != 0 && taken >= peer.up_at.load(Ordering::Relaxed) {
                    return Got::Failed(EAGAIN_RETRY);
                }
                self.answer_demotion(w, fd, mine, peer);
                Got::Empty
            }
            Err(ECONNRESET) => self.tell_reset(fd, mine, ECONNRESET),
            Err(errno) => Got::Failed(errno),
        }
    }

    /// The kernel has taken `n` bytes out of the socket for the program by itself, of a stream that is all there: those
    /// before the switch are not to come any more.
    pub fn taken_by_the_kernel(&self, mine: &Half, peer: &Half, n: usize) {
        let Some(_held) = lock::lock_of(&mine.rx_lock, &mine.lent) else { return };
        let (taken, up) = (mine.tcp_rx.load(Ordering::Relaxed), peer.up_at.load(Ordering::Relaxed));
        if taken < up {
            mine.tcp_rx.store(up.min(taken + n as u64), Ordering::Relaxed);
        }
    }

    /// Of `n` bytes just read from TCP after `taken`, how many are data: what lies behind the
    /// switch are doorbells.
    fn trim(&self, mine: &Half, peer: &Half, taken: u64, n: usize, flags: i32) -> usize {
        if peer.flags.load(Ordering::Acquire) & flag::UP == 0 {
            return n;
        }
        let until = peer.up_at.load(Ordering::Relaxed).saturating_sub(taken);
        let keep = usize::try_from(until).map_or(n, |u| u.min(n));
        if flags & MSG_PEEK == 0 {
            #[expect(clippy::cast_possible_truncation, reason = "doorbells are few")]
            mine.drained.fetch_add((n - keep) as u32, Ordering::Relaxed);
        }
        keep
    }

    /// The peer's stream is at its end, as it has said itself.
    fn after_end(&self, w: &World, fd: i32, mine: &Half, peer: &Half, peer_flags: u32) -> Got {
        if peer_flags & (flag::SHUT | flag::OVER) == flag::OVER && !self.is_told(mine) {
            // The kernel knows how it ended.
            let taken = self.error.swap(0, Ordering::Relaxed).cast_signed();
            let errno = if taken == 0 { call::getsockopt(fd, 1, 4).unwrap_or(0) } else { taken };
            return if errno == 0 { Got::End } else { self.tell_reset(fd, mine, errno) };
        }
        if peer_flags & (flag::CLOSED | flag::RESET) != flag::CLOSED | flag::RESET {
            // That the kernel may have made a reset of it, because of an unread doorbell, is ours
            // to hide.
            return Got::End;
        }
        if peer_flags & flag::SHUT != 0 {
            // Behind its end a stream gives no error; who sends, or asks for it, gets that.
            return Got::End;
        }
        if !self.is_told(mine) {
            self.await_reset(fd);
            return self.tell_reset(fd, mine, ECONNRESET);
        }
        let _ = (w, peer);
        Got::End
    }

    /// The kernel's own reset is on its way: its error must not be told twice.
    pub(super) fn await_reset(&self, fd: i32) {
        if self.kernel.load(Ordering::Relaxed) & kernel::DIED != 0 {
            return;
        }
        let deadline = call::now_ns() + RESET_NS;
        while !call::hung_up(fd) && call::now_ns() < deadline {
            call::sched_yield();
        }
    }

    /// The error of a reset, as the kernel would call it: after the peer's end it is a broken pipe.
    pub(super) fn named(mine: &Half, peer: &Half, errno: i32) -> i32 {
        let ended = peer.flags.load(Ordering::Acquire) & flag::SHUT != 0
            && mine.flags.load(Ordering::Relaxed) & flag::SHUT == 0;
        if errno == ECONNRESET && ended { EPIPE } else { errno }
    }

    /// Whether the error of a reset has been told, here or in another process that shares this end.
    #[must_use]
    pub fn is_told(&self, mine: &Half) -> bool {
        self.kernel.load(Ordering::Relaxed) & kernel::TOLD != 0
            || mine.flags.load(Ordering::Relaxed) & flag::TOLD != 0
    }

    /// Tells an error that a look of ours has taken from the socket.
    pub fn tell_kept(&self, w: &World, fd: i32) -> Option<i32> {
        let errno = self.error.swap(0, Ordering::Relaxed).cast_signed();
        // Another process that shares the connection may have told it since we looked.
        let is_new = |mine: &Half| mine.flags.load(Ordering::Relaxed) & flag::TOLD == 0;
        let (mine, peer) = self.halves(w).filter(|(mine, _)| errno != 0 && is_new(mine))?;
        if Self::closed_cleanly(peer.flags.load(Ordering::Acquire)) && !self.sent_after(mine) {
            // It comes of a doorbell that was left unread.
            return None;
        }
        let _ = self.tell_reset(fd, mine, errno);
        Some(errno)
    }

    /// The kernel itself tells an error to the program: not again from us, if it is that of a reset.
    pub fn tells(&self, w: &World, errno: i32) {
        if errno == ECONNRESET
            && let Some((mine, _)) = self.halves(w)
        {
            mine.flags.fetch_or(flag::TOLD, Ordering::Relaxed);
            self.kernel.fetch_and(!(kernel::ERR | kernel::RESET), Ordering::Relaxed);
            self.kernel.fetch_or(kernel::TOLD, Ordering::Relaxed);
        }
    }

    /// Keeps an error for the next call, which was to be told by one that had bytes to give.
    pub fn tell_later(&self, w: &World, errno: i32) {
        self.error.store(errno.cast_unsigned(), Ordering::Relaxed);
        self.kernel.fetch_and(!kernel::TOLD, Ordering::Relaxed);
        if let Some((mine, _)) = self.halves(w) {
            mine.flags.fetch_and(!flag::TOLD, Ordering::Relaxed);
        }
    }

    /// Whether the peer has closed, and not made a reset of it: whatever the kernel then says comes of
    /// a doorbell that was left unread.
    #[must_use]
    pub const fn closed_cleanly(peer_flags: u32) -> bool {
        peer_flags & (flag::CLOSED | flag::RESET | flag::OVER) == flag::CLOSED
    }

    /// Whether bytes were sent after the peer had closed, here or in another process that shares this
    /// end: then what the kernel says counts.
    #[must_use]
    pub fn sent_after(&self, mine: &Half) -> bool {
        self.kernel.load(Ordering::Relaxed) & kernel::AFTER_CLOSE != 0
            || mine.flags.load(Ordering::Relaxed) & flag::AFTER != 0
    }

    /// The error of a reset, once.
    pub(super) fn tell_reset(&self, fd: i32, mine: &Half, errno: i32) -> Got {
        mine.flags.fetch_or(flag::TOLD, Ordering::Relaxed);
        let _ = call::getsockopt::<i32>(fd, 1, 4);
        self.error.store(0, Ordering::Relaxed);
        self.kernel.fetch_and(!(kernel::ERR | kernel::RESET), Ordering::Relaxed);
        self.kernel.fetch_or(kernel::TOLD | kernel::RDHUP | kernel::HUP, Ordering::Relaxed);
        Got::Failed(errno)
    }

    /// What the end of the socket means for the stream, when the peer has not said so itself (it was
    /// killed, or its program was replaced). The kernel resets when something was left unread: here
    /// that is what is left in the ring, and not a doorbell.
    pub fn judge_end(&self, mine: &Half, peer: &Half) {
        let hints = self.kernel.load(Ordering::Relaxed);
        if hints & (kernel::RDHUP | kernel::HUP | kernel::ERR) == 0
            || hints & (kernel::CLEAN | kernel::RESET | kernel::TOLD | kernel::AFTER_CLOSE) != 0
        {
            return;
        }
        let flags = peer.flags.load(Ordering::Acquire);
        let own = mine.flags.load(Ordering::Relaxed);
        let reset = hints & (kernel::ERR | kernel::HUP) != 0;
        // An engine says before how its end is meant. One that has not was killed, in the middle of a connection to another
        // host, whatever it had read by then, and also where that host has ended its own direction.
        let killed =
            self.stands_in() && (flags & flag::SHUT == 0 || reset && own & flag::SHUT == 0);
        if flags & (flag::CLOSED | flag::DOWN) != 0
            || flags & flag::SHUT != 0 && !killed
            || own & (flag::DOWN | flag::SHUT_RD) != 0
        {
            return;
        }
        let unread = peer.head.load(Ordering::Acquire) != mine.sent.load(Ordering::Relaxed)
            && own & flag::UP != 0;
        let bells_left = peer.drained.load(Ordering::Relaxed) != mine.bells.load(Ordering::Relaxed);
        if unread || killed {
            self.kernel.fetch_or(kernel::RESET, Ordering::Relaxed);
        } else if reset && bells_left {
            self.kernel.fetch_or(kernel::CLEAN, Ordering::Relaxed);
        }
    }

    /// Asks the kernel whether the stream has ended; `None`: it has not.
    fn at_end(
        &self,
        _w: &World,
        fd: i32,
        mine: &Half,
        peer: &Half,
        peer_flags: u32,
    ) -> Option<Got> {
        if self.sleepers(mine) == 0 {
            self.drain_bells(mine, peer, fd);
            if matches!(WaitWord::parse(mine.wait.load(Ordering::Relaxed)), WaitWord::Cold(_)) {
                // Before the look at what has come: as in `drained`.
                Self::arm_anew(mine);
            }
        }
        // Before the look at what has come: another thread may find both the end and that it is clean in between.
        let is_clean = self.kernel.load(Ordering::Acquire) & kernel::CLEAN != 0;
        if ring::tail(&peer.tail) != mine.head.load(Ordering::Relaxed)
            && peer_flags & flag::DOWN == 0
            && (is_clean || mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN == 0)
        {
            return Some(Got::Failed(EAGAIN_RETRY));
        }
        if is_clean {
            // What waits is for who sends.
            return Some(Got::End);
        }
        let mut errno = self.error.swap(0, Ordering::Relaxed).cast_signed();
        let mut ended = false;
        if errno == 0 {
            let mut byte = [0u8; 1];
            match call::recv(fd, &mut byte, MSG_DONTWAIT | MSG_PEEK) {
                Ok(0) => {
                    ended = true;
                    self.kernel.fetch_or(kernel::RDHUP, Ordering::Relaxed);
                }
                Ok(_) | Err(11) => {}
                Err(e) => errno = e,
            }
        }
        if errno != 0 {
            self.kernel.fetch_or(kernel::RDHUP | kernel::HUP | kernel::ERR, Ordering::Relaxed);
        }
        if errno == 0 && !ended {
            return None;
        }
        // Bytes that were written before the end are seen before it.
        if ring::tail(&peer.tail) != mine.head.load(Ordering::Relaxed)
            && peer_flags & flag::DOWN == 0
        {
            if errno != 0 {
                self.error.store(errno.cast_unsigned(), Ordering::Relaxed);
            }
            return Some(Got::Failed(EAGAIN_RETRY));
        }
        self.judge_end(mine, peer);
        let hints = self.kernel.load(Ordering::Relaxed);
        if hints & kernel::CLEAN != 0 {
            return Some(Got::End);
        }
        if hints & kernel::RESET != 0 {
            return Some(self.tell_reset(fd, mine, if errno == 0 { ECONNRESET } else { errno }));
        }
        if errno != 0 {
            return Some(self.tell_reset(fd, mine, errno));
        }
        Some(Got::End)
    }

    /// Unread bytes: in the ring, and before the switch in TCP.
    #[must_use]
    pub fn unread(&self, w: &World, fd: i32) -> Option<usize> {
        const FIONREAD: u64 = 0x541b;
        let (mine, peer) = self.halves(w)?;
        let in_tcp = || usize::try_from(call::ioctl_int(fd, FIONREAD).unwrap_or(0)).unwrap_or(0);
        let taken = mine.tcp_rx.load(Ordering::Relaxed);
        let flags = peer.flags.load(Ordering::Acquire);
        let before = if flags & flag::UP == 0 {
            in_tcp()
        } else {
            let until = peer.up_at.load(Ordering::Relaxed).saturating_sub(taken);
            usize::try_from(until).unwrap_or(0).min(if until == 0 { 0 } else { in_tcp() })
        };
        let head = mine.head.load(Ordering::Relaxed);
        let ring = |until: u64| usize::try_from(until.wrapping_sub(head)).unwrap_or(0).min(8 << 20);
        if flags & flag::DOWN != 0 {
            let announced = peer.bells.load(Ordering::Relaxed);
            let bells = announced.wrapping_sub(mine.drained.load(Ordering::Relaxed)) as usize;
            let after = in_tcp().saturating_sub(bells + before);
            return Some(before + ring(peer.down_at.load(Ordering::Relaxed)) + after);
        }
        let in_ring = ring(ring::tail(&peer.tail));
        Some(before + in_ring)
    }
}

/// A receive of the kernel's that is going on: see [`Conn::receiving`].
#[derive(Debug)]
pub struct Receiving<'a>(&'a Conn);

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.0.in_kernel.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A value of [`Got::Failed`] that never reaches a program: look again, something came meanwhile.
pub const EAGAIN_RETRY: i32 = 0x7fff;

const ECONNRESET: i32 = 104;
const EPIPE: i32 = 32;

/// Looks at a socket by 256 doorbells each, of one call.
const DRAINS_MAX: u32 = 1 << 10;

/// How long the kernel's reset may lag behind the word of the peer.
const RESET_NS: u64 = 10_000_000;

/// Whether no other process uses this half of ours.
#[inline]
fn is_own(mine: &Half) -> bool {
    mine.users.load(Ordering::Relaxed) == 1
}

/// Says where we run; the peer reads the line with each message, so it is written only when that changes.
#[inline]
pub(crate) fn note_cpu(mine: &Half) {
    let cpu = call::cpu();
    if mine.cpu.load(Ordering::Relaxed) != cpu {
        mine.cpu.store(cpu, Ordering::Relaxed);
    }
}

/// Adds to a counter that has one writer at a time: no locked instruction.
#[inline]
fn add64(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

#[inline]
fn add32(counter: &AtomicU32, n: u32) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

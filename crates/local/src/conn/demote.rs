//! Back to TCP in the middle of a stream.
//!
//! A sender may go back at any time: it says at which ring offset ([`Half::down_at`]) and goes on
//! by TCP, behind the doorbells that it has announced. A *reader* that cannot go on (its program is
//! replaced, or hands the socket to one without the library) freezes its `head`, says so
//! (`WANT_DOWN`), and the sender sends what lies behind it once more, by TCP.

use super::send::fit;
use super::{
    AtomicU32, AtomicU64, Conn, Got, Half, Level, Loc, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK,
    Ordering, Phase, Reason, World, call, flag, half_state, kernel, lock, ring, switch,
};

/// A peer that does not answer within this time is cut off.
const PATIENCE_NS: u64 = 100_000_000;
/// One that is in the middle of a send all the while, because it was stopped there: nobody can do its part for it, and it has
/// lost nothing when it goes on.
const STOPPED_NS: u64 = 5_000_000_000;
/// One that lives and does not run, where the connection ends otherwise: together with all others that are waited for like
/// this.
const RUNS_NS: u64 = 2_000_000_000;
/// After that, for so long none is given more than [`PATIENCE_NS`]: what never answers is not waited for with each connection.
const RUNS_PAUSE_NS: u64 = 30_000_000_000;
/// One whose part we may not do, as it is another user's process, or in another namespace of processes: it is asked, and
/// answers when its program makes a call next.
const OTHERS_NS: u64 = 5_000_000_000;
/// After that, for so long no other one is waited for like this: a program has many connections.
const OTHERS_PAUSE_NS: u64 = 1_000_000_000;
/// How long what lies in the ring may stay there before nobody reads it.
const STANDS_NS: u64 = 1_000_000_000;
/// A peer that has not answered by then has its part done for it, if that is allowed.
const PROXY_NS: u64 = 3_000_000;
/// So many bytes that the peer has not read surely find room in the socket.
const SURE_BYTES: u64 = 16 << 10;
/// So many bytes that lie in the socket before what is in the ring are sent again.
const BEFORE_MAX: u64 = 1 << 20;
/// How long a peer that sends at the moment is waited for, nanoseconds.
const BORROW_NS: u64 = 10_000_000;
const MSG_MORE: i32 = 0x8000;
/// How long bytes that are sent again may take to find room in the socket.
const REPLAY_NS: u64 = 2_000_000_000;

impl Conn {
    /// Our direction goes back to TCP at the ring offset `at`. The caller holds the send lock.
    pub(super) fn go_down(&self, w: &World, fd: i32, mine: &Half, at: u64) {
        self.go_down_within(w, fd, mine, at, PATIENCE_NS);
    }

    /// [`Self::go_down`], which waits for so many nanoseconds for room in the socket for a doorbell that it owes.
    fn go_down_within(&self, w: &World, fd: i32, mine: &Half, at: u64, patience: u64) {
        if mine.flags.load(Ordering::Relaxed) & flag::DOWN != 0 {
            return;
        }
        // An announced doorbell must come before what follows.
        let _bell = lock::lock_of(&mine.bell_lock, &mine.lent);
        let deadline = call::now_ns() + patience;
        while mine.bell_owed.load(Ordering::Relaxed) != 0 {
            if call::send(fd, &[0x5a], MSG_DONTWAIT | MSG_NOSIGNAL).is_ok() {
                mine.bell_owed.store(0, Ordering::Relaxed);
            } else if call::now_ns() >= deadline {
                break;
            }
        }
        if mine.bell_owed.swap(0, Ordering::Relaxed) != 0 {
            // It was never sent: the reader must not take a byte of the program's for it.
            let n = mine.bells.load(Ordering::Relaxed);
            mine.bells.store(n.wrapping_sub(1), Ordering::Release);
        }
        switch::go_down(&mine.flags, &mine.down_at, at);
        // What comes now the kernel tells. Of `mine`, which may be that of a peer whose part we do.
        let other = mine.peer.load(Ordering::Relaxed).checked_sub(1);
        if let Some(other) = other.and_then(|other| w.board.map.half(other)) {
            Self::rouse(w, mine, other);
        }
        if mine.flags.load(Ordering::Relaxed) & flag::SHUT != 0 {
            let _ = call::shutdown(fd, 1);
        }
        if w.limits.log >= Level::Debug {
            crate::log::line(format_args!("{}: back on TCP at ring offset {at}", self.called(fd)));
        }
    }

    /// The peer has frozen: sends again by TCP what it has not read, and goes down. `false`: it
    /// reads on, and nothing has changed.
    pub(super) fn go_down_for(&'static self, w: &World, fd: i32, mine: &Half, peer: &Half) -> bool {
        let Some(from) = switch::answer(&mine.flags, &peer.flags, &peer.head) else {
            return false;
        };
        self.because_asked(w, mine);
        let socket = || self.descriptor(fd);
        if let Err(hole) = self.replay(w, &socket, mine, peer, from) {
            self.is_not_whole(w, socket(), mine, hole);
        }
        true
    }

    /// A direction that goes back by itself must not pass over a reader that waits for what it has frozen at, and may have
    /// taken out of the socket. The caller holds the send lock.
    pub(super) fn goes_down_as_wanted(
        &'static self,
        w: &World,
        fd: i32,
        mine: &Half,
        peer: &Half,
    ) -> bool {
        peer.flags.load(Ordering::Acquire) & flag::WANT_DOWN != 0
            && mine.flags.load(Ordering::Relaxed) & flag::DOWN == 0
            && self.go_down_for(w, fd, mine, peer)
    }

    fn because_asked(&self, w: &World, mine: &Half) {
        if mine.reason.load(Ordering::Relaxed) == 0 {
            mine.reason.store(Reason::PeerAsked.code(), Ordering::Relaxed);
            w.count(Reason::PeerAsked);
        }
    }

    /// Our ring is full, and the peer's own direction is on TCP, where no doorbell can tell us of
    /// room: what comes next goes by TCP as well, whose room the kernel tells. The caller holds the
    /// send lock.
    pub(super) fn go_down_full(
        &'static self,
        w: &World,
        fd: i32,
        mine: &Half,
        peer: &Half,
    ) -> bool {
        if peer.flags.load(Ordering::Acquire) & flag::DOWN == 0 {
            return false;
        }
        self.because_asked(w, mine);
        if !self.goes_down_as_wanted(w, fd, mine, peer) {
            self.go_down(w, fd, mine, mine.sent.load(Ordering::Relaxed));
        }
        true
    }

    /// Goes down at the reader's frozen head and sends what it has taken out unread, and then what lies behind the head,
    /// by TCP, through `socket`, the descriptor of that of `mine`: another thread may close it meanwhile, and then the call
    /// has another one.
    fn replay(
        &self,
        w: &World,
        socket: &dyn Fn() -> i32,
        mine: &Half,
        reader: &Half,
        from: u64,
    ) -> Result<(), Hole> {
        let tail = mine.sent.load(Ordering::Relaxed);
        let again = Self::again(w, reader).ok_or(Hole::Nonsense)?;
        let loc = Loc::parse(mine.loc.load(Ordering::Relaxed));
        let next = Loc::parse(mine.next_loc.load(Ordering::Relaxed));
        let next_at = mine.next_at.load(Ordering::Relaxed);
        let most = Self::rings(mine);
        let (loc, from, left) = match loc {
            Some(loc) => match ring::used(from, tail, most) {
                Ok(left) => (loc, from, left),
                Err(_) => return Err(Hole::Nonsense),
            },
            None => (Loc { block: 0, order: 0 }, tail, 0),
        };
        let shut = mine.flags.load(Ordering::Relaxed) & flag::SHUT != 0;
        let some = left > 0 || !again.is_empty();
        if some && shut {
            // The end goes out behind the bytes.
            mine.flags.fetch_and(!flag::SHUT, Ordering::Relaxed);
        }
        if !again.is_empty() {
            // Before the reader sees that we are down.
            mine.again_sent.store(1, Ordering::Relaxed);
        }
        self.go_down(w, socket(), mine, from);
        let deadline = call::now_ns() + REPLAY_NS;
        let more = if left > 0 { MSG_MORE } else { 0 };
        if !send_all(socket, &again, more, deadline) {
            return Err(Hole::NotTaken);
        }
        let mut at = from;
        let end = from.wrapping_add(left as u64);
        let mut chunk = vec![0u8; left.min(64 << 10)];
        while at != end {
            #[expect(clippy::cast_possible_truncation, reason = "at most the ring")]
            let mut n = (end.wrapping_sub(at) as usize).min(chunk.len());
            let before = next_at.wrapping_sub(at).cast_signed();
            let place = match next {
                Some(next) if before <= 0 => next,
                Some(_) => {
                    n = n.min(usize::try_from(before).unwrap_or(n));
                    loc
                }
                None => loc,
            };
            n = n.min(place.bytes());
            w.board.map.copy_out(place, at, &mut chunk[..n]);
            if !send_all(socket, &chunk[..n], 0, deadline) {
                return Err(Hole::NotTaken);
            }
            at = at.wrapping_add(n as u64);
        }
        if some && shut {
            mine.flags.fetch_or(flag::SHUT, Ordering::Release);
            let _ = call::shutdown(socket(), 1);
        }
        Ok(())
    }

    /// Does the peer's part of a demotion for it: its process does not call us, perhaps because it
    /// sleeps in something else. Needs the kernel's permission to borrow its socket, as a debugger
    /// would (the same user, and no policy against it). Who waits for it is the one who would have to read: so behind
    /// bytes that are to be read first it is not begun where its socket does not surely take all (answers `false`), unless the
    /// connection ends otherwise (`must`).
    /// An error: not all of it went, and the stream has a hole.
    fn replay_for_peer(&self, w: &World, mine: &Half, must: bool) -> Result<bool, Hole> {
        let Some(index) = mine.peer.load(Ordering::Relaxed).checked_sub(1) else { return Ok(true) };
        let Some(peer) = w.board.map.half(index) else { return Ok(true) };
        let Some(fd) = Self::socket_of(w, peer) else { return Ok(true) };
        let known = self.ends.lock().and_then(|e| *e);
        let name = |peer| call::name(fd, peer).ok().flatten().map(|a| (*a.ip(), a.port()));
        // All that a listener has accepted share its own name.
        let is_it = known.is_some_and(|e| {
            name(false) == Some((*e.remote.ip(), e.remote.port()))
                && name(true) == Some((*e.local.ip(), e.local.port()))
        });
        let mut whole = Ok(true);
        if is_it {
            // Never waited for: whoever holds them may be stopped, or have written them himself. What we have borrowed
            // `go_down` does not wait for either. The third: who is in the middle of a read by TCP takes what comes
            // behind our switch for doorbells, so nothing else may come there.
            let locks = [&peer.tx_lock, &peer.bell_lock, &peer.rx_lock];
            Self::borrowing(w, (index, peer), &locks, || {
                if peer.flags.load(Ordering::Relaxed) & flag::DOWN != 0 {
                    return;
                }
                let behind = Self::before(mine, peer) > 0;
                if behind && !must && Self::sent_again(mine, peer) > room_in_socket(fd) {
                    whole = Ok(false);
                } else if let Some(from) = switch::answer(&peer.flags, &mine.flags, &mine.head) {
                    whole = self.replay(w, &|| fd, peer, mine, from).map(|()| true);
                }
            });
        }
        let _ = call::close(fd);
        whole
    }

    /// Bytes that a peer has to send again if it goes back now, of which we are the reader. What makes no sense counts as
    /// nothing: that is found by who sends it.
    fn sent_again(mine: &Half, peer: &Half) -> u64 {
        let (tail, head) = (peer.sent.load(Ordering::Relaxed), mine.head.load(Ordering::Relaxed));
        let in_ring = ring::used(head, tail, Self::rings(peer)).unwrap_or(0);
        let is_taken = mine.again.load(Ordering::Relaxed) != 0;
        let taken = if is_taken { mine.again_bytes.load(Ordering::Relaxed) } else { 0 };
        in_ring as u64 + u64::from(taken)
    }

    /// Bytes of a half's ring, and of the next one, if it has begun that.
    fn rings(half: &Half) -> usize {
        let [loc, next] = [&half.loc, &half.next_loc].map(|word| word.load(Ordering::Relaxed));
        [loc, next].into_iter().filter_map(Loc::parse).map(Loc::bytes).sum()
    }

    /// The socket of a half of another process, borrowed: to be closed. `None`: the kernel does not let us, or it is gone.
    fn socket_of(w: &World, peer: &Half) -> Option<i32> {
        let slot = peer.slot.load(Ordering::Relaxed);
        // In another namespace of processes its number is somebody else's. And a filter may end who asks for a descriptor of
        // another process, as those of systemd do (`SystemCallFilter=@system-service`).
        let is_unknown = slot as usize >= sys::abi::SLOTS || !w.board.knows_pid_of(slot);
        if is_unknown || call::is_filtered() {
            return None;
        }
        let pidfd = call::pidfd_open(w.board.map.slot(slot).pid.load(Ordering::Relaxed)).ok()?;
        let fd = call::pidfd_getfd(pidfd, peer.fd.load(Ordering::Relaxed).cast_signed());
        let _ = call::close(pidfd);
        fd.ok()
    }

    /// Whether a demotion may take bytes out of the socket, which the peer has to send again: where the connection ends if
    /// it does not, and where we can do its part.
    fn may_take_back(&self, w: &World, fd: i32, peer: &Half, reason: Reason) -> bool {
        reason.is_for_others()
            && !self.is_used_by_others(w)
            && (reason == Reason::Passed
                || reason == Reason::Exec && fd == 0
                || Self::socket_of(w, peer).map(call::close).is_some())
    }

    /// Does something while nobody at the other end has these locks of it; `None`: somebody has one, or the peer has
    /// closed, and it was not done.
    pub(super) fn borrowing<T>(
        w: &World,
        (index, peer): (u32, &Half),
        locks: &[&AtomicU32],
        act: impl FnOnce() -> T,
    ) -> Option<T> {
        let _lending = w.lending.try_lock()?;
        if !w.board.map.lend(index, true) {
            return None;
        }
        let done = lock::borrow(&peer.lent, locks).map(|_held| act());
        if w.board.slot() != Some(peer.slot.load(Ordering::Relaxed)) && !w.keeps_halves_open() {
            w.board.map.lend(index, false);
        }
        done
    }

    /// Bytes of TCP from before the switch are unread, and doorbells lie behind them or may come to: they cannot be left
    /// there for who does not know what a doorbell is. Takes them out, for the peer to send them again with what is in its
    /// ring; nobody reads this connection from here on before that has been done. The caller holds the receive lock and the
    /// peer's send lock, so that the peer does not go back by itself meanwhile.
    fn take_back(&self, w: &World, fd: i32, mine: &Half, peer: &Half) {
        let before = Self::before(mine, peer);
        if before == 0
            || before > BEFORE_MAX
            || peer.flags.load(Ordering::Acquire) & flag::DOWN != 0
            // The peer looks for it in the memory of whoever has made our half.
            || self.is_inherited(w, mine)
        {
            return;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most BEFORE_MAX")]
        let mut bytes = vec![0u8; before as usize];
        // What is taken must be all of it. A look ends at urgent data.
        if call::recv(fd, &mut bytes, MSG_DONTWAIT | MSG_PEEK) != Ok(bytes.len()) {
            return;
        }
        let Some(loc) = self.new_ring(w, fit(bytes.len()), fit(bytes.len())) else { return };
        if loc.bytes() < bytes.len() || call::recv(fd, &mut bytes, MSG_DONTWAIT) != Ok(bytes.len())
        {
            if let Some(mut arena) = w.arena.lock() {
                arena.free_block(&w.board, loc);
            }
            return;
        }
        w.board.map.copy_in(loc, 0, &bytes);
        #[expect(clippy::cast_possible_truncation, reason = "at most BEFORE_MAX")]
        mine.again_bytes.store(bytes.len() as u32, Ordering::Relaxed);
        // Release: the bytes before their place. Pairs with `again`.
        mine.again.store(loc.emit(), Ordering::Release);
        mine.tcp_rx.fetch_add(before, Ordering::Relaxed);
    }

    /// What a reader has taken out of the socket, to be sent again; `None`: it says nonsense.
    pub(super) fn again(w: &World, reader: &Half) -> Option<Vec<u8>> {
        // Acquire: the bytes. Pairs with `take_back`.
        let word = reader.again.load(Ordering::Acquire);
        if word == 0 {
            return Some(Vec::new());
        }
        let loc = Loc::parse(word)?;
        let n = usize::try_from(reader.again_bytes.load(Ordering::Relaxed)).ok()?;
        let owner = w.board.map.owner_of(loc.offset());
        if n > loc.bytes() || owner != Some(reader.slot.load(Ordering::Relaxed)) {
            return None;
        }
        let mut bytes = vec![0u8; n];
        w.board.map.copy_out(loc, 0, &mut bytes);
        Some(bytes)
    }

    /// Begins a demotion: from here on nobody takes anything out of the ring. `false`: doorbells would stay among the bytes
    /// of the stream.
    fn freeze_for(&self, w: &World, fd: i32, mine: &Half, peer: &Half, takes_back: bool) -> bool {
        let index = mine.peer.load(Ordering::Relaxed).checked_sub(1).filter(|_| takes_back);
        let deadline = call::now_ns() + BORROW_NS;
        loop {
            {
                let Some(_rx) = lock::lock_of(&mine.rx_lock, &mine.lent) else { return false };
                let frozen = || {
                    let free = !Self::is_behind(mine, peer);
                    if free {
                        switch::freeze(&mine.flags);
                    }
                    free
                };
                let Some(index) = index.filter(|_| Self::before(mine, peer) > 0) else {
                    return frozen();
                };
                let done = Self::borrowing(w, (index, peer), &[&peer.tx_lock], || {
                    self.take_back(w, fd, mine, peer);
                    frozen()
                });
                match done {
                    Some(frozen) => return frozen,
                    None if call::now_ns() > deadline => return frozen(),
                    None => {}
                }
            }
            call::sched_yield();
        }
    }

    /// Whether bytes of the stream are neither in the socket nor in the ring any more, because a demotion has begun that
    /// did not end: nobody can go on with it.
    #[must_use]
    pub fn is_torn(&self, w: &World) -> bool {
        self.phase() == Phase::Attached
            && self.halves(w).is_some_and(|(mine, peer)| Self::is_gone(mine, peer))
    }

    /// Whether what was taken out of the socket has not been sent again.
    pub(super) fn is_gone(mine: &Half, peer: &Half) -> bool {
        mine.again.load(Ordering::Relaxed) != 0
            && (peer.flags.load(Ordering::Acquire) & flag::DOWN == 0
                || peer.again_sent.load(Ordering::Relaxed) == 0)
    }

    /// Does what a peer that wants to go back to TCP waits for, if it does.
    pub fn answer_demotion(&'static self, w: &World, fd: i32, mine: &Half, peer: &Half) {
        let asks = |flags: u32| {
            flags & flag::WANT_DOWN != 0 || flags & flag::DOWN != 0 && !self.has_room(mine, peer)
        };
        if !asks(peer.flags.load(Ordering::Acquire))
            || mine.flags.load(Ordering::Relaxed) & flag::DOWN != 0
        {
            return;
        }
        if let Some(_held) = lock::lock_of(&mine.tx_lock, &mine.lent)
            && self.descriptor(fd) >= 0
            && mine.flags.load(Ordering::Relaxed) & flag::DOWN == 0
        {
            if peer.flags.load(Ordering::Relaxed) & flag::WANT_DOWN != 0 {
                self.go_down_for(w, fd, mine, peer);
            } else {
                self.go_down_full(w, self.descriptor(fd), mine, peer);
            }
        }
    }

    /// Engine: goes back to TCP if the guest waits for that, or for `why`. It waits for nobody: what the guest has not read
    /// of the bytes before `published`, in a ring of `bytes`, is the caller's to send when there is room. Answers the ring
    /// offset from which on that is, and whether the end must follow it.
    pub(crate) fn goes_down_for_guest(
        &'static self,
        w: &World,
        fd: i32,
        (published, bytes): (u64, usize),
        why: Option<Reason>,
    ) -> Option<(u64, bool)> {
        let (mine, peer) = self.halves(w)?;
        let is_wanted = |flags: u32| {
            let is_full = flags & flag::DOWN != 0 && !self.has_room(mine, peer);
            why.is_some() || flags & flag::WANT_DOWN != 0 || is_full
        };
        let is_down = || mine.flags.load(Ordering::Relaxed) & flag::DOWN != 0;
        if !is_wanted(peer.flags.load(Ordering::Acquire)) || is_down() {
            return None;
        }
        let _held = lock::lock_of(&mine.tx_lock, &mine.lent)?;
        if is_down() {
            return None;
        }
        let wanted = peer.flags.load(Ordering::Acquire) & flag::WANT_DOWN != 0;
        let frozen = wanted.then(|| switch::answer(&mine.flags, &peer.flags, &peer.head)).flatten();
        let from = match (frozen, why) {
            (Some(from), _) => from,
            (None, Some(why)) => {
                Self::because(w, mine, why);
                published
            }
            // It has thought better of it.
            (None, None) if wanted => return None,
            (None, None) => published,
        };
        if why.is_none() {
            self.because_asked(w, mine);
        }
        let Ok(left) = ring::used(from, published, bytes) else {
            let _ = self.broken(w, fd, mine);
            return None;
        };
        let ends = left > 0 && mine.flags.load(Ordering::Relaxed) & flag::SHUT != 0;
        if ends {
            // Behind the bytes.
            mine.flags.fetch_and(!flag::SHUT, Ordering::Relaxed);
        }
        self.go_down_within(w, fd, mine, from, 0);
        Some((from, ends))
    }

    /// Our sending side goes back to TCP for what follows, which no ring can carry; what the peer has not read goes with
    /// it, if that is little: it could not put one before the other for a program that reads the socket itself.
    pub fn send_by_tcp(&'static self, w: &World, fd: i32, reason: Reason) {
        if self.phase() == Phase::Attached
            && let Some((mine, peer)) = self.halves(w)
            // Behind our own end nothing is sent.
            && mine.flags.load(Ordering::Relaxed) & (flag::DOWN | flag::SHUT) == 0
        {
            Self::because(w, mine, reason);
            self.freeze_peer(w, fd, mine, peer);
        }
        self.demote_sender(w, fd, reason);
    }

    /// Our sending side goes back to TCP; the peer reads on.
    pub fn demote_sender(&'static self, w: &World, fd: i32, reason: Reason) {
        let Some((mine, peer)) = self.halves(w) else { return };
        let Some(_held) = lock::lock_of(&mine.tx_lock, &mine.lent) else { return };
        let fd = self.descriptor(fd);
        if fd >= 0 && mine.flags.load(Ordering::Relaxed) & flag::DOWN == 0 {
            Self::because(w, mine, reason);
            if self.goes_down_as_wanted(w, fd, mine, peer) {
                return;
            }
            self.go_down(w, fd, mine, mine.sent.load(Ordering::Relaxed));
        }
    }

    fn because(w: &World, mine: &Half, reason: Reason) {
        if mine.reason.swap(reason.code(), Ordering::Relaxed) != reason.code() {
            w.count(reason);
        }
    }

    /// Both directions go back to TCP. Waits (a tenth of a second at most; some seconds where the connection ends otherwise, or
    /// its part is not ours to do) until the peer has done its part, and takes the last doorbells out of the socket, so that
    /// afterwards any program may read it. `false`: the peer did not answer.
    #[must_use]
    pub fn demote(&'static self, w: &World, fd: i32, reason: Reason) -> bool {
        // Once more where that may have become possible; a peer can say so for ever.
        for is_last in [false, true] {
            if self.phase() != Phase::Attached {
                return self.keep_tcp(w, fd, reason) || self.demote(w, fd, reason);
            }
            let Some((mine, peer)) = self.halves(w) else { return true };
            let has_gone = self.goes_back(w, fd, mine, peer, reason);
            // Only a wait that was in vain to its end counts against the next ones.
            for until in [&w.runs_until, &w.stopped_until] {
                if has_gone || call::now_ns() < until.load(Ordering::Relaxed) {
                    until.store(0, Ordering::Relaxed);
                }
            }
            if has_gone {
                return true;
            }
            // One that has closed does nothing more: what it has left is the caller's to give on.
            let has_closed = peer.flags.load(Ordering::Acquire) & flag::CLOSED != 0;
            let may_be = reason.is_for_others() && !has_closed;
            if is_last || !(may_be && self.is_read_up(w, mine, peer)) {
                break;
            }
        }
        false
    }

    /// One attempt at [`Self::demote`].
    fn goes_back(
        &'static self,
        w: &World,
        fd: i32,
        mine: &Half,
        peer: &Half,
        reason: Reason,
    ) -> bool {
        let takes_back = Self::before(mine, peer) > 0 && self.may_take_back(w, fd, peer, reason);
        if !self.freeze_for(w, fd, mine, peer, takes_back) {
            return false;
        }
        // Before the peer's answer, which may come at once, could be taken for its wish.
        Self::because(w, mine, reason);
        self.ring_for_demotion(w, fd, mine, peer);
        self.freeze_peer(w, fd, mine, peer);
        self.demote_sender(w, fd, reason);
        let begun = call::now_ns();
        let (mut deadline, mut proxy) = (begun + PATIENCE_NS, begun + PROXY_NS);
        let mut late = false;
        // Where the connection ends otherwise, one that lives is given more time to run, once.
        let (mut is_longer, mut may_be_longer) = (false, reason.is_for_others());
        let mut is_others = false;
        loop {
            let peer_flags = peer.flags.load(Ordering::Acquire);
            let down = peer_flags & flag::DOWN != 0;
            if down && Self::is_behind(mine, peer) {
                return false;
            }
            if !down && !is_others && call::now_ns() > proxy {
                let sends = Self::is_sending(peer);
                if Self::is_others(w, peer) {
                    (is_others, may_be_longer) = (true, false);
                    // Of a namespace it is not waited for: nothing would go wrong at once.
                    if reason != Reason::Namespace {
                        deadline = shared_deadline(
                            &w.waits_until,
                            begun,
                            (OTHERS_NS, OTHERS_PAUSE_NS),
                            call::now_ns(),
                        );
                    }
                    continue;
                }
                // Behind what was not read of TCP there may be no room until it is, and it is ours to read. The peer, once it
                // runs, does not keep us from that; in the end it is tried all the same, where the connection ends if not.
                let must = reason.is_for_others();
                let longest = (STOPPED_NS, RUNS_PAUSE_NS);
                let last = shared_deadline(&w.stopped_until, begun, longest, call::now_ns());
                if sends {
                    if deadline < last {
                        deadline = deadline.max(call::now_ns() + PATIENCE_NS);
                    }
                } else {
                    match self.replay_for_peer(w, mine, must && call::now_ns() > last) {
                        Ok(true) => {}
                        Ok(false) if must => deadline = deadline.max(last + PATIENCE_NS),
                        Ok(false) => {}
                        Err(hole) => {
                            // Nothing goes over a connection that has ended in the kernel, and the program hears of that.
                            if !call::hung_up(fd) {
                                self.is_not_whole(w, fd, mine, hole);
                            }
                            return false;
                        }
                    }
                }
                // It had to be let alone, or could not be borrowed from: once more is enough, unless it was stopped.
                proxy = call::now_ns() + if sends { PROXY_NS } else { PATIENCE_NS / 2 };
                continue;
            }
            if down {
                let Some(_rx) = lock::lock_of(&mine.rx_lock, &mine.lent) else { return false };
                self.drain_bells(mine, peer, fd);
                if mine.drained.load(Ordering::Relaxed) == peer.bells.load(Ordering::Relaxed) {
                    break;
                }
            } else if (peer_flags & flag::CLOSED != 0
                || self.was_killed(fd, mine, peer, late || is_others || is_longer))
                && ring::tail(&peer.tail) == mine.head.load(Ordering::Relaxed)
                && mine.again.load(Ordering::Relaxed) == 0
            {
                // Nothing more will come.
                let Some(_rx) = lock::lock_of(&mine.rx_lock, &mine.lent) else { return false };
                self.drain_bells(mine, peer, fd);
                break;
            }
            if self.kernel.load(Ordering::Relaxed) & (kernel::HUP | kernel::ERR) != 0
                || late && (!may_be_longer || peer_flags & flag::CLOSED != 0)
            {
                return false;
            }
            if late {
                (is_longer, may_be_longer) = (true, false);
                deadline =
                    shared_deadline(&w.runs_until, begun, (RUNS_NS, RUNS_PAUSE_NS), call::now_ns());
            }
            // Once more: what was looked at may be from before we were stopped for longer than that.
            let now = call::now_ns();
            late = now > deadline;
            if is_others && !down || now > begun + PROXY_NS {
                // It may be long.
                call::pause_ms(1);
            } else {
                call::sched_yield();
            }
        }
        self.maybe_tcp(w, mine);
        true
    }

    /// The peer has gone back by itself, as it does when both ends go back at a time, and will not send again what lies in
    /// its ring. Other threads of ours may be reading that: lets them, and waits as long as it becomes less. `true`: nothing
    /// is left there.
    fn is_read_up(&self, w: &World, mine: &Half, peer: &Half) -> bool {
        let is_left = |head: u64| switch::fallen(&peer.flags, &peer.down_at) != Some(head);
        let mut head = mine.head.load(Ordering::Relaxed);
        if lock::alone() || switch::fallen(&peer.flags, &peer.down_at).is_none() {
            return false;
        }
        self.thaw(w);
        let mut deadline = call::now_ns() + STANDS_NS;
        while self.phase() == Phase::Attached && is_left(head) {
            let frozen = mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN != 0;
            let now = mine.head.load(Ordering::Relaxed);
            if now != head {
                (head, deadline) = (now, call::now_ns() + STANDS_NS);
            } else if frozen || call::now_ns() > deadline {
                return false;
            } else {
                call::pause_ms(1);
            }
        }
        true
    }

    /// Whether the kernel lets us do the peer's part at no time: not where it has gone, or is about to.
    fn is_others(w: &World, peer: &Half) -> bool {
        peer.flags.load(Ordering::Acquire) & flag::CLOSED == 0
            && Self::socket_of(w, peer).map(call::close).is_none()
    }

    /// Whether a program that takes the place of this one would have a stream with a hole in it: the peer has not
    /// answered, its part is not ours to do, and nobody else holds the connection.
    #[must_use]
    pub fn cannot_go_back(&'static self, w: &World) -> bool {
        self.phase() == Phase::Attached
            && !self.is_used_by_others(w)
            && self.halves(w).is_some_and(|(_, peer)| Self::is_others(w, peer))
    }

    /// Whether the peer has gone without a word, perhaps between the announcement of a doorbell and the doorbell.
    /// `ask`: whether to ask the kernel, even if it has said nothing of the kind yet.
    fn was_killed(&self, fd: i32, mine: &Half, peer: &Half, ask: bool) -> bool {
        let gone = kernel::HUP | kernel::ERR | kernel::RDHUP;
        (ask || self.kernel.load(Ordering::Relaxed) & gone != 0)
            && Self::is_deserted(fd, mine, peer)
    }

    /// Whether a thread of the peer is in the middle of a send, as far as can be seen.
    fn is_sending(peer: &Half) -> bool {
        let held = |word: &AtomicU32| word.load(Ordering::Relaxed) != 0;
        held(&peer.tx_lock) || held(&peer.bell_lock) || held(&peer.rx_lock)
    }

    /// Has the peer take nothing more out of our ring, so that what it has not read goes by TCP with the
    /// rest: else it could not go back itself before it has read that. Only where it is surely little.
    fn freeze_peer(&'static self, w: &World, fd: i32, mine: &Half, peer: &Half) {
        let unread = || {
            let tail = mine.sent.load(Ordering::Relaxed);
            tail.wrapping_sub(peer.head.load(Ordering::Acquire))
        };
        let flags = mine.flags.load(Ordering::Relaxed);
        if flags & (flag::UP | flag::DOWN) != flag::UP
            || !(1..=SURE_BYTES.min(room_in_socket(fd))).contains(&unread())
            // Then nothing goes by TCP any more, or it makes a reset.
            || call::hung_up(fd)
            || peer.flags.load(Ordering::Acquire) & flag::SHUT_RD != 0
        {
            return;
        }
        let Some(index) = mine.peer.load(Ordering::Relaxed).checked_sub(1) else { return };
        if peer.flags.load(Ordering::Relaxed) & flag::CLOSED != 0 {
            return;
        }
        Self::borrowing(w, (index, peer), &[&peer.rx_lock], || switch::freeze(&peer.flags));
        self.answer_demotion(w, fd, mine, peer);
    }

    /// Whether we cannot go back now: bytes lie in the peer's ring that it will not send again, because
    /// it has gone back to TCP by itself; or doorbells lie behind bytes of TCP that are to be read first.
    fn is_behind(mine: &Half, peer: &Half) -> bool {
        let left = peer.bells.load(Ordering::Acquire) != mine.drained.load(Ordering::Relaxed);
        Self::before(mine, peer) > 0 && left
            || peer.flags.load(Ordering::Acquire) & flag::DOWN != 0
                && peer.down_at.load(Ordering::Relaxed) != mine.head.load(Ordering::Relaxed)
    }

    fn ring_for_demotion(&self, w: &World, fd: i32, mine: &Half, peer: &Half) {
        if let Some(_held) = lock::lock_of(&mine.tx_lock, &mine.lent)
            && self.descriptor(fd) >= 0
            // Before the switch a doorbell would be taken for a byte of the stream.
            && mine.flags.load(Ordering::Relaxed) & (flag::UP | flag::DOWN) == flag::UP
        {
            self.notify(w, fd, mine, peer);
        }
    }

    /// What was there to be read is on its way to us by TCP, because we are frozen: by ourselves, or by a sender that goes
    /// back. A receive that does not wait must not miss it for that moment, or a program that was told of it finds nothing.
    /// Waits, a tenth of a second at most. `true`: there may be something now. The caller holds the receive lock.
    #[cold]
    pub(super) fn await_replay(
        &'static self,
        w: &World,
        fd: i32,
        mine: &Half,
        peer: &Half,
    ) -> bool {
        let unread = ring::tail(&peer.tail) != mine.head.load(Ordering::Relaxed)
            || mine.again.load(Ordering::Relaxed) != 0;
        let frozen = mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN != 0;
        if !unread || !frozen || self.kernel.load(Ordering::Relaxed) & kernel::VAIN != 0 {
            return false;
        }
        let deadline = call::now_ns() + PATIENCE_NS;
        let mut late = false;
        loop {
            // Whoever sends it holds this, also in the peer's place.
            let sends = |word: &AtomicU32| word.load(Ordering::Acquire) != 0;
            if peer.flags.load(Ordering::Acquire) & flag::DOWN == 0 {
                self.answer_demotion(w, fd, mine, peer);
            } else if !sends(&peer.tx_lock) && !sends(&peer.lent) || call::readable(fd).0 {
                return true;
            }
            if Self::is_deserted(fd, mine, peer) {
                // What was taken out of the socket is somebody's to put back: not ours.
                return mine.again.load(Ordering::Relaxed) == 0;
            }
            if late {
                // Whoever sends it has been stopped: not at each call.
                self.kernel.fetch_or(kernel::VAIN, Ordering::Relaxed);
                return false;
            }
            // Once more: what was looked at may be from before we were stopped for longer than that.
            late = call::now_ns() > deadline;
            call::sched_yield();
        }
    }

    /// Takes back what [`Self::demote`] has begun and the peer has not answered: we go on reading
    /// the ring, unless the answer comes at this very moment.
    pub fn thaw(&self, w: &World) {
        if let Some((mine, peer)) = self.halves(w)
            && let Some(_held) = lock::lock_of(&mine.rx_lock, &mine.lent)
            && mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN != 0
            // What comes next would be read before it.
            && !Self::is_gone(mine, peer)
        {
            if switch::fallen(&peer.flags, &peer.down_at)
                .is_some_and(|at| at != mine.head.load(Ordering::Relaxed))
            {
                // It has gone back by itself, and will not answer: what is in its ring is ours to read.
                mine.flags.fetch_and(!flag::WANT_DOWN, Ordering::Release);
                return;
            }
            let deadline = call::now_ns() + PATIENCE_NS;
            let _ = switch::thaw(&mine.flags, &peer.flags, || {
                call::sched_yield();
                call::now_ns() < deadline
            });
        }
    }

    /// Once both directions are back, the connection is TCP's for good.
    pub(super) fn maybe_tcp(&self, w: &World, mine: &Half) {
        let Some((_, peer)) = self.halves(w) else { return };
        if mine.flags.load(Ordering::Relaxed) & flag::DOWN != 0
            && peer.flags.load(Ordering::Acquire) & flag::DOWN != 0
            && self.swap_phase(Phase::Attached, Phase::Tcp)
        {
            if mine.reason.load(Ordering::Relaxed) == 0 {
                mine.reason.store(Reason::PeerAsked.code(), Ordering::Relaxed);
            }
            mine.state.store(half_state::TCP, Ordering::Release);
        }
    }

    /// The peer writes nonsense: this connection ends with a reset, and nothing else happens.
    #[cold]
    pub(super) fn broken(&self, w: &World, fd: i32, mine: &Half) -> Got {
        w.count(Reason::PeerBroken);
        mine.reason.store(Reason::PeerBroken.code(), Ordering::Relaxed);
        self.resets(w, fd, mine, Some("the peer wrote nonsense into its ring"))
    }

    /// Not all of the stream went back to TCP: the connection ends with a reset.
    #[cold]
    fn is_not_whole(&self, w: &World, fd: i32, mine: &Half, hole: Hole) {
        let _ = match hole {
            Hole::Nonsense => self.broken(w, fd, mine),
            // Who was killed has said nothing wrong.
            Hole::NotTaken if call::hung_up(fd) => self.resets(w, fd, mine, None),
            Hole::NotTaken => {
                self.resets(w, fd, mine, Some("the socket does not take what goes back to TCP"))
            }
        };
    }

    /// What all of these come to: the connection ends with a reset, and the log says why, unless its peer has gone.
    fn resets(&self, w: &World, fd: i32, mine: &Half, why: Option<&str>) -> Got {
        let peer = self.halves(w).map(|(_, peer)| peer);
        if let Some(why) = why.filter(|_| w.limits.log >= Level::Error) {
            crate::log::error(format_args!("{}: reset: {why}", self.called(fd)));
        }
        mine.flags.fetch_or(flag::CLOSED | flag::RESET | flag::SHUT, Ordering::Release);
        self.error.store(104, Ordering::Relaxed);
        self.kernel.fetch_or(kernel::HUP | kernel::ERR | kernel::RDHUP, Ordering::Relaxed);
        let _ = call::setsockopt(fd, 1, 13, [1i32, 0]);
        let _ = call::shutdown(fd, 2);
        if let Some(peer) = peer {
            Self::rouse(w, mine, peer);
        }
        Got::Failed(104)
    }
}

/// Why a stream that goes back to TCP is not whole.
#[derive(Clone, Copy, Debug)]
enum Hole {
    /// What the reader says makes no sense.
    Nonsense,
    /// The socket takes no more: the peer is gone, or does not read for [`REPLAY_NS`].
    NotTaken,
}

/// Until when a peer is waited for since `begun`, where all that are waited for like this have `for_ns` together, from the
/// first of them on: a program has many connections. After that nobody is for `pause_ns`. `until`: the end of it.
fn shared_deadline(until: &AtomicU64, begun: u64, (for_ns, pause_ns): (u64, u64), now: u64) -> u64 {
    let last = until.load(Ordering::Relaxed);
    if now < last {
        return last;
    }
    if last != 0 && now < last + pause_ns {
        return begun + PATIENCE_NS;
    }
    until.store(begun + for_ns, Ordering::Relaxed);
    begun + for_ns
}

/// Sends all of it by TCP. `false`: the socket takes it no more, or not before the deadline.
fn send_all(socket: &dyn Fn() -> i32, bytes: &[u8], flags: i32, deadline: u64) -> bool {
    let mut left = bytes;
    while !left.is_empty() {
        match call::send(socket(), left, MSG_DONTWAIT | MSG_NOSIGNAL | flags) {
            Ok(sent) => left = &left[sent.min(left.len())..],
            Err(11) if call::now_ns() < deadline => call::wait_writable(socket(), 10),
            Err(4) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Bytes that the socket takes for certain: what it may hold counts what the kernel needs for itself as well.
fn room_in_socket(fd: i32) -> u64 {
    const SO_SNDBUF: i32 = 7;
    const SIOCOUTQ: u64 = 0x5411;
    let most = call::getsockopt::<i32>(fd, 1, SO_SNDBUF).unwrap_or(0) / 4;
    let queued = call::ioctl_int(fd, SIOCOUTQ).unwrap_or(i32::MAX);
    u64::try_from(most.saturating_sub(queued)).unwrap_or(0)
}

#[cfg(test)]
mod tests;

//! How the two ends find each other, and how they part.

use sys::handler::Blocked;

use crate::config::End;
use crate::destination::Place;
use crate::turns::Turns;

use crate::board::{Found, netns_of};

use super::called::Called;
use super::links::{link, unlink};
use super::offered::Offered;
use super::{
    BELL, Conn, EAGAIN_RETRY, ECONNRESET, Ends, Got, Half, Kept, Level, Loc, MSG_DONTWAIT,
    Ordering, Phase, Reason, SocketAddrV6, WaitWord, World, add64, call, flag, full_fence,
    half_state, is_here, kernel, lock, offer, options, ring, switch, syn, taken,
};

/// A server looks this often for the offer of a peer whose bytes came by other ways than our calls.
const TRIES_MAX: u32 = 8;

const IPPROTO_TCP: i32 = 6;
const TCP_INFO: i32 = 11;
const TCP_NODELAY: i32 = 1;
const TCP_CORK: i32 = 3;
pub(super) const SIOCINQ: u64 = 0x541b;
pub(super) const SIOCATMARK: u64 = 0x8905;
pub(super) const SOL_SOCKET: i32 = 1;
pub(super) const SO_LINGER: i32 = 13;
const SO_COOKIE: i32 = 57;
/// `TCP_ESTABLISHED` in `tcpi_state`.
const ESTABLISHED: u8 = 1;
/// `TCP_CLOSE`.
const CLOSE: u8 = 7;

/// `IP_TRANSPARENT`, `IPV6_TRANSPARENT`.
const TRANSPARENT: [(i32, i32); 2] = [(0, 19), (41, 75)];
/// An address that is not known.
const NOWHERE: SocketAddrV6 = SocketAddrV6::new(std::net::Ipv6Addr::UNSPECIFIED, 0, 0, 0);

/// Flags of an end that has shut down both ways.
pub(super) const DEAF: u32 = flag::SHUT | flag::SHUT_RD;

/// The start of `struct tcp_info`, which libc knows only in part.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
struct Info([u64; 30]);

impl Info {
    fn state(&self) -> u8 {
        self.0[0].to_le_bytes()[0]
    }
    /// Bytes that the program has given to the socket.
    fn sent(&self) -> u64 {
        let notsent = self.0[18] & 0xffff_ffff;
        self.0[25].wrapping_sub(self.0[26]).wrapping_add(notsent)
    }
    /// Bytes that have arrived, read or not.
    fn received(&self) -> u64 {
        self.0[16]
    }
}

/// Whether the kernel's connection has ended, by a reset or by both ends.
pub(super) fn is_closed(fd: i32) -> bool {
    call::getsockopt::<Info>(fd, IPPROTO_TCP, TCP_INFO).is_ok_and(|info| info.state() == CLOSE)
}

/// Whether the kernel knows of no connection there.
pub(super) fn is_gone(fd: i32) -> bool {
    call::getsockopt::<Info>(fd, IPPROTO_TCP, TCP_INFO).is_err()
}

/// What the kernel counts of a connection: bytes given to it, bytes taken from it.
pub(super) struct Counts {
    pub(super) established: bool,
    pub(super) sent: u64,
    pub(super) taken: u64,
    /// Bytes that have arrived and that nobody has taken.
    pub(super) queued: u64,
}

/// `taken`: what we believe to have taken; if the kernel has received no more than that, nothing is
/// queued and one call is enough.
pub(super) fn counts(fd: i32, taken: Option<u64>) -> Option<Counts> {
    let mut info = call::getsockopt::<Info>(fd, IPPROTO_TCP, TCP_INFO).ok()?;
    if taken == Some(info.received()) {
        return Some(Counts {
            established: info.state() == ESTABLISHED,
            sent: info.sent(),
            taken: info.received(),
            queued: 0,
        });
    }
    for _ in 0..16 {
        let queued = call::ioctl_int(fd, SIOCINQ).ok()?;
        let again = call::getsockopt::<Info>(fd, IPPROTO_TCP, TCP_INFO).ok()?;
        // Bytes that arrive between the two calls would be counted as taken.
        if again.received() == info.received() {
            let queued = u64::from(queued.cast_unsigned());
            return Some(Counts {
                established: again.state() == ESTABLISHED,
                sent: again.sent(),
                taken: again.received().wrapping_sub(queued),
                queued,
            });
        }
        info = again;
    }
    None
}

/// An offer that a server has found on the board.
struct ToTake<'w> {
    ends: Ends,
    found: Found<'w>,
    /// The half that is offered.
    peer: &'w Half,
    /// How often it had been looked for before.
    tries: u32,
}

impl Conn {
    /// `connect()` has begun or succeeded: offers the connection if it may leave TCP.
    /// `since`: when it began, nanoseconds ([`call::now_ns`]); to be known where the board [is for all
    /// namespaces](crate::board::Board::is_across).
    pub fn connecting(&'static self, w: &World, fd: i32, remote: SocketAddrV6, since: u64) {
        self.forget_offer(w);
        match self.try_offer(w, fd, remote, since) {
            Ok(()) => self.set_phase(Phase::Offered),
            Err(reason) => self.stay_tcp_to(w, fd, reason, remote),
        }
    }

    fn try_offer(
        &'static self,
        w: &World,
        fd: i32,
        remote: SocketAddrV6,
        since: u64,
    ) -> Result<(), Reason> {
        if !w.limits.enabled {
            return Err(Reason::Off);
        }
        if w.board.is_off() {
            return Err(Reason::SwitchedOff);
        }
        let is_routed = w.board.is_across() && w.limits.is_routed(*plain(remote).ip());
        if !is_routed && !w.board.listening(remote.port()) {
            return Err(Reason::NoListener);
        }
        // Before anything is asked of the kernel.
        if w.limits.spare_short && w.spared.is_spared(Place::of(plain(remote)), call::now_ns) {
            return Err(Reason::Spared);
        }
        let local = call::name(fd, false).ok().flatten().ok_or(Reason::PeerNotShunt)?;
        let (local, mut remote) = (plain(local), plain(remote));
        if is_nowhere(*remote.ip()) {
            remote.set_ip(*local.ip());
        }
        let ends = Ends { local, remote };
        if !ends.are_within() && !w.board.is_across() || local.port() == 0 {
            return Err(Reason::PeerNotShunt);
        }
        if local == remote {
            // Simultaneous open with itself.
            return Err(Reason::PeerNotShunt);
        }
        self.port.store(u32::from(remote.port()), Ordering::Relaxed);
        if !w.limits.allows(remote.port(), [*local.ip(), *remote.ip()], &w.program, End::Client) {
            return Err(Reason::Excluded);
        }
        let cookie =
            call::getsockopt::<u64>(fd, SOL_SOCKET, SO_COOKIE).map_err(|_| Reason::NoDiag)?;
        let index = self.new_half(w, fd, ends)?;
        let half = w.board.map.half_known(index);
        half.cookie.store(cookie, Ordering::Relaxed);
        half.client.store(1, Ordering::Relaxed);
        if w.board.is_across() {
            half.netns.store(netns_of(fd).unwrap_or(0), Ordering::Relaxed);
            if is_routed {
                half.began.store(syn::began_in_secret(w, fd, since), Ordering::Relaxed);
                half.flags.fetch_or(flag::ROUTED, Ordering::Relaxed);
                w.board.note_routed();
            } else if !ends.are_within() {
                half.began.store(syn::began(fd, since), Ordering::Relaxed);
                half.hardware.store(syn::leaves_by(w, fd, ends), Ordering::Relaxed);
            }
        }
        // Whoever writes to our ring before we know of it wakes us through the kernel.
        self.arm_cold(w, half);
        half.state.store(half_state::OFFERED, Ordering::Release);
        w.board.note_offers(remote.port());
        match w.board.offer(index, ends, is_routed) {
            Ok(word) => {
                self.offer.store(word, Ordering::Relaxed);
                self.half.store(index + 1, Ordering::Relaxed);
                Ok(())
            }
            Err(reason) => {
                if let Some(mut arena) = w.arena.lock() {
                    arena.free_half(&w.board, index);
                }
                Err(reason)
            }
        }
    }

    /// A half of ours for this connection, cleared but for its generation.
    pub(super) fn new_half(&self, w: &World, fd: i32, ends: Ends) -> Result<u32, Reason> {
        let slot = w.board.ensure_slot()?;
        let index = w.arena.lock().ok_or(Reason::NoMemory)?.half(&w.board, w.memory_max())?;
        let half = w.board.map.half_known(index);
        for word in [
            &half.tail,
            &half.sent,
            &half.loc,
            &half.next_loc,
            &half.next_at,
            &half.up_at,
            &half.down_at,
            &half.head,
            &half.seen_head,
            &half.wait,
            &half.again,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &half.bytes_tx,
            &half.bytes_rx,
            &half.tcp_rx,
            &half.cookie,
            &half.netns,
            &half.began,
            &half.hardware,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        half.arm_seq.fetch_add(1, Ordering::Relaxed);
        half.sleepers.store(0, Ordering::Relaxed);
        for word in [
            &half.flags,
            &half.bells,
            &half.room_wait,
            &half.peer,
            &half.reason,
            &half.client,
            &half.tx_lock,
            &half.rx_lock,
            &half.rung,
            &half.drained,
            &half.bell_owed,
            &half.n_bells,
            &half.n_sleeps,
            &half.n_spins,
            &half.n_stalls,
            &half.n_tx,
            &half.n_rx,
            &half.peak,
            &half.wait_lock,
            &half.bell_lock,
            &half.lent,
            &half.again_sent,
            &half.set_events[0],
            &half.set_events[1],
        ] {
            word.store(0, Ordering::Relaxed);
        }
        half.flags.store(super::naps::first_flags(), Ordering::Relaxed);
        for word in half.set_in.iter().chain(&half.set_told) {
            word.store(0, Ordering::Relaxed);
        }
        half.users.store(1, Ordering::Relaxed);
        half.slot.store(slot, Ordering::Relaxed);
        half.cpu.store(call::cpu(), Ordering::Relaxed);
        half.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
        half.since.store(call::wall_ns(), Ordering::Relaxed);
        ends.write(half);
        self.half_forks.store(w.forks.load(Ordering::Relaxed), Ordering::Relaxed);
        if let Some(mut e) = self.ends.lock() {
            *e = Some(ends);
        }
        Ok(index)
    }

    /// Remembers where a connection that the program has begun leads to.
    pub fn leads_to(&self, remote: SocketAddrV6) {
        if let Some(mut ends) = self.ends.lock() {
            *ends = Some(Ends { local: NOWHERE, remote: plain(remote) });
        }
    }

    /// A listener has this address, which the connections that it accepts have then too: the port alone if it is that
    /// of no address (the wildcard), and nothing if it may be that of another host (a transparent proxy).
    pub fn listens_at(&self, fd: i32, local: SocketAddrV6) {
        let transparent =
            |(level, name)| call::getsockopt::<i32>(fd, level, name).unwrap_or(0) != 0;
        let known = !TRANSPARENT.into_iter().any(transparent);
        if let Some(mut ends) = self.ends.lock() {
            *ends = known.then_some(Ends { local: plain(local), remote: NOWHERE });
        }
    }

    /// The address of a listener, which may be the wildcard; `None`: what it accepts may have others. See
    /// [`Self::listens_at`].
    #[must_use]
    pub fn listener_address(&self) -> Option<SocketAddrV6> {
        self.ends.lock().and_then(|ends| *ends).map(|ends| ends.local)
    }

    /// Settles a connection on TCP, with a record for people if we take part already.
    pub fn stay_tcp(&self, w: &World, fd: i32, reason: Reason) {
        self.stays(w, fd, reason, || self.called(fd));
    }

    /// The same of one that leads there, which the kernel need not know yet.
    pub fn stay_tcp_to(&self, w: &World, fd: i32, reason: Reason, remote: SocketAddrV6) {
        self.stays(w, fd, reason, || self.called_to(fd, remote));
    }

    fn stays(&self, w: &World, fd: i32, reason: Reason, name: impl Fn() -> Called) {
        w.count(reason);
        if reason == Reason::NoSlot {
            w.has_no_place();
        }
        if w.limits.log >= Level::Info {
            let (name, code, words) = (name(), reason.code(), reason.words());
            crate::log::line(format_args!("{name}: on TCP: {code} {words}"));
        }
        if let Some((_, half)) = self.my_half(w) {
            half.reason.store(reason.code(), Ordering::Relaxed);
            half.state.store(half_state::TCP, Ordering::Release);
        } else if w.board.slot().is_some() && reason != Reason::Spared {
            self.record(w, fd, reason);
        }
        self.set_phase(Phase::Tcp);
        w.offers_moved();
    }

    /// [`Self::stay_tcp`] of one that is in this phase; `false`: it is not any more. What it makes of signals is nothing,
    /// since who stays on TCP is to cost no system call more: a handler that comes in between goes by TCP as well, see
    /// [`Self::is_staying_here`].
    fn stays_from(&self, w: &World, fd: i32, from: Phase, reason: Reason) -> bool {
        let stays = self.leaves_for_tcp(from);
        if stays {
            self.stay_tcp(w, fd, reason);
        }
        stays
    }

    /// [`Phase::Busy`], by this thread, which does nothing but see to it that it is [`Phase::Tcp`].
    pub(super) fn leaves_for_tcp(&self, from: Phase) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.phase.compare_exchange(from as u32, staying_here(), success, failure).is_ok()
    }

    /// Whether it is, and we have interrupted that, in a handler, or left it by a jump.
    #[must_use]
    pub fn is_staying_here(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == staying_here()
    }

    /// A half that only says that there is this connection, and why it is on TCP.
    fn record(&self, w: &World, fd: i32, reason: Reason) {
        let Some(ends) = self.ends_for_people(fd) else { return };
        if let Ok(index) = self.new_half(w, fd, ends) {
            let half = w.board.map.half_known(index);
            half.reason.store(reason.code(), Ordering::Relaxed);
            half.state.store(half_state::TCP, Ordering::Release);
            self.half.store(index + 1, Ordering::Relaxed);
        }
    }

    /// `accept()` has made it, on a listener on `port`. `local`: see [`Self::listener_address`].
    pub fn accepted(
        &self,
        w: &World,
        port: u16,
        local: Option<SocketAddrV6>,
        remote: Option<SocketAddrV6>,
    ) {
        self.port.store(u32::from(port), Ordering::Relaxed);
        if !w.limits.enabled {
            self.set_phase(Phase::Tcp);
            return;
        }
        if let (Some(remote), Some(mut ends)) = (remote, self.ends.lock()) {
            *ends = Some(Ends { local: local.unwrap_or(NOWHERE), remote: plain(remote) });
        }
        self.set_phase(Phase::Server);
    }

    /// Looks whether the peer has done its part: the offer of ours was taken, or the peer's offer
    /// is there and can be taken. `data`: bytes of the peer have just arrived. `true`: attached now.
    pub fn settle(&'static self, w: &World, fd: i32, data: bool) -> bool {
        match self.phase() {
            Phase::Offered => self.settle_client(w, fd, false, 0),
            Phase::Server => self.settle_server(w, fd, data),
            _ => false,
        }
    }

    /// Where the process that may take our offer was seen last.
    #[must_use]
    pub fn listener_cpu(&self, w: &World) -> u32 {
        let port = u16::try_from(self.port.load(Ordering::Relaxed)).unwrap_or(0);
        w.board.listener_cpu(port)
    }

    /// Whether the process that may take our offer runs on our CPU for good.
    #[must_use]
    pub fn is_beside_listener(&self, w: &World) -> bool {
        let port = u16::try_from(self.port.load(Ordering::Relaxed)).unwrap_or(0);
        let own = w.bound_to();
        own.is_some()
            && w.board.listener_bound_to(port) == own
            && is_here(w.board.listener_cpu(port))
    }

    /// Whether a server has not looked for an offer yet.
    #[must_use]
    pub fn untried(&self) -> bool {
        self.tries.load(Ordering::Relaxed) == 0
    }

    /// Says that a client moves its bytes by calls that we see.
    #[inline]
    pub fn io_seen(&self, w: &World) {
        if let Some((_, half)) = self.my_half(w)
            && half.flags.load(Ordering::Relaxed) & flag::IO_SEEN == 0
        {
            half.flags.fetch_or(flag::IO_SEEN, Ordering::Relaxed);
            half.cpu.store(call::cpu(), Ordering::Relaxed);
        }
    }

    /// Says that a client's program waits for the connection in an event set that we follow.
    pub fn watched(&self, w: &World) {
        if let Some((_, half)) = self.my_half(w)
            && half.flags.load(Ordering::Relaxed) & flag::WATCHED == 0
        {
            half.cpu.store(call::cpu(), Ordering::Relaxed);
            half.flags.fetch_or(flag::WATCHED, Ordering::Relaxed);
        }
    }

    /// The end of [`Self::join`], once the peer cannot withdraw any more.
    pub(super) fn attached(&self, w: &World, half: &Half) {
        if let Some(slot) = w.slot() {
            add64(&slot.attached, 1);
            add64(&slot.attached_clients, u64::from(half.client.load(Ordering::Relaxed) == 1));
        }
        self.set_phase(Phase::Attached);
        // Either we see a receive that has begun, or it sees that we are attached. Pairs with
        // `receiving`.
        full_fence();
        if w.limits.log >= Level::Info {
            self.says_that_it_is_attached(half);
        }
    }

    pub(super) fn counted(&self, w: &World) -> bool {
        self.forks.load(Ordering::Relaxed) == w.forks.load(Ordering::Relaxed)
    }

    /// The common end of both ways to attach; our direction switches here.
    pub(super) fn join(&self, w: &World, half: &Half, peer_index: u32, taken: u64, sent: u64) {
        half.tcp_rx.store(taken, Ordering::Relaxed);
        half.peer.store(peer_index + 1, Ordering::Release);
        half.state.store(half_state::ATTACHED, Ordering::Release);
        self.peer.store(peer_index + 1, Ordering::Relaxed);
        if !self.counted(w) {
            self.tx.correct(sent);
        }
    }

    /// Our direction switches to the ring, unless a call of another thread is still sending by TCP;
    /// then a later send tries again. `true`: it is in the ring now.
    pub fn go_up(&'static self, w: &World, half: &Half) -> bool {
        self.rises(w, half, None)
    }

    /// [`Self::go_up`]. `quiet`: no handler runs already.
    pub(super) fn rises(&'static self, w: &World, half: &Half, quiet: Option<&Blocked>) -> bool {
        if half.flags.load(Ordering::Acquire) & flag::UP != 0 {
            return true;
        }
        // While another process may be sending by TCP nothing comes of it: see `rise`, which looks again.
        if half.users.load(Ordering::Relaxed) > 1 {
            return false;
        }
        if !self.has_ring(w, half) {
            // No memory: this direction never leaves TCP, which is better than to come back.
            let code = Reason::NoMemory.code();
            if half.reason.swap(code, Ordering::Relaxed) != code {
                w.count(Reason::NoMemory);
            }
            return false;
        }
        let counted = || {
            let fd = self.own_fd(half);
            call::getsockopt::<Info>(fd, IPPROTO_TCP, TCP_INFO).ok().map(|info| info.sent())
        };
        // Others wait for who switches, so no handler may leave in the middle of it, or wait for us.
        // (Of several threads, only where it takes long: see `Blocked::if_alone`.)
        let quietly = || Blocked::if_alone().or_else(|| self.tx.is_in_doubt().then(Blocked::new));
        let _quiet = if quiet.is_none() { quietly() } else { None };
        let up = self.tx.rise(&half.flags, &half.up_at, &half.users, counted);
        if up && w.limits.log >= Level::Debug {
            let name = self.called(self.own_fd(half));
            let at = half.up_at.load(Ordering::Relaxed);
            crate::log::line(format_args!("{name}: sends through the ring after {at} bytes"));
        }
        if up {
            // Either we see that a doorbell had to wait for this, or who has it sees that it need not. Pairs with `ring_bell`.
            full_fence();
            let waited = half.flags.load(Ordering::Relaxed) & flag::UNRUNG != 0;
            if waited && let Some((mine, peer)) = self.halves(w) {
                mine.flags.fetch_and(!flag::UNRUNG, Ordering::Relaxed);
                self.notify(w, -1, mine, peer);
            }
        }
        up
    }

    /// A descriptor of this process; that of the half is another one once a parent has closed that.
    pub(super) fn own_fd(&self, half: &Half) -> i32 {
        let own = self.fd.load(Ordering::Relaxed);
        // Records that no table of descriptors leads to know none.
        if own == 0 { half.fd.load(Ordering::Relaxed).cast_signed() } else { own.cast_signed() }
    }

    /// Doorbells must not wait for the acknowledgement of what was sent before them, nor for what comes behind them. Done at
    /// the first doorbell that might: a short connection needs none.
    pub(super) fn free_doorbells(&self, fd: i32) {
        if self.options.fetch_or(options::FREE, Ordering::Relaxed) & options::FREE != 0 {
            return;
        }
        if call::getsockopt::<i32>(fd, IPPROTO_TCP, TCP_NODELAY) == Ok(0) {
            let _ = call::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, 1i32);
            self.options.fetch_or(options::NAGLE, Ordering::Relaxed);
        }
        if self.options.load(Ordering::Relaxed) & options::CORK != 0 {
            let _ = call::setsockopt(fd, IPPROTO_TCP, TCP_CORK, 0i32);
        }
    }

    /// Attaches an accepted connection before its first byte, where both programs are known to wait
    /// for it in event sets of ours: then the first request goes through the ring too. Looks once, and
    /// in memory only unless the offer is there.
    pub fn meet(&'static self, w: &World, fd: i32) -> bool {
        let is_new = self.phase() == Phase::Server && self.tcp_rx.load(Ordering::Relaxed) == 0;
        if !is_new || !self.may_be_offered(w) {
            return false;
        }
        // On one CPU the kernel's way is quicker: who sends there has to wake the other anyway.
        let waits = |peer: &Half| {
            let flags = peer.flags.load(Ordering::Relaxed);
            flags & (flag::WATCHED | flag::IO_SEEN) == flag::WATCHED
                && !is_here(peer.cpu.load(Ordering::Relaxed))
        };
        self.own_ends(fd).is_some_and(|ends| {
            let free = |found: &Found<'_>| found.taker.is_none();
            let mut halves = w.board.offers_to(ends, fd).filter(free);
            halves.any(|found| w.board.map.half(found.half).is_some_and(waits))
        }) && self.settle_server(w, fd, false)
    }

    /// Whether clients of ours come to the port of this accepted connection. `false` is certain only once a
    /// client's bytes are there.
    fn may_be_offered(&self, w: &World) -> bool {
        w.board.has_offers(u16::try_from(self.port.load(Ordering::Relaxed)).unwrap_or(0))
    }

    /// Both ends, for those who look at the board. Our address may be that of a listener which has none: it is not
    /// worth a system call for each connection, and who looks finds it in the kernel's table.
    fn ends_for_people(&self, fd: i32) -> Option<Ends> {
        let known = self.ends.lock().and_then(|e| *e);
        let name = |peer| call::name(fd, peer).ok().flatten().map(plain);
        let local = known.map(|ends| ends.local).filter(|local| local.port() != 0);
        let local = local.or_else(|| name(false))?;
        let remote = known.map(|ends| ends.remote).or_else(|| name(true))?;
        Some(Ends { local, remote })
    }

    /// Whether it is still this connection that the kernel has there.
    #[must_use]
    pub fn is_between(&self, fd: i32) -> bool {
        let known = self.ends.lock().and_then(|e| *e);
        let name = |peer| call::name(fd, peer).ok().flatten().map(plain);
        self.stands_in()
            || known.is_some_and(|ends| {
                let is_known = ends.local.port() != 0 && !is_nowhere(*ends.local.ip());
                name(true) == Some(ends.remote) && (!is_known || name(false) == Some(ends.local))
            })
    }

    /// Both ends of an accepted connection, asked for at most once.
    fn own_ends(&self, fd: i32) -> Option<Ends> {
        let known = self.ends.lock().and_then(|e| *e);
        let name = |peer| call::name(fd, peer).ok().flatten().map(plain);
        let remote = known.map(|ends| ends.remote).filter(|remote| remote.port() != 0);
        let local = known.map(|ends| ends.local);
        let local = local.filter(|local| local.port() != 0 && !is_nowhere(*local.ip()));
        let ends =
            Ends { local: local.or_else(|| name(false))?, remote: remote.or_else(|| name(true))? };
        if let Some(mut e) = self.ends.lock() {
            *e = Some(ends);
        }
        Some(ends)
    }

    fn settle_server(&'static self, w: &World, fd: i32, data: bool) -> bool {
        if self.phase() != Phase::Server {
            return false;
        }
        let offer = match self.offer_to_take(w, fd, data) {
            Ok(Some(offer)) => offer,
            Ok(None) => return false,
            Err(reason) => {
                self.stays_from(w, fd, Phase::Server, reason);
                return false;
            }
        };
        // Others wait for us until it is attached, and so would a handler that uses the connection.
        let quiet = Blocked::if_alone();
        if !self.swap_phase(Phase::Server, Phase::Busy) {
            return false;
        }
        // Meanwhile the record may have come to serve another connection.
        if self.ends.lock().and_then(|e| *e) != Some(offer.ends) {
            self.set_phase(Phase::Server);
            return false;
        }
        // Either a sender sees `Busy`, or we see it. One that is in the
        // middle of a call (it may wait there for as long as the peer does not read) only delays the
        // switch of its own direction: see `go_up`.
        let sending = !self.tx.is_idle();
        match self.try_attach(w, fd, offer, sending, quiet.as_ref()) {
            Ok(Some(half)) => {
                self.attached(w, half);
                true
            }
            Ok(None) => {
                self.set_phase(Phase::Server);
                false
            }
            Err(reason) => {
                self.set_phase(Phase::Server);
                self.stay_tcp(w, fd, reason);
                false
            }
        }
    }

    /// Why a connection is on TCP whose peer has made no offer.
    fn nobody_offers(&self) -> Reason {
        let options = self.options.load(Ordering::Relaxed);
        if options & options::NOT_ASKED != 0 {
            Reason::NotAsked
        } else if options & options::CHOSEN_WAY != 0 {
            Reason::ChosenWay
        } else {
            Reason::PeerNotShunt
        }
    }

    /// The offer of our peer, if it can be taken; `Ok(None)`: not now, perhaps later. Nobody waits for who looks.
    fn offer_to_take<'w>(
        &'static self,
        w: &'w World,
        fd: i32,
        data: bool,
    ) -> Result<Option<ToTake<'w>>, Reason> {
        if w.board.is_off() {
            // Also one that was offered before.
            return Err(Reason::SwitchedOff);
        }
        if self.is_held_by_others(w) {
            return self.held_by_others(w, data);
        }
        let tries = self.tries.fetch_add(1, Ordering::Relaxed);
        let nobody = self.nobody_offers();
        // A client of ours publishes before it sends: once bytes are here, so is the offer. Where nobody
        // offers, a look at the port, which stays in the cache, tells as much.
        let alone = data && !self.may_be_offered(w);
        let ends = if alone && !w.limits.asks_for_addresses() {
            self.ends_for_people(fd)
        } else {
            self.own_ends(fd)
        };
        let ends = ends.ok_or(Reason::PeerNotShunt)?;
        let Ends { local, remote } = ends;
        let port = u16::try_from(self.port.load(Ordering::Relaxed)).unwrap_or(0);
        if !w.limits.allows(port, [*local.ip(), *remote.ip()], &w.program, End::Server) {
            return Err(Reason::Excluded);
        }
        match if alone { Offered::Nowhere } else { self.offer_of_peer(w, fd, ends, data)? } {
            Offered::Here(found, peer) => Ok(Some(ToTake { ends, found, peer, tries })),
            Offered::Nowhere if data => Err(nobody),
            Offered::Nowhere | Offered::NotYet if tries < TRIES_MAX => Ok(None),
            Offered::Nowhere | Offered::NotYet => Err(nobody),
        }
    }

    /// The half that is attached now; `Ok(None)`: not now, perhaps later.
    /// `sending`: a call of another thread has sent bytes that are not counted yet.
    fn try_attach<'w>(
        &'static self,
        w: &'w World,
        fd: i32,
        ToTake { ends, found, peer, tries }: ToTake<'w>,
        sending: bool,
        quiet: Option<&Blocked>,
    ) -> Result<Option<&'w Half>, Reason> {
        // A fork has come between: who forks from here on waits for us.
        if self.is_held_by_others(w) {
            return Ok(None);
        }
        let again = if tries < TRIES_MAX { Ok(None) } else { Err(self.nobody_offers()) };
        let believed = self.tcp_rx.load(Ordering::Relaxed);
        let counts = counts(fd, Some(believed)).ok_or(Reason::NoDiag)?;
        if !counts.established {
            return Err(Reason::Short);
        }
        // A call that we see says so before its bytes: these came by other ways.
        if counts.queued > 0 && peer.flags.load(Ordering::Acquire) & flag::IO_SEEN == 0 {
            return again;
        }
        if !self.counted(w) && sending {
            return Ok(None);
        }
        let (sent, taken) = (self.tx.sent(), self.tcp_rx.load(Ordering::Relaxed));
        if self.counted(w) && (taken != counts.taken || sent != counts.sent && !sending) {
            return Err(Reason::BytesUnseen);
        }
        let index = self.new_half(w, fd, ends)?;
        let half = w.board.map.half_known(index);
        half.peer_generation.store(found.generation, Ordering::Relaxed);
        self.arm_cold(w, half);
        // For both ends, before the client can know: should we end before it looks, what we have sent
        // must stay for it to read.
        link(w, half, peer);
        link(w, peer, half);
        self.join(w, half, found.half, counts.taken, counts.sent);
        let _ = self.rises(w, half, quiet);
        let took = offer::take(found.word, found.half, index);
        if took {
            w.board.has_taken(peer);
        }
        let believed =
            if took { taken::is_believed(half, peer, found.generation) } else { Ok(false) };
        if believed == Ok(true) {
            self.half.store(index + 1, Ordering::Release);
            return Ok(Some(half));
        }
        // Withdrawn in this very moment: nobody has seen that we switched.
        self.tx.fall();
        unlink(w, half, peer);
        unlink(w, peer, half);
        self.peer.store(0, Ordering::Relaxed);
        w.holds_no_more(self);
        if let Some(mut arena) = w.arena.lock() {
            if let Some(loc) = Loc::parse(half.loc.swap(0, Ordering::Relaxed)) {
                arena.free_block(&w.board, loc);
            }
            arena.free_half(&w.board, index);
        }
        if believed.is_err() {
            // Nobody knows what the client will make of it when it runs again.
            let _ = call::setsockopt(fd, SOL_SOCKET, SO_LINGER, [1i32, 0]);
            let _ = call::shutdown(fd, 2);
            return Err(Reason::PeerBroken);
        }
        again
    }

    /// [`Self::taken_by_tcp`], where the peer has not gone back to TCP: how many are the program's.
    #[must_use]
    pub fn after_tcp_recv(
        &'static self,
        w: &World,
        fd: i32,
        n: usize,
        last: Option<u8>,
    ) -> Option<usize> {
        self.taken_by_tcp(w, fd, n, last).map(|kept| kept.first)
    }

    /// Which of `n` bytes that a call has just received from TCP, `last` being the last of them, are the program's.
    /// `None`: none, they were doorbells; ask again.
    #[must_use]
    pub fn taken_by_tcp(
        &'static self,
        w: &World,
        fd: i32,
        n: usize,
        last: Option<u8>,
    ) -> Option<Kept> {
        let all = Kept { first: n, bells: 0, behind: 0 };
        let mut turns = Turns::default();
        loop {
            match self.phase() {
                Phase::Busy if self.is_staying_here() => return Some(all),
                Phase::Busy => turns.next("attaches", self),
                Phase::Server | Phase::Fresh => {
                    self.tcp_rx.fetch_add(n as u64, Ordering::Relaxed);
                    self.pieces.fetch_add(u32::from(n > 0), Ordering::Relaxed);
                    return Some(all);
                }
                Phase::Offered => {
                    // That it is open the word may say because somebody has written that.
                    let doubt = last == Some(BELL);
                    if self.settle_client(w, fd, doubt, n as u64) || self.phase() != Phase::Offered
                    {
                        continue;
                    }
                    if self.is_taken(w) {
                        // What we hold may be doorbells: only the attachment tells.
                        turns.next("has taken it", self);
                        continue;
                    }
                    let counting = lock::lock(&self.counting);
                    if self.phase() == Phase::Offered && !self.is_taken(w) {
                        self.tcp_rx.fetch_add(n as u64, Ordering::Relaxed);
                        drop(counting);
                        self.gives_up(w, fd, n);
                        return Some(all);
                    }
                }
                Phase::Attached => {
                    let Some((mine, peer)) = self.halves(w) else { return Some(all) };
                    let Some(_held) = lock::lock_of(&mine.rx_lock, &mine.lent) else {
                        return Some(all);
                    };
                    let taken = mine.tcp_rx.load(Ordering::Relaxed);
                    if let Some(kept) = self.kept_of_both_ways(mine, peer, taken, n) {
                        return Some(kept);
                    }
                    let first = self.trim(mine, peer, taken, n, 0);
                    mine.tcp_rx.store(taken + first as u64, Ordering::Relaxed);
                    return (first > 0 || n == 0).then_some(Kept { first, bells: 0, behind: 0 });
                }
                Phase::Tcp | Phase::Listener | Phase::Asked => return Some(all),
            }
        }
    }

    /// What was taken of a peer that has switched and gone back to TCP before we knew of the first, and left nothing in its
    /// ring: bytes of before the switch, doorbells, and bytes of after it. The caller holds the receive lock.
    fn kept_of_both_ways(&self, mine: &Half, peer: &Half, taken: u64, n: usize) -> Option<Kept> {
        let down_at = switch::fallen(&peer.flags, &peer.down_at)?;
        let up_at = switch::risen(&peer.flags, &peer.up_at)?;
        let first = usize::try_from(up_at.saturating_sub(taken)).map_or(n, |until| until.min(n));
        let drained = mine.drained.load(Ordering::Relaxed);
        let announced = switch::announced(&peer.bells);
        let bells = announced.wrapping_sub(drained) as usize;
        let behind = (n - first).checked_sub(bells).filter(|behind| *behind > 0)?;
        if down_at != mine.head.load(Ordering::Relaxed) {
            // Those of the ring come in between.
            return None;
        }
        mine.drained.store(announced, Ordering::Relaxed);
        mine.tcp_rx.store(taken + first as u64, Ordering::Relaxed);
        Some(Kept { first, bells, behind })
    }

    /// Takes the offer back if the peer has sent so much, for so long, that it is none of ours: who waits for its bytes need
    /// not look at the offer as well.
    fn gives_up(&'static self, w: &World, fd: i32, n: usize) {
        if n > 0 && self.counted(w) && self.has_waited() {
            let _ = self.keep_tcp(w, fd, Reason::Waiting);
        }
    }

    /// Takes the offer back for good: something is about to happen that only TCP can do. `false`:
    /// too late, it is attached now.
    pub fn keep_tcp(&'static self, w: &World, fd: i32, reason: Reason) -> bool {
        let mut turns = Turns::default();
        loop {
            match self.phase() {
                // Whoever is sending by TCP at this moment, and may wait there for long, goes on so.
                from @ (Phase::Fresh | Phase::Server) => {
                    if self.stays_from(w, fd, from, reason) {
                        return true;
                    }
                }
                Phase::Offered => {
                    if self.settle_client(w, fd, false, 0) {
                        return false;
                    }
                    if self.phase() != Phase::Offered {
                        continue;
                    }
                    let Some((index, _)) = self.my_half(w) else { return true };
                    let _quiet = Blocked::if_alone();
                    // Nobody else finds the word empty, and wonders why.
                    if !self.swap_phase(Phase::Offered, Phase::Busy) {
                        continue;
                    }
                    let word = w.board.map.offer_word(self.offer.load(Ordering::Relaxed));
                    if offer::withdraw(word, index) {
                        self.stay_tcp(w, fd, reason);
                        return true;
                    }
                    self.set_phase(Phase::Offered);
                    turns.next("has taken it", self);
                }
                Phase::Busy if self.is_staying_here() => return true,
                Phase::Busy => turns.next("attaches", self),
                Phase::Attached => return false,
                Phase::Tcp | Phase::Listener | Phase::Asked => return true,
            }
        }
    }

    /// Before another `connect()`: what the last one left.
    fn forget_offer(&'static self, w: &World) {
        if let Some((index, half)) = self.my_half(w)
            && half.state.load(Ordering::Relaxed) != half_state::ATTACHED
        {
            let word = w.board.map.offer_word(self.offer.load(Ordering::Relaxed));
            offer::clear(word, index);
            self.half.store(0, Ordering::Relaxed);
            if let Some(mut arena) = w.arena.lock() {
                arena.free_half(&w.board, index);
            }
        }
    }

    /// [`Self::shuts_down`], but for the kernel's part. `None`: that is to be done, and has the answer.
    pub fn shutdown(
        &'static self,
        w: &World,
        fd: i32,
        read: bool,
        write: bool,
    ) -> Option<Result<(), i32>> {
        let (mine, peer) = self.halves(w)?;
        // The peer hears of it before all is done, and may have ended its own direction by then: who closes waits for this.
        let _ending = lock::lock(&self.ending);
        let peer_flags = peer.flags.load(Ordering::Acquire);
        let mine_flags = mine.flags.load(Ordering::Relaxed);
        let both = mine_flags & flag::SHUT != 0 && peer_flags & (flag::SHUT | flag::CLOSED) != 0;
        if both {
            return Some(Err(107));
        }
        if mine_flags & flag::DOWN != 0 {
            if is_closed(fd) {
                // It will refuse.
                return None;
            }
            // The kernel does it; the peer must know what its end means.
            let write = if write { flag::SHUT } else { 0 };
            let read = if read { flag::SHUT_RD } else { 0 };
            mine.flags.fetch_or(write | read, Ordering::Release);
            Self::rouse(w, mine, peer);
            return None;
        }
        if self.kernel.load(Ordering::Relaxed) & kernel::HUP != 0 {
            return None;
        }
        if read && !write {
            mine.flags.fetch_or(flag::SHUT_RD, Ordering::Release);
            let _ = call::shutdown(fd, 0);
            self.end_own_naps(w, Self::wait_word(mine), peer);
        }
        if write {
            let is_up = self.go_up(w, mine);
            let held = lock::lock_of(&mine.tx_lock, &mine.lent);
            // Both at once, and before the kernel tells or wakes anybody: who looks then must see both.
            let bits = flag::SHUT | if read { flag::SHUT_RD } else { 0 };
            mine.flags.fetch_or(bits, Ordering::Release);
            if read || !is_up {
                let _ = call::shutdown(fd, if is_up { 0 } else { 1 + i32::from(read) });
            }
            self.end_own_naps(w, Self::wait_word(mine), peer);
            if peer_flags & DEAF != DEAF {
                // Else its kernel would answer the doorbell with a reset, where it takes an end.
                self.notify(w, fd, mine, peer);
            }
            Self::rouse(w, mine, peer);
            // Who receives holds the lock of receivers when it takes this one: never the other way round.
            drop(held);
            self.end_in_kernel(fd, mine, peer);
        }
        if mine.flags.load(Ordering::Relaxed) & DEAF == DEAF {
            // Nobody needs a doorbell of ours any more, and what the peer sends must be refused by
            // the kernel.
            self.drain(w, fd);
            let _ = call::shutdown(fd, 2);
        }
        Some(Ok(()))
    }

    /// Whether both directions have ended, so that the connection has no peer any more.
    #[must_use]
    pub fn has_ended(&self, w: &World) -> bool {
        self.phase() == Phase::Attached
            && self.halves(w).is_some_and(|(mine, peer)| {
                let flags = mine.flags.load(Ordering::Relaxed);
                let peer_flags = peer.flags.load(Ordering::Acquire);
                flags & (flag::SHUT | flag::DOWN) == flag::SHUT
                    && peer_flags & (flag::SHUT | flag::CLOSED) != 0
                    || peer_flags & flag::RESET != 0
                    || self.kernel.load(Ordering::Relaxed) & (kernel::RESET | kernel::TOLD) != 0
            })
    }

    /// Whether bytes are unread that cannot go back to TCP, because the kernel's connection or the peer's
    /// part of it has ended: they can be read here only.
    #[must_use]
    pub fn is_stranded(&self, w: &World, fd: i32) -> bool {
        self.unread_ring(w)
            && (call::hung_up(fd)
                || self
                    .halves(w)
                    .is_some_and(|(_, peer)| peer.flags.load(Ordering::Acquire) & DEAF == DEAF))
    }

    /// When both directions have ended no doorbell is needed any more, and the kernel's socket may
    /// end as well, so that it shows the state that programs expect.
    pub fn end_in_kernel(&self, fd: i32, mine: &Half, peer: &Half) {
        let peer_flags = peer.flags.load(Ordering::Acquire);
        if mine.flags.load(Ordering::Relaxed) & flag::SHUT != 0
            && peer_flags & (flag::SHUT | flag::CLOSED) != 0
        {
            if let Some(_held) = lock::lock_of(&mine.rx_lock, &mine.lent) {
                self.drain_bells(mine, peer, fd);
            }
            let _ = call::shutdown(fd, 1);
        }
    }

    /// What `SO_ERROR` answers, the kernel having answered `now`: an error that a look of ours took,
    /// or a reset of which the kernel has not heard yet, and none that comes of a clean close.
    #[must_use]
    pub fn socket_error(&self, w: &World, fd: i32, now: i32) -> i32 {
        let kept = self.error.swap(0, Ordering::Relaxed).cast_signed();
        let Some((mine, peer)) = self.halves(w) else {
            return if now != 0 { now } else { kept };
        };
        // Another process that shares the connection may have told it since we looked.
        let kept = if mine.flags.load(Ordering::Relaxed) & flag::TOLD != 0 { 0 } else { kept };
        let mut errno = if now != 0 { now } else { kept };
        if self.phase() == Phase::Attached && self.ask(fd) {
            self.judge_end(mine, peer);
        }
        let flags = peer.flags.load(Ordering::Acquire);
        let hints = self.kernel.load(Ordering::Relaxed);
        let clean = Self::closed_cleanly(flags) || hints & kernel::CLEAN != 0;
        if clean && !self.sent_after(mine) {
            return 0;
        }
        let reset = flags & flag::RESET != 0 || hints & kernel::RESET != 0;
        if errno == 0 && reset && !self.is_told(mine) {
            self.await_reset(fd);
            errno = ECONNRESET;
        }
        if errno != 0 {
            let _ = self.tell_reset(fd, mine, errno);
        }
        Self::named(mine, peer, errno)
    }

    /// Whether the socket itself has something to read besides doorbells, before the switch. Errors
    /// stay in the socket.
    #[must_use]
    pub fn tcp_readable(&self, mine: &Half, peer: &Half, fd: i32) -> bool {
        // Bytes of before the switch come first, and the doorbells behind them.
        let down = self.came_down(mine, peer) && Self::before(mine, peer) == 0;
        if down {
            if let Some(_held) = lock::lock_of(&mine.rx_lock, &mine.lent) {
                self.drain_bells(mine, peer, fd);
            }
            if mine.drained.load(Ordering::Relaxed) != peer.bells.load(Ordering::Acquire) {
                return false;
            }
        }
        let (readable, failed) = call::readable(fd);
        if down || failed || !readable {
            return readable || failed;
        }
        let mut byte = [0u8; 1];
        let got = call::recv(fd, &mut byte, MSG_DONTWAIT | 2);
        let up = peer.flags.load(Ordering::Acquire) & flag::UP != 0;
        let before = mine.tcp_rx.load(Ordering::Relaxed) < peer.up_at.load(Ordering::Relaxed);
        match got {
            Ok(0) => true,
            Ok(_) => !up || before,
            Err(11) => false,
            Err(errno) => {
                self.take_error(errno);
                true
            }
        }
    }

    /// Whether all of the peer's ring is read and the rest of its stream comes by TCP.
    #[must_use]
    pub fn came_down(&self, mine: &Half, peer: &Half) -> bool {
        let frozen = mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN != 0;
        peer.flags.load(Ordering::Acquire) & flag::DOWN != 0
            && (frozen || mine.head.load(Ordering::Relaxed) == peer.down_at.load(Ordering::Relaxed))
    }

    /// Whether the ring holds unread bytes.
    #[must_use]
    pub fn unread_ring(&self, w: &World) -> bool {
        self.halves(w).is_some_and(|(mine, peer)| {
            ring::tail(&peer.tail) != mine.head.load(Ordering::Relaxed)
                && !self.came_down(mine, peer)
        })
    }

    /// Takes the doorbells that have been announced out of the socket.
    pub fn drain(&self, w: &World, fd: i32) {
        if let Some((mine, peer)) = self.halves(w)
            && let Some(_held) = lock::lock_of(&mine.rx_lock, &mine.lent)
            && self.in_ring(mine, peer)
        {
            self.drain_bells(mine, peer, fd);
        }
    }

    /// Looks whether the socket holds bytes that are no doorbells although the ring is in use:
    /// somebody wrote past the library.
    pub fn look_for_strays(&self, mine: &Half, peer: &Half, fd: i32) {
        let mut byte = [0u8; 1];
        // Nobody else takes doorbells meanwhile, so what is seen and what is counted belong together.
        let Some(_held) = lock::lock_of(&mine.rx_lock, &mine.lent) else { return };
        if self.is_mixed(mine, peer) {
            return;
        }
        match call::recv(self.descriptor(fd), &mut byte, MSG_DONTWAIT | 2) {
            Ok(1) => {}
            Ok(_) | Err(11 | 4 | 9) => return,
            Err(errno) => return self.take_error(errno),
        }
        if mine.drained.load(Ordering::Relaxed) == peer.bells.load(Ordering::Acquire) {
            self.kernel.fetch_or(kernel::STRAY, Ordering::Relaxed);
        }
    }

    /// `connect(AF_UNSPEC)`: the connection is gone, the socket is fresh.
    pub fn dissolved(&'static self, w: &World, fd: i32) {
        self.await_others(&mut 0);
        self.await_calls(w);
        if let Some((_, half)) = self.my_half(w)
            && self.phase() == Phase::Attached
        {
            half.flags.fetch_or(flag::CLOSED | flag::RESET, Ordering::Release);
            if let Some((mine, peer)) = self.halves(w) {
                Self::rouse(w, mine, peer);
            }
            half.users.fetch_sub(1, Ordering::AcqRel);
            half.state.store(half_state::CLOSED, Ordering::Release);
            if let Some((index, half)) = self.my_half(w) {
                self.finish(w, index, half);
            }
        } else {
            self.closing(w, fd);
        }
        let nonblock = self.nonblock.load(Ordering::Relaxed);
        self.half.store(0, Ordering::Relaxed);
        self.peer.store(0, Ordering::Relaxed);
        self.reset(w.forks.load(Ordering::Relaxed));
        self.nonblock.store(nonblock, Ordering::Relaxed);
        w.offers_moved();
    }

    /// What a wait leaves behind when it ends.
    pub fn disarm(&self, mine: &Half, to: WaitWord) {
        mine.wait.store(to.emit(), Ordering::Relaxed);
    }

    /// Whether a result means "look again".
    #[must_use]
    pub fn is_retry(got: Got) -> bool {
        got == Got::Failed(EAGAIN_RETRY)
    }
}

/// A value of [`Conn::phase`] besides those of [`Phase`], which says who is [`Phase::Busy`].
fn staying_here() -> u32 {
    // Of its own process a thread is known by the 22 bits of its number.
    Phase::Busy as u32 | lock::tid() << 8
}

/// Whether this is the address of nobody (the wildcard).
pub(super) fn is_nowhere(ip: std::net::Ipv6Addr) -> bool {
    ip.is_unspecified() || ip.to_ipv4_mapped().is_some_and(|v4| v4.is_unspecified())
}

/// Without scope and flow label, which the two ends do not share.
pub(super) fn plain(addr: SocketAddrV6) -> SocketAddrV6 {
    SocketAddrV6::new(*addr.ip(), addr.port(), 0, 0)
}

//! `poll` and `select` over a mix of connections of ours and other descriptors.

use std::ffi::c_int;

use libc::pollfd;
use local::conn::{Conn, Phase, kernel};
use local::world::World;
use sys::abi::{Half, half_flags};
use sys::sync::Ordering;
use sys::{call, handler, lock, ring};

use crate::finally::Finally;
use crate::left::{self, Wait};
use crate::nap::{self, Behind, Nap, SHORTEST_NS};
use crate::{fds, io, ready, real, remote};

mod napping;
mod unmet;

pub(crate) use napping::over;
pub(crate) use unmet::{Unmet, end};

/// A descriptor of the set that is an attached connection.
pub(crate) struct Ours {
    at: usize,
    pub(crate) conn: &'static Conn,
    mine: &'static Half,
    peer: &'static Half,
}

/// The kernel's `poll` with a limit in nanoseconds, as the guest called it.
type Sleep<'a> = &'a mut dyn FnMut(&mut [pollfd], Option<u64>) -> c_int;

/// Whether any of these descriptors is one that we follow beyond what the kernel knows.
pub(crate) fn concerns(fds: &[pollfd]) -> bool {
    fds::world().is_some()
        && fds.iter().any(|p| {
            p.fd >= 0
                && match fds::look(p.fd) {
                    Some(fds::Entry::Conn(c)) => {
                        !matches!(c.phase(), Phase::Fresh | Phase::Listener | Phase::Tcp)
                    }
                    Some(fds::Entry::Set(_)) => true,
                    None => false,
                }
        })
}

fn ours(w: &'static World, fds: &[pollfd]) -> Vec<Ours> {
    let mut list = Vec::new();
    for (at, p) in fds.iter().enumerate() {
        match fds::look(p.fd) {
            Some(fds::Entry::Set(_)) => ready::looked_at(w, p.fd),
            Some(fds::Entry::Conn(conn)) => {
                if conn.phase() == Phase::Asked {
                    remote::resolve(w, conn, p.fd);
                }
                if conn.phase() == Phase::Offered {
                    conn.io_seen(w);
                    io::settle(w, conn, p.fd, false);
                    if conn.phase() == Phase::Offered && ready::ring_for_offer(w, conn) {
                        io::settle(w, conn, p.fd, false);
                    }
                }
                if conn.phase() == Phase::Attached
                    && let Some((mine, peer)) = conn.halves(w)
                {
                    list.push(Ours { at, conn, mine, peer });
                }
            }
            None => {}
        }
    }
    list
}

impl Ours {
    /// What `poll` answers for this connection now. A state that only the kernel knows is asked.
    fn revents(&self, w: &'static World, p: &pollfd) -> i16 {
        if self.conn.is_mixed(self.mine, self.peer) {
            self.conn.answer_demotion(w, p.fd, self.mine, self.peer);
            let mut bit = 0;
            if self.conn.tcp_readable(self.mine, self.peer, p.fd) {
                bit = kernel::IN;
            }
            self.conn.kernel.fetch_and(!kernel::IN, Ordering::Relaxed);
            self.conn.kernel.fetch_or(bit, Ordering::Relaxed);
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "poll's events are the low 16 bits of epoll's"
        )]
        let now = ready::mask(self.conn, self.mine, self.peer) as i16;
        now & (p.events | libc::POLLERR | libc::POLLHUP)
    }

    fn wants_out(p: &pollfd) -> bool {
        p.events & (libc::POLLOUT | libc::POLLWRNORM) != 0
    }

    fn note(&self, revents: i16) {
        let mut bits = 0;
        for (event, bit) in [
            (libc::POLLRDHUP, kernel::RDHUP),
            (libc::POLLHUP, kernel::HUP),
            (libc::POLLERR, kernel::ERR),
            (libc::POLLPRI, kernel::PRI),
        ] {
            if revents & event != 0 {
                bits |= bit;
            }
        }
        if revents & libc::POLLPRI == 0 {
            self.conn.kernel.fetch_and(!kernel::PRI, Ordering::Relaxed);
        }
        self.conn.kernel.fetch_or(bits, Ordering::Relaxed);
    }
}

/// `poll`, for sets that concern us. Answers as libc does. `naps`: counts sleeps that are not the kernel's; `None`: there must
/// be none, for the sleep has a mask of signals of its own.
pub(crate) fn poll(
    fds: &mut [pollfd],
    limit: Option<u64>,
    mut naps: Option<&mut u32>,
    sleep: Sleep<'_>,
) -> c_int {
    let Some(w) = fds::world() else { return sleep(fds, limit) };
    nap::cancelled();
    // What was left by a jump is put right here: a wait that only the kernel does looks at nothing else.
    left::tidy();
    let start = call::now_ns();
    // Whether the kernel has just said what it has to say of our connections.
    let mut told = false;
    // Through the nap and the sleep behind it: another thread may close it in between.
    let mut held = None;
    loop {
        let list = ours(w, fds);
        if list.is_empty() {
            let left = limit.map(|l| l.saturating_sub(call::now_ns() - start));
            match unmet::asleep(w, fds, &list, left, sleep) {
                Some(n) => return n,
                None => continue,
            }
        }
        let now = look(w, fds, &list);
        // With nothing to report the kernel is asked by the sleep, unless it is not to end by what it says.
        let unasked = || list.iter().any(|o| is_muted(o, &fds[o.at]));
        let due = || now > 0 && is_due(fds, &list);
        let refresh = !told && (limit == Some(0) || unasked() || due());
        let all = with_kernel(w, fds, &list, now, refresh);
        if all > 0 && limit != Some(0) && list.len() < fds.len() {
            napping::kernel_told(fds, &list);
        }
        let left = limit.map(|l| l.saturating_sub(call::now_ns() - start));
        if all > 0 || left == Some(0) && (told || limit == Some(0)) {
            return all;
        }
        if spin(w, fds, &list, left) {
            told = false;
            continue;
        }
        let left = limit.map(|l| l.saturating_sub(call::now_ns() - start));
        let nap = naps.as_deref_mut();
        let nap = nap.map_or(Nap::Over, |naps| {
            if fds.len() == 1 {
                nap_on_one(w, fds, &list, left, naps, &mut held)
            } else {
                napping::nap(w, fds, &list, left, naps)
            }
        });
        match nap {
            Nap::Woken => {
                told = false;
                continue;
            }
            Nap::Interrupted => {
                real::set_errno(libc::EINTR);
                return -1;
            }
            Nap::Over => {}
        }
        let left = limit.map(|l| l.saturating_sub(call::now_ns() - start));
        if let Some(n) = doze(w, fds, &list, left, sleep, &mut told) {
            return n;
        }
        if limit.is_some_and(|l| call::now_ns() - start >= l) {
            let now = look(w, fds, &list);
            return with_kernel(w, fds, &list, now, false);
        }
    }
}

/// How long a `poll` that waits and has something to report need not ask the kernel, nanoseconds: less than it takes a
/// process to die, or a thread to come back to its `poll` from learning in some other way that one has.
const ASK_NS: u64 = 20_000;

/// Whether the kernel may have more to say of these connections than there is to report: of urgent bytes and of the end of
/// a socket it alone knows.
fn is_due(fds: &[pollfd], list: &[Ours]) -> bool {
    let now = call::now_ns();
    list.iter().any(|o| {
        o.conn.is_mixed(o.mine, o.peer)
            || o.conn.kernel.load(Ordering::Relaxed) != 0
            || fds[o.at].events & libc::POLLPRI != 0
            || now.saturating_sub(o.conn.polled.load(Ordering::Relaxed)) > ASK_NS
    })
}

/// Writes the answers for our connections; answers how many there are.
fn look(w: &'static World, fds: &mut [pollfd], list: &[Ours]) -> c_int {
    let mut n = 0;
    for o in list {
        fds[o.at].revents = o.revents(w, &fds[o.at]);
        n += c_int::from(fds[o.at].revents != 0);
    }
    n
}

/// The other descriptors' answers, without waiting, beside `now` of ours; with `refresh` the kernel is asked
/// in the same call what it has to say of ours, which are then looked at again.
fn with_kernel(
    w: &'static World,
    fds: &mut [pollfd],
    list: &[Ours],
    now: c_int,
    refresh: bool,
) -> c_int {
    if list.len() == fds.len() && !refresh {
        return now;
    }
    let mut copy: Vec<pollfd> = fds.to_vec();
    for o in list {
        let p = &mut copy[o.at];
        p.events = libc::POLLPRI | libc::POLLRDHUP;
        if !refresh {
            p.fd = -1;
        }
    }
    let begun = call::now_ns();
    // A handler that has run is no reason to know less.
    let asked = (0..8).map(|_| call::poll(&mut copy, 0)).find(|got| *got != Err(libc::EINTR));
    let answered = matches!(asked, Some(Ok(_)));
    if !answered {
        for p in &mut copy {
            p.revents = 0;
        }
    }
    let mut ours = now;
    if refresh && answered {
        for o in list {
            o.conn.polled.store(begun, Ordering::Relaxed);
            let revents = copy[o.at].revents;
            if revents & libc::POLLERR == 0 {
                o.conn.kernel.fetch_and(!kernel::ERR, Ordering::Relaxed);
            }
            o.note(revents);
        }
        ours = look(w, fds, list);
    }
    let mut of_ours = list.iter().map(|o| o.at).peekable();
    let mut others = 0;
    for (i, p) in copy.iter().enumerate() {
        if of_ours.next_if_eq(&i).is_some() {
            continue;
        }
        fds[i].revents = p.revents;
        others += c_int::from(p.revents != 0);
    }
    ours + others
}

/// Spins while that pays; `true`: something moved.
fn spin(w: &'static World, fds: &[pollfd], list: &[Ours], left: Option<u64>) -> bool {
    let max = u64::try_from(w.limits.spin.as_nanos()).unwrap_or(0).min(left.unwrap_or(u64::MAX));
    // What waits have taught is known of each connection: that of the one that was used most since the last
    // wait counts.
    let used = list.iter().map(|o| (o.conn.calls_since(o.mine), o));
    let Some((_, busiest)) = used.rev().max_by_key(|(calls, _)| *calls) else { return false };
    let mut asked = call::now_ns();
    let others = list.len() < fds.len();
    let mut looks = 0u32;
    let spun = busiest.conn.spin.until(
        max,
        || busiest.peer.cpu.load(Ordering::Relaxed),
        || Conn::peer_moved(busiest.peer),
        || {
            if list.iter().any(|o| moved(o, &fds[o.at])) {
                return true;
            }
            looks += 1;
            if others && looks.is_multiple_of(16) && call::now_ns() - asked > 10_000 {
                asked = call::now_ns();
                let mut copy: Vec<pollfd> = fds.to_vec();
                for o in list {
                    copy[o.at].fd = -1;
                }
                return call::poll(&mut copy, 0).is_ok_and(|n| n > 0);
            }
            false
        },
    );
    if spun && let Some(o) = list.iter().find(|o| moved(o, &fds[o.at])) {
        io::count(&o.mine.n_spins);
    }
    spun
}

/// Naps, where one connection is all that is waited for; it is held then. `naps`: counts them.
fn nap_on_one(
    w: &'static World,
    fds: &[pollfd],
    list: &[Ours],
    left: Option<u64>,
    naps: &mut u32,
    held: &mut Option<io::Held>,
) -> Nap {
    let ([o], [asked]) = (list, fds) else { return Nap::Over };
    let room = Ours::wants_out(asked);
    // The end of a wait is the kernel's, which then says what it has to say.
    let longest = nap::longest_ns(w);
    let ns = left.map_or(longest, |left| longest.min(left / 2));
    if !reads(asked) && !room || ns < SHORTEST_NS {
        return Nap::Over;
    }
    if !held.as_ref().is_some_and(|held| held.is_of(o.conn)) {
        o.conn.free_left_locks(w);
        *held = None;
        let at = std::ptr::from_ref(held) as usize;
        *held = io::Held::new(w, o.conn, asked.fd, at).ok();
    }
    if held.is_none() {
        return Nap::Over;
    }
    *naps = naps.saturating_add(1);
    nap::nap(w, o.conn, (o.mine, o.peer), room, (ns, Behind::Ends), || moved(o, asked))
}

fn moved(o: &Ours, p: &pollfd) -> bool {
    let asks = |events| p.events & events != 0;
    asks(libc::POLLIN | libc::POLLRDNORM) && o.conn.moved(o.mine, o.peer, false)
        // Bytes that nobody has asked for are not what is waited for.
        || asks(libc::POLLRDHUP) && o.conn.nears_its_end(o.mine, o.peer)
        || Ours::wants_out(p) && o.conn.moved(o.mine, o.peer, true)
}

/// Arms each connection, looks once more, and sleeps in the kernel. `Some`: the call ends so. `told`:
/// whether the kernel has said on the way all that it has to say of our connections.
fn doze(
    w: &'static World,
    fds: &mut [pollfd],
    list: &[Ours],
    left: Option<u64>,
    sleep: Sleep<'_>,
    told: &mut bool,
) -> Option<c_int> {
    let mut copy: Vec<pollfd> = fds.to_vec();
    let mut alone = true;
    let holds = left::begin_inside(handler::here());
    let sleeps = left::begin_inside(handler::here());
    let mut begun = 0;
    for o in list {
        o.conn.free_left_locks(w);
        if !o.conn.hold() {
            break;
        }
        begun += 1;
        holds.now(Wait::Calls(list.as_ptr(), begun));
        {
            let _held = lock::lock(&o.mine.wait_lock);
            let others = o.conn.sleepers(o.mine);
            o.mine.sleepers.fetch_add(1, Ordering::AcqRel);
            sleeps.now(Wait::Sleeps(list.as_ptr(), begun));
            alone &= others == 0;
            if others == 0 {
                // Before we arm: a doorbell that is taken out after that would not ring again.
                quieten(w, o, o.conn.descriptor(fds[o.at].fd));
            }
            let was = Conn::wait_word(o.mine);
            o.conn.arm_cold(w, o.mine);
            o.conn.end_own_naps(w, was, o.peer);
        }
        let p = &mut copy[o.at];
        // Another number, where another thread has closed this one since.
        p.fd = o.conn.descriptor(p.fd);
        if Ours::wants_out(p) && o.conn.wait_for_room(o.mine, o.peer) {
            alone &= o.conn.is_heard(w, o.mine, o.peer);
        }
        p.events = libc::POLLIN | libc::POLLRDHUP | fds[o.at].events & libc::POLLPRI;
        if has_unread(o, &fds[o.at]) {
            p.events &= !libc::POLLIN;
        }
    }
    let asleep = Finally(|| wakes_up(w, &list[..begun], &holds, &sleeps));
    if begun < list.len() {
        // Closed by another thread: what its number is now is another matter.
        return None;
    }
    let mut ready = list.iter().any(|o| moved(o, &fds[o.at]));
    if !ready {
        ready = look(w, fds, list) > 0;
    }
    let mut result = None;
    *told = false;
    if !ready {
        for o in list {
            o.mine.n_sleeps.fetch_add(1, Ordering::Relaxed);
            // A doorbell that is another process's would end each sleep at once.
            let for_others = !reads(&fds[o.at]) && !io::may_quieten(w, o.conn, o.mine, o.peer);
            // Of one that is not listened to, for receiving has ended, nobody hears that there is room.
            let deaf = is_muted(o, &fds[o.at]) && Ours::wants_out(&fds[o.at]);
            alone &= !for_others && !deaf;
            mute(o, &fds[o.at], for_others, &mut copy[o.at]);
        }
        // Beside another sleeper a doorbell may be taken before we see it.
        let limit = if alone { left } else { Some(left.unwrap_or(u64::MAX).min(1_000_000)) };
        #[cfg(feature = "watchdog")]
        let watched = if alone { watch(fds, list) } else { Vec::new() };
        let n = unmet::asleep(w, &mut copy, list, limit, sleep);
        #[cfg(feature = "watchdog")]
        drop(watched);
        match n {
            Some(n) if n < 0 => result = Some(n),
            Some(0) if alone && left.is_some() => {
                for (to, from) in fds.iter_mut().zip(&copy) {
                    to.revents = from.revents;
                }
            }
            _ => {}
        }
        *told = n.is_some_and(|n| n >= 0);
        // With another connection attached meanwhile the kernel may not have been asked.
        for o in list.iter().filter(|_| n.is_some()) {
            o.note(copy[o.at].revents);
            *told &= copy[o.at].fd >= 0 && o.conn.kernel.load(Ordering::Relaxed) & kernel::ERR == 0;
            if copy[o.at].revents & libc::POLLIN != 0
                && o.mine.drained.load(Ordering::Relaxed) == o.peer.bells.load(Ordering::Acquire)
            {
                o.conn.look_for_strays(o.mine, o.peer, o.conn.descriptor(fds[o.at].fd));
            }
        }
    }
    let errno = real::errno();
    drop(asleep);
    drop((sleeps, holds));
    if result.is_some() {
        real::set_errno(errno);
    }
    result
}

/// The end of a sleep on these, of which is noted how many are held and slept on.
fn wakes_up(w: &'static World, begun: &[Ours], holds: &left::Mark, sleeps: &left::Mark) {
    for (n, o) in begun.iter().enumerate().rev() {
        sleeps.now(Wait::Sleeps(begun.as_ptr(), n));
        io::wake_up(w, o.conn, o.mine);
        holds.now(Wait::Calls(begun.as_ptr(), n));
        io::release(w, o.conn);
    }
}

fn reads(asked: &pollfd) -> bool {
    asked.events & (libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP) != 0
}

/// Whether bytes of TCP from before the switch are unread, and not asked for: they would end each sleep at once. No doorbell
/// comes before them, which matters to who waits for room ([`Conn::is_heard`]); of an end the kernel tells.
fn has_unread(o: &Ours, asked: &pollfd) -> bool {
    asked.events & (libc::POLLIN | libc::POLLRDNORM) == 0
        && o.conn.kernel.load(Ordering::Relaxed) & kernel::IN != 0
        && o.conn.is_mixed(o.mine, o.peer)
}

/// See [`mute`].
fn is_muted(o: &Ours, asked: &pollfd) -> bool {
    let hints = o.conn.kernel.load(Ordering::Relaxed);
    !reads(asked) && hints & (kernel::RDHUP | kernel::HUP | kernel::ERR) != 0
}

/// A descriptor whose lasting state in the kernel the program has not asked for would end each sleep
/// at once.
fn mute(o: &Ours, asked: &pollfd, for_others: bool, p: &mut pollfd) {
    if is_muted(o, asked) {
        p.fd = -1;
    }
    if !reads(asked)
        && ring::tail(&o.peer.tail) != o.mine.head.load(Ordering::Relaxed)
        && (for_others || !Ours::wants_out(asked))
    {
        // Urgent data comes by the kernel, whatever lies in the ring.
        p.events = asked.events & libc::POLLPRI | libc::POLLRDHUP;
    }
}

/// Those that this thread is about to sleep on, for the watchdog.
#[cfg(feature = "watchdog")]
fn watch(fds: &[pollfd], list: &[Ours]) -> Vec<ready::watchdog::Asleep> {
    let one = |o: &Ours| {
        let asked = &fds[o.at];
        let bytes = asked.events & (libc::POLLIN | libc::POLLRDNORM) != 0;
        ready::watchdog::on_conn(o.conn, asked.fd, bytes, Ours::wants_out(asked))
    };
    list.iter().map(one).collect()
}

/// Takes doorbells out before the sleep, when no other thread sleeps on them.
fn quieten(w: &World, o: &Ours, fd: c_int) {
    if o.conn.is_mixed(o.mine, o.peer) {
        return;
    }
    if let Some(_held) = lock::lock_of(&o.mine.rx_lock, &o.mine.lent)
        && io::may_quieten(w, o.conn, o.mine, o.peer)
    {
        o.conn.drain_bells(o.mine, o.peer, fd);
    }
}

// ----- select ------------------------------------------------------------------------------------

/// The three sets of a `select`, as words; a set that was not given is empty.
pub(crate) struct Sets<'a> {
    /// Bits in and out: read, write, except.
    pub(crate) words: [Option<&'a mut [u64]>; 3],
    pub(crate) n: c_int,
}

const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// What `select` counts as readable, writable, exceptional.
const MEANS: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR,
    libc::POLLPRI,
];

impl Sets<'_> {
    fn has(&self, set: usize, fd: usize) -> bool {
        self.words[set]
            .as_ref()
            .is_some_and(|w| w.get(fd / 64).is_some_and(|w| w >> (fd % 64) & 1 == 1))
    }

    /// The descriptors asked for.
    pub(crate) fn list(&self) -> Vec<pollfd> {
        (0..usize::try_from(self.n).unwrap_or(0))
            .filter_map(|fd| {
                let mut events = 0;
                for (set, asked) in ASKED.iter().enumerate() {
                    if self.has(set, fd) {
                        events |= asked;
                    }
                }
                let number = c_int::try_from(fd).ok()?;
                (events != 0).then_some(pollfd { fd: number, events, revents: 0 })
            })
            .collect()
    }

    /// Writes the answer; answers the number of bits, or `EBADF`. `late`: what is no descriptor now was one
    /// when the call began, and such a one is ready for everything.
    pub(crate) fn answer(&mut self, fds: &[pollfd], late: bool) -> Result<c_int, c_int> {
        if !late && fds.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
            return Err(libc::EBADF);
        }
        let mut n = 0;
        for p in fds {
            let fd = usize::try_from(p.fd).unwrap_or(0);
            for (set, means) in MEANS.iter().enumerate() {
                if !self.has(set, fd) {
                    continue;
                }
                if p.revents & (means | libc::POLLNVAL) != 0 {
                    n += 1;
                } else if let Some(words) = self.words[set].as_mut() {
                    words[fd / 64] &= !(1 << (fd % 64));
                }
            }
        }
        Ok(n)
    }
}

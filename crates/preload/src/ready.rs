//! `epoll` in front of the kernel's `epoll`.
//!
//! An event set whose connections are attached looks at their rings in memory, spins a little, and
//! then sleeps in the kernel on the program's own epoll descriptor. In the kernel each attached
//! connection is registered for what wakes it (doorbells, the end of the peer), under a tag of
//! ours; what the program is told is computed from the rings.
//!
//! *Warm* sets have one thread waiting at a time: their connections share one sleep word, so one
//! doorbell wakes the loop whichever connection moved. *Cold* ones (several waiters, a fork, a set
//! that others poll) get a doorbell per connection that stays in the socket while there is
//! something to read, so that the kernel's own idea of readiness is true for everybody who asks it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::epoll_event;
use local::beside::Beside;
use local::conn::{Conn, Phase, Registration, SETS, kernel, reg_flags as reg};
use local::spin::Spin;
use local::world::{TIDY_NS, World};
use sys::abi::{Half, half_flags as flag};
use sys::lock::{self, Guarded};
use sys::ring;
use sys::sync::{AtomicU32, AtomicU64, full_fence};
use sys::wait::{self, WaitWord};
use sys::{call, handler};

use crate::fds::{self, Entry};
use crate::finally::Finally;
use crate::left::{self, Wait};
use crate::nap::{self, Nap};

mod amend;
mod asking;
mod control;
mod edges;
mod forking;
mod kick;
mod leaving;
mod leftover;
mod napping;
mod once;
mod outside;
mod park;
mod shared;
mod spare;
mod truth;
mod watch;
#[cfg(feature = "watchdog")]
pub(crate) mod watchdog;
mod woken;

use amend::{amend, ask_anew, is_own_one_shot, kernel_events, register_anew, stands, tag_of};
pub(crate) use amend::{before_a_fork, lift, put_down};
pub(crate) use control::{closed, control, created, duplicated, looked_at, other, passed};
pub(crate) use forking::{hold_sets, let_sets_go};
pub(crate) use kick::{is_kick, move_kick};
pub(crate) use leaving::{changed, detached, forget, reregister, unhidden, unregister};
use leftover::{is_nobodys, looks_alike};
pub(crate) use outside::has_read;
pub(crate) use park::{unpark, unpark_all};
use shared::{Stranger, is_news, is_rung, tagged};
pub(crate) use truth::mask;
use truth::{State, end_flags, hints_of, mask_at, note};
use watch::Members;
use woken::of_others;
pub(crate) use woken::{lacks_room, thawed, woken, woken_by};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
const ET: u32 = libc::EPOLLET.cast_unsigned();
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Synonyms of IN and OUT that programs may ask for.
const RDNORM: u32 = libc::EPOLLRDNORM as u32;
const WRNORM: u32 = libc::EPOLLWRNORM as u32;

/// Upper 16 bits of the data of registrations that are ours.
const TAG: u64 = 0x5348 << 48;
const TAG_MASK: u64 = 0xffff << 48;
/// Bit of a tag: the second registration of the connection.
const TAG_SECOND: u64 = 1 << 47;
/// The tag of the descriptor that interrupts a wait.
const KICK: u64 = TAG | 0x7fff_ffff_ffff;

/// Attached connections that a warm set looks at; of more than these, those that have been quiet go cold.
const WARM_MAX: usize = 512;
/// Quiet is who was not reported in so many looks at all of them, where there are not many more: the looks at one cost about
/// as much as a doorbell, the call that rings it and those that hear it and take it out.
const QUIET_LOOKS: usize = 1024;
/// In as many looks as see so many connections, where there are more: those do not fit into a cache any more.
const QUIET_SEEN: usize = 1 << 20;
/// Of more than so many nobody waits for the next one by looking at all of them again: each look takes as long as a sleep.
const SPUN_MAX: usize = 2048;
/// Who does not sleep lets go of some each so many looks.
const COOL_LOOKS: u32 = 16;
/// The kernel is asked at least this often about descriptors that are not ours, nanoseconds, and up to
/// four times as rarely while it has nothing to say.
const KERNEL_NS: u64 = 10_000;
/// Sleeps after which a set that nothing happens in has tidied up: one to learn who does nothing, one to
/// take back what they hold, and what other threads disturb.
const TIDY_TIMES: u32 = 4;
const DULL_MAX: u32 = 2;
/// A sleeper that nobody can wake looks by itself, nanoseconds.
const LOOK_NS: u64 = 1_000_000;

/// An epoll instance with sockets of ours in it.
pub(crate) struct Set {
    /// Which one it is, for all processes that have it since a fork: see [`Half::set_in`].
    key: u64,
    /// The word that they have in common, plus one: see `once`. 0: there has been no fork.
    common: AtomicU32,
    /// The process that has taken it.
    common_by: AtomicU32,
    /// How often something was put in, as this process has seen it: see `once`.
    changes: AtomicU32,
    /// Registrations that others have made, or that we hold no descriptor of any more, for a look without the lock.
    strangers: AtomicUsize,
    epfd: AtomicU32,
    refs: AtomicU32,
    members: Guarded<Members>,
    /// Members that are looked at in memory, for a look without the lock.
    count: AtomicUsize,
    waiting: AtomicU32,
    /// Threads among those that attach what was taken, and look at all of it next.
    settling: AtomicU32,
    /// Doorbells only, for good.
    cold: AtomicBool,
    /// Somebody looks at the descriptor itself: see `outside`.
    looked_at: AtomicBool,
    /// The kernel was told that there is something, and perhaps has not said so yet.
    shown: AtomicBool,
    /// A connection of ours was in it.
    used: AtomicBool,
    forks: AtomicU32,
    /// After how many forks of ours it was made, and after how many that had begun.
    born: u32,
    begun: u32,
    /// How many forks lie between the first process and the one that has made it.
    made_by: u32,
    waiter: AtomicU32,
    /// Registrations that were left behind under our tag: see `leftover`.
    left: AtomicU32,
    /// Descriptors in the set that are not followed: only the kernel knows of them.
    others: AtomicU32,
    /// Sockets of ours in it may be plain TCP: of what they do, too, only the kernel knows.
    plain: AtomicBool,
    /// It has had more of them than [`WARM_MAX`], so that some may be the kernel's to wake.
    many: AtomicBool,
    /// Some of them are. Only the kernel knows what they have.
    rung: AtomicBool,
    /// When the kernel was asked last, nanoseconds.
    asked: AtomicU64,
    /// Waits since, or since the clock was looked at.
    unasked: AtomicU32,
    /// Answers without an event in a row, up to [`DULL_MAX`].
    dull: AtomicU32,
    /// Waits that may still spin although nothing is attached: connections come and go.
    lively: AtomicU32,
    /// Shared with another process: only the kernel's word counts.
    forked: AtomicBool,
    /// The connection that moved last; 0: it has gone.
    last: AtomicU64,
    /// Some of our connections are in part the kernel's: it must be asked about them.
    mixed: AtomicBool,
    /// The last answer had no room for those who come last: next time they come first.
    crowded: AtomicBool,
    /// Somebody may have it who knows nothing of ours.
    passed: AtomicBool,
    /// The last answer was full of what the kernel said: next time ours come first.
    passed_over: AtomicBool,
    /// The set whose list the thread that forks has locked before this one; see `forking`.
    held_before: AtomicU64,
    /// How often idle rings were looked for since something happened last; [`TIDY_TIMES`] and more: all are back.
    tidied: AtomicU32,
    /// Where the next peer is expected.
    beside: Beside,
    spin: Spin,
    naps: nap::Learnt,
}

/// What a wait is given and gives.
pub(crate) struct Out<'a> {
    events: &'a mut [epoll_event],
    n: usize,
}

impl Out<'_> {
    fn push(&mut self, events: u32, data: u64) {
        self.events[self.n] = epoll_event { events, u64: data };
        self.n += 1;
    }
    fn is_full(&self) -> bool {
        self.n == self.events.len()
    }
}

/// The two ends of an attached connection in a set.
struct Ends {
    mine: &'static Half,
    peer: &'static Half,
}

fn ends(w: &'static World, conn: &Conn) -> Option<Ends> {
    if conn.phase() != Phase::Attached {
        return None;
    }
    let (mine, peer) = conn.halves(w)?;
    Some(Ends { mine, peer })
}

/// A number for a set that no other process has for one of its own.
fn new_key() -> u64 {
    static MADE: AtomicU64 = AtomicU64::new(0);
    // Of two processes that make one in the same nanosecond, and as many before, none has the other's.
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    (call::now_ns() << 20 | (made & 0xfff) << 8) ^ u64::from(call::getpid()) << 44 | 1
}

impl Set {
    fn new(w: &World, epfd: c_int) -> Self {
        Self {
            key: new_key(),
            common: AtomicU32::new(0),
            common_by: AtomicU32::new(0),
            changes: AtomicU32::new(1),
            strangers: AtomicUsize::new(0),
            epfd: AtomicU32::new(epfd.cast_unsigned()),
            refs: AtomicU32::new(1),
            members: Guarded::default(),
            left: AtomicU32::new(0),
            count: AtomicUsize::new(0),
            waiting: AtomicU32::new(0),
            settling: AtomicU32::new(0),
            cold: AtomicBool::new(false),
            looked_at: AtomicBool::new(false),
            shown: AtomicBool::new(false),
            used: AtomicBool::new(false),
            forks: AtomicU32::new(w.forks.load(Ordering::Relaxed)),
            born: w.forks.load(Ordering::Relaxed),
            begun: w.begun.load(Ordering::Relaxed),
            made_by: w.depth(),
            waiter: AtomicU32::new(0),
            others: AtomicU32::new(0),
            plain: AtomicBool::new(false),
            many: AtomicBool::new(false),
            rung: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            unasked: AtomicU32::new(0),
            dull: AtomicU32::new(0),
            lively: AtomicU32::new(0),
            forked: AtomicBool::new(false),
            last: AtomicU64::new(0),
            mixed: AtomicBool::new(false),
            crowded: AtomicBool::new(false),
            passed_over: AtomicBool::new(false),
            passed: AtomicBool::new(false),
            held_before: AtomicU64::new(0),
            tidied: AtomicU32::new(0),
            beside: Beside::default(),
            spin: Spin::new(),
            naps: nap::Learnt::default(),
        }
    }

    fn id(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    fn epfd(&self) -> c_int {
        self.epfd.load(Ordering::Relaxed).cast_signed()
    }

    fn is_cold(&self) -> bool {
        self.cold.load(Ordering::Relaxed)
    }

    /// How a connection in this set wants to be woken while nobody sleeps on it otherwise.
    fn word(&self, w: &'static World, conn: &Conn) -> Option<WaitWord> {
        if self.is_cold()
            || self.is_used_elsewhere(w)
            || conn.is_watched_with_others(w)
            || registrations(conn).count() > 1
            || is_own_one_shot(conn)
        {
            return None;
        }
        if self.waiter.load(Ordering::Relaxed) == 0 {
            let waiter = w.take_waiter()? + 1;
            if self
                .waiter
                .compare_exchange(0, waiter, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
            {
                w.drop_waiter(waiter - 1);
            }
        }
        self.waiter.load(Ordering::Relaxed).checked_sub(1).map(WaitWord::Warm)
    }

    /// From now on each connection has its own doorbell: there is somebody else to wake.
    fn go_cold(&'static self, w: &'static World) {
        if self.cold.swap(true, Ordering::SeqCst) {
            return;
        }
        park::unpark_set(self);
        let Some(members) = self.members.lock() else { return };
        let all: Vec<_> = members.warm.iter().map(|m| (m.conn, m.which)).collect();
        let offered: Vec<_> = members.offered.clone();
        drop(members);
        for (conn, _) in offered {
            let _ = ring_for_offer(w, conn);
        }
        for (conn, which) in all {
            if let Some(e) = ends(w, conn) {
                if let Some(_held) = lock::lock_of(&e.mine.rx_lock, &e.mine.lent)
                    && ring::tail(&e.peer.tail) == e.mine.head.load(Ordering::Relaxed)
                    && !conn.is_mixed(e.mine, e.peer)
                {
                    // Not before: another thread may have closed that number.
                    let fd = conn.fd.load(Ordering::Relaxed).cast_signed();
                    conn.drain_bells(e.mine, e.peer, fd);
                }
                set_word(w, self, conn, e.mine);
                if self.forked.load(Ordering::Relaxed) {
                    // What there was to tell is told by `wait_forked`.
                    register_anew(w, self, conn, which, &e);
                } else {
                    register(w, self, conn, which);
                }
            }
        }
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.kick(w);
        }
    }

    // ----- the kernel's events ---------------------------------------------------------------

    /// Takes in what the kernel says: the program's own descriptors go out as they are, ours become
    /// state that the next scan reports.
    fn absorb(&'static self, w: &'static World, events: &[epoll_event], out: &mut Out<'_>) {
        for event in events {
            let (mask, tag) = (event.events, event.u64);
            if tag == KICK || self.tells_what_was_left(tag, mask, out) {
                continue;
            }
            match tagged(w, tag) {
                Some((half, which)) => self.absorb_ours(w, mask, tag, half, which, out),
                None if is_nobodys(tag) => self.has_kept_something(),
                None => {
                    self.naps.kernel_told();
                    out.push(mask, tag);
                }
            }
        }
    }

    fn absorb_ours(
        &'static self,
        w: &'static World,
        mask: u32,
        tag: u64,
        half: &Half,
        which: usize,
        out: &mut Out<'_>,
    ) {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let index = tag as u32;
        let fd = half.fd.load(Ordering::Relaxed).cast_signed();
        let ours = |conn: &&'static Conn| conn.my_half(w).is_some_and(|(i, _)| i == index);
        let conn = fds::conn(fd).filter(ours).or_else(|| self.find(w, index));
        let Some(conn) = conn else {
            return self.tells_stranger(w, (index, half), which, mask, out);
        };
        let Some(e) = ends(w, conn) else {
            // It went back to TCP meanwhile: what the kernel says is what is.
            let r = &conn.sets[which];
            if r.set.load(Ordering::Acquire) == self.id()
                && r.flags.load(Ordering::Relaxed) & reg::DISABLED == 0
            {
                let events = mask & wanted(r);
                if events != 0 {
                    out.push(events, r.data.load(Ordering::Relaxed));
                }
            }
            return;
        };
        let r = &conn.sets[which];
        if r.set.load(Ordering::Acquire) != self.id() {
            // Taken out by the program, and parked.
            note(conn, mask);
            unpark(conn, which);
            return;
        }
        if self.is_shared(w, e.mine) {
            return self.as_own(w, conn, which, &e, mask, out);
        }
        note(conn, mask);
        let fd = conn.fd.load(Ordering::Relaxed).cast_signed();
        let drained = e.mine.drained.load(Ordering::Relaxed);
        if conn.is_mixed(e.mine, e.peer) {
            let something = conn.tcp_readable(e.mine, e.peer, fd);
            if something {
                conn.kernel.fetch_or(kernel::IN, Ordering::Relaxed);
                self.is_fresh(w, r, e.mine, which);
            } else {
                conn.kernel.fetch_and(!kernel::IN, Ordering::Relaxed);
                self.drain(w, conn, &e);
            }
        } else {
            self.drain(w, conn, &e);
        }
        // The end may have been reported already, when the peer said so itself.
        let told = end_flags(e.peer) != 0
            && r.seen_flags.load(Ordering::Relaxed) == end_flags(e.peer)
            && (mask & (HUP | ERR) == 0 || !is_news(conn, &e));
        if mask & PRI != 0 || mask & (RDHUP | HUP | ERR) != 0 && !told {
            self.is_fresh(w, r, e.mine, which);
        }
        // What a doorbell explains is told again by a level if there was more to it.
        let explained = drained != e.mine.drained.load(Ordering::Relaxed)
            && r.asked.load(Ordering::Relaxed) & (ET | ONESHOT) == 0;
        if mask & IN != 0 && !explained && !conn.is_mixed(e.mine, e.peer) {
            conn.look_for_strays(e.mine, e.peer, fd);
            if conn.kernel.load(Ordering::Relaxed) & kernel::STRAY != 0 {
                self.is_fresh(w, r, e.mine, which);
            }
        }
        conn.answer_demotion(w, fd, e.mine, e.peer);
        self.warm_up(w, conn, which, &e);
        if due(w, conn, r).events == 0 {
            hush(w, self, conn, which, mask);
            rings_beside_a_bell(w, r, conn, &e);
        }
    }

    /// There is something to report of a registration, whatever was reported.
    fn is_fresh(&self, w: &World, r: &Registration, mine: &Half, which: usize) {
        r.flags.fetch_or(reg::FRESH, Ordering::Relaxed);
        edges::arms(w, self, mine, which);
    }

    /// Takes doorbells out: in a cold set only when there is nothing left to read.
    fn drain(&self, w: &World, conn: &Conn, e: &Ends) {
        let Some(_held) = lock::lock_of(&e.mine.rx_lock, &e.mine.lent) else { return };
        // Not before: another thread may have closed that number.
        let fd = conn.descriptor(conn.fd.load(Ordering::Relaxed).cast_signed());
        if fd < 0 {
            return;
        }
        let empty = ring::tail(&e.peer.tail) == e.mine.head.load(Ordering::Relaxed);
        let cold = self.is_cold()
            || matches!(WaitWord::parse(e.mine.wait.load(Ordering::Relaxed)), WaitWord::Cold(_));
        if !cold {
            conn.drain_bells(e.mine, e.peer, fd);
        } else if empty && conn.sleepers(e.mine) == 0 {
            conn.drain_bells(e.mine, e.peer, fd);
            conn.arm_cold(w, e.mine);
        }
    }

    /// Before a sleep on a cold set: what comes next rings, also where something was told and has not been read, so that
    /// the doorbell for it lies in the socket and is none for who watches edges.
    fn arms_what_was_rung_for(&self, w: &'static World) {
        if !self.is_cold() {
            return;
        }
        let Some(members) = self.members.lock() else { return };
        for m in &members.warm {
            let r = &m.conn.sets[m.which];
            let edges = (r.asked.load(Ordering::Relaxed) | r.events.load(Ordering::Relaxed))
                & (ET | ONESHOT);
            // Where the kernel says what lies in the socket again and again, nothing is missed.
            if edges == 0 || r.flags.load(Ordering::Relaxed) & reg::DISABLED != 0 {
                continue;
            }
            if let Some(e) = ends(w, m.conn)
                && is_rung(e.mine, e.peer, false)
            {
                m.conn.arm_cold(w, e.mine);
            }
        }
    }

    fn find(&self, w: &'static World, index: u32) -> Option<&'static Conn> {
        let mut found = None;
        fds::each(|_, entry| {
            if let Entry::Conn(conn) = entry
                && conn.my_half(w).is_some_and(|(i, _)| i == index)
            {
                found = Some(conn);
            }
        });
        found
    }

    // ----- waiting ---------------------------------------------------------------------------

    /// Waits. `sleep` is the guest's own call with what is left of its time limit, in nanoseconds
    /// (`None`: for ever): it fills the array and answers as libc does. `naps`: another sleep may come before it.
    pub(crate) fn wait(
        &'static self,
        w: &'static World,
        epfd: c_int,
        events: &mut [epoll_event],
        limit: Option<u64>,
        naps: bool,
        sleep: &mut dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> c_int {
        self.epfd.store(epfd.cast_unsigned(), Ordering::Relaxed);
        self.notice_fork(w);
        w.note_cpu();
        lock::free_if_left(self.members.word());
        // Either we see a connection that another thread brings into the set, or that thread sees us
        // wait. Pairs with `recount`.
        let mark = left::begin(handler::here());
        let others = self.waiting.fetch_add(1, Ordering::SeqCst) > 0;
        mark.now(Wait::Set(self));
        let _waiting = Finally(|| {
            mark.now(Wait::Nothing);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        });
        let n = if self.forked.load(Ordering::Relaxed) {
            self.wait_forked(w, events, limit, sleep)
        } else if self.count.load(Ordering::SeqCst) == 0 {
            self.wait_plain(w, events, limit, naps, sleep)
        } else {
            if others {
                self.go_cold(w);
            }
            self.wait_ours(w, events, limit, naps, sleep)
        };
        self.shows(w);
        n
    }

    /// A wait was left by a jump while it slept, and will not end by itself.
    pub(crate) fn wait_left(&'static self, w: &'static World) {
        // Before we are no longer counted: from then on the word is that of whoever comes next.
        if self.waiting.load(Ordering::SeqCst) == 1
            && let Some(waiter) = self.waiter.load(Ordering::Relaxed).checked_sub(1)
            && let Some(word) = w.waiter(waiter)
        {
            wait::awake(word);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// A set without attached connections: the kernel's answer, but for tags of connections that
    /// were attached while we slept.
    fn wait_plain(
        &'static self,
        w: &'static World,
        events: &mut [epoll_event],
        limit: Option<u64>,
        naps: bool,
        sleep: &mut dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> c_int {
        let start = if limit.is_some_and(|l| l > 0) { call::now_ns() } else { 0 };
        let mut left = limit;
        loop {
            let ready = if limit == Some(0) { 0 } else { self.spin_for_kernel(w, events, left) };
            let untidy = ready == 0 && self.is_untidy(w, left);
            let until = if untidy { Some(TIDY_NS) } else { left };
            self.is_in_no_hurry(until);
            let n = if ready > 0 { ready } else { sleep(events, until) };
            if n == 0 && untidy {
                self.tidy(w);
                left = limit.map(|l| l.saturating_sub(call::now_ns().saturating_sub(start)));
                continue;
            }
            if n > 0 {
                self.tidied.store(0, Ordering::Relaxed);
            }
            let count = usize::try_from(n).unwrap_or(0);
            if !events[..count].iter().any(|e| { e.u64 } & TAG_MASK == TAG) {
                break n;
            }
            let copy: Vec<epoll_event> = events[..count].to_vec();
            let mut out = Out { events, n: 0 };
            self.absorb(w, &copy, &mut out);
            self.scan(w, &mut out);
            left = limit.map(|l| l.saturating_sub(call::now_ns().saturating_sub(start)));
            if out.n == 0 && self.forked.load(Ordering::Relaxed) {
                // Found to be shared just now.
                break self.wait_forked(w, events, left, sleep);
            }
            if out.n > 0 || limit == Some(0) || left == Some(0) {
                break c_int::try_from(out.n).unwrap_or(0);
            }
            if self.count.load(Ordering::Acquire) > 0 {
                break self.wait_ours(w, events, left, naps, sleep);
            }
        }
    }

    fn wait_ours(
        &'static self,
        w: &'static World,
        events: &mut [epoll_event],
        limit: Option<u64>,
        naps: bool,
        sleep: &mut dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> c_int {
        let start = if limit.is_some_and(|l| l > 0) { call::now_ns() } else { 0 };
        loop {
            let mut out = Out { events, n: 0 };
            // Before the kernel is asked: afterwards an event of the kernel's and one of ours could
            // be about the same connection.
            self.settling.fetch_add(1, Ordering::SeqCst);
            self.settle_offered(w);
            self.settling.fetch_sub(1, Ordering::SeqCst);
            self.looks_once(w, &mut out, limit);
            let n = out.n;
            if n == 0 && self.forked.load(Ordering::Relaxed) {
                // Found to be shared just now.
                let left = limit.map(|l| l.saturating_sub(call::now_ns().saturating_sub(start)));
                return self.wait_forked(w, events, left, sleep);
            }
            if n > 0 || limit == Some(0) {
                return c_int::try_from(n).unwrap_or(0);
            }
            let left = limit.map(|l| l.saturating_sub(call::now_ns() - start));
            if self.spin(w, &mut out, left) {
                if out.n > 0 {
                    return c_int::try_from(out.n).unwrap_or(0);
                }
                continue;
            }
            let left = limit.map(|l| l.saturating_sub(call::now_ns() - start));
            match if naps { self.nap(w, &mut out, left) } else { Nap::Over } {
                Nap::Woken if out.n > 0 => return c_int::try_from(out.n).unwrap_or(0),
                Nap::Woken => continue,
                Nap::Interrupted => {
                    crate::real::set_errno(libc::EINTR);
                    return -1;
                }
                Nap::Over => {}
            }
            let left = limit.map(|l| l.saturating_sub(call::now_ns() - start));
            let n = self.sleep(w, events, left, sleep);
            if let Some(n) = n {
                return n;
            }
            if limit.is_some_and(|l| call::now_ns() - start >= l) {
                if self.forked.load(Ordering::Relaxed) {
                    return self.wait_forked(w, events, Some(0), sleep);
                }
                let mut out = Out { events, n: 0 };
                self.scan(w, &mut out);
                return c_int::try_from(out.n).unwrap_or(0);
            }
        }
    }

    /// Connections that are attached for a moment come and go in this set: the next one may come
    /// soon, and only the kernel knows. Answers what the kernel has put into `events`.
    fn spin_for_kernel(
        &'static self,
        w: &'static World,
        events: &mut [epoll_event],
        left: Option<u64>,
    ) -> c_int {
        let lively = self.lively.load(Ordering::Relaxed);
        // On one CPU a sleep in the kernel lets the peer run as a yield would, and ends with the answer.
        if lively == 0 || self.is_cold() || self.beside.is_so(w, self.last()) {
            return 0;
        }
        let max =
            u64::try_from(w.limits.spin.as_nanos()).unwrap_or(0).min(left.unwrap_or(u64::MAX));
        let mut n = 0;
        let mut asked = 0;
        self.spin.until(
            max,
            || self.beside.cpu(w, self.last()),
            || self.last_moved(w),
            || {
                let now = call::now_ns();
                if now - asked > KERNEL_NS / 4 {
                    asked = now;
                    n = call::epoll_wait(self.epfd(), events, 0).unwrap_or(0);
                }
                n > 0 || self.count.load(Ordering::Relaxed) > 0
            },
        );
        if n == 0 {
            self.lively.store(lively - 1, Ordering::Relaxed);
        }
        c_int::try_from(n).unwrap_or(0)
    }

    /// Spins while that pays; `true`: something is there (perhaps in `out` already).
    fn spin(&'static self, w: &'static World, out: &mut Out<'_>, left: Option<u64>) -> bool {
        if self.is_cold() || self.is_left_to_the_kernel(w) || self.is_large() {
            return false;
        }
        let max =
            u64::try_from(w.limits.spin.as_nanos()).unwrap_or(0).min(left.unwrap_or(u64::MAX));
        let mut asked = call::now_ns().saturating_sub(self.patience() / 2);
        let mut looks = 0u32;
        self.spin.until(
            max,
            || self.beside.cpu(w, self.last()),
            || self.last_moved(w),
            || {
                if self.any(w) {
                    return true;
                }
                looks += 1;
                if looks.is_multiple_of(8) && call::now_ns() - asked > self.patience() {
                    asked = call::now_ns();
                    self.ask_kernel(w, out, 64);
                    return out.n > 0 || self.any(w);
                }
                false
            },
        )
    }

    /// Whether the next sleep is to be a short one: the first ones are, where they leave much memory with connections that
    /// do nothing, or with none.
    fn is_untidy(&self, w: &World, left: Option<u64>) -> bool {
        self.tidied.load(Ordering::Relaxed) < TIDY_TIMES
            && left.is_none_or(|l| l > TIDY_NS)
            && w.holds_much()
    }

    /// Nothing has happened in a short sleep.
    fn tidy(&self, w: &World) {
        let times = if w.tidy() { TIDY_TIMES } else { 1 };
        self.tidied.fetch_add(times, Ordering::Relaxed);
    }

    /// Sleeps in the kernel. `Some`: what the guest's call ends with.
    fn sleep(
        &'static self,
        w: &'static World,
        events: &mut [epoll_event],
        left: Option<u64>,
        sleep: &mut dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> Option<c_int> {
        self.is_in_no_hurry(left);
        let unheard = self.ask_for_room(w);
        let left = if unheard { Some(left.unwrap_or(u64::MAX).min(LOOK_NS)) } else { left };
        let untidy = self.is_untidy(w, left);
        let left = if untidy { Some(TIDY_NS) } else { left };
        if !self.is_cold() {
            self.cool_down(w);
        }
        let waiter = self.waiter.load(Ordering::Relaxed).checked_sub(1).and_then(|k| w.waiter(k));
        let word = if self.is_cold() { None } else { waiter };
        let mut slept = 0;
        if let Some(word) = word {
            slept = wait::fall_asleep(word);
        } else {
            self.arms_what_was_rung_for(w);
            std::sync::atomic::fence(Ordering::SeqCst);
        }
        if self.any(w) {
            if let Some(word) = word {
                wait::awake_from(word, slept);
            }
            return None;
        }
        self.count_sleep(w);
        #[cfg(feature = "watchdog")]
        let watched = watchdog::on_set(self);
        let asleep = Finally(|| {
            if let Some(word) = word {
                wait::awake_from(word, slept);
            }
        });
        let n = sleep(events, left);
        #[cfg(feature = "watchdog")]
        drop(watched);
        let errno = crate::real::errno();
        drop(asleep);
        if n <= 0 {
            let mut out = Out { events, n: 0 };
            self.scan(w, &mut out);
            if out.n > 0 {
                return c_int::try_from(out.n).ok();
            }
            if n == 0 && untidy {
                self.tidy(w);
            }
            if n == 0 && (unheard || untidy) {
                return None;
            }
            crate::real::set_errno(errno);
            return Some(n);
        }
        self.tidied.store(0, Ordering::Relaxed);
        let count = usize::try_from(n).unwrap_or(0);
        let copy: Vec<epoll_event> = events[..count].to_vec();
        let mut out = Out { events, n: 0 };
        self.absorb(w, &copy, &mut out);
        self.scan(w, &mut out);
        if out.n > 0 { c_int::try_from(out.n).ok() } else { None }
    }

    /// Those who want to write and have no room say so to their peers before the loop sleeps. `true`:
    /// of one of the peers nothing may be heard: see [`Conn::is_heard`].
    fn ask_for_room(&self, w: &'static World) -> bool {
        let mut unheard = false;
        let Some(members) = self.members.lock() else { return false };
        for member in &members.warm {
            let conn = member.conn;
            let r = &conn.sets[member.which];
            if r.events.load(Ordering::Relaxed) & (OUT | WRNORM) == 0 {
                continue;
            }
            if let Some(e) = ends(w, conn)
                && !conn.writable(w, e.mine, e.peer)
            {
                r.flags.fetch_or(reg::ROOM, Ordering::Relaxed);
                // Room that came just now is seen by the look that follows.
                let _ = conn.wait_for_room(e.mine, e.peer);
                unheard |= !conn.is_heard(w, e.mine, e.peer);
            }
        }
        unheard
    }
}

/// What the user asked for.
fn wanted(r: &Registration) -> u32 {
    r.events.load(Ordering::Relaxed) | ERR | HUP
}

/// What there is to report of a registration, and what that is based on: an edge is the difference
/// to it.
struct Due {
    events: u32,
    tail: u64,
    end: u32,
}

/// What there is to report of a registration now.
#[inline]
fn due(w: &'static World, conn: &'static Conn, r: &Registration) -> Due {
    let nothing = Due { events: 0, tail: 0, end: 0 };
    let flags = r.flags.load(Ordering::Relaxed);
    if flags & reg::DISABLED != 0 || conn.phase() != Phase::Attached {
        return nothing;
    }
    let Some((mine, peer)) = conn.halves(w) else { return nothing };
    let events = r.events.load(Ordering::Relaxed);
    // Read once: what arrives after this is the next edge.
    let end = end_flags(peer);
    let tail = ring::tail(&peer.tail);
    let now = mask_at(conn, mine, peer, tail) & (events | ERR | HUP);
    if events & ET == 0 || now == 0 {
        return Due { events: now, tail, end };
    }
    let moved = tail != r.seen.load(Ordering::Relaxed) && now & (IN | RDNORM) != 0;
    let changed = end != r.seen_flags.load(Ordering::Relaxed);
    let room = flags & reg::ROOM != 0 && now & (OUT | WRNORM) != 0;
    let is_edge = moved || changed || room || flags & reg::FRESH != 0;
    Due { events: if is_edge { now } else { 0 }, tail, end }
}

/// While a direction is switching only the kernel knows whether there is something to read: it says
/// so by an event (`said`), and otherwise what it has said is taken back once it is read.
#[inline]
fn refresh_mixed(w: &'static World, conn: &'static Conn, said: bool) {
    if (said || conn.kernel.load(Ordering::Relaxed) & kernel::IN != 0)
        && let Some(e) = ends(w, conn)
        && conn.is_mixed(e.mine, e.peer)
    {
        let fd = conn.fd.load(Ordering::Relaxed).cast_signed();
        if conn.tcp_readable(e.mine, e.peer, fd) {
            conn.kernel.fetch_or(kernel::IN, Ordering::Relaxed);
        } else {
            conn.kernel.fetch_and(!kernel::IN, Ordering::Relaxed);
        }
    }
}

/// Notes what was reported.
fn reported(r: &Registration, due: &Due) {
    r.seen.store(due.tail, Ordering::Relaxed);
    r.seen_flags.store(due.end, Ordering::Relaxed);
    // Room that was not there to be reported is still an edge to come.
    let room = if due.events & (OUT | WRNORM) != 0 { reg::ROOM } else { 0 };
    r.flags.fetch_and(!(reg::FRESH | room), Ordering::Relaxed);
    if r.events.load(Ordering::Relaxed) & ONESHOT != 0 {
        r.flags.fetch_or(reg::DISABLED, Ordering::Relaxed);
    }
}

/// Brings the kernel's registration in line with ours. `false`: it has none.
fn register(w: &'static World, set: &Set, conn: &'static Conn, which: usize) -> bool {
    let r = &conn.sets[which];
    for _ in 0..once::CHANGES_MAX {
        let Some(e) = ends(w, conn) else {
            once::follow_others(w, conn, which);
            // Registrations that the kernel does not change cannot be made by changing one.
            let user = r.events.load(Ordering::Relaxed) & !EXCLUSIVE;
            if user & ONESHOT != 0 && r.flags.load(Ordering::Relaxed) & reg::DISABLED != 0 {
                // It has fired: under our tag it will not be told again.
                if r.asked.load(Ordering::Relaxed) & ONESHOT == 0
                    && let Some(tag) = tag_of(w, conn, which)
                {
                    return amend(set, conn, r, ONESHOT, tag);
                }
                return true;
            }
            return amend(set, conn, r, user, r.data.load(Ordering::Relaxed));
        };
        let change =
            |events, tag| if amend(set, conn, r, events, tag) { Ok(()) } else { Err(libc::ENOENT) };
        let Ok(given) = enrol(w, set, conn, which, change) else { return false };
        // If another process or thread has asked for something else meanwhile, or armed it, the kernel must have that.
        // (What one of them fires meanwhile the kernel may say once more: it is for nobody then.)
        if given.holds(w, set, r, &e, which) {
            break;
        }
    }
    true
}

/// Of [`enrol`]: there is nothing to watch for us. The kernel refuses no new registration so.
const NOT_ATTACHED: i32 = libc::ENOENT;

/// Registers an attached connection by `tell`, which is given what the kernel is to watch and our tag.
fn enrol(
    w: &'static World,
    set: &Set,
    conn: &'static Conn,
    which: usize,
    tell: impl FnOnce(u32, u64) -> call::Result<()>,
) -> call::Result<once::Given> {
    let r = &conn.sets[which];
    let (e, tag) = ends(w, conn).zip(tag_of(w, conn, which)).ok_or(NOT_ATTACHED)?;
    set.is_given_out(tag);
    let flags = r.flags.fetch_or(reg::TAGGED, Ordering::Relaxed);
    let known = once::Known::of(e.mine, which);
    let (user, fired) =
        if set.may_be_shared(e.mine) && (known.is_some() || flags & reg::TAGGED != 0) {
            // Another process may know better, or have taken it out.
            let known = known.ok_or(NOT_ATTACHED)?.follow(r, e.mine, which);
            (known.events(), known.has_fired())
        } else {
            let (events, data) = (r.events.load(Ordering::Relaxed), r.data.load(Ordering::Relaxed));
            let fired = flags & reg::DISABLED != 0 && events & ONESHOT != 0;
            once::publish(w, set, e.mine, which, (events, data, fired));
            (events, fired)
        };
    // One that has fired is not armed again but by the program.
    let shared = set.lets_others_arm(w, e.mine);
    let events = if fired { ONESHOT } else { kernel_events(user, r, &e, shared) };
    r.asked.store(events, Ordering::Relaxed);
    tell(events, tag)?;
    // Once more: another thread may have said so in between, and been first with the kernel.
    r.asked.store(events, Ordering::Relaxed);
    // Either we see that it is back on TCP by now, or `detached` sees our tag.
    full_fence();
    if ends(w, conn).is_none() {
        r.flags.fetch_and(!reg::TAGGED, Ordering::Relaxed);
        register(w, set, conn, which);
    }
    Ok(once::Given { user, fired, shared })
}

/// The kernel reported something that the program is not to be told: see to it that it does not do
/// so again and again.
fn hush(w: &'static World, set: &'static Set, conn: &'static Conn, which: usize, mask: u32) {
    let r = &conn.sets[which];
    let user = r.events.load(Ordering::Relaxed);
    let flags = r.flags.load(Ordering::Relaxed);
    let disarms = r.asked.load(Ordering::Relaxed) & ONESHOT != 0;
    if flags & reg::DISABLED != 0 && disarms {
        // The kernel says nothing more of it.
        return;
    }
    let lies = |e: &Ends| {
        if conn.is_mixed(e.mine, e.peer) {
            return conn.kernel.load(Ordering::Relaxed) & kernel::IN != 0;
        }
        ring::tail(&e.peer.tail) != e.mine.head.load(Ordering::Relaxed)
            && e.peer.bells.load(Ordering::Acquire) != e.mine.drained.load(Ordering::Relaxed)
    };
    let lasting = mask & (RDHUP | HUP | ERR) != 0 || ends(w, conn).is_some_and(|e| lies(&e));
    if lasting && (user & ET == 0 || user & ONESHOT != 0) && flags & reg::QUIET == 0 {
        // To arm a one-shot one as it is would bring the same at once.
        r.flags.fetch_or(reg::QUIET, Ordering::Relaxed);
        register(w, set, conn, which);
        return;
    }
    if user & ONESHOT != 0 && flags & reg::DISABLED == 0 && disarms {
        // The kernel has disarmed it; the program has not had its event yet.
        register(w, set, conn, which);
    }
}

/// The kernel has told of a doorbell that is none for the program, and that stays in the socket, which it will not say again:
/// what the program waits for has to ring beside it. (The caller looks after this.)
fn rings_beside_a_bell(w: &World, r: &Registration, conn: &Conn, e: &Ends) {
    let edges =
        (r.asked.load(Ordering::Relaxed) | r.events.load(Ordering::Relaxed)) & (ET | ONESHOT);
    if edges != 0
        && r.flags.load(Ordering::Relaxed) & reg::DISABLED == 0
        && is_cold(e.mine)
        && is_rung(e.mine, e.peer, false)
    {
        conn.arm_cold(w, e.mine);
    }
}

/// Whether a connection is rung for by a doorbell of its own.
fn is_cold(mine: &Half) -> bool {
    matches!(WaitWord::parse(mine.wait.load(Ordering::Relaxed)), WaitWord::Cold(_))
}

/// The registrations of a connection.
fn registrations(conn: &Conn) -> impl Iterator<Item = (usize, &'static Set)> {
    conn.sets.iter().enumerate().filter_map(|(i, r)| {
        let at = r.set.load(Ordering::Acquire);
        // SAFETY: sets are never unmapped.
        (at != 0).then(|| (i, unsafe { &*(at as *const Set) }))
    })
}

/// Whether an event set has it, of this process or of one that has shared it.
pub(crate) fn is_in_a_set(w: &World, conn: &Conn, mine: &Half) -> bool {
    registrations(conn).next().is_some()
        || mine.flags.load(Ordering::Relaxed) & flag::SHARED != 0
            && of_others(w, conn).next().is_some()
}

/// Whether one of the registrations may have fired for good, by the kernel's word and unseen by us: to attach
/// arms it again, so that is not done before the program does something itself.
fn fires_once(conn: &Conn) -> bool {
    registrations(conn)
        .any(|(which, _)| conn.sets[which].events.load(Ordering::Relaxed) & ONESHOT != 0)
}

/// Says in shared memory how the connection wants to be woken, as its sets ask for.
fn set_word(w: &'static World, set: &'static Set, conn: &'static Conn, mine: &Half) {
    let _held = lock::lock(&mine.wait_lock);
    if set.is_of(conn) {
        word_as_wanted(w, set, conn, mine);
    } else if conn.phase() == Phase::Attached {
        // Another thread has taken it out of the set since.
        restore(w, conn, mine);
    } else {
        conn.arm_cold(w, mine);
    }
}

/// [`set_word`], the lock being held, and the connection in the set.
fn word_as_wanted(w: &'static World, set: &'static Set, conn: &'static Conn, mine: &Half) {
    // A thread that sleeps on the connection itself needs a doorbell of its own.
    let alone = conn.sleepers(mine) == 0;
    let was = Conn::wait_word(mine);
    match set.word(w, conn).filter(|_| alone) {
        Some(word) => {
            wait::arm(&mine.wait, word);
            // Pairs with `is_used_here_too`.
            if set.is_used_elsewhere(w) {
                conn.arm_cold(w, mine);
            }
        }
        None => conn.arm_cold(w, mine),
    }
    if let Some((_, peer)) = conn.halves(w).filter(|_| was != Conn::wait_word(mine)) {
        conn.end_own_naps(w, was, peer);
    }
}

/// Whether an event loop of this process is to be rung for a connection.
fn is_ours(w: &World, mine: &Half) -> bool {
    let word = WaitWord::parse(mine.wait.load(Ordering::Relaxed));
    matches!(word, WaitWord::Warm(waiter) if w.is_own_waiter(waiter))
}

/// After a sleep on the connection itself: back to what its sets ask for. `wait_lock` is held.
pub(crate) fn restore(w: &'static World, conn: &'static Conn, mine: &Half) {
    let set = registrations(conn).next();
    match set {
        Some((_, set)) => word_as_wanted(w, set, conn, mine),
        None if conn.is_shared(w) || conn.sleepers(mine) > 0 => conn.arm_cold(w, mine),
        // Another process has it in a set, and need not hold it.
        None if (mine.flags.load(Ordering::Relaxed) & flag::SHARED != 0
            || mine.users.load(Ordering::Relaxed) > 1)
            && of_others(w, conn).next().is_some() =>
        {
            conn.arm_cold(w, mine);
        }
        None if conn.is_lent(w) && !is_ours(w, mine) => {}
        None if conn.is_lent(w) => conn.arm_cold(w, mine),
        None => conn.disarm(mine, crate::io::AWAKE),
    }
}

/// The connection has just been attached: its sets look at it in memory from now on.
pub(crate) fn attached(w: &'static World, conn: &'static Conn) {
    let mut any = false;
    for (which, set) in registrations(conn) {
        any = true;
        let r = &conn.sets[which];
        let own = r.events.load(Ordering::Relaxed) & ONESHOT != 0
            && r.flags.load(Ordering::Relaxed) & reg::TAGGED == 0;
        // Whoever was armed for less than doorbells until now may have missed one, and has just been armed by the
        // program, which made it one-shot only then.
        let rung_for = |mine: &Half| {
            matches!(WaitWord::parse(mine.wait.load(Ordering::Relaxed)), WaitWord::Cold(_))
        };
        match conn.halves(w) {
            Some((mine, _)) if own && rung_for(mine) && once::may_have_fired(conn, r) => {
                // To make it ours would arm it again, and it may have fired. Until the program does that itself,
                // what the kernel says of the socket is true by doorbells: see `control::modify`.
                r.flags.fetch_or(reg::LATER, Ordering::Relaxed);
                set_word(w, set, conn, mine);
            }
            _ => set.adopt(w, conn, which, true),
        }
    }
    if !any && let Some((mine, _)) = conn.halves(w) {
        let _held = lock::lock(&mine.wait_lock);
        restore(w, conn, mine);
        // What arrived while we were still armed may have rung; that byte is drained in its time.
    }
}

/// A connection was offered: the sets that it is in look in memory whether it is taken.
pub(crate) fn offered(w: &'static World, conn: &'static Conn) {
    for (which, set) in registrations(conn) {
        watch_offer(w, set, conn, which);
    }
}

fn watch_offer(w: &'static World, set: &'static Set, conn: &'static Conn, which: usize) {
    if conn.phase() != Phase::Offered || set.is_cold() || set.forked.load(Ordering::Relaxed) {
        return;
    }
    let Some((_, half)) = conn.my_half(w) else { return };
    if let Some(mut members) = set.members.lock() {
        if conn.sets[which].set.load(Ordering::Acquire) != set.id() {
            return;
        }
        members.watch(w, (conn, which), half);
        members.recount(set);
    }
    if !fires_once(conn) {
        conn.watched(w);
    }
    set.beside.offered(w, conn);
    if set.waiting.load(Ordering::SeqCst) > 0 {
        // No peer tells a nap of it.
        set.rouse(w);
        // Somebody sleeps who does not look at it: the kernel's doorbell is armed, also where the
        // connection was in another set that has a word of its own.
        let _ = ring_for_offer(w, conn);
        if conn.is_taken(w) {
            // Before that, perhaps: nobody rang for what is there.
            set.kick(w);
        }
        return;
    }
    set_word(w, set, conn, half);
}

/// Before the kernel waits on an offered connection by itself: the peer must ring. `true`: the offer
/// has been taken already.
pub(crate) fn ring_for_offer(w: &'static World, conn: &'static Conn) -> bool {
    let Some((_, half)) = conn.my_half(w) else { return false };
    let _held = lock::lock(&half.wait_lock);
    if !matches!(WaitWord::parse(half.wait.load(Ordering::Relaxed)), WaitWord::Cold(_)) {
        conn.arm_cold(w, half);
        return conn.is_taken(w);
    }
    false
}

/// The same, where the switch may have been seen by a call that knows no event sets.
pub(crate) fn attached_late(w: &'static World, conn: &'static Conn) {
    let untagged = registrations(conn)
        .any(|(i, _)| conn.sets[i].flags.load(Ordering::Relaxed) & reg::TAGGED == 0);
    if untagged {
        attached(w, conn);
    }
}

//! What a process knows: the board, its memory, its limits.

use std::collections::VecDeque;

use sys::abi::{Half, LOOPS, SLOTS, Slot, WAITERS, half_state};
use sys::call;
use sys::common::Common;
use sys::lock::Guarded;
use sys::map::MapError;
use sys::sync::{AtomicU32, AtomicU64, Ordering};
use sys::wait;

use crate::arena::Arena;
use crate::board::Board;
use crate::brief::Brief;
use crate::conn::Conn;
use crate::holders;
use crate::spared::Spared;
use crate::spin::is_here;
use crate::{Level, Limits, Reason};

/// Ring bytes that connections may hold while nothing is in them; beyond it, whoever takes another
/// ring takes back those that others have not used for [`IDLE_NS`].
const HOLD_BYTES: usize = 512 << 10;
/// Of those given back, how much a program that does nothing keeps for its next connections.
const SPARE_BYTES: usize = HOLD_BYTES / 4;
/// Records that wait until they serve another connection, in each process that has closed so many.
const RESTING: usize = 32;
/// Longer than the pauses of a connection that is one of hundreds in use, nanoseconds.
const IDLE_NS: u64 = 10_000_000;
/// Connections that are closed here, of which a program that does nothing looks at so many whether their peers have
/// closed, too.
const CLOSED_AT_ONCE: usize = 4096;
/// A program that sleeps for so long with many rings held tidies up, nanoseconds.
pub const TIDY_NS: u64 = 2 * IDLE_NS;
/// Holders that are looked at for each ring that is taken: more than one, so that idle ones shrink.
const LOOKS: usize = 4;

/// A connection that holds a ring.
#[derive(Debug)]
struct Holder {
    conn: &'static Conn,
    /// What it had sent when it was looked at last, and when that was.
    sent: u64,
    looked_ns: u64,
}

/// One process's part in Shunt.
#[derive(Debug)]
pub struct World {
    /// The board.
    pub board: Board,
    /// What the configuration allows.
    pub limits: Limits,
    /// Name of the program, for rules.
    pub program: String,
    /// Our memory.
    pub arena: Guarded<Arena>,
    /// Counts the forks since the start; what was counted before a fork may be wrong after it.
    pub forks: AtomicU32,
    /// Words that count who holds a connection: see `crate::holders`.
    pub(crate) common: Common,
    /// Which of those to look at first for one that counts nobody.
    pub(crate) next_common: AtomicU32,
    /// Words that say which sets several processes use.
    sets: Common,
    /// Which of those to look at first.
    next_set: AtomicU32,
    /// Counts the forks that have begun: what another process may have is known from then on.
    pub begun: AtomicU32,
    /// Halves of other processes have been [opened](Self::opens_half) for writing.
    has_opened: AtomicU32,
    /// How many forks lie between the first process and this one.
    child: AtomicU32,
    /// Connections that hold a ring, oldest first.
    holders: Guarded<VecDeque<Holder>>,
    /// Connection records that nobody uses, in the order in which they were given back.
    spare: Guarded<VecDeque<&'static Conn>>,
    /// For each waiter of all processes, the sleep for which we have rung.
    rung: Box<[AtomicU32]>,
    /// Waiters of this process in use, a bit each.
    waiters: AtomicU32,
    /// Waiters behind these that are calls of `poll`.
    polls: AtomicU32,
    /// Held while memory of a peer is open for writing.
    pub(crate) lending: Guarded<()>,
    /// Our way to the engine: a descriptor, once there is one.
    engine: Guarded<Option<i32>>,
    /// The same plus one, for those who only ask whether a descriptor is ours; 0: none.
    engine_fd: AtomicU32,
    /// 1 once [`Self::has_no_place`] has said so.
    told: AtomicU32,
    /// What connections have carried so far.
    pub(crate) brief: Brief,
    /// Where connections lead that have gained nothing of late.
    pub(crate) spared: Spared,
    /// Connections of ours that are not offered any more.
    unoffered: AtomicU32,
    /// Our half of the connection that something was sent on last, plus one; noted while [`Self::is_brief`].
    sent_on: AtomicU32,
    /// Memory that this process may have: [`Limits::memory_max`] at first.
    memory_max: AtomicU64,
    /// Halves that were given back while another thread was at [`Self::arena`].
    returned: Guarded<Vec<u32>>,
    /// On a board for all network namespaces: from where our packets leave ours, as it was found last.
    pub(crate) way_out: Guarded<Option<crate::conn::syn::WayOut>>,
    /// Whether there are secrets in time stamps, and when that was asked, nanoseconds.
    pub(crate) secret_stamps: Guarded<Option<(u64, bool)>>,
    /// Until when peers are waited for whose part nobody can do: see `Conn::demote`.
    pub(crate) waits_until: AtomicU64,
    /// The same, for peers that live and do not run.
    pub(crate) runs_until: AtomicU64,
    /// The same for those that are in the middle of a send.
    pub(crate) stopped_until: AtomicU64,
}

impl World {
    /// Joins the board.
    ///
    /// # Errors
    ///
    /// Why not; the process then stays on TCP.
    pub fn join(limits: Limits, program: String, high_fd: i32) -> Result<Self, MapError> {
        let board = Board::join(limits.dir.as_deref(), high_fd)?;
        Ok(Self::of(board, limits, program))
    }

    /// Joins the board of a user who is not trusted: see [`Board::join_foreign`].
    ///
    /// # Errors
    ///
    /// As [`Self::join`].
    pub fn join_foreign(limits: Limits, program: String, high_fd: i32) -> Result<Self, MapError> {
        Ok(Self::of(Board::join_foreign(high_fd)?, limits, program))
    }

    /// Takes back all that this process has of the board: for who has given nothing of it to anybody.
    pub fn leave(self) {
        self.board.leave();
    }

    fn of(board: Board, limits: Limits, program: String) -> Self {
        let memory_max = AtomicU64::new(limits.memory_max as u64);
        Self {
            board,
            limits,
            program,
            arena: Guarded::default(),
            forks: AtomicU32::new(0),
            common: Common::default(),
            next_common: AtomicU32::new(0),
            sets: Common::default(),
            next_set: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            has_opened: AtomicU32::new(0),
            child: AtomicU32::new(0),
            holders: Guarded::default(),
            spare: Guarded::default(),
            rung: (0..SLOTS * WAITERS).map(|_| AtomicU32::new(0)).collect(),
            waiters: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            lending: Guarded::default(),
            engine: Guarded::default(),
            engine_fd: AtomicU32::new(0),
            told: AtomicU32::new(0),
            brief: Brief::default(),
            spared: Spared::default(),
            unoffered: AtomicU32::new(0),
            sent_on: AtomicU32::new(0),
            memory_max,
            returned: Guarded::default(),
            way_out: Guarded::default(),
            secret_stamps: Guarded::default(),
            waits_until: AtomicU64::new(0),
            runs_until: AtomicU64::new(0),
            stopped_until: AtomicU64::new(0),
        }
    }

    /// Memory that this process may have here, bytes.
    #[inline]
    #[must_use]
    pub fn memory_max(&self) -> usize {
        usize::try_from(self.memory_max.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Changes that, for what is taken from now on.
    pub fn set_memory_max(&self, bytes: usize) {
        self.memory_max.store(bytes as u64, Ordering::Relaxed);
    }

    /// A closed half is kept until its peer has closed too. Where the board's user is not trusted, another thread may be
    /// held up by him while it takes memory: it is not waited for, and takes this one as well when it can.
    pub(crate) fn retire(&self, index: u32) {
        let arena = match self.board.map.is_foreign() {
            true => self.arena.try_lock(),
            false => self.arena.lock(),
        };
        match arena {
            Some(mut arena) => arena.retire(&self.board, index),
            None => {
                if let Some(mut returned) = self.returned.lock() {
                    returned.push(index);
                }
            }
        }
    }

    /// Takes in what was given back meanwhile.
    pub fn take_returned(&self) {
        let returned = self.returned.lock().map(|mut all| std::mem::take(&mut *all));
        if let (Some(returned), Some(mut arena)) = (returned, self.arena.lock()) {
            returned.into_iter().for_each(|index| arena.retire(&self.board, index));
        }
    }

    /// To be called in a forked child, where only this thread exists.
    pub fn forked(&self) {
        self.forks.fetch_add(1, Ordering::Relaxed);
        self.child.fetch_add(1, Ordering::Relaxed);
        self.board.forked();
        if self.spare.word().load(Ordering::Relaxed) != 0 {
            // It may be in the middle of a change.
            self.spare.word().store(0, Ordering::Relaxed);
            if let Some(mut spare) = self.spare.lock() {
                std::mem::forget(std::mem::take(&mut *spare));
            }
        }
        let locks = [
            &self.arena.word(),
            &self.holders.word(),
            &self.spare.word(),
            &self.lending.word(),
            &self.engine.word(),
            &self.returned.word(),
            &self.way_out.word(),
            &self.secret_stamps.word(),
        ];
        for word in locks {
            // Whoever held it is not in this process.
            word.store(0, Ordering::Relaxed);
        }
        if let Some(mut arena) = self.arena.lock() {
            arena.forked();
        }
        if let Some(mut holders) = self.holders.lock() {
            holders.clear();
        }
        // They may be half written.
        if let Some(mut way) = self.way_out.lock() {
            *way = None;
        }
        if let Some(mut known) = self.secret_stamps.lock() {
            *known = None;
        }
        self.waiters.store(0, Ordering::Relaxed);
        self.polls.store(0, Ordering::Relaxed);
        self.sent_on.store(0, Ordering::Relaxed);
        // The parent's answers would go astray.
        self.engine_gone();
    }

    /// Says something to the engine, one thread at a time. A way that turns out to lead nowhere is
    /// forgotten, and once another is tried: the engine may have been started again.
    pub(crate) fn with_engine<T>(
        &self,
        mut say: impl FnMut(i32) -> Result<T, Reason>,
    ) -> Result<T, Reason> {
        let mut held = self.engine.lock().ok_or(Reason::NoEngine)?;
        for fresh in [false, true] {
            let fd = match *held {
                Some(fd) => fd,
                None => {
                    let fd = crate::relay::meet(self)?;
                    let fd = self.board.hide(fd);
                    *held = Some(fd);
                    self.engine_fd.store(fd.cast_unsigned() + 1, Ordering::Relaxed);
                    fd
                }
            };
            match say(fd) {
                Err(Reason::NoEngine) => {
                    *held = None;
                    self.engine_fd.store(0, Ordering::Relaxed);
                    let _ = call::close(fd);
                    if fresh {
                        break;
                    }
                }
                Err(Reason::EngineSilent) => {
                    // Its answer may still come, and would be taken for that of another.
                    *held = None;
                    self.engine_fd.store(0, Ordering::Relaxed);
                    let _ = call::close(fd);
                    return Err(Reason::EngineSilent);
                }
                other => return other,
            }
        }
        Err(Reason::NoEngine)
    }

    fn engine_gone(&self) {
        if let Some(mut held) = self.engine.lock()
            && let Some(fd) = held.take()
        {
            self.engine_fd.store(0, Ordering::Relaxed);
            let _ = call::close(fd);
        }
    }

    /// Our own descriptors, for those who close ranges around them; negative ones are none.
    #[must_use]
    pub fn own_fds(&self) -> [i32; 3] {
        let [board, netlink] = self.board.own_fds();
        [board, netlink, self.engine_fd.load(Ordering::Relaxed).cast_signed() - 1]
    }

    /// Whether a descriptor is one of our own, which the guest must not close.
    #[must_use]
    pub fn owns(&self, fd: i32) -> bool {
        self.board.owns(fd)
            || fd >= 0 && self.engine_fd.load(Ordering::Relaxed) == fd.cast_unsigned() + 1
    }

    /// Moves a descriptor of ours off a number that the guest is about to use. `false`: there is no other number.
    #[must_use]
    pub fn moves(&self, fd: i32) -> bool {
        if self.board.owns(fd) {
            // Who gets or gives back memory by this number does so now, or by the new one. `None`: this thread does,
            // and was interrupted.
            let _arena = self.arena.lock();
            return self.board.moves(fd);
        }
        // Nobody speaks to the engine meanwhile. `None`: this thread does, and was interrupted.
        let Some(mut held) = self.engine.lock() else { return false };
        if *held == Some(fd) {
            let Ok(up) = call::dup_aside(fd, self.board.high) else { return false };
            *held = Some(up);
            self.engine_fd.store(up.cast_unsigned() + 1, Ordering::Relaxed);
        }
        true
    }

    /// Whether this process is a forked child of one that took part.
    #[must_use]
    pub fn inherited(&self) -> bool {
        self.child.load(Ordering::Relaxed) != 0
    }

    /// Takes a word that this process has in common with those that it forks from now on, for what they must know of a
    /// set: its number. `None`: there is none left, or no memory.
    #[must_use]
    pub fn take_set_word(&self) -> Option<u32> {
        let found = holders::found(self.sets.words()?, &self.next_set)?;
        u32::try_from(found).ok()
    }

    /// A word that was [taken](Self::take_set_word). Whoever stores 0 there gives it back.
    #[must_use]
    pub fn set_word(&self, number: u32) -> Option<&AtomicU32> {
        self.sets.words()?.get(number as usize)
    }

    /// Opens a half of a process that we share a set with for writing, for as long as we live: whoever tells of what it has
    /// says so there. `false`: it cannot be.
    pub fn opens_half(&self, index: u32) -> bool {
        // Not while another thread is about to close a page that it has borrowed.
        let Some(_lending) = self.lending.lock() else { return false };
        self.has_opened.store(1, Ordering::Relaxed);
        self.board.map.lend(index, true)
    }

    /// Whether halves of other processes have to stay open for writing: those that a child has inherited, and those that
    /// were [opened](Self::opens_half), of which another one may be in the same page.
    pub(crate) fn keeps_halves_open(&self) -> bool {
        self.inherited() || self.has_opened.load(Ordering::Relaxed) != 0
    }

    /// How many forks lie between the first process that took part and this one.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.child.load(Ordering::Relaxed)
    }

    /// Our slot's words, if we have a slot.
    #[must_use]
    pub fn slot(&self) -> Option<&Slot> {
        self.board.my_slot()
    }

    /// Changes with each offer of this process that is taken, and with each connection that is not offered any more for
    /// another reason. Who looks at offers reads it before: while it stays there is nothing new to see. Offers that were
    /// inherited are not among them.
    #[inline]
    #[must_use]
    pub fn offer_moves(&self) -> u32 {
        // Acquire: what has been done to the offers. Pairs with `Board::has_taken` and `offers_moved`.
        let taken = self.slot().map_or(0, |slot| slot.taken.word.load(Ordering::Acquire));
        taken.wrapping_add(self.unoffered.load(Ordering::Acquire))
    }

    /// A connection is not offered any more.
    pub(crate) fn offers_moved(&self) {
        self.unoffered.fetch_add(1, Ordering::Release);
    }

    /// Counts offers that an event loop of ours looks at.
    pub fn looks_at_offers(&self, n: usize) {
        if let Some(slot) = self.slot() {
            let so_far = slot.offer_looks.load(Ordering::Relaxed);
            slot.offer_looks.store(so_far.wrapping_add(n as u64), Ordering::Relaxed);
        }
    }

    /// Says on which CPU an event loop of ours runs, when that changes.
    #[inline]
    pub fn note_cpu(&self) {
        if let Some(slot) = self.slot() {
            let cpu = call::cpu();
            if slot.cpu.load(Ordering::Relaxed) != cpu {
                slot.cpu.store(cpu, Ordering::Relaxed);
            }
        }
    }

    /// The one CPU on which this process may run; `None`: there are several.
    #[inline]
    #[must_use]
    pub fn bound_to(&self) -> Option<u32> {
        let slot = self.slot()?;
        let only = slot.bound.load(Ordering::Relaxed).checked_sub(1)?;
        if call::cpu() != only {
            // It was let go since.
            slot.bound.store(0, Ordering::Relaxed);
            return None;
        }
        Some(only)
    }

    /// Whether connections of this process carry one request each, on one CPU: see `crate::brief`.
    #[must_use]
    pub fn is_brief(&self) -> bool {
        self.brief.is_usual()
    }

    /// Something was sent on the connection of that half of ours, plus one.
    #[inline]
    pub(crate) fn has_sent(&self, half: u32) {
        if self.is_brief() && self.sent_on.load(Ordering::Relaxed) != half {
            self.sent_on.store(half, Ordering::Relaxed);
        }
    }

    /// Whether the last thing that this process has done was to ask for something more on a connection of its own
    /// making: what comes next is the answer, by memory, whatever other connections carry.
    #[must_use]
    pub fn awaits_another_answer(&self) -> bool {
        let Some(index) = self.sent_on.load(Ordering::Relaxed).checked_sub(1) else { return false };
        let half = self.board.map.half_known(index);
        half.client.load(Ordering::Relaxed) != 0
            && half.state.load(Ordering::Relaxed) == half_state::ATTACHED
            && half.n_tx.load(Ordering::Relaxed) > 1
    }

    /// Whether the process of that half runs on our CPU, and neither of us can leave it: then one of us runs at a time.
    /// Who is there by chance is better looked for in memory, so that the scheduler sees two that want to run.
    #[must_use]
    pub fn is_beside(&self, peer: &Half) -> bool {
        let own = self.bound_to();
        // Of a process whose threads were let go to other CPUs since, what one of them wrote last says so.
        own.is_some()
            && self.board.bound_to(peer.slot.load(Ordering::Relaxed)) == own
            && is_here(peer.cpu.load(Ordering::Relaxed))
    }

    /// Says for people, once, that this process has no place on the board. Nothing on the board can say so.
    pub fn has_no_place(&self) {
        // As daemons do it: the child of one who had joined, and given up his rights then. It is nobody's mistake.
        let has_become_another = !self.board.is_shared() && call::geteuid() != self.board.owner();
        let level = if has_become_another { Level::Info } else { Level::Error };
        if self.limits.log < level || self.told.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        let used = self.board.map.header().slots_used.load(Ordering::Relaxed);
        let words = Reason::NoSlot.words();
        if has_become_another {
            crate::log::line(format_args!(
                "{words}: this child of a process that has become another user may not open the board; staying on TCP"
            ));
        } else if (used as usize) < SLOTS {
            // It is not the board that is full.
            crate::log::error(format_args!(
                "{words}: the board cannot be opened again, for want of a descriptor or of the right to it; staying on TCP"
            ));
        } else {
            crate::log::error(format_args!(
                "{words}: {SLOTS} processes of this user take part, which is all that can; staying on TCP"
            ));
        }
    }

    /// Counts a connection that is on TCP.
    pub fn count(&self, reason: Reason) {
        if let Some(slot) = self.slot()
            && let Some(n) = slot.reasons.get(reason.code() as usize)
        {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A fresh connection record. Records are never unmapped: a thread may still look at one that
    /// another has given back, and finds out that it is not what it was looking for; it has the time in which
    /// some others are closed for it.
    pub fn conn(&self) -> Option<&'static Conn> {
        let spare = self
            .spare
            .lock()
            .map(|mut spare| if spare.len() > RESTING { spare.pop_front() } else { None })?;
        let conn = spare.unwrap_or_else(|| Box::leak(Box::default()));
        conn.reset(self.forks.load(Ordering::Relaxed));
        conn.inside.store(0, Ordering::Relaxed);
        conn.refs.store(1, Ordering::Relaxed);
        Some(conn)
    }

    /// Gives a record back that is in no table any more.
    pub fn give_back(&self, conn: &'static Conn) {
        if conn.others_are_at_it() {
            // A close has waited for them in vain. Nobody gets what they may still write to.
            return;
        }
        if let Some(mut spare) = self.spare.lock() {
            spare.push_back(conn);
        }
    }

    /// Remembers that a connection holds a ring, and takes back what others hold for nothing when
    /// that is much.
    pub(crate) fn holds(&self, conn: &'static Conn, arena: &mut Arena) {
        let Some(mut holders) = self.holders.lock() else { return };
        let now = call::now_ns();
        holders.push_back(Holder { conn, sent: conn.sent(self), looked_ns: now });
        for _ in 0..LOOKS {
            if arena.bytes_used() <= HOLD_BYTES {
                return;
            }
            let Some(mut oldest) = holders.pop_front() else { return };
            let sent = oldest.conn.sent(self);
            let idle = sent == oldest.sent && now.saturating_sub(oldest.looked_ns) > IDLE_NS;
            if idle && !std::ptr::eq(oldest.conn, conn) && oldest.conn.drop_idle_ring(self, arena) {
                continue;
            }
            if sent != oldest.sent {
                (oldest.sent, oldest.looked_ns) = (sent, now);
            }
            holders.push_back(oldest);
        }
    }

    /// Whether there is so much memory for rings, held by connections or by nobody, that a program that
    /// does nothing should give it back.
    #[must_use]
    pub fn holds_much(&self) -> bool {
        self.arena.try_lock().is_some_and(|arena| arena.bytes_of_rings() > HOLD_BYTES)
    }

    /// Takes back the rings of all connections that have done nothing for a while. For a program that
    /// does nothing itself: see [`TIDY_NS`]. `false`: of some it is not known yet whether they do nothing,
    /// and it is worth coming back.
    pub fn tidy(&self) -> bool {
        let Some(mut arena) = self.arena.try_lock() else { return false };
        let Some(mut holders) = self.holders.try_lock() else { return false };
        let (now, mut all) = (call::now_ns(), true);
        // Of connections that are closed here, and whose peers have closed or died since.
        arena.sweep(&self.board, CLOSED_AT_ONCE);
        holders.retain_mut(|holder| {
            let sent = holder.conn.sent(self);
            let idle = now.saturating_sub(holder.looked_ns) > IDLE_NS;
            if sent != holder.sent {
                (holder.sent, holder.looked_ns) = (sent, now);
                all = false;
                return true;
            }
            !(idle && holder.conn.drop_idle_ring(self, &mut arena))
        });
        arena.trim(&self.board, SPARE_BYTES);
        all
    }

    /// Gives memory that no connection has back to the system, but for about `keep` bytes, unless somebody is at it.
    pub fn trim(&self, keep: usize) {
        if let Some(mut arena) = self.arena.try_lock() {
            arena.trim(&self.board, keep);
        }
    }

    /// Forgets a connection that closes.
    pub(crate) fn holds_no_more(&self, conn: &'static Conn) {
        if let Some(mut holders) = self.holders.lock()
            && let Some(at) = holders.iter().rposition(|h| std::ptr::eq(h.conn, conn))
        {
            holders.remove(at);
        }
    }

    /// Takes a waiter number for an event loop, global over all processes.
    pub fn take_waiter(&self) -> Option<u32> {
        self.take_number(&self.waiters, 0, LOOPS)
    }

    /// Takes one for a call of `poll`. It must not sleep in the kernel by it: numbers change hands quickly, and who is late
    /// with a doorbell for the last owner would count it as rung for the next one.
    pub fn take_waiter_for_a_nap(&self) -> Option<u32> {
        self.take_number(&self.polls, LOOPS, WAITERS)
    }

    #[expect(clippy::cast_possible_truncation, reason = "1024 times 48")]
    fn take_number(&self, taken: &AtomicU32, first: usize, end: usize) -> Option<u32> {
        let slot = self.board.ensure_slot().ok()?;
        let mut used = taken.load(Ordering::Relaxed);
        loop {
            let bit = (!used).trailing_zeros();
            let index = first + bit as usize;
            if index >= end {
                return None;
            }
            let (set, fail) = (Ordering::Relaxed, Ordering::Relaxed);
            match taken.compare_exchange(used, used | 1 << bit, set, fail) {
                Ok(_) => return Some(slot * WAITERS as u32 + index as u32),
                Err(other) => used = other,
            }
        }
    }

    /// Gives a waiter number back. One of the process that we were forked from is not ours.
    pub fn drop_waiter(&self, waiter: u32) {
        if !self.is_own_waiter(waiter) {
            return;
        }
        let index = waiter as usize % WAITERS;
        let taken = if index < LOOPS { &self.waiters } else { &self.polls };
        taken.fetch_and(!(1 << (index % LOOPS)), Ordering::Relaxed);
    }

    /// Whether a waiter is of this process.
    #[must_use]
    pub fn is_own_waiter(&self, waiter: u32) -> bool {
        self.board.slot().is_some_and(|slot| waiter as usize / WAITERS == slot as usize)
    }

    /// The sleep word of a waiter; `None` if there is no such waiter.
    #[must_use]
    pub fn waiter(&self, waiter: u32) -> Option<&AtomicU32> {
        let (slot, index) = (waiter as usize / WAITERS, waiter as usize % WAITERS);
        if slot >= SLOTS {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "below 1024")]
        Some(&self.board.map.slot(slot as u32).waiters[index].word)
    }

    /// The sleep that that waiter is in, if it is one for which this process has not rung yet.
    pub(crate) fn must_ring(&self, waiter: u32) -> Option<wait::Sleep> {
        let sleep = wait::asleep(self.waiter(waiter)?)?;
        let rung = self.rung.get(waiter as usize)?.load(Ordering::Relaxed);
        (sleep != wait::Sleep::Kernel(rung)).then_some(sleep)
    }

    /// Ends the nap of a waiter, if it naps; `true`: it did.
    pub fn rouse(&self, waiter: u32) -> bool {
        self.waiter(waiter).is_some_and(|word| match wait::asleep(word) {
            Some(wait::Sleep::Nap(nap)) if wait::end_nap(word, nap) => {
                call::futex_wake_all(word);
                true
            }
            _ => false,
        })
    }

    /// Notes that we have rung for a sleep of a waiter.
    pub(crate) fn has_rung(&self, waiter: u32, sleep: u32) {
        if let Some(rung) = self.rung.get(waiter as usize) {
            rung.store(sleep, Ordering::Relaxed);
        }
    }
}

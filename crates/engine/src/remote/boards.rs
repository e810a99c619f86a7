//! The boards that an engine serves: that of its own user, and those of others.
//!
//! Each has its own door and thread, its own ring memory and its own words by which guests see that a vector sleeps; behind
//! the doors there is one engine. The list only grows: what was learned of a board by a vector stays right.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use local::relay::Waiter;
use local::world::World;
use sys::accounts::Account;
use sys::call;

use super::guest::Sleeper;
use super::stat::UserStat;
use super::users::User;
use super::vectors::VECTORS_MAX;

/// Boards in the life of an engine.
pub(super) const BOARDS_MAX: usize = 512;
/// What a user's buffers leave behind for the next ones, bytes.
pub(super) const SPARE_BYTES: usize = 4 << 20;

/// Which time it is that an engine is to end when its last connection is gone: see [`Drain`](super::drain::Drain).
pub(super) type Turn = NonZeroUsize;

/// One board.
#[derive(Debug)]
pub(super) struct Guests {
    pub(super) world: &'static World,
    /// Whose it is, if not our own user's.
    pub(super) user: Option<User>,
    /// How its guests see that a vector sleeps, once one of them has a connection there.
    waiters: Box<[OnceLock<Option<Waiter>>]>,
    /// Connections of its guests, and their ways to us.
    connections: AtomicUsize,
    visitors: AtomicUsize,
    /// Memory for rings, handed out or not, as its thread has it.
    bytes: AtomicUsize,
    is_open: AtomicBool,
    /// The turn for which its thread lets no connection in any more, 0 where it does; and it has some of which it is telling
    /// the peers no.
    drains: AtomicUsize,
    declining: AtomicUsize,
    /// How often somebody has come to it, or said something there.
    came: AtomicUsize,
}

impl Guests {
    pub(super) fn new(world: &'static World, user: Option<User>) -> Self {
        Self {
            world,
            user,
            waiters: (0..VECTORS_MAX).map(|_| OnceLock::new()).collect(),
            connections: AtomicUsize::new(0),
            visitors: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            is_open: AtomicBool::new(true),
            drains: AtomicUsize::new(0),
            declining: AtomicUsize::new(0),
            came: AtomicUsize::new(0),
        }
    }

    /// Made by the thread at the door, before the vector gets the first connection.
    pub(super) fn waiter(&self, vector: u32) -> Option<&Waiter> {
        self.waiters.get(vector as usize)?.get_or_init(|| Waiter::new(self.world)).as_ref()
    }

    fn sleeping(&self, vector: u32) -> Option<&Waiter> {
        self.waiters.get(vector as usize)?.get()?.as_ref()
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Nobody is let in any more; connections that are there stay.
    pub(super) fn shut(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.world.board.serve_no_more();
    }

    pub(super) fn drains(&self) -> bool {
        // Acquire: what its thread has let in before. Pairs with `note_drains`.
        self.drains.load(Ordering::Acquire) != 0
    }

    /// By its thread. `None`: it lets connections in again.
    pub(super) fn note_drains(&self, turn: Option<Turn>) {
        self.world.board.drains(turn.is_some());
        self.drains.store(turn.map_or(0, Turn::get), Ordering::Release);
    }

    pub(super) fn note_declining(&self, count: usize) {
        self.declining.store(count, Ordering::Relaxed);
    }

    /// By its thread: somebody has come, or has said something.
    pub(super) fn note_came(&self) {
        self.came.fetch_add(1, Ordering::Relaxed);
    }

    /// The user whose board it is.
    fn uid(&self) -> u32 {
        self.user.as_ref().map_or_else(call::geteuid, |user| user.uid)
    }

    /// Bytes of memory for rings. Nobody else's thread looks at the arena itself: its user may have that thread wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn note_bytes(&self) {
        if let Some(arena) = self.world.arena.lock() {
            self.bytes.store(arena.bytes_owned(), Ordering::Relaxed);
        }
    }

    pub(super) fn note_visitors(&self, count: usize) {
        self.visitors.store(count, Ordering::Relaxed);
    }

    /// Descriptors, counted as connections: each of those has two.
    pub(super) fn descriptors(&self) -> usize {
        self.connections() + self.visitors.load(Ordering::Relaxed).div_ceil(2)
    }
}

/// A connection of a board's guest, for as long as this lives.
#[derive(Debug)]
pub(super) struct Counted(Arc<Guests>);

impl Counted {
    pub(super) fn new(guests: &Arc<Guests>) -> Self {
        guests.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(guests))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Boards {
    list: Box<[OnceLock<Arc<Guests>>]>,
    count: AtomicUsize,
    adding: Mutex<()>,
    /// Why users are not served who should be.
    problems: Mutex<BTreeMap<u32, String>>,
}

impl Boards {
    pub(super) fn new() -> Self {
        Self {
            list: (0..BOARDS_MAX).map(|_| OnceLock::new()).collect(),
            count: AtomicUsize::new(0),
            adding: Mutex::default(),
            problems: Mutex::default(),
        }
    }

    /// `None`: there are too many.
    pub(super) fn add(&self, guests: Guests) -> Option<Arc<Guests>> {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.count.load(Ordering::Relaxed);
        let guests = Arc::new(guests);
        self.list.get(at)?.set(Arc::clone(&guests)).ok()?;
        // Release: what is there. Pairs with `all`.
        self.count.store(at + 1, Ordering::Release);
        Some(guests)
    }

    pub(super) fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= BOARDS_MAX
    }

    /// Whether there was never another one than our own user's.
    pub(super) fn is_one(&self) -> bool {
        self.count.load(Ordering::Relaxed) <= 1
    }

    /// Those that a user has, and has had.
    pub(super) fn of(&self, uid: u32) -> impl Iterator<Item = &Arc<Guests>> {
        self.all().filter(move |guests| guests.uid() == uid)
    }

    /// What of something this board has, others of its user have, and all of other users.
    pub(super) fn shares(&self, guests: &Guests, of: impl Fn(&Guests) -> usize) -> [usize; 3] {
        let mut sums = [0_usize; 3];
        for other in self.all() {
            let whose = match () {
                () if std::ptr::eq(Arc::as_ptr(other), guests) => 0,
                () if other.uid() == guests.uid() => 1,
                () => 2,
            };
            sums[whose] = sums[whose].saturating_add(of(other));
        }
        sums
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Guests>> {
        let count = self.count.load(Ordering::Acquire).min(BOARDS_MAX);
        self.list[..count].iter().filter_map(OnceLock::get)
    }

    pub(super) fn open(&self) -> impl Iterator<Item = &Arc<Guests>> {
        self.all().filter(|guests| guests.is_open())
    }

    /// Whether nobody lets connections in any more, for this turn, and there are none.
    pub(super) fn are_drained(&self, turn: Turn) -> bool {
        let is_idle = |guests: &Guests| {
            guests.connections() == 0 && guests.declining.load(Ordering::Relaxed) == 0
        };
        // Acquire: as in `Guests::drains`.
        let is_shut = |guests: &Guests| guests.drains.load(Ordering::Acquire) == turn.get();
        self.open().all(|guests| is_shut(guests)) && self.all().all(|guests| is_idle(guests))
    }

    /// Changes as long as somebody comes to a door, or is told no there: the second of these.
    pub(super) fn bustle(&self) -> (usize, bool) {
        let came = |sum: usize, guests: &Arc<Guests>| {
            sum.wrapping_add(guests.came.load(Ordering::Relaxed))
        };
        let is_declining = |guests: &Arc<Guests>| guests.declining.load(Ordering::Relaxed) > 0;
        (self.all().fold(0, came), self.all().any(is_declining))
    }

    /// Why a user is not served. `true`: that is news.
    pub(super) fn note_problem(&self, uid: u32, problem: &str) -> bool {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        let before = problems.insert(uid, problem.to_owned());
        before.is_none_or(|before| before != problem)
    }

    pub(super) fn has_no_problem(&self, uid: u32) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
    }

    /// Whose programs are served, and whose are not. Looks names up, which may take its time.
    pub(super) fn stat(&self) -> Vec<UserStat> {
        let mut users = BTreeMap::<u32, UserStat>::new();
        let blank = |uid| UserStat { uid, name: name_of(uid), ..UserStat::default() };
        for guests in self.all() {
            let uid = guests.uid();
            let user = users.entry(uid).or_insert_with(|| blank(uid));
            user.is_served |= guests.is_open();
            user.connections += guests.connections() as u64;
            user.memory_bytes += guests.bytes() as u64;
        }
        let problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (uid, problem) in problems {
            users.entry(uid).or_insert_with(|| blank(uid)).problem = Some(problem);
        }
        users.into_values().collect()
    }
}

fn name_of(uid: u32) -> Option<String> {
    let account = Account::by_uid(uid).ok().flatten()?;
    account.name.into_string().ok()
}

/// A vector's sleep, as the guests of all boards see it.
#[derive(Debug)]
pub(super) struct Asleep {
    pub(super) boards: Arc<Boards>,
    pub(super) vector: u32,
}

impl Asleep {
    fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        // Who has no connection sees nothing of us.
        let in_use = self.boards.all().filter(|guests| guests.connections() > 0);
        in_use.filter_map(|guests| guests.sleeping(self.vector))
    }
}

impl Sleeper for Asleep {
    fn fall_asleep(&self) {
        self.waiters().for_each(Waiter::fall_asleep);
    }
    fn awake(&self) {
        self.waiters().for_each(Waiter::awake);
    }
}

//! The loop of a vector, and its letter box for other threads.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sys::event::Bell;
use sys::sync::{AtomicU64, Ordering};

use super::super::acting;
use super::core::{Core, PATIENCE};
use super::spin::Habit;

type Call = Box<dyn FnOnce() + Send>;

/// What other threads have sent.
#[derive(Default)]
struct Inbox {
    wakes: Vec<u32>,
    calls: Vec<Call>,
}

/// The part of a vector that other threads reach.
pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    /// There is something in `inbox`, or the vector is to stop. All operations on this and `sleeping` are
    /// `SeqCst`: the sender sets this and looks at `sleeping`, the vector sets `sleeping` and looks at this;
    /// one of the two sees what the other has set.
    pending: AtomicBool,
    sleeping: AtomicBool,
    /// Set once, by `stop`; `Release` there, `Acquire` in `is_stopping`, for the deadline set before.
    stopping: AtomicBool,
    bell: Bell,
    tally: Tally,
}

/// Written by the vector alone, except for what offloads count.
#[derive(Default)]
struct Tally {
    turns: AtomicU64,
    sleeps: AtomicU64,
    polls: AtomicU64,
    tasks: AtomicU64,
    ready_max: AtomicU64,
    offloads: AtomicU64,
    panics: AtomicU64,
    remote: AtomicU64,
    spins: AtomicU64,
}

/// What a vector has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Turns of its loop.
    pub turns: u64,
    /// Turns in which it slept.
    pub sleeps: u64,
    /// Turns in which it looked for work for a while, and found some without sleeping.
    pub spins: u64,
    /// Times that a task was polled.
    pub polls: u64,
    /// Tasks that there are now.
    pub tasks: u64,
    /// The longest that the ready queue was.
    pub ready_max: u64,
    /// Calls given to threads that may block.
    pub offloads: u64,
    /// Times that other threads had something for it.
    pub remote: u64,
    /// Tasks and posted calls that panicked.
    pub panics: u64,
}

/// Adds to a counter that only one thread writes.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl Shared {
    pub(super) fn new() -> io::Result<Self> {
        let bell = Bell::new().map_err(|e| io::Error::from_raw_os_error(e.errno))?;
        Ok(Self {
            inbox: Mutex::default(),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            bell,
            tally: Tally::default(),
        })
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(super) fn wake(&self, task: u32) {
        self.send(|inbox| inbox.wakes.push(task));
    }

    pub(super) fn post(&self, call: Call) {
        self.send(|inbox| inbox.calls.push(call));
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.send(|_| ());
    }

    fn send(&self, put: impl FnOnce(&mut Inbox)) {
        put(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        if self.pending.swap(true, Ordering::SeqCst) {
            // Who set it before us has rung, or is about to.
            return;
        }
        if self.sleeping.load(Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    pub(super) fn counters(&self) -> Counters {
        let tally = &self.tally;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            turns: read(&tally.turns),
            sleeps: read(&tally.sleeps),
            spins: read(&tally.spins),
            polls: read(&tally.polls),
            tasks: read(&tally.tasks),
            ready_max: read(&tally.ready_max),
            offloads: read(&tally.offloads),
            remote: read(&tally.remote),
            panics: read(&tally.panics),
        }
    }

    pub(super) fn count_poll(&self) {
        add(&self.tally.polls, 1);
    }

    pub(super) fn count_panic(&self) {
        add(&self.tally.panics, 1);
    }

    pub(super) fn count_offload(&self) {
        add(&self.tally.offloads, 1);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether it waits for something to happen, as far as anybody else can know.
    pub(super) fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    fn has_pending(&self) -> bool {
        self.pending.load(Ordering::SeqCst)
    }
}

/// Runs `main` and what it spawns until the runtime is stopped.
pub(super) fn run(core: Rc<Core>, main: impl Future<Output = ()> + 'static) {
    Core::enter(Some(core.clone()));
    drop(super::spawn(main));
    let mut turn = Loop { core: &core, inbox: Inbox::default(), habit: Habit::new(core.spin) };
    while turn.goes_on() {
        turn.once();
    }
    // A task that is dropped may spawn another: a limit, so that this ends whatever they do.
    for _ in 0..1 << 24 {
        let Some(task) = core.tasks.borrow_mut().take_any() else { break };
        core.drop_caught(task);
    }
    core.reactor.close();
    Core::enter(None);
}

struct Loop<'a> {
    core: &'a Core,
    /// Swapped with the shared one, so that neither allocates for long.
    inbox: Inbox,
    /// Whether to look for work before sleeping.
    habit: Habit,
}

/// A loop that looks for work does so again within a microsecond; when it took so long, somebody else was given
/// the core.
const TAKEN_AWAY: Duration = Duration::from_micros(25);

impl Loop<'_> {
    fn goes_on(&self) -> bool {
        let Some(deadline) = self.deadline() else {
            return true;
        };
        self.core.tasks.borrow().len() > 0 && Instant::now() < deadline
    }

    fn once(&mut self) {
        let (core, tally) = (self.core, &self.core.shared.tally);
        add(&tally.turns, 1);
        core.now.set(Instant::now());
        while let Some(waker) = { core.timers.borrow_mut().due(core.now.get()) } {
            waker.wake();
        }
        self.take_inbox();
        let ready = core.ready.borrow().len();
        if ready as u64 > tally.ready_max.load(Ordering::Relaxed) {
            tally.ready_max.store(ready as u64, Ordering::Relaxed);
        }
        for _ in 0..ready {
            let Some(key) = core.ready.borrow_mut().pop_front() else { break };
            core.patience.set(PATIENCE);
            core.poll_task(key);
            acting::settle();
        }
        tally.tasks.store(core.tasks.borrow().len() as u64, Ordering::Relaxed);
        self.wait();
    }

    fn take_inbox(&mut self) {
        let shared = &self.core.shared;
        if !shared.has_pending() {
            return;
        }
        // Before taking: what is put after we have taken sets it again.
        shared.pending.store(false, Ordering::SeqCst);
        std::mem::swap(
            &mut self.inbox,
            &mut *shared.inbox.lock().unwrap_or_else(PoisonError::into_inner),
        );
        add(&shared.tally.remote, 1);
        self.core.ready.borrow_mut().extend(self.inbox.wakes.drain(..));
        for call in self.inbox.calls.drain(..) {
            let core = self.core;
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
            if caught.is_err() {
                core.shared.count_panic();
            }
            acting::settle();
        }
    }

    /// Waits for events, not at all if there is something to do.
    fn wait(&mut self) {
        let core = self.core;
        let idle = || core.ready.borrow().is_empty() && !core.shared.has_pending();
        if !idle() {
            core.reactor.wait(Some(Duration::ZERO));
            return;
        }
        if !self.goes_on() {
            return;
        }
        let looks = self.habit.look();
        if let Some(most) = looks
            && self.finds(most, &idle)
        {
            add(&core.shared.tally.spins, 1);
            return;
        }
        core.shared.sleeping.store(true, Ordering::SeqCst);
        if !core.shared.has_pending() {
            add(&core.shared.tally.sleeps, 1);
            let began = Instant::now();
            core.reactor.wait(self.longest());
            if looks.is_none() {
                self.habit.slept(began.elapsed());
            }
        }
        core.shared.sleeping.store(false, Ordering::SeqCst);
    }

    /// Looks for work for a while; whether some was found.
    fn finds(&mut self, most: Duration, idle: &dyn Fn() -> bool) -> bool {
        let core = self.core;
        let start = Instant::now();
        let timer = core.timers.borrow().next();
        let mut last = start;
        loop {
            core.reactor.wait(Some(Duration::ZERO));
            let now = Instant::now();
            let found = !idle() || timer.is_some_and(|timer| timer <= now);
            if now - last > TAKEN_AWAY {
                self.habit.in_the_way();
                return found;
            }
            if found {
                self.habit.found();
                return true;
            }
            if now - start >= most {
                self.habit.in_vain();
                return false;
            }
            last = now;
            std::hint::spin_loop();
        }
    }

    /// The end of the time of grace, if tasks were asked to end. The lock is taken only then.
    fn deadline(&self) -> Option<Instant> {
        self.core.shared.is_stopping().then(|| self.core.all.deadline()).flatten()
    }

    fn longest(&self) -> Option<Duration> {
        let timer = self.core.timers.borrow().next();
        let deadline = self.deadline();
        let first = [timer, deadline].into_iter().flatten().min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }
}

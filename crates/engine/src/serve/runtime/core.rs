//! What one vector has, reached by a thread-local; and what all vectors share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::offload::Pool;
use super::reactor::Reactor;
use super::sync::Event;
use super::task::Tasks;
use super::timer::Timers;
use super::vector::Shared;
use super::{Driver, VectorId};

/// What all vectors share.
pub(super) struct Everyone {
    pub(super) vectors: Box<[Arc<Shared>]>,
    pub(super) pool: Pool,
    pub(super) stop_called: Event,
    deadline: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Everyone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Everyone").field("vectors", &self.vectors.len()).finish_non_exhaustive()
    }
}

impl Everyone {
    pub(super) fn new(vectors: Box<[Arc<Shared>]>, pool: Pool) -> Self {
        Self { vectors, pool, stop_called: Event::new(), deadline: Mutex::new(None) }
    }

    /// Until when tasks may go on, once they were asked to end.
    pub(super) fn deadline(&self) -> Option<Instant> {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stop(&self, deadline: Instant) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline);
        self.stop_called.notify_all();
        for vector in &self.vectors {
            vector.stop();
        }
    }
}

/// What one vector has. No field is borrowed while foreign code (a future, a waker, a drop) runs.
pub(super) struct Core {
    pub(super) id: VectorId,
    pub(super) all: Arc<Everyone>,
    pub(super) shared: Arc<Shared>,
    pub(super) now: Cell<Instant>,
    pub(super) spin: Duration,
    /// How often the task that runs may still go on at once where it might have waited.
    pub(super) patience: Cell<u32>,
    pub(super) tasks: RefCell<Tasks>,
    pub(super) ready: RefCell<VecDeque<u32>>,
    pub(super) timers: RefCell<Timers>,
    pub(super) reactor: Reactor,
}

/// How often a task may find a socket ready in one turn before others have theirs.
pub(super) const PATIENCE: u32 = 64;

thread_local! {
    static CORE: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

impl Core {
    pub(super) fn new(
        id: VectorId,
        all: Arc<Everyone>,
        driver: Driver,
        spin: Duration,
    ) -> io::Result<(Rc<Self>, Driver, Option<String>)> {
        let shared = all.vectors[id.0].clone();
        let (reactor, driver, fell_back) = Reactor::new(driver, &shared)?;
        let core = Self {
            id,
            all,
            shared,
            now: Cell::new(Instant::now()),
            spin,
            patience: Cell::new(PATIENCE),
            tasks: RefCell::default(),
            ready: RefCell::default(),
            timers: RefCell::default(),
            reactor,
        };
        Ok((Rc::new(core), driver, fell_back))
    }

    /// Makes the calling thread the one of `core`, or of none.
    pub(super) fn enter(core: Option<Rc<Self>>) {
        CORE.set(core);
    }

    /// Calls `what` with the vector of this thread.
    pub(super) fn with<T>(what: impl FnOnce(&Rc<Self>) -> T) -> T {
        CORE.with_borrow(|core| {
            what(core.as_ref().expect("called on a thread that is no vector of a runtime"))
        })
    }

    /// The same, where there may be none: in drops and wakers, which run anywhere.
    pub(super) fn try_with<T>(what: impl FnOnce(&Rc<Self>) -> T) -> Option<T> {
        CORE.try_with(|core| core.borrow().as_ref().map(what)).ok().flatten()
    }

    /// To be awaited where a task may go on for long without waiting: lets others go first now and then.
    pub(super) async fn share() {
        let left = Self::with(|core| core.patience.replace(core.patience.get().saturating_sub(1)));
        if left == 0 {
            super::yield_now().await;
        }
    }

    pub(super) fn run_now(&self, future: Pin<Box<dyn Future<Output = ()>>>) -> bool {
        let (key, generation) = Tasks::insert(self, future);
        self.poll_task(key);
        !self.tasks.borrow().is_live(key, generation)
    }
}

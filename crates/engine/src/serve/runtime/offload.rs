//! Threads for what may block, as many as there is work for, up to a limit.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

use super::super::acting;
use super::core::Core;
use super::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    threads: usize,
    idle: usize,
    stopping: bool,
}

struct Inner {
    state: Mutex<State>,
    work_or_stop: Condvar,
    none_left: Condvar,
    most: usize,
    /// Where who made the pool may run. A thread inherits the CPU that its vector is pinned to, and would
    /// compete with just that one.
    cpus: Option<CpuSet>,
}

/// The threads of a runtime that may block.
pub(super) struct Pool(Arc<Inner>);

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread, until there is nothing to do for long, or nothing any more.
    fn serve(&self) {
        if let Some(cpus) = &self.cpus {
            // Where it must not, it stays where it is.
            let _ = rustix::thread::sched_setaffinity(None, cpus);
        }
        let mut state = self.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                drop(state);
                // What it yields, a panic included, it has sent to who waits for it.
                let _ = catch_unwind(AssertUnwindSafe(work));
                state = self.lock();
                continue;
            }
            if state.stopping {
                break;
            }
            state.idle += 1;
            let (again, waited) =
                self.work_or_stop.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            if waited.timed_out() && state.work.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        if state.threads == 0 {
            self.none_left.notify_all();
        }
    }
}

impl Pool {
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            work_or_stop: Condvar::new(),
            none_left: Condvar::new(),
            most: most.max(1),
            cpus: rustix::thread::sched_getaffinity(None).ok(),
        }))
    }

    pub(super) fn submit(&self, work: Work) {
        self.take(self.0.lock(), work);
    }

    /// Takes work that is worth its while only now: if nothing waits for a thread, and one is idle or may be begun.
    /// Whether it did; else it is dropped.
    pub(super) fn offer(&self, work: Work) -> bool {
        let state = self.0.lock();
        if !state.work.is_empty() || (state.idle == 0 && state.threads >= self.0.most) {
            return false;
        }
        self.take(state, work);
        true
    }

    fn take(&self, mut state: MutexGuard<'_, State>, work: Work) {
        state.work.push_back(work);
        if state.idle >= state.work.len() {
            self.0.work_or_stop.notify_one();
            return;
        }
        if state.threads < self.0.most {
            let inner = self.0.clone();
            let thread = std::thread::Builder::new().name("shunt-smb-block".to_owned());
            // It inherits who this one is.
            if acting::as_itself(|| thread.spawn(move || inner.serve())).is_ok() {
                state.threads += 1;
                return;
            }
        }
        if state.threads == 0 {
            // No thread to be had: better slowly here than never.
            let Some(work) = state.work.pop_back() else { return };
            drop(state);
            let _ = catch_unwind(AssertUnwindSafe(work));
            return;
        }
        self.0.work_or_stop.notify_one();
    }

    /// Waits until all that was submitted is done, or it is `until`; how many calls are left then. A call of a file system
    /// that does not answer nobody can end: it ends with the process.
    pub(super) fn stop(&self, until: Instant) -> usize {
        let mut state = self.0.lock();
        // Who has waited once does not again.
        let waits = !std::mem::replace(&mut state.stopping, true);
        self.0.work_or_stop.notify_all();
        while waits && state.threads > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.0.none_left.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.threads - state.idle + state.work.len()
    }

    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.0.lock().threads
    }
}

/// Calls `what` on a thread that may block if one has nothing else to do, and says whether it will; else it is dropped.
/// Files are touched there as they are here.
/// For what is good to have done meanwhile, and must not pile up.
pub fn try_offload(what: impl FnOnce() + Send + 'static) -> bool {
    Core::with(|core| {
        let taken = core.all.pool.offer(Box::new(acting::carried(what)));
        if taken {
            core.shared.count_offload();
        }
        taken
    })
}

/// Calls `what` on a thread that may block; it is begun now, and not undone when the future is dropped.
/// A panic in it goes on in who awaits it. Files are touched there as they are here.
pub fn offload<T: Send + 'static>(
    what: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> {
    let (tell, told) = oneshot();
    let what = acting::carried(what);
    Core::with(|core| {
        core.shared.count_offload();
        core.all.pool.submit(Box::new(move || {
            tell.send(catch_unwind(AssertUnwindSafe(what)));
        }));
    });
    async move {
        match told.await.expect("the pool calls all that it is given") {
            Ok(value) => value,
            Err(panic) => resume_unwind(panic),
        }
    }
}

//! Tasks: futures in a slab, and wakers that name their place in it.
//!
//! A waker is `Send`, a future need not be: so a waker owns no future, it names a place. A waker may
//! outlive its task and then wakes whoever has the place now; a task must bear being polled for nothing.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::core::Core;
use super::sync::{Lost, Oneshot, oneshot};
use super::vector::Shared;

type Pending = Pin<Box<dyn Future<Output = ()>>>;

/// Puts a place of the slab into the ready queue of its vector, if it is not there.
struct Rouser {
    shared: Arc<Shared>,
    key: u32,
    /// In a ready queue. Set by who puts it there (`AcqRel`); cleared, before the task is polled, by the
    /// swap (`AcqRel`) in `poll_task`, which therefore sees what the waker's thread wrote before.
    queued: AtomicBool,
}

impl Wake for Rouser {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let here = Core::try_with(|core| {
            let here = Arc::ptr_eq(&core.shared, &self.shared);
            if here {
                core.ready.borrow_mut().push_back(self.key);
            }
            here
        });
        if here != Some(true) {
            self.shared.wake(self.key);
        }
    }
}

struct Slot {
    /// Not here while it is being polled.
    future: Option<Pending>,
    rouser: Arc<Rouser>,
    /// The same as a waker; not here while the task is being polled.
    waker: Option<Waker>,
    generation: u32,
    live: bool,
}

/// The tasks of a vector.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Tasks {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_live(&self, key: u32, generation: u32) -> bool {
        self.slots.get(key as usize).is_some_and(|s| s.live && s.generation == generation)
    }

    /// A place for `future`; its waker is not yet in the ready queue.
    pub(super) fn insert(core: &Core, future: Pending) -> (u32, u32) {
        let mut tasks = core.tasks.borrow_mut();
        let key = match tasks.free.pop() {
            Some(key) => key,
            None => tasks.grow(&core.shared),
        };
        let slot = &mut tasks.slots[key as usize];
        // Two: the slot's own. With more, wakers of an earlier task are about; they keep theirs.
        if Arc::strong_count(&slot.rouser) != 2 {
            slot.rouser = rouser(&core.shared, key);
            slot.waker = Some(Waker::from(slot.rouser.clone()));
        }
        // A task that was cancelled may have left it set, and its place in the ready queue.
        slot.rouser.queued.store(false, Ordering::Release);
        slot.future = Some(future);
        slot.live = true;
        (key, slot.generation)
    }

    fn grow(&mut self, shared: &Arc<Shared>) -> u32 {
        let key = u32::try_from(self.slots.len()).expect("fewer than 2^32 tasks");
        let rouser = rouser(shared, key);
        let waker = Some(Waker::from(rouser.clone()));
        self.slots.push(Slot { future: None, rouser, waker, generation: 0, live: false });
        key
    }

    /// What is to be polled, if the place has a task that is not just being polled.
    fn take(&mut self, key: u32) -> Option<(Pending, Waker)> {
        let slot = self.slots.get_mut(key as usize).filter(|slot| slot.live)?;
        let future = slot.future.take()?;
        slot.rouser.queued.swap(false, Ordering::AcqRel);
        let waker = slot.waker.take().unwrap_or_else(|| Waker::from(slot.rouser.clone()));
        Some((future, waker))
    }

    /// Puts back what is pending; or returns it, if it was cancelled meanwhile.
    fn put_back(&mut self, key: u32, future: Pending, waker: Waker) -> Option<Pending> {
        let slot = &mut self.slots[key as usize];
        slot.waker = Some(waker);
        if slot.live {
            slot.future = Some(future);
            return None;
        }
        self.release(key);
        Some(future)
    }

    fn release(&mut self, key: u32) {
        let slot = &mut self.slots[key as usize];
        slot.live = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key);
    }

    /// Ends a task: its future, to be dropped, unless it is just being polled.
    fn cancel(&mut self, key: u32, generation: u32) -> Option<Pending> {
        if !self.is_live(key, generation) {
            return None;
        }
        let slot = &mut self.slots[key as usize];
        let future = slot.future.take();
        if future.is_some() {
            self.release(key);
        } else {
            slot.live = false;
        }
        future
    }

    /// Some task to be dropped, at the end.
    pub(super) fn take_any(&mut self) -> Option<Box<dyn std::any::Any>> {
        let found = self.slots.iter().position(|slot| slot.future.is_some())?;
        let future = self.slots[found].future.take()?;
        self.release(u32::try_from(found).ok()?);
        Some(Box::new(future))
    }
}

fn rouser(shared: &Arc<Shared>, key: u32) -> Arc<Rouser> {
    Arc::new(Rouser { shared: shared.clone(), key, queued: AtomicBool::new(false) })
}

impl Core {
    /// Polls the task at `key`, if there is one.
    pub(super) fn poll_task(&self, key: u32) {
        let Some((mut future, waker)) = self.tasks.borrow_mut().take(key) else { return };
        self.shared.count_poll();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.as_mut().poll(&mut Context::from_waker(&waker))
        }));
        if let Ok(Poll::Pending) = polled {
            let cancelled = self.tasks.borrow_mut().put_back(key, future, waker);
            self.drop_caught(cancelled);
            return;
        }
        if polled.is_err() {
            // The panic hook has said what and where.
            self.shared.count_panic();
        }
        // Before the place is free: what is dropped may look whether it still runs.
        self.drop_caught(future);
        let mut tasks = self.tasks.borrow_mut();
        tasks.slots[key as usize].waker = Some(waker);
        tasks.release(key);
    }

    pub(super) fn drop_caught<T>(&self, what: T) {
        if catch_unwind(AssertUnwindSafe(|| drop(what))).is_err() {
            self.shared.count_panic();
        }
    }
}

/// The end of a task, to be awaited; [`Lost`] if it panicked or was cancelled.
#[derive(Debug)]
pub struct Join<T> {
    end: Oneshot<T>,
    key: u32,
    generation: u32,
}

impl<T: 'static> Join<T> {
    pub(super) fn spawn(future: impl Future<Output = T> + 'static) -> Self {
        let (tell, end) = oneshot();
        Core::with(|core| {
            let future = Box::pin(async move { tell.send(future.await) });
            let (key, generation) = Tasks::insert(core, future);
            let waker = core.tasks.borrow().slots[key as usize].rouser.clone();
            waker.wake();
            Self { end, key, generation }
        })
    }
}

impl<T> Join<T> {
    /// Drops the task, unless it has ended; at its next pending if it is the caller. On the vector of the
    /// task only.
    pub fn cancel(&self) {
        Core::with(|core| {
            let future = core.tasks.borrow_mut().cancel(self.key, self.generation);
            core.drop_caught(future);
        });
    }
}

impl<T> Future for Join<T> {
    type Output = Result<T, Lost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.end).poll(cx)
    }
}

/// Pending once.
#[derive(Debug, Default)]
#[must_use = "futures do nothing unless awaited"]
pub struct YieldNow(bool);

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

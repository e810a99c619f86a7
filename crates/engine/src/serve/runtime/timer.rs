//! Timers of a vector: a tree by time, from which a dropped one is removed.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::core::Core;

/// What is to be woken, and when.
#[derive(Default)]
pub(super) struct Timers {
    by_time: BTreeMap<(Instant, u64), Waker>,
    next: u64,
}

impl Timers {
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|((when, _), _)| *when)
    }

    /// The first whose time has come.
    pub(super) fn due(&mut self, now: Instant) -> Option<Waker> {
        let first = self.by_time.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

/// Ends at some time. Bound to the vector on which it was polled first.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    when: Instant,
    number: Option<u64>,
}

impl Sleep {
    pub(super) fn until(when: Instant) -> Self {
        Self { when, number: None }
    }

    /// When it ends.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.when
    }

    /// Has it end at another time, also after it has ended.
    pub fn reset(&mut self, when: Instant) {
        self.forget();
        self.when = when;
    }

    fn forget(&mut self) {
        let Some(number) = self.number.take() else { return };
        let key = (self.when, number);
        // The waker is dropped after the borrow has ended.
        drop(Core::try_with(|core| core.timers.borrow_mut().by_time.remove(&key)));
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let before = Core::with(|core| {
            if core.now.get() >= self.when {
                return Err(());
            }
            let mut timers = core.timers.borrow_mut();
            let number = self.number.unwrap_or(timers.next);
            timers.next = timers.next.max(number + 1);
            self.number = Some(number);
            match timers.by_time.get(&(self.when, number)) {
                Some(waker) if waker.will_wake(cx.waker()) => Ok(None),
                _ => Ok(timers.by_time.insert((self.when, number), cx.waker().clone())),
            }
        });
        if before.is_err() {
            self.forget();
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time was up")]
pub struct Elapsed;

/// A future with a limit in time.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Timeout<F> {
    // Boxed, so that it can be polled without naming a pinned field, which takes unsafe code.
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Timeout<F> {
    pub(super) fn new(future: F, when: Instant) -> Self {
        Self { future: Box::pin(future), sleep: Sleep::until(when) }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(value) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(&mut self.sleep).poll(cx).map(|()| Err(Elapsed))
    }
}

//! What tasks of any vector, and other threads, wait for each other with.
//!
//! Each holds a lock for some instructions, never while foreign code runs.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Waiters {
    /// How often was notified.
    times: u64,
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

/// Something that happens now and then, for which many may wait.
///
/// Who waits calls [`Event::wait`], then looks whether what it wants is so, and if not awaits: what happens
/// after the call ends the wait.
#[derive(Clone, Debug, Default)]
pub struct Event(Arc<Mutex<Waiters>>);

impl Event {
    /// One that has not happened.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// It has happened: ends all waits that have begun.
    pub fn notify_all(&self) {
        let wakers = {
            let mut waiters = held(&self.0);
            waiters.times += 1;
            std::mem::take(&mut waiters.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }

    /// Ends when it happens after this call, whether polled before or not.
    pub fn wait(&self) -> Waiting {
        let times = held(&self.0).times;
        Waiting { event: self.clone(), times, number: None }
    }
}

/// A wait for an [`Event`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Waiting {
    event: Event,
    times: u64,
    number: Option<u64>,
}

impl Future for Waiting {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let event = self.event.clone();
        let mut waiters = held(&event.0);
        if waiters.times != self.times {
            return Poll::Ready(());
        }
        let number = self.number.unwrap_or(waiters.next);
        waiters.next = waiters.next.max(number + 1);
        self.number = Some(number);
        let before = waiters.wakers.insert(number, cx.waker().clone());
        drop(waiters);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut waiters = held(&self.event.0);
        let waker = waiters.wakers.remove(&number);
        drop(waiters);
        drop(waker);
    }
}

/// The other side is gone: it was dropped, cancelled, or panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sender is gone")]
pub struct Lost;

#[derive(Debug)]
enum Letter<T> {
    Awaited(Option<Waker>),
    Here(T),
    Lost,
    Taken,
}

/// Sends one value to an [`Oneshot`].
#[derive(Debug)]
pub struct Sender<T>(Option<Arc<Mutex<Letter<T>>>>);

/// Yields the one value of a [`Sender`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Oneshot<T>(Arc<Mutex<Letter<T>>>);

/// A sender and receiver of one value.
pub fn oneshot<T>() -> (Sender<T>, Oneshot<T>) {
    let letter = Arc::new(Mutex::new(Letter::Awaited(None)));
    (Sender(Some(letter.clone())), Oneshot(letter))
}

fn settle<T>(letter: &Mutex<Letter<T>>, what: Letter<T>) {
    let before = std::mem::replace(&mut *held(letter), what);
    if let Letter::Awaited(Some(waker)) = before {
        waker.wake();
    }
}

impl<T> Sender<T> {
    /// Sends `value`; it is dropped if nobody waits for it.
    pub fn send(mut self, value: T) {
        if let Some(letter) = self.0.take() {
            settle(&letter, Letter::Here(value));
        }
    }

    /// Whether the receiver is gone.
    #[must_use]
    pub fn is_forlorn(&self) -> bool {
        self.0.as_ref().is_none_or(|letter| Arc::strong_count(letter) == 1)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if let Some(letter) = self.0.take() {
            settle(&letter, Letter::Lost);
        }
    }
}

impl<T> Oneshot<T> {
    /// The value, if it is here.
    #[must_use]
    pub fn try_take(&mut self) -> Option<T> {
        let mut letter = held(&self.0);
        match std::mem::replace(&mut *letter, Letter::Taken) {
            Letter::Here(value) => Some(value),
            other => {
                *letter = other;
                None
            }
        }
    }
}

impl<T> Future for Oneshot<T> {
    type Output = Result<T, Lost>;

    /// [`Lost`] again and again after it has ended.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut letter = held(&self.0);
        match std::mem::replace(&mut *letter, Letter::Taken) {
            Letter::Here(value) => Poll::Ready(Ok(value)),
            Letter::Lost | Letter::Taken => Poll::Ready(Err(Lost)),
            Letter::Awaited(before) => {
                *letter = Letter::Awaited(Some(cx.waker().clone()));
                drop(letter);
                drop(before);
                Poll::Pending
            }
        }
    }
}

#[derive(Debug)]
struct Pile<T> {
    items: VecDeque<(T, usize)>,
    weight: usize,
    closed: bool,
    consumer: Option<Waker>,
}

/// Things for one task, from any thread, in order; not more than some weight of them.
#[derive(Debug)]
pub struct Queue<T> {
    pile: Arc<Mutex<Pile<T>>>,
    room: Event,
    most: usize,
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self { pile: self.pile.clone(), room: self.room.clone(), most: self.most }
    }
}

/// A queue does not take what is given back with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused<T> {
    /// It would weigh too much; there will be room.
    Full(T),
    /// Nobody will take it.
    Closed(T),
}

impl<T> Queue<T> {
    /// An empty one for a weight of `most`; in bytes, or what the caller likes.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let pile = Pile { items: VecDeque::new(), weight: 0, closed: false, consumer: None };
        Self { pile: Arc::new(Mutex::new(pile)), room: Event::new(), most }
    }

    /// Puts `item` at the end. What is too heavy for the queue is taken when that is empty.
    ///
    /// # Errors
    ///
    /// The item, with what is wrong.
    pub fn try_push(&self, item: T, weight: usize) -> Result<(), Refused<T>> {
        let pile = held(&self.pile);
        if !pile.items.is_empty() && pile.weight.saturating_add(weight) > self.most {
            return Err(if pile.closed { Refused::Closed(item) } else { Refused::Full(item) });
        }
        Self::put(pile, item, weight)
    }

    /// The same whatever it weighs: for what must not wait, and whose number is bounded otherwise.
    ///
    /// # Errors
    ///
    /// The item, if the queue is closed.
    pub fn push_over(&self, item: T, weight: usize) -> Result<(), Refused<T>> {
        Self::put(held(&self.pile), item, weight)
    }

    fn put(mut pile: MutexGuard<'_, Pile<T>>, item: T, weight: usize) -> Result<(), Refused<T>> {
        if pile.closed {
            return Err(Refused::Closed(item));
        }
        pile.items.push_back((item, weight));
        pile.weight = pile.weight.saturating_add(weight);
        let waker = pile.consumer.take();
        drop(pile);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Puts `item` at the end, when there is room.
    ///
    /// # Errors
    ///
    /// The item, if the queue is closed.
    pub async fn push(&self, mut item: T, weight: usize) -> Result<(), Refused<T>> {
        loop {
            let room = self.room.wait();
            match self.try_push(item, weight) {
                Err(Refused::Full(back)) => item = back,
                other => return other,
            }
            room.await;
        }
    }

    /// The first, if there is one.
    #[must_use]
    pub fn try_pop(&self) -> Option<T> {
        let mut pile = held(&self.pile);
        let (item, weight) = pile.items.pop_front()?;
        // Only what was refused before can be waiting for room.
        pile.weight -= weight.min(pile.weight);
        drop(pile);
        self.room.notify_all();
        Some(item)
    }

    /// The first, when there is one; `None` when the queue is closed and empty. One task only: a second
    /// one that waits takes the first one's place.
    pub fn pop(&self) -> Popped<'_, T> {
        Popped(self)
    }

    /// Takes no more; what is in it can still be had.
    pub fn close(&self) {
        let mut pile = held(&self.pile);
        pile.closed = true;
        let waker = pile.consumer.take();
        drop(pile);
        if let Some(waker) = waker {
            waker.wake();
        }
        self.room.notify_all();
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        held(&self.pile).items.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What they weigh together.
    #[must_use]
    pub fn weight(&self) -> usize {
        held(&self.pile).weight
    }
}

/// The first of a [`Queue`], awaited.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Popped<'a, T>(&'a Queue<T>);

impl<T> Future for Popped<'_, T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(item) = self.0.try_pop() {
            return Poll::Ready(Some(item));
        }
        let mut pile = held(&self.0.pile);
        if !pile.items.is_empty() {
            // Since we looked.
            drop(pile);
            return Poll::Ready(self.0.try_pop());
        }
        if pile.closed {
            return Poll::Ready(None);
        }
        let before = pile.consumer.replace(cx.waker().clone());
        drop(pile);
        drop(before);
        Poll::Pending
    }
}

#[derive(Debug)]
struct Account {
    free: usize,
    next: u64,
    /// Who waits, first come first served: number, how much, and whom to wake.
    waiting: VecDeque<(u64, usize, Option<Waker>)>,
}

impl Account {
    /// Whom to wake when there is enough for the first.
    fn first(&mut self) -> Option<Waker> {
        let free = self.free;
        let (_, n, waker) = self.waiting.front_mut()?;
        if *n <= free { waker.take() } else { None }
    }
}

/// An amount of something, of memory say, that is taken and given back; first come, first served.
#[derive(Clone, Debug)]
pub struct Budget {
    account: Arc<Mutex<Account>>,
    total: usize,
}

impl Budget {
    /// One of `total`.
    #[must_use]
    pub fn new(total: usize) -> Self {
        let account = Account { free: total, next: 0, waiting: VecDeque::new() };
        Self { account: Arc::new(Mutex::new(account)), total }
    }

    /// Takes `n`, when there is as much; more than the total counts as the total.
    pub fn take(&self, n: usize) -> Taking {
        Taking { budget: self.clone(), n: n.min(self.total), number: None }
    }

    /// Takes `n` if there is as much now and nobody waits.
    #[must_use]
    pub fn try_take(&self, n: usize) -> Option<Permit> {
        let n = n.min(self.total);
        let mut account = held(&self.account);
        if !account.waiting.is_empty() || account.free < n {
            return None;
        }
        account.free -= n;
        drop(account);
        Some(Permit { budget: self.clone(), n })
    }

    /// What there is in all.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }

    /// What is left.
    #[must_use]
    pub fn free(&self) -> usize {
        held(&self.account).free
    }

    fn change(&self, what: impl FnOnce(&mut Account)) {
        let waker = {
            let mut account = held(&self.account);
            what(&mut account);
            account.first()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What was taken of a [`Budget`]; given back when dropped.
#[derive(Debug)]
#[must_use = "what is dropped is given back"]
pub struct Permit {
    budget: Budget,
    n: usize,
}

impl Permit {
    /// How much it is.
    #[must_use]
    pub fn amount(&self) -> usize {
        self.n
    }

    /// Gives back all but `n`.
    pub fn shrink(&mut self, n: usize) {
        let back = self.n.saturating_sub(n);
        self.n -= back;
        self.budget.change(|account| account.free += back);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// Takes of a [`Budget`], awaited.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Taking {
    budget: Budget,
    n: usize,
    number: Option<u64>,
}

impl Future for Taking {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let budget = self.budget.clone();
        let mut account = held(&budget.account);
        let first = account.waiting.front().map(|(number, ..)| *number);
        if first == self.number && account.free >= self.n {
            // The first of those who wait, or nobody waits.
            account.free -= self.n;
            if self.number.take().is_some() {
                account.waiting.pop_front();
            }
            let next = account.first();
            drop(account);
            if let Some(next) = next {
                next.wake();
            }
            return Poll::Ready(Permit { budget, n: self.n });
        }
        let waker = Some(cx.waker().clone());
        match self.number {
            Some(mine) => {
                let entry = account.waiting.iter_mut().find(|(number, ..)| *number == mine);
                if let Some((_, _, held)) = entry {
                    *held = waker;
                }
            }
            None => {
                let number = account.next;
                account.next += 1;
                account.waiting.push_back((number, self.n, waker));
                self.number = Some(number);
            }
        }
        Poll::Pending
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        let Some(mine) = self.number else { return };
        self.budget.change(|account| account.waiting.retain(|(number, ..)| *number != mine));
    }
}

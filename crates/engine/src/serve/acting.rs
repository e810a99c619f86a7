//! As whom the files of a share are touched: as the server runs, or as the Unix user of a session.
//!
//! What is done for a session is done on that user's behalf each time that it is polled ([`acting`]), so loops go on
//! serving many sessions each. What is begun meanwhile on other threads is done there for the same user ([`carried`]).
//! The server's own book-keeping in extended attributes is read as itself ([`as_itself`]): it decides what a user may
//! do, and does not depend on who asks.
//!
//! To be somebody else costs system calls. So a loop stays who it is until something is done for another, or its task
//! has been polled ([`settle`]); what a channel does in between, on sockets and in memory, asks for nobody's rights.
//! And root, who may do everything whatever the groups, leaves those as they are for when the user comes again.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use sys::acting::{Credentials, assume, assume_user, resume, resume_user};

/// Somebody as whom files are touched.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Actor {
    /// As whom the server runs.
    own: Arc<Credentials>,
    theirs: Credentials,
}

impl Actor {
    /// Whom the server, which is `own` otherwise, acts as.
    pub(super) fn new(own: Arc<Credentials>, theirs: Credentials) -> Self {
        Self { own, theirs }
    }

    /// Somebody else, of one group, whom the same server acts as.
    pub(super) fn turned_to(&self, uid: u32, gid: u32) -> Self {
        Self { own: self.own.clone(), theirs: Credentials::new(uid, gid, &[]) }
    }
}

/// Whose work is being done; `None`: the server's own.
pub(super) type Whose = Option<Arc<Actor>>;

thread_local! {
    /// Whose work this thread is at.
    static NOW: RefCell<Whose> = const { RefCell::new(None) };
    /// As whom it would touch files: who that is, or still is.
    static AS: RefCell<Whose> = const { RefCell::new(None) };
    /// Whose groups it has.
    static GROUPS: RefCell<Whose> = const { RefCell::new(None) };
}

/// Whose work the calling thread is at.
pub(super) fn now() -> Whose {
    NOW.with_borrow(Clone::clone)
}

fn same(one: &Whose, other: &Whose) -> bool {
    one.as_ref().map(Arc::as_ptr) == other.as_ref().map(Arc::as_ptr)
}

/// Has the thread be somebody, by way of the server itself, who alone may.
fn switch(to: &Whose) -> io::Result<()> {
    if AS.with_borrow(|from| same(from, to)) {
        return Ok(());
    }
    if let Some(from) = AS.take() {
        if from.own.uid() == 0 {
            resume_user(&from.own);
        } else {
            resume(&from.own);
            GROUPS.set(None);
        }
    }
    if let Some(actor) = to {
        if GROUPS.with_borrow(|groups| same(groups, to)) {
            assume_user(&actor.theirs)?;
        } else {
            // If it cannot be, the thread has its own.
            GROUPS.set(None);
            assume(&actor.own, &actor.theirs)?;
            GROUPS.set(to.clone());
        }
        AS.set(to.clone());
    }
    Ok(())
}

/// The thread was at somebody else's work before, and is again when this is dropped.
struct Scope {
    before: Whose,
    /// [`settle`] follows.
    lasting: bool,
}

impl Scope {
    fn begin(whose: &Whose, lasting: bool) -> io::Result<Self> {
        let before = now();
        if let Err(error) = switch(whose) {
            return_to(&before);
            return Err(error);
        }
        Ok(Self { before: NOW.replace(whose.clone()), lasting })
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if self.before.is_some() || !self.lasting {
            return_to(&self.before);
        }
        NOW.set(self.before.take());
    }
}

/// To who the thread was before, come what may: it would go on with more rights.
fn return_to(before: &Whose) {
    if let Err(error) = switch(before) {
        // Not `eprintln!`, which panics where nothing can be written, and would let the thread go on.
        let _ = writeln!(io::stderr(), "shunt: a thread cannot act as before: {error}");
        std::process::abort();
    }
}

/// The thread is the server itself, as far as nobody's work is being done. A loop says so between its tasks.
pub(super) fn settle() {
    if AS.with_borrow(Option::is_some) {
        return_to(&now());
    }
}

/// Calls `what` on somebody's behalf.
///
/// # Errors
///
/// What the kernel says to that: it has no memory. `what` has not been called then.
pub(super) fn act<T>(whose: &Whose, what: impl FnOnce() -> T) -> io::Result<T> {
    if AS.with_borrow(|is| same(is, whose)) && NOW.with_borrow(|now| same(now, whose)) {
        return Ok(what());
    }
    let _scope = Scope::begin(whose, false)?;
    Ok(what())
}

/// Calls `what` as the server runs.
pub(super) fn as_itself<T>(what: impl FnOnce() -> T) -> T {
    act(&None, what).expect("nobody else is assumed")
}

/// For another thread: calls `what` there on whose behalf it is done here. One that cannot be whom it should be ends
/// in a panic, which whoever waits for it has to bear in any case.
pub(super) fn carried<T>(what: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let whose = now();
    move || act(&whose, what).unwrap_or_else(|error| panic!("cannot act for a session: {error}"))
}

/// `future`, each time that it is polled on somebody's behalf.
///
/// # Errors
///
/// As [`act`]; the future is not polled any more then.
pub(super) fn acting<F: Future + Unpin>(whose: Whose, future: F) -> OnBehalf<F> {
    OnBehalf { whose, future }
}

/// The future of [`acting`].
#[must_use = "futures do nothing unless awaited"]
pub(super) struct OnBehalf<F> {
    whose: Whose,
    future: F,
}

impl<F: Future + Unpin> Future for OnBehalf<F> {
    type Output = io::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { whose, future } = &mut *self;
        match Scope::begin(whose, true) {
            Ok(_scope) => Pin::new(future).poll(context).map(Ok),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Two users, if this process may be them.
    fn two() -> Option<[Whose; 2]> {
        let own = Arc::new(Credentials::of_thread().unwrap());
        if own.uid() != 0 {
            println!("skipped: only root can act as somebody else");
            return None;
        }
        let actor = |uid| {
            let theirs = Credentials::new(uid, uid + 1, &[uid + 2]);
            Some(Arc::new(Actor::new(own.clone(), theirs)))
        };
        Some([actor(40_000), actor(50_000)])
    }

    fn uid() -> u32 {
        Credentials::of_thread().unwrap().uid()
    }

    #[test]
    fn each_is_done_as_whose_it_is_and_one_within_another() {
        let Some([ann, bob]) = two() else { return };
        let seen = act(&ann, || {
            let itself = as_itself(|| (uid(), now().is_none()));
            let within = act(&bob, || (uid(), as_itself(uid), uid())).unwrap();
            (itself, within, uid(), now() == ann)
        });
        assert_eq!(seen.unwrap(), ((0, true), (50_000, 0, 50_000), 40_000, true));
        assert_eq!((uid(), now()), (0, None));
    }

    #[test]
    fn groups_are_those_of_who_it_is() {
        let Some([ann, bob]) = two() else { return };
        let groups = || Credentials::of_thread().unwrap();
        let theirs = |whose: &Whose| whose.as_ref().unwrap().theirs.clone();
        for whose in [&ann, &bob, &ann, &ann, &bob] {
            assert_eq!(act(whose, groups).unwrap(), theirs(whose));
            // What is done for nobody in between takes nothing from it.
            assert_eq!(as_itself(uid), 0);
            assert_eq!(act(whose, groups).unwrap(), theirs(whose));
        }
    }

    #[test]
    fn who_panics_leaves_the_thread_as_it_was() {
        let Some([ann, _]) = two() else { return };
        let panicked = std::panic::catch_unwind(|| act(&ann, || panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!((uid(), now()), (0, None));
    }

    #[test]
    fn futures_take_turns() {
        let Some(two) = two() else { return };
        // Each tells who it is at every poll, and ends with the third.
        let tell = || {
            let mut seen = Vec::new();
            std::future::poll_fn(move |_| {
                seen.push(uid());
                if seen.len() < 3 { Poll::Pending } else { Poll::Ready(seen.clone()) }
            })
        };
        let mut context = Context::from_waker(Waker::noop());
        let mut futures = two.map(|whose| acting(whose, tell()));
        for _ in 0..2 {
            for future in &mut futures {
                assert!(Pin::new(future).poll(&mut context).is_pending());
                assert_eq!((now(), as_itself(uid)), (None, 0));
            }
        }
        let ends = futures.each_mut().map(|future| Pin::new(future).poll(&mut context));
        let [Poll::Ready(Ok(ann)), Poll::Ready(Ok(bob))] = ends else { panic!("{ends:?}") };
        assert_eq!((ann, bob), (vec![40_000; 3], vec![50_000; 3]));
        // Until it is said that nothing more is done for bob.
        assert_eq!(uid(), 50_000);
        settle();
        assert_eq!(uid(), 0);
    }

    #[test]
    fn what_another_thread_does_is_done_for_the_same() {
        let Some([ann, _]) = two() else { return };
        let work = act(&ann, || carried(uid)).unwrap();
        let other = std::thread::spawn(move || (work(), uid()));
        assert_eq!(other.join().unwrap(), (40_000, 0));
    }

    #[test]
    fn who_cannot_be_is_not_acted_for() {
        let Some([ann, _]) = two() else { return };
        let own = Arc::new(Credentials::of_thread().unwrap());
        // No group has this number.
        let theirs = Credentials::new(1, 1, &[u32::MAX]);
        let nobody = Some(Arc::new(Actor::new(own, theirs)));
        assert!(act(&nobody, || panic!("called")).is_err());
        let within = act(&ann, || (act(&nobody, || panic!("called")).is_err(), uid()));
        assert_eq!(within.unwrap(), (true, 40_000));
    }
}

//! Calls that wait, and what is to be put right when a signal handler leaves one by `siglongjmp`: nothing is
//! unwound then, and who is believed to wait for ever keeps connections open and is rung for.
//!
//! Each wait is noted on its thread, beside a system call, and taken off when it ends. What is still there when
//! the thread comes back, and lies on a part of the stack that is no longer in use, has been left.

use std::cell::Cell;

use local::conn::{Calls, Conn, Phase};
use local::world::World;
use sys::handler;

use crate::poll::{self, Ours, Unmet};
use crate::ready::Set;
use crate::{fds, io};

/// Calls that one thread may be in at once: one, and one for each handler that has interrupted another.
const DEEP: usize = 8;

/// What a call has begun, and would have to end.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    /// Nothing yet, or nothing any more. What is left in the few instructions between this and the rest stays
    /// begun, which is better than to be ended twice.
    Nothing,
    /// A call that may sleep on a connection: it holds it open.
    Call(&'static Conn),
    /// A sleep on a connection.
    Sleep(&'static Conn),
    /// A receive of the kernel's, before the attachment.
    Kernel(&'static Conn),
    /// [`Self::Call`], in a send by TCP before our direction has switched.
    Sending(&'static Conn),
    /// [`Self::Call`] for the first so many connections of a `poll`. The list is on the heap, and stays there
    /// when the call is left.
    Calls(*const Ours, usize),
    /// [`Self::Sleep`] likewise.
    Sleeps(*const Ours, usize),
    /// [`Self::Call`] and [`Self::Kernel`] for the first so many connections of a `poll` that are not attached.
    Unmet(*const Unmet, usize),
    /// A wait on an event set.
    Set(&'static Set),
    /// A nap of a `poll`, by a waiter that it has taken for that.
    Nap(u32),
}

#[derive(Clone, Copy)]
struct Noted {
    at: usize,
    wait: Wait,
}

struct Thread {
    depth: Cell<usize>,
    noted: [Cell<Option<Noted>>; DEEP],
}

thread_local! {
    static THREAD: Thread = const {
        Thread { depth: Cell::new(0), noted: [const { Cell::new(None) }; DEEP] }
    };
}

/// A wait that is noted; taken off at its end.
pub(crate) struct Mark {
    /// Its place; [`DEEP`]: there was none.
    place: usize,
    /// An address of its frame. What is noted may for a moment be a handler's that has used our place.
    at: usize,
}

/// Notes that a wait begins; what there is to put right is told by [`Mark::now`]. `at`: an address on the stack,
/// in a frame that lives at least as long.
#[inline]
pub(crate) fn begin(at: usize) -> Mark {
    tidy();
    begin_inside(at)
}

/// [`begin`], inside of a wait that is noted.
#[inline]
pub(crate) fn begin_inside(at: usize) -> Mark {
    THREAD.with(|t| {
        let place = t.depth.get();
        if let Some(free) = t.noted.get(place) {
            free.set(Some(Noted { at, wait: Wait::Nothing }));
            t.depth.set(place + 1);
        }
        Mark { place: place.min(DEEP), at }
    })
}

impl Mark {
    /// Says what is to be put right if the call is left from here on.
    #[inline]
    pub(crate) fn now(&self, wait: Wait) {
        THREAD.with(|t| {
            if let Some(place) = t.noted.get(self.place) {
                place.set(Some(Noted { at: self.at, wait }));
            }
        });
    }
}

impl Drop for Mark {
    #[inline]
    fn drop(&mut self) {
        THREAD.with(|t| {
            let Some(place) = t.noted.get(self.place) else { return };
            // What was noted after us and is still there was left: a handler that came back to us.
            while t.depth.get() > self.place + 1 {
                undo_last(t);
            }
            place.set(None);
            t.depth.set(self.place);
        });
    }
}

/// To be called in a forked child: who sleeps in memory that both share is the parent's to count.
pub(crate) fn forked() {
    THREAD.with(|t| {
        for place in &t.noted {
            if let Some(noted) = place.get()
                && matches!(noted.wait, Wait::Sleep(_) | Wait::Sleeps(..))
            {
                place.set(Some(Noted { wait: Wait::Nothing, ..noted }));
            }
        }
    });
}

/// Calls on a connection in the middle of which this thread is: one that runs now was begun by a handler that has
/// interrupted them.
pub(crate) fn calls_on(conn: &Conn) -> Calls {
    let mut calls = Calls::default();
    each_noted(|wait| {
        each(wait, |other| {
            let is_it = u32::from(std::ptr::eq(other, conn));
            match wait {
                Wait::Call(_) | Wait::Sending(_) | Wait::Calls(..) => calls.holding += is_it,
                Wait::Kernel(_) => calls.receiving += is_it,
                Wait::Unmet(..) => {
                    calls.holding += is_it;
                    calls.polling += is_it;
                }
                Wait::Nothing | Wait::Sleep(_) | Wait::Sleeps(..) | Wait::Set(_) | Wait::Nap(_) => {
                }
            }
        });
    });
    calls
}

/// Waits on a set in the middle of which this thread is, likewise.
pub(crate) fn waits_on(set: &Set) -> u32 {
    let mut waits = 0;
    each_noted(|wait| waits += u32::from(matches!(wait, Wait::Set(s) if std::ptr::eq(s, set))));
    waits
}

/// All that this thread has noted.
fn each_noted(mut f: impl FnMut(Wait)) {
    THREAD.with(|t| {
        if t.depth.get() > 0 {
            t.noted.iter().filter_map(Cell::get).for_each(|noted| f(noted.wait));
        }
    });
}

/// Puts right what this thread has left. For calls that end something: waits do so by themselves.
#[inline]
pub(crate) fn tidy() {
    THREAD.with(|t| {
        if t.depth.get() > 0 {
            look(t);
        }
    });
}

#[cold]
fn look(t: &Thread) {
    while let Some(last) = t.depth.get().checked_sub(1) {
        let Some(noted) = t.noted.get(last).and_then(Cell::get) else { return };
        if handler::goes_on(noted.at) {
            return;
        }
        undo_last(t);
    }
}

fn undo_last(t: &Thread) {
    let Some(last) = t.depth.get().checked_sub(1) else { return };
    let Some((place, w)) = t.noted.get(last).zip(fds::world()) else { return t.depth.set(last) };
    let Some(noted) = place.get() else { return t.depth.set(last) };
    // First what takes long and may be done again: this thread may be interrupted here as well.
    each(noted.wait, |conn| conn.free_left_locks(w));
    w.board.free_left_locks();
    // A handler that has interrupted us there has done the rest.
    let Some(noted) = place.take() else { return };
    t.depth.set(last);
    undo(w, noted.wait);
}

/// Each connection that a wait is on.
fn each(wait: Wait, mut f: impl FnMut(&'static Conn)) {
    match wait {
        Wait::Nothing | Wait::Set(_) | Wait::Nap(_) => {}
        Wait::Call(conn) | Wait::Sleep(conn) | Wait::Kernel(conn) | Wait::Sending(conn) => f(conn),
        Wait::Calls(first, n) | Wait::Sleeps(first, n) => (0..n).for_each(|at| f(nth(first, at))),
        Wait::Unmet(first, n) => (0..n).for_each(|at| f(nth_unmet(first, at).conn)),
    }
}

/// The connection of a `poll` that was left.
fn nth(first: *const Ours, at: usize) -> &'static Conn {
    // SAFETY: the list was made by a call that never ended, so nobody has given it back.
    unsafe { (*first.add(at)).conn }
}

/// The same of one that was not attached.
fn nth_unmet(first: *const Unmet, at: usize) -> &'static Unmet {
    // SAFETY: as in `nth`.
    unsafe { &*first.add(at) }
}

/// The end of a call that had none.
fn undo(w: &'static World, wait: Wait) {
    match wait {
        Wait::Nothing => {}
        Wait::Call(conn) => io::release(w, conn),
        Wait::Sleep(conn) => wake(w, conn),
        Wait::Kernel(conn) => {
            conn.receive_left(w);
            if conn.phase() == Phase::Attached {
                io::received(w, conn);
            }
        }
        Wait::Sending(conn) => {
            conn.send_left(w);
            io::release(w, conn);
        }
        Wait::Calls(first, n) => (0..n).for_each(|at| io::release(w, nth(first, at))),
        Wait::Sleeps(first, n) => (0..n).for_each(|at| wake(w, nth(first, at))),
        Wait::Unmet(first, n) => (0..n).for_each(|at| poll::end(w, nth_unmet(first, at))),
        Wait::Set(set) => set.wait_left(w),
        Wait::Nap(waiter) => poll::over(w, waiter),
    }
}

fn wake(w: &'static World, conn: &'static Conn) {
    if let Some((mine, _)) = conn.halves(w) {
        io::wake_up(w, conn, mine);
    }
}

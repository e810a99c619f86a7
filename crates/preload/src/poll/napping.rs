//! Naps of who polls several descriptors, as event loops take them (ADR 28): all connections get one word, that of a waiter
//! which this call has for so long.

use sys::wait::{self, WaitWord};

use super::*;
use crate::nap::Learnt;
use crate::sandbox;

thread_local! {
    static LEARNT: Learnt = Learnt::default();
}

/// With more connections than these the kernel is asked at once: each costs a look and two writes.
const MOST: usize = 64;

/// The kernel had something to say of a descriptor that is none of ours.
pub(super) fn kernel_told(fds: &[pollfd], list: &[Ours]) {
    let mut ours = list.iter().map(|o| o.at).peekable();
    let is_other = |at: &usize| ours.next_if_eq(at).is_none();
    if (0..fds.len()).filter(is_other).any(|at| fds[at].revents != 0) {
        LEARNT.with(Learnt::kernel_told);
    }
}

/// Sleeps until a peer does something, or not for long. `naps`: counts them.
pub(super) fn nap(
    w: &'static World,
    fds: &[pollfd],
    list: &[Ours],
    left: Option<u64>,
    naps: &mut u32,
) -> Nap {
    let ns = nap::longest_of_many(w, left);
    if ns == 0
        || list.len() > MOST
        || !sandbox::may_make_sockets()
        || !all_told_by_memory(fds, list)
        || !LEARNT.with(Learnt::pay)
    {
        return Nap::Over;
    }
    let Some(waiter) = w.take_waiter_for_a_nap() else { return Nap::Over };
    let mark = left::begin_inside(handler::here());
    mark.now(Wait::Nap(waiter));
    let taken = Finally(|| {
        mark.now(Wait::Nothing);
        over(w, waiter);
    });
    let Some(word) = w.waiter(waiter) else { return Nap::Over };
    nap::cancelled();
    let holds = left::begin_inside(handler::here());
    let sleeps = left::begin_inside(handler::here());
    let mut begun = 0;
    let armed = list.iter().all(|o| {
        o.conn.free_left_locks(w);
        if !o.conn.hold() {
            return false;
        }
        begun += 1;
        holds.now(Wait::Calls(list.as_ptr(), begun));
        let _held = lock::lock(&o.mine.wait_lock);
        let alone = o.conn.sleepers(o.mine) == 0 && !ready::is_in_a_set(w, o.conn, o.mine);
        o.mine.sleepers.fetch_add(1, Ordering::AcqRel);
        sleeps.now(Wait::Sleeps(list.as_ptr(), begun));
        if alone {
            wait::arm(&o.mine.wait, WaitWord::Warm(waiter));
        }
        // Of room, who sends by TCP still tells nothing.
        let untold = Ours::wants_out(&fds[o.at])
            && o.conn.wait_for_room(o.mine, o.peer)
            && o.peer.flags.load(Ordering::Relaxed) & half_flags::UP == 0;
        alone && !untold
    });
    let asleep = Finally(|| wakes_up(w, &list[..begun], &holds, &sleeps));
    if !armed {
        return Nap::Over;
    }
    *naps = naps.saturating_add(1);
    let seen = wait::nap(word);
    let ready = list.iter().any(|o| moved(o, &fds[o.at]));
    // Once more: who has changed that since has ended no nap.
    let told = |o: &Ours| {
        o.conn.is_told_by_memory(o.mine, o.peer)
            && Conn::wait_word(o.mine) == WaitWord::Warm(waiter)
    };
    if !ready && !list.iter().all(told) {
        return Nap::Over;
    }
    let ended = if ready {
        Ok(())
    } else {
        for o in list {
            io::count(&o.mine.n_sleeps);
        }
        call::futex_nap(word, seen, ns)
    };
    drop(asleep);
    drop((sleeps, holds));
    drop(taken);
    drop(mark);
    nap::cancelled();
    match ended {
        Ok(()) | Err(libc::EAGAIN) => {
            LEARNT.with(|learnt| learnt.ended(false));
            Nap::Woken
        }
        Err(libc::EINTR) => Nap::Interrupted,
        Err(_) => {
            LEARNT.with(|learnt| learnt.ended(true));
            Nap::Over
        }
    }
}

/// The end of a nap, or of one that was left by a jump.
pub(crate) fn over(w: &World, waiter: u32) {
    if let Some(word) = w.waiter(waiter).filter(|_| w.is_own_waiter(waiter)) {
        wait::awake(word);
    }
    w.drop_waiter(waiter);
}

/// Whether peers tell of all that may become of these: of the other descriptors the kernel does, later.
fn all_told_by_memory(fds: &[pollfd], list: &[Ours]) -> bool {
    let mut ours = list.iter().map(|o| o.at).peekable();
    let other_is_plain = |at: usize| match fds::look(fds[at].fd) {
        Some(fds::Entry::Conn(conn)) => matches!(conn.phase(), Phase::Listener | Phase::Tcp),
        Some(fds::Entry::Set(_)) => false,
        None => true,
    };
    let told = |o: &Ours| {
        let asked = &fds[o.at];
        (reads(asked) || Ours::wants_out(asked))
            && asked.events & libc::POLLPRI == 0
            && o.conn.is_told_by_memory(o.mine, o.peer)
    };
    (0..fds.len()).all(|at| ours.next_if_eq(&at).is_some() || other_is_plain(at))
        && list.iter().all(told)
}

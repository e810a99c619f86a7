//! Records of sets that were closed, for those that come: a program may make one for each of its tasks.
//!
//! Records are never unmapped, as another thread may be about to use one. What connections have pointed to rests first, while
//! as many others come and go as there is room for here.

use std::sync::atomic::AtomicPtr;

use super::*;

/// Those that connections have pointed to, and where the next one comes.
static RESTING: [AtomicPtr<Set>; 256] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 256];
static RESTED: AtomicUsize = AtomicUsize::new(0);

static SPARE: [AtomicPtr<Set>; 64] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 64];

/// Keeps the record of a set that was just closed, if it may serve another one.
pub(super) fn keep(w: &World, set: &'static Set) {
    if !may_serve(w, set) {
        return;
    }
    let mut record = std::ptr::from_ref(set).cast_mut();
    if set.used.swap(false, Ordering::Relaxed) {
        let place = RESTED.fetch_add(1, Ordering::Relaxed) % RESTING.len();
        record = RESTING[place].swap(record, Ordering::AcqRel);
        if record.is_null() {
            return;
        }
    }
    for place in &SPARE {
        let none = std::ptr::null_mut();
        if place.compare_exchange(none, record, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// A record for the set behind this descriptor, if one is spare.
pub(super) fn take(w: &World, epfd: c_int) -> Option<&'static Set> {
    let record = SPARE.iter().find_map(|place| {
        let found = place.load(Ordering::Relaxed);
        let taken = !found.is_null()
            && place
                .compare_exchange(found, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        taken.then_some(found)
    })?;
    // SAFETY: it was kept, so it is one of ours, which are never unmapped.
    let set: &'static Set = unsafe { &*record };
    if !may_serve(w, set) {
        // This process has been forked since.
        return None;
    }
    let how = [&set.cold, &set.looked_at, &set.shown, &set.mixed, &set.crowded];
    for flag in
        how.into_iter().chain([&set.passed_over, &set.passed, &set.plain, &set.many, &set.rung])
    {
        flag.store(false, Ordering::Relaxed);
    }
    set.last.store(0, Ordering::Relaxed);
    for count in [&set.others, &set.unasked, &set.dull, &set.lively, &set.tidied, &set.left] {
        count.store(0, Ordering::Relaxed);
    }
    set.epfd.store(epfd.cast_unsigned(), Ordering::Relaxed);
    set.refs.store(1, Ordering::Release);
    Some(set)
}

/// Whether nobody else can have to do with it, and what it says of the process is still so.
fn may_serve(w: &World, set: &Set) -> bool {
    let forks = w.forks.load(Ordering::Relaxed);
    !set.forked.load(Ordering::Relaxed)
        && set.waiting.load(Ordering::SeqCst) == 0
        && set.refs.load(Ordering::Acquire) == 0
        && set.common.load(Ordering::Relaxed) == 0
        && (set.born, set.begun) == (forks, w.begun.load(Ordering::Relaxed))
        && set.forks.load(Ordering::Relaxed) == forks
}

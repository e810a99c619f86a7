//! How many connections lead from one process to another.

use sys::abi::SLOTS;

use super::{AtomicU32, Half, Ordering, World};

/// How many connections lead from the process of one half to that of the other; `None`: a half names a
/// process that cannot be.
fn links<'w>(w: &'w World, from: &Half, to: &Half) -> Option<&'w AtomicU32> {
    let (from, to) = (from.slot.load(Ordering::Relaxed), to.slot.load(Ordering::Relaxed));
    if from as usize >= SLOTS {
        return None;
    }
    w.board.map.slot(from).links.get(to as usize)
}

/// While this is so, the memory of the process of `to` is kept even when that has ended.
pub(super) fn link(w: &World, from: &Half, to: &Half) {
    if let Some(links) = links(w, from, to) {
        links.fetch_add(1, Ordering::AcqRel);
    }
}

pub(super) fn unlink(w: &World, from: &Half, to: &Half) {
    if let Some(links) = links(w, from, to) {
        let _ = links.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

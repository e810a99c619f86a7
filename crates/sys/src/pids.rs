//! The namespace in which a process has its number, as a container has one of its own: elsewhere that number is somebody
//! else's.
//!
//! A process stays in its own for as long as it lives, but it may have made another one for what it forks. So it is asked
//! with the first lock, and in each forked child at once: a sandbox that a program builds later may allow no such call.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::call;

static OWN: AtomicUsize = AtomicUsize::new(0);
static IS_ASKED: AtomicBool = AtomicBool::new(false);

/// The inode number of our own; 0: it is not known.
#[must_use]
pub fn own() -> u64 {
    // Acquire: the number. Pairs with `ask`.
    if !IS_ASKED.load(Ordering::Acquire) {
        ask();
    }
    OWN.load(Ordering::Relaxed) as u64
}

fn ask() {
    let inode =
        call::stat(c"/proc/self/ns/pid").ok().and_then(|stat| usize::try_from(stat.st_ino).ok());
    // A child that cannot ask any more is taken to be where its parent was.
    if let Some(inode) = inode {
        OWN.store(inode, Ordering::Relaxed);
    }
    IS_ASKED.store(true, Ordering::Release);
}

/// In a forked child: it may be in another one.
pub(crate) fn forked() {
    // Who has built a sandbox since makes no namespaces in it, as a rule, and may not ask.
    if IS_ASKED.load(Ordering::Relaxed) && !call::is_filtered() {
        ask();
    }
}

/// A number for one of them, below 1024: two have the same seldom, and at random. 0: it is not known.
pub(crate) fn mark(pids: u64) -> u32 {
    /// A prime number: those of namespaces that were made one after the other are in steps.
    const MARKS: u64 = 1021;
    if pids == 0 {
        return 0;
    }
    u32::try_from(pids % MARKS).map_or(0, |mark| mark + 1)
}

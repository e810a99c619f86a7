//! Descriptors that we keep open because a call of another thread is still under way on a connection whose own descriptor
//! was closed: in the kernel that call goes on, and only its end ends the connection. So must it here, and the kernel
//! must not see the end before the library does.

use std::sync::atomic::AtomicPtr;

use sys::handler::Blocked;
use sys::lock::{self, Guarded};
use sys::sync::AtomicU32;

use super::*;

/// One that is kept, and for what.
struct Kept {
    /// The descriptor plus one; 0: none.
    word: AtomicU32,
    conn: AtomicPtr<Conn>,
}

static KEPT: [Kept; 16] =
    [const { Kept { word: AtomicU32::new(0), conn: AtomicPtr::new(std::ptr::null_mut()) } }; 16];
/// How many there are: mostly none, which is all that most who ask need to know.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Held by whoever changes what is kept, signals being blocked: a number is ours until it is closed, and no other file may
/// come to stand there before.
static CHANGING: Guarded<()> = Guarded::new(());

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = c_int> {
    let some = COUNT.load(Ordering::Relaxed) > 0;
    let words = KEPT.iter().map(|k| k.word.load(Ordering::Relaxed));
    words.filter(move |_| some).filter_map(|word| word.checked_sub(1)).map(u32::cast_signed)
}

/// Whether `fd` is one of them.
#[inline]
pub(crate) fn is_kept(fd: c_int) -> bool {
    COUNT.load(Ordering::Relaxed) > 0 && all().any(|kept| kept == fd)
}

/// The last descriptor of a connection is about to be closed under a call of another thread. Where there is no other
/// number it is closed under it, and the call ends by that.
pub(super) fn keep(w: &World, conn: &'static Conn, fd: c_int) {
    let _quiet = Blocked::new();
    let _changing = CHANGING.lock();
    if let Some(new) = kept_for(conn, fd) {
        stands_at(w, conn, new);
    }
}

/// A descriptor is about to be closed, others lead to the connection, and a call of another thread may be under way by
/// this one: the number may be another file's before it ends.
pub(super) fn keep_beside_others(conn: &'static Conn, fd: c_int) {
    let _quiet = Blocked::new();
    let _changing = CHANGING.lock();
    if let Some(new) = kept_for(conn, fd) {
        // Release: pairs with `Conn::descriptor`.
        conn.kept.store(new.cast_unsigned() + 1, Ordering::Release);
    }
}

/// What is kept for a connection, `fd` being one of its descriptors; `None`: there is no place, or no number.
fn kept_for(conn: &'static Conn, fd: c_int) -> Option<c_int> {
    if let Some(already) = conn.kept.load(Ordering::Relaxed).checked_sub(1) {
        return Some(already.cast_signed());
    }
    let free = KEPT.iter().find(|k| k.word.load(Ordering::Relaxed) == 0)?;
    let new = call::dup_aside(fd, crate::high_fd()).ok()?;
    COUNT.fetch_add(1, Ordering::Relaxed);
    free.conn.store(std::ptr::from_ref(conn).cast_mut(), Ordering::Relaxed);
    free.word.store(new.cast_unsigned() + 1, Ordering::Relaxed);
    Some(new)
}

/// A connection without a descriptor of the program's is known by this one.
fn stands_at(w: &World, conn: &'static Conn, fd: c_int) {
    conn.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
    if let Some((_, half)) = conn.my_half(w) {
        half.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
    }
    // Release: pairs with `Conn::descriptor`.
    conn.kept.store(fd.cast_unsigned() + 1, Ordering::Release);
}

/// The program is about to use this number, which it believes to be free. `false`: there is no other one. A call that
/// is between reading the number and making a system call by it, on another thread, finds the program's file there:
/// the kernel's own, which hold the file, have no such moment.
pub(super) fn moves(w: &World, from: c_int) -> bool {
    let _quiet = Blocked::new();
    let _changing = CHANGING.lock();
    let is_it = |k: &&Kept| k.word.load(Ordering::Relaxed) == from.cast_unsigned() + 1;
    // Otherwise the call has ended meanwhile, and the number is closed.
    let Some(kept) = KEPT.iter().find(is_it) else { return true };
    let Ok(up) = call::dup_aside(from, crate::high_fd()) else { return false };
    kept.word.store(up.cast_unsigned() + 1, Ordering::Relaxed);
    // SAFETY: records are never unmapped, and it is in use for as long as something is kept for it.
    if let Some(conn) = unsafe { kept.conn.load(Ordering::Relaxed).as_ref() } {
        if conn.fd.load(Ordering::Relaxed) == from.cast_unsigned() {
            stands_at(w, conn, up);
        } else {
            conn.kept.store(up.cast_unsigned() + 1, Ordering::Release);
        }
    }
    true
}

/// Another socket has taken the place of a connection's descriptors: of the one that is kept as well.
pub(crate) fn leads_to(conn: &Conn, new: c_int) {
    let _quiet = Blocked::new();
    let _changing = CHANGING.lock();
    if let Some(kept) = conn.kept.load(Ordering::Relaxed).checked_sub(1) {
        let _ = call::dup_over(new, kept.cast_signed(), libc::O_CLOEXEC);
    }
}

/// The last call on a connection has ended.
pub(crate) fn let_go(conn: &Conn) {
    if conn.kept.load(Ordering::Relaxed) == 0 {
        return;
    }
    let _quiet = Blocked::new();
    let _changing = CHANGING.lock();
    let word = conn.kept.swap(0, Ordering::AcqRel);
    if let Some(fd) = word.checked_sub(1) {
        let _ = call::close(fd.cast_signed());
        forget(word);
    }
}

fn forget(word: u32) {
    if let Some(kept) = KEPT.iter().find(|k| k.word.load(Ordering::Relaxed) == word) {
        kept.conn.store(std::ptr::null_mut(), Ordering::Relaxed);
        kept.word.store(0, Ordering::Relaxed);
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a fork waits for who changes what is kept: a close that lingers may take long. Nanoseconds.
const CHANGING_NS: u64 = 50_000_000;

/// Before a fork: no other thread is in the middle of changing what is kept.
pub(super) fn hold() {
    let deadline = call::now_ns() + CHANGING_NS;
    let word = CHANGING.word();
    loop {
        if let Some(held) = lock::try_lock(word) {
            std::mem::forget(held);
            return;
        }
        // A handler forks, and has interrupted a fork.
        if word.load(Ordering::Relaxed) == lock::tid() || call::now_ns() > deadline {
            return;
        }
        call::sched_yield();
    }
}

/// After it, in the parent: free, if we hold it.
pub(super) fn free() {
    // Release: pairs with whoever locks it next.
    let _ = CHANGING.word().compare_exchange(lock::tid(), 0, Ordering::Release, Ordering::Relaxed);
}

/// A forked child has none of the threads whose calls these descriptors are for, but the one that has forked: in a handler,
/// it may be in such a call. What else it does goes by the descriptors that it has.
pub(super) fn let_all_go() {
    // Whoever held it is not in this process.
    CHANGING.word().store(0, Ordering::Relaxed);
    for kept in &KEPT {
        let word = kept.word.load(Ordering::Relaxed);
        let Some(fd) = word.checked_sub(1) else { continue };
        // SAFETY: records are never unmapped, and it is in use for as long as something is kept for it.
        if let Some(conn) = unsafe { kept.conn.load(Ordering::Relaxed).as_ref() } {
            if left::calls_on(conn).holding > 0 {
                continue;
            }
            let _ = conn.kept.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        let _ = call::close(fd.cast_signed());
        forget(word);
    }
}

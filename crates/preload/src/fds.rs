//! What each descriptor of the guest is to us: nothing, a connection, or an event set.
//!
//! One word per descriptor, read by one load. Descriptors that we do not follow stay zero and go
//! to libc at once.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use local::conn::Conn;
use local::world::World;
use sys::call;
use sys::sync::{AtomicU32, AtomicU64};

use crate::ready::Set;
use crate::sandbox;

/// Descriptors beyond this are never followed.
const MAX: usize = 1 << 20;
/// Bytes of the table of descriptors.
pub(crate) const TABLE_BYTES: usize = MAX * 8;

static TABLE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());
/// No descriptor above this was ever followed.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// Process that this memory belongs to; a `vfork` child differs.
static PID: AtomicU32 = AtomicU32::new(0);
/// Whether this process has ever made a child that borrows our memory, as far as we have seen.
static LENT: AtomicBool = AtomicBool::new(false);

const CONN: u64 = 1;
const SET: u64 = 2;
const KIND: u64 = 7;

/// What a descriptor is to us.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// A TCP socket.
    Conn(&'static Conn),
    /// An epoll instance with sockets of ours in it.
    Set(&'static Set),
}

/// Begins: from here on descriptors are followed.
pub(crate) fn begin(world: World) {
    let Ok(table) = call::mmap_private(TABLE_BYTES) else { return };
    TABLE.store(table.cast(), Ordering::Release);
    PID.store(call::getpid(), Ordering::Relaxed);
    WORLD.store(Box::into_raw(Box::new(world)), Ordering::Release);
}

/// The addresses of the table.
pub(crate) fn range() -> std::ops::Range<usize> {
    let start = TABLE.load(Ordering::Acquire).addr();
    start..start + TABLE_BYTES
}

/// Our part in Shunt; `None`: we stay out of the way.
#[inline]
pub(crate) fn world() -> Option<&'static World> {
    let at = WORLD.load(Ordering::Acquire);
    // SAFETY: set once by `begin`, never freed.
    unsafe { at.as_ref() }
}

#[inline]
fn word(fd: i32) -> Option<&'static AtomicU64> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() || fd.cast_unsigned() as usize >= MAX {
        return None;
    }
    // SAFETY: inside of the table, which is never unmapped and zero where unused.
    Some(unsafe { &*table.add(fd.cast_unsigned() as usize) })
}

fn entry(word: u64) -> Option<Entry> {
    let at = word & !KIND;
    match word & KIND {
        // SAFETY: records are never freed while they are in the table, nor unmapped after.
        CONN => Some(Entry::Conn(unsafe { &*(at as *const Conn) })),
        // SAFETY: the same.
        SET => Some(Entry::Set(unsafe { &*(at as *const Set) })),
        _ => None,
    }
}

/// What `fd` is to us.
#[inline]
pub(crate) fn look(fd: i32) -> Option<Entry> {
    let word = word(fd)?.load(Ordering::Acquire);
    if word == 0 { None } else { entry(word) }
}

/// The connection of `fd`.
#[inline]
pub(crate) fn conn(fd: i32) -> Option<&'static Conn> {
    let word = word(fd)?.load(Ordering::Acquire);
    if word & KIND != CONN {
        return None;
    }
    // SAFETY: see `entry`.
    Some(unsafe { &*((word & !KIND) as *const Conn) })
}

/// Whether `fd` leads to this connection.
pub(crate) fn leads_to(fd: i32, conn: &Conn) -> bool {
    self::conn(fd).is_some_and(|found| std::ptr::eq(found, conn))
}

/// Does something in the kernel by a number that leads to this connection, which nobody closes meanwhile; `None`: it
/// does not.
pub(crate) fn by_number<T>(conn: &Conn, fd: i32, what: impl FnOnce() -> T) -> Option<T> {
    let _numbered = conn.by_number();
    leads_to(fd, conn).then(what)
}

/// The event set of `fd`.
#[inline]
pub(crate) fn set(fd: i32) -> Option<&'static Set> {
    match look(fd)? {
        Entry::Set(set) => Some(set),
        Entry::Conn(_) => None,
    }
}

/// Makes `fd` what `what` says; answers what it was (which then is stale: closed behind our back).
pub(crate) fn put(fd: i32, what: Option<Entry>) -> Option<Entry> {
    let at = word(fd)?;
    let new = match what {
        None => 0,
        Some(Entry::Conn(c)) => std::ptr::from_ref(c) as u64 | CONN,
        Some(Entry::Set(s)) => std::ptr::from_ref(s) as u64 | SET,
    };
    if new != 0 {
        HIGHEST.fetch_max(fd.cast_unsigned() as usize, Ordering::Relaxed);
    } else if at.load(Ordering::Relaxed) == 0 {
        return None;
    }
    entry(at.swap(new, Ordering::AcqRel))
}

/// Each descriptor that we follow.
pub(crate) fn each(mut f: impl FnMut(i32, Entry)) {
    if TABLE.load(Ordering::Acquire).is_null() {
        return;
    }
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        let Ok(fd) = i32::try_from(fd) else { return };
        if let Some(entry) = look(fd) {
            f(fd, entry);
        }
    }
}

/// Whether this is another process than the one our memory belongs to: a `vfork` child, which must
/// not change what it borrows. A program that may be ended for the question has none but those that were seen.
pub(crate) fn borrowed() -> bool {
    if sandbox::may_end_us() && !LENT.load(Ordering::Relaxed) {
        return false;
    }
    call::getpid() != PID.load(Ordering::Relaxed)
}

/// [`borrowed`], for what one may be wrong about: a child that was made by a system call of the program's own making
/// is not seen. Costs a system call only in a program that has made such children.
pub(crate) fn borrowed_as_seen() -> bool {
    LENT.load(Ordering::Relaxed) && borrowed()
}

/// The program is about to make a child that may borrow our memory.
pub(crate) fn lend() {
    LENT.store(true, Ordering::Relaxed);
}

/// To be called in a forked child.
pub(crate) fn forked() {
    PID.store(call::getpid(), Ordering::Relaxed);
}

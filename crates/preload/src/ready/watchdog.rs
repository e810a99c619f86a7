//! The watchdog build: a wake-up that was lost ends the program, with the words that show how.
//!
//! Only with the feature `watchdog`, which is never shipped. Whoever goes to sleep in the kernel
//! puts his name on a list; a thread looks at the list each millisecond. An alarm does not rest on
//! how long somebody slept, which on a busy machine says nothing, but on what cannot be:
//!
//! - there is something for the sleeper in memory, and has been at each look for some time;
//! - whoever put it there holds no lock any more, and so has decided already whether to ring;
//! - no doorbell is on its way, and the kernel knows of nothing that would end the sleep;
//! - the sleeper is in the kernel still, and has not been brought out of it by a jump of a signal handler's.
//!
//! A set that looks at a connection which was taken out of it ends the program as well.
//!
//! `SHUNT_WATCHDOG_DROP=N` swallows each Nth doorbell of this process, to see that the peer's
//! watchdog wakes up.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::c_void;
use local::conn::{Conn, Phase, Registration, reg_flags as reg};
use local::world::World;
use sys::abi::Half;
use sys::call;
use sys::handler;
use sys::ring;
use sys::sync::{AtomicU32, AtomicU64};

use super::{ET, IN, OUT, RDNORM, Set, WRNORM};
use crate::fds;

/// Sleepers that are watched at one time.
const SLEEPERS: usize = 512;
/// How often the list is looked at.
const LOOK_NS: i64 = 1_000_000;
/// Looks in a row, and time, after which what cannot be is believed.
const LOOKS: u32 = 4;
const LOST_NS: u64 = 4_000_000;
/// A doorbell that was announced, and of which the kernel knows nothing, may be in the hands of a
/// waker or of the kernel's own threads for so long.
const BELL_LOST_NS: u64 = 2_000_000_000;

/// Kinds of sleeper, in the low bits of [`Sleeper::what`].
const CONN: u64 = 1;
const SET: u64 = 2;
const KIND: u64 = 3;

/// One line of the list.
struct Sleeper {
    /// Who waits, by address and kind; 0: nobody.
    what: AtomicU64,
    /// Counts the sleeps of this line.
    sleep: AtomicU64,
    /// Descriptor that the kernel waits on.
    fd: AtomicU32,
    /// What a connection is waited for.
    events: AtomicU32,
    /// Thread that waits.
    tid: AtomicU32,
    /// An address of the frame that waits, on its stack.
    at: AtomicUsize,
}

static LIST: [Sleeper; SLEEPERS] = [const {
    Sleeper {
        what: AtomicU64::new(0),
        sleep: AtomicU64::new(0),
        fd: AtomicU32::new(0),
        events: AtomicU32::new(0),
        tid: AtomicU32::new(0),
        at: AtomicUsize::new(0),
    }
}; SLEEPERS];
static STARTED: AtomicBool = AtomicBool::new(false);

/// A name on the list, for as long as this lives.
pub(crate) struct Asleep(Option<&'static Sleeper>);

impl Drop for Asleep {
    fn drop(&mut self) {
        if let Some(line) = self.0 {
            line.sleep.fetch_add(1, Ordering::SeqCst);
            line.what.store(0, Ordering::SeqCst);
        }
    }
}

impl Sleeper {
    /// Whether its thread is in the system call it sleeps in, as far as the kernel tells: a signal handler may have left
    /// that by a jump, and then nobody takes the name off.
    fn sleeps(&self) -> bool {
        // Those whose first argument is what they wait on, and those that have a list.
        const BY_NUMBER: &[libc::c_long] = &[
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_recvfrom,
        ];
        const OTHERS: &[libc::c_long] = &[
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll,
            libc::SYS_ppoll,
            libc::SYS_futex,
        ];
        // The name was put down by a function that had a frame of its own, as deep as the call may be.
        const FRAME: usize = 4096;
        let tid = self.tid.load(Ordering::Relaxed);
        let Ok(path) = CString::new(format!("/proc/self/task/{tid}/syscall")) else { return true };
        let Ok(file) = call::open(&path, libc::O_RDONLY | libc::O_CLOEXEC, 0) else { return true };
        let mut text = [0; 256];
        let n = call::read(file, &mut text).unwrap_or(0);
        let _ = call::close(file);
        // The number of the call, its six arguments, and where the stack is; or that it runs.
        let mut words = std::str::from_utf8(&text[..n]).unwrap_or("").split_ascii_whitespace();
        let Some(number) = words.next() else { return true };
        let Ok(number) = number.parse::<libc::c_long>() else { return false };
        let mut hex = words.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        let first = hex.next().flatten();
        let on_this = first == Some(self.fd.load(Ordering::Relaxed).into());
        let in_call = OTHERS.contains(&number) || BY_NUMBER.contains(&number) && on_this;
        let highest = (self.at.load(Ordering::Relaxed) + FRAME) as u64;
        in_call && hex.nth(5).flatten().is_some_and(|stack| stack <= highest)
    }
}

fn put_down(what: u64, fd: i32, events: u32) -> Asleep {
    if !STARTED.swap(true, Ordering::SeqCst) {
        start();
    }
    for line in &LIST {
        if line.what.load(Ordering::Relaxed) == 0
            && line.what.compare_exchange(0, KIND, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        {
            line.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
            line.events.store(events, Ordering::Relaxed);
            line.tid.store(call::gettid(), Ordering::Relaxed);
            line.at.store(handler::here(), Ordering::Relaxed);
            line.sleep.fetch_add(1, Ordering::SeqCst);
            line.what.store(what, Ordering::SeqCst);
            return Asleep(Some(line));
        }
    }
    Asleep(None)
}

/// A thread is about to sleep on a connection, until there are bytes or room or either.
pub(crate) fn on_conn(conn: &'static Conn, fd: i32, bytes: bool, room: bool) -> Asleep {
    let events = if bytes { IN } else { 0 } | if room { OUT } else { 0 };
    put_down(std::ptr::from_ref(conn) as u64 | CONN, fd, events)
}

/// A thread is about to sleep in `epoll_wait`.
pub(super) fn on_set(set: &'static Set) -> Asleep {
    put_down(std::ptr::from_ref(set) as u64 | SET, set.epfd(), 0)
}

/// A forked child: the threads that sleep, and the one that watches, are the parent's.
pub(crate) fn forked() {
    for line in &LIST {
        line.what.store(0, Ordering::Relaxed);
    }
    STARTED.store(false, Ordering::SeqCst);
}

fn start() {
    // SAFETY: all zeros is a valid place for both.
    let (mut all, mut old) = unsafe { std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>() };
    // SAFETY: a valid set.
    unsafe { libc::sigfillset(&raw mut all) };
    // The guest's signals are for the guest's threads.
    // SAFETY: valid sets.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut old) };
    let mut thread: libc::pthread_t = 0;
    // SAFETY: a function that lives as long as the process, and needs no argument.
    let made = unsafe {
        libc::pthread_create(&raw mut thread, std::ptr::null(), watch, std::ptr::null_mut())
    };
    if made == 0 {
        // SAFETY: the thread that was just made.
        unsafe { libc::pthread_detach(thread) };
    }
    // SAFETY: valid sets.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut()) };
}

/// What a look at a sleeper found.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Found {
    sleep: u64,
    conn: u64,
    tail: u64,
    head: u64,
    room: bool,
    /// A doorbell has been announced and not been taken out yet.
    bell: bool,
}

/// Since when the same was found, and how often.
#[derive(Clone, Copy)]
struct Since {
    found: Found,
    ns: u64,
    looks: u32,
}

extern "C" fn watch(_: *mut c_void) -> *mut c_void {
    let mut seen: Vec<Option<Since>> = vec![None; SLEEPERS];
    loop {
        let pause = libc::timespec { tv_sec: 0, tv_nsec: LOOK_NS };
        static NEVER: AtomicU32 = AtomicU32::new(0);
        let _ = call::futex_wait(&NEVER, 0, Some(pause));
        let Some(w) = fds::world() else { continue };
        for (line, seen) in LIST.iter().zip(&mut seen) {
            let found = look(w, line);
            *seen = found.map(|found| match *seen {
                Some(old) if old.found == found => Since { looks: old.looks + 1, ..old },
                _ => Since { found, ns: call::now_ns(), looks: 1 },
            });
            if let Some(since) = *seen {
                judge(w, line, since);
            }
        }
    }
}

fn judge(w: &'static World, line: &'static Sleeper, since: Since) {
    let took = call::now_ns() - since.ns;
    let limit = if since.found.bell { BELL_LOST_NS } else { LOST_NS };
    if since.looks < LOOKS || took < limit {
        return;
    }
    if !line.sleeps() {
        return;
    }
    // SAFETY: records are never unmapped.
    let conn = unsafe { &*(since.found.conn as *const Conn) };
    let Some((mine, peer)) = conn.halves(w) else { return };
    let half = conn.my_half(w).map_or(0, |(index, _)| index);
    let kind = if line.what.load(Ordering::Relaxed) & KIND == SET { "set" } else { "connection" };
    let relaxed = Ordering::Relaxed;
    local::log::line(format_args!(
        "watchdog: lost wake-up: asleep on {kind} fd {}, conn fd {}, half {half}, {} for {took} ns: \
         tail {} head {} wait {:#x} sleep words {:?} room_wait {} our bells taken {} of {}, \
         peer rang for {} of {}, flags {:#x} and {:#x}",
        line.fd.load(relaxed),
        conn.fd.load(relaxed),
        if since.found.room { "room" } else { "unread" },
        since.found.tail,
        since.found.head,
        mine.wait.load(relaxed),
        sleep_word(w, mine),
        mine.room_wait.load(relaxed),
        mine.drained.load(relaxed),
        peer.bells.load(relaxed),
        peer.rung.load(relaxed),
        mine.arm_seq.load(relaxed),
        mine.flags.load(relaxed),
        peer.flags.load(relaxed),
    ));
    // SAFETY: ends the process, which is what is wanted.
    unsafe { libc::abort() };
}

/// The sleep word of the event loop that a warm connection belongs to.
fn sleep_word(w: &World, mine: &Half) -> Option<u32> {
    match sys::wait::WaitWord::parse(mine.wait.load(Ordering::Relaxed)) {
        sys::wait::WaitWord::Warm(k) => Some(w.waiter(k)?.load(Ordering::Relaxed)),
        _ => None,
    }
}

/// Whether this sleeper should be awake as far as memory tells, and the kernel does not know it.
fn look(w: &'static World, line: &'static Sleeper) -> Option<Found> {
    let what = line.what.load(Ordering::SeqCst);
    let sleep = line.sleep.load(Ordering::SeqCst);
    let at = what & !KIND;
    let fd = line.fd.load(Ordering::Relaxed).cast_signed();
    let mut found = match what & KIND {
        // SAFETY: records are never unmapped.
        CONN if at != 0 => on_one(w, unsafe { &*(at as *const Conn) }, line)?,
        // SAFETY: sets are never unmapped.
        SET if at != 0 => unsafe { &*(at as *const Set) }.unheard(w)?,
        _ => return None,
    };
    found.sleep = sleep;
    // After memory: what was rung for before is there by now.
    let mut one = [libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }];
    if call::poll(&mut one, 0) != Ok(0) {
        return None;
    }
    let same =
        line.what.load(Ordering::SeqCst) == what && line.sleep.load(Ordering::SeqCst) == sleep;
    same.then_some(found)
}

fn on_one(w: &'static World, conn: &'static Conn, line: &Sleeper) -> Option<Found> {
    let events = line.events.load(Ordering::Relaxed);
    unheard(w, conn, events & IN != 0, events & OUT != 0)
}

/// What is there for whoever waits for bytes or for room, and was put there by somebody who is done.
fn unheard(w: &'static World, conn: &'static Conn, bytes: bool, room: bool) -> Option<Found> {
    if conn.phase() != Phase::Attached || conn.is_shared(w) {
        return None;
    }
    let (mine, peer) = conn.halves(w)?;
    let (tail, head) = (ring::tail(&peer.tail), mine.head.load(Ordering::Relaxed));
    let bytes = bytes && tail != head;
    let waits = mine.room_wait.load(Ordering::Relaxed) != 0;
    let room = room && waits && conn.has_room(mine, peer);
    // What a direction between two ways comes to is the kernel's to tell.
    if !bytes && !room || conn.is_mixed(mine, peer) {
        return None;
    }
    let locks = [&peer.tx_lock, &peer.rx_lock, &peer.bell_lock, &mine.rx_lock, &mine.wait_lock];
    if locks.iter().any(|lock| lock.load(Ordering::Acquire) != 0) {
        return None;
    }
    let bell = peer.bells.load(Ordering::Acquire) != mine.drained.load(Ordering::Relaxed);
    let conn = std::ptr::from_ref(conn) as u64;
    Some(Found { sleep: 0, conn, tail, head, room: !bytes, bell })
}

impl Set {
    /// [`unheard`], for the first connection of this set of which it is so.
    fn unheard(&'static self, w: &'static World) -> Option<Found> {
        let members = self.members.try_lock()?;
        let on = |m: &super::watch::Watched| {
            // In a set that processes share another one may have been told.
            if self.forked.load(Ordering::Relaxed) && !super::shared::is_due(w, m.conn, m.which) {
                return None;
            }
            let (bytes, room) = asked(w, m.conn, &m.conn.sets[m.which]);
            unheard(w, m.conn, bytes, room)
        };
        let mut found = members.warm.iter().find_map(on)?;
        // One doorbell wakes the loop, whichever connection it came by.
        found.bell |= members.warm.iter().any(|m| {
            m.conn.halves(w).is_some_and(|(mine, peer)| {
                peer.bells.load(Ordering::Acquire) != mine.drained.load(Ordering::Relaxed)
            })
        });
        Some(found)
    }
}

/// Whether bytes and room of a connection would be events of a registration now.
fn asked(w: &'static World, conn: &'static Conn, r: &Registration) -> (bool, bool) {
    let flags = r.flags.load(Ordering::Relaxed);
    let Some((_, peer)) = conn.halves(w) else { return (false, false) };
    if flags & reg::DISABLED != 0 {
        return (false, false);
    }
    let events = r.events.load(Ordering::Relaxed);
    let edge = events & ET == 0 || r.seen.load(Ordering::Relaxed) != ring::tail(&peer.tail);
    let bytes = events & (IN | RDNORM) != 0 && edge;
    (bytes, events & (OUT | WRNORM) != 0 && flags & reg::ROOM != 0)
}

/// A set looks at a connection that it had been told of: it must be in it still, for its record may serve another
/// connection, of another thread, as soon as it is not.
pub(super) fn looks_at_a_stranger(set: &Set, conn: &Conn) {
    local::log::line(format_args!(
        "watchdog: set fd {} still looks at a connection (fd {} now) that was taken out of it",
        set.epfd(),
        conn.fd.load(Ordering::Relaxed),
    ));
    // SAFETY: ends the process, which is what is wanted.
    unsafe { libc::abort() };
}

/// What the program's environment says about doorbells that are to be swallowed.
pub(crate) fn configure(drop: Option<&str>) {
    if let Some(every) = drop.and_then(|text| text.parse().ok()) {
        local::watchdog::swallow(every);
    }
}

//! Mappings of files that belong to somebody whom this process does not trust.
//!
//! The owner of a file may make it shorter, or fill its file system: a load or a store where it has no page then raises
//! `SIGBUS`, which ends the process. A process that serves several users must outlive what one of them does, so for
//! ranges that are [watched](watch) a handler of the signal puts zeros over all of the range, private to this process, and
//! notes that the mapping is [spoiled](Foreign::is_spoiled): what it says from then on is nonsense, as a hostile
//! owner's words may be at any time, and whoever reads them checks them already. So does it with a store where only
//! loads are allowed (`SIGSEGV`), which whatever the owner has written there should not bring about.
//!
//! Words of such a mapping are also nobody's to wait for: see [`holds`].
//!
//! The handler is installed on request, by programs that are ours: the library of `shunt run` leaves the signals of
//! its guests alone.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Ranges that can be watched at a time.
pub const RANGES_MAX: usize = 1024;

/// A range that is watched.
#[derive(Debug)]
pub struct Foreign {
    is_taken: AtomicBool,
    start: AtomicUsize,
    /// 0: there is no such range now.
    end: AtomicUsize,
    spoiled: AtomicBool,
}

impl Foreign {
    const fn none() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            spoiled: AtomicBool::new(false),
        }
    }

    /// Whether a page of it was found to be gone.
    #[inline]
    #[must_use]
    pub fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Relaxed)
    }

    fn has(&self, address: usize) -> bool {
        // Acquire: the start. Pairs with `watch`.
        let end = self.end.load(Ordering::Acquire);
        address < end && self.start.load(Ordering::Relaxed) <= address
    }
}

static RANGES: [Foreign; RANGES_MAX] = [const { Foreign::none() }; RANGES_MAX];
/// How many of them were ever taken.
static REACHED: AtomicUsize = AtomicUsize::new(0);

fn found(address: usize) -> Option<&'static Foreign> {
    let reached = REACHED.load(Ordering::Acquire).min(RANGES_MAX);
    RANGES[..reached].iter().find(|range| range.has(address))
}

/// Watches the addresses of a mapping, which must stay until [`unwatch`]. `None`: the system does not let the signals be
/// handled, or there are [`RANGES_MAX`] already.
pub fn watch(range: &Range<usize>) -> Option<&'static Foreign> {
    if !imp::install() {
        return None;
    }
    let take = |one: &&Foreign| !one.is_taken.swap(true, Ordering::AcqRel);
    let (number, one) = RANGES.iter().enumerate().find(|(_, one)| take(one))?;
    one.spoiled.store(false, Ordering::Relaxed);
    one.start.store(range.start, Ordering::Relaxed);
    // Release: the start before it. Pairs with `has`.
    one.end.store(range.end, Ordering::Release);
    REACHED.fetch_max(number + 1, Ordering::Release);
    Some(one)
}

/// Ends that, before the mapping goes.
pub fn unwatch(one: &Foreign) {
    one.end.store(0, Ordering::Release);
    one.is_taken.store(false, Ordering::Release);
}

/// Whether a word lies in a mapping that is watched: what it says of a lock may be a lie, and waiting for it be for ever.
#[cold]
#[must_use]
pub fn holds<T>(word: &T) -> bool {
    found(std::ptr::from_ref(word).addr()).is_some()
}

mod imp {
    use std::ffi::{c_int, c_void};

    use super::{Foreign, OnceLock, Ordering, found};

    /// What handled the signals before; there once they were installed.
    static BEFORE: OnceLock<Option<[Action; 2]>> = OnceLock::new();
    const SIGNALS: [c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];
    /// Of `SIGSEGV`: the mapping does not allow it.
    const SEGV_ACCERR: c_int = 2;

    /// An action as `sigaction(2)` tells it.
    struct Action(libc::sigaction);

    // SAFETY: the action of a signal belongs to the process, not to a thread; its pointers are to functions.
    unsafe impl Send for Action {}
    // SAFETY: the same; it is only read.
    unsafe impl Sync for Action {}

    type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

    pub(super) fn install() -> bool {
        BEFORE.get_or_init(handle).is_some()
    }

    fn handle() -> Option<[Action; 2]> {
        // Of a signal that is not handled after all the other one is handled as before.
        Some([handle_one(SIGNALS[0])?, handle_one(SIGNALS[1])?])
    }

    fn handle_one(signal: c_int) -> Option<Action> {
        // SAFETY: all zeros is a valid action.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        let action = ours();
        // SAFETY: the handler touches nothing but atomics and ranges that are watched.
        let done = unsafe { libc::sigaction(signal, &raw const action, &raw mut before) };
        (done == 0).then_some(Action(before))
    }

    /// What we install.
    fn ours() -> libc::sigaction {
        // SAFETY: all zeros is a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        action
    }

    /// After a call of who had the signal before, for what somebody sent. Rust's own takes it for the end and leaves the
    /// signal to the kernel; but it is over, and what is watched is there still.
    fn keep(signal: c_int) {
        // SAFETY: all zeros is a valid action.
        let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only asks.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
        let ours = ours();
        if asked != 0 || now.sa_sigaction != ours.sa_sigaction {
            // SAFETY: as when it was installed first.
            unsafe { libc::sigaction(signal, &raw const ours, std::ptr::null_mut()) };
        }
    }

    /// Puts memory there that is nobody's: all at once, so that no number of faults uses up the mappings that a process may
    /// have. A system call and no more, as befits a handler. Another thread may have done so just before, and have written
    /// there: that was for nobody to read.
    fn replace(range: &Foreign, signal: c_int) -> bool {
        let start = range.start.load(Ordering::Relaxed);
        let bytes = range.end.load(Ordering::Relaxed).saturating_sub(start);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is a mapping that is watched, of a file whose bytes nobody has a reference to but as
        // atomics, which zeros are as good for.
        let mapped = unsafe { libc::mmap(at, bytes, protection, flags, -1, 0) };
        if mapped != libc::MAP_FAILED || signal != libc::SIGBUS {
            return mapped != libc::MAP_FAILED;
        }
        // A system that counts what may be written (`vm.overcommit_memory=2`) has no room for as much, and need not: who only
        // looks goes on. Who writes comes here again, by the other signal, and is ended as if there were no handler.
        // SAFETY: the same.
        let mapped = unsafe { libc::mmap(at, bytes, libc::PROT_READ, flags, -1, 0) };
        mapped != libc::MAP_FAILED
    }

    unsafe extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gives a valid one.
        let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
        let sent = code <= 0;
        let is_ours = !sent && (signal == libc::SIGBUS || code == SEGV_ACCERR);
        if is_ours && let Some(range) = found(address) {
            range.spoiled.store(true, Ordering::Relaxed);
            if replace(range, signal) {
                return;
            }
        }
        let Some(Some(all)) = BEFORE.get() else { return };
        let Some((_, Action(before))) = SIGNALS.iter().zip(all).find(|(n, _)| **n == signal) else {
            return;
        };
        match before.sa_sigaction {
            libc::SIG_IGN if sent => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // A fault comes again at once, and is then the kernel's to end the process by.
                // SAFETY: an action that was installed before.
                unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
                if sent {
                    // SAFETY: to this very thread; it comes when this handler has ended.
                    unsafe { libc::raise(signal) };
                }
            }
            theirs => {
                // SAFETY: a function that was installed for this signal. Of one for the number alone the other
                // arguments are in registers that it does not look at.
                let theirs =
                    unsafe { std::mem::transmute::<*const (), Handler>(theirs as *const ()) };
                // SAFETY: what the kernel has given us, and would have given it.
                unsafe { theirs(signal, info, context) };
                if sent {
                    keep(signal);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::call;

    const BYTES: usize = 64 << 10;

    /// A mapping of a file that can be made shorter, which stays.
    fn mapping() -> (i32, *mut u8) {
        // SAFETY: a name that ends.
        let fd = unsafe { libc::memfd_create(c"foreign".as_ptr(), libc::MFD_CLOEXEC) };
        call::ftruncate(fd, BYTES as i64).unwrap();
        let at = call::mmap_shared(fd, BYTES, libc::PROT_READ | libc::PROT_WRITE).unwrap();
        (fd, at)
    }

    fn word(at: *mut u8, offset: usize) -> &'static AtomicUsize {
        // SAFETY: inside of a mapping that stays, and aligned.
        unsafe { &*at.add(offset).cast() }
    }

    #[test]
    fn what_was_taken_away_is_zeros_and_the_process_lives() {
        let (fd, at) = mapping();
        let range = at.addr()..at.addr() + BYTES;
        let foreign = watch(&range).unwrap();
        word(at, 0).store(7, Ordering::Relaxed);
        word(at, 40_000).store(8, Ordering::Relaxed);
        assert!(holds(word(at, 8)) && !holds(&0_u32) && !foreign.is_spoiled());
        call::ftruncate(fd, 4096).unwrap();
        assert_eq!(word(at, 40_000).load(Ordering::Relaxed), 0);
        assert!(foreign.is_spoiled());
        word(at, 50_000).store(9, Ordering::Relaxed);
        assert_eq!(word(at, 50_000).load(Ordering::Relaxed), 9, "it is ours");
        assert_eq!(word(at, 0).load(Ordering::Relaxed), 0, "it is all ours");
        // And another one is not spoiled with it.
        let (_, other) = mapping();
        let other_at = other.expose_provenance();
        let other = watch(&(other_at..other_at + BYTES)).unwrap();
        assert!(!other.is_spoiled());
        unwatch(other);
        assert!(!holds(word(std::ptr::with_exposed_provenance_mut(other_at), 0)));
    }

    #[test]
    fn a_store_where_only_loads_are_allowed_spoils_it_too() {
        let (_, at) = mapping();
        let foreign = watch(&(at.addr()..at.addr() + BYTES)).unwrap();
        call::mprotect(at, BYTES, libc::PROT_READ).unwrap();
        word(at, 8).store(1, Ordering::Relaxed);
        assert!(foreign.is_spoiled());
    }

    /// In a process of its own, whose signals nobody else uses.
    #[test]
    fn signals_that_were_sent_leave_it_watched() {
        if std::env::var_os("SHUNT_FOREIGN_SENT").is_some() {
            let (fd, at) = mapping();
            let foreign = watch(&(at.addr()..at.addr() + BYTES)).unwrap();
            for signal in [libc::SIGBUS, libc::SIGSEGV] {
                call::raise(signal);
            }
            call::ftruncate(fd, 0).unwrap();
            assert_eq!(word(at, 0).load(Ordering::Relaxed), 0);
            assert!(foreign.is_spoiled());
            return;
        }
        let itself = std::env::current_exe().unwrap();
        let mut child = Command::new(itself);
        child.args(["foreign::tests::signals_that_were_sent", "--test-threads=1"]);
        let output = child.env("SHUNT_FOREIGN_SENT", "1").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// In a process of its own, which it ends.
    #[test]
    fn what_nobody_watches_ends_the_process_as_ever() {
        use std::os::unix::process::ExitStatusExt;
        if std::env::var_os("SHUNT_FOREIGN_DIES").is_some() {
            let (_, watched) = mapping();
            watch(&(watched.addr()..watched.addr() + BYTES)).unwrap();
            let (fd, at) = mapping();
            call::ftruncate(fd, 0).unwrap();
            std::process::exit(i32::try_from(word(at, 0).load(Ordering::Relaxed)).unwrap());
        }
        let itself = std::env::current_exe().unwrap();
        let mut child = Command::new(itself);
        child.args(["foreign::tests::what_nobody_watches", "--test-threads=1"]);
        let ended = child.env("SHUNT_FOREIGN_DIES", "1").output().unwrap().status;
        assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended:?}");
    }
}

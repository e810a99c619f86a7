//! Mappings of files that belong to somebody whom this process does not trust.
//!
//! The owner of a file may make it shorter, or fill its file system: a load or a store where it has no page then raises
//! `SIGBUS`, which ends the process. A process that serves several users must outlive what one of them does, so in
//! ranges that were [watched](watch) a handler of the signal puts a page of zeros there, private to this process, and
//! notes that the mapping is [spoiled](Foreign::is_spoiled): what it says from then on is nonsense, as a hostile
//! owner's words may be at any time, and whoever reads them checks them already.
//!
//! Words of such a mapping are also nobody's to wait for: see [`holds`].
//!
//! The handler is installed on request, by programs that are ours: the library of `shunt run` leaves the signals of
//! its guests alone.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Ranges that can be watched in the life of a process.
pub const RANGES_MAX: usize = 512;

/// A range that is watched, and for as long as the process lives.
#[derive(Debug)]
pub struct Foreign {
    start: AtomicUsize,
    /// 0: there is no such range yet.
    end: AtomicUsize,
    spoiled: AtomicBool,
}

impl Foreign {
    const fn none() -> Self {
        Self {
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
/// How many of them were taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

fn found(address: usize) -> Option<&'static Foreign> {
    let taken = TAKEN.load(Ordering::Acquire).min(RANGES_MAX);
    RANGES[..taken].iter().find(|range| range.has(address))
}

/// Watches the addresses of a mapping, which must stay for as long as the process lives. `None`: the system does not let
/// the signal be handled, or there are [`RANGES_MAX`] already.
pub fn watch(range: &Range<usize>) -> Option<&'static Foreign> {
    if !imp::install() {
        return None;
    }
    let one = RANGES.get(TAKEN.fetch_add(1, Ordering::AcqRel))?;
    one.start.store(range.start, Ordering::Relaxed);
    // Release: the start before it. Pairs with `has`.
    one.end.store(range.end, Ordering::Release);
    Some(one)
}

/// Whether a word lies in a mapping that is watched: what it says of a lock may be a lie, and waiting for it be for ever.
#[cold]
#[must_use]
pub fn holds<T>(word: &T) -> bool {
    found(std::ptr::from_ref(word).addr()).is_some()
}

mod imp {
    use std::ffi::{c_int, c_void};

    use super::{AtomicUsize, OnceLock, Ordering, found};

    /// What handled the signal before; there once it was installed.
    static BEFORE: OnceLock<Option<Action>> = OnceLock::new();

    /// An action as `sigaction(2)` tells it.
    struct Action(libc::sigaction);

    // SAFETY: the action of a signal belongs to the process, not to a thread; its pointers are to functions.
    unsafe impl Send for Action {}
    // SAFETY: the same; it is only read.
    unsafe impl Sync for Action {}

    /// Bytes of a page here.
    static PAGE: AtomicUsize = AtomicUsize::new(4096);

    type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

    pub(super) fn install() -> bool {
        BEFORE.get_or_init(handle).is_some()
    }

    fn handle() -> Option<Action> {
        // SAFETY: asks for a number.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if let Ok(bytes @ 1..) = usize::try_from(bytes) {
            PAGE.store(bytes, Ordering::Relaxed);
        }
        // SAFETY: all zeros is a valid action.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: all zeros is a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler touches nothing but atomics and pages of ranges that are watched.
        let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
        (done == 0).then_some(Action(before))
    }

    /// Puts a page there that is nobody's. A system call and no more, as befits a handler. Another thread may have done
    /// so just before, and have written there: that was for nobody to read.
    fn replace(address: usize) -> bool {
        let bytes = PAGE.load(Ordering::Relaxed);
        let page = address & !(bytes - 1);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = std::ptr::with_exposed_provenance_mut(page);
        // SAFETY: the page lies in a mapping that is watched, of a file whose bytes nobody has a reference to but as
        // atomics, which zeros are as good for.
        let mapped = unsafe { libc::mmap(at, bytes, protection, flags, -1, 0) };
        mapped != libc::MAP_FAILED
    }

    unsafe extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gives a valid one.
        let (sent, address) = unsafe { ((*info).si_code <= 0, (*info).si_addr().addr()) };
        if !sent && let Some(range) = found(address) {
            range.spoiled.store(true, Ordering::Relaxed);
            if replace(address) {
                return;
            }
        }
        let Some(Some(Action(before))) = BEFORE.get() else { return };
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
        assert_eq!(word(at, 0).load(Ordering::Relaxed), 7, "what is there stays");
        // And another one is not spoiled with it.
        let (_, other) = mapping();
        let other = watch(&(other.addr()..other.addr() + BYTES)).unwrap();
        assert!(!other.is_spoiled());
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

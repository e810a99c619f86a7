//! Waiting for many descriptors at once (`epoll`), and a descriptor that another thread or process makes
//! readable (`eventfd`).
//!
//! Sets of descriptors are libc's, so that sockets whose bytes a library in front of libc carries
//! ([`crate::stream`]) can be waited for with others.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::call::{self, Failure};
use crate::interface::own;

/// What to be told of. Errors and hang-ups are told always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// There is something to read.
    pub read: bool,
    /// There is room to write.
    pub write: bool,
    /// The peer will send no more.
    pub peer_shut: bool,
    /// Told once for each time that it begins, and not for as long as it lasts.
    pub once: bool,
}

impl Interest {
    /// To be told of nothing but errors and hang-ups.
    pub const NOTHING: Self = Self { read: false, write: false, peer_shut: false, once: false };
    /// To be told when there is something to read.
    pub const READ: Self = Self { read: true, ..Self::NOTHING };
    /// To be told when there is room to write.
    pub const WRITE: Self = Self { write: true, ..Self::NOTHING };

    fn bits(self) -> u32 {
        let bit = |on: bool, bit: i32| if on { bit } else { 0 };
        let bits = bit(self.read, libc::EPOLLIN)
            | bit(self.write, libc::EPOLLOUT)
            | bit(self.peer_shut, libc::EPOLLRDHUP)
            | bit(self.once, libc::EPOLLET);
        bits.cast_unsigned()
    }
}

/// What has happened to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number that it was added with.
    pub token: u64,
    /// There is something to read, or the end of it.
    pub read: bool,
    /// There is room to write.
    pub write: bool,
    /// The peer will send no more.
    pub peer_shut: bool,
    /// Nothing goes any more in either direction, or there is an error to be read.
    pub broken: bool,
}

/// Room for what one wait may tell.
pub struct Events {
    list: Box<[libc::epoll_event]>,
    count: usize,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Events {
    /// Room for `most` events, at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let list = vec![libc::epoll_event { events: 0, u64: 0 }; most.max(1)];
        Self { list: list.into_boxed_slice(), count: 0 }
    }

    /// What the last wait told.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.list[..self.count].iter().map(|event| {
            let bits = event.events.cast_signed();
            Event {
                token: event.u64,
                read: bits & libc::EPOLLIN != 0,
                write: bits & libc::EPOLLOUT != 0,
                peer_shut: bits & libc::EPOLLRDHUP != 0,
                broken: bits & (libc::EPOLLHUP | libc::EPOLLERR) != 0,
            }
        })
    }

    fn room(&self) -> i32 {
        i32::try_from(self.list.len()).unwrap_or(i32::MAX)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Descriptors to wait for, each with a number of the caller's.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// One that waits for nothing yet.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn new() -> Result<Self, Failure> {
        // SAFETY: a plain number.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        answer(fd).map(|_| Self(own(fd))).map_err(Failure::at("make an epoll set"))
    }

    /// Waits for `fd` too, from now on until it is closed or removed.
    ///
    /// # Errors
    ///
    /// The errno: `EEXIST` if it is there already, `EPERM` if it is a file that cannot be waited for.
    pub fn add(&self, fd: &impl AsRawFd, interest: Interest, token: u64) -> Result<(), Failure> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), interest, token, "wait for a descriptor")
    }

    /// Changes what to be told of `fd`.
    ///
    /// # Errors
    ///
    /// The errno: `ENOENT` if it is not there.
    pub fn change(&self, fd: &impl AsRawFd, interest: Interest, token: u64) -> Result<(), Failure> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), interest, token, "wait otherwise")
    }

    /// Waits for `fd` no more. One that is not there is no error.
    pub fn remove(&self, fd: &impl AsRawFd) {
        let _ = self.call(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0);
    }

    fn control(
        &self,
        op: i32,
        fd: RawFd,
        interest: Interest,
        token: u64,
        step: &'static str,
    ) -> Result<(), Failure> {
        self.call(op, fd, interest.bits(), token).map_err(Failure::at(step))
    }

    fn call(&self, op: i32, fd: RawFd, events: u32, token: u64) -> call::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: the kernel reads one event.
        answer(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &raw mut event) }).map(drop)
    }

    /// Waits until something happens, at most `most_ns` nanoseconds (`None`: without end), never less. Where the
    /// system cannot do that (Linux before 5.11, libc before 2.35), part of a millisecond counts as a whole one. A
    /// signal ends the wait early, with nothing.
    pub fn wait(&self, events: &mut Events, most_ns: Option<u64>) {
        let told = match most_ns {
            // What there is now, or whatever comes: no need of a finer clock.
            None | Some(0) => None,
            Some(ns) => self.wait_finely(events, ns),
        };
        let told = told.unwrap_or_else(|| self.wait_whole_ms(events, most_ns));
        // EINTR is the one error that can be: the descriptor and the room are ours.
        events.count = usize::try_from(told).unwrap_or(0);
    }

    fn wait_whole_ms(&self, events: &mut Events, most_ns: Option<u64>) -> i32 {
        let ms = most_ns.map_or(-1, |ns| i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX));
        let room = events.room();
        // SAFETY: there is room for so many events.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.list.as_mut_ptr(), room, ms) }
    }

    /// libc's answer; `None`: the system has no such call.
    fn wait_finely(&self, events: &mut Events, ns: u64) -> Option<i32> {
        let wait = fine_wait()?;
        let seconds = libc::time_t::try_from(ns / 1_000_000_000).unwrap_or(libc::time_t::MAX);
        // Less than 10^9.
        let rest = libc::c_long::try_from(ns % 1_000_000_000).unwrap_or(0);
        let most = libc::timespec { tv_sec: seconds, tv_nsec: rest };
        let (fd, room) = (self.0.as_raw_fd(), events.room());
        // SAFETY: there is room for so many events; the time is read, and no signals are masked.
        let told =
            unsafe { wait(fd, events.list.as_mut_ptr(), room, &raw const most, std::ptr::null()) };
        // Filters of containers and services say EPERM, or what they were told to, of calls that they do not know.
        let is_absent = told < 0 && !matches!(answer(told), Err(libc::EINTR));
        if is_absent {
            FINE_WAIT_ABSENT.store(true, Ordering::Relaxed);
        }
        (!is_absent).then_some(told)
    }
}

/// `epoll_pwait2`.
type FineWait = unsafe extern "C" fn(
    libc::c_int,
    *mut libc::epoll_event,
    libc::c_int,
    *const libc::timespec,
    *const libc::sigset_t,
) -> libc::c_int;

/// The kernel has said that it has no such call. Whoever does not see it yet asks once more.
static FINE_WAIT_ABSENT: AtomicBool = AtomicBool::new(false);

/// libc's `epoll_pwait2`, or that of a library in front of it. It is looked for when it is needed, because programs
/// that are linked to it would not start where libc is older.
fn fine_wait() -> Option<FineWait> {
    static FOUND: OnceLock<Option<FineWait>> = OnceLock::new();
    if FINE_WAIT_ABSENT.load(Ordering::Relaxed) {
        return None;
    }
    *FOUND.get_or_init(|| {
        // SAFETY: a name that ends; asking changes nothing.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"epoll_pwait2".as_ptr()) };
        // SAFETY: what has this name is this function, or it is null, which is `None`.
        unsafe { std::mem::transmute::<*mut libc::c_void, Option<FineWait>>(at) }
    })
}

/// libc's answer, or the errno.
fn answer(done: i32) -> call::Result<i32> {
    if done < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    Ok(done)
}

/// Becomes readable when it is rung, until that is heard.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// One that has not been rung.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn new() -> Result<Self, Failure> {
        call::eventfd(0).map(|fd| Self(own(fd))).map_err(Failure::at("make an event descriptor"))
    }

    /// Rings. From any thread; never waits.
    pub fn ring(&self) {
        // EAGAIN: it has been rung 2^64 - 2 times and is readable.
        let _ = call::write(self.0.as_raw_fd(), &1u64.to_ne_bytes());
    }

    /// Whether it was rung since the last time; it is silent then.
    #[must_use]
    pub fn hear(&self) -> bool {
        let mut count = [0; 8];
        call::read(self.0.as_raw_fd(), &mut count).is_ok()
    }

    /// Another descriptor of the same bell.
    ///
    /// # Errors
    ///
    /// The errno: `EMFILE` when there are no more descriptors.
    pub fn another(&self) -> Result<OwnedFd, Failure> {
        call::dup_above(self.0.as_raw_fd(), 3).map(own).map_err(Failure::at("copy a descriptor"))
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Bell {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_heard_once_however_often_it_rang() {
        let (poller, bell) = (Poller::new().unwrap(), Bell::new().unwrap());
        let mut events = Events::new(4);
        poller.add(&bell, Interest::READ, 7).unwrap();
        poller.wait(&mut events, Some(0));
        assert!(events.is_empty() && !bell.hear());
        let other = Bell::from(bell.another().unwrap());
        other.ring();
        bell.ring();
        poller.wait(&mut events, None);
        let told: Vec<_> = events.iter().map(|e| (e.token, e.read, e.broken)).collect();
        assert_eq!(told, [(7, true, false)]);
        assert!(bell.hear() && !other.hear());
    }

    #[test]
    fn a_wait_is_no_shorter_than_said() {
        let (poller, mut events) = (Poller::new().unwrap(), Events::new(1));
        for ns in [1, 1_500_000] {
            let before = call::now_ns();
            poller.wait(&mut events, Some(ns));
            assert!(call::now_ns() - before >= ns);
            let before = call::now_ns();
            assert!(poller.wait_whole_ms(&mut events, Some(ns)) == 0);
            assert!(call::now_ns() - before >= ns);
        }
    }

    #[test]
    fn a_wait_of_less_than_a_millisecond_is_one() {
        if fine_wait().is_none() {
            println!("skipped: no epoll_pwait2 here");
            return;
        }
        let (poller, mut events) = (Poller::new().unwrap(), Events::new(1));
        // Many, because others may have this CPU during most of them.
        let took = (0..10_000).map(|_| {
            let before = call::now_ns();
            poller.wait(&mut events, Some(50_000));
            call::now_ns() - before
        });
        assert!(took.take_while(|ns| *ns >= 1_000_000).count() < 10_000);
    }

    #[test]
    fn who_shuts_and_who_is_gone_is_told() {
        use std::os::unix::net::UnixStream;
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (poller, mut events) = (Poller::new().unwrap(), Events::new(1));
        let interest = Interest { peer_shut: true, ..Interest::NOTHING };
        poller.add(&ours, interest, 1).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        poller.wait(&mut events, None);
        assert!(events.iter().all(|e| e.peer_shut && !e.broken && !e.read));
        poller.change(&ours, Interest { once: true, ..interest }, 3).unwrap();
        for told in [1, 0] {
            poller.wait(&mut events, Some(0));
            assert_eq!(events.len(), told, "it has begun once");
        }
        drop(theirs);
        poller.change(&ours, Interest::WRITE, 2).unwrap();
        poller.wait(&mut events, None);
        assert!(events.iter().all(|e| e.broken && e.token == 2));
        poller.remove(&ours);
        poller.wait(&mut events, Some(0));
        assert_eq!(events.len(), 0);
    }
}

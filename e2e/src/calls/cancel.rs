//! Threads that wait in a call and may be cancelled there.

use super::*;

mod raw {
    //! Cancellation unwinds the thread that is in one of these.
    use super::*;
    unsafe extern "C-unwind" {
        pub(super) fn send(fd: c_int, bytes: *const c_void, len: usize, flags: c_int) -> isize;
        pub(super) fn recv(fd: c_int, bytes: *mut c_void, len: usize, flags: c_int) -> isize;
        pub(super) fn accept(fd: c_int, addr: *mut c_void, len: *mut u32) -> c_int;
        pub(super) fn connect(fd: c_int, addr: *const c_void, len: u32) -> c_int;
        pub(super) fn recvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize;
        pub(super) fn readv(fd: c_int, iov: *const libc::iovec, n: c_int) -> isize;
        pub(super) fn ppoll(
            fds: *mut libc::pollfd,
            n: libc::nfds_t,
            time: *const libc::timespec,
            mask: *const libc::sigset_t,
        ) -> c_int;
        pub(super) fn poll(fds: *mut libc::pollfd, n: libc::nfds_t, ms: c_int) -> c_int;
        pub(super) fn select(
            n: c_int,
            read: *mut libc::fd_set,
            write: *mut libc::fd_set,
            except: *mut libc::fd_set,
            time: *mut libc::timeval,
        ) -> c_int;
        pub(super) fn epoll_wait(
            set: c_int,
            events: *mut libc::epoll_event,
            n: c_int,
            ms: c_int,
        ) -> c_int;
    }
}

/// The call in which a thread waits, for ever.
#[derive(Clone, Copy, Debug)]
pub enum Waits {
    /// `send` of blocks, until there is no room.
    Send,
    /// `accept`.
    Accept,
    /// `connect` to this port of this host.
    Connect(u16),
    /// `recvmsg` of a few bytes.
    Message,
    /// `readv` of a few bytes.
    Readv,
    /// `ppoll` for bytes.
    Ppoll,
    /// `poll` for bytes.
    Poll,
    /// `select` for bytes.
    Select,
    /// `epoll_wait`; the descriptor is the set's.
    Epoll,
    /// `recv` that does not wait, again and again.
    RecvNow,
    /// `send` of a few bytes that does not wait, again and again.
    SendNow,
    /// `poll` for bytes that does not wait, again and again.
    PollNow,
    /// `select` likewise.
    SelectNow,
    /// `epoll_wait` likewise; the descriptor is the set's.
    EpollNow,
}

/// What the thread needs: it owns nothing, for cancellation may not run what Rust would run.
struct Job {
    fd: c_int,
    waits: Waits,
    addr: libc::sockaddr_storage,
    addr_len: u32,
    sent: AtomicUsize,
    thread: AtomicI32,
}

static BLOCK: [u8; 64 << 10] = [b'c'; 64 << 10];

extern "C-unwind" fn wait_in_call(job: *mut c_void) -> *mut c_void {
    let job = job.cast_const().cast::<Job>();
    // SAFETY: the job lives as long as the process.
    let (fd, waits) = unsafe { ((*job).fd, (*job).waits) };
    // SAFETY: the same.
    unsafe { (*job).thread.store(thread_id(), Ordering::SeqCst) };
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let mut bytes = [0u8; 16];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut set = MaybeUninit::<libc::fd_set>::zeroed();
    // SAFETY: buffers with their true lengths that live through the calls; the frame has nothing to
    // drop when cancellation unwinds it.
    unsafe {
        let _ = match waits {
            Waits::Send => loop {
                let n = raw::send(fd, BLOCK.as_ptr().cast(), BLOCK.len(), libc::MSG_NOSIGNAL);
                if n < 0 {
                    break n;
                }
                (*job).sent.fetch_add(n as usize, Ordering::SeqCst);
            },
            Waits::Accept => raw::accept(fd, null_mut(), null_mut()) as isize,
            Waits::Connect(_) => {
                raw::connect(fd, (&raw const (*job).addr).cast(), (*job).addr_len) as isize
            }
            Waits::Message => {
                let mut message = MaybeUninit::<libc::msghdr>::zeroed();
                (*message.as_mut_ptr()).msg_iov = &raw mut part;
                (*message.as_mut_ptr()).msg_iovlen = 1;
                raw::recvmsg(fd, message.as_mut_ptr(), 0)
            }
            Waits::Readv => raw::readv(fd, &raw const part, 1),
            Waits::Ppoll => raw::ppoll(&raw mut one, 1, null(), null()) as isize,
            Waits::Poll => raw::poll(&raw mut one, 1, -1) as isize,
            Waits::Select => {
                libc::FD_SET(fd, set.as_mut_ptr());
                let read = set.as_mut_ptr();
                raw::select(fd + 1, read, null_mut(), null_mut(), null_mut()) as isize
            }
            Waits::Epoll => raw::epoll_wait(fd, &raw mut event, 1, -1) as isize,
            Waits::RecvNow => loop {
                raw::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT);
            },
            Waits::SendNow => loop {
                raw::send(fd, BLOCK.as_ptr().cast(), 16, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
            },
            Waits::PollNow => loop {
                raw::poll(&raw mut one, 1, 0);
            },
            Waits::SelectNow => loop {
                libc::FD_SET(fd, set.as_mut_ptr());
                let (read, mut none) = (set.as_mut_ptr(), libc::timeval { tv_sec: 0, tv_usec: 0 });
                raw::select(fd + 1, read, null_mut(), null_mut(), &raw mut none);
            },
            Waits::EpollNow => loop {
                raw::epoll_wait(fd, &raw mut event, 1, 0);
            },
        };
    }
    null_mut()
}

/// The number of the calling thread, for [`until_asleep`].
#[must_use]
pub fn thread_id() -> i32 {
    // SAFETY: cannot fail.
    unsafe { libc::gettid() }
}

/// Waits until a thread of ours, whose number is there once it runs, sleeps and goes on sleeping.
///
/// # Panics
///
/// When it does not within ten seconds.
pub fn until_asleep(thread: &AtomicI32) {
    let begun = std::time::Instant::now();
    let mut quiet = 0;
    while quiet < 5 {
        assert!(begun.elapsed() < Duration::from_secs(10), "the thread does not wait");
        std::thread::sleep(Duration::from_millis(3));
        let path = format!("/proc/self/task/{}/stat", thread.load(Ordering::SeqCst));
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        let asleep = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'));
        quiet = if asleep { quiet + 1 } else { 0 };
    }
}

/// A thread that waits in a call.
#[derive(Debug)]
pub struct Waiter {
    thread: libc::pthread_t,
    job: &'static Job,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} on {}", self.waits, self.fd)
    }
}

impl Waiter {
    /// Starts it.
    pub fn start(fd: c_int, waits: Waits) -> Result<Self, i32> {
        let port = if let Waits::Connect(port) = waits { port } else { 0 };
        let (addr, addr_len) = address::storage(address::there(), port);
        let sent = AtomicUsize::new(0);
        let job: &'static Job =
            Box::leak(Box::new(Job { fd, waits, addr, addr_len, sent, thread: AtomicI32::new(0) }));
        let mut thread = 0;
        let argument = std::ptr::from_ref(job).cast_mut().cast();
        // SAFETY: the function takes a job as its argument, and this one stays.
        let e = unsafe { c::pthread_create(&raw mut thread, null(), wait_in_call, argument) };
        if e == 0 { Ok(Self { thread, job }) } else { Err(e) }
    }

    /// Waits until it sleeps in its call.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn until_asleep(&self) {
        until_asleep(&self.job.thread);
    }

    /// How many bytes its finished sends have taken.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.job.sent.load(Ordering::SeqCst)
    }

    /// `pthread_cancel`, `pthread_join`: whether it ended by cancellation.
    #[must_use]
    pub fn cancel(self) -> bool {
        let mut value = null_mut();
        // SAFETY: the thread is joined once, here.
        unsafe {
            libc::pthread_cancel(self.thread);
            libc::pthread_join(self.thread, &raw mut value);
        }
        // PTHREAD_CANCELED is (void *) -1.
        value.addr() == usize::MAX
    }
}

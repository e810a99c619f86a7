//! A program that leaves a call by `siglongjmp` out of a signal handler, as old programs end what takes
//! too long: nothing of the frames in between is unwound.

use super::*;

/// Room for glibc's `sigjmp_buf`, of any machine.
#[repr(C, align(16))]
struct Saved(std::cell::UnsafeCell<[u64; 64]>);

// SAFETY: the guests jump in their only thread.
unsafe impl Sync for Saved {}

static SAVED: Saved = Saved(std::cell::UnsafeCell::new([0; 64]));

mod raw {
    use super::*;
    unsafe extern "C" {
        pub(super) fn __sigsetjmp(saved: *mut Saved, mask: c_int) -> c_int;
        pub(super) fn siglongjmp(saved: *mut Saved, value: c_int) -> !;
        pub(super) fn setitimer(
            which: c_int,
            new: *const libc::itimerval,
            old: *mut libc::itimerval,
        ) -> c_int;
    }
}

/// What a call needs: it owns nothing, for a jump drops nothing.
struct Job {
    fd: c_int,
    call: Left,
}

/// The call that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// `recv` of 9 bytes.
    Recv,
    /// `recv` of 9 bytes with `MSG_WAITALL`.
    WaitAll,
    /// `send` of blocks, until there is no room.
    Send,
    /// `poll` for bytes.
    Poll,
    /// `select` for bytes.
    Select,
    /// `epoll_wait`; the descriptor is the set's.
    Epoll,
}

static BLOCK: [u8; 64 << 10] = [b'j'; 64 << 10];

extern "C" fn in_call(job: *const Job) {
    let mut bytes = [0u8; 9];
    let at = bytes.as_mut_ptr().cast::<c_void>();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let mut set = MaybeUninit::<libc::fd_set>::zeroed();
    // SAFETY: buffers with their true lengths that live through the calls; the frame has nothing to drop
    // when it is jumped over.
    unsafe {
        let Job { fd, call } = *job;
        let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        match call {
            Left::Recv => drop(libc::recv(fd, at, 9, 0)),
            Left::WaitAll => drop(libc::recv(fd, at, 9, libc::MSG_WAITALL)),
            Left::Send => {
                while libc::send(fd, BLOCK.as_ptr().cast(), BLOCK.len(), libc::MSG_NOSIGNAL) > 0 {}
            }
            Left::Poll => drop(libc::poll(&raw mut one, 1, -1)),
            Left::Select => {
                libc::FD_SET(fd, set.as_mut_ptr());
                let read = set.as_mut_ptr();
                libc::select(fd + 1, read, null_mut(), null_mut(), null_mut());
            }
            Left::Epoll => drop(libc::epoll_wait(fd, &raw mut event, 1, -1)),
        }
    }
}

extern "C" fn leave(_signal: c_int) {
    // SAFETY: the frame that saved it has not returned: the timer is off whenever it is not there.
    unsafe { raw::siglongjmp(SAVED.0.get().cast(), 1) }
}

/// Calls `work(job)`; 1 if it was left by a jump, 0 if it returned.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn may_leave(
    saved: *mut Saved,
    work: extern "C" fn(*const Job),
    job: *const Job,
) -> c_int {
    std::arch::naked_asm!(
        "sub rsp, 24",
        "mov [rsp], rsi",
        "mov [rsp + 8], rdx",
        "mov esi, 1",
        "call qword ptr [rip + {set}@GOTPCREL]",
        "test eax, eax",
        "jne 2f",
        "mov rdi, [rsp + 8]",
        "call qword ptr [rsp]",
        "xor eax, eax",
        "2:",
        "add rsp, 24",
        "ret",
        set = sym raw::__sigsetjmp,
    )
}

/// Calls `work(job)`; 1 if it was left by a jump, 0 if it returned.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn may_leave(
    saved: *mut Saved,
    work: extern "C" fn(*const Job),
    job: *const Job,
) -> c_int {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "mov x29, sp",
        "stp x1, x2, [sp, #16]",
        "mov w1, #1",
        "bl {set}",
        "cbnz w0, 2f",
        "ldp x1, x0, [sp, #16]",
        "blr x1",
        "mov w0, #0",
        "2:",
        "ldp x29, x30, [sp], #32",
        "ret",
        set = sym raw::__sigsetjmp,
    )
}

fn set_timer(after: Duration) {
    let value =
        libc::timeval { tv_sec: after.as_secs() as i64, tv_usec: i64::from(after.subsec_micros()) };
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let new = libc::itimerval { it_interval: never, it_value: value };
    // SAFETY: a valid place.
    unsafe { raw::setitimer(libc::ITIMER_REAL as c_int, &raw const new, null_mut()) };
}

/// Makes a call that waits for ever and leaves it by a jump after this time; `true`: it was left.
pub fn left_after(after: Duration, fd: c_int, call: Left) -> bool {
    let mut action = zero!(libc::sigaction);
    action.sa_sigaction = leave as *const () as usize;
    // SAFETY: a valid action.
    unsafe { libc::sigaction(libc::SIGALRM, &raw const action, null_mut()) };
    let job = Job { fd, call };
    set_timer_inside(after, &job)
}

/// [`may_leave`] with the timer running.
fn set_timer_inside(after: Duration, job: &Job) -> bool {
    // A timer that ends before the place is saved would jump to nowhere: it starts inside.
    struct Timed<'a> {
        job: &'a Job,
        after: Duration,
    }
    extern "C" fn timed(job: *const Job) {
        let timed = job.cast::<Timed<'_>>();
        // SAFETY: made just below, and alive.
        let (job, after) = unsafe { (std::ptr::from_ref((*timed).job), (*timed).after) };
        set_timer(after);
        in_call(job);
    }
    let with = Timed { job, after };
    // SAFETY: `timed` gets what it casts to.
    let left = unsafe { may_leave(SAVED.0.get().cast(), timed, (&raw const with).cast()) };
    set_timer(Duration::ZERO);
    left == 1
}

//! io_uring as liburing has it: a ring for files is none of our business; once a ring is to work on a socket, or on an event
//! set of ours, everything is on TCP.
//!
//! liburing makes its system calls past libc, but what is handed to the kernel by them lies in the ring, and is handed over
//! by one of few functions. So each of these looks at what is new in the ring first. A ring that is made past liburing
//! (`syscall`) cannot be looked at: there is none (see [`super::process`]); nor can one that the program maps by itself.

use super::*;
use crate::symbols;

/// liburing's `struct io_uring`, of the versions that are called `liburing.so.2`.
#[repr(C)]
pub struct Ring {
    queue: Queue,
    completions: [u64; 11],
    flags: c_uint,
    fd: c_int,
}

/// Its `struct io_uring_sq`.
#[repr(C)]
struct Queue {
    shared: [*mut c_uint; 2],
    mask: *const c_uint,
    more: [*mut c_uint; 4],
    entries: *const Entry,
    /// The first that the kernel has not been told of.
    head: c_uint,
    /// Behind the last that the program has filled in.
    tail: c_uint,
    size: usize,
    at: *mut c_void,
    cached: [c_uint; 4],
}

/// The kernel's `struct io_uring_sqe`.
#[repr(C)]
struct Entry {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: c_int,
    offset: u64,
    address: *const c_int,
    len: c_uint,
    of_opcode: c_uint,
    user_data: u64,
    buffer: u16,
    personality: u16,
    other_fd: c_int,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<Entry>() == 64 && std::mem::offset_of!(Ring, flags) == 192);

/// `IORING_SETUP_SQE128`: each entry is followed by as much again.
const LONG: c_uint = 1 << 10;
/// `SPLICE_F_FD_IN_FIXED`: what is spliced from is no descriptor.
const FROM_REGISTERED: c_uint = 1 << 31;

mod opcode {
    pub(super) const NOP: u8 = 0;
    pub(super) const POLL_REMOVE: u8 = 7;
    pub(super) const TIMEOUT: u8 = 11;
    pub(super) const TIMEOUT_REMOVE: u8 = 12;
    pub(super) const ACCEPT: u8 = 13;
    pub(super) const LINK_TIMEOUT: u8 = 15;
    pub(super) const CONNECT: u8 = 16;
    pub(super) const FILES_UPDATE: u8 = 20;
    pub(super) const MADVISE: u8 = 25;
    pub(super) const EPOLL_CTL: u8 = 29;
    pub(super) const SPLICE: u8 = 30;
    pub(super) const PROVIDE_BUFFERS: u8 = 31;
    pub(super) const REMOVE_BUFFERS: u8 = 32;
    pub(super) const TEE: u8 = 33;
    pub(super) const SOCKET: u8 = 45;
    pub(super) const BIND: u8 = 56;
    pub(super) const LISTEN: u8 = 57;
    pub(super) const EPOLL_WAIT: u8 = 59;
}

impl Entry {
    /// Whether it works on what we follow, or makes connections past us.
    ///
    /// A descriptor that was registered is not seen here: it was looked at when it was.
    unsafe fn is_ours(&self) -> bool {
        use opcode::*;
        match self.opcode {
            ACCEPT | CONNECT | SOCKET | BIND | LISTEN | EPOLL_CTL | EPOLL_WAIT => true,
            // What these have there is no descriptor.
            NOP | POLL_REMOVE | TIMEOUT | TIMEOUT_REMOVE | LINK_TIMEOUT | MADVISE
            | PROVIDE_BUFFERS | REMOVE_BUFFERS => false,
            // SAFETY: the caller's promise: what is submitted is valid.
            FILES_UPDATE => unsafe { any_ours(self.address, self.len) },
            SPLICE | TEE if self.of_opcode & FROM_REGISTERED == 0 => {
                is_followed(self.fd) || is_followed(self.other_fd)
            }
            _ => is_followed(self.fd),
        }
    }
}

fn is_followed(fd: c_int) -> bool {
    fds::look(fd).is_some()
}

/// Whether there is one of ours among descriptors that are registered.
unsafe fn any_ours(list: *const c_int, n: c_uint) -> bool {
    // SAFETY: the caller's promise: a list of `n`.
    !list.is_null()
        && (0..n as usize).any(|at| is_followed(unsafe { list.add(at).read_unaligned() }))
}

/// Looks at what the program has put into a ring and the kernel has not been told of.
///
/// # Safety
///
/// A ring of liburing's that was made, as its functions ask.
unsafe fn look_over(ring: *const Ring) {
    if life::is_past_rings() {
        return;
    }
    // SAFETY: the caller's promise.
    let Some(ring) = (unsafe { ring.as_ref() }) else { return };
    let queue = &ring.queue;
    if queue.mask.is_null() || queue.entries.is_null() {
        return;
    }
    // SAFETY: mapped for as long as there is the ring; nobody changes it.
    let mask = unsafe { queue.mask.read_volatile() };
    let shift = u32::from(ring.flags & LONG != 0);
    let mut at = queue.head;
    // No more than there are places, whatever head and tail say.
    for _ in 0..=mask {
        if at == queue.tail {
            return;
        }
        let place = ((at & mask) as usize) << shift;
        // SAFETY: a place in the ring, which is the program's until it is submitted, which is now.
        if unsafe { (*queue.entries.add(place)).is_ours() } {
            return life::rings_take_over();
        }
        at = at.wrapping_add(1);
    }
}

/// What liburing answers where there is no io_uring: programs go on without it then. It is better than a
/// ring beside connections whose peers do not answer, and so cannot go back to TCP.
fn no_uring() -> c_int {
    -libc::ENOSYS
}

/// Whether a function of liburing's is of a version whose rings we can look at.
fn is_known(function: *mut c_void) -> bool {
    let path = symbols::object_of(function).map_or(&[][..], std::ffi::CStr::to_bytes);
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let version = name
        .strip_prefix(b"liburing")
        .and_then(|rest| rest.strip_prefix(b"-ffi").unwrap_or(rest).strip_prefix(b".so."));
    version.is_some_and(|version| {
        version.first() == Some(&b'2') && version.get(1).is_none_or(|b| *b == b'.')
    })
}

macro_rules! makes_rings {
    ($($name:ident $text:literal ($($arg:ident: $t:ty),*);)*) => {$(
        /// liburing's, which makes the system call by itself.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $t),*) -> c_int {
            static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            if !is_known(real::at(&AT, $text)) && !life::uring() {
                return no_uring();
            }
            // SAFETY: liburing's contract, handed on.
            unsafe { real::$name($($arg),*) }
        }
    )*};
}

makes_rings! {
    io_uring_queue_init c"io_uring_queue_init" (entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params c"io_uring_queue_init_params" (
        entries: c_uint, ring: *mut c_void, params: *mut c_void
    );
    io_uring_queue_init_mem c"io_uring_queue_init_mem" (
        entries: c_uint, ring: *mut c_void, params: *mut c_void, buf: *mut c_void, size: usize
    );
}

/// The system call itself by a function of liburing's: the program maps and fills the ring on its own.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_setup(entries: c_uint, params: *mut c_void) -> c_int {
    if !life::uring() {
        return no_uring();
    }
    // SAFETY: liburing's contract, handed on.
    unsafe { real::io_uring_setup(entries, params) }
}

macro_rules! submits {
    ($($name:ident($($arg:ident: $t:ty),*);)*) => {$(
        /// liburing's, by which the kernel is told of what is new in the ring.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(ring: *mut Ring, $($arg: $t),*) -> c_int {
            // SAFETY: liburing's contract.
            unsafe { look_over(ring) };
            // SAFETY: the same, handed on.
            unsafe { real::$name(ring.cast(), $($arg),*) }
        }
    )*};
}

submits! {
    io_uring_submit();
    io_uring_submit_and_wait(n: c_uint);
    io_uring_submit_and_get_events();
    io_uring_submit_and_wait_timeout(
        done: *mut c_void, n: c_uint, limit: *mut c_void, mask: *mut sigset_t
    );
    io_uring_submit_and_wait_min_timeout(
        done: *mut c_void, n: c_uint, limit: *mut c_void, least: c_uint, mask: *mut sigset_t
    );
    io_uring_submit_and_wait_reg(done: *mut c_void, n: c_uint, place: c_int);
    io_uring_wait_cqes(done: *mut c_void, n: c_uint, limit: *mut c_void, mask: *mut sigset_t);
    io_uring_wait_cqes_min_timeout(
        done: *mut c_void, n: c_uint, limit: *mut c_void, least: c_uint, mask: *mut sigset_t
    );
    io_uring_wait_cqe_timeout(done: *mut c_void, limit: *mut c_void);
}

macro_rules! enters {
    ($($name:ident($($arg:ident: $t:ty),*);)*) => {$(
        /// liburing's, the system call itself: what is in the ring is not to be seen from here.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_uint, n: c_uint, $($arg: $t),*) -> c_int {
            if n > 0 {
                life::rings_take_over();
            }
            // SAFETY: liburing's contract, handed on.
            unsafe { real::$name(fd, n, $($arg),*) }
        }
    )*};
}

enters! {
    io_uring_enter(least: c_uint, flags: c_uint, mask: *mut sigset_t);
    io_uring_enter2(least: c_uint, flags: c_uint, arg: *mut c_void, size: size_t);
}

macro_rules! registers {
    ($($name:ident($($before:ident: $b:ty,)? [$list:ident, $n:ident] $(, $after:ident: $a:ty)?);)*) => {$(
        /// liburing's, by which descriptors get other numbers in a ring.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            ring: *mut Ring, $($before: $b,)? $list: *const c_int, $($after: $a,)? $n: c_uint
        ) -> c_int {
            // SAFETY: liburing's contract.
            if !life::is_past_rings() && unsafe { any_ours($list, $n) } {
                life::rings_take_over();
            }
            // SAFETY: the same, handed on.
            unsafe { real::$name(ring.cast(), $($before,)? $list, $($after,)? $n) }
        }
    )*};
}

registers! {
    io_uring_register_files([files, n]);
    io_uring_register_files_tags([files, n], tags: *const u64);
    io_uring_register_files_update(at: c_uint, [files, n]);
    io_uring_register_files_update_tag(at: c_uint, [files, n], tags: *const u64);
}

/// liburing's, the system call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_register(
    fd: c_uint,
    what: c_uint,
    arg: *const c_void,
    n: c_uint,
) -> c_int {
    /// `IORING_REGISTER_FILES`, `_FILES_UPDATE`, `_FILES2`, `_FILES_UPDATE2`.
    const FILES: [c_uint; 4] = [2, 6, 13, 14];
    /// `IORING_REGISTER_USE_REGISTERED_RING`: how `fd` is meant.
    const BY_INDEX: c_uint = 1 << 31;
    if FILES.contains(&(what & !BY_INDEX)) {
        life::rings_take_over();
    }
    // SAFETY: liburing's contract, handed on.
    unsafe { real::io_uring_register(fd, what, arg, n) }
}

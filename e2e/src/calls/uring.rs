//! io_uring, as programs come by it: the system call itself, or liburing, whose functions make that call
//! without libc.

use super::*;

/// `io_uring_setup` through `syscall(2)`, as libuv calls it; the ring is closed again.
pub fn setup_by_syscall() -> Ret {
    let mut params = [0u8; 120];
    let fd = call!(libc::syscall, libc::SYS_io_uring_setup, 4, params.as_mut_ptr())?;
    close(fd as c_int)
}

type Init = unsafe extern "C" fn(u32, *mut Ring, u32) -> c_int;
type Exit = unsafe extern "C" fn(*mut Ring);
type Next = unsafe extern "C" fn(*mut Ring) -> *mut Entry;
type Submit = unsafe extern "C" fn(*mut Ring, u32) -> c_int;
type Get =
    unsafe extern "C" fn(*mut Ring, *mut *const Completion, u32, u32, *const c_void) -> c_int;

/// Room for liburing's `struct io_uring`, whose fields are its own.
#[repr(C, align(16))]
struct Ring([u8; 2048]);

/// The kernel's `struct io_uring_sqe`.
#[repr(C)]
struct Entry {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: c_int,
    off: u64,
    addr: *const c_void,
    len: u32,
    msg_flags: c_int,
    user_data: u64,
    rest: [u64; 3],
}

/// The kernel's `struct io_uring_cqe`.
#[repr(C)]
struct Completion {
    user_data: u64,
    res: i32,
    flags: u32,
}

const SEND: u8 = 26;
const RECV: u8 = 27;

const BY_PARAMETERS: &str = "io_uring_queue_init_params";
const IN_MEMORY: &str = "io_uring_queue_init_mem";
const BY_HAND: &str = "io_uring_setup";
/// liburing's ways to make a ring, besides `io_uring_queue_init`: by parameters, in memory that is there, and only the
/// descriptor.
pub const OTHER_WAYS: [&str; 3] = [BY_PARAMETERS, IN_MEMORY, BY_HAND];

/// Whether the installed liburing has a function of this name. (A library that is preloaded may have it at any rate.)
#[must_use]
pub fn has(name: &str) -> bool {
    let name = text(name);
    // SAFETY: names that end; the library has no constructors that matter.
    unsafe {
        let library = libc::dlopen(c"liburing.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        !library.is_null() && !libc::dlsym(library, name.as_ptr()).is_null()
    }
}

/// A ring made in one of [`OTHER_WAYS`], and ended again.
pub fn made_by(name: &str, library: Liburing) -> Ret {
    let mut ring = Ring([0; 2048]);
    let (mut params, ring) = ([0u8; 120], &raw mut ring);
    let params = params.as_mut_ptr().cast::<c_void>();
    let Some(at) = names::find(name) else { return Err(libc::ENOSYS) };
    if name == BY_HAND {
        type Setup = unsafe extern "C" fn(u32, *mut c_void) -> c_int;
        // SAFETY: liburing's function of that name has this signature.
        let fd = unsafe { std::mem::transmute::<*mut c_void, Setup>(at)(4, params) };
        return if fd < 0 { Err(-fd) } else { close(fd) };
    }
    let made = if name == BY_PARAMETERS {
        type Init = unsafe extern "C" fn(u32, *mut Ring, *mut c_void) -> c_int;
        // SAFETY: liburing's function of that name has this signature; the ring has room for any version's.
        unsafe { std::mem::transmute::<*mut c_void, Init>(at)(4, ring, params) }
    } else {
        type Init = unsafe extern "C" fn(u32, *mut Ring, *mut c_void, *mut c_void, usize) -> c_int;
        const ROOM: usize = 2 << 20;
        // SAFETY: memory of our own, as large as a ring may want it, kept until the process ends.
        let memory = unsafe {
            let (may, how) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(null_mut(), ROOM, may, how, -1, 0)
        };
        // SAFETY: the same.
        unsafe { std::mem::transmute::<*mut c_void, Init>(at)(4, ring, params, memory, ROOM) }
    };
    if made < 0 {
        return Err(-made);
    }
    // SAFETY: made above, and not used again.
    unsafe { (library.exit)(ring) };
    Ok(0)
}

/// liburing, found at run time as part of the program: a preloaded library comes before it.
#[derive(Clone, Copy, Debug)]
pub struct Liburing {
    init: Init,
    exit: Exit,
    next: Next,
    submit: Submit,
    get: Get,
}

impl Liburing {
    /// The installed one, if there is one with the functions that are needed here.
    #[must_use]
    pub fn find() -> Option<Self> {
        let global = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        // SAFETY: a name that ends; the library has no constructors that matter.
        unsafe { libc::dlopen(c"liburing.so.2".as_ptr(), global) };
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: a name that ends.
            let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            (!at.is_null()).then_some(at)
        };
        symbol(c"io_uring_submit")?;
        let (init, exit) = (symbol(c"io_uring_queue_init")?, symbol(c"io_uring_queue_exit")?);
        let (next, submit) = (symbol(c"io_uring_get_sqe")?, symbol(c"io_uring_submit_and_wait")?);
        let get = symbol(c"__io_uring_get_cqe")?;
        // SAFETY: liburing's functions of these names have these signatures.
        unsafe {
            Some(Self {
                init: std::mem::transmute::<*mut c_void, Init>(init),
                exit: std::mem::transmute::<*mut c_void, Exit>(exit),
                next: std::mem::transmute::<*mut c_void, Next>(next),
                submit: std::mem::transmute::<*mut c_void, Submit>(submit),
                get: std::mem::transmute::<*mut c_void, Get>(get),
            })
        }
    }

    /// One operation, in a ring of its own: its result.
    fn perform(self, opcode: u8, fd: c_int, at: *const c_void, len: usize) -> Ret {
        let mut ring = Ring([0; 2048]);
        let ring = &raw mut ring;
        // SAFETY: the ring has more room than any version of liburing takes, and lives until its exit.
        let made = unsafe { (self.init)(4, ring, 0) };
        if made < 0 {
            return Err(-made);
        }
        // SAFETY: a ring that was made; a fresh one has room for an entry.
        let entry = unsafe { (self.next)(ring) };
        // SAFETY: the entry is ours until it is submitted.
        unsafe {
            entry.write(Entry {
                opcode,
                flags: 0,
                ioprio: 0,
                fd,
                off: 0,
                addr: at,
                len: len as u32,
                msg_flags: libc::MSG_NOSIGNAL,
                user_data: 1,
                rest: [0; 3],
            });
        }
        let mut done: *const Completion = null();
        // SAFETY: the ring is live, and the buffer of the operation lives in our caller.
        let submitted = unsafe { (self.submit)(ring, 1) };
        // SAFETY: the same.
        let got = unsafe { (self.get)(ring, &raw mut done, 0, 1, null()) };
        let result = match (submitted, got) {
            (e, _) | (_, e) if e < 0 => Err(-e),
            // SAFETY: there is a completion, in the ring.
            _ => match unsafe { (*done).res } {
                e if e < 0 => Err(-e),
                n => Ok(n as usize),
            },
        };
        // SAFETY: made above, and not used again.
        unsafe { (self.exit)(ring) };
        result
    }

    /// `IORING_OP_SEND`.
    pub fn send(self, fd: c_int, bytes: &[u8]) -> Ret {
        self.perform(SEND, fd, bytes.as_ptr().cast(), bytes.len())
    }

    /// `IORING_OP_RECV`.
    pub fn recv(self, fd: c_int, len: usize) -> Bytes {
        let mut buffer = vec![0u8; len];
        let got = self.perform(RECV, fd, buffer.as_mut_ptr().cast(), len);
        filled(buffer, got)
    }
}

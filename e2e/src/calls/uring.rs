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
type Get =
    unsafe extern "C" fn(*mut Ring, *mut *const Completion, u32, u32, *const c_void) -> c_int;

/// The beginning of liburing's `struct io_uring`, and room for the rest of it.
#[repr(C, align(16))]
struct Ring {
    heads: *mut u32,
    /// What the kernel looks at.
    tail_told: *mut u32,
    others: [usize; 6],
    head: u32,
    tail: u32,
    between: [u64; 15],
    flags: u32,
    fd: c_int,
    rest: [u64; 230],
}

impl Ring {
    const fn new() -> Self {
        // SAFETY: all zeros is a valid value of integers and pointers.
        unsafe { zeroed() }
    }
}

/// The kernel's `struct io_uring_sqe`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: c_int,
    off: u64,
    addr: *const c_void,
    len: u32,
    op_flags: c_int,
    user_data: u64,
    buffer: u32,
    other_fd: c_int,
    rest: [u64; 2],
}

/// The kernel's `struct io_uring_cqe`.
#[repr(C)]
struct Completion {
    user_data: u64,
    res: i32,
    flags: u32,
}

const POLL: u8 = 6;
const CLOSE: u8 = 19;
const FILES_UPDATE: u8 = 20;
const READ: u8 = 22;
const WRITE: u8 = 23;
const SEND: u8 = 26;
const RECV: u8 = 27;
const SPLICE: u8 = 30;
/// `IOSQE_FIXED_FILE`.
const REGISTERED: u8 = 1;

/// liburing's ways to tell the kernel what is in a ring.
pub const SUBMITTERS: [&str; 6] = [
    "io_uring_submit_and_wait",
    "io_uring_submit",
    "io_uring_submit_and_get_events",
    "io_uring_submit_and_wait_timeout",
    "io_uring_submit_and_wait_min_timeout",
    "io_uring_submit_and_wait_reg",
];
/// Those that wait, and tell the kernel on old ones.
pub const WAITERS: [&str; 3] =
    ["io_uring_wait_cqes", "io_uring_wait_cqe_timeout", "io_uring_wait_cqes_min_timeout"];
/// The system call by itself.
pub const ENTERING: [&str; 2] = ["io_uring_enter", "io_uring_enter2"];
/// Those that give descriptors other numbers, by which operations name them.
pub const REGISTERING: [&str; 5] = [
    "io_uring_register_files",
    "io_uring_register_files_tags",
    "io_uring_register_files_update",
    "io_uring_register_files_update_tag",
    "io_uring_register",
];

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
    let mut ring = Ring::new();
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
    get: Get,
}

/// What is asked of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    opcode: u8,
    fd: c_int,
    at: *const c_void,
    len: usize,
    op_flags: c_int,
    from: c_int,
}

impl Operation {
    const fn of(opcode: u8, fd: c_int) -> Self {
        Self { opcode, fd, at: null(), len: 0, op_flags: 0, from: 0 }
    }

    /// `IORING_OP_POLL_ADD`: done when there is something to read.
    #[must_use]
    pub const fn poll(fd: c_int) -> Self {
        Self { op_flags: libc::POLLIN as c_int, ..Self::of(POLL, fd) }
    }

    /// `IORING_OP_CLOSE`.
    #[must_use]
    pub const fn close(fd: c_int) -> Self {
        Self::of(CLOSE, fd)
    }

    /// `IORING_OP_SPLICE` of at most `len` bytes.
    #[must_use]
    pub const fn splice(from: c_int, to: c_int, len: usize) -> Self {
        // Neither has a place to begin at.
        Self { len, from, at: usize::MAX as *const c_void, ..Self::of(SPLICE, to) }
    }

    fn entry(&self, registered: bool) -> Entry {
        let is_between = self.opcode == SPLICE;
        Entry {
            opcode: self.opcode,
            flags: if registered { REGISTERED } else { 0 },
            ioprio: 0,
            fd: if registered { 0 } else { self.fd },
            off: if is_between { u64::MAX } else { 0 },
            addr: self.at,
            len: self.len as u32,
            op_flags: self.op_flags,
            user_data: 1,
            buffer: 0,
            other_fd: if is_between { self.from } else { 0 },
            rest: [0; 2],
        }
    }
}

impl Liburing {
    /// The installed one, if there is one with the functions that are needed here.
    #[must_use]
    pub fn find() -> Option<Self> {
        let global = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        // SAFETY: a name that ends; the library has no constructors that matter.
        unsafe { libc::dlopen(c"liburing.so.2".as_ptr(), global) };
        names::find("io_uring_submit").filter(|_| has("io_uring_submit"))?;
        let (init, exit) =
            (names::find("io_uring_queue_init")?, names::find("io_uring_queue_exit")?);
        let (next, get) = (names::find("io_uring_get_sqe")?, names::find("__io_uring_get_cqe")?);
        // SAFETY: liburing's functions of these names have these signatures.
        unsafe {
            Some(Self {
                init: std::mem::transmute::<*mut c_void, Init>(init),
                exit: std::mem::transmute::<*mut c_void, Exit>(exit),
                next: std::mem::transmute::<*mut c_void, Next>(next),
                get: std::mem::transmute::<*mut c_void, Get>(get),
            })
        }
    }

    /// One operation, in a ring of its own, of which the kernel is told by the function of this name: its result.
    pub fn perform(self, submitter: &str, operation: &Operation) -> Ret {
        self.with_ring(|ring| {
            // SAFETY: a ring that was made; a fresh one has room for an entry, which is ours until it is submitted.
            unsafe { (self.next)(ring).write(operation.entry(false)) };
            // SAFETY: the ring is live, and the buffer of the operation lives in our caller.
            unsafe { self.submitted(submitter, ring) }
        })
    }

    /// The same of a descriptor that was registered by the function of this name.
    pub fn perform_registered(self, registrar: &str, operation: &Operation) -> Ret {
        self.with_ring(|ring| {
            // SAFETY: the ring is live.
            unsafe { register(registrar, ring, operation.fd) }?;
            // SAFETY: as in `perform`.
            unsafe { (self.next)(ring).write(operation.entry(true)) };
            // SAFETY: the same.
            unsafe { self.submitted(SUBMITTERS[0], ring) }
        })
    }

    /// The same, registered by an operation: `IORING_OP_FILES_UPDATE`.
    pub fn perform_updated(self, operation: &Operation) -> Ret {
        self.with_ring(|ring| {
            // SAFETY: the ring is live; there is a place for a descriptor, and none in it.
            unsafe { register(REGISTERING[0], ring, -1) }?;
            let list = [operation.fd];
            let update =
                Operation { at: list.as_ptr().cast(), len: 1, ..Operation::of(FILES_UPDATE, -1) };
            // SAFETY: as in `perform`; the list lives until this is done.
            unsafe { (self.next)(ring).write(update.entry(false)) };
            // SAFETY: the same.
            unsafe { self.submitted(SUBMITTERS[0], ring) }?;
            // SAFETY: as in `perform`.
            unsafe { (self.next)(ring).write(operation.entry(true)) };
            // SAFETY: the same.
            unsafe { self.submitted(SUBMITTERS[0], ring) }
        })
    }

    /// Waits for an operation that was submitted by the function of this name.
    pub fn perform_awaited(self, waiter: &str, operation: &Operation) -> Ret {
        self.with_ring(|ring| {
            // SAFETY: as in `perform`.
            unsafe { (self.next)(ring).write(operation.entry(false)) };
            // SAFETY: the same.
            unsafe { call(SUBMITTERS[1], ring, null_mut()) }?;
            let mut done: *const Completion = null();
            // SAFETY: the same.
            unsafe { call(waiter, ring, &raw mut done) }?;
            // SAFETY: what was waited for is there.
            unsafe { self.completed(ring) }
        })
    }

    fn with_ring(self, work: impl FnOnce(*mut Ring) -> Ret) -> Ret {
        let mut ring = Ring::new();
        let ring = &raw mut ring;
        // SAFETY: the ring has more room than any version of liburing takes, and lives until its exit.
        let made = unsafe { (self.init)(4, ring, 0) };
        if made < 0 {
            return Err(-made);
        }
        let result = work(ring);
        // SAFETY: made above, and not used again.
        unsafe { (self.exit)(ring) };
        result
    }

    /// Tells the kernel of what is in the ring, and waits for what comes of it.
    unsafe fn submitted(self, name: &str, ring: *mut Ring) -> Ret {
        let mut done: *const Completion = null();
        // SAFETY: the caller's promise.
        let told = unsafe { call(name, ring, &raw mut done) };
        told.and_then(|_| {
            // SAFETY: the same.
            unsafe { self.completed(ring) }
        })
    }

    /// The result of the first operation that is done, which is seen thereby.
    unsafe fn completed(self, ring: *mut Ring) -> Ret {
        let mut done: *const Completion = null();
        // SAFETY: the caller's promise.
        let got = unsafe { (self.get)(ring, &raw mut done, 0, 1, null()) };
        if got < 0 {
            return Err(-got);
        }
        // SAFETY: there is a completion, in the ring.
        let result = unsafe { (*done).res };
        // SAFETY: liburing's queue of completions begins with the kernel's head, which is ours to move.
        unsafe {
            let head = (*ring).between.as_ptr().add(COMPLETIONS).cast::<*mut u32>().read();
            std::sync::atomic::fence(Ordering::Release);
            head.write_volatile(head.read().wrapping_add(1));
        }
        if result < 0 { Err(-result) } else { Ok(result as usize) }
    }

    /// `IORING_OP_SEND`.
    pub fn send(self, fd: c_int, bytes: &[u8]) -> Ret {
        self.perform(SUBMITTERS[0], &to_send(fd, bytes))
    }

    /// `IORING_OP_RECV`.
    pub fn recv(self, fd: c_int, len: usize) -> Bytes {
        self.recv_by(fd, len, |operation| self.perform(SUBMITTERS[0], operation))
    }

    /// `IORING_OP_RECV`, in whatever way.
    pub fn recv_by(self, fd: c_int, len: usize, how: impl FnOnce(&Operation) -> Ret) -> Bytes {
        let mut buffer = vec![0u8; len];
        let operation = Operation {
            at: buffer.as_mut_ptr().cast(),
            len,
            op_flags: libc::MSG_NOSIGNAL,
            ..Operation::of(RECV, fd)
        };
        let got = how(&operation);
        filled(buffer, got)
    }

    /// `IORING_OP_READ` at the beginning of a file, in whatever way.
    pub fn read_by(self, fd: c_int, len: usize, how: impl FnOnce(&Operation) -> Ret) -> Bytes {
        let mut buffer = vec![0u8; len];
        let operation =
            Operation { at: buffer.as_mut_ptr().cast(), len, ..Operation::of(READ, fd) };
        let got = how(&operation);
        filled(buffer, got)
    }

    /// `IORING_OP_WRITE` at the beginning of a file, in whatever way.
    pub fn write_by(self, fd: c_int, bytes: &[u8], how: impl FnOnce(&Operation) -> Ret) -> Ret {
        let (at, len) = (bytes.as_ptr().cast(), bytes.len());
        how(&Operation { at, len, ..Operation::of(WRITE, fd) })
    }
}

/// Where in [`Ring::between`] the queue of completions begins.
const COMPLETIONS: usize = 4;

fn to_send(fd: c_int, bytes: &[u8]) -> Operation {
    let (at, len) = (bytes.as_ptr().cast(), bytes.len());
    Operation { at, len, op_flags: libc::MSG_NOSIGNAL, ..Operation::of(SEND, fd) }
}

/// One of [`SUBMITTERS`], [`WAITERS`] or [`ENTERING`], for one operation.
unsafe fn call(name: &str, ring: *mut Ring, done: *mut *const Completion) -> Ret {
    type OfRing = unsafe extern "C" fn(*mut Ring) -> c_int;
    type WithCount = unsafe extern "C" fn(*mut Ring, u32) -> c_int;
    type WithLimit =
        unsafe extern "C" fn(*mut Ring, *mut *const Completion, *mut libc::timespec) -> c_int;
    type WithAll = unsafe extern "C" fn(
        *mut Ring,
        *mut *const Completion,
        u32,
        *mut libc::timespec,
        *mut c_void,
    ) -> c_int;
    type WithLeast = unsafe extern "C" fn(
        *mut Ring,
        *mut *const Completion,
        u32,
        *mut libc::timespec,
        u32,
        *mut c_void,
    ) -> c_int;
    type Enter = unsafe extern "C" fn(c_int, u32, u32, u32, *mut c_void) -> c_int;
    type Enter2 = unsafe extern "C" fn(c_int, u32, u32, u32, *mut c_void, usize) -> c_int;
    let Some(at) = names::find(name) else { return Err(libc::ENOSYS) };
    let mut limit = libc::timespec { tv_sec: 20, tv_nsec: 0 };
    let limit = &raw mut limit;
    // SAFETY: liburing's functions of these names have these signatures; the ring is the caller's.
    let told = unsafe {
        match name {
            "io_uring_submit_and_wait" => {
                std::mem::transmute::<*mut c_void, WithCount>(at)(ring, 1)
            }
            "io_uring_submit" | "io_uring_submit_and_get_events" => {
                std::mem::transmute::<*mut c_void, OfRing>(at)(ring)
            }
            "io_uring_wait_cqe_timeout" => {
                std::mem::transmute::<*mut c_void, WithLimit>(at)(ring, done, limit)
            }
            "io_uring_submit_and_wait_timeout" | "io_uring_wait_cqes" => {
                std::mem::transmute::<*mut c_void, WithAll>(at)(ring, done, 1, limit, null_mut())
            }
            "io_uring_submit_and_wait_min_timeout" | "io_uring_wait_cqes_min_timeout" => {
                std::mem::transmute::<*mut c_void, WithLeast>(at)(
                    ring,
                    done,
                    1,
                    limit,
                    0,
                    null_mut(),
                )
            }
            // liburing tells the kernel where the entries end; who enters by hand does so by hand.
            "io_uring_enter" | "io_uring_enter2" => {
                std::sync::atomic::fence(Ordering::Release);
                (*ring).tail_told.write_volatile((*ring).tail);
                (*ring).head = (*ring).tail;
                if name == "io_uring_enter" {
                    std::mem::transmute::<*mut c_void, Enter>(at)((*ring).fd, 1, 0, 0, null_mut())
                } else {
                    let enter = std::mem::transmute::<*mut c_void, Enter2>(at);
                    enter((*ring).fd, 1, 0, 0, null_mut(), 8)
                }
            }
            _ => -libc::ENOSYS,
        }
    };
    if told < 0 { Err(-told) } else { Ok(told as usize) }
}

/// One of [`REGISTERING`], for one descriptor.
unsafe fn register(name: &str, ring: *mut Ring, fd: c_int) -> Ret {
    type Files = unsafe extern "C" fn(*mut Ring, *const c_int, u32) -> c_int;
    type Tagged = unsafe extern "C" fn(*mut Ring, *const c_int, *const u64, u32) -> c_int;
    type Update = unsafe extern "C" fn(*mut Ring, u32, *const c_int, u32) -> c_int;
    type UpdateTag = unsafe extern "C" fn(*mut Ring, u32, *const c_int, *const u64, u32) -> c_int;
    type ByHand = unsafe extern "C" fn(c_int, u32, *const c_int, u32) -> c_int;
    /// `IORING_REGISTER_FILES`.
    const FILES: u32 = 2;
    let Some(at) = names::find(name) else { return Err(libc::ENOSYS) };
    let (list, none, tags) = ([fd], [-1], [0u64]);
    if name.contains("_update") {
        // SAFETY: the ring is the caller's; the lists live on.
        unsafe { register(REGISTERING[0], ring, none[0]) }?;
    }
    let list = list.as_ptr();
    // SAFETY: liburing's functions of these names have these signatures; the lists live on.
    let done = unsafe {
        match name {
            "io_uring_register_files" => {
                std::mem::transmute::<*mut c_void, Files>(at)(ring, list, 1)
            }
            "io_uring_register_files_tags" => {
                std::mem::transmute::<*mut c_void, Tagged>(at)(ring, list, tags.as_ptr(), 1)
            }
            "io_uring_register_files_update" => {
                std::mem::transmute::<*mut c_void, Update>(at)(ring, 0, list, 1)
            }
            "io_uring_register_files_update_tag" => {
                std::mem::transmute::<*mut c_void, UpdateTag>(at)(ring, 0, list, tags.as_ptr(), 1)
            }
            _ => std::mem::transmute::<*mut c_void, ByHand>(at)((*ring).fd, FILES, list, 1),
        }
    };
    if done < 0 { Err(-done) } else { Ok(done as usize) }
}

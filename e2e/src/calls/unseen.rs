//! Calls by which libc moves bytes on its own: asynchronous I/O, and printing in its fortified form.

use super::*;

unsafe extern "C" {
    fn __dprintf_chk(fd: c_int, flag: c_int, format: *const libc::c_char, ...) -> c_int;
}

/// `dprintf(fd, "%s %d %.1f", line, 7, 1.5)`, as a program compiled with `_FORTIFY_SOURCE` calls it.
pub fn dprintf_fortified(fd: c_int, line: &str) -> Ret {
    let line = text(line);
    call!(__dprintf_chk, fd, 1, c"%s %d %.1f".as_ptr(), line.as_ptr(), 7, 1.5f64)
}

fn finished(block: &mut libc::aiocb) -> Ret {
    let waits = [std::ptr::from_ref(block)];
    loop {
        match call!(libc::aio_error, block) {
            Ok(waiting) if waiting == libc::EINPROGRESS as usize => {
                let limit = libc::timespec { tv_sec: 10, tv_nsec: 0 };
                call!(libc::aio_suspend, waits.as_ptr(), 1, &raw const limit)?;
            }
            _ => return call!(libc::aio_return, block),
        }
    }
}

/// A block for this descriptor and buffer. (Where a `long` has 64 bits, `struct aiocb64` is the same.)
fn block(fd: c_int, at: *mut c_void, len: usize) -> libc::aiocb {
    let mut block = zero!(libc::aiocb);
    block.aio_fildes = fd;
    block.aio_buf = at;
    block.aio_nbytes = len;
    block
}

/// `aio_read64`, and what came of it.
pub fn aio_read64(fd: c_int, len: usize) -> Bytes {
    let mut buffer = vec![0u8; len];
    let mut block = block(fd, buffer.as_mut_ptr().cast(), len);
    named!("aio_read64", (&raw mut block) as (*mut libc::aiocb) -> c_int)?;
    let got = finished(&mut block);
    filled(buffer, got)
}

/// `aio_write` or `aio_write64`, and what came of it.
pub fn aio_write_by(name: &str, fd: c_int, bytes: &[u8]) -> Ret {
    let mut block = block(fd, bytes.as_ptr().cast_mut().cast(), bytes.len());
    named!(name, (&raw mut block) as (*mut libc::aiocb) -> c_int)?;
    finished(&mut block)
}

/// `lio_listio64` of a write and then a read: what came of both.
pub fn listed64(fd: c_int, bytes: &[u8], len: usize) -> Result<(Ret, Bytes), i32> {
    let mut buffer = vec![0u8; len];
    let mut write = block(fd, bytes.as_ptr().cast_mut().cast(), bytes.len());
    let mut read = block(fd, buffer.as_mut_ptr().cast(), len);
    (write.aio_lio_opcode, read.aio_lio_opcode) = (libc::LIO_WRITE, libc::LIO_READ);
    let list = [&raw mut write, &raw mut read];
    named!("lio_listio64", (libc::LIO_WAIT, list.as_ptr(), 2, null_mut())
        as (c_int, *const *mut libc::aiocb, c_int, *mut c_void) -> c_int)?;
    let (written, got) = (finished(&mut write), finished(&mut read));
    Ok((written, filled(buffer, got)))
}

/// The kernel's `struct iocb`.
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: c_int,
    at: u64,
    len: u64,
    offset: i64,
    rest: [u64; 2],
}

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    data: u64,
    block: u64,
    result: i64,
    second: i64,
}

const PREAD: u16 = 0;
const PWRITE: u16 = 1;

/// Which function hands operations to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// `syscall(2)`.
    ByNumber,
    /// libaio's `io_submit`, if that is there.
    ByLibrary,
}

impl Submit {
    /// Whether it can be called here.
    #[must_use]
    pub fn is_there(self) -> bool {
        let global = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        // SAFETY: a name that ends; the library has no constructors that matter.
        self == Self::ByNumber
            || !unsafe { libc::dlopen(c"libaio.so.1".as_ptr(), global) }.is_null()
    }

    fn submit(self, context: u64, list: &[*const Iocb]) -> Ret {
        let n = list.len() as libc::c_long;
        match self {
            Self::ByNumber => call!(libc::syscall, libc::SYS_io_submit, context, n, list.as_ptr()),
            // libaio answers the errno itself.
            Self::ByLibrary => {
                let Some(at) = names::find("io_submit") else { return Err(libc::ENOSYS) };
                type Function =
                    unsafe extern "C" fn(u64, libc::c_long, *const *const Iocb) -> c_int;
                // SAFETY: libaio's function of that name has this signature.
                let f = unsafe { std::mem::transmute::<*mut c_void, Function>(at) };
                // SAFETY: a list of valid blocks, which live through the operations.
                let n = unsafe { f(context, n, list.as_ptr()) };
                if n < 0 { Err(-n) } else { Ok(n as usize) }
            }
        }
    }

    fn perform(self, opcode: u16, fd: c_int, at: *const c_void, len: usize) -> Ret {
        let mut context = 0u64;
        call!(libc::syscall, libc::SYS_io_setup, 4, &raw mut context)?;
        let (at, len) = (at.addr() as u64, len as u64);
        let block = Iocb {
            data: 1,
            key: 0,
            rw_flags: 0,
            opcode,
            priority: 0,
            fd,
            at,
            len,
            offset: 0,
            rest: [0; 2],
        };
        let mut done = [Event { data: 0, block: 0, result: 0, second: 0 }];
        let waited = self.submit(context, &[&raw const block]).and_then(|_| {
            let none = null::<libc::timespec>();
            let at = done.as_mut_ptr();
            call!(libc::syscall, libc::SYS_io_getevents, context, 1, 1, at, none)
        });
        call!(libc::syscall, libc::SYS_io_destroy, context)?;
        waited?;
        let result = done[0].result;
        if result < 0 { Err((-result) as i32) } else { Ok(result as usize) }
    }

    /// `IOCB_CMD_PREAD` of a stream.
    pub fn read(self, fd: c_int, len: usize) -> Bytes {
        let mut buffer = vec![0u8; len];
        let at: *mut u8 = std::hint::black_box(buffer.as_mut_ptr());
        let got = self.perform(PREAD, fd, at.cast(), len);
        filled(buffer, got)
    }

    /// `IOCB_CMD_PWRITE` of a stream.
    pub fn write(self, fd: c_int, bytes: &[u8]) -> Ret {
        self.perform(PWRITE, fd, bytes.as_ptr().cast(), bytes.len())
    }
}

/// `aio_read`, and what came of it.
pub fn aio_read(fd: c_int, len: usize) -> Bytes {
    let mut buffer = vec![0u8; len];
    let mut block = zero!(libc::aiocb);
    block.aio_fildes = fd;
    block.aio_buf = buffer.as_mut_ptr().cast();
    block.aio_nbytes = len;
    call!(libc::aio_read, &raw mut block)?;
    let got = finished(&mut block);
    filled(buffer, got)
}

/// `lio_listio` of one write, and what came of it.
pub fn aio_write(fd: c_int, bytes: &[u8]) -> Ret {
    let mut block = zero!(libc::aiocb);
    block.aio_fildes = fd;
    block.aio_buf = bytes.as_ptr().cast_mut().cast();
    block.aio_nbytes = bytes.len();
    block.aio_lio_opcode = libc::LIO_WRITE;
    let list = [&raw mut block];
    call!(libc::lio_listio, libc::LIO_WAIT, list.as_ptr(), 1, null_mut())?;
    finished(&mut block)
}

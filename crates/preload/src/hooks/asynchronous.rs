//! Asynchronous I/O, which libc's threads or the kernel do past us: such a connection goes by TCP.

use super::*;

/// Sees to it that a descriptor may be read and written by others than us. `false`: the peer did not
/// answer.
fn is_plain(fd: c_int) -> bool {
    active(fd).is_none_or(|(w, conn)| io::to_tcp(w, conn, fd, Reason::Option))
}

/// The errno for "try it again later".
fn busy() -> c_int {
    real::set_errno(libc::EAGAIN);
    -1
}

macro_rules! queues {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(block: *mut aiocb) -> c_int {
            // SAFETY: the caller's promise.
            if !unsafe { block.as_ref() }.is_none_or(|b| is_plain(b.aio_fildes)) {
                return busy();
            }
            // SAFETY: libc's contract, handed on.
            unsafe { real::$name(block) }
        }
    )*};
}

queues! { aio_read aio_read64 aio_write aio_write64 }

/// Whether all descriptors of a list may be used.
unsafe fn all_plain(list: *const *mut aiocb, n: c_int) -> bool {
    (0..usize::try_from(n).unwrap_or(0)).all(|at| {
        // SAFETY: the caller's promise: a list of `n` places, each null or valid.
        let block = unsafe { list.add(at).read() };
        // SAFETY: the same.
        unsafe { block.as_ref() }.is_none_or(|b| is_plain(b.aio_fildes))
    })
}

macro_rules! lists {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            mode: c_int,
            list: *const *mut aiocb,
            n: c_int,
            event: *mut c_void,
        ) -> c_int {
            // SAFETY: the caller's promise.
            if !list.is_null() && !unsafe { all_plain(list, n) } {
                return busy();
            }
            // SAFETY: libc's contract, handed on.
            unsafe { real::$name(mode, list, n, event) }
        }
    )*};
}

lists! { lio_listio lio_listio64 }

/// The start of the kernel's `struct iocb`.
#[repr(C)]
struct Block {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: c_int,
}

/// Whether all descriptors of an `io_submit` may be used.
pub(super) unsafe fn submits_plain(n: c_long, blocks: *const *const c_void) -> bool {
    if blocks.is_null() || fds::world().is_none() {
        return true;
    }
    (0..usize::try_from(n).unwrap_or(0).min(1 << 16)).all(|at| {
        // SAFETY: the caller's promise: a list of `n` places, each null or valid.
        let block = unsafe { blocks.add(at).read() }.cast::<Block>();
        // SAFETY: the same.
        unsafe { block.as_ref() }.is_none_or(|b| is_plain(b.fd))
    })
}

/// libaio's, which makes the system call by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_submit(
    context: *mut c_void,
    n: c_long,
    blocks: *const *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    if !unsafe { submits_plain(n, blocks) } {
        // libaio answers the errno itself.
        return -libc::EAGAIN;
    }
    // SAFETY: libaio's contract, handed on.
    unsafe { real::io_submit(context, n, blocks) }
}

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

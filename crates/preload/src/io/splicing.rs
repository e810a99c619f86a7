//! `splice` between a connection and a pipe.

use super::*;

/// `splice` from a connection into a pipe: bytes leave the ring only once the pipe has them.
pub(crate) fn splice_out(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    pipe: c_int,
    n: usize,
    flags: u32,
) -> Outcome {
    nap::cancelled();
    if let Some((mine, peer)) = conn.halves(w)
        && conn.came_down(mine, peer)
    {
        conn.drain(w, fd);
        if mine.drained.load(Ordering::Relaxed) == peer.bells.load(Ordering::Acquire) {
            // All that follows is in the socket, and what `splice` does with urgent data is its own.
            // SAFETY: no offsets: both ends are streams.
            let out = outcome(unsafe {
                real::splice(fd, std::ptr::null_mut(), pipe, std::ptr::null_mut(), n, flags)
            });
            return out
                .inspect(|n| conn.taken_by_the_kernel(mine, peer, *n))
                .inspect_err(|errno| conn.tells(w, *errno));
        }
    }
    if !may_wait_for_pipe(pipe, flags) && !is_ready(pipe, libc::POLLOUT) {
        return Err(libc::EAGAIN);
    }
    // Whether the connection is waited for is its own affair, whatever `flags` say.
    // What is there, and that there is something; one byte says so where the pipe takes the rest from the ring.
    let mut first = [0u8];
    let iov = [iovec { iov_base: first.as_mut_ptr().cast(), iov_len: n.min(1) }];
    // SAFETY: our own buffer.
    if unsafe { receive(w, conn, fd, &iov, libc::MSG_PEEK, false) }? == 0 {
        return Ok(0);
    }
    match splice_from_ring(w, conn, fd, pipe, n, flags) {
        Err(libc::EOPNOTSUPP) => {}
        done => return done,
    }
    let mut bytes = vec![0u8; n.min(64 << 10)];
    let iov = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    // SAFETY: our own buffer.
    let there = unsafe { receive(w, conn, fd, &iov, libc::MSG_PEEK, false) }?;
    if there == 0 {
        return Ok(0);
    }
    if !may_wait_for_pipe(pipe, flags) && !is_ready(pipe, libc::POLLOUT) {
        return Err(libc::EAGAIN);
    }
    let put = match call::write(pipe, &bytes[..there.min(4096)]) {
        Ok(put) => put,
        Err(libc::EPIPE) => return broken_pipe(0, 0),
        Err(errno) => return Err(errno),
    };
    let iov = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: put }];
    // SAFETY: our own buffer.
    unsafe { receive_at_once(w, conn, fd, &iov, libc::MSG_DONTWAIT, false) }
}

/// Whether the pipe is waited for, by what the call says and by what the pipe does.
fn may_wait_for_pipe(pipe: c_int, flags: u32) -> bool {
    flags & libc::SPLICE_F_NONBLOCK == 0
        && call::getfl(pipe).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
}

fn is_ready(pipe: c_int, events: libc::c_short) -> bool {
    let mut fds = [libc::pollfd { fd: pipe, events, revents: 0 }];
    call::poll(&mut fds, 0) != Ok(0)
}

/// The pipe takes what it has room for from where it lies in the ring. `EOPNOTSUPP`: nothing lies there now, or the kernel
/// cannot say what room there is without waiting for more.
fn splice_from_ring(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    pipe: c_int,
    n: usize,
    flags: u32,
) -> Outcome {
    loop {
        match conn.recv_with(w, fd, n, |piece| call::write_now(pipe, piece)) {
            Ok(n) => return Ok(n),
            Err(got) if Conn::is_retry(got) => return Err(libc::EOPNOTSUPP),
            Err(Got::Failed(libc::EAGAIN)) if may_wait_for_pipe(pipe, flags) => {
                let mut fds = [libc::pollfd { fd: pipe, events: libc::POLLOUT, revents: 0 }];
                call::poll(&mut fds, -1)?;
            }
            Err(Got::Failed(errno)) => return Err(errno),
            Err(_) => return Err(libc::EOPNOTSUPP),
        }
    }
}

/// `splice` from a pipe into a connection: the kernel reads the pipe straight into the ring.
pub(crate) fn splice_in(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    pipe: c_int,
    n: usize,
    flags: u32,
) -> Outcome {
    nap::cancelled();
    left::tidy();
    let ms = if may_wait_for_pipe(pipe, flags) { -1 } else { 0 };
    let mut fds = [libc::pollfd { fd: pipe, events: libc::POLLIN, revents: 0 }];
    match call::poll(&mut fds, ms) {
        Ok(0) => return Err(libc::EAGAIN),
        Ok(_) => {}
        Err(errno) => return Err(errno),
    }
    match way(w, conn) {
        Way::Ring => {}
        before => {
            let is_before = matches!(before, Way::Before);
            let mut sending =
                if is_before { Some(ByTcp::new(w, conn, fd, handler::here())?) } else { None };
            // SAFETY: no offsets: both ends are streams.
            let out = outcome(unsafe {
                real::splice(pipe, std::ptr::null_mut(), fd, std::ptr::null_mut(), n, flags)
            });
            if let Some(sending) = &mut sending {
                sending.ends(&out);
            }
            return out;
        }
    }
    let (mut held, mut fd) = (None, fd);
    loop {
        let read = |to: *mut [u8]| {
            // SAFETY: the ring's own bytes, free for us to write.
            call::read(pipe, unsafe { &mut *to })
        };
        match conn.send_with(w, fd, n, read) {
            Ok(moved) => return Ok(moved),
            Err(Put::Full) => {
                if is_nonblocking(w, conn, fd) {
                    if full(w, conn) {
                        return Err(libc::EAGAIN);
                    }
                    continue;
                }
                let waited = wait(w, conn, fd, true, &mut held);
                fd = conn.descriptor(fd);
                if let Err(errno) = waited {
                    return limits::ended(fd, errno, 0);
                }
            }
            Err(Put::Shut) => return shut(w, conn, fd, 0, 0),
            Err(Put::Failed(libc::EPIPE)) => return broken_pipe(0, 0),
            Err(Put::Kernel | Put::Lost | Put::All) => {
                let fd = held::goes_on(w, conn, fd, &mut held)?;
                ready::changed(w, conn);
                // SAFETY: no offsets: both ends are streams.
                return outcome(unsafe {
                    real::splice(pipe, std::ptr::null_mut(), fd, std::ptr::null_mut(), n, flags)
                });
            }
            Err(Put::Failed(errno)) => return Err(errno),
        }
    }
}

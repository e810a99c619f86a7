//! The interposed functions: signatures, and the decision whether a call is ours. A descriptor that
//! we do not follow costs one load.

#![expect(unreachable_pub, reason = "exported to the dynamic linker, not to Rust")]

mod asking;
mod asynchronous;
mod by_number;
mod lending;
mod limits;
mod listing;
mod loading;
mod memory;
mod numbers;
mod printing;
mod process;
mod receiving;
mod rings;
mod sending;
mod sockets;
mod waiting;

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::AtomicPtr;

use libc::{
    FILE, aiocb, epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd,
    sigset_t, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t, timespec, timeval,
};
use local::Reason;
use local::conn::{Conn, Got, Phase};
use sys::call;

use crate::io::{active, answer};
use crate::sandbox::{self, Restriction};
use crate::{fds, io, life, nap, poll, ready, real, remote};
pub(crate) use limits::{ask_for_files, make_room, need_no_room};
use receiving::{read, readv, recvfrom, recvmsg};
use sending::{sendmsg, sendto, write, writev};
use sockets::{accept4, connect, shutdown, socket};
use waiting::epoll_ctl;

/// The buffers of a message.
unsafe fn buffers<'a>(msg: *const msghdr) -> Option<&'a [iovec]> {
    // SAFETY: the caller's promise.
    let m = unsafe { msg.as_ref() }?;
    if m.msg_iovlen == 0 {
        return Some(&[]);
    }
    if m.msg_iov.is_null() || m.msg_iovlen > 1024 {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { std::slice::from_raw_parts(m.msg_iov, m.msg_iovlen) })
}

unsafe fn vectors<'a>(iov: *const iovec, n: c_int) -> Option<&'a [iovec]> {
    let n = usize::try_from(n).ok().filter(|n| *n <= 1024)?;
    if n == 0 || iov.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { std::slice::from_raw_parts(iov, n) })
}

const fn one(buf: *mut c_void, n: size_t) -> [iovec; 1] {
    [iovec { iov_base: buf, iov_len: n }]
}

/// What `_FORTIFY_SOURCE` does to a program that would overflow its buffer.
fn fortified(n: size_t, room: size_t) {
    if n > room {
        local::log::line(format_args!("buffer overflow detected: {n} bytes into {room}"));
        // SAFETY: always callable.
        unsafe { libc::abort() };
    }
}

fn nanos(t: &timespec) -> u64 {
    u64::try_from(t.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(t.tv_nsec).unwrap_or(0))
}

fn time_limit(ns: u64) -> timespec {
    timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

fn valid(t: &timespec) -> bool {
    t.tv_sec >= 0 && (0..1_000_000_000).contains(&t.tv_nsec)
}

//! Sockets and their options: `socket`, `connect`, `accept`, `shutdown`, `getsockopt`, `ioctl`, `fcntl`.

use local::conn::options;

use super::*;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    life::made(fd, domain, kind, protocol);
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { socket(domain, kind, protocol) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    remote::listening(fd);
    life::will_listen(fd);
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::listen(fd, backlog) };
    if done == 0 {
        life::listening(fd);
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // A family is enough to dissolve a connection.
    let least = size_of::<libc::sa_family_t>();
    let known = fds::conn(fd).is_some() && !addr.is_null() && len as usize >= least;
    let is_whole = len as usize >= size_of::<sockaddr>();
    // SAFETY: libc's contract.
    let before = (known && is_whole && remote::concerns()).then(|| unsafe { copy(addr, len) });
    if let Some(storage) = &before {
        remote::connecting(fd, storage);
    }
    let since = if known { life::begins() } else { 0 };
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::connect(fd, addr, len) };
    if known && (done == 0 || real::errno() != libc::EFAULT) {
        // SAFETY: the kernel has read as many bytes from there.
        let storage = before.unwrap_or_else(|| unsafe { copy(addr, len) });
        life::connected(fd, Some(&storage), done, since);
    }
    done
}

/// A guest's address in a place of ours.
///
/// # Safety
///
/// `addr` is valid for `len` bytes.
unsafe fn copy(addr: *const sockaddr, len: socklen_t) -> sockaddr_storage {
    // SAFETY: all zeros is a valid storage.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let n = (len as usize).min(size_of::<sockaddr_storage>());
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut storage).cast(), n) };
    storage
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __connect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { connect(fd, addr, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { life::accept(fd, addr, len, |a, l| real::accept(fd, a, l), 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { life::accept(fd, addr, len, |a, l| real::accept4(fd, a, l, flags), flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some((w, conn)) = active(fd)
        && (0..=2).contains(&how)
    {
        io::settle(w, conn, fd, false);
        if conn.phase() != Phase::Attached {
            // Nothing can follow in a ring after this, or half of it.
            io::keep_tcp(w, conn, fd, Reason::Short);
        }
        if conn.phase() == Phase::Attached {
            let done = conn.shuts_down(w, fd, how != libc::SHUT_WR, how != libc::SHUT_RD);
            ready::woken(w, conn);
            return done.map_or_else(
                |errno| {
                    real::set_errno(errno);
                    -1
                },
                |()| 0,
            );
        }
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::shutdown(fd, how) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if let Some((w, conn)) = active(fd)
        && conn.has_ended(w)
    {
        real::set_errno(libc::ENOTCONN);
        return -1;
    }
    if let Some(conn) = fds::conn(fd)
        && let Some(ends) = conn.far_ends()
        // The socket that holds what is left of a connection may have ended as well.
        && (conn.phase() == Phase::Attached || call::name(fd, true).is_ok())
    {
        // SAFETY: libc's contract.
        return unsafe { remote::tell(conn, ends.remote, addr, len) };
    }
    if remote::concerns()
        // SAFETY: libc's contract.
        && let Some(done) = unsafe { remote::tell_inherited(fd, true, addr, len) }
    {
        return done;
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::getpeername(fd, addr, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if let Some(conn) = fds::conn(fd)
        && let Some(ends) = conn.far_ends()
    {
        // SAFETY: libc's contract.
        return unsafe { remote::tell(conn, ends.local, addr, len) };
    }
    if remote::concerns()
        // SAFETY: libc's contract.
        && let Some(done) = unsafe { remote::tell_inherited(fd, false, addr, len) }
    {
        return done;
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::getsockname(fd, addr, len) }
}

const TCP_ZEROCOPY_RECEIVE: c_int = 35;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if level == libc::IPPROTO_TCP
        && name == TCP_ZEROCOPY_RECEIVE
        && let Some((w, conn)) = active(fd)
    {
        // The kernel maps what it has received: that must be all.
        io::to_tcp(w, conn, fd, Reason::ZeroCopy);
    }
    if level == libc::SOL_SOCKET && name == libc::SO_ERROR {
        // A program asks so whether its connection is there.
        let _ = active(fd);
    }
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::getsockopt(fd, level, name, value, len) };
    // SAFETY: libc has just written there.
    let is_whole = done == 0 && unsafe { *len } as usize >= size_of::<c_int>();
    if is_whole
        && level == libc::IPPROTO_TCP
        && (name == libc::TCP_NODELAY || name == libc::TCP_CORK)
        && let Some(conn) = fds::conn(fd)
    {
        // SAFETY: libc has just written there.
        unsafe { believed(conn, name, value.cast()) };
    }
    if is_whole
        && level == libc::SOL_SOCKET
        && name == libc::SO_ERROR
        && let Some((w, conn)) = active(fd)
        && conn.phase() == Phase::Attached
    {
        // SAFETY: libc has just written there.
        let at = unsafe { value.cast::<c_int>().read_unaligned() };
        let now = conn.socket_error(w, fd, at);
        // SAFETY: the same place.
        unsafe { value.cast::<c_int>().write_unaligned(now) };
    }
    done
}

/// Corrects what the kernel says of an option that doorbells need otherwise than the program.
unsafe fn believed(conn: &Conn, name: c_int, value: *mut c_int) {
    use local::conn::options::{CORK, NAGLE};
    let options = conn.options.load(std::sync::atomic::Ordering::Relaxed);
    if name == libc::TCP_NODELAY && options & NAGLE != 0 {
        // SAFETY: the caller's promise.
        unsafe { value.write_unaligned(0) };
    }
    if name == libc::TCP_CORK && options & CORK != 0 {
        // SAFETY: the caller's promise.
        unsafe { value.write_unaligned(1) };
    }
}

/// The bit of an option that a stand-in must have if it was set; 0: of any other.
const fn carried(level: c_int, name: c_int) -> u32 {
    use local::conn::options as option;
    // The second number of each time is that of 64-bit seconds where they are not usual.
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | 66) => option::RCVTIMEO,
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO | 67) => option::SNDTIMEO,
        (libc::SOL_SOCKET, libc::SO_LINGER) => option::LINGER,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => option::OOBINLINE,
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => option::KEEPALIVE,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => option::NODELAY,
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => option::USER_TIMEOUT,
        _ => 0,
    }
}

/// Notes `TCP_NODELAY` and `TCP_CORK`; `true`: the kernel need not hear of it, because its socket sends doorbells
/// only, and has been set up for them. Until then (see `Conn::free_doorbells`) it is as the program wants it.
fn noted(conn: &Conn, name: c_int, on: bool) -> bool {
    use local::conn::options::{CORK, FREE, NAGLE};
    let free = conn.options.load(std::sync::atomic::Ordering::Relaxed) & FREE != 0;
    let ours = free && conn.phase() == Phase::Attached;
    let (bit, set) = match name {
        libc::TCP_NODELAY => (NAGLE, ours && !on),
        libc::TCP_CORK => (CORK, on),
        _ => return false,
    };
    if set {
        conn.options.fetch_or(bit, std::sync::atomic::Ordering::Relaxed);
    } else {
        conn.options.fetch_and(!bit, std::sync::atomic::Ordering::Relaxed);
    }
    ours
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(conn) = fds::conn(fd)
        && let Some(w) = fds::world()
    {
        let on = !value.is_null() && len as usize >= size_of::<c_int>() && {
            // SAFETY: the caller's promise.
            unsafe { value.cast::<c_int>().read_unaligned() != 0 }
        };
        conn.options.fetch_or(carried(level, name), std::sync::atomic::Ordering::Relaxed);
        if level == libc::IPPROTO_TCP
            && len as usize >= size_of::<c_int>()
            && !value.is_null()
            && noted(conn, name, on)
        {
            return 0;
        }
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)
            && on
            && conn.phase() == Phase::Listener
            && remote::undefers(w, conn, fd)
        {
            return 0;
        }
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN) {
            conn.asks_for_syns();
        }
        if level == libc::SOL_SOCKET
            && name == libc::SO_LINGER
            && len as usize >= size_of::<[c_int; 2]>()
            && !value.is_null()
        {
            // SAFETY: the caller's promise.
            let linger = unsafe { value.cast::<[c_int; 2]>().read_unaligned() };
            conn.lingers(linger[0] != 0 && linger[1] == 0);
        }
        // Less than 0 is as much as there can be.
        let low = on && {
            // SAFETY: the caller's promise.
            (unsafe { value.cast::<c_int>().read_unaligned() }) == 1
        };
        let negative = on && {
            // SAFETY: the caller's promise.
            (unsafe { value.cast::<c_int>().read_unaligned() }) < 0
        };
        let reason = match (level, name) {
            // A filter sees segments, and may drop or cut them.
            (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF) => {
                Some(Reason::Option)
            }
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if on && !low => Some(Reason::Option),
            // Less than 0 is off.
            (libc::SOL_SOCKET, libc::SO_PEEK_OFF) if !negative => Some(Reason::Option),
            // Of what was sent as well, in a queue of its own.
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW) if on => {
                Some(Reason::Option)
            }
            (libc::IPPROTO_TCP, libc::TCP_ULP) => Some(Reason::KernelTls),
            (libc::IPPROTO_TCP, libc::TCP_REPAIR) => Some(Reason::Option),
            _ => None,
        };
        if let Some(reason) = reason {
            conn.stay.store(reason.code(), std::sync::atomic::Ordering::Relaxed);
            if conn.phase() != Phase::Listener
                && !io::to_tcp(w, conn, fd, reason)
                && name == libc::SO_RCVLOWAT
                && conn.phase() == Phase::Attached
            {
                // A doorbell would be less than that, and wake nobody. More wake-ups than asked for are no harm.
                return 0;
            }
        }
    }
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::setsockopt(fd, level, name, value, len) };
    if done == 0 {
        if let Some(bit) = switch(level, name) {
            // SAFETY: libc has read it.
            switched(fd, bit, unsafe { value.cast::<c_int>().read_unaligned() } != 0);
        }
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => limit_set(fd, libc::EPOLLIN),
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE)
            | (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => limit_set(fd, libc::EPOLLOUT),
            _ => {}
        }
    }
    done
}

/// From how many bytes on there is something to read, or room, was set. The kernel looks at once whether there is, and
/// tells whoever waits for that: for who watches edges, once more.
#[cold]
fn limit_set(fd: c_int, event: c_int) {
    let event = event.cast_unsigned();
    if let Some((w, conn)) = active(fd)
        && conn.phase() == Phase::Attached
        && let Some((mine, peer)) = conn.halves(w)
        && ready::mask(conn, mine, peer) & event != 0
    {
        ready::woken_by(w, conn, event);
    }
}

/// As `SO_TIMESTAMPING`, for 64-bit seconds everywhere.
const SO_TIMESTAMPING_NEW: c_int = 65;

/// The bit of an option that matters only to calls which ask for what it allows: to receives that have room for control data
/// (see `receiving`), or to sends with `MSG_ZEROCOPY`. gRPC sets such on each connection and listener, iperf on each
/// connection. Of time stamps, of which there are two kinds, again for 64-bit seconds, one turned off is all turned off.
const fn switch(level: c_int, name: c_int) -> Option<u32> {
    match (level, name) {
        (libc::IPPROTO_TCP, options::TCP_INQ) => Some(options::INQ),
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => Some(options::ZEROCOPY),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | 63 | 64) => {
            Some(options::STAMPED)
        }
        _ => None,
    }
}

fn switched(fd: c_int, bit: u32, on: bool) {
    if let Some(conn) = fds::conn(fd) {
        if on {
            conn.options.fetch_or(bit, std::sync::atomic::Ordering::Relaxed);
        } else {
            conn.options.fetch_and(!bit, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

const SIOCATMARK: c_ulong = 0x8905;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut at = 0;
    // SAFETY: a valid place.
    if unsafe { ioctl(fd, SIOCATMARK, (&raw mut at) as usize) } < 0 { -1 } else { at }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
    if let Some((w, conn)) = active(fd) {
        if request == libc::FIONREAD || request == libc::TIOCOUTQ {
            io::settle(w, conn, fd, false);
            if conn.phase() == Phase::Attached && arg != 0 {
                let is_read = request == libc::FIONREAD;
                let n = if is_read { conn.unread(w, fd) } else { conn.unsent(w, fd) };
                if let Some(n) = n.and_then(|n| c_int::try_from(n).ok()) {
                    // SAFETY: the caller's promise.
                    unsafe { (arg as *mut c_int).write_unaligned(n) };
                    return 0;
                }
            }
        }
        if request == SIOCATMARK && conn.phase() == Phase::Attached && arg != 0 {
            // Doorbells are not part of the stream; what is in the ring comes before the mark.
            if conn.unread_ring(w) {
                // SAFETY: the caller's promise.
                unsafe { (arg as *mut c_int).write_unaligned(0) };
                return 0;
            }
            conn.drain(w, fd);
        }
    }
    if request == libc::FIOASYNC && arg != 0 {
        // SAFETY: the caller's promise: an int.
        signals(fd, unsafe { (arg as *const c_int).read_unaligned() } != 0);
    }
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::ioctl(fd, request, arg) };
    if request == libc::FIONBIO
        && done == 0
        && let Some(conn) = fds::conn(fd)
    {
        // SAFETY: libc has read from there.
        let on = unsafe { (arg as *const c_int).read_unaligned() } != 0;
        conn.nonblock.store(1 + u32::from(on), std::sync::atomic::Ordering::Relaxed);
    }
    done
}

/// Signals for bytes are asked for, or no more: only the kernel sends them. A socket that is not connected yet
/// stays on TCP for it later; what a listener asks for is for itself, and its connections do not have it.
fn signals(fd: c_int, on: bool) {
    if on && let Some((w, conn)) = active(fd) {
        io::to_tcp(w, conn, fd, Reason::SignalIo);
    } else if let Some(conn) = fds::conn(fd).filter(|conn| conn.phase() == Phase::Fresh) {
        let (stay, asked) = (&conn.stay, Reason::SignalIo.code());
        let (from, to) = if on { (0, asked) } else { (asked, 0) };
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let _ = stay.compare_exchange(from, to, relaxed, relaxed);
    }
}

unsafe fn control(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    if cmd == libc::F_SETFL {
        signals(fd, arg & libc::O_ASYNC as usize != 0);
    }
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::fcntl(fd, cmd, arg) };
    match cmd {
        libc::F_SETFL if done == 0 => {
            if let Some(conn) = fds::conn(fd) {
                let on = arg & libc::O_NONBLOCK as usize != 0;
                conn.nonblock.store(1 + u32::from(on), std::sync::atomic::Ordering::Relaxed);
            }
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if !process::fds_borrowed_for(fd) => {
            process::leads_to_stdio(fd, done);
            life::duplicated(fd, done);
        }
        _ => {}
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { control(fd, cmd, arg) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { control(fd, cmd, arg) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { control(fd, cmd, arg) }
}

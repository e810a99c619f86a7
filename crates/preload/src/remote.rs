//! Connections to other hosts: told of the SMC option before they begin, and handed to the engine when
//! the peer has answered it. See `local::relay`. Where the engine asks those of other hosts which connections
//! they share, it is handed all that lead to them, and finds out what becomes of each.
//!
//! Where there has been no engine on the board nothing here makes a system call.

use std::ffi::c_int;
use std::net::SocketAddrV6;

use libc::{sockaddr, sockaddr_storage, socklen_t};
use local::Reason;
use local::config::End;
use local::conn::{Conn, Phase};
use local::relay::{self, Given, Welcome};
use local::world::World;
use sys::call;
use sys::sync::Ordering;

use crate::{fds, ready, real, sandbox};

/// Level of the socket options by which the engine's kernel program is spoken to; their name is on the
/// board.
const LEVEL: c_int = 0x534d;

/// Of `Conn::opted`: the option was asked for.
pub(crate) const ASKED: u32 = 1;
/// Of `Conn::opted`: it was not, because the engine has noted that the destination's connections are too
/// short for SMC.
const SPARED: u32 = 2;
/// Of `Conn::opted`: no option goes out, but the engine may know the peer's.
const MEETS: u32 = 3;
/// Of `Conn::opted`: nothing can take its place, see [`is_replaceable`].
const FIXED: u32 = 4;

/// Of `Conn::opted`: it may have been asked for, on a listener that is from before this program or from another one.
pub(crate) const INHERITED: u32 = 5;

/// Of `Conn::opted`: its packets are to take a way of their own, see [`has_chosen_way`](local::relay::has_chosen_way).
const CHOSEN: u32 = 6;

/// Of `Conn::opted`: the engine takes no new connections.
const DRAINS: u32 = 7;

/// What the answer says: both ends speak SMC.
const SPOKEN: i32 = 1;
/// The handshake is not over.
const OFFERED: i32 = 3;

const SOL_SOCKET: c_int = libc::SOL_SOCKET;

/// The file flags of a stand-in as it comes from the engine.
const AS_MADE: c_int = libc::O_RDWR | libc::O_NONBLOCK;

/// Whether there is an engine, so that connections to other hosts are of interest.
#[inline]
pub(crate) fn concerns() -> bool {
    fds::world().is_some_and(|w| w.board.has_engine())
}

/// Answers `getpeername` or `getsockname` on a stand-in: with the end of the connection to the other
/// host, in the family of the program's socket.
///
/// # Safety
///
/// As of these calls.
pub(crate) unsafe fn tell(
    conn: &Conn,
    end: SocketAddrV6,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { tell_as(conn.was_v6(), end, addr, len) }
}

/// The same for a descriptor of which nothing is known, from before this program began or from another process: one that
/// stands in for a connection to another host must not be taken for one to this host, of which programs may think better.
/// `peer`: the other end of it, else this one. `None`: it is what it seems to be.
///
/// # Safety
///
/// As of these calls.
#[cold]
pub(crate) unsafe fn tell_inherited(
    fd: c_int,
    peer: bool,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Option<c_int> {
    const TCP: c_int = libc::IPPROTO_TCP;
    if fds::look(fd).is_some()
        // Whom the kernel would have to be asked is asked nowhere else either then.
        || fds::borrowed()
        || !sandbox::may_make_sockets()
        || call::getsockopt(fd, SOL_SOCKET, libc::SO_PROTOCOL) != Ok(TCP)
    {
        return None;
    }
    let w = fds::world()?;
    let end = |peer| call::name(fd, peer).ok().flatten().filter(is_loopback);
    let (local, remote) = (end(false)?, end(true)?);
    let other = w.board.who_is(remote, local).ok().flatten()?;
    let ends = w.board.far_ends(other.cookie)?;
    let end = if peer { ends.remote } else { ends.local };
    let is_v6 = end.ip().to_ipv4_mapped().is_none();
    // SAFETY: the caller's promise.
    Some(unsafe { tell_as(is_v6, end, addr, len) })
}

fn is_loopback(name: &SocketAddrV6) -> bool {
    name.ip().to_canonical().is_loopback()
}

unsafe fn tell_as(
    is_v6: bool,
    end: SocketAddrV6,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if addr.is_null() || len.is_null() {
        real::set_errno(libc::EFAULT);
        return -1;
    }
    let (storage, size) = call::storage(end, is_v6);
    // SAFETY: the caller's promise.
    let room = unsafe { *len } as usize;
    // SAFETY: both are valid for so many bytes, and ours is on our stack.
    unsafe {
        std::ptr::copy_nonoverlapping(
            (&raw const storage).cast::<u8>(),
            addr.cast::<u8>(),
            size.min(room),
        );
    }
    // SAFETY: the caller's promise.
    unsafe { *len = socklen_t::try_from(size).unwrap_or(0) };
    0
}

/// `connect` is about to begin: asks for the SMC option, if there is an engine and the connection may
/// leave the host.
pub(crate) fn connecting(fd: c_int, storage: &sockaddr_storage) {
    let Some(w) = fds::world().filter(|w| w.board.has_engine() && w.limits.enabled) else { return };
    let Some(conn) = fds::conn(fd) else { return };
    if !matches!(conn.phase(), Phase::Fresh | Phase::Tcp)
        || conn.opted.load(Ordering::Relaxed) == ASKED
    {
        return;
    }
    conn.opted.store(0, Ordering::Relaxed);
    if w.board.is_off() {
        return;
    }
    let Some(remote) = call::address(storage) else { return };
    let ip = *remote.ip();
    let stays = match ip.to_ipv4_mapped() {
        Some(v4) => {
            v4.is_loopback() || v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()
        }
        // One that counts on one link only is no address of RoCEv2 by itself.
        None => {
            ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_unicast_link_local()
        }
    };
    let any = std::net::Ipv6Addr::UNSPECIFIED;
    if stays
        || stays_for_options(conn)
        || !w.limits.allows(remote.port(), [any, ip], &w.program, End::Client)
        || w.board.listening(remote.port()) && call::is_local(&ip)
    {
        return;
    }
    if w.board.engine_drains() {
        return conn.opted.store(DRAINS, Ordering::Relaxed);
    }
    if relay::has_chosen_way(fd) {
        return conn.opted.store(CHOSEN, Ordering::Relaxed);
    }
    if !is_replaceable(conn) {
        return conn.opted.store(FIXED, Ordering::Relaxed);
    }
    if w.board.stays_on_tcp(remote) {
        return conn.opted.store(SPARED, Ordering::Relaxed);
    }
    opt_in(conn, fd);
    if w.board.engine_meets() && conn.opted.load(Ordering::Relaxed) != ASKED {
        conn.opted.store(MEETS, Ordering::Relaxed);
    }
}

/// Whether a listener is not to wait for the first bytes of a connection (`TCP_DEFER_ACCEPT`), which Apache and H2O ask for:
/// where engines find out by themselves which connections they share, a client says nothing before they have.
pub(crate) fn undefers(w: &World, conn: &Conn, fd: c_int) -> bool {
    w.limits.enabled
        && w.board.engine_meets()
        && !stays_for_options(conn)
        && call::name(fd, false).ok().flatten().is_some_and(|name| {
            w.limits.allows(name.port(), [*name.ip(); 2], &w.program, End::Server)
        })
}

/// Has a listener show connections as they come, if it is to.
pub(crate) fn undefer(w: &World, conn: &Conn, fd: c_int) {
    const DEFER: c_int = libc::TCP_DEFER_ACCEPT;
    let waits = || call::getsockopt::<i32>(fd, libc::IPPROTO_TCP, DEFER).is_ok_and(|s| s > 0);
    if undefers(w, conn, fd) && waits() {
        let _ = call::setsockopt(fd, libc::IPPROTO_TCP, DEFER, 0i32);
    }
}

/// Whether something was asked for that a stand-in, which comes later, would not have.
fn stays_for_options(conn: &Conn) -> bool {
    let stamped = conn.options.load(Ordering::Relaxed) & local::conn::options::STAMPED != 0;
    stamped || conn.stay.load(Ordering::Relaxed) != 0
}

/// `listen` is about to begin: the SYN-ACKs of this listener answer the SMC option.
pub(crate) fn listening(fd: c_int) {
    if let Some(w) = fds::world().filter(|w| w.board.has_engine() && w.limits.enabled)
        && let Some(conn) = fds::conn(fd)
        && conn.phase() == Phase::Fresh
        && !stays_for_options(conn)
        && let Ok(Some(name)) = call::name(fd, false)
        && w.limits.allows(name.port(), [*name.ip(); 2], &w.program, End::Server)
    {
        // One that is for this host alone is not asked about.
        if !is_loopback(&name) && relay::has_chosen_way(fd) {
            return conn.opted.store(CHOSEN, Ordering::Relaxed);
        }
        opt_in(conn, fd);
        undefer(w, conn, fd);
    }
}

fn opt_in(conn: &Conn, fd: c_int) {
    // Outside of the engine's cgroup the kernel knows no such option, and the connection is plain TCP.
    let name = fds::world().and_then(|w| w.board.engine_option());
    if name.is_some_and(|name| call::setsockopt(fd, LEVEL, name, 1i32).is_ok()) {
        conn.opted.store(ASKED, Ordering::Relaxed);
    }
}

/// `connect` to `remote` has succeeded or begun. `true`: that is all that is to be done with it now.
pub(crate) fn connected(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    remote: SocketAddrV6,
) -> bool {
    match conn.opted.load(Ordering::Relaxed) {
        ASKED | MEETS => {
            conn.ask_later();
            resolve(w, conn, fd)
        }
        opted => {
            let Some(reason) = why_not(opted) else { return false };
            conn.leads_to(remote);
            conn.stay_tcp(w, fd, reason);
            true
        }
    }
}

/// Why the option was not asked for, by what `Conn::opted` says.
const fn why_not(opted: u32) -> Option<Reason> {
    match opted {
        SPARED => Some(Reason::TooShort),
        FIXED => Some(Reason::AboveLimit),
        CHOSEN => Some(Reason::ChosenWay),
        DRAINS => Some(Reason::Draining),
        _ => None,
    }
}

/// `accept` has made `fd`, on `listener`, which may have asked for the option. `true`: that is all that is to be
/// done with it now.
pub(crate) fn accepted(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    listener: &Conn,
    remote: Option<SocketAddrV6>,
) -> bool {
    let opted = listener.opted.load(Ordering::Relaxed);
    if opted == CHOSEN {
        return false;
    }
    let promised = opted != 0 && answer(w, fd) == Some(SPOKEN);
    if promised && opted == INHERITED {
        listener.opted.store(ASKED, Ordering::Relaxed);
    }
    let may = || !stays_for_options(conn) && !stays_for_options(listener);
    if !promised && !remote.is_some_and(|remote| may() && comes_from_engine(w, fd, remote)) {
        return false;
    }
    conn.ask_later();
    take_place(w, conn, fd, false, promised);
    true
}

/// What keeps `fd`, which comes from another host, from the engine if nobody on this host is its peer, as a bit of
/// `Conn::options`: its listener could have told it that it speaks SMC, had there been an engine when it began to listen, or has
/// chosen a way. 0: neither.
pub(crate) fn left_out(w: &World, fd: c_int, listener: &Conn, remote: SocketAddrV6) -> u32 {
    let why = match listener.opted.load(Ordering::Relaxed) {
        0 if w.board.engine_option().is_some() => local::conn::options::NOT_ASKED,
        CHOSEN => local::conn::options::CHOSEN_WAY,
        _ => return 0,
    };
    let is_left_out = w.board.has_engine()
        && !is_loopback(&remote)
        && !stays_for_options(listener)
        // Who speaks to an address of its own host has the same one.
        && call::name(fd, false).ok().flatten().is_some_and(|local| local.ip() != remote.ip());
    if is_left_out { why } else { 0 }
}

/// Whether a connection that announced nothing may have another engine's guest at its end.
fn comes_from_engine(w: &World, fd: c_int, remote: SocketAddrV6) -> bool {
    if w.board.is_off()
        || w.board.engine_drains()
        || !w.board.engine_meets()
        || !w.limits.enabled
        || !w.board.has_met(*remote.ip())
    {
        return false;
    }
    let local = call::name(fd, false).ok().flatten();
    local.is_some_and(|local| {
        w.limits.allows(local.port(), [*local.ip(), *remote.ip()], &w.program, End::Server)
    })
}

/// Looks whether the peer has answered the option, and if so, or if its engine may be known to ours, gives
/// the connection to the engine. `true`: what becomes of it is known, or will be here; nobody else need look.
#[cold]
pub(crate) fn resolve(w: &'static World, conn: &'static Conn, fd: c_int) -> bool {
    let asked = conn.opted.load(Ordering::Relaxed) == ASKED;
    match if asked { answer(w, fd) } else { None } {
        Some(SPOKEN) => {
            take_place(w, conn, fd, true, true);
            // The peer is under an engine, so it is not on this host.
            return true;
        }
        Some(OFFERED) => {}
        _ if w.board.engine_meets() => {
            // Before the handshake is over there is nobody to be asked about.
            if call::name(fd, true).is_ok() {
                take_place(w, conn, fd, true, false);
            }
        }
        _ => {
            if conn.leave_asked() {
                conn.stay_tcp(w, fd, Reason::PeerNotSmc);
            }
        }
    }
    conn.phase() != Phase::Tcp
}

/// What is known of the peer. Also where the engine has just gone: one that was promised SMC is nobody's then, and what it
/// says is not for the program.
fn answer(w: &World, fd: c_int) -> Option<i32> {
    call::getsockopt(fd, LEVEL, w.board.last_engine_option()?).ok()
}

/// The stand-in takes the place of the connection to the other host. `promised`: the peer was told in the TCP
/// handshake that SMC follows; else the engine may say no, and nothing has happened.
fn take_place(w: &'static World, conn: &'static Conn, fd: c_int, client: bool, promised: bool) {
    if !conn.leave_asked() {
        // Another thread is at it.
        return;
    }
    if !promised && !is_replaceable(conn) {
        return conn.stay_tcp(w, fd, Reason::AboveLimit);
    }
    let (new, welcome) = match conn.hand_over(w, fd, client, promised) {
        Ok(Given::StandIn(new, welcome)) => (new, welcome),
        // It is the engine's, whatever was promised.
        Ok(Given::Lost) => return give_up(w, conn, fd, Reason::NoDescriptor),
        Ok(Given::Declined(reason)) => return conn.stay_tcp(w, fd, reason),
        Err(reason) if promised => return give_up(w, conn, fd, reason),
        Err(reason) => return conn.stay_tcp(w, fd, reason),
    };
    let placed = replace(w, conn, fd, new, welcome);
    let _ = call::close(new);
    if let Err(reason) = placed {
        give_up(w, conn, fd, reason);
    }
}

/// Somebody else speaks on this connection, or waits for what nobody will say: it can only end.
#[cold]
fn give_up(w: &'static World, conn: &'static Conn, fd: c_int, reason: Reason) {
    // What the other host has ended is no error of anybody's here.
    if w.limits.log >= local::Level::Error && reason != Reason::Short {
        local::log::error(format_args!(
            "{}: reset: {} {}; the peer was promised SMC, or the engine has the connection",
            conn.called(fd),
            reason.code(),
            reason.words()
        ));
    }
    let _ = call::setsockopt(fd, SOL_SOCKET, libc::SO_LINGER, [1i32, 0]);
    let _ = call::disconnect(fd);
    conn.stay_tcp(w, fd, reason);
}

/// Whether a stand-in can be put in place of its descriptors: not where the limit was lowered below one of them, which
/// stays open, but may not be made anew. To be known before anything is promised or handed over.
pub(crate) fn is_replaceable(conn: &'static Conn) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let fits = |fd: c_int| u64::try_from(fd).is_ok_and(|fd| fd < limit.rlim_cur);
    if conn.refs.load(Ordering::Relaxed) == 1 {
        return fits(conn.fd.load(Ordering::Relaxed).cast_signed());
    }
    let mut all = true;
    fds::each(|fd, entry| {
        if matches!(entry, fds::Entry::Conn(c) if std::ptr::eq(c, conn)) {
            all &= fits(fd);
        }
    });
    all
}

/// The stand-in `new` comes to be where `fd` and its duplicates are.
fn replace(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    new: c_int,
    welcome: Welcome,
) -> Result<(), Reason> {
    put_over(w, conn, fd, new)?;
    conn.stand_in(w, welcome)?;
    ready::attached(w, conn);
    Ok(())
}

/// Puts the socket `new`, which does not block, where `fd` and its duplicates are, in the descriptor table and in event
/// sets, with what the program has set.
pub(crate) fn put_over(
    w: &World,
    conn: &'static Conn,
    fd: c_int,
    new: c_int,
) -> Result<(), Reason> {
    inherit_options(conn, fd, new);
    conn.gives_place(new);
    let flags = call::getfl(fd).map_err(|_| Reason::NoEngine)?;
    if flags != AS_MADE {
        call::setfl(new, flags).map_err(|_| Reason::NoEngine)?;
    }
    let mut all = Vec::new();
    fds::each(|other, entry| {
        if matches!(entry, fds::Entry::Conn(c) if std::ptr::eq(c, conn)) {
            all.push(other);
        }
    });
    ready::lift(conn);
    for other in all {
        // Who closes one of them takes it out of the table first, and then waits for us.
        let placed = fds::by_number(conn, other, || {
            let cloexec = call::getfd(other).is_ok_and(|f| f & libc::FD_CLOEXEC != 0);
            call::dup_over(new, other, if cloexec { libc::O_CLOEXEC } else { 0 })
        });
        placed.unwrap_or(Ok(())).map_err(|_| Reason::NoEngine)?;
    }
    ready::put_down(w, conn);
    Ok(())
}

/// What the program has set on the socket and a call on the stand-in must obey. What was never set is not
/// asked for.
fn inherit_options(conn: &Conn, from: c_int, to: c_int) {
    use local::conn::options as option;
    let set = conn.options.load(Ordering::Relaxed);
    for (bit, level, name) in [
        (option::RCVTIMEO, SOL_SOCKET, libc::SO_RCVTIMEO),
        (option::SNDTIMEO, SOL_SOCKET, libc::SO_SNDTIMEO),
        (option::LINGER, SOL_SOCKET, libc::SO_LINGER),
    ] {
        if set & bit != 0
            && let Ok(value) = call::getsockopt::<[u64; 2]>(from, level, name)
            && value != [0, 0]
        {
            if name == libc::SO_LINGER {
                let _ = call::setsockopt(to, level, name, value[0]);
            } else {
                let _ = call::setsockopt(to, level, name, value);
            }
        }
    }
    for (bit, level, name) in [
        (option::OOBINLINE, SOL_SOCKET, libc::SO_OOBINLINE),
        (option::KEEPALIVE, SOL_SOCKET, libc::SO_KEEPALIVE),
        (option::NODELAY, libc::IPPROTO_TCP, libc::TCP_NODELAY),
        (option::USER_TIMEOUT, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
        (option::INQ, libc::IPPROTO_TCP, option::TCP_INQ),
        (option::ZEROCOPY, SOL_SOCKET, libc::SO_ZEROCOPY),
    ] {
        if set & bit != 0
            && let Ok(value @ 1..) = call::getsockopt::<i32>(from, level, name)
        {
            let _ = call::setsockopt(to, level, name, value);
        }
    }
}

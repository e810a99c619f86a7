//! Descriptors come and go: socket, accept, dup, close, fork, exec, and passing to others.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::net::Ipv6Addr;
use std::sync::atomic::fence;

use libc::{cmsghdr, msghdr, sockaddr, sockaddr_storage, socklen_t};
use local::Reason;
use local::config::End;
use local::conn::{Conn, Phase};
use local::world::World;
use sys::call;
use sys::sync::{AtomicU32, Ordering};

use crate::fds::{self, Entry};
use crate::{alloc, io, left, ready, real, remains, remote, symbols};

pub(crate) mod kept;

/// Why nothing new leaves TCP any more, by its number: the program has io_uring work on sockets, or may do so unseen, or is
/// filtered. 0: it may.
static ALL_ON_TCP: AtomicU32 = AtomicU32::new(0);

fn all_on_tcp() -> Option<Reason> {
    Reason::from_code(ALL_ON_TCP.load(Ordering::Relaxed))
}

/// A descriptor number that has just been handed out by the kernel: what we knew of it is stale.
pub(crate) fn fresh(fd: c_int) {
    left::tidy();
    if fd >= 0
        && let Some(old) = fds::put(fd, None)
        && let Some(w) = fds::world()
    {
        // Closed behind our back: the kernel has told the peer.
        match old {
            Entry::Conn(conn) => {
                if conn.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
                    io::ends(w, conn);
                }
            }
            Entry::Set(set) => ready::closed(w, set),
        }
    }
}

/// A descriptor that was passed to us. If it is a connection that had ended, whoever passed it could
/// not put what is unread back into TCP; but it may have come from ourselves.
pub(crate) fn arrived(fd: c_int) {
    fresh(fd);
    let cookie = |fd| call::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
    let Ok(ours) = cookie(fd) else { return };
    let mut found = None;
    each_conn(|other, conn| {
        if found.is_none() && conn.phase() == Phase::Attached && cookie(other) == Ok(ours) {
            found = Some(other);
        }
    });
    if let Some(other) = found {
        duplicated(other, fd);
    }
}

/// A TCP socket was made.
pub(crate) fn made(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    fresh(fd);
    let Some(w) = fds::world() else { return };
    let stream =
        kind & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if fd < 0 || !stream || !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return;
    }
    if all_on_tcp().is_some() {
        return;
    }
    if let Some(conn) = w.conn() {
        follow(fd, conn, kind & libc::SOCK_NONBLOCK != 0);
        if is_for_stdio(fd) {
            conn.stay.store(Reason::Stdio.code(), Ordering::Relaxed);
        }
    }
}

/// Whether it is one of the descriptors that stdio has from the start, and reads and writes without a call that we see.
pub(crate) fn is_for_stdio(fd: c_int) -> bool {
    (libc::STDIN_FILENO..=libc::STDERR_FILENO).contains(&fd)
}

fn follow(fd: c_int, conn: &'static Conn, nonblocking: bool) {
    conn.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
    conn.nonblock.store(1 + u32::from(nonblocking), Ordering::Relaxed);
    let _ = fds::put(fd, Some(Entry::Conn(conn)));
}

/// When a call of `connect` begins, if that will matter.
pub(crate) fn begins() -> u64 {
    if fds::world().is_some_and(|w| w.board.is_across()) { call::now_ns() } else { 0 }
}

/// `listen` is about to be called: from its first connection on, what they begin with is kept where the board is for all
/// network namespaces.
pub(crate) fn will_listen(fd: c_int) {
    if let Some(w) = fds::world()
        && let Some(conn) = fds::conn(fd)
    {
        keep_syns(w, conn, fd);
    }
}

fn keep_syns(w: &World, conn: &'static Conn, fd: c_int) {
    if w.board.is_across() && w.limits.enabled {
        conn.keep_syns(fd);
    }
}

/// `listen` succeeded.
pub(crate) fn listening(fd: c_int) {
    let Some(w) = fds::world() else { return };
    match fds::conn(fd) {
        Some(conn) => listens(w, conn, fd),
        // Made by another process, which has passed it on: clients offer from now on, not from its first `accept` on.
        None => drop(listener(w, fd)),
    }
}

fn listens(w: &World, conn: &'static Conn, fd: c_int) {
    conn.set_phase(Phase::Listener);
    // Of all that was asked for, these are not handed on to connections.
    for own in [Reason::SignalIo, Reason::Stdio] {
        let (stay, own) = (&conn.stay, own.code());
        let _ = stay.compare_exchange(own, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    if let Ok(Some(name)) = call::name(fd, false) {
        conn.port.store(u32::from(name.port()), Ordering::Relaxed);
        conn.listens_at(fd, name);
        keep_syns(w, conn, fd);
        if may_be_offered(w, name.port(), *name.ip())
            && w.board.listen(name.port()) == Err(Reason::NoSlot)
        {
            w.has_no_place();
        }
    }
}

/// Whether some connection to a listener here may leave TCP, so that clients should offer theirs.
fn may_be_offered(w: &World, port: u16, ip: Ipv6Addr) -> bool {
    let allows = || w.limits.allows(port, [ip, Ipv6Addr::UNSPECIFIED], &w.program, End::Server);
    w.limits.enabled && (allows() || w.limits.asks_for_addresses())
}

/// The listener of a descriptor; one that came to us by exec or from another process is
/// recognised at its first `accept`.
fn listener(w: &World, fd: c_int) -> Option<&'static Conn> {
    if let Some(conn) = fds::conn(fd) {
        if conn.phase() == Phase::Listener {
            let port = u16::try_from(conn.port.load(Ordering::Relaxed)).ok()?;
            let ip = || conn.listener_address().map_or(Ipv6Addr::UNSPECIFIED, |at| *at.ip());
            if !w.board.listening(port) && may_be_offered(w, port, ip()) {
                let _ = w.board.listen(port);
            }
            return Some(conn);
        }
        return None;
    }
    if fds::look(fd).is_some() {
        return None;
    }
    let kind = call::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_TYPE).ok()?;
    let open = call::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).ok()?;
    let protocol = call::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL).ok()?;
    if kind != libc::SOCK_STREAM || open == 0 || protocol != libc::IPPROTO_TCP {
        return None;
    }
    let conn = w.conn()?;
    // What was set before is not known, and whether it promises SMC its connections say.
    use local::conn::options::{CARRIED, INQ, STAMPED, TCP_INQ, ZEROCOPY};
    conn.options.fetch_or(CARRIED & !(INQ | ZEROCOPY), Ordering::Relaxed);
    // Of these it counts whether they are on.
    for (bit, level, name) in [
        (INQ, libc::IPPROTO_TCP, TCP_INQ),
        (ZEROCOPY, libc::SOL_SOCKET, libc::SO_ZEROCOPY),
        (STAMPED, libc::SOL_SOCKET, libc::SO_TIMESTAMP),
        (STAMPED, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    ] {
        if call::getsockopt::<i32>(fd, level, name).is_ok_and(|on| on != 0) {
            conn.options.fetch_or(bit, Ordering::Relaxed);
        }
    }
    conn.opted.store(remote::INHERITED, Ordering::Relaxed);
    follow(fd, conn, false);
    conn.nonblock.store(0, Ordering::Relaxed);
    listens(w, conn, fd);
    remote::undefer(w, conn, fd);
    Some(conn)
}

/// `accept4` on a descriptor that may be a listener of ours.
///
/// # Safety
///
/// As libc's.
pub(crate) unsafe fn accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    call_it: impl Fn(*mut sockaddr, *mut socklen_t) -> c_int,
    flags: c_int,
) -> c_int {
    let Some(w) = fds::world() else { return call_it(addr, len) };
    let Some(listener) = listener(w, fd).filter(|_| all_on_tcp().is_none()) else {
        let new = call_it(addr, len);
        fresh(new);
        return new;
    };
    // SAFETY: all zeros is a valid storage.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut size = socklen_t::try_from(size_of::<sockaddr_storage>()).unwrap_or(0);
    // SAFETY: the caller's promise.
    let bad = !addr.is_null() && unsafe { len.as_ref() }.is_none_or(|n| n.cast_signed() < 0);
    if bad {
        // The kernel's error for it, for which it takes a connection.
        return call_it(addr, len);
    }
    let new = call_it((&raw mut storage).cast(), &raw mut size);
    if new < 0 {
        return new;
    }
    if !addr.is_null() {
        // SAFETY: the caller's promise.
        let room = unsafe { *len };
        let n = size.min(room) as usize;
        // SAFETY: both are valid for `n` bytes, and ours is on our stack.
        unsafe { std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), addr.cast(), n) };
        // SAFETY: the caller's promise.
        unsafe { *len = size };
    }
    fresh(new);
    let port = u16::try_from(listener.port.load(Ordering::Relaxed)).unwrap_or(0);
    let stay = Reason::from_code(listener.stay.load(Ordering::Relaxed));
    if let Some(conn) = w.conn().filter(|_| stay.is_none()) {
        use local::conn::options::{ABORT, CARRIED, STAMPED, SYN_KEPT};
        let options = listener.options.load(Ordering::Relaxed);
        conn.lingers(options & ABORT != 0);
        conn.options.fetch_or(options & (CARRIED | STAMPED | SYN_KEPT), Ordering::Relaxed);
        follow(new, conn, flags & libc::SOCK_NONBLOCK != 0);
        let remote = call::address(&storage);
        if !remote::accepted(w, conn, new, listener, remote) {
            let left_out = remote.map_or(0, |remote| remote::left_out(w, new, listener, remote));
            conn.options.fetch_or(left_out, Ordering::Relaxed);
            conn.accepted(w, port, listener.listener_address(), remote);
        }
        beside_all(w, conn, new);
        if is_for_stdio(new) {
            let _ = io::to_tcp(w, conn, new, Reason::Stdio);
        }
    }
    new
}

/// `connect` has answered `result` (0 or -1 with `errno`).
/// `since`: when it was called, where that is [to be known](begins).
pub(crate) fn connected(fd: c_int, storage: Option<&sockaddr_storage>, result: c_int, since: u64) {
    let Some(w) = fds::world() else { return };
    let Some(conn) = fds::conn(fd) else { return };
    let begun = result == 0 || matches!(real::errno(), libc::EINPROGRESS | libc::EINTR);
    let dissolving = storage.is_some_and(|s| i32::from(s.ss_family) == libc::AF_UNSPEC);
    if dissolving && result == 0 {
        dissolved(w, conn, fd);
        return;
    }
    if asks_again(conn, result) && begun && conn.phase() == Phase::Tcp {
        return;
    }
    if begun && conn.phase() == Phase::Attached {
        // Who asks again how it went is told so once by the kernel, whatever has gone over it by then.
        if result == 0 && conn.is_between(fd) {
            return;
        }
        // The kernel knows of no such connection there: it was dissolved by a call that we have not seen.
        dissolved(w, conn, fd);
    }
    if !begun || conn.phase() == Phase::Offered && call::name(fd, true).is_ok() {
        return;
    }
    if !matches!(conn.phase(), Phase::Fresh | Phase::Offered | Phase::Tcp) {
        return;
    }
    match (storage.and_then(call::address), all_on_tcp()) {
        // Made before that, and not connected.
        (Some(remote), Some(reason)) => conn.stay_tcp_to(w, fd, reason, remote),
        (Some(remote), None) => {
            let errno = real::errno();
            if !remote::connected(w, conn, fd, remote) {
                // Asked for before there was a connection.
                match Reason::from_code(conn.stay.load(Ordering::Relaxed)) {
                    Some(reason) => conn.stay_tcp_to(w, fd, reason, remote),
                    None => {
                        conn.connecting(w, fd, remote, since);
                        ready::offered(w, conn);
                        beside_all(w, conn, fd);
                    }
                }
            }
            real::set_errno(errno);
        }
        (None, _) if result == 0 => conn.dissolved(w, fd),
        (None, _) => {}
    }
}

/// Whether a `connect` that has answered so was about a connection that one before had begun, and of which all has been said:
/// the kernel tells once how it went, by success or by another error than these. Then there may be another one.
fn asks_again(conn: &Conn, result: c_int) -> bool {
    use local::conn::options::BEGUN;
    let errno = real::errno();
    let was_begun = conn.options.load(Ordering::Relaxed) & BEGUN != 0;
    match (result, errno) {
        (-1, libc::EINPROGRESS | libc::EINTR) => conn.options.fetch_or(BEGUN, Ordering::Relaxed),
        (-1, libc::EALREADY | libc::EISCONN) => return was_begun,
        _ if was_begun => conn.options.fetch_and(!BEGUN, Ordering::Relaxed),
        _ => return false,
    };
    was_begun
}

fn dissolved(w: &'static World, conn: &'static Conn, fd: c_int) {
    ready::unregister(w, conn);
    conn.dissolved(w, fd);
    ready::reregister(w, conn);
}

/// A descriptor was duplicated: both lead to the same connection.
pub(crate) fn duplicated(from: c_int, to: c_int) {
    if to < 0 || from == to || fds::world().is_none() {
        return;
    }
    fresh(to);
    match fds::look(from) {
        // Otherwise the last number was closed meanwhile, and nobody follows the new one.
        Some(Entry::Conn(conn)) if conn.leads_here_too() => {
            ready::unpark_all(conn);
            let _ = fds::put(to, Some(Entry::Conn(conn)));
        }
        Some(Entry::Set(set)) => {
            ready::duplicated(set);
            let _ = fds::put(to, Some(Entry::Set(set)));
        }
        Some(Entry::Conn(_)) | None => {}
    }
}

/// The program is about to put `fd` over this number: what we keep there goes elsewhere. `false`: there is nowhere, and the
/// call must fail; what we keep is what others know us by, or the connection of a call that goes on.
pub(crate) fn make_room(fd: c_int, to: c_int) -> bool {
    let Some(w) = fds::world() else { return true };
    let (owns, is_kick, is_kept) = (w.owns(to), ready::is_kick(to), kept::is_kept(to));
    let is_log = to >= 0 && local::log::fd() == to;
    if !(owns || is_kick || is_kept || is_log)
        || fd == to
        || call::getfd(fd).is_err()
        || fds::borrowed()
    {
        return true;
    }
    if is_kick {
        ready::move_kick(to)
    } else if is_kept {
        kept::moves(w, to)
    } else if is_log {
        local::log::moves(to, crate::high_fd())
    } else {
        w.moves(to)
    }
}

/// Whether `fd` is one of our own, which the guest does not know of.
pub(crate) fn is_ours(fd: c_int) -> bool {
    let is_log = fd >= 0 && local::log::fd() == fd;
    fds::world().is_some_and(|w| w.owns(fd)) || ready::is_kick(fd) || kept::is_kept(fd) || is_log
}

/// `close`, `kernel` being libc's.
pub(crate) fn close(fd: c_int, kernel: impl Fn() -> c_int) -> c_int {
    let Some(w) = fds::world() else { return kernel() };
    if is_ours(fd) {
        real::set_errno(libc::EBADF);
        return -1;
    }
    let Some(entry) = fds::look(fd) else { return kernel() };
    if is_borrowed(entry) {
        return kernel();
    }
    let last = drop_entry(w, fd);
    let done = kernel();
    if let Some(conn) = last {
        w.give_back(conn);
    }
    done
}

/// Whether it is a `vfork` child that closes its own copy of what the memory that it borrows follows. Of a connection
/// that is the kernel's for good, which nobody is in a call on, little is kept that could be lost by mistake (its line
/// in `shunt stat`), and a connection whose peer is plain is to cost no system call more than it would by itself.
fn is_borrowed(entry: Entry) -> bool {
    match entry {
        Entry::Conn(conn)
            if conn.phase() == Phase::Tcp && conn.inside.load(Ordering::Acquire) == 0 =>
        {
            fds::borrowed_as_seen()
        }
        _ => fds::borrowed(),
    }
}

/// Takes `fd` out of the table before it is closed; answers a connection whose last descriptor it
/// was.
fn drop_entry(w: &'static World, fd: c_int) -> Option<&'static Conn> {
    left::tidy();
    match fds::put(fd, None)? {
        Entry::Set(set) => {
            ready::closed(w, set);
            None
        }
        Entry::Conn(conn) => {
            conn.await_placement();
            conn.free_left_locks(w);
            w.board.free_left_locks();
            let alone = conn.closes_alone();
            // Who holds it beside descriptors is in a call.
            if !alone {
                if !move_fd(conn, fd) {
                    kept::keep(w, conn, fd);
                } else if conn.inside.load(Ordering::Acquire) > 0 {
                    kept::keep_beside_others(conn, fd);
                }
                conn.await_calls(w);
            }
            if alone || conn.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
                ready::forget(w, conn);
                conn.closing(w, fd);
                kept::let_go(conn);
                return Some(conn);
            }
            None
        }
    }
}

/// The descriptor by which we know a connection goes; another one must do. `false`: there is none.
fn move_fd(conn: &'static Conn, gone: c_int) -> bool {
    if conn.fd.load(Ordering::Relaxed) != gone.cast_unsigned() {
        return true;
    }
    if conn.refs.load(Ordering::Acquire) == 1 {
        return false;
    }
    let mut other = None;
    fds::each(|fd, entry| {
        if let Entry::Conn(c) = entry
            && std::ptr::eq(c, conn)
        {
            other = Some(fd);
        }
    });
    if let (Some(fd), Some(w)) = (other, fds::world()) {
        conn.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
        if let Some((_, half)) = conn.my_half(w) {
            half.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
        }
    }
    other.is_some()
}

/// A range of descriptors is about to be closed (not just marked to be closed on exec).
pub(crate) fn closing_range(first: c_uint, last: c_uint) {
    let Some(w) = fds::world() else { return };
    if fds::borrowed() {
        return;
    }
    let mut conns = Vec::new();
    fds::each(|fd, _| {
        if (first..=last).contains(&fd.cast_unsigned())
            && let Some(conn) = drop_entry(w, fd)
        {
            // A descriptor of ours among them is closed here, in order.
            let _ = call::close(fd);
            conns.push(conn);
        }
    });
    for conn in conns {
        w.give_back(conn);
    }
}

/// The parts of a range that do not contain descriptors of our own.
pub(crate) fn around_ours(first: c_uint, last: c_uint) -> Vec<(c_uint, c_uint)> {
    let Some(w) = fds::world() else { return vec![(first, last)] };
    let mut holes: Vec<c_uint> = w
        .own_fds()
        .into_iter()
        .chain(kept::all())
        .chain([local::log::fd()])
        .filter(|fd| *fd >= 0)
        .map(i32::cast_unsigned)
        .filter(|fd| (first..=last).contains(fd))
        .collect();
    holes.sort_unstable();
    let mut parts = Vec::new();
    let mut from = u64::from(first);
    for hole in holes {
        if u64::from(hole) > from
            && let (Ok(a), Ok(b)) = (u32::try_from(from), u32::try_from(u64::from(hole) - 1))
        {
            parts.push((a, b));
        }
        from = u64::from(hole) + 1;
    }
    if from <= u64::from(last)
        && let Ok(a) = u32::try_from(from)
    {
        parts.push((a, last));
    }
    parts
}

// ----- fork and exec -----------------------------------------------------------------------------

/// Each connection, once.
pub(crate) fn each_conn(mut f: impl FnMut(c_int, &'static Conn)) {
    fds::each(|fd, entry| {
        if let Entry::Conn(conn) = entry
            && conn.fd.load(Ordering::Relaxed) == fd.cast_unsigned()
        {
            f(fd, conn);
        }
    });
}

/// How long a fork waits for threads that are attaching connections: microseconds, or for ever if that is what the
/// handler which forks has interrupted. Nanoseconds.
const ATTACHING_NS: u64 = 50_000_000;

/// Forks that threads of this process are in the middle of.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// Forks that have begun in this process.
static BEGUN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Which of those is this thread's last; 0: another one was under way.
    static FORK: Cell<u32> = const { Cell::new(0) };
}

pub(crate) extern "C" fn fork_prepare() {
    let alone = FORKING.fetch_add(1, Ordering::SeqCst) == 0;
    let number = BEGUN.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
    FORK.set(if alone { number } else { 0 });
    if let Some(w) = fds::world() {
        let deadline = call::now_ns() + ATTACHING_NS;
        w.begun.fetch_add(1, Ordering::Relaxed);
        each_conn(|fd, conn| {
            remains::before_a_fork(w, conn, fd);
            let begun = conn.fork_begins(w);
            // In the child nobody would bring it to an end.
            while conn.is_switching() && call::now_ns() < deadline {
                call::sched_yield();
            }
            ready::unpark_all(conn);
            ready::before_a_fork(w, conn);
            conn.fork_prepare(w, begun);
        });
        // Last: nothing else is taken under these locks here.
        kept::hold();
        ready::hold_sets(w);
    }
}

pub(crate) extern "C" fn fork_parent() {
    if let Some(w) = fds::world() {
        ready::let_sets_go();
        kept::free();
        w.forks.fetch_add(1, Ordering::Relaxed);
    }
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// A child is about to borrow our memory, until it becomes another program: see [`remains::before_a_fork`].
pub(crate) fn lending() {
    if let Some(w) = fds::world()
        && !fds::borrowed()
    {
        each_conn(|fd, conn| remains::before_a_fork(w, conn, fd));
    }
}

/// After [`fork_parent`]: there is no child. `errno` stays.
#[cold]
pub(crate) fn fork_failed() {
    // What two forks at a time have counted nobody tells apart: it stays, as if there were a child that never ends.
    if FORK.get() != 0
        && FORK.get() == BEGUN.load(Ordering::SeqCst)
        && let Some(w) = fds::world()
    {
        each_conn(|_, conn| conn.fork_failed(w));
    }
}

pub(crate) extern "C" fn fork_child() {
    FORKING.store(0, Ordering::SeqCst);
    alloc::forked();
    left::forked();
    symbols::forked();
    sys::lock::forget_tid();
    fds::forked();
    #[cfg(feature = "watchdog")]
    ready::watchdog::forked();
    kept::let_all_go();
    if let Some(w) = fds::world() {
        forget_other_threads();
        ready::let_sets_go();
        w.forked();
    }
}

/// Of the calls that were under way those of this thread alone go on in the child: see [`Conn::forked`].
fn forget_other_threads() {
    fds::each(|_, entry| match entry {
        Entry::Conn(conn) => conn.forked(left::calls_on(conn)),
        Entry::Set(set) => set.forget_other_threads(),
    });
    fds::each(|_, entry| {
        if let Entry::Conn(conn) = entry {
            conn.refs.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// This process ends without closing what it has: others hold alone again what it inherited, and peers that nap look.
pub(crate) fn leaving() {
    let Some(w) = fds::world() else { return };
    if fds::borrowed() {
        return;
    }
    each_conn(|_, conn| {
        conn.wakes_by_bells(w, true);
        let _ = conn.leave(w);
    });
}

/// Another program takes this process over by `exec`, which answers only if it does not.
pub(crate) fn replacing(exec: impl FnOnce() -> c_int) -> c_int {
    if fds::borrowed() {
        handing_over();
        return exec();
    }
    hand_over(true, |conn| matches!(conn.phase(), Phase::Attached | Phase::Offered));
    let left = left_behind();
    if let Some(w) = fds::world() {
        // What is closed now, nobody tells but the kernel.
        each_conn(|_, conn| conn.wakes_by_bells(w, true));
    }
    let failed = exec();
    if let Some(w) = fds::world() {
        each_conn(|_, conn| conn.wakes_again(w));
        left.into_iter().for_each(|(conn, left)| conn.comes_back(w, left));
    }
    failed
}

/// Connections that we hold together with others, and that no descriptor leads the next program to.
fn left_behind() -> Vec<(&'static Conn, local::conn::Left)> {
    let Some(w) = fds::world() else { return Vec::new() };
    let (mut closed, mut kept) = (Vec::new(), Vec::new());
    fds::each(|fd, entry| {
        if let Entry::Conn(conn) = entry
            && conn.is_held_with_others(w)
        {
            let stays = call::getfd(fd).is_ok_and(|f| f & libc::FD_CLOEXEC == 0);
            if stays { kept.push(conn) } else { closed.push(conn) }
        }
    });
    closed.retain(|conn| !kept.iter().any(|kept| std::ptr::eq(*kept, *conn)));
    closed.sort_by_key(|conn| std::ptr::from_ref(*conn).addr());
    closed.dedup_by(|a, b| std::ptr::eq(*a, *b));
    closed.into_iter().map(|conn| (conn, conn.leave(w))).collect()
}

/// Another program takes descriptors of this process: what it inherits must be plain TCP, and stay so.
pub(crate) fn handing_over() {
    let may = [Phase::Attached, Phase::Offered, Phase::Server, Phase::Busy];
    hand_over(false, |conn| may.contains(&conn.phase()));
}

/// Whether a new program will have a listener that promises SMC to clients of other hosts, or may.
pub(crate) fn gives_promises() -> bool {
    let mut any = false;
    fds::each(|fd, entry| {
        if let Entry::Conn(conn) = entry
            && conn.phase() == Phase::Listener
            && conn.opted.load(Ordering::Relaxed) == remote::ASKED
        {
            any |= call::getfd(fd).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0);
        }
    });
    any
}

/// Leads the connections that a new program will have, and of which `which` is true, to TCP. `own`: it takes the place of
/// this process.
fn hand_over(own: bool, which: impl Fn(&Conn) -> bool) {
    let Some(w) = fds::world() else { return };
    let borrowed = fds::borrowed();
    fds::each(|fd, entry| {
        let Entry::Conn(conn) = entry else { return };
        if !which(conn) || call::getfd(fd).is_ok_and(|f| f & libc::FD_CLOEXEC != 0) {
            return;
        }
        if borrowed && !conn.is_socket(fd) || io::to_tcp(w, conn, fd, Reason::Exec) {
            return;
        }
        if fd == 0 {
            // The new program would read its standard input from a stream that lies elsewhere.
            remains::cut_off(w, conn, fd, own || borrowed);
        } else if own && conn.seems_deserted(w) {
            remains::cut_here(fd);
        } else if own && conn.cannot_go_back(w) {
            // Nobody would read what is in the ring, or be heard: better no stream than one with a hole.
            remains::cut_off(w, conn, fd, true);
        } else {
            conn.clear_of_bells(w, fd);
        }
    });
}

/// Before privileges are dropped or the root changes: what we need later must be open.
pub(crate) fn prepare_early() {
    if let Some(w) = fds::world() {
        let _ = w.board.ensure_slot();
        let _ = w.board.netlink();
    }
}

/// Whether rings need not be looked at: there is nothing of ours that they could work on.
pub(crate) fn is_past_rings() -> bool {
    all_on_tcp().is_some() || fds::world().is_none()
}

/// A ring is about to work on something of ours: everything goes by TCP from now on. A connection whose peer does not
/// answer ends, since the ring would see what is not the program's.
pub(crate) fn rings_take_over() {
    all_to_tcp(Reason::IoUring);
}

/// The program may soon be ended for calls that it does not make itself: everything goes by TCP from now on. A connection
/// whose peer does not answer stays where it is.
pub(crate) fn filtered() {
    all_to_tcp(Reason::Filtered);
}

fn all_to_tcp(reason: Reason) {
    let Some(w) = fds::world() else { return };
    let errno = real::errno();
    if ALL_ON_TCP.swap(reason.code(), Ordering::Relaxed) == 0 {
        // Before the table is read: see `beside_all`.
        fence(Ordering::SeqCst);
        each_conn(|fd, conn| to_tcp_with_all(w, conn, fd, reason));
    }
    real::set_errno(errno);
}

/// A connection that is followed now, but was not when another thread had all of them led to TCP.
fn beside_all(w: &'static World, conn: &'static Conn, fd: c_int) {
    // After it has been entered in the table: who has said that all go by TCP has seen it there, or is seen here.
    fence(Ordering::SeqCst);
    if let Some(reason) = all_on_tcp() {
        to_tcp_with_all(w, conn, fd, reason);
    }
}

fn to_tcp_with_all(w: &'static World, conn: &'static Conn, fd: c_int, reason: Reason) {
    if is_beside_tcp(conn) && !io::to_tcp(w, conn, fd, reason) && reason == Reason::IoUring {
        remains::cut_off(w, conn, fd, false);
    }
}

/// Whether there is more to a connection than what the kernel has of it.
fn is_beside_tcp(conn: &Conn) -> bool {
    matches!(conn.phase(), Phase::Attached | Phase::Offered | Phase::Server | Phase::Busy)
}

/// The program begins to use io_uring in a way that is not seen: everything goes by TCP from now on. `false`: a peer did
/// not answer, so that a ring would see what is not the program's.
pub(crate) fn uring() -> bool {
    let Some(w) = fds::world() else { return true };
    if ALL_ON_TCP.swap(Reason::IoUring.code(), Ordering::Relaxed) != 0 {
        return true;
    }
    let mut all = true;
    each_conn(|fd, conn| {
        if is_beside_tcp(conn) {
            all &= io::to_tcp(w, conn, fd, Reason::IoUring);
        }
    });
    if !all {
        ALL_ON_TCP.store(0, Ordering::Relaxed);
    }
    all
}

/// A message with control data is about to be sent on a socket that is not ours: descriptors in it
/// must be plain TCP for whoever receives them.
///
/// # Safety
///
/// `msg` is valid, as `sendmsg` asks.
pub(crate) unsafe fn passing(msg: *const msghdr) {
    let Some(w) = fds::world() else { return };
    // SAFETY: the caller's promise.
    let mut at: *mut cmsghdr = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR stay inside of the control data.
        let head = unsafe { &*at };
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: the same.
            let start = unsafe { libc::CMSG_DATA(at) };
            // SAFETY: pure arithmetic.
            let header = unsafe { libc::CMSG_LEN(0) } as usize;
            let n = head.cmsg_len.saturating_sub(header) / size_of::<c_int>();
            for i in 0..n {
                // SAFETY: inside of the message, perhaps not aligned.
                let fd = unsafe { start.cast::<c_int>().add(i).read_unaligned() };
                if let Some(conn) = fds::conn(fd)
                    && conn.phase() != Phase::Listener
                    && !io::to_tcp(w, conn, fd, Reason::Passed)
                {
                    remains::cut_off(w, conn, fd, false);
                }
                ready::passed(w, fd);
            }
        }
        // SAFETY: the caller's promise.
        at = unsafe { libc::CMSG_NXTHDR(msg, at) };
    }
}

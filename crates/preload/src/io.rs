//! Moving bytes: what a receive or a send on one of our descriptors comes to.

use std::ffi::c_int;

use libc::{iovec, msghdr, ssize_t};
use local::Reason;
use local::conn::{Conn, Got, Kept, Phase, Put, kernel, options};
use local::turns::Turns;
use local::world::World;
use sys::abi::Half;
use sys::iov::Buffers;
use sys::sync::Ordering;
use sys::wait::WaitWord;
use sys::{cache, call, handler, lock, ring};

use crate::finally::Finally;
use crate::left::{self, Wait};
use crate::nap::{self, Behind, Nap};
use crate::{fds, life, ready, real, remains, remote};

mod early;
mod held;
mod limits;
mod splicing;

pub(crate) use held::{Held, ends, release};
pub(crate) use splicing::{splice_in, splice_out};

use early::{is_attached, receive_tcp};
use held::hold;
use limits::{patience_left, receive_time_left, send_time_left};

const SIOCATMARK: u64 = 0x8905;
const SIOCINQ: u64 = 0x541b;

/// A value, or an errno.
pub(crate) type Outcome = Result<usize, c_int>;

/// Gives an outcome to the guest, the way libc does.
pub(crate) fn answer(outcome: Outcome) -> ssize_t {
    match outcome {
        Ok(n) => n.cast_signed(),
        Err(errno) => {
            real::set_errno(errno);
            -1
        }
    }
}

/// libc's answer as an outcome.
fn outcome(n: ssize_t) -> Outcome {
    usize::try_from(n).map_err(|_| real::errno())
}

/// A connection, if calls on it may need more than libc: not fresh, not on TCP for good.
#[inline]
pub(crate) fn active(fd: c_int) -> Option<(&'static World, &'static Conn)> {
    let conn = fds::conn(fd)?;
    match conn.phase() {
        Phase::Server | Phase::Offered | Phase::Attached | Phase::Busy => {
            Some((fds::world()?, conn))
        }
        Phase::Fresh | Phase::Listener | Phase::Tcp => None,
        Phase::Asked => asked(fd, conn),
    }
}

/// A connection to another host that the engine may have to take first.
#[cold]
fn asked(fd: c_int, conn: &'static Conn) -> Option<(&'static World, &'static Conn)> {
    let w = fds::world()?;
    remote::resolve(w, conn, fd);
    (phase(conn) == Phase::Attached).then_some((w, conn))
}

/// Waits for another thread that is attaching the connection. Not for our own, which may see to it that it stays on TCP.
fn phase(conn: &Conn) -> Phase {
    let mut turns = Turns::default();
    loop {
        match conn.phase() {
            Phase::Busy if conn.is_staying_here() => return Phase::Tcp,
            Phase::Busy => turns.next("attaches", conn),
            other => return other,
        }
    }
}

/// Looks whether the connection can be attached, and does what follows from it.
pub(crate) fn settle(w: &'static World, conn: &'static Conn, fd: c_int, data: bool) -> bool {
    let attached = conn.settle(w, fd, data);
    if attached {
        ready::attached(w, conn);
    }
    attached
}

/// [`settle`] of a connection that has just been accepted: see [`Conn::meet`].
pub(crate) fn meet(w: &'static World, conn: &'static Conn, fd: c_int) {
    if conn.meet(w, fd) {
        ready::attached(w, conn);
    }
}

/// Takes an offer back before what only TCP can do. `false`: too late, and its event sets have been told
/// that it is attached.
pub(crate) fn keep_tcp(w: &'static World, conn: &'static Conn, fd: c_int, reason: Reason) -> bool {
    let kept = conn.keep_tcp(w, fd, reason);
    if !kept {
        ready::attached_late(w, conn);
    }
    kept
}

/// A call that cannot be made on a ring: everything goes by TCP from now on. `false`: the peer did
/// not answer in time, the connection is as before.
pub(crate) fn to_tcp(w: &'static World, conn: &'static Conn, fd: c_int, reason: Reason) -> bool {
    match phase(conn) {
        Phase::Tcp | Phase::Listener | Phase::Asked => true,
        Phase::Attached if reason.is_for_others() && remains::put_in_place(w, conn, fd) => true,
        // Both directions have ended: nothing will move any more.
        Phase::Attached if conn.has_ended(w) || conn.is_stranded(w, fd) => {
            ready::unpark_all(conn);
            true
        }
        _ => {
            let done = conn.demote(w, fd, reason);
            if done {
                ready::detached(w, conn);
            } else {
                conn.thaw(w);
                ready::attached_late(w, conn);
                ready::thawed(w, conn);
            }
            // The peer may have gone meanwhile.
            if !done
                && reason.is_for_others()
                && !remains::put_in_place(w, conn, fd)
                && conn.is_torn(w)
            {
                remains::cut_off(w, conn, fd, false);
            }
            phase(conn) == Phase::Tcp || done
        }
    }
}

fn is_nonblocking(w: &World, conn: &Conn, fd: c_int) -> bool {
    if conn.is_shared(w) {
        conn.nonblock.store(0, Ordering::Relaxed);
    }
    match conn.nonblock.load(Ordering::Relaxed) {
        1 => false,
        2 => true,
        _ => {
            let on = call::getfl(fd).is_ok_and(|fl| fl & libc::O_NONBLOCK != 0);
            conn.nonblock.store(1 + u32::from(on), Ordering::Relaxed);
            on
        }
    }
}

// ----- receiving ---------------------------------------------------------------------------------

/// Receives into `iov`. `msg`: the guest's message header, of which only the buffers are used here.
///
/// # Safety
///
/// As `recvmsg` asks of its buffers.
pub(crate) unsafe fn receive(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    is_read: bool,
) -> Outcome {
    nap::cancelled();
    // SAFETY: the caller's promise.
    unsafe { receive_at_once(w, conn, fd, iov, flags, is_read) }
}

/// [`receive`] in the middle of a call, where no thread is to be cancelled.
///
/// # Safety
///
/// As of [`receive`].
unsafe fn receive_at_once(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    is_read: bool,
) -> Outcome {
    if is_read && iov.iter().all(|v| v.iov_len == 0) {
        return Ok(0);
    }
    // What a jump has lost is counted before anything goes by the counts. Not where a call goes on: what it has
    // noted itself would look left.
    left::tidy();
    // SAFETY: the caller's promise.
    let got = unsafe { receive_held(w, conn, fd, iov, flags, &mut None) };
    ready::has_read(w, conn);
    got
}

/// [`receive`], by a call that may hold the connection open already.
unsafe fn receive_held(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    held: &mut Option<Held>,
) -> Outcome {
    if phase(conn) == Phase::Offered {
        conn.io_seen(w);
        settle(w, conn, fd, false);
    }
    if phase(conn) != Phase::Attached {
        // SAFETY: the caller's promise.
        if let Some(out) = unsafe { receive_tcp(w, conn, fd, iov, flags, held) } {
            return out;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { receive_ring(w, conn, conn.descriptor(fd), iov, flags, held) }
}

/// A receive of the kernel's has ended. If the connection was attached meanwhile, nobody need ring for
/// it any more.
pub(crate) fn received(w: &'static World, conn: &'static Conn) {
    if conn.phase() == Phase::Attached
        && let Some((_, mine)) = conn.my_half(w)
    {
        let _held = lock::lock(&mine.wait_lock);
        if conn.sleepers(mine) == 0 {
            ready::restore(w, conn, mine);
        }
    }
}

/// The buffers behind the first `n` bytes.
fn skip(iov: &[iovec], mut n: usize, to: &mut [iovec]) -> usize {
    let mut count = 0;
    for v in iov {
        let here = n.min(v.iov_len);
        n -= here;
        if here < v.iov_len {
            to[count] = iovec {
                iov_base: v.iov_base.cast::<u8>().wrapping_add(here).cast(),
                iov_len: v.iov_len - here,
            };
            count += 1;
        }
    }
    count
}

/// The call itself: waits where the guest wants to wait, and is a cancellation point.
unsafe fn receive_kernel(fd: c_int, iov: &[iovec], flags: c_int) -> Outcome {
    if let [one] = iov {
        // SAFETY: the caller's promise.
        return outcome(unsafe { real::recv(fd, one.iov_base, one.iov_len, flags) });
    }
    // SAFETY: all zeros is a valid header.
    let mut msg: msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_ptr().cast_mut();
    msg.msg_iovlen = iov.len();
    // SAFETY: the caller's promise.
    outcome(unsafe { real::recvmsg(fd, &raw mut msg, flags) })
}

unsafe fn receive_ring(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    held: &mut Option<Held>,
) -> Outcome {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // SAFETY: the caller's promise.
        return unsafe { receive_kernel(fd, iov, flags) };
    }
    // SAFETY: the caller's promise.
    let mut to = unsafe { Buffers::new(iov) }?;
    let want = to.left();
    let (mut total, mut fd, mut growing) = (0, fd, None);
    loop {
        let got = if flags & libc::MSG_PEEK == 0 {
            conn.recv(w, fd, &mut to, flags)
        } else {
            conn.peek(w, fd, &mut to, flags)
        };
        match got {
            Got::Bytes(n) if peeks_all(flags) && n < want && !dont_wait(w, conn, fd, flags) => {
                // Nothing is taken, so nothing can be waited for but more of it.
                // SAFETY: the caller's promise.
                to = unsafe { Buffers::new(iov) }?;
                let since = *growing.get_or_insert_with(|| waits_since(held));
                if !grows(w, conn, fd, (n, want), since) {
                    return Ok(n);
                }
            }
            Got::Bytes(n) => {
                total += n;
                if flags & libc::MSG_WAITALL == 0 || flags & libc::MSG_PEEK != 0 || to.left() == 0 {
                    return Ok(total);
                }
            }
            Got::Part(n) => {
                total += n;
                if flags & libc::MSG_PEEK != 0 || to.left() == 0 {
                    return Ok(total);
                }
            }
            got if Conn::is_retry(got) => {}
            Got::Empty => {
                if total > 0 && flags & libc::MSG_WAITALL == 0 {
                    return Ok(total);
                }
                if flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(w, conn, fd) {
                    return if total > 0 { Ok(total) } else { Err(libc::EAGAIN) };
                }
                let waited = wait(w, conn, fd, false, held);
                fd = conn.descriptor(fd);
                if let Err(errno) = waited {
                    return if total > 0 { Ok(total) } else { Err(errno) };
                }
            }
            Got::End => return Ok(total),
            Got::Kernel => {
                fd = match held::goes_on(w, conn, fd, held) {
                    Err(_) if total > 0 => return Ok(total),
                    own => own?,
                };
                if conn.phase() == Phase::Tcp {
                    ready::detached(w, conn);
                }
                // An error that a look of ours took from the socket.
                if total == 0
                    && let Some(errno) = conn.tell_kept(w, fd)
                {
                    return Err(errno);
                }
                if total > 0 && to.left() == 0 {
                    return Ok(total);
                }
                let all = flags & libc::MSG_WAITALL != 0;
                if total > 0 && !all && call::ioctl_int(fd, SIOCINQ).is_ok_and(|there| there == 0) {
                    // What has been read already is an answer. An end stays for the next call, and so does an error,
                    // which a look would take out of the socket: nobody may come by it then but the kernel.
                    return Ok(total);
                }
                if total > 0 && call::ioctl_int(fd, SIOCATMARK) == Ok(1) {
                    // A read stops at urgent data.
                    return Ok(total);
                }
                let mut rest =
                    vec![iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; iov.len()];
                let count = skip(iov, total, &mut rest);
                if total > 0 && all && conn.phase() == Phase::Tcp {
                    match hold(w, conn, fd, held) {
                        Ok(own) => own.is_rest = true,
                        Err(_) => return Ok(total),
                    }
                    // SAFETY: the rest of the guest's buffers.
                    let got = unsafe { receive_held(w, conn, fd, &rest[..count], flags, held) };
                    return Ok(total + early::rest(w, conn, &got));
                }
                if total > 0 && is_only_ended(fd) {
                    // The kernel keeps an error for the next call when this one has brought bytes.
                    return Ok(total);
                }
                let flags = if total > 0 && !all { flags | libc::MSG_DONTWAIT } else { flags };
                // SAFETY: the rest of the guest's buffers.
                return match unsafe { receive_kernel(fd, &rest[..count], flags) } {
                    Ok(n) => Ok(total + n),
                    Err(errno) if total > 0 => {
                        if !matches!(errno, libc::EAGAIN | libc::EINTR) {
                            conn.tell_later(w, errno);
                        }
                        Ok(total)
                    }
                    Err(errno) => {
                        conn.tells(w, errno);
                        Err(errno)
                    }
                };
            }
            Got::Failed(errno) => {
                if total > 0 {
                    conn.tell_later(w, errno);
                    return Ok(total);
                }
                return Err(errno);
            }
        }
    }
}

/// Whether a socket has ended, well or not, and has nothing more to read.
fn is_only_ended(fd: c_int) -> bool {
    let mut look = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    call::poll(&mut look, 0).is_ok_and(|n| n > 0)
        && call::ioctl_int(fd, libc::FIONREAD).is_ok_and(|there| there == 0)
}

/// `MSG_PEEK | MSG_WAITALL`.
fn peeks_all(flags: c_int) -> bool {
    flags & libc::MSG_PEEK != 0 && flags & libc::MSG_WAITALL != 0
}

fn dont_wait(w: &World, conn: &Conn, fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(w, conn, fd)
}

/// When a call began to wait, nanoseconds: now, if it has not.
fn waits_since(held: &Option<Held>) -> u64 {
    let since = held.as_ref().map(|held| held.since).filter(|since| *since != 0);
    since.unwrap_or_else(call::now_ns)
}

/// Waits until `want` bytes are unread; `false`: there are no more than `n`, and no more will come or the call, which
/// waits `since` then, has waited too long.
fn grows(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    (n, want): (usize, usize),
    since: u64,
) -> bool {
    let limit =
        call::getsockopt::<[i64; 2]>(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO).unwrap_or([0, 0]);
    let limit_ns = limit[0].saturating_mul(1_000_000_000).saturating_add(limit[1] * 1000);
    let limit_ns = limit_ns.cast_unsigned();
    loop {
        let peer = conn.halves(w).filter(|_| conn.phase() == Phase::Attached).map(|(_, peer)| peer);
        let there = match peer {
            Some(_) => conn.unread(w, fd),
            None => call::ioctl_int(fd, libc::FIONREAD).ok().and_then(|n| usize::try_from(n).ok()),
        };
        let unread = there.unwrap_or(0);
        if unread >= want {
            return true;
        }
        let said = peer.is_some_and(|peer| {
            peer.flags.load(Ordering::Acquire)
                & (sys::abi::half_flags::SHUT | sys::abi::half_flags::CLOSED)
                != 0
        });
        // Before the attachment the kernel's end is that of the stream.
        let ended = said || peer.is_none() && call::ended(fd) || call::hung_up(fd);
        if ended || limit_ns > 0 && call::now_ns().saturating_sub(since) > limit_ns {
            return unread > n;
        }
        if peer.is_none() && is_attached(w, conn, fd) {
            continue;
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 300_000 };
        let nudge = conn.nudge.load(Ordering::Acquire);
        if call::futex_wait(&conn.nudge, nudge, Some(pause)) == Err(libc::EINTR) {
            return false;
        }
    }
}

// ----- waiting -----------------------------------------------------------------------------------

/// Waits until there may be something to read (`room`: room to write). An error is what the guest's
/// call ends with. Afterwards the descriptor may be another one: see [`Conn::descriptor`].
fn wait(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    room: bool,
    held: &mut Option<Held>,
) -> Result<(), c_int> {
    let Some((mine, peer)) = conn.halves(w) else { return Ok(()) };
    if interrupts(mine, room) {
        return Err(libc::EAGAIN);
    }
    if room {
        // What the call has sent so far the peer may have answered, and another thread closed the connection for that.
        conn.free_left_locks(w);
        hold(w, conn, fd, held)?;
    }
    let spin_ns = u64::try_from(w.limits.spin.as_nanos()).unwrap_or(0);
    let next = if room { None } else { conn.next_short(w, mine, peer) };
    let spun = conn.spin.until(
        spin_ns,
        || peer.cpu.load(Ordering::Relaxed),
        || Conn::peer_moved(peer),
        || {
            if let Some((at, n)) = next {
                cache::pull(at, n);
            }
            conn.moved(mine, peer, room)
        },
    );
    if spun {
        count(&mine.n_spins);
        return Ok(());
    }
    conn.free_left_locks(w);
    let held = hold(w, conn, fd, held)?;
    let is_first = held.since == 0;
    if is_first {
        held.since = call::now_ns();
    }
    let since = held.since;
    // One limit for the whole call, however often it wakes. The first receive of the kernel's keeps it by itself.
    let left = match (room, is_first) {
        (true, _) => send_time_left(fd, since),
        (false, true) => None,
        (false, false) => receive_time_left(conn, fd, since),
    };
    if left == Some(0) {
        return Err(libc::EAGAIN);
    }
    let patience = if room { patience_left(conn, fd, peer, &mut held.still) } else { None };
    if patience == Some(0) {
        remains::timed_out(w, conn, fd);
        return Err(libc::ETIMEDOUT);
    }
    // What only the kernel's patience ends goes on behind a handler that has SA_RESTART, unlike what has a limit.
    let steps = left.is_none() && patience.is_some();
    let timed = if room { options::SNDTIMEO } else { options::RCVTIMEO };
    if conn.options.load(Ordering::Relaxed) & timed == 0 && left.is_none() {
        if conn.may_be_nonblocking(w, mine) {
            // A receive of the kernel's would say so at once.
            conn.nonblock.store(0, Ordering::Relaxed);
            if is_nonblocking(w, conn, fd) {
                return Err(libc::EAGAIN);
            }
        }
        let moved = || conn.moved(mine, peer, room);
        let longest = nap::longest_ns(w);
        let longest = patience.map_or(longest, |ms| {
            longest.min(u64::try_from(ms).unwrap_or(0).saturating_mul(1_000_000))
        });
        match nap::nap(w, conn, (mine, peer), room, (longest, Behind::MayGoOn), moved) {
            Nap::Woken => return Ok(()),
            Nap::Interrupted => return Err(libc::EINTR),
            Nap::Over => {}
        }
    }
    // Another thread may have closed it meanwhile.
    let left = if steps { None } else { left.into_iter().chain(patience).min() };
    match sleep(w, conn, conn.descriptor(fd), mine, peer, (room, left, steps)) {
        // Which limit that was is found out when it waits again.
        Err(libc::EAGAIN) if patience.is_some() => Ok(()),
        ended => ended,
    }
}

/// Whether a handler makes this call in the middle of another of this thread's, which has the lock, and goes on only when
/// the handler has ended.
fn interrupts(mine: &Half, room: bool) -> bool {
    let word = if room { &mine.tx_lock } else { &mine.rx_lock };
    word.load(Ordering::Relaxed) == lock::tid()
}

pub(crate) fn count(counter: &sys::sync::AtomicU32) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// Arms, looks once more, sleeps in the kernel on the socket itself. `left`: of the time limit of who waits
/// for room, milliseconds.
fn sleep(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    mine: &Half,
    peer: &Half,
    (room, left, steps): (bool, Option<c_int>, bool),
) -> Result<(), c_int> {
    let nudge = conn.nudge.load(Ordering::Acquire);
    let mark = left::begin_inside(handler::here());
    let others = {
        let _held = lock::lock(&mine.wait_lock);
        let others = conn.sleepers(mine);
        mine.sleepers.fetch_add(1, Ordering::AcqRel);
        mark.now(Wait::Sleep(conn));
        if others == 0 {
            // Before we arm: a doorbell that is taken out after that would not ring again.
            drain_quietly(w, conn, fd, mine, peer);
        }
        let was = Conn::wait_word(mine);
        conn.arm_cold(w, mine);
        conn.end_own_naps(w, was, peer);
        others
    };
    let asleep = Finally(|| {
        mark.now(Wait::Nothing);
        wake_up(w, conn, mine);
    });
    let mut ready = conn.moved(mine, peer, room);
    if room {
        ready |= !conn.wait_for_room(mine, peer);
    }
    let mut result = Ok(());
    if !ready {
        count(&mine.n_sleeps);
        // A byte that may not be taken out, because another thread relies on it or because the
        // program has not read it yet, would end a sleep at once; so would our own end of receiving.
        let deaf = mine.flags.load(Ordering::Relaxed) & sys::abi::half_flags::SHUT_RD != 0;
        // While another thread leads it back to TCP, and perhaps in vain, nobody rings for what lies in the ring.
        let frozen = mine.flags.load(Ordering::Relaxed) & sys::abi::half_flags::WANT_DOWN != 0
            && peer.flags.load(Ordering::Relaxed) & sys::abi::half_flags::DOWN == 0;
        let announced = !may_quieten(w, conn, mine, peer);
        let blocked = frozen || steps || room && (deaf || announced || conn.is_mixed(mine, peer));
        result = if others > 0 || blocked {
            let timed = if room { options::SNDTIMEO } else { options::RCVTIMEO };
            let has_limit = conn.options.load(Ordering::Relaxed) & timed != 0 || left.is_some();
            let behind = if has_limit { Behind::Ends } else { Behind::MayGoOn };
            let woken = nap::pause(&conn.nudge, nudge, 1_000_000, behind);
            let _ = room && conn.is_heard(w, mine, peer);
            if call::ended(conn.descriptor(fd)) {
                conn.kernel.fetch_or(kernel::RDHUP, Ordering::Relaxed);
            }
            if woken == Err(libc::EINTR) { Err(libc::EINTR) } else { Ok(()) }
        } else {
            #[cfg(feature = "watchdog")]
            let _watched = ready::watchdog::on_conn(conn, fd, !room, room);
            match sleep_in_kernel(conn, fd, mine, peer, left) {
                // `SO_RCVTIMEO`, which is no limit of who waits for room.
                Err(libc::EAGAIN) if room && left.is_none() => Ok(()),
                ended => ended,
            }
        };
    }
    drop(asleep);
    drop(mark);
    result
}

/// A thread sleeps no more: the others look again, or the connection is armed as it was before.
pub(crate) fn wake_up(w: &'static World, conn: &'static Conn, mine: &Half) {
    let _held = lock::lock(&mine.wait_lock);
    if mine.sleepers.fetch_sub(1, Ordering::AcqRel) > 1 {
        conn.nudge.fetch_add(1, Ordering::Release);
        call::futex_wake(&conn.nudge, i32::MAX);
    } else if conn.phase() == Phase::Attached {
        ready::restore(w, conn, mine);
    }
}

/// Whether doorbells may be taken out by who is about to sleep for something else: not while there is something to read
/// that they announce to another process.
pub(crate) fn may_quieten(w: &World, conn: &Conn, mine: &Half, peer: &Half) -> bool {
    !conn.is_shared(w) && !conn.is_lent(w)
        || ring::tail(&peer.tail) == mine.head.load(Ordering::Relaxed)
}

/// Takes doorbells out of the socket, unless there is something to read that they announce.
fn drain_quietly(w: &World, conn: &Conn, fd: c_int, mine: &Half, peer: &Half) {
    if conn.is_mixed(mine, peer)
        && peer.bells.load(Ordering::Acquire) == mine.drained.load(Ordering::Relaxed)
    {
        return;
    }
    if let Some(_held) = lock::lock_of(&mine.rx_lock, &mine.lent) {
        let up = peer.flags.load(Ordering::Acquire) & sys::abi::half_flags::UP != 0;
        let switched = mine.tcp_rx.load(Ordering::Relaxed) >= peer.up_at.load(Ordering::Relaxed);
        if up && switched && may_quieten(w, conn, mine, peer) {
            conn.drain_bells(mine, peer, fd);
        }
    }
}

fn sleep_in_kernel(
    conn: &Conn,
    fd: c_int,
    mine: &Half,
    peer: &Half,
    left: Option<c_int>,
) -> Result<(), c_int> {
    let mut flags = libc::MSG_PEEK;
    // Another thread may have closed the number while we armed: who sleeps by what it leads to then is woken by nobody.
    let fd = conn.descriptor(fd);
    if let Some(ms) = left {
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }];
        // SAFETY: one descriptor in a valid place.
        match unsafe { real::poll(fds.as_mut_ptr(), 1, ms) } {
            0 => return Err(libc::EAGAIN),
            n if n < 0 => return Err(real::errno()),
            // What woke us may be the end of the peer, which is found out below.
            _ => flags |= libc::MSG_DONTWAIT,
        }
    }
    let mut byte = 0u8;
    // SAFETY: one byte in a valid place. The kernel's own wait: it ends with a doorbell, with the
    // end of the peer, with SO_RCVTIMEO (see the caller), and with a signal as the guest has asked for.
    let n = unsafe { real::recv(fd, (&raw mut byte).cast(), 1, flags) };
    let fd = conn.descriptor(fd);
    if n == 0 {
        conn.kernel.fetch_or(kernel::RDHUP, Ordering::Relaxed);
        return Ok(());
    }
    if n > 0 {
        if mine.drained.load(Ordering::Relaxed) == peer.bells.load(Ordering::Acquire) {
            conn.look_for_strays(mine, peer, fd);
        }
        if call::ended(fd) {
            conn.kernel.fetch_or(kernel::RDHUP, Ordering::Relaxed);
        }
        return Ok(());
    }
    match real::errno() {
        // Somebody else took what was there.
        libc::EAGAIN if flags & libc::MSG_DONTWAIT != 0 => Ok(()),
        e @ (libc::EAGAIN | libc::EINTR) => Err(e),
        errno => {
            conn.error.store(errno.cast_unsigned(), Ordering::Relaxed);
            conn.kernel.fetch_or(kernel::ERR | kernel::HUP | kernel::RDHUP, Ordering::Relaxed);
            Ok(())
        }
    }
}

// ----- sending -----------------------------------------------------------------------------------

/// A send is to be made without a copy, and to be told of when that has been read: only the kernel does both.
#[cold]
fn without_copies(w: &'static World, conn: &'static Conn, fd: c_int) {
    // Once: from here on the kernel has all that is sent.
    conn.options.fetch_and(!options::ZEROCOPY, Ordering::Relaxed);
    conn.stay.store(Reason::ZeroCopy.code(), Ordering::Relaxed);
    if !to_tcp(w, conn, fd, Reason::ZeroCopy) {
        conn.send_by_tcp(w, fd, Reason::ZeroCopy);
        ready::changed(w, conn);
    }
}

/// Bytes that a call moves at most (`MAX_RW_COUNT`).
pub(crate) const MOVED_MAX: usize = 0x7fff_f000;

/// Sends what is in `iov`. `control`: a message header whose control data only the kernel can read.
///
/// # Safety
///
/// As `sendmsg` asks of its buffers.
pub(crate) unsafe fn transmit(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    control: Option<*const msghdr>,
) -> Outcome {
    nap::cancelled();
    left::tidy();
    if flags & libc::MSG_ZEROCOPY != 0
        && conn.options.load(Ordering::Relaxed) & options::ZEROCOPY != 0
    {
        without_copies(w, conn, fd);
    }
    if flags & libc::MSG_OOB != 0 || control.is_some() || flags & libc::MSG_FASTOPEN != 0 {
        let reason = if flags & libc::MSG_OOB != 0 { Reason::Urgent } else { Reason::Option };
        keep_tcp(w, conn, fd, reason);
        conn.send_by_tcp(w, fd, reason);
        ready::changed(w, conn);
    }
    if phase(conn) != Phase::Attached {
        if phase(conn) == Phase::Offered {
            conn.io_seen(w);
            settle(w, conn, fd, false);
        } else if phase(conn) == Phase::Server && conn.untried() {
            settle(w, conn, fd, false);
        }
    }
    match way(w, conn) {
        // SAFETY: the caller's promise.
        Way::Ring => unsafe { transmit_ring(w, conn, fd, iov, flags, control) },
        Way::Before => {
            if conn.phase() == Phase::Attached {
                ready::changed(w, conn);
            }
            let mut sending = ByTcp::new(w, conn, fd, handler::here())?;
            // SAFETY: the caller's promise.
            let out = unsafe { transmit_kernel(fd, iov, flags, control) };
            sending.ends(&out);
            if conn.phase() == Phase::Attached
                && let Some((_, half)) = conn.my_half(w)
            {
                // Attached while we sent; others may wait for our direction to switch.
                let _ = conn.go_up(w, half);
            }
            // Closed meanwhile, it may serve another connection after this.
            drop(sending);
            out
        }
        // SAFETY: the caller's promise.
        Way::Tcp => unsafe { transmit_kernel(fd, iov, flags, control) },
    }
}

/// By which way bytes go now.
enum Way {
    /// The ring.
    Ring,
    /// TCP, before our direction has switched: [`ByTcp`] or [`Conn::tcp_send_ends`] must follow.
    Before,
    /// TCP for good.
    Tcp,
}

/// Chooses the way; waits for another thread that is switching.
fn way(w: &'static World, conn: &'static Conn) -> Way {
    let mut turns = Turns::default();
    loop {
        match phase(conn) {
            Phase::Tcp | Phase::Listener | Phase::Asked => return Way::Tcp,
            Phase::Attached if conn.my_half(w).is_some_and(|(_, half)| conn.go_up(w, half)) => {
                return Way::Ring;
            }
            _ if conn.tcp_send_begins() => return Way::Before,
            _ => turns.next("switches our direction", conn),
        }
    }
}

/// A send by TCP before our direction has switched, from [`way`] on. It may be left by a jump, or its thread be
/// cancelled; others must not wait for it then.
struct ByTcp {
    held: Held,
    over: bool,
}

impl ByTcp {
    /// `at`: an address on the stack, in the frame of the call.
    fn new(w: &'static World, conn: &'static Conn, fd: c_int, at: usize) -> Result<Self, c_int> {
        let held = Held::new(w, conn, fd, at).inspect_err(|_| conn.tcp_send_was_none())?;
        held.mark.now(Wait::Sending(conn));
        Ok(Self { held, over: false })
    }

    /// It has come to this.
    fn ends(&mut self, out: &Outcome) {
        self.held.mark.now(Wait::Call(self.held.conn));
        self.held.conn.tcp_send_ends(*out.as_ref().unwrap_or(&0));
        self.over = true;
    }
}

impl Drop for ByTcp {
    fn drop(&mut self) {
        if !self.over {
            self.held.mark.now(Wait::Call(self.held.conn));
            self.held.conn.send_left(self.held.w);
        }
    }
}

unsafe fn transmit_kernel(
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    control: Option<*const msghdr>,
) -> Outcome {
    if let Some(msg) = control {
        // SAFETY: the caller's promise.
        return outcome(unsafe { real::sendmsg(fd, msg, flags) });
    }
    if let [one] = iov {
        // SAFETY: the caller's promise.
        return outcome(unsafe { real::send(fd, one.iov_base, one.iov_len, flags) });
    }
    // SAFETY: all zeros is a valid header.
    let mut msg: msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_ptr().cast_mut();
    msg.msg_iovlen = iov.len();
    // SAFETY: the caller's promise.
    outcome(unsafe { real::sendmsg(fd, &raw const msg, flags) })
}

unsafe fn transmit_ring(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    control: Option<*const msghdr>,
) -> Outcome {
    // SAFETY: the caller's promise.
    let mut from = unsafe { Buffers::new(iov) }?;
    let all = from.left();
    let (mut held, mut fd) = (None, fd);
    loop {
        match conn.send(w, fd, &mut from) {
            Put::All => return Ok(all),
            Put::Lost => return limits::lost(w, conn, all),
            Put::Full => {
                if flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(w, conn, fd) {
                    let moved = all - from.left();
                    if !full(w, conn) {
                        continue;
                    }
                    return if moved > 0 { Ok(moved) } else { Err(libc::EAGAIN) };
                }
                let waited = wait(w, conn, fd, true, &mut held);
                fd = conn.descriptor(fd);
                if let Err(errno) = waited {
                    return limits::ended(fd, errno, all - from.left());
                }
            }
            Put::Shut => return shut(w, conn, fd, all - from.left(), flags),
            Put::Failed(libc::EPIPE) => return broken_pipe(all - from.left(), flags),
            Put::Kernel => {
                let moved = all - from.left();
                fd = match held::goes_on(w, conn, fd, &mut held) {
                    Ok(fd) => fd,
                    Err(errno) => return limits::ended(fd, errno, moved),
                };
                ready::changed(w, conn);
                if moved == 0 {
                    // SAFETY: the caller's promise; nothing was taken from the buffers.
                    return unsafe { transmit_kernel(fd, iov, flags, control) }
                        .inspect_err(|errno| conn.tells(w, *errno));
                }
                let waits = flags & libc::MSG_DONTWAIT == 0 && !is_nonblocking(w, conn, fd);
                // SAFETY: the caller's promise.
                let rest = || unsafe { transmit_rest(fd, (iov, moved), flags, control) };
                return Ok(moved + if waits { told_with_more(w, conn, rest()) } else { 0 });
            }
            Put::Failed(errno) => return limits::failed(w, conn, errno, all - from.left()),
        }
    }
}

/// Sends by TCP what stands behind the first `moved` bytes of a call's. What becomes of it is not told by a signal: the
/// call has moved something.
///
/// # Safety
///
/// As [`transmit`].
unsafe fn transmit_rest(
    fd: c_int,
    (iov, moved): (&[iovec], usize),
    flags: c_int,
    control: Option<*const msghdr>,
) -> Outcome {
    let mut rest = vec![iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; iov.len()];
    let count = skip(iov, moved, &mut rest);
    // SAFETY: the caller's promise.
    let mut message = control.map(|control| unsafe { *control });
    if let Some(message) = &mut message {
        (message.msg_iov, message.msg_iovlen) = (rest.as_mut_ptr(), count);
    }
    let control = message.as_ref().map(std::ptr::from_ref);
    // SAFETY: parts of the caller's buffers.
    unsafe { transmit_kernel(fd, &rest[..count], flags | libc::MSG_NOSIGNAL, control) }
}

/// What a call of the kernel's has moved for one that has moved something before: what was wrong with it is for the next.
fn told_with_more(w: &World, conn: &Conn, got: Outcome) -> usize {
    got.unwrap_or_else(|errno| {
        if !matches!(errno, libc::EAGAIN | libc::EINTR | libc::EPIPE) {
            conn.tell_later(w, errno);
        }
        0
    })
}

/// Notes that a sender found no room, so that room becomes an event; `false`: there is some now.
fn full(w: &'static World, conn: &'static Conn) -> bool {
    ready::lacks_room(w, conn);
    conn.halves(w)
        .is_none_or(|(mine, peer)| conn.wait_for_room(mine, peer) || interrupts(mine, true))
}

/// The error that waits on a connection, which takes it away.
pub(crate) fn pending(w: &World, conn: &Conn, fd: c_int) -> Option<c_int> {
    let now = call::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ERROR).ok()?;
    let errno = conn.socket_error(w, fd, now);
    (errno != 0).then_some(errno)
}

/// Sending after our own end: an error that waits comes before `EPIPE`.
fn shut(w: &World, conn: &Conn, fd: c_int, moved: usize, flags: c_int) -> Outcome {
    match pending(w, conn, fd).filter(|errno| moved == 0 && *errno != libc::EPIPE) {
        Some(errno) => Err(errno),
        None => broken_pipe(moved, flags),
    }
}

/// `EPIPE`, and the signal that goes with it.
pub(crate) fn broken_pipe(moved: usize, flags: c_int) -> Outcome {
    if moved > 0 {
        return Ok(moved);
    }
    if flags & libc::MSG_NOSIGNAL == 0 {
        call::raise(libc::SIGPIPE);
    }
    Err(libc::EPIPE)
}

/// `sendfile` to a connection: the kernel reads the file straight into the ring.
///
/// # Safety
///
/// `offset` is null or valid.
pub(crate) unsafe fn send_file(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    file: c_int,
    offset: *mut libc::off_t,
    n: usize,
) -> Outcome {
    left::tidy();
    if phase(conn) == Phase::Offered {
        conn.io_seen(w);
        settle(w, conn, fd, false);
    }
    match way(w, conn) {
        Way::Ring => {}
        Way::Before => {
            let mut sending = ByTcp::new(w, conn, fd, handler::here())?;
            // SAFETY: the caller's promise.
            let out = outcome(unsafe { real::sendfile(fd, file, offset, n) });
            sending.ends(&out);
            return out;
        }
        // SAFETY: the caller's promise.
        Way::Tcp => return outcome(unsafe { real::sendfile(fd, file, offset, n) }),
    }
    // SAFETY: the caller's promise.
    let mut at = unsafe { offset.as_ref() }.copied();
    if at.is_none() && call::place(file) == Err(libc::ESPIPE) {
        // As the kernel has it, which would not know what to do with bytes that do not go.
        return Err(libc::EINVAL);
    }
    let n = n.min(MOVED_MAX);
    let mut total = 0;
    let (mut held, mut fd) = (None, fd);
    let of_file = std::cell::Cell::new(false);
    let result = loop {
        if total == n {
            break Ok(());
        }
        let read = |to: *mut [u8]| -> Result<usize, i32> {
            // SAFETY: the ring's own bytes, free for us to write.
            let to = unsafe { &mut *to };
            let got = match at {
                Some(at) => call::pread(file, to, at),
                None => call::read(file, to),
            };
            got.inspect_err(|_| of_file.set(true))
        };
        match conn.send_with(w, fd, n - total, read) {
            Ok(0) => break Ok(()),
            Ok(moved) => {
                total += moved;
                at = at.map(|at| at + moved.cast_signed() as libc::off_t);
            }
            Err(Put::Full) => {
                if is_nonblocking(w, conn, fd) {
                    if full(w, conn) {
                        break Err(libc::EAGAIN);
                    }
                    continue;
                }
                let waited = wait(w, conn, fd, true, &mut held);
                fd = conn.descriptor(fd);
                if let Err(errno) = waited {
                    break limits::ended(fd, errno, total).map(drop);
                }
            }
            Err(Put::Shut) => break shut(w, conn, fd, total, 0).map(drop),
            Err(Put::Failed(libc::EPIPE)) => break broken_pipe(total, 0).map(drop),
            Err(Put::Kernel) if total > 0 => {
                let Ok(fd) = held::goes_on(w, conn, fd, &mut held) else { break Ok(()) };
                ready::changed(w, conn);
                if !is_nonblocking(w, conn, fd) {
                    let place = at.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
                    // SAFETY: null, or a place of our own.
                    let rest = outcome(unsafe { real::sendfile(fd, file, place, n - total) });
                    total += told_with_more(w, conn, rest);
                }
                break Ok(());
            }
            Err(Put::Kernel | Put::Lost | Put::All) => {
                let fd = held::goes_on(w, conn, fd, &mut held)?;
                ready::changed(w, conn);
                // SAFETY: the caller's promise.
                return outcome(unsafe { real::sendfile(fd, file, offset, n) });
            }
            Err(Put::Failed(errno)) => break Err(errno),
        }
    };
    if let Some(at) = at {
        // SAFETY: the caller's promise; `at` came from there.
        unsafe { *offset = at };
    }
    match result {
        // What is wrong with the file the next call finds there.
        Err(errno) if total > 0 && errno != libc::EAGAIN && !of_file.get() => {
            limits::failed(w, conn, errno, total)
        }
        Err(errno) if total == 0 => Err(errno),
        _ => Ok(total),
    }
}

/// Has `put` write up to `n` bytes into the ring, without waiting. `EOPNOTSUPP`: they are not to go there now.
pub(crate) fn send_where_it_lies(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    n: usize,
    mut put: impl FnMut(*mut [u8]) -> Outcome,
) -> Outcome {
    match way(w, conn) {
        Way::Ring => {}
        Way::Before => {
            conn.tcp_send_ends(0);
            return Err(libc::EOPNOTSUPP);
        }
        Way::Tcp => return Err(libc::EOPNOTSUPP),
    }
    loop {
        match conn.send_with(w, fd, n, &mut put) {
            Ok(n) => return Ok(n),
            Err(Put::Full) if full(w, conn) => return Err(libc::EAGAIN),
            Err(Put::Full) => {}
            Err(Put::Failed(errno)) => return Err(errno),
            Err(Put::Shut | Put::Kernel | Put::Lost | Put::All) => return Err(libc::EOPNOTSUPP),
        }
    }
}

/// What the wait word says while nobody sleeps on the connection itself.
pub(crate) const AWAKE: WaitWord = WaitWord::Off;

#[cfg(test)]
mod tests;

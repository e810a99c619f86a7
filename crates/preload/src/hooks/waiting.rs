//! `poll`, `select`, `epoll` and their family.

use super::*;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    if let Some(list) = unsafe { polled(fds, n) } {
        let limit = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
        return poll::poll(list, limit, Some(&mut 0), &mut |list, left| {
            let limit = left.map(time_limit);
            let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: our own or the guest's array.
            unsafe { real::ppoll(list.as_mut_ptr(), list.len() as nfds_t, limit, std::ptr::null()) }
        });
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::poll(fds, n, timeout) }
}

/// The array of a `poll`, if it concerns us.
///
/// # Safety
///
/// As of `poll`.
pub(super) unsafe fn polled<'a>(fds: *mut pollfd, n: nfds_t) -> Option<&'a mut [pollfd]> {
    if fds.is_null() || n == 0 || n > 1 << 20 || fds::world().is_none() {
        return None;
    }
    // SAFETY: the caller's promise.
    let list = unsafe { std::slice::from_raw_parts_mut(fds, usize::try_from(n).ok()?) };
    poll::concerns(list).then_some(list)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { poll(fds, n, timeout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    fortified(usize::try_from(n).unwrap_or(usize::MAX), room / size_of::<pollfd>());
    // SAFETY: libc's contract, handed on.
    unsafe { poll(fds, n, timeout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = unsafe { timeout.as_ref() };
    if limit.is_none_or(valid)
        // SAFETY: libc's contract, handed on.
        && let Some(list) = unsafe { polled(fds, n) }
    {
        if pending_under(mask) {
            // SAFETY: libc's contract, handed on; a pending signal ends it at once.
            return unsafe { real::ppoll(fds, n, timeout, mask) };
        }
        return poll::poll(
            list,
            limit.map(nanos),
            mask.is_null().then_some(&mut 0),
            &mut |list, left| {
                let limit = left.map(time_limit);
                let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                // SAFETY: our own or the guest's array.
                unsafe { real::ppoll(list.as_mut_ptr(), list.len() as nfds_t, limit, mask) }
            },
        );
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::ppoll(fds, n, timeout, mask) }
}

/// Whether a signal waits that this mask would let through: then the kernel's call must be made,
/// and end with `EINTR`.
fn pending_under(mask: *const sigset_t) -> bool {
    // SAFETY: the caller's promise.
    let Some(mask) = (unsafe { mask.as_ref() }) else { return false };
    // SAFETY: all zeros is a valid set.
    let mut pending: sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place.
    if unsafe { libc::sigpending(&raw mut pending) } != 0 {
        return false;
    }
    (1..=64).any(|signal| {
        // SAFETY: valid sets.
        let waits = unsafe { libc::sigismember(&raw const pending, signal) } == 1;
        // SAFETY: valid sets.
        waits && unsafe { libc::sigismember(mask, signal) } == 0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    fortified(usize::try_from(n).unwrap_or(usize::MAX), room / size_of::<pollfd>());
    // SAFETY: libc's contract, handed on.
    unsafe { ppoll(fds, n, timeout, mask) }
}

/// Descriptors in a set as libc makes it.
const FD_SETSIZE: c_int = 1024;

/// `select` by way of `poll`, if any of its descriptors concerns us.
///
/// # Safety
///
/// As of `pselect`.
pub(super) unsafe fn selected(
    n: c_int,
    sets: [*mut fd_set; 3],
    limit: Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if n < 1 {
        return None;
    }
    fds::world()?;
    // As the kernel does: a set need not be longer than the table.
    let n = if n > FD_SETSIZE { n.min(call::descriptor_table().unwrap_or(n)) } else { n };
    let words = usize::try_from(n).ok()?.div_ceil(64);
    let mut lists = poll::Sets {
        words: sets.map(|s| {
            // SAFETY: the caller's promise: each set has at least `n` bits, in words.
            let whole = || unsafe { std::slice::from_raw_parts_mut(s.cast::<u64>(), words) };
            (!s.is_null()).then(whole)
        }),
        n,
    };
    let mut list = lists.list();
    if !poll::concerns(&list) {
        return None;
    }
    if pending_under(mask) {
        return None;
    }
    let (mut sleeps, mut naps) = (0u32, 0u32);
    let counted = mask.is_null().then_some(&mut naps);
    let got = poll::poll(&mut list, limit, counted, &mut |list, left| {
        sleeps = sleeps.saturating_add(1);
        let limit = left.map(time_limit);
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: our own array.
        unsafe { real::ppoll(list.as_mut_ptr(), list.len() as nfds_t, limit, mask) }
    });
    if got < 0 {
        return Some(got);
    }
    // All were looked at before the first sleep, or by it.
    Some(lists.answer(&list, sleeps.saturating_add(naps) > 1).unwrap_or_else(|errno| {
        real::set_errno(errno);
        -1
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = unsafe { timeout.as_ref() };
    let limit_ns = limit.map(|t| {
        u64::try_from(t.tv_sec)
            .unwrap_or(0)
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::try_from(t.tv_usec).unwrap_or(0).saturating_mul(1000))
    });
    if limit.is_none_or(|t| t.tv_sec >= 0 && t.tv_usec >= 0) {
        let start = call::now_ns();
        // SAFETY: libc's contract, handed on.
        if let Some(got) = unsafe { selected(n, [r, w, e], limit_ns, std::ptr::null()) } {
            if let Some(limit) = limit_ns {
                // Linux says how much is left.
                let left = limit.saturating_sub(call::now_ns() - start);
                // SAFETY: the caller's promise.
                unsafe {
                    *timeout = timeval {
                        tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(0),
                        tv_usec: i64::try_from(left % 1_000_000_000 / 1000).unwrap_or(0),
                    };
                }
            }
            return got;
        }
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::select(n, r, w, e, timeout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __select(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { select(n, r, w, e, timeout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = unsafe { timeout.as_ref() };
    if limit.is_none_or(valid)
        // SAFETY: libc's contract, handed on.
        && let Some(got) = unsafe { selected(n, [r, w, e], limit.map(nanos), mask) }
    {
        return got;
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::pselect(n, r, w, e, timeout, mask) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create(n: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    let fd = unsafe { real::epoll_create(n) };
    life::fresh(fd);
    ready::created(fd);
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: libc's contract, handed on.
    let fd = unsafe { real::epoll_create1(flags) };
    life::fresh(fd);
    ready::created(fd);
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    match fds::look(fd) {
        Some(fds::Entry::Conn(conn)) if conn.phase() != Phase::Listener => {
            if let Some(w) = fds::world() {
                // SAFETY: the caller's promise.
                let asked = unsafe { event.as_ref() }.copied();
                return ready::control(w, conn, epfd, op, fd, asked, &mut |_| {
                    // SAFETY: libc's contract, handed on.
                    unsafe { real::epoll_ctl(epfd, op, fd, event) }
                });
            }
        }
        Some(fds::Entry::Set(_)) => {
            if let Some(w) = fds::world() {
                ready::looked_at(w, fd);
            }
        }
        _ => {}
    }
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::epoll_ctl(epfd, op, fd, event) };
    if done == 0 {
        let asked = match op {
            libc::EPOLL_CTL_DEL => None,
            // SAFETY: the kernel has just read it.
            _ => unsafe { event.as_ref() }.map(|event| event.u64),
        };
        ready::other(epfd, op, asked);
    }
    done
}

/// The kernel refuses to report more events than this in one call.
const EVENTS_MAX: usize = i32::MAX as usize / size_of::<epoll_event>();

/// A wait on an event set of ours. `naps`: it may begin with a sleep that is not the kernel's, which would have a mask of signals
/// of its own.
unsafe fn epoll(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    limit: Option<u64>,
    naps: bool,
    sleep: &mut dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int,
) -> Option<c_int> {
    let set = fds::set(epfd)?;
    let w = fds::world()?;
    let n = usize::try_from(n).ok().filter(|n| *n > 0 && *n <= EVENTS_MAX)?;
    if events.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let list = unsafe { std::slice::from_raw_parts_mut(events, n) };
    nap::cancelled();
    Some(set.wait(w, epfd, list, limit, naps, sleep))
}

fn whole_ms(left: Option<u64>) -> c_int {
    // Rounded up: a wait must not end before its time.
    left.map_or(-1, |ns| c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}

fn room(list: &[epoll_event]) -> c_int {
    c_int::try_from(list.len()).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
) -> c_int {
    let limit = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
    // SAFETY: libc's contract, handed on.
    let ours = unsafe {
        epoll(epfd, events, n, limit, true, &mut |list, left| {
            real::epoll_wait(epfd, list.as_mut_ptr(), room(list), whole_ms(left))
        })
    };
    // SAFETY: libc's contract, handed on.
    ours.unwrap_or_else(|| unsafe { real::epoll_wait(epfd, events, n, timeout) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    if !pending_under(mask) {
        let limit = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
        // SAFETY: libc's contract, handed on.
        let ours = unsafe {
            epoll(epfd, events, n, limit, mask.is_null(), &mut |list, left| {
                real::epoll_pwait(epfd, list.as_mut_ptr(), room(list), whole_ms(left), mask)
            })
        };
        if let Some(got) = ours {
            return got;
        }
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::epoll_pwait(epfd, events, n, timeout, mask) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = unsafe { timeout.as_ref() };
    if limit.is_none_or(valid) && !pending_under(mask) {
        // SAFETY: libc's contract, handed on.
        let ours = unsafe {
            epoll(epfd, events, n, limit.map(nanos), mask.is_null(), &mut |list, left| {
                let limit = left.map(time_limit);
                let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                pwait2(epfd, list.as_mut_ptr(), room(list), limit, mask)
            })
        };
        if let Some(got) = ours {
            return got;
        }
    }
    // SAFETY: libc's contract, handed on.
    unsafe { pwait2(epfd, events, n, timeout, mask) }
}

/// The kernel's, also where libc is older than it: whoever calls by number does so because of that.
///
/// # Safety
///
/// As of the call.
unsafe fn pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    /// Bytes of the kernel's set of signals, which libc's begins with.
    const SIGNALS: usize = 8;
    // SAFETY: libc's contract, handed on.
    let got = unsafe { real::epoll_pwait2(epfd, events, n, timeout, mask) };
    if got != -1 || real::errno() != libc::ENOSYS {
        return got;
    }
    let at = [events.addr(), timeout.addr(), mask.addr()];
    let [epfd, n] = [epfd, n].map(|number| number.cast_unsigned() as usize);
    // SAFETY: the same by its number.
    let got =
        unsafe { real::syscall(libc::SYS_epoll_pwait2, epfd, at[0], n, at[1], at[2], SIGNALS) };
    #[expect(clippy::cast_possible_truncation, reason = "a count of events")]
    {
        got as c_int
    }
}

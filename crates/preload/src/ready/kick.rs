//! Interrupting a thread that waits in the kernel: a descriptor that is always readable.

use super::*;

impl Set {
    /// Interrupts a thread that waits on this set; of a set that processes share, it may be another one's, which looks then
    /// for what it does not know.
    pub(super) fn kick(&self, w: &World) {
        self.rouse(w);
        if self.forked.load(Ordering::Relaxed) || self.is_used_elsewhere(w) {
            self.has_changed(w);
        }
        let fd = kick_fd();
        if fd < 0 {
            return;
        }
        let events = IN | ONESHOT;
        if call::epoll_ctl(self.epfd(), libc::EPOLL_CTL_MOD, fd, events, KICK).is_err() {
            let _ = call::epoll_ctl(self.epfd(), libc::EPOLL_CTL_ADD, fd, events, KICK);
        }
    }
}

static KICK_FD: AtomicU32 = AtomicU32::new(u32::MAX);

/// A descriptor that is always readable.
pub(super) fn kick_fd() -> c_int {
    let fd = KICK_FD.load(Ordering::Relaxed);
    if fd != u32::MAX {
        return fd.cast_signed();
    }
    let Ok(new) = call::eventfd(1) else { return -1 };
    let up = match call::dup_above(new, crate::high_fd()) {
        Ok(up) => {
            let _ = call::close(new);
            up
        }
        Err(_) => new,
    };
    match KICK_FD.compare_exchange(
        u32::MAX,
        up.cast_unsigned(),
        Ordering::Relaxed,
        Ordering::Relaxed,
    ) {
        Ok(_) => up,
        Err(other) => {
            let _ = call::close(up);
            other.cast_signed()
        }
    }
}

/// Moves it off a number that the program is about to use. Sets know it by the old number, and by that it wakes them once
/// more at most; the next kick adds the new one. `false`: there is no other number.
pub(crate) fn move_kick(fd: c_int) -> bool {
    let Ok(up) = call::dup_aside(fd, crate::high_fd()) else { return false };
    let (from, to) = (fd.cast_unsigned(), up.cast_unsigned());
    if KICK_FD.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        let _ = call::close(up);
    }
    true
}

/// Whether `fd` is the one that interrupts waits.
pub(crate) fn is_kick(fd: c_int) -> bool {
    fd >= 0 && fd.cast_unsigned() == KICK_FD.load(Ordering::Relaxed)
}

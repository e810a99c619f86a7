//! What whoever started this process has left for it: descriptors, as systemd does (`sd_listen_fds(3)`), and its environment.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::call;

/// The first that is handed over.
const FIRST: RawFd = 3;
/// More than anybody hands over.
const MOST: RawFd = 1024;

/// Whether they have been taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// How many there are for the process of number `pid`, of what `LISTEN_PID` and `LISTEN_FDS` say.
fn count(pid: u32, listen_pid: Option<&str>, listen_fds: Option<&str>) -> RawFd {
    if listen_pid.and_then(|text| text.parse().ok()) != Some(pid) {
        return 0;
    }
    let count = listen_fds.and_then(|text| text.parse::<RawFd>().ok());
    count.filter(|count| (0..=MOST).contains(count)).unwrap_or(0)
}

/// Takes the descriptors that were handed over, in their order; none the second time. Programs that we start
/// do not get them.
#[must_use]
pub fn take() -> Vec<OwnedFd> {
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let variable = |name: &str| std::env::var(name).ok();
    let (pid, fds) = (variable("LISTEN_PID"), variable("LISTEN_FDS"));
    let count = count(call::getpid(), pid.as_deref(), fds.as_deref());
    let all = FIRST..FIRST + count;
    all.filter(|fd| {
        // SAFETY: a system call on a number, which fails for one that is no descriptor.
        let flags = unsafe { libc::fcntl(*fd, libc::F_GETFD) };
        // SAFETY: as above; what it changes is whether programs that we start get it.
        flags >= 0 && unsafe { libc::fcntl(*fd, libc::F_SETFD, flags | libc::FD_CLOEXEC) } >= 0
    })
    // SAFETY: it is open, as has just been asked. That it is for us to close is what the two variables say: who
    // started us has put it there for this process, by its number, and nothing in this process has opened a
    // descriptor under that number since, because it was never free. `TAKEN` sees to it that it has one owner.
    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
    .collect()
}

/// Whether the loader has taken away of the environment what could lead this process astray (`AT_SECURE` in `ld.so(8)`),
/// since it has rights by its file that who started it has not.
#[must_use]
pub fn environment_is_cut() -> bool {
    // SAFETY: it reads what the kernel has left there.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn they_are_for_one_process() {
        for (pid, fds, n) in [
            (Some("7"), Some("2"), 2),
            (Some("8"), Some("2"), 0),
            (None, Some("2"), 0),
            (Some("7"), None, 0),
            (Some("7"), Some("-1"), 0),
            (Some("7"), Some("99999"), 0),
            (Some("7"), Some("two"), 0),
        ] {
            assert_eq!(count(7, pid, fds), n, "{pid:?} {fds:?}");
        }
    }
}

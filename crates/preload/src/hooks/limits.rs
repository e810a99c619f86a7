//! How much address space a program may have, but for ours.
//!
//! The board and the table of descriptors are some 16 GiB of addresses of which next to nothing exists. A program that limits
//! itself once it runs (`RLIMIT_AS`), as `vsftpd` does for each of its clients, means what it has besides: with all of ours
//! counted it could map nothing any more. So its limit is put up by what is ours, and it is told what it has set. The same
//! goes for a limit from before the program began; where the hard one is in the way, everything stays on TCP. Of programs
//! that are started by `posix_spawn` and its kin the limit stays what it is here, with ours.
//!
//! And how large files may be (`RLIMIT_FSIZE`), for lines of ours in one.

use libc::{RLIM_INFINITY, RLIMIT_AS, RLIMIT_FSIZE, rlimit};
use sys::abi::FILE_BYTES;
use sys::sync::{AtomicU32, Ordering};

use super::*;

/// Which of the two limits have ours added: [`SOFT`], [`HARD`]. A `vfork` child does not change it: what it sets counts for
/// itself and the program that it becomes.
static LIFTED: AtomicU32 = AtomicU32::new(0);
const SOFT: u32 = 1;
const HARD: u32 = 2;

/// Bytes of addresses that are ours; `None`: the limits are left alone.
fn ours(resource: c_uint) -> Option<u64> {
    let w = fds::world().filter(|_| resource == RLIMIT_AS && !fds::borrowed())?;
    let [board, table] = [w.board.map.range(), fds::range()].map(|range| range.len() as u64);
    Some(board + table)
}

/// A limit with what is ours, if it is one.
fn lifted(limit: u64, ours: u64) -> u64 {
    if limit == RLIM_INFINITY { limit } else { limit.saturating_add(ours) }
}

/// What was set, if this is what [`lifted`] has made of it.
fn lowered(limit: u64, ours: u64, is_lifted: bool) -> u64 {
    if limit == RLIM_INFINITY || !is_lifted { limit } else { limit.saturating_sub(ours) }
}

/// Limits as the program knows them.
fn known(limits: rlimit, ours: u64) -> rlimit {
    let lifted = LIFTED.load(Ordering::Relaxed);
    rlimit {
        rlim_cur: lowered(limits.rlim_cur, ours, lifted & SOFT != 0),
        rlim_max: lowered(limits.rlim_max, ours, lifted & HARD != 0),
    }
}

/// Sets limits, with ours, by `call_it`.
fn set(wanted: rlimit, ours: u64, call_it: impl Fn(&rlimit) -> c_int) -> c_int {
    let is_finite = |limit: u64, bit: u32| if limit == RLIM_INFINITY { 0 } else { bit };
    let with =
        rlimit { rlim_cur: lifted(wanted.rlim_cur, ours), rlim_max: lifted(wanted.rlim_max, ours) };
    let bits = is_finite(wanted.rlim_cur, SOFT) | is_finite(wanted.rlim_max, HARD);
    let errno = real::errno();
    if call_it(&with) == 0 {
        LIFTED.store(bits, Ordering::Relaxed);
        return 0;
    }
    if real::errno() != libc::EPERM {
        return -1;
    }
    // The hard limit is from before us, or was lowered with us: it cannot be put up.
    let mut have = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    unsafe { real::getrlimit(RLIMIT_AS, &raw mut have) };
    if wanted.rlim_max <= known(have, ours).rlim_max && wanted.rlim_cur <= wanted.rlim_max {
        real::set_errno(errno);
        let cut = rlimit {
            rlim_cur: with.rlim_cur.min(have.rlim_max),
            rlim_max: wanted.rlim_max.max(have.rlim_max.min(with.rlim_max)),
        };
        if call_it(&cut) == 0 {
            let hard = if cut.rlim_max == with.rlim_max { bits & HARD } else { 0 };
            let soft = if cut.rlim_cur == with.rlim_cur { bits & SOFT } else { 0 };
            LIFTED.store(soft | hard, Ordering::Relaxed);
            return 0;
        }
    }
    let done = call_it(&wanted);
    if done == 0 {
        LIFTED.store(0, Ordering::Relaxed);
    }
    done
}

/// What files may have is said to who writes lines. Not what a child of `vfork` sets: that counts for itself.
fn files_end_at(resource: c_uint, limit: u64) {
    if resource == RLIMIT_FSIZE && !fds::borrowed() {
        local::log::files_end_at(limit);
    }
}

/// Asks how large files may be, before anything is said.
pub(crate) fn ask_for_files() {
    let mut have = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    if unsafe { real::getrlimit(RLIMIT_FSIZE, &raw mut have) } == 0 {
        local::log::files_end_at(have.rlim_cur);
    }
}

/// Before there is a board: puts a limit that the program has been given up by what will be ours. `false`: the hard one is
/// in the way, and what there is the program may need.
pub(crate) fn make_room() -> bool {
    let mut have = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    let known = unsafe { real::getrlimit(RLIMIT_AS, &raw mut have) } == 0;
    if !known || have.rlim_cur == RLIM_INFINITY {
        return true;
    }
    let with = lifted(have.rlim_cur, (FILE_BYTES + fds::TABLE_BYTES) as u64);
    if with > have.rlim_max {
        return false;
    }
    let new = rlimit { rlim_cur: with, ..have };
    // SAFETY: a valid place.
    let done = unsafe { real::setrlimit(RLIMIT_AS, &raw const new) } == 0;
    if done {
        LIFTED.store(SOFT, Ordering::Relaxed);
    }
    done
}

/// There is no board after all.
pub(crate) fn need_no_room() {
    if LIFTED.swap(0, Ordering::Relaxed) & SOFT == 0 {
        return;
    }
    let mut have = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    if unsafe { real::getrlimit(RLIMIT_AS, &raw mut have) } == 0 {
        have.rlim_cur = lowered(have.rlim_cur, (FILE_BYTES + fds::TABLE_BYTES) as u64, true);
        // SAFETY: a valid place.
        unsafe { real::setrlimit(RLIMIT_AS, &raw const have) };
    }
}

/// The program that takes this one's place has the limit that was set: ours go, and so does what they were added for. Until
/// the answer is dropped, which is when there is no other program after all.
pub(crate) fn for_another_program() -> Option<Lowered> {
    let ours = ours(RLIMIT_AS).filter(|_| LIFTED.load(Ordering::Relaxed) & SOFT != 0)?;
    let mut have = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    if unsafe { real::getrlimit(RLIMIT_AS, &raw mut have) } != 0 {
        return None;
    }
    let lower = rlimit { rlim_cur: known(have, ours).rlim_cur, ..have };
    // SAFETY: a valid place.
    let done = unsafe { real::setrlimit(RLIMIT_AS, &raw const lower) } == 0;
    done.then_some(Lowered(have))
}

/// Limits that come back.
pub(crate) struct Lowered(rlimit);

impl Drop for Lowered {
    fn drop(&mut self) {
        let errno = real::errno();
        // SAFETY: a valid place.
        unsafe { real::setrlimit(RLIMIT_AS, &raw const self.0) };
        real::set_errno(errno);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setrlimit(resource: c_uint, new: *const rlimit) -> c_int {
    // SAFETY: libc's contract.
    if let (Some(ours), Some(wanted)) = (ours(resource), unsafe { new.as_ref() }) {
        // SAFETY: a valid place.
        return set(*wanted, ours, |limits| unsafe { real::setrlimit(resource, limits) });
    }
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::setrlimit(resource, new) };
    // SAFETY: the kernel has just read it.
    if let (0, Some(new)) = (done, unsafe { new.as_ref() }) {
        files_end_at(resource, new.rlim_cur);
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setrlimit64(resource: c_uint, new: *const rlimit) -> c_int {
    // SAFETY: libc's contract, handed on: the two are one where addresses have 64 bits.
    unsafe { setrlimit(resource, new) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getrlimit(resource: c_uint, old: *mut rlimit) -> c_int {
    // SAFETY: libc's contract, handed on.
    let done = unsafe { real::getrlimit(resource, old) };
    if done == 0
        && let Some(ours) = ours(resource)
        // SAFETY: libc has just written there.
        && let Some(old) = unsafe { old.as_mut() }
    {
        *old = known(*old, ours);
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getrlimit64(resource: c_uint, old: *mut rlimit) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { getrlimit(resource, old) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prlimit(
    pid: pid_t,
    resource: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    let is_own = pid == 0 || pid == call::getpid().cast_signed();
    let Some(ours) = ours(resource).filter(|_| is_own) else {
        // SAFETY: libc's contract, handed on.
        let done = unsafe { real::prlimit(pid, resource, new, old) };
        // SAFETY: the kernel has just read it, if it is not null.
        if let (0, true, Some(new)) = (done, is_own, unsafe { new.as_ref() }) {
            files_end_at(resource, new.rlim_cur);
        }
        return done;
    };
    let mut before = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    unsafe { real::getrlimit(resource, &raw mut before) };
    let before = known(before, ours);
    // SAFETY: libc's contract.
    if let Some(wanted) = unsafe { new.as_ref() } {
        // SAFETY: a valid place.
        let done = set(*wanted, ours, |limits| unsafe { real::setrlimit(resource, limits) });
        if done != 0 {
            return done;
        }
    }
    // SAFETY: libc's contract.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prlimit64(
    pid: pid_t,
    resource: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { prlimit(pid, resource, new, old) }
}

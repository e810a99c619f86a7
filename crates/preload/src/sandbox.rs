//! A program restricts which system calls it may make (seccomp). What it needs it has found out, or thought of, without the
//! library, whose calls may end it.

use std::sync::atomic::{AtomicUsize, Ordering};

use sys::call;

use crate::{fds, life};

/// How often the program has restricted which system calls it may make.
static SANDBOXED: AtomicUsize = AtomicUsize::new(0);

/// How often it did so that it may be ended for a call that it does not make itself.
static ENDS: AtomicUsize = AtomicUsize::new(0);

/// See [`ENDS`].
pub(crate) fn may_end_us() -> bool {
    ENDS.load(Ordering::Relaxed) != 0
}

/// Whether calls that make sockets may be made for the program: not once it has filtered its own.
pub(crate) fn may_make_sockets() -> bool {
    SANDBOXED.load(Ordering::Relaxed) == 0
}

/// Has the program restrict its calls. `None`: it does not, but asks what the kernel has.
pub(crate) fn restrict<T: Default + PartialOrd>(
    how: Option<Restriction>,
    act: impl FnOnce() -> T,
) -> T {
    let Some(how) = how else { return act() };
    let is_ours = begins(how);
    let done = act();
    // The kernel did not want it, from whom it may not have it for one.
    if done < T::default() {
        if is_ours {
            ENDS.fetch_sub(1, Ordering::Relaxed);
        }
        call::was_not_filtered(how.may_end_us());
        SANDBOXED.fetch_sub(1, Ordering::Relaxed);
    }
    done
}

/// The program is about to restrict its calls. Whoever does that may be killed for making a socket that it did not ask for.
/// Answers whether it has been counted in [`ENDS`].
fn begins(how: Restriction) -> bool {
    let is_ours = how.may_end_us() && !fds::borrowed();
    if is_ours {
        life::filtered();
        ENDS.fetch_add(1, Ordering::Relaxed);
    }
    call::will_be_filtered(how.may_end_us());
    // What there is already may forbid to look again.
    if SANDBOXED.load(Ordering::Relaxed) == 0 {
        sys::cache::know_all();
    }
    SANDBOXED.fetch_add(1, Ordering::Relaxed);
    // Of what else we do for others, and the program's own code does not, too.
    local::conn::ring_bells_only();
    if let Some(w) = fds::world() {
        life::each_conn(|_, conn| conn.wakes_by_bells(w, false));
    }
    is_ours
}

/// How a program restricts its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restriction {
    /// The kernel may end the program for a call, or send it a signal.
    Ends,
    /// A filter of which all answers are errors, as if the system did not have the call, is met as such a system is.
    Refuses,
}

impl Restriction {
    /// What `seccomp` with these arguments does. Libraries (libseccomp) try some that it does not take, to learn what the
    /// kernel has.
    pub(crate) fn of_seccomp(operation: usize, flags: usize, at: usize) -> Option<Self> {
        if operation == libc::SECCOMP_SET_MODE_STRICT as usize {
            return (flags == 0 && at == 0).then_some(Self::Ends);
        }
        if operation != libc::SECCOMP_SET_MODE_FILTER as usize {
            return None;
        }
        let how = Self::of_filter(at)?;
        (flags == 0 || call::knows_filter_flags(flags)).then_some(how)
    }

    /// The same of `prctl(PR_SET_SECCOMP)`.
    pub(crate) fn of_prctl(mode: usize, at: usize) -> Option<Self> {
        if mode == libc::SECCOMP_MODE_STRICT as usize {
            return Some(Self::Ends);
        }
        if mode == libc::SECCOMP_MODE_FILTER as usize { Self::of_filter(at) } else { None }
    }

    /// By a filter: where its `sock_fprog` is.
    fn of_filter(at: usize) -> Option<Self> {
        if at == 0 {
            return None;
        }
        // What there is already may forbid to look.
        if call::is_filtered() {
            return Some(Self::Ends);
        }
        match read(at) {
            Ok(filter) if filter.iter().copied().any(ends) => Some(Self::Ends),
            Ok(_) => Some(Self::Refuses),
            Err(libc::EFAULT | libc::EINVAL) => None,
            // The call is refused to us, by a filter before this one.
            Err(_) => Some(Self::Ends),
        }
    }

    fn may_end_us(self) -> bool {
        self == Self::Ends
    }
}

/// The instructions of a filter, as the kernel would find them; `EFAULT` and `EINVAL`: it will find none either.
fn read(at: usize) -> call::Result<Vec<u64>> {
    /// Instructions of a filter, at most (`BPF_MAXINSNS`).
    const MOST: usize = 4096;
    let mut program = [0; 2];
    call::peek_words(at, &mut program)?;
    let [len, start] = program.map(|word| usize::try_from(word).unwrap_or(0));
    let len = len & 0xffff;
    if !(1..=MOST).contains(&len) {
        return Err(libc::EINVAL);
    }
    let mut filter = vec![0; len];
    call::peek_words(start, &mut filter)?;
    Ok(filter)
}

/// Whether an instruction is an answer that ends the program, or may be one.
fn ends(instruction: u64) -> bool {
    const CLASS: u64 = 7;
    const RETURN: u64 = 6;
    const SOURCE: u64 = 0x18;
    const KILL_PROCESS: u64 = 0x8000;
    const KILL_THREAD: u64 = 0;
    const TRAP: u64 = 3;
    // The code in the lowest 16 bits, the constant in the highest 32, of which the highest 16 say what is done.
    let is_answer = instruction & CLASS == RETURN;
    let is_constant = instruction & SOURCE == 0;
    let ends = matches!(instruction >> 48, KILL_PROCESS | KILL_THREAD | TRAP);
    is_answer && (ends || !is_constant)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_end(answers: &[u32]) -> bool {
        let load = 0x20;
        let answers = answers.iter().map(|answer| 0x06 | u64::from(*answer) << 32);
        let filter: Vec<u64> = std::iter::once(load).chain(answers).collect();
        let program = [filter.len() as u64, filter.as_ptr().addr() as u64];
        let read = read(program.as_ptr().addr()).expect("a filter");
        assert_eq!(read, filter);
        read.into_iter().any(ends)
    }

    #[test]
    fn filters_are_told_by_their_answers() {
        const ALLOW: u32 = 0x7fff_0000;
        let [errno, trace, log] = [0x0005_0001, 0x7ff0_0000, 0x7ffc_0000];
        assert!(!may_end(&[ALLOW, errno, trace, log]));
        for kill in [0, 0x8000_0000, 0x0003_0000] {
            assert!(may_end(&[ALLOW, kill, errno]), "{kill:x}");
        }
        assert!(ends(0x16), "what is in the register");
    }

    #[test]
    fn who_only_asks_restricts_nothing() {
        let answers = |answer: u64, len: u64| {
            let filter = [0x06 | answer << 32; 2];
            let program = [len, filter.as_ptr().addr() as u64];
            let at = program.as_ptr().addr();
            let by_prctl = Restriction::of_prctl(2, at);
            assert_eq!(Restriction::of_seccomp(1, 0, at), by_prctl);
            assert_eq!(Restriction::of_seccomp(1, 1, at), by_prctl, "all threads");
            assert_eq!(Restriction::of_seccomp(1, 1 << 30, at), None, "no kernel has that");
            by_prctl
        };
        // Where the test itself is filtered filters are not looked at.
        if !call::is_filtered() {
            assert_eq!(answers(0x0005_0001, 2), Some(Restriction::Refuses));
            assert_eq!([answers(0, 0), answers(0, 4097)], [None; 2]);
        }
        assert_eq!(answers(0, 2), Some(Restriction::Ends));
        // As libseccomp does.
        assert_eq!(Restriction::of_seccomp(0, 1, 0), None);
        assert!((0..6).all(|flag| Restriction::of_seccomp(1, 1 << flag, 0).is_none()));
        assert!([2, 3].map(|asks| Restriction::of_seccomp(asks, 0, 8)) == [None; 2]);
        assert_eq!([2, 7].map(|mode| Restriction::of_prctl(mode, 0)), [None; 2]);
        assert_eq!(read(0), Err(libc::EFAULT));
        // And what is meant.
        assert_eq!(Restriction::of_seccomp(0, 0, 0), Some(Restriction::Ends));
        assert_eq!(Restriction::of_prctl(1, 8), Some(Restriction::Ends));
    }
}

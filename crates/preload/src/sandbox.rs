//! A program restricts which system calls it may make (seccomp). What it needs it has found out, or thought of, without the
//! library, whose calls may end it.

use std::sync::atomic::{AtomicBool, Ordering};

use sys::call;

use crate::{fds, life};

/// The program has restricted which system calls it may make.
static SANDBOXED: AtomicBool = AtomicBool::new(false);

/// The program may be ended for a call that it does not make itself.
static ENDS: AtomicBool = AtomicBool::new(false);

/// See [`ENDS`].
pub(crate) fn may_end_us() -> bool {
    ENDS.load(Ordering::Relaxed)
}

/// Whether calls that make sockets may be made for the program: not once it has filtered its own.
pub(crate) fn may_make_sockets() -> bool {
    !SANDBOXED.load(Ordering::Relaxed)
}

/// The program is about to restrict its calls. Whoever does that may be killed for making a socket that it did not ask for.
pub(crate) fn begins(how: Restriction) {
    if how.may_end_us() && !fds::borrowed() {
        life::filtered();
        ENDS.store(true, Ordering::Relaxed);
    }
    call::will_be_filtered();
    sys::cache::know_all();
    SANDBOXED.store(true, Ordering::Relaxed);
    // Of what else we do for others, and the program's own code does not, too.
    local::conn::ring_bells_only();
    if let Some(w) = fds::world() {
        life::each_conn(|_, conn| conn.wakes_by_bells(w, false));
    }
}

/// How a program restricts its calls.
#[derive(Clone, Copy)]
pub(crate) enum Restriction {
    /// To those that read and write.
    Strict,
    /// By a filter: where its `sock_fprog` is.
    Filter(usize),
}

impl Restriction {
    /// Whether the kernel may end the program for a call, or send it a signal: a filter of which all answers are errors, as
    /// if the system did not have the call, is met as such a system is.
    fn may_end_us(self) -> bool {
        let Self::Filter(at) = self else { return true };
        // What there is already may forbid to look.
        call::is_filtered() || read(at).is_some_and(|filter| filter.into_iter().any(ends))
    }
}

/// The instructions of a filter, as the kernel would find them; `None`: it will find none either.
fn read(at: usize) -> Option<Vec<u64>> {
    let mut program = [0; 2];
    call::peek_words(at, &mut program).ok()?;
    let [len, start] = program;
    let mut filter = vec![0; usize::try_from(len & 0xffff).ok()?];
    call::peek_words(usize::try_from(start).ok()?, &mut filter).ok()?;
    Some(filter)
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
        // Who only asks whether there are filters hands over none.
        assert_eq!(read(0), None);
    }
}

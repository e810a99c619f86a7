//! Whether a signal handler runs on this thread's stack, above a frame of ours that it has interrupted.
//!
//! A handler may leave a call by `siglongjmp`. Nothing of the call is unwound then, and what it holds would be
//! held for ever; but as long as a handler *runs*, the call below it goes on later. What tells them apart is the
//! kernel's frame between the two: on x86-64 it begins with the address to which the handler returns (`sa_restorer`),
//! on 64-bit Arm it holds the record of the floating-point registers, whose first word is the same everywhere.

use std::marker::PhantomData;

use crate::call;

/// Longest distance on a stack within which a frame of the kernel's is looked for, bytes.
const FAR: usize = 8 << 20;
/// Bytes that are read at once: they lie in one page, of whatever size.
const PAGE: usize = 4096;

/// An address on the stack of whoever calls: stacks grow down, so what was called from there is below it.
#[inline]
#[must_use]
pub fn here() -> usize {
    let place = 0u8;
    std::hint::black_box(&raw const place) as usize
}

/// Whether a call that was at `frame` on this thread's stack may still go on, interrupted by a handler that runs
/// now. `false`: it was left for good. `true` where that cannot be known: on a stack of the handlers' own, or too
/// far away.
#[must_use]
pub fn goes_on(frame: usize) -> bool {
    let now = here();
    if is_on_signal_stack() {
        return true;
    }
    if frame <= now {
        // Its place on the stack has been given back, or a handler runs on another stack; which frames of
        // handlers would show.
        return may_run();
    }
    frame - now > FAR || finds_frame(now, frame).unwrap_or(true)
}

/// While this lives, no handler runs on this thread: what it does can neither be left nor interrupted. But for those of
/// what an instruction or a call has done itself: a page of somebody else's file that is not there any more (see
/// [`crate::foreign`]), a call that a filter answers by a signal. Blocked, it would end the process.
#[derive(Debug)]
pub struct Blocked {
    before: u64,
    /// A mask is a thread's.
    _thread: PhantomData<*const ()>,
}

impl Blocked {
    /// From now on.
    #[must_use]
    pub fn new() -> Self {
        /// Signals 32 and 33 are the C library's own, and not for programs to block: threads are cancelled by one.
        const ALL: u64 = !(0b11 << 31);
        const OF_ITSELF: u64 = bit(libc::SIGBUS)
            | bit(libc::SIGSEGV)
            | bit(libc::SIGILL)
            | bit(libc::SIGFPE)
            | bit(libc::SIGTRAP)
            | bit(libc::SIGSYS);
        const fn bit(signal: i32) -> u64 {
            1 << (signal - 1)
        }
        let before = call::set_blocked(ALL & !OF_ITSELF);
        Self { before, _thread: PhantomData }
    }
}

impl Blocked {
    /// The same, if this thread is known to be the only one. Of several, a signal for the whole process is for the first that
    /// lets it in: one that does so again and again would take those that another one sleeps for.
    #[must_use]
    pub fn if_alone() -> Option<Self> {
        crate::lock::alone().then(Self::new)
    }
}

impl Default for Blocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let _ = call::set_blocked(self.before);
    }
}

/// Whether any handler may run on this thread now.
#[must_use]
pub fn may_run() -> bool {
    let now = here();
    // The stack ends where nothing can be read any more; what follows it in memory only makes us careful.
    is_on_signal_stack() || finds_frame(now, now.saturating_add(FAR)) == Some(true)
}

/// Whether a handler's frame lies there; `None`: memory ended before `to`.
fn finds_frame(from: usize, to: usize) -> Option<bool> {
    let marks = Marks::new();
    let mut page = [0u64; PAGE / 8];
    let (mut at, mut any) = (from.next_multiple_of(8), false);
    while at < to {
        let len = (PAGE - at % PAGE).min(to - at) / 8;
        let Some(words) = page.get_mut(..len.max(1)) else { return Some(true) };
        match call::peek_words(at, words) {
            Ok(()) => any = true,
            Err(libc::EFAULT) if any => return None,
            // Not even the stack that we are on can be read: it is not allowed, and nothing can be known.
            Err(_) => return Some(true),
        }
        let starts = words.iter().enumerate().filter(|(_, word)| marks.has(**word));
        if starts.into_iter().any(|(i, _)| Marks::is_frame(at + i * 8)) {
            return Some(true);
        }
        at += words.len() * 8;
    }
    Some(false)
}

/// The words by which a handler's frame is found: the addresses to which handlers return. A C library has one.
#[cfg(target_arch = "x86_64")]
struct Marks([u64; 4]);

#[cfg(target_arch = "x86_64")]
impl Marks {
    fn new() -> Self {
        let mut known = [0; 4];
        let mut n = 0;
        for signal in 1..=64 {
            let restorer = call::restorer(signal).unwrap_or(0);
            if restorer != 0 && !known.contains(&restorer) && n < known.len() {
                known[n] = restorer;
                n += 1;
            }
        }
        Self(known)
    }

    fn has(&self, word: u64) -> bool {
        word != 0 && self.0.contains(&word)
    }

    /// Whether the words after such an address are what the kernel writes there, and not what was left on the stack by
    /// a frame that is gone: the saved `rip`, `eflags` (of which bit 1 is always set) and code segment.
    fn is_frame(at: usize) -> bool {
        // After the return address: flags, link and stack of the context, then its registers from r8 on.
        const RIP: usize = 8 + 40 + 16 * 8;
        const USER_CODE: u64 = 0x33;
        let mut words = [0u64; 3];
        call::peek_words(at + RIP, &mut words).is_ok()
            && words[0] != 0
            && words[1] & 2 != 0
            && words[2] & 0xffff == USER_CODE
    }
}

/// The word by which a handler's frame is found. The address to which a handler returns is no part of the frame here,
/// and where the handler has put it down it may be signed.
#[cfg(target_arch = "aarch64")]
struct Marks;

#[cfg(target_arch = "aarch64")]
impl Marks {
    /// Magic and size of the record of the floating-point registers, which is always the first behind the others
    /// (`FPSIMD_MAGIC` and `struct fpsimd_context` of Linux's `asm/sigcontext.h`).
    const RECORD: u64 = 0x210 << 32 | 0x4650_8001;

    const fn new() -> Self {
        Self
    }

    const fn has(&self, word: u64) -> bool {
        word == Self::RECORD
    }

    /// Whether the words before it are what the kernel writes there: the saved `sp`, `pc` and `pstate`, whose mode is
    /// that of programs.
    fn is_frame(at: usize) -> bool {
        // The record is aligned to 16, and 8 bytes are between.
        const SP_BEFORE: usize = 3 * 8 + 8;
        const MODE: u64 = 0x1f;
        let mut words = [0u64; 3];
        at.checked_sub(SP_BEFORE).is_some_and(|sp| call::peek_words(sp, &mut words).is_ok())
            && words[0] != 0
            && words[1] != 0
            && words[2] & MODE == 0
    }
}

/// Whether this thread is on the stack that it has set up for handlers.
fn is_on_signal_stack() -> bool {
    call::signal_stack().is_ok_and(|flags| flags & libc::SS_ONSTACK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static OUTER: AtomicUsize = AtomicUsize::new(0);
    static SEEN: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn handler(_signal: i32) {
        let goes_on = goes_on(OUTER.load(Ordering::SeqCst));
        SEEN.store(1 + usize::from(goes_on) + 2 * usize::from(may_run()), Ordering::SeqCst);
    }

    /// On a thread of its own, whose stack nobody has used.
    fn on_a_fresh_stack(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().expect("no panic");
    }

    #[test]
    fn a_call_under_a_handler_goes_on() {
        on_a_fresh_stack(|| {
            OUTER.store(here(), Ordering::SeqCst);
            // SAFETY: all zeros is a valid action.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = handler as *const () as usize;
            // SAFETY: a valid action, and a signal that nothing else here uses.
            unsafe { libc::sigaction(libc::SIGWINCH, &raw const action, std::ptr::null_mut()) };
            // SAFETY: this thread lives.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGWINCH) };
            assert_eq!(SEEN.load(Ordering::SeqCst), 4, "not seen from the handler");
        });
    }

    #[inline(never)]
    fn deeper(levels: usize) -> usize {
        if levels == 0 { here() } else { std::hint::black_box(deeper(levels - 1)) }
    }

    #[test]
    fn a_frame_that_was_further_down_does_not_go_on() {
        on_a_fresh_stack(|| assert!(!goes_on(deeper(20))));
    }

    #[test]
    fn a_frame_that_has_returned_does_not_go_on() {
        on_a_fresh_stack(|| {
            // One further up that no handler has interrupted.
            assert!(!goes_on(here() + 256));
            assert!(!may_run());
        });
    }
}

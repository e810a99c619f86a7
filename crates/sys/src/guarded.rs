//! Copies from and to memory that may be taken away meanwhile.
//!
//! A load or a store where a mapped file has no page (any more: others may make it shorter; or not yet: its file
//! system is full) raises `SIGBUS`, which ends the process. The kernel's own copies end with `EFAULT` instead, but
//! look each page up: on tmpfs `pwrite(2)` moves some 4 GB/s, `process_vm_readv(2)` 6, and instructions that write
//! past the caches 16. So those are used here, in two functions of which a handler of `SIGBUS` knows where they
//! begin and end: a fault in one of them ends the copy, and it says how much was left. Faults elsewhere, and signals
//! that somebody sent, are for whoever handled the signal before; if that leaves the signal without this handler, there
//! are no such copies any more.
//!
//! The handler is installed on request ([`install`]), by programs that are ours: the library of `shunt run` leaves
//! the signals of its guests alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What handled the signal before; there once [`install`] has been called.
static BEFORE: OnceLock<Option<Action>> = OnceLock::new();

/// Our handler is what the signal comes to, as far as is known.
static AT_WORK: AtomicBool = AtomicBool::new(false);

/// An action as `sigaction(2)` tells it.
#[cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux")),
    expect(dead_code, reason = "there is no handler that would call it")
)]
struct Action(libc::sigaction);

// SAFETY: the action of a signal belongs to the process, not to a thread; its pointers are to functions.
unsafe impl Send for Action {}
// SAFETY: the same; it is only read.
unsafe impl Sync for Action {}

/// Whether caches are to keep what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// It is used next, on this CPU.
    Keep,
    /// It is used by others, or later: written past the caches when it is long.
    Pass,
}

/// Least number of bytes that go past the caches.
const PASS_MIN: usize = 4096;

/// Has [`copy`] work from now on: handles `SIGBUS`, once for the process, and answers whether it does. It does not
/// where instructions are not x86-64's. What is installed later for that signal has to call what was there before.
pub fn install() -> bool {
    BEFORE.get_or_init(|| {
        let before = imp::handle().map(Action);
        AT_WORK.store(before.is_some(), Ordering::Release);
        before
    });
    is_installed()
}

/// Whether [`install`] has been called, to some effect, and the signal has not been given back since to who had it
/// before: then copies are left to the kernel for good.
#[must_use]
pub fn is_installed() -> bool {
    AT_WORK.load(Ordering::Acquire)
}

/// Copies `n` bytes and answers how many there were before a page that could not be had: all of them, as a rule. A
/// few behind those may have been written, too.
///
/// # Safety
///
/// [`is_installed`], by a look just before. Both ranges lie in mappings that stay for as long as this takes, although their pages need not;
/// nobody has a reference to what is written, and the ranges do not overlap. Others may write what is read: the
/// bytes are copied as they are found.
#[must_use]
pub unsafe fn copy(to: *mut u8, from: *const u8, n: usize, caches: Caches) -> usize {
    if caches == Caches::Keep || n < PASS_MIN {
        // SAFETY: the caller's promise.
        return n - unsafe { imp::shunt_guarded_copy(to, from, n) };
    }
    let lead = to.align_offset(imp::LINE).min(n);
    let lines = (n - lead) / imp::LINE * imp::LINE;
    let parts: [(usize, usize, unsafe extern "C" fn(*mut u8, *const u8, usize) -> usize); 3] = [
        (0, lead, imp::shunt_guarded_copy),
        (lead, lines, imp::shunt_guarded_stream),
        (lead + lines, n - lead - lines, imp::shunt_guarded_copy),
    ];
    for (at, len, copy) in parts {
        if len == 0 {
            continue;
        }
        // SAFETY: a part of what the caller promises; lines are whole, and begin at a line.
        let left = unsafe { copy(to.wrapping_add(at), from.wrapping_add(at), len) };
        if left > 0 {
            return at + len - left;
        }
    }
    n
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod imp {
    use std::ffi::{c_int, c_void};

    use super::{AT_WORK, BEFORE, Ordering};

    /// Bytes that [`shunt_guarded_stream`] moves at once.
    pub(super) const LINE: usize = 64;

    // Each function: where to in rdi, where from in rsi, how many in rdx; answers how many are left. Where a fault
    // ends one of them, rcx or rax says that, and the handler has it go on at the label behind it.
    std::arch::global_asm!(
        ".text",
        ".p2align 4",
        ".globl shunt_guarded_copy",
        ".hidden shunt_guarded_copy",
        ".type shunt_guarded_copy, @function",
        "shunt_guarded_copy:",
        "mov rcx, rdx",
        ".globl shunt_guarded_copy_at",
        ".hidden shunt_guarded_copy_at",
        "shunt_guarded_copy_at:",
        "rep movsb",
        ".globl shunt_guarded_copy_left",
        ".hidden shunt_guarded_copy_left",
        "shunt_guarded_copy_left:",
        "mov rax, rcx",
        "ret",
        ".size shunt_guarded_copy, . - shunt_guarded_copy",
        ".p2align 4",
        ".globl shunt_guarded_stream",
        ".hidden shunt_guarded_stream",
        ".type shunt_guarded_stream, @function",
        "shunt_guarded_stream:",
        "mov rax, rdx",
        ".globl shunt_guarded_stream_at",
        ".hidden shunt_guarded_stream_at",
        "shunt_guarded_stream_at:",
        "2:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movntps [rdi], xmm0",
        "movntps [rdi + 16], xmm1",
        "movntps [rdi + 32], xmm2",
        "movntps [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "sub rax, 64",
        "jnz 2b",
        ".globl shunt_guarded_stream_left",
        ".hidden shunt_guarded_stream_left",
        "shunt_guarded_stream_left:",
        // These stores are in no order with others: before whatever says that they are done.
        "sfence",
        "ret",
        ".size shunt_guarded_stream, . - shunt_guarded_stream",
    );

    unsafe extern "C" {
        /// Copies any number of bytes.
        pub(super) fn shunt_guarded_copy(to: *mut u8, from: *const u8, n: usize) -> usize;
        /// Copies whole lines, at least one, to the beginning of one, past the caches.
        pub(super) fn shunt_guarded_stream(to: *mut u8, from: *const u8, n: usize) -> usize;

        static shunt_guarded_copy_at: u8;
        static shunt_guarded_copy_left: u8;
        static shunt_guarded_stream_at: u8;
        static shunt_guarded_stream_left: u8;
    }

    /// Where an instruction that faulted goes on, if it is one of ours.
    fn continued(at: usize) -> Option<usize> {
        let ours = [
            (&raw const shunt_guarded_copy_at, &raw const shunt_guarded_copy_left),
            (&raw const shunt_guarded_stream_at, &raw const shunt_guarded_stream_left),
        ];
        let mut ours = ours.into_iter().map(|(from, to)| (from as usize, to as usize));
        ours.find(|(from, to)| (*from..*to).contains(&at)).map(|(_, to)| to)
    }

    /// Installs the handler, and answers what was there before.
    pub(super) fn handle() -> Option<libc::sigaction> {
        // SAFETY: all zeros is a valid action.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only asks.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
            return None;
        }
        let action = ours();
        // SAFETY: the handler touches nothing but the context that it is given and what is set once.
        let done =
            unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
        (done == 0).then_some(before)
    }

    unsafe extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        const RIP: usize = libc::REG_RIP as usize;
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel gives the context of the thread that it has interrupted, which is this one's to change.
        let at = unsafe { &raw mut (*context).uc_mcontext.gregs[RIP] };
        // SAFETY: the same.
        let sent = unsafe { (*info).si_code } <= 0;
        // SAFETY: the same.
        let address = unsafe { at.read() }.cast_unsigned();
        if !sent
            && let Ok(address) = usize::try_from(address)
            && let Some(to) = continued(address)
        {
            // SAFETY: the same; the label expects the registers as they are.
            unsafe { at.write((to as u64).cast_signed()) };
            return;
        }
        let Some(Some(before)) = BEFORE.get() else { return };
        let before = &before.0;
        match before.sa_sigaction {
            // Of a fault it cannot be ignored: the kernel ends the process.
            libc::SIG_IGN if sent => {}
            libc::SIG_DFL | libc::SIG_IGN => give_back(signal, before, sent),
            theirs => {
                // SAFETY: a function that was installed for this signal. Of one for the number alone the other
                // arguments are in registers that it does not look at.
                let theirs =
                    unsafe { std::mem::transmute::<*const (), Handler>(theirs as *const ()) };
                // SAFETY: what the kernel has given us, and would have given it.
                unsafe { theirs(signal, info, context.cast()) };
                keep(signal, sent);
            }
        }
    }

    /// A handler that was installed with `SA_SIGINFO`.
    type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

    /// What we install.
    fn ours() -> libc::sigaction {
        // SAFETY: all zeros is a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        action
    }

    /// After a call of who had the signal before. Rust's own takes what is no overflow of a stack for the end, and
    /// leaves the signal to the kernel: of a fault it is, which comes again at once. What somebody sent is over, and
    /// others may be copying: the handler is put back.
    fn keep(signal: c_int, sent: bool) {
        // SAFETY: all zeros is a valid action.
        let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only asks.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
        let ours = ours();
        if asked == 0 && now.sa_sigaction == ours.sa_sigaction {
            return;
        }
        // SAFETY: as when it was installed first.
        if !sent || unsafe { libc::sigaction(signal, &raw const ours, std::ptr::null_mut()) } != 0 {
            AT_WORK.store(false, Ordering::Release);
        }
    }

    /// Puts back what there was, for good. A fault comes again at once, and is then theirs; what somebody sent is
    /// sent again.
    fn give_back(signal: c_int, before: &libc::sigaction, sent: bool) {
        // Before: a copy that began later would have nobody to end it.
        AT_WORK.store(false, Ordering::Release);
        // SAFETY: an action that was installed before.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
        if sent {
            // SAFETY: to this very thread; it comes when this handler has ended.
            unsafe { libc::raise(signal) };
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod imp {
    pub(super) const LINE: usize = 64;

    pub(super) fn handle() -> Option<libc::sigaction> {
        None
    }

    pub(super) unsafe extern "C" fn shunt_guarded_copy(
        _: *mut u8,
        _: *const u8,
        n: usize,
    ) -> usize {
        n
    }

    pub(super) unsafe extern "C" fn shunt_guarded_stream(
        _: *mut u8,
        _: *const u8,
        n: usize,
    ) -> usize {
        n
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::process::Command;

    use super::*;

    const PAGE: usize = 4096;

    /// A mapping of `bytes` bytes of a file that has the first `there`.
    fn mapping(there: usize, bytes: usize) -> *mut u8 {
        // SAFETY: a name that ends.
        let fd = unsafe { libc::memfd_create(c"guarded".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: just made.
        let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        file.set_len(there as u64).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping, which stays.
        let at = unsafe {
            libc::mmap(nowhere, bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }

    fn numbered(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 7 + i / 251).to_le_bytes()[0]).collect()
    }

    #[test]
    fn a_copy_is_a_copy_whatever_its_bounds() {
        if !install() {
            return println!("skipped: no such copies on this architecture");
        }
        let from = numbered(70_000);
        for caches in [Caches::Keep, Caches::Pass] {
            for (skip, shift, n) in [
                (0, 0, 65_536),
                (3, 5, 65_000),
                (1, 63, 4097),
                (7, 2, 63),
                (0, 1, 0),
                (9, 64, 4096),
            ] {
                let mut to = vec![0xee_u8; 70_100];
                // SAFETY: both are inside of their vectors.
                let done =
                    unsafe { copy(to.as_mut_ptr().add(shift), from.as_ptr().add(skip), n, caches) };
                assert_eq!(done, n);
                assert_eq!(&to[shift..shift + n], &from[skip..skip + n]);
                assert!(to[..shift].iter().chain(&to[shift + n..]).all(|byte| *byte == 0xee));
            }
        }
    }

    #[test]
    fn a_copy_ends_where_the_file_does_and_says_so() {
        if !install() {
            return println!("skipped: no such copies on this architecture");
        }
        let bytes = numbered(4 * PAGE);
        for caches in [Caches::Keep, Caches::Pass] {
            let file = mapping(2 * PAGE, 4 * PAGE);
            // SAFETY: a mapping that stays, and a vector.
            let done = unsafe { copy(file.wrapping_add(100), bytes.as_ptr(), 3 * PAGE, caches) };
            assert_eq!(done, 2 * PAGE - 100, "{caches:?}: what came before the end");
            let mut back = vec![0; 4 * PAGE];
            // SAFETY: the same.
            let done = unsafe { copy(back.as_mut_ptr(), file.wrapping_add(100), 3 * PAGE, caches) };
            // Of a line that is not there as a whole, nothing need be.
            assert!((2 * PAGE - 100 - 63..=2 * PAGE - 100).contains(&done), "{done}");
            assert_eq!(back[..done], bytes[..done]);
            // SAFETY: the same.
            let done = unsafe { copy(back.as_mut_ptr(), file.wrapping_add(3 * PAGE), 10, caches) };
            assert_eq!(done, 0);
        }
    }

    /// In a process of its own, which such a fault ends: run by the test below.
    #[test]
    #[ignore = "ends its process"]
    fn a_fault_elsewhere() {
        assert!(install());
        let file = mapping(0, PAGE);
        // SAFETY: not sound, and meant: what comes of it is seen from outside.
        let byte = unsafe { file.read_volatile() };
        println!("went on with {byte}");
    }

    #[test]
    fn a_fault_elsewhere_ends_the_process_as_ever() {
        use std::os::unix::process::ExitStatusExt;
        if !install() {
            return println!("skipped: no such copies on this architecture");
        }
        let own = std::env::current_exe().unwrap();
        let name = "guarded::tests::a_fault_elsewhere";
        let output = Command::new(own).args(["--exact", name, "--ignored"]).output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    }

    #[test]
    #[ignore = "ends its process"]
    fn a_signal_from_outside() {
        // SAFETY: the default.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        assert!(install());
        // SAFETY: to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
        println!("went on");
    }

    #[test]
    fn a_signal_that_was_sent_ends_the_process_as_ever() {
        use std::os::unix::process::ExitStatusExt;
        if !install() {
            return println!("skipped: no such copies on this architecture");
        }
        let own = std::env::current_exe().unwrap();
        let name = "guarded::tests::a_signal_from_outside";
        let output = Command::new(own).args(["--exact", name, "--ignored"]).output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    }

    /// Copies from a file that ends before, which raises the signal.
    fn copies_from_a_cut_file() {
        assert!(is_installed());
        let file = mapping(PAGE, 2 * PAGE);
        let mut back = vec![1_u8; 2 * PAGE];
        // SAFETY: a mapping that stays, and a vector.
        let done = unsafe { copy(back.as_mut_ptr(), file, 2 * PAGE, Caches::Keep) };
        assert_eq!(done, PAGE);
        assert!(back[..PAGE].iter().all(|byte| *byte == 0));
    }

    fn is_sent() {
        // SAFETY: to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
    }

    static TOLD: AtomicBool = AtomicBool::new(false);

    extern "C" fn tells(_: libc::c_int) {
        TOLD.store(true, Ordering::Relaxed);
    }

    /// Has the missing page be there, and leaves the next fault to the kernel.
    unsafe extern "C" fn mends(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _: *mut libc::c_void,
    ) {
        // SAFETY: of a fault the kernel says where.
        let at = unsafe { (*info).si_addr() }.map_addr(|at| at / PAGE * PAGE);
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: over a page of the test's own.
        let page = unsafe { libc::mmap(at, PAGE, libc::PROT_READ, how, -1, 0) };
        // SAFETY: the default.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        assert_eq!(page, at);
    }

    /// In a process of its own, whose signals it changes: run by the test below.
    #[test]
    #[ignore = "changes the signals of its process"]
    fn signals_and_copies() {
        // Rust's own is there at first, which leaves the signal to the kernel.
        assert!(install());
        is_sent();
        copies_from_a_cut_file();
        is_sent();
        copies_from_a_cut_file();
        println!("went on");
    }

    #[test]
    #[ignore = "changes the signals of its process"]
    fn an_ignored_signal_and_copies() {
        // SAFETY: no function.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_IGN) };
        assert!(install());
        is_sent();
        copies_from_a_cut_file();
        println!("went on");
    }

    #[test]
    #[ignore = "changes the signals of its process"]
    fn a_handled_signal_and_copies() {
        // SAFETY: a handler that only sets a flag.
        unsafe { libc::signal(libc::SIGBUS, tells as *const () as usize) };
        assert!(install());
        copies_from_a_cut_file();
        assert!(!TOLD.load(Ordering::Relaxed), "it was ours");
        is_sent();
        assert!(TOLD.load(Ordering::Relaxed));
        copies_from_a_cut_file();
        println!("went on");
    }

    #[test]
    #[ignore = "changes the signals of its process"]
    fn a_fault_that_is_mended() {
        // SAFETY: all zeros is a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = mends as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: what the handler does is sound for the page that faults below.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
        assert!(install());
        let file = mapping(0, PAGE);
        // SAFETY: the handler makes it so.
        assert_eq!(unsafe { file.read_volatile() }, 0);
        assert!(!is_installed() && !install(), "a fault in a copy would be the kernel's");
        println!("went on");
    }

    #[test]
    fn a_signal_that_was_sent_leaves_copies_guarded_or_says_that_they_are_not() {
        if !install() {
            return println!("skipped: no such copies on this architecture");
        }
        let own = std::env::current_exe().unwrap();
        for name in [
            "signals_and_copies",
            "an_ignored_signal_and_copies",
            "a_handled_signal_and_copies",
            "a_fault_that_is_mended",
        ] {
            let name = format!("guarded::tests::{name}");
            let arguments = ["--exact", &name, "--ignored", "--nocapture"];
            let output = Command::new(&own).args(arguments).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("went on"), "{name}: {output:?}");
        }
    }
}

//! What keeps the library from asking more of a system than it must: it is loaded into whatever program is there, in
//! containers with another C library than that of the host as well, and a program whose preloaded library asks for what is not
//! there does not start.
//!
//! - **Older C libraries.** The linker takes the newest version of each symbol. glibc has given some new ones (2.28 to 2.34), so
//!   they are made here of system calls, or of what [`symbols`] finds. Any glibc from 2.17 on will do, the oldest that Rust knows.
//! - **The unwinder.** Rust's standard library asks for `libgcc_s`, to be found, read and relocated at the start of each program,
//!   and not there in some containers. It is needed where a thread is cancelled, which has it loaded, and for a panic.
//!
//! All of it has hidden names: programs have their own. Which versions are asked for is tested (`package::`).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

use sys::call;

use crate::symbols::{self, Begin};

/// A function of a newer libc's, by one of ours. Weak, since Rust's library looks for some of them by weak names, and where it
/// is optimised with ours the assembler warns of a name that is one and then the other; the linker takes ours all the same.
macro_rules! own {
    ($name:literal, $function:path) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.alone.", $name, ",\"ax\",@progbits"),
            concat!(".weak ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            jump!(),
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            function = sym $function,
        );
    };
}
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

own!("dlsym", dlsym);
own!("pthread_key_create", key_create);
own!("pthread_key_delete", key_delete);
own!("pthread_setspecific", set_specific);
own!("stat64", stat);
own!("fstat64", fstat);
own!("statx", statx);
own!("gettid", gettid);

unsafe extern "C" fn dlsym(object: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise: a name that ends.
    let name = unsafe { CStr::from_ptr(name) };
    match object {
        libc::RTLD_DEFAULT => symbols::find(name, Begin::Program),
        libc::RTLD_NEXT => symbols::find(name, Begin::BehindUs),
        _ => null_mut(),
    }
}

type Key = libc::pthread_key_t;
type Ends = Option<unsafe extern "C" fn(*mut c_void)>;

// What threads leave when they end: asked for where Rust's library is not optimised with ours. Where there is none, no
// thread ends.

unsafe extern "C" fn key_create(key: *mut Key, ends: Ends) -> c_int {
    let at = symbols::find(c"pthread_key_create", Begin::BehindUs);
    // SAFETY: libc's function of that name, or null, which is `None`.
    let at: Option<unsafe extern "C" fn(*mut Key, Ends) -> c_int> = unsafe { transmute(at) };
    let Some(function) = at else {
        // SAFETY: the caller's promise. Not 0, which Rust's library takes for none.
        unsafe { key.write(1) };
        return 0;
    };
    // SAFETY: the caller's promise.
    unsafe { function(key, ends) }
}

unsafe extern "C" fn key_delete(key: Key) -> c_int {
    let at = symbols::find(c"pthread_key_delete", Begin::BehindUs);
    // SAFETY: libc's function of that name, or null, which is `None`.
    let at: Option<unsafe extern "C" fn(Key) -> c_int> = unsafe { transmute(at) };
    // SAFETY: the caller's promise.
    at.map_or(0, |function| unsafe { function(key) })
}

unsafe extern "C" fn set_specific(key: Key, value: *const c_void) -> c_int {
    let at = symbols::find(c"pthread_setspecific", Begin::BehindUs);
    // SAFETY: libc's function of that name, or null, which is `None`.
    let at: Option<unsafe extern "C" fn(Key, *const c_void) -> c_int> = unsafe { transmute(at) };
    // SAFETY: the caller's promise.
    at.map_or(0, |function| unsafe { function(key, value) })
}

/// A system call as libc's wrappers answer it.
///
/// # Safety
///
/// What the kernel asks of the arguments.
unsafe fn wrapped(number: libc::c_long, arguments: [usize; 6]) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { call::raw(number, arguments) } {
        0.. => 0,
        failure => {
            #[expect(clippy::cast_possible_truncation, reason = "-4095 to -1")]
            crate::real::set_errno(-failure as c_int);
            -1
        }
    }
}

#[expect(clippy::cast_sign_loss, reason = "a descriptor is passed as it is")]
unsafe extern "C" fn stat(path: *const c_char, into: *mut libc::stat64) -> c_int {
    let arguments = [libc::AT_FDCWD as usize, path as usize, into as usize, 0, 0, 0];
    // SAFETY: the caller's promise, as for `stat`.
    unsafe { wrapped(libc::SYS_newfstatat, arguments) }
}

#[expect(clippy::cast_sign_loss, reason = "a descriptor is passed as it is")]
unsafe extern "C" fn fstat(fd: c_int, into: *mut libc::stat64) -> c_int {
    // SAFETY: the caller's promise, as for `fstat`.
    unsafe { wrapped(libc::SYS_fstat, [fd as usize, into as usize, 0, 0, 0, 0]) }
}

#[expect(clippy::cast_sign_loss, reason = "descriptors and flags are passed as they are")]
unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut libc::statx,
) -> c_int {
    let arguments = [dir as usize, path as usize, flags as usize, mask as usize, into as usize, 0];
    // SAFETY: the caller's promise, as for `statx`.
    unsafe { wrapped(libc::SYS_statx, arguments) }
}

extern "C" fn gettid() -> c_int {
    call::gettid().cast_signed()
}

/// A function of the unwinder's, looked up at its first call and gone to with what it was called with.
#[cfg(target_arch = "x86_64")]
macro_rules! unwinder {
    ($($name:literal)*) => {$(
        core::arch::global_asm!(
            concat!(".pushsection .text.alone.", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            "mov rax, qword ptr [rip + 4f]",
            "test rax, rax",
            "jnz 3f",
            "push rdi",
            "push rsi",
            "push rdx",
            "lea rdi, [rip + 5f]",
            "call {find}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "mov qword ptr [rip + 4f], rax",
            "3: jmp rax",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            concat!(".pushsection .bss.alone.", $name, ",\"aw\",@nobits"),
            ".balign 8",
            "4: .zero 8",
            ".popsection",
            concat!(".pushsection .rodata.alone.", $name, ",\"a\",@progbits"),
            concat!("5: .asciz \"", $name, "\""),
            ".popsection",
            find = sym unwinding,
        );
    )*};
}
#[cfg(target_arch = "aarch64")]
macro_rules! unwinder {
    ($($name:literal)*) => {$(
        core::arch::global_asm!(
            concat!(".pushsection .text.alone.", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            "adrp x17, 4f",
            "add x17, x17, :lo12:4f",
            "ldr x16, [x17]",
            "cbnz x16, 3f",
            "stp x29, x30, [sp, -48]!",
            "stp x0, x1, [sp, 16]",
            "stp x2, x17, [sp, 32]",
            "adrp x0, 5f",
            "add x0, x0, :lo12:5f",
            "bl {find}",
            "mov x16, x0",
            "ldp x2, x17, [sp, 32]",
            "ldp x0, x1, [sp, 16]",
            "ldp x29, x30, [sp], 48",
            "str x16, [x17]",
            "3: br x16",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            concat!(".pushsection .bss.alone.", $name, ",\"aw\",@nobits"),
            ".balign 8",
            "4: .zero 8",
            ".popsection",
            concat!(".pushsection .rodata.alone.", $name, ",\"a\",@progbits"),
            concat!("5: .asciz \"", $name, "\""),
            ".popsection",
            find = sym unwinding,
        );
    )*};
}
unwinder!("_Unwind_Backtrace" "_Unwind_GetDataRelBase" "_Unwind_GetIP" "_Unwind_GetIPInfo"
    "_Unwind_GetLanguageSpecificData" "_Unwind_GetRegionStart" "_Unwind_GetTextRelBase"
    "_Unwind_RaiseException" "_Unwind_Resume" "_Unwind_SetGR" "_Unwind_SetIP");

/// The unwinder's function of that name: of the one that the C library loads to cancel a thread, for what it says of a frame is
/// for its own functions. Where none is loaded, somebody panics, and it is.
unsafe extern "C" fn unwinding(name: *const c_char) -> *mut c_void {
    // SAFETY: a name of ours, which ends.
    let name = unsafe { CStr::from_ptr(name) };
    let found = symbols::of_unwinder(name);
    if !found.is_null() {
        return found;
    }
    let dlopen = symbols::find(c"dlopen", Begin::BehindUs);
    // SAFETY: libc's function of that name, or null, which is `None`.
    let dlopen: Option<unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void> =
        unsafe { transmute(dlopen) };
    if let Some(dlopen) = dlopen {
        // SAFETY: a library that does nothing when it is loaded.
        unsafe { dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW) };
    }
    let found = symbols::of_unwinder(name);
    if found.is_null() {
        // What went wrong was said before.
        std::process::abort();
    }
    found
}

//! What keeps the library from asking more of a system than it must: it is loaded into whatever program is there, in
//! containers with another C library than that of the host as well, and a program whose preloaded library asks for what is not
//! there does not start.
//!
//! - **Older C libraries.** The linker takes the newest version of each symbol. glibc has given some new ones (2.28 to 2.34), so
//!   they are made here of system calls, or of what [`symbols`] finds. Any glibc from 2.17 on will do, the oldest that Rust knows.
//! - **The unwinder.** Rust's standard library asks for `libgcc_s`, to be found, read and relocated at the start of each program,
//!   and not there in some containers. Panics abort, so nothing is ever unwound here; a backtrace is empty.
//!
//! All of it has hidden names: programs have their own. Which versions are asked for is tested (`package::`).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

use sys::call;

use crate::symbols::{self, Begin};

/// A function of a newer libc's, by one of ours, or by what a processor does.
macro_rules! by {
    ($name:literal, $($instruction:literal),+ $(, $function:path)?) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.alone.", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            $($instruction,)+
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            $(function = sym $function,)?
        );
    };
}
#[cfg(target_arch = "x86_64")]
macro_rules! own {
    ($name:literal, $function:path) => {
        by!($name, "jmp {function}", $function);
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! own {
    ($name:literal, $function:path) => {
        by!($name, "b {function}", $function);
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
    // SAFETY: the caller's promise.
    at.map_or(0, |function| unsafe { function(key, ends) })
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

/// Nothing is known of a frame: what is asked so that it be unwound, or shown, goes on without it.
#[cfg(target_arch = "x86_64")]
macro_rules! nothing {
    ($($name:literal)*) => { $(by!($name, "xor eax, eax", "ret");)* };
}
#[cfg(target_arch = "aarch64")]
macro_rules! nothing {
    ($($name:literal)*) => { $(by!($name, "mov x0, 0", "ret");)* };
}
nothing!("_Unwind_Backtrace" "_Unwind_GetDataRelBase" "_Unwind_GetIP" "_Unwind_GetIPInfo"
    "_Unwind_GetLanguageSpecificData" "_Unwind_GetRegionStart" "_Unwind_GetTextRelBase");

/// Nobody unwinds.
#[cfg(target_arch = "x86_64")]
macro_rules! never {
    ($($name:literal)*) => { $(by!($name, "ud2");)* };
}
#[cfg(target_arch = "aarch64")]
macro_rules! never {
    ($($name:literal)*) => { $(by!($name, "brk 1");)* };
}
never!("_Unwind_RaiseException" "_Unwind_Resume" "_Unwind_SetGR" "_Unwind_SetIP");

//! `dlopen`: a library with a scope of its own (`RTLD_DEEPBIND`) is led to us, see [`symbols::lead`].
//!
//! The loader looks by whom it is called, for that object's paths. So whatever need not come back here goes on as if libc's
//! had been called.

use std::sync::atomic::Ordering;

use super::*;
use crate::symbols;

/// Where a call goes on; null: it has been made, and has come to `done`.
#[repr(C)]
struct GoesOn {
    to: *mut c_void,
    done: *mut c_void,
}

/// `caller`: where libc's would return to.
unsafe extern "C-unwind" fn opens(
    path: *const c_char,
    flags: c_int,
    caller: *const c_void,
) -> GoesOn {
    let to = libcs();
    let on = GoesOn { to, done: std::ptr::null_mut() };
    let is_new = flags & (libc::RTLD_DEEPBIND | libc::RTLD_NOLOAD) == libc::RTLD_DEEPBIND;
    if !is_new || path.is_null() || fds::world().is_none() {
        return on;
    }
    // SAFETY: libc's contract: a path that ends.
    if symbols::needs_its_caller(unsafe { std::ffi::CStr::from_ptr(path) }, caller) {
        return on;
    }
    type Open = unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: libc's function of that name.
    let open = unsafe { std::mem::transmute::<*mut c_void, Open>(to) };
    // SAFETY: libc's contract, handed on.
    let done = unsafe { open(path, flags) };
    if !done.is_null() {
        // SAFETY: what has just been loaded.
        unsafe { symbols::lead(done) };
    }
    GoesOn { to: std::ptr::null_mut(), done }
}

/// libc's `dlopen`, which old ones have in a library that may come later.
fn libcs() -> *mut c_void {
    static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    extern "C" fn nothing() -> *mut c_void {
        std::ptr::null_mut()
    }
    let known = AT.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = symbols::find_also_later(c"dlopen");
    if found.is_null() {
        return nothing as *mut c_void;
    }
    AT.store(found, Ordering::Relaxed);
    found
}

/// # Safety
///
/// As libc's.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn dlopen(_path: *const c_char, _flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        // Calls want the stack aligned to 16 bytes: two words, the return address, and this.
        "sub rsp, 8",
        "mov rdx, [rsp + 24]",
        "call {opens}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov rax, rdx",
        "ret",
        opens = sym opens,
    )
}

/// # Safety
///
/// As libc's.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn dlopen(_path: *const c_char, _flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "mov x2, x30",
        "bl {opens}",
        "mov x16, x0",
        "mov x17, x1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "mov x0, x17",
        "ret",
        opens = sym opens,
    )
}

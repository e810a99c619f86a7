//! `dprintf` and its kin: libc would write to the descriptor by itself.
//!
//! Rust cannot define variadic functions yet. These lay out their arguments as a `va_list`, as the
//! calling convention of the machine says, and hand that on by address.

use super::sending::write;
use super::*;

unsafe extern "C" {
    fn vasprintf(to: *mut *mut c_char, format: *const c_char, args: *mut c_void) -> c_int;
    fn __vasprintf_chk(
        to: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        args: *mut c_void,
    ) -> c_int;
}

/// Writes a text that libc has made, of `n` bytes or -1, and frees it.
unsafe fn put(fd: c_int, text: *mut c_char, n: c_int) -> c_int {
    let Ok(mut left) = usize::try_from(n) else { return n };
    let mut at = text.cast::<c_void>();
    let mut result = n;
    while left > 0 {
        // SAFETY: the text that libc has just made.
        let put = unsafe { write(fd, at, left) };
        let Some(put) = usize::try_from(put).ok().filter(|p| *p > 0) else {
            result = -1;
            break;
        };
        left -= put;
        at = at.wrapping_byte_add(put);
    }
    let errno = real::errno();
    // SAFETY: made by libc.
    unsafe { libc::free(text.cast()) };
    real::set_errno(errno);
    result
}

/// # Safety
///
/// As libc's; `args` is a `va_list`, which the calling conventions pass by address.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vdprintf(
    fd: c_int,
    format: *const c_char,
    args: *mut c_void,
) -> c_int {
    let mut text: *mut c_char = std::ptr::null_mut();
    // SAFETY: libc's contract, handed on.
    let n = unsafe { vasprintf(&raw mut text, format, args) };
    // SAFETY: made by libc.
    unsafe { put(fd, text, n) }
}

/// # Safety
///
/// As [`vdprintf`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    args: *mut c_void,
) -> c_int {
    let mut text: *mut c_char = std::ptr::null_mut();
    // SAFETY: libc's contract, handed on.
    let n = unsafe { __vasprintf_chk(&raw mut text, flag, format, args) };
    // SAFETY: made by libc.
    unsafe { put(fd, text, n) }
}

/// A variadic function with so many bytes of named arguments in integer registers, whose list goes
/// to `$print` in `$list` (System V ABI for x86-64, 3.5.7).
#[cfg(target_arch = "x86_64")]
macro_rules! variadic {
    ($name:ident, $named:literal, $list:literal, $print:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 208",
                // The register save area: 6 integer registers, then 8 vector registers.
                "mov [rbp - 176], rdi",
                "mov [rbp - 168], rsi",
                "mov [rbp - 160], rdx",
                "mov [rbp - 152], rcx",
                "mov [rbp - 144], r8",
                "mov [rbp - 136], r9",
                "test al, al",
                "je 2f",
                "movaps [rbp - 128], xmm0",
                "movaps [rbp - 112], xmm1",
                "movaps [rbp - 96], xmm2",
                "movaps [rbp - 80], xmm3",
                "movaps [rbp - 64], xmm4",
                "movaps [rbp - 48], xmm5",
                "movaps [rbp - 32], xmm6",
                "movaps [rbp - 16], xmm7",
                "2:",
                // The list: what registers are used, and the rest on the caller's stack.
                concat!("mov dword ptr [rbp - 208], ", $named),
                "mov dword ptr [rbp - 204], 48",
                "lea rax, [rbp + 16]",
                "mov [rbp - 200], rax",
                "lea rax, [rbp - 176]",
                "mov [rbp - 192], rax",
                concat!("lea ", $list, ", [rbp - 208]"),
                "call {print}",
                "leave",
                "ret",
                print = sym $print,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
variadic!(dprintf, "16", "rdx", vdprintf);
#[cfg(target_arch = "x86_64")]
variadic!(__dprintf_chk, "24", "rcx", __vdprintf_chk);

/// A variadic function with so many bytes left of the 64 in integer registers, whose list goes to
/// `$print` in `$list` (Procedure Call Standard for the Arm 64-bit Architecture, appendix B).
#[cfg(target_arch = "aarch64")]
macro_rules! variadic {
    ($name:ident, $left:literal, $list:literal, $print:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-240]!",
                "mov x29, sp",
                // The register save areas: 8 integer registers, then 8 vector registers.
                "stp x0, x1, [sp, #48]",
                "stp x2, x3, [sp, #64]",
                "stp x4, x5, [sp, #80]",
                "stp x6, x7, [sp, #96]",
                "stp q0, q1, [sp, #112]",
                "stp q2, q3, [sp, #144]",
                "stp q4, q5, [sp, #176]",
                "stp q6, q7, [sp, #208]",
                // The list: the caller's stack, the ends of both areas, what is left of them.
                "add x9, sp, #240",
                "str x9, [sp, #16]",
                "add x9, sp, #112",
                "str x9, [sp, #24]",
                "add x9, sp, #240",
                "str x9, [sp, #32]",
                concat!("mov w9, #-", $left),
                "str w9, [sp, #40]",
                "mov w9, #-128",
                "str w9, [sp, #44]",
                concat!("add ", $list, ", sp, #16"),
                "bl {print}",
                "ldp x29, x30, [sp], #240",
                "ret",
                print = sym $print,
            )
        }
    };
}

#[cfg(target_arch = "aarch64")]
variadic!(dprintf, "48", "x2", vdprintf);
#[cfg(target_arch = "aarch64")]
variadic!(__dprintf_chk, "40", "x3", __vdprintf_chk);

pub(super) use variadic;

//! Calls that lend our memory to a child, until that runs another program or ends: `vfork` and `clone`.
//!
//! A child of `vfork` returns from where its parent will return from as well, so nothing of ours may stand on the stack
//! by then: these note the loan, and go on to libc's as if it had been called.

use std::sync::atomic::AtomicPtr;

use super::*;

macro_rules! lends {
    ($($name:ident by $note:ident;)*) => {$(
        /// Notes the loan; answers where to go on.
        extern "C" fn $note() -> *mut c_void {
            static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            life::lending();
            fds::lend();
            // SAFETY: ends in a NUL.
            let name = unsafe {
                std::ffi::CStr::from_bytes_with_nul_unchecked(
                    concat!(stringify!($name), "\0").as_bytes(),
                )
            };
            real::at(&AT, name)
        }

        /// libc's, its arguments and its caller's stack untouched.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                // Calls want the stack aligned to 16 bytes: six words, the return address, and this.
                "sub rsp, 8",
                "call {note}",
                "add rsp, 8",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                note = sym $note,
            )
        }

        /// libc's, its arguments and its caller's stack untouched.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "bl {note}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                note = sym $note,
            )
        }
    )*};
}

lends! {
    vfork by note_vfork;
    __vfork by note_inner_vfork;
    clone by note_clone;
    __clone by note_inner_clone;
}

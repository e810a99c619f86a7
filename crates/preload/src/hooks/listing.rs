//! `execl` and its kin, which are given the arguments of the program one by one.

use super::printing::variadic;
use super::process::{environment, run};
use super::*;

/// What a `va_list` leads to (System V ABI for x86-64, 3.5.7): the rest of the integer registers, then the stack.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct List {
    general: u32,
    vectors: u32,
    stack: *const *const c_char,
    saved: *const u8,
}

#[cfg(target_arch = "x86_64")]
impl List {
    /// The next one, which is a pointer.
    unsafe fn next(&mut self) -> *const c_char {
        const REGISTERS: u32 = 48;
        if self.general < REGISTERS {
            let at = self.saved.wrapping_add(self.general as usize).cast::<*const c_char>();
            self.general += 8;
            // SAFETY: the caller's promise: a register that was saved there.
            return unsafe { at.read() };
        }
        let at = self.stack;
        self.stack = at.wrapping_add(1);
        // SAFETY: the caller's promise: there is another one.
        unsafe { at.read() }
    }
}

/// What a `va_list` leads to (Procedure Call Standard for the Arm 64-bit Architecture, appendix B): the same.
#[cfg(target_arch = "aarch64")]
#[repr(C)]
struct List {
    stack: *const *const c_char,
    general_end: *const u8,
    vectors_end: *const u8,
    /// Less than 0: so many bytes before the end.
    general: i32,
    vectors: i32,
}

#[cfg(target_arch = "aarch64")]
impl List {
    /// The next one, which is a pointer.
    unsafe fn next(&mut self) -> *const c_char {
        if self.general < 0 {
            let at = self.general_end.wrapping_offset(self.general as isize);
            self.general += 8;
            // SAFETY: the caller's promise: a register that was saved there.
            return unsafe { at.cast::<*const c_char>().read() };
        }
        let at = self.stack;
        self.stack = at.wrapping_add(1);
        // SAFETY: the caller's promise: there is another one.
        unsafe { at.read() }
    }
}

/// All up to the null pointer, and that. Memory is taken for many only: a child of vfork leaves what it takes to its parent.
struct Arguments {
    few: [*const c_char; 64],
    many: Vec<*const c_char>,
}

impl Arguments {
    unsafe fn of(list: &mut List) -> Self {
        let mut all = Self { few: [std::ptr::null(); 64], many: Vec::new() };
        for at in 0.. {
            // SAFETY: the caller's promise: there is a null pointer in it.
            let argument = unsafe { list.next() };
            match all.few.get_mut(at) {
                Some(place) => *place = argument,
                None => {
                    if all.many.is_empty() {
                        all.many.extend_from_slice(&all.few);
                    }
                    all.many.push(argument);
                }
            }
            if argument.is_null() {
                break;
            }
        }
        all
    }

    const fn as_ptr(&self) -> *const *const c_char {
        if self.many.is_empty() { self.few.as_ptr() } else { self.many.as_ptr() }
    }
}

unsafe extern "C-unwind" fn listed(path: *const c_char, list: &mut List) -> c_int {
    // SAFETY: libc's contract.
    let all = unsafe { Arguments::of(list) };
    // SAFETY: as libc's: a list that ends in a null pointer.
    unsafe { run(environment(), |envp| real::execve(path, all.as_ptr(), envp)) }
}

unsafe extern "C-unwind" fn listed_and_looked_for(path: *const c_char, list: &mut List) -> c_int {
    // SAFETY: libc's contract.
    let all = unsafe { Arguments::of(list) };
    // SAFETY: as libc's: a list that ends in a null pointer.
    unsafe { run(environment(), |envp| real::execvpe(path, all.as_ptr(), envp)) }
}

unsafe extern "C-unwind" fn listed_with_environment(path: *const c_char, list: &mut List) -> c_int {
    // SAFETY: libc's contract.
    let all = unsafe { Arguments::of(list) };
    // SAFETY: libc's contract: it stands behind the null pointer.
    let envp = unsafe { list.next() }.cast::<*const c_char>();
    // SAFETY: as libc's: a list that ends in a null pointer.
    unsafe { run(envp, |envp| real::execve(path, all.as_ptr(), envp)) }
}

#[cfg(target_arch = "x86_64")]
variadic!(execl, "8", "rsi", listed);
#[cfg(target_arch = "x86_64")]
variadic!(execlp, "8", "rsi", listed_and_looked_for);
#[cfg(target_arch = "x86_64")]
variadic!(execle, "8", "rsi", listed_with_environment);
#[cfg(target_arch = "aarch64")]
variadic!(execl, "56", "x1", listed);
#[cfg(target_arch = "aarch64")]
variadic!(execlp, "56", "x1", listed_and_looked_for);
#[cfg(target_arch = "aarch64")]
variadic!(execle, "56", "x1", listed_with_environment);

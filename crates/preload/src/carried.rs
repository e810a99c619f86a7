//! The environment that puts a program under Shunt, for programs that must not lose it.
//!
//! A listener that takes part with an engine promises SMC to clients of other hosts in the TCP handshake, from the kernel,
//! and goes on to do so in whatever program it comes to be. One that is started without the library would read a handshake
//! of SMC in place of its clients' bytes. So a program that inherits such a listener gets what it needs to be under Shunt as
//! well, also where its environment was made anew, as nginx does when it is upgraded in place.

use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

use local::config::SETTINGS;

use crate::{life, remote};

const LOADER: &str = "LD_PRELOAD";

/// What this program was started with, as it stands in an environment.
static OURS: OnceLock<Vec<CString>> = OnceLock::new();

/// To be called before the program can have changed its environment.
pub(crate) fn begin() {
    let names = SETTINGS.iter().map(|setting| setting.env).chain([LOADER]);
    let found = names.filter_map(|name| CString::new(format!("{name}={}", crate::env(name)?)).ok());
    let _ = OURS.set(found.collect());
}

/// `envp` with what is ours in it, if the program that is about to be run with it must have that, and does not.
///
/// # Safety
///
/// `envp` is null or ends in a null pointer, as `execve` asks.
pub(crate) unsafe fn environment(envp: *const *const c_char) -> Option<Vec<*const c_char>> {
    let ours = OURS.get().filter(|_| remote::concerns() && life::gives_promises())?;
    // SAFETY: the caller's promise.
    let theirs = unsafe { all(envp) };
    // SAFETY: strings that end, as those of any environment.
    let has = |name: &[u8]| theirs.iter().any(|entry| unsafe { is_named(*entry, name) });
    let loads = |entry: &&CString| name_of(entry) == LOADER.as_bytes();
    let library = ours.iter().find(loads).map(|entry| first_of(entry))?;
    // SAFETY: the same.
    let names_us = |entry: *const c_char| unsafe { CStr::from_ptr(entry) }.to_bytes();
    // SAFETY: the same.
    let others = theirs.iter().position(|entry| unsafe { is_named(*entry, LOADER.as_bytes()) });
    if others.is_some_and(|at| holds(names_us(theirs[at]), library)) {
        return None;
    }
    let mut with = theirs.clone();
    if let Some(at) = others {
        // In front of what it is to load besides. Never given back: the process is about to become another program.
        let rest = names_us(theirs[at]).split_at(LOADER.len() + 1).1;
        let both = [LOADER.as_bytes(), b"=", library, b":", rest].concat();
        with[at] = CString::new(both).ok()?.into_raw();
    }
    with.extend(ours.iter().filter(|entry| !has(name_of(entry))).map(|entry| entry.as_ptr()));
    with.push(std::ptr::null());
    Some(with)
}

/// The library that is loaded first, of an entry that says so.
fn first_of(entry: &CStr) -> &[u8] {
    let value = entry.to_bytes().split_at(LOADER.len() + 1).1;
    value.split(|byte| *byte == b':' || *byte == b' ').next().unwrap_or_default()
}

fn holds(entry: &[u8], library: &[u8]) -> bool {
    entry.windows(library.len().max(1)).any(|part| part == library)
}

unsafe fn all(envp: *const *const c_char) -> Vec<*const c_char> {
    let mut all = Vec::new();
    if envp.is_null() {
        return all;
    }
    for i in 0.. {
        // SAFETY: the caller's promise, up to the null pointer.
        let entry = unsafe { *envp.add(i) };
        if entry.is_null() {
            break;
        }
        all.push(entry);
    }
    all
}

unsafe fn is_named(entry: *const c_char, name: &[u8]) -> bool {
    // SAFETY: the caller's promise.
    name_of(unsafe { CStr::from_ptr(entry) }) == name
}

fn name_of(entry: &CStr) -> &[u8] {
    entry.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default()
}

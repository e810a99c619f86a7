//! The environment that puts a program under Shunt, for programs that must not lose it.
//!
//! A listener that takes part with an engine promises SMC to clients of other hosts in the TCP handshake, from the kernel,
//! and goes on to do so in whatever program it comes to be. One that is started without the library would read a handshake
//! of SMC in place of its clients' bytes. So a program that inherits such a listener gets what it needs to be under Shunt as
//! well, also where its environment was made anew, as nginx does when it is upgraded in place.

use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

use local::config::SETTINGS;

use crate::life;

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
    let ours = OURS.get().filter(|_| life::gives_promises())?;
    // SAFETY: the caller's promise.
    merged(ours, &unsafe { all(envp) })
}

/// `theirs` with what is `ours` in it; `None`: our library is loaded anyhow. What is made for it is never given back, as the
/// process is about to become another program.
fn merged(ours: &[CString], theirs: &[*const c_char]) -> Option<Vec<*const c_char>> {
    // SAFETY: strings that end, as those of any environment.
    let text = |entry: *const c_char| unsafe { CStr::from_ptr(entry) };
    let place = |name: &[u8]| theirs.iter().position(|entry| name_of(text(*entry)) == name);
    let loader = LOADER.as_bytes();
    let library =
        ours.iter().find(|entry| name_of(entry) == loader).map(|entry| first_of(entry))?;
    let mut with = theirs.to_vec();
    if let Some(at) = place(loader) {
        let others = value_of(text(theirs[at]));
        if others.windows(library.len().max(1)).any(|part| part == library) {
            return None;
        }
        // In front of what it is to load besides.
        let both = [loader, b"=", library, b":", others].concat();
        with[at] = CString::new(both).ok()?.into_raw();
    }
    let absent = ours.iter().filter(|entry| place(name_of(entry)).is_none());
    with.extend(absent.map(|entry| entry.as_ptr()));
    with.push(std::ptr::null());
    Some(with)
}

/// The library that is loaded first, of an entry that says so.
fn first_of(entry: &CStr) -> &[u8] {
    value_of(entry).split(|byte| *byte == b':' || *byte == b' ').next().unwrap_or_default()
}

/// What stands behind the name; nothing where an entry is none.
fn value_of(entry: &CStr) -> &[u8] {
    entry.to_bytes().get(name_of(entry).len() + 1..).unwrap_or_default()
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

fn name_of(entry: &CStr) -> &[u8] {
    entry.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: &[&str]) -> Vec<CString> {
        entries.iter().map(|entry| CString::new(*entry).unwrap()).collect()
    }

    /// What a program gets that would be run with `theirs`.
    fn gets(theirs: &[&str]) -> Option<Vec<String>> {
        let ours = of(&["SHUNT_DIR=/d", "LD_PRELOAD=/lib/us.so:/lib/a.so"]);
        let theirs = of(theirs);
        let pointers: Vec<_> = theirs.iter().map(|entry| entry.as_ptr()).collect();
        let with = merged(&ours, &pointers)?;
        assert_eq!(with.last(), Some(&std::ptr::null()));
        let text = |entry: &*const c_char| {
            // SAFETY: a string of one of the two, or made for it.
            unsafe { CStr::from_ptr(*entry) }.to_str().unwrap().to_owned()
        };
        Some(with[..with.len() - 1].iter().map(text).collect())
    }

    #[test]
    fn what_is_absent_is_added_and_what_is_there_stays() {
        let both = ["SHUNT_DIR=/d", "LD_PRELOAD=/lib/us.so:/lib/a.so"];
        assert_eq!(gets(&[]).unwrap(), both);
        assert_eq!(gets(&["A=b"]).unwrap(), ["A=b", both[0], both[1]]);
        assert_eq!(gets(&["SHUNT_DIR=/other"]).unwrap(), ["SHUNT_DIR=/other", both[1]]);
        assert_eq!(gets(&["LD_PRELOAD=/lib/b.so:/lib/us.so"]), None, "it is loaded anyhow");
    }

    #[test]
    fn what_else_is_loaded_comes_behind() {
        let with = |theirs| gets(&[theirs]).unwrap();
        assert_eq!(
            with("LD_PRELOAD=/lib/b.so"),
            ["LD_PRELOAD=/lib/us.so:/lib/b.so", "SHUNT_DIR=/d"]
        );
        for none in ["LD_PRELOAD=", "LD_PRELOAD"] {
            assert_eq!(with(none), ["LD_PRELOAD=/lib/us.so:", "SHUNT_DIR=/d"], "{none}");
        }
    }
}

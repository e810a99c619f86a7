//! The library that `shunt run` puts in front of libc in other people's programs.
//!
//! `hooks` holds the signatures; a descriptor that we do not follow costs one load. Whatever goes wrong with one that we do follow goes wrong for that connection only.

mod absence;
mod alloc;
#[cfg(not(test))]
mod alone;
mod carried;
mod fds;
mod finally;
mod hooks;
mod io;
mod left;
mod life;
mod nap;
mod poll;
mod ready;
mod real;
mod remains;
mod remote;
mod sandbox;
mod symbols;

use std::ffi::c_int;

use local::config::SETTINGS;
use local::world::World;
use local::{Level, Limits};
use sys::call;
use sys::map::MapError;

#[global_allocator]
static ALLOCATOR: alloc::Own = alloc::Own;

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;

extern "C" fn fini() {
    life::leaving();
}

extern "C" fn init() {
    symbols::begin();
    local::log::begin();
    hooks::ask_for_files();
    let Some(limits) = settings() else { return };
    if let Some(path) = &limits.log_file {
        say_in(path, limits.log);
    }
    #[cfg(feature = "watchdog")]
    ready::watchdog::configure(env("SHUNT_WATCHDOG_DROP").as_deref());
    #[cfg(feature = "delays")]
    sys::delays::configure(env("SHUNT_DELAYS").as_deref().unwrap_or_default());
    nap::ask_once();
    let name = call::comm();
    let len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    let program = String::from_utf8_lossy(&name[..len]).into_owned();
    let absence = absence::Absence::of(&limits);
    sys::lock::watch_threads();
    if !hooks::make_room() {
        return absence.stays(&MapError::AddressLimit);
    }
    match World::join(limits, program, high_fd()) {
        Ok(world) => {
            absence.over();
            carried::begin();
            fds::begin(world);
        }
        Err(error) => {
            hooks::need_no_room();
            return absence.stays(&error);
        }
    }
    // SAFETY: plain functions that live as long as the process.
    unsafe {
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child));
    }
}

/// Has lines go to a file that was named.
fn say_in(path: &str, log: Level) {
    // What makes no path is none that could be opened.
    let Ok(name) = std::ffi::CString::new(path) else { return };
    if log == Level::Off {
        return;
    }
    if let Err(errno) = local::log::to_file(&name, high_fd())
        // Unasked it would be a line for each program of each user who may not write there.
        && log >= Level::Info
    {
        let why = std::io::Error::from_raw_os_error(errno);
        local::log::line(format_args!("SHUNT_LOG_FILE: {path}: {why}; lines go to standard error"));
    }
}

/// What the environment says; `None`: to leave everything on TCP, by intent or by mistake.
fn settings() -> Option<Limits> {
    let mut limits = Limits::default();
    let mut wrong = None;
    for setting in SETTINGS {
        let Some(value) = env(setting.env) else { continue };
        if let Err(bad) = limits.set(setting.name, &value) {
            wrong.get_or_insert((setting.env, bad));
        }
    }
    let (enabled, log) = (limits.enabled, limits.log);
    let wrong = match (wrong, limits.checked()) {
        _ if !enabled => return None,
        (None, Ok(limits)) => return Some(limits),
        (None, Err(bad)) => ("", bad),
        (Some(wrong), _) => wrong,
    };
    if log >= Level::Error {
        let (env, bad) = wrong;
        let colon = if env.is_empty() { "" } else { ": " };
        local::log::line(format_args!("{env}{colon}{bad}; staying on TCP"));
    }
    None
}

unsafe extern "C" fn prepare() {
    life::fork_prepare();
}

unsafe extern "C" fn parent() {
    life::fork_parent();
}

unsafe extern "C" fn child() {
    life::fork_child();
}

/// Where descriptors of our own go: above what most programs use, but below the limit and below 1,024. The
/// kernel's table of descriptors is as long as the highest number asks for: each `fork` copies it, and `select`
/// looks no further, which programs rely on that give it the limit as the number, and a set for 1,024.
fn high_fd() -> c_int {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    c_int::try_from(limit.rlim_cur.min(1024)).unwrap_or(1024).saturating_sub(24).max(3)
}

fn env(name: &str) -> Option<String> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a name that ends.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the environment's strings end, and nobody changes them before `main`.
    let value = unsafe { std::ffi::CStr::from_ptr(value) };
    Some(value.to_string_lossy().into_owned())
}

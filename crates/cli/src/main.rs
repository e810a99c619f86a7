//! `shunt`: start programs under Shunt, see what it does, find out why it does not.
//!
//! The logic is in the modules, apart from what it prints; [`commands`] is the way in.
//!
//! There is no Rust `main`, because Rust's start-up code ignores SIGPIPE for the whole process: a
//! program started by `shunt run` would inherit that, or (were it set back) would not inherit what
//! our own caller had set. Services of systemd, for one, start with SIGPIPE ignored. So SIGPIPE
//! stays as it is, and `shunt stat | head` ends as any other command does.

#![cfg_attr(not(test), no_main)]
// These end the process where nothing can be written: see `say`.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod asan;
mod commands;
mod config;
mod defrag;
mod doctor;
mod elf;
mod engine;
mod man;
mod numbers;
mod program;
mod run;
mod say;
mod serve;
mod service;
mod settings;
mod share;
mod snapshot;
mod sockets;
mod stat;
mod switch;
mod table;
mod top;

/// Where the C library starts us.
#[cfg(not(test))]
// SAFETY: the one `main` of the program, with the signature that the C library calls.
#[unsafe(no_mangle)]
pub extern "C" fn main(
    _count: std::ffi::c_int,
    _arguments: *const *const std::ffi::c_char,
) -> std::ffi::c_int {
    #[cfg(feature = "delays")]
    sys::delays::configure(&std::env::var("SHUNT_DELAYS").unwrap_or_default());
    std::process::exit(on_enough_stack(commands::main).into())
}

/// Calls something where there is stack for it: under a small limit (`ulimit -s 64`), on a thread that has one of its own.
#[cfg(not(test))]
fn on_enough_stack(act: fn() -> u8) -> u8 {
    const ENOUGH: usize = 2 << 20;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    if limit.is_none_or(|bytes| bytes >= ENOUGH as u64) {
        return act();
    }
    // A panic has been told by then.
    let thread = std::thread::Builder::new().stack_size(ENOUGH);
    thread.spawn(act).map_or(1, |thread| thread.join().unwrap_or(101))
}

#[cfg(test)]
fn main() {
    std::process::exit(commands::main().into())
}

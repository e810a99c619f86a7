//! A board whose tables hold anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| e2e::targets::offers::run(bytes));

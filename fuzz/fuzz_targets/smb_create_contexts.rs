//! Chains of create contexts.
#![no_main]

#[expect(dead_code, reason = "the rest is for other targets")]
#[path = "../../crates/smb/tests/wire/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::contexts(bytes));

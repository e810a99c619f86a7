//! A peer that writes anything into its half and its ring, between any two of our calls.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| e2e::targets::hostile_peer::run(bytes));

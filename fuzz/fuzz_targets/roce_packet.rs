//! A hostile peer of a live RoCE device: packets, requests and times in any order.
#![no_main]

#[path = "../../crates/roce/tests/it/ops.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ops::run(bytes);
});

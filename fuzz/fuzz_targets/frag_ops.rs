//! Any sequence of fragments, times and commands: compared with a model, or at least within the budget.
#![no_main]

#[path = "../../crates/frag/tests/it/ops.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));

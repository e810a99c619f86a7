//! Any sequence of calls on several cores: shards with lanes between them, and one table for all, each against
//! a shard alone.
#![no_main]

#[path = "../../crates/frag/tests/it/lanes.rs"]
mod lanes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lanes::run(bytes));

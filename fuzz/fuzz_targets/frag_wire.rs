//! Packets of any bytes, and what a shard makes of several of them.
#![no_main]

#[path = "../../crates/frag/tests/it/packets.rs"]
mod packets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| packets::run(bytes));

//! One end of a connection with a peer that says anything, and two ends that are honest on links that fail.
#![no_main]

#[path = "../../crates/smc/tests/it/hostile.rs"]
mod hostile;
#[path = "../../crates/smc/tests/it/stream.rs"]
mod stream;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile::run(bytes);
    stream::run(bytes);
});

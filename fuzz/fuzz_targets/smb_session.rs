//! Requests in any order to a whole server, over TCP, from clients that are logged on, lose their connections, bind
//! other channels, send again what they have sent, and have their opens again.
#![no_main]

use std::sync::LazyLock;

#[expect(dead_code, reason = "the rest is for tests")]
#[path = "../../crates/engine/tests/it/client.rs"]
mod client;
#[expect(dead_code, reason = "the rest is for tests")]
#[path = "../../crates/engine/tests/it/place.rs"]
mod place;
#[path = "../../crates/engine/tests/it/sequences.rs"]
mod sequences;

static PLACE: LazyLock<place::Place> = LazyLock::new(sequences::place);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    sequences::run(&PLACE, bytes);
});

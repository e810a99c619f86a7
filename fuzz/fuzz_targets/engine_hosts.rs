//! Two engines of hosts, and between them somebody who changes, loses, repeats and holds back what they say to each other,
//! over TCP and by RoCEv2.
#![no_main]

use std::sync::LazyLock;

#[path = "../../crates/engine/tests/it/between.rs"]
mod between;

static PLACE: LazyLock<Option<between::Place>> = LazyLock::new(between::Place::new);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let place = PLACE.as_ref().expect("addresses of this host");
    let _ = between::run(place, bytes);
});

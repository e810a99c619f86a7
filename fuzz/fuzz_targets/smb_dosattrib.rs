//! DOS attributes of a file, in an extended attribute that any program on the host may write.
#![no_main]

#[expect(dead_code, reason = "the module of the engine; reading is what is fuzzed")]
#[path = "../../crates/engine/src/serve/fs/dosattrib.rs"]
mod dosattrib;

use dosattrib::{DosAttrib, STORED};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(said) = DosAttrib::parse(bytes) else { return };
    // Whoever wrote it, no attribute is believed that is not kept there.
    assert!(said.attributes.is_none_or(|attributes| STORED.contains(attributes)));
    assert_eq!(DosAttrib::parse(&said.emit()), Some(said), "what we write");
});

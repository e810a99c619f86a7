//! Programs that `shunt doctor` looks at, which anybody may have written.
#![no_main]

#[expect(dead_code, reason = "the module of the program `shunt`; parsing is what is fuzzed")]
#[path = "../../crates/cli/src/elf.rs"]
mod elf;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(elf::Elf::Native(native)) = elf::parse(&bytes) {
        let _ = (native.is_musl(), native.uring());
    }
});

//! What C is told of settings: why they cannot be, and what they cost.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use shunt_frag::Config;

fn defaults() -> Config {
    let mut config = MaybeUninit::<Config>::uninit();
    // SAFETY: room for a config.
    unsafe { shunt_frag::shunt_frag_defaults(config.as_mut_ptr()) };
    // SAFETY: it was filled in.
    unsafe { config.assume_init() }
}

/// What is said in so much room, and how long it is.
fn said(config: &Config, room: usize) -> (String, usize) {
    // What is behind the room stays as it was.
    let mut why = [b'!'; 200];
    let out: *mut u8 = if room == 0 { std::ptr::null_mut() } else { why.as_mut_ptr() };
    // SAFETY: a config; there is more room than is said.
    let len = unsafe { shunt_frag::shunt_frag_check(config, out.cast::<c_char>(), room) };
    assert!(why[room..].iter().all(|byte| *byte == b'!'), "{room}");
    if room == 0 {
        return (String::new(), len);
    }
    // SAFETY: what was written ends with a zero, or the test of what is behind it would have failed.
    let words = unsafe { CStr::from_ptr(why.as_ptr().cast::<c_char>()) };
    (words.to_string_lossy().into_owned(), len)
}

fn is_null(config: &Config) -> bool {
    // SAFETY: a config.
    let ledger = unsafe { shunt_frag::shunt_frag_ledger_new(config) };
    // SAFETY: null, or not used again.
    unsafe { shunt_frag::shunt_frag_ledger_free(ledger) };
    ledger.is_null()
}

#[test]
fn whoever_gets_no_ledger_is_told_why() {
    let good = defaults();
    assert_eq!((said(&good, 100), is_null(&good)), ((String::new(), 0), false));
    let wrong = [
        (Config { memory_bytes: 1000, ..good }, "memory_bytes is 1000: at least 65536 are needed"),
        (Config { shards: 0, ..good }, "shards is 0: 1 to 4096"),
        (Config { overlap: 8, ..good }, "overlap is 8: 0 to 7"),
    ];
    for (config, words) in wrong {
        assert!(is_null(&config), "{words}");
        assert_eq!(said(&config, 100), (words.into(), words.len()));
        assert_eq!(said(&config, words.len()), (words[..words.len() - 1].into(), words.len()));
        assert_eq!(said(&config, 1), (String::new(), words.len()));
        assert_eq!(said(&config, 0), (String::new(), words.len()));
    }
}

#[test]
fn what_a_shard_has_beside_the_limit_is_said() {
    let beside = |memory_bytes| {
        let config = Config { memory_bytes, ..defaults() };
        // SAFETY: a config.
        let ledger = unsafe { shunt_frag::shunt_frag_ledger_new(&raw const config) };
        // SAFETY: a ledger.
        let bytes = unsafe { shunt_frag::shunt_frag_beside_bytes(ledger) };
        // SAFETY: not used again.
        unsafe { shunt_frag::shunt_frag_ledger_free(ledger) };
        bytes
    };
    let [little, usual, much] = [1 << 20, 64 << 20, 64 << 30].map(beside);
    assert!(50_000 < little && little < usual && usual < 1 << 20, "{little} {usual}");
    assert_eq!(usual, much, "what is remembered has an end");
}

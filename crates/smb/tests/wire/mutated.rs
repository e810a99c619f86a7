//! Captured frames, cut off anywhere and with bytes changed: nothing panics, and what can be read reads the same
//! after it was written.

use proptest::prelude::*;

use crate::captured::frames;
use crate::hostile;

#[test]
fn cut_off_anywhere() {
    for frame in frames() {
        (0..frame.bytes.len()).for_each(|len| hostile::run(&frame.bytes[..len]));
    }
}

/// Numbers that have gone wrong for somebody before.
fn value() -> impl Strategy<Value = [u8; 4]> {
    let special = [0_u32, 1, 7, 8, 64, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, u32::MAX];
    prop_oneof![
        any::<[u8; 4]>(),
        (0..special.len()).prop_map(move |at| special[at].to_le_bytes()),
        (0_u32..300).prop_map(u32::to_le_bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn bytes_changed(
        which: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), value(), 1..=4_usize), 1..6),
        tail in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = which.get(frames()).bytes.clone();
        for (at, value, len) in changes {
            let at = at.index(bytes.len());
            let len = len.min(bytes.len() - at);
            bytes[at..at + len].copy_from_slice(&value[..len]);
        }
        if let Some(tail) = tail {
            bytes.truncate(tail.index(bytes.len()));
        }
        hostile::run(&bytes);
    }

    #[test]
    fn bodies(which: prop::sample::Index, choice: [u8; 2], at: prop::sample::Index, value: u8) {
        // The body of one command as that of any.
        let bytes = &which.get(frames()).bytes;
        let mut bytes = [&choice[..], &bytes[64..]].concat();
        hostile::body(&bytes);
        let at = at.index(bytes.len());
        bytes[at] = value;
        hostile::body(&bytes);
    }

    #[test]
    fn chains_of_contexts(bytes in prop::collection::vec(0..40_u8, 0..200)) {
        hostile::contexts(&bytes);
        hostile::negotiate_contexts(&bytes);
    }
}

#[test]
fn contexts_of_captured_frames_with_bytes_changed() {
    for frame in frames().iter().filter(|frame| frame.title.contains("create")) {
        let from = frame.bytes.len().min(120);
        for at in (from..frame.bytes.len()).step_by(8) {
            let chain = &frame.bytes[at..];
            hostile::contexts(chain);
            for byte in 0..chain.len().min(40) {
                for value in [0, 8, 17, 0xff] {
                    let mut chain = chain.to_vec();
                    chain[byte] = value;
                    hostile::contexts(&chain);
                }
            }
        }
    }
}

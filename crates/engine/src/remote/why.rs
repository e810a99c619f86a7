//! Why a connection to another host goes on as TCP: a number on the board, and its words.
//!
//! Small numbers are those of [`local::Reason`], large ones what is said in CLC (RFC 7609 A.2.4, and Linux, as
//! `smcss` shows them); the top bit tells who has said it.

use local::Reason;
use smc::clc::Diagnosis;

/// Set where the peer has said it. No number of CLC has this bit.
const PEER: u32 = 1 << 31;
/// Numbers of CLC are not below.
const CLC: u32 = 1 << 16;

/// What we have found.
pub(super) const fn ours(diagnosis: Diagnosis) -> u32 {
    diagnosis.code() & !PEER
}

/// What the peer has said.
pub(super) const fn theirs(diagnosis: Diagnosis) -> u32 {
    diagnosis.code() | PEER
}

/// A number of a half in words; `None`: it is no reason that is known here.
#[must_use]
pub const fn words(code: u32) -> Option<&'static str> {
    if code < CLC {
        return match Reason::from_code(code) {
            Some(reason) => Some(reason.words()),
            None => None,
        };
    }
    let diagnosis = Diagnosis::from_code(code & !PEER);
    Some(if code & PEER == 0 { diagnosis.text() } else { diagnosis.text_of_peer() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_what_was_the_matter_and_who_has_said_it() {
        assert_eq!(words(2), Some(Reason::NoListener.words()));
        assert_eq!(words(ours(Diagnosis::NoDevice)), Some("No device for SMC was found."));
        let said = words(theirs(Diagnosis::NoDevice));
        assert_eq!(said, Some("The peer: No device for SMC was found."));
        assert_eq!((words(0), words(0xffff)), (None, None));
        // What a peer makes up is not ours.
        assert_eq!(theirs(Diagnosis::from_code(7)), PEER | 7);
        assert!(words(PEER | 7).is_some_and(|text| text.starts_with("The peer: ")));
    }
}

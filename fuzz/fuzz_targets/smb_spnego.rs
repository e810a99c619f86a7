//! Tokens of SPNEGO, and a client that says whatever it likes, token by token.
#![no_main]

use std::sync::Arc;

use smb::FileTime;
use smb::auth::spnego::{NegTokenInit, NegTokenResp, mechanism_list};
use smb::auth::{Acceptor, Input, Settings, Step, UserFile};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(init) = NegTokenInit::parse(bytes) {
        // What was read is written, and reads the same.
        let written = NegTokenInit::emit(&init.mechanisms, init.token);
        let again = NegTokenInit::parse(&written).expect("what we write");
        assert_eq!((&again.mechanisms, again.token), (&init.mechanisms, init.token));
        assert_eq!(again.mechanisms_der, mechanism_list(&init.mechanisms));
    }
    if let Ok(response) = NegTokenResp::parse(bytes) {
        assert_eq!(NegTokenResp::parse(&response.emit()), Ok(response));
    }
    let settings = Settings { guest: true, anonymous: true, ..Settings::default() };
    let mut acceptor = Acceptor::new(Arc::new(settings));
    let users = UserFile::default();
    let mut rest = bytes;
    for step in 0..32 {
        // A byte for the length of each token.
        let Some((len, more)) = rest.split_first() else { break };
        let (token, more) = more.split_at(more.len().min(usize::from(*len) * 4));
        rest = more;
        let input = Input { users: &users, now: FileTime(1 << 56), random: [7; 8] };
        match acceptor.step(token, &input) {
            Step::Continue(answer) => {
                assert!(step < 8 && !answer.is_empty());
            }
            Step::Done(who, _) => assert!(who.guest != who.anonymous),
            Step::Refused(refusal) => assert!(refusal.status.is_error()),
        }
    }
});

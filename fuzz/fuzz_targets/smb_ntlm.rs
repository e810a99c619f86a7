//! What a client says to log on, after it has been challenged: bytes as they come, and a message that would have been
//! right but for what was changed in it.
#![no_main]

use std::sync::Arc;

use smb::FileTime;
use smb::auth::ntlm::client::Client;
use smb::auth::{Acceptor, Input, NtHash, Settings, Step, UserFile};

const NOW: FileTime = FileTime(133_000_000_000_000_000);

fn acceptor() -> Acceptor {
    Acceptor::new(Arc::new(Settings {
        netbios_computer: "SHUNT".to_owned(),
        ..Settings::default()
    }))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let nt_hash = NtHash::of_password("password");
    let users = UserFile::parse(&format!("alice:1:{}::", *nt_hash.to_hex())).expect("a user");
    let input = Input { users: &users, now: NOW, random: [7; 8] };
    let mut acceptor_1 = acceptor();
    let Step::Continue(challenge) = acceptor_1.step(&Client::negotiate(), &input) else {
        panic!("a good NEGOTIATE is challenged");
    };
    // Nobody comes in who does not know the password.
    assert!(matches!(acceptor_1.step(bytes, &input), Step::Refused(_)));
    assert!(matches!(acceptor_1.step(bytes, &input), Step::Refused(_)));

    let client = Client {
        user: "alice".to_owned(),
        domain: "D".to_owned(),
        workstation: String::new(),
        nt_hash: Some(nt_hash),
        mic: true,
    };
    // A server's challenge is as much another's as a client's answer.
    let _ = client.authenticate(bytes, ([1; 8], [2; 16]), NOW);
    let answer = client.authenticate(&challenge, ([1; 8], [2; 16]), NOW).expect("our challenge");
    let mut token = answer.token.clone();
    // Three bytes are one change: where, and to what.
    for change in bytes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % token.len();
        token[at] = change[2];
    }
    let mut acceptor_2 = acceptor();
    acceptor_2.step(&Client::negotiate(), &input);
    match acceptor_2.step(&token, &input) {
        Step::Done(who, _) => {
            assert_eq!(who.user, "alice");
            // The MIC is over everything; only what it does not reach can have changed. The flag that says that there
            // is one is part of what the proof covers.
            assert_eq!(who.session_key.as_bytes(), answer.session_key().as_bytes());
            assert_eq!(token, answer.token);
        }
        Step::Refused(_) => {}
        Step::Continue(_) => panic!("NTLM has no third step"),
    }
});

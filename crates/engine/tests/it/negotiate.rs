//! What a connection is agreed to speak, and what is not agreed to.

use smb::session::Dialect;
use smb::wire::U16s;
use smb::wire::header::Command;
use smb::wire::negotiate::{self, Capabilities, Context, SecurityMode};
use smb::{Guid, NtStatus};

use crate::client::{Client, request, utf16};
use crate::place::Place;

/// MS-SMB2 3.3.5.4: 3.1.1 wants a hash over its beginnings that both know. Of the other contexts those are answered that say
/// what is to be used.
#[test]
fn what_a_client_says_of_3_1_1_is_agreed_on_refused_or_passed_over() {
    let place = Place::new();
    let (sha, other) = (U16s::bytes_of(&[1]), U16s::bytes_of(&[2]));
    let (both, gcm) = (U16s::bytes_of(&[2, 1]), U16s::bytes_of(&[2]));
    let (gmac, name) = (U16s::bytes_of(&[2]), utf16("files.example.com"));
    let hashed = |hashes| Context::Preauth { hashes: U16s::new(hashes), salt: &[5; 32] };
    let ciphers = Context::Encryption(U16s::new(&gcm));
    let signing = Context::Signing(U16s::new(&gmac));
    let netname = Context::Netname(&name);
    let unknown = Context::Unknown { kind: 0x4711, data: &[7; 9] };
    let (good, bad) = (NtStatus::SUCCESS, NtStatus::INVALID_PARAMETER);
    let none_in_common = NtStatus::SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP;
    let cases: &[(&[Context<'_>], NtStatus, &[u16])] = &[
        (&[hashed(&sha)], good, &[1]),
        (&[hashed(&both)], good, &[1]),
        (&[netname, unknown, ciphers, hashed(&sha)], good, &[1, 2]),
        (&[hashed(&sha), Context::Transport(1), netname, signing], good, &[1, 8]),
        (&[hashed(&sha), unknown, unknown], good, &[1]),
        (&[hashed(&other), ciphers], none_in_common, &[]),
        (&[], bad, &[]),
        (&[ciphers, signing, netname], bad, &[]),
        (&[hashed(&sha), hashed(&sha)], bad, &[]),
        (&[hashed(&sha), ciphers, ciphers], bad, &[]),
    ];
    let dialects = U16s::bytes_of(&[Dialect::Smb302 as u16, Dialect::Smb311 as u16]);
    for (contexts, status, answered) in cases {
        let mut client = Client::dial(place.address());
        let body = negotiate::Request {
            security_mode: SecurityMode::SIGNING_ENABLED,
            capabilities: Capabilities::LARGE_MTU,
            client: Guid([7; 16]),
            dialects: U16s::new(&dialects),
            contexts: contexts.to_vec(),
        };
        client.send_one(request(Command::Negotiate, &body));
        let answer = client.receive();
        assert_eq!(answer.status(), *status, "{contexts:?}");
        if *status == good {
            let said = negotiate::Response::parse(&answer.message).unwrap();
            assert_eq!(said.dialect, Dialect::Smb311 as u16);
            let kinds: Vec<u16> = said.contexts.iter().map(Context::kind).collect();
            assert_eq!(kinds, *answered, "{contexts:?}");
        }
    }
}

/// Scanners and old televisions: an SMB1 NEGOTIATE that knows 2.0.2 and nothing later.
#[test]
fn who_asks_by_smb1_for_2_0_2_alone_gets_it_where_it_is_spoken() {
    let dialects = b"\x02NT LM 0.12\0\x02SMB 2.002\0";
    let mut smb1 = vec![0xff, b'S', b'M', b'B', 0x72];
    smb1.resize(33, 0);
    smb1.extend(u16::try_from(dialects.len()).unwrap().to_le_bytes());
    smb1.extend(dialects);
    let place = Place::with(|config| config.dialects = Dialect::ALL.to_vec());
    let mut client = Client::dial(place.address());
    client.send_frame(&smb1);
    let answer = client.receive().good();
    let said = negotiate::Response::parse(&answer.message).unwrap();
    assert_eq!(said.dialect, Dialect::Smb202 as u16);
    assert_eq!([said.transact_max, said.read_max, said.write_max], [65536; 3]);
    // Nothing more is negotiated: the request stood for message 0.
    client.next = 1;
    client.log_on("alice", "pw").unwrap();
    client.sign = true;
    client.enter_tree("files").unwrap();
    let file = client.open("scanned.txt");
    assert_eq!(client.write(file, 0, b"a page"), NtStatus::SUCCESS);
    assert_eq!(client.read(file, 0, 100).as_deref(), Ok(&b"a page"[..]));
    assert_eq!(place.stat().sessions[0].dialect, "2.0.2");
}

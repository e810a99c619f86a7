//! Who gets in, and as what.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, SystemTime};

use smb::auth::{User, UserFile};
use smb::session::Dialect;
use smb::wire::header::{Command, Header};
use smb::wire::negotiate::Context;
use smb::wire::{bare, close, lock, negotiate, read};
use smb::{FileTime, Guid, NtStatus, SessionId};

use crate::client::{Client, Offer, request};
use crate::place::{Place, config};
use engine::serve::config::{Config, Demand};
use engine::serve::{NotStarted, Serving};

fn only(dialect: Dialect) -> Offer {
    Offer { dialects: vec![dialect], ..Offer::default() }
}

#[test]
fn every_dialect_signs_reads_and_writes() {
    let place = Place::with(|config| config.dialects = Dialect::ALL.to_vec());
    for dialect in Dialect::ALL {
        let mut client = Client::enter(place.address(), only(dialect), "alice", "files");
        assert_eq!(client.dialect, dialect);
        client.sign = true;
        let file = client.open(&format!("{dialect}.txt"));
        assert_eq!(client.write(file, 0, b"signed"), NtStatus::SUCCESS);
        assert_eq!(client.read(file, 0, 100).as_deref(), Ok(&b"signed"[..]), "{dialect}");
        client.call(Command::Logoff, &bare::Request).good();
    }
}

#[test]
fn the_newest_dialect_that_both_speak_is_spoken() {
    let place = Place::new();
    let client = Client::connect(place.address(), Offer::default());
    assert_eq!(client.dialect, Dialect::Smb311);
    let mut old = Client::dial(place.address());
    old.offer(only(Dialect::Smb202));
    assert_eq!(old.negotiate().status(), NtStatus::NOT_SUPPORTED, "2.0.2 is not spoken by default");
}

/// The kernel would give each of two servers some of a port's connections.
#[test]
fn a_port_is_served_once() {
    let place = Place::new();
    let there = place.address();
    let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), there.port());
    for address in [there, everywhere] {
        let second = Config { listen: vec![address], ..config(Path::new("/")) };
        match Serving::start(second).err() {
            Some(NotStarted::Listen { error, .. }) => {
                assert_eq!(error.kind(), ErrorKind::AddrInUse, "{address}");
            }
            other => panic!("{address}: {other:?}"),
        }
    }
    drop(place);
    // Its own addresses may be one another's. A port that is free now may be somebody else's in a moment.
    let served = (0..20).any(|_| {
        let port = Place::new().address().port();
        let both = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST];
        let both = both.map(|ip| SocketAddr::new(ip.into(), port));
        match Serving::start(Config { listen: both.to_vec(), ..config(Path::new("/")) }) {
            Ok(serving) => {
                assert_eq!(serving.addresses(), both);
                true
            }
            Err(NotStarted::Listen { error, .. }) if error.kind() == ErrorKind::AddrInUse => false,
            Err(other) => panic!("{other:?}"),
        }
    });
    assert!(served);
}

#[test]
fn every_cipher_and_signature() {
    let place = Place::new();
    for cipher in 1..=4 {
        for signing in 0..=2 {
            let offer = Offer { ciphers: vec![cipher], signing: vec![signing], ..Offer::default() };
            let mut client = Client::enter(place.address(), offer, "alice", "files");
            client.sign = true;
            let file = client.open("signed.txt");
            let text = vec![u8::try_from(16 * cipher + signing).unwrap(); 70_000];
            assert_eq!(client.write(file, 0, &text), NtStatus::SUCCESS);
            client.seal = true;
            assert_eq!(client.read(file, 0, 70_000).as_ref(), Ok(&text), "{cipher} {signing}");
            assert_eq!(client.write(file, 5, b"sealed"), NtStatus::SUCCESS);
            let answer = client.call(Command::Echo, &bare::Request).good();
            assert!(answer.sealed, "what is asked in secret is answered in secret");
            client.seal = false;
            assert_eq!(&client.read(file, 5, 6).unwrap(), b"sealed");
        }
    }
}

/// MS-SMB2 3.3.5.4: that there is no cipher in common is said; a server that does not encrypt says nothing.
#[test]
fn a_server_that_does_not_encrypt_names_no_cipher_and_not_even_none() {
    let cases: [(Demand, &[u16], Option<u16>); 6] = [
        (Demand::Offered, &[1, 2], Some(2)),
        (Demand::Required, &[1], Some(1)),
        (Demand::Offered, &[99], Some(0)),
        (Demand::Offered, &[], None),
        (Demand::Off, &[1, 2], None),
        (Demand::Off, &[99], None),
    ];
    for (demand, ciphers, expected) in cases {
        let place = Place::with(|config| config.encryption = demand);
        let mut client = Client::dial(place.address());
        client.offer(Offer { ciphers: ciphers.to_vec(), ..Offer::default() });
        let answer = client.negotiate().good();
        let said = negotiate::Response::parse(&answer.message).unwrap();
        let chosen: Vec<Vec<u16>> = said
            .contexts
            .iter()
            .filter_map(|context| match context {
                Context::Encryption(chosen) => Some(chosen.iter().collect()),
                _ => None,
            })
            .collect();
        let expected: Vec<_> = expected.map(|cipher| vec![cipher]).into_iter().collect();
        assert_eq!(chosen, expected, "{demand:?}, offered {ciphers:?}");
    }
}

#[test]
fn a_wrong_password_is_refused_and_so_is_nobody_who_is_unknown() {
    let place = Place::new();
    let mut client = Client::connect(place.address(), Offer::default());
    assert_eq!(client.log_on("alice", "wrong"), Err(NtStatus::LOGON_FAILURE));
    client.session = SessionId(0);
    assert_eq!(client.log_on("mallory", "pw"), Err(NtStatus::LOGON_FAILURE));
    client.session = SessionId(0);
    assert_eq!(client.log_on("ALICE", "pw"), Ok(()), "names have no case");
}

#[test]
fn who_guesses_is_locked_out_for_a_while() {
    let place = Place::new();
    let mut client = Client::connect(place.address(), Offer::default());
    let mut last = NtStatus::SUCCESS;
    for _ in 0..30 {
        client.session = SessionId(0);
        last = client.log_on("alice", "guess").unwrap_err();
    }
    assert_eq!(last, NtStatus::ACCOUNT_LOCKED_OUT);
    client.session = SessionId(0);
    assert_eq!(client.log_on("alice", "pw"), Err(NtStatus::ACCOUNT_LOCKED_OUT), "even if right");
}

#[test]
fn guests_come_in_where_guests_may() {
    let place = Place::with(|config| config.guest = true);
    let mut guest = Client::connect(place.address(), Offer::default());
    assert_eq!(guest.log_on("mallory", "whatever"), Ok(()));
    guest.enter_tree("files").unwrap();
    let file = guest.open("guest.txt");
    assert_eq!(guest.write(file, 0, b"hello"), NtStatus::SUCCESS);
    guest.session = SessionId(0);
    assert_eq!(guest.log_on("alice", "wrong"), Err(NtStatus::LOGON_FAILURE), "alice is known");
}

#[test]
fn logons_and_bytes_are_counted_by_who_why_and_where() {
    let place = Place::with(|config| config.guest = true);
    let mut client = Client::connect(place.address(), Offer::default());
    assert_eq!(client.log_on("alice", "wrong"), Err(NtStatus::LOGON_FAILURE));
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
    let file = client.open("counted.txt");
    assert_eq!(client.write(file, 0, &[7; 1000]), NtStatus::SUCCESS);
    assert_eq!(client.write(file, 0, &vec![7; 300_000]), NtStatus::SUCCESS);
    assert_eq!(client.read(file, 0, 100).map(|data| data.len()), Ok(100));
    assert_eq!(client.read(file, 0, 200_000).map(|data| data.len()), Ok(200_000));
    let mut guest = Client::connect(place.address(), Offer::default());
    guest.log_on("mallory", "whatever").unwrap();
    let stat = place.stat();
    let counted = |all: &[engine::serve::stat::Occurrence]| -> Vec<(String, u64)> {
        let some = all.iter().filter(|of| of.count > 0);
        some.map(|of| (of.what.clone(), of.count)).collect()
    };
    assert_eq!(counted(&stat.logons), [("user".into(), 1), ("guest".into(), 1)]);
    assert_eq!(counted(&stat.logons_failed), [("wrong_password".into(), 1)]);
    let shares: Vec<_> =
        stat.by_share.iter().map(|s| (&*s.share, s.bytes_read, s.bytes_written)).collect();
    assert_eq!(shares, [("files", 200_100, 301_000), ("secret", 0, 0)]);
    assert_eq!((stat.bytes_read, stat.bytes_written), (200_100, 301_000));
    assert!(stat.descriptors > 0 && stat.descriptors < stat.limits.descriptors_max, "{stat:?}");
}

#[test]
fn compression_and_rdma_are_offered_in_vain_and_the_rest_is_agreed_on() {
    let place = Place::new();
    let mut client = Client::dial(place.address());
    client.offer(Offer { transforms: true, ..only(Dialect::Smb311) });
    let answer = client.negotiate().good();
    let said = negotiate::Response::parse(&answer.message).unwrap();
    let kinds: Vec<u16> = said.contexts.iter().map(Context::kind).collect();
    assert_eq!(kinds, [1, 2, 8], "preauthentication, encryption, signing");
    // What a client does then works, sealed as well.
    client.log_on("alice", "pw").unwrap();
    client.sign = true;
    client.enter_tree("files").unwrap();
    client.seal = true;
    let file = client.open("plain.txt");
    let text = vec![b'a'; 10_000];
    assert_eq!(client.write(file, 0, &text), NtStatus::SUCCESS);
    assert_eq!(client.read(file, 0, 10_000).as_ref(), Ok(&text));
}

#[test]
fn who_gives_no_name_comes_in_where_that_was_asked_for() {
    for (anonymous, guest, logged_on, files) in [
        (false, false, Err(NtStatus::ACCESS_DENIED), None),
        (true, false, Ok(()), Some(Err(NtStatus::ACCESS_DENIED))),
        (false, true, Ok(()), Some(Ok(()))),
    ] {
        let place = Place::with(|config| {
            config.anonymous = anonymous;
            config.guest = guest;
        });
        let mut nobody = Client::connect(place.address(), Offer::default());
        assert_eq!(nobody.log_on_as_nobody(), logged_on, "anonymous {anonymous}, guest {guest}");
        let Some(files) = files else { continue };
        assert_eq!(nobody.enter_tree("files"), files, "anonymous {anonymous}, guest {guest}");
        assert_eq!(nobody.enter_tree("IPC$"), Ok(()), "which shares there are");
    }
}

#[test]
fn where_signatures_are_required_nothing_else_is_heard() {
    let place = Place::with(|config| {
        config.signing = Demand::Required;
        config.guest = true;
    });
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
    let echo = client.call(Command::Echo, &bare::Request);
    assert_eq!(echo.status(), NtStatus::ACCESS_DENIED);
    client.sign = true;
    client.call(Command::Echo, &bare::Request).good();
    let mut guest = Client::connect(place.address(), Offer::default());
    assert_eq!(guest.log_on("mallory", "x"), Err(NtStatus::ACCESS_DENIED), "guests cannot sign");
}

#[test]
fn where_encryption_is_required_nothing_else_is_heard() {
    let place = Place::with(|config| config.encryption = Demand::Required);
    let mut client = Client::connect(place.address(), Offer::default());
    client.log_on("alice", "pw").unwrap();
    client.sign = true;
    assert_eq!(client.enter_tree("files"), Err(NtStatus::ACCESS_DENIED));
    client.seal = true;
    assert_eq!(client.enter_tree("files"), Ok(()));
    let file = client.open("secret.txt");
    assert_eq!(client.write(file, 0, b"secret"), NtStatus::SUCCESS);
    let mut plain = Client::connect(place.address(), Offer { ciphers: vec![], ..Offer::default() });
    assert_eq!(plain.log_on("alice", "pw"), Err(NtStatus::ACCESS_DENIED));
}

#[test]
fn a_share_may_be_for_those_who_encrypt() {
    let place = Place::new();
    let mut client = Client::connect(place.address(), Offer::default());
    client.log_on("alice", "pw").unwrap();
    client.sign = true;
    assert_eq!(client.enter_tree("secret"), Ok(()));
    let name = crate::client::utf16("secret.txt");
    let plain = client.call(Command::Create, &Client::create_body(&name));
    assert_eq!(plain.status(), NtStatus::ACCESS_DENIED);
    client.seal = true;
    let file = client.open("secret.txt");
    assert_eq!(client.write(file, 0, &[1; 100_000]), NtStatus::SUCCESS);
    (client.sign, client.seal) = (false, false);
    assert_eq!(client.write(file, 0, &[2; 100_000]), NtStatus::ACCESS_DENIED);
    let offer = Offer { ciphers: vec![], ..Offer::default() };
    let mut client = Client::connect(place.address(), offer);
    client.log_on("alice", "pw").unwrap();
    client.sign = true;
    assert_eq!(client.enter_tree("secret"), Err(NtStatus::ACCESS_DENIED));
}

#[test]
fn what_is_sealed_for_another_connection_is_answered_in_secret() {
    let place = Place::new();
    let mut hers = Client::enter(place.address(), Offer::default(), "alice", "files");
    let mut other = Client::enter(place.address(), Offer::default(), "alice", "files");
    other.swap_sessions(&mut hers);
    other.seal = true;
    let answer = other.call(Command::TreeDisconnect, &bare::Request);
    assert_eq!(answer.status(), NtStatus::USER_SESSION_DELETED);
    assert!(answer.sealed);
    let mut stranger = Client::connect(place.address(), Offer::default());
    stranger.swap_sessions(&mut hers);
    stranger.seal = true;
    stranger.send_one(request(Command::Echo, &bare::Request));
    assert!(stranger.is_closed(), "who has no session here is not listened to");
}

#[test]
fn a_changed_message_is_refused() {
    let place = Place::new();
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
    client.sign = true;
    let mut echo = client.send_one(request(Command::Echo, &bare::Request));
    client.receive().good();
    // The next one, with the signature of the last.
    echo[24..32].copy_from_slice(&client.next.to_le_bytes());
    client.next += 1;
    client.sign = false;
    client.send_frame(&echo);
    assert_eq!(client.receive().status(), NtStatus::ACCESS_DENIED);
}

#[test]
fn a_share_is_entered_with_a_signature_or_not_at_all() {
    let place = Place::new();
    let mut client = Client::connect(place.address(), Offer::default());
    client.log_on("alice", "pw").unwrap();
    let path = crate::client::utf16(r"\\server\files");
    let body = smb::wire::tree_connect::Request { path: &path, ..Default::default() };
    client.send_one(request(Command::TreeConnect, &body));
    assert!(client.is_closed(), "3.1.1 (MS-SMB2 3.3.5.7)");
}

#[test]
fn a_session_goes_on_after_it_was_authenticated_again() {
    let place = Place::new();
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
    client.sign = true;
    let file = client.open("kept.txt");
    let session = client.session;
    assert_eq!(client.log_on("alice", "pw"), Ok(()));
    assert_eq!(client.session, session);
    assert_eq!(client.write(file, 0, b"still open"), NtStatus::SUCCESS);
    assert_eq!(client.log_on("alice", "wrong"), Err(NtStatus::LOGON_FAILURE));
    let after = client.call(Command::Echo, &bare::Request);
    assert_eq!(after.status(), NtStatus::USER_SESSION_DELETED, "somebody else sits there now");
}

#[test]
fn a_second_channel_uses_what_the_first_has_opened() {
    let place = Place::new();
    for dialect in [Dialect::Smb300, Dialect::Smb302, Dialect::Smb311] {
        let mut first = Client::enter(place.address(), only(dialect), "alice", "files");
        first.sign = true;
        let file = first.open("two channels.txt");
        let mut second = Client::connect(place.address(), only(dialect));
        second.bind(&first, "alice", "pw").unwrap();
        assert_eq!(second.write(file, 0, b"by the second"), NtStatus::SUCCESS, "{dialect}");
        assert_eq!(first.read(file, 0, 100).as_deref(), Ok(&b"by the second"[..]));
        drop(first);
        assert_eq!(second.read(file, 0, 100).as_deref(), Ok(&b"by the second"[..]), "{dialect}");
        second.call(Command::Logoff, &bare::Request).good();
    }
}

/// Each loop has a CPU of its own: what is sealed by four channels is sealed on as many CPUs as there are.
#[test]
fn the_channels_of_a_client_are_on_as_many_loops_and_seal_at_the_same_time() {
    const CHANNELS: usize = 4;
    const PIECE: u32 = 1 << 20;
    let place = Place::with(|config| config.vectors = CHANNELS);
    let mut first = Client::enter(place.address(), Offer::default(), "alice", "files");
    first.sign = true;
    let file = first.open("four channels.bin");
    let data: Vec<u8> = (0..u32::try_from(CHANNELS).unwrap() * PIECE)
        .map(|n| n.to_le_bytes().into_iter().fold(0, |sum, byte| sum ^ byte))
        .collect();
    std::fs::write(place.folder().join("four channels.bin"), &data).unwrap();
    let mut channels = vec![first];
    for _ in 1..CHANNELS {
        let mut next = Client::connect(place.address(), Offer::default());
        next.bind(&channels[0], "alice", "pw").unwrap();
        channels.push(next);
    }
    let stat = place.stat();
    assert_eq!(stat.sessions.len(), 1);
    let mut loops: Vec<_> = stat.sessions[0].channels.iter().map(|one| one.vector).collect();
    loops.sort_unstable();
    assert_eq!(loops, [0, 1, 2, 3], "one each");
    std::thread::scope(|scope| {
        for (channel, mut client) in (0_u64..).zip(channels) {
            let data = &data;
            scope.spawn(move || {
                // Sealed by the keys of the session, which are those of its first channel.
                client.seal = true;
                for round in 0..8 {
                    let offset = (channel + round) % 4 * u64::from(PIECE);
                    let start = usize::try_from(offset).unwrap();
                    let body = read::Request { file, offset, length: PIECE, ..Default::default() };
                    let answer = client.call(Command::Read, &body).good();
                    assert!(answer.sealed, "{channel}");
                    let said = read::Response::parse(&answer.message).unwrap();
                    assert!(said.data == &data[start..start + PIECE as usize], "{channel}");
                }
            });
        }
    });
    assert_eq!(place.panics(), 0);
}

#[test]
fn not_everybody_may_be_a_channel() {
    let place = Place::new();
    let mut first = Client::enter(place.address(), Offer::default(), "alice", "files");
    first.sign = true;
    let bind = |offer: Offer, user: &str, password: &str| {
        Client::connect(place.address(), offer).bind(&first, user, password)
    };
    assert_eq!(bind(Offer::default(), "bob", "pw"), Err(NtStatus::ACCESS_DENIED));
    assert_eq!(bind(Offer::default(), "alice", "wrong"), Err(NtStatus::LOGON_FAILURE));
    assert_eq!(bind(only(Dialect::Smb302), "alice", "pw"), Err(NtStatus::REQUEST_OUT_OF_SEQUENCE));
    assert_eq!(bind(only(Dialect::Smb210), "alice", "pw"), Err(NtStatus::REQUEST_OUT_OF_SEQUENCE));
    let other_cipher = Offer { ciphers: vec![1], ..Offer::default() };
    assert_eq!(bind(other_cipher, "alice", "pw"), Err(NtStatus::INVALID_PARAMETER));
    let mut forgetful = Client::connect(place.address(), Offer::default());
    forgetful.forgets_to_sign = true;
    let refused = forgetful.bind(&first, "alice", "pw");
    assert_eq!(refused, Err(NtStatus::INVALID_PARAMETER), "each request of it is to be signed");
    assert_eq!(first.bind_again("alice"), Err(NtStatus::REQUEST_NOT_ACCEPTED), "it is one already");
    first.call(Command::Echo, &bare::Request).good();
    let mut unknown = Client::enter(place.address(), Offer::default(), "alice", "files");
    unknown.session = SessionId(unknown.session.0 ^ 1);
    let mut late = Client::connect(place.address(), Offer::default());
    assert_eq!(late.bind(&unknown, "alice", "pw"), Err(NtStatus::USER_SESSION_DELETED));
}

#[test]
fn a_session_of_before_ends_when_its_client_comes_back() {
    let place = Place::new();
    let mut old = Client::enter(place.address(), Offer::default(), "alice", "files");
    let mut new = Client::connect(place.address(), Offer::default());
    new.log_on_after("bob", old.session).unwrap();
    old.call(Command::Echo, &bare::Request).good();
    let mut new = Client::connect(place.address(), Offer::default());
    new.log_on_after("alice", old.session).unwrap();
    let echo = old.call(Command::TreeDisconnect, &bare::Request);
    assert_eq!(echo.status(), NtStatus::USER_SESSION_DELETED);
}

#[test]
fn an_smb1_negotiate_leads_to_smb2() {
    let place = Place::new();
    let mut client = Client::dial(place.address());
    let dialects = b"\x02NT LM 0.12\0\x02SMB 2.002\0\x02SMB 2.???\0";
    let mut smb1 = vec![0xff, b'S', b'M', b'B', 0x72];
    smb1.resize(32, 0);
    smb1.push(0);
    smb1.extend_from_slice(&u16::try_from(dialects.len()).unwrap().to_le_bytes());
    smb1.extend_from_slice(dialects);
    client.send_frame(&smb1);
    let answer = client.receive().good();
    let said = negotiate::Response::parse(&answer.message).unwrap();
    assert_eq!(said.dialect, Dialect::WILDCARD);
    client.next = 1;
    client.negotiate().good();
    assert_eq!(client.dialect, Dialect::Smb311);
    assert_eq!(client.log_on("alice", "pw"), Ok(()));
}

#[test]
fn who_negotiates_twice_is_cut_off() {
    let place = Place::new();
    let mut client = Client::connect(place.address(), Offer::default());
    client.send_one(request(Command::Negotiate, &bare::Request));
    assert!(client.is_closed());
}

#[test]
fn credits_are_given_as_asked_and_a_number_is_used_once() {
    let place = Place::new();
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
    let before = client.credits;
    client.call(Command::Echo, &bare::Request).good();
    assert_eq!(client.credits, before + 64);
    client.next -= 1;
    client.send_one(request(Command::Echo, &bare::Request));
    assert!(client.is_closed(), "a message id twice (MS-SMB2 3.3.5.2.3)");
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
    client.next += 10_000;
    client.send_one(request(Command::Echo, &bare::Request));
    assert!(client.is_closed(), "one that was not granted");
}

#[test]
fn clients_have_guids_or_one_channel() {
    let place = Place::new();
    let offer = Offer { guid: Guid::NIL, ..Offer::default() };
    let mut client = Client::enter(place.address(), offer, "alice", "files");
    let header = client.call(Command::Echo, &bare::Request).good().header;
    assert_eq!(Header { command: Command::Echo, ..header }, header);
}

#[test]
fn a_session_that_has_expired_is_authenticated_again_and_has_what_it_had() {
    const HOUR: Duration = Duration::from_secs(3600);
    for (sign, seal) in [(false, false), (true, false), (true, true)] {
        let place = Place::with(|config| config.limits.session = Some(HOUR));
        let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
        (client.sign, client.seal) = (sign, seal);
        let file = client.open("kept.txt");
        let other = client.open("other.txt");
        assert_eq!(client.write(file, 0, b"before"), NtStatus::SUCCESS);
        place.advance(HOUR / 2);
        assert_eq!(client.read(file, 0, 6).as_deref(), Ok(&b"before"[..]), "half an hour is none");
        place.advance(HOUR);
        // MS-SMB2 3.3.5.2.9, and what of it can be done without looking at a file.
        let expired = NtStatus::NETWORK_SESSION_EXPIRED;
        assert_eq!(client.read(file, 0, 6), Err(expired));
        assert_eq!(client.write(file, 0, &[7; 6]), expired);
        assert_eq!(client.write(file, 0, &[7; 200_000]), expired, "nor past the server");
        assert_eq!(client.enter_tree("files"), Err(expired));
        let name = crate::client::utf16("new.txt");
        let create = client.call(Command::Create, &Client::create_body(&name));
        assert_eq!(create.status(), expired);
        client.call(Command::Echo, &bare::Request).good();
        // What it has it may give back, and may have no more.
        let mut lock = |flags: lock::Flags| {
            let element = lock::Element { offset: 0, length: 1, flags };
            let mut elements = Vec::new();
            element.encode(&mut elements);
            let elements = lock::Elements::new(&elements);
            let body = lock::Request { sequence: 0, file: other, elements };
            client.call(Command::Lock, &body).status()
        };
        assert_eq!(lock(lock::Flags::EXCLUSIVE | lock::Flags::FAIL_IMMEDIATELY), expired);
        assert_eq!(lock(lock::Flags::UNLOCK), NtStatus::RANGE_NOT_LOCKED);
        let shut = close::Request { file: other, ..close::Request::default() };
        client.call(Command::Close, &shut).good();
        let mut second = Client::connect(place.address(), Offer::default());
        assert_eq!(second.bind(&client, "alice", "pw"), Err(expired), "not by another channel");
        let id = client.session;
        client.seal = false;
        assert_eq!(client.log_on("alice", "pw"), Ok(()));
        client.seal = seal;
        assert_eq!(client.session, id, "the same session");
        assert_eq!(client.read(file, 0, 6).as_deref(), Ok(&b"before"[..]), "and the same opens");
        assert_eq!(client.write(file, 0, b"after!"), NtStatus::SUCCESS);
        assert!(!place.folder().join("new.txt").exists());
        assert_eq!(place.counts().opens, 1);
    }
}

#[test]
fn who_cannot_authenticate_again_has_no_session_any_more() {
    let place = Place::with(|config| config.limits.session = Some(Duration::from_secs(3600)));
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
    let file = client.open("file.txt");
    place.advance(Duration::from_secs(3600));
    assert_eq!(client.log_on("alice", "wrong"), Err(NtStatus::LOGON_FAILURE));
    assert_eq!(client.read(file, 0, 1), Err(NtStatus::USER_SESSION_DELETED));
    assert_eq!(place.counts().opens, 0);
}

#[test]
fn a_session_may_be_ended_after_its_time() {
    let place = Place::with(|config| config.limits.session = Some(Duration::from_secs(60)));
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
    client.open("file.txt");
    place.advance(Duration::from_secs(61));
    client.call(Command::Logoff, &bare::Request).good();
    assert_eq!(place.counts().opens, 0);
}

#[test]
fn a_session_ends_with_its_users_time() {
    const DAY: Duration = Duration::from_secs(86_400);
    let place = Place::with(|config| {
        let mut users = UserFile::parse(&config.users).unwrap();
        let mut alice = users.get("alice").unwrap().clone();
        let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        // The file names days: at the start of the one after tomorrow.
        alice.expires = Some(FileTime::from_unix((passed / 86_400 + 2).cast_signed() * 86_400, 0));
        users.set(alice).unwrap();
        config.users = users.to_text().to_string();
    });
    let [mut alice, mut bob] = ["alice", "bob"]
        .map(|user| Client::enter(place.address(), Offer::default(), user, "files"));
    let files = [alice.open("alice.txt"), bob.open("bob.txt")];
    place.advance(DAY / 2);
    assert_eq!(alice.write(files[0], 0, b"still"), NtStatus::SUCCESS);
    place.advance(DAY * 2);
    assert_eq!(alice.write(files[0], 0, b"again"), NtStatus::NETWORK_SESSION_EXPIRED);
    assert_eq!(alice.log_on("alice", "pw"), Err(NtStatus(0xc000_0193)), "STATUS_ACCOUNT_EXPIRED");
    assert_eq!(bob.write(files[1], 0, b"still"), NtStatus::SUCCESS, "his time is another");
    assert_eq!(place.counts().opens, 1);
}

#[test]
fn a_users_time_may_be_made_shorter_and_longer_while_there_are_sessions() {
    const DAY: Duration = Duration::from_secs(86_400);
    let place = Place::with(|config| config.limits.session = Some(DAY * 20));
    let mut alice = Client::enter(place.address(), Offer::default(), "alice", "files");
    let file = alice.open("file.txt");
    let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let ends_on = |day: Option<u64>| {
        let mut users = UserFile::parse(&config(place.folder()).users).unwrap();
        let mut alice = users.get("alice").unwrap().clone();
        let start = |day: u64| ((passed / 86_400 + day) * 86_400).cast_signed();
        alice.expires = day.map(|day| FileTime::from_unix(start(day), 0));
        users.set(alice).unwrap();
        place.reload(&users);
    };
    let mut at_work = |on: bool, why: &str| {
        let status = alice.write(file, 0, b"data");
        let expired = status == NtStatus::NETWORK_SESSION_EXPIRED;
        assert!(expired || status == NtStatus::SUCCESS, "{status}");
        assert_eq!(!expired, on, "{why}");
    };
    ends_on(Some(2));
    at_work(true, "until the day after tomorrow");
    ends_on(Some(9));
    place.advance(DAY * 4);
    at_work(true, "longer than was said first");
    ends_on(Some(3));
    at_work(false, "shorter again");
    ends_on(None);
    at_work(true, "for good");
    place.advance(DAY * 20);
    at_work(false, "but no longer than a session may last");
}

/// A share may have been closed to who is new, and its folder be on a file system that does not answer: a reload that had begun
/// let him in to the share as it was.
#[test]
fn who_is_new_waits_for_the_shares_and_who_is_taken_out_for_nothing() {
    let place = Place::with(|_| {});
    let mut users = UserFile::parse(&config(place.folder()).users).unwrap();
    let bob = users.get("bob").unwrap().clone();
    users.set(User { name: "carl".to_owned(), ..bob.clone() }).unwrap();
    users.disable("bob", true).unwrap();
    let logs_on = |name: &str| {
        let mut client = Client::connect(place.address(), Offer::default());
        client.log_on(name, "pw").is_ok()
    };
    assert_eq!(["alice", "bob", "carl"].map(logs_on), [true, true, false]);
    place.begin_reload(&users);
    assert_eq!(["alice", "bob", "carl"].map(logs_on), [true, false, false]);
    place.reload(&users);
    assert_eq!(["alice", "bob", "carl"].map(logs_on), [true, false, true]);
    users.set(bob).unwrap();
    place.begin_reload(&users);
    assert_eq!(["alice", "bob", "carl"].map(logs_on), [true, false, true]);
    place.reload(&users);
    assert_eq!(["alice", "bob", "carl"].map(logs_on), [true, true, true]);
}

/// It was served on as the folder that was no more, reload or not.
#[test]
fn a_folder_that_was_made_anew_is_another_one_after_a_reload() {
    let place = Place::with(|_| {});
    assert_eq!(place.reload_shares(), (0, 0));
    std::fs::remove_dir_all(place.folder()).unwrap();
    std::fs::create_dir(place.folder()).unwrap();
    assert_eq!(place.reload_shares(), (2, 2), "there are two of it");
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
    client.open("file.txt");
    assert_eq!(place.reload_shares(), (0, 0));
    assert_eq!(place.counts().opens, 1);
}

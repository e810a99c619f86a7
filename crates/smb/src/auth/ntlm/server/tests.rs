//! An exchange of smbclient 4.17 with smbd 4.17, as it was on the wire.

use std::sync::Arc;

use super::{Ntlm, Response, State};
use crate::FileTime;
use crate::auth::hex::unhex;
use crate::auth::spnego::{NegTokenInit, NegTokenResp};
use crate::auth::{
    Authenticated, Input, Mechanism, MechanismStep, NtHash, Reason, Settings, User, UserFile,
};

const INIT: &str = "\
    604806062b0601050502a03e303ca00e300c060a2b06010401823702020aa22a04284e544c4d53535000010000\
    001582086200000000280000000000000028000000060100000000000f\
    ";
const CHALLENGE: &str = "\
    a18194308191a0030a0101a10c060a2b06010401823702020aa27c047a4e544c4d53535000020000000a000a00\
    3800000015828a6282517d76363bb90b00000000000000003800380042000000060100000000000f5300480055\
    004e00540002000a005300480055004e00540001000a005300480055004e005400040000000300040076006d00\
    070008001000a884e779dd0100000000\
    ";
const AUTHENTICATE: &str = "\
    a182019c30820198a28201800482017c4e544c4d53535000030000001800180058000000d400d4007000000012\
    001200440100000c000c00560100000a000a0062010000100010006c01000015820862060100000000000f6204\
    4ed09e3e18433590ad039e51f82700000000000000000000000000000000000000000000000093541d32059e0b\
    cc2812da4e11ec76b301010000000000001000a884e779dd01a7f175374ddd155d0000000002000a0053004800\
    55004e00540001000a005300480055004e005400040000000300040076006d00070008001000a884e779dd0106\
    00040002000000080030003000000000000000000000000000000068c17efdf822df410525c3afa900c433b782\
    3556dd3e5a8dc465079a68b317bd0a0010000000000000000000000000000000000009001c0063006900660073\
    002f003100320037002e0030002e0030002e0031000000000057004f0052004b00470052004f00550050006400\
    610065006d006f006e005300480055004e0054005c238c01a59220da659fdf82ff6e0783a3120410010000001e\
    051fef8f5f09ac00000000\
    ";
const COMPLETE: &str = "a11b3019a0030a0100a312041001000000c572a4f978b276fc00000000";

fn users() -> UserFile {
    let mut users = UserFile::default();
    let nt_hash = Some(NtHash::of_password("Secret.1"));
    let name = "Daemon".to_owned();
    users.set(User { name, uid: Some(1), nt_hash, disabled: false, expires: None }).unwrap();
    users
}

/// What a server says to AUTHENTICATE that has sent the CHALLENGE of the record.
fn replay(settings: Settings, token: &[u8]) -> (Ntlm, MechanismStep) {
    let (init, challenge) = (unhex(INIT), unhex(CHALLENGE));
    let init = NegTokenInit::parse(&init).unwrap();
    let challenge_message = NegTokenResp::parse(&challenge).unwrap().token.unwrap();
    let flags = u32::from_le_bytes(*challenge_message[20..].first_chunk().unwrap());
    let mut ntlm = Ntlm::new(Arc::new(settings));
    ntlm.state = State::Authenticate {
        negotiate: init.token.unwrap().to_vec(),
        challenge_message: challenge_message.to_vec(),
        challenge: *challenge_message[24..].first_chunk().unwrap(),
        flags,
    };
    let input =
        Input { users: &users(), now: FileTime::from_unix(1_795_286_320, 0), random: [0; 8] };
    let step = ntlm.step(token, &input);
    (ntlm, step)
}

fn authenticate() -> Vec<u8> {
    NegTokenResp::parse(&unhex(AUTHENTICATE)).unwrap().token.unwrap().to_vec()
}

fn done(step: MechanismStep) -> Authenticated {
    match step {
        MechanismStep::Done(who, token) if token.is_empty() => *who,
        other => panic!("{other:?}"),
    }
}

fn reason(step: MechanismStep) -> Reason {
    match step {
        MechanismStep::Refused(refusal) => refusal.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn smbclient_comes_in() {
    let (mut ntlm, step) = replay(Settings::default(), &authenticate());
    let who = done(step);
    assert_eq!((who.user.as_str(), who.domain.as_str()), ("Daemon", "WORKGROUP"));
    assert_eq!((who.workstation.as_str(), who.uid), ("SHUNT", Some(1)));
    assert!(!who.guest && !who.anonymous);
    // Both ends sign the list of mechanisms with keys that come of the session key.
    let (init, last, complete) = (unhex(INIT), unhex(AUTHENTICATE), unhex(COMPLETE));
    let list = NegTokenInit::parse(&init).unwrap().mechanisms_der;
    let theirs = NegTokenResp::parse(&last).unwrap().mic.unwrap();
    assert_eq!(ntlm.verify_mic(list, theirs), Some(true));
    assert_eq!(ntlm.verify_mic(&list[1..], theirs), Some(false));
    assert_eq!(ntlm.verify_mic(list, &theirs[..15]), Some(false));
    let ours = ntlm.make_mic(list).unwrap();
    assert_eq!(ours, NegTokenResp::parse(&complete).unwrap().mic.unwrap());
}

/// A change of any byte that matters is found; which check finds it depends on where it is.
#[test]
fn what_was_changed_is_refused() {
    let token = authenticate();
    // The server's list of mechanisms, the flags, a name that is not part of the proof: the MIC.
    for at in [60, 63, 72, 87, token.len() - 17, token.len() - 20] {
        let mut changed = token.clone();
        changed[at] ^= 1;
        let reason = reason(replay(Settings::default(), &changed).1);
        assert!(matches!(reason, Reason::BadMic | Reason::NotUnicode), "byte {at}: {reason:?}");
    }
    let response_at =
        usize::try_from(u32::from_le_bytes(*token[24..].first_chunk().unwrap())).unwrap();
    for at in [response_at, response_at + 15, response_at + 24, response_at + 50] {
        let mut changed = token.clone();
        changed[at] ^= 1;
        assert_eq!(
            reason(replay(Settings::default(), &changed).1),
            Reason::WrongPassword,
            "byte {at}"
        );
    }
    for len in 0..token.len() {
        let step = replay(Settings::default(), &token[..len]).1;
        assert!(matches!(step, MechanismStep::Refused(_)), "{len} bytes");
    }
}

/// MS-SMB2 says nothing of it, Windows and Samba do: pairs that cannot be read are not a wrong password.
#[test]
fn a_response_that_cannot_be_read() {
    let mut token = authenticate();
    let at = usize::try_from(u32::from_le_bytes(*token[24..].first_chunk().unwrap())).unwrap();
    // The length of the first pair.
    token[at + 46] = 0xff;
    token[at + 47] = 0xff;
    match replay(Settings::default(), &token).1 {
        MechanismStep::Refused(refusal) => {
            assert_eq!(refusal.reason, Reason::Malformed("NTLMv2 response"));
            assert_eq!(refusal.status, crate::NtStatus::INVALID_PARAMETER);
            assert_eq!((refusal.user.as_str(), refusal.workstation.as_str()), ("daemon", "SHUNT"));
        }
        other => panic!("{other:?}"),
    }
}

/// What a storage appliance's diagnosis sends, and smb2.session.ntlmssp_bug14932 of Samba: pairs that are none, where
/// every server says STATUS_INVALID_PARAMETER.
#[test]
fn pairs_that_are_none() {
    let response = unhex(
        "abababababababababababababababab01010000000000003f3f3f3f3f3f3f3fb8823af1b3dd081500000000\
         11a20881503822782b9447fe54947bff17275ab4f418badc2c38fd5bfb0ec1851eccbb929bb1c4d55314ff8c\
         7649f5459019a2",
    );
    assert_eq!(response.len(), 95);
    let refused = Response::parse(&response).unwrap_err();
    assert_eq!(refused, Reason::Malformed("NTLMv2 response"));
    assert_eq!(refused.status(), crate::NtStatus::INVALID_PARAMETER);
}

#[test]
fn old_responses_are_refused() {
    let mut token = authenticate();
    token[20] = 24;
    token[21] = 0;
    assert_eq!(reason(replay(Settings::default(), &token).1), Reason::OldResponse);
}

/// `smbclient -N` says the name of its user and nothing else, and then comes without a name: it was counted, and held
/// against that user, as a guess by an old client.
#[test]
fn a_name_without_a_password_is_no_guess() {
    let mut token = authenticate();
    token[20..22].fill(0);
    let refused = reason(replay(Settings::default(), &token).1);
    assert_eq!((refused, refused.is_guess()), (Reason::NoPassword, false));
    let guests = Settings { guest: true, ..Settings::default() };
    let known = reason(replay(guests.clone(), &token).1);
    assert_eq!(known, Reason::NoPassword, "a user who is known is no guest");
    let name_at = usize::try_from(u32::from_le_bytes(*token[40..].first_chunk().unwrap())).unwrap();
    token[name_at] = b'x';
    let who = done(replay(guests, &token).1);
    assert!(who.guest && who.user == "xaemon", "{who:?}");
}

#[test]
fn a_clock_may_be_wrong_by_so_much() {
    use std::time::Duration;
    let with =
        |skew| Settings { clock_skew: Some(Duration::from_secs(skew)), ..Settings::default() };
    done(replay(with(3600 * 24), &authenticate()).1);
    let token = authenticate();
    assert_eq!(reason(replay(with(0), &token).1), Reason::ClockSkew);
}

/// One authentication, one verdict.
#[test]
fn nothing_comes_after_the_verdict() {
    let (mut ntlm, _) = replay(Settings::default(), &authenticate());
    let users = users();
    let input = Input { users: &users, now: FileTime(1), random: [0; 8] };
    assert_eq!(reason(ntlm.step(&authenticate(), &input)), Reason::OutOfTurn);
    assert_eq!(ntlm.make_mic(b"list"), None);
}

/// What the clients of Node.js send (the package ntlm2): names in a code page, neither a version nor a MIC.
mod without_unicode {
    use super::super::super::{flags, keys, message};
    use super::*;

    const NEGOTIATE_FLAGS: u32 =
        flags::OEM | flags::REQUEST_TARGET | flags::NTLM | flags::EXTENDED_SECURITY;

    fn step(ntlm: &mut Ntlm, token: &[u8]) -> MechanismStep {
        let users = users();
        ntlm.step(token, &Input { users: &users, now: FileTime(7), random: [5; 8] })
    }

    fn negotiate(flags: u32) -> Vec<u8> {
        let kind = 1u32.to_le_bytes();
        [&message::SIGNATURE[..], &kind, &flags.to_le_bytes(), &[0; 16]].concat()
    }

    fn authenticate(user: &[u8], response: &[u8], flags: u32) -> Vec<u8> {
        let parts = [&[][..], response, b"", user, b"pc", b""];
        let mut token = [&message::SIGNATURE[..], &3u32.to_le_bytes()].concat();
        let mut at = 64;
        for part in parts {
            let len = u16::try_from(part.len()).unwrap().to_le_bytes();
            token.extend([len, len].concat());
            token.extend(u32::try_from(at).unwrap().to_le_bytes());
            at += part.len();
        }
        token.extend(flags.to_le_bytes());
        parts.iter().for_each(|part| token.extend_from_slice(part));
        token
    }

    /// One who knows the password of `user`, which the wire has as `said`.
    fn logon(user: &str, said: &[u8]) -> MechanismStep {
        let settings = Settings { netbios_computer: "HÖST".to_owned(), ..Settings::default() };
        let mut ntlm = Ntlm::new(Arc::new(settings));
        let MechanismStep::Continue(challenge) = step(&mut ntlm, &negotiate(NEGOTIATE_FLAGS))
        else {
            panic!("no challenge");
        };
        let agreed = u32::from_le_bytes(*challenge[20..].first_chunk().unwrap());
        assert_eq!(agreed & (flags::UNICODE | flags::OEM), flags::OEM);
        assert_eq!(message::field(&challenge, 12), Some(&b"H?ST"[..]));
        let info = message::field(&challenge, 40).unwrap();
        let blob = [&[1, 1, 0, 0, 0, 0, 0, 0][..], &[0; 8], &[9; 8], &[0; 4], info].concat();
        let key = keys::response_key(&NtHash::of_password("Secret.1"), user, "");
        let proof = keys::proof(&key, challenge[24..].first_chunk().unwrap(), &blob);
        step(&mut ntlm, &authenticate(said, &[&proof[..], &blob].concat(), agreed))
    }

    #[test]
    fn a_client_comes_in() {
        let who = done(logon("daemon", b"daemon"));
        assert_eq!((who.user.as_str(), who.workstation.as_str()), ("Daemon", "pc"));
        assert_eq!(reason(logon("nobody", b"nobody")), Reason::UnknownUser);
        let odd = Reason::Malformed("name in NTLM AUTHENTICATE");
        assert_eq!(reason(logon("daemon", b"daemon\0")), odd);
        // Which letter that is depends on a code page.
        assert_eq!(reason(logon("d\u{e4}mon", b"d\x84mon")), Reason::NotUnicode);
    }

    #[test]
    fn unicode_goes_before_a_code_page() {
        let mut ntlm = Ntlm::new(Arc::default());
        let both = negotiate(NEGOTIATE_FLAGS | flags::UNICODE);
        let MechanismStep::Continue(challenge) = step(&mut ntlm, &both) else { panic!() };
        assert_eq!(challenge[20] & 3, 1);
        let neither = negotiate(NEGOTIATE_FLAGS & !flags::OEM);
        let refused = step(&mut Ntlm::new(Arc::default()), &neither);
        assert_eq!(reason(refused), Reason::NotUnicode);
    }

    /// smbj (0.14), without a name: what it agreed on first it does not say again.
    #[test]
    fn nobody_says_in_which_characters() {
        let settings = Settings { anonymous: true, ..Settings::default() };
        let mut ntlm = Ntlm::new(Arc::new(settings));
        step(&mut ntlm, &negotiate(NEGOTIATE_FLAGS | flags::UNICODE));
        let mut token = authenticate(b"", b"", flags::ANONYMOUS);
        let at = token.len() - 2;
        token[at..].copy_from_slice(&[b'p', 0]);
        let who = done(step(&mut ntlm, &token));
        assert!(who.anonymous);
        assert_eq!(who.workstation, "p");
    }
}

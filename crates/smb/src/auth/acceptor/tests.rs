use std::sync::Arc;

use super::{Acceptor, Step};
use crate::auth::ntlm::client::{Answer, Client};
use crate::auth::spnego::{
    KERBEROS, MS_KERBEROS, NTLMSSP, NegState, NegTokenInit, NegTokenResp, mechanism_list,
};
use crate::auth::{
    Authenticated, Input, Mechanism, MechanismStep, NtHash, Reason, Settings, User, UserFile, Users,
};
use crate::{FileTime, NtStatus};

const NOW: FileTime = FileTime(133_000_000_000_000_000);

fn file() -> UserFile {
    let alice = NtHash::of_password("Secret.1").to_hex();
    UserFile::parse(&format!(
        "Alice:1000:{0}::\nbob:1001:{0}:disabled:\ncarol:*:{0}:expires=2022-06-17:\n",
        *alice
    ))
    .unwrap()
}

fn client(user: &str, password: &str) -> Client {
    let (domain, workstation) = ("DOMAIN".to_owned(), "BOX".to_owned());
    let nt_hash = Some(NtHash::of_password(password));
    Client { user: user.to_owned(), domain, workstation, nt_hash, mic: true }
}

fn anonymous() -> Client {
    Client { user: String::new(), nt_hash: None, ..client("", "") }
}

fn settings() -> Settings {
    Settings {
        netbios_computer: "SHUNT".to_owned(),
        netbios_domain: "WORKGROUP".to_owned(),
        dns_computer: "shunt.example.com".to_owned(),
        dns_domain: "example.com".to_owned(),
        ..Settings::default()
    }
}

struct Server {
    acceptor: Acceptor,
    users: Box<dyn Users>,
}

impl Server {
    fn new(settings: Settings) -> Self {
        Self { acceptor: Acceptor::new(Arc::new(settings)), users: Box::new(file()) }
    }

    fn step(&mut self, token: &[u8]) -> Step {
        let input = Input { users: &*self.users, now: NOW, random: *b"8 random" };
        self.acceptor.step(token, &input)
    }

    fn goes_on(&mut self, token: &[u8]) -> Vec<u8> {
        match self.step(token) {
            Step::Continue(answer) => answer,
            other => panic!("{other:?}"),
        }
    }
}

fn done(step: Step) -> (Authenticated, Vec<u8>) {
    match step {
        Step::Done(who, token) => (*who, token),
        other => panic!("{other:?}"),
    }
}

fn reason(step: Step) -> Reason {
    match step {
        Step::Refused(refusal) => {
            assert_eq!(refusal.status, refusal.reason.status());
            refusal.reason
        }
        other => panic!("{other:?}"),
    }
}

fn answer(client: &Client, challenge: &[u8]) -> Answer {
    client.authenticate(challenge, ([1; 8], [2; 16]), NOW).unwrap()
}

fn respond(token: Option<&[u8]>, mic: Option<&[u8]>) -> Vec<u8> {
    NegTokenResp { token, mic, ..NegTokenResp::default() }.emit()
}

/// NTLM without SPNEGO, up to the verdict.
fn raw(client: &Client, settings: Settings) -> (Step, Answer) {
    let mut server = Server::new(settings);
    let challenge = server.goes_on(&Client::negotiate());
    let answer = answer(client, &challenge);
    (server.step(&answer.token), answer)
}

#[test]
fn ntlm_alone() {
    let (step, answer) = raw(&client("aLICE", "Secret.1"), settings());
    let (who, token) = done(step);
    assert_eq!(who.user, "Alice", "the name is that of the file");
    assert_eq!((who.domain.as_str(), who.uid), ("DOMAIN", Some(1000)));
    assert_eq!(who.session_key.as_bytes(), answer.session_key().as_bytes());
    assert_eq!(who.session_key.as_bytes(), [2; 16]);
    assert!(token.is_empty());
}

/// What is kept until the client goes on is short; what is not may be as long as a ticket is.
#[test]
fn what_is_kept_of_a_first_token_is_short() {
    let long = |len: usize| {
        let mut token = Client::negotiate();
        token.resize(len, 0);
        token
    };
    let first = |token: &[u8]| Server::new(settings()).step(token);
    let kept = |step| matches!(step, Step::Continue(_));
    assert!(kept(first(&long(2048))));
    assert_eq!(reason(first(&long(2049))), Reason::Malformed("NTLM NEGOTIATE"));
    let spnego = |token: &[u8]| first(&NegTokenInit::emit(&[NTLMSSP], Some(token)));
    assert!(kept(spnego(&long(2048))));
    assert_eq!(reason(spnego(&long(2049))), Reason::Malformed("NTLM NEGOTIATE"));
    // A list of 16 + len bytes, and a ticket of a mechanism that we do not have.
    let list =
        |len| first(&NegTokenInit::emit(&[&vec![1; len], NTLMSSP], Some(&vec![0; 60 << 10])));
    assert!(kept(list(1000)));
    assert_eq!(reason(list(1024)), Reason::Malformed("SPNEGO token"));
}

#[test]
fn ntlm_in_spnego() {
    let mut server = Server::new(settings());
    let answer_1 = server.goes_on(&NegTokenInit::emit(&[NTLMSSP], Some(&Client::negotiate())));
    let told = NegTokenResp::parse(&answer_1).unwrap();
    assert_eq!((told.state, told.mechanism), (Some(NegState::AcceptIncomplete), Some(NTLMSSP)));
    let answer = answer(&client("alice", "Secret.1"), told.token.unwrap());
    let list = mechanism_list(&[NTLMSSP]);
    let mic = answer.make_mic(&list).unwrap();
    let (who, token) = done(server.step(&respond(Some(&answer.token), Some(&mic))));
    assert_eq!(who.session_key.as_bytes(), answer.session_key().as_bytes());
    let told = NegTokenResp::parse(&token).unwrap();
    assert_eq!((told.state, told.mechanism), (Some(NegState::AcceptCompleted), None));
    assert!(answer.verify_mic(&list, told.mic.unwrap()));
    assert_eq!(reason(server.step(b"more")), Reason::OutOfTurn);
}

/// A client that would rather have Kerberos, and begins with a token of it, as Windows does.
fn downgraded() -> (Server, Answer, Vec<u8>) {
    let mut server = Server::new(settings());
    let answer_1 = server.goes_on(&NegTokenInit::emit(&[KERBEROS, NTLMSSP], Some(b"a ticket")));
    let told = NegTokenResp::parse(&answer_1).unwrap();
    assert_eq!(told.state, Some(NegState::RequestMic));
    assert_eq!((told.mechanism, told.token), (Some(NTLMSSP), None));
    let answer_2 = server.goes_on(&respond(Some(&Client::negotiate()), None));
    let told = NegTokenResp::parse(&answer_2).unwrap();
    assert_eq!((told.state, told.mechanism), (Some(NegState::AcceptIncomplete), None));
    let answer = answer(&client("alice", "Secret.1"), told.token.unwrap());
    (server, answer, mechanism_list(&[KERBEROS, NTLMSSP]))
}

#[test]
fn who_does_not_get_the_first_choice_signs_the_list() {
    let (mut server, answer, list) = downgraded();
    let mic = answer.make_mic(&list).unwrap();
    let (_, token) = done(server.step(&respond(Some(&answer.token), Some(&mic))));
    assert!(answer.verify_mic(&list, NegTokenResp::parse(&token).unwrap().mic.unwrap()));
    // Or in a message of its own (RFC 4178 section 5).
    let (mut server, answer, list) = downgraded();
    let told = server.goes_on(&respond(Some(&answer.token), None));
    assert!(answer.verify_mic(&list, NegTokenResp::parse(&told).unwrap().mic.unwrap()));
    done(server.step(&respond(None, Some(&mic))));
    // Not to sign at all is not enough.
    let (mut server, answer, _) = downgraded();
    server.goes_on(&respond(Some(&answer.token), None));
    assert_eq!(reason(server.step(&respond(None, None))), Reason::OutOfTurn);
}

#[test]
fn a_list_that_was_changed_is_found() {
    let (mut server, answer, _) = downgraded();
    let mic = answer.make_mic(&mechanism_list(&[NTLMSSP])).unwrap();
    match server.step(&respond(Some(&answer.token), Some(&mic))) {
        Step::Refused(refusal) => {
            assert_eq!((refusal.reason, refusal.user.as_str()), (Reason::BadMechListMic, "Alice"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_is_not_let_in() {
    let of = |user, password| match raw(&client(user, password), settings()).0 {
        Step::Refused(refusal) => {
            let told =
                (refusal.user.as_str(), refusal.domain.as_str(), refusal.workstation.as_str());
            assert_eq!(told, (user, "DOMAIN", "BOX"));
            (refusal.reason, refusal.status)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(of("alice", "secret.1"), (Reason::WrongPassword, NtStatus::LOGON_FAILURE));
    assert_eq!(of("nobody", "Secret.1"), (Reason::UnknownUser, NtStatus::LOGON_FAILURE));
    assert_eq!(of("nobody", ""), (Reason::UnknownUser, NtStatus::LOGON_FAILURE));
    assert_eq!(of("bob", "Secret.1"), (Reason::Disabled, NtStatus::ACCOUNT_DISABLED));
    // Who does not know the password is not told that the user is disabled.
    assert_eq!(of("bob", "secret"), (Reason::WrongPassword, NtStatus::LOGON_FAILURE));
    assert_eq!(of("carol", "Secret.1"), (Reason::Expired, NtStatus(0xc000_0193)));
}

#[test]
fn guests_and_anonymous() {
    let guests = Settings { guest: true, ..settings() };
    let (who, _) = done(raw(&client("nobody", "x"), guests.clone()).0);
    assert!(who.guest && !who.anonymous && who.uid.is_none());
    assert_eq!(who.user, "nobody");
    assert_eq!(reason(raw(&client("alice", "x"), guests.clone()).0), Reason::WrongPassword);
    // A guest's signature cannot be verified, nor is there one of ours.
    let mut server = Server::new(guests);
    let told = server.goes_on(&NegTokenInit::emit(&[NTLMSSP], Some(&Client::negotiate())));
    let nobody = answer(&client("nobody", "x"), NegTokenResp::parse(&told).unwrap().token.unwrap());
    let mic = nobody.make_mic(&mechanism_list(&[NTLMSSP])).unwrap();
    let (who, token) = done(server.step(&respond(Some(&nobody.token), Some(&mic))));
    assert!(who.guest && NegTokenResp::parse(&token).unwrap().mic.is_none());

    assert_eq!(reason(raw(&anonymous(), settings()).0), Reason::Anonymous);
    let (step, answer) = raw(&anonymous(), Settings { anonymous: true, ..settings() });
    let (who, _) = done(step);
    assert!(who.anonymous && !who.guest && who.user.is_empty());
    assert_eq!(who.session_key.as_bytes(), answer.session_key().as_bytes());
}

#[test]
fn who_is_locked_out_is_not_looked_at() {
    struct Locked(UserFile);
    impl Users for Locked {
        fn find(&self, name: &str, domain: &str) -> Option<User> {
            self.0.find(name, domain)
        }
        fn locked_out(&self, name: &str, _domain: &str) -> bool {
            name == "alice"
        }
    }
    let mut server = Server { users: Box::new(Locked(file())), ..Server::new(settings()) };
    let challenge = server.goes_on(&Client::negotiate());
    let answer = answer(&client("alice", "Secret.1"), &challenge);
    assert_eq!(reason(server.step(&answer.token)), Reason::LockedOut);
}

#[test]
fn tokens_that_do_not_fit() {
    let first = |token: &[u8]| reason(Server::new(settings()).step(token));
    assert_eq!(first(b""), Reason::Malformed("SPNEGO token"));
    assert_eq!(first(b"NTLMSSP\0\x03\0\0\0"), Reason::Malformed("NTLM NEGOTIATE"));
    assert_eq!(first(&[0x60; 70_000]), Reason::Malformed("token"));
    assert_eq!(first(&NegTokenInit::emit(&[KERBEROS], Some(b"a ticket"))), Reason::NoMechanism);
    // Neither Unicode nor a code page.
    let mut mute = Client::negotiate();
    mute[12] = 0;
    assert_eq!(first(&mute), Reason::NotUnicode);
    // An empty first token is asked for one, but not for ever.
    let mut server = Server::new(settings());
    server.goes_on(&NegTokenInit::emit(&[NTLMSSP], None));
    assert_eq!(reason(server.step(&respond(None, None))), Reason::OutOfTurn);
    // What has failed stays so.
    assert_eq!(reason(server.step(&Client::negotiate())), Reason::OutOfTurn);
}

/// A mechanism that asks somebody who may take long, and believes every token.
struct Slow;

impl Mechanism for Slow {
    fn oid(&self) -> &[u8] {
        KERBEROS
    }

    fn is(&self, oid: &[u8]) -> bool {
        oid == KERBEROS || oid == MS_KERBEROS
    }

    fn blocks(&self) -> bool {
        true
    }

    fn step(&mut self, token: &[u8], _: &Input<'_>) -> MechanismStep {
        match token {
            b"more" => MechanismStep::Continue(b"and?".to_vec()),
            _ => MechanismStep::Refused(Reason::Mechanism.into()),
        }
    }

    fn make_mic(&mut self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn verify_mic(&mut self, _: &[u8], _: &[u8]) -> Option<bool> {
        None
    }
}

/// Who knows Kerberos by the name of Windows 2000 is answered by that name.
#[test]
fn a_mechanism_is_called_what_the_client_calls_it() {
    for oid in [KERBEROS, MS_KERBEROS] {
        let mut server = Server::new(settings());
        assert!(!server.acceptor.may_block());
        server.acceptor = server.acceptor.with(Box::new(Slow));
        assert!(server.acceptor.may_block());
        let init = NegTokenInit::emit(&[oid, NTLMSSP], Some(b"more"));
        let answer = server.goes_on(&init);
        let told = NegTokenResp::parse(&answer).unwrap();
        assert_eq!((told.state, told.mechanism), (Some(NegState::AcceptIncomplete), Some(oid)));
        assert_eq!(told.token, Some(&b"and?"[..]));
        assert!(server.acceptor.may_block());
        assert_eq!(reason(server.step(&respond(Some(b"a lie"), None))), Reason::Mechanism);
        assert!(!server.acceptor.may_block());
    }
    // Who chooses NTLM has nothing to do with it any more.
    let mut server = Server::new(settings());
    server.acceptor = server.acceptor.with(Box::new(Slow));
    server.goes_on(&NegTokenInit::emit(&[NTLMSSP], Some(&Client::negotiate())));
    assert!(!server.acceptor.may_block());
}

/// Somebody without a password has none, and not an empty one.
#[test]
fn who_has_no_password_does_not_come_in_by_one() {
    let mut server = Server::new(settings());
    server.users = Box::new(UserFile::parse("alice:*:*::\n").unwrap());
    for password in ["", "Secret.1", "*"] {
        server.acceptor = Acceptor::new(Arc::new(settings()));
        let challenge = server.goes_on(&Client::negotiate());
        let answer = answer(&client("alice", password), &challenge);
        assert_eq!(reason(server.step(&answer.token)), Reason::WrongPassword);
    }
    // Nor by a hash of nothing but zeros.
    server.acceptor = Acceptor::new(Arc::new(settings()));
    let challenge = server.goes_on(&Client::negotiate());
    let zeros = Client { nt_hash: Some(NtHash::new([0; 16])), ..client("alice", "") };
    assert_eq!(reason(server.step(&answer(&zeros, &challenge).token)), Reason::WrongPassword);
}

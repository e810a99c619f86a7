//! The TCP option by which hosts tell each other that they speak SMC, on loopback: what is in the
//! handshake, and what each end hears.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

mod stage;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use engine::remote::option::{Answer, Choice, Name, Rule, answer, ask};

use stage::{Segment, Stage};

/// Of the sockets' two options.
const NAME: Name = Name::new(4711);

/// Asks or does not.
fn if_asked(asks: bool, socket: &impl std::os::fd::AsFd) {
    if asks {
        ask(socket, NAME).unwrap();
    }
}

/// One connection, its handshake and answers: the client's, the server's.
struct Meeting {
    segments: Vec<Segment>,
    client: Answer,
    server: Answer,
}

impl Meeting {
    fn has_option(&self) -> [bool; 2] {
        let carries = |segment: &Segment| segment.carries_option();
        [false, true].map(|ack| {
            self.segments.iter().filter(|s| s.syn && s.ack == ack).map(carries).next_back().unwrap()
        })
    }
}

/// Lets a client meet a server, each of which asks or does not, and says something both ways.
fn meet(stage: &Stage, client_asks: bool, server_asks: bool) -> Meeting {
    stage.inside(|| {
        let listener = stage.listener(|socket| if_asked(server_asks, socket));
        meet_at(stage, &listener, client_asks)
    })
}

fn meet_at(stage: &Stage, listener: &TcpListener, client_asks: bool) -> Meeting {
    let address = listener.local_addr().unwrap();
    let trace = stage.trace(address.port());
    let mut client = stage.client(address, |socket| if_asked(client_asks, socket));
    let (mut server, _) = listener.accept().unwrap();
    let answers = [answer(&client, NAME).unwrap(), answer(&server, NAME).unwrap()];
    exchange(&mut client, &mut server);
    let segments = trace.segments();
    for segment in &segments {
        assert!(
            segment.syn || !segment.carries_option(),
            "the option is not in a SYN: {segment:?}"
        );
    }
    assert!(segments.iter().any(|s| !s.syn), "nothing but SYNs: {segments:?}");
    Meeting { segments, client: answers[0], server: answers[1] }
}

fn exchange(client: &mut TcpStream, server: &mut TcpStream) {
    let mut came = [0; 5];
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut came).unwrap();
    server.write_all(&came).unwrap();
    client.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"hello");
}

#[test]
fn both_ends_know_whether_both_asked() {
    let Some(stage) = Stage::new() else { return };
    for (client, server, option, heard) in [
        (true, true, [true, true], [Answer::Spoken, Answer::Spoken]),
        (true, false, [true, false], [Answer::Silent, Answer::Unknown]),
        (false, true, [false, false], [Answer::Unknown, Answer::Silent]),
        (false, false, [false, false], [Answer::Unknown, Answer::Unknown]),
    ] {
        let meeting = meet(&stage, client, server);
        let case = format!("client asks: {client}, server asks: {server}");
        assert_eq!(meeting.has_option(), option, "{case}: {:?}", meeting.segments);
        assert_eq!([meeting.client, meeting.server], heard, "{case}");
    }
}

#[test]
fn the_option_is_the_one_that_linux_sends() {
    let Some(stage) = Stage::new() else { return };
    let meeting = meet(&stage, true, true);
    let syn = meeting.segments.iter().find(|s| s.syn).unwrap();
    let wanted = [254, 6, 0xe2, 0xd4, 0xc3, 0xd9];
    assert_eq!(syn.options.windows(6).filter(|w| *w == wanted).count(), 1, "{syn:?}");
    assert_eq!(syn.option(254).as_deref(), Some(&wanted[..]), "{syn:?}");
    for kernels_own in [2, 3, 8] {
        assert!(syn.option(kernels_own).is_some(), "option {kernels_own} is gone: {syn:?}");
    }
}

#[test]
fn an_answer_by_cookie_does_not_promise_what_the_server_forgets() {
    let Some(stage) = Stage::new() else { return };
    stage.sysctl("tcp_syncookies", "2");
    let meeting = meet(&stage, true, true);
    assert_eq!(meeting.has_option(), [true, false]);
    assert_eq!([meeting.client, meeting.server], [Answer::Silent, Answer::Silent]);
    stage.sysctl("tcp_syncookies", "1");
    assert_eq!(meet(&stage, true, true).client, Answer::Spoken);
}

#[test]
fn the_ends_agree_when_a_fast_open_stands_in_the_way() {
    let Some(stage) = Stage::new() else { return };
    stage.sysctl("tcp_fastopen", "3");
    stage.inside(|| {
        let listener = stage.listener(|socket| {
            ask(socket, NAME).unwrap();
            stage::set_fast_open(socket);
        });
        let address = listener.local_addr().unwrap();
        for round in 0..3 {
            let trace = stage.trace(address.port());
            let mut client =
                stage::fast_open(address, b"early", |socket| ask(socket, NAME).unwrap());
            let (mut server, _) = listener.accept().unwrap();
            let mut early = [0; 5];
            server.read_exact(&mut early).unwrap();
            let answers = [answer(&client, NAME).unwrap(), answer(&server, NAME).unwrap()];
            assert_eq!(&early, b"early", "round {round}");
            assert_eq!(answers, [Answer::Silent; 2], "round {round}");
            exchange(&mut client, &mut server);
            let segments = trace.segments();
            let syn = segments.iter().find(|s| s.syn && !s.ack).unwrap();
            assert!(syn.option(34).is_some(), "round {round} is no fast open: {syn:?}");
            assert!(segments.iter().all(|s| !s.carries_option()), "{segments:?}");
        }
    });
}

#[test]
fn a_port_may_have_a_rule_of_its_own() {
    let Some(stage) = Stage::new() else { return };
    let both = |choice| Rule { connect: choice, listen: choice };
    let meet_by = |rule: Option<Rule>, default: Rule, asks: bool| {
        stage.inside(|| {
            let port = stage.free_port();
            stage.option().set_default(default).unwrap();
            if let Some(rule) = rule {
                stage.option().set_rule(port, rule).unwrap();
            }
            let listener = stage.listener_at(port, |socket| if_asked(asks, socket));
            let meeting = meet_at(&stage, &listener, asks);
            stage.option().remove_rule(port).unwrap();
            meeting
        })
    };
    let asked = Rule::default();
    let heard = |meeting: Meeting| [meeting.client, meeting.server];
    let (always, never) = (both(Choice::Always), both(Choice::Never));
    assert_eq!(heard(meet_by(Some(always), asked, false)), [Answer::Spoken; 2]);
    assert_eq!(heard(meet_by(Some(never), asked, true)), [Answer::Unknown; 2]);
    assert_eq!(heard(meet_by(Some(asked), never, true)), [Answer::Spoken; 2]);
    assert_eq!(heard(meet_by(None, never, true)), [Answer::Unknown; 2]);
    assert_eq!(heard(meet_by(None, always, false)), [Answer::Spoken; 2]);
    let one_way = Rule { connect: Choice::Always, listen: Choice::Never };
    assert_eq!(heard(meet_by(Some(one_way), asked, false)), [Answer::Silent, Answer::Unknown]);
    let other_way = Rule { connect: Choice::Never, listen: Choice::Always };
    assert_eq!(heard(meet_by(Some(other_way), asked, false)), [Answer::Unknown, Answer::Silent]);
}

#[test]
fn asking_and_hearing_need_no_privilege() {
    let Some(stage) = Stage::new() else { return };
    let heard = stage.inside_as_nobody(|| {
        let listener = stage.listener(|socket| ask(socket, NAME).unwrap());
        let meeting = meet_at(&stage, &listener, true);
        assert_eq!(answer(&listener, NAME), Ok(Answer::Offered));
        [meeting.client, meeting.server]
    });
    assert_eq!(heard, [Answer::Spoken; 2]);
}

#[test]
fn who_asks_too_late_or_elsewhere_is_told() {
    let Some(stage) = Stage::new() else { return };
    stage.inside(|| {
        let listener = stage.listener(|_| ());
        assert_eq!(ask(&listener, NAME), Err(libc::EPERM), "listens already");
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(matches!(ask(&datagrams, NAME), Err(libc::ENOPROTOOPT | libc::EOPNOTSUPP)));
    });
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(matches!(ask(&outside, NAME), Err(libc::ENOPROTOOPT | libc::EOPNOTSUPP)));
    assert_eq!(answer(&outside, NAME), Ok(Answer::Unknown));
}

#[test]
fn options_of_others_are_as_long_as_they_are() {
    let Some(stage) = Stage::new() else { return };
    stage.inside(|| {
        let socket = stage.listener(|_| ());
        stage::check_long_options(&socket);
    });
}

#[test]
fn connections_outlive_the_option() {
    let Some(mut stage) = Stage::new() else { return };
    let (mut client, mut server, listener) = stage.inside(|| {
        let listener = stage.listener(|socket| ask(socket, NAME).unwrap());
        let client = stage.client(listener.local_addr().unwrap(), |s| ask(s, NAME).unwrap());
        let (server, _) = listener.accept().unwrap();
        (client, server, listener)
    });
    assert_eq!(answer(&client, NAME), Ok(Answer::Spoken));
    stage.detach();
    exchange(&mut client, &mut server);
    // Another test may fork at this moment: then its child has the programs too, until it execs.
    e2e::run::eventually("nobody is there to answer", || {
        answer(&client, NAME) == Ok(Answer::Unknown)
    });
    // The listener still asks the kernel to call programs that are gone.
    let later = stage.inside(|| meet_at(&stage, &listener, false));
    assert_eq!([later.client, later.server], [Answer::Unknown; 2]);
}

/// The kernel calls the programs of the next engine for it, and they promise the peer what it asks for.
#[test]
fn a_listener_that_asked_an_engine_that_is_gone_hears_what_the_next_one_answers() {
    let Some(mut stage) = Stage::new() else { return };
    let listener = stage.inside(|| stage.listener(|socket| ask(socket, NAME).unwrap()));
    stage.detach();
    let _next = stage.attach_again().unwrap();
    for (asks, heard) in
        [(true, [Answer::Spoken, Answer::Spoken]), (false, [Answer::Unknown, Answer::Silent])]
    {
        let meeting = stage.inside(|| meet_at(&stage, &listener, asks));
        assert_eq!(meeting.has_option(), [asks; 2], "{:?}", meeting.segments);
        assert_eq!([meeting.client, meeting.server], heard);
    }
}

#[test]
fn without_privilege_the_reason_is_told() {
    let Some(stage) = Stage::new() else { return };
    let why = stage.inside_as_nobody(|| stage.attach_again().unwrap_err().to_string());
    assert!(why.contains("CAP_NET_ADMIN"), "{why}");
}

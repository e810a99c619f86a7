use super::*;

const NOW: u64 = 1_000_000_000;
const LINK: LinkId = LinkId(7);

fn ip(host: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, host])
}

/// The connection from the second host to the first, at port 80.
fn ends(port: u16) -> Ends {
    Ends { client: SocketAddr::new(ip(2), port), server: SocketAddr::new(ip(1), 80) }
}

fn seat(exchange: u64) -> Seat {
    Seat::new(3, exchange)
}

/// The server's, which knows the client's.
fn server() -> Register {
    let mut register = Register::default();
    assert_eq!(register.met(LINK, (ip(1), ip(2))), [Deed::Mark(ip(2), true)]);
    register
}

/// The client's, which knows the server's.
fn client() -> Register {
    let mut register = Register::default();
    register.met(LINK, (ip(2), ip(1)));
    register
}

fn question(number: u64) -> Question {
    Question { link: LINK, number }
}

fn ask(register: &mut Register, port: u16, number: u64, now: u64) -> Vec<Deed> {
    register.heard(LINK, Word::Ask { client: port, server: 80, number }, now, |_| true)
}

fn no(number: u64, why: Why) -> Deed {
    Deed::Say(LINK, Word::No { number, why })
}

#[test]
fn a_seat_says_its_vector_and_its_handshake() {
    let seat = Seat::new(63, (1 << 56) - 1);
    assert_eq!((seat.vector(), seat.exchange()), (63, (1 << 56) - 1));
}

#[test]
fn whichever_comes_first_the_vector_is_asked_before_yes_is_said() {
    for accepted_first in [true, false] {
        let mut register = server();
        let mut deeds = Vec::new();
        if accepted_first {
            deeds.extend(register.come(seat(5), Role::Server, ends(4000), NOW));
            assert_eq!(deeds, []);
        }
        deeds.extend(ask(&mut register, 4000, 9, NOW));
        if !accepted_first {
            assert_eq!(deeds, []);
            deeds.extend(register.come(seat(5), Role::Server, ends(4000), NOW));
        }
        assert_eq!(deeds, [Deed::Promise(seat(5), question(9))]);
    }
    let yes = Deed::Say(LINK, Word::Yes { number: 9 });
    assert_eq!(server().replied(seat(5), question(9), true), yes);
    assert_eq!(server().replied(seat(5), question(9), false), no(9, Why::NotThisOne));
}

#[test]
fn a_client_begins_when_it_is_told_to_and_once() {
    let mut register = client();
    let deeds = register.come(seat(5), Role::Client, ends(4000), NOW);
    let [Deed::Say(LINK, Word::Ask { client: 4000, server: 80, number })] = deeds[..] else {
        panic!("{deeds:?}");
    };
    // Another link's engine, or another number, has nothing to say.
    register.met(LinkId(8), (ip(2), ip(3)));
    assert_eq!(register.heard(LinkId(8), Word::Yes { number }, NOW, |_| true), []);
    assert_eq!(register.heard(LINK, Word::Yes { number: number + 1 }, NOW, |_| true), []);
    let told = register.heard(LINK, Word::Yes { number }, NOW, |_| true);
    assert_eq!(told, [Deed::Answer(seat(5), Ok(()))]);
    assert_eq!(register.heard(LINK, Word::Yes { number }, NOW, |_| true), []);
    // It has begun: nothing is taken back.
    assert_eq!(register.client_left(seat(5), true), []);
}

#[test]
fn a_promise_that_is_not_made_use_of_is_taken_back_once() {
    let mut register = client();
    register.come(seat(5), Role::Client, ends(4000), NOW);
    let yes = Word::Yes { number: seat(5).0 };
    assert_eq!(register.heard(LINK, yes, NOW, |_| true), [Deed::Answer(seat(5), Ok(()))]);
    let never = Deed::Say(LINK, Word::Never { client: 4000, server: 80 });
    assert_eq!(register.client_left(seat(5), false), [never]);
    assert_eq!(register.client_left(seat(5), false), []);
    // Whoever was told no waits for nothing.
    register.come(seat(6), Role::Client, ends(4001), NOW);
    let no = Word::No { number: seat(6).0, why: Why::NotThisOne };
    let told = register.heard(LINK, no, NOW, |_| true);
    assert_eq!(told, [Deed::Answer(seat(6), Err(Why::NotThisOne))]);
    assert_eq!(register.client_left(seat(6), false), []);
    assert!(register.asking.is_empty());
}

#[test]
fn a_client_that_waits_no_more_says_so_and_the_server_is_told() {
    let mut register = client();
    register.come(seat(5), Role::Client, ends(4000), NOW);
    let never = Word::Never { client: 4000, server: 80 };
    let said = register.client_left(seat(5), false);
    assert_eq!(said, [Deed::Say(LINK, never)]);

    let mut register = server();
    register.come(seat(6), Role::Server, ends(4000), NOW);
    ask(&mut register, 4000, 9, NOW);
    assert_eq!(register.heard(LINK, never, NOW, |_| true), [Deed::Withdrawn(seat(6))]);
    // Before a guest has accepted, the one who accepts later is not asked.
    let mut register = server();
    ask(&mut register, 4000, 9, NOW);
    register.heard(LINK, never, NOW, |_| true);
    assert_eq!(register.come(seat(6), Role::Server, ends(4000), NOW), []);
}

#[test]
fn what_has_begun_as_tcp_stays_so() {
    let mut register = server();
    register.come(seat(5), Role::Server, ends(4000), NOW);
    register.server_left(seat(5), ends(4000), NOW);
    assert_eq!(ask(&mut register, 4000, 9, NOW), [no(9, Why::NotThisOne)]);
    // Another connection of these ports, later, is another one.
    assert_eq!(ask(&mut register, 4000, 9, NOW + KEPT_NS), []);
    // A second question about one is not answered by a second promise.
    let mut register = server();
    register.come(seat(5), Role::Server, ends(4000), NOW);
    ask(&mut register, 4000, 9, NOW);
    assert_eq!(ask(&mut register, 4000, 10, NOW), [no(10, Why::NotThisOne)]);
}

#[test]
fn where_no_guest_listens_the_answer_is_no() {
    let mut register = server();
    let word = Word::Ask { client: 4000, server: 22, number: 9 };
    let said = register.heard(LINK, word, NOW, |port| port == 80);
    assert_eq!(said, [no(9, Why::NoListener)]);
}

#[test]
fn a_host_whose_programs_are_without_shunt_is_left_alone_until_it_asks() {
    let mut register = server();
    let mut marks = Vec::new();
    for port in 0..u16::try_from(IDLERS).unwrap() {
        register.come(seat(port.into()), Role::Server, ends(port), NOW);
        marks.extend(register.server_left(seat(port.into()), ends(port), NOW));
    }
    assert_eq!(marks, [Deed::Mark(ip(2), false)]);
    // Of this one a guest may be sure already that it is TCP, and it is not waited for in vain.
    let not_this = no(9, Why::NotThisOne);
    assert_eq!(ask(&mut register, 4000, 9, NOW), [Deed::Mark(ip(2), true), not_this]);
    assert_eq!(register.come(seat(20), Role::Server, ends(4000), NOW), []);
    assert_eq!(ask(&mut register, 4001, 9, NOW), []);
}

#[test]
fn with_its_link_goes_what_was_asked_by_it() {
    let mut register = client();
    assert_eq!(register.met(LinkId(8), (ip(2), ip(1))), [Deed::Mark(ip(1), true)]);
    register.come(seat(5), Role::Client, ends(4000), NOW);
    // The other end of this one waits for it, and it may begin.
    register.come(seat(4), Role::Client, ends(4002), NOW);
    register.heard(LINK, Word::Yes { number: seat(4).0 }, NOW, |_| true);
    let lost = register.lost(LINK);
    assert_eq!(lost, [Deed::Answer(seat(5), Err(Why::NotThisOne))]);
    // There is another.
    assert_eq!(register.addresses().collect::<Vec<_>>(), [(ip(2), ip(1))]);
    assert_eq!(register.lost(LinkId(8)), [Deed::Mark(ip(1), false)]);
    let deeds = register.come(seat(6), Role::Client, ends(4001), NOW);
    assert_eq!(deeds, [Deed::Answer(seat(6), Err(Why::NotThisOne))]);
}

#[test]
fn nothing_is_promised_to_whom_it_cannot_be_said() {
    let mut register = server();
    ask(&mut register, 4000, 9, NOW);
    register.lost(LINK);
    // Nor by another link, which knows nothing of the question.
    register.met(LinkId(8), (ip(1), ip(2)));
    assert_eq!(register.come(seat(5), Role::Server, ends(4000), NOW), []);
    // The vector was being asked meanwhile.
    let mut register = server();
    register.come(seat(5), Role::Server, ends(4000), NOW);
    assert_eq!(ask(&mut register, 4000, 9, NOW), [Deed::Promise(seat(5), question(9))]);
    register.lost(LINK);
    assert_eq!(register.replied(seat(5), question(9), true), Deed::Withdrawn(seat(5)));
}

#[test]
fn questions_are_bounded_and_forgotten() {
    let mut register = server();
    let other = LinkId(8);
    register.met(other, (ip(1), ip(3)));
    let kept = |register: &mut Register, link, now| {
        let word = |client| Word::Ask { client, server: 80, number: 1 };
        let said = |client| register.heard(link, word(client), now, |_| true);
        (0..4096).map(said).filter(Vec::is_empty).count()
    };
    assert_eq!(kept(&mut register, LINK, NOW), ASKED_MAX);
    // One who asks much takes nobody else's room.
    assert_eq!(kept(&mut register, other, NOW), ASKED_MAX);
    assert_eq!(register.known.len(), 2 * ASKED_MAX);
    // A question that a guest's connection answers, or that is taken back, makes room for one.
    register.come(seat(5), Role::Server, ends(0), NOW);
    register.heard(LINK, Word::Never { client: 1, server: 80 }, NOW, |_| true);
    let asked: Vec<_> = (5000..5003).map(|port| ask(&mut register, port, 1, NOW)).collect();
    assert_eq!(asked, [vec![], vec![], vec![no(1, Why::NotThisOne)]]);
    // And all that are old, together.
    assert_eq!(kept(&mut register, LINK, NOW + KEPT_NS), ASKED_MAX);
    assert_eq!(register.known.len(), ASKED_MAX + 1);
    register.lost(LINK);
    assert_eq!(register.known.len(), 1);
}

#[test]
fn what_is_kept_is_looked_through_now_and_then() {
    let mut register = server();
    for port in 0..u16::try_from(ASKED_MAX).unwrap() {
        // The first ones are old before the others.
        let now = NOW + u64::from(port);
        assert_eq!(ask(&mut register, port, 1, now), []);
    }
    let first_old = NOW + KEPT_NS;
    assert_eq!(ask(&mut register, 5000, 1, first_old), []);
    // The second one is old by now, which is not looked for yet.
    assert_eq!(ask(&mut register, 5001, 1, first_old + 1), [no(1, Why::NotThisOne)]);
    assert_eq!(ask(&mut register, 5001, 1, first_old + PURGE_NS), []);
    assert_eq!(register.known.len(), 2);
}

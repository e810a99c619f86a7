use std::net::Ipv4Addr;

use super::*;

const SECOND: u64 = 1_000_000_000;
/// What a connection with one request and one answer adds.
const ONE: i32 = 1 - SETUP;

fn to(host: u32, port: u16) -> SocketAddrV6 {
    SocketAddrV6::new(Ipv4Addr::from(0x0a00_0000 + host).to_ipv6_mapped(), port, 0, 0)
}

/// A connection with so many requests of 100 bytes, each answered with 1000: what it adds, in parts.
fn conversation(turns: u32, by: Way) -> Vec<i32> {
    let mut tally = Tally::default();
    let mut gains = Vec::new();
    for _ in 0..turns {
        tally.moved(100, 0);
        tally.moved(0, 600);
        tally.moved(0, 400);
        gains.extend(tally.due(by));
    }
    gains.push(tally.end(by));
    gains
}

/// Short connections until they stay on TCP: how many that took.
fn shorten(habits: &mut Habits, to: SocketAddrV6, now: u64) -> usize {
    (1..=1000).find(|_| habits.learns(to, ONE, now).is_some_and(|c| c.word != 0)).unwrap()
}

fn is_spared(habits: &Habits, to: SocketAddrV6) -> bool {
    habits.spared().any(|spared| spared == to)
}

#[test]
fn a_tally_counts_round_trips_and_bytes() {
    for by in [Way::Card, Way::Datagrams] {
        assert_eq!(conversation(1, by), [ONE]);
        assert_eq!(conversation(16, by), [0]);
    }
    // What was told meanwhile and at the end is all that there was.
    let ways = [Way::Card, Way::Datagrams].into_iter();
    for (turns, by) in ways.flat_map(|by| [17, 31, 32, 33, 100, 5000].map(|turns| (turns, by))) {
        let gains = conversation(turns, by);
        let bytes = i32::try_from(u64::from(turns) * 1100 / WORTH_BYTES).unwrap();
        let turns = i32::try_from(turns).unwrap();
        assert_eq!(gains.iter().sum::<i32>(), turns + bytes - SETUP, "{gains:?}");
        assert!(gains.len() < 12, "told rarely: {gains:?}");
    }
    let mut bulk = Tally::default();
    bulk.moved(100, 0);
    bulk.moved(0, 64 << 20);
    assert_eq!(bulk.due(Way::Card), Some(1 + 1024 - SETUP));
    assert_eq!(bulk.end(Way::Card), 0);
}

/// What a connection adds in parts that sends or receives so many MiB, after so many requests and short answers.
fn transfer(turns: u32, mib: u64, sends: bool) -> Vec<i32> {
    let mut tally = Tally::default();
    let mut gains = Vec::new();
    for at in 0..u64::from(turns) + 4 * mib {
        if at < turns.into() {
            tally.moved(100, 0);
            tally.moved(0, 100);
        } else {
            tally.moved(if sends { 256 << 10 } else { 0 }, if sends { 0 } else { 256 << 10 });
        }
        gains.extend(tally.due(Way::Datagrams));
    }
    gains.push(tally.end(Way::Datagrams));
    gains
}

#[test]
fn a_stream_takes_from_the_score_and_long_answers_do_not() {
    for sends in [true, false] {
        // However many there are of it, and whatever it was taken for before.
        for (turns, mib) in [(1, 16), (1, 4000), (60, 64)] {
            assert_eq!(transfer(turns, mib, sends).iter().sum::<i32>(), -STREAM, "{turns} {mib}");
        }
        // What is moved beside few round trips makes up for its set-up, and for no other.
        let some: i32 = transfer(1, 15, sends).iter().sum();
        assert!((0..=SETUP).contains(&some), "{some}");
        assert!(transfer(1000, 64, sends).iter().sum::<i32>() > 1000);
    }
}

#[test]
fn streams_are_left_to_tcp_for_long_and_conversations_bring_smc_back() {
    let (mut habits, to) = (Habits::default(), to(1, 80));
    let place = Place::of(to);
    let stream = |habits: &mut Habits, now| {
        let gains = transfer(1, 64, true).into_iter();
        gains.filter_map(|gain| habits.learns(to, gain, now)).last()
    };
    let mut now = SECOND;
    let change = stream(&mut habits, now).unwrap();
    assert_eq!(change.word, place.word(now + 60 * SECOND));
    for wait in [60, 60, 120, 240, 480] {
        now += wait * SECOND;
        let next = if wait == 60 && now == 61 * SECOND { 60 } else { 2 * wait };
        assert_eq!(habits.begins(to, now).unwrap().word, place.word(now + next * SECOND));
        assert_eq!(stream(&mut habits, now), None, "one more changes nothing");
    }
    for _ in 0..20 {
        now += 2 * 86_400 * SECOND;
        assert!(habits.begins(to, now).is_some(), "at least once a day");
        stream(&mut habits, now);
    }
    now += 86_400 * SECOND;
    habits.begins(to, now).unwrap();
    let back = conversation(1000, Way::Datagrams).into_iter();
    assert!(back.filter_map(|gain| habits.learns(to, gain, now)).any(|change| change.word == 0));
    assert!(!is_spared(&habits, to));
    // Where most are conversations, a stream now and then takes nothing away.
    for _ in 0..10 {
        assert_eq!(stream(&mut habits, now), None);
        for gain in conversation(1000, Way::Datagrams) {
            assert_eq!(habits.learns(to, gain, now), None);
        }
    }
}

#[test]
fn who_speaks_first_does_not_matter_and_silence_is_worth_nothing() {
    let mut greeted = Tally::default();
    greeted.moved(0, 10);
    greeted.moved(10, 0);
    greeted.moved(0, 10);
    assert_eq!(greeted.end(Way::Datagrams), 2 - SETUP);
    assert_eq!(Tally::default().end(Way::Datagrams), NOTHING);
    let mut huge = Tally::default();
    huge.moved(u64::MAX, u64::MAX);
    assert_eq!(huge.due(Way::Card), Some(i32::MAX - SETUP));
}

#[test]
fn short_connections_are_left_to_tcp_and_others_are_not() {
    let mut habits = Habits::default();
    assert_eq!(shorten(&mut habits, to(1, 80), SECOND), 9);
    assert!(is_spared(&habits, to(1, 80)));
    assert!(!is_spared(&habits, to(1, 81)) && !is_spared(&habits, to(2, 80)));
    let mut long = Habits::default();
    for _ in 0..1000 {
        for gain in conversation(40, Way::Datagrams) {
            assert_eq!(long.learns(to(1, 80), gain, SECOND), None);
        }
    }
}

#[test]
fn a_few_short_ones_among_long_ones_change_nothing() {
    let mut habits = Habits::default();
    for round in 0..1000 {
        let now = round * SECOND;
        for _ in 0..8 {
            assert_eq!(habits.learns(to(1, 80), ONE, now), None);
        }
        for gain in conversation(200, Way::Datagrams) {
            assert_eq!(habits.learns(to(1, 80), gain, now), None);
        }
    }
}

#[test]
fn trials_become_rare_while_they_do_not_pay() {
    let (mut habits, to) = (Habits::default(), to(1, 80));
    shorten(&mut habits, to, 0);
    let place = Place::of(to);
    let mut now = 0;
    for wait in [1, 1, 2, 4, 8, 16, 32, 64, 64, 64] {
        // Until then none comes that is a trial; one that began before changes nothing.
        assert_eq!(habits.begins(to, now + wait * SECOND - 1), None, "{wait}");
        now += wait * SECOND;
        let change = habits.begins(to, now).unwrap();
        let next = if wait == 1 && now == SECOND { SECOND } else { (2 * wait).min(64) * SECOND };
        assert_eq!(change.word, place.word(now + next), "after {wait}");
        // Others that came meanwhile were before guests could know.
        assert_eq!(habits.begins(to, now + 1), None);
        assert_eq!(habits.learns(to, ONE, now + 2), None);
    }
}

#[test]
fn a_long_trial_brings_smc_back() {
    let (mut habits, to) = (Habits::default(), to(1, 80));
    shorten(&mut habits, to, 0);
    for _ in 0..500 {
        habits.learns(to, ONE, 1);
    }
    let now = 100 * SECOND;
    habits.begins(to, now).unwrap();
    let mut gains = conversation(1000, Way::Datagrams).into_iter();
    let back = gains.find_map(|gain| habits.learns(to, gain, now)?.word.eq(&0).then_some(()));
    assert_eq!(back, Some(()));
    assert!(!is_spared(&habits, to));
    // And is not lost by the next short one.
    assert_eq!(habits.learns(to, ONE, now), None);
}

#[test]
fn a_trial_that_pays_a_little_is_followed_by_another_at_once() {
    let (mut habits, to) = (Habits::default(), to(1, 80));
    shorten(&mut habits, to, 0);
    let mut now = SECOND;
    habits.begins(to, now).unwrap();
    now += SECOND / 10;
    for trial in 0..100 {
        let change = habits.learns(to, 10, now).unwrap();
        if change.word == 0 {
            return assert!((5..30).contains(&trial), "{trial}");
        }
        assert_eq!(change.word, Place::of(to).word(now));
        habits.begins(to, now).unwrap();
    }
    panic!("SMC never came back");
}

#[test]
fn memory_is_bounded_and_what_was_published_is_taken_back() {
    let mut habits = Habits::default();
    let mut board = std::collections::HashMap::new();
    let mut note = |change: Change| board.insert((change.line, change.way), change.word);
    for host in 0..20_000 {
        for _ in 0..9 {
            habits.learns(to(host, 80), ONE, u64::from(host)).map(&mut note);
        }
    }
    let spared: Vec<_> = habits.spared().collect();
    assert!(spared.len() <= DESTINATION_LINES * DESTINATION_WAYS);
    // Those of late are still there, and each word is that of one that is known.
    assert!(is_spared(&habits, to(19_999, 80)));
    for (at, word) in &board {
        let known = habits.lines[at.0][at.1].unwrap();
        let until = known.until.map_or(0, |until| Place::of(known.to).word(until));
        assert_eq!(*word, until);
    }
    for change in habits.forget() {
        board.insert((change.line, change.way), change.word);
    }
    assert!(board.values().all(|word| *word == 0));
    assert_eq!(habits.spared().count(), 0);
}

#[test]
fn a_host_that_was_met_is_noted_beside_destinations() {
    let mut habits = Habits::default();
    let host = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
    let on = habits.mark(host, true).unwrap();
    assert_ne!(on.word, 0);
    assert_eq!(habits.spared().count(), 0);
    // Neither more destinations than there is room for, nor a change of settings takes it away.
    for i in 0..100_000 {
        habits.learns(to(i, 80), ONE, SECOND);
    }
    assert!(!habits.forget().iter().any(|c| (c.line, c.way) == (on.line, on.way)));
    assert_eq!(habits.mark(host, false), Some(Change { word: 0, ..on }));
    assert_eq!(habits.mark(host, false), None);
}

#[test]
fn a_destination_without_smc_is_spared_until_its_time_and_a_good_trial_brings_it_back() {
    let mut habits = Habits::default();
    let change = habits.spare(to(1, 80), SECOND, SECOND).unwrap();
    assert_ne!(change.word, 0);
    assert!(is_spared(&habits, to(1, 80)));
    // A trial, after that time.
    assert!(habits.begins(to(1, 80), 3 * SECOND).is_some());
    let change = habits.learns(to(1, 80), 40, 4 * SECOND).unwrap();
    assert_eq!(change.word, 0);
    assert!(!is_spared(&habits, to(1, 80)));
}

#[test]
fn who_was_nobody_and_is_somebody_is_spared_no_more() {
    let mut habits = Habits::default();
    habits.spare(to(1, 80), SECOND, SECOND);
    habits.learns(to(2, 80), NOBODY, SECOND);
    for n in [1, 2] {
        assert!(is_spared(&habits, to(n, 80)));
        assert!(habits.begins(to(n, 80), 9 * SECOND).is_some());
        assert_eq!(habits.learns(to(n, 80), SOMEBODY, 9 * SECOND).unwrap().word, 0);
        assert!(!is_spared(&habits, to(n, 80)));
    }
    // One whose connections are too short stays what it is, and one that nothing is known of as well.
    while !is_spared(&habits, to(3, 80)) {
        habits.learns(to(3, 80), ONE, SECOND);
    }
    assert_eq!(habits.learns(to(3, 80), SOMEBODY, SECOND), None);
    assert!(is_spared(&habits, to(3, 80)));
    assert_eq!(habits.learns(to(4, 80), SOMEBODY, SECOND), None);
}

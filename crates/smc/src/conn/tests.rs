use std::collections::{HashSet, VecDeque};

use super::*;
use crate::cdc::{Cdc, ProducerFlags, StateFlags};
use crate::cursor::{BadCursor, Cursor};

fn conn() -> Conn {
    Conn::new(&Setup { peer_token: Token(5), autocork: 65_536, ..Setup::default() })
}

fn sent(conn: &mut Conn) -> Cdc {
    Cdc::parse(&conn.plan(Push::Now).expect("something to say").cdc).unwrap()
}

fn producer(sequence: u16, wrap: u16, count: u32) -> Cdc {
    Cdc { sequence, producer: Cursor { wrap, count }, ..Cdc::default() }
}

/// What a connection that has written 100 bytes makes of a message; it must be as before if that is wrong.
#[track_caller]
fn refuses(cdc: &Cdc, want: Violation) {
    let mut conn = conn();
    conn.wrote(100);
    let _ = conn.plan(Push::Now);
    conn.on_cdc(&producer(1, 0, 500)).unwrap();
    let before = format!("{conn:?}");
    assert_eq!(conn.on_cdc(cdc), Err(want));
    assert_eq!(format!("{conn:?}"), before);
}

#[test]
fn no_cursor_is_believed_that_cannot_be() {
    let outside = BadCursor::Outside { count: 16_384, size: 16_384 };
    refuses(&producer(2, 0, 16_384), Violation::Producer(outside));
    refuses(&producer(2, 7, 0), Violation::Producer(BadCursor::Far { wrap: 7, count: 0 }));
    refuses(&producer(2, 0, 499), Violation::ProducerBack);
    refuses(&producer(2, 1, 1), Violation::Overrun);
    let consumer = |count| Cdc { consumer: Cursor { wrap: 0, count }, ..producer(2, 0, 500) };
    refuses(&consumer(101), Violation::ReadUnwritten);
    refuses(
        &consumer(u32::MAX),
        Violation::Consumer(BadCursor::Outside { count: u32::MAX, size: 16_384 }),
    );
    let moved = ProducerFlags::FAILOVER_VALIDATION;
    let lost = Cdc { producer_flags: moved, ..producer(2, 0, 0) };
    refuses(&lost, Violation::LostWithLink);
}

#[test]
fn the_consumer_cursor_never_goes_back() {
    let mut conn = conn();
    conn.wrote(100);
    let _ = conn.plan(Push::Now);
    let read =
        |sequence, count| Cdc { sequence, consumer: Cursor { wrap: 0, count }, ..Cdc::default() };
    assert_eq!(conn.on_cdc(&read(1, 60)).map(|heard| heard.read_by_peer), Ok(60));
    assert_eq!(conn.on_cdc(&read(2, 59)), Err(Violation::ConsumerBack));
    assert_eq!(conn.on_cdc(&read(2, 100)).map(|heard| heard.read_by_peer), Ok(40));
}

#[test]
fn what_is_older_is_not_looked_at() {
    let mut conn = conn();
    conn.on_cdc(&producer(5, 0, 10)).unwrap();
    assert_eq!(conn.on_cdc(&producer(4, 9, 9_999_999)), Ok(Heard::default()));
    // Half of the circle is ahead.
    assert_eq!(conn.on_cdc(&producer(5 + 0x7fff, 0, 20)).map(|heard| heard.arrived), Ok(10));
}

#[test]
fn sequence_and_cursors_come_round() {
    let (mut a, mut b) = (conn(), conn());
    for round in 0..200_000_u32 {
        a.wrote(16_384);
        let plan = a.plan(Push::Now).expect("room");
        let heard = b.on_cdc(&Cdc::parse(&plan.cdc).unwrap()).unwrap();
        assert_eq!(heard.arrived, 16_384, "{round}");
        a.completed(plan.ticket);
        b.consumed(16_384);
        a.on_cdc(&sent(&mut b)).unwrap();
    }
}

#[test]
fn writes_are_cut_where_either_ring_ends() {
    let mut conn = Conn::new(&Setup {
        send_ring: SizeClass::new(1),
        remote: Remote { rkey: RKey(9), vaddr: 0x1_0000 },
        ..Setup::default()
    });
    // Both sides are at 10,000; then 12,000 go around the end of a ring of 16,384.
    conn.wrote(10_000);
    let first = conn.plan(Push::Now).unwrap();
    conn.completed(first.ticket);
    let read = Cdc { sequence: 1, consumer: Cursor { wrap: 0, count: 10_000 }, ..Cdc::default() };
    conn.on_cdc(&read).unwrap();
    conn.wrote(12_000);
    let plan = conn.plan(Push::Now).unwrap();
    let places: Vec<_> =
        plan.writes().iter().map(|w| (w.vaddr, w.len(), w.pieces().len())).collect();
    assert_eq!(places, [(0x1_0000 + 10_000, 6384, 1), (0x1_0000, 5616, 1)]);
    assert_eq!(plan.writes()[1].pieces(), [Piece { offset: 16_384, len: 5616 }]);
    assert_eq!(plan.writes()[0].rkey, RKey(9));
}

#[test]
fn small_sends_wait_for_company_while_one_is_under_way() {
    let mut conn = conn();
    conn.wrote(10);
    let first = conn.plan(Push::Auto).expect("nothing is under way");
    conn.wrote(10);
    assert!(conn.plan(Push::Auto).is_none());
    conn.wrote(8183);
    assert!(conn.clone().plan(Push::Auto).is_some(), "more than half the ring");
    conn.completed(first.ticket);
    assert!(conn.clone().plan(Push::Corked).is_none());
    let mut shut = conn.clone();
    shut.shutdown_write();
    let last = shut.plan(Push::Corked).expect("nothing more will come");
    assert!(Cdc::parse(&last.cdc).unwrap().state_flags.has(StateFlags::SENDING_DONE));
    assert!(conn.plan(Push::Auto).is_some());
}

#[test]
fn room_is_told_by_the_rule_of_linux() {
    // 16 KiB: told from 2,305 bytes on, but only to one that is blocked or sees less than half free.
    let after = |arrived: u32, blocked: bool, read: u32| {
        let mut conn = conn();
        let mut cdc = producer(1, 0, arrived);
        cdc.producer_flags.set(ProducerFlags::WRITE_BLOCKED, blocked);
        conn.on_cdc(&cdc).unwrap();
        conn.consumed(read);
        conn.plan(Push::Now).is_some()
    };
    assert!(!after(8191, false, 8191));
    assert!(after(8192, false, 2305));
    assert!(!after(8192, false, 2304));
    assert!(after(2305, true, 2305));
    assert!(!after(2305, true, 2304));
}

#[test]
fn who_asks_for_it_is_told_of_whatever_was_read() {
    let told = |asks: bool| {
        let mut conn = conn();
        let mut cdc = producer(1, 0, 100);
        cdc.producer_flags.set(ProducerFlags::CURSOR_UPDATE_REQUESTED, asks);
        conn.on_cdc(&cdc).unwrap();
        assert!(conn.plan(Push::Now).is_none(), "nothing was read");
        conn.consumed(1);
        conn.plan(Push::Now).map(|plan| Cdc::parse(&plan.cdc).unwrap().consumer.count)
    };
    assert_eq!((told(true), told(false)), (Some(1), None));
}

#[test]
fn a_move_goes_back_to_what_was_acknowledged() {
    let mut conn = conn();
    conn.wrote(100);
    let first = conn.plan(Push::Now).unwrap();
    conn.wrote(50);
    let second = conn.plan(Push::Now).unwrap();
    conn.completed(first.ticket);
    conn.moved(Remote { rkey: RKey(2), vaddr: 1 << 20 });
    // Late, from the old link.
    conn.completed(second.ticket);
    assert_eq!(conn.unfinished(), 50);
    let validation = sent(&mut conn);
    assert!(validation.producer_flags.has(ProducerFlags::FAILOVER_VALIDATION));
    assert_eq!((validation.sequence, validation.producer), (1, Cursor::default()));
    conn.completed(second.ticket);
    assert_eq!(conn.unfinished(), 50, "still from the old link");
    let again = conn.plan(Push::Now).unwrap();
    assert_eq!(again.writes()[0].vaddr, (1 << 20) + 100);
    let again = Cdc::parse(&again.cdc).unwrap();
    assert_eq!((again.sequence, again.producer.count), (3, 150));
    assert!(conn.plan(Push::Now).is_none());
}

/// Linux takes a cursor that has gone back for one that went round, in places.
#[test]
fn the_producer_cursor_does_not_go_back_with_a_move() {
    for push in [Push::Auto, Push::Corked] {
        let mut conn = conn();
        conn.wrote(100);
        assert!(conn.plan(Push::Now).is_some());
        conn.wrote(20);
        conn.moved(Remote::default());
        let _validation = sent(&mut conn);
        let again = conn.plan(push).expect("what was sent before");
        assert_eq!(again.writes()[0].vaddr, 0, "{push:?}");
        assert!(Cdc::parse(&again.cdc).unwrap().producer.count >= 100, "{push:?}");
    }
}

/// Whatever comes wakes the peer's program, which would answer by the link that is lost.
#[test]
fn what_is_held_after_a_move_goes_when_it_is_released() {
    let mut conn = conn();
    conn.wrote(100);
    assert!(conn.plan(Push::Now).is_some());
    conn.moved(Remote::default());
    conn.hold();
    assert!(sent(&mut conn).producer_flags.has(ProducerFlags::FAILOVER_VALIDATION));
    conn.wrote(20);
    conn.shutdown_write();
    assert!(conn.plan(Push::Now).is_none());
    conn.release();
    let all = conn.plan(Push::Now).unwrap();
    assert_eq!(all.writes()[0].len(), 120);
    assert!(Cdc::parse(&all.cdc).unwrap().state_flags.has(StateFlags::SENDING_DONE));
}

#[test]
fn what_the_peer_has_read_is_not_sent_again() {
    let read =
        |sequence, count| Cdc { sequence, consumer: Cursor { wrap: 0, count }, ..Cdc::default() };
    let mut conn = conn();
    conn.wrote(100);
    let _ = conn.plan(Push::Now);
    conn.on_cdc(&read(1, 60)).unwrap();
    conn.moved(Remote::default());
    assert_eq!((conn.unfinished(), conn.unsent()), (40, 40), "not acknowledged, but read");
    // It turns out that more had arrived.
    conn.on_cdc(&read(2, 90)).unwrap();
    assert_eq!(conn.unsent(), 10);
}

#[test]
fn a_close_while_bytes_are_sent_again_is_told_all_the_same() {
    let mut conn = conn();
    conn.wrote(100);
    let _ = conn.plan(Push::Now);
    conn.shutdown_write();
    let _ = conn.plan(Push::Now);
    conn.moved(Remote::default());
    conn.close();
    let closed = Cdc { sequence: 1, state_flags: StateFlags::CLOSED, ..Cdc::default() };
    conn.on_cdc(&closed).unwrap();
    assert_eq!(conn.state(), State::Closed);
    let _validation = sent(&mut conn);
    assert!(sent(&mut conn).state_flags.has(StateFlags::CLOSED));
}

#[test]
fn an_urgent_byte_in_line_is_told_when_it_was_read() {
    let mut conn = Conn::new(&Setup { urgent_inline: true, ..Setup::default() });
    let mut cdc = producer(1, 0, 3);
    cdc.producer_flags = ProducerFlags::URGENT_PRESENT;
    assert_eq!(conn.on_cdc(&cdc).map(|heard| heard.urgent), Ok(Some(2)));
    assert_eq!(conn.readable(), 2);
    conn.consumed(2);
    assert!(conn.at_mark() && conn.plan(Push::Now).is_none());
    conn.consumed(1);
    assert!(!conn.at_mark());
    assert_eq!(sent(&mut conn).consumer.count, 3);
}

#[test]
fn flags_of_the_end_are_said_again_on_another_link() {
    let mut conn = conn();
    conn.shutdown_write();
    assert!(sent(&mut conn).state_flags.has(StateFlags::SENDING_DONE));
    conn.moved(Remote::default());
    let _ = sent(&mut conn);
    assert!(sent(&mut conn).state_flags.has(StateFlags::SENDING_DONE));
}

#[test]
fn two_ends_with_urgent_business_do_not_answer_each_other_for_ever() {
    let (mut a, mut b) = (conn(), conn());
    a.announce_urgent();
    b.announce_urgent();
    for round in 0.. {
        assert!(round < 10);
        let (from_a, from_b) = (a.plan(Push::Now), b.plan(Push::Now));
        if from_a.is_none() && from_b.is_none() {
            return;
        }
        from_a.map(|plan| b.on_cdc(&Cdc::parse(&plan.cdc).unwrap()).unwrap());
        from_b.map(|plan| a.on_cdc(&Cdc::parse(&plan.cdc).unwrap()).unwrap());
    }
}

#[test]
fn what_was_not_read_makes_an_abort_of_a_close() {
    let (mut a, mut b) = (conn(), conn());
    a.wrote(10);
    b.on_cdc(&sent(&mut a)).unwrap();
    b.close();
    let closing = sent(&mut b);
    assert!(closing.state_flags.has(StateFlags::ABORTED));
    a.on_cdc(&closing).unwrap();
    assert_eq!((a.state(), a.room()), (State::ProcessAbort, Err(Unwritable::Reset)));
    assert!(a.was_reset() && a.at_end());
}

#[test]
fn it_is_not_over_before_the_peer_knows() {
    let mut conn = conn();
    let closed = Cdc { sequence: 1, state_flags: StateFlags::CLOSED, ..Cdc::default() };
    conn.on_cdc(&closed).unwrap();
    conn.close();
    assert_eq!((conn.state(), conn.is_over()), (State::Closed, false));
    let plan = conn.plan(Push::Now).unwrap();
    // The link is lost before this is acknowledged, and the peer has to be told again.
    conn.moved(Remote::default());
    conn.completed(plan.ticket);
    for flags in [StateFlags(0), StateFlags::CLOSED] {
        assert!(!conn.is_over());
        let plan = conn.plan(Push::Now).unwrap();
        assert_eq!(Cdc::parse(&plan.cdc).unwrap().state_flags, flags);
        conn.completed(plan.ticket);
    }
    assert!(conn.is_over());
}

#[test]
fn closing_waits_for_what_was_written_unless_that_is_given_up() {
    let mut conn = conn();
    conn.wrote(16_384);
    let _ = conn.plan(Push::Now);
    // The ring is full and nothing was acknowledged: nothing more can be written, but this is sent.
    conn.close();
    assert_eq!(conn.state(), State::PeerCloseWait1);
    let mut conn = Conn::new(&Setup { send_ring: SizeClass::new(1), ..Setup::default() });
    conn.wrote(20_000);
    let _ = conn.plan(Push::Now);
    conn.close();
    assert_eq!(conn.state(), State::Active, "3,616 bytes have to wait for room");
    conn.give_up_unsent();
    assert_eq!(conn.state(), State::PeerCloseWait1);
    // Or the peer would take what it has for all there is.
    assert!(sent(&mut conn).state_flags.has(StateFlags::ABORTED));
}

/// By then the peer's RMB may be another connection's.
#[test]
fn nothing_new_is_written_behind_a_close_that_did_not_wait_for_it() {
    let mut conn = Conn::new(&Setup { send_ring: SizeClass::new(1), ..Setup::default() });
    conn.wrote(20_000);
    let first = conn.plan(Push::Now).unwrap();
    conn.close();
    conn.give_up_unsent();
    assert!(sent(&mut conn).state_flags.has(StateFlags::ABORTED));
    // Now there would be room for the other 3,616.
    let read = |sequence, count, state_flags| Cdc {
        sequence,
        consumer: Cursor { wrap: 0, count },
        state_flags,
        ..Cdc::default()
    };
    conn.on_cdc(&read(1, 10_000, StateFlags(0))).unwrap();
    assert_eq!(conn.plan(Push::Now), None);
    // What was sent and is not known to be there goes again over another link, and no more than that.
    conn.moved(Remote::default());
    conn.completed(first.ticket);
    let _validation = sent(&mut conn);
    let again = conn.plan(Push::Now).unwrap();
    assert_eq!(again.writes().iter().map(Write::len).sum::<u32>(), 6384);
    assert_eq!(conn.plan(Push::Now), None);
    conn.completed(again.ticket);
    conn.on_cdc(&read(2, 0, StateFlags::CLOSED)).expect_err("it has read what it has read");
    conn.on_cdc(&read(2, 10_000, StateFlags::CLOSED)).unwrap();
    assert_eq!((conn.state(), conn.unsent()), (State::Closed, 3616));
}

/// Two ends and what is on its way between them.
#[derive(Clone)]
struct Two {
    ends: [Conn; 2],
    wires: [VecDeque<[u8; 44]>; 2],
}

impl Two {
    fn act(&mut self, side: usize, op: u8) {
        let end = &mut self.ends[side];
        match op {
            0 => end.shutdown_write(),
            1 => end.close(),
            2 => end.abort(),
            3 => end.wrote(1),
            4 => end.consumed(1),
            _ => {
                if let Some(bytes) = self.wires[1 - side].pop_front() {
                    let cdc = Cdc::parse(&bytes).unwrap();
                    end.on_cdc(&cdc).expect("an honest peer");
                }
            }
        }
        while let Some(plan) = self.ends[side].plan(Push::Now) {
            self.wires[side].push_back(plan.cdc);
            self.ends[side].completed(plan.ticket);
        }
    }

    /// What tells two situations apart.
    fn key(&self) -> String {
        format!("{self:?}")
    }

    fn ends_well(mut self) {
        let story = self.key();
        for side in 0..2 {
            self.act(side, 1);
        }
        for _ in 0..20 {
            self.act(0, 5);
            self.act(1, 5);
        }
        for end in &self.ends {
            assert_eq!(end.state(), State::Closed, "from {story}");
            assert!(end.is_over());
        }
        assert!(self.wires.iter().all(VecDeque::is_empty));
    }
}

impl std::fmt::Debug for Two {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}", self.ends, self.wires)
    }
}

#[test]
fn from_everywhere_both_sides_reach_the_end() {
    let start = Two { ends: [conn(), conn()], wires: Default::default() };
    let mut seen = HashSet::new();
    let mut states = HashSet::new();
    let mut edge = vec![start];
    for _depth in 0..5 {
        let mut next = Vec::new();
        for two in edge {
            for (side, op) in (0..2).flat_map(|side| (0..6).map(move |op| (side, op))) {
                let mut two = two.clone();
                two.act(side, op);
                if seen.insert(two.key()) {
                    states.extend(two.ends.iter().map(Conn::state));
                    two.clone().ends_well();
                    next.push(two);
                }
            }
        }
        edge = next;
    }
    assert!(seen.len() > 1000, "{} situations", seen.len());
    assert_eq!(states.len(), 10, "not all states were reached: {states:?}");
}

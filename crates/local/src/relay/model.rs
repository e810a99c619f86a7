//! A connection that goes by an engine is two streams of bytes, whatever its ends do in which order: by the rings, and
//! after the guest has gone back to TCP at any point of it.

use proptest::collection::vec;
use proptest::prelude::*;

use super::tests::{Pair, pair};
use super::*;
use crate::conn::{Got, Phase};

/// What an end does next, with so many bytes.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The guest sends as many as there is room for.
    Send(usize),
    /// The engine takes as many as there are.
    Take(usize),
    /// The other host acknowledges as many as were taken; the engine may send what lies behind them again.
    Ack(usize),
    /// The engine gives as many as there is room for.
    Give(usize),
    /// The guest receives as many as there are.
    Recv(usize),
    /// The guest goes back to TCP, and stays there.
    Down,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![1..100usize, 1..70_000usize];
    prop_oneof![
        8 => bytes().prop_map(Step::Send),
        8 => bytes().prop_map(Step::Take),
        8 => bytes().prop_map(Step::Ack),
        8 => bytes().prop_map(Step::Give),
        8 => bytes().prop_map(Step::Recv),
        1 => Just(Step::Down),
    ]
}

/// Both streams, and how far each end is in them.
struct Streams {
    p: Pair,
    is_down: bool,
    sent: u64,
    taken: u64,
    acked: u64,
    given: u64,
    received: u64,
}

/// A stretch of a stream. Its period is a prime, so that no shift by a ring goes unnoticed.
fn part(from: u64, n: usize) -> Vec<u8> {
    (from..from + n as u64).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

fn at_most(n: u64, limit: usize) -> usize {
    usize::try_from(n).unwrap().min(limit)
}

impl Streams {
    fn play(&mut self, step: Step) {
        match step {
            Step::Send(n) => self.send(n),
            Step::Take(n) => self.take(n),
            Step::Ack(n) => self.ack(n),
            Step::Give(n) => self.give(n),
            Step::Recv(n) => self.receive(n),
            Step::Down if self.is_down => {}
            Step::Down => self.go_down(),
        }
    }

    fn send(&mut self, n: usize) {
        let bytes = part(self.sent, n);
        self.sent += if self.is_down {
            match call::send(self.p.fd, &bytes, MSG_DONTWAIT) {
                Ok(n) => n as u64,
                Err(errno) => {
                    assert_eq!(errno, EAGAIN);
                    0
                }
            }
        } else {
            self.p.send(&bytes) as u64
        };
    }

    fn take(&mut self, most: usize) {
        if self.is_down {
            self.p.relay.heard(false, false);
        }
        let there = self.p.relay.written().unwrap();
        assert!(there == self.sent || self.is_down && there <= self.sent, "{there}: {}", self.sent);
        self.taken += at_most(there - self.taken, most) as u64;
        let unacked = at_most(self.taken - self.acked, usize::MAX);
        assert_eq!(self.p.out(self.acked, unacked), part(self.acked, unacked));
    }

    fn ack(&mut self, most: usize) {
        self.acked += at_most(self.taken - self.acked, most) as u64;
        self.p.relay.release(self.acked);
    }

    fn give(&mut self, most: usize) {
        let size = self.p.relay.rmb_bytes();
        let consumed = self.p.relay.consumed().unwrap();
        assert!(consumed == self.received || self.is_down && consumed <= self.given);
        let n = at_most(size as u64 - (self.given - consumed), most);
        let bytes = part(self.given, n);
        let offset = at_most(self.given % size as u64, size);
        let (here, at_the_beginning) = bytes.split_at(n.min(size - offset));
        assert!(self.p.relay.write_at(offset, here) && self.p.relay.write_at(0, at_the_beginning));
        self.given += n as u64;
        self.p.relay.publish(self.given);
    }

    fn receive(&mut self, room: usize) {
        let bytes = if self.is_down {
            let _ = self.p.relay.pour();
            let mut bytes = vec![0; room];
            let n = call::recv_now(self.p.fd, &mut bytes).unwrap();
            assert_ne!(n, Some(0), "nobody has ended it");
            bytes.truncate(n.unwrap_or(0));
            bytes
        } else {
            let got = self.p.recv(room);
            assert!(got.is_ok() == (self.given > self.received), "{got:?}");
            assert!(matches!(got, Ok(_) | Err(Got::Empty)), "{got:?}");
            got.unwrap_or_default()
        };
        assert_eq!(bytes, part(self.received, bytes.len()));
        self.received += bytes.len() as u64;
        assert!(self.received <= self.given);
    }

    fn go_down(&mut self) {
        let (conn, guest, fd) = (self.p.conn, self.p.guest, self.p.fd);
        let demoted = std::thread::spawn(move || conn.demote(guest, fd, Reason::Exec));
        self.is_down = true;
        while !demoted.is_finished() {
            self.take(usize::MAX);
            self.ack(usize::MAX);
            call::sched_yield();
        }
        assert!(demoted.join().unwrap());
        assert_eq!(conn.phase(), Phase::Tcp);
    }

    /// All arrives that is under way.
    fn finish(&mut self) {
        let begun = call::now_ns();
        while self.taken < self.sent || self.received < self.given {
            assert!(call::now_ns() - begun < 20_000_000_000, "some bytes do not come");
            self.take(usize::MAX);
            self.ack(usize::MAX);
            if self.received < self.given {
                self.receive(70_000);
            }
            call::sched_yield();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn each_direction_is_a_stream(order in 0u32..3, steps in vec(step(), 1..80)) {
        let p = pair(order);
        let mut streams =
            Streams { p, is_down: false, sent: 0, taken: 0, acked: 0, given: 0, received: 0 };
        for step in steps {
            streams.play(step);
        }
        streams.finish();
    }
}

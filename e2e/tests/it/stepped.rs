//! Either side killed, or stopped for a while, at any instruction of a connection's life: a tracer lets it go so many
//! steps into a part, so that the places between two words of shared memory are met as often as any other, and the same
//! one again.
//!
//! `SHUNT_SOAK_SECONDS=600` goes on for ten minutes; `SHUNT_SEED=N` begins with another seed; `SHUNT_PLACE=WAY,PART,STEPS`
//! has it happen there each time, without `STEPS` anywhere in that part.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use e2e::differential::Random;
use e2e::run::{BoardDir, Guest, Under, command, plain_only, skipped};
use e2e::stepped::{At, Traced};

const GUEST: &str = env!("CARGO_BIN_EXE_load-guest");
/// Far longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(30);
/// Ways back to TCP, the client's and the server's, and one that is of neither.
const WAYS: u64 = 10;
/// Most steps into a part: a copy is some hundred, a wait that spins may be ever so many.
const STEPS_MAX: u64 = 40_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whom {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Kill,
    Stop(Duration),
}

/// Where something is done to whom.
#[derive(Clone, Copy, Debug)]
struct Place {
    whom: Whom,
    way: u64,
    part: u64,
    steps: u64,
}

fn first_line(out: &mut impl BufRead) -> u16 {
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    first.trim().strip_prefix("port ").and_then(|port| port.parse().ok()).unwrap()
}

fn rest(out: &mut impl Read) -> String {
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    said.trim().to_owned()
}

/// One life of a connection: one end is traced, the other is as it would be.
struct Pair {
    traced: Traced,
    said_by_traced: BufReader<ChildStdout>,
    other: Guest,
    said_by_other: BufReader<ChildStdout>,
    port: u16,
}

impl Pair {
    /// The traced end is at the beginning of its first part.
    fn start(dir: &BoardDir, whom: Whom, way: u64) -> Self {
        Self::start_under([Under::Shunt(dir); 2], whom, way)
    }

    /// `under`: the client and the server.
    fn start_under(under: [Under<'_>; 2], whom: Whom, way: u64) -> Self {
        let mut server = command(GUEST, under[1]);
        server.args(["stepped-server", &way.to_string()]);
        let client = |port: u16| {
            let mut client = command(GUEST, under[0]);
            client.args(["stepped-client", &port.to_string(), &way.to_string()]);
            client
        };
        let free = |command: &mut std::process::Command| {
            let mut guest = Guest::start(command.stdout(Stdio::piped()));
            let out = BufReader::new(guest.take_stdout().unwrap());
            (guest, out)
        };
        let held = |command: &mut std::process::Command| {
            let mut traced = Traced::start(command);
            let out = BufReader::new(traced.stdout().unwrap());
            assert_eq!(traced.to_mark(LIMIT), Some(At::Mark), "before the first part");
            (traced, out)
        };
        match whom {
            Whom::Client => {
                let (other, mut said_by_other) = free(&mut server);
                let port = first_line(&mut said_by_other);
                let (traced, said_by_traced) = held(&mut client(port));
                Self { traced, said_by_traced, other, said_by_other, port }
            }
            Whom::Server => {
                let (traced, mut said_by_traced) = held(&mut server);
                let port = first_line(&mut said_by_traced);
                let (other, said_by_other) = free(&mut client(port));
                Self { traced, said_by_traced, other, said_by_other, port }
            }
        }
    }

    /// How many steps each part takes, `STEPS_MAX` at most, of a connection that goes through shared memory.
    fn lengths(self, dir: &BoardDir) -> Vec<u64> {
        let (all, attached) = self.lengths_and_attached(dir);
        assert!(attached == 2 || plain_only(), "{attached} ends were attached");
        all
    }

    fn lengths_and_attached(mut self, dir: &BoardDir) -> (Vec<u64>, u64) {
        let pids = [self.traced.pid(), self.other.pid()];
        let attached_now =
            || dir.board().map_or(0, |board| pids.iter().map(|pid| board.attached_by(*pid)).sum());
        let (mut all, mut attached) = (Vec::new(), 0);
        loop {
            attached = attached.max(attached_now());
            let (mut at, steps) = self.traced.steps(STEPS_MAX);
            all.push(steps);
            if at == At::Between {
                at = self.traced.to_mark(LIMIT).expect("the next part, or the end");
            }
            if at == At::Over {
                break;
            }
        }
        let both = [rest(&mut self.said_by_traced), self.other_ends(&"undisturbed", dir)];
        assert_eq!(both, ["done", "done"]);
        (all, attached)
    }

    fn other_ends(&mut self, place: &dyn std::fmt::Debug, dir: &BoardDir) -> String {
        let ended = self.other.wait(LIMIT);
        ended.unwrap_or_else(|e| panic!("{place:?}: {e}\n{}", dir.summary()));
        rest(&mut self.said_by_other)
    }
}

/// Does it there, and sees what the other end says.
fn play(dir: &BoardDir, place: Place, what: What) {
    let mut pair = Pair::start(dir, place.whom, place.way);
    for _ in 0..place.part {
        let at = pair.traced.to_mark(LIMIT);
        assert_eq!(at, Some(At::Mark), "{place:?}: on its way\n{}", dir.summary());
    }
    let _ = pair.traced.steps(place.steps);
    match what {
        What::Kill => {
            pair.traced.kill();
            if place.whom == Whom::Client && place.part == 0 {
                // It may not have come as far as the server.
                drop(TcpStream::connect(("127.0.0.1", pair.port)));
            }
            let said = pair.other_ends(&place, dir);
            // All came, or one of TCP's ends did.
            let known = ["done", "end", "ECONNRESET", "EPIPE", "ECONNREFUSED", "ENOTCONN"];
            assert!(
                known.contains(&said.as_str()),
                "{place:?} killed: {said:?}\n{}",
                dir.summary()
            );
        }
        What::Stop(pause) => {
            std::thread::sleep(pause);
            while pair.traced.to_mark(LIMIT).expect("to go on") != At::Over {}
            let said = (rest(&mut pair.said_by_traced), pair.other_ends(&place, dir));
            let done = ("done".to_owned(), "done".to_owned());
            assert_eq!(said, done, "{place:?}, {what:?}\n{}", dir.summary());
        }
    }
}

/// At places that the seed chooses, in all parts alike.
fn at_any_place(whom: Whom, rounds: u64, what: impl Fn(&mut Random) -> What) {
    let dir = BoardDir::new();
    let seed = std::env::var("SHUNT_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let soak = std::env::var("SHUNT_SOAK_SECONDS").ok().and_then(|n| n.parse().ok());
    let mut random = Random::new(seed);
    let lengths: Vec<Vec<u64>> =
        (0..WAYS).map(|way| Pair::start(&dir, whom, way).lengths(&dir)).collect();
    println!("steps of each part: {lengths:?}");
    let place = std::env::var("SHUNT_PLACE")
        .ok()
        .map(|text| text.split(',').map(|n| n.parse().unwrap()).collect::<Vec<u64>>());
    let begun = Instant::now();
    let mut round = 0;
    while round < rounds || soak.is_some_and(|soak| begun.elapsed() < Duration::from_secs(soak)) {
        let way = random.below(WAYS);
        let parts = &lengths[usize::try_from(way).unwrap()];
        let part = random.below(parts.len() as u64);
        let steps = random.below(parts[usize::try_from(part).unwrap()] + 1);
        let place = match place.as_deref() {
            Some([way, part, steps]) => Place { whom, way: *way, part: *part, steps: *steps },
            Some([way, part]) => {
                let most = lengths[usize::try_from(*way).unwrap()][usize::try_from(*part).unwrap()];
                Place { whom, way: *way, part: *part, steps: random.below(most + 1) }
            }
            _ => Place { whom, way, part, steps },
        };
        play(&dir, place, what(&mut random));
        round += 1;
    }
    println!("{round} rounds");
    // The board is as good as new.
    let lengths = Pair::start(&dir, whom, 0).lengths(&dir);
    assert!(!lengths.is_empty());
}

fn rounds() -> u64 {
    if e2e::quick() { 15 } else { 45 }
}

#[test]
fn client_killed_at_any_instruction() {
    at_any_place(Whom::Client, rounds(), |_| What::Kill);
}

#[test]
fn server_killed_at_any_instruction() {
    at_any_place(Whom::Server, rounds(), |_| What::Kill);
}

#[test]
fn client_stopped_at_any_instruction() {
    at_any_place(Whom::Client, rounds() / 3, |random| {
        What::Stop(Duration::from_millis(20 + random.below(400)))
    });
}

#[test]
fn server_stopped_at_any_instruction() {
    at_any_place(Whom::Server, rounds() / 3, |random| {
        What::Stop(Duration::from_millis(20 + random.below(400)))
    });
}

/// An end whose peer is without Shunt, instruction by instruction: what a message costs more than without the library.
/// [`super::counted`] shows that it makes the same system calls, each of which takes some thousand.
fn messages_beside_a_plain_peer(whom: Whom, way: u64) {
    if plain_only() {
        return skipped("both runs would be the same");
    }
    let dir = BoardDir::new();
    let counted = |ours: Under<'_>| {
        let under = match whom {
            Whom::Client => [ours, Under::Tcp],
            Whom::Server => [Under::Tcp, ours],
        };
        Pair::start_under(under, whom, way).lengths_and_attached(&dir)
    };
    let ((plain, _), (shunt, attached)) = (counted(Under::Tcp), counted(Under::Shunt(&dir)));
    println!("{whom:?}: {plain:?} alone, {shunt:?} under Shunt");
    assert_eq!(attached, 0, "the peer is not there");
    // Later than its first message, by which it learns that it is alone, and before its end.
    let messages = 4..9;
    let more: Vec<i64> =
        messages.map(|part| shunt[part].cast_signed() - plain[part].cast_signed()).collect();
    assert!(more.iter().all(|n| (0..=50).contains(n)), "{whom:?}: {more:?} more for each call");
}

#[test]
fn a_message_of_an_end_alone_costs_few_instructions() {
    messages_beside_a_plain_peer(Whom::Client, 5);
    messages_beside_a_plain_peer(Whom::Server, 0);
}

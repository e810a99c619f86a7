//! How long a single call may take while the table grows from a thousand datagrams in progress to a million,
//! changes its key, and shrinks again, with traffic all the time.
//!
//! Each call is timed by a clock. What the table does follows from what comes, so that the same call has the
//! same to do in each round; what another program takes of the CPU hits another call each time. So calls are
//! taken together in blocks of a few, of each block the longest call is kept, of the rounds the least of
//! these: a stall that is ours is there in each round.

use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use clap::Args;
use frag::{Arrival, Config, Core, HashKey, Key, Ledger, Limits, Shard, Shared};
use testkit::cpu;

use crate::ours::Count;
use crate::trace::Slot;

/// What is asked of it.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Words {
    /// Datagrams in progress before
    #[arg(long, default_value_t = 1000)]
    from: u32,
    /// Datagrams in progress at most
    #[arg(long, default_value_t = 1_000_000)]
    to: u32,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Calls whose longest is one figure.
const BLOCK: usize = 64;
/// Bytes of a fragment: a header and 8 of payload.
const PACKET: usize = 28;
/// Datagrams of one who has found out the key: more than a search may pass.
const AIMED: usize = 200;
const PROTOCOL: u8 = 17;
/// Far more than is needed: nothing is to be evicted.
const ROOM: u64 = 1 << 36;

/// A table that takes packets.
enum Table {
    Shard(Box<Shard<Slot>>),
    Shared(Arc<Shared<Slot>>, Box<Core>),
}

impl Table {
    fn push(&mut self, packet: &[u8], sink: &mut Count) {
        let arrival = Arrival { packet, buffer: Slot::FIRST, cost: 64, scope: 0 };
        match self {
            Self::Shard(shard) => shard.push(arrival, 1, sink),
            Self::Shared(table, core) => table.push(core, arrival, 1, sink),
        }
    }

    /// How often it has grown, shrunk or changed its key.
    fn resized(&self) -> u64 {
        match self {
            Self::Shard(shard) => shard.counters().resized,
            Self::Shared(table, _) => table.counters().resized,
        }
    }
}

/// The longest call of each block, and all calls for the percentile.
#[derive(Default)]
struct Calls {
    longest: Vec<u64>,
    all: Vec<u32>,
}

impl Calls {
    fn add(&mut self, ns: u64) {
        if self.all.len().is_multiple_of(BLOCK) {
            self.longest.push(0);
        }
        if let Some(longest) = self.longest.last_mut() {
            *longest = ns.max(*longest);
        }
        self.all.push(u32::try_from(ns).unwrap_or(u32::MAX));
    }

    /// So that of ten thousand calls one takes longer.
    fn late(&mut self) -> f64 {
        let at = self.all.len() * 9999 / 10_000;
        f64::from(*self.all.select_nth_unstable(at).1)
    }

    fn most(&self) -> u64 {
        self.longest.iter().copied().max().unwrap_or(0)
    }
}

/// A round: growth, change of key, shrinking.
type Round = [Calls; 3];
const STEPS: [&str; 3] = ["grow", "rekey", "shrink"];

/// Measures both kinds of table.
///
/// # Errors
///
/// When the table did not do what was to be timed.
pub(crate) fn run(words: Words) -> anyhow::Result<()> {
    cpu::pin(0)?;
    let config = Config { memory_bytes: ROOM, datagrams_max: 1 << 22, ..Config::default() };
    let limits = Config { copy_below: 0, ..config }.limits()?;
    let secret = HashKey::new([3, 4]);
    let mut shard = || {
        let shard = Shard::new(&limits, &Ledger::of(&limits), secret.clone());
        (Table::Shard(Box::new(shard)), secret.clone())
    };
    measure("shard", words, &mut shard)?;
    measure("shared", words, &mut || shared(&limits, &secret))
}

/// A table with one bucket: all stalls are in it.
fn shared(limits: &Limits, secret: &HashKey) -> (Table, HashKey) {
    let table = Shared::new(limits, 1, secret);
    let core = Box::new(table.core());
    (Table::Shared(table, core), secret.successor())
}

fn measure(
    name: &str,
    words: Words,
    table: &mut dyn FnMut() -> (Table, HashKey),
) -> anyhow::Result<()> {
    let mut rounds = Vec::new();
    for _ in 0..words.rounds.max(1) {
        let (table, key) = table();
        rounds.push(round(words, table, &key)?);
    }
    for (step, what) in STEPS.iter().enumerate() {
        let of = |round: &Round| round[step].longest.clone();
        let least = rounds.iter().map(of).reduce(|mut least, next| {
            least.iter_mut().zip(next).for_each(|(least, next)| *least = next.min(*least));
            least
        });
        let most = least.unwrap_or_default().into_iter().max().unwrap_or(0);
        println!("{name}-{what}={most}");
        let longest = rounds.iter().map(|round| round[step].most()).min().unwrap_or(0);
        println!("{name}-{what}-longest={longest}");
        let late = rounds.iter_mut().map(|round| round[step].late());
        println!("{name}-{what}-p99.99={}", late.fold(f64::INFINITY, f64::min));
    }
    Ok(())
}

fn round(words: Words, mut table: Table, key: &HashKey) -> anyhow::Result<Round> {
    let mut sink = Count::default();
    let mut calls = Round::default();
    let mut traffic = words.to;
    (0..words.from).for_each(|n| table.push(&Half::of(n).emit(), &mut sink));
    let began = table.resized();
    for n in words.from..words.to {
        timed(&mut table, Half::of(n), &mut sink, &mut calls[0]);
        between(&mut table, &mut traffic, &mut sink, &mut calls[0]);
    }
    let grown = table.resized();
    ensure!(grown > began, "the table has not grown");
    // No key is changed while one table follows another: that ends first.
    for _ in 0..words.to / 4 {
        between(&mut table, &mut traffic, &mut sink, &mut calls[0]);
    }
    for half in aimed(key) {
        timed(&mut table, half, &mut sink, &mut calls[1]);
    }
    ensure!(table.resized() == grown + 1, "the key has not changed, or more has");
    for _ in 0..words.to / 4 {
        between(&mut table, &mut traffic, &mut sink, &mut calls[1]);
    }
    for n in words.from..words.to {
        timed(&mut table, Half { last: true, ..Half::of(n) }, &mut sink, &mut calls[2]);
        between(&mut table, &mut traffic, &mut sink, &mut calls[2]);
    }
    ensure!(table.resized() > grown + 1, "the table has not shrunk");
    // Whatever was looked for was found.
    let all = (traffic - words.to) + (words.to - words.from);
    ensure!(sink.datagrams == all as usize, "{} of {all} datagrams", sink.datagrams);
    Ok(calls)
}

/// A whole datagram between others.
fn between(table: &mut Table, n: &mut u32, sink: &mut Count, calls: &mut Calls) {
    *n += 1;
    timed(table, Half::of(*n), sink, calls);
    timed(table, Half { last: true, ..Half::of(*n) }, sink, calls);
}

fn timed(table: &mut Table, half: Half, sink: &mut Count, calls: &mut Calls) {
    let packet = half.emit();
    let begin = Instant::now();
    table.push(&packet, sink);
    calls.add(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
}

/// Half of a datagram.
#[derive(Clone, Copy)]
struct Half {
    source: u32,
    destination: u32,
    last: bool,
}

impl Half {
    /// The first half of the datagram of that number, each of a network of its own.
    const fn of(n: u32) -> Self {
        Self { source: n << 8 | 1, destination: 1, last: false }
    }

    /// Without a checksum, which nobody reads.
    fn emit(self) -> [u8; PACKET] {
        let mut packet = [0; PACKET];
        packet[0] = 0x45;
        packet[3] = 28;
        // More fragments, or 8 bytes behind the beginning.
        packet[if self.last { 7 } else { 6 }] = if self.last { 1 } else { 0x20 };
        (packet[8], packet[9]) = (64, PROTOCOL);
        packet[12..16].copy_from_slice(&self.source.to_be_bytes());
        packet[16..20].copy_from_slice(&self.destination.to_be_bytes());
        packet
    }
}

/// Of these a search begins in the same few slots, for who knows the key, up to the largest table there is.
fn aimed(key: &HashKey) -> impl Iterator<Item = Half> {
    let half = |destination| Half { source: 2, destination, last: false };
    let lands = |half: &Half| {
        let Half { source, destination, .. } = *half;
        key.hash(&Key::v4(source, destination, 0, PROTOCOL, 0)) >> 32 & 0x1f_ffff < 16
    };
    (0..u32::MAX).map(half).filter(lands).take(AIMED)
}

//! What putting fragments together costs: our engine and others on one trace in memory.
//!
//! Several engines may be named: each gets some passes in turn, and then again in the other order, for some rounds,
//! since the machine's speed drifts. For each, `NAME=ns,ns,…` is printed: nanoseconds of CPU time per fragment, the median over
//! the passes of each round. Before each pass all packets are written anew, which is not timed.

mod flood;
mod handoff;
mod kernel;
mod ours;
mod overload;
mod peers;
mod stall;
mod threads;
mod trace;

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, Parser, Subcommand, ValueEnum};

use testkit::cpu;
use threads::Way;
use trace::{Case, Order, Places, Trace};

#[derive(Parser)]
#[command(about = "Measures how fast fragments are put together")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Engines on one thread
    One {
        #[command(flatten)]
        words: Words,
        /// Which, in turn
        #[arg(long = "engine", value_enum, required = true)]
        engines: Vec<Name>,
    },
    /// Our engine with more in flight than memory holds, in computed time
    Overload {
        #[command(flatten)]
        load: overload::Load,
    },
    /// Linux's own reassembly, by subtraction (as root)
    Kernel {
        #[command(flatten)]
        words: Words,
    },
    /// Linux, as `overload` (as root)
    KernelOverload {
        #[command(flatten)]
        load: overload::Load,
    },
    /// Writes the trace to a file
    Trace {
        #[command(flatten)]
        words: Words,
        #[arg(long)]
        to: PathBuf,
    },
    /// Our engine on several threads; time is that of all together
    Many {
        #[command(flatten)]
        words: Words,
        /// How they share the work
        #[arg(long, value_enum, required = true)]
        way: Vec<Way>,
        #[arg(long, default_values_t = [1, 2])]
        threads: Vec<usize>,
        /// Datagrams are written to one place
        #[arg(long)]
        copy: bool,
    },
    /// How long one call may take while the table grows, changes its key and shrinks
    Stall {
        #[command(flatten)]
        words: stall::Words,
    },
    /// Fragments that are aimed at the table, and the smallest there are
    Flood {
        #[command(flatten)]
        words: flood::Words,
    },
}

/// The trace, and how often it is played.
#[derive(Args, Clone, Copy, Debug)]
struct Words {
    /// Bytes of each datagram's UDP payload
    #[arg(long, default_value_t = 65507)]
    size: usize,
    /// Datagrams in flight
    #[arg(long, default_value_t = 100)]
    flows: usize,
    #[arg(long, value_enum, default_value = "in")]
    order: Order,
    /// Fragments of a trace, about
    #[arg(long, default_value_t = 45_000)]
    fragments: usize,
    /// Passes of each engine in each round
    #[arg(long, default_value_t = 7)]
    passes: usize,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Packets are not written anew before each pass: caches may know them
    #[arg(long)]
    stale: bool,
    /// No large pages: as programs in other languages have them
    #[arg(long)]
    small_pages: bool,
}

impl Words {
    fn case(self, salt: u32) -> Case {
        let Self { size, flows, order, fragments, .. } = self;
        Case { size, flows, order, fragments, salt }
    }

    /// Has the system do as was asked for.
    fn settle(self) -> anyhow::Result<()> {
        if self.small_pages {
            // SAFETY: changes which pages this process gets from now on, and nothing that it has.
            let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
            ensure!(done == 0, "cannot do without large pages");
        }
        Ok(())
    }
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Ours, as slices where they came
    ZeroCopy,
    /// The same, without bursts
    OneByOne,
    /// Ours, written to one place
    Contiguous,
    /// Headers read and hashed, nothing else
    Headers,
    /// Each payload copied to its place
    Memcpy,
    /// etherparse's pool
    Etherparse,
    /// A map of growing buffers
    Naive,
}

impl Name {
    fn engine(self, trace: &Trace) -> anyhow::Result<Box<dyn Engine>> {
        Ok(match self {
            Self::ZeroCopy => Box::new(ours::ZeroCopy(ours::shard()?)),
            Self::OneByOne => Box::new(ours::OneByOne(ours::shard()?)),
            Self::Contiguous => {
                Box::new(ours::Contiguous(ours::shard()?, Places::new(&trace.case)?))
            }
            Self::Headers => Box::new(ours::Headers(frag::HashKey::new([1, 2]))),
            Self::Memcpy => Box::new(peers::Memcpy::to_its_place(trace)?),
            Self::Etherparse => Box::new(peers::Etherparse::new()),
            Self::Naive => Box::new(peers::Naive::default()),
        })
    }
}

/// Something that puts fragments together.
trait Engine {
    /// Takes in the whole trace; answers how many datagrams came out.
    fn pass(&mut self, trace: &Trace) -> usize;

    /// The same, and looks at every byte. Not timed.
    fn check(&mut self, trace: &Trace) -> usize;
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().what {
        What::One { words, engines } => one(words, &engines),
        What::Overload { load } => overload::run(load),
        What::Kernel { words } => kernel::cost(words),
        What::KernelOverload { load } => kernel::overload(load),
        What::Trace { words, to } => Trace::new(words.case(0))?.write(&to),
        What::Many { words, way, threads, copy } => many(words, &way, &threads, copy),
        What::Stall { words } => stall::run(words),
        What::Flood { words } => flood::run(words),
    }
}

fn one(words: Words, names: &[Name]) -> anyhow::Result<()> {
    cpu::pin(0)?;
    words.settle()?;
    let mut player = Player::new(Trace::new(words.case(0))?, words.stale);
    let mut engines = Vec::new();
    for name in names {
        let mut engine = name.engine(&player.trace)?;
        ensure!(engine.check(&player.trace) == player.trace.datagrams, "{name:?} loses datagrams");
        player.round(engine.as_mut(), 1)?;
        engines.push((*name, engine, Vec::new()));
    }
    for round in 0..words.rounds {
        for at in turn(round, engines.len()) {
            let (_, engine, times) = &mut engines[at];
            times.push(player.round(engine.as_mut(), words.passes)?);
        }
    }
    engines.iter().for_each(|(name, _, times)| tell(&word(*name), times));
    Ok(())
}

/// A trace, and what it is written from before each pass.
struct Player {
    trace: Trace,
    copy: Vec<u8>,
    stale: bool,
}

impl Player {
    fn new(trace: Trace, stale: bool) -> Self {
        let copy = if stale { Vec::new() } else { trace.copy() };
        Self { trace, copy, stale }
    }

    /// Nanoseconds per fragment, the median over some passes.
    fn round(&mut self, engine: &mut dyn Engine, passes: usize) -> anyhow::Result<f64> {
        let mut times = Vec::with_capacity(passes);
        for _ in 0..passes.max(1) {
            if !self.stale {
                self.trace.arrive(&self.copy);
            }
            let begin = cpu::of_this_thread();
            let datagrams = engine.pass(&self.trace);
            times.push(cpu::of_this_thread() - begin);
            ensure!(datagrams == self.trace.datagrams, "datagrams were lost");
        }
        times.sort_unstable();
        Ok(times[times.len() / 2].as_secs_f64() * 1e9 / self.trace.len() as f64)
    }
}

fn many(words: Words, ways: &[Way], threads: &[usize], copy: bool) -> anyhow::Result<()> {
    words.settle()?;
    let mut traces = threads::Traces::new(words);
    let mut all = Vec::new();
    for way in ways {
        for threads in threads {
            let mut yard = threads::Yard::new(*way, words, *threads, copy, &mut traces)?;
            yard.round()?; // warms up
            all.push((format!("{}.{threads}", word(*way)), yard, Vec::new()));
        }
    }
    for round in 0..words.rounds {
        for at in turn(round, all.len()) {
            let (_, yard, times) = &mut all[at];
            times.push(yard.round()?);
        }
    }
    all.iter().for_each(|(name, _, times)| tell(name, times));
    Ok(())
}

/// The order in which so many have their turn in a round: there and back, so that a machine which gets slower or faster
/// meanwhile does so to all.
fn turn(round: usize, len: usize) -> impl Iterator<Item = usize> {
    let back = !round.is_multiple_of(2);
    (0..len).map(move |at| if back { len - 1 - at } else { at })
}

/// A value as it is typed.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn tell(name: &str, times: &[f64]) {
    let times: Vec<String> = times.iter().map(|ns| format!("{ns:.2}")).collect();
    println!("{name}={}", times.join(","));
}

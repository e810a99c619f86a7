//! How long one cache line takes from one CPU to another and back: the floor under any round trip.
//!
//! Twice. Once a single line to and fro, which either end writes: the CPU that reads it may get it with the
//! right to write it at once. And once a line each way, written by one end and read by the other, as in
//! every channel whose words have one writer: before each store the line must be taken back from the
//! reader.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use testkit::cpu;

const TRIPS_PER_BATCH: usize = 1000;
/// When others use the CPUs as well, each batch may take many time slices: fewer have to do then.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Parser)]
#[command(about = "Bounces cache lines between two CPUs and prints the round trips")]
struct Args {
    #[arg(long, default_value_t = 0)]
    here: usize,
    #[arg(long, default_value_t = 1)]
    there: usize,
    /// Batches of 1000 round trips
    #[arg(long, default_value_t = 2000)]
    batches: usize,
}

/// Alone on its line, and on the next one, which some CPUs fetch with it.
#[repr(align(128))]
struct Line(AtomicUsize);

impl Line {
    const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }
}

/// The lines by which numbers go out and come back.
#[derive(Clone, Copy)]
struct Way {
    out: &'static Line,
    back: &'static Line,
}

static BALL: Line = Line::new();
static OUT: Line = Line::new();
static BACK: Line = Line::new();
const ONE_LINE: Way = Way { out: &BALL, back: &BALL };
const A_LINE_EACH_WAY: Way = Way { out: &OUT, back: &BACK };
const STOP: usize = usize::MAX;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let one = measure(&args, ONE_LINE)?;
    let each = measure(&args, A_LINE_EACH_WAY)?;
    println!(
        "round_trip_ns={} p1_ns={} p99_ns={} each_way_ns={} each_way_p1_ns={} each_way_p99_ns={}",
        one[1], one[0], one[2], each[1], each[0], each[2]
    );
    Ok(())
}

/// Nanoseconds of a round trip: of the fastest hundredth, the median, of the slowest hundredth.
fn measure(args: &Args, way: Way) -> anyhow::Result<[u128; 3]> {
    let there = args.there;
    let other = std::thread::spawn(move || cpu::pin(there).map(|()| answer(way)));
    cpu::pin(args.here).with_context(|| format!("cannot stay on CPU {}", args.here))?;
    let mut batches = Vec::with_capacity(args.batches);
    let end = Instant::now() + PATIENCE;
    for batch in 0..args.batches.max(1) {
        let begin = Instant::now();
        if begin > end && !batches.is_empty() || other.is_finished() {
            break;
        }
        bounce(way, batch * TRIPS_PER_BATCH, || other.is_finished());
        batches.push(begin.elapsed().as_nanos() / TRIPS_PER_BATCH as u128);
    }
    way.out.0.store(STOP, Ordering::Release);
    let answered = other.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))?;
    answered.with_context(|| format!("cannot stay on CPU {there}"))?;
    batches.sort_unstable();
    anyhow::ensure!(!batches.is_empty(), "nothing was measured");
    Ok([1, 50, 99].map(|percent| batches[(batches.len() - 1) * percent / 100]))
}

/// Sends odd numbers, waits for the even ones after them.
fn bounce(way: Way, begin: usize, gone: impl Fn() -> bool) {
    for trip in begin..begin + TRIPS_PER_BATCH {
        way.out.0.store(2 * trip + 1, Ordering::Release);
        let mut looks = 0_u32;
        // Pairs with the Release in `answer`.
        while way.back.0.load(Ordering::Acquire) != 2 * trip + 2 {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 20) && gone() {
                return;
            }
        }
    }
}

fn answer(way: Way) {
    let mut last = 0;
    loop {
        // Pairs with the Release in `bounce`. No spin hint: it delays what is measured.
        match black_box(way.out.0.load(Ordering::Acquire)) {
            STOP => return,
            odd if odd % 2 == 1 && odd != last => {
                last = odd;
                way.back.0.store(odd + 1, Ordering::Release);
            }
            _ => {}
        }
    }
}

//! How long one cache line takes from one CPU to another and back: the floor under any round trip.

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
#[command(about = "Bounces one cache line between two CPUs and prints the round trip")]
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

static BALL: Line = Line(AtomicUsize::new(0));
const STOP: usize = usize::MAX;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let there = args.there;
    let other = std::thread::spawn(move || cpu::pin(there).map(|()| answer()));
    cpu::pin(args.here).with_context(|| format!("cannot stay on CPU {}", args.here))?;
    let mut batches = Vec::with_capacity(args.batches);
    let end = Instant::now() + PATIENCE;
    for batch in 0..args.batches.max(1) {
        let begin = Instant::now();
        if begin > end && !batches.is_empty() || other.is_finished() {
            break;
        }
        bounce(batch * TRIPS_PER_BATCH, || other.is_finished());
        batches.push(begin.elapsed().as_nanos() / TRIPS_PER_BATCH as u128);
    }
    BALL.0.store(STOP, Ordering::Release);
    let answered = other.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))?;
    answered.with_context(|| format!("cannot stay on CPU {there}"))?;
    batches.sort_unstable();
    let quantile = |percent: usize| batches[(batches.len() - 1) * percent / 100];
    println!("round_trip_ns={} p1_ns={} p99_ns={}", quantile(50), quantile(1), quantile(99));
    Ok(())
}

/// Sends odd numbers, waits for the even ones after them.
fn bounce(begin: usize, gone: impl Fn() -> bool) {
    for trip in begin..begin + TRIPS_PER_BATCH {
        BALL.0.store(2 * trip + 1, Ordering::Release);
        let mut looks = 0_u32;
        // Pairs with the Release in `answer`.
        while BALL.0.load(Ordering::Acquire) != 2 * trip + 2 {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 20) && gone() {
                return;
            }
        }
    }
}

fn answer() {
    loop {
        // Pairs with the Release in `bounce`. No spin hint: it delays what is measured.
        match black_box(BALL.0.load(Ordering::Acquire)) {
            STOP => return,
            odd if odd % 2 == 1 => BALL.0.store(odd + 1, Ordering::Release),
            _ => {}
        }
    }
}

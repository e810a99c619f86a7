//! Blocking request and response, with a thread for each connection at both ends: the rate, and the round trip's spread.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Parser, Subcommand};
use testkit::latency::Latency;
use testkit::{cpu, loopback, parse_bytes};

/// Reading the clock takes a noticeable part of a round trip through shared memory. So of this many
/// and one, that one is timed alone (for the spread) and the others together (for the round trip).
const TOGETHER: u32 = 7;
/// Larger messages than sockets hold would make both ends wait for room.
const SIZE_MAX: usize = 64 << 10;

#[derive(Parser)]
#[command(about = "Blocking ping-pong over TCP on this host")]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Answers each message with itself, a thread for each connection, until killed
    Server {
        port: u16,
        /// Stay on this CPU
        #[arg(long)]
        pin: Option<usize>,
    },
    /// Sends a message and waits for it to come back, again and again
    Client {
        port: u16,
        /// Bytes in a message, up to 64K
        #[arg(long, default_value = "100", value_parser = parse_bytes)]
        size: usize,
        /// How many, each with a thread
        #[arg(long, default_value_t = 1)]
        connections: u32,
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// Stay on this CPU
        #[arg(long)]
        pin: Option<usize>,
    },
}

fn main() -> anyhow::Result<()> {
    match Args::parse().role {
        Role::Server { port, pin } => {
            pin.map_or(Ok(()), cpu::pin).context("cannot stay on that CPU")?;
            serve(port)
        }
        Role::Client { port, size, connections, seconds, pin } => {
            pin.map_or(Ok(()), cpu::pin).context("cannot stay on that CPU")?;
            anyhow::ensure!(size <= SIZE_MAX, "--size is at most 64K");
            anyhow::ensure!(connections > 0, "--connections is at least 1");
            let patience = Duration::try_from_secs_f64(seconds).context("--seconds")?;
            load(port, size, connections, patience)
        }
    }
}

fn serve(port: u16) -> anyhow::Result<()> {
    let listener = TcpListener::bind(loopback(port))
        .with_context(|| format!("cannot listen on port {port}"))?;
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || {
            if let Err(error) = echo(stream)
                && !matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
            {
                eprintln!("pingpong: cannot echo: {error}");
                std::process::exit(1);
            }
        });
    }
    Ok(())
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut message = vec![0; SIZE_MAX];
    loop {
        match stream.read(&mut message)? {
            0 => return Ok(()),
            len => stream.write_all(&message[..len])?,
        }
    }
}

/// What one connection has seen.
#[derive(Default)]
struct Seen {
    latency: Latency,
    together: Latency,
    rounds: u64,
}

fn load(port: u16, size: usize, connections: u32, patience: Duration) -> anyhow::Result<()> {
    let connect = || {
        let stream = TcpStream::connect(loopback(port))
            .with_context(|| format!("nobody serves port {port}"))?;
        stream.set_nodelay(true)?;
        anyhow::Ok(stream)
    };
    let mut streams = (0..connections).map(|_| connect()).collect::<anyhow::Result<Vec<_>>>()?;
    let begin = Instant::now();
    let first = streams.remove(0);
    let all = thread::scope(|scope| {
        let others = streams.into_iter();
        let others: Vec<_> =
            others.map(|stream| scope.spawn(move || rounds(stream, size, patience))).collect();
        // One alone is the main thread's.
        let mut all = rounds(first, size, patience)?;
        for other in others {
            let other =
                other.join().map_err(|_| anyhow::anyhow!("a connection's thread failed"))??;
            all.latency.add(&other.latency);
            all.together.add(&other.together);
            all.rounds += other.rounds;
        }
        anyhow::Ok(all)
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    let rounds = all.rounds;
    #[expect(clippy::cast_precision_loss, reason = "a count of round trips is far below 2^53")]
    let rate = rounds as f64 / seconds;
    println!(
        "rounds={rounds} seconds={seconds:.3} rate={rate:.0} round_trip_ns={} p50_ns={} p99_ns={}",
        all.together.quantile_ns(500),
        all.latency.quantile_ns(500),
        all.latency.quantile_ns(990)
    );
    Ok(())
}

fn rounds(mut stream: TcpStream, size: usize, patience: Duration) -> anyhow::Result<Seen> {
    let (mut latency, mut together, mut rounds) = (Latency::default(), Latency::default(), 0_u64);
    let (mut out, mut back) = (vec![0; size], vec![0; size]);
    let begin = Instant::now();
    let mut now = begin;
    while now - begin < patience {
        round(&mut stream, &mut out, &mut back)?;
        let one = Instant::now();
        latency.record(one - now);
        for _ in 0..TOGETHER {
            round(&mut stream, &mut out, &mut back)?;
        }
        now = Instant::now();
        together.record((now - one) / TOGETHER);
        rounds += u64::from(TOGETHER) + 1;
    }
    Ok(Seen { latency, together, rounds })
}

/// One round trip; what comes back must be what was sent.
fn round(stream: &mut TcpStream, out: &mut [u8], back: &mut [u8]) -> anyhow::Result<()> {
    let (first, last) = (0, out.len() - 1);
    out[first] = out[first].wrapping_add(1);
    out[last] = out[last].wrapping_add(3);
    stream.write_all(out)?;
    stream.read_exact(back).context("the server ended the connection")?;
    anyhow::ensure!(
        back[first] == out[first] && back[last] == out[last],
        "other bytes came back than were sent"
    );
    Ok(())
}

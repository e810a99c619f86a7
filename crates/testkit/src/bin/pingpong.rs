//! Blocking request and response over one connection: the rate, and the round trip's spread.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
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
    /// Answers each message with itself, one connection after the other, until killed
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
        Role::Client { port, size, seconds, pin } => {
            pin.map_or(Ok(()), cpu::pin).context("cannot stay on that CPU")?;
            anyhow::ensure!(size <= SIZE_MAX, "--size is at most 64K");
            load(port, size, Duration::try_from_secs_f64(seconds).context("--seconds")?)
        }
    }
}

fn serve(port: u16) -> anyhow::Result<()> {
    let listener = TcpListener::bind(loopback(port))
        .with_context(|| format!("cannot listen on port {port}"))?;
    for stream in listener.incoming() {
        if let Err(error) = echo(stream?)
            && !matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        {
            return Err(error).context("cannot echo");
        }
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

fn load(port: u16, size: usize, patience: Duration) -> anyhow::Result<()> {
    let mut stream =
        TcpStream::connect(loopback(port)).with_context(|| format!("nobody serves port {port}"))?;
    stream.set_nodelay(true)?;
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
    let seconds = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a count of round trips is far below 2^53")]
    let rate = rounds as f64 / seconds;
    println!(
        "rounds={rounds} seconds={seconds:.3} rate={rate:.0} round_trip_ns={} p50_ns={} p99_ns={}",
        together.quantile_ns(500),
        latency.quantile_ns(500),
        latency.quantile_ns(990)
    );
    Ok(())
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

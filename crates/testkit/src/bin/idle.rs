//! What connections cost that nobody uses: memory and CPU of both ends while they are held.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use testkit::event::{Epoll, Events, raise_descriptor_limit, ready};
use testkit::{cpu, http, loopback, memory};

/// After the last answer, so that both ends have come to rest.
const SETTLE: Duration = Duration::from_millis(500);

#[derive(Parser)]
#[command(
    about = "Opens connections to an HTTP server on this host, makes one request on each, and holds them"
)]
struct Args {
    port: u16,
    #[arg(long, default_value_t = 1000)]
    connections: usize,
    /// How long to hold them while CPU time is counted
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// The server's process: its memory and CPU time are counted too
    #[arg(long)]
    pid: Option<u32>,
    /// Directory of files in shared memory that count as memory
    #[arg(long)]
    shared: Option<PathBuf>,
}

/// What both ends take, in bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    anonymous: u64,
    page_tables: u64,
    shared: u64,
}

fn taken(pids: &[u32], shared: Option<&Path>) -> anyhow::Result<Sum> {
    let mut sum = Sum::default();
    for pid in pids {
        let one = memory::of(*pid).with_context(|| format!("memory of process {pid}"))?;
        sum.anonymous += one.anonymous;
        sum.page_tables += one.page_tables;
    }
    sum.shared = shared.map_or(Ok(0), memory::files)?;
    Ok(sum)
}

fn cpu_used(pids: &[u32]) -> anyhow::Result<Duration> {
    pids.iter()
        .map(|pid| cpu::used(*pid).with_context(|| format!("CPU time of process {pid}")))
        .sum()
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let hold = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
    let limit = raise_descriptor_limit()?;
    anyhow::ensure!(
        limit > args.connections as u64 + 16,
        "{} connections do not fit under the limit of {limit} descriptors; raise it: ulimit -Hn",
        args.connections
    );
    let pids: Vec<u32> = args.pid.into_iter().chain([std::process::id()]).collect();
    let mut streams = Vec::with_capacity(args.connections);
    let epoll = Epoll::new()?;
    let before = taken(&pids, args.shared.as_deref())?;
    for token in 0..args.connections {
        let stream = open(args.port)
            .with_context(|| format!("connection {} of {}", token + 1, args.connections))?;
        epoll.add(&stream, token as u64, ready::READ)?;
        streams.push(stream);
    }
    quiet(&epoll, SETTLE)?;
    let held = taken(&pids, args.shared.as_deref())?;
    let (begin, used) = (Instant::now(), cpu_used(&pids)?);
    quiet(&epoll, hold)?;
    let (cpu, seconds) = ((cpu_used(&pids)? - used).as_micros(), begin.elapsed().as_secs_f64());
    // All of them still work after they were left alone.
    for (token, stream) in streams.iter_mut().enumerate() {
        ask(stream).with_context(|| format!("connection {} after it was idle", token + 1))?;
    }
    let anonymous = held.anonymous.saturating_sub(before.anonymous);
    let page_tables = held.page_tables.saturating_sub(before.page_tables);
    let shared = held.shared.saturating_sub(before.shared);
    let total = anonymous + page_tables + shared;
    println!(
        "connections={} bytes={total} anonymous={anonymous} page_tables={page_tables} shared={shared} \
         cpu_us={cpu} seconds={seconds:.3}",
        args.connections
    );
    Ok(())
}

fn open(port: u16) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(loopback(port))?;
    stream.set_nodelay(true)?;
    ask(&mut stream)?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream) -> anyhow::Result<()> {
    stream.write_all(&http::request("/", false))?;
    let (mut answer, mut len) = ([0; 8192], 0);
    loop {
        let more = stream.read(&mut answer[len..])?;
        anyhow::ensure!(more > 0, "the server ended the connection");
        len += more;
        match http::answer_len(&answer[..len]).map_err(anyhow::Error::msg)? {
            Some(whole) if whole == len => return Ok(()),
            Some(whole) if whole < len || whole > answer.len() => {
                anyhow::bail!("the server sent another length")
            }
            _ => {}
        }
    }
}

/// Waits as an idle program does, in its event loop; nothing may happen.
fn quiet(epoll: &Epoll, patience: Duration) -> anyhow::Result<()> {
    let (mut events, end) = (Events::with_room(64), Instant::now() + patience);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        epoll.wait(&mut events, Some(left))?;
        anyhow::ensure!(events.iter().next().is_none(), "an idle connection became readable");
    }
}

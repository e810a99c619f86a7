//! Load for an HTTP/1.1 server: one thread, epoll, so many connections with one request each.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use testkit::event::{Epoll, Events, begin_connect, raise_descriptor_limit, ready};
use testkit::latency::Latency;
use testkit::{cpu, http};

#[derive(Parser)]
#[command(about = "Loads an HTTP server on this host and prints rate and latency")]
struct Args {
    port: u16,
    #[arg(long, default_value = "/")]
    path: String,
    #[arg(long, default_value_t = 16)]
    connections: usize,
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// A new connection for each request
    #[arg(long)]
    close: bool,
    /// Stay on this CPU
    #[arg(long)]
    pin: Option<usize>,
}

struct Seat {
    stream: TcpStream,
    asked_at: Instant,
    connecting: bool,
    partial: Vec<u8>,
}

struct Load {
    to: SocketAddrV4,
    request: Vec<u8>,
    close: bool,
    epoll: Epoll,
    latency: Latency,
    errors: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    args.pin.map_or(Ok(()), cpu::pin).context("cannot stay on that CPU")?;
    let patience = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
    anyhow::ensure!(args.connections > 0, "--connections is at least 1");
    raise_descriptor_limit()?;
    let mut load = Load {
        to: SocketAddrV4::new(Ipv4Addr::LOCALHOST, args.port),
        request: http::request(&args.path, args.close),
        close: args.close,
        epoll: Epoll::new()?,
        latency: Latency::default(),
        errors: 0,
    };
    let begin = Instant::now();
    load.run(args.connections, begin + patience)?;
    let seconds = begin.elapsed().as_secs_f64();
    let requests = load.latency.count();
    anyhow::ensure!(
        requests > 0,
        "not one request was answered ({} connections failed)",
        load.errors
    );
    #[expect(clippy::cast_precision_loss, reason = "a count of requests is far below 2^53")]
    let rate = requests as f64 / seconds;
    println!(
        "requests={requests} seconds={seconds:.3} rate={rate:.0} p50_ns={} p99_ns={} errors={}",
        load.latency.quantile_ns(500),
        load.latency.quantile_ns(990),
        load.errors
    );
    Ok(())
}

impl Load {
    fn run(&mut self, connections: usize, end: Instant) -> anyhow::Result<()> {
        let mut seats = Vec::with_capacity(connections);
        for token in 0..connections {
            seats.push(self.connect(token as u64)?);
        }
        let (mut events, mut scratch) =
            (Events::with_room(connections.min(512)), vec![0; 64 << 10]);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.epoll.wait(&mut events, Some(left))?;
            for (token, _) in events.iter() {
                let seat = &mut seats[usize::try_from(token)?];
                let step = if seat.connecting {
                    self.ask(seat, token)
                } else {
                    self.hear(seat, &mut scratch)
                };
                match step {
                    Ok(Step::Waits) => {}
                    Ok(Step::Done) if !self.close => self.ask(seat, token).map(drop)?,
                    Ok(Step::Done) => *seat = self.connect(token)?,
                    Err(error) if error.is::<std::io::Error>() => {
                        self.errors += 1;
                        *seat = self.connect(token).with_context(|| format!("after: {error}"))?;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }

    fn connect(&self, token: u64) -> anyhow::Result<Seat> {
        let stream =
            begin_connect(self.to).with_context(|| format!("cannot connect to {}", self.to))?;
        stream.set_nodelay(true)?;
        self.epoll.add(&stream, token, ready::WRITE)?;
        Ok(Seat { stream, asked_at: Instant::now(), connecting: true, partial: Vec::new() })
    }

    /// Sends the request. It is small: the socket has room when nothing else is on its way.
    fn ask(&self, seat: &mut Seat, token: u64) -> anyhow::Result<Step> {
        if seat.connecting {
            seat.connecting = false;
            self.epoll.change(&seat.stream, token, ready::READ)?;
        } else {
            // A new connection's time runs since its connect.
            seat.asked_at = Instant::now();
        }
        seat.stream.write_all(&self.request)?;
        Ok(Step::Waits)
    }

    fn hear(&mut self, seat: &mut Seat, scratch: &mut [u8]) -> anyhow::Result<Step> {
        let len = match seat.stream.read(scratch) {
            Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Waits),
            Err(error) => return Err(error.into()),
        };
        let bytes = if seat.partial.is_empty() {
            &scratch[..len]
        } else {
            seat.partial.extend_from_slice(&scratch[..len]);
            &seat.partial[..]
        };
        match http::answer_len(bytes) {
            Ok(Some(whole)) if bytes.len() == whole => {
                self.latency.record(seat.asked_at.elapsed());
                seat.partial.clear();
                Ok(Step::Done)
            }
            Ok(Some(whole)) if bytes.len() > whole => {
                bail!("the server sent more than one answer to one request")
            }
            Ok(_) => {
                if seat.partial.is_empty() {
                    seat.partial.extend_from_slice(&scratch[..len]);
                }
                Ok(Step::Waits)
            }
            Err(wrong) => bail!("{wrong}"),
        }
    }
}

enum Step {
    Waits,
    Done,
}

//! The client: one or many connections, and whether all that they did was right.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::pattern::{Pattern, Request};
use crate::serve::{both, check, read, send};
use crate::{Kind, Purpose, socket};

/// The byte of urgency.
const URGENT: u8 = b'!';
const POLL: Duration = Duration::from_millis(10);

#[derive(clap::Args)]
pub(crate) struct Visit {
    host: Ipv4Addr,
    port: u16,
    #[command(flatten)]
    kind: Kind,
    #[arg(long, value_enum, default_value = "echo")]
    purpose: Purpose,
    /// Bytes of each stream, or of each round
    #[arg(long, default_value_t = 5)]
    bytes: u64,
    /// Connections, all open at a time
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// With echo: so many times to and fro, before the end is sent
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Pause before each round but the first
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// The server waits so long before it reads
    #[arg(long, default_value_t = 0)]
    delay_ms: u32,
    /// Keep the connections so long when all is done
    #[arg(long, default_value_t = 0)]
    hold_ms: u64,
    /// When all are connected, wait until this file exists
    #[arg(long)]
    until: Option<PathBuf>,
    /// Close at once instead of in order when all is done; with source, when something is there to read
    #[arg(long)]
    abort: bool,
}

impl Visit {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut streams = Vec::new();
        for count in 0..self.connections {
            let to = SocketAddrV4::new(self.host, self.port);
            let stream = socket::connect(self.kind, to);
            streams.push(stream.with_context(|| format!("connection {count}: connect"))?);
        }
        println!("connected={} ms={}", self.connections, begun.elapsed().as_millis());
        while self.until.as_ref().is_some_and(|file| !file.exists()) {
            sleep(POLL);
        }
        let mut total = 0;
        for (count, stream) in streams.iter_mut().enumerate() {
            let seed = u64::try_from(count)? << 8 | u64::from(self.port) << 40;
            let done = self.visit(stream, seed);
            total += done.with_context(|| format!("connection {count}"))?;
        }
        println!("done bytes={total} ms={}", begun.elapsed().as_millis());
        sleep(Duration::from_millis(self.hold_ms));
        for stream in streams {
            if self.abort {
                socket::close_at_once(stream)?;
            }
        }
        Ok(())
    }

    fn visit(&self, stream: &mut TcpStream, seed: u64) -> anyhow::Result<u64> {
        let Self { purpose, bytes, delay_ms, .. } = *self;
        let request = Request { purpose, delay_ms, seed, bytes };
        stream.write_all(&request.to_bytes()).context("write the request")?;
        let (ours, theirs) = (Pattern::new(seed), Pattern::new(seed.wrapping_add(1)));
        match purpose {
            Purpose::Echo => self.echo(stream, ours),
            Purpose::Sink => {
                send(stream, ours, bytes)?;
                stream.shutdown(Shutdown::Write).context("shutdown")?;
                let told = number(stream).context("read the count")?;
                ensure!(told == bytes, "the server got {told} bytes, not {bytes}");
                end(stream)?;
                Ok(bytes)
            }
            // Something must be there that nobody reads.
            Purpose::Source if self.abort => {
                stream.peek(&mut [0]).context("wait for bytes")?;
                Ok(0)
            }
            Purpose::Source => {
                check(stream, theirs, Some(bytes))?;
                end(stream)?;
                Ok(bytes)
            }
            Purpose::Both | Purpose::After => both(stream, (theirs, ours), bytes),
            Purpose::Abort => abort(stream),
            Purpose::Urgent => urgent(stream, ours, bytes),
        }
    }

    /// To and fro; the end goes one way first, and comes back by the other.
    fn echo(&self, stream: &mut TcpStream, ours: Pattern) -> anyhow::Result<u64> {
        let mut total = 0;
        for round in 0..self.rounds {
            if round > 0 {
                sleep(Duration::from_millis(self.pause_ms));
            }
            let context = || format!("round {round}");
            self.round(stream, ours).with_context(context)?;
            total += self.bytes;
        }
        if self.abort || self.hold_ms > 0 {
            return Ok(total);
        }
        stream.shutdown(Shutdown::Write).context("shutdown")?;
        end(stream)?;
        Ok(total)
    }

    fn round(&self, stream: &mut TcpStream, ours: Pattern) -> anyhow::Result<()> {
        let mut writer = stream.try_clone()?;
        let bytes = self.bytes;
        std::thread::scope(|scope| {
            let sent = scope.spawn(move || send(&mut writer, ours, bytes));
            check(stream, ours, Some(bytes))?;
            sent.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
            Ok(())
        })
    }
}

fn number(stream: &mut TcpStream) -> anyhow::Result<u64> {
    let mut number = [0; 8];
    stream.read_exact(&mut number)?;
    Ok(u64::from_le_bytes(number))
}

/// The stream must end here.
fn end(stream: &mut TcpStream) -> anyhow::Result<()> {
    let n = read(stream, &mut [0]).context("read the end")?;
    ensure!(n == 0, "there is more where the stream should end");
    Ok(())
}

/// Sends what nobody reads: the connection must be reset, as TCP does it, or end, as Linux does it over
/// SMC (where the abort is to be seen in packets only).
fn abort(stream: &mut TcpStream) -> anyhow::Result<u64> {
    let unread = b"unread";
    stream.write_all(unread).context("write")?;
    let saw = match read(stream, &mut [0]) {
        Err(e) if e.raw_os_error() == Some(libc::ECONNRESET) => "reset",
        Err(e) => return Err(e).context("not a reset"),
        Ok(0) => "end",
        Ok(_) => bail!("there is something to read"),
    };
    println!("saw={saw}");
    Ok(unread.len() as u64)
}

fn urgent(stream: &mut TcpStream, ours: Pattern, bytes: u64) -> anyhow::Result<u64> {
    let half = bytes / 2;
    send(stream, ours, half)?;
    socket::send_urgent(stream, URGENT).context("send the urgent byte")?;
    send(stream, ours, bytes - half)?;
    let mut byte = [0];
    stream.read_exact(&mut byte).context("read the byte")?;
    ensure!(byte[0] == URGENT, "the urgent byte came as {}", byte[0]);
    let rest = number(stream).context("read the count")?;
    ensure!(rest == bytes, "beside the urgent byte came {rest} bytes, not {bytes}");
    end(stream)?;
    Ok(bytes + 1)
}

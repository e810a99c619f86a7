//! What this machine gives a server that does nothing but send: a file in memory is spliced into a pipe and from there
//! into a loopback socket, and whoever receives drops it. A yardstick for reads; no server is wanted.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use rustix::time::{ClockId, clock_gettime};

use super::settings::Settings;
use super::socket;

/// Where in time something is measured.
#[derive(Clone, Copy, Debug)]
struct Span {
    begin: Instant,
    end: Instant,
}

/// What one end did while it was measured.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    bytes: u64,
    cpu: Duration,
    wall: Duration,
}

/// Measures as long as the settings say, with `io` bytes in each call, and says it in one line of JSON, in the words of
/// [`Report::json`](super::Report::json).
///
/// # Errors
///
/// When there is no memory for the file, or the network fails.
pub fn bare(settings: &Settings) -> anyhow::Result<String> {
    let file = file(settings.size.max(u64::from(settings.io))).context("a file in memory")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let receiver = TcpStream::connect(listener.local_addr()?)?;
    let (sender, _) = listener.accept()?;
    sender.set_nodelay(true)?;
    let begin = Instant::now() + Duration::from_secs_f64(settings.warmup);
    let span = Span { begin, end: begin + Duration::from_secs_f64(settings.secs) };
    let io = settings.io as usize;
    let (sent, got) = thread::scope(|scope| {
        let sending = scope.spawn(|| send(sender, &file, io, span));
        let got = receive(&receiver, io, span);
        // Who sends may be waiting for room.
        drop(receiver);
        (sending.join(), got)
    });
    let (sent, got) = (sent.map_err(|_| io::Error::other("a panic"))??, got?);
    ensure!(got.bytes > 0, "nothing came in {} seconds", settings.secs);
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    let gb = got.bytes as f64 / 1e9;
    Ok(format!(
        "{{\"op\":\"bare\",\"io\":{io},\"secs\":{:.3},\"MBps\":{:.1},\"srv_s_per_GB\":{:.4},\"cli_s_per_GB\":{:.4}}}",
        got.wall.as_secs_f64(),
        gb * 1e3 / got.wall.as_secs_f64(),
        sent.cpu.as_secs_f64() / gb,
        got.cpu.as_secs_f64() / gb,
    ))
}

fn file(size: u64) -> io::Result<File> {
    let mut file = File::from(memfd_create("bare", MemfdFlags::CLOEXEC)?);
    let piece = vec![0x5a; 1 << 20];
    let mut left = size;
    while left > 0 {
        let n = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
        file.write_all(&piece[..n])?;
        left -= n as u64;
    }
    Ok(file)
}

/// CPU time of the calling thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Does `one` over and over until the span is at its end, and says what it did in it.
fn during(span: Span, mut one: impl FnMut() -> io::Result<usize>) -> io::Result<Done> {
    let mut before = None;
    let mut bytes = 0;
    loop {
        let now = Instant::now();
        if before.is_none() && now < span.begin {
            one()?;
            continue;
        }
        let (since, used) = *before.get_or_insert_with(|| (now, cpu()));
        if now >= span.end {
            return Ok(Done { bytes, cpu: cpu().saturating_sub(used), wall: now - since });
        }
        bytes += one()? as u64;
    }
}

fn send(socket: TcpStream, file: &File, io: usize, span: Span) -> io::Result<Done> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setpipe_size(&writer, io)?;
    let mut offset = 0;
    during(span, || {
        let held = splice(file, Some(&mut offset), &writer, None, io, SpliceFlags::empty())?;
        if held == 0 {
            offset = 0;
        }
        let mut left = held;
        while left > 0 {
            match splice(&reader, None, &socket, None, left, SpliceFlags::empty()) {
                Ok(n) => left -= n,
                Err(Errno::INTR) => {}
                // Who received has seen enough.
                Err(Errno::PIPE | Errno::CONNRESET) if Instant::now() >= span.end => left = 0,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(held)
    })
}

fn receive(socket: &TcpStream, io: usize, span: Span) -> io::Result<Done> {
    let mut nowhere = vec![0; io];
    during(span, || match socket::recv(socket, &mut nowhere, true)? {
        // Who sent has seen the end of the span first.
        0 if Instant::now() >= span.end => Ok(0),
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => Ok(n),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn both_ends_are_told_of() {
        let line = "smbload bare --io 256K --size 1M --secs 0.2 --warmup 0.05";
        let said = bare(&Settings::try_parse_from(line.split(' ')).unwrap()).unwrap();
        for name in ["MBps", "srv_s_per_GB", "cli_s_per_GB"] {
            let (_, rest) = said.split_once(&format!("\"{name}\":")).unwrap();
            let number = rest.split([',', '}']).next().unwrap();
            assert!(number.parse::<f64>().unwrap() > 0.0, "{said}");
        }
    }
}

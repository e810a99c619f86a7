//! The server: does for each connection what its client asks for, and prints how it went.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::pattern::{Pattern, REQUEST_LEN, Request};
use crate::{Kind, Purpose, socket};

pub(crate) const BLOCK: usize = 64 << 10;
const URGENT_LIMIT_MS: i32 = 10_000;

#[derive(clap::Args)]
pub(crate) struct Serve {
    port: u16,
    #[command(flatten)]
    kind: Kind,
}

impl Serve {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let listener = socket::listen(self.kind, self.port).context("listen")?;
        println!("listening on {}", self.port);
        for count in 0u32.. {
            let (stream, _) = listener.accept().context("accept")?;
            thread::Builder::new().stack_size(256 << 10).spawn(move || {
                let said = serve(stream).unwrap_or_else(|e| format!("failed: {e:#}"));
                println!("connection={count} {said}");
            })?;
        }
        Ok(())
    }
}

fn serve(mut stream: TcpStream) -> anyhow::Result<String> {
    let mut request = [0; REQUEST_LEN];
    stream.read_exact(&mut request).context("read the request")?;
    let request = Request::parse(request).context("what came first is no request")?;
    thread::sleep(Duration::from_millis(u64::from(request.delay_ms)));
    let theirs = Pattern::new(request.seed);
    let ours = Pattern::new(request.seed.wrapping_add(1));
    let purpose = request.purpose;
    let done = match purpose {
        Purpose::Echo => echo(&mut stream)?,
        Purpose::Sink => {
            let got = check(&mut stream, theirs, None)?;
            stream.write_all(&got.to_le_bytes()).context("tell the count")?;
            got
        }
        Purpose::Source => send(&mut stream, ours, request.bytes)?,
        Purpose::Both => both(&stream, (theirs, ours), request.bytes)?,
        Purpose::After => {
            let came = check(&mut stream, theirs, None)?;
            ensure!(came == request.bytes, "{came} bytes came, not {}", request.bytes);
            came + send(&mut stream, ours, request.bytes)?
        }
        Purpose::Abort => {
            // Something must be there that nobody reads.
            stream.peek(&mut [0]).context("wait for bytes")?;
            drop(stream);
            return Ok("abort done".to_owned());
        }
        Purpose::Urgent => return urgent(&mut stream, theirs, request.bytes),
    };
    Ok(format!("{purpose:?} bytes={done} done").to_lowercase())
}

/// Sends back what comes, until the end.
fn echo(stream: &mut TcpStream) -> anyhow::Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut count = 0;
    loop {
        let n = read(stream, &mut block).with_context(|| format!("read at {count}"))?;
        if n == 0 {
            return Ok(count);
        }
        stream.write_all(&block[..n]).with_context(|| format!("write at {count}"))?;
        count += n as u64;
    }
}

/// Reads, and again after an interruption.
pub(crate) fn read(stream: &mut TcpStream, into: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match stream.read(into) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Reads a stream to its end, or so many bytes; each must be the pattern's.
pub(crate) fn check(
    stream: &mut TcpStream,
    pattern: Pattern,
    limit: Option<u64>,
) -> anyhow::Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut count = 0;
    loop {
        let left = limit.map_or(u64::MAX, |limit| limit - count);
        let room = usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK));
        if room == 0 {
            return Ok(count);
        }
        let n = read(stream, &mut block[..room]).with_context(|| format!("read at {count}"))?;
        if n == 0 {
            ensure!(limit.is_none(), "the stream ends at {count}");
            return Ok(count);
        }
        if let Some(at) = pattern.first_wrong(count, &block[..n]) {
            anyhow::bail!("the byte at {at} is wrong");
        }
        count += n as u64;
    }
}

/// Sends so many bytes of the pattern.
pub(crate) fn send(stream: &mut TcpStream, pattern: Pattern, bytes: u64) -> anyhow::Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut count = 0;
    while count < bytes {
        let n = usize::try_from(bytes - count).map_or(BLOCK, |left| left.min(BLOCK));
        pattern.fill(count, &mut block[..n]);
        stream.write_all(&block[..n]).with_context(|| format!("write at {count}"))?;
        count += n as u64;
    }
    Ok(count)
}

/// Sends one stream and checks the other to its end, at the same time. Answers the bytes of both.
pub(crate) fn both(
    stream: &TcpStream,
    (theirs, ours): (Pattern, Pattern),
    bytes: u64,
) -> anyhow::Result<u64> {
    let mut writer = stream.try_clone()?;
    let mut reader = stream.try_clone()?;
    thread::scope(|scope| {
        let sent = scope.spawn(move || {
            let sent = send(&mut writer, ours, bytes)?;
            writer.shutdown(Shutdown::Write).context("shutdown")?;
            anyhow::Ok(sent)
        });
        let came = check(&mut reader, theirs, None)?;
        ensure!(came == bytes, "{came} bytes came, not {bytes}");
        let sent = sent.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        Ok(came + sent)
    })
}

/// Takes the urgent byte, then what is before and behind it, and tells the client of both.
fn urgent(stream: &mut TcpStream, theirs: Pattern, bytes: u64) -> anyhow::Result<String> {
    let byte = socket::receive_urgent(stream, URGENT_LIMIT_MS).context("read the urgent byte")?;
    let byte = byte.context("no urgent byte comes")?;
    // What is before it, and what is behind.
    let half = bytes / 2;
    let mut rest = check(stream, theirs, Some(half)).context("before the urgent byte")?;
    rest += check(stream, theirs, Some(bytes - half)).context("behind the urgent byte")?;
    stream.write_all(&[byte]).context("tell the byte")?;
    stream.write_all(&rest.to_le_bytes()).context("tell the count")?;
    Ok(format!("urgent byte={byte} bytes={rest} done"))
}

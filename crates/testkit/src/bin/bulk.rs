//! Bytes in one direction over one connection, as fast as they go.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Parser, Subcommand};
use testkit::{cpu, loopback, parse_bytes};

/// The first byte of a connection says what the server is to do with it.
const TAKE: u8 = b'T';
const GIVE: u8 = b'G';

#[derive(Parser)]
#[command(about = "Bulk transfer over TCP on this host")]
struct Args {
    #[command(subcommand)]
    role: Role,
    /// Bytes in one read or write
    #[arg(long, global = true, default_value = "64K", value_parser = parse_bytes)]
    block: usize,
    /// Stay on this CPU
    #[arg(long, global = true)]
    pin: Option<usize>,
}

#[derive(Subcommand)]
enum Role {
    /// Takes or gives bytes, one connection after the other, until killed
    Server { port: u16 },
    /// Gives bytes to the server, or takes them
    Client {
        port: u16,
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// Let the server send
        #[arg(long)]
        receive: bool,
    },
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    args.pin.map_or(Ok(()), cpu::pin).context("cannot stay on that CPU")?;
    match args.role {
        Role::Server { port } => serve(port, args.block),
        Role::Client { port, seconds, receive } => {
            let patience = Duration::try_from_secs_f64(seconds).context("--seconds")?;
            let stream = TcpStream::connect(loopback(port))
                .with_context(|| format!("nobody serves port {port}"))?;
            let begin = Instant::now();
            let bytes = if receive {
                take(stream, args.block, patience)?
            } else {
                give(stream, args.block, patience)?
            };
            let seconds = begin.elapsed().as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "a rate is printed with few digits")]
            let rate = bytes as f64 / seconds;
            println!("bytes={bytes} seconds={seconds:.3} rate={rate:.0}");
            Ok(())
        }
    }
}

fn serve(port: u16, block: usize) -> anyhow::Result<()> {
    let listener = TcpListener::bind(loopback(port))
        .with_context(|| format!("cannot listen on port {port}"))?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        let mut role = [0];
        let served = match stream.read(&mut role) {
            Ok(1) if role[0] == TAKE => count_and_tell(stream, block),
            Ok(1) if role[0] == GIVE => pour(stream, block),
            // Somebody looked whether the port is open.
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = served
            && !matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        {
            return Err(error).context("cannot serve");
        }
    }
    Ok(())
}

/// Reads to the end, then answers how many bytes there were.
fn count_and_tell(mut stream: TcpStream, block: usize) -> std::io::Result<()> {
    let (mut buffer, mut bytes) = (vec![0; block], 0_u64);
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.write_all(&bytes.to_le_bytes()),
            len => bytes += len as u64,
        }
    }
}

fn pour(mut stream: TcpStream, block: usize) -> std::io::Result<()> {
    let buffer = vec![b'.'; block];
    loop {
        stream.write_all(&buffer)?;
    }
}

/// Sends for so long; returns how many bytes the server has counted when all had arrived.
fn give(mut stream: TcpStream, block: usize, patience: Duration) -> anyhow::Result<u64> {
    let (buffer, mut sent) = (vec![b'.'; block], 0_u64);
    stream.write_all(&[TAKE])?;
    let begin = Instant::now();
    while begin.elapsed() < patience {
        stream.write_all(&buffer)?;
        sent += block as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut told = [0; 8];
    stream.read_exact(&mut told).context("the server ended the connection")?;
    let arrived = u64::from_le_bytes(told);
    anyhow::ensure!(arrived == sent, "{sent} bytes were sent, {arrived} arrived");
    Ok(arrived)
}

fn take(mut stream: TcpStream, block: usize, patience: Duration) -> anyhow::Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; block], 0_u64);
    stream.write_all(&[GIVE])?;
    let begin = Instant::now();
    while begin.elapsed() < patience {
        let len = stream.read(&mut buffer)?;
        anyhow::ensure!(len > 0, "the server ended the connection");
        anyhow::ensure!(
            buffer[..len].iter().step_by(4096).all(|byte| *byte == b'.'),
            "wrong bytes arrived"
        );
        bytes += len as u64;
    }
    Ok(bytes)
}

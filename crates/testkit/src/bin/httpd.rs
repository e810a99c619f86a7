//! A small HTTP/1.1 server: one thread, epoll, keep-alive, one page of 1 KiB.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::Context;
use clap::Parser;
use testkit::event::{Epoll, Events, raise_descriptor_limit, ready};
use testkit::{cpu, http, loopback};

const LISTENER: u64 = u64::MAX;
/// No request is longer; who sends more without an end of head is cut off.
const HEAD_MAX: usize = 8 << 10;

#[derive(Parser)]
#[command(about = "Serves one page of 1 KiB on this host, until killed")]
struct Args {
    port: u16,
    /// Stay on this CPU
    #[arg(long)]
    pin: Option<usize>,
}

/// A connection. What it holds while idle is no more than this.
struct Client {
    stream: TcpStream,
    /// Part of a request.
    unread: Vec<u8>,
    /// Part of an answer for which there was no room.
    unsent: Vec<u8>,
    closing: bool,
}

enum Fate {
    Stays,
    Ends,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    args.pin.map_or(Ok(()), cpu::pin).context("cannot stay on that CPU")?;
    raise_descriptor_limit()?;
    let listener = TcpListener::bind(loopback(args.port))
        .with_context(|| format!("cannot listen on port {}", args.port))?;
    listener.set_nonblocking(true)?;
    Server { listener, epoll: Epoll::new()?, clients: Vec::new(), free: Vec::new() }.run()
}

struct Server {
    listener: TcpListener,
    epoll: Epoll,
    clients: Vec<Option<Client>>,
    free: Vec<usize>,
}

impl Server {
    fn run(mut self) -> anyhow::Result<()> {
        self.epoll.add(&self.listener, LISTENER, ready::READ)?;
        let (mut events, mut scratch) = (Events::with_room(512), vec![0; 64 << 10]);
        let answers = [http::answer(false), http::answer(true)];
        loop {
            self.epoll.wait(&mut events, None)?;
            for (token, seen) in events.iter() {
                if token == LISTENER {
                    self.accept()?;
                } else {
                    self.serve(usize::try_from(token)?, seen, &mut scratch, &answers)?;
                }
            }
        }
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // It was gone before we came to it.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error).context("cannot accept"),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let seat = self.free.pop().unwrap_or(self.clients.len());
            self.epoll.add(&stream, seat as u64, ready::READ)?;
            let client = Client { stream, unread: Vec::new(), unsent: Vec::new(), closing: false };
            if seat == self.clients.len() {
                self.clients.push(Some(client));
            } else {
                self.clients[seat] = Some(client);
            }
        }
    }

    fn serve(
        &mut self,
        seat: usize,
        seen: u32,
        scratch: &mut [u8],
        answers: &[Vec<u8>; 2],
    ) -> anyhow::Result<()> {
        let Some(client) = self.clients[seat].as_mut() else { return Ok(()) };
        let was_full = !client.unsent.is_empty();
        let fate = if was_full && seen & ready::WRITE != 0 {
            client.flush()
        } else {
            client.read_and_answer(scratch, answers)
        };
        match fate {
            Fate::Ends => {
                self.clients[seat] = None;
                self.free.push(seat);
            }
            Fate::Stays if was_full == client.unsent.is_empty() => {
                // While an answer waits for room, no more requests are read.
                let want = if was_full { ready::READ } else { ready::WRITE };
                self.epoll.change(&client.stream, seat as u64, want)?;
            }
            Fate::Stays => {}
        }
        Ok(())
    }
}

impl Client {
    fn read_and_answer(&mut self, scratch: &mut [u8], answers: &[Vec<u8>; 2]) -> Fate {
        match self.stream.read(scratch) {
            Ok(0) => Fate::Ends,
            Ok(len) if self.unread.is_empty() => {
                let used = self.answer_all(&scratch[..len], answers);
                self.unread.extend_from_slice(&scratch[used..len]);
                self.after_answers()
            }
            Ok(len) => {
                let mut bytes = std::mem::take(&mut self.unread);
                bytes.extend_from_slice(&scratch[..len]);
                let used = self.answer_all(&bytes, answers);
                bytes.drain(..used);
                self.unread = bytes;
                self.after_answers()
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Fate::Stays,
            Err(_) => Fate::Ends,
        }
    }

    fn after_answers(&mut self) -> Fate {
        if self.unread.len() > HEAD_MAX { Fate::Ends } else { self.flush() }
    }

    /// Answers each whole request and returns how many bytes they were.
    fn answer_all(&mut self, bytes: &[u8], answers: &[Vec<u8>; 2]) -> usize {
        let mut used = 0;
        while let Some(len) = http::head_len(&bytes[used..])
            && !self.closing
        {
            self.closing = http::wants_close(&bytes[used..used + len]);
            self.send(&answers[usize::from(self.closing)]);
            used += len;
        }
        used
    }

    /// Sends now what there is room for; the common case copies nothing.
    fn send(&mut self, answer: &[u8]) {
        let sent = if self.unsent.is_empty() { self.stream.write(answer).unwrap_or(0) } else { 0 };
        self.unsent.extend_from_slice(&answer[sent..]);
    }

    fn flush(&mut self) -> Fate {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Fate::Stays,
                Err(_) => return Fate::Ends,
            }
        }
        if self.closing { Fate::Ends } else { Fate::Stays }
    }
}

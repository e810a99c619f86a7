//! The life of one connection by one thread, in parts, and a tracer that lets a process go so many instructions into one
//! of them: a kill or a stop comes at any place that there is, and the next run finds it again.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::calls;
use crate::load::{Request, Stream, ask, listener, needs_tcp};
use crate::show::errno_name;

/// Names the parts for a tracer when it is set: each begins with a stop.
const MARKS: &str = "E2E_MARKS";

/// What is moved at a time, bytes: a message, and what takes some lines of a ring.
const SIZES: [u64; 2] = [100, 6_000];

struct Parts {
    marked: bool,
}

impl Parts {
    fn new() -> Self {
        Self { marked: std::env::var_os(MARKS).is_some() }
    }

    /// The next part begins.
    fn mark(&self) {
        if self.marked {
            let _ = calls::kill(calls::getpid(), libc::SIGSTOP);
        }
    }
}

fn send_all(fd: i32, stream: &Stream, from: u64, len: u64) -> Result<(), String> {
    let mut at = from;
    while at < from + len {
        let most = usize::try_from(from + len - at).unwrap_or(0);
        at +=
            calls::send(fd, stream.part(at, most), libc::MSG_NOSIGNAL).map_err(errno_name)? as u64;
    }
    Ok(())
}

fn recv_all(fd: i32, stream: &Stream, from: u64, len: u64) -> Result<(), String> {
    let mut at = from;
    while at < from + len {
        let most = usize::try_from(from + len - at).unwrap_or(0);
        let got = calls::recv(fd, most, 0).map_err(errno_name)?;
        if got.is_empty() {
            return Err("end".to_owned());
        }
        if let Some(i) = stream.differs(at, &got) {
            return Err(format!("wrong byte at {}", at + i as u64));
        }
        at += got.len() as u64;
    }
    Ok(())
}

/// The peer's end, and then ours.
fn hear_the_end(parts: &Parts, fd: i32) -> Result<(), String> {
    parts.mark();
    let rest = calls::recv(fd, 1, 0).map_err(errno_name)?;
    parts.mark();
    calls::close(fd).map_err(errno_name)?;
    if rest.is_empty() { Ok(()) } else { Err("wrong: more than was sent".to_owned()) }
}

/// A client of an echo: how it went. `way`: by which it goes back to TCP in the middle of its life, of five; from 5 on it
/// leaves that to its peer.
#[must_use]
pub fn client(port: u16, way: u32) -> String {
    let stream = Arc::new(Stream::new(5));
    let parts = Parts::new();
    let run = || -> Result<(), String> {
        parts.mark();
        let mut fd = ask(port, Request { seed: 0, len: 0, style: 0 }).map_err(errno_name)?;
        let mut at = 0;
        for step in 0..4 {
            let len = SIZES[step % 2];
            parts.mark();
            send_all(fd, &stream, at, len)?;
            parts.mark();
            recv_all(fd, &stream, at, len)?;
            at += len;
            if step == 2 && way < 5 {
                parts.mark();
                fd = needs_tcp(fd, way).map_err(errno_name)?;
            }
        }
        parts.mark();
        calls::shutdown(fd, libc::SHUT_WR).map_err(errno_name)?;
        hear_the_end(&parts, fd)
    };
    run().err().unwrap_or_else(|| "done".to_owned())
}

/// A server for one such client: how it went. `way`: as [`client`]'s, where 5 to 9 are this end's.
///
/// # Panics
///
/// When it cannot listen.
#[must_use]
pub fn server(way: u32) -> String {
    let stream = Arc::new(Stream::new(5));
    let parts = Parts::new();
    let (listening, port) = listener();
    println!("port {port}");
    let run = || -> Result<(), String> {
        parts.mark();
        let mut fd = calls::accept(listening, 0).map_err(errno_name)?;
        parts.mark();
        let header = calls::recv(fd, 24, libc::MSG_WAITALL).map_err(errno_name)?;
        if header.len() < 24 {
            return Err("end".to_owned());
        }
        let mut at = 0;
        for step in 0..4 {
            let len = SIZES[step % 2];
            parts.mark();
            recv_all(fd, &stream, at, len)?;
            parts.mark();
            send_all(fd, &stream, at, len)?;
            at += len;
            if step == 2 && way >= 5 {
                parts.mark();
                fd = needs_tcp(fd, way).map_err(errno_name)?;
            }
        }
        hear_the_end(&parts, fd)
    };
    run().err().unwrap_or_else(|| "done".to_owned())
}

/// A process that this thread traces. It dies with it.
#[derive(Debug)]
pub struct Traced {
    child: Child,
    over: bool,
}

/// Where a traced process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At the beginning of a part.
    Mark,
    /// Somewhere in it.
    Between,
    /// At its end.
    Over,
}

impl Traced {
    /// Starts a guest, which stops at the beginning of its first part.
    ///
    /// # Panics
    ///
    /// When that cannot be.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        command.env(MARKS, "1").stdout(Stdio::piped());
        let child = calls::trace::spawn(command).expect("a traced guest");
        let mut traced = Self { child, over: false };
        // The stop of its own `exec`.
        let _ = traced.next(None);
        calls::trace::dies_with_us(traced.pid()).expect("an option of ptrace");
        traced
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// What it says.
    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits for the next stop; `None`: not within the limit.
    fn next(&mut self, limit: Option<Duration>) -> Option<At> {
        let begun = Instant::now();
        loop {
            let wait = limit.is_none();
            match calls::trace::wait_for(self.pid(), wait) {
                Ok(Some(status)) if libc::WIFSTOPPED(status) => {
                    return Some(match libc::WSTOPSIG(status) {
                        libc::SIGSTOP => At::Mark,
                        _ => At::Between,
                    });
                }
                Ok(None) => {
                    if limit.is_some_and(|limit| begun.elapsed() > limit) {
                        return None;
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
                Ok(Some(_)) | Err(_) => {
                    self.over = true;
                    return Some(At::Over);
                }
            }
        }
    }

    /// Lets it go until its next part begins, or its end. `None`: it does not get there within the limit.
    pub fn to_mark(&mut self, limit: Duration) -> Option<At> {
        loop {
            let _ = calls::trace::go_on(self.pid());
            match self.next(Some(limit)) {
                Some(At::Between) => {}
                other => return other,
            }
        }
    }

    /// Lets it make so many steps, of an instruction or a system call each; answers where it is, and after how many.
    pub fn steps(&mut self, count: u64) -> (At, u64) {
        for step in 0..count {
            let _ = calls::trace::step(self.pid());
            match self.next(None) {
                Some(At::Between) => {}
                Some(other) => return (other, step),
                None => {}
            }
        }
        (At::Between, count)
    }

    /// Kills it where it is.
    pub fn kill(&mut self) {
        if !self.over {
            let _ = calls::kill(self.pid(), libc::SIGKILL);
            while self.next(None) != Some(At::Over) {}
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.kill();
    }
}

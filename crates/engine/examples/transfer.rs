//! How fast `engine::serve::transfer` moves file data on this machine, by each method.
//!
//! ```sh
//! cargo run --release -p shunt-engine --example transfer -- [send|receive|residency] [FOLDER] [SECONDS]
//! ```
//!
//! `send`: clients ask for 1 MiB of a 256 MiB file, 8 requests outstanding, and drop the answers
//! (`trunc`) or copy them. `receive`: clients send 1 MiB payloads to be written over that file. One
//! thread for all connections or one for each. Speed is of all connections together, CPU that of the
//! serving threads. Other work on the machine makes every line worthless.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engine::serve::transfer::{DataFile, Method, Pools, Progress, ReceiveFile, SendFile};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, recv};
use rustix::time::{ClockId, clock_gettime};

const MIB: usize = 1 << 20;
const FILE: u64 = 256 << 20;
const REQUEST: usize = 117;
const HEAD: usize = 84;
const OUTSTANDING: usize = 8;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// CPU time of the calling thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// One connection as its server sees it.
struct Served {
    socket: TcpStream,
    offset: u64,
    requests: Vec<u8>,
    sending: Option<SendFile>,
    receiving: Option<ReceiveFile>,
    moved: u64,
    over: bool,
}

impl Served {
    /// Goes as far as it can; answers what to wait for.
    fn advance(
        &mut self,
        file: &Arc<DataFile>,
        pools: &Pools,
        method: Method,
        receive: bool,
    ) -> Result<PollFlags, Failure> {
        loop {
            let progress = match (&mut self.sending, &mut self.receiving) {
                (Some(transfer), _) => transfer.step(self.socket.as_fd(), pools)?,
                (_, Some(transfer)) => match transfer.step(self.socket.as_fd(), pools) {
                    Ok(progress) => progress,
                    Err(_) => {
                        self.over = true;
                        return Ok(PollFlags::empty());
                    }
                },
                _ => {
                    if !self.next(file, method, receive)? {
                        return Ok(PollFlags::IN);
                    }
                    continue;
                }
            };
            match progress {
                Progress::Done => {
                    self.moved += MIB as u64;
                    if let Some(transfer) = self.receiving.take() {
                        transfer.outcome()?;
                        if self.socket.write(&[0; HEAD]).is_err() {
                            self.over = true;
                            return Ok(PollFlags::empty());
                        }
                    }
                    self.sending = None;
                }
                Progress::SocketBlocked if receive => return Ok(PollFlags::IN),
                Progress::SocketBlocked => return Ok(PollFlags::OUT),
                Progress::WouldWait(job) => {
                    let done = job.run();
                    match (&mut self.sending, &mut self.receiving) {
                        (Some(transfer), _) => transfer.finished(done),
                        (_, Some(transfer)) => transfer.finished(done),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Begins what the next request asks for, if one is there.
    fn next(
        &mut self,
        file: &Arc<DataFile>,
        method: Method,
        receive: bool,
    ) -> Result<bool, Failure> {
        if self.requests.len() < REQUEST {
            let mut some = [0; REQUEST * OUTSTANDING];
            let want = if receive { REQUEST - self.requests.len() } else { some.len() };
            match self.socket.read(&mut some[..want]) {
                Ok(0) => {
                    self.over = true;
                    return Ok(false);
                }
                Ok(n) => self.requests.extend_from_slice(&some[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
                Err(_) => {
                    self.over = true;
                    return Ok(false);
                }
            }
            if self.requests.len() < REQUEST {
                return Ok(false);
            }
        }
        self.requests.drain(..REQUEST);
        let (file, at) = (Arc::clone(file), self.offset);
        self.offset = (self.offset + MIB as u64) % FILE;
        if receive {
            self.receiving = Some(ReceiveFile::new(&[], file, at, 1 << 20, method));
        } else {
            self.sending = Some(SendFile::new(vec![0; HEAD], file, at, 1 << 20, method));
        }
        Ok(true)
    }
}

/// Serves connections until all are over; answers bytes moved and CPU used.
fn serve(
    sockets: Vec<TcpStream>,
    file: &Arc<DataFile>,
    method: Method,
    receive: bool,
) -> Result<(u64, Duration), Failure> {
    let pools = Pools::new(16, 64 << 20);
    let mut all = Vec::new();
    for (number, socket) in sockets.into_iter().enumerate() {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let offset = number as u64 * (FILE / 8) % FILE;
        let (requests, moved) = (Vec::new(), 0);
        all.push(Served {
            socket,
            offset,
            requests,
            sending: None,
            receiving: None,
            moved,
            over: false,
        });
    }
    let begun = cpu();
    let mut waits = vec![PollFlags::IN; all.len()];
    while all.iter().any(|served| !served.over) {
        let mut ready = vec![false; all.len()];
        let mut polled: Vec<_> = all
            .iter()
            .zip(&waits)
            .filter(|(served, _)| !served.over)
            .map(|(served, wait)| PollFd::new(&served.socket, *wait))
            .collect();
        poll(&mut polled, None)?;
        let mut events =
            polled.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
        for (served, ready) in all.iter().zip(&mut ready) {
            *ready = !served.over && events.next().unwrap_or(false);
        }
        for ((served, wait), ready) in all.iter_mut().zip(&mut waits).zip(ready) {
            if ready {
                match served.advance(file, &pools, method, receive) {
                    Ok(next) => *wait = next,
                    // The client has had enough.
                    Err(_) => served.over = true,
                }
            }
        }
    }
    Ok((all.iter().map(|served| served.moved).sum(), cpu() - begun))
}

/// A client that reads until told to stop; answers bytes received.
fn reader(mut socket: TcpStream, copies: bool, stop: &AtomicBool) -> Result<u64, Failure> {
    socket.write_all(&[0; REQUEST * OUTSTANDING])?;
    let mut buffer = vec![0; MIB];
    let flags = if copies { RecvFlags::empty() } else { RecvFlags::TRUNC };
    let (mut answer, mut total) = (HEAD + MIB, 0);
    while !stop.load(Ordering::Relaxed) {
        let want = answer.min(buffer.len());
        let (_, n) = recv(&socket, &mut buffer[..want], flags)?;
        answer -= n;
        total += n as u64;
        if answer == 0 {
            answer = HEAD + MIB;
            socket.write_all(&[0; REQUEST])?;
        }
    }
    Ok(total)
}

/// A client that writes until told to stop; answers bytes sent.
fn writer(mut socket: TcpStream, stop: &AtomicBool) -> Result<u64, Failure> {
    let message = vec![7; REQUEST + MIB];
    let mut answers = socket.try_clone()?;
    let (mut unanswered, mut total) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        if unanswered == OUTSTANDING {
            answers.read_exact(&mut [0; HEAD])?;
            unanswered -= 1;
        }
        socket.write_all(&message)?;
        unanswered += 1;
        total += message.len() as u64;
    }
    Ok(total)
}

struct Row {
    method: Method,
    connections: usize,
    one_thread: bool,
    copies: bool,
    receive: bool,
}

fn run(row: &Row, file: &Arc<DataFile>, time: Duration) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut clients, mut sockets) = (Vec::new(), Vec::new());
    let mut theirs = Vec::new();
    for _ in 0..row.connections {
        theirs.push(TcpStream::connect(listener.local_addr()?)?);
        sockets.push(listener.accept()?.0);
    }
    let groups: Vec<Vec<TcpStream>> =
        if row.one_thread { vec![sockets] } else { sockets.into_iter().map(|s| vec![s]).collect() };
    let servers: Vec<_> = groups
        .into_iter()
        .map(|group| {
            let (file, method, receive) = (Arc::clone(file), row.method, row.receive);
            thread::spawn(move || serve(group, &file, method, receive))
        })
        .collect();
    let begun = Instant::now();
    for socket in theirs {
        let (stop, copies, receive) = (Arc::clone(&stop), row.copies, row.receive);
        clients.push(thread::spawn(move || {
            let begun = cpu();
            let total = if receive { writer(socket, &stop) } else { reader(socket, copies, &stop) };
            (total, cpu() - begun)
        }));
    }
    thread::sleep(time);
    stop.store(true, Ordering::Relaxed);
    let (mut bytes, mut client_cpu) = (0, Duration::ZERO);
    for client in clients {
        let (total, used) = client.join().map_err(|_| "a client panicked")?;
        bytes += total?;
        client_cpu += used;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let mut server_cpu = Duration::ZERO;
    for server in servers {
        server_cpu += server.join().map_err(|_| "a server panicked")??.1;
    }
    let gb = bytes as f64 / 1e9;
    println!(
        "{:7} {:?}\t{} connections\t{} threads\t{}\t{:6.0} MB/s\tserver {:.3} s/GB\tclient {:.3} s/GB",
        if row.receive { "receive" } else { "send" },
        row.method,
        row.connections,
        if row.one_thread { 1 } else { row.connections },
        if row.copies { "copy" } else { "trunc" },
        gb * 1000.0 / seconds,
        server_cpu.as_secs_f64() / gb,
        client_cpu.as_secs_f64() / gb,
    );
    Ok(())
}

fn residency(file: &DataFile) {
    const TIMES: u32 = 1000;
    let begun = Instant::now();
    let mut there = 0;
    for i in 0..u64::from(TIMES) {
        there += u32::from(file.resident(i % 200 * MIB as u64 + 5, MIB as u64));
    }
    let each = begun.elapsed() / TIMES;
    println!("residency of 1 MiB: {each:?}, {there} of {TIMES} resident");
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let what = args.first().map_or("send", String::as_str);
    let folder = args.get(1).map_or("/dev/shm", String::as_str);
    let time = Duration::from_secs_f64(args.get(2).map_or(Ok(2.0), |s| s.parse())?);
    let path = Path::new(folder).join(format!("shunt-transfer-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    for _ in 0..FILE / MIB as u64 {
        (&file).write_all(&vec![1; MIB])?;
    }
    let file = Arc::new(DataFile::new(file)?);
    if what == "residency" {
        residency(&file);
        return Ok(());
    }
    let receive = what == "receive";
    for copies in if receive { [true].as_slice() } else { &[false, true] } {
        for connections in [1, 2, 4] {
            for one_thread in [true, false] {
                if one_thread && connections == 1 {
                    continue;
                }
                for method in [Method::Copy, Method::Map, Method::Splice] {
                    let copies = *copies;
                    // Each begins with pages to map.
                    file.forget_map();
                    run(&Row { method, connections, one_thread, copies, receive }, &file, time)?;
                }
            }
        }
    }
    Ok(())
}

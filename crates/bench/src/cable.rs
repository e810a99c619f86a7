//! Bytes over a cable between two hosts (network namespaces with one address each): RDMA WRITEs by one queue
//! pair of our own RoCEv2, and beside them what the same sockets carry when nobody looks after what becomes
//! of a datagram.
//!
//! Each host is a thread on a CPU of its own. Both programs send datagrams of the same size, as many of them
//! with one system call, and figures are of payload that has arrived. What the sockets carry is measured as the engine
//! uses them, many datagrams of one size as one message (`UDP_SEGMENT`, `UDP_GRO`), or one by one (`--one-by-one`).

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use engine::remote::bare::{Bare, End};
use sys::udp::{BATCH, Options, Outgoing, Received, Socket};
use testkit::cpu;

/// Writes under way: the next ones lie ready when one is done.
const DEPTH: u64 = 4;
/// BTH and ICRC of a packet in the middle of a message.
const AROUND: usize = 16;
/// What the engine's sockets have.
const SOCKET_BYTES: u32 = 8 << 20;
/// Where the blast goes.
const PORT: u16 = 4790;
/// As the engine asks for.
const SEGMENTS: u8 = 64;
/// Before the measurement begins: windows are open and memory is there.
const BEFORE: Duration = Duration::from_millis(200);

#[derive(Args, Clone)]
pub(crate) struct Cable {
    /// Network namespaces of sender and receiver, by their names
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"])]
    hosts: Vec<String>,
    /// Their addresses
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"])]
    addresses: Vec<IpAddr>,
    /// The longest packet that the cable takes
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Bytes of a write
    #[arg(long, default_value_t = 1 << 20)]
    bytes: u32,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The blast alone: each datagram is a message of its own to the system, 64 with each call, without checksums
    #[arg(long)]
    one_by_one: bool,
}

/// One of the two, as its thread.
struct Place<'a> {
    host: &'a str,
    cpu: usize,
}

impl Cable {
    fn places(&self) -> [Place<'_>; 2] {
        [0, 1].map(|at| Place { host: &self.hosts[at], cpu: at })
    }

    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

impl Place<'_> {
    /// From now on this thread is there.
    fn enter(&self) -> anyhow::Result<()> {
        let file = File::open(Path::new("/run/netns").join(self.host));
        let file = file.with_context(|| format!("no network namespace {}", self.host))?;
        // SAFETY: the descriptor is open, and the call touches no memory.
        let done = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
        ensure!(done == 0, "{}: {}", self.host, std::io::Error::last_os_error());
        Ok(cpu::pin(self.cpu)?)
    }
}

/// Has both done at a time; what the sender and the receiver answer.
fn both<A: Send, B: Send>(
    cable: &Cable,
    sender: impl FnOnce(&Place<'_>) -> anyhow::Result<A> + Send,
    receiver: impl FnOnce(&Place<'_>) -> anyhow::Result<B> + Send,
) -> anyhow::Result<(A, B)> {
    let [from, to] = cable.places();
    thread::scope(|scope| {
        let there = scope.spawn(move || receiver(&to));
        let here = scope.spawn(move || sender(&from));
        let panicked = |_| anyhow::anyhow!("a thread panicked");
        let here = here.join().map_err(panicked)?;
        let there = there.join().map_err(panicked)?;
        match (here, there) {
            // One of them is why the other ended.
            (Err(here), Err(there)) => {
                Err(anyhow::anyhow!("sender: {here:#}; receiver: {there:#}"))
            }
            (here, there) => Ok((here?, there?)),
        }
    })
}

/// WRITEs, one queue pair.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn writes(cable: &Cable) -> anyhow::Result<()> {
    ensure!(!cable.one_by_one, "--one-by-one is for the blast alone");
    let (to_sender, at_sender) = mpsc::channel::<End>();
    let (to_receiver, at_receiver) = mpsc::channel::<End>();
    let over = AtomicBool::new(false);
    let open = |place: &Place<'_>, at: usize| {
        place.enter()?;
        Ok::<_, anyhow::Error>(Bare::open(cable.addresses[at], cable.mtu, cable.bytes, SEGMENTS)?)
    };
    let (over, open) = (&over, &open);
    let sender = move |place: &Place<'_>| {
        let sent = (|| {
            let mut bare = open(place, 0)?;
            to_receiver.send(bare.end())?;
            bare.connect(&at_sender.recv().context("there is no receiver")?)?;
            let mut posted = 0;
            let mut run = |bare: &mut Bare, time: Duration| {
                let (began, first) = (Instant::now(), bare.sent());
                while began.elapsed() < time {
                    while posted - bare.sent() < DEPTH && bare.write(cable.bytes) {
                        posted += 1;
                    }
                    bare.turn()?;
                }
                let rate = (bare.sent() - first) as f64 / began.elapsed().as_secs_f64();
                Ok::<_, anyhow::Error>(rate)
            };
            run(&mut bare, BEFORE)?;
            let (before, used) = (bare.packets(), cpu::of_this_thread());
            let rate = run(&mut bare, cable.duration())?;
            let used = cpu::of_this_thread().saturating_sub(used);
            let after = bare.packets();
            Ok((rate, bare.mtu(), (after.0 - before.0, after.1 - before.1), used))
        })();
        over.store(true, Ordering::Relaxed);
        sent
    };
    let receiver = move |place: &Place<'_>| {
        let mut bare = open(place, 1)?;
        to_sender.send(bare.end())?;
        bare.connect(&at_receiver.recv().context("there is no sender")?)?;
        while !over.load(Ordering::Relaxed) {
            bare.turn()?;
        }
        Ok(bare.came())
    };
    let ((rate, mtu, (packets, again), used), came) = both(cable, sender, receiver)?;
    ensure!(came > 0, "nothing has come");
    let gbits = rate * f64::from(cable.bytes) * 8.0 / 1e9;
    println!(
        "gbits={gbits:.3} payload={mtu} packets={packets} again={again} sender_cpu={:.3}",
        used.as_secs_f64() / cable.seconds
    );
    Ok(())
}

/// Datagrams of the same size, as fast as they go; those that come are counted.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn blast(cable: &Cable) -> anyhow::Result<()> {
    let over = AtomicBool::new(false);
    let segments = !cable.one_by_one;
    let options = Options { receive_bytes: SOCKET_BYTES, send_bytes: SOCKET_BYTES, segments };
    let payload = engine::remote::bare::payload_of(cable.mtu);
    let datagram = payload + AROUND;
    let sender = |place: &Place<'_>| {
        let sent = (|| {
            place.enter()?;
            let socket = Socket::bind((cable.addresses[0], PORT).into(), options)?;
            let to = SocketAddr::new(cable.addresses[1], PORT);
            let mut batch = Outgoing::new(1 << 20);
            let each = sys::udp::MESSAGE_MAX / datagram * datagram;
            let each = if segments { each.min(datagram * usize::from(SEGMENTS)) } else { datagram };
            let (began, time) = (Instant::now(), BEFORE + cable.duration());
            let mut sent = 0;
            while began.elapsed() < time {
                while !batch.is_full() {
                    batch.add(to, each, datagram);
                    sent += each / datagram;
                }
                while !batch.is_empty() {
                    match socket.send(&mut batch) {
                        Ok(_) => {}
                        Err(errno) if errno == libc::EAGAIN => thread::yield_now(),
                        // The receiver is not there yet.
                        Err(libc::ECONNREFUSED) => {}
                        Err(errno) => anyhow::bail!("cannot send: errno {errno}"),
                    }
                }
            }
            Ok(sent)
        })();
        over.store(true, Ordering::Relaxed);
        sent
    };
    let receiver = |place: &Place<'_>| {
        place.enter()?;
        let socket = Socket::bind((cable.addresses[1], PORT).into(), options)?;
        // As much as the device takes at once.
        let mut room = if segments {
            Received::new(1 << 16, 16.min(BATCH))
        } else {
            Received::new(datagram, BATCH)
        };
        let (mut began, mut bytes): (Option<Instant>, usize) = (None, 0);
        while !over.load(Ordering::Relaxed) {
            if socket.receive(&mut room).is_err() {
                thread::yield_now();
                continue;
            }
            let came: usize = room.iter().map(|(_, datagram)| datagram.len()).sum();
            match began {
                None => began = Some(Instant::now()),
                Some(at) if at.elapsed() < BEFORE => {}
                Some(_) => bytes += came,
            }
        }
        let time = began.context("nothing has come")?.elapsed().saturating_sub(BEFORE);
        Ok((bytes / datagram, time))
    };
    let (sent, (came, time)) = both(cable, sender, receiver)?;
    ensure!(came > 0, "nothing has come");
    let gbits = came as f64 * payload as f64 * 8.0 / 1e9 / time.as_secs_f64();
    println!("gbits={gbits:.3} payload={payload} sent={sent} came={came}");
    Ok(())
}

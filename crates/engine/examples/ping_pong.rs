//! How long the executor of `shunt serve` takes for an answer, and how many it gives in a second.
//!
//! `cargo run --release --example ping_pong -- [DRIVER [CONNECTIONS [SPIN_US [SECONDS [lent]]]]]`: an echo server on
//! one vector, clients of the standard library, one message of 64 bytes under way per connection.
//! With `lent` the server lends its buffers to the kernel ([`Socket::recv_owned`]).

use std::io::{IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use engine::serve::runtime::{self, Config, Driver, Listener, Runtime, Socket, VectorId};

const LEN: usize = 64;

async fn echo(socket: Socket, lent: bool) {
    let mut buf = vec![0; 4096];
    loop {
        let n;
        (buf, n) = if lent {
            socket.recv_owned(buf, 0..4096).await
        } else {
            let n = socket.recv(&mut buf).await;
            (buf, n)
        };
        let Ok(n) = n else { return };
        if n == 0 || socket.send_all(&mut [IoSlice::new(&buf[..n])], false).await.is_err() {
            return;
        }
    }
}

async fn serve(tell: mpsc::Sender<SocketAddr>, lent: bool) {
    let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), 1024).expect("a port");
    tell.send(listener.local_addr().expect("an address")).expect("who asked is there");
    loop {
        let Ok((socket, _)) = listener.accept().await else { return };
        runtime::run_now(Box::pin(echo(socket, lent)));
    }
}

/// Round trips of one connection, in nanoseconds.
fn ask(address: SocketAddr, until: Instant) -> Vec<u128> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_nodelay(true).expect("TCP");
    let (mut took, mut buf) = (Vec::with_capacity(1 << 20), [7; LEN]);
    loop {
        let before = Instant::now();
        if before >= until {
            return took;
        }
        stream.write_all(&buf).expect("to send");
        stream.read_exact(&mut buf).expect("an answer");
        took.push(before.elapsed().as_nanos());
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: u64| args.get(at).map_or(or, |a| a.parse().expect("a number"));
    let driver = match args.first().map_or("auto", String::as_str) {
        "epoll" => Driver::Epoll,
        "uring" => Driver::Uring,
        _ => Driver::Auto,
    };
    let (connections, spin_us, seconds) = (number(1, 1), number(2, 0), number(3, 3));
    let lent = args.get(4).is_some_and(|word| word == "lent");
    let spin = Duration::from_micros(spin_us);
    let config = Config { vectors: 1, driver, spin, ..Config::default() };
    let (tell, told) = mpsc::channel();
    let runtime = Runtime::start(&config, move |_| serve(tell.clone(), lent)).expect("a runtime");
    let address = told.recv().expect("an address");
    let until = Instant::now() + Duration::from_secs(seconds);
    let clients: Vec<_> =
        (0..connections).map(|_| std::thread::spawn(move || ask(address, until))).collect();
    let mut took: Vec<u128> =
        clients.into_iter().flat_map(|c| c.join().expect("no panic")).collect();
    took.sort_unstable();
    let counters = runtime.counters(VectorId(0));
    let at = |part: usize| took[(took.len() - 1) * part / 1000] / 100;
    println!(
        "{:?}: {connections} connections, spin {spin_us} us: {} a second; us: {} p50, {} p99, {} p99.9",
        runtime.driver(),
        took.len() as u64 / seconds,
        at(500) as f64 / 10.0,
        at(990) as f64 / 10.0,
        at(999) as f64 / 10.0,
    );
    println!("{counters:?}");
}

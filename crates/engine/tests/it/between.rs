//! Two engines, and between them somebody who changes, loses, repeats and holds back what they say to each other: each is
//! a hostile peer to the other, which has come as far as it likes.
//!
//! Whatever comes: nobody panics or hangs, when the connections are over nothing of them is left, and hosts that nobody
//! stands between find each other as before.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use engine::remote::config::Config;
use engine::remote::guest::{self, Program, Role};
use engine::remote::{Engine, Newcomer};
use roce::wire::UDP_PORT;
use roce::{Addresses, Flow, icrc};
use testkit::input::Input;

#[expect(dead_code, reason = "the rest is for other tests")]
#[path = "../../src/remote/fake.rs"]
mod fake;

use fake::{Awake, Guest};

/// One network for each place of this process.
static NETWORK: AtomicU8 = AtomicU8::new(1);
/// Connections that one input makes at most.
const CONNS: usize = 3;
/// Messages of each way that may be said again.
const KEPT: usize = 16;
/// How long the two talk before they are told to end, and are held up while they do: at least, and at most.
const TALK: [Duration; 2] = [Duration::from_millis(60), Duration::from_secs(2)];
/// The same in times of what two take that nobody stands between: a busy machine is slow to both.
const TALK_TIMES: u32 = 16;
/// Engines say anew what they have at least as often.
const TOLD: Duration = Duration::from_millis(150);
/// All must be over by then: longer than any limit of theirs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a packet before what it carries, and the CRC behind that.
const BTH: usize = 12;
const ICRC: usize = 4;
/// What programs send.
const SIZES: [usize; 6] = [0, 1, 300, 5000, 20_000, 70_000];

/// What was met, so that a test sees that its inputs lead there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Met {
    /// Messages that were changed, over TCP and over RoCEv2.
    pub(crate) clc: usize,
    pub(crate) packets: usize,
}

/// A client's and a server's engine, and the addresses by which each knows the other.
pub(crate) struct Place {
    engines: [Engine; 2],
    /// Of the client and of the server.
    hosts: [IpAddr; 2],
    /// What each believes the other's to be.
    masks: [IpAddr; 2],
    /// There packets for the other come.
    sockets: [UdpSocket; 2],
    /// How long the next two talk.
    talk: Mutex<Duration>,
}

/// Who has sent a message: the client, 0, or the server.
type Side = usize;

/// What decides about messages, one after the other.
struct Script<'a> {
    input: Input<'a>,
    /// So many pass first.
    skip: u8,
    met: Met,
    /// What came before, by the way it went and whether it is a packet.
    kept: [[VecDeque<Vec<u8>>; 2]; 2],
    held: [[Option<Vec<u8>>; 2]; 2],
}

impl<'a> Script<'a> {
    fn new(input: Input<'a>) -> Self {
        let (kept, held) = <_>::default();
        Self { input, skip: 0, met: Met::default(), kept, held }
    }

    /// What is said in place of a message.
    fn change(&mut self, from: Side, is_packet: bool, message: Vec<u8>) -> Vec<Vec<u8>> {
        let way = usize::from(is_packet);
        let kept = &mut self.kept[from][way];
        kept.push_back(message.clone());
        if kept.len() > KEPT {
            kept.pop_front();
        }
        let mut said = self.act(from, way, message);
        // What was held back comes behind the next one.
        let is_held = self.held[from][way].is_some() && said.is_empty();
        if !is_held && let Some(held) = self.held[from][way].take() {
            said.push(held);
        }
        said
    }

    fn act(&mut self, from: Side, way: usize, mut message: Vec<u8>) -> Vec<Vec<u8>> {
        if let Some(less) = self.skip.checked_sub(1) {
            self.skip = less;
            return vec![message];
        }
        // There are few messages by TCP, and without those no packets.
        if self.input.is_empty() || way == 0 && self.input.below(4) != 0 {
            return vec![message];
        }
        self.skip = self.input.byte() % 8;
        *if way == 1 { &mut self.met.packets } else { &mut self.met.clc } += 1;
        match self.input.below(12) {
            0 => Vec::new(),
            1 => vec![message.clone(), message],
            2 if self.held[from][way].is_none() => {
                self.held[from][way] = Some(message);
                Vec::new()
            }
            3 => {
                let len = message.len() * self.input.below(256) / 256;
                message.truncate(len);
                vec![message]
            }
            4 => {
                let kept = &self.kept[from][way];
                let mut again = kept[self.input.below(kept.len().max(1))].clone();
                self.spoil(&mut again, way);
                vec![message, again]
            }
            5 => {
                let more = self.input.below(64);
                message.extend(self.input.bytes(more));
                vec![message]
            }
            n => {
                (5..n).for_each(|_| self.spoil(&mut message, way));
                vec![message]
            }
        }
    }

    /// Another byte in its place: of what a packet carries, mostly.
    fn spoil(&mut self, message: &mut [u8], way: usize) {
        let (at, with) = (self.input.below(256), self.input.byte());
        let skip = if way == 1 && with & 3 != 0 { BTH } else { 0 };
        let len = message.len().saturating_sub(skip);
        let at = if len > 256 && with & 4 != 0 { len * at / 256 } else { at };
        if let Some(byte) = message.get_mut(skip + at.checked_rem(len).unwrap_or(0)) {
            // Numbers that are one off, bits, and anything.
            *byte = match with % 5 {
                0 => byte.wrapping_add(1),
                1 => byte.wrapping_sub(1),
                2 => *byte ^ 1 << (with >> 5),
                3 => 0xff,
                _ => with,
            };
        }
    }
}

/// One connection, with a TCP connection to either host.
struct Between {
    tcp: [TcpStream; 2],
    /// Who has ended his side.
    ended: [bool; 2],
    guests: [Guest; 2],
}

impl Place {
    /// `None`: RoCEv2 cannot be spoken here; why was said.
    pub(crate) fn new() -> Option<Self> {
        let net = NETWORK.fetch_add(1, Ordering::Relaxed);
        // Other processes have places as well.
        let process = std::process::id().to_le_bytes()[0] | 1;
        let address = |host: u8| IpAddr::from([127, process, net, host]);
        let start = |_| {
            let mut config = Config::default();
            for (name, value) in
                [("eid", "SHUNT.TEST"), ("vectors", "1"), ("receive_buffer", "16384")]
            {
                config.set(name, value).expect("a setting");
            }
            Engine::start(config, |_| Box::new(Awake), |_| (), |_| true).expect("an engine")
        };
        let socket = |host| {
            let socket = UdpSocket::bind((address(host), UDP_PORT))?;
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(socket)
        };
        match (socket(3), socket(4)) {
            (Ok(for_server), Ok(for_client)) => Some(Self {
                engines: [1, 2].map(start),
                hosts: [1, 2].map(address),
                masks: [4, 3].map(address),
                sockets: [for_server, for_client],
                talk: Mutex::new(TALK[0]),
            }),
            (Err(e), _) | (_, Err(e)) => {
                println!("skipped: no RoCEv2 from addresses of this host: {e}");
                None
            }
        }
    }

    /// A connection whose ends are told that they talk to these.
    fn open(&self, peers: [IpAddr; 2]) -> ([TcpStream; 2], [Guest; 2]) {
        let give = |host: usize| {
            let engine = &self.engines[host];
            let rmb = usize::try_from(engine.config().receive_buffer.bytes()).expect("small");
            let (relay, guest) = fake::guest(rmb);
            let (tcp, ours) = tcp();
            let role = [Role::Client, Role::Server][host];
            let ends = (self.hosts[host], peers[host]);
            let (relay, tcp, berth) = (Box::new(relay), tcp.into(), engine.berth(ends.1));
            engine.adopt(Newcomer { relay, tcp, role, ends, to: None, asks: None, berth });
            ours.set_nonblocking(true).expect("a socket");
            (ours, guest)
        };
        let [(a, ours), (b, theirs)] = [0, 1].map(give);
        ([a, b], [ours, theirs])
    }

    /// Passes on what has come by RoCEv2. Whether there was anything.
    fn packets(&self, script: &mut Script<'_>) -> bool {
        let mut any = false;
        let mut packet = [0; 4608];
        for (from, socket) in self.sockets.iter().enumerate() {
            let (to, mask) = (1 - from, self.masks[from]);
            while let Ok((n, sender)) = socket.recv_from(&mut packet) {
                any = true;
                if sender.ip() != self.hosts[from] || n < BTH + ICRC {
                    continue;
                }
                let mut bytes = packet[..n - ICRC].to_vec();
                disguise(&mut bytes, self.hosts[from], mask);
                for mut said in script.change(from, true, bytes) {
                    // The CRC is right whatever it says: a hostile host can do that.
                    let addresses = Addresses::new(mask, self.hosts[to]).expect("one family");
                    let len = said.len();
                    said.resize(len + ICRC, 0);
                    let flow = Flow { addresses, src_port: UDP_PORT };
                    let _ = icrc::seal(&flow, 0, &mut said, len);
                    let _ = self.sockets[to].send_to(&said, (self.hosts[to], UDP_PORT));
                }
            }
        }
        any
    }

    /// Passes on what has come by TCP.
    fn bytes(&self, conn: &mut Between, script: &mut Script<'_>) -> bool {
        let mut any = false;
        for from in 0..2 {
            let mut bytes = [0; 4096];
            let n = match (conn.ended[from], conn.tcp[from].read(&mut bytes)) {
                (true, _) => continue,
                (false, Ok(n)) => n,
                (false, Err(e)) if e.kind() == ErrorKind::WouldBlock => continue,
                (false, Err(_)) => 0,
            };
            any = true;
            let mut to = &conn.tcp[1 - from];
            if n == 0 {
                conn.ended[from] = true;
                let _ = to.shutdown(std::net::Shutdown::Write);
                continue;
            }
            let mut bytes = bytes[..n].to_vec();
            disguise(&mut bytes, self.hosts[from], self.masks[from]);
            for said in script.change(from, false, bytes) {
                // Few bytes, into a socket that nobody has filled; what does not go is lost, which he may do as well.
                let _ = to.write(&said);
            }
        }
        any
    }

    /// Stands between for so long, or until `done`.
    fn stand(
        &self,
        conns: &mut [Between],
        script: &mut Script<'_>,
        limit: Duration,
        mut done: impl FnMut(&mut [Between]) -> bool,
    ) -> bool {
        let began = Instant::now();
        while began.elapsed() < limit {
            let mut any = self.packets(script);
            for conn in &mut *conns {
                any |= self.bytes(conn, script);
                for guest in &conn.guests {
                    let _ = guest.receive(4096);
                }
            }
            if done(conns) {
                return true;
            }
            if !any {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        false
    }

    /// Waits until the engines say that nothing is left, in figures that are of now.
    fn settle(&self, script: &mut Script<'_>) {
        self.stand(&mut [], script, TOLD, |_| false);
        let is_nothing = self.stand(&mut [], script, PATIENCE, |_| self.left() == 0);
        assert!(is_nothing, "{:#?}", self.engines.iter().map(Engine::stat).collect::<Vec<_>>());
    }

    /// Connections and handshakes that there are.
    fn left(&self) -> u64 {
        let of = |engine: &Engine| {
            let vectors = engine.stat().vectors;
            vectors.iter().map(|v| v.connections + v.handshakes).sum::<u64>()
        };
        self.engines.iter().map(of).sum()
    }

    /// Ends that ever went by SMC.
    #[cfg(test)]
    fn attached(&self) -> u64 {
        let of = |engine: &Engine| {
            engine.stat().vectors.iter().map(|v| v.connections_total).sum::<u64>()
        };
        self.engines.iter().map(of).sum()
    }

    /// Hosts that nobody stands between still find each other.
    fn check(&self) {
        let (tcp, [client, server]) = self.open([self.hosts[1], self.hosts[0]]);
        let mut script = Script::new(Input::new(&[]));
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        client.send(b"asked");
        server.send(b"answered");
        let began = Instant::now();
        while (to_server.len(), to_client.len()) != (5, 8) {
            let late = began.elapsed() > PATIENCE;
            assert!(!late, "{to_server:?} {to_client:?} {:#?}", self.engines[1].stat());
            for (mut from, mut to) in [(&tcp[0], &tcp[1]), (&tcp[1], &tcp[0])] {
                let mut bytes = [0; 4096];
                if let Ok(n @ 1..) = from.read(&mut bytes) {
                    to.write_all(&bytes[..n]).expect("few bytes");
                }
            }
            self.packets(&mut script);
            to_server.extend(server.receive(64));
            to_client.extend(client.receive(64));
            std::thread::sleep(Duration::from_micros(50));
        }
        assert_eq!((&to_server[..], &to_client[..]), (&b"asked"[..], &b"answered"[..]));
        let [least, most] = TALK;
        *self.talk.lock().expect("nobody panics") =
            (began.elapsed() * TALK_TIMES).clamp(least, most);
        [client, server].iter().for_each(|guest| guest.ends(Program::Closed));
    }
}

/// Both ends of a TCP connection.
fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
    (near, listener.accept().expect("that one").0)
}

/// Whoever names himself is the one in between, to the other.
fn disguise(bytes: &mut [u8], host: IpAddr, mask: IpAddr) {
    let (IpAddr::V4(host), IpAddr::V4(mask)) = (host, mask) else { return };
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(4).position(|four| four == host.octets()) {
        at += found + 4;
        bytes[at - 4..at].copy_from_slice(&mask.octets());
    }
}

/// Has the two talk as the bytes say.
pub(crate) fn run(place: &Place, bytes: &[u8]) -> Met {
    let mut input = Input::new(bytes);
    let count = 1 + input.below(CONNS);
    let peers = [place.masks[1], place.masks[0]];
    let wishes: Vec<_> = (0..count)
        .map(|_| {
            let sizes = [input.choice(&SIZES), input.choice(&SIZES)];
            let ends = [Program::Closed, Program::Shut, Program::Reset, Program::Open];
            (sizes, [input.choice(&ends), input.choice(&ends)])
        })
        .collect();
    // Where nothing is changed nothing has to be given up.
    let talk = if input.is_empty() { PATIENCE } else { *place.talk.lock().expect("nobody panics") };
    let mut script = Script::new(input);
    let mut conns = Vec::new();
    for (sizes, _) in &wishes {
        let (tcp, guests) = place.open(peers);
        guests.iter().zip(sizes).for_each(|(guest, n)| guest.send(&vec![7; *n]));
        conns.push(Between { tcp, ended: [false; 2], guests });
    }
    let is_sent = |conns: &mut [Between]| {
        conns.iter().flat_map(|conn| &conn.guests).all(|guest| guest.unreleased() == 0)
    };
    place.stand(&mut conns, &mut script, talk, is_sent);
    for (conn, (_, ends)) in conns.iter().zip(&wishes) {
        conn.guests.iter().zip(ends).for_each(|(guest, end)| guest.ends(*end));
    }
    let is_over = |conns: &mut [Between]| {
        conns.iter().flat_map(|conn| &conn.guests).all(|guest| guest.closed().is_some())
    };
    place.stand(&mut conns, &mut script, talk, is_over);
    // Now everybody goes, and TCP ends: nothing more may be waited for than what an engine waits for.
    for conn in &conns {
        conn.guests.iter().for_each(|guest| guest.ends(Program::Reset));
        conn.tcp.iter().for_each(|tcp| drop(tcp.shutdown(std::net::Shutdown::Both)));
    }
    let over = place.stand(&mut conns, &mut script, PATIENCE, is_over);
    assert!(over, "{:#?}", place.engines.iter().map(Engine::stat).collect::<Vec<_>>());
    place.settle(&mut script);
    place.check();
    place.settle(&mut script);
    script.met
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After which no more inputs are tried.
    const LONG: Duration = Duration::from_secs(100);

    /// Bytes that look random and are the same each time.
    fn scramble(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[5]
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn who_stands_between_two_hosts_harms_their_connections_only() {
        let Some(place) = Place::new() else { return };
        let untouched = run(&place, &[2, 3, 3, 0, 0, 3, 3, 0, 0, 3, 3, 0, 0]);
        assert_eq!((untouched.clc, untouched.packets), (0, 0));
        let all = |_: &mut [Between]| place.attached() >= 6;
        let mut none = Script::new(Input::new(&[]));
        assert!(place.stand(&mut [], &mut none, PATIENCE, all), "{}", place.attached());
        let (mut clc, mut packets, mut attached) = (0, 0, 0);
        let began = Instant::now();
        // Twelve, or more on a busy machine, until what is to be met was met.
        for seed in 0.. {
            let met = run(&place, &scramble(seed, 400));
            clc += met.clc;
            packets += met.packets;
            // All but those of before, and of each check: figures come late, and do not say of which input they are.
            attached = place.attached().saturating_sub(6 + 2 * (seed + 2));
            let is_met = clc > 2 && packets > 5 && attached > 5;
            if seed >= 11 && (is_met || began.elapsed() > LONG) {
                break;
            }
        }
        println!("{clc} CLC messages and {packets} packets were changed, {attached} ends attached");
        assert!(clc > 2 && packets > 5 && attached > 5, "{clc} {packets} {attached}");
    }
}

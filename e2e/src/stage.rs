//! What a case of the oracle stands on: our process, a peer process that takes orders, and
//! connections between them that have been in use for a while.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::board::Board;
use crate::calls;
use crate::peer;
use crate::show::Show;

/// Which end of the connections we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We connect.
    Client,
    /// We accept.
    Server,
}

/// A connection: our descriptor, and the peer's number for its end.
#[derive(Clone, Copy, Debug)]
pub struct Conn {
    /// Ours.
    pub a: i32,
    /// The peer's, for orders.
    pub b: i32,
}

/// How long to let things settle that give no sign, such as an event that must not come.
pub const SETTLE: Duration = Duration::from_millis(30);

/// How long both ends may take to share memory: for want of that a case would compare TCP with TCP.
const ATTACHED: Duration = Duration::from_secs(15);

/// The stage.
#[derive(Debug)]
pub struct Stage {
    role: Role,
    peer: Child,
    orders: UnixStream,
    answers: BufReader<UnixStream>,
    last_order: String,
    /// The board that both ends must attach on before a case begins.
    board_dir: Option<PathBuf>,
}

/// Writes a line of results: a label and values.
#[macro_export]
macro_rules! say {
    ($label:expr $(, $value:expr)* $(,)?) => {
        $crate::stage::line($label, &[$($crate::show::Show::show(&$value)),*])
    };
}

/// Writes a line of results.
pub fn line(label: &str, values: &[String]) {
    println!("{label}: {}", values.join(" "));
}

/// Runs `f`: its result, and whether it took at least 40 ms. (What must wait waits 80 at least.)
pub fn timed<T>(f: impl FnOnce() -> T) -> (T, &'static str) {
    let start = Instant::now();
    let value = f();
    let waited = start.elapsed() >= Duration::from_millis(40);
    (value, if waited { "waited" } else { "at once" })
}

/// Lays a cable between our network and that of process `peer`, whose address is `there`.
fn lay_cable(peer: u32, there: &str) {
    const CABLE: &str = "ip link set lo up && ip link add v0 type veth peer name v1 netns $0 && \
        ip addr add $1/24 dev v0 && ip link set v0 up && nsenter -t $0 -n sh -c \
        \"ip link set lo up && ip addr add $2/24 dev v1 && ip link set v1 up\"";
    let here = std::env::var("E2E_HOST").expect("E2E_HOST is an address");
    let words = ["-c", CABLE, &peer.to_string(), &here, there];
    let done = Command::new("sh").args(words).env_remove("LD_PRELOAD").status();
    assert!(done.is_ok_and(|done| done.success()), "no cable to the peer's network");
}

impl Stage {
    /// Starts the peer, with the preload library that `E2E_PEER_PRELOAD` names or without one.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn new(role: Role) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let mut command = Command::new(std::env::current_exe().expect("our own path"));
        command.arg("--peer").stdin(Stdio::from(OwnedFd::from(theirs)));
        match std::env::var_os("E2E_PEER_PRELOAD").filter(|v| !v.is_empty()) {
            Some(library) => command.env("LD_PRELOAD", library),
            None => command.env_remove("LD_PRELOAD"),
        };
        let apart = std::env::var("E2E_THERE").ok();
        if let Some(there) = &apart {
            let here = std::env::var("E2E_HOST").expect("E2E_HOST is an address");
            command.env("E2E_HOST", there).env("E2E_THERE", here);
            // Whoever started us has put us into a network of our own; this is the peer's.
            calls::network::of_its_own(&mut command);
        }
        let peer = command.spawn().expect("the peer starts");
        drop(command);
        if let Some(there) = apart {
            lay_cable(peer.id(), &there);
        }
        ours.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let answers = BufReader::new(ours.try_clone().expect("a second descriptor"));
        let board_dir = std::env::var_os("E2E_ATTACH_BOARD").map(PathBuf::from);
        Self { role, peer, orders: ours, answers, last_order: String::new(), board_dir }
    }

    /// Which end we are.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Process id of the peer.
    #[must_use]
    pub fn peer_pid(&self) -> i32 {
        self.peer.id().cast_signed()
    }

    /// Has the peer perform an order: its answer.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub fn b(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    /// Has the peer perform an order; [`Self::answer`] must follow.
    ///
    /// # Panics
    ///
    /// When the peer has gone.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the peer listens");
        order.clone_into(&mut self.last_order);
    }

    /// What came of the last order.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub fn answer(&mut self) -> String {
        let mut answer = String::new();
        match self.answers.read_line(&mut answer) {
            Ok(n) if n > 0 => answer.trim_end().to_owned(),
            Ok(_) => panic!("the peer has gone, asked: {}", self.last_order),
            Err(e) => panic!("the peer does not answer ({e}), asked: {}", self.last_order),
        }
    }

    fn b_fd(&mut self, order: &str) -> i32 {
        let answer = self.b(order);
        answer.parse().unwrap_or_else(|_| panic!("{order}: {answer}"))
    }

    /// Has the peer perform an order after a while, without waiting for it.
    pub fn b_later(&mut self, ms: u64, order: &str) {
        let _ = self.b(&format!("later {ms} {order}"));
    }

    /// The peer sends a text.
    pub fn b_send(&mut self, c: Conn, text: &str) -> String {
        self.b(&format!("send {} 0 {text}", c.b))
    }

    /// The peer receives once, waiting for something.
    pub fn b_recv(&mut self, c: Conn, len: usize) -> String {
        self.b(&format!("recv {} {len} 0", c.b))
    }

    /// The peer closes.
    pub fn b_close(&mut self, c: Conn) -> String {
        self.b(&format!("close {}", c.b))
    }

    /// The peer closes with zero linger: a reset.
    pub fn b_reset(&mut self, c: Conn) -> String {
        self.b(&format!("reset {}", c.b))
    }

    /// The peer shuts down.
    pub fn b_shutdown(&mut self, c: Conn, how: i32) -> String {
        self.b(&format!("shutdown {} {how}", c.b))
    }

    /// What the peer's `poll` says.
    pub fn b_mask(&mut self, c: Conn) -> String {
        self.b(&format!("mask {}", c.b))
    }

    /// What our `poll` says.
    #[must_use]
    pub fn mask(&self, fd: i32) -> String {
        peer::settled_mask(fd)
    }

    /// A listener of our own and its port.
    ///
    /// # Panics
    ///
    /// When the kernel refuses.
    #[must_use]
    pub fn listener(&self, backlog: i32) -> (i32, u16) {
        let fd = calls::prompt_socket(0).expect("a socket");
        calls::bind(fd, 0).expect("a port");
        calls::listen(fd, backlog).expect("a listener");
        (fd, calls::local_port(fd).expect("its port"))
    }

    /// A fresh connection with blocking ends, nothing moved yet.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub fn fresh_pair(&mut self) -> Conn {
        match self.role {
            Role::Client => {
                let answer = self.b("listen");
                let (listener, port) = answer.split_once(' ').expect("a listener");
                let a = calls::prompt_socket(0).expect("a socket");
                calls::connect(a, port.parse().expect("a port")).expect("a connection");
                let b = self.b_fd(&format!("accept {listener}"));
                let _ = self.b(&format!("close {listener}"));
                Conn { a, b }
            }
            Role::Server => {
                let (listener, port) = self.listener(16);
                let b = self.b_fd(&format!("connect {port}"));
                let a = calls::accept(listener, 0).expect("a connection");
                calls::close(listener).expect("the listener closes");
                Conn { a, b }
            }
        }
    }

    /// A connection in use, with blocking ends: requests and answers have gone both ways, and if
    /// both ends run under Shunt, both directions are in shared memory.
    ///
    /// # Panics
    ///
    /// When it cannot be made, or does not get attached.
    pub fn pair(&mut self) -> Conn {
        let before = self.attached_by_both();
        let c = self.fresh_pair();
        self.until_attached(c, before);
        c
    }

    /// How many connections each end has attached: ours, the peer's.
    #[must_use]
    pub fn attached_by_both(&self) -> [u64; 2] {
        [calls::getpid(), self.peer_pid()].map(|pid| self.attached_by(pid))
    }

    /// Has requests and answers go both ways on a fresh connection until it is attached, if both ends run
    /// under Shunt. `before`: [`Self::attached_by_both`] before it was made.
    ///
    /// # Panics
    ///
    /// When it does not get attached.
    pub fn until_attached(&mut self, c: Conn, before: [u64; 2]) {
        let start = Instant::now();
        let mut round = 0;
        loop {
            self.exchange(c, round);
            round += 1;
            let now = self.attached_by_both();
            let attached = now.iter().zip(before).all(|(now, before)| *now > before);
            if round >= 4 && (attached || self.board_dir.is_none()) {
                break;
            }
            if start.elapsed() > ATTACHED {
                self.complain(round);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // The end that noticed last has switched its own direction: let the other one see that.
        for extra in 0..2 {
            self.exchange(c, round + extra);
        }
    }

    /// A connection that has carried so many requests, whatever carries it.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub fn warm_pair(&mut self, requests: u64) -> Conn {
        let c = self.fresh_pair();
        for round in 0..requests {
            self.exchange(c, round);
        }
        c
    }

    /// A connection that nothing has moved on and that both ends wait for in event sets, the client
    /// first: if both run under Shunt, it is attached. For that each end is kept on a CPU of its own. Ours
    /// is asked for `events`, with data 1.
    ///
    /// # Panics
    ///
    /// When it cannot be made, or is not attached.
    pub fn met_pair(&mut self, events: i32) -> (Conn, i32) {
        // The client counts it only when it looks again.
        let server = if self.role == Role::Server { calls::getpid() } else { self.peer_pid() };
        let before = self.attached_by(server);
        let apart = self.apart();
        let c = self.fresh_pair();
        let ep = calls::epoll_create().expect("a set");
        let theirs = format!("watch {} {events}", c.b);
        if self.role == Role::Server {
            self.b(&theirs);
        }
        calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, events, 1).expect("added");
        if self.role == Role::Client {
            self.b(&theirs);
        }
        if apart && self.board_dir.is_some() && self.attached_by(server) == before {
            self.complain(0);
        }
        (c, ep)
    }

    /// Keeps the two ends on CPUs of their own. `false`: there is only one.
    fn apart(&mut self) -> bool {
        let cpus = calls::cpus::allowed();
        let (Some(ours), Some(theirs)) = (cpus.first(), cpus.get(1)) else {
            crate::run::skipped("on one CPU nobody meets early: only the results were compared");
            return false;
        };
        calls::cpus::pin(*ours).expect("our CPU");
        assert_eq!(self.b(&format!("pin {theirs}")), "0");
        true
    }

    /// Changes which end we are from now on.
    pub const fn set_role(&mut self, role: Role) {
        self.role = role;
    }

    /// [`Self::pair`], our end not blocking.
    ///
    /// # Panics
    ///
    /// As there.
    pub fn pair_nb(&mut self) -> Conn {
        let c = self.pair();
        calls::set_nonblocking(c.a, true).expect("a flag");
        c
    }

    /// One request of 100 bytes from the client, one answer.
    fn exchange(&mut self, c: Conn, round: u64) {
        let (there, back) = (round * 2, round * 2 + 1);
        match self.role {
            Role::Client => {
                assert_eq!(peer::send_stream(c.a, 100, there), "100", "request {round}");
                assert_eq!(self.b(&format!("recvn {} 100 {there}", c.b)), "same");
                assert_eq!(self.b(&format!("sendn {} 100 {back}", c.b)), "100");
                assert_eq!(peer::receive_stream(c.a, 100, back), "same", "answer {round}");
            }
            Role::Server => {
                assert_eq!(self.b(&format!("sendn {} 100 {there}", c.b)), "100");
                assert_eq!(peer::receive_stream(c.a, 100, there), "same", "request {round}");
                assert_eq!(peer::send_stream(c.a, 100, back), "100", "answer {round}");
                assert_eq!(self.b(&format!("recvn {} 100 {back}", c.b)), "same");
            }
        }
    }

    fn attached_by(&self, pid: i32) -> u64 {
        let Some(dir) = &self.board_dir else { return 0 };
        Board::find(dir, false).ok().flatten().map_or(0, |board| board.attached_by(pid))
    }

    fn complain(&self, rounds: u64) -> ! {
        let dir = self.board_dir.clone().unwrap_or_default();
        let board = match Board::find(&dir, false) {
            Ok(Some(board)) => board.summary(),
            Ok(None) => format!("there is no board in {}", dir.display()),
            Err(e) => format!("the board does not open: {e}"),
        };
        panic!(
            "NOT ATTACHED after {rounds} requests and {ATTACHED:?} (we are {}, the peer is {}):\n{board}",
            calls::getpid(),
            self.peer_pid()
        );
    }

    /// A number from an answer of the peer.
    ///
    /// # Panics
    ///
    /// When it was not a number.
    #[must_use]
    pub fn number(answer: &str) -> i32 {
        answer.parse().unwrap_or_else(|_| panic!("a number, not {answer}"))
    }

    /// Fills our direction until it takes no more: whether anything was taken.
    #[must_use]
    pub fn fill(fd: i32) -> String {
        let block = vec![b'.'; 64 << 10];
        let (mut total, mut quiet) = (0, 0);
        // A size that was asked for does not grow: growth would make room again at any moment.
        let _ = calls::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 200_000);
        // Acknowledgements make room a while later, for single bytes first; the last ones come when a
        // timer of 200 ms has run out.
        while quiet < 6 {
            let before = total;
            for len in [block.len(), 1] {
                loop {
                    let part = &block[..len];
                    match calls::send(fd, part, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                        Ok(n) => total += n,
                        Err(libc::EAGAIN) => break,
                        e => return e.show(),
                    }
                }
            }
            quiet = if total == before { quiet + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(50));
        }
        if total > 0 { "filled".to_owned() } else { "took nothing".to_owned() }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = writeln!(self.orders, "exit");
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            if matches!(self.peer.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.peer.kill();
        let _ = self.peer.wait();
    }
}

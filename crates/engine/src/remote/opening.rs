//! First words of clients that the thread at the door says for a vector.
//!
//! Where first contact with a peer has been made, a Proposal says nothing that only the vector knows. So the door sends
//! it at once, and the vector wakes up while it is on its way.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use smc::Limits;
use smc::handshake::{Client, Identity, Step};
use sys::call;

use super::held;
use super::vector::smc_time;

/// Addresses of a connection: ours, and the peer's.
type Ends = (IpAddr, IpAddr);

/// Pairs of addresses that a vector keeps open; of more peers, clients wait for their vector.
const OPEN_MAX: usize = 1024;

/// A handshake whose Proposal has been sent.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) client: Client,
    /// Of the Proposal, what found no room on the connection.
    pub(super) rest: Vec<u8>,
}

/// What the door may say for one vector. The lock is held for as long as it takes to look something up.
#[derive(Debug, Default)]
pub(super) struct Openings(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    words: HashMap<Ends, (Identity, Limits)>,
    /// Handshakes that were begun and that the vector has not taken over yet, and how many there may be.
    ahead: usize,
    ahead_max: usize,
}

impl Openings {
    /// Sends the Proposal of a client; `None`: nothing was sent, and the vector begins.
    pub(super) fn begin(&self, ends: Ends, tcp: &impl AsRawFd, now: u64) -> Option<Begun> {
        let (identity, limits) = {
            let open = held(&self.0);
            open.words.get(&ends).filter(|_| open.ahead < open.ahead_max).cloned()?
        };
        let mut client = Client::new(identity, limits, smc_time(now));
        let Some(Step::Send(mut rest)) = client.poll() else { return None };
        // An end that can be told here the vector finds as well.
        let sent = call::send_now(tcp.as_raw_fd(), &rest).ok().flatten()?;
        rest.drain(..sent.min(rest.len()));
        held(&self.0).ahead += 1;
        Some(Begun { client, rest })
    }
}

/// The vector's side of it.
#[derive(Debug)]
pub(super) struct Opened {
    shared: Arc<Openings>,
    /// What is in there.
    known: HashSet<Ends>,
}

impl Opened {
    pub(super) fn new(shared: Arc<Openings>) -> Self {
        Self { shared, known: HashSet::new() }
    }

    /// Whether there is room for these addresses, and they are not open yet.
    pub(super) fn wants(&self, ends: Ends) -> bool {
        self.known.len() < OPEN_MAX && !self.known.contains(&ends)
    }

    /// The next clients with these addresses need not wait for us, up to `ahead_max` of all.
    pub(super) fn open(&mut self, ends: Ends, words: (Identity, Limits), ahead_max: usize) {
        if self.wants(ends) {
            self.known.insert(ends);
            let mut open = held(&self.shared.0);
            open.words.insert(ends, words);
            open.ahead_max = ahead_max;
        }
    }

    /// A handshake that was begun is ours now.
    pub(super) fn take_over(&mut self) {
        let mut open = held(&self.shared.0);
        open.ahead = open.ahead.saturating_sub(1);
    }

    /// Those to this peer do: first contact has to be made anew.
    pub(super) fn close(&mut self, remote: IpAddr) {
        let of = |ends: &Ends| ends.1 == remote;
        if self.known.iter().any(of) {
            self.known.retain(|ends| !of(ends));
            held(&self.shared.0).words.retain(|ends, _| !of(ends));
        }
    }

    /// All do: what was to be said for us is not true any more.
    pub(super) fn close_all(&mut self) {
        if !self.known.is_empty() {
            self.known.clear();
            held(&self.shared.0).words.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use smc::clc::{self, Frame, Message};
    use smc::{Gid, Mac, SystemId};

    use super::*;

    fn words() -> (Identity, Limits) {
        let identity = Identity {
            system: SystemId([7; 8]),
            gid: Gid::v4([10, 0, 0, 1].into()),
            mac: Mac([2; 6]),
            host: [b' '; 32],
            eids: vec!["SHUNT.TEST".parse().unwrap()],
            answers_marks: false,
        };
        (identity, Limits::default())
    }

    #[test]
    fn a_proposal_is_sent_where_the_vector_has_opened_and_nowhere_else() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let [here, there, other] = [1, 2, 3].map(|host| IpAddr::from([10, 0, 0, host]));
        let shared = Arc::<Openings>::default();
        let mut opened = Opened::new(Arc::clone(&shared));
        let begin = || shared.begin((here, there), &client, 5);
        assert!(begin().is_none(), "before first contact");
        opened.open((here, other), words(), 64);
        assert!(begin().is_none(), "another peer");
        opened.open((here, there), words(), 64);
        let begun = begin().unwrap();
        assert!(begun.rest.is_empty() && begun.client.wants_message());
        let mut room = [0; 2048];
        let n = server.read(&mut room).unwrap();
        assert_eq!(clc::frame(&room[..n]), Ok(Frame::Whole(n)));
        assert!(matches!(Message::parse(&room[..n]), Ok(Message::Proposal(_))));
        opened.close(other);
        assert!(begin().is_some());
        opened.close(there);
        assert!(begin().is_none(), "the group has ended");
        opened.open((here, there), words(), 64);
        opened.close_all();
        assert!(begin().is_none(), "settings have changed");
        opened.open((here, there), words(), 64);
        assert!(begin().is_some(), "opened again");
        // No more than the vector could take are begun before it has run.
        opened.close_all();
        opened.open((here, there), words(), 4);
        assert!(begin().is_some() && begin().is_none());
        opened.take_over();
        // One that cannot be sent is not begun.
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(begin().is_none());
    }

    #[test]
    fn what_is_open_is_bounded() {
        let mut opened = Opened::new(Arc::default());
        let here = IpAddr::from([10, 0, 0, 1]);
        for host in 0..=OPEN_MAX {
            let [a, b, ..] = host.to_le_bytes();
            opened.open((here, IpAddr::from([10, 1, a, b])), words(), 64);
        }
        assert_eq!(held(&opened.shared.0).words.len(), OPEN_MAX);
    }
}

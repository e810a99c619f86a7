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
/// Handshakes that are ahead of their vector at most. Should the link group have ended when the vector comes to them,
/// each of them makes first contact.
const AHEAD_MAX: usize = 64;

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
    /// How often settings have changed: words of a vector that has not heard of the last change are none any more.
    epoch: u64,
    /// Handshakes that were begun and that the vector has not taken over yet, and how many there may be.
    ahead: usize,
    ahead_max: usize,
}

impl Openings {
    /// Settings have changed: nothing is said for the vector until it has heard of it, which it is to be told with what
    /// this returns.
    pub(super) fn outdate(&self) -> u64 {
        let mut open = held(&self.0);
        open.words.clear();
        open.epoch += 1;
        open.epoch
    }

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
    /// Of the settings that we go by.
    epoch: u64,
}

impl Opened {
    pub(super) fn new(shared: Arc<Openings>) -> Self {
        Self { shared, known: HashSet::new(), epoch: 0 }
    }

    /// Whether there is room for these addresses, and they are not open yet.
    pub(super) fn wants(&self, ends: Ends) -> bool {
        self.known.len() < OPEN_MAX && !self.known.contains(&ends)
    }

    /// The next clients with these addresses need not wait for us, up to `ahead_max` of all, or [`AHEAD_MAX`].
    pub(super) fn open(&mut self, ends: Ends, words: (Identity, Limits), ahead_max: usize) {
        if self.wants(ends) {
            let mut open = held(&self.shared.0);
            if open.epoch != self.epoch {
                return;
            }
            self.known.insert(ends);
            open.words.insert(ends, words);
            open.ahead_max = ahead_max.min(AHEAD_MAX);
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

    /// The settings of that epoch are ours now.
    pub(super) fn update(&mut self, epoch: u64) {
        self.close_all();
        self.epoch = epoch;
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
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use smc::clc::{self, Frame, Message};
    use smc::{Gid, Mac, SystemId};

    use super::super::Engine;
    use super::super::fake::{Guest, guest};
    use super::super::guest::Role;
    use super::super::tests::{Hosts, config};
    use super::super::vector::{Arrival, Newcomer, Order};
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
        // Settings have changed, and the vector does not know it yet.
        let epoch = shared.outdate();
        assert!(begin().is_none(), "old words");
        opened.close_all();
        opened.open((here, there), words(), 64);
        assert!(begin().is_none(), "words by old settings");
        opened.update(epoch);
        opened.open((here, there), words(), 64);
        assert!(begin().is_some(), "by new ones");
        opened.take_over();
        // No more than the vector could take are begun before it has run.
        opened.close_all();
        opened.open((here, there), words(), 4);
        assert!(begin().is_some() && begin().is_none());
        opened.take_over();
        // One that cannot be sent is not begun.
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(begin().is_none());
    }

    /// A connection between two addresses of an engine's, and its guest's rings.
    fn newcomer(engine: &Engine, ends: Ends, tcp: TcpStream, role: Role) -> (Newcomer, Guest) {
        let (relay, guest) = guest(1 << 16);
        let (relay, tcp, berth) = (Box::new(relay), tcp.into(), engine.berth(ends.1));
        (Newcomer { relay, tcp, role, ends, to: None, asks: None, berth }, guest)
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// The Proposal of a client that nobody has told of first contact.
    fn proposal() -> Vec<u8> {
        let (identity, limits) = words();
        let first = Client::new(identity, limits, smc_time(5)).poll();
        let Some(Step::Send(bytes)) = first else { panic!("a Proposal is first: {first:?}") };
        bytes
    }

    /// The next message, which comes.
    fn message(tcp: &mut TcpStream) -> Vec<u8> {
        let mut room = [0; 2048];
        let n = tcp.read(&mut room).unwrap();
        room[..n].to_vec()
    }

    #[test]
    fn where_the_group_has_ended_meanwhile_nobody_makes_first_contact_beside() {
        let ends = [1, 2].map(|host| IpAddr::from([127, 92, 1, host]));
        let Some(hosts) = Hosts::at(ends, [config(&[]), config(&[])]) else { return };
        let engine = &hosts.engines[0];
        let ends = (ends[0], ends[1]);
        // The door has begun for a vector that has no group any more when it hears of that.
        let shared = Arc::<Openings>::default();
        Opened::new(Arc::clone(&shared)).open(ends, words(), 64);
        let (ours, mut first) = pair();
        let begun = shared.begin(ends, &ours, call::now_ns());
        assert!(begun.is_some());
        let (ahead, _guest) = newcomer(engine, ends, ours, Role::Client);
        let arrival = Arrival { newcomer: ahead, begun, at: call::now_ns() };
        engine.shared.vectors[0].inbox.put(Order::Newcomer(Box::new(arrival)));
        let (ours, mut second) = pair();
        let (behind, _other) = newcomer(engine, ends, ours, Role::Client);
        engine.adopt(behind);
        // The vector has heard of both when it has answered.
        assert_eq!(engine.stat().vectors[0].handshakes, 2);
        message(&mut first);
        second.set_nonblocking(true).unwrap();
        let said = second.read(&mut [0; 64]).map_err(|e| e.kind());
        assert_eq!(said, Err(std::io::ErrorKind::WouldBlock));
        second.set_nonblocking(false).unwrap();
        drop(first);
        assert!(matches!(Message::parse(&message(&mut second)), Ok(Message::Proposal(_))));
    }

    #[test]
    fn first_contact_is_over_when_who_makes_it_has_ended_and_nobody_else() {
        let ends = [1, 2].map(|host| IpAddr::from([127, 92, 3, host]));
        let Some(hosts) = Hosts::at(ends, [config(&[]), config(&[])]) else { return };
        let engine = &hosts.engines[0];
        let ends = (ends[0], ends[1]);
        let mut all = (1..=2).map(|_| {
            let (ours, theirs) = pair();
            let (client, guest) = newcomer(engine, ends, ours, Role::Client);
            engine.adopt(client);
            (theirs, guest)
        });
        let [mut first, mut second] = [(); 2].map(|()| all.next().unwrap());
        message(&mut first.0);
        // The door has begun for another, from when there was a group.
        let shared = Arc::<Openings>::default();
        Opened::new(Arc::clone(&shared)).open(ends, words(), 64);
        let (ours, theirs) = pair();
        let begun = shared.begin(ends, &ours, call::now_ns());
        assert!(begun.is_some());
        let (ahead, _guest) = newcomer(engine, ends, ours, Role::Client);
        let arrival = Arrival { newcomer: ahead, begun, at: call::now_ns() };
        engine.shared.vectors[0].inbox.put(Order::Newcomer(Box::new(arrival)));
        assert_eq!(engine.stat().vectors[0].handshakes, 3);
        drop(theirs);
        hosts.wait("the end of that", |h| h.engines[0].stat().vectors[0].handshakes == 2);
        second.0.set_nonblocking(true).unwrap();
        let said = second.0.read(&mut [0; 64]).map_err(|e| e.kind());
        assert_eq!(said, Err(std::io::ErrorKind::WouldBlock));
        second.0.set_nonblocking(false).unwrap();
        drop(first.0);
        assert!(matches!(Message::parse(&message(&mut second.0)), Ok(Message::Proposal(_))));
    }

    #[test]
    fn who_waits_again_for_first_contact_is_counted_again() {
        let ends = [1, 2].map(|host| IpAddr::from([127, 92, 2, host]));
        let Some(hosts) = Hosts::at(ends, [config(&[]), config(&[])]) else { return };
        let engine = &hosts.engines[1];
        let waits = |kind: &str| {
            let stat = engine.stat();
            stat.vectors[0].setup_waits.get(kind).map_or(0, |wait| wait.count)
        };
        let accepted = |tcp: &mut TcpStream| {
            assert!(matches!(Message::parse(&message(tcp)), Ok(Message::Accept(_))));
        };
        let mut all = (1..=3).map(|number| {
            let (mut theirs, ours) = pair();
            let (server, guest) = newcomer(engine, (ends[1], ends[0]), ours, Role::Server);
            engine.adopt(server);
            theirs.write_all(&proposal()).unwrap();
            hosts.wait("the Proposal", |_| waits("message by TCP") == number);
            (theirs, guest)
        });
        let [mut first, mut second, mut third] = [(); 3].map(|()| all.next().unwrap());
        accepted(&mut first.0);
        // Both that wait are woken up; one of them makes first contact, the other waits for that.
        drop(first.0);
        accepted(&mut second.0);
        drop(second.0);
        accepted(&mut third.0);
        assert_eq!(waits("first contact"), 3);
    }

    #[test]
    fn no_more_are_ahead_than_may_make_first_contact_at_once() {
        let (client, _server) = pair();
        let ends = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let shared = Arc::<Openings>::default();
        Opened::new(Arc::clone(&shared)).open(ends, words(), usize::MAX);
        let begun = (0..=AHEAD_MAX).filter_map(|_| shared.begin(ends, &client, 5));
        assert_eq!(begun.count(), AHEAD_MAX);
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

//! Connections whose peers were promised SMC in the TCP handshake, and for which this host has no room, which take a way of
//! their own or lead nowhere that is ours, whose board is switched off, or whose engine is to end: the peer is told by CLC, and
//! the guest goes on by TCP, on the connection that it has.
//!
//! A server's peer cannot be told before it has spoken: its Proposal, if it were left there, would be the first bytes
//! that the program reads.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use local::Reason;
use smc::clc::Diagnosis;
use smc::handshake::{Client, Identity, Server, Step};
use smc::{Gid, Limits, SystemId};
use sys::event::{Interest, Poller};

use super::exchange::Machine;
use super::guest::Role;
use super::shares::host;
use super::vector::smc_time;
use super::wire::Wire;
use super::{host_name, local_mac};

/// How long a client's Proposal is waited for, nanoseconds; a client that takes more time than this sees a reset. The
/// guest's `accept` waits meanwhile, and its patience (`local::relay`) must be longer.
const PATIENCE_NS: u64 = 500_000_000;
/// For how long clients of a host that has let us wait in vain are not waited for, nanoseconds: their Proposal is there,
/// or it is a reset.
const IMPATIENT_NS: u64 = 10_000_000_000;
/// Hosts of which that is remembered; with more of them at a time nobody is waited for.
const IMPATIENT_MAX: usize = 256;

/// Where connections that are declined are waited for: with their number, this is in the token.
pub(super) const DECLINED: u64 = 1 << 63;

/// What we are to peers that get no link: nothing of it is kept by anybody.
pub(super) fn nobody() -> Identity {
    let mac = local_mac();
    Identity {
        system: SystemId::new([0; 2], mac),
        gid: Gid::v4(Ipv4Addr::UNSPECIFIED),
        mac,
        host: host_name(),
        eids: Vec::new(),
        answers_marks: false,
    }
}

/// One of them.
#[derive(Debug)]
struct Declining {
    wire: Wire,
    machine: Machine,
    visitor: u64,
    /// Whose it is.
    peer: IpAddr,
    /// Why it gets no SMC, for the guest.
    reason: Reason,
    /// When it is given up.
    until: u64,
}

impl Declining {
    /// Goes as far as it can. `None`: it waits for the peer; else whether the peer knows.
    fn go_on(&mut self) -> Option<bool> {
        loop {
            match self.machine.poll() {
                Some(Step::Send(bytes)) => {
                    // Some tens of bytes, the first ones of a connection.
                    if self.wire.send(&bytes).is_err() || self.wire.is_full() {
                        return Some(false);
                    }
                }
                Some(Step::FallBack(_)) => return Some(true),
                Some(_) => return Some(false),
                None => match self.wire.receive() {
                    Ok(Some(bytes)) => self.machine.on_bytes(&bytes),
                    Ok(None) => return None,
                    Err(_) => return Some(false),
                },
            }
        }
    }
}

impl AsRawFd for Declining {
    fn as_raw_fd(&self) -> RawFd {
        self.wire.as_raw_fd()
    }
}

/// What has become of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Declined {
    /// The visitor whose it is.
    pub(super) visitor: u64,
    pub(super) reason: Reason,
    /// The peer knows, and the connection is TCP from its first byte; else nobody can use it.
    pub(super) told: bool,
}

/// Those that wait for their peer, one of each visitor at most.
#[derive(Debug)]
pub(super) struct Declines {
    /// By numbers of their own: what is told of one may be heard when its visitor has another.
    all: HashMap<u64, Declining>,
    next: u64,
    nobody: Identity,
    /// Hosts that are not waited for, and until when.
    impatient: HashMap<IpAddr, u64>,
    /// How many there were, and how many of their peers could not be told.
    pub(super) told: u64,
    pub(super) in_vain: u64,
}

impl Declines {
    pub(super) fn new() -> Self {
        let nobody = nobody();
        let (all, impatient) = <_>::default();
        Self { all, next: 0, nobody, impatient, told: 0, in_vain: 0 }
    }

    /// A visitor's connection gets no SMC. `None`: the client has not spoken yet, and `poller` says when it does.
    pub(super) fn add(
        &mut self,
        poller: &Poller,
        visitor: u64,
        (tcp, role, peer): (OwnedFd, Role, IpAddr),
        reason: Reason,
        now: u64,
    ) -> Option<Declined> {
        // Of a visitor that has not waited for the answer.
        self.remove(poller, visitor);
        let (limits, identity) = (Limits::default(), self.nobody.clone());
        let why = match reason {
            Reason::ChosenWay => Diagnosis::SocketOption,
            Reason::PeerNotSmc => Diagnosis::NoDevice,
            Reason::SwitchedOff | Reason::Draining => Diagnosis::Configuration,
            _ => Diagnosis::Memory,
        };
        let machine = match role {
            Role::Client => Machine::Client(Client::declining(identity, limits, why)),
            Role::Server => {
                Machine::Server(Server::declining(identity, limits, why, smc_time(now)))
            }
        };
        let until = now + PATIENCE_NS;
        let wire = Wire::new(tcp);
        let mut declining = Declining { wire, machine, visitor, peer, reason, until };
        let gone = declining.go_on();
        let told = match gone {
            Some(told) => told,
            None if self.waits_for(peer, now)
                && poller.add(&declining, Interest::READ, DECLINED | self.next).is_ok() =>
            {
                self.all.insert(self.next, declining);
                self.next += 1;
                return None;
            }
            None => false,
        };
        Some(self.count(Declined { visitor, reason, told }))
    }

    /// The peer of one has said something, or is `broken`.
    pub(super) fn heard(&mut self, poller: &Poller, number: u64, broken: bool) -> Option<Declined> {
        let gone = self.all.get_mut(&number)?.go_on();
        // Nothing comes of a socket that only has an error, and it would be told of for ever.
        let told = gone.or_else(|| broken.then_some(false))?;
        self.end(poller, number, told)
    }

    /// One whose time is over; call again until there is none.
    pub(super) fn overdue(&mut self, poller: &Poller, now: u64) -> Option<Declined> {
        let is_over = |(_, declining): &(&u64, &Declining)| declining.until <= now;
        let (number, peer) = self.all.iter().find(is_over).map(|(n, d)| (*n, d.peer))?;
        self.impatient.retain(|_, until| *until > now);
        if self.impatient.len() < IMPATIENT_MAX {
            self.impatient.insert(host(peer), now + IMPATIENT_NS);
        }
        self.end(poller, number, false)
    }

    /// How many wait.
    pub(super) fn count_waiting(&self) -> usize {
        self.all.len()
    }

    /// When [`Self::overdue`] has something to say.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.all.values().map(|declining| declining.until).min()
    }

    /// A visitor waits no more.
    pub(super) fn remove(&mut self, poller: &Poller, visitor: u64) -> Option<Reason> {
        let number = self.all.iter().find(|(_, d)| d.visitor == visitor).map(|(n, _)| *n)?;
        Some(self.take(poller, number)?.reason)
    }

    fn take(&mut self, poller: &Poller, number: u64) -> Option<Declining> {
        let declining = self.all.remove(&number)?;
        // The guest has the same open file, so closing ours would leave it there.
        poller.remove(&declining);
        Some(declining)
    }

    fn waits_for(&self, peer: IpAddr, now: u64) -> bool {
        let is_over = |until: &u64| *until <= now;
        self.impatient.get(&host(peer)).is_none_or(is_over)
            && (self.impatient.len() < IMPATIENT_MAX || self.impatient.values().any(is_over))
    }

    fn end(&mut self, poller: &Poller, number: u64, told: bool) -> Option<Declined> {
        let Declining { visitor, reason, .. } = self.take(poller, number)?;
        Some(self.count(Declined { visitor, reason, told }))
    }

    fn count(&mut self, declined: Declined) -> Declined {
        if declined.told {
            self.told += 1;
        } else {
            self.in_vain += 1;
        }
        declined
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use smc::clc::Message;
    use sys::event::Events;

    use super::super::exchange::reset_on_close;
    use super::*;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

    /// Where they are waited for.
    struct Hall {
        declines: Declines,
        poller: Poller,
    }

    impl Hall {
        fn new() -> Self {
            Self { declines: Declines::new(), poller: Poller::new().unwrap() }
        }

        fn add(&mut self, visitor: u64, tcp: &TcpStream, role: Role, now: u64) -> Option<bool> {
            let tcp = tcp.try_clone().unwrap().into();
            let given = (tcp, role, PEER);
            let done = self.declines.add(&self.poller, visitor, given, Reason::NoMemory, now);
            done.map(|done| done.told)
        }

        /// Waits until something has become of one.
        fn come(&mut self) -> Declined {
            let mut events = Events::new(8);
            loop {
                self.poller.wait(&mut events, None);
                for event in events.iter() {
                    let number = event.token & !DECLINED;
                    let done = self.declines.heard(&self.poller, number, event.broken);
                    if let Some(done) = done {
                        return done;
                    }
                }
            }
        }

        /// Whether anything is watched.
        fn is_told(&self) -> bool {
            let mut events = Events::new(8);
            self.poller.wait(&mut events, Some(1));
            !events.is_empty()
        }
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// What a client of ours says first.
    fn proposal() -> Vec<u8> {
        let identity = Identity { eids: vec!["SHUNT.TEST".parse().unwrap()], ..nobody() };
        let Some(Step::Send(bytes)) = Client::new(identity, Limits::default(), smc_time(0)).poll()
        else {
            panic!("a Proposal is first")
        };
        bytes
    }

    #[test]
    fn a_server_answers_the_proposal_and_takes_nothing_of_what_follows() {
        let (mut client, mut server) = pair();
        let mut hall = Hall::new();
        assert_eq!(hall.add(5, &server, Role::Server, 0), None, "nobody has spoken");
        let proposal = proposal();
        let (begin, rest) = proposal.split_at(20);
        client.write_all(begin).unwrap();
        client.write_all(rest).unwrap();
        client.write_all(b"request").unwrap();
        let done = hall.come();
        assert_eq!(done, Declined { visitor: 5, reason: Reason::NoMemory, told: true });
        let mut room = [0; 2048];
        let n = client.read(&mut room).unwrap();
        let said = Message::parse(&room[..n]);
        assert!(
            matches!(&said, Ok(Message::Decline(d)) if d.diagnosis == Diagnosis::Memory),
            "{said:?}"
        );
        server.read_exact(&mut room[..7]).unwrap();
        assert_eq!(&room[..7], b"request");
        // The open file is the guest's, and nobody is told of it any more.
        client.write_all(b"more").unwrap();
        assert!(!hall.is_told() && hall.declines.next_deadline().is_none());
        assert_eq!((hall.declines.told, hall.declines.in_vain), (1, 0));
    }

    #[test]
    fn a_client_says_so_instead_of_a_proposal() {
        let (client, mut server) = pair();
        assert_eq!(Hall::new().add(5, &client, Role::Client, 0), Some(true));
        let mut room = [0; 2048];
        let n = server.read(&mut room).unwrap();
        assert!(matches!(Message::parse(&room[..n]), Ok(Message::Decline(_))));
    }

    #[test]
    fn a_peer_that_says_nothing_of_the_kind_is_not_told() {
        let (mut client, server) = pair();
        let mut hall = Hall::new();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        if hall.add(5, &server, Role::Server, 0).is_none() {
            assert!(!hall.come().told);
        }
        let (client, server) = pair();
        assert_eq!(hall.add(5, &server, Role::Server, 0), None);
        drop(client);
        assert!(!hall.come().told);
        assert_eq!((hall.declines.told, hall.declines.in_vain), (0, 2));
    }

    /// One that says nothing holds the guest's `accept` once, and not again for some time.
    #[test]
    fn who_lets_us_wait_in_vain_is_not_waited_for_again() {
        let mut hall = Hall::new();
        let all: Vec<_> = (0..3).map(|_| pair()).collect();
        assert_eq!(hall.add(0, &all[0].1, Role::Server, 0), None);
        assert_eq!(hall.add(1, &all[1].1, Role::Server, 1), None, "another guest");
        assert_eq!(hall.declines.overdue(&hall.poller, PATIENCE_NS - 1), None);
        assert_eq!(hall.declines.next_deadline(), Some(PATIENCE_NS));
        let done = hall.declines.overdue(&hall.poller, PATIENCE_NS).unwrap();
        assert_eq!((done.visitor, done.told), (0, false));
        assert_eq!(hall.declines.overdue(&hall.poller, PATIENCE_NS), None);
        assert_eq!(hall.add(2, &all[2].1, Role::Server, PATIENCE_NS + 1), Some(false));
        // One whose Proposal is there is told all the same.
        let (mut client, server) = pair();
        client.write_all(&proposal()).unwrap();
        server.peek(&mut [0]).unwrap();
        assert_eq!(hall.add(2, &server, Role::Server, PATIENCE_NS + 1), Some(true));
        // And once the time is over.
        let later = PATIENCE_NS + IMPATIENT_NS;
        assert_eq!(hall.add(2, &all[2].1, Role::Server, later), None);
        // A guest that has gone is not answered.
        assert_eq!(hall.declines.remove(&hall.poller, 2), Some(Reason::NoMemory));
        assert_eq!(hall.declines.remove(&hall.poller, 2), None);
    }

    #[test]
    fn what_is_remembered_of_hosts_is_bounded_and_ends() {
        let mut hall = Hall::new();
        let (_client, server) = pair();
        for at in 0..IMPATIENT_MAX {
            let [a, b, ..] = at.to_le_bytes();
            hall.declines.impatient.insert([10, 0, a, b].into(), 1000);
        }
        assert_eq!(hall.add(0, &server, Role::Server, 999), Some(false), "too many of them");
        assert_eq!(hall.add(0, &server, Role::Server, 1000), None);
        assert!(hall.declines.overdue(&hall.poller, 1000 + PATIENCE_NS).is_some());
        assert_eq!(hall.declines.impatient.len(), 1);
    }

    #[test]
    fn a_second_connection_of_a_guest_takes_the_place_of_the_first() {
        let mut hall = Hall::new();
        let (mut client, server) = pair();
        let (_other, second) = pair();
        assert_eq!(hall.add(0, &server, Role::Server, 0), None);
        assert_eq!(hall.add(0, &second, Role::Server, 0), None);
        client.write_all(&proposal()).unwrap();
        server.peek(&mut [0]).unwrap();
        assert!(!hall.is_told(), "the first is nobody's");
    }
    /// Both were in one batch of events, the first one's end and what made the guest hand over another.
    #[test]
    fn what_is_told_of_a_guests_first_connection_does_not_decide_about_its_second() {
        let mut hall = Hall::new();
        let (gone, server) = pair();
        let (mut client, second) = pair();
        assert_eq!(hall.add(0, &server, Role::Server, 0), None);
        reset_on_close(&gone);
        drop(gone);
        let mut events = Events::new(8);
        hall.poller.wait(&mut events, None);
        assert_eq!(hall.add(0, &second, Role::Server, 0), None);
        for event in events.iter() {
            let number = event.token & !DECLINED;
            assert_eq!(hall.declines.heard(&hall.poller, number, event.broken), None);
        }
        client.write_all(&proposal()).unwrap();
        assert!(hall.come().told);
    }
}

//! Who waits for whom: which of our connections may lead to guests of other engines, and what is to be said
//! about them. A value: no socket, no clock.
//!
//! ```text
//! client's engine                         server's engine
//! guest has connected    -- Ask -->       kept until a guest accepts it
//!                                         guest has accepted: its vector waits for CLC
//! CLC begins          <-- Yes --
//! ```
//!
//! The client's engine speaks CLC behind a Yes only, and the server's says it only when the connection is in
//! its hands and will be read by nobody else. Whoever does not hear in time, or hears and does not begin,
//! goes on with TCP, and says so.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::word::{Why, Word};
use crate::remote::guest::Role;

/// Questions and connections of one kind that are kept, at most.
const KEPT_MAX: usize = 16_384;
/// Questions of one link that are kept, at most, so that no engine takes the room of others.
const ASKED_MAX: usize = 1024;
/// How often it is looked for what need not be kept any more, at most, nanoseconds.
const PURGE_NS: u64 = 100_000_000;
/// For how long a question is kept whose connection no guest has accepted yet, nanoseconds; and for how long
/// it is known of one that it has begun as TCP.
const KEPT_NS: u64 = 2_000_000_000;
/// After so many connections in a row from a host that nobody had asked about, listeners keep theirs.
const IDLERS: u32 = 8;

/// Which of a vector's connections: the vector in the highest byte, below the number of its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::remote) struct Seat(u64);

impl Seat {
    /// `exchange`: below 2^56.
    pub(in crate::remote) fn new(vector: u32, exchange: u64) -> Self {
        Self(u64::from(vector) << 56 | exchange)
    }

    /// The vector.
    pub(in crate::remote) fn vector(self) -> usize {
        usize::from(self.0.to_be_bytes()[0])
    }

    /// The number of its handshake.
    pub(in crate::remote) fn exchange(self) -> u64 {
        self.0 & ((1 << 56) - 1)
    }
}

/// The two ends of a TCP connection, IPv4 as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The end that has called `connect()`.
    pub client: SocketAddr,
    /// The other one.
    pub server: SocketAddr,
}

/// A link to another engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::remote) struct LinkId(pub(super) u64);

/// The addresses of a link: ours, the other's.
pub(super) type Addresses = (IpAddr, IpAddr);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Say this.
    Say(LinkId, Word),
    /// Ask the vector whether it still waits, and if so, have it wait for CLC; then [`Register::replied`].
    Promise(Seat, Question),
    /// Tell the vector that its client may begin, or why not.
    Answer(Seat, Result<(), Why>),
    /// Tell the vector that no CLC comes.
    Withdrawn(Seat),
    /// From now on listeners hand over what comes from there, or do not.
    Mark(IpAddr, bool),
}

/// A question, and where the answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct Question {
    link: LinkId,
    number: u64,
}

/// What is known of a connection that a guest of ours has accepted, or another engine asks about.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// Asked about, until then.
    Asked(Question, u64),
    /// A vector has it, and has been asked or not.
    Held(Seat, bool),
    /// It has begun as TCP; forgotten then.
    Plain(u64),
}

/// An engine that has greeted.
#[derive(Clone, Copy, Debug)]
struct Link {
    addresses: Addresses,
    /// Questions of it that are kept.
    asked: usize,
}

/// A client of ours whose connection another engine was asked about.
#[derive(Clone, Copy, Debug)]
struct Asking {
    link: LinkId,
    ends: Ends,
    /// The other end waits for CLC.
    promised: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Register {
    links: HashMap<LinkId, Link>,
    /// Clients of ours that wait for an answer, or that have been promised CLC and have not left.
    asking: HashMap<Seat, Asking>,
    known: HashMap<Ends, Known>,
    /// When it may be looked again for what need not be kept.
    purge_at: u64,
    /// Hosts of links, with connections in a row from there that nobody asked about.
    idlers: HashMap<IpAddr, u32>,
}

impl Register {
    /// The engine at the other end of a link has greeted.
    pub(super) fn met(&mut self, link: LinkId, addresses: Addresses) -> Vec<Deed> {
        self.links.insert(link, Link { addresses, asked: 0 });
        self.idlers.insert(addresses.1, 0);
        vec![Deed::Mark(addresses.1, true)]
    }

    /// A link is gone.
    pub(super) fn lost(&mut self, link: LinkId) -> Vec<Deed> {
        let Some(Link { addresses: (_, remote), .. }) = self.links.remove(&link) else {
            return Vec::new();
        };
        // Who has been promised CLC begins still, or says by it that it does not: the other end waits for it.
        let mut deeds: Vec<Deed> = self
            .asking
            .extract_if(|_, asking| asking.link == link)
            .filter(|(_, asking)| !asking.promised)
            .map(|(seat, _)| Deed::Answer(seat, Err(Why::NotThisOne)))
            .collect();
        // Nobody is there to hear the answers.
        self.known.retain(|_, known| !matches!(known, Known::Asked(q, _) if q.link == link));
        if !self.links.values().any(|other| other.addresses.1 == remote) {
            self.idlers.remove(&remote);
            deeds.push(Deed::Mark(remote, false));
        }
        deeds
    }

    /// Addresses between which there is a link.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Addresses> {
        self.links.values().map(|link| link.addresses)
    }

    /// The link between two addresses; of two the older one.
    fn link(&self, addresses: Addresses) -> Option<LinkId> {
        let fit = self.links.iter().filter(|(_, of)| of.addresses == addresses);
        fit.map(|(link, _)| *link).min_by_key(|link| link.0)
    }

    /// A guest of ours has handed over a connection that has promised nothing.
    pub(super) fn come(&mut self, seat: Seat, role: Role, ends: Ends, now: u64) -> Vec<Deed> {
        match role {
            Role::Client => self.ask(seat, ends),
            Role::Server => self.hold(seat, ends, now),
        }
    }

    fn ask(&mut self, seat: Seat, ends: Ends) -> Vec<Deed> {
        let Some(link) = self.link((ends.client.ip(), ends.server.ip())) else {
            return vec![Deed::Answer(seat, Err(Why::NotThisOne))];
        };
        self.asking.insert(seat, Asking { link, ends, promised: false });
        let (client, server) = (ends.client.port(), ends.server.port());
        vec![Deed::Say(link, Word::Ask { client, server, number: seat.0 })]
    }

    fn hold(&mut self, seat: Seat, ends: Ends, now: u64) -> Vec<Deed> {
        let asked = match self.known.get(&ends) {
            Some(Known::Asked(question, until)) if *until > now => Some(*question),
            _ => None,
        };
        self.keep(ends, Known::Held(seat, asked.is_some()));
        asked.map(|question| Deed::Promise(seat, question)).into_iter().collect()
    }

    /// A client's vector does not wait any more: if it has `begun`, CLC says to the other end what becomes of
    /// the connection; if not, the connection is TCP, and the other end must not wait for CLC.
    pub(super) fn client_left(&mut self, seat: Seat, begun: bool) -> Vec<Deed> {
        let Some(Asking { link, ends, .. }) = self.asking.remove(&seat).filter(|_| !begun) else {
            return Vec::new();
        };
        let (client, server) = (ends.client.port(), ends.server.port());
        vec![Deed::Say(link, Word::Never { client, server })]
    }

    /// A server's vector does not wait for a question any more: the connection is TCP, or SMC.
    pub(super) fn server_left(&mut self, seat: Seat, ends: Ends, now: u64) -> Vec<Deed> {
        match self.known.get(&ends).copied() {
            Some(Known::Held(held, true)) if held == seat => {
                self.known.remove(&ends);
            }
            Some(Known::Held(held, false)) if held == seat => {
                self.known.remove(&ends);
                if self.has_room(now) {
                    // Its question may still be on the way.
                    self.keep(ends, Known::Plain(now + KEPT_NS));
                }
                return self.idled(ends.client.ip());
            }
            _ => {}
        }
        Vec::new()
    }

    /// A connection came from a host with an engine, but not from a guest of that engine.
    fn idled(&mut self, host: IpAddr) -> Vec<Deed> {
        let Some(count) = self.idlers.get_mut(&host) else { return Vec::new() };
        *count += 1;
        if *count == IDLERS { vec![Deed::Mark(host, false)] } else { Vec::new() }
    }

    /// A vector has answered [`Deed::Promise`].
    pub(super) fn replied(&self, seat: Seat, question: Question, yes: bool) -> Deed {
        let Question { link, number } = question;
        if !yes {
            return no(question);
        }
        if !self.links.contains_key(&link) {
            // Whoever asked does not hear it, and sends no CLC.
            return Deed::Withdrawn(seat);
        }
        Deed::Say(link, Word::Yes { number })
    }

    /// Another engine has said something. `listens`: whether a guest listens on a port of ours.
    pub(super) fn heard(
        &mut self,
        link: LinkId,
        word: Word,
        now: u64,
        listens: impl Fn(u16) -> bool,
    ) -> Vec<Deed> {
        let Some(Link { addresses: (ours, theirs), .. }) = self.links.get(&link).copied() else {
            return Vec::new();
        };
        let ends = |client, server| Ends {
            client: SocketAddr::new(theirs, client),
            server: SocketAddr::new(ours, server),
        };
        match word {
            Word::Ask { client, server, number } => {
                let question = Question { link, number };
                let mut deeds = self.welcome_back(theirs);
                let no = |why| Deed::Say(link, Word::No { number, why });
                let were_keeping = !deeds.is_empty();
                deeds.extend(if !listens(server) {
                    Some(no(Why::NoListener))
                } else {
                    let ends = ends(client, server);
                    match self.asked(ends, question, now) {
                        // Its listener may have accepted it, and kept it: then nobody would ever answer. The next one is
                        // handed over.
                        None if were_keeping => {
                            self.forget(ends);
                            Some(no(Why::NotThisOne))
                        }
                        answer => answer,
                    }
                });
                deeds
            }
            Word::Never { client, server } => {
                let ends = ends(client, server);
                match self.known.get(&ends).copied() {
                    Some(Known::Held(seat, true)) => vec![Deed::Withdrawn(seat)],
                    Some(Known::Asked(..)) => {
                        self.forget(ends);
                        Vec::new()
                    }
                    _ => Vec::new(),
                }
            }
            Word::Yes { number } => self.answered(link, number, Ok(())),
            Word::No { number, why } => self.answered(link, number, Err(why)),
        }
    }

    /// A host asks: listeners hand over again what comes from there.
    fn welcome_back(&mut self, host: IpAddr) -> Vec<Deed> {
        let was = self.idlers.insert(host, 0).unwrap_or(0);
        if was >= IDLERS { vec![Deed::Mark(host, true)] } else { Vec::new() }
    }

    fn asked(&mut self, ends: Ends, question: Question, now: u64) -> Option<Deed> {
        let no = no(question);
        match self.known.get(&ends).copied() {
            Some(Known::Held(seat, false)) => {
                self.keep(ends, Known::Held(seat, true));
                Some(Deed::Promise(seat, question))
            }
            // Nobody asks twice.
            Some(Known::Held(_, true)) => Some(no),
            Some(Known::Plain(until)) if until > now => Some(no),
            _ => {
                if !self.has_room_for(question.link, now) {
                    return Some(no);
                }
                self.keep(ends, Known::Asked(question, now + KEPT_NS));
                None
            }
        }
    }

    fn answered(&mut self, link: LinkId, number: u64, answer: Result<(), Why>) -> Vec<Deed> {
        let seat = Seat(number);
        // Who was not asked has nothing to say, and nobody has anything to say twice.
        let asking = self.asking.get_mut(&seat);
        let Some(asking) = asking.filter(|asking| asking.link == link && !asking.promised) else {
            return Vec::new();
        };
        // A promise is remembered until it is known whether it was made use of.
        asking.promised = true;
        if answer.is_err() {
            self.asking.remove(&seat);
        }
        vec![Deed::Answer(seat, answer)]
    }

    fn keep(&mut self, ends: Ends, known: Known) {
        self.forget(ends);
        if let Known::Asked(question, _) = known
            && let Some(link) = self.links.get_mut(&question.link)
        {
            link.asked += 1;
        }
        self.known.insert(ends, known);
    }

    fn forget(&mut self, ends: Ends) {
        if let Some(Known::Asked(question, _)) = self.known.remove(&ends)
            && let Some(link) = self.links.get_mut(&question.link)
        {
            link.asked -= 1;
        }
    }

    /// Whether one more may be kept.
    fn has_room(&mut self, now: u64) -> bool {
        if self.known.len() >= KEPT_MAX {
            self.purge(now);
        }
        self.known.len() < KEPT_MAX
    }

    /// Whether one more question of a link may be kept.
    fn has_room_for(&mut self, link: LinkId, now: u64) -> bool {
        let asked = |all: &Self| all.links.get(&link).map_or(ASKED_MAX, |link| link.asked);
        if asked(self) >= ASKED_MAX {
            self.purge(now);
        }
        asked(self) < ASKED_MAX && self.has_room(now)
    }

    /// What nobody will ask about or accept any more goes. All that is kept is looked at, so this is not done
    /// for each word of somebody who says many.
    fn purge(&mut self, now: u64) {
        if self.purge_at > now {
            return;
        }
        self.purge_at = now + PURGE_NS;
        let links = &mut self.links;
        self.known.retain(|_, known| match known {
            Known::Held(..) => true,
            Known::Asked(_, until) | Known::Plain(until) if *until > now => true,
            Known::Asked(question, _) => {
                if let Some(link) = links.get_mut(&question.link) {
                    link.asked -= 1;
                }
                false
            }
            Known::Plain(_) => false,
        });
    }
}

fn no(question: Question) -> Deed {
    let Question { link, number } = question;
    Deed::Say(link, Word::No { number, why: Why::NotThisOne })
}

#[cfg(test)]
mod tests;

//! The client's side.

use std::collections::VecDeque;

use super::{
    Abort, FEATURES, FallBack, Identity, LocalEnd, OUI, PeerEnd, RELEASE, Step, Terms,
    VENDOR_FIRST, VENDOR_PROPOSAL, check_answer, says_marks,
};
use crate::clc::{Answer, Decline, Diagnosis, Message, Proposal, RdmaAnswer, V2Offer};
use crate::eid::EIDS_MAX;
use crate::limits::{CONNS_MIN, LINKS_MAX, Limits};
use crate::name::{Gid, Mtu};
use crate::time::Time;

/// The client's side of the handshake. The TCP connection is there, and the server's SYN-ACK had the
/// option.
#[derive(Debug)]
pub struct Client {
    identity: Identity,
    limits: Limits,
    state: State,
    steps: VecDeque<Step>,
}

#[derive(Debug)]
enum State {
    /// The Accept is due.
    AwaitAccept(Time),
    /// Our caller is preparing.
    Preparing(Box<PeerEnd>),
    /// Our caller waits for CONFIRM LINK.
    AwaitLink,
    /// No CONFIRM LINK came; perhaps a Decline does.
    AwaitDecline(Time),
    Done,
}

impl Client {
    /// Begins: the first step sends the Proposal. Without an EID there is nothing to propose; the server,
    /// which has seen the option and waits, is told so by a Decline in its place.
    #[must_use]
    pub fn new(identity: Identity, limits: Limits, now: Time) -> Self {
        let state = State::AwaitAccept(now.after(limits.0.accept_wait));
        let mut client = Self { identity, limits, state, steps: VecDeque::new() };
        if client.identity.eids.is_empty() {
            client.decline(Diagnosis::NoDevice);
        } else {
            let proposal = Message::Proposal(Box::new(client.proposal()));
            client.steps.push_back(Step::Send(proposal.emit()));
        }
        client
    }

    /// Says at once that it does not want to: the server goes on over TCP without having waited.
    #[must_use]
    pub fn declining(identity: Identity, limits: Limits, why: Diagnosis) -> Self {
        let mut client = Self { identity, limits, state: State::Done, steps: VecDeque::new() };
        client.decline(why);
        client
    }

    fn proposal(&self) -> Proposal {
        let Identity { system, gid, mac, eids, .. } = &self.identity;
        let offer = V2Offer {
            release: RELEASE,
            gid: *gid,
            max_conns: self.limits.0.max_conns,
            max_links: self.limits.0.max_links,
            features: FEATURES,
            eids: eids.iter().take(EIDS_MAX).copied().collect(),
            ..V2Offer::default()
        };
        // Other than Linux, which sends zeros here: two stacks on one address would be one to the server.
        let mut proposal = Proposal::rdma_v2(*system, *mac, offer);
        if let Some(area) = &mut proposal.ism {
            (area.oui, area.vendor) = (OUI, VENDOR_PROPOSAL);
        }
        proposal
    }

    /// The next thing to do, until there is none.
    #[must_use]
    pub fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// When to call [`Client::on_deadline`], if ever.
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Time> {
        match self.state {
            State::AwaitAccept(deadline) | State::AwaitDecline(deadline) => Some(deadline),
            State::Preparing(_) | State::AwaitLink | State::Done => None,
        }
    }

    /// Whether the server has said nothing yet.
    #[must_use]
    pub const fn awaits_accept(&self) -> bool {
        matches!(self.state, State::AwaitAccept(_))
    }

    /// Whether bytes of the TCP connection are CLC messages; if not they are the application's.
    #[must_use]
    pub const fn wants_message(&self) -> bool {
        !matches!(self.state, State::Done)
    }

    /// The whole message of `bytes` came.
    pub fn on_bytes(&mut self, bytes: &[u8]) {
        match Message::parse(bytes) {
            Ok(message) => self.on_message(message),
            Err(error) => self.abort(Abort::Malformed(error)),
        }
    }

    fn on_message(&mut self, message: Message) {
        match (&self.state, message) {
            (State::Done, _) => {}
            (_, Message::Decline(decline)) => self.on_decline(&decline),
            (State::AwaitAccept(_), Message::Accept(Answer::Rdma(answer))) => {
                self.on_accept(*answer);
            }
            (State::AwaitAccept(_), Message::Accept(Answer::Ism(_))) => {
                self.decline(Diagnosis::Mode);
            }
            _ => self.abort(Abort::Unexpected),
        }
    }

    fn on_accept(&mut self, answer: RdmaAnswer) {
        match self.check_accept(&answer) {
            Ok(terms) => {
                let peer = Box::new(PeerEnd { answer, terms });
                self.steps.push_back(Step::Prepare(peer.clone()));
                self.state = State::Preparing(peer);
            }
            Err(diagnosis) => self.decline(diagnosis),
        }
    }

    fn check_accept(&self, answer: &RdmaAnswer) -> Result<Option<Terms>, Diagnosis> {
        check_answer(answer)?;
        let v2 = answer.v2.as_ref().ok_or(Diagnosis::Version)?;
        if !self.identity.eids.iter().take(EIDS_MAX).any(|eid| *eid == v2.eid) {
            return Err(Diagnosis::NoUeid);
        }
        let Some(first) = &v2.first else { return Ok(None) };
        if first.release > RELEASE {
            return Err(Diagnosis::Release);
        }
        let mut terms = Terms {
            release: first.release,
            max_conns: 255,
            max_links: LINKS_MAX,
            features: 0,
            eid: v2.eid,
            peer_is_shunt: false,
            marks: false,
        };
        if let (1.., Some(v2x)) = (first.release, &first.v2x) {
            if v2x.max_conns < CONNS_MIN {
                return Err(Diagnosis::MaxConns);
            }
            if !(1..=LINKS_MAX).contains(&v2x.max_links) {
                return Err(Diagnosis::MaxLinks);
            }
            (terms.max_conns, terms.max_links) = (v2x.max_conns, v2x.max_links);
            terms.features = v2x.features & FEATURES;
            terms.peer_is_shunt = v2x.vendor == VENDOR_FIRST;
            terms.marks = self.identity.answers_marks && says_marks(v2x);
        }
        Ok(Some(terms))
    }

    /// [`Step::Prepare`] is done: this is our end, and with a new link group these are all addresses at
    /// which links could end. Largest packets are the smaller of both sides'.
    pub fn confirm(&mut self, end: &LocalEnd, gids: &[Gid]) {
        let State::Preparing(peer) = &self.state else { return };
        let eid = peer.answer.v2.as_ref().map_or_else(Default::default, |v2| v2.eid);
        let first = peer.terms.as_ref().map(|terms| self.identity.first_contact(terms));
        let is_first = first.is_some();
        let mtu = Mtu::min(end.mtu, peer.answer.mtu);
        let mut confirm = self.identity.answer(end, mtu, eid, first);
        if let Some(v2) = &mut confirm.v2 {
            let gids = || (gids.iter().take(usize::from(LINKS_MAX)).copied().collect(), [0; 3]);
            v2.gids = is_first.then(gids);
        }
        let confirm = Message::Confirm(Answer::Rdma(Box::new(confirm)));
        self.steps.push_back(Step::Send(confirm.emit()));
        if is_first {
            self.state = State::AwaitLink;
            self.steps.push_back(Step::ConfirmLink(None));
        } else {
            self.state = State::Done;
            self.steps.push_back(Step::Established(None));
        }
    }

    /// CONFIRM LINK has been answered.
    pub fn link_confirmed(&mut self) {
        if matches!(self.state, State::AwaitLink) {
            self.state = State::Done;
            self.steps.push_back(Step::Established(None));
        }
    }

    /// No CONFIRM LINK came in time. Perhaps the server has declined, which is waited for a little.
    pub fn link_timed_out(&mut self, now: Time) {
        if matches!(self.state, State::AwaitLink) {
            self.state = State::AwaitDecline(now.after(self.limits.0.decline_wait));
        }
    }

    /// What a step asked for cannot be had.
    pub fn refuse(&mut self, why: Diagnosis) {
        match self.state {
            State::Preparing(_) | State::AwaitLink | State::AwaitDecline(_) => self.decline(why),
            State::AwaitAccept(_) | State::Done => {}
        }
    }

    /// Time has passed. Too early does no harm.
    pub fn on_deadline(&mut self, now: Time) {
        match self.state {
            State::AwaitAccept(deadline) if deadline <= now => self.abort(Abort::TimedOut),
            State::AwaitDecline(deadline) if deadline <= now => {
                self.decline(Diagnosis::TimeoutConfirmLink);
            }
            _ => {}
        }
    }

    fn decline(&mut self, why: Diagnosis) {
        let decline = Message::Decline(Decline::new(2, self.identity.system, why));
        self.steps.push_back(Step::Send(decline.emit()));
        self.steps.push_back(fall_back(why));
        self.state = State::Done;
    }

    fn on_decline(&mut self, decline: &Decline) {
        self.steps.push_back(Step::FallBack(FallBack {
            ours: Diagnosis::PeerDeclined,
            theirs: Some(decline.diagnosis),
            out_of_sync: decline.out_of_sync,
        }));
        self.state = State::Done;
    }

    fn abort(&mut self, why: Abort) {
        self.steps.push_back(Step::Abort(why));
        self.state = State::Done;
    }
}

pub(super) const fn fall_back(ours: Diagnosis) -> Step {
    Step::FallBack(FallBack { ours, theirs: None, out_of_sync: false })
}

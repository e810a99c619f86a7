//! The server's side.

use std::collections::VecDeque;

use super::client::fall_back;
use super::{
    Abort, FEATURES, FallBack, Identity, LocalEnd, OUI, PeerEnd, Proposed, RELEASE, Step, Terms,
    VENDOR_FIRST, VENDOR_PROPOSAL, check_answer, says_marks,
};
use crate::clc::{Answer, Decline, Diagnosis, Message, Proposal, RdmaAnswer, V2X};
use crate::eid;
use crate::limits::{CONNS_MIN, LINKS_MAX, Limits};
use crate::time::Time;

/// The server's side of the handshake. The client's SYN had the option, and ours was seen by it.
#[derive(Debug)]
pub struct Server {
    identity: Identity,
    limits: Limits,
    state: State,
    /// Whatever is proposed is declined, for this.
    declines: Option<Diagnosis>,
    /// Version of the proposal, which a Decline repeats.
    version: u8,
    steps: VecDeque<Step>,
}

#[derive(Debug)]
enum State {
    AwaitProposal(Time),
    /// Our caller looks for a link group.
    Finding(Terms),
    /// The Confirm is due; the terms of a new group, and the EID.
    AwaitConfirm(Time, Option<Terms>, eid::Eid),
    /// Our caller confirms the link.
    AwaitLink,
    /// The link was not confirmed; perhaps a Decline comes.
    AwaitDecline(Time),
    Done,
}

impl Server {
    /// Begins: waits for a Proposal.
    #[must_use]
    pub fn new(identity: Identity, limits: Limits, now: Time) -> Self {
        let state = State::AwaitProposal(now.after(limits.0.clc_wait));
        Self { identity, limits, state, declines: None, version: 2, steps: VecDeque::new() }
    }

    /// Waits for a Proposal to decline it: the client's first bytes are not the application's, so it cannot be told
    /// before it has spoken.
    #[must_use]
    pub fn declining(identity: Identity, limits: Limits, why: Diagnosis, now: Time) -> Self {
        Self { declines: Some(why), ..Self::new(identity, limits, now) }
    }

    /// The next thing to do, until there is none.
    #[must_use]
    pub fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// When to call [`Server::on_deadline`], if ever.
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Time> {
        match self.state {
            State::AwaitProposal(deadline)
            | State::AwaitConfirm(deadline, ..)
            | State::AwaitDecline(deadline) => Some(deadline),
            State::Finding(_) | State::AwaitLink | State::Done => None,
        }
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
            (State::AwaitProposal(_), Message::Proposal(proposal)) => self.on_proposal(&proposal),
            (State::AwaitConfirm(_, terms, eid), Message::Confirm(Answer::Rdma(answer))) => {
                let (terms, eid) = (*terms, *eid);
                self.on_confirm(*answer, terms, eid);
            }
            _ => self.abort(Abort::Unexpected),
        }
    }

    fn on_proposal(&mut self, proposal: &Proposal) {
        self.version = proposal.version.min(2);
        let terms = self.declines.map_or_else(|| self.terms(proposal), Err);
        match terms {
            Ok((gid, terms)) => {
                self.state = State::Finding(terms);
                let (system, mac) = (proposal.system, proposal.mac);
                self.steps.push_back(Step::FindGroup(Proposed { system, gid, mac, terms }));
            }
            Err(diagnosis) => self.decline(diagnosis),
        }
    }

    /// What a new link group would have, and the client's address.
    fn terms(&self, proposal: &Proposal) -> Result<(crate::name::Gid, Terms), Diagnosis> {
        let offer = proposal.offer.as_ref().filter(|_| proposal.v2.has_r());
        let offer = offer.ok_or(Diagnosis::NoDevice)?;
        // Linux says "no device" when there is no EID in common, and people know that number.
        let eid = eid::matching(&self.identity.eids, &offer.eids).ok_or(Diagnosis::NoDevice)?;
        let release = offer.release.min(RELEASE);
        let mut terms = Terms {
            release,
            max_conns: 255,
            max_links: LINKS_MAX,
            features: FEATURES,
            eid,
            peer_is_shunt: false,
            marks: false,
        };
        if release >= 1 {
            terms.max_conns = offer.max_conns.min(self.limits.0.max_conns);
            if terms.max_conns < CONNS_MIN {
                return Err(Diagnosis::MaxConns);
            }
            terms.max_links = offer.max_links.min(self.limits.0.max_links);
            if terms.max_links < 1 {
                return Err(Diagnosis::MaxLinks);
            }
            let ours =
                |area: &crate::clc::IsmArea| (area.oui, area.vendor) == (OUI, VENDOR_PROPOSAL);
            terms.peer_is_shunt = proposal.ism.as_ref().is_some_and(ours);
            // So the Accept says; whether the client does, too, its Confirm.
            terms.marks = terms.peer_is_shunt && self.identity.answers_marks;
        }
        Ok((offer.gid, terms))
    }

    /// [`Step::FindGroup`] is done: this is our end, of a link group that is new or not. Behind an Accept
    /// for a group that is not new there is no way back.
    pub fn accept(&mut self, end: &LocalEnd, first_contact: bool, now: Time) {
        let State::Finding(terms) = self.state else { return };
        let first = first_contact.then(|| self.identity.first_contact(&terms));
        let answer = self.identity.answer(end, end.mtu, terms.eid, first);
        let accept = Message::Accept(Answer::Rdma(Box::new(answer)));
        self.steps.push_back(Step::Send(accept.emit()));
        let deadline = now.after(self.limits.0.clc_wait);
        self.state = State::AwaitConfirm(deadline, first_contact.then_some(terms), terms.eid);
    }

    fn on_confirm(&mut self, answer: RdmaAnswer, terms: Option<Terms>, eid: eid::Eid) {
        let v2 = answer.v2.as_ref().filter(|v2| v2.eid == eid);
        let (Some(v2), true) = (v2, answer.first_contact == terms.is_some()) else {
            return self.abort(Abort::Contradiction);
        };
        let checked = check_answer(&answer);
        let Some(mut terms) = terms else {
            // Our Accept was the point of no return.
            return match checked {
                Ok(()) => {
                    self.state = State::Done;
                    let peer = Box::new(PeerEnd { answer, terms: None });
                    self.steps.push_back(Step::Established(Some(peer)));
                }
                Err(diagnosis) => self.abort(Abort::TooLate(diagnosis)),
            };
        };
        match checked.and_then(|()| repeats(v2, &terms)) {
            Ok(features) => {
                terms.features &= features;
                terms.peer_is_shunt &= says(v2, |v2x| v2x.vendor == VENDOR_FIRST);
                terms.marks &= says(v2, says_marks);
                self.state = State::AwaitLink;
                let peer = PeerEnd { answer, terms: Some(terms) };
                self.steps.push_back(Step::ConfirmLink(Some(Box::new(peer))));
            }
            Err(diagnosis) => self.decline(diagnosis),
        }
    }

    /// CONFIRM LINK has been answered.
    pub fn link_confirmed(&mut self) {
        if matches!(self.state, State::AwaitLink) {
            self.state = State::Done;
            self.steps.push_back(Step::Established(None));
        }
    }

    /// CONFIRM LINK was not answered in time. Perhaps the client has declined, which is waited for a
    /// little.
    pub fn link_timed_out(&mut self, now: Time) {
        if matches!(self.state, State::AwaitLink) {
            self.state = State::AwaitDecline(now.after(self.limits.0.decline_wait));
        }
    }

    /// What a step asked for cannot be had.
    pub fn refuse(&mut self, why: Diagnosis) {
        match self.state {
            State::Finding(_) | State::AwaitLink | State::AwaitDecline(_) => self.decline(why),
            State::AwaitProposal(_) | State::AwaitConfirm(..) | State::Done => {}
        }
    }

    /// Time has passed. Too early does no harm.
    pub fn on_deadline(&mut self, now: Time) {
        match self.state {
            State::AwaitProposal(deadline) | State::AwaitConfirm(deadline, ..)
                if deadline <= now =>
            {
                self.abort(Abort::TimedOut);
            }
            State::AwaitDecline(deadline) if deadline <= now => {
                self.decline(Diagnosis::TimeoutConfirmLink);
            }
            _ => {}
        }
    }

    fn decline(&mut self, why: Diagnosis) {
        let decline = Message::Decline(Decline::new(self.version, self.identity.system, why));
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

/// A Confirm must repeat what the Accept said. The features that the client has of ours.
fn repeats(v2: &crate::clc::RdmaV2, terms: &Terms) -> Result<u16, Diagnosis> {
    let first = v2.first.as_ref().ok_or(Diagnosis::Release)?;
    if first.release != terms.release {
        return Err(Diagnosis::Release);
    }
    let (1.., Some(v2x)) = (first.release, &first.v2x) else { return Ok(0) };
    if v2x.max_conns != terms.max_conns {
        return Err(Diagnosis::MaxConns);
    }
    if v2x.max_links != terms.max_links {
        return Err(Diagnosis::MaxLinks);
    }
    Ok(v2x.features)
}

/// What the fields of first contact say, if they are there.
fn says(v2: &crate::clc::RdmaV2, what: impl FnOnce(&V2X) -> bool) -> bool {
    v2.first.as_ref().and_then(|first| first.v2x.as_ref()).is_some_and(what)
}

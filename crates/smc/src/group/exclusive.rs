//! Flows that change links: adding one, deleting one. One is under way at a time (RFC 7609 3.5.5.3).

use super::link::{LinkEnd, LinkSlot};
use super::local::{BufferId, LinkBuffer};
use super::{Action, Group, Role, Terminated};
use crate::llc::{
    AddLink, AddLinkV2, Body, DeleteLink, DeleteReason, Message, RejectReason, RequestAddLink,
};
use crate::name::Gid;
use crate::time::Time;

/// Links of a group that work at a time, whatever the terms say: that is what Linux knows.
const ACTIVE_MAX: usize = 2;

/// How often the wait for another attempt to add a link doubles.
const AGAIN_DOUBLINGS: u32 = 5;

/// What is under way.
#[derive(Clone, Debug)]
pub(super) enum Exclusive {
    /// Our caller makes a queue pair, for the server.
    Offering { slot: LinkSlot, again: bool },
    /// Our caller makes a queue pair, for the client, which was asked over `by`.
    Answering { slot: LinkSlot, by: LinkSlot, request: Box<AddLink> },
    /// The server has sent ADD LINK. `again`: in place of a link that was lost.
    Offered { slot: LinkSlot, again: bool },
    /// CONFIRM LINK, or its answer, is to come over the new link. `again`: in place of one that was lost.
    Confirming { slot: LinkSlot, again: bool },
    /// DELETE LINK was sent; from the server comes its own, from the client an answer.
    Deleting { slot: LinkSlot },
}

/// What the server would like to do when nothing else is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WantedLink {
    /// At which of the client's addresses it should end.
    pub(super) target: Option<Gid>,
    /// The client asked over this link, and has to be told if there will be none.
    pub(super) asked: Option<LinkSlot>,
    /// In place of one that was lost.
    pub(super) again: bool,
}

/// When a server tries to add a link in place of one that was lost, or a client asks for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Again {
    /// When, if one was.
    pub(super) at: Option<Time>,
    /// Both hosts have named a second path: those that have one only are not asked for another.
    two_paths: bool,
    /// Attempts since then that came to nothing.
    in_vain: u32,
    /// Since when there has been one that was added so.
    since: Option<Time>,
}

impl Again {
    /// There are two links. `again`: in place of one that was lost.
    pub(super) fn found(self, again: bool, now: Time) -> Self {
        Self { at: None, since: again.then_some(now), ..self }
    }
}

impl Group {
    /// A link was lost, or one that was to take its place has not come to be: another attempt, after a while.
    fn seek(&mut self, in_vain: bool, now: Time) {
        let again = &mut self.again;
        let wait = |in_vain: u32| self.limits.0.link_again * (1 << in_vain);
        // A server of ours adds it by itself. Linux's does not notice that a port of its client works again.
        let is_ours = self.role == Role::Server || !self.terms.peer_is_shunt;
        if is_ours && !self.ended && again.two_paths {
            // A path that takes a link and then does not carry it is none.
            let was_brief = |since: Time| now < since.after(wait(again.in_vain + 1));
            let in_vain = in_vain || again.since.take().is_some_and(was_brief);
            again.in_vain = if in_vain { (again.in_vain + 1).min(AGAIN_DOUBLINGS) } else { 0 };
            again.at = Some(now.after(wait(again.in_vain)));
        }
    }

    /// The time has come that [`Self::seek`] has named.
    pub(super) fn add_again(&mut self, now: Time) {
        self.again.at = None;
        if self.role == Role::Client {
            return self.ask_again(now);
        }
        if self.is_adding() {
            // If nothing comes of that, we are here again.
        } else if self.may_add() {
            self.wanted_link = Some(WantedLink { again: true, ..WantedLink::default() });
        } else if self.links.active().count() < ACTIVE_MAX {
            // The peer has still not said that it has forgotten the other one.
            self.seek(true, now);
        }
    }

    /// Client: has the server asked for a link in place of one that was lost, and once more later on, until there is one.
    fn ask_again(&mut self, now: Time) {
        if self.links.active().count() >= ACTIVE_MAX {
            return;
        }
        if self.exclusive.is_none() && self.may_add() {
            self.actions.push_back(Action::AskForLink);
        }
        self.seek(true, now);
    }

    /// Server: tries to add a link, for failover and for load; for one of the client's ports if it has named
    /// any. [`Action::CreateLink`] follows when nothing else is under way.
    pub fn add_link(&mut self, target: Option<Gid>, now: Time) {
        if self.ended || self.role != Role::Server {
            return;
        }
        let asked = self.asked.take();
        if self.may_add() && self.wanted_link.is_none() {
            self.wanted_link = Some(WantedLink { target, asked, again: false });
        } else {
            self.reject_request(asked);
        }
        self.go_on(now);
    }

    /// Server: there is nothing to answer [`Action::AddLinkRequested`] with.
    pub fn reject_add_link(&mut self) {
        let asked = self.asked.take();
        self.reject_request(asked);
    }

    /// Client: tells the server of other ports of ours. It may or may not add a link.
    pub fn request_add_link(&mut self, gids: &[Gid]) {
        let over = self.links.active().map(|(slot, _)| slot).next();
        if let (Role::Client, false, Some(link)) = (self.role, self.ended, over) {
            let gids = gids.iter().take(ACTIVE_MAX).copied().collect();
            self.send(link, false, Body::RequestAddLink(RequestAddLink { gids, reject: None }));
        }
    }

    /// Takes a link out of use for good: as if it had failed, but because somebody wants it so.
    pub fn delete_link(&mut self, slot: LinkSlot, now: Time) {
        self.take_down(slot, DeleteReason::Operator, now);
    }

    /// [`Action::CreateLink`] is done: this is our end, and these are the keys by which all buffers are
    /// reached over it.
    pub fn link_created(
        &mut self,
        slot: LinkSlot,
        end: LinkEnd,
        keys: &[(BufferId, LinkBuffer)],
        now: Time,
    ) {
        if self.ended {
            return self.actions.push_back(Action::DestroyLink(slot));
        }
        match self.exclusive.take() {
            Some(Exclusive::Offering { slot: due, again }) if due == slot => {
                self.local.extend(slot, keys);
                self.offer(slot, end, again, now);
            }
            Some(Exclusive::Answering { slot: due, by, request }) if due == slot => {
                self.local.extend(slot, keys);
                self.answer(slot, end, by, &request, now);
            }
            other => self.exclusive = other,
        }
        self.go_on(now);
    }

    /// [`Action::CreateLink`] cannot be done: there is no other port, or no memory.
    pub fn link_refused(&mut self, slot: LinkSlot, now: Time) {
        match self.exclusive.take() {
            Some(Exclusive::Offering { slot: due, again }) if due == slot => {
                let asked = self.asked.take();
                if asked.is_none() && !again && !self.terms.peer_is_shunt {
                    self.offer_nothing();
                }
                self.reject_request(asked);
                self.seek(true, now);
            }
            Some(Exclusive::Answering { slot: due, by, request }) if due == slot => {
                self.reject_add(by, *request, RejectReason::NoAlternatePath);
            }
            other => self.exclusive = other,
        }
        self.go_on(now);
    }

    fn may_add(&self) -> bool {
        self.terms.max_links > 1
            && self.links.all().count() < ACTIVE_MAX
            && self.links.free().is_some()
    }

    fn reject_request(&mut self, asked: Option<LinkSlot>) {
        if let Some(link) = asked.filter(|link| self.links.is_usable(*link)) {
            let reject = Some(RejectReason::NoAlternatePath);
            self.respond(link, Body::RequestAddLink(RequestAddLink { gids: Vec::new(), reject }));
        }
    }

    /// Server: sends ADD LINK.
    fn offer(&mut self, slot: LinkSlot, end: LinkEnd, again: bool, now: Time) {
        // Whoever asked for one is answered with it, whatever becomes of it.
        self.asked = None;
        let Some(by) = self.links.active().map(|(slot, _)| slot).next() else { return };
        let number = self.links.next_number();
        self.links.put(slot, number, end);
        let body = self.add_link_body(by, slot);
        self.send(by, false, Body::AddLink(body));
        self.begin(Exclusive::Offered { slot, again }, now.after(self.limits.0.llc_wait));
    }

    /// Client: answers ADD LINK.
    fn answer(&mut self, slot: LinkSlot, end: LinkEnd, by: LinkSlot, request: &AddLink, now: Time) {
        if !self.links.is_active(by) {
            // What the server sent over is gone, and it will have given up.
            self.actions.push_back(Action::DestroyLink(slot));
            self.local.forget_link(slot);
            return;
        }
        self.links.put(slot, request.link, end);
        self.again.two_paths = true;
        self.set_peer(by, slot, request);
        let body = self.add_link_body(by, slot);
        self.send(by, true, Body::AddLink(body));
        // Asked for, if it was, in place of one that was lost.
        let flow = Exclusive::Confirming { slot, again: self.again.at.is_some() };
        self.begin(flow, now.after(self.limits.0.added_link_wait));
    }

    /// Server: there is no second link, and a client that is Linux waits for one in `connect`: 2 s, and another one for a
    /// Decline. An offer without a size of packets it rejects at once, whatever ports it has, and nothing waits for that.
    fn offer_nothing(&mut self) {
        let over = self.links.active().map(|(slot, link)| (slot, link.end)).next();
        let Some((by, LinkEnd { gid, mac, .. })) = over else { return };
        // Without a number it would be the client's own wish for a link.
        let link = self.links.next_number();
        let v2 = Some(AddLinkV2 { direct: true, client_gid: gid, keys: Vec::new() });
        self.send(by, false, Body::AddLink(AddLink { mac, gid, link, v2, ..AddLink::default() }));
    }

    fn add_link_body(&self, by: LinkSlot, slot: LinkSlot) -> AddLink {
        let (number, end) =
            self.links.get(slot).map_or_else(Default::default, |l| (l.number, l.end));
        let keys = self.local.keys(by, slot);
        AddLink {
            mac: end.mac,
            gid: end.gid,
            qpn: end.qpn,
            link: number,
            mtu: end.mtu,
            psn: end.psn,
            reject: None,
            // Linux puts its own address here, whatever the name of the field says.
            v2: Some(AddLinkV2 { direct: true, client_gid: end.gid, keys }),
        }
    }

    /// The peer's end of a new link and its keys there are known.
    fn set_peer(&mut self, by: LinkSlot, slot: LinkSlot, body: &AddLink) {
        let peer = LinkEnd::of_add_link(body);
        if let Some(link) = self.links.get_mut(slot) {
            link.peer = Some(peer);
        }
        if let Some(v2) = &body.v2 {
            self.remote.extend(by, slot, &v2.keys);
        }
        self.actions.push_back(Action::ReadyLink { link: slot, peer });
    }

    fn begin(&mut self, flow: Exclusive, deadline: Time) {
        self.exclusive = Some(flow);
        self.exclusive_deadline = Some(deadline);
    }

    pub(super) fn end_exclusive(&mut self) {
        self.exclusive = None;
        self.exclusive_deadline = None;
    }

    /// Whether the link is the one that is being added.
    pub(super) fn adds(&self, slot: LinkSlot) -> bool {
        matches!(
            self.exclusive,
            Some(Exclusive::Offered { slot: s, .. } | Exclusive::Confirming { slot: s, .. }) if s == slot
        )
    }

    /// Server: whether a link is wanted, or being added.
    fn is_adding(&self) -> bool {
        let adds = |flow: &Exclusive| !matches!(flow, Exclusive::Deleting { .. });
        self.wanted_link.is_some() || self.exclusive.as_ref().is_some_and(adds)
    }

    /// Whether the link that is being added is to take the place of one that was lost.
    pub(super) const fn adds_again(&self) -> bool {
        matches!(self.exclusive, Some(Exclusive::Confirming { again: true, .. }))
    }

    /// Whether something waits that changes links, so that nothing about keys should begin.
    pub(super) fn wants_exclusive(&self) -> bool {
        self.delayed.is_some() || !self.to_delete.is_empty() || self.wanted_link.is_some()
    }

    /// Begins what waits. Nothing is under way that changes links.
    pub(super) fn start_exclusive(&mut self, now: Time) {
        if let Some((link, message)) = self.delayed.take()
            && self.links.is_usable(link)
        {
            self.on_link_message(link, message, now);
        }
        while self.exclusive.is_none() && !self.ended {
            let Some((slot, reason)) = self.to_delete.pop() else { break };
            self.start_delete(slot, reason, now);
        }
        if self.exclusive.is_none() && self.local.is_quiet() && !self.ended {
            self.start_add();
        }
    }

    fn start_add(&mut self) {
        let Some(wanted) = self.wanted_link.take() else { return };
        let Some(slot) = self.links.free().filter(|_| self.may_add()) else {
            return self.reject_request(wanted.asked);
        };
        self.asked = wanted.asked;
        self.exclusive = Some(Exclusive::Offering { slot, again: wanted.again });
        self.actions.push_back(Action::CreateLink { link: slot, peer: wanted.target });
    }

    fn start_delete(&mut self, slot: LinkSlot, reason: DeleteReason, now: Time) {
        let over = self.links.active().map(|(slot, _)| slot).next();
        let (Some(link), Some(over)) = (self.links.get(slot), over) else { return };
        let body = DeleteLink { link: Some(link.number), orderly: true, reason };
        self.send(over, false, Body::DeleteLink(body));
        let wait = self.limits.0.llc_wait;
        // A client has asked, and the server begins an exchange of its own.
        let wait = if self.role == Role::Server { wait } else { wait * 2 };
        self.begin(Exclusive::Deleting { slot }, now.after(wait));
    }

    /// Nothing goes over the link from now on; the peer has yet to be told.
    pub(super) fn take_down(&mut self, slot: LinkSlot, reason: DeleteReason, now: Time) {
        self.leave(slot, reason, true, now);
    }

    /// As [`Self::take_down`]. `hold`: the peer learns of it by us; see [`Self::holds`].
    pub(super) fn leave(&mut self, slot: LinkSlot, reason: DeleteReason, hold: bool, now: Time) {
        let added = !self.links.is_active(slot);
        // Linux's server answers when it has moved all connections. Its client does before that, but waits for nothing there.
        let hold = hold && self.role == Role::Client && !self.terms.peer_is_shunt;
        if self.drop_out(slot, hold) {
            // One that somebody wants to be without is not replaced.
            if reason != DeleteReason::Operator {
                self.seek(added, now);
            }
            self.to_delete.push((slot, reason));
            self.go_on(now);
        }
    }

    /// Takes the link out of use and moves its connections; whether the group goes on. `hold`: until [`Self::release`] these
    /// say nothing.
    fn drop_out(&mut self, slot: LinkSlot, hold: bool) -> bool {
        if self.ended || !self.links.is_usable(slot) {
            return false;
        }
        self.actions.push_back(Action::LinkDown(slot));
        self.links.set_down(slot);
        if self.links.active().next().is_none() {
            self.end(Terminated::NoLink);
            return false;
        }
        if self.adds(slot) {
            self.end_exclusive();
        }
        self.holds |= self.move_conns(slot, hold) && hold;
        self.local.link_lost(slot);
        true
    }

    /// What connections hold back may go.
    pub(super) fn release(&mut self) {
        if std::mem::take(&mut self.holds) {
            self.actions.push_back(Action::Release);
        }
    }

    /// The link is no more, on both sides.
    fn destroy(&mut self, slot: LinkSlot) {
        self.links.remove(slot);
        self.local.forget_link(slot);
        self.remote.forget_link(slot);
        self.to_delete.retain(|(other, _)| *other != slot);
        self.actions.push_back(Action::DestroyLink(slot));
        self.release();
    }

    pub(super) fn on_exclusive_timeout(&mut self, now: Time) {
        let flow = self.exclusive.take();
        self.end_exclusive();
        match flow {
            Some(Exclusive::Offered { slot, .. }) => {
                self.seek(true, now);
                self.destroy(slot);
            }
            Some(Exclusive::Deleting { slot }) => self.destroy(slot),
            Some(Exclusive::Confirming { slot, .. }) => {
                self.take_down(slot, DeleteReason::LostPath, now);
            }
            // These wait for our caller.
            flow @ (Some(Exclusive::Offering { .. } | Exclusive::Answering { .. }) | None) => {
                self.exclusive = flow;
            }
        }
    }

    /// ADD LINK, DELETE LINK and REQUEST ADD LINK.
    pub(super) fn on_link_message(&mut self, link: LinkSlot, message: Message, now: Time) {
        match (message.body, message.response, self.role) {
            (Body::DeleteLink(body), false, _) if body.link.is_none() => {
                // Linux says the same in return, and so does the server of RFC 7609.
                self.terminate(body.reason, Terminated::ByPeer(body.reason));
            }
            (Body::DeleteLink(body), false, _) => self.on_delete(link, body, now),
            (Body::DeleteLink(body), true, Role::Server) => self.on_delete_answer(&body),
            (Body::AddLink(body), false, Role::Client) => self.on_add(link, body),
            (Body::AddLink(body), true, Role::Server) => self.on_add_answer(link, &body, now),
            // A client's ADD LINK is a hint that it would like one.
            (Body::AddLink(body), false, Role::Server) => self.on_request(None, vec![body.gid]),
            (Body::RequestAddLink(body), false, Role::Server) => {
                self.on_request(Some(link), body.gids);
            }
            _ => {}
        }
    }

    fn on_request(&mut self, asked: Option<LinkSlot>, gids: Vec<Gid>) {
        let busy = self.exclusive.is_some() || self.wanted_link.is_some() || self.asked.is_some();
        if busy || !self.may_add() {
            return self.reject_request(asked);
        }
        self.asked = asked;
        self.actions.push_back(Action::AddLinkRequested(gids));
    }

    /// Client: the server offers a link.
    fn on_add(&mut self, by: LinkSlot, request: AddLink) {
        if self.exclusive.is_some() || !self.local.is_quiet() {
            return self.delay(by, Body::AddLink(request));
        }
        if request.mtu.bytes().is_none() {
            return self.reject_add(by, request, RejectReason::InvalidMtu);
        }
        let known = self.links.by_number(request.link).is_some() || request.link == 0;
        let Some(slot) = self.links.free().filter(|_| self.may_add() && !known) else {
            return self.reject_add(by, request, RejectReason::NoAlternatePath);
        };
        let peer = Some(request.gid);
        self.exclusive = Some(Exclusive::Answering { slot, by, request: Box::new(request) });
        self.actions.push_back(Action::CreateLink { link: slot, peer });
    }

    fn reject_add(&mut self, by: LinkSlot, request: AddLink, why: RejectReason) {
        if self.links.is_usable(by) {
            self.respond(by, Body::AddLink(AddLink { reject: Some(why), v2: None, ..request }));
        }
    }

    /// There is one place for what comes at the wrong time, as in Linux.
    fn delay(&mut self, link: LinkSlot, body: Body) {
        let message = Message { version: crate::llc::Version::V2, response: false, body };
        self.delayed.get_or_insert((link, message));
    }

    /// Server: the client has answered our offer.
    fn on_add_answer(&mut self, by: LinkSlot, body: &AddLink, now: Time) {
        let Some(Exclusive::Offered { slot, again }) = self.exclusive else { return };
        // An answer to an offer that was given up is none to this one.
        if self.links.get(slot).is_none_or(|link| link.number != body.link) {
            return;
        }
        if body.reject.is_some() || body.mtu.bytes().is_none() {
            self.end_exclusive();
            self.seek(true, now);
            return self.destroy(slot);
        }
        self.again.two_paths = true;
        self.set_peer(by, slot, body);
        self.send_confirm_link(slot, false);
        let limits = &self.limits.0;
        let wait = if again { limits.again_wait } else { limits.added_link_wait };
        self.begin(Exclusive::Confirming { slot, again }, now.after(wait));
    }

    fn on_delete(&mut self, by: LinkSlot, body: DeleteLink, now: Time) {
        let slot = body.link.and_then(|number| self.links.by_number(number));
        let this =
            |flow: &Exclusive| matches!(flow, Exclusive::Deleting { slot: s } if Some(*s) == slot);
        let deletes = self.exclusive.as_ref().is_some_and(this);
        let adds = slot.is_some_and(|slot| self.adds(slot));
        if self.exclusive.is_some() && !deletes && !adds {
            return self.delay(by, Body::DeleteLink(body));
        }
        match (self.role, slot) {
            // The client's request begins our exchange, unless it has begun or there is nothing to delete.
            (Role::Server, Some(slot)) if !deletes => self.take_down(slot, body.reason, now),
            (Role::Server, _) => {}
            (Role::Client, None) => {
                let reason = DeleteReason::UnknownLink;
                self.respond(by, Body::DeleteLink(DeleteLink { reason, ..body }));
            }
            (Role::Client, Some(slot)) => {
                let reason = DeleteReason::Other(0);
                self.respond(by, Body::DeleteLink(DeleteLink { reason, ..body }));
                let (was_up, added) = (self.links.is_usable(slot), !self.links.is_active(slot));
                self.deleted_by_server(slot, deletes || adds);
                if was_up && body.reason == DeleteReason::LostPath {
                    self.seek(added, now);
                }
            }
        }
    }

    fn deleted_by_server(&mut self, slot: LinkSlot, ends_flow: bool) {
        if self.links.is_usable(slot) && !self.drop_out(slot, false) {
            return;
        }
        if ends_flow {
            self.end_exclusive();
        }
        self.destroy(slot);
    }

    fn on_delete_answer(&mut self, body: &DeleteLink) {
        let Some(Exclusive::Deleting { slot }) = self.exclusive else { return };
        if body.link.and_then(|number| self.links.by_number(number)) == Some(slot) {
            self.end_exclusive();
            self.destroy(slot);
        }
    }
}

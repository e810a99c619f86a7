//! Our buffers, and the requests by which the peer learns of them.

use std::collections::VecDeque;

use super::link::{LinkSlot, Links};
use super::{Action, Full, Group, LINKS};
use crate::handshake::Terms;
use crate::llc::{
    Body, ConfirmRkey, DeleteRkey, DeleteRkeyAnswer, LinkKey, Message, NewKey, Version,
};
use crate::name::RKey;
use crate::time::Time;

/// Most buffers that a peer is told of: Linux keeps no more.
const BUFFERS_MAX: usize = 255;
/// Requests under way at once when the peer is Shunt.
const PIPELINED: usize = 16;
/// Answers that may be missing on a link before it counts as failed.
const MISSING_MAX: usize = 16;

/// Names one of our buffers in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(u8);

/// How the peer reaches one of our buffers over one link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkBuffer {
    /// Key on the link.
    pub rkey: RKey,
    /// Virtual address on the link.
    pub vaddr: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The peer has not been told, or no.
    Unknown,
    /// The peer may write, as far as we know.
    Known,
    Confirming,
    Deleting,
    /// The peer has forgotten it, or was told to; our caller has yet to hear of that.
    Deleted,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    on: [Option<LinkBuffer>; LINKS],
    state: State,
    /// The peer was asked for it, over a link that may be lost by now: it may know the keys.
    asked: bool,
    /// Nobody needs it any more, while it is [`State::Confirming`]: what follows is [`State::Deleting`].
    unwanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Confirm,
    Delete,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Request {
    kind: Kind,
    buffer: BufferId,
    link: LinkSlot,
    /// `None`: was given up, but the answer may still come and must not be taken for another's.
    deadline: Option<Time>,
}

/// How the peer learns of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// By LLC, so many requests at a time.
    Asked(usize),
    /// By CLC alone, where both ends are Shunt and there will be one link: Accept and Confirm name the
    /// buffer, and its key is good for as long as the connection. That saves two round trips at the begin of
    /// each connection, and two exchanges at its end.
    Named,
}

impl Telling {
    pub(super) const fn with(terms: &Terms) -> Self {
        match (terms.peer_is_shunt, terms.max_links) {
            (true, 1) => Self::Named,
            (true, _) => Self::Asked(PIPELINED),
            (false, _) => Self::Asked(1),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Local {
    buffers: Vec<Option<Buffer>>,
    waiting: VecDeque<(Kind, BufferId)>,
    under_way: VecDeque<Request>,
    telling: Telling,
}

impl Local {
    pub(super) fn new(telling: Telling) -> Self {
        let (waiting, under_way) = (VecDeque::new(), VecDeque::new());
        Self { buffers: Vec::new(), waiting, under_way, telling }
    }

    pub(super) const fn set_telling(&mut self, telling: Telling) {
        self.telling = telling;
    }

    fn get(&mut self, id: BufferId) -> Option<&mut Buffer> {
        self.buffers.get_mut(usize::from(id.0))?.as_mut()
    }

    fn add(&mut self, on: [Option<LinkBuffer>; LINKS], state: State) -> Option<BufferId> {
        let at = self.buffers.iter().position(Option::is_none).unwrap_or(self.buffers.len());
        let id = BufferId(u8::try_from(at).ok().filter(|_| at < BUFFERS_MAX)?);
        if at == self.buffers.len() {
            self.buffers.push(None);
        }
        self.buffers[at] = Some(Buffer { on, state, asked: false, unwanted: false });
        Some(id)
    }

    /// Whether there is a place for another.
    pub(super) fn has_room(&self) -> bool {
        self.len() < BUFFERS_MAX
    }

    /// Nothing about keys is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.alive() == 0
    }

    fn alive(&self) -> usize {
        self.under_way.iter().filter(|request| request.deadline.is_some()).count()
    }

    /// Keys of all buffers on a new link, for those that the peer knows by the other one.
    pub(super) fn keys(&self, by: LinkSlot, new: LinkSlot) -> Vec<NewKey> {
        let key = |buffer: &Buffer| {
            let (known, new) = (buffer.on[by.index()]?, buffer.on[new.index()]?);
            let told = !matches!(buffer.state, State::Unknown | State::Deleted);
            told.then_some(NewKey { known: known.rkey, new: new.rkey, vaddr: new.vaddr })
        };
        self.buffers.iter().flatten().filter_map(key).collect()
    }

    /// All buffers are reachable over another link.
    pub(super) fn extend(&mut self, link: LinkSlot, keys: &[(BufferId, LinkBuffer)]) {
        for (id, key) in keys {
            if let Some(buffer) = self.get(*id) {
                buffer.on[link.index()] = Some(*key);
            }
        }
    }

    pub(super) fn forget_link(&mut self, link: LinkSlot) {
        for buffer in self.buffers.iter_mut().flatten() {
            buffer.on[link.index()] = None;
        }
    }

    /// Sends what waits, as far as the peer allows.
    pub(super) fn start(&mut self, links: &Links, deadline: Time, actions: &mut VecDeque<Action>) {
        let most = match self.telling {
            Telling::Asked(most) => most,
            Telling::Named => {
                while let Some((kind, id)) = self.waiting.pop_front() {
                    self.finish(kind, id, true, actions);
                }
                return;
            }
        };
        while self.alive() < most {
            let Some((kind, id)) = self.waiting.pop_front() else { return };
            let Some(buffer) = self.get(id).map(|buffer| *buffer) else { continue };
            let usable = |slot: &LinkSlot| buffer.on[slot.index()].is_some();
            let Some(link) = links.active().map(|(slot, _)| slot).find(usable) else {
                self.finish(kind, id, false, actions);
                continue;
            };
            let body = match kind {
                Kind::Confirm => confirm(&buffer, links, link),
                Kind::Delete => delete(&buffer, link),
            };
            if let Some(buffer) = self.get(id) {
                buffer.asked = true;
            }
            let bytes = Message { version: Version::V2, response: false, body }.emit();
            actions.push_back(Action::Send { link, bytes });
            let deadline = Some(deadline);
            self.under_way.push_back(Request { kind, buffer: id, link, deadline });
        }
    }

    /// The oldest request of a kind on a link has been answered.
    fn answered(&mut self, kind: Kind, link: LinkSlot) -> Option<Request> {
        let of = |request: &Request| request.kind == kind && request.link == link;
        let at = self.under_way.iter().position(of)?;
        self.under_way.remove(at).filter(|request| request.deadline.is_some())
    }

    pub(super) fn on_confirmed(
        &mut self,
        link: LinkSlot,
        body: &ConfirmRkey,
        actions: &mut VecDeque<Action>,
    ) {
        if let Some(request) = self.answered(Kind::Confirm, link) {
            self.finish(Kind::Confirm, request.buffer, !body.negative, actions);
        }
    }

    pub(super) fn on_deleted(&mut self, link: LinkSlot, actions: &mut VecDeque<Action>) {
        // That the peer did not know the key comes to the same.
        if let Some(request) = self.answered(Kind::Delete, link) {
            self.finish(Kind::Delete, request.buffer, true, actions);
        }
    }

    fn finish(&mut self, kind: Kind, id: BufferId, yes: bool, actions: &mut VecDeque<Action>) {
        let Some(buffer) = self.get(id) else { return };
        if kind == Kind::Confirm && buffer.unwanted {
            // Whoever wanted it has gone. Without an answer, too, the peer may know it.
            return self.delete_later(id);
        }
        actions.push_back(match (kind, yes) {
            (Kind::Confirm, true) => {
                buffer.state = State::Known;
                Action::RkeyConfirmed(id)
            }
            (Kind::Confirm, false) => {
                buffer.state = State::Unknown;
                Action::RkeyRejected(id)
            }
            (Kind::Delete, acknowledged) => {
                buffer.state = State::Deleted;
                Action::RkeyDeleted { buffer: id, acknowledged }
            }
        });
    }

    /// Our caller hears that a buffer is deleted. What it names may name another one from now on, and not before:
    /// whatever is done until then would be undone for the wrong one.
    pub(super) fn forget(&mut self, id: BufferId) {
        if self.get(id).is_some_and(|buffer| buffer.state == State::Deleted) {
            self.buffers[usize::from(id.0)] = None;
        }
    }

    /// Buffers that there are.
    pub(super) fn len(&self) -> usize {
        self.buffers.iter().flatten().count()
    }

    fn delete_later(&mut self, id: BufferId) {
        if let Some(buffer) = self.get(id) {
            (buffer.state, buffer.unwanted) = (State::Deleting, false);
            self.waiting.push_back((Kind::Delete, id));
        }
    }

    /// Nobody needs a buffer any more: the peer is to forget it, once it has answered what it was asked. What it
    /// was never asked it need not forget.
    fn unwant(&mut self, id: BufferId, actions: &mut VecDeque<Action>) {
        let Some(buffer) = self.get(id).map(|buffer| *buffer) else { return };
        match buffer.state {
            State::Deleting | State::Deleted => {}
            State::Known | State::Unknown => self.delete_later(id),
            State::Confirming => {
                let before = self.waiting.len();
                self.waiting.retain(|waits| *waits != (Kind::Confirm, id));
                if self.waiting.len() == before {
                    if let Some(buffer) = self.get(id) {
                        buffer.unwanted = true;
                    }
                } else if buffer.asked {
                    self.delete_later(id);
                } else {
                    self.finish(Kind::Delete, id, true, actions);
                }
            }
        }
    }

    /// What was under way on a link that is lost is asked again on another.
    pub(super) fn link_lost(&mut self, link: LinkSlot) {
        let (lost, kept): (VecDeque<_>, _) =
            self.under_way.drain(..).partition(|request| request.link == link);
        self.under_way = kept;
        for request in lost.iter().rev().filter(|request| request.deadline.is_some()) {
            let kind = match self.get(request.buffer) {
                Some(buffer) if buffer.unwanted => {
                    (buffer.state, buffer.unwanted) = (State::Deleting, false);
                    Kind::Delete
                }
                _ => request.kind,
            };
            self.waiting.push_front((kind, request.buffer));
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.under_way.iter().filter_map(|request| request.deadline).min()
    }

    /// Gives up what was not answered in time. The link on which too many answers are missing.
    pub(super) fn on_deadline(
        &mut self,
        now: Time,
        actions: &mut VecDeque<Action>,
    ) -> Option<LinkSlot> {
        let mut late = Vec::new();
        for request in &mut self.under_way {
            if request.deadline.is_some_and(|deadline| deadline <= now) {
                request.deadline = None;
                late.push((request.kind, request.buffer));
            }
        }
        for (kind, buffer) in late {
            self.finish(kind, buffer, false, actions);
        }
        let missing = |link: &LinkSlot| {
            let of = |r: &&Request| r.link == *link && r.deadline.is_none();
            self.under_way.iter().filter(of).count() > MISSING_MAX
        };
        LinkSlot::ALL.into_iter().find(missing)
    }
}

fn confirm(buffer: &Buffer, links: &Links, link: LinkSlot) -> Body {
    let key = |slot: LinkSlot, number: u8| {
        let LinkBuffer { rkey, vaddr } = buffer.on[slot.index()].unwrap_or_default();
        LinkKey { link: number, rkey, vaddr }
    };
    let has = |slot: LinkSlot| buffer.on[slot.index()].is_some();
    let others = links.active().filter(|(slot, _)| *slot != link && has(*slot));
    let mut body = ConfirmRkey { this: key(link, 0), ..ConfirmRkey::default() };
    for ((slot, other), place) in others.zip(&mut body.others) {
        *place = key(slot, other.number);
        body.this.link += 1;
    }
    Body::ConfirmRkey(body)
}

fn delete(buffer: &Buffer, link: LinkSlot) -> Body {
    let keys = buffer.on[link.index()].iter().map(|key| key.rkey).collect();
    Body::DeleteRkey(DeleteRkey { keys, answer: DeleteRkeyAnswer::default() })
}

impl Group {
    /// Links for which a new buffer must have keys.
    pub fn links(&self) -> impl Iterator<Item = LinkSlot> {
        self.links.all().map(|(slot, _)| slot)
    }

    /// A buffer of ours that the peer learns of by Accept or Confirm of first contact, which is as good as
    /// CONFIRM RKEY. To be called before that message is sent. `keys`: by which it is reached over each of [`Group::links`].
    ///
    /// # Errors
    ///
    /// There are 255 already.
    pub fn add_first_buffer(&mut self, keys: &[(LinkSlot, LinkBuffer)]) -> Result<BufferId, Full> {
        self.add_buffer(keys, State::Known)
    }

    /// A buffer of ours, or one that is used again. The peer is told by CONFIRM RKEY; wait for
    /// [`Action::RkeyConfirmed`] before the Accept or Confirm that names it is sent. `keys`: by which it is
    /// reached over each of [`Group::links`].
    ///
    /// # Errors
    ///
    /// There are 255 already.
    pub fn confirm_rkey(
        &mut self,
        keys: &[(LinkSlot, LinkBuffer)],
        now: Time,
    ) -> Result<BufferId, Full> {
        let id = self.add_buffer(keys, State::Confirming)?;
        self.local.waiting.push_back((Kind::Confirm, id));
        self.go_on(now);
        Ok(id)
    }

    /// Whether the peer may write into the buffer over each link, as far as we know. One that no connection uses any
    /// more, and that was not given to [`Group::delete_rkey`], can be another's then without a word by LLC: Accept or
    /// Confirm names it again.
    ///
    /// The peer must not write for the connection that had it before. One that is Shunt does not once it has said
    /// [`crate::cdc::StateFlags::CLOSED`]; Linux does: what a program had not sent in two seconds when it closed, or when
    /// it exited, goes when there is room, until DELETE RKEY takes the key from it.
    #[must_use]
    pub fn is_known(&self, id: BufferId) -> bool {
        let Some(Some(buffer)) = self.local.buffers.get(usize::from(id.0)) else { return false };
        let reached = |(slot, _): (LinkSlot, _)| buffer.on[slot.index()].is_some();
        !self.ended && buffer.state == State::Known && self.links.all().all(reached)
    }

    /// Our buffers, those that are about to be forgotten among them; there are 255 at most.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.local.len()
    }

    fn add_buffer(
        &mut self,
        keys: &[(LinkSlot, LinkBuffer)],
        state: State,
    ) -> Result<BufferId, Full> {
        let mut on = [None; LINKS];
        for (slot, key) in keys {
            on[slot.index()] = Some(*key);
        }
        if self.ended { Err(Full) } else { self.local.add(on, state).ok_or(Full) }
    }

    /// No connection uses the buffer any more: the peer is told to forget it. When it has been
    /// ([`Action::RkeyDeleted`]) the memory may be used again. That may also be said while the peer has yet to confirm
    /// it: neither [`Action::RkeyConfirmed`] nor [`Action::RkeyRejected`] follows then.
    pub fn delete_rkey(&mut self, id: BufferId, now: Time) {
        self.local.unwant(id, &mut self.actions);
        self.go_on(now);
    }
}

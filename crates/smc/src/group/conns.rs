//! The connections of a group: their tokens, and which link each uses.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::link::{LinkSlot, Links};
use super::remote::RemoteId;
use super::{Action, Group, Role};
use crate::clc::Diagnosis;
use crate::conn::Remote;
use crate::name::{RKey, Token};
use crate::time::Time;

/// A connection has a place in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// What the peer's CDC messages for it must carry; unique in the group, not 0.
    pub token: Token,
    /// The link that it uses.
    pub link: LinkSlot,
}

/// The group can take no more; another may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the link group is full or has no link")]
pub struct Full;

#[derive(Clone, Copy, Debug)]
struct Record {
    link: LinkSlot,
    buffer: Option<RemoteId>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Conns {
    records: BTreeMap<Token, Record>,
    /// Token that was given last.
    last: u32,
}

impl Conns {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn open(&mut self, link: LinkSlot) -> Token {
        // There are at most 255, so one of the next 256 is free.
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            let token = Token(self.last);
            if let Entry::Vacant(place) = self.records.entry(token) {
                place.insert(Record { link, buffer: None });
                return token;
            }
        }
    }

    #[cfg(test)]
    pub(super) const fn skip_to(&mut self, last: u32) {
        self.last = last;
    }

    pub(super) fn link_of(&self, token: Token) -> Option<LinkSlot> {
        self.records.get(&token).map(|record| record.link)
    }

    pub(super) fn buffer_of(&self, token: Token) -> Option<RemoteId> {
        self.records.get(&token)?.buffer
    }

    pub(super) fn assign(&mut self, token: Token, link: LinkSlot) {
        if let Some(record) = self.records.get_mut(&token) {
            record.link = link;
        }
    }

    pub(super) fn on_link(&self, link: LinkSlot) -> Vec<Token> {
        let on = self.records.iter().filter(|(_, record)| record.link == link);
        on.map(|(token, _)| *token).collect()
    }

    /// The active link with the fewest connections; of several the first. With two that is how Linux
    /// alternates, and it evens out what has closed.
    pub(super) fn least_used(&self, links: &Links) -> Option<LinkSlot> {
        let used = |slot: LinkSlot| self.records.values().filter(|r| r.link == slot).count();
        links.active().map(|(slot, _)| slot).min_by_key(|slot| used(*slot))
    }
}

impl Group {
    /// A connection joins. The server chooses the link; the client uses the one that the Accept named, or
    /// the first if the group is new.
    ///
    /// # Errors
    ///
    /// There is no room, or no such link.
    pub fn open(&mut self, named: Option<LinkSlot>) -> Result<Opened, Full> {
        // The number of the first link may be that of one that is added later.
        let is_new = self.links.is_activating(LinkSlot::FIRST)
            && self.links.active().next().is_none()
            && self.conns.is_empty();
        // The limit is the server's to keep (Linux); a client that were to count would only disagree.
        let full = match self.role {
            Role::Server => !is_new && !self.has_room(),
            Role::Client => self.ended || self.conns.len() >= usize::from(u8::MAX),
        };
        if full || self.ended {
            return Err(Full);
        }
        let link = match named {
            Some(link) if self.links.is_active(link) => link,
            Some(_) => return Err(Full),
            None if is_new => LinkSlot::FIRST,
            None => self.conns.least_used(&self.links).ok_or(Full)?,
        };
        self.idle_deadline = None;
        Ok(Opened { token: self.conns.open(link), link })
    }

    /// Where the peer's RMB is, out of its Accept or Confirm, which named a link too. The answer is where it
    /// is on the link that the connection uses, which may have changed meanwhile.
    ///
    /// With first contact this comes before the link is confirmed (client: before the Confirm is sent;
    /// server: before [`Group::first_contact`]), or the peer's buffer would not be known when another link
    /// is added.
    ///
    /// # Errors
    ///
    /// What to decline with, or to abort by if that is too late.
    pub fn reach(
        &mut self,
        token: Token,
        named: LinkSlot,
        rkey: RKey,
        vaddr: u64,
    ) -> Result<(LinkSlot, Remote), Diagnosis> {
        let link = self.conns.link_of(token).ok_or(Diagnosis::Internal)?;
        // The link that was named may be down, but what is known by it must not be another's.
        if self.ended || self.links.get(named).is_none() || !self.links.is_usable(link) {
            return Err(Diagnosis::NoActiveLink);
        }
        let buffer = self.remote.take(named, Remote { rkey, vaddr }).ok_or(Diagnosis::RToken)?;
        let record = self.conns.records.get_mut(&token);
        if let Some(old) = record.and_then(|record| record.buffer.replace(buffer)) {
            self.remote.give(old);
        }
        let remote = self.remote.on_link(buffer, link).ok_or(Diagnosis::NoActiveLink)?;
        Ok((link, remote))
    }

    /// The link that a connection uses.
    #[must_use]
    pub fn link_of(&self, token: Token) -> Option<LinkSlot> {
        self.conns.link_of(token)
    }

    /// Connections.
    #[must_use]
    pub fn conns(&self) -> impl ExactSizeIterator<Item = Token> {
        self.conns.records.keys().copied()
    }

    /// A connection is over, on both sides ([`crate::conn::Conn::is_over`]), or was never there. Its buffer
    /// is to be told to the peer by [`Group::delete_rkey`] before it is used again.
    pub fn close(&mut self, token: Token, now: Time) {
        let Some(record) = self.conns.records.remove(&token) else { return };
        if let Some(buffer) = record.buffer {
            self.remote.give(buffer);
        }
        if self.conns.is_empty() && self.first_deadline.is_none() {
            self.idle_deadline = Some(self.idle_after(now));
        }
        let stale = |action: &Action| matches!(action, Action::Move { token: t, .. } | Action::Strand(t) if *t == token);
        self.actions.retain(|action| !stale(action));
    }
}

//! The links of a group, and whether they are alive.

use std::time::Duration;

use super::LINKS;
use crate::clc::RdmaAnswer;
use crate::llc::AddLink;
use crate::name::{Gid, Mac, Mtu, Psn, Qpn};
use crate::time::Time;

/// Which side of a link group: the one that accepted or the one that connected first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Decides about links.
    Server,
    /// Asks for what it wants.
    Client,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkEnd {
    /// Address of the RoCE port.
    pub gid: Gid,
    /// Its MAC address.
    pub mac: Mac,
    /// Queue pair.
    pub qpn: Qpn,
    /// First packet number that it sends.
    pub psn: Psn,
    /// Largest packet that it takes.
    pub mtu: Mtu,
}

impl LinkEnd {
    pub(super) const fn of_answer(answer: &RdmaAnswer) -> Self {
        let RdmaAnswer { gid, mac, qpn, psn, mtu, .. } = *answer;
        Self { gid, mac, qpn, psn, mtu }
    }

    pub(super) const fn of_add_link(body: &AddLink) -> Self {
        let AddLink { gid, mac, qpn, psn, mtu, .. } = *body;
        Self { gid, mac, qpn, psn, mtu }
    }
}

/// Names a link of a group on this side; the peer may have another name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkSlot(u8);

impl LinkSlot {
    /// The link of first contact.
    pub const FIRST: Self = Self(0);
    /// All that there can be.
    pub const ALL: [Self; LINKS] = [Self(0), Self(1), Self(2)];

    /// A number from 0 to 2.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Being set up.
    Activating,
    /// In use.
    Active,
    /// Failed; the peer is being told.
    Down,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    state: State,
    /// What both sides call it; given by the server, not 0.
    pub(super) number: u8,
    pub(super) end: LinkEnd,
    pub(super) peer: Option<LinkEnd>,
    /// When something came over it.
    heard: Time,
    /// Something has to come before this.
    tested: Option<Time>,
}

/// What is to be done about a link's being alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Quiet,
    Send,
    Dead,
}

#[derive(Clone, Debug)]
pub(super) struct Links {
    slots: [Option<Link>; LINKS],
    /// Number that was given last.
    numbered: u8,
    /// Place that was taken last.
    last: LinkSlot,
}

impl Links {
    pub(super) fn first(end: LinkEnd, role: Role) -> Self {
        // The client learns the number from CONFIRM LINK.
        let number = if role == Role::Server { 1 } else { 0 };
        let mut links = Self { slots: [None; LINKS], numbered: number, last: LinkSlot::FIRST };
        links.put(LinkSlot::FIRST, number, end);
        links
    }

    pub(super) fn put(&mut self, slot: LinkSlot, number: u8, end: LinkEnd) {
        let (state, heard) = (State::Activating, Time::default());
        let link = Link { state, number, end, peer: None, heard, tested: None };
        self.slots[slot.index()] = Some(link);
        self.last = slot;
    }

    pub(super) fn remove(&mut self, slot: LinkSlot) {
        self.slots[slot.index()] = None;
    }

    pub(super) fn get(&self, slot: LinkSlot) -> Option<&Link> {
        self.slots[slot.index()].as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: LinkSlot) -> Option<&mut Link> {
        self.slots[slot.index()].as_mut()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (LinkSlot, &Link)> {
        LinkSlot::ALL.into_iter().zip(&self.slots).filter_map(|(s, l)| Some((s, l.as_ref()?)))
    }

    pub(super) fn active(&self) -> impl Iterator<Item = (LinkSlot, &Link)> {
        self.all().filter(|(_, link)| link.state == State::Active)
    }

    /// A place for another link. The one that was used last comes last, so that whoever still speaks of
    /// the link that was there does not mean another.
    pub(super) fn free(&self) -> Option<LinkSlot> {
        let after_last = LinkSlot::ALL.into_iter().cycle().skip(self.last.index() + 1);
        after_last.take(LINKS).find(|slot| self.get(*slot).is_none())
    }

    pub(super) fn by_number(&self, number: u8) -> Option<LinkSlot> {
        self.all().find(|(_, link)| link.number == number).map(|(slot, _)| slot)
    }

    /// A number that no link of the group has.
    pub(super) fn next_number(&mut self) -> u8 {
        loop {
            self.numbered = self.numbered.wrapping_add(1).max(1);
            if self.by_number(self.numbered).is_none() {
                return self.numbered;
            }
        }
    }

    pub(super) fn is_active(&self, slot: LinkSlot) -> bool {
        self.get(slot).is_some_and(|link| link.state == State::Active)
    }

    pub(super) fn is_activating(&self, slot: LinkSlot) -> bool {
        self.get(slot).is_some_and(|link| link.state == State::Activating)
    }

    /// Messages may go over it.
    pub(super) fn is_usable(&self, slot: LinkSlot) -> bool {
        self.get(slot).is_some_and(|link| link.state != State::Down)
    }

    pub(super) fn activate(&mut self, slot: LinkSlot, now: Time) {
        if let Some(link) = self.get_mut(slot) {
            (link.state, link.heard) = (State::Active, now);
        }
    }

    pub(super) fn set_down(&mut self, slot: LinkSlot) {
        if let Some(link) = self.get_mut(slot) {
            (link.state, link.tested) = (State::Down, None);
        }
    }

    /// Something came over the link; whether there is one.
    pub(super) fn heard(&mut self, slot: LinkSlot, now: Time) -> bool {
        let link = self.get_mut(slot);
        link.map(|link| (link.heard, link.tested) = (now, None)).is_some()
    }

    pub(super) fn test(
        &mut self,
        slot: LinkSlot,
        idle: Duration,
        wait: Duration,
        now: Time,
    ) -> Test {
        let Some(link) = self.get_mut(slot).filter(|link| link.state == State::Active) else {
            return Test::Quiet;
        };
        match link.tested {
            Some(deadline) if deadline <= now => Test::Dead,
            None if !idle.is_zero() && link.heard.after(idle) <= now => {
                link.tested = Some(now.after(wait));
                Test::Send
            }
            Some(_) | None => Test::Quiet,
        }
    }

    pub(super) fn next_deadline(&self, idle: Duration) -> Option<Time> {
        let of =
            |link: &Link| link.tested.or_else(|| (!idle.is_zero()).then(|| link.heard.after(idle)));
        self.active().filter_map(|(_, link)| of(link)).min()
    }
}

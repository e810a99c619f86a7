//! What a peer says over the links of a group, while we tell it of buffers and have it forget them.
#![no_main]

use std::collections::{BTreeMap, VecDeque};

use smc::cdc::Cdc;
use smc::clc::RdmaAnswer;
use smc::group::{Action, BufferId, Group, LinkBuffer, LinkEnd, LinkSlot, Role};
use smc::handshake::{PeerEnd, Proposed, Terms};
use smc::llc::{Body, ConfirmLink, Message, Version};
use smc::{Config, Gid, Mac, Mtu, Qpn, RKey, SystemId, Time};

/// Types of messages about keys, and flags of answers.
const KEYS: [u8; 2] = [0x26, 0x29];
const RESPONSE: u8 = 0x80;
const NEGATIVE: u8 = 0x20;

/// What we know of a buffer of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The peer is asked.
    Asked,
    /// It has answered, or it has not in time.
    Answered,
    /// It is to forget it.
    Unwanted,
}

/// Our buffers, and requests about them that the peer has not answered.
#[derive(Default)]
struct Buffers {
    all: BTreeMap<BufferId, (Told, LinkBuffer)>,
    unanswered: VecDeque<(LinkSlot, Vec<u8>)>,
    next: u32,
}

impl Buffers {
    fn confirm(&mut self, group: &mut Group, at: Time) {
        self.next += 1;
        let key = LinkBuffer { rkey: RKey(self.next), vaddr: u64::from(self.next) << 16 };
        let keys: Vec<_> = group.links().map(|slot| (slot, key)).collect();
        if let Ok(id) = group.confirm_rkey(&keys, at) {
            let before = self.all.insert(id, (Told::Asked, key));
            assert_eq!(before, None, "{id:?} names two");
        }
    }

    /// Has one of those that are wanted forgotten: the oldest or the newest.
    fn delete(&mut self, group: &mut Group, oldest: bool, at: Time) {
        let mut wanted = self.all.iter_mut().filter(|(_, (told, _))| *told != Told::Unwanted);
        let found = if oldest { wanted.next() } else { wanted.next_back() };
        if let Some((id, (told, _))) = found {
            *told = Told::Unwanted;
            group.delete_rkey(*id, at);
        }
    }

    /// The peer answers what it was asked first.
    fn answer(&mut self, group: &mut Group, negative: bool, at: Time) {
        if let Some((link, mut bytes)) = self.unanswered.pop_front() {
            bytes[3] |= if negative { RESPONSE | NEGATIVE } else { RESPONSE };
            group.on_message(link, &bytes, at);
        }
    }

    fn hear(&mut self, action: &Action) {
        match action {
            Action::Send { link, bytes } if KEYS.contains(&bytes[0]) && bytes[3] & RESPONSE == 0 => {
                self.unanswered.push_back((*link, bytes.clone()));
            }
            Action::RkeyConfirmed(id) | Action::RkeyRejected(id) => {
                let (told, _) = self.all.get_mut(id).expect("one of ours");
                assert_eq!(*told, Told::Asked, "{action:?}");
                *told = Told::Answered;
            }
            Action::RkeyDeleted { buffer, .. } => {
                let told = self.all.remove(buffer).map(|(told, _)| told);
                assert_eq!(told, Some(Told::Unwanted), "{action:?}");
            }
            _ => {}
        }
    }

    fn keys(&self) -> Vec<(BufferId, LinkBuffer)> {
        self.all.iter().map(|(id, (_, key))| (*id, *key)).collect()
    }
}

/// The peer confirms the first link.
fn confirm(group: &mut Group) {
    let body = ConfirmLink {
        mac: Mac::default(),
        gid: Gid::default(),
        qpn: Qpn::default(),
        link: 1,
        user_id: [0; 4],
        max_links: 2,
        max_conns: 16,
        eye_catcher_bits: ConfirmLink::NO_EYE_CATCHERS,
    };
    let response = group.role() == Role::Server;
    let message = Message { version: Version::V2, response, body: Body::ConfirmLink(body) };
    group.on_message(LinkSlot::FIRST, &message.emit(), Time::default());
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::parse(bytes) {
        assert_eq!(Message::parse(&message.emit()), Ok(message));
    }
    if let Ok(cdc) = Cdc::parse(bytes) {
        let again = cdc.emit();
        assert_eq!(Cdc::parse(&again), Ok(cdc));
        let len = bytes.len().min(again.len());
        assert_eq!(again[..len], bytes[..len]);
    }
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    let max_links = if choice & 4 == 0 { 2 } else { 1 };
    let config = Config { max_links, ..Config::default() };
    let limits = config.limits().expect("settings");
    let eid = smc::Eid::default();
    let shunt = choice & 2 != 0;
    let terms =
        Terms { release: 1, max_conns: 16, max_links, features: 0, eid, peer_is_shunt: shunt, marks: shunt };
    let end = LinkEnd { qpn: Qpn::new(1), mtu: Mtu::BYTES_1024, ..LinkEnd::default() };
    let peer = PeerEnd { answer: RdmaAnswer::default(), terms: Some(terms) };
    let proposed =
        Proposed { system: SystemId([0; 8]), gid: Gid::default(), mac: Mac::default(), terms };
    let mut group = if choice & 1 == 0 {
        let mut group = Group::server(limits, &proposed, end);
        group.first_contact(&peer, Time::default());
        group
    } else {
        Group::client(limits, &peer, end, Time::default()).expect("first contact")
    };
    if choice & 8 != 0 {
        confirm(&mut group);
    }
    let mut buffers = Buffers::default();
    let mut now = 0;
    while let Some((head, after)) = rest.split_first_chunk::<3>() {
        let [how, time, len] = *head;
        let message;
        (message, rest) = after.split_at(usize::from(len).min(after.len()));
        now += u64::from(time) * 50_000_000;
        let at = Time::from_nanos(now);
        group.on_message(LinkSlot::ALL[usize::from(how & 3) % 3], message, at);
        group.on_deadline(at);
        act(&mut group, &mut buffers, how, end, at);
        match how >> 4 & 7 {
            1 | 2 => buffers.confirm(&mut group, at),
            3 | 4 => buffers.delete(&mut group, how >> 4 & 1 == 0, at),
            5 | 6 => buffers.answer(&mut group, how >> 4 & 1 == 0, at),
            7 => group.on_link_failed(LinkSlot::ALL[usize::from(how & 3) % 3], at),
            _ => {}
        }
        act(&mut group, &mut buffers, how, end, at);
        assert!(group.conns().len() <= 255 && group.buffers() <= 255);
    }
});

/// Does what the group wants.
fn act(group: &mut Group, buffers: &mut Buffers, how: u8, end: LinkEnd, at: Time) {
    let mut actions = 0;
    while let Some(action) = group.poll() {
        actions += 1;
        assert!(actions < 600, "much of little");
        buffers.hear(&action);
        match action {
            Action::CreateLink { link: slot, .. } if how & 8 != 0 => group.link_refused(slot, at),
            Action::CreateLink { link: slot, .. } => {
                group.link_created(slot, end, &buffers.keys(), at);
            }
            Action::LinkActive(_) => drop(group.open(None)),
            _ => {}
        }
    }
}

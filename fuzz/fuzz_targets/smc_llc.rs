//! What a peer says over the links of a group.
#![no_main]

use smc::clc::RdmaAnswer;
use smc::group::{Action, Group, LinkEnd, LinkSlot};
use smc::handshake::{PeerEnd, Proposed, Terms};
use smc::llc::Message;
use smc::{Config, Gid, Mac, Mtu, Qpn, SystemId, Time};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::parse(bytes) {
        assert_eq!(Message::parse(&message.emit()), Ok(message));
    }
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    let config = Config { max_links: 2, ..Config::default() };
    let limits = config.limits().expect("settings");
    let eid = smc::Eid::default();
    let shunt = choice & 2 != 0;
    let terms =
        Terms { release: 1, max_conns: 16, max_links: 2, features: 0, eid, peer_is_shunt: shunt, marks: shunt };
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
    let mut now = 0;
    while let Some((head, after)) = rest.split_first_chunk::<3>() {
        let [link, time, len] = *head;
        let message;
        (message, rest) = after.split_at(usize::from(len).min(after.len()));
        now += u64::from(time) * 50_000_000;
        let at = Time::from_nanos(now);
        group.on_message(LinkSlot::ALL[usize::from(link) % 3], message, at);
        group.on_deadline(at);
        let mut actions = 0;
        while let Some(action) = group.poll() {
            actions += 1;
            assert!(actions < 300, "much of little");
            match action {
                Action::CreateLink { link: slot, .. } if link & 4 != 0 => {
                    group.link_refused(slot, at)
                }
                Action::CreateLink { link: slot, .. } => group.link_created(slot, end, &[], at),
                Action::LinkActive(_) => drop(group.open(None)),
                _ => {}
            }
        }
        assert!(group.conns().len() <= 255);
    }
});

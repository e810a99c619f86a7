//! The state of the kernel's SMC, and its settings.

use std::net::Ipv4Addr;

use anyhow::{Context, ensure};
use testkit::kernels::state::{Connection, Cursor, Group, Link, Mode, State};

use crate::netlink::{Family, Netlink, Wish, attribute, put};

const AF_SMC: u8 = 43;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// All extensions that there are.
const EXTENSIONS: u8 = 0x1f;
const DIAG_REQUEST: usize = 52;
const DIAG_ANSWER: usize = 64;
const DIAG_CONNECTION: u16 = 1;
const DIAG_FALLBACK: u16 = 5;

const SMC: &str = "SMC_GEN_NETLINK";
const GET_GROUPS: u8 = 2;
const GET_LINKS: u8 = 3;
const ADD_EID: u8 = 10;
const CLEAR_EIDS: u8 = 12;
const EID: u16 = 1;
const EID_LEN: usize = 32;
const GROUP: u16 = 2;
const LINK: u16 = 3;

const PNET: &str = "SMC_PNETID";
const PNET_ADD: u8 = 2;

/// Messages of RDMA devices: part 5 (devices and links) of that kind of netlink.
const RDMA_DEVICES: u16 = 5 << 10;
const RDMA_GET: u16 = 1;
const RDMA_NEW: u16 = 3;
const RDMA_REMOVE: u16 = 4;
const RDMA_INDEX: u16 = 1;
const RDMA_NAME: u16 = 2;
const RDMA_INTERFACE: u16 = 51;
const RDMA_KIND: u16 = 65;

/// Names of states, by the numbers of `net/smc/smc.h`.
const STATES: &[(u8, &str)] = &[
    (1, "ACTIVE"),
    (2, "INIT"),
    (7, "CLOSED"),
    (10, "LISTEN"),
    (20, "PEERCLOSEWAIT1"),
    (21, "PEERCLOSEWAIT2"),
    (22, "APPCLOSEWAIT1"),
    (23, "APPCLOSEWAIT2"),
    (24, "APPFINCLOSEWAIT"),
    (25, "PEERFINCLOSEWAIT"),
    (26, "PEERABORTWAIT"),
    (27, "PROCESSABORT"),
];

pub(crate) fn state() -> anyhow::Result<State> {
    let family = Family::open(SMC)?;
    let list = |command, kind| -> anyhow::Result<Vec<Vec<u8>>> {
        let answers = family.ask(command, Wish::Dump, &[])?;
        Ok(answers.iter().filter_map(|a| attribute(a, kind)).map(<[u8]>::to_vec).collect())
    };
    let groups: Vec<Group> = list(GET_GROUPS, GROUP)?.iter().map(|a| group(a)).collect();
    let mut links = Vec::new();
    // Links come by group; the kernel tells each group before its links.
    let mut last = 0;
    for answer in family.ask(GET_LINKS, Wish::Dump, &[])? {
        if let Some(attributes) = attribute(&answer, GROUP) {
            last = group(attributes).id;
        }
        if let Some(attributes) = attribute(&answer, LINK) {
            links.push(link(attributes, last));
        }
    }
    Ok(State { connections: connections()?, groups, links })
}

fn group(attributes: &[u8]) -> Group {
    let number = |kind| attribute(attributes, kind).map_or(0, little);
    Group {
        id: number(1),
        server: number(2) == 1,
        kind: u8::try_from(number(3)).unwrap_or(u8::MAX),
        connections: number(6),
    }
}

fn link(attributes: &[u8], group: u32) -> Link {
    let number = |kind| attribute(attributes, kind).map_or(0, little);
    let words = |kind| attribute(attributes, kind).map_or_else(String::new, text);
    let small = |kind| u8::try_from(number(kind)).unwrap_or(u8::MAX);
    Link {
        group,
        id: small(1),
        device: words(2),
        gid: words(4),
        peer_gid: words(5),
        state: small(10),
        connections: number(6),
    }
}

/// A number of at most 4 bytes, as this machine has it.
fn little(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).rev().fold(0, |n, b| n << 8 | u32::from(*b))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    if text.is_empty() { "-".to_owned() } else { text.replace(' ', "_") }
}

fn connections() -> anyhow::Result<Vec<Connection>> {
    let netlink = Netlink::open(libc::NETLINK_SOCK_DIAG)?;
    let mut request = vec![0; DIAG_REQUEST];
    request[0] = AF_SMC;
    request[3] = EXTENSIONS;
    let answers = netlink.ask(SOCK_DIAG_BY_FAMILY, Wish::Dump, &request)?;
    answers.iter().map(|answer| connection(answer)).collect()
}

fn connection(answer: &[u8]) -> anyhow::Result<Connection> {
    ensure!(answer.len() >= DIAG_ANSWER, "an answer of {} bytes about a socket", answer.len());
    let attributes = &answer[DIAG_ANSWER..];
    let number = answer[1];
    let name = STATES.iter().find(|(n, _)| *n == number).map(|(_, name)| *name);
    let address = |port: usize, ip: usize| {
        let ip = Ipv4Addr::new(answer[ip], answer[ip + 1], answer[ip + 2], answer[ip + 3]);
        format!("{ip}:{}", u16::from_be_bytes([answer[port], answer[port + 1]]))
    };
    let mut fallback = [0, 0];
    if let Some(words) = attribute(attributes, DIAG_FALLBACK).filter(|v| v.len() >= 8) {
        fallback = [little(words), little(&words[4..])];
    }
    let nothing = [0; 76];
    let details = attribute(attributes, DIAG_CONNECTION).filter(|v| v.len() >= nothing.len());
    let details = details.unwrap_or(&nothing);
    let word = |at: usize| little(&details[at..at + 4]);
    let cursor = |at: usize| Cursor {
        wrap: u16::from_ne_bytes([details[at + 2], details[at + 3]]),
        count: word(at + 4),
    };
    Ok(Connection {
        state: name.map_or_else(|| number.to_string(), str::to_owned),
        local: address(4, 8),
        peer: address(6, 24),
        mode: match answer[2] {
            0 => Mode::Smcr,
            2 => Mode::Smcd,
            _ => Mode::Tcp,
        },
        reason: fallback[0],
        peer_reason: fallback[1],
        token: word(0),
        buffers: [word(4), word(8), word(12)],
        cursors: [16, 24, 32, 40].map(cursor),
        sent: [52, 60, 68].map(cursor),
        flags: [details[48], details[49], details[50], details[51]],
    })
}

pub(crate) fn add_eid(eid: &str) -> anyhow::Result<()> {
    ensure!(eid.len() <= EID_LEN, "an EID has at most {EID_LEN} letters");
    let eid = format!("{eid:EID_LEN$}\0");
    Family::open(SMC)?.ask(ADD_EID, Wish::Do, &[(EID, eid.as_bytes())]).map(drop)
}

pub(crate) fn clear_eids() -> anyhow::Result<()> {
    Family::open(SMC)?.ask(CLEAR_EIDS, Wish::Do, &[]).map(drop)
}

pub(crate) fn add_pnet(id: &str, interface: &str, device: &str) -> anyhow::Result<()> {
    let [id, interface, device] = [id, interface, device].map(|word| format!("{word}\0"));
    let attributes: [(u16, &[u8]); 4] =
        [(1, id.as_bytes()), (2, interface.as_bytes()), (3, device.as_bytes()), (4, &[1])];
    Family::open(PNET)?.ask(PNET_ADD, Wish::Do, &attributes).map(drop)
}

pub(crate) fn add_rxe(device: &str, interface: &str) -> anyhow::Result<()> {
    let mut body = Vec::new();
    put(&mut body, (RDMA_NAME, format!("{device}\0").as_bytes()))?;
    put(&mut body, (RDMA_KIND, b"rxe\0"))?;
    put(&mut body, (RDMA_INTERFACE, format!("{interface}\0").as_bytes()))?;
    let netlink = Netlink::open(libc::NETLINK_RDMA)?;
    netlink.ask(RDMA_DEVICES | RDMA_NEW, Wish::Do, &body).map(drop)
}

pub(crate) fn remove_rxe(device: &str) -> anyhow::Result<()> {
    let netlink = Netlink::open(libc::NETLINK_RDMA)?;
    let devices = netlink.ask(RDMA_DEVICES | RDMA_GET, Wish::Dump, &[])?;
    let named =
        |answer: &&Vec<u8>| attribute(answer, RDMA_NAME).map(text).as_deref() == Some(device);
    let found = devices.iter().find(named).with_context(|| format!("there is no {device}"))?;
    let index = attribute(found, RDMA_INDEX).context("a device without a number")?;
    let mut body = Vec::new();
    put(&mut body, (RDMA_INDEX, index))?;
    netlink.ask(RDMA_DEVICES | RDMA_REMOVE, Wish::Do, &body).map(drop)
}

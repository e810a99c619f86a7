//! The addresses of this host, as the kernel's routing socket tells them (rtnetlink(7)), and how fast each is.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use rustix::net::netdevice::index_to_name;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use smb::fscc::fsctl::{Interface, InterfaceCaps};

use super::super::super::config;

/// RTM_GETADDR and what answers it, RTM_NEWADDR.
const GET_ADDRESSES: u16 = 22;
const ADDRESS: u16 = 20;
/// NLMSG_DONE.
const DONE: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const ALL_OF_THEM: u16 = 0x301;
/// struct nlmsghdr, struct ifaddrmsg, struct rtattr, bytes.
const HEADER_LEN: usize = 16;
const BODY_LEN: usize = 8;
const ATTRIBUTE_LEN: usize = 4;
/// IFA_ADDRESS and IFA_LOCAL: for IPv4 the second is ours where they differ.
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// IFA_F_DEPRECATED and IFA_F_TENTATIVE: not, or not yet, for others to connect to.
const UNFIT: u8 = 0x60;
/// Where the kernel has a directory for each interface (Documentation/ABI/testing/sysfs-class-net).
const INTERFACES: &str = "/sys/class/net";
/// Addresses that clients are told; more than a host has that serves files.
const MOST: usize = 64;
/// What a link is taken for that does not say how fast it is, bits in a second.
const USUAL_SPEED: u64 = 1_000_000_000;
/// What a connection within the host is taken for.
const LOCAL_SPEED: u64 = 100_000_000_000;

/// An address, and which interface has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    index: u32,
    address: IpAddr,
}

/// Where a server that listens on `listen` can be reached. What is within the host only is told to who came from
/// there, that is by `local`, or if there is nothing else.
pub(super) fn of_host(listen: &[SocketAddr], local: IpAddr) -> Vec<Interface> {
    let listens = |address: &IpAddr| {
        let same = |at: &SocketAddr| {
            at.ip() == *address || at.ip().is_unspecified() && at.is_ipv4() == address.is_ipv4()
        };
        listen.iter().any(same)
    };
    let mut found: Vec<_> = addresses().into_iter().filter(|one| listens(&one.address)).collect();
    if found.is_empty() {
        // The one by which the client is here there is in any case.
        found.push(Found { index: 1, address: local.to_canonical() });
    }
    let outside = |one: &Found| !one.address.is_loopback();
    if !local.to_canonical().is_loopback() && found.iter().any(outside) {
        found.retain(outside);
    }
    found.truncate(MOST);
    found.iter().map(described).collect()
}

/// What the settings say, and of what they do not, what the interface does. An address of another host, that
/// leads here by a translation, is an interface of its own.
pub(super) fn of_settings(settings: &[config::Interface]) -> Vec<Interface> {
    merged(settings, &addresses())
}

fn merged(settings: &[config::Interface], here: &[Found]) -> Vec<Interface> {
    let foreign = here.iter().map(|one| one.index).max().unwrap_or(0) + 1;
    let merge = |(setting, next): (&config::Interface, u32)| {
        let one = here.iter().find(|one| one.address == setting.address);
        let index = one.map_or(next, |one| one.index);
        let known = described(&Found { index, address: setting.address });
        let caps = if setting.rss { known.caps | InterfaceCaps::RSS } else { known.caps };
        Interface { caps, link_speed: setting.speed.unwrap_or(known.link_speed), ..known }
    };
    settings.iter().zip(foreign..).map(merge).collect()
}

/// All addresses that clients may connect to; none if the kernel does not tell.
fn addresses() -> Vec<Found> {
    dump().unwrap_or_default()
}

fn dump() -> rustix::io::Result<Vec<Found>> {
    // NETLINK_ROUTE is the protocol 0.
    let kind = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = socket_with(kind.0, kind.1, kind.2, None)?;
    let mut request = Vec::with_capacity(HEADER_LEN + BODY_LEN);
    request.extend_from_slice(&24_u32.to_ne_bytes());
    request.extend_from_slice(&GET_ADDRESSES.to_ne_bytes());
    request.extend_from_slice(&ALL_OF_THEM.to_ne_bytes());
    request.resize(HEADER_LEN + BODY_LEN, 0);
    send(&socket, &request, SendFlags::empty())?;
    let mut found = Vec::new();
    let mut answer = vec![0; 32 << 10];
    loop {
        let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        if len == 0 || parse(&answer[..len.min(answer.len())], &mut found) {
            return Ok(found);
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Reads the messages of one datagram; whether that was the end.
fn parse(mut datagram: &[u8], found: &mut Vec<Found>) -> bool {
    while let (Some(len), Some(kind)) = (u32_at(datagram, 0), u16_at(datagram, 4)) {
        let len = len as usize;
        let Some(message) = datagram.get(HEADER_LEN..len) else { return true };
        match kind {
            ADDRESS => found.extend(address(message)),
            DONE => return true,
            // An error, or what nobody has asked for.
            _ => return true,
        }
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

/// The address in a RTM_NEWADDR.
fn address(message: &[u8]) -> Option<Found> {
    let (flags, index) = (*message.get(2)?, u32_at(message, 4)?);
    let (mut local, mut other) = (None, None);
    let mut attributes = message.get(BODY_LEN..)?;
    while let (Some(len), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let Some(value) = attributes.get(ATTRIBUTE_LEN..len.into()) else { break };
        match kind {
            IFA_LOCAL => local = ip(value),
            IFA_ADDRESS => other = ip(value),
            _ => {}
        }
        attributes = attributes.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
    }
    let address = local.or(other)?;
    // Who is told a link-local address does not know on which of its links.
    let link_local = matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
    (flags & UNFIT == 0 && !link_local).then_some(Found { index, address })
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

/// What clients are told about it.
fn described(found: &Found) -> Interface {
    let directory = name_of(found.index).map(|name| Path::new(INTERFACES).join(name));
    described_by(found, directory.as_deref())
}

/// The same of an interface with this directory in sysfs.
fn described_by(found: &Found, directory: Option<&Path>) -> Interface {
    let local = found.address.is_loopback();
    let speed = directory.and_then(speed_of);
    let queues = directory.map_or(0, queues_of);
    Interface {
        index: found.index.max(1),
        // Within the host every sender is its own queue.
        caps: if local || queues > 1 { InterfaceCaps::RSS } else { InterfaceCaps::empty() },
        link_speed: speed.unwrap_or(if local { LOCAL_SPEED } else { USUAL_SPEED }),
        address: found.address,
    }
}

fn name_of(index: u32) -> Option<String> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).ok()?;
    index_to_name(&socket, index).ok()
}

/// Bits in a second, if the interface says.
fn speed_of(directory: &Path) -> Option<u64> {
    let said = fs::read_to_string(directory.join("speed")).ok()?;
    let megabits = said.trim().parse::<u64>().ok().filter(|megabits| *megabits > 0)?;
    megabits.checked_mul(1_000_000)
}

/// Queues by which packets come in, each of which a CPU can take from.
fn queues_of(directory: &Path) -> usize {
    let Ok(queues) = fs::read_dir(directory.join("queues")) else { return 0 };
    let receives = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"rx-");
    queues.flatten().filter(|queue| receives(&queue.file_name())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(ATTRIBUTE_LEN + value.len()).unwrap();
        [&len.to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(HEADER_LEN + body.len()).unwrap();
        let mut bytes = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn told(flags: u8, index: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let head = [&[2, 24, flags, 0][..], &index.to_ne_bytes()].concat();
        message(ADDRESS, &[head, attributes.concat()].concat())
    }

    #[test]
    fn what_is_set_wins_over_what_the_interface_says() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let set = |text: &str, speed, rss| config::Interface { address: address(text), speed, rss };
        let here = [Found { index: 7, address: address("192.0.2.7") }];
        let fast = set("192.0.2.7", Some(25_000_000_000), true);
        let told = merged(&[fast, set("198.51.100.1", None, false)], &here);
        assert_eq!((told[0].index, told[0].link_speed), (7, 25_000_000_000));
        assert!(told[0].caps.contains(InterfaceCaps::RSS) && told[1].caps.is_empty());
        assert_eq!((told[1].address, told[1].link_speed), (address("198.51.100.1"), USUAL_SPEED));
        assert_ne!(told[1].index, 7, "an interface of its own");
    }

    /// What sysfs says of an interface: its speed as text, its queues.
    fn in_sysfs(speed: &str, queues: &[&str]) -> (InterfaceCaps, u64) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("speed"), speed).unwrap();
        for queue in queues {
            fs::create_dir_all(directory.path().join("queues").join(queue)).unwrap();
        }
        let found = Found { index: 7, address: IpAddr::from([192, 0, 2, 7]) };
        let told = described_by(&found, Some(directory.path()));
        assert_eq!((told.index, told.address), (found.index, found.address));
        (told.caps, told.link_speed)
    }

    #[test]
    fn an_interface_is_as_fast_and_as_wide_as_sysfs_says() {
        const NONE: InterfaceCaps = InterfaceCaps::empty();
        let many = ["rx-0", "rx-1", "tx-0", "tx-1"];
        assert_eq!(in_sysfs("25000\n", &many), (InterfaceCaps::RSS, 25_000_000_000));
        assert_eq!(
            in_sysfs("100\n", &["rx-0", "tx-0", "tx-1"]),
            (NONE, 100_000_000),
            "one to hear"
        );
        // A link that is down, a virtual one, and what is no number at all.
        for unknown in ["-1\n", "0\n", "", "fast\n", "18446744073709551615\n"] {
            assert_eq!(in_sysfs(unknown, &[]), (NONE, USUAL_SPEED), "{unknown:?}");
        }
        let found = Found { index: 0, address: IpAddr::from([192, 0, 2, 7]) };
        let told = described_by(&found, None);
        assert_eq!((told.index, told.link_speed, told.caps), (1, USUAL_SPEED, NONE), "unknown");
    }

    #[test]
    fn addresses_are_read_from_what_the_kernel_tells() {
        let four = told(
            0,
            2,
            &[attribute(IFA_ADDRESS, &[10, 0, 0, 9]), attribute(IFA_LOCAL, &[10, 0, 0, 1])],
        );
        let mut six = [0; 16];
        six[..2].copy_from_slice(&[0x20, 1]);
        let six = told(0, 3, &[attribute(99, &[1, 2, 3, 4]), attribute(IFA_ADDRESS, &six)]);
        let mut found = Vec::new();
        assert!(!parse(&[four, six].concat(), &mut found), "there is more to come");
        assert!(parse(&message(DONE, &[0; 4]), &mut found));
        let expected = [(2, "10.0.0.1"), (3, "2001::")]
            .map(|(index, address)| Found { index, address: address.parse().unwrap() });
        assert_eq!(found, expected);
    }

    #[test]
    fn what_others_cannot_connect_to_is_left_out() {
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        let bytes = [
            told(0x40, 2, &[attribute(IFA_ADDRESS, &[10, 0, 0, 1])]),
            told(0, 2, &[attribute(IFA_ADDRESS, &link_local)]),
            told(0, 2, &[]),
        ]
        .concat();
        let mut found = Vec::new();
        parse(&bytes, &mut found);
        assert_eq!(found, []);
    }

    #[test]
    fn no_datagram_is_read_beyond_its_end() {
        let whole = told(0, 2, &[attribute(IFA_LOCAL, &[10, 0, 0, 1])]);
        for len in 0..whole.len() {
            parse(&whole[..len], &mut Vec::new());
        }
        let mut zero = whole;
        zero[..4].fill(0);
        assert!(parse(&zero, &mut Vec::new()), "a length of nothing ends it");
    }

    #[test]
    fn this_host_can_be_reached_by_itself() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let found = of_host(&[SocketAddr::new(here, 445)], here);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].address, found[0].caps), (here, InterfaceCaps::RSS));
    }

    #[test]
    fn who_came_from_outside_is_not_sent_to_the_loopback() {
        let all = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 445);
        let found = of_host(&[all], "192.0.2.1".parse().unwrap());
        let outside = found.iter().filter(|one| !one.address.is_loopback()).count();
        assert!(outside == 0 || outside == found.len());
    }
}

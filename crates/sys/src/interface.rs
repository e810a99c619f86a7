//! Network interfaces: which there are, and what they are like.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::call::{self, Failure};

/// A network interface, as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Whether it has been set up by the administrator.
    pub up: bool,
    /// Longest packet that it sends, bytes.
    pub mtu: u32,
    /// What kind of link: an `ARPHRD_` number.
    pub kind: u16,
    /// Its hardware address, where it has one.
    pub address: [u8; 6],
}

/// The hardware address of the interface by which packets of the socket `fd` from `local` leave for `remote`; `None`: it has
/// none, or the kernel does not say. Asks for nothing that takes memory of the C library.
#[must_use]
pub fn hardware_towards(fd: i32, local: Ipv6Addr, remote: Ipv6Addr) -> Option<[u8; 6]> {
    let index = way_out(local, remote)?;
    // The kernel writes the name of that number.
    let mut request = Request::empty();
    request.set_number(index);
    request.ask(&fd, libc::SIOCGIFNAME).ok()?;
    request.ask(&fd, libc::SIOCGIFHWADDR).ok()?;
    let (kind, address) = request.hardware();
    (kind == libc::ARPHRD_ETHER).then_some(address)
}

/// Whether an address is this host's, be it one of a network that is its own as a whole (127.0.0.0/8); `None`: the kernel does
/// not say.
#[must_use]
pub fn is_own(address: IpAddr) -> Option<bool> {
    let v6 = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    type_of(&way(None, v6)?).map(|found| found == libc::RTN_LOCAL)
}

/// The longest packet, bytes, that gets to `remote` for certain if our interface takes it: `u32::MAX` where no router is between
/// that could be narrower, and where one is, what the route says (`ip route ... mtu`). `None`: nobody says.
#[must_use]
pub fn sure_bytes(local: IpAddr, remote: IpAddr) -> Option<u32> {
    let v6 = |address| match address {
        IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4),
        IpAddr::V6(v6) => v6,
    };
    let answer = way(Some(v6(local)), v6(remote))?;
    if goes_directly(&answer)? { Some(u32::MAX) } else { mtu_of(&answer) }
}

/// Whether the way that an answer of the kernel names leads by no router.
fn goes_directly(answer: &[u8]) -> Option<bool> {
    let leads = matches!(type_of(answer)?, libc::RTN_UNICAST | libc::RTN_LOCAL);
    // Its own family's, and one of the other family.
    let by_router =
        [libc::RTA_GATEWAY, RTA_VIA].iter().any(|kind| value_of(answer, *kind).is_some());
    leads.then_some(!by_router)
}

const RTA_VIA: u16 = 18;

/// The longest packet of the route that an answer of the kernel names, if somebody has said it of that route.
fn mtu_of(answer: &[u8]) -> Option<u32> {
    const RTAX_MTU: u16 = 2;
    let metrics = attribute(answer, ROUTE_AT, libc::RTA_METRICS)?;
    let value = attribute(metrics, 0, RTAX_MTU)?;
    Some(u32::from_ne_bytes(*value.first_chunk()?))
}

/// The number of the interface by which the kernel would send such packets.
fn way_out(local: Ipv6Addr, remote: Ipv6Addr) -> Option<i32> {
    out_of(&way(Some(local), remote)?)
}

/// How the kernel would send such packets: one request by rtnetlink(7), and its answer.
fn way(local: Option<Ipv6Addr>, remote: Ipv6Addr) -> Option<Answer> {
    let socket =
        call::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE);
    let socket = socket.ok()?;
    let found = ask_way(socket, local, remote);
    let _ = call::close(socket);
    found
}

/// Bytes of nlmsghdr and rtmsg.
const ROUTE_AT: usize = 16 + 12;

/// Bytes of an answer, and zeros.
type Answer = [u8; 1024];

fn ask_way(socket: i32, local: Option<Ipv6Addr>, remote: Ipv6Addr) -> Option<Answer> {
    let remote = remote.to_canonical();
    let local = local.map(|local| (libc::RTA_SRC, local.to_canonical()));
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let (family, bits) = match remote {
        IpAddr::V4(_) => (libc::AF_INET, 32u8),
        IpAddr::V6(_) => (libc::AF_INET6, 128),
    };
    let mut message = vec![0u8; ROUTE_AT];
    message[16] = u8::try_from(family).ok()?;
    [message[17], message[18]] = [bits, if local.is_some() { bits } else { 0 }];
    for (kind, ip) in [(libc::RTA_DST, remote)].into_iter().chain(local) {
        let value = bytes(ip);
        let len = u16::try_from(4 + value.len()).ok()?;
        message.extend(len.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value);
    }
    let len = u32::try_from(message.len()).ok()?;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..6].copy_from_slice(&libc::RTM_GETROUTE.to_ne_bytes());
    message[6..8].copy_from_slice(&u16::try_from(libc::NLM_F_REQUEST).ok()?.to_ne_bytes());
    call::send(socket, &message, libc::MSG_DONTWAIT).ok()?;
    let mut answer = [0u8; 1024];
    call::recv(socket, &mut answer, libc::MSG_DONTWAIT).ok()?;
    Some(answer)
}

/// What kind of addresses the way leads to that an answer of the kernel names: an `RTN_` number.
fn type_of(answer: &[u8]) -> Option<u8> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    (kind == libc::RTM_NEWROUTE).then_some(*answer.get(ROUTE_AT - 5)?)
}

/// The interface that an answer of the kernel names.
fn out_of(answer: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(*value_of(answer, libc::RTA_OIF)?.first_chunk()?))
}

/// What an answer of the kernel says by an attribute of this kind, and zeros or what follows that.
fn value_of(answer: &[u8], wanted: u16) -> Option<&[u8]> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    if kind == libc::RTM_NEWROUTE { attribute(answer, ROUTE_AT, wanted) } else { None }
}

/// The value of the first attribute of this kind from `at` on.
fn attribute(all: &[u8], mut at: usize, wanted: u16) -> Option<&[u8]> {
    let short = |at: usize| Some(u16::from_ne_bytes(*all.get(at..)?.first_chunk()?));
    loop {
        let (len, kind) = (usize::from(short(at)?), short(at + 2)?);
        if kind == wanted && len >= 4 {
            return all.get(at + 4..at + len);
        }
        if len < 4 {
            return None;
        }
        at += len.next_multiple_of(4);
    }
}

impl Interface {
    /// The interface of that name in our network namespace, be it another name of it (`altname`), with the one that the
    /// kernel calls it by; `None`: there is none.
    ///
    /// # Errors
    ///
    /// Why the kernel does not say.
    pub fn find(name: &str) -> Result<Option<Self>, Failure> {
        let Some(mut request) = Request::new(name) else { return Ok(None) };
        let socket = socket()?;
        match request.ask(&socket, libc::SIOCGIFINDEX) {
            Err(libc::ENODEV | libc::ENXIO) => return Ok(None),
            other => other.map_err(Failure::at("look at the interface"))?,
        }
        Self::at(&socket, request)
    }

    /// The interface of that number, whatever its name is by now; `None`: there is none in our network namespace.
    ///
    /// # Errors
    ///
    /// Why the kernel does not say.
    pub fn with_index(index: u32) -> Result<Option<Self>, Failure> {
        let mut request = Request::empty();
        request.set_number(index.cast_signed());
        Self::at(&socket()?, request)
    }

    /// That of which the number was asked, or given.
    fn at(socket: &OwnedFd, mut request: Request) -> Result<Option<Self>, Failure> {
        let index = request.number().cast_unsigned();
        match request.ask(socket, libc::SIOCGIFNAME) {
            Err(libc::ENODEV | libc::ENXIO) => return Ok(None),
            other => other.map_err(Failure::at("read the name of the interface"))?,
        }
        let mut read = |what| request.ask(socket, what).map_err(Failure::at("read the interface"));
        read(libc::SIOCGIFHWADDR)?;
        let (kind, address) = request.hardware();
        let mut read = |what| request.ask(socket, what).map_err(Failure::at("read the interface"));
        read(libc::SIOCGIFMTU)?;
        let mtu = request.number().cast_unsigned();
        request.ask(socket, libc::SIOCGIFFLAGS).map_err(Failure::at("read the interface"))?;
        let up = request.number() & libc::IFF_UP != 0;
        Ok(Some(Self { name: request.name(), index, up, mtu, kind, address }))
    }

    /// Names of all interfaces in our network namespace.
    #[must_use]
    pub fn names() -> Vec<String> {
        // SAFETY: always callable; the list is ours until it is freed below.
        let list = unsafe { libc::if_nameindex() };
        let mut names = Vec::new();
        if list.is_null() {
            return names;
        }
        for at in 0.. {
            // SAFETY: the list ends with an entry whose index is 0, and we do not go past that.
            let entry = unsafe { list.add(at).read() };
            if entry.if_index == 0 || entry.if_name.is_null() {
                break;
            }
            // SAFETY: an entry's name is a C string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.if_name) };
            names.push(name.to_string_lossy().into_owned());
        }
        // SAFETY: it came from `if_nameindex` and is freed once; the names were copied.
        unsafe { libc::if_freenameindex(list) };
        names
    }

    /// The interface of our network namespace that has this address; `None`: there is none, as for those of a
    /// network that is ours as a whole (127.0.0.0/8), or the kernel does not say.
    #[must_use]
    pub fn with_address(address: IpAddr) -> Option<Self> {
        let mut name = None;
        each_address(|found, entry, _| {
            if name.is_none() && found == address {
                name = Some(entry.to_string_lossy().into_owned());
            }
        })
        .ok()?;
        Self::find(&name?).ok().flatten()
    }

    /// Whether it has an IPv4 address; `false` as well where the kernel does not say.
    #[must_use]
    pub fn has_ipv4(&self) -> bool {
        let (socket, request) = (socket(), Request::new(&self.name));
        let asked = socket.ok().zip(request);
        asked.is_some_and(|(socket, mut request)| request.ask(&socket, libc::SIOCGIFADDR).is_ok())
    }

    /// Receive queues that are in use, as the driver says, which is asked in our network namespace: what is in /sys may be
    /// another's. `None`: it does not say.
    #[must_use]
    pub fn receive_queues(&self) -> Option<u32> {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        let (socket, mut request) = (socket().ok()?, Request::new(&self.name)?);
        let at = std::ptr::from_mut(&mut channels).expose_provenance();
        request.value[..size_of::<usize>()].copy_from_slice(&at.to_ne_bytes());
        request.ask(&socket, SIOCETHTOOL).ok()?;
        // SAFETY: ours, and the kernel has written numbers there or nothing; read so that this is not taken for what was
        // put there above.
        let channels = unsafe { std::ptr::from_ref(&channels).read_volatile() };
        Some(channels.receive.saturating_add(channels.combined)).filter(|queues| *queues > 0)
    }

    /// Sets the interface up, with this MTU.
    ///
    /// # Errors
    ///
    /// The step and its errno.
    pub fn set_up(&self, mtu: u32) -> Result<(), Failure> {
        let socket = socket()?;
        let mut request = Request::new(&self.name)
            .ok_or(Failure { step: "name the interface", errno: libc::EINVAL })?;
        request.set_number(mtu.cast_signed());
        request.ask(&socket, libc::SIOCSIFMTU).map_err(Failure::at("set the MTU"))?;
        request.ask(&socket, libc::SIOCGIFFLAGS).map_err(Failure::at("read the flags"))?;
        request.set_number(request.number() | libc::IFF_UP);
        request.ask(&socket, libc::SIOCSIFFLAGS).map_err(Failure::at("set the interface up"))?;
        Ok(())
    }
}

/// Addresses of all interfaces of our network namespace that are up.
///
/// # Errors
///
/// The errno.
pub fn addresses() -> Result<Vec<IpAddr>, Failure> {
    let mut all = Vec::new();
    each_address(|address, _, up| all.extend(up.then_some(address)))?;
    Ok(all)
}

/// Tells each address that an interface has, the interface's name, and whether that is up.
fn each_address(mut tell: impl FnMut(IpAddr, &CStr, bool)) -> Result<(), Failure> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the place for the list is ours; it is freed below, if it was made.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Failure { step: "read the addresses of interfaces", errno });
    }
    let mut next = list;
    while !next.is_null() {
        // SAFETY: entries of the list are valid until it is freed.
        let entry = unsafe { next.read() };
        // SAFETY: an entry's address is null or valid as long as the list.
        if let Some(address) = unsafe { address_at(entry.ifa_addr) } {
            // SAFETY: an entry's name is a C string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            tell(address, name, entry.ifa_flags & libc::IFF_UP.cast_unsigned() != 0);
        }
        next = entry.ifa_next;
    }
    // SAFETY: it came from `getifaddrs` and is freed once; nothing of it is kept.
    unsafe { libc::freeifaddrs(list) };
    Ok(())
}

/// The IP address in a socket address; `None`: it is of another family.
///
/// # Safety
///
/// `at` is null, or leads to a socket address as long as its family has it.
unsafe fn address_at(at: *const libc::sockaddr) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family; the caller vouches for the rest.
    let family = unsafe { (*at).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: it is one of IPv4, as the caller has it.
            let v4 = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: it is one of IPv6, as the caller has it.
            let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

const SIOCETHTOOL: u64 = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// The kernel's `struct ethtool_channels`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

/// Any socket does for asking.
fn socket() -> Result<OwnedFd, Failure> {
    let fd = call::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)
        .map_err(Failure::at("open a socket"))?;
    Ok(own(fd))
}

/// Takes over a descriptor that a system call has just made.
pub(crate) fn own(fd: i32) -> OwnedFd {
    // SAFETY: the callers pass a descriptor that the kernel has just given them and nobody else knows.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The kernel's `struct ifreq`: a name, and 24 bytes that mean what the request says.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

impl Request {
    /// For the kernel to write a name to.
    pub(crate) const fn empty() -> Self {
        Self { name: [0; libc::IFNAMSIZ], value: [0; 24] }
    }

    /// About this interface; `None` if no interface can have that name.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() >= libc::IFNAMSIZ || bytes.contains(&0) {
            return None;
        }
        let mut request = Self::empty();
        request.name[..bytes.len()].copy_from_slice(bytes);
        Some(request)
    }

    pub(crate) fn ask(&mut self, fd: &impl AsRawFd, request: u64) -> Result<(), i32> {
        call::ioctl(fd.as_raw_fd(), request, self).map(drop)
    }

    /// The value as a number; flags are its low 16 bits.
    fn number(&self) -> i32 {
        i32::from_ne_bytes([self.value[0], self.value[1], self.value[2], self.value[3]])
    }

    pub(crate) fn set_number(&mut self, number: i32) {
        self.value = [0; 24];
        self.value[..4].copy_from_slice(&number.to_ne_bytes());
    }

    /// The value as a hardware address: its kind and its bytes.
    pub(crate) fn hardware(&self) -> (u16, [u8; 6]) {
        let [a, b, address @ ..] = self.value;
        let mut six = [0; 6];
        six.copy_from_slice(&address[..6]);
        (u16::from_ne_bytes([a, b]), six)
    }

    pub(crate) fn name(&self) -> String {
        let end = self.name.iter().position(|b| *b == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_there() {
        let lo = Interface::find("lo").unwrap().unwrap();
        assert_eq!((lo.kind, lo.address), (libc::ARPHRD_LOOPBACK, [0; 6]));
        assert!(lo.index > 0 && lo.mtu > 0);
        assert!(Interface::names().contains(&"lo".to_owned()));
        assert!(lo.has_ipv4());
        assert_eq!(Interface::with_index(lo.index), Ok(Some(lo.clone())));
        assert_eq!(Interface::with_index(u32::MAX / 2), Ok(None));
        assert!(!Interface { name: "no-such-if0".into(), ..lo }.has_ipv4());
    }

    #[test]
    fn an_interface_is_found_by_its_address() {
        let found = Interface::with_address([127, 0, 0, 1].into()).unwrap();
        assert_eq!(found, Interface::find("lo").unwrap().unwrap());
        // TEST-NET-1 (RFC 5737) is nobody's.
        assert_eq!(Interface::with_address([192, 0, 2, 1].into()), None);
    }

    #[test]
    fn addresses_of_the_loopback_are_among_all() {
        if Interface::find("lo").unwrap().is_some_and(|lo| lo.up) {
            assert!(addresses().unwrap().contains(&[127, 0, 0, 1].into()));
        }
    }

    #[test]
    fn answers_of_the_kernel_that_are_none() {
        for answer in [&[][..], &[0; 15], &[0; 28], &[0; 64]] {
            assert_eq!(out_of(answer), None);
        }
        let mut answer = [0; 40];
        answer[4..6].copy_from_slice(&libc::RTM_NEWROUTE.to_ne_bytes());
        assert_eq!(out_of(&answer), None, "an attribute of no length");
        answer[28..32].copy_from_slice(&[8, 0, 4, 0]);
        answer[32..36].copy_from_slice(&7i32.to_ne_bytes());
        assert_eq!(out_of(&answer), Some(7));
        assert_eq!(out_of(&answer[..35]), None);
        answer[28..30].copy_from_slice(&200u16.to_ne_bytes());
        answer[30] = 1;
        assert_eq!(out_of(&answer), None, "longer than it is");
        let lo = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        let index = i32::try_from(Interface::find("lo").unwrap().unwrap().index).unwrap();
        assert_eq!(way_out(lo, lo), Some(index));
        assert_eq!(way_out(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST), Some(index));
    }

    #[test]
    fn what_goes_by_a_router_is_told_from_what_does_not() {
        for own in ["127.0.0.1", "127.0.0.2", "::1"] {
            let own: IpAddr = own.parse().unwrap();
            assert_eq!(sure_bytes(own, own), Some(u32::MAX), "{own}");
        }
        let mut answer = [0; 64];
        answer[4..6].copy_from_slice(&libc::RTM_NEWROUTE.to_ne_bytes());
        assert_eq!(goes_directly(&answer), None, "it leads nowhere");
        answer[ROUTE_AT - 5] = libc::RTN_UNICAST;
        assert_eq!(goes_directly(&answer), Some(true));
        for kind in [libc::RTA_GATEWAY, RTA_VIA] {
            answer[ROUTE_AT..ROUTE_AT + 2].copy_from_slice(&8u16.to_ne_bytes());
            answer[ROUTE_AT + 2..ROUTE_AT + 4].copy_from_slice(&libc::RTA_OIF.to_ne_bytes());
            answer[ROUTE_AT + 8..ROUTE_AT + 10].copy_from_slice(&8u16.to_ne_bytes());
            answer[ROUTE_AT + 10..ROUTE_AT + 12].copy_from_slice(&kind.to_ne_bytes());
            assert_eq!(goes_directly(&answer), Some(false), "{kind}");
        }
        assert_eq!(mtu_of(&answer), None, "nobody says");
    }

    #[test]
    fn what_a_route_takes_is_read() {
        // As Linux answers of `ip route add 203.0.113.0/24 via 192.0.2.1 mtu lock 9000`: the lock, and the MTU.
        let mut answer = [0; 128];
        answer[4..6].copy_from_slice(&libc::RTM_NEWROUTE.to_ne_bytes());
        answer[ROUTE_AT - 5] = libc::RTN_UNICAST;
        let shorts = [8, libc::RTA_OIF, 7, 0, 20, libc::RTA_METRICS, 8, 1, 4, 0, 8, 2, 9000, 0];
        for (at, short) in shorts.into_iter().enumerate() {
            answer[ROUTE_AT + 2 * at..][..2].copy_from_slice(&u16::to_ne_bytes(short));
        }
        assert_eq!(mtu_of(&answer), Some(9000));
        // What is not within the metrics is not theirs, and they are not longer than the answer.
        answer[ROUTE_AT + 8..ROUTE_AT + 10].copy_from_slice(&12u16.to_ne_bytes());
        assert_eq!(mtu_of(&answer), None);
        assert_eq!(mtu_of(&answer[..ROUTE_AT + 14]), None);
    }

    #[test]
    fn whose_an_address_is_the_kernel_says() {
        for own in ["127.0.0.1", "127.0.0.2", "::1"] {
            assert_eq!(is_own(own.parse().unwrap()), Some(true), "{own}");
        }
        // TEST-NET-1: there may be no way to get there.
        assert_ne!(is_own([192, 0, 2, 1].into()), Some(true));
        assert_eq!(type_of(&[0; 64]), None);
    }

    #[test]
    fn what_cannot_be_a_name_is_not_there() {
        for name in ["", "no-such-if0", "much-too-long-for-a-name", "a\0b"] {
            assert_eq!(Interface::find(name), Ok(None), "{name}");
        }
    }
}

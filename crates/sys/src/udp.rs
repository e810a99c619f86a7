//! Datagrams by the batch, over sockets that share one address and port.
//!
//! Made for protocols whose checksums cover the IP header: a socket is never connected and never lets the
//! kernel fragment, and to such a packet Linux gives the identification 0, which the sender can therefore
//! know beforehand (`__ip_select_ident` is not asked when DF is set and there is no connection).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::bpf::{self, Classic};
use crate::call::{self, Failure};
use crate::interface::own;
use crate::stamp::{self, UDP_GRO};

/// Datagrams that one system call moves at most.
pub const BATCH: usize = 64;
/// So many, or fewer, are told to the kernel with less ado.
const FEW: usize = 16;

const SO_ATTACH_REUSEPORT_CBPF: i32 = 51;
const SO_RCVBUFFORCE: i32 = 33;
const SO_SNDBUFFORCE: i32 = 32;
const UDP_SEGMENT: i32 = 103;
const UDP_NO_CHECK6_TX: i32 = 101;
const UDP_NO_CHECK6_RX: i32 = 102;
const DISCOVER_DO: i32 = 2;
/// The bits of a traffic class that are about congestion, and the one value that says that there is some (RFC 3168).
const ECN: u8 = 3;
const CE: u8 = 3;

/// How a socket is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Kernel memory for what has come and was not received yet, bytes.
    pub receive_bytes: u32,
    /// Kernel memory for what was sent and has not left yet, bytes.
    pub send_bytes: u32,
    /// Whether several datagrams of one size for one receiver are one thing to the system, on their way
    /// out (`UDP_SEGMENT`) and in (`UDP_GRO`). Then UDP checksums are filled in, which the card does;
    /// without, they are 0.
    pub segments: bool,
}

/// A socket bound to one address and port, which others of the same process may share.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    address: SocketAddr,
}

impl Socket {
    /// Binds to exactly this address, where others of this user may be bound already.
    ///
    /// # Errors
    ///
    /// The step and its errno: `EADDRINUSE` if somebody else has the port, `EADDRNOTAVAIL` if the address
    /// is not this host's.
    pub fn bind(address: SocketAddr, options: Options) -> Result<Self, Failure> {
        let socket = Self::new(address, options)?;
        socket.share()?;
        socket.bind_to(address).map_err(Failure::at("bind the UDP socket"))?;
        Ok(socket)
    }

    /// Binds to exactly this address, where nobody is bound, of whatever user; from then on others of this user may be.
    ///
    /// # Errors
    ///
    /// As [`Self::bind`].
    pub fn bind_first(address: SocketAddr, options: Options) -> Result<Self, Failure> {
        let socket = Self::new(address, options)?;
        socket.bind_to(address).map_err(Failure::at("bind the UDP socket"))?;
        socket.share()?;
        Ok(socket)
    }

    fn share(&self) -> Result<(), Failure> {
        self.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1, "share the UDP port")
    }

    /// One that is not bound yet.
    fn new(address: SocketAddr, options: Options) -> Result<Self, Failure> {
        let domain = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = call::socket(domain, kind, 0).map_err(Failure::at("open a UDP socket"))?;
        let socket = Self { fd: own(fd), address };
        socket.size(options);
        let no_checksum = i32::from(!options.segments);
        if options.segments {
            socket.set(libc::SOL_UDP, UDP_GRO, 1, "take datagrams together")?;
        }
        if address.is_ipv4() {
            let discover = libc::IP_MTU_DISCOVER;
            socket.set(libc::IPPROTO_IP, discover, DISCOVER_DO, "forbid fragments")?;
            socket.set(libc::SOL_SOCKET, libc::SO_NO_CHECK, no_checksum, "leave checksums out")?;
            socket.set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1, "be told of congestion marks")?;
        } else {
            let discover = libc::IPV6_MTU_DISCOVER;
            socket.set(libc::IPPROTO_IPV6, discover, DISCOVER_DO, "forbid fragments")?;
            socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1, "leave IPv4 to others")?;
            socket.set(libc::SOL_UDP, UDP_NO_CHECK6_TX, no_checksum, "leave checksums out")?;
            socket.set(libc::SOL_UDP, UDP_NO_CHECK6_RX, 1, "take what has no checksum")?;
            let told = libc::IPV6_RECVTCLASS;
            socket.set(libc::IPPROTO_IPV6, told, 1, "be told of congestion marks")?;
        }
        Ok(socket)
    }

    /// As large as asked for where we may, else as large as the system allows to anybody.
    fn size(&self, options: Options) {
        let each = [
            (SO_RCVBUFFORCE, libc::SO_RCVBUF, options.receive_bytes),
            (SO_SNDBUFFORCE, libc::SO_SNDBUF, options.send_bytes),
        ];
        for (by_force, name, bytes) in each {
            // The kernel doubles what it is told, for its own book-keeping.
            let bytes = i32::try_from(bytes / 2).unwrap_or(i32::MAX);
            let fd = self.fd.as_raw_fd();
            if call::setsockopt(fd, libc::SOL_SOCKET, by_force, bytes).is_err() {
                let _ = call::setsockopt(fd, libc::SOL_SOCKET, name, bytes);
            }
        }
    }

    fn set(&self, level: i32, name: i32, value: i32, step: &'static str) -> Result<(), Failure> {
        call::setsockopt(self.fd.as_raw_fd(), level, name, value).map_err(Failure::at(step))
    }

    fn bind_to(&self, address: SocketAddr) -> Result<(), i32> {
        match Name::from(address) {
            Name::V4(name) => call::bind(self.fd.as_raw_fd(), &name),
            Name::V6(name) => call::bind(self.fd.as_raw_fd(), &name),
        }
    }

    /// The address and port that it is bound to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes of kernel memory for what has come, as the system granted them.
    #[must_use]
    pub fn receive_bytes(&self) -> u32 {
        call::getsockopt(self.fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0)
    }

    /// Chooses, for all sockets of this address and port, which of them a datagram goes to: what the
    /// program answers is its number, in the order in which they were bound. The program sees the
    /// datagram from its first byte of payload on. A number that there is no socket for means that the
    /// kernel chooses by a hash of the addresses.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn steer(&self, program: &[Classic]) -> Result<(), Failure> {
        bpf::set_classic(&self.fd, libc::SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)
            .map_err(Failure::at("steer datagrams"))
    }

    /// Has the kernel note when datagrams come: see [`Received::first_stamp`].
    ///
    /// # Errors
    ///
    /// The step and its errno.
    pub fn stamp(&self) -> Result<(), Failure> {
        stamp::ask(self.fd.as_raw_fd(), true).map_err(Failure::at("have datagrams stamped"))
    }

    /// Takes in what has come, as far as there is room. Never waits.
    ///
    /// # Errors
    ///
    /// The errno: `EAGAIN` when there is nothing.
    pub fn receive(&self, into: &mut Received) -> Result<usize, i32> {
        into.receive(self.fd.as_raw_fd())
    }

    /// Sends what is in the batch and was not sent yet; answers how many datagrams have gone. They are
    /// taken out of the batch when all have. Never waits.
    ///
    /// # Errors
    ///
    /// The errno of the first that is left, if none has gone: `EAGAIN` when there is no room; `EMSGSIZE`
    /// when a datagram is longer than the path allows.
    pub fn send(&self, batch: &mut Outgoing) -> Result<usize, i32> {
        batch.send(self.fd.as_raw_fd())
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// An address as the kernel wants it.
#[derive(Clone, Copy)]
enum Name {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl From<SocketAddr> for Name {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::V4(libc::sockaddr_in {
                sin_family: u16::try_from(libc::AF_INET).unwrap_or(0),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Self::V6(libc::sockaddr_in6 {
                sin6_family: u16::try_from(libc::AF_INET6).unwrap_or(0),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }
}

/// Room for the sender's address, of either family.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Source([u8; 32]);

impl Source {
    /// The address; `None` if it is of neither family.
    fn address(&self) -> Option<SocketAddr> {
        let family = i32::from(u16::from_ne_bytes([self.0[0], self.0[1]]));
        let port = u16::from_be_bytes([self.0[2], self.0[3]]);
        match family {
            libc::AF_INET => {
                let [_, _, _, _, a, b, c, d, ..] = self.0;
                Some((Ipv4Addr::new(a, b, c, d), port).into())
            }
            libc::AF_INET6 => {
                let mut octets = [0; 16];
                octets.copy_from_slice(&self.0[8..24]);
                Some((Ipv6Addr::from(octets), port).into())
            }
            _ => None,
        }
    }
}

fn empty_message() -> libc::mmsghdr {
    // SAFETY: all zeros is a valid message with nothing in it.
    unsafe { std::mem::zeroed() }
}

/// Control messages to be sent, with one number each: of how many bytes the segments of a message are, and the
/// traffic class of its packets.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 2 * CONTROL_BYTES]);

/// `CMSG_SPACE` of up to 8 bytes on a 64-bit machine.
const CONTROL_BYTES: usize = 24;
const CONTROL_HEAD: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(CONTROL_HEAD + 8 == CONTROL_BYTES);

impl Control {
    const EMPTY: Self = Self([0; 2 * CONTROL_BYTES]);

    /// Writes what a message needs; how many bytes of these there are.
    fn tell(&mut self, leaving: &Leaving) -> usize {
        let mut at = 0;
        if leaving.segment_bytes > 0 {
            // It takes 16 bits.
            self.put(&mut at, (libc::SOL_UDP, UDP_SEGMENT), &leaving.segment_bytes.to_ne_bytes());
        }
        if leaving.class > 0 {
            let name = match leaving.to {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            self.put(&mut at, name, &i32::from(leaving.class).to_ne_bytes());
        }
        at
    }

    fn put(&mut self, at: &mut usize, (level, kind): (i32, i32), data: &[u8]) {
        let to = &mut self.0[*at..*at + CONTROL_BYTES];
        to[..8].copy_from_slice(&(CONTROL_HEAD + data.len()).to_ne_bytes());
        to[8..12].copy_from_slice(&level.to_ne_bytes());
        to[12..16].copy_from_slice(&kind.to_ne_bytes());
        to[CONTROL_HEAD..CONTROL_HEAD + data.len()].copy_from_slice(data);
        *at += CONTROL_BYTES;
    }
}

/// The longest message of UDP, bytes.
pub const MESSAGE_MAX: usize = 65_507;

/// A message that has come.
#[derive(Clone, Copy)]
struct Message {
    /// Bytes; more than there was room for: it was cut and is passed over.
    bytes: usize,
    /// Of each of its datagrams but the last.
    segment_bytes: usize,
    /// When it came, if somebody wants to know.
    stamp: Option<u64>,
    /// Something on the way had more to carry than it could.
    marked: bool,
}

/// Room for datagrams that come, used again and again.
pub struct Received {
    bytes: Box<[u8]>,
    each: usize,
    sources: Box<[Source]>,
    messages: Vec<Message>,
}

impl Received {
    /// Room for `count` messages of up to `each` bytes; at most [`BATCH`] of them.
    #[must_use]
    pub fn new(each: usize, count: usize) -> Self {
        let count = count.clamp(1, BATCH);
        Self {
            bytes: vec![0; count * each].into_boxed_slice(),
            each,
            sources: vec![Source([0; 32]); count].into_boxed_slice(),
            messages: Vec::with_capacity(count),
        }
    }

    /// Whether the last receive filled all the room, so that there may be more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.messages.len() == self.sources.len()
    }

    /// When the first of those came that the last receive has brought, nanoseconds since 1970; `None`: the socket was
    /// not asked for [stamps](Socket::stamp).
    #[must_use]
    pub fn first_stamp(&self) -> Option<u64> {
        self.messages.iter().filter_map(|message| message.stamp).min()
    }

    fn receive(&mut self, fd: RawFd) -> Result<usize, i32> {
        match self.sources.len() {
            ..=FEW => self.receive_at_most::<FEW>(fd),
            _ => self.receive_at_most::<BATCH>(fd),
        }
    }

    /// Receives as many as there is room for, `N` at most.
    fn receive_at_most<const N: usize>(&mut self, fd: RawFd) -> Result<usize, i32> {
        self.messages.clear();
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (mut iovs, mut messages) = ([empty; N], [empty_message(); N]);
        let mut controls = [stamp::Control::EMPTY; N];
        let count = self.sources.len().min(N);
        let rooms = self.bytes.chunks_exact_mut(self.each).zip(&mut self.sources);
        let heads = iovs.iter_mut().zip(&mut messages).zip(&mut controls);
        for (((iov, message), control), (room, source)) in heads.zip(rooms) {
            iov.iov_base = room.as_mut_ptr().cast();
            iov.iov_len = room.len();
            message.msg_hdr.msg_iov = iov;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_name = std::ptr::from_mut(source).cast();
            message.msg_hdr.msg_namelen = 32;
            message.msg_hdr.msg_control = std::ptr::from_mut(control).cast();
            message.msg_hdr.msg_controllen = stamp::CONTROL_BYTES;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: each message leads to its own part of `bytes`, its own `Source`, control message and
        // iovec, with their lengths; all outlive the call and nobody else has them, as `self` is borrowed
        // for us.
        let n = unsafe { call::recvmmsg(fd, &mut messages[..count], flags) }?;
        self.messages.extend(messages[..n].iter().zip(&controls).map(|(m, control)| {
            let bytes = m.msg_len as usize;
            let len = m.msg_hdr.msg_controllen;
            let segment_bytes = control.segment_bytes(len).unwrap_or(bytes).max(1);
            let marked = control.traffic_class(len).is_some_and(|class| class & ECN == CE);
            Message { bytes, segment_bytes, stamp: control.stamp(len), marked }
        }));
        Ok(n)
    }

    /// The datagrams that came with the last receive: from whom, and the payload.
    pub fn iter(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        self.messages().flat_map(|(from, _, datagrams)| datagrams.map(move |one| (from, one)))
    }

    /// The same, together what the system gave us as one: datagrams of one sender, all as long as the first but the
    /// last, which may be shorter; and whether they came with a congestion mark (ECN: CE), which all of them have or none.
    pub fn messages(&self) -> impl Iterator<Item = (SocketAddr, bool, std::slice::Chunks<'_, u8>)> {
        let rooms = self.bytes.chunks_exact(self.each).zip(&self.sources);
        rooms.zip(&self.messages).filter_map(|((room, source), message)| {
            let bytes = room.get(..message.bytes)?;
            Some((source.address()?, message.marked, bytes.chunks(message.segment_bytes)))
        })
    }
}

impl std::fmt::Debug for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|(from, bytes)| (from, bytes.len()))).finish()
    }
}

/// A message that is to be sent.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// Where it ends in the bytes of all.
    end: usize,
    to: SocketAddr,
    /// Bytes of each of its datagrams but the last; 0: it is one.
    segment_bytes: u16,
    /// DSCP and ECN.
    class: u8,
}

/// Datagrams that are to be sent together.
pub struct Outgoing {
    bytes: Box<[u8]>,
    list: Vec<Leaving>,
    /// How many have gone.
    gone: usize,
}

impl Outgoing {
    /// An empty batch with room for `bytes` bytes, at least [`MESSAGE_MAX`].
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let bytes = vec![0; bytes.max(MESSAGE_MAX)].into_boxed_slice();
        Self { bytes, list: Vec::with_capacity(BATCH), gone: 0 }
    }

    /// Whether there is no room for another message before what is there was sent.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.list.len() >= BATCH || self.bytes.len() - self.end() < MESSAGE_MAX
    }

    /// Whether nothing waits to be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Bytes of what waits to be sent, or was sent with others of the batch that still wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.end()
    }

    fn end(&self) -> usize {
        self.list.last().map_or(0, |last| last.end)
    }

    /// Room for the next message, as long as one may be; [`Self::add`] says what was written there. Empty
    /// if the batch is full.
    pub fn room(&mut self) -> &mut [u8] {
        let (end, each) = (self.end(), if self.is_full() { 0 } else { MESSAGE_MAX });
        &mut self.bytes[end..end + each]
    }

    /// The first `len` bytes of [`Self::room`] are datagrams of `segment_bytes` each, one behind the other;
    /// the last may be shorter. Without bytes there is none. More than one, only by a socket that has
    /// [`Options::segments`], and at most 64.
    ///
    /// # Panics
    ///
    /// If there is no room for that.
    pub fn add(&mut self, to: SocketAddr, len: usize, segment_bytes: usize) {
        self.add_of_class(to, len, segment_bytes, 0);
    }

    /// The same; `class`: DSCP and ECN of its packets.
    ///
    /// # Panics
    ///
    /// If there is no room for that.
    pub fn add_of_class(&mut self, to: SocketAddr, len: usize, segment_bytes: usize, class: u8) {
        assert!(!self.is_full() && len <= MESSAGE_MAX);
        let segment = if len > segment_bytes { u16::try_from(segment_bytes) } else { Ok(0) };
        if len > 0 {
            let end = self.end() + len;
            self.list.push(Leaving { end, to, segment_bytes: segment.unwrap_or(0), class });
        }
    }

    /// Adds a datagram.
    ///
    /// # Panics
    ///
    /// If there is no room for it.
    pub fn push(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.room()[..datagram.len()].copy_from_slice(datagram);
        self.add(to, datagram.len(), datagram.len());
    }

    /// The first that was not sent: where it is to go, and how long a datagram of it is.
    #[must_use]
    pub fn first(&self) -> Option<(SocketAddr, usize)> {
        let first = self.list.get(self.gone)?;
        let whole = first.end - self.start(self.gone);
        let len = if first.segment_bytes > 0 { first.segment_bytes.into() } else { whole };
        Some((first.to, len))
    }

    /// Where a message begins in the bytes of all.
    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.list[before].end)
    }

    /// Has what was not sent yet leave datagram by datagram, for a system that does not take several as one. Whether there
    /// were such; `all`: else only the first message is looked at.
    pub fn take_apart(&mut self, all: bool) -> bool {
        let mut at = self.gone;
        let until = if all { self.list.len() } else { (at + 1).min(self.list.len()) };
        let behind = self.list.len() - until;
        let mut any = false;
        while at + behind < self.list.len() {
            let whole = self.list[at];
            if whole.segment_bytes > 0 {
                any = true;
                let (start, step) = (self.start(at), usize::from(whole.segment_bytes));
                let ends = (start + step..whole.end).step_by(step).chain([whole.end]);
                let each: Vec<_> =
                    ends.map(|end| Leaving { end, segment_bytes: 0, ..whole }).collect();
                let count = each.len();
                self.list.splice(at..=at, each);
                at += count;
            } else {
                at += 1;
            }
        }
        any
    }

    /// Takes the first that was not sent out of the batch: it cannot go.
    pub fn skip(&mut self) {
        self.gone += 1;
        self.forget_if_done();
    }

    fn forget_if_done(&mut self) {
        if self.gone >= self.list.len() {
            self.list.clear();
            self.gone = 0;
        }
    }

    fn send(&mut self, fd: RawFd) -> Result<usize, i32> {
        match self.list.len() - self.gone {
            0 => Ok(0),
            // Mostly it is so many, and what is told to the kernel has to be cleared each time.
            left @ ..=FEW => self.send_at_most::<FEW>(fd, left),
            left => self.send_at_most::<BATCH>(fd, left),
        }
    }

    /// Sends the first `left` that were not sent yet, `N` at most.
    fn send_at_most<const N: usize>(&mut self, fd: RawFd, left: usize) -> Result<usize, i32> {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (mut iovs, mut messages) = ([empty; N], [empty_message(); N]);
        let mut names = [Name::from(SocketAddr::from(([0, 0, 0, 0], 0))); N];
        let mut controls = [Control::EMPTY; N];
        let mut start = self.start(self.gone);
        let heads = iovs.iter_mut().zip(&mut messages).zip(names.iter_mut().zip(&mut controls));
        for (((iov, message), (name, control)), leaving) in heads.zip(&self.list[self.gone..]) {
            let payload = &self.bytes[start..leaving.end];
            start = leaving.end;
            iov.iov_base = payload.as_ptr().cast_mut().cast();
            iov.iov_len = payload.len();
            *name = Name::from(leaving.to);
            let (name, name_bytes) = match name {
                Name::V4(name) => (std::ptr::from_mut(name).cast(), size_of::<libc::sockaddr_in>()),
                Name::V6(name) => {
                    (std::ptr::from_mut(name).cast(), size_of::<libc::sockaddr_in6>())
                }
            };
            let head = &mut message.msg_hdr;
            head.msg_name = name;
            head.msg_namelen = u32::try_from(name_bytes).unwrap_or(0);
            head.msg_iov = iov;
            head.msg_iovlen = 1;
            let told = control.tell(leaving);
            if told > 0 {
                head.msg_control = std::ptr::from_mut(control).cast();
                head.msg_controllen = told;
            }
        }
        // SAFETY: each message leads to its own name, control message and iovec, which leads to bytes of `self`; all
        // outlive the call, which only reads them.
        let n = unsafe { call::sendmmsg(fd, &mut messages[..left.min(N)], libc::MSG_DONTWAIT) }?;
        self.gone += n;
        self.forget_if_done();
        Ok(n)
    }
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing").field("list", &self.list).field("gone", &self.gone).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const OPTIONS: Options =
        Options { receive_bytes: 1 << 20, send_bytes: 1 << 20, segments: false };
    /// Answers the second byte of the payload.
    const BY_SECOND_BYTE: &[Classic] =
        &[Classic { code: 0x30, yes: 0, no: 0, k: 1 }, Classic { code: 0x16, yes: 0, no: 0, k: 0 }];

    /// A free port of an address.
    fn bind(ip: &str) -> Socket {
        let ip: IpAddr = ip.parse().unwrap();
        let port = std::net::UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port();
        Socket::bind((ip, port).into(), OPTIONS).unwrap()
    }

    fn all(socket: &Socket) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut received = Received::new(2048, BATCH);
        let mut all = Vec::new();
        while socket.receive(&mut received).is_ok() {
            all.extend(received.iter().map(|(from, bytes)| (from, bytes.to_vec())));
        }
        all
    }

    #[test]
    fn batches_arrive_in_order_with_their_sender() {
        for ip in ["127.0.0.1", "::1"] {
            let Ok(_) = std::net::UdpSocket::bind((ip, 0)) else {
                println!("skipped: no {ip} here");
                continue;
            };
            let (from, to) = (bind(ip), bind(ip));
            let mut batch = Outgoing::new(1 << 20);
            let mut sent = Vec::new();
            for i in 0..u8::try_from(BATCH).unwrap() {
                let payload = vec![i; usize::from(i) * 7];
                batch.push(to.address(), &payload);
                sent.extend((!payload.is_empty()).then_some(payload));
            }
            while !batch.is_empty() {
                from.send(&mut batch).unwrap();
            }
            let came = all(&to);
            assert!(came.iter().all(|(source, _)| *source == from.address()));
            assert_eq!(came.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>(), sent);
        }
    }

    #[test]
    fn what_is_too_long_for_the_room_is_passed_over() {
        let (from, to) = (bind("127.0.0.1"), bind("127.0.0.1"));
        let mut batch = Outgoing::new(1 << 20);
        for payload in [&[1u8; 3000][..], b"short"] {
            batch.push(to.address(), payload);
        }
        from.send(&mut batch).unwrap();
        assert_eq!(all(&to), [(from.address(), b"short".to_vec())]);
    }

    #[test]
    fn what_cannot_go_may_be_skipped() {
        let (from, to) = (bind("127.0.0.1"), bind("127.0.0.1"));
        let mut batch = Outgoing::new(1 << 20);
        // Segments, by a socket that has none.
        batch.add(to.address(), 200, 100);
        batch.push(to.address(), b"short");
        assert_eq!(from.send(&mut batch), Err(libc::EINVAL));
        batch.skip();
        assert_eq!(from.send(&mut batch), Ok(1));
        assert!(batch.is_empty());
        assert_eq!(all(&to).len(), 1);
    }

    #[test]
    fn what_the_system_does_not_take_together_may_go_apart() {
        let (from, to) = (bind("127.0.0.1"), bind("127.0.0.1"));
        for all in [false, true] {
            let mut batch = Outgoing::new(1 << 20);
            let mut sent = Vec::new();
            batch.push(to.address(), b"first");
            sent.push(b"first".to_vec());
            // Segments, by a socket that has none.
            for (nth, len) in [(1, 250), (2, 200)] {
                batch.room()[..len].fill(nth);
                batch.add(to.address(), len, 100);
                sent.extend(vec![nth; len].chunks(100).map(<[u8]>::to_vec));
            }
            assert_eq!(batch.first(), Some((to.address(), 5)));
            assert!(all || !batch.take_apart(false), "it is one");
            assert_eq!(from.send(&mut batch), Ok(1));
            assert_eq!(batch.first(), Some((to.address(), 100)));
            assert_eq!(from.send(&mut batch), Err(libc::EINVAL));
            assert!(batch.take_apart(all));
            assert_eq!(from.send(&mut batch), Ok(if all { 5 } else { 3 }));
            if !all {
                assert_eq!(from.send(&mut batch), Err(libc::EINVAL));
                assert!(batch.take_apart(all));
                assert_eq!(from.send(&mut batch), Ok(2));
            }
            assert!(batch.is_empty() && !batch.take_apart(true));
            assert_eq!(all_of(&to), sent);
        }
    }

    fn all_of(socket: &Socket) -> Vec<Vec<u8>> {
        all(socket).into_iter().map(|(_, bytes)| bytes).collect()
    }

    #[test]
    fn segments_go_together_and_come_apart() {
        let options = Options { segments: true, ..OPTIONS };
        let with = |ip: &str| {
            let there = bind(ip).address();
            Socket::bind(there, options).unwrap()
        };
        for ip in ["127.0.0.1", "::1"] {
            if std::net::UdpSocket::bind((ip, 0)).is_err() {
                println!("skipped: no {ip} here");
                continue;
            }
            let (from, to) = (with(ip), with(ip));
            let mut batch = Outgoing::new(1 << 20);
            let bytes: Vec<u8> = (0..10_500u32).map(|i| (i / 7).to_le_bytes()[0]).collect();
            batch.room()[..bytes.len()].copy_from_slice(&bytes);
            batch.add(to.address(), bytes.len(), 1000);
            batch.push(to.address(), b"one");
            while !batch.is_empty() {
                from.send(&mut batch).unwrap();
            }
            let mut received = Received::new(65_536, 4);
            let mut came = Vec::new();
            while to.receive(&mut received).is_ok() {
                assert_eq!(received.first_stamp(), None, "nobody has asked");
                came.extend(received.iter().map(|(source, bytes)| {
                    assert_eq!(source, from.address());
                    bytes.to_vec()
                }));
            }
            let sent: Vec<_> =
                bytes.chunks(1000).chain([&b"one"[..]]).map(<[u8]>::to_vec).collect();
            assert!(came == sent, "{ip}: {} datagrams", came.len());

            // Stamps beside the length of segments.
            to.stamp().unwrap();
            // The kernel begins with it when it comes to that.
            let (before, stamp) = loop {
                let before = call::now_ns();
                batch.room()[..bytes.len()].copy_from_slice(&bytes);
                batch.add(to.address(), bytes.len(), 1000);
                while !batch.is_empty() {
                    from.send(&mut batch).unwrap();
                }
                while to.receive(&mut received).is_err() {}
                assert_eq!(received.iter().next().map(|(_, one)| one.len()), Some(1000));
                if let Some(stamp) = received.first_stamp() {
                    break (before, stamp::since_boot(stamp));
                }
            };
            let slack = 50_000_000;
            assert!((before - slack..=call::now_ns() + slack).contains(&stamp));
        }
    }

    #[test]
    fn congestion_marks_are_told_and_no_others() {
        let options = Options { segments: true, ..OPTIONS };
        for ip in ["127.0.0.1", "::1"] {
            if std::net::UdpSocket::bind((ip, 0)).is_err() {
                println!("skipped: no {ip} here");
                continue;
            }
            let with = || Socket::bind(bind(ip).address(), options).unwrap();
            let (from, to) = (with(), with());
            let mut batch = Outgoing::new(1 << 20);
            // Not ECT, ECT(1), ECT(0), CE; with a DSCP, and as segments of a longer one.
            let all = [(0, false), (1, false), (2, false), (3, true), (0x68, false), (0x6b, true)];
            for (nth, (class, _)) in (1..).zip(all) {
                batch.room()[..3 * 100].fill(nth);
                batch.add_of_class(to.address(), 3 * 100, 100, class);
            }
            while !batch.is_empty() {
                from.send(&mut batch).unwrap();
            }
            let mut received = Received::new(65_536, BATCH);
            let mut came = Vec::new();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while came.len() < all.len() && std::time::Instant::now() < deadline {
                if to.receive(&mut received).is_err() {
                    std::thread::yield_now();
                    continue;
                }
                for (_, marked, mut datagrams) in received.messages() {
                    came.extend(datagrams.next().map(|one| (one[0], one.len(), marked)));
                }
            }
            let sent = (1..).zip(all).map(|(nth, (_, marked))| (nth, 100, marked));
            assert!(came.iter().copied().eq(sent), "{ip}: {came:?}");
        }
    }

    #[test]
    fn a_program_chooses_among_those_that_share_a_port() {
        let first = bind("127.0.0.1");
        let second = Socket::bind(first.address(), OPTIONS).unwrap();
        first.steer(BY_SECOND_BYTE).unwrap();
        let from = bind("127.0.0.1");
        let mut batch = Outgoing::new(1 << 20);
        for i in 0..40u8 {
            batch.push(first.address(), &[9, i % 2, i]);
        }
        from.send(&mut batch).unwrap();
        for (at, socket) in [(0, &first), (1, &second)] {
            let came = all(socket);
            assert_eq!(came.len(), 20);
            assert!(came.iter().all(|(_, bytes)| bytes[1] == at));
        }
    }

    #[test]
    fn packets_have_identification_0_and_may_not_be_fragmented() {
        let raw =
            call::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_UDP);
        let raw = match raw {
            Ok(fd) => own(fd),
            Err(errno) => {
                println!("skipped: no raw socket (errno {errno})");
                return;
            }
        };
        let (from, to) = (bind("127.0.0.1"), bind("127.0.0.1"));
        let mut batch = Outgoing::new(1 << 20);
        for i in 0..5u8 {
            batch.push(to.address(), &[i; 9]);
        }
        from.send(&mut batch).unwrap();
        let (mut packet, mut seen) = ([0; 256], 0);
        while let Ok(n) = call::recv(raw.as_raw_fd(), &mut packet, libc::MSG_DONTWAIT) {
            let port = u16::from_be_bytes([packet[22], packet[23]]);
            if n == 20 + 8 + 9 && port == to.address().port() {
                assert_eq!(packet[4..8], [0, 0, 0x40, 0], "identification, flags");
                assert_eq!(packet[26..28], [0, 0], "checksum");
                seen += 1;
            }
        }
        assert_eq!(seen, 5);
    }
}

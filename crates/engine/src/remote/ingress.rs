//! RoCEv2 packets that come in fragments, put together here instead of by the kernel.
//!
//! RoCEv2 forbids fragments (IBTA annex A17.3.1), but routers and tunnels exist that cut packets up all the same.
//! The kernel puts such packets together within limits that the whole host shares (`net.ipv4.ipfrag_*`), and drops
//! them where these are used up. So copies of fragments are taken from the interface, before the kernel's own
//! reassembly, and put together by [`frag`] within memory of their own; what comes of it goes the way of packets
//! that came by a socket, but with its identification known, so that its checksum is exact.
//!
//! The kernel does what it does all the same: where it succeeds, too, the same packet comes twice, and the second
//! is dropped as a duplicate (IBTA vol. 1, 9.7.5.1.3). Taking fragments out of its way (XDP) would take those
//! of everybody else's datagrams with them, since only a first fragment has ports. Rules of a firewall come after
//! us: only frames to this host are taken, of no VLAN, but then from anybody.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use frag::{Config, Datagram, HashKey, Ledger, Released, Shard, Sink};
use roce::{Addresses, Arrival};
use sys::call::Failure;
use sys::interface::Interface;
use sys::packet::Copies;

use super::inbox::Inbox;
use super::port::PORT;
use super::vector::Order;
use crate::defrag::live::fragments_to_us;

/// Memory that fragments may hold, bytes.
const MEMORY: u64 = 4 << 20;
/// Datagrams in progress. Of those that are cut as networks are, at 1,000 bytes and more, memory holds fewer. With smaller
/// pieces one in which nothing moves goes for a new one.
const DATAGRAMS: u32 = 4096;
/// How long one may take, nanoseconds: whoever sent it has sent it again long before.
const TIMEOUT_NS: u64 = 1_000_000_000;
/// Kernel memory for what waits for us, bytes.
const QUEUE_BYTES: u32 = 4 << 20;
/// The longest packet of IP.
const PACKET_MAX: usize = 65_535;
/// Packets that are taken in before others have their turn.
const BURST: usize = 256;
/// Packets that may wait for another vector, bytes: one that is busy loses more, as it would at its socket.
const WAITING_BYTES: usize = 1 << 20;
/// Datagrams whose time is up that are given up at once.
const EXPIRE_MOST: usize = 64;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;
/// ECN: congestion experienced (RFC 3168).
const CE: u8 = 3;

/// An address whose fragments we take.
#[derive(Debug)]
pub(super) struct Tap {
    address: IpAddr,
    copies: Copies,
}

impl Tap {
    /// From now on fragments are copied for us, at the interface that has this address.
    ///
    /// # Errors
    ///
    /// The step and its errno: `EPERM` without `CAP_NET_RAW`, `ENODEV` if no interface has the address.
    pub(super) fn open(address: IpAddr) -> Result<Self, Failure> {
        const ENODEV: i32 = 19;
        let none = Failure { step: "find the interface of the address", errno: ENODEV };
        let interface = Interface::with_address(address).ok_or(none)?;
        let copies = Copies::open(interface.index, &fragments_to_us(), QUEUE_BYTES)?;
        Ok(Self { address, copies })
    }
}

impl AsRawFd for Tap {
    fn as_raw_fd(&self) -> RawFd {
        self.copies.as_raw_fd()
    }
}

/// A packet of RoCEv2 that has come in fragments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) arrival: Arrival,
    /// What is behind UDP.
    pub(super) bytes: Box<[u8]>,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Fragments taken in.
    pub(super) fragments: u64,
    /// Packets of RoCEv2 that came of them.
    pub(super) packets: u64,
    /// Those that were dropped since too many waited for their vector.
    pub(super) dropped: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ingress {
    taps: Vec<Tap>,
    assembly: Assembly,
    room: Box<[u8]>,
    /// Vectors, to which packets go by the number of their queue pair.
    vectors: Vec<Arc<Inbox<Order>>>,
    pub(super) counts: Counts,
}

impl Ingress {
    pub(super) fn new(vectors: Vec<Arc<Inbox<Order>>>, secret: [u64; 2]) -> Self {
        Self {
            taps: Vec::new(),
            assembly: Assembly::new(secret),
            room: vec![0; PACKET_MAX].into_boxed_slice(),
            vectors,
            counts: Counts::default(),
        }
    }

    pub(super) fn add(&mut self, tap: Tap) {
        self.taps.push(tap);
    }

    /// Takes in fragments that have come. Packets for vector `own` are answered, others go to theirs.
    pub(super) fn receive(&mut self, own: u32, now: u64) -> Vec<Packet> {
        let mut mine = Vec::new();
        for tap in &self.taps {
            for _ in 0..BURST {
                let Ok(len) = tap.copies.receive(&mut self.room) else { break };
                let Some(packet) = self.room.get(..len) else { continue };
                self.counts.fragments += 1;
                let Some(packet) = self.assembly.take(packet, tap.address, now) else { continue };
                mine.extend(hand_over(packet, own, &self.vectors, &mut self.counts));
            }
        }
        mine
    }

    /// Time has passed.
    pub(super) fn expire(&mut self, now: u64) {
        self.assembly.expire(now);
    }
}

/// Leaves a packet with the vector that it is for, as long as there is room; `Some`: that is `own`.
fn hand_over(
    packet: Packet,
    own: u32,
    vectors: &[Arc<Inbox<Order>>],
    counts: &mut Counts,
) -> Option<Packet> {
    counts.packets += 1;
    let vector = vector_of(&packet.bytes, vectors.len());
    match vectors.get(vector) {
        Some(inbox) if vector != own as usize => {
            let bytes = size_of::<Packet>() + packet.bytes.len();
            let left = inbox.put_within(Order::Packet(Box::new(packet)), bytes, WAITING_BYTES);
            counts.dropped += u64::from(!left);
            None
        }
        _ => Some(packet),
    }
}

/// Which vector a packet is for: the low bits of its queue pair's number say it.
fn vector_of(packet: &[u8], vectors: usize) -> usize {
    let bits = super::port::vector_bits(u32::try_from(vectors).unwrap_or(u32::MAX));
    let low = packet.get(7).copied().unwrap_or(0);
    usize::from(low) & ((1 << bits) - 1)
}

/// Fragments that wait for the rest, each in memory of its own.
#[derive(Debug)]
struct Assembly {
    shard: Shard<u64>,
    waiting: Waiting,
}

impl Assembly {
    fn new(secret: [u64; 2]) -> Self {
        let config = Config {
            memory_bytes: MEMORY,
            datagrams_max: DATAGRAMS,
            timeout_v4_ns: TIMEOUT_NS,
            timeout_v6_ns: TIMEOUT_NS,
            ..Config::default()
        };
        #[expect(clippy::expect_used, reason = "settings that are written here")]
        let limits = config.limits().expect("limits that can be");
        let shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new(secret));
        Self { shard, waiting: Waiting::default() }
    }

    /// Takes in an IP packet that came to an interface; what it completes, if that is RoCEv2. What is not for
    /// `address` is not kept: two taps at one interface see the same fragments, and only one may use them up.
    fn take(&mut self, packet: &[u8], address: IpAddr, now: u64) -> Option<Packet> {
        if destination(packet) != Some(address) {
            return None;
        }
        let number = self.waiting.next;
        self.waiting.next += 1;
        self.waiting.held.insert(number, packet.into());
        let arrival = frag::Arrival::new(packet, number);
        self.shard.push(arrival, now, &mut self.waiting);
        let (header_len, whole) = self.waiting.whole.take()?;
        rocev2(&whole, header_len)
    }

    fn expire(&mut self, now: u64) {
        self.shard.expire(now, EXPIRE_MOST, &mut self.waiting);
    }
}

/// Fragments that a shard keeps, by the number that it knows them by. The shard's limit bounds them.
#[derive(Debug, Default)]
struct Waiting {
    held: HashMap<u64, Box<[u8]>>,
    next: u64,
    /// The datagram that was completed last: bytes of its header, and all of it.
    whole: Option<(usize, Vec<u8>)>,
}

impl Sink<u64> for Waiting {
    /// What is no fragment comes by the socket.
    fn whole(&mut self, number: u64, _: usize) {
        self.held.remove(&number);
    }

    fn datagram(&mut self, datagram: &Datagram<'_, u64>) {
        let mut bytes = vec![0; datagram.packet_len()];
        let held = |number: &u64| self.held.get(number).map_or(&[][..], |bytes| bytes);
        let done = datagram.write_to(&mut bytes, held);
        self.whole = done.ok().map(|_| (datagram.header().len(), bytes));
    }

    fn release(&mut self, number: u64, _: Released) {
        self.held.remove(&number);
    }
}

/// Where an IP packet goes to (RFC 791 3.1, RFC 8200 3); `None`: it is none.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet.get(16..)?.first_chunk().map(|octets: &[u8; 4]| IpAddr::from(*octets)),
        6 => packet.get(24..)?.first_chunk().map(|octets: &[u8; 16]| IpAddr::from(*octets)),
        _ => None,
    }
}

/// An IP packet as one of RoCEv2; `None`: it is none. UDP's own checksum is not looked at: RoCEv2's covers as much.
fn rocev2(packet: &[u8], header_len: usize) -> Option<Packet> {
    let (header, udp) = packet.split_at_checked(header_len)?;
    let (addresses, class, identification) = match header.first()? >> 4 {
        4 => {
            let fixed: &[u8; 20] = header.first_chunk()?;
            let [.., a, b, c, d, e, f, g, h] = *fixed;
            let (src, dst) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
            let identification = u16::from_be_bytes([fixed[4], fixed[5]]);
            let udp = (fixed[9] == UDP).then_some(identification)?;
            (Addresses::V4 { src, dst }, fixed[1], Some(udp))
        }
        _ => {
            let fixed: &[u8; 40] = header.first_chunk()?;
            let address = |at: usize| {
                let octets: Option<&[u8; 16]> = fixed.get(at..)?.first_chunk();
                octets.copied().map(Ipv6Addr::from)
            };
            let (src, dst) = (address(8)?, address(24)?);
            // With other headers in between it is not what the checksum was made for.
            (header.len() == fixed.len() && fixed[6] == UDP).then_some(())?;
            (Addresses::V6 { src, dst }, fixed[0] << 4 | fixed[1] >> 4, None)
        }
    };
    let (head, payload) = udp.split_first_chunk::<UDP_BYTES>()?;
    let [src_high, src_low, dst_high, dst_low, len_high, len_low, ..] = *head;
    let len = usize::from(u16::from_be_bytes([len_high, len_low])).checked_sub(UDP_BYTES)?;
    if u16::from_be_bytes([dst_high, dst_low]) != PORT {
        return None;
    }
    let arrival = Arrival {
        addresses,
        src_port: u16::from_be_bytes([src_high, src_low]),
        marked: class & CE == CE,
        identification,
    };
    Some(Packet { arrival, bytes: payload.get(..len)?.into() })
}

#[cfg(test)]
mod tests;

//! The RDMA device of a vector: one of those that there are.

use std::net::IpAddr;
use std::sync::Arc;

use roce::{
    CreateError, Dcqcn, Handle, Key, ModifyError, Mtu, PostError, Qpn, RegionError, RtrAttributes,
    RtsAttributes, Time,
};
use smc::Mac;
use sys::call::Failure;
use sys::event::Poller;
use sys::udp::Socket;

use super::device::{Device as Soft, Domain, Event, PortNumber, Purpose, mtu_of};
use super::guest::Relay;
use super::ingress::Packet;
use super::lease::Lease;
use super::shelf::Shelf;
use super::stat::VectorStat;
use super::verbs::{Card, Device as Verbs};

/// See the module.
#[derive(Debug)]
pub(super) enum Device {
    /// Our own RoCEv2 over UDP.
    Soft(Box<Soft>),
    /// A card.
    Verbs(Box<Verbs>),
}

/// The same call of both.
macro_rules! each {
    ($self:ident, $it:ident => $call:expr) => {
        match $self {
            Self::Soft($it) => $call,
            Self::Verbs($it) => $call,
        }
    };
}

impl Device {
    pub(super) fn soft(vector: u16, vector_bits: u8, segments: u8, secret: [u64; 2]) -> Self {
        Self::Soft(Box::new(Soft::new(vector, vector_bits, segments, secret)))
    }

    pub(super) fn verbs(card: &Card, vector: u32) -> Result<Self, Failure> {
        Ok(Self::Verbs(Box::new(Verbs::new(card, vector)?)))
    }

    /// Descriptors of the device wake the poller from now on.
    pub(super) fn watch(&mut self, poller: &Poller, token: u64) -> Result<(), Failure> {
        match self {
            // Its sockets come one by one.
            Self::Soft(_) => Ok(()),
            Self::Verbs(verbs) => verbs.watch(poller, token),
        }
    }

    /// Descriptors of a device that has been taken away wake the poller no more.
    pub(super) fn unwatch_gone(&mut self, poller: &Poller) {
        if let Self::Verbs(verbs) = self {
            verbs.unwatch_gone(poller);
        }
    }

    /// What happens from now on wakes the poller; what has happened is still to be looked at.
    pub(super) fn arm(&self) {
        if let Self::Verbs(verbs) = self {
            verbs.arm();
        }
    }

    /// Loses all packets of an address from now on.
    #[cfg(test)]
    pub(super) fn unplug(&mut self, address: IpAddr) {
        each!(self, it => it.unplug(address));
    }

    /// From now on packets come and go by this socket too, whose number is [`Self::next_port`]. A card needs none.
    pub(super) fn add_port(&mut self, socket: Socket, lease: Arc<Lease>) {
        if let Self::Soft(soft) = self {
            soft.add_port(socket, lease);
        }
    }

    pub(super) fn next_port(&self) -> PortNumber {
        match self {
            Self::Soft(soft) => soft.next_port(),
            Self::Verbs(_) => 0,
        }
    }

    /// The poller knows of packets at a socket.
    pub(super) fn has_some(&mut self, number: PortNumber) {
        if let Self::Soft(soft) = self {
            soft.has_some(number);
        }
    }

    /// Sockets of addresses whose leases are over are closed.
    pub(super) fn end_ports(&mut self) {
        if let Self::Soft(soft) = self {
            soft.end_ports();
        }
    }

    /// Whether packets can be sent from this address.
    pub(super) fn has_port(&self, address: IpAddr) -> bool {
        each!(self, it => it.has_port(address))
    }

    /// The hardware address of the interface that has this address; `None`: there is none.
    pub(super) fn mac(&self, address: IpAddr) -> Option<Mac> {
        each!(self, it => it.mac(address))
    }

    /// The largest payload of packets on a path whose longest packets have so many bytes.
    pub(super) fn mtu(&self, path_bytes: u32) -> Mtu {
        match self {
            Self::Soft(_) => mtu_of(path_bytes),
            Self::Verbs(verbs) => verbs.mtu(path_bytes),
        }
    }

    /// A domain for a link group: what is in another cannot be reached by its links, whatever the peer guesses.
    pub(super) fn open_domain(&mut self) -> Result<Domain, CreateError> {
        match self {
            Self::Soft(soft) => Ok(soft.open_domain()),
            Self::Verbs(verbs) => verbs.open_domain(),
        }
    }

    /// Nothing is made in it any more.
    pub(super) fn close_domain(&mut self, domain: Domain) {
        if let Self::Verbs(verbs) = self {
            verbs.close_domain(domain);
        }
    }

    /// An address for memory that a peer is told of, which others do not guess.
    pub(super) fn fresh_address(&mut self) -> u64 {
        match self {
            Self::Soft(soft) => soft.fresh_address(),
            Self::Verbs(_) => super::verbs::fresh_address(),
        }
    }

    /// A queue pair that takes messages, but no packets before [`Self::connect`].
    /// `split`: what is sent and what comes complete in two queues.
    pub(super) fn open_link(
        &mut self,
        shelf: &mut Shelf,
        domain: Domain,
        split: bool,
    ) -> Result<Qpn, CreateError> {
        match self {
            Self::Soft(soft) => soft.open_link(shelf, domain, split).map(|link| link.qpn),
            Self::Verbs(verbs) => verbs.open_link(domain, split),
        }
    }

    /// The queue pair receives from now on.
    pub(super) fn connect(&mut self, qpn: Qpn, to: &RtrAttributes) -> Result<(), ModifyError> {
        each!(self, it => it.connect(qpn, to))
    }

    /// The queue pair sends from now on.
    pub(super) fn start(&mut self, qpn: Qpn, to: &RtsAttributes) -> Result<(), ModifyError> {
        each!(self, it => it.start(qpn, to))
    }

    /// The queue pair neither sends nor receives from now on; what is under way fails.
    pub(super) fn fail(&mut self, qpn: Qpn, now: u64) {
        match self {
            Self::Soft(soft) => soft.fail(qpn, now),
            Self::Verbs(verbs) => verbs.fail(qpn),
        }
    }

    /// Ends a queue pair; what was under way vanishes.
    pub(super) fn close_link(&mut self, qpn: Qpn, shelf: &mut Shelf) {
        match self {
            Self::Soft(soft) => soft.close_link(qpn, shelf),
            Self::Verbs(verbs) => verbs.close_link(qpn),
        }
    }

    /// Makes memory known that peers may write to.
    pub(super) fn register_rmb(
        &mut self,
        domain: Domain,
        handle: Handle,
        (address, len): (u64, u64),
    ) -> Result<Key, RegionError> {
        match self {
            Self::Soft(soft) => soft.register_rmb(domain, handle, (address, len)),
            Self::Verbs(verbs) => verbs.register_rmb(domain, address, len),
        }
    }

    /// What peers write by this key is another connection's from now on; nothing is left of what was there.
    /// `bytes`: so many as it was registered with.
    pub(super) fn rebind_rmb(
        &mut self,
        key: Key,
        bytes: u64,
        handle: Handle,
    ) -> Result<(), RegionError> {
        match self {
            // The ring of the guest that had it is not looked at any more.
            Self::Soft(soft) => soft.rebind_rmb(key, handle),
            Self::Verbs(verbs) => verbs.clear_rmb(key, bytes),
        }
    }

    /// Takes it back.
    pub(super) fn deregister(&mut self, key: Key) {
        each!(self, it => it.deregister(key));
    }

    /// Makes a stream known that is sent from; addresses are positions in it.
    pub(super) fn register_stream(
        &mut self,
        domain: Domain,
        handle: Handle,
    ) -> Result<Key, RegionError> {
        match self {
            Self::Soft(soft) => soft.register_stream(domain, handle),
            // What is sent is copied, so that the card never sees it.
            Self::Verbs(verbs) => verbs.register_stream(handle),
        }
    }

    /// Forgets it.
    pub(super) fn forget_stream(&mut self, key: Key) {
        match self {
            Self::Soft(soft) => soft.retire(key),
            Self::Verbs(verbs) => verbs.forget_stream(key),
        }
    }

    /// The peer of a connection that is over writes no more, or should not.
    pub(super) fn forget_rmb(&mut self, key: Key) {
        match self {
            Self::Soft(soft) => soft.retire(key),
            Self::Verbs(verbs) => verbs.deregister(key),
        }
    }

    /// Positions `from` to `upto` of what the peer writes are there: sees to it that the guest has them.
    pub(super) fn fetch(&mut self, rmb: Key, relay: &mut dyn Relay, from: u64, upto: u64) {
        if let Self::Verbs(verbs) = self {
            verbs.fetch(rmb, relay, from, upto);
        }
    }

    /// Whether a plan of up to two WRITEs and a SEND can be posted now.
    pub(super) fn has_room(&self, qpn: Qpn) -> bool {
        each!(self, it => it.has_room(qpn))
    }

    /// Sends a message: solicited, as Linux sends and expects them.
    pub(super) fn send(
        &mut self,
        qpn: Qpn,
        purpose: Purpose,
        message: &[u8],
    ) -> Result<(), PostError> {
        each!(self, it => it.send(qpn, purpose, message))
    }

    /// The peer is Shunt: more may be on its way to it. A card has no more room.
    pub(super) fn widen(&mut self, qpn: Qpn) {
        if let Self::Soft(soft) = self {
            soft.widen(qpn);
        }
    }

    /// Sends a message that may be long, one at a time.
    pub(super) fn send_long(
        &mut self,
        qpn: Qpn,
        purpose: Purpose,
        message: &[u8],
        shelf: &mut Shelf,
    ) -> Result<(), PostError> {
        match self {
            Self::Soft(soft) => soft.send_long(qpn, purpose, message, shelf),
            // All of its messages are staged, long ones as well.
            Self::Verbs(verbs) => verbs.send(qpn, purpose, message),
        }
    }

    /// Writes into the peer's memory what stands in a stream at position `at`.
    pub(super) fn write(
        &mut self,
        qpn: Qpn,
        to: (u64, u32),
        from: (Key, u64, u32),
    ) -> Result<(), PostError> {
        each!(self, it => it.write(qpn, to, from))
    }

    /// Takes in what has come. Whether there was anything.
    pub(super) fn receive(&mut self, now: Time, shelf: &mut Shelf) -> bool {
        match self {
            Self::Soft(soft) => soft.receive(now, shelf),
            Self::Verbs(verbs) => verbs.receive(),
        }
    }

    /// When the first came of what was taken in since this was asked last, nanoseconds since 1970, if that is noted.
    pub(super) fn take_came(&mut self) -> Option<u64> {
        match self {
            Self::Soft(soft) => soft.take_came(),
            Self::Verbs(_) => None,
        }
    }

    /// Takes in a packet that did not come by a socket.
    pub(super) fn take(&mut self, now: Time, shelf: &mut Shelf, packet: &Packet) {
        if let Self::Soft(soft) = self {
            soft.take(now, shelf, packet);
        }
    }

    /// Sends what is ready. Whether anything was.
    pub(super) fn transmit(&mut self, now: Time, shelf: &Shelf) -> bool {
        match self {
            Self::Soft(soft) => soft.transmit(now, shelf),
            Self::Verbs(verbs) => verbs.transmit(shelf),
        }
    }

    /// Each socket of which is to be waited for something else than before, and whether that is room.
    pub(super) fn rewatch(&mut self, f: impl FnMut(&Socket, PortNumber, bool)) {
        if let Self::Soft(soft) = self {
            soft.rewatch(f);
        }
    }

    /// Whether nothing can be sent before a socket has room.
    pub(super) fn is_stopped(&self, now: Time) -> bool {
        match self {
            Self::Soft(soft) => soft.is_stopped(now),
            Self::Verbs(_) => false,
        }
    }

    /// When to look again, if nothing comes.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        match self {
            Self::Soft(soft) => soft.next_deadline(),
            Self::Verbs(_) => None,
        }
    }

    /// Whether there is something to send at once.
    pub(super) fn has_queued(&self) -> bool {
        each!(self, it => it.has_queued())
    }

    /// What has happened next.
    pub(super) fn poll(&mut self, shelf: &Shelf) -> Option<Event> {
        match self {
            Self::Soft(soft) => soft.poll(shelf),
            Self::Verbs(verbs) => verbs.poll(),
        }
    }

    /// The bytes of the message that [`Event::Came`] told of.
    pub(super) fn message(&self) -> &[u8] {
        each!(self, it => it.message())
    }

    /// Whether congestion marks are answered, which a card does in its own way.
    pub(super) fn answers_marks(&self) -> bool {
        matches!(self, Self::Soft(_))
    }

    /// Bits a second at which a queue pair is paced; `None`: it is not.
    pub(super) fn rate(&self, qpn: Qpn) -> Option<u64> {
        let Self::Soft(soft) = self else { return None };
        soft.roce().qp(qpn)?.rate_bits.filter(|rate| *rate < Dcqcn::BETWEEN_HOSTS.line_bits)
    }

    /// Tells what it has counted; a card keeps most of that to itself (`rdma statistic`).
    pub(super) fn count(&self, stat: &mut VectorStat) {
        let soft = match self {
            Self::Soft(soft) => soft,
            Self::Verbs(verbs) => {
                stat.completions = verbs.taken.to_vec();
                return;
            }
        };
        stat.completions = soft.cqs().map(|cq| cq.completions).collect();
        let counters = soft.roce().counters();
        stat.packets_tx = counters.packets_out;
        stat.packets_rx = counters.packets_in;
        stat.packets_again = counters.retransmitted;
        stat.timeouts = counters.timeouts;
        let dropped = roce::Reason::ALL.iter().map(|why| (why, counters.dropped(*why)));
        let dropped = dropped.filter(|(_, n)| *n > 0);
        stat.dropped = dropped.map(|(why, n)| (why.key().to_owned(), n)).collect();
        stat.packets_refused = soft.refused.total;
        stat.apart = soft.apart().map(|address| address.to_string()).collect();
        stat.marks_rx = counters.marks_in;
        stat.cnp_tx = counters.cnp_out;
        stat.cnp_rx = counters.cnp_in + counters.dropped(roce::Reason::Notification);
        stat.rate_cuts = counters.cnp_in;
    }
}

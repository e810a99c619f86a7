//! Connections whose handshake is over: by SMC, or by TCP because the peer would not.

use std::net::SocketAddrV6;
use std::os::fd::OwnedFd;

use roce::{Key, Qpn};
use smc::cdc::Cdc;
use smc::conn::{Conn, Remote, Setup, Transmission};
use smc::{SizeClass, Token};
use sys::event::{self, Interest};

use super::device::Purpose;
use super::devices::Device;
use super::exchange::{InGroup, Rmb, close_at_once, reset_on_close};
use super::guest::{Broken, Relay, Stamp};
use super::habit::Tally;
use super::plain::{Over, Plain};
use super::pump::{Fault, Post, Pump};
use super::shelf::ConnId;
use super::vector::Vector;
use super::wire::Wire;

/// How long a peer whose TCP connection has ended may take to say so by SMC, nanoseconds. If it does not
/// it is dead: no kernel speaks for it.
const DEAD_NS: u64 = 3_000_000_000;

/// A connection whose handshake is over.
#[derive(Debug)]
pub(super) enum Running {
    /// Its bytes go by RDMA.
    Smc(Box<Smc>),
    /// Its bytes go by TCP.
    Plain(Box<Plain>),
}

/// What is known when a connection's bytes begin to go by SMC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) qpn: Qpn,
    pub(super) remote: Remote,
    pub(super) stream: Key,
    pub(super) rmb: SizeClass,
    pub(super) peer_token: Token,
    pub(super) peer_rmb: SizeClass,
    pub(super) send_ring: SizeClass,
    pub(super) autocork: u32,
}

/// One that goes by SMC.
#[derive(Debug)]
pub(super) struct Smc {
    pub(super) pump: Pump,
    pub(super) place: InGroup,
    pub(super) rmb: Option<Rmb>,
    tcp: OwnedFd,
    pub(super) qpn: Qpn,
    /// Its TCP connection has ended: when the peer must have said why, and whether in both directions.
    tcp_ended: Option<(u64, bool)>,
    /// Something is due by then.
    by: Option<u64>,
    counted: (u64, u64),
    /// Where the guest has connected to, and what the connection has brought.
    to: Option<SocketAddrV6>,
    tally: Tally,
    /// What the guest's words were when there was nothing to do: as long as they are, there is nothing.
    settled: Option<Stamp>,
}

impl Smc {
    /// What to be told of the TCP connection: its end, once.
    pub(super) const INTEREST: Interest =
        Interest { peer_shut: true, once: true, ..Interest::NOTHING };

    pub(super) fn new(
        start: &Start,
        place: InGroup,
        rmb: Option<Rmb>,
        tcp: OwnedFd,
        to: Option<SocketAddrV6>,
    ) -> Self {
        let conn = Conn::new(&Setup {
            rmb: start.rmb,
            send_ring: start.send_ring,
            peer_token: start.peer_token,
            peer_rmb: start.peer_rmb,
            remote: start.remote,
            autocork: start.autocork,
            // The guest's ring has no place for a byte beside the others.
            urgent_inline: true,
        });
        let pump = Pump::new(conn, start.stream);
        Self {
            pump,
            place,
            rmb,
            tcp,
            qpn: start.qpn,
            tcp_ended: None,
            by: None,
            counted: (0, 0),
            to,
            tally: Tally::default(),
            settled: None,
        }
    }

    /// Its link is lost, and it goes on over another.
    pub(super) fn moved(&mut self, qpn: Qpn, remote: Remote) {
        self.qpn = qpn;
        self.pump.moved(remote);
    }
}

impl Smc {
    /// When it has to be looked at, whatever happens.
    fn due(&self) -> Option<u64> {
        self.tcp_ended.map(|(at, _)| at).into_iter().chain(self.by).min()
    }
}

impl Running {
    pub(super) fn plain(wire: Wire) -> Self {
        Self::Plain(Box::new(Plain::new(wire)))
    }

    pub(super) fn is_smc(&self) -> bool {
        matches!(self, Self::Smc(_))
    }

    pub(super) fn tcp(&self) -> &OwnedFd {
        match self {
            Self::Smc(smc) => &smc.tcp,
            Self::Plain(plain) => plain.tcp(),
        }
    }

    /// Something has happened that the guest's words do not tell.
    pub(super) fn unsettle(&mut self) {
        if let Self::Smc(smc) = self {
            smc.settled = None;
        }
    }

    /// What to be told of the TCP connection at first.
    pub(super) fn interest(&self) -> Interest {
        match self {
            Self::Smc(_) => Smc::INTEREST,
            Self::Plain(_) => Interest::NOTHING,
        }
    }

    /// When it has to be looked at.
    pub(super) fn due(&self) -> Option<u64> {
        match self {
            Self::Smc(smc) => smc.due(),
            Self::Plain(_) => None,
        }
    }

    /// Something has happened to the TCP connection.
    pub(super) fn on_tcp(&mut self, event: &event::Event, now: u64) {
        match self {
            Self::Smc(smc) if event.peer_shut || event.broken => {
                smc.tcp_ended = Some((now + DEAD_NS, event.broken));
            }
            Self::Smc(_) => {}
            Self::Plain(plain) => plain.ready(event),
        }
    }
}

/// Posts what one connection plans.
struct Poster<'a> {
    device: &'a mut Device,
    qpn: Qpn,
    number: u64,
    writes: u64,
    messages: u64,
}

impl Post for Poster<'_> {
    fn has_room(&self) -> bool {
        self.device.has_room(self.qpn)
    }

    fn post(&mut self, plan: &Transmission, stream: Key, mut at: u64) {
        // There is room, so only a queue pair that has just failed takes nothing; it says so itself.
        for write in plan.writes() {
            let to = (write.vaddr, write.rkey.0);
            let _ = self.device.write(self.qpn, to, (stream, at, write.len()));
            at += u64::from(write.len());
            self.writes += 1;
        }
        let _ = self.device.send(self.qpn, Purpose::Cdc(self.number), &plan.cdc);
        self.messages += 1;
    }
}

impl Vector {
    /// Looks at a connection and does what can be done. Whether anything has moved.
    pub(super) fn step(&mut self, id: ConnId, now: u64) -> bool {
        match self.running.get(&id) {
            Some(Running::Smc(_)) => self.step_smc(id, now),
            Some(Running::Plain(_)) => self.step_plain(id),
            None => false,
        }
    }

    fn step_smc(&mut self, id: ConnId, now: u64) -> bool {
        let by = self.way();
        let Some(Running::Smc(smc)) = self.running.get_mut(&id) else { return false };
        let Some(relay) = self.shelf.rings.get_mut(id) else { return false };
        let stamp = relay.stamp();
        let is_due = smc.due().is_some_and(|at| at <= now);
        if stamp.is_some() && stamp == smc.settled && !is_due {
            return false;
        }
        smc.settled = None;
        // What found no room is poured when there is some, which the poller tells.
        let poured = relay.pour();
        if let Some((_, reset)) = smc.tcp_ended.take_if(|(at, _)| *at <= now) {
            smc.pump.tcp_ended(reset);
        }
        let mut poster = Poster {
            device: &mut self.device,
            qpn: smc.qpn,
            number: id.number(),
            writes: 0,
            messages: 0,
        };
        let wants = match smc.pump.step(&mut **relay, &mut poster, now) {
            Ok(wants) => wants,
            Err(fault) => {
                smc.pump.abort_for(fault);
                return true;
            }
        };
        let (writes, messages) = (poster.writes, poster.messages);
        relay.want_consumed(smc.pump.wants_consumed());
        // After a move to another link what is sent once more is no news.
        let (sent, received) = smc.pump.bytes();
        let (sent, received) = (sent.max(smc.counted.0), received.max(smc.counted.1));
        let (more, came) = (sent - smc.counted.0, received - smc.counted.1);
        self.stat.bytes_tx += more;
        self.stat.bytes_rx += came;
        smc.tally.moved(more, came);
        let (to, due) = (smc.to, smc.tally.due(by));
        smc.counted = (sent, received);
        self.stat.writes_tx += writes;
        self.stat.cdc_tx += messages;
        smc.by = wants.by;
        if !wants.moved && !wants.over && !wants.room && poured {
            smc.settled = stamp;
        }
        if let Some(gain) = due {
            self.learn(to, gain);
        }
        if wants.over {
            self.finish(id, now);
        }
        wants.moved
    }

    fn step_plain(&mut self, id: ConnId) -> bool {
        let Some(Running::Plain(plain)) = self.running.get_mut(&id) else { return false };
        let Some(relay) = self.shelf.rings.get_mut(id) else { return false };
        let _ = relay.pour();
        match plain.step(&mut **relay) {
            Ok(did) => {
                relay.want_consumed(did.waits_for_guest);
                if let (Some(interest), Some(running)) = (did.interest, self.running.get(&id)) {
                    self.watch_tcp(id, running.tcp(), interest);
                }
                did.moved
            }
            Err(over) => {
                if let Some(running) = self.remove_running(id) {
                    match over {
                        Over::Closed => close_at_once(running.tcp()),
                        Over::Reset => reset_on_close(running.tcp()),
                    }
                }
                self.close(id, over == Over::Reset);
                true
            }
        }
    }

    /// The oldest message of a connection that was under way over this queue pair has arrived. What a link that is lost
    /// still says, after the connection has moved, is not about those that are under way now.
    pub(super) fn completed(&mut self, id: ConnId, qpn: Qpn) {
        if let Some(Running::Smc(smc)) = self.running.get_mut(&id)
            && smc.qpn == qpn
            && let Some(relay) = self.shelf.rings.get_mut(id)
        {
            smc.settled = None;
            smc.pump.completed(&mut **relay);
        }
    }

    /// A message of the peer's came for a connection.
    pub(super) fn hear_cdc(&mut self, id: ConnId, cdc: &Cdc, now: u64) {
        if let Some(Running::Smc(smc)) = self.running.get_mut(&id)
            && let Some(relay) = self.shelf.rings.get_mut(id)
        {
            let (device, rmb) = (&mut self.device, smc.rmb);
            let fetch = |relay: &mut dyn Relay, from, upto| {
                if let Some(rmb) = rmb {
                    device.fetch(rmb.key, relay, from, upto);
                }
            };
            if let Err(fault) = smc.pump.hear(cdc, &mut **relay, fetch) {
                smc.pump.abort_for(fault);
            }
            self.warm_up(id, now);
        }
    }

    /// A connection is over on both sides.
    fn finish(&mut self, id: ConnId, now: u64) {
        let Some(Running::Smc(smc)) = self.remove_running(id) else { return };
        let reset = smc.pump.was_reset();
        self.stat.aborted_total += u64::from(reset);
        self.learn(smc.to, smc.tally.end(self.way()));
        self.device.forget_stream(smc.pump.stream());
        let in_order = smc.pump.ended_in_order();
        let keeps = in_order && smc.rmb.is_some_and(|rmb| self.keep_idle(&smc.place, &rmb));
        if let Some(rmb) = smc.rmb.filter(|_| !keeps) {
            self.device.forget_rmb(rmb.key);
        }
        self.leave(smc.place, keeps, now);
        if reset {
            reset_on_close(&smc.tcp);
        } else {
            close_at_once(&smc.tcp);
        }
        self.close(id, reset);
    }
}

impl From<Broken> for Fault {
    fn from(_: Broken) -> Self {
        Self::Guest
    }
}

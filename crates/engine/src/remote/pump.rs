//! One connection's bytes: out of the guest's ring into the peer's RMB, and back.
//!
//! What goes when is decided by [`smc::conn::Conn`]. Here its positions and the guest's are kept in step,
//! and its plans become work requests: up to two RDMA WRITEs and the SEND that tells of them.

use std::collections::VecDeque;

use roce::Key;
use smc::cdc::{Cdc, StateFlags};
use smc::conn::{Conn, Push, Remote, Ticket, Transmission, Unwritable};

use super::guest::{Program, Relay};

/// How long nothing of what was written may leave after the program has closed, before the rest is given up. A peer
/// that goes on reading, however slowly, gets all of it, as from TCP. (Linux waits for `SMC_MAX_STREAM_WAIT` in
/// all, and loses bytes on a slow peer.)
const LINGER_NS: u64 = 60_000_000_000;

/// How long a peer may take to answer an abnormal end: its queue pair has acknowledged it, so an honest one
/// needs no time at all.
const ANSWER_NS: u64 = 10_000_000_000;

/// How long the peer may keep its end after our program has closed and all that was said has arrived, as TCP waits in
/// FIN-WAIT-2 (`tcp_fin_timeout`). It cannot write any more, and what it has not read is in its own memory.
const ORPHAN_NS: u64 = 60_000_000_000;

/// Why a connection ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The guest's words make no sense.
    Guest,
    /// The peer's do not.
    Peer,
}

/// Where plans go.
pub(super) trait Post {
    /// Whether there is room for one more plan.
    fn has_room(&self) -> bool;
    /// Posts it. `at`: the position in the stream of the first byte of its writes.
    fn post(&mut self, plan: &Transmission, stream: Key, at: u64);
}

/// What a connection wants of its vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    /// There is more to send than there was room for.
    pub(super) room: bool,
    /// To be looked at by then, whatever happens.
    pub(super) by: Option<u64>,
    /// It is over: nothing will be written or read any more.
    pub(super) over: bool,
    /// Something has moved.
    pub(super) moved: bool,
}

/// A connection that goes by SMC.
#[derive(Debug)]
pub(super) struct Pump {
    conn: Conn,
    /// Region of what the guest sends; its addresses are positions.
    stream: Key,
    /// Bytes of the guest's that `conn` was told of.
    told: u64,
    /// Position of the next byte that a plan writes.
    next: u64,
    /// What is under way: what to tell `conn`, and the position that is done with then.
    under_way: VecDeque<(Ticket, u64)>,
    /// Bytes that arrived and that the guest may read.
    published: u64,
    /// Bytes of those that `conn` knows to be read.
    consumed: u64,
    program: Program,
    /// The guest was told that no more comes.
    ended: bool,
    /// The peer has said that it has closed, or aborted.
    peer_closed: bool,
    /// It ends abnormally: the guest is not asked any more.
    broken: bool,
    /// Since the program has ended: what has not left yet, and when to give that up.
    linger: Option<Linger>,
    /// When to give up a peer that does not answer our end.
    answer_by: Option<u64>,
    /// It was given up so, though all had been said in order.
    orphaned: bool,
}

/// What waits to leave after the program has ended.
#[derive(Clone, Copy, Debug)]
struct Linger {
    /// Bytes that the queue pair has not got yet.
    left: u64,
    /// When to give them up, if none of them leaves before.
    until: u64,
}

impl Pump {
    pub(super) fn new(conn: Conn, stream: Key) -> Self {
        Self {
            conn,
            stream,
            told: 0,
            next: 0,
            under_way: VecDeque::new(),
            published: 0,
            consumed: 0,
            program: Program::Open,
            ended: false,
            peer_closed: false,
            broken: false,
            linger: None,
            answer_by: None,
            orphaned: false,
        }
    }

    /// Region of what the guest sends, to be given back at the end.
    pub(super) fn stream(&self) -> Key {
        self.stream
    }

    /// Whether the guest is to see a reset at the end.
    pub(super) fn was_reset(&self) -> bool {
        self.broken || self.conn.was_reset() || self.conn.was_killed() && !self.orphaned
    }

    /// Ends it abnormally on both sides; the peer is told by the next step, and the guest at the end.
    fn reset(&mut self) {
        self.conn.abort();
        self.broken = true;
    }

    /// Bytes that the guest has sent and received.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.next, self.published)
    }

    /// Does all that can be done now.
    pub(super) fn step(
        &mut self,
        relay: &mut dyn Relay,
        post: &mut dyn Post,
        now: u64,
    ) -> Result<Wants, Fault> {
        let mut moved = false;
        if !self.broken {
            moved = self.take_in(relay)?;
            self.hear_program(relay)?;
        }
        // Before there is something to say: while nothing else happens this step is the last.
        if self.linger.is_some_and(|linger| linger.until <= now) {
            // It is not closed yet where the guest's ring holds what there was no room for.
            self.conn.close();
            self.conn.give_up_unsent();
        }
        let mut wants = Wants::default();
        loop {
            if !post.has_room() {
                wants.room = true;
                break;
            }
            let Some(plan) = self.conn.plan(Push::Auto) else { break };
            self.post(&plan, post);
            moved = true;
        }
        if !self.broken {
            self.linger(relay, now)?;
        }
        // Once it is over it is no time to wake for any more: what was given up stays unsent.
        let waits = self.linger.filter(|linger| linger.until > now && linger.left > 0);
        wants.by = waits.map(|linger| linger.until);
        self.answer_by = self.patience(now).map(|ns| self.answer_by.unwrap_or(now + ns));
        if let Some(by) = self.answer_by.filter(|_| !self.is_over()) {
            if by <= now {
                self.orphaned = !self.broken && self.is_done();
                self.conn.kill();
            }
            wants.by = Some(by);
        }
        wants.over = self.is_over();
        wants.moved = moved;
        Ok(wants)
    }

    /// What the guest has written and read.
    fn take_in(&mut self, relay: &mut dyn Relay) -> Result<bool, Fault> {
        let new = relay.written()?.checked_sub(self.told).ok_or(Fault::Guest)?;
        let room = self.conn.room();
        if new > 0 && room == Err(Unwritable::Reset) {
            // Nobody will read it, and the program is to know, as over TCP, be it one that never reads. What it has not
            // read yet stays there to be read.
            self.reset();
            return Ok(true);
        }
        let urgent = relay.urgent().filter(|end| *end > self.told);
        let new = urgent.map_or(new, |end| new.min(end - self.told));
        let wrote = new.min(u64::from(room.unwrap_or(0)));
        let bytes = u32::try_from(wrote).unwrap_or(0);
        self.told += wrote;
        if wrote > 0 && urgent == Some(self.told) {
            self.conn.wrote_urgent(bytes);
        } else {
            self.conn.wrote(bytes);
        }
        let read = self.take_read(relay)?;
        Ok(wrote > 0 || read)
    }

    /// What the guest has read. Whether there was anything new.
    fn take_read(&mut self, relay: &dyn Relay) -> Result<bool, Fault> {
        let read = relay.consumed()?.checked_sub(self.consumed).ok_or(Fault::Guest)?;
        let mut left = u32::try_from(read).map_err(|_| Fault::Guest)?;
        // What is readable ends before an urgent byte, and goes on behind it.
        while left > 0 && self.conn.readable() > 0 {
            let part = left.min(self.conn.readable());
            self.conn.consumed(part);
            self.consumed += u64::from(part);
            left -= part;
        }
        Ok(read > 0)
    }

    /// What the program has done with its end. What it wrote before is sent before the peer hears of it.
    fn hear_program(&mut self, relay: &mut dyn Relay) -> Result<(), Fault> {
        let program = relay.program();
        if self.program == Program::Open && program == Program::Open {
            return Ok(());
        }
        // The program ends first and is looked at later: what it wrote last is there by now.
        let all = relay.written()? == self.told || self.conn.room().is_err();
        match program {
            Program::Shut if all && self.program == Program::Open => self.conn.shutdown_write(),
            Program::Closed if all => {
                // It may have read on since that was looked at, and closed then: what it has read is not unread, of
                // which the peer would be told by a reset.
                if self.program != Program::Closed {
                    self.take_read(relay)?;
                }
                self.conn.close();
            }
            Program::Reset if self.program != Program::Reset => self.conn.abort(),
            Program::Open | Program::Shut | Program::Closed | Program::Reset => {}
        }
        if all || program == Program::Reset {
            self.program = program;
        }
        Ok(())
    }

    /// Once the program has ended: begins the time to linger, and begins it anew when something has left.
    fn linger(&mut self, relay: &mut dyn Relay, now: u64) -> Result<(), Fault> {
        if matches!(relay.program(), Program::Open | Program::Shut) {
            return Ok(());
        }
        let waits = relay.written()?.checked_sub(self.told).ok_or(Fault::Guest)?;
        let left = waits.saturating_add(self.conn.unsent());
        if self.linger.is_none_or(|linger| left < linger.left) {
            self.linger = Some(Linger { left, until: now + LINGER_NS });
        }
        Ok(())
    }

    /// The program has closed, and nothing of what it wrote waits to leave.
    fn is_done(&self) -> bool {
        self.program == Program::Closed && self.conn.unsent() == 0
    }

    /// How long the peer may take to answer our end from now on, if that is what is waited for.
    fn patience(&self, now: u64) -> Option<u64> {
        if self.broken || self.program == Program::Reset {
            return Some(ANSWER_NS);
        }
        // What was given up stays unsent.
        let is_said = self.linger.is_some_and(|linger| self.is_done() || linger.until <= now);
        // As long as something is under way the link says whether it arrives.
        (is_said && self.under_way.is_empty()).then_some(ORPHAN_NS)
    }

    fn post(&mut self, plan: &Transmission, post: &mut dyn Post) {
        let bytes: u64 = plan.writes().iter().map(|write| u64::from(write.len())).sum();
        // Not where the last one ended: after a move the peer may have told that it has read what was to go again.
        self.next = self.told - self.conn.unsent();
        post.post(plan, self.stream, self.next - bytes);
        self.under_way.push_back((plan.ticket, self.next));
    }

    /// The oldest plan was acknowledged.
    pub(super) fn completed(&mut self, relay: &mut dyn Relay) {
        if let Some((ticket, upto)) = self.under_way.pop_front() {
            self.conn.completed(ticket);
            relay.release(upto);
        }
    }

    /// A message of the peer's has come. `fetch` brings the guest what stands between two positions.
    pub(super) fn hear(
        &mut self,
        cdc: &Cdc,
        relay: &mut dyn Relay,
        fetch: impl FnOnce(&mut dyn Relay, u64, u64),
    ) -> Result<(), Fault> {
        let heard = self.conn.on_cdc(cdc).map_err(|_| Fault::Peer)?;
        if heard.arrived > 0 && self.program == Program::Closed {
            // Nobody will read it: the peer is told, as TCP would.
            self.reset();
        }
        if heard.arrived > 0 {
            let from = self.published;
            self.published += u64::from(heard.arrived);
            fetch(relay, from, self.published);
            if heard.urgent.is_some() {
                // The producer cursor stands behind it (RFC 7609 4.7.6).
                relay.publish_urgent(self.published);
            } else {
                relay.publish(self.published);
            }
        }
        let closes = StateFlags::CLOSED.with(StateFlags::ABORTED);
        self.peer_closed |= cdc.state_flags.has_any(closes);
        if heard.ending && !self.ended {
            self.ended = true;
            if !self.conn.was_reset() {
                relay.shut();
            }
        }
        if self.conn.was_reset() {
            // What the program would still like to do is of no interest: it is told at the end.
            self.conn.close();
            self.broken = true;
        }
        Ok(())
    }

    /// Whether the guest's reading is of interest to the peer.
    pub(super) fn wants_consumed(&self) -> bool {
        self.published > self.consumed
    }

    /// Ends it because of what somebody said.
    pub(super) fn abort_for(&mut self, _: Fault) {
        self.reset();
    }

    /// Ends it because the peer's RMB cannot be reached any more.
    pub(super) fn strand(&mut self) {
        self.reset();
    }

    /// Its link group is gone.
    pub(super) fn kill(&mut self) {
        self.conn.kill();
    }

    /// The TCP connection has ended a while ago; `reset`: in both directions. Who lives has said by now what
    /// that means, and who has not is dead: no kernel speaks for it, and nothing is waited for.
    pub(super) fn tcp_ended(&mut self, reset: bool) {
        let said = if reset { self.peer_closed } else { self.ended };
        if !said {
            self.conn.kill();
        }
    }

    /// The link is lost; what was under way goes again, over another.
    pub(super) fn moved(&mut self, remote: Remote) {
        self.under_way.clear();
        self.conn.moved(remote);
        self.next = self.told - self.conn.unsent();
    }

    /// Bytes that the queue pair has not got yet.
    #[cfg(test)]
    pub(super) fn unsent(&self) -> u64 {
        self.conn.unsent()
    }

    /// See [`Conn::hold`].
    pub(super) fn hold(&mut self) {
        self.conn.hold();
    }

    /// See [`Conn::release`].
    pub(super) fn release(&mut self) {
        self.conn.release();
    }

    /// See [`Conn::ended_in_order`].
    pub(super) fn ended_in_order(&self) -> bool {
        !self.broken && self.conn.ended_in_order()
    }

    fn is_over(&self) -> bool {
        self.conn.is_over() && (self.conn.was_killed() || self.under_way.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use smc::conn::Setup;

    use super::super::fake::guest;
    use super::*;

    /// Bytes that were written, and flags that were said.
    #[derive(Default)]
    struct Posted {
        bytes: u32,
        flags: StateFlags,
    }

    impl Post for Posted {
        fn has_room(&self) -> bool {
            true
        }

        fn post(&mut self, plan: &Transmission, _: Key, _: u64) {
            self.bytes += plan.writes().iter().map(smc::conn::Write::len).sum::<u32>();
            self.flags = Cdc::parse(&plan.cdc).unwrap().state_flags;
        }
    }

    /// The peer may never say a word again, and then there is no other step.
    #[test]
    fn the_peer_is_told_of_the_end_when_the_time_to_linger_is_over() {
        let (mut relay, program) = guest(16_384);
        let setup = Setup { send_ring: smc::SizeClass::new(1), ..Setup::default() };
        let mut pump = Pump::new(Conn::new(&setup), Key(1));
        program.send(&[7; 20_000]);
        program.ends(Program::Closed);
        let mut posted = Posted::default();
        let wants = pump.step(&mut relay, &mut posted, 1).unwrap();
        let wait = LINGER_NS + 1;
        assert_eq!((posted.bytes, wants.by), (16_384, Some(wait)), "the rest waits for room");
        assert!(!posted.flags.has(StateFlags::CLOSED));
        let wants = pump.step(&mut relay, &mut posted, wait).unwrap();
        assert_eq!((posted.bytes, wants.by), (16_384, None));
        assert!(posted.flags.has(StateFlags::ABORTED), "the rest is lost: {:?}", posted.flags);
    }

    /// A program that only writes would write for nobody, and wait for room without end once its ring is full.
    #[test]
    fn who_writes_to_a_peer_that_has_closed_is_reset_though_it_has_not_read_all() {
        let (mut relay, program) = guest(16_384);
        let class = smc::SizeClass::new(1);
        let setup = Setup { rmb: class, send_ring: class, peer_rmb: class, ..Setup::default() };
        let mut pump = Pump::new(Conn::new(&setup), Key(1));
        let mut cdc = Cdc { state_flags: StateFlags::CLOSED, sequence: 1, ..Cdc::default() };
        cdc.producer.count = 10;
        pump.hear(&cdc, &mut relay, |_, _, _| {}).unwrap();
        let mut posted = Posted::default();
        let wants = pump.step(&mut relay, &mut posted, 1).unwrap();
        assert!(!wants.over && !pump.was_reset(), "there is nothing wrong with the end as such");
        assert_eq!(program.unread(), 10);
        program.send(b"more");
        let _ = pump.step(&mut relay, &mut posted, 2).unwrap();
        assert!(pump.was_reset());
        assert!(posted.flags.has(StateFlags::ABORTED), "{:?}", posted.flags);
        assert_eq!(program.unread(), 10, "that is still to be read");
    }

    /// Nor does one hold what is ours that knows of the end and does not say its own.
    #[test]
    fn a_peer_that_does_not_answer_an_end_is_given_up() {
        for (end, patience) in [(Program::Closed, ORPHAN_NS), (Program::Reset, ANSWER_NS)] {
            let (mut relay, program) = guest(16_384);
            let setup = Setup { send_ring: smc::SizeClass::new(1), ..Setup::default() };
            let mut pump = Pump::new(Conn::new(&setup), Key(1));
            program.send(b"all of it");
            program.ends(end);
            let mut posted = Posted::default();
            let wants = pump.step(&mut relay, &mut posted, 5).unwrap();
            // While bytes are under way nobody is given up: they would be zeros.
            let by = (end == Program::Reset).then_some(5 + patience);
            assert_eq!((wants.by, wants.over), (by, false), "{end:?}");
            while pump.under_way.front().is_some() {
                pump.completed(&mut relay);
            }
            let wants = pump.step(&mut relay, &mut posted, 5).unwrap();
            assert_eq!((wants.by, wants.over), (Some(5 + patience), false), "{end:?}");
            let wants = pump.step(&mut relay, &mut posted, 4 + patience).unwrap();
            assert_eq!((wants.by, wants.over), (Some(5 + patience), false), "{end:?}");
            let wants = pump.step(&mut relay, &mut posted, 5 + patience).unwrap();
            assert!(wants.over);
            // Which is no reset for whoever still reads, where all had been said in order.
            assert_eq!(pump.was_reset(), end == Program::Reset);
        }
    }

    /// A peer that reads slowly gets all of it; one that stops, and looks as if it might go on, does not hold us for ever,
    /// also where more waits in the guest's ring than ours has room for.
    #[test]
    fn the_time_to_linger_begins_anew_when_bytes_leave_and_only_then() {
        let (mut relay, program) = guest(65_536);
        let setup = Setup { send_ring: smc::SizeClass::new(1), ..Setup::default() };
        let mut pump = Pump::new(Conn::new(&setup), Key(1));
        program.send(&[7; 60_000]);
        program.ends(Program::Closed);
        let mut posted = Posted::default();
        let wants = pump.step(&mut relay, &mut posted, 1).unwrap();
        assert_eq!(wants.by, Some(LINGER_NS + 1));
        let wants = pump.step(&mut relay, &mut posted, 2).unwrap();
        assert_eq!(wants.by, Some(LINGER_NS + 1), "nothing has left since");
        // The peer reads all that it has, at half of the time.
        while pump.under_way.front().is_some() {
            pump.completed(&mut relay);
        }
        let mut cdc = Cdc::default();
        cdc.consumer.wrap = 1;
        pump.hear(&cdc, &mut relay, |_, _, _| {}).unwrap();
        let half = LINGER_NS / 2;
        let wants = pump.step(&mut relay, &mut posted, half).unwrap();
        assert_eq!((posted.bytes, wants.by), (32_768, Some(half + LINGER_NS)));
        assert!(!posted.flags.has(StateFlags::ABORTED));
        // And no more.
        let wants = pump.step(&mut relay, &mut posted, half + 1).unwrap();
        assert_eq!(wants.by, Some(half + LINGER_NS));
        let end = wants.by.unwrap();
        assert!(!posted.flags.has(StateFlags::ABORTED));
        let _ = pump.step(&mut relay, &mut posted, end).unwrap();
        assert!(posted.flags.has(StateFlags::ABORTED), "the rest is lost: {:?}", posted.flags);
    }
}

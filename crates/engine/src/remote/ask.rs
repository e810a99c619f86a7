//! Handshakes that must not begin before the peer's engine has said that it has the other end, because nothing
//! was said of SMC in the TCP handshake. See [`super::meeting`].

use local::Reason;

use super::exchange::{ExchangeId, Machine};
use super::guest::Role;
use super::meeting::{Ends, Question, Seat, Why, Wish};
use super::vector::{Vector, smc_time};

/// How long a client waits for an answer, nanoseconds: the server's guest may not have accepted yet, and while
/// it has not, TCP would not be faster.
const ANSWER_NS: u64 = 500_000_000;
/// How long a server waits for a question, nanoseconds. The client's engine asks at once; what takes longer
/// comes from a program without Shunt, which waits with its first byte for ours perhaps.
const QUESTION_NS: u64 = 200_000_000;

impl Vector {
    /// Which of our handshakes, to others.
    pub(super) fn seat(&self, id: ExchangeId) -> Seat {
        Seat::new(self.stat.vector, id.number())
    }

    /// Has the peer's engine asked, or waits until it asks.
    pub(super) fn ask(&mut self, id: ExchangeId, role: Role, ends: Ends, now: u64) {
        let patience = if role == Role::Client { ANSWER_NS } else { QUESTION_NS };
        let seat = self.seat(id);
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        exchange.machine = Machine::Asks(role, smc_time(now + patience));
        exchange.asks = Some(ends);
        self.meeting.put(Wish::Come(seat, role, ends));
    }

    fn asks(&self, id: ExchangeId) -> bool {
        self.exchanges.get(id).is_some_and(|e| matches!(e.machine, Machine::Asks(..)))
    }

    /// The peer's engine asks: our guest's connection is read by nobody else, so whatever comes is ours.
    pub(super) fn on_question(&mut self, id: ExchangeId, question: Question, now: u64) {
        let waits = self.asks(id);
        if waits {
            self.begin(id, Role::Server, now);
        }
        self.meeting.put(Wish::Reply(self.seat(id), question, waits));
    }

    /// The peer's engine has answered.
    pub(super) fn on_answer(&mut self, id: ExchangeId, answer: Result<(), Why>, now: u64) {
        if !self.asks(id) {
            return;
        }
        match answer {
            Ok(()) => {
                let to = self.exchanges.get_mut(id).and_then(|exchange| {
                    exchange.answered = true;
                    exchange.to
                });
                self.learn_of_somebody(to);
                self.begin(id, Role::Client, now);
            }
            Err(Why::NotThisOne) => {
                self.stay_plain(id, "The peer's engine did not have this connection.", now);
            }
            Err(Why::NoListener) => {
                let why = "Nobody under Shunt listens at the peer's port.";
                let to = self.leave_to_tcp(id, (why, Reason::NoListener.code()), now);
                self.learn_of_nobody(to);
            }
        }
    }

    /// The peer's engine has been promised a handshake and does not want it any more.
    pub(super) fn on_withdrawn(&mut self, id: ExchangeId, now: u64) {
        if self.exchanges.get(id).is_some_and(|exchange| exchange.is_unheard()) {
            self.stay_plain(id, "The peer's engine withdrew.", now);
        }
    }

    /// A handshake whose time to ask has come to its end.
    pub(super) fn ask_no_longer(&mut self, id: ExchangeId, now: u64) {
        let Some(exchange) = self.exchanges.get(id) else { return };
        let Machine::Asks(role, until) = exchange.machine else { return };
        if until > smc_time(now) {
            return;
        }
        if exchange.answered {
            // It waits for another one's first contact. That there is somebody to speak SMC to is known.
            return self.take_back(id, "First contact with the peer was not made in time.", now);
        }
        let why = ("The peer's engine said nothing in time.", Reason::NotMet.code());
        let to = self.leave_to_tcp(id, why, now);
        if role == Role::Client {
            self.learn_of_nobody(to);
        }
    }

    /// The connection is TCP, and that says nothing of others to where it leads.
    pub(super) fn stay_plain(&mut self, id: ExchangeId, why: &str, now: u64) {
        let _ = self.leave_to_tcp(id, (why, Reason::NotMet.code()), now);
    }
}

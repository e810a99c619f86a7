//! How a connection ends (RFC 7609 4.8, with the states of Linux).

use super::Conn;
use super::send::CLOSED_OR_ABORTED;
use crate::cdc::StateFlags;

/// Where a connection is on its way to its end. The numbers are those that `sock_diag` of Linux tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// Both may write.
    Active = 1,
    /// Both have closed: nothing is sent or received any more.
    Closed = 7,
    /// We ended first, the peer has not.
    PeerCloseWait1 = 20,
    /// We ended first, the peer has written all.
    PeerCloseWait2 = 21,
    /// The peer ended first.
    AppCloseWait1 = 22,
    /// The peer ended first, and we have written all.
    AppCloseWait2 = 23,
    /// The peer has closed; we have written all, but our program has not closed.
    AppFinCloseWait = 24,
    /// We have closed after the peer had written all, and wait for it to close.
    PeerFinCloseWait = 25,
    /// We aborted, and wait for the peer.
    PeerAbortWait = 26,
    /// The peer aborted, and our program has not closed.
    ProcessAbort = 27,
}

impl Conn {
    /// The program will not write any more (`shutdown(SHUT_WR)`). The peer is told when all that was
    /// written is sent.
    pub fn shutdown_write(&mut self) {
        self.shut = true;
        self.step_close();
    }

    /// The program has closed. The peer is told when all that was written is sent, or
    /// [`Conn::give_up_unsent`] was called; by an abort if something was not read, as TCP does.
    pub fn close(&mut self) {
        self.shut = true;
        self.closed = true;
        self.step_close();
    }

    /// What has not been sent will not be: the time to linger is over (Linux: 2 s unless set). What is under way still is
    /// if it has to be sent again.
    pub fn give_up_unsent(&mut self) {
        self.gave_up = true;
        self.step_close();
    }

    /// Ends the connection abnormally: the peer is told to do so too. For violations, and for programs
    /// that die.
    pub fn abort(&mut self) {
        self.shut = true;
        self.closed = true;
        if matches!(self.state, State::Closed | State::PeerAbortWait) {
            return;
        }
        if !self.sent_close() {
            self.say(StateFlags::ABORTED);
        }
        self.state = if self.received_close() { State::Closed } else { State::PeerAbortWait };
    }

    /// The link group is gone: nothing can be told to the peer, which has seen the same.
    pub const fn kill(&mut self) {
        self.killed = true;
        self.shut = true;
        self.state = State::Closed;
    }

    /// Whether the link group went away under the connection: `ECONNABORTED`.
    #[must_use]
    pub const fn was_killed(&self) -> bool {
        self.killed
    }

    /// Both sides have ended, both have said so, and what we said has been acknowledged: the peer will not
    /// write into our RMB any more, and may be told to forget its key. Only after that may the RMB be used
    /// again (RFC 7609 4.4.2): a late write would land in somebody else's bytes.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let said = !self.owed && !self.validate && self.uncompleted == 0;
        self.state == State::Closed && (self.killed || said)
    }

    /// It is over because both sides have closed, with nothing lost or given up, and over one link all the time. What
    /// the peer wrote came before it said so: if it writes nothing behind that, as Shunt does not, the RMB can be
    /// another's without the peer being told.
    #[must_use]
    pub fn ended_in_order(&self) -> bool {
        let aborted = |said: StateFlags| said.has(StateFlags::ABORTED);
        let closed = self.sent_close() && self.received_close();
        let one_link = self.moves == 0 && !self.peer_moved;
        let good = !self.killed && !aborted(self.state_flags) && !aborted(self.peer_state);
        self.is_over() && closed && one_link && good
    }

    pub(super) const fn sent_close(&self) -> bool {
        self.state_flags.has_any(CLOSED_OR_ABORTED)
    }

    const fn received_close(&self) -> bool {
        self.peer_state.has_any(CLOSED_OR_ABORTED)
    }

    const fn sent_done(&self) -> bool {
        self.state_flags.has(StateFlags::SENDING_DONE)
    }

    /// From now on each message says so, and one has to go.
    const fn say(&mut self, flags: StateFlags) {
        if !self.state_flags.has(flags) {
            self.state_flags = self.state_flags.with(flags);
            self.owed = true;
        }
    }

    /// An abort if something was not read, or will not be sent, so that the peer learns of the loss.
    const fn say_closed(&mut self) {
        let unread = self.arrived > self.consumed;
        let lost = unread || self.gave_up && self.unsent() > 0;
        self.say(if lost { StateFlags::ABORTED } else { StateFlags::CLOSED });
    }

    /// Called when the last bytes are being sent, before the message that tells of them is made: so that
    /// it tells of the end too.
    pub(super) fn finish_writing(&mut self) {
        self.step_close();
    }

    /// The peer said something new about the end.
    pub(super) fn on_peer_ending(&mut self) {
        use State::{
            Active, AppCloseWait1, AppCloseWait2, AppFinCloseWait, Closed, PeerAbortWait,
            PeerCloseWait1, PeerCloseWait2, PeerFinCloseWait, ProcessAbort,
        };
        if self.peer_state.has(StateFlags::ABORTED) {
            self.state = match self.state {
                Active | AppFinCloseWait | AppCloseWait1 | AppCloseWait2 => self.answer_abort(),
                PeerCloseWait1 | PeerCloseWait2 if self.sent_done() && !self.sent_close() => {
                    self.answer_abort()
                }
                ProcessAbort => ProcessAbort,
                PeerCloseWait1 | PeerCloseWait2 | PeerFinCloseWait | PeerAbortWait | Closed => {
                    Closed
                }
            };
            return;
        }
        if self.state == Active {
            self.state = AppCloseWait1;
            return;
        }
        if self.state == PeerCloseWait1 && self.peer_state.has(StateFlags::SENDING_DONE) {
            self.state = PeerCloseWait2;
        }
        let waits = matches!(self.state, PeerCloseWait1 | PeerCloseWait2 | PeerFinCloseWait);
        if waits && self.received_close() {
            let both = self.closed && self.sent_close();
            self.state = if both { Closed } else { AppFinCloseWait };
        }
        if self.state == PeerAbortWait && self.received_close() {
            self.state = Closed;
        }
    }

    const fn answer_abort(&mut self) -> State {
        self.say(StateFlags::ABORTED);
        State::ProcessAbort
    }

    /// Does what our program wants as far as it can be done now.
    pub(super) fn step_close(&mut self) {
        let waits = self.unsent() > 0 && !self.gave_up && !self.received_close() && !self.killed;
        if waits {
            return;
        }
        if self.closed {
            self.step_closed();
        } else if self.shut {
            self.step_shut();
        }
    }

    const fn step_shut(&mut self) {
        match self.state {
            State::Active => {
                self.say(StateFlags::SENDING_DONE);
                self.state = State::PeerCloseWait1;
            }
            State::AppCloseWait1 => {
                self.say(StateFlags::SENDING_DONE);
                self.state = State::AppCloseWait2;
            }
            _ => {}
        }
    }

    const fn step_closed(&mut self) {
        match self.state {
            State::Active => {
                self.say_closed();
                self.state = State::PeerCloseWait1;
            }
            State::AppCloseWait1 | State::AppCloseWait2 => {
                self.say_closed();
                let over = self.received_close();
                self.state = if over { State::Closed } else { State::PeerFinCloseWait };
            }
            State::AppFinCloseWait => {
                if !self.sent_close() {
                    self.say_closed();
                }
                self.state = State::Closed;
            }
            State::PeerCloseWait1 | State::PeerCloseWait2 => {
                if !self.sent_close() {
                    self.say_closed();
                }
            }
            State::ProcessAbort => self.state = State::Closed,
            State::PeerFinCloseWait | State::PeerAbortWait | State::Closed => {}
        }
    }
}

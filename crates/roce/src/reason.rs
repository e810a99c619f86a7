//! Why a packet was dropped, and what was counted.

use crate::wire::WireError;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $key:literal, $words:literal;)*) => {
        /// Why a packet was dropped. The numbers never change their meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])* #[error($words)] $name = $code,)*
        }

        impl Reason {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// For programs: a name of lower-case letters and underscores.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }
        }
    };
}

reasons! {
    /// Shorter than its headers, or no multiple of 4 bytes, or longer than any.
    Malformed = 1, "malformed", "packet is not well formed";
    /// An operation that we do not speak.
    Opcode = 2, "opcode", "operation is not supported";
    /// There is no such queue pair, or no more.
    UnknownQp = 3, "unknown_qp", "there is no such queue pair";
    /// The queue pair does not receive yet, or no more.
    State = 4, "state", "queue pair does not receive in its state";
    /// Source or destination are not those of the connection.
    Address = 5, "address", "addresses are not those of the connection";
    /// Another partition.
    Partition = 6, "partition", "partition is not that of the queue pair";
    /// The invariant CRC is wrong.
    Icrc = 7, "icrc", "invariant CRC is wrong";
    /// It came already; it is acknowledged again.
    Duplicate = 8, "duplicate", "packet came before";
    /// One before it is missing; the peer was told, or is told now.
    OutOfOrder = 9, "out_of_order", "a packet before it is missing";
    /// There is no receive request; the peer was told.
    NotReady = 10, "not_ready", "there is no receive request";
    /// It makes no sense where it came: the queue pair has failed.
    InvalidRequest = 11, "invalid_request", "request makes no sense here";
    /// The peer may not write there: the queue pair has failed.
    Access = 12, "access", "peer may not write there";
    /// The engine could not write: the queue pair has failed.
    Operational = 13, "operational", "memory could not be written";
    /// An acknowledgement of what was acknowledged.
    StaleAck = 14, "stale_ack", "acknowledgement came too late";
    /// An acknowledgement of what was never sent.
    BadAck = 15, "bad_ack", "acknowledgement of what was not sent";
    /// A notification of congestion where that is off, too soon after another, or of a packet that was not sent lately.
    Notification = 16, "notification", "notification of congestion has no effect";
}

/// One more than the largest number of a [`Reason`].
pub const REASONS: usize = 17;

impl From<WireError> for Reason {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Opcode(_) => Self::Opcode,
            _ => Self::Malformed,
        }
    }
}

/// What a device has seen and done. All counts only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets made, of all kinds.
    pub packets_out: u64,
    /// Bytes of payload in those.
    pub bytes_out: u64,
    /// Packets handed in, good or bad.
    pub packets_in: u64,
    /// Bytes of payload put into memory.
    pub bytes_in: u64,
    /// Packets of those made that were made before.
    pub retransmitted: u64,
    /// Times that nothing was heard for too long.
    pub timeouts: u64,
    /// Acknowledgements sent.
    pub acks_out: u64,
    /// Acknowledgements that said something new.
    pub acks_in: u64,
    /// Negative acknowledgements sent, without those of receivers not ready.
    pub naks_out: u64,
    /// The same, heard.
    pub naks_in: u64,
    /// "Receiver not ready", sent.
    pub rnr_out: u64,
    /// The same, heard.
    pub rnr_in: u64,
    /// Packets of requests that came with a congestion mark, and a number near the one that was expected.
    pub marks_in: u64,
    /// Notifications of congestion sent.
    pub cnp_out: u64,
    /// Those that cut a rate.
    pub cnp_in: u64,
    /// Queue pairs that failed.
    pub failed: u64,
    /// Packets dropped, by reason.
    pub dropped: [u64; REASONS],
}

impl Counters {
    /// Packets that were dropped for this reason.
    #[must_use]
    pub const fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Adds another device's.
    pub fn add(&mut self, other: &Self) {
        let Self {
            packets_out,
            bytes_out,
            packets_in,
            bytes_in,
            retransmitted,
            timeouts,
            acks_out,
            acks_in,
            naks_out,
            naks_in,
            rnr_out,
            rnr_in,
            marks_in,
            cnp_out,
            cnp_in,
            failed,
            dropped,
        } = other;
        self.packets_out += packets_out;
        self.bytes_out += bytes_out;
        self.packets_in += packets_in;
        self.bytes_in += bytes_in;
        self.retransmitted += retransmitted;
        self.timeouts += timeouts;
        self.acks_out += acks_out;
        self.acks_in += acks_in;
        self.naks_out += naks_out;
        self.naks_in += naks_in;
        self.rnr_out += rnr_out;
        self.rnr_in += rnr_in;
        self.marks_in += marks_in;
        self.cnp_out += cnp_out;
        self.cnp_in += cnp_in;
        self.failed += failed;
        for (mine, theirs) in self.dropped.iter_mut().zip(dropped) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_from_one_and_named_once() {
        assert!(Reason::ALL.iter().map(|reason| *reason as usize).eq(1..REASONS));
        for reason in Reason::ALL {
            let same = Reason::ALL.iter().filter(|other| other.key() == reason.key());
            assert_eq!(same.count(), 1);
            assert!(!reason.to_string().is_empty());
        }
    }

    #[test]
    fn counters_of_two_devices_add_up() {
        let mut one = Counters { packets_out: 1, failed: 2, ..Counters::default() };
        one.dropped[Reason::Icrc as usize] = 3;
        let mut two = one.clone();
        two.add(&one);
        assert_eq!((two.packets_out, two.failed, two.dropped(Reason::Icrc)), (2, 4, 6));
    }
}

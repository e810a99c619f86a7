//! The CLC handshake: who says what over the TCP connection, and when it is too late to go back to it
//! (RFC 7609 3.5 and appendix C; release negotiation as in Linux 6.12).
//!
//! Only SMC-R of version 2 is spoken. A [`Client`] and a [`Server`] are values: tell them what happened
//! and take [`Step`]s out with `poll` until there is none. What they cannot know, whether there is a link
//! group, a queue pair, a buffer, they ask for by a step and are told by a call.
//!
//! * **No chase** (C.1): a Decline is only sent in place of a message that the peer expects.
//! * **Point of no return** (C.3): behind it there is no going back to TCP, only [`Step::Abort`]. With a
//!   link group that exists it is Accept and Confirm; with a new one, when the link was confirmed.

mod client;
mod server;

pub use client::Client;
pub use server::Server;

use crate::bytes::bit;
use crate::clc::{self, Diagnosis, FirstContact, RdmaAnswer, V2X};
use crate::eid::Eid;
use crate::name::{Gid, Mac, Mtu, Psn, Qpn, RKey, SizeClass, SystemId, Token};

/// The release of version 2 that we speak.
pub const RELEASE: u8 = 1;
/// Features of release 1 that we know: none of those that concern SMC-R, of which there are none, so the
/// bit of Linux for emulated ISM is said as Linux says it.
const FEATURES: u16 = 0x0001;
const OS_LINUX: u8 = 2;

/// Which vendor's options stand in a proposal: a locally administered OUI, which nobody can be assigned.
/// Linux sends zeros and does not look.
const OUI: [u8; 3] = [0x02, b'S', b'H'];
/// The options: that this is Shunt, and a number for what it can do: 1, answers to CONFIRM RKEY and DELETE
/// RKEY name the key that they are for, and any number of them may be under way.
const VENDOR_PROPOSAL: [u8; 5] = *b"UNT\x01\x00";
const VENDOR_FIRST: [u8; 4] = *b"SHU\x01";
/// A bit of the first reserved byte behind those, only towards who said that it is Shunt: congestion marks are answered.
/// It stands beside the number because whoever does not know this number would not know Shunt.
const ANSWERS_MARKS: u8 = 0x01;

/// Who we are, in each message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Unique for each SMC stack, not only for each host.
    pub system: SystemId,
    /// Address of the RoCE port that is nearest to the TCP connection.
    pub gid: Gid,
    /// Its MAC address.
    pub mac: Mac,
    /// Host name for people, padded with blanks.
    pub host: [u8; 32],
    /// Our user EIDs, at most 8 are sent. Without any there is no version 2.
    pub eids: Vec<Eid>,
    /// Whether congestion marks (ECN) are answered by notifications, and notifications obeyed.
    pub answers_marks: bool,
}

/// Our end of the link and our buffer, for Accept and Confirm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalEnd {
    /// Address of the link's RoCE port.
    pub gid: Gid,
    /// Its MAC address.
    pub mac: Mac,
    /// Queue pair of the link.
    pub qpn: Qpn,
    /// First packet number of the link.
    pub psn: Psn,
    /// Largest packet that our port can take.
    pub mtu: Mtu,
    /// Key to our RMB.
    pub rkey: RKey,
    /// Virtual address of our RMB.
    pub vaddr: u64,
    /// Bytes of our RMB.
    pub size: SizeClass,
    /// What the peer's CDC messages must carry.
    pub token: Token,
}

/// What both sides have agreed on for a link group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Release of version 2.
    pub release: u8,
    /// Most connections.
    pub max_conns: u8,
    /// Most links.
    pub max_links: u8,
    /// Features.
    pub features: u16,
    /// The EID that both have.
    pub eid: Eid,
    /// The peer is Shunt, so that more than Linux can do may be done.
    pub peer_is_shunt: bool,
    /// Both sides have said that they answer congestion marks; of Shunt alone.
    pub marks: bool,
}

/// What a client proposed, for the server to find a link group for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// The client.
    pub system: SystemId,
    /// Its RoCEv2 address.
    pub gid: Gid,
    /// Its MAC address.
    pub mac: Mac,
    /// What a new link group would have.
    pub terms: Terms,
}

/// The peer's end of the link and its buffer, out of Accept or Confirm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerEnd {
    /// The message.
    pub answer: RdmaAnswer,
    /// What a new link group has; not there if the group exists.
    pub terms: Option<Terms>,
}

/// What the caller must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write these bytes to the TCP connection.
    Send(Vec<u8>),
    /// Server: find a link group for this client, or make one; then call [`Server::accept`] or
    /// [`Server::refuse`].
    FindGroup(Proposed),
    /// Client: find the link that the server means, or make a link group; be ready to receive on it; then
    /// call [`Client::confirm`] or [`Client::refuse`].
    Prepare(Box<PeerEnd>),
    /// The group is new: confirm its link (server: the queue pair may send now, and CONFIRM LINK goes
    /// first); then call `link_confirmed`, `link_timed_out` or `refuse`. For the client the peer's end is
    /// that of [`Step::Prepare`].
    ConfirmLink(Option<Box<PeerEnd>>),
    /// The connection's bytes go by SMC from now on. There is no way back to TCP. The server learns here
    /// the peer's end when the group existed.
    Established(Option<Box<PeerEnd>>),
    /// The connection goes on as TCP.
    FallBack(FallBack),
    /// The connection has to be reset.
    Abort(Abort),
}

/// Why a connection goes on as TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallBack {
    /// Our reason.
    pub ours: Diagnosis,
    /// The peer's, if it was the peer that declined.
    pub theirs: Option<Diagnosis>,
    /// The peer does not know the link group that we named: end it, but for those connections that are
    /// not its (RFC 7609 C.4).
    pub out_of_sync: bool,
}

/// Why a connection cannot go on: it is not known any more what its next byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Abort {
    /// The peer did not answer in time; its answer may still come.
    #[error("the peer did not answer the handshake in time")]
    TimedOut,
    /// The peer's bytes are no message.
    #[error("not a CLC message: {0}")]
    Malformed(#[from] clc::ParseError),
    /// The message is another than is due.
    #[error("a CLC message that is not due")]
    Unexpected,
    /// A value that no honest peer sends.
    #[error("a CLC message contradicts those before")]
    Contradiction,
    /// Something failed behind the point of no return.
    #[error("{}", .0.text())]
    TooLate(Diagnosis),
}

impl Identity {
    fn first_contact(&self, terms: &Terms) -> FirstContact {
        FirstContact {
            direct: true,
            os: OS_LINUX,
            release: terms.release,
            host: self.host,
            v2x: Some(V2X {
                max_conns: terms.max_conns,
                max_links: terms.max_links,
                features: terms.features,
                vendor: if terms.peer_is_shunt { VENDOR_FIRST } else { [0; 4] },
                reserved: [bit(ANSWERS_MARKS, terms.marks), 0, 0, 0, 0, 0, 0, 0],
            }),
            reserved: (0, [0; 2]),
        }
    }

    fn answer(
        &self,
        end: &LocalEnd,
        mtu: Mtu,
        eid: Eid,
        first: Option<FirstContact>,
    ) -> RdmaAnswer {
        RdmaAnswer {
            first_contact: first.is_some(),
            system: self.system,
            gid: end.gid,
            mac: end.mac,
            qpn: end.qpn,
            rkey: end.rkey,
            element: 1,
            token: end.token,
            size: end.size,
            mtu,
            vaddr: end.vaddr,
            psn: end.psn,
            v2: Some(clc::RdmaV2 { eid, first, gids: None }),
            reserved: clc::RdmaReserved::default(),
        }
    }
}

/// Whether these fields of first contact say that congestion marks are answered.
fn says_marks(v2x: &V2X) -> bool {
    v2x.vendor == VENDOR_FIRST && v2x.reserved[0] & ANSWERS_MARKS != 0
}

/// What is wrong with any answer of SMC-R of version 2: a number that means nothing is a reason to decline,
/// anything else to abort.
fn check_answer(answer: &RdmaAnswer) -> Result<(), Diagnosis> {
    let sound = answer.token.0 != 0 && answer.element >= 1 && answer.mtu.bytes().is_some();
    if sound { Ok(()) } else { Err(Diagnosis::Internal) }
}

#[cfg(test)]
mod tests;

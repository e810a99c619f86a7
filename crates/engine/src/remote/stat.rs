//! What the engine has done and has now, as `shunt engine status` and `shunt stat` show it.

use serde::Serialize;

/// Different reasons that are counted for themselves: more than CLC knows.
pub(super) const REASONS_MAX: usize = 64;
/// What all others are counted as.
pub(super) const OTHERS: &str = "Other reasons.";

/// Counts one more for a reason.
pub(super) fn note(counts: &mut std::collections::BTreeMap<String, u64>, why: &str) {
    if let Some(count) = counts.get_mut(why) {
        *count += 1;
        return;
    }
    let is_full = counts.len() >= REASONS_MAX;
    let why = if is_full { OTHERS } else { why };
    *counts.entry(why.to_owned()).or_default() += 1;
}

/// What one vector counts. Written by it alone, copied for others to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VectorStat {
    /// Which one.
    pub vector: u32,
    /// Connections whose bytes go by SMC now.
    pub connections: u64,
    /// Handshakes that are going on.
    pub handshakes: u64,
    /// Connections that ever went by SMC.
    pub connections_total: u64,
    /// Connections that stayed on TCP although they were the engine's.
    pub declined_total: u64,
    /// Those, by why; peers can make reasons up, and what is beyond 64 different ones is counted as one.
    pub declined: std::collections::BTreeMap<String, u64>,
    /// Connections that were reset because of what the peer did or because their link group died.
    pub aborted_total: u64,
    /// Handshakes that ended in a reset, by why; they are among those.
    pub broken_off: std::collections::BTreeMap<String, u64>,
    /// Time that handshakes have waited for what has come, nanoseconds: for the peer, for their vector, for each other. With the
    /// setting `stamps` what the scheduler lets a vector wait whose answer has come is part of it; without, that is
    /// seen in `/proc/PID/task/TID/schedstat` alone.
    pub setup_wait_ns: u64,
    /// Of that, for the network and the peer: nothing was here yet that they could have gone on with. With `stamps`
    /// until the kernel took in what came, else until the vector last looked and found nothing.
    pub setup_network_ns: u64,
    /// Both, by what was waited for, and only waits that were answered (not those that a deadline or a lost link has
    /// ended): `message by TCP`, `answer by link`, `hand-over` from the thread at the door, and
    /// `first contact` with a peer that another one made.
    pub setup_waits: std::collections::BTreeMap<String, WaitStat>,
    /// Of guests, by RDMA WRITE.
    pub bytes_tx: u64,
    /// For guests, by RDMA WRITE of the peer.
    pub bytes_rx: u64,
    /// RDMA WRITEs posted.
    pub writes_tx: u64,
    /// CDC messages sent.
    pub cdc_tx: u64,
    /// CDC messages received.
    pub cdc_rx: u64,
    /// LLC messages sent.
    pub llc_tx: u64,
    /// Buffers that were made for peers to write into.
    pub rmbs_registered: u64,
    /// Connections that got the buffer of one before, which their peer knew already.
    pub rmbs_reused: u64,
    /// RoCEv2 packets sent.
    pub packets_tx: u64,
    /// RoCEv2 packets received.
    pub packets_rx: u64,
    /// Packets that the system would not send; they are sent again later.
    pub packets_refused: u64,
    /// Packets that were sent again.
    pub packets_again: u64,
    /// Times that nobody had acknowledged in time.
    pub timeouts: u64,
    /// Packets that were dropped when they came, by the reason.
    pub dropped: std::collections::BTreeMap<String, u64>,
    /// Fragments of IP that were taken from interfaces (`raw_ingress`).
    pub fragments_rx: u64,
    /// RoCEv2 packets, of any vector, that came of them.
    pub reassembled: u64,
    /// Those that were dropped since up to 1 MiB of them waited already for the vector that they were for.
    pub reassembled_dropped: u64,
    /// Completions of each queue: of the one that each link has, and of the other of links that keep what they send
    /// apart (`split_cqs`).
    pub completions: Vec<u64>,
    /// RoCEv2 packets that came with a congestion mark (ECN: CE), and a number near the one that was expected.
    pub marks_rx: u64,
    /// Notifications of congestion sent, since marks had come.
    pub cnp_tx: u64,
    /// Notifications of congestion that came.
    pub cnp_rx: u64,
    /// Those that cut a rate; others came too soon after one.
    pub rate_cuts: u64,
    /// Links that were lost.
    pub links_lost: u64,
    /// Rounds of the loop.
    pub rounds: u64,
    /// Times that the loop slept.
    pub sleeps: u64,
    /// CPU time of the thread, nanoseconds.
    pub cpu_ns: u64,
    /// Its link groups.
    pub groups: Vec<GroupStat>,
}

/// Waits of one kind that were answered, and what they were made of: the four last together are the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitStat {
    /// How many.
    pub count: u64,
    /// How long all of them were, nanoseconds.
    pub wait_ns: u64,
    /// Until what was waited for was here: the network, and the peer.
    pub network_ns: u64,
    /// From then on while the vector's thread could have run: others had its CPU, or the CPU slept and had to wake up.
    /// Told from the others with the setting `stamps` alone.
    pub no_cpu_ns: u64,
    /// While it still slept: the system wakes it.
    pub waking_ns: u64,
    /// While it did other things.
    pub behind_others_ns: u64,
}

impl WaitStat {
    /// Of both.
    #[must_use]
    pub const fn and(self, other: &Self) -> Self {
        Self {
            count: self.count + other.count,
            wait_ns: self.wait_ns + other.wait_ns,
            network_ns: self.network_ns + other.network_ns,
            no_cpu_ns: self.no_cpu_ns + other.no_cpu_ns,
            waking_ns: self.waking_ns + other.waking_ns,
            behind_others_ns: self.behind_others_ns + other.behind_others_ns,
        }
    }
}

/// A link group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupStat {
    /// Its number on this host.
    pub id: u64,
    /// `client` or `server`.
    pub role: String,
    /// `SINGLE` or `SYMMETRIC`: with one link or two.
    pub kind: String,
    /// The peer's address.
    pub peer: String,
    /// The enterprise ID that both have.
    pub eid: String,
    /// Connections.
    pub connections: u64,
    /// Buffers that a connection has left for another.
    pub idle: u64,
    /// Its links.
    pub links: Vec<LinkStat>,
}

/// A link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStat {
    /// `ACTIVATING` or `ACTIVE`.
    pub state: String,
    /// Our address.
    pub local: String,
    /// The peer's.
    pub peer: String,
    /// Our queue pair.
    pub qpn: u32,
    /// The peer's.
    pub peer_qpn: u32,
    /// Largest payload of a packet, bytes.
    pub mtu: u32,
    /// What it sends and what it receives completes in two queues.
    pub split: bool,
    /// Both ends answer congestion marks: packets say so (ECN: ECT(0)), and the link has a rate.
    pub congestion: bool,
    /// That rate, bits a second, while it is below what the link is capable of.
    pub rate_bits: Option<u64>,
}

/// A user whose programs are served, or should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UserStat {
    /// The user's number.
    pub uid: u32,
    /// The user's name, if there is one.
    pub name: Option<String>,
    /// Whether new connections are taken.
    pub is_served: bool,
    /// Connections that are there.
    pub connections: u64,
    /// Shared memory that the engine has for them, bytes.
    pub memory_bytes: u64,
    /// Why new connections are not taken, if they should be.
    pub problem: Option<String>,
}

/// All of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stat {
    /// Process id.
    pub pid: u32,
    /// Addresses that RoCEv2 is spoken from.
    pub addresses: Vec<String>,
    /// What has gone wrong last, in words.
    pub problem: Option<String>,
    /// Connections that stayed on TCP because there was no memory for them (`memory_max`), although their peers had been
    /// promised SMC: these were told.
    pub no_memory_total: u64,
    /// Those that were reset because their peers could not be told: no message of theirs came in time.
    pub no_memory_reset_total: u64,
    /// Destinations whose connections stay on TCP for now, because SMC did not pay for them.
    pub spared: Vec<String>,
    /// Hosts whose engines are known: see the setting `peers`.
    pub met: Vec<String>,
    /// Whose programs are served: see the setting `users`.
    pub users: Vec<UserStat>,
    /// Each vector.
    pub vectors: Vec<VectorStat>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer says a number of its own each time: what is held for it has an end, and no connection is lost count of.
    #[test]
    fn reasons_that_peers_make_up_are_counted_as_one() {
        let mut counts = std::collections::BTreeMap::new();
        for number in 0..10_000 {
            note(
                &mut counts,
                &format!("The peer: A reason that is not known here. ({number:#010x})"),
            );
        }
        note(&mut counts, "The peer: A reason that is not known here. (0x00000007)");
        assert_eq!((counts.len(), counts.values().sum()), (REASONS_MAX + 1, 10_001u64));
        assert_eq!(counts[OTHERS], 10_000 - REASONS_MAX as u64);
    }
}

//! What the engine has done and has now, as `shunt engine status` and `shunt stat` show it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metrics::{Page, Seconds};

/// Different reasons that are counted for themselves: more than CLC knows.
pub(super) const REASONS_MAX: usize = 64;
/// What all others are counted as.
pub(super) const OTHERS: &str = "Other reasons.";

/// Counts one more for a reason.
pub(super) fn note(counts: &mut BTreeMap<String, u64>, why: &str) {
    if let Some(count) = counts.get_mut(why) {
        *count += 1;
        return;
    }
    let is_full = counts.len() >= REASONS_MAX;
    let why = if is_full { OTHERS } else { why };
    *counts.entry(why.to_owned()).or_default() += 1;
}

/// What one vector counts. Written by it alone, copied for others to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
    pub declined: BTreeMap<String, u64>,
    /// Connections that were reset because of what the peer did or because their link group died.
    pub aborted_total: u64,
    /// Handshakes that ended in a reset, by why; they are among those.
    pub broken_off: BTreeMap<String, u64>,
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
    pub setup_waits: BTreeMap<String, WaitStat>,
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
    /// Addresses from which packets leave one by one, since the system does not take several as one (`segments`).
    pub apart: Vec<String>,
    /// Packets that were sent again.
    pub packets_again: u64,
    /// Times that nobody had acknowledged in time.
    pub timeouts: u64,
    /// Packets that were dropped when they came, by the reason.
    pub dropped: BTreeMap<String, u64>,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
    /// No new connections are taken, and it ends when the last one is gone.
    pub draining: bool,
    /// Connections of guests that it has, whichever way their bytes go.
    pub guest_connections: u64,
    /// Whose programs are served: see the setting `users`.
    pub users: Vec<UserStat>,
    /// Each vector.
    pub vectors: Vec<VectorStat>,
}

/// Engines, each with the directory whose programs it serves, for Prometheus.
pub fn add_to(page: &mut Page, engines: &[(String, Stat)]) {
    let help = "1; which engine it is, and where it speaks from.";
    let mut family = page.gauge("shunt_engine_info", help);
    for (dir, stat) in engines {
        let addresses = stat.addresses.join(" ");
        family.value(&[("dir", dir), ("pid", &stat.pid), ("addresses", &addresses)], 1);
    }
    type Field = fn(&Stat) -> u64;
    let gauges: [(&str, &str, Field); 4] = [
        ("shunt_engine_draining", "1: it takes no new connections (shunt engine drain).", |stat| {
            u64::from(stat.draining)
        }),
        (
            "shunt_engine_problem",
            "Whether something has gone wrong: `shunt engine status` has the words.",
            |stat| u64::from(stat.problem.is_some()),
        ),
        (
            "shunt_engine_spared_destinations",
            "Destinations left to TCP for now, because SMC-R did not pay for them.",
            |stat| stat.spared.len() as u64,
        ),
        ("shunt_engine_known_hosts", "Hosts whose engines are known.", |stat| {
            stat.met.len() as u64
        }),
    ];
    for (name, help, field) in gauges {
        let mut family = page.gauge(name, help);
        engines.iter().for_each(|(dir, stat)| family.value(&[("dir", dir)], field(stat)));
    }
    let counters: [(&str, &str, Field); 2] = [
        (
            "shunt_engine_no_memory_total",
            "Connections that stayed on TCP for want of memory, their peers told.",
            |stat| stat.no_memory_total,
        ),
        (
            "shunt_engine_no_memory_reset_total",
            "Connections that were reset for want of memory.",
            |stat| stat.no_memory_reset_total,
        ),
    ];
    for (name, help, field) in counters {
        let mut family = page.counter(name, help);
        engines.iter().for_each(|(dir, stat)| family.value(&[("dir", dir)], field(stat)));
    }
    by_user(page, engines);
    by_vector(page, engines);
    by_reason(page, engines);
}

fn by_user(page: &mut Page, engines: &[(String, Stat)]) {
    type Field = fn(&UserStat) -> u64;
    let help = "Whether a user's new connections are taken.";
    let mut family = page.gauge("shunt_engine_user_served", help);
    for (dir, stat) in engines {
        // Whose board was removed, as by logging out, is kept from nothing.
        for user in stat.users.iter().filter(|user| user.is_served || user.problem.is_some()) {
            family.value(&[("dir", dir), ("uid", &user.uid)], u8::from(user.is_served));
        }
    }
    let fields: [(&str, &str, Field); 2] = [
        ("shunt_engine_user_connections", "Connections of a user's programs.", |user| {
            user.connections
        }),
        ("shunt_engine_user_memory_bytes", "Shared memory for a user's programs.", |user| {
            user.memory_bytes
        }),
    ];
    for (name, help, field) in fields {
        let mut family = page.gauge(name, help);
        for (dir, stat) in engines {
            for user in &stat.users {
                family.value(&[("dir", dir), ("uid", &user.uid)], field(user));
            }
        }
    }
}

fn by_vector(page: &mut Page, engines: &[(String, Stat)]) {
    type Field = fn(&VectorStat) -> u64;
    let vectors = || {
        engines.iter().flat_map(|(dir, stat)| stat.vectors.iter().map(move |vector| (dir, vector)))
    };
    let gauges: [(&str, &str, Field); 4] = [
        ("connections", "Connections whose bytes go by SMC-R.", |v| v.connections),
        ("handshakes", "Handshakes that are going on.", |v| v.handshakes),
        ("link_groups", "Link groups.", |v| v.groups.len() as u64),
        ("links", "Links of those, that is queue pairs.", |v| {
            v.groups.iter().map(|group| group.links.len() as u64).sum()
        }),
    ];
    for (name, help, field) in gauges {
        let name = format!("shunt_engine_{name}");
        let mut family = page.gauge(&name, help);
        for (dir, v) in vectors() {
            family.value(&[("dir", dir), ("vector", &v.vector)], field(v));
        }
    }
    let counters: [(&str, &str, Field); 19] = [
        ("connections_total", "Connections that ever went by SMC-R.", |v| v.connections_total),
        ("aborted_total", "Connections that were reset.", |v| v.aborted_total),
        ("links_lost_total", "Links that were lost.", |v| v.links_lost),
        ("sent_bytes_total", "Bytes of programs sent by RDMA WRITE.", |v| v.bytes_tx),
        ("received_bytes_total", "Bytes for programs received by RDMA WRITE.", |v| v.bytes_rx),
        ("writes_total", "RDMA WRITEs posted.", |v| v.writes_tx),
        ("completions_total", "Completions of all queues.", |v| v.completions.iter().sum()),
        ("cdc_sent_total", "CDC messages sent.", |v| v.cdc_tx),
        ("cdc_received_total", "CDC messages received.", |v| v.cdc_rx),
        ("llc_sent_total", "LLC messages sent.", |v| v.llc_tx),
        ("packets_sent_total", "RoCEv2 packets sent.", |v| v.packets_tx),
        ("packets_received_total", "RoCEv2 packets received.", |v| v.packets_rx),
        ("packets_refused_total", "Packets that the system would not send.", |v| v.packets_refused),
        ("packets_again_total", "Packets that were sent again.", |v| v.packets_again),
        ("timeouts_total", "Times that no acknowledgement came in time.", |v| v.timeouts),
        ("marks_received_total", "Packets with a congestion mark.", |v| v.marks_rx),
        ("rate_cuts_total", "Rates that were cut for congestion.", |v| v.rate_cuts),
        ("loop_rounds_total", "Rounds of the loop.", |v| v.rounds),
        ("loop_sleeps_total", "Times that the loop slept.", |v| v.sleeps),
    ];
    for (name, help, field) in counters {
        let name = format!("shunt_engine_{name}");
        let mut family = page.counter(&name, help);
        for (dir, v) in vectors() {
            family.value(&[("dir", dir), ("vector", &v.vector)], field(v));
        }
    }
    let seconds: [(&str, &str, Field); 3] = [
        ("cpu_seconds_total", "CPU time of the vector's thread.", |v| v.cpu_ns),
        ("setup_wait_seconds_total", "Time that handshakes waited.", |v| v.setup_wait_ns),
        ("setup_network_seconds_total", "Of that, for the network and the peer.", |v| {
            v.setup_network_ns
        }),
    ];
    for (name, help, field) in seconds {
        let name = format!("shunt_engine_{name}");
        let mut family = page.counter(&name, help);
        for (dir, v) in vectors() {
            family.value(&[("dir", dir), ("vector", &v.vector)], Seconds(field(v)));
        }
    }
}

fn by_reason(page: &mut Page, engines: &[(String, Stat)]) {
    type Field = fn(&VectorStat) -> &BTreeMap<String, u64>;
    let fields: [(&str, &str, Field); 3] = [
        ("shunt_engine_declined_total", "Connections that stayed on TCP, by why.", |v| &v.declined),
        ("shunt_engine_broken_off_total", "Handshakes that ended in a reset, by why.", |v| {
            &v.broken_off
        }),
        ("shunt_engine_packets_dropped_total", "Packets that were dropped, by why.", |v| {
            &v.dropped
        }),
    ];
    for (name, help, field) in fields {
        let mut family = page.counter(name, help);
        for (dir, stat) in engines {
            let mut sums = BTreeMap::new();
            for (reason, count) in stat.vectors.iter().flat_map(field) {
                let sum: &mut u64 = sums.entry(reason).or_default();
                *sum = sum.saturating_add(*count);
            }
            for (reason, count) in sums {
                family.value(&[("dir", dir), ("reason", reason)], count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer says a number of its own each time: what is held for it has an end, and no connection is lost count of.
    #[test]
    fn reasons_that_peers_make_up_are_counted_as_one() {
        let mut counts = BTreeMap::new();
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

    #[test]
    fn who_has_logged_out_is_not_said_to_be_kept_out() {
        let user = |uid, is_served, problem: Option<&str>| UserStat {
            uid,
            is_served,
            problem: problem.map(str::to_owned),
            ..UserStat::default()
        };
        let users = vec![user(1, true, None), user(2, false, None), user(3, false, Some("why"))];
        let mut page = Page::default();
        add_to(&mut page, &[("d".to_owned(), Stat { users, ..Stat::default() })]);
        let page = page.text();
        let lines = page.lines().filter(|line| line.starts_with("shunt_engine_user_served{"));
        let said: Vec<&str> =
            lines.filter_map(|line| line.split_once(',').map(|(_, s)| s)).collect();
        assert_eq!(said, ["uid=\"1\"} 1", "uid=\"3\"} 0"]);
    }
}

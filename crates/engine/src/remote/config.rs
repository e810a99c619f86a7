//! Settings of the engine: loose outside ([`Config::set`] takes what people write), checked inside.
//!
//! One name everywhere: `shunt engine --max-links 1`, `max_links = 1` in the `[engine]` section of the
//! configuration file, `shunt engine set max_links=1`. The ranges and defaults are those of the kernel's
//! `net.smc.*` where it has the same thing.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use local::config::BadSetting;
use local::config::parse_size;
use smc::eid::EIDS_MAX;
use smc::{Eid, SizeClass};

use super::peers::{NETWORKS_MAX, Network};
use super::users::Users;
use super::vectors::{BadVectors, VECTORS_MAX, Vectors};

/// A setting and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name, everywhere.
    pub name: &'static str,
    /// What stands for the value in a help text.
    pub value: &'static str,
    /// What it does, with unit, range and default.
    pub help: &'static str,
    /// Whether it can be changed while the engine runs; it then counts for what comes after.
    pub live: bool,
}

/// Each setting there is.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "address",
        value: "ADDRESS[,ADDRESS]",
        help: "address of this host that RoCEv2 is spoken from, UDP port 4791; a second one, of another \
               interface in the same subnet, is for a second link [the address each connection has]",
        live: false,
    },
    Setting {
        name: "device",
        value: "NAME",
        help: "RDMA device that RoCEv2 is left to, as `rdma link` shows it; it needs libibverbs [none: our own \
               RoCEv2 over UDP]",
        live: false,
    },
    Setting {
        name: "eid",
        value: "EID[,EID]...",
        help: "enterprise IDs, up to 8: hosts that have one in common speak SMC-R with each other; Linux \
               has none before `smcr ueid add` [SHUNT]",
        live: true,
    },
    Setting {
        name: "send_buffer",
        value: "SIZE",
        help: "what a connection may have on its way, 16K to 4M, a power of two [256K]",
        live: true,
    },
    Setting {
        name: "receive_buffer",
        value: "SIZE",
        help: "buffer that the peer writes into, for each connection, 16K to 4M, a power of two; peers \
               before Linux 6.11 understand up to 512K [256K]",
        live: true,
    },
    Setting {
        name: "max_conns",
        value: "N",
        help: "connections in a link group, 16 to 255 [255]",
        live: true,
    },
    Setting {
        name: "max_links",
        value: "N",
        help: "links in a link group, 1 or 2; 2 needs two addresses [1]",
        live: true,
    },
    Setting {
        name: "autocork",
        value: "SIZE",
        help: "while a write is on its way, how much gathers before the next one, at most half the send \
               buffer; 0 sends everything at once [64K]",
        live: true,
    },
    Setting {
        name: "testlink_time",
        value: "SECONDS",
        help: "a link that was silent for so long is tested, 0 to 86400; 0 never tests [30]",
        live: true,
    },
    Setting {
        name: "handshakes_max",
        value: "N",
        help: "handshakes of a completion vector at one time, of one host as many as it leaves to others; connections \
               beyond that stay on TCP, \
               1 to 65536 [1024]",
        live: true,
    },
    Setting {
        name: "spare_short",
        value: "on|off",
        help: "connections to an address and port whose connections have gained nothing of late stay on TCP: they were \
               short (few round trips, few bytes) or declined; or, without `device`, they were streams (many bytes for \
               each round trip), which TCP carries as well or better. One is tried from 1 second to about a minute \
               later, after streams from a minute to a day later [on]",
        live: true,
    },
    Setting {
        name: "reuse_buffers",
        value: "on|off",
        help: "the buffer of a connection that has ended in order is another one's later, to the same host if that has \
               Shunt too: its peer knows the key already, and need not be asked to take it and to forget it [on]",
        live: true,
    },
    Setting {
        name: "peer_groups",
        value: "N",
        help: "link groups of a completion vector with one address of a peer, 1 to 1024 (IPv6: eight times that with one \
               network of 64 bits); connections for which it takes another stay on TCP, so that no host has all queue \
               pairs [64]",
        live: true,
    },
    Setting {
        name: "memory_max",
        value: "SIZE",
        help: "shared memory for the buffers of all connections that go by SMC-R, 16M to 64G; from half of it on new ones \
               get buffers of 64K at most, from three quarters on of 16K; connections for which there is \
               none left stay on TCP (or are reset, if their peer has been promised SMC and does not speak within half a \
               second) [4G]",
        live: false,
    },
    Setting {
        name: "peers",
        value: "NETWORK[,NETWORK]...",
        help: "hosts whose engines are asked, at TCP port 4791, which connections they share with this one, so \
               that guests of both speak SMC-R although no TCP option says so: addresses, which are looked for from \
               the beginning, or networks as in 192.0.2.0/24, of which the first connection to a host stays on \
               TCP; both hosts must name each other [none: only peers that send the option]",
        live: false,
    },
    Setting {
        name: "congestion",
        value: "on|off",
        help: "rates that follow congestion marks (ECN; DCQCN) on links to hosts whose Shunt does the same: packets \
               to them say ECT(0), marks that come are answered, and answers lower the rate; to others nothing of \
               it is done. Counts for link groups that are made from then on [on]",
        live: true,
    },
    Setting {
        name: "vectors",
        value: "N",
        help: "completion vectors, each a thread with queue pairs of its own, 1 to 64 [one a CPU]",
        live: false,
    },
    Setting {
        name: "use_vectors",
        value: "VECTORS",
        help: "completion vectors that new connections are given to: all, or some as in 0,2-5; those that are there \
               stay where they are [all]",
        live: true,
    },
    Setting {
        name: "split_cqs",
        value: "VECTORS",
        help: "completion vectors whose links have one completion queue for what they send and another for what they \
               receive, which is looked at first: all, none, or some as in 0,2-5; others have one for both. Counts \
               for links that are made from then on [none]",
        live: true,
    },
    Setting {
        name: "segments",
        value: "N",
        help: "packets of one link that the system is given as one (UDP segmentation offload), 1 to 64; 1 \
               does without, and without UDP checksums [64]",
        live: false,
    },
    Setting {
        name: "raw_ingress",
        value: "on|off",
        help: "RoCEv2 packets that a router or a tunnel has cut up are put together here, within 4 MiB, also where \
               the kernel's limits (net.ipv4.ipfrag_*) are used up; they are taken before netfilter, so rules of a \
               firewall do not see them; needs CAP_NET_RAW [off]",
        live: false,
    },
    Setting {
        name: "poll_us",
        value: "MICROSECONDS",
        help: "how long a vector that has nothing to do looks for more before it sleeps, 0 to 100000 [50]",
        live: true,
    },
    Setting {
        name: "stamps",
        value: "on|off",
        help: "the kernel notes when packets come, of connections that are being set up too, so that \
               `setup_network_ns` in `shunt engine status --json` is exact; costs each packet of this host a little [off]",
        live: false,
    },
    Setting {
        name: "cgroup",
        value: "PATH",
        help: "cgroup (version 2), as a path from its top: sockets of programs in there announce SMC in \
               the TCP handshake if `shunt run` has them ask; none does without [/]",
        live: false,
    },
    Setting {
        name: "users",
        value: "USER[,USER]...|all",
        help: "whose programs are served beside your own: users by name or number, or all who have an account and a \
               board, up to 64; it needs root. Each has as much memory and as many connections as are left to others. own: \
               nobody else's [own]",
        live: false,
    },
    Setting {
        name: "dir",
        value: "DIR",
        help: "directory of the board, owned by you and closed to others [/dev/shm/shunt-UID]",
        live: false,
    },
];

/// The enterprise ID of those who choose none.
pub const DEFAULT_EID: &str = "SHUNT";

/// What the engine runs on: all checked, all bounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Addresses that RoCEv2 is spoken from, at most two, of one family; none: every address that a
    /// connection has.
    pub addresses: Vec<IpAddr>,
    /// Name of the RDMA device to use; `None`: our own RoCEv2 over UDP.
    pub device: Option<String>,
    /// The libibverbs by which it is used; not to be set by people.
    pub device_library: String,
    /// Enterprise IDs, at most [`EIDS_MAX`]; none: SMC is not spoken.
    pub eids: Vec<Eid>,
    /// Size of a guest's send ring.
    pub send_buffer: SizeClass,
    /// Size of the RMB that a peer writes into.
    pub receive_buffer: SizeClass,
    /// Connections in a link group, 16 to 255.
    pub max_conns: u8,
    /// Links in a link group, 1 or 2.
    pub max_links: u8,
    /// Bytes that gather while a write is on its way.
    pub autocork: u32,
    /// Silence after which a link is tested; `None`: never.
    pub testlink_time: Option<Duration>,
    /// Handshakes of a vector at one time.
    pub handshakes_max: u32,
    /// Whether connections stay on TCP to where they have been too short for SMC, or streams.
    pub spare_short: bool,
    /// Whether buffers are used again that their peer knows.
    pub reuse_buffers: bool,
    /// Link groups of a vector with one peer's address; of an IPv6 network eight times as many.
    pub peer_groups: u32,
    /// Shared memory for the buffers of guests, bytes.
    pub memory_max: usize,
    /// Hosts whose engines ours gets to know, at most [`NETWORKS_MAX`] networks.
    pub peers: Vec<Network>,
    /// Whether congestion marks are answered, between hosts that both do.
    pub congestion: bool,
    /// Completion vectors; `None`: one a CPU.
    pub vectors: Option<u32>,
    /// Which of them new connections are given to: one at least.
    pub use_vectors: Vectors,
    /// Which of them keep completions of the two directions of a link apart.
    pub split_cqs: Vectors,
    /// Packets of one link that the system is given as one, 1 to 64.
    pub segments: u8,
    /// Whether fragments are taken from the interface and put together by the engine.
    pub raw_ingress: bool,
    /// How long a vector looks for work before it sleeps.
    pub poll: Duration,
    /// Whether the kernel notes when packets come.
    pub stamps: bool,
    /// Whose sockets announce SMC, as a path from the top of the tree; `None`: nobody's.
    pub cgroup: Option<PathBuf>,
    /// Whose programs are served beside our own user's.
    pub users: Users,
    /// Directory of the board, if not the usual one.
    pub dir: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            device: None,
            device_library: sys::verbs::Library::NAME.to_owned(),
            eids: DEFAULT_EID.parse().into_iter().collect(),
            send_buffer: SizeClass::holding(256 << 10),
            receive_buffer: SizeClass::holding(256 << 10),
            max_conns: 255,
            max_links: 1,
            autocork: 64 << 10,
            testlink_time: Some(Duration::from_secs(30)),
            handshakes_max: 1024,
            spare_short: true,
            reuse_buffers: true,
            peer_groups: 64,
            memory_max: 4 << 30,
            peers: Vec::new(),
            congestion: true,
            vectors: None,
            use_vectors: Vectors::ALL,
            split_cqs: Vectors::NONE,
            segments: 64,
            raw_ingress: false,
            poll: Duration::from_micros(50),
            stamps: false,
            cgroup: Some(PathBuf::from("/")),
            users: Users::Own,
            dir: None,
        }
    }
}

fn number<T: TryFrom<u64>>(text: &str, from: u64, to: u64) -> Result<T, String> {
    let n = text.trim().parse().ok().filter(|n| (from..=to).contains(n));
    n.and_then(|n| T::try_from(n).ok()).ok_or_else(|| format!("a number, {from} to {to}"))
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text.trim() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off".into()),
    }
}

fn size(text: &str) -> Result<SizeClass, String> {
    let bytes = parse_size(text).filter(|n| n.is_power_of_two());
    let bytes = bytes.filter(|n| (16 << 10..=4 << 20).contains(n));
    let bytes = bytes.and_then(|n| u64::try_from(n).ok());
    bytes.map(SizeClass::holding).ok_or_else(|| "a power of two from 16K to 4M".into())
}

fn list<T>(
    text: &str,
    most: usize,
    each: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let all: Vec<T> = words.map(each).collect::<Result<_, _>>()?;
    if all.len() > most { Err(format!("at most {most}")) } else { Ok(all) }
}

fn address(text: &str) -> Result<IpAddr, String> {
    let fit = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast();
    text.parse()
        .ok()
        .filter(fit)
        .ok_or_else(|| format!("{text} is not the address of an interface"))
}

impl Config {
    /// Applies one setting as people write it.
    ///
    /// # Errors
    ///
    /// [`BadSetting`] says what would be right; nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), BadSetting> {
        self.apply(name, value).map_err(|why| BadSetting {
            name: name.into(),
            value: value.into(),
            why,
        })
    }

    fn apply(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "address" => self.addresses = list(value, 2, address)?,
            "device" if value.is_empty() => return Err("the name of an RDMA device".into()),
            "device" => self.device = Some(value.to_owned()),
            "eid" => {
                let eid = |text: &str| text.parse().map_err(|e| format!("{text}: {e}"));
                self.eids = list(value, EIDS_MAX, eid)?;
            }
            "send_buffer" => self.send_buffer = size(value)?,
            "receive_buffer" => self.receive_buffer = size(value)?,
            "max_conns" => self.max_conns = number(value, 16, 255)?,
            "max_links" => self.max_links = number(value, 1, 2)?,
            "autocork" => {
                let bytes = parse_size(value).and_then(|n| u32::try_from(n).ok());
                self.autocork = bytes.ok_or("a size such as 64K, or 0")?;
            }
            "testlink_time" => {
                let seconds: u64 = number(value, 0, 86400)?;
                self.testlink_time = (seconds > 0).then_some(Duration::from_secs(seconds));
            }
            "handshakes_max" => self.handshakes_max = number(value, 1, 65536)?,
            "spare_short" => self.spare_short = on_or_off(value)?,
            "reuse_buffers" => self.reuse_buffers = on_or_off(value)?,
            "peer_groups" => self.peer_groups = number(value, 1, 1024)?,
            "memory_max" => {
                let bytes = parse_size(value).filter(|n| (16 << 20..=64 << 30).contains(n));
                self.memory_max = bytes.ok_or("a size from 16M to 64G")?;
            }
            "raw_ingress" => self.raw_ingress = on_or_off(value)?,
            "peers" if value.trim() == "none" => self.peers = Vec::new(),
            "peers" => {
                let network = |text: &str| text.parse().map_err(|e| format!("{text}: {e}"));
                self.peers = list(value, NETWORKS_MAX, network)?;
            }
            "congestion" => self.congestion = on_or_off(value)?,
            "vectors" => self.vectors = Some(number(value, 1, VECTORS_MAX.into())?),
            "use_vectors" => {
                let some = |set: &Vectors| *set != Vectors::NONE;
                let set = value.parse().ok().filter(some);
                self.use_vectors =
                    set.ok_or("all, or numbers of vectors from 0 to 63 as in 0,2-5")?;
            }
            "split_cqs" => {
                self.split_cqs = value.parse().map_err(|e: BadVectors| e.to_string())?;
            }
            "segments" => self.segments = number(value, 1, 64)?,
            "poll_us" => self.poll = Duration::from_micros(number(value, 0, 100_000)?),
            "stamps" => self.stamps = on_or_off(value)?,
            "cgroup" if value == "none" => self.cgroup = None,
            "cgroup" | "dir" if !value.starts_with('/') => return Err("an absolute path".into()),
            "cgroup" => self.cgroup = Some(PathBuf::from(value)),
            "users" => self.users = value.parse()?,
            "dir" => self.dir = Some(value.to_owned()),
            _ => return Err("no such setting; see `shunt engine --help`".into()),
        }
        Ok(())
    }

    /// The setting of that name as [`Self::set`] would take it; `None`: it is not set, or there is none.
    #[must_use]
    pub fn show(&self, name: &str) -> Option<String> {
        let joined = |words: Vec<String>| (!words.is_empty()).then(|| words.join(","));
        Some(match name {
            "address" => joined(self.addresses.iter().map(ToString::to_string).collect())?,
            "device" => self.device.clone()?,
            "eid" => joined(self.eids.iter().map(ToString::to_string).collect())?,
            "send_buffer" => self.send_buffer.bytes().to_string(),
            "receive_buffer" => self.receive_buffer.bytes().to_string(),
            "max_conns" => self.max_conns.to_string(),
            "max_links" => self.max_links.to_string(),
            "autocork" => self.autocork.to_string(),
            "testlink_time" => self.testlink_time.map_or(0, |t| t.as_secs()).to_string(),
            "handshakes_max" => self.handshakes_max.to_string(),
            "spare_short" => if self.spare_short { "on" } else { "off" }.into(),
            "reuse_buffers" => if self.reuse_buffers { "on" } else { "off" }.into(),
            "peer_groups" => self.peer_groups.to_string(),
            "memory_max" => self.memory_max.to_string(),
            "peers" => joined(self.peers.iter().map(ToString::to_string).collect())?,
            "congestion" => if self.congestion { "on" } else { "off" }.into(),
            "vectors" => self.vectors?.to_string(),
            "use_vectors" => self.use_vectors.to_string(),
            "split_cqs" => self.split_cqs.to_string(),
            "segments" => self.segments.to_string(),
            "raw_ingress" => if self.raw_ingress { "on" } else { "off" }.into(),
            "poll_us" => self.poll.as_micros().to_string(),
            "stamps" => if self.stamps { "on" } else { "off" }.into(),
            "cgroup" => self
                .cgroup
                .as_ref()
                .map_or_else(|| "none".into(), |path| path.display().to_string()),
            "users" => self.users.to_string(),
            "dir" => self.dir.clone()?,
            _ => return None,
        })
    }

    /// Checks settings against each other.
    ///
    /// # Errors
    ///
    /// Two addresses of different families or the same one twice; vectors that are not there; `users` with `dir`.
    pub fn checked(self) -> Result<Self, BadSetting> {
        if self.users != Users::Own
            && let Some(dir) = &self.dir
        {
            return Err(BadSetting {
                name: "users".into(),
                value: self.users.to_string(),
                why: format!("boards of users are in the usual place: not with dir={dir}"),
            });
        }
        if let [first, second] = self.addresses[..]
            && (first == second || first.is_ipv4() != second.is_ipv4())
        {
            return Err(BadSetting {
                name: "address".into(),
                value: format!("{first},{second}"),
                why: "two different addresses of one family".into(),
            });
        }
        // How many there are is known when they have been counted: see `Engine::start`.
        let count = self.vectors.unwrap_or(VECTORS_MAX);
        for (name, set) in [("use_vectors", self.use_vectors), ("split_cqs", self.split_cqs)] {
            if let Some(vector) = set.absent(count) {
                let (name, value) = (name.into(), set.to_string());
                let last = count.saturating_sub(1);
                let why = format!("there is no vector {vector}: there are 0 to {last}");
                return Err(BadSetting { name, value, why });
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_set() {
        let mut config = Config::default();
        let written = [
            ("address", "10.0.0.1,10.0.0.2"),
            ("device", "mlx5_0"),
            ("eid", "A,B-2"),
            ("send_buffer", "1M"),
            ("receive_buffer", "16K"),
            ("max_conns", "16"),
            ("max_links", "2"),
            ("autocork", "0"),
            ("testlink_time", "0"),
            ("handshakes_max", "1"),
            ("spare_short", "off"),
            ("reuse_buffers", "off"),
            ("peer_groups", "1"),
            ("memory_max", "16M"),
            ("peers", "192.0.2.0/24,2001:db8::1"),
            ("congestion", "off"),
            ("vectors", "3"),
            ("use_vectors", "1-2"),
            ("split_cqs", "0,2"),
            ("segments", "1"),
            ("raw_ingress", "on"),
            ("poll_us", "0"),
            ("stamps", "on"),
            ("cgroup", "/sys/fs/cgroup/x"),
            ("users", "redis,1001"),
            ("dir", "/dev/shm/x"),
        ];
        for (name, value) in written {
            config.set(name, value).unwrap();
        }
        let mut again = Config::default();
        for setting in SETTINGS {
            again.set(setting.name, &config.show(setting.name).unwrap()).unwrap();
        }
        assert_eq!(again, config);
        assert_eq!(written.len(), SETTINGS.len());
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let cases = [
            ("address", "10.0.0.1,x"),
            ("address", "0.0.0.0"),
            ("address", "1.1.1.1,1.1.1.2,1.1.1.3"),
            ("device", ""),
            ("eid", "lower"),
            ("send_buffer", "8K"),
            ("receive_buffer", "8M"),
            ("receive_buffer", "100000"),
            ("max_conns", "15"),
            ("max_links", "3"),
            ("autocork", "much"),
            ("testlink_time", "-1"),
            ("spare_short", "yes"),
            ("reuse_buffers", "1"),
            ("peer_groups", "0"),
            ("memory_max", "15M"),
            ("peers", "192.0.2.0/24,host"),
            ("congestion", "yes"),
            ("vectors", "0"),
            ("use_vectors", "none"),
            ("use_vectors", "1-0"),
            ("split_cqs", "some"),
            ("segments", "65"),
            ("raw_ingress", "1"),
            ("poll_us", "100001"),
            ("stamps", "1"),
            ("cgroup", "here"),
            ("users", "a b"),
            ("no_such", "1"),
        ];
        for (name, value) in cases {
            let mut config = Config::default();
            let bad = config.set(name, value).unwrap_err();
            assert_eq!((bad.name.as_str(), bad.value.as_str()), (name, value));
            assert_eq!(config, Config::default());
        }
    }

    #[test]
    fn vectors_that_are_named_are_there() {
        for (vectors, name, set, good) in [
            ("2", "use_vectors", "1", true),
            ("2", "use_vectors", "1-2", false),
            ("2", "split_cqs", "all", true),
            ("2", "split_cqs", "5", false),
        ] {
            let mut config = Config::default();
            config.set(name, set).unwrap();
            // How many there are is not known yet.
            config = config.checked().unwrap();
            config.set("vectors", vectors).unwrap();
            match config.checked() {
                Ok(_) => assert!(good, "{name} {set}"),
                Err(bad) => {
                    assert!(!good && bad.name == name, "{bad}");
                    assert!(bad.to_string().contains("there are 0 to 1"), "{bad}");
                }
            }
        }
    }

    #[test]
    fn two_addresses_are_of_one_family() {
        for (text, good) in
            [("10.0.0.1,10.0.0.2", true), ("10.0.0.1,10.0.0.1", false), ("10.0.0.1,::1", false)]
        {
            let mut config = Config::default();
            config.set("address", text).unwrap();
            assert_eq!(config.checked().is_ok(), good, "{text}");
        }
    }
}

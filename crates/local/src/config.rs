//! Configuration: loose outside ([`Limits::set`] takes what people write), checked inside.
//!
//! The same names everywhere: `shunt run --spin-us 20`, `SHUNT_SPIN_US=20`, `spin_us = 20` in the
//! configuration file. `shunt run` merges options over environment over file and hands the result
//! to the guest in the environment, so that the library reads one place only.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// A name of the configuration and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name in the configuration file; upper case with `SHUNT_` before it in the environment.
    pub name: &'static str,
    /// Name in the environment.
    pub env: &'static str,
    /// What it does, with unit, range and default.
    pub help: &'static str,
}

/// Each setting there is.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "enabled",
        env: "SHUNT_ENABLED",
        help: "on or off: off leaves every connection on TCP [on]",
    },
    Setting {
        name: "spin_us",
        env: "SHUNT_SPIN_US",
        help: "longest spin before a wait sleeps, microseconds, 0 to 1000; 0 never spins [100]",
    },
    Setting {
        name: "nap_us",
        env: "SHUNT_NAP_US",
        help: "longest sleep by a futex before a wait for one connection sleeps in the kernel, of an event loop a fifth of it, microseconds, 0 to 10000000; 0 never does [10000]",
    },
    Setting {
        name: "ring_min",
        env: "SHUNT_RING_MIN",
        help: "size at which a ring starts, 16K to 4M, a power of two [16K]",
    },
    Setting {
        name: "ring_max",
        env: "SHUNT_RING_MAX",
        help: "size to which a ring may grow, 16K to 4M, a power of two; towards another core 2M at most [4M]",
    },
    Setting {
        name: "memory_max",
        env: "SHUNT_MEMORY_MAX",
        help: "shared memory that one process may own, 1M to 8G, and all of a control group (container) a quarter of its limit; beyond it connections stay on TCP [1G]",
    },
    Setting {
        name: "include",
        env: "SHUNT_INCLUDE",
        help: "only these: port:N, port:N-M, addr:A, addr:A/BITS, program:NAME, end:client, end:server, comma separated [everything]",
    },
    Setting {
        name: "exclude",
        env: "SHUNT_EXCLUDE",
        help: "never these, same form; wins over include [nothing]",
    },
    Setting {
        name: "routed",
        env: "SHUNT_ROUTED",
        help: "networks through which containers of this host are reached by a router or address translation, as services of Kubernetes and published ports: A/BITS, comma separated; for a directory that network namespaces share [nothing]",
    },
    Setting {
        name: "spare_short",
        env: "SHUNT_SPARE_SHORT",
        help: "on or off: leave most connections to TCP where many in a row have been too short of late to gain anything [on]",
    },
    Setting {
        name: "log",
        env: "SHUNT_LOG",
        help: "off, error, info or debug, to standard error or the log file [error]",
    },
    Setting {
        name: "log_file",
        env: "SHUNT_LOG_FILE",
        help: "file to whose end the lines of the library go, for daemons, which close standard error: an absolute path [standard error]",
    },
    Setting {
        name: "dir",
        env: "SHUNT_DIR",
        help: "directory of the board: yours and closed to others, or root's and open to a group whose users share it (mode 3770) [/dev/shm/shunt-UID]",
    },
];

/// How much the library says on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Off,
    /// Only what a person should act on.
    Error,
    /// One line for each connection that attaches or does not, with the reason.
    Info,
    /// Each switch, demotion and process.
    Debug,
}

/// Which connections a rule means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Ports from the first to the second, both included; the listener's port.
    Port(u16, u16),
    /// A network: address and prefix length (IPv4 is mapped, so 0 to 128).
    Addr(Ipv6Addr, u8),
    /// A program by its name (comm or last part of the path).
    Program(String),
    /// Connections of which this process is that end.
    End(End),
}

/// Which end of a connection a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has connected.
    Client,
    /// It has accepted.
    Server,
}

/// A setting that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value:?}: {why}")]
pub struct BadSetting {
    /// Its name.
    pub name: String,
    /// What was written.
    pub value: String,
    /// What would be right.
    pub why: String,
}

/// What the code runs on: all checked, all bounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether to do anything at all.
    pub enabled: bool,
    /// Longest spin.
    pub spin: Duration,
    /// Longest nap: see [`crate::conn::Conn::may_nap`].
    pub nap: Duration,
    /// Power of two of the first ring, in blocks of 16 KiB.
    pub order_min: u32,
    /// Power of two of the largest ring.
    pub order_max: u32,
    /// Shared memory of this process, bytes.
    pub memory_max: usize,
    /// Only these, if not empty.
    pub include: Vec<Rule>,
    /// Never these.
    pub exclude: Vec<Rule>,
    /// Networks that lead to servers on this host through a router or address translation: address and prefix length, as
    /// in [`Rule::Addr`].
    pub routed: Vec<(Ipv6Addr, u8)>,
    /// Leave to TCP what has been too short of late: see [`Reason::Spared`](crate::Reason::Spared).
    pub spare_short: bool,
    /// Verbosity.
    pub log: Level,
    /// Where it goes, if not to standard error.
    pub log_file: Option<String>,
    /// Directory of the board, if not the usual one.
    pub dir: Option<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            enabled: true,
            spin: Duration::from_micros(100),
            nap: Duration::from_millis(10),
            order_min: 0,
            order_max: sys::abi::Loc::ORDER_MAX,
            memory_max: 1 << 30,
            include: Vec::new(),
            exclude: Vec::new(),
            routed: Vec::new(),
            spare_short: true,
            log: Level::Error,
            log_file: None,
            dir: None,
        }
    }
}

fn is_on(text: &str) -> Option<bool> {
    match text {
        "1" | "on" | "true" | "yes" => Some(true),
        "0" | "off" | "false" | "no" => Some(false),
        _ => None,
    }
}

/// Parses `64K`, `1M`, `2G` or a plain number of bytes.
#[must_use]
pub fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let n: usize = digits.trim().parse().ok()?;
    n.checked_mul(1 << shift)
}

fn mapped(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn parse_network(text: &str) -> Option<(Ipv6Addr, u8)> {
    let (addr, bits) = match text.trim().split_once('/') {
        Some((addr, bits)) => (addr, Some(bits.parse::<u8>().ok()?)),
        None => (text.trim(), None),
    };
    let addr: IpAddr = addr.trim_matches(['[', ']']).parse().ok()?;
    let (width, shift) = if addr.is_ipv4() { (32, 96) } else { (128, 0) };
    let bits = bits.unwrap_or(width);
    (bits <= width).then_some((mapped(addr), bits + shift))
}

fn is_in(addr: Ipv6Addr, (net, bits): (Ipv6Addr, u8)) -> bool {
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    (u128::from(addr) ^ u128::from(net)) & mask == 0
}

/// A network as people write it.
fn network_text((net, bits): (Ipv6Addr, u8)) -> String {
    let (addr, bits, all) = match net.to_ipv4_mapped() {
        Some(v4) if bits >= 96 => (IpAddr::V4(v4), bits - 96, 32),
        _ => (IpAddr::V6(net), bits, 128),
    };
    if bits == all { addr.to_string() } else { format!("{addr}/{bits}") }
}

fn parse_rule(text: &str) -> Option<Rule> {
    let (kind, what) = text.trim().split_once(':')?;
    match kind {
        "port" => {
            let (from, to) = what.split_once('-').unwrap_or((what, what));
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            (from <= to).then_some(Rule::Port(from, to))
        }
        "addr" => parse_network(what).map(|(net, bits)| Rule::Addr(net, bits)),
        "program" if !what.is_empty() => Some(Rule::Program(what.to_owned())),
        "end" => match what {
            "client" => Some(Rule::End(End::Client)),
            "server" => Some(Rule::End(End::Server)),
            _ => None,
        },
        _ => None,
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(from, to) if from == to => write!(f, "port:{from}"),
            Self::Port(from, to) => write!(f, "port:{from}-{to}"),
            Self::Addr(net, bits) => write!(f, "addr:{}", network_text((*net, *bits))),
            Self::Program(name) => write!(f, "program:{name}"),
            Self::End(End::Client) => f.write_str("end:client"),
            Self::End(End::Server) => f.write_str("end:server"),
        }
    }
}

impl Rule {
    /// Whether this rule names a program, by what the kernel calls it (`comm`).
    #[must_use]
    pub fn names(&self, program: &str) -> bool {
        let Self::Program(name) = self else { return false };
        // comm is cut to 15 bytes.
        name == program || name.len() > 15 && name.get(..15) == Some(program)
    }

    /// Whether this rule means a connection to `port` between these addresses, of which `program` is this end.
    #[must_use]
    pub fn matches(&self, port: u16, ends: [Ipv6Addr; 2], program: &str, end: End) -> bool {
        match self {
            Self::Port(from, to) => (*from..=*to).contains(&port),
            Self::Addr(net, bits) => ends.iter().any(|addr| is_in(*addr, (*net, *bits))),
            Self::Program(_) => self.names(program),
            Self::End(which) => *which == end,
        }
    }
}

impl Limits {
    /// Applies one setting as people write it.
    ///
    /// # Errors
    ///
    /// [`BadSetting`] says what would be right; nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), BadSetting> {
        let bad =
            |why: &str| BadSetting { name: name.into(), value: value.into(), why: why.into() };
        let order = |value: &str| -> Result<u32, BadSetting> {
            let bytes = parse_size(value).ok_or_else(|| bad("a size such as 64K or 1M"))?;
            let min = sys::abi::BLOCK_BYTES;
            if !bytes.is_power_of_two() || bytes < min || bytes > min << sys::abi::Loc::ORDER_MAX {
                return Err(bad("a power of two from 16K to 4M"));
            }
            Ok(bytes.trailing_zeros() - min.trailing_zeros())
        };
        let rules = |value: &str| -> Result<Vec<Rule>, BadSetting> {
            let words = value.split(',').filter(|w| !w.trim().is_empty());
            words
                .map(|w| {
                    // The kernel knows programs by their last name, so that it would never match.
                    if w.trim().starts_with("program:") && w.contains('/') {
                        return Err(bad("a program is named without its path, as in program:redis-cli"));
                    }
                    parse_rule(w).ok_or_else(|| {
                        bad("port:N, port:N-M, addr:A, addr:A/BITS, program:NAME, end:client or end:server, comma separated")
                    })
                })
                .collect()
        };
        match name {
            "enabled" => self.enabled = is_on(value).ok_or_else(|| bad("on or off"))?,
            "spare_short" => self.spare_short = is_on(value).ok_or_else(|| bad("on or off"))?,
            "spin_us" => {
                let us = value.parse().ok().filter(|us| *us <= 1000);
                self.spin =
                    Duration::from_micros(us.ok_or_else(|| bad("microseconds, 0 to 1000"))?);
            }
            "nap_us" => {
                let us = value.parse().ok().filter(|us| *us <= 10_000_000);
                self.nap =
                    Duration::from_micros(us.ok_or_else(|| bad("microseconds, 0 to 10000000"))?);
            }
            "ring_min" => self.order_min = order(value)?,
            "ring_max" => self.order_max = order(value)?,
            "memory_max" => {
                let bytes = parse_size(value).filter(|n| (1 << 20..=8 << 30).contains(n));
                self.memory_max = bytes.ok_or_else(|| bad("a size from 1M to 8G"))?;
            }
            "include" => self.include = rules(value)?,
            "exclude" => self.exclude = rules(value)?,
            "routed" => {
                let words = value.split(',').filter(|w| !w.trim().is_empty());
                let all: Option<Vec<_>> = words.map(parse_network).collect();
                self.routed =
                    all.ok_or_else(|| bad("addresses or networks (A/BITS), comma separated"))?;
            }
            "log" => {
                self.log = match value {
                    "off" => Level::Off,
                    "error" => Level::Error,
                    "info" => Level::Info,
                    "debug" => Level::Debug,
                    _ => return Err(bad("off, error, info or debug")),
                }
            }
            "dir" | "log_file" => {
                if !value.starts_with('/') {
                    return Err(bad("an absolute path"));
                }
                let to = if name == "dir" { &mut self.dir } else { &mut self.log_file };
                *to = Some(value.to_owned());
            }
            _ => return Err(bad("no such setting; see `shunt run --help`")),
        }
        Ok(())
    }

    /// The setting of that name as [`Self::set`] would take it; `None`: it is not set, or there is none.
    #[must_use]
    pub fn show(&self, name: &str) -> Option<String> {
        let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
        let joined = |words: Vec<String>| (!words.is_empty()).then(|| words.join(","));
        let rules = |rules: &[Rule]| joined(rules.iter().map(Rule::to_string).collect());
        // As people would have it.
        let size = |bytes: usize| match bytes.trailing_zeros() {
            0..10 => bytes.to_string(),
            10..20 => format!("{}K", bytes >> 10),
            20..30 => format!("{}M", bytes >> 20),
            _ => format!("{}G", bytes >> 30),
        };
        Some(match name {
            "enabled" => switch(self.enabled),
            "spin_us" => self.spin.as_micros().to_string(),
            "nap_us" => self.nap.as_micros().to_string(),
            "ring_min" => size(sys::abi::BLOCK_BYTES << self.order_min),
            "ring_max" => size(sys::abi::BLOCK_BYTES << self.order_max),
            "memory_max" => size(self.memory_max),
            "include" => rules(&self.include)?,
            "exclude" => rules(&self.exclude)?,
            "routed" => joined(self.routed.iter().map(|net| network_text(*net)).collect())?,
            "spare_short" => switch(self.spare_short),
            "log" => match self.log {
                Level::Off => "off",
                Level::Error => "error",
                Level::Info => "info",
                Level::Debug => "debug",
            }
            .into(),
            "log_file" => self.log_file.clone()?,
            "dir" => self.dir.clone()?,
            _ => return None,
        })
    }

    /// Checks settings against each other.
    ///
    /// # Errors
    ///
    /// When a ring would start larger than it may grow.
    pub fn checked(self) -> Result<Self, BadSetting> {
        if self.order_min > self.order_max {
            return Err(BadSetting {
                name: "ring_min".into(),
                value: format!("{}K", 16 << self.order_min),
                why: format!("at most ring_max, {}K", 16 << self.order_max),
            });
        }
        Ok(self)
    }

    /// Whether a server of this address is reached through a router, and may see another address of its own.
    #[must_use]
    pub fn is_routed(&self, addr: Ipv6Addr) -> bool {
        self.routed.iter().any(|network| is_in(addr, *network))
    }

    /// Whether [`Self::allows`] looks at the addresses.
    #[must_use]
    pub fn asks_for_addresses(&self) -> bool {
        self.include.iter().chain(&self.exclude).any(|rule| matches!(rule, Rule::Addr(..)))
    }

    /// Whether a connection to `port` between these addresses, of which `program` is this end, may leave TCP.
    #[must_use]
    pub fn allows(&self, port: u16, ends: [Ipv6Addr; 2], program: &str, end: End) -> bool {
        if self.include.is_empty() && self.exclude.is_empty() {
            return self.enabled;
        }
        let any = |rules: &[Rule]| rules.iter().any(|r| r.matches(port, ends, program, end));
        self.enabled && (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }
}

#[cfg(test)]
mod tests;

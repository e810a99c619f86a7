//! Settings of a file server by name: loose outside ([`Config::set`] takes what people write), checked inside.
//!
//! One name everywhere: `shunt serve --opens-max 1000`, `opens_max = 1000` in the `[serve]` section of the
//! configuration file.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use local::config::parse_size;
use smb::session::Dialect;

use super::super::runtime::Driver;
pub use local::config::BadSetting;

use super::{Config, Demand, UnknownDemand};

/// A setting and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name, everywhere.
    pub name: &'static str,
    /// What stands for the value in a help text.
    pub value: &'static str,
    /// What it does, with unit, range and default.
    pub help: &'static str,
}

const fn setting(name: &'static str, value: &'static str, help: &'static str) -> Setting {
    Setting { name, value, help }
}

/// Each setting there is, but for shares and users that are written out.
pub const SETTINGS: &[Setting] = &[
    setting(
        "listen",
        "ADDRESS[:PORT]",
        "where clients connect to; may be given more than once [0.0.0.0:445 and [::]:445]",
    ),
    setting(
        "users",
        "FILE",
        "file of users, as `shunt serve user` writes it [~/.config/shunt/users, for root /etc/shunt/users, if \
         it is there]",
    ),
    setting(
        "guest",
        "on|off",
        "let everybody in whom nobody knows, as guest, without signing and encryption [off]",
    ),
    setting(
        "anonymous",
        "on|off",
        "let those in who give no name, to ask which shares there are and for nothing else; guest lets them in as well, \
         and into the shares [off]",
    ),
    setting(
        "keytab",
        "FILE",
        "let users in by Kerberos, with the keys of cifs/HOST@REALM in this file; none does without [none]",
    ),
    setting(
        "realm_users",
        "on|off",
        "whoever Kerberos says is a user of this host gets in, and not those alone whom the file of users \
         knows [off]",
    ),
    setting(
        "unix_users",
        "on|off",
        "touch files as the Unix user of each session, of the number in the file of users or else of the same name; \
         wants root [off]",
    ),
    setting(
        "name",
        "NAME",
        "this server's name, as clients see it [the host's, without its domain]",
    ),
    setting(
        "dialects",
        "DIALECT[,DIALECT]...",
        "dialects that are spoken, of 2.0.2, 2.1, 3.0, 3.0.2 and 3.1.1; two with a hyphen mean all between \
         [2.1-3.1.1]",
    ),
    setting(
        "signing",
        "off|offered|required",
        "whether messages are signed: when the client wishes, which off says as well since no SMB2 server may refuse it, or \
         always; required keeps guests out [offered]",
    ),
    setting(
        "encryption",
        "off|offered|required",
        "whether they are encrypted; required keeps guests and clients before SMB 3.0 out [offered]",
    ),
    setting("multichannel", "on|off", "more than one connection for a session [on]"),
    setting(
        "interfaces",
        "ADDRESS[@SPEED][+rss][,...]",
        "addresses that clients are told of for more channels, with bits per second as in 25G, and whether \
         more than one connection pays (+rss) [those of all interfaces]",
    ),
    setting("leases", "on|off", "clients may cache files: oplocks and leases [on]"),
    setting("directory_leases", "on|off", "clients may cache what is in directories [on]"),
    setting("audit", "on|off", "a line of the log for each logon, and for each that failed [on]"),
    setting("vectors", "N", "loops, each a thread, 1 to 64 [one a CPU]"),
    setting(
        "pin",
        "CPU|INTERFACE[,...]",
        "CPUs that the loops stay on, in turn; 2-5 means all between, eth0 those of the NUMA node of that interface, none \
         lets the scheduler decide [none]",
    ),
    setting(
        "uring",
        "auto|on|off",
        "wait by io_uring: if the kernel lets us, or not start, or by epoll and threads [auto]",
    ),
    setting(
        "send",
        "auto|vmsplice|splice|map|copy",
        "how file data gets to the network: what measured best for its size and the load, through a pipe \
         that is filled from a mapping or from the file, from a mapping, or through a buffer [auto]",
    ),
    setting(
        "control",
        "PATH",
        "socket for `shunt stat smb` and `shunt serve stop|reload`; none does without \
         [serve-PORT of the user's directory for such things]",
    ),
    setting(
        "metrics",
        "ADDRESS:PORT",
        "serve metrics for Prometheus: http://ADDRESS/metrics; a port alone is on 127.0.0.1, none does \
         without [none]",
    ),
    setting(
        "connections_max",
        "N",
        "TCP connections; those beyond are closed at once, 1 to 1048576 [4096]",
    ),
    setting("sessions_max", "N", "sessions; logons beyond are refused, 1 to 1048576 [16384]"),
    setting("channels_max", "N", "connections of a session, 1 to 64 [32]"),
    setting("trees_max", "N", "shares that a session is connected to at a time, 1 to 65536 [256]"),
    setting("opens_max", "N", "files that a session has open at a time, 1 to 1048576 [65536]"),
    setting(
        "credits_max",
        "N",
        "requests that a connection may have under way, 64 to 32768 [8192]",
    ),
    setting(
        "waiting_max",
        "N",
        "requests of a connection that wait for locks and changes, 1 to 65536 [4096]",
    ),
    setting("payload_max", "SIZE", "largest READ and WRITE, 64K to 8M, a multiple of 64K [8M]"),
    setting(
        "backlog_max",
        "SIZE",
        "answers that wait for one connection to take them, before it is not read from any more, 1M to 1G [32M]",
    ),
    setting(
        "memory_max",
        "SIZE",
        "answers that wait in memory, and requests for which a loop has no buffer, for all connections together; the more \
         of it is taken, the less each connection, and each address, may have waiting before it is not read from any \
         more, 16M to 1024G [1G]",
    ),
    setting("setup_time", "SECONDS", "how long a connection may take to log on, 1 to 3600 [60]"),
    setting(
        "durable_time",
        "SECONDS",
        "how long an open waits for its client to come back, at most, 0 to 3600 [300]",
    ),
    setting(
        "session_time",
        "SECONDS",
        "how long a session lasts until its user must be authenticated again, 60 to 604800; 0: as long as what it \
         was authenticated with [0]",
    ),
];

/// An address for more channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Where clients may connect to.
    pub address: IpAddr,
    /// Its speed in bits per second; `None`: what its interface says.
    pub speed: Option<u64>,
    /// Whether it has more than one receive queue, so that more than one connection pays.
    pub rss: bool,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if let Some(speed) = self.speed {
            write!(f, "@{speed}")?;
        }
        f.write_str(if self.rss { "+rss" } else { "" })
    }
}

/// Most addresses that are listened on, or told.
const ADDRESSES_MAX: usize = 64;
/// The port of SMB.
const PORT: u16 = 445;
/// CPUs that the kernel knows of, at most.
const CPUS_MAX: usize = 8192;

/// On or off, in one of the ways that people write it.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" | "yes" | "true" | "1" => Ok(true),
        "off" | "no" | "false" | "0" => Ok(false),
        _ => Err("on or off".into()),
    }
}

/// How long a session lasts; 0: as long as may be.
fn session_time(text: &str) -> Result<Option<Duration>, String> {
    match text.trim() {
        "0" => Ok(None),
        text => match number(text, 60, 604_800) {
            Ok(seconds) => Ok(Some(Duration::from_secs(seconds))),
            Err(wanted) => Err(format!("{wanted}, or 0")),
        },
    }
}

fn number<T: TryFrom<u64>>(text: &str, from: u64, to: u64) -> Result<T, String> {
    let n = text.trim().parse().ok().filter(|n| (from..=to).contains(n));
    n.and_then(|n| T::try_from(n).ok()).ok_or_else(|| format!("a number, {from} to {to}"))
}

fn size(text: &str, from: usize, to: usize, words: &str) -> Result<usize, String> {
    parse_size(text).filter(|n| (from..=to).contains(n)).ok_or_else(|| words.to_owned())
}

fn list<T>(text: &str, each: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let all: Vec<T> = words.map(each).collect::<Result<_, _>>()?;
    match all.len() {
        0 => Err("something is missing".into()),
        n if n > ADDRESSES_MAX => Err(format!("at most {ADDRESSES_MAX}")),
        _ => Ok(all),
    }
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok((address, PORT).into());
    }
    let words = "an address, with a port or without: 0.0.0.0, 127.0.0.1:1445, [::]:445";
    text.parse().map_err(|_| format!("{text} is not {words}"))
}

fn metrics(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| "an address and a port, such as 127.0.0.1:9480 or [::1]:9480".into())
}

fn demand(text: &str) -> Result<Demand, String> {
    text.parse().map_err(|unknown: UnknownDemand| unknown.to_string())
}

fn dialects(text: &str) -> Result<Vec<Dialect>, String> {
    let one = |word: &str| word.parse::<Dialect>().map_err(|e| format!("{word}: {e}"));
    let ranges = list(text, |word| match word.split_once('-') {
        Some((from, to)) => Ok((one(from)?, one(to)?)),
        None => one(word).map(|dialect| (dialect, dialect)),
    })?;
    let all = Dialect::ALL.into_iter();
    let all: Vec<Dialect> = all
        .filter(|dialect| ranges.iter().any(|(from, to)| (from..=to).contains(&dialect)))
        .collect();
    if all.is_empty() { Err("the older one first".into()) } else { Ok(all) }
}

fn cpus(text: &str) -> Result<Vec<usize>, String> {
    let may = rustix::thread::sched_getaffinity(None).ok();
    let is_ours = |cpu: usize| {
        may.as_ref().is_none_or(|set| cpu < rustix::thread::CpuSet::MAX_CPU && set.is_set(cpu))
    };
    cpus_of(text, Path::new("/sys/class/net"), is_ours)
}

/// CPUs by number, and those next to interfaces, of which `interfaces` has a directory each, as far as `is_ours`
/// says that the process may run there.
fn cpus_of(
    text: &str,
    interfaces: &Path,
    is_ours: impl Fn(usize) -> bool,
) -> Result<Vec<usize>, String> {
    if text == "none" {
        return Ok(Vec::new());
    }
    let one = |word: &str| number::<usize>(word, 0, CPUS_MAX as u64 - 1);
    let some = list(text, |word| {
        if !word.starts_with(|first: char| first.is_ascii_digit()) {
            return next_to(word, interfaces, &is_ours);
        }
        match word.split_once('-') {
            Some((from, to)) => Ok((one(from)?..=one(to)?).collect()),
            None => one(word).map(|cpu| vec![cpu]),
        }
    })?;
    let all = some.concat();
    if all.is_empty() { Err("the smaller number first".into()) } else { Ok(all) }
}

/// The CPUs from which the device of an interface is reached in the shortest way: those of its NUMA node.
fn next_to(
    name: &str,
    interfaces: &Path,
    is_ours: impl Fn(usize) -> bool,
) -> Result<Vec<usize>, String> {
    let is_name = !name.is_empty() && !name.starts_with('.') && !name.contains('/');
    let directory = interfaces.join(name);
    if !is_name || !directory.exists() {
        return Err(format!("no CPU and no interface: {name}"));
    }
    let near = cpus_near(&directory)
        .ok_or_else(|| format!("{name}: the kernel does not say which CPUs are nearest to it"))?;
    let ours: Vec<usize> = near.into_iter().filter(|cpu| is_ours(*cpu)).collect();
    if ours.is_empty() {
        return Err(format!("{name}: this process may run on none of the CPUs next to it"));
    }
    Ok(ours)
}

/// What the kernel says of the device of an interface, or of the bus that it is on (a virtio device lies behind one of
/// PCI); of a bond, a bridge or a VLAN, of those below it.
fn cpus_near(interface: &Path) -> Option<Vec<usize>> {
    if let Ok(device) = interface.join("device").canonicalize() {
        let said = device.ancestors().map(|at| std::fs::read_to_string(at.join("local_cpulist")));
        return numbers(said.flatten().next()?.trim());
    }
    let below = std::fs::read_dir(interface).ok()?.flatten();
    let mut below: Vec<_> = below
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"lower_"))
        .filter_map(|entry| entry.path().join("device").canonicalize().ok())
        .collect();
    below.sort();
    let mut all = Vec::new();
    for device in below {
        let mut said =
            device.ancestors().map(|at| std::fs::read_to_string(at.join("local_cpulist")));
        all.extend(numbers(said.find_map(Result::ok)?.trim())?);
    }
    all.sort_unstable();
    all.dedup();
    (!all.is_empty()).then_some(all)
}

/// Numbers and ranges as the kernel writes them: `0-3,8-11`.
fn numbers(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for word in text.split(',') {
        let (from, to) = word.split_once('-').unwrap_or((word, word));
        let (from, to) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        if from > to || to >= CPUS_MAX {
            return None;
        }
        all.extend(from..=to);
    }
    Some(all)
}

/// Bits per second: `25G`, `100M`, by thousands.
fn speed(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1000),
        b'm' | b'M' => (&text[..text.len() - 1], 1_000_000),
        b'g' | b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|speed| *speed > 0)
}

fn interface(text: &str) -> Result<Interface, String> {
    let (rest, rss) = match text.strip_suffix("+rss") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (address, written) = match rest.split_once('@') {
        Some((address, written)) => (address, Some(written)),
        None => (rest, None),
    };
    let words = "ADDRESS, ADDRESS@SPEED or ADDRESS@SPEED+rss: 192.0.2.1@25G+rss";
    let address: IpAddr =
        address.parse().map_err(|_| format!("{address} is no address; say {words}"))?;
    if address.is_unspecified() || address.is_multicast() {
        return Err(format!("{address} is not the address of an interface"));
    }
    let speed = match written {
        Some(written) => Some(speed(written).ok_or_else(|| format!("{written}: say {words}"))?),
        None => None,
    };
    Ok(Interface { address, speed, rss })
}

/// A name that clients can show: NetBIOS allows that much in its fifteen letters.
fn name(text: &str) -> Result<String, String> {
    let fit = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.is_empty() || text.len() > 63 || !text.chars().all(fit) {
        return Err("1 to 63 of a to z, 0 to 9, - and _".into());
    }
    Ok(text.to_owned())
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

    fn apply(&mut self, what: &str, value: &str) -> Result<(), String> {
        let limits = &mut self.limits;
        match what {
            "listen" => self.listen = list(value, listen)?,
            "users" if value.is_empty() => return Err("the path of a file".into()),
            "users" => self.users_file = Some(value.into()),
            "guest" => self.guest = switch(value)?,
            "anonymous" => self.anonymous = switch(value)?,
            "keytab" if value == "none" => self.keytab = None,
            "keytab" if !value.starts_with('/') => return Err("an absolute path, or none".into()),
            "keytab" => self.keytab = Some(PathBuf::from(value)),
            "realm_users" => self.realm_users = switch(value)?,
            "unix_users" => self.unix_users = switch(value)?,
            "name" => self.name = name(value)?,
            "dialects" => self.dialects = dialects(value)?,
            "signing" => self.signing = demand(value)?,
            "encryption" => self.encryption = demand(value)?,
            "multichannel" => self.multichannel = switch(value)?,
            "interfaces" => self.interfaces = list(value, interface)?,
            "leases" => self.leases = switch(value)?,
            "directory_leases" => self.directory_leases = switch(value)?,
            "audit" => self.audit = switch(value)?,
            "vectors" => self.vectors = number(value, 1, 64)?,
            "pin" => self.pin = cpus(value)?,
            "uring" => {
                self.uring = match value {
                    "auto" => Driver::Auto,
                    "on" => Driver::Uring,
                    "off" => Driver::Epoll,
                    _ => return Err("auto, on or off".into()),
                }
            }
            "send" => {
                self.sending = value.parse().map_err(|_| "auto, vmsplice, splice, map or copy")?;
            }
            "control" if value == "none" => self.control = None,
            "control" if !value.starts_with('/') => return Err("an absolute path, or none".into()),
            "control" => self.control = Some(PathBuf::from(value)),
            "metrics" if value == "none" => self.metrics = None,
            "metrics" => self.metrics = Some(metrics(value)?),
            "connections_max" => limits.connections = number(value, 1, 1 << 20)?,
            "sessions_max" => limits.sessions = number(value, 1, 1 << 20)?,
            "channels_max" => limits.channels = number(value, 1, 64)?,
            "trees_max" => limits.trees = number(value, 1, 65_536)?,
            "opens_max" => limits.opens = number(value, 1, 1 << 20)?,
            "credits_max" => limits.credits = number(value, 64, 32_768)?,
            "waiting_max" => limits.waiting = number(value, 1, 65_536)?,
            "payload_max" => {
                let words = "a size from 64K to 8M, a multiple of 64K";
                let bytes = size(value, 64 << 10, 8 << 20, words)?;
                if bytes % (64 << 10) != 0 {
                    return Err(words.into());
                }
                limits.payload = u32::try_from(bytes).map_err(|_| words)?;
            }
            "backlog_max" => {
                limits.backlog = size(value, 1 << 20, 1 << 30, "a size from 1M to 1G")?;
            }
            "memory_max" => {
                limits.memory = size(value, 16 << 20, 1 << 40, "a size from 16M to 1024G")?;
            }
            "setup_time" => limits.set_up = Duration::from_secs(number(value, 1, 3600)?),
            "durable_time" => limits.durable = Duration::from_secs(number(value, 0, 3600)?),
            "session_time" => limits.session = session_time(value)?,
            _ => return Err("no such setting; see `shunt serve --help`".into()),
        }
        Ok(())
    }

    /// The setting of that name as [`Self::set`] would take it; `None`: it is not set, or there is none.
    #[must_use]
    pub fn show(&self, name: &str) -> Option<String> {
        fn joined<T: ToString>(all: &[T]) -> Option<String> {
            let words: Vec<String> = all.iter().map(ToString::to_string).collect();
            (!words.is_empty()).then(|| words.join(","))
        }
        let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let limits = &self.limits;
        Some(match name {
            "listen" => joined(&self.listen)?,
            "users" => path(&self.users_file)?,
            "guest" => switch(self.guest),
            "anonymous" => switch(self.anonymous),
            "keytab" => or_none(path(&self.keytab)),
            "realm_users" => switch(self.realm_users),
            "unix_users" => switch(self.unix_users),
            "name" => self.name.clone(),
            "dialects" => joined(&self.dialects)?,
            "signing" => self.signing.to_string(),
            "encryption" => self.encryption.to_string(),
            "multichannel" => switch(self.multichannel),
            "interfaces" => joined(&self.interfaces)?,
            "leases" => switch(self.leases),
            "directory_leases" => switch(self.directory_leases),
            "audit" => switch(self.audit),
            "vectors" => self.vectors.to_string(),
            "pin" => or_none(joined(&self.pin)),
            "uring" => match self.uring {
                Driver::Auto => "auto",
                Driver::Uring => "on",
                Driver::Epoll => "off",
            }
            .to_owned(),
            "send" => self.sending.to_string(),
            "control" => path(&self.control)?,
            "metrics" => or_none(self.metrics.map(|address| address.to_string())),
            "connections_max" => limits.connections.to_string(),
            "sessions_max" => limits.sessions.to_string(),
            "channels_max" => limits.channels.to_string(),
            "trees_max" => limits.trees.to_string(),
            "opens_max" => limits.opens.to_string(),
            "credits_max" => limits.credits.to_string(),
            "waiting_max" => limits.waiting.to_string(),
            "payload_max" => limits.payload.to_string(),
            "backlog_max" => limits.backlog.to_string(),
            "memory_max" => limits.memory.to_string(),
            "setup_time" => limits.set_up.as_secs().to_string(),
            "durable_time" => limits.durable.as_secs().to_string(),
            "session_time" => limits.session.map_or(0, |time| time.as_secs()).to_string(),
            _ => return None,
        })
    }

    /// Checks settings against each other.
    ///
    /// # Errors
    ///
    /// Two shares of one name, a place to listen twice, users of a realm without Kerberos, or messages that nobody
    /// could send.
    pub fn checked(self) -> Result<Self, BadSetting> {
        let bad = |name: &str, value: String, why: &str| BadSetting {
            name: name.into(),
            value,
            why: why.into(),
        };
        for (at, share) in self.shares.iter().enumerate() {
            if self.shares[..at].iter().any(|other| smb::name::same(&other.name, &share.name)) {
                let why = "there are two shares of this name (case does not count)";
                return Err(bad("share", share.name.clone(), why));
            }
        }
        for (at, address) in self.listen.iter().enumerate() {
            if address.port() != 0 && self.listen[..at].contains(address) {
                return Err(bad("listen", address.to_string(), "it is there twice"));
            }
        }
        if self.realm_users && self.keytab.is_none() {
            let why = "they come in by Kerberos, which needs a keytab";
            return Err(bad("realm_users", "on".into(), why));
        }
        if self.encryption == Demand::Required && !self.dialects.iter().any(|d| d.is_smb3()) {
            let dialects: Vec<_> = self.dialects.iter().map(ToString::to_string).collect();
            return Err(bad(
                "dialects",
                dialects.join(","),
                "none of them can encrypt: 3.0 and later can",
            ));
        }
        Ok(self)
    }

    /// The usual places to listen, at another port.
    #[must_use]
    pub fn everywhere(port: u16) -> Vec<SocketAddr> {
        vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShareConfig;
    use super::*;

    /// A value that each setting takes, and that is not its default.
    const WRITTEN: &[(&str, &str)] = &[
        ("listen", "127.0.0.1:1445,[::1]:1445"),
        ("users", "/etc/x"),
        ("guest", "on"),
        ("anonymous", "on"),
        ("keytab", "/etc/krb5.keytab"),
        ("realm_users", "on"),
        ("unix_users", "on"),
        ("name", "FILES"),
        ("dialects", "3.0-3.1.1"),
        ("signing", "required"),
        ("encryption", "off"),
        ("multichannel", "off"),
        ("interfaces", "10.0.0.1@25G+rss,fe80::1"),
        ("leases", "off"),
        ("directory_leases", "off"),
        ("audit", "off"),
        ("vectors", "64"),
        ("pin", "0,2-3"),
        ("uring", "on"),
        ("send", "copy"),
        ("control", "/run/x"),
        ("metrics", "9100"),
        ("connections_max", "1"),
        ("sessions_max", "2"),
        ("channels_max", "64"),
        ("trees_max", "3"),
        ("opens_max", "4"),
        ("credits_max", "64"),
        ("waiting_max", "5"),
        ("payload_max", "1M"),
        ("backlog_max", "1M"),
        ("memory_max", "16M"),
        ("setup_time", "7"),
        ("durable_time", "0"),
        ("session_time", "60"),
    ];

    #[test]
    fn loops_stay_next_to_an_interface_whose_place_is_known() {
        let net = tempfile::tempdir().unwrap();
        for (name, said) in
            [("eth0", "0-1,8-9\n"), ("ib0", "4\n"), ("odd0", "\n"), ("evil0", "eth0")]
        {
            let device = net.path().join(name).join("device");
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("local_cpulist"), said).unwrap();
        }
        std::fs::create_dir(net.path().join("lo")).unwrap();
        // Behind another bus, and a bond of two.
        let bus = net.path().join("bus");
        std::fs::create_dir_all(bus.join("virtio2")).unwrap();
        std::fs::write(bus.join("local_cpulist"), "2-3\n").unwrap();
        std::fs::create_dir(net.path().join("vio0")).unwrap();
        std::os::unix::fs::symlink(bus.join("virtio2"), net.path().join("vio0/device")).unwrap();
        std::fs::create_dir(net.path().join("bond0")).unwrap();
        for lower in ["vio0", "eth0"] {
            let link = net.path().join("bond0").join(format!("lower_{lower}"));
            std::os::unix::fs::symlink(net.path().join(lower), link).unwrap();
        }
        // A node of many CPUs, every second one.
        let many: Vec<String> = (0..200).map(|cpu| (cpu * 2).to_string()).collect();
        let device = net.path().join("wide0/device");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("local_cpulist"), many.join(",")).unwrap();
        let all = |text: &str| cpus_of(text, net.path(), |_| true);
        assert_eq!(all("vio0").unwrap(), [2, 3]);
        assert_eq!(all("bond0").unwrap(), [0, 1, 2, 3, 8, 9]);
        assert_eq!(all("wide0").unwrap().len(), 200);
        // Some of them are not ours to run on.
        assert_eq!(cpus_of("eth0", net.path(), |cpu| cpu > 0 && cpu < 9).unwrap(), [1, 8]);
        let refused = cpus_of("eth0", net.path(), |cpu| cpu > 20).unwrap_err();
        assert!(refused.contains("none of the CPUs"), "{refused}");
        assert_eq!(all("eth0").unwrap(), [0, 1, 8, 9]);
        assert_eq!(all("ib0,eth0,3").unwrap(), [4, 0, 1, 8, 9, 3]);
        assert_eq!(all("0-1").unwrap(), [0, 1]);
        for wrong in ["lo", "eth1", "odd0", "evil0", "eth0/device", "..", "eth0,lo", "-1"] {
            assert!(all(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_setting_can_be_set_and_has_an_effect() {
        for (name, value) in WRITTEN {
            // As many as there are CPUs is the default.
            let mut config = Config { vectors: 1, ..Config::default() };
            let before = config.clone();
            config.set(name, value).unwrap();
            assert_ne!(config, before, "{name} has no effect");
        }
        let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        let written: Vec<&str> = WRITTEN.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, written);
    }

    #[test]
    fn what_is_shown_can_be_set() {
        let mut config = Config::default();
        for (name, value) in WRITTEN {
            config.set(name, value).unwrap();
        }
        for wanted in [config, Config::default()] {
            let mut again = Config { vectors: 3, ..Config::default() };
            for setting in SETTINGS {
                match wanted.show(setting.name) {
                    Some(value) => again.set(setting.name, &value).unwrap(),
                    None => assert!(["users", "interfaces", "control"].contains(&setting.name)),
                }
            }
            assert_eq!(again, wanted);
        }
    }

    #[test]
    fn values_mean_what_they_say() {
        let mut config = Config::default();
        for (name, value) in WRITTEN {
            config.set(name, value).unwrap();
        }
        assert_eq!(config.dialects, [Dialect::Smb300, Dialect::Smb302, Dialect::Smb311]);
        assert_eq!(config.pin, [0, 2, 3]);
        assert_eq!(config.metrics, Some("127.0.0.1:9100".parse().unwrap()));
        let first = Interface {
            address: "10.0.0.1".parse().unwrap(),
            speed: Some(25_000_000_000),
            rss: true,
        };
        let second = Interface { address: "fe80::1".parse().unwrap(), speed: None, rss: false };
        assert_eq!(config.interfaces, [first, second]);
        config.set("listen", "192.0.2.1").unwrap();
        assert_eq!(config.listen, ["192.0.2.1:445".parse().unwrap()]);
        config.set("pin", "none").unwrap();
        config.set("control", "none").unwrap();
        config.set("metrics", "none").unwrap();
        config.set("keytab", "none").unwrap();
        assert_eq!(config.keytab, None);
        assert!(config.pin.is_empty() && config.control.is_none() && config.metrics.is_none());
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let cases = [
            ("listen", ""),
            ("listen", "here:445"),
            ("listen", "127.0.0.1:70000"),
            ("users", ""),
            ("guest", "maybe"),
            ("keytab", "krb5.keytab"),
            ("realm_users", ""),
            ("unix_users", "perhaps"),
            ("name", ""),
            ("name", "a b"),
            ("dialects", "1.0"),
            ("dialects", "3.1.1-2.1"),
            ("signing", "always"),
            ("encryption", ""),
            ("interfaces", "0.0.0.0"),
            ("interfaces", "10.0.0.1@fast"),
            ("vectors", "0"),
            ("vectors", "65"),
            ("pin", "3-2"),
            ("pin", "8192"),
            ("pin", "no-such-interface"),
            ("pin", "../lo"),
            ("uring", "perhaps"),
            ("send", "pigeon"),
            ("control", "here"),
            ("metrics", "eth0"),
            ("channels_max", "65"),
            ("credits_max", "63"),
            ("credits_max", "32769"),
            ("payload_max", "16M"),
            ("payload_max", "100000"),
            ("backlog_max", "1K"),
            ("memory_max", "1M"),
            ("setup_time", "0"),
            ("durable_time", "3601"),
            ("session_time", "59"),
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
    fn settings_are_checked_against_each_other() {
        let share = |name: &str| ShareConfig::new(name, "/");
        let two = Config { shares: vec![share("a"), share("A")], ..Config::default() };
        assert!(two.checked().unwrap_err().to_string().contains("two shares"));
        let mut twice = Config::default();
        twice.set("listen", "127.0.0.1:1,127.0.0.1:1").unwrap();
        assert!(twice.checked().unwrap_err().to_string().contains("twice"));
        let mut any = Config::default();
        any.set("listen", "127.0.0.1:0,127.0.0.1:0").unwrap();
        assert!(any.checked().is_ok(), "two ports that are chosen are two");
        let realm = Config { realm_users: true, ..Config::default() };
        assert!(realm.checked().unwrap_err().to_string().contains("keytab"));
        let mut plain = Config { encryption: Demand::Required, ..Config::default() };
        plain.set("dialects", "2.1").unwrap();
        assert!(plain.checked().unwrap_err().to_string().contains("can encrypt"));
        assert!(Config::default().checked().is_ok());
    }
}

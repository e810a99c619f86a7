//! Two hosts on one machine: network namespaces with a cable between them, each with a control group of
//! its own, for programs that treat the sockets of a group in their own way.
//!
//! Needs root. Everything is taken away again when the value goes.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// One of two hosts.
#[derive(Debug)]
pub struct Host {
    namespace: String,
    group: Option<Group>,
    address: Ipv4Addr,
    address_v6: Ipv6Addr,
    second: Option<Ipv4Addr>,
}

#[derive(Debug)]
struct Group {
    /// From the top of the hierarchy.
    name: PathBuf,
    /// Where it is in the file system.
    at: PathBuf,
}

/// Two hosts and what is between them.
#[derive(Debug)]
pub struct Hosts {
    /// Where servers run.
    pub server: Host,
    /// Where clients run.
    pub client: Host,
    /// The namespace in the middle of the cable, if it was cut for a box to be put there.
    middle: Option<String>,
}

/// Name of the interface of each host, and of both ends in the middle.
pub const DEVICE: &str = "v0";
/// Name of the second interface of each host, where there is one.
pub const SECOND: &str = "v1";
/// The middle's interface towards the server.
pub const TO_SERVER: &str = "m0";
/// The middle's interface towards the client.
pub const TO_CLIENT: &str = "m1";

impl Host {
    /// Its address on the cable.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its address of IPv6 on the cable.
    #[must_use]
    pub fn address_v6(&self) -> Ipv6Addr {
        self.address_v6
    }

    /// Its addresses: one for each cable.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        [self.address].into_iter().chain(self.second)
    }

    /// Its network namespace, as `ip netns` knows it.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its control group, as a path from the top of the hierarchy of version 2, where there is one.
    #[must_use]
    pub fn group(&self) -> Option<&Path> {
        self.group.as_ref().map(|group| group.name.as_path())
    }

    /// What to type before a program so that it runs on this host. The process becomes the program.
    #[must_use]
    pub fn prefix(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        if let Some(group) = &self.group {
            // Before the namespace is entered, where the hierarchy may not be seen.
            let script = "echo $$ > \"$0\" && exec \"$@\"";
            words.extend(["sh", "-c", script].map(OsString::from));
            words.push(group.at.join("cgroup.procs").into());
        }
        words.extend(["ip", "netns", "exec", &self.namespace].map(OsString::from));
        words
    }

    /// A command that runs `program` on this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let words = self.prefix();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    /// Pulls the cable out of this host's [`DEVICE`], or plugs it in again; or out of [`SECOND`], whose way to
    /// the other host is forgotten then.
    ///
    /// # Errors
    ///
    /// When `ip` fails.
    pub fn plug(&self, device: &str, up: bool) -> anyhow::Result<()> {
        let state = if up { "up" } else { "down" };
        ip(&format!("-n {} link set {device} {state}", self.namespace))
    }

    /// From now on knows for good which card of [`DEVICE`] another host has: a connection that begins while that one's cable
    /// is out waits for it, and is not refused for want of an answer to ARP after three seconds.
    ///
    /// # Errors
    ///
    /// When `ip` fails.
    pub fn remember(&self, other: &Self) -> anyhow::Result<()> {
        let mut command = Command::new("ip");
        command.args(["-n", &other.namespace, "-o", "link", "show", "dev", DEVICE]);
        let output = command.stdin(Stdio::null()).output().context("cannot run ip(8)")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut words = said.split_whitespace().skip_while(|word| *word != "link/ether");
        let card = words.nth(1).with_context(|| format!("no address of a card in {said:?}"))?;
        let (namespace, address) = (&self.namespace, other.address());
        ip(&format!(
            "-n {namespace} neigh replace {address} lladdr {card} dev {DEVICE} nud permanent"
        ))
    }

    /// Sets the longest packet that the cable takes, at this end of it.
    ///
    /// # Errors
    ///
    /// When `ip` fails.
    pub fn set_mtu(&self, bytes: u32) -> anyhow::Result<()> {
        ip(&format!("-n {} link set {DEVICE} mtu {bytes}", self.namespace))
    }

    /// Says of the way by the router ([`Hosts::with_router`]) that it takes packets of this length.
    ///
    /// # Errors
    ///
    /// When `ip` fails.
    pub fn set_route_mtu(&self, bytes: u32) -> anyhow::Result<()> {
        let (name, address) = (&self.namespace, self.address);
        let gateway = Ipv4Addr::new(198, 18, 77, 255 - address.octets()[3]);
        ip(&format!("-n {name} route replace default via {gateway} src {address} mtu {bytes}"))
    }
}

impl Hosts {
    /// Lets these hosts open tens of thousands of connections a second for longer than a second or two, as whoever
    /// tests a server's load does: ports from 1024 on, and those of closed connections again after a second. Who closes
    /// first keeps the port for a minute otherwise, and from then on each connection waits for one.
    ///
    /// # Errors
    ///
    /// When the kernel does not let us.
    pub fn open_many(&self) -> anyhow::Result<()> {
        const SETTINGS: &str = "echo 1024 65535 > /proc/sys/net/ipv4/ip_local_port_range && \
                                echo 1 > /proc/sys/net/ipv4/tcp_tw_reuse";
        for host in [&self.server, &self.client] {
            let done = host.command("sh").args(["-c", SETTINGS]).output()?;
            let said = String::from_utf8_lossy(&done.stderr);
            anyhow::ensure!(done.status.success(), "settings of TCP: {}", said.trim());
        }
        Ok(())
    }

    /// Two hosts with a cable between them.
    ///
    /// # Errors
    ///
    /// Without root, `ip` or network namespaces.
    pub fn new() -> anyhow::Result<Self> {
        let hosts = Self::unconnected(false)?;
        let (s, c) = (&hosts.server.namespace, &hosts.client.namespace);
        ip(&format!("-n {s} link add {DEVICE} type veth peer name {DEVICE} netns {c}"))?;
        hosts.configure()?;
        Ok(hosts)
    }

    /// Two hosts with two cables between them, each with addresses of its own: what goes to an address of the
    /// other host goes by its cable and by no other.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn with_two_cables() -> anyhow::Result<Self> {
        let mut hosts = Self::new()?;
        let [at_server, at_client] = [1, 2].map(|last| Ipv4Addr::new(198, 18, 78, last));
        (hosts.server.second, hosts.client.second) = (Some(at_server), Some(at_client));
        let (s, c) = (&hosts.server, &hosts.client);
        let peer = format!("type veth peer name {SECOND} netns {}", c.namespace);
        ip(&format!("-n {} link add {SECOND} {peer}", s.namespace))?;
        for (host, from, to) in [(s, at_server, at_client), (c, at_client, at_server)] {
            let name = &host.namespace;
            // Not of a subnet, of which there could be but one way.
            ip(&format!("-n {name} addr add {from}/32 dev {SECOND}"))?;
            ip(&format!("-n {name} link set {SECOND} up"))?;
            ip(&format!("-n {name} route add {to}/32 dev {SECOND} src {from}"))?;
        }
        Ok(hosts)
    }

    /// Two hosts whose cable was cut: both ends hang in a third namespace, and a box there must carry
    /// frames from [`TO_SERVER`] to [`TO_CLIENT`] and back.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn with_middle() -> anyhow::Result<Self> {
        let hosts = Self::unconnected(true)?;
        let middle = hosts.middle.as_deref().context("no middle")?;
        for (host, end) in [(&hosts.server, TO_SERVER), (&hosts.client, TO_CLIENT)] {
            let name = &host.namespace;
            ip(&format!("-n {name} link add {DEVICE} type veth peer name {end} netns {middle}"))?;
            ip(&format!("-n {middle} link set {end} up"))?;
            // Each frame has its own fate: none is many packets.
            ip(&format!("-n {name} link set {DEVICE} gso_max_segs 1"))?;
        }
        hosts.configure()?;
        Ok(hosts)
    }

    /// Two hosts with a router between them. `mtu`: of the cables; `path`: the longest packets that the router passes on.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn with_router(mtu: u32, path: u32) -> anyhow::Result<Self> {
        let hosts = Self::unconnected(true)?;
        let middle = hosts.middle.as_deref().context("no middle")?;
        let all = [(&hosts.server, TO_SERVER, 254), (&hosts.client, TO_CLIENT, 253)];
        for (host, end, last) in all {
            let (name, gateway) = (&host.namespace, Ipv4Addr::new(198, 18, 77, last));
            ip(&format!("-n {name} link add {DEVICE} type veth peer name {end} netns {middle}"))?;
            for (name, device) in [(name.as_str(), DEVICE), (middle, end)] {
                ip(&format!("-n {name} link set {device} mtu {mtu} up"))?;
            }
            ip(&format!("-n {name} addr add {}/32 dev {DEVICE}", host.address))?;
            ip(&format!("-n {middle} addr add {gateway}/32 dev {end}"))?;
            ip(&format!("-n {name} route add {gateway}/32 dev {DEVICE}"))?;
            ip(&format!("-n {name} route add default via {gateway} src {}", host.address))?;
            ip(&format!("-n {middle} route add {}/32 dev {end} mtu lock {path}", host.address))?;
        }
        let forward = ["netns", "exec", middle, "sysctl", "-qw", "net.ipv4.ip_forward=1"];
        let done = Command::new("ip").args(forward).output().context("cannot run ip(8)")?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr).trim());
        Ok(hosts)
    }

    /// The network namespace in the middle of the cable, if it was cut.
    #[must_use]
    pub fn middle(&self) -> Option<&str> {
        self.middle.as_deref()
    }

    /// What to type before a program so that it runs in the middle of the cable.
    #[must_use]
    pub fn middle_prefix(&self) -> Option<Vec<OsString>> {
        let middle = self.middle.as_deref()?;
        Some(["ip", "netns", "exec", middle].map(OsString::from).into())
    }

    fn unconnected(middle: bool) -> anyhow::Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("shunt-{}-{count}", std::process::id());
        let host = |which: &str, last: u8| Host {
            namespace: format!("{id}-{which}"),
            group: None,
            // For tests of networks (RFC 2544), so that it is nobody's.
            address: Ipv4Addr::new(198, 18, 77, last),
            // The same of IPv6 (RFC 5180).
            address_v6: Ipv6Addr::new(0x2001, 2, 0, 77, 0, 0, 0, last.into()),
            second: None,
        };
        let middle = middle.then(|| format!("{id}-m"));
        let mut hosts = Self { server: host("a", 1), client: host("b", 2), middle };
        for name in hosts.namespaces() {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        for host in [&mut hosts.server, &mut hosts.client] {
            host.group = group(&host.namespace);
        }
        Ok(hosts)
    }

    fn namespaces(&self) -> Vec<String> {
        let two = [self.server.namespace.clone(), self.client.namespace.clone()];
        two.into_iter().chain(self.middle.clone()).collect()
    }

    fn configure(&self) -> anyhow::Result<()> {
        for host in [&self.server, &self.client] {
            let (name, address) = (&host.namespace, host.address);
            ip(&format!("-n {name} addr add {address}/24 dev {DEVICE}"))?;
            // Nobody else has it, so it can be used at once. A kernel without IPv6 does without.
            let v6 = host.address_v6;
            let _ = ip(&format!("-n {name} addr add {v6}/64 dev {DEVICE} nodad"));
            ip(&format!("-n {name} link set {DEVICE} up"))?;
        }
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.namespaces() {
            // Whoever is still there would keep it alive.
            if let Ok(output) = Command::new("ip").args(["netns", "pids", &name]).output() {
                for pid in String::from_utf8_lossy(&output.stdout).split_whitespace() {
                    let _ = Command::new("kill").args(["-9", pid]).stderr(Stdio::null()).status();
                }
            }
            let _ = Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status();
        }
        for group in [&self.server.group, &self.client.group].into_iter().flatten() {
            for _ in 0..50 {
                if fs::remove_dir(&group.at).is_ok() || !group.at.exists() {
                    break;
                }
                sleep(Duration::from_millis(20));
            }
        }
    }
}

/// A control group of its own below that of this process, in the hierarchy of version 2.
fn group(name: &str) -> Option<Group> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let root = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let at = words.next()?;
        (words.next() == Some("cgroup2")).then(|| PathBuf::from(at))
    })?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let below = if own.starts_with("..") { "" } else { own };
    let name = Path::new("/").join(below).join(name);
    let at = root.join(name.strip_prefix("/").unwrap_or(&name));
    fs::create_dir(&at).ok()?;
    Some(Group { name, at })
}

fn ip(words: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(words.split(' ')).stdin(Stdio::null()).output();
    let output = output.context("cannot run ip(8)")?;
    if !output.status.success() {
        bail!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Whether hosts can be made here, and if not, why.
///
/// # Errors
///
/// A sentence for people.
pub fn possible() -> anyhow::Result<()> {
    // SAFETY: always callable.
    let uid = unsafe { libc::geteuid() };
    ensure!(uid == 0, "network namespaces need root");
    ensure!(
        Command::new("ip").arg("-V").output().is_ok_and(|o| o.status.success()),
        "there is no ip(8): apt-get install iproute2"
    );
    Ok(())
}

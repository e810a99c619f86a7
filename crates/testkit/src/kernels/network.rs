//! The cable between guests and host: a bridge in a network namespace of its own.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use super::ending::{ControlGroup, Namespace};

/// The host's address on the bridge.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 254);
/// Its second address there, for a second link of RoCEv2.
pub const HOST_TOO: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 253);
/// Length of the prefix of all addresses there.
pub const PREFIX: u8 = 24;
/// The bridge's name.
pub const BRIDGE: &str = "br0";

/// The port of RoCEv2.
const ROCE: u16 = 4791;
/// The table of what is lost.
const LOSSES: &str = "losses";

/// A namespace with a bridge. It is removed when this is dropped.
#[derive(Debug)]
pub struct Network {
    namespace: Namespace,
    group: Option<ControlGroup>,
}

impl Network {
    /// A new one, with nobody on it but the host.
    ///
    /// # Errors
    ///
    /// What `ip` says: without root it says that it may not.
    pub fn new() -> io::Result<Self> {
        let network = Self { namespace: Namespace::new()?, group: ControlGroup::new() };
        network.ip("link set lo up")?;
        // No word of the kernel's own in captures: it has no address before somebody gives it one.
        network.shell("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6")?;
        let shape = "type bridge stp_state 0 forward_delay 0 mcast_snooping 0";
        // As cards have them: a file server tells clients that one address is worth several connections.
        let queues = "numrxqueues 4 numtxqueues 4";
        network.ip(&format!("link add {queues} name {BRIDGE} {shape}"))?;
        for address in [HOST, HOST_TOO] {
            network.ip(&format!("addr add {address}/{PREFIX} dev {BRIDGE}"))?;
        }
        network.ip(&format!("link set {BRIDGE} up"))?;
        Ok(network)
    }

    /// A port of the bridge for a guest, as a TAP device.
    ///
    /// # Errors
    ///
    /// What `ip` says.
    pub fn add_port(&self, name: &str) -> io::Result<()> {
        self.ip(&format!("tuntap add {name} mode tap"))?;
        self.ip(&format!("link set {name} master {BRIDGE}"))?;
        self.ip(&format!("link set {name} up"))
    }

    /// Pulls the cable of a port, or puts it back.
    ///
    /// # Errors
    ///
    /// What `ip` says.
    pub fn connect(&self, port: &str, connected: bool) -> io::Result<()> {
        let state = if connected { "up" } else { "down" };
        self.ip(&format!("link set {port} {state}"))
    }

    /// From now on loses packets of RoCEv2 at a port, each way one of so many, by chance. Wants `nft`.
    ///
    /// # Errors
    ///
    /// What `nft` says.
    pub fn lose(&self, port: &str, one_of: u32) -> io::Result<()> {
        let chain = |hook: &str| {
            format!(
                "chain {hook} {{\n type filter hook {hook} device \"{port}\" priority 0\n \
                 udp dport {ROCE} numgen random mod {one_of} 0 counter drop\n }}\n"
            )
        };
        let [from, to] = ["ingress", "egress"].map(chain);
        let rules = format!("table netdev {LOSSES} {{\n{from}{to}}}\n");
        succeed(self.command("nft").arg(rules))
    }

    /// Loses no more. Answers how many packets were lost that came from the port, and that went to it.
    ///
    /// # Errors
    ///
    /// What `nft` says, or if nothing was to be lost.
    pub fn lose_no_more(&self) -> io::Result<[u64; 2]> {
        let output = self.command("nft").args(["list", "table", "netdev", LOSSES]).output()?;
        succeed(self.command("nft").args(["delete", "table", "netdev", LOSSES]))?;
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        counted(&listed).ok_or_else(|| io::Error::other(format!("no two counters in {listed}")))
    }

    /// The name of the namespace, for `ip netns exec`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// The control group of what runs on the host's side, as a path from the top of the hierarchy, where
    /// there can be one.
    #[must_use]
    pub fn group(&self) -> Option<&Path> {
        self.group.as_ref().map(ControlGroup::name)
    }

    /// A command that runs on the host's side of the bridge, in its control group.
    #[must_use]
    pub fn host_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let Some(group) = &self.group else { return self.command(program) };
        let mut command = Command::new("sh");
        // Before the namespace is entered, where the hierarchy may not be seen.
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(group.door());
        command.args(["ip", "netns", "exec", self.namespace.name()]).arg(program);
        command
    }

    /// A command that runs in the namespace.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace.name()]).arg(program);
        command
    }

    fn ip(&self, words: &str) -> io::Result<()> {
        let mut command = Command::new("ip");
        command.args(["-n", self.namespace.name()]).args(words.split(' '));
        succeed(&mut command)
    }

    fn shell(&self, script: &str) -> io::Result<()> {
        succeed(self.command("sh").args(["-c", script]))
    }
}

/// The two counters of packets in a listing of `nft`.
fn counted(listed: &str) -> Option<[u64; 2]> {
    let words: Vec<&str> = listed.split_whitespace().collect();
    let of = |words: &[&str]| match words {
        ["counter", "packets", number, ..] => number.parse().ok(),
        _ => None,
    };
    let found: Vec<u64> = words.windows(3).filter_map(of).collect();
    found.try_into().ok()
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("{command:?}: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_where_nft_lists_them() {
        let chain =
            |n| format!("chain c {{\n\tudp dport 4791 counter packets {n} bytes 9 drop\n}}\n");
        assert_eq!(counted(&(chain(3) + &chain(40))), Some([3, 40]));
        assert_eq!(counted(&chain(3)), None);
        assert_eq!(counted(""), None);
    }
}

//! A network of its own, whose TCP connections begin with a congestion control of its own.
//!
//! A program that has no option for it takes what the way to its peer says, or else the default of its network. We
//! say it of the way to the loopback's own addresses, in a network namespace of our own: that changes nothing of the
//! machine's, whatever becomes of us, and unlike the default it may be a control that only root may choose.

use std::ffi::OsString;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, ensure};

use super::{NAMESPACES, locked, random};

/// The loopback's addresses, each with a way of its own to it.
const OWN: [&str; 2] = ["127.0.0.0/8", "127.0.0.1"];

/// A network with a loopback of its own and nothing else. Removed when this is dropped, or at an interrupt.
#[derive(Debug)]
pub(crate) struct Network {
    name: String,
}

impl Network {
    /// A new one, in which connections begin with `control`, as the kernel names it.
    ///
    /// # Errors
    ///
    /// Without root, `ip` or that congestion control.
    pub(crate) fn with_control(control: &str) -> anyhow::Result<Self> {
        testkit::hosts::possible()?;
        let network = Self { name: format!("shunt-bench-{}-{:08x}", std::process::id(), random()) };
        {
            // Held while it is made: an interrupt finds it made, or never made.
            let mut names = locked(&NAMESPACES);
            checked(&["ip", "netns", "add", &network.name])?;
            names.push(network.name.clone());
        }
        let ip = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            checked(&[&["ip", "-n", &network.name], &words[..]].concat())
        };
        ip("link set lo up")?;
        for own in OWN {
            // As the kernel has made it, and with the control.
            let way =
                format!("local {own} dev lo table local proto kernel scope host src 127.0.0.1");
            ip(&format!("route replace {way} congctl {control}"))?;
        }
        Ok(network)
    }

    /// What to type before a program so that it runs there. The process becomes the program.
    pub(crate) fn prefix(&self) -> [OsString; 4] {
        ["ip", "netns", "exec", &self.name].map(OsString::from)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = checked(&["ip", "netns", "del", &self.name]);
        locked(&NAMESPACES).retain(|other| *other != self.name);
    }
}

/// Runs a command to its end.
fn checked(words: &[&str]) -> anyhow::Result<Output> {
    let (program, args) = words.split_first().context("no command")?;
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", words.join(" "), said.trim());
    Ok(output)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The control with which connections of this process's network begin.
    const CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
    /// Prints what both ends of a connection have.
    const CONNECT: &str = "
import socket
listener = socket.create_server((\"127.0.0.1\", 0))
client = socket.create_connection(listener.getsockname())
for end in (client, listener.accept()[0]):
    print(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).strip(b'\\0').decode())";

    #[test]
    fn connections_begin_with_its_own_control_and_the_machine_is_as_it_was() {
        if let Err(why) = testkit::hosts::possible() {
            eprintln!("skipped: {why}");
            return;
        }
        let machines = || fs::read_to_string(CONTROL).unwrap();
        let before = machines();
        let available = "/proc/sys/net/ipv4/tcp_available_congestion_control";
        let available = fs::read_to_string(available).unwrap();
        for control in available.split_whitespace() {
            let network = Network::with_control(control).unwrap();
            let prefix = network.prefix();
            let prefix: Vec<&str> = prefix.iter().filter_map(|word| word.to_str()).collect();
            match checked(&[&prefix[..], &["python3", "-c", CONNECT]].concat()) {
                Ok(output) => assert_eq!(
                    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>(),
                    [control; 2]
                ),
                Err(why) => eprintln!("skipped: {why:#}"),
            }
            assert_eq!(machines(), before);
            let name = network.name.clone();
            drop(network);
            assert!(checked(&["ip", "netns", "exec", &name, "true"]).is_err(), "{name} is there");
        }
        assert!(Network::with_control("no-such-control").is_err());
        assert_eq!(machines(), before);
        let left = checked(&["ip", "netns", "list"]).unwrap().stdout;
        let own = format!("shunt-bench-{}-", std::process::id());
        assert!(!String::from_utf8_lossy(&left).contains(&own), "one is left");
    }
}

//! `shunt serve` on a machine of two NUMA nodes: where its loops run, and where their memory is.
//!
//! The machine is emulated. It says nothing of speed, and all of where the kernel was asked to put what.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, ensure};
use testkit::kernels::guest::{Guest, Image, Shape, Size};
use testkit::kernels::network::Network;

/// How the case is called.
pub(super) const NAME: &str = "loops and memory on the node of an interface";

const NODES: u32 = 2;
/// The CPUs of each node.
const CPUS: [&str; NODES as usize] = ["0-1", "2-3"];
/// Of each node there is one. Which is whose is for the kernel to say.
const INTERFACES: [&str; NODES as usize] = ["eth0", "eth1"];
const READY: &str = "Ctrl-C ends";
/// An emulated machine at the lowest priority.
const READY_LIMIT: Duration = Duration::from_secs(120);
const LOAD_LIMIT: Duration = Duration::from_secs(300);
/// So many pages must have been taken for buffers, or nothing was shown: 1 MiB.
const PAGES_MIN: u64 = 256;

/// Boots a machine of two nodes and serves there, pinned to an interface of each.
///
/// # Errors
///
/// What is not where it is to be.
pub(super) fn play(image: &Image, limit: Duration) -> anyhow::Result<()> {
    let network = Network::new().context("a network namespace with a bridge")?;
    let addresses = vec![Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];
    let size = Size::Nodes(NODES);
    let shape = Shape { size, ..Shape::small("nodes", addresses, limit) };
    let guest = Guest::boot(&network, image, shape)?;
    // The kernel moves nothing by itself: pages stay where they were taken.
    guest.check("echo 0 > /proc/sys/kernel/numa_balancing; mkdir -p /tmp/share")?;
    let nodes = guest.check("cat /sys/devices/system/node/online")?;
    ensure!(nodes.trim() == "0-1", "the machine has the nodes {nodes}");
    let mut seen = Vec::new();
    for interface in INTERFACES {
        let near =
            guest.check(&format!("cat /sys/class/net/{interface}/device/../local_cpulist"))?;
        let (node, cpus) = (0..)
            .zip(CPUS)
            .find(|(_, cpus)| *cpus == near.trim())
            .with_context(|| format!("{interface} is on no node, but next to the CPUs {near}"))?;
        seen.push(node);
        serve(&guest, interface, node, cpus).with_context(|| format!("pinned to {interface}"))?;
    }
    ensure!(seen.contains(&0) && seen.contains(&1), "all interfaces are on one node");
    Ok(())
}

fn serve(guest: &Guest, interface: &str, node: u32, cpus: &str) -> anyhow::Result<()> {
    let server = guest.spawn(&format!(
        "exec shunt serve --listen 127.0.0.1:4450 --pin {interface} --vectors 2 --uring on \
         --user smbtest:pw --share files=/tmp/share"
    ))?;
    server.wait_for(READY, READY_LIMIT)?;
    let pid = guest.check("pidof shunt")?;
    let (pid, maps) = (pid.trim(), format!("cat /proc/{}/numa_maps", pid.trim()));
    let threads = guest.check(&format!(
        "for t in /proc/{pid}/task/*; do \
         echo $(cat $t/comm) $(grep Cpus_allowed_list $t/status); done"
    ))?;
    let (first, last) = cpus.split_once('-').context("two CPUs")?;
    let mut loops = loops(&threads);
    loops.sort_unstable();
    ensure!(loops == [first, last], "the loops may run on {loops:?}");
    let before = Memory::parse(&guest.check(&maps)?);
    let load = guest.run_for(
        "for op in prepare write; do smbload $op --addr 127.0.0.1:4450 --share files --pass pw --clients 2 \
         --enc 128 --size 16M --nfiles 1 --secs 2 --warmup 0.5 --patience 120 || exit 1; done",
        LOAD_LIMIT,
    )?;
    ensure!(load.status == 0, "smbload: {}; the server: {}", load.text, server.text());
    let after = Memory::parse(&guest.check(&maps)?);
    let (rings, elsewhere) = after.rings.split(node);
    ensure!(rings > 0 && elsewhere == 0, "of the rings' pages {rings} are there, {elsewhere} not");
    let (buffers, elsewhere) = after.anonymous.since(&before.anonymous).split(node);
    ensure!(
        buffers >= PAGES_MIN && elsewhere * 20 <= buffers,
        "of the pages that were taken {buffers} are there, {elsewhere} are not"
    );
    println!(
        "{interface}: loops on the CPUs {cpus} of node {node}; of the pages of their rings {rings} are there, of \
         what they took under load {buffers}, elsewhere {elsewhere}"
    );
    server.signal(nix::sys::signal::Signal::SIGTERM as i32)?;
    server.wait(READY_LIMIT)?;
    Ok(())
}

/// The CPUs on which each loop of a server may run.
fn loops(threads: &str) -> Vec<&str> {
    let loops = threads.lines().filter(|line| line.starts_with("shunt-smb-"));
    loops.filter_map(|line| line.split_whitespace().last()).collect()
}

/// Pages, by node.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pages(BTreeMap<u32, u64>);

impl Pages {
    /// How many are on a node, and how many are not.
    fn split(&self, node: u32) -> (u64, u64) {
        let here = self.0.get(&node).copied().unwrap_or(0);
        (here, self.0.values().sum::<u64>() - here)
    }

    fn since(&self, before: &Self) -> Self {
        let had = |node| before.0.get(node).copied().unwrap_or(0);
        Self(self.0.iter().map(|(node, now)| (*node, now.saturating_sub(had(node)))).collect())
    }
}

/// What `/proc/PID/numa_maps` says (numa(7)).
#[derive(Debug, Default, PartialEq, Eq)]
struct Memory {
    /// Of mappings of rings.
    rings: Pages,
    /// Of memory that is nobody's but the process's, its heap and its main stack left out: those belong to no loop.
    anonymous: Pages,
}

impl Memory {
    fn parse(text: &str) -> Self {
        let mut memory = Self::default();
        for line in text.lines() {
            let words = || line.split_whitespace().skip(2);
            let of = if line.contains("io_uring") {
                &mut memory.rings
            } else if words()
                .any(|word| word.starts_with("file=") || ["heap", "stack"].contains(&word))
            {
                continue;
            } else {
                &mut memory.anonymous
            };
            for word in words() {
                let Some((node, pages)) = word.strip_prefix('N').and_then(|n| n.split_once('='))
                else {
                    continue;
                };
                if let (Ok(node), Ok(pages)) = (node.parse(), pages.parse::<u64>()) {
                    *of.0.entry(node).or_default() += pages;
                }
            }
        }
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_where_they_are() {
        let memory = Memory::parse(
            "55d0c0000000 default file=/bin/shunt mapped=100 N0=100 kernelpagesize_kB=4\n\
             55d0d0000000 default heap anon=9 dirty=9 N0=9 kernelpagesize_kB=4\n\
             7f0000000000 default anon=7 dirty=7 N0=3 N1=4 kernelpagesize_kB=4\n\
             7f0000100000 default anon=5 dirty=5 N1=5 kernelpagesize_kB=4\n\
             7f0000200000 default file=anon_inode:[io_uring] mapped=2 N1=2 kernelpagesize_kB=4\n\
             7f0000300000 default\n",
        );
        assert_eq!(memory.anonymous, Pages([(0, 3), (1, 9)].into()));
        assert_eq!((memory.rings.split(1), memory.rings.split(0)), ((2, 0), (0, 2)));
        let since = memory.anonymous.since(&Pages([(0, 3), (1, 1)].into()));
        assert_eq!(since.split(1), (8, 0));
    }

    #[test]
    fn loops_are_told_from_other_threads() {
        let threads = "shunt Cpus_allowed_list: 0-3\nshunt-smb-1 Cpus_allowed_list: 3\n";
        assert_eq!(loops(threads), ["3"]);
    }
}

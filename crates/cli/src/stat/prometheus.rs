//! The numbers of boards and of their engines for Prometheus: as a page, or served over HTTP.
//!
//! What a process has counted is told by its slot on the board, and not by its process id: slots are used again, so that there
//! are never more than 1,024 of each in a directory, whatever comes and goes; a new process begins at 0, as Prometheus expects
//! of one that was started anew. `shunt_process_info` has the ids.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use engine::metrics::{self, Page};
use engine::remote::{host, stat};
use local::board;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::snapshot::{Process, Snapshot, Watch, shown};
use crate::{say, service};

/// Whose boards are looked at.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    /// That in this directory; `None`: in the usual one of this user.
    Ours(Option<String>),
    /// Those of all users in their usual directories, and those that users share.
    Everyones,
}

impl Whose {
    pub(crate) fn directories(&self) -> Vec<String> {
        match self {
            Self::Ours(dir) => vec![board::directory(dir.as_deref())],
            Self::Everyones => {
                let names = std::fs::read_dir(board::HOME).into_iter().flatten();
                let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                let mut all: Vec<String> = names.filter_map(|name| of_somebody(&name)).collect();
                all.sort();
                all
            }
        }
    }
}

/// The directory of this name, if it is a user's or one of root's: nobody has others make up what they like.
fn of_somebody(name: &str) -> Option<String> {
    let dir = format!("{}/{name}", board::HOME);
    let owner = std::fs::symlink_metadata(&dir).ok().filter(std::fs::Metadata::is_dir)?.uid();
    let is_one = board::owner_of(name) == Some(owner) || owner == 0 && name.starts_with("shunt-");
    is_one.then_some(dir)
}

/// A board that was looked at, and its directory. `None`: it is there, and cannot be read.
type Seen = (String, Option<Snapshot>);

/// Prints the page once.
pub(crate) fn print(whose: &Whose, out: &mut impl Write) -> anyhow::Result<()> {
    out.write_all(look(whose).as_bytes())?;
    Ok(out.flush()?)
}

/// Serves it until it is told to end.
pub(crate) fn serve(whose: Whose, address: SocketAddr) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let listener = metrics::bind(address).with_context(|| address.to_string())?;
    let stop = Arc::new(AtomicBool::new(false));
    let server = metrics::Server::start(listener, stop.clone(), move || look(&whose))?;
    say::line(format_args!("shunt: metrics at http://{}/metrics", server.address));
    service::is_ready();
    signals.forever().next();
    service::stops();
    stop.store(true, Ordering::Relaxed);
    server.finish();
    Ok(())
}

fn look(whose: &Whose) -> String {
    let (mut boards, mut engines, mut switches) = (Vec::new(), Vec::new(), Vec::new());
    for dir in whose.directories() {
        if Path::new(&dir).is_dir() {
            switches.push((dir.clone(), board::is_off(Some(&dir))));
        }
        let seen = Watch::new(Some(&dir)).and_then(|mut watch| watch.look());
        if let Ok(Some(snapshot)) = seen {
            boards.push((dir.clone(), Some(snapshot)));
        } else if seen.is_err() {
            boards.push((dir.clone(), None));
        }
        if let Ok(engine) = host::look_closely(Some(&dir)) {
            engines.push((dir, engine));
        }
    }
    page(&boards, &engines, &switches)
}

/// `switches`: directories, and whether they are switched off.
fn page(boards: &[Seen], engines: &[(String, stat::Stat)], switches: &[(String, bool)]) -> String {
    let mut page = Page::default();
    page.gauge("shunt_build_info", "1; which version looks.")
        .value(&[("version", &env!("CARGO_PKG_VERSION"))], 1);
    let mut family = page.gauge("shunt_board_readable", "Whether the board could be read.");
    for (dir, snapshot) in boards {
        family.value(&[("dir", dir)], u8::from(snapshot.is_some()));
    }
    let help = "1: new connections there stay on TCP (shunt off).";
    let mut family = page.gauge("shunt_switched_off", help);
    for (dir, is_off) in switches {
        family.value(&[("dir", dir)], u8::from(*is_off));
    }
    let help = "Memory that the file system of the board has left.";
    let mut family = page.gauge("shunt_directory_free_bytes", help);
    for (dir, _) in boards {
        if let Ok(of) = nix::sys::statvfs::statvfs(dir.as_str()) {
            let free = of.blocks_available().saturating_mul(of.fragment_size());
            family.value(&[("dir", dir)], free);
        }
    }
    let mut family = page.gauge("shunt_processes", "Processes under Shunt, of 1,024 at most.");
    for (dir, snapshot) in boards {
        let Some(snapshot) = snapshot else { continue };
        family.value(&[("dir", dir)], snapshot.processes.iter().filter(|p| p.alive).count());
    }
    let mut family = page.gauge("shunt_process_info", "1; which process has the slot.");
    for (dir, p) in processes(boards) {
        let (pid, container) = (shown(p.pid, p.host_pid), p.container.as_deref().unwrap_or(""));
        family.value(
            &[
                ("dir", dir),
                ("slot", &p.slot),
                ("pid", &pid),
                ("uid", &p.uid),
                ("program", &p.program),
                ("container", &container),
            ],
            1,
        );
    }
    connections(&mut page, boards);
    by_process(&mut page, boards);
    stat::add_to(&mut page, engines);
    page.text()
}

/// Those that live.
fn processes(boards: &[Seen]) -> impl Iterator<Item = (&String, &Process)> {
    let all = boards.iter().filter_map(|(dir, snapshot)| Some((dir, snapshot.as_ref()?)));
    all.flat_map(|(dir, snapshot)| snapshot.processes.iter().map(move |p| (dir, p)))
        .filter(|(_, process)| process.alive)
}

fn connections(page: &mut Page, boards: &[Seen]) {
    let help = "Ends of connections that are open, by the way their bytes go.";
    let mut family = page.gauge("shunt_connections", help);
    for (dir, p) in processes(boards) {
        for (mode, n) in
            [("shm", p.connections_shm), ("smcr", p.connections_smcr), ("tcp", p.connections_tcp)]
        {
            let labels: [(&str, &dyn std::fmt::Display); 4] =
                [("dir", dir), ("slot", &p.slot), ("program", &p.program), ("mode", &mode)];
            family.value(&labels, n);
        }
    }
    let help = "Connections that came to shared memory, by which end this was.";
    let mut family = page.counter("shunt_connections_attached_total", help);
    for (dir, p) in processes(boards) {
        let servers = p.attached_total.saturating_sub(p.attached_clients);
        for (end, n) in [("client", p.attached_clients), ("server", servers)] {
            let labels: [(&str, &dyn std::fmt::Display); 4] =
                [("dir", dir), ("slot", &p.slot), ("program", &p.program), ("end", &end)];
            family.value(&labels, n);
        }
    }
    let help = "Connections that stayed on TCP or went back to it, by why.";
    let mut family = page.counter("shunt_fallbacks_total", help);
    for (dir, p) in processes(boards) {
        for fallback in &p.fallbacks {
            family.value(
                &[
                    ("dir", dir),
                    ("slot", &p.slot),
                    ("program", &p.program),
                    ("reason", &fallback.reason),
                    ("words", &fallback.words),
                ],
                fallback.count,
            );
        }
    }
}

fn by_process(page: &mut Page, boards: &[Seen]) {
    type Field = fn(&Process) -> u64;
    let gauges: [(&str, &str, Field); 3] = [
        ("shunt_process_start_time_seconds", "When it came, since 1970.", |p| p.since),
        ("shunt_memory_owned_bytes", "Shared memory that it has taken.", |p| p.memory_owned_bytes),
        ("shunt_memory_used_bytes", "Of that, what is in use for buffers.", |p| {
            p.memory_used_bytes
        }),
    ];
    let counters: [(&str, &str, Field); 9] = [
        ("shunt_connections_closed_total", "Of those that were attached, closed.", |p| {
            p.closed_total
        }),
        ("shunt_sent_bytes_total", "Bytes sent through shared memory.", |p| p.counters.bytes_tx),
        ("shunt_received_bytes_total", "Bytes received through shared memory.", |p| {
            p.counters.bytes_rx
        }),
        ("shunt_sends_total", "Calls that sent.", |p| p.counters.sends),
        ("shunt_receives_total", "Calls that received bytes.", |p| p.counters.receives),
        ("shunt_doorbells_total", "Bytes sent over TCP to wake the peer.", |p| {
            p.counters.doorbells
        }),
        ("shunt_sleeps_total", "Sleeps in the kernel.", |p| p.counters.sleeps),
        ("shunt_spins_total", "Waits that spinning answered.", |p| p.counters.spins),
        ("shunt_stalls_total", "Times that a sender found the buffer full.", |p| p.counters.stalls),
    ];
    for (name, help, field) in gauges {
        let mut family = page.gauge(name, help);
        for (dir, p) in processes(boards) {
            let labels: [(&str, &dyn std::fmt::Display); 3] =
                [("dir", dir), ("slot", &p.slot), ("program", &p.program)];
            family.value(&labels, field(p));
        }
    }
    for (name, help, field) in counters {
        let mut family = page.counter(name, help);
        for (dir, p) in processes(boards) {
            let labels: [(&str, &dyn std::fmt::Display); 3] =
                [("dir", dir), ("slot", &p.slot), ("program", &p.program)];
            family.value(&labels, field(p));
        }
    }
}

#[cfg(test)]
mod shipped;
#[cfg(test)]
mod tests;

//! `shunt stat`: connections, processes, link groups and the engine's vectors, as a table or as JSON.

mod filter;
mod load;
pub(crate) mod prometheus;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::ensure;
use serde::Serialize;

pub(crate) use filter::Filter;
use load::{Load, Loads};

use crate::snapshot::{
    BufferSizes, Connection, LinkGroup, Listener, Mode, Process, Snapshot, Watch, shown,
};
use crate::switch::SWITCHED_OFF;
use crate::table::{Side, bytes, count, render, socket};

/// Version of the JSON object: a field may be added, but none changes its meaning within one.
const JSON_VERSION: u32 = 1;
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

/// What to show.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// As JSON.
    pub(crate) json: bool,
    /// Only this process.
    pub(crate) pid: Option<u32>,
    /// Only such connections.
    pub(crate) filter: Filter,
    /// Also what is closing, what the dead left behind, and listeners.
    pub(crate) all: bool,
    /// Sums and not connections.
    pub(crate) totals: bool,
    /// Again after this time.
    pub(crate) watch: Option<Duration>,
}

#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    board: &'a str,
    switched_off: bool,
    time_ms: u64,
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    /// `None`: there is an engine, and it does not answer.
    vectors: Option<&'a [Load]>,
}

/// Prints what the board says, once or again and again.
pub(crate) fn run(view: &View, dir: Option<&str>, out: &mut impl Write) -> anyhow::Result<()> {
    let mut watch = Watch::new(dir)?;
    let mut engine = load::Looker::default();
    let clear = view.watch.is_some() && !view.json && std::io::stdout().is_terminal();
    let mut is_first = true;
    loop {
        let snapshot = watch.look()?;
        if std::mem::take(&mut is_first) {
            if let Some(pid) = view.pid {
                ensure_there(pid, view.all, snapshot.as_ref())?;
            }
            if let Some(snapshot) = &snapshot {
                view.filter.ensure_there(snapshot, view.all)?;
            }
        }
        let loads = engine.look(dir);
        if clear {
            out.write_all(CLEAR_SCREEN.as_bytes())?;
        }
        let at = At { board: &watch.path(), is_off: local::board::is_off(dir) };
        out.write_all(page(view, snapshot, at, &loads)?.as_bytes())?;
        out.flush()?;
        let Some(pause) = view.watch else { return Ok(()) };
        if !clear && !view.json {
            writeln!(out)?;
            out.flush()?;
        }
        sleep(pause);
    }
}

/// Nothing of a process would look like nothing to say of it.
fn ensure_there(pid: u32, all: bool, snapshot: Option<&Snapshot>) -> anyhow::Result<()> {
    let is_there = snapshot.is_some_and(|now| {
        let mut processes = now.processes.iter().filter(|p| all || p.alive);
        processes.any(|p| shown(p.pid, p.host_pid) == pid)
            || now.connections.iter().any(|c| c.involves(pid))
    });
    ensure!(is_there || Path::new(&format!("/proc/{pid}")).exists(), "there is no process {pid}");
    ensure!(
        is_there,
        "process {pid} is not on the board: it is not under Shunt, or has had no connection and no listener yet (`shunt \
         doctor --pid {pid}`); children have numbers of their own (`shunt stat --totals`)"
    );
    Ok(())
}

/// The place that is looked at.
#[derive(Clone, Copy, Debug)]
struct At<'a> {
    board: &'a str,
    /// New connections there stay on TCP.
    is_off: bool,
}

/// What is printed in one round. `snapshot`: `None` if there is no board.
fn page(
    view: &View,
    snapshot: Option<Snapshot>,
    At { board, is_off }: At<'_>,
    loads: &Loads,
) -> anyhow::Result<String> {
    let absent = snapshot.is_none();
    let snapshot = select(snapshot.unwrap_or_default(), view);
    if view.json {
        let time_ms = sys::call::wall_ns() / 1_000_000;
        let vectors = loads.as_deref().ok();
        let json = Json {
            version: JSON_VERSION,
            board,
            switched_off: is_off,
            time_ms,
            snapshot: &snapshot,
            vectors,
        };
        // A line a round, so that a reader of a stream knows where an object ends.
        let text = match view.watch {
            Some(_) => serde_json::to_string(&json)?,
            None => serde_json::to_string_pretty(&json)?,
        };
        return Ok(text + "\n");
    }
    let switch = if is_off { format!("{SWITCHED_OFF}\n\n") } else { String::new() };
    if absent {
        return Ok(format!("{switch}no board at {board}: no program runs under shunt here\n"));
    }
    Ok(switch + &text(&snapshot, view, loads))
}

/// Leaves out what was not asked for.
fn select(mut snapshot: Snapshot, view: &View) -> Snapshot {
    if !view.all {
        snapshot.connections.retain(Connection::is_current);
        snapshot.processes.retain(|p| p.alive);
    }
    if let Some(pid) = view.pid {
        snapshot.connections.retain(|c| c.involves(pid));
        snapshot.processes.retain(|p| shown(p.pid, p.host_pid) == pid);
        snapshot.link_groups.retain(|g| {
            shown(g.pid, g.host_pid) == pid || shown(g.peer_pid, g.peer_host_pid) == pid
        });
        snapshot.listeners.retain(|l| shown(l.pid, l.host_pid) == pid);
    }
    view.filter.apply(&mut snapshot);
    snapshot
}

fn text(snapshot: &Snapshot, view: &View, loads: &Loads) -> String {
    let mut text = String::new();
    if view.totals {
        text += &processes(&snapshot.processes);
        text += &section("Buffers in use", buffers(&snapshot.processes));
        text += &section("Link groups", link_groups(&snapshot.link_groups));
        text += &section("Fallbacks to TCP", fallbacks(&snapshot.processes));
    } else {
        text += &connections(&snapshot.connections);
    }
    if view.all {
        text += &section("Listeners", listeners(&snapshot.listeners));
    }
    match loads {
        // One process, or some connections, may be none of the engine's.
        Ok(_) if view.pid.is_some() || !view.filter.is_empty() => {}
        Ok(loads) => text += &section("Vectors of the engine", load::table(loads)),
        Err(problem) => text += &format!("\n{problem}\n"),
    }
    text + "\n" + &summary(snapshot) + "\n"
}

fn section(title: &str, table: Option<String>) -> String {
    table.map(|table| format!("\n{title}\n{table}")).unwrap_or_default()
}

/// One line: how many of what.
pub(crate) fn summary(snapshot: &Snapshot) -> String {
    let shm = snapshot.connections.iter().filter(|c| c.mode == Mode::Shm).count();
    let smcr = snapshot.connections.iter().filter(|c| c.mode == Mode::Smcr).count();
    let tcp = snapshot.connections.len() - shm - smcr;
    let far = if smcr == 0 { String::new() } else { format!(" {smcr} by SMC-R to other hosts,") };
    let cut = if snapshot.truncated { " (too many: the rest is left out)" } else { "" };
    format!(
        "{} processes, {} link groups, {} ends of connections: {shm} in shared memory,{far} {tcp} on TCP{cut}",
        snapshot.processes.len(),
        snapshot.link_groups.len(),
        snapshot.connections.len(),
    )
}

/// `SHM`, or `TCP` with the reason's number and words.
pub(crate) fn mode(c: &Connection) -> String {
    match (c.mode, c.reason_words) {
        (Mode::Shm, _) => "SHM".into(),
        (Mode::Smcr, _) => "SMCR".into(),
        // Those of SMC are written as `smcss` and the RFC write them.
        (Mode::Tcp, Some(words)) if c.reason >= 1 << 16 => {
            format!("TCP {:#010x} ({words})", c.reason & !(1 << 31))
        }
        (Mode::Tcp, Some(words)) => format!("TCP {} ({words})", c.reason),
        (Mode::Tcp, None) => "TCP".into(),
    }
}

pub(crate) fn process_name(pid: u32, host_pid: Option<u32>, program: &str) -> String {
    format!("{}/{program}", shown(pid, host_pid))
}

/// The peer's process; `-` where it is not known.
pub(crate) fn peer_name(c: &Connection) -> String {
    match (c.peer_pid, &c.peer_program) {
        (Some(pid), Some(program)) => process_name(pid, c.peer_host_pid, program),
        _ => "-".into(),
    }
}

fn buffer(used: u64, size: u64) -> String {
    if size == 0 { "-".into() } else { format!("{}/{}", bytes(used), bytes(size)) }
}

fn connections(connections: &[Connection]) -> String {
    use Side::{Left, Right};
    let columns = [
        ("State", Left),
        ("UID", Right),
        ("Inode", Right),
        ("Local Address", Left),
        ("Peer Address", Left),
        ("Mode", Left),
        ("Program", Left),
        ("Peer Program", Left),
        ("Tx", Right),
        ("Rx", Right),
        ("Bells", Right),
        ("Sleeps", Right),
        ("Spins", Right),
        ("Stalls", Right),
        ("TxBuf", Right),
        ("RxBuf", Right),
    ];
    let row = |c: &Connection| {
        vec![
            c.state.name().into(),
            c.uid.to_string(),
            c.inode.to_string(),
            socket(c.local_address, c.local_port),
            socket(c.peer_address, c.peer_port),
            mode(c),
            process_name(c.pid, c.host_pid, &c.program) + if c.alive { "" } else { " (dead)" },
            peer_name(c),
            bytes(c.counters.bytes_tx),
            bytes(c.counters.bytes_rx),
            count(c.counters.doorbells),
            count(c.counters.sleeps),
            count(c.counters.spins),
            count(c.counters.stalls),
            buffer(c.tx_buffer_used_bytes, c.tx_buffer_bytes),
            buffer(c.rx_buffer_used_bytes, c.rx_buffer_bytes),
        ]
    };
    render(&columns, &connections.iter().map(row).collect::<Vec<_>>())
}

fn processes(processes: &[Process]) -> String {
    use Side::{Left, Right};
    let mut columns = vec![
        ("PID", Right),
        ("Program", Left),
        ("UID", Right),
        ("SHM", Right),
        ("SMCR", Right),
        ("TCP", Right),
        ("Attached", Right),
        ("Client", Right),
        ("Server", Right),
        ("Closed", Right),
        ("Tx", Right),
        ("Rx", Right),
        ("TxReqs", Right),
        ("RxReqs", Right),
        ("Bells", Right),
        ("Sleeps", Right),
        ("Spins", Right),
        ("Stalls", Right),
        ("Memory", Right),
        ("Buffers", Right),
    ];
    // Where there are none nobody looks for them.
    let in_containers = processes.iter().any(|p| p.container.is_some() || p.elsewhere);
    if in_containers {
        columns.insert(2, ("Container", Left));
    }
    let row = |p: &Process| {
        let mut row = vec![
            shown(p.pid, p.host_pid).to_string(),
            p.program.clone() + if p.alive { "" } else { " (dead)" },
            p.uid.to_string(),
            p.connections_shm.to_string(),
            p.connections_smcr.to_string(),
            p.connections_tcp.to_string(),
            count(p.attached_total),
            count(p.attached_clients),
            count(p.attached_total.saturating_sub(p.attached_clients)),
            count(p.closed_total),
            bytes(p.counters.bytes_tx),
            bytes(p.counters.bytes_rx),
            count(p.counters.sends),
            count(p.counters.receives),
            count(p.counters.doorbells),
            count(p.counters.sleeps),
            count(p.counters.spins),
            count(p.counters.stalls),
            bytes(p.memory_owned_bytes),
            bytes(p.memory_used_bytes),
        ];
        if in_containers {
            row.insert(2, container(p));
        }
        row
    };
    render(&columns, &processes.iter().map(row).collect::<Vec<_>>())
}

/// The container that a process is in; `?` if it is in one that we may not look at.
fn container(process: &Process) -> String {
    let unknown = if process.elsewhere && process.alive { "?" } else { "-" };
    process.container.clone().unwrap_or_else(|| unknown.to_owned())
}

/// How many buffers there are of each size, those that are written to and those that are read from.
fn buffers(processes: &[Process]) -> Option<String> {
    let mut columns = vec![("Program", Side::Left), ("", Side::Left)];
    columns.extend(BufferSizes::NAMES.map(|name| (name, Side::Right)));
    let row = |p: &Process, way: &str, sizes: BufferSizes| {
        let mut cells = vec![process_name(p.pid, p.host_pid, &p.program), way.to_owned()];
        cells.extend(sizes.0.map(|n| n.to_string()));
        cells
    };
    let rows: Vec<_> = processes
        .iter()
        .flat_map(|p| [(p, "Tx", p.tx_buffers), (p, "Rx", p.rx_buffers)])
        .filter(|(_, _, sizes)| *sizes != BufferSizes::default())
        .map(|(p, way, sizes)| row(p, way, sizes))
        .collect();
    (!rows.is_empty()).then(|| render(&columns, &rows))
}

fn link_groups(groups: &[LinkGroup]) -> Option<String> {
    use Side::{Left, Right};
    let columns = [
        ("Program", Left),
        ("Peer Program", Left),
        ("Connections", Right),
        ("Tx", Right),
        ("Rx", Right),
        ("Bells", Right),
        ("Sleeps", Right),
        ("Stalls", Right),
    ];
    let row = |g: &LinkGroup| {
        vec![
            process_name(g.pid, g.host_pid, &g.program),
            process_name(g.peer_pid, g.peer_host_pid, &g.peer_program),
            g.connections.to_string(),
            bytes(g.bytes_tx),
            bytes(g.bytes_rx),
            count(g.doorbells),
            count(g.sleeps),
            count(g.stalls),
        ]
    };
    let rows: Vec<_> = groups.iter().map(row).collect();
    (!rows.is_empty()).then(|| render(&columns, &rows))
}

fn fallbacks(processes: &[Process]) -> Option<String> {
    use Side::{Left, Right};
    let columns = [("Program", Left), ("Connections", Right), ("Reason", Left)];
    let row = |p: &Process| {
        let program = process_name(p.pid, p.host_pid, &p.program);
        let fallback = move |f: &crate::snapshot::Fallback| {
            vec![program.clone(), f.count.to_string(), format!("{} ({})", f.reason, f.words)]
        };
        p.fallbacks.iter().map(fallback).collect::<Vec<_>>()
    };
    let rows: Vec<_> = processes.iter().flat_map(row).collect();
    (!rows.is_empty()).then(|| render(&columns, &rows))
}

fn listeners(listeners: &[Listener]) -> Option<String> {
    use Side::{Left, Right};
    let columns = [("State", Left), ("UID", Right), ("Port", Right), ("Program", Left)];
    let row = |l: &Listener| {
        let program = process_name(l.pid, l.host_pid, &l.program);
        vec!["LISTEN".into(), l.uid.to_string(), l.port.to_string(), program]
    };
    let rows: Vec<_> = listeners.iter().map(row).collect();
    (!rows.is_empty()).then(|| render(&columns, &rows))
}

#[cfg(test)]
pub(crate) mod tests;

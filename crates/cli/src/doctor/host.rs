//! The host, for whatever program: what its kernel, its limits and the directory of the board allow, and what runs here.

use std::path::Path;

use engine::remote::control::Request;
use engine::remote::host;
use nix::sys::utsname::uname;
use sys::uring::Ring;

use super::{Check, Report, units};
use crate::config::{Merged, Wrong};
use crate::{engine as remote, snapshot};

/// Programs on the board that are named.
const NAMED: usize = 8;

/// Looks at all of it. `sections`: what is wrong with those of the configuration file that are for an engine and a server.
pub(crate) fn examine(settings: &anyhow::Result<Merged>, sections: &[Wrong]) -> Report {
    let mut checks = vec![kernel_check(), super::library_check()];
    checks.extend(super::settings_checks(settings, ""));
    checks.extend(super::sections_checks(settings, sections));
    let dir = settings.as_ref().ok().and_then(|m| m.limits.dir.clone());
    checks.extend(super::place_checks(dir.as_deref()));
    checks.extend(board_users_check(dir.as_deref()));
    checks.extend(engine_settings_check(dir.as_deref()));
    checks.extend(super::memory_limit_check("self"));
    checks.extend(super::process_limits("self"));
    let sysctl = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok();
    checks.extend(sysctl("yama/ptrace_scope").map(|scope| yama_check(scope.trim())));
    checks.push(cgroup_check(Path::new("/sys/fs/cgroup/cgroup.controllers").exists()));
    checks.push(uring_check(Ring::new(8).map(drop).map_err(|why| why.to_string())));
    let is_rxe = Path::new("/sys/module/rdma_rxe").exists();
    checks.push(rdma_check(&remote::rdma_devices(), is_rxe));
    checks.push(units::check());
    Report::of_host(checks)
}

fn kernel_check() -> Check {
    const NAME: &str = "kernel";
    match uname() {
        Ok(of) => Check::ok(
            NAME,
            format!(
                "{} {}, {}",
                of.sysname().to_string_lossy(),
                of.release().to_string_lossy(),
                of.machine().to_string_lossy()
            ),
        ),
        Err(errno) => Check::warn(NAME, errno.desc(), "its version is not known"),
    }
}

/// Who takes part.
fn board_users_check(dir: Option<&str>) -> Option<Check> {
    const NAME: &str = "programs";
    let snapshot = snapshot::Watch::new(dir).and_then(|mut watch| watch.look());
    let snapshot = match snapshot {
        Ok(snapshot) => snapshot?,
        // Told by `board`.
        Err(_) => return None,
    };
    let mut names: Vec<String> = snapshot
        .processes
        .iter()
        .filter(|p| p.alive)
        .map(|p| format!("{} ({})", p.program, snapshot::shown(p.pid, p.host_pid)))
        .collect();
    let count = names.len();
    names.truncate(NAMED);
    let more = if count > NAMED { ", and more" } else { "" };
    let which = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    let s = if count == 1 { "" } else { "es" };
    Some(Check::ok(
        NAME,
        format!("{count} process{s} on the board{which}{more} (`shunt stat --totals`)"),
    ))
}

/// From where an engine speaks, and with whom.
fn engine_settings_check(dir: Option<&str>) -> Option<Check> {
    // One of another user, or none, does not answer.
    let stat = host::look(dir).ok()?;
    let settings = host::ask(dir, &Request::Show {}).ok()?;
    let addresses: Vec<&str> =
        stat["addresses"].as_array()?.iter().filter_map(|address| address.as_str()).collect();
    let from = match addresses.is_empty() {
        true => "the address that each connection has".to_owned(),
        false => addresses.join(" and "),
    };
    const NAME: &str = "eid";
    let found = |eid: &str| format!("the engine speaks RoCEv2 from {from}, enterprise ID {eid}");
    Some(match settings["eid"].as_str() {
        Some(eid) => Check::ok(NAME, found(eid)),
        None => {
            Check::warn(NAME, found("none"), "every peer is declined: shunt engine set eid=NAME")
        }
    })
}

/// Whether processes may borrow each other's descriptors (`pidfd_getfd(2)`).
fn yama_check(scope: &str) -> Check {
    const NAME: &str = "yama";
    let found = format!("kernel.yama.ptrace_scope is {scope}");
    match scope {
        "0" => Check::ok(NAME, found),
        _ => Check::warn(
            NAME,
            found,
            "a connection that is handed to another program while its peer is busy waits for the peer, five seconds at most, and \
             is reset then; 0 lets processes of one user help each other",
        ),
    }
}

fn cgroup_check(is_second: bool) -> Check {
    const NAME: &str = "cgroup";
    match is_second {
        true => Check::ok(NAME, "control groups of version 2"),
        false => Check::warn(
            NAME,
            "no control groups of version 2 in /sys/fs/cgroup",
            "an engine cannot announce SMC in the TCP handshake: name the other engines (peers)",
        ),
    }
}

/// What a file server waits by.
fn uring_check(ring: Result<(), String>) -> Check {
    const NAME: &str = "io_uring";
    match ring {
        Ok(()) => Check::ok(NAME, "allowed (shunt serve waits by it)"),
        Err(why) => {
            Check::warn(NAME, why, "shunt serve waits by epoll and threads, which costs more")
        }
    }
}

/// `is_rxe`: the kernel's own RoCEv2 is loaded.
fn rdma_check(devices: &[String], is_rxe: bool) -> Check {
    const NAME: &str = "rdma";
    let found = match devices.is_empty() {
        true => "no RDMA devices: an engine speaks RoCEv2 by UDP".to_owned(),
        false => format!("RDMA devices: {} (docs/devices.md)", devices.join(", ")),
    };
    match is_rxe {
        true => Check::warn(
            NAME,
            format!("{found}; rdma_rxe is loaded, which takes UDP port 4791"),
            "an engine with addresses of its own cannot start: rmmod rdma_rxe, or shunt engine --device",
        ),
        false => Check::ok(NAME, found),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn what_stands_in_the_way_of_some_is_a_warning() {
        for (check, outcome, words) in [
            (yama_check("0"), Outcome::Ok, "is 0"),
            (yama_check("1"), Outcome::Warn, "is 1"),
            (cgroup_check(false), Outcome::Warn, "version 2"),
            (uring_check(Err("forbidden".into())), Outcome::Warn, "forbidden"),
            (rdma_check(&[], false), Outcome::Ok, "no RDMA devices"),
            (rdma_check(&["mlx5_0".into()], false), Outcome::Ok, "mlx5_0"),
            (rdma_check(&["rxe0".into()], true), Outcome::Warn, "4791"),
        ] {
            assert_eq!(check.outcome, outcome, "{check:?}");
            assert!(check.found.contains(words), "{check:?}");
            assert_eq!(check.advice.is_some(), outcome == Outcome::Warn, "{check:?}");
        }
    }

    #[test]
    fn a_verdict_is_of_the_host() {
        let text = Report::of_host(vec![Check::ok("a", "fine")]).text();
        assert_eq!(text, "ok    a  fine\nprograms can be accelerated here\n");
        let text = Report::of_host(vec![Check::no("a", "closed", "open it")]).text();
        assert!(text.ends_with("\nprograms stay on TCP here: closed\n"), "{text}");
    }
}

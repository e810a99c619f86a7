//! CPU time: of the server and all that it starts, of this process, of the machine.

use std::collections::HashMap;
use std::fs;

use anyhow::Context;

/// The kernel counts in hundredths of a second here (`USER_HZ`), whatever its own tick is.
const TICKS: f64 = 100.0;

/// CPU time of some processes, seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user: f64,
    pub(crate) system: f64,
    pub(crate) processes: u32,
}

impl Usage {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            user: self.user - before.user,
            system: self.system - before.system,
            processes: self.processes,
        }
    }

    pub(crate) fn total(self) -> f64 {
        self.user + self.system
    }
}

/// What the whole machine did, seconds of all CPUs together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Machine {
    busy: f64,
    idle: f64,
    pub(crate) stolen: f64,
}

impl Machine {
    /// Since boot.
    pub(crate) fn now() -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let fields: Vec<f64> = line.split_whitespace().skip(1).map_while(ticks).collect();
        let field = |at: usize| fields.get(at).copied().unwrap_or(0.0);
        Self {
            busy: field(0) + field(1) + field(2) + field(5) + field(6),
            idle: field(3) + field(4),
            stolen: field(7),
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            busy: self.busy - before.busy,
            idle: self.idle - before.idle,
            stolen: self.stolen - before.stolen,
        }
    }

    pub(crate) fn busy_percent(self) -> f64 {
        100.0 * self.busy / (self.busy + self.idle).max(1e-9)
    }
}

fn ticks(word: &str) -> Option<f64> {
    word.parse::<f64>().ok().map(|ticks| ticks / TICKS)
}

/// Parent and usage, children that have ended included.
fn of_process(pid: u32) -> Option<(u32, Usage)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, even parentheses.
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let time = |at: usize| fields.get(at).and_then(|word| ticks(word));
    let user = time(11)? + time(13)?;
    Some((
        fields.get(1)?.parse().ok()?,
        Usage { user, system: time(12)? + time(14)?, processes: 1 },
    ))
}

/// Of this process.
pub(crate) fn own() -> Usage {
    of_process(std::process::id()).map_or_else(Usage::default, |(_, usage)| usage)
}

/// Of process `root` and all below it, those that ended included.
///
/// # Errors
///
/// When there is no such process.
pub(crate) fn of_tree(root: u32) -> anyhow::Result<Usage> {
    let entries = fs::read_dir("/proc").context("/proc")?.flatten();
    let all: HashMap<u32, (u32, Usage)> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, of_process(pid)?)))
        .collect();
    all.get(&root).with_context(|| format!("the server's process {root} is gone"))?;
    let (mut sum, mut stack) = (Usage::default(), vec![root]);
    while let Some(pid) = stack.pop() {
        if let Some((_, usage)) = all.get(&pid) {
            sum.user += usage.user;
            sum.system += usage.system;
            sum.processes += 1;
        }
        stack.extend(all.iter().filter(|(_, (parent, _))| *parent == pid).map(|(pid, _)| *pid));
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_children_are_counted() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let usage = of_tree(std::process::id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(usage.processes >= 2, "{usage:?}");
        assert!(of_tree(u32::MAX).is_err());
    }
}

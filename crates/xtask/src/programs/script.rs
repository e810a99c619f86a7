//! A file in `programs/`: comments that say what it wants, and functions of the shell.
//!
//! ```sh
//! # socat that forks.                what the table says
//! # packages: socat                  Debian's
//! # needs: socat /usr/share/x.jar     programs and files that must be here
//! # as: postgres                     the user whose all of it is; not on two hosts then, whose engines are root's
//! # stays: its program is another one   why its connections stay on TCP, if they do
//! # one host                         its client connects to nobody on another host
//! # pause: 2                         seconds after the last server listens, before the client begins
//!
//! setup() { … }                      once, in an empty directory, not under Shunt
//! server() { exec socat … $A:$P … }  listens on port $P of address $A; server2 on $P2, and so on, in this order
//! client() { … }                     says the same each time
//! ```
//!
//! `$D` is the directory; all ports and the address are in the environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::install;

/// Ports that a script may have.
pub(super) const PORTS: usize = 4;

/// What a file says of itself.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) path: PathBuf,
    /// Of the file, without its ending.
    pub(super) name: String,
    pub(super) title: String,
    pub(super) packages: Vec<String>,
    pub(super) needs: Vec<String>,
    pub(super) user: Option<String>,
    /// Why its connections stay on TCP.
    pub(super) stays: Option<String>,
    pub(super) one_host: bool,
    pub(super) pause: Duration,
    /// Functions, and the number of the port that each listens on, from 0 on.
    pub(super) servers: Vec<(String, usize)>,
    pub(super) has_setup: bool,
}

/// All of a directory, by name.
///
/// # Errors
///
/// When one cannot be read or makes no sense.
pub(super) fn all(dir: &Path) -> anyhow::Result<Vec<Script>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut scripts = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        scripts.push(parse(&path, &text).with_context(|| format!("{}", path.display()))?);
    }
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(scripts)
}

fn parse(path: &Path, text: &str) -> anyhow::Result<Script> {
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut script = Script { path: path.into(), name, ..Script::default() };
    script.pause = Duration::from_millis(200);
    for line in text.lines() {
        let words = |rest: &str| rest.split_whitespace().map(str::to_owned).collect();
        if let Some(rest) = line.strip_prefix("# packages:") {
            script.packages = words(rest);
        } else if let Some(rest) = line.strip_prefix("# needs:") {
            script.needs = words(rest);
        } else if let Some(rest) = line.strip_prefix("# as:") {
            script.user = Some(rest.trim().to_owned());
        } else if let Some(rest) = line.strip_prefix("# stays:") {
            script.stays = Some(rest.trim().to_owned());
        } else if line == "# one host" {
            script.one_host = true;
        } else if let Some(rest) = line.strip_prefix("# pause:") {
            script.pause = Duration::from_secs(rest.trim().parse().context("pause: seconds")?);
        } else if let (Some(rest), true) = (line.strip_prefix("# "), script.title.is_empty()) {
            script.title = rest.trim_end_matches('.').to_owned();
        } else if let Some(function) = line.strip_suffix("() {") {
            script.has_setup |= function == "setup";
            if let Some(number) = function.strip_prefix("server") {
                let port = if number.is_empty() { 1 } else { number.parse()? };
                ensure!((1..=PORTS).contains(&port), "{function}: a port from 1 to {PORTS}");
                script.servers.push((function.to_owned(), port - 1));
            }
        }
    }
    ensure!(!script.title.is_empty(), "the first line says what it is");
    ensure!(!script.packages.is_empty() && !script.needs.is_empty(), "packages: and needs:");
    ensure!(text.contains("\nclient() {\n"), "a client");
    Ok(script)
}

impl Script {
    /// What it needs and is not here.
    pub(super) fn lacks(&self) -> Vec<&str> {
        let lacks = |need: &&str| match need.strip_prefix("python3:") {
            Some(module) => install::python_with(module).is_none(),
            // Where the programs alone may have come with another package.
            None if need.starts_with('/') => !Path::new(need).exists(),
            None => install::find(need).is_none(),
        };
        self.needs.iter().map(String::as_str).filter(lacks).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# An echo.\n# packages: socat x\n# needs: socat\n# pause: 3\n\nserver2() {\n    exec a\n}\n\n\
        server() {\n    exec b\n}\n\nclient() {\n    c\n}\n";

    #[test]
    fn servers_begin_in_the_order_of_the_file() {
        let script = parse(Path::new("/x/echo.sh"), TEXT).unwrap();
        assert_eq!((script.name.as_str(), script.title.as_str()), ("echo", "An echo"));
        assert_eq!(script.servers, [("server2".to_owned(), 1), ("server".to_owned(), 0)]);
        assert_eq!((script.pause, script.has_setup), (Duration::from_secs(3), false));
        assert_eq!(script.packages, ["socat", "x"]);
    }

    #[test]
    fn what_is_missing_is_said() {
        for (lacks, from, to) in [
            ("a client", "client()", "klient()"),
            ("packages", "# packages: socat x\n", ""),
            ("first line", "# An echo.\n", ""),
            ("a port", "server2", "server9"),
        ] {
            let said = parse(Path::new("echo.sh"), &TEXT.replace(from, to)).unwrap_err();
            assert!(said.to_string().contains(lacks), "{lacks}: {said}");
        }
    }

    #[test]
    fn all_that_there_are_can_be_read() {
        let scripts = all(&crate::workspace_root().join("crates/xtask/programs")).unwrap();
        assert!(scripts.len() >= 40, "{}", scripts.len());
        let long = scripts.iter().find(|script| script.title.contains('|'));
        assert!(long.is_none(), "a title is a cell of a table");
    }
}

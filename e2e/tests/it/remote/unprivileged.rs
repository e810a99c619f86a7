//! Engines and programs of a user without privileges: no BPF program, no raw socket, nothing but sockets of their own.
//! The engines of both hosts ask each other which connections they share (the setting `peers`).

use std::os::unix::fs::{PermissionsExt, chown};

use super::*;

/// Whose they are: who owns nothing, as a rule, and no other test's.
const USER: u32 = 65_534;
/// What to type before a program so that it is that user's and can never get more.
pub(super) const PREFIX: [&str; 9] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--ambient-caps=-all",
    "--bounding-set=-all",
    "--no-new-privs",
    "--",
];

/// Our programs where anybody may run them: they may have been built in a folder that is closed to others.
pub(super) struct Copies(PathBuf);

impl Copies {
    /// The boards' folders are the user's from now on.
    pub(super) fn for_boards(boards: &[BoardDir]) -> Self {
        boards.iter().for_each(|board| chown(board.path(), Some(USER), Some(USER)).unwrap());
        let name = boards[0].path().file_name().unwrap();
        let place = std::env::temp_dir().join(name);
        std::fs::create_dir(&place).unwrap();
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
        for program in ["shunt", "libshunt_preload.so"] {
            e2e::run::copy_program(built(program), place.join(program));
        }
        Self(place)
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A Python that the user may run.
fn python() -> Option<PathBuf> {
    let may_run = |python: &PathBuf| {
        let mut command = Command::new(PREFIX[0]);
        command.args(&PREFIX[1..]).arg(python).args(["-c", "import hashlib"]);
        command.stdin(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
    };
    let all = installed("python3").into_iter().chain([PathBuf::from("/usr/bin/python3")]);
    let found = all.into_iter().find(may_run);
    if found.is_none() {
        skipped("there is no setpriv, or no Python that anybody may run");
    }
    found
}

/// A field of `/proc/PID/status`.
fn field(pid: i32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().split_whitespace().next().unwrap_or_default().to_owned()
}

#[test]
fn engines_without_privileges_meet_and_connections_go_by_smc() {
    let kind = Kind { meets: true, unprivileged: true, ..Kind::default() };
    // What is short goes by SMC as well.
    let settings = ["--spare-short", "off"];
    let Some(python) = python() else { return };
    let Some(pair) = Pair::of(kind, Hosts::new(), [&settings[..]; 2]) else { return };
    for engine in &pair.engines {
        let of = |name| field(engine.pid(), name);
        assert_eq!(of("Uid"), USER.to_string());
        for capabilities in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(u64::from_str_radix(&of(capabilities), 16), Ok(0), "{capabilities}");
        }
        assert_eq!(of("NoNewPrivs"), "1");
    }
    let talk = Talk::serve(&pair, &python, "echo", true);
    let echo = |words: &[&str]| {
        let got = talk.client(&pair, &python, words, true);
        assert!(got.ok(), "{words:?}: {got:?}\n{:#}", pair.status(Side::Client));
    };
    // The first ones find the engines strangers.
    eventually("a connection goes by SMC-R", || {
        echo(&["echo", "1,1000"]);
        pair.carried(Side::Client) > 0
    });
    let before = pair.carried(Side::Client);
    echo(&["echo", "1,2,17,65537,5000000"]);
    echo(&["many", "100"]);
    // On a machine that is busy enough a question or an answer may come too late for some.
    let late = || pair.declined(Side::Client);
    eventually("all are counted", || pair.carried(Side::Client) - before + late() >= 101);
    assert!(pair.carried(Side::Client) - before > 10, "{:#}", pair.status(Side::Client));
    let sum = |side, name: &str| {
        let status = pair.status(side);
        let vectors = status["vectors"].as_array().unwrap();
        vectors.iter().filter_map(|v| v[name].as_u64()).sum::<u64>()
    };
    for side in [Side::Server, Side::Client] {
        assert!(sum(side, "bytes_tx") > 100_000 && sum(side, "bytes_rx") > 100_000);
    }
    // A reset and an end are what they are here as well.
    for (mode, words) in [("reset", &["reset"][..]), ("greet", &["greet"])] {
        let talk = Talk::serve(&pair, &python, mode, true);
        let got = talk.client(&pair, &python, words, true);
        assert!(got.ok(), "{mode}: {got:?}");
    }
}

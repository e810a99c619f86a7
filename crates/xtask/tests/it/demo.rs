//! `cargo xtask demo` on a machine that has none of the programs of others which it could show.
//!
//! The machine of a test may have them. So the demonstration runs where nobody finds them: in a mount namespace of its
//! own, in which something that cannot be run lies over each, and with a path that leads nowhere else.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const XTASK: &str = env!("CARGO_BIN_EXE_xtask");
/// What it could show, if it were there.
const OTHERS: &[&str] = &["nginx", "wrk", "redis-server", "redis-benchmark"];
/// Where a shell and `taskset` are, which no Debian is without, and where `cargo xtask` looks beside.
const DIRS: &[&str] =
    &["/bin", "/usr/bin", "/usr/local/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"];
/// What it starts of this workspace's.
const BUILT: &[&str] =
    &["libshunt_preload.so", "shunt", "pingpong", "cacheline", "httpd", "httpload", "bulk", "idle"];

/// Where cargo has put this build: above the profile's directory with `xtask` in it.
fn target() -> &'static Path {
    Path::new(XTASK).ancestors().nth(2).unwrap_or_else(|| Path::new("/"))
}

/// A shell's script in a mount namespace of its own. Whoever is not root brings a user namespace along.
fn hidden(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !nix::unistd::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["sh", "-euc", script]).stdin(Stdio::null());
    command
}

/// Lays what cannot be run over each of the programs.
fn hide_all() -> String {
    let places = DIRS.iter().flat_map(|dir| OTHERS.iter().map(|name| Path::new(dir).join(name)));
    let there: Vec<PathBuf> = places.filter(|place| place.exists()).collect();
    there.iter().map(|place| format!("mount --bind /dev/null {}\n", place.display())).collect()
}

/// Why it cannot be shown here.
fn obstacle() -> Option<String> {
    let absent = BUILT.iter().find(|name| !target().join("release").join(name).exists());
    if let Some(name) = absent {
        return Some(format!("no {name} in {}: nothing was built to show", target().display()));
    }
    let tried = hidden("mount --bind /dev/null /proc/version").stderr(Stdio::null()).status();
    (!tried.is_ok_and(|status| status.success()))
        .then(|| "wants a mount namespace of its own (unshare), which is refused here".to_owned())
}

fn demo() -> Output {
    let run = "exec env PATH=\"$DIRS\" \"$XTASK\" demo --no-build";
    let script = format!("{}{run}", hide_all());
    let mut command = hidden(&script);
    command.env("XTASK", XTASK).env("DIRS", DIRS.join(":")).env("CARGO_TARGET_DIR", target());
    command.output().expect("unshare starts, as it did before")
}

#[test]
fn with_nothing_of_others_it_shows_the_programs_that_were_built_here() {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    let Output { status, stdout, stderr } = demo();
    let text = String::from_utf8_lossy(&stdout);
    let said = format!("{text}{}", String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}: {said}");
    for name in OTHERS {
        let named = text.lines().any(|line| line.trim_start().starts_with(&format!("{name} ")));
        assert!(named, "{name} is absent, and not named: {said}");
    }
    assert!(text.contains("one command brings it:  cargo xtask demo --install\n"), "{said}");
    // A row is its name, two figures, a unit and how many times as much.
    let ratio = |row: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(row))?;
        line.trim_end().strip_suffix('x')?.split_whitespace().last()?.parse::<f64>().ok()
    };
    for row in [
        "httpd+httpload keep-alive c=1 ",
        "httpd+httpload keep-alive c=16 ",
        "httpd+httpload keep-alive c=128 ",
        "ping-pong 100 B ",
    ] {
        assert!(ratio(row).is_some_and(|ratio| ratio > 0.0), "no row of {row}: {said}");
    }
    assert!(!text.contains("nginx+wrk") && !text.contains("redis-benchmark GET"), "{said}");
    let stat = text.split_once("`shunt stat` says:").map(|(_, rest)| rest);
    assert!(stat.is_some_and(|rest| rest.contains("httpd")), "nothing of the connections: {said}");
}

//! Programs and libraries of another architecture: Debian's packages, unpacked as a system that a guest runs. None is set
//! up; what setting up would make, and programs look for, is made here.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Context;

use super::apt::{Apt, Suite};
use super::architecture::Architecture;

/// What each system has.
const BASE: &[&str] = &[
    "base-files",
    "base-passwd",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "findutils",
    "gawk",
    "grep",
    "hostname",
    "iproute2",
    "libc-bin",
    "mount",
    "procps",
    "sed",
    "util-linux",
];
/// Files that are there under another name until a package is set up.
const COPIES: &[(&str, &str)] = &[
    ("usr/share/base-passwd/passwd.master", "etc/passwd"),
    ("usr/share/base-passwd/group.master", "etc/group"),
    ("usr/share/libc-bin/nsswitch.conf", "etc/nsswitch.conf"),
];
/// Names for programs that Debian leaves to alternatives.
const LINKS: &[(&str, &str)] =
    &[("usr/bin/awk", "gawk"), ("usr/bin/cc", "gcc"), ("usr/bin/nc", "/bin/busybox")];
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";
/// Written last: a system without it is not whole.
const WHOLE: &str = "etc/whole";

/// Whether there is a system with these packages in this directory.
#[must_use]
pub fn is_there(directory: &Path, packages: &[&str]) -> bool {
    fs::read_to_string(directory.join(WHOLE)).is_ok_and(|there| there == packages.join(" "))
}

/// Fetches a system with these packages and all that they need.
///
/// # Errors
///
/// What stands in the way: not a Debian, no network.
pub fn fetch(
    directory: &Path,
    architecture: Architecture,
    packages: &[&str],
) -> anyhow::Result<()> {
    let parent = directory.parent().context("a directory has a parent")?;
    let work = parent.join("fetching");
    for old in [&work, directory] {
        let _ = fs::remove_dir_all(old);
    }
    fs::create_dir_all(&work)?;
    let all: Vec<&str> = BASE.iter().chain(packages).copied().collect();
    Apt::new(&work, architecture.debian(), Suite::Own)?.unpack_all(&all, directory)?;
    fs::remove_dir_all(&work)?;
    set_up(directory)?;
    fs::write(directory.join(WHOLE), packages.join(" "))?;
    Ok(())
}

fn set_up(root: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(root.join("etc"))?;
    for (from, to) in COPIES {
        fs::copy(root.join(from), root.join(to)).with_context(|| (*to).to_owned())?;
    }
    fs::write(root.join("etc/hosts"), HOSTS)?;
    for (place, target) in LINKS {
        let place = root.join(place);
        if fs::symlink_metadata(&place).is_err() {
            symlink(target, place)?;
        }
    }
    Ok(())
}

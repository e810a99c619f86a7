//! The package for Debian: made of what was built, installed in a copy of this system, used there, exchanged and removed.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use e2e::run::{outcome, skipped};
use e2e::{bin_dir, built, installed, workspace_root};
use testkit::kernels::ending::Directory;

const LIMIT: Duration = Duration::from_secs(240);

/// The package; there is one, or that was said.
fn package(directory: &Directory) -> Option<PathBuf> {
    let absent = ["dpkg-deb", "objdump", "strip", "bash", "ip"];
    if let Some(name) = absent.into_iter().find(|name| installed(name).is_none()) {
        skipped(&format!("there is no {name}"));
        return None;
    }
    let _ = built("libshunt_preload.so");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace_root()).args(["xtask", "package", "--without-c"]);
    command.arg("--from").arg(bin_dir()).arg("--out").arg(directory.path());
    // Nobody keeps it: that it is small is worth no time here.
    command.env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
    let made = outcome(&mut command, LIMIT);
    assert_eq!(made.code, 0, "{made:?}");
    let files = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.collect();
    files.sort_by_key(|path| path.extension().map(ToOwned::to_owned));
    assert!(files.len() == 2 && files[1].to_str().unwrap().ends_with(".tar.gz"), "{files:?}");
    Some(files.swap_remove(0))
}

#[test]
fn the_package_brings_all_and_leaves_nothing() {
    let directory = Directory::new().unwrap();
    let Some(package) = package(&directory) else { return };
    if !rustix::process::geteuid().is_root() {
        skipped("to install a package takes root");
        return;
    }
    let stage = workspace_root().join("e2e/tests/it/package/stage.sh");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "sh"]).arg(stage).arg(&package).arg(built("pingpong"));
    let tried = outcome(&mut command, LIMIT);
    if tried.out.trim() == "no overlay" {
        skipped(&format!("no copy of this system can be made: {}", tried.err));
        return;
    }
    assert_eq!(tried.code, 0, "{tried:?}");
    let version = package.to_str().unwrap().split('_').nth(1).unwrap();
    let expected = [
        &format!("shunt {}", env!("CARGO_PKG_VERSION")),
        &format!("version {version}"),
        "bash completes",
        "has /usr/share/man/man1/shunt-run.1.gz",
        "has /usr/lib/systemd/system/shunt-engine.service",
        "has /usr/share/shunt/avahi/shunt-serve.service",
        "has /usr/share/shunt/monitoring/shunt.rules.yml",
        "attached after",
        &format!("/dev/shm/shared/board-all-v{}", sys::abi::VERSION),
        "LD_PRELOAD=/usr/lib/shunt/$LIB/libshunt_preload.so",
        "libshunt_preload.so",
        "/etc/shunt/config.toml:1",
        // Installed again: what the administrator wrote is there, once.
        "1",
        "lacks /usr/bin/shunt",
        "has /etc/shunt/config.toml",
        "lacks /etc/shunt/config.toml",
        "has /etc/shunt/users",
        "lacks /usr/lib/shunt",
    ];
    assert_eq!(tried.out.lines().collect::<Vec<_>>(), expected, "{}", tried.err);
}

/// It is loaded into what is there, in a container with an older system too: what it asked for beyond that would keep
/// programs from starting.
#[test]
fn the_library_asks_for_no_more_than_an_old_c_library() {
    if installed("objdump").is_none() {
        return skipped("there is no objdump");
    }
    let library = built("libshunt_preload.so");
    let said = outcome(Command::new("objdump").arg("-p").arg(&library), LIMIT);
    assert_eq!(said.code, 0, "{said:?}");
    let needed = said.out.lines().filter_map(|line| line.trim().strip_prefix("NEEDED"));
    let mut needed: Vec<&str> =
        needed.map(str::trim).filter(|name| !name.starts_with("ld-linux")).collect();
    needed.sort_unstable();
    assert_eq!(needed, ["libc.so.6"]);
    let versions = said.out.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_2."));
    let newest =
        versions.filter_map(|version| version.split('.').next()?.parse::<u32>().ok()).max();
    // 2.18, which Rust's library asks for weakly, where it is not optimised with ours.
    assert!(newest.is_some_and(|newest| newest <= 18), "{}", said.out);
    // And it gives programs no names but those that it stands in front of.
    let shown = outcome(Command::new("objdump").arg("-T").arg(&library), LIMIT);
    for hidden in
        ["dlsym", "gettid", "statx", "stat64", "fstat64", "pthread_key_create", "_Unwind_Resume"]
    {
        let is_it = |line: &&str| line.split_whitespace().last() == Some(hidden);
        assert_eq!(shown.out.lines().find(is_it), None, "{hidden}");
    }
}

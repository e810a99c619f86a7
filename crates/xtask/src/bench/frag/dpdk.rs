//! DPDK's librte_ip_frag: the library as Debian ships it for datagrams of up to 8 fragments, and built from
//! Debian's source with room for more.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::{Bench, Figures};
use crate::bench::built;

/// The parts of the source that reassembly consists of.
const SOURCES: [&str; 4] = [
    "rte_ipv4_reassembly.c",
    "rte_ipv6_reassembly.c",
    "ip_frag_internal.c",
    "rte_ip_frag_common.c",
];
const FETCH: &str = "`cargo xtask bench frag --fetch` brings it, as root";
/// More than this the shipped library cannot put together.
const STOCK_BYTES_MAX: u32 = 8 * 1480 - 8;

/// The program that measures it.
#[derive(Debug)]
pub(crate) struct Dpdk(PathBuf);

impl Dpdk {
    /// Builds it for datagrams of that size, or says why not.
    pub(crate) fn of(bench: &Bench, size: u32) -> Result<Self, String> {
        let large = size > STOCK_BYTES_MAX;
        let flags = |what| pkg_config(what).map_err(|_| format!("no libdpdk: {FETCH}"));
        let (compile, link) = (flags("--cflags")?, flags("--libs")?);
        let program = bench.stage.program(if large { "dpdk-large" } else { "dpdk" });
        if program.exists() {
            return Ok(Self(program));
        }
        let peers = bench.root.join("bench/peers");
        let mut cc = Command::new("cc");
        cc.args(["-O3", "-w"]).args(&compile).arg(peers.join("dpdk_ip_frag.c"));
        if large {
            let source = source_dir(&bench.root);
            if !source.join(SOURCES[0]).exists() {
                return Err(format!(
                    "the shipped library puts together 8 fragments at most, and its source is not here: {FETCH}"
                ));
            }
            cc.arg("-include").arg(peers.join("max_frag.h")).arg("-I").arg(&source);
            cc.args(SOURCES.map(|file| source.join(file)));
        }
        let output = cc.arg("-o").arg(&program).args(&link).output();
        match output {
            Ok(output) if output.status.success() => Ok(Self(program)),
            Ok(output) => Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(format!("cc: {error}")),
        }
    }

    /// Writes the trace where the program finds it.
    ///
    /// # Errors
    ///
    /// When there is no room.
    pub(crate) fn trace(&self, bench: &Bench, words: &[&str]) -> anyhow::Result<PathBuf> {
        let path = bench.stage.program("trace");
        let to = path.to_str().context("a path that is no text")?;
        bench.fragbench(&[&["trace", "--to", to], words].concat())?;
        Ok(path)
    }

    /// One turn.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub(crate) fn run(&self, bench: &Bench, trace: &Path) -> anyhow::Result<Figures> {
        let passes = bench.passes.to_string();
        let words: [OsString; 6] = [
            "taskset".into(),
            "-c".into(),
            "0".into(),
            self.0.clone().into(),
            trace.into(),
            passes.into(),
        ];
        bench.run(&words)
    }
}

fn pkg_config(what: &str) -> anyhow::Result<Vec<String>> {
    let output = Command::new("pkg-config").args([what, "libdpdk"]).output()?;
    ensure!(output.status.success(), "no libdpdk");
    Ok(String::from_utf8(output.stdout)?.split_whitespace().map(str::to_owned).collect())
}

/// Where the source is kept, out of the repository.
fn source_dir(root: &Path) -> PathBuf {
    built(root).join("dpdk-ip-frag")
}

/// Installs the library and fetches the source.
///
/// # Errors
///
/// When one of them cannot be had.
pub(crate) fn fetch(root: &Path) -> anyhow::Result<()> {
    if pkg_config("--libs").is_err() {
        apt(Path::new("/"), &["install", "-y", "--no-install-recommends", "libdpdk-dev"])?;
    }
    let dir = source_dir(root);
    if dir.join(SOURCES[0]).exists() {
        return Ok(());
    }
    let lists = dir.join("lists");
    fs::create_dir_all(lists.join("partial"))?;
    let sources = dir.join("sources.list");
    let suite = suite()?;
    fs::write(&sources, format!("deb-src {} {suite} main\n", archive(&suite)?))?;
    let option = |name: &str, value: &Path| format!("-oDir::{name}={}", value.display());
    let options = [
        option("Etc::sourcelist", &sources),
        option("Etc::sourceparts", Path::new("-")),
        option("State::lists", &lists),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    apt(&dir, &[&options[..], &["update", "-qq"]].concat())?;
    apt(&dir, &[&options[..], &["source", "-qq", "--download-only", "dpdk"]].concat())?;
    unpack(&dir)
}

/// The release's name, as Debian's archive has it.
fn suite() -> anyhow::Result<String> {
    let text = fs::read_to_string("/etc/os-release")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(line.context("/etc/os-release names no release")?.to_owned())
}

/// Where this machine has the release's packages from: its sources are there too.
fn archive(suite: &str) -> anyhow::Result<String> {
    let of_suite = format!("Codename: {suite}");
    let words = ["indextargets", "--format", "$(REPO_URI)", &of_suite, "Created-By: Packages"];
    let output = Command::new("apt-get").args(words).output().context("cannot start apt-get")?;
    let text = String::from_utf8(output.stdout)?;
    let first = text.lines().next().context("apt knows no archive; `apt-get update` first")?;
    Ok(first.to_owned())
}

fn apt(dir: &Path, words: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("apt-get")
        .args(words)
        .current_dir(dir)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context("cannot start apt-get")?;
    ensure!(status.success(), "`apt-get {}` failed", words.join(" "));
    Ok(())
}

/// Keeps what is compiled.
fn unpack(dir: &Path) -> anyhow::Result<()> {
    let archive = fs::read_dir(dir)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().ends_with(".orig.tar.xz"));
    let Some(archive) = archive else { bail!("apt-get brought no source") };
    let status = Command::new("tar")
        .args(["xf"])
        .arg(&archive)
        .args(["--strip-components=3", "--wildcards", "*/lib/ip_frag/*"])
        .current_dir(dir)
        .status()?;
    ensure!(status.success(), "cannot unpack {}", archive.display());
    Ok(fs::remove_file(archive)?)
}

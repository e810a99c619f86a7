//! `cargo xtask aarch64`: the tests, built for Arm's 64-bit CPUs, on a Linux kernel of theirs in an emulated machine.
//!
//! The machine has a Debian of its own and this repository at the place where it is here, so that tests find what they
//! look for. What is built lies in a target directory of its own.

mod account;
mod build;
mod suite;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Parser, ValueEnum};
use testkit::kernels::architecture::Architecture;
use testkit::kernels::ending::Directory;
use testkit::kernels::guest::{Guest, Image, Shape, Size};
use testkit::kernels::image::{self, Contents, Tools};
use testkit::kernels::network::Network;
use testkit::kernels::package::{Flavour, Kernel};
use testkit::kernels::system;

use crate::test::tally::{Reader, Tally};
use crate::{bench, install, interop};
use account::{Cell, Place};
use build::Built;
use suite::{SUITES, Suite};

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask aarch64",
    about = "Runs the tests on an Arm CPU's Linux, in an emulated machine"
)]
struct Cli {
    /// Fetch QEMU, a linker, a kernel and a Debian for it first (Debian packages)
    #[arg(long)]
    install: bool,
    /// How large the pages of its memory are
    #[arg(long, value_name = "SIZE", default_value = "4k")]
    pages: Pages,
    /// Only suites whose name contains this (may be given more than once)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// In place of what these suites are, tests of their programs whose path contains this (may be given more than once)
    #[arg(long, value_name = "PATH")]
    test: Vec<String>,
    /// How many tests at once
    #[arg(long, default_value_t = 2)]
    at_once: usize,
    /// All seeds, and cases in all the ways in which two ends can be: hours
    #[arg(long)]
    whole: bool,
    /// Note what became of each suite in bench/record/aarch64.tsv and docs/aarch64.md
    #[arg(long)]
    record: bool,
    /// Start the programs that were built before; only tests are built, where they have changed
    #[arg(long)]
    no_build: bool,
    /// Show the suites
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pages {
    /// As most distributions have them.
    #[value(name = "4k")]
    Small,
    /// As some have them, for speed.
    #[value(name = "16k")]
    Large,
}

impl Pages {
    const fn flavour(self) -> Flavour {
        match self {
            Self::Small => Flavour::Arm,
            Self::Large => Flavour::Arm16k,
        }
    }

    const fn place(self) -> Place {
        match self {
            Self::Small => Place::Pages4k,
            Self::Large => Place::Pages16k,
        }
    }
}

const ARCHITECTURE: Architecture = Architecture::Aarch64;
const PROGRAMS: &[&str] =
    &["cc", "aarch64-linux-gnu-gcc", "qemu-system-aarch64", "ip", "xz", "dpkg-deb"];
/// Packages that tests want, of those that [`install`] knows.
const PACKAGES: &[&str] = &[
    "curl",
    "gcc",
    "haproxy",
    "iperf3",
    "libc6-dev",
    "libibverbs-dev",
    "liburing2",
    "libpython3.11-testsuite",
    "memcached",
    "nftables",
    "nginx-light",
    "postgresql",
    "python3",
    "redis-server",
    "redis-tools",
    "strace",
    "wrk",
];
/// What tests ask the kernel for by name, and it has as modules.
const MODULES: &[&str] = &[
    "veth",
    "dummy",
    "bridge",
    "tun",
    "sch_netem",
    "tcp_diag",
    "udp_diag",
    "tls",
    "gcm",
    "ghash_generic",
    "nf_tables",
    "nft_chain_nat",
    "nft_masq",
    "nft_redir",
    "overlay",
];
const MEMORY_MIB: u32 = 6144;
/// What a kernel alone does not have.
const SET_UP: &str = "\
    mkdir -p /dev/shm /dev/pts && mount -t tmpfs -o mode=1777 shm /dev/shm && mount -t devpts devpts /dev/pts && \
    mount -t tmpfs run /run && mount -t cgroup2 cgroup /sys/fs/cgroup && ln -s /proc/self/fd /dev/fd && \
    getconf PAGESIZE";
/// The whole run, with a reserve.
const LIMIT: Duration = Duration::from_secs(150 * 60);
const POLL: Duration = Duration::from_millis(200);

/// Runs `cargo xtask aarch64`. That it cannot run here is no failure unless something was to be installed: it says
/// `skipped:` and why.
///
/// # Errors
///
/// When something cannot be built or fetched, the machine does not boot, or a test fails.
pub(crate) fn main(args: &[String]) -> anyhow::Result<ExitCode> {
    let words = ["cargo xtask aarch64"].into_iter().chain(args.iter().map(String::as_str));
    let cli = Cli::parse_from(words);
    let chosen = chosen(&cli);
    ensure!(!chosen.is_empty(), "no suite is called so: see `cargo xtask aarch64 --list`");
    ensure!(!cli.record || cli.test.is_empty(), "what is recorded is whole suites: without --test");
    if cli.list {
        chosen.iter().for_each(|suite| println!("{}", suite.name));
        return Ok(ExitCode::SUCCESS);
    }
    let wanted: Vec<&str> = PROGRAMS.iter().copied().chain([install::CROSS_LIBRARY]).collect();
    install::check("aarch64", &wanted, cli.install)?;
    if let Some(why) = interop::obstacle(PROGRAMS) {
        println!("skipped: {why}");
        return Ok(if cli.install { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let root = crate::workspace_root();
    let target = target(&root)?;
    let Some((kernel, debian)) = fetched(&target, cli.pages.flavour(), cli.install)? else {
        println!(
            "skipped: there is no kernel, or no Debian, to boot; `cargo xtask aarch64 --install` fetches them"
        );
        return Ok(ExitCode::SUCCESS);
    };
    let built = Built::new(&root, &target, cli.install, !cli.no_build)?;
    interop::end_in_time(LIMIT)?;
    let directory = Directory::new()?;
    let initramfs = directory.path().join("initramfs");
    let modules = image::FOLDER.iter().chain(MODULES).copied().collect();
    let contents = Contents { modules, ..Contents::default() };
    std::fs::write(
        &initramfs,
        image::make(&kernel, Tools::System(&debian), &built.peer, &contents)?,
    )?;
    run(&cli, &root, &chosen, &built, &kernel.with(initramfs))
}

/// Where all of it lies.
fn target(root: &Path) -> anyhow::Result<PathBuf> {
    let built = bench::built(root);
    let target = built.parent().context("a directory has a parent")?.join("aarch64");
    // The machine has the repository, and nothing else of this one.
    ensure!(
        target.starts_with(root),
        "{} is not below {}: the machine would not have it; unset CARGO_TARGET_DIR",
        target.display(),
        root.display()
    );
    Ok(target)
}

/// The kernel and the Debian that were fetched before, or are now.
fn fetched(
    target: &Path,
    flavour: Flavour,
    install: bool,
) -> anyhow::Result<Option<(Kernel, PathBuf)>> {
    let place = target.join(format!("kernel-{}", flavour.name()));
    let kernel = match Kernel::find(&place, ARCHITECTURE) {
        Some(kernel) => kernel,
        None if install => {
            println!("fetching a kernel ...");
            Kernel::fetch(&place, flavour)?
        }
        None => return Ok(None),
    };
    let debian = target.join("system");
    if !system::is_there(&debian, PACKAGES) {
        if !install {
            return Ok(None);
        }
        println!("fetching a Debian for {} ...", ARCHITECTURE.debian());
        system::fetch(&debian, ARCHITECTURE, PACKAGES)?;
    }
    Ok(Some((kernel, debian)))
}

fn chosen(cli: &Cli) -> Vec<&'static Suite> {
    let wanted = |suite: &&Suite| {
        cli.only.is_empty() || cli.only.iter().any(|name| suite.name.contains(name))
    };
    SUITES.iter().filter(wanted).collect()
}

fn run(
    cli: &Cli,
    root: &Path,
    chosen: &[&'static Suite],
    built: &Built,
    image: &Image,
) -> anyhow::Result<ExitCode> {
    let network = Network::new().context("a network namespace with a bridge")?;
    let cpus = u32::try_from(bench::cpus())?.clamp(2, 8);
    let size = Size::One { cpus, memory_mib: MEMORY_MIB };
    let folder = Some(root.to_owned());
    let shape = Shape { size, folder, ..Shape::small("arm", Vec::new(), LIMIT) };
    let begun = Instant::now();
    let guest = Guest::switch_on(&network, image, shape)?;
    let release = guest.wait_ready()?;
    let page =
        guest.check(&format!("mount -t ramfs tests {} && {SET_UP}", built.scratch.display()))?;
    let took = begun.elapsed().as_secs();
    println!("Linux {release}, pages of {} bytes, booted in {took} s", page.trim());
    let (mut all, mut cells, mut failed) = (Tally::default(), Vec::new(), Vec::new());
    for suite in chosen {
        println!("\n== {}", suite.name);
        let begun = Instant::now();
        let tally = play(&guest, cli, built, suite)?;
        let took = begun.elapsed().as_secs();
        println!("== {}: {tally}, in {took} s", suite.name);
        if tally.failed > 0 {
            failed.push(suite.name);
        }
        cells.push((suite.name, Cell::of(&tally)));
        all = all.and(&tally);
    }
    for (test, why) in &all.skips {
        println!("skipped: {test}: {why}");
    }
    if cli.record {
        account::record(root, cli.pages.place(), cells)?;
    }
    println!("\n{all}");
    if !failed.is_empty() {
        bail!("failed: {}", failed.join("; "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a suite in the guest, and shows what it says.
fn play(guest: &Guest, cli: &Cli, built: &Built, suite: &Suite) -> anyhow::Result<Tally> {
    let mut reader = Reader::default();
    for program in built.tests(suite.program)? {
        let quick = if cli.whole { "" } else { "SHUNT_TEST_QUICK=1" };
        let (seconds, at_once) = (suite.limit.as_secs(), cli.at_once);
        let mut words = format!(
            "cd {} && ulimit -n 65536 && SHUNT_TEST_EMULATED=1 {quick} SHUNT_BIN_DIR={} timeout -s KILL {seconds} {} --show-output --test-threads {at_once}",
            program.package.display(),
            built.programs.display(),
            program.path.display()
        );
        let paths: Vec<&str> = match cli.test.is_empty() {
            true => suite.paths.to_vec(),
            false => cli.test.iter().map(String::as_str).collect(),
        };
        for path in paths {
            words += &format!(" '{path}'");
        }
        let running = guest.spawn(&format!("{words} 2>&1"))?;
        let deadline = Instant::now() + suite.limit + Duration::from_secs(60);
        let (mut shown, mut over) = (0, false);
        while !over {
            sleep(POLL);
            over = running.is_over() || Instant::now() > deadline;
            let text = running.text();
            let fresh = text.get(shown..).unwrap_or_default();
            let whole = if over { fresh.len() } else { fresh.rfind('\n').map_or(0, |at| at + 1) };
            for line in fresh[..whole].lines() {
                if reader.handle_line(line) && !line.ends_with(" ... ok") {
                    println!("{line}");
                }
            }
            shown += whole;
        }
        reader.finish();
        ensure!(guest.is_alive(), "the machine is gone; console: {}", guest.console());
        // Ended by its limit, or never begun: then no test has said that it failed.
        let ended = running.wait(Duration::ZERO);
        let well = ended.as_ref().is_ok_and(|output| output.status == 0);
        let told = reader.tally.failed > 0;
        if !well && !told {
            let said = running.text();
            let last = said.lines().next_back().unwrap_or_default();
            println!("FAILED: {} did not come to its end: {last}", program.path.display());
            reader.tally.failed += 1;
        }
    }
    Ok(reader.tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_repository_can_be_read() {
        account::check(&crate::workspace_root()).unwrap();
    }

    #[test]
    fn suites_are_chosen_by_name() {
        let cli = |words: &str| Cli::parse_from(["x"].into_iter().chain(words.split_whitespace()));
        assert_eq!(chosen(&cli("")).len(), SUITES.len());
        assert!(chosen(&cli("--only nothing-of-that-name")).is_empty());
        assert!(chosen(&cli("--only local --only sys")).len() < SUITES.len());
        assert_eq!(cli("--pages 16k").pages, Pages::Large);
    }
}

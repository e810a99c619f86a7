//! `cargo xtask interop`: our SMC-R beside that of real Linux kernels, which run in emulated machines
//! on a bridge of their own.

mod ktls;
mod play;
pub(crate) mod program;
mod scenario;
mod shunt;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use testkit::kernels::architecture::Architecture;
use testkit::kernels::ending::{self, Directory};
use testkit::kernels::guest::Image;
use testkit::kernels::image::{self, Contents, Tools};
use testkit::kernels::package::{Flavour, Kernel, SERIES};

use crate::account::{Book, Key};
use crate::{bench, install};
use play::{Stage, Stale};
use scenario::{CASES, Case, Event, Peer, When};

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask interop",
    about = "Lets programs under Shunt and programs on real Linux kernels meet over SMC-R"
)]
struct Cli {
    /// Fetch QEMU, BusyBox, tcpdump, tshark and a kernel first (Debian packages)
    #[arg(long)]
    install: bool,
    /// Leave out what takes long: all else must be over within 5 minutes
    #[arg(long)]
    quick: bool,
    /// Only what each run of the tests tries: a dozen cases with one end under Shunt, in a minute. What fails is tried
    /// once more, and that is noted
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// Only cases whose name, or whose pair (as in kernel-shunt), contains this
    #[arg(long)]
    only: Option<String>,
    /// Note what became of each case in bench/record/interop.tsv and docs/interop.md
    #[arg(long)]
    record: bool,
    /// Keep captures in this directory
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Boot the kernel that is unpacked here (with boot/ and lib/modules/)
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Start the programs that were built before
    #[arg(long)]
    no_build: bool,
    /// Show what would be tried
    #[arg(long)]
    list: bool,
}

impl Cli {
    const fn run(&self) -> When {
        match self {
            Self { smoke: true, .. } => When::Smoke,
            Self { quick: true, .. } => When::Quick,
            _ => When::Whole,
        }
    }
}

/// Where it is told what became of each case.
const BOOK: Book =
    Book { verb: "interop", account: "bench/record/interop.tsv", page: "docs/interop.md" };
const PROGRAMS: &[&str] =
    &["cc", "ip", "nft", "qemu-system-x86_64", "busybox", "tcpdump", "tshark", "xz"];
/// What guests run.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The whole run, with a reserve: what hangs longer is killed.
const LIMIT: Duration = Duration::from_secs(45 * 60);
const QUICK_LIMIT: Duration = Duration::from_secs(10 * 60);
/// What `--quick` promises, from the first boot on.
const QUICK: Duration = Duration::from_secs(5 * 60);

/// Runs `cargo xtask interop`. That it cannot run here is no failure unless something was to be
/// installed: it says `skipped:` and why.
///
/// # Errors
///
/// When something cannot be built or fetched, or the guests do not boot.
pub(crate) fn main(args: &[String]) -> anyhow::Result<ExitCode> {
    let words = ["cargo xtask interop"].into_iter().chain(args.iter().map(String::as_str));
    let cli = Cli::parse_from(words);
    let chosen = chosen(&cli);
    if cli.record && cli.kernel.is_some() {
        bail!(
            "what is recorded is of the kernel that is fetched: --kernel and --record do not go together"
        );
    }
    if cli.list {
        chosen.iter().for_each(|(case, pair)| println!("{}", title(case, *pair)));
        if wants_tls(&cli) {
            println!("{}", ktls::NAME);
        }
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        !chosen.is_empty() || wants_tls(&cli),
        "no case is called so: see `cargo xtask interop --list`"
    );
    install::check("interop", PROGRAMS, cli.install)?;
    if let Some(why) = obstacle(PROGRAMS) {
        println!("skipped: {why}");
        return Ok(if cli.install { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let root = crate::workspace_root();
    let Some(kernel) = kernel(&root, cli.kernel.as_deref(), cli.install)? else {
        println!(
            "skipped: there is no kernel to boot; `cargo xtask interop --install` fetches one"
        );
        return Ok(ExitCode::SUCCESS);
    };
    if !cli.no_build && chosen.iter().any(|(_, pair)| !pair.iter().all(|peer| peer.in_guest())) {
        bench::build(&root, &["shunt-cli", "shunt-preload"])?;
        build(&root, "smcpeer", None)?;
    }
    let peer = build(&root, "smcpeer", Some(TARGET))?;
    end_in_time(if cli.run() == When::Whole { LIMIT } else { QUICK_LIMIT })?;
    let directory = Directory::new()?;
    let busybox = install::find("busybox").context("there is no busybox")?;
    let initramfs = directory.path().join("initramfs");
    let contents = Contents { modules: image::SMC.to_vec(), ..Contents::default() };
    std::fs::write(&initramfs, image::make(&kernel, Tools::Busybox(&busybox), &peer, &contents)?)?;
    if let Some(keep) = &cli.keep {
        std::fs::create_dir_all(keep)?;
    }
    let tls = wants_tls(&cli).then(|| ktls::image(&root, &kernel, &peer, directory.path()));
    let tls = tls.transpose()?;
    let image = kernel.with(initramfs);
    run(&cli, &chosen, &image, tls.as_ref(), &bench::built(&root))
}

/// Whether the machine that does kernel TLS is booted.
fn wants_tls(cli: &Cli) -> bool {
    let named = |only: &String| ktls::NAME.contains(only.as_str());
    cli.only.as_ref().map_or_else(|| cli.run() == When::Whole, named)
}

/// Why programs cannot meet real kernels here; `install`: what is absent is fetched first.
pub(crate) fn cannot_run(install: bool) -> Option<String> {
    if let Err(e) = install::check("interop", PROGRAMS, install) {
        return Some(format!("{e:#}"));
    }
    if let Some(why) = obstacle(PROGRAMS) {
        return Some(why);
    }
    if ending::ControlGroup::new().is_none() {
        return Some(
            "the engine's share of the machine is a cgroup of version 2, and there is none"
                .to_owned(),
        );
    }
    match kernel(&crate::workspace_root(), None, install) {
        Ok(Some(_)) => None,
        Ok(None) => Some("no kernel here; `cargo xtask interop --install` fetches one".to_owned()),
        Err(e) => Some(format!("no kernel could be fetched: {e:#}")),
    }
}

fn chosen(cli: &Cli) -> Vec<(&'static Case, [Peer; 2])> {
    let all = CASES.iter().flat_map(|case| case.pairs.iter().map(move |pair| (case, *pair)));
    let wanted = |(case, pair): &(&Case, [Peer; 2])| {
        case.is_due(*pair, cli.run())
            && cli.only.as_ref().is_none_or(|only| title(case, *pair).contains(only.as_str()))
    };
    all.filter(wanted).collect()
}

fn title(case: &Case, pair: [Peer; 2]) -> String {
    format!("{}: {}", pair_name(pair), case.name)
}

fn pair_name([client, server]: [Peer; 2]) -> String {
    format!("{}-{}", client.name(), server.name())
}

/// How a case is recorded: its pair, and its name.
fn key(case: &Case, pair: [Peer; 2]) -> Key {
    (pair_name(pair), case.name.to_owned())
}

/// All that can be recorded.
fn keys() -> Vec<Key> {
    let cases = CASES.iter().flat_map(|case| case.pairs.iter().map(|pair| key(case, *pair)));
    cases.chain([ktls_key()]).collect()
}

/// Both ends of that one are in one guest, under Shunt.
fn ktls_key() -> Key {
    ("shunt-shunt".to_owned(), ktls::NAME.to_owned())
}

/// Why guests cannot run on this machine, with these programs.
pub(crate) fn obstacle(programs: &[&str]) -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("guests run programs that are built here, for x86-64".to_owned());
    }
    if !nix::unistd::geteuid().is_root() {
        return Some("a network namespace with a bridge needs root".to_owned());
    }
    let absent = programs.iter().find(|name| install::find(name).is_none())?;
    Some(format!("there is no {absent}"))
}

/// The kernel to boot: of this directory, or fetched before, or fetched now.
pub(crate) fn kernel(
    root: &Path,
    directory: Option<&Path>,
    install: bool,
) -> anyhow::Result<Option<Kernel>> {
    if let Some(directory) = directory {
        let found = Kernel::find(directory, Architecture::X86_64);
        return found.with_context(|| format!("no kernel in {}", directory.display())).map(Some);
    }
    let built = bench::built(root);
    let target = built.parent().context("a directory has a parent")?;
    let directory = target.join("interop/kernel");
    if let Some(kernel) = Kernel::find(&directory, Architecture::X86_64) {
        return Ok(Some(kernel));
    }
    if !install {
        return Ok(None);
    }
    println!("fetching Linux {SERIES} ...");
    Kernel::fetch(&directory, Flavour::Pc).map(Some)
}

/// Builds a program of `testkit`: for the host, or linked statically for guests, which have no libraries.
pub(crate) fn build(root: &Path, name: &str, target: Option<&str>) -> anyhow::Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "-p", "shunt-testkit", "--bin", name]);
    let built = bench::built(root);
    let mut directory = built.clone();
    if let Some(target) = target {
        command.args(["--target", target]);
        // Ciphers, which take a minute to build, for the one program that has them.
        if name != "smbload" {
            command.arg("--no-default-features");
        }
        command.env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols");
        // It is not what is measured: built in seconds.
        command.env("CARGO_PROFILE_RELEASE_LTO", "off");
        command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        directory =
            built.parent().context("a directory has a parent")?.join(target).join("release");
    }
    let status = command.current_dir(root).status().context("cannot start cargo")?;
    ensure!(status.success(), "{name} does not build");
    Ok(directory.join(name))
}

/// Leaves nothing behind when the time is over or somebody interrupts.
pub(crate) fn end_in_time(limit: Duration) -> anyhow::Result<()> {
    let signals =
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP];
    let mut signals =
        signal_hook::iterator::Signals::new(signals).context("cannot watch for interrupts")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            ending::exit(128 + signal);
        }
    });
    thread::spawn(move || {
        thread::sleep(limit);
        eprintln!("error: it takes more than {} minutes", limit.as_secs() / 60);
        ending::exit(1);
    });
    Ok(())
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// What was played, and whether it passed.
    played: Vec<(Key, bool)>,
}

impl Tally {
    fn tell(&mut self, title: &str, key: Key, played: &anyhow::Result<()>, took: Duration) {
        self.played.push((key, played.is_ok()));
        let took = took.as_secs_f64();
        match played {
            Ok(()) => {
                println!("{title:<48} ok {took:>6.1} s");
                self.passed += 1;
            }
            Err(e) => {
                println!("{title:<48} FAILED {took:.1} s: {e:#}");
                self.failed += 1;
            }
        }
    }
}

fn run(
    cli: &Cli,
    chosen: &[(&Case, [Peer; 2])],
    image: &Image,
    tls: Option<&Image>,
    built: &Path,
) -> anyhow::Result<ExitCode> {
    let (mut tally, begun) = (Tally::default(), Instant::now());
    if let Some(image) = tls {
        let begun = Instant::now();
        let played = ktls::play(image, LIMIT);
        tally.tell(ktls::NAME, ktls_key(), &played, begun.elapsed());
    }
    if !chosen.is_empty() {
        run_pairs(cli, chosen, image, built, &mut tally)?;
    }
    let took = begun.elapsed();
    let Tally { passed, failed, skipped, played } = tally;
    println!("\n{passed} passed, {failed} failed, {skipped} skipped in {} s", took.as_secs());
    if cli.record {
        BOOK.record(&crate::workspace_root(), played, &keys())?;
    }
    if failed > 0 {
        bail!("{failed} of {} cases failed", passed + failed + skipped);
    }
    if cli.quick && took > QUICK {
        bail!("--quick has taken {} s, and {} s are promised", took.as_secs(), QUICK.as_secs());
    }
    Ok(ExitCode::SUCCESS)
}

fn run_pairs(
    cli: &Cli,
    chosen: &[(&Case, [Peer; 2])],
    image: &Image,
    built: &Path,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let absent = shunt::absent(built);
    let begun = Instant::now();
    let mut stage = Stage::boot(image, built, LIMIT)?;
    println!("booted in {:.1} s", begun.elapsed().as_secs_f64());
    for (case, pair) in chosen {
        let title = title(case, *pair);
        if let Some(why) = absent.as_ref().filter(|_| pair.contains(&Peer::Shunt)) {
            println!("{title:<48} skipped: {why}");
            tally.skipped += 1;
            continue;
        }
        let begun = Instant::now();
        let mut played = stage.play(case, *pair, cli.keep.as_deref());
        if let Err(e) = &played
            && (cli.smoke || e.downcast_ref::<Stale>().is_some())
        {
            // Linux may hold its module for minutes after a device has gone: such a case has not begun. And an emulated
            // machine may stand still beside other work; whoever looks closely plays the case with others.
            println!("{title:<48} noted: {e:#}; once more, in guests that are booted anew");
            drop(stage);
            stage = Stage::boot(image, built, LIMIT)?;
            played = stage.play(case, *pair, cli.keep.as_deref());
        }
        tally.tell(&title, key(case, *pair), &played, begun.elapsed());
        // What failed may have left anything behind, in a guest, too; and a TCP connection that ended while its
        // cable was pulled keeps the module of SMC for minutes.
        if played.is_err() || matches!(case.event, Event::PullCable | Event::PlugAgain) {
            drop(stage);
            stage = Stage::boot(image, built, LIMIT)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cli(words: &str) -> Cli {
        Cli::parse_from(["interop"].into_iter().chain(words.split_whitespace()))
    }

    #[test]
    fn the_files_of_the_repository_can_be_read() {
        BOOK.check(&crate::workspace_root(), &keys()).unwrap();
    }

    #[test]
    fn cases_are_chosen_by_name_and_pair() {
        assert_eq!(chosen(&cli("--only kernel-kernel:")).len(), {
            CASES.iter().filter(|c| c.pairs.contains(&[Peer::Kernel; 2])).count()
        });
        assert!(chosen(&cli("--only nothing-of-that-name")).is_empty());
        assert!(chosen(&cli("--quick")).len() < chosen(&cli("")).len());
        let smoke = chosen(&cli("--smoke"));
        assert!(!smoke.is_empty() && smoke.len() < chosen(&cli("--quick")).len());
        assert!(smoke.iter().all(|(_, pair)| pair.contains(&Peer::Shunt)));
    }
}

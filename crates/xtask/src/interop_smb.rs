//! `cargo xtask interop-smb`: `shunt serve` beside the SMB client of a real Linux kernel, which mounts its
//! shares in an emulated machine on a bridge of its own, and works on the files.

mod case;
mod compiler;
mod numa;
mod stage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use testkit::kernels::ending::Directory;
use testkit::kernels::guest::Image;
use testkit::kernels::image::{self, Contents, Tools};
use testkit::kernels::package::Kernel;

use crate::account::{Book, Key};
use crate::interop::{self, TARGET};
use crate::{bench, install};
use case::{CASES, Case};
use stage::Stage;

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask interop-smb",
    about = "Lets a real Linux kernel mount shares of `shunt serve` and work on them"
)]
struct Cli {
    /// Fetch QEMU, BusyBox, git, a compiler and a kernel first (Debian packages)
    #[arg(long)]
    install: bool,
    /// Leave out what takes long
    #[arg(long)]
    quick: bool,
    /// Only cases whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Note what became of each case in bench/record/interop-smb.tsv and docs/interop-smb.md
    #[arg(long)]
    record: bool,
    /// Serve with this `shunt`, and build none
    #[arg(long, value_name = "PROGRAM")]
    shunt: Option<PathBuf>,
    /// Share folders of this directory [that of temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    folder: Option<PathBuf>,
    /// Keep captures in this directory
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
    /// Boot the kernel that is unpacked here (with boot/ and lib/modules/)
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Random work begins with this number
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Show what would be tried
    #[arg(long)]
    list: bool,
}

/// Where it is told what became of each case.
const BOOK: Book = Book {
    verb: "interop-smb",
    account: "bench/record/interop-smb.tsv",
    page: "docs/interop-smb.md",
};
/// What all of it wants.
pub(crate) const PROGRAMS: &[&str] =
    &["cc", "ip", "qemu-system-x86_64", "busybox", "git", "tcc", "make", "xz"];
/// The whole run, with a reserve: what hangs longer is killed.
const LIMIT: Duration = Duration::from_secs(90 * 60);
/// Programs of the host that guests have, too.
const IN_THE_GUEST: &[&str] = &["git", "tcc", "make"];
/// By these names git starts itself.
const GIT: &[&str] = &["git", "git-upload-pack", "git-receive-pack", "git-upload-archive"];

/// Runs `cargo xtask interop-smb`. That it cannot run here is no failure unless something was to be
/// installed: it says `skipped:` and why.
///
/// # Errors
///
/// When something cannot be built or fetched, a guest does not boot, or a case fails.
pub(crate) fn main(args: &[String]) -> anyhow::Result<ExitCode> {
    let words = ["cargo xtask interop-smb"].into_iter().chain(args.iter().map(String::as_str));
    let cli = Cli::parse_from(words);
    let chosen = chosen(&cli);
    if cli.list {
        chosen.iter().for_each(|case| println!("{}", case.name));
        if wants_nodes(&cli) {
            println!("{}", numa::NAME);
        }
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        !chosen.is_empty() || wants_nodes(&cli),
        "no case is called so: see `cargo xtask interop-smb --list`"
    );
    install::check("interop-smb", PROGRAMS, cli.install)?;
    if let Some(why) = interop::obstacle(PROGRAMS) {
        println!("skipped: {why}");
        return Ok(if cli.install { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let root = crate::workspace_root();
    let Some(kernel) = interop::kernel(&root, cli.kernel.as_deref(), cli.install)? else {
        println!(
            "skipped: there is no kernel to boot; `cargo xtask interop-smb --install` fetches one"
        );
        return Ok(ExitCode::SUCCESS);
    };
    let shunt = match &cli.shunt {
        Some(program) => program.clone(),
        None => {
            bench::build(&root, &["shunt-cli"])?;
            bench::built(&root).join("shunt")
        }
    };
    let peer = interop::build(&root, "smcpeer", Some(TARGET))?;
    let player = interop::build(&root, "fileplay", Some(TARGET))?;
    interop::end_in_time(LIMIT)?;
    if let Some(keep) = &cli.keep {
        std::fs::create_dir_all(keep)?;
    }
    let directory = Directory::new()?;
    let image = make_image(&kernel, &peer, &player, directory.path())?;
    let nodes = if wants_nodes(&cli) {
        // Here the server is in the guest, and so is its client.
        let load = interop::build(&root, "smbload", Some(TARGET))?;
        Some(make_nodes_image(&kernel, &peer, &[&shunt, &load], directory.path())?)
    } else {
        None
    };
    let folder = cli.folder.clone().unwrap_or_else(std::env::temp_dir);
    let prepared = stage::Prepared {
        image,
        shunt,
        player,
        folder,
        keep: cli.keep.clone(),
        seed: cli.seed,
        limit: LIMIT,
    };
    run(&chosen, nodes.as_ref(), &prepared, cli.record)
}

/// How a case is recorded: whose client meets whose server, and its name.
fn key(name: &str) -> Key {
    ("linux-shunt".to_owned(), name.to_owned())
}

/// All that can be recorded.
fn keys() -> Vec<Key> {
    CASES.iter().map(|case| case.name).chain([numa::NAME]).map(key).collect()
}

/// Whether the machine of two nodes is booted.
fn wants_nodes(cli: &Cli) -> bool {
    cli.only.as_ref().is_none_or(|only| numa::NAME.contains(only))
}

fn make_nodes_image(
    kernel: &Kernel,
    peer: &Path,
    programs: &[&Path],
    directory: &Path,
) -> anyhow::Result<Image> {
    let busybox = install::find("busybox").context("there is no busybox")?;
    let programs = programs.iter().map(|path| path.to_path_buf()).collect();
    let contents = Contents { programs, ..Contents::default() };
    let initramfs = directory.join("initramfs-nodes");
    std::fs::write(&initramfs, image::make(kernel, Tools::Busybox(&busybox), peer, &contents)?)?;
    Ok(kernel.with(initramfs))
}

fn make_image(
    kernel: &Kernel,
    peer: &Path,
    player: &Path,
    directory: &Path,
) -> anyhow::Result<Image> {
    let busybox = install::find("busybox").context("there is no busybox")?;
    let mut programs = vec![player.to_owned()];
    for name in IN_THE_GUEST {
        programs.push(install::find(name).with_context(|| format!("there is no {name}"))?);
    }
    let links = GIT.iter().map(|name| (format!("usr/lib/git-core/{name}"), "/bin/git".to_owned()));
    let contents = Contents {
        modules: image::CIFS.to_vec(),
        programs,
        files: compiler::files(directory)?,
        links: links.collect(),
    };
    let initramfs = directory.join("initramfs");
    std::fs::write(&initramfs, image::make(kernel, Tools::Busybox(&busybox), peer, &contents)?)?;
    Ok(kernel.with(initramfs))
}

fn chosen(cli: &Cli) -> Vec<&'static Case> {
    let wanted = |case: &&Case| {
        (case.quick || !cli.quick) && cli.only.as_ref().is_none_or(|only| case.name.contains(only))
    };
    CASES.iter().filter(wanted).collect()
}

fn run(
    chosen: &[&'static Case],
    nodes: Option<&Image>,
    prepared: &stage::Prepared,
    record: bool,
) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let mut failed = Vec::new();
    let mut stage = None;
    for case in chosen {
        let booted = match stage.take() {
            Some(stage) => stage,
            None => {
                let stage = Stage::boot(prepared)?;
                println!("booted after {:.1} s", begun.elapsed().as_secs_f64());
                stage
            }
        };
        let played = timed(case.name, || booted.play(case), &mut failed);
        // What failed may have left anything behind, in the guest, too.
        stage = played.then_some(booted);
    }
    drop(stage);
    if let Some(image) = nodes {
        timed(numa::NAME, || numa::play(image, prepared.limit), &mut failed);
    }
    if record {
        let names = chosen.iter().map(|case| case.name).chain(nodes.map(|_| numa::NAME));
        let played = names.map(|name| (key(name), !failed.contains(&name))).collect();
        BOOK.record(&crate::workspace_root(), played, &keys())?;
    }
    let all = chosen.len() + usize::from(nodes.is_some());
    println!("\n{} passed, {} failed", all - failed.len(), failed.len());
    if !failed.is_empty() {
        bail!("failed: {}", failed.join("; "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Plays a case and says how it went; whether it passed.
fn timed(
    name: &'static str,
    play: impl FnOnce() -> anyhow::Result<()>,
    failed: &mut Vec<&'static str>,
) -> bool {
    let begun = Instant::now();
    let played = play();
    let took = begun.elapsed().as_secs_f64();
    match &played {
        Ok(()) => println!("{name:<44} ok {took:>6.1} s"),
        Err(e) => {
            println!("{name:<44} FAILED {took:.1} s: {e:#}");
            failed.push(name);
        }
    }
    played.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_repository_can_be_read() {
        BOOK.check(&crate::workspace_root(), &keys()).unwrap();
    }

    #[test]
    fn cases_are_chosen_by_name() {
        let cli = |words: &str| Cli::parse_from(["x"].into_iter().chain(words.split_whitespace()));
        assert_eq!(chosen(&cli("")).len(), CASES.len());
        assert!(!chosen(&cli("--quick")).is_empty());
        assert!(chosen(&cli("--quick")).len() < CASES.len());
        assert!(chosen(&cli("--only nothing-of-that-name")).is_empty());
    }
}

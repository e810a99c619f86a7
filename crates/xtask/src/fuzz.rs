//! `cargo xtask fuzz`: libFuzzer on each target of `fuzz/`, in turn, for as long as there is time, and what that comes
//! to over all the times it was run.

mod account;
mod seeds;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;

use crate::bench::report;
use crate::page;
use account::{Account, Turn};

/// What was run so far, a line for each target.
const ACCOUNT: &str = "bench/record/fuzz.tsv";
/// Where the same stands for people, between these two lines.
const PAGE: &str = "docs/fuzz.md";
const BEGIN: &str = "<!-- begin: written by cargo xtask fuzz --record -->";
const END: &str = "<!-- end -->";
/// Names of the files in which libFuzzer keeps an input that is a defect; `slow-unit-` says how busy the machine was.
const DEFECTS: &[&str] = &["crash-", "leak-", "oom-", "timeout-"];
/// The flags of cargo-fuzz, which need not be here: what is reached is counted, what is compared is told to the fuzzer,
/// memory is watched, and assertions hold.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Cdebug-assertions \
                     -Ccodegen-units=1";
/// What it is built for: sanitizers want it named, so that build scripts are built without.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask fuzz",
    about = "libFuzzer on each target of fuzz/, in turn",
    after_help = "What is found lies in fuzz/artifacts/TARGET, and beside it what was said of it; what is learnt in \
                  fuzz/corpus/TARGET, where cargo-fuzz looks too. Turns begin with what fuzz/seeds has. Wants a nightly \
                  compiler and one of C++."
)]
struct Cli {
    /// Only these targets
    #[arg(long, value_delimiter = ',', value_name = "TARGET")]
    only: Vec<String>,
    /// Seconds of a turn
    #[arg(long, default_value_t = 240, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Go round until so many minutes have passed [one round]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: Option<u64>,
    /// Add what was run to bench/record/fuzz.tsv and to docs/fuzz.md, after each turn
    #[arg(long)]
    record: bool,
    /// At the end, put into fuzz/seeds what the corpora reach, by the fewest inputs
    #[arg(long)]
    seeds: bool,
    /// Run no target
    #[arg(long, requires = "seeds")]
    no_run: bool,
    /// Run what was built before
    #[arg(long)]
    no_build: bool,
    /// Name the targets and stop
    #[arg(long)]
    list: bool,
}

/// Runs `cargo xtask fuzz`.
///
/// # Errors
///
/// When a target cannot be built or started, or an input was found that is a defect.
pub(crate) fn main(args: &[String]) -> anyhow::Result<()> {
    let words = ["cargo xtask fuzz"].into_iter().chain(args.iter().map(String::as_str));
    let cli = Cli::parse_from(words);
    let root = crate::workspace_root();
    let targets = chosen(targets(&root)?, &cli.only)?;
    if cli.list {
        targets.iter().for_each(|target| println!("{target}"));
        return Ok(());
    }
    let programs = target_dir(&root).join(PLATFORM).join("release");
    if !cli.no_build {
        build(&root)?;
    }
    let commit = report::commit(&root);
    let end = cli.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut found = Vec::new();
    let mut ended = cli.no_run;
    while !ended {
        for target in &targets {
            let left = end.map_or(cli.seconds, |end| {
                end.saturating_duration_since(Instant::now()).as_secs().min(cli.seconds)
            });
            if left == 0 {
                ended = true;
                break;
            }
            let (mut turn, defects) = run(&root, &programs, target, left)?;
            turn.commit.clone_from(&commit);
            println!(
                "{target:24} {:5} s {:>12} inputs {:>7} places  {}",
                turn.seconds,
                turn.inputs,
                turn.places,
                if defects.is_empty() { "nothing found".to_owned() } else { defects.join(" ") }
            );
            found.extend(defects);
            if cli.record {
                record(&root, target, &turn)?;
            }
        }
        ended |= end.is_none();
    }
    if cli.seeds {
        for target in &targets {
            let corpus = corpus(&root, target)?;
            let scratch = programs.join("seeds").join(target);
            let (kept, all) =
                seeds::pack(&root, (target, &programs.join(target)), &corpus, &scratch)?;
            println!("{target:24} {kept} of {all} inputs are its seeds");
        }
    }
    ensure!(found.is_empty(), "{} inputs are defects: {}", found.len(), found.join(" "));
    Ok(())
}

/// The targets of the manifest, in its order.
fn targets(root: &Path) -> anyhow::Result<Vec<String>> {
    let manifest = root.join("fuzz/Cargo.toml");
    let text = fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
    let (mut names, mut of_program) = (Vec::new(), false);
    for line in text.lines() {
        if line.starts_with('[') {
            of_program = line == "[[bin]]";
        } else if of_program && let Some(name) = line.strip_prefix("name = ") {
            names.push(name.trim_matches('"').to_owned());
        }
    }
    Ok(names)
}

fn chosen(all: Vec<String>, only: &[String]) -> anyhow::Result<Vec<String>> {
    if let Some(unknown) = only.iter().find(|name| !all.contains(name)) {
        bail!("{unknown} is no target; `--list` names them");
    }
    Ok(all.into_iter().filter(|name| only.is_empty() || only.contains(name)).collect())
}

/// Where cargo puts them.
fn target_dir(root: &Path) -> PathBuf {
    let given = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    given.map_or_else(|| root.join("fuzz/target"), |dir| dir.join("fuzz"))
}

fn build(root: &Path) -> anyhow::Result<()> {
    let status = Command::new("cargo")
        .args(["+nightly", "build", "--release", "--locked", "--target", PLATFORM])
        .args(["--manifest-path", "fuzz/Cargo.toml", "--target-dir"])
        .arg(target_dir(root))
        .current_dir(root)
        .env("RUSTFLAGS", FLAGS)
        // Of the compiler that runs this command, which is another one.
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .status()
        .context("cannot start cargo")?;
    ensure!(
        status.success(),
        "the targets were not built; they want a nightly compiler (`rustup toolchain install nightly`) and one of C++ \
         (`apt-get install g++`)"
    );
    Ok(())
}

/// One turn of one target, and the inputs it found that are defects.
fn run(
    root: &Path,
    programs: &Path,
    target: &str,
    seconds: u64,
) -> anyhow::Result<(Turn, Vec<String>)> {
    let corpus = corpus(root, target)?;
    let artifacts = made(root.join("fuzz/artifacts").join(target))?;
    let before = defects(&artifacts)?;
    let program = programs.join(target);
    let begun = Instant::now();
    // Its standard output is of what it runs.
    let output = Command::new(&program)
        .arg(&corpus)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-timeout=120", "-rss_limit_mb=4096", "-print_final_stats=1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let mut turn = Turn::parse(&said);
    if turn.seconds == 0 {
        turn.seconds = begun.elapsed().as_secs();
    }
    let found: Vec<String> =
        defects(&artifacts)?.into_iter().filter(|path| !before.contains(path)).collect();
    turn.found = found.len() as u64;
    for path in &found {
        // One that comes of what was there before may not be met again by its input alone.
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::write(artifacts.join(format!("said-{name}")), said.as_bytes())?;
    }
    if !output.status.success() && found.is_empty() {
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(20)..].join("\n");
        bail!("{target} ended by itself, {}:\n{last}", output.status);
    }
    Ok((turn, found))
}

/// Where inputs of a target are that reach something, with its seeds.
fn corpus(root: &Path, target: &str) -> anyhow::Result<PathBuf> {
    let corpus = made(root.join("fuzz/corpus").join(target))?;
    seeds::unpack(root, target, &corpus)?;
    Ok(corpus)
}

fn made(dir: PathBuf) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// The inputs that are defects, of all turns.
fn defects(artifacts: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for file in fs::read_dir(artifacts).with_context(|| artifacts.display().to_string())? {
        let path = file?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if DEFECTS.iter().any(|kind| name.starts_with(kind)) {
            found.push(path.display().to_string());
        }
    }
    found.sort();
    Ok(found)
}

/// Adds a turn to what was run so far.
fn record(root: &Path, target: &str, turn: &Turn) -> anyhow::Result<()> {
    let path = root.join(ACCOUNT);
    let mut account: Account = account::read(&path)?;
    account.entry(target.to_owned()).or_default().add(turn);
    account::write(&path, &account)?;
    let page = root.join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let text = page::with_table(&text, BEGIN, END, &account::table(&account)).context(PAGE)?;
    fs::write(&page, text).with_context(|| page.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_of_the_folder_is_known() {
        let root = crate::workspace_root();
        let known = targets(&root).unwrap();
        let mut there: Vec<String> = fs::read_dir(root.join("fuzz/fuzz_targets"))
            .unwrap()
            .map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        there.sort();
        let mut sorted = known.clone();
        sorted.sort();
        assert_eq!(sorted, there);
        assert_eq!(chosen(known.clone(), &["elf".into()]).unwrap(), ["elf"]);
        assert_eq!(chosen(known.clone(), &[]).unwrap(), known);
        assert!(chosen(known, &["elves".into()]).unwrap_err().to_string().contains("elves"));
    }

    #[test]
    fn the_files_of_the_repository_can_be_read() {
        let root = crate::workspace_root();
        let known = targets(&root).unwrap();
        let account = account::read(&root.join(ACCOUNT)).unwrap();
        assert!(!account.is_empty());
        for target in account.keys() {
            assert!(known.contains(target), "{target}");
        }
        let text = fs::read_to_string(root.join(PAGE)).unwrap();
        let written = page::with_table(&text, BEGIN, END, &account::table(&account)).unwrap();
        assert!(written == text, "{PAGE} does not say what {ACCOUNT} does");
    }

    #[test]
    fn a_slow_input_is_no_defect() {
        let dir = std::env::temp_dir().join(format!("fuzz-defects-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for name in ["slow-unit-1", "crash-2", "timeout-3", "minimized-from-4"] {
            fs::write(dir.join(name), b"").unwrap();
        }
        let found = defects(&dir).unwrap();
        let names: Vec<&str> =
            found.iter().map(|path| path.rsplit('/').next().unwrap_or_default()).collect();
        assert_eq!(names, ["crash-2", "timeout-3"]);
        fs::remove_dir_all(dir).unwrap();
    }
}

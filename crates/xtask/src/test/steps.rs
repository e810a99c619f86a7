//! The steps, and how one is run: streamed, timed, counted, ended when it hangs.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::tally::{Reader, Tally};
use crate::workspace_root;
use crate::{install, interop, torture};

/// How a step ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(why) => write!(f, "FAILED: {why}"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
        }
    }
}

/// What became of a step.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    tally: Tally,
}

impl Report {
    /// Of a step in which no test ran.
    #[cfg(test)]
    pub(crate) fn without_tests(outcome: Outcome) -> Self {
        Self { name: "a step", outcome, took: Duration::ZERO, tally: Tally::default() }
    }

    /// Of a step in which one test ran, well.
    #[cfg(test)]
    pub(crate) fn with_a_test(outcome: Outcome) -> Self {
        let tally = Tally { passed: 1, ..Tally::default() };
        Self { tally, ..Self::without_tests(outcome) }
    }

    /// The tests of this step. A step that failed without naming a test is one failure: a harness
    /// that crashed, or a program that does not compile, must not look like nothing.
    pub(crate) fn counted(&self) -> Tally {
        let mut tally = self.tally.clone();
        if matches!(self.outcome, Outcome::Failed(_)) && tally.failed == 0 {
            tally.failed = 1;
        }
        tally
    }
}

/// A step's command, or why there is none: asked for when it is the step's turn, because it may be
/// about what a step before has built.
type Choice = Box<dyn FnOnce() -> Result<Command, String> + Send>;

/// A step: a command, unless what it needs is absent.
struct Step {
    name: &'static str,
    command: Choice,
    time_max: Duration,
}

/// What is run at one time.
enum Turn {
    One(Step),
    /// Some steps beside others, one after the other, which leave them time: they wait more than they compute, or what
    /// computes is at times but one compiler. What they say is shown once all is over.
    Beside {
        some: Vec<Step>,
        others: Vec<Step>,
    },
}

/// All steps of a run.
pub(crate) struct Plan {
    turns: Vec<Turn>,
}

const MINUTE: Duration = Duration::from_secs(60);

// The limits end what hangs: they are several times what a step takes on two slow cores with other work.

impl Plan {
    /// `install`: what a step alone wants may be fetched when it is its turn.
    pub(crate) fn new(quick: bool, install: bool) -> Self {
        let target = target_dir();
        let first = vec![
            step("formatting", 5, formatting()),
            step("clippy", 30, clippy()),
            step("spelling", 5, spelling()),
            step("licences and duplicates", 10, licences()),
            step("what is fuzzed compiles", 15, Ok(fuzzed(&target))),
            step("build the tests", 20, Ok(cargo(&["test", "--workspace", "--no-run"]))),
        ];
        // Programs that are optimised as a whole: in the end one compiler works for a minute.
        let build = step("build what the tests start", 40, Ok(build()));
        let mut turns = vec![Turn::Beside { some: vec![build], others: first }];
        let waits = step("programs compared with kernel TCP", 30, Ok(compared(&target, quick)));
        let program = target.join("release/shunt");
        let served = |name, which: &'static str| {
            let program = program.clone();
            later(name, 15, move || serving(&program, which))
        };
        let serving = served("files served, with Samba's client and tests", "--smoke");
        if quick {
            let tests = step("tests", 60, Ok(tests(&target, quick, None)));
            turns.extend([tests, waits, serving].map(Turn::One));
            return Self { turns };
        }
        let programs = tests(&target, quick, Some(Part::Programs));
        let crates = step("tests of crates", 60, Ok(tests(&target, quick, Some(Part::Crates))));
        turns.push(Turn::One(step("tests of programs", 60, Ok(programs))));
        let breaks = served("files served, Samba's tests that wait", "--waiting");
        let compute = vec![
            step("build what notices lost wake-ups", 10, Ok(behind(&build_watchdog(&target)))),
            step("loom models of the lock-free parts", 25, Ok(behind(&loom(&target)))),
            step("documentation", 20, Ok(behind(&documentation()))),
        ];
        let last = [
            serving,
            step("what a newcomer is shown", 5, Ok(demonstration(&[]))),
            step("what one without nginx is shown", 5, Ok(demonstration(&["--built-here"]))),
            later("lost wake-ups", 10, move || Ok(watched(&target))),
        ];
        turns.push(Turn::Beside { some: vec![waits, breaks], others: compute });
        turns.extend(last.map(Turn::One));
        // Timers of a protocol, in machines that idle; and what is fetched for them.
        let kernels = later("beside real Linux kernels", 15, move || beside_kernels(install));
        turns.push(Turn::Beside { some: vec![kernels], others: vec![crates] });
        Self { turns }
    }

    /// Runs each step, also after one has failed.
    pub(crate) fn run(self) -> Vec<Report> {
        self.turns.into_iter().flat_map(Turn::run).collect()
    }
}

impl Turn {
    fn run(self) -> Vec<Report> {
        let shown = |line: &str| println!("{line}");
        match self {
            Self::One(step) => vec![step.run(&mut { shown })],
            Self::Beside { some, others } => thread::scope(|scope| {
                let beside: Vec<_> = some
                    .into_iter()
                    .map(|step| {
                        println!("\n== beside what follows: {}", step.name);
                        scope.spawn(|| {
                            let mut said = Vec::new();
                            let report = step.run(&mut |line| said.push(line.to_owned()));
                            (report, said)
                        })
                    })
                    .collect();
                let others: Vec<_> =
                    others.into_iter().map(|step| step.run(&mut { shown })).collect();
                let mut reports = Vec::new();
                for step in beside {
                    match step.join() {
                        Ok((report, said)) => {
                            said.iter().for_each(|line| println!("{line}"));
                            reports.push(report);
                        }
                        Err(panic) => std::panic::resume_unwind(panic),
                    }
                }
                reports.extend(others);
                reports
            }),
        }
    }
}

/// The same command behind all others that want to run.
fn behind(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "10"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    in_root(nice)
}

fn step(name: &'static str, minutes_max: u32, command: Result<Command, String>) -> Step {
    later(name, minutes_max, move || command)
}

fn later(
    name: &'static str,
    minutes_max: u32,
    command: impl FnOnce() -> Result<Command, String> + Send + 'static,
) -> Step {
    Step { name, command: Box::new(command), time_max: MINUTE * minutes_max }
}

fn formatting() -> Result<Command, String> {
    component("fmt", "rustfmt")?;
    Ok(cargo(&["fmt", "--all", "--check"]))
}

fn clippy() -> Result<Command, String> {
    component("clippy", "clippy")?;
    Ok(cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

fn spelling() -> Result<Command, String> {
    let typos = install::typos().ok_or(
        "no typos here; `cargo xtask test --install` brings it, or `cargo install typos-cli`",
    )?;
    Ok(in_root(Command::new(typos)))
}

fn licences() -> Result<Command, String> {
    if install::find("cargo-deny").is_none() {
        return Err("no cargo-deny here; `cargo install cargo-deny` brings it".into());
    }
    Ok(cargo(&["deny", "check", "bans", "licenses", "sources"]))
}

/// The fuzz targets, a workspace of their own, which nothing else would notice to have rotted. To check them takes no
/// nightly compiler, and none of C++ either: libFuzzer is not built, because nothing is linked.
fn fuzzed(target: &Path) -> Command {
    let mut command = cargo(&["check", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--bins"]);
    command.env("CARGO_TARGET_DIR", target).env("CUSTOM_LIBFUZZER_PATH", "/absent/libfuzzer.a");
    command
}

/// The library that is loaded into programs, the program that loads it, the programs that tests
/// load it into: built as they are shipped.
pub(super) fn build() -> Command {
    let packages = ["-p", "shunt-preload", "-p", "shunt-cli", "-p", "shunt-testkit"];
    let mut command = cargo(&["build", "--release"]);
    command.args(packages);
    command
}

/// What waits more than it computes: of two cores it keeps a third busy. It has a step of its own.
const WAITS: &str = "oracle::";

/// How many tests at once: twice as many as there are cores. Many wait for programs that have to end, or for nothing to
/// happen; half as many again kept two cores at 69 %.
fn at_once() -> String {
    (2 * thread::available_parallelism().map_or(1, usize::from)).to_string()
}

fn tests(target: &Path, quick: bool, part: Option<Part>) -> Command {
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.args(part.map(Part::args).unwrap_or_default());
    command.args(["--", "--show-output", "--test-threads", &at_once(), "--skip", WAITS]);
    with_programs(command, target, quick)
}

/// Each test is in one of these. To cargo both are all of the workspace, for another choice of packages would build anew
/// what they share; whether a test program is run is seen where it is to begin.
#[derive(Clone, Copy)]
enum Part {
    /// What starts whole programs, and gets the machine for itself.
    Programs,
    /// What is left, examples in documentation included.
    Crates,
}

impl Part {
    /// Run in the directory of its package, with a test program and what that is told.
    const fn script(self) -> &'static str {
        match self {
            Self::Programs => r#"case $PWD:$0 in */e2e:*/deps/*) exec "$0" "$@";; esac"#,
            Self::Crates => r#"case $PWD:$0 in */e2e:*/deps/*);; *) exec "$0" "$@";; esac"#,
        }
    }

    fn args(self) -> Vec<String> {
        let runner = format!("target.'cfg(unix)'.runner = ['sh', '-c', '{}']", self.script());
        let mut args = vec!["--config".to_owned(), runner];
        if matches!(self, Self::Programs) {
            // Without examples.
            args.push("--tests".to_owned());
        }
        args
    }
}

/// Several times as many at once as there are cores.
fn compared(target: &Path, quick: bool) -> Command {
    // The whole workspace, for another choice of packages would build what they share anew.
    let mut command = cargo(&["test", "--workspace", "--test", "it", "--", "--show-output"]);
    command.args(["--test-threads", "8", WAITS]);
    with_programs(command, target, quick)
}

fn with_programs(mut command: Command, target: &Path, quick: bool) -> Command {
    command.env("SHUNT_BIN_DIR", target.join("release"));
    if quick {
        command.env("SHUNT_TEST_QUICK", "1");
    }
    command
}

/// The demonstration, with what the tests had built: its rows fail if a program does.
fn demonstration(more: &[&str]) -> Command {
    let mut command = cargo(&["xtask", "demo", "--no-build"]);
    command.args(more);
    command
}

/// The library that aborts a program whose wake-up was lost, in a directory of its own. Nobody measures it: it is not
/// optimised as a whole.
fn build_watchdog(target: &Path) -> Command {
    let mut command = cargo(&["build", "--release", "-p", "shunt-preload"]);
    command
        .args(["--features", "shunt-preload/watchdog", "--target-dir"])
        .arg(target.join("watchdog"))
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    command
}

/// Doorbells that are swallowed, and programs of socket calls, with that library and the programs built before.
fn watched(target: &Path) -> Command {
    let dir = target.join("watchdog/release");
    for program in ["pingpong", "httpd", "httpload", "bulk"] {
        // One that is absent fails the test that starts it, which says so.
        let _ = fs::copy(target.join("release").join(program), dir.join(program));
    }
    // The whole workspace, for another choice of packages would build what they share anew.
    let mut command = cargo(&["test", "--workspace", "--test", "it", "--", "--show-output"]);
    command.args(["--test-threads", &at_once()]);
    command.args(["watchdog::", "differential::both_ends", "programs::web::"]);
    // Those cases of which the most wait, and may wait for ever.
    command.args(["forking", "late", "readiness", "waits"].map(|m| format!("oracle::{m}::")));
    command.env("SHUNT_BIN_DIR", dir).env("SHUNT_WATCHDOG", "1");
    command
}

fn loom(target: &Path) -> Command {
    let packages = ["-p", "shunt-sys", "-p", "shunt-local", "-p", "shunt-frag"];
    let mut command = cargo(&["test", "--lib", "--release"]);
    command
        .args(packages)
        .env("RUSTFLAGS", "--cfg loom")
        .env("LOOM_MAX_PREEMPTIONS", "3")
        // The models take seconds; whole programs optimised at once took two minutes to build.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        // Its own directory: other flags would rebuild everything, each time.
        .env("CARGO_TARGET_DIR", target.join("loom"));
    command
}

fn documentation() -> Command {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// What a client of other people's makes of `shunt serve`, once there is one.
/// `which`: of the suites.
fn serving(program: &Path, which: &str) -> Result<Command, String> {
    if let Some(why) = torture::cannot_serve(program) {
        return Err(why);
    }
    for (name, package) in [("smbclient", "smbclient"), ("smbtorture", "samba-testsuite")] {
        if install::find(name).is_none() {
            return Err(format!("no {name} here (Debian: {package})"));
        }
    }
    Ok(cargo(&["xtask", "torture", which, "--no-build"]))
}

/// SMC-R with the kernel of emulated machines: what is essential.
fn beside_kernels(install: bool) -> Result<Command, String> {
    interop::cannot_run(install)
        .map_or_else(|| Ok(cargo(&["xtask", "interop", "--smoke", "--no-build"])), Err)
}

fn component(subcommand: &str, name: &str) -> Result<(), String> {
    let version = cargo(&[subcommand, "--version"]).stderr(Stdio::null()).output();
    if version.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    Err(format!("no {name} here; `rustup component add {name}` brings it"))
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    in_root(command)
}

fn in_root(mut command: Command) -> Command {
    command.current_dir(workspace_root()).stdin(Stdio::null());
    command
}

fn target_dir() -> PathBuf {
    let dir = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    workspace_root().join(dir)
}

impl Step {
    /// `say` is handed the lines that people are to read.
    fn run(self, say: &mut dyn FnMut(&str)) -> Report {
        say(&format!("\n== {}", self.name));
        let start = Instant::now();
        let mut reader = Reader::default();
        let outcome = match (self.command)() {
            Ok(command) => stream(command, start + self.time_max, &mut reader, say),
            Err(absent) => Outcome::Skipped(absent),
        };
        reader.finish();
        let took = start.elapsed();
        say(&format!("== {}: {outcome} ({})", self.name, super::seconds(took)));
        Report { name: self.name, outcome, took, tally: reader.tally }
    }
}

/// Runs a command until it ends or `deadline` has passed, handing its lines on.
fn stream(
    mut command: Command,
    deadline: Instant,
    reader: &mut Reader,
    say: &mut dyn FnMut(&str),
) -> Outcome {
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(e) => {
            let program = command.get_program().to_string_lossy();
            return Outcome::Failed(format!("cannot start {program}: {e}"));
        }
    };
    let lines = lines_of(child.stdout.take());
    match follow(&mut child, &lines, deadline, reader, say) {
        Some(status) if status.success() => Outcome::Passed,
        Some(status) => Outcome::Failed(status.to_string()),
        None => {
            end(&mut child, say);
            Outcome::Failed("it hung, and was ended".into())
        }
    }
}

/// Lines as they come, until the last process that may write them has ended.
fn lines_of(output: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let Some(output) = output else { return };
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// `None` if the deadline came first.
///
/// The end of the child is the end, not the end of its output: a server that a test has leaked
/// would keep that open for ever.
fn follow(
    child: &mut Child,
    lines: &Receiver<String>,
    deadline: Instant,
    reader: &mut Reader,
    say: &mut dyn FnMut(&str),
) -> Option<ExitStatus> {
    let mut ended = None;
    while Instant::now() < deadline {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                if reader.handle_line(&line) {
                    say(&line);
                }
                continue;
            }
            Err(_) if ended.is_some() => return ended,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(20)),
        }
        ended = child.try_wait().ok().flatten();
    }
    ended
}

/// Ends a child and all that it has started.
fn end(child: &mut Child, say: &mut dyn FnMut(&str)) {
    for pid in descendants(child.id()).into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
        say(&format!("ending process {pid}"));
        // One that has ended by itself meanwhile is what we want.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = child.wait();
}

/// A process and all below it, parents first.
fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, parent_of(pid)?))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything; state and parent follow the last one.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn run(script: &str, time_max: Duration) -> (Outcome, Tally) {
        let mut reader = Reader::default();
        let outcome = stream(sh(script), Instant::now() + time_max, &mut reader, &mut |_| {});
        (outcome, reader.tally)
    }

    #[test]
    fn the_last_lines_of_a_command_are_counted() {
        let script = "echo running 3 tests; echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured'";
        let (outcome, tally) = run(script, MINUTE);
        assert!(matches!(outcome, Outcome::Passed));
        assert_eq!(tally.passed, 3);
    }

    #[test]
    fn a_crash_counts_as_a_failure() {
        let (outcome, tally) = run("kill -SEGV $$", MINUTE);
        let report = Report { name: "x", outcome, took: MINUTE, tally };
        assert_eq!(report.counted().failed, 1);
    }

    #[test]
    fn a_step_that_hangs_ends_with_its_children() {
        let start = Instant::now();
        let (outcome, _) = run("sleep 600 & sleep 600", Duration::from_millis(300));
        assert!(matches!(outcome, Outcome::Failed(_)));
        assert!(start.elapsed() < MINUTE);
    }

    #[test]
    fn a_server_left_behind_does_not_hold_up_the_step() {
        let start = Instant::now();
        let (outcome, _) = run("sleep 30 & exit 0", MINUTE);
        assert!(matches!(outcome, Outcome::Passed));
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn children_are_found_below_their_parents() {
        let mut child = sh("sleep 600 & wait").spawn().unwrap();
        let deadline = Instant::now() + MINUTE;
        while descendants(child.id()).len() < 2 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        let family = descendants(child.id());
        end(&mut child, &mut |_| {});
        assert_eq!(family.len(), 2);
    }

    #[test]
    fn each_test_program_is_run_in_one_part() {
        let place = tempfile::tempdir().unwrap();
        let ran = |part: Part, package: &str, program: &str| {
            let [dir, program] = [package, program].map(|path| place.path().join(path));
            fs::create_dir_all(&dir).unwrap();
            fs::create_dir_all(program.parent().unwrap()).unwrap();
            if !program.exists() {
                std::os::unix::fs::symlink("/bin/echo", &program).unwrap();
            }
            let mut command = sh(part.script());
            let output = command.arg(program).args(["--skip", "a b"]).current_dir(dir).output();
            let output = output.unwrap();
            assert!(output.status.success());
            output.stdout == b"--skip a b\n"
        };
        for (package, program, of_programs) in [
            ("e2e", "target/debug/deps/it-1", true),
            ("e2e", "target/debug/deps/e2e-2", true),
            ("e2e", "rustdoctest1/rust_out", false),
            ("crates/frag", "target/debug/deps/it-3", false),
            ("e2e/crates/frag", "target/debug/deps/frag-4", false),
        ] {
            assert_eq!(ran(Part::Programs, package, program), of_programs, "{package} {program}");
            assert_eq!(ran(Part::Crates, package, program), !of_programs, "{package} {program}");
        }
    }

    #[test]
    fn a_step_runs_beside_others() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("computed").display().to_string();
        let result = "echo running 1 test; echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured'";
        let waits = || sh(&format!("until [ -e {file} ]; do sleep 0.02; done; {result}"));
        let some = vec![step("waits", 1, Ok(waits())), step("waits, too", 1, Ok(waits()))];
        let others = vec![
            step("fails", 1, Ok(sh("exit 3"))),
            step("computes", 1, Ok(behind(&sh(&format!("touch {file}"))))),
        ];
        let reports = Turn::Beside { some, others }.run();
        let names: Vec<_> = reports.iter().map(|report| report.name).collect();
        assert_eq!(names, ["waits", "waits, too", "fails", "computes"]);
        for waited in &reports[..2] {
            assert!(matches!(waited.outcome, Outcome::Passed) && waited.tally.passed == 1);
        }
        assert!(matches!(reports[2].outcome, Outcome::Failed(_)));
        assert!(matches!(reports[3].outcome, Outcome::Passed));
    }
}

//! One of CPython's test modules, run to its end whatever its tests do: one that hangs or kills the
//! process is noted, and the rest runs in a new process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::bench::stage::{Board, Running, Stage, name_of, remove_dir};

/// A test that takes longer hangs.
const PATIENCE_S: u64 = 60;
/// So many tests of one module may end their process before we give up.
const FALLS_MAX: usize = 20;

/// Tests that never run: they have nothing to do with TCP, and hang on some machines.
const LEFT_OUT: &[&str] = &["test.test_socket.ThreadedVSOCKSocketStreamTest.testStream"];

/// How the tests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Mode {
    /// Without Shunt.
    #[value(skip)]
    Plain,
    /// Only ends that accept take part: their peers are as if without the library.
    Server,
    /// Only ends that connect take part, and nobody under Shunt listens.
    Client,
    /// The same, but their connections lead to ports of listeners under Shunt: each is offered, and nobody takes it.
    Offered,
    /// Both ends, under `shunt run`.
    Shunt,
}

impl Mode {
    /// What is left out of Shunt. An address rule, and be it of an address that nobody has (RFC 5737), keeps listeners on
    /// the board, for the address of a connection is known when it is there.
    const fn excluded(self) -> Option<&'static str> {
        match self {
            Self::Plain | Self::Shunt => None,
            Self::Server => Some("end:client"),
            Self::Client => Some("end:server"),
            Self::Offered => Some("end:server,addr:192.0.2.1"),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plain => "plain",
            Self::Server => "server",
            Self::Client => "client",
            Self::Offered => "offered",
            Self::Shunt => "shunt",
        })
    }
}

/// How a test ended.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    kind: String,
    /// The error, if there was one.
    pub(super) why: String,
}

impl Outcome {
    /// ok, skip, fail, error, xfail, xpass, hang or killed.
    pub(super) fn kind(&self) -> &str {
        &self.kind
    }
}

/// Equal if they ended in the same way; the words of an error may hold addresses.
impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

/// Outcome of each test.
pub(super) type Outcomes = BTreeMap<String, Outcome>;

/// What a module's run gave.
#[derive(Debug, Default)]
pub(super) struct Ran {
    /// How each test ended.
    pub(super) outcomes: Outcomes,
    /// Ends of connections that went over to shared memory: a connection within the module counts twice.
    /// A lower bound, for a process that ends may leave its place on the board, and its count, to another.
    pub(super) attached: u64,
    /// Connections that stayed on TCP and were counted, by the number of the reason; a lower bound, likewise.
    pub(super) stayed: BTreeMap<u64, u64>,
}

/// A Python with its tests, and where it runs them.
#[derive(Debug)]
pub(super) struct Python<'a> {
    stage: &'a Stage,
    program: PathBuf,
    version: String,
    runner: PathBuf,
}

/// What the journal of one process says.
#[derive(Debug, Default)]
struct Journal {
    outcomes: Outcomes,
    /// The test that had begun and not ended.
    open: Option<String>,
    complete: bool,
}

impl<'a> Python<'a> {
    /// The Python that `program` leads to: a wrapper script is left out.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub(super) fn new(stage: &'a Stage, program: &Path) -> anyhow::Result<Self> {
        let ask = "import sys, test.test_socket; print(sys.executable); print('CPython', sys.version.split()[0])";
        let output = Command::new(program).args(["-c", ask]).output();
        let output = output.with_context(|| format!("cannot start {}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.success(),
            "{} cannot import test.test_socket: {}",
            program.display(),
            said.trim()
        );
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (program, version) = text.trim().split_once('\n').context("that is no Python")?;
        let runner = stage.new_dir()?.join("runner.py");
        fs::write(&runner, super::RUNNER)?;
        Ok(Self { stage, program: program.into(), version: version.into(), runner })
    }

    /// Its name and version.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Runs a whole module.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or ends its process too often.
    pub(super) fn run(&self, suite: &str, mode: Mode) -> anyhow::Result<Ran> {
        let mut ran = Ran::default();
        for _ in 0..FALLS_MAX {
            let done: Vec<&str> =
                ran.outcomes.keys().map(String::as_str).chain(LEFT_OUT.iter().copied()).collect();
            let board = Board::new()?;
            let (journal, fall) = self.process(suite, mode, &board, "without", &done.join("\n"))?;
            if mode != Mode::Plain {
                self.count(&board, &mut ran)?;
            }
            let outcomes = &mut ran.outcomes;
            let known = outcomes.len();
            outcomes.extend(journal.outcomes);
            if journal.complete {
                return Ok(ran);
            }
            match journal.open {
                Some(test) => drop(outcomes.insert(test, fall)),
                None if outcomes.len() > known => {}
                None => bail!("the process ends before its first test: {}", fall.why),
            }
        }
        bail!("more than {FALLS_MAX} tests end their process")
    }

    /// Runs one test alone.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(super) fn run_one(&self, suite: &str, mode: Mode, test: &str) -> anyhow::Result<Outcomes> {
        let (journal, fall) = self.process(suite, mode, &Board::new()?, "only", test)?;
        let mut outcomes = journal.outcomes;
        if let Some(test) = journal.open {
            outcomes.insert(test, fall);
        }
        Ok(outcomes)
    }

    /// What `shunt stat` says of all who ever were on a board.
    fn count(&self, board: &Board, into: &mut Ran) -> anyhow::Result<()> {
        let stat = Command::new(self.stage.program("shunt"))
            .args(["stat", "--json", "--all", "--dir"])
            .arg(board.path())
            .output()
            .context("cannot start shunt stat")?;
        let said = String::from_utf8_lossy(&stat.stderr).into_owned();
        ensure!(stat.status.success(), "shunt stat failed ({}): {}", stat.status, said.trim());
        let json: Value = serde_json::from_slice(&stat.stdout).context("that is no JSON")?;
        into.attached += sum_attached(&json).context("shunt stat names no processes")?;
        for (reason, count) in sum_stayed(&json).context("shunt stat gives no fallbacks")? {
            *into.stayed.entry(reason).or_default() += count;
        }
        Ok(())
    }

    /// One process: its journal, and what to say of a test that was open when it ended.
    fn process(
        &self,
        suite: &str,
        mode: Mode,
        board: &Board,
        selection: &str,
        names: &str,
    ) -> anyhow::Result<(Journal, Outcome)> {
        let dir = self.stage.new_dir()?;
        let (path, list) = (dir.join("journal"), dir.join("names"));
        fs::write(&list, names)?;
        let mut command: Vec<OsString> = Vec::new();
        if mode != Mode::Plain {
            command.extend([self.stage.program("shunt").into(), "run".into(), "--".into()]);
        }
        command.extend([
            self.program.clone().into(),
            self.runner.clone().into(),
            format!("test.{suite}").into(),
        ]);
        command.extend([
            path.clone().into(),
            PATIENCE_S.to_string().into(),
            selection.into(),
            list.into(),
        ]);
        let mut settings = vec![("SHUNT_DIR", board.path().into())];
        settings.extend(mode.excluded().map(|rules| ("SHUNT_EXCLUDE", rules.into())));
        let mut running = Running::start(&command, &dir, &settings)?;
        let fall = watch(&mut running, &path)?;
        drop(running);
        let journal = Journal::read(&fs::read_to_string(&path).unwrap_or_default());
        let fall = fall.unwrap_or_else(|| Outcome {
            // The runner ends itself, after the stacks of all threads, when its patience is over.
            kind: "hang".into(),
            why: stack(&fs::read_to_string(dir.join("stderr")).unwrap_or_default()),
        });
        remove_dir(&dir);
        Ok((journal, fall))
    }
}

/// The sum over all processes that `shunt stat --json` names.
fn sum_attached(json: &Value) -> Option<u64> {
    let processes = json["processes"].as_array()?;
    processes.iter().map(|process| process["attached_total"].as_u64()).sum()
}

/// The same of connections on TCP, by reason.
fn sum_stayed(json: &Value) -> Option<BTreeMap<u64, u64>> {
    let mut sums = BTreeMap::new();
    for process in json["processes"].as_array()? {
        for fallback in process["fallbacks"].as_array()? {
            *sums.entry(fallback["reason"].as_u64()?).or_default() += fallback["count"].as_u64()?;
        }
    }
    Some(sums)
}

/// Waits for the end; `Some` if the process was killed, or hung so that it could not end itself.
fn watch(running: &mut Running, journal: &Path) -> anyhow::Result<Option<Outcome>> {
    use std::os::unix::process::ExitStatusExt;
    let (mut len, mut since) = (0, Instant::now());
    loop {
        if let Some(status) = running.wait(Duration::from_secs(1))? {
            let killed = status.signal();
            let how = |signal| Outcome {
                kind: "killed".into(),
                why: format!("killed by {}", name_of(signal)),
            };
            return Ok(killed.map(how));
        }
        let now = fs::metadata(journal).map_or(0, |metadata| metadata.len());
        if now != len {
            (len, since) = (now, Instant::now());
        }
        if since.elapsed() > Duration::from_secs(PATIENCE_S + 30) {
            return Ok(Some(Outcome {
                kind: "hang".into(),
                why: "it could not even end itself".into(),
            }));
        }
    }
}

/// Where the main thread stood, innermost first.
fn stack(said: &str) -> String {
    let frames = said.lines().skip_while(|line| !line.contains("most recent call first"));
    let frames = frames.filter_map(|line| line.trim().strip_prefix("File "));
    let frames: Vec<&str> = frames.take(3).collect();
    if frames.is_empty() {
        let last: Vec<&str> = said.lines().rev().take(2).collect();
        return format!("the process ended; {}", last.join(" | "));
    }
    frames.join(" < ")
}

impl Journal {
    fn read(text: &str) -> Self {
        let mut journal = Self::default();
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let word = |name: &str| line[name].as_str().map(str::to_owned);
            if let Some(test) = word("begin") {
                journal.open = Some(test);
            } else if let (Some(test), Some(kind)) = (word("test"), word("outcome")) {
                journal.open = journal.open.take_if(|open| *open != test);
                journal
                    .outcomes
                    .insert(test, Outcome { kind, why: word("why").unwrap_or_default() });
            } else if line["end"] == true {
                journal.complete = true;
            }
        }
        journal
    }
}

#[cfg(test)]
mod tests {
    use super::{Journal, stack, sum_attached, sum_stayed};

    #[test]
    fn a_journal_that_breaks_off_names_the_test() {
        let journal = Journal::read(
            "{\"begin\": \"a\"}\n{\"test\": \"a\", \"outcome\": \"fail\", \"why\": \"x\"}\n{\"begin\": \"b\"}\n{\"te",
        );
        assert_eq!(journal.open.as_deref(), Some("b"));
        assert_eq!(journal.outcomes["a"].kind(), "fail");
        assert!(!journal.complete);
    }

    #[test]
    fn a_whole_journal() {
        let journal = Journal::read(
            "{\"begin\": \"a\"}\n{\"test\": \"a\", \"outcome\": \"ok\"}\n{\"end\": true}\n",
        );
        assert!(journal.complete && journal.open.is_none());
    }

    #[test]
    fn what_all_processes_attached_is_summed() {
        let json =
            serde_json::json!({ "processes": [{ "attached_total": 3 }, { "attached_total": 4 }] });
        assert_eq!(sum_attached(&json), Some(7));
        assert_eq!(sum_attached(&serde_json::json!({ "processes": [] })), Some(0));
        assert_eq!(sum_attached(&serde_json::json!({ "processes": [{}] })), None);
        assert_eq!(sum_attached(&serde_json::json!({})), None);
    }

    #[test]
    fn what_stayed_on_tcp_is_summed_by_reason() {
        let one = serde_json::json!({ "fallbacks": [{ "reason": 1, "count": 3 }, { "reason": 3, "count": 1 }] });
        let other = serde_json::json!({ "fallbacks": [{ "reason": 1, "count": 4 }] });
        let json = serde_json::json!({ "processes": [one, other] });
        assert_eq!(sum_stayed(&json), Some([(1, 7), (3, 1)].into()));
        assert_eq!(sum_stayed(&serde_json::json!({ "processes": [{}] })), None);
    }

    #[test]
    fn a_stack_is_shortened() {
        let said = "Timeout (0:01:00)!\nThread 0x1 (most recent call first):\n  File \"a.py\", line 3 in recv\n  \
                    File \"b.py\", line 9 in test\n";
        assert_eq!(stack(said), "\"a.py\", line 3 in recv < \"b.py\", line 9 in test");
    }
}

//! One suite of smbtorture: as a whole, and what is left of it one by one.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::matrix::Case;
use super::outcome::{Outcome, parse_subunit};
use super::server::{Kind, Server};
use crate::bench::stage::{self, Running};
use crate::smbd::{PASSWORD, USERS};

/// How long a single test may take that is run alone.
const ALONE: Duration = Duration::from_secs(60);

/// The tests of a suite, as smbtorture lists them, under the names that it prints when they run.
pub(crate) fn tests_of(listed: &str, suite: &str) -> Vec<String> {
    let name = |line: &str| {
        let rest = line.strip_prefix(suite)?.strip_prefix('.')?;
        // A case of one test has the name of the test.
        match rest.rsplit_once('.') {
            Some((case, test)) if case == test || case.ends_with(&format!(".{test}")) => {
                Some(case.to_owned())
            }
            _ => Some(rest.to_owned()),
        }
    };
    listed.lines().filter_map(name).collect()
}

/// Everything that smbtorture has.
///
/// # Errors
///
/// When it cannot be run.
pub(crate) fn list() -> anyhow::Result<String> {
    let output = std::process::Command::new("smbtorture").arg("--list").output();
    let output = output.context("cannot start smbtorture (Debian: samba-testsuite)")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(text.contains("\nsmb2."), "`smbtorture --list` lists no test of SMB2");
    Ok(text)
}

/// Runs a case against a server of its own, and returns its tests' outcomes by name.
///
/// # Errors
///
/// When the server or smbtorture cannot be started.
pub(crate) fn run(
    kind: &Kind,
    case: &Case,
    listed: &str,
) -> anyhow::Result<Vec<(String, Outcome)>> {
    let names = tests_of(listed, case.suite());
    ensure!(!names.is_empty(), "smbtorture has no suite {}", case.suite());
    let mut server = Server::start(kind, case)?;
    let limit = Duration::from_secs(case.seconds.into());
    let whole = torture(kind, &server, case, case.suite(), limit)?;
    let mut done = whole.done;
    if let Some(name) = whole.broke_in {
        let result = if server.fell().is_some() { "crash" } else { whole.how };
        done.push((name, broken(result, whole.seconds, "")));
    }
    for name in names {
        if done.iter().any(|(other, _)| *other == name) {
            continue;
        }
        let outcome = alone(kind, &mut server, case, &name)?;
        done.push((name, outcome));
    }
    Ok(done)
}

/// Runs one test of a case, against a server of its own.
///
/// # Errors
///
/// When the server or smbtorture cannot be started.
pub(crate) fn run_one(kind: &Kind, case: &Case, name: &str) -> anyhow::Result<Outcome> {
    let mut server = Server::start(kind, case)?;
    alone(kind, &mut server, case, name)
}

fn alone(kind: &Kind, server: &mut Server, case: &Case, name: &str) -> anyhow::Result<Outcome> {
    if server.fell().is_some() {
        *server = Server::start(kind, case)?;
    }
    let test = format!("{}.{name}", case.suite());
    let told = torture(kind, server, case, &test, ALONE)?;
    let mut outcome = match told.done.into_iter().next() {
        Some((_, outcome)) => outcome,
        None => {
            let result = if server.fell().is_some() { "crash" } else { told.how };
            broken(result, told.seconds, &told.last)
        }
    };
    outcome.note = format!("{} (run alone)", outcome.note).trim().to_owned();
    Ok(outcome)
}

fn broken(result: &str, seconds: f64, note: &str) -> Outcome {
    Outcome { result: result.into(), seconds, note: note.into() }
}

/// What a run of smbtorture told.
struct Told {
    done: Vec<(String, Outcome)>,
    /// The test in which it ended before its time.
    broke_in: Option<String>,
    /// How that is called: smbtorture itself ends early too, or hangs.
    how: &'static str,
    seconds: f64,
    /// Its last words.
    last: String,
}

fn torture(
    kind: &Kind,
    server: &Server,
    case: &Case,
    what: &str,
    limit: Duration,
) -> anyhow::Result<Told> {
    let dir = stage::new_dir(&std::env::temp_dir().join("shunt-torture-client"))?;
    let mut words: Vec<OsString> = vec!["smbtorture".into()];
    words.push(format!("//127.0.0.1/{}", case.share).into());
    words.extend(["-p".into(), server.port.to_string().into()]);
    words.push(format!("-U{}%{PASSWORD}", USERS[0]).into());
    words.extend(
        [
            "--target=samba3",
            "--format=subunit",
            &format!("--option=torture:user2name={}", USERS[1]),
            &format!("--option=torture:user2password={PASSWORD}"),
        ]
        .map(OsString::from),
    );
    words.extend(case.options().iter().map(OsString::from));
    if let Some(name) = case.kept_by(kind.is_ours()) {
        words.push(format!("--option=torture:acl_xattr_name={name}").into());
    }
    if let Some(folder) = server.folder(case.share) {
        let mut option = OsString::from("--option=torture:localdir=");
        option.push(folder);
        words.push(option);
    }
    words.push(what.into());
    let begun = Instant::now();
    let mut running = Running::start(&words, &dir, &[])?;
    let ended = running.wait(limit)?;
    let text = running.output();
    drop(running);
    stage::remove_dir(&dir);
    let (done, broke_in) = parse_subunit(&text);
    let last = text.lines().rev().find(|line| !line.starts_with("time: ")).unwrap_or_default();
    Ok(Told {
        done,
        broke_in,
        how: if ended.is_none() { "timeout" } else { "failure" },
        seconds: begun.elapsed().as_secs_f64(),
        last: last.chars().take(200).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::tests_of;

    #[test]
    fn names_are_those_that_are_printed() {
        let listed = "\
smb2.read.eof.eof
smb2.readonly.x.x
smb2.connect.connect
smb2.multichannel.oplocks.test1.test1
smb2.charset.Testing wide-a.Testing wide-a
";
        assert_eq!(tests_of(listed, "smb2.read"), ["eof"]);
        assert_eq!(tests_of(listed, "smb2.connect"), ["connect"]);
        assert_eq!(tests_of(listed, "smb2.multichannel"), ["oplocks.test1"]);
        assert_eq!(tests_of(listed, "smb2.charset"), ["Testing wide-a"]);
    }
}

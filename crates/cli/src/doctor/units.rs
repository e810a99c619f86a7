//! Our services, as systemd has them.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Check;

/// Services of ours.
const UNITS: [&str; 3] = ["shunt-engine.service", "shunt-serve.service", "shunt-metrics.service"];
/// How long systemd may take to say what it has. By itself `systemctl` waits for a manager that hangs for a minute or more.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often is looked whether it has.
const LOOK: Duration = Duration::from_millis(5);

/// A unit that is installed, and its state.
type Unit = (String, String);

/// Looks at them.
pub(super) fn check() -> Check {
    if !Path::new("/run/systemd/system").exists() {
        return told(Ok(None));
    }
    let mut show = Command::new("systemctl");
    show.args(["show", "--property=Id,LoadState,ActiveState"]).args(UNITS);
    told(said(show, PATIENCE).and_then(|said| units(&said)).map(Some))
}

/// What a command prints, if it is well, and done in time.
fn said(mut command: Command, patience: Duration) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |e: std::io::Error| format!("{name} cannot be run: {e}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let begun = Instant::now();
    // What it prints has room in a pipe, so that it ends though nobody reads meanwhile.
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if begun.elapsed() >= patience {
            // Its end is not waited for: what hangs in the kernel does not end by that.
            let _ = child.kill();
            return Err(format!("{name} does not answer within {} s", patience.as_secs_f64()));
        }
        std::thread::sleep(LOOK);
    };
    let (mut out, mut bad) = (Vec::new(), Vec::new());
    for (pipe, to) in [
        (child.stdout.take().map(|out| Box::new(out) as Box<dyn Read>), &mut out),
        (child.stderr.take().map(|err| Box::new(err) as Box<dyn Read>), &mut bad),
    ] {
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(to).map_err(failed)?;
        }
    }
    if status.success() {
        return Ok(String::from_utf8_lossy(&out).into_owned());
    }
    let bad = String::from_utf8_lossy(&bad);
    Err(match bad.lines().find(|line| !line.trim().is_empty()) {
        Some(why) => format!("{name} says: {}", why.trim()),
        None => format!("{name} fails ({status})"),
    })
}

/// The units that are installed, of what `systemctl show` prints: a block of properties for each.
fn units(said: &str) -> Result<Vec<Unit>, String> {
    let mut all = Vec::new();
    for block in said.trim().split("\n\n") {
        let value = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        let (Some(unit), Some(load)) = (value("Id="), value("LoadState=")) else {
            return Err("systemctl does not say which units there are".into());
        };
        if load != "not-found" {
            let state = if load == "loaded" { value("ActiveState=") } else { Some(load) };
            all.push((unit.to_owned(), state.unwrap_or("unknown").to_owned()));
        }
    }
    Ok(all)
}

/// `units`: `None` without systemd; an error, in words, where it does not say.
fn told(units: Result<Option<Vec<Unit>>, String>) -> Check {
    const NAME: &str = "systemd";
    let units = match units {
        Ok(Some(units)) => units,
        Ok(None) => return Check::ok(NAME, "no systemd here"),
        Err(why) => {
            let advice = "whether services of Shunt run is not known: systemctl status says more";
            return Check::warn(NAME, why, advice);
        }
    };
    if units.is_empty() {
        return Check::ok(NAME, "no unit of Shunt is installed");
    }
    let words: Vec<_> = units.iter().map(|(unit, state)| format!("{unit} is {state}")).collect();
    let is_bad = |(_, state): &&Unit| ["failed", "error", "bad-setting"].contains(&&**state);
    match units.iter().find(is_bad) {
        Some((unit, state)) => {
            let advice = match &**state {
                "failed" => format!("journalctl -u {unit} says why"),
                _ => format!("systemctl status {unit} says why"),
            };
            Check::warn(NAME, words.join(", "), advice)
        }
        None => Check::ok(NAME, words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    fn shell(script: &str, patience: Duration) -> Result<String, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        said(command, patience)
    }

    /// One that does not answer was waited for, and each that failed was told as `no systemd here`.
    #[test]
    fn a_systemd_that_does_not_say_is_told_from_none() {
        let long = Duration::from_secs(600);
        for (said, words) in [
            (shell("exec sleep 1000", Duration::ZERO), "sh does not answer within 0 s"),
            (shell("echo; echo ' cannot reach the bus' >&2; exit 1", long), "says: cannot reach"),
            (shell("exit 3", long), "sh fails (exit status: 3)"),
            (said(Command::new("/not/there"), long), "/not/there cannot be run: No such file"),
            (shell("echo ActiveState=active", long), "does not say which units"),
        ] {
            let check = told(said.and_then(|said| units(&said)).map(Some));
            assert_eq!(check.outcome, Outcome::Warn, "{check:?}");
            assert!(check.found.contains(words) && check.advice.is_some(), "{check:?}");
        }
        let none = told(Ok(None));
        assert_eq!((none.outcome, &*none.found), (Outcome::Ok, "no systemd here"));
    }

    #[test]
    fn units_are_told_with_their_state() {
        let block = |unit: &str, load: &str, active: &str| {
            format!("Id={unit}\nLoadState={load}\nActiveState={active}\n")
        };
        let [first, second, third] = UNITS;
        let absent = |unit| block(unit, "not-found", "inactive");
        for (blocks, outcome, words) in [
            ([absent(first), absent(second)], Outcome::Ok, "no unit of Shunt is installed"),
            (
                [block(first, "loaded", "active"), absent(third)],
                Outcome::Ok,
                "shunt-engine.service is active",
            ),
            (
                [block(first, "loaded", "active"), block(second, "loaded", "failed")],
                Outcome::Warn,
                "shunt-engine.service is active, shunt-serve.service is failed",
            ),
            (
                [block(first, "masked", "inactive"), absent(second)],
                Outcome::Ok,
                "shunt-engine.service is masked",
            ),
            (
                [block(first, "bad-setting", "inactive"), absent(second)],
                Outcome::Warn,
                "shunt-engine.service is bad-setting",
            ),
        ] {
            let check = told(units(&blocks.join("\n")).map(Some));
            assert_eq!((check.outcome, &*check.found), (outcome, words));
            assert_eq!(check.advice.is_some(), outcome == Outcome::Warn, "{check:?}");
        }
    }
}

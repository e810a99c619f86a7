//! The socket by which people talk to an engine that runs: one JSON object a line, one answer a line.
//!
//! `{"set": {"max_links": "1"}}` changes settings, `{"show": {}}` tells all of them, `{"stat": {}}` what
//! has been done, and `{"drain": true}` has it end when the last connection is gone. Answers are `{"ok": …}` or `{"error": "…"}`. The socket lies in the board's directory,
//! which is closed to other users.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::{BadSetting, Config, SETTINGS};
use super::stat::Stat;
use crate::control::{self, Control};

/// What people ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Change these settings.
    Set(BTreeMap<String, String>),
    /// Tell all settings.
    Show {},
    /// Tell what has been done.
    Stat {},
    /// Take no new connections, and end when the last of those that there are is gone; or `false`, take them again.
    Drain(bool),
}

/// Who answers.
pub(super) trait Answers: Send + Sync + 'static {
    /// The settings as they are.
    fn config(&self) -> Config;
    /// New settings, for what comes after.
    fn configure(&self, config: Config);
    /// What has been done.
    fn stat(&self) -> Stat;
    /// Take no new connections, or again; or why not, in words.
    fn drain(&self, on: bool) -> Result<(), String>;
}

/// Answers at `path`, where nobody may.
pub(super) fn start(path: &Path, answers: impl Answers) -> io::Result<Control> {
    // Whoever holds the board's door open is the only engine: what lies here is stale.
    Control::start(path, move |line| answer(line, &answers))
}

fn answer(line: &[u8], answers: &impl Answers) -> Result<serde_json::Value, String> {
    let request = serde_json::from_slice(line).map_err(|e| format!("not understood: {e}"))?;
    respond(request, answers)
}

/// The answer to whoever asks, or why there is none.
pub(super) fn respond(
    request: Request,
    answers: &impl Answers,
) -> Result<serde_json::Value, String> {
    match request {
        Request::Set(settings) => {
            let config = changed(&answers.config(), &settings).map_err(|e| e.to_string())?;
            answers.configure(config);
            Ok(serde_json::json!({}))
        }
        Request::Show {} => {
            let config = answers.config();
            let all = SETTINGS.iter().map(|s| (s.name, config.show(s.name)));
            serde_json::to_value(all.collect::<BTreeMap<_, _>>()).map_err(|e| e.to_string())
        }
        Request::Drain(on) => {
            answers.drain(on)?;
            Ok(serde_json::json!({}))
        }
        Request::Stat {} => serde_json::to_value(answers.stat()).map_err(|e| e.to_string()),
    }
}

/// All of the changes or none.
fn changed(config: &Config, settings: &BTreeMap<String, String>) -> Result<Config, BadSetting> {
    let mut new = config.clone();
    for (name, value) in settings {
        new.set(name, value)?;
        if SETTINGS.iter().any(|s| s.name == name && !s.live) {
            let why = "cannot be changed while the engine runs: end it and start it again".into();
            return Err(BadSetting { name: name.clone(), value: value.clone(), why });
        }
    }
    new.checked()
}

/// Asks an engine that runs.
///
/// # Errors
///
/// `NotFound` or `ConnectionRefused` when none runs; `InvalidData`, with its words, when it refuses.
pub fn ask(path: &Path, request: &Request) -> io::Result<serde_json::Value> {
    control::ask(path, request)
}

/// What an engine that runs has done and has, for whoever does not wait long for it.
///
/// # Errors
///
/// As [`ask`]; `TimedOut` when there is no answer within a second.
pub fn look(path: &Path) -> io::Result<serde_json::Value> {
    control::ask_within(path, &Request::Stat {}, Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Fake(Arc<Mutex<Config>>);

    impl Answers for Fake {
        fn config(&self) -> Config {
            self.0.lock().unwrap().clone()
        }
        fn configure(&self, config: Config) {
            *self.0.lock().unwrap() = config;
        }
        fn stat(&self) -> Stat {
            Stat { pid: 7, ..Stat::default() }
        }
        fn drain(&self, on: bool) -> Result<(), String> {
            self.0.lock().unwrap().spare_short = on;
            Ok(())
        }
    }

    fn set(pairs: &[(&str, &str)]) -> Request {
        Request::Set(pairs.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect())
    }

    #[test]
    fn who_only_looks_does_not_wait_for_an_engine_that_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let stopped = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // Room for one who waits to be let in, and then for nobody.
        rustix::net::listen(&stopped, 0).unwrap();
        for who in ["first", "second"] {
            let error = look(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{who}: {error}");
            assert_eq!(error.to_string(), "no answer within 1 s: it may be stopped");
        }
    }

    #[test]
    fn what_is_set_is_shown_and_what_is_wrong_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        assert_eq!(ask(&path, &Request::Show {}).unwrap_err().kind(), io::ErrorKind::NotFound);
        let config = Arc::new(Mutex::new(Config::default()));
        let control = start(&path, Fake(Arc::clone(&config))).unwrap();
        ask(&path, &set(&[("max_conns", "20"), ("eid", "A")])).unwrap();
        let shown = ask(&path, &Request::Show {}).unwrap();
        assert_eq!((&shown["max_conns"], &shown["eid"]), (&"20".into(), &"A".into()));
        assert_eq!(ask(&path, &Request::Stat {}).unwrap()["pid"], 7);
        for on in [false, true] {
            ask(&path, &Request::Drain(on)).unwrap();
            assert_eq!(config.lock().unwrap().spare_short, on);
        }

        let before = config.lock().unwrap().clone();
        for wrong in [&[("max_conns", "30"), ("max_links", "9")][..], &[("vectors", "2")]] {
            let e = ask(&path, &set(wrong)).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidData, "{e}");
        }
        assert_eq!(*config.lock().unwrap(), before);
        drop(control);
        assert!(!path.exists());
    }

    #[test]
    fn nonsense_is_answered_and_the_next_line_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let _control = start(&path, Fake(Arc::default())).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"what?\n{\"stat\":{}}\n").unwrap();
        let mut lines = BufReader::new(&stream).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("{\"error\":"));
        assert!(lines.next().unwrap().unwrap().starts_with("{\"ok\":"));
    }
}

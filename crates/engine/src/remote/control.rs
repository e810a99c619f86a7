//! The socket by which people talk to an engine that runs: one JSON object a line, one answer a line.
//!
//! `{"set": {"max_links": "1"}}` changes settings, `{"show": {}}` tells all of them, `{"stat": {}}` what
//! has been done. Answers are `{"ok": …}` or `{"error": "…"}`. The socket lies in the board's directory,
//! which is closed to other users.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::{BadSetting, Config, SETTINGS};
use super::stat::Stat;

/// Longest line that is read.
const LINE_MAX: u64 = 64 << 10;
/// How long one who has connected may say nothing.
const PATIENCE: Duration = Duration::from_secs(2);

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
}

/// Who answers.
pub(super) trait Answers: Send + Sync + 'static {
    /// The settings as they are.
    fn config(&self) -> Config;
    /// New settings, for what comes after.
    fn configure(&self, config: Config);
    /// What has been done.
    fn stat(&self) -> Stat;
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Ok(serde_json::Value),
    Error(String),
}

/// The thread that answers.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Answers at `path`, where nobody may.
    pub(super) fn start(path: &Path, answers: impl Answers) -> io::Result<Self> {
        // Whoever holds the board's door open is the only engine: what lies here is stale.
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        let thread = std::thread::Builder::new().name("shunt-control".into()).spawn(move || {
            for stream in listener.incoming() {
                match stream.and_then(|stream| converse(stream, &answers)) {
                    Ok(true) | Err(_) => {}
                    Ok(false) => return,
                }
            }
        })?;
        Ok(Self { path: path.to_owned(), thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // An empty line is how the thread is told to end, and nothing that people would send.
        let told = UnixStream::connect(&self.path).and_then(|mut s| s.write_all(END));
        if let (Ok(()), Some(thread)) = (told, self.thread.take()) {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

const END: &[u8] = b"\0\n";

/// Answers one who has connected, until that one goes. `false`: it is us, and it is the end.
fn converse(stream: UnixStream, answers: &impl Answers) -> io::Result<bool> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(&stream);
    loop {
        let mut line = Vec::new();
        if (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(true);
        }
        if line == END {
            return Ok(false);
        }
        let answer = match answer(&line, answers) {
            Ok(value) => Answer::Ok(value),
            Err(words) => Answer::Error(words),
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        (&stream).write_all(&text)?;
    }
}

fn answer(line: &[u8], answers: &impl Answers) -> Result<serde_json::Value, String> {
    let request = serde_json::from_slice(line).map_err(|e| format!("not understood: {e}"))?;
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
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut text = String::new();
    BufReader::new(&stream).read_line(&mut text)?;
    let refused = |words: String| io::Error::new(io::ErrorKind::InvalidData, words);
    let mut answer: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text)?;
    match (answer.remove("ok"), answer.remove("error")) {
        (Some(value), _) => Ok(value),
        (None, Some(serde_json::Value::String(words))) => Err(refused(words)),
        _ => Err(refused("an answer that makes no sense".into())),
    }
}

#[cfg(test)]
mod tests {
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
    }

    fn set(pairs: &[(&str, &str)]) -> Request {
        Request::Set(pairs.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect())
    }

    #[test]
    fn what_is_set_is_shown_and_what_is_wrong_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        assert_eq!(ask(&path, &Request::Show {}).unwrap_err().kind(), io::ErrorKind::NotFound);
        let config = Arc::new(Mutex::new(Config::default()));
        let control = Control::start(&path, Fake(Arc::clone(&config))).unwrap();
        ask(&path, &set(&[("max_conns", "20"), ("eid", "A")])).unwrap();
        let shown = ask(&path, &Request::Show {}).unwrap();
        assert_eq!((&shown["max_conns"], &shown["eid"]), (&"20".into(), &"A".into()));
        assert_eq!(ask(&path, &Request::Stat {}).unwrap()["pid"], 7);

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
        let _control = Control::start(&path, Fake(Arc::default())).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"what?\n{\"stat\":{}}\n").unwrap();
        let mut lines = BufReader::new(&stream).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("{\"error\":"));
        assert!(lines.next().unwrap().unwrap().starts_with("{\"ok\":"));
    }
}

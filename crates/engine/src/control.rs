//! The socket by which people talk to what runs: one JSON object a line, one answer a line.
//!
//! Answers are `{"ok": …}` or `{"error": "…"}`. Only the user whose process it is, and root, are answered.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;
use serde_json::Value;

/// Longest line that is read.
const LINE_MAX: u64 = 64 << 10;
/// How long one who has connected may say nothing.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer may take.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Ok(Value),
    Error(String),
}

/// What the thread that answers is at.
#[derive(Debug)]
enum Talk {
    None,
    With(UnixStream),
    /// Nobody is talked to any more.
    Over,
}

/// The thread that answers.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    talk: Arc<Mutex<Talk>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Has `answer` answer each line that comes to `path`. A socket that is there is taken for stale: the caller knows
    /// that nobody else answers.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` when something else is there, and what the system says.
    pub(crate) fn start(
        path: &Path,
        answer: impl Fn(&[u8]) -> Result<Value, String> + Send + 'static,
    ) -> io::Result<Self> {
        remove(path)?;
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
        let talk = Arc::new(Mutex::new(Talk::None));
        let turns = Arc::clone(&talk);
        // `false`: it is over.
        let turn_to = move |to: Talk| {
            let mut talk = held(&turns);
            let goes_on = !matches!(*talk, Talk::Over);
            if goes_on {
                *talk = to;
            }
            goes_on
        };
        let thread = std::thread::Builder::new().name("shunt-control".into()).spawn(move || {
            for stream in listener.incoming() {
                let Ok((stream, copy)) = stream.and_then(|s| Ok((s.try_clone()?, s))) else {
                    continue;
                };
                if !turn_to(Talk::With(copy)) || matches!(converse(stream, &answer), Ok(false)) {
                    return;
                }
                turn_to(Talk::None);
            }
        })?;
        Ok(Self { path: path.to_owned(), talk, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Who keeps a connection open, or goes on to ask, does not keep us.
        if let Talk::With(stream) = std::mem::replace(&mut *held(&self.talk), Talk::Over) {
            let _ = stream.shutdown(Shutdown::Read);
        }
        // An empty line is how the thread is told to end, and nothing that people would send.
        let told = UnixStream::connect(&self.path).and_then(|mut s| s.write_all(END));
        if let (Ok(()), Some(thread)) = (told, self.thread.take()) {
            let _ = thread.join();
        }
        let _ = remove(&self.path);
    }
}

fn held(talk: &Mutex<Talk>) -> MutexGuard<'_, Talk> {
    talk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a socket, and nothing that was meant to stay.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(about) if about.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "something is there already, and is no socket",
        )),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

const END: &[u8] = b"\0\n";

/// Whether somebody may ask: who runs this process, and root.
fn is_one_of_us(stream: &UnixStream) -> io::Result<bool> {
    // Who asks from outside of our process numbers, as a container has, has none for us: rustix takes that for an error.
    let uid =
        sys::passing::credentials(stream.as_raw_fd()).map_err(io::Error::from_raw_os_error)?.uid;
    Ok(uid == 0 || uid == sys::call::geteuid())
}

/// Answers one who has connected, until that one goes. `false`: it is us, and it is the end.
fn converse(
    stream: UnixStream,
    answer: &impl Fn(&[u8]) -> Result<Value, String>,
) -> io::Result<bool> {
    if !is_one_of_us(&stream)? {
        return Ok(true);
    }
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
        let answer = match answer(&line) {
            Ok(value) => Answer::Ok(value),
            Err(words) => Answer::Error(words),
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        (&stream).write_all(&text)?;
    }
}

/// Asks what runs.
///
/// # Errors
///
/// `NotFound` or `ConnectionRefused` when nothing does; `InvalidData`, with its words, when it refuses; `TimedOut`
/// when it does not answer for half a minute.
pub(crate) fn ask(path: &Path, request: &impl Serialize) -> io::Result<Value> {
    ask_within(path, request, ANSWER_PATIENCE)
}

/// [`ask`] with another patience.
pub(crate) fn ask_within(
    path: &Path,
    request: &impl Serialize,
    patience: Duration,
) -> io::Result<Value> {
    let text = converse_within(path, request, patience).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            let words = format!("no answer within {} s: it may be stopped", patience.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, words)
        }
        _ => e,
    })?;
    let refused = |words: String| io::Error::new(io::ErrorKind::InvalidData, words);
    if text.is_empty() {
        return Err(refused("it answers nobody but its own user and root".into()));
    }
    let mut answer: BTreeMap<String, Value> = serde_json::from_str(&text)?;
    match (answer.remove("ok"), answer.remove("error")) {
        (Some(value), _) => Ok(value),
        (None, Some(Value::String(words))) => Err(refused(words)),
        _ => Err(refused("an answer that makes no sense".into())),
    }
}

/// Sends a line and receives one, each within this time.
fn converse_within(
    path: &Path,
    request: &impl Serialize,
    patience: Duration,
) -> io::Result<String> {
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Before it connects: to one that is stopped, and was asked by many since, that would take for ever.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let mut stream = UnixStream::from(socket);
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut text = String::new();
    BufReader::new(&stream).read_line(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_on_to_ask_does_not_keep_it_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let control = Control::start(&path, |_| Ok(Value::from("heard"))).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let (ends, ended) = std::sync::mpsc::channel();
        let mut ask = || {
            let mut line = String::new();
            stream.write_all(b"?\n").and_then(|()| answers.read_line(&mut line)).unwrap_or(0)
        };
        assert!(ask() > 0);
        std::thread::spawn(move || {
            drop(control);
            ends.send(()).unwrap();
        });
        // Well within the time for which it waits for the next word.
        while ask() > 0 {
            std::thread::sleep(PATIENCE / 20);
        }
        ended.recv().unwrap();
    }

    #[test]
    fn only_a_socket_is_put_out_of_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let start = || Control::start(&path, |_| Ok(Value::from("heard")));
        std::fs::write(&path, "mine").unwrap();
        assert_eq!(start().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        std::fs::remove_file(&path).unwrap();
        // One whose process has died.
        drop(UnixListener::bind(&path).unwrap());
        let control = start().unwrap();
        assert_eq!(ask(&path, &"").unwrap(), "heard");
        // What somebody has put in its place stays.
        std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        std::fs::write(&path, "mine").unwrap();
        drop(control);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}

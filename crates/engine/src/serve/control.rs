//! The socket by which people talk to a server that runs.
//!
//! `{"stat": {}}` tells what it has and has done, `{"reload": {}}` has it read users and shares again,
//! `{"stop": {}}` ends it. Answers are `{"ok": …}` or `{"error": "…"}`.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Serving;
use crate::control;

/// What people ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Tell what there is and was done.
    Stat {},
    /// Read users and shares again.
    Reload {},
    /// End.
    Stop {},
}

/// The thread that answers, until it is dropped.
#[derive(Debug)]
pub struct Control {
    _control: control::Control,
}

impl Control {
    /// Answers at `path`. `act` does what is asked for, but for telling, and says what became of it.
    ///
    /// # Errors
    ///
    /// `AddrInUse` when another server answers there, and what the system says.
    pub fn start(
        path: &Path,
        serving: &Arc<Serving>,
        act: impl Fn(Request) -> Result<String, String> + Send + 'static,
    ) -> io::Result<Self> {
        if UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let serving = serving.clone();
        let control = control::Control::start(path, move |line| {
            let request =
                serde_json::from_slice(line).map_err(|e| format!("not understood: {e}"))?;
            match request {
                Request::Stat {} => serde_json::to_value(serving.stat()).map_err(|e| e.to_string()),
                other => act(other).map(|said| serde_json::json!({ "said": said })),
            }
        })?;
        Ok(Self { _control: control })
    }
}

/// Asks a server that runs.
///
/// # Errors
///
/// `NotFound` or `ConnectionRefused` when none runs; `InvalidData`, with its words, when it refuses.
pub fn ask(path: &Path, request: &Request) -> io::Result<Value> {
    control::ask(path, request)
}

//! A program at one end, in a guest or on the host, looked at in the same way.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use testkit::kernels::ending::Bounded;
use testkit::kernels::guest::{Output, Running};

const POLL: Duration = Duration::from_millis(10);

/// A running program. It is killed when this is dropped.
pub(crate) enum Program<'a> {
    Guest(Running<'a>),
    Host(Host),
}

/// A program on the host, and what it has written to either output.
pub(crate) struct Host {
    child: Bounded,
    text: Arc<Mutex<String>>,
}

impl Host {
    pub(crate) fn start(mut command: Command, limit: Duration) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            Bounded::start(&mut command, limit).with_context(|| format!("{command:?}"))?;
        let text = Arc::new(Mutex::new(String::new()));
        let out = child.child().stdout.take();
        let err = child.child().stderr.take();
        out.into_iter().for_each(|from| gather(from, &text));
        err.into_iter().for_each(|from| gather(from, &text));
        Ok(Self { child, text })
    }

    pub(crate) fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn signal(&self, signal: i32) {
        self.child.signal(signal);
    }

    pub(crate) fn ended(&mut self) -> bool {
        self.child.ended().is_some()
    }
}

fn gather(mut from: impl Read + Send + 'static, text: &Arc<Mutex<String>>) {
    let text = Arc::clone(text);
    thread::spawn(move || {
        let mut block = [0; 4096];
        while let Ok(n) = from.read(&mut block) {
            if n == 0 {
                return;
            }
            let came = String::from_utf8_lossy(&block[..n]).into_owned();
            text.lock().unwrap_or_else(PoisonError::into_inner).push_str(&came);
        }
    });
}

impl Program<'_> {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Guest(running) => running.text(),
            Self::Host(host) => host.text(),
        }
    }

    /// Waits until it has written this so often.
    pub(crate) fn wait_for(
        &mut self,
        what: &str,
        times: usize,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let text = self.text();
            if text.matches(what).count() >= times {
                return Ok(());
            }
            if let Self::Host(host) = self
                && host.ended()
            {
                sleep(POLL);
                ensure!(host.text().matches(what).count() >= times, "it ended: {}", host.text());
            }
            ensure!(Instant::now() < deadline, "it did not say {what:?} {times} times: {text:?}");
            sleep(POLL);
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, limit: Duration) -> anyhow::Result<Output> {
        let host = match self {
            Self::Guest(running) => return running.wait(limit),
            Self::Host(host) => host,
        };
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = host.child.ended() {
                sleep(POLL);
                // A signal's end has no code.
                return Ok(Output { text: host.text(), status: status.code().unwrap_or(128) });
            }
            if Instant::now() > deadline {
                bail!("it takes more than {limit:?}: {:?}", host.text());
            }
            sleep(POLL);
        }
    }

    pub(crate) fn kill(&self) -> anyhow::Result<()> {
        const SIGKILL: i32 = 9;
        match self {
            Self::Guest(running) => running.signal(SIGKILL),
            Self::Host(host) => {
                host.child.signal(SIGKILL);
                Ok(())
            }
        }
    }
}

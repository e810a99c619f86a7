//! What goes over an interface, recorded by dumpcap.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::Duration;

/// From when it says that it records until it does, and from when something came until it has it.
const SETTLE: Duration = Duration::from_millis(300);

/// A capture in progress.
pub(crate) struct Dumpcap {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Dumpcap {
    /// Records into a file. `command`: dumpcap, in the network of the interface. `None`: it may not here, as is printed.
    pub(crate) fn start(mut command: Command, interface: &str, file: &Path) -> Option<Self> {
        command.args(["-q", "-i", interface, "-w"]).arg(file).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("File:") {
            line.clear();
            if said.read_line(&mut line).unwrap() == 0 {
                let _ = child.wait();
                e2e::run::skipped("dumpcap may not record here");
                return None;
            }
        }
        thread::sleep(SETTLE);
        Some(Self { child, said })
    }

    /// Ends it, when it has all that came by now.
    pub(crate) fn stop(mut self) {
        thread::sleep(SETTLE);
        // `ip netns exec` becomes the program.
        Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| self.said.read_to_end(&mut Vec::new()));
            self.child.wait().unwrap();
        });
    }
}

//! Clients that make round trips for as long as a test wants them to.

use super::*;

/// Clients that make round trips until they are told to stop.
pub(super) struct Going {
    stop: PathBuf,
    clients: Vec<(Guest, BufReader<std::process::ChildStdout>)>,
}

impl Going {
    /// One for each size of messages, bytes; all have had an answer.
    pub(super) fn start(pair: &Pair, talk: &Talk, python: &Path, sizes: &[&str]) -> Self {
        let stop = talk.place.with_extension("stop");
        let start = |size: &&str| {
            let mut command = pair.shunt(Side::Client, python);
            command.arg(&talk.place).args(["client", &pair.address(), &talk.port.to_string()]);
            command.arg("until").arg(&stop).arg(size).stdout(Stdio::piped());
            let mut client = Guest::start(&mut command);
            let mut said = BufReader::new(client.take_stdout().unwrap());
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            assert_eq!(line.trim(), "going");
            (client, said)
        };
        let clients = sizes.iter().map(start).collect();
        Self { stop, clients }
    }

    /// What each says next, and last: how its connection ended.
    fn last_words(&mut self) -> Vec<String> {
        let last_word = |(client, said): &mut (Guest, BufReader<_>)| {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            client.wait(LIMIT).unwrap();
            line.trim().to_owned()
        };
        self.clients.iter_mut().map(last_word).collect()
    }

    /// How the connections ended that nobody has told to stop.
    pub(super) fn ended(mut self) -> Vec<String> {
        self.last_words()
    }

    /// Each ends with the answer to its last question.
    #[track_caller]
    pub(super) fn end(mut self, pair: &Pair) {
        std::fs::write(&self.stop, "").unwrap();
        for line in self.last_words() {
            assert!(line.starts_with("rounds "), "{line:?}\n{:#}", pair.status(Side::Client));
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.stop);
    }
}

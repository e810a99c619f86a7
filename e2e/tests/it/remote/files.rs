//! `shunt serve` and its clients on two hosts: files by SMC-R.

use super::*;

/// A server under `shunt run` on the server's host, for a folder of its own.
struct Served {
    _server: Guest,
    folder: PathBuf,
}

const PORT: &str = "4450";

impl Served {
    fn start(pair: &Pair) -> Self {
        let folder = PathBuf::from(format!("/dev/shm/shunt-remote-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = pair.shunt(Side::Server, &built("shunt"));
        command.args(["serve", "--listen", &format!("{}:{PORT}", pair.address())]);
        command.args(["--user", "ann:secret", "--share"]);
        command.arg(format!("files={}", folder.display()));
        // It must not take the port of its control socket from a server of another test.
        command.arg("--control").arg(folder.join("control"));
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        let mut server = Guest::start(&mut command);
        let mut said = BufReader::new(server.take_stdout().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "the server says {line:?}");
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        Self { _server: server, folder }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Each byte is checked against a pattern.
#[test]
fn files_are_what_they_are() {
    // All of them: what becomes of short ones is another test's.
    let Some(pair) = Pair::with(Hosts::new(), &["--spare-short", "off"]) else { return };
    let _served = Served::start(&pair);
    let load = |words: &str| {
        let mut load = pair.shunt(Side::Client, &built("smbload"));
        load.args(words.split_whitespace()).args(["--addr", &format!("{}:{PORT}", pair.address())]);
        load.args(["--share", "files", "--user", "ann", "--pass", "secret", "--size", "8M"]);
        let got = outcome(&mut load, LIMIT);
        assert!(got.ok(), "{words}: {got:?}\n{}", pair.board(Side::Server).summary());
    };
    load("prepare");
    let verify = "--io 256K --verify --secs 2 --warmup 0";
    for how in ["", "--enc 128", "--sign cmac", "--channels 3"] {
        load(&format!("read {verify} {how}"));
        load(&format!("write {verify} {how}"));
    }
    for side in [Side::Server, Side::Client] {
        // Prepare has one, and each load one or more.
        assert!(pair.carried(side) >= 9, "{}", pair.board(side).summary());
    }
}

//! `shunt serve` and its clients on two hosts: files by SMC-R.

use std::io::Write;

use super::*;
use crate::programs::need;
use crate::serve_safety::{Folder, block};

/// A server under `shunt run` on the server's host, for a folder of its own.
struct Served {
    server: Guest,
    folder: Folder,
}

const PORT: &str = "4450";
/// Bytes of a file: more than a message has, and than a ring.
const LEN: usize = 9_000_001;

impl Served {
    fn start(pair: &Pair) -> Self {
        let folder = Folder::in_memory().unwrap_or_else(Folder::new);
        let mut command = pair.shunt(Side::Server, &built("shunt"));
        command.args(["serve", "--listen", &format!("{}:{PORT}", pair.address())]);
        command.args(["--user", "ann:secret", "--share"]);
        command.arg(format!("files={}", folder.path().display()));
        // It must not take the port of its control socket from a server of another test.
        command.arg("--control").arg(folder.file("control"));
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        let mut server = Guest::start(&mut command);
        let mut said = BufReader::new(server.take_stdout().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "the server says {line:?}");
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        Self { server, folder }
    }
}

/// All connections by SMC-R: what becomes of short ones is another test's.
fn pair() -> Option<Pair> {
    Pair::with(Hosts::new(), &["--spare-short", "off"])
}

/// A load of smbload's, on the client's host.
fn smbload(pair: &Pair, words: &str) -> Command {
    let mut load = pair.shunt(Side::Client, &built("smbload"));
    load.args(words.split_whitespace()).args(["--addr", &format!("{}:{PORT}", pair.address())]);
    load.args(["--share", "files", "--user", "ann", "--pass", "secret", "--size", "8M"]);
    load
}

fn loaded(pair: &Pair, words: &str) {
    let got = outcome(&mut smbload(pair, words), LIMIT);
    assert!(got.ok(), "{words}: {got:?}\n{}", pair.board(Side::Server).summary());
}

/// The ends that a process has of connections, as `shunt stat --json` says it: which way each goes, and how many bytes
/// were sent and received that way.
fn ends(pair: &Pair, side: Side, process: i32) -> Vec<(String, u64, u64)> {
    let stat = pair.stat(side);
    let all = stat["connections"].as_array().unwrap();
    let its = all.iter().filter(|end| end["pid"] == process && end["state"] == "ACTIVE");
    let number = |end: &serde_json::Value, name: &str| end[name].as_u64().unwrap();
    its.map(|end| {
        let ways = ["mode", "tx_mode", "rx_mode"].map(|name| end[name].as_str().unwrap_or("-"));
        (ways.join(" "), number(end, "bytes_tx"), number(end, "bytes_rx"))
    })
    .collect()
}

/// Through shared memory to the engine and back, both ways, and by SMC-R between the hosts.
const BY_SMC: &str = "SMCR SHM SHM";

/// Whether a process has so many connections, all by SMC-R, each of which has sent and received so many bytes.
fn all_by_smc(
    pair: &Pair,
    (side, process): (Side, i32),
    count: usize,
    (sent, received): (u64, u64),
) -> bool {
    let ends = ends(pair, side, process);
    ends.len() == count
        && ends.iter().all(|(way, tx, rx)| way == BY_SMC && *tx >= sent && *rx >= received)
}

/// Each byte is checked against a pattern.
#[test]
fn files_are_what_they_are() {
    let Some(pair) = pair() else { return };
    let _served = Served::start(&pair);
    let load = |words: &str| loaded(&pair, words);
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

/// Each byte is checked against a pattern while it goes on; of two channels none is on TCP meanwhile.
#[test]
fn two_channels_of_a_client_go_by_smc_both_of_them() {
    let Some(pair) = pair() else { return };
    let served = Served::start(&pair);
    loaded(&pair, "prepare");
    let much = 12 << 20;
    for (load, to_client, to_server) in [("read", much, 0), ("write", 0, much)] {
        // Until it is seen, however long that takes.
        let words = format!("{load} --io 256K --verify --channels 2 --secs 600 --warmup 0");
        let mut client = Guest::start(smbload(&pair, &words).stdout(Stdio::null()));
        eventually("both channels have carried much, and all of it by SMC-R", || {
            let ended = client.ended();
            assert!(ended.is_none(), "{load}: {ended:?}");
            let server = (Side::Server, served.server.pid());
            all_by_smc(&pair, (Side::Client, client.pid()), 2, (to_server, to_client))
                && all_by_smc(&pair, server, 2, (to_client, to_server))
        });
        client.kill_all();
        eventually("the server has let go of it", || {
            ends(&pair, Side::Server, served.server.pid()).is_empty()
        });
    }
}

/// A program that knows nothing of it, and whole files.
#[test]
fn smbclient_puts_and_gets_by_smc() {
    let smbclient = need!("smbclient");
    let Some(pair) = pair() else { return };
    let (served, at) = (Served::start(&pair), Folder::new());
    let (there, here) = (block(1, LEN), block(2, LEN));
    std::fs::write(at.file("there"), &there).unwrap();
    std::fs::write(served.folder.file("here"), &here).unwrap();
    for protection in ["off", "sign", "encrypt"] {
        let mut typed = pair.shunt(Side::Client, &smbclient);
        typed.current_dir(at.path()).arg(format!("//{}/files", pair.address()));
        typed.args(["-p", PORT, "-U", "ann%secret", "-m", "SMB3_11"]);
        typed.arg(format!("--client-protection={protection}"));
        let mut client = Guest::start(typed.stdin(Stdio::piped()).stdout(Stdio::null()));
        // One line after the other, so that it is still there when it is looked at.
        let mut lines = client.take_stdin().unwrap();
        let moves = [
            ("put there", served.folder.file("there"), &there),
            ("get here", at.file("here"), &here),
        ];
        for (line, into, bytes) in moves {
            writeln!(lines, "{line}").unwrap();
            eventually(&format!("{line}, {protection}: the same bytes"), || {
                let ended = client.ended();
                assert!(ended.is_none(), "{line}, {protection}: {ended:?}");
                std::fs::read(&into).is_ok_and(|got| got == *bytes)
            });
        }
        let len = LEN as u64;
        for end in [(Side::Client, client.pid()), (Side::Server, served.server.pid())] {
            let told = ends(&pair, end.0, end.1);
            assert!(all_by_smc(&pair, end, 1, (len, len)), "{protection}: {told:?}");
        }
        writeln!(lines, "quit").unwrap();
        assert!(client.wait(LIMIT).unwrap().success(), "{protection}");
        for file in [served.folder.file("there"), at.file("here")] {
            std::fs::remove_file(file).unwrap();
        }
        eventually("the server has let go of it", || {
            ends(&pair, Side::Server, served.server.pid()).is_empty()
        });
    }
}

//! What goes over the cable between two hosts, as Wireshark sees it.

use testkit::kernels::capture::Captured;

use super::*;
use crate::dumpcap::Dumpcap;
use crate::programs::need;

/// What two hosts have sent to each other while `run` ran; `None`: it may not be recorded here, as is printed.
fn capture(pair: &Pair, dumpcap: &Path, name: &str, run: impl FnOnce()) -> Option<File> {
    let file = File(std::env::temp_dir().join(format!("shunt-{name}-{}.pcap", std::process::id())));
    let mut command = pair.plain(Side::Server, dumpcap);
    command.arg("-P");
    let capture = Dumpcap::start(command, hosts::DEVICE, &file.0)?;
    run();
    capture.stop();
    Some(file)
}

/// A file that goes when the test does.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// All kinds of messages, none of which Wireshark warns of.
fn has_no_warnings(kind: Kind) {
    need!("tshark");
    let dumpcap = need!("dumpcap");
    // What the system cuts into packets behind where it is recorded would be one.
    let settings = ["--spare-short", "off", "--segments", "1", "--testlink-time", "1"];
    let (Some(python), Some(pair)) = (python(), Pair::of(kind, Hosts::new(), [&settings[..]; 2]))
    else {
        return;
    };
    let name = if kind.v6 { "v6" } else { "v4" };
    let file = capture(&pair, &dumpcap, name, || {
        for (mode, words) in [
            ("echo", &["echo", "1,2,17,1000,65537,300000"][..]),
            ("echo", &["many", "20"]),
            ("urgent", &["urgent"]),
            ("reset", &["reset"]),
        ] {
            let talk = Talk::serve(&pair, &python, mode, true);
            let got = talk.client(&pair, &python, words, true);
            assert!(got.ok(), "{got:?}");
        }
        let before = pair.sum(Side::Client, "llc_tx");
        eventually("a link is tested", || pair.sum(Side::Client, "llc_tx") > before);
    });
    let Some(file) = file else { return };
    assert!(pair.carried(Side::Client) > 0, "{:#}", pair.status(Side::Client));
    let captured = Captured { file: file.0.clone() };
    let at = if kind.v6 { 74 } else { 54 };
    for (what, filter) in [
        ("the option", "tcp.flags.syn == 1 && tcp.options.experimental.exid == 0xe2d4".to_owned()),
        ("CLC", "tcp && smc".to_owned()),
        ("CDC", "infiniband && smc".to_owned()),
        ("CONFIRM LINK", format!("infiniband.bth.opcode == 4 && frame[{at}] == 21")),
        ("TEST LINK", format!("infiniband.bth.opcode == 4 && frame[{at}] == 27")),
        ("WRITE", "infiniband.bth.opcode == 10".to_owned()),
        ("an acknowledgement", "infiniband.bth.opcode == 17".to_owned()),
    ] {
        assert!(captured.count(&filter).unwrap() > 0, "there is no packet of {what}");
    }
    let mut warnings = captured.warnings().unwrap();
    if kind.v6 {
        // Packets that go one by one have no checksum of UDP, since that of InfiniBand covers them: RoCEv2 does so by IPv6
        // as well (InfiniBand's annex A17; RFC 6935 lets it), and Wireshark does not know.
        warnings.retain(|line| !line.ends_with("\tIllegal checksum value (0)"));
    }
    assert!(warnings.is_empty(), "{}", warnings.join("\n"));
}

#[test]
fn wireshark_warns_of_nothing() {
    has_no_warnings(Kind::default());
}

#[test]
fn wireshark_warns_of_nothing_by_ipv6() {
    has_no_warnings(Kind { v6: true, ..Kind::default() });
}

//! Captures for `shunt defrag`, packets for them, and tshark as the judge of what comes out.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use e2e::{built, installed};

pub(super) const ETHERNET: u32 = 1;
/// Seconds since 1970 of the first packet; each comes a second later.
pub(super) const BEGIN: u32 = 1_700_000_000;

/// A directory that goes when the test ends.
pub(super) struct Place(PathBuf);

impl Place {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shunt-defrag-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn pcap_header(link: u32) -> Vec<u8> {
    let words = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 1600, link];
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// `at_us`: microseconds after the first one.
pub(super) fn pcap_record(at_us: u32, frame: &[u8]) -> Vec<u8> {
    let len = u32::try_from(frame.len()).unwrap();
    let mut record: Vec<u8> = [BEGIN + at_us / 1_000_000, at_us % 1_000_000, len, len]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    record.extend_from_slice(frame);
    record
}

pub(super) fn pcap(link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let records = (0..).zip(frames).flat_map(|(at, frame)| pcap_record(at * 1_000_000, frame));
    pcap_header(link).into_iter().chain(records).collect()
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let len = u32::try_from(padded + 12).unwrap().to_le_bytes();
    let mut block = [&kind.to_le_bytes()[..], &len, body].concat();
    block.resize(padded + 8, 0);
    block.extend(len);
    block
}

/// One interface for each link type, with timestamps in milli-, micro- and nanoseconds in turn.
pub(super) fn pcapng(links: &[u16], frames: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let order = 0x1a2b_3c4d_u32.to_le_bytes();
    let mut bytes = block(0x0a0d_0d0a, &[&order[..], &[1, 0, 0, 0], &[0xff; 8]].concat());
    let resolution = |interface: usize| [3u8, 6, 9][interface % 3];
    for (at, link) in links.iter().enumerate() {
        let option = [9, 0, 1, 0, resolution(at), 0, 0, 0, 0, 0, 0, 0];
        let head = [&link.to_le_bytes()[..], &[0, 0], &1600u32.to_le_bytes()].concat();
        bytes.extend(block(1, &[head, option.to_vec()].concat()));
    }
    for (at, (interface, frame)) in (0..).zip(frames) {
        let units = 10u64.pow(u32::from(resolution(*interface as usize)));
        let stamp = u64::from(BEGIN + at) * units;
        let len = u32::try_from(frame.len()).unwrap();
        let low = u32::try_from(stamp & 0xffff_ffff).unwrap();
        let words = [*interface, u32::try_from(stamp >> 32).unwrap(), low, len, len];
        let words: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend(block(6, &[words, frame.clone()].concat()));
    }
    bytes
}

pub(super) fn ethernet(rest: &[u8], packet: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], rest, packet].concat()
}

/// The type of Ethernet of a packet.
pub(super) fn kind(packet: &[u8]) -> [u8; 2] {
    if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] }
}

pub(super) fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + payload.len()).unwrap();
    [&[from, to, len, 0].map(u16::to_be_bytes).concat(), payload].concat()
}

/// Runs `shunt defrag`.
pub(super) fn defrag<A: AsRef<OsStr>>(arguments: &[A]) -> Output {
    Command::new(built("shunt")).arg("defrag").args(arguments).output().unwrap()
}

/// The same, with bytes for its standard input.
pub(super) fn defrag_piped<A: AsRef<OsStr>>(arguments: &[A], input: &[u8]) -> Output {
    let mut command = Command::new(built("shunt"));
    command.arg("defrag").args(arguments).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // It may end before it has read everything.
        scope.spawn(move || stdin.write_all(input).is_ok());
        child.wait_with_output().unwrap()
    })
}

/// Runs it and expects that all went well; the output's bytes.
#[track_caller]
pub(super) fn defragged(options: &[&str], input: &Path, output: &Path) -> Vec<u8> {
    let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    arguments.extend([input.as_os_str(), output.as_os_str()]);
    let got = defrag(&arguments);
    assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
    fs::read(output).unwrap()
}

/// Fields of each packet as tshark sees them, without putting fragments together itself. A field that
/// occurs in several layers has its values separated by commas.
#[track_caller]
pub(super) fn fields(path: &Path, names: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new(installed("tshark").unwrap());
    command.args(["-n", "-T", "fields", "-E", "separator=;", "-r"]).arg(path);
    for option in ["ip.defragment:FALSE", "ipv6.defragment:FALSE", "ip.check_checksum:TRUE"] {
        command.args(["-o", option]);
    }
    for name in names {
        command.args(["-e", name]);
    }
    let got = command.output().unwrap();
    assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
    let text = String::from_utf8(got.stdout).unwrap();
    text.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect()
}

/// The bytes of each frame, as tshark reads them.
#[track_caller]
pub(super) fn frames(path: &Path) -> Vec<Vec<u8>> {
    let tshark = installed("tshark").unwrap();
    let mut command = Command::new(tshark);
    let got =
        command.args(["-n", "-T", "jsonraw", "-j", "frame", "-r"]).arg(path).output().unwrap();
    assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
    let text = String::from_utf8(got.stdout).unwrap();
    let raw = text.split("\"frame_raw\"").skip(1);
    raw.map(|rest| unhex(rest.split('"').nth(1).unwrap())).collect()
}

pub(super) fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks_exact(2).map(byte).collect()
}

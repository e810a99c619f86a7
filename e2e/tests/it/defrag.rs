//! `shunt defrag` on files: what tshark makes of what comes out.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

mod capture;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use e2e::{built, quick};
use serde_json::{Value, json};
use testkit::fragments::{Case, Family, Packet, cases};

use crate::dumpcap::Dumpcap;
use crate::programs::need;
use capture::{
    BEGIN, ETHERNET, Place, defrag, defrag_piped, defragged, ethernet, fields, frames, kind, pcap,
    pcap_header, pcap_record, pcapng, udp, unhex,
};

const UDP: u8 = 17;

/// A datagram of UDP: its payload, and the packet as it was before it was cut.
fn datagram(family: Family, id: u32, len: usize) -> (Vec<u8>, Packet) {
    let payload: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let packet = Packet::new(family, id, udp(1000, 2000, &payload));
    (payload, Packet { protocol: UDP, ..packet })
}

fn fragments(packet: &Packet, step: usize) -> Vec<Vec<u8>> {
    let all = packet.payload.len();
    (0..all).step_by(step).map(|at| packet.fragment(at, all.min(at + step)).emit()).collect()
}

// ----- the named cases -----------------------------------------------------------------------------

/// The payload of a packet, behind all of its headers.
fn payload_of(packet: &[u8]) -> &[u8] {
    if packet[0] >> 4 == 4 {
        let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        return &packet[usize::from(packet[0] & 15) * 4..total];
    }
    let end = 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]));
    let (mut next, mut at) = (packet[6], 40);
    while matches!(next, 0 | 43 | 60) {
        (next, at) = (packet[at], at + 8 * (1 + usize::from(packet[at + 1])));
    }
    assert_ne!(next, 44, "a fragment header is left");
    &packet[at..end]
}

/// Each case in a VLAN of its own, so that all go through one run.
#[test]
fn named_cases_end_as_they_should() {
    need!("tshark");
    let place = Place::new("cases");
    let all: Vec<Case> = cases();
    let tag = |vlan: usize| u16::try_from(vlan + 1).unwrap().to_be_bytes();
    let mut sent = Vec::new();
    for (vlan, case) in all.iter().enumerate() {
        for fragment in &case.fragments {
            let (packet, tag) = (fragment.emit(), tag(vlan));
            let rest = [&[0x81, 0][..], &tag, &kind(&packet)].concat();
            sent.push(ethernet(&rest, &packet));
        }
    }
    let out = place.path("out.pcap");
    let input = place.file("in.pcap", &pcap(ETHERNET, &sent));
    // A packet a second makes long cases slow.
    let options = ["--max-fragments=8192", "--timeout=3600", "--timeout6=3600"];
    defragged(&options, &input, &out);
    let came = frames(&out);
    for (vlan, case) in all.iter().enumerate() {
        let own = came.iter().filter(|frame| frame[14..16] == tag(vlan));
        let payloads: Vec<&[u8]> = own.map(|frame| payload_of(&frame[18..])).collect();
        assert!(payloads == case.payloads, "{}: {} came", case.name, payloads.len());
    }
    let names = ["ip.checksum.status", "ip.flags.mf", "ip.frag_offset", "ipv6.fraghdr.nxt"];
    for seen in fields(&out, &names) {
        let v4 = ["1", "False", "0", ""];
        let same = |wanted: [&str; 4]| seen.iter().eq(wanted.iter());
        assert!(same(v4) || same(["1", "0", "0", ""]) || same([""; 4]), "{seen:?}");
    }
}

/// The fragments by which J. Novak told hosts apart ("Target-Based Fragmentation Reassembly", 2005), in
/// units of 8 bytes: offset and length of A, B, C and so on. The last is the datagram's last.
const NOVAK: [(usize, usize); 18] = [
    (0, 3),
    (4, 2),
    (6, 3),
    (10, 1),
    (13, 2),
    (15, 3),
    (18, 2),
    (20, 2),
    (22, 1),
    (1, 4),
    (6, 3),
    (9, 3),
    (12, 3),
    (16, 1),
    (19, 1),
    (20, 1),
    (22, 2),
    (24, 1),
];

#[test]
fn overlaps_are_resolved_as_each_host_would() {
    need!("tshark");
    let expected = [
        ("strict", None),
        ("first", Some("AAAJBBCCCLDLMEEFFFGGHHIQR")),
        ("last", Some("AJJJJBKKKLLLMMMFNFGOPHQQR")),
        ("bsd", Some("AAAJJBCCCLLLMMMFFFGGHHIQR")),
        ("bsd-right", Some("AJJJBBKKKLDLMEEFNFGOPHQQR")),
        ("linux", Some("AAAJJBKKKLLLMMMFFFGGPHQQR")),
        ("windows", Some("AAAJBBCCCLLLMEEFFFGGHHIQR")),
        ("solaris", Some("AAAJBBCCCLLLMMMFFFGGHHIQR")),
    ];
    let place = Place::new("policies");
    let mut sent = Vec::new();
    for family in [Family::V4, Family::V6] {
        for (letter, (offset, len)) in (b'A'..).zip(NOVAK) {
            let fragment = Packet {
                offset: offset * 8,
                more: letter != b'R',
                ..Packet::new(family, 7, vec![letter; len * 8])
            };
            let packet = fragment.emit();
            sent.push(ethernet(&kind(&packet), &packet));
        }
    }
    let input = place.file("in.pcap", &pcap(ETHERNET, &sent));
    let out = place.path("out.pcap");
    for (policy, expected) in expected {
        defragged(&["--policy", policy], &input, &out);
        let came = frames(&out);
        let letters = |frame: &Vec<u8>| -> String {
            payload_of(&frame[14..]).chunks(8).map(|unit| char::from(unit[0])).collect()
        };
        let came: Vec<String> = came.iter().map(letters).collect();
        let expected: Vec<&str> = expected.into_iter().flat_map(|all| [all, all]).collect();
        assert_eq!(came, expected, "{policy}");
    }
}

// ----- progress ------------------------------------------------------------------------------------

/// What a person sees while a large capture comes that says more than it takes to be shown, and then stops
/// for longer than there is nothing new to show.
fn seen_of_a_large_capture(place: &Place, command: &mut Command) -> String {
    let pipe = place.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn();
    let child = child.unwrap();
    let mut input = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    input.write_all(&pcap_header(ETHERNET)).unwrap();
    let (_, packet) = datagram(Family::V4, 1, 1000);
    let packet = packet.emit();
    let record = pcap_record(0, &ethernet(&kind(&packet), &packet));
    let megabyte = record.repeat((1 << 20) / record.len() + 1);
    (0..66).for_each(|_| input.write_all(&megabyte).unwrap());
    thread::sleep(Duration::from_millis(400));
    (0..4).for_each(|_| input.write_all(&megabyte).unwrap());
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::remove_file(&pipe).unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn progress_is_shown_on_a_terminal_and_nowhere_else() {
    need!("script");
    let place = Place::new("progress");
    let (program, pipe) = (built("shunt"), place.path("pipe"));
    let mut plain = Command::new(&program);
    let plain = seen_of_a_large_capture(&place, plain.arg("defrag").arg(&pipe).arg("/dev/null"));
    assert!(!plain.contains('\r') && !plain.contains("MB/s"), "{plain:?}");
    // A terminal of its own, whose output comes to us.
    let line = format!("{} defrag {} /dev/null", program.display(), pipe.display());
    let mut on_terminal = Command::new("script");
    on_terminal.args(["-q", "-e", "-c", &line, "/dev/null"]);
    let shown = seen_of_a_large_capture(&place, &mut on_terminal);
    assert!(shown.contains("MB/s") && !shown.contains("left"), "{shown:?}");
}

/// Of a file whose size is known, and which is read as slowly as its reader takes it.
#[test]
fn of_a_file_there_is_a_bar_with_the_time_that_is_left() {
    need!("script");
    let place = Place::new("bar");
    let (_, packet) = datagram(Family::V4, 1, 1000);
    let packet = packet.emit();
    let record = pcap_record(0, &ethernet(&kind(&packet), &packet));
    let records = record.repeat((80 << 20) / record.len());
    let input = place.file("in.pcap", &[pcap_header(ETHERNET), records].concat());
    let reader = "(head -c 50000000 >/dev/null; sleep 0.5; cat >/dev/null)";
    let line = format!("{} defrag {} - | {reader}", built("shunt").display(), input.display());
    let seen =
        Command::new("script").args(["-q", "-e", "-c", &line, "/dev/null"]).output().unwrap();
    assert!(seen.status.success(), "{seen:?}");
    let seen = String::from_utf8(seen.stdout).unwrap();
    // " 60% [==============>         ]  90 MB/s  0:01 left"
    let bar =
        seen.split('\r').find(|line| line.contains('%')).unwrap_or_else(|| panic!("{seen:?}"));
    let (percent, rest) = bar.trim_start_matches("\x1b[K").trim_start().split_once("% [").unwrap();
    // How far it had come by then is the machine's affair.
    assert!((1..=100).contains(&percent.parse::<u32>().unwrap()), "{bar:?}");
    assert!(rest.starts_with("==") && rest.ends_with(" left") && rest.contains(">"), "{bar:?}");
    assert!(
        !seen.split('\r').next_back().unwrap().contains('%'),
        "it is gone in the end: {seen:?}"
    );
}

// ----- links ---------------------------------------------------------------------------------------

/// What stands before an IP packet on each link, by link type.
fn heads(packet: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let [a, b] = kind(packet);
    let v6 = a == 0x86;
    let cooked = |rest: &[u8]| [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0][..], rest].concat();
    let cooked2 = [&[a, b][..], &[0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0]].concat();
    let family = if v6 { 30 } else { 2 };
    vec![
        (1, ethernet(&[a, b], &[])),
        (1, ethernet(&[0x81, 0, 0, 5, a, b], &[])),
        (1, ethernet(&[0x88, 0xa8, 0, 9, 0x81, 0, 0, 5, a, b], &[])),
        (1, ethernet(&[0x88, 0x64, 0x11, 0, 0, 7, 0, 0, 0, if v6 { 0x57 } else { 0x21 }], &[])),
        (113, cooked(&[a, b])),
        (113, cooked(&[0x81, 0, 0, 5, a, b])),
        (276, cooked2),
        (101, vec![]),
        (if v6 { 229 } else { 228 }, vec![]),
        (0, vec![family, 0, 0, 0]),
        (0, vec![0, 0, 0, family]),
        (108, vec![0, 0, 0, family]),
        (9, vec![0xff, 3, 0, if v6 { 0x57 } else { 0x21 }]),
    ]
}

/// The frame, with the length in its header that PPPoE has.
fn frame(head: &[u8], packet: &[u8]) -> Vec<u8> {
    let mut frame = [head, packet].concat();
    if head.len() > 14 && head[12..14] == [0x88, 0x64] {
        let len = u16::try_from(packet.len() + 2).unwrap();
        frame[18..20].copy_from_slice(&len.to_be_bytes());
    }
    frame
}

#[test]
fn every_link_is_understood() {
    need!("tshark");
    let place = Place::new("links");
    let (mut links, mut sent, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for family in [Family::V4, Family::V6] {
        let (_, packet) = datagram(family, 77, 3000);
        let parts = fragments(&packet, 1400);
        for (link, head) in heads(&parts[0]) {
            let interface = u32::try_from(links.len()).unwrap();
            links.push(link);
            sent.extend(parts.iter().map(|part| (interface, frame(&head, part))));
            let time = BEGIN + u32::try_from(sent.len()).unwrap() - 1;
            let whole = frame(&head, &packet.emit_whole(&packet.payload));
            wanted.push((interface, time, whole));
        }
    }
    let out = place.path("out.pcapng");
    defragged(&[], &place.file("in.pcapng", &pcapng(&links, &sent)), &out);
    let came: Vec<Vec<u8>> = frames(&out);
    assert!(came.iter().eq(wanted.iter().map(|(_, _, whole)| whole)), "{} came", came.len());
    let names = ["frame.interface_id", "frame.time_epoch", "udp.length", "_ws.malformed"];
    for (seen, (interface, time, _)) in fields(&out, &names).into_iter().zip(&wanted) {
        assert_eq!(seen[0], interface.to_string());
        assert_eq!(seen[1].split('.').next(), Some(&*time.to_string()));
        assert_eq!(
            seen[2..],
            ["3008", ""],
            "interface {interface}, type {}",
            links[*interface as usize]
        );
    }
}

// ----- tunnels -------------------------------------------------------------------------------------

fn within(protocol: u8, family: Family, payload: Vec<u8>) -> Vec<u8> {
    let outer = Packet { protocol, src: 9, dst: 8, ..Packet::new(family, 5, payload.clone()) };
    outer.emit_whole(&payload)
}

fn tunnels(inner: &[u8]) -> Vec<Vec<u8>> {
    let vxlan = |inner: &[u8]| {
        udp(50000, 4789, &[&[8, 0, 0, 0, 0, 0, 42, 0][..], &ethernet(&kind(inner), inner)].concat())
    };
    let len = u16::try_from(inner.len()).unwrap().to_be_bytes();
    let gtp = [&[0x30, 0xff, len[0], len[1], 0, 0, 0, 9][..], inner].concat();
    let ether_type = kind(inner);
    let gre = [&[0x20, 0, ether_type[0], ether_type[1], 0, 0, 0, 7][..], inner].concat();
    let protocol = if inner[0] >> 4 == 4 { 4 } else { 41 };
    vec![
        within(protocol, Family::V4, inner.to_vec()),
        within(protocol, Family::V6, inner.to_vec()),
        within(47, Family::V4, gre),
        within(UDP, Family::V4, vxlan(inner)),
        within(UDP, Family::V6, vxlan(inner)),
        within(UDP, Family::V4, udp(2152, 2152, &gtp)),
    ]
}

#[test]
fn tunnels_hold_whole_packets_afterwards() {
    need!("tshark");
    hold_whole_packets(Family::V4, "tunnels-4");
}

#[test]
fn tunnels_hold_whole_packets_of_ipv6_afterwards() {
    need!("tshark");
    hold_whole_packets(Family::V6, "tunnels-6");
}

/// Fragments of this family in each tunnel.
fn hold_whole_packets(family: Family, name: &str) {
    let place = Place::new(name);
    let (payload, packet) = datagram(family, 3, 3000);
    let parts: Vec<_> = fragments(&packet, 1400).iter().map(|part| tunnels(part)).collect();
    let mut sent = Vec::new();
    for kind_of_tunnel in 0..parts[0].len() {
        sent.extend(parts.iter().map(|part| {
            let packet = &part[kind_of_tunnel];
            ethernet(&kind(packet), packet)
        }));
    }
    let input = place.file("in.pcap", &pcap(ETHERNET, &sent));
    let closed = place.path("closed.pcap");
    assert_eq!(defragged(&[], &input, &closed).len(), fs::read(&input).unwrap().len());
    let out = place.path("out.pcap");
    defragged(&["--tunnels"], &input, &out);
    let whole: Vec<_> = tunnels(&packet.emit_whole(&packet.payload))
        .iter()
        .map(|packet| ethernet(&kind(packet), packet))
        .collect();
    assert!(frames(&out) == whole);
    let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
    let names = ["data.data", "ip.checksum.status", "_ws.malformed", "_ws.expert.severity"];
    for seen in fields(&out, &names) {
        assert!(seen[0] == hex);
        // IPv6 in IPv6 has none.
        assert!(seen[1].split(',').all(|status| status == "1" || status.is_empty()), "{seen:?}");
        assert_eq!(seen[2], "");
    }
}

// ----- a real network ------------------------------------------------------------------------------

/// Sends datagrams of these sizes over IPv4 and IPv6, each with its own byte all through.
const SENDER: &str = "
import socket, sys, time
for family, address in ((socket.AF_INET, '198.18.9.2'), (socket.AF_INET6, 'fd18::2')):
    s = socket.socket(family, socket.SOCK_DGRAM)
    for n, size in enumerate((100, 1472, 1473, 5000, 20000, 65000)):
        s.sendto(bytes([n + 1]) * size, (address, 9))
        time.sleep(0.01)
";
const SIZES: [usize; 6] = [100, 1472, 1473, 5000, 20000, 65000];

/// Two namespaces with a cable between them; both go when it is dropped.
struct Cable(String, String);

impl Cable {
    fn new() -> Option<Self> {
        let id = std::process::id();
        let cable = Self(format!("shunt-df-a{id}"), format!("shunt-df-b{id}"));
        let Self(a, b) = &cable;
        let script = format!(
            "ip netns add {a} && ip netns add {b} &&
             ip -n {a} link add v0 type veth peer name v0 netns {b} &&
             for side in {a}:1 {b}:2; do
                 ns=${{side%:*}}; n=${{side#*:}}
                 ip -n $ns addr add 198.18.9.$n/24 dev v0 &&
                 ip -n $ns addr add fd18::$n/64 dev v0 nodad &&
                 ip -n $ns link set v0 up || exit 1
             done
             # Ready for IPv6 once the address that the kernel makes itself is in use.
             for ns in {a} {b}; do
                 for try in $(seq 50); do
                     ip -n $ns -6 addr show dev v0 -tentative | grep -q fe80 && break
                     sleep 0.1
                 done
             done"
        );
        let done = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success()).then_some(cable)
    }

    fn within(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program);
        command
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in [&self.0, &self.1] {
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}

#[test]
fn what_a_kernel_fragments_is_put_together() {
    need!("tshark");
    need!("ip");
    let (dumpcap, python) = (need!("dumpcap"), need!("python3"));
    let Some(cable) = Cable::new() else {
        return e2e::run::skipped("network namespaces cannot be made here (not root?)");
    };
    let place = Place::new("real");
    let input = place.path("in.pcapng");
    let capture = Dumpcap::start(cable.within(&dumpcap), "v0", &input);
    let Some(capture) = capture else { return };
    assert!(cable.within(&python).args(["-c", SENDER]).status().unwrap().success());
    // All that was sent and more, as soon as it is written; what is missing then is said below.
    let all: u64 = SIZES.iter().map(|size| *size as u64).sum();
    let deadline = Instant::now() + Duration::from_secs(20);
    while fs::metadata(&input).is_ok_and(|file| file.len() < all) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    capture.stop();
    let out = place.path("out.pcap");
    defragged(&[], &input, &out);
    let payloads: Vec<Vec<u8>> = fields(&out, &["udp.payload", "icmp.type", "icmpv6.type"])
        .into_iter()
        .filter(|seen| !seen[0].is_empty() && seen[1].is_empty() && seen[2].is_empty())
        .map(|seen| unhex(&seen[0]))
        .collect();
    let sent: Vec<Vec<u8>> = (1u8..).zip(SIZES).map(|(byte, size)| vec![byte; size]).collect();
    let lens = |all: &[Vec<u8>]| all.iter().map(Vec::len).collect::<Vec<_>>();
    let sent = [sent.clone(), sent].concat();
    assert_eq!(lens(&payloads), lens(&sent));
    assert!(payloads == sent);
}

// ----- files of any size and shape -----------------------------------------------------------------

/// Memory that a process has for itself, bytes.
fn anonymous(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap() << 10
}

/// Far more than fits into the memory that it may have, and most of it never complete.
#[test]
fn a_large_capture_needs_little_memory() {
    const MEMORY: u64 = 32 << 20;
    /// Buffers for reading and writing, the index of datagrams, what the allocator keeps.
    const BESIDES: u64 = 4 << 20;
    let total: u64 = if quick() { 64 << 20 } else { 300 << 20 };
    let mut child = Command::new(built("shunt"))
        .args(["defrag", "--memory", "32M", "-", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let sender = thread::spawn(move || {
        stdin.write_all(&pcap_header(ETHERNET)).unwrap();
        let (mut sent, mut whole, mut at_us, mut most) = (0, 0, 0, 0);
        for id in 0u32.. {
            let (_, packet) = datagram(Family::V4, id, 8000);
            let packet = Packet { src: u8::try_from(id % 251).unwrap(), ..packet };
            let mut parts = fragments(&packet, 1480);
            // Two of three never get their last fragment.
            if id % 3 == 0 {
                whole += 1
            } else {
                parts.truncate(5)
            }
            for part in parts {
                at_us += 10;
                let record = pcap_record(at_us, &ethernet(&kind(&part), &part));
                sent += record.len() as u64;
                stdin.write_all(&record).unwrap();
            }
            // Its memory grows by no more than 2 MiB in between.
            if id % 256 == 0 || sent > total {
                most = anonymous(pid).max(most);
            }
            if sent > total {
                return (whole, most);
            }
        }
        (whole, most)
    });
    let came = std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    let (whole, most): (u64, u64) = sender.join().unwrap();
    let got = child.wait_with_output().unwrap();
    assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
    let expected = 24 + whole * (16 + 14 + 28 + 8000);
    assert_eq!(came, expected, "{}", String::from_utf8_lossy(&got.stderr));
    println!(
        "{most} bytes at most, {} beyond the limit",
        most.cast_signed() - MEMORY.cast_signed()
    );
    assert!(most > MEMORY * 3 / 4, "{most} bytes: it was never full");
    assert!(most <= MEMORY + BESIDES, "{most} bytes at most");
}

#[test]
fn a_capture_that_was_cut_off_gives_what_was_there() {
    need!("tshark");
    let place = Place::new("cut");
    let (_, packet) = datagram(Family::V4, 1, 3000);
    let sent: Vec<_> = fragments(&packet, 1400).iter().map(|p| ethernet(&kind(p), p)).collect();
    let mut bytes = pcap(ETHERNET, &[&sent[..], &sent[..1]].concat());
    bytes.truncate(bytes.len() - 7);
    let (input, out) = (place.file("in.pcap", &bytes), place.path("out.pcapng"));
    let got = defrag(&[&input, &out]);
    let said = String::from_utf8(got.stderr).unwrap();
    assert_eq!(got.status.code(), Some(1), "{said}");
    let at = bytes.len() - (16 + sent[0].len() - 7);
    assert!(said.contains(&format!("damaged at byte {at}, after 3 packets")), "{said}");
    assert!(frames(&out) == [ethernet(&[8, 0], &packet.emit_whole(&packet.payload))]);
}

#[test]
fn mistakes_are_told_and_change_nothing() {
    let place = Place::new("mistakes");
    let capture = pcap(ETHERNET, &[ethernet(&[8, 6], &[0; 40])]);
    let input = place.file("in.pcap", &capture);
    let (out, absent) = (place.path("out.pcap"), place.path("absent.pcap"));
    let text = place.file("text", b"GET / HTTP/1.1\r\n\r\n");
    let wireless = place.file("wireless.pcap", &pcap(105, &[vec![0; 60]]));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    for (arguments, words) in [
        (vec![path(&absent), path(&out)], "No such file"),
        (vec![path(&text), path(&out)], "is no capture"),
        (vec![path(&wireless), path(&out)], "link type 105"),
        (vec![path(&input), path(&input)], "another file"),
        (vec![path(&input), path(&place.path("no/such/dir.pcap"))], "cannot write"),
        (vec!["--policy=vms".into(), path(&input), path(&out)], "possible values"),
        (vec!["--memory=1K".into(), path(&input), path(&out)], "at least 64K"),
        (vec![path(&input)], "required"),
        (
            vec![path(&input), "/dev/full".into()],
            "cannot write: No space left on device (os error 28)\n",
        ),
    ] {
        let got = defrag(&arguments);
        let said = String::from_utf8(got.stderr).unwrap();
        assert_eq!(got.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert!(!out.exists(), "{arguments:?}");
    }
    // What is appended to the input would be read in turn.
    let append = fs::OpenOptions::new().append(true).open(&input).unwrap();
    let mut command = Command::new(built("shunt"));
    command.args(["defrag", &path(&input), "-"]).stdout(append);
    let got = command.output().unwrap();
    let said = String::from_utf8(got.stderr).unwrap();
    assert!(got.status.code() == Some(2) && said.contains("another file"), "{said}");
    assert_eq!(fs::read(&input).unwrap(), capture);
}

#[test]
fn what_was_done_is_told_to_people_and_programs() {
    let (_, packet) = datagram(Family::V4, 1, 3000);
    let parts = fragments(&packet, 1400);
    let sent: Vec<_> = [&parts[..], &parts[..2]].concat();
    let sent: Vec<_> = sent.iter().map(|p| ethernet(&kind(p), p)).collect();
    let bytes = pcap(ETHERNET, &sent);
    let got = defrag_piped(&["-", "-"], &bytes);
    let said = String::from_utf8(got.stderr).unwrap();
    assert!(said.contains("5 packets, 5 fragments, 1 datagram put together, 1 packet written"));
    assert!(said.contains("1  datagrams were not complete at the end"), "{said}");
    assert!(got.stdout.starts_with(&pcap_header(ETHERNET)[..4]));

    let got = defrag_piped(&["--json", "--keep-incomplete", "-", "-"], &bytes);
    let told: Value = serde_json::from_slice(&got.stderr).unwrap();
    let expected = json!({
        "version": 1, "bytes": bytes.len(), "packets": 5, "packets_written": 3, "fragments": 5, "datagrams": 1,
        "datagrams_incomplete": 1, "fragments_lost": 2, "fragments_kept": 2, "fragments_too_long": 0, "packets_cut": 0,
        "packets_malformed": 0, "packets_unknown_link": 0, "dropped": [], "damage": null,
    });
    assert_eq!(told, expected);
    // What is written to standard output by another name is not mixed with it either.
    let got = defrag_piped(&["--json", "--keep-incomplete", "-", "/dev/stdout"], &bytes);
    let whole = defrag_piped(&["--keep-incomplete", "-", "-"], &bytes).stdout;
    assert_eq!(serde_json::from_slice::<Value>(&got.stderr).unwrap(), expected);
    assert!(got.stdout == whole);
    let place = Place::new("told");
    let got = defrag_piped(
        &["--json".as_ref(), "-".as_ref(), place.path("out.pcap").as_os_str()],
        &bytes,
    );
    let told: Value = serde_json::from_slice(&got.stdout).unwrap();
    assert_eq!(told["fragments"], 5);
    assert_eq!(String::from_utf8(got.stderr).unwrap(), "");
}

#[test]
fn damage_is_told_to_programs() {
    let place = Place::new("damage");
    let (_, packet) = datagram(Family::V4, 1, 3000);
    let sent: Vec<_> = fragments(&packet, 1400).iter().map(|p| ethernet(&kind(p), p)).collect();
    let mut bytes = pcap(ETHERNET, &[&sent[..], &sent[..1]].concat());
    bytes.truncate(bytes.len() - 7);
    let (input, out) = (place.file("in.pcap", &bytes), place.path("out.pcap"));
    let got = defrag(&[OsStr::new("--json"), input.as_ref(), out.as_ref()]);
    assert_eq!(got.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&got.stdout).unwrap();
    assert_eq!([&told["datagrams"], &told["damage"]["packet"]], [1, 3]);
    assert_eq!(told["damage"]["byte"], bytes.len() - (16 + sent[0].len() - 7));
    assert!(told["damage"]["words"].as_str().is_some_and(|words| !words.is_empty()));
    assert!(String::from_utf8(got.stderr).unwrap().contains("damaged at byte"));
    // Where the object is on standard error, it is alone there.
    let got = defrag_piped(&["--json", "-", "-"], &bytes);
    assert_eq!(serde_json::from_slice::<Value>(&got.stderr).unwrap(), told);
}

#[test]
fn small_fragments_are_dropped_if_they_are_said_to_be() {
    let place = Place::new("small");
    let (_, packet) = datagram(Family::V6, 1, 600);
    let sent: Vec<_> = fragments(&packet, 200).iter().map(|p| ethernet(&kind(p), p)).collect();
    let (input, out) = (place.file("in.pcap", &pcap(ETHERNET, &sent)), place.path("out.pcap"));
    let tiny = json!([{
        "reason": "tiny", "words": "fragment is too small", "fragments": 3, "datagrams": 0,
    }]);
    for (least, datagrams, dropped) in [("200", 1, json!([])), ("201", 0, tiny)] {
        let options = ["--json", "--min-fragment", least].map(OsStr::new);
        let got = defrag(&[&options[..], &[input.as_ref(), out.as_ref()]].concat());
        let told: Value = serde_json::from_slice(&got.stdout).unwrap();
        assert_eq!((&told["datagrams"], &told["dropped"]), (&json!(datagrams), &dropped));
    }
}

#[test]
fn the_policy_says_whose_bytes_count() {
    let place = Place::new("policy");
    let piece = |letter: u8, offset: usize, more: bool| {
        let packet = Packet { offset, more, ..Packet::new(Family::V4, 1, vec![letter; 16]) };
        ethernet(&[8, 0], &packet.emit())
    };
    let sent = [piece(b'A', 0, true), piece(b'B', 8, false)];
    let input = place.file("in.pcap", &pcap(ETHERNET, &sent));
    for (policy, letters) in [
        ("strict", None),
        ("first", Some("AAAAAAAAAAAAAAAABBBBBBBB")),
        ("last", Some("AAAAAAAABBBBBBBBBBBBBBBB")),
        ("linux", Some("AAAAAAAAAAAAAAAABBBBBBBB")),
        ("bsd-right", Some("AAAAAAAABBBBBBBBBBBBBBBB")),
    ] {
        let out = defragged(&["--policy", policy], &input, &place.path("out.pcap"));
        let payload = out.get(24 + 16 + 14 + 20..);
        assert_eq!(payload, letters.map(str::as_bytes), "{policy}");
    }
}

/// Who sends packets now and then must not have to fill a buffer before the first one comes out.
#[test]
fn packets_come_out_while_more_are_awaited() {
    let mut child = Command::new(built("shunt"))
        .args(["defrag", "-", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = pcap(ETHERNET, &[ethernet(&[8, 6], &[0; 40])]);
    stdin.write_all(&bytes).unwrap();
    let mut came = vec![0; bytes.len()];
    child.stdout.take().unwrap().read_exact(&mut came).unwrap();
    assert_eq!(came[24..], bytes[24..]);
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

//! `shunt defrag --interface`: real fragments on a real interface, in network namespaces of their own.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

mod addressed;
mod changes;
mod device;
mod ends;
mod options;
mod stage;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use e2e::run::{eventually, skipped};
use stage::{Stage, Told, capture, fragment4, fragment6, interleaved, payload, seal};

const SIGINT: i32 = libc::SIGINT;
const LIMIT: Duration = Duration::from_secs(60);

/// Sends datagrams of all sizes by both families, and compares what is in the capture.
fn check_capture(options: &[&str]) {
    check_capture_in("out.pcapng", options);
}

fn check_capture_in(name: &str, options: &[&str]) {
    let Some(stage) = Stage::new() else { return };
    let file = stage.path(name);
    let path = file.to_str().unwrap();
    let sizes: Vec<usize> =
        (0..60).map(|i| [65_507, 4000, 1473, 30_000, 65_000, 2953][i % 6]).collect();
    let count = sizes.len().to_string();
    let mut args = vec!["--write", path, "--count", &count, "--stats", "0"];
    args.extend(options);
    let mut shunt = stage.shunt(&args);
    let mut sent: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for (i, size) in sizes.iter().enumerate() {
        // The longest that IPv4 takes is not the longest that goes here by IPv6.
        let v6 = i % 2 == 1;
        let body = payload(i, if v6 { (*size).min(65_000) } else { *size });
        stage.send(&body, v6);
        *sent.entry(body).or_default() += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    shunt.ends(LIMIT);
    let mut came: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for packet in capture(&file) {
        let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
        *came.entry(packet[header + 8..].to_vec()).or_default() += 1;
    }
    let said = shunt.said();
    assert_eq!(came.len(), sent.len(), "{options:?}: {said}");
    assert!(came == sent, "{options:?}: other bytes: {said}");
}

#[test]
fn datagrams_come_out_as_they_were_sent() {
    check_capture(&["--workers", "1"]);
}

#[test]
fn several_workers_share_datagrams_and_never_one_datagram() {
    check_capture(&["--workers", "3"]);
}

#[test]
fn a_capture_is_pcap_if_its_name_says_so() {
    check_capture_in("out.pcap", &["--workers", "1"]);
    check_capture_in("out.PCAP", &["--workers", "1"]);
}

#[test]
fn fragments_taken_from_the_kernel_come_out_as_they_were_sent() {
    check_capture(&["--xdp"]);
}

#[test]
fn under_overload_datagrams_still_complete() {
    const SENDERS: usize = 64;
    for xdp in [false, true] {
        let is_enough = || {
            let Some(stage) = Stage::new() else { return true };
            let _socket = stage.listen();
            let mut args = vec!["--memory", "4M", "--json", "--stats", "0"];
            args.extend(xdp.then_some("--xdp"));
            let mut shunt = stage.shunt(&args);
            let rounds = 10;
            stage.send_raw(|raw| (0..rounds).for_each(|round| interleaved(raw, SENDERS, round)));
            std::thread::sleep(Duration::from_millis(300));
            let said = shunt.stop();
            let told = Told::of(&said);
            let whole = told.get("datagrams");
            let (kernel, asked) = (stage.snmp("ReasmOKs"), stage.snmp("ReasmReqds"));
            println!("xdp {xdp}: {whole}, the kernel {kernel} of {asked} fragments; {said}");
            assert!(told.get("memory_bytes") <= 4 << 20);
            assert_eq!(asked == 0, xdp, "fragments that the kernel has seen");
            // What fits into 4 MiB at once, each round; less what a loaded machine loses in the ring.
            whole >= 100 && whole >= kernel
        };
        // A machine with other work may lose most of it, but not each time.
        assert!((0..5).any(|_| is_enough()), "xdp {xdp}");
    }
}

/// Sends frames, no more at once than a ring takes, so that nothing is lost because the machine is busy: what comes of it
/// does not depend on the pace. `before`: frames that were sent before.
fn send_in_step(stage: &Stage, frames: &[Vec<u8>], before: u64) {
    let mut sent = before;
    for some in frames.chunks(3000) {
        stage.send_frames(some);
        sent += some.len() as u64;
        eventually("the frames have come", || {
            number(&page(stage), "\nshunt_defrag_frames_total ") >= sent
        });
    }
}

/// What `/metrics` says of the memory in use, again and again while something is done.
fn memory_during(stage: &Stage, what: impl FnOnce()) -> Vec<u64> {
    std::thread::scope(|scope| {
        let (doing, done) = channel::<()>();
        let watcher = scope.spawn(move || {
            let mut seen = Vec::new();
            // Gone as well when a check has failed there.
            while done.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
                seen.push(number(&page(stage), "\nshunt_defrag_memory_bytes "));
            }
            seen
        });
        what();
        drop(doing);
        watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The same packet from another host.
fn from(source: [u8; 4], mut packet: Vec<u8>) -> Vec<u8> {
    packet[12..16].copy_from_slice(&source);
    seal(&mut packet);
    frame(&[], 0x0800, &packet)
}

const IN_STEP: [&str; 6] = ["--json", "--stats", "0", "--ring", "64M", "--metrics"];

/// Of what so many senders offer, six times 65,515 bytes each, how much comes through whole, with memory for what the
/// second figure says.
fn through_overload(senders: usize, options: &[&str]) -> Option<[u64; 2]> {
    const LEN: usize = 65_515;
    const MEMORY: usize = 4 << 20;
    const ROUNDS: u16 = 6;
    let stage = Stage::new()?;
    let mut args = vec!["--memory", "4M"];
    args.extend(IN_STEP);
    args.push(METRICS);
    args.extend(options);
    let mut shunt = stage.shunt(&args);
    let mut sent = 0;
    let load = || {
        (0..ROUNDS).for_each(|round| {
            let mut frames = Vec::new();
            for at in (0..LEN).step_by(1480) {
                let end = (at + 1480).min(LEN);
                for sender in 0..senders {
                    let packet = fragment4(round, at, end < LEN, &vec![7; end - at]);
                    let [high, low] = u16::try_from(sender).unwrap().to_be_bytes();
                    frames.push(from([10, high, low, 9], packet));
                }
            }
            send_in_step(&stage, &frames, sent);
            sent += frames.len() as u64;
        })
    };
    let memory = memory_during(&stage, load);
    let said = shunt.stop();
    let told = Told::of(&said);
    let whole = told.get("datagrams");
    let offered = senders * usize::from(ROUNDS);
    println!("{options:?}: {whole} of {offered} from {senders}, memory {memory:?}; {said}");
    let most = memory.iter().copied().max().unwrap_or(0);
    assert!(memory.len() > 10 && most > MEMORY as u64 / 2, "it was not full: {memory:?}");
    // Several workers each say now and then what they hold; memory that went from one to another meanwhile, both do.
    assert!(most <= MEMORY as u64 || options.contains(&"2"), "more than the limit: {memory:?}");
    assert_eq!(told.get("ring_dropped"), 0, "{said}");
    Some([whole, (MEMORY / LEN) as u64 * u64::from(ROUNDS)])
}

/// Case T7: of what is offered at two and a half and at ten times what memory holds, half of what it holds comes
/// through.
#[test]
fn half_of_what_memory_holds_comes_through_at_any_overload() {
    for (options, senders) in [(&["--workers", "1"][..], 160), (&["--xdp"], 160), (&["--xdp"], 640)]
    {
        let Some([whole, held]) = through_overload(senders, options) else { return };
        assert!(whole >= held / 2, "{options:?}: {whole} of {held}");
    }
}

/// With two workers, who share the memory, it depends on how they take turns.
#[test]
fn two_workers_at_an_overload_bring_half_of_it_through_too() {
    let is_enough = || {
        let through = through_overload(160, &["--workers", "2"]);
        through.is_none_or(|[whole, held]| whole >= held / 2)
    };
    // A machine with other work may bring less, but not each time.
    assert!((0..5).any(|_| is_enough()));
}

/// Case T18: more comes than there are buffers for while nobody looks. It is counted, and nothing is missing afterwards.
#[test]
fn without_buffers_frames_are_dropped_and_it_recovers() {
    for xdp in [false, true] {
        let Some(stage) = Stage::new() else { return };
        let mut args = vec!["--memory", "1M", "--ring", "4M", "--timeout", "1", "--json"];
        args.extend(["--stats", "0", "--metrics", METRICS]);
        args.extend(xdp.then_some("--xdp"));
        let mut shunt = stage.shunt(&args);
        let metric = |name: &str| number(&page(&stage), &format!("\nshunt_defrag_{name} "));
        let mut whole = 0;
        for round in 0..3u16 {
            shunt.signal(libc::SIGSTOP);
            let flood: Vec<_> = (0..3000u16)
                .flat_map(|id| {
                    let part = |at, more| fragment4(id, at, more, &[5; 1480]);
                    [part(0, true), part(1480, true), part(2960, false)]
                })
                .map(|packet| from([10, 66, 6, u8::try_from(round).unwrap()], packet))
                .collect();
            stage.send_frames(&flood);
            shunt.signal(libc::SIGCONT);
            eventually("it is counted", || metric("ring_dropped_total") > 0);
            // What was begun and has no end goes when its time is up, and nothing is left.
            eventually("all has gone", || {
                [metric("in_progress"), metric("memory_bytes")] == [0, 0]
            });
            let before = metric("datagrams_total");
            for id in 0..200u16 {
                let part = |at, more| from([10, 77, 0, 1], fragment4(id, at, more, &[7; 1480]));
                stage.send_frames(&[part(0, true), part(1480, false)]);
                std::thread::sleep(Duration::from_micros(200));
            }
            eventually("all of them are whole", || metric("datagrams_total") >= before + 200);
            whole = metric("datagrams_total");
        }
        let said = shunt.stop();
        let told = Told::of(&said);
        assert_eq!(told.get("datagrams"), whole, "xdp {xdp}: {said}");
        assert_eq!(told.get("no_frame"), 0, "{said}");
    }
}

/// VLANs that frames come by: none, two of one kind, a stack.
const TAGS: [&[(u16, u16)]; 4] = [&[], &[(0x8100, 7)], &[(0x8100, 8)], &[(0x88a8, 5), (0x8100, 7)]];

fn frame(tags: &[(u16, u16)], kind: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for (tag, vlan) in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend(kind.to_be_bytes());
    frame.extend_from_slice(packet);
    frame
}

#[test]
fn fragments_of_two_vlans_never_meet_and_headers_are_passed_over() {
    // The same addresses and identifications in each VLAN, and all first fragments before the others.
    let mut frames = Vec::new();
    for (at, more, len) in [(0, true, 1400), (1400, false, 600)] {
        let body = vec![7; len];
        for tags in TAGS {
            frames.push(frame(tags, 0x0800, &fragment4(5, at, more, &body)));
            let v6 = |others: u8| fragment6(9 + u32::from(others), at, more, &body, others.into());
            frames.extend((0..4).map(|others| frame(tags, 0x86dd, &v6(others))));
        }
    }
    let sent = frames.len() as u64 / 2;
    for options in [&["--workers", "3"][..], &["--xdp"]] {
        let Some(stage) = Stage::new() else { return };
        let mut args = vec!["--json", "--stats", "0", "--metrics", METRICS];
        args.extend(options);
        let mut shunt = stage.shunt(&args);
        stage.send_frames(&frames);
        let whole = || number(&page(&stage), "\nshunt_defrag_datagrams_total ");
        eventually("all have come", || whole() >= sent);
        // Whatever else would come.
        std::thread::sleep(Duration::from_millis(300));
        let said = shunt.stop();
        assert_eq!(Told::of(&said).get("datagrams"), sent, "{options:?}: {said}");
    }
}

/// Frames of such an interface are bare packets of IP.
#[test]
fn fragments_of_an_interface_without_link_headers_are_put_together() {
    let Some(stage) = Stage::new() else { return };
    let tunnel = stage.inside(|| sys::tap::Tap::open("tun8").unwrap());
    stage.types("ip link set tun8 up").unwrap();
    for workers in ["1", "3"] {
        let options = ["--workers", workers, "--json", "--stats", "0", "--metrics", METRICS];
        let mut shunt = stage.shunt_on("tun8", &options);
        for id in 0..20 {
            for (at, more) in [(0, true), (1400, false)] {
                (&tunnel.file).write_all(&fragment4(id, at, more, &[7; 1400])).unwrap();
                let v6 = fragment6(id.into(), at, more, &[7; 1400], 0);
                (&tunnel.file).write_all(&v6).unwrap();
            }
        }
        eventually("all are whole", || {
            number(&page(&stage), "\nshunt_defrag_datagrams_total ") >= 40
        });
        assert_eq!(Told::of(&shunt.stop()).get("fragments"), 80);
    }
}

/// A card that hashes ports, as RSS does, sends the first fragment of a datagram to one queue and the others, which
/// have no ports, to another.
#[test]
fn fragments_of_a_datagram_may_come_by_different_queues() {
    const ALL: usize = 6000;
    // Before it is known what datagrams need, each may need what the largest do, and few are admitted.
    const FEW: usize = 40;
    const EACH: usize = 170;
    let [first, second, ..] = sys::call::cpus()[..] else {
        return skipped("the CPU chooses the queue, and there is only one");
    };
    let Some(stage) = Stage::with_queues(2) else { return };
    let file = stage.path("out.pcapng");
    // So little that the frames which are sent are more than there are: they must come back from who has them.
    let small = ["--memory", "4M", "--ring", "4M", "--metrics", METRICS];
    let mut args = vec!["--xdp", "--json", "--stats", "0", "--write", file.to_str().unwrap()];
    args.extend(small);
    let mut shunt = stage.shunt(&args);
    let mut sent = BTreeMap::new();
    for n in 0..ALL {
        sent.insert(payload(n, 3000 + n % 1000), 1);
    }
    let bodies: Vec<&Vec<u8>> = sent.keys().collect();
    let mut whole = 0;
    let (few, rest) = bodies.split_at(FEW);
    for bodies in std::iter::once(few).chain(rest.chunks(EACH)) {
        let mut frames = [Vec::new(), Vec::new()];
        for (n, body) in bodies.iter().enumerate() {
            let id = whole + n;
            for (which, at) in (0..body.len()).step_by(1440).enumerate() {
                let end = (at + 1440).min(body.len());
                let (more, part) = (end < body.len(), &body[at..end]);
                let kind_and_packet = if n % 2 == 0 {
                    (0x0800, fragment4(u16::try_from(id).unwrap(), at, more, part))
                } else {
                    (0x86dd, fragment6(u32::try_from(id).unwrap(), at, more, part, 0))
                };
                frames[which.min(1)].push(frame(&[], kind_and_packet.0, &kind_and_packet.1));
            }
        }
        stage.send_frames_on(Some(first), &frames[0]);
        stage.send_frames_on(Some(second), &frames[1]);
        // No more at once than the rings hold: nothing is lost because the machine is busy.
        whole += bodies.len();
        eventually("all have come", || {
            number(&page(&stage), "\nshunt_defrag_datagrams_total ") >= whole as u64
        });
    }
    let said = shunt.stop();
    let mut came: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for packet in capture(&file) {
        let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
        *came.entry(packet[header..].to_vec()).or_default() += 1;
    }
    assert!(came == sent, "other bytes: {said}");
    let told = Told::of(&said);
    let [over, taken, full] = ["handed_over", "taken_over", "lane_full"].map(|name| told.get(name));
    let all = (ALL * 3) as u64;
    // Half of all, as by chance.
    assert!(over == taken && full == 0 && (all * 2 / 5..all * 3 / 5).contains(&over), "{said}");
    assert_eq!(["in_progress", "memory_bytes"].map(|name| told.get(name)), [0, 0]);
}

fn number(text: &str, name: &str) -> u64 {
    let rest = text.split(name).nth(1).unwrap_or_else(|| panic!("no {name} in {text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn each_queue_has_a_worker_whatever_name_the_interface_is_called_by() {
    let Some(stage) = Stage::with_queues(4) else { return };
    stage.also_named("another0");
    for name in ["vb", "another0"] {
        let said = stage.shunt_on(name, &["--xdp", "--stats", "0"]).stop();
        assert!(said.contains("shunt: 4 workers"), "{name}: {said}");
    }
    // And where /sys is that of another host.
    let said = stage.shunt_beside_sys(&["--xdp", "--stats", "0"]).stop();
    assert!(said.contains("shunt: 4 workers"), "{said}");
}

#[test]
fn metrics_are_served_and_the_program_in_the_kernel_goes() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&["--xdp", "--metrics", METRICS, "--stats", "0.2"]);
    assert!(stage.link().contains("xdp"), "{}", stage.link());
    stage.send(&payload(1, 20_000), false);
    eventually("it is counted", || {
        let page = page(&stage);
        assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
        let dropped = "shunt_defrag_fragments_dropped_total{reason=\"overlap\"} 0\n";
        assert!(page.contains(dropped), "{page}");
        page.contains("shunt_defrag_datagrams_total 1\n")
    });
    eventually("it says how it gets on", || shunt.said().contains("packets/s"));
    let second = stage.fails(&["--metrics", METRICS]);
    assert!(second.contains("127.0.0.1:9117") && second.contains("choose another"), "{second}");
    let said = shunt.stop();
    assert!(said.contains("1 datagrams") && said.contains("packets/s"), "{said}");
    assert!(!stage.link().contains("xdp"), "after Ctrl-C: {}", stage.link());

    let shunt = stage.shunt(&["--xdp", "--stats", "0"]);
    assert!(stage.link().contains("xdp"));
    shunt.kill();
    // The kernel takes what a process has left behind in its own time.
    eventually("it is gone after SIGKILL", || !stage.link().contains("xdp"));
}

/// The port for metrics on host B.
const METRICS: &str = "9117";

/// What is served there.
fn page(stage: &Stage) -> String {
    stage.inside(|| {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{METRICS}")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    })
}

#[test]
fn what_is_missing_is_named() {
    let Some(stage) = Stage::new() else { return };
    let said = stage.fails_on("eth7", &[]);
    assert!(said.contains("no interface eth7; there are: lo, "), "{said}");
    let said = stage.fails_on("lo", &["--xdp"]);
    assert!(said.contains("MTU is 65536") && said.contains("AF_PACKET"), "{said}");
    let said = stage.fails(&["--xdp", "--workers", "2"]);
    assert!(said.contains("fewer receive queues"), "{said}");
    let said = stage.fails(&["--to", "lo"]);
    assert!(said.contains("device lo"), "{said}");
    stage.has_sleeping_tap("asleep");
    let said = stage.fails(&["--to", "asleep"]);
    assert!(said.contains("asleep is down"), "{said}");
    let shunt = stage.shunt(&["--xdp", "--stats", "0"]);
    let said = stage.fails(&["--xdp"]);
    assert!(said.contains("another program has"), "{said}");
    drop(shunt);
    stage.set_down();
    let said = stage.fails(&[]);
    assert!(said.contains("is down") && said.contains("ip link set"), "{said}");
}

#[test]
fn an_interface_that_goes_ends_it() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&["--stats", "0"]);
    stage.remove();
    let said = shunt.fails_within(LIMIT);
    assert!(said.contains("has gone"), "{said}");
}

#[test]
fn an_interface_that_is_made_anew_under_its_name_ends_it() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&["--stats", "0"]);
    stage.remove();
    stage.make_again();
    let said = shunt.fails_within(LIMIT);
    assert!(said.contains("has gone"), "{said}");
}

#[test]
fn an_interface_that_is_renamed_is_the_same() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&["--stats", "0"]);
    if let Err(why) = stage.rename("renamed0") {
        return skipped(&why);
    }
    stage.set_mtu_of("renamed0", 9000);
    eventually("it says so", || shunt.said().contains("the MTU of renamed0 is 9000 now"));
    shunt.stop();
}

#[test]
fn it_says_that_fragments_have_become_too_long() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&["--stats", "0"]);
    stage.set_mtu(1600);
    stage.set_mtu(9000);
    eventually("it says so", || shunt.said().contains("the MTU of vb is 9000 now"));
    let said = shunt.stop();
    assert_eq!(said.matches("is started anew").count(), 1, "there was room for 1600: {said}");
}

/// The capture is there before the end, too: whoever looks at it meanwhile sees what has come.
#[test]
fn what_came_before_the_interface_went_is_in_the_capture_and_told() {
    for options in [&[][..], &["--xdp"]] {
        let Some(stage) = Stage::new() else { return };
        let file = stage.path("out.pcapng");
        let path = file.to_str().unwrap();
        let mut shunt =
            stage.shunt(&[&["--json", "--stats", "0", "--write", path], options].concat());
        let bodies = [payload(1, 20_000), payload(2, 3000)];
        for (n, body) in bodies.iter().enumerate() {
            stage.send(body, false);
            eventually("it is in the file", || capture(&file).len() == n + 1);
        }
        stage.remove();
        let said = shunt.fails_within(LIMIT);
        assert!(said.contains("has gone"), "{said}");
        assert_eq!(Told::of(&said).get("datagrams"), 2, "{said}");
        let came: Vec<Vec<u8>> =
            capture(&file).iter().map(|packet| packet[28..].to_vec()).collect();
        assert!(came == bodies, "{options:?}: {said}");
    }
}

#[test]
fn without_privileges_the_capability_is_named() {
    let Some(stage) = Stage::new() else { return };
    let Some(setpriv) = e2e::installed("setpriv") else { return skipped("there is no setpriv") };
    for (options, needs) in
        [(&[][..], "CAP_NET_RAW"), (&["--xdp"], "CAP_BPF"), (&["--to", "tun9"], "CAP_NET_ADMIN")]
    {
        let said = stage.fails_as_nobody(&setpriv, options);
        assert!(said.contains(needs), "{said}");
    }
}

//! Options of `shunt defrag --interface`, one by one.

use std::thread;
use std::time::{Duration, Instant};

use e2e::run::{eventually, skipped};
use serde_json::Value;

use super::stage::{Stage, Told, fragment4, objects, payload};
use super::{LIMIT, METRICS, frame, number, page};

fn workers_are(stage: &Stage, options: &[&str], count: usize, how: &str) {
    let mut shunt = stage.shunt(&[&["--stats", "0"], options].concat());
    let said = shunt.stop();
    let s = if count == 1 { "" } else { "s" };
    assert!(said.contains(&format!("shunt: {count} worker{s}, {how}")), "{options:?}: {said}");
}

#[test]
fn there_is_a_worker_for_each_cpu_that_it_may_use() {
    let Some(stage) = Stage::new() else { return };
    let cpus = sys::call::cpus();
    workers_are(&stage, &[], cpus.len(), "AF_PACKET; ");
    workers_are(&stage, &["--workers", "3"], 3, "AF_PACKET; ");
    thread::scope(|scope| {
        scope.spawn(|| {
            sys::call::pin(cpus[0]).unwrap();
            workers_are(&stage, &[], 1, "AF_PACKET; ");
        });
    });
}

#[test]
fn with_xdp_there_is_a_worker_for_each_receive_queue() {
    for queues in [1, 3] {
        let Some(stage) = Stage::with_queues(queues) else { return };
        workers_are(&stage, &["--xdp"], queues, "AF_XDP ");
    }
}

#[test]
fn where_the_capture_goes_to_standard_output_the_other_one_is_json_alone() {
    let Some(stage) = Stage::new() else { return };
    let options = ["--write", "/dev/stdout", "--json", "--stats", "0", "--seconds", "0.2"];
    let said = stage.ends_well(&options);
    let told: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.len(), 1, "{said}");
}

#[test]
fn it_ends_after_so_many_seconds_and_each_line_is_json_until_then() {
    let Some(stage) = Stage::new() else { return };
    let began = Instant::now();
    let mut shunt = stage.shunt(&["--seconds", "1.2", "--stats", "0.3", "--json"]);
    stage.send(&payload(1, 20_000), false);
    shunt.ends(LIMIT);
    assert!(began.elapsed() >= Duration::from_millis(1200), "{:?}", began.elapsed());
    let told = objects(&shunt.said());
    assert!(told.len() >= 3, "{told:?}");
    let keys = |object: &Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for object in &told {
        assert_eq!(keys(object), keys(&told[0]));
        assert_eq!(object["version"], 1);
    }
    let (last, lines) = told.split_last().unwrap();
    assert!(last["seconds"].as_f64().unwrap() >= 1.2, "{last}");
    assert!(lines.iter().all(|line| (0.3..60.0).contains(&line["seconds"].as_f64().unwrap())));
    let rate = last["datagrams_per_s"].as_f64().unwrap() * last["seconds"].as_f64().unwrap();
    assert!(last["datagrams"] == 1 && last["bytes"] == 20_008 && rate < 1.5, "{last}");
    assert!(last["fragments_dropped"].as_object().unwrap().is_empty(), "{last}");
}

/// Of a datagram whose first fragment has 104 bytes, and of one whose has 200.
#[test]
fn small_fragments_are_dropped_if_they_are_said_to_be() {
    let frames: Vec<_> = [(1, 104), (2, 200)]
        .into_iter()
        .flat_map(|(id, at)| {
            [fragment4(id, 0, true, &vec![7; at]), fragment4(id, at, false, &[7; 50])]
        })
        .map(|packet| frame(&[], 0x0800, &packet))
        .collect();
    for (options, whole, tiny) in [(&["--min-fragment", "200"][..], 1, 1), (&[], 2, 0)] {
        let Some(stage) = Stage::new() else { return };
        let mut shunt =
            stage.shunt(&[&["--json", "--stats", "0", "--metrics", METRICS], options].concat());
        stage.send_frames(&frames);
        eventually("they have come", || {
            number(&page(&stage), "\nshunt_defrag_fragments_total ") >= 4
        });
        let told = Told::of(&shunt.stop());
        let seen = ["fragments", "datagrams", "fragments_dropped/tiny"].map(|name| told.get(name));
        assert_eq!(seen, [4, whole, tiny], "{options:?}");
    }
}

#[test]
fn what_is_only_counted_is_not_put_together() {
    for xdp in [false, true] {
        let Some(stage) = Stage::new() else { return };
        let mut options = vec!["--count-only", "--json", "--stats", "0", "--metrics", METRICS];
        options.extend(xdp.then_some("--xdp"));
        let mut shunt = stage.shunt(&options);
        let body = vec![7; 1480];
        let frames = [fragment4(1, 0, true, &body), fragment4(1, 1480, false, &body)];
        stage.send_frames(&frames.map(|packet| frame(&[], 0x0800, &packet)));
        eventually("they have come", || number(&page(&stage), "\nshunt_defrag_frames_total ") >= 2);
        let told = Told::of(&shunt.stop());
        // Others with extension headers may come as well.
        assert!(told.get("frames") >= 2 && told.get("frame_bytes") >= 2 * 1514, "xdp {xdp}");
        assert_eq!(["fragments", "datagrams"].map(|name| told.get(name)), [0, 0], "xdp {xdp}");
        let said = stage.fails(&["--count-only", "--write", "/dev/null"]);
        assert!(said.contains("cannot be used with"), "{said}");
    }
}

/// A virtual cable does not filter by address, a card does: unless it is told not to, for as long as somebody wants that.
#[test]
fn frames_for_others_are_asked_for_on_demand() {
    let Some(stage) = Stage::new() else { return };
    let is_asked = || stage.details().contains(" promiscuity 1 ");
    for (options, asks) in [(&[][..], false), (&["--promiscuous"], true)] {
        let mut shunt = stage.shunt(&[&["--stats", "0"], options].concat());
        assert_eq!(is_asked(), asks, "{options:?}: {}", stage.details());
        shunt.stop();
        assert!(!is_asked(), "{options:?}, when it has ended: {}", stage.details());
    }
}

/// As when its terminal is closed, which may say so more than once; what was counted is told all the same.
#[test]
fn a_hang_up_ends_it_in_order() {
    // What this process ignores its children do, as under nohup(1), and that is as it should be.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let is_ignored = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0;
    if is_ignored {
        return skipped("hang-ups are ignored here (nohup)");
    }
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&["--stats", "0"]);
    for signal in [libc::SIGSTOP, libc::SIGHUP, libc::SIGHUP, libc::SIGCONT] {
        shunt.signal(signal);
    }
    shunt.ends(LIMIT);
    assert!(shunt.said().contains("datagrams"), "{}", shunt.said());
}

/// The second signal ends it at once, with the status that shells have for that; a failure on the way is 2.
#[test]
fn a_second_signal_does_not_wait() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&["--stats", "0"]);
    // Both are there when it goes on.
    for signal in [libc::SIGSTOP, libc::SIGINT, libc::SIGTERM, libc::SIGCONT] {
        shunt.signal(signal);
    }
    assert_eq!(shunt.code_within(LIMIT), Some(130), "{}", shunt.said());
}

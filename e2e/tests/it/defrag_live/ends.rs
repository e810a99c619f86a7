//! What was on its way when it ends: nothing of it is lost, and the numbers add up.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use e2e::run::{eventually, skipped};

use super::stage::{Shunt, Stage, Told, capture, fragment4};
use super::{LIMIT, METRICS, SIGINT, frame, number, page};

const WAYS: [&[&str]; 3] = [&["--workers", "1"], &["--workers", "3"], &["--xdp"]];
const JSON: [&str; 3] = ["--json", "--stats", "0"];

/// First and second fragments of so many datagrams.
pub(super) fn halves(ids: std::ops::Range<u16>) -> [Vec<Vec<u8>>; 2] {
    let part = |at, more| {
        let packet = move |id| frame(&[], 0x0800, &fragment4(id, at, more, &[7; 1400]));
        ids.clone().map(packet).collect()
    };
    [part(0, true), part(1400, false)]
}

/// Each half by another queue, as a card does that hashes ports.
pub(super) fn send(stage: &Stage, halves: &[Vec<Vec<u8>>; 2]) {
    let cpus = sys::call::cpus();
    for (half, cpu) in halves.iter().zip(cpus.into_iter().cycle()) {
        stage.send_frames_on(Some(cpu), half);
    }
}

/// Where fragments are all that comes.
#[track_caller]
fn adds_up(told: &Told, said: &str) {
    let of = |name: &str| told.get(name);
    let became = ["fragments", "whole_packets", "other_frames", "no_frame", "lane_full"];
    assert_eq!(of("frames"), became.into_iter().map(of).sum::<u64>(), "{said}");
    assert_eq!(of("handed_over"), of("taken_over"), "{said}");
}

/// It finds all of this when it goes on.
fn asleep_during(shunt: &Shunt, what: impl FnOnce()) {
    shunt.signal(libc::SIGSTOP);
    what();
    shunt.signal(libc::SIGCONT);
}

/// More than is worked on before it sees that it is to end.
#[test]
fn what_has_come_when_it_is_to_end_is_put_together() {
    for way in WAYS {
        let Some(stage) = Stage::with_queues(2) else { return };
        let mut shunt = stage.shunt(&[way, &JSON].concat());
        asleep_during(&shunt, || {
            send(&stage, &halves(0..4000));
            // And five of which the rest never comes, and two of which the end does not.
            let [first, _] = halves(5000..5005);
            let [begun, middle] = [0, 1400].map(|at| {
                let packet = |id| frame(&[], 0x0800, &fragment4(id, at, true, &[7; 1400]));
                (6000..6002).map(packet).collect()
            });
            send(&stage, &[first, Vec::new()]);
            send(&stage, &[begun, middle]);
            shunt.signal(SIGINT);
        });
        shunt.ends(LIMIT);
        let said = shunt.said();
        let told = Told::of(&said);
        let names = ["fragments", "datagrams", "in_progress", "unread", "ring_dropped"];
        assert_eq!(names.map(|name| told.get(name)), [8009, 4000, 7, 0, 0], "{way:?}: {said}");
        let fragments = ["fragments_delivered", "fragments_in_progress", "fragments_lost"];
        assert_eq!(fragments.map(|name| told.get(name)), [8000, 9, 0], "{way:?}: {said}");
        adds_up(&told, &said);
    }
}

#[test]
fn what_has_come_when_there_is_enough_is_counted() {
    for way in WAYS {
        let Some(stage) = Stage::with_queues(2) else { return };
        let file = stage.path("out.pcapng");
        let to_file = ["--count", "10", "--write", file.to_str().unwrap()];
        let mut shunt = stage.shunt(&[way, &JSON, &to_file].concat());
        asleep_during(&shunt, || send(&stage, &halves(0..4000)));
        shunt.ends(LIMIT);
        let said = shunt.said();
        let told = Told::of(&said);
        // Some with extension headers may have come as well.
        let seen = told.get("fragments") + told.get("unread");
        assert!((8000..8010).contains(&seen), "{way:?}: {said}");
        assert_eq!(told.get("datagrams"), 10 + told.get("output_surplus"), "{way:?}: {said}");
        assert_eq!((told.get("output_sent"), capture(&file).len()), (10, 10), "{way:?}: {said}");
        adds_up(&told, &said);
    }
}

/// There is always something in the rings, and in the lanes from one worker to another.
#[test]
fn it_ends_while_more_and_more_comes_and_the_numbers_add_up() {
    for way in WAYS {
        let Some(stage) = Stage::with_queues(2) else { return };
        let mut shunt = stage.shunt(&[way, &JSON, &["--metrics", METRICS]].concat());
        let (is_over, some) = (AtomicBool::new(false), halves(0..32));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    send(&stage, &some);
                    thread::sleep(Duration::from_micros(200));
                }
            });
            eventually("some are whole", || {
                number(&page(&stage), "\nshunt_defrag_datagrams_total ") >= 1000
            });
            let said = shunt.stop();
            is_over.store(true, Ordering::Relaxed);
            let told = Told::of(&said);
            assert_eq!(told.get("unread"), 0, "{way:?}: {said}");
            adds_up(&told, &said);
        });
    }
}

/// A file system of so little memory at a directory, as long as this is there.
struct Small(std::path::PathBuf);

impl Small {
    fn at(dir: std::path::PathBuf) -> Option<Self> {
        std::fs::create_dir(&dir).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=256k", "tmpfs"];
        let done = Command::new("mount").args(mount).arg(&dir).status();
        done.is_ok_and(|status| status.success()).then_some(Self(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Packets that are there to their end, of those that were written last not all may be.
fn whole_packets(file: &[u8]) -> u64 {
    let word = |at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?));
    let (mut at, mut packets) = (0, 0);
    while let (Some(kind), Some(len)) = (word(at), word(at + 4)) {
        at += len as usize;
        packets += u64::from(kind == 6 && at <= file.len());
    }
    packets
}

/// It is told at the end, and not what the file was given is counted, but what it has taken.
#[test]
fn a_full_disk_ends_it_and_what_is_not_in_the_file_was_not_sent() {
    for way in WAYS {
        let Some(stage) = Stage::with_queues(2) else { return };
        let Some(small) = Small::at(stage.path("small")) else { return skipped("no mounts here") };
        let file = small.0.join("out.pcapng");
        let to_file = ["--write", file.to_str().unwrap()];
        let mut shunt = stage.shunt(&[way, &JSON, &to_file].concat());
        // 280 KB and some.
        send(&stage, &halves(0..100));
        shunt.fails_within(LIMIT);
        let said = shunt.said();
        assert!(said.contains("No space left on device"), "{way:?}: {said}");
        let told = Told::of(&said);
        let there = whole_packets(&std::fs::read(&file).unwrap());
        assert!((50..100).contains(&there), "{way:?}: {there}");
        let of = |name: &str| told.get(name);
        assert_eq!(of("output_sent"), there, "{way:?}: {said}");
        let all = of("output_sent") + of("output_failed") + of("output_dropped");
        assert_eq!((all, of("output_dropped")), (of("datagrams"), 0), "{way:?}: {said}");
    }
}

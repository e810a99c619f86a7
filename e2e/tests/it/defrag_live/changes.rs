//! What becomes of the interface while it is looked at: queues that are added, and that it is set down and up again.

use std::time::Duration;

use e2e::run::{eventually, skipped};

use super::ends::{halves, send};
use super::stage::{Stage, Told, detach};
use super::{LIMIT, METRICS, number, page};

/// Both ends of the cable with so many queues from now on.
fn set_queues(stage: &Stage, queues: usize) {
    // The end that receives never has fewer than the other sends by.
    stage.types_beyond("ethtool -L va tx 1").unwrap();
    stage.types(&format!("ethtool -L vb rx {queues}")).unwrap();
    stage.types_beyond(&format!("ethtool -L va tx {queues}")).unwrap();
}

#[test]
fn queues_that_nobody_serves_are_told() {
    if e2e::installed("ethtool").is_none() {
        return skipped("there is no ethtool(8)");
    }
    let Some(stage) = Stage::with_queues(4) else { return };
    set_queues(&stage, 2);
    let mut shunt = stage.shunt(&["--xdp", "--stats", "0", "--metrics", METRICS]);
    let before = shunt.said();
    assert!(before.contains("shunt: 2 workers, ") && !before.contains("queues"), "{before}");
    let mut whole = 0;
    for (queues, times) in [(3, 1), (4, 1), (2, 0), (4, 2)] {
        set_queues(&stage, queues);
        let words =
            format!("vb has {queues} receive queues now, and the first 2 of them are served");
        eventually("it has said so", || shunt.said().matches(&words).count() == times);
        // What comes by queues that are served is put together as before.
        if sys::call::cpus().iter().take(2).all(|cpu| *cpu as usize % queues < 2) {
            send(&stage, &halves(whole..whole + 50));
            whole += 50;
        }
        eventually("they are whole", || {
            number(&page(&stage), "\nshunt_defrag_datagrams_total ") == u64::from(whole)
        });
        // It has looked once, also where there is nothing to say.
        std::thread::sleep(Duration::from_millis(1500));
    }
    assert_eq!(shunt.stop().matches("receive queues now").count(), 3);
    // Some that were left out from the start. To look on serves all.
    let said = stage.shunt(&["--xdp", "--workers", "3", "--stats", "0"]).stop();
    assert!(said.contains("vb has 4 receive queues now, and the first 3 of them"), "{said}");
    let said = stage.shunt(&["--workers", "3", "--stats", "0"]).stop();
    assert!(!said.contains("queues"), "{said}");
}

#[test]
fn an_interface_that_is_down_for_a_while_is_told_and_brings_fragments_afterwards() {
    for way in [&["--workers", "1"][..], &["--workers", "3"], &["--xdp"]] {
        let Some(stage) = Stage::with_queues(2) else { return };
        let options = ["--json", "--stats", "0", "--metrics", METRICS];
        let mut shunt = stage.shunt(&[way, &options].concat());
        let whole = || number(&page(&stage), "\nshunt_defrag_datagrams_total ");
        let mut ids = 0;
        for times in 1..3 {
            send(&stage, &halves(ids..ids + 50));
            ids += 50;
            eventually("they are whole", || whole() == u64::from(ids));
            let told = |words: &str| shunt.said().matches(words).count() == times;
            stage.set_down();
            eventually("it says that it is down", || told("shunt: vb is down: nothing comes in"));
            stage.types("ip link set vb up").unwrap();
            eventually("and up again", || told("shunt: vb is up again"));
        }
        send(&stage, &halves(ids..ids + 50));
        eventually("they are whole", || whole() == u64::from(ids + 50));
        let said = shunt.stop();
        assert_eq!(Told::of(&said).get("in_progress"), 0, "{way:?}: {said}");
    }
}

/// As `bpftool link detach` does: who is left with nothing to do says so and ends, and the kernel has its fragments again.
#[test]
fn a_program_that_somebody_takes_off_ends_it() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&["--xdp", "--json", "--stats", "0", "--metrics", METRICS]);
    send(&stage, &halves(0..50));
    eventually("they are whole", || number(&page(&stage), "\nshunt_defrag_datagrams_total ") == 50);
    // "prog/xdp id 12 name ..."
    let details = stage.details();
    let program = details.split("prog/xdp id ").nth(1).unwrap_or_else(|| panic!("{details}"));
    let program = program.split_whitespace().next().unwrap().parse().unwrap();
    detach(program).unwrap();
    let said = shunt.fails_within(LIMIT);
    assert!(said.contains("taken the program off vb"), "{said}");
    let told = Told::of(&said);
    assert_eq!(["fragments", "datagrams"].map(|name| told.get(name)), [100, 50], "{said}");
}

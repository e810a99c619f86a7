//! What becomes of the interface while it is looked at: queues that are added.

use std::time::Duration;

use e2e::run::{eventually, skipped};

use super::ends::{halves, send};
use super::stage::Stage;
use super::{METRICS, number, page};

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

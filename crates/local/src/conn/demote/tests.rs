//! How long peers are waited for.

use super::*;

#[test]
fn connections_that_go_back_at_once_wait_for_their_peers_together() {
    let until = AtomicU64::new(0);
    let (begun, late) = (1_000 * RUNS_NS, PATIENCE_NS + 1);
    let end = begun + RUNS_NS;
    assert_eq!(shared_deadline(&until, begun, (RUNS_NS, OTHERS_PAUSE_NS), begun + late), end);
    // One at the same time, and one that comes after that.
    for at in [begun + 5, end - 2 * late] {
        assert_eq!(shared_deadline(&until, at, (RUNS_NS, OTHERS_PAUSE_NS), at + late), end);
    }
    // When they have been waited for in vain the next ones are not, for a while.
    for at in [end, end + OTHERS_PAUSE_NS - 2 * late] {
        assert_eq!(
            shared_deadline(&until, at, (RUNS_NS, OTHERS_PAUSE_NS), at + late),
            at + PATIENCE_NS
        );
    }
    let at = end + OTHERS_PAUSE_NS;
    assert_eq!(shared_deadline(&until, at, (RUNS_NS, OTHERS_PAUSE_NS), at + late), at + RUNS_NS);
}

//! What a fuzzer would do, a little of it in each run.

use proptest::prelude::*;

use roce::{Counters, Reason};
use testkit::fragments::Random;

use crate::ops;

#[test]
fn random_bytes_reach_every_answer() {
    let (mut random, mut all, mut summed) = (Random::new(1), Counters::default(), 0);
    for _ in 0..2000 {
        let len = random.below(600);
        let bytes: Vec<u8> = (0..len).map(|_| random.word().to_le_bytes()[0]).collect();
        let (counters, runs) = ops::run(&bytes);
        all.add(&counters);
        summed += runs;
    }
    for reason in Reason::ALL {
        // Partitions are all one here, and memory is always there.
        let never = matches!(reason, Reason::Partition | Reason::Operational);
        assert!(never || all.dropped(*reason) > 0, "{reason:?} in {all:?}");
    }
    let Counters { retransmitted, timeouts, naks_out, naks_in, rnr_out, rnr_in, .. } = all;
    let Counters { cnp_out, cnp_in, failed, acks_in, bytes_in, bytes_out, .. } = all;
    let seen = [retransmitted, timeouts, naks_out, naks_in, rnr_out, rnr_in, cnp_out];
    assert!(seen.iter().all(|count| *count > 50), "{all:?}");
    // Few come where something was sent that they may be about.
    assert!(cnp_in > 10, "{all:?}");
    assert!(summed > 500, "{summed}");
    assert!([failed, acks_in, bytes_in, bytes_out].iter().all(|count| *count > 300), "{all:?}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_a_peer_sends_costs_its_own_connection_only(
        bytes in proptest::collection::vec(any::<u8>(), 1..600),
    ) {
        _ = ops::run(&bytes);
    }
}

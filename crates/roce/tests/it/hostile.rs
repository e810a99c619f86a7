//! What a fuzzer would do, a little of it in each run.

use proptest::prelude::*;

use crate::ops;

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
        ops::run(&bytes);
    }
}

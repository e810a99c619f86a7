//! The targets of `fuzz/` with random inputs, a few in each run: no libFuzzer and no nightly.

use e2e::targets::{hostile_peer, offers};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn check(target: fn(&[u8]), cases: u32) {
    let cases = if e2e::quick() { cases / 8 } else { cases };
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let inputs = proptest::collection::vec(any::<u8>(), 1..400);
    let result = runner.run(&inputs, |bytes| {
        target(&bytes);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[test]
fn a_hostile_peer_costs_its_own_connection_only() {
    check(hostile_peer::run, 400);
}

#[test]
fn a_board_of_nonsense_harms_nobody() {
    check(offers::run, 400);
}

//! Connections that do nothing cost their event loop nothing: counted, not timed.

use std::mem::offset_of;

use e2e::run::{BoardDir, plain_only, skipped};
use sys::abi::{SLOTS_AT, Slot};

use super::reasons::Pausing;

/// Idle connections.
const COUNT: u64 = 500;
/// Messages there and back on another one.
const ROUNDS: u64 = 1000;

/// A loop that waits for connections which are offered, and of which nobody has taken the offer, looks at them when
/// something happens to an offer, and not each time that it wakes up.
#[test]
fn offers_that_nobody_takes_are_not_looked_at_again() {
    if plain_only() {
        return skipped("nothing is offered on kernel TCP");
    }
    let dir = BoardDir::new();
    let mut server = Pausing::start(&dir, &["serve-idle"]);
    let port = server.told("port");
    let mut client =
        Pausing::start(&dir, &["wait-idle", &port, &COUNT.to_string(), &ROUNDS.to_string()]);
    client.says("done");
    let board = dir.board().unwrap();
    let pid = client.pid();
    let its = board.processes().into_iter().find(|p| i64::from(p.pid) == i64::from(pid)).unwrap();
    assert_eq!(its.attached, 1, "{}", dir.summary());
    assert_eq!(board.offers_of(its.slot).len() as u64, COUNT, "{}", dir.summary());
    let slot = SLOTS_AT + its.slot as usize * size_of::<Slot>();
    let looks = board.word64(slot + offset_of!(Slot, offer_looks));
    // Some looks at all of them, and not one for each message.
    assert!((1..COUNT * ROUNDS / 20).contains(&looks), "{looks} looks at {COUNT} connections");
    // Each of them answers when it is asked.
    client.ends();
}

//! The way that packets take: programs that have chosen one.

use testkit::hosts::DEVICE;

use super::*;
use crate::reasons::assert_counted;
use local::Reason;

/// What a program binds to an interface, as for a VPN, or marks for a route of its own, leaves by that way and no other: RoCEv2
/// would go by the one that addresses lead to.
#[test]
fn who_has_chosen_an_interface_stays_on_tcp() {
    let (Some(python), Some(pair)) = (python(), Pair::with(Hosts::new(), &ALL_BY_SMC)) else {
        return;
    };
    let check = |mode: &str, words: &[&str], side: Side| {
        let talk = Talk::serve(&pair, &python, mode, true);
        let carried = pair.carries(|| {
            let got = talk.client(&pair, &python, words, true);
            assert!(got.ok(), "{mode}, {words:?}: {got:?}");
        });
        let none = carried.iter().all(|c| (c.connections, c.bytes) == (0, 0));
        assert!(none, "{mode}, {words:?}: {carried:?}");
        if side == Side::Client {
            assert_counted(pair.board(side), Reason::ChosenWay, words[words.len() - 1]);
        }
    };
    for by in [DEVICE, "mark"] {
        check("echo", &["noted", "bound", by], Side::Client);
    }
    // A listener's connections are where it is, also one that has been bound after clients were told that it speaks SMC.
    for how in ["by", "later"] {
        check(&format!("echo-{how}-{DEVICE}"), &["talk"], Side::Server);
    }
    // And nobody else has lost anything.
    let talk = Talk::serve(&pair, &python, "echo", true);
    pair.must_carry([100_000; 2], || {
        let got = talk.client(&pair, &python, &["talk"], true);
        assert!(got.ok(), "{got:?}");
    });
}

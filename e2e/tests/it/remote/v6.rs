//! Two hosts that know each other by IPv6 only: RoCEv2 and CLC with its addresses.

use super::*;

#[track_caller]
fn talks(kind: Kind) {
    // What is short goes by SMC as well.
    let settings = ["--spare-short", "off"];
    let (Some(python), Some(pair)) = (python(), Pair::of(kind, Hosts::new(), [&settings[..]; 2]))
    else {
        return;
    };
    let talk = Talk::serve(&pair, &python, "echo", true);
    eventually("a connection goes by SMC-R", || {
        let got = talk.client(&pair, &python, &["echo", "1,1000,65537,3000000"], true);
        assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
        pair.carried(Side::Client) > 0
    });
    let before = pair.carried(Side::Client);
    eventually("many go by SMC-R", || {
        let got = talk.client(&pair, &python, &["many", "50"], true);
        assert!(got.ok(), "{got:?}");
        pair.carried(Side::Client) - before > 5
    });
    // What a program is told of its ends is of IPv6 too.
    let names = Talk::serve(&pair, &python, "names", true);
    let got = names.client(&pair, &python, &["names"], true);
    assert!(got.ok(), "{got:?}");
}

#[test]
fn with_the_option() {
    talks(Kind { v6: true, ..Kind::default() });
}

#[test]
fn with_engines_that_meet() {
    talks(Kind { v6: true, meets: true, ..Kind::default() });
}

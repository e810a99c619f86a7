//! Conversations of two programs of ours: sizes, ends, names, many at a time; and peers without Shunt.

use super::going::Going;
use super::*;

/// Runs a client and asserts that it ended well, and by which way.
#[track_caller]
fn talk(mode: &str, client: &[&str]) {
    let (Some(python), Some(pair)) = (python(), Pair::new()) else { return };
    let talk = Talk::serve(&pair, &python, mode, true);
    let got = talk.client(&pair, &python, client, true);
    assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    for side in [Side::Server, Side::Client] {
        assert!(pair.attached(side, "python3") > 0, "on TCP: {}", pair.board(side).summary());
    }
}

fn large() -> &'static str {
    if e2e::quick() { "8388608" } else { "67108864" }
}

#[test]
fn echoes_of_all_sizes() {
    talk("echo", &["echo", "1,2,17,1000,16384,65535,65536,65537,300000,1,5000000"]);
}

/// Nothing is promised or handed over where the engine's socket could not take the place of the program's.
#[test]
fn a_descriptor_above_the_limit_stays_on_tcp() {
    let (Some(python), Some(pair)) = (python(), Pair::new()) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let got = talk.client(&pair, &python, &["high"], true);
    assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    assert_eq!(pair.attached(Side::Client, "python3"), 0);
}

#[test]
fn a_long_stream_to_the_server() {
    talk("digest", &["digest", large()]);
}

#[test]
fn a_long_stream_to_the_client() {
    talk("source", &["source", large()]);
}

#[test]
fn the_server_speaks_first() {
    talk("greet", &["greet"]);
}

#[test]
fn a_reset_is_a_reset() {
    talk("reset", &["reset"]);
}

#[test]
fn names_are_those_of_the_real_connection() {
    talk("names", &["names"]);
}

#[test]
fn a_slow_reader_gets_all() {
    talk("slow", &["slow", "1000000"]);
}

#[test]
fn an_urgent_byte_each_way() {
    talk("urgent", &["urgent"]);
}

#[test]
fn three_hundred_at_a_time() {
    talk("echo", &["many", "300"]);
}

#[test]
fn stat_says_smcr() {
    let (Some(python), Some(pair)) = (python(), Pair::new()) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let going = Going::start(&pair, &talk, &python, &["8"]);
    let mode = |side| {
        let stat = pair.stat(side);
        let found = stat["connections"].as_array().and_then(|all| {
            all.iter().find(|c| c["state"] == "ACTIVE").map(|c| c["mode"].to_string())
        });
        found.unwrap_or_default()
    };
    eventually("both ends are SMCR", || {
        mode(Side::Server) == "\"SMCR\"" && mode(Side::Client) == "\"SMCR\""
    });
    going.end(&pair);
}

#[test]
fn stat_says_why_a_connection_goes_on_as_tcp() {
    let (Some(python), Some(pair)) = (python(), Pair::new()) else { return };
    let mut command = pair.plain(Side::Server, &built("shunt"));
    let got = outcome(command.args(["engine", "set", "eid=SOMEBODY.ELSE"]), LIMIT);
    assert!(got.ok(), "{got:?}");
    let talk = Talk::serve(&pair, &python, "echo", true);
    let going = Going::start(&pair, &talk, &python, &["8"]);
    // Said by the server, and heard by the client.
    let no_device = 0x0303_0000u32;
    for (side, reason, words) in [
        (Side::Server, no_device, "No device for SMC was found."),
        (Side::Client, 1 << 31 | no_device, "The peer: No device for SMC was found."),
    ] {
        let stat = pair.stat(side);
        let all = stat["connections"].as_array().unwrap();
        let found = all.iter().find(|c| c["state"] == "ACTIVE").unwrap_or_else(|| panic!("{stat}"));
        assert_eq!(found["mode"], "TCP", "{stat}");
        assert_eq!((&found["reason"], &found["reason_words"]), (&reason.into(), &words.into()));
    }
    going.end(&pair);
}

#[test]
fn peers_without_shunt_are_on_tcp() {
    let (Some(python), Some(pair)) = (python(), Pair::new()) else { return };
    for (server, client) in [(true, false), (false, true), (false, false)] {
        let talk = Talk::serve(&pair, &python, "echo", server);
        let got = talk.client(&pair, &python, &["echo", "1,1000,300000"], client);
        assert!(got.ok(), "server under Shunt {server}, client {client}: {got:?}");
    }
    let stat = pair.stat(Side::Client);
    assert_eq!(pair.attached(Side::Client, "python3"), 0, "{stat}");
}

#[test]
fn an_engine_that_is_killed_is_a_reset_and_then_tcp() {
    let (Some(python), Some(mut pair)) = (python(), Pair::new()) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let going = Going::start(&pair, &talk, &python, &["8"]);
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    pair.engines[1].signal(libc::SIGKILL);
    assert_eq!(going.ended(), ["ended ConnectionResetError"]);
    // At once, not after the client's patience of 30 s.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // The next one goes by TCP, although the server still answers the option.
    let got = talk.client(&pair, &python, &["echo", "1,70000"], true);
    assert!(got.ok(), "{got:?}");
    // And with a new engine, by SMC-R again.
    let engine = pair.engine(Side::Client, &[]);
    pair.engines[1] = engine;
    eventually("SMC-R again", || {
        let got = talk.client(&pair, &python, &["echo", "1,70000"], true);
        assert!(got.ok(), "{got:?}");
        pair.carried(Side::Client) > 0
    });
}

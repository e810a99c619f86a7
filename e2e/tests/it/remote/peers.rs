//! Conversations of two programs of ours: sizes, ends, names, many at a time; and peers without Shunt.

use local::Reason;

use super::going::Going;
use super::*;
use crate::reasons::{assert_counted, assert_said_of};

/// Runs a client and asserts that it ended well, by SMC-R with at least so many bytes: the server's, the client's.
#[track_caller]
fn talk(mode: &str, client: &[&str], bytes: [u64; 2]) {
    let (Some(python), Some(pair)) = (python(), Pair::with(Hosts::new(), &ALL_BY_SMC)) else {
        return;
    };
    let talk = Talk::serve(&pair, &python, mode, true);
    pair.must_carry(bytes, || {
        let got = talk.client(&pair, &python, client, true);
        assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    });
}

fn large() -> u64 {
    if e2e::quick() { 8 << 20 } else { 64 << 20 }
}

#[test]
fn echoes_of_all_sizes() {
    const SIZES: [u64; 11] = [1, 2, 17, 1000, 16384, 65535, 65536, 65537, 300_000, 1, 5_000_000];
    let words = SIZES.map(|n| n.to_string()).join(",");
    talk("echo", &["echo", &words], [SIZES.iter().sum(); 2]);
}

/// Nothing is promised or handed over where the engine's socket could not take the place of the program's.
#[test]
fn a_descriptor_above_the_limit_stays_on_tcp() {
    let (Some(python), Some(pair)) = (python(), Pair::new()) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let got = talk.client(&pair, &python, &["noted", "high"], true);
    assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    assert_eq!(pair.attached(Side::Client, "python3"), 0);
    assert_counted(pair.board(Side::Client), Reason::AboveLimit, "a descriptor above the limit");
}

/// Two engines of one user, with a board each, could share the port: each would get packets of the other.
#[test]
fn a_second_engine_of_an_address_is_refused() {
    let (Some(python), Some(pair)) = (python(), Pair::with(Hosts::new(), &ALL_BY_SMC)) else {
        return;
    };
    let other = BoardDir::new();
    let mut command = pair.plain(Side::Client, &built("shunt"));
    let address = pair.address_of(Side::Client);
    command.args(["engine", "--eid", EID, "--cgroup", "none", "--address", &address]);
    let got = outcome(command.env("SHUNT_DIR", other.path()), LIMIT);
    assert!(!got.ok() && got.hung.is_none(), "{got:?}");
    let said = format!("cannot speak RoCEv2 from {address}");
    assert!(got.err.contains(&said) && got.err.contains("another engine running"), "{got:?}");
    // One that is given none may find others, and says at once that this one is not free.
    let mut command = pair.plain(Side::Client, &built("shunt"));
    command.args(["engine", "--eid", EID, "--cgroup", "none"]);
    command.env("SHUNT_DIR", other.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut engine = Guest::start(&mut command);
    let mut ready = String::new();
    BufReader::new(engine.take_stdout().unwrap()).read_line(&mut ready).unwrap();
    engine.kill_all();
    let mut told = String::new();
    engine.take_stderr().unwrap().read_to_string(&mut told).unwrap();
    assert!(ready.contains("ready") && told.contains(&said), "{ready}{told}");
    let talk = Talk::serve(&pair, &python, "echo", true);
    pair.must_carry([1000; 2], || {
        let got = talk.client(&pair, &python, &["echo", "1000"], true);
        assert!(got.ok(), "{got:?}");
    });
}

/// The engine has the connection, and the program no room for the descriptor that it is given for it: a reset.
#[test]
fn no_room_for_the_engines_descriptor() {
    let (Some(python), Some(pair)) = (python(), Pair::with(Hosts::new(), &ALL_BY_SMC)) else {
        return;
    };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let got = talk.client(&pair, &python, &["noted", "full"], true);
    assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    assert_counted(pair.board(Side::Client), Reason::NoDescriptor, "no room for a descriptor");
}

/// An engine that has stopped: who was promised SMC in its name cannot go on.
#[test]
fn an_engine_that_says_nothing_is_a_reset() {
    let (Some(python), Some(pair)) = (python(), Pair::with(Hosts::new(), &ALL_BY_SMC)) else {
        return;
    };
    let talk = Talk::serve(&pair, &python, "echo", true);
    pair.engines[1].signal(libc::SIGSTOP);
    let got = talk.client(&pair, &python, &["noted", "cut"], true);
    pair.engines[1].signal(libc::SIGCONT);
    assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    assert_counted(pair.board(Side::Client), Reason::EngineSilent, "a stopped engine");
}

#[test]
fn a_long_stream_to_the_server() {
    // Its answer is a number and a digest.
    talk("digest", &["digest", &large().to_string()], [65, large()]);
}

#[test]
fn a_long_stream_to_the_client() {
    talk("source", &["source", &large().to_string()], [large(), 12]);
}

#[test]
fn the_server_speaks_first() {
    talk("greet", &["greet"], [20, 6]);
}

#[test]
fn a_reset_is_a_reset() {
    talk("reset", &["reset"], [0, 1]);
}

/// A program that only writes learns that its peer has closed, as over TCP, whatever it has left unread.
#[test]
fn who_only_writes_learns_that_the_server_has_closed() {
    talk("bye", &["heedless"], [10, 5]);
}

#[test]
fn names_are_those_of_the_real_connection() {
    talk("names", &["names"], [20, 0]);
}

#[test]
fn a_slow_reader_gets_all() {
    talk("slow", &["slow", "1000000"], [7, 1_000_000]);
}

#[test]
fn an_urgent_byte_each_way() {
    talk("urgent", &["urgent"], [1001; 2]);
}

#[test]
fn an_urgent_byte_each_way_where_the_peer_declines() {
    let (Some(python), Some(pair)) = (python(), Pair::with(Hosts::new(), &ALL_BY_SMC)) else {
        return;
    };
    let mut command = pair.plain(Side::Server, &built("shunt"));
    let got = outcome(command.args(["engine", "set", "eid=SOMEBODY.ELSE"]), LIMIT);
    assert!(got.ok(), "{got:?}");
    let talk = Talk::serve(&pair, &python, "urgent", true);
    let got = talk.client(&pair, &python, &["urgent"], true);
    assert!(got.ok(), "{got:?}");
    for side in [Side::Server, Side::Client] {
        let by_smc = pair.carried(side);
        assert!((pair.declined(side), by_smc) == (1, 0), "{:#}", pair.status(side));
    }
}

#[test]
fn three_hundred_at_a_time() {
    // Three rounds of eight bytes each; of so many at a time some may be late.
    talk("echo", &["many", "300"], [250 * 24; 2]);
}

/// With engines that have memory for 64 buffers of the usual size: they get smaller.
#[test]
fn where_memory_is_short_there_is_some_for_all() {
    let Some(python) = python() else { return };
    let settings = [&ALL_BY_SMC[..], &["--memory-max", "16M", "--reuse-buffers", "off"]].concat();
    let Some(pair) = Pair::with(Hosts::new(), &settings) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    for round in 1..=2 {
        let carried = pair.carried(Side::Server);
        let got = talk.client(&pair, &python, &["many", "200"], true);
        assert!(got.ok(), "{got:?}");
        let carried = pair.carried(Side::Server) - carried;
        assert!(carried >= 150, "round {round}: {carried} of 200");
    }
}

/// More connections than the engine of one host has memory for: the peers of the others, who were promised SMC in the TCP
/// handshake, are told, and all of them go on.
#[test]
fn those_for_whom_there_is_no_memory_stay_on_tcp() {
    let Some(python) = python() else { return };
    let small = [&ALL_BY_SMC[..], &["--memory-max", "16M", "--reuse-buffers", "off"]].concat();
    for side in [Side::Server, Side::Client] {
        let mut settings = [&ALL_BY_SMC[..]; 2];
        settings[usize::from(side == Side::Client)] = &small;
        let Some(pair) = Pair::of(Kind::default(), Hosts::new(), settings) else { return };
        let talk = Talk::serve(&pair, &python, "echo", true);
        let got = talk.client(&pair, &python, &["held", "450"], true);
        assert!(got.ok(), "{got:?}");
        let carried = pair.carried(side);
        assert!((200..450).contains(&carried), "{carried} of 450 by SMC-R");
        assert_counted(pair.board(side), Reason::NoMemory, "no memory");
        let status = pair.status(side);
        let [stayed, reset] = ["no_memory_total", "no_memory_reset_total"].map(|n| &status[n]);
        assert_eq!((stayed.as_u64(), reset.as_u64()), (Some(450 - carried), Some(0)), "{side:?}");
        eventually("they have given back what they had", || {
            let carried = pair.carried(side);
            let got = talk.client(&pair, &python, &["many", "20"], true);
            assert!(got.ok(), "{got:?}");
            pair.carried(side) == carried + 20
        });
    }
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
fn stat_says_of_a_server_that_it_was_there_before_the_engine() {
    let (Some(python), Some(mut pair)) = (python(), Pair::new()) else { return };
    pair.engines.remove(0);
    let talk = Talk::serve(&pair, &python, "echo", true);
    let again = pair.engine(Side::Server, &ALL_BY_SMC);
    pair.engines.insert(0, again);
    let going = Going::start(&pair, &talk, &python, &["8"]);
    let stat = pair.stat(Side::Server);
    let all = stat["connections"].as_array().unwrap();
    let found = all.iter().find(|c| c["state"] == "ACTIVE").unwrap_or_else(|| panic!("{stat}"));
    assert_eq!(found["mode"], "TCP", "{stat}");
    assert_said_of(found, Reason::NotAsked);
    going.end(&pair);
}

/// Datagrams that a host has sent, and that the other one has: with engines of which none meets another, RoCEv2.
fn datagrams(pair: &Pair) -> [u64; 2] {
    [Side::Server, Side::Client].map(|side| {
        let mut command = pair.plain(side, Path::new("cat"));
        let got = outcome(command.arg("/proc/net/snmp"), LIMIT);
        assert!(got.ok(), "{got:?}");
        let mut lines = got.out.lines().filter_map(|line| line.strip_prefix("Udp:"));
        let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
        let mut both = names.split_whitespace().zip(numbers.split_whitespace());
        both.find(|(name, _)| *name == "OutDatagrams").unwrap().1.parse().unwrap()
    })
}

#[test]
fn peers_without_shunt_are_on_tcp() {
    let (Some(python), Some(pair)) = (python(), Pair::with(Hosts::new(), &ALL_BY_SMC)) else {
        return;
    };
    for (server, client) in [(true, false), (false, true), (false, false)] {
        let talk = Talk::serve(&pair, &python, "echo", server);
        let words = ["noted", "echo", "1,1000,300000"];
        let got = talk.client(&pair, &python, &words, client);
        assert!(got.ok(), "server under Shunt {server}, client {client}: {got:?}");
    }
    for side in [Side::Server, Side::Client] {
        assert_eq!(pair.attached(side, "python3"), 0, "{}", pair.stat(side));
    }
    assert_counted(pair.board(Side::Client), Reason::PeerNotSmc, "a server without Shunt");
    assert_eq!(datagrams(&pair), [0, 0]);
    // As is seen where both have it.
    let talk = Talk::serve(&pair, &python, "echo", true);
    eventually("both ends are carried", || {
        let got = talk.client(&pair, &python, &["echo", "1,1000"], true);
        assert!(got.ok(), "{got:?}");
        [Side::Server, Side::Client].iter().all(|side| pair.attached(*side, "python3") > 0)
    });
    assert!(datagrams(&pair).iter().all(|count| *count > 0), "{:?}", datagrams(&pair));
}

/// Both programs are reset, each for a reason of its own, and neither waits for a time to pass: the one whose engine
/// has died while nothing comes from the other host, and the other before its engine has missed an answer long enough
/// to give the link up.
#[track_caller]
fn killed(dying: Side, kind: Kind) {
    let pair = || Pair::of(kind, Hosts::new(), [&ALL_BY_SMC; 2]);
    let (Some(python), Some(mut pair)) = (python(), pair()) else { return };
    let other = if dying == Side::Client { Side::Server } else { Side::Client };
    let engine = |side| usize::from(side == Side::Client);
    let talk = Talk::serve(&pair, &python, "ends", true);
    let going = Going::start(&pair, &talk, &python, &["8"]);
    eventually("it goes by SMC-R", || pair.carried(other) > 0);
    pair.engines[engine(other)].signal(libc::SIGSTOP);
    pair.engines[engine(dying)].signal(libc::SIGKILL);
    let reset = "ended ConnectionResetError";
    let going = match dying {
        Side::Server => {
            assert_eq!(talk.says(), reset);
            Some(going)
        }
        Side::Client => {
            assert_eq!(going.ended(), [reset]);
            None
        }
    };
    pair.engines[engine(other)].signal(libc::SIGCONT);
    match going {
        Some(going) => assert_eq!(going.ended(), [reset]),
        None => assert_eq!(talk.says(), reset),
    }
    assert_eq!(pair.sum(other, "links_lost"), 0, "{:#}", pair.status(other));
    // The next one goes by TCP, whatever the engine that is left would do.
    let carried = pair.carried(other);
    let got = talk.client(&pair, &python, &["echo", "1,70000"], true);
    assert!(got.ok(), "{got:?}");
    assert_eq!((talk.says().as_str(), pair.carried(other)), ("ended well", carried));
    // And with a new engine, by SMC-R again.
    let again = pair.engine(dying, &ALL_BY_SMC);
    pair.engines[engine(dying)] = again;
    eventually("SMC-R again", || {
        let got = talk.client(&pair, &python, &["echo", "1,70000"], true);
        assert!(got.ok(), "{got:?}\n{:#}\n{:#}", pair.status(other), pair.status(dying));
        pair.carried(dying) > 0 && pair.carried(other) > carried
    });
}

#[test]
fn the_clients_engine_that_is_killed_is_a_reset_and_then_tcp() {
    killed(Side::Client, Kind::default());
}

#[test]
fn the_servers_engine_that_is_killed_is_a_reset_and_then_tcp() {
    killed(Side::Server, Kind::default());
}

/// An engine of another network namespace of this machine, whose group has our programs in it, does not promise for them
/// what nobody is there to keep.
#[test]
fn an_engine_that_is_killed_beside_another_one_leaves_tcp() {
    killed(Side::Server, Kind { one_group: true, ..Kind::default() });
}

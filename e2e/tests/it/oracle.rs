//! Each case of the oracle, at both ends of the connection: what a program sees under Shunt is what
//! it sees on kernel TCP.
//!
//! `SHUNT_TEST_PLAIN=1` compares kernel TCP with itself, which shows that a case is stable.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use e2e::run::{BoardDir, Outcome, Under};
use e2e::run::{command, differences, library, noted, outcome, plain_only};

/// Far longer than any case takes; the guests' own limits are shorter.
const LIMIT: Duration = Duration::from_secs(40);

/// Which ends run under Shunt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Neither,
    Both,
    /// The same, and who naps does so for a second: what nobody ends a nap for is late then.
    Napping,
    Ours,
    Peers,
}

/// In place of an address: each end has a network namespace of its own, with a cable in between.
const APART: &str = "apart";

fn run(case: &str, role: &str, host: &str, ends: Ends) -> Outcome {
    let before: &[&str] = if host == APART { &["unshare", "-n"] } else { &[] };
    run_after(before, case, role, host, ends)
}

/// [`run`], the guest being started by these words.
fn run_after(before: &[&str], case: &str, role: &str, host: &str, ends: Ends) -> Outcome {
    let words: Vec<&str> =
        before.iter().copied().chain([env!("CARGO_BIN_EXE_oracle-guest")]).collect();
    let dir = BoardDir::new();
    let both = matches!(ends, Ends::Both | Ends::Napping);
    let ours = both || ends == Ends::Ours;
    let under = if ours { Under::Shunt(&dir) } else { Under::Tcp };
    let mut command = command(words[0], under);
    command.args(&words[1..]);
    if host == APART {
        command.env("E2E_HOST", "10.77.0.1").env("E2E_THERE", "10.77.0.2");
        std::fs::write(dir.path().join("all-namespaces"), "").unwrap();
    } else {
        command.env("E2E_HOST", host);
    }
    command.args([case, role]).env("SHUNT_DIR", dir.path()).env_remove("E2E_PEER_PRELOAD");
    if both || ends == Ends::Peers {
        command.env("E2E_PEER_PRELOAD", library());
    }
    if both {
        command.env("E2E_ATTACH_BOARD", dir.path());
    }
    if ends == Ends::Napping {
        command.env("SHUNT_NAP_US", "10000000");
    }
    let mut got = outcome(&mut command, LIMIT);
    if got.ok() && both && dir.attached() == 0 && !STAYS_ON_TCP.contains(&case) {
        got.err += "nothing was attached: TCP was compared with TCP\n";
        got.code = NEVER_ATTACHED;
    }
    if !got.ok() && ends != Ends::Neither {
        got.err += &format!("on the board:\n{}", dir.summary());
    }
    got
}

/// In place of the exit code of a case that was right and had nothing in shared memory, though both ends run under
/// Shunt.
const NEVER_ATTACHED: i32 = 99;

/// Cases in which nothing leaves TCP: those without a connection, or without a byte on one, and those of what keeps a
/// connection on TCP from its beginning.
const STAYS_ON_TCP: &[&str] = &[
    // No connection, or none that lives.
    "fresh_socket",
    "idle_listener",
    "connect_refused",
    "connect_to_full_backlog",
    "listener_shut_down",
    "reset_in_accept_queue",
    "eintr_accept_and_connect",
    "exclusive_listener_wakes_one",
    // No byte on it, or one message only.
    "accept_flags",
    "met_after_one_shot",
    "cancel_connect",
    "close_during_connect",
    // Kept on TCP: by a low water mark, an end that was shut first, no second end, bytes that the library has not seen.
    "accept_inherits",
    "shut_rd_first_of_all",
    "connected_to_itself",
    "bytes_taken_past_us",
];

/// What kernel TCP says: asked once for each case, role and address, and once more if that was not the end of it.
fn on_tcp(case: &str, role: &str, host: &str, again: bool) -> Outcome {
    static KNOWN: Mutex<Option<HashMap<String, Outcome>>> = Mutex::new(None);
    let key = format!("{case} {role} {host}");
    let known = || KNOWN.lock().unwrap().as_ref().and_then(|all| all.get(&key)).cloned();
    if let Some(known) = (!again).then(known).flatten() {
        return known;
    }
    let got = run(case, role, host, Ends::Neither);
    KNOWN.lock().unwrap().get_or_insert_default().insert(key, got.clone());
    got
}

/// How often a case has to differ to be one that does. Cases have windows of time: what has to wait waits 80 ms, and
/// what took 40 ms is said to have waited. A machine with other work does not keep them at times, for either side.
const TRIES: u32 = 3;

/// So many cases of a run of all of them may differ once and not again: on a machine that has this run alone to do it was one
/// or none of some two thousand. More are no matter of chance.
const NOTES_MAX: usize = 12;
/// On an emulated CPU, which is much slower: what has to wait may not have begun to, on either side.
const NOTES_MAX_EMULATED: usize = 100;

/// A case has differed, but not each time.
fn noted_now_and_then(what: &str) {
    static NOTES: AtomicUsize = AtomicUsize::new(0);
    noted(what);
    let notes = NOTES.fetch_add(1, Ordering::Relaxed) + 1;
    let most = if e2e::emulated() { NOTES_MAX_EMULATED } else { NOTES_MAX };
    assert!(notes <= most, "{notes} cases have differed and then not again: {what}");
}

/// Whether one such try is enough: a crash and a hang are not a matter of a window of time, and a wake-up that is lost now
/// and then must not pass because it is not lost each time. Cases wait ten seconds for what their peer says.
fn is_final(outcome: &Outcome) -> bool {
    outcome.code > 128 || outcome.hung.is_some() || outcome.err.contains("the peer does not answer")
}

/// What a case says may be the same although a wake-up was lost: a wait that has a limit looks once more when that is
/// over. Cases have limits of a second and more where they should not come to their end.
fn is_late(got: &Outcome, tcp: &Outcome) -> bool {
    const LATE: Duration = Duration::from_millis(900);
    got.took > tcp.took + LATE
}

/// In what a case differs from kernel TCP; `None`: it does not, in one of so many tries.
fn difference_of(case: &str, role: &str, host: &str, ends: Ends) -> Option<String> {
    let mut seen = String::new();
    for n in 0..TRIES {
        let tcp = on_tcp(case, role, host, n > 0);
        let got = run(case, role, host, ends);
        // One that was killed took as long as the kernel takes for that, a dump of its memory included.
        let late = got.ok() && is_late(&got, &tcp);
        if tcp.ok() && got.ok() && got.out == tcp.out && !late {
            pass_on_skips(case, &tcp);
            if n > 0 {
                noted_now_and_then(&format!(
                    "{case} {role}, {ends:?}: differed, but not again:\n{seen}"
                ));
            }
            return None;
        }
        let mut wrong = differences(&tcp.out, &got.out);
        for (which, outcome) in [("on kernel TCP", &tcp), ("under Shunt", &got)] {
            if !outcome.ok() {
                let hung = outcome.hung.clone().unwrap_or_default();
                wrong += &format!("  {which}: exit {}\n{}{hung}\n", outcome.code, outcome.err);
            }
        }
        if late {
            wrong += &format!("  {LATE_WORDS} {:?}, on kernel TCP {:?}\n", got.took, tcp.took);
        }
        if is_known(case, &wrong) {
            if !seen.is_empty() {
                noted_now_and_then(&format!(
                    "{case} {role}, {ends:?}: differed in another way, but not again:\n{seen}"
                ));
            }
            return Some(wrong);
        }
        // Mostly the same each time.
        if !seen.contains(&wrong) {
            seen += &wrong;
        }
        if is_final(&got) || is_final(&tcp) {
            break;
        }
    }
    Some(seen)
}

/// Cases that differ from kernel TCP at present, with the reason, and in what: `docs/conformance.md` lists them for
/// people. They run all the same, and whatever else differs is a failure.
const KNOWN: &[(&str, &str, &[&str])] = &[
    (
        "bad_pointers",
        "a bad buffer is a segmentation fault, not EFAULT: bytes are copied in user space",
        &["    shunt (no line)", "  under Shunt: exit 139"],
    ),
    (
        "exclusive_wakes_one",
        "EPOLLEXCLUSIVE on a connection in shared memory wakes all processes that wait for it",
        &["    shunt some woken: true false true"],
    ),
    (
        "passed_beyond_what_a_socket_holds",
        "decision (ADR 22): what a socket does not surely take ends with a reset, and without a hole",
        &["    shunt the other: 40000 some of it, and ECONNRESET"],
    ),
    (
        "low_water_mark_and_urgent_data",
        "what a peer that is back on TCP has left in its ring is readable below the low water mark, which is the kernel's",
        &["    shunt readable: IN"],
    ),
    (
        "passed_while_shared",
        "decision (ADR 22): who is passed a connection that others share, and that its peer has closed, finds a reset; \
         what was unread is left to those others",
        &["    shunt the other: some of it, and ECONNRESET", "    shunt child: 0 0"],
    ),
];

/// How a line begins that tells of a case that took too long.
const LATE_WORDS: &str = "a wait came to its limit: it took";

/// The lines of a difference that say what there was, and what each end came to.
fn told(wrong: &str) -> impl Iterator<Item = &str> {
    let heads = ["    shunt ", "  under Shunt: exit", "  on kernel TCP: exit"];
    let is_late = |line: &str| line.trim_start().starts_with(LATE_WORDS);
    let is_told =
        move |line: &&str| heads.iter().any(|head| line.starts_with(head)) || is_late(line);
    wrong.lines().filter(is_told)
}

/// Whether a case differs just as is known: to try again would only take time.
fn is_known(case: &str, wrong: &str) -> bool {
    let known = KNOWN.iter().find(|(known, ..)| *known == case);
    known.is_some_and(|(_, _, lines)| told(wrong).all(|line| lines.contains(&line)))
}

fn check(module: &str, case: &str) {
    // The watchdog looks at what is in shared memory, and at nothing else; and sets that are shared are our own end's, of
    // which the kernel knows all where the connection is not attached.
    let both =
        e2e::quick() || std::env::var_os("SHUNT_WATCHDOG").is_some() || module == "shared_sets";
    let ways = if both { &WAYS[..2] } else { WAYS };
    check_at(case, "127.0.0.1", ways);
}

fn check_at(case: &str, host: &str, ways: &[(&str, Ends)]) {
    let wrong = differences_of(case, host, ways);
    match KNOWN.iter().find(|(known, ..)| *known == case) {
        Some((_, why, lines)) if !wrong.is_empty() => {
            let else_wrong = told(&wrong).find(|line| !lines.contains(line));
            assert_eq!(else_wrong, None, "differs in another way than is known:\n{wrong}");
            e2e::run::skipped(&format!("{case}: {why}"));
        }
        _ => assert!(wrong.is_empty(), "differs from kernel TCP:\n{wrong}"),
    }
}

/// Which end we are, and who runs under Shunt; the first two for those in a hurry.
const WAYS: &[(&str, Ends)] = &[
    ("client", Ends::Both),
    ("server", Ends::Both),
    ("client", Ends::Ours),
    ("server", Ends::Ours),
    ("client", Ends::Peers),
    ("server", Ends::Peers),
];

/// A guest that could not do a part of its case has said so.
fn pass_on_skips(case: &str, got: &Outcome) {
    let skips = got.err.lines().filter_map(|line| line.strip_prefix("skipped: "));
    skips.for_each(|why| e2e::run::skipped(&format!("{case}: {why}")));
}

fn differences_of(case: &str, host: &str, ways: &[(&str, Ends)]) -> String {
    let mut wrong = String::new();
    for &(role, ends) in ways {
        let ends = if plain_only() { Ends::Neither } else { ends };
        if let Some(difference) = difference_of(case, role, host, ends) {
            wrong += &format!("{case} {role}, under Shunt: {ends:?}\n{difference}");
        }
    }
    wrong
}

macro_rules! tests {
    ($($module:ident { $($case:ident)* })*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                super::check(stringify!($module), stringify!($case));
            })*
        })*
    };
}

e2e::oracle_cases!(tests);

/// In a network where servers grant fast open, which by default they do not: bytes come with the handshake.
#[test]
fn fast_open_where_it_is_granted() {
    const GRANT: &str =
        "ip link set lo up && echo 3 > /proc/sys/net/ipv4/tcp_fastopen && exec \"$@\"";
    const BEFORE: &[&str] = &["unshare", "-n", "sh", "-c", GRANT, "sh"];
    if e2e::calls::geteuid() != 0 || e2e::installed("unshare").is_none() {
        return e2e::run::skipped("a network of its own needs root and unshare");
    }
    let shunt = if plain_only() { Ends::Neither } else { Ends::Both };
    for role in ["client", "server"] {
        let [tcp, got] = [Ends::Neither, shunt]
            .map(|ends| run_after(BEFORE, "fast_open", role, "127.0.0.1", ends));
        assert!(tcp.ok() && got.ok(), "{}{:?}{}{:?}", tcp.err, tcp.hung, got.err, got.hung);
        assert_eq!(differences(&tcp.out, &got.out), "", "{role}");
    }
}

mod napping {
    //! Calls that wait for one connection alone, and nap for ten seconds where it is ten milliseconds by default, and event
    //! loops, which nap for a fifth of that: who ends a nap does so at once, and a nap ends as a sleep in the kernel would.

    /// `pthread_cancel` ends no nap, only what comes after it; who dies without a word, as who was made by libc's own
    /// `daemon` does for us, is found to be dead only then; and of a pipe or a timer only then is heard beside it.
    const LATE_BY_A_NAP: &[&str] = &[
        "cancel_blocked_recv",
        "cancel_full_send",
        "cancel_readiness",
        "daemon_goes_on",
        "mixed_epoll",
        "mixed_poll",
    ];

    const WAYS: &[(&str, super::Ends)] = &[("client", super::Ends::Napping)];

    fn check(case: &str) {
        if !LATE_BY_A_NAP.contains(&case) {
            super::check_at(case, "127.0.0.1", WAYS);
        }
    }

    macro_rules! pick {
        (signals { $($case:ident)* }) => { pick!(@ signals $($case)*); };
        (waits { $($case:ident)* }) => { pick!(@ waits $($case)*); };
        (threads { $($case:ident)* }) => { pick!(@ threads $($case)*); };
        (processes { $($case:ident)* }) => { pick!(@ processes $($case)*); };
        (readiness { $($case:ident)* }) => { pick!(@ readiness $($case)*); };
        (shared_sets { $($case:ident)* }) => { pick!(@ shared_sets $($case)*); };
        (late { $($case:ident)* }) => { pick!(@ late $($case)*); };
        (seams { $($case:ident)* }) => { pick!(@ seams $($case)*); };
        (jumps { $($case:ident)* }) => { pick!(@ jumps $($case)*); };
        (forking { $($case:ident)* }) => { pick!(@ forking $($case)*); };
        (early { $($case:ident)* }) => { pick!(@ early $($case)*); };
        (@ $module:ident $($case:ident)*) => {
            mod $module {
                $(#[test]
                fn $case() {
                    super::check(stringify!($case));
                })*
            }
        };
        ($other:ident { $($case:ident)* }) => {};
    }

    macro_rules! tests {
        ($($module:ident { $($case:ident)* })*) => { $(pick!($module { $($case)* });)* };
    }

    e2e::oracle_cases!(tests);
}

mod apart {
    //! Each end has a network namespace of its own, as two containers have, and both have one board.

    use super::{APART, Ends};

    const WAYS: &[(&str, Ends)] = &[("client", Ends::Both), ("server", Ends::Both)];

    fn check(case: &str, ways: usize) {
        if e2e::calls::geteuid() != 0 || e2e::installed("unshare").is_none() {
            return e2e::run::skipped("networks of their own need root and unshare");
        }
        super::check_at(case, APART, &WAYS[..ways]);
    }

    macro_rules! pick {
        (early { $($case:ident)* }) => { pick!(@ early 2 $($case)*); };
        (states { $($case:ident)* }) => { pick!(@ states 2 $($case)*); };
        (transfer { $($case:ident)* }) => { pick!(@ transfer 1 $($case)*); };
        (processes { $($case:ident)* }) => { pick!(@ processes 1 $($case)*); };
        (@ $module:ident $ways:literal $($case:ident)*) => {
            mod $module {
                $(#[test]
                fn $case() {
                    super::check(stringify!($case), $ways);
                })*
            }
        };
        ($other:ident { $($case:ident)* }) => {};
    }

    macro_rules! tests {
        ($($module:ident { $($case:ident)* })*) => { $(pick!($module { $($case)* });)* };
    }

    e2e::oracle_cases!(tests);
}

mod over_v6 {
    //! What depends on how the ends of a connection are named and found, and what programs do most, over ::1; the first
    //! with one end alone under Shunt as well.

    macro_rules! pick {
        (states { $($case:ident)* }) => { pick!(@ states 6 $($case)*); };
        (early { $($case:ident)* }) => { pick!(@ early 2 $($case)*); };
        (transfer { $($case:ident)* }) => { pick!(@ transfer 2 $($case)*); };
        (readiness { $($case:ident)* }) => { pick!(@ readiness 2 $($case)*); };
        (processes { $($case:ident)* }) => { pick!(@ processes 2 $($case)*); };
        (@ $module:ident $ways:literal $($case:ident)*) => {
            mod $module {
                $(#[test]
                fn $case() {
                    let ways = if e2e::quick() { 2 } else { $ways };
                    super::super::check_at(stringify!($case), "::1", &super::super::WAYS[..ways]);
                })*
            }
        };
        ($other:ident { $($case:ident)* }) => {};
    }

    macro_rules! tests {
        ($($module:ident { $($case:ident)* })*) => { $(pick!($module { $($case)* });)* };
    }

    e2e::oracle_cases!(tests);
}

//! A process of the same user that writes nonsense where it may write: into its own halves, and into
//! the tables of the board.
//!
//! The test plays that process by writing to the file. The victim is a server that talks to it and
//! to honest clients: it must not crash and not hang, an honest client must get its bytes, and what
//! is left of the attacked connection must be a clear end.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::mem::offset_of;
use std::process::{ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use e2e::board::Board;
use e2e::differential::Random;
use e2e::run::{BoardDir, Guest, Under, command, outcome};
use sys::abi::{
    BUCKETS, EXTENTS, FILE_BYTES, HALF_BYTES, Half, Header, Loc, OFFERS_AT, OWNER_HALVES,
    OWNERS_AT, PORTS_AT, SLOTS_AT, Slot,
};

const GUEST: &str = env!("CARGO_BIN_EXE_load-guest");
const ENDLESS: u64 = 1 << 50;
const STYLES: usize = 5;
/// More than anybody takes who does not hang; a guest that waits in vain says so after 10 s.
const LIMIT: Duration = Duration::from_secs(30);

/// The server under attack.
struct Victim {
    guest: Guest,
    port: u16,
    /// A line for each connection that it begins to serve, and one for each that has ended.
    begun: Receiver<String>,
    lines: Receiver<String>,
}

impl Victim {
    fn start(dir: &BoardDir) -> Self {
        let mut command = command(GUEST, Under::Shunt(dir));
        let mut guest = Guest::start(command.arg("serve").stdout(Stdio::piped()));
        let mut out = BufReader::new(guest.take_stdout().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        let port = first.trim().strip_prefix("port ").unwrap().parse().unwrap();
        let (begun, lines) = lines_of(out);
        Self { guest, port, begun, lines }
    }

    #[track_caller]
    fn assert_alive(&mut self, after: &str) {
        let ended = self.guest.ended();
        assert!(ended.is_none(), "the victim died ({ended:?}) of: {after}");
    }

    /// A transfer of an honest client: exact.
    #[track_caller]
    fn assert_serves(&mut self, dir: &BoardDir, after: &str) {
        let done = "sent=1048576 received=1048576 status=done";
        let got = transfer(self.port, 3, 1 << 20, dir);
        let line = self.lines.recv_timeout(LIMIT);
        assert!(
            got == done && line == Ok(format!("ended {done}")),
            "after {after}, an honest client says {got:?}, the victim {line:?}:\n{}",
            dir.summary()
        );
    }
}

fn lines_of(mut out: BufReader<ChildStdout>) -> (Receiver<String>, Receiver<String>) {
    let (begun, begins) = channel();
    let (ended, ends) = channel();
    thread::spawn(move || {
        let mut line = String::new();
        while out.read_line(&mut line).is_ok_and(|n| n > 0) {
            let to = if line.starts_with("ended") { &ended } else { &begun };
            if to.send(line.trim().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    (begins, ends)
}

fn words(port: u16, style: usize, len: u64) -> Vec<String> {
    vec!["transfer".into(), port.to_string(), style.to_string(), "77".into(), len.to_string()]
}

fn transfer(port: u16, style: usize, len: u64, dir: &BoardDir) -> String {
    let mut command = command(GUEST, Under::Shunt(dir));
    let got = outcome(command.args(words(port, style, len)), LIMIT);
    let trouble = got.hung.unwrap_or_default();
    format!("{}{}{trouble}", got.out.trim(), got.err)
}

/// Words of a half that its owner writes and its peer reads.
const HALF_WORDS: &[(&str, usize)] = &[
    ("tail", offset_of!(Half, tail)),
    ("loc", offset_of!(Half, loc)),
    ("flags", offset_of!(Half, flags)),
    ("bells", offset_of!(Half, bells)),
    ("room_wait", offset_of!(Half, room_wait)),
    ("up_at", offset_of!(Half, up_at)),
    ("down_at", offset_of!(Half, down_at)),
    ("head", offset_of!(Half, head)),
    ("wait", offset_of!(Half, wait)),
    ("state", offset_of!(Half, state)),
    ("generation", offset_of!(Half, generation)),
    ("peer", offset_of!(Half, peer)),
    ("slot", offset_of!(Half, slot)),
];

/// Values that break what is not checked.
fn nasty(random: &mut Random, board: &Board, at: usize) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << 63,
        // A little more, a little less, a ring more.
        3 => board.word64(at).wrapping_add(1 + random.below(100)),
        4 => board.word64(at).wrapping_sub(1 + random.below(100)),
        5 => board.word64(at).wrapping_add(1 << (12 + random.below(12))),
        // Shaped like a place of a ring, somewhere in the file or beyond.
        6 => 1 << 40 | random.below(8) << 32 | random.below(1 << 21),
        _ => random.next(),
    }
}

/// Has a client stream to and from the victim, and scribbles over the client's halves with
/// `scribble` until it is killed. Meanwhile an honest client is served, which must not notice.
fn attack(
    dir: &BoardDir,
    victim: &mut Victim,
    style: usize,
    what: &str,
    mut scribble: impl FnMut(&Board, usize) + Send,
) {
    let mut command = command(GUEST, Under::Shunt(dir));
    // It stays when its connection has ended, so that its halves are nobody else's.
    command.args(words(victim.port, style, ENDLESS)).arg("and stay").stdin(Stdio::piped());
    let mut attacker = Guest::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let _until_the_end = attacker.take_stdin();
    let halves = halves_of(dir, attacker.pid());
    let board = Board::find(dir.path(), true).unwrap().unwrap();
    let done = AtomicBool::new(false);
    let port = victim.port;
    thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            let least = Duration::from_millis(if e2e::quick() { 30 } else { 120 });
            while start.elapsed() < least || !done.load(Ordering::Relaxed) {
                for half in &halves {
                    scribble(&board, *half);
                }
                thread::sleep(Duration::from_micros(200));
            }
        });
        let end = EndAttack(&done);
        let got = transfer(port, (style + 1) % STYLES, HONEST, dir);
        assert_eq!(got, HONEST_DONE, "beside {what}:\n{}", dir.summary());
        drop(end);
    });
    victim.assert_alive(what);
    attacker.kill_all();
    // The connection ends soon after its other end is dead, whatever it says: the honest one and the attacked one, the
    // latter perhaps first.
    let (mut honest, mut said) = (false, Vec::new());
    for _ in 0..2 {
        let line = victim.lines.recv_timeout(LIMIT);
        victim.assert_alive(what);
        let line = assert_ended(line, &format!("in the attacked connection after: {what}"));
        if !honest && line.strip_prefix("ended ") == Some(HONEST_DONE) {
            honest = true;
        } else {
            assert_cut_off(&line, what);
        }
        said.push(line);
    }
    assert!(honest, "the victim has not served the honest client beside {what}: {said:?}");
}

/// What an honest client moves beside an attack, bytes each way, and what both ends say then.
const HONEST: u64 = 1 << 20;
const HONEST_DONE: &str = "sent=1048576 received=1048576 status=done";

/// How the victim may say that the attacked connection ended: one of TCP's ends, or with bytes of the attacker's own
/// ring that its client never sent. (Whoever may write a ring may send what he likes.)
#[track_caller]
fn assert_cut_off(line: &str, what: &str) {
    let known = ["status=end", "ECONNRESET", "EPIPE"];
    let told = known.iter().any(|end| line.ends_with(end)) || line.contains("status=wrong after");
    assert!(told, "the attacked connection after: {what}: {line:?}");
}

/// How an attack on the table of offers may leave a connection that was caught in it: with all of its bytes or one of
/// TCP's ends.
#[track_caller]
fn assert_told(line: &str, who: &str) {
    let known = ["status=done", "status=end", "ECONNRESET", "EPIPE"];
    assert!(known.iter().any(|end| line.ends_with(end)), "{who}: {line:?}");
}

/// What an attack on a table may do to connections of others that begin meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// Nothing: all of their bytes go both ways.
    None,
    /// The table brings ends together: they may end, or stay on TCP.
    Ended,
    /// The same, and what was there is put back: a client may believe for ever that nobody has taken its offer, and
    /// wait. (SECURITY.md says so.) Few do: see [`STALLS_MAX`].
    Stalled,
}

/// So many of the clients in such an attack may wait for ever. About one in 200 does, of whose offer the table says in the
/// moment of its last look that it has not been taken.
const STALLS_MAX: usize = 3;

/// An honest client in such an attack. No byte that arrives may be wrong: not one of another connection, and no
/// doorbell.
/// What it said, and whether it was left waiting.
fn caught_transfer(
    port: u16,
    style: usize,
    what: &str,
    dir: &BoardDir,
    harm: Harm,
) -> (String, bool) {
    const STALLED: Duration = Duration::from_secs(5);
    let limit = if harm == Harm::Stalled { STALLED } else { LIMIT };
    let mut command = command(GUEST, Under::Shunt(dir));
    let got = outcome(command.args(words(port, style, 1 << 20)), limit);
    let said = got.out.trim();
    let stalled = got.hung.is_some() || said.ends_with("status=nothing ready for 10 s");
    if !(stalled && harm == Harm::Stalled) {
        assert_told(said, &format!("an honest client, {what}: {} {:?}", got.err, got.hung));
    }
    (said.to_owned(), stalled)
}

/// The victim must have noticed the end of a connection, and not have given up waiting for something to happen.
#[track_caller]
fn assert_ended(line: Result<String, RecvTimeoutError>, what: &str) -> String {
    let line = line.unwrap_or_else(|_| panic!("the victim hangs {what}"));
    assert!(!line.contains("nothing ready"), "the victim hangs {what}: {line}");
    line
}

/// The halves of a process, once it has attached a connection.
#[track_caller]
fn halves_of(dir: &BoardDir, pid: i32) -> Vec<usize> {
    let start = Instant::now();
    loop {
        if let Some(board) = dir.board() {
            let mine = |p: &&e2e::board::Process| i64::from(p.pid) == i64::from(pid) && p.live;
            if let Some(process) = board.processes().iter().find(mine) {
                let halves = board.halves_of(process.slot);
                if !halves.is_empty() {
                    return halves;
                }
            }
        }
        assert!(start.elapsed() < LIMIT, "not attached:\n{}", dir.summary());
        thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process would go to rings or halves that are not its own by this value of a word, which was `own` when its
/// connection began.
fn leads_to_others(word: &str, own: u64, value: u64) -> bool {
    match word {
        "loc" => {
            let extent = |word| Loc::parse(word).map(|loc| loc.block >> Loc::ORDER_MAX);
            extent(value).is_some_and(|there| extent(own) != Some(there))
        }
        // The lower half: a number, plus one. Numbers beyond the file lead nowhere.
        "peer" => {
            let number = |word: u64| word & u64::from(u32::MAX);
            let there = number(value);
            there != number(own) && (1..=(FILE_BYTES / HALF_BYTES) as u64).contains(&there)
        }
        _ => false,
    }
}

/// One word at a time, in each style of the victim.
fn attack_word(name: &str) {
    let at = HALF_WORDS.iter().find(|(n, _)| *n == name).unwrap().1;
    let dir = BoardDir::new();
    let mut victim = Victim::start(&dir);
    let mut random = Random::new(at as u64);
    for style in 0..STYLES {
        let what = format!("{name} of its own half, victim's style {style}");
        // What the word of a half said before it was scribbled over.
        let mut begun = HashMap::new();
        attack(&dir, &mut victim, style, &what, |board, half| {
            let own = *begun.entry(half).or_insert_with(|| board.word64(half + at));
            let value = nasty(&mut random, board, half + at);
            // A process goes where its own words lead, and so would write into rings and halves of others: whoever writes
            // such words can do that himself, and no victim could know (SECURITY.md).
            if !leads_to_others(name, own, value) {
                board.scribble(half + at, &value.to_le_bytes()).unwrap();
            }
        });
        victim.assert_serves(&dir, &what);
    }
}

macro_rules! each_word {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            attack_word(stringify!($name));
        })*

        #[test]
        fn no_word_is_forgotten() {
            let tested = [$(stringify!($name)),*];
            for (name, _) in HALF_WORDS {
                assert!(tested.contains(name), "{name} is not attacked");
            }
        }
    };
}
each_word! {
    tail loc flags bells room_wait up_at down_at head wait state generation peer slot
}

/// All of a half, with anything.
#[test]
fn whole_half() {
    let dir = BoardDir::new();
    let mut victim = Victim::start(&dir);
    let mut random = Random::new(99);
    for round in 0..STYLES * 3 {
        let what = format!("its whole half, round {round}");
        attack(&dir, &mut victim, round % STYLES, &what, |board, half| {
            let bytes: Vec<u8> =
                (0..HALF_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
            board.scribble(half, &bytes).unwrap();
        });
        victim.assert_serves(&dir, &what);
    }
}

/// Scribbles over a table of the board all the time, while honest clients come and go. They are served all the same,
/// but for `harm`: every process of the user may write it (see SECURITY.md), so one of them can keep the others from
/// meeting. Then the victim must live, and serve once the attack is over.
fn attack_table(what: &str, harm: Harm, mut scribble: impl FnMut(&Board, &mut Random) + Send) {
    let dir = BoardDir::new();
    let mut victim = Victim::start(&dir);
    victim.assert_serves(&dir, "nothing");
    let board = Board::find(dir.path(), true).unwrap().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(123);
            while !done.load(Ordering::Relaxed) {
                scribble(&board, &mut random);
                thread::sleep(Duration::from_micros(50));
            }
        });
        let end = EndAttack(&done);
        let mut stalls = Vec::new();
        for round in 0..if e2e::quick() { 4 } else { 25 } {
            victim.assert_alive(what);
            if harm == Harm::None {
                victim.assert_serves(&dir, &format!("{what}, round {round}"));
            } else {
                while victim.begun.try_recv().is_ok() {}
                let what = format!("{what}, round {round}");
                let style = round % STYLES;
                let (client, stalled) = caught_transfer(victim.port, style, &what, &dir, harm);
                let what = format!("{what}, its client having said {client:?}");
                stalls.extend(stalled.then_some(round));
                assert!(stalls.len() <= STALLS_MAX, "stalled in rounds {stalls:?}, {what}");
                let begun = victim.begun.recv_timeout(LIMIT);
                assert!(begun.is_ok(), "the victim does not accept, {what}");
                // Its client has ended, or was killed.
                let ended = victim.lines.recv_timeout(LIMIT);
                assert_told(&assert_ended(ended, &what), &format!("the victim, {what}"));
            }
        }
        drop(end);
    });
    victim.assert_alive(what);
    victim.assert_serves(&dir, what);
}

/// Ends the attack also when an assertion fails, so that the failure is seen.
struct EndAttack<'a>(&'a AtomicBool);

impl Drop for EndAttack<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn garbage_offers() {
    attack_table("garbage in the offers", Harm::Ended, |board, random| {
        for _ in 0..2000 {
            let bucket = usize::try_from(random.below(BUCKETS as u64)).unwrap();
            let value = match random.below(3) {
                0 => random.next(),
                // Looks like a half in the data region, taken by another.
                1 => random.below(1 << 25) | random.below(1 << 25) << 32,
                _ => random.below(1 << 25),
            };
            board.scribble(OFFERS_AT + bucket * 8, &value.to_le_bytes()).unwrap();
        }
    });
}

#[test]
fn stale_offers() {
    let mut kept: Vec<u8> = Vec::new();
    attack_table("old offers put back", Harm::Stalled, move |board, random| {
        let now = board.bytes(OFFERS_AT, BUCKETS * 8);
        if now.iter().any(|b| *b != 0) && random.once_in(4) {
            // Keep every offer that was ever seen.
            kept.resize(now.len(), 0);
            for (old, new) in kept.chunks_exact_mut(8).zip(now.chunks_exact(8)) {
                if new.iter().any(|b| *b != 0) {
                    old.copy_from_slice(new);
                }
            }
        }
        if !kept.is_empty() {
            board.scribble(OFFERS_AT, &kept).unwrap();
        }
    });
}

/// An offer of an attached half is copied to where another connection will look, and now and then back to where it was
/// before it was taken, in the very moment in which its client looks for the last time before it sleeps.
#[test]
fn misplaced_offers() {
    attack_table("every half offered everywhere", Harm::Stalled, |board, random| {
        let slots: Vec<u32> = board.processes().iter().map(|p| p.slot).collect();
        let halves: Vec<usize> = slots.iter().flat_map(|slot| board.halves_of(*slot)).collect();
        if halves.is_empty() {
            return;
        }
        let mut table = board.bytes(OFFERS_AT, BUCKETS * 8);
        for bucket in table.chunks_exact_mut(8) {
            let half = (*random.pick(&halves) / HALF_BYTES + 1) as u64;
            bucket.copy_from_slice(&half.to_le_bytes());
        }
        board.scribble(OFFERS_AT, &table).unwrap();
    });
}

#[test]
fn garbage_ports() {
    attack_table("garbage in the port table", Harm::None, |board, random| {
        let mut table = Vec::with_capacity(65536 * 4);
        while table.len() < 65536 * 4 {
            let most = if random.once_in(2) { 1100 } else { u32::MAX };
            table.extend_from_slice(&random.below32(most).to_le_bytes());
        }
        board.scribble(PORTS_AT, &table).unwrap();
    });
}

/// Slots that nobody uses pretend to be processes.
#[test]
fn garbage_slots() {
    attack_table("processes that are none", Harm::None, |board, random| {
        for slot in 200..240usize {
            let at = SLOTS_AT + slot * size_of::<Slot>();
            let bytes: Vec<u8> = (0..256).flat_map(|_| random.next().to_le_bytes()).collect();
            board.scribble(at, &bytes).unwrap();
            let state = random.below32(4).to_le_bytes();
            board.scribble(at + offset_of!(Slot, state), &state).unwrap();
        }
        board.scribble(offset_of!(Header, slots_used), &1024u32.to_le_bytes()).unwrap();
    });
}

/// Who owns which memory is written over: connections may be cut or stay on TCP, but the victim
/// lives, and bytes that arrive are right.
#[test]
fn garbage_owners() {
    let dir = BoardDir::new();
    let mut victim = Victim::start(&dir);
    victim.assert_serves(&dir, "nothing");
    let board = Board::find(dir.path(), true).unwrap().unwrap();
    let mut random = Random::new(5);
    for round in 0..20 {
        let mut command = command(GUEST, Under::Shunt(&dir));
        command.args(words(victim.port, round % STYLES, 16 << 20)).stdout(Stdio::piped());
        let mut client = Guest::start(&mut command);
        for _ in 0..30 {
            for extent in 16..64.min(EXTENTS) {
                let kind = if random.once_in(2) { OWNER_HALVES } else { 0 };
                let owner = random.below32(5) | kind;
                board.scribble(OWNERS_AT + extent * 4, &owner.to_le_bytes()).unwrap();
            }
            thread::sleep(Duration::from_millis(1));
        }
        let _ = client.wait(LIMIT);
        let mut said = String::new();
        BufReader::new(client.take_stdout().unwrap()).read_line(&mut said).unwrap();
        assert!(!said.contains("status=wrong"), "wrong bytes: {said}");
        drop(client);
        victim.assert_alive("garbage in the owner table");
        let line = victim.lines.recv_timeout(LIMIT);
        let line = assert_ended(line, "after garbage in the owner table");
        assert!(!line.contains("status=wrong"), "wrong bytes: {line}");
    }
}

/// A board whose head is nonsense: new processes stay on TCP.
#[test]
fn garbage_head() {
    for (what, at, value) in [
        ("no magic", offset_of!(Header, magic), 0u64),
        ("other magic", offset_of!(Header, magic), 0x1234),
        ("another version", offset_of!(Header, version), 99),
        ("another user and version", offset_of!(Header, version), u64::MAX),
        ("another namespace", offset_of!(Header, netns), 7),
        ("no memory used", offset_of!(Header, slots_used), 0),
        ("more slots than there are", offset_of!(Header, slots_used), u64::MAX),
    ] {
        let dir = BoardDir::new();
        let mut victim = Victim::start(&dir);
        victim.assert_serves(&dir, "nothing");
        let board = Board::find(dir.path(), true).unwrap().unwrap();
        board.scribble(at, &value.to_le_bytes()).unwrap();
        let got = transfer(victim.port, 1, 1 << 20, &dir);
        assert!(got.contains("sent=1048576 received=1048576 status=done"), "{what}: {got}");
        let _ = victim.lines.recv_timeout(LIMIT);
        victim.assert_alive(what);
    }
}

/// Files that are no boards, or not ours to trust.
#[test]
fn board_that_is_not_ours() {
    use std::os::unix::fs::PermissionsExt;
    let name = {
        let dir = BoardDir::new();
        let mut victim = Victim::start(&dir);
        victim.assert_serves(&dir, "nothing");
        let mut names = std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name());
        names.find(|n| n.to_string_lossy().starts_with("board")).unwrap()
    };
    for what in ["empty", "text", "open to others", "a symbolic link", "a directory"] {
        let dir = BoardDir::new();
        let path = dir.path().join(&name);
        match what {
            "text" => std::fs::write(&path, "this is no board").unwrap(),
            "a symbolic link" => std::os::unix::fs::symlink("/etc/passwd", &path).unwrap(),
            "a directory" => std::fs::create_dir(&path).unwrap(),
            _ => std::fs::write(&path, "").unwrap(),
        }
        if what == "open to others" {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        }
        let mut command = command(GUEST, Under::Shunt(&dir));
        let mut server = Guest::start(command.arg("serve").stdout(Stdio::piped()));
        let mut first = String::new();
        let mut out = BufReader::new(server.take_stdout().unwrap());
        out.read_line(&mut first).unwrap();
        let port = first.trim().strip_prefix("port ").unwrap().parse().unwrap();
        let got = transfer(port, 2, 1 << 20, &dir);
        assert!(got.contains("sent=1048576 received=1048576 status=done"), "{what}: {got}");
    }
}

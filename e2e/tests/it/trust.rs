//! Whom the library trusts: processes of one user in one network namespace, and nobody else. Others are
//! served by TCP, and what they put in the way does no more than that.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::calls::geteuid;
use e2e::run::{BoardDir, Guest, Outcome, copy_program, library, outcome, plain_only, skipped};
use e2e::{built, installed};

const GUEST: &str = env!("CARGO_BIN_EXE_load-guest");
const LIMIT: Duration = Duration::from_secs(120);
pub(crate) const LEN: u64 = 24 << 20;

/// Two users whom no system has.
pub(crate) const A: u32 = 61_001;
pub(crate) const B: u32 = 61_002;

/// A command without a word of ours in its environment.
fn without_ours(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SHUNT_") {
            command.env_remove(name);
        }
    }
    command.env_remove("LD_PRELOAD");
    command
}

/// The guest and the library where every user can read them.
pub(crate) struct Public {
    dir: PathBuf,
}

impl Public {
    pub(crate) fn new(name: &str) -> Self {
        // Not in /dev/shm, from which nothing may be run in many containers.
        let dir = std::env::temp_dir().join(format!("shunt-public-{}-{name}", std::process::id()));
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        fs::create_dir(&dir).unwrap();
        open(&dir).unwrap();
        for (from, to) in [(PathBuf::from(GUEST), "guest"), (library(), "library.so")] {
            copy_program(from, dir.join(to));
            open(&dir.join(to)).unwrap();
        }
        Self { dir }
    }

    /// `shunt` and the library that it finds beside itself.
    fn add_shunt(&self) {
        for (from, to) in [(built("shunt"), "shunt"), (library(), "libshunt_preload.so")] {
            copy_program(from, self.dir.join(to));
            fs::set_permissions(self.dir.join(to), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// The guest as this user, under Shunt, after the words of `before`; `board`: not the usual one.
    pub(crate) fn guest(&self, user: u32, board: Option<&Path>, before: &[&str]) -> Command {
        self.guest_of(user, "--clear-groups", board, before)
    }

    /// The same, with these groups beside the user's own.
    pub(crate) fn guest_of(
        &self,
        user: u32,
        groups: &str,
        board: Option<&Path>,
        before: &[&str],
    ) -> Command {
        let mut command = self.program_of(user, groups, board, before);
        command.arg(self.dir.join("guest"));
        command
    }

    /// What to type before a program of this user, under Shunt, after the words of `before`.
    pub(crate) fn program_of(
        &self,
        user: u32,
        groups: &str,
        board: Option<&Path>,
        before: &[&str],
    ) -> Command {
        let user = user.to_string();
        let mut words = before.to_vec();
        words.extend(["setpriv", "--reuid", &user, "--regid", &user, groups, "env"]);
        let mut command = without_ours(words[0]);
        command.args(&words[1..]);
        if !plain_only() {
            // By `env`, so that only the guest is under Shunt.
            command.arg(format!("LD_PRELOAD={}", self.dir.join("library.so").display()));
            if let Some(board) = board {
                command.arg(format!("SHUNT_DIR={}", board.display()));
            }
        }
        command
    }
}

impl Drop for Public {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A board directory of this user's.
fn board_of(user: u32) -> BoardDir {
    let dir = BoardDir::new();
    chown(dir.path(), Some(user), Some(user)).unwrap();
    dir
}

/// Whether we can be other users here.
pub(crate) fn can_be_others() -> bool {
    let can = geteuid() == 0 && installed("setpriv").is_some();
    if !can {
        skipped("processes of two users need root and setpriv");
    }
    can
}

/// A server as `serving`, and a client as `asking` that moves streams both ways: what the client said.
pub(crate) fn moved(mut serving: Command, mut asking: Command) -> (Outcome, String) {
    let mut server =
        Guest::start(serving.arg("serve").stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut lines = BufReader::new(server.take_stdout().unwrap());
    let mut errors = server.take_stderr().unwrap();
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    let port = first.trim().strip_prefix("port ").unwrap_or_else(|| panic!("{first:?}")).to_owned();
    asking.args(["transfer", &port, "0", "11", &LEN.to_string()]);
    let got = outcome(&mut asking, LIMIT);
    server.kill_all();
    let mut said = String::new();
    let _ = std::io::Read::read_to_string(&mut errors, &mut said);
    let want = format!("sent={LEN} received={LEN} status=done");
    assert_eq!(got.out.trim(), want, "{}{:?}\n{said}", got.err, got.hung);
    (got, said)
}

/// A directory under the name of another user's board, taken away in the end.
struct Squatted(PathBuf);

impl Drop for Squatted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// B makes the directory of A's board before A does, in each way that could look inviting.
#[test]
fn another_user_was_there_first() {
    if !can_be_others() {
        return;
    }
    let public = Public::new("first");
    let usual = PathBuf::from(format!("/dev/shm/shunt-{A}"));
    // To be sure that A would use it.
    {
        let _gone = Squatted(usual.clone());
        moved(public.guest(A, None, &[]), public.guest(A, None, &[]));
        let used = fs::read_dir(&usual).is_ok_and(|mut entries| entries.next().is_some());
        assert!(used || plain_only(), "A has no board in {}", usual.display());
    }
    for what in ["closed", "open to all", "a link to a directory of A"] {
        let theirs = board_of(A);
        let _gone = Squatted(usual.clone());
        if what.starts_with("a link") {
            symlink(theirs.path(), &usual).unwrap();
        } else {
            fs::create_dir(&usual).unwrap();
            let mode = if what == "closed" { 0o700 } else { 0o777 };
            fs::set_permissions(&usual, fs::Permissions::from_mode(mode)).unwrap();
            chown(&usual, Some(B), Some(B)).unwrap();
        }
        let (client, server) = moved(public.guest(A, None, &[]), public.guest(A, None, &[]));
        for said in [&client.err, &server] {
            let words = ["belongs to another user", "is not a directory"];
            let is_it = |line: &&str| words.iter().any(|words| line.contains(words));
            let lines = said.lines().filter(is_it);
            assert!(lines.count() == 1 || plain_only(), "{what}: said once: {said:?}");
        }
        let entries = fs::read_dir(&usual).unwrap().count();
        assert_eq!(entries, 0, "{what}: A has put something where B can reach it");
    }
}

/// Each has a board of its own, and a connection between them is TCP.
#[test]
fn users_do_not_meet() {
    if !can_be_others() {
        return;
    }
    let public = Public::new("meet");
    let guest = |user, board: &BoardDir| public.guest(user, Some(board.path()), &[]);
    {
        let a = board_of(A);
        moved(guest(A, &a), guest(A, &a));
        assert!(a.attached() >= 2 || plain_only(), "A does not meet itself:\n{}", a.summary());
    }
    // Each has a board of its own, or B points at A's, or root at another's.
    for [(server, of), (client, at)] in
        [[(A, A), (B, B)], [(B, B), (A, A)], [(A, A), (B, A)], [(A, A), (0, A)], [(0, B), (A, A)]]
    {
        let (a, b) = (board_of(A), board_of(B));
        let board = |of| if of == A { &a } else { &b };
        moved(guest(server, board(of)), guest(client, board(at)));
        let attached = [a.attached(), b.attached()];
        assert_eq!(attached, [0, 0], "{server} and {client}\n{}{}", a.summary(), b.summary());
    }
}

/// B may write A's board, because A's directory was open for a moment: the owner of the socket decides.
#[test]
fn another_user_on_the_same_board() {
    if !can_be_others() {
        return;
    }
    let public = Public::new("board");
    let a = board_of(A);
    let guest = |user| public.guest(user, Some(a.path()), &[]);
    moved(guest(A), guest(A));
    let attached = a.attached();
    // As wide as can be: B opens the file, and owns the directory.
    for entry in fs::read_dir(a.path()).unwrap().flatten() {
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o666)).unwrap();
    }
    chown(a.path(), Some(B), Some(B)).unwrap();
    moved(guest(B), guest(B));
    let (client, said) = moved(guest(A), guest(B));
    for said in [said, client.err] {
        assert!(said.contains("staying on TCP") || plain_only(), "{said}");
    }
    assert!(a.attached() <= attached, "{}", a.summary());
}

/// A server and a client on one host that this shell makes: `before` is what makes it.
fn in_a_host_of_its_own(before: &[&str], at: &Public, board: &BoardDir, port: &str) -> Outcome {
    // What an earlier one has said is no sign that this one listens.
    let script = "rm -f \"$2\"; ip link set lo up || exit 42; \"$0\" serve > \"$2\" & \
        while ! grep -q port \"$2\" 2>/dev/null; do sleep 0.05; done; \
        exec \"$0\" transfer $1 0 11 $3";
    let said = board.path().join(format!("said-{port}-{}", before.len()));
    let mut command = Command::new(before[0]);
    command.args(&before[1..]).env_remove("LD_PRELOAD");
    command.args(["env", &format!("E2E_PORT={port}")]);
    if !plain_only() {
        command.arg(format!("LD_PRELOAD={}", at.dir.join("library.so").display()));
        command.arg(format!("SHUNT_DIR={}", board.path().display()));
    }
    command
        .args(["sh", "-c", script])
        .arg(at.dir.join("guest"))
        .arg(port)
        .arg(&said)
        .arg(LEN.to_string());
    outcome(&mut command, LIMIT)
}

#[track_caller]
fn assert_moved(got: &Outcome, board: &BoardDir) {
    let want = format!("sent={LEN} received={LEN} status=done");
    assert_eq!(got.out.trim(), want, "{}{:?}\n{}", got.err, got.hung, board.summary());
}

/// Whether these words make a host here.
fn possible(words: &[&str]) -> bool {
    let done =
        Command::new(words[0]).args(&words[1..]).args(["ip", "link", "set", "lo", "up"]).output();
    let can = done.as_ref().is_ok_and(|done| done.status.success());
    if !can {
        let why =
            done.map_or_else(|e| e.to_string(), |o| String::from_utf8_lossy(&o.stderr).into());
        skipped(&format!("`{}` makes no host here: {}", words.join(" "), why.trim()));
    }
    can
}

/// `shunt run` itself by a user without rights, beside nothing but its library.
#[test]
fn shunt_run_without_rights() {
    if !can_be_others() {
        return;
    }
    let (public, board) = (Public::new("run"), board_of(A));
    public.add_shunt();
    let user = A.to_string();
    let run = || {
        let mut command = without_ours("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.arg(public.dir.join("shunt")).env("SHUNT_DIR", board.path());
        let off = if plain_only() { &["--off"][..] } else { &[] };
        command.arg("run").args(off).arg("--").arg(public.dir.join("guest"));
        command
    };
    let (got, _) = moved(run(), run());
    assert_eq!(got.err, "", "a word that nobody asked for");
    assert!(board.attached() >= 2 || plain_only(), "stayed on TCP:\n{}", board.summary());
}

/// Two network namespaces with the same addresses and ports, one directory: a board for each.
#[test]
fn network_namespaces_have_boards_of_their_own() {
    let host = if geteuid() == 0 { &["unshare", "-n"][..] } else { &["unshare", "-Urn"] };
    if !possible(host) {
        return;
    }
    let (public, dir) = (Public::new("hosts"), BoardDir::new());
    for _ in 0..2 {
        assert_moved(&in_a_host_of_its_own(host, &public, &dir, "7001"), &dir);
    }
    let boards = fs::read_dir(dir.path()).unwrap().flatten();
    let boards = boards.filter(|e| e.file_name().to_string_lossy().starts_with("board")).count();
    assert_eq!(boards, if plain_only() { 0 } else { 2 });
}

/// In a container whose shared memory has as much room as Docker gives: a server and a client that `shunt run` starts,
/// and what `shunt stat` says of them while the server lives.
const IN_A_CONTAINER: &str =
    "ip link set lo up && mount -t tmpfs -o size=64m,mode=1777 shm /dev/shm || exit 42
    cd \"$0\"; ./shunt run $1 -- ./guest serve > out/said &
    while ! grep -q port out/said 2>/dev/null; do sleep 0.05; done
    ./shunt run $1 -- ./guest transfer 7002 0 11 $2 || exit
    # The server may be a little behind.
    for turn in $(seq 100); do ./shunt stat | grep -q ' SHM ' || break; sleep 0.05; done
    ./shunt stat --all --json > out/stat; stat -fc '%b %S' /dev/shm > out/room";

/// What a container is made of, by a user without rights: namespaces for users, processes, files and the
/// network.
#[test]
fn a_container_without_rights() {
    let user = A.to_string();
    let mut host = Vec::new();
    if geteuid() == 0 {
        // Who has rights gives them up.
        if !can_be_others() {
            return;
        }
        host.extend(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
    }
    host.extend(["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount"]);
    host.extend(["--mount-proc", "--net"]);
    if !possible(&host) {
        return;
    }
    let public = Public::new("container");
    public.add_shunt();
    let out = public.dir.join("out");
    fs::create_dir(&out).unwrap();
    if geteuid() == 0 {
        chown(&out, Some(A), Some(A)).unwrap();
    }
    let mut command = without_ours(host[0]);
    command.args(&host[1..]).args(["env", "E2E_PORT=7002", "sh", "-c", IN_A_CONTAINER]);
    let off = if plain_only() { "--off" } else { "" };
    let got = outcome(command.arg(&public.dir).arg(off).arg(LEN.to_string()), LIMIT);
    assert!(got.ok(), "{}{}{:?}", got.out, got.err, got.hung);
    assert_eq!(got.out.trim(), format!("sent={LEN} received={LEN} status=done"), "{}", got.err);
    assert_eq!(fs::read_to_string(out.join("room")).unwrap().trim(), "16384 4096");
    if plain_only() {
        return;
    }
    let stat = fs::read_to_string(out.join("stat")).unwrap();
    let stat: serde_json::Value = serde_json::from_str(&stat).unwrap();
    let server = &stat["processes"][0];
    for (field, least) in [("attached_total", 1), ("bytes_rx", LEN), ("bytes_tx", LEN)] {
        assert!(server[field].as_u64() >= Some(least), "stayed on TCP: {field} {stat:#}");
    }
}

//! `shunt serve` as people run it: users, shares, statistics, reload and the end, with Samba's client.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use e2e::built;

use crate::programs::need;
use crate::serve_safety::port_of;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A directory of its own, removed in the end.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shunt-serve-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("files")).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn word(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// `shunt` with nothing of this machine's own settings.
    pub(crate) fn shunt(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(built("shunt"));
        command.args(arguments).env("XDG_RUNTIME_DIR", &self.0).env("XDG_CONFIG_HOME", &self.0);
        command.env("HOME", &self.0).env("SHUNT_CONFIG", self.path("config.toml"));
        command.env_remove("RUNTIME_DIRECTORY").current_dir(&self.0);
        command
    }

    /// Runs it to its end, with `input` on standard input.
    pub(crate) fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.shunt(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // One that refuses to start does not read.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    pub(crate) fn done(&self, arguments: &[&str], input: &str) -> String {
        let output = self.run(arguments, input);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {words}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server that runs.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let port = port_of(&line).unwrap_or_else(|| panic!("the server says {line:?}"));
        Self { child, port }
    }

    /// What smbclient says when it does `commands`, and whether it was content.
    pub(crate) fn client(&self, user: &str, share: &str, commands: &str) -> (bool, String) {
        let output = Command::new("smbclient")
            .args(["-p", &self.port.to_string(), "-U", user, "-m", "SMB3"])
            .args([&format!("//127.0.0.1/{share}"), "-c", commands])
            .output()
            .unwrap();
        let both = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&both).into_owned())
    }

    /// Waits for its end; its exit status.
    fn ended(mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes the configuration: a share for all, one for bob, who may only read.
pub(crate) fn configure(place: &Place, more: &str) {
    let (files, control, users) = (place.word("files"), place.word("control"), place.word("users"));
    let text = format!(
        "[serve]\nlisten = \"127.0.0.1:0\"\nusers = \"{users}\"\ncontrol = \"{control}\"\n\
         [serve.share.all]\npath = \"{files}\"\n\
         [serve.share.bobs]\npath = \"{files}\"\nro = true\nusers = [\"bob\"]\n{more}"
    );
    fs::write(place.path("config.toml"), text).unwrap();
}

#[track_caller]
pub(crate) fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn shares_are_listed_for_who_may_ask() {
    need!("smbclient");
    let place = Place::new("listed");
    let users = place.word("users");
    place.done(&["serve", "user", "add", "ann", "--users", &users], "first\n");
    let last = format!(
        "[serve.share.last]\npath = \"{}\"\ncomment = \"an old one, too\"\n",
        place.word("files")
    );
    configure(&place, &last);
    let list = |server: &Server, who: &[&str]| {
        let mut command = Command::new("smbclient");
        command.args(["-m", "SMB3", "-p", &server.port.to_string(), "-L", "127.0.0.1"]);
        let output = command.args(who).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let shares = |said: &str| -> Vec<String> {
        let name = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        said.lines().filter(|line| line.contains(" Disk ")).map(name).collect()
    };
    for (more, nobody) in [(&[][..], false), (&["--anonymous"], true), (&["--guest"], true)] {
        let server = Server::start(place.shunt(&[&["serve"], more].concat()));
        let said = list(&server, &["-U", "ann%first"]);
        assert_eq!(shares(&said), ["all", "bobs", "last"], "{said}");
        assert!(said.contains("Disk      an old one, too"), "{said}");
        let said = list(&server, &["-N"]);
        assert_eq!(!shares(&said).is_empty(), nobody, "{more:?}: {said}");
        assert_eq!(said.contains("NT_STATUS_ACCESS_DENIED"), !nobody, "{more:?}: {said}");
    }
}

#[test]
fn names_of_users_are_told_to_who_has_said_who_it_is() {
    need!("rpcclient");
    let place = Place::new("names");
    let users = place.word("users");
    place.done(&["serve", "user", "add", "ann", "--users", &users], "first\n");
    let numbered = ["serve", "user", "add", "zoe", "--uid", "3999999", "--users", &users];
    place.done(&numbered, "third\n");
    configure(&place, "");
    let server = Server::start(place.shunt(&["serve", "--anonymous"]));
    let ask = |who: &[&str], what: &str| {
        let mut command = Command::new("rpcclient");
        command.args(["-p", &server.port.to_string(), "127.0.0.1", "-c", what]);
        let output = command.args(who).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let ann = ["-U", "ann%first"];
    let said = ask(&ann, "lookupsids S-1-22-1-0 S-1-22-2-0 S-1-5-32-545 S-1-1-0 S-1-5-21-1-2-3-4");
    contains(
        &said,
        &[
            "S-1-22-1-0 Unix User\\root (1)",
            "S-1-22-2-0 Unix Group\\root (2)",
            "S-1-5-32-545 BUILTIN\\Users (4)",
            "S-1-1-0 \\Everyone (5)",
            "S-1-5-21-1-2-3-4 *unknown*\\*unknown* (8)",
        ],
    );
    let said = ask(&ann, "lookupnames root everyone");
    contains(&said, &["root S-1-22-1-0 (User: 1)", "everyone S-1-1-0 (Well-known Group: 5)"]);
    contains(&ask(&ann, "lookupsids S-1-22-1-3999999"), &["Unix User\\zoe (1)"]);
    contains(&ask(&ann, "lookupnames ZOE"), &["ZOE S-1-22-1-3999999 (User: 1)"]);
    contains(&ask(&ann, "lookupnames surely-nobody"), &["NT_STATUS_NONE_MAPPED"]);
    contains(&ask(&ann, "lsaquery"), &["Domain Name: WORKGROUP"]);
    contains(&ask(&ann, "getusername"), &["Account Name: ann"]);
    contains(&ask(&["-N", "-U", "%"], "lookupsids S-1-22-1-0"), &["NT_STATUS_ACCESS_DENIED"]);
}

#[test]
fn users_and_shares_are_what_was_said() {
    need!("smbclient");
    let place = Place::new("said");
    let (users, control) = (place.word("users"), place.word("control"));
    let of = ["--users", &*users];
    place.done(&["serve", "user", "add", "ann", of[0], of[1]], "first\n");
    place.done(&["serve", "user", "add", "bob", of[0], of[1]], "second\n");
    configure(&place, "");
    let server = Server::start(place.shunt(&["serve"]));

    let sent: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(place.path("sent"), &sent).unwrap();
    let there = format!("put {} file; get file {}", place.word("sent"), place.word("back"));
    let (good, said) = server.client("ann%first", "all", &there);
    assert!(good, "{said}");
    assert!(fs::read(place.path("files/file")).unwrap() == sent, "what was put is another");
    assert!(fs::read(place.path("back")).unwrap() == sent, "what was got is another");

    for (user, share, commands, why) in [
        ("ann%second", "all", "ls", "LOGON_FAILURE"),
        ("carl%first", "all", "ls", "LOGON_FAILURE"),
        ("ann%first", "bobs", "ls", "ACCESS_DENIED"),
        ("bob%second", "bobs", "rm file", "ACCESS_DENIED"),
        ("ann%first", "none", "ls", "BAD_NETWORK_NAME"),
    ] {
        let (_, said) = server.client(user, share, commands);
        contains(&said, &[why]);
    }
    assert!(place.path("files/file").exists(), "a share to read only was written to");
    let (good, said) = server.client("bob%second", "bobs", "ls");
    assert!(good && said.contains("file"), "{said}");

    let to = ["--control", &*control];
    let json = place.done(&["stat", "smb", "--json", to[0], to[1]], "");
    let stat: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(stat["bytes_written"], sent.len());
    assert_eq!(stat["bytes_read"], sent.len());
    let commands = stat["commands"].as_array().unwrap();
    let named = |name: &str| commands.iter().find(|c| c["command"] == name).unwrap();
    assert!(named("create")["served"].as_u64().unwrap() >= 3);
    assert!(named("session_setup")["failed"].as_u64().unwrap() >= 2);
    assert!(named("read")["p50_ns"].as_u64().unwrap() > 0);
    contains(
        &place.done(&["stat", "smb", to[0], to[1]], ""),
        &[
            "shares: all, bobs, IPC$",
            "create",
            "logons: user 5; refused: unknown user 1, wrong password 1\n",
            "in use: 0 of 4096 connections, 0 of 16384 sessions, 0 of ",
        ],
    );

    place.done(&["serve", "user", "disable", "ann", of[0], of[1]], "");
    let files = place.word("files");
    configure(&place, &format!("[serve.share.new]\npath = \"{files}\"\n"));
    place.done(&["serve", "reload", to[0], to[1]], "");
    contains(&server.client("ann%first", "all", "ls").1, &["ACCOUNT_DISABLED"]);
    let (good, said) = server.client("bob%second", "new", "ls");
    assert!(good, "{said}");
    // What cannot be understood is refused as a whole.
    place.done(&["serve", "user", "disable", "bob", of[0], of[1]], "");
    for (bad, why) in [
        ("path = \"/\"\ncolour = \"red\"\n", "no such option"),
        ("path = \"/,red\"\n", "no such option: red"),
        ("path = \"here\"\n", "absolute path"),
        ("path =\n", "config.toml:12"),
    ] {
        configure(&place, &format!("[serve.share.bad]\n{bad}"));
        let refused = place.run(&["serve", "reload", to[0], to[1]], "");
        contains(&String::from_utf8_lossy(&refused.stderr), &[why]);
        assert!(server.client("bob%second", "new", "ls").0, "what was refused changed something");
    }

    place.done(&["serve", "stop", to[0], to[1]], "");
    assert_eq!(server.ended(), Some(0));
    assert!(!place.path("control").exists(), "its socket is left");
    let nobody = place.run(&["stat", "smb", to[0], to[1]], "");
    contains(&String::from_utf8_lossy(&nobody.stderr), &["no server answers"]);
}

/// More than one of what may be more than one, and nothing of it in a file but users.
#[test]
fn all_that_the_command_line_says_is_served() {
    need!("smbclient");
    let place = Place::new("words");
    let (files, users) = (place.word("files"), place.word("users"));
    fs::write(place.path("config.toml"), "").unwrap();
    fs::create_dir(place.path("alone")).unwrap();
    fs::write(place.path("alone/known"), "").unwrap();
    fs::write(place.path("sent"), "there and back").unwrap();
    place.done(&["serve", "user", "add", "carl", "--users", &users], "third\n");
    // Free a moment ago.
    let other = TcpListener::bind("[::1]:0").or_else(|_| TcpListener::bind("127.0.0.2:0"));
    let other = other.unwrap().local_addr().unwrap();
    let mut command = place.shunt(&["serve", "--listen", &other.to_string()]);
    command.args(["--listen", "127.0.0.1:0", "--users", &users, "--guest"]);
    command.args(["--user", "ann:first", "--user", "bob:second", "--control", "none"]);
    command.args(["--share", &format!("kept={files}"), "--share", &format!("shown={files},ro")]);
    let server = Server::start({
        command.arg(place.path("alone"));
        command
    });
    let (good, said) =
        server.client("ann%first", "kept", &format!("put {} file", place.word("sent")));
    assert!(good, "{said}");
    let mut there = Command::new("smbclient");
    there.args(["-I", &other.ip().to_string(), "-p", &other.port().to_string(), "-m", "SMB3"]);
    there.args(["-U", "bob%second", "//server/shown", "-c"]);
    let got = there.arg(format!("get file {}", place.word("back"))).output().unwrap();
    assert!(got.status.success(), "{other}: {got:?}");
    assert_eq!(fs::read_to_string(place.path("back")).unwrap(), "there and back");
    let (good, said) = server.client("carl%third", "shown", "ls");
    assert!(good && said.contains("  file "), "{said}");
    contains(&server.client("carl%third", "shown", "rm file").1, &["ACCESS_DENIED"]);
    assert!(place.path("files/file").exists());
    // The folder that is named alone has its own name, and whom nobody knows is a guest.
    let (good, said) = server.client("dora%whatever", "alone", "ls");
    assert!(good && said.contains("  known "), "{said}");
    contains(&server.client("ann%other", "alone", "ls").1, &["LOGON_FAILURE"]);
}

#[test]
fn sessions_of_users_who_are_taken_out_end() {
    need!("smbclient");
    let place = Place::new("out");
    let (users, control) = (place.word("users"), place.word("control"));
    place.done(&["serve", "user", "add", "ann", "--users", &users], "first\n");
    place.done(&["serve", "user", "add", "bob", "--users", &users], "second\n");
    configure(&place, "");
    let server = Server::start(place.shunt(&["serve"]));
    let mut client = Command::new("smbclient")
        .args(["-p", &server.port.to_string(), "-U", "ann%first", "//127.0.0.1/all"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let sessions = || {
        let json = place.done(&["stat", "smb", "--json", "--control", &control], "");
        let stat: serde_json::Value = serde_json::from_str(&json).unwrap();
        stat["sessions"].as_array().unwrap().clone()
    };
    let begun = Instant::now();
    while !sessions().iter().any(|session| session["user"] == "ann") {
        assert!(begun.elapsed() < LIMIT, "the client does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
    let all = sessions();
    assert_eq!(all[0]["dialect"], "3.1.1");
    assert_eq!(all[0]["channels"].as_array().unwrap().len(), 1);
    place.done(&["serve", "user", "delete", "ann", "--users", &users], "");
    place.done(&["serve", "reload", "--control", &control], "");
    e2e::run::until("no session is left", LIMIT, || sessions().is_empty());
    client.stdin.take().unwrap().write_all(b"mkdir mine\n").unwrap();
    client.wait().unwrap();
    assert!(!place.path("files/mine").exists(), "one who is out still writes");
}

/// One in a container, with process numbers of its own, is asked from the host, whose processes have none for it.
#[test]
fn a_server_in_a_container_answers_the_host() {
    let place = Place::new("contained");
    fs::write(place.path("config.toml"), "").unwrap();
    let (control, files) = (place.word("control"), place.word("files"));
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--kill-child"]);
    if !e2e::run::outcome(inside.arg("true"), LIMIT).ok() {
        return e2e::run::skipped("there can be no namespace of process numbers");
    }
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(built("shunt")).env("HOME", &place.0);
    command.args(["serve", "--guest", "--listen", "127.0.0.1:0", "--control", &control, &files]);
    command.env("SHUNT_CONFIG", place.path("config.toml"));
    let server = Server::start(command);
    contains(&place.done(&["stat", "smb", "--control", &control], ""), &["shares: files"]);
    place.done(&["serve", "stop", "--control", &control], "");
    assert_eq!(server.ended(), Some(0));
}

/// Nobody is left for the only share, and then nobody at all.
#[test]
fn who_is_taken_out_is_out_whoever_is_left() {
    need!("smbclient");
    let place = Place::new("last");
    let (users, control) = (place.word("users"), place.word("control"));
    for name in ["ann", "bob"] {
        place.done(&["serve", "user", "add", name, "--users", &users], "first\n");
    }
    fs::write(place.path("config.toml"), "").unwrap();
    let share = format!("a={},users=ann", place.word("files"));
    let common = ["serve", "--listen", "127.0.0.1:0", "--users", &users, "--control", &control];
    let server = Server::start(place.shunt(&[&common[..], &["--share", &share]].concat()));
    assert!(server.client("ann%first", "a", "ls").0);
    for name in ["ann", "bob"] {
        place.done(&["serve", "user", "disable", name, "--users", &users], "");
        place.done(&["serve", "reload", "--control", &control], "");
        let (_, said) = server.client(&format!("{name}%first"), "a", "ls");
        contains(&said, &["ACCOUNT_DISABLED"]);
    }
}

/// A folder that is gone takes its share with it, and nothing else.
#[test]
fn a_folder_that_is_gone_keeps_nobody_in_who_was_taken_out() {
    need!("smbclient");
    let place = Place::new("gone");
    let (users, control) = (place.word("users"), place.word("control"));
    for name in ["ann", "bob"] {
        place.done(&["serve", "user", "add", name, "--users", &users], "first\n");
    }
    let gone = place.path("gone");
    fs::create_dir(&gone).unwrap();
    let share = format!("[serve.share.gone]\npath = \"{}\"\n", gone.display());
    let folder = place.word("gone");
    let alone = ["serve", &*folder];
    for (more, arguments) in [(&*share, &alone[..1]), ("", &alone[..])] {
        configure(&place, more);
        place.done(&["serve", "user", "enable", "ann", "--users", &users], "");
        let server = Server::start(place.shunt(arguments));
        assert!(server.client("ann%first", "gone", "ls").0);
        fs::remove_dir(&gone).unwrap();
        place.done(&["serve", "user", "disable", "ann", "--users", &users], "");
        let said = place.done(&["serve", "reload", "--control", &control], "");
        contains(&said, &["1 gone", "share gone: ", "no such folder; it is left out"]);
        contains(&server.client("ann%first", "all", "ls").1, &["ACCOUNT_DISABLED"]);
        contains(&server.client("bob%first", "gone", "ls").1, &["BAD_NETWORK_NAME"]);
        assert!(server.client("bob%first", "all", "ls").0, "another share went with it");
        fs::create_dir(&gone).unwrap();
        place.done(&["serve", "reload", "--control", &control], "");
        assert!(server.client("bob%first", "gone", "ls").0, "it has come back");
    }
}

/// A mistake in the path of a share costs nobody what is open there, and is told.
#[test]
fn a_share_that_is_to_be_where_no_folder_is_stays_where_it_was() {
    need!("smbclient");
    let place = Place::new("mislaid");
    let (users, control) = (place.word("users"), place.word("control"));
    for name in ["ann", "bob"] {
        place.done(&["serve", "user", "add", name, "--users", &users], "first\n");
    }
    fs::create_dir(place.path("old")).unwrap();
    fs::create_dir(place.path("new")).unwrap();
    fs::write(place.path("old/here"), "before").unwrap();
    fs::write(place.path("new/there"), "after").unwrap();
    fs::write(place.path("plain"), "no folder").unwrap();
    let share = |folder: &str, more: &str| {
        configure(
            &place,
            &format!("[serve.share.mine]\npath = \"{}\"\n{more}", place.word(folder)),
        );
    };
    let reload = || place.done(&["serve", "reload", "--control", &control], "");
    share("old", "");
    let server = Server::start(place.shunt(&["serve"]));
    // Connected to it all the while.
    let (begun, go, got) = (place.word("begun"), place.word("go"), place.word("got"));
    let wait = format!("!for i in $(seq 1200); do [ -e {go} ] && break; sleep 0.05; done");
    let orders = format!("get here {got}-first; !touch {begun}; {wait}; get here {got}");
    let mut open = Command::new("smbclient");
    open.args([
        "-m",
        "SMB3",
        "-p",
        &server.port.to_string(),
        "//127.0.0.1/mine",
        "-U",
        "ann%first",
    ]);
    open.args(["-c", &orders]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut open = open.spawn().unwrap();
    let start = Instant::now();
    while !place.path("begun").exists() && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    for folder in ["gone", "plain", "gone"] {
        share(folder, "");
        let said = reload();
        let path = format!("share mine: {}: ", place.word(folder));
        let stays = format!("; it stays as it was, in {}, until", place.word("old"));
        contains(&said, &["0 shares new or changed, 0 gone", &path, &stays]);
        assert!(!said.contains("nobody"), "{said}");
        assert!(server.client("bob%first", "mine", "ls").1.contains("here"));
    }
    fs::write(&go, "").unwrap();
    open.wait().unwrap();
    let got = fs::read_to_string(&got);
    assert!(
        got.as_deref().is_ok_and(|got| got == "before"),
        "who was connected has lost it: {got:?}"
    );
    share("new", "");
    contains(&reload(), &["1 shares new or changed, 1 gone"]);
    assert!(server.client("ann%first", "mine", "ls").1.contains("there"));
    // Who is new was meant for the other folder.
    place.done(&["serve", "user", "add", "eve", "--users", &users], "first\n");
    share("gone", "");
    contains(&reload(), &["1 gone", "there is no such folder; it is left out"]);
    contains(&server.client("eve%first", "mine", "ls").1, &["BAD_NETWORK_NAME"]);
    share("new", "");
    contains(&reload(), &["1 shares new or changed"]);
    assert!(server.client("eve%first", "mine", "ls").1.contains("there"));
    // Who may use it changes as well: bob is not let in where he was.
    share("gone", "users = [\"ann\"]\n");
    contains(&reload(), &["1 gone", "there is no such folder; it is left out"]);
    for who in ["ann%first", "bob%first"] {
        contains(&server.client(who, "mine", "ls").1, &["BAD_NETWORK_NAME"]);
    }
    // A mistake in one that is not there any more, and one that was never there.
    share("never", "users = [\"ann\"]\n");
    contains(&reload(), &["0 gone", "there is no such folder; it is left out"]);
}

/// One folder that is closed to the server's user keeps nobody from the others.
#[test]
fn a_folder_that_is_closed_leaves_the_others_open() {
    need!("smbclient");
    need!("setpriv");
    if !rustix::process::geteuid().is_root() {
        return e2e::run::skipped("only root makes a folder that another user may not enter");
    }
    let place = Place::new("closed");
    fs::create_dir_all(place.path("above/b")).unwrap();
    fs::create_dir_all(place.path("above/c")).unwrap();
    fs::write(place.path("config.toml"), "").unwrap();
    let (program, control) = (place.path("shunt"), place.word("control"));
    // A copy, since a plain user may not look into our directories.
    e2e::run::copy_program(built("shunt"), &program);
    for folder in ["", "files"] {
        std::os::unix::fs::chown(place.path(folder), Some(65_534), Some(65_534)).unwrap();
    }
    let (a, b) = (format!("a={}", place.word("files")), format!("b={}", place.word("above/b")));
    let start = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        command.args(["serve", "--guest", "--listen", "127.0.0.1:0", "--control", &control]);
        command.args(["--share", &a, "--share", &b]).env("SHUNT_CONFIG", place.path("config.toml"));
        command.env("HOME", place.path("")).env("XDG_CONFIG_HOME", place.path(""));
        command
    };
    for closed in ["above/b", "above"] {
        let mode = |mode| fs::set_permissions(place.path(closed), Permissions::from_mode(mode));
        mode(0o700).unwrap();
        let server = Server::start(start());
        assert!(server.client("guest%", "a", "ls").0 && !server.client("guest%", "b", "ls").0);
        drop(server);
        // One that runs is told so, too.
        mode(0o755).unwrap();
        let server = Server::start(start());
        assert!(server.client("guest%", "b", "ls").0);
        mode(0o700).unwrap();
        place.done(&["serve", "reload", "--control", &control], "");
        assert!(server.client("guest%", "a", "ls").0 && !server.client("guest%", "b", "ls").0);
        mode(0o755).unwrap();
        // Also where a folder is named alone.
        let mut command = start();
        let server = Server::start({
            command.arg(place.path("above/c"));
            command
        });
        mode(0o700).unwrap();
        place.done(&["serve", "reload", "--control", &control], "");
        drop(server);
        mode(0o755).unwrap();
    }
    for folder in ["files", "above"] {
        let path = place.path(folder);
        std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    }
    let all_closed = start().output().unwrap();
    assert_eq!(all_closed.status.code(), Some(1));
    contains(
        &String::from_utf8_lossy(&all_closed.stderr),
        &["share a", "may not enter", "share b"],
    );
}

/// What clients cannot write to, though the share is for writing, is told when it is served, and by who looks before.
#[test]
fn a_folder_that_only_the_file_says_is_for_writing_is_told() {
    need!("setpriv");
    if !rustix::process::geteuid().is_root() {
        return e2e::run::skipped("only root makes a folder that another user may not write to");
    }
    let place = Place::new("unwritable");
    let (program, control, files) =
        (place.path("shunt"), place.word("control"), place.word("files"));
    e2e::run::copy_program(built("shunt"), &program);
    std::os::unix::fs::chown(place.path(""), Some(65_534), Some(65_534)).unwrap();
    let config = place.path("config.toml");
    let write = |more: &str| {
        let text = format!(
            "[serve]\nguest = true\nlisten = \"127.0.0.1:0\"\ncontrol = \"{control}\"\n\
             [serve.share.a]\npath = \"{files}\"\n{more}"
        );
        fs::write(&config, text).unwrap();
    };
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        command.args(arguments).env("SHUNT_CONFIG", &config);
        command.env("HOME", place.path("")).env("XDG_CONFIG_HOME", place.path(""));
        command
    };
    let words = [
        &*format!("share a: {files}: clients can make nothing in it"),
        &*format!("may not write to {files} (of user 0, mode 755): setfacl -m u:65534:rwx {files}"),
        "say ro",
    ];
    write("");
    let check = as_nobody(&["config", "check"]).output().unwrap();
    assert!(check.status.success(), "it is no mistake");
    contains(&String::from_utf8_lossy(&check.stdout), &words);
    let log = place.path("log");
    let mut command = as_nobody(&["serve"]);
    command.stderr(File::create(&log).unwrap());
    let server = Server::start(command);
    contains(&fs::read_to_string(&log).unwrap(), &words);
    let reload = || place.done(&["serve", "reload", "--control", &control], "");
    contains(&reload(), &words);
    write("ro = true\n");
    assert!(!reload().contains("clients can make nothing"), "nobody is meant to");
    drop(server);
    // For root it is the file system that says no.
    write("");
    let script =
        "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" && exec \"$1\" config check";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, &files]).arg(&program).env("SHUNT_CONFIG", &config);
    let check = command.env("HOME", place.path("")).output().unwrap();
    let said = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success(), "{said}{}", String::from_utf8_lossy(&check.stderr));
    contains(&said, &[&format!("{files} is read-only here"), &format!("ReadWritePaths={files}")]);
}

#[test]
fn what_cannot_serve_says_what_to_do() {
    let place = Place::new("cannot");
    fs::write(place.path("config.toml"), "").unwrap();
    fs::write(place.path("open"), "").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let open = place.word("open");
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["nothing to share", "--share NAME=PATH"]),
        (&["--listen", "127.0.0.1:0", "files"], &["nobody could log on", "user add", "--guest"]),
        (
            &["--guest", "--signing", "required", "files"],
            &["nobody could log on", "signing = required keeps them out", "user add"],
        ),
        (&["--guest", "--encryption", "required", "files"], &["encryption = required keeps"]),
        (&["--guest", "--keytab", "/not/there", "--realm-users", "files"], &["keytab"]),
        (&["--guest", "--share", "a=files,guest=off"], &["nobody could use a share", "no guests"]),
        (
            &["--guest", "--share", "a=/not/there"],
            &["share a: /not/there: there is no such folder"],
        ),
        (&["--guest", "files", "--share", "FILES=files"], &["two shares of this name"]),
        (&["--guest", "--listen", &taken, "files"], &["Address already in use", "another server"]),
        (&["--users", &open, "files"], &["others can read", "chmod 600"]),
        (&["--users", "/not/there", "files"], &["/not/there", "user add"]),
        (&["--guest", "--signing", "sometimes", "files"], &["--signing", "required"]),
    ];
    for (arguments, parts) in cases {
        let all: Vec<&str> = ["serve"].iter().chain(*arguments).copied().collect();
        let output = place.run(&all, "");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        contains(&String::from_utf8_lossy(&output.stderr), parts);
    }
    let nobody = place.run(&["stat", "smb", "--port", "1"], "");
    contains(&String::from_utf8_lossy(&nobody.stderr), &["no server answers at", "serve-1"]);
}

/// Somebody else listens and hands the socket over, as systemd does.
#[test]
fn a_socket_that_was_handed_over_is_served() {
    need!("smbclient");
    let activate = need!("systemd-socket-activate");
    let place = Place::new("activated");
    fs::write(place.path("config.toml"), "").unwrap();
    fs::write(place.path("files/x"), "y").unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let shunt = place.shunt(&[]);
    let mut command = Command::new(activate);
    command.args(["-l", &format!("127.0.0.1:{port}")]);
    for (name, value) in shunt.get_envs() {
        let Some(value) = value else { continue };
        command.arg("-E").arg(format!("{}={}", name.to_str().unwrap(), value.to_str().unwrap()));
    }
    command.arg(built("shunt")).args(["serve", "--guest", "--control", &place.word("control")]);
    command.arg(place.path("files")).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server { child: command.spawn().unwrap(), port };
    let begun = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < LIMIT, "nobody listens");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (good, said) = server.client("guest%", "files", "ls");
    assert!(good && said.contains("  x "), "{said}");
    let stop = place.run(&["serve", "stop", "--control", &place.word("control")], "");
    assert!(stop.status.success(), "{}", String::from_utf8_lossy(&stop.stderr));
    let mut out = String::new();
    server.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    contains(&out, &[&format!("ready: 127.0.0.1:{port},")]);
    assert_eq!(server.ended(), Some(0));
}

/// What is in the repository for systemd is what systemd understands.
#[test]
fn units_are_understood() {
    let analyze = need!("systemd-analyze");
    let folder = e2e::workspace_root().join("dist/systemd");
    let place = Place::new("units");
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    // It wants the program to be there.
    let program = built("shunt");
    let service = text("shunt-serve.service").replace("/usr/bin/shunt", program.to_str().unwrap());
    fs::write(place.path("shunt-serve.service"), service).unwrap();
    fs::write(place.path("shunt-serve.socket"), text("shunt-serve.socket")).unwrap();
    let verify = |name: &str| {
        Command::new(&analyze).args(["verify", "--man=no"]).arg(place.path(name)).output().unwrap()
    };
    for name in ["shunt-serve.service", "shunt-serve.socket"] {
        let output = verify(name);
        let words = String::from_utf8_lossy(&output.stderr);
        let about_us: Vec<&str> = words.lines().filter(|l| l.contains("shunt-serve")).collect();
        assert!(about_us.is_empty(), "{name}: {words}");
    }
    // Out of a hundred, of which a service that says nothing has 96.
    let most = "--threshold=30";
    let judged = ["security", "--offline=true", most, "--no-pager"];
    let judged =
        Command::new(&analyze).args(judged).arg(place.path("shunt-serve.service")).output();
    let judged = judged.unwrap();
    if String::from_utf8_lossy(&judged.stderr).contains("unrecognized option") {
        e2e::run::skipped("this systemd-analyze judges no units that do not run");
    } else {
        let words = String::from_utf8_lossy(&judged.stdout);
        let last = words.lines().rfind(|line| line.contains("exposure level"));
        assert!(judged.status.success(), "{last:?}");
    }
}

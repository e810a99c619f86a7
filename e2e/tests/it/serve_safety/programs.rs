//! Other people's clients: Samba's smbclient, the Python libraries impacket, smbprotocol and pysmb, rclone, one for Go,
//! and curl, which is refused.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use e2e::run::{Guest, outcome, skipped};
use e2e::{built, installed};

use super::client::{PASSWORD, SHARE, USER};
use super::{Folder, Server, block};

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than one message.
const LEN: usize = 9_000_001;

/// What is typed, and what must be among what comes; a word with `!` before it must not.
const TYPED: &[(&str, &[&str])] = &[
    ("mkdir d; ls", &["  d   ", " D "]),
    ("cd d; pwd", &["\\d\\", "!NT_STATUS"]),
    ("put there d\\a; ls d\\*", &["9000001", "!NT_STATUS"]),
    ("allinfo d\\a", &["altname:", "attributes: A", "stream: [::$DATA], 9000001 bytes"]),
    ("get d\\a back", &["!NT_STATUS"]),
    ("reget d\\a part", &["!NT_STATUS"]),
    ("rename d\\a d\\b; ls d\\a", &["NT_STATUS_NO_SUCH_FILE"]),
    ("hardlink d\\b d\\c; ls d\\*", &["  b  ", "  c  ", "!NT_STATUS"]),
    ("scopy d\\b d\\e; ls d\\e", &["9000001", "!NT_STATUS"]),
    ("setmode d\\e +r; allinfo d\\e", &["attributes: RA", "!NT_STATUS"]),
    ("del d\\e", &["NT_STATUS_CANNOT_DELETE"]),
    ("setmode d\\e -r; del d\\e; ls d\\e", &["NT_STATUS_NO_SUCH_FILE", "!NT_STATUS_CANNOT_DELETE"]),
    (
        "utimes d\\b 2020:01:02-03:04:05 2020:01:02-03:04:05 2020:01:02-03:04:05 -1; allinfo d\\b",
        &["write_time:     Thu Jan  2 03:04:05 2020", "!NT_STATUS"],
    ),
    ("put note d\\b:stream; allinfo d\\b", &["stream: [:stream:$DATA], 4 bytes"]),
    ("altname d\\b", &["B", "!NT_STATUS"]),
    ("volume; du", &["Volume: |tmp|", "blocks of size", "Total number of bytes"]),
    ("rmdir d", &["NT_STATUS_DIRECTORY_NOT_EMPTY"]),
    ("mkdir d", &["NT_STATUS_OBJECT_NAME_COLLISION"]),
    ("get nothing", &["NT_STATUS_OBJECT_NAME_NOT_FOUND"]),
    ("cd nowhere", &["NT_STATUS_OBJECT_NAME_NOT_FOUND"]),
    ("mkdir x\\y\\z", &["NT_STATUS_OBJECT_PATH_NOT_FOUND"]),
    ("prompt; mput there*; ls there", &["9000001", "!NT_STATUS"]),
    ("prompt; recurse; mget d", &["!NT_STATUS"]),
    ("tar c out.tar d", &["!NT_STATUS"]),
    ("deltree d; ls d", &["NT_STATUS_NO_SUCH_FILE"]),
    ("tar x out.tar; ls d\\*", &["  b  ", "!NT_STATUS"]),
    ("wdel 0 there; ls there", &["NT_STATUS_NO_SUCH_FILE"]),
    ("tcon tmp; tid; ls", &["successful", "!NT_STATUS"]),
    ("logoff; ls", &["NT_STATUS_"]),
    ("echo 3 hi; iosize 65536; showconnect; vuid; timeout 30; case_sensitive; ls", &["!NT_STATUS"]),
    ("put note a; setea a user.k v; geteas a", &["user.k (0) =", "!NT_STATUS"]),
    ("showacls; ls a", &["revision: 1", "ACCESS ALLOWED", "!NT_STATUS"]),
    ("translate; get a -", &["note", "!NT_STATUS"]),
    ("mask *.x; recurse; ls", &["!  a  ", "!NT_STATUS"]),
    ("newer note; archive 2; tarmode full; ls", &["newer than", "mode is now full", "!NT_STATUS"]),
    ("listconnect", &["share=tmp"]),
    ("tcon tmp; tdis", &["tdis successful"]),
    ("lowercase; del a; ls", &["!NT_STATUS", "!  a  "]),
    ("deltree d; ls", &["!NT_STATUS", "!  d  "]),
    ("md d; cd d; ..; rd d; dir d", &["NT_STATUS_NO_SUCH_FILE listing \\d"]),
    ("backup; blocksize 20; posix; help print; ?", &["<file name> print a file", "posix_whoami"]),
    ("print note; l note; rm note; l note", &["  A        4  ", "listing \\note"]),
    ("put there p; open p; close 1; close 77", &["fnum 1", "close 77: NT_STATUS_INVALID_HANDLE"]),
    ("put part p; reput there p; dir p", &["9000001", "!NT_STATUS"]),
    ("symlink p s; get s -; rm s; dir s", &["listing \\s"]),
    ("symlink ../out s", &["NT_STATUS_ACCESS_DENIED"]),
    ("logon smbtest wrong", &["NT_STATUS_LOGON_FAILURE"]),
    ("logon smbtest pw; tcon tmp; dir p; del p", &["Current VUID", "9000001", "!NT_STATUS"]),
    ("lcd /; exit; dir p", &["!  p  ", "!NT_STATUS"]),
    ("quit; dir nothing", &["!NT_STATUS"]),
];

/// What smbclient has for SMB1 only, and what it says of its own accord, without asking the server, when it speaks
/// anything newer. `docs/interop-smb.md` has the same commands, with the reasons.
const OF_SMB1: &[(&str, &str)] = &[
    ("cancel 1", ONLY_SMB1),
    ("chmod 600 note", NO_UNIX),
    ("chown 0 0 note", NO_UNIX),
    ("getfacl note", NO_UNIX),
    ("link note a", NO_UNIX),
    ("lock 1 w 0 1", NO_POSIX),
    ("posix", "Server doesn't support UNIX CIFS extensions."),
    ("posix_encrypt", ONLY_SMB1),
    ("posix_mkdir a 700", NO_POSIX),
    ("posix_open a 600", NO_POSIX),
    ("posix_rmdir a", NO_POSIX),
    ("posix_unlink note", NO_POSIX),
    ("posix_whoami", NO_POSIX),
    ("queue", ONLY_SMB1),
    ("readlink note", NO_UNIX),
    ("stat note", NO_UNIX),
    ("unlock 1 0 1", NO_POSIX),
];
const ONLY_SMB1: &str = "smb1cli_req_writev_submit: called for dialect";
const NO_UNIX: &str = "Server doesn't support UNIX CIFS calls.";
const NO_POSIX: &str = "must be issued before";

/// What is typed at its prompt, and does nothing there when it is given with `-c`.
const AT_THE_PROMPT: &str = "!echo from a shell\nmore note\nhistory\nq\ndir\n";

#[test]
fn what_people_type_into_smbclient_does_what_it_says() {
    let Some(smbclient) = installed("smbclient") else {
        skipped("there is no smbclient");
        return;
    };
    for protocol in ["SMB2_10", "SMB3_00", "SMB3_11"] {
        let (folder, at) = (Folder::new(), Folder::new());
        let mut server = Server::start(folder.path());
        let bytes = block(1, LEN);
        fs::write(at.file("there"), &bytes).unwrap();
        fs::write(at.file("note"), "note").unwrap();
        // Not all of it: smbclient reads past the end of what it has whole, and gets confused.
        fs::write(at.file("part"), &bytes[..4_000_000]).unwrap();
        for (typed, wanted) in TYPED {
            let mut command = Command::new(&smbclient);
            command.current_dir(at.path()).args([&format!("//127.0.0.1/{SHARE}"), "-m", protocol]);
            command.args(["-p", &server.port.to_string(), "-U", &format!("{USER}%{PASSWORD}")]);
            let ended = outcome(command.args(["-c", typed]), LIMIT);
            assert!(ended.hung.is_none(), "{protocol}: {typed}: {:?}", ended.hung);
            let said = ended.out + &ended.err;
            for word in *wanted {
                let right = match word.strip_prefix('!') {
                    Some(word) => !said.contains(word),
                    None => said.contains(word),
                };
                assert!(right, "{protocol}: {typed}: not {word:?}:\n{said}");
            }
            server.must_live();
        }
        assert!(fs::read(at.file("back")).unwrap() == bytes, "{protocol}: another file came back");
        assert!(fs::read(at.file("part")).unwrap() == bytes, "{protocol}: reget");
        assert!(fs::read(at.file("d/b")).unwrap() == bytes, "{protocol}: mget");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{protocol}: what is left");
    }
}

fn smbclient(program: &Path, server: &Server, at: &Folder) -> Command {
    let mut command = Command::new(program);
    command.current_dir(at.path()).args([&format!("//127.0.0.1/{SHARE}"), "-m", "SMB3_11"]);
    command.args(["-p", &server.port.to_string(), "-U", &format!("{USER}%{PASSWORD}")]);
    command
}

/// The first word of each command of a line.
fn heads(line: &str) -> impl Iterator<Item = &str> {
    line.split([';', '\n']).filter_map(|command| {
        let word = command.split_whitespace().next()?;
        Some(if word.starts_with('!') { "!" } else { word })
    })
}

#[test]
fn no_command_of_smbclient_is_forgotten() {
    let Some(program) = installed("smbclient") else {
        skipped("there is no smbclient");
        return;
    };
    let (folder, at) = (Folder::new(), Folder::new());
    fs::write(folder.file("note"), "note").unwrap();
    let mut server = Server::start(folder.path());
    let said = |typed: &str| {
        let ended = outcome(smbclient(&program, &server, &at).args(["-c", typed]), LIMIT);
        assert!(ended.hung.is_none(), "{typed}: {:?}", ended.hung);
        ended.out + &ended.err
    };
    for (typed, wanted) in OF_SMB1 {
        let said = said(typed);
        assert!(said.contains(wanted), "{typed}: is it of SMB1 only? {said}");
    }
    let typed = TYPED.iter().map(|(line, _)| *line).chain([AT_THE_PROMPT, "notify"]);
    let typed: BTreeSet<&str> = typed.flat_map(heads).collect();
    let of_smb1: BTreeSet<&str> = OF_SMB1.iter().flat_map(|(line, _)| heads(line)).collect();
    let help = said("help");
    let all: BTreeSet<&str> = help.split_whitespace().collect();
    assert!(all.len() > 60 && all.contains("notify"), "this is no list of commands: {help}");
    let both: BTreeSet<&str> = typed.union(&of_smb1).copied().collect();
    let forgotten: Vec<_> = all.difference(&both).collect();
    assert!(forgotten.is_empty(), "neither typed nor said to be of SMB1: {forgotten:?}");

    // What people read says the same.
    let docs = e2e::workspace_root().join("docs/interop-smb.md");
    let docs = fs::read_to_string(docs).unwrap();
    let (_, listed) = docs.split_once("| command | why not |").unwrap();
    let rows = listed.lines().skip(1).skip_while(|line| line.contains("---"));
    let rows = rows.take_while(|line| line.starts_with('|'));
    let listed: BTreeSet<&str> =
        rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2)).collect();
    assert_eq!(listed, of_smb1, "docs/interop-smb.md");
    server.must_live();
}

#[test]
fn what_is_typed_at_the_prompt_of_smbclient_is_done() {
    let Some(program) = installed("smbclient") else {
        skipped("there is no smbclient");
        return;
    };
    let (folder, at) = (Folder::new(), Folder::new());
    fs::write(folder.file("note"), "words in a note").unwrap();
    let mut server = Server::start(folder.path());
    fs::write(at.file("typed"), AT_THE_PROMPT).unwrap();
    let mut command = smbclient(&program, &server, &at);
    command.env("PAGER", "cat").stdin(fs::File::open(at.file("typed")).unwrap());
    let ended = outcome(&mut command, LIMIT);
    assert!(ended.ok(), "{ended:?}");
    for word in ["from a shell", "words in a note"] {
        assert!(ended.out.contains(word), "not {word:?}: {}", ended.out);
    }
    assert!(!ended.out.contains("blocks of size"), "typed behind the end: {}", ended.out);
    server.must_live();
}

#[test]
fn smbclient_is_notified_of_changes() {
    let (Some(program), Some(unbuffered)) = (installed("smbclient"), installed("stdbuf")) else {
        skipped("there is no smbclient, or no stdbuf to see at once what it says");
        return;
    };
    let (folder, at) = (Folder::new(), Folder::new());
    fs::create_dir(folder.file("d")).unwrap();
    let mut server = Server::start(folder.path());
    let watching = smbclient(&program, &server, &at);
    let mut command = Command::new(unbuffered);
    command.arg("-oL").arg(watching.get_program()).args(watching.get_args());
    command.args(["-c", "notify d"]).current_dir(at.path());
    // It goes on until it is killed.
    let said = at.file("said");
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(fs::File::create(&said).unwrap());
    let mut client = Guest::start(&mut command);
    // MS-FSCC 2.7.1: added, renamed from and to, removed.
    let wanted = ["0001 one", "0004 one", "0005 two", "0002 two"];
    let deadline = Instant::now() + LIMIT;
    loop {
        // What was done before it watched it does not see.
        fs::write(folder.file("d/one"), "1").unwrap();
        fs::rename(folder.file("d/one"), folder.file("d/two")).unwrap();
        fs::remove_file(folder.file("d/two")).unwrap();
        let said = fs::read_to_string(&said).unwrap();
        if wanted.iter().all(|word| said.lines().any(|line| line.trim() == *word)) {
            break;
        }
        assert!(client.ended().is_none() && Instant::now() < deadline, "it is told {said:?}");
        thread::sleep(Duration::from_millis(50));
    }
    client.kill_all();
    server.must_live();
}

const IMPACKET: &str = r"
import io, os, sys
from impacket.smbconnection import SMBConnection, SessionError
port = int(sys.argv[1])
for dialect in (0x0210, 0x0300, 0x0311):
    c = SMBConnection('127.0.0.1', '127.0.0.1', sess_port=port, preferredDialect=dialect)
    c.login('smbtest', 'pw')
    assert c.getDialect() == dialect, hex(c.getDialect())
    bytes = os.urandom(3000001)
    c.createDirectory('tmp', 'd')
    c.putFile('tmp', 'd\\f', io.BytesIO(bytes).read)
    back = io.BytesIO()
    c.getFile('tmp', 'd\\f', back.write)
    assert back.getvalue() == bytes
    assert sorted(f.get_longname() for f in c.listPath('tmp', 'd\\*')) == ['.', '..', 'f']
    c.rename('tmp', 'd\\f', 'd\\g')
    try:
        c.deleteDirectory('tmp', 'd')
        sys.exit('a directory that is not empty was removed')
    except SessionError as e:
        assert 'NOT_EMPTY' in str(e), e
    c.deleteFile('tmp', 'd\\g')
    c.deleteDirectory('tmp', 'd')
    assert 'tmp' in [s['shi1_netname'][:-1] for s in c.listShares()]
    c.logoff()
try:
    SMBConnection('127.0.0.1', '127.0.0.1', sess_port=port).login('smbtest', 'wrong')
    sys.exit('logged on with another password')
except SessionError as e:
    assert 'LOGON_FAILURE' in str(e), e
";

const SMBPROTOCOL: &str = r"
import os, sys
import smbclient as s
k = dict(port=int(sys.argv[1]))
for encrypt in (False, True):
    s.register_session('127.0.0.1', username='smbtest', password='pw', encrypt=encrypt, **k)
    at = r'\\127.0.0.1\tmp\d'
    s.makedirs(at, **k)
    bytes = os.urandom(2500003)
    with s.open_file(at + r'\f', mode='wb', **k) as f:
        f.write(bytes)
    with s.open_file(at + r'\f', mode='rb', **k) as f:
        assert f.read() == bytes
    assert s.stat(at + r'\f', **k).st_size == len(bytes)
    s.rename(at + r'\f', at + r'\g', **k)
    assert s.listdir(at, **k) == ['g']
    s.link(at + r'\g', at + r'\h', **k)
    s.truncate(at + r'\g', 10, **k)
    assert s.stat(at + r'\h', **k).st_size == 10
    s.utime(at + r'\g', times=(1e9, 1e9), **k)
    assert int(s.stat(at + r'\g', **k).st_mtime) == 10 ** 9
    assert s.stat_volume(at, **k).total_size > 0
    try:
        s.rmdir(at, **k)
        sys.exit('a directory that is not empty was removed')
    except OSError as e:
        assert 'not empty' in str(e), e
    s.remove(at + r'\g', **k)
    s.remove(at + r'\h', **k)
    s.rmdir(at, **k)
    s.reset_connection_cache()
";

/// One of two clients: the other renames the file back and forth, and puts another one in place over and over. What it
/// finds is whole, or not there. Until the other is done, which makes a file of it.
const BESIDE: &str = r"
import os, sys
import smbclient as s, smbclient.path
k = dict(port=int(sys.argv[1]))
at = r'\\127.0.0.1\tmp'
s.register_session('127.0.0.1', username='smbtest', password='pw', **k)
whole = b'whole' * 60000
# Not there, shared with nobody who deletes, going.
expected = (0xC0000034, 0xC0000043, 0xC0000056)
found, rounds = 0, 0
while found < 50 or not s.path.exists(at + r'\done', **k):
    for name in ('one', 'two'):
        try:
            with s.open_file(at + '\\' + name, mode='rb', share_access='rwd', **k) as f:
                bytes = f.read()
            assert bytes == whole, (name, len(bytes))
            found += 1
        except OSError as e:
            assert getattr(e, 'ntstatus', 0) in expected, e
    rounds += 1
    mine = at + r'\mine-%d' % (rounds % 4)
    with s.open_file(mine, mode='wb', share_access='r', **k) as f:
        f.write(whole[:rounds % 1000])
    try:
        s.replace(mine, at + r'\last', **k)
        assert s.stat(at + r'\last', **k).st_size == rounds % 1000
    except OSError as e:
        # The other has it open.
        assert getattr(e, 'ntstatus', 0) in (0xC0000022, 0xC0000043), e
        s.remove(mine, **k)
";

#[test]
fn two_clients_of_different_make_use_the_same_files_at_once() {
    let Some(program) = installed("smbclient") else {
        skipped("there is no smbclient");
        return;
    };
    let Some(python) = python_with("smbclient") else { return };
    let (folder, at) = (Folder::new(), Folder::new());
    let whole = b"whole".repeat(60_000);
    fs::write(folder.file("one"), &whole).unwrap();
    fs::write(at.file("note"), "note").unwrap();
    let mut server = Server::start(folder.path());
    let mut first = Command::new(python);
    first.args(["-c", BESIDE, &server.port.to_string()]).stdin(Stdio::null());
    let errors = at.file("errors");
    first.stdout(Stdio::null()).stderr(fs::File::create(&errors).unwrap());
    let mut first = Guest::start(&mut first);
    let mut second = smbclient(&program, &server, &at);
    let turn =
        "rename one two; put note other; get two back; rename two one; get last last; del other";
    second.args(["-c", &format!("{}; put note done", [turn; 300].join("; "))]);
    let ended = outcome(&mut second, LIMIT);
    assert!(ended.ok(), "{ended:?}");
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = first.ended() {
            break status;
        }
        assert!(Instant::now() < deadline, "it does not end");
        thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{}", fs::read_to_string(&errors).unwrap());
    assert!(fs::read(folder.file("one")).unwrap() == whole, "it was renamed, and no more");
    assert!(fs::read(at.file("back")).unwrap() == whole);
    let mut left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["done", "last", "one"]);
    server.must_live();
}

/// A Python that has a library.
fn python_with(library: &str) -> Option<PathBuf> {
    let there = |python: &PathBuf| {
        let has = ["-c", &format!("import {library}")];
        python.exists() && outcome(Command::new(python).args(has), LIMIT).ok()
    };
    // `cargo xtask test --install` puts what Debian lacks, or has too old, into an environment beside what it builds. And
    // a Python of one's own in front of the distribution's hides its packages.
    let own = built("shunt").ancestors().nth(2).map(|target| target.join("python/bin/python3"));
    let mut all =
        own.into_iter().chain(installed("python3")).chain([PathBuf::from("/usr/bin/python3")]);
    let found = all.find(there);
    if found.is_none() {
        skipped(&format!("there is no Python with {library}: `cargo xtask test --install`"));
    }
    found
}

/// Runs a script, if Python has the library that it wants.
fn python(library: &str, script: &str, settings: &[&str]) {
    let Some(python) = python_with(library) else { return };
    let folder = Folder::new();
    let mut server = Server::start_as(folder.path(), 0, &[], settings);
    let mut command = Command::new(python);
    let ended = outcome(command.args(["-c", script, &server.port.to_string()]), LIMIT);
    assert!(ended.ok(), "{ended:?}");
    server.must_live();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "what is left");
}

#[test]
fn impacket_is_served() {
    python("impacket.smbconnection", IMPACKET, &[]);
}

#[test]
fn smbprotocol_is_served() {
    python("smbclient", SMBPROTOCOL, &[]);
}

/// It asks by an SMB1 negotiate, for SMB 2.0.2 and nothing later, and signs as it is told to.
const PYSMB: &str = r"
import io, os, sys
from smb.SMBConnection import SMBConnection
from smb.smb_structs import OperationFailure
port = int(sys.argv[1])
for sign in (SMBConnection.SIGN_NEVER, SMBConnection.SIGN_WHEN_REQUIRED):
    c = SMBConnection('smbtest', 'pw', 'here', 'there', use_ntlm_v2=True, sign_options=sign, is_direct_tcp=True)
    assert c.connect('127.0.0.1', port, timeout=60)
    assert 'tmp' in [share.name for share in c.listShares()]
    c.createDirectory('tmp', 'd')
    for len in (0, 1, 65537, 3000001):
        sent, back = os.urandom(len), io.BytesIO()
        c.storeFile('tmp', 'd/f', io.BytesIO(sent))
        c.retrieveFile('tmp', 'd/f', back)
        assert back.getvalue() == sent, len
        assert c.getAttributes('tmp', 'd/f').file_size == len
    c.storeFileFromOffset('tmp', 'd/f', io.BytesIO(b'abc'), 3000003)
    back = io.BytesIO()
    c.retrieveFileFromOffset('tmp', 'd/f', back, 3000000, 9)
    assert back.getvalue() == sent[-1:] + bytes(2) + b'abc', back.getvalue()
    name = '\u00fc \u65e5\u672c'
    c.rename('tmp', 'd/f', 'd/' + name)
    assert name in [file.filename for file in c.listPath('tmp', 'd')]
    assert c.getSecurity('tmp', 'd/' + name).dacl.aces
    assert c.echo(b'hi') == b'hi'
    try:
        c.retrieveFile('tmp', 'd/f', io.BytesIO())
        raise SystemExit('it is still there')
    except OperationFailure:
        pass
    c.deleteFiles('tmp', 'd/*', delete_matching_folders=True)
    c.deleteDirectory('tmp', 'd')
    c.close()
c = SMBConnection('smbtest', 'wrong', 'here', 'there', use_ntlm_v2=True, is_direct_tcp=True)
assert not c.connect('127.0.0.1', port, timeout=60)
";

#[test]
fn pysmb_is_served() {
    python("smb.SMBConnection", PYSMB, &["--dialects", "2.0.2-3.1.1"]);
}

/// What rclone is told to do, one command after the other, between a folder of the host and a share.
const RCLONE: &[&[&str]] = &[
    &["sync", "here", "r:tmp/there", "--transfers=8"],
    &["check", "here", "r:tmp/there", "--download"],
    &["copyto", "r:tmp/there/long", "r:tmp/there/a/longer"],
    &["moveto", "r:tmp/there/a", "r:tmp/moved/deep"],
    &["copy", "r:tmp/moved/deep", "back"],
    &["touch", "r:tmp/moved/typed"],
    &["about", "r:tmp"],
    &["purge", "r:tmp/there"],
    &["purge", "r:tmp/moved"],
];

#[test]
fn rclone_keeps_a_folder_as_another() {
    let Some(rclone) = installed("rclone") else {
        skipped("there is no rclone");
        return;
    };
    let (folder, at) = (Folder::new(), Folder::new());
    let mut server = Server::start(folder.path());
    let rclone = |words: &[&str]| {
        let mut command = Command::new(&rclone);
        command.args(words).current_dir(at.path()).stdin(Stdio::null());
        command.env("RCLONE_CONFIG", at.file("rclone.conf"));
        let ended = outcome(&mut command, LIMIT);
        assert!(ended.ok(), "{words:?}: {ended:?}");
        ended.out
    };
    let password = rclone(&["obscure", PASSWORD]);
    let settings = format!(
        "[r]\ntype = smb\nhost = 127.0.0.1\nport = {}\nuser = {USER}\npass = {password}",
        server.port
    );
    fs::write(at.file("rclone.conf"), settings).unwrap();
    fs::create_dir_all(at.file("here/a/b")).unwrap();
    let long = block(7, LEN);
    fs::write(at.file("here/long"), &long).unwrap();
    // What SMB has no names for, rclone writes in other letters.
    for name in ["a/q:*?<>|\"", "a/trail.", "a/\u{fc} \u{65e5}\u{672c}", "a/b/empty"] {
        fs::write(at.file("here").join(name), name.replace("a/b/empty", "")).unwrap();
    }
    for n in 0..200 {
        fs::write(at.file("here/a/b").join(n.to_string()), [1]).unwrap();
    }
    RCLONE.iter().for_each(|words| {
        rclone(words);
    });
    assert!(fs::read(at.file("back/longer")).unwrap() == long);
    assert_eq!(fs::read(at.file("back/trail.")).unwrap(), b"a/trail.");
    assert_eq!(fs::read_dir(at.file("back/b")).unwrap().count(), 201);
    server.must_live();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "what is left");
}

/// curl speaks SMB1. Whose connection ends before it has an answer goes on to read from it, for ever.
#[test]
fn curl_is_told_that_it_is_refused() {
    let Some(curl) = installed("curl") else {
        skipped("there is no curl");
        return;
    };
    let folder = Folder::new();
    let mut server = Server::start(folder.path());
    let mut command = Command::new(curl);
    let url = format!("smb://127.0.0.1:{}/{SHARE}/note", server.port);
    let ended =
        outcome(command.args(["-sS", "--user", &format!("{USER}:{PASSWORD}"), &url]), LIMIT);
    if ended.code == 1 {
        skipped("this curl does not know SMB");
        return;
    }
    // CURLE_COULDNT_CONNECT: curl's word for it.
    assert!(ended.hung.is_none() && ended.code == 7, "{ended:?}");
    assert!(server.said().contains("speaks SMB1 only"), "{}", server.said());
    server.must_live();
}

/// What the Go client is made of, file by file.
const GO: [(&str, &str); 3] = [
    ("main.go", include_str!("go/main.go")),
    ("go.mod", include_str!("go/go.mod")),
    ("go.sum", include_str!("go/go.sum")),
];

#[test]
fn a_client_in_go_is_served() {
    let Some(go) = installed("go") else {
        skipped("there is no Go");
        return;
    };
    let sources = Folder::new();
    for (name, text) in GO {
        fs::write(sources.file(name), text).unwrap();
    }
    let go = |words: &[&str]| {
        let mut command = Command::new(&go);
        command.args(words).current_dir(sources.path());
        command.env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=readonly");
        outcome(&mut command, LIMIT * 5)
    };
    let had = go(&["mod", "download"]);
    if !had.ok() {
        skipped(&format!("the Go library go-smb2 cannot be had: {}", had.err.trim()));
        return;
    }
    let built = go(&["build", "-o", "client", "."]);
    assert!(built.ok(), "{built:?}");
    for encryption in ["off", "offered", "required"] {
        let folder = Folder::new();
        let setting = format!("--encryption={encryption}");
        let mut server = Server::start_as(folder.path(), 0, &[], &[&setting]);
        let address = format!("127.0.0.1:{}", server.port);
        for how in ["plain", "signed"] {
            let mut client = Command::new(sources.file("client"));
            let ended = outcome(client.args([&address, USER, PASSWORD, how, SHARE]), LIMIT);
            let right = ended.ok() && ended.out.trim() == "all as it should be";
            assert!(right, "{setting}, {how}: {ended:?}");
            server.must_live();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{setting}: what is left");
    }
}

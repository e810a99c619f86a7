//! Other people's clients: Samba's smbclient, the Python libraries impacket and smbprotocol, and one for Go.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use e2e::run::{outcome, skipped};
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
    ("put note a; setea a user.k v; geteas a", &["USER.K (0) =", "!NT_STATUS"]),
    ("showacls; ls a", &["revision: 1", "ACCESS ALLOWED", "!NT_STATUS"]),
    ("translate; get a -", &["note", "!NT_STATUS"]),
    ("mask *.x; recurse; ls", &["!  a  ", "!NT_STATUS"]),
    ("newer note; archive 2; tarmode full; ls", &["newer than", "mode is now full", "!NT_STATUS"]),
    ("listconnect", &["share=tmp"]),
    ("tcon tmp; tdis", &["tdis successful"]),
    // What is of SMB1 only, with links and their kin, smbclient does not even ask for.
    ("posix; readlink a", &["Server doesn't support UNIX CIFS"]),
    ("lowercase; del a; ls", &["!NT_STATUS", "!  a  "]),
    ("deltree d; ls", &["!NT_STATUS", "!  d  "]),
];

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

/// Runs a script, if Python has the library that it wants.
fn python(library: &str, script: &str) {
    let there = |python: &PathBuf| {
        let has = ["-c", &format!("import {library}")];
        outcome(Command::new(python).args(has), LIMIT).ok()
    };
    // `cargo xtask test --install` puts what Debian lacks, or has too old, into an environment beside what it builds. And
    // a Python of one's own in front of the distribution's hides its packages.
    let own = built("shunt").ancestors().nth(2).map(|target| target.join("python/bin/python3"));
    let mut all =
        own.into_iter().chain(installed("python3")).chain([PathBuf::from("/usr/bin/python3")]);
    let Some(python) = all.find(there) else {
        skipped(&format!("there is no Python with {library}: `cargo xtask test --install`"));
        return;
    };
    let folder = Folder::new();
    let mut server = Server::start(folder.path());
    let mut command = Command::new(python);
    let ended = outcome(command.args(["-c", script, &server.port.to_string()]), LIMIT);
    assert!(ended.ok(), "{ended:?}");
    server.must_live();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "what is left");
}

#[test]
fn impacket_is_served() {
    python("impacket.smbconnection", IMPACKET);
}

#[test]
fn smbprotocol_is_served() {
    python("smbclient", SMBPROTOCOL);
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

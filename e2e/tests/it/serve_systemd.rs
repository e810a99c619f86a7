//! `shunt serve` and `shunt engine` as their units of systemd start them: a real systemd, the first process of namespaces
//! of its own, puts them into the sandboxes that `dist/systemd` describes.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::run::{Guest, Outcome, eventually, outcome, skipped};
use e2e::{built, installed, workspace_root};
use testkit::kernels::ending::{ControlGroup, Directory};

use crate::serve::contains;

const LIMIT: Duration = Duration::from_secs(60);
const SYSTEMD: &str = "/usr/lib/systemd/systemd";

/// A control group with those that systemd makes in it.
struct Group(ControlGroup);

impl Drop for Group {
    fn drop(&mut self) {
        // Empty a moment after those in them have been killed.
        eventually("its control groups can be removed", || {
            is_bare(self.0.door().parent().unwrap())
        });
    }
}

/// Removes what is below a control group; whether nothing is left.
fn is_bare(group: &Path) -> bool {
    let below = fs::read_dir(group).into_iter().flatten().flatten();
    let folders = below.map(|entry| entry.path()).filter(|path| path.is_dir());
    folders.filter(|path| !(is_bare(path) && fs::remove_dir(path).is_ok())).count() == 0
}

/// A machine with systemd and the units of the repository.
struct Machine {
    // In this order they go.
    guest: Guest,
    init: i32,
    _group: Group,
    _directory: Directory,
}

impl Machine {
    /// `None`: there can be none here, and that was said.
    fn boot() -> Option<Self> {
        let absent = ["unshare", "nsenter", "systemctl", "smbclient", "ip", "setpriv", "python3"];
        let absent = absent.into_iter().find(|name| installed(name).is_none());
        if let Some(name) = absent.or_else(|| (!Path::new(SYSTEMD).exists()).then_some("systemd")) {
            skipped(&format!("there is no {name}"));
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            skipped("namespaces with a systemd of their own need root");
            return None;
        }
        let Some(group) = ControlGroup::new() else {
            skipped("there are no control groups of version 2, which systemd wants");
            return None;
        };
        let (group, directory) = (Group(group), Directory::new().unwrap());
        let at = workspace_root().join("e2e/tests/it/serve_systemd/stage.sh");
        let said = directory.path().join("said");
        let root = directory.path().join("machine");
        fs::create_dir(&root).unwrap();
        let err = fs::File::create(&said).unwrap();
        let mut command = Command::new("sh");
        command.arg(at).arg(root).arg(built("shunt")).arg(workspace_root().join("dist/systemd"));
        command.arg(group.0.door()).arg(built("libshunt_preload.so")).stdin(Stdio::null());
        command.stdout(err.try_clone().unwrap()).stderr(err);
        let mut guest = Guest::start(&mut command);
        let mut init = None;
        eventually("systemd is the first process", || {
            init = first_child(guest.pid()).filter(|pid| is_systemd(*pid));
            init.is_some() || guest.ended().is_some()
        });
        let Some(init) = init else {
            skipped(&format!("no machine: {}", fs::read_to_string(said).unwrap().trim()));
            return None;
        };
        let machine = Self { guest, init, _group: group, _directory: directory };
        eventually("systemd has started", || {
            machine.run(&["systemctl", "is-active", "shunt-test.target"]).ok()
        });
        Some(machine)
    }

    /// Runs a command in it.
    fn run(&self, words: &[&str]) -> Outcome {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-m", "-p", "-n", "-u", "-i", "-C"]);
        outcome(command.args(words).stdin(Stdio::null()), LIMIT)
    }

    #[track_caller]
    fn done(&self, words: &[&str]) -> String {
        let ended = self.run(words);
        assert!(ended.ok(), "{words:?}: {ended:?}\n{}", self.log());
        ended.out
    }

    /// What the server has said.
    fn log(&self) -> String {
        self.run(&["journalctl", "--no-pager", "-u", "shunt-serve.service"]).out
    }

    /// What Samba's client says to these commands.
    fn client(&self, share: &str, commands: &str) -> String {
        let at = format!("//127.0.0.1/{share}");
        let ended = self.run(&["smbclient", &at, "-U", "ann%pw", "-m", "SMB3", "-c", commands]);
        ended.out + &ended.err
    }

    /// What `/proc` says of the server.
    fn status(&self) -> String {
        let pid = self.done(&["systemctl", "show", "-p", "MainPID", "--value", "shunt-serve"]);
        self.done(&["cat", &format!("/proc/{}/status", pid.trim())])
    }

    fn state(&self, property: &str) -> String {
        let value = ["systemctl", "show", "-p", property, "--value", "shunt-serve.service"];
        self.done(&value).trim().to_owned()
    }
}

fn first_child(pid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn is_systemd(pid: i32) -> bool {
    let program: Option<PathBuf> = fs::read_link(format!("/proc/{pid}/exe")).ok();
    program.is_some_and(|path| path.ends_with("systemd"))
}

/// Serves a client, in the sandbox and nowhere else.
fn serves(machine: &Machine, name: &str) {
    let put = format!("put /etc/hostname {name}; ls; get {name} -");
    let said = machine.client("files", &put);
    assert!(said.contains(name) && !said.contains("NT_STATUS"), "{said}\n{}", machine.log());
    machine.done(&["cmp", "/etc/hostname", &format!("/srv/files/{name}")]);
    // Not among ReadWritePaths, though the user is root.
    let said = machine.client("closed", "put /etc/hostname no; ls");
    contains(&said, &["NT_STATUS_MEDIA_WRITE_PROTECTED"]);
    let status = machine.status();
    // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID and NET_BIND_SERVICE, and a filter of system calls.
    contains(&status, &["NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t000000000000041f"]);
    contains(&status, &["CapEff:\t000000000000041f"]);
}

#[test]
fn the_units_of_systemd_start_a_server_in_their_sandbox() {
    let Some(mut machine) = Machine::boot() else { return };
    // The port is held by systemd, and nobody serves before somebody comes.
    machine.done(&["systemctl", "start", "shunt-serve.socket"]);
    assert_eq!(machine.state("ActiveState"), "inactive");
    serves(&machine, "activated");
    let log = machine.log();
    contains(&log, &["ready: 0.0.0.0:445 and [::]:445", "user \"ann\""]);
    // The filter lets the ring through, where this kernel has it for anybody.
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    assert!(disabled.trim() != "0" || log.contains("by io_uring"), "{log}");
    contains(&machine.done(&["shunt", "stat", "smb"]), &["shares: closed, files, IPC$"]);

    // A reload is a signal that the sandbox lets through, to what may still read its files.
    let more = "printf '[serve.share.more]\\npath = \"/srv/files\"\\n' >>/etc/shunt/config.toml";
    machine.done(&["sh", "-c", more]);
    machine.done(&["systemctl", "reload", "shunt-serve"]);
    eventually("the new share is there", || machine.client("more", "ls").contains("  activated "));

    // It ends as it is told, and comes again with the next client: the socket has stayed.
    machine.done(&["systemctl", "stop", "shunt-serve.service"]);
    assert_eq!(machine.state("Result"), "success", "{}", machine.log());
    serves(&machine, "again");

    // By itself, it takes the port with the one capability for that.
    machine.done(&["systemctl", "stop", "shunt-serve.socket", "shunt-serve.service"]);
    machine.done(&["systemctl", "start", "shunt-serve.service"]);
    eventually("it listens", || machine.client("files", "ls").contains("  again "));
    serves(&machine, "alone");
    let kill = ["systemctl", "kill", "-s", "KILL", "shunt-serve.service"];
    machine.done(&kill);
    eventually("it is started again", || machine.client("files", "ls").contains("  alone "));
    assert_eq!(machine.state("NRestarts"), "1");
    assert!(machine.guest.ended().is_none());
}

/// Starts a unit's engine, has `look` look at it, and stops it. `capabilities` are all that it has.
fn has_an_engine(machine: &Machine, unit: &str, capabilities: &str, look: impl FnOnce(&str)) {
    let log = || machine.run(&["journalctl", "--no-pager", "-u", unit]).out;
    let value = |name: &str| {
        let value = machine.done(&["systemctl", "show", "-p", name, "--value", unit]);
        value.trim().to_owned()
    };
    // Which ends when it is there: what comes after it finds it.
    let started = machine.run(&["systemctl", "start", unit]);
    assert!(started.ok(), "{started:?}\n{}", log());
    let said = machine.run(&["shunt", "engine", "status"]);
    assert!(said.ok(), "{said:?}\n{}", log());
    assert_eq!(value("ActiveState"), "active", "{}", log());
    let status = machine.done(&["cat", &format!("/proc/{}/status", value("MainPID"))]);
    // Nothing else that root can; a filter of system calls.
    let caps = format!("CapEff:\t{capabilities}");
    contains(&status, &["NoNewPrivs:\t1", "Seccomp:\t2", &caps, &caps.replace("Eff", "Bnd")]);
    // It would not be there without what the handshake needs: nothing says that it is to do without.
    contains(&said.out, &["engine, pid", "peers = -"]);
    look(&log());
    machine.done(&["systemctl", "stop", unit]);
    assert_eq!(value("Result"), "success", "{}", log());
}

#[test]
fn the_units_of_systemd_start_an_engine_in_their_sandbox() {
    /// No other test's.
    struct User(String);
    impl Drop for User {
        fn drop(&mut self) {
            // `/dev/shm` of that machine is ours.
            let _ = fs::remove_dir_all(format!("/dev/shm/shunt-{}", self.0));
        }
    }
    let Some(machine) = Machine::boot() else { return };
    // BPF, PERFMON and NET_ADMIN.
    has_an_engine(&machine, "shunt-engine@root.service", "000000c000001000", |_| ());
    // And SETUID and SETGID.
    has_an_engine(&machine, "shunt-engine.service", "000000c0000010c0", |log| {
        // Without an account nobody is served whom nobody has named.
        let user = User(machine.done(&["id", "-u", "daemon"]).trim().to_owned());
        let listens = "import socket; socket.create_server(('127.0.0.1', 7000))";
        let [uid, gid] = ["u", "g"].map(|kind| format!("--re{kind}id={}", user.0));
        let program = ["shunt", "run", "--", "python3", "-c", listens];
        machine.done(&[&["setpriv", &uid, &gid, "--clear-groups"][..], &program].concat());
        let served = || {
            let status = machine.done(&["shunt", "engine", "status", "--json"]);
            let status: serde_json::Value = serde_json::from_str(&status).unwrap();
            let mut users = status["users"].as_array().unwrap().iter();
            let uid: u32 = user.0.parse().unwrap();
            users.any(|u| u["uid"] == uid && u["is_served"] == true)
        };
        eventually(&format!("the user is served\n{log}"), served);
    });
}

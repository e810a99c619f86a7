//! `shunt serve` for the users of a realm: a key distribution centre of our own, MIT Kerberos' tools and Samba's client.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::programs::need;
use crate::serve::{LIMIT, Place, Server, configure, contains};

/// A realm: SHUNT.TEST, with ann, bob and carl, and this host's file server.
struct Realm<'p> {
    place: &'p Place,
    centre: Child,
}

impl<'p> Realm<'p> {
    fn new(place: &'p Place) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = place.word("");
        fs::write(
            place.path("krb5.conf"),
            format!(
                "[libdefaults]\n default_realm = SHUNT.TEST\n dns_lookup_realm = false\n\
                 \u{20}dns_lookup_kdc = false\n dns_canonicalize_hostname = false\n rdns = false\n\
                 \u{20}udp_preference_limit = 1\n clockskew = 1\n\
                 [realms]\n SHUNT.TEST = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
            ),
        )
        .unwrap();
        fs::write(
            place.path("kdc.conf"),
            format!(
                "[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n\
                 [realms]\n SHUNT.TEST = {{\n  database_name = {dir}principal\n\
                 \u{20} key_stash_file = {dir}stash\n  acl_file = {dir}acl\n }}\n"
            ),
        )
        .unwrap();
        let realm = |program: &str| Self::command(place, program);
        done(realm("kdb5_util").args(["create", "-s", "-r", "SHUNT.TEST", "-P", "master"]));
        let keytab = place.word("keytab");
        for query in [
            "addprinc -pw one ann",
            "addprinc -pw two bob",
            "addprinc -pw three carl",
            "addprinc -randkey cifs/files.shunt.test",
            &format!("ktadd -k {keytab} cifs/files.shunt.test"),
        ] {
            done(realm("kadmin.local").args(["-q", query]));
        }
        let mut command = realm("krb5kdc");
        command.arg("-n").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let centre = command.spawn().unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < LIMIT, "the key distribution centre does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { place, centre }
    }

    /// A program that knows of this realm and no other.
    fn command(place: &Place, program: &str) -> Command {
        let mut command = Command::new(e2e::installed(program).unwrap());
        Self::environment(place, &mut command);
        command
    }

    fn environment(place: &Place, command: &mut Command) {
        command.env("KRB5_CONFIG", place.path("krb5.conf"));
        command.env("KRB5_KDC_PROFILE", place.path("kdc.conf"));
        command.env("KRB5RCACHEDIR", place.path("")).env("KRB5CCNAME", place.path("nothing"));
    }

    /// A ticket of this user, for so many seconds; the name of what has it.
    fn ticket(&self, user: &str, password: &str, seconds: u32) -> String {
        let cache = format!("FILE:{}", self.place.word(&format!("ticket-{user}-{seconds}")));
        let mut kinit = Self::command(self.place, "kinit");
        kinit.args(["-c", &cache, "-l", &format!("{seconds}s"), user]);
        let mut child = kinit.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(format!("{password}\n").as_bytes()).unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success(), "{user} gets no ticket");
        cache
    }

    /// smbclient for somebody with that ticket.
    fn smbclient(&self, server: &Server, ticket: &str, share: &str) -> Command {
        let mut command = Self::command(self.place, "smbclient");
        command.args(["-p", &server.port.to_string(), "-I", "127.0.0.1", "-m", "SMB3"]);
        command.args(["--use-kerberos=required", "-N"]);
        command.env("KRB5CCNAME", ticket).arg(format!("//files.shunt.test/{share}"));
        command.current_dir(self.place.path(""));
        command
    }

    /// What it says.
    fn client(&self, server: &Server, ticket: &str, more: &[&str], share: &str) -> (bool, String) {
        let mut command = self.smbclient(server, ticket, share);
        command.args(more).args(["-c", "put sent file; get file back; ls"]);
        let output = command.output().unwrap();
        let both = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&both).into_owned())
    }
}

impl Drop for Realm<'_> {
    fn drop(&mut self) {
        let _ = self.centre.kill();
        let _ = self.centre.wait();
    }
}

#[track_caller]
fn done(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {words}");
}

#[test]
fn users_of_a_realm_come_in_by_their_tickets() {
    need!("smbclient");
    need!("krb5kdc");
    need!("kdb5_util");
    need!("kadmin.local");
    need!("kinit");
    let place = Place::new("realm");
    let realm = Realm::new(&place);
    let users = place.word("users");
    let sent: Vec<u8> = (0..500_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(place.path("sent"), &sent).unwrap();
    // ann comes by ticket only; bob by ticket and by a password that is not the realm's; carl is not known here.
    place.done(&["serve", "user", "add", "ann", "--no-password", "--users", &users], "");
    place.done(&["serve", "user", "add", "bob", "--users", &users], "second\n");
    let keytab = place.word("keytab");
    let serve = |realm_users: &str| {
        configure(&place, "");
        let switch = format!("--realm-users={realm_users}");
        let mut command = place.shunt(&["serve", "--keytab", &keytab, &switch]);
        Realm::environment(&place, &mut command);
        Server::start(command)
    };
    let server = serve("off");
    let ann = realm.ticket("ann", "one", 3600);
    let bob = realm.ticket("bob", "two", 3600);
    let carl = realm.ticket("carl", "three", 3600);
    for protection in ["sign", "encrypt"] {
        let word = format!("--client-protection={protection}");
        let (good, said) = realm.client(&server, &ann, &[&word], "all");
        assert!(good, "{protection}: {said}");
        assert!(fs::read(place.path("files/file")).unwrap() == sent);
        assert!(fs::read(place.path("back")).unwrap() == sent);
        fs::remove_file(place.path("files/file")).unwrap();
    }
    let (good, said) = realm.client(&server, &bob, &[], "all");
    assert!(good, "{said}");
    contains(&realm.client(&server, &ann, &[], "bobs").1, &["ACCESS_DENIED"]);
    contains(&realm.client(&server, &carl, &[], "all").1, &["LOGON_FAILURE"]);
    // Who has no ticket has a password, or not.
    let (good, said) = server.client("bob%second", "all", "ls");
    assert!(good, "{said}");
    contains(&server.client("ann%one", "all", "ls").1, &["LOGON_FAILURE"]);
    contains(&server.client("ann%", "all", "ls").1, &["LOGON_FAILURE"]);
    drop(server);

    let server = serve("on");
    let (good, said) = realm.client(&server, &carl, &[], "all");
    assert!(good, "{said}");
    contains(&server.client("carl%three", "all", "ls").1, &["LOGON_FAILURE"]);

    // A session is over with the ticket that it came by, and not before; with another ticket there is another one.
    let brief = realm.ticket("ann", "one", 6);
    let mut command = realm.smbclient(&server, &brief, "all");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = command.spawn().unwrap();
    let mut orders = client.stdin.take().unwrap();
    orders.write_all(b"put sent kept\n").unwrap();
    std::thread::sleep(Duration::from_secs(9));
    orders.write_all(b"ls\n").unwrap();
    drop(orders);
    let said = client.wait_with_output().unwrap().stdout;
    contains(&String::from_utf8_lossy(&said), &["NETWORK_SESSION_EXPIRED"]);
    assert!(fs::read(place.path("files/kept")).unwrap() == sent);
    let (good, said) = realm.client(&server, &ann, &[], "all");
    assert!(good, "{said}");
}

/// Without a realm: what is wrong with the settings is said, with what to do.
#[test]
fn keys_that_are_none_are_refused() {
    let place = Place::new("keyless");
    fs::write(place.path("keytab"), "no keys").unwrap();
    fs::write(place.path("config.toml"), "").unwrap();
    let keytab = place.word("keytab");
    for (arguments, words) in [
        (vec!["--keytab", &*keytab], vec!["keytab"]),
        (vec!["--realm-users"], vec!["realm_users", "keytab"]),
        (vec!["--keytab", "here"], vec!["keytab", "absolute path"]),
    ] {
        let listen = ["serve", "--guest", "--listen", "127.0.0.1:0"];
        let all = [&listen[..], &arguments, &["files"]].concat();
        let output = place.run(&all, "");
        assert!(!output.status.success(), "{arguments:?}");
        contains(&String::from_utf8_lossy(&output.stderr), &words);
    }
}

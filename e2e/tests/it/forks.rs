//! Connections that two processes hold because one has forked before they were attached.

use e2e::run::{BoardDir, plain_only};
use local::Reason;

use super::reasons::{Pausing, assert_counted, assert_shown};

/// A server that forks, and its client, both started.
struct Pair {
    dir: BoardDir,
    server: Pausing,
    client: Pausing,
    /// The server's child.
    child: i32,
}

impl Pair {
    fn start(what: &str) -> Self {
        let dir = BoardDir::new();
        let mut server = Pausing::start(&dir, &["serve-forked", what]);
        let port = server.told("port");
        let client = Pausing::start(&dir, &["ask-forked", &port, what]);
        let child = server.told("child").parse().expect("a process");
        Self { dir, server, client, child }
    }

    fn is_attached(&self) -> bool {
        self.dir.attached() >= 2 || plain_only()
    }

    fn end(mut self) {
        self.client.ends();
        self.server.says("done");
        self.server.ends();
    }
}

/// The child answers, then the parent says something as well, before the client has read a byte: it reads both, in that
/// order. While both hold the connection it stays on TCP.
#[test]
fn held_by_both() {
    let mut pair = Pair::start("both");
    pair.client.says("asked");
    pair.server.says("said");
    pair.client.goes_on();
    pair.client.says("done");
    assert_eq!(pair.dir.attached(), 0, "{}", pair.dir.summary());
    let words = "shared by processes before it was attached";
    assert_shown(&pair.dir, pair.child, "TCP", 21, words);
    assert_counted(&pair.dir, Reason::Shared, "a fork before the first byte");
    pair.server.goes_on();
    pair.end();
}

/// The child answers and ends; the parent, which goes on, has the connection to itself then, and attaches it.
#[test]
fn one_ends_and_the_other_goes_on() {
    let mut pair = Pair::start("one-ends");
    pair.client.says("asked");
    pair.server.says("goes on");
    pair.server.goes_on();
    pair.client.goes_on();
    pair.client.says("done");
    assert!(pair.is_attached(), "{}", pair.dir.summary());
    pair.end();
}

/// A process for each connection: the parent closes its own descriptor, and the child attaches.
#[test]
fn the_parent_closes() {
    let mut pair = Pair::start("parent-closes");
    pair.client.says("connected");
    pair.server.says("closed");
    pair.client.goes_on();
    pair.client.says("done");
    assert!(pair.is_attached(), "{}", pair.dir.summary());
    pair.end();
}

/// A client that receives, and sends now and then, while its child is in the middle of a long send: each byte of both
/// arrives.
#[test]
fn a_client_of_two_processes() {
    let dir = BoardDir::new();
    let mut server = Pausing::start(&dir, &["hear-forked"]);
    let port = server.told("port");
    let mut client = Pausing::start(&dir, &["talk-forked", &port]);
    client.says("done");
    server.says("done");
    assert!(dir.attached() >= 2 || plain_only(), "{}", dir.summary());
    client.ends();
    server.ends();
}

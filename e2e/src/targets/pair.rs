//! Two worlds in this process: each with a mapping, a slot and memory of its own, as two processes
//! have them, and a connection between them that is attached.

use std::net::{Ipv4Addr, SocketAddrV6};
use std::sync::{Mutex, OnceLock};

use libc::iovec;
use local::Limits;
use local::conn::{Conn, Phase, Put};
use local::world::World;
use sys::abi::Half;
use sys::iov::Buffers;
use sys::sync::Ordering;

use crate::calls;
use crate::run::BoardDir;

/// Both worlds, and the listener that they meet at.
#[derive(Debug)]
pub struct Worlds {
    ours: &'static World,
    theirs: &'static World,
    listener: i32,
    port: u16,
    _dir: BoardDir,
}

static WORLDS: OnceLock<Mutex<Worlds>> = OnceLock::new();

/// The worlds, made once; one input at a time. A poisoned lock is an earlier failure's.
///
/// # Panics
///
/// When they cannot be made.
pub fn worlds() -> std::sync::MutexGuard<'static, Worlds> {
    let lock = WORLDS.get_or_init(|| Mutex::new(Worlds::new()));
    lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn world(dir: &BoardDir, name: &str) -> &'static World {
    let mut limits = Limits::default();
    let path = dir.path().to_string_lossy();
    limits.set("dir", &path).expect("a directory");
    limits.set("ring_max", "256K").expect("a size");
    limits.set("log", "off").expect("a level");
    Box::leak(Box::new(World::join(limits, name.into(), 400).expect("a board")))
}

impl Worlds {
    fn new() -> Self {
        let dir = BoardDir::new();
        let (ours, theirs) = (world(&dir, "ours"), world(&dir, "theirs"));
        let listener = calls::socket(0).expect("a socket");
        calls::bind(listener, 0).expect("a port");
        calls::listen(listener, 8).expect("a listener");
        let port = calls::local_port(listener).expect("its port");
        theirs.board.listen(port).expect("a slot");
        Self { ours, theirs, listener, port, _dir: dir }
    }

    /// Our world.
    #[must_use]
    pub const fn ours(&self) -> &'static World {
        self.ours
    }

    /// The peer's world, whose memory it may write.
    #[must_use]
    pub const fn theirs(&self) -> &'static World {
        self.theirs
    }

    /// A connection between the two, attached at both ends, and in both directions on the way to
    /// the ring: ours first.
    ///
    /// # Panics
    ///
    /// When it does not attach.
    #[must_use]
    pub fn connect(&self) -> [End; 2] {
        self.connect_by(|ours| ours.conn.tcp_send_ends(1))
    }

    /// [`Self::connect`], where the first send of ours, by TCP, ends so.
    ///
    /// # Panics
    ///
    /// When it does not attach.
    #[must_use]
    pub fn connect_by(&self, sent: impl FnOnce(&End)) -> [End; 2] {
        let [ours, theirs] = self.begin(sent);
        // The first look may leave it at TCP when both ends run on one CPU.
        let attached = (0..3).any(|_| theirs.conn.settle(theirs.w, theirs.fd, true));
        assert!(attached && ours.conn.settle(ours.w, ours.fd, false), "not attached");
        [ours, theirs]
    }

    /// A connection between the two whose first byte has come by TCP, before anybody looks whether it can be attached.
    ///
    /// # Panics
    ///
    /// When it is not made.
    #[must_use]
    pub fn begin(&self, sent: impl FnOnce(&End)) -> [End; 2] {
        let fd = calls::socket(libc::SOCK_NONBLOCK).expect("a socket");
        let conn = self.ours.conn().expect("a record");
        let _ = calls::connect(fd, self.port);
        let remote = SocketAddrV6::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped(), self.port, 0, 0);
        conn.connecting(self.ours, fd, remote, 0);
        assert_eq!(conn.phase(), Phase::Offered, "not offered");
        let ours = End { w: self.ours, conn, fd };
        let (fd, port) = calls::accept_from(self.listener).expect("a connection");
        calls::set_nonblocking(fd, true).expect("a socket");
        let conn = self.theirs.conn().expect("a record");
        let remote = SocketAddrV6::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port, 0, 0);
        conn.accepted(self.theirs, self.port, None, Some(remote));
        let theirs = End { w: self.theirs, conn, fd };

        ours.conn.io_seen(ours.w);
        assert!(ours.conn.tcp_send_begins());
        calls::send(ours.fd, b"?", 0).expect("room");
        sent(&ours);
        let got = calls::recv(theirs.fd, 1, 0).expect("a byte");
        assert_eq!(
            theirs.conn.after_tcp_recv(theirs.w, theirs.fd, got.len(), got.last().copied()),
            Some(1)
        );
        [ours, theirs]
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Its world.
    pub w: &'static World,
    /// Its record.
    pub conn: &'static Conn,
    /// Its socket.
    pub fd: i32,
}

/// What a receive into a buffer came to.
pub type Received = (local::conn::Got, Vec<u8>);

impl End {
    /// `Conn::recv` into a buffer of so many bytes.
    #[must_use]
    pub fn recv(&self, len: usize, flags: i32) -> Received {
        let mut bytes = vec![0u8; len];
        // In two pieces, the second of which begins anywhere.
        let (one, two) = bytes.split_at_mut(len / 3);
        let list = [one, two].map(|p| iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() });
        // SAFETY: both pieces are ours, and live until the call is done.
        let mut to = unsafe { Buffers::new(&list) }.expect("two short buffers");
        let got = self.conn.recv(self.w, self.fd, &mut to, flags);
        (got, bytes)
    }

    /// `Conn::send` of these bytes; how many were not taken.
    #[must_use]
    pub fn send(&self, bytes: &[u8]) -> (Put, usize) {
        let list = [iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        // SAFETY: only read from, and it lives until the call is done.
        let mut from = unsafe { Buffers::new(&list) }.expect("a short buffer");
        if let Some((_, half)) = self.conn.my_half(self.w) {
            let _ = self.conn.go_up(self.w, half);
        }
        let put = self.conn.send(self.w, self.fd, &mut from);
        (put, from.left())
    }

    /// Its half.
    ///
    /// # Panics
    ///
    /// When it has none.
    #[must_use]
    pub fn half(&self) -> &'static Half {
        self.conn.my_half(self.w).expect("a half").1
    }

    /// As `close` does.
    pub fn close(self) {
        if self.conn.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.conn.closing(self.w, self.fd);
            let _ = calls::close(self.fd);
            self.w.give_back(self.conn);
        }
    }
}

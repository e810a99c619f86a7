//! What clients see, told as they would: the cases of smbtorture in our words, and random ones.

mod deletes;
mod durables;
mod leases;
mod oplocks;
mod random;
mod ranges;
mod shares;

use super::{
    Break, Caching, Closed, Durability, Effects, FileKey, Granted, LeaseRequest, LeaseVersion,
    Limits, OpenId, Opener, Outcome, Request, Shard, Waiter,
};
use crate::{Access, Guid, LeaseKey, LeaseState, NtStatus, OplockLevel, SessionId, ShareAccess};

const FILE: FileKey = FileKey { device: 1, inode: 2, stream: 0 };

/// A shard, a clock, and what the clients have been told.
struct Stage {
    shard: Shard,
    fx: Effects,
    now_ms: u64,
    next: u64,
}

fn state(letters: &str) -> LeaseState {
    letters.chars().fold(LeaseState::empty(), |state, letter| {
        state
            | match letter {
                'R' => LeaseState::READ,
                'W' => LeaseState::WRITE,
                'H' => LeaseState::HANDLE,
                _ => panic!("{letter}"),
            }
    })
}

fn share(letters: &str) -> ShareAccess {
    letters.chars().fold(ShareAccess::empty(), |share, letter| {
        share
            | match letter {
                'R' => ShareAccess::READ,
                'W' => ShareAccess::WRITE,
                'D' => ShareAccess::DELETE,
                _ => panic!("{letter}"),
            }
    })
}

fn level(letter: &str) -> OplockLevel {
    match letter {
        "" => OplockLevel::None,
        "s" => OplockLevel::Two,
        "x" => OplockLevel::Exclusive,
        "b" => OplockLevel::Batch,
        _ => panic!("{letter}"),
    }
}

fn client(number: u8) -> Guid {
    Guid([number; 16])
}

fn lease_key(number: u8) -> LeaseKey {
    LeaseKey([number; 16])
}

/// An open that shares everything and may do everything, without caching.
fn plain() -> Request {
    Request { access: Access::FILE_ALL, share: ShareAccess::all(), ..Request::default() }
}

fn with_oplock(letter: &str) -> Request {
    Request { caching: Caching::Oplock(level(letter)), ..plain() }
}

fn with_lease(number: u8, letters: &str) -> Request {
    let wanted =
        LeaseRequest { key: lease_key(number), state: state(letters), ..LeaseRequest::default() };
    Request { caching: Caching::Lease(wanted), ..plain() }
}

fn with_lease_v2(number: u8, letters: &str, epoch: u16) -> Request {
    let wanted = LeaseRequest {
        key: lease_key(number),
        state: state(letters),
        version: LeaseVersion::Two,
        epoch,
        parent: None,
    };
    Request { caching: Caching::Lease(wanted), ..plain() }
}

fn overwriting(request: Request) -> Request {
    Request { overwrites: true, ..request }
}

impl Stage {
    fn new() -> Self {
        Self { shard: Shard::new(Limits::default()), fx: Effects::default(), now_ms: 0, next: 1 }
    }

    /// Names a request: the open and its waiter have the same number.
    fn prepare(&mut self, mut request: Request) -> Request {
        request.opener.open = OpenId(self.next);
        request.waiter = Waiter(self.next);
        if request.opener.client.is_nil() {
            request.opener.client = client(1);
        }
        self.next += 1;
        request
    }

    fn ask(&mut self, key: FileKey, request: &Request) -> Outcome {
        self.shard.open(self.now_ms, key, request, &mut self.fx)
    }

    /// Opens, and expects to be let in.
    #[track_caller]
    fn open(&mut self, request: Request) -> (OpenId, Granted) {
        self.open_key(FILE, request)
    }

    #[track_caller]
    fn open_key(&mut self, key: FileKey, request: Request) -> (OpenId, Granted) {
        let request = self.prepare(request);
        match self.ask(key, &request) {
            Outcome::Granted(granted) => (request.opener.open, granted),
            other => panic!("{other:?}"),
        }
    }

    /// Opens, and expects to have to wait. What it asks again with is returned.
    #[track_caller]
    fn wait(&mut self, request: Request) -> Request {
        let request = self.prepare(request);
        match self.ask(FILE, &request) {
            Outcome::Wait { .. } => Request { again: true, ..request },
            other => panic!("{other:?}"),
        }
    }

    /// Opens, and expects to be refused.
    #[track_caller]
    fn refuse(&mut self, request: Request) -> NtStatus {
        self.refuse_key(FILE, request)
    }

    #[track_caller]
    fn refuse_key(&mut self, key: FileKey, request: Request) -> NtStatus {
        let request = self.prepare(request);
        match self.ask(key, &request) {
            Outcome::Refused(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Asks again, having been woken.
    #[track_caller]
    fn again(&mut self, request: &Request) -> Outcome {
        let at = self.fx.wake.iter().position(|w| *w == request.waiter);
        self.fx.wake.remove(at.expect("woken"));
        self.ask(FILE, request)
    }

    #[track_caller]
    fn let_in(&mut self, request: &Request) -> (OpenId, Granted) {
        match self.again(request) {
            Outcome::Granted(granted) => (request.opener.open, granted),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn close(&mut self, open: OpenId) -> Closed {
        self.shard.close(FILE, open, &mut self.fx).expect("it is open")
    }

    fn acknowledge(&mut self, number: u8, letters: &str) -> Result<LeaseState, NtStatus> {
        let lease = (client(1), lease_key(number));
        self.shard.acknowledge_lease(self.now_ms, FILE, lease, state(letters), &mut self.fx)
    }

    fn acknowledge_oplock(&mut self, open: OpenId, letter: &str) -> Result<OplockLevel, NtStatus> {
        self.shard.acknowledge_oplock(FILE, open, level(letter), &mut self.fx)
    }

    /// The breaks since the last look.
    fn breaks(&mut self) -> Vec<Break> {
        std::mem::take(&mut self.fx.breaks)
    }

    /// Expects one break, of a lease.
    #[track_caller]
    fn lease_break(&mut self, number: u8, from: &str, to: &str, acknowledge: bool) {
        let breaks = self.breaks();
        let [Break::Lease { key, from: had, to: left, acknowledge: asked, .. }] = breaks[..] else {
            panic!("{breaks:?}");
        };
        assert_eq!(
            (key, had, left, asked),
            (lease_key(number), state(from), state(to), acknowledge)
        );
    }

    /// Expects one break, of an oplock.
    #[track_caller]
    fn oplock_break(&mut self, open: OpenId, to: &str, acknowledge: bool) {
        let breaks = self.breaks();
        let [Break::Oplock { open: told, to: left, acknowledge: asked, .. }] = breaks[..] else {
            panic!("{breaks:?}");
        };
        assert_eq!((told, left, asked), (open, level(to), acknowledge));
    }

    #[track_caller]
    fn no_break(&mut self) {
        assert_eq!(self.breaks(), []);
    }

    /// Every client does at once what it is told.
    fn obey(&mut self) -> Vec<Break> {
        let mut seen = Vec::new();
        loop {
            let breaks = self.breaks();
            if breaks.is_empty() {
                return seen;
            }
            for told in &breaks {
                match *told {
                    Break::Oplock { open, to, acknowledge: true, .. } => {
                        let done = self.shard.acknowledge_oplock(FILE, open, to, &mut self.fx);
                        assert_eq!(done, Ok(to));
                    }
                    Break::Lease { client, key, to, acknowledge: true, .. } => {
                        let lease = (client, key);
                        let done = self.shard.acknowledge_lease(
                            self.now_ms,
                            FILE,
                            lease,
                            to,
                            &mut self.fx,
                        );
                        assert_eq!(done, Ok(to));
                    }
                    _ => {}
                }
            }
            seen.extend(breaks);
        }
    }

    /// Opens while every client does what it is told.
    #[track_caller]
    fn open_obeyed(&mut self, request: Request) -> (OpenId, Granted, Vec<Break>) {
        let mut request = self.prepare(request);
        let mut seen = Vec::new();
        loop {
            let outcome = self.ask(FILE, &request);
            let more = self.obey();
            let stuck = more.is_empty();
            seen.extend(more);
            match outcome {
                Outcome::Granted(granted) => {
                    self.fx.wake.retain(|w| *w != request.waiter);
                    return (request.opener.open, granted, seen);
                }
                Outcome::Wait { .. } if !stuck => request.again = true,
                other => panic!("{other:?}"),
            }
        }
    }

    /// What an open has now, as its client is told.
    #[track_caller]
    fn has(&mut self, open: OpenId) -> Granted {
        self.shard.tell(FILE, open, &mut self.fx).expect("it is open")
    }

    fn contend(&mut self, open: OpenId) {
        self.shard.contend(self.now_ms, FILE, open, &mut self.fx);
    }

    fn contend_late(&mut self, open: OpenId) {
        self.shard.contend_late(self.now_ms, FILE, open, &mut self.fx);
    }

    fn contend_as_new(&mut self, open: OpenId) {
        self.shard.contend_as_new(self.now_ms, FILE, open, &mut self.fx);
    }
}

#[test]
fn nothing_is_left_of_a_file_that_all_have_closed() {
    let mut stage = Stage::new();
    for round in 0..3 {
        let (first, _) = stage.open(with_lease(1, "RH"));
        let (second, _) = stage.open(plain());
        assert_eq!(stage.shard.counts().opens, 2, "{round}");
        assert_eq!(stage.shard.held().count(), 2);
        assert!(!stage.close(first).last);
        assert!(stage.close(second).last);
        assert_eq!(stage.shard.counts(), super::Counts::default());
        assert_eq!(stage.shard.close(FILE, second, &mut stage.fx), None);
    }
    assert!(stage.fx.is_empty());
}

#[test]
fn there_is_an_end_to_opens() {
    let limits = Limits { opens: 3, opens_per_file: 2, ..Limits::default() };
    let mut stage = Stage { shard: Shard::new(limits), ..Stage::new() };
    stage.open(plain());
    stage.open(plain());
    assert_eq!(stage.refuse(plain()), NtStatus::INSUFFICIENT_RESOURCES);
    let other = FileKey { inode: 3, ..FILE };
    stage.open_key(other, plain());
    assert_eq!(
        stage.refuse_key(FileKey { inode: 4, ..FILE }, plain()),
        NtStatus::INSUFFICIENT_RESOURCES
    );
    assert_eq!(stage.shard.counts().files, 2);
}

#[test]
fn the_flags_say_when_to_look() {
    let mut stage = Stage::new();
    let (first, granted) = stage.open(with_oplock("b"));
    assert!(granted.flags.is_clear(), "who is alone may write");
    let waits = stage.wait(plain());
    stage.acknowledge_oplock(first, "s").unwrap();
    assert!(granted.flags.is_cached());
    let (second, _) = stage.let_in(&waits);
    stage.contend(second);
    assert!(granted.flags.is_clear(), "nobody caches any more");
    stage.close(first);
    stage.close(second);
}

#[test]
fn all_streams_of_a_file_are_in_one_shard_and_files_are_spread() {
    let of = |inode, stream| FileKey { device: 64, inode, stream }.shard(8);
    let mut seen = [0; 8];
    for inode in 0..8000 {
        assert_eq!(of(inode, 0), of(inode, 7));
        seen[of(inode, 0)] += 1;
    }
    assert!(seen.iter().all(|files| (800..1200).contains(files)), "{seen:?}");
    assert_eq!(FILE.shard(0), 0);
}

fn opener(number: u8, session: u64) -> Opener {
    Opener { client: client(number), session: SessionId(session), open: OpenId(0) }
}

fn durable() -> Durability {
    Durability::Durable { timeout_ms: 60_000 }
}

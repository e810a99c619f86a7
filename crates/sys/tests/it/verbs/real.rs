//! The same on a device of this host, if there is one: a card, or `rdma_rxe` on an Ethernet interface.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use sys::call;
use sys::verbs::*;

use super::stage::*;

const LIMIT: Duration = Duration::from_secs(20);
/// Several packets, and not a whole number of them.
const LONG: u32 = 100_003;

/// The first port that speaks RoCEv2; `None`, and why.
fn find() -> Result<(Context, Port, Gid), String> {
    let library = Library::load().map_err(|e| e.to_string())?;
    let devices = library.devices().map_err(|e| e.to_string())?;
    for device in &devices {
        let context = device.open().map_err(|e| format!("{device:?}: {e}"))?;
        let port = context.port(1).unwrap();
        let gids = context.gids(1).unwrap();
        let mut fit = gids.into_iter().filter(|gid| gid.kind == GidKind::RoceV2);
        // IPv4 rather than a link-local address, which may not be ready.
        let gid = fit.clone().find(|gid| gid.address[10..12] == [0xFF; 2]).or_else(|| fit.next());
        if let (true, Some(gid)) = (port.active && port.ethernet, gid) {
            println!("{device:?}, {port:?}, {gid:?}, {:?}", context.limits().unwrap());
            return Ok((context, port, gid));
        }
    }
    Err(format!("no RDMA device with an active RoCEv2 port, of {}", devices.len()))
}

/// An end with queues of its own.
struct End {
    channel: CompletionChannel,
    queue: CompletionQueue,
    pair: QueuePair,
}

impl End {
    fn new(context: &Context, domain: &ProtectionDomain, vector: u32) -> Self {
        let channel = CompletionChannel::new(context).unwrap();
        let queue = CompletionQueue::new(context, 256, vector, Some((&channel, 5))).unwrap();
        let shape = Shape { sends: 48, receives: 48, ..SHAPE };
        let pair = QueuePair::new(domain, (&queue, &queue), shape).unwrap();
        let given = pair.shape();
        assert!(given.sends >= 48 && given.receives >= 48 && given.inline_bytes >= 44, "{given:?}");
        pair.init(1, Access::REMOTE_WRITE).unwrap();
        Self { channel, queue, pair }
    }

    /// As many completions, asleep until they come.
    fn wait(&self, count: usize) -> Vec<Completion> {
        let (mut all, deadline) = (Vec::new(), Instant::now() + LIMIT);
        while all.len() < count {
            self.queue.arm(Wake::Next).unwrap();
            if self.queue.poll(|it| all.push(it)).unwrap() == 0 {
                assert!(Instant::now() < deadline, "{count} completions, only {all:?}");
                call::wait_readable(self.channel.as_raw_fd(), 1000);
            }
            while let Some(token) = self.channel.next_event().unwrap() {
                assert_eq!(token, 5);
            }
        }
        all
    }
}

/// Two queue pairs of one device, connected through its own address.
struct Two {
    context: Context,
    domain: ProtectionDomain,
    a: End,
    b: End,
}

fn two() -> Option<Two> {
    let (context, port, gid) = match find() {
        Ok(found) => found,
        Err(why) => {
            println!("skipped: {why}");
            return None;
        }
    };
    let domain = ProtectionDomain::new(&context).unwrap();
    let last = context.vectors() - 1;
    let (a, b) = (End::new(&context, &domain, 0), End::new(&context, &domain, last));
    let to = |end: &End, psn| Path {
        gid_index: u8::try_from(gid.index).unwrap(),
        gid: gid.address,
        mtu: port.mtu,
        ..path(end.pair.number(), psn)
    };
    a.pair.ready_to_receive(&to(&b, 5)).unwrap();
    b.pair.ready_to_receive(&to(&a, 0xFF_FFFF)).unwrap();
    a.pair.ready_to_send(&patience(0xFF_FFFF)).unwrap();
    b.pair.ready_to_send(&patience(5)).unwrap();
    let now = a.pair.attributes().unwrap();
    assert_eq!((now.state, now.path.qpn), (State::ReadyToSend, b.pair.number()));
    assert_eq!((now.path.gid, now.path.mtu), (gid.address, port.mtu));
    Some(Two { context, domain, a, b })
}

impl Two {
    fn region(&self, bytes: usize, access: Access) -> MemoryRegion<Buffer> {
        MemoryRegion::register(&self.domain, Buffer::new(bytes).unwrap(), access).unwrap()
    }
}

/// A completion without the numbers that differ each time.
type Outcome = (u64, Result<(Kind, u32, Option<u32>), Status>);

fn outcomes(all: &[Completion]) -> Vec<Outcome> {
    let short = |it: &Completion| {
        it.outcome.map(|d| (d.kind, d.bytes, d.immediate)).map_err(|broken| broken.status)
    };
    all.iter().map(|it| (it.id, short(it))).collect()
}

#[test]
fn messages_and_writes_arrive() {
    let Some(two) = two() else { return };
    let from = two.region(1 << 17, Access::READ);
    // By addresses of our own.
    let (memory, at) = (Buffer::new(1 << 17).unwrap(), 0x12_3450_0000);
    let to = MemoryRegion::register_at(&two.domain, memory, at, Access::REMOTE_WRITE).unwrap();
    assert_eq!(to.address(), at);
    let pattern: Vec<u8> = (0..LONG).map(|n| n.to_le_bytes()[usize::from(n % 3 == 0)]).collect();
    from.memory().copy_in(1, &pattern);
    for id in 0..3 {
        two.b
            .pair
            .post_receive(id, &[to.piece(44 * usize::try_from(id).unwrap(), 44).unwrap()])
            .unwrap();
    }
    let piece = [from.piece(1, LONG).unwrap()];
    let quiet = |request| SendRequest { signaled: false, ..request };
    let requests = [
        message(10, Source::Inline(&[1; 44])),
        quiet(write(11, (to.address() + 1000, to.rkey()), Source::Pieces(&piece))),
        message(12, Source::Inline(&[2; 44])),
        SendRequest {
            immediate: Some(0x0102_0304),
            ..write(13, (to.address() + 999, to.rkey()), Source::Inline(b"!"))
        },
    ];
    two.a.pair.post_send(&requests).unwrap();
    let expected = [
        (0, Ok((Kind::Receive, 44, None))),
        (1, Ok((Kind::Receive, 44, None))),
        (2, Ok((Kind::ReceiveWrite, 1, Some(0x0102_0304)))),
    ];
    assert_eq!(outcomes(&two.b.wait(3)), expected);
    assert_eq!(bytes(&to, 0, 88), [[1; 44], [2; 44]].concat());
    assert_eq!(bytes(&to, 999, 1), b"!");
    assert!(bytes(&to, 1000, pattern.len()) == pattern, "the write came whole");
    let expected = [
        (10, Ok((Kind::Send, 0, None))),
        (12, Ok((Kind::Send, 0, None))),
        (13, Ok((Kind::Write, 0, None))),
    ];
    assert_eq!(outcomes(&two.a.wait(3)), expected);
}

#[test]
fn a_real_device_refuses_what_is_not_allowed() {
    let Some(two) = two() else { return };
    let to = two.region(4096, Access::REMOTE_WRITE);
    two.b.pair.post_receive(1, &[to.piece(0, 44).unwrap()]).unwrap();
    let beyond = (to.address() + 4090, to.rkey());
    let requests = [
        SendRequest { signaled: false, ..write(1, beyond, Source::Inline(b"too far")) },
        message(2, Source::Inline(b"after")),
    ];
    two.a.pair.post_send(&requests).unwrap();
    let failed = outcomes(&two.a.wait(2));
    assert_eq!(failed, [(1, Err(Status::RemoteAccess)), (2, Err(Status::Flushed))]);
    assert_eq!(two.a.pair.attributes().unwrap().state, State::Error);
    // The responder's end fails, too, and says so.
    let deadline = Instant::now() + LIMIT;
    while two.b.pair.attributes().unwrap().state != State::Error {
        assert!(Instant::now() < deadline);
        call::wait_readable(two.context.as_raw_fd(), 100);
    }
    assert_eq!(outcomes(&two.b.wait(1)), [(1, Err(Status::Flushed))]);
    let mut events = Vec::new();
    while let Some(event) = two.context.next_event().unwrap() {
        events.push(event);
    }
    println!("{events:?}");
    assert_eq!(bytes(&to, 0, 4096), [0; 4096]);
}

#[test]
fn a_real_device_keeps_many_requests_in_order() {
    const ROUNDS: u64 = 2000;
    let Some(two) = two() else { return };
    let to = two.region(4096, Access::REMOTE_WRITE);
    let (mut sent, mut given_back, mut came) = (0, 0, 0);
    let place = |id: u64| to.piece(usize::try_from(id % 48).unwrap() * 44, 44).unwrap();
    for id in 0..48 {
        two.b.pair.post_receive(id, &[place(id)]).unwrap();
    }
    while given_back < ROUNDS {
        while sent < ROUNDS && sent - given_back < 24 {
            let text = [sent.to_le_bytes(); 4].concat();
            let at = (to.address() + 4000, to.rkey());
            let value = SendRequest { signaled: false, ..write(0, at, Source::Inline(&text[..8])) };
            two.a.pair.post_send(&[value, message(sent, Source::Inline(&text))]).unwrap();
            sent += 1;
        }
        // One of the two is always to come, not always the same.
        for it in if came < sent { two.b.wait(1) } else { Vec::new() } {
            assert_eq!((it.id, it.outcome.unwrap().bytes), (came, 32));
            let at = usize::try_from(came % 48).unwrap() * 44;
            assert_eq!(bytes(&to, at, 32), [came.to_le_bytes(); 4].concat());
            came += 1;
            two.b.pair.post_receive(came + 47, &[place(came + 47)]).unwrap();
        }
        for it in two.a.wait(1) {
            assert_eq!((it.id, it.outcome.is_ok()), (given_back, true));
            given_back += 1;
        }
    }
    assert_eq!(bytes(&to, 4000, 8), (ROUNDS - 1).to_le_bytes());
}

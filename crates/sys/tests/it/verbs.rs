//! The wrappers of libibverbs, on a stand-in that behaves as a card would.

mod real;
mod stage;

use std::os::fd::AsRawFd;

use stage::*;
use sys::call;
use sys::verbs::*;

fn failed(id: u64, qpn: u32, status: Status) -> Completion {
    Completion { id, qpn, outcome: Err(Broken { status, vendor: 0x99 }) }
}

fn done(id: u64, qpn: u32, kind: Kind, bytes: u32) -> Completion {
    Completion { id, qpn, outcome: Ok(Done { kind, bytes, immediate: None }) }
}

#[test]
fn the_systems_library_has_all_that_we_call_or_is_absent() {
    match Library::load() {
        // Without devices is as good as with: this is about the library.
        Ok(library) => drop(library.devices().unwrap()),
        Err(e @ LoadError::Absent { .. }) => println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn an_absent_library_says_what_to_install() {
    let error = Library::load_from("libibverbs-that-is-not.so.1").unwrap_err();
    assert!(matches!(&error, LoadError::Absent { name, .. } if name.ends_with("not.so.1")));
    let text = error.to_string();
    assert!(text.contains("cannot open shared object file"), "{text}");
    assert!(text.contains("install libibverbs1 and ibverbs-providers"), "{text}");
    assert!(matches!(Library::load_from("a\0b"), Err(LoadError::Absent { .. })));
}

#[test]
fn a_library_that_is_too_old_says_so() {
    let path = compile("old", &["-DOLD"]);
    let error = Library::load_from(path.to_str().unwrap()).unwrap_err();
    let lacks = matches!(&error, LoadError::Lacks { symbol, .. } if symbol == "_ibv_query_gid_table@IBVERBS_1.11");
    assert!(lacks, "{error:?}");
    assert!(error.to_string().ends_with("rdma-core 32 or later is needed"));
}

#[test]
fn no_devices_are_an_empty_list() {
    let path = compile("none", &["-DNO_DEVICES"]);
    let library = Library::load_from(path.to_str().unwrap()).unwrap();
    assert!(library.devices().unwrap().is_empty());
}

#[test]
fn a_device_says_what_it_is() {
    let devices = library("device").devices().unwrap();
    let [device] = &devices[..] else { panic!("{devices:?}") };
    assert_eq!(device.name(), "fake0");
    assert_eq!(device.guid(), [2, 0, 0, 0xFF, 0xFE, 0, 0, 1]);
    let context = device.open().unwrap();
    drop(devices);
    assert_eq!(context.vectors(), 4);
    let limits = context.limits().unwrap();
    assert_eq!((limits.ports, limits.pairs, limits.requests), (1, 256, 1024));
    assert_eq!((limits.pieces, limits.queues, limits.completions), (4, 64, 4096));
    assert_eq!((limits.regions, limits.region_bytes), (1024, 1 << 40));
    let port = context.port(1).unwrap();
    assert_eq!(port, Port { active: true, mtu: Mtu::B1024, ethernet: true, gids: 4 });
    assert_eq!(context.port(2).unwrap_err().errno, libc::EINVAL);
    let gids = context.gids(1).unwrap();
    let kinds: Vec<_> = gids.iter().map(|gid| (gid.index, gid.kind, gid.interface)).collect();
    assert_eq!(kinds, [(0, GidKind::RoceV1, 7), (1, GidKind::RoceV1, 7), (2, GidKind::RoceV2, 7)]);
    assert_eq!(gids[2].address, path(0, 0).gid);
    assert_eq!(context.gids(2).unwrap_err().errno, libc::EINVAL);
}

#[test]
fn a_queue_pair_keeps_what_it_was_told() {
    let stage = Stage::new("attributes");
    let pair = QueuePair::new(&stage.domain, (&stage.queue, &stage.queue), SHAPE).unwrap();
    assert_eq!(pair.attributes().unwrap().state, State::Reset);
    assert_eq!(pair.shape(), Shape { inline_bytes: 64, ..SHAPE });
    // Not in this order.
    let early = pair.ready_to_receive(&path(9, 9)).unwrap_err();
    assert_eq!((early.step, early.errno), ("connect a queue pair", libc::EINVAL));
    assert!(pair.init(2, Access::REMOTE_WRITE).is_err());
    pair.init(1, Access::REMOTE_WRITE).unwrap();
    assert_eq!(pair.attributes().unwrap().state, State::Init);
    assert!(pair.ready_to_send(&patience(1)).is_err());
    let to = Path { flow_label: 0xF_ABCD, service_level: 3, ..path(0x12_3456, 0x65_4321) };
    pair.ready_to_receive(&to).unwrap();
    assert_eq!(pair.attributes().unwrap().state, State::ReadyToReceive);
    pair.ready_to_send(&patience(0xAB_CDEF)).unwrap();
    let now = pair.attributes().unwrap();
    assert_eq!((now.state, now.path, now.patience), (State::ReadyToSend, to, patience(0xAB_CDEF)));
    assert_eq!(now.access, Access::REMOTE_WRITE);
    pair.stop().unwrap();
    assert_eq!(pair.attributes().unwrap().state, State::Error);
}

#[test]
fn messages_arrive_in_order_and_whole() {
    let stage = Stage::new("messages");
    let (a, b) = stage.ends();
    let from = stage.region(4096, Access::READ);
    let to = stage.region(4096, Access::LOCAL_WRITE);
    from.memory().copy_in(100, b"in two pieces");
    for id in 0..3 {
        let at = usize::try_from(id).unwrap() * 100;
        let pieces = [to.piece(at, 6).unwrap(), to.piece(at + 50, 50).unwrap()];
        b.post_receive(id, &pieces).unwrap();
    }
    let pieces = [from.piece(100, 7).unwrap(), from.piece(107, 6).unwrap()];
    let requests = [
        message(10, Source::Inline(b"inline")),
        message(11, Source::Pieces(&pieces)),
        SendRequest { immediate: Some(0x0102_0304), ..message(12, Source::Inline(b"")) },
    ];
    a.post_send(&requests).unwrap();
    let (a, b) = (a.number(), b.number());
    let mut last = done(2, b, Kind::Receive, 0);
    last.outcome = Ok(Done { kind: Kind::Receive, bytes: 0, immediate: Some(0x0102_0304) });
    let expected = [
        done(0, b, Kind::Receive, 6),
        done(10, a, Kind::Send, 0),
        done(1, b, Kind::Receive, 13),
        done(11, a, Kind::Send, 0),
        last,
        done(12, a, Kind::Send, 0),
    ];
    assert_eq!(stage.completions(), expected);
    assert_eq!(bytes(&to, 0, 6), b"inline");
    assert_eq!(bytes(&to, 100, 6), b"in two");
    assert_eq!(bytes(&to, 150, 7), b" pieces");
}

#[test]
fn a_message_waits_for_a_receive_request() {
    let stage = Stage::new("patient");
    let (a, b) = stage.ends();
    let to = stage.region(4096, Access::LOCAL_WRITE);
    a.post_send(&[message(1, Source::Inline(b"late"))]).unwrap();
    assert_eq!(stage.completions(), []);
    b.post_receive(7, &[to.piece(0, 4).unwrap()]).unwrap();
    assert_eq!(stage.completions().len(), 2);
    assert_eq!(bytes(&to, 0, 4), b"late");
}

#[test]
fn writes_land_where_they_may() {
    let stage = Stage::new("writes");
    let (a, b) = stage.ends();
    let from = stage.region(4096, Access::READ);
    let to = stage.region(1 << 16, Access::REMOTE_WRITE);
    from.memory().copy_in(0, &[7; 4096]);
    let piece = [from.piece(0, 4096).unwrap()];
    let at = |offset: u64| (to.address() + offset, to.rkey());
    // The way of SMC: two writes, of which nobody hears, and a message.
    b.post_receive(1, &[]).unwrap();
    let quiet = |request| SendRequest { signaled: false, ..request };
    let requests = [
        quiet(write(1, at(0), Source::Pieces(&piece))),
        quiet(write(2, at((1 << 16) - 4), Source::Inline(b"last"))),
        message(3, Source::Inline(b"")),
    ];
    a.post_send(&requests).unwrap();
    let expected = [done(1, b.number(), Kind::Receive, 0), done(3, a.number(), Kind::Send, 0)];
    assert_eq!(stage.completions(), expected);
    assert_eq!(bytes(&to, 0, 4097), [&[7; 4096][..], &[0]].concat());
    assert_eq!(bytes(&to, (1 << 16) - 4, 4), b"last");
    // And with a value of its own.
    b.post_receive(2, &[]).unwrap();
    let request = write(4, at(8), Source::Inline(b"with a value"));
    a.post_send(&[SendRequest { immediate: Some(5), ..request }]).unwrap();
    let outcome = Ok(Done { kind: Kind::ReceiveWrite, bytes: 12, immediate: Some(5) });
    let expected =
        [Completion { id: 2, qpn: b.number(), outcome }, done(4, a.number(), Kind::Write, 0)];
    assert_eq!(stage.completions(), expected);
}

#[test]
fn what_is_not_allowed_fails_both_ends_and_flushes() {
    let stage = Stage::new("denied");
    let open = stage.region(4096, Access::REMOTE_WRITE);
    let closed = stage.region(4096, Access::LOCAL_WRITE);
    let gone = stage.region(4096, Access::REMOTE_WRITE);
    let (gone_at, gone_key) = (gone.address(), gone.rkey());
    drop(gone);
    let cases = [
        ("another key", open.address(), open.rkey() ^ 1),
        ("the local key", open.address(), open.rkey() & !0x80),
        ("one byte too far", open.address() + 4093, open.rkey()),
        ("one byte too early", open.address() - 1, open.rkey()),
        ("at the end of all memory", u64::MAX - 1, open.rkey()),
        ("not to be written", closed.address(), closed.rkey()),
        ("deregistered", gone_at, gone_key),
    ];
    for (what, address, rkey) in cases {
        let (a, b) = stage.ends();
        b.post_receive(8, &[closed.piece(0, 64).unwrap()]).unwrap();
        let requests = [
            SendRequest { signaled: false, ..write(1, (address, rkey), Source::Inline(b"four")) },
            message(2, Source::Inline(b"after")),
        ];
        a.post_send(&requests).unwrap();
        a.post_send(&[message(3, Source::Inline(b"later"))]).unwrap();
        let (qa, qb) = (a.number(), b.number());
        let expected = [
            failed(8, qb, Status::Flushed),
            failed(1, qa, Status::RemoteAccess),
            failed(2, qa, Status::Flushed),
            failed(3, qa, Status::Flushed),
        ];
        assert_eq!(stage.completions(), expected, "{what}");
        assert_eq!(a.attributes().unwrap().state, State::Error, "{what}");
        assert_eq!(b.attributes().unwrap().state, State::Error, "{what}");
        assert_eq!(stage.context.next_event().unwrap(), Some(AsyncEvent::PairFailed(qb)));
        assert_eq!(stage.context.next_event().unwrap(), None);
    }
    assert_eq!(bytes(&open, 0, 4096), [0; 4096]);
}

#[test]
fn a_message_longer_than_its_place_fails_both_ends() {
    let stage = Stage::new("long");
    let (a, b) = stage.ends();
    let to = stage.region(4096, Access::LOCAL_WRITE);
    b.post_receive(1, &[to.piece(0, 3).unwrap()]).unwrap();
    a.post_send(&[message(2, Source::Inline(b"four"))]).unwrap();
    let expected = [
        failed(1, b.number(), Status::LocalLength),
        failed(2, a.number(), Status::RemoteInvalidRequest),
    ];
    assert_eq!(stage.completions(), expected);
    assert_eq!(bytes(&to, 0, 4), [0; 4]);
}

#[test]
fn memory_of_another_domain_or_gone_is_refused_here() {
    let stage = Stage::new("domains");
    let other = ProtectionDomain::new(&stage.context).unwrap();
    let memory = Buffer::new(4096).unwrap();
    let foreign = MemoryRegion::register(&other, memory, Access::READ).unwrap();
    let gone = stage.region(4096, Access::READ).piece(0, 4).unwrap();
    for piece in [foreign.piece(0, 4).unwrap(), gone] {
        let (a, _b) = stage.ends();
        a.post_send(&[message(1, Source::Pieces(&[piece]))]).unwrap();
        assert_eq!(stage.completions(), [failed(1, a.number(), Status::LocalProtection)]);
    }
}

#[test]
fn a_peer_that_is_gone_is_noticed() {
    let stage = Stage::new("gone");
    let (a, b) = stage.ends();
    drop(b);
    a.post_send(&[message(1, Source::Inline(b"hello"))]).unwrap();
    assert_eq!(stage.completions(), [failed(1, a.number(), Status::RetriesExceeded)]);
}

#[test]
fn room_returns_with_completions() {
    let stage = Stage::new("room");
    let (a, _b) = stage.ends();
    let to = stage.region(4096, Access::REMOTE_WRITE);
    let at = (to.address(), to.rkey());
    let request = |id, signaled| SendRequest { signaled, ..write(id, at, Source::Inline(b"x")) };
    let seven: Vec<_> = (0..7).map(|id| request(id, false)).collect();
    a.post_send(&seven).unwrap();
    // Two more, but for one there is room.
    let error = a.post_send(&[request(7, true), request(8, true)]).unwrap_err();
    assert_eq!((error.posted, error.failure.errno), (1, libc::ENOMEM));
    assert_eq!(error.failure.step, "post a request to send");
    assert_eq!(stage.completions(), [done(7, a.number(), Kind::Write, 0)]);
    // All eight were given back, and are told of across chains.
    let nine: Vec<_> = (0..9).map(|id| request(id, id == 7)).collect();
    assert_eq!(a.post_send(&nine).unwrap_err().posted, 8);
    for id in 0..8 {
        a.post_receive(id, &[]).unwrap();
    }
    assert_eq!(a.post_receive(8, &[]).unwrap_err().errno, libc::ENOMEM);
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let stage = Stage::new("refused");
    let (a, _b) = stage.ends();
    let piece = stage.region(4096, Access::READ).piece(0, 1).unwrap();
    let (three, five) = ([piece; 3], [piece; PIECES_MAX + 1]);
    for source in [Source::Inline(&[0; 65]), Source::Pieces(&three), Source::Pieces(&five)] {
        let error = a.post_send(&[message(1, source)]).unwrap_err();
        assert_eq!((error.posted, error.failure.errno), (0, libc::EINVAL));
    }
    assert_eq!(a.post_receive(1, &three).unwrap_err().errno, libc::EINVAL);
    assert_eq!(a.post_receive(1, &five).unwrap_err().errno, libc::EINVAL);
    let early = stage.end();
    let error = early.post_send(&[message(1, Source::Inline(b"x"))]).unwrap_err();
    assert_eq!(error.failure.errno, libc::EINVAL);
    assert_eq!(stage.completions(), []);
    let queue = |room, vector| CompletionQueue::new(&stage.context, room, vector, None);
    assert_eq!(queue(64, 4).unwrap_err().errno, libc::EINVAL);
    assert_eq!(queue(0, 0).unwrap_err().errno, libc::EINVAL);
    assert_eq!(queue(u32::MAX, 0).unwrap_err().errno, libc::EINVAL);
    let shape = Shape { sends: 1025, ..SHAPE };
    let queues = (&stage.queue, &stage.queue);
    assert_eq!(QueuePair::new(&stage.domain, queues, shape).unwrap_err().errno, libc::EINVAL);
    let access = Access { local_write: false, remote_write: true };
    let refused = MemoryRegion::register(&stage.domain, Buffer::new(4096).unwrap(), access);
    assert_eq!(refused.unwrap_err().errno, libc::EINVAL);
}

#[test]
fn memory_may_have_an_address_of_its_own() {
    let stage = Stage::new("address");
    let (a, b) = stage.ends();
    let access = Access::REMOTE_WRITE;
    let of = |address| {
        let memory = Buffer::new(8192).unwrap();
        MemoryRegion::register_at(&stage.domain, memory, address, access)
    };
    assert_eq!(of(0x10_0001).unwrap_err().errno, libc::EINVAL);
    let region = of(0x10_0000).unwrap();
    assert_eq!(region.address(), 0x10_0000);
    a.post_send(&[write(1, (0x10_1FFC, region.rkey()), Source::Inline(b"last"))]).unwrap();
    assert_eq!(stage.completions(), [done(1, a.number(), Kind::Write, 0)]);
    assert_eq!(bytes(&region, 8188, 4), b"last");
    // By the same addresses in requests of our own.
    b.post_receive(2, &[region.piece(4096, 2).unwrap()]).unwrap();
    a.post_send(&[message(3, Source::Pieces(&[region.piece(8188, 2).unwrap()]))]).unwrap();
    assert_eq!(bytes(&region, 4096, 3), b"la\0");
}

#[test]
fn a_piece_lies_within_its_region() {
    let stage = Stage::new("pieces");
    let region = stage.region(4096, Access::READ);
    assert!(region.piece(0, 4096).is_some());
    assert!(region.piece(4096, 0).is_some());
    assert!(region.piece(1, 4096).is_none());
    assert!(region.piece(4097, 0).is_none());
    assert!(region.piece(usize::MAX, 1).is_none());
}

#[test]
fn a_channel_wakes_once_for_what_was_asked() {
    let stage = Stage::new("wake");
    let (a, b) = stage.ends();
    let fd = stage.channel.as_raw_fd();
    let send = |solicited| {
        b.post_receive(1, &[]).unwrap();
        let request = SendRequest { solicited, ..message(2, Source::Inline(b"")) };
        a.post_send(&[SendRequest { signaled: false, ..request }]).unwrap();
    };
    let event = || {
        assert_eq!(call::readable(fd).0, stage.channel.next_event().unwrap().is_some());
    };
    send(true);
    event();
    assert_eq!(stage.channel.next_event().unwrap(), None, "it was not armed");
    stage.queue.arm(Wake::Next).unwrap();
    send(false);
    assert!(call::readable(fd).0);
    assert_eq!(stage.channel.next_event().unwrap(), Some(77));
    send(true);
    assert_eq!(stage.channel.next_event().unwrap(), None, "once");
    stage.completions();
    stage.queue.arm(Wake::Solicited).unwrap();
    send(false);
    assert_eq!(stage.channel.next_event().unwrap(), None, "not solicited");
    send(true);
    assert_eq!(stage.channel.next_event().unwrap(), Some(77));
    stage.completions();
    // A failure is worth waking for, too.
    stage.queue.arm(Wake::Solicited).unwrap();
    b.post_receive(3, &[]).unwrap();
    b.stop().unwrap();
    assert_eq!(stage.channel.next_event().unwrap(), Some(77));
    assert_eq!(stage.completions(), [failed(3, b.number(), Status::Flushed)]);
}

#[test]
fn a_queue_that_overflows_says_so() {
    let stage = Stage::new("overflow");
    let small = CompletionQueue::new(&stage.context, 2, 0, None).unwrap();
    assert_eq!(small.room(), 2);
    let pair = QueuePair::new(&stage.domain, (&small, &small), SHAPE).unwrap();
    pair.init(1, Access::REMOTE_WRITE).unwrap();
    for id in 0..3 {
        pair.post_receive(id, &[]).unwrap();
    }
    pair.stop().unwrap();
    let failure = small.poll(|it| panic!("{it:?}")).unwrap_err();
    assert_eq!((failure.step, failure.errno), ("take completions", libc::EIO));
}

#[test]
fn batches_are_taken_whole() {
    let stage = Stage::new("batches");
    let shape = Shape { receives: 40, ..SHAPE };
    let pair = QueuePair::new(&stage.domain, (&stage.queue, &stage.queue), shape).unwrap();
    pair.init(1, Access::REMOTE_WRITE).unwrap();
    (0..40).for_each(|id| pair.post_receive(id, &[]).unwrap());
    pair.stop().unwrap();
    let mut ids = Vec::new();
    let counts = [(); 4].map(|()| stage.queue.poll(|it| ids.push(it.id)).unwrap());
    assert_eq!(counts, [BATCH, BATCH, 40 - 2 * BATCH, 0]);
    assert!(ids.iter().copied().eq(0..40));
}

/// The stand-in ends the process when something is destroyed before what was made of it.
#[test]
fn whatever_is_dropped_first_the_order_is_right() {
    let library = library("order");
    for order in 0..120 {
        let stage = Stage::of(&library.devices().unwrap()[0]);
        let (a, b) = stage.ends();
        let region = stage.region(4096, Access::REMOTE_WRITE);
        b.post_receive(1, &[region.piece(0, 16).unwrap()]).unwrap();
        stage.queue.arm(Wake::Next).unwrap();
        a.post_send(&[message(1, Source::Inline(b"x"))]).unwrap();
        let Stage { context, domain, channel, queue } = stage;
        channel.next_event().unwrap();
        let mut all: Vec<Box<dyn std::any::Any>> = vec![
            Box::new((a, b)),
            Box::new((context, region)),
            Box::new(domain),
            Box::new(channel),
            Box::new(queue),
        ];
        let mut rest = order;
        for left in (1..=all.len()).rev() {
            drop(all.swap_remove(rest % left));
            rest /= left;
        }
    }
}

#[test]
fn many_threads_may_use_a_device() {
    let library = library("threads");
    let device = &library.devices().unwrap()[0];
    let context = device.open().unwrap();
    std::thread::scope(|scope| {
        for vector in 0..4 {
            let context = &context;
            scope.spawn(move || {
                let domain = ProtectionDomain::new(context).unwrap();
                let channel = CompletionChannel::new(context).unwrap();
                let queue = CompletionQueue::new(context, 64, vector, Some((&channel, 1))).unwrap();
                let stage = Stage { context: context.clone(), domain, channel, queue };
                let (a, b) = stage.ends();
                for round in 0..2000 {
                    stage.queue.arm(Wake::Next).unwrap();
                    b.post_receive(round, &[]).unwrap();
                    a.post_send(&[message(round, Source::Inline(b""))]).unwrap();
                    assert_eq!(stage.channel.next_event().unwrap(), Some(1));
                    let ids = stage.completions();
                    assert!(ids.len() == 2 && ids.iter().all(|it| it.id == round));
                }
            });
        }
    });
}

#[test]
fn events_of_a_device_are_told() {
    let path = compile("events", &[]);
    let path = path.to_str().unwrap();
    let context = Library::load_from(path).unwrap().devices().unwrap()[0].open().unwrap();
    assert_eq!(context.next_event().unwrap(), None);
    assert!(!call::readable(context.as_raw_fd()).0);
    let cases = [
        (0, AsyncEvent::QueueFailed),
        (8, AsyncEvent::DeviceFailed),
        (9, AsyncEvent::PortUp(1)),
        (10, AsyncEvent::PortDown(1)),
        (18, AsyncEvent::AddressesChanged(1)),
        (99, AsyncEvent::Other(99)),
    ];
    for (number, _) in cases {
        happen(path, number);
    }
    assert!(call::readable(context.as_raw_fd()).0);
    for (_, event) in cases {
        assert_eq!(context.next_event().unwrap(), Some(event));
    }
    assert_eq!(context.next_event().unwrap(), None);
}

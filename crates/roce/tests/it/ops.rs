//! Any sequence of packets, requests and times, told by bytes: a hostile peer costs its own queue pair
//! only, and everything asked for ends once.

use std::collections::VecDeque;

use roce::icrc::{Identification, check, seal};
use roce::wire::{Aeth, Bth, Header, Nak, Opcode, Packet, Place, Reth, Syndrome, UDP_PORT};
use roce::*;

/// Reads the bytes; zeros when they end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }
}

const RING: usize = 1024;
const RING_AT: u64 = u64::MAX - 5000;

fn index(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

/// Three buffers: the ring that the peer may write, one for what is received, one of somebody else.
struct Buffers([Vec<u8>; 3]);

impl Memory for Buffers {
    fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let (place, at) = (index(handle.0), index(offset));
        to.copy_from_slice(&self.0[place][at..at + to.len()]);
        Ok(())
    }

    fn write(&mut self, handle: Handle, offset: u64, from: &[u8]) -> Result<(), Fault> {
        let (place, at) = (index(handle.0), index(offset));
        self.0[place][at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
}

struct World {
    device: Device,
    memory: Buffers,
    now: Time,
    /// Of the hostile peer, and of another.
    qpn: Qpn,
    bystander: Qpn,
    ring: Key,
    inbox: Key,
    /// Of another protection domain.
    foreign: Key,
    /// Where the peer's and our numbers began.
    theirs: Psn,
    ours: Psn,
    next_id: u64,
    sends: VecDeque<u64>,
    receives: VecDeque<u64>,
}

fn to_us() -> Flow {
    let addresses = Addresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    Flow { addresses, src_port: UDP_PORT }
}

fn region(handle: u64, address: u64, len: usize, access: Access) -> Region {
    let domain = ProtectionDomain(u16::from(handle > 1));
    Region { domain, address, len: len as u64, access, handle: Handle(handle) }
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let config = DeviceConfig {
            qps_max: 2,
            regions_max: 4,
            cq_capacity: if input.byte() == 0 { 16 } else { 4096 },
            ..DeviceConfig::default()
        };
        let mut device = Device::new(&config, Secret::new([1, 2])).expect("a good configuration");
        let memory = Buffers([vec![0; RING], vec![0; 1000], vec![0x55; 100]]);
        let mut register = |region| device.register(region).expect("there is room");
        let ring = register(region(0, RING_AT, RING, Access::REMOTE_WRITE));
        let inbox = register(region(1, 0, 1000, Access::LOCAL_WRITE));
        let foreign = register(region(2, RING_AT, 100, Access::REMOTE_WRITE));
        let qp = |domain| QpConfig { domain: ProtectionDomain(domain), ..QpConfig::default() };
        let mut create = |domain| device.create_qp(&qp(domain)).expect("there is room");
        let (qpn, bystander) = (create(0), create(1));
        let (theirs, ours) = (Psn::new(0xff_fff0), Psn::new(input.word()));
        let mut world = Self {
            device,
            memory,
            now: Time::from_nanos(1),
            qpn,
            bystander,
            ring,
            inbox,
            foreign,
            theirs,
            ours,
            next_id: 0,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        };
        world.connect(qpn, to_us().addresses.reversed());
        let other = Addresses::V4 { src: [10, 0, 0, 2].into(), dst: [10, 0, 0, 9].into() };
        world.connect(bystander, other);
        world
    }

    fn connect(&mut self, qpn: Qpn, addresses: Addresses) {
        let rtr = RtrAttributes {
            congestion: Some(Dcqcn::default()),
            ..RtrAttributes::new(addresses, Qpn::new(99), self.theirs, Mtu::B256)
        };
        let rts = RtsAttributes { window: 8, ..RtsAttributes::shunt(self.ours) };
        let done = self.device.init(qpn);
        let done = done.and_then(|()| self.device.ready_to_receive(qpn, &rtr));
        done.and_then(|()| self.device.ready_to_send(qpn, &rts)).expect("from reset");
    }

    fn receive(&mut self, bytes: &[u8], marked: bool) {
        let Flow { addresses, src_port } = to_us();
        let arrival = Arrival { addresses, src_port, marked, identification: None };
        _ = self.device.receive(self.now, &mut self.memory, &arrival, bytes);
    }

    /// A packet with a header as the peer would make it, more or less, and its CRC right.
    fn packet(&mut self, input: &mut Input<'_>) {
        let place = input.of(&[Place::First, Place::Middle, Place::Last, Place::Only]);
        let opcode = match input.byte() % 8 {
            0..3 => Opcode::Write(place, input.byte() & 1 == 1 && place.ends()),
            3..5 => Opcode::Send(place, input.byte() & 1 == 1 && place.ends()),
            5 => Opcode::Cnp,
            _ => Opcode::Acknowledge,
        };
        let answers = opcode == Opcode::Acknowledge;
        let start = if answers { self.ours } else { self.theirs };
        let psn = start.plus(u32::from(input.byte() % 64)).minus(4);
        let mut bth = Bth::new(opcode, input.of(&[self.qpn, self.qpn, self.bystander]), psn);
        bth.ack_request = input.byte() & 1 == 1;
        let mut header = Header::new(bth);
        header.reth = opcode.has_reth().then(|| Reth {
            address: RING_AT.wrapping_add(u64::from(input.word() % 1200)).wrapping_sub(50),
            rkey: match input.byte() {
                0..200 => self.ring.0,
                200..230 => self.foreign.0,
                _ => input.word(),
            },
            len: if input.byte() < 200 { input.word() % 1100 } else { input.word() },
        });
        header.immediate = opcode.has_immediate().then(|| input.word());
        let nak = [Nak::Sequence, Nak::InvalidRequest, Nak::RemoteAccess, Nak::RemoteOperational];
        let syndrome = match input.byte() % 8 {
            0..5 => Syndrome::Ack(31),
            5 => Syndrome::Rnr(input.byte()),
            6 => Syndrome::Nak(Nak::Sequence),
            _ => Syndrome::Nak(input.of(&nak)),
        };
        header.aeth = answers.then_some(Aeth { syndrome, msn: Psn::default() });
        let alone = answers || opcode == Opcode::Cnp;
        let len = if alone { 0 } else { input.of(&[256, 256, 0, 1, 44, 255, 257, 4096]) };
        let (payload, mut bytes) = (vec![input.byte(); len], vec![0; PACKET_MAX]);
        let end = Packet { header, payload: &payload }.emit(&mut bytes).expect("a good header");
        let len = seal(&to_us(), 0, &mut bytes, end).expect("there is room");
        self.receive(&bytes[..len], input.byte() & 1 == 1);
    }

    /// Any bytes, with their CRC right or as they are.
    fn bytes(&mut self, input: &mut Input<'_>) {
        let len = usize::from(input.byte()) % 80;
        let mut bytes = input.bytes(len);
        if let Some(to) = bytes.get_mut(5..8) {
            to.copy_from_slice(&self.qpn.value().to_be_bytes()[1..]);
        }
        if input.byte() & 1 == 1 && len >= 4 {
            seal(&to_us(), 0, &mut bytes, len - 4);
        }
        self.receive(&bytes, false);
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        let operation = if input.byte() & 1 == 0 {
            Operation::Send
        } else {
            Operation::Write { address: input.word().into(), rkey: input.word() }
        };
        let piece = |len| Piece { key: self.inbox, address: 0, len };
        let pieces = [piece(input.word() % 700), piece(input.word() % 1100)];
        let len = usize::from(input.byte() % 70);
        let inline = input.bytes(len);
        let source =
            if inline.len() < 50 { Source::Pieces(&pieces) } else { Source::Inline(&inline) };
        let request = SendRequest {
            id: self.next_id,
            operation,
            source,
            immediate: None,
            signaled: true,
            solicited: false,
        };
        if self.device.post_send(self.qpn, &request).is_ok() {
            self.sends.push_back(self.next_id);
            self.next_id += 1;
        }
    }

    fn post_receive(&mut self, input: &mut Input<'_>) {
        let (address, len) = (u64::from(input.byte()), input.word() % 900);
        let pieces = [Piece { key: self.inbox, address, len }];
        let request = ReceiveRequest { id: self.next_id, pieces: &pieces };
        if self.device.post_receive(self.qpn, &request).is_ok() {
            self.receives.push_back(self.next_id);
            self.next_id += 1;
        }
    }

    /// Sends all there is: packets that others can read.
    fn transmit(&mut self) {
        let mut buffer = [0; PACKET_MAX * 2];
        let mut packets = 0;
        while let Some(run) = self.device.transmit(self.now, &self.memory, &mut buffer, 8) {
            assert_eq!(run.len.div_ceil(run.segment_len), run.segments);
            for (id, bytes) in (0..).zip(buffer[..run.len].chunks(run.segment_len)) {
                assert_eq!(check(&run.flow, Identification::Known(id), bytes), Ok(id));
                assert!(Packet::parse(bytes).is_ok());
            }
            packets += run.segments;
            assert!(packets <= 8 + 2 * 2, "a window, and two answers each");
        }
    }

    fn poll(&mut self) {
        for cq in self.device.cqs() {
            while let Ok(Some(done)) = self.device.poll_cq(cq) {
                assert_eq!(done.qpn, self.qpn);
                let posted = match done.kind {
                    Kind::Send | Kind::Write => &mut self.sends,
                    Kind::Receive | Kind::ReceiveWrite => &mut self.receives,
                };
                assert_eq!(posted.pop_front(), Some(done.id), "each once, in order");
            }
        }
    }

    fn begin_again(&mut self) {
        self.poll();
        self.device.reset(self.qpn).expect("it is there");
        self.sends.clear();
        self.receives.clear();
        self.connect(self.qpn, to_us().addresses.reversed());
    }

    fn check(&self) {
        let bystander = self.device.qp(self.bystander).expect("it is there");
        assert_eq!((bystander.in_flight, bystander.sends), (0, 0));
        assert!(self.memory.0[2].iter().all(|byte| *byte == 0x55), "somebody else's memory");
        if let Some(at) = self.device.next_deadline() {
            assert!(at > Time::ZERO);
        }
    }
}

/// Does what the bytes say.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut world = World::new(&mut input);
    while !input.0.is_empty() {
        match input.byte() % 16 {
            0..7 => world.packet(&mut input),
            7 => world.bytes(&mut input),
            8..10 => world.post_send(&mut input),
            10 => world.post_receive(&mut input),
            11 | 12 => world.transmit(),
            13 => {
                world.now = world.now.plus_nanos(u64::from(input.byte()) << (input.byte() % 24));
                world.device.on_deadline(world.now);
            }
            14 => world.poll(),
            _ => match input.byte() % 16 {
                0 => world.begin_again(),
                1 => _ = world.device.deregister(world.ring),
                2 => world.device.fail(world.now, world.qpn).expect("it is there"),
                _ => world.transmit(),
            },
        }
        world.check();
    }
    // Time alone ends everything: nothing waits for ever, and no loop runs without it.
    for _ in 0..2000 {
        world.transmit();
        world.poll();
        let Some(next) = world.device.next_deadline() else { break };
        world.now = world.now.max(next);
        world.device.on_deadline(world.now);
    }
    assert!(world.device.next_deadline().is_none(), "still waits");
    let overflowed = world.device.cqs().any(|cq| world.device.cq_counters(cq).overflows > 0);
    assert!(overflowed || world.sends.is_empty(), "requests without end");
}

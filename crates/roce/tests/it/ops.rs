//! Any sequence of packets, requests and times, told by bytes: a hostile peer costs its own queue pair
//! only, and everything asked for ends once.

use std::collections::VecDeque;

use roce::icrc::{Identification, check, seal};
use roce::wire::{Aeth, Bth, Header, Nak, Opcode, Packet, Place, Reth, Syndrome, UDP_PORT};
use roce::*;
use testkit::input::Input;

const RING: usize = 4096;
const RING_AT: u64 = u64::MAX - 5000;

fn index(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

/// Three buffers: the ring that the peer may write, one for what is received, one of somebody else. And how often
/// bytes were summed while they were written.
struct Buffers([Vec<u8>; 3], u64);

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

    fn write_summed(
        &mut self,
        handle: Handle,
        offset: u64,
        from: &[u8],
        register: u32,
    ) -> Option<u32> {
        self.write(handle, offset, from).ok()?;
        self.1 += 1;
        Some(from.iter().fold(register, |register, byte| {
            (0..8).fold(register ^ u32::from(*byte), |crc, _| {
                if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }
            })
        }))
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
    /// What an honest peer would send next, and the message that it is in: whether a WRITE, and bytes
    /// to come.
    next: Psn,
    open: Option<(bool, u16)>,
    /// Something odd was taken, so that there may be another message under way.
    odd: bool,
    /// The last of ours that was sent.
    sent: Psn,
    next_id: u64,
    sends: VecDeque<u64>,
    receives: VecDeque<u64>,
}

fn to_us() -> Flow {
    let addresses = Addresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    Flow { addresses, src_port: UDP_PORT }
}

fn region(handle: u64, address: u64, len: usize, access: Access) -> Region {
    let domain = ProtectionDomain(u64::from(handle > 1));
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
        let memory = Buffers([vec![0; RING], vec![0; 1000], vec![0x55; 100]], 0);
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
            next: theirs,
            open: None,
            odd: false,
            sent: ours,
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

    fn receive(&mut self, bytes: &[u8], marked: bool) -> Result<Outcome, Reason> {
        let Flow { addresses, src_port } = to_us();
        let arrival = Arrival { addresses, src_port, marked, identification: None };
        self.device.receive(self.now, &mut self.memory, &arrival, bytes)
    }

    /// A packet of requests as an honest peer would make it next.
    fn honest(&mut self, input: &mut Input<'_>) {
        let (place, write, len) = match self.open {
            Some((write, left)) if left > 256 => (Place::Middle, write, 256),
            Some((write, left)) => (Place::Last, write, left),
            None => {
                let len = input.choice(&[0, 1, 44, 256, 300, 700]);
                let place = if len > 256 { Place::First } else { Place::Only };
                self.open = Some((input.byte() & 1 == 1, len));
                (place, self.open.is_some_and(|(write, _)| write), len.min(256))
            }
        };
        let whole = self.open.map_or(0, |(_, left)| left);
        let immediate = place.ends() && input.byte() & 7 == 0;
        let opcode = if write { Opcode::Write } else { Opcode::Send }(place, immediate);
        let mut bth = Bth::new(opcode, self.qpn, self.next);
        bth.ack_request = input.byte() & 3 != 0;
        let mut header = Header::new(bth);
        let address = RING_AT + u64::from(input.byte());
        let reth = Reth { address, rkey: self.ring.0, len: u32::from(whole) };
        header.reth = opcode.has_reth().then_some(reth);
        header.immediate = opcode.has_immediate().then_some(5);
        if self.deliver(header, len.into(), input.byte()).is_ok() {
            self.next = self.next.plus(1);
            self.open = (!place.ends()).then_some((write, whole - len));
        } else if place.begins() {
            self.open = None;
        }
    }

    /// All packets of a WRITE at once, some of them spoiled: only where that writes has anything changed.
    fn burst(&mut self, input: &mut Input<'_>) {
        let (at, len) = (input.byte(), input.choice(&[700, 2000, 2048, 4000, 4096]));
        let reth = Reth { address: RING_AT + u64::from(at), rkey: self.ring.0, len };
        let count = usize::try_from(len.div_ceil(256)).expect("small");
        let counts_up = input.byte() & 1 == 1;
        let (mut packets, mut knows) = (Vec::new(), self.open.is_none() && !self.odd);
        for index in 0..count {
            let place = match index {
                0 => Place::First,
                _ if index + 1 == count => Place::Last,
                _ => Place::Middle,
            };
            let mut bth = Bth::new(Opcode::Write(place, false), self.qpn, self.next);
            bth.psn = self.next.plus(u32::try_from(index).expect("small"));
            let mut header = Header::new(bth);
            header.reth = (index == 0).then_some(reth);
            let end = if place.ends() { len as usize - index * 256 } else { 256 };
            let (payload, mut bytes) = (vec![index.to_le_bytes()[0]; end], vec![0; PACKET_MAX]);
            let end = Packet { header, payload: &payload }.emit(&mut bytes).expect("a good header");
            let number = if counts_up { u16::try_from(index).expect("small") } else { 0 };
            let how = input.byte();
            if how < 8 {
                // A header, or payload, that is another one, with its CRC right.
                bytes[usize::from(input.byte()) % end] ^= 1 << (how & 7);
                (knows, self.odd) = (knows && index > 0, true);
            }
            let end = seal(&to_us(), number, &mut bytes, end).expect("there is room");
            bytes.truncate(end);
            match how {
                8..12 => bytes[usize::from(input.byte()) % end] ^= 1 << (how & 7),
                12 => _ = bytes.pop(),
                13 => continue,
                _ => {}
            }
            packets.push(bytes);
            if how == 14 {
                packets.extend(packets.last().cloned());
            }
        }
        let Flow { addresses, src_port } = to_us();
        let marked = input.byte() < 8;
        let arrival = Arrival { addresses, src_port, marked, identification: None };
        let (ring, before) = (self.memory.0[0].clone(), self.device.counters().bytes_in);
        let packets = packets.iter().map(Vec::as_slice);
        self.device.receive_burst(self.now, &mut self.memory, &arrival, packets);
        if knows {
            // What went wrong among its like and is not counted is within it as well.
            let within = usize::from(at)..usize::from(at) + len as usize;
            let changed = |at: &usize| ring[*at] != self.memory.0[0][*at];
            let outside = (0..RING).filter(changed).find(|at| !within.contains(at));
            assert!(outside.is_none(), "byte {outside:?}, not of {within:?}");
            let taken = self.device.counters().bytes_in - before;
            if taken == u64::from(len) {
                self.next = self.next.plus(u32::try_from(count).expect("small"));
            } else {
                self.odd |= taken > 0;
            }
        }
    }

    /// An answer to what was sent, or to what was not.
    fn answer(&mut self, input: &mut Input<'_>) {
        let psn = self.sent.minus(u32::from(input.byte() % 12)).plus(u32::from(input.byte() % 3));
        let nak = [Nak::Sequence, Nak::InvalidRequest, Nak::RemoteAccess, Nak::RemoteOperational];
        let syndrome = match input.byte() % 32 {
            0..22 => Syndrome::Ack(31),
            22..26 => Syndrome::Rnr(input.byte()),
            26..31 => Syndrome::Nak(Nak::Sequence),
            _ => Syndrome::Nak(input.choice(&nak)),
        };
        let header = Header::new(Bth::new(Opcode::Acknowledge, self.qpn, psn));
        let aeth = Some(Aeth { syndrome, msn: Psn::default() });
        _ = self.deliver(Header { aeth, ..header }, 0, input.byte());
    }

    /// A packet with a header of any kind.
    fn odd(&mut self, input: &mut Input<'_>) {
        let place = input.choice(&[Place::First, Place::Middle, Place::Last, Place::Only]);
        let immediate = input.byte() & 1 == 1 && place.ends();
        let opcode = match input.byte() % 4 {
            0 | 1 => Opcode::Write(place, immediate),
            2 => Opcode::Send(place, immediate),
            _ => Opcode::Cnp,
        };
        // Most notifications are of what was sent.
        let (base, back) = if opcode == Opcode::Cnp { (self.sent, 6) } else { (self.next, 4) };
        let psn = base.plus(u32::from(input.byte() % 8)).minus(back);
        let to = input.choice(&[
            self.qpn,
            self.qpn,
            self.bystander,
            Qpn::new(self.qpn.value() ^ 1 << 20),
        ]);
        let mut header = Header::new(Bth::new(opcode, to, psn));
        header.reth = opcode.has_reth().then(|| Reth {
            address: RING_AT.wrapping_add(u64::from(input.word() % 4200)).wrapping_sub(50),
            rkey: match input.byte() {
                0..200 => self.ring.0,
                200..230 => self.foreign.0,
                _ => input.word(),
            },
            len: if input.byte() < 200 { input.word() % 4200 } else { input.word() },
        });
        header.immediate = opcode.has_immediate().then(|| input.word());
        let alone = opcode == Opcode::Cnp;
        let len = if alone { 0 } else { input.choice(&[256, 256, 0, 1, 44, 255, 257, 4096]) };
        let outcome = self.deliver(header, len, input.byte());
        self.odd |= matches!(outcome, Ok(Outcome::Payload | Outcome::Message));
        if outcome == Ok(Outcome::Payload) {
            self.open = None;
        }
    }

    /// Gives the device a packet with this header, its CRC right, or broken now and then.
    fn deliver(&mut self, header: Header, len: usize, how: u8) -> Result<Outcome, Reason> {
        let (payload, mut bytes) = (vec![how; len], vec![0; PACKET_MAX]);
        let end = Packet { header, payload: &payload }.emit(&mut bytes).expect("a good header");
        let len = seal(&to_us(), 0, &mut bytes, end).expect("there is room");
        if how == 0 {
            bytes[len - 1] ^= 1;
        }
        self.receive(&bytes[..len], how & 1 == 1)
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
        self.odd |= self.receive(&bytes, false).is_ok();
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        let operation = if input.byte() & 1 == 0 {
            Operation::Send
        } else {
            Operation::Write { address: input.word().into(), rkey: input.word() }
        };
        let piece = |len| Piece { key: self.inbox, address: 0, len };
        let last = if input.byte() < 8 { 1100 } else { 1000 };
        let pieces = [piece(input.word() % 700), piece(input.word() % last)];
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
        let (address, len) = (u64::from(input.byte()), 200 + input.word() % 700);
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
                let bth = Packet::parse(bytes).expect("as others can read it").header.bth;
                if matches!(bth.opcode, Opcode::Send(..) | Opcode::Write(..)) {
                    self.sent = bth.psn;
                }
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

    fn has_failed(&self) -> bool {
        self.device.qp(self.qpn).is_some_and(|qp| qp.state == State::Error)
    }

    fn begin_again(&mut self) {
        self.poll();
        self.device.reset(self.qpn).expect("it is there");
        self.sends.clear();
        self.receives.clear();
        (self.next, self.open, self.odd, self.sent) = (self.theirs, None, false, self.ours);
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

/// Does what the bytes say; what the device counted, and how often bytes were summed while they were written.
pub(crate) fn run(bytes: &[u8]) -> (Counters, u64) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    while !input.is_empty() {
        match input.byte() % 16 {
            0..3 => world.honest(&mut input),
            3 => world.burst(&mut input),
            4..6 => world.answer(&mut input),
            6 if input.byte() < 100 => world.odd(&mut input),
            6 | 7 => world.bytes(&mut input),
            8..10 => world.post_send(&mut input),
            10 => world.post_receive(&mut input),
            11 | 12 => world.transmit(),
            13 => {
                world.now = world.now.plus_nanos(u64::from(input.byte()) << (input.byte() % 24));
                world.device.on_deadline(world.now);
            }
            14 => world.poll(),
            _ => match input.byte() % 32 {
                0 => world.begin_again(),
                _ if world.has_failed() => world.begin_again(),
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
    (world.device.counters().clone(), world.memory.1)
}

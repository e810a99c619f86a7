//! The simulation itself: a program made of any bytes, run on two [`Conn`]s. Also what the fuzzer runs.

use std::collections::VecDeque;

use smc::cdc::{Cdc, ProducerFlags};
use smc::conn::{Conn, Push, Remote, Setup, State, Ticket};
use smc::{RKey, SizeClass, Token};

/// What goes over a link.
enum Packet {
    Write { rkey: RKey, vaddr: u64, bytes: Vec<u8> },
    Cdc { bytes: [u8; 44], ticket: Ticket },
}

pub(crate) struct Side {
    pub conn: Conn,
    ring: Vec<u8>,
    rmb: Vec<u8>,
    pub wrote: u64,
    pub read: u64,
    /// The last urgent byte.
    pub urgent: Option<u8>,
    /// Positions in our stream of urgent bytes.
    urgents: Vec<u64>,
    inline: bool,
    /// The link that this side believes in.
    link: u32,
    wire: VecDeque<Packet>,
    acks: VecDeque<Ticket>,
    push: Push,
}

pub(crate) struct Pair {
    pub sides: [Side; 2],
    /// Packets go over this link; all others are dead.
    alive: u32,
}

fn remote(link: u32) -> Remote {
    Remote { rkey: RKey(0x1000 + link), vaddr: u64::from(link) << 40 }
}

impl Pair {
    /// Send ring and RMB of one side, then of the other, as size classes.
    pub(crate) fn new(sizes: [u8; 4], inline: bool) -> Self {
        let [ring_a, rmb_a, ring_b, rmb_b] = sizes.map(SizeClass::new);
        let side = |send_ring: SizeClass, rmb: SizeClass, peer_rmb| Side {
            conn: Conn::new(&Setup {
                rmb,
                send_ring,
                peer_token: Token(7),
                peer_rmb,
                remote: remote(0),
                autocork: 65_536,
                urgent_inline: inline,
            }),
            ring: vec![0; send_ring.bytes() as usize],
            rmb: vec![0; rmb.bytes() as usize],
            wrote: 0,
            read: 0,
            urgent: None,
            urgents: Vec::new(),
            inline,
            link: 0,
            wire: VecDeque::new(),
            acks: VecDeque::new(),
            push: Push::Auto,
        };
        Self { sides: [side(ring_a, rmb_a, rmb_b), side(ring_b, rmb_b, rmb_a)], alive: 0 }
    }

    /// Byte `at` of the stream that `side` writes.
    pub(crate) fn byte(&self, side: usize, at: u64) -> u8 {
        let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.to_le_bytes()[3 + side]
    }

    /// The program of `side` writes up to so many bytes, the last of them urgent or not.
    pub(crate) fn write(&mut self, side: usize, bytes: u32, urgent: bool) {
        let room = self.sides[side].conn.room().unwrap_or(0);
        let bytes = bytes.min(room);
        let start = self.sides[side].wrote;
        for at in start..start + u64::from(bytes) {
            let byte = self.byte(side, at);
            let ring = &mut self.sides[side].ring;
            let place = usize::try_from(at).expect("64 bits") % ring.len();
            ring[place] = byte;
        }
        let this = &mut self.sides[side];
        let len = this.ring.len() as u64;
        assert_eq!(u64::from(this.conn.write_offset()), start % len);
        this.wrote += u64::from(bytes);
        if urgent && bytes > 0 {
            this.conn.wrote_urgent(bytes);
            this.urgents.push(this.wrote - 1);
        } else {
            this.conn.wrote(bytes);
        }
    }

    /// Posts what the connection plans; whether the last message said that it was blocked.
    pub(crate) fn post(&mut self, side: usize) -> bool {
        let (alive, this) = (self.alive, &mut self.sides[side]);
        let mut blocked = false;
        for round in 0.. {
            assert!(round < 100, "there is no end of planning");
            let Some(plan) = this.conn.plan(this.push) else { break };
            let cdc = Cdc::parse(&plan.cdc).expect("a message");
            blocked = cdc.producer_flags.has(ProducerFlags::WRITE_BLOCKED);
            assert!(plan.writes().len() <= 2);
            for write in plan.writes() {
                let mut bytes = Vec::new();
                for piece in write.pieces() {
                    let at = piece.offset as usize;
                    bytes.extend_from_slice(&this.ring[at..at + piece.len as usize]);
                }
                assert_eq!(bytes.len(), write.len() as usize);
                let (rkey, vaddr) = (write.rkey, write.vaddr);
                assert_eq!(rkey, remote(this.link).rkey);
                this.wire.push_back(Packet::Write { rkey, vaddr, bytes });
            }
            this.wire.push_back(Packet::Cdc { bytes: plan.cdc, ticket: plan.ticket });
        }
        if this.link != alive {
            // Into nothing.
            this.wire.clear();
        }
        blocked
    }

    /// The next packet of `side` arrives; whether there was one.
    fn deliver(&mut self, side: usize) -> bool {
        let Some(packet) = self.sides[side].wire.pop_front() else { return false };
        let alive = self.alive;
        let expected = self.sides[side].urgents.last().map(|at| self.byte(side, *at));
        let peer = &mut self.sides[1 - side];
        match packet {
            Packet::Write { rkey, vaddr, bytes } => {
                let there = remote(alive);
                assert_eq!(rkey, there.rkey);
                let at = usize::try_from(vaddr - there.vaddr).expect("a small number");
                peer.rmb[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Packet::Cdc { bytes, ticket } => {
                let cdc = Cdc::parse(&bytes).expect("a message");
                let heard = peer.conn.on_cdc(&cdc).expect("an honest peer");
                if let Some(offset) = heard.urgent {
                    peer.urgent = Some(peer.rmb[offset as usize]);
                    assert_eq!(peer.urgent, expected);
                }
                self.sides[side].acks.push_back(ticket);
            }
        }
        true
    }

    fn ack(&mut self, side: usize) -> bool {
        let Some(ticket) = self.sides[side].acks.pop_front() else { return false };
        self.sides[side].conn.completed(ticket);
        true
    }

    /// The program of `side` reads up to so many bytes and looks at each.
    pub(crate) fn read(&mut self, side: usize, most: u32) {
        let mut left = most.min(self.sides[side].conn.readable());
        let bytes = left;
        for piece in self.sides[side].conn.readable_pieces() {
            for offset in piece.offset..piece.offset + piece.len.min(left) {
                self.skip_urgent(side);
                let want = self.byte(1 - side, self.sides[side].read);
                let this = &mut self.sides[side];
                assert_eq!(this.rmb[offset as usize], want, "byte {} to side {side}", this.read);
                this.read += 1;
            }
            left -= piece.len.min(left);
        }
        self.sides[side].conn.consumed(bytes);
        if self.sides[side].conn.at_mark() {
            self.skip_urgent(side);
        }
    }

    /// An urgent byte is not among those that are read.
    fn skip_urgent(&mut self, side: usize) {
        let next = self.sides[side].read;
        if !self.sides[side].inline && self.sides[1 - side].urgents.contains(&next) {
            self.sides[side].read += 1;
        }
    }

    /// The link dies: of what is on its way some arrives, of what has arrived some is acknowledged.
    fn lose_link(&mut self, arrive: u8) {
        for side in 0..2 {
            for _ in 0..arrive >> (4 * side) & 15 {
                self.deliver(side);
            }
            self.sides[side].wire.clear();
            self.sides[side].acks.clear();
        }
        self.alive += 1;
    }

    /// A side notices.
    fn notice(&mut self, side: usize) {
        let (alive, this) = (self.alive, &mut self.sides[side]);
        if this.link != alive {
            this.link = alive;
            this.wire.clear();
            this.conn.moved(remote(alive));
        }
    }

    /// Everything on its way arrives, until nothing moves.
    pub(crate) fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 3000, "there is no end of messages");
            let mut moved = false;
            for side in 0..2 {
                self.notice(side);
                self.post(side);
                while self.deliver(side) {
                    moved = true;
                }
                while self.ack(side) {
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Both programs read what there is and close; everything that was written arrives before.
    fn finish(&mut self) {
        for _ in 0..100 {
            self.settle();
            for side in 0..2 {
                self.sides[side].push = Push::Now;
                self.read(side, u32::MAX);
            }
        }
        for side in 0..2 {
            self.skip_urgent(side);
            let (wrote, read) = (self.sides[1 - side].wrote, self.sides[side].read);
            assert_eq!(wrote, read, "side {side} did not get everything");
        }
        for side in 0..2 {
            self.sides[side].conn.close();
            self.settle();
        }
        for side in &self.sides {
            assert_eq!(side.conn.state(), State::Closed);
            assert!(side.conn.is_over() && !side.conn.is_sending());
        }
    }
}

/// Runs a program of any bytes.
pub(crate) fn run(program: &[u8]) {
    let mut ops = program.iter().copied();
    let Some(first) = ops.next() else { return };
    let size = |shift: u8| first >> shift & 1;
    let mut pair = Pair::new([size(0), size(1), size(2), size(3)], first & 16 != 0);
    while let Some(op) = ops.next() {
        let side = usize::from(op & 1);
        let how = ops.next().unwrap_or(0);
        // Small, middling and everything there is room for.
        let bytes = [1, 2303, 2305, 9000, 16_384, 40_000][usize::from(how % 6)] + u32::from(how);
        match op >> 1 & 15 {
            0..=2 => pair.write(side, bytes, false),
            3 if how & 3 == 0 => pair.write(side, bytes, true),
            3..=6 => pair.read(side, bytes),
            7 | 8 => {
                pair.post(side);
            }
            9..=11 => {
                for _ in 0..=how & 7 {
                    pair.deliver(side);
                }
            }
            12 => {
                pair.ack(side);
            }
            13 => pair.lose_link(how),
            14 => pair.notice(side),
            _ => {
                pair.sides[side].push = [Push::Now, Push::Auto, Push::Corked][usize::from(how % 3)]
            }
        }
    }
    pair.finish();
}

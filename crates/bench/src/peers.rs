//! What Rust programs have without us, and the copy that nobody who copies is without.

use std::collections::HashMap;

use etherparse::SlicedPacket;
use etherparse::defrag::IpDefragPool;

use crate::Engine;
use crate::trace::{PIECE, Places, Trace};

/// etherparse's pool, each buffer given back.
pub(crate) struct Etherparse(IpDefragPool<(), ()>);

impl Etherparse {
    pub(crate) fn new() -> Self {
        Self(IpDefragPool::new())
    }

    fn run(&mut self, trace: &Trace, mut see: impl FnMut(&[u8], &[u8])) -> usize {
        let mut datagrams = 0;
        for slot in 0..trace.len() {
            let packet = trace.packet(slot);
            let Ok(sliced) = SlicedPacket::from_ip(packet) else { continue };
            if let Ok(Some(whole)) = self.0.process_sliced_packet(&sliced, (), ()) {
                see(packet, &whole.payload);
                datagrams += 1;
                self.0.return_buf(whole);
            }
        }
        datagrams
    }
}

impl Engine for Etherparse {
    fn pass(&mut self, trace: &Trace) -> usize {
        self.run(trace, |_, _| ())
    }

    fn check(&mut self, trace: &Trace) -> usize {
        self.run(trace, |packet, whole| check(trace, packet, whole))
    }
}

fn check(trace: &Trace, packet: &[u8], whole: &[u8]) {
    let (source, id) = name(packet);
    assert!(trace.is_right(source, id, whole), "a datagram is not what was sent");
}

/// Source and identification.
fn name(packet: &[u8]) -> (u32, u16) {
    let source = u32::from_be_bytes([packet[12], packet[13], packet[14], packet[15]]);
    (source, u16::from_be_bytes([packet[4], packet[5]]))
}

/// Each payload copied once to its place in its datagram, with no search for it.
pub(crate) struct Memcpy(Places);

impl Memcpy {
    pub(crate) fn to_its_place(trace: &Trace) -> anyhow::Result<Self> {
        Ok(Self(Places::new(&trace.case)?))
    }
}

impl Engine for Memcpy {
    fn pass(&mut self, trace: &Trace) -> usize {
        let flows = trace.case.flows;
        for (slot, piece) in trace.pieces.iter().enumerate() {
            let payload = &trace.packet(slot)[20..];
            // Behind the header, as whoever makes a packet of it.
            let at = 20 + usize::from(piece.at) * PIECE;
            let place = self.0.of(piece.datagram as usize % flows);
            place[at..at + payload.len()].copy_from_slice(payload);
        }
        std::hint::black_box(&self.0);
        trace.datagrams
    }

    fn check(&mut self, trace: &Trace) -> usize {
        let datagrams = self.pass(trace);
        let last = trace.packet(trace.len() - 1);
        let flow = trace.pieces[trace.len() - 1].datagram as usize % trace.case.flows;
        check(trace, last, &self.0.of(flow)[20..20 + trace.case.len()]);
        datagrams
    }
}

/// What one writes first: a map of growing buffers.
#[derive(Default)]
pub(crate) struct Naive(HashMap<(u32, u16, u64), Growing>);

#[derive(Default)]
struct Growing {
    bytes: Vec<u8>,
    received: usize,
    end: Option<usize>,
}

impl Naive {
    /// Takes in a packet; answers the datagram that it completes.
    pub(crate) fn push(&mut self, packet: &[u8], scope: u64) -> Option<Vec<u8>> {
        let (source, id) = name(packet);
        let name = (source, id, scope);
        let word = usize::from(u16::from_be_bytes([packet[6], packet[7]]));
        let (at, more, payload) = ((word & 0x1fff) * 8, word & 0x2000 != 0, &packet[20..]);
        let growing = self.0.entry(name).or_default();
        let end = at + payload.len();
        if growing.bytes.len() < end {
            growing.bytes.resize(end, 0);
        }
        growing.bytes[at..end].copy_from_slice(payload);
        growing.received += payload.len();
        if !more {
            growing.end = Some(end);
        }
        if growing.end != Some(growing.received) {
            return None;
        }
        self.0.remove(&name).map(|growing| growing.bytes)
    }
}

impl Engine for Naive {
    fn pass(&mut self, trace: &Trace) -> usize {
        let whole = (0..trace.len()).filter_map(|slot| self.push(trace.packet(slot), 0));
        whole.map(std::hint::black_box).count()
    }

    fn check(&mut self, trace: &Trace) -> usize {
        let mut datagrams = 0;
        for slot in 0..trace.len() {
            if let Some(whole) = self.push(trace.packet(slot), 0) {
                check(trace, trace.packet(slot), &whole);
                datagrams += 1;
            }
        }
        datagrams
    }
}

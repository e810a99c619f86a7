//! A shard with everything that comes out of it, which at its end must hold nothing.

use std::rc::Rc;
use std::sync::Arc;

use frag::{
    Arrival, Config, Datagram, Gauges, HashKey, Key, Ledger, Notice, NoticeKind, Released, Shard,
    Sink, wire,
};
use testkit::fragments::Packet;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;

/// A packet, which is its own buffer.
pub(crate) type Buffer = Rc<Vec<u8>>;

/// A datagram that came out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) key: Key,
    /// Header and payload.
    pub(crate) packet: Vec<u8>,
    pub(crate) header_len: usize,
    pub(crate) fragments: u16,
}

impl Delivered {
    pub(crate) fn payload(&self) -> &[u8] {
        &self.packet[self.header_len..]
    }
}

/// All that a shard has said.
#[derive(Debug, Default)]
pub(crate) struct Out {
    pub(crate) delivered: Vec<Delivered>,
    pub(crate) whole: Vec<Vec<u8>>,
    pub(crate) released: Vec<Released>,
    /// The header and what can be quoted behind it.
    pub(crate) notices: Vec<(NoticeKind, Vec<u8>, Vec<u8>)>,
    /// Buffers that came back, packets that are no fragments among them.
    pub(crate) returned: u64,
}

impl<B: AsRef<Vec<u8>>> Sink<B> for Out {
    fn whole(&mut self, buffer: B, len: usize) {
        self.returned += 1;
        self.whole.push(buffer.as_ref()[..len].to_vec());
    }

    fn datagram(&mut self, datagram: &Datagram<'_, B>) {
        let mut packet = vec![0; datagram.packet_len()];
        let len = datagram.write_to(&mut packet, |buffer| buffer.as_ref()).expect("there is room");
        assert_eq!(len, packet.len());
        let sizes = datagram.slices().map(|slice| match slice {
            frag::Slice::Held { len, .. } => len,
            frag::Slice::Copied(bytes) => bytes.len(),
        });
        assert_eq!(sizes.sum::<usize>(), datagram.payload_len());
        self.delivered.push(Delivered {
            key: *datagram.key(),
            packet,
            header_len: datagram.header().len(),
            fragments: datagram.fragments(),
        });
    }

    fn release(&mut self, _: B, why: Released) {
        self.returned += 1;
        self.released.push(why);
    }

    fn notice(&mut self, notice: &Notice<'_, B>) {
        let quote = match notice.first {
            Ok(buffer) => buffer.as_ref().get(notice.header.len()..).unwrap_or_default().to_vec(),
            Err(payload) => payload.to_vec(),
        };
        self.notices.push((notice.kind, notice.header.to_vec(), quote));
    }
}

/// A shard alone with its ledger.
pub(crate) struct Host {
    pub(crate) shard: Shard<Buffer>,
    pub(crate) out: Out,
    pub(crate) now: u64,
    /// What each packet's buffer costs beside its bytes.
    pub(crate) frame: u32,
    ledger: Arc<Ledger>,
    handed: u64,
}

impl Host {
    pub(crate) fn new(config: &Config) -> Self {
        let limits = config.limits().expect("settings that can be");
        let ledger = Ledger::of(&limits);
        let shard = Shard::new(&limits, &ledger, HashKey::new([7, 11]));
        Self { shard, out: Out::default(), now: SECOND, frame: 0, ledger, handed: 0 }
    }

    pub(crate) fn push(&mut self, packet: &Packet) {
        self.push_bytes(packet.emit());
    }

    pub(crate) fn push_bytes(&mut self, bytes: Vec<u8>) {
        let buffer = Rc::new(bytes);
        let mut arrival = Arrival::new(&buffer, Rc::clone(&buffer));
        arrival.cost += self.frame;
        self.shard.push(arrival, self.now, &mut self.out);
        self.handed += 1;
        self.check();
    }

    pub(crate) fn push_burst(&mut self, packets: &[Packet]) {
        let buffers: Vec<Buffer> = packets.iter().map(|packet| Rc::new(packet.emit())).collect();
        let mut arrivals: Vec<_> = buffers.iter().map(|b| Arrival::new(b, Rc::clone(b))).collect();
        arrivals.iter_mut().for_each(|arrival| arrival.cost += self.frame);
        self.shard.push_burst(&mut arrivals, self.now, &mut self.out);
        assert!(arrivals.is_empty());
        self.handed += buffers.len() as u64;
        self.check();
    }

    /// Those of them that are fragments, parsed before.
    pub(crate) fn push_fragments(&mut self, packets: &[Packet]) {
        let buffers: Vec<Buffer> = packets.iter().map(|packet| Rc::new(packet.emit())).collect();
        let mut fragments = Vec::new();
        for bytes in &buffers {
            let mut arrival = Arrival::new(bytes, Rc::clone(bytes));
            arrival.cost += self.frame;
            if let Ok(wire::Packet::Fragment(fragment)) = wire::parse(bytes, 0) {
                fragments.push((fragment, arrival));
            }
        }
        self.handed += fragments.len() as u64;
        self.shard.push_fragments(fragments, self.now, &mut self.out);
        self.check();
    }

    /// So many packets were pushed by other ways than these.
    pub(crate) fn taken(&mut self, packets: u64) {
        self.handed += packets;
    }

    pub(crate) fn expire(&mut self) -> Option<u64> {
        self.shard.expire(self.now, usize::MAX, &mut self.out)
    }

    pub(crate) fn gauges(&self) -> Gauges {
        self.shard.gauges()
    }

    pub(crate) fn payloads(&self) -> Vec<&[u8]> {
        self.out.delivered.iter().map(Delivered::payload).collect()
    }

    /// What holds between any two calls.
    fn check(&self) {
        let Gauges { memory_bytes, spare_bytes, leased_bytes, committed_bytes, .. } = self.gauges();
        assert!(memory_bytes + spare_bytes <= leased_bytes, "more in use than leased");
        assert!(memory_bytes <= committed_bytes, "more in use than set aside");
        assert_eq!(leased_bytes + self.ledger.left(), self.ledger.limit());
    }

    /// That all is as it was in the beginning, and that nothing is left to wait for.
    pub(crate) fn check_empty(&mut self) {
        assert_eq!(self.expire(), None, "a time that is to end");
        let Gauges { datagrams, memory_bytes, committed_bytes, blocks, .. } = self.gauges();
        assert_eq!((datagrams, memory_bytes, committed_bytes, blocks), (0, 0, 0, 0));
        assert_eq!(self.out.returned, self.handed, "buffers that came back");
        let all = self.shard.counters();
        let dropped: u64 = all.fragments_dropped.iter().sum();
        let became = dropped + all.fragments_lost + all.fragments_delivered;
        assert_eq!(all.fragments, became, "what became of each fragment: {all:?}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.shard.clear(self.now, &mut self.out);
            self.check();
            self.check_empty();
        }
    }
}

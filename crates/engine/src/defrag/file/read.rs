//! Reading.

use std::io::{self, Chain, Cursor, ErrorKind, Read};
use std::ops::Range;

use super::{
    Damage, ENHANCED_PACKET, FCS_AT, FCS_KNOWN, Format, INTERFACE, OLD_PACKET, OPTION_FCS,
    ORDER_MAGIC, Order, PCAP_LONGER, PCAP_MICROS, PCAP_NANOS, Packet, SECTION, SIMPLE_PACKET, Time,
    Why,
};
use crate::defrag::Error;

/// No packet and no block is longer. What a file claims is not believed beyond this.
const RECORD_MAX: u32 = 64 << 20;
/// Bytes for which memory is taken at once: what is claimed and does not come costs no more.
const STEP: usize = 256 << 10;
const PCAP_HEADER: usize = 24;
const PCAP_RECORD: usize = 16;
/// Of [`PCAP_LONGER`]: interface, protocol, kind of packet and a byte that says nothing.
const RECORD_MORE: usize = 8;
const SECOND_NS: u64 = 1_000_000_000;
/// Interfaces of a section, at most: more are not kept in memory, whatever a file claims.
const INTERFACES_MAX: usize = 1 << 16;

const OPTION_RESOLUTION: u16 = 9;
const OPTION_OFFSET: u16 = 14;

/// What a description of an interface says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The link type, as in the list of tcpdump.org.
    pub link: u32,
    /// The longest packet; 0: any.
    pub snaplen: u32,
    /// Bytes of the checksum that stands behind each frame; 0: none, as far as is known.
    pub fcs_bytes: u8,
    /// Units of its timestamps in a second.
    units: u64,
    /// Seconds to add to them.
    offset_s: i64,
}

impl Interface {
    /// One of which no more is known than the link type, with timestamps in nanoseconds.
    #[must_use]
    pub const fn new(link: u32) -> Self {
        Self { link, snaplen: 0, fcs_bytes: 0, units: SECOND_NS, offset_s: 0 }
    }

    /// As the header of a pcap file has it: the link type, above that bits about checksums.
    pub(super) fn of_word(word: u32) -> Self {
        let halves = if word & FCS_KNOWN == 0 { 0 } else { word >> FCS_AT };
        let fcs_bytes = u8::try_from(2 * halves).unwrap_or(0);
        Self { fcs_bytes, ..Self::new(word & 0xffff) }
    }

    /// The same word. What it cannot say it does not.
    pub(super) fn word(self) -> u32 {
        let halves = u32::from(self.fcs_bytes / 2);
        if halves == 0 || halves >= 16 || !self.fcs_bytes.is_multiple_of(2) {
            return self.link;
        }
        self.link | FCS_KNOWN | halves << FCS_AT
    }

    pub(super) fn ns(self, stamp: u64) -> u64 {
        let ns = u128::from(stamp) * u128::from(SECOND_NS) / u128::from(self.units);
        let offset = i128::from(self.offset_s) * i128::from(SECOND_NS);
        u64::try_from(ns.saturating_add_signed(offset)).unwrap_or(u64::MAX)
    }

    /// The other way round: in its own units.
    fn stamp(self, ns: u64) -> u64 {
        let offset = i128::from(self.offset_s) * i128::from(SECOND_NS);
        let ns = u128::from(ns).saturating_add_signed(-offset);
        u64::try_from(ns * u128::from(self.units) / u128::from(SECOND_NS)).unwrap_or(u64::MAX)
    }
}

/// What was read. Its bytes are in [`Reader::block`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A new section (pcapng): interfaces are counted from 0 again.
    Section,
    /// The description of an interface.
    Interface,
    /// A packet; see [`Reader::packet`].
    Packet(Place),
    /// Something else.
    Other,
}

/// Where the parts of a packet are in its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    interface: u32,
    time: Time,
    original_len: u32,
    bytes: Range<usize>,
    options: Range<usize>,
    /// Its length is not in the record but follows from its interface's snap length.
    implicit: bool,
}

/// Reads a capture from front to back, one record in memory at a time.
#[derive(Debug)]
pub struct Reader<R> {
    from: Chain<Cursor<[u8; 4]>, R>,
    at: u64,
    packets: u64,
    format: Format,
    order: Order,
    interfaces: Vec<Interface>,
    /// The header of a pcap file.
    header: Vec<u8>,
    /// Bytes that each of its packets has behind its record header, and that nobody hands on.
    record_more: usize,
    block: Vec<u8>,
    /// Read when it was opened, and not handed out yet.
    ahead: Option<Item>,
    /// When the last packet came, and by which interface.
    last: (Option<u32>, Time),
}

impl<R: Read> Reader<R> {
    /// Reads as much as says what it is.
    ///
    /// # Errors
    ///
    /// When it is no capture, or ends before that can be said.
    pub fn open(mut from: R) -> Result<Self, Error> {
        let ends = |at, why| Error::Damaged(Damage { at, packets: 0, why });
        let mut magic = [0; 4];
        from.read_exact(&mut magic).map_err(|e| ends(0, because(e)))?;
        let (format, order, units, record_more) = recognise(magic)?;
        let mut reader = Self {
            from: Cursor::new(magic).chain(from),
            at: 0,
            packets: 0,
            format,
            order,
            interfaces: Vec::new(),
            header: Vec::new(),
            record_more,
            block: Vec::new(),
            ahead: None,
            last: (None, Time::default()),
        };
        if format == Format::Pcapng {
            reader.ahead = Some(reader.any_block().map_err(|why| ends(0, why))?);
        } else {
            reader.fill(PCAP_HEADER).map_err(|why| ends(0, why))?;
            let mut header = std::mem::take(&mut reader.block);
            if record_more > 0 {
                // As its records will be.
                header[..4].copy_from_slice(&order.put32(PCAP_MICROS));
            }
            let (snaplen, word) = (order.u32(&header, 16), order.u32(&header, 20));
            reader.interfaces.push(Interface { snaplen, units, ..Interface::of_word(word) });
            reader.header = header;
        }
        Ok(reader)
    }

    /// The kind of file.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// The order of bytes in the present section.
    pub const fn order(&self) -> Order {
        self.order
    }

    /// The header of a pcap file; empty for pcapng.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The interfaces of the present section.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Bytes that were read.
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// Where it reads from.
    pub fn source(&self) -> &R {
        self.from.get_ref().1
    }

    /// Whether `ahead`, the bytes that come next, are the whole of the next record.
    pub fn holds_next(&self, ahead: &[u8]) -> bool {
        if ahead.len() < PCAP_RECORD {
            return false;
        }
        let word = |at| u64::from(self.order.u32(ahead, at));
        ahead.len() as u64
            >= match self.format {
                Format::Pcap => (PCAP_RECORD + self.record_more) as u64 + word(8),
                Format::Pcapng => word(4).next_multiple_of(4),
            }
    }

    /// The record that was read last.
    pub fn block(&self) -> &[u8] {
        &self.block
    }

    /// The packet that was read last.
    pub fn packet(&self, place: &Place) -> Packet<'_> {
        let bytes = &self.block[place.bytes.clone()];
        // With a larger snap length for its interface it would be read as longer than it is.
        let stays = !(place.implicit && (bytes.len() as u64) < u64::from(place.original_len));
        Packet {
            interface: place.interface,
            time: place.time,
            original_len: place.original_len,
            bytes,
            options: &self.block[place.options.clone()],
            order: self.order,
            block: stays.then_some(&self.block),
        }
    }

    /// Reads on. `None`: the end.
    ///
    /// # Errors
    ///
    /// When what follows makes no sense; there is no reading on after that.
    pub fn advance(&mut self) -> Result<Option<Item>, Damage> {
        if self.ahead.is_some() {
            return Ok(self.ahead.take());
        }
        let at = self.at;
        self.block.clear();
        let item = match self.format {
            Format::Pcap => self.record(),
            Format::Pcapng => self.any_block(),
        };
        match item {
            Ok(item) => {
                if let Item::Packet(place) = &item {
                    self.packets += 1;
                    self.last = (Some(place.interface), place.time);
                }
                Ok(Some(item))
            }
            Err(Why::Ends) if self.block.is_empty() => Ok(None),
            Err(why) => Err(Damage { at, packets: self.packets, why }),
        }
    }

    /// Reads until the record has `len` bytes.
    fn fill(&mut self, len: usize) -> Result<(), Why> {
        let mut have = self.block.len();
        while have < len {
            self.block.resize(len.min(have + STEP), 0);
            let more = self.from.read(&mut self.block[have..]);
            self.block.truncate(have + more.as_ref().map_or(0, |n| *n));
            match more {
                Ok(0) => return Err(Why::Ends),
                Ok(more) => {
                    have += more;
                    self.at += more as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn record(&mut self) -> Result<Item, Why> {
        self.fill(PCAP_RECORD)?;
        let word = |at| self.order.u32(&self.block, at);
        let (seconds, fraction, len, original_len) = (word(0), word(4), word(8), word(12));
        if len > RECORD_MAX {
            return Err(Why::Length(len));
        }
        let end = PCAP_RECORD + len as usize;
        self.fill(end + self.record_more)?;
        self.block.drain(PCAP_RECORD..PCAP_RECORD + self.record_more);
        let unit_ns = SECOND_NS / self.interfaces[0].units;
        let ns = u64::from(seconds) * SECOND_NS + u64::from(fraction) * unit_ns;
        let stamp = u64::from(seconds) << 32 | u64::from(fraction);
        Ok(Item::Packet(Place {
            interface: 0,
            time: Time { ns, stamp },
            original_len,
            bytes: PCAP_RECORD..end,
            options: 0..0,
            implicit: false,
        }))
    }

    fn any_block(&mut self) -> Result<Item, Why> {
        self.fill(12)?;
        let kind = self.order.u32(&self.block, 0);
        if kind == SECTION {
            self.order = section_order(&self.block)?;
        }
        let len = self.order.u32(&self.block, 4);
        let least = match kind {
            SECTION => 28,
            INTERFACE => 20,
            OLD_PACKET | ENHANCED_PACKET => 32,
            SIMPLE_PACKET => 16,
            _ => 12,
        };
        if !(least..=RECORD_MAX).contains(&len) {
            return Err(Why::Length(len));
        }
        // Some writers pad a block, as they have to, and do not count that.
        let padded = len.next_multiple_of(4);
        let end = padded as usize - 4;
        self.fill(padded as usize)?;
        let trailer = self.order.u32(&self.block, end);
        if trailer != len {
            return Err(Why::Trailer(len, trailer));
        }
        for at in [4, end] {
            self.block[at..at + 4].copy_from_slice(&self.order.put32(padded));
        }
        self.understand(kind)
    }

    /// A block that is long enough for its kind.
    fn understand(&mut self, kind: u32) -> Result<Item, Why> {
        match kind {
            SECTION => {
                self.interfaces.clear();
                self.last.0 = None;
                Ok(Item::Section)
            }
            INTERFACE => {
                if self.interfaces.len() >= INTERFACES_MAX {
                    return Err(Why::Interfaces);
                }
                self.interfaces.push(describe(self.order, &self.block));
                Ok(Item::Interface)
            }
            OLD_PACKET => self.stamped(u32::from(self.order.u16(&self.block, 8))),
            ENHANCED_PACKET => self.stamped(self.order.u32(&self.block, 8)),
            SIMPLE_PACKET => self.unstamped(),
            _ => Ok(Item::Other),
        }
    }

    fn stamped(&self, interface: u32) -> Result<Item, Why> {
        let of = *self.interfaces.get(interface as usize).ok_or(Why::Interface(interface))?;
        let word = |at| self.order.u32(&self.block, at);
        let (stamp, len) = (u64::from(word(12)) << 32 | u64::from(word(16)), word(20));
        let (begin, end) = (28, self.block.len() - 4);
        let padded = begin + (len as usize).next_multiple_of(4);
        if padded > end {
            return Err(Why::Length(len));
        }
        Ok(Item::Packet(Place {
            interface,
            time: Time { ns: of.ns(stamp), stamp },
            original_len: word(24),
            bytes: begin..begin + len as usize,
            options: padded..end,
            implicit: false,
        }))
    }

    /// A simple packet block knows neither its time nor its length. It is of interface 0, whatever the packet before it
    /// was of, and its timestamp is in that one's units.
    fn unstamped(&self) -> Result<Item, Why> {
        let of = self.interfaces.first().ok_or(Why::Interface(0))?;
        let original_len = self.order.u32(&self.block, 8);
        let snaplen = if of.snaplen == 0 { u32::MAX } else { of.snaplen };
        let len = original_len.min(snaplen);
        let time = match self.last {
            (Some(0), last) => last,
            (_, Time { ns, .. }) => Time { ns, stamp: of.stamp(ns) },
        };
        let end = 12 + len as usize;
        if end > self.block.len() - 4 {
            return Err(Why::Length(len));
        }
        Ok(Item::Packet(Place {
            interface: 0,
            time,
            original_len,
            bytes: 12..end,
            options: 0..0,
            implicit: true,
        }))
    }
}

fn because(e: io::Error) -> Why {
    if e.kind() == ErrorKind::UnexpectedEof { Why::Ends } else { Why::Read(e) }
}

/// What the first bytes of a file say: format, order, units in a second, what each record has more of.
fn recognise(magic: [u8; 4]) -> Result<(Format, Order, u64, usize), Error> {
    for (order, number) in
        [(Order::Little, u32::from_le_bytes(magic)), (Order::Big, u32::from_be_bytes(magic))]
    {
        match number {
            SECTION => return Ok((Format::Pcapng, order, 0, 0)),
            PCAP_MICROS => return Ok((Format::Pcap, order, 1_000_000, 0)),
            PCAP_NANOS => return Ok((Format::Pcap, order, SECOND_NS, 0)),
            PCAP_LONGER => return Ok((Format::Pcap, order, 1_000_000, RECORD_MORE)),
            _ => {}
        }
    }
    Err(Error::NoCapture)
}

fn section_order(block: &[u8]) -> Result<Order, Why> {
    match (Order::Little.u32(block, 8), Order::Big.u32(block, 8)) {
        (ORDER_MAGIC, _) => Ok(Order::Little),
        (_, ORDER_MAGIC) => Ok(Order::Big),
        (_, other) => Err(Why::Order(other)),
    }
}

pub(super) fn describe(order: Order, block: &[u8]) -> Interface {
    let link = u32::from(order.u16(block, 8));
    let snaplen = order.u32(block, 12);
    let mut interface = Interface { snaplen, units: 1_000_000, ..Interface::new(link) };
    let mut options = &block[16..block.len() - 4];
    while options.len() >= 4 {
        let (code, len) = (order.u16(options, 0), usize::from(order.u16(options, 2)));
        match (code, options.get(4..4 + len)) {
            (0, _) | (_, None) => break,
            (OPTION_RESOLUTION, Some([n, ..])) => interface.units = units(*n),
            (OPTION_FCS, Some([n, ..])) => interface.fcs_bytes = *n,
            (OPTION_OFFSET, Some(value)) if len == 8 => interface.offset_s = offset(order, value),
            _ => {}
        }
        options = options.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
    }
    interface
}

/// Units in a second: a negative power of ten, or of two if the highest bit is set.
fn units(resolution: u8) -> u64 {
    let exponent = u32::from(resolution & 0x7f);
    let base: u64 = if resolution & 0x80 == 0 { 10 } else { 2 };
    base.checked_pow(exponent).unwrap_or(u64::MAX)
}

fn offset(order: Order, value: &[u8]) -> i64 {
    let (a, b) = (order.u32(value, 0), order.u32(value, 4));
    let (high, low) = if order == Order::Big { (a, b) } else { (b, a) };
    (u64::from(high) << 32 | u64::from(low)).cast_signed()
}

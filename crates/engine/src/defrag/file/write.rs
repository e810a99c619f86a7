//! Writing.

use std::io::{Read, Write};

use super::{
    ENHANCED_PACKET, FCS_KNOWN, Format, INTERFACE, Interface, Item, OPTION_FCS, ORDER_MAGIC, Order,
    PCAP_NANOS, Packet, Reader, SECTION, SNAPLEN,
};
use crate::defrag::notes::Options;
use crate::defrag::{Error, Outlet};

const ETHERNET: u32 = 1;

/// Writes a capture.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    format: Format,
    order: Order,
    /// Records are as in the file that is read; else their time is in nanoseconds.
    alike: bool,
    /// The link type of a pcap file, with what is above it, once it is known.
    link: Option<u32>,
    record: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// For what comes out of `reader`, in either format.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn like<R: Read>(to: W, format: Format, reader: &Reader<R>) -> Result<Self, Error> {
        let alike = format == reader.format();
        let order = if alike { reader.order() } else { Order::Little };
        let mut writer = Self { to, format, order, alike, link: None, record: Vec::new() };
        match reader.interfaces().first() {
            Some(_) if alike => writer.copy_header(reader.header())?,
            Some(interface) => writer.begin(&[*interface])?,
            None => {}
        }
        Ok(writer)
    }

    /// For packets that come from no file: their time is written in nanoseconds.
    ///
    /// # Errors
    ///
    /// When it cannot be written, or is to be pcap and has several link types.
    pub fn fresh(to: W, format: Format, links: &[u32]) -> Result<Self, Error> {
        let order = Order::Little;
        let mut writer = Self { to, format, order, alike: false, link: None, record: Vec::new() };
        let interfaces: Vec<_> = links.iter().map(|link| Interface::new(*link)).collect();
        writer.begin(&interfaces)?;
        Ok(writer)
    }

    /// Writes what goes before all packets.
    fn begin(&mut self, interfaces: &[Interface]) -> Result<(), Error> {
        if self.format == Format::Pcapng {
            self.section()?;
            return interfaces.iter().try_for_each(|interface| self.interface(*interface));
        }
        interfaces.iter().try_for_each(|interface| self.pcap_header(*interface))
    }

    /// The header of a pcap file, but for the snap length.
    fn copy_header(&mut self, header: &[u8]) -> Result<(), Error> {
        self.record.clear();
        self.record.extend_from_slice(header);
        let snaplen = self.order.u32(header, 16).max(SNAPLEN);
        self.record[16..20].copy_from_slice(&self.order.put32(snaplen));
        self.write_record()
    }

    fn pcap_header(&mut self, interface: Interface) -> Result<(), Error> {
        let word = interface.word();
        match self.link {
            Some(first) if first == word => return Ok(()),
            Some(first) => {
                let links = [first & 0xffff, interface.link];
                let same = links[0] == links[1] && (first | word) & FCS_KNOWN != 0;
                return Err(if same {
                    Error::ChecksumsDiffer
                } else {
                    Error::LinksDiffer(links[0], links[1])
                });
            }
            None => self.link = Some(word),
        }
        self.record.clear();
        self.word(PCAP_NANOS);
        self.half(2);
        self.half(4);
        for word in [0, 0, SNAPLEN, word] {
            self.word(word);
        }
        self.write_record()
    }

    fn section(&mut self) -> Result<(), Error> {
        self.begin_block(SECTION);
        self.word(ORDER_MAGIC);
        self.half(1);
        self.half(0);
        self.record.extend_from_slice(&[0xff; 8]); // length not known
        self.end_block()
    }

    fn interface(&mut self, interface: Interface) -> Result<(), Error> {
        self.begin_block(INTERFACE);
        self.half(u16::try_from(interface.link).unwrap_or(u16::MAX));
        self.half(0);
        self.word(SNAPLEN);
        self.half(9); // resolution of time
        self.half(1);
        self.record.extend_from_slice(&[9, 0, 0, 0]);
        if interface.fcs_bytes != 0 {
            self.half(OPTION_FCS);
            self.half(1);
            self.record.extend_from_slice(&[interface.fcs_bytes, 0, 0, 0]);
        }
        self.word(0); // no more options
        self.end_block()
    }

    /// Takes note of something that is no packet.
    ///
    /// # Errors
    ///
    /// When it cannot be written: a pcap file has one link type.
    pub fn note<R: Read>(&mut self, item: &Item, reader: &Reader<R>) -> Result<(), Error> {
        if self.alike {
            self.order = reader.order();
            self.record.clear();
            self.record.extend_from_slice(reader.block());
            match item {
                // Its length will be another.
                Item::Section => self.record[16..24].fill(0xff),
                Item::Interface => self.raise_snaplen(),
                Item::Packet(_) | Item::Other => {}
            }
            return self.write_record();
        }
        match (item, reader.interfaces().last()) {
            (Item::Interface, Some(interface)) => self.pcap_header(*interface),
            _ => Ok(()),
        }
    }

    /// In the description of an interface; 0 means any length.
    fn raise_snaplen(&mut self) {
        let snaplen = self.order.u32(&self.record, 12);
        if snaplen != 0 {
            let raised = self.order.put32(snaplen.max(SNAPLEN));
            self.record[12..16].copy_from_slice(&raised);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "halves, and lengths of packets")]
    fn pcap_packet(&mut self, packet: &Packet<'_>) -> Result<(), Error> {
        let time = packet.time;
        let (seconds, fraction) = if self.alike {
            ((time.stamp >> 32) as u32, time.stamp as u32)
        } else {
            ((time.ns / 1_000_000_000) as u32, (time.ns % 1_000_000_000) as u32)
        };
        self.record.clear();
        for word in [seconds, fraction, packet.bytes.len() as u32, packet.original_len] {
            self.word(word);
        }
        self.record.extend_from_slice(packet.bytes);
        self.write_record()
    }

    #[expect(clippy::cast_possible_truncation, reason = "halves, and lengths of packets")]
    fn enhanced_packet(&mut self, packet: &Packet<'_>) -> Result<(), Error> {
        let stamp = if self.alike { packet.time.stamp } else { packet.time.ns };
        self.begin_block(ENHANCED_PACKET);
        self.word(packet.interface);
        self.word((stamp >> 32) as u32);
        self.word(stamp as u32);
        self.word(packet.bytes.len() as u32);
        self.word(packet.original_len);
        self.record.extend_from_slice(packet.bytes);
        self.record.resize(self.record.len().next_multiple_of(4), 0);
        if packet.order == self.order {
            self.record.extend_from_slice(packet.options);
        } else {
            let options = Options { bytes: packet.options, order: packet.order };
            self.record.extend_from_slice(&options.reordered(self.order));
        }
        self.end_block()
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.to.flush().map_err(Error::Write)
    }

    /// The same, at the end.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn finish(&mut self) -> Result<(), Error> {
        // A pcap file must have some link type, also where nothing came from any link.
        if self.format == Format::Pcap && !self.alike && self.link.is_none() {
            self.pcap_header(Interface::new(ETHERNET))?;
        }
        self.flush()
    }

    fn begin_block(&mut self, kind: u32) {
        self.record.clear();
        self.word(kind);
        self.word(0);
    }

    #[expect(clippy::cast_possible_truncation, reason = "little longer than what was read")]
    fn end_block(&mut self) -> Result<(), Error> {
        let len = self.order.put32(self.record.len() as u32 + 4);
        self.record[4..8].copy_from_slice(&len);
        self.record.extend_from_slice(&len);
        self.write_record()
    }

    fn word(&mut self, n: u32) {
        self.record.extend_from_slice(&self.order.put32(n));
    }

    fn half(&mut self, n: u16) {
        self.record.extend_from_slice(&self.order.put16(n));
    }

    fn write_record(&mut self) -> Result<(), Error> {
        self.to.write_all(&self.record).map_err(Error::Write)
    }
}

impl<W: Write> Outlet for Writer<W> {
    fn packet(&mut self, packet: &Packet<'_>) -> Result<(), Error> {
        match packet.block {
            Some(block) if self.alike => self.to.write_all(block).map_err(Error::Write),
            _ if self.format == Format::Pcap => self.pcap_packet(packet),
            _ => self.enhanced_packet(packet),
        }
    }
}

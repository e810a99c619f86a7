//! Frames with fragments, kept until their datagrams are complete; all others pass.

use std::sync::Arc;

use frag::wire::{self, Fragment};
use frag::{
    Arrival, Config, Datagram, Gauges, HashKey, Key, Ledger, Reason, Released, Shard, Sink, Slice,
};

use super::clock::Clocks;
use super::fcs::Fcs;
use super::file::{Interface, Order, Packet, SNAPLEN, Time};
use super::link::{Link, Place, Scope};
use super::notes;
use super::report::{Report, UNKNOWN_LINKS_MAX};
use super::wrap::{TooLong, Wrap, refit};
use super::{Error, Options, Outlet, TUNNELS_MAX, secret, tunnel};

/// What a fragment costs beside its bytes, its options and what is known of the headers around it.
const FRAME_COST: usize = 160;
/// A file is read as fast as can be, whatever its timestamps say, and these may hardly differ. While memory is short, so much
/// time passes at least while it could be filled once: what nothing comes for has to go at some time, or it stays and
/// all else goes for it.
const FILLED_NS: u64 = 256_000_000;
/// Fragments that wait for the next timestamp of their interface, at most; and the bytes of each, or a file could have us
/// keep as much as it likes. Interfaces that see the same traffic come to a pause's end together.
const DOUBTFUL_MAX: usize = 16;
const DOUBTFUL_BYTES_MAX: u32 = SNAPLEN;

/// A frame with a fragment in it, kept until its datagram is complete.
#[derive(Debug)]
struct Frame {
    bytes: Arc<[u8]>,
    options: Box<[u8]>,
    order: Order,
    place: Place,
    interface: u32,
    time: Time,
    original_len: u32,
    /// What frames of its interface end with.
    fcs: Fcs,
    /// Frames that were kept before it.
    arrived: u64,
}

impl Frame {
    fn ip(&self) -> &[u8] {
        &self.bytes[self.place.at..]
    }

    /// Bytes of memory that it holds: a file may have it say more in options than in the packet.
    fn cost(&self) -> u32 {
        let wraps = self.place.wraps.capacity() * size_of::<Wrap>();
        let all = self.bytes.len() + self.options.len() + wraps + FRAME_COST;
        u32::try_from(all).unwrap_or(u32::MAX)
    }

    fn options(&self) -> notes::Options<'_> {
        notes::Options { bytes: &self.options, order: self.order }
    }

    fn packet(&self) -> Packet<'_> {
        Packet {
            interface: self.interface,
            time: self.time,
            original_len: self.original_len,
            bytes: &self.bytes,
            options: &self.options,
            order: self.order,
            block: None,
        }
    }
}

/// A fragment that has come.
#[derive(Debug)]
struct Piece {
    fragment: Fragment,
    frame: Frame,
    link: Link,
}

impl Piece {
    /// Whether it can be put off. One that is a datagram by itself need not.
    fn may_wait(&self) -> bool {
        let is_part = self.fragment.more || self.fragment.offset > 0;
        is_part && self.frame.cost() <= DOUBTFUL_BYTES_MAX
    }
}

/// What a frame has for us.
enum Found {
    /// Nothing to put together.
    Nothing,
    /// A fragment, innermost of what could be opened.
    Fragment(Fragment, Place),
    /// An IP header that makes no sense; and whether the packet is a fragment all the same.
    Wrong(Reason, bool),
}

/// Where a network is.
#[derive(Clone, Copy)]
enum Around {
    /// On an interface.
    Interface(u32),
    /// In a tunnel through the network of this number.
    Network(u64),
}

/// Whether a packet had more bytes on the wire.
fn is_cut(packet: &Packet<'_>) -> bool {
    packet.bytes.len() < packet.original_len as usize
}

/// Whether what is there of an IP packet says that it is a fragment, however long it claims to be.
fn is_of_fragment(packet: &[u8]) -> bool {
    let (at, len) = match packet.first().map(|b| b >> 4) {
        Some(4) => (2, packet.len()),
        _ => (4, packet.len().saturating_sub(40)),
    };
    let mut as_long = packet.to_vec();
    if let Some(length) = as_long.get_mut(at..at + 2) {
        length.copy_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
    }
    let is_none = |reason| matches!(reason, Reason::Truncated | Reason::BadHeader);
    match wire::parse(&as_long, 0) {
        Ok(wire::Packet::Whole(_)) => false,
        Ok(wire::Packet::Fragment(_)) => true,
        Err(reason) => !is_none(reason),
    }
}

/// Puts fragments of packets together, wherever the packets come from.
#[derive(Debug)]
pub struct Defragmenter {
    shard: Shard<Frame>,
    collected: Collected,
    /// Names networks by numbers that cannot be aimed at.
    scopes: HashKey,
    tunnels: usize,
    keep: bool,
    clocks: Clocks,
    /// Of which it is not known yet when they came, one of an interface, in the order in which they did.
    doubtful: Vec<Piece>,
    memory_bytes: u64,
    kept: u64,
    report: Report,
}

impl Defragmenter {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// When a setting cannot be, or there are no random bytes.
    pub fn new(options: &Options) -> Result<Self, Error> {
        // Frames are kept in memory of their own size: to copy them once more would save nothing, and
        // the link's header would be lost.
        let limits = Config { copy_below: 0, shards: 1, ..options.config.clone() }.limits()?;
        let secret = HashKey::new(secret().map_err(Error::Random)?);
        Ok(Self {
            scopes: secret.successor(),
            shard: Shard::new(&limits, &Ledger::of(&limits), secret),
            collected: Collected { keep: options.keep_incomplete, ..Collected::default() },
            tunnels: if options.tunnels { TUNNELS_MAX } else { 0 },
            keep: options.keep_incomplete,
            clocks: Clocks::default(),
            doubtful: Vec::new(),
            memory_bytes: options.config.memory_bytes,
            kept: 0,
            report: Report::default(),
        })
    }

    /// Takes in a packet that was seen on an interface like this. A fragment whose timestamp is far ahead waits until the
    /// next one says whether so much time has passed: that of its interface, or one of another that says the same.
    ///
    /// # Errors
    ///
    /// Those of the outlet.
    pub fn push(
        &mut self,
        packet: &Packet<'_>,
        interface: &Interface,
        out: &mut impl Outlet,
    ) -> Result<(), Error> {
        self.report.packets += 1;
        self.clocks.at(packet.interface, packet.time.ns);
        self.decide(packet, out)?;
        let Some(link) = Link::of(interface.link) else {
            self.unknown(interface.link);
            return self.pass(packet, out);
        };
        match self.find(link, packet.interface, packet.bytes) {
            Found::Nothing => self.pass(packet, out),
            Found::Wrong(reason, is_fragment) => self.wrong(reason, is_fragment, packet, out),
            Found::Fragment(fragment, place) => {
                let options = notes::Options { bytes: packet.options, order: packet.order };
                let fcs = Fcs::of(link, options.fcs_bytes().unwrap_or(interface.fcs_bytes));
                let frame = self.frame(packet, packet.bytes.into(), place, fcs);
                let piece = Piece { fragment, frame, link };
                if self.clocks.doubts(packet.interface) && piece.may_wait() {
                    return self.put_off(piece, out);
                }
                self.add(piece, self.clocks.passed(), out)
            }
        }
    }

    /// Keeps a fragment whose timestamp is in doubt. Booked now it would be too late for the rest of its datagram, if there
    /// was a pause: all of that would seem to pass between the two.
    fn put_off(&mut self, piece: Piece, out: &mut impl Outlet) -> Result<(), Error> {
        if self.doubtful.len() >= DOUBTFUL_MAX {
            let first = self.doubtful.remove(0);
            self.add(first, self.clocks.passed(), out)?;
        }
        self.doubtful.push(piece);
        Ok(())
    }

    /// Adds what has waited for a timestamp like that of `packet`, which may be any of its own interface: it came as long
    /// before as the two differ. What came by other interfaces since has nothing to do with it.
    fn decide(&mut self, packet: &Packet<'_>, out: &mut impl Outlet) -> Result<(), Error> {
        let Self { clocks, doubtful, .. } = self;
        let is_known = |piece: &mut Piece| {
            let interface = piece.frame.interface;
            interface == packet.interface || !clocks.doubts(interface)
        };
        if doubtful.is_empty() {
            return Ok(());
        }
        for piece in doubtful.extract_if(.., is_known).collect::<Vec<_>>() {
            let since = packet.time.ns.saturating_sub(piece.frame.time.ns);
            self.add(piece, self.clocks.passed().saturating_sub(since), out)?;
        }
        Ok(())
    }

    /// When a frame with a fragment has come, by its timestamp `at`: see [`FILLED_NS`].
    fn now(&mut self, frame: &Frame, at: u64) -> u64 {
        // What is spare beside that goes to whoever needs it, and only then: it may stay for ever.
        let Gauges { memory_bytes, .. } = self.shard.gauges();
        let is_short = memory_bytes > self.memory_bytes / 2;
        let part = u64::from(frame.cost()).min(self.memory_bytes);
        let ns = u128::from(part) * u128::from(FILLED_NS) / u128::from(self.memory_bytes);
        self.clocks.fragment(at, if is_short { u64::try_from(ns).unwrap_or(FILLED_NS) } else { 0 })
    }

    fn unknown(&mut self, link: u32) {
        self.report.unknown_link += 1;
        let known = &mut self.report.unknown_links;
        if known.contains(&link) {
            return;
        }
        if known.len() < UNKNOWN_LINKS_MAX {
            known.push(link);
        } else {
            self.report.more_unknown_links = true;
        }
    }

    /// The fragment in a frame, perhaps in tunnels.
    fn find(&self, link: Link, interface: u32, bytes: &[u8]) -> Found {
        let Some(mut place) = link.locate(bytes) else { return Found::Nothing };
        let mut scope = self.scope(place.scope, Around::Interface(interface), &[]);
        for depth in 0.. {
            let end = match wire::parse(&bytes[place.at..], scope) {
                Ok(wire::Packet::Whole(len)) => place.at + len,
                Ok(wire::Packet::Fragment(fragment)) => {
                    // Who captures what it sends itself may do so before there is a checksum.
                    let packet = &bytes[place.at..];
                    let is_known = packet.get(10..12).is_some_and(|sum| sum != [0, 0]);
                    if is_known && !wire::is_sound(packet) {
                        return Found::Wrong(Reason::Checksum, true);
                    }
                    return Found::Fragment(fragment, place);
                }
                Err(reason) => return Found::Wrong(reason, is_of_fragment(&bytes[place.at..])),
            };
            let outer = &bytes[..end];
            let inner = if depth < self.tunnels { tunnel::open(outer, place.at) } else { None };
            let Some(mut inner) = inner else { break };
            scope = self.scope(inner.scope, Around::Network(scope), &outer[place.at..]);
            place.wraps.append(&mut inner.wraps);
            place = Place { wraps: place.wraps, ..inner };
        }
        Found::Nothing
    }

    /// A number for a network: by what names it, what is around it, and the addresses of the packet that it
    /// is tunnelled in.
    fn scope(&self, scope: Scope, around: Around, outer: &[u8]) -> u64 {
        let addresses = match outer.first().map(|b| b >> 4) {
            Some(4) => &outer[12..20],
            Some(_) => &outer[8..40],
            None => &[],
        };
        let dst = match around {
            Around::Interface(interface) => [interface.into(), 0],
            Around::Network(scope) => [scope, 1],
        };
        let mut hash = self.scopes.hash(&Key { src: scope.words(), dst, id: 0, scope: 0 });
        for word in addresses.as_chunks::<8>().0 {
            hash = self.scopes.hash_word(hash ^ u64::from_be_bytes(*word));
        }
        hash
    }

    /// A packet whose headers cannot be. Those of fragments are dropped, for no host would take them; the
    /// rest may make sense to somebody else. A fragment that was cut makes no datagram either, as little as those that
    /// were not cut and wait for it.
    fn wrong(
        &mut self,
        reason: Reason,
        is_fragment: bool,
        packet: &Packet<'_>,
        out: &mut impl Outlet,
    ) -> Result<(), Error> {
        let cut = is_cut(packet);
        if matches!(reason, Reason::Truncated | Reason::BadHeader) && !(cut && is_fragment) {
            self.report.malformed += u64::from(!cut);
            return self.pass(packet, out);
        }
        self.report.frag.fragments += 1;
        self.report.frag.fragments_dropped[reason as usize] += 1;
        if self.keep {
            self.report.kept += 1;
            self.write(packet, out)?;
        }
        Ok(())
    }

    fn frame(&mut self, packet: &Packet<'_>, bytes: Arc<[u8]>, place: Place, fcs: Fcs) -> Frame {
        self.kept += 1;
        Frame {
            bytes,
            options: packet.options.into(),
            order: packet.order,
            place,
            interface: packet.interface,
            time: packet.time,
            original_len: packet.original_len,
            fcs,
            arrived: self.kept,
        }
    }

    /// Adds a fragment that came when so much had passed; what that completes may itself be one, of the tunnel's payload.
    fn add(&mut self, piece: Piece, at: u64, out: &mut impl Outlet) -> Result<(), Error> {
        let Piece { mut fragment, mut frame, link } = piece;
        let now = self.now(&frame, at);
        let Frame { interface, time, fcs, order, .. } = frame;
        // A packet may be in fragments at each depth, once; more is somebody's idea of a joke.
        for deeper in (0..=self.tunnels).rev() {
            let Some(whole) = self.complete(&fragment, frame, now, out)? else { return Ok(()) };
            let original_len = u32::try_from(whole.bytes.len()).unwrap_or(u32::MAX);
            let (bytes, options) = (&whole.bytes[..], &whole.options[..]);
            let packet =
                Packet { interface, time, original_len, bytes, options, order, block: None };
            let found =
                if deeper == 0 { Found::Nothing } else { self.find(link, interface, bytes) };
            match found {
                Found::Fragment(inner, place) => {
                    frame = self.frame(&packet, bytes.into(), place, fcs);
                    fragment = inner;
                }
                Found::Nothing => return self.write(&packet, out),
                Found::Wrong(reason, is_fragment) => {
                    return self.wrong(reason, is_fragment, &packet, out);
                }
            }
        }
        Ok(())
    }

    /// Hands a fragment to the shard; the frame of its datagram, if that is complete now.
    fn complete(
        &mut self,
        fragment: &Fragment,
        frame: Frame,
        now: u64,
        out: &mut impl Outlet,
    ) -> Result<Option<Whole>, Error> {
        let bytes = Arc::clone(&frame.bytes);
        let (packet, cost) = (&bytes[frame.place.at..], frame.cost());
        let arrival = Arrival { packet, buffer: frame, cost, scope: 0 };
        self.shard.push_fragment(fragment, arrival, now, &mut self.collected);
        self.write_kept(out)?;
        Ok(self.collected.whole.take())
    }

    /// Writes frames that make no datagram, in the order in which they came.
    fn write_kept(&mut self, out: &mut impl Outlet) -> Result<(), Error> {
        let mut frames = std::mem::take(&mut self.collected.frames);
        frames.sort_unstable_by_key(|frame| frame.arrived);
        for frame in frames.drain(..) {
            self.report.kept += 1;
            self.write(&frame.packet(), out)?;
        }
        self.collected.frames = frames;
        Ok(())
    }

    /// Writes a packet as it came, in which nothing can be put together.
    fn pass(&mut self, packet: &Packet<'_>, out: &mut impl Outlet) -> Result<(), Error> {
        self.report.cut += u64::from(is_cut(packet));
        self.write(packet, out)
    }

    fn write(&mut self, packet: &Packet<'_>, out: &mut impl Outlet) -> Result<(), Error> {
        self.report.written += 1;
        out.packet(packet)
    }

    /// Gives up what is not complete. What comes after that may be from other interfaces.
    ///
    /// # Errors
    ///
    /// Those of the outlet.
    pub fn flush(&mut self, out: &mut impl Outlet) -> Result<(), Error> {
        for piece in std::mem::take(&mut self.doubtful) {
            self.add(piece, self.clocks.passed(), out)?;
        }
        self.report.incomplete += u64::from(self.shard.gauges().datagrams);
        self.shard.clear(self.clocks.passed(), &mut self.collected);
        self.clocks.forget();
        self.write_kept(out)
    }

    /// Gives up what is not complete and says what was done.
    ///
    /// # Errors
    ///
    /// Those of the outlet.
    pub fn finish(&mut self, out: &mut impl Outlet) -> Result<Report, Error> {
        self.flush(out)?;
        let mut report = std::mem::take(&mut self.report);
        report.frag.add(self.shard.counters());
        // The shard takes them for whole.
        report.frag.datagrams -= self.collected.spilled;
        report.frag.bytes -= self.collected.spilled_bytes;
        report.too_long = self.collected.too_long;
        Ok(report)
    }
}

/// The frame of a whole datagram.
#[derive(Debug)]
struct Whole {
    bytes: Vec<u8>,
    options: Vec<u8>,
}

/// What a shard says during one call.
#[derive(Debug, Default)]
struct Collected {
    keep: bool,
    whole: Option<Whole>,
    /// Frames to be written as they came.
    frames: Vec<Frame>,
    /// The datagram whose frames come back now did not fit.
    spill: bool,
    /// Datagrams that did not, and their payload and fragments.
    spilled: u64,
    spilled_bytes: u64,
    too_long: u64,
}

impl Sink<Frame> for Collected {
    /// Never called: only fragments are handed in.
    fn whole(&mut self, _: Frame, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, Frame>) {
        let whole = assemble(datagram);
        self.spill = whole.is_err();
        if self.spill {
            self.spilled += 1;
            self.spilled_bytes += datagram.payload_len() as u64;
            self.too_long += u64::from(datagram.fragments());
        }
        self.whole = whole.ok();
    }

    fn release(&mut self, frame: Frame, why: Released) {
        let wanted = match why {
            Released::Delivered => self.spill,
            Released::Dropped(reason) => self.keep && reason != Reason::Duplicate,
            Released::Copied => false,
        };
        if wanted {
            self.frames.push(frame);
        }
    }
}

/// The frame of a whole datagram: headers of its first fragment's frame, and the datagram.
fn assemble(datagram: &Datagram<'_, Frame>) -> Result<Whole, TooLong> {
    let frames = || {
        datagram.slices().filter_map(|slice| match slice {
            Slice::Held { buffer, .. } => Some(buffer),
            Slice::Copied(_) => None,
        })
    };
    let first = frames().next().ok_or(TooLong)?;
    let at = first.place.at;
    let mut bytes = vec![0; at + datagram.packet_len()];
    bytes[..at].copy_from_slice(&first.bytes[..at]);
    datagram.write_to(&mut bytes[at..], |frame: &Frame| frame.ip()).map_err(|_| TooLong)?;
    refit(&mut bytes, &first.place.wraps)?;
    first.fcs.append(&mut bytes);
    Ok(Whole { bytes, options: options(first, frames()) })
}

/// Options of a datagram, from those of its fragments as they came. Most have none.
fn options<'a>(first: &Frame, frames: impl Iterator<Item = &'a Frame>) -> Vec<u8> {
    let mut noted: Vec<&Frame> = frames.filter(|frame| !frame.options.is_empty()).collect();
    noted.sort_unstable_by_key(|frame| frame.arrived);
    // Of one that was cut there are several pieces.
    noted.dedup_by_key(|frame| frame.arrived);
    notes::compose(first.order, first.options(), noted.into_iter().map(Frame::options))
}

//! The memory that queue pairs read and write: the rings of guests, and buffers for control messages.
//!
//! A region of a queue pair names its memory by a [`Handle`]; here is where a handle leads. The ring that a
//! guest writes counts as one endless region whose addresses are positions in the stream, so that it may
//! move or grow as it likes; the ring that it reads counts from its first byte.

use roce::{Fault, Handle, Memory};

use super::guest::Relay;
use super::slab::{Id, Slab};

/// A connection's rings.
pub(super) type Rings = Box<dyn Relay>;
/// Names a connection.
pub(super) type ConnId = Id<Rings>;
/// Buffers for what is received on a link.
pub(super) type Buffers = Box<[u8]>;

/// What a handle means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// What the guest sends.
    Sent(ConnId),
    /// What it receives.
    Received(ConnId),
    /// Control messages of a link.
    Control(Id<Buffers>),
}

const KIND_AT: u32 = 56;
const NUMBER: u64 = (1 << KIND_AT) - 1;

impl Place {
    pub(super) fn handle(self) -> Handle {
        let (kind, number) = match self {
            Self::Sent(id) => (0, id.number()),
            Self::Received(id) => (1, id.number()),
            Self::Control(id) => (2, id.number()),
        };
        Handle(kind << KIND_AT | number)
    }

    pub(super) fn of(handle: Handle) -> Self {
        let number = handle.0 & NUMBER;
        match handle.0 >> KIND_AT {
            0 => Self::Sent(Id::from_number(number)),
            1 => Self::Received(Id::from_number(number)),
            _ => Self::Control(Id::from_number(number)),
        }
    }
}

/// All memory of a vector.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    pub(super) rings: Slab<Rings>,
    pub(super) buffers: Slab<Buffers>,
}

fn span(offset: u64, len: usize) -> Result<std::ops::Range<usize>, Fault> {
    let start = usize::try_from(offset).map_err(|_| Fault)?;
    Ok(start..start.checked_add(len).ok_or(Fault)?)
}

impl Memory for Shelf {
    fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        match Place::of(handle) {
            Place::Sent(id) => {
                // A connection that was given up, or whose guest's words make no sense, is reset. What of it
                // is still to be sent must not cost the link that others share.
                let there = self.rings.get(id).map(|ring| ring.copy_out(offset, to));
                if there != Some(Ok(())) {
                    to.fill(0);
                }
                Ok(())
            }
            // Nobody sends what was received.
            Place::Received(_) => Err(Fault),
            Place::Control(id) => {
                let from = self.buffers.get(id).ok_or(Fault)?;
                to.copy_from_slice(from.get(span(offset, to.len())?).ok_or(Fault)?);
                Ok(())
            }
        }
    }

    fn read_summed(
        &self,
        handle: Handle,
        offset: u64,
        to: &mut [u8],
        register: u32,
    ) -> Result<Option<u32>, Fault> {
        if let Place::Sent(id) = Place::of(handle)
            && let Some(ring) = self.rings.get(id)
            && let Ok(summed) = ring.copy_out_summed(offset, to, register)
        {
            return Ok(summed);
        }
        // Of another kind, or not there.
        self.read(handle, offset, to).map(|()| None)
    }

    fn sum(&self, register: u32, bytes: &[u8]) -> Option<u32> {
        sys::crc::update(register, bytes)
    }

    fn write_summed(
        &mut self,
        handle: Handle,
        offset: u64,
        from: &[u8],
        register: u32,
    ) -> Option<u32> {
        let Place::Received(id) = Place::of(handle) else { return None };
        let at = usize::try_from(offset).ok()?;
        self.rings.get_mut(id)?.write_at_summed(at, from, register)
    }

    fn write(&mut self, handle: Handle, offset: u64, from: &[u8]) -> Result<(), Fault> {
        match Place::of(handle) {
            Place::Sent(_) => Err(Fault),
            Place::Received(id) => {
                let at = span(offset, from.len())?.start;
                // What comes for a connection that was given up is dropped, for the same reason.
                let Some(ring) = self.rings.get_mut(id) else { return Ok(()) };
                ring.write_at(at, from).then_some(()).ok_or(Fault)
            }
            Place::Control(id) => {
                let to = self.buffers.get_mut(id).ok_or(Fault)?;
                to.get_mut(span(offset, from.len())?).ok_or(Fault)?.copy_from_slice(from);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_lead_where_they_were_made() {
        let mut shelf = Shelf::default();
        let id = shelf.buffers.insert(vec![0; 8].into_boxed_slice());
        let conn = ConnId::from_number(5 << 32 | 9);
        for place in [Place::Sent(conn), Place::Received(conn), Place::Control(id)] {
            assert_eq!(Place::of(place.handle()), place);
        }
        let (handle, mut out) = (Place::Control(id).handle(), [0; 4]);
        shelf.write(handle, 4, b"abcd").unwrap();
        shelf.read(handle, 3, &mut out).unwrap();
        assert_eq!(&out, b"\0abc");
        assert!(shelf.write(handle, 5, b"abcd").is_err());
        assert!(shelf.write(handle, u64::MAX, b"a").is_err());
        shelf.read(Place::Sent(conn).handle(), 0, &mut out).unwrap();
        assert_eq!(out, [0; 4], "of a connection that is not there any more");
        shelf.write(Place::Received(conn).handle(), 0, b"dropped").unwrap();
        assert!(shelf.write(Place::Sent(conn).handle(), 0, b"a").is_err());
        shelf.buffers.remove(id);
        assert!(shelf.write(handle, 0, b"a").is_err());
    }
}

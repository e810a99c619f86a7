//! The memory of a message, in pieces.

use crate::memory::{Denied, Handle, ProtectionDomain, Purpose, Regions};
use crate::work::{PIECES_MAX, Piece, PostError};

/// Pieces of memory, one behind the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pieces([Option<Piece>; PIECES_MAX]);

/// Where some bytes of a message are: these of those that were asked for, there in memory.
pub(super) struct Range {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) handle: Handle,
    pub(super) offset: u64,
}

impl Pieces {
    /// The pieces of a request, and how many bytes they are.
    pub(super) fn new(pieces: &[Piece]) -> Result<(u64, Self), PostError> {
        if pieces.len() > PIECES_MAX {
            return Err(PostError::Pieces);
        }
        let mut own = [None; PIECES_MAX];
        for (own, piece) in own.iter_mut().zip(pieces) {
            *own = Some(*piece);
        }
        Ok((pieces.iter().map(|piece| u64::from(piece.len)).sum(), Self(own)))
    }

    /// Where the `len` bytes from `at` on are. Ends with [`Denied`] if some are not where they may be
    /// used so, or if there are not as many.
    pub(super) fn ranges(
        &self,
        at: u32,
        len: usize,
        domain: ProtectionDomain,
        purpose: Purpose,
        regions: &Regions,
    ) -> impl Iterator<Item = Result<Range, Denied>> {
        let mut pieces = self.0.iter().flatten();
        let (mut skip, mut start) = (at, 0);
        core::iter::from_fn(move || {
            while start < len {
                let Some(piece) = pieces.next() else {
                    start = len;
                    return Some(Err(Denied));
                };
                if skip >= piece.len {
                    skip -= piece.len;
                    continue;
                }
                let taken = narrow(len - start).min(piece.len - skip);
                let address = piece.address.checked_add(skip.into()).ok_or(Denied);
                let found =
                    address.and_then(|at| regions.find(domain, piece.key.0, purpose, at, taken));
                let from = start;
                (start, skip) = (start + taken as usize, 0);
                return Some(found.map(|(handle, offset)| Range {
                    start: from,
                    end: start,
                    handle,
                    offset,
                }));
            }
            None
        })
    }
}

/// Bytes of a packet's payload: never more than 4096.
pub(super) fn narrow(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

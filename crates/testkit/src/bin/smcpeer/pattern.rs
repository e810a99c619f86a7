//! Bytes that say where in which stream they are, so that none can be lost, doubled or moved unseen;
//! and what a client tells a server before any of them.

use clap::ValueEnum;

use crate::Purpose;

/// A stream of bytes, told from others by its seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    seed: u64,
}

impl Pattern {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Eight bytes of the stream, from offset `8 * index` on.
    const fn word(self, index: u64) -> u64 {
        // SplitMix64.
        let z = self.seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// The bytes from `offset` on.
    pub(crate) fn fill(self, offset: u64, into: &mut [u8]) {
        let mut at = offset;
        let mut rest = into;
        while !rest.is_empty() {
            let bytes = self.word(at / 8).to_le_bytes();
            let from = usize::try_from(at % 8).unwrap_or(0);
            let n = rest.len().min(8 - from);
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(&bytes[from..from + n]);
            at += n as u64;
            rest = later;
        }
    }

    /// The offset of the first byte that is not the stream's, if there is one.
    pub(crate) fn first_wrong(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let mut wanted = vec![0; bytes.len()];
        self.fill(offset, &mut wanted);
        let wrong = wanted.iter().zip(bytes).position(|(a, b)| a != b);
        wrong.map(|at| offset + at as u64)
    }
}

/// What a client tells a server first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) purpose: Purpose,
    /// The server waits so long before it reads on.
    pub(crate) delay_ms: u32,
    /// Of the client's stream; the server's is one more.
    pub(crate) seed: u64,
    /// Length of the stream, or of each of the two.
    pub(crate) bytes: u64,
}

pub(crate) const REQUEST_LEN: usize = 24;
const MAGIC: [u8; 3] = *b"shp";

impl Request {
    pub(crate) fn to_bytes(self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..3].copy_from_slice(&MAGIC);
        bytes[3] = self.purpose as u8;
        bytes[4..8].copy_from_slice(&self.delay_ms.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seed.to_le_bytes());
        bytes[16..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// `None`: what came is no request.
    pub(crate) fn parse(bytes: [u8; REQUEST_LEN]) -> Option<Self> {
        let purpose = Purpose::value_variants().iter().find(|p| **p as u8 == bytes[3])?;
        let delay_ms = u32::from_le_bytes(bytes[4..8].try_into().ok()?);
        let seed = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
        let len = u64::from_le_bytes(bytes[16..].try_into().ok()?);
        let request = Self { purpose: *purpose, delay_ms, seed, bytes: len };
        (bytes[..3] == MAGIC).then_some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_however_it_is_cut() {
        let pattern = Pattern::new(7);
        let mut whole = [0; 100];
        pattern.fill(0, &mut whole);
        for cut in 0..100 {
            let mut piece = vec![0; 100 - cut];
            pattern.fill(cut as u64, &mut piece);
            assert_eq!(piece, whole[cut..]);
            assert_eq!(pattern.first_wrong(cut as u64, &piece), None);
        }
        whole[57] ^= 1;
        assert_eq!(pattern.first_wrong(0, &whole), Some(57));
        assert_eq!(pattern.first_wrong(1, &whole[..50]), Some(1), "moved");
        assert_eq!(Pattern::new(8).first_wrong(0, &whole), Some(0), "of another stream");
    }

    #[test]
    fn requests_come_out_as_they_went_in() {
        for purpose in Purpose::value_variants() {
            let request =
                Request { purpose: *purpose, delay_ms: 3, seed: 1 << 40, bytes: 64 << 20 };
            assert_eq!(Request::parse(request.to_bytes()), Some(request));
        }
        assert_eq!(Request::parse([0; REQUEST_LEN]), None);
    }
}

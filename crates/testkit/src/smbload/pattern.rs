//! What files hold: each eight bytes are a function of their offset, so that each misplaced or
//! stale byte is seen.

use std::fmt;

/// Data that was not what it must be: the server's fault, or the network's.
#[derive(Debug)]
pub struct Mismatch {
    /// Where in the file, bytes.
    pub offset: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the data near offset {} is not what was written there", self.offset)
    }
}

impl std::error::Error for Mismatch {}

fn word(offset: u64) -> u64 {
    offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555_0000_ffff_1234
}

/// What a file holds from `offset` on, which is a multiple of 8.
pub(crate) fn fill(buffer: &mut [u8], offset: u64) {
    let (words, rest) = buffer.as_chunks_mut::<8>();
    let behind = offset + 8 * words.len() as u64;
    for (piece, at) in words.iter_mut().zip(0..) {
        *piece = word(offset + 8 * at).to_le_bytes();
    }
    rest.copy_from_slice(&word(behind).to_le_bytes()[..rest.len()]);
}

/// Whether a file holds `bytes` from `offset` on.
///
/// # Errors
///
/// When it does not.
pub(crate) fn check(bytes: &[u8], offset: u64) -> Result<(), Mismatch> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (piece, at) in words.iter().zip(0..) {
        let offset = offset + 8 * at;
        if u64::from_le_bytes(*piece) != word(offset) {
            return Err(Mismatch { offset });
        }
    }
    let behind = offset + 8 * words.len() as u64;
    if *rest != word(behind).to_le_bytes()[..rest.len()] {
        return Err(Mismatch { offset: behind });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        let mut buffer = [0; 61];
        fill(&mut buffer, 4096);
        check(&buffer, 4096).unwrap();
        assert!(check(&buffer, 4104).is_err());
        for at in 0..buffer.len() {
            buffer[at] ^= 0x40;
            let found = check(&buffer, 4096).unwrap_err().offset;
            assert_eq!(found, 4096 + at as u64 / 8 * 8);
            buffer[at] ^= 0x40;
        }
    }
}

//! What stands behind a frame on some interfaces: the checksum of its link, of which the file says how long it is.

use super::Link;

const CRC_BYTES: u8 = 4;

/// The checksum behind frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fcs {
    /// There is none.
    #[default]
    None,
    /// Ethernet's CRC-32.
    Crc,
    /// So many bytes that we know no rule for.
    Other(u8),
}

impl Fcs {
    /// What frames of this link have if it is so many bytes.
    pub(super) const fn of(link: Link, bytes: u8) -> Self {
        match (link, bytes) {
            (_, 0) => Self::None,
            (Link::Ethernet, CRC_BYTES) => Self::Crc,
            _ => Self::Other(bytes),
        }
    }

    /// Puts it behind a frame.
    pub(super) fn append(self, frame: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Crc => {
                let crc = crc32fast::hash(frame);
                frame.extend_from_slice(&crc.to_le_bytes());
            }
            // A wrong one harms less than payload that readers take for it.
            Self::Other(bytes) => frame.resize(frame.len() + usize::from(bytes), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-32 is 0xcbf43926, and the lowest byte goes first.
    #[test]
    fn what_is_promised_is_appended() {
        let appended = |fcs: Fcs| {
            let mut frame = b"123456789".to_vec();
            fcs.append(&mut frame);
            frame.split_off(9)
        };
        assert_eq!(appended(Fcs::of(Link::Ethernet, 4)), [0x26, 0x39, 0xf4, 0xcb]);
        assert!(appended(Fcs::of(Link::Ethernet, 0)).is_empty());
        assert_eq!(appended(Fcs::of(Link::Ppp, 2)), [0, 0]);
    }
}

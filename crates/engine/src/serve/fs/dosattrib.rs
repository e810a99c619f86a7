//! The extended attribute `user.DOSATTRIB`, byte for byte as Samba keeps it (`librpc/idl/xattr.idl`).
//!
//! A file without it has what follows from the file itself: `ARCHIVE`, and the file system's birth time. So
//! the attribute is written only for a file about which a client has said something else, and a share that
//! was Samba's shows the same attributes and creation times as before.

use smb::{Attributes, FileTime};

/// The attribute's name.
pub const NAME: &str = "user.DOSATTRIB";
/// The longest value that is read; Samba's are at most 56 bytes.
pub const LEN_MAX: usize = 128;

/// What one attribute says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DosAttrib {
    /// DOS attributes, if it says something about them; never `NORMAL`.
    pub attributes: Option<Attributes>,
    /// When the file came to be, if it says so.
    pub created: Option<FileTime>,
}

/// XATTR_DOSINFO_ATTRIB: `attrib` means something.
const HAS_ATTRIBUTES: u32 = 0x01;
/// XATTR_DOSINFO_CREATE_TIME: `create_time` means something.
const HAS_CREATED: u32 = 0x10;
/// What may be stored; the rest follows from the file, or is not ours to believe.
pub const STORED: Attributes = Attributes::READONLY
    .union(Attributes::HIDDEN)
    .union(Attributes::SYSTEM)
    .union(Attributes::ARCHIVE)
    .union(Attributes::TEMPORARY)
    .union(Attributes::SPARSE_FILE)
    .union(Attributes::OFFLINE)
    .union(Attributes::NOT_CONTENT_INDEXED);

impl DosAttrib {
    /// Reads a value of version 1 to 5. `None`: not one of Samba's, nor ours.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let hex = value.iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(&value[..hex]).ok()?;
        let legacy =
            text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
        // The text ends in a NUL, and what follows is aligned to 2.
        let at = (hex + 2) & !1;
        let Some(version) = half(value, at) else {
            // Before version 1 there was the text alone.
            return legacy.map(|bits| Self {
                attributes: Some(Attributes::from_bits_retain(bits) & STORED),
                created: None,
            });
        };
        if half(value, at + 2)? != version {
            return None;
        }
        // The union is aligned to 4.
        let body = value.get((at + 7) & !3..)?;
        let both = HAS_ATTRIBUTES | HAS_CREATED;
        let (flags, attributes, created) = match version {
            1 => (both, word(body, 0)?, long(body, 24)?),
            2 => (both, word(body, 4)?, long(body, 28)?),
            3 => (word(body, 0)?, word(body, 4)?, long(body, 28)?),
            4 => (word(body, 0)?, word(body, 4)?, long(body, 16)?),
            5 => (word(body, 0)?, word(body, 4)?, long(body, 8)?),
            _ => return None,
        };
        let attributes = Attributes::from_bits_retain(attributes) & STORED;
        Some(Self {
            attributes: (flags & HAS_ATTRIBUTES != 0).then_some(attributes),
            created: (flags & HAS_CREATED != 0).then_some(FileTime(created)),
        })
    }

    /// The value to store: version 5.
    #[must_use]
    pub fn emit(&self) -> [u8; 24] {
        let mut value = [0; 24];
        value[2..4].copy_from_slice(&5u16.to_le_bytes());
        value[4..6].copy_from_slice(&5u16.to_le_bytes());
        let flags = if self.attributes.is_some() { HAS_ATTRIBUTES } else { 0 }
            | if self.created.is_some() { HAS_CREATED } else { 0 };
        value[8..12].copy_from_slice(&flags.to_le_bytes());
        let attributes = self.attributes.unwrap_or_default() & STORED;
        value[12..16].copy_from_slice(&attributes.bits().to_le_bytes());
        value[16..24].copy_from_slice(&self.created.unwrap_or_default().0.to_le_bytes());
        value
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::{Attributes, DosAttrib, FileTime};
    use proptest::prelude::*;

    /// What smbd 4.17.12 wrote for a file that was made and then set to read-only and hidden.
    const SAMBA: [u8; 24] = [
        0, 0, 5, 0, 5, 0, 0, 0, 0x11, 0, 0, 0, 0x23, 0, 0, 0, 0x01, 0xf6, 0x28, 0x8b, 0xe5, 0x79,
        0xdd, 0x01,
    ];

    #[test]
    fn samba_and_we_write_the_same_bytes() {
        let attrib = DosAttrib::parse(&SAMBA).unwrap();
        let rha = Attributes::READONLY | Attributes::HIDDEN | Attributes::ARCHIVE;
        assert_eq!(attrib.attributes, Some(rha));
        assert_eq!(attrib.created, Some(FileTime(0x01dd_79e5_8b28_f601)));
        assert_eq!(attrib.emit(), SAMBA);
    }

    #[test]
    fn older_versions_are_understood() {
        let want = DosAttrib { attributes: Some(Attributes::HIDDEN), created: None };
        assert_eq!(DosAttrib::parse(b"0x2\0"), Some(want));
        let mut three = vec![b'0', b'x', b'2', 0, 3, 0, 3, 0];
        three.extend([0x11, 0, 0, 0, 2, 0, 0, 0]);
        three.extend([0; 20]);
        three.extend([9, 0, 0, 0, 0, 0, 0, 0]);
        let want = DosAttrib { created: Some(FileTime(9)), ..want };
        assert_eq!(DosAttrib::parse(&three), Some(want));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = DosAttrib::parse(&bytes);
        }

        #[test]
        fn what_is_written_is_read(bits in any::<u32>(), created in any::<Option<u64>>()) {
            let attributes = Some(Attributes::from_bits_retain(bits) & super::STORED);
            let attrib = DosAttrib { attributes, created: created.map(FileTime) };
            prop_assert_eq!(DosAttrib::parse(&attrib.emit()), Some(attrib));
        }
    }
}

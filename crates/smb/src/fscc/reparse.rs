//! Reparse points: symbolic links and special files (MS-FSCC 2.1.2).

use super::{Put, Reader, len32};
use crate::NtStatus;
use crate::name::utf16;

/// IO_REPARSE_TAG_SYMLINK.
pub const SYMLINK: u32 = 0xa000_000c;
/// IO_REPARSE_TAG_MOUNT_POINT: a junction.
pub const MOUNT_POINT: u32 = 0xa000_0003;
/// IO_REPARSE_TAG_NFS: a special file, as the NFS server of Windows has it.
pub const NFS: u32 = 0x8000_0014;
/// IO_REPARSE_TAG_LX_SYMLINK: a symbolic link, as WSL has it.
pub const LX_SYMLINK: u32 = 0xa000_001d;
/// IO_REPARSE_TAG_AF_UNIX: a socket.
pub const AF_UNIX: u32 = 0x8000_0023;
/// IO_REPARSE_TAG_LX_FIFO: a pipe.
pub const LX_FIFO: u32 = 0x8000_0024;
/// IO_REPARSE_TAG_LX_CHR: a character device.
pub const LX_CHR: u32 = 0x8000_0025;
/// IO_REPARSE_TAG_LX_BLK: a block device.
pub const LX_BLK: u32 = 0x8000_0026;

/// Longest reparse data with its head, bytes (MS-FSCC 2.1.2.2).
pub const LEN_MAX: usize = 16_384;
/// SYMLINK_FLAG_RELATIVE.
const RELATIVE: u32 = 1;
/// Bit of a tag: not of Microsoft, so a GUID follows the head.
const MICROSOFT: u32 = 0x8000_0000;

/// What a reparse point leads to, or is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reparse {
    /// A symbolic link.
    Symlink(Symlink),
    /// A special file.
    Special(Special),
    /// Something else of Microsoft's, kept as bytes.
    Other {
        /// Which kind.
        tag: u32,
        /// What follows the head.
        bytes: Vec<u8>,
    },
}

/// Where a symbolic link leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symlink {
    /// The name that is followed, `\` between components.
    pub substitute: String,
    /// The name that is shown.
    pub print: String,
    /// Seen from the directory of the link; else from the root.
    pub relative: bool,
}

/// A file that is neither data nor a directory nor a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A pipe with a name.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    Char {
        /// Which driver.
        major: u32,
        /// Which of its devices.
        minor: u32,
    },
    /// A block device.
    Block {
        /// Which driver.
        major: u32,
        /// Which of its devices.
        minor: u32,
    },
}

/// NFS_SPECFILE_* (MS-FSCC 2.1.2.6): the letters of the kind, read as a number.
const NFS_LNK: u64 = 0x0000_0000_014b_4e4c;
const NFS_CHR: u64 = 0x0000_0000_0052_4843;
const NFS_BLK: u64 = 0x0000_0000_004b_4c42;
const NFS_FIFO: u64 = 0x0000_0000_4f46_4946;
const NFS_SOCK: u64 = 0x0000_0000_4b43_4f53;

impl Symlink {
    /// The link that a Unix symbolic link is: `/` becomes `\`.
    #[must_use]
    pub fn from_unix(target: &str) -> Self {
        let text = target.replace('/', "\\");
        Self { substitute: text.clone(), print: text, relative: !target.starts_with('/') }
    }

    /// What a Unix symbolic link says instead; `None` for one that leads to another volume or machine.
    #[must_use]
    pub fn to_unix(&self) -> Option<String> {
        let outward = self.substitute.starts_with("\\\\") || self.substitute.starts_with("\\??\\");
        let drive = self.substitute.get(1..2) == Some(":");
        let relative = self.relative && !outward && !drive && !self.substitute.is_empty();
        relative.then(|| self.substitute.replace('\\', "/"))
    }

    /// What a Unix symbolic link says instead that counts from the root of the client, and means nothing to others;
    /// `None` for one that says which volume or machine.
    #[must_use]
    pub fn to_unix_absolute(&self) -> Option<String> {
        let rooted = self.substitute.starts_with('\\')
            && !self.substitute.starts_with("\\\\")
            && !self.substitute.starts_with("\\??\\");
        (rooted && !self.relative).then(|| self.substitute.replace('\\', "/"))
    }

    /// The data of ERROR responses to who meets the link on the way (MS-SMB2 2.2.2.2.1), of which
    /// `unparsed` UTF-16 bytes of the path lie behind the link.
    #[must_use]
    pub fn to_error(&self, unparsed: u16) -> Vec<u8> {
        const SYMLINK_ERROR: u32 = 0x4c4d_5953;
        let mut out = Vec::new();
        out.u32(0);
        out.u32(SYMLINK_ERROR);
        out.u32(SYMLINK);
        out.u16(self.data_len());
        out.u16(unparsed);
        self.put_body(&mut out);
        let len = len32(out.len() - 4);
        super::patch_u32(&mut out, 0, len);
        out
    }

    fn data_len(&self) -> u16 {
        u16::try_from(12 + utf16::len(&self.substitute) + utf16::len(&self.print))
            .unwrap_or(u16::MAX)
    }

    /// Offsets, lengths, flags and both names.
    fn put_body(&self, out: &mut Vec<u8>) {
        let len16 = |text: &str| u16::try_from(utf16::len(text)).unwrap_or(u16::MAX);
        let (substitute, print) = (len16(&self.substitute), len16(&self.print));
        [0, substitute, substitute, print].into_iter().for_each(|n| out.u16(n));
        out.u32(if self.relative { RELATIVE } else { 0 });
        utf16::append(&self.substitute, out);
        utf16::append(&self.print, out);
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(bytes);
        let substitute = (fields.u16()?, fields.u16()?);
        let print = (fields.u16()?, fields.u16()?);
        let flags = fields.u32()?;
        let names = fields.rest();
        let name =
            |(at, len): (u16, u16)| utf16::decode(names.get(at.into()..)?.get(..len.into())?).ok();
        Some(Self {
            substitute: name(substitute)?,
            print: name(print)?,
            relative: flags & RELATIVE != 0,
        })
    }
}

impl Reparse {
    /// Which kind of reparse point this is.
    #[must_use]
    pub const fn tag(&self) -> u32 {
        match self {
            Self::Symlink(_) => SYMLINK,
            Self::Special(_) => NFS,
            Self::Other { tag, .. } => *tag,
        }
    }

    /// Reads a REPARSE_DATA_BUFFER, of FSCTL_SET_REPARSE_POINT.
    ///
    /// # Errors
    ///
    /// IO_REPARSE_DATA_INVALID if it does not hold together, IO_REPARSE_TAG_INVALID for a tag that cannot
    /// be.
    pub fn parse(bytes: &[u8]) -> Result<Self, NtStatus> {
        const BAD: NtStatus = NtStatus::IO_REPARSE_DATA_INVALID;
        let mut fields = Reader::new(bytes);
        let tag = fields.u32().ok_or(BAD)?;
        let len = fields.u16().ok_or(BAD)?;
        fields.u16().ok_or(BAD)?;
        if tag <= 1 {
            return Err(NtStatus::IO_REPARSE_TAG_INVALID);
        }
        let guid = if tag & MICROSOFT == 0 { 16 } else { 0 };
        let body = fields.rest();
        if body.len() != usize::from(len) + guid || bytes.len() > LEN_MAX {
            return Err(BAD);
        }
        match tag {
            SYMLINK => Symlink::parse(body).map(Self::Symlink).ok_or(BAD),
            NFS => Self::parse_nfs(body).ok_or(BAD),
            LX_SYMLINK => Self::parse_lx_symlink(body).ok_or(BAD),
            LX_FIFO if body.is_empty() => Ok(Self::Special(Special::Fifo)),
            AF_UNIX if body.is_empty() => Ok(Self::Special(Special::Socket)),
            tag => Ok(Self::Other { tag, bytes: body.to_vec() }),
        }
    }

    /// A number that says how the target is written, and the target.
    fn parse_lx_symlink(body: &[u8]) -> Option<Self> {
        const UTF_8: u32 = 2;
        let mut fields = Reader::new(body);
        let form = fields.u32()?;
        let target = std::str::from_utf8(fields.rest()).ok()?;
        (form == UTF_8).then(|| Self::Symlink(Symlink::from_unix(target)))
    }

    fn parse_nfs(body: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(body);
        let device = |kind: u64, fields: &mut Reader<'_>| {
            let (major, minor) = (fields.u32()?, fields.u32()?);
            Some(if kind == NFS_CHR {
                Special::Char { major, minor }
            } else {
                Special::Block { major, minor }
            })
        };
        Some(match fields.u64()? {
            NFS_LNK => {
                let target = utf16::decode(fields.rest()).ok()?;
                Self::Symlink(Symlink::from_unix(target.trim_end_matches('\0')))
            }
            NFS_FIFO => Self::Special(Special::Fifo),
            NFS_SOCK => Self::Special(Special::Socket),
            kind @ (NFS_CHR | NFS_BLK) => Self::Special(device(kind, &mut fields)?),
            _ => return None,
        })
    }

    /// Its REPARSE_DATA_BUFFER, for FSCTL_GET_REPARSE_POINT.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Self::Symlink(link) => link.put_body(&mut body),
            Self::Special(special) => special.put_body(&mut body),
            Self::Other { bytes, .. } => body.put(bytes),
        }
        let tag = self.tag();
        let guid = if tag & MICROSOFT == 0 { 16 } else { 0 };
        let mut out = Vec::with_capacity(8 + body.len());
        out.u32(tag);
        out.u16(u16::try_from(body.len().saturating_sub(guid)).unwrap_or(u16::MAX));
        out.u16(0);
        out.put(&body);
        out
    }
}

impl Special {
    fn put_body(self, out: &mut Vec<u8>) {
        match self {
            Self::Fifo => out.u64(NFS_FIFO),
            Self::Socket => out.u64(NFS_SOCK),
            Self::Char { major, minor } => {
                out.u64(NFS_CHR);
                out.u32(major);
                out.u32(minor);
            }
            Self::Block { major, minor } => {
                out.u64(NFS_BLK);
                out.u32(major);
                out.u32(minor);
            }
        }
    }
}

/// The tag of FSCTL_DELETE_REPARSE_POINT.
///
/// # Errors
///
/// IO_REPARSE_DATA_INVALID for anything but a head without data, IO_REPARSE_TAG_INVALID for a tag that cannot
/// be.
pub fn parse_delete(bytes: &[u8]) -> Result<u32, NtStatus> {
    let mut fields = Reader::new(bytes);
    let head = (fields.u32(), fields.u16(), fields.u16());
    let (Some(tag), Some(0), Some(_)) = head else {
        return Err(NtStatus::IO_REPARSE_DATA_INVALID);
    };
    if tag <= 1 {
        return Err(NtStatus::IO_REPARSE_TAG_INVALID);
    }
    let guid = if tag & MICROSOFT == 0 { 16 } else { 0 };
    if fields.rest().len() == guid { Ok(tag) } else { Err(NtStatus::IO_REPARSE_DATA_INVALID) }
}

//! What a client asks about a file: FILE_*_INFORMATION (MS-FSCC 2.4), by QUERY_INFO.

use super::directory::{device32, wire_mode};
use super::ea::{Ea, put_eas};
use super::le::{Put, len32, pad, patch_u32};
use super::{Facts, PosixOwner};
use crate::name::utf16;
use crate::{Access, FileTime, NtStatus};

/// Which information about a file (MS-FSCC 2.4), as far as it can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileClass {
    /// FileBasicInformation: times and attributes.
    Basic = 4,
    /// FileStandardInformation: sizes, links.
    Standard = 5,
    /// FileInternalInformation: the inode.
    Internal = 6,
    /// FileEaInformation: the size of the extended attributes.
    Ea = 7,
    /// FileAccessInformation: what this open may do.
    Access = 8,
    /// FileNameInformation: the path in the share, with `\` before.
    Name = 9,
    /// FilePositionInformation.
    Position = 14,
    /// FileFullEaInformation: the extended attributes.
    FullEa = 15,
    /// FileModeInformation.
    Mode = 16,
    /// FileAlignmentInformation.
    Alignment = 17,
    /// FileAllInformation.
    All = 18,
    /// FileAlternateNameInformation: the 8.3 name.
    AlternateName = 21,
    /// FileStreamInformation.
    Stream = 22,
    /// FilePipeInformation.
    Pipe = 23,
    /// FilePipeLocalInformation.
    PipeLocal = 24,
    /// FileCompressionInformation.
    Compression = 28,
    /// FileNetworkOpenInformation.
    NetworkOpen = 34,
    /// FileAttributeTagInformation.
    AttributeTag = 35,
    /// FileNormalizedNameInformation: the path in the share without `\` before; SMB 3.1.1 only.
    NormalizedName = 48,
    /// FileIdInformation: volume and inode.
    Id = 59,
    /// The POSIX extensions' SMB_FILE_POSIX_INFO.
    Posix = 100,
}

/// Whether an answer is all that there is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// All.
    Whole,
    /// Cut where the client's buffer ends.
    Cut,
}

impl Fill {
    /// The status of an answer that is filled like this.
    #[must_use]
    pub const fn status(self) -> NtStatus {
        match self {
            Self::Whole => NtStatus::SUCCESS,
            Self::Cut => NtStatus::BUFFER_OVERFLOW,
        }
    }
}

/// One stream of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamFacts {
    /// Its name without colons and type; empty for the file's own data.
    pub name: String,
    /// Bytes that can be read.
    pub size: u64,
    /// Bytes that it takes on the disk.
    pub allocated: u64,
}

/// A file and an open of it, as far as information levels tell about them.
#[derive(Clone, Copy, Debug, Default)]
pub struct About<'a> {
    /// The file, or the stream that is open.
    pub facts: Facts,
    /// What the open may do.
    pub access: Access,
    /// The create options that FileModeInformation shows (MS-FSCC 2.4.31).
    pub mode: u32,
    /// What the client last set as position.
    pub position: u64,
    /// Whether the file goes when its last open is closed.
    pub delete_pending: bool,
    /// The path in the share: `\` between components, none before; `file:stream` for a stream.
    pub name: &'a str,
    /// The 8.3 name, empty if there is none.
    pub short_name: &'a str,
    /// The extended attributes, for FileFullEaInformation.
    pub eas: &'a [Ea],
    /// All streams, the file's own data among them, for FileStreamInformation.
    pub streams: &'a [StreamFacts],
    /// Owner and group, for the POSIX level.
    pub owner: Option<&'a PosixOwner>,
}

impl FileClass {
    /// From the byte on the wire.
    ///
    /// # Errors
    ///
    /// INVALID_INFO_CLASS for what cannot be asked for (MS-SMB2 3.3.5.20.1).
    pub fn from_wire(byte: u8) -> Result<Self, NtStatus> {
        [
            Self::Basic,
            Self::Standard,
            Self::Internal,
            Self::Ea,
            Self::Access,
            Self::Name,
            Self::Position,
            Self::FullEa,
            Self::Mode,
            Self::Alignment,
            Self::All,
            Self::AlternateName,
            Self::Stream,
            Self::Pipe,
            Self::PipeLocal,
            Self::Compression,
            Self::NetworkOpen,
            Self::AttributeTag,
            Self::NormalizedName,
            Self::Id,
            Self::Posix,
        ]
        .into_iter()
        .find(|class| *class as u8 == byte)
        .ok_or(NtStatus::INVALID_INFO_CLASS)
    }

    /// The right that an open needs to ask for this (MS-FSA 2.1.5.12); empty for none.
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Self::Basic | Self::All | Self::NetworkOpen | Self::AttributeTag => {
                Access::READ_ATTRIBUTES
            }
            Self::FullEa => Access::READ_EA,
            _ => Access::empty(),
        }
    }

    /// Bytes that a buffer must have for any answer.
    #[must_use]
    pub const fn len_min(self) -> usize {
        match self {
            Self::Basic | Self::PipeLocal => 40,
            Self::Standard | Self::Id => 24,
            Self::Internal | Self::Position | Self::Pipe | Self::AttributeTag => 8,
            Self::AlternateName | Self::Name | Self::NormalizedName => 8,
            Self::Ea | Self::Access | Self::Mode | Self::Alignment => 4,
            Self::FullEa => 8,
            Self::All => 104,
            Self::Stream => 32,
            Self::Compression => 16,
            Self::NetworkOpen => 56,
            Self::Posix => 80,
        }
    }

    /// Appends the answer to `out`, at most `limit` bytes of it.
    ///
    /// # Errors
    ///
    /// INFO_LENGTH_MISMATCH if the client's buffer cannot take even the fixed part; OBJECT_NAME_NOT_FOUND
    /// for the 8.3 name of a file that has none; NO_EAS_ON_FILE for the extended attributes of such a file,
    /// BUFFER_TOO_SMALL if not even the first of them fits.
    pub fn put(self, about: &About<'_>, limit: usize, out: &mut Vec<u8>) -> Result<Fill, NtStatus> {
        let absent = match self {
            Self::AlternateName if about.short_name.is_empty() => NtStatus::OBJECT_NAME_NOT_FOUND,
            Self::FullEa if about.eas.is_empty() => NtStatus::NO_EAS_ON_FILE,
            _ if limit < self.len_min() => NtStatus::INFO_LENGTH_MISMATCH,
            _ => NtStatus::SUCCESS,
        };
        if absent.is_error() {
            return Err(absent);
        }
        let start = out.len();
        match self {
            Self::Stream => return Ok(streams(about.streams, limit, out)),
            Self::FullEa => return put_eas(about.eas, limit, out),
            _ => put(self, about, out),
        }
        Ok(cut(out, start, limit))
    }
}

/// Cuts what was written from `start` on to `limit` bytes.
pub(super) fn cut(out: &mut Vec<u8>, start: usize, limit: usize) -> Fill {
    if out.len() - start <= limit {
        return Fill::Whole;
    }
    out.truncate(start + limit);
    Fill::Cut
}

fn put(class: FileClass, about: &About<'_>, out: &mut Vec<u8>) {
    let facts = &about.facts;
    match class {
        FileClass::Basic => basic(facts, out),
        FileClass::Standard => standard(about, out),
        FileClass::Internal => out.u64(facts.file_id),
        FileClass::Ea => out.u32(facts.ea_size),
        FileClass::Access => out.u32(about.access.bits()),
        FileClass::Mode => out.u32(about.mode),
        FileClass::Alignment => out.u32(0),
        FileClass::Position => out.u64(about.position),
        FileClass::Name => name("\\", about.name, out),
        FileClass::NormalizedName => name("", about.name, out),
        FileClass::AlternateName => name("", about.short_name, out),
        FileClass::All => all(about, out),
        FileClass::Pipe => {
            // Byte mode for reading, waits for completion.
            out.u32(0);
            out.u32(0);
        }
        FileClass::PipeLocal => pipe_local(out),
        FileClass::Compression => {
            out.u64(facts.size);
            // COMPRESSION_FORMAT_NONE, the shifts, three reserved bytes.
            out.put(&[0; 8]);
        }
        FileClass::NetworkOpen => network_open(facts, out),
        FileClass::AttributeTag => {
            out.u32(facts.attributes.bits());
            out.u32(facts.reparse_tag);
        }
        FileClass::Id => {
            out.u64(facts.device);
            out.put(&u128::from(facts.file_id).to_le_bytes());
        }
        FileClass::Posix => posix(about, out),
        // Lists, which have a packer of their own.
        FileClass::FullEa | FileClass::Stream => {}
    }
}

/// The four times, in the order that most formats have.
pub(super) fn times(facts: &Facts) -> [FileTime; 4] {
    [facts.created, facts.accessed, facts.written, facts.changed]
}

fn basic(facts: &Facts, out: &mut Vec<u8>) {
    times(facts).into_iter().for_each(|time| out.time(time));
    out.u32(facts.attributes.bits());
    out.u32(0);
}

fn standard(about: &About<'_>, out: &mut Vec<u8>) {
    out.u64(about.facts.allocated);
    out.u64(about.facts.size);
    // Subdirectories are no links for Windows; what is about to go has one less.
    let links = if about.facts.is_directory() { 1 } else { about.facts.links };
    out.u32(links.saturating_sub(about.delete_pending.into()));
    out.put(&[about.delete_pending.into(), about.facts.is_directory().into(), 0, 0]);
}

fn name(before: &str, name: &str, out: &mut Vec<u8>) {
    out.u32(len32(utf16::len(before) + utf16::len(name)));
    utf16::append(before, out);
    utf16::append(name, out);
}

fn all(about: &About<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    basic(&about.facts, out);
    standard(about, out);
    out.u64(about.facts.file_id);
    out.u32(about.facts.ea_size);
    out.u32(about.access.bits());
    out.u64(about.position);
    out.u32(about.mode);
    out.u32(0);
    name("\\", about.name, out);
    // The structure ends at a multiple of eight even with the shortest name.
    if out.len() - start < FileClass::All.len_min() {
        pad(out, start, 8);
    }
}

/// FILE_PIPE_LOCAL_INFORMATION (MS-FSCC 2.4.36) of a pipe as ours are.
fn pipe_local(out: &mut Vec<u8>) {
    const FULL_DUPLEX: u32 = 2;
    const CONNECTED: u32 = 3;
    const QUOTA: u32 = 4096;
    const ANY_NUMBER: u32 = u32::MAX;
    // Type (message), configuration, instances at most and now, quotas and what is free of them.
    [1, FULL_DUPLEX, ANY_NUMBER, 1, QUOTA, 0, QUOTA, QUOTA, CONNECTED, 1]
        .into_iter()
        .for_each(|n| out.u32(n));
}

fn network_open(facts: &Facts, out: &mut Vec<u8>) {
    times(facts).into_iter().for_each(|time| out.time(time));
    out.u64(facts.allocated);
    out.u64(facts.size);
    out.u32(facts.attributes.bits());
    out.u32(0);
}

fn posix(about: &About<'_>, out: &mut Vec<u8>) {
    let facts = &about.facts;
    times(facts).into_iter().for_each(|time| out.time(time));
    out.u64(facts.size);
    out.u64(facts.allocated);
    out.u32(facts.attributes.bits());
    out.u64(facts.file_id);
    out.u32(device32(facts));
    out.u32(0);
    out.u32(facts.links);
    out.u32(facts.reparse_tag);
    out.u32(wire_mode(facts.mode));
    if let Some(owner) = about.owner {
        out.put(owner.bytes());
    }
}

/// FILE_STREAM_INFORMATION (MS-FSCC 2.4.43): entries at multiples of eight. A list that does not fit is
/// as many whole entries as do.
fn streams(streams: &[StreamFacts], limit: usize, out: &mut Vec<u8>) -> Fill {
    const FIXED: usize = 24;
    let start = out.len();
    let mut last = None;
    for stream in streams {
        let name_len = utf16::len(&stream.name) + utf16::len("::$DATA");
        let at = (out.len() - start).next_multiple_of(8);
        if at + FIXED + name_len > limit {
            return Fill::Cut;
        }
        out.resize(start + at, 0);
        if let Some(last) = last {
            patch_u32(out, start + last, len32(at - last));
        }
        last = Some(at);
        out.u32(0);
        out.u32(len32(name_len));
        out.u64(stream.size);
        out.u64(stream.allocated);
        utf16::append(":", out);
        utf16::append(&stream.name, out);
        utf16::append(":$DATA", out);
    }
    Fill::Whole
}

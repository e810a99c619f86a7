//! What a client sets about a file: FILE_*_INFORMATION (MS-FSCC 2.4), by SET_INFO.

use super::ea::{Ea, parse_eas};
use super::le::Reader;
use crate::name::{Path, Stream, utf16};
use crate::{Attributes, CreateOptions, FileTime, NtStatus};

/// Which information about a file is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SetClass {
    /// FileBasicInformation.
    Basic = 4,
    /// FileRenameInformation.
    Rename = 10,
    /// FileLinkInformation.
    Link = 11,
    /// FileDispositionInformation.
    Disposition = 13,
    /// FilePositionInformation.
    Position = 14,
    /// FileFullEaInformation.
    FullEa = 15,
    /// FileModeInformation.
    Mode = 16,
    /// FileAllocationInformation.
    Allocation = 19,
    /// FileEndOfFileInformation.
    EndOfFile = 20,
    /// FilePipeInformation.
    Pipe = 23,
    /// FileValidDataLengthInformation.
    ValidDataLength = 39,
    /// FileShortNameInformation.
    ShortName = 40,
    /// FileDispositionInformationEx.
    DispositionEx = 64,
    /// FileRenameInformationEx.
    RenameEx = 65,
    /// FileLinkInformationEx.
    LinkEx = 72,
}

/// A change of a file, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Times and attributes.
    Basic {
        /// Which times.
        times: Times,
        /// New attributes; empty leaves them as they are.
        attributes: Attributes,
    },
    /// Another name, in the same share.
    Rename {
        /// The new one.
        target: Target,
        /// What becomes of a file that has this name already.
        taken: Taken,
    },
    /// One more name.
    Link {
        /// The new one.
        target: Target,
        /// What becomes of a file that has this name already.
        taken: Taken,
    },
    /// Whether the file goes when its last open is closed.
    Disposition(Disposal),
    /// The position that FilePositionInformation tells.
    Position(u64),
    /// Create options that may change while open.
    Mode(CreateOptions),
    /// Bytes on the disk. Fewer than the file has cut it.
    Allocation(u64),
    /// The size, bytes.
    EndOfFile(u64),
    /// Extended attributes; an empty value takes one away.
    FullEa(Vec<Ea>),
    /// How far the data is valid, bytes.
    ValidDataLength(u64),
    /// The 8.3 name.
    ShortName(String),
    /// Modes of a pipe: message mode for reading, and not waiting.
    Pipe {
        /// Read whole messages.
        messages: bool,
        /// Do not wait.
        no_wait: bool,
    },
}

/// What the new name of a file is a name of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The file: a path in the share.
    Path(Path),
    /// Just the stream that is open: another stream of the same file.
    Stream(Stream),
}

/// What becomes of a file that has the name which another is to get: the flags of FileRenameInformation(Ex) and
/// FileLinkInformation(Ex) (MS-FSCC 2.4.28, 2.4.43).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// It goes; `false`: the name is not given.
    pub replace: bool,
    /// As on Unix: it goes even if it is open, and who has it open goes on.
    pub posix: bool,
    /// Even if it has the attribute READONLY.
    pub ignore_readonly: bool,
}

/// What FileDispositionInformation(Ex) asks for (MS-FSCC 2.4.11, 2.4.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disposal {
    /// It goes; `false`: it stays.
    pub delete: bool,
    /// As on Unix: its name goes with this open, whoever else has it open and goes on.
    pub posix: bool,
    /// It is about what the open was opened with, FILE_DELETE_ON_CLOSE.
    pub on_close: bool,
    /// Even if it has the attribute READONLY.
    pub ignore_readonly: bool,
}

/// Four times, each of which is a time, [`FileTime::NONE`] for "as it is", [`FileTime::FREEZE`] or
/// [`FileTime::THAW`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When the file came to be.
    pub created: FileTime,
    /// When it was last read.
    pub accessed: FileTime,
    /// When its data last changed.
    pub written: FileTime,
    /// When anything about it last changed.
    pub changed: FileTime,
}

/// Options that FileModeInformation may have (MS-FSCC 2.4.31).
const MODES: CreateOptions = CreateOptions::WRITE_THROUGH
    .union(CreateOptions::SEQUENTIAL_ONLY)
    .union(CreateOptions::NO_INTERMEDIATE_BUFFERING)
    .union(CreateOptions::SYNCHRONOUS_IO_ALERT)
    .union(CreateOptions::SYNCHRONOUS_IO_NONALERT)
    .union(CreateOptions::DELETE_ON_CLOSE);

impl SetClass {
    /// From the byte on the wire.
    ///
    /// # Errors
    ///
    /// INVALID_INFO_CLASS for what cannot be set (MS-SMB2 3.3.5.21.1).
    pub fn from_wire(byte: u8) -> Result<Self, NtStatus> {
        [
            Self::Basic,
            Self::Rename,
            Self::Link,
            Self::Disposition,
            Self::Position,
            Self::FullEa,
            Self::Mode,
            Self::Allocation,
            Self::EndOfFile,
            Self::Pipe,
            Self::ValidDataLength,
            Self::ShortName,
            Self::DispositionEx,
            Self::RenameEx,
            Self::LinkEx,
        ]
        .into_iter()
        .find(|class| *class as u8 == byte)
        .ok_or(NtStatus::INVALID_INFO_CLASS)
    }

    /// Reads what is to be set.
    ///
    /// # Errors
    ///
    /// INFO_LENGTH_MISMATCH if the buffer is too short for the fixed part; INVALID_PARAMETER for a value
    /// that cannot be; what [`Path::parse`] and [`parse_eas`] say about names and attributes.
    pub fn parse(self, bytes: &[u8]) -> Result<Change, NtStatus> {
        let mut fields = Reader::new(bytes);
        let fields = &mut fields;
        Ok(match self {
            Self::Basic => basic(fields)?,
            Self::Rename | Self::RenameEx => {
                let (flags, target) = renamed(fields, self == Self::RenameEx)?;
                Change::Rename { target, taken: taken(flags) }
            }
            Self::Link | Self::LinkEx => {
                let (flags, target) = renamed(fields, self == Self::LinkEx)?;
                Change::Link { target, taken: taken(flags) }
            }
            Self::Disposition => {
                let delete = fields.u8().ok_or(SHORT)? & 1 != 0;
                Change::Disposition(Disposal { delete, ..Disposal::default() })
            }
            Self::DispositionEx => {
                let flags = fields.u32().ok_or(SHORT)?;
                Change::Disposition(Disposal {
                    delete: flags & 1 != 0,
                    posix: flags & POSIX != 0,
                    on_close: flags & 8 != 0,
                    ignore_readonly: flags & 0x10 != 0,
                })
            }
            Self::FullEa => Change::FullEa(parse_eas(bytes)?),
            Self::Position => Change::Position(size(fields)?),
            Self::Allocation => Change::Allocation(size(fields)?),
            Self::EndOfFile => Change::EndOfFile(size(fields)?),
            Self::ValidDataLength => Change::ValidDataLength(size(fields)?),
            Self::Mode => {
                let mode = CreateOptions::from_bits_retain(fields.u32().ok_or(SHORT)?);
                let both = CreateOptions::SYNCHRONOUS_IO_ALERT
                    .union(CreateOptions::SYNCHRONOUS_IO_NONALERT);
                if !MODES.contains(mode) || mode.contains(both) {
                    return Err(NtStatus::INVALID_PARAMETER);
                }
                Change::Mode(mode)
            }
            Self::ShortName => {
                let len = fields.u32().ok_or(SHORT)?;
                Change::ShortName(utf16::decode(name(fields, len)?)?)
            }
            Self::Pipe => match (fields.u32().ok_or(SHORT)?, fields.u32().ok_or(SHORT)?) {
                (read @ 0..=1, wait @ 0..=1) => {
                    Change::Pipe { messages: read == 1, no_wait: wait == 1 }
                }
                _ => return Err(NtStatus::INVALID_PARAMETER),
            },
        })
    }
}

/// The buffer ends within the fixed part.
const SHORT: NtStatus = NtStatus::INFO_LENGTH_MISMATCH;
/// FILE_RENAME_REPLACE_IF_EXISTS, FILE_LINK_REPLACE_IF_EXISTS.
const REPLACE: u32 = 1;
/// FILE_RENAME_POSIX_SEMANTICS, FILE_DISPOSITION_POSIX_SEMANTICS.
const POSIX: u32 = 2;
/// FILE_RENAME_IGNORE_READONLY_ATTRIBUTE, FILE_LINK_IGNORE_READONLY_ATTRIBUTE. Other flags are about space that is
/// reserved, and copies in a cloud.
const IGNORE_READONLY: u32 = 0x40;

fn taken(flags: u32) -> Taken {
    Taken {
        replace: flags & REPLACE != 0,
        posix: flags & POSIX != 0,
        ignore_readonly: flags & IGNORE_READONLY != 0,
    }
}

fn basic(fields: &mut Reader<'_>) -> Result<Change, NtStatus> {
    let mut time = || {
        let time = fields.time().ok_or(SHORT)?;
        let special = matches!(time, FileTime::NONE | FileTime::FREEZE | FileTime::THAW);
        if special || time.is_time() { Ok(time) } else { Err(NtStatus::INVALID_PARAMETER) }
    };
    let times = Times { created: time()?, accessed: time()?, written: time()?, changed: time()? };
    let attributes = Attributes::from_bits_retain(fields.u32().ok_or(SHORT)?);
    Ok(Change::Basic { times, attributes })
}

/// A number of bytes, which is signed on the wire.
fn size(fields: &mut Reader<'_>) -> Result<u64, NtStatus> {
    let size = fields.u64().ok_or(SHORT)?;
    if i64::try_from(size).is_err() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    Ok(size)
}

/// So many bytes of a name, not none.
fn name<'a>(fields: &mut Reader<'a>, len: u32) -> Result<&'a [u8], NtStatus> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    fields.bytes(len).filter(|name| !name.is_empty()).ok_or(NtStatus::INVALID_PARAMETER)
}

/// FILE_RENAME_INFORMATION_TYPE_2 and FILE_LINK_INFORMATION_TYPE_2: flags and the name.
fn renamed(fields: &mut Reader<'_>, has_flags: bool) -> Result<(u32, Target), NtStatus> {
    let first = fields.u32().ok_or(SHORT)?;
    // In the older form one byte, and what is behind it means nothing.
    let flags = if has_flags { first } else { u32::from(first & 0xff != 0) };
    fields.u32().ok_or(SHORT)?;
    let root = fields.u64().ok_or(SHORT)?;
    let len = fields.u32().ok_or(SHORT)?;
    if root != 0 {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let name = utf16::decode(name(fields, len)?)?;
    // Some clients count from the root of the share, and say so.
    let path = Path::parse_str(name.trim_start_matches('\\'))?;
    let target = match path.stream() {
        Some(stream) if path.is_root() => Target::Stream(stream.clone()),
        _ => Target::Path(path),
    };
    Ok((flags, target))
}

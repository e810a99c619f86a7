//! The answer that says why not (MS-SMB2 2.2.2).

use super::bytes::{Body, Fields, Writer};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};

const STRUCTURE_SIZE: u16 = 9;
const END: usize = HEADER_LEN + 8;
/// ErrorDataLength and ErrorId of an error context.
const CONTEXT_HEAD: usize = 8;
/// SymLinkErrorTag.
const SYMLINK_TAG: [u8; 4] = *b"SYML";
/// IO_REPARSE_TAG_SYMLINK.
const SYMLINK_REPARSE_TAG: u32 = 0xa000_000c;
/// Bytes of symlink error data before its names.
const SYMLINK_HEAD: usize = 28;
/// Of these, those that ReparseDataLength counts: the four lengths and the flags.
const SYMLINK_COUNTED: usize = 12;

/// Error contexts that are looked at.
pub const CONTEXTS_MAX: u8 = 8;

/// ErrorId of a context (MS-SMB2 2.2.2.1): what the status itself asks for.
pub const ID_DEFAULT: u32 = 0;
/// ErrorId of a context: SMB2_ERROR_ID_SHARE_REDIRECT.
pub const ID_SHARE_REDIRECT: u32 = 0x7264_5253;

/// An answer with an error status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Response<'a> {
    /// Error contexts in [`Response::data`], 3.1.1 only; else 0, and the data is what the status asks for.
    pub context_count: u8,
    /// ErrorData.
    pub data: &'a [u8],
}

impl<'a> Response<'a> {
    /// Why not, and nothing more.
    pub const EMPTY: Self = Self { context_count: 0, data: &[] };

    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 9, or there are fewer bytes of data than it says.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, STRUCTURE_SIZE)?;
        let data = body.rest().get(..body.len32(4)).ok_or(BadMessage::Truncated)?;
        Ok(Self { context_count: body.u8(2), data })
    }

    /// The data that belongs to the status: the first default error context's of a 3.1.1 answer, or else all.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when the contexts do not hold together, are more than [`CONTEXTS_MAX`], or none is a
    /// default one.
    pub fn status_data(&self) -> Result<&'a [u8], BadMessage> {
        if self.context_count == 0 {
            return Ok(self.data);
        }
        if self.context_count > CONTEXTS_MAX {
            return Err(BadMessage::TooMany);
        }
        let mut rest = self.data;
        for _ in 0..self.context_count {
            let head = Fields::at_least(rest, CONTEXT_HEAD)?;
            let end = head.len32(0).checked_add(CONTEXT_HEAD).ok_or(BadMessage::Truncated)?;
            let data = rest.get(CONTEXT_HEAD..end).ok_or(BadMessage::Truncated)?;
            if head.u32(4) == ID_DEFAULT {
                return Ok(data);
            }
            rest = rest.get(end.next_multiple_of(8)..).unwrap_or_default();
        }
        Err(BadMessage::Value)
    }
}

impl Encode for Response<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, STRUCTURE_SIZE);
        to.u8(self.context_count).u8(0).len32(self.data.len()).bytes(self.data);
        // "If the ByteCount field is zero then the server MUST supply an ErrorData field that is one byte in
        // length, and SHOULD set that byte to zero".
        to.at_least_one(END);
    }
}

/// What an error may tell besides its status, in the form that the dialect wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Detail<'a> {
    /// STATUS_BUFFER_TOO_SMALL: so many bytes would do.
    Needs(u32),
    /// STATUS_STOPPED_ON_SYMLINK: where the link leads.
    Symlink(Symlink<'a>),
}

impl Detail<'_> {
    /// Appends the whole body: in an error context when `contexts` (3.1.1), bare otherwise.
    pub fn encode(&self, contexts: bool, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, STRUCTURE_SIZE);
        to.u8(u8::from(contexts)).u8(0).u32(0);
        if contexts {
            to.u32(0).u32(ID_DEFAULT);
        }
        let data_at = to.at();
        match self {
            Self::Needs(bytes) => {
                to.u32(*bytes);
            }
            Self::Symlink(symlink) => symlink.encode(to.out()),
        }
        let end = to.at();
        if contexts {
            to.put32(END, end - data_at);
        }
        to.put32(HEADER_LEN + 4, end - END);
    }
}

/// Symbolic Link Error Response (MS-SMB2 2.2.2.2.1). Names are UTF-16LE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Symlink<'a> {
    /// Bytes at the end of the name that was opened which come after the link.
    pub unparsed_len: u16,
    /// Where it leads.
    pub substitute: &'a [u8],
    /// The same, to be shown.
    pub print: &'a [u8],
    /// SYMLINK_FLAG_RELATIVE: it leads from where the link is.
    pub relative: bool,
}

impl<'a> Symlink<'a> {
    /// Reads error data.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when a tag is another one, or a name is out of place.
    pub fn parse(data: &'a [u8]) -> Result<Self, BadMessage> {
        let fields = Fields::at_least(data, SYMLINK_HEAD)?;
        if fields.chunk(4) != SYMLINK_TAG || fields.u32(8) != SYMLINK_REPARSE_TAG {
            return Err(BadMessage::Value);
        }
        let names = &data[SYMLINK_HEAD..];
        let name = |at: usize, len: usize| names.get(at..at + len).ok_or(BadMessage::Offset);
        Ok(Self {
            unparsed_len: fields.u16(14),
            substitute: name(fields.len16(16), fields.len16(18))?,
            print: name(fields.len16(20), fields.len16(22))?,
            relative: fields.u32(24) & 1 != 0,
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let names_len = self.substitute.len() + self.print.len();
        let mut to = Writer::new(out, start);
        // SymLinkLength does not count itself.
        to.len32(SYMLINK_HEAD - 4 + names_len).bytes(&SYMLINK_TAG).u32(SYMLINK_REPARSE_TAG);
        to.len16(SYMLINK_COUNTED + names_len).u16(self.unparsed_len);
        to.u16(0).len16(self.substitute.len());
        to.len16(self.substitute.len()).len16(self.print.len());
        to.u32(self.relative.into()).bytes(self.substitute).bytes(self.print);
    }
}

//! IOCTL (MS-SMB2 2.2.31, 2.2.32). What the buffers mean is the control code's affair.

use super::bytes::{Body, Writer};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};
use crate::FileId;

const REQUEST_SIZE: u16 = 57;
const REQUEST_END: usize = HEADER_LEN + 56;
const RESPONSE_SIZE: u16 = 49;

/// Where the output of an answer of ours begins, bytes from the header.
pub const OUTPUT_AT: usize = HEADER_LEN + 48;

/// Flags of a request: SMB2_0_IOCTL_IS_FSCTL. Anything else is STATUS_NOT_SUPPORTED (MS-SMB2 3.3.5.15).
pub const IS_FSCTL: u32 = 1;

/// A control code and what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request<'a> {
    /// The control code.
    pub code: u32,
    /// The open, or all ones for codes that need none.
    pub file: FileId,
    /// What the code needs.
    pub input: &'a [u8],
    /// OutputOffset and OutputCount of a request; empty but for clients that do not know better.
    pub output: &'a [u8],
    /// MaxInputResponse: so many bytes of input may come back.
    pub input_max: u32,
    /// MaxOutputResponse: so many bytes of output.
    pub output_max: u32,
    /// [`IS_FSCTL`].
    pub flags: u32,
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self {
            code: 0,
            file: FileId::ALL_ONES,
            input: &[],
            output: &[],
            input_max: 0,
            output_max: 0,
            flags: IS_FSCTL,
        }
    }
}

impl<'a> Request<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is wrong, a buffer is out of place, or the output is before the
    /// input's end.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, REQUEST_SIZE)?;
        let (input_at, input_len) = (body.len32(24), body.len32(28));
        let (output_at, output_len) = (body.len32(36), body.len32(40));
        // An empty input may be said to be anywhere; smbd does not look.
        let input = if input_len == 0 { &[][..] } else { body.buffer(input_at, input_len)? };
        let output = body.buffer(output_at, output_len)?;
        if !input.is_empty() && !output.is_empty() && output_at < input_at + input_len {
            return Err(BadMessage::Offset);
        }
        let (input_max, output_max) = (body.u32(32), body.u32(44));
        if input_max.checked_add(output_max).is_none() {
            return Err(BadMessage::Value);
        }
        Ok(Self {
            code: body.u32(4),
            file: body.file_id(8),
            input,
            output,
            input_max,
            output_max,
            flags: body.u32(48),
        })
    }

    /// Bytes that credits must pay for: see [`super::credit_charge_needed`].
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        let sent = u64::try_from(self.input.len() + self.output.len()).unwrap_or(u64::MAX);
        sent.max(u64::from(self.input_max) + u64::from(self.output_max))
    }
}

impl Encode for Request<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let output_at = match self.output {
            [] => 0,
            _ => (REQUEST_END + self.input.len()).next_multiple_of(8),
        };
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.u16(0).u32(self.code).file_id(self.file);
        to.len32(REQUEST_END).len32(self.input.len()).u32(self.input_max);
        to.len32(output_at).len32(self.output.len()).u32(self.output_max);
        to.u32(self.flags).u32(0).bytes(self.input);
        if output_at != 0 {
            to.pad8().bytes(self.output);
        }
    }
}

/// What became of a control code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Response<'a> {
    /// The control code of the request.
    pub code: u32,
    /// The open of the request, or for some codes all ones.
    pub file: FileId,
    /// The input that comes back: nothing, but for pass-through codes.
    pub input: &'a [u8],
    /// The answer.
    pub output: &'a [u8],
    /// Reserved as far as MS-SMB2 goes.
    pub flags: u32,
}

impl<'a> Response<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize or the place of a buffer is wrong.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, RESPONSE_SIZE)?;
        let buffer = |at, len| match len {
            0 => Ok(&[][..]),
            _ => body.buffer(at, len),
        };
        Ok(Self {
            code: body.u32(4),
            file: body.file_id(8),
            input: buffer(body.len32(24), body.len32(28))?,
            output: buffer(body.len32(32), body.len32(36))?,
            flags: body.u32(40),
        })
    }

    /// Begins an answer without input, whose output the caller then appends to `out`; [`finish`] ends it.
    /// [`Response::input`] and [`Response::output`] are not looked at.
    pub fn begin(&self, out: &mut Vec<u8>, start: usize) {
        self.fixed(out, start, OUTPUT_AT, (0, 0));
    }

    fn fixed(&self, out: &mut Vec<u8>, start: usize, output_at: usize, lens: (usize, usize)) {
        let mut to = Writer::body(out, start, RESPONSE_SIZE);
        to.u16(0).u32(self.code).file_id(self.file);
        to.len32(OUTPUT_AT).len32(lens.0).len32(output_at).len32(lens.1);
        to.u32(self.flags).u32(0);
    }
}

impl Encode for Response<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let output_at = (OUTPUT_AT + self.input.len()).next_multiple_of(8);
        self.fixed(out, start, output_at, (self.input.len(), self.output.len()));
        let mut to = Writer::new(out, start);
        to.bytes(self.input);
        if !self.output.is_empty() {
            to.pad8().bytes(self.output);
        }
    }
}

/// Ends what [`Response::begin`] began: all that was appended since is the output.
pub fn finish(out: &mut Vec<u8>, start: usize) {
    let mut to = Writer::new(out, start);
    let len = to.at().saturating_sub(OUTPUT_AT);
    to.put32(HEADER_LEN + 36, len);
}

//! NDR: arguments of calls, little endian, 32 bits (C706 chapter 14).

use crate::fscc::{Put, Reader, len32};
use crate::name::utf16;

/// Longest string that is read, UTF-16 units.
const STRING_MAX: u32 = 4096;

/// Arguments of a request, in order. Numbers stand at multiples of their size.
#[derive(Debug)]
pub(super) struct Arguments<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Arguments<'a> {
    pub(super) const fn new(all: &'a [u8]) -> Self {
        Self { all, at: 0 }
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.all.get(self.at..)?.get(..len)?;
        self.at += len;
        Some(bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.at = self.at.next_multiple_of(4);
        Reader::new(self.take(4)?).u32()
    }

    /// A string with the lengths before it and a zero at its end.
    pub(super) fn string(&mut self) -> Option<String> {
        let (max, offset, len) = (self.u32()?, self.u32()?, self.u32()?);
        if offset != 0 || len > max || len > STRING_MAX {
            return None;
        }
        let text = utf16::decode(self.take(usize::try_from(len).ok()? * 2)?).ok()?;
        Some(text.trim_end_matches('\0').to_owned())
    }

    /// A pointer to a string, which may lead nowhere.
    pub(super) fn optional_string(&mut self) -> Option<Option<String>> {
        match self.u32()? {
            0 => Some(None),
            _ => self.string().map(Some),
        }
    }
}

/// Results of a call. Pointers get their names in order; what they lead to follows the structure that they
/// are in.
#[derive(Debug, Default)]
pub(super) struct Results {
    out: Vec<u8>,
    pointers: u32,
    /// Strings whose pointers are written, and which are not written themselves.
    strings: Vec<String>,
}

impl Results {
    pub(super) fn u32(&mut self, n: u32) {
        self.out.u32(n);
    }

    /// A pointer that leads somewhere.
    pub(super) fn pointer(&mut self) {
        self.out.u32(0x0002_0000 + 4 * self.pointers);
        self.pointers += 1;
    }

    /// A pointer that leads nowhere.
    pub(super) fn null(&mut self) {
        self.out.u32(0);
    }

    /// A pointer to a string; the string itself follows with [`Results::strings`].
    pub(super) fn string(&mut self, text: &str) {
        self.pointer();
        self.strings.push(text.to_owned());
    }

    /// Writes the strings that pointers were written for.
    pub(super) fn strings(&mut self) {
        for text in std::mem::take(&mut self.strings) {
            let units = len32(utf16::len(&text) / 2 + 1);
            [units, 0, units].into_iter().for_each(|n| self.out.u32(n));
            utf16::append(&text, &mut self.out);
            self.out.u16(0);
            let padded = self.out.len().next_multiple_of(4);
            self.out.resize(padded, 0);
        }
    }

    /// All of it, with the status of the call at the end.
    pub(super) fn finish(mut self, status: u32) -> Vec<u8> {
        self.out.u32(status);
        self.out
    }
}

/// Why a call is refused with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// nca_op_rng_error: no such call.
    NoSuchCall = 0x1c01_0002,
    /// nca_unk_if: the interface of that context was not agreed on.
    NoSuchInterface = 0x1c01_0003,
    /// RPC_X_BAD_STUB_DATA: the arguments do not hold together.
    BadArguments = 0x0000_06f7,
}

/// Statuses of calls (MS-ERREF 2.2).
pub(super) mod status {
    /// NERR_Success.
    pub(in crate::rpc) const OK: u32 = 0;
    /// ERROR_INVALID_LEVEL.
    pub(in crate::rpc) const INVALID_LEVEL: u32 = 124;
    /// NERR_NetNameNotFound.
    pub(in crate::rpc) const NO_SUCH_SHARE: u32 = 2310;
}

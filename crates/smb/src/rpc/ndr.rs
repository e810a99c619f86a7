//! NDR: arguments of calls, little endian, 32 bits (C706 chapter 14).

use crate::fscc::{Put, Reader, len32};
use crate::name::utf16;
use crate::security::Sid;

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

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.at = self.at.next_multiple_of(2);
        Reader::new(self.take(2)?).u16()
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.at = self.at.next_multiple_of(4);
        Reader::new(self.take(4)?).u32()
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        Reader::new(self.take(N)?).array()
    }

    /// A SID with its size before it (MS-DTYP 2.4.2.3).
    pub(super) fn sid(&mut self) -> Option<Sid> {
        let count = self.u32()?;
        let (sid, len) = Sid::parse(self.all.get(self.at..)?)?;
        self.take(len)?;
        (u32::try_from(sid.subs().len()) == Ok(count)).then_some(sid)
    }

    /// A string with the lengths before it, and perhaps a zero at its end.
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
    /// What pointers are written of, and is not written itself.
    referents: Vec<Referent>,
}

/// What a pointer leads to.
#[derive(Debug)]
enum Referent {
    /// With a zero at its end.
    String(String),
    /// Of an RPC_UNICODE_STRING (MS-DTYP 2.3.10), without one.
    Counted(String),
    Sid(Sid),
}

impl Results {
    /// A number of 32 bits, at its place.
    pub(super) fn u32(&mut self, n: u32) {
        self.align();
        self.out.u32(n);
    }

    /// One of 16 bits, where one may stand.
    pub(super) fn u16(&mut self, n: u16) {
        self.out.u16(n);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.out.put(bytes);
    }

    /// A pointer that leads somewhere.
    pub(super) fn pointer(&mut self) {
        self.u32(0x0002_0000 + 4 * self.pointers);
        self.pointers += 1;
    }

    /// A pointer that leads nowhere.
    pub(super) fn null(&mut self) {
        self.u32(0);
    }

    /// A pointer to a string; the string itself follows with [`Results::referents`].
    pub(super) fn string(&mut self, text: &str) {
        self.pointer();
        self.referents.push(Referent::String(text.to_owned()));
    }

    /// An RPC_UNICODE_STRING, whose text follows with [`Results::referents`]. One that is too long for it is empty.
    pub(super) fn counted(&mut self, text: &str) {
        let (len, text) = u16::try_from(utf16::len(text)).map_or((0, ""), |len| (len, text));
        self.align();
        self.u16(len);
        self.u16(len);
        self.pointer();
        self.referents.push(Referent::Counted(text.to_owned()));
    }

    /// A pointer to a SID, which follows with [`Results::referents`].
    pub(super) fn sid(&mut self, sid: Sid) {
        self.pointer();
        self.referents.push(Referent::Sid(sid));
    }

    /// Writes what pointers were written for.
    pub(super) fn referents(&mut self) {
        for referent in std::mem::take(&mut self.referents) {
            match referent {
                Referent::String(text) => {
                    let units = len32(utf16::len(&text) / 2 + 1);
                    [units, 0, units].into_iter().for_each(|n| self.out.u32(n));
                    utf16::append(&text, &mut self.out);
                    self.out.u16(0);
                }
                Referent::Counted(text) => {
                    let units = len32(utf16::len(&text) / 2);
                    [units, 0, units].into_iter().for_each(|n| self.out.u32(n));
                    utf16::append(&text, &mut self.out);
                }
                Referent::Sid(sid) => {
                    self.out.u32(len32(sid.subs().len()));
                    sid.put(&mut self.out);
                }
            }
            self.align();
        }
    }

    /// Fills up, so that what follows stands at a multiple of 4.
    fn align(&mut self) {
        let padded = self.out.len().next_multiple_of(4);
        self.out.resize(padded, 0);
    }

    /// All of it, with the status of the call at the end.
    pub(super) fn finish(mut self, status: u32) -> Vec<u8> {
        self.u32(status);
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
    /// nca_s_fault_context_mismatch: a handle that we have not given.
    NoSuchHandle = 0x1c00_001a,
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

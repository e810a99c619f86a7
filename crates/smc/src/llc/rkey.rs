//! Messages about keys of buffers (RFC 7609 A.3.5 to A.3.8).

use super::{Flags, Version, Wrong};
use crate::bytes::{Put, Reader, Short, bit, count};
use crate::name::RKey;

const NEGATIVE: u8 = 0x20;
const RETRY: u8 = 0x10;
/// Keys in a DELETE RKEY of version 1.
const DELETE_V1_MAX: usize = 8;

/// One entry of CONFIRM RKEY. In the first, `link` is the number of further entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkKey {
    /// Number of the link.
    pub link: u8,
    /// Key on it.
    pub rkey: RKey,
    /// Virtual address on it.
    pub vaddr: u64,
}

impl LinkKey {
    fn parse(body: &mut Reader<'_>) -> Result<Self, Short> {
        Ok(Self { link: body.u8()?, rkey: RKey(body.u32()?), vaddr: body.u64()? })
    }

    fn emit(&self, bytes: &mut Vec<u8>) {
        bytes.put_u8(self.link);
        bytes.put_u32(self.rkey.0);
        bytes.put_u64(self.vaddr);
    }
}

/// CONFIRM RKEY: a buffer that the receiver may write to. The answer repeats the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfirmRkey {
    /// The key on the link that the message goes over; in its `link` stands how many of `others` are meant.
    pub this: LinkKey,
    /// Keys on other links.
    pub others: [LinkKey; 2],
    /// In an answer: no.
    pub negative: bool,
    /// In an answer: no, but ask again when the links have been changed.
    pub retry: bool,
}

impl ConfirmRkey {
    /// The entries that are meant.
    #[must_use]
    pub fn others(&self) -> &[LinkKey] {
        &self.others[..usize::from(self.this.link).min(self.others.len())]
    }

    pub(super) fn parse(flags: Flags, body: &mut Reader<'_>) -> Result<Self, Short> {
        let this = LinkKey::parse(body)?;
        let others = [LinkKey::parse(body)?, LinkKey::parse(body)?];
        let (negative, retry) = (flags.flags & NEGATIVE != 0, flags.flags & RETRY != 0);
        Ok(Self { this, others, negative, retry })
    }

    pub(super) fn emit(&self, bytes: &mut Vec<u8>) -> u8 {
        self.this.emit(bytes);
        self.others.iter().for_each(|key| key.emit(bytes));
        bit(NEGATIVE, self.negative) | bit(RETRY, self.retry)
    }
}

/// CONFIRM RKEY CONTINUATION: keys on more than three links. Linux has no more and sends none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfirmRkeyCont {
    /// Keys that are left, with those in this message.
    pub left: u8,
    /// Keys.
    pub keys: [LinkKey; 3],
    /// In an answer: no.
    pub negative: bool,
    /// In an answer: ask again.
    pub retry: bool,
}

impl ConfirmRkeyCont {
    pub(super) fn parse(flags: Flags, body: &mut Reader<'_>) -> Result<Self, Short> {
        let left = body.u8()?;
        let keys = [LinkKey::parse(body)?, LinkKey::parse(body)?, LinkKey::parse(body)?];
        let (negative, retry) = (flags.flags & NEGATIVE != 0, flags.flags & RETRY != 0);
        Ok(Self { left, keys, negative, retry })
    }

    pub(super) fn emit(&self, bytes: &mut Vec<u8>) -> u8 {
        bytes.put_u8(self.left);
        self.keys.iter().for_each(|key| key.emit(bytes));
        bit(NEGATIVE, self.negative) | bit(RETRY, self.retry)
    }
}

/// DELETE RKEY: keys that do not count any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteRkey {
    /// Keys, at most 8 in version 1 and 255 in version 2. Linux answers in version 2 with zeros in
    /// their place.
    pub keys: Vec<RKey>,
    /// In an answer.
    pub answer: DeleteRkeyAnswer,
}

/// What an answer to DELETE RKEY says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteRkeyAnswer {
    /// Something was wrong.
    pub negative: bool,
    /// Version 1: a bit for each unknown key, the highest for the first. Version 2: how many were unknown.
    pub unknown: u8,
}

impl DeleteRkey {
    pub(super) fn parse(
        flags: Flags,
        version: Version,
        body: &mut Reader<'_>,
    ) -> Result<Self, Wrong> {
        let [n, unknown, _, _] = body.array()?;
        if version == Version::V1 && usize::from(n) > DELETE_V1_MAX {
            return Err(Wrong::Count(n.into()));
        }
        // Linux answers with 44 bytes however many keys there were.
        let response = flags.flags & super::RESPONSE != 0;
        let n = if response { usize::from(n).min(body.rest().len() / 4) } else { n.into() };
        let keys = (0..n).map(|_| Ok(RKey(body.u32()?))).collect::<Result<_, Short>>()?;
        Ok(Self {
            keys,
            answer: DeleteRkeyAnswer { negative: flags.flags & NEGATIVE != 0, unknown },
        })
    }

    pub(super) fn emit(&self, version: Version, bytes: &mut Vec<u8>) -> u8 {
        let most = if version == Version::V1 { DELETE_V1_MAX } else { usize::from(u8::MAX) };
        let keys = &self.keys[..self.keys.len().min(most)];
        bytes.put(&[count(keys), self.answer.unknown, 0, 0]);
        keys.iter().for_each(|key| bytes.put_u32(key.0));
        bit(NEGATIVE, self.answer.negative)
    }
}

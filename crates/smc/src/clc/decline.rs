//! Decline: go on with TCP (RFC 7609 A.2.4).

use super::{Diagnosis, EYE_D, EYE_R, FLAG_FIRST, FLAG_RESERVED, Header, finish};
use crate::bytes::{Put, Reader, Short, bit};
use crate::name::SystemId;

/// Bytes of a Decline of version 1; the shortest message there is.
pub(super) const V1_LEN: usize = 28;

/// Says that the connection goes on as TCP, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decline {
    /// 1 or 2.
    pub version: u8,
    /// The sender.
    pub system: SystemId,
    /// Why.
    pub diagnosis: Diagnosis,
    /// The sender has no link group like the one that was named: the receiver has to end its own.
    pub out_of_sync: bool,
    /// What the sender runs: 1 z/OS, 2 Linux, 3 AIX, 4 bits; 0 in version 1.
    pub os: u8,
    /// Version 2: four words that say more. Nobody fills them.
    pub more: [u32; 4],
    /// Reserved bits, as they came: one of the header, then those behind the operating system.
    pub reserved: (bool, [u8; 4]),
    /// The eye catcher says SMC-D. Linux sends that of SMC-R in any case.
    pub ism: bool,
}

impl Decline {
    /// As Linux would send it.
    #[must_use]
    pub fn new(version: u8, system: SystemId, diagnosis: Diagnosis) -> Self {
        Self {
            version,
            system,
            diagnosis,
            out_of_sync: diagnosis == Diagnosis::OutOfSync,
            os: if version == 1 { 0 } else { 2 },
            more: [0; 4],
            reserved: (false, [0; 4]),
            ism: false,
        }
    }

    pub(super) fn parse(header: &Header, body: &mut Reader<'_>) -> Result<Self, Short> {
        let system = SystemId(body.array()?);
        let diagnosis = Diagnosis::from_code(body.u32()?);
        let [os, a, b, c] = body.array()?;
        let mut more = [0; 4];
        if header.version > 1 {
            for word in &mut more {
                *word = body.u32()?;
            }
        }
        Ok(Self {
            version: header.version,
            system,
            diagnosis,
            out_of_sync: header.first(),
            os: os >> 4,
            more,
            reserved: (header.reserved_flag(), [(os & 15) | header.flags << 6, a, b, c]),
            ism: header.ism,
        })
    }

    pub(super) fn emit(&self) -> Vec<u8> {
        let (flag, [first, a, b, c]) = self.reserved;
        let flags = bit(FLAG_FIRST, self.out_of_sync) | bit(FLAG_RESERVED, flag) | first >> 6;
        let eye = if self.ism { EYE_D } else { EYE_R };
        let mut bytes = Header::emit(eye, 4, self.version, flags);
        bytes.put(&self.system.0);
        bytes.put_u32(self.diagnosis.code());
        bytes.put(&[self.os << 4 | first & 15, a, b, c]);
        if self.version > 1 {
            self.more.iter().for_each(|word| bytes.put_u32(*word));
        }
        finish(bytes)
    }
}

//! Questions about quotas (MS-SMB2 2.2.37.1): understood as far as it takes to refuse them well.

use super::le::Reader;
use crate::NtStatus;
use crate::security::Sid;

/// A SMB2_QUERY_QUOTA_INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaQuery {
    /// One entry only.
    pub single: bool,
    /// From the beginning.
    pub restart: bool,
    /// Whom it is about; nobody means all.
    pub sids: Vec<Sid>,
}

/// Users in one question at most.
const SIDS_MAX: usize = 1024;

impl QuotaQuery {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it does not hold together.
    pub fn parse(bytes: &[u8]) -> Result<Self, NtStatus> {
        Self::read(bytes).ok_or(NtStatus::INVALID_PARAMETER)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(bytes);
        let (single, restart) = (fields.u8()? != 0, fields.u8()? != 0);
        fields.u16()?;
        let list_len = usize::try_from(fields.u32()?).ok()?;
        let start_len = usize::try_from(fields.u32()?).ok()?;
        let start_at = usize::try_from(fields.u32()?).ok()?;
        let buffer = fields.rest();
        let mut sids = Vec::new();
        if list_len > 0 {
            // FILE_GET_QUOTA_INFORMATION: offset of the next, length, SID.
            let mut list = buffer.get(..list_len)?;
            loop {
                let mut entry = Reader::new(list);
                let next = usize::try_from(entry.u32()?).ok()?;
                let len = usize::try_from(entry.u32()?).ok()?;
                sids.push(Sid::parse(entry.bytes(len)?)?.0);
                if next == 0 {
                    break;
                }
                if sids.len() == SIDS_MAX || next < 8 + len {
                    return None;
                }
                list = list.get(next..)?;
            }
        } else if start_len > 0 {
            sids.push(Sid::parse(buffer.get(start_at..)?.get(..start_len)?)?.0);
        }
        Some(Self { single, restart, sids })
    }
}

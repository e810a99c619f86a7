//! Which parts of a file have data, and which shall have none.

use super::super::le::len32;
use super::super::{Fill, Put, Reader};
use crate::NtStatus;

/// Some bytes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first of them.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// A number that is signed on the wire and must not be negative.
fn natural(n: Option<u64>) -> Result<u64, NtStatus> {
    let n = n.ok_or(NtStatus::INVALID_PARAMETER)?;
    if i64::try_from(n).is_ok() { Ok(n) } else { Err(NtStatus::INVALID_PARAMETER) }
}

/// Reads FILE_ZERO_DATA_INFORMATION (MS-FSCC 2.3.71): what shall read as zeros.
///
/// # Errors
///
/// INVALID_PARAMETER for a request that is too short, negative offsets, or an end before the beginning.
pub fn parse_zero(bytes: &[u8]) -> Result<Range, NtStatus> {
    let mut fields = Reader::new(bytes);
    let offset = natural(fields.u64())?;
    let end = natural(fields.u64())?;
    let len = end.checked_sub(offset).ok_or(NtStatus::INVALID_PARAMETER)?;
    Ok(Range { offset, len })
}

/// Reads FILE_ALLOCATED_RANGE_BUFFER (MS-FSCC 2.3.52): where to look for data.
///
/// # Errors
///
/// INVALID_PARAMETER for a request that is too short, negative numbers, or a range that wraps around.
pub fn parse_allocated(bytes: &[u8]) -> Result<Range, NtStatus> {
    let mut fields = Reader::new(bytes);
    let offset = natural(fields.u64())?;
    let len = natural(fields.u64())?;
    natural(offset.checked_add(len))?;
    Ok(Range { offset, len })
}

/// Appends the ranges that have data, as many as fit into `limit` bytes.
///
/// # Errors
///
/// BUFFER_TOO_SMALL if there are some and not even one fits.
pub fn put_allocated(ranges: &[Range], limit: usize, out: &mut Vec<u8>) -> Result<Fill, NtStatus> {
    const LEN: usize = 16;
    let fit = limit / LEN;
    if fit == 0 && !ranges.is_empty() {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    for range in ranges.iter().take(fit) {
        out.u64(range.offset);
        out.u64(range.len);
    }
    Ok(if fit < ranges.len() { Fill::Cut } else { Fill::Whole })
}

/// FILE_REGION_INPUT (MS-FSCC 2.3.55): where to look, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionQuery {
    /// Where.
    pub range: Range,
    /// FILE_REGION_USAGE_*: 1 for valid cached data, 2 for what is not.
    pub usage: u32,
}

impl RegionQuery {
    /// Reads one; nothing at all asks for the valid data of the whole file.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER, as [`parse_allocated`] and for a usage that nobody knows.
    pub fn parse(bytes: &[u8]) -> Result<Self, NtStatus> {
        if bytes.is_empty() {
            let range = Range { offset: 0, len: i64::MAX.cast_unsigned() };
            return Ok(Self { range, usage: 1 });
        }
        let range = parse_allocated(bytes)?;
        let usage = Reader::new(bytes.get(16..).unwrap_or(&[])).u32();
        match usage {
            Some(usage @ 1..=3) => Ok(Self { range, usage }),
            _ => Err(NtStatus::INVALID_PARAMETER),
        }
    }
}

/// Appends FILE_REGION_OUTPUT (MS-FSCC 2.3.56): the regions with valid data, as many as fit.
///
/// # Errors
///
/// BUFFER_TOO_SMALL if not even the head fits.
pub fn put_regions(regions: &[Range], limit: usize, out: &mut Vec<u8>) -> Result<Fill, NtStatus> {
    const HEAD: usize = 16;
    const LEN: usize = 24;
    let fit = limit.checked_sub(HEAD).ok_or(NtStatus::BUFFER_TOO_SMALL)? / LEN;
    let told = fit.min(regions.len());
    // Flags; how many there are; how many are here; reserved.
    [0, len32(regions.len()), len32(told), 0].into_iter().for_each(|n| out.u32(n));
    for region in &regions[..told] {
        out.u64(region.offset);
        out.u64(region.len);
        // Valid cached data; reserved.
        out.u32(1);
        out.u32(0);
    }
    Ok(if told < regions.len() { Fill::Cut } else { Fill::Whole })
}

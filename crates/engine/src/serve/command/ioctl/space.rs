//! Where a file has data, and where it shall have none (MS-FSCC 2.3.48 to 2.3.56, 2.3.69 to 2.3.72).

use std::sync::Arc;

use smb::files::notify::NotifyFilter;
use smb::fscc::fsctl::{
    Range, RegionQuery, parse_allocated, parse_sparse, parse_zero, put_allocated, put_regions,
};
use smb::{Access, Attributes, NtStatus};

use super::super::super::channel::Exchange;
use super::super::super::open::Open;
use super::super::super::transfer::{allocated as data_of_file, punch, zero as make_zero};
use super::super::super::{fs, watch};
use super::super::write::still_open;
use super::{Output, change, data_of, done, in_pool, need};

/// Bytes of a range in the answer to FSCTL_QUERY_ALLOCATED_RANGES.
const RANGE_LEN: usize = 16;
/// Ranges that are looked for at a time; the client asks again for those behind.
const RANGES_MAX: usize = 65_536;

/// FSCTL_SET_SPARSE: whether the file may have holes. On Unix it may; what is kept is that the client said so.
pub(super) async fn set_sparse(open: &Arc<Open>, input: &[u8]) -> Output {
    let writes = Access::WRITE_DATA | Access::WRITE_ATTRIBUTES | Access::APPEND_DATA;
    need(open, writes)?;
    data_of(open)?;
    if open.tree.share.config.read_only {
        return Err(NtStatus::MEDIA_WRITE_PROTECTED);
    }
    let sparse = parse_sparse(input);
    let set = move |open: &Open| {
        let file = open.must_be_file()?;
        let before = file.facts()?.attributes;
        let mut after = before;
        after.set(Attributes::SPARSE_FILE, sparse);
        if after != before {
            file.set_attributes(after)?;
        }
        Ok::<_, NtStatus>(after != before)
    };
    if open.aside(set).await? {
        watch::changed(&open.tree.share, &open.path(), NotifyFilter::ATTRIBUTES);
    }
    done()
}

/// FSCTL_SET_ZERO_DATA: bytes that read as zeros from now on, and have no blocks if the file is sparse.
pub(super) async fn zero(x: &mut Exchange<'_>, open: &Arc<Open>, input: &[u8]) -> Output {
    need(open, Access::WRITE_DATA)?;
    data_of(open)?;
    let range = parse_zero(input)?;
    if range.len == 0 {
        return done();
    }
    open.note_change();
    if open.flags.is_locked() {
        x.server().with_file(open.key, |shard, _| {
            shard.check_io(open.key, open.id, range.offset, range.len, true)
        })?;
    }
    let this = open.clone();
    change(x, open, move || zero_of(&this, range)).await??;
    done()
}

fn zero_of(open: &Open, range: Range) -> Result<(), NtStatus> {
    still_open(open)?;
    if let Some(stream) = open.stream() {
        let len = range.len.min(stream.size()?.saturating_sub(range.offset));
        return stream.write(range.offset, &vec![0; usize::try_from(len).unwrap_or(0)]);
    }
    let file = open.data()?;
    let sparse = open.facts()?.attributes.contains(Attributes::SPARSE_FILE);
    if sparse && punch(&file, range.offset, range.len).is_ok() {
        return Ok(());
    }
    let goes_on = || still_open(open).is_ok();
    match make_zero(&file, range.offset, range.len, goes_on) {
        Ok(true) => Ok(()),
        Ok(false) => Err(NtStatus::FILE_CLOSED),
        Err(error) => Err(fs::status_of(&error)),
    }
}

/// FSCTL_QUERY_ALLOCATED_RANGES: where there is data. Of a file that is not sparse: everywhere.
pub(super) async fn allocated(
    x: &mut Exchange<'_>,
    open: &Arc<Open>,
    input: &[u8],
    room: usize,
) -> Output {
    need(open, Access::READ_DATA)?;
    data_of(open)?;
    let range = parse_allocated(input)?;
    let facts = open.aside(Open::facts).await?;
    if range.len == 0 || range.offset >= facts.size {
        return done();
    }
    if room < RANGE_LEN {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    let len = range.len.min(facts.size - range.offset);
    let ranges = if facts.attributes.contains(Attributes::SPARSE_FILE) && open.stream().is_none() {
        let file = open.data()?;
        // One more than fits, to know whether there are more.
        let most = (room / RANGE_LEN + 1).min(RANGES_MAX);
        let found = in_pool(x, open, move || data_of_file(&file, range.offset, len, most)).await?;
        let found = found.map_err(|error| fs::status_of(&error))?;
        found.into_iter().map(|(offset, len)| Range { offset, len }).collect()
    } else {
        vec![Range { offset: range.offset, len }]
    };
    let mut out = Vec::new();
    let fill = put_allocated(&ranges, room, &mut out)?;
    Ok((fill.status(), out))
}

/// FSCTL_QUERY_FILE_REGIONS: what of the file is valid; all that there is.
pub(super) async fn regions(open: &Arc<Open>, input: &[u8], room: usize) -> Output {
    need(open, Access::READ_DATA)?;
    data_of(open)?;
    let query = RegionQuery::parse(input)?;
    let size = open.aside(Open::facts).await?.size;
    let Range { offset, len } = query.range;
    let len = len.min(size.saturating_sub(offset));
    let valid =
        if query.usage & 1 != 0 && len > 0 { vec![Range { offset, len }] } else { Vec::new() };
    let mut out = Vec::new();
    let fill = put_regions(&valid, room, &mut out)?;
    Ok((fill.status(), out))
}

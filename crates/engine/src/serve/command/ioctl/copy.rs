//! Copies that the server makes (MS-SMB2 3.3.5.15.5, 3.3.5.15.6; MS-FSCC 2.3.7 to 2.3.10).

use std::sync::Arc;

use smb::fscc::fsctl::{Chunk, CopyChunk, CopyChunkAnswer, Duplicate, put_resume_key};
use smb::{Access, Attributes, NtStatus};

use super::super::super::aside::aside;
use super::super::super::channel::Exchange;
use super::super::super::fs::{self, Stream};
use super::super::super::open::{Object, Open};
use super::super::super::transfer::{DataFile, clone_range, copy_range};
use super::super::write::still_open;
use super::{Output, change, done, output};

/// Bytes of the answer to FSCTL_SRV_REQUEST_RESUME_KEY.
const KEY_ANSWER_LEN: usize = 32;

/// FSCTL_SRV_REQUEST_RESUME_KEY: by what the client names a source. It means something in its session only.
pub(super) fn resume_key(open: &Open, room: usize) -> Output {
    if room < KEY_ANSWER_LEN {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let mut key = [0; 24];
    key[..8].copy_from_slice(&open.file_id.persistent.to_le_bytes());
    key[8..16].copy_from_slice(&open.file_id.volatile.to_le_bytes());
    output(|out| {
        put_resume_key(&key, out);
        Ok(())
    })
}

/// The open that a resume key names.
fn source_of(x: &Exchange<'_>, key: &[u8; 24]) -> Result<Arc<Open>, NtStatus> {
    let id =
        |at: usize| key[at..at + 8].iter().rev().fold(0, |id, byte| id << 8 | u64::from(*byte));
    let found = x.session()?.open(id(8));
    found
        .filter(|open| open.file_id.persistent == id(0) && !open.is_closed())
        .ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)
}

/// What can be copied from and to, on a thread of the pool.
enum End {
    File(Arc<DataFile>),
    /// The file object keeps the stream.
    Stream(Object),
}

impl End {
    fn of(open: &Open) -> Result<Self, NtStatus> {
        match open.stream() {
            Some(_) => Ok(Self::Stream(open.object.clone())),
            None => open.data().map(Self::File),
        }
    }

    fn stream(object: &Object) -> Result<&Stream, NtStatus> {
        match object {
            Object::File(file) => file.stream.as_ref(),
            Object::Pipe(_) => None,
        }
        .ok_or(NtStatus::INVALID_DEVICE_REQUEST)
    }

    fn size(&self) -> Result<u64, NtStatus> {
        match self {
            Self::File(file) => file.size().map_err(|error| fs::status_of(&error)),
            Self::Stream(object) => Self::stream(object)?.size(),
        }
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, NtStatus> {
        let mut bytes = vec![0; len];
        match self {
            Self::File(file) => {
                let mut read = 0;
                while read < len {
                    let at = offset + read as u64;
                    let more = file.read_at(&mut bytes[read..], at);
                    match more.map_err(|error| fs::status_of(&error))? {
                        // What was asked for was there a moment ago.
                        0 => return Err(NtStatus::END_OF_FILE),
                        more => read += more,
                    }
                }
            }
            Self::Stream(object) => {
                let read = Self::stream(object)?.read(offset, &mut bytes)?;
                bytes.truncate(read);
            }
        }
        Ok(bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), NtStatus> {
        match self {
            Self::File(file) => {
                file.write_all(bytes, offset).map_err(|error| fs::status_of(&error))
            }
            Self::Stream(object) => Self::stream(object)?.write(offset, bytes),
        }
    }
}

/// FSCTL_SRV_COPYCHUNK, and with less demanded of the target FSCTL_SRV_COPYCHUNK_WRITE.
pub(super) async fn chunks(
    x: &mut Exchange<'_>,
    target: &Arc<Open>,
    input: &[u8],
    room: usize,
    reads_target: bool,
) -> Output {
    if room < CopyChunkAnswer::LEN {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let copy = match CopyChunk::parse(input) {
        Ok(copy) => copy,
        Err((status, Some(limits))) => return answered(status, limits),
        Err((status, None)) => return Err(status),
    };
    let source = source_of(x, &copy.key)?;
    may_copy(&source, target, reads_target)?;
    // As far as nobody's locks are in the way, nor what is there already if one may only append. Those who cache the
    // target are told, once.
    let mut chunks = copy.chunks;
    let mut refused = None;
    for (at, chunk) in chunks.iter().enumerate() {
        let allowed = target.may_write(chunk.to);
        if let Err(status) = allowed.and_then(|()| not_locked(x, &source, target, chunk)) {
            refused = Some((at, status));
            break;
        }
    }
    if let Some((at, _)) = refused {
        chunks.truncate(at);
    }
    target.note_change();
    let (from, to) = (End::of(&source)?, End::of(target)?);
    let same = source.key == target.key;
    let written = target.clone();
    let turn = move |chunk: &Chunk| {
        still_open(&written)?;
        // Where the target ends is another place after each chunk.
        written.write_in_turn(chunk.to)
    };
    let (answer, failed) = match chunks.is_empty() {
        true => (CopyChunkAnswer::default(), None),
        false => change(x, target, move || copy_all(&from, &to, &chunks, same, turn)).await?,
    };
    let status = failed.or_else(|| refused.map(|(_, status)| status)).unwrap_or(NtStatus::SUCCESS);
    answered(status, answer)
}

/// An answer with its numbers, which also tell of a failure how far it went.
fn answered(status: NtStatus, answer: CopyChunkAnswer) -> Output {
    let mut out = Vec::with_capacity(CopyChunkAnswer::LEN);
    answer.put(&mut out);
    Ok((status, out))
}

/// Whether these two opens may be copied between.
fn may_copy(source: &Open, target: &Open, reads_target: bool) -> Result<(), NtStatus> {
    let is_data =
        |open: &Open| open.file().is_some() && !(open.directory && open.stream().is_none());
    let allowed = target.access.intersects(Access::WRITE_DATA | Access::APPEND_DATA)
        && (!reads_target || target.access.contains(Access::READ_DATA))
        && source.access.intersects(Access::READ_DATA | Access::EXECUTE)
        && is_data(source)
        && is_data(target);
    if allowed { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) }
}

fn not_locked(
    x: &Exchange<'_>,
    source: &Open,
    target: &Open,
    chunk: &Chunk,
) -> Result<(), NtStatus> {
    let check = |open: &Open, offset, write| {
        if !open.flags.is_locked() {
            return Ok(());
        }
        x.server().with_file(open.key, |shard, _| {
            shard.check_io(open.key, open.id, offset, chunk.len.into(), write)
        })
    };
    check(source, chunk.from, false)?;
    check(target, chunk.to, true)
}

/// Copies one chunk after the other until one fails; how far that went, and why not further. `turn`: whether the next one
/// may be written, and what is to be held for as long, as of [`Open::write_in_turn`].
fn copy_all<T>(
    from: &End,
    to: &End,
    chunks: &[Chunk],
    same: bool,
    turn: impl Fn(&Chunk) -> Result<T, NtStatus>,
) -> (CopyChunkAnswer, Option<NtStatus>) {
    let mut answer = CopyChunkAnswer::default();
    for chunk in chunks {
        let copied = turn(chunk).and_then(|_held| copy(from, to, chunk, same));
        if let Err(status) = copied {
            return (answer, Some(status));
        }
        answer.chunks += 1;
        answer.total_bytes += chunk.len;
    }
    (answer, None)
}

fn copy(from: &End, to: &End, chunk: &Chunk, same: bool) -> Result<(), NtStatus> {
    let len = u64::from(chunk.len);
    let end = chunk.from.checked_add(len).ok_or(NtStatus::INVALID_PARAMETER)?;
    if chunk.to.checked_add(len).is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if end > from.size()? {
        return Err(NtStatus::INVALID_VIEW_SIZE);
    }
    let overlap = same && chunk.from.abs_diff(chunk.to) < len;
    if let (End::File(source), End::File(target), false) = (from, to, overlap) {
        let copied = copy_range(source, chunk.from, target, chunk.to, len)
            .map_err(|error| fs::status_of(&error))?;
        // It has been cut off since it was looked at.
        return if copied == len { Ok(()) } else { Err(NtStatus::INVALID_VIEW_SIZE) };
    }
    let bytes = from.read(chunk.from, chunk.len as usize)?;
    to.write(chunk.to, &bytes)
}

/// FSCTL_DUPLICATE_EXTENTS_TO_FILE and its EX form: blocks that the target shares with the source from now on.
pub(super) async fn duplicate(
    x: &mut Exchange<'_>,
    target: &Arc<Open>,
    input: &[u8],
    ex: bool,
) -> Output {
    /// FILE_SUPPORTS_BLOCK_REFCOUNTING (MS-FSCC 2.5.1).
    const SHARES_BLOCKS: u32 = 0x0800_0000;
    let share = target.tree.share.files.as_ref().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
    let this = share.clone();
    if aside(share, move || this.volume()).await?.flags & SHARES_BLOCKS == 0 {
        return Err(NtStatus::INVALID_DEVICE_REQUEST);
    }
    let mut wanted = Duplicate::parse(input, ex)?;
    let source = x
        .session()?
        .open(wanted.source.volatile)
        .filter(|open| open.file_id == wanted.source && !open.is_closed())
        .filter(|open| open.key.device == target.key.device && open.file().is_some())
        .ok_or(NtStatus::INVALID_HANDLE)?;
    may_copy(&source, target, false)?;
    if source.stream().is_some() || target.stream().is_some() {
        return Err(NtStatus::NOT_SUPPORTED);
    }
    let of_source = source.aside(Open::facts).await?;
    let of_target = target.aside(Open::facts).await?;
    if wanted.to < of_target.size {
        target.may_write(wanted.to)?;
    }
    if wanted.from + wanted.len > of_source.size {
        return Err(NtStatus::NOT_SUPPORTED);
    }
    // As Windows has it: what is behind the target's end is not asked for.
    wanted.len = wanted.len.min(of_target.size.saturating_sub(wanted.to));
    if wanted.len == 0 {
        return done();
    }
    if source.key == target.key && wanted.from.abs_diff(wanted.to) < wanted.len {
        return Err(NtStatus::NOT_SUPPORTED);
    }
    let sparse = |attributes: Attributes| attributes.contains(Attributes::SPARSE_FILE);
    if sparse(of_source.attributes) && !sparse(of_target.attributes) {
        return Err(NtStatus::NOT_SUPPORTED);
    }
    target.note_change();
    let (from, to) = (source.data()?, target.data()?);
    let written = target.clone();
    let clone = move || {
        still_open(&written)?;
        clone_range(&from, wanted.from, &to, wanted.to, wanted.len)
            .map_err(|error| fs::status_of(&error))
    };
    change(x, target, clone).await??;
    done()
}

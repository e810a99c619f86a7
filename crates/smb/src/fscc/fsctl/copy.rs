//! Copies that the server makes: chunks, and blocks that two files share.

use super::super::{Put, Reader};
use crate::{FileId, NtStatus};

/// Chunks in a request at most.
pub const CHUNKS_MAX: u32 = 256;
/// Bytes of a chunk at most.
pub const CHUNK_LEN_MAX: u32 = 1 << 20;
/// Bytes in a request at most.
pub const COPY_LEN_MAX: u32 = 16 << 20;

/// SRV_COPYCHUNK (MS-SMB2 2.2.31.1.1): bytes to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where in the source.
    pub from: u64,
    /// Where in the target.
    pub to: u64,
    /// How many.
    pub len: u32,
}

/// SRV_COPYCHUNK_COPY (MS-SMB2 2.2.31.1), within the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyChunk {
    /// What SRV_REQUEST_RESUME_KEY said about the source.
    pub key: [u8; 24],
    /// What to copy, in this order; nothing is fine.
    pub chunks: Vec<Chunk>,
}

/// SRV_COPYCHUNK_RESPONSE (MS-SMB2 2.2.32.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyChunkAnswer {
    /// Chunks that were copied.
    pub chunks: u32,
    /// Bytes of the last one that were copied, if it was not copied whole.
    pub chunk_bytes: u32,
    /// Bytes that were copied in all.
    pub total_bytes: u32,
}

impl CopyChunk {
    /// Reads one (MS-SMB2 3.3.5.15.6).
    ///
    /// # Errors
    ///
    /// The error response to send has the status INVALID_PARAMETER; its body is the answer, if there is one.
    pub fn parse(bytes: &[u8]) -> Result<Self, (NtStatus, Option<CopyChunkAnswer>)> {
        let malformed = (NtStatus::INVALID_PARAMETER, None);
        let limits = (NtStatus::INVALID_PARAMETER, Some(CopyChunkAnswer::LIMITS));
        let mut fields = Reader::new(bytes);
        let key = fields.array().ok_or(malformed)?;
        let count = fields.u32().ok_or(malformed)?;
        fields.u32().ok_or(malformed)?;
        if count > CHUNKS_MAX {
            return Err(limits);
        }
        let mut chunk = || {
            let chunk = Chunk { from: fields.u64()?, to: fields.u64()?, len: fields.u32()? };
            fields.u32()?;
            Some(chunk)
        };
        let chunks = (0..count).map(|_| chunk()).collect::<Option<Vec<_>>>().ok_or(malformed)?;
        let total: u64 = chunks.iter().map(|chunk| u64::from(chunk.len)).sum();
        let too_long = |chunk: &Chunk| chunk.len == 0 || chunk.len > CHUNK_LEN_MAX;
        if chunks.iter().any(too_long) || total > COPY_LEN_MAX.into() {
            return Err(limits);
        }
        Ok(Self { key, chunks })
    }
}

impl CopyChunkAnswer {
    /// What the limits are: goes with INVALID_PARAMETER.
    pub const LIMITS: Self =
        Self { chunks: CHUNKS_MAX, chunk_bytes: CHUNK_LEN_MAX, total_bytes: COPY_LEN_MAX };
    /// Bytes of the answer: a client with less room gets INVALID_PARAMETER.
    pub const LEN: usize = 12;

    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        [self.chunks, self.chunk_bytes, self.total_bytes].into_iter().for_each(|n| out.u32(n));
    }
}

/// Appends the answer to SRV_REQUEST_RESUME_KEY (MS-SMB2 2.2.32.3): the key and no context.
pub fn put_resume_key(key: &[u8; 24], out: &mut Vec<u8>) {
    out.put(key);
    out.u32(0);
    // Room for one byte of context, which Windows has and clients expect.
    out.u32(0);
}

/// DUPLICATE_EXTENTS_DATA and its EX form (MS-FSCC 2.3.7, 2.3.9): blocks that the target shall share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The source, open by the same client.
    pub source: FileId,
    /// Where in the source, bytes.
    pub from: u64,
    /// Where in the target, bytes.
    pub to: u64,
    /// How many bytes.
    pub len: u64,
    /// All or nothing (DUPLICATE_EXTENTS_DATA_EX_SOURCE_ATOMIC).
    pub atomic: bool,
}

impl Duplicate {
    /// Reads one; `ex` for the EX form.
    ///
    /// # Errors
    ///
    /// BUFFER_TOO_SMALL if it is too short; INVALID_PARAMETER for ranges that wrap around.
    pub fn parse(bytes: &[u8], ex: bool) -> Result<Self, NtStatus> {
        let (duplicate, size) = Self::read(bytes, ex).ok_or(NtStatus::BUFFER_TOO_SMALL)?;
        let end = |at: u64| at.checked_add(duplicate.len).and_then(|end| i64::try_from(end).ok());
        if ex && size < 48 || end(duplicate.from).is_none() || end(duplicate.to).is_none() {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        Ok(duplicate)
    }

    fn read(bytes: &[u8], ex: bool) -> Option<(Self, u64)> {
        let mut fields = Reader::new(bytes);
        let size = if ex { fields.u64()? } else { 0 };
        let source = FileId { persistent: fields.u64()?, volatile: fields.u64()? };
        let (from, to, len) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let atomic = ex && fields.u32()? & 1 != 0;
        Some((Self { source, from, to, len, atomic }, size))
    }
}

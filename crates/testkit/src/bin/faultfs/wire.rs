//! What the kernel asks of a file system and what it is answered: as much of `linux/fuse.h` 7.31 as is needed here.

use rustix::io::Errno;

/// What is asked; numbers that are not here are answered with ENOSYS, which the kernel takes as "never ask again".
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const RENAME2: u32 = 45;
}

/// The most that one write brings, and one read asks for.
pub(crate) const DATA_MAX: u32 = 128 << 10;
/// The kernel refuses to fill a buffer into which its longest request would not fit.
pub(crate) const REQUEST_MAX: usize = DATA_MAX as usize + 4096;
const HEADER: usize = 40;

/// A request, its header read.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) op: u32,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    unique: u64,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        let mut header = Fields(bytes.get(..HEADER).ok_or(Errno::PROTO)?);
        let (_len, op, unique) = (header.u32()?, header.u32()?, header.u64()?);
        let (node, uid, gid) = (header.u64()?, header.u32()?, header.u32()?);
        Ok(Self { op, node, uid, gid, unique, body: bytes[HEADER..].to_vec() })
    }

    pub(crate) fn fields(&self) -> Fields<'_> {
        Fields(&self.body)
    }

    /// The message that answers it.
    pub(crate) fn answer(&self, answer: Result<Vec<u8>, Errno>) -> Vec<u8> {
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno.raw_os_error(), Vec::new()),
        };
        let len = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
        Bytes::default().u32(len).u32(error.cast_unsigned()).u64(self.unique).all(&body).0
    }
}

/// What is left to be read of a request.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    /// Passes over as many bytes.
    pub(crate) fn skip(&mut self, len: usize) -> Result<&mut Self, Errno> {
        self.0 = self.0.get(len..).ok_or(Errno::PROTO)?;
        Ok(self)
    }

    /// A name, which ends with a zero byte.
    pub(crate) fn name(&mut self) -> Result<String, Errno> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::PROTO)?;
        let name = std::str::from_utf8(&self.0[..end]).map_err(|_| Errno::ILSEQ)?.to_owned();
        self.0 = &self.0[end + 1..];
        Ok(name)
    }

    /// So many bytes of data.
    pub(crate) fn bytes(&self, len: u32) -> Result<&'a [u8], Errno> {
        self.0.get(..len as usize).ok_or(Errno::PROTO)
    }
}

/// An answer that is being written.
#[derive(Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Bytes {
    pub(crate) fn u16(self, value: u16) -> Self {
        self.all(&value.to_ne_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.all(&value.to_ne_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.all(&value.to_ne_bytes())
    }

    pub(crate) fn all(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Zeros until it is so long.
    pub(crate) fn up_to(mut self, len: usize) -> Self {
        self.0.resize(len, 0);
        self
    }
}

/// What INIT is answered.
pub(crate) fn init(request: &Request) -> Result<Vec<u8>, Errno> {
    const ASYNC_READ: u32 = 1;
    const BIG_WRITES: u32 = 1 << 5;
    const PARALLEL_DIROPS: u32 = 1 << 18;
    let mut asked = request.fields();
    let (major, minor) = (asked.u32()?, asked.u32()?);
    let (read_ahead, offered) = (asked.u32()?, asked.u32()?);
    if major != 7 || minor < 31 {
        return Err(Errno::PROTO);
    }
    // No write-back cache: what was written is known here as soon as write(2) has returned.
    let flags = offered & (ASYNC_READ | BIG_WRITES | PARALLEL_DIROPS);
    let answer = Bytes::default().u32(7).u32(31).u32(read_ahead).u32(flags);
    // Requests that may wait, and how many are too many; the time is kept to a nanosecond.
    Ok(answer.u16(64).u16(48).u32(DATA_MAX).u32(1).up_to(64).0)
}

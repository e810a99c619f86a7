//! Named streams, kept in extended attributes as Samba's `streams_xattr` keeps them: the value is what the
//! stream holds and a NUL.
//!
//! Linux allows 64 KiB for a value, and some file systems less (ext4 a block for all of a file's attributes):
//! a write beyond that is DISK_FULL. That is enough for what Windows and macOS keep in streams
//! (`Zone.Identifier`, `AFP_AfpInfo`), and no place for data.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use smb::{NtStatus, name};

use super::errno::status;
use super::{Handle, Inner, xattr};

/// What a stream can hold on a file system that allows what Linux allows.
pub const STREAM_MAX: u64 = 65535;
/// The longest name of an extended attribute.
const XATTR_NAME_MAX: usize = 255;
const KIND: &[u8] = b":$DATA";

/// Reading, changing and writing a value are three steps; who does them for one inode waits here for others. One for many
/// inodes of a file system.
pub(super) type Turns = [Mutex<()>; 16];

/// Those of file systems that are shared, by device.
static TURNS: Mutex<BTreeMap<u64, Weak<Turns>>> = Mutex::new(BTreeMap::new());

/// The turns of a file system, which all shares of it take.
pub(super) fn turns_of(device: u64) -> Arc<Turns> {
    let mut all = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|_, turns| turns.strong_count() > 0);
    if let Some(turns) = all.get(&device).and_then(Weak::upgrade) {
        return turns;
    }
    let turns = Arc::new(Turns::default());
    all.insert(device, Arc::downgrade(&turns));
    turns
}

/// One stream in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFacts {
    /// Its name, without colons and kind.
    pub name: String,
    /// Bytes that it holds.
    pub size: u64,
}

/// A stream of a file or folder, open.
#[derive(Debug)]
pub struct Stream {
    file: Arc<Handle>,
    /// The extended attribute.
    key: Mutex<Vec<u8>>,
}

impl Inner {
    fn stream_key(&self, stream: &str) -> Result<Vec<u8>, NtStatus> {
        let mut key = self.config.stream_prefix.clone().into_bytes();
        // Streams may have characters that files may not: nothing stands for anything else.
        key.extend_from_slice(stream.as_bytes());
        key.extend_from_slice(KIND);
        if stream.is_empty()
            || key.len() > XATTR_NAME_MAX
            || stream.contains(['/', '\\', ':', '\0'])
        {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        Ok(key)
    }

    /// The stream's name as clients see it, if this attribute is one.
    fn stream_name(&self, key: &[u8]) -> Option<String> {
        let stream = key.strip_prefix(self.config.stream_prefix.as_bytes())?;
        let name = stream.strip_suffix(KIND)?;
        Some(
            str::from_utf8(name).map_or_else(|_| name::from_unix(name).into_owned(), str::to_owned),
        )
    }
}

impl Handle {
    /// The named streams.
    ///
    /// # Errors
    ///
    /// What `listxattr(2)` says. Where there are no extended attributes there are no streams.
    pub fn streams(&self) -> Result<Vec<StreamFacts>, NtStatus> {
        if !self.share().config.streams {
            return Ok(Vec::new());
        }
        let path = self.proc_path();
        let keys = match xattr::names(&path, true) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            keys => keys.map_err(status)?,
        };
        let mut streams = Vec::new();
        for key in keys.split(|byte| *byte == 0) {
            let Some(name) = self.share().stream_name(key) else { continue };
            match xattr::len(&path, key, true) {
                Ok(len) => streams.push(StreamFacts { name, size: size(len) }),
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(status(errno)),
            }
        }
        Ok(streams)
    }

    /// Deletes all named streams, also those that somebody has open: to who has, they are not there any more.
    ///
    /// # Errors
    ///
    /// What `listxattr(2)` and `removexattr(2)` say.
    pub fn remove_streams(&self) -> Result<(), NtStatus> {
        if !self.share().config.streams {
            return Ok(());
        }
        self.share().writable()?;
        let path = self.proc_path();
        let keys = match xattr::names(&path, true) {
            Err(Errno::OPNOTSUPP) => return Ok(()),
            keys => keys.map_err(status)?,
        };
        let is_stream = |key: &&[u8]| self.share().stream_name(key).is_some();
        keys.split(|byte| *byte == 0).filter(is_stream).try_for_each(|key| {
            match rustix::fs::removexattr(&*path, key) {
                Ok(()) | Err(Errno::NODATA) => Ok(()),
                Err(errno) => Err(status(errno)),
            }
        })
    }

    fn find_stream(&self, stream: &str) -> Result<Option<Vec<u8>>, NtStatus> {
        let key = self.share().stream_key(stream)?;
        let path = self.proc_path();
        match xattr::len(&path, &key, true) {
            Ok(_) => return Ok(Some(key)),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(status(errno)),
        }
        let keys = match xattr::names(&path, true) {
            Err(Errno::OPNOTSUPP) => return Ok(None),
            keys => keys.map_err(status)?,
        };
        let same = |key: &&[u8]| {
            self.share().stream_name(key).is_some_and(|other| name::same(&other, stream))
        };
        Ok(keys.split(|byte| *byte == 0).find(same).map(<[u8]>::to_vec))
    }
}

impl Stream {
    /// Opens a stream that is there, in whichever case.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_NOT_FOUND, OBJECT_NAME_INVALID for a name that cannot be, or where there are no streams.
    pub fn open(file: Arc<Handle>, name: &str) -> Result<Self, NtStatus> {
        if !file.share().config.streams {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        let key = file.find_stream(name)?.ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
        Ok(Self { file, key: Mutex::new(key) })
    }

    /// Creates a stream, empty.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_COLLISION if it is there, NOT_SUPPORTED where the file system has no extended attributes.
    pub fn create(file: Arc<Handle>, name: &str) -> Result<Self, NtStatus> {
        if !file.share().config.streams {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        file.share().writable()?;
        if file.find_stream(name)?.is_some() {
            return Err(NtStatus::OBJECT_NAME_COLLISION);
        }
        let key = file.share().stream_key(name)?;
        rustix::fs::setxattr(&*file.proc_path(), &*key, b"\0", XattrFlags::CREATE).map_err(full)?;
        Ok(Self { file, key: Mutex::new(key) })
    }

    /// The file that it belongs to.
    #[must_use]
    pub fn file(&self) -> &Arc<Handle> {
        &self.file
    }

    /// Its name, without colons and kind.
    #[must_use]
    pub fn name(&self) -> String {
        self.file.share().stream_name(&self.key()).unwrap_or_default()
    }

    /// Bytes that it holds.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_NOT_FOUND if it has been deleted.
    pub fn size(&self) -> Result<u64, NtStatus> {
        xattr::len(&self.file.proc_path(), &self.key(), true).map(size).map_err(missing)
    }

    /// Reads from `offset` as much as there is, and says how much that was.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_NOT_FOUND if it has been deleted.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, NtStatus> {
        let value = self.value()?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(value.len());
        let len = buffer.len().min(value.len() - start);
        buffer[..len].copy_from_slice(&value[start..start + len]);
        Ok(len)
    }

    /// Writes all of `bytes` at `offset`; what is before that and was not there reads as zeros. No bytes change nothing,
    /// wherever they would be.
    ///
    /// # Errors
    ///
    /// DISK_FULL for more than [`STREAM_MAX`], or than the file system has room for.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), NtStatus> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.change(end, |value| {
            let end = usize::try_from(end).unwrap_or(usize::MAX);
            if value.len() < end {
                value.resize(end, 0);
            }
            value[end - bytes.len()..end].copy_from_slice(bytes);
        })
    }

    /// Cuts it off or fills it up with zeros.
    ///
    /// # Errors
    ///
    /// DISK_FULL for more than [`STREAM_MAX`], or than the file system has room for.
    pub fn set_size(&self, size: u64) -> Result<(), NtStatus> {
        self.change(size, |value| value.resize(usize::try_from(size).unwrap_or(0), 0))
    }

    /// Renames it, within its file.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_COLLISION if there is another of that name and `replace` is not set.
    pub fn rename(&self, name: &str, replace: bool) -> Result<(), NtStatus> {
        self.file.share().writable()?;
        let new = self.file.share().stream_key(name)?;
        // Before the key, as who writes takes them.
        let _turn = self.turn();
        let mut key = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        let existing = self.file.find_stream(name)?.filter(|existing| *existing != *key);
        if existing.is_some() && !replace {
            return Err(NtStatus::OBJECT_NAME_COLLISION);
        }
        if *key == new {
            return Ok(());
        }
        let path = self.file.proc_path();
        let value = xattr::value(&path, &key).map_err(missing)?;
        xattr::set(&path, &new, &value).map_err(full)?;
        for old in
            [Some(key.clone()), existing.filter(|existing| *existing != new)].into_iter().flatten()
        {
            rustix::fs::removexattr(&*path, &*old).map_err(missing)?;
        }
        *key = new;
        Ok(())
    }

    /// Deletes it.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_NOT_FOUND if somebody else has.
    pub fn delete(&self) -> Result<(), NtStatus> {
        self.file.share().writable()?;
        rustix::fs::removexattr(&*self.file.proc_path(), &*self.key()).map_err(missing)
    }

    fn key(&self) -> Vec<u8> {
        self.key.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn turn(&self) -> std::sync::MutexGuard<'_, ()> {
        let at = usize::try_from(self.file.identity().inode % 16).unwrap_or(0);
        self.file.share().turns[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it holds, without the NUL.
    fn value(&self) -> Result<Vec<u8>, NtStatus> {
        let mut value = xattr::value(&self.file.proc_path(), &self.key()).map_err(missing)?;
        value.pop();
        Ok(value)
    }

    fn change(&self, size: u64, change: impl FnOnce(&mut Vec<u8>)) -> Result<(), NtStatus> {
        self.file.share().writable()?;
        if size > STREAM_MAX {
            return Err(NtStatus::DISK_FULL);
        }
        let _turn = self.turn();
        let mut value = self.value()?;
        change(&mut value);
        value.push(0);
        // REPLACE: one that somebody has deleted meanwhile does not come back.
        rustix::fs::setxattr(&*self.file.proc_path(), &*self.key(), &value, XattrFlags::REPLACE)
            .map_err(full)?;
        self.file.note_write();
        Ok(())
    }
}

/// What a value of this length holds.
fn size(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX).saturating_sub(1)
}

fn missing(errno: Errno) -> NtStatus {
    if errno == Errno::NODATA { NtStatus::OBJECT_NAME_NOT_FOUND } else { status(errno) }
}

fn full(errno: Errno) -> NtStatus {
    match errno {
        Errno::TOOBIG | Errno::RANGE | Errno::NOSPC => NtStatus::DISK_FULL,
        Errno::EXIST => NtStatus::OBJECT_NAME_COLLISION,
        errno => missing(errno),
    }
}

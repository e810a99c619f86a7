//! The files: names and attributes go to the folder below at once, bytes only when they are synced.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::wire::Bytes;

/// For how long the kernel may believe what it was told: as long as of a disk, whose names nobody else changes.
const VALID_SECONDS: u64 = 3600;
/// The whole of a file is in memory.
const FILE_MAX: u64 = 1 << 30;
const ROOT: u64 = 1;

type Answer<T> = Result<T, Errno>;

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

struct Node {
    path: PathBuf,
    /// What clients of this file system see; the folder below has what was synced.
    content: Option<Vec<u8>>,
    /// Where that may differ from what was synced, beside its length.
    unsynced: Range<usize>,
    modified: Option<SystemTime>,
    /// How many bytes have been written to it.
    written: u64,
    /// What was known of it when its name went.
    gone: Option<Metadata>,
}

impl Node {
    /// Notes that these bytes have become others.
    fn touch(&mut self, changed: Range<usize>) {
        let whole = self.unsynced.start.min(changed.start)..self.unsynced.end.max(changed.end);
        self.unsynced = if self.unsynced.is_empty() { changed } else { whole };
        self.modified = Some(SystemTime::now());
    }

    /// Has the folder below know what this one knows. Nothing is cut off first: what was synced before stays there,
    /// should we be killed meanwhile.
    fn sync(&mut self) -> io::Result<()> {
        let (Some(content), None) = (&self.content, &self.gone) else { return Ok(()) };
        let file = File::options().write(true).open(&self.path)?;
        let range = self.unsynced.start.min(content.len())..self.unsynced.end.min(content.len());
        file.write_all_at(&content[range.clone()], range.start as u64)?;
        file.set_len(content.len() as u64)?;
        self.unsynced = 0..0;
        Ok(())
    }
}

/// All files that were named.
pub(crate) struct Store {
    nodes: HashMap<u64, Node>,
    ids: HashMap<PathBuf, u64>,
    next: u64,
    listings: HashMap<u64, Vec<Entry>>,
    log: File,
}

/// A line of a folder.
struct Entry {
    name: String,
    id: u64,
    mode: u32,
}

/// What SETATTR changes.
#[derive(Default)]
pub(crate) struct Change {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) modified: Option<SystemTime>,
}

impl Store {
    pub(crate) fn new(folder: &Path, log: File) -> Self {
        let (nodes, ids, listings) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut store = Self { nodes, ids, next: ROOT, listings, log };
        store.id_of(folder.to_owned());
        store
    }

    /// Writes a line that whoever tests may read as soon as the request is answered.
    pub(crate) fn note(&mut self, line: &str) {
        let _ = writeln!(self.log, "{line}");
    }

    /// The last part of a file's path.
    pub(crate) fn name_of(&self, id: u64) -> String {
        let name = self.nodes.get(&id).and_then(|node| node.path.file_name());
        name.unwrap_or_default().to_string_lossy().into_owned()
    }

    fn id_of(&mut self, path: PathBuf) -> u64 {
        if let Some(id) = self.ids.get(&path) {
            return *id;
        }
        let id = self.next;
        self.next += 1;
        let node = Node {
            path: path.clone(),
            content: None,
            unsynced: 0..0,
            modified: None,
            written: 0,
            gone: None,
        };
        self.nodes.insert(id, node);
        self.ids.insert(path, id);
        id
    }

    fn node(&mut self, id: u64) -> Answer<&mut Node> {
        self.nodes.get_mut(&id).ok_or(Errno::STALE)
    }

    fn path_in(&mut self, folder: u64, name: &str) -> Answer<PathBuf> {
        Ok(self.node(folder)?.path.join(name))
    }

    /// What a file holds now.
    fn content(&mut self, id: u64) -> Answer<&mut Vec<u8>> {
        let node = self.node(id)?;
        if node.content.is_none() {
            if fs::metadata(&node.path).map_err(errno)?.len() > FILE_MAX {
                return Err(Errno::FBIG);
            }
            node.content = Some(fs::read(&node.path).map_err(errno)?);
        }
        node.content.as_mut().ok_or(Errno::IO)
    }

    /// `struct fuse_attr`.
    fn attributes(&mut self, id: u64) -> Answer<Vec<u8>> {
        let node = self.node(id)?;
        let found = match &node.gone {
            Some(gone) => gone.clone(),
            None => fs::symlink_metadata(&node.path).map_err(errno)?,
        };
        let size = node.content.as_ref().map_or(found.len(), |content| content.len() as u64);
        let time =
            |seconds: i64, nanos: i64| (seconds.cast_unsigned(), u32::try_from(nanos).unwrap_or(0));
        let modified = node.modified.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        let (atime, atime_nanos) = time(found.atime(), found.atime_nsec());
        let (mtime, mtime_nanos) = match modified {
            Some(since) => (since.as_secs(), since.subsec_nanos()),
            None => time(found.mtime(), found.mtime_nsec()),
        };
        let (ctime, ctime_nanos) = time(found.ctime(), found.ctime_nsec());
        let (ctime, ctime_nanos) = (ctime, ctime_nanos).max((mtime, mtime_nanos));
        let links = if node.gone.is_some() { 0 } else { u32::try_from(found.nlink()).unwrap_or(1) };
        let bytes = Bytes::default().u64(id).u64(size).u64(size.div_ceil(512));
        let bytes = bytes.u64(atime).u64(mtime).u64(ctime);
        let bytes = bytes.u32(atime_nanos).u32(mtime_nanos).u32(ctime_nanos);
        let bytes = bytes.u32(found.mode()).u32(links).u32(found.uid()).u32(found.gid());
        Ok(bytes.u32(0).u32(4096).u32(0).0)
    }

    /// The answer to GETATTR.
    pub(crate) fn described(&mut self, id: u64) -> Answer<Vec<u8>> {
        let attributes = self.attributes(id)?;
        Ok(Bytes::default().u64(VALID_SECONDS).u64(0).all(&attributes).0)
    }

    /// The answer to whatever leads to a name.
    fn entry(&mut self, id: u64) -> Answer<Vec<u8>> {
        let attributes = self.attributes(id)?;
        let bytes = Bytes::default().u64(id).u64(0).u64(VALID_SECONDS).u64(VALID_SECONDS);
        Ok(bytes.u64(0).all(&attributes).0)
    }

    pub(crate) fn look_up(&mut self, folder: u64, name: &str) -> Answer<Vec<u8>> {
        let path = self.path_in(folder, name)?;
        fs::symlink_metadata(&path).map_err(errno)?;
        let id = self.id_of(path);
        self.entry(id)
    }

    pub(crate) fn create(
        &mut self,
        folder: u64,
        name: &str,
        mode: u32,
        (uid, gid): (u32, u32),
    ) -> Answer<(u64, Vec<u8>)> {
        let path = self.path_in(folder, name)?;
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
        file.and_then(|file| std::os::unix::fs::fchown(&file, Some(uid), Some(gid)))
            .map_err(errno)?;
        let id = self.id_of(path);
        Ok((id, self.entry(id)?))
    }

    pub(crate) fn make_folder(
        &mut self,
        folder: u64,
        name: &str,
        mode: u32,
        (uid, gid): (u32, u32),
    ) -> Answer<Vec<u8>> {
        let path = self.path_in(folder, name)?;
        fs::DirBuilder::new().mode(mode).create(&path).map_err(errno)?;
        std::os::unix::fs::chown(&path, Some(uid), Some(gid)).map_err(errno)?;
        let id = self.id_of(path);
        self.entry(id)
    }

    pub(crate) fn change(&mut self, id: u64, change: &Change) -> Answer<Vec<u8>> {
        if let Some(size) = change.size {
            if size > FILE_MAX {
                return Err(Errno::FBIG);
            }
            let size = usize::try_from(size).map_err(|_| Errno::FBIG)?;
            let content = self.content(id)?;
            let before = content.len();
            content.resize(size, 0);
            self.node(id)?.touch(before.min(size)..before.max(size));
        }
        let node = self.node(id)?;
        node.modified = change.modified.or(node.modified);
        if node.gone.is_none() {
            if let Some(mode) = change.mode {
                let mode = fs::Permissions::from_mode(mode & 0o7777);
                fs::set_permissions(&node.path, mode).map_err(errno)?;
            }
            if change.uid.or(change.gid).is_some() {
                std::os::unix::fs::chown(&node.path, change.uid, change.gid).map_err(errno)?;
            }
        }
        self.described(id)
    }

    pub(crate) fn read(&mut self, id: u64, offset: u64, size: u32) -> Answer<Vec<u8>> {
        let content = self.content(id)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let to = from.saturating_add(size as usize).min(content.len());
        Ok(content[from..to].to_vec())
    }

    pub(crate) fn write(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Answer<Vec<u8>> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_MAX);
        let end = end.and_then(|end| usize::try_from(end).ok()).ok_or(Errno::FBIG)?;
        let content = self.content(id)?;
        let before = content.len();
        content.resize(before.max(end), 0);
        content[end - bytes.len()..end].copy_from_slice(bytes);
        let node = self.node(id)?;
        node.written += bytes.len() as u64;
        node.touch(before.min(end - bytes.len())..end);
        let count = u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
        Ok(Bytes::default().u32(count).u32(0).0)
    }

    /// Has what was written survive.
    pub(crate) fn sync(&mut self, id: u64, data_only: bool) -> Answer<()> {
        let node = self.node(id)?;
        node.sync().map_err(errno)?;
        let written = node.written;
        let call = if data_only { "fdatasync" } else { "fsync" };
        let line = format!("{call} {} written={written}", self.name_of(id));
        self.note(&line);
        Ok(())
    }

    /// Has a file live on without its name.
    fn forget_name(&mut self, path: &Path) {
        let Some(id) = self.ids.get(path).copied() else { return };
        let _ = self.content(id);
        let found = fs::symlink_metadata(path).ok();
        if let Ok(node) = self.node(id) {
            node.gone = found;
        }
        self.ids.remove(path);
    }

    pub(crate) fn unlink(&mut self, folder: u64, name: &str) -> Answer<()> {
        let path = self.path_in(folder, name)?;
        self.forget_name(&path);
        fs::remove_file(&path).map_err(errno)
    }

    pub(crate) fn remove_folder(&mut self, folder: u64, name: &str) -> Answer<()> {
        let path = self.path_in(folder, name)?;
        fs::remove_dir(&path).map_err(errno)?;
        self.ids.remove(&path);
        Ok(())
    }

    pub(crate) fn rename(
        &mut self,
        (folder, name): (u64, &str),
        (into, new): (u64, &str),
        replace: bool,
    ) -> Answer<()> {
        let (old, new) = (self.path_in(folder, name)?, self.path_in(into, new)?);
        if fs::symlink_metadata(&new).is_ok() {
            if !replace {
                return Err(Errno::EXIST);
            }
            self.forget_name(&new);
        }
        fs::rename(&old, &new).map_err(errno)?;
        for (id, node) in &mut self.nodes {
            let Ok(below) = node.path.strip_prefix(&old) else { continue };
            if node.gone.is_some() {
                continue;
            }
            let moved = if below.as_os_str().is_empty() { new.clone() } else { new.join(below) };
            self.ids.remove(&node.path);
            self.ids.insert(moved.clone(), *id);
            node.path = moved;
        }
        Ok(())
    }

    /// Opens a folder, as it is now.
    pub(crate) fn open_folder(&mut self, id: u64) -> Answer<u64> {
        let path = self.node(id)?.path.clone();
        let mut entries = Vec::new();
        for found in fs::read_dir(path).map_err(errno)? {
            let found = found.map_err(errno)?;
            let mode = found.metadata().map_err(errno)?.mode();
            let name = found.file_name().into_string().map_err(|_| Errno::ILSEQ)?;
            entries.push(Entry { name, id: self.id_of(found.path()), mode });
        }
        let handle = self.next;
        self.next += 1;
        self.listings.insert(handle, entries);
        Ok(handle)
    }

    pub(crate) fn close_folder(&mut self, handle: u64) {
        self.listings.remove(&handle);
    }

    /// As many entries as fit, from the one with this number.
    pub(crate) fn list(&mut self, handle: u64, from: u64, room: u32) -> Answer<Vec<u8>> {
        let entries = self.listings.get(&handle).ok_or(Errno::BADF)?;
        let mut out = Bytes::default();
        for (next, entry) in (1..).zip(entries).skip(usize::try_from(from).unwrap_or(usize::MAX)) {
            let len = u32::try_from(entry.name.len()).map_err(|_| Errno::NAMETOOLONG)?;
            let end = (out.0.len() + 24 + entry.name.len()).next_multiple_of(8);
            if end > room as usize {
                break;
            }
            let line = out.u64(entry.id).u64(next).u32(len).u32(entry.mode >> 12 & 0xf);
            out = line.all(entry.name.as_bytes()).up_to(end);
        }
        Ok(out.0)
    }

    /// The answer to STATFS: what the folder below says.
    pub(crate) fn room(&mut self) -> Answer<Vec<u8>> {
        let found = rustix::fs::statvfs(&self.node(ROOT)?.path)?;
        let bytes = Bytes::default().u64(found.f_blocks).u64(found.f_bfree).u64(found.f_bavail);
        let bytes = bytes.u64(found.f_files).u64(found.f_ffree);
        let size = u32::try_from(found.f_frsize).unwrap_or(4096);
        Ok(bytes.u32(size).u32(255).u32(size).up_to(80).0)
    }
}

/// A time of two numbers of a request.
pub(crate) fn time(seconds: u64, nanos: u32) -> SystemTime {
    let since = Duration::new(seconds.min(u64::from(u32::MAX) * 4), nanos.min(999_999_999));
    SystemTime::UNIX_EPOCH + since
}

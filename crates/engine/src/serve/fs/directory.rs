//! What is in a folder.

mod batch;

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom, Statx};
use rustix::io::Errno;
use smb::fscc::Entry;
use smb::{NtStatus, name as names};

use super::device::Mount;
use super::errno::status;
use super::facts::{At, file_type, stat, stat_at, stat_entry_at_once};
use super::memo::Extra;
use super::{Handle, Links, Share, Want};
pub use batch::Errand;
use batch::{Ahead, Batch};

/// Bytes that one `getdents64(2)` may give: some 1,500 entries.
const BATCH: usize = 64 << 10;

/// One enumeration of a folder: "." and ".." first, then entries in the order of the file system. Entries that
/// come or go meanwhile may be seen or not; no other is seen twice or missed.
#[derive(Debug)]
pub struct Directory {
    folder: Arc<Folder>,
    buffer: Vec<u8>,
    batch: Arc<Batch>,
    /// What another thread finds out about the batch.
    ahead: Option<Arc<Ahead>>,
    /// The next one of the batch.
    at: usize,
    /// How many of "." and ".." have been given.
    dots: usize,
    ended: bool,
    /// Whether the last entry given was "." or "..".
    last_dot: bool,
}

/// The folder that is read.
#[derive(Debug)]
struct Folder {
    share: Share,
    fd: OwnedFd,
    /// From the root, as on disk.
    path: Vec<u8>,
    /// Its file system is one of this host: who reads it waits for nobody.
    local: bool,
}

impl Folder {
    /// What clients call an entry.
    fn seen<'n>(&self, name: &'n [u8]) -> Cow<'n, str> {
        let seen = names::from_unix(name);
        match seen {
            Cow::Borrowed(plain) if self.share.0.config.map_devices => names::mark_device(plain),
            Cow::Owned(mapped) if self.share.0.config.map_devices => {
                Cow::Owned(names::mark_device(&mapped).into_owned())
            }
            seen => seen,
        }
    }
}

impl Directory {
    /// Begins an enumeration with a position of its own.
    ///
    /// # Errors
    ///
    /// NOT_A_DIRECTORY, and what `open(2)` says.
    pub fn open(handle: &Handle) -> Result<Self, NtStatus> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(handle, c".", flags, Mode::empty()).map_err(status)?;
        let (share, path) = (handle.of_share().clone(), handle.place().path.clone());
        Ok(Self {
            folder: Arc::new(Folder { share, fd, path, local: handle.is_local() }),
            buffer: Vec::new(),
            batch: Arc::default(),
            ahead: None,
            at: 0,
            dots: 0,
            ended: false,
            last_dot: false,
        })
    }

    /// Begins again (SMB2_RESTART_SCANS, SMB2_REOPEN).
    ///
    /// # Errors
    ///
    /// What `lseek(2)` says.
    pub fn restart(&mut self) -> Result<(), NtStatus> {
        rustix::fs::seek(&self.folder.fd, SeekFrom::Start(0)).map_err(status)?;
        self.new_batch();
        (self.dots, self.ended) = (0, false);
        Ok(())
    }

    /// The next entry whose name `matches`, written to `entry`; `false` at the end. Names that do not match
    /// cost no system call.
    ///
    /// # Errors
    ///
    /// What `getdents(2)` says. An entry that is gone meanwhile, or cannot be looked at, is passed over.
    pub fn next(
        &mut self,
        matches: &mut dyn FnMut(&str) -> bool,
        entry: &mut Entry,
    ) -> Result<bool, NtStatus> {
        while let Some(name) = [".", ".."].get(self.dots) {
            self.dots += 1;
            if matches(name) {
                entry.name.clear();
                entry.name.push_str(name);
                entry.facts = self.folder.dot_facts(name)?;
                self.last_dot = true;
                return Ok(true);
            }
        }
        self.last_dot = false;
        loop {
            if self.at == self.batch.len() && !self.fill()? {
                return Ok(false);
            }
            let at = self.at;
            self.at += 1;
            let Some((name, kind)) = self.batch.get(at) else { continue };
            entry.name.clear();
            entry.name.push_str(&self.folder.seen(name.to_bytes()));
            if !matches(&entry.name) {
                continue;
            }
            let looked = self.ahead.as_ref().and_then(|ahead| ahead.take(at));
            let looked = match looked {
                Some(looked) => looked,
                None => self.folder.entry_facts(self.folder.fd.as_fd(), name, kind),
            };
            if let Some(facts) = looked? {
                entry.facts = facts;
                return Ok(true);
            }
        }
    }

    /// What another thread may do meanwhile: look up some of the entries that [`Self::next`] will give next, when
    /// `most` of them are wanted. `None`: not worth the while. What it finds counts until [`Self::pause`].
    pub fn errand(&mut self, most: usize) -> Option<Errand> {
        if self.ahead.is_some() {
            return None;
        }
        let (errand, ahead) = Errand::new(&self.folder, &self.batch, self.at, most)?;
        self.ahead = Some(ahead);
        Some(errand)
    }

    /// Nothing is asked for now: what is known ahead would be old when something is.
    pub fn pause(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            ahead.forget();
        }
    }

    /// Puts the entry that [`Self::next`] gave last back, because it does not fit; once for each.
    pub fn put_back(&mut self) {
        if self.last_dot {
            self.dots = self.dots.saturating_sub(1);
        } else {
            self.at = self.at.saturating_sub(1);
        }
    }

    /// The one entry with this name, in whichever case the share allows: what a pattern without wildcards
    /// asks for, without reading the folder.
    ///
    /// # Errors
    ///
    /// What the look-up says; that there is none is `None`.
    pub fn find(&self, name: &str) -> Result<Option<Entry>, NtStatus> {
        if name == "." || name == ".." {
            return Ok(Some(Entry { facts: self.folder.dot_facts(name)?, name: name.to_owned() }));
        }
        let folder = &*self.folder;
        let exact = names::to_unix(name).into_owned();
        if super::lookup::check_name(&exact).is_err() {
            return Ok(None);
        }
        let mut found = Some(exact);
        if let Some(exact) = &found
            && let Err(Errno::NOENT) = folder.stat_entry(folder.fd.as_fd(), exact.as_slice())
        {
            found = folder.share.0.name_in((&folder.fd, &folder.path), name)?;
        }
        let Some(found) = found else { return Ok(None) };
        let Ok(whole) = CString::new(found.as_slice()) else { return Ok(None) };
        let facts = folder.entry_facts(folder.fd.as_fd(), &whole, FileType::Unknown)?;
        let Some(facts) = facts else { return Ok(None) };
        Ok(Some(Entry { facts, name: folder.seen(&found).into_owned() }))
    }

    /// An empty batch, in the memory of the one before if nobody else has that.
    fn new_batch(&mut self) -> &mut Batch {
        self.pause();
        self.at = 0;
        if Arc::get_mut(&mut self.batch).is_none() {
            self.batch = Arc::default();
        }
        let batch = Arc::get_mut(&mut self.batch).expect("it is nobody else's");
        batch.clear();
        batch
    }

    /// Reads a batch of names; `false` at the end.
    fn fill(&mut self) -> Result<bool, NtStatus> {
        self.new_batch();
        if self.ended {
            return Ok(false);
        }
        let Some(batch) = Arc::get_mut(&mut self.batch) else { return Ok(false) };
        self.buffer.clear();
        self.buffer.reserve(BATCH);
        let mut entries = RawDir::new(&self.folder.fd, self.buffer.spare_capacity_mut());
        loop {
            let entry = match entries.next() {
                // The folder has been removed meanwhile.
                None | Some(Err(Errno::NOENT)) => {
                    self.ended = true;
                    break;
                }
                Some(entry) => entry.map_err(status)?,
            };
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                batch.push(name, entry.file_type());
            }
            // The next look would be the next system call.
            if entries.is_buffer_empty() && !batch.is_empty() {
                break;
            }
        }
        Ok(!batch.is_empty())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.pause();
    }
}

impl Folder {
    /// Another descriptor of it, to look entries up with.
    fn another(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, c".", flags, Mode::empty())
    }

    /// Of an entry itself. What is mounted in a folder of this host keeps nobody waiting.
    fn stat_entry(&self, fd: BorrowedFd<'_>, name: impl rustix::path::Arg) -> Result<Statx, Errno> {
        if self.local { stat_entry_at_once(fd, name) } else { stat_at(fd, name) }
    }

    /// One `statx(2)`, and the extended attributes if they are not remembered. `None`: gone, or not shown. What cannot be
    /// looked at, as where a program's file system was mounted or a disk fails, is no reason to hide the others, as long as
    /// the folder itself can be; the log says so. `fd` is the folder's.
    fn entry_facts(
        &self,
        fd: BorrowedFd<'_>,
        name: &CStr,
        kind: FileType,
    ) -> Result<Option<smb::fscc::Facts>, NtStatus> {
        match self.look_at(fd, name, kind) {
            Err(why) if stat(fd).is_ok() => {
                let (inner, path) = (&self.share.0, self.path_of(name.to_bytes()));
                inner.unshown.tell(&inner.config.label, &path, why);
                Ok(None)
            }
            looked => looked,
        }
    }

    /// From the root, as on disk.
    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    fn look_at(
        &self,
        fd: BorrowedFd<'_>,
        name: &CStr,
        kind: FileType,
    ) -> Result<Option<smb::fscc::Facts>, NtStatus> {
        let inner = &self.share.0;
        let bytes = name.to_bytes();
        if kind != FileType::Symlink {
            let stat = match self.stat_entry(fd, name) {
                // Of what is mounted there, what this host knows must do.
                Ok(stat) if self.local && inner.is_far(Mount::of(&stat)) => {
                    return Ok(Some(inner.facts_with(&stat, Extra::default(), bytes)));
                }
                Ok(stat) => stat,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(status(errno)),
            };
            if file_type(&stat) != FileType::Symlink {
                return inner.facts(&stat, &At::Entry(fd, bytes), bytes).map(Some);
            }
        }
        let path = self.path_of(bytes);
        // What cannot be opened is not shown: a link that leads nowhere or outside, or any if they are refused.
        match inner.config.links {
            Links::Refuse => Ok(None),
            Links::Client => match stat_at(fd, name) {
                Ok(stat) => inner.facts(&stat, &At::Entry(fd, bytes), bytes).map(Some),
                Err(_) => Ok(None),
            },
            Links::Follow => {
                let Ok(fd) = inner.open_at(&path, Want::default(), super::lookup::Names::All)
                else {
                    return Ok(None);
                };
                let stat = stat(&fd).map_err(status)?;
                inner.facts(&stat, &At::File(fd.as_fd()), bytes).map(Some)
            }
        }
    }

    fn dot_facts(&self, name: &str) -> Result<smb::fscc::Facts, NtStatus> {
        let inner = &self.share.0;
        // Above the root there is nothing to be seen.
        let name = if self.path.is_empty() { "." } else { name };
        let at = At::Entry(self.fd.as_fd(), name.as_bytes());
        inner.facts(&stat_at(&self.fd, name).map_err(status)?, &at, name.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::log::SAID;
    use super::super::{Config, Want};
    use super::*;

    #[test]
    fn what_cannot_be_looked_at_is_in_the_log() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("folder")).unwrap();
        let share = Share::new(Config::new(root.path(), "with unshown")).unwrap();
        let want = Want { read: true, ..Want::default() };
        let path = names::Path::parse_str("folder").unwrap();
        let folder =
            Directory::open(&share.open_existing(&path, want).unwrap()).unwrap().folder.clone();
        // No file system has it, and it is an error of another kind than that it is gone.
        let name = CString::new("x".repeat(300)).unwrap();
        let shown = folder.entry_facts(folder.fd.as_fd(), &name, FileType::RegularFile);
        assert!(shown.unwrap().is_none());
        let gone = folder.entry_facts(folder.fd.as_fd(), c"gone", FileType::RegularFile);
        assert!(gone.unwrap().is_none());
        let said = SAID.lock().unwrap();
        let lines: Vec<_> = said.iter().filter(|line| line.contains("with unshown")).collect();
        assert!(lines.len() == 1 && lines[0].contains("folder/xxx"), "{lines:?}");
    }
}

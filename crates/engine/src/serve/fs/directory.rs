//! What is in a folder.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use smb::fscc::Entry;
use smb::{NtStatus, name as names};

use super::errno::status;
use super::facts::{At, file_type, stat, stat_at};
use super::{Handle, Links, Share, Want};

/// Bytes that one `getdents64(2)` may give: some 1,000 entries.
const BATCH: usize = 32 << 10;

/// One enumeration of a folder: "." and ".." first, then entries in the order of the file system. Entries that
/// come or go meanwhile may be seen or not; no other is seen twice or missed.
#[derive(Debug)]
pub struct Directory {
    share: Share,
    fd: OwnedFd,
    /// From the root, as on disk.
    path: Vec<u8>,
    buffer: Vec<u8>,
    /// The names of one batch, one after the other.
    names: Vec<u8>,
    batch: Vec<Listed>,
    /// The next one of the batch.
    at: usize,
    /// How many of "." and ".." have been given.
    dots: usize,
    ended: bool,
    /// Whether the last entry given was "." or "..".
    last_dot: bool,
}

#[derive(Clone, Copy, Debug)]
struct Listed {
    end: usize,
    kind: FileType,
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
        Ok(Self {
            share: handle.of_share().clone(),
            fd,
            path: handle.place().path.clone(),
            buffer: Vec::new(),
            names: Vec::new(),
            batch: Vec::new(),
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
        rustix::fs::seek(&self.fd, SeekFrom::Start(0)).map_err(status)?;
        self.batch.clear();
        self.names.clear();
        (self.at, self.dots, self.ended) = (0, 0, false);
        Ok(())
    }

    /// The next entry whose name `matches`, written to `entry`; `false` at the end. Names that do not match
    /// cost no system call.
    ///
    /// # Errors
    ///
    /// What `getdents(2)` says. An entry that is gone meanwhile is passed over.
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
                entry.facts = self.dot_facts(name)?;
                self.last_dot = true;
                return Ok(true);
            }
        }
        self.last_dot = false;
        loop {
            if self.at == self.batch.len() && !self.fill()? {
                return Ok(false);
            }
            let start = self.at.checked_sub(1).map_or(0, |before| self.batch[before].end);
            let listed = self.batch[self.at];
            self.at += 1;
            let name = &self.names[start..listed.end];
            entry.name.clear();
            entry.name.push_str(&names::from_unix(name));
            if !matches(&entry.name) {
                continue;
            }
            if let Some(facts) = self.entry_facts(name, listed.kind)? {
                entry.facts = facts;
                return Ok(true);
            }
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
            return Ok(Some(Entry { facts: self.dot_facts(name)?, name: name.to_owned() }));
        }
        let exact = names::to_unix(name).into_owned();
        if super::lookup::check_name(&exact).is_err() {
            return Ok(None);
        }
        let mut found = Some(exact);
        if let Some(exact) = &found
            && let Err(Errno::NOENT) = stat_at(&self.fd, exact)
        {
            found = self.share.0.name_in(&self.fd, name)?;
        }
        let Some(found) = found else { return Ok(None) };
        let Some(facts) = self.entry_facts(&found, FileType::Unknown)? else { return Ok(None) };
        Ok(Some(Entry { facts, name: names::from_unix(&found).into_owned() }))
    }

    /// Reads a batch of names; `false` at the end.
    fn fill(&mut self) -> Result<bool, NtStatus> {
        self.batch.clear();
        self.names.clear();
        self.at = 0;
        if self.ended {
            return Ok(false);
        }
        self.buffer.clear();
        self.buffer.reserve(BATCH);
        let mut entries = RawDir::new(&self.fd, self.buffer.spare_capacity_mut());
        loop {
            let entry = match entries.next() {
                // The folder has been removed meanwhile.
                None | Some(Err(Errno::NOENT)) => {
                    self.ended = true;
                    break;
                }
                Some(entry) => entry.map_err(status)?,
            };
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                self.names.extend_from_slice(name);
                self.batch.push(Listed { end: self.names.len(), kind: entry.file_type() });
            }
            // The next look would be the next system call.
            if entries.is_buffer_empty() && !self.batch.is_empty() {
                break;
            }
        }
        Ok(!self.batch.is_empty())
    }

    /// One `statx(2)`, and the extended attributes if they are not remembered. `None`: gone, or not shown.
    fn entry_facts(
        &self,
        name: &[u8],
        kind: FileType,
    ) -> Result<Option<smb::fscc::Facts>, NtStatus> {
        let inner = &self.share.0;
        if kind != FileType::Symlink {
            let stat = match stat_at(&self.fd, name) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(status(errno)),
            };
            if file_type(&stat) != FileType::Symlink {
                return inner.facts(&stat, &At::Entry(self.fd.as_fd(), name), name).map(Some);
            }
        }
        let mut path = self.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        // What cannot be opened is not shown: a link that leads nowhere or outside, or any if they are refused.
        match inner.config.links {
            Links::Refuse => Ok(None),
            Links::Client => match stat_at(&self.fd, name) {
                Ok(stat) => inner.facts(&stat, &At::Entry(self.fd.as_fd(), name), name).map(Some),
                Err(_) => Ok(None),
            },
            Links::Follow => {
                let Ok(fd) = inner.open_at(&path, Want::default()) else { return Ok(None) };
                let stat = stat(&fd).map_err(status)?;
                inner.facts(&stat, &At::File(fd.as_fd()), name).map(Some)
            }
        }
    }

    fn dot_facts(&self, name: &str) -> Result<smb::fscc::Facts, NtStatus> {
        let inner = &self.share.0;
        // Above the root there is nothing to be seen.
        let name = if self.path.is_empty() { "." } else { name };
        let at = At::Entry(self.fd.as_fd(), name.as_bytes());
        inner.facts(&stat_at(&self.fd, name.as_bytes()).map_err(status)?, &at, name.as_bytes())
    }
}

//! Change notification: who hears of what (MS-SMB2 3.3.5.19, MS-FSA 2.1.5.11, MS-FSCC 2.7.1).
//!
//! A share has one [`Watchers`]. Whoever changes something says so with an [`Event`]; what matches is kept for
//! each watch until its client fetches it. Paths are relative to the share, with `\` between the names, in
//! whatever case; the share's root is the empty path. Clients see names in the case in which they are told here.

mod event;
mod pending;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::key::OpenId;
use crate::NtStatus;
pub use crate::fscc::Action;
use crate::name::fold;
pub use event::{Event, NotifyFilter};
use pending::Pending;
pub use pending::{Changes, Entry, Room};

/// How many watches a share has at most, and what they keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifyLimits {
    /// Directories watched, each for each of its opens.
    pub watches: usize,
    /// Bytes on the wire that are kept for one watch, whatever its client allows.
    pub buffer: usize,
}

impl Default for NotifyLimits {
    fn default() -> Self {
        Self { watches: 1 << 16, buffer: 1 << 16 }
    }
}

#[derive(Debug)]
struct Watch<R> {
    open: OpenId,
    /// As it was said.
    directory: Box<str>,
    filter: NotifyFilter,
    recursive: bool,
    pending: Pending<R>,
}

/// The watches of a share, each with [`Room`] of its own.
#[derive(Debug)]
pub struct Watchers<R> {
    /// By folded path.
    directories: HashMap<Box<str>, Vec<Watch<R>>>,
    /// Under which of these paths an open is.
    paths: HashMap<OpenId, Box<str>>,
    /// How many of them look below their directory.
    recursive: usize,
    limits: NotifyLimits,
}

impl<R: Room> Watchers<R> {
    /// Nobody watches.
    #[must_use]
    pub fn new(limits: NotifyLimits) -> Self {
        Self { directories: HashMap::new(), paths: HashMap::new(), recursive: 0, limits }
    }

    /// Whether nobody watches: events need not be made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// How many watches there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// The first CHANGE_NOTIFY of an open says what it watches, for as long as it is open; what later ones say
    /// about it is ignored. `buffer` is the length of answer that the client allows, which is also as much as
    /// is kept for it, if there is `room`. Returns whether the watch is new.
    ///
    /// # Errors
    /// INSUFFICIENT_RESOURCES if there are too many.
    pub fn watch(
        &mut self,
        open: OpenId,
        directory: &str,
        filter: NotifyFilter,
        recursive: bool,
        buffer: usize,
        room: R,
    ) -> Result<bool, NtStatus> {
        if self.paths.contains_key(&open) {
            return Ok(false);
        }
        if self.paths.len() >= self.limits.watches {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        let pending = Pending::new(buffer.min(self.limits.buffer), room);
        let folded: Box<str> = fold(directory).into();
        let watch = Watch { open, directory: directory.into(), filter, recursive, pending };
        self.directories.entry(folded.clone()).or_default().push(watch);
        self.paths.insert(open, folded);
        self.recursive += usize::from(recursive);
        Ok(true)
    }

    /// The open is closed: answer what it waits for with NOTIFY_CLEANUP.
    pub fn unwatch(&mut self, open: OpenId) {
        let Some(path) = self.paths.remove(&open) else { return };
        let Some(watches) = self.directories.get_mut(&path) else { return };
        if let Some(at) = watches.iter().position(|w| w.open == open) {
            self.recursive -= usize::from(watches.swap_remove(at).recursive);
        }
        if watches.is_empty() {
            self.directories.remove(&path);
        }
    }

    /// `found` hears of each open that watches this directory itself.
    pub fn each_of(&self, directory: &str, found: &mut dyn FnMut(OpenId)) {
        self.directories
            .get(&*fold(directory))
            .into_iter()
            .flatten()
            .for_each(|watch| found(watch.open));
    }

    /// Something happened. `ready` hears of each open that has something to fetch now, once.
    pub fn event(&mut self, event: &Event<'_>, ready: &mut dyn FnMut(OpenId)) {
        if self.directories.is_empty() {
            return;
        }
        event.each(&mut |action, filter, path| self.tell(action, filter, path, ready));
    }

    fn tell(
        &mut self,
        action: Action,
        filter: NotifyFilter,
        path: &str,
        ready: &mut dyn FnMut(OpenId),
    ) {
        // From the directory that the name is in up to the root; beyond the first only if somebody looks
        // that deep.
        let mut below = path;
        let mut direct = true;
        while !below.is_empty() {
            let directory = below.rsplit_once('\\').map_or("", |(directory, _)| directory);
            if let Some(watches) = self.directories.get_mut(&*fold(directory)) {
                let skip = if directory.is_empty() { 0 } else { directory.len() + 1 };
                let name = path.get(skip..).unwrap_or(path);
                for watch in watches.iter_mut().filter(|w| direct || w.recursive) {
                    if watch.filter.intersects(filter) && watch.pending.push(action, name) {
                        ready(watch.open);
                    }
                }
            }
            if self.recursive == 0 {
                return;
            }
            below = directory;
            direct = false;
        }
    }

    /// Something happened that one watch alone is told of. The paths are seen from its directory.
    pub fn event_for(&mut self, open: OpenId, event: &Event<'_>, ready: &mut dyn FnMut(OpenId)) {
        let Some(watch) = self.find(open) else { return };
        event.each(&mut |action, filter, path| {
            let sees = watch.recursive || !path.contains('\\');
            if sees && watch.filter.intersects(filter) && watch.pending.push(action, path) {
                ready(open);
            }
        });
    }

    /// One watch has lost track: its client looks for itself.
    pub fn overflow_of(&mut self, open: OpenId, ready: &mut dyn FnMut(OpenId)) {
        if self.find(open).is_some_and(|watch| watch.pending.overflow()) {
            ready(open);
        }
    }

    /// The directory that an open watches, as it is called now.
    pub fn directory_of(&mut self, open: OpenId) -> Option<&str> {
        self.find(open).map(|watch| &*watch.directory)
    }

    fn find(&mut self, open: OpenId) -> Option<&mut Watch<R>> {
        let watches = self.directories.get_mut(self.paths.get(&open)?)?;
        watches.iter_mut().find(|watch| watch.open == open)
    }

    /// Something happened that nobody can say precisely: everybody who watches looks for himself.
    pub fn overflow(&mut self, ready: &mut dyn FnMut(OpenId)) {
        for watch in self.directories.values_mut().flatten() {
            if watch.pending.overflow() {
                ready(watch.open);
            }
        }
    }

    /// What a watch has for an answer of at most `room` bytes. `None`: nothing yet, or no such watch. A request
    /// asks for it first, and waits only if there is nothing. What has no room is not kept for the next.
    pub fn fetch(&mut self, open: OpenId, room: usize) -> Option<Changes> {
        self.find(open)?.pending.fetch(room)
    }

    /// A directory has another name now: what is watched in it and below goes with it.
    pub fn moved(&mut self, old: &str, new: &str) {
        let (from, to) = (fold(old), fold(new));
        let within = |path: &str| {
            path.strip_prefix(&*from).is_some_and(|rest| rest.is_empty() || rest.starts_with('\\'))
        };
        if from.is_empty() || old == new {
            return;
        }
        let moved: Vec<Box<str>> =
            self.directories.keys().filter(|path| within(path)).cloned().collect();
        for path in moved {
            let Some(mut watches) = self.directories.remove(&path) else { continue };
            let name: Box<str> = format!("{to}{}", path.get(from.len()..).unwrap_or("")).into();
            for watch in &mut watches {
                self.paths.insert(watch.open, name.clone());
                // Folding may change how many bytes a name has, but not how many names there are.
                let below = watch.directory.split('\\').skip(old.split('\\').count());
                let directory = std::iter::once(new).chain(below).collect::<Vec<_>>().join("\\");
                watch.directory = directory.into();
            }
            self.directories.entry(name).or_default().append(&mut watches);
        }
    }
}

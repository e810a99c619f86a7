//! What a watch has not been fetched of yet.

use crate::fscc::Action;

/// A FILE_NOTIFY_INFORMATION (MS-FSCC 2.7.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What happened.
    pub action: Action,
    /// To what, seen from the directory that is watched.
    pub name: Box<str>,
}

impl Entry {
    /// The bytes that it takes on the wire when another one follows it.
    fn len(&self) -> usize {
        wire_len(&self.name).next_multiple_of(4)
    }
}

fn wire_len(name: &str) -> usize {
    12 + 2 * name.encode_utf16().count()
}

/// What is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// These, oldest first; never none.
    Entries(Vec<Entry>),
    /// More than there was room for: NOTIFY_ENUM_DIR.
    Overflow,
}

/// Memory for what is kept of a watch, of which others have some, too. What was taken is given back by a drop as well.
pub trait Room {
    /// Takes so many bytes more. `false`: they are not to be had.
    fn take(&mut self, bytes: usize) -> bool;

    /// Gives all of it back.
    fn give_back(&mut self);
}

/// As much as anybody likes.
impl Room for () {
    fn take(&mut self, _: usize) -> bool {
        true
    }

    fn give_back(&mut self) {}
}

/// What an allocator has to itself for each name, about.
const ALLOCATION: usize = 16;

#[derive(Debug)]
pub(super) struct Pending<R> {
    entries: Vec<Entry>,
    /// What the entries take on the wire.
    bytes: usize,
    limit: usize,
    overflow: bool,
    /// What they take here.
    room: R,
}

impl<R: Room> Pending<R> {
    pub(super) fn new(limit: usize, room: R) -> Self {
        Self { entries: Vec::new(), bytes: 0, limit, overflow: false, room }
    }

    /// Adds an entry. Returns whether there was nothing before.
    pub(super) fn push(&mut self, action: Action, name: &str) -> bool {
        if self.overflow {
            return false;
        }
        let first = self.entries.is_empty();
        // Twice the same in a row says no more than once.
        if self.entries.last().is_some_and(|e| e.action == action && *e.name == *name) {
            return false;
        }
        // A vector would do the same, and say so when it is done.
        let full = self.entries.len() == self.entries.capacity();
        let more = if full { self.entries.len().max(1) } else { 0 };
        let takes = more * size_of::<Entry>() + name.len() + ALLOCATION;
        if self.bytes + wire_len(name) > self.limit || !self.room.take(takes) {
            self.overflow();
            return first;
        }
        self.entries.reserve_exact(more);
        let entry = Entry { action, name: name.into() };
        self.bytes += entry.len();
        self.entries.push(entry);
        first
    }

    /// What was kept is not enough any more. Returns whether there was nothing before.
    pub(super) fn overflow(&mut self) -> bool {
        let first = self.entries.is_empty() && !self.overflow;
        self.entries = Vec::new();
        self.room.give_back();
        self.bytes = 0;
        self.overflow = true;
        first
    }

    pub(super) fn fetch(&mut self, room: usize) -> Option<Changes> {
        let last = self.entries.last().map_or(0, |e| e.len() - wire_len(&e.name));
        let fits = self.bytes - last <= room;
        self.bytes = 0;
        let entries = std::mem::take(&mut self.entries);
        self.room.give_back();
        if std::mem::take(&mut self.overflow) || (!entries.is_empty() && !fits) {
            return Some(Changes::Overflow);
        }
        (!entries.is_empty()).then_some(Changes::Entries(entries))
    }
}

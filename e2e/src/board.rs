//! The board as a file, read (and, by the hostile guest, written) without taking part.
//!
//! Offsets come from the layout in `sys::abi`, so a change there changes them here.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sys::abi::{
    DATA_AT, EXTENT_BYTES, EXTENTS, HALF_BYTES, Half, Header, OWNER_HALVES, OWNERS_AT, REASONS,
    SLOTS, SLOTS_AT, Slot, half_state, slot_state,
};

/// A board that somebody else keeps.
#[derive(Debug)]
pub struct Board {
    file: File,
}

/// A process on the board.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its slot.
    pub slot: u32,
    /// Whether the slot is taken.
    pub live: bool,
    /// Its process id.
    pub pid: u32,
    /// Its program.
    pub comm: String,
    /// Bytes of the data region that it has taken.
    pub owned: u64,
    /// Connections ever attached.
    pub attached: u64,
    /// Connections closed after they were attached.
    pub closed: u64,
    /// Connections that stayed on TCP, by reason.
    pub reasons: Vec<u32>,
}

impl Board {
    /// The only board in `dir`, if one was made yet.
    ///
    /// # Errors
    ///
    /// When the file is there and cannot be opened.
    pub fn find(dir: &Path, write: bool) -> io::Result<Option<Self>> {
        let Ok(entries) = std::fs::read_dir(dir) else { return Ok(None) };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with("board") {
                let file = File::options().read(true).write(write).open(entry.path())?;
                return Ok(Some(Self { file }));
            }
        }
        Ok(None)
    }

    /// Bytes at an offset; zero where the file has none.
    #[must_use]
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; len];
        // A short read is a board that is being made: zeroes say "nothing there".
        let _ = self.file.read_exact_at(&mut bytes, at as u64);
        bytes
    }

    /// A 32-bit word.
    #[must_use]
    pub fn word32(&self, at: usize) -> u32 {
        let mut word = [0u8; 4];
        word.copy_from_slice(&self.bytes(at, 4));
        u32::from_le_bytes(word)
    }

    /// A 64-bit word.
    #[must_use]
    pub fn word64(&self, at: usize) -> u64 {
        let mut word = [0u8; 8];
        word.copy_from_slice(&self.bytes(at, 8));
        u64::from_le_bytes(word)
    }

    /// Overwrites bytes: for the hostile guest.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn scribble(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at as u64)
    }

    /// Each process that has or had a slot.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        let used = self.word32(offset_of!(Header, slots_used)) as usize;
        (0..used.min(SLOTS)).map(|slot| self.process(slot)).collect()
    }

    fn process(&self, slot: usize) -> Process {
        let at = SLOTS_AT + slot * size_of::<Slot>();
        let comm = self.bytes(at + offset_of!(Slot, comm), 16);
        let end = comm.iter().position(|b| *b == 0).unwrap_or(16);
        Process {
            slot: u32::try_from(slot).unwrap_or(u32::MAX),
            live: self.word32(at + offset_of!(Slot, state)) == slot_state::LIVE,
            pid: self.word32(at + offset_of!(Slot, pid)),
            comm: String::from_utf8_lossy(&comm[..end]).into_owned(),
            owned: self.word64(at + offset_of!(Slot, bytes_owned)),
            attached: self.word64(at + offset_of!(Slot, attached)),
            closed: self.word64(at + offset_of!(Slot, closed)),
            reasons: (0..REASONS)
                .map(|r| self.word32(at + offset_of!(Slot, reasons) + r * 4))
                .collect(),
        }
    }

    /// How often the process `pid` attached a connection, in all its slots.
    #[must_use]
    pub fn attached_by(&self, pid: i32) -> u64 {
        let mine = |p: &&Process| i64::from(p.pid) == i64::from(pid);
        self.processes().iter().filter(mine).map(|p| p.attached).sum()
    }

    /// How often processes whose program's name starts so attached a connection.
    #[must_use]
    pub fn attached_by_program(&self, name: &str) -> u64 {
        let theirs = |p: &&Process| p.comm.starts_with(name);
        self.processes().iter().filter(theirs).map(|p| p.attached).sum()
    }

    /// Offsets of the attached halves of slot `slot`.
    #[must_use]
    pub fn halves_of(&self, slot: u32) -> Vec<usize> {
        self.halves_that_are(half_state::ATTACHED, slot)
    }

    /// Offsets of the halves of slot `slot` that are offered, and not taken yet.
    #[must_use]
    pub fn offers_of(&self, slot: u32) -> Vec<usize> {
        self.halves_that_are(half_state::OFFERED, slot)
    }

    fn halves_that_are(&self, state: u32, slot: u32) -> Vec<usize> {
        let mut found = Vec::new();
        let used = self.word32(offset_of!(Header, extents_used)) as usize;
        for extent in DATA_AT / EXTENT_BYTES..used.min(EXTENTS) {
            if self.word32(OWNERS_AT + extent * 4) == (slot + 1) | OWNER_HALVES {
                self.halves_in(extent * EXTENT_BYTES, state, slot, &mut found);
            }
        }
        found
    }

    /// Rings look like halves only by chance, and not in all these words.
    fn halves_in(&self, base: usize, state: u32, slot: u32, found: &mut Vec<usize>) {
        let all = self.bytes(base, EXTENT_BYTES);
        for at in (0..EXTENT_BYTES).step_by(HALF_BYTES) {
            let word = |field: usize| {
                let mut word = [0u8; 4];
                word.copy_from_slice(&all[at + field..at + field + 4]);
                u32::from_le_bytes(word)
            };
            let attached = state == half_state::ATTACHED;
            if word(offset_of!(Half, state)) == state
                && word(offset_of!(Half, slot)) == slot
                && word(offset_of!(Half, client)) <= 1
                && (word(offset_of!(Half, peer)) != 0) == attached
            {
                found.push(base + at);
            }
        }
    }

    /// One line for each process: what a failing test shows.
    #[must_use]
    pub fn summary(&self) -> String {
        let line = |p: Process| {
            let reasons: Vec<String> = p
                .reasons
                .iter()
                .enumerate()
                .filter(|(_, n)| **n > 0)
                .map(|(r, n)| format!("reason {r}: {n}"))
                .collect();
            format!(
                "slot {} pid {} {} live={} attached={} closed={} {}\n",
                p.slot,
                p.pid,
                p.comm,
                p.live,
                p.attached,
                p.closed,
                reasons.join(", ")
            )
        };
        self.processes().into_iter().map(line).collect()
    }
}

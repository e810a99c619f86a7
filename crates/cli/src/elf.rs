//! What an ELF file says about itself, read with bounds: it may be truncated, corrupt or huge.
//!
//! Only what decides whether the preload library can be loaded and can see the program's calls:
//! for which machine it is, which dynamic loader it names, whether Go's linker made it, and which
//! libraries it asks for. Little of the file is read, at offsets that were checked.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// `e_machine` of the machine that this program was built for.
pub(crate) const OUR_MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else if cfg!(target_arch = "aarch64") {
    183
} else {
    0
};

const SEGMENTS_MAX: u16 = 512;
const SECTIONS_MAX: u16 = 4096;
const NOTES_BYTES_MAX: u64 = 64 << 10;
const DYNAMIC_BYTES_MAX: u64 = 64 << 10;
const NAME_BYTES_MAX: usize = 4096;

/// Bytes at an offset: a file, or a slice in tests.
pub(crate) trait Bytes {
    /// Up to `len` bytes at `offset`; fewer where the file ends, none where it cannot be read.
    fn at(&self, offset: u64, len: usize) -> Vec<u8>;
}

impl Bytes for File {
    fn at(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            match self.read_at(&mut bytes[filled..], offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        bytes.truncate(filled);
        bytes
    }
}

impl Bytes for &[u8] {
    fn at(&self, offset: u64, len: usize) -> Vec<u8> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        self[start..start.saturating_add(len).min(self.len())].to_vec()
    }
}

/// Why a file is not a program that the kernel would load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadElf {
    /// It does not start as ELF does.
    NotElf,
    /// It may be run by us, and not read.
    Closed,
    /// It ends before what its head announces, or announces nonsense.
    Broken(&'static str),
}

impl std::fmt::Display for BadElf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotElf => f.write_str("not an ELF file"),
            Self::Closed => f.write_str("it may be run by you, and not read"),
            Self::Broken(what) => write!(f, "truncated or corrupt ELF file: {what}"),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Elf {
    /// For a machine or word size other than ours: nothing more was read.
    Foreign {
        /// 32 or 64.
        bits: u8,
        /// `e_machine`.
        machine: u16,
    },
    /// For our machine.
    Native(Native),
}

/// An ELF file for our machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Native {
    /// `ET_EXEC` or `ET_DYN`: a program or a shared library.
    pub(crate) loadable: bool,
    /// The dynamic loader that it names; none if it is statically linked (or a library).
    pub(crate) interpreter: Option<String>,
    /// Made by Go's linker.
    pub(crate) go: bool,
    /// Libraries that it asks for by name.
    pub(crate) needed: Vec<String>,
}

impl Native {
    /// Whether its C library is musl.
    pub(crate) fn is_musl(&self) -> bool {
        self.interpreter.as_deref().is_some_and(|path| base_name(path).starts_with("ld-musl"))
            || self.needed.iter().any(|name| name.starts_with("libc.musl"))
    }

    /// The io_uring library that it asks for.
    pub(crate) fn uring(&self) -> Option<&str> {
        self.needed.iter().map(String::as_str).find(|name| name.starts_with("liburing"))
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The name of a machine, for people.
pub(crate) fn machine_name(machine: u16) -> String {
    match machine {
        3 => "x86 (32 bits)".into(),
        8 => "MIPS".into(),
        20 | 21 => "PowerPC".into(),
        22 => "s390".into(),
        40 => "ARM (32 bits)".into(),
        62 => "x86-64".into(),
        183 => "AArch64".into(),
        243 => "RISC-V".into(),
        258 => "LoongArch".into(),
        other => format!("machine {other}"),
    }
}

/// A file offset and a length, as the file claims them.
#[derive(Clone, Copy)]
struct Extent {
    offset: u64,
    len: u64,
}

struct Segment {
    kind: u32,
    file: Extent,
    address: u64,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}
fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    word(bytes, at).map(u16::from_ne_bytes)
}
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    word(bytes, at).map(u32::from_ne_bytes)
}
fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    word(bytes, at).map(u64::from_ne_bytes)
}

/// Reads what matters of an ELF file.
pub(crate) fn parse(file: &impl Bytes) -> Result<Elf, BadElf> {
    let head = file.at(0, 64);
    if !head.starts_with(b"\x7fELF") {
        return Err(BadElf::NotElf);
    }
    let short = BadElf::Broken("the header is cut short");
    let (Some(&class), Some(&order)) = (head.get(4), head.get(5)) else {
        return Err(short);
    };
    let raw_machine = word::<2>(&head, 18).ok_or(short)?;
    let machine = match order {
        1 => u16::from_le_bytes(raw_machine),
        2 => u16::from_be_bytes(raw_machine),
        _ => return Err(BadElf::Broken("neither little nor big endian")),
    };
    let bits = match class {
        1 => 32,
        2 => 64,
        _ => return Err(BadElf::Broken("neither 32 nor 64 bits")),
    };
    let our_order = if cfg!(target_endian = "little") { 1 } else { 2 };
    if bits != 64 || order != our_order || machine != OUR_MACHINE {
        return Ok(Elf::Foreign { bits, machine });
    }
    if head.len() < 64 {
        return Err(short);
    }
    native(file, &head).map(Elf::Native)
}

fn native(file: &impl Bytes, head: &[u8]) -> Result<Native, BadElf> {
    let loadable = matches!(u16_at(head, 16), Some(2 | 3));
    let segments = segments(file, head)?;
    let one = |kind| segments.iter().find(|s: &&Segment| s.kind == kind);
    let interpreter = one(PT_INTERP).map(|s| interpreter(file, s.file)).transpose()?;
    let go = segments.iter().any(|s| s.kind == PT_NOTE && has_go_note(file, s.file))
        || has_go_section(file, head);
    let needed = one(PT_DYNAMIC).map(|s| needed(file, s.file, &segments)).unwrap_or_default();
    Ok(Native { loadable, interpreter, go, needed })
}

fn segments(file: &impl Bytes, head: &[u8]) -> Result<Vec<Segment>, BadElf> {
    const ENTRY_BYTES: u16 = 56;
    let broken = BadElf::Broken("the program headers are not in the file");
    let offset = u64_at(head, 32).ok_or(broken)?;
    let entry_bytes = u16_at(head, 54).ok_or(broken)?;
    let count = u16_at(head, 56).ok_or(broken)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    if entry_bytes != ENTRY_BYTES || count > SEGMENTS_MAX {
        return Err(BadElf::Broken("the program headers have a strange size"));
    }
    let table = file.at(offset, usize::from(count) * usize::from(ENTRY_BYTES));
    if table.len() != usize::from(count) * usize::from(ENTRY_BYTES) {
        return Err(broken);
    }
    let segment = |e: &[u8]| {
        let file = Extent { offset: u64_at(e, 8)?, len: u64_at(e, 32)? };
        Some(Segment { kind: u32_at(e, 0)?, file, address: u64_at(e, 16)? })
    };
    Ok(table.chunks_exact(usize::from(ENTRY_BYTES)).filter_map(segment).collect())
}

fn interpreter(file: &impl Bytes, at: Extent) -> Result<String, BadElf> {
    let broken = BadElf::Broken("the name of the dynamic loader is not in the file");
    let len = usize::try_from(at.len).ok().filter(|n| (2..=NAME_BYTES_MAX).contains(n));
    let bytes = file.at(at.offset, len.ok_or(broken)?);
    let end = bytes.iter().position(|b| *b == 0).ok_or(broken)?;
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Whether the notes there have one with the owner `Go`: its build id.
fn has_go_note(file: &impl Bytes, at: Extent) -> bool {
    let notes = file.at(at.offset, at.len.min(NOTES_BYTES_MAX) as usize);
    let mut rest = notes.as_slice();
    while let (Some(name_len), Some(desc_len)) = (u32_at(rest, 0), u32_at(rest, 4)) {
        let (name_len, desc_len) = (name_len as usize, desc_len as usize);
        if rest.get(12..12 + name_len.min(8)).is_some_and(|name| name == b"Go\0\0") {
            return true;
        }
        let next = 12usize
            .saturating_add(name_len.saturating_add(3) & !3)
            .saturating_add(desc_len.saturating_add(3) & !3);
        let Some(after) = rest.get(next..) else { return false };
        rest = after;
    }
    false
}

fn has_go_section(file: &impl Bytes, head: &[u8]) -> bool {
    let names = || -> Option<bool> {
        let offset = u64_at(head, 40)?;
        let entry = usize::from(u16_at(head, 58)?);
        let count = u16_at(head, 60)?;
        let names_index = u16_at(head, 62)?;
        if entry != 64 || count > SECTIONS_MAX || names_index >= count {
            return None;
        }
        let table = file.at(offset, usize::from(count) * entry);
        let of_names = table.get(usize::from(names_index) * entry..)?;
        let (names_at, names_len) = (u64_at(of_names, 24)?, u64_at(of_names, 32)?);
        let names = file.at(names_at, usize::try_from(names_len).ok()?.min(1 << 20));
        let is_go = |section: &[u8]| {
            let name = names.get(u32_at(section, 0).unwrap_or(u32::MAX) as usize..);
            name.is_some_and(|n| {
                n.starts_with(b".note.go.buildid\0") || n.starts_with(b".go.buildinfo\0")
            })
        };
        Some(table.chunks_exact(entry).any(is_go))
    };
    names().unwrap_or(false)
}

const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// `DT_NEEDED` names; what cannot be read is left out.
fn needed(file: &impl Bytes, at: Extent, segments: &[Segment]) -> Vec<String> {
    let dynamic = file.at(at.offset, at.len.min(DYNAMIC_BYTES_MAX) as usize);
    let entries: Vec<(u64, u64)> = dynamic
        .chunks_exact(16)
        .filter_map(|e| Some((u64_at(e, 0)?, u64_at(e, 8)?)))
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB);
    let Some(strings) = strings.and_then(|(_, address)| file_offset(*address, segments)) else {
        return Vec::new();
    };
    let names = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
    names.filter_map(|(_, at)| name_at(file, strings.checked_add(*at)?)).collect()
}

/// Where in the file the byte with that address is.
fn file_offset(address: u64, segments: &[Segment]) -> Option<u64> {
    let holds = |s: &&Segment| {
        s.kind == PT_LOAD && address.checked_sub(s.address).is_some_and(|n| n < s.file.len)
    };
    let segment = segments.iter().find(holds)?;
    segment.file.offset.checked_add(address - segment.address)
}

fn name_at(file: &impl Bytes, offset: u64) -> Option<String> {
    let bytes = file.at(offset, 256);
    let end = bytes.iter().position(|b| *b == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests;

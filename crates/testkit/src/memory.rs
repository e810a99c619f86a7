//! How much memory a process, and the files that it shares, take.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

/// Memory of a process that it shares with nobody, and what maps it all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Private pages, bytes. Shared files are not in it: see [`files`].
    pub anonymous: u64,
    /// Page tables, bytes.
    pub page_tables: u64,
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim_start_matches(':').trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Memory of process `pid` now.
///
/// # Errors
///
/// When the process is gone or belongs to somebody else.
pub fn of(pid: u32) -> io::Result<Taken> {
    let missing = |what: &str| io::Error::other(format!("/proc/{pid} does not say {what}"));
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(Taken {
        anonymous: field(&rollup, "Anonymous").ok_or_else(|| missing("Anonymous"))?,
        page_tables: field(&status, "VmPTE").ok_or_else(|| missing("VmPTE"))?,
    })
}

/// Bytes that the files directly in `dir` occupy (holes do not count); 0 if there is no `dir`.
///
/// # Errors
///
/// When the directory may not be read.
pub fn files(dir: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut bytes = 0;
    for entry in entries {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{field, files, of};

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "VmPTE:\t     132 kB\nAnonymous:           84 kB\n";
        assert_eq!(field(text, "VmPTE"), Some(132 << 10));
        assert_eq!(field(text, "Anonymous"), Some(84 << 10));
        assert_eq!(field(text, "VmSwap"), None);
    }

    #[test]
    fn touched_memory_is_seen() {
        let before = of(std::process::id()).unwrap();
        let touched = std::hint::black_box(vec![1_u8; 32 << 20]);
        let after = of(std::process::id()).unwrap();
        assert!(after.anonymous >= before.anonymous + (16 << 20), "{before:?} {after:?}");
        drop(touched);
    }

    #[test]
    fn a_directory_that_is_not_there_holds_nothing() {
        assert_eq!(files("/nonexistent/directory".as_ref()).unwrap(), 0);
    }
}

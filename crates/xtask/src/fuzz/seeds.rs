//! What turns have learnt, kept in the repository: for each target an archive of the fewest inputs that reach what its
//! whole corpus does. A turn anywhere begins with those, and not with nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// A file for each target.
pub(crate) const DIR: &str = "fuzz/seeds";
/// Bytes of all inputs of a target that are kept: the smallest ones. Each clone carries them, packed to about a sixth.
const BYTES_MAX: u64 = 512 << 10;

fn archive(root: &Path, target: &str) -> PathBuf {
    root.join(DIR).join(format!("{target}.tar.xz"))
}

/// Adds the seeds of a target to its corpus, if there are any.
///
/// # Errors
///
/// When the archive cannot be read, or the corpus not be written.
pub(crate) fn unpack(root: &Path, target: &str, corpus: &Path) -> anyhow::Result<()> {
    let archive = archive(root, target);
    if !archive.exists() {
        return Ok(());
    }
    let mut tar = Command::new("tar");
    tar.args(["--skip-old-files", "-xJf"]).arg(&archive).arg("-C").arg(corpus);
    finish(&mut tar).with_context(|| format!("cannot unpack {}", archive.display()))
}

/// Makes the archive of a target anew, of its corpus, in which what was in the archive is by now. `scratch`: a directory
/// that may be removed. Answers how many inputs are in it, and of how many the corpus was.
///
/// # Errors
///
/// When the target does not run, or a file cannot be read or written.
pub(crate) fn pack(
    root: &Path,
    (target, program): (&str, &Path),
    corpus: &Path,
    scratch: &Path,
) -> anyhow::Result<(usize, usize)> {
    if scratch.exists() {
        fs::remove_dir_all(scratch).with_context(|| scratch.display().to_string())?;
    }
    fs::create_dir_all(scratch).with_context(|| scratch.display().to_string())?;
    let mut merge = Command::new(program);
    merge.args(["-set_cover_merge=1", "-timeout=120", "-rss_limit_mb=4096"]);
    finish(merge.arg(scratch).arg(corpus)).with_context(|| format!("{target}: no merge"))?;
    let kept = keep_smallest(scratch, BYTES_MAX)?;
    let archive = archive(root, target);
    fs::create_dir_all(root.join(DIR))?;
    // The same inputs make the same file.
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    tar.args(["--mode=u=rwX,go=rX", "-cJf"]).arg(&archive).arg("-C").arg(scratch).arg(".");
    finish(&mut tar).with_context(|| format!("cannot write {}", archive.display()))?;
    Ok((kept, fs::read_dir(corpus)?.count()))
}

/// Removes the largest files of a directory until all have so many bytes at the most. Answers how many stay.
fn keep_smallest(dir: &Path, most: u64) -> anyhow::Result<usize> {
    let mut files = Vec::new();
    for file in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let file = file?;
        files.push((file.metadata()?.len(), file.path()));
    }
    files.sort();
    let mut all = 0;
    let fit = files.iter().take_while(|(bytes, _)| {
        all += bytes;
        all <= most
    });
    let kept = fit.count();
    for (_, path) in &files[kept..] {
        fs::remove_file(path).with_context(|| path.display().to_string())?;
    }
    Ok(kept)
}

/// Runs something, of whose words only those of a failure count.
fn finish(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].join("\n");
    ensure!(output.status.success(), "{}:\n{last}", output.status);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|file| file.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// By a target that merges as libFuzzer does, in that it copies what is worth it.
    #[test]
    fn what_was_learnt_is_there_again() {
        let root = std::env::temp_dir().join(format!("fuzz-seeds-{}", std::process::id()));
        let (corpus, scratch, again) =
            (root.join("corpus"), root.join("scratch"), root.join("again"));
        for dir in [&corpus, &again] {
            fs::create_dir_all(dir).unwrap();
        }
        let program = root.join("elf");
        fs::write(&program, "#!/bin/sh\nfor last; do from=$to; to=$last; done\ncp $to/* $from/\n")
            .unwrap();
        Command::new("chmod").arg("+x").arg(&program).status().unwrap();
        for (name, bytes) in [("a", 10), ("b", 300 << 10), ("c", 200 << 10), ("d", 100 << 10)] {
            fs::write(corpus.join(name), vec![b'x'; bytes]).unwrap();
        }
        unpack(&root, "elf", &corpus).unwrap();
        let pack = || pack(&root, ("elf", &program), &corpus, &scratch).unwrap();
        assert_eq!(pack(), (3, 4), "the largest is too much");
        let first = fs::read(archive(&root, "elf")).unwrap();
        fs::write(again.join("a"), b"mine").unwrap();
        unpack(&root, "elf", &again).unwrap();
        assert_eq!(names(&again), ["a", "c", "d"]);
        assert_eq!(fs::read(again.join("a")).unwrap(), b"mine");
        assert_eq!(fs::read(again.join("c")).unwrap().len(), 200 << 10);
        pack();
        assert!(
            fs::read(archive(&root, "elf")).unwrap() == first,
            "another file of the same inputs"
        );
        fs::write(archive(&root, "elf"), b"no archive").unwrap();
        assert!(unpack(&root, "elf", &again).is_err());
        fs::remove_dir_all(root).unwrap();
    }
}

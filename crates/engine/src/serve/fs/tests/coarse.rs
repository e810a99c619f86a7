//! File systems that know times by the second.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::XattrFlags;
use tempfile::TempDir;

use super::super::{Config, Share, xattr};
use super::{FILE, LOOK, create, open};

/// ext4 with inodes of 128 bytes, in a file.
struct Coarse(TempDir);

impl Coarse {
    /// `Err`: why there is none.
    fn mount() -> Result<Self, String> {
        let folder = TempDir::new().unwrap();
        let (image, root) = (folder.path().join("image"), folder.path().join("root"));
        std::fs::create_dir(&root).unwrap();
        std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        run("mkfs.ext4", &[Path::new("-qI"), Path::new("128"), &image])?;
        run("mount", &[Path::new("-oloop"), &image, &root])?;
        Ok(Self(folder))
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("root")
    }
}

impl Drop for Coarse {
    fn drop(&mut self) {
        run("umount", &[Path::new("-l"), &self.root()]).unwrap();
    }
}

fn run(program: &str, arguments: &[&Path]) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let done = Command::new(program).args(arguments).env("PATH", path).output();
    let done = done.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    if done.status.success() { Ok(()) } else { Err(format!("{program}: {said}")) }
}

/// A list of rights that is set just after the file was looked at counts at once, whoever has set it.
#[test]
fn what_changes_twice_in_a_second_is_seen() {
    let coarse = match Coarse::mount() {
        Ok(coarse) => coarse,
        Err(why) => return eprintln!("skipped: no ext4 with inodes of 128 bytes: {why}"),
    };
    let share = Share::new(Config::new(coarse.root(), "test")).unwrap();
    for n in 0..4 {
        let name = format!("file {n}");
        let file = create(&share, &name, FILE);
        // It is no new file any more, to a clock that is finer.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!open(&share, &name, LOOK).first_facts().secured);
        if n % 2 == 0 {
            file.set_security(Some(&[1])).unwrap();
        } else {
            let path = coarse.root().join(&name);
            rustix::fs::setxattr(path, xattr::SECURITY, &[1], XattrFlags::empty()).unwrap();
        }
        assert!(file.facts().unwrap().secured, "{name}");
        assert!(open(&share, &name, LOOK).first_facts().secured, "{name}");
    }
}

//! File systems of programs, mounted inside a share.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use smb::fscc::Entry;

use super::super::Directory;
use super::{READ, on_each, open};

/// A file system whose program answers nothing, until it ends.
struct Fuse {
    program: Option<OwnedFd>,
    root: PathBuf,
}

impl Fuse {
    /// `None`, said why, where none may be mounted.
    fn mount(root: &Path) -> Option<Self> {
        std::fs::create_dir(root).unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mounted = rustix::fs::open("/dev/fuse", flags, Mode::empty()).and_then(|program| {
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", program.as_raw_fd());
            let options = CString::new(options).unwrap();
            let flags = MountFlags::NODEV | MountFlags::NOSUID;
            rustix::mount::mount("test", root, "fuse", flags, options.as_c_str())?;
            Ok(program)
        });
        match mounted {
            Ok(program) => Some(Self { program: Some(program), root: root.to_owned() }),
            Err(errno) => {
                eprintln!("skipped: no FUSE: {errno}");
                None
            }
        }
    }

    /// Its program ends: all calls fail.
    fn die(&mut self) {
        self.program = None;
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.die();
        rustix::mount::unmount(&self.root, UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn what_cannot_be_looked_at_is_not_shown_and_hides_nothing_else() {
    on_each(|share, root| {
        for name in ["a", "b", "c"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        let Some(mut fuse) = Fuse::mount(&root.join("dead")) else { return };
        fuse.die();
        let mut folder = Directory::open(&open(share, "", READ)).unwrap();
        let mut entry = Entry::default();
        let mut seen = Vec::new();
        while folder.next(&mut |name| !name.starts_with('.'), &mut entry).unwrap() {
            seen.push(entry.name.clone());
        }
        seen.sort();
        assert_eq!(seen, ["a", "b", "c"]);
        assert_eq!(folder.find("dead").map(|found| found.is_some()), Ok(false));
    });
}

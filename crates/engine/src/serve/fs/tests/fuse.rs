//! File systems of programs, and others, mounted inside a share.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use smb::fscc::Entry;

use super::super::Directory;
use super::super::lookup::Waits;
use super::{BOTH, LOOK, READ, on_each, open, path};

/// How long a call may take that waits for nobody.
const PATIENCE: Duration = Duration::from_secs(20);

/// A file system whose program answers nothing, until it ends.
struct Fuse {
    program: Option<OwnedFd>,
    root: PathBuf,
}

impl Fuse {
    /// `None`, said why, where none may be mounted.
    fn mount(root: &Path) -> Option<Self> {
        std::fs::create_dir_all(root).unwrap();
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

/// What a call says that waits for nobody; it is not to wait for the program.
#[track_caller]
fn at_once<T: Send>(fuse: &mut Fuse, call: impl FnOnce() -> T + Send) -> T {
    let (done, answer) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || done.send(call()));
        answer.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            // Or it would wait for ever, and this for it.
            fuse.die();
            panic!("it waits for the program");
        })
    })
}

#[test]
fn what_a_program_is_asked_for_is_for_who_may_wait() {
    on_each(|share, root| {
        std::fs::write(root.join("file"), "").unwrap();
        let Some(mut fuse) = Fuse::mount(&root.join("mount")) else { return };
        let look = |name: &'static str, want, exact| {
            move || share.open_at_once(&path(name), want, exact, false).unwrap().is_none()
        };
        assert!(at_once(&mut fuse, look("mount", LOOK, false)));
        assert!(at_once(&mut fuse, look("mount", READ, true)));
        // Of what is in memory all names are taken to be.
        if share.0.waits == Waits::ForNames {
            for exact in [true, false] {
                assert!(at_once(&mut fuse, look("mount\\file", LOOK, exact)));
                assert!(at_once(&mut fuse, look("mount\\folder\\file", BOTH, exact)));
            }
        }
        assert!(!at_once(&mut fuse, look("file", BOTH, false)), "others are as they were");
        let listed = at_once(&mut fuse, || {
            let mut folder = Directory::open(&open(share, "", READ)).unwrap();
            let mut seen = names(&mut folder);
            seen.sort();
            (seen, folder.find("mount").unwrap().is_some_and(|entry| entry.facts.is_directory()))
        });
        assert_eq!(listed, (vec!["file".to_owned(), "mount".to_owned()], true));
    });
}

/// What was mounted there before had the same number, and was this host's.
#[test]
fn what_is_mounted_where_something_else_was_is_another_thing() {
    on_each(|share, root| {
        let at = root.join("mount");
        std::fs::create_dir(&at).unwrap();
        let device = || std::fs::metadata(&at).unwrap().dev();
        // Others mount things, too.
        for _ in 0..20 {
            let flags = MountFlags::NODEV | MountFlags::NOSUID;
            if let Err(errno) = rustix::mount::mount("test", &at, "tmpfs", flags, None) {
                return eprintln!("skipped: nothing may be mounted: {errno}");
            }
            let memory = open(share, "mount", READ);
            assert!(memory.is_in_memory().unwrap() && !memory.is_far());
            let before = device();
            drop(memory);
            rustix::mount::unmount(&at, UnmountFlags::DETACH).unwrap();
            let Some(mut fuse) = Fuse::mount(&at) else { return };
            let now = device_at_once(&at);
            let look = || share.open_at_once(&path("mount"), READ, false, false).unwrap().is_none();
            assert!(at_once(&mut fuse, look));
            if now == before {
                return;
            }
        }
        eprintln!("skipped: no number of a device was used again");
    });
}

/// A file system in memory, until this ends.
struct Memory(PathBuf);

impl Memory {
    /// `None`, said why, where none may be mounted.
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        match rustix::mount::mount("test", &at, "tmpfs", flags, None) {
            Ok(()) => Some(Self(at)),
            Err(errno) => {
                eprintln!("skipped: nothing may be mounted: {errno}");
                None
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

/// To clients a share is one volume: two files of one id are one file, which they read and write for the other.
#[test]
fn no_file_has_the_id_of_one_on_another_file_system() {
    on_each(|share, root| {
        let Some(_one) = Memory::mount(root.join("one")) else { return };
        let Some(_two) = Memory::mount(root.join("two")) else { return };
        for folder in ["one", "two", "."] {
            std::fs::write(root.join(folder).join("file"), folder).unwrap();
        }
        let facts = |name| open(share, name, LOOK).facts().unwrap();
        let [one, two, here] = ["one\\file", "two\\file", "file"].map(facts);
        assert_eq!(one.index, two.index, "as each counts from the start");
        assert_ne!(one.file_id, two.file_id);
        assert_eq!(here.file_id, here.index, "what the share's root is on keeps its numbers");
        // However clients learn of it.
        let listed = |folder, name| {
            let folder = Directory::open(&open(share, folder, READ)).unwrap();
            folder.find(name).unwrap().unwrap().facts.file_id
        };
        assert_eq!(listed("one", "file"), one.file_id);
        assert_eq!(listed("", "two"), facts("two").file_id);
        assert_eq!(listed("", "file"), here.file_id);
    });
}

/// A folder that clients opened, and knew to be one.
#[test]
fn what_is_mounted_over_a_folder_is_looked_at_before_it_is_opened() {
    on_each(|share, root| {
        let at = root.join("mount");
        std::fs::create_dir(&at).unwrap();
        for _ in 0..2 {
            drop(open(share, "mount", READ));
        }
        let Some(mut fuse) = Fuse::mount(&at) else { return };
        let look = || share.open_at_once(&path("mount"), READ, false, false).unwrap().is_none();
        assert!(at_once(&mut fuse, look));
    });
}

/// The number of the device, and its file system is not asked.
fn device_at_once(at: &Path) -> u64 {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(CWD, at, flags, StatxFlags::INO).unwrap();
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

fn names(folder: &mut Directory) -> Vec<String> {
    let (mut entry, mut seen) = (Entry::default(), Vec::new());
    while folder.next(&mut |name| !name.starts_with('.'), &mut entry).unwrap() {
        seen.push(entry.name.clone());
    }
    seen
}

#[test]
fn what_cannot_be_looked_at_hides_nothing_else() {
    on_each(|share, root| {
        for name in ["a", "b", "c"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        let Some(mut fuse) = Fuse::mount(&root.join("dead")) else { return };
        fuse.die();
        let mut folder = Directory::open(&open(share, "", READ)).unwrap();
        let mut seen = names(&mut folder);
        seen.retain(|name| name != "dead");
        seen.sort();
        assert_eq!(seen, ["a", "b", "c"]);
    });
}

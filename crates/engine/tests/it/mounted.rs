//! File systems of programs, mounted inside of a share.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use smb::wire::create;
use smb::wire::header::Command;
use smb::{CreateOptions, Guid, NtStatus};

use crate::client::{Client, Offer, request, utf16};
use crate::place::Place;

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

/// One of the users of a server with one loop waits for a program, and nobody else does.
#[test]
fn a_program_that_does_not_answer_keeps_others_of_its_share_from_nothing() {
    let disk = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = Place::with(|config| {
        config.vectors = 1;
        config.shares.iter_mut().for_each(|share| share.path = disk.path().to_owned());
    });
    std::fs::write(disk.path().join("file"), "other").unwrap();
    let Some(mut fuse) = Fuse::mount(&disk.path().join("mount")) else { return };
    let enter = |number, user| {
        let offer = Offer { guid: Guid([number; 16]), ..Offer::default() };
        Client::enter(place.address(), offer, user, "files")
    };
    let (mut alice, mut bob) = (enter(7, "alice"), enter(8, "bob"));
    for name in ["mount", "mount\\file", "mount\\folder\\new"] {
        let options = CreateOptions::empty();
        let name = utf16(name);
        let body = create::Request { options, ..Client::create_body(&name) };
        alice.send_one(request(Command::Create, &body));
    }
    let began = Instant::now();
    let file = bob.open("file");
    assert_eq!(bob.read(file, 0, 9).as_deref(), Ok(&b"other"[..]));
    assert!(began.elapsed() < Duration::from_secs(20), "bob has waited as well");
    fuse.die();
    for _ in 0..3 {
        assert_ne!(alice.receive_last().status(), NtStatus::SUCCESS);
    }
    drop(place);
}

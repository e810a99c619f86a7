//! Nothing outside the share is reached.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{RenameFlags, inotify, renameat_with};
use rustix::io::Errno;
use smb::NtStatus;
use smb::fscc::Entry;

use super::super::lookup::OPENED;
use super::super::{Directory, Links, Special};
use super::{
    BOTH, FILE, Found, LOOK, READ, Want, create, failure, on_each, on_each_with, open, path,
};

const LINK: Want = Want { read: false, write: false, link: true };

#[test]
fn links_are_followed_inside_and_nowhere_else() {
    on_each(|share, root| {
        let outside = root.parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("file"), "1").unwrap();
        symlink("../../file", root.join("a/b/in")).unwrap();
        symlink("../outside", root.join("up")).unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();

        assert_eq!(open(share, "a\\b\\in", BOTH).first_facts().size, 1);
        assert_eq!(open(share, "A\\B\\IN", BOTH).first_facts().size, 1);
        for name in
            ["up\\secret", "absolute\\secret", "UP\\secret", "Absolute\\secret", "magic\\etc"]
        {
            assert_eq!(failure(share, name), NtStatus::ACCESS_DENIED, "{name}");
        }
        assert_eq!(failure(share, "dangling"), NtStatus::OBJECT_NAME_NOT_FOUND);
        assert!(matches!(
            share.open(&path("dangling"), LOOK),
            Err(NtStatus::OBJECT_NAME_NOT_FOUND)
        ));

        let mut folder = Directory::open(&open(share, "", READ)).unwrap();
        let mut entry = Entry::default();
        let mut names = Vec::new();
        while folder.next(&mut |_| true, &mut entry).unwrap() {
            names.push(entry.name.clone());
        }
        names.sort_unstable();
        assert_eq!(names, [".", "..", "a", "file"]);
        assert_eq!(folder.find("up").unwrap(), None);
        // Above the root there is only the root.
        let dots = folder.find("..").unwrap().unwrap();
        assert_eq!(dots.facts.index, open(share, "", LOOK).identity().inode);
    });
}

#[test]
fn what_is_outside_is_not_told_by_links_that_lead_there() {
    on_each(|share, root| {
        let outside = root.parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("there"), "").unwrap();
        for name in ["there", "not there"] {
            symlink(outside.join(name), root.join(format!("absolute {name}"))).unwrap();
            symlink(format!("../outside/{name}"), root.join(format!("up {name}"))).unwrap();
            for said in ["absolute ", "up ", "ABSOLUTE ", "UP "] {
                let said = format!("{said}{name}");
                assert_eq!(failure(share, &said), NtStatus::ACCESS_DENIED, "{said}");
                let beneath = format!("{said}\\x");
                assert_eq!(failure(share, &beneath), NtStatus::ACCESS_DENIED, "{beneath}");
            }
        }
    });
}

#[test]
fn a_link_is_opened_itself_when_asked_for() {
    on_each(|share, root| {
        fs::write(root.join("file"), "1").unwrap();
        symlink("file", root.join("link")).unwrap();
        let link = open(share, "link", LINK);
        assert_eq!(link.first_facts().reparse_tag, 0xa000_000c);
        assert_eq!(link.link_target().unwrap(), b"file");
        assert_eq!(link.reopen(READ).map(|_| ()), Err(NtStatus::ACCESS_DENIED));
        link.delete().unwrap();
        assert!(root.join("file").exists());
        let link = create(share, "Link", FILE);
        let link = link.turn_into(&Special::Link(b"file".to_vec()), |_| Ok(())).unwrap();
        assert_eq!(link.link_target().unwrap(), b"file");
        // Through the link it is the file, but what goes is the link.
        open(share, "Link", LOOK).delete().unwrap();
        assert!(root.join("file").exists() && !root.join("Link").is_symlink());
    });
}

#[test]
fn links_may_be_refused_or_left_to_the_client() {
    for (links, status) in
        [(Links::Refuse, NtStatus::ACCESS_DENIED), (Links::Client, NtStatus::STOPPED_ON_SYMLINK)]
    {
        on_each_with(
            |config| config.links = links,
            |share, root| {
                fs::create_dir(root.join("d")).unwrap();
                fs::write(root.join("d/f"), "").unwrap();
                symlink("d", root.join("link")).unwrap();
                assert_eq!(failure(share, "link"), status);
                assert_eq!(failure(share, "link\\f"), status);
                assert_eq!(failure(share, "LINK\\f"), status);
                // Whatever it leads to, and wherever it is.
                fs::create_dir_all(root.join("deep/er")).unwrap();
                symlink("nowhere", root.join("deep/er/dangling")).unwrap();
                symlink("../../d", root.join("deep/er/there")).unwrap();
                for said in ["dangling", "dangling\\f", "dangling\\f\\g", "there\\f", "there\\x\\y"]
                {
                    for said in [said.to_owned(), said.to_uppercase()] {
                        for folder in ["deep\\er", "DEEP\\er", "deep\\ER"] {
                            let said = format!("{folder}\\{said}");
                            assert_eq!(failure(share, &said), status, "{said}");
                        }
                    }
                }
                assert_eq!(share.open(&path("link"), LINK).is_ok(), links == Links::Client);
                let folder = Directory::open(&open(share, "", READ)).unwrap();
                assert_eq!(folder.find("link").unwrap().is_some(), links == Links::Client);
            },
        );
    }
}

#[test]
fn the_link_on_a_long_way_is_found_without_looking_everywhere() {
    on_each_with(
        |config| config.links = Links::Client,
        |share, root| {
            let folders = vec!["d"; 200];
            fs::create_dir_all(root.join(folders.join("/"))).unwrap();
            for depth in [0, 1, 57, 128, 199, 200] {
                symlink("to", root.join(folders[..depth].join("/")).join("link")).unwrap();
                for behind in ["", "/x", "/x/y/z"] {
                    let said = [&folders[..depth], &["link"]].concat().join("/") + behind;
                    let said = path(&said.replace('/', "\\"));
                    assert_eq!(share.open(&said, LOOK).err(), Some(NtStatus::STOPPED_ON_SYMLINK));
                    let before = OPENED.get();
                    let found = share.stopped_on(&said);
                    assert_eq!(found, Some((b"to".to_vec(), behind.to_owned())), "{depth}");
                    assert!(OPENED.get() - before < 40, "{}", OPENED.get() - before);
                }
            }
            assert_eq!(share.stopped_on(&path("d\\d")), None);
            assert_eq!(share.stopped_on(&path("d\\missing\\d")), None);
        },
    );
}

/// Somebody swaps a folder for a link to the outside, all the time.
#[test]
fn races_with_links_lead_nowhere() {
    on_each(|share, root| {
        let outside = root.parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("victim"), "outside").unwrap();
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/victim"), "in").unwrap();
        symlink("../outside", root.join("swap")).unwrap();
        let folder = fs::File::open(root).unwrap();
        let done = AtomicBool::new(false);
        let mut reached = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    renameat_with(&folder, "d", &folder, "swap", RenameFlags::EXCHANGE).unwrap();
                }
            });
            // Who runs how long is not ours to say: until it has been reached at all.
            let began = Instant::now();
            for n in 0.. {
                if n >= 3000 && (reached > 0 || began.elapsed() > Duration::from_secs(60)) {
                    break;
                }
                match share.open(&path("d\\victim"), BOTH) {
                    Ok(Found::There(handle)) => {
                        reached += 1;
                        assert_eq!(handle.first_facts().size, 2);
                        handle.set_attributes(smb::Attributes::HIDDEN).unwrap();
                        if n % 10 == 0 && handle.delete().is_ok() {
                            let Ok(Found::Missing(place)) = share.open(&path("d\\victim"), LOOK)
                            else {
                                continue;
                            };
                            let _ = place.create(FILE).map(|file| file.set_size(2));
                        }
                    }
                    Ok(Found::Missing(place)) => {
                        if let Ok(file) = place.create(FILE) {
                            file.set_size(2).unwrap();
                        }
                    }
                    Err(_) => {}
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(reached > 0);
        assert_eq!(fs::read(outside.join("victim")).unwrap(), b"outside");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    });
}

#[test]
fn a_file_that_has_left_the_share_is_not_deleted() {
    on_each(|share, root| {
        let outside = root.parent().unwrap().join("moved");
        let handle = create(share, "file", FILE);
        fs::rename(root.join("file"), &outside).unwrap();
        assert_eq!(handle.delete(), Err(NtStatus::OBJECT_NAME_NOT_FOUND));
        assert!(outside.exists());
    });
}

#[test]
fn pipes_and_sockets_are_shown_but_not_opened() {
    on_each(|share, root| {
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
        let heard = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&heard, root, inotify::WatchFlags::OPEN).unwrap();
        for name in ["socket", "pipe"] {
            let at_once = share.open_at_once(&path(name), READ, false, false);
            assert!(matches!(at_once, Err(NtStatus::ACCESS_DENIED)), "nobody has looked yet");
            assert_ne!(open(share, name, LOOK).first_facts().reparse_tag, 0);
            assert!(matches!(share.open(&path(name), READ), Err(NtStatus::ACCESS_DENIED)));
            assert!(matches!(share.open(&path(name), BOTH), Err(NtStatus::ACCESS_DENIED)));
        }
        // Who waits to write to a pipe until somebody reads goes on waiting.
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut opened = inotify::Reader::new(&heard, &mut buffer);
        assert_eq!(opened.next().map(|event| event.events()), Err(Errno::AGAIN));
        fs::write(root.join("file"), "").unwrap();
        for _ in 0..2 {
            assert!(open(share, "file", BOTH).good_for().write);
            assert!(open(share, "", READ).good_for().read);
        }
    });
}

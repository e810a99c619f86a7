//! What is said about files, and set.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

use smb::{Attributes, FileTime, NtStatus};

use super::super::{Ea, Posix, SetTimes, dosattrib};
use super::{BOTH, Create, FILE, FOLDER, LOOK, READ, create, on_each, on_each_with, open};

const HIDDEN: Create = Create { attributes: Attributes::HIDDEN, ..FILE };

#[test]
fn a_new_file_is_as_windows_makes_it() {
    on_each(|share, root| {
        let file = create(share, "file", FILE);
        assert_eq!(file.first_facts().attributes, Attributes::ARCHIVE);
        assert_eq!(*file.first_facts(), file.facts().unwrap());
        let folder = create(share, "folder", FOLDER);
        assert_eq!(folder.first_facts().attributes, Attributes::DIRECTORY);
        assert_eq!(*folder.first_facts(), folder.facts().unwrap());
        let hidden = create(share, "hidden", HIDDEN);
        assert_eq!(hidden.first_facts().attributes, Attributes::HIDDEN | Attributes::ARCHIVE);
        assert_eq!(hidden.facts().unwrap().attributes, Attributes::HIDDEN | Attributes::ARCHIVE);
        let dotted = create(share, ".file", FILE);
        assert_eq!(dotted.first_facts().attributes, Attributes::HIDDEN | Attributes::ARCHIVE);
        // Nothing is stored that goes without saying.
        let names = rustix::fs::listxattr(root.join("file"), &mut [0; 64]).unwrap();
        assert_eq!(names, 0);
        let mode = fs::metadata(root.join("file")).unwrap().mode();
        assert_eq!(mode & 0o111, 0);
    });
}

#[test]
fn facts_are_those_of_the_file_system() {
    on_each(|share, root| {
        fs::write(root.join("file"), vec![1; 10_000]).unwrap();
        fs::hard_link(root.join("file"), root.join("other")).unwrap();
        let meta = fs::metadata(root.join("file")).unwrap();
        let facts = *open(share, "file", LOOK).first_facts();
        assert_eq!((facts.size, facts.allocated), (10_000, meta.blocks() * 512));
        assert_eq!((facts.links, facts.index, facts.device), (2, meta.ino(), meta.dev()));
        assert_eq!((facts.mode, facts.uid, facts.gid), (meta.mode(), meta.uid(), meta.gid()));
        let written = FileTime::from_unix(meta.mtime(), u32::try_from(meta.mtime_nsec()).unwrap());
        assert_eq!(facts.written, written);
        let born = meta.created().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seconds = i64::try_from(born.as_secs()).unwrap();
        assert_eq!(facts.created, FileTime::from_unix(seconds, born.subsec_nanos()));
    });
}

#[test]
fn attributes_and_birth_time_are_kept_and_remembered_no_longer_than_true() {
    on_each(|share, _| {
        let file = create(share, "file", FILE);
        let created = FileTime::from_unix(86_400, 700);
        file.set_times(SetTimes { created, ..SetTimes::default() }).unwrap();
        assert_eq!(file.facts().unwrap().created, created);
        assert_eq!(file.facts().unwrap().attributes, Attributes::ARCHIVE);
        for round in 0..3 {
            // Long enough that what is read is remembered.
            std::thread::sleep(Duration::from_millis(50));
            for wished in [Attributes::READONLY | Attributes::SYSTEM, Attributes::NORMAL] {
                file.set_attributes(wished).unwrap();
                for _ in 0..2 {
                    let facts = open(share, "file", LOOK).facts().unwrap();
                    assert_eq!((facts.attributes, facts.created), (wished, created), "{round}");
                }
                std::thread::sleep(Duration::from_millis(50));
                assert_eq!(file.facts().unwrap().attributes, wished);
                assert_eq!(file.facts().unwrap().attributes, wished);
            }
        }
        let folder = create(share, "folder", FOLDER);
        folder.set_attributes(Attributes::HIDDEN | Attributes::DIRECTORY).unwrap();
        assert_eq!(folder.facts().unwrap().attributes, Attributes::HIDDEN | Attributes::DIRECTORY);
    });
}

/// Samba may have the same folder open, before or at the same time.
#[test]
fn what_samba_stored_is_shown_at_once() {
    on_each(|share, root| {
        let file = root.join("file");
        fs::write(&file, "").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(open(share, "file", LOOK).first_facts().attributes, Attributes::ARCHIVE);
        let samba = [
            0, 0, 5, 0, 5, 0, 0, 0, 0x11, 0, 0, 0, 0x23, 0, 0, 0, 1, 0xf6, 0x28, 0x8b, 0xe5, 0x79,
            0xdd, 1,
        ];
        rustix::fs::setxattr(&file, dosattrib::NAME, &samba, rustix::fs::XattrFlags::empty())
            .unwrap();
        let facts = *open(share, "file", LOOK).first_facts();
        let rha = Attributes::READONLY | Attributes::HIDDEN | Attributes::ARCHIVE;
        assert_eq!((facts.attributes, facts.created), (rha, FileTime(0x01dd_79e5_8b28_f601)));
    });
}

#[test]
fn times_are_set_to_100_nanoseconds() {
    on_each(|share, _| {
        for file in [
            create(share, "file", FILE),
            create(share, "folder", FOLDER),
            open(share, "file", LOOK),
        ] {
            let (accessed, written) =
                (FileTime::from_unix(1_700_000_000, 100), FileTime::from_unix(-5, 200));
            let times = SetTimes { accessed, written, ..SetTimes::default() };
            file.set_times(times).unwrap();
            let facts = file.facts().unwrap();
            assert_eq!((facts.accessed, facts.written), (accessed, written));
            let times =
                SetTimes { accessed: FileTime::FREEZE, written: accessed, ..SetTimes::default() };
            file.set_times(times).unwrap();
            let facts = file.facts().unwrap();
            assert_eq!((facts.accessed, facts.written), (accessed, accessed));
        }
    });
}

#[test]
fn without_attributes_readonly_is_the_permission_to_write() {
    on_each_with(
        |config| config.dos_attributes = false,
        |share, root| {
            let file = create(share, "file", FILE);
            file.set_attributes(Attributes::READONLY | Attributes::HIDDEN).unwrap();
            assert_eq!(
                file.facts().unwrap().attributes,
                Attributes::READONLY | Attributes::ARCHIVE
            );
            assert_eq!(fs::metadata(root.join("file")).unwrap().permissions().mode() & 0o222, 0);
            file.set_attributes(Attributes::NORMAL).unwrap();
            assert_eq!(file.facts().unwrap().attributes, Attributes::ARCHIVE);
            assert_eq!(rustix::fs::listxattr(root.join("file"), &mut [0; 64]).unwrap(), 0);
        },
    );
}

#[test]
fn size_and_allocation() {
    on_each(|share, root| {
        let file = create(share, "file", FILE);
        file.set_size(5000).unwrap();
        assert_eq!(file.facts().unwrap().size, 5000);
        file.set_allocation(1 << 20).unwrap();
        let facts = file.facts().unwrap();
        assert_eq!(facts.size, 5000);
        assert!(facts.allocated >= 1 << 20);
        file.set_allocation(100).unwrap();
        assert_eq!(file.facts().unwrap().size, 100);
        fs::write(root.join("file"), vec![7; 300_000]).unwrap();
        let look = open(share, "file", LOOK);
        look.zero(4096..200_000).unwrap();
        let bytes = fs::read(root.join("file")).unwrap();
        assert_eq!(
            (bytes.len(), bytes[4095], bytes[4096], bytes[199_999], bytes[200_000]),
            (300_000, 7, 0, 0, 7)
        );
        look.set_size(1).unwrap();
        assert_eq!(fs::read(root.join("file")).unwrap(), [7]);
        look.sync().unwrap();
        // Opened once, and good for the file whatever becomes of its name.
        let by = look.sync_fd().unwrap();
        fs::remove_file(root.join("file")).unwrap();
        assert!(std::sync::Arc::ptr_eq(&by, &look.sync_fd().unwrap()));
        look.sync().unwrap();
        let folder = create(share, "folder", FOLDER);
        assert_eq!(folder.set_size(0), Err(NtStatus::FILE_IS_A_DIRECTORY));
        assert_eq!(file.set_size(u64::MAX), Err(NtStatus::INVALID_PARAMETER));
        folder.sync().unwrap();
    });
}

#[test]
fn eas_have_names_without_case() {
    on_each(|share, root| {
        let file = create(share, "file", FILE);
        assert_eq!(file.eas().unwrap(), []);
        file.set_ea(b"Comment", b"one").unwrap();
        file.set_ea(b"COMMENT", b"three").unwrap();
        let ea = Ea { name: b"Comment".to_vec(), value: b"three".to_vec() };
        assert_eq!(file.eas().unwrap(), [ea], "by the name that it got");
        // 8 of header, the name and its NUL, the value.
        assert_eq!(file.facts().unwrap().ea_size, 8 + 8 + 5);
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(root.join("file"), "user.Comment", &mut value).unwrap();
        assert_eq!(&value[..len], b"three");
        file.set_ea(b"comment", b"").unwrap();
        file.set_ea(b"comment", b"").unwrap();
        assert_eq!(file.eas().unwrap(), []);
        assert_eq!(file.facts().unwrap().ea_size, 0);
        // Where two are told apart on the host, each is itself.
        for name in ["user.A", "user.a"] {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(root.join("file"), name, b"host", flags).unwrap();
        }
        file.set_ea(b"a", b"set").unwrap();
        let mut both: Vec<_> =
            file.eas().unwrap().into_iter().map(|ea| (ea.name, ea.value)).collect();
        both.sort();
        assert_eq!(both, [(b"A".to_vec(), b"host".to_vec()), (b"a".to_vec(), b"set".to_vec())]);
        for name in [&b"dosattrib"[..], b"DOSATTRIB", b"shunt.ntacl", b"dosstream.x"] {
            assert_eq!(file.set_ea(name, b"x"), Err(NtStatus::ACCESS_DENIED));
        }
        for name in [&b""[..], b"a\0b"] {
            assert_eq!(file.set_ea(name, b"x"), Err(NtStatus::INVALID_EA_NAME));
        }
        assert_eq!(file.set_ea(b"LARGE", &[0; 70_000]), Err(NtStatus::EA_TOO_LARGE));
    });
}

/// Who sets one to nothing removes it: to clients there is none that holds nothing.
#[test]
fn what_holds_nothing_on_the_host_is_no_ea() {
    on_each(|share, root| {
        let file = create(share, "file", FILE);
        for (name, value) in [("user.a", &b""[..]), ("user.b", b"held"), ("user.c", b"")] {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(root.join("file"), name, value, flags).unwrap();
        }
        let held = Ea { name: b"b".to_vec(), value: b"held".to_vec() };
        assert_eq!(file.eas().unwrap(), [held]);
        assert_eq!(file.facts().unwrap().ea_size, 8 + 2 + 4);
        file.set_ea(b"b", b"").unwrap();
        assert_eq!((file.eas().unwrap(), file.facts().unwrap().ea_size), (Vec::new(), 0));
        // Clients may take one away, and put something into it, all the same.
        file.set_ea(b"A", b"").unwrap();
        file.set_ea(b"C", b"new").unwrap();
        let kept = Ea { name: b"c".to_vec(), value: b"new".to_vec() };
        assert_eq!(file.eas().unwrap(), [kept], "by the name that it had");
        let gone = rustix::fs::getxattr(root.join("file"), "user.a", &mut [0; 1]);
        assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    });
}

/// Of which clients are told nothing takes no room.
#[test]
fn what_cannot_be_said_of_an_ea_is_not_counted() {
    on_each(|share, root| {
        let file = create(share, "file", FILE);
        let path = root.join("file");
        let set = |name: &[u8], value: &[u8]| {
            rustix::fs::setxattr(&path, name, value, rustix::fs::XattrFlags::empty())
        };
        set(b"user.\xff", b"no text").unwrap();
        // Not every file system keeps as much.
        let _ = set(b"user.long", &[7; 65536]);
        assert_eq!((file.eas().unwrap(), file.facts().unwrap().ea_size), (Vec::new(), 0));
    });
}

#[test]
fn a_security_descriptor_is_kept() {
    on_each(|share, _| {
        let file = create(share, "file", FILE);
        assert_eq!(file.security().unwrap(), None);
        file.set_security(Some(&[1, 2, 3])).unwrap();
        assert_eq!(open(share, "file", LOOK).security().unwrap(), Some(vec![1, 2, 3]));
        assert_eq!(file.eas().unwrap(), []);
        file.set_security(None).unwrap();
        file.set_security(None).unwrap();
        assert_eq!(file.security().unwrap(), None);
    });
}

#[test]
fn posix_modes_and_other_descriptors() {
    on_each(|share, root| {
        create(share, "file", FILE);
        let look = open(share, "file", LOOK);
        look.set_posix(Posix { mode: Some(0o640), ..Posix::default() }).unwrap();
        assert_eq!(fs::metadata(root.join("file")).unwrap().mode() & 0o7777, 0o640);
        fs::rename(root.join("file"), root.join("moved")).unwrap();
        let writer = look.reopen(BOTH).unwrap();
        assert_eq!(writer.identity(), look.identity());
        assert_eq!(rustix::io::write(&writer, b"abc").unwrap(), 3);
        assert_eq!(fs::read(root.join("moved")).unwrap(), b"abc");
        assert!(look.reopen(READ).unwrap().good_for().read);
    });
}

#[test]
fn the_volume_is_the_file_system() {
    on_each(|share, root| {
        let facts = share.volume().unwrap();
        let vfs = rustix::fs::statvfs(root).unwrap();
        assert_eq!(facts.units * u64::from(facts.unit), vfs.f_blocks * vfs.f_frsize);
        assert_eq!((facts.label.as_str(), facts.name_max), ("test", 255));
        assert!(facts.unit.is_power_of_two() && facts.available <= facts.units);
        // Case preserved, named streams, EAs.
        assert_eq!(facts.flags & 0x0084_0002, 0x0084_0002);
        assert_eq!(facts.flags & 0x0008_0000, 0);
    });
}

#[test]
fn what_a_file_holds_is_another_thing() {
    on_each(|share, root| {
        create(share, "file", FILE);
        for want in [BOTH, LOOK] {
            for holds in [&b"some"[..], b"more than that", b"less", b""] {
                open(share, "file", want).hold(holds).unwrap();
                assert_eq!(fs::read(root.join("file")).unwrap(), holds);
            }
        }
        assert_eq!(create(share, "folder", FOLDER).hold(b""), Err(NtStatus::FILE_IS_A_DIRECTORY));
    });
}

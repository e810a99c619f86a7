//! Named streams, as `vfs_streams_xattr` keeps them.

use std::sync::Arc;

use smb::{FileTime, NtStatus};

use super::super::{Handle, STREAM_MAX, SetTimes, Stream, StreamFacts};
use super::{FILE, FOLDER, LOOK, create, on_each, on_each_with, open};

fn file(share: &super::Share) -> Arc<Handle> {
    Arc::new(create(share, "file", FILE))
}

#[test]
fn the_bytes_are_those_of_samba() {
    on_each(|share, root| {
        let stream = Stream::create(file(share), "stream").unwrap();
        stream.write(0, b"hello\n").unwrap();
        let mut value = [0; 16];
        let name = "user.DosStream.stream:$DATA";
        let len = rustix::fs::getxattr(root.join("file"), name, &mut value).unwrap();
        // What smbd 4.17.12 wrote for the same.
        assert_eq!(&value[..len], b"hello\n\0");
        // What Samba keeps is not among the EAs.
        assert_eq!(stream.file().eas().unwrap(), []);
        assert_eq!(stream.file().facts().unwrap().ea_size, 0);
    });
}

#[test]
fn read_write_and_size() {
    on_each(|share, _| {
        let file = file(share);
        let stream = Stream::create(Arc::clone(&file), "S").unwrap();
        assert_eq!(stream.size().unwrap(), 0);
        stream.write(3, b"abc").unwrap();
        stream.write(4, b"X").unwrap();
        let mut buffer = [9; 8];
        assert_eq!(stream.read(0, &mut buffer).unwrap(), 6);
        assert_eq!(&buffer[..6], b"\0\0\0aXc");
        assert_eq!(stream.read(5, &mut buffer[..1]).unwrap(), 1);
        assert_eq!(stream.read(u64::MAX, &mut buffer).unwrap(), 0);
        stream.set_size(2).unwrap();
        assert_eq!(stream.size().unwrap(), 2);
        assert_eq!(file.streams().unwrap(), [StreamFacts { name: "S".to_owned(), size: 2 }]);
        assert_eq!(stream.write(STREAM_MAX, b"x"), Err(NtStatus::DISK_FULL));
        assert_eq!(stream.write(u64::MAX, b"x"), Err(NtStatus::DISK_FULL));
        assert_eq!(stream.size().unwrap(), 2);
        assert_eq!(file.facts().unwrap().size, 0);
    });
}

#[test]
fn what_is_written_to_a_stream_is_written_to_its_file() {
    on_each(|share, _| {
        let long_ago = FileTime::from_unix(86_400, 0);
        let times = SetTimes { accessed: long_ago, written: long_ago, ..SetTimes::default() };
        for (file, moves) in
            [(file(share), true), (Arc::new(create(share, "folder", FOLDER)), false)]
        {
            let stream = Stream::create(file.clone(), "stream").unwrap();
            let changes: [&dyn Fn(); 3] = [
                &|| stream.write(0, b"hello").unwrap(),
                &|| stream.set_size(2).unwrap(),
                // No bytes are no change.
                &|| stream.write(9, b"").unwrap(),
            ];
            for (at, change) in changes.into_iter().enumerate() {
                file.set_times(times).unwrap();
                change();
                let now = file.facts().unwrap();
                assert_eq!(now.written != long_ago, moves && at < 2, "{at}");
                assert_eq!(now.accessed, long_ago);
            }
        }
    });
}

#[test]
fn names_have_no_case() {
    on_each(|share, _| {
        let file = file(share);
        let stream = Stream::create(Arc::clone(&file), "Zone.Identifier").unwrap();
        let same = Stream::open(Arc::clone(&file), "ZONE.identifier").unwrap();
        assert_eq!(same.name(), "Zone.Identifier");
        let again = Stream::create(Arc::clone(&file), "zone.identifier");
        assert_eq!(again.map(|_| ()).unwrap_err(), NtStatus::OBJECT_NAME_COLLISION);
        stream.rename("other", false).unwrap();
        assert_eq!(stream.name(), "other");
        let third = Stream::create(Arc::clone(&file), "third").unwrap();
        assert_eq!(third.rename("OTHER", false), Err(NtStatus::OBJECT_NAME_COLLISION));
        third.rename("OTHER", true).unwrap();
        assert_eq!(file.streams().unwrap().len(), 1);
        third.delete().unwrap();
        assert_eq!(third.size(), Err(NtStatus::OBJECT_NAME_NOT_FOUND));
        // One that is gone does not come back by being written to.
        assert_eq!(third.write(0, b"x"), Err(NtStatus::OBJECT_NAME_NOT_FOUND));
        let gone = Stream::open(Arc::clone(&file), "other");
        assert_eq!(gone.map(|_| ()).unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
        for name in ["", "a:b", "a/b", &"n".repeat(240)] {
            let status = Stream::create(Arc::clone(&file), name).map(|_| ()).unwrap_err();
            assert_eq!(status, NtStatus::OBJECT_NAME_INVALID);
        }
    });
}

#[test]
fn writers_at_the_same_time_lose_nothing() {
    on_each(|share, _| {
        let file = file(share);
        Stream::create(Arc::clone(&file), "s").unwrap();
        std::thread::scope(|scope| {
            for at in 0..4u64 {
                let file = Arc::new(open(share, "file", LOOK));
                scope.spawn(move || {
                    let stream = Stream::open(file, "s").unwrap();
                    for n in 0..100 {
                        stream.write(n * 4 + at, b"x").unwrap();
                    }
                });
            }
        });
        let mut buffer = [0; 500];
        let len = Stream::open(file, "s").unwrap().read(0, &mut buffer).unwrap();
        assert_eq!(&buffer[..len], [b'x'; 400]);
    });
}

#[test]
fn folders_have_streams_too_and_shares_may_have_none() {
    on_each(|share, _| {
        let folder = Arc::new(create(share, "folder", FOLDER));
        Stream::create(folder, "s").unwrap().write(0, b"1").unwrap();
    });
    on_each_with(
        |config| config.streams = false,
        |share, _| {
            let status = Stream::create(file(share), "s").map(|_| ()).unwrap_err();
            assert_eq!(status, NtStatus::OBJECT_NAME_INVALID);
        },
    );
}

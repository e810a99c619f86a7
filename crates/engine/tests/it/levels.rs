//! What is told about files, pipes and file systems: each level that may be asked for, against what the host knows.

use std::os::unix::fs::MetadataExt;

use smb::fscc::Ea;
use smb::wire::context::Requested;
use smb::wire::header::Command;
use smb::wire::{close, create, query_directory, query_info};
use smb::{Access, Attributes, CreateAction, CreateOptions, FileId, FileTime, NtStatus};

use crate::client::{Client, Offer, utf16};
use crate::information::{enter, open_as, query, query_about, set, told};
use crate::place::Place;

/// FileBasicInformation and its like (MS-FSCC 2.4).
const BASIC: u8 = 4;
const STANDARD: u8 = 5;
const INTERNAL: u8 = 6;
const EA: u8 = 7;
const ACCESS: u8 = 8;
const NAME: u8 = 9;
const DISPOSITION: u8 = 13;
const POSITION: u8 = 14;
const FULL_EA: u8 = 15;
const MODE: u8 = 16;
const ALIGNMENT: u8 = 17;
const ALL: u8 = 18;
const STREAM: u8 = 22;
const PIPE: u8 = 23;
const PIPE_LOCAL: u8 = 24;
const COMPRESSION: u8 = 28;
const NETWORK_OPEN: u8 = 34;
const ATTRIBUTE_TAG: u8 = 35;
const NORMALIZED_NAME: u8 = 48;
const ID: u8 = 59;
/// SMB_FILE_POSIX_INFO.
const POSIX: u8 = 100;

fn ask(client: &mut Client, file: FileId, class: u8) -> Vec<u8> {
    told(&query(client, file, class, 4096).good())
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The length of a name, and the name.
fn named(name: &str) -> Vec<u8> {
    let name = utf16(name);
    [u32::try_from(name.len()).unwrap().to_le_bytes().to_vec(), name].concat()
}

#[test]
fn each_level_tells_of_a_file_what_the_host_knows() {
    const LEN: usize = 10_000;
    let place = Place::new();
    let mut client = enter(&place);
    let access = Access::FILE_READ | Access::FILE_WRITE | Access::DELETE;
    std::fs::create_dir(place.folder().join("Folder")).unwrap();
    let file = open_as(&mut client, "FOLDER\\File.txt", access, CreateOptions::empty()).unwrap();
    assert_eq!(client.write(file, 0, &[7; LEN]), NtStatus::SUCCESS);
    let stream = client.open("folder\\file.txt:Stream");
    assert_eq!(client.write(stream, 0, b"beside"), NtStatus::SUCCESS);
    // None of them ends where the next one may begin.
    let eas = ["ONE", "TWO", "SIX", "TEN", "NIL"].map(|name| Ea {
        flags: 0,
        name: name.to_owned(),
        value: b"value".to_vec(),
    });
    let mut list = Vec::new();
    smb::fscc::put_eas(&eas, 4096, &mut list).unwrap();
    assert_eq!(set(&mut client, file, FULL_EA, &list), NtStatus::SUCCESS);
    assert_eq!(set(&mut client, file, POSITION, &77_u64.to_le_bytes()), NtStatus::SUCCESS);
    let on_disk = place.folder().join("Folder/File.txt");
    std::fs::hard_link(&on_disk, place.folder().join("other name")).unwrap();
    let host = on_disk.metadata().unwrap();
    assert_eq!(host.len(), LEN as u64);

    let time = |seconds, nanos: i64| FileTime::from_unix(seconds, u32::try_from(nanos).unwrap());
    let born = host.created().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    let born = time(born.as_secs().cast_signed(), born.subsec_nanos().into());
    let times = [
        born,
        time(host.atime(), host.atime_nsec()),
        time(host.mtime(), host.mtime_nsec()),
        time(host.ctime(), host.ctime_nsec()),
    ];
    let times: Vec<u8> = times.iter().flat_map(|time| time.0.to_le_bytes()).collect();
    let attributes = Attributes::ARCHIVE.bits();
    let sizes = [host.blocks() * 512, host.len()].map(u64::to_le_bytes).concat();
    let basic = [times.clone(), words(&[attributes, 0])].concat();
    // Two names; it is not to be deleted, and no folder.
    let standard = [sizes.clone(), words(&[2, 0])].concat();
    let inode = host.ino().to_le_bytes().to_vec();
    let ea_size = u32::try_from(list.len()).unwrap();
    let name = "Folder\\File.txt";
    let all = [
        basic.clone(),
        standard.clone(),
        inode.clone(),
        words(&[ea_size, access.bits()]),
        77_u64.to_le_bytes().to_vec(),
        words(&[0, 0]),
        named(&format!("\\{name}")),
    ];
    let expected = [
        (BASIC, basic),
        (STANDARD, standard),
        (INTERNAL, inode.clone()),
        (EA, words(&[ea_size])),
        (ACCESS, words(&[access.bits()])),
        (NAME, named(&format!("\\{name}"))),
        (POSITION, 77_u64.to_le_bytes().to_vec()),
        (MODE, words(&[0])),
        (ALIGNMENT, words(&[0])),
        (ALL, all.concat()),
        (COMPRESSION, [&(LEN as u64).to_le_bytes()[..], &[0; 8]].concat()),
        (NETWORK_OPEN, [times, sizes, words(&[attributes, 0])].concat()),
        (ATTRIBUTE_TAG, words(&[attributes, 0])),
        (NORMALIZED_NAME, named(name)),
        (ID, [host.dev().to_le_bytes().to_vec(), inode, vec![0; 8]].concat()),
    ];
    for (class, wanted) in &expected {
        assert_eq!(ask(&mut client, file, *class), *wanted, "{class}");
    }
    // Who asks for all attributes with the room that they were said to take, gets all of them, in any order.
    let told = told(&query(&mut client, file, FULL_EA, ea_size).good());
    let told = smb::fscc::parse_eas(&told).unwrap();
    assert!(told.len() == eas.len() && eas.iter().all(|ea| told.contains(ea)), "{told:?}");
    // Whoever lists the folder is told as much, by each form that has a place for it.
    let folder = open_as(&mut client, "Folder", access, CreateOptions::DIRECTORY_FILE).unwrap();
    let pattern = utf16("File.txt");
    for class in [2, 3, 37, 38, 60, 63] {
        let list = query_directory::Request {
            class,
            flags: query_directory::Flags::RESTART,
            index: 0,
            file: folder,
            pattern: &pattern,
            output_max: 4096,
        };
        let answer = client.call(Command::QueryDirectory, &list).good();
        let entry = query_directory::Response::parse(&answer.message).unwrap().data;
        assert_eq!(entry[64..68], ea_size.to_le_bytes(), "{class}");
    }
    let streams = ask(&mut client, file, STREAM);
    let entry = |next: u32, name: &str, size: u64, allocated: u64| {
        let name = utf16(name);
        let head = words(&[next, u32::try_from(name.len()).unwrap()]);
        [head, size.to_le_bytes().to_vec(), allocated.to_le_bytes().to_vec(), name].concat()
    };
    let data = entry(40, "::$DATA", host.len(), host.blocks() * 512);
    let beside = entry(0, ":Stream:$DATA", 6, 6);
    assert_eq!(streams, [data, vec![0; 2], beside].concat());
    // What there is not, what is only listed or set, and what was not agreed on.
    for class in [0, 1, 2, 3, 10, 11, 12, 13, 19, 20, 25, 37, 39, 40, 60, 64, POSIX, 255] {
        let status = query(&mut client, file, class, 4096).status();
        assert_eq!(status, NtStatus::INVALID_INFO_CLASS, "{class}");
    }
}

/// Of a file, a stream of it, a folder, the root of the share, what is to be deleted, and what is listed of each.
#[test]
fn what_several_levels_tell_is_the_same_in_all_of_them() {
    const IDS: u8 = 37;
    let place = Place::new();
    let mut client = enter(&place);
    let (file, folder) = (CreateOptions::empty(), CreateOptions::DIRECTORY_FILE);
    let access = Access::FILE_READ | Access::FILE_WRITE | Access::DELETE;
    for (name, options, size, is_folder) in [
        ("Folder", folder, 0, true),
        ("Folder\\File", file, 5000, false),
        ("Folder\\File:Stream", file, 300, false),
        ("Folder\\gone", file, 10, false),
        ("", folder, 0, true),
    ] {
        let open = open_as(&mut client, name, access, options).unwrap();
        if !is_folder {
            assert_eq!(client.write(open, 0, &vec![7; size]), NtStatus::SUCCESS);
        }
        let goes = name.ends_with("gone");
        if goes {
            assert_eq!(set(&mut client, open, DISPOSITION, &[1]), NtStatus::SUCCESS);
        }
        let parts = [BASIC, STANDARD, INTERNAL, EA, ACCESS, POSITION, MODE, ALIGNMENT, NAME];
        let told = parts.map(|class| ask(&mut client, open, class));
        let mut all = told.concat();
        // The structure has a place for the first letter of a name, and ends where the next may begin.
        all.resize(all.len().max(104), 0);
        assert_eq!(ask(&mut client, open, ALL), all, "{name}");
        let [basic, standard, internal, ..] = told;
        let network = [&basic[..32], &standard[..16], &basic[32..36], &[0; 4]].concat();
        assert_eq!(ask(&mut client, open, NETWORK_OPEN), network, "{name}");
        let attributes = [&basic[32..36], &[0; 4]].concat();
        assert_eq!(ask(&mut client, open, ATTRIBUTE_TAG), attributes, "{name}");
        let compression = [&standard[8..16], &[0; 8]].concat();
        assert_eq!(ask(&mut client, open, COMPRESSION), compression, "{name}");
        assert_eq!(ask(&mut client, open, ID)[8..16], internal, "{name}");
        assert_eq!(standard[8..16], (size as u64).to_le_bytes(), "{name}");
        let links = u32::from(!goes).to_le_bytes();
        assert_eq!(standard[16..], [&links[..], &[goes.into(), is_folder.into(), 0, 0]].concat());
        let attributes =
            Attributes::from_bits_retain(u32::from_le_bytes(*basic[32..].first_chunk().unwrap()));
        assert_eq!(attributes.contains(Attributes::DIRECTORY), is_folder, "{name}");
        if is_folder {
            // "." in it is the folder itself.
            let pattern = utf16(".");
            let list = query_directory::Request {
                class: IDS,
                flags: query_directory::Flags::empty(),
                index: 0,
                file: open,
                pattern: &pattern,
                output_max: 4096,
            };
            let answer = client.call(Command::QueryDirectory, &list).good();
            let entry = query_directory::Response::parse(&answer.message).unwrap().data;
            // It has been read since it was last asked about, and may say so.
            let times = [(8, 0), (24, 16), (32, 24)];
            for (at, before) in times {
                assert_eq!(entry[at..at + 8], basic[before..before + 8], "{name}: time at {at}");
            }
            assert_eq!(entry[56..60], basic[32..36], "{name}: attributes");
            assert_eq!(entry[96..104], internal, "{name}");
        }
        client.call(Command::Close, &close::Request { file: open, ..Default::default() }).good();
    }
}

/// SMB2_CREATE_EA_BUFFER and SMB2_CREATE_ALLOCATION_SIZE: of a file that is new, and of no other.
#[test]
fn a_new_file_has_what_its_create_says_and_one_that_is_there_what_it_had() {
    const ASIDE: u64 = 1 << 20;
    let place = Place::new();
    let mut client = enter(&place);
    let name = utf16("file");
    let mut make = |value: &[u8], aside| {
        let ea = Ea { flags: 0, name: "ONE".to_owned(), value: value.to_vec() };
        let mut list = Vec::new();
        smb::fscc::put_eas(&[ea], 4096, &mut list).unwrap();
        let contexts =
            Requested { ea: Some(&list), allocation: Some(aside), ..Requested::default() };
        let access = Access::FILE_ALL;
        let body = create::Request { contexts, access, ..Client::create_body(&name) };
        let answer = client.call(Command::Create, &body).good();
        let made = create::Response::parse(&answer.message).unwrap();
        let has = smb::fscc::parse_eas(&ask(&mut client, made.file, FULL_EA)).unwrap();
        let shut = close::Request { file: made.file, ..close::Request::default() };
        let (action, size, allocation) = (made.action, made.size, made.allocation);
        client.call(Command::Close, &shut).good();
        (action, size, allocation, has[0].value.clone())
    };
    let (action, size, allocation, value) = make(b"first", ASIDE);
    assert_eq!((action, size, &value[..]), (CreateAction::Created, 0, &b"first"[..]));
    assert!(allocation >= ASIDE, "{allocation}");
    let host = place.folder().join("file").metadata().unwrap();
    assert_eq!((host.len(), host.blocks() * 512), (0, allocation));
    let again = make(b"second", 2 * ASIDE);
    assert_eq!(again, (CreateAction::Opened, 0, allocation, b"first".to_vec()));
}

#[test]
fn a_pipe_has_levels_of_its_own() {
    let place = Place::new();
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "IPC$");
    let name = utf16("srvsvc");
    let answer = client.call(Command::Create, &Client::create_body(&name)).good();
    let pipe = create::Response::parse(&answer.message).unwrap().file;
    assert_eq!(ask(&mut client, pipe, PIPE), [0; 8], "bytes, and who asks waits");
    let local = ask(&mut client, pipe, PIPE_LOCAL);
    // Messages, both ways, of any number one, with room both ways, connected, the server's end.
    assert_eq!(local, words(&[1, 2, u32::MAX, 1, 4096, 0, 4096, 4096, 3, 1]));
    // One name, and it goes with its open.
    let standard = [&4096_u64.to_le_bytes()[..], &[0; 8], &[0, 0, 0, 0, 1, 0, 0, 0]].concat();
    assert_eq!(ask(&mut client, pipe, STANDARD), standard);
}

#[test]
fn each_level_tells_of_a_file_system_what_the_host_knows() {
    const NORMAL: u32 = 0x20;
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("file");
    let mut ask = |class: u8| {
        let about = (query_info::Subject::FileSystem, class, 0);
        told(&query_about(&mut client, file, about, 4096, &[]).good())
    };
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let host = rustix::fs::statvfs(place.folder()).unwrap();
    // A tmpfs without a limit says nothing of its size.
    let free = u64::from(host.f_blocks > 0)..=host.f_blocks;
    // Units of the host's, of sectors of 512 bytes. Others use the disk meanwhile.
    let unit = words(&[u32::try_from(host.f_frsize / 512).unwrap(), 512]);
    let size = ask(3);
    assert_eq!((size.len(), number(&size, 0), &size[16..]), (24, host.f_blocks, &unit[..]));
    assert!(free.contains(&number(&size, 8)), "{size:?}");
    let full = ask(7);
    assert_eq!((full.len(), number(&full, 0), &full[24..]), (32, host.f_blocks, &unit[..]));
    assert!(number(&full, 8) <= number(&full, 16), "{full:?}");
    assert!(free.contains(&number(&full, 16)), "{full:?}");
    // When it was made, its number, the length of its name, and that its files have no ids of their own.
    let volume = ask(1);
    let made = place.folder().metadata().unwrap().created().unwrap();
    let made = made.duration_since(std::time::UNIX_EPOCH).unwrap();
    let made = FileTime::from_unix(made.as_secs().cast_signed(), made.subsec_nanos());
    assert_eq!(number(&volume, 0), made.0);
    assert_ne!(volume[8..12], [0; 4]);
    assert_eq!((&volume[12..18], &volume[18..]), (&[10, 0, 0, 0, 0, 0][..], &*utf16("files")));
    assert_eq!(ask(4), words(&[7, NORMAL]), "a disk, and mounted");
    let attribute = ask(5);
    let name_max = u32::try_from(host.f_namemax.min(255)).unwrap();
    assert_eq!(attribute[4..8], name_max.to_le_bytes());
    assert_eq!(attribute[8..], named("NTFS"));
    let object = ask(8);
    assert_eq!((object.len(), &object[16..]), (64, &[0; 48][..]));
    assert_eq!(object[8..12], volume[8..12], "the same volume");
    // What is written at once, and that partitions begin where sectors do.
    assert_eq!(ask(11), words(&[512, 512, 512, 512, 3, 0, 0]));
    for class in [0, 2, 9, 10, POSIX, 255] {
        let about = (query_info::Subject::FileSystem, class, 0);
        let status = query_about(&mut client, file, about, 4096, &[]).status();
        assert_eq!(status, NtStatus::INVALID_INFO_CLASS, "{class}");
    }
}

use proptest::prelude::*;

use super::fsctl::{
    CopyChunk, CopyChunkAnswer, Duplicate, Interface, InterfaceCaps, PipeWait, Range, RegionQuery,
    ValidateNegotiate, parse_allocated, parse_zero, put_allocated, put_interfaces,
    put_no_snapshots, put_object_id, put_on_disk_volume, put_regions, put_resume_key,
};
use super::reparse::{self, Reparse, Special, Symlink};
use super::{
    About, Action, Change, DirectoryClass, DirectoryWriter, Disposal, Ea, Facts, FileClass, Fill,
    NotifyWriter, PosixOwner, Put, QuotaQuery, Reader, SetClass, StreamFacts, Taken, Target,
    VolumeClass, VolumeFacts, eas_len, parse_ea_names, parse_eas, put_eas,
};
use crate::name::{Path, Stream, utf16};
use crate::security::Sid;
use crate::{Attributes, FileTime, NtStatus};

fn facts() -> Facts {
    Facts {
        created: FileTime(0x11),
        accessed: FileTime(0x22),
        written: FileTime(0x33),
        changed: FileTime(0x44),
        allocated: 4096,
        size: 5,
        attributes: Attributes::ARCHIVE,
        links: 2,
        index: 7,
        file_id: 0x1234_5678_9abc,
        device: 0xfd00,
        ea_size: 99,
        reparse_tag: 0,
        mode: 0o100_644,
        uid: 1,
        gid: 2,
        secured: false,
    }
}

fn ea(name: &str, value: &[u8]) -> Ea {
    Ea { flags: 0, name: name.to_owned(), value: value.to_vec() }
}

fn wide(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    utf16::append(text, &mut out);
    out
}

const FILE_CLASSES: [u8; 21] =
    [4, 5, 6, 7, 8, 9, 14, 15, 16, 17, 18, 21, 22, 23, 24, 28, 34, 35, 48, 59, 100];

/// smb2.getinfo qfile_buffercheck, for all levels.
#[test]
fn answers_about_files_are_refused_cut_or_whole() {
    let owner = PosixOwner::new(&Sid::unix_user(1), &Sid::unix_group(2));
    let eas = [ea("EAONE", b"VALUE1"), ea("SECONDEA", b"ValueTwo")];
    let streams =
        [StreamFacts::default(), StreamFacts { name: "s".to_owned(), size: 1, allocated: 2 }];
    let about = About {
        facts: facts(),
        name: "dir\\bufsize.txt",
        short_name: "BUFSIZE.TXT",
        eas: &eas,
        streams: &streams,
        owner: Some(&owner),
        ..About::default()
    };
    for byte in FILE_CLASSES {
        let class = FileClass::from_wire(byte).unwrap();
        let mut whole = vec![7];
        assert_eq!(class.put(&about, 65_535, &mut whole), Ok(Fill::Whole));
        let len = whole.len() - 1;
        assert!(len >= class.len_min(), "{class:?}");
        for limit in 0..=len {
            let mut out = vec![7];
            let filled = class.put(&about, limit, &mut out);
            let fixed = limit < class.len_min();
            match filled {
                Ok(Fill::Whole) => assert_eq!(out, whole),
                Ok(Fill::Cut) => assert!(!fixed && limit < len && out.len() <= limit + 1),
                Err(NtStatus::BUFFER_TOO_SMALL) => assert!(class == FileClass::FullEa && !fixed),
                Err(status) => assert!(fixed && status == NtStatus::INFO_LENGTH_MISMATCH),
            }
            assert_eq!(filled == Ok(Fill::Whole), limit == len, "{class:?} {limit}");
        }
    }
    assert_eq!(FileClass::from_wire(1), Err(NtStatus::INVALID_INFO_CLASS));
    let lens = [(4, 40), (5, 24), (6, 8), (7, 4), (8, 4), (16, 4), (17, 4), (18, 104), (21, 8)];
    for (byte, len) in lens.into_iter().chain([(22, 32), (28, 16), (34, 56), (35, 8)]) {
        assert_eq!(FileClass::from_wire(byte).unwrap().len_min(), len, "level {byte}");
    }
    for (class, status) in [
        (FileClass::AlternateName, NtStatus::OBJECT_NAME_NOT_FOUND),
        (FileClass::FullEa, NtStatus::NO_EAS_ON_FILE),
    ] {
        assert_eq!(class.put(&About::default(), 1000, &mut Vec::new()), Err(status));
    }
}

#[test]
fn all_information_has_the_layout_of_the_specification() {
    let about = About {
        facts: facts(),
        name: "a\\b",
        delete_pending: true,
        position: 9,
        ..About::default()
    };
    let mut out = Vec::new();
    FileClass::All.put(&about, 1000, &mut out).unwrap();
    let mut fields = Reader::new(&out);
    let times = [fields.u64(), fields.u64(), fields.u64(), fields.u64()];
    assert_eq!(times, [Some(0x11), Some(0x22), Some(0x33), Some(0x44)]);
    assert_eq!((fields.u32(), fields.u32()), (Some(0x20), Some(0)));
    assert_eq!((fields.u64(), fields.u64(), fields.u32()), (Some(4096), Some(5), Some(1)));
    assert_eq!(fields.array(), Some([1, 0, 0, 0]));
    assert_eq!((fields.u64(), fields.u32()), (Some(0x1234_5678_9abc), Some(99)));
    assert_eq!((fields.u32(), fields.u64(), fields.u32()), (Some(0), Some(9), Some(0)));
    assert_eq!((fields.u32(), fields.u32()), (Some(0), Some(8)));
    assert_eq!(fields.rest(), wide("\\a\\b"));
    let mut root = Vec::new();
    FileClass::All.put(&About::default(), 1000, &mut root).unwrap();
    assert_eq!((root.len(), &root[96..100]), (104, &[2, 0, 0, 0][..]));
    let mut normalized = Vec::new();
    FileClass::NormalizedName.put(&about, 1000, &mut normalized).unwrap();
    assert_eq!(normalized, [&[6, 0, 0, 0][..], &wide("a\\b")].concat());
}

#[test]
fn streams_are_listed_at_multiples_of_eight() {
    let streams =
        ["", "abc"].map(|name| StreamFacts { name: name.to_owned(), size: 1, allocated: 2 });
    let about = About { streams: &streams, ..About::default() };
    let mut out = Vec::new();
    FileClass::Stream.put(&about, 1000, &mut out).unwrap();
    assert_eq!((&out[..8], &out[24..38]), (&[40, 0, 0, 0, 14, 0, 0, 0][..], &wide("::$DATA")[..]));
    assert_eq!(
        (&out[40..48], &out[64..]),
        (&[0, 0, 0, 0, 20, 0, 0, 0][..], &wide(":abc:$DATA")[..])
    );
    let mut cut = Vec::new();
    assert_eq!(FileClass::Stream.put(&about, 60, &mut cut), Ok(Fill::Cut));
    assert_eq!(cut.len(), 38, "what is left out leaves no trace");
}

#[test]
fn answers_about_volumes_are_refused_cut_or_whole() {
    let volume = VolumeFacts {
        label: "data".to_owned(),
        sector: 512,
        unit: 4096,
        units: 100,
        free: 50,
        available: 40,
        ..VolumeFacts::default()
    };
    for (byte, fixed) in
        [(1, 24), (3, 24), (4, 8), (5, 16), (6, 48), (7, 32), (8, 64), (11, 28), (100, 56)]
    {
        let class = VolumeClass::from_wire(byte).unwrap();
        let mut whole = Vec::new();
        assert_eq!(class.put(&volume, 1000, &mut whole), Ok(Fill::Whole));
        for limit in 0..whole.len() {
            let mut out = Vec::new();
            let expected =
                if limit < fixed { Err(NtStatus::INFO_LENGTH_MISMATCH) } else { Ok(Fill::Cut) };
            assert_eq!(class.put(&volume, limit, &mut out), expected, "{class:?} {limit}");
            assert_eq!(out, whole[..out.len()]);
        }
    }
    let mut out = Vec::new();
    VolumeClass::FullSize.put(&volume, 32, &mut out).unwrap();
    let mut fields = Reader::new(&out);
    assert_eq!((fields.u64(), fields.u64(), fields.u64()), (Some(100), Some(40), Some(50)));
    assert_eq!((fields.u32(), fields.u32()), (Some(8), Some(512)));
    assert_eq!(VolumeClass::from_wire(2), Err(NtStatus::INVALID_INFO_CLASS));
}

const DIRECTORY_CLASSES: [(DirectoryClass, usize); 9] = [
    (DirectoryClass::Directory, 64),
    (DirectoryClass::Full, 68),
    (DirectoryClass::Both, 94),
    (DirectoryClass::Names, 12),
    (DirectoryClass::IdBoth, 104),
    (DirectoryClass::IdFull, 80),
    (DirectoryClass::IdExtd, 88),
    (DirectoryClass::IdExtdBoth, 114),
    (DirectoryClass::Posix, 92),
];

/// The entries of a list: where each begins, and its bytes.
fn entries(mut list: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    loop {
        let next = usize::try_from(Reader::new(list).u32().unwrap()).unwrap();
        if next == 0 {
            found.push(list);
            return found;
        }
        found.push(&list[..next]);
        list = &list[next..];
    }
}

#[test]
fn entries_of_directories_have_their_fields_in_place() {
    let link =
        Facts { attributes: Attributes::REPARSE_POINT, reparse_tag: reparse::SYMLINK, ..facts() };
    for (class, name_at) in DIRECTORY_CLASSES {
        assert_eq!(DirectoryClass::from_wire(class as u8), Ok(class));
        let mut buffer = b"before".to_vec();
        let mut writer = DirectoryWriter::new(class, &mut buffer, 600);
        assert!(
            writer.is_empty()
                && writer.push(&facts(), "first")
                && writer.push(&link, "\u{e4}\u{1f600}")
        );
        let len = writer.len();
        assert_eq!((&buffer[..6], buffer.len()), (&b"before"[..], 6 + len));
        let all = entries(&buffer[6..]);
        for (entry, name) in all.iter().zip(["first", "\u{e4}\u{1f600}"]) {
            let name = wide(name);
            assert_eq!(&entry[name_at..name_at + name.len()], name);
            let len_at = match class {
                DirectoryClass::Names => 8,
                DirectoryClass::Posix => 88,
                _ => 60,
            };
            assert_eq!(
                Reader::new(&entry[len_at..]).u32(),
                Some(u32::try_from(name.len()).unwrap())
            );
            if class != DirectoryClass::Names {
                assert_eq!(Reader::new(&entry[8..]).u64(), Some(0x11));
                assert_eq!(Reader::new(&entry[40..]).u64(), Some(5));
            }
        }
        let index_at = match class {
            DirectoryClass::IdBoth => Some(96),
            DirectoryClass::IdFull | DirectoryClass::IdExtd | DirectoryClass::IdExtdBoth => {
                Some(72)
            }
            DirectoryClass::Posix => Some(60),
            _ => None,
        };
        if let Some(at) = index_at {
            assert_eq!(Reader::new(&all[0][at..]).u64(), Some(facts().file_id), "{class:?}");
        }
        let tag = Reader::new(all[1].get(64..).unwrap_or(&[])).u32();
        match class {
            DirectoryClass::Full
            | DirectoryClass::Both
            | DirectoryClass::IdBoth
            | DirectoryClass::IdFull => {
                assert_eq!(tag, Some(reparse::SYMLINK), "{class:?}");
            }
            DirectoryClass::IdExtd | DirectoryClass::IdExtdBoth => assert_eq!(tag, Some(99)),
            _ => {}
        }
    }
}

#[test]
fn the_posix_entry_tells_owner_group_and_kind() {
    let owner = PosixOwner::new(&Sid::unix_user(1000), &Sid::unix_group(50));
    let mut buffer = Vec::new();
    let mut writer = DirectoryWriter::new(DirectoryClass::Posix, &mut buffer, 200);
    let pipe = Facts { mode: 0o010_640, ..facts() };
    assert!(writer.push_owned(&pipe, "p", &owner));
    let len = writer.len();
    assert_eq!(Reader::new(&buffer[84..]).u32(), Some(0o640 | 5 << 12));
    assert_eq!(Sid::parse(&buffer[88..]), Some((Sid::unix_user(1000), 16)));
    assert_eq!(Sid::parse(&buffer[104..]), Some((Sid::unix_group(50), 16)));
    assert_eq!(&buffer[120..len], [2, 0, 0, 0, b'p', 0]);
}

#[test]
fn lists_of_attributes_are_written_and_read() {
    let eas = vec![ea("EAONE", b"VALUE1"), ea("TWO", b""), ea("THREE", b"x")];
    let mut out = vec![9];
    assert_eq!(put_eas(&eas, 1000, &mut out), Ok(Fill::Whole));
    assert_eq!(out.len() - 1, eas_len(&eas));
    assert_eq!(parse_eas(&out[1..]), Ok(eas.clone()));
    let mut cut = Vec::new();
    assert_eq!(put_eas(&eas, 33, &mut cut), Ok(Fill::Cut));
    assert_eq!(parse_eas(&cut), Ok(eas[..2].to_vec()));
    assert_eq!(put_eas(&eas, 19, &mut Vec::new()), Err(NtStatus::BUFFER_TOO_SMALL));
    let names = [&[12, 0, 0, 0, 5][..], b"EAONE\0\0", &[0, 0, 0, 0, 1, b'b', 0]].concat();
    assert_eq!(parse_ea_names(&names), Ok(vec!["EAONE".to_owned(), "b".to_owned()]));
    assert_eq!(parse_ea_names(&[]), Ok(vec![]));
    for bad in ["", "a=b", "a:b", "a*", "\u{e4}"] {
        let mut out = Vec::new();
        put_eas(&[ea(bad, b"x")], 1000, &mut out).unwrap();
        assert_eq!(parse_eas(&out), Err(NtStatus::INVALID_EA_NAME), "{bad:?}");
    }
    for at in 0..out.len() - 1 {
        assert_eq!(parse_eas(&out[1..=at]).ok(), None, "cut at {at}");
    }
    assert_eq!(
        parse_eas(&[&[5, 0, 0, 0][..], &[0; 20]].concat()),
        Err(NtStatus::EA_LIST_INCONSISTENT)
    );
}

#[test]
fn what_is_set_is_checked() {
    let parse = |class: u8, bytes: &[u8]| SetClass::from_wire(class).unwrap().parse(bytes);
    let negative = 0x8000_0000_0000_0000_u64.to_le_bytes();
    for class in [14, 19, 20, 39] {
        assert_eq!(parse(class, &negative), Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(parse(class, &[0; 7]), Err(NtStatus::INFO_LENGTH_MISMATCH));
    }
    assert_eq!(parse(20, &[5, 0, 0, 0, 0, 0, 0, 0]), Ok(Change::EndOfFile(5)));
    assert_eq!(
        parse(13, &[1]),
        Ok(Change::Disposition(Disposal { delete: true, ..Disposal::default() }))
    );
    let all = Disposal { delete: true, posix: true, on_close: true, ignore_readonly: true };
    assert_eq!(parse(64, &[0x1b, 0, 0, 0]), Ok(Change::Disposition(all)));
    assert_eq!(parse(16, &[1, 0, 0, 0]), Err(NtStatus::INVALID_PARAMETER));
    assert_eq!(parse(16, &[0x30, 0, 0, 0]), Err(NtStatus::INVALID_PARAMETER));
    assert_eq!(SetClass::from_wire(5), Err(NtStatus::INVALID_INFO_CLASS));
    let basic = |time: u64| {
        let mut bytes = Vec::new();
        [time, 0, u64::MAX, u64::MAX - 1].into_iter().for_each(|t| bytes.u64(t));
        bytes.u64(0x20);
        parse(4, &bytes)
    };
    let Ok(Change::Basic { times, attributes }) = basic(77) else { panic!("times") };
    assert_eq!((times.created, times.accessed), (FileTime(77), FileTime::NONE));
    assert_eq!((times.written, times.changed), (FileTime::FREEZE, FileTime::THAW));
    assert_eq!(attributes, Attributes::ARCHIVE);
    assert_eq!(basic(u64::MAX - 2), Err(NtStatus::INVALID_PARAMETER));
}

#[test]
fn renames_lead_to_a_path_or_a_stream() {
    let rename = |class: u8, flags: u32, root: u64, len: u32, name: &str| {
        let mut bytes = Vec::new();
        bytes.u32(flags);
        bytes.u32(0);
        bytes.u64(root);
        bytes.u32(len);
        bytes.put(&wide(name));
        SetClass::from_wire(class).unwrap().parse(&bytes)
    };
    let path = Target::Path(Path::parse_str("a\\b").unwrap());
    let taken = |replace, posix| Taken { replace, posix, ..Taken::default() };
    let renamed =
        |replace, posix| Ok(Change::Rename { target: path.clone(), taken: taken(replace, posix) });
    assert_eq!(rename(10, 1, 0, 6, "a\\b"), renamed(true, false));
    assert_eq!(
        rename(10, 0xffff_ff00, 0, 6, "a\\b"),
        renamed(false, false),
        "rubbish behind the byte"
    );
    assert_eq!(rename(10, 0, 0, 8, "\\a\\b"), renamed(false, false));
    assert_eq!(rename(65, 3, 0, 6, "a\\b"), renamed(true, true));
    assert_eq!(
        rename(11, 1, 0, 6, "a\\b"),
        Ok(Change::Link { target: path.clone(), taken: taken(true, false) })
    );
    let all = Taken { replace: true, posix: true, ignore_readonly: true };
    assert_eq!(
        rename(72, 0x43, 0, 6, "a\\b"),
        Ok(Change::Link { target: path.clone(), taken: all })
    );
    let Ok(Change::Rename { target, .. }) = rename(10, 0, 0, 16, ":s:$DATA") else {
        panic!("stream")
    };
    assert_eq!(target, Target::Stream(Stream::Named("s".to_owned())));
    for (root, len) in [(1, 6), (0, 0), (0, 8), (0, u32::MAX), (0, 5)] {
        assert_eq!(rename(10, 0, root, len, "a\\b"), Err(NtStatus::INVALID_PARAMETER));
    }
    assert_eq!(rename(10, 0, 0, 4, "a*"), Err(NtStatus::OBJECT_NAME_INVALID));
}

#[test]
fn changes_are_told_or_too_many() {
    let mut writer = NotifyWriter::new(100);
    writer.push(Action::Added, "a\\bc");
    writer.push(Action::RenamedNew, "d");
    let (status, bytes) = writer.finish();
    assert_eq!(status, NtStatus::SUCCESS);
    let all = entries(&bytes);
    assert_eq!(all[0], [&[20, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0][..], &wide("a\\bc")].concat());
    assert_eq!(all[1], [&[0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0][..], &wide("d")].concat());
    let mut writer = NotifyWriter::new(20);
    writer.push(Action::Added, "a\\bc");
    writer.push(Action::Removed, "d");
    assert_eq!(writer.finish(), (NtStatus::NOTIFY_ENUM_DIR, vec![]));
}

#[test]
fn links_and_special_files_come_back() {
    let absolute = Symlink {
        substitute: "\\??\\C:\\x".to_owned(),
        print: "C:\\x".to_owned(),
        relative: false,
    };
    assert_eq!(absolute.to_unix(), None);
    let link = Symlink::from_unix("../a/b");
    assert_eq!((link.substitute.as_str(), link.to_unix().as_deref()), ("..\\a\\b", Some("../a/b")));
    for point in [
        Reparse::Symlink(absolute),
        Reparse::Symlink(link.clone()),
        Reparse::Special(Special::Fifo),
        Reparse::Special(Special::Socket),
        Reparse::Special(Special::Char { major: 1, minor: 3 }),
        Reparse::Special(Special::Block { major: 8, minor: 0 }),
        Reparse::Other { tag: reparse::LX_BLK, bytes: vec![] },
        Reparse::Other { tag: 0x0000_1234, bytes: vec![7; 20] },
    ] {
        let bytes = point.to_bytes();
        assert_eq!(Reparse::parse(&bytes), Ok(point));
        for len in 0..bytes.len() {
            assert!(Reparse::parse(&bytes[..len]).is_err());
        }
    }
    // As WSL says it.
    let wsl = |tag: u32, body: &[u8]| {
        let len = u16::try_from(body.len()).unwrap();
        Reparse::parse(&[&tag.to_le_bytes()[..], &len.to_le_bytes(), &[0, 0], body].concat())
    };
    assert_eq!(wsl(reparse::LX_FIFO, &[]), Ok(Reparse::Special(Special::Fifo)));
    assert_eq!(wsl(reparse::AF_UNIX, &[]), Ok(Reparse::Special(Special::Socket)));
    let to = |form: u8| wsl(reparse::LX_SYMLINK, &[&[form, 0, 0, 0][..], b"../a/b"].concat());
    assert_eq!(to(2), Ok(Reparse::Symlink(link.clone())));
    assert_eq!(to(1), Err(NtStatus::IO_REPARSE_DATA_INVALID));
    let rooted = Symlink::from_unix("/a/b");
    assert_eq!((rooted.to_unix(), rooted.to_unix_absolute().as_deref()), (None, Some("/a/b")));
    for outward in ["\\??\\C:\\x", "\\\\server\\share", "C:\\x", "a\\b"] {
        let link = Symlink { substitute: outward.to_owned(), ..rooted.clone() };
        assert_eq!(link.to_unix_absolute(), None, "{outward}");
    }
    assert_eq!(Reparse::parse(&[1, 0, 0, 0, 0, 0, 0, 0]), Err(NtStatus::IO_REPARSE_TAG_INVALID));
    let long = [&reparse::AF_UNIX.to_le_bytes()[..], &[0; 20_000]].concat();
    assert_eq!(Reparse::parse(&long), Err(NtStatus::IO_REPARSE_DATA_INVALID));
    assert_eq!(reparse::parse_delete(&[12, 0, 0, 0xa0, 0, 0, 0, 0]), Ok(reparse::SYMLINK));
    assert!(reparse::parse_delete(&[12, 0, 0, 0xa0, 1, 0, 0, 0]).is_err());
    let error = link.to_error(6);
    assert_eq!(&error[..16], [48, 0, 0, 0, b'S', b'Y', b'M', b'L', 12, 0, 0, 0xa0, 36, 0, 6, 0]);
    assert_eq!(error.len(), 52);
}

#[test]
fn copies_have_limits() {
    let request = |count: u32, lens: &[u32]| {
        let mut bytes = vec![7; 24];
        bytes.u32(count);
        bytes.u32(0);
        for len in lens {
            [1, 2].into_iter().for_each(|n| bytes.u64(n));
            bytes.u64((*len).into());
        }
        CopyChunk::parse(&bytes).map(|copy| copy.chunks.len())
    };
    let limits = Err((NtStatus::INVALID_PARAMETER, Some(CopyChunkAnswer::LIMITS)));
    assert_eq!(request(0, &[]), Ok(0));
    assert_eq!(request(2, &[1, 1 << 20]), Ok(2));
    assert_eq!(request(257, &[]), limits);
    assert_eq!(request(1, &[0]), limits);
    assert_eq!(request(1, &[(1 << 20) + 1]), limits);
    assert_eq!(request(16, &[1 << 20; 16]), Ok(16));
    assert_eq!(request(17, &[1 << 20; 17]), limits);
    assert_eq!(request(2, &[1]), Err((NtStatus::INVALID_PARAMETER, None)));
    let mut out = Vec::new();
    put_resume_key(&[3; 24], &mut out);
    assert_eq!((out.len(), &out[24..]), (32, &[0; 8][..]));
}

#[test]
fn ranges_are_within_files() {
    let pair = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
    assert_eq!(parse_zero(&pair(10, 30)), Ok(Range { offset: 10, len: 20 }));
    let most = i64::MAX.cast_unsigned();
    for bad in [pair(30, 10), pair(u64::MAX, u64::MAX), vec![0; 15]] {
        assert_eq!(parse_zero(&bad), Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(parse_allocated(&pair(1, most)), Err(NtStatus::INVALID_PARAMETER));
    }
    assert_eq!(parse_allocated(&pair(1, most - 1)).map(|range| range.offset), Ok(1));
    let ranges = [Range { offset: 0, len: 1 }, Range { offset: 5, len: 2 }];
    for (limit, filled, len) in [
        (15, Err(NtStatus::BUFFER_TOO_SMALL), 0),
        (31, Ok(Fill::Cut), 16),
        (32, Ok(Fill::Whole), 32),
    ] {
        let mut out = Vec::new();
        assert_eq!((put_allocated(&ranges, limit, &mut out), out.len()), (filled, len));
    }
    assert_eq!(put_allocated(&[], 0, &mut Vec::new()), Ok(Fill::Whole));
    let mut out = Vec::new();
    assert_eq!(put_regions(&ranges, 40, &mut out), Ok(Fill::Cut));
    assert_eq!((out.len(), &out[4..12]), (40, &[2, 0, 0, 0, 1, 0, 0, 0][..]));
    assert_eq!(RegionQuery::parse(&[]).map(|query| query.usage), Ok(1));
    assert!(RegionQuery::parse(&[&pair(0, 1)[..], &[9; 8]].concat()).is_err());
    let mut duplicate = vec![1; 16];
    [4096u64, 0, 8192].into_iter().for_each(|n| duplicate.u64(n));
    assert_eq!(
        Duplicate::parse(&duplicate, false).map(|d| (d.from, d.to, d.len)),
        Ok((4096, 0, 8192))
    );
    assert_eq!(Duplicate::parse(&duplicate, true), Err(NtStatus::BUFFER_TOO_SMALL));
    duplicate[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(Duplicate::parse(&duplicate, false), Err(NtStatus::INVALID_PARAMETER));
}

#[test]
fn interfaces_are_listed() {
    let interface = |address: &str| Interface {
        index: 3,
        caps: InterfaceCaps::RSS,
        link_speed: 10_000_000_000,
        address: address.parse().unwrap(),
    };
    let both = [interface("192.0.2.1"), interface("2001:db8::1")];
    let mut out = Vec::new();
    assert_eq!(put_interfaces(&both, 303, &mut out), Err(NtStatus::BUFFER_TOO_SMALL));
    assert_eq!((put_interfaces(&both, 304, &mut out), out.len()), (Ok(()), 304));
    let all = entries(&out);
    assert_eq!(&all[0][..16], [152, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&all[0][24..36], [2, 0, 0, 0, 192, 0, 2, 1, 0, 0, 0, 0]);
    assert_eq!(&all[1][24..36], [0x17, 0, 0, 0, 0, 0, 0, 0, 0x20, 1, 0x0d, 0xb8]);
}

#[test]
fn small_answers_have_their_lengths() {
    let (volume, mut out) = (VolumeFacts::default(), Vec::new());
    assert_eq!((put_object_id(&volume, 1, 64, &mut out), out.len()), (Ok(()), 64));
    out.clear();
    assert_eq!((put_no_snapshots(16, &mut out), out.len()), (Ok(()), 16));
    out.clear();
    assert_eq!((put_on_disk_volume(&volume, 264, &mut out), out.len()), (Ok(()), 264));
    assert!(
        put_object_id(&volume, 1, 63, &mut out).is_err() && put_no_snapshots(15, &mut out).is_err()
    );
    let wait = [&[9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0][..], &wide("a")].concat();
    assert_eq!(PipeWait::parse(&wait), Ok(PipeWait { timeout: Some(9), name: "a".to_owned() }));
    assert_eq!(PipeWait::parse(&wait[..15]), Err(NtStatus::INVALID_PARAMETER));
    let negotiate = [&[1, 0, 0, 0][..], &[5; 16], &[1, 0, 2, 0, 0x10, 2, 0, 3]].concat();
    let read = ValidateNegotiate::parse(&negotiate).unwrap();
    assert_eq!((read.security_mode, read.dialects), (1, vec![0x210, 0x300]));
    assert!(ValidateNegotiate::parse(&negotiate[..27]).is_err());
}

#[test]
fn questions_about_quotas_are_understood() {
    let mut bytes = vec![1, 0, 0, 0];
    [24u32, 0, 0, 0, 16].into_iter().for_each(|n| bytes.u32(n));
    Sid::unix_user(7).put(&mut bytes);
    let query = QuotaQuery::parse(&bytes).unwrap();
    assert_eq!((query.single, query.restart, query.sids), (true, false, vec![Sid::unix_user(7)]));
    assert_eq!(QuotaQuery::parse(&bytes[..39]), Err(NtStatus::INVALID_PARAMETER));
    bytes[16] = 4;
    assert_eq!(
        QuotaQuery::parse(&bytes),
        Err(NtStatus::INVALID_PARAMETER),
        "an entry within another"
    );
}

proptest! {
    #[test]
    fn a_directory_is_listed_whole_over_any_buffers(
        names in prop::collection::vec("[a-z\u{e4}\u{1f600}]{1,20}", 1..40),
        len in 200usize..600,
        class in 0usize..9,
    ) {
        let (class, name_at) = DIRECTORY_CLASSES[class];
        let (mut found, mut at) = (Vec::new(), 0);
        while at < names.len() {
            let mut buffer = Vec::new();
            let mut writer = DirectoryWriter::new(class, &mut buffer, len);
            let start = at;
            while at < names.len() && writer.push(&facts(), &names[at]) {
                at += 1;
            }
            prop_assert!(at > start && !writer.is_empty() && writer.len() <= len);
            let written = writer.len();
            prop_assert_eq!(buffer.len(), written, "what does not fit leaves no trace");
            for (entry, name) in entries(&buffer).iter().zip(&names[start..]) {
                prop_assert_eq!(&entry[name_at..name_at + utf16::len(name)], &wide(name)[..]);
                found.push(name.clone());
            }
        }
        prop_assert_eq!(found, names);
    }

    #[test]
    fn nothing_that_is_set_panics(class in 0u8..=255, bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(class) = SetClass::from_wire(class) {
            let _ = class.parse(&bytes);
        }
        let _ = (CopyChunk::parse(&bytes), Duplicate::parse(&bytes, true), PipeWait::parse(&bytes));
        let _ = (QuotaQuery::parse(&bytes), ValidateNegotiate::parse(&bytes), parse_ea_names(&bytes));
        if let Ok(point) = Reparse::parse(&bytes) {
            prop_assert_eq!(Reparse::parse(&point.to_bytes()), Ok(point));
        }
    }

    #[test]
    fn attributes_come_back(
        eas in prop::collection::vec(("[A-Za-z0-9. ]{1,255}", prop::collection::vec(any::<u8>(), 0..300)), 1..6)
    ) {
        let eas: Vec<Ea> = eas.iter().map(|(name, value)| ea(name, value)).collect();
        let mut out = Vec::new();
        prop_assert_eq!(put_eas(&eas, usize::MAX, &mut out), Ok(Fill::Whole));
        prop_assert_eq!(out.len(), eas_len(&eas));
        prop_assert_eq!(parse_eas(&out), Ok(eas));
    }
}

//! Blocks that two files share, on file systems that can do that: an image of each, mounted for the server alone.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command as Program;
use std::time::Duration;

use e2e::installed;
use e2e::run::{outcome, skipped};
use smb::wire::header::Command;
use smb::wire::ioctl;
use smb::wire::negotiate::dialect::SMB_3_1_1;
use smb::{FileId, NtStatus};

use super::client::{Answer, Client};
use super::disks::{refused, with_mount};
use super::{Folder, Server, block};

const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;
const HALF: u64 = 512 << 10;

// MS-FSCC 2.3, MS-SMB2 2.2.31.
const REQUEST_RESUME_KEY: u32 = 0x0014_0078;
const COPYCHUNK: u32 = 0x0014_40f2;
const DUPLICATE_EXTENTS: u32 = 0x0009_8344;
const DUPLICATE_EXTENTS_EX: u32 = 0x0009_83e8;
/// FileEndOfFileInformation (MS-FSCC 2.4.13).
const END_OF_FILE: u8 = 20;

/// A file system, how an image of it is made, and how large that is at least.
const KINDS: [(&str, &[&str], u64); 2] = [
    ("btrfs", &["mkfs.btrfs", "-q", "-f"], 128 << 20),
    ("xfs", &["mkfs.xfs", "-q", "-f", "-m", "reflink=1"], 320 << 20),
];

/// An extent as the file system tells it (FIEMAP).
#[derive(Debug, PartialEq, Eq)]
struct Extent {
    logical: u64,
    physical: u64,
    len: u64,
    shared: bool,
}

/// Where the bytes of a file lie, all of them written to the disk first.
fn extents(path: &Path) -> Vec<Extent> {
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Told {
        logical: u64,
        physical: u64,
        len: u64,
        reserved: [u64; 2],
        flags: u32,
        more: [u32; 3],
    }
    #[repr(C)]
    struct Asked {
        start: u64,
        len: u64,
        flags: u32,
        mapped: u32,
        room: u32,
        reserved: u32,
        extents: [Told; 64],
    }
    // `FS_IOC_FIEMAP`, `FIEMAP_FLAG_SYNC` and `FIEMAP_EXTENT_SHARED` of `linux/fiemap.h`.
    const FIEMAP: u64 = 0xc020_660b;
    const SYNC: u32 = 1;
    const SHARED: u32 = 0x2000;
    let file = File::open(path).unwrap();
    let mut asked = Asked {
        start: 0,
        len: u64::MAX,
        flags: SYNC,
        mapped: 0,
        room: 64,
        reserved: 0,
        extents: [Told::default(); 64],
    };
    // SAFETY: the structure of the call, with room for as many extents as it says.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, &raw mut asked) };
    assert_eq!(done, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
    let told = &asked.extents[..asked.mapped as usize];
    let extent = |told: &Told| Extent {
        logical: told.logical,
        physical: told.physical,
        len: told.len,
        shared: told.flags & SHARED != 0,
    };
    told.iter().map(extent).collect()
}

fn control(client: &mut Client, code: u32, file: FileId, input: &[u8]) -> Answer<Vec<u8>> {
    let request = ioctl::Request { code, file, input, output_max: 64, ..ioctl::Request::default() };
    let (_, answer) = client.ask(Command::Ioctl, 1, &request)?;
    Ok(ioctl::Response::parse(&answer)?.output.to_vec())
}

fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// DUPLICATE_EXTENTS_DATA: so many bytes of the source, from and to there.
fn duplicate(source: FileId, from: u64, to: u64, len: u64) -> Vec<u8> {
    words(&[source.persistent, source.volatile, from, to, len])
}

/// A server on a new file system of this kind; `None`: it cannot be, and that was said.
fn on(kind: &str, make: &[&str], len: u64, folder: &Path, image: &Path) -> Option<Server> {
    let Some(program) = installed(make[0]) else {
        skipped(&format!("there is no {}: no {kind} to share blocks on", make[0]));
        return None;
    };
    File::create(image).unwrap().set_len(len).unwrap();
    let made = outcome(Program::new(program).args(&make[1..]).arg(image), LIMIT);
    assert!(made.ok(), "{make:?}: {made:?}");
    let mount = format!("mount -t {kind} -o loop {} $D", image.display());
    let try_it = format!("D={}; {mount}", folder.display());
    let tried = outcome(Program::new("unshare").args(["-m", "sh", "-c", &try_it]), LIMIT);
    if !tried.ok() {
        skipped(&format!("{kind} cannot be mounted here: {}", tried.err.trim()));
        return None;
    }
    with_mount(folder, &format!("{mount} && chmod 777 $D"), &[])
}

/// A new file of a megabyte that has nothing yet: what is behind the end of a target is not duplicated.
fn target(client: &mut Client, name: &str) -> FileId {
    let file = client.open(name).unwrap();
    client.set_info(file, END_OF_FILE, &words(&[MIB as u64])).unwrap();
    file
}

#[test]
fn blocks_are_shared_where_the_file_system_can() {
    for (kind, make, len) in KINDS {
        let (folder, aside) = (Folder::new(), Folder::new());
        let image = aside.file("image");
        let Some(mut server) = on(kind, make, len, folder.path(), &image) else { continue };
        // As the server sees it: nobody else has it mounted.
        let seen = |name: &str| {
            let root = Path::new("/proc").join(server.serving().to_string()).join("root");
            root.join(folder.file(name).strip_prefix("/").unwrap())
        };
        let mut client = Client::ready(server.port, SMB_3_1_1).unwrap();
        let bytes = block(1, MIB);
        let source = client.open("source").unwrap();
        assert_eq!(client.write(source, 0, &bytes, false).unwrap() as usize, MIB);
        assert!(extents(&seen("source")).iter().all(|extent| !extent.shared), "{kind}: not yet");

        // One half by each form of the request.
        let twin = target(&mut client, "twin");
        let first = duplicate(source, 0, 0, HALF);
        control(&mut client, DUPLICATE_EXTENTS, twin, &first).unwrap();
        let second = [words(&[48]), duplicate(source, HALF, HALF, HALF), words(&[0])].concat();
        control(&mut client, DUPLICATE_EXTENTS_EX, twin, &second).unwrap();
        // Whole, by chunks: the file system shares rather than copies.
        let key = control(&mut client, REQUEST_RESUME_KEY, source, &[]).unwrap();
        let chunk = [words(&[0, 0]), words(&[MIB as u64])].concat();
        let chunks = [&key[..24], &1u32.to_le_bytes(), &[0; 4], &chunk].concat();
        let copy = target(&mut client, "copy");
        control(&mut client, COPYCHUNK, copy, &chunks).unwrap();

        let of_source = extents(&seen("source"));
        for (name, file) in [("twin", twin), ("copy", copy)] {
            assert!(client.read(file, 0, 1 << 20).unwrap() == bytes, "{kind}, {name}");
            let found = extents(&seen(name));
            let whole: u64 = found.iter().map(|extent| extent.len).sum();
            assert!(whole >= MIB as u64, "{kind}, {name}: a part has no blocks: {found:?}");
            for extent in found {
                let at = of_source
                    .iter()
                    .find(|of| (of.logical..of.logical + of.len).contains(&extent.logical));
                let at = at.map(|of| of.physical + (extent.logical - of.logical));
                assert!(extent.shared, "{kind}, {name}: copied: {extent:?}");
                assert_eq!(at, Some(extent.physical), "{kind}, {name}: other blocks");
            }
        }
        assert!(of_source.iter().all(|extent| extent.shared), "{kind}: {of_source:?}");

        // Shared until one of them changes, and then only there.
        let other = block(2, 4096);
        client.write(twin, 8192, &other, false).unwrap();
        for (file, wanted) in [(source, &bytes[8192..12288]), (copy, &bytes[8192..12288])] {
            assert!(client.read(file, 8192, 4096).unwrap() == wanted, "{kind}: theirs changed");
        }
        assert!(client.read(twin, 8192, 4096).unwrap() == other, "{kind}");
        // What is no whole block cannot be shared, and is never copied instead.
        let odd = duplicate(source, 0, 100, 1000);
        let refusal = refused(control(&mut client, DUPLICATE_EXTENTS, copy, &odd));
        assert_eq!(refusal, NtStatus::INVALID_PARAMETER, "{kind}");
        assert!(client.read(copy, 0, 1 << 20).unwrap() == bytes, "{kind}: what was refused came");
        server.must_live();
    }
}

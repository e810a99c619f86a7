//! What a client writes to a pipe: anything, and requests with any arguments.
#![no_main]

use std::sync::Arc;

use smb::rpc::{Accounts, Host, Pipe, PipeKind, Share};

/// The interfaces of the pipes, and their versions.
const PIPES: [(PipeKind, &[u8; 16], u8); 3] = [
    (PipeKind::Srvsvc, b"\xc8\x4f\x32\x4b\x70\x16\xd3\x01\x12\x78\x5a\x47\xbf\x6e\xe1\x88", 3),
    (PipeKind::Wkssvc, b"\x98\xd0\xff\x6b\x12\xa1\x10\x36\x98\x33\x46\xc3\xf8\x7e\x34\x5a", 1),
    (PipeKind::Lsarpc, b"\x78\x57\x34\x12\x34\x12\xcd\xab\xef\x00\x01\x23\x45\x67\x89\xab", 0),
];

/// A BIND for NDR.
fn bind(interface: &[u8; 16], version: u8) -> Vec<u8> {
    let head = b"\x05\x00\x0b\x03\x10\0\0\0\x48\0\0\0\x01\0\0\0\xb8\x10\xb8\x10\0\0\0\0\x01\0\0\0\0\0\x01\0";
    let ndr = b"\x04\x5d\x88\x8a\xeb\x1c\xc9\x11\x9f\xe8\x08\x00\x2b\x10\x48\x60\x02\0\0\0";
    [&head[..], interface, &[version, 0, 0, 0], ndr].concat()
}

/// Everybody is called by their number.
#[derive(Debug)]
struct Numbers;

impl Accounts for Numbers {
    fn user_name(&self, uid: u32) -> Option<String> {
        Some(uid.to_string())
    }

    fn group_name(&self, gid: u32) -> Option<String> {
        (gid % 2 == 0).then(|| gid.to_string())
    }

    fn uid(&self, name: &str) -> Option<u32> {
        name.parse().ok()
    }

    fn gid(&self, name: &str) -> Option<u32> {
        name.parse().ok()
    }
}

fn read_all(pipe: &mut Pipe, host: &Host) {
    while let Ok(chunk) = pipe.read(512, host) {
        assert!(chunk.bytes.len() <= 512);
    }
    assert_eq!(pipe.waiting(), 0);
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let share = Share { name: "data".to_owned(), ..Share::default() };
    let accounts: Option<Arc<dyn Accounts>> = Some(Arc::new(Numbers));
    let host =
        Host { name: "SRV".to_owned(), shares: vec![share; 100], accounts, ..Host::default() };
    let mut pipe = Pipe::new(PipeKind::Srvsvc);
    for part in bytes.chunks(64) {
        let _ = pipe.write(part, &host);
        read_all(&mut pipe, &host);
    }
    // Which pipe is the first of the bytes, and the number of the call the second.
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let (kind, interface, version) = PIPES[usize::from(first) % PIPES.len()];
    let mut pipe = Pipe::new(kind);
    pipe.transceive(&bind(interface, version), 4280, &host).expect("a BIND that is taken");
    // Most calls of the third one begin with the handle that it has given.
    let mut handle = Vec::new();
    if kind == PipeKind::Lsarpc && first & 0x80 == 0 {
        let open = request(&[44, 0]).expect("it is short");
        let opened = pipe.transceive(&open, 4280, &host).expect("it is opened").bytes;
        handle.extend_from_slice(&opened[24..44]);
    }
    let number = bytes.get(..2).unwrap_or(bytes);
    let arguments = bytes.get(2..).unwrap_or(&[]);
    let Some(request) = request(&[number, &handle, arguments].concat()) else { return };
    let _ = pipe.write(&request, &host);
    read_all(&mut pipe, &host);
});

/// A request: the number of the call, and its arguments. `None` if it is too long for one unit.
fn request(bytes: &[u8]) -> Option<Vec<u8>> {
    let [low, high] = u16::try_from(bytes.len() + 22).ok()?.to_le_bytes();
    let head = [5, 0, 0, 3, 0x10, 0, 0, 0, low, high, 0, 0, 1, 0, 0, 0];
    Some([&head[..], &[0; 6], bytes].concat())
}

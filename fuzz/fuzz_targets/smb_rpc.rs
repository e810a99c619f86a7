//! What a client writes to a pipe: anything, and requests with any arguments.
#![no_main]

use smb::rpc::{Host, Pipe, PipeKind, Share};

/// A BIND for NDR and `srvsvc`.
const BIND: &[u8] =
    b"\x05\x00\x0b\x03\x10\0\0\0\x48\0\0\0\x01\0\0\0\xb8\x10\xb8\x10\0\0\0\0\x01\0\0\0\
    \0\0\x01\0\xc8\x4f\x32\x4b\x70\x16\xd3\x01\x12\x78\x5a\x47\xbf\x6e\xe1\x88\x03\0\0\0\
    \x04\x5d\x88\x8a\xeb\x1c\xc9\x11\x9f\xe8\x08\x00\x2b\x10\x48\x60\x02\0\0\0";

fn read_all(pipe: &mut Pipe) {
    while let Ok(chunk) = pipe.read(512) {
        assert!(chunk.bytes.len() <= 512);
    }
    assert_eq!(pipe.waiting(), 0);
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let share = Share { name: "data".to_owned(), ..Share::default() };
    let host = Host { name: "SRV".to_owned(), shares: vec![share; 100], ..Host::default() };
    let mut pipe = Pipe::new(PipeKind::Srvsvc);
    for part in bytes.chunks(64) {
        let _ = pipe.write(part, &host);
        read_all(&mut pipe);
    }
    let mut pipe = Pipe::new(PipeKind::Srvsvc);
    pipe.transceive(BIND, 4280, &host).expect("a BIND that is taken");
    let Ok(len) = u16::try_from(bytes.len() + 22) else { return };
    let head =
        [5, 0, 0, 3, 0x10, 0, 0, 0, len.to_le_bytes()[0], len.to_le_bytes()[1], 0, 0, 1, 0, 0, 0];
    // The number of the call is the first of the bytes.
    let request = [&head[..], &[0; 6], bytes].concat();
    let _ = pipe.write(&request, &host);
    read_all(&mut pipe);
});

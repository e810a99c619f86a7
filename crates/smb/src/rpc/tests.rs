use proptest::prelude::*;

use super::pdu::{FIRST, HEAD, Head, LAST, Syntax, kind};
use super::{Host, Pipe, PipeKind, Share};
use crate::fscc::{Put, Reader};
use crate::name::utf16;
use crate::{FileTime, NtStatus};

fn share(name: &str) -> Share {
    let ipc = name == "IPC$";
    Share {
        name: name.to_owned(),
        is_ipc: ipc,
        is_hidden: name == "secret$",
        comment: format!("about {name}"),
        path: "C:\\x".to_owned(),
        users: 3,
    }
}

fn host(shares: &[&str]) -> Host {
    Host {
        name: "SRV".to_owned(),
        domain: "GROUP".to_owned(),
        comment: "a server".to_owned(),
        shares: shares.iter().map(|name| share(name)).collect(),
        now: FileTime::from_unix(1_709_210_096, 250_000_000), // 2024-02-29 12:34:56.25
        caller: String::new(),
        accounts: None,
    }
}

/// The BIND of a client that offers NDR in 64 bits and asks for features, as Windows does.
fn bind(interface: Syntax, receive_max: u16) -> Vec<u8> {
    let mut body = Vec::new();
    body.u16(4280);
    body.u16(receive_max);
    body.u32(0);
    body.u32(3);
    let ndr64: [u8; 16] = *b"\x33\x05\x71\x71\xba\xbe\x37\x49\x83\x19\xb5\xdb\xef\x9c\xcc\x36";
    let features: [u8; 16] = *b"\x2c\x1c\xb7\x6c\x12\x98\x40\x45\x03\x00\x00\x00\x00\x00\x00\x00";
    for (id, transfer, version) in [(0, Syntax::NDR.uuid, 2), (1, ndr64, 1), (2, features, 1)] {
        body.u16(id);
        body.u16(1);
        body.put(&interface.uuid);
        body.u32(interface.version);
        body.put(&transfer);
        body.u32(version);
    }
    Head::put(kind::BIND, FIRST | LAST, 7, &body)
}

fn request(flags: u8, call: u32, context: u16, number: u16, arguments: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.u32(0);
    body.u16(context);
    body.u16(number);
    body.put(arguments);
    Head::put(kind::REQUEST, flags, call, &body)
}

fn string(text: &str, out: &mut Vec<u8>) {
    let units = u32::try_from(utf16::len(text) / 2 + 1).unwrap();
    [units, 0, units].into_iter().for_each(|n| out.u32(n));
    utf16::append(text, out);
    out.u16(0);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Arguments of NetrShareEnum.
fn share_enum(level: u32) -> Vec<u8> {
    let mut out = Vec::new();
    out.u32(1);
    string("\\\\server", &mut out);
    [level, level, 1, 0, 0, u32::MAX, 1, 0].into_iter().for_each(|n| out.u32(n));
    out
}

fn bound(pipe: PipeKind, host: &Host) -> Pipe {
    let interface = if pipe == PipeKind::Srvsvc { Syntax::SRVSVC } else { Syntax::WKSSVC };
    let mut pipe = Pipe::new(pipe);
    let answer = pipe.transceive(&bind(interface, 4280), 4280, host).unwrap();
    assert_eq!((answer.more, answer.bytes[2]), (false, kind::BIND_ACK));
    pipe
}

/// The results of one call, from all its fragments.
fn results(pipe: &mut Pipe, host: &Host) -> (u8, Vec<u8>) {
    let mut all = Vec::new();
    loop {
        let unit = pipe.read(usize::MAX, host).unwrap().bytes;
        let head = Head::parse(unit.first_chunk().unwrap()).unwrap();
        assert_eq!(usize::from(head.len), unit.len());
        all.extend_from_slice(&unit[HEAD + 8..]);
        if head.flags & LAST != 0 {
            return (head.kind, all);
        }
    }
}

fn call(pipe: &mut Pipe, host: &Host, number: u16, arguments: &[u8]) -> Vec<u8> {
    pipe.write(&request(FIRST | LAST, 9, 0, number, arguments), host).unwrap();
    let (kind, results) = results(pipe, host);
    assert_eq!(kind, kind::RESPONSE);
    results
}

fn last_u32(results: &[u8]) -> u32 {
    u32::from_le_bytes(*results.last_chunk().unwrap())
}

#[test]
fn bind_takes_ndr_refuses_its_64_bits_and_knows_no_features() {
    let mut pipe = Pipe::new(PipeKind::Srvsvc);
    let answer =
        pipe.transceive(&bind(Syntax::SRVSVC, 4280), 4280, &Host::default()).unwrap().bytes;
    let mut body = Reader::new(&answer[HEAD..]);
    assert_eq!((body.u16(), body.u16()), (Some(4280), Some(4280)));
    assert_ne!(body.u32(), Some(0));
    assert_eq!(body.u16(), Some(13));
    assert_eq!(body.bytes(13), Some(&b"\\PIPE\\srvsvc\0"[..]));
    body.bytes(1);
    assert_eq!(body.u32(), Some(3));
    let mut verdict = || {
        let verdict = (body.u16(), body.u16());
        (verdict, body.bytes(20).unwrap()[0])
    };
    assert_eq!(verdict(), ((Some(0), Some(0)), 4));
    assert_eq!(verdict(), ((Some(2), Some(2)), 0));
    assert_eq!(verdict(), ((Some(3), Some(0)), 0));
}

#[test]
fn another_interface_is_refused_and_cannot_be_called() {
    let mut pipe = Pipe::new(PipeKind::Srvsvc);
    let host = Host::default();
    let answer = pipe.transceive(&bind(Syntax::WKSSVC, 4280), 4280, &host).unwrap().bytes;
    let verdict = &answer[HEAD + 28..HEAD + 32];
    assert_eq!(verdict, [2, 0, 1, 0]);
    pipe.write(&request(FIRST | LAST, 9, 0, 15, &[]), &host).unwrap();
    let (kind, fault) = results(&mut pipe, &host);
    assert_eq!((kind, &fault[..4]), (kind::FAULT, &0x1c01_0003_u32.to_le_bytes()[..]));
}

#[test]
fn clients_that_take_next_to_nothing_are_refused() {
    let mut pipe = Pipe::new(PipeKind::Srvsvc);
    let answer = pipe.transceive(&bind(Syntax::SRVSVC, 100), 4280, &Host::default()).unwrap();
    assert_eq!(answer.bytes[2], kind::BIND_NAK);
    let answer = pipe.transceive(&bind(Syntax::SRVSVC, 4280), 4280, &Host::default()).unwrap();
    assert_eq!(answer.bytes[2], kind::BIND_ACK, "one may try again");
}

#[test]
fn shares_are_listed() {
    let host = host(&["IPC$", "data", "secret$"]);
    let mut pipe = bound(PipeKind::Srvsvc, &host);
    let results = call(&mut pipe, &host, 15, &share_enum(1));
    let mut expected = Vec::new();
    [1, 1, 0x2_0000, 2, 0x2_0004, 2].into_iter().for_each(|n| expected.u32(n));
    [0x2_0008, 0x8000_0003, 0x2_000c].into_iter().for_each(|n| expected.u32(n));
    [0x2_0010, 0, 0x2_0014].into_iter().for_each(|n| expected.u32(n));
    ["IPC$", "about IPC$", "data", "about data"].iter().for_each(|s| string(s, &mut expected));
    [2, 0x2_0018, 0, 0].into_iter().for_each(|n| expected.u32(n));
    assert_eq!(results, expected);
    for level in [0, 2, 501, 502] {
        assert_eq!(last_u32(&call(&mut pipe, &host, 15, &share_enum(level))), 0, "level {level}");
    }
    assert_eq!(last_u32(&call(&mut pipe, &host, 15, &share_enum(3))), 124);
    let empty = call(&mut pipe, &Host::default(), 15, &share_enum(1));
    assert_eq!(&empty[..20], &[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_long_list_comes_in_fragments_and_is_read_in_pieces() {
    let names: Vec<String> = (0..300).map(|n| format!("share number {n}")).collect();
    let host = host(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut pipe = bound(PipeKind::Srvsvc, &host);
    let whole = call(&mut pipe, &host, 15, &share_enum(1));
    assert!(whole.len() > 4 * 4280);
    let mut chunk =
        pipe.transceive(&request(FIRST | LAST, 9, 0, 15, &share_enum(1)), 100, &host).unwrap();
    assert!(chunk.more && chunk.bytes.len() == 100 && chunk.status() == NtStatus::BUFFER_OVERFLOW);
    let busy = pipe.transceive(&request(FIRST | LAST, 9, 0, 15, &[]), 100, &host);
    assert_eq!(busy, Err(NtStatus::PIPE_BUSY));
    let (mut stream, mut left) = (chunk.bytes.clone(), pipe.waiting());
    while left > 0 {
        chunk = pipe.read(777, &host).unwrap();
        left -= chunk.bytes.len();
        assert_eq!(left, pipe.waiting());
        stream.extend_from_slice(&chunk.bytes);
    }
    let (mut rest, mut again) = (&stream[..], Vec::new());
    while !rest.is_empty() {
        let head = Head::parse(rest.first_chunk().unwrap()).unwrap();
        let (unit, behind) = rest.split_at(head.len.into());
        assert_eq!(head.flags & FIRST != 0, again.is_empty());
        assert_eq!(head.flags & LAST != 0, behind.is_empty());
        again.extend_from_slice(&unit[HEAD + 8..]);
        rest = behind;
    }
    assert_eq!(again, whole);
    assert_eq!(pipe.read(1, &host), Err(NtStatus::PIPE_EMPTY));
}

#[test]
fn a_request_may_come_in_fragments_and_those_in_pieces() {
    let host = host(&["data"]);
    let mut pipe = bound(PipeKind::Srvsvc, &host);
    let arguments = share_enum(1);
    let (first, rest) = arguments.split_at(24);
    let (second, third) = rest.split_at(8);
    let mut bytes = request(FIRST, 9, 0, 15, first);
    bytes.extend(request(0, 9, 0, 15, second));
    bytes.extend(request(LAST, 9, 0, 15, third));
    for byte in &bytes[..bytes.len() - 1] {
        pipe.write(&[*byte], &host).unwrap();
        assert_eq!(pipe.waiting(), 0);
    }
    pipe.write(&bytes[bytes.len() - 1..], &host).unwrap();
    let (_, pieces) = results(&mut pipe, &host);
    assert_eq!(pieces, call(&mut pipe, &host, 15, &arguments));
}

#[test]
fn one_share_is_told_of() {
    let host = host(&["IPC$", "data"]);
    let mut pipe = bound(PipeKind::Srvsvc, &host);
    let mut info = |name: &str, level: u32| {
        let mut arguments = Vec::new();
        arguments.u32(0);
        string(name, &mut arguments);
        arguments.u32(level);
        call(&mut pipe, &host, 16, &arguments)
    };
    for level in [0, 1, 2, 501, 502, 1005] {
        let results = info("DATA", level);
        assert_eq!((&results[..4], last_u32(&results)), (&level.to_le_bytes()[..], 0));
    }
    assert_eq!(info("data", 1005), [0xed, 3, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(last_u32(&info("nothing", 1)), 2310);
    assert_eq!(last_u32(&info("data", 77)), 124);
}

#[test]
fn the_server_and_its_clock_are_told_of() {
    let host = host(&[]);
    let mut pipe = bound(PipeKind::Srvsvc, &host);
    for (level, status) in [(100u32, 0), (101, 0), (102, 0), (599, 124)] {
        let mut arguments = Vec::new();
        arguments.u32(0);
        arguments.u32(level);
        assert_eq!(last_u32(&call(&mut pipe, &host, 21, &arguments)), status);
    }
    let results = call(&mut pipe, &host, 28, &[0; 4]);
    let words: Vec<u32> =
        results.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    assert_eq!(words[1], 1_709_210_096);
    assert_eq!(words[3..], [12, 34, 56, 25, 0, 310, 29, 2, 2024, 4, 0]);
    let mut pipe = bound(PipeKind::Wkssvc, &host);
    for (level, status) in [(100u32, 0), (101, 0), (502, 124)] {
        let mut arguments = Vec::new();
        arguments.u32(0);
        arguments.u32(level);
        assert_eq!(last_u32(&call(&mut pipe, &host, 0, &arguments)), status);
    }
}

#[test]
fn days_have_dates() {
    let cases =
        [(0, (1970, 1, 1)), (789, (1972, 2, 29)), (11_016, (2000, 2, 29)), (19_782, (2024, 2, 29))];
    for (days, date) in cases {
        assert_eq!(super::srvsvc::date(days), date);
    }
}

#[test]
fn what_cannot_be_called_faults() {
    let host = Host::default();
    let mut pipe = bound(PipeKind::Srvsvc, &host);
    let cases = [(14, &[][..], 0x1c01_0002_u32), (15, &[][..], 0x6f7), (16, &[0; 4], 0x6f7)];
    for (number, arguments, status) in cases {
        pipe.write(&request(FIRST | LAST, 9, 0, number, arguments), &host).unwrap();
        let (kind, fault) = results(&mut pipe, &host);
        assert_eq!((kind, &fault[..4]), (kind::FAULT, &status.to_le_bytes()[..]));
    }
}

#[test]
fn who_breaks_the_protocol_is_cut_off() {
    let host = Host::default();
    let before = request(FIRST | LAST, 1, 0, 15, &[]);
    let mut version = bind(Syntax::SRVSVC, 4280);
    version[0] = 4;
    let mut big_endian = bind(Syntax::SRVSVC, 4280);
    big_endian[4] = 0;
    let mut short = bind(Syntax::SRVSVC, 4280);
    short[8..10].copy_from_slice(&[15, 0]);
    for bytes in [before, version, big_endian, short] {
        let mut pipe = Pipe::new(PipeKind::Srvsvc);
        assert_eq!(pipe.write(&bytes, &host), Err(NtStatus::PIPE_DISCONNECTED));
        assert_eq!(pipe.read(100, &host), Err(NtStatus::PIPE_DISCONNECTED));
        assert_eq!(pipe.write(&[], &host), Err(NtStatus::PIPE_DISCONNECTED));
    }
    // Two calls at once, a middle without a beginning, a call without an end.
    let endless = |pipe: &mut Pipe| {
        (0..200)
            .try_for_each(|n| pipe.write(&request(u8::from(n == 0), 3, 0, 15, &[0; 4000]), &host))
    };
    let twice = [request(FIRST, 3, 0, 15, &[]), request(FIRST, 4, 0, 15, &[])].concat();
    assert!(bound(PipeKind::Srvsvc, &host).write(&twice, &host).is_err());
    assert!(bound(PipeKind::Srvsvc, &host).write(&request(LAST, 3, 0, 15, &[]), &host).is_err());
    assert!(endless(&mut bound(PipeKind::Srvsvc, &host)).is_err());
}

#[test]
fn who_does_not_read_may_not_write() {
    let names: Vec<String> = (0..3000).map(|n| format!("share number {n}")).collect();
    let host = host(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut pipe = bound(PipeKind::Srvsvc, &host);
    let bytes = request(FIRST | LAST, 9, 0, 15, &share_enum(1));
    let refused = (0..100).find_map(|_| pipe.write(&bytes, &host).err());
    assert_eq!(refused, Some(NtStatus::INSUFFICIENT_RESOURCES));
    while pipe.read(65_536, &host).is_ok() {}
    assert_eq!(pipe.write(&bytes, &host), Ok(()));
}

/// All calls of one write are answered, as fast as the answers are read.
#[test]
fn so_much_waits_and_one_answer_more() {
    let names: Vec<String> = (0..300).map(|n| format!("share number {n}")).collect();
    let host = host(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut pipe = bound(PipeKind::Srvsvc, &host);
    let answer = call(&mut pipe, &host, 15, &share_enum(1)).len();
    let one = request(FIRST | LAST, 9, 0, 15, &share_enum(1));
    let count = (64 << 10) / one.len();
    assert_eq!(pipe.write(&one.repeat(count), &host), Ok(()));
    for left in (0..count).rev() {
        assert!(pipe.waiting() <= (64 << 10) + answer + answer / 100, "{} wait", pipe.waiting());
        assert_eq!(pipe.write(&[], &host).is_err(), pipe.waiting() > 64 << 10);
        assert_eq!(results(&mut pipe, &host).1.len(), answer, "{left} left");
    }
    assert_eq!((pipe.waiting(), pipe.units()), (0, 0));
    // The protocol is broken behind what waits: that is read, and no more.
    let broken = [&one.repeat(10)[..], &[0; 100]].concat();
    assert_eq!(pipe.write(&broken, &host), Ok(()));
    for _ in 0..10 {
        assert_eq!(results(&mut pipe, &host).1.len(), answer);
    }
    assert_eq!(pipe.read(1, &host), Err(NtStatus::PIPE_DISCONNECTED));
    assert_eq!(pipe.write(&one, &host), Err(NtStatus::PIPE_DISCONNECTED));
}

#[test]
fn pipes_have_names() {
    for (name, pipe) in [
        ("srvsvc", Ok(PipeKind::Srvsvc)),
        ("\\PIPE\\WKSSVC", Ok(PipeKind::Wkssvc)),
        ("\\lsass", Ok(PipeKind::Lsarpc)),
        ("samr", Err(NtStatus::OBJECT_NAME_NOT_FOUND)),
    ] {
        assert_eq!(PipeKind::from_name(name), pipe);
    }
}

/// A pipe to which anything is written.
fn hostile(writes: &[Vec<u8>], host: &Host) {
    let mut pipe = bound(PipeKind::Srvsvc, host);
    for bytes in writes {
        let _ = pipe.write(bytes, host);
        while let Ok(chunk) = pipe.read(1000, host) {
            assert!(chunk.bytes.len() <= 1000);
        }
        assert_eq!(pipe.waiting(), 0);
    }
}

proptest! {
    #[test]
    fn nothing_panics(
        writes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..8),
        number in 0u16..40,
        arguments in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..100),
    ) {
        let host = host(&["IPC$", "data"]);
        hostile(&writes, &host);
        hostile(&[request(FIRST | LAST, 1, 0, number, &arguments)], &host);
    }
}

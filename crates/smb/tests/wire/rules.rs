//! What is refused, and why.

use smb::wire::context::{Chain, Contexts, Lease, Requested, name};
use smb::wire::header::{Command, HEADER_LEN, Header, Patch};
use smb::wire::negotiate::{Context, dialect};
use smb::wire::*;
use smb::{FileId, OplockLevel};

/// The message that is `body` behind a header.
fn message(command: Command, body: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    let start = Header::request(command).encode(&mut out);
    body.encode(&mut out, start);
    out
}

/// `bytes` with the 16 bits at `at`, from the body's beginning, changed.
fn with16(bytes: &[u8], at: usize, value: u16) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[HEADER_LEN + at..HEADER_LEN + at + 2].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn with32(bytes: &[u8], at: usize, value: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[HEADER_LEN + at..HEADER_LEN + at + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

type Parse = fn(&[u8]) -> Result<(), BadMessage>;

/// Each request, the bytes below which it is none, and how it is read. smbd asks for one byte more than the fixed
/// part where StructureSize is odd, except of IOCTL, QUERY_INFO and WRITE.
fn requests() -> Vec<(Vec<u8>, usize, Parse)> {
    let dialects = U16s::bytes_of(&[dialect::SMB_2_1]);
    let mut element = Vec::new();
    lock::Element::default().encode(&mut element);
    let dialects = U16s::new(&dialects);
    let negotiate = negotiate::Request { dialects, ..Default::default() };
    let lock = lock::Request { elements: lock::Elements::new(&element), ..Default::default() };
    let subject = query_info::Subject::File;
    let query = query_info::Request {
        subject,
        class: 1,
        output_max: 1,
        input: &[],
        additional: 0,
        flags: 0,
        file: FileId::default(),
    };
    let set =
        set_info::Request { subject, class: 1, additional: 0, file: FileId::default(), data: &[] };
    let mut write = Header::request(Command::Write).to_bytes().to_vec();
    write::Request::default().encode_with(&mut write, 0, &[], &[]);
    let echo = Command::Echo;
    vec![
        (message(echo, &negotiate), 102, |m| negotiate::Request::parse(m).map(drop)),
        (message(echo, &session_setup::Request::default()), 89, |m| {
            session_setup::Request::parse(m).map(drop)
        }),
        (message(echo, &tree_connect::Request::default()), 73, |m| {
            tree_connect::Request::parse(m).map(drop)
        }),
        (message(echo, &bare::Request), 68, |m| echo::Request::parse(m).map(drop)),
        (message(echo, &create::Request::default()), 121, |m| create::Request::parse(m).map(drop)),
        (message(echo, &close::Request::default()), 88, |m| close::Request::parse(m).map(drop)),
        (message(echo, &flush::Request::default()), 88, |m| flush::Request::parse(m).map(drop)),
        (message(echo, &read::Request::default()), 113, |m| read::Request::parse(m).map(drop)),
        (write, 112, |m| write::Request::parse(m).map(drop)),
        (message(echo, &lock), 112, |m| lock::Request::parse(m).map(drop)),
        (message(echo, &ioctl::Request::default()), 120, |m| ioctl::Request::parse(m).map(drop)),
        (message(echo, &query_directory::Request::default()), 97, |m| {
            query_directory::Request::parse(m).map(drop)
        }),
        (message(echo, &change_notify::Request::default()), 96, |m| {
            change_notify::Request::parse(m).map(drop)
        }),
        (message(echo, &query), 104, |m| query_info::Request::parse(m).map(drop)),
        (message(echo, &set), 97, |m| set_info::Request::parse(m).map(drop)),
        (message(echo, &oplock_break::OplockBreak::default()), 88, |m| {
            oplock_break::OplockBreak::parse(m).map(drop)
        }),
        (message(echo, &lease_break::Request::default()), 100, |m| {
            lease_break::Request::parse(m).map(drop)
        }),
    ]
}

#[test]
fn each_request_has_its_size() {
    for (at, (bytes, min, parse)) in requests().into_iter().enumerate() {
        assert_eq!(parse(&bytes), Ok(()), "request {at}");
        assert_eq!(bytes.len(), min, "request {at}");
        assert_eq!(parse(&bytes[..min - 1]), Err(BadMessage::Truncated), "request {at}");
        let size = u16::from_le_bytes([bytes[64], bytes[65]]);
        for other in [0, size - 1, size + 1, u16::MAX] {
            let bad = parse(&with16(&bytes, 0, other));
            assert_eq!(bad, Err(BadMessage::StructureSize), "request {at}");
        }
    }
}

#[test]
fn buffers_lie_behind_the_fixed_part_and_before_the_end() {
    let pattern = [b'*', 0];
    let request = query_directory::Request { pattern: &pattern, ..Default::default() };
    let bytes = message(Command::QueryDirectory, &request);
    let parse = |at, len| {
        let bytes = with16(&with16(&bytes, 24, at), 26, len);
        query_directory::Request::parse(&bytes).map(|request| request.pattern.len())
    };
    assert_eq!(parse(96, 2), Ok(2));
    assert_eq!(parse(97, 1), Ok(1));
    assert_eq!(parse(98, 0), Ok(0));
    assert_eq!(parse(0, 0), Ok(0));
    for (at, len) in [(95, 2), (0, 2), (64, 0), (97, 2), (99, 0), (96, 3), (u16::MAX, u16::MAX)] {
        assert_eq!(parse(at, len), Err(BadMessage::Offset), "{len} at {at}");
    }
}

#[test]
fn data_to_write_begins_where_it_may() {
    let mut bytes = Header::request(Command::Write).to_bytes().to_vec();
    write::Request::default().encode_with(&mut bytes, 0, &[], &[7; 400]);
    let parse = |at, len| {
        let bytes = with32(&with16(&bytes, 2, at), 4, len);
        write::Request::parse(&bytes).map(|request| request.data)
    };
    assert_eq!(parse(112, 400), Ok(112..512));
    assert_eq!(parse(256, 256), Ok(256..512));
    for (at, len) in [(111, 1), (112, 401), (257, 1), (112, u32::MAX), (0, 0)] {
        assert_eq!(parse(at, len), Err(BadMessage::Offset), "{len} at {at}");
    }
}

#[test]
fn locks_are_as_many_as_it_says() {
    let mut elements = Vec::new();
    for _ in 0..3 {
        lock::Element::default().encode(&mut elements);
    }
    let elements = lock::Elements::new(&elements);
    let bytes = message(Command::Lock, &lock::Request { elements, ..Default::default() });
    let parse = |count| {
        lock::Request::parse(&with16(&bytes, 2, count)).map(|request| request.elements.len())
    };
    assert_eq!(parse(3), Ok(3));
    assert_eq!(parse(1), Ok(1));
    assert_eq!(parse(0), Err(BadMessage::Value));
    assert_eq!(parse(4), Err(BadMessage::Truncated));
    assert_eq!(parse(u16::MAX), Err(BadMessage::TooMany));
    let request = lock::Request { sequence: 0x25, ..Default::default() };
    assert_eq!((request.sequence_index(), request.sequence_number()), (2, 5));
}

#[test]
fn output_of_a_control_code_comes_after_its_input() {
    let request = ioctl::Request { input: &[1; 16], output: &[2; 8], ..Default::default() };
    let bytes = message(Command::Ioctl, &request);
    assert_eq!(ioctl::Request::parse(&bytes), Ok(request));
    assert_eq!(ioctl::Request::parse(&with32(&bytes, 36, 128)), Err(BadMessage::Offset));
    // What may come back has no more than 32 bits.
    let bytes = with32(&with32(&bytes, 32, u32::MAX), 44, 1);
    assert_eq!(ioctl::Request::parse(&bytes), Err(BadMessage::Value));
}

#[test]
fn credits_pay_for_the_larger_of_what_is_sent_and_what_comes_back() {
    let small = ioctl::Request { input: &[0; 10], output_max: 5, ..Default::default() };
    assert_eq!(small.payload_len(), 10);
    let large = ioctl::Request { input_max: 3 << 16, output_max: 5, ..small };
    assert_eq!(credit_charge_needed(large.payload_len()), 4);
    let query = query_info::Request {
        subject: query_info::Subject::Quota,
        class: 0,
        output_max: 65_536,
        input: &[0; 100],
        additional: 0,
        flags: 0,
        file: FileId::default(),
    };
    assert_eq!(query.payload_len(), 65_536);
    assert_eq!(query_info::Request { output_max: 7, ..query }.payload_len(), 100);
}

#[test]
fn a_compound_is_cut_where_its_headers_say() {
    let mut frame = message(Command::Echo, &bare::Request);
    header::link_next(&mut frame, 0);
    frame.extend(message(Command::Close, &close::Request::default()));
    let walk = |frame: &[u8]| -> Vec<Result<(Command, usize), BadMessage>> {
        compound::Compound::new(frame)
            .map(|element| element.map(|e| (e.header.command, e.range.len())))
            .collect()
    };
    assert_eq!(walk(&frame), [Ok((Command::Echo, 72)), Ok((Command::Close, 88))]);
    let next = |next| {
        let mut frame = frame.clone();
        Patch::of(&mut frame).unwrap().next(next);
        walk(&frame)
    };
    assert_eq!(next(0), [Ok((Command::Echo, 160))]);
    assert_eq!(next(160), [Ok((Command::Echo, 160))]);
    for bad in [1, 64, 66, 68, 73, 168, u32::MAX] {
        assert_eq!(next(bad), [Err(BadMessage::Offset)], "next at {bad}");
    }
    assert_eq!(next(80), [Ok((Command::Echo, 80)), Err(BadMessage::Protocol)]);
    assert_eq!(next(152), [Ok((Command::Echo, 152)), Err(BadMessage::Truncated)]);
    assert_eq!(walk(&frame[..65]), [Err(BadMessage::Truncated)]);
    assert_eq!(walk(&[]), [Err(BadMessage::Truncated)]);
    frame[4] = 63;
    assert_eq!(walk(&frame), [Err(BadMessage::StructureSize)]);
    frame[0] = 0xfd;
    assert_eq!(walk(&frame), [Err(BadMessage::Protocol)]);
}

fn chain(contexts: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut chain = Chain::new(&mut out);
    contexts.iter().for_each(|(name, data)| chain.push(name, data));
    out
}

fn requested(bytes: &[u8]) -> Result<Requested<'_>, BadMessage> {
    Requested::parse(Contexts::new(bytes), OplockLevel::Lease)
}

#[test]
fn the_first_of_two_contexts_counts_and_unknown_ones_are_passed_over() {
    let bytes = chain(&[
        (name::ALLOCATION, &[1, 0, 0, 0, 0, 0, 0, 0]),
        (b"What", &[1, 2, 3]),
        (name::SVHDX, &[]),
        (name::ALLOCATION, &[2, 0, 0, 0, 0, 0, 0, 0]),
    ]);
    let all = requested(&bytes).unwrap();
    assert_eq!((all.allocation, all.count), (Some(1), 4));
}

#[test]
fn contexts_have_their_length() {
    let names: [(&[u8], &[usize]); 9] = [
        (name::DURABLE, &[16]),
        (name::RECONNECT, &[16]),
        (name::ALLOCATION, &[8]),
        (name::MAXIMAL_ACCESS, &[0, 8]),
        (name::TIMEWARP, &[8]),
        (name::ON_DISK_ID, &[0]),
        (name::LEASE, &[32, 52]),
        (name::DURABLE_V2, &[32]),
        (name::RECONNECT_V2, &[36]),
    ];
    for (name, lens) in names {
        for len in 0..64 {
            let bytes = chain(&[(name, &vec![0; len])]);
            let right = lens.contains(&len);
            assert_eq!(requested(&bytes).is_ok(), right, "{len} bytes of {name:?}");
        }
    }
    // A lease that is not asked for is not looked at.
    let bytes = chain(&[(name::LEASE, &[0; 5])]);
    let contexts = Contexts::new(&bytes);
    assert!(Requested::parse(contexts, OplockLevel::Batch).is_ok_and(|all| all.lease.is_none()));
}

#[test]
fn one_way_to_a_durable_handle() {
    let all: [(&[u8], &[u8]); 4] = [
        (name::DURABLE, &[0; 16]),
        (name::RECONNECT, &[0; 16]),
        (name::DURABLE_V2, &[0; 32]),
        (name::RECONNECT_V2, &[0; 36]),
    ];
    // As smbd has it: a request besides an older one, or besides what takes an older one up again.
    let together = [(0, 1), (0, 2)];
    for (a, first) in all.iter().enumerate() {
        for (b, second) in all.iter().enumerate().skip(a + 1) {
            let bytes = chain(&[*first, *second]);
            let expected = together.contains(&(a, b));
            assert_eq!(requested(&bytes).is_ok(), expected, "{a} and {b}");
        }
    }
    let again = all[1];
    let alone =
        |contexts: &[(&[u8], &[u8])]| requested(&chain(contexts)).unwrap().reconnects_alone();
    assert!(alone(&[again]) && alone(&[again, all[0]]) && alone(&[again, (name::LEASE, &[0; 32])]));
    assert!(!alone(&[again, (name::ON_DISK_ID, &[])]) && !alone(&[all[3], (b"What", &[])]));
    assert!(alone(&[all[2], (name::ON_DISK_ID, &[])]));
}

#[test]
fn chains_hold_together() {
    let good = chain(&[(name::ON_DISK_ID, &[]), (name::ALLOCATION, &[0; 8])]);
    assert!(requested(&good).is_ok() && requested(&[]).is_ok());
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        requested(&bytes).map(drop)
    };
    // Next not aligned or past the end; the name not where it must be, or too short, or too long.
    for (at, value) in [(0, 23), (0, 0xf8), (4, 15), (6, 3), (6, 0), (7, 1)] {
        assert_eq!(changed(at, value), Err(BadMessage::Offset), "byte {at} is {value}");
    }
    // Data not aligned, in the name, past the end, longer than what is there, or nowhere.
    for (at, value) in [(34, 25), (34, 16), (34, 0x40), (36, 9), (39, 0xff), (34, 0)] {
        assert_eq!(changed(at, value), Err(BadMessage::Offset), "byte {at} is {value}");
    }
    assert_eq!(changed(0, 0).map(|()| 1), Ok(1), "a chain that ends earlier is one");
    assert_eq!(requested(&good[..15]).map(drop), Err(BadMessage::Truncated));
    // A next that points to the end: nothing is there.
    let mut open = good.clone();
    open[24] = 32;
    assert_eq!(requested(&open).map(drop), Err(BadMessage::Truncated));

    let many: Vec<(&[u8], &[u8])> = vec![(b"What", b""); context::CONTEXTS_MAX];
    assert!(requested(&chain(&many)).is_ok());
    let more: Vec<(&[u8], &[u8])> = vec![(b"What", b""); context::CONTEXTS_MAX + 1];
    assert_eq!(requested(&chain(&more)).map(drop), Err(BadMessage::TooMany));
}

#[test]
fn a_lease_has_two_versions() {
    let lease = Lease::parse(&[1; 32]).unwrap();
    assert!(lease.v2.is_none());
    let lease = Lease::parse(&[1; 52]).unwrap();
    assert_eq!(lease.v2.unwrap().epoch, 0x101);
}

#[test]
fn negotiate_contexts_are_there_once() {
    let dialects = U16s::bytes_of(&[dialect::SMB_3_1_1]);
    let one = 1_u16.to_le_bytes();
    let list = U16s::new(&one);
    let parse = |contexts: Vec<Context<'_>>| {
        let dialects = U16s::new(&dialects);
        let request = negotiate::Request { dialects, contexts, ..Default::default() };
        negotiate::Request::parse(&message(Command::Negotiate, &request)).map(drop)
    };
    let preauth = Context::Preauth { hashes: list, salt: &[] };
    assert_eq!(parse(vec![preauth, Context::Signing(list)]), Ok(()));
    for twice in [preauth, Context::Signing(list), Context::Encryption(list), Context::Rdma(list)] {
        assert_eq!(parse(vec![twice, Context::Posix(&[]), twice]), Err(BadMessage::Duplicate));
    }
    assert_eq!(parse(vec![Context::Signing(U16s::default())]), Err(BadMessage::Value));
    // Who is to encrypt nothing may say so by no cipher.
    assert_eq!(parse(vec![Context::Encryption(U16s::default())]), Ok(()));
    let unknown = Context::Unknown { kind: 99, data: &[1] };
    assert_eq!(parse(vec![unknown; negotiate::CONTEXTS_MAX]), Ok(()));
    assert_eq!(parse(vec![unknown; negotiate::CONTEXTS_MAX + 1]), Err(BadMessage::TooMany));
}

#[test]
fn contexts_of_a_client_that_does_not_speak_3_1_1_are_not_looked_at() {
    let dialects = U16s::bytes_of(&[dialect::SMB_3_0]);
    let dialects = U16s::new(&dialects);
    let request = negotiate::Request { dialects, ..Default::default() };
    let bytes = with32(&message(Command::Negotiate, &request), 28, 0xffff_ffff);
    assert_eq!(negotiate::Request::parse(&with16(&bytes, 32, 9)), Ok(request));
    assert_eq!(negotiate::Request::parse(&with16(&bytes, 2, 0)), Err(BadMessage::Value));
    assert_eq!(negotiate::Request::parse(&with16(&bytes, 2, 2)), Err(BadMessage::Truncated));
}

#[test]
fn an_answer_goes_where_the_request_came_from() {
    let request = Header {
        credits: 31,
        next: 120,
        signature: [1; 16],
        flags: header::Flags::SIGNED | header::Flags::RELATED,
        ..Header::request(Command::Read)
    };
    let answer = request.answer(smb::NtStatus::END_OF_FILE);
    assert!(answer.is_response() && answer.is_related());
    assert!(!answer.flags.contains(header::Flags::SIGNED));
    assert_eq!((answer.credits, answer.next, answer.signature), (0, 0, [0; 16]));
    assert_eq!((answer.command, answer.tree()), (Command::Read, request.tree()));
    let sequence = Header { status: smb::NtStatus(0x0005_1234), ..request };
    assert_eq!(sequence.channel_sequence(), 0x1234);
}

#[test]
fn an_smb1_client_is_understood_as_far_as_it_speaks_smb2() {
    let frame = |dialects: &[u8]| {
        let mut frame = Vec::new();
        smb1::Offer::default().encode(&mut frame);
        frame.truncate(33);
        frame.extend_from_slice(&u16::try_from(dialects.len()).unwrap().to_le_bytes());
        frame.extend_from_slice(dialects);
        frame
    };
    let offer = smb1::Offer::parse(&frame(b"\x02SMB 2.???\0\x02SMB 2.002\0\x02Samba\0")).unwrap();
    assert!(offer.smb2_002 && offer.smb2_wildcard);
    let none = smb1::Offer::parse(&frame(b"\x02SMB 2.00\0\x02SMB 2.0022\0"));
    assert_eq!(none, Ok(smb1::Offer::default()));
    for bad in [&b"\x02SMB 2.002"[..], b"\x01SMB 2.002\0", b"SMB 2.002\0", b"\0", b""] {
        assert!(smb1::Offer::parse(&frame(bad)).is_err(), "{bad:?}");
    }
    let long = [b"\x02", &[b'a'; smb1::DIALECTS_LEN_MAX][..], b"\0"].concat();
    assert_eq!(smb1::Offer::parse(&frame(&long)), Err(BadMessage::TooMany));
    let whole = frame(b"\x02SMB 2.002\0");
    assert_eq!(smb1::Offer::parse(&whole[..whole.len() - 1]), Err(BadMessage::Truncated));
}

#[test]
fn an_smb1_client_is_told_that_nothing_of_it_is_spoken() {
    let mut frame = Vec::new();
    smb1::Offer::default().encode(&mut frame);
    // A status has no place in a request, a multiplex id has.
    frame[5..9].fill(7);
    frame[30] = 3;
    let refusal = smb1::refusal(&frame);
    assert_eq!(refusal.len(), usize::from(smb1::REFUSAL_LEN));
    assert_eq!(refusal[..10], *b"\xffSMB\x72\0\0\0\0\x98");
    assert_eq!(refusal[10..32], frame[10..32]);
    assert_eq!(refusal[32..], [1, 0xff, 0xff, 0, 0]);
    assert!(smb1::Offer::parse(&refusal).is_err(), "it is taken for a request");
}

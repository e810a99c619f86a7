//! Messages made of any values: written, then read.

use proptest::collection::vec;
use proptest::prelude::*;
use smb::wire::context::{
    AppVersion, AppleQuery, AppleReply, DurableFlags, DurableGrant, DurableRequest, Granted, Lease,
    LeaseFlags, LeaseV2, MaximalAccess, OnDiskId, PosixReply, Reconnect, Requested, ServerQuery,
};
use smb::wire::header::{Command, Flags, Header, Patch, Target, link_next};
use smb::wire::negotiate::{Capabilities, CompressionFlags, Context, SecurityMode, dialect};
use smb::wire::*;
use smb::{
    Access, Attributes, CreateAction, CreateOptions, Disposition, FileId, FileTime, Guid, LeaseKey,
    LeaseState, MessageId, NtStatus, OplockLevel, SessionId, ShareAccess, TreeId,
};

/// Writes a body behind a header which is not at the beginning of the buffer.
fn write(command: Command, body: &impl Encode) -> Vec<u8> {
    let mut out = vec![0xee; 13];
    let start = Header::request(command).encode(&mut out);
    body.encode(&mut out, start);
    out.split_off(start)
}

macro_rules! same {
    ($kind:ty, $body:expr) => {{
        let body = $body;
        let bytes = write(Command::Echo, &body);
        prop_assert_eq!(<$kind>::parse(&bytes), Ok(body));
    }};
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..max)
}

fn file() -> impl Strategy<Value = FileId> {
    any::<(u64, u64)>().prop_map(|(persistent, volatile)| FileId { persistent, volatile })
}

fn guid() -> impl Strategy<Value = Guid> {
    any::<[u8; 16]>().prop_map(Guid)
}

fn oplock() -> impl Strategy<Value = OplockLevel> {
    prop::sample::select(vec![
        OplockLevel::None,
        OplockLevel::Two,
        OplockLevel::Exclusive,
        OplockLevel::Batch,
        OplockLevel::Lease,
    ])
}

fn lease() -> impl Strategy<Value = Lease> {
    let v2 = any::<([u8; 16], u16)>()
        .prop_map(|(parent, epoch)| LeaseV2 { parent: LeaseKey(parent), epoch });
    (any::<([u8; 16], u32, u32)>(), prop::option::of(v2)).prop_map(|((key, state, flags), v2)| {
        Lease {
            key: LeaseKey(key),
            state: LeaseState::from_bits_retain(state),
            flags: LeaseFlags::from_bits_retain(flags),
            v2,
        }
    })
}

/// At most one of the ways to a durable handle, or the two that may be together.
#[derive(Clone, Copy, Debug)]
enum Durable {
    None,
    Old,
    New(DurableRequest),
    OldAgain(FileId, bool),
    NewAgain(Reconnect),
    Both(DurableRequest),
}

fn durable() -> impl Strategy<Value = Durable> {
    let flags = any::<u32>().prop_map(DurableFlags::from_bits_retain);
    (0..6, any::<u32>(), flags, guid(), file(), any::<bool>()).prop_map(
        |(which, timeout_ms, flags, create, file, with)| {
            let request = DurableRequest { timeout_ms, flags, create };
            match which {
                0 => Durable::None,
                1 => Durable::Old,
                2 => Durable::New(request),
                3 => Durable::OldAgain(file, with),
                4 => Durable::NewAgain(Reconnect { file, create, flags }),
                _ => Durable::Both(request),
            }
        },
    )
}

type Slices = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Slices that contexts have, contexts without slices, and how many there are.
fn requested() -> impl Strategy<Value = (Slices, Requested<'static>)> {
    let numbers = any::<(Option<u64>, Option<u64>, Option<u64>, bool, Option<u32>)>();
    let program =
        (prop::option::of(guid()), any::<Option<(u64, u64)>>(), any::<Option<(u64, u64)>>());
    let slices = (prop::option::of(bytes(50)), prop::option::of(bytes(50)));
    (slices, numbers, program, durable(), prop::option::of(lease())).prop_map(
        |(slices, numbers, (app_instance, version, apple), durable, lease)| {
            let mut all = Requested {
                allocation: numbers.0,
                maximal_access: numbers.1.map(FileTime),
                timewarp: numbers.2.map(FileTime),
                on_disk_id: numbers.3,
                posix_mode: numbers.4,
                lease,
                app_instance,
                app_version: version.map(|(high, low)| AppVersion { high, low }),
                apple: apple.map(|(wanted, client_caps)| AppleQuery {
                    wanted: ServerQuery::from_bits_retain(wanted),
                    client_caps,
                }),
                ..Requested::default()
            };
            match durable {
                Durable::None => {}
                Durable::Old => all.durable = true,
                Durable::New(request) => all.durable_v2 = Some(request),
                Durable::OldAgain(file, with) => {
                    (all.reconnect, all.durable) = (Some(file), with);
                }
                Durable::NewAgain(again) => all.reconnect_v2 = Some(again),
                Durable::Both(request) => (all.durable, all.durable_v2) = (true, Some(request)),
            }
            (slices, all)
        },
    )
}

fn count(all: &Requested<'_>) -> usize {
    let some = [
        all.ea.is_some(),
        all.security.is_some(),
        all.durable,
        all.reconnect.is_some(),
        all.allocation.is_some(),
        all.maximal_access.is_some(),
        all.timewarp.is_some(),
        all.on_disk_id,
        all.lease.is_some(),
        all.durable_v2.is_some(),
        all.reconnect_v2.is_some(),
        all.app_instance.is_some(),
        all.app_version.is_some(),
        all.posix_mode.is_some(),
        all.apple.is_some(),
    ];
    some.into_iter().filter(|some| *some).count()
}

proptest! {
    #[test]
    fn headers(
        words in any::<(u16, u32, u16, u16, u32, u32, u64, u64, u64)>(),
        signature: [u8; 16],
    ) {
        let (charge, status, command, credits, flags, next, message, target, session) = words;
        let flags = Flags::from_bits_retain(flags);
        let [a, b, c, d, e, f, g, h] = target.to_le_bytes();
        let header = Header {
            credit_charge: charge,
            status: NtStatus(status),
            command: Command::from_wire(command % 32),
            credits,
            flags,
            next,
            message_id: MessageId(message),
            target: match flags.contains(Flags::ASYNC) {
                true => Target::Async(target),
                false => Target::Sync {
                    process: u32::from_le_bytes([a, b, c, d]),
                    tree: TreeId(u32::from_le_bytes([e, f, g, h])),
                },
            },
            session: SessionId(session),
            signature,
        };
        prop_assert_eq!(Header::parse(&header.to_bytes()), Ok(header));

        // Writing in place does the same as writing anew.
        let mut bytes = Header { flags: Flags::empty(), ..header }.to_bytes();
        Patch::of(&mut bytes).unwrap().status(NtStatus(7)).credits(3).next(88)
            .add_flags(Flags::RESPONSE).add_flags(Flags::SIGNED).signature(&[9; 16]);
        let expected = Header {
            status: NtStatus(7),
            credits: 3,
            next: 88,
            flags: Flags::RESPONSE | Flags::SIGNED,
            signature: [9; 16],
            ..header
        };
        // The flags say which target it is, so one that was ASYNC is not any more.
        let sync = Header { flags: Flags::RESPONSE | Flags::SIGNED, ..Header::parse(&bytes).unwrap() };
        let target = match header.target { Target::Async(_) => return Ok(()), sync => sync };
        prop_assert_eq!(sync, Header { target, ..expected });
    }

    #[test]
    fn compounds(lens in vec(2..50_usize, 1..6)) {
        let mut frame = Vec::new();
        let mut starts = Vec::new();
        for (at, len) in lens.iter().enumerate() {
            let start = Header { credits: 5, ..Header::request(Command::Echo) }.encode(&mut frame);
            frame.extend_from_slice(&[4; 2]);
            frame.resize(start + 64 + len, 0);
            if at + 1 < lens.len() {
                link_next(&mut frame, start);
            }
            starts.push(start);
        }
        let elements: Vec<_> = compound::Compound::new(&frame).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(elements.iter().map(|e| e.range.start).collect::<Vec<_>>(), starts);
        for (element, len) in elements.iter().zip(&lens) {
            let padded = if element.header.next == 0 { *len } else { len.next_multiple_of(8) };
            prop_assert_eq!(element.range.len(), 64 + padded);
            prop_assert_eq!(element.header.credits, 5);
        }
    }

    #[test]
    fn negotiations(
        words in any::<(u16, u32, u16, u32, u32, u32, u64, u64)>(),
        client in guid(),
        dialects in vec(0..0x300_u16, 1..6),
        with_contexts: bool,
        lists in (vec(any::<u16>(), 1..5), bytes(40), bytes(40)),
        token in bytes(200),
    ) {
        let (numbers, salt, name) = lists;
        let numbers = U16s::bytes_of(&numbers);
        let list = U16s::new(&numbers);
        let flags = CompressionFlags::from_bits_retain(words.1);
        let contexts = vec![
            Context::Preauth { hashes: list, salt: &salt },
            Context::Netname(&name),
            Context::Encryption(list),
            Context::Compression { flags, algorithms: list },
            Context::Transport(words.3),
            Context::Rdma(list),
            Context::Signing(list),
            Context::Posix(&salt),
            Context::Unknown { kind: 0x7777, data: &name },
            Context::Unknown { kind: 0x7777, data: &name },
        ];
        let mut dialects = dialects;
        if with_contexts {
            dialects.push(dialect::SMB_3_1_1);
        }
        let dialects = U16s::bytes_of(&dialects);
        same!(negotiate::Request<'_>, negotiate::Request {
            security_mode: SecurityMode::from_bits_retain(words.0),
            capabilities: Capabilities::from_bits_retain(words.1),
            client,
            dialects: U16s::new(&dialects),
            contexts: if with_contexts { contexts.clone() } else { Vec::new() },
        });
        same!(negotiate::Response<'_>, negotiate::Response {
            security_mode: SecurityMode::from_bits_retain(words.0),
            dialect: if with_contexts { dialect::SMB_3_1_1 } else { words.2 & 0x2ff },
            server: client,
            capabilities: Capabilities::from_bits_retain(words.1),
            transact_max: words.3,
            read_max: words.4,
            write_max: words.5,
            now: FileTime(words.6),
            started: FileTime(words.7),
            token: &token,
            contexts: if with_contexts { contexts } else { Vec::new() },
        });
    }

    #[test]
    fn session_setups(words in any::<(u8, u8, u32, u64, u16)>(), token in bytes(300)) {
        let (flags, mode, capabilities, previous, answered) = words;
        same!(session_setup::Request<'_>, session_setup::Request {
            flags: session_setup::RequestFlags::from_bits_retain(flags),
            security_mode: SecurityMode::from_bits_retain(mode.into()),
            capabilities: Capabilities::from_bits_retain(capabilities),
            previous_session: SessionId(previous),
            token: &token,
        });
        same!(session_setup::Response<'_>, session_setup::Response {
            flags: session_setup::SessionFlags::from_bits_retain(answered),
            token: &token,
        });
    }

    #[test]
    fn tree_connects(words in any::<(u16, u16, u32, u32, u32)>(), path in bytes(80), rest in bytes(80)) {
        let flags = tree_connect::Flags::from_bits_retain(words.0);
        let extended = flags.contains(tree_connect::Flags::EXTENSION);
        same!(tree_connect::Request<'_>, tree_connect::Request {
            flags,
            path: &path,
            contexts: if extended { &rest } else { &[] },
            context_count: if extended { words.1 } else { 0 },
        });
        same!(tree_connect::Response, tree_connect::Response {
            kind: tree_connect::ShareType::Pipe,
            flags: tree_connect::ShareFlags::from_bits_retain(words.2),
            capabilities: tree_connect::ShareCapabilities::from_bits_retain(words.3),
            maximal_access: Access::from_bits_retain(words.4),
        });
    }

    #[test]
    fn create_requests(
        words in any::<(u32, u32, u32, u32, u32)>(),
        disposition in 0..6_u32,
        oplock in oplock(),
        name in bytes(100),
        (slices, contexts) in requested(),
    ) {
        let mut contexts = Requested {
            ea: slices.0.as_deref(),
            security: slices.1.as_deref(),
            lease: contexts.lease.filter(|_| oplock == OplockLevel::Lease),
            ..contexts
        };
        contexts.count = count(&contexts);
        let alone = contexts.count == 1 + usize::from(contexts.lease.is_some())
            + usize::from(contexts.durable);
        if contexts.reconnect.is_some() || contexts.reconnect_v2.is_some() {
            prop_assert_eq!(contexts.reconnects_alone(), alone);
        } else {
            prop_assert!(contexts.reconnects_alone());
        }
        same!(create::Request<'_>, create::Request {
            oplock,
            impersonation: words.0,
            access: Access::from_bits_retain(words.1),
            attributes: Attributes::from_bits_retain(words.2),
            share: ShareAccess::from_bits_retain(words.3),
            disposition: Disposition::from_wire(disposition).unwrap(),
            options: CreateOptions::from_bits_retain(words.4),
            name: &name,
            contexts,
        });
    }

    #[test]
    fn create_responses(
        times: [u64; 6],
        words in any::<(u8, u32, bool)>(),
        oplock in oplock(),
        file in file(),
        lease in prop::option::of(lease()),
        contexts in any::<(Option<(u32, u32)>, Option<(u32, u32)>, Option<(u64, u64)>)>(),
        posix in prop::option::of((any::<[u32; 3]>(), bytes(60))),
        apple in prop::option::of((any::<[Option<u64>; 2]>(), prop::option::of(bytes(30)))),
    ) {
        let contexts = Granted {
            lease,
            durable: words.2,
            durable_v2: contexts.0.map(|(timeout_ms, flags)| {
                DurableGrant { timeout_ms, flags: DurableFlags::from_bits_retain(flags) }
            }),
            maximal_access: contexts.1.map(|(status, access)| {
                MaximalAccess { status: NtStatus(status), access: Access::from_bits_retain(access) }
            }),
            on_disk_id: contexts.2.map(|(file, volume)| OnDiskId { file, volume }),
            posix: posix.as_ref().map(|([links, reparse_tag, mode], sids)| {
                PosixReply { links: *links, reparse_tag: *reparse_tag, mode: *mode, sids }
            }),
            apple: apple.as_ref().map(|([server_caps, volume_caps], model)| AppleReply {
                server_caps: *server_caps,
                volume_caps: *volume_caps,
                model: model.as_deref(),
            }),
        };
        let [created, accessed, written, changed, allocation, size] = times;
        same!(create::Response<'_>, create::Response {
            oplock,
            flags: words.0,
            action: CreateAction::Overwritten,
            created: FileTime(created),
            accessed: FileTime(accessed),
            written: FileTime(written),
            changed: FileTime(changed),
            allocation,
            size,
            attributes: Attributes::from_bits_retain(words.1),
            file,
            contexts,
        });
    }

    #[test]
    fn closes_and_flushes(times: [u64; 6], words in any::<(u16, u32)>(), file in file()) {
        let flags = close::Flags::from_bits_retain(words.0);
        same!(close::Request, close::Request { flags, file });
        same!(flush::Request, flush::Request { reserved: words.0, file });
        same!(close::Response, close::Response {
            flags,
            created: FileTime(times[0]),
            accessed: FileTime(times[1]),
            written: FileTime(times[2]),
            changed: FileTime(times[3]),
            allocation: times[4],
            size: times[5],
            attributes: Attributes::from_bits_retain(words.1),
        });
    }

    #[test]
    fn reads(words in any::<(u8, u8, u32, u64, u32, u32, u32)>(), file in file(), data in bytes(300)) {
        let (padding, flags, length, offset, minimum, channel, remaining) = words;
        same!(read::Request<'_>, read::Request {
            padding,
            flags: read::Flags::from_bits_retain(flags),
            length,
            offset,
            file,
            minimum,
            channel,
            remaining,
            channel_blob: if channel == 0 { &[] } else { &data },
        });
        same!(read::Response<'_>, read::Response { remaining, flags: length, data: &data });
        // The same without the data, which the caller sends by itself.
        let whole = write(Command::Read, &read::Response { remaining, flags: length, data: &data });
        let data_len = u32::try_from(data.len()).unwrap();
        let mut head = write(Command::Read, &read::Head { data_len, remaining, flags: length });
        prop_assert_eq!(head.len(), usize::from(read::DATA_AT));
        head.extend_from_slice(&data);
        prop_assert_eq!(head, whole);
    }

    #[test]
    fn writes(
        words in any::<(u64, u32, u32, u32, bool)>(),
        file in file(),
        blob in bytes(144),
        data in bytes(300),
    ) {
        let (offset, channel, remaining, flags, with_blob) = words;
        let channel = if with_blob { channel | 1 } else { 0 };
        let blob = if with_blob { &blob[..] } else { &[] };
        let data_at = write::HEAD_LEN + blob.len();
        let request = write::Request {
            offset,
            file,
            channel,
            remaining,
            flags: write::Flags::from_bits_retain(flags),
            channel_blob: write::HEAD_LEN..data_at,
            // Of what comes by another way there is no place in the message.
            data: match (channel, data.len()) {
                (1.., 0) => write::HEAD_LEN..write::HEAD_LEN,
                (_, len) => data_at..data_at + len,
            },
        };
        let mut message = Header::request(Command::Write).to_bytes().to_vec();
        request.encode_with(&mut message, 0, blob, &data);
        prop_assert_eq!(write::Request::parse(&message), Ok(request.clone()));
        let head = &message[..data_at];
        prop_assert_eq!(write::Request::parse_head(head, message.len()), Ok(request.clone()));
        if !data.is_empty() {
            let short = write::Request::parse_head(head, message.len() - 1);
            prop_assert_eq!(short, Err(BadMessage::Offset));
        }
        if blob.is_empty() {
            let mut head = Header::request(Command::Write).to_bytes().to_vec();
            request.encode_head(&mut head, 0, u32::try_from(data.len()).unwrap());
            prop_assert_eq!(&head, &message[..write::HEAD_LEN]);
        }
        same!(write::Response, write::Response { count: remaining });
    }

    #[test]
    fn locks(sequence: u32, file in file(), ranges in vec(any::<(u64, u64, u32)>(), 1..20)) {
        let mut bytes = Vec::new();
        for (offset, length, flags) in &ranges {
            let flags = lock::Flags::from_bits_retain(*flags);
            lock::Element { offset: *offset, length: *length, flags }.encode(&mut bytes);
        }
        let elements = lock::Elements::new(&bytes);
        prop_assert!(elements.iter().map(|e| (e.offset, e.length, e.flags.bits())).eq(ranges));
        same!(lock::Request<'_>, lock::Request { sequence, file, elements });
    }

    #[test]
    fn ioctls(
        words in any::<(u32, u32, u32, u32)>(),
        file in file(),
        input in bytes(100),
        output in bytes(100),
    ) {
        let (code, input_max, output_max, flags) = words;
        let (input_max, output_max) = (input_max / 2, output_max / 2);
        same!(ioctl::Request<'_>, ioctl::Request {
            code, file, input: &input, output: &output, input_max, output_max, flags,
        });
        same!(ioctl::Response<'_>, ioctl::Response {
            code, file, input: &input, output: &output, flags,
        });
        // Written where it goes.
        let response = ioctl::Response { code, file, input: &[], output: &output, flags };
        let mut out = Header::request(Command::Ioctl).to_bytes().to_vec();
        response.begin(&mut out, 0);
        out.extend_from_slice(&output);
        ioctl::finish(&mut out, 0);
        prop_assert_eq!(out, write(Command::Ioctl, &response));
    }

    #[test]
    fn queries(words in any::<(u8, u8, u8, u32, u32, u32, u16)>(), file in file(), data in bytes(200)) {
        let (class, flags, subject, number, output_max, additional, watch) = words;
        same!(query_directory::Request<'_>, query_directory::Request {
            class,
            flags: query_directory::Flags::from_bits_retain(flags),
            index: number,
            file,
            pattern: &data,
            output_max,
        });
        same!(change_notify::Request, change_notify::Request {
            flags: change_notify::Flags::from_bits_retain(watch),
            output_max,
            file,
            filter: change_notify::Filter::from_bits_retain(number),
        });
        let subject = query_info::Subject::from_wire(subject);
        same!(query_info::Request<'_>, query_info::Request {
            subject, class, output_max, input: &data, additional, flags: number, file,
        });
        same!(set_info::Request<'_>, set_info::Request { subject, class, additional, file, data: &data });
        same!(set_info::Response, set_info::Response);
        same!(output::Response<'_>, output::Response { data: &data });
    }

    #[test]
    fn breaks(
        words in any::<(u16, u32, [u8; 16], u32, u32)>(),
        level in oplock(),
        file in file(),
    ) {
        let (epoch, flags, key, current, new) = words;
        let key = LeaseKey(key);
        let state = LeaseState::from_bits_retain(current);
        let about_oplock = oplock_break::OplockBreak { level, file };
        same!(oplock_break::OplockBreak, about_oplock);
        same!(lease_break::Notification, lease_break::Notification {
            epoch, flags, key, current: state, new: LeaseState::from_bits_retain(new),
        });
        let about_lease = lease_break::Acknowledgement { flags, key, state };
        same!(lease_break::Acknowledgement, about_lease);
        use oplock_break::Acknowledgement;
        let bytes = write(Command::OplockBreak, &about_lease);
        prop_assert_eq!(Acknowledgement::parse(&bytes), Ok(Acknowledgement::Lease(about_lease)));
        let bytes = write(Command::OplockBreak, &about_oplock);
        prop_assert_eq!(Acknowledgement::parse(&bytes), Ok(Acknowledgement::Oplock(about_oplock)));
    }

    #[test]
    fn errors(
        data in bytes(60),
        names in (bytes(60), bytes(60)),
        unparsed_len: u16,
        relative: bool,
        needs: u32,
        contexts: bool,
    ) {
        same!(error::Response<'_>, error::Response { context_count: 0, data: &data });
        let link = error::Symlink { unparsed_len, substitute: &names.0, print: &names.1, relative };
        for detail in [error::Detail::Symlink(link), error::Detail::Needs(needs)] {
            let mut out = Header::request(Command::Create).to_bytes().to_vec();
            detail.encode(contexts, &mut out, 0);
            let response = error::Response::parse(&out).unwrap();
            prop_assert_eq!(response.context_count, u8::from(contexts));
            prop_assert_eq!(response.data.len(), out.len() - 72);
            let data = response.status_data().unwrap();
            match detail {
                error::Detail::Symlink(link) => prop_assert_eq!(error::Symlink::parse(data), Ok(link)),
                error::Detail::Needs(needs) => prop_assert_eq!(data, needs.to_le_bytes()),
            }
        }
    }

    #[test]
    fn smb1_offers(smb2_002: bool, smb2_wildcard: bool) {
        let offer = smb1::Offer { smb2_002, smb2_wildcard };
        let mut frame = Vec::new();
        offer.encode(&mut frame);
        prop_assert_eq!(smb1::Offer::parse(&frame), Ok(offer));
    }
}

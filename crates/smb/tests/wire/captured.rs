//! What smbclient, smbtorture and smbd 4.17 said to each other, one line for each kind of frame:
//! `>` from the client or `<` from the server, commands, statuses, and the bytes.

use std::sync::LazyLock;

use smb::wire::compound::Compound;
use smb::wire::header::{Command, HEADER_LEN, Header};
use smb::wire::negotiate::{Context, SecurityMode, dialect};
use smb::wire::{
    create, credit_charge_needed, ioctl, lease_break, negotiate, oplock_break, read, tree_connect,
    write,
};
use smb::{
    CreateAction, Disposition, FileId, Guid, LeaseState, MessageId, NtStatus, OplockLevel, TreeId,
};

use crate::hostile;

pub(crate) struct Frame {
    from_server: bool,
    pub(crate) title: String,
    pub(crate) bytes: Vec<u8>,
}

/// All of them, in the order of the file.
pub(crate) fn frames() -> &'static [Frame] {
    static FRAMES: LazyLock<Vec<Frame>> =
        LazyLock::new(|| include_str!("captured.txt").lines().map(parse).collect());
    &FRAMES
}

fn parse(line: &str) -> Frame {
    let (title, hex) = line.split_once(": ").unwrap();
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let bytes = (0..hex.len()).step_by(2).map(digits).collect();
    Frame { from_server: line.starts_with('<'), title: title.to_owned(), bytes }
}

/// The first frame whose title is that.
fn frame(title: &str) -> &'static [u8] {
    let found = frames().iter().find(|frame| frame.title == title);
    found.unwrap_or_else(|| panic!("no {title}")).bytes.as_slice()
}

#[test]
fn all_is_understood_and_would_be_written_the_same() {
    let mut different = Vec::new();
    for frame in frames() {
        hostile::compound(&frame.bytes);
        for element in Compound::new(&frame.bytes) {
            let element = element.unwrap();
            let message = &frame.bytes[element.range];
            let ours = match frame.from_server {
                false => hostile::request(message),
                true => hostile::response(message),
            };
            let ours = ours.unwrap_or_else(|bad| panic!("{}: {bad}", frame.title));
            if !same(&ours, message) {
                different.push(format!("{}\n{}\n{}", frame.title, hex(message), hex(&ours)));
            }
        }
    }
    assert!(different.is_empty(), "written otherwise:\n{}", different.join("\n"));
}

fn hex(bytes: &[u8]) -> String {
    bytes[HEADER_LEN..].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether two messages are the same, but for what does not matter: zeros at the end of one, where smbclient says
/// that its empty output is (OutputOffset of IOCTL), and the one byte that stands for no error data.
fn same(ours: &[u8], theirs: &[u8]) -> bool {
    let mut theirs = theirs.to_vec();
    let header = Header::parse(ours).unwrap();
    if header.command == Command::Ioctl && !header.is_response() {
        theirs[HEADER_LEN + 36..HEADER_LEN + 40].fill(0);
    }
    if header.status == NtStatus::PENDING {
        theirs[HEADER_LEN + 8] = 0;
    }
    let len = ours.len().min(theirs.len());
    ours[..len] == theirs[..len] && ours[len..].iter().chain(&theirs[len..]).all(|byte| *byte == 0)
}

// What tshark says of the same bytes.

#[test]
fn a_client_offers_what_it_speaks() {
    let bytes = frame("> negotiate");
    let request = negotiate::Request::parse(bytes).unwrap();
    assert_eq!(request.security_mode, SecurityMode::SIGNING_ENABLED);
    assert_eq!(request.capabilities.bits(), 0x7f);
    assert_eq!(request.client.to_string(), "13cdb60e-482b-46e3-a2ef-8ef7f279bf37");
    let dialects: Vec<u16> = request.dialects.iter().collect();
    assert_eq!(dialects, [0x202, 0x210, 0x300, 0x302, dialect::SMB_3_1_1]);
    let [Context::Preauth { hashes, salt }, ciphers, signing, netname] = request.contexts[..]
    else {
        panic!("{:?}", request.contexts)
    };
    assert!(hashes.iter().eq([1]) && salt.len() == 32 && salt.starts_with(&[0x54, 0x26]));
    assert!(matches!(ciphers, Context::Encryption(list) if list.iter().eq([2, 1, 4, 3])));
    assert!(matches!(signing, Context::Signing(list) if list.iter().eq([2, 1, 0])));
    let name: Vec<u8> = "127.0.0.1".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(netname, Context::Netname(&name));
}

#[test]
fn a_server_says_what_is_spoken() {
    let bytes = frame("< negotiate 00000000");
    let response = negotiate::Response::parse(bytes).unwrap();
    assert_eq!(response.dialect, dialect::SMB_3_1_1);
    assert_eq!(response.server.to_string(), "626f7270-0065-0000-0000-000000000000");
    assert_eq!(response.capabilities.bits(), 0x0f);
    let sizes = [response.transact_max, response.read_max, response.write_max];
    assert_eq!(sizes, [8 << 20; 3]);
    assert!(response.token.starts_with(&[0x60, 0x48, 6, 6]), "{:x?}", response.token);
    let [Context::Preauth { salt, .. }, cipher, signing] = response.contexts[..] else {
        panic!("{:?}", response.contexts)
    };
    assert!(salt.len() == 32 && salt.starts_with(&[0xd5, 0x20]));
    assert!(matches!(cipher, Context::Encryption(list) if list.iter().eq([2])));
    assert!(matches!(signing, Context::Signing(list) if list.iter().eq([2])));
}

#[test]
fn a_lease_is_asked_for_given_and_broken() {
    let asks_for_lease = |frame: &&Frame| {
        let request = create::Request::parse(&frame.bytes);
        frame.title == "> create" && request.is_ok_and(|r| r.contexts.lease.is_some())
    };
    let bytes = frames().iter().find(asks_for_lease).unwrap().bytes.as_slice();
    let request = create::Request::parse(bytes).unwrap();
    let name: Vec<u8> = "lease_break.dat".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!((request.oplock, request.name), (OplockLevel::Lease, &name[..]));
    assert_eq!(request.disposition, Disposition::OpenIf);
    let asked = request.contexts.lease.unwrap();
    assert_eq!(Guid(asked.key.0).to_string(), "e0ddf00d-0ffe-badc-f20f-221f01f02345");
    assert_eq!((asked.state, asked.v2), (LeaseState::READ, None));

    let given = frames().iter().find_map(|frame| {
        let response = create::Response::parse(&frame.bytes).ok()?;
        response.contexts.lease.map(|lease| (response.action, lease))
    });
    assert_eq!(given, Some((CreateAction::Created, asked)));

    let broken = frames().iter().find_map(|frame| {
        lease_break::Notification::parse(&frame.bytes).ok().map(|broken| (frame, broken))
    });
    let (frame, notification) = broken.unwrap();
    let header = Header::parse(&frame.bytes).unwrap();
    assert_eq!(header.message_id, MessageId::UNSOLICITED);
    assert_eq!((header.session.0, header.tree()), (0, Some(TreeId(0))));
    assert_eq!(notification.key.0.len(), 16);
    assert!(notification.current.contains(notification.new));
    assert_ne!(notification.current, notification.new);
}

#[test]
fn a_durable_handle_of_version_2_is_asked_for_and_given() {
    let mut asked = Vec::new();
    let mut given = Vec::new();
    for frame in frames() {
        if let Ok(request) = create::Request::parse(&frame.bytes) {
            asked.extend(request.contexts.durable_v2);
        }
        if let Ok(response) = create::Response::parse(&frame.bytes) {
            given.extend(response.contexts.durable_v2);
        }
    }
    assert!(asked.iter().any(|durable| !durable.create.is_nil()), "{asked:?}");
    // smbd gives what was asked for, up to five minutes, and else one.
    let timeouts: Vec<u32> = given.iter().map(|durable| durable.timeout_ms).collect();
    assert_eq!(timeouts, [60_000, 300_000]);
}

#[test]
fn the_small_things() {
    let bytes = frame("< tree_connect 00000000");
    let share = tree_connect::Response::parse(bytes).unwrap();
    assert_eq!(share.kind, tree_connect::ShareType::Pipe);
    assert_eq!(share.maximal_access.bits(), 0x001f_00a9);

    let bytes = frame("> read");
    let request = read::Request::parse(bytes).unwrap();
    assert_eq!((request.length, request.offset, request.payload_len()), (100_000, 0, 100_000));
    let charge = Header::parse(bytes).unwrap().credit_charge;
    assert_eq!(credit_charge_needed(request.payload_len()), u64::from(charge));

    let bytes = frame("> write");
    let request = write::Request::parse(bytes).unwrap();
    assert_eq!(request.data, 112..bytes.len());

    let bytes = frame("< write 00000103");
    let pending = Header::parse(bytes).unwrap();
    assert_eq!((pending.status, pending.async_id()), (NtStatus::PENDING, Some(6)));

    let bytes = frame("> ioctl");
    let request = ioctl::Request::parse(bytes).unwrap();
    assert_eq!((request.code, request.file), (0x0006_0194, FileId::ALL_ONES));
    assert_eq!(request.payload_len(), 65_535);

    let bytes = frame("> oplock_break");
    let request = oplock_break::Acknowledgement::parse(bytes).unwrap();
    let oplock_break::Acknowledgement::Oplock(request) = request else { panic!("{request:?}") };
    assert_eq!(request.level, OplockLevel::Two);
    let leases = frames().iter().filter_map(|frame| {
        let oplock_break::Acknowledgement::Lease(request) =
            oplock_break::Acknowledgement::parse(&frame.bytes).ok()?
        else {
            return None;
        };
        Some(request)
    });
    assert!(leases.count() > 0);
}

//! Messages of any bytes, as a fuzzer and a test make them. What can be read is written and read again, and must
//! then be the same.

use smb::wire::context::{Contexts, Granted, Requested};
use smb::wire::header::{Command, HEADER_LEN, Header};
use smb::wire::*;
use smb::{NtStatus, OplockLevel};

/// Any bytes as a frame: all of its messages, as requests and as answers.
pub(crate) fn run(frame: &[u8]) {
    let _ = smb1::Offer::parse(frame);
    compound(frame);
    for element in compound::Compound::new(frame).map_while(Result::ok) {
        let message = &frame[element.range];
        let _ = request(message);
        let _ = response(message);
    }
}

/// Any bytes as the body of one message: the first says of which command, request or answer, the second which of
/// the statuses that answers differ by.
pub(crate) fn body(bytes: &[u8]) {
    let Some((&[choice, status], body)) = bytes.split_first_chunk::<2>() else { return };
    let statuses = [
        NtStatus::SUCCESS,
        NtStatus::MORE_PROCESSING_REQUIRED,
        NtStatus::BUFFER_OVERFLOW,
        NtStatus::STOPPED_ON_SYMLINK,
    ];
    let status = statuses[usize::from(status) % statuses.len()];
    let command = Command::from_wire(u16::from(choice & 0x7f) % 19);
    let mut message = Header { status, ..Header::request(command) }.to_bytes().to_vec();
    message.extend_from_slice(body);
    let _ = if choice & 0x80 == 0 { request(&message) } else { response(&message) };
}

/// The messages of a frame lie behind each other and leave nothing out.
pub(crate) fn compound(frame: &[u8]) {
    let mut at = 0;
    let mut whole = true;
    for element in compound::Compound::new(frame) {
        let Ok(element) = element else {
            whole = false;
            break;
        };
        assert_eq!(element.range.start, at);
        assert!(element.range.len() >= compound::MESSAGE_MIN && at % 8 == 0);
        at = element.range.end;
        // One word is not as it came: the reserved half of StructureSize is none of the header's.
        assert_eq!(element.header.to_bytes(), frame[element.range][..HEADER_LEN]);
    }
    assert!(at <= frame.len() && (!whole || at == frame.len()));
}

/// Any bytes as a chain of create contexts.
pub(crate) fn contexts(bytes: &[u8]) {
    for context in Contexts::new(bytes).iter().map_while(Result::ok) {
        assert!(context.name.len() >= 4 && context.data.len() < bytes.len());
    }
    for oplock in [OplockLevel::None, OplockLevel::Lease] {
        if let Ok(requested) = Requested::parse(Contexts::new(bytes), oplock) {
            let mut written = Vec::new();
            requested.encode(&mut written);
            let again = Requested::parse(Contexts::new(&written), oplock).expect("we wrote it");
            assert_eq!(again, Requested { count: again.count, ..requested });
            assert!(again.count <= requested.count);
        }
    }
    if let Ok(granted) = Granted::parse(Contexts::new(bytes)) {
        let mut written = Vec::new();
        granted.encode(&mut written);
        assert_eq!(Granted::parse(Contexts::new(&written)), Ok(granted));
    }
}

/// Any bytes as the contexts of a request to negotiate 3.1.1.
pub(crate) fn negotiate_contexts(bytes: &[u8]) {
    let Some((count, bytes)) = bytes.split_first() else { return };
    let mut message = Header::request(Command::Negotiate).to_bytes().to_vec();
    message.extend_from_slice(&[36, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&[7; 16]);
    message.extend_from_slice(&[104, 0, 0, 0, *count, 0, 0, 0]);
    message.extend_from_slice(&[0x10, 2, 0x11, 3]);
    message.extend_from_slice(bytes);
    let _ = request(&message);
}

/// Writes `body` behind the header of `message`.
fn written(message: &[u8], body: &impl Encode) -> Vec<u8> {
    let mut out = message[..HEADER_LEN].to_vec();
    body.encode(&mut out, 0);
    out
}

/// Reads, writes, and reads again.
macro_rules! again {
    ($message:expr, $kind:ty) => {{
        let first = <$kind>::parse($message)?;
        let out = written($message, &first);
        assert_eq!(<$kind>::parse(&out).as_ref(), Ok(&first));
        out
    }};
}

/// A message as a request. Returns what we would have written.
pub(crate) fn request(message: &[u8]) -> Result<Vec<u8>, BadMessage> {
    let header = Header::parse(message)?;
    Ok(match header.command {
        Command::Negotiate => again!(message, negotiate::Request<'_>),
        Command::SessionSetup => again!(message, session_setup::Request<'_>),
        Command::TreeConnect => again!(message, tree_connect::Request<'_>),
        Command::Create => {
            let first = create::Request::parse(message)?;
            let out = written(message, &first);
            let mut second = create::Request::parse(&out).expect("we wrote it");
            second.contexts.count = first.contexts.count;
            assert_eq!(second, first);
            out
        }
        Command::Close => again!(message, close::Request),
        Command::Flush => again!(message, flush::Request),
        Command::Read => again!(message, read::Request<'_>),
        Command::Write => write_request(message)?,
        Command::Lock => again!(message, lock::Request<'_>),
        Command::Ioctl => again!(message, ioctl::Request<'_>),
        Command::QueryDirectory => again!(message, query_directory::Request<'_>),
        Command::ChangeNotify => again!(message, change_notify::Request),
        Command::QueryInfo => again!(message, query_info::Request<'_>),
        Command::SetInfo => again!(message, set_info::Request<'_>),
        Command::OplockBreak => match oplock_break::Acknowledgement::parse(message)? {
            oplock_break::Acknowledgement::Oplock(_) => {
                again!(message, oplock_break::OplockBreak)
            }
            oplock_break::Acknowledgement::Lease(_) => again!(message, lease_break::Request),
        },
        Command::Logoff | Command::TreeDisconnect | Command::Cancel | Command::Echo => {
            again!(message, bare::Request)
        }
        Command::Unknown(_) => return Err(BadMessage::Value),
    })
}

fn write_request(message: &[u8]) -> Result<Vec<u8>, BadMessage> {
    let first = write::Request::parse(message)?;
    // The payload need not be there.
    let head = &message[..write::HEAD_LEN];
    assert_eq!(write::Request::parse_head(head, message.len()).as_ref(), Ok(&first));
    let (blob, data) = (&message[first.channel_blob.clone()], &message[first.data.clone()]);
    let mut out = message[..HEADER_LEN].to_vec();
    first.encode_with(&mut out, 0, blob, data);
    let second = write::Request::parse(&out).expect("we wrote it");
    assert_eq!(&out[second.data.clone()], data);
    assert!(blob.starts_with(&out[second.channel_blob.clone()]));
    let places = (first.channel_blob.clone(), first.data.clone());
    assert_eq!(write::Request { channel_blob: places.0, data: places.1, ..second }, first);
    Ok(out)
}

/// A message as an answer. Returns what we would have written.
pub(crate) fn response(message: &[u8]) -> Result<Vec<u8>, BadMessage> {
    let header = Header::parse(message)?;
    let failed = header.status.is_error() && header.status != NtStatus::MORE_PROCESSING_REQUIRED;
    if (failed || header.status == NtStatus::PENDING) && header.command != Command::OplockBreak {
        let first = error::Response::parse(message)?;
        if let Ok(data) = first.status_data() {
            symlink(message, data, first.context_count > 0);
        }
        return Ok(again!(message, error::Response<'_>));
    }
    Ok(match header.command {
        Command::Negotiate => again!(message, negotiate::Response<'_>),
        Command::SessionSetup => again!(message, session_setup::Response<'_>),
        Command::TreeConnect => again!(message, tree_connect::Response),
        Command::Create => again!(message, create::Response<'_>),
        Command::Close => again!(message, close::Response),
        Command::Read => again!(message, read::Response<'_>),
        Command::Write => again!(message, write::Response),
        Command::Ioctl => again!(message, ioctl::Response<'_>),
        Command::QueryDirectory | Command::ChangeNotify | Command::QueryInfo => {
            again!(message, output::Response<'_>)
        }
        Command::SetInfo => again!(message, set_info::Response),
        Command::OplockBreak => match lease_break::Notification::parse(message) {
            Ok(_) => again!(message, lease_break::Notification),
            Err(_) => request(message)?,
        },
        Command::Logoff
        | Command::TreeDisconnect
        | Command::Cancel
        | Command::Echo
        | Command::Flush
        | Command::Lock => again!(message, bare::Response),
        Command::Unknown(_) => return Err(BadMessage::Value),
    })
}

/// What stands in an error about a symbolic link.
fn symlink(message: &[u8], data: &[u8], contexts: bool) {
    let Ok(link) = error::Symlink::parse(data) else { return };
    if link.substitute.len() + link.print.len() > usize::from(u16::MAX) - 64 {
        return;
    }
    let mut out = message[..HEADER_LEN].to_vec();
    error::Detail::Symlink(link).encode(contexts, &mut out, 0);
    let again = error::Response::parse(&out).expect("we wrote it");
    let data = again.status_data().expect("we wrote it");
    assert_eq!(error::Symlink::parse(data), Ok(link));
}

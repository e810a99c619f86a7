//! TREE_CONNECT and TREE_DISCONNECT (MS-SMB2 3.3.5.7, 3.3.5.8).

use std::sync::atomic::Ordering;

use smb::session::Dialect;
use smb::wire::bare;
use smb::wire::tree_connect::{Request, Response, ShareCapabilities, ShareFlags, ShareType};
use smb::{Access, NtStatus};

use super::super::channel::Exchange;
use super::super::closing::Closing;
use super::super::server::{Server, SharePoint};
use super::super::session::Identity;
use super::Answer;

/// Characters of `\\server\share`.
const PATH_MAX: usize = 1024;

pub(super) fn connect(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    let session = x.session()?.clone();
    if x.agreed()?.dialect >= Dialect::Smb311 && !x.is_authentic() {
        // Somebody on the way could have it connect to another share (MS-SMB2 3.3.5.7).
        x.channel.end();
        return Err(NtStatus::ACCESS_DENIED);
    }
    let name = share_name(request.path)?;
    let server = x.server();
    let share = server.share(&name).ok_or(NtStatus::BAD_NETWORK_NAME)?;
    let encrypted = share.config.encrypted;
    if !admits(server, &share, &session.identity()) || encrypted && session.encryption.is_none() {
        return Err(NtStatus::ACCESS_DENIED);
    }
    let maximal_access = match &share.files {
        None => Access::FILE_ALL,
        Some(_) if share.config.read_only => Access::FILE_READ | Access::FILE_EXECUTE,
        Some(_) => Access::FILE_ALL,
    };
    let kind = if share.files.is_some() { ShareType::Disk } else { ShareType::Pipe };
    let tree = session.connect(share, server.config.limits.trees)?;
    x.answer_tree(tree.id);
    x.leave_tree(tree.id);
    x.reply.write(&Response {
        kind,
        flags: if encrypted { ShareFlags::ENCRYPT_DATA } else { ShareFlags::empty() },
        capabilities: ShareCapabilities::empty(),
        maximal_access,
    });
    Ok(NtStatus::SUCCESS)
}

/// Whether somebody may use a share at all.
pub(super) fn admits(server: &Server, share: &SharePoint, who: &Identity) -> bool {
    if share.files.is_none() {
        return true;
    }
    // Nobody may ask which shares there are, and nothing else.
    let asks_only = who.anonymous && !server.config.guest;
    !asks_only && share.config.admits(&who.user, who.guest || who.anonymous)
}

/// `share` of `\\server\share`.
fn share_name(path: &[u8]) -> Result<String, NtStatus> {
    if path.len() > 2 * PATH_MAX || !path.len().is_multiple_of(2) {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let units = path.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
    let path: String = char::decode_utf16(units)
        .collect::<Result<_, _>>()
        .map_err(|_| NtStatus::BAD_NETWORK_NAME)?;
    let (server, share) = path
        .strip_prefix(r"\\")
        .and_then(|rest| rest.split_once('\\'))
        .ok_or(NtStatus::BAD_NETWORK_NAME)?;
    if server.is_empty() || share.is_empty() || share.contains('\\') {
        return Err(NtStatus::BAD_NETWORK_NAME);
    }
    Ok(share.to_owned())
}

pub(super) async fn disconnect(x: &mut Exchange<'_>) -> Answer {
    bare::Request::parse(x.message)?;
    let session = x.session()?.clone();
    let tree = x.tree()?.clone();
    let opens: Vec<_> = {
        let mut state = session.state();
        state.end_trees(|other| other.id == tree.id);
        state.opens.extract_if(|_, open| open.tree.id == tree.id).map(|(_, open)| open).collect()
    };
    let mut closing = Closing::default();
    for open in &opens {
        closing.add(x.server().close(open));
    }
    drop(opens);
    closing.done_soon().await;
    debug_assert!(tree.opens.load(Ordering::Relaxed) < u64::MAX / 2, "more closed than opened");
    x.reply.write(&bare::Response);
    Ok(NtStatus::SUCCESS)
}

#[cfg(test)]
mod tests {
    use smb::NtStatus;

    use super::share_name;

    fn utf16(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn the_share_is_what_stands_behind_the_server() {
        assert_eq!(share_name(&utf16(r"\\host\Files")).as_deref(), Ok("Files"));
        assert_eq!(share_name(&utf16(r"\\[::1]\IPC$")).as_deref(), Ok("IPC$"));
    }

    #[test]
    fn anything_else_is_no_share() {
        for path in ["", r"\", r"\\host", r"\\host\", r"\\\x", r"host\x", r"\\host\a\b"] {
            assert_eq!(share_name(&utf16(path)), Err(NtStatus::BAD_NETWORK_NAME), "{path:?}");
        }
        assert_eq!(share_name(&[b'x'; 3]), Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(share_name(&[0xd8; 2]), Err(NtStatus::BAD_NETWORK_NAME), "half a character");
    }
}

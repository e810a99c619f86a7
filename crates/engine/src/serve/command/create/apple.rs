//! What clients of other systems than Windows ask for with a create: macOS by AAPL, Linux by its POSIX context.

use smb::fscc::Facts;
use smb::security::Sid;
use smb::wire::context::{AppleQuery, AppleReply, PosixReply, Requested, ServerQuery};

use super::super::super::channel::Exchange;

/// kAAPL_UNIX_BASED: what a client sees of modes and links is what there is.
const UNIX_BASED: u64 = 4;
/// kAAPL_CASE_SENSITIVE, of a volume.
const CASE_SENSITIVE: u64 = 2;
/// kAAPL_SUPPORTS_FULL_SYNC, of a volume: FLUSH with Reserved1 of 0xffff reaches the disk, as every FLUSH does.
const FULL_SYNC: u64 = 4;

/// The bits of a mode that clients are told: permissions, set-id, sticky. The kind of file is an attribute.
const PERMISSIONS: u32 = 0o7777;

/// What Finder takes the server for, and shows its picture by: UTF-16LE.
pub(super) fn model() -> Vec<u8> {
    "RackMac".encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// What a Mac is told of server and volume (Apple's SMB2 Create Context extension): of the server's abilities
/// only those that are there. READ_DIR_ATTR is not: it changes what a listing looks like.
pub(super) fn answer<'m>(x: &Exchange<'_>, query: AppleQuery, model: &'m [u8]) -> AppleReply<'m> {
    let files = x.tree().ok().and_then(|tree| tree.share.files.as_ref());
    let sensitive = files.is_some_and(|share| share.config().case_sensitive);
    let volume = FULL_SYNC | if sensitive { CASE_SENSITIVE } else { 0 };
    AppleReply {
        server_caps: query.wanted.contains(ServerQuery::SERVER_CAPS).then_some(UNIX_BASED),
        volume_caps: query.wanted.contains(ServerQuery::VOLUME_CAPS).then_some(volume),
        model: query.wanted.contains(ServerQuery::MODEL).then_some(model),
    }
}

/// What a Linux client is told of the file (SMB3 POSIX Extensions, 2.2.14.2.16), if it has agreed on that.
pub(super) fn posix<'s>(
    x: &Exchange<'_>,
    asked: &Requested<'_>,
    facts: &Facts,
    sids: &'s mut Vec<u8>,
) -> Option<PosixReply<'s>> {
    asked.posix_mode?;
    if !x.agreed().is_ok_and(|agreed| agreed.posix) {
        return None;
    }
    Sid::unix_user(facts.uid).put(sids);
    Sid::unix_group(facts.gid).put(sids);
    Some(PosixReply {
        links: facts.links,
        reparse_tag: facts.reparse_tag,
        mode: facts.mode & PERMISSIONS,
        sids,
    })
}

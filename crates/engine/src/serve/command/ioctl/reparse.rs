//! Reparse points: symbolic links and special files (MS-FSCC 2.3.29, 2.3.69, 2.3.5; MS-FSA 2.1.5.10).

use std::sync::Arc;

use smb::files::notify::NotifyFilter;
use smb::fscc::reparse::{Reparse, Special as Kind, Symlink, parse_delete};
use smb::name::{from_unix, to_unix};
use smb::security::Descriptor;
use smb::{Access, NtStatus};

use super::super::super::access::Asker;
use super::super::super::channel::Exchange;
use super::super::super::fs::{Handle, Links, Special, Want};
use super::super::super::open::{FileObject, Object, Open};
use super::super::super::watch;
use super::{Output, done, need};

/// S_IFMT and kinds of files (inode(7)).
const KIND: u32 = 0o170_000;
const FIFO: u32 = 0o010_000;
const SOCKET: u32 = 0o140_000;
const LINK: u32 = 0o120_000;

/// FSCTL_GET_REPARSE_POINT: where a link leads, or what a special file is.
pub(super) async fn get(open: &Arc<Open>, room: usize) -> Output {
    let facts = open.must_be_file()?.first_facts();
    if facts.reparse_tag == 0 || open.stream().is_some() {
        return Err(NtStatus::NOT_A_REPARSE_POINT);
    }
    let reparse = match facts.mode & KIND {
        FIFO => Reparse::Special(Kind::Fifo),
        SOCKET => Reparse::Special(Kind::Socket),
        LINK => {
            Reparse::Symlink(link(&open.aside(|open| open.must_be_file()?.link_target()).await?))
        }
        _ => Reparse::Special(open.aside(|open| device(open.must_be_file()?)).await?),
    };
    let bytes = reparse.to_bytes();
    if bytes.len() > room {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    Ok((NtStatus::SUCCESS, bytes))
}

/// A link on disk, as clients see it.
pub(in crate::serve::command) fn link(target: &[u8]) -> Symlink {
    let parts: Vec<_> = target.split(|byte| *byte == b'/').map(from_unix).collect();
    Symlink::from_unix(&parts.join("/"))
}

/// Devices keep their numbers to themselves, but for the one that is none.
fn device(file: &Handle) -> Result<Kind, NtStatus> {
    match file.device_numbers()? {
        Some((0, 0)) => Ok(Kind::Char { major: 0, minor: 0 }),
        _ => Err(NtStatus::NOT_A_REPARSE_POINT),
    }
}

/// FSCTL_SET_REPARSE_POINT: an empty file, or a directory, becomes a link or a special file; a link leads elsewhere.
pub(super) async fn set(x: &mut Exchange<'_>, open: &Arc<Open>, input: &[u8]) -> Output {
    let file = changeable(open)?;
    let wanted = Reparse::parse(input)?;
    let there = file.first_facts().reparse_tag;
    if there != 0 && there != wanted.tag() {
        return Err(NtStatus::IO_REPARSE_TAG_MISMATCH);
    }
    let what = match &wanted {
        Reparse::Symlink(link) => Special::Link(on_disk(link, file.of_share().config().links)?),
        Reparse::Special(Kind::Fifo) => Special::Fifo,
        Reparse::Special(Kind::Socket) => Special::Socket,
        Reparse::Special(Kind::Char { major: 0, minor: 0 }) => Special::Whiteout,
        // What a device is the host decides.
        Reparse::Special(_) => return Err(NtStatus::ACCESS_DENIED),
        Reparse::Other { .. } => return Err(NtStatus::NOT_SUPPORTED),
    };
    turn(x, open, what).await
}

/// FSCTL_DELETE_REPARSE_POINT: a link or a special file becomes an empty file.
pub(super) async fn delete(x: &mut Exchange<'_>, open: &Arc<Open>, input: &[u8]) -> Output {
    let file = changeable(open)?;
    let tag = parse_delete(input)?;
    match file.first_facts().reparse_tag {
        0 => Err(NtStatus::NOT_A_REPARSE_POINT),
        there if there != tag => Err(NtStatus::IO_REPARSE_TAG_MISMATCH),
        _ => turn(x, open, Special::File(Want::by_access(open.access))).await,
    }
}

fn changeable(open: &Open) -> Result<&Arc<Handle>, NtStatus> {
    need(open, Access::WRITE_DATA | Access::WRITE_ATTRIBUTES)?;
    if open.stream().is_some() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    open.must_be_file()
}

/// Where a link leads, as it stands on disk. An absolute one means something to the client alone.
fn on_disk(link: &Symlink, links: Links) -> Result<Vec<u8>, NtStatus> {
    let target = match link.to_unix() {
        None if links == Links::Client => link.to_unix_absolute(),
        target => target,
    };
    let target = target.ok_or(NtStatus::ACCESS_DENIED)?;
    let parts: Vec<_> = target.split('/').map(to_unix).collect();
    Ok(parts.join(&b'/'))
}

/// The open is of something else from now on, that has the file's name. Nobody else may have it open.
async fn turn(x: &mut Exchange<'_>, open: &Arc<Open>, what: Special) -> Output {
    let server = x.server().clone();
    let asker = Asker::new(&x.session()?.identity(), &open.tree.share, &server);
    let who = asker.clone();
    let above = open.aside(move |open| may_turn(open, &who)).await?;
    let alone = server.with_file(open.key, |shard, _| {
        shard.held_of(open.key).all(|held| held.opener.open == open.id)
    });
    if !alone {
        return Err(NtStatus::SHARING_VIOLATION);
    }
    let room = x.channel.room_to_open(Handle::DESCRIPTORS)?;
    let turn = move |open: &Open| {
        // Links and special files have no descriptor on disk. What becomes a file again has one as any new file has.
        let first =
            |new: &Handle| asker.set_first(new, new.first_facts(), None, above.as_ref()).map(drop);
        open.must_be_file()?.turn_into(&what, first)
    };
    let turned = open.aside(turn).await;
    open.tree.share.count_deletion();
    let mut object = FileObject::new(Arc::new(turned?), None);
    object.count(room);
    let object = Object::File(Arc::new(object));
    let new = server.turn(open, object, x.header.channel_sequence())?;
    watch::changed(&new.tree.share, &new.path(), NotifyFilter::ATTRIBUTES);
    server.directory_changed(&new).await;
    x.leave_open(new);
    done()
}

/// What it was goes, and something else comes: who may not delete the one or add the other cannot do that. What may be
/// inherited from the folder.
fn may_turn(open: &Open, asker: &Asker) -> Result<Option<Descriptor>, NtStatus> {
    let file = open.must_be_file()?;
    asker.rights(file, file.first_facts(), Access::DELETE, false)?;
    let folder = file.folder_facts()?.ok_or(NtStatus::ACCESS_DENIED)?;
    let above = file.folder_security()?.map(|bytes| Descriptor::parse(&bytes)).transpose()?;
    asker.may_add(&folder, above.as_ref(), Access::WRITE_DATA)?;
    Ok(above)
}

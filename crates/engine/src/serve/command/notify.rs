//! CHANGE_NOTIFY (MS-SMB2 3.3.5.19).

use std::time::Duration;

use smb::files::notify::{Changes, NotifyFilter};
use smb::fscc::NotifyWriter;
use smb::wire::change_notify::{Flags, Request, Response};
use smb::{Access, NtStatus};

use super::super::channel::Exchange;
use super::super::{access, watch};
use super::Answer;

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    x.pay(request.payload_len())?;
    if request.output_max > x.agreed()?.payload {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let open = x.open_in_sequence(request.file, false)?;
    if !open.directory || open.file().is_none() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if !open.access.contains(Access::READ_DATA) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    let link = access::name_hash(open.path().as_str());
    if x.server().with_file(open.key, |shard, _| shard.is_delete_pending(open.key, link)) {
        return Err(NtStatus::DELETE_PENDING);
    }
    let filter = NotifyFilter::from_bits_retain(request.filter.bits());
    let room = request.output_max as usize;
    let recursive = request.flags.contains(Flags::WATCH_TREE);
    // Of a whole tree the kernel's watch has the folder open.
    let beside = || recursive.then(|| x.channel.room_to_open(1)).transpose();
    let asked = (x.channel.peer.ip(), room);
    let watching = watch::watch(x.server(), &open, filter, recursive, asked, beside)?;
    // Something may not happen for days: the client is told at once.
    let waited = x.wait(watching.changes(&open, room), Duration::ZERO).await;
    let changes = match waited {
        Ok(changes) => changes?,
        // With its session, tree or open a watch ends otherwise than by a CANCEL.
        Err(NtStatus::CANCELLED) if ended(x, &watching) => return Err(NtStatus::NOTIFY_CLEANUP),
        Err(status) => return Err(status),
    };
    let Changes::Entries(entries) = changes else { return Err(NtStatus::NOTIFY_ENUM_DIR) };
    let mut writer = NotifyWriter::new(room);
    let map_devices = open.tree.share.config.map_devices;
    for entry in &entries {
        match map_devices {
            true => writer.push(entry.action, &smb::name::mark_device(&entry.name)),
            false => writer.push(entry.action, &entry.name),
        }
    }
    let (status, data) = writer.finish();
    if status != NtStatus::SUCCESS {
        return Err(status);
    }
    x.reply.write(&Response { data: &data });
    Ok(NtStatus::SUCCESS)
}

/// Whether the watch has ended, not just this wait.
fn ended(x: &Exchange<'_>, watching: &watch::Watching) -> bool {
    watching.has_ended() || x.session().is_ok_and(|session| session.is_closed())
}

//! Files that go with their last open (MS-FSA 2.1.5.4).

use std::sync::Arc;

use smb::NtStatus;
use smb::files::{Delete, FileKey};

use super::super::log;
use super::super::open::Open;
use super::super::server::Server;
use super::super::watch;

/// The last open of a name that is to be deleted has ended.
pub(in crate::serve) fn on_last_close(server: &Server, open: &Arc<Open>, delete: Delete) {
    // The last open of a file may be that of a stream.
    let (removed, removed_as) = match (open.stream(), open.file()) {
        (Some(stream), _) if delete.stream != 0 => (stream.delete(), open.path()),
        (_, Some(file)) => (file.delete(), open.path().without_stream()),
        (_, None) => (Err(NtStatus::INVALID_DEVICE_REQUEST), open.path()),
    };
    let key = FileKey { stream: delete.stream, ..open.key };
    server.with_file(key, |shard, effects| shard.deleted(key, delete.link, effects));
    match removed {
        Ok(()) => watch::removed(&open.tree.share, &removed_as, open.directory),
        // Somebody else was faster, on the host.
        Err(NtStatus::OBJECT_NAME_NOT_FOUND) => {}
        Err(status) => {
            let name = removed_as.as_str();
            log::say(format_args!("{name}: not deleted as its client has asked for: {status}"));
        }
    }
}

//! Files that go with their last open (MS-FSA 2.1.5.4).

use std::sync::Arc;

use smb::NtStatus;
use smb::files::{Delete, FileKey};

use super::super::acting::{self, Whose};
use super::super::fs;
use super::super::log;
use super::super::open::Open;
use super::super::server::Server;
use super::super::watch;

/// Removes a name, or a stream, on somebody's behalf, by the last open that has ended.
pub(in crate::serve) fn remove(open: &Open, delete: Delete, whose: &Whose) -> Result<(), NtStatus> {
    let remove = || match (open.stream(), open.file()) {
        // The last open of a file may be that of a stream.
        (Some(stream), _) if delete.stream != 0 => stream.delete(),
        (_, Some(file)) => file.delete(),
        (_, None) => Err(NtStatus::INVALID_DEVICE_REQUEST),
    };
    acting::act(whose, remove).unwrap_or_else(|error| Err(fs::status_of(&error)))
}

/// The last open of a name that is to be deleted has ended, and this has become of it.
pub(in crate::serve) fn on_last_close(
    server: &Server,
    open: &Arc<Open>,
    delete: Delete,
    removed: Result<(), NtStatus>,
) {
    let key = FileKey { stream: delete.stream, ..open.key };
    open.tree.share.count_deletion();
    server.with_file(key, |shard, effects| shard.deleted(key, delete.link, effects));
    let removed_as = match open.stream() {
        Some(_) if delete.stream != 0 => open.path(),
        _ => open.path().without_stream(),
    };
    match removed {
        Ok(()) => watch::removed(&open.tree.share, &removed_as, open.directory),
        // Somebody else was faster, on the host.
        Err(NtStatus::OBJECT_NAME_NOT_FOUND) => {}
        Err(status) => {
            let name = removed_as.as_str();
            log::say(format_args!("{name:?}: not deleted as its client has asked for: {status}"));
        }
    }
}

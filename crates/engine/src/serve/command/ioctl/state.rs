//! What else a file is, and its file system (MS-FSCC 2.3).

use std::sync::Arc;

use smb::fscc::VolumeFacts;
use smb::fscc::fsctl::{
    Integrity, parse_compression, put_compression, put_no_snapshots, put_object_id,
    put_on_disk_volume,
};
use smb::{Access, NtStatus};

use super::super::super::aside::aside;
use super::super::super::open::Open;
use super::{Output, done, need, output};

async fn volume(open: &Open) -> Result<VolumeFacts, NtStatus> {
    let share = open.tree.share.files.as_ref().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
    let this = share.clone();
    aside(share, move || this.volume()).await
}

/// FSCTL_GET_COMPRESSION: no. The file system may compress what it likes; clients are not told.
pub(super) fn compression(room: usize) -> Output {
    output(|out| put_compression(false, room, out))
}

/// FSCTL_SET_COMPRESSION: only to what it is.
pub(super) fn set_compression(open: &Arc<Open>, input: &[u8]) -> Output {
    need(open, Access::WRITE_DATA)?;
    if parse_compression(input)? { Err(NtStatus::NOT_SUPPORTED) } else { done() }
}

/// FSCTL_GET_INTEGRITY_INFORMATION: no checksums that clients know of.
pub(super) async fn integrity(open: &Arc<Open>, room: usize) -> Output {
    let unit = volume(open).await?.unit;
    output(|out| Integrity::default().put(unit, room, out))
}

/// FSCTL_SET_INTEGRITY_INFORMATION: only to what it is.
pub(super) fn set_integrity(open: &Arc<Open>, input: &[u8]) -> Output {
    /// CHECKSUM_TYPE_UNCHANGED.
    const AS_IT_IS: u16 = 0xffff;
    need(open, Access::WRITE_DATA)?;
    match Integrity::parse(input)?.algorithm {
        0 | AS_IT_IS => done(),
        _ => Err(NtStatus::NOT_SUPPORTED),
    }
}

/// FSCTL_CREATE_OR_GET_OBJECT_ID: a number for the file that stays the same.
pub(super) async fn object_id(open: &Arc<Open>, room: usize) -> Output {
    let file_id = open.must_be_file()?.first_facts().file_id;
    let volume = volume(open).await?;
    output(|out| put_object_id(&volume, file_id, room, out))
}

/// FSCTL_SRV_ENUMERATE_SNAPSHOTS: there are none.
pub(super) fn snapshots(room: usize) -> Output {
    output(|out| put_no_snapshots(room, out))
}

/// FSCTL_IS_VOLUME_DIRTY: no.
pub(super) fn volume_dirty(room: usize) -> Output {
    if room < 4 {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    Ok((NtStatus::SUCCESS, vec![0; 4]))
}

/// FSCTL_QUERY_ON_DISK_VOLUME_INFO.
pub(super) async fn on_disk(open: &Arc<Open>, room: usize) -> Output {
    let volume = volume(open).await?;
    output(|out| put_on_disk_volume(&volume, room, out))
}

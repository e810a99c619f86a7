//! Who wants to hear of which change (MS-SMB2 3.3.5.19).

use std::sync::Arc;

use smb::name::Path;

use super::open::Open;
use super::server::SharePoint;

/// Those who watch a share.
#[derive(Default)]
pub(super) struct Watches;

/// The watch of one open.
pub(super) struct Watching;

/// A file or directory has come to be.
pub(super) fn created(_point: &SharePoint, _path: &Path, _directory: bool) {}

/// An open has ended, and its watch with it.
pub(super) fn closed(_open: &Arc<Open>) {}

/// A file or directory is gone.
pub(super) fn removed(_point: &SharePoint, _path: &Path, _directory: bool) {}

//! ioctl.

use smb::NtStatus;

use super::super::channel::Exchange;
use super::Answer;

pub(super) async fn serve(_x: &mut Exchange<'_>) -> Answer {
    Err(NtStatus::NOT_SUPPORTED)
}

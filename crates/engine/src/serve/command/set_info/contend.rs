//! Who caches something that is about to change lets go of it first (MS-FSA 2.1.4.12).

use smb::NtStatus;
use smb::files::{Effects, FileKey, Shard, Waiter};

use super::super::super::channel::{Exchange, PATIENCE};
use super::super::super::open::Open;

/// Others close what they only cache of the file that is open here; waits until they have.
///
/// # Errors
///
/// CANCELLED, FILE_CLOSED, INSUFFICIENT_RESOURCES if too many wait.
pub(super) async fn handles(x: &mut Exchange<'_>, open: &Open) -> Result<(), NtStatus> {
    let (key, id) = (open.key, open.id);
    until_free(x, key, move |shard, now, waiter, effects| {
        shard.contend_handles(now, key, id, waiter, effects)
    })
    .await
}

/// Everybody closes what is only cached of a file; waits until they have.
///
/// # Errors
///
/// CANCELLED, INSUFFICIENT_RESOURCES if too many wait.
pub(super) async fn all_handles(x: &mut Exchange<'_>, key: FileKey) -> Result<(), NtStatus> {
    until_free(x, key, move |shard, now, waiter, effects| {
        shard.contend_all_handles(now, key, waiter, effects)
    })
    .await
}

async fn until_free(
    x: &mut Exchange<'_>,
    key: FileKey,
    contend: impl Fn(&mut Shard, u64, Waiter, &mut Effects) -> Result<Option<u64>, NtStatus>,
) -> Result<(), NtStatus> {
    let server = x.server().clone();
    let waiting = server.begin_waiting(key);
    loop {
        let changed = waiting.waiting.changed();
        let now = server.now_ms();
        let until =
            server.with_file(key, |shard, effects| contend(shard, now, waiting.waiter, effects))?;
        if until.is_none() {
            return Ok(());
        }
        x.wait(changed, PATIENCE).await?;
    }
}

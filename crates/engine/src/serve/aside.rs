//! Calls to file systems that may keep a loop waiting.

use std::sync::Arc;
use std::time::Duration;

use super::fs::Share;
use super::open::Object;
use super::runtime;
use super::transfer::{Finished, Job};

/// Bytes that a file system frees or reserves while others wait; more than that is done elsewhere.
pub(super) const AT_ONCE: u64 = 8 << 20;

/// Calls `what`, which calls the file system of a share: here where that answers at once, as most do (ADR 16); on a thread
/// that may wait where it does not. There it goes on to its end, whoever waits for it no more.
pub(super) async fn aside<T: Send + 'static>(
    share: &Share,
    what: impl FnOnce() -> T + Send + 'static,
) -> T {
    if !share.keeps_waiting() {
        return share.timed(what);
    }
    let this = share.clone();
    elsewhere(share, move || this.timed(what)).await
}

/// [`aside`], of something on a file system that may be another one than that of the share's root: `far` as
/// [`Handle::is_far`](super::fs::Handle::is_far) has it.
pub(super) async fn aside_if<T: Send + 'static>(
    share: &Share,
    far: bool,
    what: impl FnOnce() -> T + Send + 'static,
) -> T {
    // How long that takes is nothing that the share's own is to blame for.
    if far { elsewhere(share, what).await } else { aside(share, what).await }
}

/// Has a thread that may wait call `what`, which takes its time on any file system. There it goes on to its end, whoever
/// waits for it no more. A share has half of these threads at most: one whose file system does not answer any more, as
/// that of a host that is gone, leaves the others to all else.
pub(super) fn elsewhere<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
    share: &Share,
    what: F,
) -> impl Future<Output = T> + use<T, F> {
    let place = share.callers().take(1);
    async move {
        let place = place.await;
        let call = move || {
            let _place = place;
            what()
        };
        runtime::offload(call).await
    }
}

/// [`elsewhere`] of what a transfer would wait for. `kept` is dropped when that is done, whoever waits for it.
pub(super) async fn transfer(job: Job, kept: impl Send + 'static) -> Finished {
    let place = match job.callers() {
        Some(callers) => Some(callers.clone().take(1).await),
        None => None,
    };
    let run = move || {
        let (_place, _kept) = (place, kept);
        job.run()
    };
    runtime::offload(run).await
}

/// How often, and how long after one another, [`let_go`] looks whether others have the file.
const LOOKS: u32 = 1000;
const LOOK: Duration = Duration::from_millis(1);

/// Closes a file as the last to have it. Its file system frees all blocks of what was deleted then, and one of another host
/// may write what it has not yet.
pub(super) async fn let_go(share: Share, object: Object) {
    let Object::File(file) = object else { return };
    for _ in 0..LOOKS {
        if Arc::strong_count(&file) == 1 {
            break;
        }
        runtime::sleep(LOOK).await;
    }
    elsewhere(&share, move || drop(file)).await;
}

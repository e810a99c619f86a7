//! What follows when an open has ended: its name may go, and those who cache its directory are told.

use std::sync::Arc;
use std::time::Duration;

use smb::NtStatus;
use smb::files::{Delete, FileKey};

use super::acting::{self, Whose};
use super::command::delete;
use super::open::Open;
use super::runtime::{self, Join};

/// How long the end of a session or a tree waits for deletions.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is to be done to the file of an open that has ended.
pub(super) struct End {
    pub(super) open: Arc<Open>,
    pub(super) delete: Option<(Delete, Whose)>,
    /// Its directory may be cached.
    pub(super) tells_folder: bool,
}

/// What has come of it.
pub(super) struct Ended {
    /// The directory of which others cache something that is another thing now.
    pub(super) folder: Option<FileKey>,
    pub(super) removed: Option<(Delete, Result<(), NtStatus>)>,
}

impl End {
    /// Does it, where it may be waited for.
    pub(super) fn run(self) -> Ended {
        let Self { open, delete, tells_folder } = self;
        // Where it was: when it is deleted nobody can say that any more.
        let look = || acting::act(&open.owner.whose(), || open.folder()).ok().flatten();
        let folder = if tells_folder { look() } else { None };
        let remove = |(delete, whose)| (delete, delete::remove(&open, delete, &whose));
        Ended { folder, removed: delete.map(remove) }
    }
}

/// What follows from the end of an open, where it takes long: it is done whoever waits for it or not.
#[derive(Default)]
pub(super) struct Closing(Vec<Join<()>>);

impl Closing {
    /// What a task does.
    pub(super) fn of(task: Join<()>) -> Self {
        Self(vec![task])
    }

    /// When all is done.
    pub(super) async fn done(self) {
        for done in self.0 {
            // A panic has been told of by then.
            let _ = done.await;
        }
    }

    /// The same, or when it has taken too long for who ends all that he has, and does not ask for any file of it.
    pub(super) async fn done_soon(self) {
        let _ = runtime::timeout(self.done(), PATIENCE).await;
    }

    /// That of another open, too.
    pub(super) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

//! A server of its own for each test.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use engine::serve::Serving;
use engine::serve::config::{Config, ShareConfig};
use smb::auth::{NtHash, User, UserFile};
use tempfile::TempDir;

/// A server with a folder of its own, both of which end with this.
pub(crate) struct Place {
    serving: Option<Serving>,
    folder: TempDir,
}

/// What tests start with: two loops, the users alice and bob with the password "pw", the share "files".
pub(crate) fn config(folder: &Path) -> Config {
    let mut users = UserFile::default();
    for name in ["alice", "bob"] {
        let user = User {
            name: name.to_owned(),
            uid: None,
            nt_hash: Some(NtHash::of_password("pw")),
            disabled: false,
            expires: None,
        };
        users.set(user).expect("a name");
    }
    Config {
        listen: vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)],
        shares: [("files", false), ("secret", true)]
            .map(|(name, encrypted)| ShareConfig { encrypted, ..ShareConfig::new(name, folder) })
            .to_vec(),
        users: users.to_text().to_string(),
        vectors: 2,
        audit: false,
        ..Config::default()
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        // In memory, where there is such a place.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.expect("a folder");
        let mut config = config(folder.path());
        change(&mut config);
        let serving = Serving::start(config).expect("a server");
        Self { serving: Some(serving), folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.serving.as_ref().expect("not stopped").addresses()[0]
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether the folder is where nothing waits for a disk.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.folder().starts_with("/dev/shm")
    }

    /// Others may log on from now on, or until other days.
    pub(crate) fn reload(&self, users: &UserFile) {
        let serving = self.serving.as_ref().expect("not stopped");
        serving.reload_users(&users.to_text()).expect("users");
    }

    /// The same before shares are looked at: nobody else than before may log on.
    pub(crate) fn begin_reload(&self, users: &UserFile) {
        let serving = self.serving.as_ref().expect("not stopped");
        serving.reload_users_left(&users.to_text()).expect("users");
    }

    /// Its shares are looked at again: how many are new and gone.
    pub(crate) fn reload_shares(&self) -> (usize, usize) {
        let serving = self.serving.as_ref().expect("not stopped");
        let reloaded = serving.reload_shares(&config(self.folder()).shares, &[], &[]);
        (reloaded.shares_new, reloaded.shares_gone)
    }

    /// What is open, waited for and promised.
    pub(crate) fn counts(&self) -> smb::files::Counts {
        self.serving.as_ref().expect("not stopped").counts()
    }

    /// What the server says of itself.
    pub(crate) fn stat(&self) -> engine::serve::stat::Stat {
        self.serving.as_ref().expect("not stopped").stat()
    }

    /// So much time passes.
    pub(crate) fn advance(&self, by: Duration) {
        self.serving.as_ref().expect("not stopped").advance(by);
    }

    pub(crate) fn panics(&self) -> u64 {
        self.serving.as_ref().expect("not stopped").panics()
    }

    pub(crate) fn stop(&mut self) {
        self.serving.take().expect("not stopped").stop();
    }
}

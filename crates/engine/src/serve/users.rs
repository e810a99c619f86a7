//! Who may log on, and how often they may try.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use smb::auth::{User, UserFile, Users};

use super::server::Server;

/// The users of a server, as one connection may ask for them.
pub(super) struct KnownUsers<'s> {
    server: &'s Server,
    file: Arc<UserFile>,
    address: IpAddr,
}

impl<'s> KnownUsers<'s> {
    pub(super) fn new(server: &'s Server, address: IpAddr) -> Self {
        let file = server.users.read().unwrap_or_else(PoisonError::into_inner).clone();
        Self { server, file, address }
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.server.now_ms())
    }

    /// The user got in.
    pub(super) fn succeeded(&self, user: &str) {
        self.server.limiter().succeeded(user, self.address);
    }
}

impl Users for KnownUsers<'_> {
    fn find(&self, name: &str, domain: &str) -> Option<User> {
        self.file.find(name, domain)
    }

    fn locked_out(&self, name: &str, _domain: &str) -> bool {
        self.server.limiter().wait(name, self.address, self.now()).is_some()
    }
}

//! Named pipes of IPC$.

use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smb::NtStatus;
use smb::auth::UserFile;
use smb::rpc::{self, Accounts, Chunk, Host, PipeKind};
use sys::accounts::{Account, Group};

use super::runtime::{self, Permit};
use super::server::Server;
use super::session::Session;

/// Pipes that a session has open at most: one may hold half a MiB of answers.
pub(super) const PIPES: usize = 64;

/// What guests are called, whatever they call themselves.
const GUEST: &str = "Guest";

/// An open pipe.
pub(super) struct Pipe {
    server: Arc<Server>,
    /// One of those that the session may have.
    _place: Permit,
    inner: Mutex<rpc::Pipe>,
    /// Who is to hear names of the host's users.
    may_hear_names: bool,
    /// Whose it is.
    caller: String,
    /// Whether what it does may take its time, and is done elsewhere.
    may_wait: bool,
}

/// The users and groups that the host's name services know, and the users of the server who have a number.
#[derive(Debug)]
struct Names(Arc<UserFile>);

fn text(name: CString) -> Option<String> {
    name.into_string().ok()
}

impl Accounts for Names {
    fn user_name(&self, uid: u32) -> Option<String> {
        let known =
            || self.0.iter().find(|user| user.uid == Some(uid)).map(|user| user.name.clone());
        Account::by_uid(uid).ok().flatten().and_then(|account| text(account.name)).or_else(known)
    }

    fn group_name(&self, gid: u32) -> Option<String> {
        text(Group::by_gid(gid).ok()??.name)
    }

    fn uid(&self, name: &str) -> Option<u32> {
        // It is theirs to which the rights are given.
        let numbered = self.0.get(name).and_then(|user| user.uid);
        numbered.or_else(|| Some(Account::by_name(name).ok()??.uid))
    }

    fn gid(&self, name: &str) -> Option<u32> {
        Some(Group::by_name(name).ok()??.gid)
    }
}

impl Pipe {
    /// The pipe of that name, for somebody who has said who it is, or has not.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_NOT_FOUND if there is none; INSUFFICIENT_RESOURCES if the session has as many as it may.
    pub(super) fn open(
        server: &Arc<Server>,
        name: &str,
        session: &Session,
    ) -> Result<Self, NtStatus> {
        let kind = PipeKind::from_name(name)?;
        let place = session.pipes.try_take(1).ok_or(NtStatus::INSUFFICIENT_RESOURCES)?;
        let identity = session.identity();
        Ok(Self {
            server: server.clone(),
            _place: place,
            inner: Mutex::new(rpc::Pipe::new(kind)),
            may_hear_names: !identity.guest && !identity.anonymous,
            caller: if identity.guest { GUEST.to_owned() } else { identity.user.clone() },
            may_wait: kind.may_wait(),
        })
    }

    fn inner(&self) -> MutexGuard<'_, rpc::Pipe> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the pipes tell about this server.
    fn host(&self) -> Host {
        let shares = self.server.shares.read().unwrap_or_else(PoisonError::into_inner);
        let shares = shares.values().map(|point| rpc::Share {
            name: point.config.name.clone(),
            is_ipc: point.files.is_none(),
            is_hidden: point.config.name.ends_with('$'),
            comment: point.config.comment.clone(),
            path: String::new(),
            users: 0,
        });
        let users = self.server.users.read().unwrap_or_else(PoisonError::into_inner).clone();
        Host {
            name: self.server.config.name.clone(),
            domain: "WORKGROUP".to_owned(),
            comment: String::new(),
            shares: shares.collect(),
            now: self.server.now(),
            caller: self.caller.clone(),
            accounts: self.may_hear_names.then(|| Arc::new(Names(users)) as _),
        }
    }

    /// Reads what was answered; whether there is more of it.
    pub(super) async fn read(self: &Arc<Self>, most: usize) -> Result<Chunk, NtStatus> {
        self.with(&[], move |inner, _, host| inner.read(most, host)).await
    }

    /// Bytes that wait to be read, and in how many messages. While a call is under way it has no answer.
    pub(super) fn waiting(&self) -> (usize, usize) {
        match self.inner.try_lock() {
            Ok(inner) => (inner.waiting(), inner.units()),
            Err(_) => (0, 0),
        }
    }

    /// Takes a request.
    pub(super) async fn write(self: &Arc<Self>, data: &[u8]) -> Result<(), NtStatus> {
        self.with(data, |inner, data, host| inner.write(data, host)).await
    }

    /// Takes a request and reads what was answered.
    pub(super) async fn transceive(
        self: &Arc<Self>,
        data: &[u8],
        most: usize,
    ) -> Result<Chunk, NtStatus> {
        self.with(data, move |inner, data, host| inner.transceive(data, most, host)).await
    }

    async fn with<T: Send + 'static>(
        self: &Arc<Self>,
        data: &[u8],
        what: impl FnOnce(&mut rpc::Pipe, &[u8], &Host) -> T + Send + 'static,
    ) -> T {
        if !self.may_wait {
            return what(&mut self.inner(), data, &self.host());
        }
        let (this, data) = (self.clone(), data.to_vec());
        let place = self.server.askers.take(1).await;
        let call = move || {
            let _place = place;
            what(&mut this.inner(), &data, &this.host())
        };
        runtime::offload(call).await
    }
}

//! Named pipes of IPC$.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smb::NtStatus;
use smb::rpc::{self, Chunk, Host, PipeKind};

use super::server::Server;

/// An open pipe.
pub(super) struct Pipe {
    server: Arc<Server>,
    inner: Mutex<rpc::Pipe>,
}

impl Pipe {
    /// The pipe of that name.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_NOT_FOUND if there is none.
    pub(super) fn open(server: &Arc<Server>, name: &str) -> Result<Self, NtStatus> {
        let kind = PipeKind::from_name(name)?;
        Ok(Self { server: server.clone(), inner: Mutex::new(rpc::Pipe::new(kind)) })
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
            comment: String::new(),
            path: String::new(),
            users: 0,
        });
        Host {
            name: self.server.config.name.clone(),
            domain: "WORKGROUP".to_owned(),
            comment: String::new(),
            shares: shares.collect(),
            now: self.server.now(),
        }
    }

    /// Reads what was answered; whether there is more of it.
    pub(super) fn read(&self, most: usize) -> Result<Chunk, NtStatus> {
        self.inner().read(most)
    }

    /// Bytes that wait to be read, and in how many messages.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let inner = self.inner();
        (inner.waiting(), inner.units())
    }

    /// Takes a request.
    pub(super) fn write(&self, data: &[u8]) -> Result<(), NtStatus> {
        let host = self.host();
        self.inner().write(data, &host)
    }

    /// Takes a request and reads what was answered.
    pub(super) fn transceive(&self, data: &[u8], most: usize) -> Result<Chunk, NtStatus> {
        let host = self.host();
        self.inner().transceive(data, most, &host)
    }
}

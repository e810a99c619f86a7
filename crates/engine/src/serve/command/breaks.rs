//! Oplocks and leases that are broken, and what clients say to it (MS-SMB2 3.3.4.6, 3.3.4.7, 3.3.5.22).

use std::sync::Arc;

use smb::files::{FileKey, OpenId};
use smb::wire::header::{Command, Flags, Header};
use smb::wire::lease_break;
use smb::wire::oplock_break::{Acknowledgement, OplockBreak};
use smb::{FileId, Guid, LeaseKey, LeaseState, MessageId, NtStatus, OplockLevel};

use super::super::channel::{ChannelRef, Exchange, Notice, Reply, deliver};
use super::super::open::Open;
use super::super::server::Server;
use super::super::session::Session;
use super::Answer;

/// The header of what the server says of its own accord.
fn header() -> Header {
    Header {
        flags: Flags::RESPONSE,
        message_id: MessageId::UNSOLICITED,
        credit_charge: 0,
        ..Header::request(Command::OplockBreak)
    }
}

/// An oplock is less now.
struct OplockIsLess {
    /// Whose it is, if its session encrypts, or its share.
    sealed: Option<Arc<Session>>,
    file: FileId,
    key: FileKey,
    open: OpenId,
    to: OplockLevel,
    acknowledge: bool,
}

impl Notice for OplockIsLess {
    fn message(&self) -> Reply {
        let mut reply = Reply::new(self.sealed.clone());
        reply.begin(&header());
        reply.write(&OplockBreak { level: self.to, file: self.file });
        reply
    }

    fn is_awaited(&self) -> bool {
        self.acknowledge
    }

    fn is_over(&self, server: &Server) -> bool {
        let breaking =
            server.with_file(self.key, |shard, _| shard.breaking_oplock(self.key, self.open));
        breaking != Some(self.to)
    }
}

/// Tells a client that an oplock is less now.
pub(in crate::serve) fn oplock(
    session: &Arc<Session>,
    open: &Open,
    to: OplockLevel,
    acknowledge: bool,
) {
    let channels = session.state().channels.clone();
    let secret = session.must_encrypt || open.tree.share.config.encrypted;
    let notice = OplockIsLess {
        sealed: (secret && session.encryption.is_some()).then(|| session.clone()),
        file: open.file_id,
        key: open.key,
        open: open.id,
        to,
        acknowledge,
    };
    deliver(&channels, notice);
}

/// A lease is less now.
struct LeaseIsLess {
    client: Guid,
    notification: lease_break::Notification,
}

impl Notice for LeaseIsLess {
    fn message(&self) -> Reply {
        let mut reply = Reply::new(None);
        reply.begin(&header());
        reply.write(&self.notification);
        reply
    }

    fn is_awaited(&self) -> bool {
        self.notification.flags & lease_break::ACK_REQUIRED != 0
    }

    fn is_over(&self, server: &Server) -> bool {
        let (lease, to) = ((self.client, self.notification.key), self.notification.new);
        let Some(file) = server.lease_file(lease.0, lease.1) else { return true };
        let breaking = server.with_file(file, |shard, _| shard.breaking_lease(file, lease));
        breaking != Some(to)
    }
}

/// Tells a client that a lease is less now.
pub(in crate::serve) fn lease(
    channels: &[ChannelRef],
    client: Guid,
    key: LeaseKey,
    (current, new): (LeaseState, LeaseState),
    epoch: u16,
    acknowledge: bool,
) {
    let flags = if acknowledge { lease_break::ACK_REQUIRED } else { 0 };
    let notification = lease_break::Notification { epoch, flags, key, current, new };
    deliver(channels, LeaseIsLess { client, notification });
}

/// A client says that it has let go.
pub(super) fn acknowledged(x: &mut Exchange<'_>) -> Answer {
    match Acknowledgement::parse(x.message)? {
        Acknowledgement::Oplock(said) => {
            let open = x.session()?.open(said.file.volatile).ok_or(NtStatus::FILE_CLOSED)?;
            if open.file_id != said.file || open.is_closed() {
                return Err(NtStatus::FILE_CLOSED);
            }
            let level = x.server().with_file(open.key, |shard, effects| {
                shard.acknowledge_oplock(open.key, open.id, said.level, effects)
            })?;
            x.reply.write(&OplockBreak { level, file: said.file });
        }
        Acknowledgement::Lease(said) => {
            let client = x.session()?.client;
            let server = x.server();
            let file: FileKey =
                server.lease_file(client, said.key).ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
            let now = server.now_ms();
            let state = server.with_file(file, |shard, effects| {
                shard.acknowledge_lease(now, file, (client, said.key), said.state, effects)
            })?;
            x.reply.write(&lease_break::Response { flags: 0, key: said.key, state });
        }
    }
    Ok(NtStatus::SUCCESS)
}

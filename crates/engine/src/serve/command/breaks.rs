//! Oplocks and leases that are broken, and what clients say to it (MS-SMB2 3.3.4.6, 3.3.4.7, 3.3.5.22).

use smb::files::FileKey;
use smb::wire::header::{Command, Flags, Header};
use smb::wire::lease_break;
use smb::wire::oplock_break::{Acknowledgement, OplockBreak};
use smb::{LeaseKey, LeaseState, MessageId, NtStatus, OplockLevel};

use super::super::channel::{ChannelRef, Exchange, Reply, deliver};
use super::super::open::Open;
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

/// Tells a client that an oplock is less now.
pub(in crate::serve) fn oplock(session: &std::sync::Arc<Session>, open: &Open, to: OplockLevel) {
    let channels = session.state().channels.clone();
    let file = open.file_id;
    let sealed = session.must_encrypt.then(|| session.clone());
    deliver(&channels, move || {
        let mut reply = Reply::new(sealed.clone());
        reply.begin(&header());
        reply.write(&OplockBreak { level: to, file });
        reply
    });
}

/// Tells a client that a lease is less now.
pub(in crate::serve) fn lease(
    channels: &[ChannelRef],
    key: LeaseKey,
    (current, new): (LeaseState, LeaseState),
    epoch: u16,
    acknowledge: bool,
) {
    let flags = if acknowledge { lease_break::ACK_REQUIRED } else { 0 };
    deliver(channels, move || {
        let mut reply = Reply::new(None);
        reply.begin(&header());
        reply.write(&lease_break::Notification { epoch, flags, key, current, new });
        reply
    });
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

//! What each command does.

pub(super) mod breaks;
pub(super) mod close;
pub(super) mod create;
pub(super) mod delete;
pub(super) mod directory;
pub(super) mod flush;
pub(super) mod ioctl;
pub(super) mod lock;
pub(super) mod negotiate;
pub(super) mod notify;
pub(super) mod query_info;
pub(super) mod read;
pub(super) mod session_setup;
pub(super) mod set_info;
pub(super) mod tree;
pub(super) mod write;

use smb::NtStatus;
use smb::wire::bare;
use smb::wire::header::Command;

use super::channel::{After, Exchange};

/// What a command answers: a status with a body, or one with an error's body.
pub(super) type Answer = Result<NtStatus, NtStatus>;

/// Serves a request whose session, signature and tree have been looked at.
pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    // Each request has room for the largest of these futures: those of commands that do more have room of their own.
    match x.header.command {
        Command::Negotiate => negotiate::serve(x),
        Command::SessionSetup => Box::pin(session_setup::serve(x)).await,
        Command::Logoff => session_setup::logoff(x).await,
        Command::TreeConnect => tree::connect(x),
        Command::TreeDisconnect => tree::disconnect(x).await,
        Command::Create => Box::pin(create::serve(x)).await,
        Command::Close => close::serve(x).await,
        Command::Flush => flush::serve(x).await,
        Command::Read => read::serve(x).await,
        Command::Write => write::serve(x).await,
        Command::Lock => lock::serve(x).await,
        Command::Ioctl => Box::pin(ioctl::serve(x)).await,
        Command::Echo => echo(x),
        Command::QueryDirectory => Box::pin(directory::serve(x)).await,
        Command::ChangeNotify => notify::serve(x).await,
        Command::QueryInfo => query_info::serve(x).await,
        Command::SetInfo => Box::pin(set_info::serve(x)).await,
        Command::OplockBreak => breaks::acknowledged(x),
        Command::Cancel | Command::Unknown(_) => Err(NtStatus::INVALID_PARAMETER),
    }
}

fn echo(x: &mut Exchange<'_>) -> Answer {
    bare::Request::parse(x.message)?;
    x.reply.write(&bare::Response);
    Ok(NtStatus::SUCCESS)
}

/// The answer is complete, and about to go out.
pub(super) fn answered(x: &mut Exchange<'_>, status: NtStatus) -> After {
    match x.header.command {
        Command::Negotiate => negotiate::answered(x, status),
        Command::SessionSetup => session_setup::answered(x, status),
        // Found out not to be who it was negotiated with: nothing is said any more.
        Command::Ioctl if !x.channel.shared.is_open() => After::Drop,
        _ => After::Next,
    }
}

//! Control codes of named pipes (MS-SMB2 3.3.5.15.3, 3.3.5.15.4, 3.3.5.15.10).

use std::sync::Arc;

use smb::NtStatus;
use smb::fscc::fsctl::PipeWait;
use smb::rpc::PipeKind;
use smb::wire::ioctl::Request;

use super::super::super::channel::Exchange;
use super::super::super::pipe::Pipe;
use super::{Output, done, unknown};

/// FILE_PIPE_CONNECTED_STATE (MS-FSCC 2.3.46).
const CONNECTED: u32 = 3;
/// Bytes before the data of FSCTL_PIPE_PEEK.
const PEEK_HEAD: usize = 16;

/// FSCTL_PIPE_TRANSCEIVE: a request and its answer in one.
pub(super) async fn transceive(pipe: &Arc<Pipe>, input: &[u8], room: usize) -> Output {
    let chunk = pipe.transceive(input, room).await?;
    Ok((chunk.status(), chunk.bytes))
}

/// FSCTL_PIPE_PEEK: how much there is to read. The data itself stays where it is, as it may.
pub(super) fn peek(pipe: &Pipe, room: usize) -> Output {
    if room < PEEK_HEAD {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    let (bytes, messages) = pipe.waiting();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let fields = [CONNECTED, number(bytes), number(messages), 0];
    let status = if bytes > 0 { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
    Ok((status, fields.iter().flat_map(|field| field.to_le_bytes()).collect()))
}

/// FSCTL_PIPE_WAIT: our pipes can be opened at any time.
pub(super) fn wait(x: &Exchange<'_>, request: &Request<'_>) -> Output {
    if x.tree()?.share.files.is_some() {
        return Err(unknown(x));
    }
    let wait = PipeWait::parse(request.input)?;
    PipeKind::from_name(&wait.name)?;
    done()
}

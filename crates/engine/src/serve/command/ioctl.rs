//! IOCTL (MS-SMB2 3.3.5.15): what clients ask of the server and of its file system besides reading and writing.

mod copy;
mod interfaces;
mod network;
mod pipe;
pub(super) mod reparse;
mod space;
mod state;
mod torture;

use std::sync::Arc;

use smb::fscc::fsctl::Code;
use smb::wire::ioctl::{IS_FSCTL, Request, Response};
use smb::{Access, NtStatus};

use super::super::acting;
use super::super::aside::elsewhere;
use super::super::channel::{Exchange, PATIENCE};
use super::super::open::{Object, Open};
use super::super::runtime;
use super::Answer;

/// What a control code yields: the status that goes with the output, and the output.
type Output = Result<(NtStatus, Vec<u8>), NtStatus>;

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    x.pay(request.payload_len())?;
    if request.flags != IS_FSCTL {
        return Err(NtStatus::NOT_SUPPORTED);
    }
    let payload = x.agreed()?.payload as usize;
    let most = request.output_max as usize;
    if most.max(request.input_max as usize).max(request.input.len()) > payload {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let code = Code(request.code);
    if x.server().config.test_codes
        && let Some(answer) = torture::serve(x, code, &request).await
    {
        return answer;
    }
    let (status, output) = match answered_without_open(x, code, &request) {
        Some(output) => output?,
        None => on_open(x, code, &request, most).await?,
    };
    x.reply.write(&Response {
        code: request.code,
        file: request.file,
        output: &output,
        ..Response::default()
    });
    Ok(status)
}

/// The codes that are about no open: their FileId is all ones.
fn answered_without_open(x: &Exchange<'_>, code: Code, request: &Request<'_>) -> Option<Output> {
    let answer: fn(&Exchange<'_>, &Request<'_>) -> Output = match code {
        Code::VALIDATE_NEGOTIATE_INFO => network::validate,
        Code::QUERY_NETWORK_INTERFACE_INFO => network::interfaces,
        Code::PIPE_WAIT => pipe::wait,
        // There is no distributed file system here.
        Code::DFS_GET_REFERRALS | Code::DFS_GET_REFERRALS_EX => |x, _| Err(unknown(x)),
        _ => return None,
    };
    if request.file != smb::FileId::ALL_ONES {
        return Some(Err(NtStatus::INVALID_PARAMETER));
    }
    Some(answer(x, request))
}

async fn on_open(x: &mut Exchange<'_>, code: Code, request: &Request<'_>, room: usize) -> Output {
    let open = x.open_in_sequence(request.file, true)?;
    if let Object::Pipe(pipe) = &open.object {
        return match code {
            Code::PIPE_TRANSCEIVE => pipe::transceive(pipe, request.input, room).await,
            Code::PIPE_PEEK => pipe::peek(pipe, room),
            _ => Err(NtStatus::FS_DRIVER_REQUIRED),
        };
    }
    let input = request.input;
    match code {
        Code::SRV_REQUEST_RESUME_KEY => copy::resume_key(&open, room),
        Code::SRV_COPYCHUNK => copy::chunks(x, &open, input, room, true).await,
        Code::SRV_COPYCHUNK_WRITE => copy::chunks(x, &open, input, room, false).await,
        Code::DUPLICATE_EXTENTS_TO_FILE => copy::duplicate(x, &open, input, false).await,
        Code::DUPLICATE_EXTENTS_TO_FILE_EX => copy::duplicate(x, &open, input, true).await,
        Code::SET_SPARSE => space::set_sparse(&open, input).await,
        Code::SET_ZERO_DATA => space::zero(x, &open, input).await,
        Code::QUERY_ALLOCATED_RANGES => space::allocated(x, &open, input, room).await,
        Code::QUERY_FILE_REGIONS => space::regions(&open, input, room).await,
        Code::GET_REPARSE_POINT => reparse::get(&open, room).await,
        Code::SET_REPARSE_POINT => reparse::set(x, &open, input).await,
        Code::DELETE_REPARSE_POINT => reparse::delete(x, &open, input).await,
        Code::GET_COMPRESSION => state::compression(room),
        Code::SET_COMPRESSION => state::set_compression(&open, input),
        Code::GET_INTEGRITY_INFORMATION => state::integrity(&open, room).await,
        Code::SET_INTEGRITY_INFORMATION => state::set_integrity(&open, input),
        Code::CREATE_OR_GET_OBJECT_ID | Code::GET_OBJECT_ID => state::object_id(&open, room).await,
        Code::SRV_ENUMERATE_SNAPSHOTS => state::snapshots(room),
        Code::IS_VOLUME_DIRTY => state::volume_dirty(room),
        Code::QUERY_ON_DISK_VOLUME_INFO => state::on_disk(&open, room).await,
        Code::LMR_REQUEST_RESILIENCY => Err(NtStatus::NOT_SUPPORTED),
        // A client whose trim is refused goes on without; one whose offload is refused, copies.
        _ => Err(NtStatus::INVALID_DEVICE_REQUEST),
    }
}

/// How a code is refused that nobody here knows.
fn unknown(x: &Exchange<'_>) -> NtStatus {
    match x.tree() {
        Ok(tree) if tree.share.files.is_none() => NtStatus::FS_DRIVER_REQUIRED,
        Ok(_) => NtStatus::INVALID_DEVICE_REQUEST,
        Err(status) => status,
    }
}

/// Nothing but success.
fn done() -> Output {
    Ok((NtStatus::SUCCESS, Vec::new()))
}

/// Output that `put` appends to nothing.
fn output(put: impl FnOnce(&mut Vec<u8>) -> Result<(), NtStatus>) -> Output {
    let mut out = Vec::new();
    put(&mut out)?;
    Ok((NtStatus::SUCCESS, out))
}

/// Has a thread that may wait do something with the file of an open. A client that is alone with that may cancel its wait;
/// what was begun goes on.
async fn in_pool<T: Send + 'static>(
    x: &mut Exchange<'_>,
    open: &Open,
    what: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NtStatus> {
    let done = elsewhere(open.must_be_file()?.of_share(), what);
    if x.last { x.wait(done, PATIENCE).await } else { Ok(done.await) }
}

/// Has a thread that may wait change what the file of an open holds; others forget what they have read of it before and
/// after. A client that is alone with that may cancel its wait: what was begun goes on while the file is open, its open
/// counts it as under way, and who has come to cache the file meanwhile is told when it has ended.
async fn change<T: Send + 'static>(
    x: &mut Exchange<'_>,
    open: &Arc<Open>,
    what: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NtStatus> {
    let (server, this) = (x.server().clone(), open.clone());
    server.contend(open);
    let done = elsewhere(open.must_be_file()?.of_share(), acting::carried(what));
    let counted = x.take_sequence();
    let changed = runtime::spawn(async move {
        let done = done.await;
        server.contend_late(&this);
        drop(counted);
        done
    });
    let changed = if x.last { x.wait(changed, PATIENCE).await? } else { changed.await };
    // It has panicked, and that was told.
    changed.map_err(|_| NtStatus::INTERNAL_ERROR)
}

/// Whether an open has one of these rights.
fn need(open: &Open, any: Access) -> Result<(), NtStatus> {
    if open.access.intersects(any) { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) }
}

/// The open of a file that has data, not of a directory.
fn data_of(open: &Arc<Open>) -> Result<(), NtStatus> {
    if open.directory && open.stream().is_none() {
        Err(NtStatus::INVALID_PARAMETER)
    } else {
        Ok(())
    }
}

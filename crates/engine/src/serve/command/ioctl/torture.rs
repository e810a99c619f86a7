//! Control codes of Samba's test suite, by which a client breaks its own connections to see what becomes of
//! them. Obeyed only by a server that was told so ([`Config::test_codes`](crate::serve::config::Config::test_codes)).

use std::time::Duration;

use smb::NtStatus;
use smb::fscc::fsctl::Code;
use smb::wire::header::HEADER_LEN;
use smb::wire::ioctl::{OUTPUT_AT, Request, Response};

use super::super::super::channel::{Exchange, PATIENCE};
use super::super::super::runtime;
use super::super::Answer;

/// Bytes of padding where a client might take an offset for granted.
const PADDING: usize = 8;

/// Serves one of these codes; `None` for any other.
pub(super) async fn serve(
    x: &mut Exchange<'_>,
    code: Code,
    request: &Request<'_>,
) -> Option<Answer> {
    let sleeps = code == Code::TORTURE_FSP_ASYNC_SLEEP;
    let known = sleeps
        || matches!(
            code,
            Code::TORTURE_FORCE_UNACKED_TIMEOUT
                | Code::TORTURE_IOCTL_RESPONSE_BODY_PADDING8
                | Code::TORTURE_GLOBAL_READ_RESPONSE_BODY_PADDING8
        );
    if !known {
        return None;
    }
    if sleeps {
        return Some(sleep(x, request).await);
    }
    if !request.input.is_empty() {
        return Some(Err(NtStatus::INVALID_PARAMETER));
    }
    let response = Response { code: request.code, file: request.file, ..Response::default() };
    match code {
        Code::TORTURE_FORCE_UNACKED_TIMEOUT => x.channel.shared.deafen(),
        Code::TORTURE_GLOBAL_READ_RESPONSE_BODY_PADDING8 => x.channel.padded_reads.set(true),
        _ => {
            padded(x, &response, request.output_max as usize);
            return Some(Ok(NtStatus::SUCCESS));
        }
    }
    x.reply.write(&response);
    Some(Ok(NtStatus::SUCCESS))
}

/// Answers with as many eights as there is room for, eight bytes behind where they usually are.
fn padded(x: &mut Exchange<'_>, response: &Response<'_>, len: usize) {
    let (bytes, start) = x.reply.body();
    response.begin(bytes, start);
    bytes.resize(bytes.len() + PADDING, 0);
    bytes.resize(bytes.len() + len, 8);
    let mut put = |at: usize, number: usize| {
        let number = u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
        bytes[start + at..start + at + 4].copy_from_slice(&number);
    };
    // OutputOffset and OutputCount.
    put(HEADER_LEN + 32, OUTPUT_AT + PADDING);
    put(HEADER_LEN + 36, len);
}

/// Takes as many milliseconds as the input's one byte says.
async fn sleep(x: &mut Exchange<'_>, request: &Request<'_>) -> Answer {
    let [milliseconds] = request.input else { return Err(NtStatus::INVALID_PARAMETER) };
    let _open = x.open_in_sequence(request.file, true)?;
    let nap = runtime::sleep(Duration::from_millis((*milliseconds).into()));
    x.wait(nap, PATIENCE).await?;
    x.reply.write(&Response { code: request.code, file: request.file, ..Response::default() });
    Ok(NtStatus::SUCCESS)
}

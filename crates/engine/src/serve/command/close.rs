//! CLOSE (MS-SMB2 3.3.5.10).

use smb::NtStatus;
use smb::wire::close::{Flags, Request, Response};

use super::super::channel::Exchange;
use super::super::open::Open;
use super::Answer;

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    let open = x.open_in_sequence(request.file, false)?;
    let mut response = Response::default();
    if request.flags.contains(Flags::POSTQUERY_ATTRIB) && open.file().is_some() {
        let facts = open.aside(Open::facts).await?;
        response = Response {
            flags: Flags::POSTQUERY_ATTRIB,
            created: facts.created,
            accessed: facts.accessed,
            written: facts.written,
            changed: facts.changed,
            allocation: facts.allocated,
            size: facts.size,
            attributes: facts.attributes,
        };
    }
    x.session()?.state().opens.remove(&open.file_id.volatile);
    let closing = x.server().close(&open);
    x.forget_open();
    x.end_sequence();
    // What is deleted is closed by others, as the last who have it.
    drop(open);
    closing.done().await;
    x.reply.write(&response);
    Ok(NtStatus::SUCCESS)
}

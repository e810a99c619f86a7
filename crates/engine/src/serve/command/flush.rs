//! FLUSH (MS-SMB2 3.3.5.11).

use smb::wire::flush::{Request, Response};
use smb::{Access, NtStatus};

use super::super::channel::Exchange;
use super::super::open::Object;
use super::Answer;

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    let open = x.open_in_sequence(request.file, false)?;
    match &open.object {
        Object::Pipe(_) => {}
        Object::File(_) => {
            let writes = Access::WRITE_DATA | Access::APPEND_DATA;
            if !open.access.intersects(writes) {
                return Err(NtStatus::ACCESS_DENIED);
            }
            open.sync().await?;
        }
    }
    x.reply.write(&Response);
    Ok(NtStatus::SUCCESS)
}

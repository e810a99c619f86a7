//! LOCK (MS-SMB2 3.3.5.14).

use std::time::Duration;

use smb::NtStatus;
use smb::files::{LockElement, LockFlags, LockOutcome};
use smb::wire::lock::{Flags, Request, Response};

use super::super::channel::Exchange;
use super::Answer;

/// How long a lock may take before its client is told.
const PATIENCE: Duration = Duration::from_micros(500);

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    // Who must authenticate again may give back what it has, and take nothing more.
    let gives = |element: smb::wire::lock::Element| element.flags.contains(Flags::UNLOCK);
    if !request.elements.iter().all(gives) && x.session()?.is_expired(x.server().now()) {
        return Err(NtStatus::NETWORK_SESSION_EXPIRED);
    }
    let open = x.open_in_sequence(request.file, false)?;
    if open.file().is_none() || open.directory {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    // The numbers mean something since 3.0, and before that for opens that outlive their connection.
    let numbered = x.agreed()?.dialect.is_smb3() || open.durable.is_some();
    if numbered && open.lock_sequence().is_replay(request.sequence) {
        x.reply.write(&Response);
        return Ok(NtStatus::SUCCESS);
    }
    let elements: Vec<LockElement> = request
        .elements
        .iter()
        .map(|element| LockElement {
            offset: element.offset,
            length: element.length,
            flags: LockFlags::from_bits_retain(element.flags.bits()),
        })
        .collect();
    let server = x.server().clone();
    let waiting = server.begin_waiting(open.key);
    let now = server.now_ms();
    let outcome = server.with_file(open.key, |shard, effects| {
        shard.lock(now, open.key, open.id, &elements, waiting.waiter, effects)
    });
    match outcome {
        LockOutcome::Done => {}
        LockOutcome::Refused(status) => return Err(status),
        LockOutcome::Wait => {
            let decided = async {
                loop {
                    let changed = waiting.waiting.changed();
                    if let Some(status) = waiting.waiting.result() {
                        return status;
                    }
                    changed.await;
                }
            };
            let status = match x.wait(decided, PATIENCE).await {
                Ok(status) => status,
                Err(cancelled) => {
                    let taken_back = server.with_file(open.key, |shard, _| {
                        shard.cancel_lock(open.key, waiting.waiter)
                    });
                    match waiting.waiting.result() {
                        // Granted just before it was cancelled: it has it.
                        Some(status) if !taken_back => status,
                        _ => return Err(cancelled),
                    }
                }
            };
            if status != NtStatus::SUCCESS {
                return Err(status);
            }
        }
    }
    if numbered {
        open.lock_sequence().done(request.sequence);
    }
    x.reply.write(&Response);
    Ok(NtStatus::SUCCESS)
}

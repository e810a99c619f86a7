//! What the client is told of its new open (MS-SMB2 3.3.5.9, "Successful Open").

use super::{
    Access, CreateAction, DurableFlags, DurableGrant, Exchange, Facts, Granted, Lease, LeaseFlags,
    LeaseState, LeaseV2, LeaseVersion, MaximalAccess, NtStatus, OnDiskId, Open, OplockLevel,
    Request, Response,
};

pub(super) fn answer(
    x: &mut Exchange<'_>,
    request: &Request<'_>,
    open: &Open,
    facts: &Facts,
    action: CreateAction,
    granted: &smb::files::Granted,
    maximal: Access,
) {
    let lease = open.lease.map(|lease| {
        let mut flags = LeaseFlags::empty();
        flags.set(LeaseFlags::BREAK_IN_PROGRESS, granted.breaking);
        flags.set(LeaseFlags::PARENT_KEY_SET, lease.parent.is_some());
        let v2 = matches!(lease.version, LeaseVersion::Two)
            .then(|| LeaseV2 { parent: lease.parent.unwrap_or_default(), epoch: granted.epoch });
        Lease { key: lease.key, state: granted.lease, flags, v2 }
    });
    let oplock = match lease {
        Some(_) => OplockLevel::Lease,
        None => granted.oplock,
    };
    debug_assert!(lease.is_some() || granted.lease == LeaseState::empty(), "a lease without a key");
    let durable = open.durable;
    let contexts = Granted {
        lease,
        durable: durable.is_some_and(|durable| durable.version == 1),
        durable_v2: durable.filter(|durable| durable.version == 2).map(|durable| DurableGrant {
            timeout_ms: durable.timeout_ms,
            flags: if durable.persistent {
                DurableFlags::PERSISTENT
            } else {
                DurableFlags::empty()
            },
        }),
        maximal_access: request
            .contexts
            .maximal_access
            .map(|_| MaximalAccess { status: NtStatus::SUCCESS, access: maximal }),
        on_disk_id: request
            .contexts
            .on_disk_id
            .then(|| OnDiskId { file: facts.index, volume: facts.device }),
        posix: None,
        apple: None,
    };
    x.reply.write(&Response {
        oplock,
        flags: 0,
        action,
        created: facts.created,
        accessed: facts.accessed,
        written: facts.written,
        changed: facts.changed,
        allocation: facts.allocated,
        size: facts.size,
        attributes: facts.attributes,
        file: open.file_id,
        contexts,
    });
}

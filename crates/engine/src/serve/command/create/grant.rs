//! What the client is told of its open (MS-SMB2 3.3.5.9, "Successful Open").

use smb::files::LeaseVersion;
use smb::fscc::Facts;
use smb::wire::context::{
    DurableFlags, DurableGrant, Granted, Lease, LeaseFlags, LeaseV2, MaximalAccess, OnDiskId,
};
use smb::wire::create::{Request, Response};
use smb::{Access, CreateAction, NtStatus, OplockLevel};

use super::super::super::channel::Exchange;
use super::super::super::open::{Durable, Open};
use super::apple;

/// What is told.
pub(super) struct Told<'a> {
    open: &'a Open,
    facts: Facts,
    granted: &'a smb::files::Granted,
    pub(super) action: CreateAction,
    pub(super) oplock: OplockLevel,
    /// What was promised with this request.
    pub(super) durable: Option<Durable>,
    /// What the user may do at most.
    pub(super) maximal: Access,
}

impl<'a> Told<'a> {
    /// An open, with what it has now.
    pub(super) fn new(open: &'a Open, facts: Facts, granted: &'a smb::files::Granted) -> Self {
        let oplock = if open.lease.is_some() { OplockLevel::Lease } else { granted.oplock };
        Self {
            open,
            facts,
            granted,
            action: open.action,
            oplock,
            durable: None,
            maximal: open.access,
        }
    }

    /// The lease, in the version in which it was asked for first.
    fn lease(&self) -> Option<Lease> {
        let lease = self.open.lease?;
        let mut flags = LeaseFlags::empty();
        flags.set(LeaseFlags::BREAK_IN_PROGRESS, self.granted.breaking);
        let two = self.granted.version == LeaseVersion::Two;
        flags.set(LeaseFlags::PARENT_KEY_SET, two && lease.parent.is_some());
        let v2 = two.then(|| LeaseV2 {
            parent: lease.parent.unwrap_or_default(),
            epoch: self.granted.epoch,
        });
        Some(Lease { key: lease.key, state: self.granted.lease, flags, v2 })
    }

    /// Writes the answer.
    pub(super) fn write(&self, x: &mut Exchange<'_>, request: &Request<'_>) {
        let facts = &self.facts;
        let asked = &request.contexts;
        let durable = self.durable;
        let mut sids = Vec::new();
        let model = apple::model();
        let contexts = Granted {
            lease: self.lease(),
            durable: durable.is_some_and(|durable| durable.version == 1),
            durable_v2: durable.filter(|durable| durable.version == 2).map(|durable| {
                let mut flags = DurableFlags::empty();
                flags.set(DurableFlags::PERSISTENT, durable.persistent);
                DurableGrant { timeout_ms: durable.timeout_ms, flags }
            }),
            // Whoever knows what it was when the file was last written to need not be told again.
            maximal_access: asked
                .maximal_access
                .filter(|known| *known != facts.written)
                .map(|_| MaximalAccess { status: NtStatus::SUCCESS, access: self.maximal }),
            on_disk_id: asked
                .on_disk_id
                .then_some(OnDiskId { file: facts.file_id, volume: facts.device }),
            posix: apple::posix(x, asked, facts, &mut sids),
            apple: asked.apple.map(|query| apple::answer(x, query, &model)),
        };
        x.reply.write(&Response {
            oplock: self.oplock,
            // The name is a reparse point (MS-SMB2 2.2.14).
            flags: u8::from(facts.reparse_tag != 0),
            action: self.action,
            created: facts.created,
            accessed: facts.accessed,
            written: facts.written,
            changed: facts.changed,
            allocation: facts.allocated,
            size: facts.size,
            attributes: facts.attributes,
            file: self.open.file_id,
            contexts,
        });
    }
}

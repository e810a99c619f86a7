//! What the peer has told of its buffers ("rtokens" in Linux).

use super::LINKS;
use super::link::{LinkSlot, Links};
use super::local::Telling;
use crate::conn::Remote;
use crate::llc::{ConfirmRkey, DeleteRkeyAnswer, NewKey};
use crate::name::RKey;

/// Most buffers of the peer, as in Linux.
const BUFFERS_MAX: usize = 255;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Buffer {
    on: [Option<Remote>; LINKS],
    /// Connections that write to it.
    pub(super) users: u16,
    /// The peer has told us to forget it.
    pub(super) deleted: bool,
}

/// Index of a buffer of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteId(usize);

#[derive(Clone, Debug)]
pub(super) struct RemoteBuffers {
    pub(super) buffers: Vec<Option<Buffer>>,
    /// Whether a buffer is known for no longer than a connection writes to it.
    transient: bool,
}

impl RemoteBuffers {
    pub(super) fn new(telling: Telling) -> Self {
        Self { buffers: Vec::new(), transient: telling == Telling::Named }
    }

    pub(super) fn set_telling(&mut self, telling: Telling) {
        self.transient = telling == Telling::Named;
    }

    pub(super) fn has_room(&self) -> bool {
        self.buffers.iter().flatten().count() < BUFFERS_MAX
    }

    fn find(&self, link: LinkSlot, rkey: RKey) -> Option<usize> {
        let is = |buffer: &Buffer| {
            !buffer.deleted && buffer.on[link.index()].is_some_and(|remote| remote.rkey == rkey)
        };
        self.buffers.iter().position(|buffer| buffer.as_ref().is_some_and(is))
    }

    fn add(&mut self, link: LinkSlot, remote: Remote) -> Option<usize> {
        let at = match self.find(link, remote.rkey) {
            Some(at) => at,
            None => self.free_place()?,
        };
        let buffer = self.buffers[at].get_or_insert_default();
        buffer.on[link.index()] = Some(remote);
        Some(at)
    }

    fn free_place(&mut self) -> Option<usize> {
        if let Some(at) = self.buffers.iter().position(Option::is_none) {
            return Some(at);
        }
        let at = self.buffers.len();
        (at < BUFFERS_MAX).then(|| {
            self.buffers.push(None);
            at
        })
    }

    /// A connection writes to the buffer that Accept or Confirm names. `None`: there is no room.
    pub(super) fn take(&mut self, link: LinkSlot, remote: Remote) -> Option<RemoteId> {
        let at = self.add(link, remote)?;
        if let Some(buffer) = &mut self.buffers[at] {
            buffer.users += 1;
        }
        Some(RemoteId(at))
    }

    /// A connection does not write to it any more.
    pub(super) fn give(&mut self, RemoteId(at): RemoteId) {
        if let Some(Some(buffer)) = self.buffers.get_mut(at) {
            buffer.users = buffer.users.saturating_sub(1);
            if buffer.users == 0 && (buffer.deleted || self.transient) {
                self.buffers[at] = None;
            }
        }
    }

    pub(super) fn on_link(&self, RemoteId(at): RemoteId, link: LinkSlot) -> Option<Remote> {
        self.buffers.get(at)?.as_ref()?.on[link.index()]
    }

    /// CONFIRM RKEY; whether there was room. Keys for links that are not known are left out.
    pub(super) fn confirm(&mut self, links: &Links, link: LinkSlot, body: &ConfirmRkey) -> bool {
        let this = Remote { rkey: body.this.rkey, vaddr: body.this.vaddr };
        let Some(at) = self.add(link, this) else { return false };
        for key in body.others() {
            let slot = links.by_number(key.link).filter(|slot| *slot != link);
            if let (Some(slot), Some(buffer)) = (slot, &mut self.buffers[at]) {
                buffer.on[slot.index()] = Some(Remote { rkey: key.rkey, vaddr: key.vaddr });
            }
        }
        true
    }

    /// DELETE RKEY. A buffer that a connection still writes to is forgotten with the connection.
    pub(super) fn delete(&mut self, link: LinkSlot, keys: &[RKey]) -> DeleteRkeyAnswer {
        let mut unknown = 0_u8;
        for key in keys {
            let Some(at) = self.find(link, *key) else {
                unknown = unknown.saturating_add(1);
                continue;
            };
            let entry = &mut self.buffers[at];
            match entry {
                Some(buffer) if buffer.users > 0 => buffer.deleted = true,
                _ => *entry = None,
            }
        }
        DeleteRkeyAnswer { negative: unknown > 0, unknown }
    }

    /// ADD LINK of version 2: keys on the new link of buffers that are known on the one it came by.
    pub(super) fn extend(&mut self, by: LinkSlot, new: LinkSlot, keys: &[NewKey]) {
        for key in keys {
            let at = self.find(by, key.known);
            if let Some(buffer) = at.and_then(|at| self.buffers[at].as_mut()) {
                buffer.on[new.index()] = Some(Remote { rkey: key.new, vaddr: key.vaddr });
            }
        }
    }

    /// A link is gone, and its keys with it.
    pub(super) fn forget_link(&mut self, link: LinkSlot) {
        for buffer in self.buffers.iter_mut().flatten() {
            buffer.on[link.index()] = None;
        }
    }
}

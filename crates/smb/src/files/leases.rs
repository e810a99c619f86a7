//! Which file a lease key is used for.

use std::collections::HashMap;

use super::key::FileKey;
use crate::{Guid, LeaseKey, NtStatus};

/// A lease key names one file at a time (MS-SMB2 3.3.5.9.8). Its lock is taken before a shard's and left
/// again; never the other way round.
#[derive(Debug)]
pub struct Leases {
    files: HashMap<(Guid, LeaseKey), (FileKey, u32)>,
    limit: usize,
}

impl Leases {
    /// For at most `limit` leases at a time.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { files: HashMap::new(), limit }
    }

    /// The file a key is used for.
    #[must_use]
    pub fn file(&self, client: Guid, key: LeaseKey) -> Option<FileKey> {
        self.files.get(&(client, key)).map(|(file, _)| *file)
    }

    /// An open with this lease begins. To be given back with [`release`](Self::release) when the open was
    /// refused, is closed, or is purged.
    ///
    /// # Errors
    /// INVALID_PARAMETER if the key is used for another file, INSUFFICIENT_RESOURCES if there are too many.
    pub fn claim(&mut self, client: Guid, key: LeaseKey, file: FileKey) -> Result<(), NtStatus> {
        let full = self.files.len() >= self.limit;
        match self.files.entry((client, key)) {
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                let (used, opens) = entry.get_mut();
                if *used != file {
                    return Err(NtStatus::INVALID_PARAMETER);
                }
                *opens = opens.saturating_add(1);
                Ok(())
            }
            std::collections::hash_map::Entry::Vacant(_) if full => {
                Err(NtStatus::INSUFFICIENT_RESOURCES)
            }
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert((file, 1));
                Ok(())
            }
        }
    }

    /// An open with this lease ends.
    pub fn release(&mut self, client: Guid, key: LeaseKey) {
        if let Some((_, opens)) = self.files.get_mut(&(client, key)) {
            *opens -= 1;
            if *opens == 0 {
                self.files.remove(&(client, key));
            }
        }
    }

    /// How many keys are in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether no key is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Leases;
    use crate::files::FileKey;
    use crate::{Guid, LeaseKey, NtStatus};

    #[test]
    fn a_key_names_one_file_until_its_last_open_is_gone() {
        let (client, key) = (Guid([1; 16]), LeaseKey([2; 16]));
        let (one, other) = (
            FileKey { inode: 1, ..FileKey::default() },
            FileKey { inode: 2, ..FileKey::default() },
        );
        let mut leases = Leases::new(1);
        assert_eq!(leases.claim(client, key, one), Ok(()));
        assert_eq!(leases.claim(client, key, one), Ok(()));
        assert_eq!(leases.claim(client, key, other), Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(leases.claim(Guid([3; 16]), key, other), Err(NtStatus::INSUFFICIENT_RESOURCES));
        leases.release(client, key);
        assert_eq!(leases.file(client, key), Some(one));
        leases.release(client, key);
        assert_eq!(leases.claim(client, key, other), Ok(()));
        assert_eq!(leases.len(), 1);
    }
}

//! Every open of the server, by what clients name it with.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smb::files::OpenId;
use smb::{Guid, NtStatus};

use super::Open;

/// All opens, those whose client is away with them. Behind one lock, held for some look-ups.
#[derive(Default)]
pub(in crate::serve) struct Table(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    opens: HashMap<OpenId, Arc<Open>>,
    /// Creates by ClientGuid and CreateGuid: what a replay is known by.
    creates: HashMap<(Guid, Guid), Attempt>,
    /// The opens of a program, by its AppInstanceId.
    instances: HashMap<Guid, BTreeSet<OpenId>>,
    /// Distinguishes attempts of the same name.
    attempts: u64,
}

/// What became of a create.
enum Attempt {
    /// Nothing yet.
    UnderWay(u64),
    /// It is answered, or is about to be.
    Done(OpenId),
}

/// What a create that can be replayed finds.
pub(in crate::serve) enum Begun {
    /// It is the first of its name.
    First(Place),
    /// It was sent before, and led to this open.
    Done(Arc<Open>),
}

/// A name of a create that is being served; free again when dropped, unless it led to an open.
pub(in crate::serve) struct Place {
    table: Arc<Mutex<Inner>>,
    name: (Guid, Guid),
    attempt: u64,
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = lock(&self.table);
        if matches!(inner.creates.get(&self.name), Some(Attempt::UnderWay(n)) if *n == self.attempt)
        {
            inner.creates.remove(&self.name);
        }
    }
}

impl Table {
    /// An open begins.
    pub(in crate::serve) fn add(&self, open: &Arc<Open>) {
        let mut inner = lock(&self.0);
        inner.opens.insert(open.id, open.clone());
        if let Some(create) = open.create_guid {
            inner.creates.insert((open.client, create), Attempt::Done(open.id));
        }
        if let Some(app) = open.app_instance {
            inner.instances.entry(app).or_default().insert(open.id);
        }
    }

    /// Its client is back: another value of the same number. What it sends from now on is no replay of the
    /// create that opened it.
    pub(in crate::serve) fn replace(&self, old: &Open, new: &Arc<Open>) {
        let mut inner = lock(&self.0);
        inner.opens.insert(new.id, new.clone());
        inner.forget_create(old);
    }

    /// An open has ended.
    pub(in crate::serve) fn remove(&self, open: &Open) {
        let mut inner = lock(&self.0);
        inner.opens.remove(&open.id);
        inner.forget_create(open);
        if let Some(app) = open.app_instance
            && let Some(opens) = inner.instances.get_mut(&app)
        {
            opens.remove(&open.id);
            if opens.is_empty() {
                inner.instances.remove(&app);
            }
        }
    }

    /// The open of that number.
    pub(in crate::serve) fn get(&self, id: OpenId) -> Option<Arc<Open>> {
        lock(&self.0).opens.get(&id).cloned()
    }

    /// The first open that is such a one.
    pub(in crate::serve) fn find(&self, is: impl Fn(&Open) -> bool) -> Option<Arc<Open>> {
        self.all().into_iter().find(|open| is(open))
    }

    /// The opens of a program.
    pub(in crate::serve) fn of_program(&self, app: Guid) -> Vec<Arc<Open>> {
        let inner = lock(&self.0);
        let Some(ids) = inner.instances.get(&app) else { return Vec::new() };
        ids.iter().filter_map(|id| inner.opens.get(id).cloned()).collect()
    }

    /// Every open. Takes as long as there are opens: not for what clients do often.
    pub(in crate::serve) fn all(&self) -> Vec<Arc<Open>> {
        lock(&self.0).opens.values().cloned().collect()
    }

    /// Opens, at most `limit` of them.
    pub(in crate::serve) fn some(&self, limit: usize) -> Vec<Arc<Open>> {
        lock(&self.0).opens.values().take(limit).cloned().collect()
    }

    /// A create that can be replayed begins (MS-SMB2 3.3.5.9.10).
    ///
    /// # Errors
    ///
    /// FILE_NOT_AVAILABLE while one of the same name is being served: the client is to ask again.
    pub(in crate::serve) fn begin(&self, client: Guid, create: Guid) -> Result<Begun, NtStatus> {
        let name = (client, create);
        let mut inner = lock(&self.0);
        match inner.creates.get(&name) {
            Some(Attempt::UnderWay(_)) => return Err(NtStatus::FILE_NOT_AVAILABLE),
            Some(Attempt::Done(id)) => {
                // Who uses an open has had the answer: this is another create.
                if let Some(open) = inner.opens.get(id).filter(|open| open.is_replayable()) {
                    return Ok(Begun::Done(open.clone()));
                }
            }
            None => {}
        }
        inner.attempts += 1;
        let attempt = inner.attempts;
        inner.creates.insert(name, Attempt::UnderWay(attempt));
        drop(inner);
        Ok(Begun::First(Place { table: self.0.clone(), name, attempt }))
    }
}

impl Inner {
    fn forget_create(&mut self, open: &Open) {
        if let Some(create) = open.create_guid {
            let name = (open.client, create);
            if matches!(self.creates.get(&name), Some(Attempt::Done(id)) if *id == open.id) {
                self.creates.remove(&name);
            }
        }
    }
}

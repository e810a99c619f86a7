//! Other users and shares, while the server runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use smb::auth::UserFile;

use super::config::ShareConfig;
use super::fs;
use super::runtime::{Runtime, VectorId};
use super::server::{Server, SharePoint};
use super::start::{NotStarted, points};
use super::users::may_stay;

/// How long a loop may take to do its part.
const PATIENCE: Duration = Duration::from_secs(10);

/// What has become of the shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Shares that are new, or other than before.
    pub shares_new: usize,
    /// Shares that are gone or other: who was connected to them is not any more.
    pub shares_gone: usize,
    /// Shares whose folders cannot be opened, by their names: why, in words.
    pub closed: Vec<(String, String)>,
    /// Those that stay what they were, because there is no folder where they are to be: their names, and their folders.
    pub kept: Vec<(String, PathBuf)>,
}

impl Reloaded {
    /// The folder in which a share stays.
    #[must_use]
    pub fn stays_in(&self, name: &str) -> Option<&Path> {
        let kept = self.kept.iter().find(|(kept, _)| smb::name::same(kept, name));
        kept.map(|(_, folder)| &**folder)
    }
}

/// Puts users in place of those that there are. Sessions of users who are gone or disabled end, and those of others with
/// their users' time, which may be another than it was. How many have ended.
///
/// # Errors
///
/// What is wrong with them; nothing is changed then.
pub(super) fn users(
    server: &Arc<Server>,
    runtime: &Runtime,
    users: &str,
) -> Result<usize, NotStarted> {
    let users = UserFile::parse(users)?;
    *server.users.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(users);
    let server = server.clone();
    Ok(on_a_loop(runtime, move || end_sessions(&server)).unwrap_or(0))
}

/// Puts those of the users in place who could be there before as well: who is new, or was disabled, stays out, until the
/// shares are what was said together with the users. How many sessions have ended.
///
/// # Errors
///
/// What is wrong with them; nothing is changed then.
pub(super) fn users_left(
    server: &Arc<Server>,
    runtime: &Runtime,
    users: &str,
) -> Result<usize, NotStarted> {
    let users_said = UserFile::parse(users)?;
    let before = server.users.read().unwrap_or_else(PoisonError::into_inner).clone();
    let mut left = users_said.clone();
    for user in users_said.iter().filter(|user| !user.disabled) {
        // It is there, and nobody else has the name. Who comes by a ticket is kept out by being disabled only.
        let _ = match before.get(&user.name) {
            None => left.remove(&user.name).map(drop),
            Some(known) if known.disabled => left.disable(&user.name, true),
            Some(_) => Ok(()),
        };
    }
    self::users(server, runtime, &left.to_text())
}

/// Who may log on once these users are in place, and may not now.
pub(super) fn newcomers(server: &Server, users: &str) -> Result<Vec<String>, NotStarted> {
    let users = UserFile::parse(users)?;
    let before = server.users.read().unwrap_or_else(PoisonError::into_inner).clone();
    let is_new = |name: &str| before.get(name).is_none_or(|known| known.disabled);
    let new = users.iter().filter(|user| !user.disabled && is_new(&user.name));
    Ok(new.map(|user| user.name.clone()).collect())
}

/// Puts shares in place of those that there are. A share that is as before stays as it is, with all that is open in it; so
/// does one that is to be in another folder, and nothing else of it changes, while there is none. `absent`: shares of which
/// that is known. `newcomers`: who gets in after this, and was not meant for a folder where a share stays.
pub(super) fn shares(
    server: &Arc<Server>,
    runtime: &Runtime,
    shares: &[ShareConfig],
    absent: &[ShareConfig],
    newcomers: &[String],
) -> Reloaded {
    let before = server.shares.read().unwrap_or_else(PoisonError::into_inner).clone();
    let (mut after, bad) = points(shares, &before);
    let mut kept = Vec::new();
    for share in shares.iter().chain(absent) {
        let name = smb::name::fold(&share.name);
        if !after.contains_key(&name)
            && !newcomers.iter().any(|user| share.admits(user, false))
            && let Some(point) = before.get(&name).filter(|point| is_mislaid(share, point))
        {
            kept.push((share.name.clone(), point.config.path.clone()));
            after.insert(name, point.clone());
        }
    }
    let is_in = |all: &BTreeMap<String, Arc<SharePoint>>,
                 (name, share): &(&String, &Arc<SharePoint>)| {
        all.get(*name).is_some_and(|other| Arc::ptr_eq(other, share))
    };
    let gone: Vec<Arc<SharePoint>> = before
        .iter()
        .filter(|entry| !is_in(&after, entry))
        .map(|(_, share)| share.clone())
        .collect();
    let shares_new = after.iter().filter(|entry| !is_in(&before, entry)).count();
    *server.shares.write().unwrap_or_else(PoisonError::into_inner) = after;
    let shares_gone = gone.len();
    let server = server.clone();
    on_a_loop(runtime, move || end_trees(&server, &gone));
    let closed = bad.into_iter().map(|(share, why)| (share.name, why.to_string())).collect();
    Reloaded { shares_new, shares_gone, closed, kept }
}

/// Whether what is new of a share is where its folder is to be, and nothing else; and it is still where it was. Whose rights
/// change as well is not left to who had some before.
fn is_mislaid(share: &ShareConfig, point: &SharePoint) -> bool {
    let path = point.config.path.clone();
    share.path != path
        && ShareConfig { path, ..share.clone() } == point.config
        && point.files.as_ref().is_some_and(fs::Share::is_in_place)
}

/// Opens are closed by a loop: whoever waits for that is woken there. `None`: it has not answered.
fn on_a_loop<T: Send + 'static>(
    runtime: &Runtime,
    part: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = mpsc::channel();
    runtime.post(VectorId(0), move || {
        let _ = tell.send(part());
    });
    told.recv_timeout(PATIENCE).ok()
}

/// Ends the sessions of users who may not be there any more; how many.
fn end_sessions(server: &Server) -> usize {
    let users = server.users.read().unwrap_or_else(PoisonError::into_inner).clone();
    let all = server.all_sessions();
    let out = all.iter().filter(|session| !may_stay(&users, session));
    out.map(|session| drop(server.end_session(session, false))).count()
}

/// Ends what sessions have of shares that are gone.
fn end_trees(server: &Server, gone: &[Arc<SharePoint>]) {
    for session in server.all_sessions() {
        let is_gone = |share: &Arc<SharePoint>| gone.iter().any(|other| Arc::ptr_eq(other, share));
        let opens: Vec<_> = {
            let mut state = session.state();
            state.end_trees(|tree| is_gone(&tree.share));
            let lost = state.opens.extract_if(|_, open| is_gone(&open.tree.share));
            lost.map(|(_, open)| open).collect()
        };
        for open in &opens {
            server.close(open);
        }
    }
}

//! Other users and shares, while the server runs.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use smb::auth::UserFile;

use super::config::ShareConfig;
use super::runtime::{Runtime, VectorId};
use super::server::{Server, SharePoint};
use super::start::{NotStarted, points};
use super::users::may_stay;

/// How long a loop may take to do its part.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a reload has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Shares that are new, or other than before.
    pub shares_new: usize,
    /// Shares that are gone or other: who was connected to them is not any more.
    pub shares_gone: usize,
    /// Sessions that were ended, of users who may not log on any more.
    pub sessions_ended: usize,
}

/// Puts users and shares in place of those that there are. A share that is as before stays as it is, with all
/// that is open in it; sessions of users who are gone or disabled end, and those of others with their users' time,
/// which may be another than it was.
///
/// # Errors
///
/// What is wrong with them; nothing is changed then.
pub(super) fn reload(
    server: &Arc<Server>,
    runtime: &Runtime,
    shares: &[ShareConfig],
    users: &str,
) -> Result<Reloaded, NotStarted> {
    let users = UserFile::parse(users)?;
    let before = server.shares.read().unwrap_or_else(PoisonError::into_inner).clone();
    let after = points(shares, &before)?;
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
    *server.users.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(users);
    let shares_gone = gone.len();
    // Opens are closed by a loop: whoever waits for that is woken there.
    let (tell, told) = mpsc::channel();
    let server = server.clone();
    runtime.post(VectorId(0), move || {
        let _ = tell.send(part(&server, &gone));
    });
    let sessions_ended = told.recv_timeout(PATIENCE).unwrap_or(0);
    Ok(Reloaded { shares_new, shares_gone, sessions_ended })
}

/// Ends what goes with shares and users that are gone; the number of sessions.
fn part(server: &Server, gone: &[Arc<SharePoint>]) -> usize {
    let users = server.users.read().unwrap_or_else(PoisonError::into_inner).clone();
    let mut ended = 0;
    for session in server.all_sessions() {
        if !may_stay(&users, &session) {
            server.end_session(&session, false);
            ended += 1;
            continue;
        }
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
    ended
}

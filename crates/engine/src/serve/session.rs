//! What a client has with the server, whichever channel it uses: sessions and trees.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use smb::crypto::{Cipher, Opener, Sealer, SecretKey, SessionKeys, SigningAlgorithm};
use smb::session::Dialect;
use smb::{FileTime, Guid, NtStatus, SessionId, TreeId};
use sys::sync::AtomicU64;

use super::accounts::Account;
use super::acting::Whose;
use super::channel::ChannelRef;
use super::open::Open;
use super::pipe;
use super::runtime::Budget;
use super::server::{Server, SharePoint};

/// Who a session is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// The user's name, empty for nobody.
    pub(super) user: String,
    /// The domain that the client named.
    pub(super) domain: String,
    /// Unknown here, and let in as a guest.
    pub(super) guest: bool,
    /// Gave no name.
    pub(super) anonymous: bool,
    /// The client machine, as it calls itself.
    pub(super) workstation: String,
    /// Not in the file of users: the realm of Kerberos vouches.
    pub(super) vouched: bool,
    /// Who it is in lists of rights, if not who the server runs as.
    pub(super) uid: Option<u32>,
    /// As whom files are touched, if not as the server runs.
    pub(super) account: Option<Account>,
}

impl Identity {
    /// Whether this is the same user.
    pub(super) fn same_user(&self, other: &Self) -> bool {
        self.guest == other.guest
            && self.anonymous == other.anonymous
            && smb::name::same(&self.user, &other.user)
    }

    /// `user`, `guest` or `nobody`.
    pub(super) fn kind(&self) -> &'static str {
        match (self.anonymous, self.guest) {
            (true, _) => "nobody",
            (_, true) => "guest",
            _ => "user",
        }
    }

    /// On whose behalf its files are touched.
    pub(super) fn whose(&self) -> Whose {
        self.account.as_ref().map(|account| account.actor.clone())
    }
}

/// What encrypts and decrypts for a session, on all of its channels.
pub(super) struct Encryption {
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
}

/// A session that is set up.
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) client: Guid,
    pub(super) dialect: Dialect,
    pub(super) cipher: Option<Cipher>,
    pub(super) signing: SigningAlgorithm,
    /// What its first channel signs with, as do others until they are bound.
    pub(super) signing_key: Option<SecretKey>,
    /// Where its client connected from first.
    pub(super) peer: SocketAddr,
    /// Began at, in milliseconds of the server's clock.
    pub(super) began_ms: u64,
    /// `None` without a key: guests and nobody.
    pub(super) encryption: Option<Encryption>,
    /// Unsigned requests are refused.
    pub(super) must_sign: bool,
    /// Unencrypted ones are.
    pub(super) must_encrypt: bool,
    /// Nothing may be done until it is authenticated again, and this is when (FILETIME; all ones: never).
    expires: AtomicU64,
    /// The same, as the file of users says it now.
    user_expires: AtomicU64,
    /// It was authenticated again as somebody else than who connected to its shares.
    turned: AtomicBool,
    /// It is gone: its channels may still hold it.
    closed: AtomicBool,
    /// How often it was authenticated again.
    renewals: AtomicU64,
    /// Named pipes that it may have open.
    pub(super) pipes: Budget,
    state: Mutex<State>,
}

/// What its channels may change.
pub(super) struct State {
    pub(super) identity: Arc<Identity>,
    pub(super) channels: Vec<ChannelRef>,
    pub(super) trees: HashMap<TreeId, Arc<Tree>>,
    next_tree: u32,
    pub(super) opens: HashMap<u64, Arc<Open>>,
}

impl State {
    /// These trees are no more, for those either who have looked them up.
    pub(super) fn end_trees(&mut self, which: impl Fn(&Tree) -> bool) {
        for (_, tree) in self.trees.extract_if(|_, tree| which(tree)) {
            tree.ended.store(true, Ordering::Release);
        }
    }
}

/// What a session begins with.
pub(super) struct Beginning<'k> {
    pub(super) id: SessionId,
    pub(super) client: Guid,
    pub(super) dialect: Dialect,
    pub(super) cipher: Option<Cipher>,
    pub(super) signing: SigningAlgorithm,
    pub(super) peer: SocketAddr,
    pub(super) began_ms: u64,
    pub(super) identity: Identity,
    pub(super) keys: Option<&'k SessionKeys>,
    pub(super) must_sign: bool,
    pub(super) must_encrypt: bool,
    pub(super) expires: Option<FileTime>,
    pub(super) user_expires: Option<FileTime>,
}

impl Session {
    pub(super) fn new(with: Beginning<'_>) -> Self {
        let encryption = with.cipher.zip(with.keys).and_then(|(cipher, keys)| {
            let (to, from) = (keys.server_to_client.as_ref()?, keys.client_to_server.as_ref()?);
            Some(Encryption {
                sealer: Sealer::new(cipher, to, with.id),
                opener: Opener::new(cipher, from),
            })
        });
        Self {
            id: with.id,
            client: with.client,
            dialect: with.dialect,
            cipher: with.cipher,
            peer: with.peer,
            began_ms: with.began_ms,
            encryption,
            signing: with.signing,
            signing_key: with.keys.map(|keys| keys.signing.clone()),
            must_sign: with.must_sign,
            must_encrypt: with.must_encrypt,
            expires: AtomicU64::new(end(with.expires)),
            user_expires: AtomicU64::new(end(with.user_expires)),
            turned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            renewals: AtomicU64::new(0),
            pipes: Budget::new(pipe::PIPES),
            state: Mutex::new(State {
                identity: Arc::new(with.identity),
                channels: Vec::new(),
                trees: HashMap::new(),
                next_tree: 1,
                opens: HashMap::new(),
            }),
        }
    }

    /// One without a client that could speak for it.
    #[cfg(test)]
    pub(super) fn of_nobody() -> Self {
        Self::new(Beginning {
            id: SessionId(1),
            client: Guid([1; 16]),
            dialect: Dialect::Smb311,
            cipher: None,
            signing: SigningAlgorithm::AesCmac,
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            began_ms: 0,
            identity: Identity::default(),
            keys: None,
            must_sign: false,
            must_encrypt: false,
            expires: None,
            user_expires: None,
        })
    }

    /// Its changeable part; held for some look-ups, never across a system call.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who it is now.
    pub(super) fn identity(&self) -> Arc<Identity> {
        self.state().identity.clone()
    }

    /// On whose behalf its files are touched.
    pub(super) fn whose(&self, server: &Server) -> Whose {
        // Without accounts nobody needs the lock for that.
        server.accounts.as_ref()?;
        self.state().identity.whose()
    }

    /// It was authenticated again.
    pub(super) fn renewed(
        &self,
        identity: Identity,
        expires: Option<FileTime>,
        user_expires: Option<FileTime>,
    ) {
        let mut state = self.state();
        if !identity.same_user(&state.identity) {
            self.turned.store(true, Ordering::Release);
        }
        state.identity = Arc::new(identity);
        drop(state);
        // Who finds another number (Acquire) finds the new identity behind the lock.
        self.renewals.fetch_add(1, Ordering::Release);
        self.expires.store(end(expires), Ordering::Release);
        self.user_ends(user_expires);
    }

    /// Its user's time is over then, whatever was said of it before.
    pub(super) fn user_ends(&self, when: Option<FileTime>) {
        self.user_expires.store(end(when), Ordering::Release);
    }

    /// Whether it has been somebody else than it is now.
    pub(super) fn has_turned(&self) -> bool {
        self.turned.load(Ordering::Acquire)
    }

    /// Whether it must be authenticated again before anything else.
    pub(super) fn is_expired(&self, now: FileTime) -> bool {
        let is_over = |end: &AtomicU64| end.load(Ordering::Acquire) <= now.0;
        is_over(&self.expires) || is_over(&self.user_expires)
    }

    /// Whether it has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends it; `false` if it had ended before.
    pub(super) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// The tree of that number.
    pub(super) fn tree(&self, id: TreeId) -> Option<Arc<Tree>> {
        self.state().trees.get(&id).cloned()
    }

    /// Connects it to a share.
    ///
    /// # Errors
    ///
    /// INSUFFICIENT_RESOURCES when it has `limit` trees.
    pub(super) fn connect(
        &self,
        share: Arc<SharePoint>,
        limit: usize,
    ) -> Result<Arc<Tree>, NtStatus> {
        let mut state = self.state();
        if state.trees.len() >= limit {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        let id = loop {
            let id = TreeId(state.next_tree);
            state.next_tree = state.next_tree.wrapping_add(1);
            // Zero is none, all ones is "the one before" of a compound.
            if id.0 != 0 && id.0 != u32::MAX && !state.trees.contains_key(&id) {
                break id;
            }
        };
        let ended = AtomicBool::new(false);
        let tree = Arc::new(Tree { id, share, opens: AtomicU64::new(0), ended });
        state.trees.insert(id, tree.clone());
        Ok(tree)
    }

    /// The open of that number, whoever may use it.
    pub(super) fn open(&self, volatile: u64) -> Option<Arc<Open>> {
        let open = self.state().opens.get(&volatile).cloned()?;
        open.note_use();
        Some(open)
    }
}

/// All ones: never.
fn end(when: Option<FileTime>) -> u64 {
    when.map_or(u64::MAX, |when| when.0)
}

/// A share that a session is connected to.
pub(super) struct Tree {
    pub(super) id: TreeId,
    pub(super) share: Arc<SharePoint>,
    /// Opens through it.
    pub(super) opens: AtomicU64,
    /// Its session does not know it any more.
    ended: AtomicBool,
}

/// Opens that a channel remembers.
const RECENT: usize = 8;

/// What a channel has looked up in its session of late: READ and WRITE find it here, and take no lock that the session's
/// other channels wait for. What has ended since is not found, and nothing is kept from ending.
#[derive(Default)]
pub(super) struct Recent {
    tree: RefCell<Weak<Tree>>,
    /// Each at the place that its number has among so many.
    opens: RefCell<[Weak<Open>; RECENT]>,
    /// And after how many renewals of the session that was.
    whose: RefCell<Option<(u64, Whose)>>,
}

impl Recent {
    /// [`Session::tree`].
    pub(super) fn tree(&self, session: &Session, id: TreeId) -> Option<Arc<Tree>> {
        let known = self.tree.borrow().upgrade();
        let still = |tree: &Arc<Tree>| tree.id == id && !tree.ended.load(Ordering::Acquire);
        if known.as_ref().is_some_and(still) {
            return known;
        }
        let tree = session.tree(id)?;
        *self.tree.borrow_mut() = Arc::downgrade(&tree);
        Some(tree)
    }

    /// [`Session::open`].
    pub(super) fn open(&self, session: &Session, volatile: u64) -> Option<Arc<Open>> {
        let at = usize::try_from(volatile % RECENT as u64).unwrap_or(0);
        let known = self.opens.borrow()[at].upgrade();
        // One that is closed may have been turned into another of the same number, one that is away may have come back.
        let still = |open: &Arc<Open>| {
            open.file_id.volatile == volatile && !open.is_closed() && !open.is_away()
        };
        if let Some(open) = known.filter(still) {
            open.note_use();
            return Some(open);
        }
        let open = session.open(volatile)?;
        self.opens.borrow_mut()[at] = Arc::downgrade(&open);
        Some(open)
    }

    /// [`Session::whose`].
    pub(super) fn whose(&self, session: &Session, server: &Server) -> Whose {
        server.accounts.as_ref()?;
        // Looked at before the identity is: at worst that is newer, and looked up once more.
        let renewals = session.renewals.load(Ordering::Acquire);
        if let Some((then, whose)) = &*self.whose.borrow()
            && *then == renewals
        {
            return whose.clone();
        }
        let whose = session.whose(server);
        *self.whose.borrow_mut() = Some((renewals, whose.clone()));
        whose
    }
}

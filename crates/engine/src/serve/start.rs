//! From settings to a server that runs.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use smb::auth::UserFile;

use super::accounts::{Accounts, CannotAct};
use super::channel::Channel;
use super::config::{Config, ShareConfig};
use super::fs;
use super::kerberos::{Kerberos, NoKerberos};
use super::log;
use super::moved::Moved;
use super::reload::{self, Reloaded};
use super::runtime::{self, Driver, Listener, Runtime, Socket, VectorId};
use super::server::{Server, SharePoint};
use super::stat::Stat;
use crate::metrics;
use sys::sync::AtomicU64;

/// How often the server looks for what has waited too long.
const TICK: Duration = Duration::from_millis(100);

/// How long a loop looks for work before it sleeps, when that would have found some lately: a client that asks for
/// one thing after the other is heard without waking a core. Before it asks again, its own core has to wake up.
/// Such a client gets twice as much done as with none of it, for the same time of the CPU each. One that asks for little,
/// now and then, costs up to a sixth more.
const SPIN: Duration = Duration::from_micros(60);

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u16 = 1024;

/// How long a server that was killed may have its port, at most.
const ANOTHER_ENDS: Duration = Duration::from_secs(1);

/// How long connections may take to end when the server is stopped.
const GRACE: Duration = Duration::from_secs(5);

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// The users file.
    #[error("users: {0}")]
    Users(#[from] smb::auth::BadUserFile),
    /// Kerberos.
    #[error("keytab: {0}")]
    Kerberos(NoKerberos),
    /// Acting as the users of sessions.
    #[error("unix_users: {0}")]
    Accounts(#[from] CannotAct),
    /// A share.
    #[error("share {name}: {path}: {status}")]
    Share {
        /// The share's name.
        name: String,
        /// Its folder.
        path: String,
        /// What is wrong with that.
        status: smb::NtStatus,
    },
    /// An address.
    #[error("{address}: {error}{}", advice(.error, .address))]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// Why it cannot.
        error: io::Error,
    },
    /// The address for metrics.
    #[error("cannot serve metrics on {address}, choose another port: {error}")]
    Metrics {
        /// Where they were to be served.
        address: SocketAddr,
        /// Why they cannot.
        error: io::Error,
    },
    /// A socket that was handed over.
    #[error("a socket that was handed over is none to listen on: {0}")]
    Inherited(io::Error),
    /// The loops.
    #[error("no loop to serve with: {0}")]
    Runtime(io::Error),
}

fn advice(error: &io::Error, address: &SocketAddr) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied if address.port() < 1024 => {
            " (ports below 1024 need CAP_NET_BIND_SERVICE: choose another with --listen ADDR:PORT)"
        }
        io::ErrorKind::AddrInUse => " (another server has it: Samba, perhaps)",
        _ => "",
    }
}

/// A server that runs until it is dropped or stopped.
pub struct Serving {
    server: Arc<Server>,
    runtime: Arc<Runtime>,
    metrics: Option<Metrics>,
    addresses: Vec<SocketAddr>,
    /// Bound and not listening: keeps the ports ours while loops come and go.
    _bound: Vec<std::net::TcpListener>,
}

impl Serving {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// [`NotStarted`].
    pub fn start(config: Config) -> Result<Self, NotStarted> {
        Self::start_with(config, Vec::new())
    }

    /// Starts a server with sockets that listen already, in place of [`Config::listen`], if there are any.
    ///
    /// # Errors
    ///
    /// [`NotStarted`].
    pub fn start_with(config: Config, inherited: Vec<OwnedFd>) -> Result<Self, NotStarted> {
        // Where it cannot be had, the kernel copies, which takes longer.
        let _ = sys::guarded::install();
        let users = UserFile::parse(&config.users)?;
        let kerberos = match &config.keytab {
            Some(keytab) => {
                let kerberos = Kerberos::new(keytab, config.realm_users);
                Some(kerberos.map_err(NotStarted::Kerberos)?)
            }
            None => None,
        };
        let accounts = if config.unix_users { Some(Accounts::new()?) } else { None };
        let (shares, bad) = points(&config.shares, &BTreeMap::new());
        if let Some((_, bad)) = bad.into_iter().next() {
            return Err(bad);
        }
        let metrics = match config.metrics {
            Some(address) => {
                let failed = |error| NotStarted::Metrics { address, error };
                Some(metrics::bind(address).map_err(failed)?)
            }
            None => None,
        };
        // Bound here once, so that what is wrong is said before anything runs, and port 0 means one port.
        let mut addresses = Vec::new();
        let mut first = Vec::new();
        if inherited.is_empty() {
            for address in &config.listen {
                let listener = bind(*address)?;
                addresses.push(listener.0);
                first.push(listener.1);
            }
        }
        let mut passed = Vec::new();
        for socket in inherited {
            let listener = std::net::TcpListener::from(socket);
            addresses.push(listener.local_addr().map_err(NotStarted::Inherited)?);
            passed.push(listener);
        }
        let passed = Arc::new(passed);
        let wanted = runtime::Config {
            vectors: config.vectors,
            pin: (!config.pin.is_empty()).then(|| config.pin.clone()),
            spin: SPIN,
            driver: config.uring,
            ..runtime::Config::default()
        };
        // Of sockets that were handed over, and of ports that were chosen, what they are.
        let config = Config { listen: addresses.clone(), ..config };
        let server = Server::new(config, shares, users, kerberos, accounts).shared();
        let (shared, places) = (server.clone(), addresses.clone());
        let (tell, told) = mpsc::channel();
        let runtime = Runtime::start(&wanted, move |vector| {
            let (server, places, passed) = (shared.clone(), places.clone(), passed.clone());
            let tell = tell.clone();
            async move {
                for (at, address) in places.into_iter().enumerate() {
                    let listener = match passed.get(at) {
                        Some(socket) => socket
                            .try_clone()
                            .and_then(|socket| Listener::from_fd(OwnedFd::from(socket))),
                        None => Listener::bind(address, BACKLOG),
                    };
                    // Nobody hears it when the start has failed already.
                    let _ = match listener {
                        Ok(listener) => {
                            drop(runtime::spawn(accept(server.clone(), address, listener)));
                            tell.send(Ok(()))
                        }
                        Err(error) => tell.send(Err(NotStarted::Listen { address, error })),
                    };
                }
                if vector.0 == 0 {
                    drop(runtime::spawn(tick(server)));
                }
            }
        })
        .map_err(NotStarted::Runtime)?;
        // Who is told that it runs can connect.
        for listening in told.into_iter().take(runtime.vectors() * addresses.len()) {
            listening?;
        }
        let runtime = Arc::new(runtime);
        let metrics = match metrics {
            Some(listener) => Some(Metrics::start(listener, &server, &runtime)?),
            None => None,
        };
        Ok(Self { server, runtime, addresses, metrics, _bound: first })
    }

    /// Where it listens: with the port that was chosen, where the configuration had none.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// What is open, waited for and promised at this moment.
    #[must_use]
    pub fn counts(&self) -> smb::files::Counts {
        self.server.counts()
    }

    /// Has the server believe that the time of day is so much later from now on: sessions and users expire. For
    /// tests, which need not wait so.
    pub fn advance(&self, by: Duration) {
        self.server.advance(by);
    }

    /// Requests and tasks that panicked, each a fault of the server.
    #[must_use]
    pub fn panics(&self) -> u64 {
        let vectors = (0..self.runtime.vectors()).map(VectorId);
        vectors.map(|vector| self.runtime.counters(vector).panics).sum()
    }

    /// How its loops wait, and why not by io_uring if they do not.
    #[must_use]
    pub fn driver(&self) -> (Driver, Option<&str>) {
        (self.runtime.driver(), self.runtime.fell_back())
    }

    /// Where metrics are served.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|metrics| metrics.server.address)
    }

    /// What it has and has done.
    #[must_use]
    pub fn stat(&self) -> Stat {
        let mut stat = stat(&self.server, &self.runtime, true);
        stat.listen = self.addresses.iter().map(ToString::to_string).collect();
        stat
    }

    /// Puts users (the text of a users file) in place of those that there are. Sessions of users who are gone or disabled
    /// end: how many.
    ///
    /// # Errors
    ///
    /// What is wrong with them; nothing is changed then.
    pub fn reload_users(&self, users: &str) -> Result<usize, NotStarted> {
        reload::users(&self.server, &self.runtime, users)
    }

    /// Of users (as in [`Self::reload_users`]) puts those in place who could log on before as well: what is said of shares
    /// together with them, as who else may enter one, counts before anybody new comes. How many sessions have ended.
    ///
    /// # Errors
    ///
    /// What is wrong with them; nothing is changed then.
    pub fn reload_users_left(&self, users: &str) -> Result<usize, NotStarted> {
        reload::users_left(&self.server, &self.runtime, users)
    }

    /// Who of users (as in [`Self::reload_users`]) may not log on yet.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn newcomers(&self, users: &str) -> Result<Vec<String>, NotStarted> {
        reload::newcomers(&self.server, users)
    }

    /// Puts shares in place of those that there are, but for those whose folders cannot be opened. A share that is as
    /// before stays as it is, with all that is open in it; so does one that is to be in another folder, and nothing else of
    /// it changes, while there is none, unless one of these newcomers would get into it. `absent`: shares of which that is
    /// known already.
    pub fn reload_shares(
        &self,
        shares: &[ShareConfig],
        absent: &[ShareConfig],
        newcomers: &[String],
    ) -> Reloaded {
        reload::shares(&self.server, &self.runtime, shares, absent, newcomers)
    }

    /// Takes no more connections and no more requests, answers those under way, and ends. Requests that wait for
    /// something that may never come are cancelled, and calls that a file system does not answer are left.
    pub fn stop(mut self) {
        if let Some(metrics) = self.metrics.take() {
            metrics.stop.store(true, Ordering::Relaxed);
            metrics.server.finish();
        }
        if let Some(runtime) = Arc::into_inner(self.runtime) {
            let left = runtime.stop(GRACE);
            if left > 0 {
                log::say(format_args!(
                    "calls that a file system has not answered, left as they are: {left}"
                ));
            }
        }
    }
}

/// The thread that tells Prometheus.
struct Metrics {
    server: metrics::Server,
    stop: Arc<AtomicBool>,
}

impl Metrics {
    fn start(
        listener: std::net::TcpListener,
        server: &Arc<Server>,
        runtime: &Arc<Runtime>,
    ) -> Result<Self, NotStarted> {
        let stop = Arc::new(AtomicBool::new(false));
        let (server, runtime) = (server.clone(), runtime.clone());
        let page = move || stat(&server, &runtime, false).prometheus();
        let server = metrics::Server::start(listener, stop.clone(), page);
        Ok(Self { server: server.map_err(NotStarted::Runtime)?, stop })
    }
}

fn stat(server: &Server, runtime: &Runtime, one_by_one: bool) -> Stat {
    let mut stat = server.stat(one_by_one);
    let vectors = (0..runtime.vectors()).map(|vector| runtime.counters(VectorId(vector)));
    stat.loops((runtime.driver(), runtime.fell_back()), vectors);
    stat
}

fn bind(address: SocketAddr) -> Result<(SocketAddr, std::net::TcpListener), NotStarted> {
    let not = |error| NotStarted::Listen { address, error };
    // The rings of a server that was killed are taken down a moment after it, and have its listeners until then.
    let given_up = Instant::now() + ANOTHER_ENDS;
    let socket = loop {
        match runtime::first_socket(address) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < given_up => {
                std::thread::sleep(Duration::from_millis(10));
            }
            socket => break socket.map_err(not)?,
        }
    };
    let listener = std::net::TcpListener::from(socket);
    let local = listener.local_addr().map_err(not)?;
    Ok((local, listener))
}

/// A share whose folder cannot be shared, and why.
type Closed = (ShareConfig, NotStarted);

/// Shares by name, with IPC$, and those whose folders cannot be shared. Those that are in `before` with the same settings
/// and in the same folder, stay what they are.
pub(super) fn points(
    shares: &[ShareConfig],
    before: &BTreeMap<String, Arc<SharePoint>>,
) -> (BTreeMap<String, Arc<SharePoint>>, Vec<Closed>) {
    let (mut all, mut bad) = (BTreeMap::new(), Vec::new());
    let ipc = ShareConfig::new("IPC$", "/");
    for share in shares.iter().chain([&ipc]) {
        let name = smb::name::fold(&share.name);
        let is_same = |point: &&Arc<SharePoint>| {
            point.config == *share && point.files.as_ref().is_none_or(fs::Share::is_in_place)
        };
        let same = before.get(&name).filter(is_same);
        let point = match same {
            Some(point) => Ok(point.clone()),
            None if share == &ipc => Ok(Arc::new(SharePoint {
                config: ipc.clone(),
                files: None,
                watch: super::watch::Watches::default(),
                deletions: AtomicU64::new(0),
                moved: Moved::default(),
            })),
            None => point(share).map(Arc::new),
        };
        match point {
            Ok(point) => drop(all.insert(name, point)),
            Err(why) => bad.push((share.clone(), why)),
        }
    }
    (all, bad)
}

fn point(share: &ShareConfig) -> Result<SharePoint, NotStarted> {
    let files = fs::Share::new(share.files()).map_err(|status| NotStarted::Share {
        name: share.name.clone(),
        path: share.path.display().to_string(),
        status,
    })?;
    Ok(SharePoint {
        config: share.clone(),
        files: Some(files),
        watch: super::watch::Watches::default(),
        deletions: AtomicU64::new(0),
        moved: Moved::default(),
    })
}

async fn accept(server: Arc<Server>, address: SocketAddr, listener: Listener) {
    loop {
        let Some(accepted) = runtime::unless_stopping(listener.accept_fd()).await else { return };
        match accepted {
            Ok((fd, peer)) => {
                let seat = server.seat(runtime::vector());
                let server = server.clone();
                let vector = seat.vector;
                let begin = move || {
                    if let Ok(socket) = Socket::new(fd) {
                        drop(runtime::spawn(async move {
                            Channel::serve(server, socket, peer).await;
                            drop(seat);
                        }));
                    }
                };
                if vector == runtime::vector() {
                    begin();
                } else {
                    runtime::post(vector, begin);
                }
            }
            Err(error) => {
                log::say(format_args!("{address}: no longer listening: {error}"));
                return;
            }
        }
    }
}

async fn tick(server: Arc<Server>) {
    while runtime::unless_stopping(runtime::sleep(TICK)).await.is_some() {
        server.expire();
    }
}

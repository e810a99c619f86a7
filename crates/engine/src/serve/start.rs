//! From settings to a server that runs.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use smb::auth::UserFile;

use super::channel::Channel;
use super::config::{Config, ShareConfig};
use super::fs;
use super::runtime::{self, Driver, Listener, Runtime};
use super::server::{Server, SharePoint};

/// How often the server looks for what has waited too long.
const TICK: Duration = Duration::from_millis(100);

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u16 = 1024;

/// How long connections may take to end when the server is stopped.
const GRACE: Duration = Duration::from_secs(5);

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// The users file.
    #[error("users: {0}")]
    Users(#[from] smb::auth::BadUserFile),
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
    runtime: Runtime,
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
        let users = UserFile::parse(&config.users)?;
        let mut shares = BTreeMap::new();
        for share in &config.shares {
            shares.insert(smb::name::fold(&share.name), Arc::new(point(share)?));
        }
        let ipc = ShareConfig {
            name: "IPC$".to_owned(),
            path: "/".into(),
            read_only: false,
            encrypted: false,
        };
        shares.insert(
            smb::name::fold("IPC$"),
            Arc::new(SharePoint {
                config: ipc,
                files: None,
                watch: super::watch::Watches::default(),
            }),
        );
        // Bound here once, so that what is wrong is said before anything runs, and port 0 means one port.
        let mut addresses = Vec::new();
        let mut first = Vec::new();
        for address in &config.listen {
            let listener = bind(*address)?;
            addresses.push(listener.0);
            first.push(listener.1);
        }
        let wanted = runtime::Config {
            vectors: config.vectors,
            pin: (!config.pin.is_empty()).then(|| config.pin.clone()),
            driver: if config.uring { Driver::Auto } else { Driver::Epoll },
            ..runtime::Config::default()
        };
        let server = Arc::new(Server::new(config, shares, users));
        let (shared, places) = (server.clone(), addresses.clone());
        let (tell, told) = mpsc::channel();
        let runtime = Runtime::start(&wanted, move |vector| {
            let (server, places, tell) = (shared.clone(), places.clone(), tell.clone());
            async move {
                for address in places {
                    let listener = Listener::bind(address, BACKLOG);
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
        Ok(Self { server, runtime, addresses, _bound: first })
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

    /// How its loops wait, and why not by io_uring if they do not.
    #[must_use]
    pub fn driver(&self) -> (Driver, Option<&str>) {
        (self.runtime.driver(), self.runtime.fell_back())
    }

    /// Takes no more connections and no more requests, answers those under way, and ends. Requests that wait for
    /// something that may never come are cancelled.
    pub fn stop(self) {
        self.runtime.stop(GRACE);
    }
}

fn bind(address: SocketAddr) -> Result<(SocketAddr, std::net::TcpListener), NotStarted> {
    let not = |error| NotStarted::Listen { address, error };
    let socket = runtime::bound_socket(address).map_err(not)?;
    let listener = std::net::TcpListener::from(socket);
    let local = listener.local_addr().map_err(not)?;
    Ok((local, listener))
}

fn point(share: &ShareConfig) -> Result<SharePoint, NotStarted> {
    let mut config = fs::Config::new(&share.path, &share.name);
    config.read_only = share.read_only;
    let files = fs::Share::new(config).map_err(|status| NotStarted::Share {
        name: share.name.clone(),
        path: share.path.display().to_string(),
        status,
    })?;
    Ok(SharePoint {
        config: share.clone(),
        files: Some(files),
        watch: super::watch::Watches::default(),
    })
}

async fn accept(server: Arc<Server>, address: SocketAddr, listener: Listener) {
    loop {
        let Some(accepted) = runtime::unless_stopping(listener.accept()).await else { return };
        match accepted {
            Ok((socket, peer)) => {
                drop(runtime::spawn(Channel::serve(server.clone(), socket, peer)));
            }
            Err(error) => {
                eprintln!("shunt serve: {address}: no longer listening: {error}");
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

//! What a file server runs on: all checked, all bounded.
//!
//! People write settings by name ([`SETTINGS`]) and shares by name and options ([`SHARE_OPTIONS`]).

mod reach;
mod settings;
mod share;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use smb::session::Dialect;

pub use super::fs::Links;
pub use reach::Unreachable;
pub use settings::{BadSetting, Interface, SETTINGS, Setting};
pub use share::{BadShare, SHARE_OPTIONS, ShareConfig};

use super::runtime::Driver;
use super::transfer::Policy;

/// Whether something is done: never, when the client wishes it, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// Not offered; of signing, which each client may ask for, the same as [`Self::Offered`].
    Off,
    /// Done when the client wishes.
    #[default]
    Offered,
    /// Clients that will not are refused.
    Required,
}

/// A word that says nothing about how much is demanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("say off, offered or required")]
pub struct UnknownDemand;

impl std::fmt::Display for Demand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Offered => "offered",
            Self::Required => "required",
        })
    }
}

impl std::str::FromStr for Demand {
    type Err = UnknownDemand;

    fn from_str(word: &str) -> Result<Self, UnknownDemand> {
        match word {
            "off" => Ok(Self::Off),
            "offered" => Ok(Self::Offered),
            "required" => Ok(Self::Required),
            _ => Err(UnknownDemand),
        }
    }
}

/// What bounds a server and its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// TCP connections; those beyond are closed at once.
    pub connections: usize,
    /// Sessions; set-ups beyond are refused with STATUS_REQUEST_NOT_ACCEPTED.
    pub sessions: usize,
    /// Channels of a session, 1 to 64.
    pub channels: usize,
    /// Tree connects of a session.
    pub trees: usize,
    /// Opens of a session; creates beyond are refused with STATUS_INSUFFICIENT_RESOURCES.
    pub opens: usize,
    /// Descriptors of what is open in all sessions together, that included whose clients are away; `None`: half of those
    /// that the process may have. Clients of one address have at most four fifths and a little, and others the rest;
    /// what would be beyond is refused with STATUS_INSUFFICIENT_RESOURCES.
    pub files: Option<usize>,
    /// Credits that a connection may hold, 64 to 32768: requests under way.
    pub credits: u16,
    /// Requests of a connection that wait for something that may never come: locks, watches.
    pub waiting: usize,
    /// Largest READ, WRITE and other payload in bytes, 64 KiB to 8 MiB, a multiple of 64 KiB.
    pub payload: u32,
    /// Bytes of answers that may wait for one connection; it is not read from until it takes them.
    pub backlog: usize,
    /// Bytes of answers that may wait in memory for all connections together. A connection is not read from while more
    /// of them wait for it than half of what is left of this, or for all connections of its address than four times
    /// that which is left. Beside that a sixteenth of it is for what happens in watched folders until clients ask for it;
    /// what would be beyond they are told to look for (STATUS_NOTIFY_ENUM_DIR).
    pub memory: usize,
    /// Time from the first byte to a session; connections that take longer are closed.
    pub set_up: Duration,
    /// How long a durable open waits for its client, at most.
    pub durable: Duration,
    /// How long a session lasts until its user must be authenticated again; `None`: as long as what it was
    /// authenticated with.
    pub session: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            sessions: 16_384,
            channels: 32,
            trees: 256,
            opens: 65_536,
            files: None,
            credits: 8192,
            waiting: 4096,
            payload: 8 << 20,
            backlog: 32 << 20,
            memory: 1 << 30,
            set_up: Duration::from_secs(60),
            durable: Duration::from_secs(300),
            session: None,
        }
    }
}

/// Settings of a file server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where clients connect to.
    pub listen: Vec<SocketAddr>,
    /// What they find there.
    pub shares: Vec<ShareConfig>,
    /// The text of a users file.
    pub users: String,
    /// The file that `users` is read from, when the server starts and when it is told to read it again.
    pub users_file: Option<PathBuf>,
    /// Whether those whom nobody knows are guests.
    pub guest: bool,
    /// Whether those come in who give no name, to ask which shares there are. They do in any case where there are
    /// guests.
    pub anonymous: bool,
    /// The keys of this server, with which clients are let in by Kerberos; `None`: by NTLM only.
    pub keytab: Option<PathBuf>,
    /// Whether those come in by Kerberos whom `users` does not know.
    pub realm_users: bool,
    /// Whether files are touched as the Unix users of the sessions, and not as whom the server runs.
    pub unix_users: bool,
    /// Dialects that are spoken.
    pub dialects: Vec<Dialect>,
    /// Whether messages are signed.
    pub signing: Demand,
    /// Whether they are encrypted.
    pub encryption: Demand,
    /// Whether a session may have more than one channel.
    pub multichannel: bool,
    /// Whether clients may cache: oplocks and leases.
    pub leases: bool,
    /// Whether clients may cache what is in a directory.
    pub directory_leases: bool,
    /// Whether every logon, and every one that failed, is a line of the log.
    pub audit: bool,
    /// Name of this server as clients see it; at most 15 characters count for old ones.
    pub name: String,
    /// The addresses that clients are told of for more channels; empty: those of all interfaces that are up.
    pub interfaces: Vec<Interface>,
    /// Where people talk to the server (a UNIX socket); `None`: nowhere.
    pub control: Option<PathBuf>,
    /// Where metrics for Prometheus are served; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Loops, each a thread with a ring.
    pub vectors: usize,
    /// CPUs that the loops stay on, in turn; empty: the scheduler decides.
    pub pin: Vec<usize>,
    /// Whether loops wait by io_uring.
    pub uring: Driver,
    /// How file data is sent.
    pub sending: Policy,
    /// What bounds it all.
    pub limits: Limits,
    /// Whether the control codes of Samba's test suite are obeyed, which let a client break its own
    /// connections. For tests.
    pub test_codes: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![
                SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 445),
                SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 445),
            ],
            shares: Vec::new(),
            users: String::new(),
            users_file: None,
            guest: false,
            anonymous: false,
            keytab: None,
            realm_users: false,
            unix_users: false,
            dialects: Dialect::ALL[1..].to_vec(),
            signing: Demand::Offered,
            encryption: Demand::Offered,
            multichannel: true,
            leases: true,
            directory_leases: true,
            audit: true,
            name: "SHUNT".to_owned(),
            interfaces: Vec::new(),
            control: None,
            metrics: None,
            vectors: std::thread::available_parallelism().map_or(1, usize::from).min(64),
            pin: Vec::new(),
            uring: Driver::Auto,
            sending: Policy::Auto,
            limits: Limits::default(),
            test_codes: false,
        }
    }
}

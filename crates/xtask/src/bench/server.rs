//! The servers that are measured: how each is configured, started and known to be ready.

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::stage::{Cpus, End, Network, Running, Stage, Way, free_port};
use crate::install;

/// The page that web servers serve, bytes.
const PAGE_BYTES: usize = 1024;
/// The user that PostgreSQL runs as when we are root, which it refuses to be.
const POSTGRES_USER: &str = "postgres";

/// Reads the index and the table the way pgbench does.
const WARM: &str = "SET enable_seqscan = off;
SELECT sum(abalance) FROM (SELECT * FROM pgbench_accounts ORDER BY aid) AS everything;
";

/// A server that rows measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// nginx with one worker and a file of 1 KiB.
    Nginx,
    /// redis without persistence, on a port and a UNIX socket.
    Redis,
    /// This workspace's echo server.
    PingPong,
    /// This workspace's web server.
    Httpd,
    /// sockperf's server.
    Sockperf,
    /// The same, on a network of its own in which connections begin with cubic: it has no option for that.
    SockperfCubic,
    /// iperf3's server.
    Iperf,
    /// PostgreSQL with a pgbench database that fits in memory.
    Postgres,
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Server {
    /// What it is.
    pub(crate) kind: Kind,
    /// How it runs.
    pub(crate) way: Way,
    /// Where.
    pub(crate) cpus: Cpus,
    /// Its address.
    pub(crate) at: Ipv4Addr,
    /// Its port.
    pub(crate) port: u16,
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// Its processes.
    pub(crate) running: Running,
    /// Where it and its clients are, if not on the network of this process. Goes after who is there.
    network: Option<Network>,
}

impl Kind {
    /// Programs that its rows need (server and client), each with the Debian package that has it.
    pub(crate) fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Nginx => &[("nginx", "nginx-light"), ("wrk", "wrk")],
            Self::Redis => &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")],
            Self::PingPong | Self::Httpd => &[],
            Self::Sockperf | Self::SockperfCubic => &[("sockperf", "sockperf")],
            Self::Iperf => &[("iperf3", "iperf3")],
            Self::Postgres => &[("postgres", "postgresql"), ("pgbench", "postgresql-contrib")],
        }
    }

    /// What is absent of that: a sentence with the package that brings it.
    pub(crate) fn absent(self) -> Option<String> {
        let absent = self.needs().iter().find(|(program, _)| install::find(program).is_none());
        absent.map(|(program, package)| format!("wants {program}: apt-get install {package}"))
    }

    /// The congestion control with which connections to it begin, if not with the machine's.
    fn control(self) -> Option<&'static str> {
        (self == Self::SockperfCubic).then_some("cubic")
    }

    /// Why this process may not start it, if so.
    pub(crate) fn refused(self) -> Option<String> {
        self.control()?;
        testkit::hosts::possible().err().map(|why| why.to_string())
    }
}

/// Words of a command line.
pub(crate) fn words(line: &str) -> impl Iterator<Item = OsString> {
    line.split_whitespace().map(OsString::from)
}

/// Where a program is.
///
/// # Errors
///
/// When it is not on this machine.
pub(crate) fn find(program: &str) -> anyhow::Result<OsString> {
    install::find(program)
        .map(Into::into)
        .with_context(|| format!("{program} is not on this machine"))
}

impl Server {
    /// Starts a server and waits until it listens.
    ///
    /// # Errors
    ///
    /// When it cannot start; the error has its last words.
    pub(crate) fn start(stage: &Stage, kind: Kind, way: Way, cpus: Cpus) -> anyhow::Result<Self> {
        Self::start_with(stage, kind, way, cpus, &[])
    }

    /// The same, with variables in its environment.
    ///
    /// # Errors
    ///
    /// When it cannot start.
    pub(crate) fn start_with(
        stage: &Stage,
        kind: Kind,
        way: Way,
        cpus: Cpus,
        settings: &[(&str, OsString)],
    ) -> anyhow::Result<Self> {
        let (port, dir, at) = (free_port()?, stage.new_dir()?, stage.address());
        let network = kind.control().map(Network::with_control).transpose()?;
        let mut command = Vec::new();
        if kind == Kind::Postgres {
            command.extend(as_postgres());
        }
        command.extend(stage.prefix_in(network.as_ref(), way, End::Server, cpus));
        command.extend(match kind {
            Kind::Nginx => nginx(&dir, at, port)?,
            Kind::Redis => redis(&dir, at, port)?,
            Kind::PingPong => own(stage, "pingpong", &format!("server {port}")),
            Kind::Httpd => own(stage, "httpd", &port.to_string()),
            Kind::Sockperf | Kind::SockperfCubic => [find("sockperf")?]
                .into_iter()
                .chain(words(&format!("server --tcp -i {at} -p {port}")))
                .collect(),
            Kind::Iperf => [find("iperf3")?]
                .into_iter()
                .chain(words(&format!("-s -B {at} -p {port}")))
                .collect(),
            Kind::Postgres => postgres(&dir, at, port)?,
        });
        let mut running = Running::start(&command, &dir, settings)?;
        if kind == Kind::Postgres {
            // SIGINT is its fast shutdown; SIGTERM would wait for clients.
            running = running.ends_by_interrupt();
        }
        running.wait_for_port(port)?;
        let server = Self { kind, way, cpus, at, port, dir, running, network };
        if kind == Kind::Postgres {
            server.fill_database()?;
        }
        Ok(server)
    }

    /// What to type before a client of it: its CPU, the network and the way.
    pub(crate) fn client_prefix(&self, stage: &Stage, way: Way) -> Vec<OsString> {
        stage.prefix_in(self.network.as_ref(), way, End::Client, self.cpus)
    }

    /// redis's other door.
    pub(crate) fn unix_socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// Makes pgbench's tables, over plain TCP, and brings them into memory, so that the first figure
    /// is like the others.
    fn fill_database(&self) -> anyhow::Result<()> {
        let warm = self.dir.join("warm.sql");
        fs::write(&warm, WARM)?;
        let fill = words("-i -q -s 5").collect();
        let read = [OsString::from("-n"), "-t".into(), "1".into(), "-f".into(), warm.into()].into();
        for task in [fill, read] {
            let mut command: Vec<OsString> = as_postgres();
            command.push(find("pgbench")?);
            command.extend::<Vec<OsString>>(task);
            command.extend(words(&format!(
                "-h {} -p {} -U {POSTGRES_USER} postgres",
                self.at, self.port
            )));
            quietly(&command, &self.dir).context("cannot fill the pgbench database")?;
        }
        Ok(())
    }
}

fn own(stage: &Stage, program: &str, args: &str) -> Vec<OsString> {
    [stage.program(program).into()].into_iter().chain(words(args)).collect()
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// What to type first to become PostgreSQL's user, if we are root; like `runuser`, without a
/// process of its own in between.
pub(crate) fn as_postgres() -> Vec<OsString> {
    if !is_root() {
        return Vec::new();
    }
    words(&format!(
        "setpriv --reuid={POSTGRES_USER} --regid={POSTGRES_USER} --init-groups --reset-env"
    ))
    .collect()
}

/// Runs a command to its end.
fn quietly(command: &[OsString], dir: &Path) -> anyhow::Result<()> {
    let (program, args) = command.split_first().context("no command")?;
    let output = Command::new(program)
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", program.display(), output.status, said.trim());
    }
    Ok(())
}

fn nginx(dir: &Path, address: Ipv4Addr, port: u16) -> anyhow::Result<Vec<OsString>> {
    let user = if is_root() { "user root;" } else { "" };
    let at = dir.display();
    let config = format!(
        "daemon off; {user}
worker_processes 1;
worker_rlimit_nofile 16384;
pid {at}/pid;
error_log {at}/error.log error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path {at}/tmp;
    proxy_temp_path {at}/tmp;
    fastcgi_temp_path {at}/tmp;
    uwsgi_temp_path {at}/tmp;
    scgi_temp_path {at}/tmp;
    server {{
        listen {address}:{port};
        root {at}/pages;
    }}
}}
"
    );
    fs::write(dir.join("nginx.conf"), config)?;
    fs::create_dir(dir.join("pages"))?;
    fs::write(dir.join("pages/1k"), vec![b'.'; PAGE_BYTES])?;
    let error_log = format!("-e {at}/error.log -p {at} -c {at}/nginx.conf");
    Ok([find("nginx")?].into_iter().chain(words(&error_log)).collect())
}

fn redis(dir: &Path, address: Ipv4Addr, port: u16) -> anyhow::Result<Vec<OsString>> {
    let at = dir.display();
    let args = format!(
        "--port {port} --bind {address} --protected-mode no --unixsocket {at}/socket --dir {at} --appendonly no --daemonize no --save"
    );
    // An empty schedule: it never saves by itself.
    Ok([find("redis-server")?].into_iter().chain(words(&args)).chain([OsString::new()]).collect())
}

/// A fresh cluster in `dir`, without the safety of a disk that is not measured here.
fn postgres(dir: &Path, address: Ipv4Addr, port: u16) -> anyhow::Result<Vec<OsString>> {
    if is_root() {
        let owner = nix::unistd::User::from_name(POSTGRES_USER)?.with_context(|| {
            format!("there is no user {POSTGRES_USER}, and PostgreSQL refuses to run as root")
        })?;
        nix::unistd::chown(dir, Some(owner.uid), Some(owner.gid))?;
    }
    let mut command = as_postgres();
    command.push(find("initdb")?);
    let at = dir.display();
    command.extend(words(&format!(
        "-D {at}/cluster -A trust -U {POSTGRES_USER} --no-sync --no-instructions"
    )));
    quietly(&command, dir).context("cannot make a database cluster")?;
    let args = format!(
        "-D {at}/cluster -p {port} -k {at} -c listen_addresses={address} -c max_connections=200 -c fsync=off \
         -c shared_buffers=256MB -c autovacuum=off"
    );
    Ok([find("postgres")?].into_iter().chain(words(&args)).collect())
}

/// How long a load that should take `seconds` may take before it is said to hang.
pub(crate) fn patience(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds * 2.0 + 20.0)
}

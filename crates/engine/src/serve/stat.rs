//! What a server has and has done, as `shunt stat smb` and Prometheus show it.

use std::sync::PoisonError;

use serde::Serialize;
use smb::files::Held;

use super::open::Open;
use super::runtime::{Counters, Driver};
use super::server::{Server, SharePoint};
use super::session::Session;
use super::tally::{self, COMMANDS, Times};
use crate::metrics::{Page, Seconds};

/// Sessions and opens that are told of one by one, at most of each.
pub const LISTED_MAX: usize = 4096;

/// A connection of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChannelStat {
    /// Its number.
    pub id: u64,
    /// Where it is from.
    pub peer: String,
    /// The vector that drives it.
    pub vector: usize,
    /// Bytes received on it.
    pub bytes_in: u64,
    /// Bytes sent on it.
    pub bytes_out: u64,
}

/// A session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionStat {
    /// Its number.
    pub id: u64,
    /// The user's name; empty for nobody.
    pub user: String,
    /// `user`, `guest` or `nobody`.
    pub kind: String,
    /// The client, as it calls itself.
    pub workstation: String,
    /// Where its first connection is from.
    pub peer: String,
    /// The dialect.
    pub dialect: String,
    /// `required`, `offered` or `none`: of guests nothing can be signed.
    pub signing: String,
    /// `required`, or the cipher that the client may use, or `none`.
    pub encryption: String,
    /// How long it has been there, seconds.
    pub age_s: u64,
    /// Shares that it is connected to.
    pub shares: Vec<String>,
    /// Files that it has open.
    pub opens: usize,
    /// Its connections.
    pub channels: Vec<ChannelStat>,
}

/// A file that is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpenStat {
    /// Its number.
    pub id: u64,
    /// The session; of one whose client is away, the one that it was.
    pub session: u64,
    /// The user.
    pub user: String,
    /// The share.
    pub share: String,
    /// The path in the share.
    pub path: String,
    /// Whether it is a directory.
    pub directory: bool,
    /// What may be done through it: `r`, `w`, `d` (delete), `x`, or `-` for attributes only.
    pub access: String,
    /// What others may do meanwhile: `r`, `w`, `d`, or `-`.
    pub shared: String,
    /// `none`, `level2`, `exclusive`, `batch`, or `lease` and what that allows of `R`, `H` and `W`.
    pub caching: String,
    /// The client has been told to cache less, and has not answered.
    pub breaking: bool,
    /// Byte ranges that it has locked, or waits for.
    pub locks: u32,
    /// It may outlive its connection.
    pub durable: bool,
    /// Its client is away.
    pub away: bool,
    /// The file goes with its last open.
    pub delete_pending: bool,
}

/// Requests of one command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CommandStat {
    /// The command.
    pub command: String,
    /// Requests answered.
    pub served: u64,
    /// Of these, with an error.
    pub failed: u64,
    /// Of these, because a limit was reached.
    pub limited: u64,
    /// Requests that waited for another client or for a change; their time is not counted.
    pub waited: u64,
    /// The time that half of the others did not exceed, nanoseconds, exact to a quarter.
    pub p50_ns: Option<u64>,
    /// That 99 of 100 did not exceed.
    pub p99_ns: Option<u64>,
    /// That 999 of 1000 did not exceed.
    pub p999_ns: Option<u64>,
    #[serde(skip)]
    times: Times,
}

/// A loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VectorStat {
    /// Which.
    pub vector: usize,
    /// Turns of its loop.
    pub turns: u64,
    /// Turns in which it slept.
    pub sleeps: u64,
    /// Tasks that there are.
    pub tasks: u64,
    /// Calls that were given to threads, because they may wait for a disk.
    pub offloads: u64,
    /// Tasks that ended by a mistake of ours.
    pub panics: u64,
}

/// How much is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileStat {
    /// Files that are open.
    pub files: usize,
    /// Opens, with those whose client is away.
    pub opens: usize,
    /// Those.
    pub away: usize,
    /// Oplocks.
    pub oplocks: usize,
    /// Leases.
    pub leases: usize,
    /// Oplocks and leases that are being broken.
    pub breaking: usize,
    /// Byte ranges that are locked.
    pub locks: usize,
    /// Opens and locks that wait.
    pub waiting: usize,
}

/// A share whose file system is called by threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SlowShareStat {
    /// The share.
    pub share: String,
    /// Threads that call it now; the rest of [`Self::calls_max`] does something else, or is not there.
    pub calls: usize,
    /// How many may at a time; more calls wait until these end.
    pub calls_max: usize,
}

/// Bytes of files of a share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShareStat {
    /// The share.
    pub share: String,
    /// Bytes that were read since it is there as it is.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
}

/// How often something has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Occurrence {
    /// What.
    pub what: String,
    /// How often.
    pub count: u64,
}

/// What is full when it is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LimitStat {
    /// TCP connections.
    pub connections_max: usize,
    /// Sessions.
    pub sessions_max: usize,
    /// Bytes of answers that wait (`memory_max`); beside it a sixteenth of it is for changes in watched folders.
    pub backlog_bytes_max: usize,
    /// Descriptors of what is open.
    pub descriptors_max: usize,
}

/// All of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stat {
    /// Version of this format.
    pub version: u32,
    /// Process id.
    pub pid: u32,
    /// Where clients connect to.
    pub listen: Vec<String>,
    /// `io_uring` or `epoll`.
    pub driver: String,
    /// Why it is not io_uring, if it was to be.
    pub fell_back: Option<String>,
    /// How long it has run, seconds.
    pub age_s: u64,
    /// Shares.
    pub shares: Vec<String>,
    /// What went by each of those with files.
    pub by_share: Vec<ShareStat>,
    /// New sessions, by kind: `user`, `guest`, `nobody`.
    pub logons: Vec<Occurrence>,
    /// Who was not let in, by reason.
    pub logons_failed: Vec<Occurrence>,
    /// Descriptors that what is open has.
    pub descriptors: usize,
    /// Limits of [`Self::connections`], [`Self::sessions_count`], [`Self::backlog_bytes`] and [`Self::descriptors`].
    pub limits: LimitStat,
    /// Of the shares the ones whose file systems keep those waiting who call them.
    pub slow_shares: Vec<SlowShareStat>,
    /// Connections that there are.
    pub connections: usize,
    /// Connections that were closed because there were too many.
    pub connections_limited: u64,
    /// Bytes of answers that wait in memory until clients take them.
    pub backlog_bytes: usize,
    /// Bytes of changes in watched folders that are kept until clients ask for them.
    pub changes_bytes: usize,
    /// Bytes of files that were read.
    pub bytes_read: u64,
    /// Bytes of files that were written.
    pub bytes_written: u64,
    /// How many sessions there are.
    pub sessions_count: usize,
    /// Whether there are more sessions or opens than are told.
    pub truncated: bool,
    /// What is open.
    pub files: FileStat,
    /// The loops.
    pub vectors: Vec<VectorStat>,
    /// Requests by command; those that never came are left out.
    pub commands: Vec<CommandStat>,
    /// Sessions.
    pub sessions: Vec<SessionStat>,
    /// Opens.
    pub opens: Vec<OpenStat>,
}

/// Version of the format: fields may be added, none changes its meaning within one.
const VERSION: u32 = 1;

/// What is told of a share whose file system is slow.
fn slow(point: &SharePoint) -> Option<SlowShareStat> {
    let files = point.files.as_ref().filter(|files| files.keeps_waiting())?;
    let callers = files.callers();
    Some(SlowShareStat {
        share: point.config.name.clone(),
        calls: callers.total().saturating_sub(callers.free()),
        calls_max: callers.total(),
    })
}

fn session_stat(server: &Server, session: &Session) -> SessionStat {
    let state = session.state();
    let who = state.identity.clone();
    let kind = who.kind();
    let keyed = !who.guest && !who.anonymous;
    let signing = match (keyed, session.must_sign) {
        (false, _) => "none",
        (true, true) => "required",
        (true, false) => "offered",
    };
    let encryption = match (&session.encryption, session.cipher, session.must_encrypt) {
        (Some(_), Some(_), true) => "required".to_owned(),
        (Some(_), Some(cipher), false) => format!("{cipher:?}").to_lowercase(),
        _ => "none".to_owned(),
    };
    let channel = |channel: &super::channel::ChannelRef| {
        let (bytes_in, bytes_out) = channel.bytes();
        ChannelStat {
            id: channel.id(),
            peer: channel.peer().to_string(),
            vector: channel.vector().0,
            bytes_in,
            bytes_out,
        }
    };
    let mut shares: Vec<String> =
        state.trees.values().map(|tree| tree.share.config.name.clone()).collect();
    shares.sort();
    SessionStat {
        id: session.id.0,
        user: who.user.clone(),
        kind: kind.to_owned(),
        workstation: who.workstation.clone(),
        peer: session.peer.to_string(),
        dialect: session.dialect.to_string(),
        signing: signing.to_owned(),
        encryption,
        age_s: server.now_ms().saturating_sub(session.began_ms) / 1000,
        shares,
        opens: state.opens.len(),
        channels: state.channels.iter().map(channel).collect(),
    }
}

/// Letters for what is allowed; `-` for nothing.
fn letters(of: &[(bool, char)]) -> String {
    let set: String = of.iter().filter(|(is, _)| *is).map(|(_, letter)| letter).collect();
    if set.is_empty() { "-".to_owned() } else { set }
}

fn caching(held: Option<&Held>) -> String {
    use smb::{LeaseState, OplockLevel};
    let Some(held) = held else { return "none".to_owned() };
    match (held.oplock, held.lease) {
        (_, Some((_, state))) => {
            let letters = letters(&[
                (state.contains(LeaseState::READ), 'R'),
                (state.contains(LeaseState::HANDLE), 'H'),
                (state.contains(LeaseState::WRITE), 'W'),
            ]);
            format!("lease {letters}")
        }
        (OplockLevel::Two, None) => "level2".to_owned(),
        (OplockLevel::Exclusive, None) => "exclusive".to_owned(),
        (OplockLevel::Batch, None) => "batch".to_owned(),
        (OplockLevel::None | OplockLevel::Lease, None) => "none".to_owned(),
    }
}

fn open_stat(open: &Open, held: Option<&Held>) -> OpenStat {
    use smb::{Access, ShareAccess};
    let may = |access: Access| open.access.intersects(access);
    let shares = |share: ShareAccess| open.share.contains(share);
    OpenStat {
        id: open.id.0,
        session: open.session.0,
        user: open.owner.user.clone(),
        share: open.tree.share.config.name.clone(),
        path: open.state().path.to_smb(),
        directory: open.directory,
        access: letters(&[
            (may(Access::READ_DATA), 'r'),
            (may(Access::WRITE_DATA | Access::APPEND_DATA), 'w'),
            (may(Access::DELETE), 'd'),
            (may(Access::EXECUTE), 'x'),
        ]),
        shared: letters(&[
            (shares(ShareAccess::READ), 'r'),
            (shares(ShareAccess::WRITE), 'w'),
            (shares(ShareAccess::DELETE), 'd'),
        ]),
        caching: caching(held),
        breaking: held.is_some_and(|held| held.breaking),
        locks: held.map_or(0, |held| held.locks),
        durable: held.is_some_and(|held| held.durable),
        away: held.is_some_and(|held| held.disconnected),
        delete_pending: held.is_some_and(|held| held.delete_pending),
    }
}

impl Server {
    /// What it has and has done. `one_by_one`: also each session and open.
    pub(super) fn stat(&self, one_by_one: bool) -> Stat {
        let sums = tally::sums(self.tallies());
        let commands = COMMANDS.iter().zip(&sums.commands).filter(|(_, sums)| sums.served > 0);
        let commands = commands.map(|((_, name), sums)| CommandStat {
            command: (*name).to_owned(),
            served: sums.served,
            failed: sums.failed,
            limited: sums.limited,
            waited: sums.waited,
            p50_ns: sums.quantile(500),
            p99_ns: sums.quantile(990),
            p999_ns: sums.quantile(999),
            times: sums.times(),
        });
        let counts = self.counts();
        let (connections, connections_limited) = self.connections();
        let shares = self.shares.read().unwrap_or_else(PoisonError::into_inner);
        let slow_shares = shares.values().filter_map(|point| slow(point)).collect();
        let by_share = shares.values().filter(|point| point.files.is_some());
        let by_share = by_share.map(|point| {
            let (bytes_read, bytes_written) = point.moved.sums();
            ShareStat { share: point.config.name.clone(), bytes_read, bytes_written }
        });
        let by_share = by_share.collect();
        let shares = shares.values().map(|share| share.config.name.clone()).collect();
        let occurrence = |(what, count): (&str, u64)| Occurrence { what: what.to_owned(), count };
        let sessions = self.all_sessions();
        let mut stat = Stat {
            version: VERSION,
            pid: std::process::id(),
            age_s: self.now_ms() / 1000,
            shares,
            slow_shares,
            by_share,
            logons: self.logons().by_kind().map(occurrence).collect(),
            logons_failed: self.logons().by_reason().map(occurrence).collect(),
            descriptors: self.opened().bytes(),
            limits: LimitStat {
                connections_max: self.config.limits.connections,
                sessions_max: self.config.limits.sessions,
                backlog_bytes_max: self.config.limits.memory,
                descriptors_max: self.opened_most(),
            },
            connections,
            connections_limited,
            backlog_bytes: self.backlog().bytes(),
            changes_bytes: self.kept().bytes(),
            bytes_read: sums.read,
            bytes_written: sums.written,
            sessions_count: sessions.len(),
            files: FileStat {
                files: counts.files,
                opens: counts.opens,
                away: counts.disconnected,
                oplocks: counts.oplocks,
                leases: counts.leases,
                breaking: counts.breaking,
                locks: counts.locks,
                waiting: counts.waiters,
            },
            commands: commands.collect(),
            ..Stat::default()
        };
        if one_by_one {
            stat.truncated = sessions.len() > LISTED_MAX || counts.opens > LISTED_MAX;
            let some = sessions.iter().take(LISTED_MAX);
            stat.sessions = some.map(|session| session_stat(self, session)).collect();
            stat.sessions.sort_by_key(|session| session.id);
            let held = self.held();
            let opens = self.some_opens(LISTED_MAX);
            stat.opens = opens.iter().map(|open| open_stat(open, held.get(&open.id))).collect();
            stat.opens.sort_by_key(|open| open.id);
        }
        stat
    }
}

impl Stat {
    /// Says how the loops do.
    pub(super) fn loops(
        &mut self,
        (driver, fell_back): (Driver, Option<&str>),
        vectors: impl Iterator<Item = Counters>,
    ) {
        self.driver = match driver {
            Driver::Epoll => "epoll",
            Driver::Auto | Driver::Uring => "io_uring",
        }
        .to_owned();
        self.fell_back = fell_back.map(str::to_owned);
        self.vectors = vectors
            .enumerate()
            .map(|(vector, counters)| VectorStat {
                vector,
                turns: counters.turns,
                sleeps: counters.sleeps,
                tasks: counters.tasks,
                offloads: counters.offloads,
                panics: counters.panics,
            })
            .collect();
    }

    /// For Prometheus.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut page = Page::default();
        let files = &self.files;
        page.gauge("shunt_smb_build_info", "1; which version it is.")
            .value(&[("version", &env!("CARGO_PKG_VERSION"))], 1);
        page.gauge("shunt_smb_uptime_seconds", "Since it was started.").value(&[], self.age_s);
        for (name, help, value) in [
            ("shunt_smb_read_bytes_total", "Bytes of files that were read.", self.bytes_read),
            (
                "shunt_smb_written_bytes_total",
                "Bytes of files that were written.",
                self.bytes_written,
            ),
            (
                "shunt_smb_connections_limited_total",
                "Connections that were closed because there were too many.",
                self.connections_limited,
            ),
        ] {
            page.counter(name, help).value(&[], value);
        }
        for (name, help, value) in [
            ("shunt_smb_connections", "TCP connections.", self.connections),
            (
                "shunt_smb_backlog_bytes",
                "Bytes of answers that wait for clients.",
                self.backlog_bytes,
            ),
            (
                "shunt_smb_changes_bytes",
                "Bytes of changes that are kept for clients.",
                self.changes_bytes,
            ),
            ("shunt_smb_sessions", "Sessions.", self.sessions_count),
            ("shunt_smb_descriptors", "Descriptors that what is open has.", self.descriptors),
            (
                "shunt_smb_connections_max",
                "TCP connections, at most (connections_max).",
                self.limits.connections_max,
            ),
            (
                "shunt_smb_sessions_max",
                "Sessions, at most (sessions_max).",
                self.limits.sessions_max,
            ),
            (
                "shunt_smb_memory_max_bytes",
                "Bytes of answers that may wait for clients (memory_max).",
                self.limits.backlog_bytes_max,
            ),
            (
                "shunt_smb_descriptors_max",
                "Descriptors that what is open may have: half of the process's.",
                self.limits.descriptors_max,
            ),
            ("shunt_smb_files_open", "Files that are open.", files.files),
            ("shunt_smb_opens", "Opens of files, with those whose client is away.", files.opens),
            ("shunt_smb_opens_away", "Opens whose client is away.", files.away),
            ("shunt_smb_oplocks", "Oplocks that clients have.", files.oplocks),
            ("shunt_smb_leases", "Leases that clients have.", files.leases),
            ("shunt_smb_breaking", "Oplocks and leases that are being broken.", files.breaking),
            ("shunt_smb_locks", "Byte ranges that are locked.", files.locks),
            ("shunt_smb_waiting", "Opens and locks that wait.", files.waiting),
        ] {
            page.gauge(name, help).value(&[], value);
        }
        let help = "Threads in the file system of a share that keeps its callers waiting.";
        let mut slow = page.gauge("shunt_smb_slow_share_calls", help);
        for share in &self.slow_shares {
            slow.value(&[("share", &share.share)], share.calls);
        }
        self.by_share(&mut page);
        self.by_logon(&mut page);
        self.by_command(&mut page);
        self.by_vector(&mut page);
        page.text()
    }

    fn by_share(&self, page: &mut Page) {
        type Field = fn(&ShareStat) -> u64;
        let fields: [(&str, &str, Field); 2] = [
            ("shunt_smb_share_read_bytes_total", "Bytes read from a share.", |s| s.bytes_read),
            ("shunt_smb_share_written_bytes_total", "Bytes written to it.", |s| s.bytes_written),
        ];
        for (name, help, field) in fields {
            let mut family = page.counter(name, help);
            for share in &self.by_share {
                family.value(&[("share", &share.share)], field(share));
            }
        }
    }

    fn by_logon(&self, page: &mut Page) {
        let help = "New sessions, by who has them.";
        let mut family = page.counter("shunt_smb_logons_total", help);
        for of in &self.logons {
            family.value(&[("kind", &of.what)], of.count);
        }
        let help = "Logons that were refused, by reason.";
        let mut family = page.counter("shunt_smb_logons_failed_total", help);
        for of in &self.logons_failed {
            family.value(&[("reason", &of.what)], of.count);
        }
    }

    fn by_command(&self, page: &mut Page) {
        type Field = fn(&CommandStat) -> u64;
        let counters: [(&str, &str, Field); 4] = [
            ("shunt_smb_requests_total", "Requests answered.", |c| c.served),
            ("shunt_smb_requests_failed_total", "Requests answered with an error.", |c| c.failed),
            ("shunt_smb_requests_limited_total", "Requests refused for a limit.", |c| c.limited),
            ("shunt_smb_requests_waited_total", "Requests that waited for others.", |c| c.waited),
        ];
        for (name, help, field) in counters {
            let mut family = page.counter(name, help);
            for command in &self.commands {
                family.value(&[("command", &command.command)], field(command));
            }
        }
        let help = "Time that requests took which waited for nobody.";
        let mut family = page.histogram("shunt_smb_request_seconds", help);
        for command in &self.commands {
            let (name, times) = (&command.command, &command.times);
            for (limit, n) in &times.below {
                let limit = Seconds(*limit);
                family.part("_bucket", &[("command", name), ("le", &limit)], n);
            }
            family.part("_bucket", &[("command", name), ("le", &"+Inf")], times.count);
            family.part("_sum", &[("command", name)], Seconds(times.took));
            family.part("_count", &[("command", name)], times.count);
        }
    }

    fn by_vector(&self, page: &mut Page) {
        type Field = fn(&VectorStat) -> u64;
        let fields: [(&str, &str, Field); 4] = [
            ("shunt_smb_loop_turns_total", "Turns of a loop.", |v| v.turns),
            ("shunt_smb_loop_sleeps_total", "Turns in which a loop slept.", |v| v.sleeps),
            ("shunt_smb_loop_offloads_total", "Calls given to threads.", |v| v.offloads),
            ("shunt_smb_loop_panics_total", "Tasks that ended by a mistake of ours.", |v| v.panics),
        ];
        for (name, help, field) in fields {
            let mut family = page.counter(name, help);
            for vector in &self.vectors {
                family.value(&[("vector", &vector.vector)], field(vector));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_lines_of_names_and_numbers() {
        let stat = Stat {
            bytes_read: 77,
            commands: vec![CommandStat {
                command: "read".into(),
                served: 5,
                times: Times { below: vec![(1024, 2)], count: 5, took: 2_000_000_007 },
                ..CommandStat::default()
            }],
            vectors: vec![VectorStat { turns: 9, ..VectorStat::default() }],
            slow_shares: vec![SlowShareStat { share: "nfs".into(), calls: 3, calls_max: 16 }],
            by_share: vec![ShareStat { share: "a".into(), bytes_read: 7, bytes_written: 8 }],
            logons: vec![Occurrence { what: "guest".into(), count: 2 }],
            logons_failed: vec![Occurrence { what: "wrong_password".into(), count: 4 }],
            limits: LimitStat { sessions_max: 11, ..LimitStat::default() },
            ..Stat::default()
        };
        let text = stat.prometheus();
        for line in [
            "shunt_smb_read_bytes_total 77",
            "shunt_smb_requests_total{command=\"read\"} 5",
            "shunt_smb_share_read_bytes_total{share=\"a\"} 7",
            "shunt_smb_share_written_bytes_total{share=\"a\"} 8",
            "shunt_smb_logons_total{kind=\"guest\"} 2",
            "shunt_smb_logons_failed_total{reason=\"wrong_password\"} 4",
            "shunt_smb_sessions_max 11",
            "shunt_smb_request_seconds_bucket{command=\"read\",le=\"0.000001024\"} 2",
            "shunt_smb_request_seconds_bucket{command=\"read\",le=\"+Inf\"} 5",
            "shunt_smb_request_seconds_sum{command=\"read\"} 2.000000007",
            "shunt_smb_request_seconds_count{command=\"read\"} 5",
            "shunt_smb_loop_turns_total{vector=\"0\"} 9",
            "shunt_smb_slow_share_calls{share=\"nfs\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in:\n{text}");
        }
        let mut typed = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(typed.insert(rest.split(' ').next().unwrap().to_owned()), "{line} twice");
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let name = name.split('{').next().unwrap();
                let family =
                    ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s));
                let family = family.filter(|name| typed.contains(*name)).unwrap_or(name);
                assert!(typed.contains(family) && value.parse::<f64>().is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn letters_say_what_is_allowed() {
        assert_eq!(letters(&[(true, 'r'), (false, 'w'), (true, 'd')]), "rd");
        assert_eq!(letters(&[(false, 'r')]), "-");
        assert_eq!(caching(None), "none");
    }
}

//! Two guests on a bridge, and how a case is tried on them.

use std::net::Ipv4Addr;
use std::path::{Path as FilePath, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use testkit::kernels::capture::{Capture, Captured, HEADERS};
use testkit::kernels::ending::Directory;
use testkit::kernels::guest::{Guest, Image, Shape};
use testkit::kernels::network::{HOST, HOST_TOO, Network};
use testkit::kernels::state::{Connection, Mode, State};

use super::program::{Host, Program};
use super::scenario::{Case, Ending, Event, From, ONE_VECTOR, Packets, Path, Peer};
use super::shunt::{self, Engine};

/// The name of a file that is there when clients may go on.
const GO: &str = "go";
const START_LIMIT: Duration = Duration::from_secs(20);
/// After it each end must know that the other is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(20);
/// After it there must be a link again in place of one that was lost: it is tried after 10 s, or 20 s after
/// an attempt over the dead path.
const AGAIN_LIMIT: Duration = Duration::from_secs(40);
/// For how long a cable stays unplugged after its link was lost.
const UNPLUGGED: Duration = Duration::from_secs(8);
/// The state of a link at work.
const ACTIVE: u8 = 3;
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
const PEER_DECLINED: u32 = 0x0500_0000;
const PEER_HAS_NO_SMC: u32 = 0x0301_0000;
/// What a kernel, which answers no congestion marks, must not be sent: packets that ask for them.
const CAPABLE: &str = "udp.dstport == 4791 && ip.dsfield.ecn != 0";

/// The network with its guests, and where programs are.
pub(super) struct Stage {
    // In this order they end: the machines before their network.
    guests: [Guest; 2],
    network: Network,
    directory: Directory,
    built: PathBuf,
    port: u16,
}

/// Of a guest's cards: the second is for a second link.
fn addresses(last: u8) -> [Ipv4Addr; 2] {
    [last, last + 10].map(|last| Ipv4Addr::new(10, 99, 0, last))
}

/// A kernel does not give up what the case before has left, so that the next one did not begin.
#[derive(Debug)]
pub(super) struct Stale;

impl std::fmt::Display for Stale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a kernel keeps what the case before has left")
    }
}

/// What is at one end.
struct End<'a> {
    peer: Peer,
    guest: Option<&'a Guest>,
    /// Whether the other end is `shunt engine`.
    meets_shunt: bool,
}

impl End<'_> {
    fn address(&self) -> Ipv4Addr {
        self.guest.map_or(HOST, Guest::address)
    }

    /// Those that its cards have.
    fn addresses(&self) -> [Ipv4Addr; 2] {
        self.guest.map_or([HOST, HOST_TOO], |guest| addresses(guest.address().octets()[3]))
    }
}

impl Stage {
    /// Boots both guests at a time.
    pub(super) fn boot(image: &Image, built: &FilePath, limit: Duration) -> anyhow::Result<Self> {
        let network = Network::new().context("a network namespace with a bridge")?;
        let shape = |name: &str, last: u8| Shape::small(name, addresses(last).into(), limit);
        let a = Guest::switch_on(&network, image, shape("a", 1))?;
        let b = Guest::switch_on(&network, image, shape("b", 2))?;
        for guest in [&a, &b] {
            let release = guest.wait_ready()?;
            println!("guest {} runs Linux {release} at {}", guest.name(), guest.address());
        }
        let directory = Directory::new()?;
        Ok(Self { guests: [a, b], network, directory, built: built.to_owned(), port: 5000 })
    }

    /// Tries a case with a pair of peers; the capture is kept in the directory, if one is named.
    pub(super) fn play(
        &mut self,
        case: &Case,
        [client, server]: [Peer; 2],
        keep: Option<&FilePath>,
    ) -> anyhow::Result<()> {
        // A port of its own: no answer can be meant for the case before.
        self.port += 1;
        let [a, b] = &self.guests;
        let end = |peer: Peer, guest, other| End {
            peer,
            guest: peer.in_guest().then_some(guest),
            meets_shunt: other == Peer::Shunt,
        };
        let (client, server) = (end(client, a, server), end(server, b, client));
        self.reset(case, &client, case.eids[0]).context(Stale)?;
        self.reset(case, &server, case.eids[1]).context(Stale)?;
        let name = format!("{} {} {}", case.name, client.peer.name(), server.peer.name());
        let name = format!("{}.pcap", name.replace(' ', "-"));
        let file = keep.unwrap_or_else(|| self.directory.path()).join(name);
        let limit = Duration::from_secs(case.limit_s);
        let capture = Capture::start(&self.network, &file, HEADERS, limit * 2)?;
        let played = self.play_lossy(case, &client, &server, limit);
        for guest in &self.guests {
            self.network.connect(&guest.port(0), true)?;
        }
        let captured = capture.stop()?;
        let ends = [&client, &server].map(End::addresses);
        let judged = played.and_then(|()| judge(case, &captured, ends));
        if keep.is_none() {
            let _ = std::fs::remove_file(&captured.file);
        }
        judged
    }

    /// Link groups of the case before are gone, and the kernel is set as the case wants it.
    fn reset(&self, case: &Case, end: &End<'_>, eid: Option<&str>) -> anyhow::Result<()> {
        let Some(guest) = end.guest else { return Ok(()) };
        // Sockets of processes that were killed are in the way for a moment.
        let mut script = format!(
            "gone() {{ [ ! -e /sys/module/$1 ] || rmmod $1 2>/dev/null; }}; n=0; \
             until gone smc_diag && gone smc; do \
                 n=$((n+1)); [ $n -lt 100 ] || {{ rmmod smc; exit 1; }}; sleep 0.1; \
             done; \
             insmod /modules/smc.ko && insmod /modules/smc_diag.ko && \
             echo {} >/proc/sys/net/smc/smcr_testlink_time && smcpeer clear-eids",
            case.test_link_s
        );
        script += " && { [ -e /sys/class/infiniband/rxe0 ] || smcpeer add-rxe rxe0 eth0; }";
        script += if case.links > 1 {
            // One physical network, without which the kernel takes no second device of its own.
            " && { [ -e /sys/class/infiniband/rxe1 ] || smcpeer add-rxe rxe1 eth1; } \
             && smcpeer add-pnet NET1 eth0 rxe0 && smcpeer add-pnet NET1 eth1 rxe1"
        } else {
            " && { [ ! -e /sys/class/infiniband/rxe1 ] || smcpeer remove-rxe rxe1; }"
        };
        // Each card answers for its own address only, of two in one subnet.
        script += " && echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore \
                   && echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce";
        if let Some(eid) = eid {
            script += &format!(" && smcpeer add-eid {eid}");
        }
        guest.check(&script).context("cannot reset the kernel's SMC").map(drop)
    }

    /// With the losses of the case, at the port of one guest.
    fn play_lossy(
        &self,
        case: &Case,
        client: &End<'_>,
        server: &End<'_>,
        limit: Duration,
    ) -> anyhow::Result<()> {
        if case.loses_one_of == 0 {
            return self.play_programs(case, client, server, limit);
        }
        let guest = client.guest.or(server.guest).context("nobody has a cable")?;
        self.network.lose(&guest.port(0), case.loses_one_of).context("nothing can be lost")?;
        let played = self.play_programs(case, client, server, limit);
        let lost = self.network.lose_no_more()?;
        played?;
        ensure!(!lost.contains(&0), "packets that were lost, each way: {lost:?}");
        Ok(())
    }

    fn play_programs(
        &self,
        case: &Case,
        client: &End<'_>,
        server: &End<'_>,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let sides = [client.peer, server.peer];
        let ours = sides.iter().position(|peer| *peer == Peer::Shunt);
        let start = |side: usize| {
            let eid = case.eids[side];
            let (network, directory) = (&self.network, self.directory.path());
            Engine::start(network, &self.built, directory, eid, case, limit * 2)
        };
        let engine = ours.map(start).transpose()?;
        let played = self.play_ends(case, client, server, engine.as_ref(), limit);
        match engine {
            Some(engine) => played.with_context(|| format!("shunt engine says: {}", engine.text())),
            None => played,
        }
    }

    fn play_ends(
        &self,
        case: &Case,
        client: &End<'_>,
        server: &End<'_>,
        engine: Option<&Engine>,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let mut serving = self.serve(case, server, limit)?;
        self.visit(case, client, server, &mut serving, engine, limit)?;
        if case.event != Event::Forget {
            return Ok(());
        }
        // A kernel that has sockets of the family does not forget them.
        let (end, eid) = if client.guest.is_some() {
            (client, case.eids[0])
        } else {
            serving.kill()?;
            serving.wait(NOTICE_LIMIT).context("server")?;
            (server, case.eids[1])
        };
        self.reset(case, end, eid)?;
        if client.peer == Peer::Kernel
            && let Some(guest) = server.guest
        {
            wait_without_groups(guest)?;
        }
        if client.guest.is_none() {
            serving = self.serve(case, server, limit)?;
        }
        let once_more = || "after the link groups were forgotten";
        self.visit(case, client, server, &mut serving, engine, limit).with_context(once_more)
    }

    fn serve<'a>(
        &self,
        case: &Case,
        server: &End<'a>,
        limit: Duration,
    ) -> anyhow::Result<Program<'a>> {
        let words = format!("serve {} {}", self.port, case.serve);
        let mut serving = self.start(server, &words, limit).context("server")?;
        serving.wait_for("listening", 1, START_LIMIT).context("server")?;
        Ok(serving)
    }

    fn visit(
        &self,
        case: &Case,
        client: &End<'_>,
        server: &End<'_>,
        serving: &mut Program<'_>,
        engine: Option<&Engine>,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let to = server.address();
        let go = self.gate(client)?;
        let words = format!("visit {to} {} --until {} {}", self.port, go.display(), case.visit);
        let mut visiting = self.start(client, &words, limit).context("client")?;
        visiting.wait_for("connected=", 1, limit).context("client")?;
        for (end, side) in [(client, Side::Client), (server, Side::Server)] {
            self.check_path(case, end, side).with_context(|| end.peer.name())?;
        }
        match client.guest {
            Some(guest) => drop(guest.check(&format!("touch {}", go.display()))?),
            None => std::fs::write(&go, "")?,
        }
        let limit = self.happen(case, &visiting, serving, [client, server], engine, limit)?;
        let waited = visiting.wait(limit).context("client");
        let ended = waited.with_context(|| stacks([client, server]))?;
        let succeeded = ended.status == 0;
        let wanted = match case.client {
            Ending::Done => succeeded,
            Ending::Broken => !succeeded,
            Ending::Over => true,
        };
        let said = || format!("server says: {}", serving.text());
        ensure!(wanted, "client ended with {}: {}; {}", ended.status, ended.text.trim(), said());
        let outcome = match case.server {
            Ending::Done => " done",
            Ending::Broken => "failed",
            Ending::Over => "connection=",
        };
        if case.event == Event::KillServer {
            return Ok(());
        }
        serving.wait_for(outcome, connections(case), NOTICE_LIMIT).context("server")
    }

    /// The file for which clients at this end wait; it is not there yet.
    fn gate(&self, client: &End<'_>) -> anyhow::Result<PathBuf> {
        let Some(guest) = client.guest else {
            let go = self.directory.path().join(GO);
            let _ = std::fs::remove_file(&go);
            return Ok(go);
        };
        let go = PathBuf::from("/tmp").join(GO);
        guest.check(&format!("rm -f {}", go.display()))?;
        Ok(go)
    }

    /// Starts `smcpeer` at an end.
    fn start<'a>(
        &self,
        end: &End<'a>,
        words: &str,
        limit: Duration,
    ) -> anyhow::Result<Program<'a>> {
        let tcp = if end.peer == Peer::Kernel { "" } else { " --tcp" };
        if let Some(guest) = end.guest {
            return Ok(Program::Guest(guest.spawn(&format!("smcpeer {words}{tcp}"))?));
        }
        let program = shunt::host_program(&self.built);
        let mut command = if end.peer == Peer::Shunt {
            shunt::run(&self.network, &self.built, self.directory.path(), &program)
        } else {
            self.network.command(program)
        };
        command.args(words.split_whitespace()).args(tcp.split_whitespace());
        Ok(Program::Host(Host::start(command, limit * 2)?))
    }

    /// Lets the case's event happen; answers how long the client may take after it.
    fn happen(
        &self,
        case: &Case,
        visiting: &Program<'_>,
        serving: &Program<'_>,
        ends: [&End<'_>; 2],
        engine: Option<&Engine>,
        limit: Duration,
    ) -> anyhow::Result<Duration> {
        if matches!(case.event, Event::None | Event::Forget) {
            return Ok(limit);
        }
        // Some rounds are to be over.
        sleep(Duration::from_secs(1));
        match case.event {
            Event::None | Event::Forget => {}
            Event::KillClient => visiting.kill()?,
            Event::KillServer => serving.kill()?,
            Event::StopEngine => engine.context("there is no engine")?.signal(SIGTERM),
            Event::KillEngine => engine.context("there is no engine")?.signal(SIGKILL),
            Event::RemoveDevice => {
                let guest = ends.into_iter().rev().find_map(|end| end.guest);
                let guest = guest.context("nobody has a device")?;
                guest.check("smcpeer remove-rxe rxe0")?;
            }
            Event::PullCable => {
                let guest = ends.into_iter().rev().find_map(|end| end.guest);
                let guest = guest.context("nobody has a cable")?;
                self.network.connect(&guest.port(0), false)?;
                // Nobody is to notice: all that was to be done is still to be done.
                return Ok(limit);
            }
            Event::PlugAgain => {
                let guest = ends.into_iter().rev().find_map(|end| end.guest);
                let guest = guest.context("nobody has a cable")?;
                self.network.connect(&guest.port(0), false)?;
                wait_for_links(guest, 1, NOTICE_LIMIT)?;
                // A kernel's server tries at once to add another, once.
                sleep(UNPLUGGED);
                self.network.connect(&guest.port(0), true)?;
                wait_for_links(guest, 2, AGAIN_LIMIT)?;
                return Ok(limit);
            }
        }
        Ok(NOTICE_LIMIT)
    }

    /// Asks the kernel at this end which way the bytes go.
    fn check_path(&self, case: &Case, end: &End<'_>, side: Side) -> anyhow::Result<()> {
        let Some(guest) = end.guest.filter(|_| end.peer == Peer::Kernel) else { return Ok(()) };
        // The server's accept may be later than the client's connect: where hundreds of handshakes are done by an
        // emulated kernel one by one, by many seconds.
        let mut last = None;
        let deadline = Instant::now() + Duration::from_secs(case.limit_s);
        while last.is_none() || Instant::now() < deadline {
            let state = guest.smc_state()?;
            let wanted = |c: &&Connection| {
                c.state == "ACTIVE" && (uses(&c.local, self.port) || uses(&c.peer, self.port))
            };
            let found: Vec<&Connection> = state.connections.iter().filter(wanted).collect();
            let working = state.links.iter().filter(|link| link.state == ACTIVE).count();
            let groups = state.groups.iter().filter(|group| group.connections > 0).count();
            // A second link comes a moment after the first. The kernel is asked for its links before its connections,
            // and either may be new.
            let is_settled = working >= groups && (working > 1 || case.links == 1);
            if found.len() == connections(case) && is_settled {
                found.iter().try_for_each(|c| check_connection(case, c, side))?;
                if let Some(bytes) = case.rmb.filter(|_| end.meets_shunt) {
                    let right = found.iter().all(|c| c.buffers[2] == bytes);
                    ensure!(right, "Shunt's buffers are not of {bytes} bytes:\n{}", brief(&state));
                }
                if let Path::Smc { groups: wanted } = case.path {
                    // An engine has groups for each of its vectors, which may be more.
                    let many = end.meets_shunt && case.engine != ONE_VECTOR;
                    let right = if many { groups >= wanted } else { groups == wanted };
                    ensure!(right, "{groups} link groups, not {wanted}:\n{}", brief(&state));
                }
                return Ok(());
            }
            last = Some(state);
            sleep(Duration::from_millis(100));
        }
        let state = last.map_or_else(String::new, |state| brief(&state));
        let (connections, links) = (connections(case), case.links);
        bail!("the kernel does not have {connections} connections, {links} links:\n{state}")
    }
}

#[derive(Clone, Copy)]
enum Side {
    Client,
    Server,
}

/// Waits until a kernel whose peer's was taken away has given its link groups up: it asks for an answer,
/// for seconds, from who is not there any more, and declines new connections meanwhile.
fn wait_without_groups(guest: &Guest) -> anyhow::Result<()> {
    let deadline = Instant::now() + NOTICE_LIMIT;
    loop {
        let state = guest.smc_state()?;
        if state.groups.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{} keeps its groups:\n{}", guest.name(), brief(&state));
        sleep(Duration::from_millis(100));
    }
}

/// Waits until so many links of a kernel are at work.
fn wait_for_links(guest: &Guest, count: usize, limit: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let state = guest.smc_state()?;
        if state.links.iter().filter(|link| link.state == ACTIVE).count() == count {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{} has not {count} links:\n{}",
            guest.name(),
            brief(&state)
        );
        sleep(Duration::from_millis(100));
    }
}

/// What the kernels' tasks that have to do with SMC wait for, and the state of their SMC: for an error message about
/// what hangs.
fn stacks(ends: [&End<'_>; 2]) -> String {
    const SCRIPT: &str = "for p in /proc/[0-9]*; do \
             s=$(cat $p/stack 2>/dev/null); \
             case \"$(cat $p/comm)\" in smcpeer) ;; \
                 *) case \"$s\" in *smc_*|*rxe_*) ;; *) continue ;; esac ;; \
             esac; \
             echo \"$(cat $p/comm): $s\"; \
         done; dmesg | tail -n 12";
    let guests = ends.into_iter().filter_map(|end| end.guest);
    let said = guests.map(|guest| {
        let tasks = guest.run(SCRIPT).map_or_else(|e| format!("{e:#}"), |output| output.text);
        let state = guest.smc_state().map_or_else(|e| format!("{e:#}"), |state| brief(&state));
        format!("{}: {state}\n{tasks}", guest.name())
    });
    said.collect::<Vec<_>>().join("\n")
}

/// For people: not each of hundreds of connections.
fn brief(state: &State) -> String {
    const SHOWN: usize = 3;
    let mut shown = state.clone();
    shown.connections.truncate(SHOWN);
    format!("{} connections, such as\n{shown}", state.connections.len())
}

fn uses(address: &str, port: u16) -> bool {
    address.ends_with(&format!(":{port}"))
}

/// How many connections a case has.
fn connections(case: &Case) -> usize {
    let mut words = case.visit.split_whitespace();
    let number = words.find(|word| *word == "--connections").and_then(|_| words.next());
    number.and_then(|number| number.parse().ok()).unwrap_or(1)
}

fn check_connection(case: &Case, connection: &Connection, side: Side) -> anyhow::Result<()> {
    let Connection { mode, reason, peer_reason, .. } = *connection;
    let right = match (case.path, side) {
        (Path::Smc { .. }, _) => mode == Mode::Smcr,
        (Path::NoOption, _) => mode == Mode::Tcp && reason == PEER_HAS_NO_SMC,
        (Path::NotProposed(why), Side::Client) | (Path::Declined(why), Side::Server) => {
            mode == Mode::Tcp && reason == why
        }
        (Path::NotProposed(why), Side::Server) | (Path::Declined(why), Side::Client) => {
            mode == Mode::Tcp && reason == PEER_DECLINED && peer_reason == why
        }
    };
    ensure!(right, "not the way it should go, {:x?}: {connection}", case.path);
    Ok(())
}

fn judge(
    case: &Case,
    captured: &Captured,
    [client, server]: [[Ipv4Addr; 2]; 2],
) -> anyhow::Result<()> {
    // Of kernels as of us: so what we send is measured by what they do.
    let warnings = captured.warnings()?;
    ensure!(warnings.is_empty(), "Wireshark warns: {}", warnings.join("; "));
    let capable = captured.fields(CAPABLE, &["frame.number", "ip.src"])?;
    ensure!(capable.is_empty(), "congestion marks towards a kernel: {}", capable.join("; "));
    for Packets { from, filter } in case.packets {
        let of = |[one, other]: [Ipv4Addr; 2]| {
            format!("(ip.src == {one} || ip.src == {other}) && {filter}")
        };
        let filters = match from {
            From::Client => vec![of(client)],
            From::Server => vec![of(server)],
            From::Each => vec![of(client), of(server)],
            From::Any => vec![(*filter).to_owned()],
        };
        for filter in filters {
            ensure!(captured.count(&filter)? > 0, "no packet for which {filter}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interop::scenario::CASES;

    #[test]
    fn connections_are_counted_as_they_are_asked_for() {
        let count = |name: &str| connections(CASES.iter().find(|c| c.name == name).unwrap());
        assert_eq!((count("echo"), count("ten connections")), (1, 10));
        assert!(uses("10.0.0.1:5001", 5001) && !uses("10.0.0.1:15001", 5001));
    }
}

//! Which connections are shown: those that are all of what was asked for.

use anyhow::bail;
use clap::{Args, ValueEnum};
use local::Reason;
use local::config::Rule;

use crate::snapshot::{Connection, Listener, Mode, Process, Snapshot};

/// Reasons from here on are SMC's (RFC 7609 A.2.4); the peer's have the highest bit set.
const SMC: u32 = 1 << 16;
const OF_PEER: u32 = 1 << 31;

/// What connections have to be.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only connections with this port at either end
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Only connections which a program of this name has an end of
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Only connections that go this way
    #[arg(long, value_name = "MODE", ignore_case = true)]
    mode: Option<Way>,
    /// Only connections that are on TCP for this reason, by its number
    #[arg(long, value_name = "N", value_parser = reason)]
    reason: Option<u32>,
}

/// A mode, as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    Shm,
    Smcr,
    Tcp,
}

impl Way {
    const fn mode(self) -> Mode {
        match self {
            Self::Shm => Mode::Shm,
            Self::Smcr => Mode::Smcr,
            Self::Tcp => Mode::Tcp,
        }
    }
}

/// A reason as it is shown: of ours by its number, of SMC's also as 0x03010000.
fn reason(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let known = |n: &u32| *n >= SMC || Reason::from_code(*n).is_some();
    number.filter(known).ok_or_else(|| {
        let codes = || Reason::ALL.iter().map(|reason| reason.code());
        let (first, last) = (codes().min().unwrap_or(0), codes().max().unwrap_or(0));
        format!(
            "no such reason: there are {first} to {last}, whose words are in shunt-stat(1), and those of SMC, as in \
             0x03010000"
        )
    })
}

/// Whether a program is of that name, as the kernel knows it too.
fn is_called(program: &str, name: &str) -> bool {
    program == name || Rule::Program(name.to_owned()).names(program)
}

impl Filter {
    /// Whether everything is shown.
    pub(crate) fn is_empty(&self) -> bool {
        self.program.is_none() && !self.is_of_connections()
    }

    /// Whether it asks for what only connections have.
    fn is_of_connections(&self) -> bool {
        self.port.is_some() || self.mode.is_some() || self.reason.is_some()
    }

    /// Whether this end is shown.
    pub(crate) fn takes(&self, c: &Connection) -> bool {
        let with_port = |port| [c.local_port, c.peer_port].contains(&port);
        let of_program = |name: &String| {
            is_called(&c.program, name)
                || c.peer_program.as_ref().is_some_and(|peer| is_called(peer, name))
        };
        let for_reason = |n| c.mode == Mode::Tcp && [c.reason, c.reason & !OF_PEER].contains(&n);
        self.port.is_none_or(with_port)
            && self.program.as_ref().is_none_or(of_program)
            && self.mode.is_none_or(|way| way.mode() == c.mode)
            && self.reason.is_none_or(for_reason)
    }

    /// Whether this process is shown: it has such a connection, or had one for that reason. `connections`: all that are.
    pub(crate) fn takes_process(&self, p: &Process, connections: &[Connection]) -> bool {
        if self.program.as_ref().is_some_and(|name| !is_called(&p.program, name)) {
            return false;
        }
        if !self.is_of_connections() {
            return true;
        }
        let had = self.reason.is_some_and(|n| p.fallbacks.iter().any(|f| f.reason == n));
        let is_all = self.port.is_none() && self.mode.is_none_or(|way| way == Way::Tcp);
        had && is_all || connections.iter().any(|c| c.slot == p.slot && self.takes(c))
    }

    fn takes_listener(&self, l: &Listener) -> bool {
        self.port.is_none_or(|port| port == l.port)
            && self.program.as_ref().is_none_or(|name| is_called(&l.program, name))
            // It goes no way yet.
            && self.mode.is_none()
            && self.reason.is_none()
    }

    /// Leaves out what was not asked for.
    pub(crate) fn apply(&self, snapshot: &mut Snapshot) {
        if self.is_empty() {
            return;
        }
        let Snapshot { connections, processes, link_groups, listeners, .. } = snapshot;
        connections.retain(|c| self.takes(c));
        processes.retain(|p| self.takes_process(p, connections));
        link_groups.retain(|g| {
            let has = |c: &Connection| {
                let ends = (c.slot, c.peer_slot);
                ends == (g.slot, Some(g.peer_slot)) || ends == (g.peer_slot, Some(g.slot))
            };
            connections.iter().any(has)
        });
        listeners.retain(|l| self.takes_listener(l));
        for process in processes {
            process.fallbacks.retain(|f| self.reason.is_none_or(|n| n == f.reason));
        }
    }

    /// Nothing of a program would look like nothing to say of it.
    ///
    /// # Errors
    ///
    /// There is none of that name; which there are. `all`: the dead count, too.
    pub(crate) fn ensure_there(&self, snapshot: &Snapshot, all: bool) -> anyhow::Result<()> {
        let Some(name) = &self.program else { return Ok(()) };
        let mut there: Vec<&str> =
            snapshot.processes.iter().filter(|p| all || p.alive).map(|p| &*p.program).collect();
        if there.iter().any(|program| is_called(program, name)) {
            return Ok(());
        }
        there.sort_unstable();
        there.dedup();
        let which = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        bail!("no program called {name} is on the board (there are: {which})")
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;
    use crate::snapshot::tests::Fixture;

    fn filter(words: &[&str]) -> Result<Filter, String> {
        let command = Filter::augment_args(Command::new("x").no_binary_name(true));
        let matches = command.try_get_matches_from(words).map_err(|e| e.to_string())?;
        Filter::from_arg_matches(&matches).map_err(|e| e.to_string())
    }

    fn kept(words: &[&str]) -> Snapshot {
        let mut snapshot = Fixture::busy().snapshot();
        filter(words).unwrap().apply(&mut snapshot);
        snapshot
    }

    #[test]
    fn what_is_asked_for_is_combined() {
        let all = Fixture::busy().snapshot();
        let count = |words: &[&str]| kept(words).connections.len();
        assert_eq!(count(&[]), all.connections.len());
        let of = |wanted: &dyn Fn(&Connection) -> bool| {
            all.connections.iter().filter(|c| wanted(c)).count()
        };
        let shm = of(&|c| c.mode == Mode::Shm);
        assert!(shm > 0 && shm < all.connections.len());
        assert_eq!(count(&["--mode", "SHM"]), shm);
        assert_eq!(count(&["--mode", "shm", "--reason", "1"]), 0);
        assert_eq!(count(&["--reason", "1"]), of(&|c| c.reason == 1 && c.mode == Mode::Tcp));
        let port = 80;
        let has = |c: &Connection| c.local_port == port || c.peer_port == port;
        let text = port.to_string();
        assert_eq!(count(&["--port", &text]), of(&has));
        assert_eq!(
            count(&["--port", &text, "--mode", "tcp"]),
            of(&|c| has(c) && c.mode == Mode::Tcp)
        );
        let server =
            |c: &Connection| c.program == "server" || c.peer_program.as_deref() == Some("server");
        assert_eq!(count(&["--program", "server"]), of(&server));
        assert_eq!(count(&["--program", "serv"]), 0, "not a part of it");
    }

    #[test]
    fn what_belongs_to_what_is_left_out_goes_too() {
        let by_program = kept(&["--program", "server"]);
        assert!(by_program.processes.iter().all(|p| p.program == "server"));
        assert!(!by_program.processes.is_empty() && !by_program.link_groups.is_empty());
        let none = kept(&["--port", "1"]);
        assert!(none.processes.is_empty() && none.link_groups.is_empty());
        assert!(none.listeners.is_empty());
        let on_tcp = kept(&["--reason", "1"]);
        assert!(on_tcp.link_groups.is_empty(), "{:?}", on_tcp.link_groups);
        assert!(!on_tcp.processes.is_empty());
        assert!(on_tcp.processes.iter().flat_map(|p| &p.fallbacks).all(|f| f.reason == 1));
    }

    #[test]
    fn mistakes_name_what_there_is() {
        for (words, told) in [
            (["--mode", "rdma"], "[possible values: shm, smcr, tcp]"),
            (["--reason", "0"], "there are 1 to "),
            (["--reason", "999"], "0x03010000"),
            (["--port", "70000"], "1..=65535"),
        ] {
            let said = filter(&words).unwrap_err();
            assert!(said.contains(told), "{words:?}: {said}");
        }
        assert!(filter(&["--reason", "0x03010000"]).is_ok());
        let snapshot = Fixture::busy().snapshot();
        assert!(filter(&["--program", "server"]).unwrap().ensure_there(&snapshot, false).is_ok());
        let absent = filter(&["--program", "serv"]).unwrap().ensure_there(&snapshot, false);
        let said = absent.unwrap_err().to_string();
        assert!(said.contains("there are: ") && said.contains("server"), "{said}");
        assert!(filter(&["--program", "gone"]).unwrap().ensure_there(&snapshot, false).is_err());
        assert!(filter(&["--program", "gone"]).unwrap().ensure_there(&snapshot, true).is_ok());
    }

    #[test]
    fn reasons_of_smc_are_found_whoever_has_said_them() {
        let mut c = Fixture::busy().snapshot().connections.swap_remove(0);
        c.mode = Mode::Tcp;
        for said in [0x0301_0000, 0x0301_0000 | OF_PEER] {
            c.reason = said;
            assert!(filter(&["--reason", "0x03010000"]).unwrap().takes(&c), "{said:#x}");
        }
    }

    #[test]
    fn long_names_are_as_the_kernel_cuts_them() {
        assert!(is_called("a-program-with-", "a-program-with-a-long-name"));
        assert!(is_called("a-program-with-a-long-name", "a-program-with-a-long-name"));
        assert!(!is_called("a-program", "a-program-with-a-long-name"));
    }
}

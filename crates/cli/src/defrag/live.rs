//! `shunt defrag --interface`: what its options mean, and what it says.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use engine::defrag::Config;
use engine::defrag::live::{News, Options, Rates, Report, Source, Tally, run};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::say;

use super::{EXIT_OK, is_standard_output, seconds, size};

/// What a shell says of a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;

#[derive(Args, Debug)]
#[command(next_help_heading = "Live")]
pub(super) struct LiveArguments {
    /// Put fragments together that come in on this interface, until Ctrl-C
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Capture to write whole datagrams to, as raw IP: .pcap, else pcapng
    #[arg(long, value_name = "FILE", requires = "interface")]
    write: Option<PathBuf>,
    /// TUN or TAP device to write whole datagrams to; made if it is not there (TAP if it is called tap...). The host drops them if its rp_filter is strict
    #[arg(long, value_name = "DEVICE", requires = "interface")]
    to: Option<String>,
    /// Take fragments away from the kernel (AF_XDP), instead of looking on (AF_PACKET); the rest passes
    #[arg(long, requires = "interface")]
    xdp: bool,
    /// Threads that put together [one a CPU; with --xdp one a receive queue]
    #[arg(long, value_name = "N", requires = "interface", value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Option<u32>,
    /// Memory for frames as they come in, for each worker [twice its part of --memory, 32M to 512M; with --xdp once, 16M to 256M]
    #[arg(long, value_name = "SIZE", requires = "interface", value_parser = size)]
    ring: Option<u64>,
    /// Look at frames that are for others, too: on a mirror port
    #[arg(long, requires = "interface", conflicts_with = "xdp")]
    promiscuous: bool,
    /// End after so many datagrams
    #[arg(long, value_name = "N", requires = "interface")]
    count: Option<u64>,
    /// End after so much time
    #[arg(long, value_name = "SECONDS", requires = "interface", value_parser = seconds)]
    seconds: Option<u64>,
    /// How often to print a line of statistics to standard error; 0: never
    #[arg(long, value_name = "SECONDS", default_value = "1", requires = "interface", value_parser = pause)]
    stats: u64,
    /// Serve metrics for Prometheus: http://ADDRESS/metrics; a port alone is on 127.0.0.1
    #[arg(long, value_name = "ADDRESS:PORT", requires = "interface", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Only count fragments, to see what the interface can bring
    #[arg(long, requires = "interface", conflicts_with_all = ["write", "to"])]
    count_only: bool,
}

/// Those that nothing can be made of without an interface.
pub(super) const OPTIONS: &[&str] = &[
    "write",
    "to",
    "xdp",
    "workers",
    "ring",
    "promiscuous",
    "count",
    "seconds",
    "stats",
    "metrics",
    "count_only",
];

fn pause(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { seconds(text) }
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| "an address and a port, such as 127.0.0.1:9479 or [::1]:9479".into())
}

impl LiveArguments {
    /// Does it; the exit status.
    pub(super) fn run(&self, config: Config, json: bool) -> anyhow::Result<u8> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The second one does not wait for anything.
            flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED, Arc::clone(&stop))?;
            flag::register(signal, Arc::clone(&stop))?;
        }
        // A terminal that is closed; it may say so several times. Who has it run on by nohup(1) is obeyed.
        if !is_ignored(SIGHUP) {
            flag::register(SIGHUP, Arc::clone(&stop))?;
        }
        let form = match json {
            false => Form::Words,
            true if self.write.as_deref().is_some_and(is_standard_output) => Form::JsonAside,
            true => Form::Json,
        };
        let mut untold = None;
        let report = run(&self.options(config), &stop, &mut |news| {
            if let Err(e) = tell(&news, form) {
                // It was asked for, and nobody gets it.
                untold = Some(e);
                stop.store(true, Ordering::Relaxed);
            }
        })?;
        let none = Tally::default();
        let all = Rates { now: &report.tally, then: &none, passed: report.took };
        match form {
            Form::Words => say::plain(text(&report)),
            Form::Json | Form::JsonAside => untold = untold.or_else(|| form.object(&all).err()),
        }
        if let Some(e) = untold {
            return Err(e.into());
        }
        // Told last: what came before that is as good as ever.
        report.cut_short.map_or(Ok(EXIT_OK), |why| Err(why.into()))
    }

    fn options(&self, config: Config) -> Options {
        Options {
            interface: self.interface.clone().unwrap_or_default(),
            source: if self.xdp { Source::Xdp } else { Source::Packet },
            config,
            workers: self.workers,
            ring_bytes: self.ring,
            promiscuous: self.promiscuous,
            write: self.write.clone(),
            to: self.to.clone(),
            count: self.count,
            lasts: self.seconds.map(Duration::from_nanos),
            every: Some(self.stats).filter(|ns| *ns > 0).map(Duration::from_nanos),
            metrics: self.metrics,
            count_only: self.count_only,
        }
    }
}

/// Whether we were started with this signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    // The first bit is signal 1's.
    set >> (signal - 1) & 1 == 1
}

/// How statistics are told.
#[derive(Clone, Copy)]
enum Form {
    Words,
    Json,
    /// On standard error, since the capture goes to standard output.
    JsonAside,
}

impl Form {
    fn object(self, rates: &Rates<'_>) -> io::Result<()> {
        let object = rates.now.json(rates) + "\n";
        match self {
            Self::JsonAside => io::stderr().write_all(object.as_bytes()),
            Self::Words | Self::Json => io::stdout().write_all(object.as_bytes()),
        }
    }
}

fn tell(news: &News<'_>, form: Form) -> io::Result<()> {
    match news {
        // Objects are read by a program, which wants nothing else there that is no warning.
        News::Ready { .. } if matches!(form, Form::JsonAside) => {}
        News::Ready { workers, how, metrics } => {
            let s = if *workers == 1 { "" } else { "s" };
            say::line(format_args!("shunt: {workers} worker{s}, {how}; Ctrl-C ends"));
            if let Some(address) = metrics {
                say::line(format_args!("shunt: metrics at http://{address}/metrics"));
            }
        }
        News::Filtered(filtered) => say::line(format_args!("shunt: {filtered}")),
        News::Outgrown { interface, mtu, fits } => say::line(format_args!(
            "shunt: the MTU of {interface} is {mtu} now, and packets of more than {fits} bytes are dropped \
             until shunt defrag is started anew"
        )),
        News::Unserved { interface, queues, served } => {
            let s = if *served == 1 { "" } else { "s" };
            say::line(format_args!(
                "shunt: {interface} has {queues} receive queues now, and the first {served} of them are served: \
                 fragments that come by another stay with the kernel, and a datagram of which some do is put together \
                 by nobody; start shunt defrag anew, without --workers, or have the interface use {served} queue{s} \
                 (ethtool -L, or -X {interface} equal {served})"
            ));
        }
        News::Up { interface, is_up: false } => say::line(format_args!(
            "shunt: {interface} is down: nothing comes in until it is up again (ip link set {interface} up)"
        )),
        News::Up { interface, is_up: true } => {
            say::line(format_args!("shunt: {interface} is up again"));
        }
        News::Rates(rates) => match form {
            Form::Words => say::line(rates),
            Form::Json | Form::JsonAside => return form.object(rates),
        },
    }
    Ok(())
}

fn text(report: &Report) -> String {
    report.tally.summary(report.took)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    use super::*;

    /// Names of all fields of a line of statistics.
    pub(crate) fn fields() -> Vec<String> {
        let none = Tally::default();
        let text = none.json(&Rates { now: &none, then: &none, passed: Duration::from_secs(1) });
        let Ok(Value::Object(fields)) = serde_json::from_str(&text) else { unreachable!("{text}") };
        fields.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_port_alone_is_on_this_host_only() {
        assert_eq!(address("9100"), Ok("127.0.0.1:9100".parse().unwrap()));
        assert_eq!(address("0.0.0.0:1"), Ok("0.0.0.0:1".parse().unwrap()));
        assert_eq!(address("[::1]:9"), Ok("[::1]:9".parse().unwrap()));
        assert!(address("eth0").is_err() && address("70000").is_err());
    }

    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        live: LiveArguments,
    }

    fn options(words: &[&str]) -> Result<Options, clap::Error> {
        let all = ["defrag", "--interface", "eth0"].iter().chain(words);
        let words = <Words as clap::Parser>::try_parse_from(all)?;
        Ok(words.live.options(Config::default()))
    }

    /// `None` is what the engine finds out: a worker for each CPU, or for each receive queue.
    #[test]
    fn workers_are_as_many_as_cpus_and_statistics_come_every_second_unless_said_otherwise() {
        let options_of = |words| options(words).map(|all| (all.workers, all.every)).unwrap();
        let second = Some(Duration::from_secs(1));
        assert_eq!(options_of(&[]), (None, second));
        assert_eq!(options_of(&["--xdp"]), (None, second));
        assert_eq!(options_of(&["--workers", "3", "--stats", "0"]), (Some(3), None));
        assert!(options(&["--workers", "0"]).is_err() && options(&["--workers", "257"]).is_err());
    }

    #[test]
    fn statistics_may_be_off() {
        assert_eq!(pause("0"), Ok(0));
        assert_eq!(pause("0.5"), Ok(500_000_000));
        assert!(pause("-1").is_err());
    }
}

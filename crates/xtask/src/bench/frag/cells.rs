//! One thread: each size, number of flows and order, against each peer.

use super::dpdk::Dpdk;
use super::{Bench, Job, named, rows_or_failure, times};
use crate::bench::report::{Line, Outcome};

/// Datagrams of 45 fragments and of 3.
pub(crate) const SIZES: [u32; 2] = [65507, 4416];
const FLOWS: [u32; 4] = [1, 10, 100, 1000];
const ORDERS: [&str; 3] = ["in", "rev", "rnd"];

/// Our rate against DPDK's where a datagram has as many fragments as can be, and elsewhere.
const DPDK_LARGE: f64 = 4.0;
const DPDK: f64 = 1.5;
const ETHERPARSE: f64 = 8.0;
const ETHERPARSE_CONTIGUOUS: f64 = 1.6;
/// A contiguous datagram may take this many times as long as one copy of its bytes.
const MEMCPY: f64 = 1.0 / 1.2;
const ORDER: f64 = 1.0 / 1.3;
const MANY_FLOWS: f64 = 1.0 / 1.5;

/// A trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    size: u32,
    flows: u32,
    order: &'static str,
}

impl Cell {
    /// Every one.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for size in SIZES {
            for flows in FLOWS {
                all.extend(ORDERS.map(|order| Self { size, flows, order }));
            }
        }
        all
    }

    pub(crate) fn name(self) -> String {
        let order = match self.order {
            "in" => "in order",
            "rev" => "reversed",
            _ => "random",
        };
        format!("{} x {} {order}", self.size, self.flows)
    }

    pub(crate) fn job(self) -> Job {
        let quick = self.flows == 100 && self.order != "rev";
        Job::new(self.name(), quick, move |bench| {
            let mut rows = rows_or_failure(&self.name(), self.against_rust(bench));
            rows.extend(self.against_dpdk(bench));
            rows
        })
    }

    /// What `fragbench` wants to know of it.
    pub(crate) fn words(self) -> [String; 6] {
        let Self { size, flows, order } = self;
        [
            "--size".into(),
            size.to_string(),
            "--flows".into(),
            flows.to_string(),
            "--order".into(),
            order.into(),
        ]
    }

    /// A turn of ours.
    fn zero_copy(self, bench: &Bench) -> anyhow::Result<Vec<f64>> {
        let words = self.words();
        let mut all = vec!["one", "--engine", "zero-copy"];
        all.extend(words.iter().map(String::as_str));
        Ok(named(&bench.rounds(1, &all)?, "zero-copy")?.to_vec())
    }

    fn against_rust(self, bench: &Bench) -> anyhow::Result<Vec<Line>> {
        let words = self.words();
        let mut all = vec!["one"];
        for engine in ["zero-copy", "etherparse", "contiguous", "memcpy", "headers"] {
            all.extend(["--engine", engine]);
        }
        all.extend(words.iter().map(String::as_str));
        let figures = bench.rounds(bench.rounds, &all)?;
        let of = |name| named(&figures, name);
        let row = |what: &str, peer, ours, floor| -> anyhow::Result<Line> {
            Ok(times(format!("{}: {what}", self.name()), of(peer)?, of(ours)?, floor))
        };
        let memcpy = (self.flows >= 100).then_some(MEMCPY);
        // Whoever writes a datagram out when it is complete has read the headers before.
        let both: Vec<f64> = of("headers")?
            .iter()
            .zip(of("memcpy")?)
            .map(|(headers, copy)| headers + copy)
            .collect();
        let bound = |what: &str, peer: &[f64], ours: &[f64]| {
            times(format!("{}: bound, {what}", self.name()), peer, ours, None)
        };
        Ok(vec![
            row("against etherparse", "etherparse", "zero-copy", Some(ETHERPARSE))?,
            row("contiguous, etherparse", "etherparse", "contiguous", Some(ETHERPARSE_CONTIGUOUS))?,
            row("contiguous, one memcpy", "memcpy", "contiguous", memcpy)?,
            row("against headers alone", "headers", "zero-copy", None)?,
            bound("etherparse against headers alone", of("etherparse")?, of("headers")?),
            bound("etherparse against headers and one memcpy", of("etherparse")?, &both),
            bound("one memcpy against headers and one memcpy", of("memcpy")?, &both),
        ])
    }

    /// What a burst gains by fetching what all of its packets need at once.
    fn against_one_by_one(self, bench: &Bench) -> anyhow::Result<Vec<Line>> {
        let words = self.words();
        let mut all = vec!["one", "--engine", "zero-copy", "--engine", "one-by-one"];
        if self.flows > 1000 {
            // Else there would be no whole datagram of each.
            all.extend(["--fragments", "450000"]);
        }
        all.extend(words.iter().map(String::as_str));
        let figures = bench.rounds(bench.rounds, &all)?;
        let name = format!("bursts, {}: against one by one", self.name());
        let [peer, ours] = ["one-by-one", "zero-copy"].map(|name| named(&figures, name));
        Ok(vec![times(name, peer?, ours?, None)])
    }

    fn against_dpdk(self, bench: &Bench) -> Vec<Line> {
        let name = format!("{}: against DPDK", self.name());
        let measured = Dpdk::of(bench, self.size).map(|dpdk| self.dpdk_pairs(bench, &dpdk));
        match measured {
            Err(why) => vec![Line { name, unit: "ns", outcome: Outcome::Skipped(why) }],
            Ok(rows) => rows_or_failure(&name, rows),
        }
    }

    fn dpdk_pairs(self, bench: &Bench, dpdk: &Dpdk) -> anyhow::Result<Vec<Line>> {
        let words = self.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let trace = dpdk.trace(bench, &words)?;
        let (mut peer, mut kept) = (Vec::new(), Vec::new());
        let (mut ours, mut headers) = (Vec::new(), Vec::new());
        let mut all = vec!["one", "--engine", "zero-copy", "--engine", "headers", "--small-pages"];
        all.extend(&words);
        for round in 0..bench.rounds {
            let mut measure = |what| -> anyhow::Result<()> {
                if what == Turn::Ours {
                    let figures = bench.rounds(1, &all)?;
                    ours.extend(named(&figures, "zero-copy")?);
                    headers.extend(named(&figures, "headers")?);
                    return Ok(());
                }
                let figures = dpdk.run(bench, &trace)?;
                peer.extend(named(&figures, "dpdk")?);
                kept.extend(named(&figures, "dpdk-kept")?);
                Ok(())
            };
            Turn::of(round).into_iter().try_for_each(&mut measure)?;
        }
        let large = self.size == SIZES[0] && self.flows == 100;
        let floor = if large { DPDK_LARGE } else { DPDK };
        let name = self.name();
        Ok(vec![
            times(format!("{name}: against DPDK"), &peer, &ours, Some(floor)),
            times(format!("{name}: against DPDK, mbufs not freed"), &kept, &ours, None),
            times(format!("{name}: bound, DPDK against headers alone"), &peer, &headers, None),
        ])
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Peer,
    Ours,
}

impl Turn {
    /// Both, in a round: there and back, so that a machine which gets slower or faster does so to both.
    fn of(round: u32) -> [Self; 2] {
        if round.is_multiple_of(2) { [Self::Peer, Self::Ours] } else { [Self::Ours, Self::Peer] }
    }
}

/// That neither order nor the number of flows makes much of a difference.
pub(crate) fn orders_and_flows() -> Vec<Job> {
    let of = |size, flows, order| Cell { size, flows, order };
    let mut jobs = Vec::new();
    for size in SIZES {
        let plain = of(size, 100, "in");
        for order in ["rev", "rnd"] {
            let other = of(size, 100, order);
            let name = format!("{} against in order", other.name());
            jobs.push(comparison(name, order == "rnd", plain, other, ORDER));
        }
        let name = format!("{size} x 1000 against x 10");
        jobs.push(comparison(name, true, of(size, 10, "in"), of(size, 1000, "in"), MANY_FLOWS));
    }
    jobs
}

/// Bursts against packets one by one, where datagrams are few and where they are many.
pub(crate) fn bursts() -> Vec<Job> {
    let mut jobs = Vec::new();
    for (size, order) in SIZES.into_iter().flat_map(|size| [(size, "in"), (size, "rnd")]) {
        for flows in [10, 100, 1000, 10_000] {
            let cell = Cell { size, flows, order };
            let name = format!("bursts, {}", cell.name());
            jobs.push(Job::new(name.clone(), flows == 10_000, move |bench| {
                rows_or_failure(&name, cell.against_one_by_one(bench))
            }));
        }
    }
    jobs
}

fn comparison(name: String, quick: bool, one: Cell, other: Cell, floor: f64) -> Job {
    Job::new(name.clone(), quick, move |bench| {
        let measure = || {
            let (mut peer, mut ours) = (Vec::new(), Vec::new());
            for turn in (0..bench.rounds).flat_map(Turn::of) {
                match turn {
                    Turn::Peer => peer.extend(one.zero_copy(bench)?),
                    Turn::Ours => ours.extend(other.zero_copy(bench)?),
                }
            }
            Ok(vec![times(name.clone(), &peer, &ours, Some(floor))])
        };
        rows_or_failure(&name, measure())
    })
}

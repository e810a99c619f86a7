//! Our own RoCEv2 over UDP beside what it stands on: 1 MB writes by one queue pair against bare datagrams of the
//! same size, over the cable between the two hosts. The bare ones are sent in two ways: each as a message of its own, 64 of
//! them by `sendmmsg` and `recvmmsg`, without checksums; and as ours sends them, many of one size as one message
//! (`UDP_SEGMENT`, `UDP_GRO`).

use std::ffi::OsString;

use anyhow::Context;
use testkit::hosts::Hosts;

use crate::bench::load::named;
use crate::bench::pairs::{Better, Pairs};
use crate::bench::report::{Line, Outcome};
use crate::bench::server::patience;
use crate::bench::stage::{self, Running, Stage};

/// "Within 1.5 times."
const FLOOR: f64 = 1.0 / 1.5;
/// What a cable takes if nobody asks for more, bytes.
const USUAL: u32 = 1500;
/// Of all rows.
pub(super) const UNIT: &str = "Gb/s";

/// A cable.
pub(super) struct Row {
    pub(super) name: String,
    /// The longest packet that it takes, bytes.
    mtu: u32,
    /// What the bare datagrams are sent by.
    blast: &'static str,
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    const HOW: [(&str, &str); 2] =
        [("sendmmsg and recvmmsg", "blast --one-by-one"), ("segments together", "blast")];
    let cables = [(USUAL, 1024), (9000, 4096)];
    let all = HOW.into_iter().flat_map(|how| cables.map(|cable| (how, cable)));
    all.map(|((by, blast), (mtu, payload))| {
        let name =
            format!("1 MB writes, one queue pair, over datagrams of {payload} by {by}, MTU {mtu}");
        Row { name, mtu, blast }
    })
    .collect()
}

/// Measures a row: its two runs in turn, so many times. No engine may be there.
pub(super) fn measure(stage: &Stage, row: &Row, rounds: u32, seconds: f64) -> Line {
    let outcome = pairs(stage, row, rounds, seconds).map_or_else(
        |error| Outcome::Failed(format!("{error:#}")),
        |pairs| Outcome::Measured { pairs, floor: Some(FLOOR) },
    );
    Line { name: row.name.clone(), unit: UNIT, outcome }
}

fn pairs(stage: &Stage, row: &Row, rounds: u32, seconds: f64) -> anyhow::Result<Pairs> {
    let hosts = stage.hosts().context("there are no hosts")?;
    set_mtu(hosts, row.mtu)?;
    let run = |what: &str| run(stage, hosts, what, row.mtu, seconds);
    let values: anyhow::Result<Vec<(f64, f64)>> =
        (0..rounds).map(|_| Ok((run(row.blast)?, run("writes")?))).collect();
    set_mtu(hosts, USUAL)?;
    Pairs::of(&values?, Better::Higher).context("nothing was measured")
}

fn set_mtu(hosts: &Hosts, mtu: u32) -> anyhow::Result<()> {
    hosts.server.set_mtu(mtu)?;
    hosts.client.set_mtu(mtu)
}

fn run(stage: &Stage, hosts: &Hosts, what: &str, mtu: u32, seconds: f64) -> anyhow::Result<f64> {
    let (from, to) = (&hosts.client, &hosts.server);
    let words = format!(
        "{what} --hosts {} {} --addresses {} {} --mtu {mtu} --seconds {seconds}",
        from.namespace(),
        to.namespace(),
        from.address(),
        to.address(),
    );
    let mut command = vec![OsString::from(stage.program("rocebench"))];
    command.extend(words.split(' ').map(OsString::from));
    let dir = stage.new_dir()?;
    let output = Running::start(&command, &dir, &[])?.finish(patience(seconds));
    stage::remove_dir(&dir);
    named(&output?, "gbits")
}

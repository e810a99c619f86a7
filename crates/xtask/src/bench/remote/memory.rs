//! Devices with memory for a wire: what messages cost when only our own code is measured, and how work lies
//! on completion vectors.

use std::ffi::OsString;

use crate::bench::load::named;
use crate::bench::pairs::Better;
use crate::bench::report::{Line, Outcome};
use crate::bench::server::patience;
use crate::bench::stage::{self, Running, Stage};
use crate::bench::{CLOSE_CALL_ROUNDS, measured};

/// A host may pay this much more for a message when it has many vectors: "flat within 10 percent".
const FLAT: f64 = 1.0 / 1.1;

/// A comparison of two runs of `rocebench`.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) unit: &'static str,
    peer: String,
    ours: String,
    /// The printed figure that it is about, and what must come of it.
    figure: Figure,
    /// Another one of the same runs, on a line of its own.
    beside: Option<Figure>,
    better: Better,
    /// How many times as many pairs as usual.
    pub(super) times: u32,
}

/// One of the figures that a run prints.
#[derive(Clone, Copy)]
struct Figure {
    name: &'static str,
    floor: Option<f64>,
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let messages = |vectors: u32, threads: u32| {
        format!("messages --vectors {vectors} --threads {threads} --links 64")
    };
    let mut rows: Vec<Row> = [2, 4, 8]
        .map(|vectors| Row {
            name: format!("CPU per message, {vectors} vectors over 1, in memory"),
            unit: "ns",
            peer: messages(1, 1),
            ours: messages(vectors, 1),
            figure: Figure { name: "ns_per_message", floor: Some(FLAT) },
            beside: None,
            better: Better::Lower,
            times: 1,
        })
        .into();
    rows.push(Row {
        name: "messages, 2 vectors on 2 CPUs over 1 on 1, in memory".into(),
        unit: "msg/s",
        peer: messages(1, 1),
        ours: messages(2, 2),
        // By the threads' own time; by the clock, what else the machine does is taken from one CPU or from both.
        figure: Figure { name: "rate", floor: Some(1.9) },
        beside: Some(Figure { name: "wall_rate", floor: None }),
        better: Better::Higher,
        times: CLOSE_CALL_ROUNDS,
    });
    rows
}

/// Measures a row: its two runs in turn, the other one first each second time, so many times.
pub(super) fn measure(stage: &Stage, row: &Row, rounds: u32, seconds: f64) -> Vec<Line> {
    let run = |words: &str| rocebench(stage, &format!("{words} --seconds {seconds}"), seconds);
    let pair = |round: u32| {
        let early = (round % 2 == 1).then(|| run(&row.ours)).transpose()?;
        let peer = run(&row.peer)?;
        anyhow::Ok((peer, early.map_or_else(|| run(&row.ours), Ok)?))
    };
    let said: anyhow::Result<Vec<(String, String)>> = (0..rounds).map(pair).collect();
    let said = match said {
        Ok(said) => said,
        Err(error) => {
            let outcome = Outcome::Failed(format!("{error:#}"));
            return vec![line(row.name.clone(), row.unit, outcome)];
        }
    };
    let of = |figure: Figure, name: String| {
        let value = |text: &str| named(text, figure.name);
        let values = said.iter().map(|(peer, ours)| Ok((value(peer)?, value(ours)?)));
        line(name, row.unit, outcome(values.collect(), row.better, figure.floor))
    };
    let beside = row.beside.map(|figure| of(figure, format!("  {}: by the clock", row.name)));
    [of(row.figure, row.name.clone())].into_iter().chain(beside).collect()
}

/// How evenly 1,000 link groups of peers that come and go lie on 8 vectors, and their connections: the mean over the
/// most. Nothing that is there is moved when others leave, so of that there is a line and no floor.
pub(super) fn spread(stage: &Stage) -> Vec<Line> {
    let said: anyhow::Result<Vec<String>> = (1..=5)
        .map(|seed| {
            let words = format!("spread --vectors 8 --groups 1000 --seed {seed}");
            rocebench(stage, &words, 5.0)
        })
        .collect();
    let said = match said {
        Ok(said) => said,
        Err(error) => {
            return vec![line(SPREAD.into(), MEANS, Outcome::Failed(format!("{error:#}")))];
        }
    };
    let of = |name: String, figure: &str, floor| {
        let values = said.iter().map(|text| Ok((1.0, named(text, figure)?)));
        line(name, MEANS, outcome(values.collect(), Better::Lower, floor))
    };
    vec![
        of(SPREAD.into(), "groups", Some(FLAT)),
        of(format!("  {SPREAD}: their connections"), "connections", Some(FLAT)),
        of(format!("  {SPREAD}: when a quarter of the peers has just left"), "when_left", None),
    ]
}

fn outcome(values: anyhow::Result<Vec<(f64, f64)>>, better: Better, floor: Option<f64>) -> Outcome {
    match values {
        Ok(values) => measured(&values, better, floor),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Name of the row that [`spread`] tells.
pub(super) const SPREAD: &str = "most loaded of 8 vectors, 1,000 link groups";

/// What it is told in.
pub(super) const MEANS: &str = "of mean";

fn line(name: String, unit: &'static str, outcome: Outcome) -> Line {
    Line { name, unit, outcome }
}

fn rocebench(stage: &Stage, words: &str, seconds: f64) -> anyhow::Result<String> {
    let mut command = vec![OsString::from(stage.program("rocebench"))];
    command.extend(words.split(' ').map(OsString::from));
    let dir = stage.new_dir()?;
    let output = Running::start(&command, &dir, &[])?.finish(patience(seconds));
    stage::remove_dir(&dir);
    output
}

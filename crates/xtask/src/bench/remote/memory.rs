//! Devices with memory for a wire: what messages cost when only our own code is measured, and how work lies
//! on completion vectors.

use std::ffi::OsString;

use crate::bench::load::named;
use crate::bench::pairs::{Better, Pairs};
use crate::bench::report::{Line, Outcome};
use crate::bench::server::patience;
use crate::bench::stage::{self, Running, Stage};

/// A host may pay this much more for a message when it has many vectors: "flat within 10 percent".
const FLAT: f64 = 1.0 / 1.1;

/// A comparison of two runs of `rocebench`.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) unit: &'static str,
    peer: String,
    ours: String,
    /// Which of the printed figures.
    figure: &'static str,
    better: Better,
    floor: f64,
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
            figure: "ns_per_message",
            better: Better::Lower,
            floor: FLAT,
        })
        .into();
    rows.push(Row {
        name: "messages, 2 vectors on 2 CPUs over 1 on 1, in memory".into(),
        unit: "msg/s",
        peer: messages(1, 1),
        ours: messages(2, 2),
        figure: "rate",
        better: Better::Higher,
        floor: 1.9,
    });
    rows
}

/// Measures a row: its two runs in turn, so many times.
pub(super) fn measure(stage: &Stage, row: &Row, rounds: u32, seconds: f64) -> Line {
    let mut values = Vec::new();
    for _ in 0..rounds {
        let run = |words: &str| {
            let words = format!("{words} --seconds {seconds}");
            named(&rocebench(stage, &words, seconds)?, row.figure)
        };
        match run(&row.peer).and_then(|peer| Ok((peer, run(&row.ours)?))) {
            Ok(pair) => values.push(pair),
            Err(error) => {
                return line(row.name.clone(), row.unit, Outcome::Failed(format!("{error:#}")));
            }
        }
    }
    let outcome = Pairs::of(&values, row.better).map_or_else(
        || Outcome::Failed("nothing was measured".into()),
        |pairs| Outcome::Measured { pairs, floor: Some(row.floor) },
    );
    line(row.name.clone(), row.unit, outcome)
}

/// How evenly 1,000 link groups that come and go lie on 8 vectors: the mean over the most.
pub(super) fn spread(stage: &Stage) -> Line {
    let seeds: anyhow::Result<Vec<(f64, f64)>> = (1..=5)
        .map(|seed| {
            let words = format!("spread --vectors 8 --groups 1000 --seed {seed}");
            Ok((1.0, named(&rocebench(stage, &words, 5.0)?, "max_over_mean")?))
        })
        .collect();
    let outcome = match seeds {
        Ok(values) => Pairs::of(&values, Better::Lower).map_or_else(
            || Outcome::Failed("nothing was measured".into()),
            |pairs| Outcome::Measured { pairs, floor: Some(FLAT) },
        ),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    };
    line(SPREAD.into(), "of mean", outcome)
}

/// Name of the row that [`spread`] tells.
pub(super) const SPREAD: &str = "most loaded of 8 vectors, 1,000 link groups";

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

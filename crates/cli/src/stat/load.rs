//! How the work of the engine is spread over its vectors.

use std::io::ErrorKind;
use std::time::Instant;

use engine::remote::host;
use serde::Serialize;
use serde_json::Value;

use crate::table::{Side, bytes, count, render};

/// What one vector has and has done. Field names are those of `shunt stat --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Load {
    /// Which one.
    pub(super) vector: u64,
    /// Connections that go by SMC now.
    pub(super) connections: u64,
    /// Link groups.
    pub(super) link_groups: u64,
    /// Links of those: queue pairs.
    pub(super) links: u64,
    /// Completions that its queues have had.
    pub(super) completions: u64,
    /// By RDMA WRITE, from guests.
    pub(super) bytes_tx: u64,
    /// By RDMA WRITE, for guests.
    pub(super) bytes_rx: u64,
    /// CPU time of its thread, nanoseconds.
    pub(super) cpu_ns: u64,
    /// Percent of a CPU since the last look; nothing at the first.
    pub(super) cpu_percent: Option<f64>,
}

/// The vectors: none without an engine.
pub(super) type Loads = Result<Vec<Load>, String>;

/// Looks at them again and again.
#[derive(Debug, Default)]
pub(super) struct Looker {
    before: Option<(Instant, Vec<Load>)>,
}

impl Looker {
    /// What they have now.
    pub(super) fn look(&mut self, dir: Option<&str>) -> Loads {
        let stat = match host::look(dir) {
            Ok(stat) => stat,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                self.before = None;
                return Ok(Vec::new());
            }
            Err(e) => return Err(format!("the engine does not answer: {e}")),
        };
        let now = Instant::now();
        let mut loads = read(&stat);
        if let Some((then, before)) = &self.before {
            let passed = now.duration_since(*then).as_nanos();
            loads.iter_mut().for_each(|load| load.compare(before, passed));
        }
        self.before = Some((now, loads.clone()));
        Ok(loads)
    }
}

impl Load {
    #[expect(clippy::cast_precision_loss, reason = "a part of a CPU, for people")]
    fn compare(&mut self, before: &[Self], passed_ns: u128) {
        let then = before.iter().find(|load| load.vector == self.vector);
        // Less than then: it is another engine.
        let used = then.and_then(|then| self.cpu_ns.checked_sub(then.cpu_ns));
        self.cpu_percent =
            used.filter(|_| passed_ns > 0).map(|used| used as f64 * 100.0 / passed_ns as f64);
    }
}

/// What an engine says of its vectors.
pub(super) fn read(stat: &Value) -> Vec<Load> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let load = |v: &Value| {
        let number = |name: &str| v[name].as_u64().unwrap_or(0);
        let groups = list(&v["groups"]);
        let links = groups.iter().map(|group| list(&group["links"]).len() as u64).sum();
        let completions = list(&v["completions"]);
        Load {
            vector: number("vector"),
            connections: number("connections"),
            link_groups: groups.len() as u64,
            links,
            completions: completions.iter().filter_map(Value::as_u64).fold(0, u64::saturating_add),
            bytes_tx: number("bytes_tx"),
            bytes_rx: number("bytes_rx"),
            cpu_ns: number("cpu_ns"),
            cpu_percent: None,
        }
    };
    list(&stat["vectors"]).iter().map(load).collect()
}

/// A line for each.
#[expect(clippy::cast_precision_loss, reason = "seconds, for people")]
pub(super) fn table(loads: &[Load]) -> Option<String> {
    use Side::Right;
    let columns = [
        ("Vector", Right),
        ("Connections", Right),
        ("Link groups", Right),
        ("Links", Right),
        ("Completions", Right),
        ("Tx", Right),
        ("Rx", Right),
        ("CPU s", Right),
        ("CPU %", Right),
    ];
    let row = |load: &Load| {
        vec![
            load.vector.to_string(),
            count(load.connections),
            count(load.link_groups),
            count(load.links),
            count(load.completions),
            bytes(load.bytes_tx),
            bytes(load.bytes_rx),
            format!("{:.2}", load.cpu_ns as f64 / 1e9),
            load.cpu_percent.map_or_else(|| "-".into(), |part| format!("{part:.1}")),
        ]
    };
    (!loads.is_empty()).then(|| render(&columns, &loads.iter().map(row).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stat(cpu_ns: u64) -> Value {
        let links = json!([{"qpn": 5}, {"qpn": 6}]);
        json!({"vectors": [
            {"vector": 0, "connections": 30, "bytes_tx": 2048, "bytes_rx": 1, "cpu_ns": cpu_ns,
             "completions": [40, 2], "groups": [{"links": links}, {"links": [{"qpn": 7}]}]},
            {"vector": 1, "groups": "nonsense"},
        ]})
    }

    #[test]
    fn the_load_of_each_vector_is_read_and_shown() {
        let loads = read(&stat(1_500_000_000));
        let first = &loads[0];
        assert_eq!((first.connections, first.link_groups, first.links), (30, 2, 3));
        assert_eq!((first.completions, first.bytes_tx, first.cpu_ns), (42, 2048, 1_500_000_000));
        assert_eq!(loads[1], Load { vector: 1, ..Load::default() });
        let table = table(&loads).unwrap();
        let cells: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(cells, ["0", "30", "2", "3", "42", "2K", "1", "1.50", "-"], "{table}");
        assert_eq!(super::table(&read(&json!({}))), None, "there is no engine");
    }

    #[test]
    fn from_the_second_look_on_the_part_of_a_cpu_is_told() {
        let before = read(&stat(1_000_000_000));
        let mut now = read(&stat(1_250_000_000))[0].clone();
        now.compare(&before, 1_000_000_000);
        assert_eq!(now.cpu_percent, Some(25.0));
        let mut another = read(&stat(7))[0].clone();
        another.compare(&before, 1_000_000_000);
        assert_eq!(another.cpu_percent, None, "the engine was started anew");
    }
}

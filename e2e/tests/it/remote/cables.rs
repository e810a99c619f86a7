//! Cables that are pulled: one that is plugged in again, and a second one that takes over.

use testkit::hosts::DEVICE;

use super::*;

/// Clients that make round trips until they are told to stop.
struct Going {
    stop: PathBuf,
    clients: Vec<(Guest, BufReader<std::process::ChildStdout>)>,
}

impl Going {
    /// One with short and one with long messages; both have had an answer.
    fn start(pair: &Pair, talk: &Talk, python: &Path) -> Self {
        let stop = talk.place.with_extension("stop");
        let start = |size: &str| {
            let mut command = pair.shunt(Side::Client, python);
            command.arg(&talk.place).args(["client", &pair.address(), &talk.port.to_string()]);
            command.arg("until").arg(&stop).arg(size).stdout(Stdio::piped());
            let mut client = Guest::start(&mut command);
            let mut said = BufReader::new(client.take_stdout().unwrap());
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            assert_eq!(line.trim(), "going");
            (client, said)
        };
        let clients = ["8", "200000"].map(start).into();
        Self { stop, clients }
    }

    /// Each ends with the answer to its last question.
    #[track_caller]
    fn end(mut self, pair: &Pair) {
        std::fs::write(&self.stop, "").unwrap();
        for (client, said) in &mut self.clients {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            let status = || format!("{:#}", pair.status(Side::Client));
            assert!(line.starts_with("rounds "), "{line:?}\n{}", status());
            client.wait(LIMIT).unwrap();
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.stop);
    }
}

/// The sum of a count of all vectors of a host.
fn count(pair: &Pair, side: Side, name: &str) -> u64 {
    let status = pair.status(side);
    let vectors = status["vectors"].as_array().unwrap();
    vectors.iter().map(|vector| vector[name].as_u64().unwrap()).sum()
}

/// From which addresses the links of a host's groups are that work.
fn links(pair: &Pair, side: Side) -> Vec<String> {
    let status = pair.status(side);
    let of = |thing: &serde_json::Value, name: &str| thing[name].as_array().unwrap().clone();
    let groups = of(&status, "vectors").into_iter().flat_map(|vector| of(&vector, "groups"));
    let links = groups.flat_map(|group| of(&group, "links"));
    let works = links.filter(|link| link["state"] == "ACTIVE");
    works.map(|link| link["local"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_cable_that_is_plugged_in_again_costs_time_only() {
    let (Some(python), Some(pair)) = (python(), Pair::new()) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let going = Going::start(&pair, &talk, &python);
    for (side, time_ms) in [(Side::Server, 200), (Side::Client, 1500), (Side::Server, 700)] {
        pair.host(side).plug(DEVICE, false).unwrap();
        std::thread::sleep(Duration::from_millis(time_ms));
        pair.host(side).plug(DEVICE, true).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    let lost = count(&pair, Side::Client, "timeouts") + count(&pair, Side::Server, "timeouts");
    assert!(lost > 0, "nothing was missed: {:#}", pair.status(Side::Client));
    assert_eq!(count(&pair, Side::Client, "links_lost"), 0);
    going.end(&pair);
    assert_eq!(count(&pair, Side::Client, "aborted_total"), 0);
    assert!(pair.carried(Side::Client) >= 2, "{}", pair.board(Side::Client).summary());
}

#[test]
fn a_second_cable_takes_over() {
    let settings = ["--max-links", "2", "--testlink-time", "1"];
    let Some(python) = python() else { return };
    let Some(pair) = Pair::with(Hosts::with_two_cables(), &settings) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let going = Going::start(&pair, &talk, &python);
    let [first, second] = [0, 1].map(|at| {
        let address = pair.host(Side::Client).addresses().nth(at);
        address.unwrap().to_string()
    });
    eventually("links by both cables", || {
        let links = links(&pair, Side::Client);
        links.contains(&first) && links.contains(&second)
    });
    pair.host(Side::Server).plug(DEVICE, false).unwrap();
    for side in [Side::Client, Side::Server] {
        eventually("the first link is given up", || count(&pair, side, "links_lost") > 0);
    }
    eventually("one link", || {
        let links = links(&pair, Side::Client);
        !links.is_empty() && links.iter().all(|link| *link == second)
    });
    std::thread::sleep(Duration::from_millis(300));
    going.end(&pair);
    assert_eq!(count(&pair, Side::Client, "aborted_total"), 0);
    // With the way of TCP there again, so are new connections, on what is left of the group.
    pair.host(Side::Server).plug(DEVICE, true).unwrap();
    let carried = pair.carried(Side::Client);
    let got = talk.client(&pair, &python, &["echo", "1,70000"], true);
    assert!(got.ok(), "{got:?}");
    assert!(pair.carried(Side::Client) > carried, "{:#}", pair.status(Side::Client));
}

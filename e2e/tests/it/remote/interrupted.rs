//! iperf3, nginx with wrk, and redis, all at once, while cables are pulled and engines killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use testkit::hosts::DEVICE;

use super::programs::{Pages, iperf3_server, redis_load, redis_server};
use super::*;

/// One at a time: each keeps all CPUs busy, and on a path that nobody has time for connections are given up.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The programs of both hosts.
struct Programs {
    iperf: PathBuf,
    nginx: PathBuf,
    wrk: PathBuf,
    redis: PathBuf,
    redis_benchmark: PathBuf,
}

impl Programs {
    fn found() -> Option<Self> {
        let found = || {
            Some(Self {
                iperf: installed("iperf3")?,
                nginx: installed("nginx")?,
                wrk: installed("wrk")?,
                redis: installed("redis-server")?,
                redis_benchmark: installed("redis-benchmark")?,
            })
        };
        let all = found();
        if all.is_none() {
            skipped(
                "not all of iperf3, nginx, wrk, redis-server and redis-benchmark are installed",
            );
        }
        all
    }

    fn iperf3(&self, pair: &Pair, words: &str) -> Outcome {
        outcome(&mut self.iperf3_command(pair, words), LIMIT)
    }

    fn iperf3_command(&self, pair: &Pair, words: &str) -> Command {
        let mut command = pair.shunt(Side::Client, &self.iperf);
        command.args(["-c", &pair.address(), "-p", "5300", "-J"]).args(words.split(' '));
        command
    }

    /// Each of them for as long as it takes to do `meanwhile`, with connections that go by SMC-R; all get all that they
    /// ask for.
    #[track_caller]
    fn go_on(&self, pair: &Pair, meanwhile: impl FnOnce()) {
        let servers = (iperf3_server(pair, &self.iperf), redis_server(pair, &self.redis));
        let pages = Pages::serve(pair, &self.nginx);
        // redis-benchmark, over TCP as well, tries for ever to write where a connection could not be made.
        pair.host(Side::Client).remember(pair.host(Side::Server)).unwrap();
        let over = AtomicBool::new(false);
        // Both would run for minutes, and say at an interrupt what they have got.
        let until_over = |guest: &Guest| {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
            guest.signal(libc::SIGINT);
        };
        thread::scope(|scope| {
            let iperf = scope.spawn(|| {
                outcome_after(&mut self.iperf3_command(pair, "-t 600"), LIMIT, until_over)
            });
            let wrk = scope.spawn(|| {
                pages.fetch_until(&self.wrk, &["-c8", "-d600"], "64k", until_over);
            });
            let redis = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let got = redis_load(pair, &self.redis_benchmark, "-c 10 -n 20000 -d 3000");
                    // A new one begins by TCP, which has no way while the cable is out.
                    if got.err.contains("Could not connect") {
                        thread::sleep(Duration::from_millis(50));
                        continue;
                    }
                    assert!(got.ok() && got.out.contains("\"GET\""), "{got:?}");
                }
            });
            {
                // Also when something has failed: they would go on, and nothing would be said.
                let _over = Finally(|| over.store(true, Ordering::Relaxed));
                all_by_smc(pair);
                meanwhile();
            }
            let got = iperf.join().unwrap();
            assert!(got.hung.is_none(), "{got:?}");
            let said: serde_json::Value = serde_json::from_str(&got.out).unwrap();
            assert_eq!(said["error"], "interrupt - the client has terminated", "{said:#}");
            assert!(said["end"]["sum_sent"]["bytes"].as_f64().unwrap() > 1e6, "{said:#}");
            wrk.join().unwrap();
            redis.join().unwrap();
        });
        drop((pages, servers));
    }
}

/// Does something when it is dropped.
struct Finally<F: Fn()>(F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Waits until each of the clients has connections that go by SMC-R.
#[track_caller]
fn all_by_smc(pair: &Pair) {
    for program in ["iperf3", "wrk", "redis-benchmark"] {
        eventually(&format!("{program} goes by SMC-R"), || {
            let stat = pair.stat(Side::Client);
            let all = |name: &str| stat[name].as_array().unwrap().clone();
            let (processes, ends) = (all("processes"), all("connections"));
            let is_its = |end: &serde_json::Value| {
                processes.iter().any(|p| p["pid"] == end["pid"] && p["program"] == program)
            };
            ends.iter().any(|end| is_its(end) && end["state"] == "ACTIVE" && end["mode"] == "SMCR")
        });
    }
}

/// Waits until the client's host, where it is iperf3 that sends much, has sent another MiB.
#[track_caller]
fn more_is_sent(pair: &Pair, what: &str) {
    let sent = || pair.sum(Side::Client, "bytes_tx");
    let before = sent();
    eventually(what, || sent() > before + (1 << 20));
}

#[test]
fn a_cable_that_flaps_costs_programs_time_only() {
    let Some(programs) = Programs::found() else { return };
    let _alone = alone();
    let Some(pair) = Pair::with(Hosts::new(), &ALL_BY_SMC) else { return };
    programs.go_on(&pair, || {
        for (side, time_ms) in [(Side::Server, 300), (Side::Client, 500)] {
            pair.host(side).plug(DEVICE, false).unwrap();
            thread::sleep(Duration::from_millis(time_ms));
            pair.host(side).plug(DEVICE, true).unwrap();
            thread::sleep(Duration::from_millis(700));
        }
        more_is_sent(&pair, "it goes on");
    });
    let lost = pair.sum(Side::Client, "timeouts") + pair.sum(Side::Server, "timeouts");
    assert!(lost > 0, "nothing was missed: {:#}", pair.status(Side::Client));
    assert_eq!(pair.sum(Side::Client, "links_lost"), 0);
}

#[test]
fn programs_fail_over_to_a_second_cable() {
    let Some(programs) = Programs::found() else { return };
    let _alone = alone();
    let settings = [&ALL_BY_SMC[..], &["--max-links", "2", "--testlink-time", "1"]].concat();
    let Some(pair) = Pair::with(Hosts::with_two_cables(), &settings) else { return };
    programs.go_on(&pair, || {
        eventually("a second link for each group", || {
            let groups = cables::groups(&pair, Side::Client);
            !groups.is_empty() && groups.iter().all(|links| links.len() >= 2)
        });
        pair.host(Side::Server).plug(DEVICE, false).unwrap();
        for side in [Side::Client, Side::Server] {
            eventually("the first link is given up", || pair.sum(side, "links_lost") > 0);
        }
        more_is_sent(&pair, "it goes by the second one");
        // For new connections, which begin by TCP.
        pair.host(Side::Server).plug(DEVICE, true).unwrap();
    });
}

/// Connections that an engine carries end with it, at once; servers go on, and so do new connections.
#[test]
fn an_engine_that_is_killed_under_programs() {
    let Some(programs) = Programs::found() else { return };
    let _alone = alone();
    let Some(mut pair) = Pair::with(Hosts::new(), &ALL_BY_SMC) else { return };
    let servers = (iperf3_server(&pair, &programs.iperf), redis_server(&pair, &programs.redis));
    let pages = |pair: &Pair, words: &[&str]| {
        let pages = Pages::serve(pair, &programs.nginx);
        pages.wrk(&programs.wrk, words, "64k")
    };
    let engine = thread::scope(|scope| {
        let pair = &pair;
        let iperf = scope.spawn(|| programs.iperf3(pair, "-t 60"));
        let wrk = scope.spawn(|| pages(pair, &["-c8", "-d5"]));
        let redis = scope
            .spawn(|| redis_load(pair, &programs.redis_benchmark, "-c 10 -n 100000000 -d 3000"));
        all_by_smc(pair);
        thread::sleep(Duration::from_millis(500));
        pair.engines[0].signal(libc::SIGKILL);
        let since = Instant::now();
        let (iperf, redis) = (iperf.join().unwrap(), redis.join().unwrap());
        assert!(iperf.hung.is_none() && iperf.out.contains("\"error\""), "{iperf:?}");
        assert!(redis.hung.is_none() && !redis.ok(), "{redis:?}");
        // Long before it would have ended by itself.
        assert!(since.elapsed() < Duration::from_secs(40), "{:?}", since.elapsed());
        let got = wrk.join().unwrap();
        assert!(got.ok() && got.out.contains("Socket errors"), "{got:?}");
        pair.engine(Side::Server, &ALL_BY_SMC)
    });
    pair.engines[0] = engine;
    let carried = pair.carried(Side::Client);
    eventually("new ones, by SMC-R again", || {
        let got = programs.iperf3(&pair, "-n 4M");
        let redis = redis_load(&pair, &programs.redis_benchmark, "-c 10 -n 1000 -d 3000");
        assert!(redis.ok(), "{redis:?}");
        let got_pages = pages(&pair, &["-c8", "-d1"]);
        assert!(got_pages.ok() && !got_pages.out.contains("Socket errors"), "{got_pages:?}");
        // The server of iperf3 may take a moment to notice that a client has gone.
        let served = got.ok() && !got.out.contains("\"error\"");
        served && pair.carried(Side::Client) > carried
    });
    drop(servers);
}

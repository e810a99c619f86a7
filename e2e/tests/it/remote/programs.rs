//! nginx and wrk, redis, iperf3 on two hosts.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::programs::{iperf3_client, need};

/// nginx with files of 1 and of 64 KiB.
pub(super) struct Pages<'a> {
    pair: &'a Pair,
    _server: Guest,
    place: PathBuf,
}

impl<'a> Pages<'a> {
    pub(super) fn serve(pair: &'a Pair, nginx: &Path) -> Self {
        Self::serve_as("root", pair, nginx)
    }

    /// As a distribution has it: a master that is root, and a worker that has become `user`.
    pub(super) fn serve_as(user: &str, pair: &'a Pair, nginx: &Path) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("shunt-remote-nginx-{}-{count}", std::process::id());
        let place = std::env::temp_dir().join(name);
        std::fs::create_dir_all(place.join("pages")).unwrap();
        for (file, bytes) in [("1k", 1 << 10), ("64k", 64 << 10)] {
            std::fs::write(place.join("pages").join(file), vec![b'.'; bytes]).unwrap();
        }
        let (at, address) = (place.display(), pair.address());
        let config = format!(
            "daemon off; user {user}; worker_processes 1; pid {at}/pid; error_log {at}/error.log error;
         events {{ worker_connections 1024; }}
         http {{ access_log off; client_body_temp_path {at}/t; proxy_temp_path {at}/t;
             fastcgi_temp_path {at}/t; uwsgi_temp_path {at}/t; scgi_temp_path {at}/t;
             keepalive_requests 1000000000; server {{ listen {address}:8080; root {at}/pages; }} }}"
        );
        std::fs::write(place.join("nginx.conf"), config).unwrap();
        let mut command = pair.shunt(Side::Server, nginx);
        let config = format!("{at}/nginx.conf");
        command.args(["-e", &format!("{at}/error.log"), "-p", &at.to_string(), "-c", &config]);
        let server = pair.listening(&mut command, 8080);
        Self { pair, _server: server, place }
    }

    /// wrk, which fetches a file for two seconds, or what the words say.
    pub(super) fn wrk(&self, wrk: &Path, words: &[&str], file: &str) -> Outcome {
        outcome(&mut self.wrk_command(wrk, words, file), LIMIT)
    }

    fn wrk_command(&self, wrk: &Path, words: &[&str], file: &str) -> Command {
        let mut command = self.pair.shunt(Side::Client, wrk);
        // What takes longer than two seconds would be an error to it.
        command.args(["-t1", "-d2", "--timeout", "60s"]).args(words);
        command.arg(format!("http://{}:8080/{file}", self.pair.address()));
        command
    }

    /// Has wrk fetch a file; all that it asks for comes.
    #[track_caller]
    pub(super) fn fetch(&self, wrk: &Path, words: &[&str], file: &str) {
        Self::all_came(&self.wrk(wrk, words, file));
    }

    /// The same until it is told to end, by what is done meanwhile.
    #[track_caller]
    pub(super) fn fetch_until(
        &self,
        wrk: &Path,
        words: &[&str],
        file: &str,
        ends_it: impl FnOnce(&Guest),
    ) {
        Self::all_came(&outcome_after(&mut self.wrk_command(wrk, words, file), LIMIT, ends_it));
    }

    #[track_caller]
    fn all_came(got: &Outcome) {
        assert!(got.ok(), "{got:?}");
        assert!(!got.out.contains("Non-2xx"), "{}", got.out);
        let errors = got.out.lines().find(|line| line.contains("Socket errors"));
        assert_eq!(errors, None, "{got:?}");
        let requests = got.out.lines().find(|line| line.contains(" requests in "));
        let count: u64 = requests.unwrap().split_whitespace().next().unwrap().parse().unwrap();
        assert!(count > 10, "{}", got.out);
    }
}

impl Drop for Pages<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

#[test]
fn nginx_and_wrk() {
    let (nginx, wrk) = (need!("nginx"), need!("wrk"));
    // By SMC-R all of them: what becomes of short ones otherwise is another test's.
    let Some(pair) = Pair::with(Hosts::new(), &ALL_BY_SMC) else { return };
    let pages = Pages::serve(&pair, &nginx);
    // More than ten requests are answered; a few of the first connections may be late.
    pair.must_carry([10 << 10, 400], || pages.fetch(&wrk, &["-c100"], "1k"));
    let carried = pair.carried(Side::Server);
    assert!(carried >= 80, "{:#}", pair.status(Side::Server));
    pair.must_carry([5 << 10, 200], || {
        pages.fetch(&wrk, &["-c8", "-H", "Connection: close"], "1k");
    });
}

/// A server of redis at port 7000.
pub(super) fn redis_server(pair: &Pair, server: &Path) -> Guest {
    let mut command = pair.shunt(Side::Server, server);
    let words =
        format!("--port 7000 --bind {} --protected-mode no --appendonly no --save", pair.address());
    command.args(words.split(' ')).arg("").stdout(Stdio::null());
    pair.listening(&mut command, 7000)
}

/// Its benchmark, which sets and gets.
pub(super) fn redis_load(pair: &Pair, client: &Path, words: &str) -> Outcome {
    let mut command = pair.shunt(Side::Client, client);
    let words = format!("-h {} -p 7000 -t set,get {words} --csv", pair.address());
    outcome(command.args(words.split(' ')), LIMIT)
}

/// Has it set and get.
#[track_caller]
pub(super) fn redis_benchmark(pair: &Pair, client: &Path, words: &str) {
    let got = redis_load(pair, client, words);
    assert!(got.ok() && got.out.contains("\"GET\""), "{got:?}");
}

#[test]
fn redis() {
    let (server, client) = (need!("redis-server"), need!("redis-benchmark"));
    let Some(pair) = Pair::with(Hosts::new(), &ALL_BY_SMC) else { return };
    let _server = redis_server(&pair, &server);
    // Of 50 connections each way a few may be late.
    pair.must_carry([15_000 * 3000; 2], || {
        redis_benchmark(&pair, &client, "-c 50 -n 20000 -d 3000");
    });
    assert!(pair.carried(Side::Client) >= 50, "{:#}", pair.status(Side::Client));
}

/// A server of iperf3 at port 5300.
pub(super) fn iperf3_server(pair: &Pair, iperf: &Path) -> Guest {
    let mut command = pair.shunt(Side::Server, iperf);
    command.args(["-s", "-B", &pair.address(), "-p", "5300"]).stdout(Stdio::null());
    pair.listening(&mut command, 5300)
}

#[test]
fn iperf3() {
    let iperf = need!("iperf3");
    let Some(pair) = Pair::with(Hosts::new(), &ALL_BY_SMC) else { return };
    let address = pair.address();
    let _server = iperf3_server(&pair, &iperf);
    for (way, bytes) in
        [(&[][..], [0, 900_000]), (&["-R"], [900_000, 0]), (&["-P", "4"], [0, 900_000])]
    {
        pair.must_carry(bytes, || {
            let got = iperf3_client(|| {
                let mut command = pair.shunt(Side::Client, &iperf);
                command.args(["-c", &address, "-p", "5300", "-t", "1", "-J"]).args(way);
                command
            });
            assert!(got.ok(), "{way:?}: {got:?}");
            let said: serde_json::Value = serde_json::from_str(&got.out).unwrap();
            assert!(said["end"]["sum_received"]["bytes"].as_f64().unwrap() > 1e6, "{way:?}");
        });
    }
}

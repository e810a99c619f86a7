//! nginx and wrk, redis, iperf3 on two hosts.

use super::*;
use crate::programs::{iperf3_client, need};

#[test]
fn nginx_and_wrk() {
    let (nginx, wrk) = (need!("nginx"), need!("wrk"));
    // By SMC-R all of them: what becomes of short ones otherwise is another test's.
    let Some(pair) = Pair::with(Hosts::new(), &["--spare-short", "off"]) else { return };
    let place = std::env::temp_dir().join(format!("shunt-remote-nginx-{}", std::process::id()));
    std::fs::create_dir_all(place.join("pages")).unwrap();
    std::fs::write(place.join("pages/1k"), vec![b'.'; 1024]).unwrap();
    let (at, address) = (place.display(), pair.address());
    let config = format!(
        "daemon off; user root; worker_processes 1; pid {at}/pid; error_log {at}/error.log error;
         events {{ worker_connections 1024; }}
         http {{ access_log off; client_body_temp_path {at}/t; proxy_temp_path {at}/t;
             fastcgi_temp_path {at}/t; uwsgi_temp_path {at}/t; scgi_temp_path {at}/t;
             server {{ listen {address}:8080; root {at}/pages; }} }}"
    );
    std::fs::write(place.join("nginx.conf"), config).unwrap();
    let mut command = pair.shunt(Side::Server, &nginx);
    let config = format!("{at}/nginx.conf");
    command.args(["-e", &format!("{at}/error.log"), "-p", &at.to_string(), "-c", &config]);
    let _server = pair.listening(&mut command, 8080);
    for words in [&["-c100"][..], &["-c8", "-H", "Connection: close"]] {
        let mut command = pair.shunt(Side::Client, &wrk);
        // What takes longer than two seconds would be an error to it.
        command.args(["-t1", "-d2", "--timeout", "60s"]).args(words);
        command.arg(format!("http://{address}:8080/1k"));
        let got = outcome(&mut command, LIMIT);
        assert!(got.ok(), "{got:?}");
        assert!(!got.out.contains("Non-2xx"), "{}", got.out);
        let errors = got.out.lines().find(|line| line.contains("Socket errors"));
        assert_eq!(errors, None, "{}", got.out);
        let requests = got.out.lines().find(|line| line.contains(" requests in "));
        let count: u64 = requests.unwrap().split_whitespace().next().unwrap().parse().unwrap();
        assert!(count > 10, "{}", got.out);
    }
    assert!(pair.attached(Side::Client, "wrk") > 100, "{}", pair.board(Side::Client).summary());
    let _ = std::fs::remove_dir_all(&place);
}

#[test]
fn redis() {
    let (server, client) = (need!("redis-server"), need!("redis-benchmark"));
    let Some(pair) = Pair::new() else { return };
    let address = pair.address();
    let mut command = pair.shunt(Side::Server, &server);
    let words = format!("--port 7000 --bind {address} --protected-mode no --appendonly no --save");
    command.args(words.split(' ')).arg("").stdout(Stdio::null());
    let _server = pair.listening(&mut command, 7000);
    let mut command = pair.shunt(Side::Client, &client);
    let words = format!("-h {address} -p 7000 -t set,get -c 50 -n 20000 -d 3000 --csv");
    let got = outcome(command.args(words.split(' ')), LIMIT);
    assert!(got.ok() && got.out.contains("\"GET\""), "{got:?}");
    let found = pair.attached(Side::Client, "redis-benchmark");
    assert!(found >= 50, "{}", pair.board(Side::Client).summary());
}

#[test]
fn iperf3() {
    let iperf = need!("iperf3");
    let Some(pair) = Pair::new() else { return };
    let address = pair.address();
    let mut command = pair.shunt(Side::Server, &iperf);
    command.args(["-s", "-B", &address, "-p", "5300"]).stdout(Stdio::null());
    let _server = pair.listening(&mut command, 5300);
    for way in [&[][..], &["-R"], &["-P", "4"]] {
        let got = iperf3_client(|| {
            let mut command = pair.shunt(Side::Client, &iperf);
            command.args(["-c", &address, "-p", "5300", "-t", "1", "-J"]).args(way);
            command
        });
        assert!(got.ok(), "{way:?}: {got:?}");
        let said: serde_json::Value = serde_json::from_str(&got.out).unwrap();
        assert!(said["end"]["sum_received"]["bytes"].as_f64().unwrap() > 1e6, "{way:?}");
    }
    assert!(pair.attached(Side::Client, "iperf3") > 0, "{}", pair.board(Side::Client).summary());
}

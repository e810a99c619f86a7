//! nginx, wrk, curl, haproxy, iperf3, sockperf.

use super::*;

mod killed;

const CONFIG: &str = "
user root; worker_processes 2; daemon off; pid nginx.pid; error_log error.log warn;
events { worker_connections 2048; }
http {
  access_log off; sendfile on; keepalive_requests 1000000;
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4;
  scgi_temp_path t5;
  UPSTREAM
  server { listen 127.0.0.1:PORT backlog=2048; root .; location / { } PROXY }
}
";

fn config(port: u16, upstream: Option<u16>) -> String {
    let (up, proxy) = upstream.map_or((String::new(), ""), |port| {
        (
            format!("upstream back {{ server 127.0.0.1:{port}; keepalive 16; }}"),
            "location /back/ { proxy_pass http://back/; proxy_http_version 1.1; \
             proxy_set_header Connection ''; }",
        )
    });
    CONFIG.replace("UPSTREAM", &up).replace("PROXY", proxy).replace("PORT", &port.to_string())
}

/// A prefix directory of nginx with a small and a large file.
fn site(name: &str, port: u16, upstream: Option<u16>) -> Place {
    let place = Place::new(name);
    place.file("nginx.conf", &config(port, upstream));
    place.file("small", &"x".repeat(1024));
    let stream = e2e::load::Stream::new(50);
    let mut large = Vec::new();
    while large.len() < 50 << 20 {
        large.extend_from_slice(stream.part(large.len() as u64, 1 << 20));
    }
    fs::write(place.path().join("large"), large).unwrap();
    place
}

fn nginx(program: &Path, place: &Place, port: u16, under: Under<'_>) -> Guest {
    let mut command = command(program, under);
    command.arg("-p").arg(place.path()).args(["-c", "nginx.conf", "-e", "error.log"]);
    serve(&mut command, place.path(), port)
}

/// Fetches a URL into a file; whether it is the same as `want`.
#[track_caller]
fn assert_fetched(url: &str, want: &Path, under: Under<'_>, dir: &BoardDir) {
    let Some(curl) = installed("curl") else {
        skipped("curl is not installed: nothing was fetched");
        return;
    };
    static FETCHED: AtomicU32 = AtomicU32::new(0);
    let n = FETCHED.fetch_add(1, Ordering::Relaxed);
    let to = std::env::temp_dir().join(format!("shunt-e2e-fetched-{}-{n}", std::process::id()));
    let mut command = command(curl, under);
    let got = outcome(command.args(["-sSf", "--max-time", "60", "-o"]).arg(&to).arg(url), LIMIT);
    assert_ok(url, &got, dir);
    let same = fs::read(&to).unwrap() == fs::read(want).unwrap();
    let _ = fs::remove_file(&to);
    assert!(same, "{url} is not what the server has");
}

fn wrk(program: &Path, url: &str, connections: u32, headers: &[&str], dir: &BoardDir) -> Outcome {
    let mut command = command(program, Under::Shunt(dir));
    // What takes longer than two seconds would be an error to it, and is a matter of the machine.
    command.args(["-t2", &format!("-c{connections}"), &format!("-d{}s", seconds())]);
    command.args(["--timeout", "60s"]);
    for header in headers {
        command.args(["-H", header]);
    }
    outcome(command.arg(url), LIMIT)
}

#[track_caller]
fn assert_no_errors(got: &Outcome, dir: &BoardDir) {
    assert_ok("wrk", got, dir);
    for word in ["Socket errors", "Non-2xx"] {
        assert!(!got.out.contains(word), "{}\non the board:\n{}", got.out, dir.summary());
    }
    assert!(!got.out.contains("\n  0 requests"), "{}", got.out);
}

#[test]
fn nginx_under_wrk() {
    let (nginx_path, wrk_path) = (need!("nginx"), need!("wrk"));
    let (dir, port) = (BoardDir::new(), free_port());
    let place = site("wrk", port, None);
    let _server = nginx(&nginx_path, &place, port, Under::Shunt(&dir));
    let url = format!("http://127.0.0.1:{port}/small");
    for connections in [2, 16, 200] {
        assert_no_errors(&wrk(&wrk_path, &url, connections, &[], &dir), &dir);
    }
    assert_no_errors(&wrk(&wrk_path, &url, 16, &["Connection: close"], &dir), &dir);
    assert_attached("nginx", &dir);
    // The same by a client that knows nothing of us.
    assert_fetched(&url, &place.path().join("small"), Under::Tcp, &dir);
}

/// A new configuration under load: no request fails.
#[test]
fn nginx_reload() {
    let (nginx_path, wrk_path) = (need!("nginx"), need!("wrk"));
    let (dir, port) = (BoardDir::new(), free_port());
    let place = site("reload", port, None);
    let server = nginx(&nginx_path, &place, port, Under::Shunt(&dir));
    let url = format!("http://127.0.0.1:{port}/small");
    let pid = server.pid();
    let hup = move |times: u64| {
        for _ in 0..times {
            thread::sleep(Duration::from_millis(seconds() * 800 / times));
            let _ = e2e::calls::kill(pid, libc::SIGHUP);
        }
    };
    // Workers end all the time, and what they sent last must still be there for clients that have
    // not looked yet.
    let reloading = thread::spawn(move || hup(seconds() * 8));
    let got = wrk(&wrk_path, &url, 16, &["Connection: close"], &dir);
    reloading.join().unwrap();
    assert_no_errors(&got, &dir);
    // With connections that stay open, a worker that leaves closes the idle ones, and a request
    // that is on its way then is lost: TCP's rules, too. Nothing else may fail.
    let reloading = thread::spawn(move || hup(3));
    let got = wrk(&wrk_path, &url, 16, &[], &dir);
    reloading.join().unwrap();
    assert_ok("wrk", &got, &dir);
    assert!(!got.out.contains("Non-2xx"), "{}", got.out);
    assert!(!got.out.contains("timeout") || got.out.contains("timeout 0"), "{}", got.out);
    assert_fetched(&url, &place.path().join("small"), Under::Shunt(&dir), &dir);
    assert_attached("nginx", &dir);
}

#[test]
fn nginx_large_file() {
    let nginx_path = need!("nginx");
    let (dir, port) = (BoardDir::new(), free_port());
    let place = site("large", port, None);
    let _server = nginx(&nginx_path, &place, port, Under::Shunt(&dir));
    let url = format!("http://127.0.0.1:{port}/large");
    let want = place.path().join("large");
    for _ in 0..3 {
        assert_fetched(&url, &want, Under::Shunt(&dir), &dir);
    }
    assert_fetched(&url, &want, Under::Tcp, &dir);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_fetched(&url, &want, Under::Shunt(&dir), &dir));
        }
    });
    // Before another process takes its place on the board.
    assert_attached("nginx", &dir);
    drop(_server);
    // A plain server and a client under Shunt.
    let _server = nginx(&nginx_path, &place, port, Under::Tcp);
    assert_fetched(&url, &want, Under::Shunt(&dir), &dir);
}

#[test]
fn nginx_worker_killed() {
    let (nginx_path, wrk_path) = (need!("nginx"), need!("wrk"));
    let (dir, port) = (BoardDir::new(), free_port());
    let place = site("killed", port, None);
    let server = nginx(&nginx_path, &place, port, Under::Shunt(&dir));
    let url = format!("http://127.0.0.1:{port}/small");
    let master = server.pid();
    let killing = thread::spawn(move || {
        let mut killed = 0;
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(seconds() * 250));
            let children = format!("/proc/{master}/task/{master}/children");
            let children = fs::read_to_string(children).unwrap();
            if let Some(worker) = children.split_whitespace().next() {
                let _ = e2e::calls::kill(worker.parse().unwrap(), libc::SIGKILL);
                killed += 1;
            }
        }
        killed
    });
    // wrk counts the resets and goes on; it must end by itself.
    let got = wrk(&wrk_path, &url, 32, &[], &dir);
    assert_eq!(killing.join().unwrap(), 3);
    assert_ok("wrk", &got, &dir);
    assert!(!got.out.contains("Non-2xx"), "{}", got.out);
    assert_no_errors(&wrk(&wrk_path, &url, 16, &[], &dir), &dir);
    assert_fetched(&url, &place.path().join("small"), Under::Shunt(&dir), &dir);
    // By the workers that came after.
    assert_attached("nginx", &dir);
}

#[test]
fn nginx_as_proxy() {
    let (nginx_path, wrk_path) = (need!("nginx"), need!("wrk"));
    let (dir, front, back) = (BoardDir::new(), free_port(), free_port());
    let (front_place, back_place) = (site("front", front, Some(back)), site("back", back, None));
    let _back = nginx(&nginx_path, &back_place, back, Under::Shunt(&dir));
    let _front = nginx(&nginx_path, &front_place, front, Under::Shunt(&dir));
    let url = format!("http://127.0.0.1:{front}/back");
    assert_no_errors(&wrk(&wrk_path, &format!("{url}/small"), 16, &[], &dir), &dir);
    let want = back_place.path().join("large");
    assert_fetched(&format!("{url}/large"), &want, Under::Shunt(&dir), &dir);
    assert_fetched(&format!("{url}/large"), &want, Under::Tcp, &dir);
    assert_attached("nginx", &dir);
}

#[test]
fn haproxy_between() {
    let (nginx_path, haproxy) = (need!("nginx"), need!("haproxy"));
    let wrk_path = need!("wrk");
    let (dir, back, tcp, http) = (BoardDir::new(), free_port(), free_port(), free_port());
    let place = site("haproxy", back, None);
    let _back = nginx(&nginx_path, &place, back, Under::Shunt(&dir));
    let text = format!(
        "global\n  nbthread 2\n  maxconn 1000\n\
         defaults\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
         listen tcp\n  bind 127.0.0.1:{tcp}\n  mode tcp\n  option splice-auto\n  server b 127.0.0.1:{back}\n\
         listen http\n  bind 127.0.0.1:{http}\n  mode http\n  option splice-auto\n  server b 127.0.0.1:{back}\n"
    );
    let file = place.file("haproxy.cfg", &text);
    let mut haproxy = command(haproxy, Under::Shunt(&dir));
    let _proxy = serve(haproxy.arg("-db").arg("-f").arg(&file), place.path(), http);
    for port in [tcp, http] {
        let url = format!("http://127.0.0.1:{port}");
        assert_no_errors(&wrk(&wrk_path, &format!("{url}/small"), 16, &[], &dir), &dir);
        let want = place.path().join("large");
        assert_fetched(&format!("{url}/large"), &want, Under::Shunt(&dir), &dir);
        assert_fetched(&format!("{url}/large"), &want, Under::Tcp, &dir);
    }
    assert_attached("haproxy", &dir);
}

#[test]
fn iperf3_both_directions() {
    let iperf = need!("iperf3");
    for words in [&[][..], &["-R"], &["-P", "4"], &["--bidir"], &["-Z"]] {
        let (dir, port) = (BoardDir::new(), free_port());
        let place = Place::new("iperf");
        let port_word = port.to_string();
        let mut server = command(&iperf, Under::Shunt(&dir));
        let _server = serve(server.args(["-s", "-p", &port_word]), place.path(), port);
        let got = iperf3_client(|| {
            let mut client = command(&iperf, Under::Shunt(&dir));
            client.args(["-c", "127.0.0.1", "-p", &port_word, "-l", "128K"]);
            client.args(["-t", &seconds().to_string()]).args(words);
            client
        });
        assert_ok(&format!("iperf3 {words:?}"), &got, &dir);
        assert!(got.out.contains("receiver"), "iperf3 {words:?}: {}", got.out);
        assert_attached("iperf3", &dir);
    }
}

#[test]
fn sockperf_ping_pong() {
    let sockperf = need!("sockperf");
    let (dir, port) = (BoardDir::new(), free_port().to_string());
    let place = Place::new("sockperf");
    let mut server = command(&sockperf, Under::Shunt(&dir));
    server.args(["server", "--tcp", "-i", "127.0.0.1", "-p", &port]);
    let _server = serve(&mut server, place.path(), port.parse().unwrap());
    // It has room for 600,000 round trips a second and ends with an error when there are more.
    for (kind, rate) in [("ping-pong", &["--mps", "500000"][..]), ("throughput", &[])] {
        let mut client = command(&sockperf, Under::Shunt(&dir));
        client.args([kind, "--tcp", "-i", "127.0.0.1", "-p", &port]).args(rate);
        let got = outcome(client.args(["-t", &seconds().to_string()]), LIMIT);
        assert_ok(kind, &got, &dir);
        assert!(got.out.contains("Test ended"), "{}", got.out);
    }
    assert_attached("sockperf", &dir);
}

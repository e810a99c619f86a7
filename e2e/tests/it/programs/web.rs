//! nginx, wrk, curl, haproxy, iperf3, sockperf.

use super::killed::{Scene, in_each_way};
use super::*;

mod killed;
mod upgraded;

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
    lay_out(&place, port, upstream);
    large_file(&place, 50 << 20);
    place
}

/// What nginx needs at a place, and a small file.
fn lay_out(place: &Place, port: u16, upstream: Option<u16>) {
    place.file("nginx.conf", &config(port, upstream));
    place.file("small", &"x".repeat(1024));
}

/// A file of at least so many bytes.
fn large_file(place: &Place, bytes: usize) -> PathBuf {
    let stream = e2e::load::Stream::new(50);
    let mut large = Vec::new();
    while large.len() < bytes {
        large.extend_from_slice(stream.part(large.len() as u64, 1 << 20));
    }
    let path = place.path().join("large");
    fs::write(&path, large).unwrap();
    path
}

/// A server of the files in the scene's place.
fn web_server(scene: &Scene<'_>, program: &Path, port: u16) -> Guest {
    lay_out(scene.place, port, None);
    started(scene.server(program), scene.place, port)
}

fn nginx(program: &Path, place: &Place, port: u16, under: Under<'_>) -> Guest {
    started(command(program, under), place, port)
}

/// nginx over what is at a place.
fn started(mut command: Command, place: &Place, port: u16) -> Guest {
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

/// The client's end of a scene for some seconds.
fn wrk(
    scene: &Scene<'_>,
    program: &Path,
    url: &str,
    connections: u32,
    headers: &[&str],
) -> Outcome {
    load_of(scene.client(program), scene.seconds(), url, connections, headers)
}

fn load_of(
    mut command: Command,
    seconds: u64,
    url: &str,
    connections: u32,
    headers: &[&str],
) -> Outcome {
    // What takes longer than two seconds would be an error to it, and is a matter of the machine.
    command.args(["-t2", &format!("-c{connections}"), &format!("-d{seconds}s")]);
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
    in_each_way("wrk", |scene| {
        let _server = web_server(scene, &nginx_path, scene.port);
        let url = scene.url("small");
        for connections in [2, 16, 200] {
            assert_no_errors(&wrk(scene, &wrk_path, &url, connections, &[]), scene.dir);
        }
        let close = ["Connection: close"];
        assert_no_errors(&wrk(scene, &wrk_path, &url, 16, &close), scene.dir);
        // The same by a client that knows nothing of us.
        assert_fetched(&url, &scene.place.path().join("small"), Under::Tcp, scene.dir);
    });
}

/// A new configuration under load: no request fails.
#[test]
fn nginx_reload() {
    let (nginx_path, wrk_path) = (need!("nginx"), need!("wrk"));
    in_each_way("nginx-reload", |scene| {
        let server = web_server(scene, &nginx_path, scene.port);
        let url = scene.url("small");
        let reloaded_meanwhile = |times: u64, headers: &[&str]| {
            thread::scope(|scope| {
                let load = scope.spawn(|| wrk(scene, &wrk_path, &url, 16, headers));
                for _ in 0..times {
                    thread::sleep(Duration::from_millis(scene.seconds() * 800 / times));
                    server.signal(libc::SIGHUP);
                }
                load.join().unwrap()
            })
        };
        // Workers end all the time, and what they sent last must still be there for clients that have
        // not looked yet.
        let got = reloaded_meanwhile(scene.seconds() * 8, &["Connection: close"]);
        assert_no_errors(&got, scene.dir);
        // With connections that stay open, a worker that leaves closes the idle ones, and a request
        // that is on its way then is lost: TCP's rules, too. Nothing else may fail.
        let got = reloaded_meanwhile(3, &[]);
        assert_ok("wrk", &got, scene.dir);
        assert!(!got.out.contains("Non-2xx"), "{}", got.out);
        assert!(!got.out.contains("timeout") || got.out.contains("timeout 0"), "{}", got.out);
        let small = scene.place.path().join("small");
        assert_fetched(&url, &small, scene.client_under(), scene.dir);
    });
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
    in_each_way("nginx-worker", |scene| {
        let server = web_server(scene, &nginx_path, scene.port);
        let url = scene.url("small");
        let master = server.pid();
        let kill_one = || {
            let children = format!("/proc/{master}/task/{master}/children");
            let children = fs::read_to_string(children).unwrap();
            let worker = children.split_whitespace().next().expect("a worker").to_owned();
            e2e::calls::kill(worker.parse().unwrap(), libc::SIGKILL).unwrap();
            eventually("its master has noticed", || !Path::new("/proc").join(&worker).exists());
        };
        let got = thread::scope(|scope| {
            let load = scope.spawn(|| wrk(scene, &wrk_path, &url, 32, &[]));
            for _ in 0..3 {
                thread::sleep(Duration::from_millis(scene.seconds() * 250));
                kill_one();
            }
            load.join().unwrap()
        });
        // wrk counts the resets and goes on; it must end by itself.
        assert_ok("wrk", &got, scene.dir);
        assert!(!got.out.contains("Non-2xx"), "{}", got.out);
        // By the workers that came after, one of which is on the board in the end.
        assert_no_errors(&wrk(scene, &wrk_path, &url, 16, &[]), scene.dir);
        let small = scene.place.path().join("small");
        assert_fetched(&url, &small, scene.client_under(), scene.dir);
    });
}

/// The proxy is the server of this scene, and all that speak to it are at the other end: wrk, whose server it is, and
/// the nginx behind, whose client it is.
#[test]
fn nginx_as_proxy() {
    let (nginx_path, wrk_path) = (need!("nginx"), need!("wrk"));
    in_each_way("front", |scene| {
        let back = free_port();
        let behind = site(&format!("back-{back}"), back, None);
        let _back = started(scene.client(&nginx_path), &behind, back);
        lay_out(scene.place, scene.port, Some(back));
        let _front = started(scene.server(&nginx_path), scene.place, scene.port);
        let (small, large) = (scene.url("back/small"), scene.url("back/large"));
        assert_no_errors(&wrk(scene, &wrk_path, &small, 16, &[]), scene.dir);
        let want = behind.path().join("large");
        assert_fetched(&large, &want, scene.client_under(), scene.dir);
        assert_fetched(&large, &want, Under::Tcp, scene.dir);
    });
}

/// The proxy is the server of this scene, as in [`nginx_as_proxy`].
#[test]
fn haproxy_between() {
    let (nginx_path, haproxy) = (need!("nginx"), need!("haproxy"));
    let wrk_path = need!("wrk");
    in_each_way("haproxy", |scene| {
        let (back, tcp, http) = (free_port(), scene.port, free_port());
        let behind = site(&format!("haproxy-{back}"), back, None);
        let _back = started(scene.client(&nginx_path), &behind, back);
        let text = format!(
            "global\n  nbthread 2\n  maxconn 1000\n\
             defaults\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
             listen tcp\n  bind 127.0.0.1:{tcp}\n  mode tcp\n  option splice-auto\n  server b 127.0.0.1:{back}\n\
             listen http\n  bind 127.0.0.1:{http}\n  mode http\n  option splice-auto\n  server b 127.0.0.1:{back}\n"
        );
        let file = scene.place.file("haproxy.cfg", &text);
        let mut haproxy = scene.server(&haproxy);
        let _proxy = serve(haproxy.arg("-db").arg("-f").arg(&file), scene.place.path(), http);
        let want = behind.path().join("large");
        for port in [tcp, http] {
            let url = format!("http://127.0.0.1:{port}");
            let wrk = scene.client(&wrk_path);
            let got = load_of(wrk, scene.seconds(), &format!("{url}/small"), 16, &[]);
            assert_no_errors(&got, scene.dir);
            assert_fetched(&format!("{url}/large"), &want, scene.client_under(), scene.dir);
            assert_fetched(&format!("{url}/large"), &want, Under::Tcp, scene.dir);
        }
        if scene.sides.both() {
            assert_attached("haproxy", scene.dir);
        }
    });
}

#[test]
fn iperf3_both_directions() {
    let iperf = need!("iperf3");
    for words in [&[][..], &["-R"], &["-P", "4"], &["--bidir"], &["-Z"]] {
        in_each_way("iperf", |scene| {
            let port = scene.port.to_string();
            let mut server = scene.server(&iperf);
            server.args(["-s", "-p", &port]);
            let _server = serve(&mut server, scene.place.path(), scene.port);
            let got = iperf3_client(|| {
                let mut client = scene.client(&iperf);
                client.args(["-c", "127.0.0.1", "-p", &port, "-l", "128K"]);
                client.args(["-t", &scene.seconds().to_string()]).args(words);
                client
            });
            let what = format!("iperf3 {words:?}, {:?}", scene.sides);
            assert_ok(&what, &got, scene.dir);
            assert!(got.out.contains("receiver"), "{what}: {}", got.out);
        });
    }
}

#[test]
fn sockperf_both_kinds() {
    let sockperf = need!("sockperf");
    // It has room for 600,000 round trips a second and ends with an error when there are more.
    for (kind, rate) in [("ping-pong", &["--mps", "500000"][..]), ("throughput", &[])] {
        in_each_way("sockperf", |scene| {
            let port = scene.port.to_string();
            let mut server = scene.server(&sockperf);
            server.args(["server", "--tcp", "-i", "127.0.0.1", "-p", &port]);
            let _server = serve(&mut server, scene.place.path(), scene.port);
            let mut client = scene.client(&sockperf);
            client.args([kind, "--tcp", "-i", "127.0.0.1", "-p", &port]).args(rate);
            let said = scene.must(client.args(["-t", &scene.seconds().to_string()]));
            assert!(said.contains("Test ended"), "{kind}, {:?}: {said}", scene.sides);
        });
    }
}

//! nginx, wrk, curl, haproxy, iperf3 and sockperf, killed.

use super::*;
use crate::programs::killed::{
    Bereft, Play, Scene, Sides, held, killed_on_each_side, killed_on_each_side_at_once, ways,
};

/// A load that ends when it is interrupted.
pub(super) fn endless_wrk(mut command: Command, url: &str) -> Command {
    command.args(["-t2", "-c16", "-d600s", "--timeout", "60s", url]);
    command
}

/// A second of load, without an error.
#[track_caller]
fn brief_wrk(mut command: Command, url: &str, dir: &BoardDir) {
    let got = outcome(command.args(["-t2", "-c16", "-d1s", "--timeout", "60s", url]), LIMIT);
    assert_no_errors(&got, dir);
}

#[test]
fn nginx_or_wrk() {
    let (nginx_path, wrk_path) = (need!("nginx"), need!("wrk"));
    killed_on_each_side(
        "nginx",
        &Play {
            server: |scene: &Scene<'_>| web_server(scene, &nginx_path, scene.port),
            load: |scene: &Scene<'_>| endless_wrk(scene.client(&wrk_path), &scene.url("small")),
            probe: |scene: &Scene<'_>| {
                brief_wrk(scene.client(&wrk_path), &scene.url("small"), scene.dir);
            },
            bereft: Bereft::ComesAgain,
        },
    );
}

/// In the midst of a file that is sent by `sendfile`.
#[test]
fn nginx_or_curl() {
    let (nginx_path, curl) = (need!("nginx"), need!("curl"));
    let large = |place: &Place| place.path().join("large");
    killed_on_each_side(
        "curl",
        &Play {
            server: |scene: &Scene<'_>| {
                let stream = e2e::load::Stream::new(51);
                fs::write(large(scene.place), stream.part(0, 1 << 20).repeat(30)).unwrap();
                web_server(scene, &nginx_path, scene.port)
            },
            load: |scene: &Scene<'_>| {
                let mut command = scene.client(&curl);
                command.args(["-sSf", "--limit-rate", "3M", "-o", "/dev/null"]);
                command.arg(scene.url("large"));
                command
            },
            probe: |scene: &Scene<'_>| {
                let want = large(scene.place);
                assert_fetched(&scene.url("large"), &want, scene.client_under(), scene.dir);
            },
            bereft: Bereft::Ends,
        },
    );
}

/// Workers that have lost their master go on.
#[test]
fn nginx_master_alone() {
    let (nginx_path, wrk_path) = (need!("nginx"), need!("wrk"));
    let (dir, port) = (BoardDir::new(), free_port());
    let place = Place::new("master");
    let scene = Scene { sides: Sides::BOTH, place: &place, dir: &dir, port };
    let server = web_server(&scene, &nginx_path, port);
    let mut load =
        scene.under_shared_load(&mut endless_wrk(scene.client(&wrk_path), &scene.url("small")));
    server.signal(libc::SIGKILL);
    brief_wrk(scene.client(&wrk_path), &scene.url("small"), &dir);
    load.signal(libc::SIGINT);
    assert!(load.wait(LIMIT).unwrap().success());
    let said = fs::read_to_string(place.path().join("load")).unwrap();
    assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
}

/// A proxy whose upstream is killed says so to its clients, and finds it again. The upstream is the server
/// of this scene, and the proxy its client.
#[test]
fn nginx_upstream() {
    let (nginx_path, curl) = (need!("nginx"), need!("curl"));
    let wrk_path = need!("wrk");
    for (n, sides) in ways() {
        let (dir, front) = (BoardDir::new(), free_port());
        let (back_place, place) =
            (Place::new(&format!("upstream-{n}")), Place::new(&format!("proxy-{n}")));
        let scene = Scene { sides, place: &back_place, dir: &dir, port: free_port() };
        let mut back = web_server(&scene, &nginx_path, scene.port);
        lay_out(&place, front, Some(scene.port));
        let mut proxy = scene.client(&nginx_path);
        proxy.arg("-p").arg(place.path()).args(["-c", "nginx.conf", "-e", "error.log"]);
        let _proxy = serve(&mut proxy, place.path(), front);
        let url = format!("http://127.0.0.1:{front}/back/small");
        let status = || {
            let mut curl = command(&curl, Under::Tcp);
            scene.must(curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", &url]))
        };
        let mut load =
            scene.under_shared_load(&mut endless_wrk(command(&wrk_path, Under::Tcp), &url));
        assert_eq!(status(), "200");
        scene.kill(&mut back);
        eventually(&format!("{sides:?}: nginx has noticed"), || status() == "502");
        back = web_server(&scene, &nginx_path, scene.port);
        assert_eq!(status(), "200", "{sides:?}");
        load.signal(libc::SIGINT);
        assert!(load.wait(LIMIT).unwrap().success());
        brief_wrk(command(&wrk_path, Under::Tcp), &url, &dir);
        assert!(back.ended().is_none());
    }
}

/// A proxy at `front` of what is at `back`; `more` goes to its command line.
fn proxy(mut command: Command, place: &Place, ports: (u16, u16), more: &[&str]) -> Guest {
    let (front, back) = ports;
    let text = format!(
        "global\n  nbthread 2\n  maxconn 1000\n  stats socket {}/ctl level admin expose-fd listeners\n\
         defaults\n  timeout connect 60s\n  timeout client 60s\n  timeout server 60s\n\
         listen http\n  bind 127.0.0.1:{front}\n  mode http\n  option splice-auto\n  server b 127.0.0.1:{back}\n",
        place.path().display()
    );
    let file = place.file("haproxy.cfg", &text);
    serve(command.arg("-db").arg("-f").arg(&file).args(more), place.path(), front)
}

#[test]
fn haproxy_or_wrk() {
    let (nginx_path, haproxy, wrk_path) = (need!("nginx"), need!("haproxy"), need!("wrk"));
    let (back_dir, back_place, back) = (BoardDir::new(), Place::new("behind"), free_port());
    let behind = Scene { sides: Sides::NEITHER, place: &back_place, dir: &back_dir, port: back };
    let _back = web_server(&behind, &nginx_path, back);
    killed_on_each_side(
        "haproxy",
        &Play {
            server: |scene: &Scene<'_>| {
                proxy(scene.server(&haproxy), scene.place, (scene.port, back), &[])
            },
            load: |scene: &Scene<'_>| endless_wrk(scene.client(&wrk_path), &scene.url("small")),
            probe: |scene: &Scene<'_>| {
                brief_wrk(scene.client(&wrk_path), &scene.url("small"), scene.dir);
            },
            bereft: Bereft::ComesAgain,
        },
    );
}

/// What haproxy forwards to is killed and comes again; then a new haproxy takes the listener over from the old
/// one under load.
#[test]
fn haproxy_backend_and_reload() {
    let (nginx_path, haproxy, wrk_path) = (need!("nginx"), need!("haproxy"), need!("wrk"));
    let curl = need!("curl");
    for (n, sides) in ways() {
        let (dir, front) = (BoardDir::new(), free_port());
        let (back_place, place) =
            (Place::new(&format!("backend-{n}")), Place::new(&format!("reload-{n}")));
        let scene = Scene { sides, place: &back_place, dir: &dir, port: free_port() };
        let mut back = web_server(&scene, &nginx_path, scene.port);
        let ports = (front, scene.port);
        let mut old = proxy(scene.client(&haproxy), &place, ports, &[]);
        let url = format!("http://127.0.0.1:{front}/small");
        let status = || {
            let mut curl = command(&curl, Under::Tcp);
            scene.must(curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", &url]))
        };
        let mut load =
            scene.under_shared_load(&mut endless_wrk(command(&wrk_path, Under::Tcp), &url));
        scene.kill(&mut back);
        // 502 to a request that was on its way.
        eventually(&format!("{sides:?}: haproxy has noticed"), || status() == "503");
        back = web_server(&scene, &nginx_path, scene.port);
        assert_eq!(status(), "200", "{sides:?}");
        let (ctl, pid) = (place.path().join("ctl"), old.pid().to_string());
        let more = ["-x", ctl.to_str().unwrap(), "-sf", &pid];
        let mut new = proxy(scene.client(&haproxy), &place, ports, &more);
        assert_eq!(status(), "200", "{sides:?}");
        // The old one ends when its last client has gone.
        load.signal(libc::SIGINT);
        assert!(load.wait(LIMIT).unwrap().success());
        let ended = old.wait(LIMIT).unwrap_or_else(|why| panic!("{sides:?}: {why}"));
        assert!(ended.success(), "{sides:?}: the old one: {ended}");
        brief_wrk(command(&wrk_path, Under::Tcp), &url, &dir);
        assert!(new.ended().is_none() && back.ended().is_none());
        eventually("wrk has gone", || held(front) == 0);
    }
}

#[test]
fn iperf3_killed() {
    let iperf = need!("iperf3");
    let client = |scene: &Scene<'_>, more: &[&str]| {
        let mut command = scene.client(&iperf);
        command.args(["-c", "127.0.0.1", "-p", &scene.port.to_string(), "-l", "128K"]).args(more);
        command
    };
    killed_on_each_side(
        "iperf3",
        &Play {
            server: |scene: &Scene<'_>| {
                let mut server = scene.server(&iperf);
                let server = serve(
                    server.args(["-s", "-p", &scene.port.to_string()]),
                    scene.place.path(),
                    scene.port,
                );
                eventually("iperf3 is rid of who looked whether it listens", || scene.held() == 0);
                server
            },
            load: |scene: &Scene<'_>| {
                // One at a time is served, and who comes too soon is sent away.
                eventually("the server has time", || {
                    outcome(&mut client(scene, &["-n", "1M"]), LIMIT).ok()
                });
                eventually("and has it again", || scene.held() == 0);
                client(scene, &["-t", "600"])
            },
            probe: |scene: &Scene<'_>| {
                for direction in [&[][..], &["-R"]] {
                    let words = [direction, &["-n", "50M"]].concat();
                    let mut got = String::new();
                    eventually("iperf3 has been served", || {
                        let outcome = outcome(&mut client(scene, &words), LIMIT);
                        got = format!("{}{}", outcome.out, outcome.err);
                        let busy = got.contains("the server is busy");
                        assert!(outcome.ok() || busy, "{:?}: {got}", scene.sides);
                        outcome.ok()
                    });
                    assert!(got.contains("receiver"), "{got}");
                }
            },
            bereft: Bereft::Ends,
        },
    );
}

#[test]
fn sockperf_killed() {
    let sockperf = need!("sockperf");
    let words = |scene: &Scene<'_>, seconds: &str| {
        let port = scene.port.to_string();
        ["ping-pong", "--tcp", "-i", "127.0.0.1", "-p", &port, "--mps", "2000", "-t", seconds]
            .map(str::to_owned)
    };
    killed_on_each_side_at_once(
        "sockperf",
        &Play {
            server: |scene: &Scene<'_>| {
                let mut server = scene.server(&sockperf);
                server.args(["server", "--tcp", "-i", "127.0.0.1", "-p", &scene.port.to_string()]);
                // Where the last one died, connections are in TIME_WAIT.
                server.arg("--uc-reuseaddr");
                serve(&mut server, scene.place.path(), scene.port)
            },
            load: |scene: &Scene<'_>| {
                let mut command = scene.client(&sockperf);
                command.args(words(scene, "60"));
                command
            },
            probe: |scene: &Scene<'_>| {
                let said = scene.must(scene.client(&sockperf).args(words(scene, "1")));
                assert!(said.contains("Test ended"), "{said}");
            },
            bereft: Bereft::EndsSomehow,
        },
    );
}

//! A new binary of nginx takes the listeners over under load, as its manual says: USR2, WINCH, QUIT.

use super::killed::endless_wrk;
use super::*;
use crate::programs::killed::{Sides, in_one_way};

/// nginx as a daemon, which alone heeds WINCH: a session of its own, that ends with this.
struct Daemon {
    session: i32,
}

impl Daemon {
    /// `env`: lines of the configuration that say which variables a new binary gets.
    #[track_caller]
    fn start(scene: &Scene<'_>, program: &Path, env: &str) -> Self {
        lay_out(scene.place, scene.port, None);
        let text = config(scene.port, None).replace("daemon off;", &format!("daemon on; {env}"));
        scene.place.file("nginx.conf", &text);
        let mut command = scene.server(program);
        command.arg("-p").arg(scene.place.path()).args(["-c", "nginx.conf", "-e", "error.log"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // With it goes what is in its process group, which the daemon leaves before it says who it is.
        let mut starter = Guest::start(&mut command);
        let started = starter.wait(LIMIT).unwrap();
        assert!(started.success(), "{:?}: {started}", scene.sides);
        let mut session = None;
        eventually("it has said who it is", || {
            session = master(scene, "nginx.pid");
            session.is_some()
        });
        let this = Self { session: session.unwrap() };
        eventually("it has workers", || children(this.session).len() == 2);
        this
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = e2e::calls::kill(-self.session, libc::SIGKILL);
    }
}

/// The process that wrote this file.
fn master(scene: &Scene<'_>, file: &str) -> Option<i32> {
    fs::read_to_string(scene.place.path().join(file)).ok()?.trim().parse().ok()
}

/// Children that have not ended.
fn children(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().filter_map(|p| p.parse().ok()).filter(|p| lives(*p)).collect()
}

fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// A new binary, and the old one away.
#[track_caller]
fn upgrade(scene: &Scene<'_>, old: i32) {
    let tell = |signal| e2e::calls::kill(old, signal).unwrap();
    tell(libc::SIGUSR2);
    let mut new = None;
    eventually(&format!("{:?}: a new binary has workers", scene.sides), || {
        new = master(scene, "nginx.pid").filter(|pid| *pid != old);
        new.is_some_and(|new| children(new).len() == 2)
    });
    tell(libc::SIGWINCH);
    // The new one is a child of the old one.
    eventually(&format!("{:?}: the old workers are done", scene.sides), || {
        children(old) == new.into_iter().collect::<Vec<_>>()
    });
    tell(libc::SIGQUIT);
    eventually(&format!("{:?}: the old binary has ended", scene.sides), || !lives(old));
}

#[track_caller]
fn upgraded_under_load(scene: &Scene<'_>, (nginx, wrk): (&Path, &Path), env: &str) {
    let daemon = Daemon::start(scene, nginx, env);
    let mut load = endless_wrk(scene.client(wrk), &scene.url("small"));
    let mut load = scene.under_shared_load(load.args(["-H", "Connection: close"]));
    upgrade(scene, daemon.session);
    // By the new one, which alone is there.
    let small = scene.place.path().join("small");
    assert_fetched(&scene.url("small"), &small, scene.client_under(), scene.dir);
    // Not before: a client may see a moment later that one of the old ones had taken its offer.
    let attached = scene.dir.attached();
    assert_no_errors(&wrk_for(scene, wrk, 1), scene.dir);
    load.signal(libc::SIGINT);
    assert!(load.wait(LIMIT).unwrap().success());
    let said = scene.load_said();
    assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
    let goes_on = scene.dir.attached() > attached;
    let is_carried = scene.sides.both() && !env.is_empty() && !plain_only();
    assert_eq!(goes_on, is_carried, "{:?}, {env:?}:\n{}", scene.sides, scene.dir.summary());
}

fn wrk_for(scene: &Scene<'_>, program: &Path, seconds: u64) -> Outcome {
    load_of(scene.client(program), seconds, &scene.url("small"), 16, &[])
}

/// No request fails.
#[test]
fn nginx_upgraded() {
    let programs = (need!("nginx"), need!("wrk"));
    in_each_way("upgraded", |scene| {
        let programs = (programs.0.as_path(), programs.1.as_path());
        upgraded_under_load(scene, programs, "env LD_PRELOAD; env SHUNT_DIR;");
    });
}

/// nginx gives its new binary no variable that its configuration does not name, and so no library: it goes on by TCP.
#[test]
fn nginx_upgraded_without_its_environment() {
    let programs = (need!("nginx"), need!("wrk"));
    in_one_way("bare-upgrade", (0, Sides::BOTH), |scene| {
        let programs = (programs.0.as_path(), programs.1.as_path());
        upgraded_under_load(scene, programs, "");
    });
}

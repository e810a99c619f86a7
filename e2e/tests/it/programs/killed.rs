//! Either end is killed under load, with Shunt at both ends, at one of them, and at neither.
//!
//! What must come of it is what comes of it on TCP, which is why the last way is among them: whoever is left
//! hears of it and is rid of the connection, nothing hangs, and a connection that is made afterwards works.

use super::*;

/// Which ends run under Shunt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides {
    pub(super) server: bool,
    pub(super) client: bool,
}

const SIDES: [Sides; 4] = [
    Sides::BOTH,
    Sides { server: true, client: false },
    Sides { server: false, client: true },
    Sides::NEITHER,
];

/// The ways to play it: both ends, each alone, neither.
///
/// The watchdog watches what is in shared memory, so with its build only the first is played.
pub(super) fn ways() -> impl Iterator<Item = (usize, Sides)> {
    let one_does = e2e::quick() || std::env::var_os("SHUNT_WATCHDOG").is_some();
    SIDES.into_iter().take(if one_does { 1 } else { SIDES.len() }).enumerate()
}

/// Plays something in each way. Both ends under Shunt must use shared memory, and nobody else.
#[track_caller]
pub(super) fn in_each_way(name: &str, play: impl Fn(&Scene<'_>)) {
    for way in ways() {
        in_one_way(name, way, &play);
    }
}

/// The same in one way, at a place and with a board of its own.
#[track_caller]
pub(super) fn in_one_way(name: &str, (n, sides): (usize, Sides), play: impl Fn(&Scene<'_>)) {
    let (place, dir) = (Place::new(&format!("{name}-{n}")), BoardDir::new());
    play(&Scene { sides, place: &place, dir: &dir, port: free_port() });
    assert_shared(&dir, sides);
}

/// Both ends under Shunt use shared memory, and nobody else.
#[track_caller]
pub(super) fn assert_shared(dir: &BoardDir, sides: Sides) {
    let attached = dir.attached();
    let expected = attached > 0 || plain_only();
    assert!(expected == sides.both() || plain_only(), "{sides:?}: {attached}\n{}", dir.summary());
}

impl Sides {
    pub(super) const BOTH: Self = Self { server: true, client: true };
    pub(super) const NEITHER: Self = Self { server: false, client: false };

    pub(super) const fn both(self) -> bool {
        self.server && self.client
    }
}

/// So often must a load have been served from beginning to end after each change.
const SERVED: usize = 12;

/// Where a server and its clients meet.
pub(super) struct Scene<'a> {
    pub(super) sides: Sides,
    pub(super) place: &'a Place,
    pub(super) dir: &'a BoardDir,
    pub(super) port: u16,
}

impl Scene<'_> {
    const fn under(&self, shunt: bool) -> Under<'_> {
        if shunt { Under::Shunt(self.dir) } else { Under::Tcp }
    }

    /// A command for the server's end.
    pub(super) fn server(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        command(program, self.under(self.sides.server))
    }

    /// Where the client's end runs.
    pub(super) const fn client_under(&self) -> Under<'_> {
        self.under(self.sides.client)
    }

    /// A command for the client's end.
    pub(super) fn client(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        command(program, self.client_under())
    }

    /// How long a load lasts: longest where there is most to see.
    pub(super) fn seconds(&self) -> u64 {
        if self.sides.both() { seconds() } else { 1 }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// Ends of connections at the server's port that some process holds and TCP has not seen it close.
    pub(super) fn held(&self) -> usize {
        held(self.port)
    }

    /// Starts a client that ends by nothing but us or a mishap, and waits until it is being served.
    #[track_caller]
    pub(super) fn under_load(&self, command: &mut Command) -> Guest {
        let said = fs::File::create(self.place.path().join("load")).unwrap();
        command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
        let mut load = Guest::start(command);
        eventually(&format!("{:?}: the load is being served", self.sides), || {
            assert!(load.ended().is_none(), "the load ended: {}", self.load_said());
            self.held() > 0
        });
        load
    }

    /// The same, and waits until it uses shared memory if both ends are under Shunt.
    #[track_caller]
    pub(super) fn under_shared_load(&self, command: &mut Command) -> Guest {
        let attached = self.dir.attached();
        let mut load = self.under_load(command);
        eventually(&format!("{:?}: the load uses shared memory", self.sides), || {
            assert!(load.ended().is_none(), "the load ended: {}", self.load_said());
            !self.sides.both() || plain_only() || self.dir.attached() > attached
        });
        load
    }

    /// Kills a server and what it has started, and waits until nothing is left of it.
    #[track_caller]
    pub(super) fn kill(&self, server: &mut Guest) {
        server.kill_all();
        eventually("the dead hold nothing", || self.held() == 0 && !is_listened_at(self.port));
    }

    /// What the load has said up to now.
    pub(super) fn load_said(&self) -> String {
        fs::read_to_string(self.place.path().join("load")).unwrap_or_default()
    }

    /// Waits until the load, which says `served` each time, has been served for a while from now on.
    #[track_caller]
    pub(super) fn goes_on(&self, load: &mut Guest) {
        let served = || self.load_said().lines().filter(|line| *line == "served").count();
        let before = served();
        eventually(&format!("{:?}: clients are served", self.sides), || {
            assert!(
                load.ended().is_none(),
                "{:?}: the load ended: {}",
                self.sides,
                self.load_said()
            );
            served() >= before + SERVED
        });
    }

    /// Has the load end, well.
    #[track_caller]
    pub(super) fn ends_well(&self, load: &mut Guest) {
        load.signal(libc::SIGTERM);
        let ended = load.wait(LIMIT).unwrap_or_else(|why| panic!("{:?}: {why}", self.sides));
        assert!(ended.success(), "{:?}: {}", self.sides, self.load_said());
    }

    /// Runs a client to its good end.
    #[track_caller]
    pub(super) fn must(&self, command: &mut Command) -> String {
        let got = outcome(command, LIMIT);
        assert_ok(&format!("{:?}", self.sides), &got, self.dir);
        got.out
    }
}

/// Ends of connections at a port that some process holds and TCP has not seen it close.
pub(super) fn held(port: u16) -> usize {
    const ESTABLISHED: &str = "01";
    const CLOSE_WAIT: &str = "08";
    sockets(port, &[ESTABLISHED, CLOSE_WAIT])
}

/// Whether a process listens at a port, and be it one that is dying.
pub(super) fn is_listened_at(port: u16) -> bool {
    const LISTEN: &str = "0A";
    sockets(port, &[LISTEN]) > 0
}

/// Sockets of processes at a local port, in one of these states.
fn sockets(port: u16, states: &[&str]) -> usize {
    let mut found = 0;
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let at_port = fields[1].ends_with(&format!(":{port:04X}"));
            // Without an inode it waits to be accepted, or nobody has it any more.
            found += usize::from(at_port && states.contains(&fields[3]) && fields[9] != "0");
        }
    }
    found
}

/// A server, a client that makes load without end, and one that works a little and ends well.
pub(super) struct Play<S, L, P> {
    /// Starts the server, and again at the same port.
    pub(super) server: S,
    pub(super) load: L,
    pub(super) probe: P,
    /// What the load does when its server has been killed.
    pub(super) bereft: Bereft,
}

/// What a client does whose server was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bereft {
    /// Ends by itself, and not well.
    Ends,
    /// Ends by itself; some programs find nothing wrong with it.
    EndsSomehow,
    /// What it does is its own affair, and it is killed: redis-benchmark of Debian 12 may write to a socket that was
    /// reset for ever, in a loop, on kernel TCP as well.
    Unfit,
    /// Connects again until somebody is there; ends when it is interrupted.
    ComesAgain,
}

/// Plays it in each of [`SIDES`].
#[track_caller]
pub(super) fn killed_on_each_side<S, L, P>(name: &str, play: &Play<S, L, P>)
where
    S: Fn(&Scene<'_>) -> Guest,
    L: Fn(&Scene<'_>) -> Command,
    P: Fn(&Scene<'_>),
{
    for way in ways() {
        killed_in_one_way(name, way, play);
    }
}

/// The same in all ways at once: for programs that mostly sleep.
pub(super) fn killed_on_each_side_at_once<S, L, P>(name: &str, play: &Play<S, L, P>)
where
    S: Fn(&Scene<'_>) -> Guest + Sync,
    L: Fn(&Scene<'_>) -> Command + Sync,
    P: Fn(&Scene<'_>) + Sync,
{
    thread::scope(|scope| {
        for way in ways() {
            scope.spawn(move || killed_in_one_way(name, way, play));
        }
    });
}

#[track_caller]
fn killed_in_one_way<S, L, P>(name: &str, (n, sides): (usize, Sides), play: &Play<S, L, P>)
where
    S: Fn(&Scene<'_>) -> Guest,
    L: Fn(&Scene<'_>) -> Command,
    P: Fn(&Scene<'_>),
{
    let (place, dir) = (Place::new(&format!("killed-{name}-{n}")), BoardDir::new());
    let scene = Scene { sides, place: &place, dir: &dir, port: free_port() };
    drop(killed(&scene, play));
    let attached = dir.attached();
    let stays = sides.both() || attached == 0;
    assert!(stays, "{sides:?}: {attached} attached:\n{}", dir.summary());
}

/// The client is killed, then the server; a new client works after each. The last server.
#[track_caller]
pub(super) fn killed<S, L, P>(scene: &Scene<'_>, play: &Play<S, L, P>) -> Guest
where
    S: Fn(&Scene<'_>) -> Guest,
    L: Fn(&Scene<'_>) -> Command,
    P: Fn(&Scene<'_>),
{
    let sides = scene.sides;
    let mut server = (play.server)(scene);
    let mut load = scene.under_shared_load(&mut (play.load)(scene));
    load.kill_all();
    eventually(&format!("{sides:?}: the server is rid of a client that was killed"), || {
        assert!(server.ended().is_none(), "the server ended with its client: {:?}", server.ended());
        scene.held() == 0
    });
    (play.probe)(scene);

    let mut load = scene.under_shared_load(&mut (play.load)(scene));
    scene.kill(&mut server);
    if play.bereft == Bereft::ComesAgain {
        server = (play.server)(scene);
        eventually(&format!("{sides:?}: the load has come again"), || scene.held() > 0);
        load.signal(libc::SIGINT);
    }
    if play.bereft == Bereft::Unfit {
        load.kill_all();
    }
    let ended = load.wait(LIMIT).unwrap_or_else(|why| panic!("{sides:?}: {why}"));
    if play.bereft == Bereft::Ends {
        assert!(!ended.success(), "{sides:?}: it did not notice: {}", scene.load_said());
    }
    if play.bereft != Bereft::ComesAgain {
        server = (play.server)(scene);
    }
    (play.probe)(scene);
    assert!(server.ended().is_none(), "{sides:?}: the server ended: {:?}", server.ended());
    server
}

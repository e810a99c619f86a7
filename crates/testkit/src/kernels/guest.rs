//! A machine on the bridge: a kernel that runs commands for us.
//!
//! The commands come by a virtual serial port, not by the network, so that a cable can be pulled and a
//! capture holds nothing of ours.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::architecture::Architecture;
use super::ending::{Bounded, Directory};
use super::frame::{Frame, Job};
use super::network::{Network, PREFIX};
use super::state::{Connection, State};

/// Of a small machine.
const SMALL_MIB: u32 = 256;
/// Of each node of a larger one.
const NODE_MIB: u32 = 512;
const NODE_CPUS: u32 = 2;
/// The number of the bus that node 0 has for itself, and how far the next node's is from it.
const NODE_BUS: u32 = 64;
const BUS_STEP: u32 = 16;
/// An emulated machine on a busy host: beside a dozen compilers half a minute, at the lowest priority minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(400);
const COMMAND_LIMIT: Duration = Duration::from_secs(90);
/// For QEMU itself to begin.
const START_LIMIT: Duration = Duration::from_secs(90);
/// No offloads: packets look as they would on a wire.
const PLAIN: &str = "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,\
                     guest_ecn=off,host_tso4=off,host_tso6=off,host_ufo=off,host_ecn=off";
const APPEND: &str = "quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on nowatchdog";
const APPEND_PC: &str = "console=ttyS0 tsc=reliable no_timer_check";
const APPEND_ARM: &str = "console=ttyAMA0";
/// By this name a guest finds the folder that it shares with the host.
pub const FOLDER: &str = "folder";

/// What guests boot.
#[derive(Clone, Debug)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The file that [`super::image::make`] made.
    pub initramfs: PathBuf,
    /// Whose programs both hold.
    pub architecture: Architecture,
}

/// How a guest differs from others.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its name, at most 8 letters.
    pub name: String,
    /// Its addresses, one for each network card.
    pub addresses: Vec<Ipv4Addr>,
    /// What it is made of.
    pub size: Size,
    /// A folder of the host's, which it has at the same place, to read.
    pub folder: Option<PathBuf>,
    /// The longest that it may live.
    pub limit: Duration,
}

impl Shape {
    /// A CPU and 256 MiB, and no folder.
    #[must_use]
    pub fn small(name: &str, addresses: Vec<Ipv4Addr>, limit: Duration) -> Self {
        let size = Size::One { cpus: 1, memory_mib: SMALL_MIB };
        Self { name: name.to_owned(), addresses, size, folder: None, limit }
    }
}

/// CPUs and memory of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// All in one.
    One {
        /// How many CPUs, 1 to 64.
        cpus: u32,
        /// How much memory, in MiB.
        memory_mib: u32,
    },
    /// So many NUMA nodes, 2 to 8, of two CPUs and 512 MiB each, in order, and a bus each, on which the network cards are
    /// in turn.
    Nodes(u32),
}

/// A command's outputs, both together, and its exit code (128 and the signal if one ended it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// What it wrote, by the order in which it came.
    pub text: String,
    /// How it ended.
    pub status: i32,
}

#[derive(Debug, Default)]
struct Progress {
    text: Vec<u8>,
    status: Option<i32>,
}

#[derive(Debug, Default)]
struct Board {
    release: Option<String>,
    jobs: HashMap<Job, Progress>,
    /// Why there will be no more frames.
    gone: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    board: Mutex<Board>,
    news: Condvar,
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the board says something, at most so long.
    fn wait<T>(&self, limit: Duration, mut said: impl FnMut(&mut Board) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut board = self.board();
        loop {
            if let Some(answer) = said(&mut board) {
                return Some(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let (next, _) =
                self.news.wait_timeout(board, left).unwrap_or_else(PoisonError::into_inner);
            board = next;
        }
    }
}

/// A running machine. It is switched off when this is dropped.
#[derive(Debug)]
pub struct Guest {
    shape: Shape,
    shared: Arc<Shared>,
    channel: Mutex<UnixStream>,
    next_job: Mutex<Job>,
    directory: Directory,
    machine: Mutex<Bounded>,
}

/// A command that runs in a guest. It is killed when this is dropped.
#[derive(Debug)]
pub struct Running<'a> {
    guest: &'a Guest,
    job: Job,
    command: String,
}

impl Guest {
    /// Switches a machine on and waits until it runs commands.
    ///
    /// # Errors
    ///
    /// What stands in the way, with the last words of its console.
    pub fn boot(network: &Network, image: &Image, shape: Shape) -> anyhow::Result<Self> {
        let guest = Self::switch_on(network, image, shape)?;
        guest.wait_ready()?;
        Ok(guest)
    }

    /// Switches a machine on; [`Self::wait_ready`] waits for it. So several boot at once.
    ///
    /// # Errors
    ///
    /// Why QEMU does not start.
    pub fn switch_on(network: &Network, image: &Image, shape: Shape) -> anyhow::Result<Self> {
        let directory = Directory::new().context("a directory for a guest")?;
        let listener = UnixListener::bind(directory.path().join("channel"))?;
        let ports = (0..shape.addresses.len()).map(|card| port(&shape.name, card));
        for port in ports {
            network.add_port(&port)?;
        }
        let mut command = machine(network, image, &shape, directory.path());
        let log = fs::File::create(directory.path().join("qemu"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut machine = Bounded::start(&mut command, shape.limit).context("cannot start QEMU")?;
        let channel = accept(&listener, &mut machine)
            .with_context(|| words_of(&directory.path().join("qemu")))?;
        let shared = Arc::new(Shared::default());
        let (from, to) = (channel.try_clone()?, Arc::clone(&shared));
        thread::spawn(move || listen(from, &to));
        Ok(Self {
            shape,
            shared,
            channel: Mutex::new(channel),
            next_job: Mutex::new(0),
            directory,
            machine: Mutex::new(machine),
        })
    }

    /// Waits until the guest runs commands; answers its kernel's release.
    ///
    /// # Errors
    ///
    /// If it does not, the last words of its console.
    pub fn wait_ready(&self) -> anyhow::Result<String> {
        let release = self.shared.wait(BOOT_LIMIT, |board| match (&board.release, &board.gone) {
            (Some(release), _) => Some(Ok(release.clone())),
            (None, Some(why)) => Some(Err(why.clone())),
            (None, None) => None,
        });
        match release {
            Some(Ok(release)) => Ok(release),
            Some(Err(why)) => {
                // What is wrong with the machine itself is said by QEMU.
                let qemu = words_of(&self.directory.path().join("qemu"));
                bail!("{}: {why}; console: {}; QEMU: {qemu}", self.shape.name, self.console())
            }
            None => bail!("{} does not boot; console: {}", self.shape.name, self.console()),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shape.name
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.shape.addresses.first().copied().unwrap_or(Ipv4Addr::UNSPECIFIED)
    }

    /// The bridge's port of its network card, counted from 0.
    #[must_use]
    pub fn port(&self, card: usize) -> String {
        port(&self.shape.name, card)
    }

    /// The end of what its kernel wrote to the console.
    #[must_use]
    pub fn console(&self) -> String {
        words_of(&self.directory.path().join("console"))
    }

    /// Runs a command by the guest's shell.
    ///
    /// # Errors
    ///
    /// If it takes longer than a minute and a half, or the guest is gone.
    pub fn run(&self, command: &str) -> anyhow::Result<Output> {
        self.run_for(command, COMMAND_LIMIT)
    }

    /// The same, with a limit of one's own.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn run_for(&self, command: &str, limit: Duration) -> anyhow::Result<Output> {
        self.spawn(command)?.wait(limit)
    }

    /// Runs a command that has to succeed; answers what it wrote.
    ///
    /// # Errors
    ///
    /// If it does not, what it wrote.
    pub fn check(&self, command: &str) -> anyhow::Result<String> {
        let Output { text, status } = self.run(command)?;
        ensure!(status == 0, "{}: `{command}` ended with {status}: {text}", self.name());
        Ok(text)
    }

    /// Starts a command.
    ///
    /// # Errors
    ///
    /// If the guest is gone.
    pub fn spawn(&self, command: &str) -> anyhow::Result<Running<'_>> {
        let mut next = self.next_job.lock().unwrap_or_else(PoisonError::into_inner);
        let job = *next;
        *next += 1;
        drop(next);
        self.shared.board().jobs.insert(job, Progress::default());
        self.tell(&Frame::Start(job, command.to_owned()))?;
        Ok(Running { guest: self, job, command: command.to_owned() })
    }

    /// Its SMC sockets, link groups and links.
    ///
    /// # Errors
    ///
    /// What `smcpeer state` says.
    pub fn smc_state(&self) -> anyhow::Result<State> {
        State::parse(&self.check("smcpeer state")?).map_err(anyhow::Error::msg)
    }

    /// Its SMC sockets that do not just listen.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn smc_connections(&self) -> anyhow::Result<Vec<Connection>> {
        let mut connections = self.smc_state()?.connections;
        connections.retain(|c| c.state != "LISTEN");
        Ok(connections)
    }

    /// Whether it still answers, as far as we know.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.shared.board().gone.is_none()
    }

    /// Takes the machine away, as a failure of power does.
    pub fn kill(&self) {
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.signal(libc::SIGKILL);
    }

    fn tell(&self, frame: &Frame) -> anyhow::Result<()> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        frame.write(&mut *channel).with_context(|| {
            format!("{} does not listen; console: {}", self.shape.name, self.console())
        })
    }
}

impl Running<'_> {
    /// What it wrote up to now.
    #[must_use]
    pub fn text(&self) -> String {
        let board = self.guest.shared.board();
        let text = board.jobs.get(&self.job).map(|p| String::from_utf8_lossy(&p.text).into_owned());
        text.unwrap_or_default()
    }

    /// Whether it has ended, or will never be heard of again.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let board = self.guest.shared.board();
        let ended = board.jobs.get(&self.job).is_none_or(|progress| progress.status.is_some());
        ended || board.gone.is_some()
    }

    /// Waits until it has written this.
    ///
    /// # Errors
    ///
    /// If it ends before, or takes too long.
    pub fn wait_for(&self, what: &str, limit: Duration) -> anyhow::Result<()> {
        let came = self.guest.shared.wait(limit, |board| {
            let progress = board.jobs.get(&self.job)?;
            let came = String::from_utf8_lossy(&progress.text).contains(what);
            (came || progress.status.is_some() || board.gone.is_some()).then_some(came)
        });
        let (name, command) = (self.guest.name(), &self.command);
        ensure!(came == Some(true), "{name}: `{command}` did not say {what:?}: {}", self.text());
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// If it takes longer than `limit`, or the guest is gone; with what it wrote.
    pub fn wait(&self, limit: Duration) -> anyhow::Result<Output> {
        let ended = self.guest.shared.wait(limit, |board| {
            let status = board.jobs.get(&self.job)?.status;
            status.map(Ok).or_else(|| board.gone.clone().map(Err))
        });
        let (name, command) = (self.guest.name(), &self.command);
        match ended {
            Some(Ok(status)) => Ok(Output { text: self.text(), status }),
            Some(Err(why)) => bail!("{name}: `{command}`: {why}: {}", self.text()),
            None => bail!("{name}: `{command}` takes more than {limit:?}: {}", self.text()),
        }
    }

    /// Sends a signal to all of its processes.
    ///
    /// # Errors
    ///
    /// If the guest is gone.
    pub fn signal(&self, signal: i32) -> anyhow::Result<()> {
        self.guest.tell(&Frame::Signal(self.job, signal))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let progress = self.guest.shared.board().jobs.remove(&self.job);
        if progress.is_some_and(|p| p.status.is_none()) {
            let _ = self.signal(libc::SIGKILL);
        }
    }
}

fn port(guest: &str, card: usize) -> String {
    format!("{guest}-{card}")
}

fn machine(network: &Network, image: &Image, shape: &Shape, directory: &Path) -> Command {
    let mut command = network.command(image.architecture.emulator());
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    // Servers with Arm's CPUs have atomic instructions (LSE) at least since that one.
    let (kind, append) = match image.architecture {
        Architecture::X86_64 => (["-M", "q35", "-cpu", "max"], APPEND_PC),
        Architecture::Aarch64 => (["-M", "virt,gic-version=3", "-cpu", "neoverse-n1"], APPEND_ARM),
    };
    command.args(kind).args(["-accel", "tcg"]);
    command.args(parts(shape.size));
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
    let at = directory.display();
    command.args(["-serial", &format!("file:{at}/console"), "-device"]);
    // Named, since QEMU takes the bus of a node where there are some, and that one takes bridges only.
    command.args(["virtio-rng-pci,bus=pcie.0", "-device", "virtio-serial-pci,bus=pcie.0"]);
    command.arg("-chardev");
    command.arg(format!("socket,id=channel,path={at}/channel"));
    command.args(["-device", "virtserialport,chardev=channel"]);
    let mut append = format!("{APPEND} {append} name={}", shape.name);
    if let Some(folder) = &shape.folder {
        let at = folder.display();
        let model = "security_model=none,readonly=on,multidevs=remap";
        command.args(["-fsdev", &format!("local,id={FOLDER},path={at},{model}"), "-device"]);
        command.arg(format!("virtio-9p-pci,fsdev={FOLDER},mount_tag={FOLDER},bus=pcie.0"));
        append += &format!(" {FOLDER}={at}");
    }
    for (card, address) in shape.addresses.iter().enumerate() {
        let [_, _, c, d] = address.octets();
        let port = port(&shape.name, card);
        command.arg("-netdev");
        command.arg(format!("tap,id=n{card},ifname={port},script=no,downscript=no"));
        command.arg("-device");
        let mac = format!("52:54:00:99:{c:02x}:{d:02x}");
        let bus = match shape.size {
            Size::One { .. } => String::new(),
            Size::Nodes(nodes) => format!(",bus=port{}", card % nodes as usize),
        };
        command.arg(format!("virtio-net-pci,netdev=n{card},mac={mac},romfile=,{PLAIN}{bus}"));
        append += &format!(" address={address}/{PREFIX}");
    }
    command.arg("-append").arg(append);
    command
}

/// CPUs, memory and buses of a machine.
fn parts(size: Size) -> Vec<String> {
    let count = match size {
        Size::One { cpus, memory_mib } => {
            return ["-smp", &cpus.to_string(), "-m", &memory_mib.to_string()]
                .map(str::to_owned)
                .to_vec();
        }
        Size::Nodes(count) => count,
    };
    let (cpus, memory) = (count * NODE_CPUS, count * NODE_MIB);
    let mut words = vec!["-smp".to_owned(), cpus.to_string(), "-m".to_owned(), memory.to_string()];
    for node in 0..count {
        let (first, last) = (node * NODE_CPUS, (node + 1) * NODE_CPUS - 1);
        let bus = NODE_BUS + node * BUS_STEP;
        words.extend([
            "-object".to_owned(),
            format!("memory-backend-ram,id=memory{node},size={NODE_MIB}M"),
            "-numa".to_owned(),
            format!("node,nodeid={node},cpus={first}-{last},memdev=memory{node}"),
            "-device".to_owned(),
            format!("pxb-pcie,id=bus{node},bus=pcie.0,bus_nr={bus},numa_node={node}"),
            "-device".to_owned(),
            format!("pcie-root-port,id=port{node},bus=bus{node},chassis={}", node + 1),
        ]);
    }
    words
}

/// Waits until QEMU opens the channel.
fn accept(listener: &UnixListener, machine: &mut Bounded) -> anyhow::Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match listener.accept() {
            Ok((channel, _)) => {
                channel.set_nonblocking(false)?;
                return Ok(channel);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.into()),
        }
        if let Some(status) = machine.ended() {
            bail!("QEMU ended with {status}");
        }
        ensure!(Instant::now() < deadline, "QEMU does not open its channel");
        thread::sleep(Duration::from_millis(10));
    }
}

fn listen(mut from: impl Read, shared: &Shared) {
    loop {
        let frame = Frame::read(&mut from);
        let mut board = shared.board();
        match frame {
            Ok(Frame::Ready(release)) => board.release = Some(release),
            Ok(Frame::Output(job, bytes)) => {
                if let Some(progress) = board.jobs.get_mut(&job) {
                    progress.text.extend(bytes);
                }
            }
            Ok(Frame::Ended(job, status)) => {
                if let Some(progress) = board.jobs.get_mut(&job) {
                    progress.status = Some(status);
                }
            }
            Ok(Frame::Start(..) | Frame::Signal(..)) => {
                board.gone = Some("the guest speaks out of turn".to_owned());
            }
            Err(e) => board.gone = Some(format!("the guest is gone ({e})")),
        }
        shared.news.notify_all();
        if board.gone.is_some() {
            return;
        }
    }
}

/// The last lines of a file.
fn words_of(path: &Path) -> String {
    const LINES: usize = 60;
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

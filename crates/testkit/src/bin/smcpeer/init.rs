//! The first process of a guest: makes it ready, then runs commands for the host.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use testkit::kernels::frame::{Frame, Job};
use testkit::kernels::guest::FOLDER;
use testkit::kernels::image::{MODULES_DIR, ORDER};

use crate::kernel;

/// The port's device is the first port of whichever virtual device it is.
const CHANNEL: [&str; 2] = ["vport", "p1"];
/// All is in `/bin`, unless a guest has a whole system.
const PATH: &str = "/bin:/sbin:/usr/bin:/usr/sbin";
const BLOCK: usize = 16 << 10;

pub(crate) fn main() -> ExitCode {
    // When this returns the kernel panics, by which the machine ends: the host sees it, and why.
    if let Err(e) = prepare().and_then(|()| serve()) {
        println!("smcpeer: {e:#}");
    }
    ExitCode::FAILURE
}

fn prepare() -> anyhow::Result<()> {
    for (kind, place) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")]
    {
        mount(kind, place, c"")?;
    }
    let order = fs::read_to_string(Path::new(MODULES_DIR).join(ORDER)).context("the modules")?;
    order.lines().try_for_each(|file| load(&Path::new(MODULES_DIR).join(file)))?;
    let words = fs::read_to_string("/proc/cmdline").context("the command line")?;
    let value = |name: &str| {
        words
            .split_whitespace()
            .filter_map(move |word| word.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    run(&format!("hostname {}", value("name").first().context("no name")?))?;
    run("ip link set lo up")?;
    for folder in value(FOLDER) {
        fs::create_dir_all(&folder).with_context(|| folder.clone())?;
        // What is there does not change while the guest runs.
        mount("9p", &folder, c"trans=virtio,version=9p2000.L,cache=loose,msize=262144")?;
    }
    for (card, address) in value("address").iter().enumerate() {
        run(&format!("ip addr add {address} dev eth{card}; ip link set eth{card} up"))?;
        if Path::new("/sys/module/rdma_rxe").exists() {
            let device = format!("rxe{card}");
            kernel::add_rxe(&device, &format!("eth{card}")).context("an RDMA device")?;
        }
    }
    Ok(())
}

/// Mounts a file system; the host's folder to read.
fn mount(kind: &str, place: &str, options: &CStr) -> anyhow::Result<()> {
    let (source, flags) = if kind == "9p" { (FOLDER, libc::MS_RDONLY) } else { (kind, 0) };
    let source = CString::new(source)?;
    let (kind, target) = (CString::new(kind)?, CString::new(place)?);
    // SAFETY: strings that end.
    let r = unsafe {
        let data = options.as_ptr().cast();
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data)
    };
    ensure!(r == 0, "mount {place}: {}", io::Error::last_os_error());
    Ok(())
}

fn load(module: &Path) -> anyhow::Result<()> {
    let file = File::open(module).with_context(|| module.display().to_string())?;
    // SAFETY: a descriptor, a string that ends, and no flags.
    let r = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
    ensure!(r == 0, "{}: {}", module.display(), io::Error::last_os_error());
    Ok(())
}

fn shell(command: &str) -> Command {
    let mut shell = Command::new("/bin/busybox");
    shell.args(["sh", "-c", command]).env_clear().env("PATH", PATH).env("HOME", "/");
    shell
}

fn run(command: &str) -> anyhow::Result<()> {
    let status = shell(command).status().with_context(|| command.to_owned())?;
    ensure!(status.success(), "{command}: {status}");
    Ok(())
}

/// What jobs share: the way to the host, and which of them run.
#[derive(Clone)]
struct Desk {
    channel: Arc<Mutex<File>>,
    /// The leader of each job's processes.
    running: Arc<Mutex<HashMap<Job, i32>>>,
}

impl Desk {
    fn tell(&self, frame: &Frame) {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(e) = frame.write(&mut *channel) {
            println!("smcpeer: cannot tell the host: {e}");
        }
    }

    fn signal(&self, job: Job, signal: i32) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leader) = running.get(&job) {
            // SAFETY: a plain call; the leader was not waited for, so the number is its own.
            unsafe { libc::kill(-leader, signal) };
        }
    }

    /// Runs a job to its end.
    fn work(&self, job: Job, command: &str) {
        let status = self.try_work(job, command).unwrap_or_else(|e| {
            self.tell(&Frame::Output(job, format!("{e:#}\n").into_bytes()));
            127
        });
        self.tell(&Frame::Ended(job, status));
    }

    fn try_work(&self, job: Job, command: &str) -> anyhow::Result<i32> {
        let (mut out, into) = io::pipe()?;
        let mut shell = shell(command);
        shell.stdin(Stdio::null()).stdout(into.try_clone()?).stderr(into).process_group(0);
        let mut child = shell.spawn()?;
        // It holds the pipe's other end.
        drop(shell);
        let lock = || self.running.lock().unwrap_or_else(PoisonError::into_inner);
        lock().insert(job, child.id().cast_signed());
        let mut block = [0; BLOCK];
        loop {
            match out.read(&mut block)? {
                0 => break,
                n => self.tell(&Frame::Output(job, block[..n].to_vec())),
            }
        }
        // Out of the list before it is waited for, or a signal could meet somebody else.
        let status = loop {
            let mut running = lock();
            if let Some(status) = child.try_wait()? {
                running.remove(&job);
                break status;
            }
            drop(running);
            sleep(Duration::from_millis(2));
        };
        Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
    }
}

fn open_channel() -> Option<File> {
    let [begin, end] = CHANNEL;
    let is_ours = |name: &str| name.starts_with(begin) && name.ends_with(end);
    let mut devices = fs::read_dir("/dev").ok()?.flatten();
    let device = devices.find(|entry| is_ours(&entry.file_name().to_string_lossy()))?;
    OpenOptions::new().read(true).write(true).open(device.path()).ok()
}

fn serve() -> anyhow::Result<()> {
    let wait = || sleep(Duration::from_millis(10));
    let channel = (0..500).find_map(|_| {
        open_channel().or_else(|| {
            wait();
            None
        })
    });
    let channel = channel.context("there is no channel to the host")?;
    let mut from = channel.try_clone()?;
    let desk = Desk { channel: Arc::new(Mutex::new(channel)), running: Arc::default() };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    desk.tell(&Frame::Ready(release.trim().to_owned()));
    loop {
        match Frame::read(&mut from).context("the host is gone")? {
            Frame::Start(job, command) => {
                let desk = desk.clone();
                thread::spawn(move || desk.work(job, &command));
            }
            Frame::Signal(job, signal) => desk.signal(job, signal),
            frame => bail!("the host speaks out of turn: {frame:?}"),
        }
    }
}

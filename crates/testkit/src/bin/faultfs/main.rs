//! A file system that fails as it is told, for tests: a folder through FUSE, whose bytes reach the folder below only
//! when somebody asks for fsync. Whoever kills it cuts the power.
//!
//! It mounts, runs a command, and ends with it. What was not synced by then is lost; names, attributes and sizes of
//! nothing are not, since they go to the folder below at once: what a disk does with names it does not show. A whole
//! file is kept in memory, and no extended attributes, links or pipes.
//!
//! `--control FILE` says what goes wrong, a rule a line (`rules`); the file may be replaced at any time. `--log FILE`
//! gets a line for each sync (`fsync NAME written=BYTES`) and for each request that a rule was for
//! (`failed read NAME`, `delayed lookup NAME`), before it is answered. With `--direct` nothing of its files is ever in the
//! page cache, as with many file systems of programs.

mod rules;
mod store;
mod wire;

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Parser;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use rules::{Fate, Rules, operation};
use store::{Change, Store};
use wire::{Bytes, REQUEST_MAX, Request, op};

/// How often somebody who is held looks at the rules.
const GLANCE: Duration = Duration::from_millis(5);

#[derive(Parser)]
#[command(about = "A file system that fails as it is told, and forgets what was not synced")]
struct Args {
    /// The folder that has what was synced
    below: PathBuf,
    /// Where it is mounted while the command runs
    mount: PathBuf,
    /// File of rules of what goes wrong
    #[arg(long)]
    control: PathBuf,
    /// File that gets a line for each sync and each fault
    #[arg(long)]
    log: PathBuf,
    /// Keeps nothing in the page cache
    #[arg(long)]
    direct: bool,
    /// What is run with it
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let log = File::options().append(true).create(true).open(&args.log).context("--log")?;
    let fuse = File::options().read(true).write(true).open("/dev/fuse").context("/dev/fuse")?;
    mount(&args, &fuse).with_context(|| format!("{}: mount", args.mount.display()))?;
    let server = Arc::new(Server {
        fuse,
        store: Mutex::new(Store::new(&args.below, log)),
        rules: Mutex::new(Rules::of(args.control)),
        how_opened: if args.direct { DIRECT_IO } else { KEEP_CACHE },
    });
    // From this thread: `children` of /proc is for each thread, and tests look there for who serves.
    let child = Command::new(&args.command[0]).args(&args.command[1..]).spawn();
    let child = child.with_context(|| args.command[0].clone())?;
    let (mount, ending) = (args.mount, Arc::clone(&server));
    thread::spawn(move || ending.end_with(child, &mount));
    server.serve()
}

fn mount(args: &Args, fuse: &File) -> anyhow::Result<()> {
    anyhow::ensure!(args.below.is_dir(), "{} is no folder", args.below.display());
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},allow_other,default_permissions",
        fuse.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    let options = CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("faultfs", &args.mount, "fuse.faultfs", flags, options.as_c_str())?;
    Ok(())
}

struct Server {
    fuse: File,
    store: Mutex<Store>,
    rules: Mutex<Rules>,
    /// What the kernel may do with what it reads.
    how_opened: u32,
}

impl Server {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends this process when the command has ended, and as it has; what was not synced goes with it.
    fn end_with(&self, mut child: Child, mount: &Path) {
        let status = child.wait();
        let _ = rustix::mount::unmount(mount, UnmountFlags::DETACH);
        let code = status
            .ok()
            .and_then(|status| status.code().or_else(|| status.signal().map(|n| 128 + n)));
        // A sync that has begun is completed.
        let _store = self.store();
        std::process::exit(code.unwrap_or(1));
    }

    fn serve(self: Arc<Self>) -> anyhow::Result<()> {
        let mut buf = vec![0; REQUEST_MAX];
        loop {
            let len = match (&self.fuse).read(&mut buf) {
                Ok(len) => len,
                Err(error) => match Errno::from_io_error(&error) {
                    // Whoever asked was interrupted.
                    Some(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                    // Unmounted: the command's end is awaited by another thread.
                    Some(Errno::NODEV) => loop {
                        thread::park();
                    },
                    _ => return Err(error).context("/dev/fuse"),
                },
            };
            let request = Request::parse(&buf[..len]).context("a request")?;
            if matches!(request.op, op::FORGET | op::BATCH_FORGET | op::INTERRUPT) {
                continue;
            }
            let (fate, what) = self.fate(&request)?;
            if !fate.is_late() {
                self.meet(&request, &fate, &what);
                continue;
            }
            let this = Arc::clone(&self);
            thread::spawn(move || {
                thread::sleep(fate.delay);
                while fate.held_by > 0
                    && this.rules().edition().is_ok_and(|now| now == fate.held_by)
                {
                    thread::sleep(GLANCE);
                }
                this.meet(&request, &fate, &what);
            });
        }
    }

    /// What becomes of a request, and what the request is in words.
    fn fate(&self, request: &Request) -> anyhow::Result<(Fate, String)> {
        let resizes = request.op == op::SETATTR
            && request.fields().u32().is_ok_and(|valid| valid & SIZE != 0);
        let Some(operation) = operation(request.op, resizes) else { return Ok(Default::default()) };
        let name_at = |at| request.fields().skip(at).and_then(wire::Fields::name);
        let name = match request.op {
            op::LOOKUP | op::UNLINK => name_at(0),
            op::MKDIR | op::RENAME => name_at(8),
            op::CREATE | op::RENAME2 => name_at(16),
            _ => Ok(self.store().name_of(request.node)),
        };
        let name = name.unwrap_or_default();
        let fate = self.rules().fate(operation, &name)?;
        let what = format!("{operation} {name}");
        if fate.is_late() {
            self.store().note(&format!("delayed {what}"));
        }
        Ok((fate, what))
    }

    fn meet(&self, request: &Request, fate: &Fate, what: &str) {
        let answer = match fate.error {
            Some(error) => {
                self.store().note(&format!("failed {what}"));
                Err(error)
            }
            None => answer(&mut self.store(), request, self.how_opened),
        };
        // Whoever asked may be gone.
        let _ = (&self.fuse).write(&request.answer(answer));
    }
}

const MODE: u32 = 1;
const UID: u32 = 1 << 1;
const GID: u32 = 1 << 2;
const SIZE: u32 = 1 << 3;
const MTIME: u32 = 1 << 5;
const MTIME_NOW: u32 = 1 << 8;

fn answer(store: &mut Store, request: &Request, how_opened: u32) -> Result<Vec<u8>, Errno> {
    let (node, mut asked) = (request.node, request.fields());
    let who = (request.uid, request.gid);
    let opened = |handle| Bytes::default().u64(handle).u64(0).0;
    match request.op {
        op::INIT => wire::init(request),
        op::LOOKUP => store.look_up(node, &asked.name()?),
        op::GETATTR => store.described(node),
        op::SETATTR => store.change(node, &change(request)?),
        op::MKDIR => {
            let mode = asked.u32()?;
            store.make_folder(node, &asked.skip(4)?.name()?, mode, who)
        }
        op::UNLINK => store.unlink(node, &asked.name()?).map(|()| Vec::new()),
        op::RMDIR => store.remove_folder(node, &asked.name()?).map(|()| Vec::new()),
        op::RENAME | op::RENAME2 => rename(store, request).map(|()| Vec::new()),
        // Whole pages may be kept, as those of a disk are: nobody else changes the file.
        op::OPEN => Ok(Bytes::default().u64(node).u32(how_opened).u32(0).0),
        op::CREATE => {
            let (_flags, mode) = (asked.u32()?, asked.u32()?);
            let (id, entry) = store.create(node, &asked.skip(8)?.name()?, mode, who)?;
            Ok(Bytes(entry).u64(id).u32(how_opened & DIRECT_IO).u32(0).0)
        }
        op::READ => {
            let (_handle, offset, size) = (asked.u64()?, asked.u64()?, asked.u32()?);
            store.read(node, offset, size)
        }
        op::WRITE => {
            let (_handle, offset, size) = (asked.u64()?, asked.u64()?, asked.u32()?);
            store.write(node, offset, asked.skip(20)?.bytes(size)?)
        }
        op::FSYNC => {
            let flags = asked.skip(8)?.u32()?;
            store.sync(node, flags & 1 != 0).map(|()| Vec::new())
        }
        op::STATFS => store.room(),
        op::OPENDIR => store.open_folder(node).map(opened),
        op::READDIR => {
            let (handle, offset, size) = (asked.u64()?, asked.u64()?, asked.u32()?);
            store.list(handle, offset, size)
        }
        op::RELEASEDIR => {
            store.close_folder(asked.u64()?);
            Ok(Vec::new())
        }
        // Closing a file is no sync.
        op::RELEASE | op::FLUSH | op::FSYNCDIR => Ok(Vec::new()),
        _ => Err(Errno::NOSYS),
    }
}

const DIRECT_IO: u32 = 1 << 0;
const KEEP_CACHE: u32 = 1 << 1;

fn rename(store: &mut Store, request: &Request) -> Result<(), Errno> {
    const NO_REPLACE: u32 = 1;
    let mut asked = request.fields();
    let into = asked.u64()?;
    let flags = if request.op == op::RENAME2 {
        let flags = asked.u32()?;
        asked.skip(4)?;
        flags
    } else {
        0
    };
    if flags & !NO_REPLACE != 0 {
        return Err(Errno::INVAL);
    }
    let (old, new) = (asked.name()?, asked.name()?);
    store.rename((request.node, &old), (into, &new), flags == 0)
}

fn change(request: &Request) -> Result<Change, Errno> {
    let mut asked = request.fields();
    let valid = asked.u32()?;
    let size = asked.skip(12)?.u64()?;
    let seconds = asked.skip(16)?.u64()?;
    let nanos = asked.skip(12)?.u32()?;
    let mode = asked.skip(4)?.u32()?;
    let (uid, gid) = (asked.skip(4)?.u32()?, asked.u32()?);
    let modified = match valid {
        valid if valid & MTIME_NOW != 0 => Some(SystemTime::now()),
        valid if valid & MTIME != 0 => Some(store::time(seconds, nanos)),
        _ => None,
    };
    Ok(Change {
        mode: (valid & MODE != 0).then_some(mode),
        uid: (valid & UID != 0).then_some(uid),
        gid: (valid & GID != 0).then_some(gid),
        size: (valid & SIZE != 0).then_some(size),
        modified,
    })
}

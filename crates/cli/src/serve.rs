//! `shunt serve`: files to SMB clients.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use engine::serve::Serving;
use engine::serve::config::{Config, Demand, ShareConfig};
use engine::serve::runtime::Driver;
use signal_hook::consts::{SIGINT, SIGPIPE, SIGTERM};
use signal_hook::iterator::Signals;
use smb::auth::{NtHash, User, UserFile};
use smb::session::Dialect;

#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    /// Where clients connect to; may be given more than once [0.0.0.0:445 and [::]:445]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// A share: NAME=PATH, and ,ro for one that nobody may change, ,encrypt for one that is only
    /// for those who encrypt; may be given more than once
    #[arg(long, value_name = "NAME=PATH[,ro][,encrypt]")]
    share: Vec<String>,
    /// Somebody who may log on; may be given more than once
    #[arg(long, value_name = "NAME:PASSWORD")]
    user: Vec<String>,
    /// File of users, as `shunt serve user` writes it
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Let everybody in whom nobody knows, as guest
    #[arg(long)]
    guest: bool,
    /// The oldest dialect that is spoken: 2.0.2, 2.1, 3.0, 3.0.2 or 3.1.1
    #[arg(long, value_name = "DIALECT", default_value = "2.1")]
    oldest: Dialect,
    /// Whether messages are signed: offered or required
    #[arg(long, value_name = "WHEN", default_value = "offered")]
    signing: Demand,
    /// Whether messages are encrypted: off, offered or required
    #[arg(long, value_name = "WHEN", default_value = "offered")]
    encryption: Demand,
    /// Wait by epoll and threads, not by io_uring
    #[arg(long)]
    no_uring: bool,
    /// Loops, each a thread [one a CPU]
    #[arg(long, value_name = "N")]
    vectors: Option<usize>,
    /// Obey the control codes of Samba's test suite
    #[arg(long, hide = true)]
    torture: bool,
    /// A folder to share, under its own name
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

fn share(text: &str) -> anyhow::Result<ShareConfig> {
    let (name, rest) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .with_context(|| format!("--share {text}: say NAME=PATH"))?;
    let (mut path, mut read_only, mut encrypted) = (rest, false, false);
    loop {
        if let Some(shorter) = path.strip_suffix(",ro") {
            (path, read_only) = (shorter, true);
        } else if let Some(shorter) = path.strip_suffix(",encrypt") {
            (path, encrypted) = (shorter, true);
        } else {
            break;
        }
    }
    Ok(ShareConfig { name: name.to_owned(), path: path.into(), read_only, encrypted })
}

fn config(arguments: &ServeArguments) -> anyhow::Result<Config> {
    let mut config = Config { guest: arguments.guest, ..Config::default() };
    if !arguments.listen.is_empty() {
        config.listen.clone_from(&arguments.listen);
    }
    config.shares = arguments.share.iter().map(|text| share(text)).collect::<Result<_, _>>()?;
    if let Some(path) = &arguments.path {
        let whole = path.canonicalize().with_context(|| path.display().to_string())?;
        let name =
            whole.file_name().map_or("root".into(), |name| name.to_string_lossy().into_owned());
        config.shares.push(ShareConfig { name, path: whole, read_only: false, encrypted: false });
    }
    if config.shares.is_empty() {
        bail!("nothing to share: give a folder, or --share NAME=PATH");
    }
    let mut users = match &arguments.users {
        None => UserFile::default(),
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            UserFile::parse(&text).with_context(|| file.display().to_string())?
        }
    };
    for text in &arguments.user {
        let (name, password) =
            text.split_once(':').with_context(|| format!("--user {text}: say NAME:PASSWORD"))?;
        users.set(User {
            name: name.to_owned(),
            uid: None,
            nt_hash: NtHash::of_password(password),
            disabled: false,
            expires: None,
        })?;
    }
    config.users = users.to_text().to_string();
    config.uring = !arguments.no_uring;
    config.test_codes = arguments.torture;
    (config.signing, config.encryption) = (arguments.signing, arguments.encryption);
    config.dialects = Dialect::ALL.into_iter().filter(|one| *one >= arguments.oldest).collect();
    if let Some(vectors) = arguments.vectors {
        config.vectors = vectors;
    }
    Ok(config)
}

/// Serves until it is told to end.
pub(crate) fn run(arguments: &ServeArguments) -> anyhow::Result<()> {
    // Before there are threads, so that all of them leave these signals to us.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    // Data spliced to a client that is gone raises SIGPIPE, which cannot be asked not to. It ends nothing here.
    signal_hook::flag::register(SIGPIPE, Arc::default())?;
    let serving = Serving::start(config(arguments)?)?;
    let (driver, fell_back) = serving.driver();
    let how = match driver {
        Driver::Epoll => "epoll",
        Driver::Auto | Driver::Uring => "io_uring",
    };
    if let Some(why) = fell_back {
        eprintln!("shunt serve: no io_uring here ({why}): epoll and threads do its work");
    }
    let places: Vec<_> = serving.addresses().iter().map(ToString::to_string).collect();
    let mut out = std::io::stdout();
    writeln!(out, "ready: {}, by {how}; Ctrl-C ends", places.join(" and "))?;
    out.flush()?;
    let _ = signals.forever().next();
    serving.stop();
    Ok(())
}

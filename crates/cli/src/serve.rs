//! `shunt serve`: starts it, says who may log on, and tells one that runs what to do.

mod file;
pub(crate) mod mistakes;
mod options;
mod place;
pub(crate) mod stat;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::{Arc, mpsc};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use engine::serve::config::ShareConfig;
use engine::serve::control::{Control, Request};
use engine::serve::runtime::Driver;
use engine::serve::{NotStarted, Reloaded, Serving};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::iterator::Signals;
use smb::auth::UserFile;

use crate::{say, service};

pub(crate) use file::SERVE;
pub(crate) use options::share_options;
use options::{Looked, ServeOptions, When, left_out, look_at_folders, reach};
use place::Place;
use users::UserArguments;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    options: ServeOptions,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say who may log on
    User(UserArguments),
    /// Have a server that runs read users and shares again
    Reload(Place),
    /// End a server that runs
    Stop(Place),
}

/// Does it.
pub(crate) fn serve(arguments: &ServeArguments) -> anyhow::Result<()> {
    match &arguments.action {
        None => run(&arguments.options),
        Some(Action::User(user)) => users::run(user),
        Some(Action::Reload(place)) => {
            let answer = place.ask(&Request::Reload {})?;
            if let Some(said) = answer["said"].as_str() {
                writeln!(std::io::stdout(), "{said}")?;
            }
            Ok(())
        }
        Some(Action::Stop(place)) => place.ask(&Request::Stop {}).map(drop),
    }
}

/// This host's name without its domain, as far as it can be a server's.
fn host_name() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let first = text.trim().split('.').next().unwrap_or_default();
    let fit = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if first.is_empty() || first.len() > 63 || !first.chars().all(fit) {
        return "SHUNT".to_owned();
    }
    first.to_owned()
}

/// What a server that runs is to do.
enum Wish {
    /// End.
    Stop,
    /// Read users and shares again, and tell what became of it, if somebody waits.
    Reload(Option<mpsc::Sender<Result<String, String>>>),
}

/// What has kept loops from their CPUs (`pin`), if that is what is wrong.
fn name_absent(pin: &[usize], error: NotStarted) -> anyhow::Error {
    let here = sys::call::cpus();
    let is_here = |cpu: usize| u32::try_from(cpu).is_ok_and(|cpu| here.contains(&cpu));
    let absent = pin.iter().find(|cpu| !is_here(**cpu));
    match (&error, absent) {
        (NotStarted::Runtime(_), Some(cpu)) => {
            let here: Vec<_> = here.iter().map(ToString::to_string).collect();
            let here = here.join(", ");
            anyhow!("pin: CPU {cpu} is not there, or not for this process, which has {here}")
        }
        _ => error.into(),
    }
}

/// Turns signals into wishes.
fn listen_to_signals(mut signals: Signals, wishes: mpsc::Sender<Wish>) -> anyhow::Result<()> {
    let listen = move || {
        for signal in signals.forever() {
            let wish = match signal {
                SIGPIPE => continue,
                SIGHUP => Wish::Reload(None),
                _ => Wish::Stop,
            };
            if wishes.send(wish).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("shunt-signals".into()).spawn(listen)?;
    Ok(())
}

/// What one who asks by the socket wishes, and what became of it.
fn pass_on(request: Request, wishes: &mpsc::Sender<Wish>) -> Result<String, String> {
    let ending = |_| "it is ending".to_owned();
    match request {
        Request::Reload {} => {
            let (tell, told) = mpsc::channel();
            wishes.send(Wish::Reload(Some(tell))).map_err(|_| "it is ending".to_owned())?;
            told.recv().map_err(ending)?
        }
        Request::Stop {} => {
            wishes.send(Wish::Stop).map_err(|_| "it is ending".to_owned())?;
            Ok(String::new())
        }
        Request::Stat {} => Err("not to be asked here".into()),
    }
}

/// Serves until it is told to end.
fn run(options: &ServeOptions) -> anyhow::Result<()> {
    // Before a descriptor is opened here: those that were handed over keep their numbers.
    let inherited = sys::inherited::take();
    // Before there are threads, so that all of them leave these signals to us. Of SIGPIPE nobody wants to hear,
    // and it must not end us: splice(2) to a client that has gone sends it.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGPIPE])?;
    let config = options.load()?;
    let (path, begun) = (config.control.clone(), options.of_file()?);
    let pin = config.pin.clone();
    let serving = Serving::start_with(config, inherited).map_err(|e| name_absent(&pin, e))?;
    let serving = Arc::new(serving);
    let (tell, wishes) = mpsc::channel();
    listen_to_signals(signals, tell.clone())?;
    let control = match &path {
        Some(path) => {
            match Control::start(path, &serving, move |request| pass_on(request, &tell)) {
                Ok(control) => Some(control),
                Err(e) => {
                    // It serves all the same: two servers of one user at one port, in two network namespaces.
                    say::line(format_args!(
                        "shunt serve: nobody can ask it what it does: {}: {e}",
                        path.display()
                    ));
                    None
                }
            }
        }
        None => None,
    };
    announce(&serving)?;
    while let Ok(wish) = wishes.recv() {
        match wish {
            Wish::Stop => break,
            Wish::Reload(waiting) => {
                let outcome = reload(&serving, options, &begun).map_err(|e| format!("{e:#}"));
                match &outcome {
                    Ok(all) => all.lines().for_each(|words| {
                        say::line(format_args!("shunt serve: {words}"));
                    }),
                    Err(words) => {
                        say::line(format_args!(
                            "shunt serve: not reloaded, all is as it was: {words}"
                        ));
                    }
                }
                if let Some(waiting) = waiting {
                    // One who does not wait any more has not been told, and nothing else.
                    let _ = waiting.send(outcome);
                }
            }
        }
    }
    service::stops();
    drop(control);
    match Arc::into_inner(serving) {
        Some(serving) => serving.stop(),
        None => bail!("somebody still looks at the server, which ends with the process"),
    }
    Ok(())
}

/// Says that it serves: on standard output, for those who start it and wait until it is there.
fn announce(serving: &Serving) -> anyhow::Result<()> {
    let (driver, fell_back) = serving.driver();
    let how = match driver {
        Driver::Epoll => "epoll",
        Driver::Auto | Driver::Uring => "io_uring",
    };
    if let Some(why) = fell_back {
        say::line(format_args!(
            "shunt serve: no io_uring here ({why}): epoll and threads do its work"
        ));
    }
    if let Some(address) = serving.metrics() {
        say::line(format_args!("shunt serve: metrics at http://{address}/metrics"));
    }
    let places: Vec<_> = serving.addresses().iter().map(ToString::to_string).collect();
    let mut out = std::io::stdout();
    writeln!(out, "ready: {}, by {how}; Ctrl-C ends", places.join(" and "))?;
    out.flush().context("cannot write")?;
    service::is_ready();
    Ok(())
}

/// Reads everything again; users and shares count, the rest is as it was until it is started again. What became of it, in
/// words. `begun`: what the configuration file said when the server was started.
///
/// # Errors
///
/// What cannot be understood; nothing is changed then.
fn reload(
    serving: &Serving,
    options: &ServeOptions,
    begun: &BTreeMap<&'static str, String>,
) -> anyhow::Result<String> {
    let mut config = options.read()?;
    let now = options.of_file()?;
    // First of all, before any folder is looked at: one that is gone, or on a file system that does not answer, keeps nobody
    // in who was taken out. Nor does it let in who is new, to shares as they were.
    let mut sessions_ended = serving.reload_users_left(&config.users)?;
    let Looked { mut told, absent } = look_at_folders(&mut config, When::Reloading)?;
    let (absent, words): (Vec<_>, Vec<_>) = absent.into_iter().unzip();
    let newcomers = serving.newcomers(&config.users)?;
    let reloaded = serving.reload_shares(&config.shares, &absent, &newcomers);
    let Reloaded { shares_new, shares_gone, .. } = reloaded;
    sessions_ended += serving.reload_users(&config.users)?;
    let names = absent.iter().map(|share| &share.name).zip(&words);
    for (name, words) in names.chain(reloaded.closed.iter().map(|(name, words)| (name, words))) {
        told.push(match reloaded.stays_in(name) {
            Some(folder) => format!(
                "{words}; it stays as it was, in {}, until a reload finds another one",
                folder.display()
            ),
            None => left_out(words),
        });
    }
    let has_stayed = |share: &ShareConfig| reloaded.stays_in(&share.name).is_some();
    config.shares.extend(absent.into_iter().filter(has_stayed));
    match reach(&UserFile::parse(&config.users)?, &config) {
        Ok(kept_out) => told.extend(kept_out),
        Err(nobody) => told.push(nobody.to_string()),
    }
    let mut said = format!(
        "reloaded: {shares_new} shares new or changed, {shares_gone} gone or changed, {sessions_ended} sessions ended"
    );
    let changed = begun.keys().chain(now.keys()).filter(|name| begun.get(*name) != now.get(*name));
    let changed: BTreeSet<&str> = changed.copied().collect();
    if !changed.is_empty() {
        let names: Vec<&str> = changed.into_iter().collect();
        said += &format!(
            "; changed, and to count once the server is started again: {}",
            names.join(", ")
        );
    }
    told.insert(0, said);
    Ok(told.join("\n"))
}

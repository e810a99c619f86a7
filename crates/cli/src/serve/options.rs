//! The options of `shunt serve`, merged over the section `[serve]` of the configuration file.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use clap::builder::{OsStr, StyledStr};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use engine::serve::config::{Config, SETTINGS, SHARE_OPTIONS, Setting, ShareConfig};
use engine::serve::fs::{Lack, try_folder, try_writing};
use smb::FileTime;
use smb::auth::{NtHash, User, UserFile};

use super::file::{self, Section};
use super::{host_name, place, users};
use crate::config::{SettingOptions, Written};
use crate::say;

/// The value of a setting that is on or off.
const SWITCH: &str = "on|off";

/// What settings are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// A server that is to start: one that nobody could use had better not.
    Starting,
    /// One that runs: whoever is taken out must not stay because nobody would be left, or a folder is closed or gone.
    Reloading,
}

/// What there is to say of the folder of a share.
pub(super) enum Folder {
    /// What need not be wrong, if anything.
    Good(Vec<String>),
    /// Nothing in it can be reached.
    Closed(String),
    /// Nor can it: one above it is closed.
    Hidden(String),
    /// There is none.
    Gone(String),
}

/// What was given on the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServeOptions {
    config: Option<PathBuf>,
    written: Vec<(&'static Setting, String)>,
    shares: Vec<String>,
    users: Vec<String>,
    torture: bool,
    path: Option<PathBuf>,
    /// The name of the share that `path` is, once a server has been started.
    name: OnceLock<String>,
}

fn capitalised(help: &str) -> String {
    let mut help = help.to_owned();
    help[..1].make_ascii_uppercase();
    help
}

fn argument(setting: &'static Setting) -> Arg {
    let arg = Arg::new(setting.name)
        .long(setting.name.replace('_', "-"))
        .value_name(setting.value)
        .allow_negative_numbers(true)
        .help(capitalised(setting.help));
    match setting.value {
        // `--guest` is `--guest=on`, and what follows it is a folder.
        SWITCH => arg.num_args(0..=1).require_equals(true).default_missing_value(OsStr::from("on")),
        _ if setting.name == "listen" => arg.action(ArgAction::Append),
        _ => arg,
    }
}

/// What `--share` takes, with its options.
fn share_help() -> StyledStr {
    let names: Vec<&str> = SHARE_OPTIONS.iter().map(|option| option.name).collect();
    format!(
        "A share: a name for clients and a folder, and options as in ,ro or ,guest=off ({}; see below); may be \
         given more than once",
        names.join(", ")
    )
    .into()
}

/// The options of a share, for the end of a help text.
pub(crate) fn share_options() -> String {
    let lines = SHARE_OPTIONS.iter().map(|option| {
        format!("  {:<32} {}", format!("{}={}", option.name, option.value), option.help)
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl Args for ServeOptions {
    fn augment_args(command: Command) -> Command {
        let path = clap::value_parser!(PathBuf);
        let share = Arg::new("share")
            .long("share")
            .value_name("NAME=PATH[,OPTION]...")
            .action(ArgAction::Append)
            .help(share_help());
        let user = Arg::new("user").long("user").value_name("NAME:PASSWORD").action(ArgAction::Append).help(
            "Somebody who may log on; everybody on this host can read it in the list of processes: `shunt serve \
             user add` is the other way; may be given more than once",
        );
        let config =
            Arg::new("config").long("config").value_name("FILE").value_parser(path.clone()).help(
                "Configuration file, of which the section [serve] counts [also SHUNT_CONFIG]",
            );
        let torture = Arg::new("torture")
            .long("torture")
            .action(ArgAction::SetTrue)
            .hide(true)
            .help("Obey the control codes of Samba's test suite");
        let folder = Arg::new("path")
            .value_name("PATH")
            .value_parser(path)
            .help("A folder to share, under its own name");
        let (first, rest) = SETTINGS.split_at(1);
        command
            .args(first.iter().map(argument))
            .args([share, user])
            .args(rest.iter().map(argument))
            .args([config, torture, folder])
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServeOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = Self::default();
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let all = |name: &str| -> Vec<String> {
            matches.get_many::<String>(name).into_iter().flatten().cloned().collect()
        };
        let given = |setting: &'static Setting| {
            let values = all(setting.name);
            (!values.is_empty()).then(|| (setting, values.join(",")))
        };
        self.written = SETTINGS.iter().filter_map(given).collect();
        (self.shares, self.users) = (all("share"), all("user"));
        self.config = matches.get_one::<PathBuf>("config").cloned();
        self.path = matches.get_one::<PathBuf>("path").cloned();
        self.torture = matches.get_flag("torture");
        Ok(())
    }
}

impl ServeOptions {
    /// Where the configuration file is looked for.
    fn place(&self) -> SettingOptions {
        SettingOptions::with_dir(self.config.clone(), None)
    }

    /// Everything for a server that is to start; what need not be wrong is told.
    ///
    /// # Errors
    ///
    /// What is wrong, who wrote it and what would be right.
    pub(super) fn load(&self) -> anyhow::Result<Config> {
        let mut config = self.read()?;
        let Looked { mut told, absent } = look_at_folders(&mut config, When::Starting)?;
        told.extend(absent.iter().map(|(_, words)| left_out(words)));
        told.extend(reach(&UserFile::parse(&config.users)?, &config)?);
        for words in told {
            say::line(format_args!("shunt serve: {words}"));
        }
        Ok(config)
    }

    /// Everything merged and read: options over the section of the configuration file. Folders of shares are not looked at.
    ///
    /// # Errors
    ///
    /// What is wrong, who wrote it and what would be right.
    pub(super) fn read(&self) -> anyhow::Result<Config> {
        let section = file::read(&self.place())?.strictly()?;
        let mut config = Config { name: host_name(), ..Config::default() };
        let mut control_said = false;
        for Written { setting, text, source } in &section.written {
            config.set(setting, text).map_err(|bad| anyhow!("{source}: {bad}"))?;
            control_said |= *setting == "control";
        }
        for (setting, text) in &self.written {
            let option = setting.name.replace('_', "-");
            config.set(setting.name, text).map_err(|bad| anyhow!("--{option}: {bad}"))?;
            control_said |= setting.name == "control";
        }
        config.shares = self.shares(&section)?;
        config.users = self.read_users(&section, &mut config)?;
        config.test_codes = self.torture;
        if !control_said {
            let port = config.listen.first().map_or(0, |address| address.port());
            config.control = place::usual(port);
        }
        Ok(config.checked()?)
    }

    /// The settings that the configuration file decides, as it has them now, but for those that count when users and shares
    /// are read again.
    pub(super) fn of_file(&self) -> anyhow::Result<BTreeMap<&'static str, String>> {
        let section = file::read(&self.place())?.strictly()?;
        let decides = |name: &str| {
            name != "users" && !self.written.iter().any(|(setting, _)| setting.name == name)
        };
        let written = section.written.into_iter().filter(|written| decides(written.setting));
        Ok(written.map(|written| (written.setting, written.text)).collect())
    }

    fn shares(&self, section: &Section) -> anyhow::Result<Vec<ShareConfig>> {
        // Options are shares beside those of the file, and stand for those of the same name.
        let mut given = Vec::new();
        for text in &self.shares {
            let share = ShareConfig::parse(text).map_err(|bad| anyhow!("--{bad}"))?;
            given.push(share);
        }
        if let Some(path) = &self.path {
            let share = of_folder(path, self.name.get())?;
            self.name.get_or_init(|| share.name.clone());
            given.push(share);
        }
        let replaced =
            |share: &&ShareConfig| !given.iter().any(|own| smb::name::same(&own.name, &share.name));
        let of_file = section.shares.iter().map(|(share, _)| share);
        let mut all: Vec<ShareConfig> = of_file.filter(replaced).cloned().collect();
        all.extend(given);
        if all.is_empty() {
            bail!("nothing to share: name a folder, or say --share NAME=PATH");
        }
        all.iter().try_for_each(meant)?;
        Ok(all)
    }

    /// The users as a file has them, with those that are written out added.
    fn read_users(&self, section: &Section, config: &mut Config) -> anyhow::Result<String> {
        let mut all = users_of(config)?;
        let written = section.users.iter().map(|(text, source)| (text, source.to_string()));
        let given = self.users.iter().map(|text| (text, "--user".to_owned()));
        for (text, who) in written.chain(given) {
            add(&mut all, text).with_context(|| who.clone())?;
        }
        Ok(all.to_text().to_string())
    }
}

/// What there is to say of the folders of shares.
#[derive(Default)]
pub(super) struct Looked {
    /// In words.
    pub(super) told: Vec<String>,
    /// Shares that are left out, and why.
    pub(super) absent: Vec<(ShareConfig, String)>,
}

/// What is said of a share that there is not.
pub(super) fn left_out(words: &str) -> String {
    format!("{words}; it is left out")
}

/// Looks at the folders of the shares, and leaves those out that cannot be shared.
///
/// # Errors
///
/// When a server is to start: a folder is not there, or all are closed.
pub(super) fn look_at_folders(config: &mut Config, when: When) -> anyhow::Result<Looked> {
    let all = std::mem::take(&mut config.shares);
    let count = all.len();
    let (mut told, mut closed, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for mut share in all {
        match absolute(&mut share, config.unix_users) {
            Folder::Good(doubts) => told.extend(doubts),
            Folder::Closed(words) => closed.push(words),
            Folder::Gone(words) if when == When::Starting => bail!(words),
            Folder::Gone(words) | Folder::Hidden(words) => {
                absent.push((share, words));
                continue;
            }
        }
        config.shares.push(share);
    }
    if when == When::Starting && closed.len() + absent.len() == count {
        closed.extend(absent.iter().map(|(_, words)| left_out(words)));
        bail!(closed.join("; "));
    }
    told.extend(closed);
    Ok(Looked { told, absent })
}

/// The users that the file of users has which settings name, or the usual one, which is named from then on.
pub(super) fn users_of(config: &mut Config) -> anyhow::Result<UserFile> {
    match &config.users_file {
        Some(path) => users::read(path),
        None => match users::usual_path().filter(|path| path.exists()) {
            Some(path) => {
                let all = users::read(&path)?;
                config.users_file = Some(path);
                Ok(all)
            }
            None => Ok(UserFile::default()),
        },
    }
}

/// Adds one that is written out, as NAME:PASSWORD.
pub(super) fn add(all: &mut UserFile, text: &str) -> anyhow::Result<()> {
    // The password is not repeated: this may end in a log.
    let (name, password) = text.split_once(':').context("say NAME:PASSWORD")?;
    all.set(User {
        name: name.to_owned(),
        uid: None,
        nt_hash: Some(NtHash::of_password(password)),
        disabled: false,
        expires: None,
    })?;
    Ok(())
}

/// Who is kept out, in words.
///
/// # Errors
///
/// Everybody is.
pub(super) fn reach(all: &UserFile, config: &Config) -> anyhow::Result<Vec<String>> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = FileTime::from_unix(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), 0);
    Ok(config.reach(all, now)?)
}

/// The share that a folder is, under its own name: `known`, if that was found out before. It is not looked at again for that,
/// since it may be gone, or on a file system that does not answer (see `look_at_folders`).
fn of_folder(path: &Path, known: Option<&String>) -> anyhow::Result<ShareConfig> {
    let absolute = || std::path::absolute(path);
    if let Some(name) = known {
        return Ok(ShareConfig::new(name.clone(), absolute().unwrap_or_else(|_| path.to_owned())));
    }
    let whole = path.canonicalize().or_else(|e| match e.kind() {
        // Of one above it: that is said of all shares.
        ErrorKind::PermissionDenied => absolute(),
        _ => Err(e),
    });
    let whole = whole.with_context(|| path.display().to_string())?;
    let name =
        whole.file_name().map_or_else(|| "root".into(), |name| name.to_string_lossy().into_owned());
    let words = || format!("{} cannot be a share's name; say --share NAME={name}", path.display());
    ShareConfig::new(name.clone(), whole).checked().with_context(words)
}

/// Looks whether the folder of a share, which is not there, is one that is and an option that there is not.
///
/// # Errors
///
/// It is: what would be right.
pub(super) fn meant(share: &ShareConfig) -> anyhow::Result<()> {
    let Some((folder, option)) = share.path.to_str().and_then(|path| path.split_once(',')) else {
        return Ok(());
    };
    if share.path.exists() || !Path::new(folder).is_dir() {
        return Ok(());
    }
    let option = option.split([',', '=']).next().unwrap_or(option);
    let names: Vec<&str> = SHARE_OPTIONS.iter().map(|option| option.name).collect();
    let (name, names) = (&share.name, names.join(", "));
    bail!("share {name}: no such option: {option} (there are: {names})")
}

/// Says early, in words, what is wrong with a share's folder, or need not be. `unix_users`: it is for the users of sessions,
/// and not for ours.
pub(super) fn absolute(share: &mut ShareConfig, unix_users: bool) -> Folder {
    let words = |what: &str| format!("share {}: {}: {what}", share.name, share.path.display());
    let whole = match share.path.canonicalize() {
        Ok(whole) => whole,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            // Which of those above it.
            let named = std::path::absolute(&share.path).unwrap_or_else(|_| share.path.clone());
            let closed = try_folder(&named).err().map(|closed| closed.to_string());
            return Folder::Hidden(words(&closed.unwrap_or_else(|| e.to_string())));
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Folder::Gone(words("there is no such folder"));
        }
        Err(e) => return Folder::Gone(words(&e.to_string())),
    };
    match whole.metadata() {
        Ok(what) if what.is_dir() => {}
        Ok(_) => return Folder::Gone(words("it is no folder, and only folders can be shared")),
        // Its file system has failed meanwhile.
        Err(e) => return Folder::Gone(words(&e.to_string())),
    }
    let mut doubts = Vec::new();
    match try_folder(&whole) {
        Err(_) if unix_users => {}
        Err(closed) if closed.lack == Lack::Enter => {
            let told = Folder::Closed(words(&closed.to_string()));
            share.path = whole;
            return told;
        }
        // What clients leave there they may not be meant to see.
        Err(closed) => doubts.push(words(&closed.to_string())),
        Ok(()) => {}
    }
    if !share.read_only
        && let Err(why) = try_writing(&whole, !unix_users)
    {
        let what = format!("clients can make nothing in it: {why}, or say ro if that is meant");
        doubts.push(words(&what));
    }
    share.path = whole;
    Folder::Good(doubts)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn options(arguments: &[&str]) -> ServeOptions {
        let command = ServeOptions::augment_args(Command::new("x").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments).unwrap();
        ServeOptions::from_arg_matches(&matches).unwrap()
    }

    /// A folder with a configuration file, which only its owner can read.
    fn desk(text: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("files")).unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let path = path.to_str().unwrap().to_owned();
        (dir, path)
    }

    fn load(text: &str, arguments: &[&str]) -> anyhow::Result<Config> {
        let (_dir, path) = desk(text);
        let all: Vec<&str> = ["--config", &path].iter().chain(arguments).copied().collect();
        options(&all).load()
    }

    const FILE: &str = "\
        spin_us = 5\n\
        [serve]\n\
        listen = [\"127.0.0.1:1445\", \"[::1]\"]\n\
        guest = true\n\
        opens_max = 10\n\
        pin = \"0-1\"\n\
        user = [\"ann:secret\"]\n\
        [serve.share.music]\n\
        path = \"DIR/files\"\n\
        ro = true\n\
        users = [\"ann\", \"bob\"]\n\
        file_mode = \"0600\"\n\
        [serve.share.all]\n\
        path = \"DIR\"\n";

    #[test]
    fn options_win_over_the_section_of_the_file() {
        let config =
            load(FILE, &["--opens-max", "20", "--guest=off", "--share", "ALL=/,ro"]).unwrap();
        let listen: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
        assert_eq!(listen, ["127.0.0.1:1445", "[::1]:445"]);
        assert_eq!((config.limits.opens, config.guest), (20, false));
        assert_eq!(config.pin, [0, 1]);
        assert!(config.users.starts_with("ann:*:"), "{}", config.users);
        let shares: Vec<_> = config.shares.iter().map(|s| (&*s.name, s.read_only)).collect();
        assert_eq!(shares, [("music", true), ("ALL", true)]);
        assert_eq!(config.shares[0].users, ["ann", "bob"]);
        assert_eq!(config.shares[0].file_mode, 0o600);
    }

    #[test]
    fn permission_bits_are_octal_however_they_are_written() {
        let mode = |value: &str| {
            let config = load(&FILE.replace("\"0600\"", value), &["--user", "ann:secret"]);
            let music = |config: Config| config.shares.into_iter().find(|s| s.name == "music");
            config.map(|config| music(config).unwrap().file_mode).map_err(|e| format!("{e:#}"))
        };
        for value in ["\"640\"", "\"0640\"", "640", "0o640"] {
            assert_eq!(mode(value), Ok(0o640), "{value}");
        }
        for value in
            ["0x1a0", "0b11", "648", "0o1777", "-640", "true", "[0o640]", "[640]", "[0x1a0]"]
        {
            let told = mode(value).unwrap_err();
            assert!(told.contains("an octal number, 0 to 777"), "{value}: {told}");
        }
    }

    #[test]
    fn the_file_of_packages_has_usual_values() {
        let text = crate::config::tests::packaged(&[]);
        let somebody = ["--user", "ann:secret"];
        let as_told = load(&text.replace("/srv/work", "DIR/files"), &somebody).unwrap();
        let mut usual =
            options(&["--config", "/dev/null", "--user", "ann:secret", "/"]).load().unwrap();
        assert_eq!(as_told.shares.len(), 1);
        assert!(as_told.metrics.is_some(), "an example");
        usual.shares.clone_from(&as_told.shares);
        usual.metrics = as_told.metrics;
        assert_eq!(format!("{as_told:?}"), format!("{usual:?}"));
    }

    #[test]
    fn a_folder_is_shared_under_its_name() {
        let (dir, _) = desk("");
        let path = dir.path().join("files");
        let given = ["--config", "/dev/null", "--guest", path.to_str().unwrap()];
        let config = options(&given).load().unwrap();
        assert_eq!(config.shares, [ShareConfig::new("files", path.canonicalize().unwrap())]);
        assert!(config.guest);
    }

    #[test]
    fn the_guide_knows_limits_and_options_of_shares() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serve.md");
        let guide = std::fs::read_to_string(guide).unwrap();
        let limits =
            SETTINGS.iter().filter(|s| s.name.ends_with("_max") || s.name.ends_with("_time"));
        for setting in limits.chain(SHARE_OPTIONS) {
            assert!(
                guide.contains(&format!("`{}`", setting.name)),
                "{} is not in it",
                setting.name
            );
        }
    }

    #[test]
    fn switches_take_no_word_that_follows() {
        let with = options(&["--guest", "--leases=off", "/x"]);
        let written: Vec<_> = with.written.iter().map(|(s, text)| (s.name, &**text)).collect();
        assert_eq!(written, [("guest", "on"), ("leases", "off")]);
        assert_eq!(with.path, Some("/x".into()));
    }

    #[test]
    fn what_is_wrong_says_who_wrote_it_and_what_would_be_right() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("", &[], &["nothing to share", "--share NAME=PATH"]),
            ("", &["/"], &["root", "nobody could log on", "user add", "--guest"]),
            ("", &["--guest", "--share", "x"], &["--share x", "NAME=PATH"]),
            ("", &["--guest", "--share", "x=/not/there"], &["share x", "no such folder"]),
            ("", &["--guest", "--share", "x=/dev/null"], &["only folders"]),
            (
                "",
                &["--guest", "/", "--share", "a=/", "--share", "A=/"],
                &["two shares of this name"],
            ),
            ("", &["--user", "ann", "/"], &["--user", "NAME:PASSWORD"]),
            ("", &["--user", "a/b:x", "/"], &["--user", "cannot be the name"]),
            ("", &["--users", "/not/there", "/"], &["/not/there", "user add"]),
            ("", &["--vectors", "0", "--guest", "/"], &["--vectors", "1 to 64"]),
            (
                "[serve]\nopens = 1\n",
                &["/"],
                &["config.toml:2", "no such setting: opens", "opens_max"],
            ),
            ("[serve]\nguest = 3\n", &["/"], &["config.toml:2", "on or off"]),
            ("[serve]\nshare = 3\n", &["/"], &["config.toml:2", "share", "a table"]),
            (
                "[serve.share.a]\npath = \"/\"\nro = 7\n",
                &["--guest"],
                &["config.toml:3", "on or off"],
            ),
            ("[serve.share.a]\npath = \"x\"\n", &["--guest"], &["config.toml:2", "absolute"]),
            ("[serve.share.a]\nro = true\n", &["--guest"], &["config.toml:1", "path is missing"]),
        ];
        for (file, arguments, parts) in cases {
            let words = match load(file, arguments) {
                Err(bad) => format!("{bad:#}"),
                // The folder `/` has no name of its own.
                Ok(config) if parts[0] == "root" => config.shares[0].name.clone(),
                Ok(_) => panic!("{file:?} {arguments:?} is taken"),
            };
            let parts = if parts[0] == "root" { &parts[1..] } else { parts };
            for part in parts {
                assert!(words.contains(part), "{file:?} {arguments:?}: {part} is not in: {words}");
            }
        }
    }

    /// A reload waited for its file system before it let go of users who had been taken out.
    #[test]
    fn a_folder_is_looked_at_for_its_name_only_once() {
        let (dir, _) = desk("");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("files", &link).unwrap();
        let link = link.to_str().unwrap();
        let options = options(&["--config", "/dev/null", "--guest", link]);
        let config = options.load().unwrap();
        assert_eq!(config.shares[0].path, dir.path().join("files").canonicalize().unwrap());
        std::fs::remove_dir(dir.path().join("files")).unwrap();
        let config = options.read().unwrap();
        assert_eq!(config.shares, [ShareConfig::new("files", link)]);
    }

    #[test]
    fn a_password_in_a_file_that_others_read_is_refused() {
        let (dir, path) = desk("[serve]\nuser = \"ann:secret\"\nshare = \"a=/\"\n");
        assert!(options(&["--config", &path]).load().is_ok());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let words = format!("{:#}", options(&["--config", &path]).load().unwrap_err());
        assert!(words.contains("chmod 600") && !words.contains("secret"), "{words}");
        drop(dir);
    }
}

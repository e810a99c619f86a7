//! The settings of `shunt run`, merged: options over environment over configuration file.
//!
//! Each value remembers who wrote it, so that an error names the option, the variable, or the file
//! and line. What the values mean is not known here: [`local::config`] says.

use std::collections::BTreeMap;
use std::env::VarError;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use local::Limits;
use local::config::{SETTINGS, Setting};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use crate::serve::SERVE;

/// The setting that `--off` writes.
const SWITCH: &str = "enabled";
/// The setting that says where the board is.
const DIR: &str = "dir";
/// Settings that can contradict each other.
const RINGS: [&str; 2] = ["ring_min", "ring_max"];
/// The section of the configuration file that is about the engine.
pub(crate) const ENGINE: &str = "engine";
/// Names the configuration file.
const CONFIG: &str = "SHUNT_CONFIG";
/// Where the host's own settings are, for all users.
const HOSTS: &str = "/etc";
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Who wrote a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The configuration file, and its line.
    File(PathBuf, usize),
    /// A variable of the environment.
    Environment(&'static str),
    /// An option on the command line.
    Option(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "{name} in the environment"),
            Self::Option(name) => f.write_str(name),
        }
    }
}

/// A setting as somebody wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Which.
    pub(crate) setting: &'static str,
    /// The value, as [`Limits::set`] takes it.
    pub(crate) text: String,
    /// Who wrote it.
    pub(crate) source: Source,
}

/// Something that is wrong with what somebody wrote.
#[derive(Debug)]
pub(crate) struct Mistake {
    wrong: Wrong,
    about: About,
    rank: Rank,
}

/// What is wrong, and where in the configuration file, if it is there.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// In words, with the place.
    pub(crate) error: anyhow::Error,
    /// Its line.
    pub(crate) line: Option<usize>,
}

impl Wrong {
    /// Something wrong with what is written there.
    pub(crate) fn at(source: &Source, bad: impl fmt::Display) -> Self {
        Self { error: anyhow!("{source}: {bad}"), line: source.line() }
    }
}

impl From<anyhow::Error> for Wrong {
    /// Of which nobody knows in which line it is.
    fn from(error: anyhow::Error) -> Self {
        Self { error, line: None }
    }
}

impl From<Wrong> for anyhow::Error {
    fn from(wrong: Wrong) -> Self {
        wrong.error
    }
}

/// What a mistake is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// The whole file: nobody knows what it says.
    File,
    /// This setting, or one that looks like it.
    Setting(&'static str),
    /// A name that is no setting's.
    Nothing,
}

/// Who wins over whom: the last one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    File,
    Environment,
    Option,
}

impl Source {
    /// The line of the configuration file.
    pub(crate) const fn line(&self) -> Option<usize> {
        match self {
            Self::File(_, line) => Some(*line),
            Self::Environment(_) | Self::Option(_) => None,
        }
    }

    const fn rank(&self) -> Rank {
        match self {
            Self::File(..) => Rank::File,
            Self::Environment(_) => Rank::Environment,
            Self::Option(_) => Rank::Option,
        }
    }
}

impl Mistake {
    fn of(setting: &'static str, source: &Source, bad: impl fmt::Display) -> Self {
        let (about, rank) = (About::Setting(setting), source.rank());
        Self { wrong: Wrong::at(source, bad), about, rank }
    }

    const fn of_the_file(wrong: Wrong) -> Self {
        Self { wrong, about: About::File, rank: Rank::File }
    }

    /// Whether nobody knows what the file says.
    pub(crate) fn is_of_the_whole_file(&self) -> bool {
        self.about == About::File
    }

    /// Whether it is in the command line, and not in what others have written for all programs.
    pub(crate) fn is_of_options(&self) -> bool {
        self.rank == Rank::Option
    }

    /// Whether because of it nobody knows what `setting` is to be.
    fn hides(&self, setting: &str, winner: Option<&Source>) -> bool {
        let concerns = match self.about {
            About::File => true,
            About::Setting(name) => name == setting,
            About::Nothing => false,
        };
        concerns && winner.is_none_or(|winner| winner.rank() <= self.rank)
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.wrong.error)
    }
}

impl From<Mistake> for Wrong {
    fn from(mistake: Mistake) -> Self {
        mistake.wrong
    }
}

impl From<Mistake> for anyhow::Error {
    fn from(mistake: Mistake) -> Self {
        mistake.wrong.error
    }
}

/// All settings that make sense, checked if all do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Merged {
    /// What the settings amount to.
    pub(crate) limits: Limits,
    /// The value that won, for each setting that somebody wrote.
    written: BTreeMap<&'static str, Written>,
    /// The configuration file that was read.
    pub(crate) file: Option<PathBuf>,
    /// One that would have been, and is closed to this user.
    closed: Option<PathBuf>,
}

impl Merged {
    /// Who wrote the value of a setting; `None`: nobody, it is the default.
    pub(crate) fn source(&self, setting: &str) -> Option<&Source> {
        self.written.get(setting).map(|w| &w.source)
    }

    /// What to tell of a file whose settings do not count, or that may be there in a folder which is closed.
    pub(crate) fn closed(&self) -> Option<String> {
        let path = self.closed.as_ref()?;
        let is = if path.symlink_metadata().is_ok() { "is" } else { "may be there, and is" };
        Some(format!("{} {is} closed to this user, and its settings do not count", path.display()))
    }

    /// The same, only if it is there for certain.
    pub(crate) fn closed_for_certain(&self) -> Option<String> {
        self.closed()
            .filter(|_| self.closed.as_ref().is_some_and(|at| at.symlink_metadata().is_ok()))
    }

    /// The same with every connection left on TCP.
    pub(crate) fn switched_off(mut self) -> Self {
        self.limits.enabled = false;
        let source = Source::Environment("SHUNT_ENABLED");
        self.written.insert(SWITCH, Written { setting: SWITCH, text: "off".into(), source });
        self
    }

    /// The environment that hands the settings on: each variable with its value, or `None` where
    /// it is to be absent.
    pub(crate) fn exports(&self) -> impl Iterator<Item = (&'static str, Option<&str>)> {
        SETTINGS.iter().map(|s| (s.env, self.written.get(s.name).map(|w| w.text.as_str())))
    }
}

/// The options that settings can be given by.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingOptions {
    /// The configuration file, if named.
    config: Option<PathBuf>,
    /// Settings given.
    written: Vec<Written>,
}

impl SettingOptions {
    /// As `shunt doctor`, `stat` and `top` have them: a file and a directory.
    pub(crate) fn with_dir(config: Option<PathBuf>, dir: Option<String>) -> Self {
        let written = dir.map(|text| Written {
            setting: "dir",
            text,
            source: Source::Option("--dir".into()),
        });
        Self { config, written: written.into_iter().collect() }
    }
}

/// The option of a setting, without its dashes in front: `spin_us` is `spin-us`.
fn option_name(setting: &Setting) -> String {
    setting.name.replace('_', "-")
}

fn value_name(setting: &Setting) -> &'static str {
    match setting.name {
        "spin_us" | "nap_us" => "MICROSECONDS",
        "ring_min" | "ring_max" | "memory_max" => "SIZE",
        "include" | "exclude" => "RULES",
        "log" => "LEVEL",
        "log_file" => "FILE",
        "dir" => "DIR",
        _ => "VALUE",
    }
}

fn setting_argument(setting: &'static Setting) -> Arg {
    if setting.name == SWITCH {
        return Arg::new(setting.name).long("off").action(ArgAction::SetTrue).help(format!(
            "Run the program without Shunt: nothing is loaded, every connection stays on TCP \
             [also {}=off]",
            setting.env
        ));
    }
    Arg::new(setting.name)
        .long(option_name(setting))
        .value_name(value_name(setting))
        // `--spin-us -1` is a bad value and not a strange option.
        .allow_negative_numbers(true)
        .help(format!("{} [also {}]", option_help(setting), setting.env))
}

/// What a setting does, as a sentence begins.
fn option_help(setting: &Setting) -> String {
    match setting.name {
        "log" => format!("How much the library says: {}", setting.help),
        _ => capitalised(setting.help),
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

impl Args for SettingOptions {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Configuration file [also SHUNT_CONFIG] [~/.config/shunt/config.toml or /etc/shunt/config.toml]");
        command.args(SETTINGS.iter().map(setting_argument)).arg(file)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options =
            Self { config: matches.get_one::<PathBuf>("config").cloned(), written: Vec::new() };
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in SETTINGS {
            let (text, option) = if setting.name == SWITCH {
                (matches.get_flag(setting.name).then(|| "off".to_owned()), "--off".to_owned())
            } else {
                let text = matches.get_one::<String>(setting.name).cloned();
                (text, format!("--{}", option_name(setting)))
            };
            if let Some(text) = text {
                let source = Source::Option(option);
                self.written.push(Written { setting: setting.name, text, source });
            }
        }
        Ok(())
    }
}

/// Looks up one variable of the environment.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Result<String, VarError>;

/// Reads and merges everything for this process; what makes no sense is passed over, and told.
pub(crate) fn look(options: &SettingOptions) -> (Merged, Vec<Mistake>) {
    gather(options, &|name| std::env::var(name))
}

/// The same of the configuration file alone, whatever else is in the environment.
pub(crate) fn look_at_file(options: &SettingOptions) -> (Merged, Vec<Mistake>) {
    gather(options, &|name| match name {
        CONFIG | "XDG_CONFIG_HOME" | "HOME" => std::env::var(name),
        _ => Err(VarError::NotPresent),
    })
}

/// The same for who needs to know where the board is, and nothing else: also what else is wrong, which is no business of
/// theirs.
pub(crate) fn look_for_dir(options: &SettingOptions) -> anyhow::Result<(Merged, Option<Mistake>)> {
    dir_of(look(options))
}

fn dir_of((merged, mistakes): (Merged, Vec<Mistake>)) -> anyhow::Result<(Merged, Option<Mistake>)> {
    let hides = |bad: &Mistake| bad.is_of_options() || bad.hides(DIR, merged.source(DIR));
    let (hiding, others): (Vec<_>, Vec<_>) = mistakes.into_iter().partition(hides);
    match hiding.into_iter().next() {
        Some(bad) => Err(bad.into()),
        None => Ok((merged, others.into_iter().next())),
    }
}

/// Reads and merges everything for this process; all of it must make sense.
pub(crate) fn load(options: &SettingOptions) -> anyhow::Result<Merged> {
    strictly(look(options))
}

fn strictly((merged, mistakes): (Merged, Vec<Mistake>)) -> anyhow::Result<Merged> {
    mistakes.into_iter().next().map_or(Ok(merged), |bad| Err(bad.into()))
}

/// Merges options over `environment` over the configuration file; all of it must make sense.
#[cfg(test)]
pub(crate) fn merge(
    options: &SettingOptions,
    environment: Environment<'_>,
) -> anyhow::Result<Merged> {
    strictly(gather(options, environment))
}

/// Merges options over `environment` over the configuration file, as far as they make sense.
pub(crate) fn gather(
    options: &SettingOptions,
    environment: Environment<'_>,
) -> (Merged, Vec<Mistake>) {
    let mut merged = Merged::default();
    let mut mistakes = Vec::new();
    let mut layers = Vec::new();
    match find_file(options, environment) {
        Ok(Found { file, closed }) => {
            merged.closed = closed;
            if let Some((path, text)) = file {
                match parse_file(&path, &text) {
                    Ok((written, bad)) => {
                        layers.extend(written);
                        mistakes.extend(bad);
                    }
                    Err(bad) => mistakes.extend(bad.into_iter().map(Mistake::of_the_file)),
                }
                merged.file = Some(path);
            }
        }
        Err(error) => {
            // Who names one means one that is there.
            let rank = if options.config.is_some() { Rank::Option } else { Rank::File };
            mistakes.push(Mistake { wrong: error.into(), about: About::File, rank });
        }
    }
    let (written, bad) = from_environment(environment);
    layers.extend(written);
    mistakes.extend(bad);
    layers.extend(options.written.iter().cloned());
    for written in layers {
        // Also what will be overridden: a mistake is better found on the first day.
        match merged.limits.set(written.setting, &written.text) {
            Ok(()) => drop(merged.written.insert(written.setting, written)),
            Err(bad) => mistakes.push(Mistake::of(written.setting, &written.source, bad)),
        }
    }
    match merged.limits.clone().checked() {
        Ok(limits) => merged.limits = limits,
        Err(bad) => {
            let error = anyhow!("{}{bad}", blame(&merged.written));
            let sources = || RINGS.iter().filter_map(|name| merged.source(name));
            let rank = sources().map(Source::rank).max().unwrap_or(Rank::File);
            let wrong = Wrong { error, line: sources().find_map(Source::line) };
            mistakes.push(Mistake { wrong, about: About::Setting(RINGS[0]), rank });
        }
    }
    (merged, mistakes)
}

/// Who wrote the two settings that can contradict each other.
fn blame(written: &BTreeMap<&'static str, Written>) -> String {
    let sources: Vec<String> = RINGS
        .iter()
        .filter_map(|name| Some(format!("{name} is from {}", written.get(name)?.source)))
        .collect();
    if sources.is_empty() { String::new() } else { format!("{}: ", sources.join(", ")) }
}

fn from_environment(environment: Environment<'_>) -> (Vec<Written>, Vec<Mistake>) {
    let mut written = Vec::new();
    let mut mistakes = Vec::new();
    for setting in SETTINGS {
        let source = Source::Environment(setting.env);
        match environment(setting.env) {
            // `SHUNT_LOG= shunt run …` is how a shell unsets a variable for one command.
            Ok(text) if !text.is_empty() => {
                written.push(Written { setting: setting.name, text, source });
            }
            Ok(_) | Err(VarError::NotPresent) => {}
            Err(VarError::NotUnicode(_)) => {
                let wrong = anyhow!("{source} is not UTF-8").into();
                let about = About::Setting(setting.name);
                mistakes.push(Mistake { wrong, about, rank: Rank::Environment });
            }
        }
    }
    (written, mistakes)
}

/// Variables of this process that are nobody's, and look like one that is: each with that one.
pub(crate) fn mistyped_here() -> Vec<(String, &'static str)> {
    mistyped(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

fn mistyped(variables: impl Iterator<Item = String>) -> Vec<(String, &'static str)> {
    let known = || SETTINGS.iter().map(|setting| setting.env).chain([CONFIG, "SHUNT_DIR"]);
    let plain = |s: &str| s.to_uppercase().replace('_', "");
    let meant = |name: String| {
        if known().any(|one| one == name) || !name.to_uppercase().starts_with("SHUNT") {
            return None;
        }
        let like = |one: &&str| plain(one) == plain(&name) || distance(one, &name) <= 2;
        known().find(like).map(|one| (name, one))
    };
    variables.filter_map(meant).collect()
}

/// Where settings are.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The configuration file's path and text, if there is one.
    pub(crate) file: Option<(PathBuf, String)>,
    /// One that comes before it, and is closed to this user.
    closed: Option<PathBuf>,
}

/// Looks for the configuration file.
pub(crate) fn find_file(
    options: &SettingOptions,
    environment: Environment<'_>,
) -> anyhow::Result<Found> {
    let variable = |name: &str| environment(name).ok().filter(|v| !v.is_empty());
    let named = match (&options.config, environment(CONFIG)) {
        (Some(path), _) => Some((path.clone(), "--config")),
        (None, Ok(path)) if !path.is_empty() => Some((PathBuf::from(path), CONFIG)),
        (None, Err(VarError::NotUnicode(_))) => bail!("{CONFIG} in the environment is not UTF-8"),
        (None, _) => None,
    };
    if let Some((path, who)) = named {
        let text = read(&path).with_context(|| format!("{who}: {}", path.display()))?;
        return Ok(Found { file: Some((path, text)), closed: None });
    }
    let home = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(Path::new(&variable("HOME")?).join(".config")));
    let places = home.into_iter().chain([PathBuf::from(HOSTS)]);
    first_of(places.map(|dir| dir.join("shunt/config.toml")), read)
}

/// The first file that there is.
fn first_of(
    places: impl Iterator<Item = PathBuf>,
    read: impl Fn(&Path) -> std::io::Result<String>,
) -> anyhow::Result<Found> {
    use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    let mut closed = None;
    for path in places {
        match read(&path) {
            Ok(text) => return Ok(Found { file: Some((path, text)), closed }),
            Err(e) if matches!(e.kind(), NotFound | NotADirectory) => {}
            // A folder that this user may not search (another user's home in the environment) holds nothing for this
            // user. What is the host's is for everybody, and a file that is there was meant to be read. One that was
            // named must be readable.
            Err(e) if e.kind() == PermissionDenied => {
                if path.starts_with(HOSTS) || path.symlink_metadata().is_ok() {
                    closed = closed.or(Some(path));
                }
            }
            Err(e) => return Err(e).with_context(|| path.display().to_string()),
        }
    }
    Ok(Found { file: None, closed })
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

pub(crate) fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|b| *b == b'\n').count()
}

/// Whether a table of the configuration file, if that is what it is, is somebody's section.
///
/// # Errors
///
/// In words: it is nobody's.
pub(crate) fn known_section(name: &str, value: &DeValue<'_>) -> Result<(), String> {
    if matches!(value, DeValue::Table(_)) && ![ENGINE, SERVE].contains(&name) {
        let probably = nearest(name, [ENGINE, SERVE].into_iter());
        let probably = probably.map(|name| format!("did you mean {name}? ")).unwrap_or_default();
        return Err(format!("no such section: {name} ({probably}there are: {ENGINE}, {SERVE})"));
    }
    Ok(())
}

/// The tables and values in the text of a configuration file; all that is no TOML, if something is not.
pub(crate) fn parse_table<'a>(
    path: &Path,
    text: &'a str,
) -> Result<Spanned<DeTable<'a>>, Vec<Wrong>> {
    let (table, bad) = DeTable::parse_recoverable(text);
    let wrong = |e: &toml::de::Error| {
        let line = e.span().map_or(1, |span| line_of(text, span.start));
        Wrong::at(&Source::File(path.to_owned(), line), e.message())
    };
    if bad.is_empty() { Ok(table) } else { Err(bad.iter().map(wrong).collect()) }
}

/// Settings in the text of a configuration file, and what else is there that should not be.
fn parse_file(path: &Path, text: &str) -> Result<(Vec<Written>, Vec<Mistake>), Vec<Wrong>> {
    let table = parse_table(path, text)?;
    let mut written = Vec::new();
    let mut mistakes = Vec::new();
    for (key, value) in table.get_ref() {
        let source = Source::File(path.to_owned(), line_of(text, key.span().start));
        let name: &str = key.get_ref();
        if [ENGINE, SERVE].contains(&name) && matches!(value.get_ref(), DeValue::Table(_)) {
            continue;
        }
        let nobodys = |wrong| Mistake { wrong, about: About::Nothing, rank: Rank::File };
        if let Err(bad) = known_section(name, value.get_ref()) {
            mistakes.push(nobodys(Wrong::at(&source, bad)));
            continue;
        }
        let Some(setting) = SETTINGS.iter().find(|s| s.name == name) else {
            let names = || SETTINGS.iter().map(|s| s.name);
            let wrong = Wrong::at(&source, no_such_setting(name, names));
            let about = nearest(name, names()).map_or(About::Nothing, About::Setting);
            mistakes.push(Mistake { about, ..nobodys(wrong) });
            continue;
        };
        match value_text(value) {
            Ok(text) => written.push(Written { setting: setting.name, text, source }),
            Err(bad) => {
                let wrong = Wrong::at(&source, format_args!("{name}: {}: {bad:#}", setting.help));
                let about = About::Setting(setting.name);
                mistakes.push(Mistake { about, ..nobodys(wrong) });
            }
        }
    }
    Ok((written, mistakes))
}

/// What a section of the configuration file says.
#[derive(Debug, Default)]
pub(crate) struct Section {
    /// Settings that there are.
    pub(crate) written: Vec<Written>,
    /// What is there that should not be.
    pub(crate) wrong: Vec<Wrong>,
}

/// Settings in the section of the engine of the configuration file; `known` are all that there are.
pub(crate) fn engine_section(
    options: &SettingOptions,
    known: &[engine::remote::config::Setting],
) -> anyhow::Result<Section> {
    let Some((path, text)) = find_file(options, &|name| std::env::var(name))?.file else {
        return Ok(Section::default());
    };
    let table = match parse_table(&path, &text) {
        Ok(table) => table,
        Err(wrong) => return Ok(Section { wrong, ..Section::default() }),
    };
    let Some(DeValue::Table(entries)) = table.get_ref().get(ENGINE).map(Spanned::get_ref) else {
        return Ok(Section::default());
    };
    let mut section = Section::default();
    for (key, value) in entries {
        let source = Source::File(path.clone(), line_of(&text, key.span().start));
        let name: &str = key.get_ref();
        let Some(setting) = known.iter().find(|s| s.name == name) else {
            let bad = no_such_setting(name, || known.iter().map(|s| s.name));
            section.wrong.push(Wrong::at(&source, bad));
            continue;
        };
        match value_text(value) {
            Ok(text) => section.written.push(Written { setting: setting.name, text, source }),
            Err(bad) => section.wrong.push(Wrong::at(&source, format_args!("{name}: {bad:#}"))),
        }
    }
    Ok(section)
}

/// A value as people would write it in the environment.
pub(crate) fn value_text(value: &Spanned<DeValue<'_>>) -> anyhow::Result<String> {
    Ok(match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Boolean(true) => "on".into(),
        DeValue::Boolean(false) => "off".into(),
        DeValue::Integer(n) => number_text(n)?,
        DeValue::Array(items) => {
            let texts: anyhow::Result<Vec<String>> = items
                .iter()
                .map(|item| match item.get_ref() {
                    DeValue::String(text) => Ok(text.to_string()),
                    DeValue::Integer(n) => number_text(n),
                    other => {
                        bail!("a list of strings or numbers is wanted, not of {}", other.type_str())
                    }
                })
                .collect();
            texts?.join(",")
        }
        other => bail!("a {} makes no sense here", other.type_str()),
    })
}

fn number_text(n: &DeInteger<'_>) -> anyhow::Result<String> {
    let number = i64::from_str_radix(n.as_str(), n.radix()).context("the number is too large")?;
    Ok(number.to_string())
}

/// Which of these names was probably meant.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |s: &str| s.to_lowercase().replace(['-', '_'], "");
    let far = |one: &str| if plain(one) == plain(name) { 0 } else { distance(one, name) };
    known.map(|one| (far(one), one)).filter(|(far, _)| *far <= 2).min().map(|(_, one)| one)
}

/// What to say of a name that is no setting's: which was meant, or else which there are.
pub(crate) fn no_such_setting<'a, I: Iterator<Item = &'a str>>(
    name: &str,
    known: impl Fn() -> I,
) -> String {
    let which = match nearest(name, known()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("there are: {}", known().collect::<Vec<_>>().join(", ")),
    };
    format!("no such setting: {name} ({which})")
}

/// Edits between two short words (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
pub(crate) mod tests;

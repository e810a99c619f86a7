//! `shunt config`: what is wrong with the configuration file, and which settings are in force.
//!
//! Nothing is understood here: each section is read by what its own program reads it with.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use engine::remote::users::Users;
use engine::serve::config::SHARE_OPTIONS;
use local::config::SETTINGS;
use serde::Serialize;

use crate::config::{self, SettingOptions, Source, Written, Wrong};
use crate::{doctor, engine as remote, say, serve};

/// Version of the JSON objects: a field may be added, but none changes its meaning within one.
const JSON_VERSION: u32 = 1;
/// Who says what nobody says.
const USUAL: &str = "default";
/// Where the names of those who say it begin.
const COLUMN: usize = 40;

#[derive(Args, Debug)]
pub(crate) struct ConfigArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say all that is wrong with the configuration file, and with the files that it names
    #[command(
        long_about = "Say all that is wrong with the configuration file: names that are none, values out of range, settings \
            that contradict each other; and with what it names, as it is for who asks: files of users and keys, folders of \
            shares, directories, devices, users, addresses and the control group of an engine. A line each, with the line of the \
            file.\n\n\
            What is in the environment does not count here. Options of a command are not known either: who names folders or \
            users there may leave them out of the file."
    )]
    Check(Of),
    /// Print the settings in force, each with who says so
    #[command(
        long_about = "Print the settings in force for programs that are started here, an engine and a server, each with who says \
            so: the file and its line, a variable of the environment, or nobody (default). It is a configuration file itself, \
            but that passwords are left out. What is wrong is told on standard error, and has no effect; with a mistake in what \
            is for programs, these stay on TCP."
    )]
    Show(Of),
}

/// Of which file, and how it is told.
#[derive(Args, Debug)]
struct Of {
    /// The configuration file [also SHUNT_CONFIG] [~/.config/shunt/config.toml or /etc/shunt/config.toml]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Does it; the exit status.
pub(crate) fn config(arguments: &ConfigArguments) -> anyhow::Result<u8> {
    let (text, is_good) = match &arguments.action {
        Action::Check(of) => {
            let checked = Checked::of(of.file.clone());
            (told(of.json, &checked, Checked::text)?, checked.valid)
        }
        Action::Show(of) => {
            let shown = Shown::of(of.file.clone())?;
            for bad in shown.mistakes.iter().filter(|_| !of.json) {
                say::line(format_args!("shunt: {}", bad.with_place(shown.file.as_deref())));
            }
            (told(of.json, &shown, Shown::text)?, shown.mistakes.is_empty())
        }
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(u8::from(!is_good))
}

fn told<T: Serialize>(json: bool, what: &T, text: fn(&T) -> String) -> anyhow::Result<String> {
    Ok(if json { serde_json::to_string_pretty(what)? + "\n" } else { text(what) })
}

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Bad {
    /// Where in the file.
    line: Option<usize>,
    /// What, without that.
    words: String,
}

impl Bad {
    fn of(wrong: &Wrong, file: Option<&Path>) -> Self {
        let words = format!("{:#}", wrong.error);
        let place = file.zip(wrong.line).map(|(file, line)| format!("{}:{line}: ", file.display()));
        let bare = place.and_then(|place| words.strip_prefix(&place).map(str::to_owned));
        Self { line: wrong.line, words: bare.unwrap_or(words) }
    }

    /// As who starts a program is told.
    fn with_place(&self, file: Option<&str>) -> String {
        match (file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}: {}", self.words),
            _ => self.words.clone(),
        }
    }
}

/// In the order of the file, each once: what is no section at all is everybody's business.
fn in_order(all: &[Wrong], file: Option<&Path>) -> Vec<Bad> {
    let mut told: Vec<Bad> = Vec::new();
    for bad in all.iter().map(|wrong| Bad::of(wrong, file)) {
        if !told.contains(&bad) {
            told.push(bad);
        }
    }
    told.sort_by_key(|bad| bad.line.unwrap_or(usize::MAX));
    told
}

/// What `shunt config check` says.
#[derive(Clone, Debug, Serialize)]
struct Checked {
    version: u32,
    /// The file that was read; `None`: there is none.
    file: Option<String>,
    /// Whether nothing is wrong.
    valid: bool,
    mistakes: Vec<Bad>,
    /// What may be meant.
    warnings: Vec<String>,
}

impl Checked {
    fn of(file: Option<PathBuf>) -> Self {
        let place = SettingOptions::with_dir(file.clone(), None);
        let (merged, mistakes) = config::look_at_file(&place);
        let is_understood = !mistakes.iter().any(config::Mistake::is_of_the_whole_file);
        let mut wrong: Vec<Wrong> = mistakes.into_iter().map(Wrong::from).collect();
        let mut warnings: Vec<String> = merged.closed().into_iter().collect();
        if is_understood && merged.file.is_some() {
            if let (Some(dir), Some(source)) = (&merged.limits.dir, merged.source("dir"))
                && let Some(bad) = doctor::wrong_directory(dir)
            {
                wrong.push(Wrong::at(source, format_args!("dir: {bad}")));
            }
            wrong.extend(remote::mistakes_in_file(&place));
            for (bad, told) in
                [remote::mistakes_beside_file(&place), serve::mistakes::in_file_and_beside(&place)]
            {
                wrong.extend(bad);
                warnings.extend(told);
            }
        }
        let mistakes = in_order(&wrong, merged.file.as_deref());
        let file = merged.file.as_ref().or(file.as_ref()).map(|file| file.display().to_string());
        Self { version: JSON_VERSION, file, valid: mistakes.is_empty(), mistakes, warnings }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for bad in &self.mistakes {
            text += &bad.with_place(self.file.as_deref());
            text.push('\n');
        }
        for words in &self.warnings {
            text += &format!("{words}\n");
        }
        let verdict = match (&self.file, self.mistakes.len()) {
            (None, 0) => "there is no configuration file: all settings have their defaults".into(),
            (Some(file), 0) => format!("{file}: valid"),
            (file, n) => {
                let file = file.as_deref().unwrap_or("configuration file");
                format!("{file}: {n} mistake{}", if n == 1 { "" } else { "s" })
            }
        };
        text + &verdict + "\n"
    }
}

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct InForce {
    name: &'static str,
    /// As people write it; `None`: it is not set, and there is no default that could be written.
    value: Option<String>,
    /// Who says so.
    source: String,
}

/// Settings that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Section {
    /// As the file calls it; `None`: outside of sections, for programs.
    name: Option<String>,
    settings: Vec<InForce>,
}

/// What `shunt config show` says.
#[derive(Clone, Debug, Serialize)]
struct Shown {
    version: u32,
    file: Option<String>,
    sections: Vec<Section>,
    mistakes: Vec<Bad>,
}

fn who(source: Option<&Source>) -> String {
    source.map_or_else(|| USUAL.to_owned(), ToString::to_string)
}

fn source_in<'a>(written: &'a [Written], name: &str) -> Option<&'a Source> {
    // The one that was written last counts.
    written.iter().rev().find(|written| written.setting == name).map(|written| &written.source)
}

impl Shown {
    fn of(file: Option<PathBuf>) -> anyhow::Result<Self> {
        let place = SettingOptions::with_dir(file, None);
        let (merged, mistakes) = config::look(&place);
        let (whole, others): (Vec<_>, Vec<_>) =
            mistakes.into_iter().partition(config::Mistake::is_of_the_whole_file);
        let mut wrong: Vec<Wrong> = whole.into_iter().map(Wrong::from).collect();
        // One that was named, and cannot be read.
        if merged.file.is_none()
            && let Some(bad) = wrong.pop()
        {
            return Err(bad.into());
        }
        wrong.extend(others.into_iter().map(Wrong::from));
        let of_programs = |name| InForce {
            name,
            value: merged.limits.show(name),
            source: who(merged.source(name)),
        };
        let programs = SETTINGS.iter().map(|setting| of_programs(setting.name)).collect();
        let mut sections = vec![Section { name: None, settings: programs }];
        let (engine, written, _) = remote::read(&place)?;
        wrong.extend(remote::mistakes_in_file(&place));
        let of_engine = |name| {
            let shown =
                InForce { name, value: engine.show(name), source: who(source_in(&written, name)) };
            // It shares the programs' directory, but for that of several users.
            match name {
                "dir" if shown.value.is_none() && engine.users == Users::Own => of_programs(name),
                _ => shown,
            }
        };
        let known = engine::remote::config::SETTINGS.iter();
        let settings = known.map(|setting| of_engine(setting.name)).collect();
        sections.push(Section { name: Some(config::ENGINE.to_owned()), settings });
        let server = serve::mistakes::read(&place)?;
        sections.extend(Self::of_server(&server));
        wrong.extend(server.wrong);
        let mistakes = in_order(&wrong, merged.file.as_deref());
        let file = merged.file.as_ref().map(|file| file.display().to_string());
        Ok(Self { version: JSON_VERSION, file, sections, mistakes })
    }

    fn of_server(server: &serve::mistakes::Read) -> Vec<Section> {
        let of_server = |name| InForce {
            name,
            value: server.config.show(name),
            source: who(source_in(server.written(), name)),
        };
        let known = engine::serve::config::SETTINGS.iter();
        let settings = known.map(|setting| of_server(setting.name)).collect();
        let mut sections = vec![Section { name: Some(serve::SERVE.to_owned()), settings }];
        for (share, source) in server.shares() {
            let options = SHARE_OPTIONS.iter().map(|option| option.name);
            let usual = engine::serve::config::ShareConfig::new(&*share.name, "");
            let of_share = |name| {
                let value = share.show(name);
                let source =
                    if value == usual.show(name) { USUAL.into() } else { source.to_string() };
                InForce { name, value, source }
            };
            let settings = ["path"].into_iter().chain(options).map(of_share).collect();
            let name = format!("{}.share.{}", serve::SERVE, key(&share.name));
            sections.push(Section { name: Some(name), settings });
        }
        sections
    }

    /// A configuration file that says the same.
    fn text(&self) -> String {
        let mut text = match &self.file {
            Some(file) => format!("# {file}\n"),
            None => "# There is no configuration file.\n".to_owned(),
        };
        for section in &self.sections {
            if let Some(name) = &section.name {
                text += &format!("\n[{name}]\n");
            }
            for setting in &section.settings {
                let line = match &setting.value {
                    Some(value) => format!("{} = {}", setting.name, toml_text(value)),
                    None => format!("#{} =", setting.name),
                };
                let source = if setting.value.is_none() { "not set" } else { &setting.source };
                text += &format!("{line:<COLUMN$} # {source}\n");
            }
        }
        text
    }
}

/// A value as the file has it: a number, or a string.
fn toml_text(value: &str) -> String {
    let is_number = value.parse::<u32>().is_ok_and(|n| n.to_string() == value);
    if is_number { value.to_owned() } else { serde_json::Value::from(value).to_string() }
}

/// A name as a key of TOML.
fn key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    match !name.is_empty() && name.chars().all(is_bare) {
        true => name.to_owned(),
        false => serde_json::Value::from(name).to_string(),
    }
}

#[cfg(test)]
mod tests;

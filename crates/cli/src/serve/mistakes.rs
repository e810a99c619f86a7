//! What is wrong with the section `[serve]`, all of it, for who does not start a server.

use engine::serve::config::{Config, ShareConfig};
use engine::serve::try_keytab;

use super::file::{self, Section};
use super::options::Folder;
use super::{host_name, options};
use crate::config::{SettingOptions, Source, Written, Wrong};

/// Settings of the section that make sense, and what does not.
pub(crate) struct Read {
    pub(crate) config: Config,
    pub(super) section: Section,
    pub(crate) wrong: Vec<Wrong>,
}

impl Read {
    /// What the section says, of what makes sense.
    pub(crate) fn written(&self) -> &[Written] {
        &self.section.written
    }

    /// Its shares, and where they are written.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (&ShareConfig, &Source)> {
        self.section.shares.iter().map(|(share, source)| (share, source))
    }
}

/// Reads it, as far as it makes sense.
pub(crate) fn read(place: &SettingOptions) -> anyhow::Result<Read> {
    let mut section = file::read(place)?;
    let mut wrong = std::mem::take(&mut section.wrong);
    let mut config = Config { name: host_name(), ..Config::default() };
    section.written.retain(|written| {
        let set = config.set(written.setting, &written.text);
        set.map_err(|bad| wrong.push(Wrong::at(&written.source, bad))).is_ok()
    });
    config.shares = section.shares.iter().map(|(share, _)| share.clone()).collect();
    if let Err(bad) = config.clone().checked() {
        // The one that is further down.
        let of_that_name = section
            .shares
            .iter()
            .filter(|(share, _)| bad.name == "share" && smb::name::same(&share.name, &bad.value));
        let share = of_that_name.map(|(_, source)| source).max_by_key(|source| source.line());
        wrong.push(at(section.source(&bad.name).or(share), bad.into()));
    }
    Ok(Read { config, section, wrong })
}

fn at(source: Option<&Source>, bad: anyhow::Error) -> Wrong {
    match source {
        Some(source) => Wrong::at(source, format_args!("{bad:#}")),
        None => bad.into(),
    }
}

impl Section {
    /// Where a setting is written.
    fn source(&self, setting: &str) -> Option<&Source> {
        self.written.iter().find(|w| w.setting == setting).map(|w| &w.source)
    }

    /// Whether it has anything about who may log on.
    fn says_who(&self) -> bool {
        let named = ["users", "guest", "realm_users", "keytab"];
        !self.users.is_empty() || named.iter().any(|setting| self.source(setting).is_some())
    }
}

/// All that is wrong.
pub(crate) fn in_file(place: &SettingOptions) -> Vec<Wrong> {
    read(place).map_or_else(|bad| vec![bad.into()], |read| read.wrong)
}

/// The same, and what is wrong with what it names, files and folders, as they are for whoever asks; and what need not be
/// wrong.
pub(crate) fn in_file_and_beside(place: &SettingOptions) -> (Vec<Wrong>, Vec<String>) {
    let Ok(mut read) = read(place) else { return (in_file(place), Vec::new()) };
    let mut told = Vec::new();
    if read.section.is_there {
        let bad = files(&mut read.config, &read.section, &mut told);
        read.wrong.extend(bad);
    }
    (read.wrong, told)
}

fn files(config: &mut Config, section: &Section, told: &mut Vec<String>) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut closed = Vec::new();
    for (share, source) in &section.shares {
        if let Err(bad) = options::meant(share) {
            wrong.push(at(Some(source), bad));
            continue;
        }
        match options::absolute(&mut share.clone(), config.unix_users) {
            Folder::Good(doubts) => told.extend(doubts),
            Folder::Closed(words) | Folder::Hidden(words) => closed.push((source, words)),
            Folder::Gone(words) => wrong.push(Wrong::at(source, words)),
        }
    }
    // A server starts with those that are open.
    match closed.len() == section.shares.len() {
        true => wrong.extend(closed.into_iter().map(|(source, words)| Wrong::at(source, words))),
        false => told.extend(closed.into_iter().map(|(_, words)| words)),
    }
    if let Some(keytab) = &config.keytab
        && let Err(bad) = try_keytab(keytab)
    {
        wrong.push(at(section.source("keytab"), anyhow::Error::from(bad).context("keytab")));
    }
    match options::users_of(config) {
        Ok(mut all) => {
            let before = wrong.len();
            for (text, source) in &section.users {
                if let Err(bad) = options::add(&mut all, text) {
                    wrong.push(at(Some(source), bad));
                }
            }
            // Who names no share may do so on the command line, and who names nobody, too.
            if !section.shares.is_empty() && wrong.len() == before {
                match options::reach(&all, config) {
                    Ok(words) => told.extend(words),
                    Err(nobody) if !section.says_who() => told.push(nobody.to_string()),
                    Err(bad) => wrong.push(at(section.shares.first().map(|(_, at)| at), bad)),
                }
            }
        }
        Err(bad) => wrong.push(at(section.source("users"), bad)),
    }
    wrong
}

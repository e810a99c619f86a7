//! The section `[serve]` of the configuration file.
//!
//! Settings have the names of the options. Shares are tables, `[serve.share.NAME]` with `path` and the options
//! of a share, or one string or a list of them, as `--share` takes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::bail;
use engine::serve::config::{SETTINGS, SHARE_OPTIONS, ShareConfig};
use toml::Spanned;
use toml::de::DeValue;

use crate::config::{
    self, SettingOptions, Source, Written, Wrong, find_file, line_of, nearest, no_such_setting,
    parse_table, value_text,
};

/// Its name.
pub(crate) const SERVE: &str = "serve";

/// What it says.
#[derive(Debug, Default)]
pub(super) struct Section {
    /// Whether it is there.
    pub(super) is_there: bool,
    /// Settings, as they are written.
    pub(super) written: Vec<Written>,
    /// Shares, and where they are written.
    pub(super) shares: Vec<(ShareConfig, Source)>,
    /// `NAME:PASSWORD`, and who says so.
    pub(super) users: Vec<(String, Source)>,
    /// What is there that should not be.
    pub(super) wrong: Vec<Wrong>,
}

impl Section {
    /// The same, if nothing is wrong.
    pub(super) fn strictly(mut self) -> anyhow::Result<Self> {
        match self.wrong.is_empty() {
            true => Ok(self),
            false => Err(self.wrong.swap_remove(0).into()),
        }
    }
}

/// Reads it; empty, if there is none.
pub(super) fn read(options: &SettingOptions) -> anyhow::Result<Section> {
    let Some((path, text)) = find_file(options, &|name| std::env::var(name))?.file else {
        return Ok(Section::default());
    };
    let mut section = parse(&path, &text);
    if let Some((_, source)) = section.users.first() {
        let mode = std::fs::metadata(&path).map_or(0, |m| m.permissions().mode());
        if mode & 0o077 != 0 {
            // That of the host has settings for everybody, who would not see them any more.
            let or = match path.starts_with("/etc") {
                true => String::new(),
                false => format!(", or chmod 600 {}", path.display()),
            };
            let bad = format!(
                "a password is in a file that others can read: keep users in a file of their own (shunt serve user \
                 add){or}"
            );
            section.wrong.push(Wrong::at(source, bad));
        }
    }
    Ok(section)
}

/// What the text of the file at `path` says of the server.
pub(super) fn parse(path: &Path, text: &str) -> Section {
    let source = |at: usize| Source::File(path.to_owned(), line_of(text, at));
    let mut section = Section::default();
    let table = match parse_table(path, text) {
        Ok(table) => table,
        Err(wrong) => return Section { wrong, ..section },
    };
    // Others read what stands outside of sections, and say what is wrong with it.
    for (key, value) in table.get_ref() {
        if let Err(bad) = config::known_section(key.get_ref(), value.get_ref()) {
            section.wrong.push(Wrong::at(&source(key.span().start), bad));
        }
    }
    let Some(value) = table.get_ref().get(SERVE) else { return section };
    section.is_there = true;
    let DeValue::Table(entries) = value.get_ref() else {
        let bad = format!("{SERVE} is the name of a section: [{SERVE}]");
        section.wrong.push(Wrong::at(&source(value.span().start), bad));
        return section;
    };
    for (key, value) in entries {
        let here = source(key.span().start);
        if let Err(wrong) = section.entry(key.get_ref(), value, &here, &source) {
            section.wrong.extend(wrong);
        }
    }
    section
}

impl Section {
    /// Takes one in. `here`: where its name stands.
    fn entry(
        &mut self,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        here: &Source,
        source: &dyn Fn(usize) -> Source,
    ) -> Result<(), Vec<Wrong>> {
        let wrong = |bad: String| vec![Wrong::at(here, bad)];
        match (name, value.get_ref()) {
            ("share", DeValue::Table(shares)) => {
                let mut all = Vec::new();
                for (name, share) in shares {
                    let at = source(name.span().start);
                    match share_table(name.get_ref(), &at, share, source) {
                        Ok(share) => self.shares.push((share, at)),
                        Err(bad) => all.extend(bad),
                    }
                }
                if all.is_empty() { Ok(()) } else { Err(all) }
            }
            ("share", _) => {
                let all = texts(value)
                    .map_err(|e| wrong(format!("share: a table, or NAME=PATH: {e}")))?;
                for text in all {
                    let share = ShareConfig::parse(&text).map_err(|e| wrong(e.to_string()))?;
                    in_file(&share).map_err(wrong)?;
                    self.shares.push((share, here.clone()));
                }
                Ok(())
            }
            ("user", _) => {
                let all = texts(value).map_err(|e| wrong(format!("user: NAME:PASSWORD: {e}")))?;
                self.users.extend(all.into_iter().map(|text| (text, here.clone())));
                Ok(())
            }
            _ => {
                let Some(setting) = SETTINGS.iter().find(|s| s.name == name) else {
                    let names = SETTINGS.iter().map(|s| s.name);
                    let names = || ["share", "user"].into_iter().chain(names.clone());
                    return Err(wrong(no_such_setting(name, names)));
                };
                let text = value_text(value).map_err(|e| wrong(format!("{name}: {e:#}")))?;
                self.written.push(Written { setting: setting.name, text, source: here.clone() });
                Ok(())
            }
        }
    }
}

/// One string or a list of them.
fn texts(value: &Spanned<DeValue<'_>>) -> anyhow::Result<Vec<String>> {
    match value.get_ref() {
        DeValue::String(text) => Ok(vec![text.to_string()]),
        DeValue::Array(items) => items
            .iter()
            .map(|item| match item.get_ref() {
                DeValue::String(text) => Ok(text.to_string()),
                other => bail!("a list of strings is wanted, not of {}", other.type_str()),
            })
            .collect(),
        other => bail!("a {} makes no sense here", other.type_str()),
    }
}

/// `at`: where its name stands.
fn share_table(
    name: &str,
    at: &Source,
    value: &Spanned<DeValue<'_>>,
    source: &dyn Fn(usize) -> Source,
) -> Result<ShareConfig, Vec<Wrong>> {
    let DeValue::Table(options) = value.get_ref() else {
        let bad = format!("share.{name}: a table: [serve.share.{name}]");
        return Err(vec![Wrong::at(at, bad)]);
    };
    let mut share = ShareConfig::new(name, "");
    let mut wrong = Vec::new();
    for (key, value) in options {
        let here = source(key.span().start);
        let option: &str = key.get_ref();
        if let Err(bad) = apply(&mut share, option, value) {
            wrong.push(Wrong::at(&here, bad));
        }
    }
    // What has no path that could be understood is said to have a wrong one.
    if wrong.is_empty() {
        return share.checked().map_err(|bad| vec![Wrong::at(at, bad)]);
    }
    Err(wrong)
}

fn is_number(value: &Spanned<DeValue<'_>>) -> bool {
    matches!(value.get_ref(), DeValue::Integer(_))
}

/// What is permission bits.
const MODES: [&str; 2] = ["file_mode", "folder_mode"];

fn apply(
    share: &mut ShareConfig,
    option: &str,
    value: &Spanned<DeValue<'_>>,
) -> Result<(), String> {
    let known = || ["path"].into_iter().chain(SHARE_OPTIONS.iter().map(|known| known.name));
    if !known().any(|name| name == option)
        && let Some(meant) = nearest(option, known())
    {
        return Err(format!(
            "share {}: no such option: {option} (did you mean {meant}?)",
            share.name
        ));
    }
    let text = match value.get_ref() {
        // Octal however they are written: 640 and 0o640 are the same.
        DeValue::Integer(n) if MODES.contains(&option) && [8, 10].contains(&n.radix()) => {
            n.as_str().to_owned()
        }
        DeValue::Integer(_) if MODES.contains(&option) => "hexadecimal or binary".to_owned(),
        // What is no list is not to be read as one of decimal numbers.
        DeValue::Array(items) if MODES.contains(&option) && items.iter().any(is_number) => {
            "a list of numbers".to_owned()
        }
        _ => value_text(value).map_err(|e| format!("{option}: {e:#}"))?,
    };
    share.set(option, &text).map_err(|bad| bad.to_string())?;
    if option == "path" { in_file(share) } else { Ok(()) }
}

/// A path in a file means the same wherever the server is started.
fn in_file(share: &ShareConfig) -> Result<(), String> {
    if share.path.is_absolute() {
        return Ok(());
    }
    Err(format!("share {}: {}: an absolute path is wanted", share.name, share.path.display()))
}

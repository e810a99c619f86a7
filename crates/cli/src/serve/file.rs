//! The section `[serve]` of the configuration file.
//!
//! Settings have the names of the options. Shares are tables, `[serve.share.NAME]` with `path` and the options
//! of a share, or one string or a list of them, as `--share` takes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use engine::serve::config::{SETTINGS, ShareConfig};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::{self, SettingOptions, Source, Written, find_file, line_of, value_text};

/// Its name.
pub(crate) const SERVE: &str = "serve";

/// What it says.
#[derive(Debug, Default)]
pub(super) struct Section {
    /// Settings, as they are written.
    pub(super) written: Vec<Written>,
    /// Shares.
    pub(super) shares: Vec<ShareConfig>,
    /// `NAME:PASSWORD`, and who says so.
    pub(super) users: Vec<(String, Source)>,
}

/// Reads it; empty, if there is none.
pub(super) fn read(options: &SettingOptions) -> anyhow::Result<Section> {
    let Some((path, text)) = find_file(options, &|name| std::env::var(name))?.file else {
        return Ok(Section::default());
    };
    let section = parse(&path, &text)?;
    if let Some((_, source)) = section.users.first() {
        let mode = std::fs::metadata(&path).map_or(0, |m| m.permissions().mode());
        if mode & 0o077 != 0 {
            // That of the host has settings for everybody, who would not see them any more.
            let or = match path.starts_with("/etc") {
                true => String::new(),
                false => format!(", or chmod 600 {}", path.display()),
            };
            bail!(
                "{source}: a password is in a file that others can read: keep users in a file of their own \
                 (shunt serve user add){or}"
            );
        }
    }
    Ok(section)
}

/// What the text of the file at `path` says of the server.
pub(super) fn parse(path: &Path, text: &str) -> anyhow::Result<Section> {
    let source = |at: usize| Source::File(path.to_owned(), line_of(text, at));
    let table = DeTable::parse(text).map_err(|e| {
        anyhow!("{}: {}", source(e.span().map_or(0, |span| span.start)), e.message())
    })?;
    let mut section = Section::default();
    // Others read what stands outside of sections, and say what is wrong with it.
    for (key, value) in table.get_ref() {
        config::known_section(key.get_ref(), value.get_ref())
            .map_err(|bad| anyhow!("{}: {bad}", source(key.span().start)))?;
    }
    let Some(value) = table.get_ref().get(SERVE) else { return Ok(section) };
    let DeValue::Table(entries) = value.get_ref() else {
        bail!("{}: {SERVE} is the name of a section: [{SERVE}]", source(value.span().start));
    };
    for (key, value) in entries {
        let source_of_key = source(key.span().start);
        let name: &str = key.get_ref();
        match (name, value.get_ref()) {
            ("share", DeValue::Table(shares)) => {
                for (name, share) in shares {
                    section.shares.push(share_table(
                        name.get_ref(),
                        name.span().start,
                        share,
                        &source,
                    )?);
                }
            }
            ("share", _) => {
                for text in texts(value)
                    .with_context(|| format!("{source_of_key}: share: a table, or NAME=PATH"))?
                {
                    let share = ShareConfig::parse(&text);
                    let share = share.map_err(|bad| anyhow!("{source_of_key}: {bad}"))?;
                    in_file(&share, &source_of_key)?;
                    section.shares.push(share);
                }
            }
            ("user", _) => {
                let all = texts(value)
                    .with_context(|| format!("{source_of_key}: user: NAME:PASSWORD"))?;
                section.users.extend(all.into_iter().map(|text| (text, source_of_key.clone())));
            }
            _ => {
                let Some(setting) = SETTINGS.iter().find(|s| s.name == name) else {
                    let names: Vec<&str> = SETTINGS.iter().map(|s| s.name).collect();
                    let names = names.join(", ");
                    bail!(
                        "{source_of_key}: no such setting: {name} (there are: share, user, {names})"
                    );
                };
                let text = value_text(value).with_context(|| format!("{source_of_key}: {name}"))?;
                section.written.push(Written {
                    setting: setting.name,
                    text,
                    source: source_of_key,
                });
            }
        }
    }
    Ok(section)
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

fn share_table(
    name: &str,
    at: usize,
    value: &Spanned<DeValue<'_>>,
    source: &dyn Fn(usize) -> Source,
) -> anyhow::Result<ShareConfig> {
    let DeValue::Table(options) = value.get_ref() else {
        bail!("{}: share.{name}: a table: [serve.share.{name}]", source(at));
    };
    let mut share = ShareConfig::new(name, "");
    for (key, value) in options {
        let here = source(key.span().start);
        let option: &str = key.get_ref();
        let text = value_text(value).with_context(|| format!("{here}: {option}"))?;
        share.set(option, &text).map_err(|bad| anyhow!("{here}: {bad}"))?;
        if option == "path" {
            in_file(&share, &here)?;
        }
    }
    share.checked().map_err(|bad| anyhow!("{}: {bad}", source(at)))
}

/// A path in a file means the same wherever the server is started.
fn in_file(share: &ShareConfig, source: &Source) -> anyhow::Result<()> {
    if share.path.is_absolute() {
        return Ok(());
    }
    bail!("{source}: share {}: {}: an absolute path is wanted", share.name, share.path.display())
}

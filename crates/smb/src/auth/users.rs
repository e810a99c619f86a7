//! The file of users.
//!
//! One line for each user, of five fields with colons between them, as in `/etc/passwd`:
//!
//! ```text
//! # name:uid:NT hash:flags:comment
//! alice:1000:a4f49c406510bdcab6824ee7c30fd852::Alice from accounts
//! backup:*:8846f7eaee8fb117ad06bdd830b7586c:expires=2027-01-31:
//! bob:1001:8846f7eaee8fb117ad06bdd830b7586c:disabled,expires=2027-06-30:on leave
//! ```
//!
//! - The name has up to 64 letters, compared without regard to case; none that Windows does not allow in a name, and
//!   no space at either end.
//! - The uid is as whom files are touched; `*`: as the server runs.
//! - The NT hash is 32 hexadecimal digits. It is as good as the password: only its owner may read the file. `*`: the
//!   user has none, and comes in by Kerberos only.
//! - Flags are separated by commas: `disabled`; `expires=` and a day, at whose start in UTC the user's time is over.
//! - The comment is everything to the end of the line.
//!
//! Empty lines, and lines whose first letter is `#`, are kept as they are when the file is written again.

use std::fmt;

use zeroize::Zeroizing;

use super::{NtHash, User, Users};
use crate::FileTime;

/// Letters of a name, at most.
const NAME_MAX: usize = 64;
/// Users that a file may have.
const USERS_MAX: usize = 65_536;
/// Days from 1601-01-01 to 1970-01-01.
const DAYS_TO_UNIX: i64 = 134_774;
const TICKS_PER_DAY: u64 = 24 * 60 * 60 * 10_000_000;

/// What is wrong with a file of users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadUserFile {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it. It never has the hash in it.
    pub what: String,
}

/// A name that no user can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be the name of a user")]
pub struct BadUserName(pub String);

/// Nobody has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no user {0:?}")]
pub struct NoSuchUser(pub String);

/// A file of users, to look them up or to change it.
#[derive(Clone, Default)]
pub struct UserFile {
    lines: Vec<Line>,
    /// Lower-case names, sorted, with the line of each.
    index: Vec<(String, usize)>,
}

#[derive(Clone)]
enum Line {
    /// Nothing, or a comment.
    Other(String),
    User(Box<Entry>),
}

#[derive(Clone)]
struct Entry {
    user: User,
    comment: String,
}

impl UserFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`BadUserFile`], of the first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, BadUserFile> {
        let mut file = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            // What is written again must read the same, whatever ended the lines.
            let line = line.trim_end_matches('\r');
            let bad = |what| BadUserFile { line: number, what };
            if line.trim().is_empty() || line.starts_with('#') {
                file.lines.push(Line::Other(line.to_owned()));
                continue;
            }
            let entry = Entry::parse(line).map_err(bad)?;
            if file.index.len() == USERS_MAX {
                return Err(bad(format!("more than {USERS_MAX} users")));
            }
            file.index.push((fold(&entry.user.name), file.lines.len()));
            file.lines.push(Line::User(Box::new(entry)));
        }
        file.index.sort_unstable();
        let twice =
            file.index.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1].1);
        if let Some(line) = twice.min() {
            let what = "a user of this name is there already".to_owned();
            return Err(BadUserFile { line: line + 1, what });
        }
        Ok(file)
    }

    /// The users, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &User> {
        self.lines.iter().filter_map(|line| match line {
            Line::User(entry) => Some(&entry.user),
            Line::Other(_) => None,
        })
    }

    /// How many users there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The user of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&User> {
        match &self.lines[self.line_of(name)?] {
            Line::User(entry) => Some(&entry.user),
            Line::Other(_) => None,
        }
    }

    /// What the file says of this user after the last colon.
    #[must_use]
    pub fn comment(&self, name: &str) -> Option<&str> {
        match &self.lines[self.line_of(name)?] {
            Line::User(entry) => Some(&entry.comment),
            Line::Other(_) => None,
        }
    }

    /// Adds a user at the end, or puts it in place of the one of the same name, whose comment stays. Whether it is new.
    ///
    /// # Errors
    ///
    /// [`BadUserName`]; nothing has changed.
    pub fn set(&mut self, user: User) -> Result<bool, BadUserName> {
        if !is_name(&user.name) || (self.len() >= USERS_MAX && self.get(&user.name).is_none()) {
            return Err(BadUserName(user.name));
        }
        match self.line_of(&user.name) {
            Some(line) => {
                if let Line::User(entry) = &mut self.lines[line] {
                    entry.user = user;
                }
                Ok(false)
            }
            None => {
                let name = fold(&user.name);
                let at = self.index.partition_point(|(other, _)| *other < name);
                self.index.insert(at, (name, self.lines.len()));
                self.lines.push(Line::User(Box::new(Entry { user, comment: String::new() })));
                Ok(true)
            }
        }
    }

    /// Takes a user out.
    ///
    /// # Errors
    ///
    /// [`NoSuchUser`].
    pub fn remove(&mut self, name: &str) -> Result<User, NoSuchUser> {
        let line = self.line_of(name).ok_or_else(|| NoSuchUser(name.to_owned()))?;
        self.index.retain(|(_, other)| *other != line);
        self.index.iter_mut().filter(|(_, other)| *other > line).for_each(|(_, other)| *other -= 1);
        match self.lines.remove(line) {
            Line::User(entry) => Ok(entry.user),
            Line::Other(_) => Err(NoSuchUser(name.to_owned())),
        }
    }

    /// Disables a user, or enables it again.
    ///
    /// # Errors
    ///
    /// [`NoSuchUser`].
    pub fn disable(&mut self, name: &str, disabled: bool) -> Result<(), NoSuchUser> {
        let line = self.line_of(name).ok_or_else(|| NoSuchUser(name.to_owned()))?;
        if let Line::User(entry) = &mut self.lines[line] {
            entry.user.disabled = disabled;
        }
        Ok(())
    }

    /// The file, to be written where only its owner can read it.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        // Enough for most lines, so that few copies of hashes are left behind as it grows.
        let mut text = Zeroizing::new(String::with_capacity(self.lines.len() * 256));
        for line in &self.lines {
            match line {
                Line::Other(line) => text.push_str(line),
                Line::User(entry) => entry.write(&mut text),
            }
            text.push('\n');
        }
        text
    }

    fn line_of(&self, name: &str) -> Option<usize> {
        let name = fold(name);
        let at = self.index.binary_search_by(|(other, _)| other.cmp(&name)).ok()?;
        Some(self.index[at].1)
    }
}

impl Users for UserFile {
    fn find(&self, name: &str, _domain: &str) -> Option<User> {
        self.get(name).cloned()
    }
}

impl fmt::Debug for UserFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A name without regard to case.
fn fold(name: &str) -> String {
    name.chars().flat_map(char::to_lowercase).collect()
}

/// Whether a user can be called so: what Windows refuses in names, and what the file could not be read again with.
fn is_name(name: &str) -> bool {
    let bad = |c: char| c.is_control() || r#""/\[]:;|=,+*?<>@"#.contains(c);
    !name.is_empty()
        && name.chars().count() <= NAME_MAX
        && name.trim() == name
        && !name.starts_with('#')
        && !name.chars().any(bad)
}

impl Entry {
    fn parse(line: &str) -> Result<Self, String> {
        let mut fields = line.splitn(5, ':');
        let mut next = |what| fields.next().ok_or_else(|| format!("{what} is missing"));
        let (name, uid, hash) = (next("the name")?, next("the uid")?, next("the NT hash")?);
        let (flags, comment) = (next("the field of flags")?, next("the comment")?);
        if !is_name(name) {
            return Err(BadUserName(name.to_owned()).to_string());
        }
        let uid = match uid {
            "*" => None,
            digits if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                // The last number is what system calls take for "none".
                let uid = digits.parse().ok().filter(|uid| *uid != u32::MAX);
                Some(uid.ok_or_else(|| format!("{digits:?} is no uid"))?)
            }
            other => return Err(format!("{other:?} is no uid: a number or *")),
        };
        // What is wrong with it is not told: it may be a hash with one letter too many.
        let nt_hash = match hash {
            "*" => None,
            hash => {
                Some(NtHash::from_hex(hash).ok_or("the NT hash has not 32 hexadecimal digits")?)
            }
        };
        let (mut disabled, mut expires) = (false, None);
        for flag in flags.split(',').filter(|_| !flags.is_empty()) {
            match flag.split_once('=') {
                None if flag == "disabled" && !disabled => disabled = true,
                Some(("expires", day)) if expires.is_none() => {
                    let time =
                        day_to_time(day).ok_or_else(|| format!("{day:?} is no day: 2027-01-31"))?;
                    expires = Some(time);
                }
                _ => return Err(format!("{flag:?} is no flag, or there twice")),
            }
        }
        let user = User { name: name.to_owned(), uid, nt_hash, disabled, expires };
        Ok(Self { user, comment: comment.to_owned() })
    }

    fn write(&self, text: &mut String) {
        let user = &self.user;
        let uid = user.uid.map_or_else(|| "*".to_owned(), |uid| uid.to_string());
        let expires = user.expires.map(|time| format!("expires={}", time_to_day(time)));
        let disabled = user.disabled.then(|| "disabled".to_owned());
        let flags: Vec<_> = [disabled, expires].into_iter().flatten().collect();
        let hash = user.nt_hash.as_ref().map(NtHash::to_hex);
        let hash = hash.as_ref().map_or("*", |hash| hash.as_str());
        for part in [&user.name, ":", &uid, ":", hash, ":", &flags.join(","), ":", &self.comment] {
            text.push_str(part);
        }
    }
}

/// The start of a day like 2027-01-31, in UTC; `None` if it is no day, or one before 1970.
#[must_use]
pub fn day_to_time(day: &str) -> Option<FileTime> {
    let mut parts = day.splitn(3, '-');
    let mut number = |digits: usize| -> Option<i64> {
        let part = parts.next()?;
        let good = part.len() == digits && part.bytes().all(|digit| digit.is_ascii_digit());
        if good { part.parse().ok() } else { None }
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    let days = days_from_civil(year, month, day);
    // A day that does not exist comes back as another.
    if year < 1970 || civil_from_days(days) != (year, month, day) {
        return None;
    }
    Some(FileTime(u64::try_from(days + DAYS_TO_UNIX).ok()? * TICKS_PER_DAY))
}

/// The day of a point in time, in UTC, like 2027-01-31; one that is not at a day's start becomes the next day.
#[must_use]
pub fn time_to_day(time: FileTime) -> String {
    let days = i64::try_from(time.0.div_ceil(TICKS_PER_DAY)).unwrap_or(i64::MAX) - DAYS_TO_UNIX;
    // The last day that can be written.
    let days = days.min(days_from_civil(9999, 12, 31));
    let (year, month, day) = civil_from_days(days);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Days since 1970-01-01 of a day in the Gregorian calendar, counting years from March so that leap days come last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The day that is so many days after 1970-01-01.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests;

//! What goes wrong: rules in a file, which is read again whenever something is asked.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::io::Errno;

use super::wire::op;

/// What rules may be about, and the requests that are meant.
const OPERATIONS: [(&str, &[u32]); 14] = [
    ("lookup", &[op::LOOKUP]),
    ("create", &[op::CREATE]),
    ("open", &[op::OPEN]),
    ("read", &[op::READ]),
    ("write", &[op::WRITE]),
    ("fsync", &[op::FSYNC]),
    ("resize", &[op::SETATTR]),
    ("attributes", &[op::SETATTR]),
    ("look", &[op::GETATTR]),
    ("room", &[op::STATFS]),
    ("flush", &[op::FLUSH]),
    ("mkdir", &[op::MKDIR]),
    ("unlink", &[op::UNLINK]),
    ("rename", &[op::RENAME, op::RENAME2]),
];

const ERRORS: [(&str, Errno); 5] = [
    ("EIO", Errno::IO),
    ("ENOSPC", Errno::NOSPC),
    ("EROFS", Errno::ROFS),
    ("EDQUOT", Errno::DQUOT),
    ("ESTALE", Errno::STALE),
];

/// The name of what is asked, if rules may be about it. `resizes`: of a SETATTR, whether it is about the size.
pub(crate) fn operation(op: u32, resizes: bool) -> Option<&'static str> {
    let name = OPERATIONS.iter().find(|(_, ops)| ops.contains(&op)).map(|(name, _)| *name)?;
    Some(if name == "resize" && !resizes { "attributes" } else { name })
}

/// A line such as `write error=EIO nth=2 count=1 name=file delay_ms=300`, or `read hold`: until there are other rules.
#[derive(Debug, PartialEq)]
struct Rule {
    operation: &'static str,
    name: Option<String>,
    error: Option<Errno>,
    delay: Duration,
    hold: bool,
    /// The first that it is for, counted from 1, and how many.
    nth: u64,
    count: u64,
    seen: u64,
}

impl Rule {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let known = OPERATIONS.iter().find(|(name, _)| *name == first);
        let all = OPERATIONS.map(|(name, _)| name).join(", ");
        let (operation, _) = known.with_context(|| format!("{first:?}: one of {all}"))?;
        let mut rule = Self {
            operation,
            name: None,
            error: None,
            delay: Duration::ZERO,
            hold: false,
            nth: 1,
            count: u64::MAX,
            seen: 0,
        };
        for word in words {
            if word == "hold" {
                rule.hold = true;
                continue;
            }
            let (key, value) =
                word.split_once('=').with_context(|| format!("{word:?}: hold or KEY=VALUE"))?;
            let number = || value.parse::<u64>().with_context(|| format!("{word:?}: no number"));
            match key {
                "name" => rule.name = Some(value.to_owned()),
                "error" => {
                    let known = ERRORS.iter().find(|(name, _)| *name == value);
                    let all = ERRORS.map(|(name, _)| name).join(", ");
                    rule.error = Some(known.with_context(|| format!("{word:?}: one of {all}"))?.1);
                }
                "delay_ms" => rule.delay = Duration::from_millis(number()?.min(60_000)),
                "nth" => rule.nth = number()?.max(1),
                "count" => rule.count = number()?,
                _ => bail!("{word:?}: hold, name, error, delay_ms, nth or count"),
            }
        }
        Ok(rule)
    }

    /// Counts a request; whether it is one of those that it is for.
    fn is_for(&mut self, operation: &str, name: &str) -> bool {
        if self.operation != operation || self.name.as_ref().is_some_and(|own| own != name) {
            return false;
        }
        self.seen += 1;
        self.seen >= self.nth && self.seen - self.nth < self.count
    }
}

/// What becomes of a request.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Fate {
    pub(crate) error: Option<Errno>,
    pub(crate) delay: Duration,
    /// Which rules have to be replaced first; 0: it need not wait for that.
    pub(crate) held_by: u64,
}

impl Fate {
    pub(crate) fn is_late(&self) -> bool {
        !self.delay.is_zero() || self.held_by > 0
    }
}

/// The rules of a file. Other text in it means other rules, which begin to count at nothing.
pub(crate) struct Rules {
    file: PathBuf,
    text: String,
    rules: Vec<Rule>,
    /// How often there were others.
    edition: u64,
}

impl Rules {
    /// No file is no rules.
    pub(crate) fn of(file: PathBuf) -> Self {
        Self { file, text: String::new(), rules: Vec::new(), edition: 0 }
    }

    /// Which rules there are now.
    pub(crate) fn edition(&mut self) -> anyhow::Result<u64> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        if text != self.text {
            self.rules = parse(&text).with_context(|| self.file.display().to_string())?;
            self.text = text;
            self.edition += 1;
        }
        Ok(self.edition)
    }

    pub(crate) fn fate(&mut self, operation: &str, name: &str) -> anyhow::Result<Fate> {
        let edition = self.edition()?;
        Ok(fate(&mut self.rules, edition, operation, name))
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Rule>> {
    text.lines().filter(|line| !line.trim().is_empty()).map(Rule::parse).collect()
}

fn fate(rules: &mut [Rule], edition: u64, operation: &str, name: &str) -> Fate {
    let mut fate = Fate::default();
    for rule in rules {
        if rule.is_for(operation, name) {
            fate.error = fate.error.or(rule.error);
            fate.delay = fate.delay.max(rule.delay);
            fate.held_by = fate.held_by.max(if rule.hold { edition } else { 0 });
        }
    }
    fate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_for_the_requests_that_it_names() {
        let text = "write error=EIO nth=2 count=2 name=a\n\nfsync delay_ms=5\nread hold name=c\n";
        let mut rules = parse(text).expect("rules");
        let errors: Vec<_> = (0..5).map(|_| fate(&mut rules, 1, "write", "a").error).collect();
        let io = Some(Errno::IO);
        assert_eq!(errors, [None, io, io, None, None]);
        assert_eq!(fate(&mut rules, 1, "write", "b"), Fate::default());
        assert_eq!(fate(&mut rules, 1, "fsync", "b").delay, Duration::from_millis(5));
        assert_eq!(fate(&mut rules, 1, "read", "a"), Fate::default());
        assert_eq!(fate(&mut rules, 7, "read", "c").held_by, 7);
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for wrong in ["writ", "write EIO", "write error=E", "write nth=x", "write often=1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

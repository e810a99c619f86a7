//! What was fuzzed so far: a line for each target, which grows with each turn.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

/// The first line of the file.
const HEAD: &str = "# target\tseconds\tinputs\tplaces\tfound\tcommit";

/// What became of one target, in one turn or in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// How long, by the clock.
    pub(crate) seconds: u64,
    /// Inputs that were run.
    pub(crate) inputs: u64,
    /// Edges of the program that some input reached: the most of any turn.
    pub(crate) places: u64,
    /// Inputs that ended it: crashes, leaks, too much memory, and calls that did not come back.
    pub(crate) found: u64,
    /// What was last fuzzed.
    pub(crate) commit: String,
}

impl Turn {
    /// Adds a later turn.
    pub(crate) fn add(&mut self, later: &Self) {
        self.seconds += later.seconds;
        self.inputs += later.inputs;
        self.places = self.places.max(later.places);
        self.found += later.found;
        self.commit.clone_from(&later.commit);
    }

    /// What libFuzzer printed, on its standard error: how long, how many, and the places.
    ///
    /// A turn that was ended by what it found says neither how long nor how many, unless it was asked for its final
    /// statistics: then how many.
    pub(crate) fn parse(output: &str) -> Self {
        let mut turn = Self::default();
        for line in output.lines() {
            let mut words = line.split_whitespace();
            while let Some(word) = words.next() {
                if word == "cov:" {
                    let places = words.next().and_then(|n| n.parse().ok()).unwrap_or(0);
                    turn.places = turn.places.max(places);
                }
            }
            // `Done 2713071 runs in 241 second(s)`
            if let Some(rest) = line.strip_prefix("Done ") {
                let numbers: Vec<u64> =
                    rest.split(' ').filter_map(|word| word.parse().ok()).collect();
                if let [inputs, seconds] = numbers[..] {
                    (turn.inputs, turn.seconds) = (inputs, seconds);
                }
            }
            if let Some(rest) = line.strip_prefix("stat::number_of_executed_units:") {
                turn.inputs = turn.inputs.max(rest.trim().parse().unwrap_or(0));
            }
        }
        turn
    }
}

/// Each target's turns.
pub(crate) type Account = BTreeMap<String, Turn>;

/// Reads what [`write()`] wrote; nothing when there is no such file.
///
/// # Errors
///
/// When it cannot be read, or a line has other columns.
pub(crate) fn read(path: &Path) -> anyhow::Result<Account> {
    let mut account = Account::new();
    if !path.exists() {
        return Ok(account);
    }
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let cells: Vec<&str> = line.split('\t').collect();
        ensure!(cells.len() == 6, "{}: not six columns: {line}", path.display());
        let number = |at: usize| -> anyhow::Result<u64> {
            cells[at].parse().with_context(|| format!("{}: no number: {line}", path.display()))
        };
        let turn = Turn {
            seconds: number(1)?,
            inputs: number(2)?,
            places: number(3)?,
            found: number(4)?,
            commit: cells[5].to_owned(),
        };
        account.insert(cells[0].to_owned(), turn);
    }
    Ok(account)
}

/// Writes all of it.
///
/// # Errors
///
/// When it cannot be written.
pub(crate) fn write(path: &Path, account: &Account) -> anyhow::Result<()> {
    let mut text = format!("{HEAD}\n");
    for (target, Turn { seconds, inputs, places, found, commit }) in account {
        writeln!(text, "{target}\t{seconds}\t{inputs}\t{places}\t{found}\t{commit}")?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The same for people, who see in its last line how much it is.
pub(crate) fn table(account: &Account) -> String {
    let row = |name: &str, turn: &Turn| {
        let (hours, minutes) = (turn.seconds / 3600, turn.seconds / 60 % 60);
        let (inputs, places, found) = (grouped(turn.inputs), grouped(turn.places), turn.found);
        format!(
            "| {name} | {hours}:{minutes:02} | {inputs} | {places} | {found} | {} |\n",
            turn.commit
        )
    };
    let mut text = String::from(
        "| target | hours | inputs | places | found | last at |\n| --- | ---: | ---: | ---: | ---: | --- |\n",
    );
    let mut all = Turn::default();
    for (target, turn) in account {
        text.push_str(&row(&format!("`{target}`"), turn));
        all.add(turn);
    }
    // The places of different programs are not one number.
    all.commit.clear();
    let (hours, minutes) = (all.seconds / 3600, all.seconds / 60 % 60);
    let (inputs, found) = (grouped(all.inputs), all.found);
    text + &format!("| all | {hours}:{minutes:02} | {inputs} | | {found} | |\n")
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
INFO: Seed: 3193914917
#2\tINITED cov: 312 ft: 313 corp: 1/1b exec/s: 0 rss: 71Mb
#1048576\tpulse  cov: 810 ft: 2405 corp: 317/24Kb lim: 4096 exec/s: 11275 rss: 402Mb
Done 2713071 runs in 241 second(s)
stat::number_of_executed_units: 2713071
stat::new_units_added:          402
";

    #[test]
    fn what_the_fuzzer_says_is_read() {
        let turn = Turn::parse(OUTPUT);
        assert_eq!((turn.seconds, turn.inputs, turn.places), (241, 2_713_071, 810));
        let ended = "#8\tNEW cov: 7 ft: 7\n==1== ERROR: libFuzzer: deadly signal\nstat::number_of_executed_units: 9\n";
        let turn = Turn::parse(ended);
        assert_eq!((turn.seconds, turn.inputs, turn.places), (0, 9, 7));
    }

    #[test]
    fn turns_add_up_and_come_back_from_the_file() {
        let dir = tempfile_in_target("fuzz-account");
        let path = dir.join("account.tsv");
        assert_eq!(read(&path).unwrap(), Account::new());
        let mut account = Account::new();
        let first = Turn { seconds: 3600, inputs: 999, places: 5, found: 0, commit: "a".into() };
        let later = Turn { seconds: 61, inputs: 1, places: 3, found: 2, commit: "b".into() };
        account.entry("x".to_owned()).or_default().add(&first);
        account.entry("x".to_owned()).or_default().add(&later);
        write(&path, &account).unwrap();
        assert_eq!(read(&path).unwrap(), account);
        let text = table(&account);
        assert!(text.contains("| `x` | 1:01 | 1,000 | 5 | 2 | b |\n"), "{text}");
        assert!(text.ends_with("| all | 1:01 | 1,000 | | 2 | |\n"), "{text}");
        fs::write(&path, "x\t1\t2\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("not six columns"));
        fs::remove_dir_all(dir).unwrap();
    }

    fn tempfile_in_target(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }
}

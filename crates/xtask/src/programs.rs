//! `cargo xtask programs`: servers and clients of Debian as people use them, on TCP and under Shunt. A program is a file in
//! `programs/`; what its client says must be the same in each way.

mod script;
mod way;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use nix::unistd::geteuid;

use crate::bench::report::{commit, today};
use crate::bench::stage;
use crate::{bench, install, page};
use script::Script;
use way::{Ended, Place, Way};

/// The page with the table.
const PAGE: &str = "docs/programs.md";
const BEGIN: &str = "<!-- begin: cargo xtask programs --record -->";
const END: &str = "<!-- end -->";

/// How the hash of nothing begins, by sha256sum: of what a client got that failed.
const OF_NOTHING: &str = "e3b0c44298fc1c14";

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask programs",
    about = "Servers and clients of Debian, as people use them, on TCP and under Shunt",
    long_about = "Servers and clients of Debian, as people use them: on plain TCP, with both ends under `shunt run`, with \
                  the server alone and with the client alone under it, and on two hosts (network namespaces) whose \
                  engines connect them by SMC-R. What the client says and how it ends must be the same each time. Needs root, as \
                  most of these servers do."
)]
struct Cli {
    /// Only these, by the names of their files in crates/xtask/programs
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Fetch the Debian packages that are absent: some dozens, whose services are not started now but when the machine
    /// starts next, so do it where that harms nobody
    #[arg(long)]
    install: bool,
    /// Run what was built before
    #[arg(long)]
    no_build: bool,
    /// Write the table into docs/programs.md: only of a whole run
    #[arg(long, conflicts_with = "only")]
    record: bool,
}

/// What became of a program.
#[derive(Debug)]
enum Became {
    /// How each way ended, compared with plain TCP.
    Ran(BTreeMap<Way, Verdict>),
    /// It is not here, or does not even work without Shunt.
    Skipped(String),
}

/// A way beside plain TCP.
#[derive(Debug)]
enum Verdict {
    /// All was the same; so many ends of connections were in shared memory.
    Same(u64),
    Differs(String),
}

/// Runs `cargo xtask programs`.
///
/// # Errors
///
/// When it cannot be run at all, or a program does not do what it does without Shunt.
pub(crate) fn main(args: &[String]) -> anyhow::Result<()> {
    let words = ["cargo xtask programs"].into_iter().chain(args.iter().map(String::as_str));
    let cli = Cli::parse_from(words);
    ensure!(
        geteuid().is_root(),
        "these servers are started as root, and then change to users of their own: run it as root"
    );
    let root = crate::workspace_root();
    let scripts = chosen(&root, &cli.only)?;
    if cli.install {
        bring(&scripts)?;
    }
    if !cli.no_build {
        bench::build(&root, bench::LOCAL)?;
    }
    stage::clean_up_when_interrupted()?;
    let place = Place::new(&bench::built(&root))?;
    let mut rows = Vec::new();
    for script in &scripts {
        let became = try_one(&place, script)?;
        println!("{}", line(script, &became));
        rows.push((script, became));
    }
    let table = table(&root, &rows);
    if cli.record {
        let path = root.join(PAGE);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
        fs::write(&path, page::with_table(&text, BEGIN, END, &table)?)?;
    }
    verdict(&rows)
}

/// The programs that are wanted, by name.
fn chosen(root: &Path, only: &[String]) -> anyhow::Result<Vec<Script>> {
    let all = script::all(&root.join("crates/xtask/programs"))?;
    if let Some(unknown) = only.iter().find(|name| all.iter().all(|script| script.name != **name)) {
        let names: Vec<&str> = all.iter().map(|script| script.name.as_str()).collect();
        bail!("{unknown} is not one of {}", names.join(" "));
    }
    let wanted = |script: &Script| only.is_empty() || only.contains(&script.name);
    Ok(all.into_iter().filter(wanted).collect())
}

/// Installs what the scripts name and is not here.
fn bring(scripts: &[Script]) -> anyhow::Result<()> {
    let lacking = scripts.iter().filter(|script| !script.lacks().is_empty());
    let mut packages: Vec<&str> =
        lacking.flat_map(|script| script.packages.iter().map(String::as_str)).collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() { Ok(()) } else { install::apt_install(&packages) }
}

fn try_one(place: &Place, script: &Script) -> anyhow::Result<Became> {
    let lacks = script.lacks();
    if !lacks.is_empty() {
        let packages = script.packages.join(" ");
        return Ok(Became::Skipped(format!("no {} here (Debian: {packages})", lacks.join(", "))));
    }
    let plain = match place.run(script, Way::Plain)? {
        Ended { fault: None, status: Some(0), said, .. } if said.contains(OF_NOTHING) => {
            return Ok(Became::Skipped(format!("without Shunt: a client got nothing: {said:?}")));
        }
        Ended { fault: None, status: Some(0), said, .. } => said,
        Ended { fault, status, said, errors, .. } => {
            let fault = fault.unwrap_or_else(|| way::ending(status));
            return Ok(Became::Skipped(format!(
                "without Shunt: {fault}; {}",
                way::tail(&said, &errors)
            )));
        }
    };
    let mut ways = BTreeMap::new();
    for way in Way::UNDER_SHUNT {
        if way == Way::Hosts && (script.user.is_some() || script.one_host) {
            continue;
        }
        let ended = place.run(script, way)?;
        ways.insert(way, judged(script, way, &plain, &ended));
    }
    Ok(Became::Ran(ways))
}

/// What is to be said of a way in which a program ran, given what its client says on plain TCP.
fn judged(script: &Script, way: Way, plain: &str, ended: &Ended) -> Verdict {
    let tail = || way::tail(&ended.said, &ended.errors);
    if let Some(fault) = &ended.fault {
        return Verdict::Differs(format!("{fault}; {}", tail()));
    }
    if ended.status != Some(0) {
        return Verdict::Differs(format!("the client {}; {}", way::ending(ended.status), tail()));
    }
    if ended.said != plain {
        return Verdict::Differs(format!("the client said something else; {}", tail()));
    }
    if let Some(line) = ended.errors.lines().find(|line| line.starts_with("shunt")) {
        return Verdict::Differs(format!("Shunt said: {line}"));
    }
    if ended.attached == 0 && script.stays.is_none() && matches!(way, Way::Both | Way::Hosts) {
        return Verdict::Differs(format!("all connections stayed on TCP: {}", ended.reasons));
    }
    Verdict::Same(ended.attached)
}

/// A line for people.
fn line(script: &Script, became: &Became) -> String {
    let name = &script.name;
    match became {
        Became::Skipped(why) => format!("{name:16} skipped: {why}"),
        Became::Ran(ways) => {
            let said = ways.iter().map(|(way, verdict)| match verdict {
                Verdict::Same(0) => format!("{way}: same"),
                Verdict::Same(ends) => format!("{way}: same, {ends} ends"),
                Verdict::Differs(why) => format!("{way}: DIFFERS: {why}"),
            });
            format!("{name:16} {}", said.collect::<Vec<_>>().join("; "))
        }
    }
}

/// The table in Markdown: when, where, and a line for each program.
fn table(root: &Path, rows: &[(&Script, Became)]) -> String {
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let mut text = format!(
        "{}, commit {}, {cpus} CPUs.\n\n\
         | program | version | both under Shunt | server alone | client alone | two hosts, by SMC-R |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        today(root),
        commit(root)
    );
    for (script, became) in rows {
        text += &format!("| {} | {} |", script.title, version(script).unwrap_or_default());
        match became {
            Became::Skipped(_) => text += " did not run | | | |",
            Became::Ran(ways) => {
                for way in Way::UNDER_SHUNT {
                    let cell = match (ways.get(&way), &script.stays) {
                        (Some(Verdict::Same(0)), Some(why))
                            if matches!(way, Way::Both | Way::Hosts) =>
                        {
                            format!(" same, on TCP: {why} |")
                        }
                        (Some(Verdict::Same(_)), _) => " same |".into(),
                        (Some(Verdict::Differs(_)), _) => " **differs** |".into(),
                        (None, _) => " |".into(),
                    };
                    text += &cell;
                }
            }
        }
        text.push('\n');
    }
    text
}

/// The version of a script's first package, without Debian's part of it.
fn version(script: &Script) -> Option<String> {
    let package = script.packages.first()?;
    let output =
        Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let upstream = text.rsplit_once('-').map_or(text.as_str(), |(upstream, _)| upstream);
    let upstream = upstream.split_once(':').map_or(upstream, |(_, version)| version);
    let upstream = upstream.split(['+', '~']).next().unwrap_or(upstream);
    Some(upstream.to_owned())
}

/// # Errors
///
/// When nothing ran, or something differs.
fn verdict(rows: &[(&Script, Became)]) -> anyhow::Result<()> {
    let ran = rows.iter().filter(|(_, became)| matches!(became, Became::Ran(_))).count();
    let differ = |became: &Became| match became {
        Became::Ran(ways) => ways.values().any(|verdict| matches!(verdict, Verdict::Differs(_))),
        Became::Skipped(_) => false,
    };
    let bad: Vec<&str> = rows
        .iter()
        .filter(|(_, became)| differ(became))
        .map(|(script, _)| script.name.as_str())
        .collect();
    println!(
        "\n{ran} of {} programs ran, {} of them the same in each way",
        rows.len(),
        ran - bad.len()
    );
    ensure!(ran > 0, "no program ran: `cargo xtask programs --install` brings them");
    ensure!(bad.is_empty(), "not the same under Shunt: {}", bad.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(said: &str, errors: &str, attached: u64) -> Ended {
        Ended {
            status: Some(0),
            said: said.into(),
            errors: errors.into(),
            attached,
            ..Ended::default()
        }
    }

    #[test]
    fn a_way_is_the_same_only_if_all_of_it_is() {
        let script = Script::default();
        let is_same =
            |way, ended: &Ended| matches!(judged(&script, way, "ok\n", ended), Verdict::Same(_));
        assert!(is_same(Way::Both, &ended("ok\n", "a warning\n", 2)));
        assert!(!is_same(Way::Both, &ended("ok", "", 2)), "other words");
        assert!(!is_same(Way::Both, &ended("ok\n", "", 0)), "nothing in memory");
        assert!(is_same(Way::Server, &ended("ok\n", "", 0)));
        assert!(!is_same(Way::Server, &ended("ok\n", "x\nshunt[7]: fd 3: reset\n", 0)));
        assert!(!is_same(Way::Both, &Ended { status: Some(1), ..ended("ok\n", "", 2) }));
        assert!(!is_same(Way::Both, &Ended { status: None, ..ended("ok\n", "", 2) }));
        let stays = Script { stays: Some("why".into()), ..Script::default() };
        assert!(matches!(
            judged(&stays, Way::Both, "ok\n", &ended("ok\n", "", 0)),
            Verdict::Same(0)
        ));
        let fallen = Ended { fault: Some("the server fell".into()), ..ended("ok\n", "", 2) };
        assert!(!is_same(Way::Both, &fallen));
    }

    #[test]
    fn what_differs_is_named_and_nothing_at_all_is_an_error() {
        let script = Script { name: "one".into(), ..Script::default() };
        let differs = [(Way::Both, Verdict::Differs("why".into()))].into();
        let said = verdict(&[(&script, Became::Ran(differs))]).unwrap_err().to_string();
        assert!(said.contains("one"), "{said}");
        assert!(verdict(&[(&script, Became::Skipped("absent".into()))]).is_err());
        assert!(verdict(&[(&script, Became::Ran([(Way::Both, Verdict::Same(2))].into()))]).is_ok());
    }

    #[test]
    fn the_page_has_a_place_for_the_table() {
        let text = fs::read_to_string(crate::workspace_root().join(PAGE)).unwrap();
        assert!(page::with_table(&text, BEGIN, END, "x").is_ok());
    }
}

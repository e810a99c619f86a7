//! The rules of the house, as tests: who may use whom, what pure means, where `unsafe` may stand.
//!
//! A rule that fails says which file breaks it and why the rule is there.

mod source;

use std::collections::BTreeSet;
use std::fs;

use e2e::workspace_root;
use source::{Manifest, Source, rust_sources, text_files};

/// Which of our crates each of our crates may use. Read downwards: nothing uses what is above it.
/// A crate that is not here yet has no place in the house: find it one, by a decision in
/// `docs/adr`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("xtask", &["testkit"]),
    ("bench", &["testkit", "engine", "frag", "roce", "sys"]),
    ("e2e", &["testkit", "engine", "frag", "local", "smb", "sys"]),
    ("testkit", &[]),
    ("cli", &["engine", "local", "smb", "sys"]),
    ("preload", &["local", "sys"]),
    ("frag-c", &["frag"]),
    ("engine", &["smc", "roce", "frag", "smb", "local", "sys"]),
    ("local", &["sys"]),
    ("smc", &[]),
    ("roce", &[]),
    ("frag", &[]),
    ("smb", &[]),
    ("sys", &[]),
];

/// Whom tests may use besides: the crates that give them packets, which are never shipped and may be
/// above.
const TESTS_MAY_USE: &[(&str, &str)] =
    &[("engine", "testkit"), ("frag", "testkit"), ("roce", "testkit")];

/// What is loaded into other people's programs may use nothing that has a global of its own, a
/// thread or an allocator.
const GUEST_MAY_USE: &[&str] = &["libc", "io-uring", "loom", "proptest", "thiserror"];
const IN_THE_GUEST: &[&str] = &["sys", "local", "preload"];

/// Crates that open no file, read no clock and start no thread.
const PURE: &[&str] = &["smc", "roce", "frag", "smb"];
const IMPURE: &[&str] = &[
    "std::net::Tcp",
    "std::net::Udp",
    "std::fs",
    "std::os",
    "std::io::stdin",
    "Instant::now",
    "SystemTime",
    "std::thread",
    "thread::spawn",
    "libc::",
    "rustix::",
];

/// Where `unsafe` may stand. Beside the two crates that exist for it, the face towards C, and what is
/// never shipped and has to call the C library as other people's programs do.
const MAY_BE_UNSAFE: &[&str] = &[
    "crates/sys/",
    "crates/preload/",
    "crates/frag-c/",
    "crates/testkit/",
    "crates/bench/",
    "e2e/",
];

/// The one symbol that is exported elsewhere: the `main` of `shunt`, which has to begin before Rust
/// changes how SIGPIPE is treated, since the program that it becomes would inherit that.
const C_MAIN: &str = "crates/cli/src/main.rs";

const FILE_LINES_MAX: usize = 1200;

fn check(broken: &[String], rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

/// The sources in which some line is `wrong`, with the line's number.
fn lines_where(sources: &[Source], wrong: impl Fn(&Source, &str) -> bool) -> Vec<String> {
    let lines = sources.iter().flat_map(|source| {
        let code = source.text.lines().enumerate().filter(|(_, l)| !l.trim().starts_with("//"));
        code.filter(|(_, line)| wrong(source, line))
            .map(|(at, line)| format!("{}:{}: {}", source.path, at + 1, line.trim()))
            .collect::<Vec<_>>()
    });
    lines.collect()
}

#[test]
fn each_crate_has_its_place() {
    let known: BTreeSet<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    let manifests = Manifest::all();
    assert!(
        manifests.len() > 4,
        "found only {} crates: looking in the wrong place",
        manifests.len()
    );
    let lost = manifests.iter().filter(|m| !known.contains(m.folder.as_str()));
    check(&lost.map(|m| m.folder.clone()).collect::<Vec<_>>(), "crates with no place in MAY_USE");
}

#[test]
fn dependencies_point_down() {
    let ours: Vec<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    let mut broken = Vec::new();
    for manifest in Manifest::all() {
        let allowed = MAY_USE.iter().find(|(name, _)| *name == manifest.folder);
        let allowed = allowed.map_or(&[][..], |(_, allowed)| allowed);
        for dependency in &manifest.dependencies {
            let Some(used) = dependency.ours(&ours) else { continue };
            let in_tests = TESTS_MAY_USE.contains(&(&manifest.folder, used));
            if !(allowed.contains(&used) || dependency.for_tests && in_tests) {
                broken.push(format!("{} uses {used}", manifest.folder));
            }
        }
    }
    check(&broken, "dependencies that point up or sideways");
}

#[test]
fn order_of_crates_has_no_circle() {
    for (at, (name, uses)) in MAY_USE.iter().enumerate() {
        for used in *uses {
            let below = MAY_USE[at + 1..].iter().any(|(other, _)| other == used);
            assert!(below, "MAY_USE lets {name} use {used}, which is not below it");
        }
    }
}

#[test]
fn the_guest_gets_next_to_nothing() {
    let ours: Vec<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    let mut broken = Vec::new();
    for manifest in Manifest::all().iter().filter(|m| IN_THE_GUEST.contains(&m.folder.as_str())) {
        for used in manifest.dependencies.iter().filter(|d| d.ours(&ours).is_none()) {
            if !GUEST_MAY_USE.contains(&used.name.as_str()) {
                broken.push(format!("{} uses {}", manifest.folder, used.name));
            }
        }
    }
    check(&broken, "crates that would be loaded into other people's programs");
}

#[test]
fn versions_stand_in_one_place() {
    let broken = Manifest::all().into_iter().flat_map(|manifest| {
        let own = manifest.dependencies.into_iter().filter(|d| !d.from_workspace);
        own.map(move |d| format!("{}: {}", manifest.folder, d.name)).collect::<Vec<_>>()
    });
    check(&broken.collect::<Vec<_>>(), "dependencies that are not `workspace = true`");
}

#[test]
fn lints_and_purpose_are_in_each_manifest() {
    let broken = Manifest::all().into_iter().filter(|manifest| {
        !manifest.text.contains("[lints]\nworkspace = true")
            || !manifest.text.contains("\ndescription = ")
    });
    let broken: Vec<_> = broken.map(|m| m.folder).collect();
    check(&broken, "manifests without `[lints] workspace = true` or without a description");
}

#[test]
fn each_file_says_what_it_is_for() {
    // Test modules explain themselves by the names of their tests.
    let of_tests = |s: &Source| s.path.ends_with("/tests.rs") || s.path.contains("/tests/");
    let silent = rust_sources().into_iter().filter(|s| !of_tests(s) && !s.text.starts_with("//!"));
    check(&silent.map(|s| s.path).collect::<Vec<_>>(), "files that do not begin with `//!`");
}

#[test]
fn pure_crates_are_pure() {
    // Models of what other people's threads may do need threads, those of loom.
    let pure = |s: &Source| {
        PURE.iter().any(|name| s.path.starts_with(&format!("crates/{name}/src/")))
            && !s.path.ends_with("/models.rs")
    };
    let sources: Vec<_> = rust_sources().into_iter().filter(pure).collect();
    let broken = lines_where(&sources, |_, line| IMPURE.iter().any(|word| line.contains(word)));
    check(&broken, "pure crates that touch the world");
}

#[test]
fn unsafe_has_its_place() {
    let forms =
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe extern", "#[unsafe("];
    let broken = lines_where(&rust_sources(), |source, line| {
        // In quotes it is a word like any other; this file has some.
        forms.iter().any(|form| line.contains(form) && !line.contains(&format!("\"{form}")))
            && !MAY_BE_UNSAFE.iter().any(|place| source.path.starts_with(place))
            && !(source.path == C_MAIN && line == "#[unsafe(no_mangle)]")
    });
    check(&broken, "unsafe outside of sys and preload");
}

#[test]
fn only_preload_stands_in_for_the_c_library() {
    let broken = lines_where(&rust_sources(), |source, line| {
        let form = ["no_mangle", "export_name"].iter().any(|form| line.contains(form));
        let places = ["crates/preload/", "crates/frag-c/", C_MAIN];
        form && !line.contains('"') && !places.iter().any(|place| source.path.starts_with(place))
    });
    check(&broken, "symbols exported outside of preload and the face towards C");
}

#[test]
fn files_stay_short_enough_to_read() {
    let long = rust_sources().into_iter().filter_map(|source| {
        let lines = source.text.lines().count();
        (lines > FILE_LINES_MAX).then(|| format!("{} has {lines} lines", source.path))
    });
    check(
        &long.collect::<Vec<_>>(),
        "files over the limit: cut them where their reasons to change differ",
    );
}

#[test]
fn nothing_is_left_for_later() {
    let words = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("db", "g!(")];
    let broken =
        lines_where(&rust_sources(), |_, line| words.iter().any(|word| line.contains(word)));
    check(&broken, "code that is not written");
}

#[test]
fn exceptions_to_lints_are_expected() {
    let forms = [concat!("#[al", "low("), concat!("#![al", "low(")];
    let broken =
        lines_where(&rust_sources(), |_, line| forms.iter().any(|form| line.contains(form)));
    check(
        &broken,
        "use `#[expect(lint, reason = \"…\")]`, which warns when it is no longer needed",
    );
}

#[test]
fn each_fuzz_target_can_be_built() {
    let root = workspace_root();
    let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
    let contributing = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    let mut broken = Vec::new();
    for file in fs::read_dir(root.join("fuzz/fuzz_targets")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy();
        let bin = format!("[[bin]]\nname = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n");
        if !manifest.contains(&bin) {
            broken.push(format!("{name}: not in fuzz/Cargo.toml"));
        }
        if !contributing.contains(&format!("`{name}`")) {
            broken.push(format!("{name}: not in CONTRIBUTING.md"));
        }
    }
    check(&broken, "what nobody can run finds nothing");
}

/// The words after `--test it` in the justfile and in documents.
fn filters(line: &str) -> Vec<String> {
    let Some((_, rest)) = line.split_once("--test it ") else { return Vec::new() };
    let words = rest.split_whitespace().skip_while(|word| *word == "--");
    let names = words
        .take_while(|word| word.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c)));
    names.map(str::to_owned).collect()
}

#[test]
fn what_the_verbs_choose_is_there() {
    let root = workspace_root();
    let module = |source: &Source| {
        let path = source.path.strip_prefix("e2e/tests/it/")?.strip_suffix(".rs")?;
        Some(format!("{}::", path.replace('/', "::")))
    };
    let modules: Vec<String> = rust_sources().iter().filter_map(module).collect();
    let verbs = fs::read_to_string(root.join("justfile")).unwrap();
    let chosen: Vec<String> = verbs.lines().flat_map(filters).collect();
    assert!(chosen.len() >= 4, "{chosen:?}");
    let absent = |filter: &&String| !modules.iter().any(|module| module.contains(filter.as_str()));
    let broken: Vec<String> =
        chosen.iter().filter(absent).map(|filter| format!("justfile: {filter}")).collect();
    check(
        &broken,
        "no module of e2e/tests/it has that in its name: the verb runs no test and passes",
    );
}

#[test]
fn nothing_points_out_of_the_repository() {
    let paths = [
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("../sha", "red"),
    ];
    let broken = text_files().into_iter().flat_map(|file| {
        let lines = file.text.lines().enumerate();
        let lines = lines.filter(|(_, line)| paths.iter().any(|path| line.contains(path)));
        lines.map(|(at, line)| format!("{}:{}: {line}", file.path, at + 1)).collect::<Vec<_>>()
    });
    check(&broken.collect::<Vec<_>>(), "paths that exist on one machine only");
}

#[test]
fn the_readme_knows_each_setting() {
    let root = workspace_root();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let config = fs::read_to_string(root.join("crates/local/src/config.rs")).unwrap();
    let names: Vec<&str> = config
        .split("name: \"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"').map(|(name, _)| name))
        .collect();
    assert!(names.len() > 5, "found only {names:?}: settings are written in another way now");
    let absent = names.iter().filter(|name| !readme.contains(&format!("| `{name}`")));
    check(
        &absent.map(|n| (*n).to_owned()).collect::<Vec<_>>(),
        "settings that README.md does not list",
    );
}

#[test]
fn decisions_are_numbered_and_complete() {
    let folder = workspace_root().join("docs/adr");
    let mut names: Vec<String> = fs::read_dir(folder.clone())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut broken = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let parts = ["## Context", "## Decision", "## Cost", "## What would change our mind"];
        if !name.starts_with(&format!("{:04}-", at + 1)) || !parts.iter().all(|p| text.contains(p))
        {
            broken.push(name.clone());
        }
    }
    assert!(!names.is_empty());
    check(&broken, "decisions out of order or without one of their four parts");
}

use std::collections::HashMap;
use std::time::Duration;

use local::Level;
use proptest::prelude::*;

use super::*;

/// A home directory with this configuration, and variables.
struct Desk {
    home: tempfile::TempDir,
    variables: HashMap<String, String>,
}

impl Desk {
    fn new(file: Option<&str>, variables: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut all: HashMap<String, String> =
            variables.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let config = home.path().join(".config/shunt/config.toml");
        std::fs::create_dir_all(config.parent().unwrap()).unwrap();
        if let Some(text) = file {
            std::fs::write(&config, text).unwrap();
        }
        all.insert("HOME".into(), home.path().to_str().unwrap().into());
        Self { home, variables: all }
    }

    fn merge(&self, arguments: &[&str]) -> anyhow::Result<Merged> {
        let options = options(arguments);
        merge(&options, &|name| self.variables.get(name).cloned().ok_or(VarError::NotPresent))
    }

    #[track_caller]
    fn error(&self, arguments: &[&str]) -> String {
        format!("{:#}", self.merge(arguments).unwrap_err())
    }
}

fn options(arguments: &[&str]) -> SettingOptions {
    let command = SettingOptions::augment_args(Command::new("x").no_binary_name(true));
    let matches = command.try_get_matches_from(arguments).unwrap();
    SettingOptions::from_arg_matches(&matches).unwrap()
}

#[test]
fn options_win_over_environment_over_file() {
    let file = "spin_us = 1\nlog = \"info\"\nring_max = \"64K\"\n";
    let desk = Desk::new(Some(file), &[("SHUNT_SPIN_US", "2"), ("SHUNT_LOG", "debug")]);
    let merged = desk.merge(&["--spin-us", "3"]).unwrap();
    assert_eq!(merged.limits.spin, Duration::from_micros(3));
    assert_eq!(merged.limits.log, Level::Debug);
    assert_eq!(merged.limits.order_max, 2);
    assert_eq!(merged.source("spin_us"), Some(&Source::Option("--spin-us".into())));
    assert_eq!(merged.source("log"), Some(&Source::Environment("SHUNT_LOG")));
    assert!(matches!(merged.source("ring_max"), Some(Source::File(_, 3))));
    assert_eq!(merged.source("dir"), None);
}

#[test]
fn what_is_exported_is_what_was_merged_and_nothing_else() {
    let desk = Desk::new(Some("memory_max = 0x4000000\n"), &[("SHUNT_EXCLUDE", "port:22")]);
    let merged = desk.merge(&["--off", "--ring-min=32K"]).unwrap();
    let exports: HashMap<_, _> = merged.exports().collect();
    assert_eq!(exports.len(), SETTINGS.len());
    assert_eq!(exports["SHUNT_ENABLED"], Some("off"));
    assert_eq!(exports["SHUNT_RING_MIN"], Some("32K"));
    assert_eq!(exports["SHUNT_MEMORY_MAX"], Some("67108864"));
    assert_eq!(exports["SHUNT_EXCLUDE"], Some("port:22"));
    assert_eq!(exports["SHUNT_LOG"], None);
    assert!(!merged.limits.enabled);
}

#[test]
fn each_type_of_the_file_has_its_text() {
    let file = "enabled = false\nspin_us = 1_0\ninclude = [\"port:80\", \"program:nginx\"]\n";
    let merged = Desk::new(Some(file), &[]).merge(&[]).unwrap();
    assert!(!merged.limits.enabled);
    assert_eq!(merged.limits.spin, Duration::from_micros(10));
    assert_eq!(merged.limits.include.len(), 2);
}

#[test]
fn a_mistake_in_the_file_is_named_with_its_line() {
    let error = Desk::new(Some("log = \"info\"\nspin-us = 5\n"), &[]).error(&[]);
    assert!(error.contains("config.toml:2: no such setting: spin-us"), "{error}");
    assert!(error.contains("did you mean spin_us?"), "{error}");
    let error = Desk::new(Some("colour = 5\n"), &[]).error(&[]);
    assert!(error.contains("there are: enabled, spin_us"), "{error}");
    let error = Desk::new(Some("\n\nspin_us = 5000\n"), &[]).error(&[]);
    assert!(error.contains("config.toml:3: spin_us = \"5000\": microseconds"), "{error}");
    let error = Desk::new(Some("\nlog = \n"), &[]).error(&[]);
    assert!(error.contains("config.toml:2: "), "{error}");
    let error = Desk::new(Some("[run]\nlog = \"info\"\n"), &[]).error(&[]);
    assert!(
        error.contains("config.toml:1: no such section: run (there are: engine, serve)"),
        "{error}"
    );
    let error = Desk::new(Some("log = 1.5\n"), &[]).error(&[]);
    assert!(error.contains("config.toml:1: log:") && error.contains("float"), "{error}");
    let error = Desk::new(Some("include = [1]\n"), &[]).error(&[]);
    assert!(error.contains("include = \"1\": port:N"), "{error}");
    let error = Desk::new(Some("include = [true]\n"), &[]).error(&[]);
    assert!(error.contains("a list of strings or numbers is wanted, not of boolean"), "{error}");
    let error = Desk::new(Some("spin_us = 99999999999999999999\n"), &[]).error(&[]);
    assert!(error.contains("too large"), "{error}");
}

#[test]
fn a_mistake_elsewhere_is_named_with_its_place() {
    let desk = Desk::new(None, &[("SHUNT_LOG", "loud")]);
    assert!(desk.error(&[]).starts_with("SHUNT_LOG in the environment: "));
    // Also when an option would override it.
    assert!(desk.error(&["--log", "info"]).starts_with("SHUNT_LOG in the environment: "));
    let error = Desk::new(None, &[]).error(&["--memory-max", "12"]);
    assert!(error.starts_with("--memory-max: ") && error.contains("1M to 8G"), "{error}");
    let error = Desk::new(Some("ring_min = \"256K\"\n"), &[]).error(&["--ring-max", "64K"]);
    assert!(error.contains("config.toml:1") && error.contains("from --ring-max"), "{error}");
}

#[test]
fn an_empty_variable_is_as_good_as_none() {
    let desk = Desk::new(Some("log = \"info\"\n"), &[("SHUNT_LOG", ""), ("SHUNT_CONFIG", "")]);
    let merged = desk.merge(&[]).unwrap();
    assert_eq!(merged.limits.log, Level::Info);
    assert!(merged.file.is_some());
}

#[test]
fn a_named_file_must_exist_and_replaces_the_usual_one() {
    let desk = Desk::new(Some("log = \"info\"\n"), &[]);
    let absent = desk.home.path().join("absent.toml");
    let error = desk.error(&["--config", absent.to_str().unwrap()]);
    assert!(error.starts_with("--config: ") && error.contains("absent.toml"), "{error}");
    let other = desk.home.path().join("other.toml");
    std::fs::write(&other, "spin_us = 9\n").unwrap();
    let merged = desk.merge(&["--config", other.to_str().unwrap()]).unwrap();
    assert_eq!(merged.limits.log, Level::Error, "the usual file is not read");
    assert_eq!(merged.limits.spin, Duration::from_micros(9));
    assert_eq!(merged.file, Some(other));
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_not_passed_over() {
    let desk = Desk::new(None, &[]);
    std::fs::create_dir(desk.home.path().join(".config/shunt/config.toml")).unwrap();
    let error = desk.error(&[]);
    assert!(error.contains("config.toml"), "{error}");
}

#[test]
fn a_file_that_is_closed_to_us_is_told() {
    let desk = Desk::new(Some(""), &[]);
    let there = desk.home.path().join(".config/shunt/config.toml");
    let absent = desk.home.path().join("no/config.toml");
    let hosts = Path::new(HOSTS).join("shunt/config.toml");
    let closed = |places: &[&PathBuf]| {
        let denied = |_: &Path| Err(std::io::ErrorKind::PermissionDenied.into());
        first_of(places.iter().map(PathBuf::from), denied).unwrap().closed
    };
    assert_eq!(closed(&[&there, &hosts]), Some(there));
    // Somebody else's folder; and what is the host's was meant for us, whatever is there.
    assert_eq!(closed(&[&absent]), None);
    assert_eq!(closed(&[&absent, &hosts]), Some(hosts));
}

#[test]
fn a_path_of_the_file_that_is_no_text_is_an_error() {
    let environment = |name: &str| match name {
        CONFIG => Err(VarError::NotUnicode("\u{fffd}".into())),
        _ => Err(VarError::NotPresent),
    };
    let error = merge(&SettingOptions::default(), &environment).unwrap_err().to_string();
    assert_eq!(error, "SHUNT_CONFIG in the environment is not UTF-8");
}

#[test]
fn each_setting_has_an_option_which_documents_it() {
    let mut command = SettingOptions::augment_args(Command::new("x"));
    let help = command.render_long_help().to_string();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for setting in SETTINGS {
        assert!(words.contains(setting.env), "{}", setting.name);
        if setting.name != SWITCH {
            assert!(words.contains(&format!("--{} <", option_name(setting))), "{}", setting.name);
            assert!(words.contains(setting.help.get(1..).unwrap()), "{}", setting.name);
        }
    }
    assert!(words.contains("--off "));
}

/// A file with some sense in it: names that are, or nearly are, and values that may be.
/// The file that packages bring, with its settings in force; without those of which it shows an example.
pub(crate) fn packaged(examples: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/config.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let lines =
        text.lines().filter(|line| !examples.iter().any(|e| line.starts_with(&format!("#{e} ="))));
    let in_force = |line: &str| {
        line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).map(str::to_owned)
    };
    let lines = lines.map(|line| in_force(line).unwrap_or_else(|| line.to_owned()));
    lines.map(|line| line + "\n").collect()
}

#[test]
fn the_file_of_packages_has_all_settings_with_their_usual_values() {
    let text = packaged(&[]);
    let merged = Desk::new(Some(&text), &[]).merge(&[]).unwrap();
    for setting in SETTINGS.iter().filter(|setting| setting.name != "dir") {
        assert!(merged.source(setting.name).is_some(), "{} is not in it", setting.name);
    }
    let usual =
        Desk::new(Some(&packaged(&["include", "exclude", "routed", "dir", "log_file"])), &[])
            .merge(&[])
            .unwrap();
    assert_eq!(usual.limits, Limits::default());
}

#[test]
fn the_file_of_packages_has_usual_values_of_the_engine() {
    use engine::remote::config;
    let with = |examples: &[&str]| {
        let desk = Desk::new(Some(&packaged(examples)), &[]);
        let file = desk.home.path().join(".config/shunt/config.toml");
        let mut engine = config::Config::default();
        let options = SettingOptions::with_dir(Some(file), None);
        for written in engine_section(&options, config::SETTINGS).unwrap().written {
            engine.set(written.setting, &written.text).unwrap();
        }
        engine
    };
    assert_ne!(with(&[]), config::Config::default(), "it is read");
    assert_eq!(with(&["address"]), config::Config::default());
}

fn files() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        6 => proptest::sample::select(SETTINGS.iter().map(|s| s.name).collect::<Vec<_>>()),
        1 => proptest::sample::select(vec!["spin", "", "\"log\"", "[dir]", "ring.min"]),
    ];
    let value = prop_oneof![
        proptest::sample::select(vec![
            "on",
            "true",
            "7",
            "0x10",
            "1_000",
            "-1",
            "\"64K\"",
            "\"4M\"",
            "\"info\"",
            "\"/x\"",
            "[\"port:1\", \"addr:::1/128\"]",
            "\"port:1-2,program:x\"",
            "{}",
            "1e400",
            "\"",
        ])
        .prop_map(str::to_owned),
        any::<i64>().prop_map(|n| n.to_string()),
        "\"[ -~]{0,12}\"",
        "[ -~]{0,12}",
    ];
    let lines = proptest::collection::vec((name, value), 0..6);
    let lines = lines.prop_map(|l| l.iter().map(|(n, v)| format!("{n} = {v}\n")).collect());
    prop_oneof![4 => lines, 1 => any::<String>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_written_is_refused_or_means_the_same_in_the_guest(
        file in files(),
        log in "[a-z]{0,5}|info",
    ) {
        let desk = Desk::new(Some(&file), &[("SHUNT_LOG", &log)]);
        let Ok(merged) = desk.merge(&[]) else { return Ok(()) };
        let mut limits = Limits::default();
        for (setting, (_, text)) in SETTINGS.iter().zip(merged.exports()) {
            if let Some(text) = text {
                limits.set(setting.name, text).unwrap();
            }
        }
        prop_assert_eq!(limits.checked(), Ok(merged.limits));
    }
}

#[test]
fn a_variable_that_looks_like_a_setting_is_noticed() {
    let all =
        ["SHUNT_SPINUS", "SHUNT_SPIN_US", "shunt_log", "SHUNTCONFIG", "SHUNTED", "SHUNT_BIN_DIR"];
    let found = mistyped(all.iter().map(ToString::to_string));
    let found: Vec<_> = found.iter().map(|(name, meant)| (name.as_str(), *meant)).collect();
    let meant = [
        ("SHUNT_SPINUS", "SHUNT_SPIN_US"),
        ("shunt_log", "SHUNT_LOG"),
        ("SHUNTCONFIG", "SHUNT_CONFIG"),
    ];
    assert_eq!(found, meant);
}

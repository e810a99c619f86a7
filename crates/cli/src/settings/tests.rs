use std::os::unix::fs::PermissionsExt;

use super::*;

/// A folder with a configuration file, of which `DIR` is the folder.
struct Desk {
    dir: tempfile::TempDir,
    file: PathBuf,
}

impl Desk {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        Self { dir, file }
    }

    fn checked(&self) -> Checked {
        Checked::of(Some(self.file.clone()))
    }

    fn shown(&self) -> Shown {
        Shown::of(Some(self.file.clone())).unwrap()
    }
}

#[test]
fn all_that_is_wrong_is_told_in_the_order_of_the_file() {
    let desk = Desk::new(
        "spin_u = 3\n\
         log = \"loud\"\n\
         [engin]\n\
         [engine]\n\
         max_link = 2\n\
         max_conns = 3\n\
         device = \"no_such_0\"\n\
         [serve]\n\
         guests = true\n\
         users = \"DIR/users\"\n\
         keytab = \"DIR/keytab\"\n\
         [serve.share.a]\n\
         path = \"DIR/absent\"\n\
         [serve.share.b]\n\
         path = \"DIR\"\n\
         rw = true\n\
         file_mode = 9\n",
    );
    let users = desk.dir.path().join("users");
    std::fs::write(&users, "").unwrap();
    std::fs::set_permissions(&users, PermissionsExt::from_mode(0o644)).unwrap();
    let checked = desk.checked();
    let wanted = [
        (1, "no such setting: spin_u (did you mean spin_us?)"),
        (2, "off, error, info or debug"),
        (3, "no such section: engin (did you mean engine? there are: engine, serve)"),
        (5, "no such setting: max_link (did you mean max_links?)"),
        (6, "max_conns = \"3\": a number, 16 to 255"),
        (7, "device: no_such_0: there is no such RDMA device here"),
        (9, "no such setting: guests (did you mean guest?)"),
        (10, "chmod 600"),
        (11, "keytab: "),
        (12, "share a: "),
        (16, "share b: no such option: rw (did you mean ro?)"),
        (17, "share b: file_mode: an octal number"),
    ];
    let lines: Vec<_> = checked.mistakes.iter().map(|bad| bad.line.unwrap_or(0)).collect();
    assert_eq!(lines, wanted.map(|(line, _)| line), "{checked:#?}");
    for (bad, (_, words)) in checked.mistakes.iter().zip(wanted) {
        assert!(bad.words.contains(words), "{words}: {bad:?}");
        assert!(!bad.words.contains("config.toml"), "{bad:?}");
    }
    let text = checked.text();
    assert!(text.contains("config.toml:1: no such setting: spin_u"), "{text}");
    assert!(text.ends_with("config.toml: 12 mistakes\n"), "{text}");
    assert!(!checked.valid);
}

/// All of these were valid, and `shunt engine` ended with them.
#[test]
fn what_the_engine_would_not_find_here_is_told_as_it_would_tell_it() {
    if sys::call::geteuid() != 0 {
        return println!("skipped: only root serves others, and can open any control group");
    }
    let desk = Desk::new(
        "[engine]\n\
         address = \"127.0.0.1,192.0.2.77\"\n\
         users = \"root,no-such-user-surely\"\n\
         cgroup = \"/no-such-group/surely\"\n",
    );
    let wanted = [
        (2, "cannot speak RoCEv2 from 192.0.2.77: this host has no such address"),
        (3, "users: there is no user no-such-user-surely here"),
        (4, "the cgroup /no-such-group/surely: "),
    ];
    // Where sockets may have any address the engine starts with one that is nobody's, for a router that fails over to it.
    let any = std::fs::read_to_string("/proc/sys/net/ipv4/ip_nonlocal_bind");
    let any = usize::from(any.is_ok_and(|set| set.trim() != "0"));
    let wanted = wanted.into_iter().skip(any);
    let checked = desk.checked();
    // Where there are none that can be looked at, that is not the file's fault.
    let told: Vec<_> = checked.mistakes.iter().map(|bad| bad.line.unwrap_or(0)).collect();
    let of_rights =
        checked.warnings.iter().filter(|words| words.contains("/no-such-group")).count();
    assert_eq!(told.len() + of_rights, wanted.len(), "{checked:#?}");
    for (line, words) in wanted {
        let is_told = |bad: &Bad| bad.line == Some(line) && bad.words.contains(words);
        let is_warned = |told: &String| told.contains(&format!(":{line}: {words}"));
        let found = checked.mistakes.iter().any(is_told) || checked.warnings.iter().any(is_warned);
        assert!(found, "{words}: {checked:#?}");
    }
    let fine =
        Desk::new("[engine]\naddress = \"127.0.0.1\"\nusers = \"root\"\ncgroup = \"none\"\n");
    assert!(fine.checked().valid && fine.checked().warnings.is_empty(), "{:#?}", fine.checked());
}

#[test]
fn settings_that_contradict_each_other_are_a_mistake() {
    for (text, line, words) in [
        ("ring_max = \"16K\"\nring_min = \"64K\"\n", 2, "at most ring_max"),
        ("[engine]\nusers = \"all\"\ndir = \"/dev/shm/x\"\n", 2, "usual place"),
        ("[serve]\nrealm_users = true\n", 2, "needs a keytab"),
        ("[serve.share.a]\npath = \"/\"\n[serve.share.A]\npath = \"/\"\n", 3, "two shares"),
        ("[serve]\nguest = false\n[serve.share.a]\npath = \"/\"\n", 3, "nobody could log on"),
        ("[serve]\nuser = \"ann:x\"\n", 2, "others can read"),
    ] {
        let checked = Desk::new(text).checked();
        let found = checked.mistakes.iter().find(|bad| bad.words.contains(words));
        assert_eq!(found.map(|bad| bad.line), Some(Some(line)), "{text}: {checked:#?}");
    }
}

#[test]
fn all_of_what_is_no_toml_is_told_and_nothing_else() {
    let checked = Desk::new("spin_u = 3\nlog = \nring_min = [\n").checked();
    assert_eq!(checked.mistakes[0].line, Some(2), "{checked:#?}");
    assert!(!checked.text().contains("spin_u"), "{checked:#?}");
}

#[test]
fn what_is_right_is_valid() {
    let text = config::tests::packaged(&["dir", "unix_users", "address"]);
    let desk =
        Desk::new(&text.replace("/srv/work", "DIR").replace("guest = \"off\"", "guest = \"on\""));
    let checked = desk.checked();
    assert!(checked.valid, "{checked:#?}");
    assert_eq!(checked.text(), format!("{}: valid\n", desk.file.display()));
    let absent = Checked::of(Some("/not/there".into()));
    assert!(!absent.valid && absent.text().ends_with("/not/there: 1 mistake\n"), "{absent:?}");
}

#[test]
fn what_is_in_force_says_who_says_so() {
    let desk = Desk::new(
        "spin_us = 7\n\
         dir = \"/dev/shm/x\"\n\
         [engine]\n\
         eid = \"A,B\"\n\
         [serve]\n\
         guest = true\n\
         opens_max = 0\n\
         user = \"ann:secret\"\n\
         [serve.share.\"a b\"]\n\
         path = \"/\"\n\
         ro = true\n",
    );
    std::fs::set_permissions(&desk.file, PermissionsExt::from_mode(0o600)).unwrap();
    let shown = desk.shown();
    let file = desk.file.display();
    let section = |name: Option<&str>| {
        shown.sections.iter().find(|section| section.name.as_deref() == name).unwrap()
    };
    let is = |of: Option<&str>, name: &str, value: Option<&str>, line: Option<usize>| {
        let found = section(of).settings.iter().find(|setting| setting.name == name).unwrap();
        let source = line.map_or_else(|| USUAL.to_owned(), |line| format!("{file}:{line}"));
        assert_eq!((found.value.as_deref(), &found.source), (value, &source), "{name}");
    };
    is(None, "spin_us", Some("7"), Some(1));
    is(None, "ring_min", Some("16K"), None);
    is(None, "include", None, None);
    is(Some("engine"), "eid", Some("A,B"), Some(4));
    is(Some("engine"), "dir", Some("/dev/shm/x"), Some(2));
    is(Some("serve"), "guest", Some("on"), Some(6));
    is(Some("serve"), "opens_max", Some("65536"), None);
    let share = Some("serve.share.\"a b\"");
    is(share, "path", Some("/"), Some(9));
    is(share, "ro", Some("on"), Some(9));
    is(share, "streams", Some("on"), None);
    assert_eq!(shown.mistakes.len(), 1, "{:?}", shown.mistakes);
    assert_eq!(shown.mistakes[0].line, Some(7));
    let text = shown.text();
    assert!(!text.contains("secret"), "{text}");
    assert!(text.contains(&format!("\nspin_us = 7 {:28} # {file}:1\n", "")), "{text}");
    // It is a file that says the same.
    let again = Desk::new(&text);
    let values = |shown: &Shown| -> Vec<_> {
        let settings = shown.sections.iter().flat_map(|section| &section.settings);
        settings.map(|setting| (setting.name, setting.value.clone())).collect()
    };
    let again = again.shown();
    assert_eq!(again.mistakes, []);
    assert_eq!(values(&again), values(&shown));
}

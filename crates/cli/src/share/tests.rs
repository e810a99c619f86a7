use std::os::unix::fs::chown;

use tempfile::TempDir;

use super::*;

const GROUP: u32 = 61_100;

fn is_root() -> bool {
    let is = sys::call::geteuid() == 0;
    if !is {
        println!("skipped: only root gives directories to groups");
    }
    is
}

/// Its owner, its group and its mode.
fn whose(dir: &Path) -> [u32; 3] {
    let at = fs::symlink_metadata(dir).unwrap();
    [at.uid(), at.gid(), at.mode() & 0o7777]
}

#[test]
fn groups_are_named_or_numbered() {
    let found = |name: &str, number| Group { name: name.to_owned(), number };
    assert_eq!(group("1002").unwrap(), found("1002", 1002));
    assert_eq!(group("root").unwrap(), found("root", 0));
    let unknown = format!("{:#}", group("no-such-group").unwrap_err());
    assert!(unknown.contains("groupadd no-such-group"), "{unknown}");
    // No option of the program that is asked.
    assert!(group("--help").is_err());
    for none in ["4294967295", "4294967296", ""] {
        assert!(group(none).is_err(), "{none}");
    }
    assert_eq!(parse("web:x:1002:app,postgres\n"), Some(found("web", 1002)));
    for none in ["", "\n", "web", "web:x", "web:x:", "web:x:many:"] {
        assert_eq!(parse(none), None, "{none:?}");
    }
}

#[test]
fn a_directory_is_made_once() {
    if !is_root() {
        return;
    }
    let place = TempDir::new().unwrap();
    let dir = place.path().join("shared");
    for is_across in [false, true, true, false] {
        make(&dir, GROUP, is_across).unwrap();
        assert_eq!(whose(&dir), [0, GROUP, MODE]);
    }
    let other = place.path().join("other");
    make(&other, GROUP, true).unwrap();
    for dir in [&dir, &other] {
        assert_eq!(whose(&dir.join(ACROSS)), [0, GROUP, 0o640]);
    }
    // Also one that is switched off.
    fs::write(dir.join(OFF), "").unwrap();
    let board = dir.join("board-all-v0");
    fs::write(&board, "").unwrap();
    fs::set_permissions(&board, fs::Permissions::from_mode(0o660)).unwrap();
    make(&dir, GROUP, true).unwrap();
    // A board of the one group is not another one's.
    let other = make(&dir, GROUP + 1, true).unwrap_err().to_string();
    assert!(other.contains("shared by group 61100") && other.contains("rm -r"), "{other}");
    assert_eq!(whose(&dir), [0, GROUP, MODE], "left as it was");
}

#[test]
fn a_place_is_where_nobody_else_leads_elsewhere() {
    let web = Group { name: "web".into(), number: 1002 };
    let found = |said: &str| place(Some(Path::new(said)), &web).map_err(|e| e.to_string());
    assert_eq!(place(None, &web).unwrap(), Path::new("/dev/shm/shunt-web"));
    assert_eq!(found("/dev/shm/../shm/x/").unwrap(), Path::new("/dev/shm/x"));
    for users in ["/dev/shm/shunt-0", "/dev/shm/shunt-1234/"] {
        assert!(found(users).unwrap_err().contains("programs of the user"), "{users}");
    }
    let number = Group { name: "1002".into(), number: 1002 };
    assert!(place(None, &number).is_err(), "a user's");
    assert!(found("/").unwrap_err().contains("no place"));
    if !is_root() {
        return;
    }
    let top = TempDir::new_in("/dev/shm").unwrap();
    let below = top.path().join("below");
    fs::create_dir(&below).unwrap();
    assert_eq!(place(Some(&below.join("x")), &web).unwrap(), below.join("x"));
    chown(top.path(), Some(61_001), None).unwrap();
    let said = place(Some(&below.join("x")), &web).unwrap_err().to_string();
    assert!(
        said.contains("other users can change") && said.contains(top.path().to_str().unwrap()),
        "{said}"
    );
    chown(top.path(), Some(0), None).unwrap();
    fs::set_permissions(top.path(), fs::Permissions::from_mode(0o775)).unwrap();
    assert!(place(Some(&below.join("x")), &web).is_err());
}

#[test]
fn what_is_for_something_else_stays_as_it_is() {
    if !is_root() {
        return;
    }
    let place = TempDir::new().unwrap();
    let refused = |dir: &Path, why: &str| {
        let before = fs::symlink_metadata(dir).ok().map(|_| whose(dir));
        let said = format!("{:#}", make(dir, GROUP, true).unwrap_err());
        assert!(said.contains(why), "{said}");
        assert_eq!(fs::symlink_metadata(dir).ok().map(|_| whose(dir)), before, "{why}");
        assert!(!dir.join(ACROSS).exists(), "{why}");
    };
    let made = |name: &str, mode| {
        let dir = place.path().join(name);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        dir
    };
    refused(&made("shunt-open", 0o1777), "open to everybody");
    refused(&made("open", 0o755), "open to everybody");
    let written = made("shunt-written", 0o755);
    fs::write(written.join("board-all-v0"), "").unwrap();
    refused(&written, "open to everybody");
    let other = made("other", 0o700);
    chown(&other, Some(61_001), None).unwrap();
    refused(&other, "belongs to user 61001");
    let full = made("full", 0o700);
    fs::write(full.join("letters"), "").unwrap();
    refused(&full, "holds letters");
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&file, "not a directory");
    let link = place.path().join("link");
    std::os::unix::fs::symlink(made("target", 0o700), &link).unwrap();
    refused(&link, "not a directory");
    let board = made("board", 0o700);
    fs::write(board.join("board-4-v0"), "").unwrap();
    chown(&board, None, Some(GROUP)).unwrap();
    chown(board.join("board-4-v0"), None, Some(GROUP)).unwrap();
    fs::set_permissions(board.join("board-4-v0"), fs::Permissions::from_mode(0o600)).unwrap();
    refused(&board, "in use by root alone (board-4-v0)");
    fs::set_permissions(board.join("board-4-v0"), fs::Permissions::from_mode(0o660)).unwrap();
    refused(&board, "in use for one network namespace (board-4-v0)");
    chown(board.join("board-4-v0"), Some(61_001), None).unwrap();
    refused(&board, "board-4-v0 is of user 61001");
    assert_eq!(whose(&place.path().join("target")), [0, whose(place.path())[1], 0o700]);
    refused(&place.path().join("none/below"), "cannot be made");
    // What is empty, and closed, becomes one.
    make(&made("empty", 0o700), GROUP, false).unwrap();
    // As Docker makes it where it is not there.
    let dockers = made("shunt-web", 0o755);
    make(&dockers, GROUP, true).unwrap();
    assert_eq!(whose(&dockers), [0, GROUP, MODE]);
}

#[test]
fn what_cannot_be_shared_after_all_is_left_as_it_was() {
    if !is_root() {
        return;
    }
    let place = TempDir::new().unwrap();
    let new = place.path().join("new");
    make(&new, GROUP, true).unwrap().undo(&new);
    assert!(!new.exists());
    let dir = place.path().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let before = whose(&dir);
    let changed = make(&dir, GROUP, true).unwrap();
    fs::write(changed.board.as_ref().unwrap(), "").unwrap();
    changed.undo(&dir);
    assert_eq!(whose(&dir), before);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn a_way_that_is_closed_to_the_group_is_seen() {
    if !is_root() {
        return;
    }
    let place = TempDir::new().unwrap();
    let below = place.path().join("below");
    fs::create_dir(&below).unwrap();
    let dir = below.join("dir");
    let closed = |mode| {
        fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
        closed_above(&dir, GROUP)
    };
    assert_eq!(closed(0o700), Some(place.path()));
    assert_eq!(closed(0o711), None);
    assert_eq!(closed(0o710), Some(place.path()));
    chown(place.path(), None, Some(GROUP)).unwrap();
    assert_eq!(closed(0o710), None);
}

#[test]
fn what_to_do_next_can_be_copied() {
    let place = TempDir::new().unwrap();
    let library = place.path().join("libshunt_preload.so");
    let group = Group { name: "web".into(), number: 1002 };
    let instructions = |dir: &str, is_across, is_host| {
        instructions(dir, &group, is_across, Some(&library), is_host)
            + &lasting(dir, &group, is_across, is_host)
    };
    let said = instructions("/dev/shm/shunt-web", false, true);
    assert!(said.contains("SHUNT_DIR=/dev/shm/shunt-web shunt run -- PROGRAM"), "{said}");
    assert!(said.contains("/etc/tmpfiles.d/shunt-web.conf"), "{said}");
    assert!(said.contains("d /dev/shm/shunt-web 3770 root web"), "{said}");
    assert!(!said.contains("docker") && !said.contains(ACROSS), "{said}");
    // As it lies where it was built, and as packages lay it out.
    let said = instructions("/dev/shm/shunt-web", true, true);
    let folder = place.path().display();
    assert!(said.contains(&format!("-v {folder}:/usr/lib/shunt:ro --group-add 1002")), "{said}");
    assert!(said.contains("'LD_PRELOAD=/usr/lib/shunt/libshunt_preload.so'"), "{said}");
    assert!(said.contains("f /dev/shm/shunt-web/all-namespaces 0640 root web"), "{said}");
    run::tests::lay_out(place.path());
    let said = instructions("/dev/shm/shunt-web", true, true);
    assert!(said.contains("'LD_PRELOAD=/usr/lib/shunt/$LIB/libshunt_preload.so'"), "{said}");
    let said = instructions("/dev/shm/shunt-ann", true, false);
    assert!(!said.contains("tmpfiles") && said.contains("make it again"), "{said}");
    assert!(said.contains("podman run -v") && !said.contains("docker"), "{said}");
    assert!(is_of_the_host("         0          0 4294967295\n"));
    for other in ["", "0 1000 1\n1 100000 65536\n", "0 0 1\n"] {
        assert!(!is_of_the_host(other), "{other:?}");
    }
}

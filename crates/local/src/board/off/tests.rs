//! Who switches, who hears of it, and who may not.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::super::{Board, locate};
use super::*;

/// Nobody's numbers.
const USER: u32 = 54_331;
const OTHER: u32 = 54_332;
const GROUP: u32 = 54_333;

/// Where a test has its directories; it goes with the test.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shunt-off-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    fn dir(&self) -> String {
        self.0.join("dir").into_os_string().into_string().unwrap()
    }

    /// One that is there, with this owner, group and mode.
    fn made(&self, uid: u32, gid: u32, mode: u32) -> String {
        let dir = self.dir();
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        chown(&dir, Some(uid), Some(gid)).unwrap();
        // Which takes bits away.
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        dir
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    let is = call::geteuid() == ROOT;
    if !is {
        println!("skipped: only root can be others");
    }
    is
}

fn board_in(dir: &str) -> PathBuf {
    let (path, _) = locate(Some(dir)).unwrap();
    PathBuf::from(path.into_string().unwrap())
}

/// Another namespace's board, on which we are.
fn joined_as(dir: &str, netns: &str) -> Board {
    let board = Board::join(Some(dir), 600).unwrap();
    fs::rename(board_in(dir), Path::new(dir).join(format!("board-{netns}-v{VERSION}"))).unwrap();
    board
}

#[test]
fn who_is_there_hears_of_it_and_who_comes_later_too() {
    let place = Place::new("hears");
    let dir = place.dir();
    let dir = Some(&*dir);
    // Nobody has been there yet.
    switch(dir, false).unwrap();
    assert!(!Path::new(&place.dir()).exists(), "there is nothing to be said");
    switch(dir, true).unwrap();
    assert!(is_off(dir));
    assert_eq!(fs::metadata(place.dir()).unwrap().mode() & 0o7777, 0o700);
    let boards = [joined_as(&place.dir(), "f00"), joined_as(&place.dir(), "all")];
    let are_off = |boards: &[Board]| boards.iter().all(Board::is_off);
    assert!(are_off(&boards));
    switch(dir, false).unwrap();
    assert!(!is_off(dir) && !boards.iter().any(Board::is_off));
    // Twice is once.
    for _ in 0..2 {
        switch(dir, true).unwrap();
        assert!(are_off(&boards));
    }
    // What a board says that was forgotten is put right by the next one who comes.
    let late = Board::join(dir, 600).unwrap();
    late.map.header().off.store(0, Ordering::Relaxed);
    let later = Board::join(dir, 600).unwrap();
    assert!(late.is_off() && later.is_off());
    // Boards go, and what was said stays.
    for entry in fs::read_dir(place.dir()).unwrap().map(Result::unwrap) {
        if entry.file_name().to_str().unwrap().starts_with("board-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let anew = Board::join(dir, 600).unwrap();
    assert!(anew.is_off());
    switch(dir, false).unwrap();
    assert!(!anew.is_off());
    let [first, second] = boards;
    [first, second, late, later, anew].into_iter().for_each(Board::leave);
}

#[test]
fn only_boards_are_written_to() {
    let place = Place::new("only");
    let dir = place.dir();
    Board::join(Some(&dir), 600).unwrap().leave();
    let named = |netns: &str| Path::new(&dir).join(format!("board-{netns}-v{VERSION}"));
    // As large as one, and of another version.
    let other = fs::File::create(named("f00")).unwrap();
    other.set_len(FILE_BYTES as u64).unwrap();
    let head = [MAGIC.to_ne_bytes().as_slice(), &1_u32.to_ne_bytes()].concat();
    other.write_all_at(&head, 0).unwrap();
    let secret = place.0.join("secret");
    fs::write(&secret, "of others").unwrap();
    symlink(&secret, named("f01")).unwrap();
    fs::write(named("f02"), "mine").unwrap();
    symlink("nowhere", named("f03")).unwrap();
    fs::create_dir(named("f04")).unwrap();
    let _socket = UnixListener::bind(named("f05")).unwrap();
    switch(Some(&dir), true).unwrap();
    let mut all = [0; size_of::<Header>()];
    fs::File::open(named("f00")).unwrap().read_exact_at(&mut all, 0).unwrap();
    assert!(all.starts_with(&head) && all[head.len()..].iter().all(|byte| *byte == 0));
    assert_eq!(fs::read_to_string(&secret).unwrap(), "of others");
    assert_eq!(fs::read_to_string(named("f02")).unwrap(), "mine");
    // What is in the way of the file goes.
    switch(Some(&dir), false).unwrap();
    let at = Path::new(&dir).join(OFF);
    symlink(&secret, &at).unwrap();
    assert!(!is_off(Some(&dir)), "a link is no file");
    switch(Some(&dir), true).unwrap();
    assert!(is_off(Some(&dir)) && fs::symlink_metadata(&at).unwrap().is_file());
    switch(Some(&dir), false).unwrap();
    for off in [true, false] {
        fs::create_dir(&at).unwrap();
        fs::write(at.join("something"), "").unwrap();
        switch(Some(&dir), off).unwrap();
        assert_eq!(is_off(Some(&dir)), off);
        let _ = fs::remove_file(&at);
    }
}

#[test]
fn what_is_no_directory_of_ours_is_not_switched() {
    let place = Place::new("ours");
    fs::write(place.dir(), "").unwrap();
    let refused = switch(Some(&place.dir()), true).unwrap_err();
    assert!(matches!(refused, SwitchError::Directory(MapError::NotADirectory)), "{refused}");
    fs::remove_file(place.dir()).unwrap();
    fs::create_dir(place.dir()).unwrap();
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let refused = switch(Some(&place.dir()), true).unwrap_err();
    assert!(matches!(refused, SwitchError::Directory(MapError::OpenDirectory)), "{refused}");
    // Which is another user's to make.
    let theirs = super::super::home_of(3_999_999_997);
    let refused = switch(Some(&theirs), true).unwrap_err();
    assert!(matches!(refused, SwitchError::NotOwner(3_999_999_997)), "{refused}");
    assert!(!Path::new(&theirs).exists());
}

/// Root does it as the user whose it is, so that the user can take it back; others do not at all.
#[test]
fn another_users_is_switched_by_root_alone() {
    if !is_root() {
        return;
    }
    let place = Place::new("another");
    let dir = place.made(USER, USER, 0o700);
    let word = Path::new(&dir).join(OFF);
    let board = as_user(USER, USER, || Board::join(Some(&dir), 600).unwrap()).unwrap();
    let refused = as_user(OTHER, OTHER, || switch(Some(&dir), true)).unwrap().unwrap_err();
    assert!(matches!(refused, SwitchError::NotOwner(USER)), "{refused}");
    assert!(!board.is_off());
    switch(Some(&dir), true).unwrap();
    assert_eq!(call::geteuid(), ROOT);
    assert!(board.is_off() && is_off(Some(&dir)));
    assert_eq!(fs::metadata(&word).unwrap().uid(), USER);
    as_user(USER, USER, || switch(Some(&dir), false)).unwrap().unwrap();
    assert!(!board.is_off());
    // What leads elsewhere does so with the user's rights.
    let roots = place.0.join("roots");
    fs::create_dir(&roots).unwrap();
    fs::set_permissions(&roots, fs::Permissions::from_mode(0o700)).unwrap();
    board.leave();
    fs::remove_dir_all(&dir).unwrap();
    symlink(&roots, &dir).unwrap();
    assert!(switch(Some(&dir), true).is_err());
    assert!(!roots.join(OFF).exists());
}

/// Who is of the group may make files there, and does not switch.
#[test]
fn what_users_share_is_switched_by_root_alone() {
    if !is_root() {
        return;
    }
    let place = Place::new("shared");
    let dir = place.made(ROOT, GROUP, 0o3770);
    let dir = &*dir;
    let as_member = |act: &dyn Fn() -> Result<(), SwitchError>| as_user(USER, GROUP, act).unwrap();
    let board = as_user(USER, GROUP, || Board::join(Some(dir), 600).unwrap()).unwrap();
    for off in [true, false] {
        let refused = as_member(&|| switch(Some(dir), off)).unwrap_err();
        assert!(matches!(refused, SwitchError::NotOwner(ROOT)), "{refused}");
    }
    let word = Path::new(dir).join(OFF);
    as_user(USER, GROUP, || fs::write(&word, "")).unwrap().unwrap();
    assert!(!is_off(Some(dir)), "of a member");
    switch(Some(dir), true).unwrap();
    assert!(is_off(Some(dir)) && board.is_off());
    assert_eq!(fs::metadata(&word).unwrap().uid(), ROOT);
    as_user(USER, GROUP, || fs::remove_file(&word)).unwrap().unwrap_err();
    let member = as_user(USER, GROUP, || Board::join(Some(dir), 600).unwrap()).unwrap();
    assert!(member.is_off());
    switch(Some(dir), false).unwrap();
    assert!(!member.is_off() && !board.is_off());
    board.leave();
    member.leave();
}

/// Whatever they do at the same time, in the end a board says what the directory says.
#[test]
fn who_switches_and_who_comes_agree_in_the_end() {
    const SWITCHERS: usize = 3;
    let place = Place::new("agree");
    let at = place.dir();
    let dir = Some(&*at);
    switch(dir, true).unwrap();
    for round in 0..20 {
        let _ = fs::remove_file(board_in(&at));
        let (left, ends) = (AtomicUsize::new(SWITCHERS), AtomicBool::new(false));
        let boards = std::thread::scope(|scope| {
            for own in 0..SWITCHERS {
                let (left, ends) = (&left, &ends);
                scope.spawn(move || {
                    for n in 0..30 {
                        switch(dir, (n + own) % 2 == 0).unwrap();
                    }
                    if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                        ends.store(true, Ordering::Release);
                    }
                });
            }
            let joins = || {
                let mut boards = vec![Board::join(dir, 600).unwrap()];
                while !ends.load(Ordering::Acquire) && boards.len() < 8 {
                    boards.push(Board::join(dir, 600).unwrap());
                }
                boards
            };
            let both = [scope.spawn(joins), scope.spawn(joins)];
            both.into_iter().flat_map(|joined| joined.join().unwrap()).collect::<Vec<_>>()
        });
        let is = is_off(dir);
        assert!(boards.iter().all(|board| board.is_off() == is), "round {round}");
        boards.into_iter().for_each(Board::leave);
    }
}

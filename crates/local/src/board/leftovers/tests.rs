//! What goes and what stays.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::*;
use crate::board::Board;

/// A directory of its own for each test, which goes with it.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Self {
        let name = format!("shunt-leftovers-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A directory with a board of ours, under the name of another namespace's.
fn with_a_board_of(test: &str, netns: &str) -> (Directory, Board, PathBuf) {
    let dir = Directory::new(test);
    let board = Board::join(dir.path().to_str(), 600).unwrap();
    let (own, _) = locate(dir.path().to_str()).unwrap();
    let own = Path::new(OsStr::from_bytes(own.to_bytes()));
    let theirs = dir.path().join(format!("board-{netns}-v13"));
    fs::rename(own, &theirs).unwrap();
    (dir, board, theirs)
}

/// As if what is there had been opened long ago.
fn swept(dir: &Directory) -> usize {
    sweep_at(dir.path().to_str(), SystemTime::now() + SETTLED + Duration::from_secs(60))
}

#[test]
fn a_board_on_which_nobody_is_goes() {
    let (dir, board, theirs) = with_a_board_of("goes", "f00");
    assert_eq!(swept(&dir), 0, "we are on it");
    assert!(theirs.exists());
    board.leave();
    assert_eq!(sweep(dir.path().to_str()), 0, "it has just been opened");
    assert_eq!(swept(&dir), 1);
    assert!(!theirs.exists());
}

#[test]
fn our_own_board_stays() {
    let dir = Directory::new("own");
    Board::join(dir.path().to_str(), 600).unwrap().leave();
    assert_eq!(swept(&dir), 0);
    let (own, _) = locate(dir.path().to_str()).unwrap();
    assert!(Path::new(OsStr::from_bytes(own.to_bytes())).exists());
}

/// A version of Shunt that locks its slots and nothing else.
#[test]
fn a_board_with_a_slot_that_is_taken_stays() {
    let (dir, board, theirs) = with_a_board_of("slot", "all");
    let file = OpenOptions::new().read(true).write(true).open(&theirs).unwrap();
    call::lock_byte(file.as_raw_fd(), crate::board::lock_of(7)).unwrap();
    board.leave();
    assert_eq!(swept(&dir), 0);
    drop(file);
    assert_eq!(swept(&dir), 1);
}

/// Who has opened a board that is being taken away finds another one.
#[test]
fn who_joins_meanwhile_makes_another() {
    let dir = Directory::new("meanwhile");
    let (own, _) = locate(dir.path().to_str()).unwrap();
    let own = Path::new(OsStr::from_bytes(own.to_bytes())).to_owned();
    Board::join(dir.path().to_str(), 600).unwrap().leave();
    let removing = OpenOptions::new().read(true).write(true).open(&own).unwrap();
    call::lock_byte(removing.as_raw_fd(), JOINED).unwrap();
    let board = std::thread::scope(|scope| {
        let joining = scope.spawn(|| Board::join(dir.path().to_str(), 600).unwrap());
        fs::remove_file(&own).unwrap();
        drop(removing);
        joining.join().unwrap()
    });
    assert!(!board.is_removed());
    board.leave();
}

#[test]
fn doors_without_a_board_go_if_nobody_is_behind_them() {
    let (dir, board, _) = with_a_board_of("doors", "f00");
    let door = |name: &str| dir.path().join(name);
    let gone = ["engine-f00-v13", "engine-f00-v13-control", "engine-f01-v3"];
    let _ = gone.map(|name| drop(UnixListener::bind(door(name)).unwrap()));
    let _served = UnixListener::bind(door("engine-f02-v13")).unwrap();
    let others = ["engine-xyz-v13", "engine-f00-v13-other", "settings"];
    let _ = others.map(|name| drop(UnixListener::bind(door(name)).unwrap()));
    let are_there = || gone.map(|name| door(name).exists());

    assert_eq!(swept(&dir), 0);
    assert_eq!(are_there(), [true, true, false], "the first two may be opening");
    board.leave();
    assert_eq!(swept(&dir), 1);
    assert_eq!(are_there(), [false; 3]);
    assert!(door("engine-f02-v13").exists());
    assert!(others.iter().all(|name| door(name).exists()));
}

#[test]
fn names() {
    assert_eq!(of_board("board-f00-v13", BOARD), Some(""));
    assert_eq!(of_board("board-all-v9", BOARD), Some(""));
    assert_eq!(of_board("engine-f00-v13-control", ENGINE), Some("-control"));
    for other in ["board-f00", "board-f00-v", "board--v1", "board-xyz-v1", "all-namespaces", ""] {
        assert_eq!(of_board(other, BOARD), None, "{other}");
    }
}

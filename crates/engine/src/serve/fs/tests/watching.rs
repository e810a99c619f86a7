//! What others do.

use std::fs;

use super::super::{ChangeKind, Watch, Watcher};
use super::{LOOK, on_each, open};

fn all(watcher: &mut Watcher) -> Vec<(Watch, ChangeKind, String)> {
    std::iter::from_fn(|| watcher.poll()).map(|c| (c.watch, c.kind, c.path)).collect()
}

#[test]
fn changes_by_others_are_told() {
    on_each(|share, root| {
        fs::create_dir(root.join("sub")).unwrap();
        let mut watcher = Watcher::new().unwrap();
        let watch = watcher.watch(&open(share, "", LOOK), false).unwrap();
        fs::write(root.join("a"), "1").unwrap();
        fs::rename(root.join("a"), root.join("b")).unwrap();
        fs::write(root.join("sub/x"), "").unwrap();
        fs::remove_file(root.join("b")).unwrap();
        let changes: Vec<_> = std::iter::from_fn(|| watcher.poll()).collect();
        let kinds: Vec<_> = changes.iter().map(|c| (c.kind, c.path.as_str())).collect();
        assert_eq!(
            kinds,
            [
                (ChangeKind::Added, "a"),
                (ChangeKind::Written, "a"),
                (ChangeKind::RenamedFrom, "a"),
                (ChangeKind::RenamedTo, "b"),
                (ChangeKind::Removed, "b"),
            ]
        );
        assert!(changes.iter().all(|c| c.watch == watch && !c.folder));
        assert!(changes[2].pair != 0 && changes[2].pair == changes[3].pair);
        watcher.forget(watch);
        fs::write(root.join("c"), "").unwrap();
        assert_eq!(all(&mut watcher), []);
    });
}

#[test]
fn a_tree_is_watched_as_it_grows() {
    on_each(|share, root| {
        fs::create_dir_all(root.join("a/b")).unwrap();
        let mut watcher = Watcher::new().unwrap();
        watcher.watch(&open(share, "", LOOK), true).unwrap();
        fs::write(root.join("a/b/x"), "").unwrap();
        fs::create_dir(root.join("new")).unwrap();
        let paths: Vec<_> = all(&mut watcher).into_iter().map(|(_, _, path)| path).collect();
        assert_eq!(paths, ["a\\b\\x", "new"]);
        fs::write(root.join("new/y"), "").unwrap();
        let paths: Vec<_> = all(&mut watcher).into_iter().map(|(_, _, path)| path).collect();
        assert_eq!(paths, ["new\\y"]);
    });
}

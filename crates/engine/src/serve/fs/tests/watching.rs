//! What others do.

use std::fs;

use super::super::{Change, ChangeKind, Share, Watch, WatchLimits, Watcher};
use super::{LOOK, on_each, open};

fn all(watcher: &mut Watcher) -> Vec<(Watch, ChangeKind, String)> {
    changes(watcher).into_iter().map(|c| (c.watch, c.kind, c.path.to_string())).collect()
}

fn changes(watcher: &mut Watcher) -> Vec<Change> {
    while watcher.work(1) {}
    std::iter::from_fn(|| watcher.poll()).collect()
}

/// Watches a folder of the share, and has looked at all that is there.
fn begin(watcher: &mut Watcher, share: &Share, folder: &str) -> Watch {
    let watch = watcher.watch(&open(share, folder, LOOK), true).unwrap();
    while watcher.work(1) {}
    watch
}

#[test]
fn changes_by_others_are_told() {
    on_each(|share, root| {
        fs::create_dir(root.join("sub")).unwrap();
        let mut watcher = Watcher::new(WatchLimits::default()).unwrap();
        let watch = watcher.watch(&open(share, "", LOOK), false).unwrap();
        fs::write(root.join("a"), "1").unwrap();
        fs::rename(root.join("a"), root.join("b")).unwrap();
        fs::write(root.join("sub/x"), "").unwrap();
        fs::remove_file(root.join("b")).unwrap();
        let changes = changes(&mut watcher);
        let kinds: Vec<_> = changes.iter().map(|c| (c.kind, &*c.path)).collect();
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
        let mut watcher = Watcher::new(WatchLimits::default()).unwrap();
        begin(&mut watcher, share, "");
        fs::write(root.join("a/b/x"), "").unwrap();
        fs::create_dir(root.join("new")).unwrap();
        let paths: Vec<_> = all(&mut watcher).into_iter().map(|(_, _, path)| path).collect();
        assert_eq!(paths, ["a\\b\\x", "new"]);
        fs::write(root.join("new/y"), "").unwrap();
        let paths: Vec<_> = all(&mut watcher).into_iter().map(|(_, _, path)| path).collect();
        assert_eq!(paths, ["new\\y"]);
    });
}

fn paths(watcher: &mut Watcher) -> Vec<String> {
    all(watcher).into_iter().map(|(_, _, path)| path).collect()
}

#[test]
fn what_was_moved_out_is_told_no_more_and_what_was_moved_within_goes_by_its_new_name() {
    on_each(|share, root| {
        fs::create_dir_all(root.join("watched/a/b")).unwrap();
        fs::create_dir(root.join("watched/other")).unwrap();
        let mut watcher = Watcher::new(WatchLimits::default()).unwrap();
        begin(&mut watcher, share, "watched");
        fs::rename(root.join("watched/a"), root.join("watched/other/c")).unwrap();
        fs::write(root.join("watched/other/c/b/x"), "").unwrap();
        assert_eq!(paths(&mut watcher), ["a", "other\\c", "other\\c\\b\\x"]);
        fs::rename(root.join("watched/other/c"), root.join("c")).unwrap();
        fs::write(root.join("c/b/secret"), "").unwrap();
        assert_eq!(paths(&mut watcher), ["other\\c"]);
        fs::write(root.join("c/b/later"), "").unwrap();
        fs::create_dir(root.join("c/new")).unwrap();
        assert_eq!(paths(&mut watcher), Vec::<String>::new());
        fs::rename(root.join("c"), root.join("watched/d")).unwrap();
        assert_eq!(paths(&mut watcher), ["d"]);
        fs::write(root.join("watched/d/b/y"), "").unwrap();
        assert_eq!(paths(&mut watcher), ["d\\b\\y"]);
    });
}

#[test]
fn what_comes_with_a_new_folder_is_told() {
    on_each(|share, root| {
        let mut watcher = Watcher::new(WatchLimits::default()).unwrap();
        begin(&mut watcher, share, "");
        fs::create_dir_all(root.join("q/w")).unwrap();
        fs::write(root.join("q/w/x"), "hi").unwrap();
        assert_eq!(paths(&mut watcher), ["q", "q\\w", "q\\w\\x"]);
    });
}

#[test]
fn a_watch_does_not_go_deaf_by_folders_that_are_gone() {
    on_each(|share, root| {
        let limits = WatchLimits { tree: 4, ..WatchLimits::default() };
        let mut watcher = Watcher::new(limits).unwrap();
        begin(&mut watcher, share, "");
        for _ in 0..10 {
            fs::create_dir(root.join("a")).unwrap();
            assert_eq!(paths(&mut watcher), ["a"]);
            fs::write(root.join("a/x"), "").unwrap();
            assert_eq!(paths(&mut watcher), ["a\\x"]);
            fs::remove_dir_all(root.join("a")).unwrap();
            assert_eq!(paths(&mut watcher), ["a\\x", "a"]);
        }
    });
}

#[test]
fn beyond_what_is_watched_it_is_said_that_something_is_missed() {
    let few = WatchLimits { tree: 4, ..WatchLimits::default() };
    for limits in [
        few,
        WatchLimits { folders: 4, ..WatchLimits::default() },
        WatchLimits { listeners: 4, ..WatchLimits::default() },
    ] {
        on_each(|share, root| {
            (0..6).for_each(|n| fs::create_dir(root.join(n.to_string())).unwrap());
            let mut watcher = Watcher::new(limits).unwrap();
            let watch = begin(&mut watcher, share, "");
            let lost = (watch, ChangeKind::Overflow, String::new());
            assert_eq!(all(&mut watcher), std::slice::from_ref(&lost));
            assert_eq!(all(&mut watcher), [], "once");
            fs::create_dir(root.join("new")).unwrap();
            let changes = all(&mut watcher);
            assert!(changes.contains(&lost), "{changes:?}");
            (0..6).for_each(|n| fs::remove_dir(root.join(n.to_string())).unwrap());
            all(&mut watcher);
            fs::write(root.join("new/x"), "").unwrap();
            assert_eq!(paths(&mut watcher), ["new\\x"], "there is room again");
        });
    }
}

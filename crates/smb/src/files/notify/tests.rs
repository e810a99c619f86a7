use std::cell::Cell;
use std::rc::Rc;

use super::{Action, Changes, Entry, Event, NotifyFilter, NotifyLimits, Room, Watchers};
use crate::NtStatus;
use crate::files::OpenId;

const ALL: NotifyFilter = NotifyFilter::all();

fn watchers() -> Watchers<()> {
    Watchers::new(NotifyLimits::default())
}

fn say<R: Room>(watchers: &mut Watchers<R>, event: Event<'_>) -> Vec<u64> {
    let mut ready = Vec::new();
    watchers.event(&event, &mut |open| ready.push(open.0));
    ready.sort_unstable();
    ready
}

fn fetch<R: Room>(watchers: &mut Watchers<R>, open: u64) -> Vec<(Action, String)> {
    match watchers.fetch(OpenId(open), 1000) {
        Some(Changes::Entries(entries)) => {
            entries.into_iter().map(|Entry { action, name }| (action, name.into())).collect()
        }
        Some(Changes::Overflow) => panic!("overflow"),
        None => Vec::new(),
    }
}

fn added(path: &str) -> Event<'_> {
    Event::Added { path, directory: false }
}

#[test]
fn names_are_seen_from_the_directory_that_is_watched() {
    let mut w = watchers();
    w.watch(OpenId(1), "", ALL, true, 1000, ()).unwrap();
    w.watch(OpenId(2), "a", ALL, true, 1000, ()).unwrap();
    w.watch(OpenId(3), "a\\b", ALL, false, 1000, ()).unwrap();
    w.watch(OpenId(4), "a", ALL, false, 1000, ()).unwrap();
    w.watch(OpenId(5), "a\\bb", ALL, true, 1000, ()).unwrap();
    assert_eq!(say(&mut w, added("a\\b\\c")), [1, 2, 3]);
    assert_eq!(fetch(&mut w, 1), [(Action::Added, "a\\b\\c".into())]);
    assert_eq!(fetch(&mut w, 2), [(Action::Added, "b\\c".into())]);
    assert_eq!(fetch(&mut w, 3), [(Action::Added, "c".into())]);
    assert_eq!(fetch(&mut w, 4), []);
    assert_eq!(say(&mut w, added("a")), [1], "a directory does not hear of itself");
}

#[test]
fn without_recursion_only_what_is_directly_in_it() {
    let mut w = watchers();
    w.watch(OpenId(1), "", ALL, false, 1000, ()).unwrap();
    assert_eq!(say(&mut w, added("a\\b")), []);
    assert_eq!(say(&mut w, added("b")), [1]);
}

/// What smb2.notify.mask looks at: which filter hears of what, how often and as what.
#[test]
fn each_filter_hears_of_its_changes() {
    use NotifyFilter as F;
    let modified = |what| Event::Modified { path: "tname1", what };
    let cases: [(Event<'_>, F, Action, usize); 10] = [
        (Event::Added { path: "tname1", directory: true }, F::DIR_NAME, Action::Added, 1),
        (Event::Added { path: "tname1", directory: false }, F::FILE_NAME, Action::Added, 1),
        (Event::Removed { path: "tname1", directory: false }, F::FILE_NAME, Action::Removed, 1),
        (Event::Removed { path: "tname1", directory: true }, F::DIR_NAME, Action::Removed, 1),
        (
            Event::Renamed { from: "tname1", to: "tname2", directory: true },
            F::DIR_NAME,
            Action::RenamedOld,
            2,
        ),
        (modified(F::ATTRIBUTES), F::ATTRIBUTES, Action::Modified, 1),
        (modified(F::LAST_WRITE), F::LAST_WRITE, Action::Modified, 1),
        (Event::StreamAdded { path: "tname1" }, F::STREAM_NAME, Action::AddedStream, 1),
        (Event::StreamRemoved { path: "tname1" }, F::STREAM_NAME, Action::RemovedStream, 1),
        (
            Event::StreamModified { path: "tname1", what: F::STREAM_SIZE | F::STREAM_WRITE },
            F::STREAM_SIZE.union(F::STREAM_WRITE),
            Action::ModifiedStream,
            1,
        ),
    ];
    for (event, heard_by, action, entries) in cases {
        for bit in 0..32 {
            let filter = F::from_bits_retain(1 << bit);
            let mut w = watchers();
            w.watch(OpenId(1), "", filter, true, 1000, ()).unwrap();
            say(&mut w, event);
            let got = fetch(&mut w, 1);
            if heard_by.contains(filter) {
                assert_eq!(got.len(), entries, "{event:?} {filter:?}");
                assert_eq!(got[0], (action, "tname1".into()));
            } else {
                assert_eq!(got, [], "{event:?} {filter:?}");
            }
        }
    }
}

#[test]
fn a_file_that_is_renamed_is_a_pair_and_looks_changed() {
    let mut w = watchers();
    w.watch(OpenId(1), "d", ALL, false, 1000, ()).unwrap();
    say(&mut w, Event::Renamed { from: "d\\a", to: "d\\b", directory: false });
    assert_eq!(
        fetch(&mut w, 1),
        [
            (Action::RenamedOld, "a".into()),
            (Action::RenamedNew, "b".into()),
            (Action::Modified, "b".into())
        ]
    );
}

#[test]
fn a_file_that_goes_elsewhere_is_gone_here_and_new_there() {
    let mut w = watchers();
    w.watch(OpenId(1), "d", NotifyFilter::FILE_NAME, false, 1000, ()).unwrap();
    w.watch(OpenId(2), "e", NotifyFilter::FILE_NAME, false, 1000, ()).unwrap();
    say(&mut w, Event::Renamed { from: "d\\a", to: "e\\b", directory: false });
    assert_eq!(fetch(&mut w, 1), [(Action::Removed, "a".into())]);
    assert_eq!(fetch(&mut w, 2), [(Action::Added, "b".into())]);
}

#[test]
fn what_happens_between_two_requests_is_kept_in_order_and_only_once_in_a_row() {
    let mut w = watchers();
    w.watch(OpenId(1), "", ALL, false, 1000, ()).unwrap();
    assert_eq!(say(&mut w, added("a")), [1]);
    assert_eq!(say(&mut w, added("b")), [], "it knows that there is something");
    say(&mut w, added("b"));
    say(&mut w, added("a"));
    let names: Vec<_> = fetch(&mut w, 1).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["a", "b", "a"]);
    assert_eq!(w.fetch(OpenId(1), 1000), None);
    assert_eq!(say(&mut w, added("c")), [1]);
}

#[test]
fn what_does_not_fit_is_to_be_looked_up() {
    let mut w = watchers();
    // Two entries of one letter: 12 + 2, padded, and 12 + 2.
    w.watch(OpenId(1), "", ALL, false, 30, ()).unwrap();
    say(&mut w, added("a"));
    say(&mut w, added("b"));
    assert_eq!(fetch(&mut w, 1).len(), 2);
    for name in ["a", "b", "c", "d"] {
        say(&mut w, added(name));
    }
    assert_eq!(w.fetch(OpenId(1), 1000), Some(Changes::Overflow));
    assert_eq!(w.fetch(OpenId(1), 1000), None, "said once");
    say(&mut w, added("a"));
    assert_eq!(w.fetch(OpenId(1), 13), Some(Changes::Overflow), "the answer has less room");
    say(&mut w, added("a"));
    assert!(matches!(w.fetch(OpenId(1), 14), Some(Changes::Entries(_))));
    // A client that has no room at all hears that something happened.
    w.watch(OpenId(2), "", ALL, false, 0, ()).unwrap();
    assert_eq!(say(&mut w, added("a")), [1, 2]);
    assert_eq!(w.fetch(OpenId(2), 0), Some(Changes::Overflow));
}

#[test]
fn the_first_request_says_what_is_watched() {
    let mut w = Watchers::new(NotifyLimits { watches: 1, ..NotifyLimits::default() });
    assert_eq!(w.watch(OpenId(1), "", NotifyFilter::FILE_NAME, false, 1000, ()), Ok(true));
    assert_eq!(w.watch(OpenId(1), "", ALL, true, 1000, ()), Ok(false));
    assert_eq!(w.watch(OpenId(2), "", ALL, true, 1000, ()), Err(NtStatus::INSUFFICIENT_RESOURCES));
    assert_eq!(say(&mut w, added("a\\b")), []);
    w.unwatch(OpenId(1));
    assert!(w.is_empty());
    assert_eq!(say(&mut w, added("a")), []);
}

#[test]
fn a_watch_goes_where_its_directory_goes() {
    let mut w = watchers();
    w.watch(OpenId(1), "a\\b", ALL, false, 1000, ()).unwrap();
    w.watch(OpenId(2), "ab", ALL, false, 1000, ()).unwrap();
    w.moved("a", "x\\y");
    assert_eq!(say(&mut w, added("x\\y\\b\\c")), [1]);
    assert_eq!(fetch(&mut w, 1), [(Action::Added, "c".into())]);
    assert_eq!(say(&mut w, added("ab\\c")), [2]);
    w.unwatch(OpenId(1));
    assert_eq!(w.len(), 1);
}

#[test]
fn who_is_told_to_look_is_told_once() {
    let mut w = watchers();
    w.watch(OpenId(1), "a", ALL, false, 1000, ()).unwrap();
    let mut ready = 0;
    w.overflow(&mut |_| ready += 1);
    w.overflow(&mut |_| ready += 1);
    assert_eq!(ready, 1);
    assert_eq!(w.fetch(OpenId(1), 1000), Some(Changes::Overflow));
}

/// smb2.notify.valid-req: a file is made, and made anew, while requests with and without room come.
#[test]
fn what_one_answer_had_no_room_for_does_not_come_with_the_next() {
    let mut w = watchers();
    let write = NotifyFilter::SIZE | NotifyFilter::LAST_WRITE;
    let modified = Event::Modified { path: "f", what: write };
    w.watch(OpenId(1), "", ALL, false, 1 << 20, ()).unwrap();
    assert_eq!(say(&mut w, added("f")), [1]);
    assert_eq!(fetch(&mut w, 1), [(Action::Added, "f".into())]);
    say(&mut w, modified);
    assert_eq!(w.fetch(OpenId(1), 0), Some(Changes::Overflow), "a request without room");
    for event in [Event::Removed { path: "f", directory: false }, added("f"), modified, modified] {
        say(&mut w, event);
    }
    let actions: Vec<_> = fetch(&mut w, 1).into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, [Action::Removed, Action::Added, Action::Modified]);

    // If the first request has no room, none has.
    w.watch(OpenId(2), "", ALL, false, 1, ()).unwrap();
    for _ in 0..2 {
        say(&mut w, added("f"));
        assert_eq!(w.fetch(OpenId(2), 1 << 20), Some(Changes::Overflow));
        say(&mut w, modified);
        assert_eq!(w.fetch(OpenId(2), 1 << 20), Some(Changes::Overflow));
    }
}

#[test]
fn case_does_not_count_and_is_kept() {
    let mut w = watchers();
    w.watch(OpenId(1), "Straße\\A", ALL, false, 1000, ()).unwrap();
    assert_eq!(say(&mut w, added("STRAßE\\a\\Name")), [1]);
    assert_eq!(fetch(&mut w, 1), [(Action::Added, "Name".into())]);
    w.moved("straße", "Weg");
    assert_eq!(w.directory_of(OpenId(1)), Some("Weg\\A"));
    assert_eq!(say(&mut w, added("weg\\A\\x")), [1]);
    w.unwatch(OpenId(1));
    assert!(w.is_empty());
}

#[test]
fn one_watch_alone_is_told_of_what_it_alone_has_seen() {
    let mut w = watchers();
    w.watch(OpenId(1), "a", NotifyFilter::FILE_NAME, false, 1000, ()).unwrap();
    w.watch(OpenId(2), "a", ALL, true, 1000, ()).unwrap();
    let mut ready = Vec::new();
    for open in [1, 2, 3] {
        w.event_for(OpenId(open), &added("b\\c"), &mut |open| ready.push(open.0));
    }
    assert_eq!(ready, [2], "the other does not look that deep");
    let written = Event::Modified { path: "d", what: NotifyFilter::SIZE };
    w.event_for(OpenId(1), &written, &mut |open| ready.push(open.0));
    assert_eq!(ready, [2], "and has not asked for that");
    assert_eq!(fetch(&mut w, 2), [(Action::Added, "b\\c".into())]);
    assert_eq!(fetch(&mut w, 1), []);
}

#[test]
fn who_has_missed_something_looks_again() {
    let mut w = watchers();
    w.watch(OpenId(1), "", ALL, false, 1000, ()).unwrap();
    w.watch(OpenId(2), "", ALL, false, 1000, ()).unwrap();
    let mut ready = Vec::new();
    w.overflow_of(OpenId(2), &mut |open| ready.push(open.0));
    w.overflow_of(OpenId(2), &mut |open| ready.push(open.0));
    assert_eq!(ready, [2], "said once");
    assert_eq!(w.fetch(OpenId(2), 1000), Some(Changes::Overflow));
    assert_eq!(w.fetch(OpenId(1), 1000), None);
}

#[test]
fn all_who_watch_one_directory_are_found() {
    let mut w = watchers();
    for (open, directory) in [(1, "a"), (2, "A"), (3, "a\\b")] {
        w.watch(OpenId(open), directory, ALL, true, 1000, ()).unwrap();
    }
    let mut found = Vec::new();
    w.each_of("a", &mut |open| found.push(open.0));
    found.sort_unstable();
    assert_eq!(found, [1, 2]);
}

/// A part of what there is for all.
struct Part {
    left: Rc<Cell<usize>>,
    taken: usize,
}

impl Room for Part {
    fn take(&mut self, bytes: usize) -> bool {
        let Some(left) = self.left.get().checked_sub(bytes) else { return false };
        self.left.set(left);
        self.taken += bytes;
        true
    }

    fn give_back(&mut self) {
        self.left.set(self.left.get() + std::mem::take(&mut self.taken));
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[test]
fn what_there_is_no_memory_for_is_to_be_looked_up() {
    const ALL_OF_IT: usize = 10_000;
    let left = Rc::new(Cell::new(ALL_OF_IT));
    let mut w = Watchers::new(NotifyLimits::default());
    for open in 0..100 {
        let part = Part { left: left.clone(), taken: 0 };
        w.watch(OpenId(open), "", ALL, false, 1 << 16, part).unwrap();
    }
    let mut told = 0;
    for n in 0..100 {
        told += say(&mut w, added(&format!("name {n:02}"))).len();
    }
    assert_eq!(told, 100, "each is told once that there is something");
    let mut lost = 0;
    for open in 0..100 {
        match w.fetch(OpenId(open), 1 << 16) {
            Some(Changes::Entries(entries)) => assert_eq!(entries.len(), 100, "none is missing"),
            Some(Changes::Overflow) => lost += 1,
            None => panic!("{open} was told that there is something"),
        }
    }
    assert!(lost > 90, "{lost}");
    assert_eq!(left.get(), ALL_OF_IT, "all is given back");
    // Who has lost something hears of what comes now.
    assert_eq!(say(&mut w, added("a")).len(), 100);
    assert!(left.get() <= ALL_OF_IT - 100 * (size_of::<Entry>() + "a".len()));
    assert_eq!(fetch(&mut w, 7), [(Action::Added, "a".into())]);
    w.overflow_of(OpenId(8), &mut |_| ());
    w.unwatch(OpenId(9));
    w.overflow(&mut |_| ());
    assert_eq!(left.get(), ALL_OF_IT);
    assert_eq!(w.fetch(OpenId(1), 1000), Some(Changes::Overflow));
    say(&mut w, added("b"));
    assert!(left.get() < ALL_OF_IT);
    drop(w);
    assert_eq!(left.get(), ALL_OF_IT);
}

/// Memory is counted as it is had.
#[test]
fn a_watch_takes_what_it_keeps() {
    let left = Rc::new(Cell::new(usize::MAX));
    let mut w = Watchers::new(NotifyLimits::default());
    w.watch(OpenId(1), "", ALL, false, 1 << 16, Part { left: left.clone(), taken: 0 }).unwrap();
    for n in 0..1000 {
        say(&mut w, added(&format!("{n:010}")));
        let taken = usize::MAX - left.get();
        let kept = (n + 1) * (size_of::<Entry>() + 10);
        assert!((kept..3 * kept).contains(&taken), "{taken} for {n}");
    }
    // Room for 1,024 of them.
    let Some(Changes::Entries(entries)) = w.fetch(OpenId(1), 1 << 16) else { panic!() };
    assert_eq!((entries.len(), entries.capacity(), left.get()), (1000, 1024, usize::MAX));
}

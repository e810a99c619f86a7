use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;

use local::Limits;

use super::*;

thread_local! {
    static COMPARED: Cell<usize> = const { Cell::new(0) };
}

/// A member was looked at to find another one.
pub(super) fn compares() {
    COMPARED.set(COMPARED.get() + 1);
}

fn world(name: &str) -> &'static World {
    let dir = std::env::temp_dir().join(format!("shunt-watch-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let limits = Limits { dir: Some(dir.to_str().unwrap().to_owned()), ..Limits::default() };
    let w = Box::leak(Box::new(World::join(limits, "test".into(), 600).unwrap()));
    // What is mapped stays.
    std::fs::remove_dir_all(&dir).unwrap();
    w
}

/// Of thousands, those that are not there as well, as are all that are asleep.
#[test]
fn one_is_found_or_not_found_by_one_look() {
    const MANY: usize = 3000;
    let w = world("many");
    let mut members = Members::default();
    let all: Vec<_> = std::iter::from_fn(|| w.conn()).take(MANY).collect();
    assert_eq!(all.len(), MANY);
    for conn in &all {
        members.put(w, conn, 0);
    }
    // Each third goes, from the front: the last ones take the places.
    let goes = |i: usize| i.is_multiple_of(3);
    for (_, conn) in all.iter().enumerate().filter(|(i, _)| goes(*i)) {
        let at = members.position(conn, 0).expect("it is there");
        members.take(at);
    }
    COMPARED.set(0);
    for (i, conn) in all.iter().enumerate() {
        let at = members.position(conn, 0);
        assert_eq!(at.is_none(), goes(i), "{i}");
        assert!(at.is_none_or(|at| std::ptr::eq(members.warm[at].conn, *conn)), "{i}");
        assert_eq!(members.position(conn, 1), None, "by the other one it was not put there");
    }
    assert!(COMPARED.get() <= 2 * MANY, "{} looks for {}", COMPARED.get(), 2 * MANY);
    members.clear();
    assert!(all.iter().all(|conn| members.position(conn, 0).is_none()));
}

/// A connection is in the lists of two sets, by a registration each, and among the offers of one by the same registration
/// by which it is among those attached: each list knows its own places.
#[test]
fn lists_do_not_disturb_each_other() {
    let w = world("lists");
    let (mut one, mut other) = (Members::default(), Members::default());
    let all: Vec<_> = std::iter::from_fn(|| w.conn()).take(8).collect();
    for (i, conn) in all.iter().enumerate() {
        one.put(w, conn, 0);
        one.put_offer(all[all.len() - 1 - i], 0);
        other.put(w, all[(i + 3) % all.len()], 1);
    }
    let offered = one.offer_of(all[2]).unwrap();
    assert!(std::ptr::eq(one.take_offer(offered).0, all[2]));
    let at = one.position(all[5], 0).unwrap();
    one.take(at);
    for (i, conn) in all.iter().enumerate() {
        assert_eq!(one.position(conn, 0).is_none(), i == 5, "{i}");
        assert_eq!(one.offer_of(conn).is_none(), i == 2, "{i}");
        assert_eq!(one.position(conn, 1), None, "{i}");
        let at = other.position(conn, 1).unwrap();
        assert!(std::ptr::eq(other.warm[at].conn, *conn), "{i}");
        assert_eq!(other.offer_of(conn), None, "{i}");
    }
    // A record that one could not let go of serves a connection of the other.
    other.put(w, all[0], 0);
    let place = other.position(all[0], 0);
    one.clear();
    assert_eq!((other.position(all[0], 0), one.position(all[0], 0)), (place, None));
    assert!(place.is_some());
    other.clear();
}

/// Nor by one of the same set, after another had it in between: then it is in a list twice, and the older entry goes without
/// a word about the other one.
#[test]
fn a_record_that_one_could_not_let_go_of_comes_back() {
    let w = world("back");
    let (mut one, mut other) = (Members::default(), Members::default());
    let all: Vec<_> = std::iter::from_fn(|| w.conn()).take(4).collect();
    for conn in &all {
        one.put(w, conn, 0);
        one.put_offer(conn, 0);
    }
    other.put(w, all[1], 0);
    other.put_offer(all[1], 0);
    one.put(w, all[1], 0);
    one.put_offer(all[1], 0);
    assert_eq!(one.position(all[1], 0), Some(4));
    // The older entry, whose place the newer one takes, since it is the last.
    one.take(1);
    assert!(std::ptr::eq(one.take_offer(1).0, all[1]));
    assert_eq!((one.position(all[1], 0), one.offer_of(all[1])), (Some(1), Some(1)));
    // The last of all where it is the older one's turn to move.
    one.put(w, all[1], 0);
    one.take(0);
    assert_eq!(one.position(all[1], 0), Some(0));
    one.clear();
    other.clear();
}

use std::mem::offset_of;

use super::*;

#[test]
fn what_is_held_is_never_more_than_there_is() {
    let ledger = Ledger::new(1000, 2);
    let (mut a, mut b) = (Lease::new(&ledger), Lease::new(&ledger));
    assert_eq!((a.unused(), b.unused(), ledger.left()), (125, 125, 750));
    let mut held = 0;
    while a.charge(30) {
        held += 30;
    }
    while b.charge(7) {
        held += 7;
    }
    assert!((960..=1000).contains(&held), "{held} of 1000 in use");
    assert_eq!(held + a.unused() + b.unused() + ledger.left(), 1000);
}

#[test]
fn a_core_keeps_a_part_that_others_cannot_take() {
    let ledger = Ledger::new(1000, 2);
    let (mut a, mut b) = (Lease::new(&ledger), Lease::new(&ledger));
    while a.charge(1) {}
    assert!(b.charge(125));
    assert!(!b.charge(125));
    b.refund(125);
    assert!(!a.charge(1));
}

#[test]
fn who_is_more_than_was_said_keeps_nothing_and_gets_what_it_needs() {
    let ledger = Ledger::new(1000, 1);
    let mut all: Vec<Lease> = (0..20).map(|_| Lease::new(&ledger)).collect();
    for (n, lease) in all.iter_mut().enumerate() {
        assert!(lease.charge(500) && lease.promise(1000), "the {n}th");
        lease.refund(500);
        lease.redeem(1000);
        assert!(ledger.left() >= 700, "after the {n}th: {}", ledger.left());
    }
    // Whose place has become free is another's.
    all.remove(0);
    assert_eq!(Lease::new(&ledger).unused(), 250);
    drop(all);
    assert_eq!((ledger.left(), ledger.promises_left()), (1000, ledger.promises_limit()));
}

#[test]
fn without_batches_a_core_has_what_it_charges() {
    let ledger = Ledger::unbatched(1000);
    let (mut a, mut b) = (Lease::new(&ledger), Lease::new(&ledger));
    assert!(a.charge(30) && b.has(50));
    b.spend(50);
    assert_eq!((a.unused(), b.unused(), ledger.left()), (0, 0, 920));
    a.refund(30);
    b.refund(50);
    assert!(ledger.left() >= 998, "{}", ledger.left());
    assert!(!a.has(1000) && a.has(999) && !b.has(2));
}

/// Its datagrams live on, and what they were promised is redeemed on another core.
#[test]
fn a_core_that_ends_takes_its_debt_along() {
    let ledger = Ledger::new(1000, 2);
    let promised = || ledger.promises.left.load(Ordering::Relaxed);
    let before = promised();
    let mut a = Lease::new(&ledger);
    a.promise_more(5000);
    drop(a);
    let mut b = Lease::new(&ledger);
    assert!(!b.promise(1), "too much is promised");
    b.redeem(5000);
    assert!(b.promise(1000));
    b.redeem(1000);
    drop(b);
    assert_eq!(promised(), before);
}

#[test]
fn everything_comes_back() {
    let ledger = Ledger::new(1 << 20, 2);
    let (mut a, mut b) = (Lease::new(&ledger), Lease::new(&ledger));
    assert!(a.charge(300_000));
    // On another core.
    b.refund(300_000);
    assert!(a.promise(1_500_000));
    a.promise_more(1_000_000);
    a.redeem(2_500_000);
    drop((a, b));
    assert_eq!(ledger.left(), 1 << 20);
    assert_eq!(ledger.promises.left.load(Ordering::Relaxed), (1 << 20) * 20 / 11);
}

/// How often a core turns to memory that all share, of which each time changes what is left there.
fn turns_to_the_ledger(ledger: &Ledger, mut work: impl FnMut(&mut dyn FnMut())) -> u64 {
    let (mut left, mut turns) = (ledger.left(), 0);
    work(&mut || {
        turns += u64::from(ledger.left() != left);
        left = ledger.left();
    });
    turns
}

#[test]
fn no_shared_word_is_touched_per_fragment() {
    const FRAGMENT: u64 = 1500;
    for (limit, cores) in [(64 << 20, 1), (64 << 20, 2), (64 << 20, 8), (4 << 20, 1), (4 << 20, 4)]
    {
        let ledger = Ledger::new(limit, cores);
        let mut lease = Lease::new(&ledger);
        let batch = (limit / (8 * u64::from(cores))).min(512 << 10);
        // What is in use swings up and down by a part of the limit, as where many datagrams end at once.
        for part in [64, 16, 3] {
            let fragments = limit / u64::from(cores) / part / FRAGMENT;
            let turns = turns_to_the_ledger(&ledger, |look| {
                for _ in 0..10 {
                    for _ in 0..fragments {
                        assert!(lease.charge(FRAGMENT));
                        look();
                    }
                    for _ in 0..fragments {
                        lease.refund(FRAGMENT);
                        look();
                    }
                    // And it keeps no more than its part: the rest is for others.
                    let kept = limit / (4 * u64::from(cores)) * 9 / 8;
                    assert!(lease.unused() <= kept.max(2 * batch), "{} of {limit}", lease.unused());
                }
            });
            // Upwards by batches, downwards by as much or by an eighth of what stays, whichever is less.
            let down = batch.min(limit / (32 * u64::from(cores)));
            let most = 10 * fragments * FRAGMENT / batch + 10 * fragments * FRAGMENT / down + 3;
            assert!(turns <= most, "{limit} on {cores}, 1/{part}: {turns} turns, not {most}");
        }
    }
}

/// Three cores were busy and are idle: the fourth has nearly all.
#[test]
fn what_idle_cores_keep_is_little() {
    let ledger = Ledger::new(4 << 20, 4);
    let mut leases: Vec<Lease> = (0..4).map(|_| Lease::new(&ledger)).collect();
    for lease in &mut leases[..3] {
        (0..400).for_each(|_| assert!(lease.charge(1500)));
        (0..400).for_each(|_| lease.refund(1500));
    }
    let mut held = 0;
    while leases[3].charge(1500) {
        held += 1500;
    }
    // A quarter of its share stays with each of three, and an eighth of that.
    let idle = (3 * (256 + 32)) << 10;
    assert!(held + 1500 >= (4 << 20) - idle, "{held}");
}

#[test]
fn no_limit_is_one_that_is_never_reached() {
    let ledger = Ledger::new(u64::MAX, 2);
    let mut lease = Lease::new(&ledger);
    assert!(lease.charge(1 << 40));
    assert!(lease.promise(1 << 40));
    lease.refund(1 << 40);
    lease.redeem(1 << 40);
    drop(lease);
    assert_eq!(ledger.left(), ledger.limit());
}

/// Every core reads [`Wanted`] for each datagram that begins: what leases take from is not beside it.
#[test]
fn what_is_read_often_is_on_a_line_of_its_own() {
    const LINE: usize = 64;
    let line = |at: usize| at / LINE;
    let wanted = line(offset_of!(Ledger, wanted));
    assert!(align_of::<Ledger>() >= LINE && size_of::<Wanted>() == LINE);
    let others =
        [offset_of!(Ledger, memory), offset_of!(Ledger, promises), offset_of!(Ledger, seats)];
    assert!(others.iter().all(|at| line(*at) != wanted), "{others:?}");
}

//! Two cores and one ledger, in every order.

use super::*;
use loom::thread;

#[test]
fn two_cores_never_lease_more_than_there_is() {
    loom::model(|| {
        let ledger = Ledger::new(64, 2);
        let work = |ledger: Arc<Ledger>| {
            let mut lease = Lease::new(&ledger);
            let held = if lease.charge(40) { 40 } else { 0 };
            (lease, held)
        };
        let other = {
            let ledger = Arc::clone(&ledger);
            thread::spawn(move || work(ledger))
        };
        let (a, held_a) = work(Arc::clone(&ledger));
        let (b, held_b) = other.join().unwrap();
        // Both cannot have 40 of 64, and one always has them: nothing is lost on the way.
        assert_eq!(held_a + held_b, 40);
        assert_eq!(held_a + held_b + a.unused() + b.unused() + ledger.left(), 64);
    });
}

#[test]
fn what_one_core_gives_back_another_can_take() {
    loom::model(|| {
        let ledger = Ledger::new(64, 2);
        let mut lease = Lease::new(&ledger);
        assert!(lease.charge(56));
        let giver = thread::spawn(move || {
            lease.refund(56);
            drop(lease);
        });
        let mut lease = Lease::new(&ledger);
        let early = lease.charge(40);
        giver.join().unwrap();
        assert!(early || lease.charge(40));
        lease.refund(40);
        drop(lease);
        assert_eq!(ledger.left(), 64);
    });
}

/// What one core promised too much another redeems: the account of the one is below nothing when it ends.
#[test]
fn what_one_core_promises_another_can_redeem() {
    loom::model(|| {
        let ledger = Ledger::new(64, 2);
        let all = ledger.promises.left.load(Ordering::Relaxed);
        let mut lease = Lease::new(&ledger);
        let promising = thread::spawn(move || {
            // More than there is.
            lease.promise_more(100);
            lease.promise_more(all);
        });
        let mut lease = Lease::new(&ledger);
        let early = lease.promise(8);
        lease.redeem(if early { 108 } else { 100 });
        promising.join().unwrap();
        lease.redeem(all);
        assert!(lease.promise(all), "all can be promised again");
        lease.redeem(all);
        drop(lease);
        assert_eq!(ledger.promises.left.load(Ordering::Relaxed), all);
    });
}

//! A sender and a receiver, in every order.

use super::*;
use loom::thread;

fn v4(id: u16) -> Fragment {
    let key = Key::v4(u32::from(id) + 1, 2, id, 17, 3);
    let (len, header_len, protocol) = (8, 20, 17);
    let next_at = V4_NEXT_AT;
    Fragment { key, len, payload_at: header_len, header_len, next_at, protocol, ..Fragment::NONE }
}

fn v6(id: u16) -> Fragment {
    let key = Key::v6([1, u64::from(id)], [2, 3], u32::from(id) | 7 << 16, 3);
    Fragment { key, payload_at: 48, header_len: 40, next_at: 6, ..v4(id) }
}

/// Sends each as soon as there is room, two at a time; the receiver has one look more than it needs.
fn check(room: u32, fragments: &'static (dyn Fn() -> Vec<Fragment> + Sync)) {
    loom::model(move || {
        let (mut sender, mut receiver) = lane(room);
        let sending = thread::spawn(move || {
            for (n, fragment) in (0..).zip(fragments()) {
                while !sender.send(&fragment, n) {
                    sender.flush();
                    thread::yield_now();
                }
                if n % 2 == 1 {
                    sender.flush();
                }
            }
            sender.flush();
        });
        let mut came = Vec::new();
        while came.len() < fragments().len() {
            came.extend(receiver.receive());
            thread::yield_now();
        }
        sending.join().unwrap();
        assert_eq!(receiver.receive().next(), None);
        let (fragments_came, tickets): (Vec<_>, Vec<_>) = came.into_iter().unzip();
        assert_eq!(fragments_came, fragments());
        assert!((0..).zip(tickets).all(|(n, ticket)| n == ticket));
    });
}

#[test]
fn what_is_sent_comes_out_once_in_order() {
    check(4, &|| vec![v4(1), v4(2), v4(3)]);
}

#[test]
fn a_full_lane_waits_for_what_is_read() {
    check(2, &|| vec![v4(1), v4(2), v4(3)]);
}

#[test]
fn two_cells_of_one_fragment_come_together() {
    check(2, &|| vec![v6(1), v4(2), v4(3)]);
}

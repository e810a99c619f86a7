use super::*;

const LINE: u64 = 10_000_000_000;

fn at(nanos: u64) -> Time {
    Time::from_nanos(1_000_000_000 + nanos)
}

fn settings() -> Dcqcn {
    Dcqcn { line_bits: LINE, ..Dcqcn::default() }
}

/// A notification, and a round trip of no time.
fn notify(point: &mut ReactionPoint, now: Time) -> bool {
    let cut = point.on_notification(now, u64::MAX);
    point.on_round_trip(now);
    cut
}

/// Sends packets of 1000 bytes, with what is around them, for so long; how many.
fn send(point: &mut ReactionPoint, from: u64, nanos: u64) -> u64 {
    let (mut now, mut sent) = (from, 0);
    while now < from + nanos {
        match point.wait_until(at(now)) {
            Some(next) => now = next.since(at(0)),
            None => {
                point.on_sent(at(now), 1000 - 42);
                sent += 1;
                // Nobody sends faster than this anyway: 8 Gbit/s.
                now += 1000;
            }
        }
    }
    sent
}

#[test]
fn a_flow_that_was_never_notified_is_not_paced() {
    let mut point = ReactionPoint::new(settings());
    assert_eq!(send(&mut point, 0, 1_000_000), 1000);
    assert_eq!(point.rate_bits(), LINE);
}

#[test]
fn the_first_notification_halves_the_rate_and_it_is_kept() {
    let mut point = ReactionPoint::new(settings());
    assert!(notify(&mut point, at(0)));
    assert_eq!(point.rate_bits(), LINE / 2);
    // 50 us at 5 Gbit/s are 31 packets, and as many in advance: a loop may be 50 us late.
    let sent = send(&mut point, 0, 50_000);
    assert!((28..=66).contains(&sent), "{sent}");
}

#[test]
fn a_loop_that_comes_round_late_still_gets_its_rate() {
    // 5 Gbit/s for a millisecond: 625 packets of 1000 bytes, looked after each 40 us only.
    let slow = Dcqcn { increase_nanos: u64::MAX, increase_bytes: u64::MAX, ..settings() };
    let mut point = ReactionPoint::new(slow);
    notify(&mut point, at(0));
    let mut sent = 0;
    for now in (0..1_000_000).step_by(40_000).map(at) {
        while point.wait_until(now).is_none() {
            point.on_sent(now, 1000 - 42);
            sent += 1;
        }
    }
    assert_eq!(point.rate_bits(), LINE / 2);
    assert!((600..=670).contains(&sent), "{sent}");
}

#[test]
fn one_cut_for_each_period_whatever_a_peer_sends() {
    let mut point = ReactionPoint::new(settings());
    let cuts = (0..50).filter(|n| notify(&mut point, at(n * 1000))).count();
    assert_eq!(cuts, 1);
    assert!(notify(&mut point, at(50_000)));
}

#[test]
fn who_is_idle_after_a_cut_is_at_the_rate_of_the_line_after_a_second() {
    let mut point = ReactionPoint::new(settings());
    point.set_round_trip(100_000);
    // Nobody hears that anything has arrived.
    assert!(point.on_notification(at(0), u64::MAX));
    assert!(point.wait_until(at(1_000_000_000)).is_none());
    assert_eq!((point.rate_bits(), point.is_limited()), (LINE, false));
}

#[test]
fn one_cut_for_each_round_trip_and_what_it_takes_is_the_period() {
    let mut point = ReactionPoint::new(settings());
    point.set_round_trip(2_000_000);
    let cuts = (0..200).filter(|n| point.on_notification(at(n * 50_000), u64::MAX)).count();
    assert_eq!(cuts, 1, "nothing has arrived that was sent since");
    assert_eq!(point.rate_bits(), LINE / 2, "and nothing comes back");
    point.on_round_trip(at(10_000_000));
    // Half way back takes a round trip.
    point.wait_until(at(10_000_000 + 1_900_000));
    assert_eq!(point.rate_bits(), LINE / 2);
    point.wait_until(at(10_000_000 + 2_000_000));
    assert_eq!(point.rate_bits(), LINE / 4 * 3);
    // But not for ever: who has nothing to send hears of nothing that arrives.
    let cut_at = 20_000_000;
    assert!(point.on_notification(at(cut_at), u64::MAX));
    assert!(!point.on_notification(at(cut_at + ROUND_TRIP_MAX - 1), u64::MAX));
    assert!(point.on_notification(at(cut_at + ROUND_TRIP_MAX), u64::MAX));
}

#[test]
fn what_is_cut_is_no_more_than_a_window_in_each_round_trip() {
    let mut point = ReactionPoint::new(settings());
    // 500,000 bytes in 4 ms are 1 Gbit/s, of a line of 10.
    point.set_round_trip(4_000_000);
    assert!(point.on_notification(at(0), 500_000));
    assert_eq!(point.rate_bits(), 500_000_000);
    // Who could send more than it does is not held to it.
    point.on_round_trip(at(4_000_000));
    assert!(point.on_notification(at(4_000_000), 50_000_000));
    assert!((250_000_000..400_000_000).contains(&point.rate_bits()), "{}", point.rate_bits());
}

#[test]
fn the_rate_never_falls_below_its_floor() {
    let floor_bits = 100_000_000;
    let mut point = ReactionPoint::new(Dcqcn { floor_bits, ..settings() });
    for n in 0..1000 {
        notify(&mut point, at(n * 50_000));
        assert!(point.rate_bits() >= floor_bits);
    }
    assert_eq!(point.rate_bits(), floor_bits);
}

#[test]
fn recovery_is_half_way_first_then_further() {
    let mut point = ReactionPoint::new(settings());
    notify(&mut point, at(0));
    notify(&mut point, at(50_000));
    let (cut, before) = (point.rate_bits(), LINE / 2);
    assert!(cut < before * 2 / 3);
    let rate_after = |steps: u64| {
        let mut point = point.clone();
        point.wait_until(at(50_000 + steps * 55_000));
        point.rate_bits()
    };
    // Five steps, each half of what was missing; nothing above the rate before.
    let mut missing = before - cut;
    for step in 1..=5 {
        missing -= missing / 2;
        assert!(rate_after(step).abs_diff(before - missing) < 1000, "{step}");
    }
    assert!(rate_after(20) > before);
    assert_eq!(rate_after(2000), LINE);
    let mut whole = point.clone();
    whole.wait_until(at(1 << 40));
    assert!(whole.rate_bits() == LINE && whole.wait_until(at(1 << 40)).is_none());
}

#[test]
fn alpha_forgets() {
    let mut point = ReactionPoint::new(settings());
    notify(&mut point, at(0));
    // After a second without a notification the next one hardly cuts.
    point.wait_until(at(1_000_000_000));
    assert_eq!(point.rate_bits(), LINE);
    notify(&mut point, at(1_000_000_000));
    assert!(point.rate_bits() > LINE * 99 / 100, "{}", point.rate_bits());
}

#[test]
fn settings_that_cannot_be_do_no_harm() {
    let nothing = Dcqcn {
        line_bits: 0,
        floor_bits: 0,
        alpha_nanos: 0,
        increase_nanos: 0,
        increase_bytes: 0,
        fast_steps: 0,
        additive_bits: u64::MAX,
        hyper_bits: u64::MAX,
        g_shift: 99,
        notify_nanos: 0,
    };
    for settings in [nothing, Dcqcn { line_bits: u64::MAX, floor_bits: u64::MAX, ..nothing }] {
        let mut point = ReactionPoint::new(settings);
        for n in 0..2000 {
            notify(&mut point, at(n * 70_000));
            point.on_sent(at(n * 70_000), 4096);
            point.wait_until(at(n * 70_000 + 60_000));
        }
        assert!(point.rate_bits() >= 1_000_000);
    }
}

#[test]
fn marks_are_answered_once_in_a_while() {
    let mut point = NotificationPoint::default();
    let answered = (0..1000).filter(|n| point.on_mark(at(n * 1000), &settings())).count();
    assert_eq!(answered, 20);
}

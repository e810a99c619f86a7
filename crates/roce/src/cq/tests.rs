use super::*;
use crate::number::Qpn;
use crate::work::Kind;

fn completion(id: u64, solicited: bool, status: Status) -> Completion {
    let qpn = Qpn::new(17 + u32::from(solicited));
    Completion { id, qpn, kind: Kind::Receive, status, bytes: 1, immediate: None, solicited }
}

fn push(cq: &mut Cq, now: u64, solicited: bool) {
    let done = completion(now, solicited, Status::Success);
    cq.push(Time::from_nanos(now), done).unwrap();
}

#[test]
fn an_event_comes_once_for_what_it_was_armed_for() {
    let mut cq = Cq::new(16, Moderation::default());
    push(&mut cq, 0, true);
    assert!(!cq.take_event(), "nobody asked");
    assert!(cq.arm(Arm::Solicited), "look first");
    push(&mut cq, 1, false);
    assert!(!cq.take_event());
    push(&mut cq, 2, true);
    assert!(cq.take_event() && !cq.take_event());
    push(&mut cq, 3, true);
    assert!(!cq.take_event(), "not armed again");
    while cq.poll().unwrap().is_some() {}
    assert!(!cq.arm(Arm::Any) && !cq.arm(Arm::Solicited), "for any stays for any");
    push(&mut cq, 4, false);
    assert!(cq.take_event());
    assert_eq!((cq.counters.completions, cq.counters.events, cq.counters.deepest), (5, 2, 4));
}

#[test]
fn a_failure_is_always_worth_an_event() {
    let mut cq = Cq::new(16, Moderation { count: 10, period_nanos: 1000 });
    cq.arm(Arm::Solicited);
    cq.push(Time::ZERO, completion(1, false, Status::Flushed)).unwrap();
    assert!(cq.take_event());
    assert_eq!(cq.counters.failures, 1);
}

#[test]
fn completions_wait_for_company_but_not_for_ever() {
    let mut cq = Cq::new(16, Moderation { count: 3, period_nanos: 1000 });
    cq.arm(Arm::Any);
    push(&mut cq, 0, false);
    push(&mut cq, 1, false);
    assert!(!cq.take_event());
    push(&mut cq, 2, false);
    assert!(cq.take_event() && cq.deadline().is_none());
    cq.arm(Arm::Any);
    push(&mut cq, 500, false);
    push(&mut cq, 600, false);
    assert_eq!(cq.deadline(), Some(Time::from_nanos(1500)));
    cq.on_deadline(Time::from_nanos(1499));
    assert!(!cq.take_event());
    cq.on_deadline(Time::from_nanos(1500));
    assert!(cq.take_event() && cq.deadline().is_none());
}

#[test]
fn what_does_not_fit_is_never_lost_silently() {
    let mut cq = Cq::new(2, Moderation::default());
    push(&mut cq, 0, false);
    push(&mut cq, 1, false);
    assert!(!cq.take_overflow());
    cq.arm(Arm::Solicited);
    assert_eq!(cq.push(Time::ZERO, completion(2, false, Status::Success)), Err(Overflow));
    assert!(cq.take_event(), "whoever sleeps must learn of it");
    assert!(cq.take_overflow() && !cq.take_overflow());
    assert_eq!(cq.poll().map(|done| done.map(|done| done.id)), Ok(Some(0)));
    assert_eq!(cq.push(Time::ZERO, completion(3, false, Status::Success)), Err(Overflow));
    assert_eq!(cq.poll().map(|done| done.map(|done| done.id)), Ok(Some(1)));
    assert_eq!((cq.poll(), cq.poll()), (Err(Overflow), Err(Overflow)));
    assert_eq!(cq.counters.overflows, 2);
}

#[test]
fn completions_of_a_queue_pair_that_is_gone_are_forgotten() {
    let mut cq = Cq::new(4, Moderation::default());
    for now in 0..4 {
        push(&mut cq, now, now % 2 == 0);
    }
    cq.forget(Qpn::new(18));
    let ids: Vec<_> = core::iter::from_fn(|| cq.poll().unwrap()).map(|done| done.id).collect();
    assert_eq!(ids, [1, 3]);
}

use super::*;

const IP4: &[u8] = &[0x45, 0, 0, 20];
const IP6: &[u8] = &[0x60, 0, 0, 0];

fn frame(head: &[u8], packet: &[u8]) -> Vec<u8> {
    [head, packet].concat()
}

/// Where the packet is behind `head`, and what tells its network apart: VLANs and sessions.
#[track_caller]
fn check(link: u32, head: &[u8], packet: &[u8], ethernet: u64) -> Vec<Wrap> {
    check_carried(link, head, packet, Scope { ethernet, carrier: 0 })
}

#[track_caller]
fn check_carried(link: u32, head: &[u8], packet: &[u8], scope: Scope) -> Vec<Wrap> {
    let (link, frame) = (Link::of(link).unwrap(), frame(head, packet));
    let place = link.locate(&frame).expect("there is a packet");
    assert_eq!(link.find(&frame), Some((place.at, place.scope)));
    assert_eq!((place.at, place.scope), (head.len(), scope));
    place.wraps
}

#[track_caller]
fn check_none(link: u32, frame: &[u8]) {
    let link = Link::of(link).unwrap();
    assert_eq!((link.locate(frame), link.find(frame)), (None, None));
}

fn ethernet(rest: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], rest].concat()
}

#[test]
fn ethernet_with_and_without_tags() {
    check(1, &ethernet(&[8, 0]), IP4, 0);
    check(1, &ethernet(&[0x86, 0xdd]), IP6, 0);
    check(1, &ethernet(&[0x81, 0, 0xe0, 7, 8, 0]), IP4, 7);
    check(1, &ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7, 8, 0]), IP4, 7 << 12 | 5);
    check(1, &ethernet(&[0x91, 0, 0, 5, 0x92, 0, 0, 7, 0x86, 0xdd]), IP6, 7 << 12 | 5);
    let three = [0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0];
    check(1, &ethernet(&three), IP4, 3 << 24 | 2 << 12 | 1);
    let five = [0x81, 0, 0, 1].repeat(5);
    check_none(1, &frame(&ethernet(&[&five[..], &[8, 0]].concat()), IP4));
}

fn scope_of(rest: &[u8]) -> Scope {
    Link::Ethernet.locate(&frame(&ethernet(rest), IP4)).expect("there is a packet").scope
}

/// What `tags` come before: IPv4, or a session.
fn behind(tags: &[u16], session: Option<u16>) -> Scope {
    let mut rest: Vec<u8> = Vec::new();
    tags.iter().for_each(|tag| rest.extend([[0x81, 0], tag.to_be_bytes()].as_flattened()));
    match session {
        None => rest.extend([8, 0]),
        Some(session) => {
            let [high, low] = session.to_be_bytes();
            rest.extend([0x88, 0x64, 0x11, 0, high, low, 0, 22, 0, 0x21]);
        }
    }
    scope_of(&rest)
}

/// Each stack of tags, with and without a session of PPPoE, is a network of its own, wherever its tags were found.
#[test]
fn networks_have_names_of_their_own() {
    let ids = [1, 2, 5, 16, 0xfff];
    let mut stacks: Vec<Vec<u16>> = vec![Vec::new()];
    for len in 0..4 {
        let deeper = stacks.iter().filter(|stack| stack.len() == len);
        let deeper = deeper.flat_map(|stack| ids.map(|id| [&stack[..], &[id]].concat()));
        stacks.extend(deeper.collect::<Vec<_>>());
    }
    let sessions = [None, Some(1), Some(2), Some(5), Some(16), Some(0xfffe)];
    let mut names = std::collections::HashSet::new();
    for stack in &stacks {
        for session in sessions {
            let scope = behind(stack, session);
            assert!(names.insert(scope.of_ethernet()), "{stack:?} {session:?}");
            // The card takes the first tag out.
            if let [first, rest @ ..] = &stack[..] {
                let priority = 3 << 13;
                assert_eq!(behind(rest, session).behind(first | priority), Some(scope));
            }
        }
    }
    assert_eq!(names.len(), stacks.len() * sessions.len());
    assert_eq!(behind(&[1, 2, 3, 4], None).behind(5), None, "a fifth");
}

#[test]
fn a_tag_with_a_priority_and_no_vlan_is_none() {
    let priority = 7 << 13;
    assert_eq!(behind(&[priority], None), behind(&[], None));
    assert_eq!(behind(&[0, 5], Some(7)), behind(&[5], Some(7)));
    assert_eq!(behind(&[5], None).behind(priority), Some(behind(&[5], None)));
    assert_eq!(behind(&[1, 2, 3, 4], None).behind(0), Some(behind(&[1, 2, 3, 4], None)));
    assert_ne!(behind(&[], Some(0)), behind(&[], None), "session 0");
}

#[test]
fn what_is_no_ip_is_left_alone() {
    check_none(1, &frame(&ethernet(&[8, 6]), &[0; 28]));
    check_none(1, &frame(&ethernet(&[8, 0]), IP6));
    check_none(1, &frame(&ethernet(&[0x86, 0xdd]), IP4));
    check_none(1, &frame(&ethernet(&[0, 3, 0xe0, 0xe0, 3]), &[]));
    check_none(101, &[0x30, 0]);
    check_none(9, &[0xc0, 0x21, 1]);
}

#[test]
fn length_and_802_2_headers() {
    let head = ethernet(&[0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]);
    assert_eq!(check(1, &head, IP4, 0), [Wrap::Snap { at: 12 }]);
    let tagged = ethernet(&[0x81, 0, 0, 9, 0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]);
    assert_eq!(check(1, &tagged, IP4, 9), [Wrap::Snap { at: 16 }]);
}

#[test]
fn sessions_of_pppoe() {
    let head = ethernet(&[0x88, 0x64, 0x11, 0, 0x12, 0x34, 0, 22, 0, 0x21]);
    assert_eq!(check(1, &head, IP4, 0x1234 << 48), [Wrap::Pppoe { at: 14 }]);
    check_none(1, &frame(&ethernet(&[0x88, 0x63, 0x11, 9, 0, 0, 0, 4]), IP4));
}

#[test]
fn cooked_by_linux() {
    let mut sll = [0u8; 16];
    sll[1] = 4; // sent by us
    sll[14..].copy_from_slice(&[8, 0]);
    let carried = |ethernet, carrier| Scope { ethernet, carrier };
    check_carried(113, &sll, IP4, carried(0, 4));
    sll[14..].copy_from_slice(&[0x81, 0]);
    check_carried(113, &frame(&sll, &[0, 7, 0x86, 0xdd]), IP6, carried(7, 4));
    let mut sll2 = [0u8; 20];
    sll2[..8].copy_from_slice(&[0x86, 0xdd, 0, 0, 0, 0, 0, 3]);
    sll2[10] = 1;
    check_carried(276, &sll2, IP6, carried(0, 3 << 3 | 1));
}

#[test]
fn raw_and_loopback() {
    for link in [12, 14, 101, 228] {
        check(link, &[], IP4, 0);
    }
    check(229, &[], IP6, 0);
    for head in [[2, 0, 0, 0], [0, 0, 0, 2]] {
        check(0, &head, IP4, 0);
    }
    for family in [10, 24, 28, 30] {
        check(0, &[family, 0, 0, 0], IP6, 0);
        check(108, &[0, 0, 0, family], IP6, 0);
    }
    check_none(0, &frame(&[7, 0, 0, 0], IP4));
    check_none(0, &frame(&[2, 0, 0, 0], IP6));
}

#[test]
fn ppp_with_and_without_what_may_be_left_out() {
    check(9, &[0, 0x21], IP4, 0);
    check(9, &[0x21], IP4, 0);
    check(9, &[0xff, 3, 0, 0x57], IP6, 0);
    check(50, &[0xff, 3, 0, 0x21], IP4, 0);
}

#[test]
fn frames_that_end_anywhere() {
    let pppoe = [0x88, 0xa8, 0, 5, 0x88, 0x64, 0x11, 0, 0x12, 0x34, 0, 22, 0, 0x21];
    let snap = [0x81, 0, 0, 9, 0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0];
    for whole in [ethernet(&pppoe), ethernet(&snap), vec![2, 0, 0, 0], vec![0xff, 3, 0, 0x21]] {
        for end in 0..=whole.len() {
            for link in [0, 1, 9, 12, 113, 276] {
                assert_eq!(Link::of(link).unwrap().locate(&whole[..end]), None, "{link} {end}");
            }
        }
    }
    assert_eq!(Link::of(105), None);
}

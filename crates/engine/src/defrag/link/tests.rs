use super::*;

const IP4: &[u8] = &[0x45, 0, 0, 20];
const IP6: &[u8] = &[0x60, 0, 0, 0];

fn frame(head: &[u8], packet: &[u8]) -> Vec<u8> {
    [head, packet].concat()
}

/// Where the packet is behind `head`, and what tells its network apart.
#[track_caller]
fn check(link: u32, head: &[u8], packet: &[u8], scope: u64) -> Vec<Wrap> {
    let place = Link::of(link).unwrap().locate(&frame(head, packet)).expect("there is a packet");
    assert_eq!((place.at, place.scope), (head.len(), scope));
    place.wraps
}

#[track_caller]
fn check_none(link: u32, frame: &[u8]) {
    assert_eq!(Link::of(link).unwrap().locate(frame), None);
}

fn ethernet(rest: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], rest].concat()
}

#[test]
fn ethernet_with_and_without_tags() {
    check(1, &ethernet(&[8, 0]), IP4, 0);
    check(1, &ethernet(&[0x86, 0xdd]), IP6, 0);
    check(1, &ethernet(&[0x81, 0, 0xe0, 7, 8, 0]), IP4, 7);
    check(1, &ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7, 8, 0]), IP4, 5 << 12 | 7);
    check(1, &ethernet(&[0x91, 0, 0, 5, 0x92, 0, 0, 7, 0x86, 0xdd]), IP6, 5 << 12 | 7);
    let three = [0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0];
    check(1, &ethernet(&three), IP4, 1 << 24 | 2 << 12 | 3);
    let five = [0x81, 0, 0, 1].repeat(5);
    check_none(1, &frame(&ethernet(&[&five[..], &[8, 0]].concat()), IP4));
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
    assert_eq!(check(1, &head, IP4, 0x1234), [Wrap::Pppoe { at: 14 }]);
    check_none(1, &frame(&ethernet(&[0x88, 0x63, 0x11, 9, 0, 0, 0, 4]), IP4));
}

#[test]
fn cooked_by_linux() {
    let mut sll = [0u8; 16];
    sll[1] = 4; // sent by us
    sll[14..].copy_from_slice(&[8, 0]);
    check(113, &sll, IP4, 4);
    sll[14..].copy_from_slice(&[0x81, 0]);
    check(113, &frame(&sll, &[0, 7, 0x86, 0xdd]), IP6, 4 << 12 | 7);
    let mut sll2 = [0u8; 20];
    sll2[..8].copy_from_slice(&[0x86, 0xdd, 0, 0, 0, 0, 0, 3]);
    sll2[10] = 1;
    check(276, &sll2, IP6, 3 << 3 | 1);
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

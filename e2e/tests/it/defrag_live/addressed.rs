//! With `--xdp`, to whom fragments are addressed: those that are others' stay the kernel's.

use e2e::run::eventually;
use sys::bpf::Classic;
use sys::packet::Copies;

use super::stage::{Stage, Told, fragment4};
use super::{METRICS, frame, number, page};

const XDP: [&str; 6] = ["--xdp", "--json", "--stats", "0", "--metrics", METRICS];
/// An address that nobody on the cable has.
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Lets in what is addressed to another host (`PACKET_OTHERHOST`).
const OF_OTHERS: &[Classic] = &[
    Classic { code: 0x20, yes: 0, no: 0, k: 0xffff_f004 },
    Classic { code: 0x15, yes: 0, no: 1, k: 3 },
    Classic { code: 6, yes: 0, no: 0, k: u32::MAX },
    Classic { code: 6, yes: 0, no: 0, k: 0 },
];

/// What host B's kernel gets of frames to others.
fn look(stage: &Stage) -> Copies {
    let index = stage.end().index;
    stage.inside(|| Copies::open(index, OF_OTHERS, 1 << 20).unwrap())
}

/// Identifications of the packets that have come.
fn ids(copies: &Copies) -> Vec<u16> {
    let mut packet = [0; 2000];
    let next =
        || copies.receive(&mut packet).ok().map(|_| u16::from_be_bytes([packet[4], packet[5]]));
    std::iter::from_fn(next).collect()
}

/// A datagram in two fragments.
fn two(id: u16) -> [Vec<u8>; 2] {
    let part = |at, more| frame(&[], 0x0800, &fragment4(id, at, more, &[7; 1480]));
    [part(0, true), part(1480, false)]
}

fn whole(stage: &Stage) -> u64 {
    number(&page(stage), "\nshunt_defrag_datagrams_total ")
}

/// As on a port of a bridge, behind which others are.
#[test]
fn fragments_for_others_are_left_to_the_kernel() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&XDP);
    let kernel = look(&stage);
    stage.send_frames_to(OTHER, &two(1));
    stage.send_frames(&two(2));
    // To all, and to a group.
    stage.send_frames_to([0xff; 6], &two(3));
    stage.send_frames_to([1, 0, 0x5e, 0, 0, 1], &two(4));
    eventually("what is the host's is whole", || whole(&stage) >= 3);
    let told = Told::of(&shunt.stop());
    assert_eq!(["fragments", "datagrams"].map(|name| told.get(name)), [6, 3], "of others, too");
    let mut seen = Vec::new();
    eventually("the kernel has them", || {
        seen.extend(ids(&kernel));
        seen == [1, 1]
    });
}

#[test]
fn an_address_that_changes_is_followed() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&XDP);
    let kernel = look(&stage);
    let old = stage.end().address;
    stage.set_address("02:00:00:00:00:07");
    // It looks once a second: until then the kernel has them.
    let mut id = 0;
    eventually("what is addressed to the new one is taken", || {
        id += 1;
        stage.send_frames(&two(id));
        whole(&stage) > 0
    });
    assert!(ids(&kernel).is_empty(), "they were addressed to the host");
    stage.send_frames_to(old, &two(9000));
    let mut seen = Vec::new();
    eventually("what is addressed to the old one is not", || {
        seen.extend(ids(&kernel));
        seen == [9000, 9000]
    });
    shunt.stop();
}

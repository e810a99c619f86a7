//! The program that takes fragments out of the kernel's receive path (XDP).
//!
//! It looks at each frame of the interface, sends fragments of IPv4 and IPv6 to the socket of their
//! queue, and lets everything else go on to the kernel, which notices nothing. Tags of VLANs, two at most,
//! and three extension headers before a fragment header are passed over; what is further in goes on to
//! the kernel, too, as does a fragment of a queue that has no socket. To pass over headers of any length the
//! program adds to a pointer what it has read, which the verifier allows to whoever has `CAP_PERFMON`.
//!
//! Frames come that are addressed to others: an interface in a bridge, below a macvlan, or that somebody looks at is
//! promiscuous, and a switch floods what it does not know. They go on to the kernel, which knows whose they are.
//!
//! Where datagrams are handed back through a device, only those are taken that mean the same there: to a unicast address
//! of this host ([`Takes::HostsOwn`]). What the host forwards would be too long for its next link when it is whole; groups are
//! joined on an interface; and an address of a link (`fe80::`) is one of that link, be it the sender's or the receiver's.

use sys::bpf::Instruction;

use crate::ebpf::{
    ADD, ADD_K, AND_K, CALL, EXIT, GO, IF_ANY_K, IF_EQUAL_K, IF_GREATER, IF_NOT_EQUAL_K, LOAD_BYTE,
    LOAD_HALF, LOAD_WORD, Label, MOVE, MOVE_K, Program, R0, SHIFT_LEFT_K, STACK, STORE_HALF,
    STORE_WORD_K,
};

const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const FRAGMENT_HEADER: i32 = 44;
const EXTENSIONS: [i32; 3] = [0, 43, 60];
const EXTENSIONS_MAX: usize = 3;
/// In the first byte of an address: it is a group's, or everybody's.
const GROUP: i32 = 1;
/// In the first two bytes of an address of IPv6: it is one of the link (`fe80::/10`).
const OF_LINK: (u16, u16) = (0xffc0, 0xfe80);
const XDP_PASS: i32 = 2;
const LOOK_UP: i32 = 1;
const REDIRECT_MAP: i32 = 51;

/// Registers that have one use all through. 1 to 5 are arguments of calls.
const MAP: u8 = 1;
const KEY: u8 = 2;
const QUEUE: u8 = 2;
const FALLBACK: u8 = 3;
const VALUE: u8 = 4;
const REACH: u8 = 5;
const CONTEXT: u8 = 6;
/// Where we are in the frame.
const AT: u8 = 7;
const END: u8 = 8;
/// 14 bytes before the IP header.
const LINK: u8 = 9;

/// Where the destination of a fragment is on the stack, as IPv6 has it.
const KEY_AT: i16 = -16;

/// Which fragments are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// All that are addressed to the interface, or to a group.
    Interfaces,
    /// Those that are addressed to the interface, and whose destination is in the set of this number.
    HostsOwn(i32),
}

/// Where jumps lead from everywhere.
#[derive(Clone, Copy)]
struct Ends {
    pass: Label,
    redirect: Label,
}

/// Goes on to the kernel unless the frame has `n` bytes from `AT` on.
fn need(p: &mut Program, ends: Ends, n: i32) {
    p.put(MOVE, REACH, AT, 0, 0);
    p.put(ADD_K, REACH, 0, 0, n);
    p.jump(IF_GREATER, REACH, END, 0, ends.pass);
}

/// A number of two bytes as the machine loads it from a frame.
fn wire(n: u16) -> i32 {
    i32::from(n.to_be())
}

/// The program, for the map of sockets of that number, on an interface with this address.
pub(super) fn fragments(map: i32, address: [u8; 6], takes: Takes) -> Vec<Instruction> {
    let mut p = Program::new();
    let ends = Ends { pass: p.label(), redirect: p.label() };
    let (on_v4, on_v6) = (p.label(), p.label());
    p.put(MOVE, CONTEXT, 1, 0, 0);
    p.put(LOAD_WORD, AT, CONTEXT, 0, 0);
    p.put(LOAD_WORD, END, CONTEXT, 4, 0);
    link(&mut p, ends);
    p.put(MOVE, LINK, AT, 0, 0);
    p.jump(IF_EQUAL_K, VALUE, 0, wire(V4), on_v4);
    p.jump(IF_EQUAL_K, VALUE, 0, wire(V6), on_v6);
    p.jump(GO, 0, 0, 0, ends.pass);
    p.here(on_v4);
    v4(&mut p, ends, takes);
    p.here(on_v6);
    v6(&mut p, ends, takes);
    p.here(ends.redirect);
    addressee(&mut p, ends, address, takes);
    p.load_map(MAP, map);
    p.put(LOAD_WORD, QUEUE, CONTEXT, 16, 0);
    p.put(MOVE_K, FALLBACK, 0, 0, XDP_PASS);
    p.put(CALL, 0, 0, 0, REDIRECT_MAP);
    p.put(EXIT, 0, 0, 0, 0);
    p.here(ends.pass);
    p.put(MOVE_K, R0, 0, 0, XDP_PASS);
    p.put(EXIT, 0, 0, 0, 0);
    p.finish()
}

/// Leaves `AT` 14 bytes before the IP header, and in `VALUE` what comes there.
fn link(p: &mut Program, ends: Ends) {
    for _ in 0..TAGS.len() {
        let (tagged, untagged) = (p.label(), p.label());
        need(p, ends, 18);
        p.put(LOAD_HALF, VALUE, AT, 12, 0);
        for tag in TAGS {
            p.jump(IF_EQUAL_K, VALUE, 0, wire(tag), tagged);
        }
        p.jump(GO, 0, 0, 0, untagged);
        p.here(tagged);
        p.put(ADD_K, AT, 0, 0, 4);
        p.here(untagged);
    }
    need(p, ends, 14);
    p.put(LOAD_HALF, VALUE, AT, 12, 0);
}

/// Goes on to the kernel unless the frame is one that is to be taken. Asked of fragments alone, which are few.
fn addressee(p: &mut Program, ends: Ends, address: [u8; 6], takes: Takes) {
    let ours = p.label();
    p.put(LOAD_WORD, AT, CONTEXT, 0, 0);
    need(p, ends, 14);
    if takes == Takes::Interfaces {
        p.put(LOAD_BYTE, VALUE, AT, 0, 0);
        p.jump(IF_ANY_K, VALUE, 0, GROUP, ours);
    }
    for (at, half) in (0..).step_by(2).zip(address.as_chunks::<2>().0) {
        p.put(LOAD_HALF, VALUE, AT, at, 0);
        p.jump(IF_NOT_EQUAL_K, VALUE, 0, u16::from_ne_bytes(*half).into(), ends.pass);
    }
    if let Takes::HostsOwn(set) = takes {
        p.load_map(MAP, set);
        p.put(MOVE, KEY, STACK, 0, 0);
        p.put(ADD_K, KEY, 0, 0, KEY_AT.into());
        p.put(CALL, 0, 0, 0, LOOK_UP);
        p.jump(IF_EQUAL_K, R0, 0, 0, ends.pass);
    }
    p.here(ours);
}

fn v4(p: &mut Program, ends: Ends, takes: Takes) {
    need(p, ends, 14 + 20);
    p.put(LOAD_HALF, VALUE, AT, 14 + 6, 0);
    p.put(AND_K, VALUE, 0, 0, wire(0x3fff));
    p.jump(IF_EQUAL_K, VALUE, 0, 0, ends.pass);
    if takes != Takes::Interfaces {
        // Mapped to IPv6.
        p.put(STORE_WORD_K, STACK, 0, KEY_AT, 0);
        p.put(STORE_WORD_K, STACK, 0, KEY_AT + 4, 0);
        p.put(STORE_WORD_K, STACK, 0, KEY_AT + 8, i32::from_ne_bytes([0, 0, 0xff, 0xff]));
        keep(p, 14 + 16, KEY_AT + 12, 4);
    }
    p.jump(GO, 0, 0, 0, ends.redirect);
}

fn v6(p: &mut Program, ends: Ends, takes: Takes) {
    let fragment = p.label();
    need(p, ends, 14 + 40);
    p.put(LOAD_BYTE, VALUE, AT, 14 + 6, 0);
    p.put(ADD_K, AT, 0, 0, 14 + 40);
    for _ in 0..EXTENSIONS_MAX {
        let extension = p.label();
        p.jump(IF_EQUAL_K, VALUE, 0, FRAGMENT_HEADER, fragment);
        for kind in EXTENSIONS {
            p.jump(IF_EQUAL_K, VALUE, 0, kind, extension);
        }
        p.jump(GO, 0, 0, 0, ends.pass);
        p.here(extension);
        need(p, ends, 8);
        p.put(LOAD_BYTE, VALUE, AT, 0, 0);
        p.put(LOAD_BYTE, REACH, AT, 1, 0);
        p.put(ADD_K, REACH, 0, 0, 1);
        p.put(SHIFT_LEFT_K, REACH, 0, 0, 3);
        p.put(ADD, AT, REACH, 0, 0);
    }
    p.jump(IF_EQUAL_K, VALUE, 0, FRAGMENT_HEADER, fragment);
    p.jump(GO, 0, 0, 0, ends.pass);
    p.here(fragment);
    if takes != Takes::Interfaces {
        let (mask, of_link) = OF_LINK;
        p.put(LOAD_HALF, VALUE, LINK, 14 + 8, 0);
        p.put(AND_K, VALUE, 0, 0, wire(mask));
        p.jump(IF_EQUAL_K, VALUE, 0, wire(of_link), ends.pass);
        keep(p, 14 + 24, KEY_AT, 16);
    }
    p.jump(GO, 0, 0, 0, ends.redirect);
}

/// Copies so many bytes of the frame to the stack.
fn keep(p: &mut Program, from: i16, to: i16, bytes: i16) {
    for at in (0..bytes).step_by(2) {
        p.put(LOAD_HALF, VALUE, LINK, from + at, 0);
        p.put(STORE_HALF, STACK, VALUE, to + at, 0);
    }
}

#[cfg(test)]
mod tests {
    use sys::bpf::{AddressSet, Hook, SocketMap};

    use super::*;

    const ADDRESS: [u8; 6] = [0xfe, 0xff, 0x80, 0x81, 0xfc, 0xfd];

    #[test]
    fn the_kernel_takes_it() {
        let maps = SocketMap::new(1).and_then(|map| Ok((map, AddressSet::new(1)?)));
        let (map, set) = match maps {
            Ok(maps) => maps,
            Err(e) => return println!("skipped: {e}"),
        };
        for takes in [Takes::Interfaces, Takes::HostsOwn(set.number())] {
            let program = fragments(map.number(), ADDRESS, takes);
            let loaded = sys::bpf::Program::load(Hook::Xdp, &program);
            let log = loaded.err().map(|refused| refused.log);
            assert_eq!(log, None, "{takes:?}");
        }
    }

    #[test]
    fn jumps_lead_into_the_program() {
        let program = fragments(3, ADDRESS, Takes::HostsOwn(4));
        for (at, instruction) in program.iter().enumerate() {
            let to = at + 1 + usize::try_from(instruction.offset.max(0)).unwrap();
            let conditions = [IF_ANY_K, IF_EQUAL_K, IF_GREATER, IF_NOT_EQUAL_K];
            let is_jump = instruction.code == GO || conditions.contains(&instruction.code);
            assert!(!is_jump || to < program.len() && instruction.offset >= 0, "{at}");
        }
    }
}

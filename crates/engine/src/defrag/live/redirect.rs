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

use sys::bpf::Instruction;

use crate::ebpf::{
    ADD, ADD_K, AND_K, CALL, EXIT, GO, IF_ANY_K, IF_EQUAL_K, IF_GREATER, IF_NOT_EQUAL_K, LOAD_BYTE,
    LOAD_HALF, LOAD_WORD, Label, MOVE, MOVE_K, Program, R0, SHIFT_LEFT_K,
};

const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const FRAGMENT_HEADER: i32 = 44;
const EXTENSIONS: [i32; 3] = [0, 43, 60];
const EXTENSIONS_MAX: usize = 3;
/// In the first byte of an address: it is a group's, or everybody's.
const GROUP: i32 = 1;
const XDP_PASS: i32 = 2;
const REDIRECT_MAP: i32 = 51;

/// Registers that have one use all through. 1 to 5 are arguments of calls.
const MAP: u8 = 1;
const QUEUE: u8 = 2;
const FALLBACK: u8 = 3;
const VALUE: u8 = 4;
const REACH: u8 = 5;
const CONTEXT: u8 = 6;
/// Where we are in the frame.
const AT: u8 = 7;
const END: u8 = 8;

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

/// The program, for the map of that number, on an interface with this address.
pub(super) fn fragments(map: i32, address: [u8; 6]) -> Vec<Instruction> {
    let mut p = Program::new();
    let ends = Ends { pass: p.label(), redirect: p.label() };
    let (on_v4, on_v6) = (p.label(), p.label());
    p.put(MOVE, CONTEXT, 1, 0, 0);
    p.put(LOAD_WORD, AT, CONTEXT, 0, 0);
    p.put(LOAD_WORD, END, CONTEXT, 4, 0);
    link(&mut p, ends);
    p.jump(IF_EQUAL_K, VALUE, 0, wire(V4), on_v4);
    p.jump(IF_EQUAL_K, VALUE, 0, wire(V6), on_v6);
    p.jump(GO, 0, 0, 0, ends.pass);
    p.here(on_v4);
    v4(&mut p, ends);
    p.here(on_v6);
    v6(&mut p, ends);
    p.here(ends.redirect);
    addressee(&mut p, ends, address);
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

/// Goes on to the kernel unless the frame is to this address or to a group. Asked of fragments alone, which are few.
fn addressee(p: &mut Program, ends: Ends, address: [u8; 6]) {
    let ours = p.label();
    p.put(LOAD_WORD, AT, CONTEXT, 0, 0);
    need(p, ends, 14);
    p.put(LOAD_BYTE, VALUE, AT, 0, 0);
    p.jump(IF_ANY_K, VALUE, 0, GROUP, ours);
    for (at, half) in (0..).step_by(2).zip(address.as_chunks::<2>().0) {
        p.put(LOAD_HALF, VALUE, AT, at, 0);
        p.jump(IF_NOT_EQUAL_K, VALUE, 0, u16::from_ne_bytes(*half).into(), ends.pass);
    }
    p.here(ours);
}

fn v4(p: &mut Program, ends: Ends) {
    need(p, ends, 14 + 20);
    p.put(LOAD_HALF, VALUE, AT, 14 + 6, 0);
    p.put(AND_K, VALUE, 0, 0, wire(0x3fff));
    p.jump(IF_EQUAL_K, VALUE, 0, 0, ends.pass);
    p.jump(GO, 0, 0, 0, ends.redirect);
}

fn v6(p: &mut Program, ends: Ends) {
    need(p, ends, 14 + 40);
    p.put(LOAD_BYTE, VALUE, AT, 14 + 6, 0);
    p.put(ADD_K, AT, 0, 0, 14 + 40);
    for _ in 0..EXTENSIONS_MAX {
        let extension = p.label();
        p.jump(IF_EQUAL_K, VALUE, 0, FRAGMENT_HEADER, ends.redirect);
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
    p.jump(IF_EQUAL_K, VALUE, 0, FRAGMENT_HEADER, ends.redirect);
    p.jump(GO, 0, 0, 0, ends.pass);
}

#[cfg(test)]
mod tests {
    use sys::bpf::Hook;

    use super::*;

    const ADDRESS: [u8; 6] = [0xfe, 0xff, 0x80, 0x81, 0xfc, 0xfd];

    #[test]
    fn the_kernel_takes_it() {
        let map = match sys::bpf::SocketMap::new(1) {
            Ok(map) => map,
            Err(e) => return println!("skipped: {e}"),
        };
        let loaded = sys::bpf::Program::load(Hook::Xdp, &fragments(map.number(), ADDRESS));
        assert!(loaded.is_ok(), "{}", loaded.err().map_or_else(String::new, |refused| refused.log));
    }

    #[test]
    fn jumps_lead_into_the_program() {
        let program = fragments(3, ADDRESS);
        for (at, instruction) in program.iter().enumerate() {
            let to = at + 1 + usize::try_from(instruction.offset).unwrap();
            let conditions = [IF_ANY_K, IF_EQUAL_K, IF_GREATER, IF_NOT_EQUAL_K];
            let is_jump = instruction.code == GO || conditions.contains(&instruction.code);
            assert!(!is_jump || to < program.len(), "{at}");
        }
    }
}

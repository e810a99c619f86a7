//! The program that takes fragments out of the kernel's receive path (XDP).
//!
//! It looks at each frame of the interface, sends fragments of IPv4 and IPv6 to the socket of their
//! queue, and lets everything else go on to the kernel, which notices nothing. Tags of VLANs, two at most,
//! and three extension headers before a fragment header are passed over; what is further in goes on to
//! the kernel, too, as does a fragment of a queue that has no socket. To pass over headers of any length the
//! program adds to a pointer what it has read, which the verifier allows to whoever has `CAP_PERFMON`.

use sys::bpf::Instruction;

const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const FRAGMENT_HEADER: i32 = 44;
const EXTENSIONS: [i32; 3] = [0, 43, 60];
const EXTENSIONS_MAX: usize = 3;
const XDP_PASS: i32 = 2;
const REDIRECT_MAP: i32 = 51;

// Registers. 1 to 5 are arguments of calls.
const R0: u8 = 0;
const MAP: u8 = 1;
const QUEUE: u8 = 2;
const FALLBACK: u8 = 3;
const CONTEXT: u8 = 6;
/// Where we are in the frame.
const AT: u8 = 7;
const END: u8 = 8;
const VALUE: u8 = 4;
const REACH: u8 = 5;

const LOAD_BYTE: u8 = 0x71;
const LOAD_HALF: u8 = 0x69;
const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xbf;
const MOVE_K: u8 = 0xb7;
const ADD: u8 = 0x0f;
const ADD_K: u8 = 0x07;
const AND_K: u8 = 0x57;
const SHIFT_LEFT_K: u8 = 0x67;
const LOAD_MAP: u8 = 0x18;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const GO: u8 = 0x05;
const IF_EQUAL_K: u8 = 0x15;
const IF_GREATER: u8 = 0x2d;

/// A label: its number in the program.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Label(usize);

const PASS: Label = Label(0);
const REDIRECT: Label = Label(1);
const ON_V4: Label = Label(2);
const ON_V6: Label = Label(3);
const FREE: usize = 4;

/// A program in the making.
struct Program {
    instructions: Vec<Instruction>,
    /// Jumps, and where they lead.
    jumps: Vec<(usize, Label)>,
    places: Vec<usize>,
}

impl Program {
    fn new() -> Self {
        Self { instructions: Vec::new(), jumps: Vec::new(), places: vec![0; FREE] }
    }

    fn label(&mut self) -> Label {
        self.places.push(0);
        Label(self.places.len() - 1)
    }

    fn here(&mut self, label: Label) {
        self.places[label.0] = self.instructions.len();
    }

    fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, k: i32) {
        self.instructions.push(Instruction { code, registers: from << 4 | to, offset, k });
    }

    fn jump(&mut self, code: u8, to: u8, from: u8, k: i32, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.put(code, to, from, 0, k);
    }

    /// Goes on to the kernel unless the frame has `n` bytes from `AT` on.
    fn need(&mut self, n: i32) {
        self.put(MOVE, REACH, AT, 0, 0);
        self.put(ADD_K, REACH, 0, 0, n);
        self.jump(IF_GREATER, REACH, END, 0, PASS);
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let ahead = self.places[label.0].checked_sub(at + 1).expect("jumps lead ahead");
            self.instructions[at].offset = i16::try_from(ahead).expect("a short program");
        }
        self.instructions
    }
}

/// A number of two bytes as the machine loads it from a frame.
fn wire(n: u16) -> i32 {
    i32::from(n.to_be())
}

/// The program, for the map of that number.
pub(super) fn fragments(map: i32) -> Vec<Instruction> {
    let mut p = Program::new();
    p.put(MOVE, CONTEXT, 1, 0, 0);
    p.put(LOAD_WORD, AT, CONTEXT, 0, 0);
    p.put(LOAD_WORD, END, CONTEXT, 4, 0);
    link(&mut p);
    v4(&mut p);
    v6(&mut p);
    p.here(REDIRECT);
    p.put(LOAD_MAP, MAP, 1, 0, map);
    p.put(0, 0, 0, 0, 0);
    p.put(LOAD_WORD, QUEUE, CONTEXT, 16, 0);
    p.put(MOVE_K, FALLBACK, 0, 0, XDP_PASS);
    p.put(CALL, 0, 0, 0, REDIRECT_MAP);
    p.put(EXIT, 0, 0, 0, 0);
    p.here(PASS);
    p.put(MOVE_K, R0, 0, 0, XDP_PASS);
    p.put(EXIT, 0, 0, 0, 0);
    p.finish()
}

/// Leaves `AT` 14 bytes before the IP header.
fn link(p: &mut Program) {
    for _ in 0..TAGS.len() {
        let (tagged, untagged) = (p.label(), p.label());
        p.need(18);
        p.put(LOAD_HALF, VALUE, AT, 12, 0);
        for tag in TAGS {
            p.jump(IF_EQUAL_K, VALUE, 0, wire(tag), tagged);
        }
        p.jump(GO, 0, 0, 0, untagged);
        p.here(tagged);
        p.put(ADD_K, AT, 0, 0, 4);
        p.here(untagged);
    }
    p.need(14);
    p.put(LOAD_HALF, VALUE, AT, 12, 0);
    p.jump(IF_EQUAL_K, VALUE, 0, wire(V4), ON_V4);
    p.jump(IF_EQUAL_K, VALUE, 0, wire(V6), ON_V6);
    p.jump(GO, 0, 0, 0, PASS);
}

fn v4(p: &mut Program) {
    p.here(ON_V4);
    p.need(14 + 20);
    p.put(LOAD_HALF, VALUE, AT, 14 + 6, 0);
    p.put(AND_K, VALUE, 0, 0, wire(0x3fff));
    p.jump(IF_EQUAL_K, VALUE, 0, 0, PASS);
    p.jump(GO, 0, 0, 0, REDIRECT);
}

fn v6(p: &mut Program) {
    p.here(ON_V6);
    p.need(14 + 40);
    p.put(LOAD_BYTE, VALUE, AT, 14 + 6, 0);
    p.put(ADD_K, AT, 0, 0, 14 + 40);
    for _ in 0..EXTENSIONS_MAX {
        let extension = p.label();
        p.jump(IF_EQUAL_K, VALUE, 0, FRAGMENT_HEADER, REDIRECT);
        for kind in EXTENSIONS {
            p.jump(IF_EQUAL_K, VALUE, 0, kind, extension);
        }
        p.jump(GO, 0, 0, 0, PASS);
        p.here(extension);
        p.need(8);
        p.put(LOAD_BYTE, VALUE, AT, 0, 0);
        p.put(LOAD_BYTE, REACH, AT, 1, 0);
        p.put(ADD_K, REACH, 0, 0, 1);
        p.put(SHIFT_LEFT_K, REACH, 0, 0, 3);
        p.put(ADD, AT, REACH, 0, 0);
    }
    p.jump(IF_EQUAL_K, VALUE, 0, FRAGMENT_HEADER, REDIRECT);
    p.jump(GO, 0, 0, 0, PASS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_it() {
        let map = match sys::bpf::SocketMap::new(1) {
            Ok(map) => map,
            Err(e) => return println!("skipped: {e}"),
        };
        let loaded = sys::bpf::Program::load_xdp(&fragments(map.number()));
        assert!(loaded.is_ok(), "{}", loaded.err().map_or_else(String::new, |refused| refused.log));
    }

    #[test]
    fn jumps_lead_into_the_program() {
        let program = fragments(3);
        for (at, instruction) in program.iter().enumerate() {
            let to = at + 1 + usize::try_from(instruction.offset).unwrap();
            let is_jump = matches!(instruction.code, GO | IF_EQUAL_K | IF_GREATER);
            assert!(!is_jump || to < program.len(), "{at}");
        }
    }
}

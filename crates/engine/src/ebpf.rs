//! Programs of the new machine (eBPF), written instruction by instruction.
//!
//! Codes are named as they are used; `_K` takes a number, the others a register. What is loaded and
//! compared is of 64 bits where the name does not say otherwise.

use sys::bpf::Instruction;

/// What a call answers; what the program answers.
pub(crate) const R0: u8 = 0;
/// The stack's end; places on it have negative offsets.
pub(crate) const STACK: u8 = 10;

pub(crate) const LOAD_BYTE: u8 = 0x71;
pub(crate) const LOAD_HALF: u8 = 0x69;
pub(crate) const LOAD_WORD: u8 = 0x61;
pub(crate) const LOAD: u8 = 0x79;
pub(crate) const STORE_HALF: u8 = 0x6b;
pub(crate) const STORE_WORD: u8 = 0x63;
pub(crate) const STORE_WORD_K: u8 = 0x62;
pub(crate) const MOVE: u8 = 0xbf;
pub(crate) const MOVE_K: u8 = 0xb7;
pub(crate) const ADD: u8 = 0x0f;
pub(crate) const ADD_K: u8 = 0x07;
pub(crate) const AND_K: u8 = 0x57;
pub(crate) const OR_K: u8 = 0x47;
pub(crate) const SHIFT_LEFT_K: u8 = 0x67;
pub(crate) const SHIFT_RIGHT: u8 = 0x7f;
/// To or from the order of the network; `k` is the number of bits.
pub(crate) const NETWORK_ORDER: u8 = 0xdc;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const EXIT: u8 = 0x95;
pub(crate) const GO: u8 = 0x05;
pub(crate) const IF_EQUAL_K: u8 = 0x15;
pub(crate) const IF_NOT_EQUAL_K: u8 = 0x55;
pub(crate) const IF_ANY_K: u8 = 0x45;
pub(crate) const IF_GREATER: u8 = 0x2d;
/// As numbers of 32 bits with a sign.
pub(crate) const IF_GREATER_K: u8 = 0x66;
pub(crate) const IF_NOT_EQUAL: u8 = 0x5d;
/// A number of 64 bits, the half of which is in an instruction of its own.
const LOAD_LONG: u8 = 0x18;
const MAP_BY_DESCRIPTOR: u8 = 1;

/// A label: its number in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// A program in the making.
#[derive(Debug, Default)]
pub(crate) struct Program {
    instructions: Vec<Instruction>,
    /// Jumps, and where they lead.
    jumps: Vec<(usize, Label)>,
    places: Vec<usize>,
}

impl Program {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn label(&mut self) -> Label {
        self.places.push(0);
        Label(self.places.len() - 1)
    }

    pub(crate) fn here(&mut self, label: Label) {
        self.places[label.0] = self.instructions.len();
    }

    pub(crate) fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, k: i32) {
        self.instructions.push(Instruction { code, registers: from << 4 | to, offset, k });
    }

    pub(crate) fn jump(&mut self, code: u8, to: u8, from: u8, k: i32, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.put(code, to, from, 0, k);
    }

    pub(crate) fn load_map(&mut self, to: u8, map: i32) {
        self.put(LOAD_LONG, to, MAP_BY_DESCRIPTOR, 0, map);
        self.put(0, 0, 0, 0, 0);
    }

    pub(crate) fn load_number(&mut self, to: u8, number: u64) {
        let [a, b, c, d, e, f, g, h] = number.to_le_bytes();
        self.put(LOAD_LONG, to, 0, 0, i32::from_le_bytes([a, b, c, d]));
        self.put(0, 0, 0, 0, i32::from_le_bytes([e, f, g, h]));
    }

    /// The program, its jumps leading where they should.
    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let ahead = self.places[label.0].checked_sub(at + 1).expect("jumps lead ahead");
            self.instructions[at].offset = i16::try_from(ahead).expect("a short program");
        }
        self.instructions
    }
}

//! The programs themselves.
//!
//! What they keep for a socket is two words: whether it was asked for, and the answer (numbers of
//! [`Answer`](super::Answer)). A socket that is accepted begins with a copy of its listener's.

use sys::bpf::Instruction;

use super::{LEVEL, Name, OFFERED, SILENT, SPOKEN, UNKNOWN};
use crate::ebpf::{
    ADD, ADD_K, AND_K, CALL, EXIT, GO, IF_ANY_K, IF_EQUAL_K, IF_GREATER, IF_GREATER_K,
    IF_NOT_EQUAL, IF_NOT_EQUAL_K, LOAD, LOAD_WORD, Label, MOVE, MOVE_K, NETWORK_ORDER, OR_K,
    Program, R0, SHIFT_RIGHT, STACK, STORE_WORD, STORE_WORD_K,
};

// Of `struct bpf_sock_ops`.
const OPERATION: i16 = 0;
const ARGUMENT: i16 = 4;
const REMOTE_PORT: i16 = 64;
const LOCAL_PORT: i16 = 68;
const CALLBACKS: i16 = 84;
const SOCKET: i16 = 184;
const TCP_FLAGS: i16 = 212;

// Values of its first member.
const CONNECT: i32 = 3;
const CONNECTED: i32 = 4;
const ACCEPTED: i32 = 5;
const LISTEN: i32 = 11;
const RESERVE: i32 = 14;
const WRITE: i32 = 15;

/// Among the callbacks: that the kernel asks us about the header of each segment.
const ON_HEADER: i32 = 1 << 6;
/// The argument when the SYN-ACK is a cookie, and nothing of the SYN is kept.
const IS_COOKIE: i32 = 2;
const SYN: i32 = 0x02;
const ACK: i32 = 0x10;

// Of `struct bpf_sockopt`.
const OPTION_SOCKET: i16 = 0;
const VALUE: i16 = 8;
const VALUE_END: i16 = 16;
const OPTION_LEVEL: i16 = 24;
const OPTION_NAME: i16 = 28;
const LENGTH: i16 = 32;
const OUTCOME: i16 = 36;

// Of `struct bpf_sock`.
const PROTOCOL: i16 = 12;
const STATE: i16 = 72;
const TCP_CLOSE: i32 = 7;

// Functions of the kernel.
const MAP_LOOK_UP: i32 = 1;
const SET_OPTION: i32 = 49;
const SET_CALLBACKS: i32 = 59;
const SOCKET_STORAGE: i32 = 107;
const NETWORK_NAMESPACE: i32 = 122;
const FIND_TCP_OPTION: i32 = 142;
const STORE_TCP_OPTION: i32 = 143;
const RESERVE_TCP_OPTION: i32 = 144;

const SOL_TCP: i32 = 6;
const TCP_SAVE_SYN: i32 = 27;
const ENOMSG: i32 = 42;
/// For [`SOCKET_STORAGE`]: make it if there is none.
const MAKE: i32 = 1;
/// For [`FIND_TCP_OPTION`]: in the SYN that came, not in the segment at hand.
const IN_SYN: i32 = 1;
/// The kernel shows a program no more of an option's value.
const SHOWN_MAX: i32 = 4096;

/// The option on the wire: kind 254 (experiments), 6 bytes, "SMCR" in EBCDIC.
pub(super) const OPTION: [u8; 6] = [254, 6, 0xe2, 0xd4, 0xc3, 0xd9];
const OPTION_LEN: i32 = 6;
/// MD5 and TCP-AO signatures, TCP Fast Open: beside these the SYN-ACK may have no room for ours, and data
/// may stand in the SYN before anything of SMC could.
const CROWDING: [i32; 3] = [19, 29, FAST_OPEN];
const FAST_OPEN: i32 = 34;

// Where in a socket's storage.
const ASKED_AT: i16 = 0;
const ANSWER_AT: i16 = 4;

// On the stack.
const KEY_AT: i16 = -4;
const FOUND_AT: i16 = -16;

// Registers that calls leave alone, and the use that each has all through.
const CONTEXT: u8 = 6;
const OP: u8 = 7;
/// Where in a port's rule the direction is: 0 to connect, 2 to listen.
const SHIFT: u8 = 8;
/// The socket, later its storage.
const KEPT: u8 = 9;

/// The maps that programs name.
#[derive(Clone, Copy)]
pub(super) struct Maps {
    /// Rules by port, [`super::Rule`] in two bits each; port 0 is for all others.
    pub(super) ports: i32,
    /// What is kept for a socket.
    pub(super) sockets: i32,
}

fn call(p: &mut Program, function: i32) {
    p.put(CALL, 0, 0, 0, function);
}

fn load(p: &mut Program, to: u8, at: i16) {
    p.put(LOAD_WORD, to, CONTEXT, at, 0);
}

/// Answers what the socket in `KEPT` has in store, then in `KEPT`; without any goes to `none`.
fn storage(p: &mut Program, maps: Maps, none: Label) {
    p.load_map(1, maps.sockets);
    p.put(MOVE, 2, KEPT, 0, 0);
    p.put(MOVE_K, 3, 0, 0, 0);
    call(p, SOCKET_STORAGE);
    p.jump(IF_EQUAL_K, R0, 0, 0, none);
    p.put(MOVE, KEPT, R0, 0, 0);
}

/// Goes to `other` unless the socket's answer is that it has offered.
fn need_offered(p: &mut Program, maps: Maps, other: Label) {
    p.put(LOAD, KEPT, CONTEXT, SOCKET, 0);
    p.jump(IF_EQUAL_K, KEPT, 0, 0, other);
    p.put(MOVE_K, 4, 0, 0, 0);
    storage(p, maps, other);
    p.put(LOAD_WORD, 1, KEPT, ANSWER_AT, 0);
    p.jump(IF_NOT_EQUAL_K, 1, 0, OFFERED, other);
}

fn put_answer(p: &mut Program, answer: i32) {
    p.put(STORE_WORD_K, KEPT, 0, ANSWER_AT, answer);
}

/// Leaves the answer of [`FIND_TCP_OPTION`] in `R0`: the option's length, or a negative errno.
fn find(p: &mut Program, words: [i32; 2], len: i32, place: i32) {
    p.put(STORE_WORD_K, STACK, 0, FOUND_AT, words[0]);
    p.put(STORE_WORD_K, STACK, 0, FOUND_AT + 4, words[1]);
    p.put(MOVE, 1, CONTEXT, 0, 0);
    p.put(MOVE, 2, STACK, 0, 0);
    p.put(ADD_K, 2, 0, 0, i32::from(FOUND_AT));
    p.put(MOVE_K, 3, 0, 0, len);
    p.put(MOVE_K, 4, 0, 0, place);
    call(p, FIND_TCP_OPTION);
}

/// Our option as words of memory.
const fn words() -> [i32; 2] {
    let [a, b, c, d, e, f] = OPTION;
    [i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, 0, 0])]
}

/// Goes to `absent` unless our option is at that place.
fn need_option(p: &mut Program, place: i32, absent: Label) {
    find(p, words(), OPTION_LEN, place);
    p.jump(IF_NOT_EQUAL_K, R0, 0, OPTION_LEN, absent);
}

/// Goes to `there` if an option of this kind is at that place, or it cannot be said.
fn need_no(p: &mut Program, kind: i32, place: i32, there: Label) {
    find(p, [kind.to_le(), 0], 2, place);
    p.jump(IF_NOT_EQUAL_K, R0, 0, -ENOMSG, there);
}

/// Goes to `no` unless the SYN that came has our option and lets us answer. Asked of one SYN this says
/// the same each time, so what the SYN-ACK says is what the accepted socket says.
fn need_answerable(p: &mut Program, no: Label) {
    need_option(p, IN_SYN, no);
    for kind in CROWDING {
        need_no(p, kind, IN_SYN, no);
    }
}

/// Adds the option to SYN and SYN-ACK of sockets that are to have it, and sees whether the peer did. `netns`: of the sockets
/// of this network namespace alone. A listener is not known where its SYN-ACK is written, and one of another namespace may
/// have asked an engine there that is gone.
pub(super) fn socket_operations(maps: Maps, netns: Option<u64>) -> Vec<Instruction> {
    let mut p = Program::new();
    let [connect, listen, choose, header, established, end] = [(); 6].map(|()| p.label());
    p.put(MOVE, CONTEXT, 1, 0, 0);
    if let Some(netns) = netns {
        call(&mut p, NETWORK_NAMESPACE);
        p.load_number(1, netns);
        p.jump(IF_NOT_EQUAL, R0, 1, 0, end);
    }
    load(&mut p, OP, OPERATION);
    for (operation, to) in [
        (RESERVE, header),
        (WRITE, header),
        (CONNECT, connect),
        (LISTEN, listen),
        (CONNECTED, established),
        (ACCEPTED, established),
    ] {
        p.jump(IF_EQUAL_K, OP, 0, operation, to);
    }
    p.jump(GO, 0, 0, 0, end);

    p.here(connect);
    load(&mut p, 1, REMOTE_PORT);
    p.put(NETWORK_ORDER, 1, 0, 0, 32);
    p.put(MOVE_K, SHIFT, 0, 0, 0);
    p.jump(GO, 0, 0, 0, choose);
    p.here(listen);
    load(&mut p, 1, LOCAL_PORT);
    p.put(MOVE_K, SHIFT, 0, 0, 2);
    p.here(choose);
    begin(&mut p, maps, end);

    p.here(header);
    on_header(&mut p, maps, end);

    p.here(established);
    on_established(&mut p, maps, end);

    p.here(end);
    p.put(MOVE_K, R0, 0, 0, 1);
    p.put(EXIT, 0, 0, 0, 0);
    p.finish()
}

/// A socket begins to connect or to listen; its port is in register 1.
fn begin(p: &mut Program, maps: Maps, end: Label) {
    let [have_rule, ruled, chosen, not_chosen, offer] = [(); 5].map(|()| p.label());
    p.put(LOAD, KEPT, CONTEXT, SOCKET, 0);
    p.jump(IF_EQUAL_K, KEPT, 0, 0, end);
    p.put(STORE_WORD, STACK, 1, KEY_AT, 0);
    look_up_port(p, maps);
    p.jump(IF_NOT_EQUAL_K, R0, 0, 0, have_rule);
    p.put(STORE_WORD_K, STACK, 0, KEY_AT, 0);
    look_up_port(p, maps);
    p.jump(IF_NOT_EQUAL_K, R0, 0, 0, have_rule);
    p.put(MOVE_K, OP, 0, 0, super::WHEN_ASKED);
    p.jump(GO, 0, 0, 0, ruled);
    p.here(have_rule);
    p.put(LOAD_WORD, OP, R0, 0, 0);
    p.put(SHIFT_RIGHT, OP, SHIFT, 0, 0);
    p.put(AND_K, OP, 0, 0, 3);
    p.here(ruled);
    // The operation is known by now: from here on its register holds the rule. "Always" is 1, which
    // is also the flag that makes storage.
    p.put(MOVE, 4, OP, 0, 0);
    p.put(AND_K, 4, 0, 0, MAKE);
    storage(p, maps, end);
    p.jump(IF_EQUAL_K, OP, 0, super::ALWAYS, chosen);
    p.jump(IF_EQUAL_K, OP, 0, super::NEVER, not_chosen);
    p.put(LOAD_WORD, 1, KEPT, ASKED_AT, 0);
    p.jump(IF_NOT_EQUAL_K, 1, 0, 0, chosen);

    p.here(not_chosen);
    // An earlier connect of the same socket may have been chosen, and have failed.
    p.put(LOAD_WORD, OP, KEPT, ANSWER_AT, 0);
    put_answer(p, UNKNOWN);
    p.jump(IF_NOT_EQUAL_K, OP, 0, OFFERED, end);
    set_callbacks(p, AND_K, !ON_HEADER);
    p.jump(GO, 0, 0, 0, end);

    p.here(chosen);
    p.jump(IF_EQUAL_K, SHIFT, 0, 0, offer);
    // Accepted sockets look at the SYN that they came from.
    put_answer(p, UNKNOWN);
    p.put(STORE_WORD_K, STACK, 0, KEY_AT, 1);
    p.put(MOVE, 1, CONTEXT, 0, 0);
    p.put(MOVE_K, 2, 0, 0, SOL_TCP);
    p.put(MOVE_K, 3, 0, 0, TCP_SAVE_SYN);
    stack(p, 4, KEY_AT);
    p.put(MOVE_K, 5, 0, 0, 4);
    call(p, SET_OPTION);
    p.jump(IF_NOT_EQUAL_K, R0, 0, 0, end);
    p.here(offer);
    put_answer(p, OFFERED);
    set_callbacks(p, OR_K, ON_HEADER);
    p.jump(GO, 0, 0, 0, end);
}

fn look_up_port(p: &mut Program, maps: Maps) {
    p.load_map(1, maps.ports);
    stack(p, 2, KEY_AT);
    call(p, MAP_LOOK_UP);
}

fn stack(p: &mut Program, to: u8, at: i16) {
    p.put(MOVE, to, STACK, 0, 0);
    p.put(ADD_K, to, 0, 0, i32::from(at));
}

/// Sets or clears what the kernel calls us for.
fn set_callbacks(p: &mut Program, how: u8, bits: i32) {
    load(p, 2, CALLBACKS);
    p.put(how, 2, 0, 0, bits);
    p.put(MOVE, 1, CONTEXT, 0, 0);
    call(p, SET_CALLBACKS);
}

/// A header is about to be written: room is asked for first, and then used.
fn on_header(p: &mut Program, maps: Maps, end: Label) {
    let [answer, go_on, write] = [(); 3].map(|()| p.label());
    load(p, SHIFT, TCP_FLAGS);
    p.put(MOVE, 1, SHIFT, 0, 0);
    p.put(AND_K, 1, 0, 0, SYN);
    p.jump(IF_EQUAL_K, 1, 0, 0, end);
    p.jump(IF_ANY_K, SHIFT, 0, ACK, answer);
    need_offered(p, maps, end);
    p.jump(IF_EQUAL_K, OP, 0, RESERVE, go_on);
    need_no(p, FAST_OPEN, 0, end);
    p.jump(GO, 0, 0, 0, go_on);

    p.here(answer);
    load(p, 1, ARGUMENT);
    p.jump(IF_EQUAL_K, 1, 0, IS_COOKIE, end);
    need_answerable(p, end);

    p.here(go_on);
    p.jump(IF_EQUAL_K, OP, 0, WRITE, write);
    p.put(MOVE, 1, CONTEXT, 0, 0);
    p.put(MOVE_K, 2, 0, 0, OPTION_LEN);
    p.put(MOVE_K, 3, 0, 0, 0);
    // Without room the segment goes without, and the connection is plain TCP.
    call(p, RESERVE_TCP_OPTION);
    p.jump(GO, 0, 0, 0, end);
    p.here(write);
    p.put(STORE_WORD_K, STACK, 0, FOUND_AT, words()[0]);
    p.put(STORE_WORD_K, STACK, 0, FOUND_AT + 4, words()[1]);
    p.put(MOVE, 1, CONTEXT, 0, 0);
    stack(p, 2, FOUND_AT);
    p.put(MOVE_K, 3, 0, 0, OPTION_LEN);
    p.put(MOVE_K, 4, 0, 0, 0);
    call(p, STORE_TCP_OPTION);
    p.jump(GO, 0, 0, 0, end);
}

/// The handshake is over: what did the peer say? From now on headers are the kernel's business.
fn on_established(p: &mut Program, maps: Maps, end: Label) {
    let [accepted, inherited, silent, done] = [(); 4].map(|()| p.label());
    need_offered(p, maps, inherited);
    p.jump(IF_EQUAL_K, OP, 0, ACCEPTED, accepted);
    need_option(p, 0, silent);
    put_answer(p, SPOKEN);
    p.jump(GO, 0, 0, 0, done);
    // A listener that has asked programs that are gone: the kernel calls us for it, and what stands in the SYN-ACK
    // is told without a look at the listener, which cannot be had there. What is promised has to be known here.
    p.here(inherited);
    p.jump(IF_NOT_EQUAL_K, OP, 0, ACCEPTED, end);
    load(p, 1, CALLBACKS);
    p.put(AND_K, 1, 0, 0, ON_HEADER);
    p.jump(IF_EQUAL_K, 1, 0, 0, end);
    p.put(LOAD, KEPT, CONTEXT, SOCKET, 0);
    p.jump(IF_EQUAL_K, KEPT, 0, 0, end);
    p.put(MOVE_K, 4, 0, 0, MAKE);
    storage(p, maps, end);
    p.here(accepted);
    need_answerable(p, silent);
    put_answer(p, SPOKEN);
    p.jump(GO, 0, 0, 0, done);
    p.here(silent);
    put_answer(p, SILENT);
    p.here(done);
    set_callbacks(p, AND_K, !ON_HEADER);
}

/// Begins a program for socket options: goes to `other` unless it is ours, of this name, on a TCP
/// socket, with four bytes for a value. The socket is in `KEPT` then, the place of the value in `OP`.
fn need_ours(p: &mut Program, name: Name, other: Label) {
    p.put(MOVE, CONTEXT, 1, 0, 0);
    load(p, 1, OPTION_LEVEL);
    p.jump(IF_NOT_EQUAL_K, 1, 0, LEVEL, other);
    load(p, 1, OPTION_NAME);
    p.jump(IF_NOT_EQUAL_K, 1, 0, name.number(), other);
    p.put(LOAD, OP, CONTEXT, VALUE, 0);
    p.put(LOAD, 2, CONTEXT, VALUE_END, 0);
    p.put(MOVE_K, 1, 0, 0, 4);
    p.put(ADD, 1, OP, 0, 0);
    p.jump(IF_GREATER, 1, 2, 0, other);
    p.put(LOAD, KEPT, CONTEXT, OPTION_SOCKET, 0);
    p.jump(IF_EQUAL_K, KEPT, 0, 0, other);
    p.put(LOAD_WORD, 1, KEPT, PROTOCOL, 0);
    p.jump(IF_NOT_EQUAL_K, 1, 0, SOL_TCP, other);
}

/// Ends a program for socket options: those of others go on to the kernel as they are.
fn end_options(p: &mut Program, other: Label) {
    let pass = p.label();
    p.here(other);
    // A value longer than what is shown to programs would be cut, or refused, unless we say that we
    // have not looked.
    load(p, 1, LENGTH);
    p.put(MOVE_K, 2, 0, 0, 0);
    p.jump(IF_GREATER_K, 1, 0, SHOWN_MAX, pass);
    p.put(MOVE_K, R0, 0, 0, 1);
    p.put(EXIT, 0, 0, 0, 0);
    p.here(pass);
    p.put(STORE_WORD, CONTEXT, 2, LENGTH, 0);
    p.put(MOVE_K, R0, 0, 0, 1);
    p.put(EXIT, 0, 0, 0, 0);
}

/// `setsockopt(fd, LEVEL, name, 1)`.
pub(super) fn ask(maps: Maps, name: Name) -> Vec<Instruction> {
    let mut p = Program::new();
    let [other, refuse, off] = [(); 3].map(|()| p.label());
    need_ours(&mut p, name, other);
    p.put(LOAD_WORD, OP, OP, 0, 0);
    p.put(LOAD_WORD, 1, KEPT, STATE, 0);
    p.jump(IF_NOT_EQUAL_K, 1, 0, TCP_CLOSE, refuse);
    p.put(MOVE_K, 4, 0, 0, MAKE);
    storage(&mut p, maps, refuse);
    p.jump(IF_EQUAL_K, OP, 0, 0, off);
    p.put(MOVE_K, OP, 0, 0, 1);
    p.here(off);
    p.put(STORE_WORD, KEPT, OP, ASKED_AT, 0);
    // The kernel need not see it.
    p.put(MOVE_K, 1, 0, 0, -1);
    p.put(STORE_WORD, CONTEXT, 1, LENGTH, 0);
    p.put(MOVE_K, R0, 0, 0, 1);
    p.put(EXIT, 0, 0, 0, 0);
    p.here(refuse);
    p.put(MOVE_K, R0, 0, 0, 0);
    p.put(EXIT, 0, 0, 0, 0);
    end_options(&mut p, other);
    p.finish()
}

/// `getsockopt(fd, LEVEL, name)`.
pub(super) fn answer(maps: Maps, name: Name) -> Vec<Instruction> {
    let mut p = Program::new();
    let [other, none, tell] = [(); 3].map(|()| p.label());
    need_ours(&mut p, name, other);
    p.put(MOVE_K, 4, 0, 0, 0);
    storage(&mut p, maps, none);
    p.put(LOAD_WORD, 1, KEPT, ANSWER_AT, 0);
    p.jump(GO, 0, 0, 0, tell);
    p.here(none);
    p.put(MOVE_K, 1, 0, 0, UNKNOWN);
    p.here(tell);
    p.put(STORE_WORD, OP, 1, 0, 0);
    p.put(MOVE_K, 1, 0, 0, 4);
    p.put(STORE_WORD, CONTEXT, 1, LENGTH, 0);
    // The kernel itself did not know the option.
    p.put(MOVE_K, 1, 0, 0, 0);
    p.put(STORE_WORD, CONTEXT, 1, OUTCOME, 0);
    p.put(MOVE_K, R0, 0, 0, 1);
    p.put(EXIT, 0, 0, 0, 0);
    end_options(&mut p, other);
    p.finish()
}

//! What C is told of packets that call for a message of ICMP.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use shunt_frag::{Config, Notice, Packet, Sink};

/// (version, type, code, pointer, bytes of the header, whether its buffer was named)
type Said = (u8, u8, u8, u32, usize, bool);

unsafe extern "C" fn notice(context: *mut c_void, notice: *const Notice) {
    // SAFETY: `said` hands in its list.
    let said = unsafe { &mut *context.cast::<Vec<Said>>() };
    // SAFETY: the library's promise.
    let n = unsafe { notice.read() };
    let named = !n.buffer.is_null() && n.bytes.is_null();
    said.push((n.version, n.icmp_type, n.icmp_code, n.pointer, n.header_len, named));
}

/// What is said of a packet, with RFC 7112 or without.
fn said(packet: &[u8], whole_header: bool) -> Vec<Said> {
    said_of((packet, packet.as_ptr().cast_mut().cast()), whole_header)
}

/// The same, with a handle.
fn said_of((packet, buffer): (&[u8], *mut c_void), whole_header: bool) -> Vec<Said> {
    let mut config = MaybeUninit::<Config>::uninit();
    let mut said: Vec<Said> = Vec::new();
    let context = (&raw mut said).cast();
    let sink = Sink { context, whole: None, datagram: None, release: None, notice: Some(notice) };
    let (bytes, len) = (packet.as_ptr(), packet.len());
    let arrival = Packet { bytes, len, buffer, cost: 2048, scope: 0 };
    // SAFETY: room for a config.
    unsafe { shunt_frag::shunt_frag_defaults(config.as_mut_ptr()) };
    // SAFETY: it was filled in.
    let config = Config { whole_header, copy_below: 0, ..unsafe { config.assume_init() } };
    // SAFETY: a valid config.
    let ledger = unsafe { shunt_frag::shunt_frag_ledger_new(&raw const config) };
    // SAFETY: a ledger, and 16 bytes.
    let shard = unsafe { shunt_frag::shunt_frag_new(ledger, [7; 16].as_ptr()) };
    // SAFETY: one packet, which outlives the shard.
    unsafe { shunt_frag::shunt_frag_push(shard, &raw const arrival, 1, 0, &raw const sink) };
    // SAFETY: not used again.
    unsafe { shunt_frag::shunt_frag_free(shard) };
    // SAFETY: not used again.
    unsafe { shunt_frag::shunt_frag_ledger_free(ledger) };
    said
}

/// An IPv6 packet with a fragment header, that field in it, and zeros behind.
fn fragment(next: u8, offset_and_more: u16, len: u8) -> Vec<u8> {
    let mut packet = vec![0; 48 + usize::from(len)];
    (packet[0], packet[5], packet[6], packet[40]) = (0x60, 8 + len, 44, next);
    packet[42..44].copy_from_slice(&offset_and_more.to_be_bytes());
    packet
}

#[test]
fn c_is_told_type_code_and_pointer() {
    const TCP: u8 = 6;
    let header_is_cut = fragment(TCP, 1, 8);
    assert_eq!(said(&header_is_cut, true), [(6, 4, 3, 0, 40, true)]);
    assert_eq!(said(&header_is_cut, false), [], "nobody asked for RFC 7112");
    assert_eq!(said(&fragment(TCP, 1, 21), true), [(6, 4, 0, 4, 40, true)], "no multiple of 8");
    assert_eq!(said(&fragment(TCP, 0xfff9, 16), true), [(6, 4, 0, 42, 40, true)], "too long");
    assert_eq!(said(&fragment(TCP, 1, 24), true), []);
    assert_eq!(said_of((&header_is_cut, std::ptr::null_mut()), true), [], "it is passed over");
}

//! The engine of IP fragment reassembly for C: what its header declares.
//!
#![doc = include_str!("../README.md")]
//!
//! # In Rust
//!
//! Nothing of the engine is here, only its face. A caller that breaks a rule of the header (a null pointer,
//! a shard on two threads) gets what C gives; whatever packets say is checked by the engine.

// Pointers come from C; each function says in its `# Safety` what they must be.
use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use frag::wire;
use frag::{Arrival, HashKey, Policy, Reason, Released};

/// What may be set. Fill it with `shunt_frag_defaults` first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    /// Most memory that fragments may hold over all shards, bytes. Never exceeded; what each shard has beside it, the
    /// same whatever comes, says `shunt_frag_beside_bytes`.
    pub memory_bytes: u64,
    /// Shards (cores) that share it.
    pub shards: u32,
    /// Most datagrams in progress over all shards.
    pub datagrams_max: u32,
    /// Most fragments of one datagram.
    pub fragments_max: u16,
    /// Payload bytes that a fragment which is not the last must have.
    pub fragment_min: u16,
    /// Payloads smaller than this are copied, so that they do not pin a buffer; 0: never.
    pub copy_below: u16,
    /// What to do where fragments overlap: 0 give the datagram up (RFC 5722), 1 first, 2 last, 3 bsd,
    /// 4 bsd-right, 5 linux, 6 windows, 7 solaris.
    pub overlap: u16,
    /// How long a datagram may take from its first fragment on, nanoseconds, IPv4.
    pub timeout_v4_ns: u64,
    /// IPv6.
    pub timeout_v6_ns: u64,
    /// Whether a first fragment of IPv6 must hold all headers up to that of the transport (RFC 7112).
    pub whole_header: bool,
}

/// Memory that shards share.
#[derive(Debug)]
pub struct Ledger {
    limits: frag::Limits,
    ledger: Arc<frag::Ledger>,
}

/// What one core owns. Not to be used by two threads at once.
#[derive(Debug)]
pub struct Shard(frag::Shard<Handle>);

/// Which shard the fragments of a datagram go to: the same on every core. May be used by all at once.
#[derive(Debug)]
pub struct Steering(frag::Steering);

/// What `shunt_frag_steer` answers of what belongs to no shard.
pub const SHUNT_FRAG_NO_SHARD: u32 = 0xffff_ffff;

/// The caller's buffer; never looked into.
#[derive(Clone, Copy, Debug)]
struct Handle(NonNull<c_void>);

/// A packet that has come in.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Packet {
    /// Its bytes from the IP header on. Padding of the link may follow.
    pub bytes: *const u8,
    /// How many.
    pub len: usize,
    /// The caller's handle for where they are; a packet whose handle is null is passed over. They must stay there until it is
    /// released.
    pub buffer: *mut c_void,
    /// Memory that keeping the buffer costs, bytes: the size of the frame, not of the packet.
    pub cost: u32,
    /// VLAN, VRF, channel: fragments of two scopes never meet.
    pub scope: u64,
}

/// Some bytes of a datagram's payload.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Slice {
    /// The caller's buffer where they are; null if they were copied. With an `overlap` other than 0 other slices of the
    /// datagram may be of the same buffer: what is between them came in another fragment.
    pub buffer: *mut c_void,
    /// In a buffer: offset from the packet's first byte.
    pub at: usize,
    /// They were copied if this is not null, and are here during the call.
    pub bytes: *const u8,
    /// How many.
    pub len: usize,
}

/// A complete datagram, valid during the call that hands it out.
#[derive(Debug)]
#[repr(C)]
pub struct Datagram {
    /// The IP header to use.
    pub header: *const u8,
    /// Its bytes.
    pub header_len: usize,
    /// Bytes of payload behind it.
    pub payload_len: usize,
    /// Where those are, in order.
    pub slices: *const Slice,
    /// How many slices.
    pub slice_count: usize,
    /// Fragments that it came in.
    pub fragments: u16,
}

/// A message that a host or router should send, if it sends such messages and has not sent too many. Valid
/// during the call that hands it out.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Notice {
    /// Of the packet that it is about, and of the message: 4 or 6.
    pub version: u8,
    /// Type of the message: time exceeded (11, of ICMPv6 3) or parameter problem (12, of ICMPv6 4).
    pub icmp_type: u8,
    /// Its code.
    pub icmp_code: u8,
    /// Of a parameter problem: the byte of the packet that is wrong. Else 0.
    pub pointer: u32,
    /// The header of the first fragment, or of the fragment that no datagram can have, to quote from.
    pub header: *const u8,
    /// Its bytes.
    pub header_len: usize,
    /// The caller's buffer with that fragment, not released yet; null if its payload was copied.
    pub buffer: *mut c_void,
    /// The payload was copied if this is not null, and is here during the call.
    pub bytes: *const u8,
    /// How many bytes of it.
    pub len: usize,
}

/// Where a shard says what it has done. All functions are called from within `shunt_frag_push`,
/// `shunt_frag_expire` and `shunt_frag_clear`, and must not call any function with the shard that calls.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Sink {
    /// Handed to each function.
    pub context: *mut c_void,
    /// A packet that is no fragment; `len` of its bytes belong to it.
    pub whole: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize)>,
    /// A datagram is complete. Its buffers are released after this returns.
    pub datagram: Option<unsafe extern "C" fn(*mut c_void, *const Datagram)>,
    /// A buffer is free again. The last argument is 0 when its datagram was handed out or its bytes were
    /// copied, else the reason for which it was dropped: see `shunt_frag_reason`.
    pub release: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u8)>,
    /// A message of ICMP is to be sent.
    pub notice: Option<unsafe extern "C" fn(*mut c_void, *const Notice)>,
}

/// What a shard has seen and done.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Counters {
    /// Packets that were no fragments.
    pub whole: u64,
    /// Fragments, good or bad.
    pub fragments: u64,
    /// Datagrams put together.
    pub datagrams: u64,
    /// Bytes of payload in those.
    pub bytes: u64,
    /// Datagrams in progress.
    pub in_progress: u64,
    /// Bytes of memory in use by them.
    pub memory_bytes: u64,
    /// Fragments dropped on their own, by number of the reason.
    pub fragments_dropped: [u64; 32],
    /// Datagrams given up, by number of the reason.
    pub datagrams_dropped: [u64; 32],
}

/// Fills in the settings that suit a host.
///
/// # Safety
///
/// `config` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_defaults(config: *mut Config) {
    let d = frag::Config::default();
    let filled = Config {
        memory_bytes: d.memory_bytes,
        shards: d.shards,
        datagrams_max: d.datagrams_max,
        fragments_max: d.fragments_max,
        fragment_min: d.fragment_min,
        copy_below: d.copy_below,
        overlap: 0,
        timeout_v4_ns: d.timeout_v4_ns,
        timeout_v6_ns: d.timeout_v6_ns,
        whole_header: d.whole_header,
    };
    // SAFETY: the caller's promise.
    unsafe { config.write(filled) };
}

/// Says why `shunt_frag_ledger_new` would answer null: writes it to `why`, of which `room` bytes are there, with a zero
/// at its end, and cut if it is longer. Answers how many bytes all of it has, without the zero; 0: all settings can be.
///
/// # Safety
///
/// `config` is valid for reading, `why` for writing `room` bytes; it may be null if `room` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_check(
    config: *const Config,
    why: *mut c_char,
    room: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let config = unsafe { config.read() };
    let words = limits(&config).err().unwrap_or_default();
    if let Some(most) = room.checked_sub(1) {
        let len = words.len().min(most);
        // SAFETY: the caller's promise: one more than that is there.
        unsafe { why.cast::<u8>().copy_from_nonoverlapping(words.as_ptr(), len) };
        // SAFETY: likewise.
        unsafe { why.add(len).write(0) };
    }
    words.len()
}

/// Memory for as many shards as `config` says. Null: a setting cannot be; `shunt_frag_check` says which. Never freed
/// before its shards.
///
/// # Safety
///
/// `config` is valid for reading.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_ledger_new(config: *const Config) -> *mut Ledger {
    // SAFETY: the caller's promise.
    let config = unsafe { config.read() };
    let Ok(limits) = limits(&config) else { return std::ptr::null_mut() };
    let ledger = frag::Ledger::of(&limits);
    Box::into_raw(Box::new(Ledger { limits, ledger }))
}

/// The settings, checked, or what is wrong with them.
fn limits(c: &Config) -> Result<frag::Limits, String> {
    let Some(overlap) = Policy::ALL.get(usize::from(c.overlap)) else {
        return Err(format!("overlap is {}: 0 to {}", c.overlap, Policy::ALL.len() - 1));
    };
    let config = frag::Config {
        memory_bytes: c.memory_bytes,
        shards: c.shards,
        datagrams_max: c.datagrams_max,
        fragments_max: c.fragments_max,
        fragment_min: c.fragment_min,
        copy_below: c.copy_below,
        timeout_v4_ns: c.timeout_v4_ns,
        timeout_v6_ns: c.timeout_v6_ns,
        overlap: *overlap,
        whole_header: c.whole_header,
    };
    config.limits().map_err(|error| error.to_string())
}

/// The most memory that each shard of a ledger ever takes beside the `memory_bytes` of them all, bytes: to remember
/// sources and what was refused, and for the first datagrams. The same whatever comes.
///
/// # Safety
///
/// `ledger` came from `shunt_frag_ledger_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_beside_bytes(ledger: *const Ledger) -> u64 {
    // SAFETY: the caller's promise.
    frag::Shard::<Handle>::beside_bytes(&unsafe { &*ledger }.limits)
}

/// Frees the caller's hold on a ledger. Null does nothing.
///
/// # Safety
///
/// `ledger` came from `shunt_frag_ledger_new` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_ledger_free(ledger: *mut Ledger) {
    if !ledger.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(ledger) });
    }
}

/// A new shard. `secret`: 16 bytes, drawn at random for each shard.
///
/// # Safety
///
/// `ledger` came from `shunt_frag_ledger_new`; `secret` is valid for reading 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_new(ledger: *const Ledger, secret: *const u8) -> *mut Shard {
    // SAFETY: the caller's promise.
    let ledger = unsafe { &*ledger };
    // SAFETY: the caller's promise.
    let key = unsafe { hash_key(secret) };
    Box::into_raw(Box::new(Shard(frag::Shard::new(&ledger.limits, &ledger.ledger, key))))
}

/// # Safety
///
/// `secret` is valid for reading 16 bytes.
unsafe fn hash_key(secret: *const u8) -> HashKey {
    // SAFETY: the caller's promise.
    let [a, b] = unsafe { secret.cast::<[[u8; 8]; 2]>().read() };
    HashKey::new([u64::from_ne_bytes(a), u64::from_ne_bytes(b)])
}

/// Frees a shard. What it holds is not released: call `shunt_frag_clear` first. Null does nothing.
///
/// # Safety
///
/// `shard` came from `shunt_frag_new`, none of its calls of a `Sink` is under way, and it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_free(shard: *mut Shard) {
    if !shard.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(shard) });
    }
}

/// For programs of several cores to which the fragments of a datagram may come, as where a card hashes ports:
/// each core asks whose a fragment is, and hands it to that core by a ring of its own. `secret`: 16 bytes,
/// drawn at random, another than that of any shard. `shards`: how many; with 0 it is 1.
///
/// # Safety
///
/// `secret` is valid for reading 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_steering_new(secret: *const u8, shards: u32) -> *mut Steering {
    // SAFETY: the caller's promise.
    let key = unsafe { hash_key(secret) };
    Box::into_raw(Box::new(Steering(frag::Steering::new(key, shards))))
}

/// Frees it. Null does nothing.
///
/// # Safety
///
/// `steering` came from `shunt_frag_steering_new` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_steering_free(steering: *mut Steering) {
    if !steering.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(steering) });
    }
}

/// The number of the shard that a fragment goes to, from 0 on. `SHUNT_FRAG_NO_SHARD`: it is no fragment, or
/// makes no sense, and may be pushed where it came in. `bytes` from the IP header on, `len` of them; `scope`
/// as in `shunt_frag_packet`.
///
/// # Safety
///
/// `steering` came from `shunt_frag_steering_new`; `bytes` is valid for reading `len` bytes, or null, which is no fragment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_steer(
    steering: *const Steering,
    bytes: *const u8,
    len: usize,
    scope: u64,
) -> u32 {
    if bytes.is_null() {
        return SHUNT_FRAG_NO_SHARD;
    }
    // SAFETY: the caller's promise.
    let packet = unsafe { std::slice::from_raw_parts(bytes, len) };
    match wire::parse(packet, scope) {
        // SAFETY: the caller's promise.
        Ok(wire::Packet::Fragment(f)) => unsafe { &*steering }.0.shard(&f.key),
        Ok(wire::Packet::Whole(_)) | Err(_) => SHUNT_FRAG_NO_SHARD,
    }
}

/// Takes in packets. `now_ns`: nanoseconds of a clock that does not go back.
///
/// # Safety
///
/// `shard` came from `shunt_frag_new`, `packets` are `count` valid packets, whose bytes stay as they are
/// until their buffer is released, and `sink` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_push(
    shard: *mut Shard,
    packets: *const Packet,
    count: usize,
    now_ns: u64,
    sink: *const Sink,
) {
    // SAFETY: the caller's promise.
    let shard = unsafe { &mut *shard };
    // SAFETY: the caller's promise.
    let mut calls = Calls(unsafe { *sink });
    let mut burst = Vec::with_capacity(count.min(BURST));
    for at in 0..count {
        // SAFETY: one of `count` packets.
        let p = unsafe { packets.add(at).read() };
        let packet = if p.bytes.is_null() {
            &[]
        } else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(p.bytes, p.len) }
        };
        // Without one nothing could be given back.
        let Some(buffer) = NonNull::new(p.buffer).map(Handle) else { continue };
        burst.push(Arrival { packet, buffer, cost: p.cost, scope: p.scope });
        if burst.len() == BURST {
            shard.0.push_burst(&mut burst, now_ns, &mut calls);
        }
    }
    shard.0.push_burst(&mut burst, now_ns, &mut calls);
}

const BURST: usize = 32;

/// Gives up datagrams that have taken too long, at most `most`. Answers when the next one's time ends;
/// `UINT64_MAX`: there is none.
///
/// # Safety
///
/// As `shunt_frag_push`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_expire(
    shard: *mut Shard,
    now_ns: u64,
    most: usize,
    sink: *const Sink,
) -> u64 {
    // SAFETY: the caller's promise.
    let mut calls = Calls(unsafe { *sink });
    // SAFETY: the caller's promise.
    unsafe { &mut *shard }.0.expire(now_ns, most, &mut calls).unwrap_or(u64::MAX)
}

/// Gives up all datagrams in progress, and releases what they hold.
///
/// # Safety
///
/// As `shunt_frag_push`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_clear(shard: *mut Shard, now_ns: u64, sink: *const Sink) {
    // SAFETY: the caller's promise.
    let mut calls = Calls(unsafe { *sink });
    // SAFETY: the caller's promise.
    unsafe { &mut *shard }.0.clear(now_ns, &mut calls);
}

/// What a shard has seen and done.
///
/// # Safety
///
/// `shard` came from `shunt_frag_new`, and none of its calls of a `Sink` is under way; `counters` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_frag_count(shard: *const Shard, counters: *mut Counters) {
    // SAFETY: the caller's promise.
    let shard = unsafe { &*shard };
    let (counts, gauges) = (shard.0.counters(), shard.0.gauges());
    let mut all = Counters {
        whole: counts.whole,
        fragments: counts.fragments,
        datagrams: counts.datagrams,
        bytes: counts.bytes,
        in_progress: u64::from(gauges.datagrams),
        memory_bytes: gauges.memory_bytes,
        fragments_dropped: [0; 32],
        datagrams_dropped: [0; 32],
    };
    for reason in Reason::ALL {
        all.fragments_dropped[*reason as usize] = counts.fragments(*reason);
        all.datagrams_dropped[*reason as usize] = counts.datagrams(*reason);
    }
    // SAFETY: the caller's promise.
    unsafe { counters.write(all) };
}

/// A reason in words; null: there is no reason of that number.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_frag_reason(number: u8) -> *const c_char {
    let at = Reason::ALL.iter().position(|reason| *reason as u8 == number);
    at.map_or(std::ptr::null(), |at| WORDS[at].as_ptr().cast())
}

/// The words of each reason with a zero behind them.
static WORDS: [[u8; WORDS_BYTES]; Reason::ALL.len()] = words();
const WORDS_BYTES: usize = 64;

const fn words() -> [[u8; WORDS_BYTES]; Reason::ALL.len()] {
    let mut all = [[0; WORDS_BYTES]; Reason::ALL.len()];
    let mut reason = 0;
    while reason < all.len() {
        let words = Reason::ALL[reason].words().as_bytes();
        assert!(words.len() < WORDS_BYTES, "no room for the zero");
        let mut at = 0;
        while at < words.len() {
            all[reason][at] = words[at];
            at += 1;
        }
        reason += 1;
    }
    all
}

/// Rust's sink, which calls C's.
struct Calls(Sink);

impl frag::Sink<Handle> for Calls {
    fn whole(&mut self, buffer: Handle, len: usize) {
        if let Some(whole) = self.0.whole {
            // SAFETY: the caller's function, called as the header says.
            unsafe { whole(self.0.context, buffer.0.as_ptr(), len) };
        }
    }

    fn datagram(&mut self, datagram: &frag::Datagram<'_, Handle>) {
        let Some(call) = self.0.datagram else { return };
        let none = std::ptr::null();
        let slice = |slice| match slice {
            frag::Slice::Held { buffer: Handle(buffer), at, len } => {
                Slice { buffer: buffer.as_ptr(), at, bytes: none, len }
            }
            frag::Slice::Copied(bytes) => {
                let (buffer, at) = (std::ptr::null_mut(), 0);
                Slice { buffer, at, bytes: bytes.as_ptr(), len: bytes.len() }
            }
        };
        let slices: Vec<Slice> = datagram.slices().map(slice).collect();
        let datagram = Datagram {
            header: datagram.header().as_ptr(),
            header_len: datagram.header().len(),
            payload_len: datagram.payload_len(),
            slices: slices.as_ptr(),
            slice_count: slices.len(),
            fragments: datagram.fragments(),
        };
        // SAFETY: the caller's function; all pointers are valid until it returns.
        unsafe { call(self.0.context, &raw const datagram) };
    }

    fn release(&mut self, buffer: Handle, why: Released) {
        let Some(release) = self.0.release else { return };
        let number = match why {
            Released::Delivered | Released::Copied => 0,
            Released::Dropped(reason) => reason as u8,
        };
        // SAFETY: the caller's function, called as the header says.
        unsafe { release(self.0.context, buffer.0.as_ptr(), number) };
    }

    fn notice(&mut self, notice: &frag::Notice<'_, Handle>) {
        let Some(call) = self.0.notice else { return };
        let (buffer, bytes, len) = match notice.first {
            Ok(buffer) => (buffer.0.as_ptr(), std::ptr::null(), 0),
            Err(bytes) => (std::ptr::null_mut(), bytes.as_ptr(), bytes.len()),
        };
        let icmp = notice.icmp();
        let notice = Notice {
            version: if notice.key.is_v6() { 6 } else { 4 },
            icmp_type: icmp.message,
            icmp_code: icmp.code,
            pointer: icmp.pointer,
            header: notice.header.as_ptr(),
            header_len: notice.header.len(),
            buffer,
            bytes,
            len,
        };
        // SAFETY: the caller's function; all pointers are valid until it returns.
        unsafe { call(self.0.context, &raw const notice) };
    }
}

//! Programs of the old machine: which frames come in, and which worker gets them.
//!
//! What they read is counted from where the kernel has them begin. For the filter of a ring, which gets frames whole, that
//! is the link's header; for that of a socket which gets packets, and for choosing a worker, it is what the link's header
//! is in front of, tags that the kernel has not taken out among it. The old machine can count from the IP header on
//! (`SKF_NET_OFF`) wherever that is, but before 2025 (Linux commit d4bac0288a2b) it did not find what a driver had left in
//! pages of their own, as some do with all but the first 14 bytes, and the frame was missed.

use sys::bpf::Classic;

use crate::defrag::Link;

/// Bytes of Ethernet's header, and where in it the type is.
const ETHERNET_BYTES: u32 = 14;
const ETHERNET_TYPE: u32 = 12;
/// The type of what the frame holds, as the kernel found it; tags that were taken out are not counted.
const TYPE: u32 = 0xffff_f000;
/// To whom the frame was addressed.
const ADDRESSED: u32 = 0xffff_f004;
const HOST: u32 = 0;
const OTHER_HOST: u32 = 3;
const OUTGOING: u32 = 4;
/// The VLAN tag that was taken out of the frame, and whether there was one (`SKF_AD_VLAN_TAG_PRESENT`).
const TAG: u32 = 0xffff_f02c;
const TAGGED: u32 = 0xffff_f030;
/// Of a tag: the VLAN. 0 is none, the tag says the priority only (IEEE 802.1Q 9.6).
const VLAN: u32 = 0xfff;
const V4: u32 = 0x0800;
const V6: u32 = 0x86dd;
/// 802.1Q, 802.1ad, and what came before that: tags of 4 bytes, which end with the type of what follows.
const TAGS: [u32; 3] = [0x8100, 0x88a8, 0x9100];
const TAG_BYTES: u32 = 4;
/// 6 bytes, and 2 with the protocol in numbers of PPP's (RFC 2516 4, RFC 1661 2).
const PPPOE: u32 = 0x8864;
const PPPOE_BYTES: u32 = 8;
const PPP_V4: u32 = 0x0021;
const PPP_V6: u32 = 0x0057;
/// These may hold a fragment further in.
const NESTED: [u32; 4] = [TAGS[0], TAGS[1], TAGS[2], PPPOE];
const FRAGMENT_HEADER: u32 = 44;
/// Headers that may stand before a fragment header: hop-by-hop, routing, destination.
const EXTENSIONS: [u32; 3] = [0, 43, 60];
const FRAME_MAX: u32 = 0x4_0000;

const LOAD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ANY: u16 = 0x45;
const RETURN: u16 = 0x06;
const RETURN_A: u16 = 0x16;
const LOAD_WORD: u16 = 0x00;
const TO_X: u16 = 0x07;
const FROM_X: u16 = 0x87;
const XOR_X: u16 = 0xac;
const ADD_X: u16 = 0x0c;
const MULTIPLY: u16 = 0x24;
const SHIFT_RIGHT: u16 = 0x74;
const JUMP: u16 = 0x05;

/// A place in a program: what is there, and how far in the frame it is about, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(&'static str, u32);

/// A line of a program whose jumps name where they lead.
#[derive(Clone, Copy)]
enum Line {
    Do(u16, u32),
    /// If true, go there.
    If(u16, u32, Place),
    Go(Place),
    Here(Place),
}

use Line::{Do, Go, Here, If};

const YES: Place = Place("yes", 0);
const NO: Place = Place("no", 0);

/// Lines as instructions.
fn assemble(lines: &[Line]) -> Vec<Classic> {
    let code = |line: &&Line| !matches!(line, Here(_));
    let place = |name: Place| {
        let at = lines.iter().position(|line| matches!(line, Here(label) if *label == name));
        lines[..at.expect("a label that is there")].iter().filter(code).count()
    };
    let mut program = Vec::new();
    for line in lines.iter().filter(code) {
        let ahead = |name| place(name) - program.len() - 1;
        program.push(match *line {
            Do(code, k) => Classic { code, yes: 0, no: 0, k },
            If(code, k, to) => {
                let yes = u8::try_from(ahead(to)).expect("a jump of at most 255");
                Classic { code, yes, no: 0, k }
            }
            Go(to) => {
                let k = u32::try_from(ahead(to)).expect("a short program");
                Classic { code: JUMP, yes: 0, no: 0, k }
            }
            Here(_) => unreachable!("filtered out"),
        });
    }
    program
}

/// Lets in fragments that come from outside, and what may hold some. Frames to other hosts come to an interface that
/// somebody else has made promiscuous, too, and are not let in unless `of_others`. For a ring, of a link of this kind.
pub(crate) fn fragments(link: Link, of_others: bool) -> Vec<Classic> {
    let mut lines = vec![Do(LOAD, ADDRESSED), If(JUMP_EQUAL, OUTGOING, NO)];
    lines.extend((!of_others).then_some(If(JUMP_EQUAL, OTHER_HOST, NO)));
    let (kind, ip) = match link {
        Link::Ethernet => (Do(LOAD_HALF, ETHERNET_TYPE), ETHERNET_BYTES),
        // Nothing is in front of it.
        _ => (Do(LOAD, TYPE), 0),
    };
    lines.push(kind);
    lines.extend(NESTED.map(|kind| If(JUMP_EQUAL, kind, YES)));
    lines.extend(fragments_of_ip(ip));
    assemble(&lines)
}

/// Lets in fragments that the interface's own IP would take: frames to this host, of no VLAN. For a socket that gets
/// packets.
pub(crate) fn fragments_to_us() -> Vec<Classic> {
    let mut lines = vec![
        Do(LOAD, ADDRESSED),
        If(JUMP_EQUAL, HOST, Place("host", 0)),
        Go(NO),
        Here(Place("host", 0)),
        Do(LOAD, TAGGED),
        If(JUMP_EQUAL, 0, Place("own", 0)),
        // Another interface's, or nobody's.
        Do(LOAD, TAG),
        If(JUMP_ANY, VLAN, NO),
        Here(Place("own", 0)),
        Do(LOAD, TYPE),
    ];
    lines.extend(fragments_of_ip(0));
    assemble(&lines)
}

/// Whether a frame of the type that is loaded holds a fragment, its IP header being at `at`: the end of a filter, with
/// places [`YES`] and [`NO`].
fn fragments_of_ip(at: u32) -> Vec<Line> {
    const IPV4: Place = Place("v4", 0);
    const IPV6: Place = Place("v6", 0);
    let mut lines = vec![
        If(JUMP_EQUAL, V4, IPV4),
        If(JUMP_EQUAL, V6, IPV6),
        Go(NO),
        Here(IPV4),
        // Offset or "more fragments".
        Do(LOAD_HALF, at + 6),
        If(JUMP_ANY, 0x3fff, YES),
        Go(NO),
        Here(IPV6),
        Do(LOAD_BYTE, at + 6),
        If(JUMP_EQUAL, FRAGMENT_HEADER, YES),
    ];
    lines.extend(EXTENSIONS.map(|header| If(JUMP_EQUAL, header, YES)));
    lines.extend([Here(NO), Do(RETURN, 0), Here(YES), Do(RETURN, FRAME_MAX)]);
    lines
}

/// Halves of words that may be hashed: two addresses of IPv6 and an identification.
const HALVES: usize = 18;
/// What [`spread`] goes by: a number for each half, one that all begins with, and one for the end.
pub(super) const SECRETS: usize = HALVES + 2;

/// Answers a number that is the same for all fragments of a datagram; the kernel takes it modulo the
/// number of workers. It is made of addresses and identification, never of ports, which only first
/// fragments have. What has its IP header behind more than two tags, or in what is not known here, goes to the first
/// worker, all of it.
///
/// Each 16 bits are multiplied by a secret of their own, and of the sum the upper half counts: whoever does not know the
/// secrets can choose no two datagrams of which they go to one worker more often than by chance (multilinear hashing,
/// Lemire and Kaser, "Strongly universal string hashing is fast", section 3.1). What is added to one secret, or is
/// mixed before one comes in, could be aimed.
pub(super) fn spread(secrets: &[u32; SECRETS]) -> Vec<Classic> {
    const OTHER: Place = Place("other", 0);
    const END: Place = Place("end", 0);
    // Behind no tag, one (which is a second, if the kernel took one out), or two; and PPPoE behind each.
    const TAGGED_BY: [u32; 3] = [0, TAG_BYTES, 2 * TAG_BYTES];
    const DEPTHS: [u32; 5] = [0, 4, 8, 12, 16];
    let mut lines = vec![Do(LOAD, TYPE)];
    for depth in TAGGED_BY {
        lines.extend([
            If(JUMP_EQUAL, V4, Place("is v4", depth)),
            If(JUMP_EQUAL, V6, Place("is v6", depth)),
            If(JUMP_EQUAL, PPPOE, Place("is PPPoE", depth)),
        ]);
        lines.extend(TAGS.map(|kind| If(JUMP_EQUAL, kind, Place("is tag", depth))));
        lines.extend([
            Go(OTHER),
            // A jump that depends on something reaches no further than 255 lines.
            Here(Place("is v4", depth)),
            Go(Place("v4", depth)),
            Here(Place("is v6", depth)),
            Go(Place("v6", depth)),
            Here(Place("is PPPoE", depth)),
            Do(LOAD_HALF, depth + PPPOE_BYTES - 2),
            If(JUMP_EQUAL, PPP_V4, Place("holds v4", depth)),
            If(JUMP_EQUAL, PPP_V6, Place("holds v6", depth)),
            Go(OTHER),
            Here(Place("holds v4", depth)),
            Go(Place("v4", depth + PPPOE_BYTES)),
            Here(Place("holds v6", depth)),
            Go(Place("v6", depth + PPPOE_BYTES)),
            Here(Place("is tag", depth)),
            Do(LOAD_HALF, depth + TAG_BYTES - 2),
        ]);
    }
    lines.extend([Here(OTHER), Do(RETURN, 0)]);
    for depth in DEPTHS {
        let (begin, keys) = (secrets[HALVES], &secrets[..HALVES]);
        // Addresses and identification.
        lines.extend([Here(Place("v4", depth)), Do(LOAD_WORD, begin)]);
        lines.extend(added(depth, &[12, 14, 16, 18, 4], keys));
        lines.extend([Go(END), Here(Place("v6", depth)), Do(LOAD_WORD, begin)]);
        let addresses: Vec<u32> = (8..40).step_by(2).collect();
        lines.extend(added(depth, &addresses, keys));
        lines.extend([
            Do(TO_X, 0),
            Do(LOAD_BYTE, depth + 6),
            If(JUMP_EQUAL, FRAGMENT_HEADER, Place("identified", depth)),
            // Somewhere behind other headers: the addresses have to do.
            Do(FROM_X, 0),
            Go(END),
            Here(Place("identified", depth)),
            Do(FROM_X, 0),
        ]);
        lines.extend(added(depth, &[44, 46], &keys[addresses.len()..]));
        lines.push(Go(END));
    }
    lines.extend([
        Here(END),
        // Sums of what differs in little lie in regular distances: not after this.
        Do(TO_X, 0),
        Do(SHIFT_RIGHT, 16),
        Do(XOR_X, 0),
        Do(MULTIPLY, secrets[HALVES + 1] | 1),
        Do(SHIFT_RIGHT, 16),
        Do(RETURN_A, 0),
    ]);
    assemble(&lines)
}

/// Adds to the sum in the accumulator the halves of words at these places, each times its key.
fn added(at: u32, places: &[u32], keys: &[u32]) -> Vec<Line> {
    let add = |(place, key): (&u32, &u32)| {
        [Do(TO_X, 0), Do(LOAD_HALF, at + place), Do(MULTIPLY, *key), Do(ADD_X, 0)]
    };
    places.iter().zip(keys).flat_map(add).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program on a packet, or on a frame, as the kernel would.
    fn run(program: &[Classic], kind: u32, packet: &[u8]) -> u32 {
        run_on(program, kind, (HOST, None), packet)
    }

    /// The same, for a frame to somebody that perhaps had a VLAN tag.
    fn run_on(
        program: &[Classic],
        kind: u32,
        (addressed, tag): (u32, Option<u32>),
        packet: &[u8],
    ) -> u32 {
        let load = |k: u32, len: usize| match k {
            TYPE => kind,
            ADDRESSED => addressed,
            TAGGED => u32::from(tag.is_some()),
            // Some kernels leave there what an earlier tag was.
            TAG => tag.unwrap_or(77),
            _ => packet[k as usize..][..len].iter().fold(0, |n, b| n << 8 | u32::from(*b)),
        };
        let (mut a, mut x, mut at) = (0u32, 0u32, 0usize);
        loop {
            let Classic { code, yes, no, k } = program[at];
            at += 1;
            let mut branch = |is: bool| at += usize::from(if is { yes } else { no });
            match code {
                LOAD => a = load(k, 4),
                LOAD_HALF => a = load(k, 2),
                LOAD_BYTE => a = load(k, 1),
                JUMP_EQUAL => branch(a == k),
                JUMP_ANY => branch(a & k != 0),
                JUMP => at += k as usize,
                RETURN => return k,
                RETURN_A => return a,
                TO_X => x = a,
                FROM_X => a = x,
                XOR_X => a ^= x,
                ADD_X => a = a.wrapping_add(x),
                LOAD_WORD => a = k,
                MULTIPLY => a = a.wrapping_mul(k),
                SHIFT_RIGHT => a >>= k,
                _ => panic!("code {code:#x}"),
            }
        }
    }

    fn v4(id: u16, word: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 60];
        packet.extend(id.to_be_bytes());
        packet.extend(word.to_be_bytes());
        packet.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.resize(60, 7);
        packet
    }

    fn v6(id: u32, next: u8, first: u8) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 20, next, 64];
        packet.extend([first; 32]);
        packet.extend([17, 0, 0, 1]);
        packet.extend(id.to_be_bytes());
        packet
    }

    /// A packet behind a header of Ethernet.
    fn frame(kind: u32, packet: &[u8]) -> Vec<u8> {
        let [.., high, low] = kind.to_be_bytes();
        [&[2; 12][..], &[high, low], packet].concat()
    }

    #[test]
    fn fragments_come_in_and_nothing_else() {
        let (filter, bare) = (fragments(Link::Ethernet, false), fragments(Link::Raw, false));
        let passes = |kind, packet: &[u8]| {
            let is_in = run(&filter, kind, &frame(kind, packet)) != 0;
            assert_eq!(run(&bare, kind, packet) != 0, is_in, "with nothing in front of it");
            is_in
        };
        assert!(passes(V4, &v4(1, 0x2000)), "first");
        assert!(passes(V4, &v4(1, 0x2001)), "middle");
        assert!(passes(V4, &v4(1, 0x0001)), "last");
        assert!(!passes(V4, &v4(1, 0)), "whole");
        assert!(!passes(V4, &v4(1, 0x4000)), "whole, not to be fragmented");
        assert!(passes(V6, &v6(1, 44, 1)));
        assert!(passes(V6, &v6(1, 0, 1)), "perhaps behind hop-by-hop options");
        assert!(!passes(V6, &v6(1, 17, 1)));
        assert!(passes(0x8100, &v4(1, 0)), "for the link layer to look at");
        assert!(!passes(0x0806, &v4(1, 0x2000)), "ARP");
    }

    #[test]
    fn what_ip_of_the_interface_would_not_take_does_not_come_to_us() {
        const PRIORITY: u32 = 5 << 13;
        let ours = fragments_to_us();
        let [all, few] = [true, false].map(|of_others| fragments(Link::Ethernet, of_others));
        let fragment = v4(1, 0x2000);
        let framed = frame(V4, &fragment);
        let passes = |frame| run_on(&ours, V4, frame, &fragment) != 0;
        assert!(passes((HOST, None)));
        assert!(passes((HOST, Some(PRIORITY))), "a priority, and no VLAN");
        assert!(!passes((HOST, Some(PRIORITY | 9))), "a VLAN");
        // Broadcast, multicast, another host, outgoing.
        for addressed in 1..=OUTGOING {
            assert!(!passes((addressed, None)), "{addressed}");
            let comes = |program| run_on(program, V4, (addressed, Some(9)), &framed) != 0;
            assert_eq!(comes(&all), addressed != OUTGOING, "{addressed}");
            assert_eq!(comes(&few), ![OTHER_HOST, OUTGOING].contains(&addressed), "{addressed}");
        }
        assert_ne!(run(&ours, V6, &v6(1, 44, 1)), 0);
        assert_eq!(run(&ours, V4, &v4(1, 0)), 0, "whole");
        assert_eq!(run(&ours, 0x8100, &fragment), 0, "a tag that is still there");
    }

    /// Negative offsets, as the kernel has them, are for what it knows beside the frame. Those that count from a header
    /// in the frame older kernels look up in its first part only.
    #[test]
    fn all_parts_of_a_frame_are_looked_into() {
        const BESIDE: u32 = 0xffff_f000;
        let rings = [Link::Ethernet, Link::Raw].map(|link| fragments(link, false));
        for program in [&rings[0], &rings[1], &fragments_to_us(), &spread(&secrets(1))] {
            for line in
                program.iter().filter(|line| [LOAD, LOAD_HALF, LOAD_BYTE].contains(&line.code))
            {
                assert!(line.k < 1 << 31 || line.k >= BESIDE, "{line:?}");
            }
        }
    }

    /// Numbers that nobody has chosen, the same in each run.
    fn secrets(seed: u64) -> [u32; SECRETS] {
        let mut state = seed;
        std::array::from_fn(|_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 32) as u32
        })
    }

    /// A frame whose IP header is behind others, and its type.
    fn behind(outer: &[&[u8]], kind: u16, ip: &[u8]) -> (u32, Vec<u8>) {
        (u32::from(kind), [outer.concat(), ip.to_vec()].concat())
    }

    #[test]
    fn a_header_behind_tags_and_pppoe_is_found() {
        let program = spread(&secrets(3));
        let tag = |kind: u16| [&[0, 9][..], &kind.to_be_bytes()].concat();
        let pppoe = |kind: u16| [&[0x11, 0, 0, 1, 0, 62][..], &kind.to_be_bytes()].concat();
        let (v4s, v6s) = (0x0800u16, 0x86ddu16);
        let frames = |ip: &[u8], kind: u16, by_ppp: u16| {
            [
                behind(&[&tag(kind)], 0x8100, ip),
                behind(&[&tag(0x8100), &tag(kind)], 0x88a8, ip),
                behind(&[&pppoe(by_ppp)], 0x8864, ip),
                behind(&[&tag(0x8864), &pppoe(by_ppp)], 0x8100, ip),
                behind(&[&tag(0x9100), &tag(0x8864), &pppoe(by_ppp)], 0x8100, ip),
            ]
        };
        let plain = run(&program, V4, &v4(7, 0x2000));
        for (kind, packet) in frames(&v4(7, 0x2000), v4s, 0x21) {
            assert_eq!(run(&program, kind, &packet), plain);
        }
        let plain = run(&program, V6, &v6(7, 44, 1));
        for (kind, packet) in frames(&v6(7, 44, 1), v6s, 0x57) {
            assert_eq!(run(&program, kind, &packet), plain);
        }
        // Something else, and one tag too many.
        for (kind, packet) in [
            behind(&[&tag(0x0806)], 0x8100, &v4(7, 0x2000)),
            behind(&[&pppoe(0xc021)], 0x8864, &v4(7, 0x2000)),
            behind(&[&tag(0x8100), &tag(0x8100), &tag(v4s)], 0x8100, &v4(7, 0x2000)),
        ] {
            assert_eq!(run(&program, kind, &packet), 0);
        }
    }

    /// Datagrams that one hash or another, of those that were in use, takes for one: whoever does not know the secrets
    /// fills no worker with them.
    #[test]
    fn nobody_aims_at_a_worker() {
        const WORKERS: u32 = 8;
        const MIX: u32 = 0x9e37_79b1;
        let many = |of: &dyn Fn(u32) -> Vec<u8>| -> Vec<Vec<u8>> { (0..4096).map(of).collect() };
        let set = |packet: &mut Vec<u8>, at: usize, bytes: &[u8]| {
            packet[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let with = |id: u32, src: u32, dst: u32| {
            let mut packet = v4((id & 0xffff).try_into().unwrap(), 0x2000);
            set(&mut packet, 12, &src.to_be_bytes());
            set(&mut packet, 16, &dst.to_be_bytes());
            packet
        };
        let aimed: [(&str, u32, Vec<Vec<u8>>); 5] = [
            ("addresses changed alike", V4, many(&|n| with(1, n, n))),
            (
                "what the identification gives is taken from an address",
                V4,
                many(&|n| with(n, 0x0a00_0001, n.wrapping_mul(MIX))),
            ),
            ("in steps", V4, many(&|n| with(1, n << 16, 0x0a00_0001))),
            ("identifications of IPv6 in steps", V6, many(&|n| v6(n << 20, 44, 1))),
            (
                "addresses of IPv6 changed alike",
                V6,
                many(&|n| {
                    let mut packet = v6(1, 44, 1);
                    set(&mut packet, 20, &n.to_be_bytes());
                    set(&mut packet, 36, &n.to_be_bytes());
                    packet
                }),
            ),
        ];
        for (what, kind, packets) in &aimed {
            for seed in 0..20 {
                let program = spread(&secrets(seed));
                let mut got = [0u32; WORKERS as usize];
                for packet in packets {
                    got[(run(&program, *kind, packet) % WORKERS) as usize] += 1;
                }
                let most = got.iter().max();
                assert!(most < Some(&(2 * 4096 / WORKERS)), "{what}, secrets {seed}: {got:?}");
            }
        }
    }

    #[test]
    fn a_datagram_stays_together_and_datagrams_spread() {
        let program = spread(&secrets(1));
        for workers in 2..6u32 {
            let mut got = vec![0u32; workers as usize * 2];
            for id in 0..1000u16 {
                let worker = run(&program, V4, &v4(id, 0x2000)) % workers;
                for word in [0x2000, 0x20b9, 0x0172] {
                    assert_eq!(run(&program, V4, &v4(id, word)) % workers, worker);
                }
                got[worker as usize] += 1;
                let worker = run(&program, V6, &v6(u32::from(id) * 77, 44, 9)) % workers;
                got[(workers + worker) as usize] += 1;
            }
            let fair = 1000 / workers;
            assert!(got.iter().all(|n| n.abs_diff(fair) < fair / 2), "{got:?}");
        }
    }

    #[test]
    fn the_kernel_takes_them() {
        use sys::packet::{Ring, Shape};
        let lo = sys::interface::Interface::find("lo").unwrap().unwrap();
        let shape = Shape { blocks: 1, block_bytes: 1 << 16, patience_ms: 1 };
        let ring = match Ring::open(lo.index, shape) {
            Ok(ring) => ring,
            Err(e) => return println!("skipped: {e}"),
        };
        ring.found_group(&spread(&secrets(7))).unwrap();
        ring.admit(&fragments(Link::Ethernet, false)).unwrap();
        ring.admit(&fragments_to_us()).unwrap();
    }

    #[test]
    fn fragments_behind_other_headers_go_by_address() {
        let program = spread(&secrets(1));
        assert_eq!(run(&program, V6, &v6(1, 0, 3)), run(&program, V6, &v6(2, 0, 3)));
        assert_ne!(run(&program, V6, &v6(1, 0, 3)), run(&program, V6, &v6(1, 44, 3)));
    }
}

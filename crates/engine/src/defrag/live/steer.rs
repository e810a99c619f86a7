//! Programs of the old machine: which frames come in, and which worker gets them.

use sys::bpf::Classic;

/// Offsets from here are from the network header on, wherever the frame has it.
const NETWORK: u32 = 0xfff0_0000;
/// The type of what the frame holds, as the kernel found it; tags that were taken out are not counted.
const TYPE: u32 = 0xffff_f000;
/// To whom the frame was addressed.
const ADDRESSED: u32 = 0xffff_f004;
const HOST: u32 = 0;
const OUTGOING: u32 = 4;
/// The VLAN tag that was taken out of the frame, and whether there was one (`SKF_AD_VLAN_TAG_PRESENT`).
const TAG: u32 = 0xffff_f02c;
const TAGGED: u32 = 0xffff_f030;
/// Of a tag: the VLAN. 0 is none, the tag says the priority only (IEEE 802.1Q 9.6).
const VLAN: u32 = 0xfff;
const V4: u32 = 0x0800;
const V6: u32 = 0x86dd;
/// 802.1Q, 802.1ad, what came before that, PPPoE: these may hold a fragment further in.
const NESTED: [u32; 4] = [0x8100, 0x88a8, 0x9100, 0x8864];
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
const TO_X: u16 = 0x07;
const FROM_X: u16 = 0x87;
const XOR_X: u16 = 0xac;
const XOR: u16 = 0xa4;
const MULTIPLY: u16 = 0x24;
const SHIFT_RIGHT: u16 = 0x74;
const JUMP: u16 = 0x05;

/// A line of a program whose jumps name where they lead.
#[derive(Clone, Copy)]
enum Line {
    Do(u16, u32),
    /// If true, go there.
    If(u16, u32, &'static str),
    Go(&'static str),
    Here(&'static str),
}

use Line::{Do, Go, Here, If};

/// Lines as instructions.
fn assemble(lines: &[Line]) -> Vec<Classic> {
    let code = |line: &&Line| !matches!(line, Here(_));
    let place = |name: &str| {
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

/// Lets in fragments that come from outside, and what may hold some.
pub(crate) fn fragments() -> Vec<Classic> {
    let mut lines = vec![Do(LOAD, ADDRESSED), If(JUMP_EQUAL, OUTGOING, "no"), Do(LOAD, TYPE)];
    lines.extend(NESTED.map(|kind| If(JUMP_EQUAL, kind, "yes")));
    lines.extend(fragments_of_ip());
    assemble(&lines)
}

/// Lets in fragments that the interface's own IP would take: frames to this host, of no VLAN.
pub(crate) fn fragments_to_us() -> Vec<Classic> {
    let mut lines = vec![
        Do(LOAD, ADDRESSED),
        If(JUMP_EQUAL, HOST, "host"),
        Go("no"),
        Here("host"),
        Do(LOAD, TAGGED),
        If(JUMP_EQUAL, 0, "own"),
        // Another interface's, or nobody's.
        Do(LOAD, TAG),
        If(JUMP_ANY, VLAN, "no"),
        Here("own"),
        Do(LOAD, TYPE),
    ];
    lines.extend(fragments_of_ip());
    assemble(&lines)
}

/// Whether a frame of the type that is loaded holds a fragment: the end of a filter, with places "yes" and "no".
fn fragments_of_ip() -> Vec<Line> {
    let mut lines = vec![
        If(JUMP_EQUAL, V4, "v4"),
        If(JUMP_EQUAL, V6, "v6"),
        Go("no"),
        Here("v4"),
        // Offset or "more fragments".
        Do(LOAD_HALF, NETWORK + 6),
        If(JUMP_ANY, 0x3fff, "yes"),
        Go("no"),
        Here("v6"),
        Do(LOAD_BYTE, NETWORK + 6),
        If(JUMP_EQUAL, FRAGMENT_HEADER, "yes"),
    ];
    lines.extend(EXTENSIONS.map(|header| If(JUMP_EQUAL, header, "yes")));
    lines.extend([Here("no"), Do(RETURN, 0), Here("yes"), Do(RETURN, FRAME_MAX)]);
    lines
}

/// Answers a number that is the same for all fragments of a datagram; the kernel takes it modulo the
/// number of workers. It is made of addresses and identification, never of ports, which only first
/// fragments have. What holds its IP header further in goes to the first worker, all of it.
pub(super) fn spread(secret: u32) -> Vec<Classic> {
    // Knuth's multiplier; odd, so nothing is lost.
    const MIX: u32 = 0x9e37_79b1;
    let mut lines = vec![
        Do(LOAD, TYPE),
        If(JUMP_EQUAL, V4, "v4"),
        If(JUMP_EQUAL, V6, "v6"),
        Do(RETURN, 0),
        Here("v4"),
        Do(LOAD, NETWORK + 12),
        Do(TO_X, 0),
        Do(LOAD, NETWORK + 16),
        Do(XOR_X, 0),
        Do(TO_X, 0),
        Do(LOAD_HALF, NETWORK + 4),
        Do(MULTIPLY, MIX),
        Go("mix"),
        Here("v6"),
        Do(LOAD, NETWORK + 8),
    ];
    for word in [12, 16, 20, 24, 28, 32, 36] {
        lines.extend([Do(TO_X, 0), Do(LOAD, NETWORK + word), Do(XOR_X, 0)]);
    }
    lines.extend([
        Do(TO_X, 0),
        Do(LOAD_BYTE, NETWORK + 6),
        If(JUMP_EQUAL, FRAGMENT_HEADER, "identified"),
        // Somewhere behind other headers: the addresses have to do.
        Do(FROM_X, 0),
        Go("end"),
        Here("identified"),
        Do(LOAD, NETWORK + 44),
        Do(MULTIPLY, MIX),
        Here("mix"),
        Do(XOR_X, 0),
        Here("end"),
        Do(XOR, secret),
        Do(MULTIPLY, MIX),
        // The high bits depend on all of the low ones.
        Do(SHIFT_RIGHT, 16),
        Do(RETURN_A, 0),
    ]);
    assemble(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program on a packet (from its network header on) as the kernel would.
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
            _ => {
                let at = (k - NETWORK) as usize;
                packet[at..at + len].iter().fold(0, |n, b| n << 8 | u32::from(*b))
            }
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
                XOR => a ^= k,
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

    #[test]
    fn fragments_come_in_and_nothing_else() {
        let filter = fragments();
        let passes = |kind, packet: &[u8]| run(&filter, kind, packet) != 0;
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
        let (ours, all) = (fragments_to_us(), fragments());
        let fragment = v4(1, 0x2000);
        let passes = |frame| run_on(&ours, V4, frame, &fragment) != 0;
        assert!(passes((HOST, None)));
        assert!(passes((HOST, Some(PRIORITY))), "a priority, and no VLAN");
        assert!(!passes((HOST, Some(PRIORITY | 9))), "a VLAN");
        // Broadcast, multicast, another host, outgoing.
        for addressed in 1..=OUTGOING {
            assert!(!passes((addressed, None)), "{addressed}");
            let comes = run_on(&all, V4, (addressed, Some(9)), &fragment) != 0;
            assert_eq!(comes, addressed != OUTGOING, "{addressed}");
        }
        assert_ne!(run(&ours, V6, &v6(1, 44, 1)), 0);
        assert_eq!(run(&ours, V4, &v4(1, 0)), 0, "whole");
        assert_eq!(run(&ours, 0x8100, &fragment), 0, "a tag that is still there");
    }

    #[test]
    fn a_datagram_stays_together_and_datagrams_spread() {
        let program = spread(0x1234_5678);
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
        ring.found_group(&spread(7)).unwrap();
        ring.admit(&fragments()).unwrap();
        ring.admit(&fragments_to_us()).unwrap();
    }

    #[test]
    fn fragments_behind_other_headers_go_by_address() {
        let program = spread(1);
        assert_eq!(run(&program, V6, &v6(1, 0, 3)), run(&program, V6, &v6(2, 0, 3)));
        assert_ne!(run(&program, V6, &v6(1, 0, 3)), run(&program, V6, &v6(1, 44, 3)));
    }
}

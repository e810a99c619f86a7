//! One end of a connection and a peer that says anything: the program, also what the fuzzer runs.

use smc::cdc::Cdc;
use smc::conn::{Conn, Push, Remote, Setup};
use smc::{RKey, SizeClass, Token};

const RMB: u32 = 16_384;
const PEER_RMB: u32 = 32_768;
const RING: u32 = 16_384;
const BASE: u64 = 1 << 20;

/// Numbers out of the program, zeros behind its end.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)])
    }
}

/// A message that is often nearly right.
fn message(numbers: &mut Numbers<'_>, last: &Cdc) -> Cdc {
    let mut cdc = *last;
    let how = numbers.byte().unwrap_or(0);
    cdc.sequence = cdc.sequence.wrapping_add(u16::from(how & 3));
    cdc.producer.count = cdc.producer.count.wrapping_add(numbers.short().into());
    if how & 4 != 0 {
        cdc.producer.count %= RMB;
        cdc.producer.wrap = cdc.producer.wrap.wrapping_add(1);
    }
    cdc.consumer.count = cdc.consumer.count.wrapping_add((numbers.short() >> 4).into());
    if how & 8 != 0 {
        cdc.consumer.count %= PEER_RMB;
        cdc.consumer.wrap = cdc.consumer.wrap.wrapping_add(1);
    }
    cdc.producer_flags.0 = numbers.byte().unwrap_or(0);
    if how & 16 != 0 {
        cdc.state_flags.0 |= numbers.byte().unwrap_or(0);
    }
    if how & 32 != 0 {
        cdc.consumer.count = cdc.consumer.count.rotate_left(16);
    }
    cdc
}

/// Runs a program of any bytes.
pub(crate) fn run(program: &[u8]) {
    let mut conn = Conn::new(&Setup {
        rmb: SizeClass::new(0),
        send_ring: SizeClass::new(0),
        peer_token: Token(1),
        peer_rmb: SizeClass::new(1),
        remote: Remote { rkey: RKey(1), vaddr: BASE },
        autocork: 4096,
        urgent_inline: program.len() % 2 == 1,
    });
    let mut numbers = Numbers(program);
    let mut tickets = Vec::new();
    let mut last = Cdc::default();
    while let Some(op) = numbers.byte() {
        match op % 12 {
            0..=4 => {
                let cdc = message(&mut numbers, &last);
                let before = format!("{conn:?}");
                match conn.on_cdc(&cdc) {
                    Ok(heard) => {
                        assert!(heard.arrived <= RMB && heard.read_by_peer <= PEER_RMB);
                        assert!(heard.urgent.is_none_or(|offset| offset < RMB));
                        last = cdc;
                    }
                    Err(_) => assert_eq!(format!("{conn:?}"), before, "nothing is believed"),
                }
            }
            5 => conn.wrote(numbers.short().into()),
            6 => conn.wrote_urgent(numbers.short().into()),
            7 => conn.consumed(numbers.short().into()),
            8 => {
                let push = [Push::Now, Push::Auto, Push::Corked][usize::from(op / 12 % 3)];
                for round in 0.. {
                    assert!(round < 8, "there is no end of planning");
                    let Some(plan) = conn.plan(push) else { break };
                    for write in plan.writes() {
                        let end = write.vaddr + u64::from(write.len());
                        assert!(write.vaddr >= BASE && end <= BASE + u64::from(PEER_RMB));
                        assert!(write.pieces().iter().all(|p| p.offset + p.len <= RING));
                    }
                    tickets.push(plan.ticket);
                }
            }
            9 if !tickets.is_empty() => conn.completed(tickets.remove(0)),
            10 => match op / 12 {
                0..=9 => conn.moved(Remote { rkey: RKey(2), vaddr: BASE }),
                10..=15 => conn.hold(),
                _ => conn.release(),
            },
            11 => match op / 12 {
                0..=9 => conn.shutdown_write(),
                10..=18 => conn.close(),
                19 => conn.give_up_unsent(),
                _ => conn.abort(),
            },
            _ => {}
        }
        let [first, second] = conn.readable_pieces();
        assert!(first.offset + first.len <= RMB && second.len <= first.offset);
        assert_eq!(first.len + second.len, conn.readable());
        assert!(conn.room().unwrap_or(0) <= RING && conn.unfinished() <= RING.into());
    }
}

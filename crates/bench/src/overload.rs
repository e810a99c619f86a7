//! More datagrams in flight than memory holds: how many are completed all the same.
//!
//! No time is measured, it is computed: fragments come at a fixed rate, one of each flow in turn, each flow
//! begins somewhere within a datagram, as after any restart, and some fragments may be lost. So the result
//! is the same on every machine.

use std::iter;

use clap::Args;
use frag::{Arrival, Config, HashKey, Ledger, Shard};

use crate::ours::Count;
use crate::trace::{COST, Case, FRAME, Order, Piece, Random, Slot, header};

/// What is offered, and to how much memory.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Bytes of each datagram's UDP payload
    #[arg(long, default_value_t = 65507)]
    pub(crate) size: usize,
    /// Datagrams in flight
    #[arg(long, default_value_t = 100)]
    pub(crate) flows: u32,
    /// Of a million fragments so many are lost
    #[arg(long, default_value_t = 0)]
    pub(crate) lost: u64,
    #[arg(long, default_value_t = 4 << 20)]
    memory: u64,
    /// Fragments in all
    #[arg(long, default_value_t = 4_000_000)]
    pub(crate) fragments: u64,
    /// Fragments a second
    #[arg(long, default_value_t = 1_600_000)]
    rate: u64,
}

impl Load {
    /// What the fragments are of.
    pub(crate) const fn case(&self) -> Case {
        let flows = self.flows as usize;
        Case { size: self.size, flows, order: Order::In, fragments: 0, salt: 0 }
    }

    /// The fragments in the order in which they come, those that are lost left out.
    pub(crate) fn pieces(self) -> impl Iterator<Item = Option<Piece>> {
        let mut flows = self.flows_begun();
        let mut random = Random::new(17);
        let pieces = self.case().pieces();
        let mut flow = 0;
        iter::from_fn(move || {
            let len = flows.len();
            let at = &mut flows[flow];
            let piece = *at;
            flow = (flow + 1) % len;
            at.at += 1;
            if usize::from(at.at) == pieces {
                *at = Piece { datagram: at.datagram + self.flows, at: 0 };
            }
            Some((random.below(1_000_000) as u64 >= self.lost).then_some(piece))
        })
    }

    /// Each flow somewhere within its first datagram.
    fn flows_begun(self) -> Vec<Piece> {
        let mut random = Random::new(13);
        let pieces = self.case().pieces();
        let mut somewhere = || u16::try_from(random.below(pieces)).unwrap_or(0);
        (0..self.flows).map(|datagram| Piece { datagram, at: somewhere() }).collect()
    }

    /// What memory allows at best, if datagrams had to be kept whole: a part of what is offered.
    pub(crate) fn bound(self) -> f64 {
        (self.memory as f64 / (self.flows as usize * self.size) as f64).min(1.0)
    }
}

/// Runs it; prints the part of the offered datagrams that came out, and the bound.
pub(crate) fn run(load: Load) -> anyhow::Result<()> {
    let config = Config { memory_bytes: load.memory, ..Config::default() };
    let limits = config.limits()?;
    let mut shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new([1, 2]));
    let (mut sink, mut packet) = (Count::default(), vec![0; FRAME]);
    let case = load.case();
    let mut peak = 0;
    for (at, piece) in (0..load.fragments).zip(load.pieces()) {
        let Some(piece) = piece else { continue };
        let header = header(&case, piece)?;
        packet[..header.len()].copy_from_slice(&header);
        let now = at * 1_000_000_000 / load.rate;
        let arrival = Arrival { packet: &packet, buffer: Slot::FIRST, cost: COST, scope: 0 };
        shard.push(arrival, now, &mut sink);
        peak = peak.max(shard.gauges().memory_bytes);
    }
    let offered = load.fragments as f64 / case.pieces() as f64;
    println!("goodput={:.4}", sink.datagrams as f64 / offered);
    println!("bound={:.4}", load.bound());
    println!("peak={:.4}", peak as f64 / load.memory as f64);
    Ok(())
}

//! What hostile fragments cost: identifications that are aimed at a table, and the smallest fragments.
//!
//! Nanoseconds of CPU time per fragment, the median over the passes of each round, in turn.

use anyhow::ensure;
use clap::Args;
use frag::{Arrival, Config, HashKey, Key, Ledger, Policy, Shard};
use testkit::cpu;

use crate::ours::Count;
use crate::trace::{Random, Slot};

/// How often.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Words {
    /// Passes of each in each round
    #[arg(long, default_value_t = 7)]
    passes: usize,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Datagrams in progress at the same time, each of two halves.
const AIMED: usize = 16_384;
const PROTOCOL: u8 = 17;
/// The polynomial of CRC32C, reflected.
const CRC32C: u32 = 0x82f6_3b78;
/// Far more than is needed: nothing is to be evicted.
const ROOM: u64 = 1 << 40;
/// What keeping a fragment costs.
const COST: u32 = 2048;
/// Bytes of the smallest fragment that is not the last.
const SMALLEST: usize = 8;
/// Bytes of the largest payload that consists of those.
const LARGEST: usize = 65_512;
/// Datagrams of these in a pass, one after the other.
const LARGE: u32 = 4;

/// Fragments that come in a pass, and how they are to end.
struct Load {
    name: &'static str,
    packets: Vec<Vec<u8>>,
    fragments_max: u16,
    overlap: Policy,
    /// Datagrams that come out.
    whole: usize,
}

/// Measures all.
///
/// # Errors
///
/// When something else comes out than should.
pub(crate) fn run(words: Words) -> anyhow::Result<()> {
    cpu::pin(0)?;
    let secret = HashKey::new([3, 4]);
    let loads = loads(&secret)?;
    let mut times = vec![Vec::new(); loads.len()];
    for _ in 0..words.rounds.max(1) {
        for (load, times) in loads.iter().zip(&mut times) {
            let passes = (0..words.passes.max(1)).map(|_| pass(load, &secret));
            let mut passes = passes.collect::<anyhow::Result<Vec<f64>>>()?;
            passes.sort_unstable_by(f64::total_cmp);
            times.push(passes[passes.len() / 2]);
        }
    }
    loads.iter().zip(&times).for_each(|(load, times)| crate::tell(load.name, times));
    Ok(())
}

/// With a new shard each: a key that was changed is not to be known in the next pass.
fn pass(load: &Load, secret: &HashKey) -> anyhow::Result<f64> {
    let Load { fragments_max, overlap, .. } = *load;
    let config = Config { fragments_max, overlap, ..Config::default() };
    let limits = Config { memory_bytes: ROOM, ..config }.limits()?;
    let mut shard = Shard::new(&limits, &Ledger::of(&limits), secret.clone());
    let mut sink = Count::default();
    let begin = cpu::of_this_thread();
    for packet in &load.packets {
        let arrival = Arrival { packet, buffer: Slot::FIRST, cost: COST, scope: 0 };
        shard.push(arrival, 1, &mut sink);
    }
    let took = cpu::of_this_thread() - begin;
    ensure!(sink.datagrams == load.whole, "{}: {} datagrams", load.name, sink.datagrams);
    Ok(took.as_secs_f64() * 1e9 / load.packets.len() as f64)
}

fn loads(secret: &HashKey) -> anyhow::Result<Vec<Load>> {
    let mut random = Random::new(5);
    let any = (0..).map(|n| ((random.next() >> 32) as u32, n));
    let crc = (0..).map(|n| (colliding(n), n));
    let lands = |(source, destination): &(u32, u32)| {
        let key = Key::v4(*source, *destination, 0, PROTOCOL, 0);
        secret.hash(&key) >> 32 & 0xffff < 64
    };
    let known = (0..).map(|n: u32| (n << 8, n)).filter(lands);
    Ok(vec![
        halves("keys-any", any)?,
        halves("keys-crc", crc)?,
        halves("keys-known", known)?,
        smallest("smallest-1024", 1024, &[8])?,
        smallest("smallest-8192", 8192, &[8])?,
        smallest("uneven-1024", 1024, &[8, 16])?,
        smallest("uneven-8192", 8192, &[8, 16])?,
        overlapping("overlap-strict-1024", 1024, Policy::Strict)?,
        overlapping("overlap-strict-8192", 8192, Policy::Strict)?,
        overlapping("overlap-first-1024", 1024, Policy::First)?,
        overlapping("overlap-first-8192", 8192, Policy::First)?,
        overlapping("overlap-last-1024", 1024, Policy::Last)?,
        overlapping("overlap-last-8192", 8192, Policy::Last)?,
        overlapping("overlap-linux-1024", 1024, Policy::Linux)?,
        overlapping("overlap-linux-8192", 8192, Policy::Linux)?,
    ])
}

/// First all first halves, then the others.
fn halves(name: &'static str, keys: impl Iterator<Item = (u32, u32)>) -> anyhow::Result<Load> {
    let keys: Vec<_> = keys.take(AIMED).collect();
    let mut packets = Vec::new();
    for word in [0x2000, 1] {
        for (source, destination) in &keys {
            packets.push(packet((*source, *destination), word, SMALLEST)?);
        }
    }
    Ok(Load { name, packets, fragments_max: 1024, overlap: Policy::Strict, whole: AIMED })
}

/// Largest datagrams of fragments of these sizes in turn, shuffled.
fn smallest(name: &'static str, fragments_max: u16, sizes: &[usize]) -> anyhow::Result<Load> {
    let mut random = Random::new(9);
    let mut packets = Vec::new();
    let mut whole = 0;
    for source in 1..=LARGE {
        let (mut at, mut of_this) = (0, Vec::new());
        for size in sizes.iter().cycle() {
            let len = (*size).min(LARGEST - at);
            let more = if at + len < LARGEST { 0x2000 } else { 0 };
            of_this.push(packet((source << 8, 1), more | u16::try_from(at / 8)?, len)?);
            at += len;
            if at == LARGEST {
                break;
            }
        }
        whole += usize::from(of_this.len() <= usize::from(fragments_max));
        random.shuffle(&mut of_this);
        packets.extend(of_this);
    }
    Ok(Load { name, packets, fragments_max, overlap: Policy::Strict, whole })
}

/// Largest datagrams of twice the smallest fragments, shuffled, each of which ends in the middle of the next: given up at
/// the first of them where nobody is believed, and else put together.
fn overlapping(name: &'static str, fragments_max: u16, overlap: Policy) -> anyhow::Result<Load> {
    let mut random = Random::new(19);
    let mut packets = Vec::new();
    for source in 1..=LARGE {
        let mut of_this = Vec::new();
        for at in (0..LARGEST - SMALLEST).step_by(SMALLEST) {
            let more = if at + 2 * SMALLEST < LARGEST { 0x2000 } else { 0 };
            let word = more | u16::try_from(at / 8)?;
            of_this.push(packet((source << 8, 1), word, 2 * SMALLEST)?);
        }
        random.shuffle(&mut of_this);
        packets.extend(of_this);
    }
    let is_whole =
        overlap != Policy::Strict && packets.len() <= usize::from(fragments_max) * LARGE as usize;
    let whole = if is_whole { LARGE as usize } else { 0 };
    Ok(Load { name, packets, fragments_max, overlap, whole })
}

/// Without a checksum, which nobody reads.
fn packet(
    (source, destination): (u32, u32),
    flags_and_offset: u16,
    len: usize,
) -> anyhow::Result<Vec<u8>> {
    let mut packet = vec![0; 20 + len];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&u16::try_from(20 + len)?.to_be_bytes());
    packet[6..8].copy_from_slice(&flags_and_offset.to_be_bytes());
    (packet[8], packet[9]) = (64, PROTOCOL);
    packet[12..16].copy_from_slice(&source.to_be_bytes());
    packet[16..20].copy_from_slice(&destination.to_be_bytes());
    Ok(packet)
}

/// The source that with this destination no seed of CRC32C tells apart from the others: what a change of
/// the one does to the sum the other takes back.
fn colliding(destination: u32) -> u32 {
    let sum = destination.swap_bytes() ^ 0x1234_5678;
    let before = (0..32).fold(sum, |sum, _| match sum >> 31 {
        0 => sum << 1,
        _ => (sum ^ CRC32C) << 1 | 1,
    });
    before.swap_bytes()
}

#[cfg(test)]
mod tests {
    use super::{CRC32C, colliding};

    #[test]
    fn sources_collide_whatever_the_seed() {
        let crc = |seed: u32, bytes: &[u8]| {
            bytes.iter().fold(seed, |sum, byte| {
                let step = |sum: u32, _| sum >> 1 ^ if sum & 1 == 0 { 0 } else { CRC32C };
                (0..8).fold(sum ^ u32::from(*byte), step)
            })
        };
        for seed in [0, u32::MAX, 0xdead_beef] {
            let of = |n: u32| crc(seed, &[colliding(n).to_be_bytes(), n.to_be_bytes()].concat());
            assert!((1..1000).all(|n| of(n) == of(0)));
        }
    }
}

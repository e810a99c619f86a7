//! How evenly peers that come, grow and go lie on completion vectors: what the engine's own policy makes of them.
//!
//! Peers are as unequal as clients are: each has from 1 to 128 connections, which come mixed with those of others that
//! come at the same time. Where there are as many link groups as are wanted, some peers leave at once, and others come
//! in their place. What the vectors then have is counted by the places that they were given, not by the policy's own
//! books.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use anyhow::Context;
use engine::remote::vectors::Vectors;
use engine::remote::{Berth, Berths};
use testkit::fragments::Random;

/// How many sizes of peers there are, each twice the one before.
const SIZES: usize = 8;
/// Peers that come at the same time.
const TOGETHER: usize = 16;
/// How often some leave and others come.
const TIMES: usize = 40;
/// One in so many leaves.
const LEAVES: usize = 4;

/// A peer with its places.
struct Peer {
    address: IpAddr,
    connections: Vec<Berth>,
    groups: Vec<Berth>,
}

impl Peer {
    /// One more connection, and the link group that it may need.
    fn connect(&mut self, berths: &Arc<Berths>) {
        let berth = berths.connection(self.address);
        if self.groups.iter().all(|group| group.vector() != berth.vector()) {
            self.groups.push(berth.group());
        }
        self.connections.push(berth);
    }
}

/// Plays it, and prints the worst of what came of it: the most that a vector has over the mean.
pub(crate) fn run(vectors: u16, groups: usize, seed: u64) -> anyhow::Result<()> {
    let berths = Berths::new(vectors.into(), Vectors::ALL)?;
    let (mut random, mut peers, mut next) = (Random::new(seed), Vec::<Peer>::new(), 0u32);
    let (mut of_groups, mut of_connections, mut when_left) = (0f64, 0f64, 0f64);
    for _ in 0..TIMES {
        while peers.iter().map(|peer| peer.groups.len()).sum::<usize>() < groups {
            let first = peers.len();
            let mut coming = Vec::new();
            for at in first..first + TOGETHER {
                let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 1).to_bits() + next);
                next += 1;
                peers.push(Peer { address: address.into(), connections: vec![], groups: vec![] });
                coming.extend(std::iter::repeat_n(at, 1 << random.below(SIZES)));
            }
            random.shuffle(&mut coming);
            coming.into_iter().for_each(|at: usize| peers[at].connect(&berths));
        }
        of_groups = of_groups.max(uneven(vectors, peers.iter().flat_map(|peer| &peer.groups))?);
        let connections =
            |peers: &[Peer]| uneven(vectors, peers.iter().flat_map(|peer| &peer.connections));
        of_connections = of_connections.max(connections(&peers)?);
        peers.retain(|_| random.below(LEAVES) > 0);
        when_left = when_left.max(connections(&peers)?);
    }
    println!("groups={of_groups:.4} connections={of_connections:.4} when_left={when_left:.4}");
    Ok(())
}

/// How many times the mean the most loaded vector has.
fn uneven<'a>(vectors: u16, berths: impl Iterator<Item = &'a Berth>) -> anyhow::Result<f64> {
    let mut each = vec![0u32; vectors.into()];
    for berth in berths {
        *each.get_mut(berth.vector() as usize).context("there is no such vector")? += 1;
    }
    let (most, all) = (each.iter().max().context("no vector")?, each.iter().sum::<u32>());
    Ok(f64::from(*most) * f64::from(vectors) / f64::from(all))
}

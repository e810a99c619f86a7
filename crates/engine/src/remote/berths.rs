//! Which vector a connection goes to: to one that knows the peer, or to the one with the fewest link groups.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use roce::{BadVectors, Placement};

use super::held;
use super::vectors::Vectors;

/// A vector that has so many connections more than another is not given more, although it knows the peer.
const SLACK: u32 = 8;

/// What vectors have now, counted when it is given and when it is over, not when they have told.
#[derive(Debug)]
pub struct Berths(Mutex<Taken>);

#[derive(Debug)]
struct Taken {
    /// Link groups of each vector. A peer that has none there counts as one while a connection may make it.
    groups: Placement,
    /// Connections of each, by SMC or not.
    connections: Vec<u32>,
    /// What each has with a peer; only peers with whom there is something.
    peers: HashMap<IpAddr, Vec<With>>,
}

/// What a vector has with a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct With {
    /// Those that are SMC's or may become so.
    connections: u32,
    groups: u32,
}

/// A connection's place, or a link group's: with its vector until it is dropped.
#[derive(Debug)]
pub struct Berth {
    berths: Arc<Berths>,
    peer: IpAddr,
    vector: u16,
    what: What,
}

/// Whose place it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A connection that SMC carries or may carry.
    Connection,
    /// A connection that goes by TCP: work for its vector, and no reason for a link group.
    Plain,
    /// A link group.
    Group,
}

impl Berths {
    /// For so many vectors, of which these may be used.
    ///
    /// # Errors
    ///
    /// There are none, too many, or none of them may be used.
    pub fn new(count: u32, usable: Vectors) -> Result<Arc<Self>, BadVectors> {
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        let groups = Placement::new(count, among(count, usable))?;
        let connections = vec![0; count.into()];
        Ok(Arc::new(Self(Mutex::new(Taken { groups, connections, peers: HashMap::new() }))))
    }

    /// From now on these may be used for what is new; `usable` names some that there are.
    pub(super) fn allow(&self, usable: Vectors) {
        let mut taken = held(&self.0);
        let count = u16::try_from(taken.connections.len()).unwrap_or(u16::MAX);
        // Settings are checked when they are set: none that is not there, and not none at all.
        let _ = taken.groups.allow(among(count, usable));
    }

    /// A place for a connection to `peer`.
    #[must_use]
    pub fn connection(self: &Arc<Self>, peer: IpAddr) -> Berth {
        let mut taken = held(&self.0);
        let vector = taken.choose(peer);
        taken.take(peer, vector, What::Connection);
        taken.connections[usize::from(vector)] += 1;
        Berth { berths: Arc::clone(self), peer, vector, what: What::Connection }
    }
}

fn among(count: u16, usable: Vectors) -> impl Iterator<Item = u16> {
    (0..count).filter(move |vector| usable.has((*vector).into()))
}

impl Taken {
    /// For a connection: a vector that knows the peer, unless all of them have much more to do than another.
    fn choose(&self, peer: IpAddr) -> u16 {
        let connections = |vector: &u16| self.connections[usize::from(*vector)];
        let Some(known) = self.peers.get(&peer) else {
            // Of those with as few groups: connections that go by TCP make none.
            let users = self.groups.users(self.groups.least());
            let vectors = (0..).take(self.connections.len());
            let least = vectors.filter(|vector| self.groups.users(*vector) == users);
            return least.min_by_key(connections).unwrap_or(0);
        };
        let usable = || (0..).zip(known).filter(|(vector, _)| self.groups.users(*vector).is_some());
        let least = usable().map(|(vector, _)| connections(&vector)).min().unwrap_or(0);
        let knows = usable().filter(|(_, with)| **with != With::default());
        let known = knows.map(|(vector, _)| vector).min_by_key(connections);
        let known = known.filter(|vector| connections(vector) <= least + SLACK);
        let other = || usable().map(|(vector, _)| vector).min_by_key(connections);
        known.or_else(other).unwrap_or(0)
    }

    /// A connection that may be SMC's, or a link group, is with this vector from now on.
    fn take(&mut self, peer: IpAddr, vector: u16, what: What) {
        let (at, count) = (usize::from(vector), self.connections.len());
        let with = &mut self.peers.entry(peer).or_insert_with(|| vec![With::default(); count])[at];
        let is_group = what == What::Group;
        let is_new = if is_group { with.groups > 0 } else { *with == With::default() };
        if is_new {
            self.groups.join(vector);
        }
        let count = if is_group { &mut with.groups } else { &mut with.connections };
        *count += 1;
    }

    /// The opposite of [`Self::take`].
    fn leave(&mut self, peer: IpAddr, vector: u16, what: What) {
        let Some(all) = self.peers.get_mut(&peer) else { return };
        let with = &mut all[usize::from(vector)];
        let is_group = what == What::Group;
        let count = if is_group { &mut with.groups } else { &mut with.connections };
        *count -= 1;
        if *with == With::default() || (is_group && with.groups > 0) {
            self.groups.release(vector);
        }
        if all.iter().all(|with| *with == With::default()) {
            self.peers.remove(&peer);
        }
    }
}

impl Berth {
    /// The vector that it is with.
    #[must_use]
    pub fn vector(&self) -> u32 {
        self.vector.into()
    }

    /// One for a link group with the same peer, at the same vector.
    #[must_use]
    pub fn group(&self) -> Self {
        let Self { peer, vector, .. } = *self;
        held(&self.berths.0).take(peer, vector, What::Group);
        Self { berths: Arc::clone(&self.berths), peer, vector, what: What::Group }
    }

    /// The connection goes by TCP from now on, and stays with its vector.
    pub(super) fn goes_by_tcp(&mut self) {
        if self.what == What::Connection {
            self.what = What::Plain;
            held(&self.berths.0).leave(self.peer, self.vector, What::Connection);
        }
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        let mut taken = held(&self.berths.0);
        if self.what != What::Plain {
            taken.leave(self.peer, self.vector, self.what);
        }
        if self.what != What::Group {
            taken.connections[usize::from(self.vector)] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn berths(count: u32, usable: &str) -> Arc<Berths> {
        Berths::new(count, usable.parse().unwrap()).unwrap()
    }

    fn peer(number: u16) -> IpAddr {
        let [a, b] = number.to_be_bytes();
        [10, 0, a, b].into()
    }

    /// Link groups of each vector that may be used.
    fn groups(berths: &Berths) -> Vec<Option<u32>> {
        let taken = held(&berths.0);
        let count = u16::try_from(taken.connections.len()).unwrap();
        (0..count).map(|vector| taken.groups.users(vector)).collect()
    }

    /// Places with each vector, and no tenth more than the mean with any.
    #[track_caller]
    fn are_even<'a>(what: &str, all: impl Iterator<Item = &'a Berth>) {
        let mut each = [0u32; 8];
        all.for_each(|berth| each[berth.vector() as usize] += 1);
        let (most, sum) = (*each.iter().max().unwrap(), each.iter().sum::<u32>());
        assert!(most * 8 * 10 <= sum * 11, "{what}: {each:?}");
    }

    /// Peers are unequal, grow beside each other, and leave many at a time.
    #[test]
    fn peers_of_a_thousand_groups_that_come_and_go_are_spread_evenly() {
        const GROUPS: usize = 1000;
        let berths = berths(8, "all");
        let mut word = 7u32;
        let mut below = |end: usize| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 8) as usize % end
        };
        // Of each peer: its number, its connections, its groups.
        let mut there: Vec<(u16, Vec<Berth>, Vec<Berth>)> = Vec::new();
        let mut next = 0;
        for _ in 0..20 {
            while there.iter().map(|(.., groups)| groups.len()).sum::<usize>() < GROUPS {
                let mut coming = Vec::new();
                for at in there.len()..there.len() + 16 {
                    there.push((next, Vec::new(), Vec::new()));
                    next += 1;
                    coming.extend(std::iter::repeat_n(at, 1 << below(8)));
                }
                while !coming.is_empty() {
                    let at = coming.swap_remove(below(coming.len()));
                    let (number, connections, groups) = &mut there[at];
                    let berth = berths.connection(peer(*number));
                    if groups.iter().all(|group| group.vector() != berth.vector()) {
                        groups.push(berth.group());
                    }
                    connections.push(berth);
                }
            }
            are_even("connections", there.iter().flat_map(|(_, connections, _)| connections));
            are_even("groups", there.iter().flat_map(|(.., groups)| groups));
            there.retain(|_| below(4) > 0);
        }
        drop(there);
        assert_eq!(groups(&berths), [Some(0); 8]);
        assert!(held(&berths.0).peers.is_empty());
    }

    #[test]
    fn a_peer_that_is_known_stays_until_its_vector_has_much_more_to_do() {
        let berths = berths(3, "all");
        let of = |n| berths.connection(peer(n));
        let mut all: Vec<_> = (0..27).map(|_| of(1)).collect();
        let vectors: Vec<u32> = all.iter().map(Berth::vector).collect();
        assert_eq!(vectors[..9], [0; 9]);
        assert_eq!(vectors[9], 1, "{vectors:?}");
        assert_eq!(groups(&berths), [Some(1); 3], "{vectors:?}");
        // What is over counts no more, at once.
        all.retain(|berth| berth.vector() == 2);
        all.truncate(3);
        assert_eq!(groups(&berths), [Some(0), Some(0), Some(1)]);
        assert_eq!((of(1).vector(), of(2).vector()), (2, 0));
    }

    #[test]
    fn each_group_with_a_peer_counts_and_stays_when_connections_have_gone() {
        let berths = berths(2, "all");
        let first = berths.connection(peer(1));
        assert_eq!((first.vector(), groups(&berths)), (0, vec![Some(1), Some(0)]));
        let two = [first.group(), first.group()];
        drop(first);
        assert_eq!(groups(&berths), [Some(2), Some(0)]);
        let others = [2, 3, 4].map(|n| berths.connection(peer(n)));
        assert_eq!(others.each_ref().map(Berth::vector), [1, 1, 0]);
        drop(two);
        assert_eq!(groups(&berths), [Some(1), Some(2)]);
    }

    #[test]
    fn what_goes_by_tcp_is_work_and_no_link_group() {
        let berths = berths(2, "all");
        let mut plain: Vec<_> = (0..3).map(|n| berths.connection(peer(n))).collect();
        assert_eq!(groups(&berths), [Some(2), Some(1)]);
        for berth in &mut plain {
            berth.goes_by_tcp();
            berth.goes_by_tcp();
        }
        assert_eq!(groups(&berths), [Some(0), Some(0)]);
        // A peer that declines is nobody that a vector knows.
        assert!(held(&berths.0).peers.is_empty());
        assert_eq!(held(&berths.0).connections, [2, 1]);
        // The next goes to where there is less to do.
        assert_eq!(berths.connection(peer(0)).vector(), 1);
        // Beside connections and groups that stay, it takes nothing from them.
        let group = berths.connection(peer(7)).group();
        let mut beside = berths.connection(peer(7));
        assert_eq!((beside.vector(), group.vector()), (1, 1));
        beside.goes_by_tcp();
        assert_eq!(groups(&berths), [Some(0), Some(1)]);
        drop((plain, beside));
        assert_eq!(groups(&berths), [Some(0), Some(1)]);
        drop(group);
        assert_eq!(groups(&berths), [Some(0); 2]);
        assert_eq!(held(&berths.0).connections, [0; 2]);
    }

    #[test]
    fn those_that_may_be_used_change_for_what_is_new() {
        let berths = berths(4, "1,3");
        let two = [1, 2].map(|n| berths.connection(peer(n)));
        assert_eq!(two.each_ref().map(Berth::vector), [1, 3]);
        berths.allow("2".parse().unwrap());
        assert_eq!(
            (berths.connection(peer(1)).vector(), berths.connection(peer(9)).vector()),
            (2, 2)
        );
        berths.allow("all".parse().unwrap());
        assert_eq!(groups(&berths), [Some(0), Some(1), Some(0), Some(1)]);
    }
}

//! Random clients: whatever they do, nobody breaks a promise that another one was given, and nobody waits for
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::{is_lease_stat_open, share_conflict};
use super::*;

#[derive(Clone, Debug)]
enum Step {
    Open(Request, u64),
    Close(usize),
    /// Keep this much of what was offered.
    Acknowledge(usize, LeaseState),
    Contend(usize),
    Rename(usize),
    Delete(usize, bool),
    Disconnect(usize),
    Reconnect(usize),
    Later(u64),
}

fn access() -> impl Strategy<Value = Access> {
    let looks = Access::READ_ATTRIBUTES | Access::SYNCHRONIZE;
    prop::sample::select(vec![
        Access::READ_DATA,
        Access::READ_DATA,
        Access::WRITE_DATA,
        Access::READ_DATA | Access::WRITE_DATA,
        Access::DELETE,
        looks,
        looks | Access::READ_CONTROL,
        Access::FILE_ALL,
    ])
}

fn caching() -> impl Strategy<Value = Caching> {
    let letters = prop::sample::select(vec!["", "R", "RW", "RH", "RWH"]);
    prop_oneof![
        Just(Caching::None),
        prop::sample::select(vec!["s", "x", "b"]).prop_map(|l| Caching::Oplock(level(l))),
        (1..4_u8, letters).prop_map(|(key, letters)| with_lease_v2(key, letters, 0).caching),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let shares = prop_oneof![3 => Just(7_u32), 1 => 0..8_u32];
    let some = |one_in| prop::bool::weighted(1.0 / f64::from(one_in));
    (1..4_u8, access(), shares, caching(), some(5), some(8), some(2)).prop_map(
        |(number, access, shares, caching, overwrites, delete_on_close, lasts)| Request {
            opener: opener(number, u64::from(number)),
            access,
            share: ShareAccess::from_bits_truncate(shares),
            caching,
            overwrites,
            delete_on_close,
            durability: if lasts { durable() } else { Durability::None },
            ..Request::default()
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let state = (0..8_u32).prop_map(LeaseState::from_bits_truncate);
    let which = 0..64_usize;
    prop_oneof![
        6 => (request(), prop_oneof![4 => Just(0_u64), 1 => Just(1)])
            .prop_map(|(request, stream)| Step::Open(request, stream)),
        3 => which.clone().prop_map(Step::Close),
        4 => (which.clone(), state).prop_map(|(which, state)| Step::Acknowledge(which, state)),
        2 => which.clone().prop_map(Step::Contend),
        1 => which.clone().prop_map(Step::Rename),
        1 => (which.clone(), any::<bool>()).prop_map(|(which, on)| Step::Delete(which, on)),
        1 => which.clone().prop_map(Step::Disconnect),
        1 => which.prop_map(Step::Reconnect),
        1 => prop::sample::select(vec![1, 20_000, 70_000]).prop_map(Step::Later),
    ]
}

/// What a client has been asked for and has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Oplock(OpenId),
    Lease(Guid, LeaseKey, u64),
}

struct World {
    stage: Stage,
    open: BTreeMap<OpenId, (FileKey, Request)>,
    away: BTreeSet<OpenId>,
    waits: BTreeMap<Waiter, (FileKey, Request)>,
    asked: BTreeMap<Asked, LeaseState>,
}

fn key(stream: u64) -> FileKey {
    FileKey { stream, ..FILE }
}

impl World {
    fn new() -> Self {
        Self {
            stage: Stage::new(),
            open: BTreeMap::new(),
            away: BTreeSet::new(),
            waits: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    fn pick(&self, which: usize) -> Option<(OpenId, FileKey, Request)> {
        let here: Vec<_> = self.open.iter().filter(|(open, _)| !self.away.contains(open)).collect();
        let (open, (file, request)) = here.get(which.checked_rem(here.len())?)?;
        Some((**open, *file, *request))
    }

    fn ask(&mut self, file: FileKey, request: Request) {
        match self.stage.ask(file, &request) {
            Outcome::Granted(_) => {
                self.open.insert(request.opener.open, (file, request));
            }
            Outcome::Wait { deadline_ms } => {
                assert!(deadline_ms > self.stage.now_ms, "there is a break to wait for");
                self.waits.insert(request.waiter, (file, Request { again: true, ..request }));
            }
            Outcome::Refused(_) => {}
        }
    }

    fn gone(&mut self, file: FileKey, open: OpenId, closed: Closed) {
        self.open.remove(&open);
        self.away.remove(&open);
        if let Some(delete) = closed.delete {
            let key = FileKey { stream: delete.stream, ..file };
            self.stage.shard.deleted(key, delete.link, &mut self.stage.fx);
        }
    }

    /// Whose lease it is can be on either stream; a key is used on one at a time.
    fn stream_of(&self, client: Guid, key: LeaseKey) -> u64 {
        let mut held = self.stage.shard.held();
        held.find(|h| h.opener.client == client && h.lease.is_some_and(|(k, _)| k == key))
            .map_or(0, |h| h.key.stream)
    }

    /// Does what follows from the last step.
    fn settle(&mut self) {
        while let Some(purged) = self.stage.fx.purged.pop() {
            assert!(self.away.contains(&purged.opener.open), "only who is away is purged");
            self.gone(purged.key, purged.opener.open, purged.closed);
        }
        for told in self.stage.breaks() {
            let (asked, to, acknowledge) = match told {
                Break::Oplock { open, to, acknowledge, .. } => {
                    let left = if to == OplockLevel::Two { state("R") } else { state("") };
                    (Asked::Oplock(open), left, acknowledge)
                }
                Break::Lease { client, key, from, to, acknowledge, .. } => {
                    assert!(from.contains(to) && from != to);
                    let stream = self.stream_of(client, key);
                    (Asked::Lease(client, key, stream), to, acknowledge)
                }
            };
            if acknowledge {
                let before = self.asked.insert(asked, to);
                assert_eq!(before, None, "one break at a time");
            }
        }
        let breaking: BTreeSet<_> = self
            .stage
            .shard
            .held()
            .filter(|h| h.breaking)
            .map(|h| match h.lease {
                Some((key, _)) => Asked::Lease(h.opener.client, key, h.key.stream),
                None => Asked::Oplock(h.opener.open),
            })
            .collect();
        // What is not being broken any more, because its opens are gone or the time is over.
        self.asked.retain(|asked, _| breaking.contains(asked));
        assert_eq!(self.asked.len(), breaking.len(), "nobody is waited for who was not asked");
        let woken = std::mem::take(&mut self.stage.fx.wake);
        for waiter in woken {
            if let Some((file, request)) = self.waits.remove(&waiter) {
                self.ask(file, request);
            }
        }
        if !self.stage.fx.is_empty() {
            self.settle();
        }
    }

    fn acknowledge(&mut self, which: usize, keep: LeaseState) {
        let Some(at) = which.checked_rem(self.asked.len()) else { return };
        let Some((asked, to)) = self.asked.iter().nth(at).map(|(a, t)| (*a, *t)) else { return };
        self.asked.remove(&asked);
        let keep = keep & to;
        match asked {
            Asked::Oplock(open) => {
                let level = if keep == state("R") { OplockLevel::Two } else { OplockLevel::None };
                let file = self.open[&open].0;
                let done =
                    self.stage.shard.acknowledge_oplock(file, open, level, &mut self.stage.fx);
                assert_eq!(done, Ok(level));
            }
            Asked::Lease(client, lease, stream) => {
                let (now_ms, lease) = (self.stage.now_ms, (client, lease));
                let fx = &mut self.stage.fx;
                let done = self.stage.shard.acknowledge_lease(now_ms, key(stream), lease, keep, fx);
                assert_eq!(done, Ok(keep));
            }
        }
    }

    fn take(&mut self, step: &Step) {
        let now_ms = self.stage.now_ms;
        match *step {
            Step::Open(request, stream) => {
                let request = self.stage.prepare(request);
                // A lease key is used on one stream at a time: what `Leases` sees to.
                let used = match request.caching {
                    Caching::Lease(wanted) => {
                        let held = self.open.values().chain(self.waits.values());
                        let same = |r: &Request| {
                            r.opener.client == request.opener.client
                                && matches!(r.caching, Caching::Lease(l) if l.key == wanted.key)
                        };
                        held.into_iter().find(|(_, r)| same(r)).map(|(file, _)| file.stream)
                    }
                    _ => None,
                };
                self.ask(key(used.unwrap_or(stream)), request);
            }
            Step::Close(which) => {
                let Some((open, file, _)) = self.pick(which) else { return };
                let closed = self.stage.shard.close(file, open, &mut self.stage.fx).unwrap();
                self.gone(file, open, closed);
            }
            Step::Acknowledge(which, keep) => self.acknowledge(which, keep),
            Step::Contend(which) => {
                let Some((open, file, _)) = self.pick(which) else { return };
                self.stage.shard.contend(now_ms, file, open, &mut self.stage.fx);
            }
            Step::Rename(which) => {
                let Some((open, file, _)) = self.pick(which) else { return };
                let waiter = Waiter(u64::MAX);
                let fx = &mut self.stage.fx;
                self.stage.shard.contend_handles(now_ms, file, open, waiter, fx).unwrap();
                self.stage.shard.forget(file, waiter);
            }
            Step::Delete(which, pending) => {
                let Some((open, file, _)) = self.pick(which) else { return };
                self.stage.shard.set_delete_pending(file, open, pending).unwrap();
            }
            Step::Disconnect(which) => {
                let Some((open, file, _)) = self.pick(which) else { return };
                match self.stage.shard.disconnect(now_ms, file, open, &mut self.stage.fx) {
                    Ok(until_ms) => {
                        assert_eq!(until_ms, now_ms + 60_000);
                        self.away.insert(open);
                    }
                    Err(closed) => self.gone(file, open, closed.unwrap()),
                }
            }
            Step::Reconnect(which) => {
                let away: Vec<_> = self.away.iter().copied().collect();
                let Some(at) = which.checked_rem(away.len()) else { return };
                let (file, request) = self.open[&away[at]];
                let lease = match request.caching {
                    Caching::Lease(wanted) => Some(wanted.key),
                    _ => None,
                };
                let granted = self.stage.shard.reconnect(file, request.opener, lease).unwrap();
                assert!(granted.durable);
                self.away.remove(&away[at]);
            }
            Step::Later(ms) => {
                self.stage.now_ms += ms;
                let next = self.stage.shard.expire(self.stage.now_ms, &mut self.stage.fx);
                assert!(next.is_none_or(|at_ms| at_ms > self.stage.now_ms));
            }
        }
    }

    /// What always holds.
    fn check(&self) {
        let held: Vec<_> = self.stage.shard.held().collect();
        assert_eq!(held.len(), self.open.len());
        assert_eq!(self.stage.shard.counts().opens, held.len());
        for (at, one) in held.iter().enumerate() {
            for other in &held[at + 1..] {
                if one.key.stream != other.key.stream {
                    continue;
                }
                let shares = |h: &super::super::Held| (h.access, h.share);
                assert!(!share_conflict(shares(one), shares(other)), "{one:?} {other:?}");
                let lease = |h: &super::super::Held| h.lease.map(|(key, _)| (h.opener.client, key));
                if lease(one).is_some() && lease(one) == lease(other) {
                    continue;
                }
                for (one, other) in [(one, other), (other, one)] {
                    if !caches(one).contains(LeaseState::WRITE) {
                        continue;
                    }
                    // Who caches writes shares the file with those who only look.
                    assert!(is_lease_stat_open(other.access), "{one:?} {other:?}");
                    assert!(!caches(other).contains(LeaseState::WRITE), "{one:?} {other:?}");
                }
            }
        }
    }

    /// Everybody does what he is asked for; then nobody waits.
    fn finish(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "no end of breaks");
            self.settle();
            if self.asked.is_empty() {
                break;
            }
            self.acknowledge(round, LeaseState::all());
        }
        let waits: Vec<_> = self.waits.values().map(|(_, request)| request.waiter).collect();
        assert_eq!(waits, [], "nobody was told that the way is free");
        while let Some((open, (file, _))) = self.open.pop_first() {
            let closed = self.stage.shard.close(file, open, &mut self.stage.fx).unwrap();
            self.gone(file, open, closed);
        }
        assert_eq!(self.stage.shard.counts(), super::super::Counts::default());
        assert_eq!(self.stage.shard.deadline(), None);
    }
}

fn caches(held: &super::super::Held) -> LeaseState {
    match (held.lease, held.oplock) {
        (Some((_, state)), _) => state,
        (None, OplockLevel::Batch) => state("RWH"),
        (None, OplockLevel::Exclusive) => state("RW"),
        (None, OplockLevel::Two) => state("R"),
        (None, _) => state(""),
    }
}

proptest! {
    #[test]
    fn promises_are_kept_and_nobody_waits_for_nothing(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
            world.settle();
            world.check();
        }
        world.finish();
    }
}

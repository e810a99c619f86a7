//! Several threads, each with as much to do as one alone would have.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use frag::wire::{self, Fragment, Packet};
use frag::{
    Arrival, Config, Datagram, HashKey, Ledger, Limits, Released, Shard, Shared, Sink, Steering,
};
use testkit::cpu;

use crate::Words;
use crate::handoff::{BATCH, Descriptor, Lane};
use crate::ours::{BURST, Gather, arrival, limits};
use crate::peers::Naive;
use crate::trace::{Random, Trace};

/// How threads share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// A shard each, each with flows of its own
    Separate,
    /// A shard each; fragments come to either thread and are handed to the one they belong to
    Sprayed,
    /// One table, a lock for each of 256 buckets; fragments come to either thread
    Buckets,
    /// The same, and each fragment is charged to one count for all
    BucketsOneCount,
    /// One table with one lock; fragments come to either thread
    Mutex,
    /// One map of growing buffers with one lock; fragments come to either thread
    Naive,
    /// No table: headers are read and hashed
    Headers,
}

/// How far a thread may be ahead of another, in windows of the trace.
const WINDOWS_AHEAD: usize = 2;
/// Far enough for everybody.
const FINISHED: usize = usize::MAX / 2;

/// Memory and cores for which the ledger's batch is less than a fragment.
const SMALL_BATCH: (u64, u32) = (64 << 20, 4096);

impl Way {
    /// Whether each thread has packets of its own, and not a share of all.
    const fn apart(self) -> bool {
        matches!(self, Self::Separate | Self::Headers)
    }

    /// Whether threads sleep while others work. Then the time of a clock counts; else CPU time, of the
    /// thread that took most, which says what it would be if nobody else used the machine.
    const fn locks(self) -> bool {
        !matches!(self, Self::Separate | Self::Sprayed | Self::Headers)
    }

    fn limits(self, threads: u32) -> anyhow::Result<Limits> {
        if self != Self::BucketsOneCount {
            return limits(threads);
        }
        let (memory_bytes, shards) = SMALL_BATCH;
        Ok(Config { memory_bytes, shards, ..Config::default() }.limits()?)
    }

    const fn buckets(self) -> u32 {
        if matches!(self, Self::Mutex) { 1 } else { 256 }
    }
}

/// Counts what comes out, or copies it to one place.
struct Taker<'t> {
    gather: Option<Gather<'t>>,
    datagrams: usize,
}

impl Sink<u32> for Taker<'_> {
    fn whole(&mut self, _: u32, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, u32>) {
        if let Some(gather) = &mut self.gather {
            gather.datagram(datagram);
        }
        self.datagrams += 1;
    }

    fn release(&mut self, buffer: u32, _: Released) {
        std::hint::black_box(buffer);
    }
}

/// What all threads of a measurement see.
struct Yard {
    way: Way,
    copy: bool,
    passes: usize,
    traces: Vec<Trace>,
    /// Which slots come to which thread, if they share a trace.
    shares: Vec<Vec<u32>>,
    shared: Arc<Shared<u32>>,
    naive: Mutex<Naive>,
    ledger: Arc<Ledger>,
    limits: Limits,
    steering: Steering,
    /// `lanes[from][to]`
    lanes: Vec<Vec<Lane>>,
    /// How many windows of its trace each thread has begun.
    begun: Vec<AtomicUsize>,
    /// Threads that have nothing more to hand over.
    done: AtomicUsize,
    start: Barrier,
}

/// What a thread came to.
struct Stint {
    begin: Instant,
    end: Instant,
    /// CPU time.
    used: Duration,
    datagrams: usize,
}

/// Nanoseconds per fragment of all threads together, for each round.
pub(crate) fn measure(
    way: Way,
    words: Words,
    threads: usize,
    copy: bool,
) -> anyhow::Result<Vec<f64>> {
    let mut yard = Yard::new(way, words, threads, copy)?;
    yard.round(threads)?; // warms up
    (0..words.rounds).map(|_| yard.round(threads)).collect()
}

impl Yard {
    fn new(way: Way, words: Words, threads: usize, copy: bool) -> anyhow::Result<Self> {
        let traces: anyhow::Result<Vec<Trace>> = if way.apart() {
            let salt = |n: usize| u32::try_from(n * words.flows).unwrap_or(0);
            (0..threads).map(|n| Trace::new(words.case(salt(n)))).collect()
        } else {
            let fragments = words.fragments * threads;
            Ok(vec![Trace::new(Words { fragments, ..words }.case(0))?])
        };
        let traces = traces?;
        let count = u32::try_from(threads)?;
        let limits = way.limits(count)?;
        Ok(Self {
            way,
            copy,
            passes: words.passes,
            shares: if way.apart() { Vec::new() } else { spray(traces[0].len(), threads) },
            traces,
            shared: Shared::new(&limits, way.buckets(), &HashKey::new([5, 6])),
            naive: Mutex::default(),
            ledger: Ledger::of(&limits),
            limits,
            steering: Steering::new(HashKey::new([7, 8]), count),
            lanes: (0..threads).map(|_| (0..threads).map(|_| Lane::new()).collect()).collect(),
            begun: (0..threads).map(|_| AtomicUsize::new(0)).collect(),
            done: AtomicUsize::new(0),
            start: Barrier::new(threads),
        })
    }

    /// All passes, on all threads.
    fn round(&mut self, threads: usize) -> anyhow::Result<f64> {
        self.done.store(0, Ordering::Relaxed);
        self.begun.iter().for_each(|begun| begun.store(0, Ordering::Relaxed));
        let yard = &*self;
        let stints: Vec<anyhow::Result<Stint>> = thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|n| scope.spawn(move || yard.stint(n))).collect();
            all.into_iter()
                .map(|one| one.join().unwrap_or_else(|_| anyhow::bail!("panicked")))
                .collect()
        });
        let stints: Vec<Stint> = stints.into_iter().collect::<anyhow::Result<_>>()?;
        let (datagrams, fragments) =
            yard.traces.iter().fold((0, 0), |(d, f), trace| (d + trace.datagrams, f + trace.len()));
        let came: usize = stints.iter().map(|stint| stint.datagrams).sum();
        let passes = self.passes;
        ensure!(came == datagrams * passes, "{came} of {} datagrams", datagrams * passes);
        let begin = stints.iter().map(|stint| stint.begin).min().context("no thread")?;
        let end = stints.iter().map(|stint| stint.end).max().context("no thread")?;
        let used = stints.iter().map(|stint| stint.used).max().context("no thread")?;
        let time = if self.way.locks() { end - begin } else { used };
        Ok(time.as_secs_f64() * 1e9 / (fragments * passes) as f64)
    }

    fn stint(&self, me: usize) -> anyhow::Result<Stint> {
        cpu::pin(me)?;
        let trace = &self.traces[if self.way.apart() { me } else { 0 }];
        let gather = self.copy.then(|| Gather::new(trace));
        let mut taker = Taker { gather, datagrams: 0 };
        let secret = HashKey::new([9, me as u64]);
        let mut shard = Shard::new(&self.limits, &self.ledger, secret);
        self.start.wait();
        let (begin, before) = (Instant::now(), cpu::of_this_thread());
        match self.way {
            Way::Separate => self.separate(trace, &mut shard, &mut taker),
            Way::Sprayed => self.sprayed(me, trace, &mut shard, &mut taker),
            Way::Buckets | Way::BucketsOneCount | Way::Mutex => self.locked(me, trace, &mut taker),
            Way::Naive => self.naive(me, trace, &mut taker),
            Way::Headers => self.headers(trace, &mut taker),
        }
        self.begun[me].store(FINISHED, Ordering::Relaxed);
        let (end, used) = (Instant::now(), cpu::of_this_thread() - before);
        Ok(Stint { begin, end, used, datagrams: taker.datagrams })
    }

    /// A packet; each pass is in a scope of its own, since one thread may be ahead of another.
    fn arrival<'t>(trace: &'t Trace, slot: u32, pass: usize) -> Arrival<'t, u32> {
        Arrival { scope: pass as u64, ..arrival(trace, slot as usize) }
    }

    /// Waits for threads that are far behind: packets that come in at the same time are worked on at about
    /// the same time.
    fn keep_step(&self, me: usize, pass: usize, slot: u32, mut meanwhile: impl FnMut()) {
        let case = self.traces[0].case;
        let windows = self.traces[0].datagrams / case.flows;
        let window = slot as usize / (case.flows * case.pieces()) + pass * windows;
        self.begun[me].store(window, Ordering::Relaxed);
        let slow = |begun: &AtomicUsize| begun.load(Ordering::Relaxed) + WINDOWS_AHEAD < window;
        while self.begun.iter().any(slow) {
            meanwhile();
            self.rest();
        }
    }

    /// Lets others go on. Where CPU time is what counts, this must take none.
    fn rest(&self) {
        if self.way.locks() {
            thread::yield_now();
        } else {
            thread::sleep(Duration::from_micros(20));
        }
    }

    fn separate(&self, trace: &Trace, shard: &mut Shard<u32>, taker: &mut Taker<'_>) {
        let slots: Vec<u32> = (0u32..).take(trace.len()).collect();
        let mut burst = Vec::with_capacity(BURST);
        for pass in 0..self.passes {
            for slots in slots.chunks(BURST) {
                burst.extend(slots.iter().map(|slot| Self::arrival(trace, *slot, pass)));
                shard.push_burst(&mut burst, 0, taker);
            }
        }
    }

    fn locked(&self, me: usize, trace: &Trace, taker: &mut Taker<'_>) {
        let mut core = self.shared.core();
        for pass in 0..self.passes {
            for slots in self.shares[me].chunks(BURST) {
                self.keep_step(me, pass, slots[0], || ());
                for slot in slots {
                    self.shared.push(&mut core, Self::arrival(trace, *slot, pass), 0, taker);
                }
            }
        }
    }

    fn naive(&self, me: usize, trace: &Trace, taker: &mut Taker<'_>) {
        for pass in 0..self.passes {
            for slot in &self.shares[me] {
                self.keep_step(me, pass, *slot, || ());
                let packet = trace.packet(*slot as usize);
                let mut naive = self.naive.lock().unwrap_or_else(PoisonError::into_inner);
                let whole = naive.push(packet, pass as u64);
                drop(naive);
                taker.datagrams += usize::from(std::hint::black_box(whole).is_some());
            }
        }
    }

    fn headers(&self, trace: &Trace, taker: &mut Taker<'_>) {
        let secret = HashKey::new([1, 2]);
        for _ in 0..self.passes {
            taker.datagrams += crate::ours::hash_headers(&secret, trace);
        }
    }

    fn sprayed(&self, me: usize, trace: &Trace, shard: &mut Shard<u32>, taker: &mut Taker<'_>) {
        let threads = self.lanes.len();
        let mut post = Post {
            yard: self,
            me,
            trace,
            shard,
            taker,
            inbox: Vec::with_capacity(BATCH),
            mine: Vec::with_capacity(2 * BATCH),
        };
        let mut out: Vec<Vec<Descriptor>> =
            (0..threads).map(|_| Vec::with_capacity(BATCH)).collect();
        for pass in 0..self.passes {
            for slots in self.shares[me].chunks(BURST) {
                self.keep_step(me, pass, slots[0], || post.collect());
                post.sort(slots, pass, &mut out);
                post.collect();
            }
        }
        (0..threads).filter(|to| *to != me).for_each(|to| post.send(to, &mut out[to]));
        self.begun[me].store(FINISHED, Ordering::Relaxed);
        // Pairs with the Acquire below: whoever sees it sees all that was sent.
        self.done.fetch_add(1, Ordering::Release);
        while self.done.load(Ordering::Acquire) < threads {
            post.collect();
            self.rest();
        }
        post.collect();
    }
}

/// A thread's side of the lanes.
struct Post<'y, 't> {
    yard: &'y Yard,
    me: usize,
    trace: &'y Trace,
    shard: &'y mut Shard<u32>,
    taker: &'y mut Taker<'t>,
    /// What others have sent, and its packets or our own, to be pushed.
    inbox: Vec<Descriptor>,
    mine: Vec<(Fragment, Arrival<'y, u32>)>,
}

impl<'y> Post<'y, '_> {
    /// Takes in packets, or puts them to those for their owners.
    fn sort(&mut self, slots: &[u32], pass: usize, out: &mut [Vec<Descriptor>]) {
        let trace = self.trace;
        let headers = slots.iter().map(|slot| trace.packet(*slot as usize)[0]);
        std::hint::black_box(headers.fold(0, |all, byte| all ^ byte));
        for slot in slots {
            let arrival = Yard::arrival(trace, *slot, pass);
            let Ok(Packet::Fragment(fragment)) = wire::parse(arrival.packet, arrival.scope) else {
                continue;
            };
            let owner = self.yard.steering.shard(&fragment.key) as usize;
            if owner == self.me {
                self.mine.push((fragment, arrival));
                continue;
            }
            out[owner].push(Descriptor { fragment, slot: *slot });
            if out[owner].len() == BATCH {
                self.send(owner, &mut out[owner]);
            }
        }
        self.shard.push_fragments(&mut self.mine, 0, self.taker);
    }

    fn send(&mut self, to: usize, batch: &mut Vec<Descriptor>) {
        while !self.yard.lanes[self.me][to].send(batch) {
            self.collect();
            self.yard.rest();
        }
    }

    /// Takes in what others have sent.
    fn collect(&mut self) {
        for from in (0..self.yard.lanes.len()).filter(|from| *from != self.me) {
            while self.yard.lanes[from][self.me].receive(&mut self.inbox) {
                let trace = self.trace;
                let sent = self.inbox.drain(..);
                let sent = sent
                    .map(|Descriptor { fragment, slot }| (fragment, arrival(trace, slot as usize)));
                self.mine.extend(sent);
                self.shard.push_fragments(&mut self.mine, 0, self.taker);
            }
        }
    }
}

/// Slots for each thread, by chance.
fn spray(slots: usize, threads: usize) -> Vec<Vec<u32>> {
    let mut random = Random::new(11);
    let mut shares = vec![Vec::new(); threads];
    (0u32..).take(slots).for_each(|slot| shares[random.below(threads)].push(slot));
    shares
}

//! Several threads, each with as much to do as one alone would have.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use frag::{Arrival, Datagram, HashKey, Ledger, Limits, Released, Shard, Shared, Sink, Steering};
use testkit::cpu;

use crate::Words;
use crate::handoff::{Ends, Post};
use crate::ours::{BURST, Before, Gather, ROOM, arrival, limits};
use crate::peers::Naive;
use crate::trace::{FRAME, Places, Slot, Trace};

/// How threads share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// A shard each, each with flows of its own
    Separate,
    /// The same, and datagrams are handed out as they are even where others write them out
    Slices,
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
    /// No packets: arithmetic in registers, of which two threads get what two cores have
    Arithmetic,
    /// No table: each packet is copied to one place, of which they get what the memory has
    Copies,
}

/// Packets, of all that come in, after which threads look where the others are.
const STEP: usize = 128;
/// How far a thread may be ahead of another, in those.
const STEPS_AHEAD: usize = 4;
/// Rounds of arithmetic for a packet.
const ARITHMETIC: usize = 16;
/// Looks at whether others are done, between two at the clock.
const SPINS: u32 = 1000;
/// Far enough for everybody.
const FINISHED: usize = usize::MAX / 2;

impl Way {
    /// Whether each thread has packets of its own, and not a share of all.
    const fn apart(self) -> bool {
        let shards = matches!(self, Self::Separate | Self::Slices);
        shards || matches!(self, Self::Headers | Self::Arithmetic | Self::Copies)
    }

    /// Whether threads sleep while others work. Then the time of a clock counts; else CPU time, of the
    /// thread that took most, which says what it would be if nobody else used the machine.
    const fn locks(self) -> bool {
        !self.apart() && !matches!(self, Self::Sprayed)
    }

    const fn buckets(self) -> u32 {
        if matches!(self, Self::Mutex) { 1 } else { 256 }
    }
}

/// Counts what comes out, or copies it to one place.
pub(crate) struct Taker<'t> {
    gather: Option<Gather<'t>>,
    datagrams: usize,
}

impl Sink<Slot> for Taker<'_> {
    fn whole(&mut self, _: Slot, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, Slot>) {
        if let Some(gather) = &mut self.gather {
            gather.datagram(datagram);
        }
        self.datagrams += 1;
    }

    fn release(&mut self, buffer: Slot, _: Released) {
        std::hint::black_box(buffer);
    }

    fn soon(&mut self, buffer: &Slot) {
        if let Some(gather) = &mut self.gather {
            gather.soon(buffer);
        }
    }
}

/// What all threads of a measurement see.
pub(crate) struct Yard {
    way: Way,
    copy: bool,
    passes: usize,
    traces: Vec<Arc<Trace>>,
    /// Which slots come to which thread.
    shares: Vec<Range<u32>>,
    shared: Arc<Shared<Slot>>,
    naive: Mutex<Naive>,
    ledger: Arc<Ledger>,
    limits: Limits,
    steering: Steering,
    ends: Vec<Mutex<Ends>>,
    /// How many steps of the trace each thread has begun.
    begun: Vec<Begun>,
    /// Threads that have nothing more to hand over.
    done: AtomicUsize,
    start: Barrier,
}

/// How far a thread is, alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Begun(AtomicUsize);

/// What a thread came to.
struct Stint {
    begin: Instant,
    end: Instant,
    /// CPU time, without that of waiting for others.
    used: Duration,
    datagrams: usize,
}

/// The traces of all measurements, each made once.
pub(crate) struct Traces {
    words: Words,
    /// Of the first thread, of the second, each with flows of its own.
    apart: Vec<Arc<Trace>>,
    /// For all threads together, by how many they are.
    common: HashMap<usize, Arc<Trace>>,
}

impl Traces {
    pub(crate) fn new(words: Words) -> Self {
        Self { words, apart: Vec::new(), common: HashMap::new() }
    }

    fn of(&mut self, way: Way, threads: usize) -> anyhow::Result<Vec<Arc<Trace>>> {
        let words = self.words;
        if way.apart() {
            while self.apart.len() < threads {
                let salt = u32::try_from(self.apart.len() * words.flows)?;
                self.apart.push(Arc::new(Trace::new(words.case(salt))?));
            }
            return Ok(self.apart[..threads].to_vec());
        }
        if let Some(trace) = self.common.get(&threads) {
            return Ok(vec![Arc::clone(trace)]);
        }
        let fragments = words.fragments * threads;
        let trace = Trace::in_rings(Words { fragments, ..words }.case(0), threads)?;
        let trace = Arc::new(trace);
        self.common.insert(threads, Arc::clone(&trace));
        Ok(vec![trace])
    }
}

impl Yard {
    /// So many threads, for [`Self::round`].
    ///
    /// # Errors
    ///
    /// When no datagrams could be like these.
    pub(crate) fn new(
        way: Way,
        words: Words,
        threads: usize,
        copy: bool,
        traces: &mut Traces,
    ) -> anyhow::Result<Self> {
        let traces = traces.of(way, threads)?;
        let count = u32::try_from(threads)?;
        let limits = limits(count)?;
        let ledger = match way {
            Way::BucketsOneCount => Ledger::unbatched(ROOM),
            _ => Ledger::of(&limits),
        };
        Ok(Self {
            way,
            copy: copy && way != Way::Slices,
            passes: words.passes,
            shares: traces.iter().flat_map(|trace| trace.rings.clone()).collect(),
            traces,
            shared: Shared::with(&limits, way.buckets(), &HashKey::new([5, 6]), &ledger),
            naive: Mutex::default(),
            ledger,
            limits,
            steering: Steering::new(HashKey::new([7, 8]), count),
            ends: Ends::all(threads).into_iter().map(Mutex::new).collect(),
            begun: (0..threads).map(|_| Begun::default()).collect(),
            done: AtomicUsize::new(0),
            start: Barrier::new(threads),
        })
    }

    /// All passes, on all threads: nanoseconds per fragment of all together.
    ///
    /// # Errors
    ///
    /// When datagrams were lost.
    pub(crate) fn round(&mut self) -> anyhow::Result<f64> {
        let threads = self.begun.len();
        self.done.store(0, Ordering::Relaxed);
        self.begun.iter().for_each(|begun| begun.0.store(0, Ordering::Relaxed));
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
        let mut places = if self.copy { Some(Places::new(&trace.case)?) } else { None };
        let gather = places.as_mut().map(|places| Gather::new(trace, places));
        let mut taker = Taker { gather, datagrams: 0 };
        let mut shard = match self.way {
            Way::Sprayed => Shard::steered(&self.limits, &self.ledger, &self.steering),
            _ => Shard::new(&self.limits, &self.ledger, HashKey::new([9, me as u64])),
        };
        self.start.wait();
        let (begin, before) = (Instant::now(), cpu::of_this_thread());
        let mut waited = Duration::ZERO;
        match self.way {
            Way::Separate | Way::Slices => self.separate(me, trace, &mut shard, &mut taker),
            Way::Sprayed => waited = self.sprayed(me, trace, &mut shard, &mut taker),
            Way::Buckets | Way::BucketsOneCount | Way::Mutex => self.locked(me, trace, &mut taker),
            Way::Naive => self.naive(me, trace, &mut taker),
            Way::Headers => self.headers(trace, &mut taker),
            Way::Arithmetic => self.arithmetic(trace, &mut taker),
            Way::Copies => self.copies(trace, &mut taker),
        }
        self.begun[me].0.store(FINISHED, Ordering::Relaxed);
        let (end, used) = (Instant::now(), cpu::of_this_thread() - before - waited);
        Ok(Stint { begin, end, used, datagrams: taker.datagrams })
    }

    /// A packet; each pass is in a scope of its own, since one thread may be ahead of another.
    fn arrival<'t>(trace: &'t Trace, slot: u32, pass: usize) -> Arrival<'t, Slot> {
        Arrival { scope: pass as u64, ..arrival(trace, slot as usize) }
    }

    /// Waits for threads that are far behind: packets that come in at the same time are worked on at about
    /// the same time. Answers the CPU time that this took, if that is what counts.
    fn keep_step(
        &self,
        me: usize,
        pass: usize,
        slot: u32,
        meanwhile: impl FnMut() -> bool,
    ) -> Duration {
        let trace = &self.traces[0];
        let step = (trace.came[slot as usize] as usize + pass * trace.len()) / STEP;
        if self.begun[me].0.load(Ordering::Relaxed) == step {
            return Duration::ZERO;
        }
        self.begun[me].0.store(step, Ordering::Relaxed);
        let behind =
            |by: usize| self.begun.iter().any(|begun| begun.0.load(Ordering::Relaxed) + by < step);
        if !behind(STEPS_AHEAD) {
            return Duration::ZERO;
        }
        // Until they have caught up: each wait has a price of its own.
        let others_are_slow = || behind(0);
        if !self.way.locks() {
            return idle(others_are_slow, meanwhile);
        }
        while others_are_slow() {
            thread::yield_now();
        }
        Duration::ZERO
    }

    fn separate(&self, me: usize, trace: &Trace, shard: &mut Shard<Slot>, taker: &mut Taker<'_>) {
        let mut burst = Vec::with_capacity(BURST);
        for pass in 0..self.passes {
            for slots in bursts(&self.shares[me]) {
                let mut before = Before { sink: taker, trace, next: slots.end as usize };
                burst.extend(slots.map(|slot| Self::arrival(trace, slot, pass)));
                shard.push_burst(&mut burst, 0, &mut before);
            }
        }
    }

    fn locked(&self, me: usize, trace: &Trace, taker: &mut Taker<'_>) {
        let mut core = self.shared.core();
        for pass in 0..self.passes {
            for slots in bursts(&self.shares[me]) {
                self.keep_step(me, pass, slots.start, || false);
                for slot in slots {
                    self.shared.push(&mut core, Self::arrival(trace, slot, pass), 0, taker);
                }
            }
        }
    }

    fn naive(&self, me: usize, trace: &Trace, taker: &mut Taker<'_>) {
        for pass in 0..self.passes {
            for slot in self.shares[me].clone() {
                self.keep_step(me, pass, slot, || false);
                let packet = trace.packet(slot as usize);
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

    /// For each packet as many steps as keep the units of a core busy for about the time that one takes us.
    fn arithmetic(&self, trace: &Trace, taker: &mut Taker<'_>) {
        let mut lanes = [1u64, 2, 3, 4];
        for _ in 0..self.passes * trace.len() {
            for _ in 0..ARITHMETIC {
                lanes = lanes.map(|lane| lane.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ lane >> 29);
                lanes = std::hint::black_box(lanes);
            }
        }
        taker.datagrams += self.passes * trace.datagrams;
    }

    fn copies(&self, trace: &Trace, taker: &mut Taker<'_>) {
        let mut to = [0; FRAME];
        for _ in 0..self.passes {
            for slot in 0..trace.len() {
                let packet = trace.packet(slot);
                to[..packet.len()].copy_from_slice(packet);
                std::hint::black_box(&mut to);
            }
            taker.datagrams += trace.datagrams;
        }
    }

    fn sprayed(
        &self,
        me: usize,
        trace: &Trace,
        shard: &mut Shard<Slot>,
        taker: &mut Taker<'_>,
    ) -> Duration {
        let ends = std::mem::take(&mut *self.ends(me));
        let mut post = Post::new(&self.steering, me, trace, shard, taker, ends);
        let mut waited = Duration::ZERO;
        for pass in 0..self.passes {
            for slots in bursts(&self.shares[me]) {
                waited += self.keep_step(me, pass, slots.start, || post.collect());
                let next = slots.end as usize;
                post.sort(next, slots.map(|slot| Self::arrival(trace, slot, pass)));
                post.collect();
            }
        }
        self.begun[me].0.store(FINISHED, Ordering::Relaxed);
        // Pairs with the Acquire below: whoever sees it sees all that was sent.
        self.done.fetch_add(1, Ordering::Release);
        waited += idle(|| self.done.load(Ordering::Acquire) < self.begun.len(), || post.collect());
        post.collect();
        *self.ends(me) = post.ends;
        waited
    }

    fn ends(&self, of: usize) -> MutexGuard<'_, Ends> {
        self.ends[of].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spins while `others_work`, and does what there is to do meanwhile. Answers the CPU time that this took
/// without the work.
fn idle(others_work: impl Fn() -> bool, mut meanwhile: impl FnMut() -> bool) -> Duration {
    let mut idle = Duration::ZERO;
    while others_work() {
        if meanwhile() {
            continue;
        }
        let begin = cpu::of_this_thread();
        for _ in 0..SPINS {
            if !others_work() {
                break;
            }
            std::hint::spin_loop();
        }
        idle += cpu::of_this_thread() - begin;
    }
    idle
}

/// Slots that are handed in at once.
fn bursts(slots: &Range<u32>) -> impl Iterator<Item = Range<u32>> + use<> {
    let (begin, end, each) = (slots.start, slots.end, u32::try_from(BURST).unwrap_or(1));
    (begin..end).step_by(BURST).map(move |at| at..end.min(at + each))
}

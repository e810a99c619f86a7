//! Which of some ways to move a file's data costs less here, learned from what they cost.
//!
//! To a client on the same host a mapping is copied once more than pages that are passed on; these have to be counted,
//! cleaned up by the receiver, and are cold when it copies them. Which of the two is more depends on the CPU, on the
//! kernel's mitigations, on the clients and on how many there are: on one machine a pipe takes twice the time that a
//! mapping takes, on another half of it. So a loop that streams tries all in turn now and then, three times each, and
//! goes on with the one that served more bytes in the time, or as many for less of its CPU.
//!
//! What is received is not tried on: the worse way may be six times as slow for one client, which a trial would show.

use std::cell::Cell;

use super::Method;

/// Bytes after a change of the method that count for none: what began before it is under way still.
const SETTLE: u64 = 16 << 20;
/// Bytes that are measured then.
const MEASURED: u64 = 48 << 20;
/// How often each is tried. The best of these counts: whatever disturbs makes it slower.
const TRIES: usize = 3;
/// Bytes moved by the best one until all are tried again, where that was another one than before.
const SOON: u64 = 4 << 30;
/// The same where it was the same: of what is moved then, a fortieth or less is moved by the others.
const LATER: u64 = 16 << 30;
/// What took longer than this, in nanoseconds, is no stream: the loop has slept for lack of requests.
const STREAM_NS: u64 = 2_000_000_000;

/// So many times what it had of the CPU: a loop that took that long slept most of it.
const SLEPT: u64 = 4;

/// Two clocks, both in nanoseconds from some point on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// Of the world.
    pub wall: u64,
    /// What the loop's thread has had of a CPU.
    pub cpu: u64,
}

impl Clocks {
    /// As they are now, for the calling thread.
    #[must_use]
    pub fn read() -> Self {
        Self { wall: sys::call::now_ns(), cpu: sys::call::thread_cpu_ns() }
    }

    fn since(self, before: Self) -> Self {
        let passed = |now: u64, before: u64| now.saturating_sub(before);
        Self { wall: passed(self.wall, before.wall), cpu: passed(self.cpu, before.cpu) }
    }
}

/// Methods of which one is chosen, [`MOST`] at most.
const SEND: &[Method] = &[Method::Map, Method::Splice, Method::Vmsplice];
const MOST: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The best one is used until so many bytes more are sent.
    Holding {
        left: u64,
    },
    /// The one that comes `attempt` after the best one is being tried, by turns.
    Settling {
        attempt: usize,
        left: u64,
    },
    Measuring {
        attempt: usize,
        left: u64,
        since: Clocks,
    },
}

/// What a loop has learned of sending to clients on this host; of that loop alone.
#[derive(Debug)]
pub struct Lesson {
    methods: &'static [Method],
    /// Index of the one in use.
    best: Cell<usize>,
    phase: Cell<Phase>,
    /// The least that [`MEASURED`] bytes took, by method.
    least: Cell<[Clocks; MOST]>,
}

impl Default for Lesson {
    fn default() -> Self {
        Self::of(SEND)
    }
}

const UNKNOWN: [Clocks; MOST] = [Clocks { wall: u64::MAX, cpu: u64::MAX }; MOST];

impl Lesson {
    fn of(methods: &'static [Method]) -> Self {
        Self {
            methods,
            best: Cell::new(0),
            // A loop that moves no more than this in its life has no use for knowing.
            phase: Cell::new(Phase::Holding { left: SETTLE }),
            least: Cell::new(UNKNOWN),
        }
    }

    /// The method for the next `len` bytes. `clocks` is called seldom.
    pub fn choose(&self, len: u64, clocks: impl Fn() -> Clocks) -> Method {
        let next = match self.phase.get() {
            Phase::Holding { left } => match left.checked_sub(len) {
                Some(left) => Phase::Holding { left },
                None => {
                    self.least.set(UNKNOWN);
                    Phase::Settling { attempt: 0, left: SETTLE }
                }
            },
            Phase::Settling { attempt, left } => match left.checked_sub(len) {
                Some(left) => Phase::Settling { attempt, left },
                None => Phase::Measuring { attempt, left: MEASURED, since: clocks() },
            },
            Phase::Measuring { attempt, left, since } => match left.checked_sub(len) {
                Some(left) => Phase::Measuring { attempt, left, since },
                None => self.measured(attempt, clocks().since(since)),
            },
        };
        self.phase.set(next);
        self.methods[match next {
            Phase::Holding { .. } => self.best.get(),
            Phase::Settling { attempt, .. } | Phase::Measuring { attempt, .. } => {
                self.tried(attempt)
            }
        }]
    }

    /// Index of the method of an attempt. The best one goes first, so that there is nothing to settle.
    fn tried(&self, attempt: usize) -> usize {
        (self.best.get() + attempt) % self.methods.len()
    }

    fn measured(&self, attempt: usize, took: Clocks) -> Phase {
        if took.wall > STREAM_NS {
            // From the one in use on: it may take for ever.
            let round = attempt - attempt % self.methods.len();
            return Phase::Settling { attempt: round, left: SETTLE };
        }
        let (mut least, which) = (self.least.get(), self.tried(attempt));
        least[which].wall = least[which].wall.min(took.wall);
        least[which].cpu = least[which].cpu.min(took.cpu);
        self.least.set(least);
        if attempt + 1 < TRIES * self.methods.len() {
            return Phase::Settling { attempt: attempt + 1, left: SETTLE };
        }
        let before = self.best.get();
        let best = (0..self.methods.len()).fold(before, |best, other| {
            if is_better(least[other], least[best]) { other } else { best }
        });
        self.best.set(best);
        Phase::Holding { left: if best == before { LATER } else { SOON } }
    }
}

/// Whether `a` is worth leaving `b` for: a twentieth faster, or about as fast for less of the CPU. Where the loop slept
/// most of the time with one of them, for lack of requests, time tells nothing of them.
fn is_better(a: Clocks, b: Clocks) -> bool {
    let less = |a: u64, b: u64| u128::from(a) * 100 < u128::from(b) * 95;
    let slept = |it: Clocks| it.wall / SLEPT > it.cpu;
    if slept(a) || slept(b) {
        return less(a.cpu, b.cpu);
    }
    less(a.wall, b.wall) || !less(b.wall, a.wall) && less(a.cpu, b.cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[Method] = &[Method::Map, Method::Splice];

    /// A loop on a machine where a MiB costs so much by each method.
    struct Machine {
        learned: Lesson,
        cost: [Clocks; 2],
        now: Cell<Clocks>,
        sent: [u64; 2],
    }

    const MIB: u64 = 1 << 20;

    impl Machine {
        fn new(map: (u64, u64), splice: (u64, u64)) -> Self {
            let cost = [map, splice].map(|(wall, cpu)| Clocks { wall, cpu });
            Self { learned: Lesson::of(TWO), cost, now: Cell::default(), sent: [0; 2] }
        }

        fn send(&mut self, mibs: u64) -> &mut Self {
            for _ in 0..mibs {
                let method = self.learned.choose(MIB, || self.now.get());
                let which = usize::from(method == Method::Splice);
                self.sent[which] += 1;
                let (now, cost) = (self.now.get(), self.cost[which]);
                self.now.set(Clocks { wall: now.wall + cost.wall, cpu: now.cpu + cost.cpu });
            }
            self
        }

        /// What was sent by each, from now on.
        fn sends(&mut self, mibs: u64) -> [u64; 2] {
            self.sent = [0; 2];
            self.send(mibs).sent
        }
    }

    /// More than all attempts together.
    const TRIAL: u64 = 600;

    #[test]
    fn what_is_faster_is_used_whichever_it_is() {
        let mut machine = Machine::new((200_000, 200_000), (100_000, 100_000));
        assert_eq!(machine.send(TRIAL).sends(1000), [0, 1000]);
        let mut machine = Machine::new((100_000, 100_000), (200_000, 200_000));
        assert_eq!(machine.send(TRIAL).sends(1000), [1000, 0]);
    }

    #[test]
    fn of_two_that_are_as_fast_the_one_that_takes_less_of_the_cpu() {
        // Paced: the time is not the server's.
        let mut machine = Machine::new((1_000_000, 220_000), (1_000_000, 100_000));
        assert_eq!(machine.send(TRIAL).sends(1000), [0, 1000]);
        // Faster by a fifth for more of the CPU.
        let mut machine = Machine::new((100_000, 90_000), (80_000, 100_000));
        assert_eq!(machine.send(TRIAL).sends(1000), [0, 1000]);
        let mut machine = Machine::new((100_000, 100_000), (99_000, 99_000));
        assert_eq!(machine.send(TRIAL).sends(1000), [1000, 0], "not for as little as that");
    }

    #[test]
    fn what_was_better_is_found_out_when_it_is_no_more() {
        let mut machine = Machine::new((200_000, 200_000), (100_000, 100_000));
        machine.send(TRIAL);
        machine.cost.reverse();
        machine.send((LATER + SOON) / MIB + 2 * TRIAL);
        assert_eq!(machine.sends(1000), [1000, 0]);
    }

    #[test]
    fn trying_costs_little() {
        let mut machine = Machine::new((100_000, 100_000), (400_000, 400_000));
        let [map, splice] = machine.send(TRIAL).sends(100 * (LATER / MIB));
        assert!(splice * 50 < map, "{splice} of {map}");
    }

    #[test]
    fn one_attempt_that_was_disturbed_decides_nothing() {
        let mut machine = Machine::new((200_000, 200_000), (100_000, 100_000));
        for _ in 0..TRIAL {
            let now = machine.now.get();
            if machine.learned.tried_now() == Some(1) && machine.sent[1] < 100 {
                machine.now.set(Clocks { wall: now.wall + 5_000_000, cpu: now.cpu });
            }
            machine.send(1);
        }
        assert_eq!(machine.sends(1000), [0, 1000]);
    }

    #[test]
    fn a_loop_that_mostly_sleeps_learns_nothing_and_keeps_what_it_has() {
        // A MiB each second: the bytes of an attempt take longer than anything would tell.
        let mut machine = Machine::new((1_000_000_000, 300_000), (1_000_000_000, 100_000));
        machine.send(TRIAL);
        assert!(machine.learned.least.get() == UNKNOWN);
        // The attempt that cannot be ended is one with the method that it had.
        assert_eq!(machine.sends(1000), [1000, 0]);
    }

    #[test]
    fn pauses_between_bursts_decide_nothing() {
        for burst in [64, 100, 128, 150, 200, 256] {
            let lesson = Lesson::of(SEND);
            let (cost, now) = ([160_000, 100_000, 110_000], Cell::new(Clocks::default()));
            let mut last = Method::Copy;
            for number in 1..=4 * TRIAL {
                last = lesson.choose(MIB, || now.get());
                let which = SEND.iter().position(|method| *method == last).unwrap();
                let pause = if number % burst == 0 { 1_000_000_000 } else { 0 };
                let Clocks { wall, cpu } = now.get();
                now.set(Clocks { wall: wall + cost[which] + pause, cpu: cpu + cost[which] });
            }
            assert_eq!(last, Method::Splice, "{burst}");
        }
    }

    #[test]
    fn attempts_that_cannot_be_ended_are_ones_with_the_best_so_far() {
        let mut machine = Machine::new((100_000, 100_000), (200_000, 200_000));
        // The first attempt ends, and then hardly anything comes.
        machine.send(16 + 16 + 48 + 20);
        machine.cost = [1_000_000_000, 1_000_000_000].map(|wall| Clocks { wall, cpu: 100_000 });
        machine.send(TRIAL);
        assert_eq!(machine.sends(1000), [1000, 0]);
    }

    #[test]
    fn of_three_the_best_is_found_whichever_it_is() {
        for best in SEND {
            let lesson = Lesson::of(SEND);
            let (now, mut last) = (Cell::new(Clocks::default()), Method::Copy);
            for _ in 0..2 * TRIAL {
                last = lesson.choose(MIB, || now.get());
                let cost = if last == *best { 100_000 } else { 150_000 };
                now.set(Clocks { wall: now.get().wall + cost, cpu: now.get().cpu + cost });
            }
            assert_eq!(last, *best);
        }
    }

    #[test]
    fn whoever_sends_little_is_not_tried_on() {
        let mut machine = Machine::new((1, 1), (1, 1));
        assert_eq!(machine.sends(16), [16, 0]);
    }

    impl Lesson {
        fn tried_now(&self) -> Option<usize> {
            match self.phase.get() {
                Phase::Holding { .. } => None,
                Phase::Settling { attempt, .. } | Phase::Measuring { attempt, .. } => {
                    Some(self.tried(attempt))
                }
            }
        }
    }
}

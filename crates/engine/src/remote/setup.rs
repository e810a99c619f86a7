//! What set-ups of connections wait for, and for how long: of which kind each wait is, and what kept a set-up from
//! going on when that was there.
//!
//! A wait ends when the set-up's next packet can leave. Until what it waits for is here, that is the network, or the
//! peer; from then on it is us: the thread of the vector still sleeps, or has no CPU, or does other things first.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::exchange::ExchangeId;
use super::stat::WaitStat;

/// What a set-up waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Its vector, after the thread at the door has taken it in.
    Door,
    /// A message of the peer's on the TCP connection (CLC).
    Tcp,
    /// An answer of the peer's by a link (LLC).
    Link,
    /// First contact with the peer, which another one makes.
    Contact,
}

impl Wait {
    const ALL: [Self; 4] = [Self::Door, Self::Tcp, Self::Link, Self::Contact];

    /// As `shunt engine status` names it.
    const fn name(self) -> &'static str {
        match self {
            Self::Door => "hand-over",
            Self::Tcp => "message by TCP",
            Self::Link => "answer by link",
            Self::Contact => "first contact",
        }
    }
}

/// How long a vector's thread has had work and no CPU.
#[derive(Debug)]
struct Delays {
    file: Option<File>,
    /// What was read last.
    last: u64,
}

impl Delays {
    /// Of the thread that asks.
    fn of_this_thread() -> Self {
        Self { file: File::open("/proc/thread-self/schedstat").ok(), last: 0 }
    }

    /// Nanoseconds ever; what was known before, if the system does not tell.
    fn read(&mut self) -> u64 {
        let mut text = [0; 64];
        if let Some(n) = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()) {
            self.last = delay_in(text.get(..n).unwrap_or_default()).unwrap_or(self.last);
        }
        self.last
    }
}

/// The second number of `/proc/PID/task/TID/schedstat`.
fn delay_in(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Adds up the waits of a vector's set-ups.
#[derive(Debug, Default)]
pub(super) struct Waits {
    kinds: [WaitStat; Wait::ALL.len()],
    /// When the thread last woke.
    woke_at: u64,
    /// Absent: nobody wants to know exactly.
    delays: Option<Delays>,
    /// What `delays` said when the thread last looked for something to do, and when a set-up went on that has not
    /// sent anything since: which, and what it had waited for.
    before: u64,
    resumed: Option<(ExchangeId, Wait, u64)>,
}

impl Waits {
    /// From now on tells what the scheduler takes from what others take. In the vector's own thread.
    pub(super) fn look_closely(&mut self) {
        self.delays = Some(Delays::of_this_thread());
    }

    /// The thread is about to sleep, or looks for something to do: what it waits for a CPU from now on may keep a
    /// set-up waiting.
    pub(super) fn look(&mut self) {
        if let Some(delays) = &mut self.delays {
            (self.before, self.resumed) = (delays.read(), None);
        }
    }

    /// The thread has slept until now.
    pub(super) fn woke(&mut self, now: u64) {
        self.woke_at = now;
    }

    /// A set-up that has waited since `since` goes on now. What it has waited for has been here since `came`.
    pub(super) fn ended(&mut self, id: ExchangeId, kind: Wait, since: u64, came: u64, now: u64) {
        let came = came.clamp(since.min(now), now);
        let mut cpu = 0;
        if let Some(delays) = &mut self.delays {
            let now = delays.read();
            self.resumed = Some((id, kind, now));
            cpu = now.saturating_sub(self.before);
        }
        let late = now - came;
        let slept = self.woke_at.clamp(came, now) - came;
        // No more than there was to wait, and of what the thread slept rather than of what it did.
        let cpu = cpu.min(late);
        let wake = slept.saturating_sub(cpu);
        let wait = now.saturating_sub(since);
        let sum = &mut self.kinds[kind as usize];
        sum.count += 1;
        sum.wait_ns += wait;
        sum.network_ns += wait - late;
        sum.no_cpu_ns += cpu;
        sum.waking_ns += wake;
        sum.behind_others_ns += late - cpu - wake;
    }

    /// A set-up has sent what it had to. If it is the one that went on last, what its thread waited for a CPU meanwhile
    /// has kept it; one that time or the peer's engine has moved has not waited for this thread.
    pub(super) fn sent(&mut self, id: ExchangeId) {
        let Some(delays) = &mut self.delays else { return };
        let Some((_, kind, resumed)) = self.resumed.take_if(|(last, ..)| *last == id) else {
            return;
        };
        let lost = delays.read().saturating_sub(resumed);
        let sum = &mut self.kinds[kind as usize];
        sum.wait_ns += lost;
        sum.no_cpu_ns += lost;
    }

    /// What a set-up had to say, and what was answered just now, had lain here for so many nanoseconds until it was
    /// sent. It is part of the wait that has [`Self::ended`].
    pub(super) fn lay(&mut self, kind: Wait, ns: u64) {
        let sum = &mut self.kinds[kind as usize];
        sum.wait_ns += ns;
        sum.behind_others_ns += ns;
    }

    /// Each kind that there was.
    pub(super) fn each(&self) -> impl Iterator<Item = (&'static str, WaitStat)> {
        let kinds = Wait::ALL.into_iter().zip(self.kinds);
        kinds.filter(|(_, sum)| *sum != WaitStat::default()).map(|(kind, sum)| (kind.name(), sum))
    }

    /// All kinds.
    pub(super) fn all(&self) -> WaitStat {
        self.kinds.iter().fold(WaitStat::default(), |all, kind| all.and(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ExchangeId {
        ExchangeId::from_number(number)
    }

    fn sums(waits: &Waits, kind: Wait) -> [u64; 6] {
        let s = waits.kinds[kind as usize];
        [s.count, s.wait_ns, s.network_ns, s.no_cpu_ns, s.waking_ns, s.behind_others_ns]
    }

    #[test]
    fn a_wait_is_the_network_s_until_the_answer_is_here_and_ours_from_then_on() {
        let mut waits = Waits::default();
        waits.woke(1700);
        // Asked at 1000, here at 1500, awake at 1700, taken up at 1710.
        waits.ended(id(1), Wait::Tcp, 1000, 1500, 1710);
        assert_eq!(sums(&waits, Wait::Tcp), [1, 710, 500, 0, 200, 10]);
        // It came when the thread was awake already.
        waits.ended(id(1), Wait::Link, 1000, 1800, 1900);
        assert_eq!(sums(&waits, Wait::Link), [1, 900, 800, 0, 0, 100]);
        // It was here before anybody waited for it, as a client's first message may be.
        waits.ended(id(1), Wait::Door, 1650, 900, 1720);
        assert_eq!(sums(&waits, Wait::Door), [1, 70, 0, 0, 50, 20]);
        // A stamp that is later than the clock, as one of another clock may seem to be.
        waits.ended(id(1), Wait::Contact, 2000, 2300, 2200);
        assert_eq!(sums(&waits, Wait::Contact), [1, 200, 200, 0, 0, 0]);
        let all = waits.all();
        let parts = all.network_ns + all.no_cpu_ns + all.waking_ns + all.behind_others_ns;
        assert_eq!((all.count, all.wait_ns, parts), (4, 1880, 1880), "nothing is lost");
        assert_eq!(waits.each().count(), 4);
    }

    #[test]
    fn what_lies_here_until_it_is_sent_is_ours() {
        let mut waits = Waits::default();
        waits.ended(id(1), Wait::Tcp, 100, 300, 300);
        waits.ended(id(1), Wait::Link, 300, 350, 350);
        waits.lay(Wait::Link, 40);
        assert_eq!(sums(&waits, Wait::Link), [1, 90, 50, 0, 0, 40]);
        assert_eq!(waits.all().wait_ns, 290);
    }

    #[test]
    fn what_the_thread_waits_for_a_cpu_is_told_apart() {
        assert_eq!(delay_in(b"123456 789 12\n"), Some(789));
        assert_eq!((delay_in(b"12"), delay_in(b"a b c"), delay_in(b"")), (None, None, None));
        let mut waits = Waits { before: 0, woke_at: 900, ..Waits::default() };
        // As if nothing could be read any more: 300 ns since the last look.
        waits.delays = Some(Delays { file: None, last: 300 });
        waits.ended(id(1), Wait::Tcp, 0, 500, 1000);
        assert_eq!(sums(&waits, Wait::Tcp), [1, 1000, 500, 300, 100, 100]);
        // More than it was late cannot have been lost by that.
        waits.ended(id(1), Wait::Link, 0, 950, 1000);
        assert_eq!(sums(&waits, Wait::Link), [1, 1000, 950, 50, 0, 0]);
        waits.look();
        waits.ended(id(1), Wait::Door, 400, 400, 1000);
        assert_eq!(sums(&waits, Wait::Door), [1, 600, 0, 0, 500, 100]);
        // Between the answer and what it leads to, not what another one sends.
        waits.delays = Some(Delays { file: None, last: 320 });
        waits.sent(id(2));
        waits.sent(id(1));
        waits.delays = Some(Delays { file: None, last: 350 });
        waits.sent(id(1));
        assert_eq!(sums(&waits, Wait::Door), [1, 620, 0, 20, 500, 100]);
    }

    #[test]
    fn the_system_tells_how_long_a_thread_had_no_cpu() {
        let mut delays = Delays::of_this_thread();
        if delays.file.is_none() {
            return println!("skipped: this kernel has no schedstat");
        }
        let (mut text, file) = ([0; 64], delays.file.as_ref().unwrap());
        let n = file.read_at(&mut text, 0).unwrap();
        assert!(delay_in(&text[..n]).is_some(), "{text:?}");
        // Again and again by one descriptor, and it never goes back.
        let first = delays.read();
        assert!(delays.read() >= first);
    }
}

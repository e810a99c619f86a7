//! Congestion control: DCQCN ("Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015).
//!
//! Switches mark packets (ECN). The **notification point**, who receives, answers marks of a flow with
//! one congestion notification packet in 50 us at most. The **reaction point**, who sends, cuts its rate
//! by what share of notifications it has seen of late (`alpha`), and then recovers: half way back to
//! the rate before in each step, then past it, additively, then in growing steps.
//!
//! A flow that was never notified is not paced at all.
//!
//! The paper's times are for round trips that are shorter than they are. Where one takes longer, because the way is
//! long or much waits on it, its time takes their place: nothing that was decided shows before that, and who cuts the
//! rate again meanwhile, or raises it, answers the same congestion many times. And what is cut is never more than a
//! window in each round trip, which is what a flow can send: else it would take many of them until a cut is felt.

use crate::time::Time;

/// How fast to react and to recover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcqcn {
    /// The rate of the line, bits per second: where a flow starts, and which it never passes.
    pub line_bits: u64,
    /// The rate below which a flow is never cut.
    pub floor_bits: u64,
    /// Time between two cuts, and between two updates of alpha without notification, nanoseconds.
    pub alpha_nanos: u64,
    /// Time between two steps of recovery.
    pub increase_nanos: u64,
    /// Bytes sent between two steps of recovery by count.
    pub increase_bytes: u64,
    /// Steps of fast recovery before the rate goes up further (F).
    pub fast_steps: u32,
    /// One step of additive increase, bits per second.
    pub additive_bits: u64,
    /// One step of hyper increase.
    pub hyper_bits: u64,
    /// alpha moves by 1/2^g of what is between it and its aim.
    pub g_shift: u32,
    /// The least time between two notifications of one flow that we send.
    pub notify_nanos: u64,
}

impl Default for Dcqcn {
    fn default() -> Self {
        Self::PAPER
    }
}

impl Dcqcn {
    /// The paper's, for a line of 40 Gbit/s; a fifth of the increase steps is usual on 10 Gbit/s.
    pub const PAPER: Self = Self {
        line_bits: 40_000_000_000,
        floor_bits: 10_000_000,
        alpha_nanos: 55_000,
        increase_nanos: 55_000,
        increase_bytes: 10 << 20,
        fast_steps: 5,
        additive_bits: 40_000_000,
        hyper_bits: 200_000_000,
        g_shift: 8,
        notify_nanos: 50_000,
    };

    /// Between hosts, over whatever line: network cards' additive steps, which are smaller than the paper's, so that a
    /// link a hundred times slower than the line that those were made for is not overrun by one of them.
    pub const BETWEEN_HOSTS: Self =
        Self { additive_bits: 5_000_000, hyper_bits: 50_000_000, ..Self::PAPER };

    /// What cannot be is made what can: a rate of 0 would never end, a time of 0 would loop.
    pub(crate) fn sane(self) -> Self {
        let floor_bits = self.floor_bits.clamp(1_000_000, 1 << 50);
        Self {
            floor_bits,
            line_bits: self.line_bits.clamp(floor_bits, 1 << 50),
            alpha_nanos: self.alpha_nanos.max(1_000),
            increase_nanos: self.increase_nanos.max(1_000),
            increase_bytes: self.increase_bytes.max(1 << 10),
            additive_bits: self.additive_bits.min(1 << 50),
            hyper_bits: self.hyper_bits.min(1 << 40),
            g_shift: self.g_shift.clamp(1, 16),
            ..self
        }
    }
}

/// alpha is a fraction of 2^20.
const ALPHA_ONE: u64 = 1 << 20;
/// More steps than this after a pause make no difference: the flow is at the line rate.
const STEPS_MAX: u64 = 4096;
/// What a flow that fell behind its schedule may send at once, because loops come round late.
const CREDIT_NANOS: u64 = 50_000;
/// A round trip that takes longer than this was a peer that came late, nanoseconds.
const ROUND_TRIP_MAX: u64 = 50_000_000;
/// Ethernet, IP and UDP around a packet, bytes.
const AROUND: u64 = 42;

/// The reaction point of one flow.
#[derive(Clone, Debug)]
pub(crate) struct ReactionPoint {
    settings: Dcqcn,
    current_bits: u64,
    target_bits: u64,
    alpha: u64,
    /// Whether it was notified, and has not recovered since.
    limited: bool,
    cut_at: Option<Time>,
    alpha_at: Time,
    increase_at: Time,
    bytes: u64,
    timer_steps: u32,
    byte_steps: u32,
    next_at: Time,
    /// What it takes until the peer's answer is here, nanoseconds.
    round_trip: u64,
    /// Nothing that was sent since the last cut is known to have arrived.
    waits: bool,
}

impl ReactionPoint {
    pub(crate) fn new(settings: Dcqcn) -> Self {
        let settings = settings.sane();
        Self {
            settings,
            current_bits: settings.line_bits,
            target_bits: settings.line_bits,
            alpha: ALPHA_ONE,
            limited: false,
            cut_at: None,
            alpha_at: Time::ZERO,
            increase_at: Time::ZERO,
            bytes: 0,
            timer_steps: 0,
            byte_steps: 0,
            next_at: Time::ZERO,
            round_trip: 0,
            waits: false,
        }
    }

    /// A round trip takes so long.
    pub(crate) fn set_round_trip(&mut self, nanos: u64) {
        self.round_trip = nanos.min(ROUND_TRIP_MAX);
    }

    /// Bits per second.
    pub(crate) const fn rate_bits(&self) -> u64 {
        self.current_bits
    }

    /// When the next packet may go, or might have gone.
    pub(crate) const fn next_at(&self) -> Time {
        self.next_at
    }

    /// Whether packets are paced at all.
    pub(crate) const fn is_limited(&self) -> bool {
        self.limited
    }

    /// When the next packet may go; `None`: now.
    pub(crate) fn wait_until(&mut self, now: Time) -> Option<Time> {
        if !self.limited {
            return None;
        }
        self.recover(now);
        (self.limited && self.next_at > now).then_some(self.next_at)
    }

    /// A packet of so many bytes was sent.
    pub(crate) fn on_sent(&mut self, now: Time, bytes: usize) {
        if !self.limited {
            return;
        }
        let bytes = bytes as u64 + AROUND;
        let cost = bytes * 8 * 1_000_000_000 / self.current_bits;
        // A fraction of what is on the way anyhow.
        let credit = CREDIT_NANOS.max(self.round_trip / 4);
        let earliest = Time::from_nanos(now.nanos().saturating_sub(credit));
        self.next_at = self.next_at.max(earliest).plus_nanos(cost);
        self.bytes += bytes;
        if self.bytes >= self.settings.increase_bytes {
            self.bytes = 0;
            self.byte_steps += 1;
            self.increase();
        }
    }

    /// What was sent at the rate of the last cut has arrived: recovery begins.
    pub(crate) fn on_round_trip(&mut self, now: Time) {
        if !core::mem::take(&mut self.waits) {
            return;
        }
        self.alpha_at = self.alpha_at.max(now);
        self.increase_at = self.increase_at.max(now);
    }

    /// A notification came; `window`: bytes that may be on their way. Whether the rate was cut.
    pub(crate) fn on_notification(&mut self, now: Time, window: u64) -> bool {
        // One cut for each period, whatever a peer sends.
        let since = self.cut_at.map_or(u64::MAX, |at| now.since(at));
        if since < self.settings.notify_nanos || self.waits && since < ROUND_TRIP_MAX {
            return false;
        }
        // alpha is 1 until the first notification, which halves the rate.
        if self.cut_at.is_some() {
            self.recover(now);
        }
        self.cut_at = Some(now);
        self.waits = true;
        let possible = window.saturating_mul(8_000_000_000).checked_div(self.round_trip);
        let possible = possible.unwrap_or(u64::MAX).max(self.settings.floor_bits);
        self.current_bits = self.current_bits.min(possible);
        self.limited = true;
        self.target_bits = self.current_bits;
        let cut = (u128::from(self.current_bits) * u128::from(self.alpha)) >> 21;
        let cut = u64::try_from(cut).unwrap_or(u64::MAX);
        self.current_bits = self.current_bits.saturating_sub(cut).max(self.settings.floor_bits);
        self.alpha += (ALPHA_ONE - self.alpha) >> self.settings.g_shift;
        self.alpha_at = now;
        self.increase_at = now;
        self.bytes = 0;
        self.timer_steps = 0;
        self.byte_steps = 0;
        true
    }

    /// What time has done since.
    fn recover(&mut self, now: Time) {
        if self.waits {
            let until = self.cut_at.unwrap_or(Time::ZERO).plus_nanos(ROUND_TRIP_MAX);
            if now < until {
                return;
            }
            // Not now: who was idle since then has recovered since then.
            self.on_round_trip(until);
        }
        let Dcqcn { alpha_nanos, increase_nanos, g_shift, .. } = self.settings;
        let alpha_nanos = alpha_nanos.max(self.round_trip);
        let increase_nanos = increase_nanos.max(self.round_trip);
        let steps = now.since(self.alpha_at) / alpha_nanos;
        for _ in 0..steps.min(STEPS_MAX) {
            self.alpha -= self.alpha >> g_shift;
        }
        self.alpha_at = self.alpha_at.plus_nanos(steps.saturating_mul(alpha_nanos));
        let steps = now.since(self.increase_at) / increase_nanos;
        for _ in 0..steps.min(STEPS_MAX) {
            if !self.limited {
                break;
            }
            self.timer_steps += 1;
            self.increase();
        }
        if steps > STEPS_MAX {
            self.current_bits = self.settings.line_bits;
            self.limited = false;
        }
        self.increase_at = self.increase_at.plus_nanos(steps.saturating_mul(increase_nanos));
    }

    fn increase(&mut self) {
        let Dcqcn { fast_steps, additive_bits, hyper_bits, line_bits, .. } = self.settings;
        let (fewer, more) = if self.timer_steps < self.byte_steps {
            (self.timer_steps, self.byte_steps)
        } else {
            (self.byte_steps, self.timer_steps)
        };
        if fewer > fast_steps {
            self.target_bits += u64::from(fewer - fast_steps) * hyper_bits;
        } else if more > fast_steps {
            self.target_bits += additive_bits;
        }
        self.target_bits = self.target_bits.min(line_bits);
        self.current_bits = self.current_bits.midpoint(self.target_bits);
        // Half way again and again never arrives; within a thousandth it has.
        if self.current_bits + (line_bits >> 10) >= line_bits {
            self.current_bits = line_bits;
            self.limited = false;
        }
    }
}

/// The notification point of one flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotificationPoint {
    next_at: Time,
}

impl NotificationPoint {
    /// A packet with a mark came. Whether to notify.
    pub(crate) fn on_mark(&mut self, now: Time, settings: &Dcqcn) -> bool {
        let due = now >= self.next_at;
        if due {
            self.next_at = now.plus_nanos(settings.notify_nanos);
        }
        due
    }
}

#[cfg(test)]
mod tests;

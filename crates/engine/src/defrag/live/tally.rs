//! What workers have counted, and how it is told.

use std::fmt::{self, Write};
use std::time::Duration;

use frag::{Counters, Gauges, Reason};

use super::output;

/// What one worker, or all of them, have seen and done.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Frames that the ring brought.
    pub frames: u64,
    /// Bytes in them.
    pub frame_bytes: u64,
    /// Frames that found no room in the ring.
    pub ring_dropped: u64,
    /// Frames that were in the ring at the end and were not read any more.
    pub unread: u64,
    /// Frames that hold no IP packet, or were cut.
    pub other: u64,
    /// Fragments for which there was no frame in the pool, or that do not fit in one.
    pub no_frame: u64,
    /// Fragments of datagrams that belong to another worker, and were handed over to it.
    pub handed_over: u64,
    /// Fragments that other workers handed over to this one.
    pub taken_over: u64,
    /// Fragments of another worker's that were dropped: it is too far behind.
    pub lane_full: u64,
    /// Fragments that were copied because they waited longer than the ring could.
    pub settled: u64,
    /// Reassembly.
    pub counters: Counters,
    /// What is held at the moment.
    pub gauges: Gauges,
    /// Datagrams that went on.
    pub output: output::Counts,
    /// Time that the workers' threads have run, nanoseconds.
    pub cpu_ns: u64,
    /// Time between taking frames from the ring and giving them back, nanoseconds.
    pub work_ns: u64,
}

impl Tally {
    /// Adds another worker's.
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.frame_bytes += other.frame_bytes;
        self.ring_dropped += other.ring_dropped;
        self.unread += other.unread;
        self.other += other.other;
        self.no_frame += other.no_frame;
        self.handed_over += other.handed_over;
        self.taken_over += other.taken_over;
        self.lane_full += other.lane_full;
        self.settled += other.settled;
        self.counters.add(&other.counters);
        self.gauges.datagrams += other.gauges.datagrams;
        self.gauges.memory_bytes += other.gauges.memory_bytes;
        self.output.sent += other.output.sent;
        self.output.dropped += other.output.dropped;
        self.output.failed += other.output.failed;
        self.output.unwritten += other.output.unwritten;
        self.output.surplus += other.output.surplus;
        self.cpu_ns += other.cpu_ns;
        self.work_ns += other.work_ns;
    }

    /// Reasons for which something was dropped: fragments on their own, datagrams.
    fn reasons(&self) -> impl Iterator<Item = (Reason, u64, u64)> + '_ {
        let of = |reason: &Reason| {
            (*reason, self.counters.fragments(*reason), self.counters.datagrams(*reason))
        };
        Reason::ALL.iter().map(of)
    }

    /// As a JSON object in one line. `rates`: what has changed since then.
    #[must_use]
    pub fn json(&self, rates: &Rates<'_>) -> String {
        let mut out = String::from("{");
        let _ = write!(
            out,
            "\"version\":1,\"seconds\":{:.3},\"packets_per_s\":{:.0},\"fragments_per_s\":{:.0},\
             \"datagrams_per_s\":{:.0},\"gbit_per_s\":{:.3},\"cpu\":{:.4}",
            rates.seconds(),
            rates.of(|t| t.frames),
            rates.of(|t| t.counters.fragments),
            rates.of(|t| t.counters.datagrams),
            rates.gbit(),
            rates.cpu()
        );
        for (name, _, value) in self.counts() {
            let _ = write!(out, ",\"{name}\":{value}");
        }
        for (name, _, value) in self.levels() {
            let _ = write!(out, ",\"{name}\":{value}");
        }
        for (name, pick) in [("fragments_dropped", 1), ("datagrams_dropped", 2)] {
            let there = self.reasons().map(|(r, f, d)| (r, if pick == 1 { f } else { d }));
            let all: Vec<_> = there
                .filter(|(_, n)| *n > 0)
                .map(|(reason, n)| format!("\"{}\":{n}", reason.key()))
                .collect();
            let _ = write!(out, ",\"{name}\":{{{}}}", all.join(","));
        }
        out.push('}');
        out
    }

    /// What only grows: name, what it is, value.
    fn counts(&self) -> [(&'static str, &'static str, u64); 20] {
        let (c, o) = (&self.counters, &self.output);
        [
            ("frames", "Frames that the ring brought.", self.frames),
            ("frame_bytes", "Bytes in frames that the ring brought.", self.frame_bytes),
            ("ring_dropped", "Frames that found no room in the ring.", self.ring_dropped),
            (
                "unread",
                "Frames that were in the ring at the end and not read any more: there was enough (--count).",
                self.unread,
            ),
            ("other_frames", "Frames that hold no IP packet, or were cut.", self.other),
            ("no_frame", "Fragments for which there was no frame to keep them in.", self.no_frame),
            ("handed_over", "Fragments that one worker handed over to another.", self.handed_over),
            ("taken_over", "Fragments that a worker had from another.", self.taken_over),
            (
                "lane_full",
                "Fragments that another worker was too far behind to take.",
                self.lane_full,
            ),
            ("whole_packets", "Packets that were no fragments.", c.whole),
            ("fragments", "Fragments that came in.", c.fragments),
            ("datagrams", "Datagrams that were put together.", c.datagrams),
            ("bytes", "Bytes of payload in datagrams that were put together.", c.bytes),
            (
                "fragments_delivered",
                "Fragments that those datagrams came in.",
                c.fragments_delivered,
            ),
            (
                "fragments_lost",
                "Fragments that went with datagrams that were given up.",
                c.fragments_lost,
            ),
            ("output_sent", "Datagrams that device or file took.", o.sent),
            ("output_dropped", "Datagrams that device or file did not take in time.", o.dropped),
            (
                "output_failed",
                "Datagrams that the device refused, or in the end the file where there is none.",
                o.failed,
            ),
            (
                "output_unwritten",
                "Datagrams for the device that the file did not take in time, or in the end at all.",
                o.unwritten,
            ),
            (
                "output_surplus",
                "Datagrams that were put together when there had been enough (--count), for nobody.",
                o.surplus,
            ),
        ]
    }

    /// What comes and goes.
    fn levels(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            ("in_progress", "Datagrams in progress.", u64::from(self.gauges.datagrams)),
            (
                "fragments_in_progress",
                "Fragments that have come for them.",
                self.counters.fragments_in_progress(),
            ),
            ("memory_bytes", "Memory that they hold, bytes.", self.gauges.memory_bytes),
        ]
    }

    /// In the text format of Prometheus.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        let head = |out: &mut String, name: &str, help: &str, kind: &str| {
            let _ = writeln!(out, "# HELP shunt_defrag_{name} {help}");
            let _ = writeln!(out, "# TYPE shunt_defrag_{name} {kind}");
        };
        for (name, help, value) in self.counts() {
            let name = format!("{name}_total");
            head(&mut out, &name, help, "counter");
            let _ = writeln!(out, "shunt_defrag_{name} {value}");
        }
        for (name, help, value) in self.levels() {
            head(&mut out, name, help, "gauge");
            let _ = writeln!(out, "shunt_defrag_{name} {value}");
        }
        let name = "fragments_dropped_total";
        head(&mut out, name, "Fragments that were dropped on their own.", "counter");
        for (reason, n, _) in self.reasons() {
            let _ = writeln!(out, "shunt_defrag_{name}{{reason=\"{}\"}} {n}", reason.key());
        }
        let name = "datagrams_dropped_total";
        head(&mut out, name, "Datagrams that were given up.", "counter");
        for (reason, _, n) in self.reasons() {
            let _ = writeln!(out, "shunt_defrag_{name}{{reason=\"{}\"}} {n}", reason.key());
        }
        let name = "worker_cpu_seconds_total";
        head(&mut out, name, "Time that the workers have run.", "counter");
        let seconds = Duration::from_nanos(self.cpu_ns).as_secs_f64();
        let _ = writeln!(out, "shunt_defrag_{name} {seconds:.6}");
        out
    }

    /// For people, several lines: what there was in all.
    #[must_use]
    pub fn summary(&self, took: Duration) -> String {
        let none = Self::default();
        let rates = Rates { now: self, then: &none, passed: took };
        let c = &self.counters;
        let mut out = format!(
            "{} frames, {} fragments, {} datagrams, {} bytes in {:.1} s ({:.3} Gbit/s)\n",
            self.frames,
            c.fragments,
            c.datagrams,
            c.bytes,
            rates.seconds(),
            rates.gbit()
        );
        let _ = writeln!(
            out,
            "workers ran {:.1} % of a core, {:.1} % on frames; {} fragments were copied to wait",
            rates.cpu() * 100.0,
            rates.share(self.work_ns) * 100.0,
            self.settled
        );
        if self.handed_over > 0 {
            let _ = writeln!(out, "{} fragments came by another worker's queue", self.handed_over);
        }
        for (words, n) in [
            ("frames dropped, no room in the ring", self.ring_dropped),
            ("frames left in the ring at the end", self.unread),
            ("fragments dropped, no frame to keep them in", self.no_frame),
            ("fragments dropped, the worker they belong to is too far behind", self.lane_full),
            ("datagrams not written, output too slow", self.output.dropped),
            ("datagrams that the device or the file refused", self.output.failed),
            ("datagrams missing in the file, which was too slow or full", self.output.unwritten),
        ] {
            if n > 0 {
                let _ = writeln!(out, "{n} {words}");
            }
        }
        for (reason, fragments, datagrams) in self.reasons() {
            if fragments > 0 {
                let _ = writeln!(out, "{fragments} fragments dropped: {}", reason.words());
            }
            if datagrams > 0 {
                let _ = writeln!(out, "{datagrams} datagrams given up: {}", reason.words());
            }
        }
        let (datagrams, fragments) = (self.gauges.datagrams, c.fragments_in_progress());
        if datagrams > 0 {
            let _ = writeln!(
                out,
                "{datagrams} datagrams not complete at the end, {fragments} fragments"
            );
        }
        out
    }
}

/// What changed between two looks.
#[derive(Clone, Copy, Debug)]
pub struct Rates<'a> {
    /// The later one.
    pub now: &'a Tally,
    /// The earlier one.
    pub then: &'a Tally,
    /// Time between them.
    pub passed: Duration,
}

#[expect(clippy::cast_precision_loss, reason = "rates are shown with few digits")]
impl Rates<'_> {
    fn seconds(&self) -> f64 {
        self.passed.as_secs_f64().max(1e-9)
    }

    fn of(&self, pick: impl Fn(&Tally) -> u64) -> f64 {
        pick(self.now).saturating_sub(pick(self.then)) as f64 / self.seconds()
    }

    /// Payload put together.
    fn gbit(&self) -> f64 {
        self.of(|t| t.counters.bytes) * 8.0 / 1e9
    }

    /// Cores that the workers kept busy.
    fn cpu(&self) -> f64 {
        self.of(|t| t.cpu_ns) / 1e9
    }

    fn share(&self, ns: u64) -> f64 {
        ns as f64 / 1e9 / self.seconds()
    }
}

impl fmt::Display for Rates<'_> {
    /// One line, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} packets/s, {:.0} fragments/s, {:.0} datagrams/s, {:.3} Gbit/s, {} in progress, \
             {:.1} MiB, cpu {:.1} %",
            self.of(|t| t.frames),
            self.of(|t| t.counters.fragments),
            self.of(|t| t.counters.datagrams),
            self.gbit(),
            self.now.gauges.datagrams,
            self.now.gauges.memory_bytes as f64 / 1_048_576.0,
            self.cpu() * 100.0
        )?;
        let mut told = |words: &str, n: f64| {
            if n > 0.0 { write!(f, "; {words} {n:.0}/s") } else { Ok(()) }
        };
        told("ring drops", self.of(|t| t.ring_dropped))?;
        told("output drops", self.of(|t| t.output.dropped + t.output.failed))?;
        told("not in the file", self.of(|t| t.output.unwritten))?;
        told("no frame", self.of(|t| t.no_frame))?;
        told("lane full", self.of(|t| t.lane_full))?;
        for reason in Reason::ALL {
            let of = |t: &Tally| t.counters.fragments(*reason) + t.counters.datagrams(*reason);
            told(reason.key(), self.of(of))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Tally {
        let mut tally = Tally { frames: 100, cpu_ns: 500_000_000, ..Tally::default() };
        tally.counters.datagrams = 10;
        tally.counters.bytes = 1_000_000_000;
        tally.counters.fragments_dropped[Reason::Overlap as usize] = 3;
        tally.counters.datagrams_dropped[Reason::Timeout as usize] = 2;
        tally
    }

    #[test]
    fn a_line_says_what_changed() {
        let (now, then) = (some(), Tally::default());
        let rates = Rates { now: &now, then: &then, passed: Duration::from_secs(2) };
        assert_eq!(
            rates.to_string(),
            "50 packets/s, 0 fragments/s, 5 datagrams/s, 4.000 Gbit/s, 0 in progress, 0.0 MiB, \
             cpu 25.0 %; overlap 2/s; timeout 1/s"
        );
        let same = Rates { now: &now, then: &now, passed: Duration::from_secs(1) };
        assert!(!same.to_string().contains(';'), "{same}");
    }

    #[test]
    fn what_is_not_complete_at_the_end_is_in_the_summary() {
        let mut tally = Tally::default();
        (tally.counters.fragments, tally.gauges.datagrams) = (7, 2);
        tally.counters.fragments_delivered = 4;
        let words = "2 datagrams not complete at the end, 3 fragments\n";
        let said = tally.summary(Duration::from_secs(1));
        assert!(said.ends_with(words), "{said}");
        assert!(!some().summary(Duration::from_secs(1)).contains("complete at the end"));
    }

    #[test]
    fn json_has_reasons_that_occurred() {
        let (now, then) = (some(), Tally::default());
        let json = now.json(&Rates { now: &now, then: &then, passed: Duration::from_secs(1) });
        assert!(json.contains("\"fragments_dropped\":{\"overlap\":3}"), "{json}");
        assert!(json.contains("\"datagrams_dropped\":{\"timeout\":2}}"), "{json}");
        assert!(json.contains("\"gbit_per_s\":8.000") && !json.contains('\n'), "{json}");
    }

    #[test]
    fn each_line_of_metrics_has_a_name_and_a_number() {
        let text = some().prometheus();
        assert!(text.contains("shunt_defrag_datagrams_total 10\n"));
        assert!(text.contains("shunt_defrag_datagrams_dropped_total{reason=\"timeout\"} 2\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with("shunt_defrag_") && value.parse::<f64>().is_ok(), "{line}");
        }
    }

    #[test]
    fn sums_are_sums() {
        let mut all = some();
        all.add(&some());
        assert_eq!((all.frames, all.counters.bytes), (200, 2_000_000_000));
        assert!(
            all.summary(Duration::from_secs(1)).contains("6 fragments dropped: fragments overlap")
        );
    }
}

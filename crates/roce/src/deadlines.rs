//! When to look at which queue pair again: at most one time for each, in a heap that knows where each is.

use crate::time::Time;

const ABSENT: u32 = u32::MAX;

/// Times of numbered slots, the earliest first.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    heap: Vec<(Time, u32)>,
    /// Where each slot is in the heap.
    places: Vec<u32>,
}

impl Deadlines {
    pub(crate) fn first(&self) -> Option<Time> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// Looks at a slot at `at` at the latest. Later times are found out when the earlier one comes.
    pub(crate) fn lower(&mut self, slot: u32, at: Time) {
        let index = slot as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, ABSENT);
        }
        let mut place = self.places[index] as usize;
        match self.heap.get_mut(place) {
            Some(entry) if entry.0 <= at => return,
            Some(entry) => entry.0 = at,
            None => {
                place = self.heap.len();
                self.heap.push((at, slot));
            }
        }
        self.rise(place);
    }

    /// A slot whose time has come.
    pub(crate) fn pop(&mut self, now: Time) -> Option<u32> {
        let (at, slot) = *self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(slot);
        Some(slot)
    }

    /// Forgets a slot.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(place) = self.places.get_mut(slot as usize) else { return };
        let place = core::mem::replace(place, ABSENT) as usize;
        if place >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.sink(place);
            self.rise(place);
        }
    }

    fn note(&mut self, place: usize) {
        let slot = self.heap[place].1 as usize;
        // There are as many entries as slots, whose numbers have 32 bits.
        self.places[slot] = u32::try_from(place).unwrap_or(ABSENT);
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.heap.swap(place, (place - 1) / 2);
            self.note(place);
            place = (place - 1) / 2;
        }
        self.note(place);
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = place * 2 + 1..(place * 2 + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child]) else { break };
            if self.heap[place] <= self.heap[least] {
                break;
            }
            self.heap.swap(place, least);
            self.note(place);
            place = least;
        }
        self.note(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn as_a_map_would_have_it(ops in prop::collection::vec((0u8..3, 0u32..20, 0u64..50), 0..200)) {
            let mut deadlines = Deadlines::default();
            let mut model = BTreeMap::<u32, u64>::new();
            for (op, slot, at) in ops {
                match op {
                    0 => {
                        deadlines.lower(slot, Time::from_nanos(at));
                        let old = model.get(&slot).copied().unwrap_or(u64::MAX);
                        model.insert(slot, old.min(at));
                    }
                    1 => {
                        deadlines.remove(slot);
                        model.remove(&slot);
                    }
                    _ => {
                        let due = deadlines.pop(Time::from_nanos(at));
                        let first = model.values().min().copied();
                        prop_assert_eq!(due.is_some(), first.is_some_and(|first| first <= at));
                        if let Some(slot) = due {
                            prop_assert_eq!(model.remove(&slot), first);
                        }
                    }
                }
                let first = deadlines.first().map(Time::nanos);
                prop_assert_eq!(first, model.values().min().copied());
            }
        }
    }
}

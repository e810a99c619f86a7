//! Things by number, where a number is not given to another thing before it has been told apart from it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::marker::PhantomData;

/// A map by numbers that we give out ourselves, so that nobody else can choose them to meet in one place.
pub(super) type Numbers<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Spreads a number over all bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }
    fn write_u64(&mut self, number: u64) {
        // 2^64 over the golden ratio.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Names a thing in a slab; a place's next thing has another generation.
pub(super) struct Id<T> {
    index: u32,
    generation: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// As one number, below 2^56.
    pub(super) fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Its place: as long as it is there, nothing else has it.
    pub(super) fn place(self) -> usize {
        self.index as usize
    }

    /// From such a number.
    #[expect(clippy::cast_possible_truncation, reason = "cut apart on purpose")]
    pub(super) fn from_number(number: u64) -> Self {
        Self { index: number as u32, generation: (number >> 32) as u32, of: PhantomData }
    }
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Id<T> {}
impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.index, self.generation) == (other.index, other.generation)
    }
}
impl<T> Eq for Id<T> {}
impl<T> std::hash::Hash for Id<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number().hash(state);
    }
}
impl<T> std::fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Generations before a place's numbers come round: what is below 2^56 fits beside a byte.
const GENERATIONS: u32 = 1 << 24;

#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, thing: T) -> Id<T> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let place = &mut self.places[index as usize];
        place.1 = Some(thing);
        Id { index, generation: place.0, of: PhantomData }
    }

    pub(super) fn remove(&mut self, id: Id<T>) -> Option<T> {
        let place = self.places.get_mut(id.index as usize).filter(|p| p.0 == id.generation)?;
        let thing = place.1.take()?;
        place.0 = (place.0 + 1) % GENERATIONS;
        self.free.push(id.index);
        Some(thing)
    }

    pub(super) fn get(&self, id: Id<T>) -> Option<&T> {
        let place = self.places.get(id.index as usize)?;
        place.1.as_ref().filter(|_| place.0 == id.generation)
    }

    pub(super) fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        let place = self.places.get_mut(id.index as usize)?;
        place.1.as_mut().filter(|_| place.0 == id.generation)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        (0u32..).zip(&self.places).filter_map(|(index, (generation, thing))| {
            Some((Id { index, generation: *generation, of: PhantomData }, thing.as_ref()?))
        })
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Id<T>, &mut T)> {
        (0u32..).zip(&mut self.places).filter_map(|(index, (generation, thing))| {
            Some((Id { index, generation: *generation, of: PhantomData }, thing.as_mut()?))
        })
    }

    pub(super) fn ids(&self) -> Vec<Id<T>> {
        self.iter().map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_not_given_twice() {
        let mut slab = Slab::default();
        let a = slab.insert("a");
        let b = slab.insert("b");
        assert_eq!(slab.remove(a), Some("a"));
        let c = slab.insert("c");
        assert_eq!((slab.get(a), slab.get(b), slab.get(c)), (None, Some(&"b"), Some(&"c")));
        assert_eq!(Id::from_number(c.number()), c);
        assert_ne!(a, c);
        assert_eq!((slab.remove(a), slab.len()), (None, 2));
        assert_eq!(slab.ids(), [c, b]);
    }
}

//! A queue of requests of a fixed depth, in which each has a number of its own.

/// Holds up to `depth` items, numbered as they come; numbers go round.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    items: Box<[T]>,
    mask: u32,
    depth: u32,
    head: u32,
    tail: u32,
}

impl<T: Copy + Default> Ring<T> {
    pub(crate) fn new(depth: u16) -> Self {
        let room = u32::from(depth).max(1).next_power_of_two();
        let items = vec![T::default(); room as usize].into_boxed_slice();
        Self { items, mask: room - 1, depth: depth.into(), head: 0, tail: 0 }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(crate) const fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.len() >= self.depth
    }

    /// The number of the oldest item, or of the next if there is none.
    pub(crate) const fn head(&self) -> u32 {
        self.head
    }

    /// The number of the next item.
    pub(crate) const fn tail(&self) -> u32 {
        self.tail
    }

    /// Where the item of that number is, was or will be.
    pub(crate) const fn place(&self, number: u32) -> usize {
        (number & self.mask) as usize
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        if number.wrapping_sub(self.head) >= self.len() {
            return None;
        }
        self.items.get(self.place(number))
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.get(self.head)
    }

    /// Adds an item; `false`: it is full.
    pub(crate) fn push(&mut self, item: T) -> bool {
        if self.is_full() {
            return false;
        }
        let at = self.place(self.tail);
        self.items[at] = item;
        self.tail = self.tail.wrapping_add(1);
        true
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.first().copied()?;
        self.head = self.head.wrapping_add(1);
        Some(item)
    }

    /// Places there are.
    pub(crate) fn room(&self) -> usize {
        self.items.len()
    }

    pub(crate) const fn clear(&mut self) {
        self.head = self.tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_numbers() {
        let mut ring = Ring::<u8>::new(3);
        ring.head = u32::MAX - 1;
        ring.tail = ring.head;
        for round in 0..5 {
            let first = ring.tail();
            assert!(ring.push(1) && ring.push(2) && ring.push(3) && !ring.push(4));
            assert_eq!(ring.get(first.wrapping_add(1)), Some(&2), "{round}");
            assert_eq!((ring.pop(), ring.get(first), ring.len()), (Some(1), None, 2));
            assert_eq!(ring.get(first.wrapping_add(3)), None);
            ring.clear();
            assert_eq!((ring.pop(), ring.is_empty()), (None, true));
        }
    }
}

//! The places of the regular layout: a number finds one.
//!
//! The first are in the record itself. So of a datagram of a few fragments, as most are, nothing else is looked at, and
//! nothing allocated; the others lie together elsewhere.

/// Places in the record. With the last piece, which needs none, those of three fragments: a datagram of 4 KiB on Ethernet.
pub(crate) const NEAR: usize = 2;

/// See the module.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Row<B> {
    far: Box<[Option<B>]>,
    near: [Option<B>; NEAR],
}

impl<B> Default for Row<B> {
    fn default() -> Self {
        Self { far: Box::new([]), near: [const { None }; NEAR] }
    }
}

impl<B> Row<B> {
    /// How many there are beside those in the record.
    pub(super) fn far(&self) -> usize {
        self.far.len()
    }

    #[inline(always)]
    pub(super) fn get(&self, at: usize) -> Option<&Option<B>> {
        match self.near.get(at) {
            Some(place) => Some(place),
            None => self.far.get(at - NEAR),
        }
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Option<B>> {
        match self.near.get_mut(at) {
            Some(place) => Some(place),
            None => self.far.get_mut(at - NEAR),
        }
    }

    /// All, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Option<B>> {
        self.near.iter().chain(&self.far)
    }

    /// The first `n` of those that are there: in the record, and the others.
    pub(super) fn first(&self, n: usize) -> [&[Option<B>]; 2] {
        let far = &self.far[..n.saturating_sub(NEAR)];
        [&self.near[..n.min(NEAR)], far]
    }

    /// Takes out `n` that are there, in order, with the number of each.
    #[inline(always)]
    pub(super) fn take(&mut self, n: usize, mut each: impl FnMut(usize, B)) {
        let mut left = n;
        for (at, place) in self.near.iter_mut().enumerate() {
            if let Some(what) = place.take() {
                left -= 1;
                each(at, what);
            }
        }
        for (at, place) in (NEAR..).zip(&mut self.far) {
            if left == 0 {
                break;
            }
            if let Some(what) = place.take() {
                left -= 1;
                each(at, what);
            }
        }
    }

    /// Makes so many more, for which there must be memory: those that are not in the record are there twice meanwhile.
    pub(super) fn grow(&mut self, more: usize) {
        let mut far = Vec::from(std::mem::take(&mut self.far));
        let all = far.len() + more;
        far.reserve_exact(more);
        far.resize_with(all, || None);
        self.far = far.into_boxed_slice();
    }

    /// Drops what is in them, and those that are not in the record.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

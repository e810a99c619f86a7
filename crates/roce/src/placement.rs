//! On which completion vector, and so on which core, a new queue pair goes.

/// Vectors at most: as many as [`vector_bits`](crate::DeviceConfig::vector_bits) can say.
const VECTORS_MAX: u16 = 256;

/// How many queue pairs each completion vector has; a new one goes where there are fewest.
///
/// One for each host, beside the devices: one [`Device`](crate::Device) for each vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    users: Vec<u32>,
    allowed: Vec<bool>,
}

/// No vector may be used, or one that there is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadVectors {
    /// None, or too many.
    #[error("vectors is {0}: 1 to 256")]
    Count(u16),
    /// There is no such vector.
    #[error("vector {0} is not there")]
    Absent(u16),
    /// Nothing is allowed.
    #[error("no vector is allowed")]
    Nothing,
}

impl Placement {
    /// With so many vectors, of which these may be used.
    ///
    /// # Errors
    ///
    /// See [`BadVectors`].
    pub fn new(vectors: u16, allowed: impl IntoIterator<Item = u16>) -> Result<Self, BadVectors> {
        if !(1..=VECTORS_MAX).contains(&vectors) {
            return Err(BadVectors::Count(vectors));
        }
        let count = usize::from(vectors);
        let mut placement = Self { users: vec![0; count], allowed: vec![false; count] };
        placement.allow(allowed)?;
        Ok(placement)
    }

    /// From now on these may be used; what others have stays there.
    ///
    /// # Errors
    ///
    /// See [`BadVectors`]; nothing is changed then.
    pub fn allow(&mut self, allowed: impl IntoIterator<Item = u16>) -> Result<(), BadVectors> {
        let mut wanted = vec![false; self.users.len()];
        for vector in allowed {
            *wanted.get_mut(usize::from(vector)).ok_or(BadVectors::Absent(vector))? = true;
        }
        if !wanted.contains(&true) {
            return Err(BadVectors::Nothing);
        }
        self.allowed = wanted;
        Ok(())
    }

    /// The vector for a new queue pair: the one with the fewest, and of those the first.
    pub fn place(&mut self) -> u16 {
        let vector = self.least();
        self.join(vector);
        vector
    }

    /// Which one that would be.
    #[must_use]
    pub fn least(&self) -> u16 {
        let allowed = (0..).zip(&self.users).filter(|(vector, _)| self.is_allowed(*vector));
        allowed.min_by_key(|(_, users)| **users).map_or(0, |(vector, _)| vector)
    }

    /// A vector has a queue pair more, whoever has chosen it.
    pub fn join(&mut self, vector: u16) {
        if let Some(users) = self.users.get_mut(usize::from(vector)) {
            *users = users.saturating_add(1);
        }
    }

    /// A queue pair of that vector is no more.
    pub fn release(&mut self, vector: u16) {
        if let Some(users) = self.users.get_mut(usize::from(vector)) {
            *users = users.saturating_sub(1);
        }
    }

    /// How many queue pairs a vector has; `None`: it may not be used.
    #[must_use]
    pub fn users(&self, vector: u16) -> Option<u32> {
        self.users.get(usize::from(vector)).copied().filter(|_| self.is_allowed(vector))
    }

    fn is_allowed(&self, vector: u16) -> bool {
        self.allowed.get(usize::from(vector)).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_used_vector_that_is_allowed_is_next() {
        let mut placement = Placement::new(4, [3, 1]).unwrap();
        let placed: Vec<_> = (0..4).map(|_| placement.place()).collect();
        assert_eq!(placed, [1, 3, 1, 3]);
        placement.release(3);
        placement.release(3);
        placement.release(3);
        assert_eq!((placement.place(), placement.place()), (3, 3));
        assert_eq!((placement.users(1), placement.users(0)), (Some(2), None));
        // What is there stays there when others are allowed.
        assert_eq!(placement.allow([4]), Err(BadVectors::Absent(4)));
        assert_eq!(placement.allow([]), Err(BadVectors::Nothing));
        placement.allow([0, 1]).unwrap();
        placement.join(0);
        assert_eq!([placement.place(), placement.place()], [0, 0]);
        assert_eq!((placement.users(1), placement.users(3)), (Some(2), None));
    }

    #[test]
    fn what_cannot_be_is_told() {
        let new = |vectors, allowed: &[u16]| Placement::new(vectors, allowed.iter().copied());
        assert_eq!(new(0, &[]), Err(BadVectors::Count(0)));
        assert_eq!(new(257, &[0]), Err(BadVectors::Count(257)));
        assert_eq!(new(2, &[2]), Err(BadVectors::Absent(2)));
        assert_eq!(new(2, &[]), Err(BadVectors::Nothing));
        assert!(new(256, &[255]).is_ok());
    }
}

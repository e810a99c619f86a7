//! On which completion vector, and so on which core, a new queue pair goes.

/// Vectors at most: as many as [`vector_bits`](crate::DeviceConfig::vector_bits) can say.
const VECTORS_MAX: u16 = 256;

/// How many queue pairs each completion vector has; a new one goes where there are fewest.
///
/// One for each host, beside the devices: one [`Device`](crate::Device) for each vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// `None`: not allowed.
    users: Vec<Option<u32>>,
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
        let mut users = vec![None; vectors.into()];
        for vector in allowed {
            *users.get_mut(usize::from(vector)).ok_or(BadVectors::Absent(vector))? = Some(0);
        }
        if users.iter().all(Option::is_none) {
            return Err(BadVectors::Nothing);
        }
        Ok(Self { users })
    }

    /// The vector for a new queue pair: the one with the fewest, and of those the first.
    pub fn place(&mut self) -> u16 {
        let allowed = self.users.iter_mut().zip(0..);
        let allowed = allowed.filter_map(|(users, vector)| users.as_mut().map(|n| (n, vector)));
        allowed.min_by_key(|(users, vector)| (**users, *vector)).map_or(0, |(users, vector)| {
            *users += 1;
            vector
        })
    }

    /// A queue pair of that vector is no more.
    pub fn release(&mut self, vector: u16) {
        if let Some(Some(users)) = self.users.get_mut(usize::from(vector)) {
            *users = users.saturating_sub(1);
        }
    }

    /// How many queue pairs a vector has; `None`: it may not be used.
    #[must_use]
    pub fn users(&self, vector: u16) -> Option<u32> {
        self.users.get(usize::from(vector)).copied().flatten()
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

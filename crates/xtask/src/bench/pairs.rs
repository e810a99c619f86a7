//! What pairs of measurements say: the ratio within each pair, its middle and its spread.

/// Which direction is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// A rate.
    Higher,
    /// A time or an amount.
    Lower,
}

/// The outcome of some pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pairs {
    /// Middle of ours.
    pub(crate) ours: f64,
    /// Middle of the other's.
    pub(crate) peer: f64,
    /// Middle of "how many times as good as the other", taken in each pair.
    pub(crate) ratio: f64,
    /// The worst pair.
    pub(crate) ratio_min: f64,
    /// The best pair.
    pub(crate) ratio_max: f64,
}

impl Pairs {
    /// Sums up `(peer, ours)` pairs; `None` without one.
    pub(crate) fn of(pairs: &[(f64, f64)], better: Better) -> Option<Self> {
        let times = |(peer, ours): &(f64, f64)| match better {
            Better::Higher => ours / peer,
            Better::Lower => peer / ours,
        };
        let mut ratios: Vec<f64> = pairs.iter().map(times).collect();
        Some(Self {
            ours: median(pairs.iter().map(|(_, ours)| *ours).collect())?,
            peer: median(pairs.iter().map(|(peer, _)| *peer).collect())?,
            ratio: median(ratios.clone())?,
            ratio_min: {
                ratios.sort_unstable_by(f64::total_cmp);
                *ratios.first()?
            },
            ratio_max: *ratios.last()?,
        })
    }
}

pub(super) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_unstable_by(f64::total_cmp);
    let upper = *figures.get(figures.len() / 2)?;
    let lower = *figures.get(figures.len().checked_sub(1)? / 2)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::{Better, Pairs, median};

    #[test]
    fn the_ratio_is_taken_within_each_pair() {
        // The machine was half as fast during the last pair, for both.
        let pairs = Pairs::of(&[(10.0, 30.0), (10.0, 20.0), (5.0, 20.0)], Better::Higher).unwrap();
        assert_eq!((pairs.ratio, pairs.ratio_min, pairs.ratio_max), (3.0, 2.0, 4.0));
        assert_eq!((pairs.peer, pairs.ours), (10.0, 20.0));
    }

    #[test]
    fn for_times_less_is_more() {
        let pairs = Pairs::of(&[(100.0, 2.0)], Better::Lower).unwrap();
        assert_eq!(pairs.ratio, 50.0);
        assert_eq!(Pairs::of(&[], Better::Lower), None);
    }

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}

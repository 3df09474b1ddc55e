//! Order statistics of small samples.

/// The value below which this share of a sorted sample lies; 0 for an empty one.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
}

/// Least, middle and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The least value.
    pub min: f64,
    /// The middle one.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of any values; zeros when there are none.
    pub fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        // Of an even number, the mean of the two in the middle.
        let middle = [sorted.len().saturating_sub(1) / 2, sorted.len() / 2].map(|at| sorted.get(at).copied());
        let median = middle.iter().flatten().sum::<f64>() / middle.iter().flatten().count().max(1) as f64;
        Spread { min: quantile(&sorted, 0.0), median, max: quantile(&sorted, 1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_sample() {
        let sorted: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!((quantile(&sorted, 0.5), quantile(&sorted, 0.99)), (50.0, 99.0));
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn a_spread_does_not_mind_the_order() {
        let spread = Spread::of([3.0, 1.0, 2.0].into_iter());
        assert_eq!(spread, Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0].into_iter()).median, 2.5);
        assert_eq!(Spread::of(std::iter::empty()).median, 0.0);
    }
}

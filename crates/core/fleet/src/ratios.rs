//! Ratios of observed to expected times, as logarithms: twice as long and half as long are equally far off.

/// Times below this are all alike: the network, the end of a step, the clock.
pub(crate) const RESOLUTION_MS: f64 = 4.0;

/// The logarithm of observed over expected. Differences below the resolution of times vanish.
pub(crate) fn log_ratio(took_ms: f64, expected_ms: f64) -> f64 {
    let (took_ms, expected_ms) = resolved(took_ms, expected_ms);
    (took_ms / expected_ms).ln()
}

/// Both times plus the resolution, which is what ratios compare.
pub(crate) fn resolved(took_ms: f64, expected_ms: f64) -> (f64, f64) {
    (took_ms.max(0.0) + RESOLUTION_MS, expected_ms.max(0.0) + RESOLUTION_MS)
}

/// The median, the lower one of two; `None` of nothing. Sorts in place.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_a_value_in_the_middle() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.0));
    }

    #[test]
    fn equal_times_have_no_ratio_and_small_differences_hardly_one() {
        assert_eq!(log_ratio(50.0, 50.0), 0.0);
        assert!(log_ratio(2.0, 1.0) < 0.2);
        assert!((log_ratio(2_000.0, 1_000.0) - 2.0_f64.ln()).abs() < 0.01);
        assert!(log_ratio(-5.0, f64::MAX).is_finite());
    }
}

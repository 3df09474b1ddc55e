//! Numbers as pages show them.

/// Rounds to three digits after the point: more would be noise.
pub(super) fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

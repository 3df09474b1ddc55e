//! Times as text.

/// Formats milliseconds: `42 ms`, `1.35 s`, `2.5 min`.
pub fn duration(ms: f64) -> String {
    match ms {
        _ if ms < 10.0 => format!("{ms:.1} ms"),
        _ if ms < 1_000.0 => format!("{ms:.0} ms"),
        _ if ms < 10_000.0 => format!("{:.2} s", ms / 1_000.0),
        _ if ms < 120_000.0 => format!("{:.1} s", ms / 1_000.0),
        _ => format!("{:.1} min", ms / 60_000.0),
    }
}

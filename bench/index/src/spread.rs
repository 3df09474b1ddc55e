//! A figure with its spread.

use std::fmt;

/// The median of several rounds, with the least and the greatest.
pub struct Spread {
    pub median: f64,
    least: f64,
    greatest: f64,
}

impl Spread {
    pub fn of(figures: impl Iterator<Item = f64>) -> Spread {
        let mut figures: Vec<f64> = figures.collect();
        figures.sort_by(f64::total_cmp);
        Spread { median: figures[figures.len() / 2], least: figures[0], greatest: figures[figures.len() - 1] }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median < 100.0 { 1 } else { 0 };
        write!(f, "{:.digits$} ({:.digits$}-{:.digits$})", self.median, self.least, self.greatest)
    }
}

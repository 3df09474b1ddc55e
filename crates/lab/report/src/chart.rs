//! Plots of a report.

mod plot;
mod ranges;
mod shares;
mod surface;
mod timeline;

pub use plot::{AxisRange, Marks, Plot, PlotAxis, Series};
pub use ranges::ranges;
pub use shares::shares;
pub use surface::surface;
pub use timeline::{Scales, timeline};

/// Width of a letter at the size of labels; a wide font's, because the reader's font is not known.
const LETTER: f64 = 7.6;
/// Longest name beside a plot; longer ones are cut short.
const NAME_LETTERS_MAX: usize = 52;

/// Width of a text at the size of labels.
fn text_width(text: &str) -> f64 {
    LETTER * text.chars().count() as f64
}

/// A name as it fits beside a plot.
fn short_name(name: &str) -> String {
    match name.char_indices().nth(NAME_LETTERS_MAX) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Room for the longest of these names and a gap.
fn names_width<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    names.map(|name| text_width(&short_name(name))).fold(90.0, f64::max) + 24.0
}

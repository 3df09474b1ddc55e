//! What the lab found, to be read in two minutes.
//!
//! One [`Report`] is written as a self-contained HTML file with plots, as Markdown, or as a table for a terminal. Each begins
//! with the answer in a sentence; then the figures, with confidence where there are several seeds and with bounds beside them;
//! then how it was made, down to the command.

mod axis;
mod chart;
mod figures;
mod html;
mod markdown;
mod report;
mod svg;
mod table;
mod verdict;

pub use figures::Figures;
pub use html::html;
pub use markdown::markdown;
pub use report::{Load, Point, Report, Sweep};
pub use table::table;

//! Reports of lab results, readable in two minutes.
//!
//! One [`Report`] is rendered as a self-contained HTML file with plots, as Markdown, or as a table for a
//! terminal. Each starts with the answer in a sentence. Figures follow, with confidence intervals over seeds
//! and with bounds, then the setup and the command.

mod axis;
mod chart;
mod duration;
mod figures;
mod html;
mod markdown;
mod measure;
mod report;
mod svg;
mod table;
mod verdict;

pub use figures::Figures;
pub use html::html;
pub use markdown::markdown;
pub use report::{Point, Report, RunDetail, Sweep};
pub use table::table;

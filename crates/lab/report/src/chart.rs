//! Plots of a report.

mod lines;
mod load;
mod ranges;
mod shares;
mod surface;

pub use lines::{Lines, Series};
pub use load::load;
pub use ranges::ranges;
pub use shares::shares;
pub use surface::surface;

//! How a worker's cache is known.

use std::fmt;

/// By whom a worker's cache is known, and how well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CacheView {
    /// From our own routing: its engine tells nothing, or nothing that can be used.
    #[default]
    Presumed = 0,
    /// From its engine's events, of which some are missing or have turned out wrong.
    Uncertain = 1,
    /// From its engine's events.
    Reported = 2,
}

impl CacheView {
    /// The word used in metrics and lists.
    pub fn as_str(self) -> &'static str {
        match self {
            CacheView::Presumed => "presumed",
            CacheView::Uncertain => "uncertain",
            CacheView::Reported => "reported",
        }
    }
}

impl fmt::Display for CacheView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

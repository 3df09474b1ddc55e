//! The source of the knowledge about a worker's cache.

use std::fmt;

/// Where the knowledge about a worker's cache comes from, and how far it is trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CacheView {
    /// From our own routing: the engine sends no usable events.
    #[default]
    Presumed = 0,
    /// From the engine's events, of which some are missing or proved wrong.
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

//! Which versions of the wire a router speaks, so that routers can be upgraded one after another.
//!
//! Every router says its oldest and its newest, in a form that never changes. Two of them speak the newest that both know; where
//! there is none they say so in plain words, and leave one another alone.

use std::fmt;

/// From the oldest to the newest version that a router speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest that is still understood.
    pub oldest: u8,
    /// The newest.
    pub newest: u8,
}

/// From this one on, [`crate::frame::Kind::Goodbye`] is understood.
pub(crate) const GOODBYE: u8 = 2;

impl Versions {
    /// What this build speaks. 2: whoever leaves a mesh says goodbye.
    pub const OURS: Versions = Versions { oldest: 1, newest: 2 };

    /// What the two have in common at best.
    pub(crate) fn agree(self, other: Versions) -> Option<u8> {
        let best = self.newest.min(other.newest);
        (best >= self.oldest.max(other.oldest)).then_some(best)
    }
}

impl Default for Versions {
    fn default() -> Versions {
        Versions::OURS
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            return write!(f, "{}", self.newest);
        }
        write!(f, "{} to {}", self.oldest, self.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_agree_on_the_newest_that_both_know() {
        let versions = |oldest, newest| Versions { oldest, newest };
        for (ours, theirs, agreed) in [
            (versions(1, 1), versions(1, 1), Some(1)),
            (versions(1, 2), versions(2, 3), Some(2)),
            (versions(1, 4), versions(2, 3), Some(3)),
            (versions(1, 2), versions(3, 4), None),
        ] {
            assert_eq!(ours.agree(theirs), agreed, "{ours} and {theirs}");
            assert_eq!(theirs.agree(ours), agreed, "{theirs} and {ours}");
        }
    }
}

//! Transport versions, so that routers can be upgraded one after another.
//!
//! Every router states its oldest and newest version, in a form that never changes. Two routers use the
//! newest common version; without one they report it and do not connect.

use std::fmt;

/// The range of versions that a router supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest supported version.
    pub oldest: u8,
    /// The newest supported version.
    pub newest: u8,
}

/// The first version with [`crate::frame::Kind::Goodbye`].
pub(crate) const GOODBYE: u8 = 2;

impl Versions {
    /// Versions of this build. Version 2 adds the goodbye of a router that leaves a mesh.
    pub const OURS: Versions = Versions { oldest: 1, newest: 2 };

    /// The newest common version.
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
    fn two_routers_agree_on_the_newest_common_version() {
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

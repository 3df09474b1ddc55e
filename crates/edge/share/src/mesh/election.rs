//! Two routers that dial each other at the same moment have two connections, and need one. Pure.
//!
//! Both ends see the same two connections, in whatever order, and must keep the same one without asking each other.

use std::time::Duration;

use warmroute_types::RouterId;

/// A connection that is there already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub dialed_by: RouterId,
    /// How long nothing was heard on it.
    pub quiet: Duration,
}

/// Which of the two stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Old,
    New,
}

/// The one that the smaller number dialed. Two exceptions: a router that dials a second time has lost the first, and so has the one whose
/// connection has been quiet for longer than a living one ever is; then the new one stays.
pub(crate) fn keep(old: Standing, new_dialed_by: RouterId, quiet_max: Duration) -> Keep {
    if old.dialed_by == new_dialed_by || old.quiet > quiet_max || new_dialed_by < old.dialed_by {
        Keep::New
    } else {
        Keep::Old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET_MAX: Duration = Duration::from_secs(1);

    fn standing(dialed_by: u64, quiet_ms: u64) -> Standing {
        Standing { dialed_by: RouterId(dialed_by), quiet: Duration::from_millis(quiet_ms) }
    }

    #[test]
    fn both_ends_keep_the_same_one_in_whatever_order_they_see_them() {
        assert_eq!(keep(standing(1, 0), RouterId(2), QUIET_MAX), Keep::Old);
        assert_eq!(keep(standing(2, 0), RouterId(1), QUIET_MAX), Keep::New);
    }

    #[test]
    fn a_router_that_dials_again_has_lost_what_it_had() {
        assert_eq!(keep(standing(2, 0), RouterId(2), QUIET_MAX), Keep::New);
        assert_eq!(keep(standing(1, 1_500), RouterId(2), QUIET_MAX), Keep::New);
    }
}

//! Chooses one of two connections between the same two routers. Pure.
//!
//! Two routers that dial each other at the same moment have two connections. Both see the same two, in any
//! order, and must keep the same one without asking each other.

use std::time::Duration;

use warmroute_types::RouterId;

/// The connection that exists already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExistingConnection {
    pub dialed_by: RouterId,
    /// Time since something was received on it.
    pub silence: Duration,
}

/// The connection that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Existing,
    New,
}

/// Keeps the connection that the router with the smaller id dialed. The new connection stays in two other
/// cases: the same router dialed again, so it lost the first one; or the existing connection has been silent
/// for longer than a live one can be.
pub(crate) fn choose_connection(
    old: ExistingConnection,
    new_dialed_by: RouterId,
    silence_max: Duration,
) -> Kept {
    if old.dialed_by == new_dialed_by || old.silence > silence_max || new_dialed_by < old.dialed_by {
        Kept::New
    } else {
        Kept::Existing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE_MAX: Duration = Duration::from_secs(1);

    fn existing(dialed_by: u64, quiet_ms: u64) -> ExistingConnection {
        ExistingConnection { dialed_by: RouterId(dialed_by), silence: Duration::from_millis(quiet_ms) }
    }

    #[test]
    fn both_sides_keep_the_same_connection_in_any_order() {
        assert_eq!(choose_connection(existing(1, 0), RouterId(2), SILENCE_MAX), Kept::Existing);
        assert_eq!(choose_connection(existing(2, 0), RouterId(1), SILENCE_MAX), Kept::New);
    }

    #[test]
    fn a_second_dial_replaces_the_connection() {
        assert_eq!(choose_connection(existing(2, 0), RouterId(2), SILENCE_MAX), Kept::New);
        assert_eq!(choose_connection(existing(1, 1_500), RouterId(2), SILENCE_MAX), Kept::New);
    }
}

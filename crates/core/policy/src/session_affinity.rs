//! All turns of a session to one worker, which then holds the conversation in its cache.
//!
//! The key is a session, user or tenant that the request names. A request that names none goes where there is least to
//! do.

use crate::rendezvous::{Home, LoadBound, home};
use crate::{Ask, Candidate, Choice, LeastLoaded, Policy};

/// Consistent hashing of the session key, with bounded load.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionAffinity {
    /// When a worker counts as full.
    pub bound: LoadBound,
}

impl Policy for SessionAffinity {
    fn name(&self) -> &'static str {
        "session_affinity"
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        let Some(key) = ask.session_key else {
            return Choice { reason: "no_session", ..LeastLoaded::default().choose(ask, candidates) };
        };
        match home(key, candidates, self.bound) {
            Home::First(index) => Choice { index, reason: "session" },
            Home::Spilled(index) => Choice { index, reason: "session_spilled" },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn a_session_stays_while_its_worker_has_room() {
        let policy = SessionAffinity::default();
        let mut candidates = with_in_flight(&[0; 8]);
        let ask = Ask { session_key: Some(42), ..drawn(1) };
        let first = policy.choose(&ask, &candidates);
        assert_eq!(first.reason, "session");
        for draw in 0..50 {
            assert_eq!(policy.choose(&Ask { session_key: Some(42), ..drawn(draw) }, &candidates), first);
        }
        candidates[first.index].in_flight = 50;
        let spilled = policy.choose(&ask, &candidates);
        assert_eq!(spilled.reason, "session_spilled");
        assert_ne!(spilled.index, first.index);
    }

    #[test]
    fn a_request_without_a_session_goes_where_there_is_least_to_do() {
        let choice = SessionAffinity::default().choose(&drawn(1), &with_in_flight(&[4, 1, 3]));
        assert_eq!(choice, Choice { index: 1, reason: "no_session" });
    }
}

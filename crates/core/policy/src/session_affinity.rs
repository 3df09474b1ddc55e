//! All requests of a session go to one worker, which then holds the conversation in its cache.
//!
//! The key is the session, user or tenant that the request names. Requests without a key go to the least
//! loaded worker.

use crate::rendezvous::{Home, LoadBound, home};
use crate::{Candidate, Choice, LeastLoaded, Policy, PolicyRequest};

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

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let Some(key) = request.session_key else {
            return Choice { reason: "no_session", ..LeastLoaded::default().choose(request, candidates) };
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
        let request = PolicyRequest { session_key: Some(42), ..request_with_random(1) };
        let first = policy.choose(&request, &candidates);
        assert_eq!(first.reason, "session");
        for draw in 0..50 {
            assert_eq!(
                policy.choose(
                    &PolicyRequest { session_key: Some(42), ..request_with_random(draw) },
                    &candidates
                ),
                first
            );
        }
        candidates[first.index].in_flight = 50;
        let spilled = policy.choose(&request, &candidates);
        assert_eq!(spilled.reason, "session_spilled");
        assert_ne!(spilled.index, first.index);
    }

    #[test]
    fn a_request_without_a_session_goes_to_the_least_loaded_worker() {
        let choice = SessionAffinity::default().choose(&request_with_random(1), &with_in_flight(&[4, 1, 3]));
        assert_eq!(choice, Choice { index: 1, reason: "no_session" });
    }
}

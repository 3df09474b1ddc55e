//! How the lab shows a policy what engines really hold.
//!
//! The router's own index knows what was reported or presumed. To ask what perfect knowledge would be worth, or a directory
//! that is so many seconds old, the numbers are put into the candidates on their way to the policy; everything else,
//! choosing, booking, releasing, is the router as it is.

use std::sync::{Arc, Mutex, PoisonError};

use warmroute_policy::{Ask, Candidate, Choice, Policy};

/// A policy behind the lens.
pub struct Lens {
    rule: Box<dyn Policy>,
    sight: Arc<Sight>,
}

/// What is to be seen of each seat, while one request is decided.
#[derive(Debug, Default)]
pub struct Sight {
    seats: Mutex<Vec<Seen>>,
}

/// What a policy is told of one worker instead of what the router knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Tokens of the prompt that it holds.
    pub overlap_tokens: u32,
    /// Tokens that were promised to be computed there and are not yet.
    pub prefill_tokens: u64,
}

impl Lens {
    /// Before a rule.
    pub fn new(rule: Box<dyn Policy>, sight: Arc<Sight>) -> Lens {
        Lens { rule, sight }
    }
}

impl Sight {
    /// Shows these instead of the router's own; nothing at all shows the router's own.
    pub fn show(&self, seats: impl Iterator<Item = Seen>) {
        let mut shown = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        shown.clear();
        shown.extend(seats);
    }

    /// What was shown of a seat.
    pub fn of(&self, seat: usize) -> Option<Seen> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner).get(seat).copied()
    }
}

impl Policy for Lens {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        let seats = self.sight.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if seats.is_empty() {
            return self.rule.choose(ask, candidates);
        }
        let through = |candidate: &Candidate| match seats.get(candidate.worker.index()) {
            Some(&Seen { overlap_tokens, prefill_tokens }) => {
                Candidate { overlap_tokens, prefill_tokens, ..*candidate }
            }
            None => *candidate,
        };
        let seen: Vec<Candidate> = candidates.iter().map(through).collect();
        self.rule.choose(ask, &seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_policy::StickyLeastLoaded;
    use warmroute_types::WorkerId;

    fn candidate(seat: u16) -> Candidate {
        Candidate {
            worker: WorkerId(seat),
            identity: u64::from(seat),
            overlap_tokens: 0,
            restorable_tokens: 0,
            in_flight: 1,
            prefill_tokens: 0,
            decode_tokens: 0,
            waiting: None,
        }
    }

    #[test]
    fn the_policy_sees_what_is_shown() {
        let sight = Arc::new(Sight::default());
        let lens = Lens::new(Box::new(StickyLeastLoaded::default()), Arc::clone(&sight));
        let candidates = [candidate(0), candidate(1), candidate(2)];
        let ask = Ask { prompt_tokens: 100, ..Ask::default() };
        for holder in 0..3 {
            let seen = |seat| Seen { overlap_tokens: if seat == holder { 90 } else { 0 }, prefill_tokens: 0 };
            sight.show((0..3).map(seen));
            assert_eq!(lens.choose(&ask, &candidates).index, holder);
        }
    }
}

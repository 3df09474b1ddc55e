//! How many requests may be sent again: a share of those that came, so that retries never make an outage worse.
//!
//! One request's retries are bounded by its own limit. That alone would still triple the load of a fleet that fails every
//! request, at the very moment when it can take none. So over a sliding window there are at most one retry for five
//! requests, and a few more, without which a quiet gateway could never retry.

use parking_lot::Mutex;
use warmroute_types::Micros;

/// The window: so many slots of a second each. Long enough that a worker of a small fleet may die with all that it has waiting,
/// and every request finds another.
const SLOTS: usize = 30;

/// One retry for so many requests.
const REQUESTS_PER_RETRY: u64 = 5;

/// Retries in a window that need no requests beside them.
pub const RETRIES_FREE: u64 = 10;

/// What was sent lately, shared by all requests.
#[derive(Debug, Default)]
pub struct RetryBudget(Mutex<Window>);

/// No retry is left: the last answer must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent;

#[derive(Debug, Default)]
struct Window {
    slots: [Slot; SLOTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    second: u64,
    requests: u64,
    retries: u64,
}

impl RetryBudget {
    /// A request came.
    pub fn earn(&self, now: Micros) {
        self.0.lock().slot(now).requests += 1;
    }

    /// How many could be sent again now, beyond those that are free, for [`RetryBudget::inherit`] of another.
    pub fn left(&self, now: Micros) -> u64 {
        let (requests, retries) = self.0.lock().live(now);
        (requests / REQUESTS_PER_RETRY).saturating_sub(retries)
    }

    /// Another had so many left, and its requests come here from now on: with their failures, and nothing earned yet.
    pub fn inherit(&self, now: Micros, left: u64) {
        self.0.lock().slot(now).requests += left.saturating_mul(REQUESTS_PER_RETRY);
    }

    /// Whether one could be sent again now.
    pub fn has_room(&self, now: Micros) -> bool {
        self.0.lock().has_room(now)
    }

    /// One is sent again, if there is room for that.
    pub fn spend(&self, now: Micros) -> Result<(), Spent> {
        let mut window = self.0.lock();
        if !window.has_room(now) {
            return Err(Spent);
        }
        window.slot(now).retries += 1;
        Ok(())
    }
}

impl Window {
    /// The slot of this moment, emptied if it was another's. Time may step back between threads; a moment so far back that
    /// its slot has been given on is counted there.
    fn slot(&mut self, now: Micros) -> &mut Slot {
        let second = now.0 / 1_000_000;
        let slot = &mut self.slots[second as usize % SLOTS];
        if slot.second < second {
            *slot = Slot { second, ..Slot::default() };
        }
        slot
    }

    fn has_room(&self, now: Micros) -> bool {
        let (requests, retries) = self.live(now);
        retries < requests / REQUESTS_PER_RETRY + RETRIES_FREE
    }

    /// Requests and retries in the window.
    fn live(&self, now: Micros) -> (u64, u64) {
        let oldest = (now.0 / 1_000_000).saturating_sub(SLOTS as u64 - 1);
        let live = self.slots.iter().filter(|slot| slot.second >= oldest);
        live.fold((0, 0), |(requests, retries), slot| (requests + slot.requests, retries + slot.retries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_successor_has_what_its_predecessor_had_left_and_no_more() {
        let (old, new, now) = (RetryBudget::default(), RetryBudget::default(), Micros::from_secs(100));
        (0..100).for_each(|_| old.earn(now));
        (0..5).for_each(|_| old.spend(now).unwrap());
        new.inherit(now, old.left(now));
        let spent = (0..100).filter(|_| new.spend(now).is_ok()).count();
        assert_eq!(spent as u64, 15 + RETRIES_FREE);
    }

    #[test]
    fn an_outage_is_not_amplified() {
        let budget = RetryBudget::default();
        let now = Micros::from_secs(3);
        let sent: u64 = (0..1_000)
            .map(|_| {
                budget.earn(now);
                1 + (0..2).map(|_| u64::from(budget.spend(now).is_ok())).sum::<u64>()
            })
            .sum();
        assert_eq!(sent, 1_000 + 200 + RETRIES_FREE);
    }

    #[test]
    fn what_was_spent_is_forgotten_with_its_window() {
        let budget = RetryBudget::default();
        (0..RETRIES_FREE).for_each(|_| budget.spend(Micros::from_secs(1)).unwrap());
        assert_eq!(budget.spend(Micros::from_secs(SLOTS as u64)), Err(Spent));
        assert_eq!(budget.spend(Micros::from_secs(SLOTS as u64 + 1)), Ok(()));
    }

    proptest! {
        /// However requests and retries come, and whichever window is looked at: a fifth, and the free ones.
        #[test]
        fn no_window_holds_more_than_its_share(steps in prop::collection::vec((0..3_u8, 0..700_u64), 1..400)) {
            let (budget, mut now, mut log) = (RetryBudget::default(), Micros::ZERO, Vec::new());
            for (kind, ms) in steps {
                now = now + Micros::from_millis(ms);
                if kind == 0 {
                    budget.earn(now);
                    log.push((now.0 / 1_000_000, 1, 0));
                } else if budget.spend(now).is_ok() {
                    log.push((now.0 / 1_000_000, 0, 1));
                    let oldest = (now.0 / 1_000_000).saturating_sub(SLOTS as u64 - 1);
                    let live = log.iter().filter(|(second, ..)| *second >= oldest);
                    let (requests, retries) = live.fold((0, 0), |(r, t), (_, request, retry)| (r + request, t + retry));
                    prop_assert!(retries <= requests / REQUESTS_PER_RETRY + RETRIES_FREE);
                }
            }
        }
    }
}

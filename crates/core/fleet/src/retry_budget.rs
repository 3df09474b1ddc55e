//! A retry budget: retries are limited to a share of the requests, so that they never make an outage worse.
//!
//! The per-request retry limit alone would still triple the load of a fleet that fails every request. Over a
//! sliding window the budget allows one retry per five requests, plus a few free ones, without which a quiet
//! gateway could never retry.

use parking_lot::Mutex;
use warmroute_types::Micros;

/// Length of the window in slots of one second. Long enough that a worker of a small fleet may die with its
/// whole queue, and every request of it can be retried.
const SLOTS: usize = 30;

/// Requests that earn one retry.
const REQUESTS_PER_RETRY: u64 = 5;

/// Retries per window that need no requests.
pub const RETRIES_FREE: u64 = 10;

/// The requests and retries of the window, shared by all requests.
#[derive(Debug, Default)]
pub struct RetryBudget(Mutex<Window>);

/// The budget is spent: return the last answer to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudgetSpent;

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
    /// Counts a request.
    pub fn earn(&self, now: Micros) {
        self.0.lock().slot(now).requests += 1;
    }

    /// Retries earned and not spent, without the free ones; input of [`RetryBudget::inherit`].
    pub fn left(&self, now: Micros) -> u64 {
        let (requests, retries) = self.0.lock().live(now);
        (requests / REQUESTS_PER_RETRY).saturating_sub(retries)
    }

    /// Takes over the retries that a predecessor had left, because its requests arrive here from now on.
    pub fn inherit(&self, now: Micros, left: u64) {
        self.0.lock().slot(now).requests += left.saturating_mul(REQUESTS_PER_RETRY);
    }

    /// Whether the budget allows a retry now.
    pub fn has_room(&self, now: Micros) -> bool {
        self.0.lock().has_room(now)
    }

    /// Spends one retry, if the budget allows it.
    pub fn spend(&self, now: Micros) -> Result<(), RetryBudgetSpent> {
        let mut window = self.0.lock();
        if !window.has_room(now) {
            return Err(RetryBudgetSpent);
        }
        window.slot(now).retries += 1;
        Ok(())
    }
}

impl Window {
    /// The slot of this second, reset if it held an older one. Time may step back between threads; a second
    /// whose slot has been reused is counted in that slot.
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
    fn a_successor_inherits_exactly_the_retries_left() {
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
    fn spent_retries_expire_with_the_window() {
        let budget = RetryBudget::default();
        (0..RETRIES_FREE).for_each(|_| budget.spend(Micros::from_secs(1)).unwrap());
        assert_eq!(budget.spend(Micros::from_secs(SLOTS as u64)), Err(RetryBudgetSpent));
        assert_eq!(budget.spend(Micros::from_secs(SLOTS as u64 + 1)), Ok(()));
    }

    proptest! {
        /// For any order of requests and retries, every window holds at most a fifth plus the free retries.
        #[test]
        fn no_window_exceeds_its_share_of_retries(steps in prop::collection::vec((0..3_u8, 0..700_u64), 1..400)) {
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

//! Requests of the last three minutes: computed tokens per worker and subtree, and times to first token.

use std::collections::{BTreeMap, HashMap, VecDeque};

use warmroute_types::{Micros, WorkerId};

/// Length of the window.
pub const WINDOW: Micros = Micros::from_secs(180);

/// Totals of one subtree on one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub requests: u32,
    pub prefill_us: u64,
}

/// Requests of the window.
#[derive(Debug, Default)]
pub struct Window {
    sent: VecDeque<Sent>,
    first_tokens: VecDeque<FirstToken>,
    /// Sums of `sent`, by worker and subtree.
    tallies: BTreeMap<(WorkerId, u64), Tally>,
    /// Requests per subtree over all workers.
    requests: HashMap<u64, u32>,
}

#[derive(Debug)]
struct Sent {
    at: Micros,
    worker: WorkerId,
    subtree: u64,
    prefill_us: u64,
}

#[derive(Debug)]
struct FirstToken {
    at: Micros,
    worker: WorkerId,
    subtree: u64,
    waited_ms: f64,
}

impl Window {
    /// Drops requests older than the window.
    pub fn move_to(&mut self, now: Micros) {
        let start = Micros(now.0.saturating_sub(WINDOW.0));
        while let Some(old) = self.sent.pop_front_if(|sent| sent.at < start) {
            self.uncount(&old);
        }
        while self.first_tokens.pop_front_if(|first| first.at < start).is_some() {}
    }

    fn uncount(&mut self, old: &Sent) {
        let tally = self.tallies.entry((old.worker, old.subtree)).or_default();
        tally.requests -= 1;
        tally.prefill_us -= old.prefill_us;
        if tally.requests == 0 {
            self.tallies.remove(&(old.worker, old.subtree));
        }
        let requests = self.requests.entry(old.subtree).or_default();
        *requests -= 1;
        if *requests == 0 {
            self.requests.remove(&old.subtree);
        }
    }

    pub fn send(&mut self, at: Micros, worker: WorkerId, subtree: u64, prefill_us: u64) {
        self.sent.push_back(Sent { at, worker, subtree, prefill_us });
        let tally = self.tallies.entry((worker, subtree)).or_default();
        tally.requests += 1;
        tally.prefill_us += prefill_us;
        *self.requests.entry(subtree).or_default() += 1;
    }

    pub fn first_token(&mut self, at: Micros, worker: WorkerId, subtree: u64, waited_ms: f64) {
        self.first_tokens.push_back(FirstToken { at, worker, subtree, waited_ms });
    }

    /// Subtrees of a worker, with their totals.
    pub fn subtrees(&self, worker: WorkerId) -> impl Iterator<Item = (u64, Tally)> {
        self.tallies.range((worker, 0)..=(worker, u64::MAX)).map(|(&(_, subtree), &tally)| (subtree, tally))
    }

    /// Whether the window has a request of the subtree.
    pub fn has(&self, subtree: u64) -> bool {
        self.requests.contains_key(&subtree)
    }

    /// Moves a subtree's totals from one worker to another.
    pub fn reassign(&mut self, subtree: u64, from: WorkerId, to: WorkerId) {
        let Some(moved) = self.tallies.remove(&(from, subtree)) else { return };
        let tally = self.tallies.entry((to, subtree)).or_default();
        tally.requests += moved.requests;
        tally.prefill_us += moved.prefill_us;
        let of_it = |sent: &&mut Sent| sent.subtree == subtree && sent.worker == from;
        self.sent.iter_mut().filter(of_it).for_each(|sent| sent.worker = to);
    }

    /// Drops the times to first token of a subtree on a worker.
    pub fn forget_first_tokens(&mut self, worker: WorkerId, subtree: u64) {
        self.first_tokens.retain(|first| first.worker != worker || first.subtree != subtree);
    }

    /// Whether first tokens took twice as long in the newer half of the window as in the older.
    pub fn has_slowed_down(&self, worker: WorkerId, subtree: u64, now: Micros) -> bool {
        let middle = Micros(now.0.saturating_sub(WINDOW.0 / 2));
        let of_it = |first: &&FirstToken| first.subtree == subtree && first.worker == worker;
        let (older, newer): (Vec<_>, Vec<_>) =
            self.first_tokens.iter().filter(of_it).partition(|first| first.at < middle);
        let mean_ms = |half: &[&FirstToken]| {
            (!half.is_empty())
                .then(|| half.iter().map(|first| first.waited_ms).sum::<f64>() / half.len() as f64)
        };
        matches!((mean_ms(&older), mean_ms(&newer)), (Some(older), Some(newer)) if newer >= 2.0 * older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: WorkerId = WorkerId(0);
    const B: WorkerId = WorkerId(1);

    #[test]
    fn old_requests_leave_the_window_even_after_a_move() {
        let mut window = Window::default();
        window.send(Micros::from_secs(0), A, 7, 100);
        window.send(Micros::from_secs(60), A, 7, 50);
        window.send(Micros::from_secs(60), A, 8, 20);
        window.reassign(7, A, B);
        assert_eq!(window.subtrees(A).collect::<Vec<_>>(), [(8, Tally { requests: 1, prefill_us: 20 })]);
        assert_eq!(window.subtrees(B).collect::<Vec<_>>(), [(7, Tally { requests: 2, prefill_us: 150 })]);
        window.move_to(Micros::from_secs(200));
        assert_eq!(window.subtrees(B).collect::<Vec<_>>(), [(7, Tally { requests: 1, prefill_us: 50 })]);
        window.move_to(Micros::from_secs(300));
        assert!(!window.has(7) && !window.has(8));
    }

    #[test]
    fn first_tokens_are_compared_between_the_halves_of_the_window() {
        let mut window = Window::default();
        window.first_token(Micros::from_secs(10), A, 7, 20.0);
        window.first_token(Micros::from_secs(100), A, 7, 39.0);
        assert!(!window.has_slowed_down(A, 7, Micros::from_secs(170)));
        window.first_token(Micros::from_secs(110), A, 7, 50.0);
        assert!(window.has_slowed_down(A, 7, Micros::from_secs(170)));
        assert!(!window.has_slowed_down(B, 7, Micros::from_secs(170)));
        assert!(!window.has_slowed_down(A, 8, Micros::from_secs(170)));
        assert!(!window.has_slowed_down(A, 7, Micros::from_secs(80)), "all of it is new");
    }
}

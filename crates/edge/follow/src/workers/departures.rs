//! Workers that no source lists any more, kept until others can replace them.
//!
//! A new list may name only new workers, which must be probed before they get requests. Removing the old ones at once
//! would leave no worker for the requests of that moment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warmroute_fleet::{Models, WorkerView};
use warmroute_types::{Address, WorkerState};

/// How long a departing worker is kept for want of a replacement.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether some sources have not listed their workers yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listings {
    /// More workers may come.
    Pending,
    /// All sources have listed their workers.
    Complete,
}

/// Departing workers, and the time after which each is removed in any case.
#[derive(Debug, Default)]
pub struct Departures(BTreeMap<Address, Instant>);

impl Departures {
    /// Adds a worker that no source lists any more.
    pub fn add(&mut self, address: Address, now: Instant) {
        self.0.entry(address).or_insert(now + REPLACEMENT_TIMEOUT);
    }

    /// Keeps a worker that is listed again.
    pub fn cancel(&mut self, address: &Address) {
        self.0.remove(address);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out the workers that can be removed now.
    pub fn take_ready(&mut self, workers: &[WorkerView], listings: Listings, now: Instant) -> Vec<Address> {
        let (going, staying): (Vec<_>, Vec<_>) =
            workers.iter().partition(|view| self.0.contains_key(&view.worker.address));
        let is_ready = |view: &&WorkerView| view.load.state.takes_requests();
        let ready: Vec<&WorkerView> = staying.iter().copied().filter(is_ready).collect();
        let is_coming = |view: &&WorkerView| {
            matches!(view.load.state, WorkerState::Starting | WorkerState::Unready | WorkerState::Sleeping)
        };
        let may_come = staying.iter().copied().any(|view| is_coming(&view)) || listings == Listings::Pending;
        let is_needed = |address: &Address| {
            let view = going.iter().find(|view| view.worker.address == *address);
            may_come && view.is_some_and(|view| is_ready(view) && !can_replace(&ready, &view.models))
        };
        let may_go = self.0.extract_if(.., |address, until| *until <= now || !is_needed(address));
        may_go.map(|(address, _)| address).collect()
    }
}

/// Whether the ready workers serve all of these models.
fn can_replace(ready: &[&WorkerView], models: &Models) -> bool {
    match models {
        Models::Named(names) => names.iter().all(|name| {
            ready.iter().any(|other| match &other.models {
                Models::Named(others) => others.contains(name),
                Models::Any => true,
                Models::Unknown => false,
            })
        }),
        Models::Any | Models::Unknown => !ready.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_fleet::{Fleet, HealthConfig, ProbeResult};
    use warmroute_types::Micros;

    /// Workers by name and model. Names in capitals are ready.
    fn fleet(workers: &[(&str, &str)]) -> Vec<WorkerView> {
        let fleet = Fleet::new(HealthConfig::default());
        for (name, model) in workers {
            let worker = fleet.join(Address::new(*name), Models::named(&[*model])).unwrap();
            if name.chars().all(char::is_uppercase) {
                fleet.probed(&worker, ProbeResult::Answered, Micros::ZERO);
            }
        }
        fleet.workers()
    }

    fn leaves_at_once(workers: &[(&str, &str)], listings: Listings) -> bool {
        let (mut departures, now) = (Departures::default(), Instant::now());
        departures.add(Address::new("A"), now);
        departures.take_ready(&fleet(workers), listings, now) == [Address::new("A")]
    }

    #[test]
    fn a_needed_worker_stays_until_another_is_ready() {
        use Listings::{Complete, Pending};
        for (workers, listings, leaves) in [
            (&[("A", "m"), ("b", "m")][..], Complete, false),
            (&[("A", "m"), ("B", "m")], Complete, true),
            (&[("A", "m"), ("B", "m"), ("c", "m")], Complete, true),
            (&[("A", "m"), ("B", "other"), ("c", "m")], Complete, false),
            (&[("A", "m"), ("B", "other")], Complete, true),
            (&[("A", "m")], Complete, true),
            (&[("A", "m")], Pending, false),
            (&[("b", "m")], Complete, true),
        ] {
            assert_eq!(leaves_at_once(workers, listings), leaves, "{workers:?} {listings:?}");
        }
    }

    #[test]
    fn a_departing_worker_stays_at_most_ten_seconds_and_a_relisted_one_stays() {
        let workers = fleet(&[("A", "m"), ("B", "m"), ("c", "other")]);
        let (mut departures, now) = (Departures::default(), Instant::now());
        departures.add(Address::new("A"), now);
        departures.add(Address::new("B"), now);
        assert_eq!(departures.take_ready(&workers, Listings::Complete, now), []);
        departures.cancel(&Address::new("B"));
        assert_eq!(
            departures.take_ready(&workers, Listings::Complete, now),
            [Address::new("A")],
            "B serves what A did"
        );
        let workers = fleet(&[("B", "m"), ("c", "other")]);
        departures.add(Address::new("B"), now);
        assert_eq!(departures.take_ready(&workers, Listings::Complete, now), []);
        assert_eq!(
            departures.take_ready(&workers, Listings::Complete, now + REPLACEMENT_TIMEOUT),
            [Address::new("B")]
        );
        assert!(departures.is_empty());
    }
}

//! Workers that no source lists any more, and that stay until somebody can take their place.
//!
//! A new list may name none of the old workers, and those that it names must be asked how they are before they get anything. Whoever
//! let the old ones go at once would have nobody for the requests of that moment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warmroute_fleet::{Models, WorkerView};
use warmroute_types::{Address, WorkerState};

/// So long those that come are waited for.
const STAY_MAX: Duration = Duration::from_secs(10);

/// Whether sources have yet to say whom they list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listings {
    /// More workers may come.
    Awaited,
    /// All have spoken.
    Complete,
}

/// Who is to go, and until when at most he stays.
#[derive(Debug, Default)]
pub struct Leavers(BTreeMap<Address, Instant>);

impl Leavers {
    /// Nobody lists it any more.
    pub fn add(&mut self, address: Address, now: Instant) {
        self.0.entry(address).or_insert(now + STAY_MAX);
    }

    /// It is listed again.
    pub fn call_back(&mut self, address: &Address) {
        self.0.remove(address);
    }

    /// Whether nobody is to go.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out those that may go now.
    pub fn let_go(&mut self, workers: &[WorkerView], listings: Listings, now: Instant) -> Vec<Address> {
        let (going, staying): (Vec<_>, Vec<_>) =
            workers.iter().partition(|view| self.0.contains_key(&view.worker.address));
        let is_ready = |view: &&WorkerView| view.load.state.takes_requests();
        let ready: Vec<&WorkerView> = staying.iter().copied().filter(is_ready).collect();
        let is_coming = staying.iter().any(|view| view.load.state == WorkerState::Starting)
            || listings == Listings::Awaited;
        let is_needed = |address: &Address| {
            let view = going.iter().find(|view| view.worker.address == *address);
            is_coming && view.is_some_and(|view| is_ready(view) && !can_replace(&ready, &view.models))
        };
        let may_go = self.0.extract_if(.., |address, until| *until <= now || !is_needed(address));
        may_go.map(|(address, _)| address).collect()
    }
}

/// Whether these serve all that one of such models does.
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

    /// Workers by name and model; those in capitals have answered.
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

    fn goes(workers: &[(&str, &str)], listings: Listings) -> bool {
        let (mut leavers, now) = (Leavers::default(), Instant::now());
        leavers.add(Address::new("A"), now);
        leavers.let_go(&fleet(workers), listings, now) == [Address::new("A")]
    }

    #[test]
    fn whoever_is_needed_stays_until_another_is_ready() {
        use Listings::{Awaited, Complete};
        for (workers, listings, does_go) in [
            (&[("A", "m"), ("b", "m")][..], Complete, false),
            (&[("A", "m"), ("B", "m")], Complete, true),
            (&[("A", "m"), ("B", "m"), ("c", "m")], Complete, true),
            (&[("A", "m"), ("B", "other"), ("c", "m")], Complete, false),
            (&[("A", "m"), ("B", "other")], Complete, true),
            (&[("A", "m")], Complete, true),
            (&[("A", "m")], Awaited, false),
            (&[("b", "m")], Complete, true),
        ] {
            assert_eq!(goes(workers, listings), does_go, "{workers:?} {listings:?}");
        }
    }

    #[test]
    fn nobody_stays_for_ever_and_who_is_called_back_stays() {
        let workers = fleet(&[("A", "m"), ("B", "m"), ("c", "other")]);
        let (mut leavers, now) = (Leavers::default(), Instant::now());
        leavers.add(Address::new("A"), now);
        leavers.add(Address::new("B"), now);
        assert_eq!(leavers.let_go(&workers, Listings::Complete, now), []);
        leavers.call_back(&Address::new("B"));
        assert_eq!(
            leavers.let_go(&workers, Listings::Complete, now),
            [Address::new("A")],
            "B serves what A did"
        );
        let workers = fleet(&[("B", "m"), ("c", "other")]);
        leavers.add(Address::new("B"), now);
        assert_eq!(leavers.let_go(&workers, Listings::Complete, now), []);
        assert_eq!(leavers.let_go(&workers, Listings::Complete, now + STAY_MAX), [Address::new("B")]);
        assert!(leavers.is_empty());
    }
}

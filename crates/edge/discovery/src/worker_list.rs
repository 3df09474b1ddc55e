//! The workers that all sources list together.

use std::collections::{BTreeMap, HashMap};

use warmroute_types::Address;

use crate::EventsEntry;

/// The id of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub usize);

/// A worker as a source lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedWorker {
    /// Its address.
    pub address: Address,
    /// Its models, where the source states them.
    pub models: Option<Vec<String>>,
    /// Its KV events endpoint, where the source states it.
    pub kv_events: Option<EventsEntry>,
}

/// All workers of one source at one moment.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The source.
    pub source: SourceId,
    /// Its workers.
    pub workers: Vec<ListedWorker>,
}

/// A change that a listing causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerListChange {
    /// A worker is new, or its entry changed.
    Joined(ListedWorker),
    /// No source lists it any more.
    Left(Address),
}

/// The last listing of every source.
#[derive(Debug, Default)]
pub struct WorkerList {
    sources: HashMap<SourceId, Vec<ListedWorker>>,
    present: BTreeMap<Address, ListedWorker>,
}

impl WorkerList {
    /// Applies a listing and returns the changes, removals first.
    pub fn update(&mut self, listing: Listing) -> Vec<WorkerListChange> {
        self.sources.insert(listing.source, listing.workers);
        let wanted = self.union();
        let left = self.present.keys().filter(|address| !wanted.contains_key(*address));
        let left = left.map(|address| WorkerListChange::Left(address.clone()));
        let joined = wanted.values().filter(|listed| self.present.get(&listed.address) != Some(listed));
        let joined = joined.cloned().map(WorkerListChange::Joined);
        let changes = left.chain(joined).collect();
        self.present = wanted;
        changes
    }

    /// A worker that two sources list is one worker; a stated field takes precedence over a missing one.
    fn union(&self) -> BTreeMap<Address, ListedWorker> {
        let mut union: BTreeMap<Address, ListedWorker> = BTreeMap::new();
        let mut ids: Vec<_> = self.sources.keys().copied().collect();
        ids.sort_unstable();
        for listed in ids.iter().flat_map(|id| &self.sources[id]) {
            let known = union.entry(listed.address.clone()).or_insert_with(|| listed.clone());
            known.models = known.models.take().or_else(|| listed.models.clone());
            known.kv_events = known.kv_events.take().or_else(|| listed.kv_events.clone());
        }
        union
    }
}

#[cfg(test)]
mod tests {
    use super::WorkerListChange::{Joined, Left};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn listed(name: &str) -> ListedWorker {
        ListedWorker { address: Address::new(name), models: None, kv_events: None }
    }

    fn listing(source: usize, names: &[&str]) -> Listing {
        Listing { source: SourceId(source), workers: names.iter().map(|name| listed(name)).collect() }
    }

    #[test]
    fn only_changes_are_returned() {
        let mut worker_list = WorkerList::default();
        assert_eq!(worker_list.update(listing(0, &["a", "b"])), [Joined(listed("a")), Joined(listed("b"))]);
        assert_eq!(worker_list.update(listing(0, &["b", "a"])), []);
        assert_eq!(
            worker_list.update(listing(0, &["b", "c"])),
            [Left(Address::new("a")), Joined(listed("c"))]
        );
    }

    #[test]
    fn a_worker_stays_while_any_source_lists_it() {
        let mut worker_list = WorkerList::default();
        worker_list.update(listing(0, &["a"]));
        assert_eq!(worker_list.update(listing(1, &["a"])), []);
        assert_eq!(worker_list.update(listing(0, &[])), []);
        assert_eq!(worker_list.update(listing(1, &[])), [Left(Address::new("a"))]);
    }

    #[test]
    fn new_models_of_a_known_worker_are_a_change() {
        let mut worker_list = WorkerList::default();
        worker_list.update(listing(0, &["a"]));
        let named = ListedWorker { models: Some(vec!["m".into()]), ..listed("a") };
        let news = worker_list.update(Listing { source: SourceId(1), workers: vec![named.clone()] });
        assert_eq!(news, [Joined(named)]);
    }

    proptest! {
        /// Applying the changes gives, after each, exactly the union of the last listings.
        #[test]
        fn applied_changes_give_the_union(steps in prop::collection::vec((0..3_usize, prop::collection::vec(0..6_u8, 0..5)), 1..30)) {
            let mut worker_list = WorkerList::default();
            let mut applied: BTreeSet<Address> = BTreeSet::new();
            let mut truth: [BTreeSet<Address>; 3] = Default::default();
            for (source, names) in steps {
                let names: Vec<String> = names.iter().map(|n| format!("w{n}")).collect();
                truth[source] = names.iter().map(Address::new).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                for change in worker_list.update(listing(source, &names)) {
                    match change {
                        Joined(listed) => prop_assert!(applied.insert(listed.address)),
                        Left(address) => prop_assert!(applied.remove(&address)),
                    }
                }
                prop_assert_eq!(&applied, &truth.iter().flatten().cloned().collect());
            }
        }
    }
}

//! The workers that all sources list together.

use std::collections::{BTreeMap, HashMap};

use warmroute_types::{Address, SourceReadiness};

use crate::EventsEntry;

/// Number of a source: a new listing replaces the one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub usize);

/// A worker as a source lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedWorker {
    /// URL and rank: what identifies a worker across sources.
    pub address: Address,
    /// Its models, where the source states them.
    pub models: Option<Vec<String>>,
    /// Its KV events endpoint, where the source states it.
    pub kv_events: Option<EventsEntry>,
    /// Whether the source says that it can take requests.
    pub readiness: SourceReadiness,
    /// The identity of its process, where the source knows it: a pod's UID. With another one, the worker at this
    /// address is another worker.
    pub incarnation: Option<Box<str>>,
    /// Names of the pools to which its source counts it, in order.
    pub pools: Vec<String>,
}

impl ListedWorker {
    /// Whether this is another process than the known one at the same address. An unknown identity changes nothing.
    fn replaces(&self, known: &ListedWorker) -> bool {
        self.incarnation.is_some() && known.incarnation.is_some() && self.incarnation != known.incarnation
    }

    /// A worker of which only the address is known.
    pub fn new(address: Address) -> ListedWorker {
        ListedWorker {
            address,
            models: None,
            kv_events: None,
            readiness: SourceReadiness::Ready,
            incarnation: None,
            pools: Vec::new(),
        }
    }
}

/// When a worker that its source no longer lists gets no more requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Departure {
    /// When others can replace it: a list is edited while its workers run.
    #[default]
    WhenReplaced,
    /// At once: the source knows that the worker stops.
    AtOnce,
}

/// All workers of one source at one moment.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The source whose earlier listing this one replaces.
    pub source: SourceId,
    /// All workers that it lists; others of it leave.
    pub workers: Vec<ListedWorker>,
    /// How workers leave that are no longer listed.
    pub departure: Departure,
}

impl Listing {
    /// The workers of a list that is edited while they run.
    pub fn new(source: SourceId, workers: Vec<ListedWorker>) -> Listing {
        Listing { source, workers, departure: Departure::default() }
    }
}

/// A change that a listing causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerListChange {
    /// A worker is new.
    Joined(ListedWorker),
    /// The entry of a known worker changed.
    Updated(ListedWorker),
    /// No source lists it any more, or another process has its address.
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
        let is_same_process =
            |known: &ListedWorker| wanted.get(&known.address).is_some_and(|listed| !listed.replaces(known));
        let left = self.present.values().filter(|known| !is_same_process(known));
        let left = left.map(|known| WorkerListChange::Left(known.address.clone()));
        let news = wanted.values().filter_map(|listed| match self.present.get(&listed.address) {
            Some(known) if known == listed => None,
            Some(known) if !listed.replaces(known) => Some(WorkerListChange::Updated(listed.clone())),
            _ => Some(WorkerListChange::Joined(listed.clone())),
        });
        let changes = left.chain(news).collect();
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
            known.incarnation = known.incarnation.take().or_else(|| listed.incarnation.clone());
            known.pools.extend(listed.pools.iter().cloned());
            known.pools.sort_unstable();
            known.pools.dedup();
            if listed.readiness == SourceReadiness::NotReady {
                known.readiness = SourceReadiness::NotReady;
            }
        }
        union
    }
}

#[cfg(test)]
mod tests {
    use super::WorkerListChange::{Joined, Left, Updated};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn listed(name: &str) -> ListedWorker {
        ListedWorker::new(Address::new(name))
    }

    fn listing(source: usize, names: &[&str]) -> Listing {
        Listing::new(SourceId(source), names.iter().map(|name| listed(name)).collect())
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
        let news = worker_list.update(Listing::new(SourceId(1), vec![named.clone()]));
        assert_eq!(news, [Updated(named)]);
    }

    #[test]
    fn a_worker_belongs_to_the_pools_of_all_its_sources() {
        let mut worker_list = WorkerList::default();
        let of_pool = |pools: &[&str]| ListedWorker {
            pools: pools.iter().map(|&name| name.to_owned()).collect(),
            ..listed("a")
        };
        let mut update =
            |source, pools: &[&str]| worker_list.update(Listing::new(SourceId(source), vec![of_pool(pools)]));
        assert_eq!(update(0, &["llama"]), [Joined(of_pool(&["llama"]))]);
        assert_eq!(update(1, &["canary"]), [Updated(of_pool(&["canary", "llama"]))]);
        assert_eq!(update(0, &[]), [Updated(of_pool(&["canary"]))]);
    }

    #[test]
    fn another_pod_at_the_same_address_is_another_worker() {
        let mut worker_list = WorkerList::default();
        let mut change = |uid: Option<&str>, readiness| {
            let of_pod = ListedWorker { incarnation: uid.map(Into::into), readiness, ..listed("a") };
            let changes = worker_list.update(Listing::new(SourceId(0), vec![of_pod.clone()]));
            (changes, of_pod)
        };
        let (changes, first) = change(Some("1"), SourceReadiness::Ready);
        assert_eq!(changes, [Joined(first)]);
        let (changes, paused) = change(Some("1"), SourceReadiness::NotReady);
        assert_eq!(changes, [Updated(paused)]);
        let (changes, second) = change(Some("2"), SourceReadiness::Ready);
        assert_eq!(changes, [Left(Address::new("a")), Joined(second)]);
        let (changes, unknown) = change(None, SourceReadiness::Ready);
        assert_eq!(changes, [Updated(unknown)], "a missing identity says nothing");
    }

    #[test]
    fn a_worker_that_any_source_calls_unready_is_unready() {
        let mut worker_list = WorkerList::default();
        worker_list.update(listing(0, &["a"]));
        let paused = ListedWorker { readiness: SourceReadiness::NotReady, ..listed("a") };
        let changes = worker_list.update(Listing::new(SourceId(1), vec![paused.clone()]));
        assert_eq!(changes, [Updated(paused)]);
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
                        Updated(listed) => prop_assert!(applied.contains(&listed.address)),
                        Left(address) => prop_assert!(applied.remove(&address)),
                    }
                }
                prop_assert_eq!(&applied, &truth.iter().flatten().cloned().collect());
            }
        }
    }
}

//! Who is there, according to all sources together.

use std::collections::{BTreeMap, HashMap};

use warmroute_types::Address;

use crate::EventsEntry;

/// Names a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub usize);

/// A worker as a source knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where it is.
    pub address: Address,
    /// What it serves, if the source says so.
    pub models: Option<Vec<String>>,
    /// Where its KV events are, if the source says so.
    pub kv_events: Option<EventsEntry>,
}

/// All that one source knows at one moment.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Who says it.
    pub source: SourceId,
    /// Everybody there.
    pub workers: Vec<Listed>,
}

/// What a listing changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RosterChange {
    /// New, or what is said of it changed.
    Joined(Listed),
    /// No source lists it any more.
    Left(Address),
}

/// The last listing of every source.
#[derive(Debug, Default)]
pub struct Roster {
    sources: HashMap<SourceId, Vec<Listed>>,
    present: BTreeMap<Address, Listed>,
}

impl Roster {
    /// Takes in a listing; what it changes, leaves first.
    pub fn update(&mut self, listing: Listing) -> Vec<RosterChange> {
        self.sources.insert(listing.source, listing.workers);
        let wanted = self.union();
        let left = self.present.keys().filter(|address| !wanted.contains_key(*address));
        let left = left.map(|address| RosterChange::Left(address.clone()));
        let joined = wanted.values().filter(|listed| self.present.get(&listed.address) != Some(listed));
        let joined = joined.cloned().map(RosterChange::Joined);
        let changes = left.chain(joined).collect();
        self.present = wanted;
        changes
    }

    /// A worker that two sources list is one worker; what is said by any source beats what is said by none.
    fn union(&self) -> BTreeMap<Address, Listed> {
        let mut union: BTreeMap<Address, Listed> = BTreeMap::new();
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
    use super::RosterChange::{Joined, Left};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn listed(name: &str) -> Listed {
        Listed { address: Address::new(name), models: None, kv_events: None }
    }

    fn listing(source: usize, names: &[&str]) -> Listing {
        Listing { source: SourceId(source), workers: names.iter().map(|name| listed(name)).collect() }
    }

    #[test]
    fn only_what_changed_is_told() {
        let mut roster = Roster::default();
        assert_eq!(roster.update(listing(0, &["a", "b"])), [Joined(listed("a")), Joined(listed("b"))]);
        assert_eq!(roster.update(listing(0, &["b", "a"])), []);
        assert_eq!(roster.update(listing(0, &["b", "c"])), [Left(Address::new("a")), Joined(listed("c"))]);
    }

    #[test]
    fn a_worker_stays_while_any_source_lists_it() {
        let mut roster = Roster::default();
        roster.update(listing(0, &["a"]));
        assert_eq!(roster.update(listing(1, &["a"])), []);
        assert_eq!(roster.update(listing(0, &[])), []);
        assert_eq!(roster.update(listing(1, &[])), [Left(Address::new("a"))]);
    }

    #[test]
    fn new_models_of_a_known_worker_are_news() {
        let mut roster = Roster::default();
        roster.update(listing(0, &["a"]));
        let named = Listed { models: Some(vec!["m".into()]), ..listed("a") };
        let news = roster.update(Listing { source: SourceId(1), workers: vec![named.clone()] });
        assert_eq!(news, [Joined(named)]);
    }

    proptest! {
        /// Whoever applies the changes has, after each, exactly the union of the last listings.
        #[test]
        fn applied_changes_give_the_union(steps in prop::collection::vec((0..3_usize, prop::collection::vec(0..6_u8, 0..5)), 1..30)) {
            let mut roster = Roster::default();
            let mut applied: BTreeSet<Address> = BTreeSet::new();
            let mut truth: [BTreeSet<Address>; 3] = Default::default();
            for (source, names) in steps {
                let names: Vec<String> = names.iter().map(|n| format!("w{n}")).collect();
                truth[source] = names.iter().map(Address::new).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                for change in roster.update(listing(source, &names)) {
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

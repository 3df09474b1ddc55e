//! Detects routers that advertise the same address, where only one of them can answer. Pure.
//!
//! This is a mistake in their settings that no other error shows: half of the dials reach the wrong router.
//! It is normal for a moment, when a process replaces another at the same address while the old one still
//! counts as a member. So a duplicate must persist over several checks.

use std::collections::BTreeMap;

use warmroute_types::RouterId;

/// Checks in a row after which a duplicate is reported.
const CHECKS_MIN: u32 = 3;

/// Duplicates and the number of checks that found each.
#[derive(Debug, Default)]
pub(crate) struct DuplicateAddresses(BTreeMap<(String, Vec<RouterId>), u32>);

impl DuplicateAddresses {
    /// Checks the addresses of all members; returns the duplicates that persist.
    pub(crate) fn check(
        &mut self,
        all: impl Iterator<Item = (RouterId, String)>,
    ) -> Vec<(String, Vec<RouterId>)> {
        let mut at: BTreeMap<String, Vec<RouterId>> = BTreeMap::new();
        all.for_each(|(router, address)| at.entry(address).or_default().push(router));
        let shared = at.into_iter().filter(|(_, routers)| routers.len() > 1);
        let seen = shared.map(|(address, mut routers)| {
            routers.sort_unstable();
            let duplicate = (address, routers);
            let checks = self.0.get(&duplicate).map_or(1, |checks| checks + 1);
            (duplicate, checks)
        });
        self.0 = seen.collect();
        let persistent = self.0.iter().filter(|(_, checks)| **checks >= CHECKS_MIN);
        persistent.map(|(duplicate, _)| duplicate.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_address_is_reported_when_it_persists() {
        let all = |addresses: [&str; 3]| {
            let routers = addresses.into_iter().enumerate();
            routers.map(|(number, address)| (RouterId(number as u64), address.to_owned())).collect::<Vec<_>>()
        };
        let mut duplicate = DuplicateAddresses::default();
        for _ in 1..CHECKS_MIN {
            assert_eq!(duplicate.check(all(["a:1", "b:1", "a:1"]).into_iter()), []);
        }
        let both = [("a:1".to_owned(), vec![RouterId(0), RouterId(2)])];
        assert_eq!(duplicate.check(all(["a:1", "b:1", "a:1"]).into_iter()), both);
        assert_eq!(duplicate.check(all(["a:1", "b:1", "c:1"]).into_iter()), []);
        assert_eq!(duplicate.check(all(["a:1", "b:1", "a:1"]).into_iter()), [], "the count starts again");
    }
}

//! Routers that say they are at the same address, where only one of them can answer. Pure.
//!
//! It is a mistake in their settings, and a silent one: whoever is dialed there is the wrong one half of the time. For a moment it is none:
//! a process that takes another's place has its address, while the other is still believed to be there. So it must be seen again and again.

use std::collections::BTreeMap;

use warmroute_types::RouterId;

/// So many looks in a row.
const LOOKS_MIN: u32 = 3;

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct Twins(BTreeMap<(String, Vec<RouterId>), u32>);

impl Twins {
    /// Another look: all who are there, and who shares an address for longer than a moment.
    pub(crate) fn look(
        &mut self,
        all: impl Iterator<Item = (RouterId, String)>,
    ) -> Vec<(String, Vec<RouterId>)> {
        let mut at: BTreeMap<String, Vec<RouterId>> = BTreeMap::new();
        all.for_each(|(router, address)| at.entry(address).or_default().push(router));
        let shared = at.into_iter().filter(|(_, routers)| routers.len() > 1);
        let seen = shared.map(|(address, mut routers)| {
            routers.sort_unstable();
            let twins = (address, routers);
            let looks = self.0.get(&twins).map_or(1, |looks| looks + 1);
            (twins, looks)
        });
        self.0 = seen.collect();
        let lasting = self.0.iter().filter(|(_, looks)| **looks >= LOOKS_MIN);
        lasting.map(|(twins, _)| twins.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_at_one_address_are_told_when_it_lasts() {
        let all = |addresses: [&str; 3]| {
            let routers = addresses.into_iter().enumerate();
            routers.map(|(number, address)| (RouterId(number as u64), address.to_owned())).collect::<Vec<_>>()
        };
        let mut twins = Twins::default();
        for _ in 1..LOOKS_MIN {
            assert_eq!(twins.look(all(["a:1", "b:1", "a:1"]).into_iter()), []);
        }
        let both = [("a:1".to_owned(), vec![RouterId(0), RouterId(2)])];
        assert_eq!(twins.look(all(["a:1", "b:1", "a:1"]).into_iter()), both);
        assert_eq!(twins.look(all(["a:1", "b:1", "c:1"]).into_iter()), []);
        assert_eq!(twins.look(all(["a:1", "b:1", "a:1"]).into_iter()), [], "it begins anew");
    }
}

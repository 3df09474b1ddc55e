//! The home of a tenant: the router that decides about its limits.
//!
//! Every router computes it alone (rendezvous hashing). A router that joins or leaves takes only its own tenants with
//! it, and the others stay where they are.

use warmroute_types::{RouterId, mix};

/// The home of a tenant among these routers; `me` if there are no others.
pub(crate) fn home_of(tenant: u64, me: RouterId, others: impl Iterator<Item = RouterId>) -> RouterId {
    let score = |router: RouterId| (mix(mix(tenant) ^ router.0), router.0);
    others.fold(me, |best, router| if score(router) > score(best) { router } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_agree_share_evenly_and_move_few_tenants() {
        let routers = [11, 22, 33].map(RouterId);
        let home = |me: usize, tenant: u64, among: &[RouterId]| {
            home_of(tenant, routers[me], among.iter().copied().filter(|one| *one != routers[me]))
        };
        let mut counts = [0; 3];
        for tenant in 0..3_000 {
            let homes = [0, 1, 2].map(|me| home(me, tenant, &routers));
            assert!(homes.iter().all(|one| *one == homes[0]), "all routers agree");
            counts[routers.iter().position(|one| *one == homes[0]).unwrap()] += 1;
            let without_last = home(0, tenant, &routers[..2]);
            assert!(homes[0] == routers[2] || homes[0] == without_last, "only its own tenants leave with it");
        }
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
    }
}

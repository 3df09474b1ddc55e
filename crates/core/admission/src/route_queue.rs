//! The waiting requests of one class and route: which tenant is next if there is room on the route.

use std::collections::BTreeSet;

use crate::lineup::Lineup;
use crate::position::{Order, Slot};
use crate::tenant_queue::TurnOrder;

#[derive(Debug, Default)]
pub(crate) struct RouteQueue {
    pub(crate) lineup: Lineup,
    /// Tenants with requests on this route, by their first slots on any route.
    tenants: BTreeSet<(Slot, u64)>,
    /// The next request with a due time of each tenant that has its turn.
    urgent: BTreeSet<(Order, u64)>,
}

impl RouteQueue {
    /// The tenant with the first slot.
    pub(crate) fn first(&self) -> Option<(Slot, u64)> {
        self.tenants.first().copied()
    }

    /// The earliest due request of the tenants that have their turn.
    pub(crate) fn most_urgent(&self) -> Option<Order> {
        self.urgent.first().map(|(order, _)| *order)
    }

    /// The tenants whose first slot has this start.
    pub(crate) fn starting_at(&self, start: u64) -> impl Iterator<Item = u64> {
        let slots = ((start, 0), 0)..=((start, u64::MAX), u64::MAX);
        self.tenants.range(slots).map(|(_, tenant)| *tenant)
    }

    /// Replaces what is known of a tenant; `None`: it has no request on this route.
    pub(crate) fn replace(&mut self, tenant: u64, before: Option<TurnOrder>, after: Option<TurnOrder>) {
        if before == after {
            return;
        }
        if let Some(TurnOrder { first, urgent }) = before {
            self.tenants.remove(&(first, tenant));
            urgent.iter().for_each(|order| _ = self.urgent.remove(&(*order, tenant)));
        }
        if let Some(TurnOrder { first, urgent }) = after {
            self.tenants.insert((first, tenant));
            urgent.iter().for_each(|order| _ = self.urgent.insert((*order, tenant)));
        }
    }
}

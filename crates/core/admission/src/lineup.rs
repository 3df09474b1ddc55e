//! Waiting requests of one class in line: how many go before one of them.

use crate::position::{NO_DUE, Order, Slot};
use crate::ranked_set::RankedSet;

#[derive(Debug, Default)]
pub(crate) struct Lineup {
    /// By the slots in which they came.
    slots: RankedSet<Slot>,
    /// Those with a due time, by it.
    dues: RankedSet<Order>,
    /// The slots of those with a due time.
    due_slots: RankedSet<Slot>,
}

impl Lineup {
    pub(crate) fn insert(&mut self, slot: Slot, order: Order) {
        self.slots.insert(slot);
        if order.0 != NO_DUE {
            self.dues.insert(order);
            self.due_slots.insert(slot);
        }
    }

    pub(crate) fn remove(&mut self, slot: Slot, order: Order) {
        self.slots.remove(&slot);
        if order.0 != NO_DUE {
            self.dues.remove(&order);
            self.due_slots.remove(&slot);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn first(&self) -> Option<Slot> {
        self.slots.first()
    }

    /// The last slot of a request with a due time.
    pub(crate) fn last_due(&self) -> Option<Slot> {
        self.due_slots.last()
    }

    /// Requests in slots before this one.
    pub(crate) fn before_slot(&self, slot: Slot) -> usize {
        self.slots.rank(&slot)
    }

    /// Requests that are due before this one.
    pub(crate) fn due_before(&self, order: Order) -> usize {
        self.dues.rank(&order)
    }
}

//! A request's position in the queue.

use warmroute_types::Micros;

use crate::Class;

/// The start, then the order of arrival.
pub(crate) type Slot = (u64, u64);

/// The due time, or the end of time without one; then the order of arrival.
pub(crate) type Order = (Micros, u64);

/// The due time in the order of requests without one.
pub(crate) const NO_DUE: Micros = Micros(u64::MAX);

/// A request's position in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionPosition {
    pub(crate) class: Class,
    pub(crate) tenant: u64,
    pub(crate) cost: u32,
    pub(crate) route: u64,
    pub(crate) slot: Slot,
    pub(crate) due: Option<Micros>,
}

impl AdmissionPosition {
    /// The same position for a request that can now use other workers.
    pub fn on_route(self, route: u64) -> AdmissionPosition {
        AdmissionPosition { route, ..self }
    }
}

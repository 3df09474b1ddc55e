//! The right of a request to run within its tenant's limits.

use crate::{Exceeded, Reservation};

/// The right of a request to run, until it is settled.
#[derive(Debug)]
#[must_use = "a lease that is not settled counts as running"]
pub struct Lease {
    pub(crate) id: u64,
    pub(crate) reservation: Reservation,
}

/// A request for a lease: decided at once, or pending at the tenant's home router.
#[derive(Debug)]
pub enum LeaseRequest {
    /// It may run, or exceeds a limit.
    Decided(Result<Lease, Exceeded>),
    /// Its waker is returned when it is decided. The number serves to cancel it.
    Pending(u64),
}

/// The decision for a request that was pending, and its waker.
pub type LeaseDecision<W> = (W, Result<Lease, Exceeded>);

impl Lease {
    /// Reserved tokens.
    pub fn tokens(&self) -> u32 {
        self.reservation.tokens()
    }

    /// Whether tokens are limited.
    pub fn is_limited(&self) -> bool {
        self.reservation.is_limited()
    }
}

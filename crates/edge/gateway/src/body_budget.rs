//! The memory budget for request bodies, over all requests.
//!
//! Bodies are read before admission, so neither request limits nor rate limits bound them. The budget counts bytes as
//! they arrive, not declared lengths, because a client could reserve memory by declaring a length. A request never
//! waits for memory: waiting requests would keep what they have read.

use prometheus_client::metrics::gauge::Gauge;

use crate::gateway_error::GatewayError;

/// The share of one body. Dropping it gives the bytes back.
pub(crate) struct BodyBudget {
    /// Bytes of all bodies.
    all: Gauge,
    all_bytes_max: usize,
    bytes: usize,
}

impl BodyBudget {
    /// An empty share.
    pub(crate) fn new(all: &Gauge, all_bytes_max: usize) -> BodyBudget {
        BodyBudget { all: all.clone(), all_bytes_max, bytes: 0 }
    }

    /// Adds bytes to the share; fails if the budget is exceeded.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), GatewayError> {
        self.bytes += bytes;
        let before = self.all.inc_by(bytes as i64) as usize;
        if before + bytes > self.all_bytes_max { Err(GatewayError::MemoryFull) } else { Ok(()) }
    }

    /// Gives the reserved bytes back.
    pub(crate) fn release(&mut self) {
        self.all.dec_by(std::mem::take(&mut self.bytes) as i64);
    }
}

impl Drop for BodyBudget {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_given_back_even_after_the_budget_was_exceeded() {
        let all = Gauge::default();
        let [mut first, mut second] = [0; 2].map(|_| BodyBudget::new(&all, 10));
        assert!(first.reserve(4).is_ok() && second.reserve(6).is_ok());
        assert!(matches!(first.reserve(1), Err(GatewayError::MemoryFull)));
        drop(first);
        assert!(second.reserve(4).is_ok());
        drop(second);
        assert_eq!(all.get(), 0);
    }
}

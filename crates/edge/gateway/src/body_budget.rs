//! Bodies in memory: how many bytes of them there are, of all requests together.
//!
//! A body is read before it is known whether its request may come in, so neither the door nor a tenant's rates bound what bodies take.
//! They are counted as they come, not as they are announced: a length is only a claim, and room that is kept for claims is room that
//! anybody can take. Nobody waits for room, because those who wait would hold what they have got so far.

use prometheus_client::metrics::gauge::Gauge;

use crate::refusal::Refusal;

/// What one body takes. Dropped, it is given back.
pub(crate) struct BodyBudget {
    /// Of all bodies.
    all: Gauge,
    all_bytes_max: usize,
    bytes: usize,
}

impl BodyBudget {
    /// Nothing yet.
    pub(crate) fn new(all: &Gauge, all_bytes_max: usize) -> BodyBudget {
        BodyBudget { all: all.clone(), all_bytes_max, bytes: 0 }
    }

    /// So many bytes more.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes += bytes;
        let before = self.all.inc_by(bytes as i64) as usize;
        if before + bytes > self.all_bytes_max { Err(Refusal::MemoryFull) } else { Ok(()) }
    }
}

impl Drop for BodyBudget {
    fn drop(&mut self) {
        self.all.dec_by(self.bytes as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_given_back_also_where_it_was_too_much() {
        let all = Gauge::default();
        let [mut first, mut second] = [0; 2].map(|_| BodyBudget::new(&all, 10));
        assert!(first.reserve(4).is_ok() && second.reserve(6).is_ok());
        assert!(matches!(first.reserve(1), Err(Refusal::MemoryFull)));
        drop(first);
        assert!(second.reserve(4).is_ok());
        drop(second);
        assert_eq!(all.get(), 0);
    }
}

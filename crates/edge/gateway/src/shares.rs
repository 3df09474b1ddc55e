//! A tenant's share of what a router has once: its memory for bodies and its admission queue.
//!
//! A share holds on every router, so it holds of all routers' memory and queues together, whether they reach each other
//! or not.

/// Shares in percent; 0 is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Of the places in the admission queue.
    pub queue_percent: u32,
    /// Of the memory for request bodies.
    pub memory_percent: u32,
}

impl Shares {
    /// These shares, with the other's where one is not set.
    pub(crate) fn over(self, below: Shares) -> Shares {
        let or = |above: u32, below: u32| if above > 0 { above } else { below };
        Shares {
            queue_percent: or(self.queue_percent, below.queue_percent),
            memory_percent: or(self.memory_percent, below.memory_percent),
        }
    }

    /// Most places in a queue of this size; at least one. A tenant without a limit may fill the queue, which then decides.
    pub(crate) fn of_queue(self, places: usize) -> usize {
        part(self.queue_percent, places).map_or(usize::MAX, |part| part.max(1))
    }

    /// Most bytes of this memory.
    pub(crate) fn of_memory(self, bytes: usize) -> usize {
        part(self.memory_percent, bytes).unwrap_or(bytes)
    }
}

/// `None`: unlimited.
fn part(percent: u32, of: usize) -> Option<usize> {
    (1..100).contains(&percent).then(|| (of as u128 * u128::from(percent) / 100) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_part_and_a_keys_own_share_counts_first() {
        let of_key = Shares { queue_percent: 25, memory_percent: 0 };
        let shares = of_key.over(Shares { queue_percent: 50, memory_percent: 10 });
        assert_eq!((shares.of_queue(100), shares.of_memory(1_000)), (25, 100));
        assert_eq!((shares.of_queue(2), Shares::default().of_queue(7)), (1, usize::MAX));
        assert_eq!(Shares::default().of_memory(usize::MAX), usize::MAX);
    }
}

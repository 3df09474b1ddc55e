//! LoRA adapters in a replica's memory. A request for another one waits until it is loaded in place of the least recently
//! used one.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The adapters in memory.
#[derive(Debug)]
pub(crate) struct AdapterMemory {
    slots: usize,
    load: Duration,
    /// Names, and when each is loaded; the least recently used first.
    held: Mutex<Vec<(String, Instant)>>,
}

impl AdapterMemory {
    /// Room for this many adapters, each of which takes `load` to load.
    pub(crate) fn new(slots: usize, load: Duration) -> AdapterMemory {
        AdapterMemory { slots: slots.max(1), load, held: Mutex::default() }
    }

    /// Waits until the adapter is loaded.
    pub(crate) async fn wait_loaded(&self, name: &str) {
        tokio::time::sleep_until(self.use_adapter(name, Instant::now())).await;
    }

    /// When the adapter is loaded, which begins now unless it is in memory.
    fn use_adapter(&self, name: &str, now: Instant) -> Instant {
        let mut held = self.held.lock();
        let known = held.iter().position(|(known, _)| known == name).map(|place| held.remove(place).1);
        let loaded = known.unwrap_or(now + self.load);
        held.push((name.to_owned(), loaded));
        let surplus = held.len().saturating_sub(self.slots);
        held.drain(..surplus);
        loaded
    }

    /// The names in memory, and how many fit.
    pub(crate) fn names(&self) -> (Vec<String>, usize) {
        (self.held.lock().iter().map(|(name, _)| name.clone()).collect(), self.slots)
    }

    /// Forgets everything, as a new process.
    pub(crate) fn clear(&self) {
        self.held.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_in_memory_is_loaded() {
        let (memory, now) = (AdapterMemory::new(2, Duration::from_secs(1)), Instant::now());
        let later = now + Duration::from_secs(9);
        assert_eq!(memory.use_adapter("a", now), now + memory.load);
        assert_eq!(memory.use_adapter("a", now), now + memory.load, "the same load is awaited");
        memory.use_adapter("b", now);
        assert!(memory.use_adapter("a", later) < later, "it is there");
        memory.use_adapter("c", later);
        assert_eq!(memory.names(), (vec!["a".to_owned(), "c".to_owned()], 2));
        assert!(memory.use_adapter("b", later) > later, "it had to leave");
        memory.clear();
        assert!(memory.names().0.is_empty());
    }
}

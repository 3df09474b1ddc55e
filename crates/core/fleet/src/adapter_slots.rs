//! LoRA adapters in the memory of each engine, and how long an engine takes to load one.
//!
//! An engine holds a few adapters at a time and loads another one when a request asks for it, in place of the one that was
//! used least recently. That request waits for the load. The router follows the same order: what it sends there, and
//! what the engine reports. The time of a load is learned from the first tokens of requests that waited for one.

use parking_lot::Mutex;

/// Adapters that an engine holds before it says how many.
const SLOTS_DEFAULT: usize = 8;

/// More than any engine holds.
const SLOTS_MAX: usize = 256;

/// Milliseconds of a load before any was seen: an adapter of some 100 MB from a local disk.
const LOAD_MS_PRIOR: f32 = 200.0;

/// Loads that are averaged.
const LOADS_MAX: f32 = 8.0;

/// Longer ones are accidents.
const LOAD_MS_MAX: f32 = 60_000.0;

/// The mean time of a load.
#[derive(Clone, Copy, Debug, Default)]
struct LoadTime {
    mean_ms: f32,
    count: f32,
}

impl LoadTime {
    fn learn(&mut self, ms: f32) {
        self.count = (self.count + 1.0).min(LOADS_MAX);
        self.mean_ms += (ms - self.mean_ms) / self.count;
    }

    fn known(&self) -> Option<f32> {
        (self.count > 0.0).then_some(self.mean_ms)
    }
}

/// The adapters of all workers.
#[derive(Debug)]
pub(crate) struct AdapterSlots {
    /// By worker index.
    workers: Box<[Mutex<WorkerAdapters>]>,
    /// Over all workers, for those without a load of their own.
    loads: Mutex<LoadTime>,
}

#[derive(Debug)]
struct WorkerAdapters {
    slots: usize,
    /// Hashes of names, least recently used first.
    recent: Vec<u64>,
    loads: LoadTime,
}

impl Default for WorkerAdapters {
    fn default() -> WorkerAdapters {
        WorkerAdapters { slots: SLOTS_DEFAULT, recent: Vec::new(), loads: LoadTime::default() }
    }
}

impl WorkerAdapters {
    fn take_in(&mut self, adapter: u64) {
        self.recent.retain(|known| *known != adapter);
        self.recent.push(adapter);
        let surplus = self.recent.len().saturating_sub(self.slots);
        self.recent.drain(..surplus);
    }
}

impl AdapterSlots {
    pub(crate) fn new(workers: usize) -> AdapterSlots {
        AdapterSlots { workers: (0..workers).map(|_| Mutex::default()).collect(), loads: Mutex::default() }
    }

    /// Milliseconds until the worker can begin with a request for this adapter; zero if it holds the adapter.
    pub(crate) fn load_ms(&self, worker: usize, adapter: u64) -> f32 {
        let known = {
            let one = self.workers[worker].lock();
            if one.recent.contains(&adapter) {
                return 0.0;
            }
            one.loads.known()
        };
        known.or_else(|| self.loads.lock().known()).unwrap_or(LOAD_MS_PRIOR)
    }

    /// A request for the adapter was sent to the worker.
    pub(crate) fn use_adapter(&self, worker: usize, adapter: u64) {
        self.workers[worker].lock().take_in(adapter);
    }

    /// The engine reported the adapters of its requests, and how many fit.
    pub(crate) fn report(&self, worker: usize, adapters: &[u64], slots: Option<u32>) {
        let mut one = self.workers[worker].lock();
        if let Some(slots) = slots {
            one.slots = (slots as usize).clamp(1, SLOTS_MAX);
        }
        adapters.iter().take(SLOTS_MAX).for_each(|adapter| one.take_in(*adapter));
        let surplus = one.recent.len().saturating_sub(one.slots);
        one.recent.drain(..surplus);
    }

    /// A request waited this long for an adapter to be loaded.
    pub(crate) fn learn(&self, worker: usize, ms: f32) {
        if ms.is_finite() {
            let ms = ms.clamp(0.0, LOAD_MS_MAX);
            self.workers[worker].lock().loads.learn(ms);
            self.loads.lock().learn(ms);
        }
    }

    /// The engine was restarted: it holds no adapter.
    pub(crate) fn clear(&self, worker: usize) {
        self.workers[worker].lock().recent.clear();
    }

    /// Another worker has this index.
    pub(crate) fn forget(&self, worker: usize) {
        *self.workers[worker].lock() = WorkerAdapters::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_warm_until_others_take_its_place() {
        let slots = AdapterSlots::new(2);
        assert_eq!(slots.load_ms(0, 1), LOAD_MS_PRIOR);
        slots.report(0, &[], Some(2));
        [1, 2, 1, 3].into_iter().for_each(|adapter| slots.use_adapter(0, adapter));
        let is_warm = |worker, adapter| slots.load_ms(worker, adapter) == 0.0;
        assert!(is_warm(0, 1) && is_warm(0, 3) && !is_warm(0, 2), "the least recently used one left");
        assert!(!is_warm(1, 1), "each engine has its own");
        slots.report(0, &[2], Some(1));
        assert!(is_warm(0, 2) && !is_warm(0, 3), "what the engine reports counts");
        slots.clear(0);
        assert!(!is_warm(0, 2));
    }

    #[test]
    fn the_time_of_a_load_is_learned_and_shared_with_workers_without_one() {
        let slots = AdapterSlots::new(2);
        slots.learn(0, 900.0);
        assert_eq!((slots.load_ms(0, 1), slots.load_ms(1, 1)), (900.0, 900.0));
        slots.learn(1, 100.0);
        assert_eq!((slots.load_ms(0, 1), slots.load_ms(1, 1)), (900.0, 100.0));
        (0..50).for_each(|_| slots.learn(0, 300.0));
        assert!((slots.load_ms(0, 1) - 300.0).abs() < 5.0, "{}", slots.load_ms(0, 1));
        slots.learn(0, f32::NAN);
        slots.learn(0, -5.0);
        assert!(slots.load_ms(0, 1) >= 0.0);
    }
}

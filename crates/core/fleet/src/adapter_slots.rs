//! LoRA adapters in the memory of each engine, and how long an engine takes to load one.
//!
//! An engine holds a few adapters at a time and loads another one when a request asks for it, in place of the one that was
//! used least recently. That request waits for the load, and so do others that come meanwhile. The router follows the
//! same order: what it sends there, and what the engine reports. The time of a load is learned from the first token
//! after it began.

use parking_lot::Mutex;
use warmroute_types::Micros;

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

/// What is left of a load that takes longer than expected.
const LOAD_MS_LEFT_MIN: f32 = 1.0;

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
    /// Least recently used first.
    recent: Vec<HeldAdapter>,
    loads: LoadTime,
}

/// An adapter that a worker holds or loads.
#[derive(Clone, Copy, Debug)]
struct HeldAdapter {
    /// A hash.
    name: u64,
    loading_since: Option<Micros>,
}

impl Default for WorkerAdapters {
    fn default() -> WorkerAdapters {
        WorkerAdapters {
            slots: SLOTS_DEFAULT,
            recent: Vec::with_capacity(SLOTS_DEFAULT + 1),
            loads: LoadTime::default(),
        }
    }
}

impl WorkerAdapters {
    fn held(&mut self, name: u64) -> Option<&mut HeldAdapter> {
        self.recent.iter_mut().find(|held| held.name == name)
    }

    fn take_in(&mut self, adapter: HeldAdapter) {
        self.recent.retain(|known| known.name != adapter.name);
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
    pub(crate) fn load_ms(&self, worker: usize, adapter: u64, now: Micros) -> f32 {
        let (known, loading_since) = {
            let mut one = self.workers[worker].lock();
            let held = one.held(adapter).map(|held| held.loading_since);
            if held == Some(None) {
                return 0.0;
            }
            (one.loads.known(), held.flatten())
        };
        let load_ms = known.or_else(|| self.loads.lock().known()).unwrap_or(LOAD_MS_PRIOR);
        match loading_since.map(|since| now.since(since).0 as f32 / 1e3) {
            None => load_ms,
            // Its requests failed, or their answers were not seen.
            Some(passed_ms) if passed_ms > LOAD_MS_MAX => 0.0,
            Some(passed_ms) => (load_ms - passed_ms).max(LOAD_MS_LEFT_MIN),
        }
    }

    /// A request for the adapter was sent to the worker, which loads it now if it does not hold it.
    pub(crate) fn use_adapter(&self, worker: usize, adapter: u64, now: Micros) {
        let mut one = self.workers[worker].lock();
        let held = one.held(adapter).copied();
        one.take_in(held.unwrap_or(HeldAdapter { name: adapter, loading_since: Some(now) }));
    }

    /// The engine reported the adapters of its requests, and how many fit.
    pub(crate) fn report(&self, worker: usize, adapters: &[u64], slots: Option<u32>) {
        let mut one = self.workers[worker].lock();
        if let Some(slots) = slots {
            one.slots = (slots as usize).clamp(1, SLOTS_MAX);
        }
        // Room for one more than fits, so that a decision does not allocate.
        let room = (one.slots + 1).saturating_sub(one.recent.len());
        one.recent.reserve(room);
        for name in adapters.iter().take(SLOTS_MAX) {
            // Engines also list adapters that they are loading.
            let held = one.held(*name).copied();
            one.take_in(held.unwrap_or(HeldAdapter { name: *name, loading_since: None }));
        }
        let surplus = one.recent.len().saturating_sub(one.slots);
        one.recent.drain(..surplus);
    }

    /// A request that waited for the adapter since `from` has its first token, which took `other_ms` beside the load.
    /// Only the request that began the load tells how long it took: the first one may have failed, or was not streamed.
    pub(crate) fn loaded(&self, worker: usize, adapter: u64, from: Micros, at: Micros, other_ms: f32) {
        if self.end_load(worker, adapter) == Some(from) {
            self.learn(worker, at.since(from).0 as f32 / 1e3 - other_ms);
        }
    }

    /// A request for the adapter was served, so it is loaded. Returns since when it was being loaded.
    pub(crate) fn end_load(&self, worker: usize, adapter: u64) -> Option<Micros> {
        self.workers[worker].lock().held(adapter).and_then(|held| held.loading_since.take())
    }

    fn learn(&self, worker: usize, ms: f32) {
        if ms.is_finite() && ms <= LOAD_MS_MAX {
            let ms = ms.max(0.0);
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

    const NOW: Micros = Micros::from_secs(100);

    #[test]
    fn an_adapter_is_warm_until_others_take_its_place() {
        let slots = AdapterSlots::new(2);
        assert_eq!(slots.load_ms(0, 1, NOW), LOAD_MS_PRIOR);
        slots.report(0, &[], Some(2));
        for adapter in [1, 2, 1, 3] {
            slots.use_adapter(0, adapter, NOW);
            slots.loaded(0, adapter, NOW, NOW + Micros::from_millis(300), 0.0);
        }
        let is_warm = |worker, adapter| slots.load_ms(worker, adapter, NOW) == 0.0;
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
        assert_eq!((slots.load_ms(0, 1, NOW), slots.load_ms(1, 1, NOW)), (900.0, 900.0));
        slots.learn(1, 100.0);
        assert_eq!((slots.load_ms(0, 1, NOW), slots.load_ms(1, 1, NOW)), (900.0, 100.0));
        (0..50).for_each(|_| slots.learn(0, 300.0));
        assert!((slots.load_ms(0, 1, NOW) - 300.0).abs() < 5.0, "{}", slots.load_ms(0, 1, NOW));
        slots.learn(0, f32::NAN);
        slots.learn(0, -5.0);
        assert!(slots.load_ms(0, 1, NOW) >= 0.0);
    }

    #[test]
    fn requests_that_come_during_a_load_wait_for_the_rest_of_it() {
        let slots = AdapterSlots::new(1);
        slots.learn(0, 3_000.0);
        let after = |ms| NOW + Micros::from_millis(ms);
        slots.use_adapter(0, 1, NOW);
        assert_eq!(slots.load_ms(0, 1, after(1_000)), 2_000.0);
        slots.report(0, &[1], None);
        assert_eq!(slots.load_ms(0, 1, after(1_000)), 2_000.0, "it is listed, and not loaded");
        slots.use_adapter(0, 1, after(1_000));
        assert_eq!(slots.load_ms(0, 1, after(9_000)), LOAD_MS_LEFT_MIN, "it takes longer than expected");
        slots.loaded(0, 1, NOW, after(9_100), 100.0);
        assert_eq!(slots.load_ms(0, 1, after(9_100)), 0.0);
        assert_eq!(slots.load_ms(0, 2, NOW), 6_000.0, "from the request that began it, once");
        slots.loaded(0, 1, after(1_000), after(9_200), 100.0);
        assert_eq!(slots.load_ms(0, 2, NOW), 6_000.0);
        slots.use_adapter(0, 4, NOW);
        slots.loaded(0, 4, after(40_000), after(40_050), 20.0);
        assert_eq!(slots.load_ms(0, 2, NOW), 6_000.0, "a later request says nothing about the load");
        assert_eq!(slots.load_ms(0, 4, after(40_050)), 0.0);
        slots.use_adapter(0, 3, NOW);
        assert_eq!(slots.load_ms(0, 3, after(61_000)), 0.0, "its first token was not seen");
    }
}

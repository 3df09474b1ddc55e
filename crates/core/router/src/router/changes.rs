//! Applies changes: workers that join and leave, their health, load and caches, settings and time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use warmroute_fleet::{CacheBelief, FleetFull, Models, ProbeResult, Worker};
use warmroute_peers::StoredResponse;
use warmroute_policy::Policy;
use warmroute_types::{Address, CacheEvent, CacheView, LoadReport, Medium, Micros, WorkerId, WorkerState};

use super::Router;
use crate::adapter_names::adapter_hash;
use crate::{Change, pools, trust, worker_ingest};

impl<P: Policy> Router<P> {
    /// Adds a worker, or returns the one at this address. `models` are those it serves, if configured.
    pub fn join(&self, address: Address, models: Models) -> Result<Arc<Worker>, FleetFull> {
        let change = self.changes.lock();
        let is_new = !self.fleet.has_member(&address);
        let worker = self.fleet.join(address, models)?;
        if is_new {
            // Before any request can choose it: the slot may be that of a worker that has left.
            let _clear = self.clears[worker.id.index()].lock();
            self.forget(worker.id);
            self.groups.assign(worker.id, &[]);
        }
        self.set_members();
        drop(change);
        if is_new {
            self.joins.fetch_add(1, Relaxed);
            self.restore_worker(&worker);
        }
        Ok(worker)
    }

    /// Applies a change of the fleet, of what is known about caches, or of a setting. Changes of a worker that has left are
    /// ignored.
    pub fn apply(&self, change: Change) {
        match change {
            Change::Leave { address } => self.leave(&address),
            Change::Serves { worker, models } => {
                // Probes list the models every few seconds, mostly without a change.
                if self.fleet.serves(&worker, models) {
                    let _change = self.changes.lock();
                    self.set_members();
                }
            }
            Change::ModelCards { worker, cards } => {
                let adapters = cards.iter().filter(|card| card.parent.is_some());
                adapters.for_each(|card| self.adapters.add(&card.id));
                self.fleet.describe_models(&worker, cards);
            }
            Change::Adapters { worker, names, slots } => self.of_member(&worker, |router| {
                let hashes: Vec<u64> = names.iter().map(|name| adapter_hash(name)).collect();
                router.fleet.report_adapters(worker.id, &hashes, slots);
            }),
            Change::Grouped { worker, groups } => self.of_member(&worker, |router| {
                router.groups.assign(worker.id, &groups);
            }),
            Change::Readiness { worker, readiness } => _ = self.fleet.set_readiness(&worker, readiness),
            Change::Probed { worker, result, at } => self.apply_probe(&worker, result, at),
            Change::Faulted { worker, at } => _ = self.fleet.failed(&worker, at),
            Change::Broke { worker, request, at } => _ = self.fleet.record_break(&worker, request, at),
            Change::Resting { worker, until } => self.fleet.pause(&worker, until),
            Change::Load { worker, report } => self.apply_load(&worker, report),
            Change::Capacity { worker, capacity } => self.of_member(&worker, |router| {
                router.fleet.set_kv_tokens(worker.id, capacity.tokens);
                router.fleet.set_block_tokens(&worker, capacity.block_tokens);
                router.set_capacity(worker.id, capacity.tokens);
            }),
            Change::Aligned { worker, matching } => self.of_member(&worker, |router| {
                // Earlier events were read with another matching, or come again.
                worker_ingest::forget(&router.index, worker.id);
                router.fleet.forget_cache(worker.id);
                router.reported.align(worker.id, matching);
            }),
            Change::Cached { worker, events } => self.of_member(&worker, |router| {
                if let Some(block_tokens) = router.reported.take(&router.index, worker.id, &events) {
                    router.fleet.set_block_tokens(&worker, block_tokens);
                }
                router.fleet.count_evicted(worker.id, evicted_blocks(&events));
                router.learn_awaited_media(worker.id);
                router.learn_awaited_answers(worker.id);
            }),
            Change::Emptied { worker } => self.of_member(&worker, |router| router.empty(&worker)),
            Change::Viewed { worker, view } => self.of_member(&worker, |router| router.view(&worker, view)),
            Change::Fed { worker, counters } => {
                self.of_member(&worker, |router| router.reported.note(worker.id, counters));
            }
            Change::Adapter { name } => self.reported.know_lora(&name),
            Change::ResponseStored { id, owner, worker } => {
                let stored = StoredResponse { owner, worker: worker.identity };
                if self.stored.learn(id, stored) {
                    self.sharing.get().into_iter().for_each(|sharing| sharing.announce_stored(id, stored));
                }
            }
            Change::InFlightMax { requests } => self.in_flight_max.store(requests, Relaxed),
            Change::Restored { state, age, at } => self.restore(*state, at, age),
            Change::EventsDue { at } => self.expire_awaited(at),
            Change::Expired { at } => self.expire(at),
        }
    }

    /// Expires presumptions and saved state.
    fn expire(&self, now: Micros) {
        self.expire_awaited(now);
        self.unclaimed.expire(now, self.config.index.presumed_ttl);
        self.index.expire(now);
    }

    /// Gives up what waits for events that must have arrived.
    fn expire_awaited(&self, now: Micros) {
        self.speculations.expire(now);
        self.awaited_answers.expire(now);
    }

    /// Runs `apply` unless the worker has left.
    fn of_member(&self, worker: &Worker, apply: impl FnOnce(&Router<P>)) {
        if self.fleet.is_member(worker) {
            apply(self);
        }
    }

    fn leave(&self, address: &Address) {
        let change = self.changes.lock();
        let Some(worker) = self.fleet.leave(address) else { return };
        self.set_members();
        // No request can choose the worker any more. The next worker in its slot waits for the end of the clear, and other
        // changes do not.
        let _clear = self.clears[worker.index()].lock();
        drop(change);
        self.forget(worker);
    }

    /// Clears a presumed cache when the worker comes back, because the engine was most likely restarted. A worker with events
    /// reports a restart itself. A worker probed for the first time keeps its restored cache, unless the probe fails.
    fn apply_probe(&self, worker: &Worker, result: ProbeResult, at: Micros) {
        let is_new = self.fleet.load_view(worker.id).state == WorkerState::Starting;
        let changed = self.fleet.probed(worker, result, at);
        let is_back = changed == Some(WorkerState::Ready) && !is_new;
        let is_away = is_new && result == ProbeResult::Failed;
        // An engine that goes to sleep gives its cache away.
        let is_asleep = changed == Some(WorkerState::Sleeping);
        if is_back || is_away || is_asleep {
            self.fleet.clear_adapters(worker.id);
        }
        // Also an engine whose requests failed may have been started again with others.
        if !is_new && matches!(changed, Some(WorkerState::Ready | WorkerState::Recovering)) {
            self.fleet.forget_places(worker.id);
        }
        if (is_back || is_away || is_asleep) && self.fleet.load_view(worker.id).view == CacheView::Presumed {
            worker_ingest::forget(&self.index, worker.id);
        }
    }

    /// Clears the cache of a restarted engine. A feed without gaps reports the restart itself.
    fn apply_load(&self, worker: &Worker, report: LoadReport) {
        let is_restarted = self.fleet.report(worker, report);
        if is_restarted && self.fleet.load_view(worker.id).view != CacheView::Reported {
            self.empty(worker);
        }
    }

    /// Applies the feed's assessment of its events.
    fn view(&self, worker: &Worker, view: CacheView) {
        let is_aligned = self.reported.is_aligned(worker.id);
        let view = if is_aligned { view } else { CacheView::Presumed };
        let before = self.fleet.revise(worker, |belief| trust::after_view_change(belief, view));
        let is_new = before.is_some_and(|belief| belief.view != view);
        if is_new && view == CacheView::Reported {
            // Earlier presumptions are now reported, or wrong.
            self.index.clear_presumed(worker.id.into());
        }
    }

    /// Clears the cache of a restarted engine. Predictions for the old cache do not count for the new one.
    fn empty(&self, worker: &Worker) {
        self.fleet.clear_adapters(worker.id);
        self.fleet.clear_churn(worker.id);
        worker_ingest::forget(&self.index, worker.id);
        self.reported.emptied(worker.id);
        self.fleet.revise(worker, |belief| CacheBelief { generation: belief.reset().generation, ..belief });
    }

    /// Forgets everything about the cache of a slot.
    fn forget(&self, worker: WorkerId) {
        worker_ingest::forget(&self.index, worker);
        self.reported.align(worker, None);
        self.fleet.forget_cache(worker);
        self.fleet.clear_churn(worker);
        self.fleet.forget_adapters(worker);
        self.set_capacity(worker, self.config.index.presumed_tokens);
    }

    pub(super) fn set_capacity(&self, worker: WorkerId, tokens: u64) {
        self.index.set_capacity(worker.into(), tokens).expect("worker ids are below MAX_WORKERS");
    }

    /// Gives the pools the members of the fleet. When this returns, every decision that could choose a former member has
    /// booked it. The caller holds `changes`.
    fn set_members(&self) {
        let members = self.fleet.members();
        pools::set_members(&self.pools, &members, |model| self.unclaimed.token_rate(model));
        if let Some(sharing) = self.sharing.get() {
            sharing.set_members(&members);
            // Peers' requests that found a former member are booked before this.
            drop(self.peer_bookings.write());
        }
    }
}

/// Blocks that events remove from the accelerator's memory.
fn evicted_blocks(events: &[CacheEvent]) -> usize {
    let removed = |event: &CacheEvent| match event {
        CacheEvent::Removed(blocks) if blocks.medium == Medium::Gpu => blocks.names.len(),
        _ => 0,
    };
    events.iter().map(removed).sum()
}

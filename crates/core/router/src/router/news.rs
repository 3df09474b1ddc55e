//! News: who comes and goes, how workers are, what their caches hold.

use warmroute_fleet::{CacheBelief, Fleet, FleetFull, ProbeResult, Worker};
use warmroute_policy::Policy;
use warmroute_types::{CacheView, WorkerId, WorkerState};

use super::Router;
use crate::{Change, reported, trust};

impl<P: Policy> Router<P> {
    /// Takes in news.
    pub fn apply(&self, change: Change) -> Result<(), FleetFull> {
        match change {
            Change::Join { address, models } => {
                let mut newcomer = None;
                self.reseat(|fleet| {
                    let is_known = fleet.members().iter().any(|view| view.worker.address == address);
                    let worker = fleet.join(address, models)?;
                    if !is_known {
                        self.forget(worker.id);
                        newcomer = Some(worker);
                    }
                    Ok(())
                })?;
                // Much may come back, and decisions need not wait for it.
                newcomer.iter().for_each(|worker| self.recollect(worker));
            }
            Change::Leave { address } => {
                self.reseat(|fleet| {
                    // What it holds is of no use to anybody from now on.
                    fleet.leave(&address).into_iter().for_each(|worker| self.forget(worker));
                    Ok(())
                })?;
            }
            Change::Probed { worker, result, at } => {
                // One that was away has most likely been restarted, and its cache is empty. Where its events are read,
                // they tell. One that was never asked before may hold what another process has seen it hold.
                let is_new = self.fleet.load_view(worker.id).state == WorkerState::Starting;
                let is_back = self.fleet.probed(&worker, result, at) == Some(WorkerState::Ready) && !is_new;
                let is_away = is_new && result == ProbeResult::Failed;
                if (is_back || is_away) && self.fleet.load_view(worker.id).view == CacheView::Presumed {
                    reported::forget(&self.index, worker.id);
                }
            }
            Change::Faulted { worker, at } => _ = self.fleet.failed(&worker, at),
            Change::Broke { worker, request, at } => _ = self.fleet.record_break(&worker, request, at),
            Change::Resting { worker, until } => self.fleet.pause(&worker, until),
            Change::Capacity { worker, capacity } if self.fleet.is_member(&worker) => {
                self.fleet.set_kv_tokens(worker.id, capacity.tokens);
                self.fleet.set_block_tokens(&worker, capacity.block_tokens);
                self.set_capacity(worker.id, capacity.tokens);
            }
            Change::Serves { worker, models } => {
                // Probes say this every few seconds, and it is hardly ever news.
                if self.fleet.serves(&worker, models) {
                    self.reseat(|_| Ok(()))?;
                }
            }
            Change::Load { worker, report } => {
                // A feed that is in step knows better: it has been told of the new process, or will be at once.
                let is_restarted = self.fleet.report(&worker, report);
                if is_restarted && self.fleet.load_view(worker.id).view != CacheView::Reported {
                    self.empty(&worker);
                }
            }
            Change::Aligned { worker, matching } if self.fleet.is_member(&worker) => {
                // Whatever was read before was read in another way, or will be told again.
                reported::forget(&self.index, worker.id);
                self.fleet.forget_cache(worker.id);
                self.reported.align(worker.id, matching);
            }
            Change::Cached { worker, events } if self.fleet.is_member(&worker) => {
                if let Some(block_tokens) = self.reported.take(&self.index, worker.id, &events) {
                    self.fleet.set_block_tokens(&worker, block_tokens);
                }
            }
            Change::Emptied { worker } if self.fleet.is_member(&worker) => self.empty(&worker),
            Change::Viewed { worker, view } if self.fleet.is_member(&worker) => self.view(&worker, view),
            Change::Fed { worker, counters } if self.fleet.is_member(&worker) => {
                self.reported.note(worker.id, counters);
            }
            // News of a worker that has left.
            Change::Capacity { .. }
            | Change::Aligned { .. }
            | Change::Cached { .. }
            | Change::Emptied { .. }
            | Change::Viewed { .. }
            | Change::Fed { .. } => {}
        }
        Ok(())
    }

    /// What a feed says its word is worth.
    fn view(&self, worker: &Worker, view: CacheView) {
        let is_aligned = self.reported.is_aligned(worker.id);
        let view = if is_aligned { view } else { CacheView::Presumed };
        let before = self.fleet.revise(worker, |belief| trust::told(belief, view));
        let is_new = before.is_some_and(|belief| belief.view != view);
        if is_new && view == CacheView::Reported {
            // What was guessed before is now known, or wrong.
            self.index.clear_presumed(worker.id);
        }
    }

    /// The cache is another one from now on: what was promised of the former says nothing about it.
    fn empty(&self, worker: &Worker) {
        reported::forget(&self.index, worker.id);
        self.reported.emptied(worker.id);
        self.fleet.revise(worker, |belief| CacheBelief { generation: belief.reset().generation, ..belief });
    }

    /// Nothing is known any more of the cache of whoever sits here.
    fn forget(&self, worker: WorkerId) {
        reported::forget(&self.index, worker);
        self.reported.align(worker, None);
        self.fleet.forget_cache(worker);
        self.set_capacity(worker, self.config.index.presumed_tokens);
    }

    pub(super) fn set_capacity(&self, worker: WorkerId, tokens: u64) {
        self.index.set_capacity(worker, tokens).expect("a worker's seat is below the most there are");
    }

    /// Changes who sits where, and derives the pools anew. No decision is made meanwhile: a request that has chosen a
    /// worker but not booked it yet would otherwise find a newcomer on its seat.
    fn reseat(&self, change: impl FnOnce(&Fleet) -> Result<(), FleetFull>) -> Result<(), FleetFull> {
        let mut pools = self.pools.write();
        let changed = change(&self.fleet);
        let members = self.fleet.members();
        pools.seat(&members, |model| self.recollections.token_rate(model));
        self.sharing.get().into_iter().for_each(|sharing| sharing.seat(&members));
        changed
    }
}

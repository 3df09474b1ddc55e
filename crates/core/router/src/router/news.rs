//! News: who comes and goes, how workers are, what their caches hold.

use warmroute_fleet::{Fleet, FleetFull};
use warmroute_policy::Policy;
use warmroute_types::{CacheView, WorkerId, WorkerState};

use super::Router;
use crate::{Change, reported, trust};

impl<P: Policy> Router<P> {
    /// Takes in news.
    pub fn apply(&self, change: Change) -> Result<(), FleetFull> {
        match change {
            Change::Join { address, models } => {
                self.reseat(|fleet| {
                    let is_known = fleet.members().iter().any(|view| view.worker.address == address);
                    let worker = fleet.join(address, models)?;
                    if !is_known {
                        self.forget(worker.id);
                    }
                    Ok(())
                })?;
            }
            Change::Leave { address } => {
                self.reseat(|fleet| {
                    // What it holds is of no use to anybody from now on.
                    fleet.leave(&address).into_iter().for_each(|worker| self.forget(worker));
                    Ok(())
                })?;
            }
            Change::Probed { worker, result } => {
                // One that was away has most likely been restarted, and its cache is empty. Where its events are read,
                // they tell.
                let is_back = self.fleet.saw(&worker, result) == Some(WorkerState::Ready);
                if is_back && self.fleet.desk_view(worker.id).view == CacheView::Presumed {
                    reported::forget(&self.index, worker.id);
                }
            }
            Change::Capacity { worker, capacity } => {
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
                let is_restarted = self.fleet.report(&worker, report);
                if is_restarted && self.fleet.desk_view(worker.id).view == CacheView::Presumed {
                    reported::forget(&self.index, worker.id);
                }
            }
            Change::Aligned { worker, matching } if self.fleet.is_member(&worker) => {
                // Whatever was read before was read in another way, or will be told again.
                reported::forget(&self.index, worker.id);
                self.fleet.set_cache_view(worker.id, CacheView::Presumed, 1.0);
                self.reported.align(worker.id, matching);
            }
            Change::Cached { worker, events } if self.fleet.is_member(&worker) => {
                if let Some(block_tokens) = self.reported.take(&self.index, worker.id, &events) {
                    self.fleet.set_block_tokens(&worker, block_tokens);
                }
            }
            Change::Emptied { worker } if self.fleet.is_member(&worker) => {
                reported::forget(&self.index, worker.id);
            }
            Change::Viewed { worker, view } if self.fleet.is_member(&worker) => self.view(worker.id, view),
            Change::Fed { worker, counters } if self.fleet.is_member(&worker) => {
                self.reported.note(worker.id, counters);
            }
            // News of a worker that has left.
            Change::Aligned { .. }
            | Change::Cached { .. }
            | Change::Emptied { .. }
            | Change::Viewed { .. }
            | Change::Fed { .. } => {}
        }
        Ok(())
    }

    /// What a feed says its word is worth. A hole costs trust at once; a stream that is whole again starts afresh.
    fn view(&self, worker: WorkerId, view: CacheView) {
        let desk = self.fleet.desk_view(worker);
        let (view, trust) = match view {
            _ if !self.reported.is_aligned(worker) => (CacheView::Presumed, 1.0),
            CacheView::Reported if desk.view == CacheView::Reported => return,
            CacheView::Uncertain => (CacheView::Uncertain, desk.trust.min(trust::AFTER_HOLE)),
            CacheView::Reported | CacheView::Presumed => (view, 1.0),
        };
        self.fleet.set_cache_view(worker, view, trust);
        if view == CacheView::Reported {
            // What was guessed before is now known, or wrong.
            self.index.clear_presumed(worker);
        }
    }

    /// Nothing is known any more of the cache of whoever sits here.
    fn forget(&self, worker: WorkerId) {
        reported::forget(&self.index, worker);
        self.reported.align(worker, None);
        self.fleet.set_cache_view(worker, CacheView::Presumed, 1.0);
        self.set_capacity(worker, self.config.index.presumed_tokens);
    }

    fn set_capacity(&self, worker: WorkerId, tokens: u64) {
        self.index.set_capacity(worker, tokens).expect("a worker's seat is below the most there are");
    }

    /// Changes who sits where, and derives the pools anew. No decision is made meanwhile: a request that has chosen a
    /// worker but not booked it yet would otherwise find a newcomer on its seat.
    fn reseat(&self, change: impl FnOnce(&Fleet) -> Result<(), FleetFull>) -> Result<(), FleetFull> {
        let mut pools = self.pools.write();
        let changed = change(&self.fleet);
        pools.seat(&self.fleet.members());
        changed
    }
}

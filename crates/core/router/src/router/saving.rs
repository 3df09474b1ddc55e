//! Saves state for the next process and restores it.

use std::sync::Arc;

use warmroute_fleet::{Worker, WorkerView};
use warmroute_index::HolderId;
use warmroute_policy::Policy;
use warmroute_types::Micros;

use super::Router;
use crate::saved_media::SavedMedium;
use crate::saved_state::{SavedState, SavedWorker, model_key};
use crate::unclaimed_state::UnclaimedParts;

impl<P: Policy> Router<P> {
    /// What the next process can use of this router's state. By `unix_s` it will know how old that is.
    pub(super) fn save(&self, now: Micros, unix_s: u64) -> SavedState {
        let remembered = |view: WorkerView| SavedWorker {
            index: view.worker.id.0,
            capacity_tokens: self.index.capacity_tokens(view.worker.id.into()),
            relative_latency: self.fleet.relative_latency_numbers(view.worker.id),
            prefix_cache: view.prefix_cache,
            address: view.worker.address.clone(),
        };
        let pools = self.pools.read();
        let token_rates = pools.token_rates().map(|(model, rate)| (model_key(model), rate.into())).collect();
        drop(pools);
        SavedState {
            seed: self.config.index.seed,
            hash: self.config.index.hash,
            saved_at_s: unix_s,
            latency_models: self.fleet.latency_numbers(),
            token_rates,
            workers: self.fleet.members().into_iter().map(remembered).collect(),
            snapshot: self.index.snapshot(now),
            stored: self.stored.all(),
            media: self.reported.media.all().into_iter().filter(SavedMedium::is_sane).collect(),
        }
    }

    /// Restores a state saved `away` ago: each worker gets its part when it joins.
    pub(super) fn restore(&self, memory: SavedState, now: Micros, away: Micros) {
        for (model, numbers) in &memory.latency_models {
            self.fleet.restore_latency(*model, numbers);
        }
        let recalled = Arc::new(self.index.begin_restore(memory.snapshot, now, away));
        let SavedState { workers, token_rates, stored, media, .. } = memory;
        self.reported.media.restore(media);
        stored.into_iter().for_each(|(id, stored)| _ = self.stored.learn(id, stored));
        self.unclaimed.set(UnclaimedParts { since: now, recalled, workers, token_rates });
    }

    /// Restores the saved state of a worker that joined.
    pub(super) fn restore_worker(&self, worker: &Worker) {
        let Some((recalled, known)) = self.unclaimed.take(&worker.address) else { return };
        self.fleet.restore_worker(worker, known.relative_latency, known.prefix_cache);
        self.set_capacity(worker.id, known.capacity_tokens);
        let restored = self.index.restore(&recalled, HolderId(known.index), worker.id.into());
        restored.expect("worker ids are below MAX_WORKERS");
    }
}
